//! Files and directories that results are written into, often by root: nobody else's link leads
//! them elsewhere.

use std::{
    fs::{self, DirBuilder, File, Metadata, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::Path,
};

use nix::{
    fcntl::{OFlag, openat},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, geteuid, unlinkat},
};

fn refused(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why.into())
}

/// Whether something is root's or this user's.
fn is_own(about: &Metadata) -> bool {
    about.uid() == 0 || about.uid() == geteuid().as_raw()
}

/// A link of another user would have root write where that one cannot.
fn check_link(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_symlink() && !is_own(&about) => Err(refused(format!(
            "it is a link of the user {}; allowed: a link of root's or your own, or what it leads to",
            about.uid()
        ))),
        Ok(about) => Ok(about.is_symlink()),
        // It is made.
        Err(_) => Ok(false),
    }
}

/// A second name of a file may be one that another user has given to root's.
fn check_names(file: File) -> io::Result<File> {
    let about = file.metadata()?;
    match about.is_file() && about.nlink() > 1 {
        true => Err(refused(format!(
            "it has {} names (hard links); allowed: a file of one name",
            about.nlink()
        ))),
        false => Ok(file),
    }
}

/// What another user has put there would be read as one's own, and a pipe would be waited for.
fn check_owner(file: File) -> io::Result<File> {
    let about = file.metadata()?;
    let kind = about.file_type();
    match (about.is_file() && !is_own(&about), kind.is_fifo()) {
        (true, _) => Err(refused(format!(
            "it belongs to the user {}; allowed: a file of root's or your own",
            about.uid()
        ))),
        (_, true) => Err(refused("it is a pipe; allowed: a file")),
        _ => Ok(file),
    }
}

/// Opens a file of root's or the caller's to write into it, through a link only if that is one of
/// theirs, too.
///
/// # Errors
/// It is another user's, or a pipe, has another name, or cannot be opened.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let is_link = check_link(path)?;
    let no_link = if is_link { 0 } else { OFlag::O_NOFOLLOW.bits() };
    let flags = no_link | OFlag::O_NONBLOCK.bits();
    check_names(check_owner(options.custom_flags(flags).open(path)?)?)
}

/// A directory into which nobody but root and the caller can put something in place of what is
/// there. It stays the same one, whatever its name becomes.
#[derive(Debug)]
pub struct OwnDir(File);

