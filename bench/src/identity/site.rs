//! A client and a server on one veth pair, and what the traffic between them goes through.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use weir_bpf::{
    device,
    identity::{CgroupAt, missing},
};
use weir_netlab::{Child, Namespace, Net, Veth, VethOpts};
use weir_netlink::{Protocol, Socket, diag};

use super::{
    Load, Queueing, Through,
    client::Reached,
    enforced::Enforced,
    opensnitch::{Judging, OpenSnitch},
    queued::Queued,
    server,
    tokens::Tokens,
};

/// The queue's number.
const QUEUE: &str = "17";
/// Where the server is.
const SERVERS: [&str; 2] = ["10.9.0.2", "2001:db8::2"];
/// The client's device.
const CLIENT_DEVICE: &str = "c0";

/// `AF_INET` and `AF_INET6` of linux/socket.h, and `IPPROTO_TCP` of linux/in.h.
const FAMILIES: [u8; 2] = [2, 10];
const TCP: u8 = 6;
/// `FIN_WAIT1`, `FIN_WAIT2` and `CLOSING` of net/tcp_states.h: the peer has not ended.
const ENDING: u32 = 1 << 4 | 1 << 5 | 1 << 11;
/// So long it is waited for that: what a turn has cut off ends by itself, or does not.
const ENDS_WITHIN: Duration = Duration::from_secs(3);

/// A client and a server on one veth pair, and the control group of the client.
pub struct Site {
    /// Where the client is.
    pub client: Namespace,
    /// The control group of the client.
    pub cgroup: PathBuf,
    /// The control group of the server, if it has one of its own.
    server_cgroup: Option<PathBuf>,
    /// Loaded for all turns, if tokens are measured.
    tokens: Option<Tokens>,
    /// If it is there, and judges here.
    opensnitch: Option<OpenSnitch>,
    millis: String,
    _veth: Veth,
    _net: Net,
}

impl Site {
    /// Starts the server; in a control group of its own, if it is to want tokens.
    pub fn new(millis: u64, wants_tokens: bool) -> anyhow::Result<Self> {
        let net = Net::new()?;
        let (client, server) = (net.namespace("client")?, net.namespace("server")?);
        let opts = VethOpts::new(
            &["10.9.0.1/24", "2001:db8::1/64"],
            &["10.9.0.2/24", "2001:db8::2/64"],
        )?;
        let veth = net.veth(&client, CLIENT_DEVICE, &server, "s0", opts)?;
        // Ports of connections that are over are free at once.
        client.sysctl("ipv4.tcp_tw_reuse", "1")?;
        client.sysctl("ipv4.ip_local_port_range", "2000 65000")?;
        let root = CgroupAt::mount_point().context("control groups of version 2")?;
        let cgroup = root.join(format!("weir-bench-identity-{}", std::process::id()));
        fs::create_dir(&cgroup)?;
        let mut site = Self {
            client,
            cgroup,
            server_cgroup: None,
            tokens: None,
            opensnitch: None,
            millis: millis.to_string(),
            _veth: veth,
            _net: net,
        };
        let start = || {
            SERVERS
                .into_iter()
                .try_for_each(|addr| server::start(&server, addr.parse()?))
        };
        if !wants_tokens {
            start()?;
            return Ok(site);
        }
        let of_server = root.join(format!("weir-bench-server-{}", std::process::id()));
        fs::create_dir(&of_server)?;
        site.server_cgroup = Some(of_server.clone());
        // A socket is of the control group in which it was made.
        let before = fs::read_to_string("/proc/self/cgroup")?;
        let before = before.lines().find_map(|line| line.strip_prefix("0::/"));
        let before = root.join(before.context("this process is in no control group")?);
        let enter = |group: &Path| fs::write(group.join("cgroup.procs"), "0");
        enter(&of_server)?;
        let started = start();
        enter(&before)?;
        started?;
        if missing().is_empty() {
            site.tokens = Some(Tokens::load(&site.cgroup, &of_server)?);
        }
        Ok(site)
    }

    /// Finds out whether OpenSnitch can be measured; an error says why not.
    pub fn probe_opensnitch(&mut self) -> anyhow::Result<()> {
        self.opensnitch = Some(OpenSnitch::probe(&self.client, &SERVERS)?);
        Ok(())
    }

    /// Can OpenSnitch be measured?
    pub fn has_opensnitch(&self) -> bool {
        self.opensnitch.is_some()
    }

