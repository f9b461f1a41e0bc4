//! The tables of an instance, and the right to read them.

use std::{
    cell::Cell,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use weir_bpf::{Generation, Placed, PrefixBans, Slot, fault};

use crate::Error;

/// The generation that packets meet, and the next one while it is made.
pub(super) struct Tables {
    pub(super) current: Arc<Generation>,
    /// Being filled, or met by packets of some interfaces; every write goes to both.
    pub(super) next: Option<Next>,
    /// Bans that both have in common.
    prefix_bans: Mutex<PrefixBans>,
}

/// A generation that is to become the current one.
pub(super) struct Next {
    pub(super) generation: Arc<Generation>,
    /// A ban is in the current one and had no room in this: it must not become the
    /// current one.
    has_refused: AtomicBool,
    /// Whether the generation has all bans, so that interfaces may have its programs
    /// already.
    is_met: bool,
}

impl Next {
    /// Whether the generation lacks a ban of the current one.
    pub(super) fn has_refused(&self) -> bool {
        self.has_refused.load(Ordering::Relaxed)
    }
}

impl Tables {
    /// # Errors
    /// The prefix bans of an earlier daemon cannot be read.
    pub(super) fn of(current: Generation) -> Result<Self, Error> {
        Ok(Self {
            prefix_bans: Mutex::new(PrefixBans::of(&current.prefix_bans)?),
            current: Arc::new(current),
            next: None,
        })
    }

    /// The current one and, if there is one, the next.
    pub(super) fn generations(&self) -> impl Iterator<Item = &Generation> {
        let next = self.next.iter().map(|next| &*next.generation);
        std::iter::once(&*self.current).chain(next)
    }

    /// Puts a ban that is in the current generation into the next one as well, if
    /// there is one. False where packets may miss it, for they may meet the next one,
    /// and that has no room for it: until maintenance has decided between the two.
    pub(super) fn insert_next(&self, slot: Slot) -> bool {
        let Some(next) = &self.next else {
            return true;
        };
        let table = &next.generation.table;
        if fault::refuse("insert-next").is_ok() && table.insert(slot) != Placed::NoRoom {
            return true;
        }
        next.has_refused.store(true, Ordering::Relaxed);
        !next.is_met
    }

    pub(super) fn prefix_bans(&self) -> MutexGuard<'_, PrefixBans> {
        self.prefix_bans
            .lock()
            .expect("no holder of this lock panics")
    }

    /// Changes them, and says to the packet path which families have some.
    pub(super) fn change_prefix_bans<T>(&self, change: impl FnOnce(&mut PrefixBans) -> T) -> T {
        let mut prefix_bans = self.prefix_bans();
        let outcome = change(&mut prefix_bans);
        for generation in self.generations() {
            generation.table.set_prefix_bans(prefix_bans.families());
        }
        outcome
    }

    /// Adds a generation to be filled, which every write goes to from here on.
    pub(super) fn add(&mut self, next: Arc<Generation>) {
        self.next = Some(Next {
            generation: next,
            has_refused: AtomicBool::new(false),
            is_met: false,
        });
        self.change_prefix_bans(|_| ());
    }

    /// Has all that is written from here on in the next generation before it is
    /// acknowledged; false where that lacks something already.
    pub(super) fn begin_to_meet_next(&mut self) -> bool {
        let next = self.next.as_mut();
        next.is_some_and(|next| {
            next.is_met = !next.has_refused();
            next.is_met
        })
    }
}

thread_local! {
    static READING: Cell<bool> = const { Cell::new(false) };
}

/// The lock of the tables.
pub(super) struct TablesLock<T = Tables> {
    tables: RwLock<T>,
    /// Threads that wait to read them.
    waiting: AtomicUsize,
}

/// How long at most those are let go first who wait to read.
const COURTESY: Duration = Duration::from_millis(5);

impl<T> TablesLock<T> {
    pub(super) fn new(tables: T) -> Self {
        Self {
            tables: RwLock::new(tables),
            waiting: AtomicUsize::new(0),
        }
    }

    /// To read and insert, beside others who do.
    pub(super) fn read(&self) -> Reading<'_, T> {
        assert_none_here();
        let tables = match self.tables.try_read() {
            Ok(tables) => tables,
            Err(_) => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                let tables = self.tables.read();
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                tables.expect("no holder of this lock panics")
            }
        };
        set(true);
        Reading(tables)
    }

    /// Without anybody who inserts or looks.
    pub(super) fn alone(&self) -> RwLockWriteGuard<'_, T> {
        assert_none_here();
        self.tables.write().expect("no holder of this lock panics")
    }

    /// Lets those who wait to read go first: for whoever wants the tables alone many
    /// times in turn, who would else have them again before anybody is awake.
    pub(super) fn let_readers_in(&self) {
        self.let_readers_in_within(COURTESY);
    }

    fn let_readers_in_within(&self, courtesy: Duration) {
        let begun = Instant::now();
        while self.waiting.load(Ordering::Relaxed) > 0 && begun.elapsed() < courtesy {
            std::thread::yield_now();
        }
    }
}

/// The tables as those have them who read and insert, several at once. A thread
/// has them once, and waits for nobody meanwhile who may want them alone: both
/// would wait for ever. Where assertions are compiled in, that is one.
pub(super) struct Reading<'a, T = Tables>(RwLockReadGuard<'a, T>);

impl<T> Deref for Reading<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for Reading<'_, T> {
    fn drop(&mut self) {
        set(false);
    }
}

fn set(reading: bool) {
    if cfg!(debug_assertions) {
        READING.set(reading);
    }
}

/// Asserts that this thread does not read the tables.
pub(super) fn assert_none_here() {
    debug_assert!(!READING.get(), "this thread reads the tables already");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A growth takes the tables alone thousands of times in turn.
    #[test]
    fn readers_come_in_between_two_turns_of_who_has_them_alone() {
        let lock = TablesLock::new(0);
        for turn in 1..=200 {
            std::thread::scope(|scope| {
                let alone = lock.alone();
                let reader = scope.spawn(|| *lock.read());
                while lock.waiting.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                drop(alone);
                // However busy the machine is.
                lock.let_readers_in_within(Duration::from_secs(60));
                *lock.alone() = turn;
                assert_eq!(reader.join().expect("it reads"), turn - 1);
            });
        }
    }
}
