//! `weir token verify --daf`

use std::{fs::File, io::BufReader, net::SocketAddr, path::Path};

use anyhow::Context;
use serde_json::json;
use weir_daemon::{counted, token::keys};
use weir_token::{
    capture::{CaptureReader, ip_packet},
    daf::{DafCounts, DafKey, DafVerdict},
    verify::Unread,
};

use super::super::{ExitAnswer, show};

/// Packets of the file, those that are no TCP over IPv4, or a part of a packet, and of these the
/// ones that a receiver may read all the same.
#[derive(Default)]
struct Counts {
    packets: u64,
    other: u64,
    unread: u64,
}

pub fn run(file: &Path, key: &Path, ports: &[u16], is_json: bool) -> anyhow::Result<ExitAnswer> {
    let key = keys::read_daf(key)?;
    let path = file.display();
    let file = File::open(file).with_context(|| format!("cannot read {path}"))?;
    let (mut table, mut counts) = (DafCounts::default(), Counts::default());
    let read = read(file, &key, ports, &mut table, &mut counts);
    let read = read.with_context(|| path.to_string());
    let sum = |is_counted: fn(DafVerdict) -> bool| -> u64 {
        let of_one = |of: &[u64; 6]| -> u64 {
            let verdicts = DafVerdict::ALL.into_iter().zip(of);
            verdicts
                .filter(|(v, _)| is_counted(*v))
                .map(|(_, n)| n)
                .sum()
        };
        table.directions().iter().map(|(_, of)| of_one(of)).sum()
    };
    let (valid, refused) = (
        sum(DafVerdict::is_valid),
        sum(|verdict| !verdict.is_valid()),
    );
    if is_json {
        let directions: Vec<_> = table
            .directions()
            .iter()
            .map(|((source, dest), of)| {
                let verdicts = DafVerdict::ALL.into_iter().zip(of);
                let verdicts = verdicts.map(|(v, n)| (v.name().to_owned(), json!(n)));
                json!({
                    "source": SocketAddr::from(*source).to_string(),
                    "dest": SocketAddr::from(*dest).to_string(),
                    "verdicts": verdicts.collect::<serde_json::Map<_, _>>(),
                })
            })
            .collect();
        show::json(&json!({
            "directions": directions,
            "valid": valid,
            "refused": refused,
            "packets": counts.packets,
            "other_packets": counts.other,
            "unread_packets": counts.unread,
            "beyond_limit": table.beyond(),
            "error": read.as_ref().err().map(|error| format!("{error:#}")),
        }))?;
    } else {
        print(&table, &counts, valid, refused)?;
    }
    // What was read before a mistake has been shown.
    read?;
    let is_proved = refused == 0 && valid > 0 && table.beyond() == 0 && counts.unread == 0;
    Ok(match is_proved {
        true => ExitAnswer::Done,
        false => ExitAnswer::No,
    })
}

fn read(
    file: File,
    key: &DafKey,
    ports: &[u16],
    table: &mut DafCounts,
    counts: &mut Counts,
) -> anyhow::Result<()> {
    let mut capture = CaptureReader::new(BufReader::new(file))?;
    while let Some(packet) = capture.next_packet()? {
        counts.packets += 1;
        let ip = ip_packet(packet.link, packet.bytes)
            .with_context(|| format!("packet {}", packet.number))?;
        let Some((direction, verdict)) = ip.and_then(|ip| key.verify(ip)) else {
            counts.other += 1;
            let unread = ip.filter(|ip| ip[0] >> 4 == 4).and_then(Unread::read);
            // Of one that does not say its ports nobody knows that it is not for these.
            let is_asked = |unread: Unread| {
                let ends = unread.ports.map(|(source, dest)| [source, dest]);
                !unread.is_udp && ends.is_none_or(|ends| are_asked(ends, ports))
            };
            counts.unread += u64::from(unread.is_some_and(is_asked));
            continue;
        };
        if are_asked([direction.0.1, direction.1.1], ports) {
            table.add(direction, verdict);
        }
    }
    Ok(())
}

/// Is one of these ports asked about? All are, if none is named.
fn are_asked(ends: [u16; 2], ports: &[u16]) -> bool {
    ports.is_empty() || ends.iter().any(|port| ports.contains(port))
}

fn print(table: &DafCounts, counts: &Counts, valid: u64, refused: u64) -> anyhow::Result<()> {
    let rows: Vec<_> = table
        .directions()
        .iter()
        .map(|((source, dest), of)| {
            let ends = [source, dest].map(|end| SocketAddr::from(*end).to_string());
            ends.into_iter()
                .chain(of.iter().map(ToString::to_string))
                .collect::<Vec<_>>()
        })
        .collect();
    if !rows.is_empty() {
        let head = [
            "FROM",
            "TO",
            "VALID",
            "EMPTY",
            "MISSING",
            "MALFORMED",
            "WRONG MAC",
            "SHORTENED",
        ];
        show::table(&head, &rows)?;
    }
    show::line(format!(
        "{} valid, {refused} refused; {}, {} of them not TCP over IPv4 or not whole",
        counted(valid, "packet", "packets"),
        counted(counts.packets, "packet", "packets"),
        counts.other
    ))?;
    if valid > 0 {
        show::line(
            "valid here is less than in a token of weir: who has seen a packet can send it again, from anywhere and at any time",
        )?;
    }
    if counts.unread > 0 {
        show::line(format!(
            "{} malformed, and prove nothing: first parts of packets, or with headers that are not gone through",
            counted(counts.unread, "packet is", "packets are")
        ))?;
    }
    if table.beyond() > 0 {
        show::line(format!(
            "{} of more directions than can be told apart ({}): give --port",
            counted(table.beyond(), "packet", "packets"),
            weir_token::daf::MAX_DIRECTIONS
        ))?;
    }
    Ok(())
}
