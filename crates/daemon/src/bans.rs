//! How bans come into force, are told and remembered, and how their ends are:
//! those of jails, watches and decoy ports. The order of the steps: exempt? → in
//! force → told → remembered. Manual ones, and lifting any, are in
//! `service::manual_bans`.

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use weir_core::{Ban, BanSource, BanTarget, PortSet, detect::Finding};
use weir_enforce::{Backend, BootNanos, Entry, Error, Policy};
use weir_events::{Event, Events, Kind, alerts::Alerts};

use crate::{
    access::{exemptions::Exempt, geo::GeoService},
    ban_log::BanLog,
    expiry::{ExpiredBan, Expiries},
    fail2ban_actions::Fail2banActions,
    ignore_command::IgnoreChecks,
    jails::JailConfig,
    refused::{RefusedBan, RefusedBans},
    store::{Change, PORTION, Store, clock::Now},
};

/// Held while a ban comes into force and is remembered.
type Coming<'a> = RwLockReadGuard<'a, ()>;

/// What the backend is told of a ban.
pub(crate) fn entry(ban: &Ban, now: &Now) -> Entry {
    Entry {
        subject: ban.subject,
        policy: Arc::new(Policy {
            producer: ban.producer.clone(),
            scope: ban.scope.clone(),
            action: ban.action,
        }),
        expiry: now.expiry(ban.until),
    }
}

/// Puts bans into force, and follows them to their ends.
pub struct Bans {
    backend: Arc<dyn Backend>,
    store: Arc<Store>,
    exempt: Arc<Exempt>,
    events: Arc<Events>,
    alerts: Arc<Alerts>,
    geography: Arc<GeoService>,
    actions: Arc<Fail2banActions>,
    ignore_checks: Arc<IgnoreChecks>,
    log: BanLog,
    expiries: Expiries,
    telling: Mutex<()>,
    refused: RefusedBans,
    /// Read-locked while a ban comes into force and is remembered, also for the
    /// second time; write-locked while bans are lifted, so that nothing is left of
    /// one that was half there. Nobody waits for the disk meanwhile.
    in_force: RwLock<()>,
}

impl Bans {
    /// Nothing is known of the ends of bans that are in force already.
    pub fn new(
        backend: Arc<dyn Backend>,
        store: Arc<Store>,
        exempt: Arc<Exempt>,
        (events, alerts): (Arc<Events>, Arc<Alerts>),
        geography: Arc<GeoService>,
        (actions, ignore_checks): (Arc<Fail2banActions>, Arc<IgnoreChecks>),
        (log, refused): (BanLog, RefusedBans),
    ) -> Self {
        Self {
            backend,
            store,
            exempt,
            events,
            alerts,
            geography,
            actions,
            ignore_checks,
            log,
            expiries: Expiries::default(),
            telling: Mutex::default(),
            refused,
            in_force: RwLock::default(),
        }
    }

    /// The hot path: bans decided by jails. In force first, then remembered
    /// within a second; nothing here waits for the disk, or for a command that a jail
    /// asks first.
    pub fn enforce(&self, bans: Vec<Ban>) {
        if !bans.is_empty() {
            self.enforce_admitted(self.ignore_checks.admit(bans));
        }
    }

    /// The same for bans about which nobody is to be asked any more.
    pub(crate) fn enforce_admitted(&self, bans: Vec<Ban>) {
        if bans.is_empty() {
            return;
        }
        let now = Now::read();
        let bans = self.without_exempt(bans, &now);
        let coming = self.coming_into_force();
        self.put_in_force(&coming, bans, &now, false);
    }

    /// A failure was found of whom a jail may ban, with what its filter has captured of it
    /// and what of that the jail's commands ask for.
    pub(crate) fn captured(
        &self,
        jail: &JailConfig,
        finding: &Finding,
        values: &[(Arc<str>, String)],
        wanted: &[String],
    ) {
        self.actions.captured(jail, finding, values, wanted);
    }

    /// Bans that another program has made: its actions were told of them.
    pub(crate) fn take_over(&self, bans: Vec<Ban>) {
        let now = Now::read();
        let mut bans = self.without_exempt(bans, &now);
        self.ignore_checks.leave_out_named(&mut bans);
        let coming = self.coming_into_force();
        self.put_in_force(&coming, bans, &now, true);
    }

