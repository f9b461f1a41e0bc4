//! What commands have added to the pools of the files: checked by the code that checks the
//! files, one after another. Where both want the same, the files have it; the daemon starts
//! and reloads whatever was added before.

use std::net::IpAddr;

use serde::Serialize;
use serde_json::{Value, json};
use weir_config::{ConfigErrors, Document, Part};
use weir_enforce::Feature;

use super::Config;
use crate::{
    balance::{
        added::{Added, AddedPool, AddedReal},
        config::{BalanceConfig, PoolConfig, read_pool, read_real},
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
                format!("{why}: pools and reals that commands have added are not in force")
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
        for pool in &all.pools {
            match self.add_pool(balance.as_ref(), pool, host, &mut added.warnings) {
                Ok(with) => balance = Some(with),
                Err(why) => added.not_in_force.push(NotInForce {
                    pool: pool.name.clone(),
                    real: None,
                    why,
                }),
            }
        }
        for real in &all.reals {
            match self.add_real(balance.as_ref(), real, host, &mut added.warnings) {
                Ok(with) => balance = Some(with),
                Err(why) => added.not_in_force.push(NotInForce {
                    pool: real.pool.clone(),
                    real: Some(real.address().map_or("?".into(), |at| at.to_string())),
                    why,
                }),
            }
        }
        self.balance = balance;
        added.all = all;
        self.warnings.extend(added.warnings.iter().cloned());
        self.added = added;
        self
    }

    fn add_pool(
        &self,
        base: Option<&BalanceConfig>,
        added: &AddedPool,
        host: &dyn HostFacts,
        warnings: &mut Vec<String>,
    ) -> Result<BalanceConfig, String> {
        let answering = [
            ("decoy", self.decoy.as_ref().map(|decoy| &decoy.ports)),
            ("tarpit", self.tarpit.as_ref().map(|tarpit| &tarpit.ports)),
        ];
        let lists: Vec<_> = self.lists.iter().map(|list| list.name.as_str()).collect();
        let table = json!({ "pool": { &added.name: &added.pool } });
        let parts = self.part(&table)?;
        let document = Document::new(&parts);
        let mut root = document.root();
        let mut said = Vec::new();
        let threads = self.proxy_threads;
        let with = read_pool(
            &mut root, base, threads, host, &answering, &lists, &mut said,
        );
        let pool = with.pools.iter().find(|pool| pool.name == added.name);
        for vip in pool.iter().flat_map(|pool| &pool.vips) {
            let tarpit = self.tarpit.as_ref();
            if let Some(prefix) = tarpit.and_then(|tarpit| tarpit.addresses.lookup(*vip)) {
                root.error(
                    0,
                    format!(
                        "vip in [pool.{}] has {vip}, which is in {prefix} of addresses in [tarpit]; allowed: an address outside",
                        added.name
                    ),
                );
            }
        }
        said.extend(pool.and_then(|pool| self.has_no_router(pool)));
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
        warnings.extend(said);
        Ok(with)
    }

    /// A warning where other addresses move between hosts, and those of this pool do not.
    fn has_no_router(&self, pool: &PoolConfig) -> Option<String> {
        let routed = |vip: &IpAddr| self.routers.iter().any(|router| router.vips.contains(vip));
        let mut vips = pool.vips.iter();
        let stays = vips.find(|vip| !routed(vip))?;
        (!self.routers.is_empty()).then(|| {
            format!(
                "vip in [pool.{}] has {stays}, which no [vrrp.NAME] has: it stays on this host when another one becomes active. Add it to addresses there, on all of its hosts, and the pool by weir pool add on each",
                pool.name
            )
        })
    }

    fn add_real(
        &self,
        base: Option<&BalanceConfig>,
        added: &AddedReal,
        host: &dyn HostFacts,
        warnings: &mut Vec<String>,
    ) -> Result<BalanceConfig, String> {
        let table = json!({ "pool": { &added.pool: { "reals": [&added.real] } } });
        let parts = self.part(&table)?;
        let document = Document::new(&parts);
        let mut root = document.root();
        let mut said = Vec::new();
        let Some(with) = read_real(&mut root, base, &added.pool, host, &mut said) else {
            return Err("the configuration has no such pool any more".to_owned());
        };
        root.finish();
        let with = document.finish(with).map_err(|errors| words(&errors))?;
        warnings.extend(said);
        Ok(with)
    }

    /// A table as the text of a file.
    fn part(&self, table: &Value) -> Result<Vec<Part>, String> {
        let text = toml::to_string(table).map_err(|error| error.to_string())?;
        let file = self.state_dir.join("pools.json");
        Ok(Part::all(vec![(file, text, None)]))
    }
}

/// The mistakes without their places, which nobody has written.
fn words(errors: &ConfigErrors) -> String {
    let messages = errors.0.iter().map(|error| error.message.as_str());
    messages.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
