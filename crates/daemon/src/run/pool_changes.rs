//! Pools and reals that a command adds or deletes: put into force as a reload puts them, kept in
//! the state directory, and told of. Which there may be is the configuration's.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

use weir_core::Prefix;

use super::{
    added_pools::{forget_settings, pools_need, tell_of_added},
    reload::{Alone, Reloader},
    start_error::StartError,
};
use crate::{
    api::PoolsChanged,
    balance::{
        self,
        added::{PoolChange, PoolChangeError},
    },
    config::{Config, NotInForce},
    host::Host,
    service::{Refusal, Service},
};

/// What the alert is about that says that added pools are not on disk.
const ABOUT_SAVING: &str = "balance:saving";

/// Puts the pools of a configuration into force that has all else as it is in force.
fn put_pools(service: &Service, config: &Config) -> Result<(), StartError> {
    service.allow_list.refresh_exemptions_by(config)?;
    // Access lists ask it. It is given up when the configuration is in force.
    if let Some(geography) = config.geography() {
        service.geography.configure(Some(&geography));
    }
    service.balancer.apply(config.balance.as_ref())?;
    service.vips.apply(&config.vips());
    Ok(())
}

impl Reloader {
    /// Puts on disk what commands have added, and tells if it cannot be.
    pub(super) fn save_added(&self, config: &Config) -> io::Result<()> {
        let saved = config.added.all.save(&config.state_dir);
        self.is_unsaved.store(saved.is_err(), Ordering::Relaxed);
        match &saved {
            Ok(()) => self.service.alerts.clear(ABOUT_SAVING),
            Err(error) => {
                let message = format!(
                    "cannot save what was added to pools or deleted ({error}): the next start has the pools as they were last saved; the next change and weir reload try again"
                );
                self.service.alerts.raise(ABOUT_SAVING, message);
            }
        }
        saved
    }

    /// Makes the change, while nobody reloads. On an error all is as it was.
    pub(super) fn change_pools_alone(&self, change: &PoolChange) -> Result<PoolsChanged, Refusal> {
        // Held until it is done: nobody reloads meanwhile.
        let _workers = self.workers();
        let old = self.service.config.get();
        let mut added = old.added.all.clone();
        added.change(change, old.balance.as_ref())?;
        let new = Config::clone(&old).with_added(added, &Host);
        // What is added is in force, and what was so stays so.
        let is_new = |one: &&NotInForce| !old.added.not_in_force.contains(one);
        if let Some(refused) = refused_by(change, new.added.not_in_force.iter().filter(is_new)) {
            return Err(out_of_force(change, refused));
        }
        let needs = pools_need(&old, &new);
        if !needs.is_empty() {
            return Err(Refusal::Reload(format!(
                "a change of {} needs a restart: write the pool into {} and restart weir (what is banned stays banned meanwhile)",
                needs.join(", "),
                new.file.display()
            )));
        }
        let new = Arc::new(new);
        {
            let _alone = Alone::of(&self.service);
            if let Err(error) = put_pools(&self.service, &new) {
                let geography = old.geography();
                self.service.geography.configure(geography.as_deref());
                if let Err(again) = put_pools(&self.service, &old) {
                    let message = format!(
                        "after a refused change the pools before it are not wholly in force: {again}"
                    );
                    self.service.alerts.raise("reload", message);
                }
                return Err(Refusal::Reload(error.to_string()));
            }
            self.service.set_config(new.clone());
        }
        let saved = self.save_added(&new);
        forget_settings(&self.service, &new);
        tell_of_added(&self.service, &old.added, &new.added);
        tell_of_change(&self.service, change, &new);
        let is_new = |one: &&String| !old.added.warnings.contains(one);
        let warnings = new.added.warnings.iter().filter(is_new).cloned().collect();
        Ok(PoolsChanged { saved, warnings })
    }
}

/// Of what a change takes out of force the one that says why it is refused: where the pool
/// that changes is one of them it is wrong itself, and the others may follow from that.
fn refused_by<'a>(
    change: &PoolChange,
    mut out_of_force: impl Iterator<Item = &'a NotInForce> + Clone,
) -> Option<&'a NotInForce> {
    let own = out_of_force.clone().find(|one| one.pool == change.pool());
    own.or_else(|| out_of_force.next())
}

