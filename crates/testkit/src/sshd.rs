//! A host with a real OpenSSH server and a real rsyslogd, so that log lines
//! carry what syslog really writes, and real ssh clients for both sides.
//!
//! Both daemons live in mounts of their own: a private /dev whose /dev/log is
//! rsyslogd's, a private /run (with a utmp) and /var/log for sshd, and a
//! password file with one account more, `CUSTOMER`. Nothing of the machine's
//! own is changed.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Read,
    net::{IpAddr, SocketAddr},
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns, unshare},
    unistd::sethostname,
};
use tempfile::TempDir;

use weir_netlab::{
    Child, Context, Error, ErrorKind, Namespace, Result,
    fake_host::{bind, make_private},
    namespace::{end_all, find, on_thread, pids_with},
    net::temp_dir,
    wait_for,
};

/// The account that exists on every `SshHost`.
pub const CUSTOMER: &str = "customer";
/// The password of that user.
pub const CUSTOMER_PASSWORD: &str = "correct horse battery";
/// What `openssl passwd -6` makes of it.
const CUSTOMER_HASH: &str = "$6$weirlab$dnjP.U/hn4orWwZaiuicYw9DbXI3Lm1v3F61ZaB4prYBI1PeJ5J7vhnlIgq.\
                             FF9NMXprrCd5PF4OETsN6.COL/";
const CUSTOMER_ID: u32 = 60990;

/// sshd's listeners, rsyslogd's socket.
const READY_IN: Duration = Duration::from_secs(60);
/// A client beyond its own time limits by this much is killed.
const CLIENT_GRACE: Duration = Duration::from_secs(5);

/// The programs that `SshHost` and the clients need, for `missing`.
pub const PROGRAMS: [&str; 4] = ["sshd", "ssh", "ssh-keygen", "rsyslogd"];

/// The form of time stamps in a syslog line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stamp {
    /// `Nov 21 04:33:07 host sshd[77]: …`
    Traditional,
    /// `2026-11-21T04:33:07.123456+00:00 host sshd[77]: …`
    Iso,
}

/// How an `SshHost` is set up.
#[derive(Debug, Clone)]
pub struct SshOpts {
    /// Where sshd listens, on all addresses of both families.
    pub port: u16,
    /// The file that rsyslogd appends to; made when missing.
    pub log: PathBuf,
    /// The format of its lines.
    pub stamp: Stamp,
    /// The name of the host in them.
    pub host: String,
    /// Lines put at the head of sshd_config, where they win.
    pub sshd_config: String,
    /// More options of sshd's, such as `-e`: what it says there is in
    /// [`SshHost::stderr`].
    pub sshd_args: Vec<String>,
}

impl SshOpts {
    /// Port 22, traditional stamps, a host named `host`.
    pub fn new(log: impl Into<PathBuf>) -> Self {
        Self {
            port: 22,
            log: log.into(),
            stamp: Stamp::Traditional,
            host: "host".into(),
            sshd_config: String::new(),
            sshd_args: Vec::new(),
        }
    }
}

/// A running sshd with its rsyslogd; both end with this value.
#[derive(Debug)]
pub struct SshHost {
    mounts: File,
    dir: TempDir,
    sshd: Child,
    rsyslogd: Child,
    port: u16,
    log: PathBuf,
}

