//! What it costs that traffic is judged by program: streams, connections and questions of a
//! client over a veth pair, behind nothing, weir's level on this kernel, connection
//! tracking, and a queue to user space for every packet, as DAF has it. In turns in one
//! run; ratios are those of one round.

mod client;
mod enforced;
mod opensnitch;
mod queued;
mod server;
mod site;
mod token_loads;
mod tokens;

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::Stdio,
};

use anyhow::{Context, bail};
use weir_bpf::identity::{Level, level, missing};

use client::Reached;
pub use client::{ClientArgs, run as client};
use enforced::{Enforced, Size};
use site::Site;
pub use token_loads::run as tokens;

use crate::report::Report;

/// What rows are called in which rules are in force, at whichever level the kernel has; runs
/// that are committed have them by this name.
const LEVEL: &str = "strict";
/// The level that kernels without the best one have, by name, also where there is a better
/// one.
const PUSH: &str = "push";
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

/// What `weir-bench identity` and `weir-bench token` take.
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
    /// `knows`: the client is a known program. `level`: by name; `None`: the best one.
    Weir {
        size: Size,
        knows: bool,
        level: Option<Level>,
    },
    /// Weir with a client that is known, and tokens.
    Tokens(TokenUse),
    /// Without superpackets at the client's device (GSO), as where segments are signed.
    SingleSegments,
    Conntrack,
    /// Weir at level `nfqueue`, which the first packet of a connection waits for.
    Queued,
    Queue(Queueing),
    OpenSnitch,
}

/// How user space takes packets from its queue, and gives verdicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Queueing {
    /// Packets for which there is one verdict; 0: each has one of its own.
    together: u32,
    /// The first of them waits so many microseconds at most.
    within: u32,
    /// KiB of room for packets that wait to be read; 0: very many.
    room: u32,
    /// The room is doubled each time that packets were lost.
    grows: bool,
}

/// Which connections tokens are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenUse {
    /// The client signs its connections.
    Signed,
    /// The client signs, and the server lets no others in.
    Required,
    /// The same with the token in the IP header of the SYN.
    RequiredByIp,
    /// The client signs each segment.
    SegmentsSigned,
    /// The client signs each segment, and the server takes no others.
    Segments,
    /// The same with signatures of DAF, which are of IPv4.
    Daf,
    /// Others than those that are measured, on both sides.
    Elsewhere,
    /// The client signs its datagrams.
    DatagramsSigned,
    /// The client signs its datagrams, and the server takes no others.
    Datagrams,
}

impl Through {
    /// Does it take what [`missing`] looks for?
    fn is_weir(self) -> bool {
        matches!(self, Self::Weir { .. } | Self::Tokens(_))
    }
}

const NONE: Through = Through::Nothing;
const KNOWN: Through = Through::Weir {
    size: SMALL,
    knows: true,
    level: None,
};
const KNOWN_AT_PUSH: Through = Through::Weir {
    size: SMALL,
    knows: true,
    level: Some(Level::Push),
};
const UNKNOWN: Through = Through::Weir {
    size: SMALL,
    knows: false,
    level: None,
};
const UNKNOWN_AT_PUSH: Through = Through::Weir {
    size: SMALL,
    knows: false,
    level: Some(Level::Push),
};
const MANY: Through = Through::Weir {
    size: LARGE,
    knows: true,
    level: None,
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
    /// Rows of connections a second come of it, too.
    counts_connections: bool,
}

/// As DAF does without its options.
const QUEUE: Through = Through::Queue(Queueing {
    together: 0,
    within: 0,
    room: 0,
    grows: false,
});

const fn together(packets: u32, within: u32) -> Through {
    Through::Queue(Queueing {
        together: packets,
        within,
        room: 0,
        grows: false,
    })
}

const fn room(kib: u32, grows: bool) -> Through {
    Through::Queue(Queueing {
        together: 0,
        within: 0,
        room: kib,
        grows,
    })
}

