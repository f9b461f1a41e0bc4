//! One network namespace and what runs in it. A thread that enters a namespace
//! keeps its mounts, so bpffs and cgroups stay visible (`ip netns exec` hides
//! them), and what it starts inherits the namespace: no `pre_exec`, no unsafe.
//! Who creates and removes namespaces: `net`.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Write,
    net::IpAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{self, Command, ExitStatus, Output, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sched::{CloneFlags, setns},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    error::{Context, Error, ErrorKind, Result},
    fake_host::FakeHost,
};

/// So long a device or an address takes at most until it does what it is for.
pub(crate) const READY_IN: Duration = Duration::from_secs(30);

/// A handle on a network namespace; its `Net` removes it.
#[derive(Debug, Clone)]
pub struct Namespace {
    name: Arc<str>,
}

impl Namespace {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into() }
    }

    /// The namespace's name, as `ip netns list` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file to `setns` to, or for `nsenter --net=`.
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&*self.name)
    }

    /// Runs `f` on a thread of its own inside the namespace and hands back its
    /// answer; sockets made there stay there. A panic goes on in the caller.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        let file = File::open(self.path()).context(|| format!("open namespace {}", self.name))?;
        on_thread(|| {
            setns(&file, CloneFlags::CLONE_NEWNET)
                .context(|| format!("enter namespace {}", self.name))?;
            Ok(f())
        })
    }

    /// Runs a program to its end; a failure exit is an error with what it said.
    pub fn run<S: AsRef<OsStr>>(&self, program: &str, args: &[S]) -> Result<Output> {
        let out = self.output(program, args)?;
        if out.status.success() {
            return Ok(out);
        }
        Err(Error::command(self.describe(program, args), &out))
    }

    /// Runs a program to its end, whatever its exit.
    pub fn output<S: AsRef<OsStr>>(&self, program: &str, args: &[S]) -> Result<Output> {
        let mut command = Command::new(find(program));
        command.args(args).stdin(Stdio::null());
        let what = self.describe(program, args);
        self.enter(move || command.output())?.context(|| what)
    }

    /// Starts a program; it is killed when the guard goes. Its parent thread
    /// ends at once: a parent-death signal would reach it too early.
    pub fn spawn(&self, command: Command) -> Result<Child> {
        self.spawn_on(command, &FakeHost::default())
    }

    /// Starts a program that sees another machine than this.
    pub fn spawn_on(&self, mut command: Command, host: &FakeHost) -> Result<Child> {
        let what = format!("start {:?} in {}", command.get_program(), self.name);
        let name = command.get_program().to_string_lossy().into_owned();
        let net = File::open(self.path()).context(|| format!("open namespace {}", self.name))?;
        let inner = on_thread(|| {
            host.lay()?;
            setns(&net, CloneFlags::CLONE_NEWNET)
                .context(|| format!("enter namespace {}", self.name))?;
            command.spawn().context(|| what)
        })?;
        Ok(Child { name, inner })
    }

    /// Runs `ip -batch` with these lines, stopping at the first that fails.
    pub fn ip(&self, lines: &[String]) -> Result<()> {
        let what = format!("run `ip` with {lines:?} in {}", self.name);
        let out = self.enter(|| ip_batch(lines))?.context(|| what.clone())?;
        if out.status.success() {
            return Ok(());
        }
        Err(Error::command(what, &out))
    }

    /// Gives the loopback device these addresses, and waits until what is sent to them comes
    /// here.
    pub fn add_to_loopback(&self, addresses: &[IpAddr]) -> Result<()> {
        let add = |addr: &IpAddr| match addr {
            IpAddr::V4(addr) => format!("addr add {addr}/32 dev lo"),
            IpAddr::V6(addr) => format!("addr add {addr}/128 dev lo nodad"),
        };
        self.ip(&addresses.iter().map(add).collect::<Vec<_>>())?;
        let what = format!("local routes in {}", self.name);
        wait_for(&what, READY_IN, || {
            let all = self.has_local_routes("lo", addresses.iter().copied())?;
            Ok(all.then_some(()))
        })
    }

    /// Has each IPv6 address of the device its local route? The kernel adds that later than the
    /// address. Until then the address is deaf although it is not tentative, and what this host
    /// sends there may be gone without an error, by the route of its prefix.
    pub(crate) fn has_local_routes(
        &self,
        dev: &str,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Result<bool> {
        let words = ["-6", "route", "show", "table", "local", "dev", dev];
        let out = self.run("ip", &words)?;
        let local = String::from_utf8_lossy(&out.stdout);
        let mut six = addresses.into_iter().filter(IpAddr::is_ipv6);
        Ok(six.all(|addr| local.contains(&format!("local {addr} "))))
    }

    /// The kernel's number of a device here.
    pub fn ifindex(&self, dev: &str) -> Result<u32> {
        self.enter(|| nix::net::if_::if_nametoindex(dev))?
            .context(|| format!("find device {dev} in {}", self.name))
    }

    /// Sets a network sysctl, `ipv4.ip_forward` for /proc/sys/net/ipv4/ip_forward.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let file = Path::new("/proc/sys/net").join(key.replace('.', "/"));
        self.enter(|| fs::write(&file, value))?
            .context(|| format!("set {} to {value} in {}", file.display(), self.name))
    }

    /// Lets it pass packets between its devices.
    pub fn forward(&self) -> Result<()> {
        self.sysctl("ipv4.ip_forward", "1")?;
        self.sysctl("ipv6.conf.all.forwarding", "1")
    }

    /// Processes whose main thread is in this namespace, ours excepted.
    pub fn pids(&self) -> Vec<u32> {
        pids_in(&self.path(), "net")
    }

    fn describe<S: AsRef<OsStr>>(&self, program: &str, args: &[S]) -> String {
        let args: Vec<_> = args.iter().map(|a| a.as_ref().to_string_lossy()).collect();
        format!("run `{program} {}` in {}", args.join(" "), self.name)
    }
}

