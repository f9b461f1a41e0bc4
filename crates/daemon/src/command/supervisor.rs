//! The supervisor of a command (this program again, started by `child`). It is the subreaper
//! of all that the command starts (PR_SET_CHILD_SUBREAPER): whatever loses its parent, in
//! whatever session or process group, becomes the supervisor's child, so that nothing gets
//! away by `setsid` or a double fork, and each number that is killed is that of a child of
//! its own which nobody has reaped. A control group would hold them as well, where the
//! daemon may make one: not in its unit, and not in most containers.

use std::{
    ffi::OsString,
    fs,
    io::{self, Read},
    os::{fd::AsFd, unix::net::UnixStream},
    process::{Command, Stdio},
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use caps::{CapSet, Capability, CapsHashSet};
use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
    process::{Pid, Signal, WaitOptions, WaitStatus},
};

use super::{
    child::{GRACE, pid_of, timespec},
    user::watch_user,
};
use crate::host::parent_of;

/// What is killed is dead within this time, or waits for a device.
const DIES_WITHIN: Duration = Duration::from_secs(5);
/// All of them are, however long the chain of their parents; on a busy machine each waits for a
/// processor to die. Who forks for longer than that is left.
const ALL_DIE_WITHIN: Duration = Duration::from_secs(60);
/// Between two rounds of killing: those of the first have left their children by then.
const KILL_ROUND: Duration = Duration::from_millis(10);

/// Why a wait is over.
enum Woken {
    /// The condition that was waited for holds.
    Ended,
    /// The daemon wants an end, or is gone.
    Asked { at_once: bool },
    /// The time is over.
    Late,
}

/// The command and what it has started.
struct Descendants {
    command: Pid,
    /// How the command has ended.
    code: Option<u8>,
    /// Whether none of them is left.
    is_alone: bool,
    /// How many have ended.
    reaped: u64,
    /// Readable when a child has ended.
    deaths: UnixStream,
}

/// Runs `command` until it ends, or standard input does. What it leaves behind may go on
/// for `leave` since the start. Returns the exit code to leave with: the command's or, if
/// the daemon has that already, 0 if what was left behind has ended by itself, and 1 if not.
pub fn supervise(command: &[OsString], is_as_daemon: bool, leave: Duration) -> io::Result<u8> {
    // It reaches the whole group, and the supervisor is in it.
    signal_hook::flag::register(
        signal_hook::consts::SIGTERM,
        Arc::new(AtomicBool::new(false)),
    )?;
    let (deaths, died) = UnixStream::pair()?;
    deaths.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGCHLD, died)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    if !is_as_daemon {
        keep_reading_only()?;
    }
    let Some((program, arguments)) = command.split_first() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no command"));
    };
    let until = Instant::now() + leave;
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", program.display())))?;
    let mut descendants = Descendants {
        command: pid_of(&child),
        code: None,
        is_alone: false,
        reaped: 0,
        deaths,
    };
    if let Woken::Asked { at_once } = descendants.wait(None, true, |all| all.code.is_some())? {
        if !at_once {
            descendants.ask();
            let grace = Some(Instant::now() + GRACE);
            descendants.wait(grace, false, |all| all.code.is_some())?;
        }
        descendants.kill()?;
        return Ok(descendants.code.unwrap_or(u8::MAX));
    }
    let code = descendants.code.unwrap_or(u8::MAX);
    if descendants.is_alone || leave.is_zero() {
        descendants.kill()?;
        return Ok(code);
    }
    // (Who has called this by hand has no socket there.)
    let _ = rustix::io::write(io::stdin(), &[code]);
    let woken = descendants.wait(Some(until), true, |all| all.is_alone)?;
    if matches!(woken, Woken::Ended) {
        return Ok(0);
    }
    if !matches!(woken, Woken::Asked { at_once: true }) {
        descendants.ask();
        // (A daemon that is gone would be heard again and again.)
        let hears_daemon = matches!(woken, Woken::Late);
        let grace = Some(Instant::now() + GRACE);
        descendants.wait(grace, hears_daemon, |all| all.is_alone)?;
    }
    descendants.kill()?;
    Ok(1)
}

