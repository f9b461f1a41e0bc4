//! The tables of an instance, and the right to read them.

use std::{
    cell::Cell,
    ops::Deref,
    sync::{
        Mutex, MutexGuard, RwLock, RwLockReadGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use weir_bpf::{Generation, Placed, Slot, WideBans, fault};

use crate::Error;

/// The generation that packets meet, and the next one while it is made.
pub(super) struct Tables {
    pub(super) current: Generation,
    /// Being filled; every write goes to both.
    pub(super) next: Option<Generation>,
    /// A ban is in the current one and had no room in the next: that must not become
    /// the current one.
    next_refused: AtomicBool,
    /// Bans that both have in common.
    wide: Mutex<WideBans>,
}

impl Tables {
    /// # Errors
    /// The wide bans of an earlier daemon cannot be read.
    pub(super) fn of(current: Generation) -> Result<Self, Error> {
        Ok(Self {
            wide: Mutex::new(WideBans::of(&current.wide)?),
            current,
            next: None,
            next_refused: AtomicBool::new(false),
        })
    }

    /// Puts a ban that is in the current generation into the next one as well, if
    /// one is being filled.
    pub(super) fn insert_next(&self, slot: Slot) {
        if let Some(next) = &self.next
            && (fault::refuse("insert-next").is_err() || next.table.insert(slot) == Placed::NoRoom)
        {
            self.next_refused.store(true, Ordering::Relaxed);
        }
    }

    /// Does the next generation lack a ban that is in the current one?
    pub(super) fn has_next_refused(&self) -> bool {
        self.next_refused.load(Ordering::Relaxed)
    }

    pub(super) fn wide(&self) -> MutexGuard<'_, WideBans> {
        self.wide.lock().expect("no holder of this lock panics")
    }

    /// Changes them, and says to the packet path which families have some.
    pub(super) fn change_wide<T>(&self, change: impl FnOnce(&mut WideBans) -> T) -> T {
        let mut wide = self.wide();
        let outcome = change(&mut wide);
        for generation in std::iter::once(&self.current).chain(&self.next) {
            generation.table.set_wide(wide.families());
        }
        outcome
    }

    /// Adds a generation to be filled, which every write goes to from here on.
    pub(super) fn add(&mut self, next: Generation) {
        self.next = Some(next);
        self.next_refused = AtomicBool::new(false);
        self.change_wide(|_| ());
    }
}

thread_local! {
    static READING: Cell<bool> = const { Cell::new(false) };
}

/// The tables as those have them who read and insert, several at once. A thread
/// has them once, and waits for nobody meanwhile who may want them alone: both
/// would wait for ever. Where assertions are compiled in, that is one.
pub(super) struct Reading<'a>(RwLockReadGuard<'a, Tables>);

impl<'a> Reading<'a> {
    pub(super) fn of(tables: &'a RwLock<Tables>) -> Self {
        assert_none_here();
        let tables = tables.read().expect("no holder of this lock panics");
        set(true);
        Self(tables)
    }
}

impl Deref for Reading<'_> {
    type Target = Tables;

    fn deref(&self) -> &Tables {
        &self.0
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        set(false);
    }
}

fn set(reading: bool) {
    if cfg!(debug_assertions) {
        READING.set(reading);
    }
}

/// Has this thread no tables?
pub(super) fn assert_none_here() {
    debug_assert!(!READING.get(), "this thread reads the tables already");
}