    /// The client, which goes into the control group and becomes the program.
    pub fn command(&self, words: &[&str]) -> anyhow::Result<Command> {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo 0 > \"$0\" && exec \"$@\""])
            .arg(self.cgroup.join("cgroup.procs"))
            .arg(std::env::current_exe()?)
            .arg("identity-client")
            .args(words)
            .stdin(Stdio::null());
        Ok(command)
    }

    /// One load for the time that was asked for.
    pub fn measure(&self, through: Through, load: &Load, to: &str) -> anyhow::Result<Reached> {
        let _gate = Gate::open(self, through, to)?;
        let words = [load.args, &["--to", to, "--millis", &self.millis]].concat();
        let mut command = self.command(&words)?;
        command.stdout(Stdio::piped());
        let mut child = self.client.spawn(command)?;
        let output = child.inner().stdout.take().context("the client's output")?;
        let line = BufReader::new(output).lines().next();
        let line = line.context("the client says nothing")??;
        self.wait_for_ends()?;
        serde_json::from_str(&line).with_context(|| format!("the client says {line:?}"))
    }

    /// Waits, for some seconds at most, until the server has ended its side of each connection that
    /// the client has ended. The server's end may come late on a busy machine: in a turn that
    /// wants tokens its answer is refused, and whoever gets the port next does not connect for as
    /// long as that socket lives.
    fn wait_for_ends(&self) -> anyhow::Result<()> {
        let are_over = || -> std::io::Result<bool> {
            let socket = Socket::open(Protocol::SockDiag)?;
            for family in FAMILIES {
                if !diag::list(&socket, family, TCP, ENDING)?.is_empty() {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let until = Instant::now() + ENDS_WITHIN;
        while !self.client.enter(are_over)?? && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // They are of the control groups.
        self.tokens = None;
        for group in self.server_cgroup.iter().chain([&self.cgroup]) {
            let until = Instant::now() + Duration::from_secs(5);
            while fs::remove_dir(group).is_err() && Instant::now() < until {
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// What the traffic goes through for one turn.
enum Gate<'a> {
    Nothing,
    Weir {
        _enforced: Box<Enforced>,
    },
    Loaded {
        tokens: &'a Tokens,
        client: &'a Namespace,
    },
    SingleSegments {
        client: &'a Namespace,
        /// What the device had before.
        segments: u32,
    },
    Rules {
        client: &'a Namespace,
    },
    Queue {
        client: &'a Namespace,
        /// Ends after the rules that lead to it.
        _program: Child,
    },
    Queued {
        _daemon: Queued,
    },
    OpenSnitch {
        _judging: Judging,
    },
}

impl<'a> Gate<'a> {
    fn open(site: &'a Site, through: Through, to: &str) -> anyhow::Result<Self> {
        let client = &site.client;
        match through {
            Through::Nothing => Ok(Self::Nothing),
            Through::Weir { .. } | Through::Tokens(_) if site.tokens.is_some() => {
                let tokens = site.tokens.as_ref().context("they are loaded")?;
                let gate = Self::Loaded { tokens, client };
                let used = match through {
                    Through::Tokens(used) => Some(used),
                    _ => None,
                };
                tokens.resume(used, (client, CLIENT_DEVICE))?;
                Ok(gate)
            }
            Through::Weir { size, knows, level } => Ok(Self::Weir {
                _enforced: Box::new(Enforced::start(&site.cgroup, size, knows, level)?),
            }),
            Through::SingleSegments => {
                let index = client.ifindex(CLIENT_DEVICE)?;
                let segments = client.enter(|| device::gso_max_segments(index))??;
                superpackets(client, 1)?;
                Ok(Self::SingleSegments { client, segments })
            }
            Through::Queued => Ok(Self::Queued {
                _daemon: Queued::start(client)?,
            }),
            Through::Tokens(_) => bail!("tokens are not loaded"),
            Through::OpenSnitch => {
                let opensnitch = site.opensnitch.as_ref().context("it was not probed")?;
                let judging = opensnitch.start(client, to)?;
                Ok(Self::OpenSnitch { _judging: judging })
            }
            Through::Conntrack => {
                let text = "table inet bench {\n\
                     chain in { type filter hook input priority 0; ct state established,related accept; }\n\
                     chain out { type filter hook output priority 0; ct state established,related accept; }\n}\n";
                nft(client, text)?;
                Ok(Self::Rules { client })
            }
            // As DAF is set up: all that goes out waits for a verdict of its own.
            Through::Queue(how) => {
                let mut command = Command::new(std::env::current_exe()?);
                command
                    .args(["delay-queue", "--queue", QUEUE, "--core", "1", "--accept"])
                    .args(words_of(how))
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped());
                let mut program = client.spawn(command)?;
                let output = program.inner().stdout.take();
                let output = output.context("the queue's output")?;
                let ready = BufReader::new(output).lines().next();
                if ready.context("the queue's program says nothing")?? != "ready" {
                    bail!("the queue's program is not ready");
                }
                let gate = Self::Queue {
                    client,
                    _program: program,
                };
                to_queue(client, "-I")?;
                Ok(gate)
            }
        }
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        let undone = match self {
            Self::Rules { client } => nft(client, "delete table inet bench\n"),
            Self::Queue { client, .. } => to_queue(client, "-D"),
            Self::Loaded { tokens, client } => tokens.pause(Some(client)),
            Self::SingleSegments { client, segments } => superpackets(client, *segments),
            Self::Nothing | Self::Weir { .. } | Self::Queued { .. } | Self::OpenSnitch { .. } => {
                Ok(())
            }
        };
        if let Err(error) = undone {
            eprintln!("{error:#}");
        }
    }
}

/// The words by which the program of the queue is told how.
fn words_of(how: Queueing) -> Vec<String> {
    let mut words = Vec::new();
    if how.together > 0 {
        let (packets, within) = (how.together, how.within);
        words.extend([
            format!("--together={packets}"),
            format!("--within={within}"),
        ]);
    }
    if how.room > 0 {
        words.push(format!("--buffer={}", how.room << 10));
    }
    if how.grows {
        words.push("--grow".to_owned());
    }
    words
}

/// Has superpackets of so many segments made for the client's device.
fn superpackets(client: &Namespace, segments: u32) -> anyhow::Result<()> {
    let index = client.ifindex(CLIENT_DEVICE)?;
    Ok(client.enter(|| device::set_gso_max_segments(index, segments))??)
}

/// Adds the rules by which all that goes out waits for the queue's program, or takes them
/// away. Not by nft: not every kernel has its `queue`.
fn to_queue(space: &Namespace, change: &str) -> anyhow::Result<()> {
    for program in ["iptables-legacy", "ip6tables-legacy"] {
        let rule = [change, "OUTPUT", "-j", "NFQUEUE", "--queue-num", QUEUE];
        space.run(program, &rule)?;
    }
    Ok(())
}

fn nft(space: &Namespace, text: &str) -> anyhow::Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), text)?;
    space.run("nft", &["-f".as_ref(), file.path().as_os_str()])?;
    Ok(())
}