impl SshHost {
    /// Starts both and waits until sshd listens.
    pub fn start(namespace: &Namespace, opts: &SshOpts) -> Result<Self> {
        let dir = temp_dir()?;
        let place = ServerDir {
            dir: dir.path(),
            opts,
        };
        place.write_files()?;
        let net = File::open(namespace.path())
            .context(|| format!("open namespace {}", namespace.name()))?;
        let (mounts, rsyslogd, sshd) = on_thread(|| {
            place.private_mounts()?;
            setns(&net, CloneFlags::CLONE_NEWNET)
                .context(|| format!("enter namespace {}", namespace.name()))?;
            let mounts = File::open("/proc/thread-self/ns/mnt")
                .context(|| "open our mount namespace".into())?;
            let mut rsyslogd = place.rsyslogd()?;
            wait_for("rsyslogd's /dev/log", READY_IN, || {
                place.alive(&mut rsyslogd, "rsyslogd")?;
                Ok(Path::new("/dev/log").exists().then_some(()))
            })?;
            let mut sshd = place.sshd()?;
            let pid = sshd.pid();
            wait_for("sshd to listen", READY_IN, || {
                place.alive(&mut sshd, "sshd")?;
                Ok(listens(pid, opts.port).then_some(()))
            })?;
            Ok((mounts, rsyslogd, sshd))
        })?;
        Ok(Self {
            mounts,
            dir,
            sshd,
            rsyslogd,
            port: opts.port,
            log: opts.log.clone(),
        })
    }

    /// The port that sshd listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The log file.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// What sshd writes to standard error, with a client's line breaks.
    pub fn stderr(&self) -> PathBuf {
        self.dir.path().join("sshd.err")
    }

    /// The host's /run: its utmp says who is logged in with a terminal.
    pub fn run(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// The private key that the customer and root log in with.
    pub fn key(&self) -> PathBuf {
        self.dir.path().join("customer_key")
    }

    /// sshd's process id (each connection has processes of its own).
    pub fn sshd_pid(&self) -> u32 {
        self.sshd.pid()
    }

    /// Tells rsyslogd to open its file again, as logrotate does.
    pub fn reopen_log(&self) -> Result<()> {
        self.rsyslogd.signal(1)
    }
}

impl Drop for SshHost {
    fn drop(&mut self) {
        // Sessions too: everything that has these mounts came from here.
        if let Ok(file) = self.mounts.metadata() {
            end_all(|| pids_with(file.dev(), file.ino(), "mnt"));
        }
    }
}

/// Where the two daemons' files are, before and while they are started.
struct ServerDir<'a> {
    dir: &'a Path,
    opts: &'a SshOpts,
}

