//! `weir options inject`

use std::{
    io::Write,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use weir_core::Prefix;
use weir_daemon::options::inject::{
    FlowSelector, InjectCounts, Injection, MAX_NETWORKS, missing_right,
};
use weir_options::{Layer, OptionSpec, Sections, connection_options};

use super::super::{ExitAnswer, show};

/// How soon a signal is noticed, and the end of the time.
const TICK: Duration = Duration::from_millis(50);
/// So many options may be named.
const MAX_OPTIONS: usize = 64;

/// Put options on packets that leave, or on this host's connections, for a time
///
/// An option is LAYER:NAME or LAYER:NUMBER (0x for hexadecimal), with /LENGTH
/// of the whole option behind it, or =HEX of its data. The layers are ip, tcp,
/// udp, hop and dst (options of IPv6's hop-by-hop and destination options
/// headers), and ext (an extension header by its protocol number). "weir
/// options list" has the names.
///
/// Checksums, lengths and segments made by the kernel are right. A packet that
/// with the options would be bigger than the interface's MTU leaves as it is
/// and is counted, as do fragments, headers without room and, for options of
/// tcp and udp, several segments in one (GSO). The program is on the interface
/// until the time is over or weir is interrupted, and ends with weir however
/// weir ends. It takes Linux 6.6 (tcx).
///
/// With --cgroup the kernel writes options of tcp into the headers of this
/// host's own connections, those of the programs in a control group, and
/// reckons with them: the MSS leaves room, and several segments in one (GSO)
/// have them as well. Connections that stood before have none, nor has what a
/// server answers to a SYN if it listened before. Options of other layers, of
/// one byte (eol, nop), and of kind 253 or 254 with less than 4 bytes the
/// kernel does not take. It takes Linux 5.10 (sock_ops).
///
/// With --queue the packets that leave the interface cross a queue of
/// netfilter's (NFQUEUE), for hosts without tcx: it takes iptables and
/// ip6tables. The kernel cuts superpackets first, so that each segment has the
/// options. The rule is in a chain of its own, weir.options-NUMBER in the table
/// mangle, which goes when weir ends; if weir is killed it stays, lets packets
/// through as they are, and goes with the next --queue of this number.
///
/// Exit code 1: no packet got the options.
#[derive(clap::Args)]
pub struct Args {
    /// The options, such as tcp:exp-254, ip:0x5e=0011aabb, udp:time, dst:30/12, ext:43
    #[arg(value_name = "OPTION", required = true)]
    options: Vec<String>,
    /// The interface that the packets leave by
    #[arg(
        long,
        short,
        value_name = "NAME",
        required_unless_present = "cgroup",
        conflicts_with = "cgroup"
    )]
    interface: Option<String>,
    /// Put the options on by a queue of netfilter's, of this number [default: 30565]
    #[arg(
        long,
        value_name = "NUMBER",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "30565",
        requires = "interface",
        conflicts_with = "cgroup"
    )]
    queue: Option<u16>,
    /// The control group (version 2) whose connections get options of tcp
    #[arg(long, value_name = "DIRECTORY")]
    cgroup: Option<PathBuf>,
    /// Only packets to this address or network; may be given several times
    #[arg(long, value_name = "PREFIX")]
    to: Vec<Prefix>,
    /// Only packets of this protocol: tcp, udp, icmp, icmpv6 or a number
    #[arg(long, value_name = "PROTOCOL", value_parser = protocol)]
    protocol: Option<u8>,
    /// Only packets to this port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Only packets from this port, such as the answers of a server
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    from_port: Option<u16>,
    /// Which packets of a TCP connection: syn (SYN and SYN-ACK), or all
    #[arg(
        long,
        value_name = "WHICH",
        default_value = "all",
        hide_possible_values = true
    )]
    packets: Packets,
    /// End after this time, such as 10s [default: when interrupted]
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    length: Option<Duration>,
    /// Print the counts at the end as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Packets {
    // What begins a connection
    Syn,
    // Every segment
    All,
}