const LOADS: [Load; 7] = [
    Load {
        name: "stream 1",
        args: &["--load", "stream"],
        unit: "Gbit/s",
        scale: 8e-9,
        through: &[
            ("none", NONE),
            (LEVEL, KNOWN),
            (PUSH, KNOWN_AT_PUSH),
            ("conntrack", Through::Conntrack),
            ("level nfqueue", Through::Queued),
            ("nfqueue", QUEUE),
            ("opensnitch", Through::OpenSnitch),
        ],
        is_latency: false,
        counts_connections: false,
    },
    Load {
        name: "stream 8",
        args: &["--load", "stream", "--number", "8"],
        unit: "Gbit/s",
        scale: 8e-9,
        through: &[
            ("none", NONE),
            (LEVEL, KNOWN),
            (PUSH, KNOWN_AT_PUSH),
            ("conntrack", Through::Conntrack),
            ("level nfqueue", Through::Queued),
            ("nfqueue", QUEUE),
            ("opensnitch", Through::OpenSnitch),
        ],
        is_latency: false,
        counts_connections: false,
    },
    Load {
        name: "queries",
        args: &["--load", "query"],
        unit: "k/s",
        scale: 1e-3,
        through: &[
            ("none", NONE),
            (LEVEL, KNOWN),
            (PUSH, KNOWN_AT_PUSH),
            ("conntrack", Through::Conntrack),
            ("level nfqueue", Through::Queued),
            ("nfqueue", QUEUE),
            ("opensnitch", Through::OpenSnitch),
        ],
        is_latency: false,
        counts_connections: false,
    },
    Load {
        name: "connect known",
        args: &["--load", "connect"],
        unit: "µs",
        scale: 1e-3,
        through: &[
            ("none", NONE),
            (LEVEL, KNOWN),
            (PUSH, KNOWN_AT_PUSH),
            ("strict, 1000 programs and 100 rules", MANY),
            ("conntrack", Through::Conntrack),
            ("level nfqueue", Through::Queued),
            ("nfqueue", QUEUE),
            ("opensnitch", Through::OpenSnitch),
        ],
        is_latency: true,
        counts_connections: true,
    },
    // Figure 3.2 of DAF's thesis: one verdict for many packets. First so many at most, of which
    // the first waits 50 µs at most, then 50 at most, by how long that may be.
    Load {
        name: "verdicts stream 1",
        args: &["--load", "stream"],
        unit: "Gbit/s",
        scale: 8e-9,
        through: &[
            ("one a packet", QUEUE),
            ("1 within 50 us", together(1, 50)),
            ("2 within 50 us", together(2, 50)),
            ("5 within 50 us", together(5, 50)),
            ("10 within 50 us", together(10, 50)),
            ("20 within 50 us", together(20, 50)),
            ("50 within 50 us", together(50, 50)),
            ("100 within 50 us", together(100, 50)),
            ("50 within 1 us", together(50, 1)),
            ("50 within 5 us", together(50, 5)),
            ("50 within 20 us", together(50, 20)),
            ("50 within 100 us", together(50, 100)),
        ],
        is_latency: false,
        counts_connections: false,
    },
    // Figure 3.3: packets are lost for which the queue's socket has no room.
    Load {
        name: "room stream 8",
        args: &["--load", "stream", "--number", "8"],
        unit: "Gbit/s",
        scale: 8e-9,
        through: &[
            ("512 MiB", QUEUE),
            ("16 KiB", room(16, false)),
            ("64 KiB", room(64, false)),
            ("256 KiB", room(256, false)),
            ("16 KiB and growing", room(16, true)),
        ],
        is_latency: false,
        counts_connections: false,
    },
    // Each connection is of an address space that has changed, and of a program that nobody
    // has named: its mappings are walked, and user space is asked.
    Load {
        name: "connect unknown",
        args: &["--load", "connect", "--remap"],
        unit: "µs",
        scale: 1e-3,
        through: &[("none", NONE), (LEVEL, UNKNOWN), (PUSH, UNKNOWN_AT_PUSH)],
        is_latency: true,
        counts_connections: false,
    },
];

/// Measures all rows.
pub fn run(args: &IdentityArgs) -> anyhow::Result<()> {
    let mut report = Report::new();
    let mut site = Site::new(args.millis, false)?;
    if let Err(why) = site.probe_opensnitch() {
        eprintln!("skipped: opensnitch: {why:#}");
    }
    let lacks = missing();
    if let Err(lacks) = level(Some(Level::Push)) {
        eprintln!("{PUSH}: left out: this kernel lacks {}", lacks.join(", "));
    }
    if !lacks.is_empty() {
        eprintln!("{LEVEL}: left out: this kernel lacks {}", lacks.join(", "));
    }
    for (family, to) in [("", "10.9.0.2"), (" ipv6", "2001:db8::2")] {
        for load in &LOADS {
            let rows = Rows {
                site: &site,
                load,
                family,
                to,
                targets: match load.name != "queries" && family.is_empty() {
                    true => &[LEVEL, PUSH],
                    false => &[],
                },
                has_level: lacks.is_empty(),
            };
            rows.measure(&mut report, args)?;
        }
    }
    if lacks.is_empty() && "judge 10,000 sockets again".contains(&args.only) {
        sockets_row(&mut report, &site, args.rounds)?;
    }
    report.finish(args.json.as_deref())
}

