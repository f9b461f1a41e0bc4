//! `weir filter test` with a filter of Fail2ban's, run as it stands in its directory.

use std::{
    fmt::Write as _,
    io::{self, Write},
    path::Path,
};

use anyhow::Context as _;
use jiff::{Timestamp, tz::TimeZone};
use serde_json::json;
use weir_core::detect::MAX_LINE;
use weir_daemon::{
    escape,
    host::{Host, HostFacts},
};
use weir_fail2ban::{
    date::Clock,
    load_filter,
    matching::{Failure, Filter, LogLine, NoFailure},
};

use super::{ExitAnswer, Missed, Test, read_line, stamp_hint};

/// How much of a text is shown.
const SHOWN: usize = 200;

/// Runs the filter below `root`, the directory that holds `filter.d`.
pub(super) fn test(
    root: &Path,
    test: &Test,
    zone: &TimeZone,
    now: Option<Timestamp>,
) -> anyhow::Result<ExitAnswer> {
    let mut options = Vec::new();
    for option in &test.options {
        let (key, value) = option
            .split_once('=')
            .with_context(|| format!("--option {option:?}: write KEY=VALUE"))?;
        options.push((key.to_owned(), value.to_owned()));
    }
    let source = load_filter(Host.fail2ban_files(), root, &test.name, &options)?;
    let filter = Filter::new(&source)?;
    let mut state = filter.state();
    let mut input = io::stdin().lock();
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut bytes = Vec::new();
    let (mut matched, mut lines) = (0u64, 0u64);
    let mut missed = Missed::default();
    let mut newest: Option<Timestamp> = None;
    while read_line(&mut input, &mut bytes)? {
        lines += 1;
        let text = String::from_utf8_lossy(&bytes);
        let clock = Clock {
            now: now.unwrap_or_else(Timestamp::now),
            zone,
        };
        let line = LogLine {
            text: &text,
            time: test.journal.then_some(clock.now),
        };
        // As the daemon does: the end of a cut line is where its writer wanted it.
        let is_cut = bytes.len() >= MAX_LINE;
        let read = match is_cut {
            true => Err(None),
            false => filter.read(&mut state, line, clock).map_err(Some),
        };
        match &read {
            Ok(failure) => {
                matched += 1;
                newest = newest.max(failure.time.filter(|_| !test.journal));
                if test.json {
                    print_json(&mut out, &found(failure, clock.now))?;
                } else {
                    print_failure(&mut out, failure, &text)?;
                }
            }
            Err(why) => {
                let why = match why {
                    Some(why) => reason(why, &text),
                    None => format!("a line of {MAX_LINE} bytes or more is cut, and not read"),
                };
                if test.json {
                    print_json(&mut out, &json!({ "match": false, "why": why }))?;
                } else if test.missed {
                    writeln!(out, "no failure: {}\n  | {}", escape(&why), escape(&text))?;
                } else {
                    missed.add(why, &bytes);
                }
            }
        }
    }
    if !test.json {
        missed.print(&mut out)?;
        let now = now.unwrap_or_else(Timestamp::now);
        if let Some(hint) = newest.and_then(|newest| stamp_hint(newest, now, zone)) {
            writeln!(out, "{hint}")?;
        }
        if state.exhausted() > 0 {
            let count = state.exhausted();
            writeln!(
                out,
                "{count} searches were given up: they would take too long"
            )?;
        }
        writeln!(out, "{matched} of {lines} lines are failures")?;
    }
    out.flush()?;
    Ok(match matched > 0 || test.json {
        true => ExitAnswer::Done,
        false => ExitAnswer::No,
    })
}

fn print_json(out: &mut impl Write, object: &serde_json::Value) -> io::Result<()> {
    writeln!(out, "{}", weir_daemon::escape_json(object.to_string()))
}

fn print_failure(out: &mut impl Write, failure: &Failure, text: &str) -> io::Result<()> {
    let mut said = match failure.time {
        Some(time) => time.to_string(),
        None => "without a time".to_owned(),
    };
    let _ = write!(said, " {}", failure.id);
    for (name, value) in failure.values.iter() {
        if *value != failure.id && **name != *"mlfid" && !name.starts_with("skiplines") {
            let _ = write!(said, " {name}={value:?}");
        }
    }
    let _ = write!(said, " (failregex {})", failure.regex + 1);
    if failure.attempts > 1 {
        let _ = write!(said, " told by {} lines", failure.attempts);
    }
    writeln!(out, "{}\n  | {}", escape(&said), escape(text))
}

/// The reason in a person's words.
fn reason(why: &NoFailure, text: &str) -> String {
    let numbered = |what: &str, number: usize| format!("{what} {}", number + 1);
    match why {
        NoFailure::Prefregex => "prefregex does not fit".to_owned(),
        NoFailure::Failregex(content) if content.len() < text.len() / 2 => {
            let shown: String = content.chars().take(SHOWN).collect();
            format!("no failregex fits {shown:?}")
        }
        NoFailure::Failregex(_) => "no failregex fits".to_owned(),
        NoFailure::Ignored(number) => format!("{} fits", numbered("ignoreregex", *number)),
        NoFailure::Pending(number) => format!(
            "{} fits; its session has not told yet who failed",
            numbered("failregex", *number)
        ),
        NoFailure::NoFail(number) => format!(
            "{} fits; it is no failure by itself (<F-NOFAIL>)",
            numbered("failregex", *number)
        ),
        NoFailure::Json(why) => why.to_string(),
        NoFailure::GivenUp => "it is not read: searching it would take too long".to_owned(),
        _ => "no failure".to_owned(),
    }
}

fn found(failure: &Failure, now: Timestamp) -> serde_json::Value {
    let time = failure.time.unwrap_or(now);
    let mut object = json!({
        "match": true,
        "time": match time.subsec_nanosecond() {
            0 => json!(time.as_second()),
            nanos => json!(time.as_second() as f64 + f64::from(nanos) / 1e9),
        },
        "host": failure.id,
        "attempts": failure.attempts,
        "regex": failure.regex,
    });
    for name in ["user", "ip4", "ip6", "dns"] {
        if let Some(value) = failure.value(name) {
            object[name] = value.into();
        }
    }
    if !failure.users.is_empty() {
        object["users"] = json!(failure.users);
    }
    object
}
