//! Pins of links: what is attached outlives the daemon by them. Each carries the
//! name of its interface and the hook.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use weir_bpf::{
    attachment::{Hook, Link},
    device, pins,
};

use super::devices;
use crate::Error;

/// The number of the interface that what is pinned under this name is attached
/// to; `None` when it is gone.
pub(super) fn attached_to(name: &str, links: &Path) -> Option<u32> {
    let indices = pinned(links, name).into_iter().filter_map(|(_, pin)| {
        let (index, _) = Link::open(&pin).ok()?.target().ok()?;
        (index != 0).then_some(index)
    });
    indices.into_iter().next()
}

/// What an earlier daemon attached to a device that has one of these names by
/// now is known by that name from here on.
pub(super) fn follow_names(names: &[String], links: &Path) -> Result<(), Error> {
    for (name, hook, pin) in all_pinned(links) {
        if names.contains(&name) {
            continue;
        }
        let Ok((index, _)) = Link::open(&pin).and_then(|link| link.target()) else {
            continue;
        };
        if let Some(now) = devices::name_of(index)?.filter(|now| names.contains(now)) {
            rename_pin(&pin, &pin_of(links, &now, hook))?;
        }
    }
    Ok(())
}

/// The interfaces that something is attached to, by their names now.
pub(super) fn attached(links: &Path) -> Vec<String> {
    let mut names: Vec<_> = all_pinned(links)
        .into_iter()
        .filter_map(|(name, _, pin)| {
            let (index, _) = Link::open(&pin).ok()?.target().ok()?;
            device::name_of(index).unwrap_or(Some(name))
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Pins of this interface's links.
pub(super) fn pinned(links: &Path, name: &str) -> Vec<(Hook, PathBuf)> {
    all_pinned(links)
        .into_iter()
        .filter(|(n, _, _)| n == name)
        .map(|(_, h, p)| (h, p))
        .collect()
}

/// Pins of all links: interface name, hook, path.
pub(super) fn all_pinned(links: &Path) -> Vec<(String, Hook, PathBuf)> {
    let Ok(entries) = fs::read_dir(links) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let name = pins::unescape(entry.file_name().to_str()?)?;
            let (name, hook) = name.rsplit_once('@')?;
            Some((name.to_owned(), Hook::from_name(hook)?, entry.path()))
        })
        .collect()
}

/// Where the attachment of an interface to a hook is pinned.
pub(super) fn pin_of(links: &Path, name: &str, hook: Hook) -> PathBuf {
    links.join(pins::escape(&format!("{name}@{}", hook.name())))
}

/// Ends the attachment that is pinned there, if any is.
pub(super) fn remove_link(pin: &Path) -> Result<(), Error> {
    if let Ok(link) = Link::open(pin) {
        link.detach();
    }
    remove_pin(pin)
}

pub(super) fn rename_pin(from: &Path, to: &Path) -> Result<(), Error> {
    fs::rename(from, to).map_err(|e| {
        let what = format!("rename the pin {} to {}", from.display(), to.display());
        weir_bpf::Error::new(what, e).into()
    })
}

pub(super) fn remove_pin(pin: &Path) -> Result<(), Error> {
    match fs::remove_file(pin) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(weir_bpf::Error::new(format!("unpin {}", pin.display()), e).into())
        }
        _ => Ok(()),
    }
}
