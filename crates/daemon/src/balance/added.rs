//! Pools and reals that an administrator adds while the daemon runs (`weir pool add`,
//! `weir real add`): kept in the state directory, with the keys that `[pool.NAME]` has, over
//! restarts and reloads until a command takes them back. What they mean, and whether they can
//! be in force beside the files, is the configuration's.

use std::{
    io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_enforce::{MAX_POOLS, MAX_REALS};

use super::{
    config::{BalanceConfig, there_is, unicast},
    state_file,
};

/// The file's longest length, in bytes.
const MOST_BYTES: u64 = 4 << 20;

/// The keys of a pool or a real, as `[pool.NAME]` has them.
pub type KeyValues = Map<String, Value>;

/// What commands have added.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Added {
    /// Pools, in the order in which they were added.
    pub pools: Vec<AddedPool>,
    /// Reals of pools of the configuration, in the same order.
    pub reals: Vec<AddedReal>,
    /// Why there is no more: what an earlier daemon has kept cannot be read.
    #[serde(skip)]
    pub unreadable: Option<String>,
}

/// A pool that a command has added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AddedPool {
    /// The name of the pool.
    pub name: String,
    /// The keys of `[pool.NAME]`.
    pub pool: KeyValues,
}

/// A real that a command has added to a pool of the configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AddedReal {
    /// The name of the pool.
    pub pool: String,
    /// The keys of a table of `reals`.
    pub real: KeyValues,
}

/// What a command changes of the pools.
#[derive(Debug, Clone)]
pub enum PoolChange {
    /// A pool is added.
    Add(AddedPool),
    /// One of those that were added is deleted.
    Delete(String),
    /// A pool has one real more.
    AddReal(AddedReal),
    /// A real that was added is removed from its pool.
    DeleteReal(String, IpAddr),
}

impl PoolChange {
    /// The pool that changes.
    pub fn pool(&self) -> &str {
        match self {
            Self::Add(added) => &added.name,
            Self::AddReal(added) => &added.pool,
            Self::Delete(pool) | Self::DeleteReal(pool, _) => pool,
        }
    }

    /// Whether the change deletes.
    pub fn takes_back(&self) -> bool {
        matches!(self, Self::Delete(_) | Self::DeleteReal(..))
    }
}

/// Why a change of pools was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PoolChangeError {
    /// There is no such pool or real.
    #[error("{0}")]
    NotFound(String),
    /// The pool or real is there already, or is the configuration's.
    #[error("{0}")]
    Conflict(String),
    /// There is no room, or what was kept cannot be read.
    #[error("{0}")]
    Refused(String),
}

/// The address of a real with these keys, if `address` is there and is one.
fn address_of(real: &KeyValues) -> Option<IpAddr> {
    unicast(real.get("address")?.as_str()?)
}

impl AddedReal {
    /// The real's address, if `address` is there and is one.
    pub fn address(&self) -> Option<IpAddr> {
        address_of(&self.real)
    }
}

impl AddedPool {
    fn reals(&mut self) -> Option<&mut Vec<Value>> {
        self.pool.get_mut("reals")?.as_array_mut()
    }

    /// Is this one under the key, `reals` or `emergency`?
    fn has(&self, key: &str, address: IpAddr) -> bool {
        let reals = self.pool.get(key).and_then(Value::as_array);
        let mut tables = reals.into_iter().flatten().filter_map(Value::as_object);
        tables.any(|real| address_of(real) == Some(address))
    }
}

impl Added {
    /// Reads what an earlier daemon kept; nothing if there is no such file. A file that
    /// cannot be read stays as it is, and nothing is added until it is mended or removed.
    pub fn read(state_dir: &Path) -> Self {
        let path = path_in(state_dir);
        match state_file::read(&path, MOST_BYTES) {
            Ok(added) => added,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::default(),
            Err(error) => Self {
                unreadable: Some(format!("cannot read {}: {error}", path.display())),
                ..Self::default()
            },
        }
    }

