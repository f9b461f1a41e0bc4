//! Two configured names of one device: an alternative name beside its own, or a
//! new name beside the one that it had. It has one attachment.

use std::path::Path;

use super::{devices, interface::Interface, pins::attached_to};
use crate::Error;

/// The names, each once.
pub(super) fn unique(names: &[String]) -> Vec<String> {
    let mut unique: Vec<String> = Vec::with_capacity(names.len());
    for name in names {
        if !unique.contains(name) {
            unique.push(name.clone());
        }
    }
    unique
}

/// Finds out which of these are one device. It belongs to the one that is attached
/// to it, or else to the first.
pub(super) fn find<'a>(
    interfaces: impl Iterator<Item = &'a mut Interface>,
    links: &Path,
) -> Result<(), Error> {
    let mut all: Vec<(Option<u32>, &mut Interface)> = interfaces
        .map(|interface| Ok((index_of(interface)?, interface)))
        .collect::<Result<_, Error>>()?;
    // Attached ones first; the others as they were typed.
    let is_owner = |(index, interface): &(Option<u32>, &mut Interface)| {
        // At a start what is attached is known by its pin only.
        index.is_some_and(|index| {
            interface.was(index) || attached_to(&interface.name, links) == Some(index)
        })
    };
    all.sort_by_key(|one| !is_owner(one));
    let mut owners: Vec<(u32, String)> = Vec::new();
    for (index, interface) in all {
        let Some(index) = index else {
            interface.set_same_as(None, links)?;
            continue;
        };
        let owner = owners.iter().find(|(owned, _)| *owned == index);
        match owner.map(|(_, name)| name.clone()) {
            Some(owner) => interface.set_same_as(Some(owner), links)?,
            None => {
                interface.set_same_as(None, links)?;
                owners.push((index, interface.name.clone()));
            }
        }
    }
    Ok(())
}

/// The device of the name, or the one that had it.
fn index_of(interface: &Interface) -> Result<Option<u32>, Error> {
    if let Some(device) = devices::find(&interface.name)? {
        return Ok(Some(device.index));
    }
    match interface.index() {
        Some(index) => Ok(devices::name_of(index)?.map(|_| index)),
        None => Ok(None),
    }
}
