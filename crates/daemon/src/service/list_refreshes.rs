//! Refreshes of lists that a command asks for.

use std::sync::Arc;

use weir_core::Prefix;
use weir_events::alerts::Alerts;

use super::{Refusal, allow_list::AllowList};
use crate::{
    access::{
        classes::ClassSync,
        exemptions::Exempt,
        lists::{ListStatus, Lists},
    },
    config::Config,
    current::Current,
};

/// Has lists refreshed, and puts what they say into force.
pub struct ListRefreshes {
    pub(super) config: Arc<Current<Config>>,
    pub(super) lists: Lists,
    pub(super) classes: Arc<ClassSync>,
    pub(super) exempt: Arc<Exempt>,
    pub(super) allow_list: Arc<AllowList>,
    pub(super) alerts: Arc<Alerts>,
}

impl ListRefreshes {
    /// Asks for one; `force`: also if the list has shrunk too much. The number to
    /// ask by whether it is through.
    pub fn begin(&self, name: &str, force: bool) -> Result<u64, Refusal> {
        let begun = self.lists.refresh(name, force);
        begun.map_err(|error| Refusal::NotFound(error.to_string()))
    }

    /// The list, once that attempt is through.
    pub fn attempted(&self, name: &str, attempt: u64) -> Result<Option<ListStatus>, Refusal> {
        let exempt: Vec<Prefix> = self.exempt.current().own().collect();
        let done = self.lists.attempted(name, attempt, &exempt);
        // A reload may have taken it away meanwhile.
        done.map_err(|error| Refusal::NotFound(error.to_string()))
    }

    /// What the lists say now holds when this returns.
    pub fn put_in_force(&self) -> Result<(), Refusal> {
        self.allow_list.refresh_exemptions()?;
        if let Err(error) = self.classes.follow(|| self.config.get().fences()) {
            self.alerts.raise("classes", error.to_string());
        }
        Ok(())
    }
}
