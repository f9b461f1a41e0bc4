//! What a backend can, by the tables.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use weir_bpf::{
    AnswerProgram, Key,
    attachment::Hook,
    prefix_bans::{MAX_PREFIX_BANS, MAX_SHARED_PREFIX_BANS},
    small_maps,
};
use weir_core::{BanSource, BanTarget, PortSet, Prefix, PrefixSet, Reason, decoy::Scanner};

use super::{Kernel, tables};
use crate::{
    Attachment, Backend, BackendChoice, BootNanos, ClassFilter, Counter, DecoyResponder, Entry,
    Error, Forwarder, InsertError, InsertSummary, Limit, PacketEvent, PacketEvents, Settings,
    Usage, Work,
    backend_kind::{WITHOUT_ANSWERS, WITHOUT_DECOYS, WITHOUT_REJECT},
    hooks::{self, HookPlan},
};

impl Kernel {
    /// The backend as far as its limits go.
    pub(super) fn effective(&self) -> BackendChoice {
        // It is asked of the attach points, which come before the tables.
        tables::assert_none_here();
        self.effective_where(self.hooks.any_on_netfilter())
    }

    /// The backend as far as its limits go, given whether any interface is on netfilter.
    pub(super) fn effective_where(&self, any_on_netfilter: bool) -> BackendChoice {
        match self.settings().backend {
            BackendChoice::Auto if any_on_netfilter => BackendChoice::Kernel(Hook::Netfilter),
            backend => backend,
        }
    }

    fn attach_as(&self, settings: &Settings) -> Result<(), Error> {
        let (mut points, current) = self.attach_points();
        let then = || {
            // Beside tables that are added: they are changed here, or read it.
            let tables = self.tables();
            for generation in tables.generations() {
                generation.table.set_observe(settings.observe);
            }
            let mut present = self.settings.write();
            let present = present.as_mut().expect("no holder of this lock panics");
            **present = Arc::new(settings.clone());
        };
        let wanted = HookPlan::by(settings);
        points.reconfigure(&settings.interfaces, &wanted, &*current, then)
    }
}