/// The rows of one load in one family.
struct Rows<'a> {
    site: &'a Site,
    load: &'a Load,
    /// As it stands in names of rows.
    family: &'a str,
    /// The server's address.
    to: &'a str,
    /// What has a budget.
    targets: &'static [&'static str],
    /// Weir can be measured on this kernel.
    has_level: bool,
}

impl Rows<'_> {
    /// `target stream 1 strict`; the others without `target`.
    fn name(&self, level: &str) -> String {
        let target = match self.targets.contains(&level) {
            true => "target ",
            false => "",
        };
        format!("{target}{} {level}{}", self.load.name, self.family)
    }

    fn measure(&self, report: &mut Report, args: &IdentityArgs) -> anyhow::Result<()> {
        let load = self.load;
        let is_there = |through: Through| {
            let has_form = through != Through::Tokens(TokenUse::Daf) || self.family.is_empty();
            let has_program = match through {
                Through::OpenSnitch => self.site.has_opensnitch(),
                Through::Weir {
                    level: Some(wanted),
                    ..
                } => level(Some(wanted)).is_ok(),
                _ => self.has_level || !through.is_weir(),
            };
            has_form && has_program
        };
        let wanted = |level: &str| self.name(level).contains(&args.only);
        let base = load.through[0].0;
        let mut through: Vec<_> = load
            .through
            .iter()
            .filter(|(level, through)| is_there(*through) && (*level == base || wanted(level)))
            .copied()
            .collect();
        if through.len() < 2 && (!wanted(base) || through.is_empty()) {
            return Ok(());
        }
        let mut values: Vec<Vec<Reached>> = through.iter().map(|_| Vec::new()).collect();
        // The first round warms up.
        for round in 0..=args.rounds.max(1) {
            let mut refused = Vec::new();
            for turn in 0..through.len() {
                let which = (turn + round) % through.len();
                match self.site.measure(through[which].1, load, self.to) {
                    Ok(reached) if round > 0 => values[which].push(reached),
                    Ok(_) => {}
                    Err(why)
                        if matches!(through[which].1, Through::Queue(_) | Through::Queued)
                            && round == 0 =>
                    {
                        let name = self.name(through[which].0);
                        eprintln!("{name}: left out: {why:#}");
                        refused.push(which);
                    }
                    Err(why) => return Err(why.context(self.name(through[which].0))),
                }
            }
            // From behind: the others keep their places.
            refused.sort_unstable();
            for which in refused.into_iter().rev() {
                through.remove(which);
                values.remove(which);
            }
        }
        let of = |reached: &Reached| match load.is_latency {
            true => reached.connect_us,
            false => reached.rate * load.scale,
        };
        let none: Vec<f64> = values[0].iter().map(of).collect();
        let none_name = self.name(base);
        report.add(&none_name, load.unit, &none);
        for ((level, _), reached) in through.iter().zip(&values).skip(1) {
            let name = self.name(level);
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
        if load.counts_connections {
            let rate = |reached: &Vec<Reached>| -> Vec<f64> {
                reached.iter().map(|r| r.rate * load.scale).collect()
            };
            let name = |level: &str| format!("connections {level}{}", self.family);
            let (base_name, base) = (name(base), rate(&values[0]));
            report.add(&base_name, "k/s", &base);
            for ((level, _), reached) in through.iter().zip(&values).skip(1) {
                report.add_ratio(&name(level), "k/s", &rate(reached), (&base_name, &base));
            }
        }
        Ok(())
    }
}

/// What it adds to a byte on each of many connections that the rules have changed since.
fn sockets_row(report: &mut Report, site: &Site, rounds: usize) -> anyhow::Result<()> {
    let enforced = Enforced::start(&site.cgroup, SMALL, true, None)?;
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