    /// Says of each ban that is not to be why it is not.
    fn without_exempt(&self, mut bans: Vec<Ban>, now: &Now) -> Vec<Ban> {
        let exempt = self.exempt.current();
        bans.retain(|ban| match exempt.covering(ban.subject) {
            None => true,
            Some(exemption) => {
                self.events.tell(
                    &Event::new(
                        Kind::Allow,
                        now.wall,
                        format!("not banned ({}): {}", ban.reason, exemption.reason),
                    )
                    .about(ban.subject.prefix())
                    .by(&ban.producer),
                );
                false
            }
        });
        bans
    }

    fn put_in_force(&self, coming: &Coming<'_>, bans: Vec<Ban>, now: &Now, is_restored: bool) {
        let entries: Vec<Entry> = bans.iter().map(|ban| entry(ban, now)).collect();
        let inserted = self.backend.insert(&entries);
        let mut decided: Vec<(Ban, Entry)> = bans.into_iter().zip(entries).collect();
        let mut refused = Vec::new();
        let evicted = match inserted {
            Ok(inserted) => inserted.evicted,
            Err(ended) => {
                tracing::debug!("bulk insert: {ended}");
                let mut evicted = ended.done.evicted;
                (decided, refused) = self.insert_one_by_one(decided, &mut evicted);
                evicted
            }
        };
        let in_force = decided.iter().map(|(_, entry)| entry);
        self.refused.follow(refused, in_force, &self.alerts);
        // A ban that had to go for one behind it in its own batch: it is told of,
        // and then its end.
        let (own, others) = self.evicted_by_themselves(evicted, &decided);
        self.evicted(&others);
        self.tell_and_remember(coming, decided, now, is_restored);
        self.evicted(&own);
    }

    /// Of those that were evicted, the ones that are bans of this batch, and not
    /// older ones that it has renewed since.
    fn evicted_by_themselves(
        &self,
        evicted: Vec<Entry>,
        decided: &[(Ban, Entry)],
    ) -> (Vec<Entry>, Vec<Entry>) {
        if evicted.is_empty() {
            return Default::default();
        }
        fn name(entry: &Entry) -> (BanTarget, &BanSource, &PortSet) {
            (entry.subject, &entry.policy.producer, &entry.policy.scope)
        }
        let batch: HashSet<_> = decided.iter().map(|(_, entry)| name(entry)).collect();
        let is_in_force = |ban: &Entry| {
            let held = self.backend.entries_for(ban.subject.prefix().addr());
            held.is_ok_and(|held| held.iter().any(|entry| name(entry) == name(ban)))
        };
        evicted
            .into_iter()
            .partition(|entry| batch.contains(&name(entry)) && !is_in_force(entry))
    }

    /// Bans that are in force from now on.
    fn tell_and_remember(
        &self,
        _coming: &Coming<'_>,
        bans: Vec<(Ban, Entry)>,
        now: &Now,
        is_restored: bool,
    ) {
        let order = self.telling();
        if !is_restored && self.log.is_kept() {
            // A ban that is only prolonged is no other one to jails that count bans.
            let begin =
                |(_, entry): &&(Ban, Entry)| !self.expiries.is_in_force(entry, now.boottime);
            self.log.note(bans.iter().filter(begin).map(|(ban, _)| ban));
        }
        let in_force = bans.iter().map(|(_, entry)| entry);
        self.tell_ended(&self.expiries.put(in_force, now.boottime));
        for (ban, _) in &bans {
            self.events.tell(&self.geography.placed(Event::ban(ban)));
            self.actions.banned(ban, is_restored);
        }
        drop(order);
        self.store
            .remember(bans.into_iter().map(|(ban, entry)| Change::Ban {
                ban,
                expiry: entry.expiry,
            }));
    }

    /// One bad entry must not keep the others out: those that are in force, and
    /// those that are not.
    fn insert_one_by_one(
        &self,
        decided: Vec<(Ban, Entry)>,
        evicted: &mut Vec<Entry>,
    ) -> (Vec<(Ban, Entry)>, Vec<RefusedBan>) {
        let (mut in_force, mut refused) = (Vec::new(), Vec::new());
        for (ban, entry) in decided {
            match self.backend.insert(std::slice::from_ref(&entry)) {
                Ok(inserted) => {
                    evicted.extend(inserted.evicted);
                    in_force.push((ban, entry));
                }
                Err(ended) => {
                    evicted.extend(ended.done.evicted);
                    let error = ended.error;
                    refused.push(RefusedBan { ban, entry, error });
                }
            }
        }
        (in_force, refused)
    }

