//! The way to a path that a process, or somebody's file, has chosen, be it through links: a name is
//! looked up in no file system that others hold, and none is led out of this mount namespace.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, readlinkat},
    io::Errno,
};

use super::mounts::{Found, RemoteMounts, mount_of};

/// As many links as the kernel follows on one way (path_resolution(7)).
const MAX_LINKS: usize = 40;
/// Names that are looked up on one way: links may lead by very long ones.
const MAX_STEPS: usize = 512;

/// The file to which a path leads; `None`: there is none, or it is not asked for, as on the way a
/// file system is one that others hold, or one of /proc, whose links lead into namespaces of
/// others.
pub fn reach(path: &Path) -> Option<Found> {
    find(path, OFlags::empty())
}

/// As [`reach`], and what is at the path itself, if that is a link.
pub fn reach_link(path: &Path) -> Option<Found> {
    find(path, OFlags::NOFOLLOW)
}

fn find(path: &Path, last: OFlags) -> Option<Found> {
    let path = path.strip_prefix("/").ok()?;
    let root = openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let root = File::from(root);
    let mount = mount_of(&root)?;
    if path.as_os_str().is_empty() {
        return Some(Found(root));
    }
    if !RemoteMounts::here().may_search(mount, mount) {
        return None;
    }
    // Most files are on the mount of the root, and no others are asked as long as the way stays
    // there.
    let how = ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC | last;
    match openat2(&root, path, flags, Mode::empty(), how) {
        Ok(file) => Some(Found(file.into())),
        Err(Errno::NOENT | Errno::NOTDIR) => None,
        Err(_) => walk(&root, mount, path, last),
    }
}

/// The same name by name, each of which is looked up where that is known to ask nobody.
fn walk(root: &File, root_mount: u64, path: &Path, last: OFlags) -> Option<Found> {
    let mut left = names(path);
    let mut at = root.try_clone().ok()?;
    // Where that is, without links.
    let mut way = PathBuf::from("/");
    let (mut links, mut steps) = (0, 0);
    while let Some(name) = left.pop() {
        steps += 1;
        match name == ".." {
            true => way.pop(),
            false => {
                way.push(&name);
                true
            }
        };
        // Before it is looked up: some ask already when somebody comes to them.
        if steps > MAX_STEPS || RemoteMounts::here().hold_path(&way) {
            return None;
        }
        // Without O_DIRECTORY, which would have automounts come.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let next = File::from(openat(&at, &name, flags, Mode::empty()).ok()?);
        if !RemoteMounts::here().may_search(mount_of(&next)?, root_mount) {
            return None;
        }
        let is_last = left.is_empty() && last.contains(OFlags::NOFOLLOW);
        let about = fstat(&next).ok()?;
        if is_last || FileType::from_raw_mode(about.st_mode) != FileType::Symlink {
            at = next;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return None;
        }
        let target = OsString::from_vec(readlinkat(&next, "", Vec::new()).ok()?.into_bytes());
        let target = Path::new(&target);
        way.pop();
        if target.is_absolute() {
            at = root.try_clone().ok()?;
            way = PathBuf::from("/");
        }
        left.extend(names(target));
    }
    Some(Found(at))
}

/// The names in a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        Component::ParentDir => Some(OsStr::from_bytes(b"..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.map(OsStr::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt, symlink},
        sync::mpsc,
        thread,
        time::Duration,
    };

    use weir_testkit::fuse::{FuseLog, missing};

    use super::{super::share::owner_of, *};

    /// Name by name, also where the way stays on one mount.
    fn walked(path: &Path) -> Option<Found> {
        let root = File::open("/").unwrap();
        let mount = mount_of(&root).unwrap();
        let path = path.strip_prefix("/").unwrap();
        walk(&root, mount, path, OFlags::empty())
    }

    #[test]
    fn a_way_is_that_of_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/b/file"), "one").unwrap();
        symlink("b/file", at("a/relative")).unwrap();
        symlink("../a/b", at("a/up")).unwrap();
        symlink(at("a/../a/relative"), at("absolute")).unwrap();
        symlink("/", at("root")).unwrap();
        let number = |found: Option<Found>| {
            let about = found?.about().ok()?;
            Some((about.dev(), about.ino()))
        };
        for path in [
            PathBuf::from("/"),
            PathBuf::from("/.."),
            at(""),
            at("a/b/file"),
            at("a/./b/../b/file"),
            at("a/relative"),
            at("a/up/file"),
            at("absolute"),
            at("root/etc"),
            PathBuf::from("/dev/null"),
        ] {
            let about = fs::metadata(&path).unwrap();
            let is = Some((about.dev(), about.ino()));
            assert_eq!(number(reach(&path)), is, "{}", path.display());
            assert_eq!(number(walked(&path)), is, "{}", path.display());
        }
        let link = reach_link(&at("absolute")).unwrap().about().unwrap();
        assert!(link.is_symlink());
        let content = reach(&at("absolute")).unwrap().open().unwrap();
        assert_eq!(std::io::read_to_string(content).unwrap(), "one");

        symlink("loop", at("loop")).unwrap();
        symlink("/proc/self/exe", at("magic")).unwrap();
        symlink("/proc/self/root", at("out")).unwrap();
        for path in [
            at("none"),
            at("a/b/file/none"),
            at("a/b/file/.."),
            at("loop"),
            at("magic"),
            at("out/etc/passwd"),
            PathBuf::from("/proc/self/exe"),
            PathBuf::from("/proc/self/root/etc/passwd"),
            PathBuf::from("/dev/fd/0"),
            PathBuf::from("etc/passwd"),
        ] {
            assert!(reach(&path).is_none(), "{}", path.display());
        }
        let long = at(&"a/../".repeat(MAX_STEPS / 2));
        assert!(walked(&long).is_none());
    }

    #[test]
    fn root_a_name_is_looked_up_nowhere_where_others_hold_it() {
        if let Some(missing) = missing() {
            eprintln!("skipped: {missing}");
            return;
        }
        let remote = FuseLog::mount().unwrap();
        let point = remote.path().parent().unwrap().to_owned();
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        symlink(&point, at("way")).unwrap();
        symlink(remote.path(), at("file")).unwrap();
        let out = PathBuf::from(format!("/proc/{}/root", std::process::id()));
        let out = out.join(point.strip_prefix("/").unwrap());
        symlink(&out, at("out")).unwrap();
        remote.hang(true);
        let asked = remote.requests();
        let ways = [
            remote.path(),
            point,
            at("way"),
            at("way/any"),
            at("way/../../any"),
            at("file"),
            at("out/any"),
            out.join("any"),
        ];
        let (done, waits) = mpsc::channel();
        thread::spawn(move || {
            for path in ways {
                let found = (reach(&path).is_some(), owner_of(&path));
                done.send((path, found)).unwrap();
            }
        });
        while let Ok((path, found)) = match waits.recv_timeout(Duration::from_secs(60)) {
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("somebody was asked"),
            told => told,
        } {
            assert_eq!(found, (false, 0), "{}", path.display());
        }
        remote.hang(false);
        assert_eq!(remote.requests(), asked);
    }
}
