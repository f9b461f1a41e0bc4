//! The process of a watch, of a check, or of an action of Fail2ban's. The daemon starts a
//! supervisor (this program again, [`supervise`]) that leads a process group of its own,
//! and the supervisor starts the command: with no environment but `PATH`, `LANG` and what
//! it is for, nothing to read, as a user of its own, and of root's powers only that of
//! reading any file; an action's is root, as it is in Fail2ban. The supervisor's standard
//! input is a pipe that nobody writes to: when it ends, because the daemon closed it or
//! died in any way, the group is ended. A death signal would reach the first process only,
//! and setting one for another needs code between fork and exec.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio},
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use caps::{CapSet, Capability, CapsHashSet};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions},
};

use crate::{
    command::{self, user::watch_user},
    instance,
};

/// The hidden verb that runs [`supervise`].
pub const VERB: &str = "watch-child";

/// The switch of that verb for [`Rights::Daemon`].
pub const AS_DAEMON: &str = "--as-daemon";

/// The user and the capabilities of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rights {
    /// The command runs as an unprivileged user, and may read any file.
    ReadLogs,
    /// The command runs as root, as the daemon does.
    Daemon,
}

/// After SIGTERM a group has this long.
const GRACE: Duration = Duration::from_secs(2);

/// A supervisor and its group. Dropped, the group is dead.
pub(crate) struct Group {
    supervisor: Child,
    /// Once it is reaped its group's number may be somebody else's.
    reaped: Option<ExitStatus>,
}

impl Group {
    /// Starts `command` as a group of its own, with these variables beside `PATH` and
    /// `LANG`. It is judged now: what the configuration's check found safe or missing
    /// may be another file since.
    pub(crate) fn start(
        rights: Rights,
        environment: &[(&str, String)],
        command: &[String],
    ) -> io::Result<Self> {
        let refused = |why: String| io::Error::new(io::ErrorKind::PermissionDenied, why);
        if rights == Rights::ReadLogs {
            command::judge(command).map_err(|fault| refused(fault.to_string()))?;
        }
        if rights == Rights::ReadLogs && !instance::may_run_watches() {
            return Err(refused(
                "the daemon may not run it as another user than root: it needs CAP_SETUID, CAP_SETGID and CAP_KILL (the unit's CapabilityBoundingSet=)".to_owned(),
            ));
        }
        // By this link even when an upgrade has replaced the file.
        let supervisor = Command::new("/proc/self/exe")
            .arg0("weir")
            .arg(VERB)
            .args((rights == Rights::Daemon).then_some(AS_DAEMON))
            .arg("--")
            .args(command)
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .env("LANG", "C.UTF-8")
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let group = Self {
            supervisor,
            reaped: None,
        };
        for fd in group.pipes() {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        Ok(group)
    }

    /// Standard output and standard error, as far as they are open.
    fn pipes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let output = self.supervisor.stdout.as_ref().map(AsFd::as_fd);
        let complaints = self.supervisor.stderr.as_ref().map(AsFd::as_fd);
        [output, complaints].into_iter().flatten()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.supervisor.id()
    }

    /// The command's standard output, while it is open.
    pub(crate) fn output(&mut self) -> Option<&mut ChildStdout> {
        self.supervisor.stdout.as_mut()
    }

    /// The command's standard error, while it is open.
    pub(crate) fn complaints(&mut self) -> Option<&mut ChildStderr> {
        self.supervisor.stderr.as_mut()
    }

    /// Waits until it prints, complains or ends, or the time is over.
    pub(crate) fn wait(&self, time: Duration) {
        let mut fds: Vec<_> = self
            .pipes()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // Interrupted or not, the caller looks at everything.
        let _ = rustix::event::poll(&mut fds, Some(&timespec(time)));
    }

    /// Closes this end of the command's standard error.
    pub(crate) fn close_complaints(&mut self) {
        self.supervisor.stderr = None;
    }

    /// Whether the supervisor has ended. It stays unreaped, and so its group's number its
    /// own, until [`Group::end`].
    pub(crate) fn has_ended(&self) -> bool {
        has_ended(pid_of(&self.supervisor))
    }

    /// Ends the group at once, without asking.
    pub(crate) fn kill(&mut self) {
        if self.reaped.is_some() {
            return;
        }
        let _ = rustix::process::kill_process_group(pid_of(&self.supervisor), Signal::KILL);
        // It is dead, or waits for a device.
        self.reaped = self.supervisor.wait().ok();
    }

    /// Ends the group, asking first, and says how the command ended.
    pub(crate) fn end(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.reaped {
            return Ok(status);
        }
        self.supervisor.stdin = None;
        let pid = pid_of(&self.supervisor);
        // It ends within its own grace.
        let deadline = Instant::now() + GRACE + Duration::from_secs(1);
        while !has_ended(pid) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Those whom the command left behind, and a supervisor that hangs.
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        let status = self.supervisor.wait()?;
        self.reaped = Some(status);
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn has_ended(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match rustix::process::waitid(WaitId::Pid(pid), options) {
        Ok(status) => status.is_some(),
        // No such child: reaped.
        Err(error) => error != rustix::io::Errno::INTR,
    }
}

/// Runs `command` until it ends, or standard input does: the supervisor.
/// Returns the exit code to leave with.
pub fn supervise(command: &[OsString], is_as_daemon: bool) -> io::Result<u8> {
    // It reaches the whole group, and the supervisor is in it.
    signal_hook::flag::register(
        signal_hook::consts::SIGTERM,
        Arc::new(AtomicBool::new(false)),
    )?;
    if !is_as_daemon {
        keep_reading_only()?;
    }
    let Some((program, arguments)) = command.split_first() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no command"));
    };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", program.display())))?;
    let pid = pid_of(&child);
    let exited = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let stdin = io::stdin();
    loop {
        let mut fds = [
            PollFd::new(&exited, PollFlags::IN),
            // Nobody writes to it: it can only end.
            PollFd::new(&stdin, PollFlags::IN),
        ];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        if !fds[0].revents().is_empty() {
            // What it left behind is ended by the daemon, which can tell.
            return Ok(code(child.wait()?));
        }
        if !fds[1].revents().is_empty() {
            break;
        }
    }
    let group = rustix::process::getpid();
    let _ = rustix::process::kill_process_group(group, Signal::TERM);
    let mut fds = [PollFd::new(&exited, PollFlags::IN)];
    let _ = rustix::event::poll(&mut fds, Some(&timespec(GRACE)));
    // All of it, this process too: there may be nobody else left to do that.
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
    Ok(code(child.wait()?))
}

fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
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