impl ServerDir<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn write(&self, name: &str, mode: u32, text: &str) -> Result<()> {
        let path = self.path(name);
        fs::write(&path, text)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
            .context(|| format!("write {}", path.display()))
    }

    fn write_files(&self) -> Result<()> {
        for dir in ["dev", "run", "run/sshd", "log"] {
            let path = self.path(dir);
            fs::create_dir(&path)
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
                .context(|| format!("make {}", path.display()))?;
        }
        for key in ["host_key", "customer_key"] {
            let mut keygen = Command::new(find("ssh-keygen"));
            keygen
                .args(["-q", "-t", "ed25519", "-N", "", "-C", key, "-f"])
                .arg(self.path(key));
            let out = keygen.output().context(|| "run ssh-keygen".into())?;
            if !out.status.success() {
                return Err(Error::command("run ssh-keygen", &out));
            }
        }
        let read =
            |path: &Path| fs::read_to_string(path).context(|| format!("read {}", path.display()));
        self.write(
            "authorized_keys",
            0o644,
            &read(&self.path("customer_key.pub"))?,
        )?;

        let accounts = read(Path::new("/etc/passwd"))?;
        let id = CUSTOMER_ID;
        let account = format!("{CUSTOMER}:x:{id}:{id}::/:/bin/sh\n");
        self.write(
            "passwd",
            0o644,
            &format!("{}\n{account}", accounts.trim_end()),
        )?;
        let locked = accounts
            .lines()
            .filter_map(|line| line.split(':').next().filter(|name| !name.is_empty()))
            .map(|name| format!("{name}:*:19000::::::\n"));
        let customer = format!("{CUSTOMER}:{CUSTOMER_HASH}:19000::::::\n");
        self.write(
            "shadow",
            0o600,
            &locked.chain([customer]).collect::<String>(),
        )?;

        self.write("sshd_config", 0o600, &self.sshd_config())?;
        self.write("rsyslog.conf", 0o644, &self.rsyslog_conf())?;
        let log = &self.opts.log;
        File::options()
            .create(true)
            .append(true)
            .open(log)
            .map(drop)
            .context(|| format!("open the log {}", log.display()))
    }

    fn sshd_config(&self) -> String {
        // The public key is read as its owner, who cannot look into our
        // directory: it is reached by the private /run.
        format!(
            "{extra}\n\
             Port {port}\n\
             ListenAddress 0.0.0.0\n\
             ListenAddress ::\n\
             HostKey {key}\n\
             UsePAM no\n\
             PermitRootLogin yes\n\
             PasswordAuthentication yes\n\
             KbdInteractiveAuthentication no\n\
             PubkeyAuthentication yes\n\
             AuthorizedKeysFile /run/authorized_keys\n\
             StrictModes no\n\
             UseDNS no\n\
             SyslogFacility AUTH\n\
             LogLevel INFO\n\
             PidFile none\n\
             MaxStartups 1000\n\
             LoginGraceTime 30\n\
             PrintMotd no\n\
             PrintLastLog no\n",
            extra = self.opts.sshd_config,
            port = self.opts.port,
            key = self.path("host_key").display(),
        )
    }

    fn rsyslog_conf(&self) -> String {
        let template = match self.opts.stamp {
            Stamp::Traditional => "RSYSLOG_TraditionalFileFormat",
            Stamp::Iso => "RSYSLOG_FileFormat",
        };
        format!(
            "global(workDirectory=\"{dir}\" net.enableDNS=\"off\")\n\
             module(load=\"imuxsock\" SysSock.Name=\"/dev/log\" SysSock.RateLimit.Interval=\"0\")\n\
             action(type=\"omfile\" file=\"{log}\" template=\"{template}\" \
             fileCreateMode=\"0640\")\n",
            dir = self.dir.display(),
            log = self.opts.log.display(),
        )
    }

    /// Gives the calling thread mounts of its own, and what it starts.
    fn private_mounts(&self) -> Result<()> {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)
            .context(|| "make a mount namespace".into())?;
        sethostname(&self.opts.host).context(|| format!("name the host {}", self.opts.host))?;
        make_private()?;

        let dev = self.path("dev");
        tmpfs(&dev)?;
        for node in ["null", "zero", "full", "random", "urandom", "tty"] {
            let to = dev.join(node);
            File::create(&to).context(|| format!("make {}", to.display()))?;
            bind(&Path::new("/dev").join(node), &to)?;
        }
        for tree in ["pts", "shm"] {
            let to = dev.join(tree);
            fs::create_dir(&to).context(|| format!("make {}", to.display()))?;
            bind(&Path::new("/dev").join(tree), &to)?;
        }
        for (link, to) in [
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
            // A node of its own would look for its terminals elsewhere.
            ("ptmx", "pts/ptmx"),
        ] {
            let link = dev.join(link);
            symlink(to, &link).context(|| format!("make {}", link.display()))?;
        }
        let utmp = self.path("run/utmp");
        File::create(&utmp).context(|| format!("make {}", utmp.display()))?;
        let authorized = self.path("run/authorized_keys");
        fs::copy(self.path("authorized_keys"), &authorized)
            .context(|| format!("write {}", authorized.display()))?;
        for (from, to) in [
            ("passwd", "/etc/passwd"),
            ("shadow", "/etc/shadow"),
            ("run", "/run"),
            // wtmp, btmp and lastlog.
            ("log", "/var/log"),
            ("dev", "/dev"),
        ] {
            bind(&self.path(from), Path::new(to))?;
        }
        Ok(())
    }

    fn rsyslogd(&self) -> Result<Child> {
        let mut command = Command::new(find("rsyslogd"));
        command
            .args(["-n", "-iNONE", "-f"])
            .arg(self.path("rsyslog.conf"));
        self.start(command, "rsyslogd")
    }

    fn sshd(&self) -> Result<Child> {
        let mut command = Command::new(find("sshd"));
        command.args(["-D", "-f"]).arg(self.path("sshd_config"));
        command.args(&self.opts.sshd_args);
        self.start(command, "sshd")
    }

    /// Starts a daemon from the calling thread, what it says kept in a file.
    fn start(&self, mut command: Command, name: &str) -> Result<Child> {
        let said = File::create(self.path(&format!("{name}.err")))
            .context(|| format!("make {name}.err"))?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said);
        let inner = command.spawn().context(|| format!("start {name}"))?;
        Ok(Child::new(name, inner))
    }

    /// An error with its last words when a daemon has ended.
    fn alive(&self, child: &mut Child, name: &str) -> Result<()> {
        let Some(status) = child.wait(Duration::ZERO)? else {
            return Ok(());
        };
        let said = fs::read_to_string(self.path(&format!("{name}.err"))).unwrap_or_default();
        let why = format!("it ended ({status}): {}", said.trim());
        Err(Error::new(ErrorKind::Command, format!("start {name}"), why))
    }
}

