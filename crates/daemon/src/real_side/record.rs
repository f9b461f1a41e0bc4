//! What `weir real-side` did, on disk before it is done: a crash in between leaves nothing
//! that is not in the record. It counts for one boot and one network namespace.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File},
    io::{self, Write},
    net::IpAddr,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::{DecapSettings, Result, refused, system};

/// A file of this many bytes says more than there can be.
const MOST_BYTES: u64 = 1 << 20;

/// A sysctl below `net.`, by its path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Setting {
    pub name: String,
    pub before: String,
    pub after: String,
}

/// Changes that weir has made to this host; none by default.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AppliedChanges {
    /// `kernel.random.boot_id`.
    boot: String,
    /// The number of the network namespace.
    pub namespace: u64,
    /// The same, of a kernel that gives each namespace another one (SO_NETNS_COOKIE): the number
    /// of one that ended is used again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cookie: Option<u64>,
    /// Virtual addresses that were added.
    pub addresses: BTreeSet<IpAddr>,
    /// Sysctls that were changed.
    #[serde(rename = "sysctls")]
    pub settings: Vec<Setting>,
    /// The settings of the program for tunnels, if it is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decap: Option<DecapSettings>,
}

impl AppliedChanges {
    fn new() -> Result<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let boot = boot.map_err(system("read the number of this boot"))?;
        let namespace = fs::metadata("/proc/thread-self/ns/net");
        let namespace = namespace.map_err(system("look at this network namespace"))?;
        Ok(Self {
            boot: boot.trim().to_owned(),
            namespace: namespace.ino(),
            cookie: weir_bpf::token::network_namespace().ok(),
            ..Self::default()
        })
    }

    fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.settings.is_empty() && self.decap.is_none()
    }

    /// Reads the changes since this boot; none if there is no file.
    pub fn read(path: &Path) -> Result<Self> {
        let new = Self::new()?;
        let read = || -> io::Result<Self> {
            let meta = fs::metadata(path)?;
            if !meta.is_file() || meta.len() > MOST_BYTES {
                return Err(io::Error::other("it is no file of weir real-side"));
            }
            Ok(serde_json::from_slice(&fs::read(path)?)?)
        };
        let found = match read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(new),
            found => found.map_err(system(format!("read {}", path.display())))?,
        };
        let has_ended = found.namespace == new.namespace
            && matches!((found.cookie, new.cookie), (Some(of), Some(here)) if of != here);
        if found.boot != new.boot || has_ended {
            // Addresses and sysctls went with it.
            return Ok(new);
        }
        if found.namespace != new.namespace {
            return refused(format!(
                "{} is about another network namespace; choose another file for this one: --record FILE",
                path.display()
            ));
        }
        Ok(found)
    }
}

/// The record, locked.
pub(super) struct Locked {
    path: PathBuf,
    pub record: AppliedChanges,
    _lock: Option<OwnedFd>,
}

impl Locked {
    /// `is_dry`: it is only read.
    pub fn open(path: &Path, is_dry: bool) -> Result<Self> {
        let lock = match is_dry {
            true => None,
            false => Some(lock(path)?),
        };
        Ok(Self {
            record: AppliedChanges::read(path)?,
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Puts it on disk, all of it or as it was; nothing is left where nothing is to be
    /// said.
    pub fn save(&self) -> Result<()> {
        let save = || -> io::Result<()> {
            if self.record.is_empty() {
                return match fs::remove_file(&self.path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => Ok(()),
                };
            }
            let next = self.path.with_extension("new");
            let mut file = File::create(&next)?;
            file.write_all(&serde_json::to_vec_pretty(&self.record)?)?;
            file.sync_all()?;
            fs::rename(&next, &self.path)
        };
        save().map_err(system(format!("write {}", self.path.display())))
    }
}

/// Waits for whoever changes the same.
fn lock(path: &Path) -> Result<OwnedFd> {
    let lock = || -> io::Result<OwnedFd> {
        if let Some(directory) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            let mut make = DirBuilder::new();
            make.recursive(true).mode(0o755).create(directory)?;
        }
        let file = rustix::fs::open(
            path.with_extension("lock"),
            OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::from_raw_mode(0o600),
        )?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    };
    lock().map_err(system(format!("lock {}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_of_one_boot_and_one_namespace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("real-side.json");
        assert!(AppliedChanges::read(&path).unwrap().is_empty());
        let mut locked = Locked::open(&path, false).unwrap();
        locked.record.addresses.insert([198, 51, 100, 80].into());
        locked.record.settings.push(Setting {
            name: "ipv4/conf/all/arp_ignore".to_owned(),
            before: "0".to_owned(),
            after: "1".to_owned(),
        });
        locked.save().unwrap();
        let kept = AppliedChanges::read(&path).unwrap();
        assert_eq!(kept, locked.record);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace(&kept.boot, "another")).unwrap();
        assert!(AppliedChanges::read(&path).unwrap().is_empty());
        // A namespace that ended, whose number this one has.
        if let Some(cookie) = kept.cookie {
            let other = format!("\"cookie\": {}", cookie + 1);
            let of_ended = text.replace(&format!("\"cookie\": {cookie}"), &other);
            fs::write(&path, of_ended).unwrap();
            assert!(AppliedChanges::read(&path).unwrap().is_empty());
        }
        let number = kept.namespace.to_string();
        fs::write(&path, text.replace(&number, "1")).unwrap();
        let why = AppliedChanges::read(&path).unwrap_err().to_string();
        assert!(why.contains("another network namespace"), "{why}");
        for wrong in ["", "[]", "{\"boot\": 1}", &text.replace("198.51", "x")] {
            fs::write(&path, wrong).unwrap();
            assert!(AppliedChanges::read(&path).is_err(), "{wrong}");
        }
        locked.record = AppliedChanges::new().unwrap();
        locked.save().unwrap();
        locked.save().unwrap();
        assert!(!path.exists());
    }
}
