//! What stands between the wire and the host in a row, set up in a net: the
//! rules, the daemon, or nothing. Every one of them has the same policy: a few
//! countries pass, every other address is denied.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path as File, PathBuf},
    process::{ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use weir_bpf::{Generation, pins, small_maps};
use weir_core::geo::Country;
use weir_enforce::kernel;
use weir_netlab::{Child, Namespace, wait_for};

use super::{
    layout::{CLIENT_CORE, DEVICE, LOAD_CORE},
    nfqueue::{DENIED_CHAIN, Judged, MARK_PASS},
    nft::{self, At},
    world::World,
};

const QUEUE: u16 = 5;
const READY_IN: Duration = Duration::from_secs(60);

/// The core of a program in user space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Core {
    /// The core of client and server.
    Same,
    /// The core of the background load.
    Other,
}

/// A row's packet path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// No filter at all: the lower limit.
    Nothing,
    /// No filter either, in a network of its own: a difference from [`Path::Nothing`] is
    /// noise.
    NothingAgain,
    /// Connection tracking, and no decision.
    Conntrack,
    /// The shipped daemon, its program on this hook.
    Weir(&'static str),
    /// The country decision by nftables, at this hook.
    Nft(At),
    /// A queue to user space.
    Queue {
        /// Every packet; else the first of each flow, the connection marked.
        every: bool,
        /// Up to 64 packets by a system call.
        batch: bool,
        /// A rule for each denied source.
        ban: bool,
        /// The core on which the program runs.
        core: Core,
    },
}

const fn queue(every: bool, batch: bool, core: Core) -> Path {
    Path::Queue {
        every,
        batch,
        ban: false,
        core,
    }
}

impl Path {
    /// All paths that the benchmark compares.
    pub const ALL: [Self; 14] = [
        Self::Nothing,
        Self::NothingAgain,
        Self::Conntrack,
        Self::Weir("xdp"),
        Self::Weir("tcx"),
        Self::Nft(At::Prerouting),
        Self::Nft(At::Ingress),
        queue(false, false, Core::Same),
        queue(false, false, Core::Other),
        queue(false, true, Core::Same),
        queue(false, true, Core::Other),
        queue(true, false, Core::Same),
        queue(true, false, Core::Other),
        Self::Queue {
            every: false,
            batch: false,
            ban: true,
            core: Core::Other,
        },
    ];

    /// The path's name in tables, files and `--paths`.
    pub fn name(self) -> String {
        match self {
            Self::Nothing => "nothing".into(),
            Self::NothingAgain => "nothing again".into(),
            Self::Conntrack => "conntrack".into(),
            Self::Weir(hook) => format!("weir {hook}"),
            Self::Nft(At::Prerouting) => "nft prerouting".into(),
            Self::Nft(At::Ingress) => "nft ingress".into(),
            Self::Queue {
                every,
                batch,
                ban,
                core,
            } => format!(
                "nfqueue {}{}{} {}",
                if every { "every" } else { "first" },
                if batch { " batched" } else { "" },
                if ban { " iptables" } else { "" },
                match core {
                    Core::Same => "same-core",
                    Core::Other => "other-core",
                }
            ),
        }
    }

    /// Whether the path bans each denied source.
    pub fn bans(self) -> bool {
        matches!(self, Self::Queue { ban: true, .. })
    }

    /// The first thing that it needs and this machine lacks.
    pub fn missing(self) -> Option<String> {
        let program = match self {
            Self::Nothing | Self::NothingAgain | Self::Weir(_) => return None,
            Self::Conntrack | Self::Queue { .. } => "iptables-legacy",
            Self::Nft(_) => "nft",
        };
        weir_netlab::missing(&[program])
    }
}

/// What all paths need to be set up.
pub struct Policy<'a> {
    /// The country database that the paths decide by.
    pub world: &'a World,
    /// The file of that database; `None`: the built-in one.
    pub database: Option<&'a File>,
    /// Countries that pass.
    pub allow: &'a [Country],
    /// The weir binary.
    pub weir: &'a File,
    /// weir's section in place of the one made of `allow`.
    pub weir_config: Option<&'a str>,
}

impl Policy<'_> {
    fn codes(&self) -> Vec<String> {
        self.allow.iter().map(Country::to_string).collect()
    }

    fn section(&self) -> String {
        if let Some(text) = self.weir_config {
            return text.to_owned();
        }
        let allow: Vec<_> = self
            .codes()
            .into_iter()
            .map(|code| format!("country:{code}"))
            .collect();
        let database = self.database.map(|file| format!("database = {file:?}\n"));
        format!(
            "[geofence]\ndefault = \"drop\"\nallow = {allow:?}\nunknown = \"drop\"\n{}",
            database.unwrap_or_default()
        )
    }
}

