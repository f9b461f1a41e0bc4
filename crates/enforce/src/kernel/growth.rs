//! The next generation of tables: growth, and what only new programs can do.
//! When it is due, the caller decides.

use std::sync::atomic::Ordering;

use weir_core::Action;
use weir_kernel::{
    ClassImage, Generation, Geometry, Key, Options, Placed, fault, generation::rejects_supported,
};

use super::{Kernel, Shape, classes::ANSWER_WITHIN, random_seed};
use crate::{Entry, Error};

/// Buckets copied to a new generation while insertions wait: some 50 µs.
const COPY_CHUNK: usize = 1024;

impl Kernel {
    /// Sees to a generation that answers, before the first ban that asks for it.
    /// Where the kernel cannot answer the ban drops without a word.
    pub(super) fn prepare_answers(&self, entries: &[Entry]) -> Result<(), Error> {
        let rejects = |entry: &&Entry| entry.policy.action == Action::Reject;
        let Some(first) = entries.iter().find(rejects) else {
            return Ok(());
        };
        let mut shape = self.shape();
        let geometry = {
            let tables = self.tables();
            if tables.current.has_reject || !rejects_supported() {
                return Ok(());
            }
            // Known to `any_rejects`, by which this and later generations go.
            self.policies.number(&first.policy, &tables.current)?;
            tables.current.table.geometry()
        };
        self.next_generation(&mut shape, geometry)
    }

    /// Doubles what is full, unless somebody did since `seen`.
    pub(super) fn grow_from(&self, seen: Geometry) -> Result<(), Error> {
        let mut shape = self.shape();
        let (now, (short, long)) = {
            let tables = self.tables();
            (
                tables.current.table.geometry(),
                tables.current.table.filled(),
            )
        };
        if now != seen {
            return Ok(());
        }
        self.next_generation(
            &mut shape,
            Geometry::for_bans(
                (short + 1).max(now.comfort64()) * 2,
                (long + 1).max(now.comfort128()) * 2,
            ),
        )
    }

    /// Doubles what insertions found fuller than it is made for.
    pub(super) fn grow_if_crowded(&self, shape: &mut Shape) -> Result<(), Error> {
        if !self.crowded.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (geometry, (short, long)) = {
            let tables = self.tables();
            (
                tables.current.table.geometry(),
                tables.current.table.filled(),
            )
        };
        self.next_generation(
            shape,
            Geometry::for_bans(
                if short > geometry.comfort64() {
                    short * 2
                } else {
                    geometry.comfort64()
                },
                if long > geometry.comfort128() {
                    long * 2
                } else {
                    geometry.comfort128()
                },
            ),
        )
    }

    /// Makes room for a bulk insertion at once instead of by doubling.
    pub(super) fn reserve(&self, entries: &[Entry]) -> Result<(), Error> {
        let (mut short, mut long) = (0, 0);
        for entry in entries {
            match self.key(entry.subject) {
                Some(Key::Short(_)) => short += 1,
                Some(Key::Long(..)) => long += 1,
                None => {}
            }
        }
        let mut shape = self.shape();
        let (geometry, filled) = {
            let tables = self.tables();
            (
                tables.current.table.geometry(),
                tables.current.table.filled(),
            )
        };
        let max_bans = self.settings().max_bans;
        let short = (filled.0 + short).min(max_bans);
        let long = (filled.1 + long).min(max_bans);
        if short <= geometry.comfort64() && long <= geometry.comfort128() {
            return Ok(());
        }
        self.next_generation(
            &mut shape,
            Geometry::for_bans(
                short.max(geometry.comfort64()),
                long.max(geometry.comfort128()),
            ),
        )
    }

    /// New maps, seed and program, filled while every write goes to both;
    /// then each link is switched, and the old generation dropped.
    pub(super) fn next_generation(
        &self,
        shape: &mut Shape,
        geometry: Geometry,
    ) -> Result<(), Error> {
        let lines = self.tables().current.classes.lines();
        self.next_generation_with(shape, geometry, lines, None)
    }

    /// The same with another size of the class table, whose content is given
    /// then.
    pub(super) fn next_generation_with(
        &self,
        shape: &mut Shape,
        geometry: Geometry,
        class_lines: u32,
        image: Option<&ClassImage>,
    ) -> Result<(), Error> {
        let (number, observe) = (self.tables().current.number + 1, self.settings().observe);
        let options = Options {
            geometry,
            seed: random_seed()?,
            v4_length: self.ipv4_length.unwrap_or(0),
            class_lines,
            netfilter: self.netfilter.load(Ordering::Relaxed)
                || self
                    .interfaces()
                    .iter()
                    .any(|i| i.judged_by_netfilter().is_some()),
            reject: self.policies.any_rejects() && rejects_supported(),
            flow_jiffies: (self.clock.hz() * ANSWER_WITHIN.as_secs()) as u32,
            drop_innocent: false,
        };
        let dir = self.instance.generation(number);
        self.instance.remove_generation(number)?;
        let next = Generation::create(number, &options, Some(&self.tables().current))?;
        next.table.set_observe(observe);
        if let Some(image) = image {
            next.classes.write(image);
        }
        next.pin(&dir)?;
        fault::point("growth-before-fill");
        {
            let mut tables = self.tables_alone();
            tables.next = Some(next);
            tables.tell(&self.wide());
        }
        if let Err(e) = self.fill_and_switch(number) {
            // The old generation is whole and attached: go on with it.
            self.tables_alone().next = None;
            let tables = self.tables();
            let links = self.instance.links();
            for interface in self.interfaces().iter_mut() {
                interface.update(&tables.current, &links)?;
            }
            drop(tables);
            self.instance.remove_generation(number)?;
            return Err(e);
        }
        let old = {
            let mut tables = self.tables_alone();
            let next = tables.next.take().expect("it was put there above");
            std::mem::replace(&mut tables.current, next)
        };
        fault::point("growth-before-unpin");
        self.instance.remove_generation(old.number)?;
        *shape = Shape::default();
        self.eviction
            .lock()
            .expect("no holder of this lock panics")
            .forget();
        self.crowded.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn fill_and_switch(&self, number: u64) -> Result<(), Error> {
        let buckets = self.tables().current.table.buckets_in_all();
        for start in (0..buckets).step_by(COPY_CHUNK) {
            // Alone: between reading an entry here and writing it there,
            // nobody may lift or change it.
            let tables = self.tables_alone();
            let next = tables.next.as_ref().expect("the caller put it there");
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
            if full {
                return Err(Error::Full(self.settings().max_bans));
            }
            if start == 0 {
                fault::point("growth-mid-fill");
            }
        }
        let tables = self.tables();
        let next = tables.next.as_ref().expect("the caller put it there");
        fault::point("switch-before-links");
        let links = self.instance.links();
        for interface in self.interfaces().iter_mut() {
            interface.update(next, &links)?;
            fault::point("switch-between-links");
        }
        self.instance.set_current(number)?;
        fault::point("switch-after-current");
        Ok(())
    }
}
