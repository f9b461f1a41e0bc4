//! What commands have added to the pools of the files: checked by the code that checks the
//! files, one after another. Where both want the same, the files have it; the daemon starts
//! and reloads whatever was added before.

use std::{
    collections::{BTreeMap, BTreeSet},
    slice,
};

use serde::Serialize;
use serde_json::{Map, Value, json};
use weir_config::{ConfigErrors, Document, Part};
use weir_enforce::Feature;

use super::{Config, host_warnings, host_warnings::HostView, tarpit_overlap};
use crate::{
    balance::{
        added::{Added, AddedPool, AddedReal},
        config::{BalanceConfig, PoolConfig, RealConfig, read_pools, read_reals},
    },
    host::HostFacts,
};

/// A pool or a real that was added and is not in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotInForce {
    /// The name of the pool.
    pub pool: String,
    /// The real, if it is not the pool as a whole.
    pub real: Option<String>,
    /// The reason why the pool or real cannot be in force.
    pub why: String,
}

impl NotInForce {
    /// The pool, or its real, for a message.
    pub fn subject(&self) -> String {
        match &self.real {
            None => format!("pool {}", crate::escape(&self.pool)),
            Some(real) => format!(
                "real {} of pool {}",
                crate::escape(real),
                crate::escape(&self.pool)
            ),
        }
    }
}

impl std::fmt::Display for NotInForce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (subject, why) = (self.subject(), &self.why);
        write!(f, "{subject}, added by a command, is not in force: {why}")
    }
}

/// What was added, and what came of it.
#[derive(Debug, Clone, Default)]
pub struct WithAdded {
    /// All of it.
    pub all: Added,
    /// What of it is not in force.
    pub not_in_force: Vec<NotInForce>,
    /// What is allowed of it but probably not meant.
    pub warnings: Vec<String>,
}

impl WithAdded {
    /// Says what of it is not in force, or that it cannot be read.
    pub fn complaints(&self) -> impl Iterator<Item = String> {
        let unreadable =
            self.all.unreadable.iter().map(|why| {
                format!("{why}: pools and reals that commands have added are out of force with this, or not checked")
            });
        unreadable.chain(self.not_in_force.iter().map(ToString::to_string))
    }
}

impl Config {
    /// The same files with what commands have added, in place of what they had added before.
    pub fn with_added(mut self, all: Added, host: &dyn HostFacts) -> Self {
        let before = std::mem::take(&mut self.added);
        self.warnings.retain(|one| !before.warnings.contains(one));
        let mut balance = self.balance.as_ref().and_then(BalanceConfig::of_files);
        let mut added = WithAdded::default();
        let host = &HostView::new(host);
        let add = |base: Option<&_>, some: &[_]| self.add_pools(base, some, host);
        let refused = add_all(&all.pools, &mut balance, &mut added.warnings, add);
        let not_in_force = refused.into_iter().map(|(pool, why)| NotInForce {
            pool: pool.name.clone(),
            real: None,
            why,
        });
        added.not_in_force.extend(not_in_force);
        let add = |base: Option<&_>, some: &[_]| self.add_reals(base, some, host);
        let refused = add_all(&all.reals, &mut balance, &mut added.warnings, add);
        let not_in_force = refused.into_iter().map(|(real, why)| NotInForce {
            pool: real.pool.clone(),
            real: Some(real.address().map_or("?".into(), |at| at.to_string())),
            why,
        });
        added.not_in_force.extend(not_in_force);
        self.balance = balance;
        added.all = all;
        self.warnings.extend(added.warnings.iter().cloned());
        self.added = added;
        self
    }

