//! What it costs that traffic is judged by program: streams, connections and questions of a
//! client over a veth pair, behind nothing, weir's level on this kernel, connection
//! tracking, and a queue to user space for every packet, as DAF has it. In turns in one
//! run; ratios are those of one round.

mod client;
mod enforced;
mod server;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use weir_bpf::identity::{CgroupAt, missing};
use weir_netlab::{Child, Namespace, Net, Veth, VethOpts};

use client::Reached;
pub use client::{ClientArgs, run as client};
use enforced::{Enforced, Size};

use crate::report::Report;

/// The level as `weir status` names it.
const LEVEL: &str = "strict";
/// The queue's number.
const QUEUE: &str = "17";
/// What is known in the target rows.
const SMALL: Size = Size {
    programs: 10,
    rules: 10,
};
const LARGE: Size = Size {
    programs: 1000,
    rules: 100,
};
/// Connections that are judged anew at once.
const SOCKETS: usize = 10_000;

/// What `weir-bench identity` takes.
#[derive(clap::Args)]
pub struct IdentityArgs {
    /// Write the rows to this file as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Interleaved rounds a row; the median is shown.
    #[arg(long, default_value_t = 7, value_name = "N")]
    rounds: usize,
    /// How long each thing is measured in a round.
    #[arg(long, default_value_t = 1000, value_name = "MILLISECONDS")]
    millis: u64,
    /// Only rows whose name holds this text.
    #[arg(long, default_value = "", value_name = "TEXT")]
    only: String,
}

/// What the client's traffic goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Through {
    Nothing,
    /// `knows`: the client is a known program.
    Weir {
        size: Size,
        knows: bool,
    },
    Conntrack,
    Queue,
}

const NONE: Through = Through::Nothing;
const KNOWN: Through = Through::Weir {
    size: SMALL,
    knows: true,
};
const UNKNOWN: Through = Through::Weir {
    size: SMALL,
    knows: false,
};
const MANY: Through = Through::Weir {
    size: LARGE,
    knows: true,
};

/// What the client does, and how it is named in rows.
struct Load {
    name: &'static str,
    args: &'static [&'static str],
    unit: &'static str,
    /// The rate is multiplied by this, so that it comes out in `unit`.
    scale: f64,
    /// In turns; the first one is compared with.
    through: &'static [(&'static str, Through)],
    /// It is the time of connect that counts, and what is added to it.
    is_latency: bool,
}

const LOADS: [Load; 5] = [
    Load {
        name: "stream 1",
        args: &["--load", "stream"],
        unit: "Gbit/s",
        scale: 8e-9,
        through: &[
            ("none", NONE),
            (LEVEL, KNOWN),
            ("conntrack", Through::Conntrack),
            ("nfqueue", Through::Queue),
        ],
        is_latency: false,
    },
    Load {
        name: "stream 8",
        args: &["--load", "stream", "--number", "8"],
        unit: "Gbit/s",
        scale: 8e-9,
        through: &[
            ("none", NONE),
            (LEVEL, KNOWN),
            ("conntrack", Through::Conntrack),
            ("nfqueue", Through::Queue),
        ],
        is_latency: false,
    },
    Load {
        name: "queries",
        args: &["--load", "query"],
        unit: "k/s",
        scale: 1e-3,
        through: &[
            ("none", NONE),
            (LEVEL, KNOWN),
            ("conntrack", Through::Conntrack),
            ("nfqueue", Through::Queue),
        ],
        is_latency: false,
    },
    Load {
        name: "connect known",
        args: &["--load", "connect"],
        unit: "µs",
        scale: 1e-3,
        through: &[
            ("none", NONE),
            (LEVEL, KNOWN),
            ("strict, 1000 programs and 100 rules", MANY),
            ("conntrack", Through::Conntrack),
            ("nfqueue", Through::Queue),
        ],
        is_latency: true,
    },
    // Each connection is of an address space that has changed, and of a program that nobody
    // has named: its mappings are walked, and user space is asked.
    Load {
        name: "connect unknown",
        args: &["--load", "connect", "--remap"],
        unit: "µs",
        scale: 1e-3,
        through: &[("none", NONE), (LEVEL, UNKNOWN)],
        is_latency: true,
    },
];

