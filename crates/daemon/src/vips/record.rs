//! Which addresses weir has added to interfaces, or is about to: noted before it does, so
//! that a daemon after a SIGKILL, and `weir detach`, take away those and no other.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write},
    net::IpAddr,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{host, store::clock::Now};

/// A file of this many bytes has more addresses than there can be.
const MOST_BYTES: u64 = 4 << 20;

/// An address on an interface.
pub(super) type Added = (String, IpAddr);

/// The file in the state directory.
#[derive(Debug, Clone)]
pub(super) struct HeldAddresses {
    path: PathBuf,
    boot: String,
    /// Addresses that weir has added, each with its interface.
    pub added: BTreeSet<Added>,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    boot: String,
    added: BTreeSet<Added>,
}

impl HeldAddresses {
    /// What an earlier daemon of this boot noted; what it added in another one is gone.
    pub fn read(state_dir: &Path) -> (Self, io::Result<()>) {
        let mut record = Self {
            path: state_dir.join("addresses.json"),
            boot: Now::read().boot,
            added: BTreeSet::new(),
        };
        let read = match kept(&record.path) {
            Ok(kept) if kept.boot == record.boot => {
                record.added = kept.added;
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        (record, read)
    }

    /// Puts it on disk: all of it, or the file is as it was.
    pub fn save(&self) -> io::Result<()> {
        let next = self.path.with_extension("json.next");
        let kept = Kept {
            boot: self.boot.clone(),
            added: self.added.clone(),
        };
        let mut file = File::create(&next)?;
        file.write_all(&serde_json::to_vec(&kept)?)?;
        file.sync_all()?;
        fs::rename(&next, &self.path)
    }
}

fn kept(path: &Path) -> io::Result<Kept> {
    if fs::metadata(path)?.len() > MOST_BYTES {
        return Err(io::Error::other("it is too large"));
    }
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Takes away the virtual addresses that a daemon of this state directory has added to
/// interfaces, each with its interface. For `weir detach`: the daemon is stopped.
///
/// # Errors
/// What it has added cannot be read, or one cannot be removed.
pub fn take_away(state_dir: &Path) -> io::Result<Vec<(String, IpAddr)>> {
    let (mut record, read) = HeldAddresses::read(state_dir);
    read?;
    let mut gone = Vec::new();
    for (name, address) in &record.added {
        if let Some(interface) = host::interface(name)?
            && interface.addresses.contains(address)
        {
            super::address::release(interface.index, *address)?;
            gone.push((name.clone(), *address));
        }
    }
    if !record.added.is_empty() {
        record.added.clear();
        record.save()?;
    }
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_known_until_the_next_boot() {
        let dir = tempfile::tempdir().unwrap();
        let (mut record, read) = HeldAddresses::read(dir.path());
        assert!(read.is_ok() && record.added.is_empty());
        let one = ("eth0".to_owned(), "2001:db8::80".parse().unwrap());
        record.added.insert(one.clone());
        record.save().unwrap();
        let (again, read) = HeldAddresses::read(dir.path());
        assert!(read.is_ok());
        assert_eq!(again.added, [one].into());
        record.boot = "another".to_owned();
        record.save().unwrap();
        assert!(HeldAddresses::read(dir.path()).0.added.is_empty());
        fs::write(dir.path().join("addresses.json"), "{").unwrap();
        assert!(HeldAddresses::read(dir.path()).1.is_err());
        assert!(take_away(dir.path()).is_err());
    }
}
