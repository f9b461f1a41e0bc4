//! How far each file was delivered, known to others as well: a thread that waits
//! for a file system cannot be asked.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use super::{Position, tail::Tail};

/// By the order in which the files are read.
type ByOrder = BTreeMap<u64, Position>;

/// The positions of a [`super::FileSource`] at any moment, up to the last line
/// that it has delivered.
#[derive(Clone, Debug, Default)]
pub struct Reached(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Files that are not there now.
    away: Vec<Position>,
    files: ByOrder,
}

impl Reached {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// How far each file was delivered.
    pub fn positions(&self) -> Vec<Position> {
        let state = self.lock();
        state
            .away
            .iter()
            .chain(state.files.values())
            .cloned()
            .collect()
    }

    /// These files are followed from now on.
    pub(super) fn replace<'a>(&self, away: &[Position], tails: impl Iterator<Item = &'a Tail>) {
        let files = tails.map(|tail| (tail.order, tail.position())).collect();
        let away = away.to_vec();
        *self.lock() = State { away, files };
    }

    /// Lines of one of them were delivered.
    pub(super) fn set(&self, tail: &Tail) {
        self.lock().files.insert(tail.order, tail.position());
    }
}