/// Measures all rows.
pub fn run(args: &IdentityArgs) -> anyhow::Result<()> {
    let mut report = Report::new();
    let site = Site::new(args.millis)?;
    let lacks = missing();
    if !lacks.is_empty() {
        eprintln!("{LEVEL}: left out: this kernel lacks {}", lacks.join(", "));
    }
    for (family, to) in [("", "10.9.0.2"), (" ipv6", "2001:db8::2")] {
        for load in &LOADS {
            rows(
                &mut report,
                &site,
                load,
                (family, to),
                args,
                lacks.is_empty(),
            )?;
        }
    }
    if lacks.is_empty() && "judge 10,000 sockets again".contains(&args.only) {
        sockets_row(&mut report, &site, args.rounds)?;
    }
    report.finish(args.json.as_deref())
}

/// `target stream 1 strict`; the others without `target`.
fn row_name(load: &Load, level: &str, family: &str) -> String {
    let is_target = level == LEVEL && family.is_empty() && load.name != "queries";
    let target = if is_target { "target " } else { "" };
    format!("{target}{} {level}{family}", load.name)
}

fn rows(
    report: &mut Report,
    site: &Site,
    load: &Load,
    (family, to): (&str, &str),
    args: &IdentityArgs,
    has_level: bool,
) -> anyhow::Result<()> {
    let is_there = |through: Through| has_level || !matches!(through, Through::Weir { .. });
    let wanted = |level: &str| row_name(load, level, family).contains(&args.only);
    let mut through: Vec<_> = load
        .through
        .iter()
        .filter(|(level, through)| is_there(*through) && (*level == "none" || wanted(level)))
        .copied()
        .collect();
    if through.len() < 2 && !wanted("none") {
        return Ok(());
    }
    let mut values: Vec<Vec<Reached>> = through.iter().map(|_| Vec::new()).collect();
    // The first round warms up.
    for round in 0..=args.rounds.max(1) {
        let mut refused = Vec::new();
        for turn in 0..through.len() {
            let which = (turn + round) % through.len();
            match site.measure(through[which].1, load, to) {
                Ok(reached) if round > 0 => values[which].push(reached),
                Ok(_) => {}
                Err(why) if through[which].1 == Through::Queue && round == 0 => {
                    eprintln!("{}: left out: {why:#}", row_name(load, "nfqueue", family));
                    refused.push(which);
                }
                Err(why) => return Err(why.context(row_name(load, through[which].0, family))),
            }
        }
        for which in refused {
            through.remove(which);
            values.remove(which);
        }
    }
    let of = |reached: &Reached| match load.is_latency {
        true => reached.connect_us,
        false => reached.rate * load.scale,
    };
    let none: Vec<f64> = values[0].iter().map(of).collect();
    let none_name = row_name(load, "none", family);
    report.add(&none_name, load.unit, &none);
    for ((level, _), reached) in through.iter().zip(&values).skip(1) {
        let name = row_name(load, level, family);
        let here: Vec<f64> = reached.iter().map(of).collect();
        match load.is_latency {
            // What is added, round by round.
            true => {
                let added: Vec<f64> = here.iter().zip(&none).map(|(a, b)| a - b).collect();
                report.add(&name, "µs added", &added);
            }
            false => report.add_ratio(&name, load.unit, &here, (&none_name, &none)),
        }
    }
    if load.is_latency && load.name == "connect known" {
        let rate = |reached: &Vec<Reached>| -> Vec<f64> {
            reached.iter().map(|r| r.rate * load.scale).collect()
        };
        let base = rate(&values[0]);
        let name = |level: &str| format!("connections {level}{family}");
        report.add(&name("none"), "k/s", &base);
        for ((level, _), reached) in through.iter().zip(&values).skip(1) {
            report.add_ratio(&name(level), "k/s", &rate(reached), (&name("none"), &base));
        }
    }
    Ok(())
}

