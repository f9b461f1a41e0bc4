//! The process of a watch, of a check, or of an action of Fail2ban's, as the daemon sees it.
//! The daemon starts a supervisor (this program again, `supervisor`) that leads a process
//! group of its own, and the supervisor starts the command: with no environment but `PATH`,
//! `LANG` and what it is for, nothing to read, as a user of its own, and of root's powers
//! only that of reading any file; an action's is root, as it is in Fail2ban. The supervisor's
//! standard input is a socket of the daemon's: when it ends, because the daemon closed it or
//! died in any way, the command is ended, with all that it has started. A byte of the
//! daemon's ends it without asking; a byte of the supervisor's says the command's exit code
//! while what it has left behind goes on.

use std::{
    ffi::OsStr,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, Signal, WaitId, WaitIdOptions},
};

use crate::{command, instance};

/// The hidden verb that runs the supervisor.
pub const VERB: &str = "watch-child";

/// The switch of that verb for [`Rights::Daemon`].
pub const AS_DAEMON: &str = "--as-daemon";

/// The option of that verb for how long what a command leaves behind may go on, in
/// milliseconds since the command was started.
pub const LEAVE_MS: &str = "--leave-ms";

/// The user and the capabilities of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rights {
    /// The command runs as an unprivileged user, and may read any file.
    ReadLogs,
    /// The command runs as root, as the daemon does.
    Daemon,
}

/// After SIGTERM a command and what it has started have this long.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// A supervisor that is to kill all at once has this long, before it is killed itself.
const SUPERVISOR_GRACE: Duration = Duration::from_secs(1);

/// A supervisor, its command, and all that the command has started. Dropped, they are dead.
pub(crate) struct Group {
    supervisor: Child,
    control: Option<UnixStream>,
    /// Once it is reaped its group's number may be somebody else's.
    reaped: Option<ExitStatus>,
}

impl Group {
    /// Starts `command` as a group of its own, with these variables beside `PATH` and
    /// `LANG`. It is judged now: what the configuration's check found safe or missing
    /// may be another file since. What the command leaves behind may go on for `leave`
    /// since the start, or not at all if that is zero.
    pub(crate) fn start(
        rights: Rights,
        environment: &[(impl AsRef<OsStr>, String)],
        command: &[String],
        leave: Duration,
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
        let (control, supervisors) = UnixStream::pair()?;
        control.set_nonblocking(true)?;
        // By this link even when an upgrade has replaced the file.
        let supervisor = Command::new("/proc/self/exe")
            .arg0("weir")
            .arg(VERB)
            .args((rights == Rights::Daemon).then_some(AS_DAEMON))
            .args([LEAVE_MS, &leave.as_millis().to_string()])
            .arg("--")
            .args(command)
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .env("LANG", "C.UTF-8")
            .envs(
                environment
                    .iter()
                    .map(|(name, value)| (name.as_ref(), value)),
            )
            .current_dir("/")
            .stdin(OwnedFd::from(supervisors))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let group = Self {
            supervisor,
            control: Some(control),
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
        let control = self.control.as_ref().map(AsFd::as_fd);
        let mut fds: Vec<_> = self
            .pipes()
            .chain(control)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // Interrupted or not, the caller looks at everything.
        let _ = rustix::event::poll(&mut fds, Some(&timespec(time)));
    }

    /// Closes this end of the command's standard error.
    pub(crate) fn close_complaints(&mut self) {
        self.supervisor.stderr = None;
    }

    /// Whether the supervisor has ended, after its command and all that is left of it. It
    /// stays unreaped, and so its group's number its own, until [`Group::end`].
    pub(crate) fn has_ended(&self) -> bool {
        has_ended(pid_of(&self.supervisor))
    }

    /// The command's exit code, if it has ended and what it has left behind goes on.
    pub(crate) fn code_while_others_go_on(&mut self) -> Option<u8> {
        let mut code = [0];
        match self.control.as_mut()?.read(&mut code) {
            Ok(1) => Some(code[0]),
            _ => None,
        }
    }

    /// Has the command and what it has left behind ended, without waiting for that.
    pub(crate) fn begin_end(&mut self) {
        self.control = None;
    }

    /// Ends the command and all that it has started at once, without asking.
    pub(crate) fn kill(&mut self) {
        if let Some(control) = &mut self.control {
            let _ = control.write_all(b"k");
        }
        // It is dead, or waits for a device.
        let _ = self.reap_within(SUPERVISOR_GRACE);
    }

    /// Ends the command and all that it has started, asking first, and says how the command
    /// ended.
    pub(crate) fn end(&mut self) -> io::Result<ExitStatus> {
        self.begin_end();
        // It ends within its own grace.
        self.reap_within(GRACE + Duration::from_secs(1))
    }

    /// Waits for the supervisor; one that hangs is killed, with its group.
    fn reap_within(&mut self, time: Duration) -> io::Result<ExitStatus> {
        if let Some(status) = self.reaped {
            return Ok(status);
        }
        let pid = pid_of(&self.supervisor);
        let deadline = Instant::now() + time;
        while !has_ended(pid) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
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

pub(super) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

pub(super) fn pid_of(child: &Child) -> Pid {
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
