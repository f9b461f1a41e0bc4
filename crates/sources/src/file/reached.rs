//! How far each file was delivered, known to others as well: a thread that waits
//! for a file system cannot be asked.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use super::Position;

/// By the order in which the files are read.
type ByOrder = BTreeMap<u64, Position>;

/// The positions of a [`super::FileSource`] at any moment, up to the last line
/// that it has delivered.
#[derive(Clone, Debug, Default)]
pub struct FilePositions(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Files that are not there now.
    away: Vec<Position>,
    files: ByOrder,
}

impl FilePositions {
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

    /// Is there a file to deliver lines of?
    pub fn has_files(&self) -> bool {
        !self.lock().files.is_empty()
    }

    /// These files are followed from now on, by the order in which they are read.
    pub(super) fn replace(&self, away: &[Position], files: impl Iterator<Item = (u64, Position)>) {
        let files = files.collect();
        let away = away.to_vec();
        *self.lock() = State { away, files };
    }

    /// Lines of one of them were delivered, up to this position.
    pub(super) fn set(&self, order: u64, position: Position) {
        self.lock().files.insert(order, position);
    }
}
