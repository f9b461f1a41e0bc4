//! What one process at a time holds: a lock on a file, a name. One that was killed
//! may leave it to a child for a moment, from the child's fork to its exec; so
//! nobody is refused before a living owner is known, or some seconds have passed.

use std::{
    fs, io,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock, fstat, major, minor},
    io::Errno,
};

/// The longest wait for the lock.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// The reason why the lock could not be taken.
#[derive(Debug)]
pub enum NotTaken<E> {
    /// Another process holds the lock; its process id, if anybody knows.
    Held(Option<u32>),
    /// Taking it failed otherwise.
    Failed(E),
}

/// The owner in a message: `pid 7`, or that it is not known.
pub fn owner(pid: Option<u32>) -> String {
    pid.map_or_else(|| "pid unknown".to_owned(), |pid| format!("pid {pid}"))
}

/// Takes it as soon as `attempt` returns something; `owner` says who has it
/// otherwise, if that is known.
///
/// # Errors
/// A living process has it, or somebody for too long; or one of the two failed.
pub fn take<T, E>(
    mut attempt: impl FnMut() -> Result<Option<T>, E>,
    mut owner: impl FnMut() -> Result<Option<u32>, E>,
) -> Result<T, NotTaken<E>> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(taken) = attempt().map_err(NotTaken::Failed)? {
            return Ok(taken);
        }
        let pid = owner().map_err(NotTaken::Failed)?;
        if pid.is_some_and(is_alive) || Instant::now() > until {
            // Who had it may have let go before that was looked up.
            let taken = attempt().map_err(NotTaken::Failed)?;
            return taken.ok_or(NotTaken::Held(pid));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Locks a file, or a directory, for as long as it is open; see [`take`].
///
/// # Errors
/// As those of [`take`].
pub fn take_file(
    file: impl AsFd,
    owner: impl Fn() -> Option<u32>,
) -> Result<(), NotTaken<io::Error>> {
    let attempt = || match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(())),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    };
    take(attempt, || Ok(owner()))
}

/// The process that locked this file, as the kernel has it. `None` also where the
/// file system has other numbers than its files, as an overlay has, and where
/// `/proc/locks` cannot be read.
pub fn owner_of_file(file: impl AsFd) -> Option<u32> {
    let about = fstat(file).ok()?;
    let (device, inode) = (about.st_dev, about.st_ino);
    let wanted = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    fs::read_to_string("/proc/locks")
        .ok()?
        .lines()
        .find_map(|line| {
            let mut words = line.split_ascii_whitespace().skip(1);
            let (kind, pid, locked) = (words.next()?, words.nth(2)?, words.next()?);
            (kind == "FLOCK" && locked == wanted)
                .then(|| pid.parse().ok())
                .flatten()
        })
}

/// Is there such a process, which has not begun to end? Children between fork and
/// exec hold the locks of one that has, and so does it while its memory is unmapped.
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(State::is_alive)
}

/// Was this process stopped by a signal, or by a debugger?
pub fn is_stopped(pid: u32) -> bool {
    state(pid).is_some_and(|state| matches!(state.letter, 'T' | 't'))
}

/// The flag of linux/sched.h for a process that is shutting down.
const PF_EXITING: u32 = 4;

/// The state and flags of a process, as proc_pid_stat(5) has them.
#[derive(Clone, Copy)]
struct State {
    letter: char,
    flags: u32,
}

impl State {
    fn is_alive(self) -> bool {
        !matches!(self.letter, 'Z' | 'X') && self.flags & PF_EXITING == 0
    }
}

fn state(pid: u32) -> Option<State> {
    read_state(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn read_state(stat: &str) -> Option<State> {
    // The program's name before it is in parentheses, and may hold some.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut words = rest.split_ascii_whitespace();
    Some(State {
        letter: words.next()?.chars().next()?,
        // After the parent, its group and session, the terminal and its group.
        flags: words.nth(5)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::{fs::File, process::Command};

    use super::*;

    fn us() -> u32 {
        std::process::id()
    }

    #[test]
    fn a_living_owner_is_named_at_once_and_a_dead_one_waited_for() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || File::open(file.path()).unwrap();
        let first = open();
        take_file(&first, || None).unwrap();
        let owner = owner_of_file(&first);
        if owner.is_none() {
            eprintln!(
                "skipped: owners of locks (probe: /proc/locks has a file by other numbers than fstat, as btrfs and overlay do)"
            );
            return;
        }
        assert_eq!(owner, Some(us()));
        let second = open();
        let refused = take_file(&second, || owner_of_file(&second)).unwrap_err();
        assert!(matches!(refused, NotTaken::Held(Some(pid)) if pid == us()));

        // A shell locks what a child of its own holds when it is gone.
        drop(first);
        let script = "exec 9<\"$1\"; flock 9; sleep 1 & exit";
        let shell = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(file.path())
            .status();
        assert!(shell.unwrap().success());
        let dead = owner_of_file(&second);
        assert!(!dead.is_some_and(is_alive), "{dead:?}");
        take_file(&second, || owner_of_file(&second)).unwrap();
        assert_eq!(owner_of_file(&second), Some(us()));
    }

    #[test]
    fn what_fails_otherwise_is_told() {
        let broken = || Err(io::Error::from(io::ErrorKind::OutOfMemory));
        let failed = take::<(), _>(broken, || Ok(None)).unwrap_err();
        assert!(matches!(failed, NotTaken::Failed(_)), "{failed:?}");
        let failed = take::<(), _>(|| Ok(None), || Err(1)).unwrap_err();
        assert!(matches!(failed, NotTaken::Failed(1)), "{failed:?}");
    }

    /// What Linux writes of one that was killed and unmaps its memory.
    #[test]
    fn a_process_that_is_ending_is_not_alive() {
        let stat = |letter, flags| format!("7 (a) b) {letter} 1 7 7 0 -1 {flags} 107 0 0 0");
        for (letter, flags, is_alive) in [
            ('S', 4_194_304, true),
            ('D', 4_194_560, true),
            ('T', 4_194_304, true),
            ('R', 4_194_308, false),
            ('D', 4_195_596, false),
            ('Z', 4_195_596, false),
            ('X', 4_194_304, false),
        ] {
            let state = read_state(&stat(letter, flags)).unwrap();
            assert_eq!(state.is_alive(), is_alive, "{letter} {flags}");
        }
    }

    #[test]
    fn processes_live_stop_and_die() {
        assert!(is_alive(us()) && !is_stopped(us()));
        assert!(!is_alive(u32::MAX) && !is_stopped(u32::MAX));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let signal = |signal| {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
            rustix::process::kill_process(pid, signal).unwrap();
        };
        let soon = |what: &str, is_so: &dyn Fn() -> bool| {
            let until = Instant::now() + Duration::from_secs(20);
            while !is_so() {
                assert!(Instant::now() < until, "{what}");
                std::thread::sleep(PAUSE);
            }
        };
        signal(rustix::process::Signal::STOP);
        soon("it does not stop", &|| is_stopped(pid));
        assert!(is_alive(pid));
        signal(rustix::process::Signal::KILL);
        soon("it does not die", &|| !is_alive(pid));
        child.wait().unwrap();
        assert!(!is_alive(pid));
    }
}
