//! The next generation of tables: growth, and what only new programs can do.
//! When it is due, the caller decides.
//!
//! The next generation becomes the current one only when every interface that has a
//! hook runs its programs. A link that does not take them (its driver refuses the
//! program, or no program loads for its hook) has the attempt given up: all
//! interfaces go on with the current tables, which are whole and still get bans while
//! they have room, and the error names the interface. The next attempt insists: it puts
//! such an interface on tc's hook, before the link that cannot be changed ends, so that
//! one interface does not keep the others from growing, and is itself without no ban. A
//! log line and the interface's note say so. Only where tc refuses as well do
//! the tables stay as they are, and each attempt tells what to do about it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use weir_bpf::{
    BanCounts, ClassImage, Generation, Geometry, Key, Options, Placed, abi::V4_NEVER,
    attachment::Hook, fault, table::NEVER,
};

use super::{
    Kernel, WorkCounts, classes::ANSWER_WITHIN, maintenance::Maintenance, random_seed, tables::Next,
};
use crate::{Entry, Error};

/// Room that tables have at least: 0.3 MiB.
pub(super) const LEAST: BanCounts = BanCounts {
    v4_hosts: 8192,
    networks: 1024,
    v6_hosts: 1024,
};
/// Tables that cannot grow are made anew, with other seeds, at most this often.
const RESEED_AFTER: Duration = Duration::from_secs(10);
/// So often larger tables are made that writers fill up before they are in use.
const ATTEMPTS: usize = 4;
/// Buckets copied to a new generation while insertions wait.
const COPY_CHUNK: usize = 64;

fn is_larger(wanted: Geometry, now: Geometry) -> bool {
    wanted.target_load().exceed(now.target_load())
}

/// Twice the room for bans of a kind that did not find any: one that is nearly empty is
/// not what found none.
fn twice(filled: usize, target_load: usize) -> usize {
    match filled * 2 < target_load {
        true => target_load,
        false => (filled + 1).max(target_load) * 2,
    }
}

impl Kernel {
    /// The least geometry for this many bans of each kind that shrinks nothing.
    /// `max_bans` bounds it, for so many there can be: not what finds no room
    /// in it.
    fn room_for(&self, now: Geometry, bans: BanCounts) -> Geometry {
        let max_bans = self.settings().max_bans;
        let bounded = bans.with(LEAST, |bans, least| bans.min(max_bans.max(least)));
        Geometry::for_bans(bounded.with(now.target_load(), usize::max))
    }

    /// Doubles what is full, unless the generation is no longer `seen`. Where `max_bans`
    /// bans have their room already, other seeds may help, but not often. Says whether
    /// it was this call that made them.
    pub(super) fn grow_from(&self, seen: u64) -> Result<bool, Error> {
        let mut maintenance = self.maintenance.lock();
        let (number, now, filled) = {
            let tables = self.tables();
            (
                tables.current.number,
                tables.current.table.geometry(),
                tables.current.table.filled(),
            )
        };
        if number != seen {
            return Ok(false);
        }
        let wanted = self.room_for(now, filled.with(now.target_load(), twice));
        if !is_larger(wanted, now)
            && let Some(made) = maintenance.made
            && made.elapsed() < RESEED_AFTER
        {
            return Err(Error::Full(self.settings().max_bans));
        }
        self.grow(&mut maintenance, wanted).map(|()| true)
    }

    /// Makes larger tables, unless the last attempt failed a moment ago.
    fn grow(&self, maintenance: &mut Maintenance<'_>, wanted: Geometry) -> Result<(), Error> {
        if let Some(error) = maintenance.growth.waiting(Instant::now()) {
            return Err(error);
        }
        WorkCounts::count(&self.work.growths);
        self.next_generation(maintenance, wanted)
            .map_err(|error| maintenance.growth.failed(&error, Instant::now()))
    }

    /// Doubles what insertions found fuller than it is made for; and makes tables
    /// anew whose IPv4 hosts end later than they can say.
    pub(super) fn grow_if_crowded(&self, maintenance: &mut Maintenance<'_>) -> Result<(), Error> {
        let (geometry, filled, is_past_its_form) = {
            let table = &self.tables().current.table;
            let now = self.clock.now();
            (
                table.geometry(),
                table.filled(),
                table.is_past_its_form(now),
            )
        };
        if !self.crowded.load(Ordering::Relaxed) {
            return match is_past_its_form {
                true => self.grow(maintenance, geometry),
                false => Ok(()),
            };
        }
        let twice = |filled: usize, target_load| if filled > target_load { filled * 2 } else { 0 };
        let wanted = self.room_for(geometry, filled.with(geometry.target_load(), twice));
        if !is_larger(wanted, geometry) {
            // Over its cap, which was lowered: it takes no more.
            self.crowded.store(false, Ordering::Relaxed);
            return Ok(());
        }
        self.grow(maintenance, wanted)
    }