impl OwnDir {
    /// Makes the directory, if need be, and opens it. In a sticky one, as /tmp is, others can make
    /// files and links, which are refused one by one, and can take none away.
    ///
    /// # Errors
    /// It cannot be made, or others can write to it.
    pub fn open(path: &Path) -> io::Result<Self> {
        check_link(path)?;
        DirBuilder::new().recursive(true).mode(0o755).create(path)?;
        let dir = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_DIRECTORY.bits())
            .open(path)?;
        let about = dir.metadata()?;
        let mode = about.mode() & 0o7777;
        if !is_own(&about) {
            return Err(refused(format!(
                "it belongs to the user {}; allowed: a directory of root's or your own",
                about.uid()
            )));
        }
        if mode & 0o022 != 0 && mode & 0o1000 == 0 {
            return Err(refused(format!(
                "its mode is {mode:04o}; allowed: one that is writable for nobody else, or sticky"
            )));
        }
        Ok(Self(dir))
    }

    fn open_at(&self, name: &str, flags: OFlag) -> io::Result<File> {
        let flags = flags | OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_NOFOLLOW;
        // A pipe of that name would be waited for.
        let flags = flags | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(0o644);
        Ok(openat(&self.0, name, flags, mode)?.into())
    }

    /// Makes a file in it, and takes it away.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn try_out(&self, name: &str) -> io::Result<()> {
        self.open_at(name, OFlag::O_EXCL)?;
        Ok(unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// A file in it, empty, in place of what the file of that name had.
    ///
    /// # Errors
    /// What is there is no file, a link, or has another name.
    pub fn create(&self, name: &str) -> io::Result<File> {
        let file = check_names(self.open_at(name, OFlag::empty())?)?;
        if !file.metadata()?.is_file() {
            return Err(refused("it is no file"));
        }
        file.set_len(0)?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        os::unix::fs::{PermissionsExt, symlink},
        path::PathBuf,
    };

    use super::*;

    fn victim(dir: &Path) -> PathBuf {
        let victim = dir.join("victim");
        fs::write(&victim, "as it was").unwrap();
        victim
    }

    #[test]
    fn what_is_kept_goes_through_no_link() {
        let temp = tempfile::tempdir().unwrap();
        let victim = victim(temp.path());
        let path = temp.path().join("packets");
        let dir = OwnDir::open(&path).unwrap();
        dir.try_out("trial").unwrap();
        symlink(&victim, path.join("a.pcap")).unwrap();
        fs::hard_link(&victim, path.join("b.pcap")).unwrap();
        fs::create_dir(path.join("c.pcap")).unwrap();
        for name in ["a.pcap", "b.pcap", "c.pcap"] {
            dir.create(name).unwrap_err();
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "as it was");
        // What was kept before is replaced.
        fs::write(path.join("d.pcap"), "longer").unwrap();
        dir.create("d.pcap").unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(path.join("d.pcap")).unwrap(), "new");
        // Another directory of that name is not the one that was looked at.
        fs::rename(&path, temp.path().join("moved")).unwrap();
        symlink("/", &path).unwrap();
        dir.create("e.pcap").unwrap();
        assert!(temp.path().join("moved/e.pcap").exists());
    }

    #[test]
    fn a_directory_of_others_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("packets");
        let set = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        OwnDir::open(&path).unwrap();
        for mode in [0o775, 0o757] {
            set(mode);
            let error = OwnDir::open(&path).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("its mode is {mode:04o}; allowed")),
                "{error}"
            );
        }
        set(0o1777);
        OwnDir::open(&path).unwrap();
        if !geteuid().is_root() {
            return;
        }
        set(0o755);
        std::os::unix::fs::chown(&path, Some(4711), None).unwrap();
        let error = OwnDir::open(&path).unwrap_err().to_string();
        assert!(
            error.starts_with("it belongs to the user 4711; allowed"),
            "{error}"
        );
        let link = temp.path().join("link");
        symlink(victim(temp.path()), &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(4711), None).unwrap();
        let error = open(&link, OpenOptions::new().write(true)).unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("it is a link of the user 4711"),
            "{error}"
        );
    }

    /// In a sticky directory, as /tmp is.
    #[test]
    fn pipes_and_files_of_others_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        let pipe = temp.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::from_bits_truncate(0o666)).unwrap();
        let said = |options: &mut OpenOptions, path: &Path| {
            let error = open(path, options).unwrap_err();
            error.to_string()
        };
        let both = || {
            let mut both = OpenOptions::new();
            both.read(true).write(true).create(true).truncate(false);
            both
        };
        assert_eq!(said(&mut both(), &pipe), "it is a pipe; allowed: a file");
        // That nobody reads it the kernel says itself.
        said(OpenOptions::new().write(true), &pipe);
        if !geteuid().is_root() {
            return;
        }
        let planted = victim(temp.path());
        std::os::unix::fs::chown(&planted, Some(4711), None).unwrap();
        let error = said(&mut both(), &planted);
        assert!(
            error.starts_with("it belongs to the user 4711; allowed: a file"),
            "{error}"
        );
    }

    #[test]
    fn a_file_is_opened_through_links_of_ones_own_only() {
        let temp = tempfile::tempdir().unwrap();
        let victim = victim(temp.path());
        let (link, second) = (temp.path().join("link"), temp.path().join("second"));
        symlink(&victim, &link).unwrap();
        let open = |path: &Path| open(path, OpenOptions::new().write(true).create(true));
        open(&link).unwrap();
        open(&temp.path().join("new")).unwrap();
        open(Path::new("/dev/null")).unwrap();
        fs::hard_link(&victim, &second).unwrap();
        let error = open(&second).unwrap_err().to_string();
        assert!(error.starts_with("it has 2 names"), "{error}");
    }
}