    /// Puts it on disk: all of it, or the file is as it was.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, state_dir: &Path) -> io::Result<()> {
        state_file::write(&path_in(state_dir), self)
    }

    /// Whether this real of this pool was added by a command.
    pub fn names_real(&self, pool: &str, real: IpAddr) -> bool {
        let mut pools = self.pools.iter();
        let mut reals = self.reals.iter();
        let has = |one: &AddedPool| one.has("reals", real) || one.has("emergency", real);
        pools.any(|one| one.name == pool && has(one))
            || reals.any(|one| one.pool == pool && one.address() == Some(real))
    }

    /// Makes a change. `balance`: the pools in force, those of the configuration above all.
    ///
    /// # Errors
    /// It is about what is not there, what is the configuration's, or too much.
    pub fn change(
        &mut self,
        change: &PoolChange,
        balance: Option<&BalanceConfig>,
    ) -> Result<(), PoolChangeError> {
        if let Some(why) = &self.unreadable {
            return Err(PoolChangeError::Refused(format!(
                "{why}; mend it or remove it, then restart weir"
            )));
        }
        match change {
            PoolChange::Add(added) => self.add(added, balance)?,
            PoolChange::Delete(name) => self.delete(name, balance)?,
            PoolChange::AddReal(added) => self.add_real(added, balance)?,
            PoolChange::DeleteReal(pool, real) => self.delete_real(pool, *real, balance)?,
        }
        let length = serde_json::to_vec_pretty(self).map_or(u64::MAX, |text| text.len() as u64);
        if length > MOST_BYTES {
            return Err(PoolChangeError::Refused(format!(
                "what is added would take {length} bytes; allowed: at most {MOST_BYTES}"
            )));
        }
        Ok(())
    }

    fn add(
        &mut self,
        added: &AddedPool,
        balance: Option<&BalanceConfig>,
    ) -> Result<(), PoolChangeError> {
        if self.pools.iter().any(|known| known.name == added.name) {
            return Err(PoolChangeError::Conflict(format!(
                "there is a pool {} already, added by a command; weir pool del {} deletes it",
                crate::escape(&added.name),
                crate::escape(&added.name),
            )));
        }
        let mut pools = balance.iter().flat_map(|balance| &balance.pools);
        if let Some(known) = pools.find(|pool| pool.name == added.name) {
            return Err(PoolChangeError::Conflict(there_is(known)));
        }
        if self.pools.len() >= MAX_POOLS {
            return Err(PoolChangeError::Refused(format!(
                "{} pools are added already, with those that are not in force; allowed: at most {MAX_POOLS}",
                self.pools.len()
            )));
        }
        self.pools.push(added.clone());
        Ok(())
    }

    fn delete(
        &mut self,
        name: &str,
        balance: Option<&BalanceConfig>,
    ) -> Result<(), PoolChangeError> {
        if let Some(at) = self.pools.iter().position(|pool| pool.name == name) {
            self.pools.remove(at);
            return Ok(());
        }
        let pools = balance.iter().flat_map(|balance| &balance.pools);
        let known = pools.clone().find(|pool| pool.name == name);
        Err(match known.and_then(|pool| pool.place.as_deref()) {
            Some(place) => PoolChangeError::Conflict(format!(
                "pool {name} is defined in {place}: remove it there, then weir reload"
            )),
            None => {
                let mut names: Vec<_> = self.pools.iter().map(|pool| pool.name.as_str()).collect();
                names.sort_unstable();
                not_found(&format!("added pool {}", crate::escape(name)), &names)
            }
        })
    }

    fn add_real(
        &mut self,
        added: &AddedReal,
        balance: Option<&BalanceConfig>,
    ) -> Result<(), PoolChangeError> {
        let mut pools = balance.iter().flat_map(|balance| &balance.pools);
        let known = pools.clone().find(|pool| pool.name == added.pool);
        let Some(known) = known else {
            let names: Vec<_> = pools.by_ref().map(|pool| pool.name.as_str()).collect();
            return Err(not_found(
                &format!("pool {}", crate::escape(&added.pool)),
                &names,
            ));
        };
        if let Some(real) = added.address()
            && let Some(real) = known.own_reals().find(|known| known.address == real)
        {
            let place = real.place.as_deref().unwrap_or("added by a command");
            return Err(PoolChangeError::Conflict(format!(
                "pool {} has {} already ({place})",
                added.pool, real.address
            )));
        }
        if known.place.is_none() {
            let mut pools = self.pools.iter_mut();
            let pool = pools.find(|pool| pool.name == added.pool);
            let reals = pool.and_then(AddedPool::reals);
            let reals = reals.expect("a pool that is in force and was added has a list of reals");
            reals.push(Value::Object(added.real.clone()));
            return Ok(());
        }
        if self.reals.len() >= MAX_REALS {
            return Err(PoolChangeError::Refused(format!(
                "{} reals are added already, with those that are not in force; allowed: at most {MAX_REALS}",
                self.reals.len()
            )));
        }
        self.reals.push(added.clone());
        Ok(())
    }

    fn delete_real(
        &mut self,
        name: &str,
        address: IpAddr,
        balance: Option<&BalanceConfig>,
    ) -> Result<(), PoolChangeError> {
        let is_it = |one: &AddedReal| one.pool == name && one.address() == Some(address);
        if let Some(at) = self.reals.iter().position(is_it) {
            self.reals.remove(at);
            return Ok(());
        }
        let pools = balance.iter().flat_map(|balance| &balance.pools);
        let known = pools.clone().find(|pool| pool.name == name);
        let Some(known) = known else {
            let names: Vec<_> = pools.map(|pool| pool.name.as_str()).collect();
            return Err(not_found(&format!("pool {}", crate::escape(name)), &names));
        };
        let mut added = self.pools.iter_mut();
        let added = added.find(|pool| pool.name == name && known.place.is_none());
        if let Some(added) = added.filter(|pool| pool.has("reals", address)) {
            let reals = added.reals().expect("it has this one");
            if reals.len() == 1 {
                return Err(PoolChangeError::Conflict(format!(
                    "{address} is the last real of pool {name}; weir pool del {name} deletes the pool"
                )));
            }
            let is_other = |real: &Value| real.as_object().and_then(address_of) != Some(address);
            reals.retain(is_other);
            return Ok(());
        }
        let real = known.own_reals().find(|real| real.address == address);
        Err(match (real, &known.place) {
            (Some(real), Some(_)) => PoolChangeError::Conflict(format!(
                "{address} of pool {name} is defined in {}: remove it there, then weir reload. Until then weir real drain or disable keeps flows from it",
                real.place.as_deref().unwrap_or_default()
            )),
            (Some(_), None) => PoolChangeError::Conflict(format!(
                "{address} is in emergency of pool {name}; delete the pool and add it anew"
            )),
            (None, _) => {
                let there: Vec<_> = known.own_reals().map(|r| r.address.to_string()).collect();
                let there: Vec<_> = there.iter().map(String::as_str).collect();
                not_found(&format!("real {address} in pool {name}"), &there)
            }
        })
    }
}

