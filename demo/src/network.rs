//! The virtual network, the real programs in it, and questions to weir.
//!
//! One network segment, a bridge: the host, the servers of its pool, and the router to the
//! Internet, which all of the clients are behind.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    net::IpAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use jiff::Timestamp;
use serde_json::Value;
use tempfile::TempDir;
use weir_netlab::{Child, Namespace, Net, Veth, VethOpts, wait_for};
use weir_testkit::{
    sshd::{self, Outcome, SshHost, SshOpts, Stamp},
    traffic,
};

use crate::{
    participant::{Participant, SOON, VIP},
    pool::{self, PoolServers, Traffic, Visit},
    programs::Programs,
};

/// For one guess: the ban may cut the connection before the client has its
/// answer, and it should not wait long for what will not come.
const GUESS: Duration = Duration::from_secs(2);
/// The wait for what must not happen: an answer on this wire takes microseconds.
const SILENCE: Duration = Duration::from_millis(1500);
/// An address that plays no part.
const NOBODY: &str = "203.0.113.254";

/// What the router to the Internet is for.
const SOURCES: [&str; 4] = [
    "198.51.100.0/24",
    "203.0.113.0/24",
    "2001:db8:bad::/48",
    "2001:db8:c::/48",
];
/// The router's addresses on the segment, by family.
const ROUTER: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// A ban as `weir bans --json` lists it.
#[derive(Debug, Clone)]
pub struct Ban {
    pub subject: String,
    pub reason: String,
    pub until: Timestamp,
    /// Seconds, by the daemon.
    pub remaining: u64,
}

/// Milliseconds from the log line that led to a ban.
pub struct Times {
    pub to_ban: f64,
    pub to_drop: f64,
}

/// Namespaces, daemon and clients of the demo; all of them end with this value.
pub struct DemoNetwork {
    weir: PathBuf,
    config: PathBuf,
    socket: PathBuf,
    /// The file with the daemon's output.
    said: PathBuf,
    host: Namespace,
    internet: Namespace,
    daemon: Option<Child>,
    events: Arc<Mutex<Vec<Value>>>,
    sshd: SshHost,
    /// The servers of the pool.
    pub pool: PoolServers,
    /// Programs of the host; else what this machine lacks for rules about them.
    pub programs: Result<Programs, String>,
    _veths: Vec<Veth>,
    _dir: TempDir,
    _net: Net,
}

/// The namespaces on one bridge.
struct Segment {
    host: Namespace,
    internet: Namespace,
    servers: [Namespace; pool::SERVERS],
    veths: Vec<Veth>,
}

impl Segment {
    fn new(net: &Net) -> anyhow::Result<Self> {
        let switch = net.namespace("switch")?;
        switch.ip(&[
            "link add br0 type bridge forward_delay 0 mcast_snooping 0".into(),
            "link set br0 up".into(),
        ])?;
        let mut veths = Vec::new();
        let mut join = |name: &str, addresses: [&str; 2]| -> anyhow::Result<Namespace> {
            let namespace = net.namespace(name)?;
            let [v4, v6] = addresses;
            let addresses = [format!("{v4}/24"), format!("{v6}/64")];
            let opts = VethOpts::new(&addresses.each_ref().map(String::as_str), &[])?;
            veths.push(net.veth(&namespace, "eth0", &switch, name, opts)?);
            switch.ip(&[format!("link set {name} master br0")])?;
            // Whose only address is on another interface asks for no neighbour over IPv6.
            let number = veths.len();
            namespace.ip(&[format!("addr add fe80::{number}/64 dev eth0 nodad")])?;
            Ok(namespace)
        };
        let host = join("host", ["192.0.2.10", "2001:db8::10"])?;
        let internet = join("internet", ROUTER)?;
        let mut server = |number: usize| {
            let [v4, v6] = [0, 1].map(|family| pool::own_address(number, family));
            join(&format!("server{}", number + 1), [&v4, &v6])
        };
        let servers = [server(0)?, server(1)?];
        for prefix in SOURCES {
            internet.ip(&[format!("route add local {prefix} dev lo")])?;
            let router = ROUTER[usize::from(prefix.contains(':'))];
            for namespace in [&host, &servers[0], &servers[1]] {
                namespace.ip(&[format!("route add {prefix} via {router}")])?;
            }
        }
        host.ip(&[
            format!("addr add {}/32 dev eth0", VIP[0]),
            // Deprecated: no source for the host's checks.
            format!("addr add {}/128 dev eth0 nodad preferred_lft 0", VIP[1]),
        ])?;
        Ok(Self {
            host,
            internet,
            servers,
            veths,
        })
    }
}

