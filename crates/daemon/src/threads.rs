//! Every thread of the daemon is made here. One that panics ends the process
//! at once: what it held is lost, locks wait for nobody, and what is banned is
//! pinned, so a new daemon is better than half an old one. One that stands
//! still is noticed by its [`Pulse`], told, and told to systemd, which starts
//! the daemon again.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use sd_notify::NotifyState;

use crate::alerts::Alerts;

/// Looks (one a second, when nobody has the processors) in which a thread may
/// stand still: the slowest disk and the largest rebuild take less.
const PATIENCE: u32 = 60;
/// What the alert of threads that stand still is about.
const ABOUT: &str = "threads";

/// Has a panic in any thread end the process, for systemd to start it again.
pub fn abort_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        tracing::error!("a defect of weir: it ends here, and what is banned stays banned");
        std::process::abort();
    }));
}

/// Starts a thread of this name.
///
/// # Errors
/// The system has none left.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name(name.into()).spawn(work)
}

/// A thread's proof that it lives: a count of its rounds. It is watched until
/// this is dropped.
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// Another round begins.
    pub fn beat(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

struct Watched {
    name: String,
    rounds: Weak<AtomicU64>,
    /// Its rounds when it was looked at, and how often that has been the same.
    seen: (u64, u32),
}

/// The threads that are watched.
#[derive(Default)]
pub struct Pulses(Mutex<Vec<Watched>>);

impl Pulses {
    fn watched(&self) -> MutexGuard<'_, Vec<Watched>> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Watches the thread of this name from now on.
    pub fn of(&self, name: impl Into<String>) -> Pulse {
        let rounds = Arc::new(AtomicU64::new(0));
        self.watched().push(Watched {
            name: name.into(),
            rounds: Arc::downgrade(&rounds),
            seen: (0, 0),
        });
        Pulse(rounds)
    }

    /// The threads that have begun no round in the last `patience` looks. Looks
    /// are counted, not seconds: a machine that stands still accuses nobody.
    fn look(&self, patience: u32) -> Vec<String> {
        let mut stuck = Vec::new();
        self.watched().retain_mut(|watched| {
            let Some(rounds) = watched.rounds.upgrade() else {
                return false; // It has ended.
            };
            let now = rounds.load(Relaxed);
            watched.seen = match watched.seen {
                (before, times) if before == now => (now, times + 1),
                _ => (now, 0),
            };
            if watched.seen.1 >= patience {
                stuck.push(watched.name.clone());
            }
            true
        });
        stuck
    }

    /// Looks after all of them, and tells systemd's watchdog what is found; for
    /// once a second.
    pub fn tend(&self, alerts: &Alerts) {
        let watchdog = sd_notify::watchdog_enabled();
        let stuck = self.look(watchdog.map_or(PATIENCE, patience));
        let state = match stuck.is_empty() {
            true => {
                alerts.clear(ABOUT);
                NotifyState::Watchdog
            }
            false => {
                let then = match watchdog {
                    Some(_) => "systemd starts the daemon again",
                    None => "restart the daemon",
                };
                alerts.raise(
                    ABOUT,
                    format!(
                        "a defect of weir: {} does not go on; what is banned stays banned, and {then}",
                        stuck.join(", ")
                    ),
                );
                NotifyState::WatchdogTrigger
            }
        };
        if watchdog.is_some()
            && let Err(error) = sd_notify::notify(&[state])
        {
            tracing::warn!("cannot tell systemd's watchdog: {error}");
        }
    }
}

/// A third of the watchdog's time: what is found is told before it bites.
fn patience(watchdog: Duration) -> u32 {
    u32::try_from(watchdog.as_secs() / 3).map_or(PATIENCE, |looks| looks.clamp(2, PATIENCE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stands_still_is_named_and_who_goes_on_is_not() {
        let pulses = Pulses::default();
        let (stands, goes, ends) = (pulses.of("a"), pulses.of("b"), pulses.of("c"));
        drop(ends);
        for _ in 0..3 {
            assert!(pulses.look(4).is_empty());
            goes.beat();
        }
        goes.beat();
        assert_eq!(pulses.look(4), ["a"]);
        stands.beat();
        assert!(pulses.look(4).is_empty());
    }

    #[test]
    fn the_watchdog_is_told_in_time() {
        assert_eq!(patience(Duration::from_secs(180)), 60);
        assert_eq!(patience(Duration::from_secs(30)), 10);
        assert_eq!(patience(Duration::from_secs(1)), 2);
        assert_eq!(patience(Duration::MAX), PATIENCE);
    }
}