fn tmpfs(at: &Path) -> Result<()> {
    mount(
        Some("weir-testkit"),
        at,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=755"),
    )
    .context(|| format!("mount a tmpfs at {}", at.display()))
}

/// Whether the process's namespace has listeners of both families at `port`:
/// asked without a connection, which sshd would log.
fn listens(pid: u32, port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().all(|table| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        text.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().is_some_and(|local| local.ends_with(&wanted));
            local && words.nth(1) == Some("0A")
        })
    })
}

/// How a try to log in ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// In, and `true` ran.
    LoggedIn,
    /// The server asked and said no.
    Denied,
    /// No server listens at the port.
    Refused,
    /// No answer came in time.
    TimedOut,
    /// Something else: ssh's own words.
    Failed(String),
}

/// Tries one password with a real client: OpenSSH's, or Dropbear's for a name
/// with a line break, which the other cannot be given.
pub fn attempt(
    namespace: &Namespace,
    from: Option<IpAddr>,
    to: SocketAddr,
    user: impl AsRef<OsStr>,
    password: &str,
    timeout: Duration,
) -> Result<Outcome> {
    let user = user.as_ref();
    let dir = temp_dir()?;
    if user.as_bytes().contains(&b'\n') {
        let mut client = dropbear(from, to, user);
        client
            .env("HOME", dir.path())
            .env("DROPBEAR_PASSWORD", password);
        return run_client(namespace, client, timeout);
    }
    let script = dir.path().join("askpass");
    fs::write(
        &script,
        "#!/bin/sh\nprintf '%s\\n' \"$WEIR_LAB_PASSWORD\"\n",
    )
    .and_then(|()| fs::set_permissions(&script, fs::Permissions::from_mode(0o700)))
    .context(|| format!("write {}", script.display()))?;
    // ssh refuses control and other characters on its command line, but not in
    // a file, where a percent sign has a meaning.
    let mut ssh = if !user.as_bytes().contains(&b'%') {
        let config = dir.path().join("config");
        let mut text = b"User \"".to_vec();
        for &byte in user.as_bytes() {
            if matches!(byte, b'"' | b'\\') {
                text.push(b'\\');
            }
            text.push(byte);
        }
        text.extend(b"\"\n");
        fs::write(&config, text).context(|| format!("write {}", config.display()))?;
        client(&config, from, to, timeout)
    } else {
        let mut ssh = client(Path::new("/dev/null"), from, to, timeout);
        ssh.arg("-l").arg(user);
        ssh
    };
    ssh.args([
        "-o",
        "PreferredAuthentications=password",
        "-o",
        "NumberOfPasswordPrompts=1",
    ])
    .args(["-o", "PubkeyAuthentication=no"])
    .arg("true")
    .env("SSH_ASKPASS", &script)
    .env("SSH_ASKPASS_REQUIRE", "force")
    .env("WEIR_LAB_PASSWORD", password);
    run_client(namespace, ssh, timeout)
}