/// Why a change is refused by which this cannot be in force: what is to be added itself, or
/// what was added before.
fn out_of_force(change: &PoolChange, one: &NotInForce) -> Refusal {
    let (subject, why) = (one.subject(), &one.why);
    if change.takes_back() {
        Refusal::Conflict(format!("{subject} needs it: {why}"))
    } else if one.pool == change.pool() {
        Refusal::Malformed(why.clone())
    } else {
        Refusal::Conflict(format!("{subject} would be out of force: {why}"))
    }
}

/// Tells of a change of pools that is in force.
fn tell_of_change(service: &Service, change: &PoolChange, config: &Config) {
    let name = change.pool();
    let (what, real) = match change {
        PoolChange::Add(_) => {
            let mut pools = config.balance.iter().flat_map(|balance| &balance.pools);
            let pool = pools.find(|pool| pool.name == name);
            let vips = pool.iter().flat_map(|pool| &pool.vips);
            let vips: Vec<_> = vips.map(ToString::to_string).collect();
            let reals = pool.map_or(0, |pool| pool.own_reals().count());
            (
                format!(
                    "added, {} with {}",
                    vips.join(", "),
                    crate::counted(reals as u64, "real", "reals")
                ),
                None,
            )
        }
        PoolChange::Delete(_) => ("deleted".to_owned(), None),
        PoolChange::AddReal(added) => {
            let address = added.address();
            let shown = address.map(|address| address.to_string());
            (
                format!("real {} is added", shown.unwrap_or_default()),
                address,
            )
        }
        PoolChange::DeleteReal(_, address) => {
            (format!("real {address} is deleted"), Some(*address))
        }
    };
    let text = format!("pool {name}: {what}");
    tracing::info!("{text}");
    let event = balance::event(name, text);
    service.events.tell(&match real {
        Some(real) => event.about(Prefix::host(real)),
        None => event,
    });
}

impl From<PoolChangeError> for Refusal {
    fn from(error: PoolChangeError) -> Self {
        match error {
            PoolChangeError::NotFound(why) => Self::NotFound(why),
            PoolChangeError::Conflict(why) => Self::Conflict(why),
            PoolChangeError::Refused(why) => Self::Reload(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::added::AddedPool;

    #[test]
    fn a_change_that_is_wrong_is_told_of_before_what_follows_from_it() {
        let one = |pool: &str| NotInForce {
            pool: pool.to_owned(),
            real: None,
            why: "why".to_owned(),
        };
        let all = ["a", "shop", "z"].map(one);
        let of = |name: &str| refused_by(&PoolChange::Delete(name.to_owned()), all.iter());
        assert_eq!(of("shop").map(|one| one.pool.as_str()), Some("shop"));
        assert_eq!(of("other").map(|one| one.pool.as_str()), Some("a"));
        assert!(refused_by(&PoolChange::Delete("a".to_owned()), all[..0].iter()).is_none());
    }

    #[test]
    fn what_is_wrong_with_a_change_itself_is_told_from_what_others_need() {
        let delete = PoolChange::Delete("shop".to_owned());
        let delete_real = PoolChange::DeleteReal("shop".to_owned(), [10, 0, 0, 11].into());
        let add = |name: &str| {
            let pool = Default::default();
            PoolChange::Add(AddedPool {
                name: name.to_owned(),
                pool,
            })
        };
        for (change, is_conflict, text) in [
            (delete, true, "pool shop needs it: why"),
            (delete_real, true, "pool shop needs it: why"),
            (add("shop"), false, "why"),
            (add("other"), true, "pool shop would be out of force: why"),
        ] {
            let one = NotInForce {
                pool: "shop".to_owned(),
                real: None,
                why: "why".to_owned(),
            };
            let refusal = out_of_force(&change, &one);
            let conflicts = matches!(refusal, Refusal::Conflict(_));
            assert_eq!(
                (conflicts, refusal.to_string()),
                (is_conflict, text.to_owned())
            );
        }
    }
}