    /// Makes room for a bulk insertion at once instead of by doubling. Where that
    /// fails, as many go in as there is room for.
    pub(super) fn reserve(&self, entries: &[Entry]) {
        let mut bans = BanCounts::default();
        // What ends later has no form in the table of IPv4 hosts, even in one made now.
        let latest = self.clock.now() + u64::from(V4_NEVER);
        let suspended = self.tables().current.suspended();
        for entry in entries {
            let Some(key) = self.key(entry.subject) else {
                continue;
            };
            let expiry = self.jiffies(entry.expiry, suspended);
            match key {
                Key::Short(_) if key.is_v4_host() && (expiry < latest || expiry == NEVER) => {
                    bans.v4_hosts += 1;
                }
                Key::Short(_) => bans.networks += 1,
                Key::Long(..) => bans.v6_hosts += 1,
            }
        }
        let mut maintenance = self.maintenance.lock();
        let (geometry, filled) = {
            let tables = self.tables();
            (
                tables.current.table.geometry(),
                tables.current.table.filled(),
            )
        };
        let wanted = self.room_for(geometry, filled.with(bans, std::ops::Add::add));
        if is_larger(wanted, geometry)
            && let Err(error) = self.grow(&mut maintenance, wanted)
        {
            tracing::debug!("{} bans at once: {error}", entries.len());
        }
    }

    /// New maps, seed and program, filled while every write goes to both; then each
    /// link is switched, and when all are, the old generation is dropped.
    pub(super) fn next_generation(
        &self,
        maintenance: &mut Maintenance<'_>,
        geometry: Geometry,
    ) -> Result<(), Error> {
        let lines = self.tables().current.classes.lines();
        self.next_generation_with(maintenance, geometry, lines, None)
    }

    /// The same with another size of the class table, whose content is given
    /// then. Tables that are full before they are the current ones are made again,
    /// larger.
    pub(super) fn next_generation_with(
        &self,
        maintenance: &mut Maintenance<'_>,
        mut geometry: Geometry,
        class_lines: u32,
        image: Option<&ClassImage>,
    ) -> Result<(), Error> {
        let mut attempt = 1;
        loop {
            match self.make_generation(maintenance, geometry, class_lines, image) {
                Err(Error::Full(_)) if attempt < ATTEMPTS => {}
                outcome => return outcome,
            }
            attempt += 1;
            // Of those that came meanwhile, and twice the room; with `max_bans` in it
            // already, another seed may help.
            let filled = self.tables().current.table.filled();
            geometry = self.room_for(geometry, filled.with(geometry.target_load(), twice));
        }
    }

