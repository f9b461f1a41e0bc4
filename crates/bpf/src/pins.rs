//! The pin directory of one instance: `/sys/fs/bpf/weir/<instance>/` with a
//! directory `g<N>` per generation, a symbolic link `current`, and `links/`.
//! Holding an [`InstanceDir`] means being its only writer.

use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    mount::MountFlags,
};

use crate::{
    error::{Context, Error, Result},
    lock::{self, NotTaken},
};

/// Where all instances are, unless the configuration says otherwise.
pub const DEFAULT_ROOT: &str = "/sys/fs/bpf/weir";
/// Where the BPF file system is mounted when nobody has.
pub const USUAL_BPFFS: &str = "/sys/fs/bpf";

/// An instance's directory, locked.
pub struct InstanceDir {
    path: PathBuf,
    _lock: OwnedFd,
}

/// A name that bpffs takes: it refuses '.', and '%' is our escape.
pub fn escape(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'@' | b':' => {
                out.push(byte as char);
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The text that [`escape`] was given; `None` when `name` is not its work.
pub fn unescape(name: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = name.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let hex = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(hex, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

impl InstanceDir {
    /// Creates the directory when needed and locks it.
    ///
    /// # Errors
    /// No BPF file system at `root`; somebody else's directory there; another
    /// process holds the lock.
    pub fn open(root: &Path, instance: &str) -> Result<Self> {
        require_bpffs(root.parent().unwrap_or(root))?;
        let path = root.join(escape(instance));
        let make = || {
            let dirs = [root, &path, &path.join("links")];
            dirs.into_iter().try_for_each(make_ours)
        };
        // Again: the last of the other instances may just have removed the root.
        make().or_else(|_| make())?;
        let lock = rustix::fs::open(
            &path,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .context(|| format!("open {}", path.display()))?;
        match lock::take_file(&lock, || lock::owner_of_file(&lock)) {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(NotTaken::Held(pid)) => Err(Error::refused(
                format!("write to {}", path.display()),
                format!(
                    "another weir daemon holds this instance ({})",
                    lock::owner(pid)
                ),
            )),
            Err(NotTaken::Failed(error)) => {
                Err(Error::new(format!("lock {}", path.display()), error))
            }
        }
    }

    /// Where a generation's maps and programs are pinned.
    pub fn generation(&self, number: u64) -> PathBuf {
        self.path.join(format!("g{number}"))
    }

    /// The directory where the links are pinned.
    pub fn links(&self) -> PathBuf {
        self.path.join("links")
    }

    /// The generation that `current` names.
    pub fn current(&self) -> Option<u64> {
        let target = fs::read_link(self.path.join("current")).ok()?;
        target.to_str()?.strip_prefix('g')?.parse().ok()
    }

    /// Makes `current` name this generation, in one rename.
    pub fn set_current(&self, number: u64) -> Result<()> {
        let (new, current) = (self.path.join("current-new"), self.path.join("current"));
        let _ = fs::remove_file(&new);
        std::os::unix::fs::symlink(format!("g{number}"), &new)
            .and_then(|()| fs::rename(&new, &current))
            .context(|| format!("point {} to g{number}", current.display()))
    }

    /// The generations that have a directory.
    pub fn generations(&self) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(&self.path) else {
            return Vec::new();
        };
        entries
            .flatten()
            .filter_map(|e| e.file_name().to_str()?.strip_prefix('g')?.parse().ok())
            .collect()
    }

    /// Unpins a generation's maps and programs.
    pub fn remove_generation(&self, number: u64) -> Result<()> {
        remove_tree(&self.generation(number))
    }

    /// Unpins everything and removes the directory; and the root when empty.
    pub fn remove(self) -> Result<()> {
        remove_tree(&self.path)?;
        if let Some(root) = self.path.parent() {
            let _ = fs::remove_dir(root);
        }
        Ok(())
    }
}

/// `statfs` type of the BPF file system (linux/magic.h).
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// Mounts the BPF file system that `root` is to lie in, where that is the usual
/// place and nobody has: without systemd nobody does. For those who give
/// CAP_SYS_ADMIN up before they open an [`InstanceDir`].
///
/// # Errors
/// The file system is not mounted, and cannot be.
pub fn mount_bpffs(root: &Path) -> Result<()> {
    require_bpffs(root.parent().unwrap_or(root))
}

/// Whether a path lies in a BPF file system.
///
/// # Errors
/// It is not there, or not to be reached.
pub fn is_bpffs(at: &Path) -> io::Result<bool> {
    Ok(rustix::fs::statfs(at)?.f_type as u64 == BPF_FS_MAGIC)
}

pub(crate) fn require_bpffs(at: &Path) -> Result<()> {
    let shown = at.display();
    let is_mounted = || is_bpffs(at).context(|| format!("look at {shown}"));
    if is_mounted()? {
        return Ok(());
    }
    if at != Path::new(USUAL_BPFFS) {
        return Err(Error::refused(
            format!("keep pins below {shown}"),
            format!("it is no BPF file system: mount -t bpf bpf {shown}"),
        ));
    }
    // Of two that begin at once the second would hide what the first one pins.
    let below = rustix::fs::open(
        at,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .context(|| format!("open {shown}"))?;
    rustix::fs::flock(&below, FlockOperation::LockExclusive).context(|| format!("lock {shown}"))?;
    if is_mounted()? {
        return Ok(());
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("bpf", at, "bpf", flags, Some(c"mode=0700")).map_err(|why| {
        Error::refused(
            format!("mount the BPF file system at {shown}"),
            format!("{why}; as root: mount -t bpf bpf {shown}"),
        )
    })
}

/// Makes a directory that only we can write to. A BPF file system may be
/// mounted for everybody to write (mode 1777 is the kernel's default): who owns
/// a directory there could take weir's links away.
pub(crate) fn make_ours(dir: &Path) -> Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Error::new(format!("make {}", dir.display()), e));
        }
        _ => {}
    }
    let about = fs::symlink_metadata(dir).context(|| format!("look at {}", dir.display()))?;
    let us = rustix::process::geteuid().as_raw();
    if about.is_dir() && [0, us].contains(&about.uid()) && about.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(Error::refused(
        format!("keep pins in {}", dir.display()),
        format!(
            "uid {} made it (mode {:o}) and could take weir's programs away: remove it",
            about.uid(),
            about.mode() & 0o7777
        ),
    ))
}

/// bpffs has no more than two levels below an instance, and no foreign files.
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(Error::new(format!("remove {}", path.display()), e))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_bpffs() {
        for name in ["eth0", "eth0.100", "br-lan", "a%b", "ü", "x@tcx"] {
            let escaped = escape(name);
            assert!(!escaped.contains(['.', '/']), "{escaped}");
            assert_eq!(unescape(&escaped).as_deref(), Some(name));
        }
        assert_eq!(unescape("%"), None);
        assert_eq!(unescape("%zz"), None);
    }
}