impl Descendants {
    /// Takes in which children have ended.
    fn reap(&mut self) -> io::Result<()> {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    self.reaped += 1;
                    if pid == self.command {
                        self.code = Some(code(status));
                    }
                }
                Err(Errno::INTR) => {}
                Ok(None) => return Ok(()),
                Err(Errno::CHILD) => {
                    self.is_alone = true;
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn wait(
        &mut self,
        ends: Option<Instant>,
        hears_daemon: bool,
        is_over: impl Fn(&Self) -> bool,
    ) -> io::Result<Woken> {
        let mut stdin = io::stdin();
        loop {
            self.reap()?;
            if is_over(self) {
                return Ok(Woken::Ended);
            }
            let left = ends.map(|ends| ends.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(Woken::Late);
            }
            let mut fds = vec![PollFd::new(&self.deaths, PollFlags::IN)];
            if hears_daemon {
                fds.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
            }
            match rustix::event::poll(&mut fds, left.map(timespec).as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let is_asked = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
            let _ = self.deaths.read(&mut [0; 64]);
            if is_asked {
                let at_once = matches!(stdin.read(&mut [0]), Ok(1));
                return Ok(Woken::Asked { at_once });
            }
        }
    }

    /// Asks all to end: the group, and what has left it and lost its parent.
    fn ask(&self) {
        let _ = rustix::process::kill_process_group(rustix::process::getpid(), Signal::TERM);
        for child in children() {
            let _ = rustix::process::kill_process(child, Signal::TERM);
        }
    }

    /// Kills all, until none is left: the children of who dies become children of this
    /// process.
    fn kill(&mut self) -> io::Result<()> {
        let ends = Instant::now() + ALL_DIE_WITHIN;
        let (mut reaped, mut stuck) = (self.reaped, Instant::now() + DIES_WITHIN);
        loop {
            self.reap()?;
            if self.is_alone {
                return Ok(());
            }
            for child in children() {
                let _ = rustix::process::kill_process(child, Signal::KILL);
            }
            // The children of who has died are this process's now.
            let round = Some(Instant::now() + KILL_ROUND);
            let before = self.reaped;
            self.wait(round, false, |all| all.is_alone || all.reaped > before)?;
            let now = Instant::now();
            if self.reaped > reaped {
                (reaped, stuck) = (self.reaped, now + DIES_WITHIN);
            }
            if !self.is_alone && now >= stuck.min(ends) {
                eprintln!("processes that the command has started cannot be ended");
                return Ok(());
            }
        }
    }
}

/// The children of this process, with those that have ended and are not reaped.
fn children() -> Vec<Pid> {
    let numbers = |text: String| -> Vec<i32> {
        let words = text.split_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    };
    let listed = fs::read_dir("/proc/self/task").and_then(|tasks| {
        tasks.flatten().try_fold(Vec::new(), |mut all, task| {
            all.extend(numbers(fs::read_to_string(task.path().join("children"))?));
            Ok(all)
        })
    });
    // A kernel without CONFIG_PROC_CHILDREN.
    let found = listed.unwrap_or_else(|_| {
        let own = std::process::id();
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| parent_of(*pid) == Some(own))
            .filter_map(|pid| i32::try_from(pid).ok())
            .collect()
    });
    found.into_iter().filter_map(Pid::from_raw).collect()
}

fn code(status: WaitStatus) -> u8 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        (None, None) => u8::MAX,
    }
}

/// A watch reads logs, which is all that it needs root for: the rest goes, root's
/// user too, in this process and so in whatever it starts. `no_new_privs` keeps
/// exec from giving anything back.
fn keep_reading_only() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    let user = watch_user()?;
    // A command may open its own output anew (`>/dev/stderr`): the pipes are root's.
    let open_to_others = rustix::fs::Mode::from_raw_mode(0o622);
    let _ = rustix::fs::fchmod(io::stdout(), open_to_others);
    let _ = rustix::fs::fchmod(io::stderr(), open_to_others);
    let permitted = caps::read(None, CapSet::Permitted).map_err(io::Error::other)?;
    let reading = CapsHashSet::from([Capability::CAP_DAC_READ_SEARCH]);
    let keep: CapsHashSet = permitted.intersection(&reading).copied().collect();
    if let Some(user) = user {
        rustix::thread::set_keep_capabilities(true)?;
        user.become_it()?;
        rustix::thread::set_keep_capabilities(false)?;
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    }
    let sets = [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable];
    // By the ambient set the command has it as well.
    for set in sets.into_iter().chain([CapSet::Ambient]) {
        caps::set(None, set, &keep).map_err(|error| {
            io::Error::other(format!("cannot give up capabilities ({set:?}): {error}"))
        })?;
    }
    Ok(())
}
