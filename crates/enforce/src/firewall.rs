//! Backends that are rules of the system's firewall, `nft` and `ipset`: the
//! desired state is in memory, and told to the kernel from there. What these
//! two do alike is here; [`Firewall`] is what each does its own way.
//!
//! Locks: `desired`, never held while the kernel is asked, and the backend's
//! own, which serialises whoever asks the kernel. That one is taken first.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use crate::{
    backend::{Backend, ClassCounter, ClassFilter, Counter, InsertError, InsertSummary, Usage},
    backend_feature::Feature,
    backend_kind::{BackendChoice, Limit},
    desired_bans::{DesiredBans, Pending},
    entry::{BootNanos, Entry},
    error::Error,
    hooks::{attachment::Attachment, devices},
    ranges::Covered,
    settings::Settings,
};
use weir_core::{BanSource, BanTarget, PortSet, PrefixSet, Reason, address_class::Classes};

/// Packets and bytes by the names of counters; those of reasons have their
/// names.
pub(crate) type Counted = HashMap<String, (u64, u64)>;

/// The bans, exemptions, classes and settings that shall be enforced.
pub(crate) struct Desired {
    pub(crate) bans: DesiredBans,
    /// Subjects whose bans the kernel has not been told of.
    pub(crate) pending: Pending,
    pub(crate) allow: Arc<Covered>,
    pub(crate) classes: Arc<Classes>,
    pub(crate) settings: Settings,
    /// Are there geofence or lists, perhaps of an earlier daemon?
    pub(crate) had_classes: bool,
}

impl Desired {
    /// The state that an earlier daemon left.
    pub(crate) fn taken_over(
        entries: Vec<Entry>,
        had_classes: bool,
        ipv4_length: Option<u8>,
        settings: &Settings,
    ) -> Mutex<Self> {
        let mut bans = DesiredBans::new(settings.max_bans, ipv4_length);
        for entry in entries {
            if let Err(error) = bans.insert(&entry) {
                tracing::warn!("taking over {}: {error}", entry.subject);
            }
        }
        Mutex::new(Self {
            bans,
            pending: Pending::new(),
            allow: Arc::default(),
            classes: Arc::default(),
            settings: settings.clone(),
            had_classes,
        })
    }

    /// Bans that begin or cease to touch an allowed address are pending then:
    /// both backends ask them elsewhere.
    fn replace_allow(&mut self, allow: &PrefixSet) {
        let allow = Arc::new(Covered::new(allow.iter()));
        let before = std::mem::replace(&mut self.allow, allow);
        for (subject, _) in self.bans.all() {
            let prefix = subject.prefix();
            if before.touches(prefix) != self.allow.touches(prefix) {
                self.pending.insert(subject, true);
            }
        }
    }
}

/// Adds what was counted elsewhere.
pub(crate) fn add(to: &mut Counted, counter: &str, packets: u64, bytes: u64) {
    let known = to.entry(counter.to_owned()).or_default();
    known.0 += packets;
    known.1 += bytes;
}

/// The nftables or the ipset backend. Each `put_…` tells the kernel what is desired now,
/// unless nothing is attached yet.
pub(crate) trait Firewall: Send + Sync {
    const CHOICE: BackendChoice;

    fn state(&self) -> &Mutex<Desired>;

    fn desired(&self) -> MutexGuard<'_, Desired> {
        let state = self.state().lock();
        state.expect("no holder of this lock panics")
    }

    /// Can these settings be carried out?
    fn check(&self, _settings: &Settings) -> Result<(), Error> {
        Ok(())
    }

    /// [`Backend::limits`].
    fn lacks(&self) -> &'static [Limit] {
        Self::CHOICE.limits()
    }

    /// Everything, and the rules that lead there.
    fn put_all(&self) -> Result<(), Error>;

    /// Bans of the subjects that are pending, those of other threads among them.
    fn put_pending(&self) -> Result<(), Error>;

    fn put_allow(&self) -> Result<(), Error>;

    fn put_classes(&self) -> Result<(), Error>;

    /// Interfaces, and whether anything is dropped.
    fn put_settings(&self) -> Result<(), Error>;

    /// Packets and bytes of every counter, those of earlier tables included.
    fn counted(&self) -> Result<Counted, Error>;

    /// Packets and bytes of these that lists and geofence dropped.
    fn count_classes(&self, counted: &Counted) -> Vec<ClassCounter>;

    /// What there is to say about an interface that is there.
    fn tell(&self, interface: &str) -> String;

    /// What the device of this configured name is called since it was renamed.
    fn renamed(&self, configured: &str) -> Option<String>;

    /// Carries out what is due once a second.
    fn tend(&self) -> Result<(), Error>;

    /// [`Backend::memory`]: nftables tells none.
    fn memory_of_sets(&self) -> Option<u64> {
        None
    }
}