/// A started program, killed and waited for when this goes.
#[derive(Debug)]
pub struct Child {
    name: String,
    inner: process::Child,
}

impl Child {
    /// A program that was started by other means, by the name in messages.
    pub fn new(name: &str, inner: process::Child) -> Self {
        Self {
            name: name.into(),
            inner,
        }
    }

    /// The process id of the child.
    pub fn pid(&self) -> u32 {
        self.inner.id()
    }

    /// The standard library's child, for its pipes.
    pub fn inner(&mut self) -> &mut process::Child {
        &mut self.inner
    }

    /// Sends a signal by number (9 is KILL, 15 TERM, 1 HUP).
    pub fn signal(&self, number: i32) -> Result<()> {
        Signal::try_from(number)
            .and_then(|signal| kill(raw_pid(self.pid()), signal))
            .context(|| format!("send signal {number} to {}", self.name))
    }

    /// The child's exit, or `None` when it still runs after `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + timeout;
        loop {
            let done = self
                .inner
                .try_wait()
                .context(|| format!("wait for {}", self.name))?;
            if done.is_some() || Instant::now() >= deadline {
                return Ok(done);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.inner.kill();
        let _ = self.inner.wait();
    }
}

/// Asks `look` every few milliseconds until it has an answer; `what` reads
/// after "cannot wait for".
pub fn wait_for<T>(
    what: &str,
    timeout: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            let why = format!("not within {timeout:?}");
            return Err(Error::new(
                ErrorKind::TimedOut,
                format!("wait for {what}"),
                why,
            ));
        }
        thread::sleep(Duration::from_millis(3));
    }
}

/// A thread whose namespaces may be changed without touching the caller's.
pub fn on_thread<T: Send>(f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| match scope.spawn(f).join() {
        Ok(answer) => answer,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// `ip -batch -` in the namespace of the calling thread.
pub(crate) fn ip_batch(lines: &[String]) -> std::io::Result<Output> {
    let mut child = Command::new(find("ip"))
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let text: String = lines
        .iter()
        .flat_map(|line| [line.as_str(), "\n"])
        .collect();
    // It may end at a bad line before it has read everything: its own message
    // tells more than our broken pipe.
    let _ = child
        .stdin
        .take()
        .expect("stdin was asked for")
        .write_all(text.as_bytes());
    child.wait_with_output()
}

/// Processes whose namespace of this type is the one behind `path`.
pub(crate) fn pids_in(path: &Path, kind: &str) -> Vec<u32> {
    match fs::metadata(path) {
        Ok(file) => pids_with(file.dev(), file.ino(), kind),
        Err(_) => Vec::new(),
    }
}

/// Processes whose namespace of this type has this device and inode.
pub fn pids_with(dev: u64, ino: u64, kind: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != process::id())
        .filter(|pid| {
            fs::metadata(format!("/proc/{pid}/ns/{kind}"))
                .is_ok_and(|theirs| (theirs.dev(), theirs.ino()) == (dev, ino))
        })
        .collect()
}

/// Kills these processes (ours, known by their namespace) and looks again
/// until none is left: one may have been forking.
pub fn end_all(pids: impl Fn() -> Vec<u32>) {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let left = pids();
        for pid in &left {
            let _ = kill(raw_pid(*pid), Signal::SIGKILL);
        }
        if left.is_empty() || Instant::now() >= deadline {
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn raw_pid(pid: u32) -> Pid {
    Pid::from_raw(pid.try_into().expect("process ids fit in 22 bits"))
}

/// The program's full path where we can find it, else the name for exec to try.
pub fn find(program: &str) -> PathBuf {
    if program.contains('/') {
        return program.into();
    }
    find_program(program).unwrap_or_else(|| program.into())
}

/// The path of a program: looked for in PATH, then in the directories that root's path has
/// but a user's may not.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(Into::into))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}
