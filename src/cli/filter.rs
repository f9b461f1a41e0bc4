//! `weir filter`

mod fail2ban;
mod show;

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Write},
    net::IpAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use clap::Subcommand;
use jiff::{Timestamp, tz::TimeZone};
use serde_json::json;
use weir_core::{
    Prefix,
    detect::{
        Age, Clock, Context, Definition, Finding, MAX_LINE, ProgramState, Record, STAMP_TOLERANCE,
    },
    policy::format_duration,
};
use weir_daemon::{
    config::{Config, DEFAULT_PATH, filter_files},
    escape,
};

use super::{Common, ExitAnswer};

/// Try filters on log lines
#[derive(Subcommand)]
pub enum Verb {
    /// Read lines from standard input and say which ones are failures
    ///
    /// NAME is a filter of the configuration ([filter.NAME], or
    /// filter.d/NAME.toml beside it), one of Fail2ban's below the path of [fail2ban],
    /// or a built-in one; where --config is a directory with filter.d/NAME.conf
    /// (/etc/fail2ban), that filter of Fail2ban's.
    /// Of the other lines it says why they are none, with an example of each reason,
    /// and how far the last time stamp is from the clock. Exit code 1 if no line was
    /// a failure (with --json the objects say so).
    Test(Test),
    /// List the built-in filters and those of the configuration
    List {
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the definition of a filter, as a file of filter.d has it
    Show {
        /// Which filter: of the configuration, or a built-in one
        name: String,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args)]
pub struct Test {
    /// The name of the filter
    name: String,
    /// A parameter of a Fail2ban filter, such as mode=aggressive
    #[arg(long = "option", value_name = "KEY=VALUE")]
    options: Vec<String>,
    /// The time zone of stamps that name none, such as Europe/Berlin or CET-1CEST
    #[arg(long, value_name = "TZ")]
    tz: Option<String>,
    /// What time it is, in seconds since 1970
    #[arg(long, value_name = "EPOCH")]
    now: Option<i64>,
    /// The lines are messages alone, as the journal has them
    #[arg(long)]
    journal: bool,
    /// Say of each line that is no failure how far it came and why it stopped
    #[arg(long)]
    missed: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// The most reasons that are listed with an example.
const MAX_REASONS: usize = 20;

/// Lines that are no failures, by the reason, with the first of them.
#[derive(Default)]
struct Missed {
    reasons: BTreeMap<String, (u64, String)>,
    /// Lines of further reasons.
    others: u64,
}

impl Missed {
    fn add(&mut self, why: String, line: &[u8]) {
        if let Some((count, _)) = self.reasons.get_mut(&why) {
            *count += 1;
        } else if self.reasons.len() < MAX_REASONS {
            let example = String::from_utf8_lossy(&line[..line.len().min(200)]);
            self.reasons.insert(why, (1, example.into_owned()));
        } else {
            self.others += 1;
        }
    }

