//! `weir token verify`

use std::{fs::File, io::BufReader, path::PathBuf};

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value, json};
use weir_daemon::{config::Config, counted, token::keys};
use weir_token::{
    Datagram, Digest,
    capture::{CaptureReader, ip_packet},
    flow_table::{Flow, FlowTable},
    segment_counts::{self, SegmentCounts},
    verify::{Refusal, Segment, Unread, Verifier},
};

use super::{
    super::{Common, ExitAnswer, show},
    Place, daf,
};

#[derive(clap::Args)]
pub struct VerifyArgs {
    /// A capture, as tcpdump -w or Wireshark writes it: pcap or pcapng
    file: PathBuf,
    /// Accept tokens of this program (its SHA-256 as a whole); may be repeated [default: those
    /// that [token.require] of the configuration names]
    #[arg(long, value_name = "SHA256")]
    aggregate: Vec<Digest>,
    /// Only connections and datagrams to this port; may be repeated
    #[arg(long, value_name = "PORT")]
    port: Vec<u16>,
    /// Look at the signatures of DAF instead, with the key in this file (its -s), packet by
    /// packet: TCP over IPv4. They prove a key and the payload, and nothing else
    #[arg(long, value_name = "FILE", conflicts_with_all = ["aggregate", "keys"])]
    daf: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
}

/// What the packets of a file were.
#[derive(Default)]
struct Counts {
    packets: u64,
    /// Neither TCP nor UDP, or a part of a packet.
    other: u64,
    /// Of these, what may be for a port that is asked about.
    unread: u64,
    /// The numbers of the first ones.
    named: Vec<u64>,
}

/// Packets that could not be read and are named.
const MAX_UNREAD: usize = 64;

pub fn run(common: &Common, args: &VerifyArgs) -> anyhow::Result<ExitAnswer> {
    if let Some(key) = &args.daf {
        return daf::run(&args.file, key, &args.port, args.place.json);
    }
    let identities = identities(common, args)?;
    let ring = keys::read(&args.place.directory(common))?;
    let keys: Vec<_> = ring.accepted().collect();
    ensure!(
        !keys.is_empty(),
        "there is no key in {} that is not retired",
        args.place.directory(common).display()
    );
    let mut table = FlowTable::new(Verifier { keys, identities });
    let path = args.file.display();
    let file = File::open(&args.file).with_context(|| format!("cannot read {path}"))?;
    let mut counts = Counts::default();
    let read = read(file, args, &mut table, &mut counts).with_context(|| path.to_string());
    let refused = table
        .flows()
        .iter()
        .filter(|flow| !flow.verdict.passes())
        .count();
    let valid = table.flows().len() - refused;
    let segments = || table.flows().iter().filter_map(Flow::segments);
    let refused_segments: u64 = segments().map(SegmentCounts::refused).sum();
    if args.place.json {
        let error = read.as_ref().err().map(|error| format!("{error:#}"));
        let unread = counts.named.iter();
        let unread: Vec<_> = unread
            .map(|packet| json!({ "packet": packet, "verdict": Refusal::Malformed.name() }))
            .collect();
        let rest = [
            ("valid", json!(valid)),
            ("refused", json!(refused)),
            ("refused_segments", json!(refused_segments)),
            ("packets", json!(counts.packets)),
            ("other_packets", json!(counts.other)),
            ("unread_packets", json!(counts.unread)),
            ("unread", json!(unread)),
            ("beyond_limit", json!(table.beyond())),
            ("error", json!(error)),
        ];
        let rest = rest.map(|(name, value)| (name.to_owned(), value));
        let flows = table.flows().iter().map(flow_json);
        show::json_rows("flows", flows, &rest.into_iter().collect())?;
    } else {
        print(&table, &counts, valid, refused)?;
        print_segments(&table, refused_segments)?;
    }
    // What was read before a mistake has been shown.
    read?;
    let is_proved = refused == 0 && refused_segments == 0 && valid > 0 && counts.unread == 0;
    Ok(match is_proved && table.beyond() == 0 {
        true => ExitAnswer::Done,
        false => ExitAnswer::No,
    })
}

/// Those on the command line, else those of the configuration.
fn identities(common: &Common, args: &VerifyArgs) -> anyhow::Result<Vec<Digest>> {
    if !args.aggregate.is_empty() {
        return Ok(args.aggregate.clone());
    }
    let config = Config::load(&common.config)?;
    let requirements = config
        .token
        .into_iter()
        .flat_map(|token| token.requirements);
    let mut named: Vec<_> = requirements.flat_map(|r| r.aggregates).collect();
    named.sort_unstable();
    named.dedup();
    if named.is_empty() {
        bail!(
            "nobody's tokens would be right: no [token.require.NAME] in {} names a program; allowed: --aggregate SHA256",
            common.config.display()
        );
    }
    Ok(named)
}