/// What the kernel itself counts around the hooks of nftables.
pub struct Around {
    /// Frames that came to the device.
    pub device: u64,
    /// IP packets that came to the stack.
    pub stack: u64,
    /// IP packets that went on to the host.
    pub host: u64,
}

/// A path that is set up; it ends with the guard.
pub enum Running {
    /// Rules alone, or none.
    Rules,
    /// Rules of nftables, at this place.
    Nft(At),
    /// A daemon of weir, as it is shipped.
    Weir(Box<Weir>),
    /// The program at the queue.
    Queue(Queue),
}

impl Running {
    /// Sets a path up in a host's namespace; files go to `dir`.
    pub fn start(
        path: Path,
        host: &Namespace,
        policy: &Policy<'_>,
        dir: &File,
    ) -> anyhow::Result<Self> {
        match path {
            Path::Nothing | Path::NothingAgain => Ok(Self::Rules),
            Path::Conntrack => {
                iptables(
                    host,
                    "-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
                )?;
                short_conntrack(host)?;
                Ok(Self::Rules)
            }
            Path::Nft(at) => {
                nft::load(host, at, &policy.world.ranges()?, policy.allow, dir)?;
                Ok(Self::Nft(at))
            }
            Path::Weir(hook) => {
                Weir::start(hook, host, policy, dir).map(|weir| Self::Weir(Box::new(weir)))
            }
            Path::Queue { every, .. } => {
                queue_rules(host, every)?;
                if !every {
                    short_conntrack(host)?;
                }
                Queue::start(path, host, policy).map(Self::Queue)
            }
        }
    }

    /// Packets that it has denied.
    pub fn denied(&mut self, around: &Around) -> anyhow::Result<u64> {
        match self {
            Self::Rules => Ok(0),
            Self::Nft(At::Ingress) => Ok(around.device - around.stack),
            Self::Nft(At::Prerouting) => Ok(around.stack - around.host),
            Self::Weir(weir) => weir.denied(),
            Self::Queue(queue) => Ok(queue.judged()?.denied),
        }
    }

    /// Rules that it has inserted, for sources that it had denied.
    pub fn banned(&mut self) -> anyhow::Result<u64> {
        match self {
            Self::Queue(queue) => Ok(queue.judged()?.banned),
            _ => Ok(0),
        }
    }

    /// The process id of the path's program; `None` where the kernel alone decides.
    pub fn pid(&self) -> Option<u32> {
        match self {
            Self::Rules | Self::Nft(_) => None,
            Self::Weir(weir) => Some(weir.daemon.pid()),
            Self::Queue(queue) => Some(queue.child.pid()),
        }
    }
}

fn iptables(host: &Namespace, rule: &str) -> anyhow::Result<()> {
    let args: Vec<_> = rule.split_whitespace().collect();
    host.run("iptables-legacy", &args)?;
    Ok(())
}

/// Flows of one packet are forgotten after a second, not 30: the points of a
/// run do not fill the machine's table of 262,144 for each other.
fn short_conntrack(host: &Namespace) -> anyhow::Result<()> {
    Ok(host.sysctl("netfilter.nf_conntrack_udp_timeout", "1")?)
}

/// The rules of ipt_geofence's `single_iface.sh` for packets that come in, with
/// the mark saved for packets to the host, too: without that each packet of a
/// flow is queued until the host answers. Answers are not queued a second time.
fn queue_rules(host: &Namespace, every: bool) -> anyhow::Result<()> {
    let to_queue = format!("-j NFQUEUE --queue-num {QUEUE} --queue-bypass");
    if every {
        for protocol in ["tcp", "udp"] {
            let rule = format!("-t mangle -A PREROUTING -i {DEVICE} -p {protocol} {to_queue}");
            iptables(host, &rule)?;
        }
        return Ok(());
    }
    for rule in [
        format!("-N {DENIED_CHAIN}"),
        format!("-A INPUT -j {DENIED_CHAIN}"),
        "-t mangle -A PREROUTING -j CONNMARK --restore-mark".into(),
        format!("-t mangle -A PREROUTING -m mark --mark {MARK_PASS} -j ACCEPT"),
        format!("-t mangle -A PREROUTING -i {DEVICE} -p tcp -m mark --mark 0 {to_queue}"),
        format!("-t mangle -A PREROUTING -i {DEVICE} -p udp -m mark --mark 0 {to_queue}"),
        "-t mangle -A INPUT -j CONNMARK --save-mark".into(),
        "-t mangle -A POSTROUTING -j CONNMARK --save-mark".into(),
    ] {
        iptables(host, &rule)?;
    }
    Ok(())
}