    /// Puts a ban into force that a person wants; one that is refused is not tried
    /// again.
    pub fn put(&self, ban: Ban, entry: Entry, now: &Now) -> Result<(), Error> {
        let coming = self.coming_into_force();
        match self.backend.insert(std::slice::from_ref(&entry)) {
            Ok(inserted) => self.evicted(&inserted.evicted),
            Err(ended) => {
                self.evicted(&ended.done.evicted);
                return Err(ended.error);
            }
        }
        self.tell_and_remember(&coming, vec![(ban, entry)], now, false);
        Ok(())
    }

    /// Takes the bans of a subject out of force, and out of those that wait for
    /// it; returns how many.
    pub fn lift(
        &self,
        subject: BanTarget,
        producer: Option<&BanSource>,
        scope: Option<&PortSet>,
        why: &str,
    ) -> Result<usize, Error> {
        let _none_comes = self.lifting();
        let lifted = self.backend.remove(subject, producer, scope)?;
        self.expiries.remove(&lifted);
        for entry in &lifted {
            self.tell_end(entry.subject, &entry.policy, why);
        }
        self.store
            .remember(lifted.iter().map(|entry| Change::Unban {
                subject,
                policy: entry.policy.clone(),
            }));
        let waiting = self
            .refused
            .lift(Some(subject), producer, scope, &self.alerts);
        Ok(lifted.len() + waiting)
    }

    /// Begins to lift all bans, or all of a producer: none of those that wait comes
    /// into force any more. Those in force, which [`lift`](Self::lift) is to lift, and
    /// how many have waited.
    pub fn begin_lifting_all(
        &self,
        producer: Option<&BanSource>,
    ) -> Result<(Vec<Entry>, usize), Error> {
        let _none_comes = self.lifting();
        let entries = self.backend.entries()?;
        if producer.is_none() {
            // Of all that are in force the database has been told.
            self.store.remember([Change::UnbanAll]);
        }
        self.actions.flush(producer);
        let waiting = self.refused.lift(None, producer, None, &self.alerts);
        Ok((entries, waiting))
    }

    /// The file in which jails that count bans read of them; `None`: there is no such jail.
    pub fn set_log_file(&self, file: Option<PathBuf>) {
        self.log.set_file(file);
    }

    /// Writes what jails that count bans are to read; for once a second, and at the end.
    pub fn write_log(&self) {
        self.log.flush();
    }

    /// How many bans wait that the backend has refused.
    pub fn waiting(&self) -> usize {
        self.refused.waiting()
    }

    /// With these ends of bans that are in force already.
    pub fn know_ends(&self, ends: Expiries) {
        self.expiries.replace(ends);
    }

    /// Bans that have ended by this moment.
    #[cfg(test)]
    pub fn take_ended(&self, now: BootNanos) -> Vec<ExpiredBan> {
        self.expiries.take_ended(now)
    }

    /// Tries the bans again that the backend refused; for once a second.
    pub fn follow_refused(&self) {
        let now = Now::read();
        // Who lifts bans meanwhile finds each of them waiting, or in force.
        let coming = self.coming_into_force();
        let due = self.refused.take_due(now.boottime);
        if !due.is_empty() {
            let bans = due.into_iter().map(|refused| refused.ban).collect();
            let bans = self.without_exempt(bans, &now);
            self.put_in_force(&coming, bans, &now, false);
        }
        drop(coming);
        self.refused.settle(&self.alerts);
    }

