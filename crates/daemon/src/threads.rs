//! Every thread of the daemon is made here. One that panics ends the process
//! at once: what it held is lost, locks wait for nobody, and what is banned is
//! pinned, so a new daemon is better than half an old one. One that stands
//! still is noticed by its [`Pulse`], told, and told to systemd, which starts
//! the daemon again. One that waits for the file system of a log is told as
//! well, but no restart would help it: the next daemon would wait there, too.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use sd_notify::NotifyState;
use weir_events::alerts::Alerts;
use weir_sources::fs_call;

/// Looks (one a second, when nobody has the processors) in which a thread may
/// stand still: the slowest disk and the largest rebuild take less.
const PATIENCE: u32 = 60;
/// What the alert of threads that stand still is about.
const ABOUT: &str = "threads";
/// What the alert of threads that wait for a file system is about.
const FILE_SYSTEM: &str = "file-system";

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

/// Lets this thread wait for `time`, or until `stopping` is set and the thread is
/// unparked. Any other unparking ends no wait: the end of a `thread::scope` leaves
/// one behind, and with it a tick of a second took a hundredth of one.
pub fn wait(time: Duration, stopping: &AtomicBool) {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || stopping.load(Relaxed) {
            return;
        }
        thread::park_timeout(left);
    }
}

/// A thread's proof that it lives: a count of its rounds. It is watched until
/// this is dropped, by the thread and by all who share it.
#[derive(Clone)]
pub struct Pulse(Arc<Heart>);

#[derive(Default)]
struct Heart {
    rounds: AtomicU64,
    /// Calls into file systems, begun or ended.
    calls: AtomicU64,
    /// Written under the lock of `call`.
    given_up: AtomicBool,
    call: Mutex<Call>,
}

/// The call into a file system that a thread is in.
#[derive(Default)]
struct Call {
    is_open: bool,
    /// The operation of the call, or of the last one when it is over.
    what: &'static str,
    path: PathBuf,
}

impl Heart {
    fn call(&self) -> MutexGuard<'_, Call> {
        self.call.lock().expect("no holder of this lock panics")
    }
}

impl Pulse {
    /// Counts another round of the thread.
    pub fn beat(&self) {
        self.0.rounds.fetch_add(1, Relaxed);
    }

    /// For the thread itself: its calls into the file systems of logs are known
    /// from now on.
    pub fn follow_calls(&self) {
        fs_call::observe(Calls(self.clone()));
    }

    /// Gives the thread up if it is in a call into a file system. From then on
    /// nobody waits for it, and what it reads when it comes back counts for
    /// nothing. `before` is called while it cannot come back: it finds what the
    /// thread has done, and nothing half done.
    pub fn give_up(&self, before: impl FnOnce()) -> bool {
        let call = self.0.call();
        if call.is_open && !self.is_given_up() {
            before();
            self.0.given_up.store(true, Relaxed);
        }
        self.is_given_up()
    }

    /// Whether the call was given up. That happens inside a call only: between two of them
    /// the thread may rely on the answer.
    pub fn is_given_up(&self) -> bool {
        self.0.given_up.load(Relaxed)
    }

    /// What the thread waits for, in words.
    pub fn waits_for(&self) -> Option<String> {
        let call = self.0.call();
        call.is_open.then(|| call.to_string())
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = crate::escape(&self.path.to_string_lossy());
        write!(f, "{} {path}", self.what)
    }
}

/// Tells a pulse of its thread's calls.
struct Calls(Pulse);

impl fs_call::Observer for Calls {
    fn begins(&self, what: &'static str, path: &Path) {
        let Self(pulse) = self;
        // Slow is not still.
        pulse.0.calls.fetch_add(1, Relaxed);
        let mut call = pulse.0.call();
        call.what = what;
        call.path.as_mut_os_string().clear();
        call.path.as_mut_os_string().push(path);
        call.is_open = true;
    }

    fn ended(&self) {
        let Self(pulse) = self;
        // Before it is in no call any more: it goes on.
        pulse.0.calls.fetch_add(1, Relaxed);
        pulse.0.call().is_open = false;
    }
}

struct Watched {
    name: String,
    heart: Weak<Heart>,
    rounds: Seen,
    /// Rounds and calls together, as last looked at.
    signs: Seen,
}

/// A count when it was looked at, and how often it has been the same.
#[derive(Default)]
struct Seen {
    count: u64,
    times: u32,
}

impl Seen {
    fn again(&mut self, count: u64) {
        *self = match self.count == count {
            true => Self {
                count,
                times: self.times + 1,
            },
            false => Self { count, times: 0 },
        };
    }
}