fn not_found(what: &str, there: &[&str]) -> PoolChangeError {
    let there = match there.is_empty() {
        true => "none".to_owned(),
        false => there.join(", "),
    };
    PoolChangeError::NotFound(format!("there is no {what}; there are: {there}"))
}

fn path_in(state_dir: &Path) -> PathBuf {
    state_dir.join("pools.json")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_added_outlives_the_daemon() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Added::read(dir.path()), Added::default());
        let pool = json!({ "reals": [{ "address": "192.0.2.11" }], "emergency": [{ "address": "2001:db8::19" }] });
        let real = json!({ "address": "192.0.2.12", "weight": 2 });
        let added = Added {
            pools: vec![AddedPool {
                name: "shop".to_owned(),
                pool: pool.as_object().unwrap().clone(),
            }],
            reals: vec![AddedReal {
                pool: "web".to_owned(),
                real: real.as_object().unwrap().clone(),
            }],
            unreadable: None,
        };
        added.save(dir.path()).unwrap();
        assert_eq!(Added::read(dir.path()), added);
        for (pool, real, is_named) in [
            ("shop", "192.0.2.11", true),
            ("shop", "2001:db8::19", true),
            ("shop", "192.0.2.12", false),
            ("web", "192.0.2.12", true),
            ("web", "192.0.2.11", false),
        ] {
            let named = added.names_real(pool, real.parse().unwrap());
            assert_eq!(named, is_named, "{real} of {pool}");
        }
        // What cannot be read stays as it is, and nothing is added to it.
        let path = path_in(dir.path());
        for wrong in ["{", "[]", "{\"pools\": [], \"reals\": [], \"others\": []}"] {
            fs::write(&path, wrong).unwrap();
            let mut added = Added::read(dir.path());
            assert!(added.unreadable.is_some(), "{wrong}");
            let refused = added.change(&PoolChange::Delete("shop".to_owned()), None);
            assert!(matches!(refused, Err(PoolChangeError::Refused(_))));
            assert_eq!(fs::read_to_string(&path).unwrap(), wrong);
        }
    }
}
