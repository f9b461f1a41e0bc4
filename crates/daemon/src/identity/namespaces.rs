//! The network namespaces of this host's processes.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    thread,
};

use rustix::{
    fs::statfs,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use weir_identity::AppConfig;

use super::mounts::RemoteMounts;
use crate::instance::may_enter_namespaces;

/// Network namespaces that are gone through, at most.
const MAX_NAMESPACES: usize = 4096;
/// Where ip-netns(8) names them.
const NAMES: &str = "/run/netns";
const MAX_NAMES: usize = 4096;
/// The file system of namespaces (linux/magic.h, NSFS_MAGIC).
const NSFS: u32 = 0x6e73_6673;

/// The namespaces that rules name by files, by their inodes; `None`: there is none at that file.
pub(super) type NamedNamespaces = BTreeMap<PathBuf, Option<u64>>;

/// Those that the rules of a configuration name, as they are now.
pub(super) fn named(config: &AppConfig) -> NamedNamespaces {
    let files = config.rules.iter();
    let files = files.filter_map(|rule| rule.place.netns.as_ref());
    files
        .map(|file| (file.clone(), namespace_at(file)))
        .collect()
}

/// The inode of the namespace that this file is. Before ip-netns(8) has mounted it there, and
/// behind its removal, the file is another one, whose number is no namespace's.
pub(super) fn namespace_at(file: &Path) -> Option<u64> {
    // A server that has stopped answers nothing.
    if RemoteMounts::here().hold_path(file) {
        return None;
    }
    // By its path: to open a pipe waits for who writes to it.
    let is_namespace = statfs(file).is_ok_and(|of| of.f_type as u32 == NSFS);
    is_namespace.then(|| inode(file)).flatten()
}

/// Does this in the own network namespace, and with CAP_SYS_ADMIN in those of all other
/// processes. What fails in one does not spare the others; the first error is kept.
///
/// # Errors
/// Those of `each`, or a namespace that cannot be entered.
pub(super) fn in_each(
    mut each: impl FnMut() -> weir_bpf::Result<()> + Send,
) -> weir_bpf::Result<()> {
    let own = each();
    if !may_enter_namespaces() {
        return own;
    }
    let others = others();
    if others.is_empty() {
        return own;
    }
    // A thread of its own: it does not come back.
    let done = thread::scope(|scope| {
        let work = || {
            let done = others.iter().map(|(inode, namespace)| {
                let network = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(namespace.as_fd(), network).map_err(|error| {
                    let what = format!("enter the network namespace net:[{inode}]");
                    weir_bpf::Error::new(what, error.into())
                })?;
                each()
            });
            done.fold(Ok(()), Result::and)
        };
        let done = scope.spawn(work).join();
        done.expect("going through sockets does not panic")
    });
    own.and(done)
}

/// The network namespaces of all processes but the daemon's own, by their inodes.
fn others() -> BTreeMap<u64, File> {
    let own = own();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let file = entry.path().join("ns/net");
        if found.len() == MAX_NAMESPACES {
            tracing::warn!(
                "sockets are gone through in {MAX_NAMESPACES} network namespaces, and there are more"
            );
            break;
        }
        let is_process = entry
            .file_name()
            .as_encoded_bytes()
            .iter()
            .all(u8::is_ascii_digit);
        if !is_process {
            continue;
        }
        if let Some(number) = inode(&file)
            && Some(number) != own
            && !found.contains_key(&number)
            && let Ok(file) = File::open(&file)
        {
            found.insert(number, file);
        }
    }
    found
}

fn inode(namespace: &Path) -> Option<u64> {
    fs::metadata(namespace).ok().map(|about| about.ino())
}

/// The inode of the daemon's own one.
pub(super) fn own() -> Option<u64> {
    inode(Path::new("/proc/self/ns/net"))
}

/// The inode of a process's.
pub(super) fn of(pid: u32) -> Option<u64> {
    inode(Path::new(&format!("/proc/{pid}/ns/net")))
}

/// The names that ip-netns(8) has for them, by their inodes.
pub(super) fn names() -> BTreeMap<u64, String> {
    let entries = fs::read_dir(NAMES).into_iter().flatten().flatten();
    let named = entries.take(MAX_NAMES).filter_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        Some((inode(&entry.path())?, name))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_namespaces_have_their_number() {
        let own_file = Path::new("/proc/self/ns/net");
        assert_eq!(namespace_at(own_file), own());
        assert_eq!(namespace_at(Path::new("/proc/self/status")), None);
        assert_eq!(namespace_at(Path::new("/run/netns/weir-nowhere")), None);
    }

    #[test]
    fn the_own_namespace_is_not_among_the_others() {
        assert!(!others().contains_key(&own().unwrap()));
    }
}