/// Threads that do not go on, by name.
#[derive(Debug, Default, PartialEq, Eq)]
struct Still {
    /// Threads that are stuck for no known reason.
    stuck: Vec<String>,
    /// A file system does not answer them, or so slowly that they come to nothing
    /// else.
    waiting: Vec<String>,
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
        let heart = Arc::new(Heart::default());
        self.watched().push(Watched {
            name: name.into(),
            heart: Arc::downgrade(&heart),
            rounds: Seen::default(),
            signs: Seen::default(),
        });
        Pulse(heart)
    }

    /// The threads that have begun no round in the last `patience` looks. Looks
    /// are counted, not seconds: a machine that stands still accuses nobody.
    fn look(&self, patience: u32) -> Still {
        let mut still = Still::default();
        self.watched().retain_mut(|watched| {
            let Some(pulse) = watched.heart.upgrade().map(Pulse) else {
                return false; // It has ended.
            };
            if pulse.is_given_up() {
                return false;
            }
            let rounds = pulse.0.rounds.load(Relaxed);
            let calls = pulse.0.calls.load(Relaxed);
            watched.rounds.again(rounds);
            watched.signs.again(rounds.wrapping_add(calls));
            let name = &watched.name;
            if watched.signs.times >= patience {
                match pulse.waits_for() {
                    Some(call) => still.waiting.push(format!("{name} waits for {call}")),
                    None => still.stuck.push(name.clone()),
                }
            } else if watched.rounds.times >= patience {
                // Not which: an alert's text that changes is told again.
                let one = format!("{name} waits for one answer after another");
                still.waiting.push(one);
            }
            true
        });
        still
    }

    /// Looks after all of them, and tells systemd's watchdog what is found; for
    /// once a second.
    pub fn tend(&self, alerts: &Alerts) {
        let watchdog = sd_notify::watchdog_enabled();
        let Still { stuck, waiting } = self.look(watchdog.map_or(PATIENCE, patience));
        match waiting.is_empty() {
            true => alerts.clear(FILE_SYSTEM),
            false => alerts.raise(
                FILE_SYSTEM,
                format!(
                    "the file system of a log does not answer in time: {}; what is read together with that log waits as well. Mend the file system, or take the path out of the configuration and reload",
                    waiting.join(", ")
                ),
            ),
        }
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
    fn what_a_scope_leaves_behind_ends_no_wait() {
        const TIME: Duration = Duration::from_millis(60);
        let stopping = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| ());
        });
        thread::current().unpark();
        let begin = Instant::now();
        wait(TIME, &stopping);
        assert!(begin.elapsed() >= TIME);
        stopping.store(true, Relaxed);
        wait(Duration::MAX / 4, &stopping);
    }

    fn names(still: Still) -> (String, String) {
        (still.stuck.join(", "), still.waiting.join(", "))
    }

    #[test]
    fn who_stands_still_is_named_and_who_goes_on_is_not() {
        let pulses = Pulses::default();
        let (stands, goes, ends) = (pulses.of("a"), pulses.of("b"), pulses.of("c"));
        drop(ends);
        for _ in 0..3 {
            assert_eq!(pulses.look(4), Still::default());
            goes.beat();
        }
        goes.beat();
        assert_eq!(names(pulses.look(4)), ("a".into(), String::new()));
        stands.beat();
        assert_eq!(pulses.look(4), Still::default());
    }

    #[test]
    fn who_waits_for_a_file_system_is_no_defect_and_may_be_given_up() {
        use fs_call::Observer;

        let pulses = Pulses::default();
        let pulse = pulses.of("reader");
        let calls = Calls(pulse.clone());
        let not_asked = || unreachable!("it is in no call");
        assert!(!pulse.give_up(not_asked));
        pulse.beat();
        calls.begins("read", Path::new("/mnt/a\u{1b}.log"));
        for _ in 0..2 {
            assert_eq!(pulses.look(2), Still::default());
        }
        let (stuck, waiting) = names(pulses.look(2));
        assert_eq!(stuck, "");
        assert!(
            waiting.starts_with("reader waits for read /mnt/a"),
            "{waiting}"
        );
        assert!(!waiting.contains('\u{1b}'), "{waiting:?}");
        calls.ended();
        pulse.beat();
        // It has come back, and stands still elsewhere some time later.
        for _ in 0..2 {
            assert_eq!(pulses.look(2), Still::default());
        }
        assert_eq!(names(pulses.look(2)), ("reader".into(), String::new()));
        // It goes on, and its next call is a sign of life.
        pulse.beat();
        calls.begins("read", Path::new("/mnt/a.log"));
        assert_eq!(pulses.look(2), Still::default());
        let mut asked = 0;
        for _ in 0..2 {
            assert!(pulse.give_up(|| {
                asked += 1;
                assert!(pulse.0.call.try_lock().is_err(), "it could go on");
            }));
        }
        assert_eq!(asked, 1);
        calls.ended();
        assert!(pulse.is_given_up());
        for _ in 0..3 {
            assert_eq!(pulses.look(2), Still::default(), "nobody waits for it");
        }
    }

    #[test]
    fn who_waits_for_one_answer_after_another_is_told() {
        use fs_call::Observer;

        let pulses = Pulses::default();
        let pulse = pulses.of("reader");
        let calls = Calls(pulse.clone());
        for look in 0..9 {
            calls.begins("stat", Path::new("/mnt/a.log"));
            let (stuck, waiting) = names(pulses.look(4));
            calls.ended();
            assert_eq!(stuck, "");
            // The same each time: an alert that changes is told again.
            let told = waiting == "reader waits for one answer after another";
            assert_eq!(told, look >= 3, "look {look}: {waiting}");
        }
        pulse.beat();
        assert_eq!(pulses.look(4), Still::default());
    }

    #[test]
    fn the_watchdog_is_told_in_time() {
        assert_eq!(patience(Duration::from_secs(180)), 60);
        assert_eq!(patience(Duration::from_secs(30)), 10);
        assert_eq!(patience(Duration::from_secs(1)), 2);
        assert_eq!(patience(Duration::MAX), PATIENCE);
    }
}