impl<F: Firewall> Backend for F {
    fn name(&self) -> &'static str {
        F::CHOICE.name()
    }

    fn limits(&self) -> &'static [Limit] {
        self.lacks()
    }

    fn insert(&self, entries: &[Entry]) -> Result<InsertSummary, InsertError> {
        let (done, outcome) = {
            let mut desired = self.desired();
            let Desired { bans, pending, .. } = &mut *desired;
            bans.insert_pending(entries, pending)
        };
        done.with(self.put_pending().and(outcome))
    }

    fn remove(
        &self,
        subject: BanTarget,
        producer: Option<&BanSource>,
        scope: Option<&PortSet>,
    ) -> Result<Vec<Entry>, Error> {
        let lifted = {
            let mut desired = self.desired();
            let Desired { bans, pending, .. } = &mut *desired;
            bans.remove_pending(subject, producer, scope, pending)
        };
        if !lifted.is_empty() {
            self.put_pending()?;
        }
        Ok(lifted)
    }

    fn entries(&self) -> Result<Vec<Entry>, Error> {
        Ok(self.desired().bans.live())
    }

    fn entries_for(&self, addr: IpAddr) -> Result<Vec<Entry>, Error> {
        Ok(self.desired().bans.live_for(addr))
    }

    fn set_allow(&self, allow: &PrefixSet) -> Result<(), Error> {
        self.desired().replace_allow(allow);
        self.put_allow()
    }

    fn classes(&self) -> Option<&dyn ClassFilter> {
        Some(self)
    }

    fn counters(&self) -> Result<Vec<Counter>, Error> {
        let counted = self.counted()?;
        let counter = |reason: Reason| {
            let (packets, bytes) = counted.get(reason.name()).copied().unwrap_or_default();
            Counter {
                reason,
                packets,
                bytes,
            }
        };
        Ok(Reason::ALL.map(counter).to_vec())
    }

    fn attach(&self) -> Result<(), Error> {
        self.put_all()
    }

    fn reconfigure(&self, settings: &Settings) -> Result<(), Error> {
        self.check(settings)?;
        let before = {
            let mut desired = self.desired();
            desired.bans.set_max_bans(settings.max_bans);
            std::mem::replace(&mut desired.settings, settings.clone())
        };
        if before.interfaces == settings.interfaces && before.observe == settings.observe {
            return Ok(());
        }
        self.put_settings()
    }

    fn attachments(&self) -> Vec<Attachment> {
        let interfaces = self.desired().settings.interfaces.clone();
        let attachment = |interface: String| {
            let mut renamed = None;
            let (present, hook, note) = match devices::real_name(&interface) {
                Ok(Some(real)) => (true, F::CHOICE.name(), self.tell(&real)),
                Ok(None) => {
                    renamed = self.renamed(&interface);
                    match &renamed {
                        Some(now) => {
                            let note = format!("called {now} now; {}", self.tell(now));
                            (true, F::CHOICE.name(), note)
                        }
                        None => (
                            false,
                            "none",
                            "no such interface now; protected as soon as it is back".to_owned(),
                        ),
                    }
                }
                // The rules are as they were.
                Err(error) => (true, F::CHOICE.name(), error.to_string()),
            };
            Attachment {
                hook: hook.to_owned(),
                note,
                interface,
                present,
                renamed,
            }
        };
        interfaces.into_iter().map(attachment).collect()
    }

    fn usage(&self) -> Usage {
        let mut desired = self.desired();
        desired.bans.drop_over(BootNanos::now());
        desired.bans.usage()
    }

    fn memory(&self) -> Option<u64> {
        self.memory_of_sets()
    }

    fn maintain(&self) -> Result<(), Error> {
        self.desired().bans.drop_over(BootNanos::now());
        self.tend()
    }
}

impl<F: Firewall> ClassFilter for F {
    fn set_classes(&self, classes: &Arc<Classes>) -> Result<(), Error> {
        let limit = F::CHOICE.limit(Feature::Geofence);
        if let (false, Some(limit)) = (classes.fences.is_empty(), limit) {
            return Err(limit.refusal(F::CHOICE.name()));
        }
        {
            let mut desired = self.desired();
            desired.had_classes = !classes.is_empty();
            desired.classes = classes.clone();
        }
        self.put_classes()
    }

    fn has_classes(&self) -> bool {
        self.desired().had_classes
    }

    fn class_counts(&self) -> Result<Vec<ClassCounter>, Error> {
        let counted = self.counted()?;
        Ok(self.count_classes(&counted))
    }
}