/// Dropbear's client with no memory of this user's, as far as the command.
fn dropbear(from: Option<IpAddr>, to: SocketAddr, user: &OsStr) -> Command {
    let mut client = Command::new(find("dbclient"));
    client
        .args(["-y", "-y", "-T", "-p", &to.port().to_string(), "-l"])
        .arg(user);
    match from {
        Some(IpAddr::V4(from)) => client.args(["-b", &from.to_string()]),
        Some(IpAddr::V6(from)) => client.args(["-b", &format!("[{from}]")]),
        None => &mut client,
    };
    client.args([&to.ip().to_string(), "true"]);
    client
}

/// Logs in with a private key.
pub fn login(
    namespace: &Namespace,
    from: Option<IpAddr>,
    to: SocketAddr,
    user: &str,
    key: &Path,
    timeout: Duration,
) -> Result<Outcome> {
    let mut ssh = with_key(from, to, user, key, timeout);
    ssh.arg("true");
    run_client(namespace, ssh, timeout)
}

/// Logs in with a private key and a terminal, and stays until the guard goes.
pub fn session(
    namespace: &Namespace,
    from: Option<IpAddr>,
    to: SocketAddr,
    user: &str,
    key: &Path,
) -> Result<Child> {
    let mut ssh = with_key(from, to, user, key, READY_IN);
    ssh.args(["-tt", "exec sleep 600"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    namespace.spawn(ssh)
}

fn with_key(
    from: Option<IpAddr>,
    to: SocketAddr,
    user: &str,
    key: &Path,
    timeout: Duration,
) -> Command {
    let mut ssh = client(Path::new("/dev/null"), from, to, timeout);
    ssh.args(["-l", user]);
    ssh.args([
        "-o",
        "PreferredAuthentications=publickey",
        "-o",
        "BatchMode=yes",
    ])
    .args(["-o", "IdentitiesOnly=yes", "-i"])
    .arg(key);
    ssh
}

/// ssh with one configuration and no memory of this user's, up to the host.
/// (getopt lets options follow it; the command comes last.)
fn client(config: &Path, from: Option<IpAddr>, to: SocketAddr, timeout: Duration) -> Command {
    let seconds = timeout.as_secs().max(1);
    let mut ssh = Command::new(find("ssh"));
    ssh.arg("-F").arg(config);
    ssh.args(["-n", "-T", "-o", "StrictHostKeyChecking=no"])
        .args([
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "GlobalKnownHostsFile=/dev/null",
        ])
        .args([
            "-o",
            "LogLevel=ERROR",
            "-o",
            "ConnectionAttempts=1",
            "-o",
            "IdentityAgent=none",
        ])
        .args(["-o", &format!("ConnectTimeout={seconds}")])
        .args(["-p", &to.port().to_string()]);
    if let Some(from) = from {
        ssh.args(["-b", &from.to_string()]);
    }
    ssh.arg(to.ip().to_string());
    ssh.env_remove("DISPLAY")
        .env_remove("SSH_AUTH_SOCK")
        .env("LC_ALL", "C");
    ssh
}

fn run_client(namespace: &Namespace, mut ssh: Command, timeout: Duration) -> Result<Outcome> {
    ssh.stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = namespace.spawn(ssh)?;
    let Some(status) = child.wait(timeout + CLIENT_GRACE)? else {
        return Ok(Outcome::TimedOut);
    };
    let mut said = Vec::new();
    if let Some(pipe) = child.inner().stderr.as_mut() {
        pipe.read_to_end(&mut said)
            .context(|| "read what ssh said".into())?;
    }
    let said = String::from_utf8_lossy(&said);
    let outcomes = [
        ("Permission denied", Outcome::Denied),
        ("Connection refused", Outcome::Refused),
        ("timed out", Outcome::TimedOut),
        // Dropbear's words; its exit code is that of success.
        ("exited: Disconnect received", Outcome::Denied),
    ];
    let known = outcomes.into_iter().find(|(words, _)| said.contains(words));
    Ok(match known {
        Some((_, outcome)) => outcome,
        None if status.success() => Outcome::LoggedIn,
        None => Outcome::Failed(said.trim().into()),
    })
}