/// The program of `nfqueue`.
pub struct Queue {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Queue {
    fn start(path: Path, host: &Namespace, policy: &Policy<'_>) -> anyhow::Result<Self> {
        let Path::Queue {
            batch, ban, core, ..
        } = path
        else {
            anyhow::bail!("{} has no queue", path.name());
        };
        let core = match core {
            Core::Same => CLIENT_CORE,
            Core::Other => LOAD_CORE,
        };
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["delay-queue", "--queue", &QUEUE.to_string()])
            .args(["--core", &core.to_string()])
            .args(["--allow", &policy.codes().join(",")])
            .args(
                policy
                    .database
                    .map(|file| ["--database".as_ref(), file])
                    .into_iter()
                    .flatten(),
            )
            .args(batch.then_some("--batch"))
            .args(ban.then_some("--ban"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = host.spawn(command)?;
        let pipes = child.inner();
        let ask = pipes.stdin.take().context("the program's input")?;
        let out = pipes.stdout.take().context("the program's output")?;
        let mut answers = BufReader::new(out);
        let mut line = String::new();
        answers.read_line(&mut line)?;
        ensure!(line == "ready\n", "the program at the queue does not start");
        Ok(Self {
            child,
            ask,
            answers,
        })
    }

    fn judged(&mut self) -> anyhow::Result<Judged> {
        self.ask
            .write_all(b"\n")
            .context("ask the program at the queue")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Judged::parse(&line)
    }
}

/// Packets that the kernel did not queue because the queue was full, or could
/// not hand to the program.
pub fn queue_dropped(host: &Namespace) -> anyhow::Result<u64> {
    let file = "/proc/thread-self/net/netfilter/nfnetlink_queue";
    let text = host.enter(|| std::fs::read_to_string(file))??;
    text.lines()
        .map(|line| -> anyhow::Result<u64> {
            let mut words = line.split_whitespace().skip(5);
            let mut next = || words.next().context("columns of nfnetlink_queue");
            Ok(next()?.parse::<u64>()? + next()?.parse::<u64>()?)
        })
        .sum()
}

/// Pins of a daemon; they go with the guard. Declared behind the process.
struct Pins(String);

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = kernel::detach(File::new(pins::DEFAULT_ROOT), &self.0);
    }
}

/// `weir daemon`.
pub struct Weir {
    daemon: Child,
    counters: Generation,
    _pins: Pins,
}

impl Weir {
    fn start(
        hook: &str,
        host: &Namespace,
        policy: &Policy<'_>,
        dir: &File,
    ) -> anyhow::Result<Self> {
        let instance = format!("bench-delay-{}-{hook}", std::process::id());
        let config = dir.join("weir.toml");
        std::fs::write(
            &config,
            format!(
                "interfaces = [{DEVICE:?}]\nbackend = {hook:?}\ninstance = {instance:?}\n\
                 state_dir = {state:?}\nsocket = {socket:?}\n{section}",
                state = dir.join("state"),
                socket = dir.join("weir.sock"),
                section = policy.section(),
            ),
        )?;
        let said = dir.join("weir.stderr");
        let mut command = Command::new(policy.weir);
        command
            .arg("--config")
            .arg(&config)
            .arg("daemon")
            .stderr(std::fs::File::create(&said)?);
        let pins = Pins(instance.clone());
        let mut daemon = host.spawn(command)?;
        let ready = wait_for("the daemon", READY_IN, || {
            if daemon.wait(Duration::ZERO)?.is_some() {
                return Ok(Some(false));
            }
            let attached = attached(policy.weir, &config).is_some_and(|on| on == hook);
            Ok(attached.then_some(true))
        });
        let said = || std::fs::read_to_string(&said).unwrap_or_default();
        ensure!(
            ready.with_context(said)?,
            "the daemon does not start: {}",
            said()
        );
        let root = File::new(pins::DEFAULT_ROOT).join(pins::escape(&instance));
        Ok(Self {
            daemon,
            counters: Generation::adopt(&root.join("current"))?,
            _pins: pins,
        })
    }

    fn denied(&self) -> anyhow::Result<u64> {
        let counted = small_maps::read_counters(&self.counters.counters)?;
        Ok(weir_core::Reason::ALL
            .into_iter()
            .zip(counted)
            .filter_map(|(reason, (packets, _))| reason.is_drop().then_some(packets))
            .sum())
    }
}

/// The hook that the daemon says its program is on.
fn attached(weir: &File, config: &PathBuf) -> Option<String> {
    let out = Command::new(weir)
        .arg("--config")
        .arg(config)
        .args(["status", "--json"])
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let status: serde_json::Value = serde_json::from_slice(&out.stdout).ok()?;
    Some(status["attachments"][0]["hook"].as_str()?.to_owned())
}
