//! The allow list: what commands and the configuration put on it, and telling
//! the backend.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use jiff::Timestamp;
use weir_core::{Prefix, policy::Ledger};
use weir_enforce::Backend;
use weir_events::{Event, Events, Kind, alerts::Alerts};

use super::{Allowed, Done, MAX_REASON, Refusal, answers};
use crate::{
    access::exemptions::{
        Collector, Exempt, ExemptionConfig, Written,
        config::{is_too_wide, too_wide},
    },
    access::lists::Lists,
    config::Config,
    current::Current,
    store::{AllowEntry, Change, Store},
};

/// More prefixes than this are not taken into the allow list at run time.
const MAX_ALLOW: usize = 10_000;
/// The alert of [`is_too_wide`].
const WIDE: &str = "allow-wide";

/// Gathers the addresses that must not be banned, and changes what commands have said.
pub struct AllowList {
    pub(super) config: Arc<Current<Config>>,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) store: Arc<Store>,
    pub(super) exempt: Arc<Exempt>,
    pub(super) events: Arc<Events>,
    pub(super) alerts: Arc<Alerts>,
    pub(super) lists: Lists,
    pub(super) ledger: Arc<Current<Ledger>>,
    pub(super) own: Arc<Current<Vec<IpAddr>>>,
    pub(super) allow: Mutex<Vec<AllowEntry>>,
    pub(super) written: Written,
    pub(super) collector: Mutex<Collector>,
}

impl AllowList {
    /// Writes the allow list of commands into a database that was made anew.
    pub fn remember_allow_again(&self) {
        // Held meanwhile: what is taken back is not written again behind that.
        let allow = self.allow_entries();
        let entries = allow.iter().cloned();
        self.store.remember(entries.map(Change::AllowAdd));
    }

    pub(super) fn allow_entries(&self) -> MutexGuard<'_, Vec<AllowEntry>> {
        self.allow.lock().expect("no holder of this lock panics")
    }

    /// Reads the exemptions again; tells the backend when they changed.
    pub fn refresh_exemptions(&self) -> Result<(), weir_enforce::Error> {
        self.refresh_exemptions_by(&self.config.get())
    }

    /// Refreshes the exemptions by a configuration that is not in force yet.
    pub fn refresh_exemptions_by(&self, config: &Config) -> Result<(), weir_enforce::Error> {
        let mut collector = self
            .collector
            .lock()
            .expect("no holder of this lock panics");
        let allow = self.allow_entries().clone();
        let pools = config.balance.iter().flat_map(|balance| &balance.pools);
        let reals: Vec<_> = pools
            .flat_map(|pool| {
                pool.own_reals()
                    .map(|real| (pool.name.as_str(), real.address))
            })
            .collect();
        let routers = config.routers.iter();
        let peers: Vec<_> = routers
            .flat_map(|router| {
                router
                    .peers
                    .iter()
                    .map(|peer| (router.name.as_str(), *peer))
            })
            .collect();
        let configured = ExemptionConfig {
            file: &config.file,
            allow: &config.allow,
            reals: &reals,
            peers: &peers,
            lockout: config.lockout,
        };
        let (list, failed) = collector.gather(configured, &allow, Instant::now());
        let own = collector.own();
        self.ledger.get().set_own(&own);
        self.own.set(Arc::new(own));
        match failed.is_empty() {
            true => self.alerts.clear("exemptions"),
            false => self.alerts.raise(
                "exemptions",
                format!(
                    "cannot read who must not be banned, who was known stays exempt: {}",
                    failed.join("; ")
                ),
            ),
        }
        self.alert_on_prefix_bans();
        let changed = self.exempt.replace(list, self.lists.current());
        self.written.follow(changed, || {
            let exempt = self.exempt.current();
            match exempt.overfull() {
                None => self.alerts.clear("allow-lists"),
                Some(list) => self.alerts.raise(
                    "allow-lists",
                    format!("the kernel's allow list has no room for the list {list} and those after it: they are not in force"),
                ),
            }
            self.backend.set_allow(exempt.set())
        })
    }

    /// As long as so much is allowed, it is said: bans, lists and geofence do
    /// nothing for it.
    fn alert_on_prefix_bans(&self) {
        let wide = self.allowed_too_wide();
        match wide.is_empty() {
            true => self.alerts.clear(WIDE),
            false => self.alerts.raise(WIDE, answers::allowed_in_vain(&wide)),
        }
    }

    /// Prefixes that `allow add --force` allowed although they are too wide; the
    /// configuration cannot.
    pub(super) fn allowed_too_wide(&self) -> Vec<Prefix> {
        let allow = self.allow_entries();
        let allowed = allow.iter().map(|entry| entry.prefix);
        allowed.filter(|prefix| is_too_wide(*prefix)).collect()
    }

    /// Allows a prefix from now on: durable, then in force. `force`: even one
    /// that holds a good part of all addresses.
    pub fn allow(&self, prefix: &str, note: String, force: bool) -> Result<Done<Allowed>, Refusal> {
        let prefix: Prefix = prefix.parse()?;
        if is_too_wide(prefix) && !force {
            let why = too_wide(prefix);
            return Err(Refusal::Malformed(format!("{why}, or --force")));
        }
        if note.len() > MAX_REASON {
            return Err(Refusal::Malformed(format!(
                "the note has {} bytes: at most {MAX_REASON}",
                note.len()
            )));
        }
        let entry = AllowEntry {
            prefix,
            since: Timestamp::now(),
            note,
        };
        {
            let mut allow = self.allow_entries();
            allow.retain(|e| e.prefix != prefix);
            if allow.len() >= MAX_ALLOW {
                return Err(Refusal::Malformed(format!(
                    "the allow list has {MAX_ALLOW} entries already"
                )));
            }
            allow.push(entry.clone());
            self.store.remember([Change::AllowAdd(entry)]);
        }
        let saved = self.store.flush();
        self.refresh_exemptions()?;
        self.events
            .tell(&Event::new(Kind::Allow, Timestamp::now(), "allowed manually").about(prefix));
        Ok(Done::new(Allowed { prefix }, saved))
    }

    /// Takes back what `allow` did.
    pub fn disallow(&self, prefix: &str) -> Result<Done<Allowed>, Refusal> {
        let prefix: Prefix = prefix.parse()?;
        {
            let mut allow = self.allow_entries();
            let before = allow.len();
            allow.retain(|e| e.prefix != prefix);
            if allow.len() == before {
                let why = self
                    .exempt
                    .current()
                    .list()
                    .into_iter()
                    .find(|e| e.prefix == prefix);
                return Err(Refusal::NotFound(match why {
                    Some(e) => format!("{prefix} was not allowed manually: {}", e.reason),
                    None => format!("{prefix} is not on the allow list"),
                }));
            }
            self.store.remember([Change::AllowDel(prefix)]);
        }
        let saved = self.store.flush();
        self.refresh_exemptions()?;
        self.events
            .tell(&Event::new(Kind::Allow, Timestamp::now(), "no longer allowed").about(prefix));
        Ok(Done::new(Allowed { prefix }, saved))
    }
}
