//! Whom the commands of watches run as: not root, whose files and control socket
//! they would have with no capability at all. A system user `weir-watch`, where
//! there is one; else `nobody`, whom they may share with other services.

use std::{fmt, io};

use nix::unistd::{Gid, Uid, User, setgroups, setresgid, setresuid};

/// The user for watches only.
const NAME: &str = "weir-watch";
/// `nobody`, and its group, in every distribution.
const NOBODY: u32 = 65_534;

/// A user without rights of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WatchUser {
    name: String,
    uid: u32,
    gid: u32,
}

impl fmt::Display for WatchUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {} ({})", self.name, self.uid)
    }
}

impl WatchUser {
    pub(crate) fn nobody() -> Self {
        Self {
            name: "nobody".to_owned(),
            uid: NOBODY,
            gid: NOBODY,
        }
    }

    /// Whether the user may run a file of this owner, group and mode. It can search every
    /// directory on the way, with `CAP_DAC_READ_SEARCH`.
    pub(crate) fn may_execute(&self, uid: u32, gid: u32, mode: u32) -> bool {
        let bit = match (uid == self.uid, gid == self.gid) {
            (true, _) => 0o100,
            (false, true) => 0o010,
            (false, false) => 0o001,
        };
        mode & bit != 0
    }

    /// Becomes this user for good, without other groups.
    pub(crate) fn become_it(&self) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        setgroups(&[])
            .and_then(|()| setresgid(gid, gid, gid))
            .and_then(|()| setresuid(uid, uid, uid))
            .map_err(|error| {
                let why = format!(
                    "cannot become {self}: {error}; the daemon needs CAP_SETUID, CAP_SETGID and CAP_KILL for watches"
                );
                io::Error::new(io::ErrorKind::PermissionDenied, why)
            })
    }
}

/// The user that commands of watches run as; `None` where the daemon is not root: its own.
pub(crate) fn watch_user() -> io::Result<Option<WatchUser>> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    let Some(user) = User::from_name(NAME)? else {
        return Ok(Some(WatchUser::nobody()));
    };
    if user.uid.is_root() || user.gid.as_raw() == 0 {
        let why =
            format!("user {NAME} is root, or in its group: watches are to run as somebody else");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(Some(WatchUser {
        name: user.name,
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
    }))
}