    fn coming_into_force(&self) -> Coming<'_> {
        self.in_force.read().expect("no holder of this lock panics")
    }

    fn lifting(&self) -> RwLockWriteGuard<'_, ()> {
        self.in_force
            .write()
            .expect("no holder of this lock panics")
    }

    /// Writes the bans in force into a database that was made anew; waits for the
    /// disk as long as it answers. A ban that comes later is remembered anyway.
    pub fn remember_bans_again(&self) -> Result<(), Error> {
        let mut entries = self.backend.entries()?;
        entries.sort_unstable_by_key(|entry| entry.subject);
        let mut saved = true;
        for portion in entries.chunks(PORTION) {
            {
                // As they are by now, and before any change of them is remembered.
                let _none_comes_or_goes = self.lifting();
                let now = Now::read();
                let mut current = Vec::with_capacity(portion.len());
                for of_subject in portion.chunk_by(|a, b| a.subject == b.subject) {
                    let subject = of_subject[0].subject;
                    let held = self.backend.entries_for(subject.prefix().addr())?;
                    current.extend(held.into_iter().filter(|entry| entry.subject == subject));
                }
                self.store.remember(current.into_iter().map(|entry| {
                    let until = now.until(entry.expiry);
                    Change::Recovered { entry, until }
                }));
            }
            // If it is not, there is an alert.
            saved = saved && self.store.flush().is_ok();
        }
        Ok(())
    }

    /// A table is full, also one that was so before the daemon started, until a
    /// twentieth of it is free: not to the first place, which the next ban takes.
    pub(crate) fn follow_usage(&self) {
        let usage = self.backend.usage();
        let of_addresses = (
            usage.bans,
            usage.max_bans,
            "the ban table is at its cap of {}: the bans that end first make room; raise max_bans",
        );
        // All of them, also where manual ones have taken the others' places.
        let of_all = (
            usage.prefix_bans,
            usage.max_prefix_bans,
            "there are {} bans of prefixes other than single addresses and IPv6 /64, the most there may be, manual ones among them: a jail or list makes room by its own that expire first; one without any is refused, as are manual bans",
        );
        let of_shared = (
            usage.shared_prefix_bans,
            usage.max_shared_prefix_bans,
            "jails, watches and decoy ports have {} bans of prefixes other than single addresses and IPv6 /64: those that end first make room",
        );
        let of_notified = (
            usage.notified,
            usage.max_bans,
            "there are {} bans that only notify, as many as max_bans allows: those that end first make room",
        );
        for (about, caps) in [
            ("table-full:addresses", &[of_addresses][..]),
            ("table-full:prefixes", &[of_all, of_shared]),
            ("table-full:notified", &[of_notified]),
        ] {
            if let Some((_, most, message)) = caps.iter().find(|(used, most, _)| used >= most) {
                let message = message.replace("{}", &most.to_string());
                self.alerts.raise(about, message);
            } else if caps.iter().all(|(used, most, _)| used + most / 20 < *most) {
                self.alerts.clear(about);
            }
        }
    }

    /// Says and remembers who had to go at a table's cap.
    pub(crate) fn evicted(&self, evicted: &[Entry]) {
        if evicted.is_empty() {
            return;
        }
        self.follow_usage();
        self.expiries.remove(evicted);
        for entry in evicted {
            let why = "evicted: the table is at its cap";
            self.tell_end(entry.subject, &entry.policy, why);
        }
        self.store
            .remember(evicted.iter().map(|entry| Change::Unban {
                subject: entry.subject,
                policy: entry.policy.clone(),
            }));
    }

    /// Tells of bans that have ended by themselves since it was last called; for
    /// once a second.
    pub fn follow_expiries(&self) {
        let _order = self.telling();
        let now = BootNanos::now();
        let ended = self.expiries.take_ended(now);
        self.tell_ended(&ended);
        // Who starts next is not to tell of it again.
        self.store
            .remember(
                ended
                    .into_iter()
                    .map(|ExpiredBan { subject, policy }| Change::Ended {
                        subject,
                        policy,
                        by: now,
                    }),
            );
    }

    fn tell_ended(&self, ended: &[ExpiredBan]) {
        for ExpiredBan { subject, policy } in ended {
            self.tell_end(*subject, policy, "its time is over");
        }
    }

    /// Held while a ban, or its end, is noted and told: the end of one is not
    /// told behind the next one of the same name.
    fn telling(&self) -> MutexGuard<'_, ()> {
        self.telling.lock().expect("no holder of this lock panics")
    }

    /// Tells of a ban that is no longer in force.
    fn tell_end(&self, subject: BanTarget, policy: &Policy, why: &str) {
        let event = Event::unban(subject, &policy.producer, &policy.scope, why);
        self.events.tell(&self.geography.placed(event));
        self.actions.ended(subject, policy);
    }
}
