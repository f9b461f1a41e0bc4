//! What one thread has read and not handed on yet. It is shared with whoever
//! ends the threads: one that waits for a file system cannot hand it on itself.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard},
};

use weir_core::{Ban, policy::Ledger};
use weir_sources::{Position, Reached};

use crate::{positions::Positions, service::Service, threads::Pulse};

pub(super) struct InHand {
    pub pulse: Pulse,
    pub service: Arc<Service>,
    /// The name of its group in the database.
    pub key: String,
    /// The numbers of the jails whose counts it saves.
    pub saves: Vec<usize>,
    pub ledger: Arc<Ledger>,
    pub positions: Positions,
    /// Decided, and not in force yet.
    bans: Mutex<Vec<Ban>>,
    /// How far it has read, where it may have to wait for ever.
    reached: Mutex<Option<Reached>>,
    /// The same when it was given up.
    left: Mutex<Option<Vec<Position>>>,
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().expect("no holder of this lock panics")
}

impl InHand {
    pub fn new(
        service: &Arc<Service>,
        pulse: Pulse,
        key: String,
        saves: Vec<usize>,
        ledger: Arc<Ledger>,
        positions: Positions,
    ) -> Self {
        Self {
            pulse,
            service: service.clone(),
            key,
            saves,
            ledger,
            positions,
            bans: Mutex::default(),
            reached: Mutex::default(),
            left: Mutex::default(),
        }
    }

    /// It reads another source from now on.
    pub fn reads(&self, reached: Option<Reached>) {
        *lock(&self.reached) = reached;
    }

    pub fn decide(&self, ban: Ban) {
        lock(&self.bans).push(ban);
    }

    /// Puts what was decided into force.
    pub fn enforce(&self) {
        let bans = mem::take(&mut *lock(&self.bans));
        self.service.enforce(bans);
    }

    /// Remembers how far it has read and what it has counted on the way, if that
    /// is more than before: both or neither.
    pub fn save(&self, last: bool, position: impl FnOnce() -> Option<String>) {
        // The other threads of a ring, whose places are in its segments.
        if self.saves.is_empty() {
            return;
        }
        self.service.store.progress(&self.key, last, |again| {
            let further =
                position().filter(|position| self.positions.set(&self.key, position) || again);
            (further, self.ledger.take_changes(&self.saves, again))
        });
    }

    /// Gives the thread up if it waits for a file system. Where it stands then is
    /// kept: when it comes back it goes on, and nobody counts what it delivers.
    pub fn give_up(&self) -> bool {
        self.pulse.give_up(|| {
            let reached = lock(&self.reached).take();
            *lock(&self.left) = reached.map(|reached| reached.positions());
        })
    }

    /// The end of a thread that was given up: as it would have done it.
    pub fn finish(&self) {
        self.enforce();
        let left = lock(&self.left).take();
        self.save(true, || serde_json::to_string(&left?).ok());
    }
}
