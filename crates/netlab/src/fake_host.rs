//! What a program sees of the machine where that is not the machine itself:
//! other files in the place of its own (in a mount namespace), another boot
//! clock (in a time namespace). Nothing of the machine's is changed.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    unistd::gettid,
};

use crate::error::{Context, Result};

/// CLONE_NEWTIME (linux/sched.h), which nix has no name for.
const TIME: CloneFlags = CloneFlags::from_bits_retain(0x80);

/// A changed machine; the default is the machine as it is.
#[derive(Debug, Clone, Default)]
pub struct FakeHost {
    instead: Vec<(PathBuf, PathBuf)>,
    boottime_ahead: u64,
}

impl FakeHost {
    /// Shows the file or directory `other` where the machine has `path`.
    pub fn instead_of(mut self, path: impl Into<PathBuf>, other: impl Into<PathBuf>) -> Self {
        self.instead.push((path.into(), other.into()));
        self
    }

    /// Lets CLOCK_BOOTTIME be this much (whole seconds) ahead of the machine's
    /// and CLOCK_MONOTONIC not, as if it had been suspended for that long.
    pub fn suspended_for(mut self, time: Duration) -> Self {
        self.boottime_ahead = time.as_secs();
        self
    }

    /// Changes what the calling thread starts from now on.
    pub(crate) fn lay(&self) -> Result<()> {
        if self.boottime_ahead > 0 {
            // Of the thread, not the process: its children are born into it.
            unshare(TIME).context(|| "make a time namespace".into())?;
            let file = format!("/proc/{}/timens_offsets", gettid());
            fs::write(&file, format!("boottime {} 0", self.boottime_ahead))
                .context(|| format!("set the boot clock in {file}"))?;
        }
        if self.instead.is_empty() {
            return Ok(());
        }
        unshare(CloneFlags::CLONE_NEWNS).context(|| "make a mount namespace".into())?;
        make_private()?;
        self.instead
            .iter()
            .try_for_each(|(path, other)| bind(other, path))
    }
}

/// Mounts made by this thread from now on are nobody else's.
pub fn make_private() -> Result<()> {
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .context(|| "make the mounts private".into())
}

/// Shows `from` at `to`.
pub fn bind(from: &Path, to: &Path) -> Result<()> {
    let none: Option<&str> = None;
    mount(
        Some(from),
        to,
        none,
        MsFlags::MS_BIND | MsFlags::MS_REC,
        none,
    )
    .context(|| format!("bind {} to {}", from.display(), to.display()))
}