    fn make_generation(
        &self,
        maintenance: &mut Maintenance<'_>,
        geometry: Geometry,
        class_lines: u32,
        image: Option<&ClassImage>,
    ) -> Result<(), Error> {
        if self.unlinked.load(Ordering::Relaxed) {
            // Packets may meet tables that were given up: they are written to until
            // none does.
            self.link_current(maintenance)?;
        }
        let number = self.tables().current.number + 1;
        let options = Options {
            geometry,
            seed: random_seed()?,
            v4_length: self.ipv4_length.unwrap_or(0),
            class_lines,
            started: self.clock.now(),
            flow_jiffies: (self.clock.hz() * ANSWER_WITHIN.as_secs()) as u32,
            balanced_flows: self.tables().current.balancer.flows(),
            drop_innocent: false,
        };
        let dir = self.instance.generation(number);
        self.instance.remove_generation(number)?;
        let created = self.create(number, &options, maintenance.insist);
        let next = created.inspect_err(|_| maintenance.insist = true)?;
        if let Some(image) = image {
            next.classes.write(image);
        }
        if let Err(error) = next.pin(&dir) {
            // Half of them would be nobody's.
            self.instance.remove_generation(number)?;
            return Err(error.into());
        }
        fault::point("growth-before-fill");
        let next = Arc::new(next);
        {
            let mut tables = self.tables_alone(maintenance);
            // As it is now: a reload may have changed it while this was loaded,
            // and changes both from here on.
            next.table.set_observe(self.settings().observe);
            tables.add(next.clone());
        }
        let filled_and_switched = self
            .fill(maintenance, &next)
            .and_then(|()| self.switch(maintenance, &next));
        let old = match filled_and_switched {
            Ok(old) => old,
            Err(e) => {
                maintenance.insist |= !matches!(e, Error::Full(_));
                // The old generation is whole and attached: go on with it. First its
                // links: until then, some interfaces may ask the next one's tables.
                if let Err(error) = self.link_current(maintenance) {
                    tracing::warn!("interfaces have the tables that were given up: {error}");
                }
                self.instance.remove_generation(number)?;
                return Err(e);
            }
        };
        fault::point("growth-before-unpin");
        self.instance.remove_generation(old.number)?;
        maintenance.begin_anew();
        self.next_expiry.forget();
        self.crowded.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Has every interface run the current generation's programs, and gives up the one
    /// that was to follow it. Where an interface does not, both are written to, and
    /// maintenance asks again.
    pub(super) fn link_current(&self, maintenance: &Maintenance<'_>) -> Result<(), Error> {
        let linked = fault::refuse("link-current")
            .map_err(|why| weir_bpf::Error::new("update a link", why).into())
            .and_then(|()| {
                let (mut points, current) = self.attach_points();
                points.update(&*current, maintenance.insist, || {})
            });
        self.unlinked.store(linked.is_err(), Ordering::Relaxed);
        if linked.is_ok() {
            let given_up = self.tables_alone(maintenance).next.take();
            // Memory is given back without the lock.
            drop(given_up);
        }
        linked
    }

    /// Makes it with the programs of the hooks in use, or of those that interfaces
    /// would be given.
    fn create(&self, number: u64, options: &Options, insist: bool) -> Result<Generation, Error> {
        let current = self.tables().current.clone();
        let next = Generation::create(number, options, Some(&current))?;
        for mut choices in self.hooks_expected(options.class_lines != 0) {
            if insist && choices.iter().all(|hook| !hook.is_egress()) {
                choices.extend([Hook::Tcx, Hook::ClsBpf]);
            }
            let mut loaded = choices.iter().map(|hook| next.program(*hook).map(drop));
            // The first that loads is enough, as where it is attached.
            let first = loaded.next().unwrap_or(Ok(()));
            if first.is_err() && !loaded.any(|one| one.is_ok()) {
                first?;
            }
        }
        Ok(next)
    }

    /// The hooks that a generation must have programs for, each with what may stand in
    /// its place, and with those on egress if they are wanted.
    fn hooks_expected(&self, egress: bool) -> Vec<Vec<Hook>> {
        let mut hooks = self.hooks.expected(&self.wanted());
        if egress {
            let egress_of = |hooks: &Vec<Hook>| hooks.iter().map(|hook| hook.egress()).collect();
            let on_egress: Vec<_> = hooks.iter().map(egress_of).collect();
            hooks.extend(on_egress);
        }
        hooks
    }

    /// Copies all bans to the next generation, some at a time.
    fn fill(&self, maintenance: &Maintenance<'_>, next: &Generation) -> Result<(), Error> {
        let buckets = self.tables().current.table.buckets_in_all();
        for start in (0..buckets).step_by(COPY_CHUNK) {
            // Alone: between reading an entry here and writing it there,
            // nobody may lift or change it.
            let tables = self.tables_alone(maintenance);
            let mut full = false;
            tables.current.table.for_each_in(
                start..(start + COPY_CHUNK).min(buckets),
                self.clock.now(),
                &mut |slot| {
                    let there = next
                        .table
                        .get(slot.key)
                        .iter()
                        .any(|s| s.policy == slot.policy);
                    full |= !there && next.table.insert(slot) == Placed::NoRoom;
                },
            );
            if full || tables.next.as_ref().is_some_and(Next::has_refused) {
                return Err(Error::Full(self.settings().max_bans));
            }
            drop(tables);
            self.tables.let_readers_in();
            if start == 0 {
                fault::point("growth-mid-fill");
            }
        }
        Ok(())
    }

    /// Makes the next generation, which has all bans, the current one; returns the one
    /// that it was. Links are switched one after another, each for as long as it takes:
    /// insertions go on, and write to both.
    fn switch(
        &self,
        maintenance: &Maintenance<'_>,
        next: &Arc<Generation>,
    ) -> Result<Arc<Generation>, Error> {
        let full = || Error::Full(self.settings().max_bans);
        if !self.tables_alone(maintenance).begin_to_meet_next() {
            return Err(full());
        }
        // Held until it is the current one: nobody attaches the old one's programs
        // meanwhile.
        let (mut points, _) = self.attach_points();
        fault::point("switch-before-links");
        let between = || fault::point("switch-between-links");
        points.update(&**next, maintenance.insist, between)?;
        // Alone, for a ban that comes now must be in both, or the switch be off.
        let mut tables = self.tables_alone(maintenance);
        if tables.next.as_ref().is_some_and(Next::has_refused) {
            return Err(full());
        }
        self.instance.set_current(next.number)?;
        fault::point("switch-after-current");
        tables.next = None;
        Ok(std::mem::replace(&mut tables.current, next.clone()))
    }
}
