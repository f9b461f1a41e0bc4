//! `weir ring status`

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use serde_json::{Value, json};
use weir_daemon::escape;
use weir_ring::{Inspection, Owner, Policy, ReaderInfo, inspect};

use crate::cli::{ExitAnswer, show};

/// Show a ring's segments, who writes and reads them, and what is lost
///
/// Takes part in nothing: writers and readers do not notice. Rates are those
/// of --interval; a reader that has not told yet how far it is looks further
/// behind than it is, by an eighth of the ring at most.
#[derive(clap::Args)]
pub struct Args {
    /// The ring's directory, such as /run/weir-ring/shop
    dir: PathBuf,
    /// Watch it for so many seconds to know the rates; 0: no rates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
    /// Print the status as JSON
    #[arg(long)]
    json: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.0..=3600.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "allowed: seconds from 0 to 3600".to_owned())
}

type Segments = BTreeMap<String, Result<Inspection, String>>;

pub fn run(args: &Args) -> anyhow::Result<ExitAnswer> {
    let before = look(&args.dir)?;
    let begun = Instant::now();
    let now = if args.interval.is_zero() {
        before.clone()
    } else {
        thread::sleep(args.interval);
        look(&args.dir)?
    };
    let seconds = begun.elapsed().as_secs_f64();
    let rated = (!args.interval.is_zero()).then_some((&before, seconds));
    let segments: Vec<Value> = now
        .iter()
        .map(|(name, seen)| match seen {
            Ok(seen) => segment(name, seen, rated),
            Err(error) => json!({ "segment": name, "error": error }),
        })
        .collect();
    if args.json {
        show::json(&json!({
            "ring": args.dir.display().to_string(),
            "interval_seconds": args.interval.as_secs_f64(),
            "segments": segments,
        }))?;
    } else {
        print(&segments)?;
    }
    Ok(ExitAnswer::Done)
}

/// Every file that a reader would take for a segment.
fn look(dir: &Path) -> anyhow::Result<Segments> {
    let list = || format!("cannot list {}", dir.display());
    let mut segments = Segments::new();
    for entry in fs::read_dir(dir).with_context(list)? {
        let entry = entry.with_context(list)?;
        let name = entry.file_name();
        let shown = name.to_string_lossy().into_owned();
        // A socket may be beside the segments.
        if shown.starts_with('.') || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        // Who may read it is the readers' question: a look harms nobody.
        let seen = inspect(dir.join(name), Owner::Anyone);
        segments.insert(shown, seen.map_err(|error| error.to_string()));
    }
    if segments.is_empty() {
        bail!("{} has no segments", dir.display());
    }
    Ok(segments)
}

fn segment(name: &str, now: &Inspection, rated: Option<(&Segments, f64)>) -> Value {
    // A segment that came or was replaced meanwhile has no rate.
    let before = rated.and_then(|(segments, seconds)| match segments.get(name) {
        Some(Ok(before)) if before.created == now.created => Some((before, seconds)),
        _ => None,
    });
    let rate = |of: fn(&Inspection) -> u64| {
        before.map(|(before, seconds)| {
            (of(now).saturating_sub(of(before)) as f64 / seconds).round() as u64
        })
    };
    let readers: Vec<_> = now
        .readers
        .iter()
        .map(|reader| {
            let earlier = before.and_then(|(before, seconds)| {
                let same =
                    |known: &&ReaderInfo| (known.slot, known.pid) == (reader.slot, reader.pid);
                Some((before.readers.iter().find(same)?, seconds))
            });
            json!({
                "slot": reader.slot,
                "pid": reader.pid,
                "program": program(reader.pid),
                "alive": reader.alive,
                "resumes_as": (reader.name != 0).then(|| format!("{:016x}", reader.name)),
                "behind_bytes": reader.behind,
                "lost": reader.lost,
                "lost_per_second": earlier.map(|(earlier, seconds)| {
                    (reader.lost.saturating_sub(earlier.lost) as f64 / seconds).round() as u64
                }),
            })
        })
        .collect();
    json!({
        "segment": name,
        "size": now.size,
        "policy": match now.policy {
            Policy::DropNewest => "drop",
            Policy::OverwriteOldest => "overwrite",
        },
        "max_record": now.max_record,
        "created": Timestamp::from_nanosecond(now.created.into()).ok(),
        "writer": now.writer.map(|pid| json!({ "pid": pid, "program": program(pid) })),
        "records": now.records,
        "dropped": now.dropped,
        "dropped_bytes": now.dropped_bytes,
        "bytes": now.head,
        "kept_bytes": now.kept,
        "unread_bytes": now.readers.iter().map(|reader| reader.behind).max(),
        "records_per_second": rate(|seen| seen.records),
        "dropped_per_second": rate(|seen| seen.dropped),
        "bytes_per_second": rate(|seen| seen.head),
        "readers": readers,
    })
}

/// The name of a process, which chose it itself.
fn program(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

fn print(segments: &[Value]) -> anyhow::Result<()> {
    let process = |of: &Value| match of["pid"].as_u64() {
        Some(pid) => format!("{pid} {}", show::text(&of["program"])),
        None => "-".to_owned(),
    };
    let or_dash = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        other => show::text(other),
    };
    let percent = |part: &Value, segment: &Value| match (part.as_u64(), segment["size"].as_u64()) {
        (Some(part), Some(size)) => format!("{:.0}%", part as f64 * 100.0 / size as f64),
        _ => "-".to_owned(),
    };
    let (good, bad): (Vec<_>, Vec<_>) = segments
        .iter()
        .partition(|segment| segment["error"].is_null());
    let rows: Vec<_> = good
        .iter()
        .map(|segment| {
            vec![
                show::text(&segment["segment"]),
                show::text(&segment["size"]),
                show::text(&segment["policy"]),
                process(&segment["writer"]),
                show::text(&segment["records"]),
                show::text(&segment["dropped"]),
                or_dash(&segment["records_per_second"]),
                or_dash(&segment["bytes_per_second"]),
                percent(&segment["unread_bytes"], segment),
            ]
        })
        .collect();
    show::table(
        &[
            "SEGMENT",
            "SIZE",
            "POLICY",
            "WRITER",
            "RECORDS",
            "DROPPED",
            "RECORDS/S",
            "BYTES/S",
            "UNREAD",
        ],
        &rows,
    )?;
    let mut rows = Vec::new();
    for segment in &good {
        for reader in segment["readers"].as_array().into_iter().flatten() {
            rows.push(vec![
                show::text(&segment["segment"]),
                match reader["alive"].as_bool() {
                    Some(true) => process(reader),
                    _ => format!("{} (dead)", reader["pid"]),
                },
                percent(&reader["behind_bytes"], segment),
                show::text(&reader["lost"]),
                or_dash(&reader["lost_per_second"]),
                or_dash(&reader["resumes_as"]),
            ]);
        }
    }
    if !rows.is_empty() {
        show::line("")?;
        show::table(
            &[
                "SEGMENT",
                "READER",
                "UNREAD",
                "LOST",
                "LOST/S",
                "RESUMES AS",
            ],
            &rows,
        )?;
    }
    for segment in bad {
        show::line(format!(
            "{}: {}",
            show::text(&segment["segment"]),
            escape(segment["error"].as_str().unwrap_or_default())
        ))?;
    }
    Ok(())
}
