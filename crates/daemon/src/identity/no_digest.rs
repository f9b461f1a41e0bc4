//! Why files have no digest.

use weir_identity::hash::HashError;

/// Why a file has no digest that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoDigest {
    /// It is open to be written, or was written while it was read: later, perhaps.
    Written,
    /// It lies in memory (memfd, shared memory), where the kernel does not tell who can write.
    Memory,
    /// Its file system may answer otherwise at each read.
    Untrusted,
    /// It is larger, or slower to read, than is waited for.
    TooLarge,
    /// The kernel gives no lease on it, and others than root can write to it.
    Unleased,
    /// There is no room for another lease, and others than root can write to it.
    NoRoom,
    /// The file could not be read; its process is gone, mostly.
    Unreadable,
    /// There was no time for it beside other files: later.
    Later,
    /// It lies in an overlay, and who has it mapped has one that was there before it.
    Replaced,
}

impl NoDigest {
    /// May it have one when it is looked at again?
    pub fn is_for_now(self) -> bool {
        matches!(
            self,
            Self::Written | Self::Unleased | Self::NoRoom | Self::Later
        )
    }

    /// For people, behind the name of the file.
    pub fn why(self) -> &'static str {
        match self {
            Self::Written => "it is open to be written",
            Self::Memory => "it lies in memory and is not sealed against writing",
            Self::Untrusted => "its file system may answer otherwise at each read",
            Self::TooLarge => "it is too large, or takes too long to read",
            Self::Unleased => "the kernel does not say whether it is open to be written",
            Self::NoRoom => {
                "of so many files that others than root can write to nobody is told who does"
            }
            Self::Unreadable => "it cannot be read",
            Self::Later => "it is read later: too much is to be read at once",
            Self::Replaced => {
                "in its overlay another file has come in its place since it was mapped"
            }
        }
    }
}

impl From<HashError> for NoDigest {
    fn from(error: HashError) -> Self {
        match error {
            HashError::Changed => Self::Written,
            HashError::TooLarge(..) | HashError::TooSlow(_) => Self::TooLarge,
            HashError::Io(_) | HashError::NoFile => Self::Unreadable,
        }
    }
}