    fn print(self, out: &mut impl Write) -> io::Result<()> {
        let mut reasons: Vec<_> = self.reasons.into_iter().collect();
        reasons.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
        for (why, (count, example)) in reasons {
            writeln!(out, "{count}: {}\n  | {}", escape(&why), escape(&example))?;
        }
        if self.others > 0 {
            writeln!(
                out,
                "{}: other reasons; --missed shows each line's",
                self.others
            )?;
        }
        Ok(())
    }
}

pub fn run(common: &Common, verb: &Verb) -> anyhow::Result<ExitAnswer> {
    match verb {
        Verb::Test(test) => run_test(common, test),
        Verb::List { json } => list(common, *json),
        Verb::Show { name, json } => {
            let definition = find(common, name)?;
            if *json {
                super::show::json(&serde_json::to_value(&definition)?)?;
            } else {
                // A built-in one, or a copy, with what its file says of it.
                let built_in = Definition::builtin_names()
                    .into_iter()
                    .find(|name| Definition::builtin(name) == Some(&definition));
                let text = match built_in.and_then(Definition::builtin_text) {
                    Some(text) => text.to_owned(),
                    None => show::text(&definition),
                };
                io::stdout().write_all(text.as_bytes())?;
            }
            Ok(ExitAnswer::Done)
        }
    }
}

fn list(common: &Common, as_json: bool) -> anyhow::Result<ExitAnswer> {
    let built_in = Definition::builtin_names().into_iter();
    let mut filters: Vec<_> = built_in
        .map(|name| (name.to_owned(), "built in".to_owned()))
        .collect();
    if common.config.exists() {
        let own = Config::load(&common.config)?;
        let files = filter_files(&common.config)?;
        filters.extend(own.filters.into_keys().map(|name| {
            let file = files.get(&name).unwrap_or(&own.file);
            (name, file.display().to_string())
        }));
    }
    if as_json {
        let filters: Vec<_> = filters
            .iter()
            .map(|(name, from)| json!({ "name": name, "from": from }))
            .collect();
        super::show::json(&json!({ "filters": filters }))?;
        return Ok(ExitAnswer::Done);
    }
    for (name, from) in filters {
        super::show::line(format!("{} ({})", escape(&name), escape(&from)))?;
    }
    Ok(ExitAnswer::Done)
}

fn run_test(common: &Common, test: &Test) -> anyhow::Result<ExitAnswer> {
    let zone = match &test.tz {
        None => TimeZone::system(),
        Some(name) => TimeZone::get(name)
            .or_else(|_| TimeZone::posix(name))
            .with_context(|| format!("{name:?} is not a time zone"))?,
    };
    let now = match test.now {
        None => None,
        Some(epoch) => Some(
            Timestamp::from_second(epoch)
                .with_context(|| format!("--now {epoch}: out of range"))?,
        ),
    };
    check_name(&test.name)?;
    let dir = common.config.as_path();
    let is_there = |suffix| {
        dir.join(format!("filter.d/{}.{suffix}", test.name))
            .exists()
    };
    if dir.is_dir() && !is_there("toml") && ["conf", "local"].into_iter().any(is_there) {
        return fail2ban::test(dir, test, &zone, now);
    }
    if let Some(path) = fail2ban_of(common, test)? {
        // Standard output is for what its lines tell.
        eprintln!(
            "weir: filter {} of Fail2ban's, below {}",
            escape(&test.name),
            path.display()
        );
        return fail2ban::test(&path, test, &zone, now);
    }
    if let Some(option) = test.options.first() {
        bail!(
            "--option {option:?}: weir's own filters take no options, and there is no Fail2ban filter {}",
            dir.join(format!("filter.d/{}.conf", test.name)).display()
        );
    }
    let definition = find(common, &test.name)?;
    let filter = definition.compile().with_context(|| test.name.clone())?;
    let mut state = ProgramState::default();
    let mut input = io::stdin().lock();
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut line = Vec::new();
    let mut matched = 0u64;
    let mut lines = 0u64;
    let mut missed = Missed::default();
    let mut newest: Option<Timestamp> = None;
    while read_line(&mut input, &mut line)? {
        lines += 1;
        let context = Context {
            now: now.unwrap_or_else(Timestamp::now),
            zone: &zone,
        };
        let record = Record {
            line: &line,
            time: test.journal.then_some(context.now),
            message_only: test.journal,
            // Somebody's log, of any day.
            age: Age::Unknown,
            ..Record::default()
        };
        let finding = filter.read(&mut state, &record, &context);
        matched += u64::from(finding.is_some());
        if let Some(finding) = &finding
            && finding.clock == Clock::Stamp
        {
            newest = newest.max(Some(finding.time));
        }
        let why = match finding {
            Some(_) => None,
            None => Some(filter.explain(&state, &record, &context).to_string()),
        };
        if test.json {
            let result = result(finding.as_ref(), why.as_deref());
            writeln!(out, "{}", weir_daemon::escape_json(result.to_string()))?;
        } else if let Some(finding) = finding {
            writeln!(
                out,
                "{} {} {}\n  | {}{}",
                finding.time,
                finding.offender,
                finding.user.as_deref().map(escape).unwrap_or_default(),
                escape(&String::from_utf8_lossy(&line)),
                match finding.clock {
                    Clock::Now if !test.journal =>
                        "\n  | it has no time stamp: of now if it is live, not counted in a backlog",
                    _ => "",
                }
            )?;
        } else if let Some(why) = why {
            if test.missed {
                let line = escape(&String::from_utf8_lossy(&line));
                writeln!(out, "no failure: {}\n  | {line}", escape(&why))?;
            } else {
                missed.add(why, &line);
            }
        }
    }
    if !test.json {
        missed.print(&mut out)?;
        let now = now.unwrap_or_else(Timestamp::now);
        if let Some(hint) = newest.and_then(|newest| stamp_hint(newest, now, &zone)) {
            writeln!(out, "{hint}")?;
        }
        writeln!(out, "{matched} of {lines} lines are failures")?;
    }
    out.flush()?;
    // A program that reads the objects has its answer in them.
    Ok(match matched > 0 || test.json {
        true => ExitAnswer::Done,
        false => ExitAnswer::No,
    })
}

/// What follows from how far the newest stamp is from the clock.
fn stamp_hint(newest: Timestamp, now: Timestamp, zone: &TimeZone) -> Option<String> {
    let off = newest.duration_since(now);
    if off.abs() <= STAMP_TOLERANCE {
        return None;
    }
    let zone = zone.iana_name().unwrap_or("given or this host's");
    let by = format_duration(off.unsigned_abs());
    Some(match off.is_positive() {
        true => format!(
            "the newest time stamp, {newest}, is {by} ahead of the clock: {zone} is not the log's time zone; try --tz, and set time_zone in the jail"
        ),
        false => format!(
            "the newest time stamp, {newest}, is {by} behind the clock: if that line was written just now, {zone} is not the log's time zone; try --tz, and set time_zone in the jail"
        ),
    })
}

/// One line without its newline, of any length in bounded memory: what is
/// beyond the longest that a source delivers is skipped.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut any = false;
    loop {
        let available = input.fill_buf()?;
        if available.is_empty() {
            return Ok(any);
        }
        any = true;
        let end = available.iter().position(|b| *b == b'\n');
        let piece = &available[..end.unwrap_or(available.len())];
        let room = MAX_LINE - line.len();
        line.extend(&piece[..piece.len().min(room)]);
        let used = piece.len() + usize::from(end.is_some());
        input.consume(used);
        if end.is_some() {
            return Ok(true);
        }
    }
}

fn result(finding: Option<&Finding>, why: Option<&str>) -> serde_json::Value {
    let Some(finding) = finding else {
        return json!({ "match": false, "why": why });
    };
    let mut object = json!({
        "match": true,
        "time": finding.time.as_second(),
        "host": finding.offender.to_string(),
        "attempts": finding.attempts,
        "regex": finding.pattern,
    });
    let family = match finding.offender.prefix().map(Prefix::addr) {
        Some(IpAddr::V4(_)) => "ip4",
        Some(IpAddr::V6(_)) => "ip6",
        None => "dns",
    };
    object[family] = finding.offender.to_string().into();
    if let Some(user) = &finding.user {
        object["user"] = user.as_str().into();
        object["users"] = json!([user]);
    }
    object
}

/// Where `[fail2ban]` has its filters, if the one to be tried is one of them: unless the
/// configuration has a filter of that name itself, or weir brings one that no jail of
/// Fail2ban's stands in for.
fn fail2ban_of(common: &Common, test: &Test) -> anyhow::Result<Option<PathBuf>> {
    let file = &common.config;
    if file.is_dir() || !file.exists() {
        return Ok(None);
    }
    let config = Config::load(file)?;
    let Some(found) = config.fail2ban else {
        return Ok(None);
    };
    let is_there = ["conf", "local"].into_iter().any(|suffix| {
        let file = format!("filter.d/{}.{suffix}", test.name);
        found.path.join(file).exists()
    });
    let is_run = found.jails.iter().any(|jail| jail.filter == test.name);
    let is_built_in = Definition::builtin(&test.name).is_some();
    let is_meant = is_run || !is_built_in || !test.options.is_empty();
    let is_own = config.filters.contains_key(&test.name);
    Ok((is_there && is_meant && !is_own).then_some(found.path))
}

fn check_name(name: &str) -> anyhow::Result<()> {
    if name.is_empty() || name.starts_with('.') || name.contains('/') {
        bail!("{name:?} is not the name of a filter");
    }
    Ok(())
}

/// The definition of the filter of this name.
fn find(common: &Common, name: &str) -> anyhow::Result<Definition> {
    check_name(name)?;
    let config = common.config.as_path();
    let mut own = None;
    if config.is_dir() {
        let dir = config.join("filter.d");
        let file = dir.join(format!("{name}.toml"));
        if file.exists() {
            return Ok(weir_daemon::jails::filter_of(&file)?);
        }
        let fail2ban = dir.join(format!("{name}.conf"));
        if fail2ban.exists() {
            bail!(
                "{} is a Fail2ban filter, which has no definition in TOML; `weir filter test` runs it as it is",
                fail2ban.display()
            );
        }
        if config.join("weir.toml").exists() {
            own = Some(Config::load(config)?);
        }
    } else if config.exists() || config != Path::new(DEFAULT_PATH) {
        own = Some(Config::load(config)?);
    }
    let mut filters = own.map(|config| config.filters).unwrap_or_default();
    if let Some(definition) = filters.remove(name) {
        return Ok(definition);
    }
    Definition::builtin(name).cloned().with_context(|| {
        let known = Definition::builtin_names().into_iter();
        let known = known.chain(filters.keys().map(String::as_str));
        format!(
            "there is no filter {name:?}; there are: {}",
            known.collect::<Vec<_>>().join(", ")
        )
    })
}
