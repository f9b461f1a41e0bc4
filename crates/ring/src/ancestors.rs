//! Who could exchange a ring's directory for another one? Every directory and
//! symbolic link on the way to it is judged: each must belong to a user who is
//! trusted, and nobody else may write there, unless the directory is sticky as
//! `/dev/shm` is, where others can add names but not replace them.
//!
//! weir's daemon walks to the programs that it runs in the same way, by other
//! rules (`command.rs` there). A crate for both would come into every server that
//! links the ring, which stands alone.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::segment::Owner;
use crate::sys;

/// Symbolic links that are followed on one way.
const MAX_LINKS: usize = 40;

/// Whether the ring directory `directory` may be read: every directory and
/// symbolic link on the way to it, and the directory itself, belong to root,
/// to this process's user or to `owner`, and others can replace none of them.
/// What does not exist yet is [`ErrorKind::NotFound`].
pub fn check_directory(directory: impl AsRef<Path>, owner: Owner) -> Result<()> {
    judge(directory.as_ref(), owner, true)
}

/// As [`check_directory`]; the owner of the directory itself counts only if `itself` says
/// so.
pub(crate) fn judge(directory: &Path, owner: Owner, itself: bool) -> Result<()> {
    if owner == Owner::Anyone {
        return Ok(());
    }
    let whole = std::path::absolute(directory)
        .map_err(|error| Error::system("no working directory", error))?;
    let mut at = PathBuf::from("/");
    let mut rest = components(&whole);
    let mut links = 0;
    loop {
        let about = examine(&at)?;
        if about.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(Error::new(ErrorKind::Owner, "too many symbolic links").at(directory));
            }
            owner.check(about.uid()).map_err(|error| error.at(&at))?;
            let target = fs::read_link(&at).map_err(|error| cannot_examine(&at, error))?;
            at.pop();
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            for part in components(&target).into_iter().rev() {
                rest.push_front(part);
            }
        } else if rest.is_empty() {
            return match itself {
                true => owner.check(about.uid()).map_err(|error| error.at(&at)),
                false => Ok(()),
            };
        } else {
            owner.check(about.uid()).map_err(|error| error.at(&at))?;
            cannot_be_replaced_in(&at, &about)?;
        }
        // ".." of a link's target, which may be several.
        while rest.front().is_some_and(|name| name == "..") {
            rest.pop_front();
            at.pop();
        }
        if let Some(name) = rest.pop_front() {
            at.push(name);
        }
    }
}

fn cannot_be_replaced_in(directory: &Path, about: &fs::Metadata) -> Result<()> {
    let mode = about.mode();
    let sticky = mode & 0o1000 != 0;
    let group = mode & 0o020 != 0 && about.gid() != 0 && about.gid() != sys::own_gid();
    if (mode & 0o002 != 0 || group) && !sticky {
        return Err(Error::new(
            ErrorKind::Owner,
            "can be written to by others, who could put another ring in this one's place",
        )
        .at(directory));
    }
    Ok(())
}

fn examine(path: &Path) -> Result<fs::Metadata> {
    fs::symlink_metadata(path).map_err(|error| cannot_examine(path, error))
}

fn cannot_examine(path: &Path, error: std::io::Error) -> Error {
    Error::system(format!("cannot examine {}", path.display()), error)
}

fn components(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn directory(path: &Path, mode: u32) {
        fs::create_dir(path).expect("a directory");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
    }

    fn said(path: &Path, owner: Owner) -> String {
        check_directory(path, owner).map_or_else(|error| error.to_string(), |()| String::new())
    }

    /// Issue 13: `/dev/shm/weir` of whoever makes it first.
    #[test]
    fn every_link_and_directory_on_the_way_counts() {
        let home = tempfile::tempdir().expect("a directory");
        let home = fs::canonicalize(home.path()).expect("its path");
        let at = |name: &str| home.join(name);
        directory(&at("good"), 0o755);
        directory(&at("good/ring"), 0o2770);
        directory(&at("open"), 0o777);
        directory(&at("open/ring"), 0o755);
        directory(&at("sticky"), 0o1777);
        directory(&at("sticky/ring"), 0o755);
        symlink("../good/ring", at("sticky/link")).expect("a link");
        symlink(at("open"), at("way")).expect("a link");
        symlink("loop", at("loop")).expect("a link");
        for (name, words) in [
            ("good/ring", ""),
            ("sticky/ring", ""),
            ("sticky/link", ""),
            ("sticky/link/../ring", ""),
            ("open", ""),
            ("open/ring", "open: can be written to by others"),
            ("way/ring", "open: can be written to by others"),
            ("loop", "too many symbolic links"),
            ("later/ring", "cannot examine"),
        ] {
            let said = said(&at(name), Owner::Trusted);
            match words {
                "" => assert_eq!(said, "", "{name}"),
                words => assert!(said.contains(words), "{name}: {said:?}"),
            }
            let trusting = check_directory(at(name), Owner::Anyone);
            assert!(trusting.is_ok(), "{name}");
        }
        let missing = check_directory(at("later/ring"), Owner::Trusted);
        assert_eq!(missing.map_err(|e| e.kind()), Err(ErrorKind::NotFound));

        // Only root can give things away.
        if chown(at("sticky/ring"), Some(4242), None).is_err() {
            return;
        }
        directory(&at("sticky/ring/deeper"), 0o755);
        std::os::unix::fs::lchown(at("sticky/link"), Some(4242), None).expect("given away");
        for name in ["sticky/ring", "sticky/ring/deeper", "sticky/link"] {
            let said = said(&at(name), Owner::Trusted);
            assert!(said.contains("belongs to user 4242"), "{name}: {said:?}");
            assert_eq!(self::said(&at(name), Owner::User(4242)), "", "{name}");
        }
        // A writer may use the directory of another, but not his way to it.
        assert!(judge(&at("sticky/ring"), Owner::Trusted, false).is_ok());
        assert!(judge(&at("sticky/ring/deeper"), Owner::Trusted, false).is_err());
        assert!(judge(&at("sticky/link"), Owner::Trusted, false).is_err());
    }
}