/// What it adds to a byte on each of many connections that the rules have changed since.
fn sockets_row(report: &mut Report, site: &Site, rounds: usize) -> anyhow::Result<()> {
    let enforced = Enforced::start(&site.cgroup, SMALL, true)?;
    let number = SOCKETS.to_string();
    let words = ["--load", "sockets", "--number", &number, "--to", "10.9.0.2"];
    let mut command = site.command(&words)?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = site.client.spawn(command)?;
    let input = child.inner().stdin.take();
    let mut input = input.context("the client's input")?;
    let output = child.inner().stdout.take().context("the client's output")?;
    let mut lines = BufReader::new(output).lines();
    let mut line = || -> anyhow::Result<String> {
        Ok(lines
            .next()
            .context("the client has ended: it has no room for so many sockets?")??)
    };
    if line()? != "ready" {
        bail!("the client does not connect");
    }
    let mut send = || -> anyhow::Result<f64> {
        input.write_all(b"g")?;
        Ok(line()?.parse()?)
    };
    send()?;
    let (mut again, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..rounds.max(1) {
        plain.push(send()?);
        enforced.identity.judge_anew()?;
        again.push(send()?);
    }
    let added: Vec<f64> = again.iter().zip(&plain).map(|(a, b)| a - b).collect();
    report.add("send on 10,000 sockets", "ms", &plain);
    report.add("judge 10,000 sockets again", "ms added", &added);
    Ok(())
}

/// A client and a server on one veth pair, and the control group of the client.
struct Site {
    client: Namespace,
    cgroup: PathBuf,
    millis: String,
    _veth: Veth,
    _net: Net,
}

impl Site {
    fn new(millis: u64) -> anyhow::Result<Self> {
        let net = Net::new()?;
        let (client, server) = (net.namespace("client")?, net.namespace("server")?);
        let opts = VethOpts::new(
            &["10.9.0.1/24", "2001:db8::1/64"],
            &["10.9.0.2/24", "2001:db8::2/64"],
        )?;
        let veth = net.veth(&client, "c0", &server, "s0", opts)?;
        // Ports of connections that are over are free at once.
        client.sysctl("ipv4.tcp_tw_reuse", "1")?;
        client.sysctl("ipv4.ip_local_port_range", "2000 65000")?;
        for addr in ["10.9.0.2", "2001:db8::2"] {
            server::start(&server, addr.parse()?)?;
        }
        let root = CgroupAt::mount_point().context("control groups of version 2")?;
        let cgroup = root.join(format!("weir-bench-identity-{}", std::process::id()));
        fs::create_dir(&cgroup)?;
        Ok(Self {
            client,
            cgroup,
            millis: millis.to_string(),
            _veth: veth,
            _net: net,
        })
    }

    /// The client, which goes into the control group and becomes the program.
    fn command(&self, words: &[&str]) -> anyhow::Result<Command> {
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

    fn measure(&self, through: Through, load: &Load, to: &str) -> anyhow::Result<Reached> {
        let _gate = Gate::open(self, through)?;
        let words = [load.args, &["--to", to, "--millis", &self.millis]].concat();
        let mut command = self.command(&words)?;
        command.stdout(Stdio::piped());
        let mut child = self.client.spawn(command)?;
        let output = child.inner().stdout.take().context("the client's output")?;
        let line = BufReader::new(output).lines().next();
        let line = line.context("the client says nothing")??;
        serde_json::from_str(&line).with_context(|| format!("the client says {line:?}"))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.cgroup).is_err() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What the traffic goes through for one turn.
enum Gate<'a> {
    Nothing,
    Weir {
        _enforced: Box<Enforced>,
    },
    Rules {
        client: &'a Namespace,
    },
    Queue {
        client: &'a Namespace,
        /// Ends after the rules that lead to it.
        _program: Child,
    },
}

impl<'a> Gate<'a> {
    fn open(site: &'a Site, through: Through) -> anyhow::Result<Self> {
        let client = &site.client;
        match through {
            Through::Nothing => Ok(Self::Nothing),
            Through::Weir { size, knows } => Ok(Self::Weir {
                _enforced: Box::new(Enforced::start(&site.cgroup, size, knows)?),
            }),
            Through::Conntrack => {
                let text = "table inet bench {\n\
                     chain in { type filter hook input priority 0; ct state established,related accept; }\n\
                     chain out { type filter hook output priority 0; ct state established,related accept; }\n}\n";
                nft(client, text)?;
                Ok(Self::Rules { client })
            }
            // As DAF is set up: all that goes out waits for a verdict of its own.
            Through::Queue => {
                let mut command = Command::new(std::env::current_exe()?);
                command
                    .args(["delay-queue", "--queue", QUEUE, "--core", "1", "--accept"])
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
            Self::Nothing | Self::Weir { .. } => Ok(()),
        };
        if let Err(error) = undone {
            eprintln!("{error:#}");
        }
    }
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