fn protocol(text: &str) -> Result<u8, String> {
    match text {
        "tcp" => Ok(6),
        "udp" => Ok(17),
        "icmp" => Ok(1),
        "icmpv6" => Ok(58),
        _ => text
            .parse()
            .map_err(|_| "allowed: tcp, udp, icmp, icmpv6, or a number from 0 to 255".to_owned()),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    weir_core::policy::parse_duration(text).map_err(|error| error.to_string())
}

/// The options that were named, each read.
pub fn read_options(texts: &[String]) -> anyhow::Result<Vec<OptionSpec>> {
    ensure!(
        texts.len() <= MAX_OPTIONS,
        "there are {} options; allowed: up to {MAX_OPTIONS}",
        texts.len()
    );
    let read = |text: &String| text.parse().with_context(|| format!("option {text:?}"));
    texts.iter().map(read).collect()
}

impl Args {
    fn flows(&self) -> anyhow::Result<FlowSelector> {
        ensure!(
            self.to.len() <= MAX_NETWORKS,
            "--to is given {} times; allowed: up to {MAX_NETWORKS}",
            self.to.len()
        );
        Ok(FlowSelector {
            networks: self.to.iter().map(|p| (p.addr(), p.bits())).collect(),
            protocol: self.protocol,
            source_port: self.from_port,
            dest_port: self.port,
            syn_only: self.packets == Packets::Syn,
        })
    }
}

/// An option of a protocol that no chosen packet has is a mistake, not silence.
fn reject_contradictions(options: &[OptionSpec], chosen: Option<u8>) -> anyhow::Result<()> {
    let Some(chosen) = chosen else { return Ok(()) };
    for (layer, number) in [(Layer::Tcp, 6), (Layer::Udp, 17)] {
        let option = options.iter().find(|option| option.layer == layer);
        if let Some(option) = option.filter(|_| chosen != number) {
            anyhow::bail!(
                "option {option}: --protocol {chosen} has no {} options",
                layer.name()
            );
        }
    }
    Ok(())
}

pub fn run(args: &Args) -> anyhow::Result<ExitAnswer> {
    let options = read_options(&args.options)?;
    reject_contradictions(&options, args.protocol)?;
    let sections = Sections::of(&options)?;
    let of_connections = match &args.cgroup {
        Some(cgroup) => Some((cgroup, connection_options(&options)?)),
        None => None,
    };
    if let Some(right) = missing_right() {
        bail!(
            "options are put on packets by the kernel, which takes root ({right}): sudo weir options inject"
        );
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone()).context("cannot handle signals")?;
    }
    let flows = args.flows()?;
    let interface = args.interface.as_deref().unwrap_or_default();
    let (injection, place) = match of_connections {
        Some((cgroup, options)) => (
            Injection::begin_on_connections(cgroup, options, &flows)?,
            format!("connections of {}", cgroup.display()),
        ),
        None => {
            let injection = match args.queue {
                Some(number) => Injection::begin_by_queue(interface, number, &sections, &flows)?,
                None => Injection::begin(interface, &sections, &flows)?,
            };
            (injection, format!("what leaves {interface}"))
        }
    };
    let named: Vec<_> = options.iter().map(ToString::to_string).collect();
    let until = match args.length {
        Some(length) => format!("for {}", weir_core::policy::format_duration(length)),
        None => "until interrupted".to_owned(),
    };
    // Nobody is left to tell if this fails.
    let _ = writeln!(
        std::io::stderr(),
        "weir: {} on {}, {until}",
        named.join(" "),
        weir_daemon::escape(&place)
    );
    let began = Instant::now();
    let is_over = || args.length.is_some_and(|length| began.elapsed() >= length);
    let mut is_gone = false;
    while !stop.load(Ordering::Relaxed) && !is_over() && !is_gone {
        thread::sleep(TICK);
        is_gone = !injection.is_there();
    }
    let counts = injection.counts()?;
    injection.end();
    print(args, &named, &counts)?;
    match &args.cgroup {
        Some(cgroup) => ensure!(!is_gone, "control group {} is gone", cgroup.display()),
        None if args.queue.is_some() => ensure!(
            !is_gone,
            "interface {interface}, or the rule that leads to the queue, is gone"
        ),
        None => ensure!(!is_gone, "interface {interface} is gone"),
    }
    Ok(match counts.changed {
        0 => ExitAnswer::No,
        _ => ExitAnswer::Done,
    })
}

fn print(args: &Args, named: &[String], counts: &InjectCounts) -> anyhow::Result<()> {
    let left = [
        ("too_big", "would exceed the MTU", counts.too_big),
        ("gso", "several segments in one (GSO)", counts.gso),
        ("fragment", "fragments", counts.fragment),
        ("no_room", "no room in the header", counts.no_room),
        (
            "other",
            match args.cgroup {
                Some(_) => "such an option already",
                None => "extension headers or a surplus area already",
            },
            counts.other,
        ),
        ("malformed", "malformed", counts.malformed),
        ("refused", "refused by the kernel", counts.refused),
    ];
    if args.json {
        let left: serde_json::Map<_, _> = left
            .iter()
            .map(|(name, _, count)| ((*name).to_owned(), json!(count)))
            .collect();
        return show::json(&json!({
            "interface": args.interface,
            "queue": args.queue,
            "cgroup": args.cgroup,
            "options": named,
            "changed": counts.changed,
            "left": left,
            "dropped": counts.broken,
        }));
    }
    let reasons: Vec<_> = left
        .iter()
        .filter(|(_, _, count)| *count > 0)
        .map(|(_, words, count)| format!("{words} {count}"))
        .collect();
    let total: u64 = left.iter().map(|(_, _, count)| count).sum();
    let mut line = format!(
        "packets with the options: {}; left as they were: {total}",
        counts.changed
    );
    if !reasons.is_empty() {
        line += &format!(" ({})", reasons.join(", "));
    }
    if counts.broken > 0 {
        line += &format!(
            "; dropped, because the kernel failed half-way: {}",
            counts.broken
        );
    }
    show::line(line)?;
    if counts.changed + counts.broken + total == 0 {
        show::wrapped(why_none(args))?;
    }
    Ok(())
}

/// Where packets may have gone of which none was meant.
fn why_none(args: &Args) -> String {
    if let Some(cgroup) = &args.cgroup {
        return format!(
            "no packet matched: no TCP connection that --to, --port and --from-port mean began in {} meanwhile; those that stood before have no options, nor has what a server answers that listened before",
            cgroup.display()
        );
    }
    let interface = args.interface.as_deref().unwrap_or_default();
    let by = match &args.to[..] {
        [] => "ADDRESS".to_owned(),
        [to, ..] => to.addr().to_string(),
    };
    format!(
        "no packet matched: nothing left by {interface} that these options, --to, --protocol, --port, --from-port and --packets mean. ip route get {by} names the interface that packets leave by; to this host's own addresses it is lo"
    )
}