    fn add_pools(
        &self,
        base: Option<&BalanceConfig>,
        added: &[AddedPool],
        host: &HostView<'_>,
    ) -> Result<Checked, String> {
        let answering = [
            ("decoy", self.decoy.as_ref().map(|decoy| &decoy.ports)),
            ("tarpit", self.tarpit.as_ref().map(|tarpit| &tarpit.ports)),
        ];
        let lists: Vec<_> = self.lists.iter().map(|list| list.name.as_str()).collect();
        let mut tables = Map::new();
        for pool in added {
            let table = Value::Object(pool.pool.clone());
            if tables.insert(pool.name.clone(), table).is_some() {
                return Err(format!("there are two pools {}", pool.name));
            }
        }
        let parts = self.part(tables)?;
        let document = Document::new(&parts);
        let mut root = document.root();
        let mut warnings = Vec::new();
        let with = read_pools(
            &mut root,
            base,
            self.proxy_threads,
            &answering,
            &lists,
            &mut warnings,
        );
        let names: BTreeSet<_> = added.iter().map(|pool| pool.name.as_str()).collect();
        let pools = with.pools.iter();
        let pools: Vec<_> = { pools.filter(|pool| names.contains(&*pool.name)) }
            .cloned()
            .collect();
        if let Some(why) = tarpit_overlap::overlap(self.tarpit.as_ref(), &pools, &[]) {
            root.error(0, why);
        }
        warnings.extend(host_warnings::of_pools(self, &with, &pools, host));
        let backend = self.enforcement.backend;
        let asked = [
            (with.forwards(), Feature::Balance),
            (with.has_tunnels(), Feature::Tunnels),
        ];
        let asked = { asked.iter() }.filter(|(is_asked, _)| *is_asked);
        for limit in { asked }.filter_map(|(_, feature)| backend.limit(*feature)) {
            root.error(0, format!("backend = \"{}\": {limit}", backend.name()));
        }
        root.finish();
        let with = document.finish(with).map_err(|errors| words(&errors))?;
        Ok((with, warnings))
    }

    fn add_reals(
        &self,
        base: Option<&BalanceConfig>,
        added: &[AddedReal],
        host: &HostView<'_>,
    ) -> Result<Checked, String> {
        let mut by_pool = BTreeMap::<_, Vec<_>>::new();
        for real in added {
            let reals = by_pool.entry(real.pool.clone()).or_default();
            reals.push(Value::Object(real.real.clone()));
        }
        let tables = by_pool.into_iter();
        let tables = tables.map(|(pool, reals)| (pool, json!({ "reals": reals })));
        let parts = self.part(tables.collect())?;
        let document = Document::new(&parts);
        let mut root = document.root();
        let mut warnings = Vec::new();
        let Some(with) = read_reals(&mut root, base, &mut warnings) else {
            return Err("the configuration has no such pool any more".to_owned());
        };
        for pool in &with.pools {
            let before = base.iter().flat_map(|base| &base.pools);
            let before = before.filter(|known| known.name == pool.name);
            let before: BTreeSet<_> = before
                .flat_map(PoolConfig::own_reals)
                .map(|real| real.address)
                .collect();
            let is_new = |real: &&RealConfig| !before.contains(&real.address);
            let new: Vec<_> = pool.own_reals().filter(is_new).collect();
            if !new.is_empty() {
                if let Some(why) = tarpit_overlap::overlap(self.tarpit.as_ref(), [pool], &[]) {
                    root.error(0, why);
                }
                warnings.extend(host_warnings::of_reals(self, &with, pool, &new, host));
            }
        }
        root.finish();
        let with = document.finish(with).map_err(|errors| words(&errors))?;
        Ok((with, warnings))
    }

    /// Tables of `[pool]` as the text of a file.
    fn part(&self, pools: Map<String, Value>) -> Result<Vec<Part>, String> {
        let table = json!({ "pool": pools });
        let text = toml::to_string(&table).map_err(|error| error.to_string())?;
        let file = self.state_dir.join("pools.json");
        Ok(Part::all(vec![(file, text, None)]))
    }
}

/// A configuration with more pools or reals, and warnings about those.
type Checked = (BalanceConfig, Vec<String>);

/// Adds all of them to the configuration together, or, if something is wrong with one, one
/// after another. Returns those that cannot be added, with the reason.
fn add_all<'a, T>(
    all: &'a [T],
    config: &mut Option<BalanceConfig>,
    warnings: &mut Vec<String>,
    add: impl Fn(Option<&BalanceConfig>, &[T]) -> Result<Checked, String>,
) -> Vec<(&'a T, String)> {
    let mut refused = Vec::new();
    let mut put = |some: &[T]| -> Result<(), String> {
        let (with, said) = add(config.as_ref(), some)?;
        *config = Some(with);
        warnings.extend(said);
        Ok(())
    };
    if all.is_empty() || put(all).is_ok() {
        return refused;
    }
    // One may need another that comes later: until a round adds none.
    let mut left: Vec<_> = all.iter().collect();
    loop {
        let before = left.len();
        refused.clear();
        for one in left {
            if let Err(why) = put(slice::from_ref(one)) {
                refused.push((one, why));
            }
        }
        if refused.len() == before || refused.is_empty() {
            return refused;
        }
        left = refused.iter().map(|(one, _)| *one).collect();
    }
}

/// The mistakes without their places, which nobody has written.
fn words(errors: &ConfigErrors) -> String {
    let messages = errors.0.iter().map(|error| error.message.as_str());
    messages.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