/// Takes all packets of the file into the table.
fn read(
    file: File,
    args: &VerifyArgs,
    table: &mut FlowTable<'_>,
    counts: &mut Counts,
) -> anyhow::Result<()> {
    let mut capture = CaptureReader::new(BufReader::new(file))?;
    while let Some(packet) = capture.next_packet()? {
        counts.packets += 1;
        let ip = ip_packet(packet.link, packet.bytes)
            .with_context(|| format!("packet {}", packet.number))?;
        let is_asked = |port| args.port.is_empty() || args.port.contains(&port);
        if let Some(segment) = ip.and_then(Segment::read) {
            if is_asked(segment.dest.1) || is_asked(segment.source.1) {
                table.add(packet.number, packet.time, &segment, packet.is_shortened);
            }
        } else if let Some(datagram) = ip.and_then(Datagram::read) {
            // Answers have no token.
            if is_asked(datagram.dest.1) {
                table.add_datagram(packet.number, packet.time, &datagram);
            }
        } else {
            counts.other += 1;
            // Of one that does not say its ports nobody knows that it is not for these.
            let is_for_these = |unread: Unread| match unread.ports {
                Some((source, dest)) => is_asked(dest) || (!unread.is_udp && is_asked(source)),
                None => true,
            };
            if ip.and_then(Unread::read).is_some_and(is_for_these) {
                counts.unread += 1;
                if counts.named.len() < MAX_UNREAD {
                    counts.named.push(packet.number);
                }
            }
        }
    }
    Ok(())
}

fn endpoint((addr, port): (std::net::IpAddr, u16)) -> String {
    std::net::SocketAddr::new(addr, port).to_string()
}

/// When the packet that decided was on the wire; `None`: the capture does not say, or
/// something beyond the calendar.
fn moment(flow: &Flow) -> Option<jiff::Timestamp> {
    let time = flow.time?;
    let seconds = i64::try_from(time.as_secs()).ok()?;
    jiff::Timestamp::new(seconds, time.subsec_nanos() as i32).ok()
}

fn protocol(flow: &Flow) -> &'static str {
    match flow.is_udp {
        true => "udp",
        false => "tcp",
    }
}

fn flow_json(flow: &Flow) -> Value {
    let identity = flow.verdict.identity().map(|identity| identity.to_string());
    json!({
        "protocol": protocol(flow),
        "client": endpoint(flow.client),
        "server": endpoint(flow.server),
        "verdict": flow.verdict.name(),
        "aggregate": identity,
        "packet": flow.packet,
        "time": moment(flow).map(|time| time.to_string()),
        "packets": flow.packets,
        "token": flow.token.map(|token| json!({
            "version": token.version,
            "key": token.key_id,
            "epoch": token.epoch,
            "tag": hex::encode(token.tag),
            "mac": hex::encode(token.mac),
        })),
        "segments": flow.segments().map(|segments| json!({
            "verdicts": segments
                .counts()
                .iter()
                .map(|(verdict, count)| (verdict.name().to_owned(), json!(count)))
                .collect::<Map<_, _>>(),
            "refused": segments
                .named()
                .iter()
                .map(|(packet, verdict)| json!({ "packet": packet, "verdict": verdict.name() }))
                .collect::<Vec<_>>(),
        })),
    })
}

/// What became of segments with tokens, where some have.
fn print_segments(table: &FlowTable<'_>, refused: u64) -> anyhow::Result<()> {
    let mut named = 0;
    for flow in table.flows() {
        let Some(segments) = flow.segments() else {
            continue;
        };
        show::line(format!(
            "segments of {} to {}: {} valid, {} refused",
            endpoint(flow.client),
            endpoint(flow.server),
            segments.valid(),
            segments.refused()
        ))?;
        for (packet, verdict) in segments.named() {
            show::line(format!("  packet {packet}: {}", verdict.name()))?;
        }
        named += segments.named().len() as u64;
    }
    if refused > named {
        show::line(format!(
            "{} more segments were refused; the first {} are named",
            refused - named,
            segment_counts::MAX_NAMED
        ))?;
    }
    Ok(())
}

fn print(
    table: &FlowTable<'_>,
    counts: &Counts,
    valid: usize,
    refused: usize,
) -> anyhow::Result<()> {
    let rows: Vec<_> = table
        .flows()
        .iter()
        .map(|flow| {
            let identity = flow.verdict.identity();
            let identity = identity.map_or_else(|| "-".to_owned(), |it| it.to_string());
            vec![
                flow.packet.to_string(),
                protocol(flow).to_owned(),
                endpoint(flow.client),
                endpoint(flow.server),
                flow.packets.to_string(),
                flow.verdict.name().to_owned(),
                flow.token
                    .map_or_else(|| "-".to_owned(), |token| token.key_id.to_string()),
                identity,
            ]
        })
        .collect();
    if !rows.is_empty() {
        let head = [
            "PACKET",
            "PROTOCOL",
            "CLIENT",
            "SERVER",
            "PACKETS",
            "VERDICT",
            "KEY",
            "AGGREGATE",
        ];
        show::table(&head, &rows)?;
    }
    let datagrams = table.flows().iter().filter(|flow| flow.is_udp).count();
    show::line(format!(
        "{}, {} of datagrams by verdict: {valid} valid, {refused} refused; {}, {} of them neither TCP nor UDP, or not whole",
        counted(
            (table.flows().len() - datagrams) as u64,
            "connection",
            "connections"
        ),
        counted(datagrams as u64, "flow", "flows"),
        counted(counts.packets, "packet", "packets"),
        counts.other
    ))?;
    if counts.unread > 0 {
        let more = match counts.unread - counts.named.len() as u64 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let numbers: Vec<_> = counts.named.iter().map(u64::to_string).collect();
        show::line(format!(
            "{} malformed, and prove nothing: first parts of packets, or with headers that are not gone through: {}{more}",
            counted(counts.unread, "packet is", "packets are"),
            numbers.join(", ")
        ))?;
    }
    if table.beyond() > 0 {
        show::line(format!(
            "{} of more connections and flows than can be told apart ({}): give --port",
            counted(table.beyond(), "packet", "packets"),
            weir_token::flow_table::MAX_FLOWS
        ))?;
    }
    Ok(())
}