impl DemoNetwork {
    /// Makes the network, starts sshd, rsyslog and the daemon.
    pub fn set(weir: &Path, instance: &str) -> anyhow::Result<Self> {
        let weir = weir
            .canonicalize()
            .with_context(|| format!("cannot find {}", weir.display()))?;
        let dir = tempfile::Builder::new().prefix("weir-demo-").tempdir()?;
        let net = Net::new()?;
        let Segment {
            host,
            internet,
            servers,
            veths,
        } = Segment::new(&net)?;
        let log = dir.path().join("auth.log");
        let sshd = SshHost::start(
            &host,
            &SshOpts {
                stamp: Stamp::Iso,
                ..SshOpts::new(&log)
            },
        )?;
        let pool = PoolServers::start(servers, dir.path())?;
        let programs = Programs::new(instance);
        let rules = programs.as_ref().map(Programs::configuration);
        let (config, socket) = (dir.path().join("weir.toml"), dir.path().join("weir.sock"));
        std::fs::write(
            &config,
            format!(
                "interfaces = [\"eth0\"]\ninstance = {instance:?}\nstate_dir = {:?}\nsocket = {socket:?}\n\n\
                 [jail.sshd]\nsource = \"file\"\npaths = [{log:?}]\nmax_retry = {}\nban_time = \"10m\"\n{}{}",
                dir.path().join("state"),
                crate::MAX_RETRY,
                pool::configuration(),
                rules.unwrap_or_default(),
            ),
        )?;
        let mut network = Self {
            weir,
            config,
            socket,
            said: dir.path().join("daemon.err"),
            host,
            internet,
            daemon: None,
            events: Arc::default(),
            sshd,
            pool,
            programs,
            _veths: veths,
            _dir: dir,
            _net: net,
        };
        network.start_daemon()?;
        Ok(network)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.weir);
        command
            .arg("--config")
            .arg(&self.config)
            .args(args)
            .stdin(Stdio::null());
        command
    }

    /// Starts `weir daemon` in the host and listens to its events.
    pub fn start_daemon(&mut self) -> anyhow::Result<()> {
        let mut command = self.command(&["daemon"]);
        command.stderr(File::create(&self.said)?);
        let mut daemon = self.host.spawn(command)?;
        let ask = || self.command(&["status", "--json"]).output();
        let answers = wait_for("weir daemon to answer", SOON, || {
            if let Some(status) = daemon.wait(Duration::ZERO)? {
                return Ok(Some(Err(status)));
            }
            Ok(ask()
                .is_ok_and(|out| out.status.success())
                .then_some(Ok(())))
        });
        self.daemon = Some(daemon);
        match answers {
            Ok(Ok(())) => {}
            Ok(Err(status)) => bail!("weir daemon ended at once ({status}):\n{}", self.said()),
            Err(e) => return Err(e).with_context(|| format!("it said:\n{}", self.said())),
        }
        let mut follow = self.command(&["events", "--follow"]);
        let mut follow = follow
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let lines = BufReader::new(follow.stdout.take().context("a pipe was asked for")?);
        self.heard().clear();
        let events = Arc::clone(&self.events);
        // Ends with the daemon, which ends the stream.
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                if let Ok(event) = serde_json::from_str(&line) {
                    events
                        .lock()
                        .expect("no holder of this lock panics")
                        .push(event);
                }
            }
            let _ = follow.wait();
        });
        // Nothing that follows may be missed: a change of the allow list, again
        // and again until its event comes.
        wait_for("the daemon's events", SOON, || {
            let heard = !self.heard().is_empty();
            if !heard {
                let _ = self.command(&["allow", "add", NOBODY]).output();
                let _ = self.command(&["allow", "del", NOBODY]).output();
            }
            Ok(heard.then_some(()))
        })?;
        Ok(())
    }

    /// The last that the daemon wrote.
    fn said(&self) -> String {
        let said = std::fs::read(&self.said).unwrap_or_default();
        let said = String::from_utf8_lossy(&said[said.len().saturating_sub(4096)..]).into_owned();
        match said.trim() {
            "" => "(nothing)".to_owned(),
            said => said.to_owned(),
        }
    }

    /// The host that weir protects.
    pub fn host(&self) -> &Namespace {
        &self.host
    }

    /// SIGKILL, as an out-of-memory killer would.
    pub fn kill_daemon(&mut self) -> anyhow::Result<()> {
        let mut daemon = self.daemon.take().context("the daemon runs")?;
        daemon.signal(9)?;
        ensure!(daemon.wait(SOON)?.is_some(), "the daemon survived SIGKILL");
        let _ = std::fs::remove_file(&self.socket);
        Ok(())
    }

    /// The output of a verb; its exit code must be 0.
    pub fn weir(&self, args: &[&str]) -> anyhow::Result<String> {
        let out = self.command(args).output()?;
        if !out.status.success() {
            bail!(
                "weir {} failed: {}",
                args.join(" "),
                String::from_utf8_lossy(&out.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// The output of a verb as JSON.
    pub fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(
            &self.weir(&[args, &["--json"]].concat())?,
        )?)
    }

    /// The bans in force.
    pub fn bans(&self) -> anyhow::Result<Vec<Ban>> {
        let listed = self.json(&["bans"])?;
        let bans = listed
            .as_array()
            .or_else(|| listed["bans"].as_array())
            .context("a list of bans")?;
        bans.iter()
            .map(|ban| {
                Ok(Ban {
                    subject: ban["subject"].as_str().context("a subject")?.to_owned(),
                    reason: ban["reason"].as_str().unwrap_or_default().to_owned(),
                    until: ban["until"].as_str().context("an end")?.parse()?,
                    remaining: ban["remaining_seconds"].as_u64().context("an end")?,
                })
            })
            .collect()
    }

    /// The ban that holds this participant's address, once there is one.
    pub fn await_ban(
        &self,
        participant: &Participant,
        within: Duration,
    ) -> anyhow::Result<Option<Ban>> {
        let deadline = Instant::now() + within;
        loop {
            let mine = |ban: &Ban| subject_holds(&ban.subject, participant.from);
            if let Some(ban) = self.bans()?.into_iter().find(mine) {
                return Ok(Some(ban));
            }
            if Instant::now() > deadline {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn heard(&self) -> MutexGuard<'_, Vec<Value>> {
        self.events.lock().expect("no holder of this lock panics")
    }

    /// Events of a kind about this participant, oldest first.
    fn events(&self, kind: &str, participant: &Participant) -> Vec<Value> {
        let holds = |e: &&Value| {
            e["kind"] == kind
                && e["subject"]
                    .as_str()
                    .is_some_and(|s| subject_holds(s, participant.from))
        };
        self.heard().iter().filter(holds).cloned().collect()
    }

    /// weir's own word for the participant's `number`th failure: the reason in its
    /// event. One that must come is waited for and missed with an error.
    pub fn found(
        &self,
        participant: &Participant,
        number: u32,
        must: bool,
    ) -> anyhow::Result<Option<String>> {
        let nth = || {
            let found = self.events("found", participant);
            found
                .get(number as usize - 1)
                .and_then(|e| Some(e["reason"].as_str()?.to_owned()))
        };
        let within = if must { SOON } else { GUESS };
        match wait_for("weir's event about a failure", within, || Ok(nth())) {
            Ok(reason) => Ok(Some(reason)),
            Err(e) if must => Err(e).with_context(|| format!("failure {number} of {participant}")),
            Err(_) => Ok(None),
        }
    }

    /// From the stamp of the last line of evidence to the ban and to the first
    /// drop, as the daemon's events tell them (a drop's time is the kernel's).
    pub fn times(&self, participant: &Participant) -> anyhow::Result<Times> {
        let wait = |kind: &'static str| {
            wait_for(kind, SOON, || {
                Ok(self.events(kind, participant).into_iter().next())
            })
        };
        let (ban, drop) = (wait("ban")?, wait("drop")?);
        let line = ban["evidence"]
            .as_array()
            .and_then(|lines| lines.last()?.as_str()?.split(' ').next())
            .context("the ban shows its evidence")?;
        let since: Timestamp = line.parse().context("an ISO stamp")?;
        let millis = |event: &Value| -> anyhow::Result<f64> {
            let time: Timestamp = event["time"].as_str().context("a time")?.parse()?;
            Ok(time.duration_since(since).as_secs_f64() * 1e3)
        };
        Ok(Times {
            to_ban: millis(&ban)?,
            to_drop: millis(&drop)?,
        })
    }

    /// Packets that bans dropped, by weir's counters.
    pub fn dropped(&self) -> anyhow::Result<u64> {
        let status = self.json(&["status"])?;
        let counters = status["counters"].as_array().context("counters")?;
        Ok(counters
            .iter()
            .filter(|c| {
                c["reason"]
                    .as_str()
                    .is_some_and(|r| r.starts_with("banned"))
            })
            .filter_map(|c| c["packets"].as_u64())
            .sum())
    }

    /// One guess with the real client.
    pub fn guess(
        &self,
        participant: &Participant,
        user: &str,
        password: &str,
    ) -> anyhow::Result<Outcome> {
        Ok(sshd::attempt(
            &self.internet,
            Some(participant.from),
            participant.to,
            user,
            password,
            GUESS,
        )?)
    }

    /// A login with the customer's key.
    pub fn login(&self, participant: &Participant) -> anyhow::Result<Outcome> {
        let key = self.sshd.key();
        Ok(sshd::login(
            &self.internet,
            Some(participant.from),
            participant.to,
            sshd::CUSTOMER,
            &key,
            SOON,
        )?)
    }

    /// A connection to the pool; so long may it take to come about.
    pub fn visit(&self, participant: &Participant, within: Duration) -> anyhow::Result<Visit> {
        Visit::open(&self.internet, participant, within)
    }

    /// Customers, one after the other.
    pub fn traffic(&self, participants: &[&Participant]) -> Traffic {
        Traffic::start(&self.internet, participants)
    }

    /// Waits until so many of the pool's servers live, by weir.
    pub fn await_live(&self, count: usize) -> anyhow::Result<()> {
        let what = format!("weir to have {count} live servers");
        Ok(wait_for(&what, SOON, || {
            let pools = self.json(&["pool", "list"]);
            Ok(pools
                .is_ok_and(|p| p["pools"][0]["live"] == count)
                .then_some(()))
        })?)
    }

    /// Bytes that have crossed the host's interface, in either direction.
    pub fn host_bytes(&self) -> anyhow::Result<u64> {
        let read = || std::fs::read_to_string("/proc/thread-self/net/dev");
        let table = self.host.enter(read)??;
        let mut lines = table
            .lines()
            .filter_map(|line| line.trim().strip_prefix("eth0:"));
        let fields = lines.next().context("eth0 in /proc/net/dev")?;
        let bytes = |at: usize| fields.split_whitespace().nth(at)?.parse::<u64>().ok();
        // Received, sent.
        Ok(bytes(0).context("bytes")? + bytes(8).context("bytes")?)
    }

    /// Does a TCP connection come about?
    pub fn connects(&self, participant: &Participant) -> anyhow::Result<bool> {
        Ok(traffic::tcp_connect(
            &self.internet,
            Some(participant.from),
            participant.to,
            SILENCE,
        )
        .is_ok())
    }
}

impl Drop for DemoNetwork {
    fn drop(&mut self) {
        drop(self.daemon.take());
        let _ = self
            .command(&["detach"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

/// Subjects in the demo are hosts or IPv6 /64.
fn subject_holds(subject: &str, addr: IpAddr) -> bool {
    match (subject.split_once('/'), addr) {
        (None, _) => subject.parse() == Ok(addr),
        (Some((net, "64")), IpAddr::V6(addr)) => net
            .parse::<std::net::Ipv6Addr>()
            .is_ok_and(|net| net.to_bits() >> 64 == addr.to_bits() >> 64),
        _ => false,
    }
}