impl Backend for Kernel {
    fn name(&self) -> &'static str {
        self.hooks
            .first_hook()
            .or(self.settings().backend.hook())
            .map_or("auto", Hook::name)
    }

    fn limits(&self) -> &'static [Limit] {
        match self.effective().limits() {
            [] => match (
                self.lacks(AnswerProgram::Decoy) || self.lacks(AnswerProgram::Tarpit),
                self.lacks(AnswerProgram::Reject),
            ) {
                (true, true) => &WITHOUT_ANSWERS,
                (true, false) => &WITHOUT_DECOYS,
                (false, true) => &WITHOUT_REJECT,
                (false, false) => &[],
            },
            limits => limits,
        }
    }

    fn insert(&self, entries: &[Entry]) -> Result<InsertSummary, InsertError> {
        let mut done = InsertSummary::default();
        let outcome = self.insert_all(entries, &mut done);
        done.with(outcome)
    }

    fn remove(
        &self,
        subject: BanTarget,
        producer: Option<&BanSource>,
        scope: Option<&PortSet>,
    ) -> Result<Vec<Entry>, Error> {
        // Under this lock a number keeps its meaning.
        let maintenance = self.maintenance.lock();
        let numbers = self.policies.numbers(|p| {
            producer.is_none_or(|wanted| *wanted == p.producer)
                && scope.is_none_or(|wanted| *wanted == p.scope)
        });
        let now = self.clock.now();
        let which = |policy| numbers.contains(&policy);
        let Some(key) = self.key(subject) else {
            let lifted = self.lift_prefix_ban(subject.prefix(), which)?;
            return Ok(lifted
                .into_iter()
                .filter(|ban| ban.expiry > now)
                .filter_map(|ban| self.prefix_ban_entry(ban))
                .collect());
        };
        let lifted = self.lift(&maintenance, key, which);
        Ok(lifted
            .into_iter()
            .filter(|s| s.expiry > now)
            .filter_map(|s| self.entry(s))
            .collect())
    }

    fn entries(&self) -> Result<Vec<Entry>, Error> {
        let mut entries = Vec::new();
        let now = self.clock.now();
        let tables = self.tables();
        let table = &tables.current.table;
        table.for_each(now, |slot| entries.extend(self.entry(slot)));
        let prefix_bans = tables.prefix_bans();
        let live = prefix_bans.iter().filter(|ban| ban.expiry > now);
        entries.extend(live.filter_map(|ban| self.prefix_ban_entry(ban)));
        Ok(entries)
    }

    fn bans_by_producer(&self) -> Result<BTreeMap<BanSource, u64>, Error> {
        let mut numbers: HashMap<u16, u64> = HashMap::new();
        let now = self.clock.now();
        let tables = self.tables();
        let table = &tables.current.table;
        table.for_each(now, |slot| *numbers.entry(slot.policy).or_default() += 1);
        let prefix_bans = tables.prefix_bans();
        for ban in prefix_bans.iter().filter(|ban| ban.expiry > now) {
            *numbers.entry(ban.policy).or_default() += 1;
        }
        let mut bans = BTreeMap::new();
        for (number, count) in numbers {
            if let Some(policy) = self.policies.policy(number) {
                *bans.entry(policy.producer.clone()).or_default() += count;
            }
        }
        Ok(bans)
    }

    fn entries_for(&self, addr: IpAddr) -> Result<Vec<Entry>, Error> {
        let host = Prefix::host(addr);
        let wider = match host.addr() {
            IpAddr::V4(_) => self.ipv4_length,
            IpAddr::V6(_) => Some(64),
        };
        let prefixes = [
            Some(host),
            wider.and_then(|len| Prefix::new(host.addr(), len)),
        ];
        let now = self.clock.now();
        let tables = self.tables();
        let mut entries: Vec<_> = prefixes
            .into_iter()
            .flatten()
            .filter_map(Key::of)
            .flat_map(|key| tables.current.table.get(key))
            .filter(|slot| slot.expiry > now)
            .filter_map(|slot| self.entry(slot))
            .collect();
        let prefix_bans = tables.prefix_bans().covering(host);
        let live = prefix_bans.into_iter().filter(|ban| ban.expiry > now);
        entries.extend(live.filter_map(|ban| self.prefix_ban_entry(ban)));
        Ok(entries)
    }

    fn set_allow(&self, allow: &PrefixSet) -> Result<(), Error> {
        Ok(self.tables().current.allow.write(allow)?)
    }

    fn classes(&self) -> Option<&dyn ClassFilter> {
        Some(self)
    }

    fn balancer(&self) -> Option<&dyn Forwarder> {
        Some(self)
    }

    fn decoys(&self) -> Option<&dyn DecoyResponder> {
        Some(self)
    }

    fn packet_events(&self) -> Option<&dyn PacketEvents> {
        Some(self)
    }

    fn counters(&self) -> Result<Vec<Counter>, Error> {
        let counts = small_maps::read_counters(&self.tables().current.counters)?;
        Ok(Reason::ALL
            .into_iter()
            .zip(counts)
            .map(|(reason, (packets, bytes))| Counter {
                reason,
                packets,
                bytes,
            })
            .collect())
    }

    fn attach(&self) -> Result<(), Error> {
        let wanted = self.wanted();
        let (mut points, current) = self.attach_points();
        points.attach(&wanted, &*current)
    }

    fn reconfigure(&self, settings: &Settings) -> Result<(), Error> {
        for name in &settings.interfaces {
            hooks::check(name, settings.backend.hook())?;
        }
        self.attach_as(settings)
    }

    fn attachments(&self) -> Vec<Attachment> {
        self.hooks.attachments()
    }

    fn usage(&self) -> Usage {
        let tables = self.tables();
        let (prefix_bans, shared_prefix_bans) = {
            let prefix_bans = tables.prefix_bans();
            (prefix_bans.len(), self.shared_prefix_bans(&prefix_bans))
        };
        Usage {
            bans: tables.current.table.filled().sum(),
            max_bans: self.settings().max_bans,
            prefix_bans,
            max_prefix_bans: MAX_PREFIX_BANS,
            shared_prefix_bans,
            max_shared_prefix_bans: MAX_SHARED_PREFIX_BANS,
            notified: 0,
            evicted: self.evicted.load(Ordering::Relaxed),
            overflow: self.overflow.load(Ordering::Relaxed) as usize,
            generation: tables.current.number,
        }
    }

    fn memory(&self) -> Option<u64> {
        Some(self.tables().current.table.geometry().bytes())
    }

    fn table_work(&self) -> Option<Work> {
        Some(self.work())
    }

    fn maintain(&self) -> Result<(), Error> {
        self.look_after()
    }
}

impl PacketEvents for Kernel {
    fn poll_events(
        &self,
        timeout: Duration,
        each: &mut dyn FnMut(PacketEvent),
    ) -> Result<usize, Error> {
        let read = self
            .events
            .lock()
            .expect("no holder of this lock panics")
            .read(timeout)?;
        let events: Vec<_> = read
            .into_iter()
            .filter_map(|e| {
                Some(PacketEvent {
                    at: BootNanos(e.at),
                    reason: Reason::from_number(e.reason)?,
                    source: IpAddr::V6(e.source).to_canonical(),
                    ifindex: e.ifindex,
                    protocol: e.protocol,
                    port: e.port,
                    scanner: Scanner::from_number(e.scanner),
                })
            })
            .collect();
        let count = events.len();
        events.into_iter().for_each(each);
        Ok(count)
    }
}
