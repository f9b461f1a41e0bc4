//! What is known of a process: the program that it is.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::Digest;

/// A file that is mapped executable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Object {
    /// As its process names it, at the time of asking; for deleted files and memfds what
    /// the kernel shows. It is shown to people and orders the aggregate; rules are about
    /// the digest.
    pub path: PathBuf,
    /// The digest of what is mapped; none: it could not be had, or is not to be trusted,
    /// because the file system may answer otherwise the next time, or the file was
    /// written meanwhile.
    pub digest: Option<Digest>,
}

/// The container that a process is in, if any, and its labels as the container runtime has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Container {
    /// It is in none, or nobody has asked.
    #[default]
    None,
    /// It is in one whose labels could not be had.
    Unknown,
    /// It is in one with these labels.
    Labels(BTreeMap<String, String>),
}

/// A process, as rules ask about it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Program {
    /// The executable of the process; `None`: it has none, or it could not be seen.
    pub exe: Option<Object>,
    /// All objects that it has mapped executable, the executable among them, each once,
    /// in the order of their paths. The vdso is none of them.
    pub objects: Vec<Object>,
    /// It has executable memory that is of no file: compiled at run time, or injected.
    pub anonymous: bool,
    /// Its code differs from its files, because somebody has written to it in memory, or
    /// another process has traced it when it sent.
    pub altered: bool,
    /// There are more mappings than are read: objects may be missing.
    pub truncated: bool,
    /// The user of the socket, or of the process: its effective number.
    pub uid: u32,
    /// The path of its control group (version 2), from the root, beginning with `/`.
    pub cgroup: String,
    /// The container that its control group is, if a rule asks for containers.
    pub container: Container,
    /// The number of its network namespace (the inode), for people; rules ask the
    /// socket's.
    pub netns: u64,
    /// The arguments as the process shows them: its own word, bounded.
    pub cmdline: Vec<String>,
    /// The script that an interpreter was started with, by its arguments: its own word.
    pub script: Option<PathBuf>,
    /// The package that owns the executable and has this very digest on record.
    pub package: Option<String>,
}

impl Program {
    /// The SHA-256 over the digests of all objects, in the order of their paths: what DAF
    /// calls the aggregate hash. `None`: a digest is not known, or there are objects that
    /// have not been read.
    pub fn aggregate(&self) -> Option<Digest> {
        if self.truncated {
            return None;
        }
        let digests: Option<Vec<Digest>> = self.objects.iter().map(|o| o.digest).collect();
        Some(aggregate(digests.filter(|digests| !digests.is_empty())?))
    }
}

/// The SHA-256 over digests one behind the other.
pub fn aggregate(digests: impl IntoIterator<Item = Digest>) -> Digest {
    let mut hasher = Sha256::new();
    for digest in digests {
        hasher.update(digest.0);
    }
    Digest(hasher.finalize().into())
}
