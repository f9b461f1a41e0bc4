//! Checks that could not be begun. Where this host lacks something for them, that says
//! nothing about the real: it is as it was found last, and is asked again in its turn.

use std::io;

use rustix::io::Errno;

use super::{RealState, State};

/// What this host can be short of: descriptors, memory, processes, and ports or addresses
/// to ask from.
const WANTS: [Errno; 6] = [
    Errno::MFILE,
    Errno::NFILE,
    Errno::NOBUFS,
    Errno::NOMEM,
    Errno::AGAIN,
    Errno::ADDRNOTAVAIL,
];

/// Why a check could not be begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotBegun {
    /// The real cannot be reached, or its check not be done by anybody.
    RealFails(String),
    /// This host lacks something that has nothing to do with the real.
    HostLacks(String),
}

impl NotBegun {
    /// `why`: the error in words, with the name of the check.
    pub(super) fn new(error: &io::Error, why: String) -> Self {
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        match errno.is_some_and(|errno| WANTS.contains(&errno)) {
            true => Self::HostLacks(why),
            false => Self::RealFails(why),
        }
    }

    /// The reason in words.
    #[cfg(test)]
    pub(super) fn into_why(self) -> String {
        let (Self::RealFails(why) | Self::HostLacks(why)) = self;
        why
    }
}

impl State {
    /// An alert if reals cannot be asked for this host's own fault.
    pub(super) fn cannot_ask(&self) -> Option<String> {
        let with = |real: &RealState| Some((real.config.address, real.not_asked.clone()?));
        let (real, why) = self.reals().find_map(with)?;
        Some(format!(
            "cannot begin checks of reals, as of {real} ({why}): this host lacks what they take. Each counts as it was found last, so that one that dies meanwhile is not noticed"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_host_lacks_is_no_fault_of_the_real() {
        for errno in WANTS {
            let error = io::Error::from(errno);
            let why = error.to_string();
            assert_eq!(
                NotBegun::new(&error, why.clone()),
                NotBegun::HostLacks(why),
                "{errno:?}"
            );
        }
        let others = [
            io::Error::from(Errno::CONNREFUSED),
            io::Error::from(Errno::NETUNREACH),
            io::Error::from(Errno::HOSTUNREACH),
            io::Error::other("no such command"),
        ];
        for error in others {
            let why = error.to_string();
            assert_eq!(NotBegun::new(&error, why.clone()), NotBegun::RealFails(why));
        }
    }
}
