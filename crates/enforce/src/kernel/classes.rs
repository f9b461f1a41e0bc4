//! Geofence and lists in the kernel: the class table is built aside and swapped
//! whole. A table that outgrows its place comes with the next generation; the
//! first one makes the generation that has a class stage at all.

use std::{
    sync::{Arc, MutexGuard, atomic::Ordering},
    time::Duration,
};

use weir_bpf::{ClassImage, class::By};
use weir_core::{
    Action, BanSource, PortSet,
    address_class::{Classes, Cover},
};

use super::{Kernel, random_seed};
use crate::{ClassCounter, ClassFilter, Error, Policy};

/// The answer to a flow without handshake is expected within this time of its
/// last packet: conntrack's limit for UDP streams.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(120);

impl Kernel {
    fn known_classes(&self) -> MutexGuard<'_, Option<Arc<Classes>>> {
        self.classes.lock().expect("no holder of this lock panics")
    }

    /// The number by which the kernel knows these ports; 0 for all.
    fn cover_policy(&self, cover: &Cover, producer: BanSource) -> Result<u16, Error> {
        if cover.scope.is_all() {
            return Ok(0);
        }
        let scope: PortSet = cover.scope.clone();
        let policy = Arc::new(Policy {
            producer,
            scope,
            action: Action::Drop,
        });
        self.policies.number(&policy, &self.tables().current)
    }

    fn cover_policies(&self, classes: &Classes) -> Result<Vec<u16>, Error> {
        let lists = classes
            .lists
            .iter()
            .map(|list| self.cover_policy(list, BanSource::List(list.name.clone())));
        let fences = classes
            .fences
            .iter()
            .map(|fence| self.cover_policy(fence, BanSource::Geofence));
        lists.chain(fences).collect()
    }
}

impl ClassFilter for Kernel {
    fn set_classes(&self, classes: &Arc<Classes>) -> Result<(), Error> {
        let mut maintenance = self.maintenance.lock();
        if self.unlinked.load(Ordering::Relaxed) {
            // Packets may meet tables that were given up, which are not told of this.
            self.link_current(&maintenance)?;
        }
        let policies = match self.cover_policies(classes) {
            Err(Error::Policies(_)) if self.free_policies(&mut maintenance) > 0 => {
                self.cover_policies(classes)
            }
            outcome => outcome,
        }?;
        let before = self.known_classes().clone();
        let names = |classes: &Classes| -> Vec<String> {
            classes.lists.iter().map(|l| l.name.clone()).collect()
        };
        if before.is_none_or(|before| names(&before) != names(classes)) {
            self.tables().current.classes.forget_list_counts()?;
        }
        let (room, geometry) = {
            let tables = self.tables();
            (
                tables.current.classes.lines(),
                tables.current.table.geometry(),
            )
        };
        if classes.is_empty() {
            if room > 0 {
                // Without class stage and egress program: what is not there
                // costs nothing.
                self.next_generation_with(&mut maintenance, geometry, 0, None)?;
            }
        } else {
            let image = ClassImage::build(classes, &policies, random_seed()?);
            if image.lines() <= room {
                self.tables().current.classes.write(&image);
            } else {
                // A quarter more, so that tomorrow's lists have room.
                let lines = image.lines() + image.lines() / 4 + 64;
                self.next_generation_with(&mut maintenance, geometry, lines, Some(&image))?;
            }
        }
        *self.known_classes() = Some(classes.clone());
        self.note_left(1);
        Ok(())
    }

    fn has_classes(&self) -> bool {
        self.tables().current.classes.lines() > 0
    }

    fn class_counts(&self) -> Result<Vec<ClassCounter>, Error> {
        let classes = self.known_classes().clone();
        let counts = self.tables().current.classes.counts()?;
        Ok(counts
            .into_iter()
            .filter_map(|count| {
                let (list, country) = match count.by {
                    By::List(bit) => (Some(classes.as_ref()?.lists.get(bit)?.name.clone()), None),
                    By::Country(country) => (None, country),
                };
                Some(ClassCounter {
                    list,
                    country,
                    packets: count.packets,
                    bytes: count.bytes,
                })
            })
            .collect())
    }
}
