//! `weir token verify --daf`

use std::{fs::File, io::BufReader, net::SocketAddr, path::Path};

use anyhow::Context;
use serde_json::json;
use weir_daemon::{counted, token::keys};
use weir_token::{
    capture::{CaptureReader, ip_packet},
    daf::{DafCounts, DafKey, DafVerdict},
};

use super::super::{ExitAnswer, show};

/// Packets of the file, and those that are no TCP over IPv4, or a part of a packet.
#[derive(Default)]
struct Counts {
    packets: u64,
    other: u64,
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
            "beyond_limit": table.beyond(),
            "error": read.as_ref().err().map(|error| format!("{error:#}")),
        }))?;
    } else {
        print(&table, &counts, valid, refused)?;
    }
    // What was read before a mistake has been shown.
    read?;
    Ok(match refused == 0 && valid > 0 && table.beyond() == 0 {
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
            continue;
        };
        let ends = [direction.0.1, direction.1.1];
        if ports.is_empty() || ends.iter().any(|port| ports.contains(port)) {
            table.add(direction, verdict);
        }
    }
    Ok(())
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
    if table.beyond() > 0 {
        show::line(format!(
            "{} of more directions than can be told apart ({}): give --port",
            counted(table.beyond(), "packet", "packets"),
            weir_token::daf::MAX_DIRECTIONS
        ))?;
    }
    Ok(())
}
