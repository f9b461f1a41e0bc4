//! From a log line to a finding by filters of Fail2ban's as its package installs them,
//! and the same lines through Fail2ban's own `fail2ban-regex` and through `fail2ban-rs`, where
//! they are installed; both must find as much. fail2ban-rs runs none of Fail2ban's filters: its
//! rows are those of its own filter for the same messages, which has fewer expressions, and
//! there is none for `recidive`. Then lines that are written to make matching slow, twenty jails
//! at one log, and all filters of the package over one log.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use jiff::{Timestamp, tz::TimeZone};
use weir_fail2ban::{
    Files,
    date::Clock,
    load_filter,
    matching::{Filter, LogLine},
};

use crate::report::Report;

/// The directory where the package installs the filters.
const DIR: &str = "/etc/fail2ban";
const LINES: u32 = 200_000;
/// Of which Fail2ban reads so many a round, in a second or two.
const FAIL2BAN_LINES: u32 = 50_000;
const FILTERS: [&str; 4] = ["sshd", "postfix", "nginx-http-auth", "recidive"];
/// fail2ban-rs' own filters for the same messages.
const FAIL2BAN_RS_FILTERS: [(&str, &str); 3] = [
    ("sshd", "sshd"),
    ("postfix", "postfix"),
    ("nginx-http-auth", "nginx-auth"),
];
/// Those whose lines are in a log, for otherwise fail2ban-rs would mostly print a list of them.
const ADDRESSES: u32 = 250;
/// Lines of the log that all filters read.
const MIXED_LINES: u32 = 4_000;
/// Words of a line that is written to make matching slow.
const WORDS: usize = 10_000;
/// The lines of GHSA-33wh-ccjc-p397.
const HOSTILE: [HostileLine; 2] = [
    HostileLine {
        filter: "domino-smtp",
        begin: "%m-%d-%Y %H:%M:%S  smtp: ",
        word: "A ",
        failed: "192.0.2.5 authentication failure using internet password",
        end: "192.0.2.5 authentication failure using internet passwordX",
    },
    HostileLine {
        filter: "dovecot",
        begin: "%b %d %H:%M:%S host dovecot: imap-login: Disconnected",
        word: ": a",
        failed: " (tried to use disallowed PLAIN auth): user=<>, rip=192.0.2.5",
        end: " no match",
    },
];
/// Jails with one filter and one log.
const JAILS: usize = 20;

/// A line that a loop of an expression may take in very many ways.
struct HostileLine {
    filter: &'static str,
    /// With what `strftime` puts in for the date.
    begin: &'static str,
    word: &'static str,
    /// An end by which it is a failure.
    failed: &'static str,
    /// An end by which it is none.
    end: &'static str,
}

/// The files of this host.
struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        match fs::read_dir(dir) {
            Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }
}

/// Adds the rows, if the package is there.
pub fn add_rows(report: &mut Report, dir: &Path, rounds: usize) -> anyhow::Result<()> {
    let version = Command::new("fail2ban-regex").arg("--version").output();
    let Ok(version) = version else {
        eprintln!("skipped: fail2ban-regex: it is not installed");
        return Ok(());
    };
    let version = String::from_utf8_lossy(&version.stdout);
    let version = version
        .trim()
        .trim_start_matches("fail2ban-regex ")
        .to_owned();
    let rust = Fail2banRs::installed(dir)?;
    for name in FILTERS {
        let all = log(name, LINES);
        let few = dir.join(format!("{name}.log"));
        fs::write(&few, log(name, FAIL2BAN_LINES))?;
        let jail = match &rust {
            Some(rust) => rust.jail(name, &all)?,
            None => None,
        };
        let (mut ours, mut theirs, mut of_rust) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            theirs.push(fail2ban(&few, name)?);
            ours.push(weir(&all, name)?);
            if let Some(jail) = &jail {
                of_rust.push(jail.rate()?);
            }
        }
        let base = format!("fail2ban {version} line to finding {name}");
        report.add(&base, "k/s", &theirs);
        let target = format!("target line to finding fail2ban {name}");
        report.add_ratio(&target, "k/s", &ours, (&base, &theirs));
        if let Some(rust) = rust.as_ref().filter(|_| jail.is_some()) {
            let row = format!("{} line to finding, its own filter {name}", rust.version);
            report.add_ratio(&row, "k/s", &of_rust, (&target, &ours));
        }
    }
    add_hostile_rows(report, rounds)?;
    add_shared_rows(report, rounds)?;
    add_mixed_rows(report, rounds)
}

/// What a line of GHSA-33wh-ccjc-p397 costs that has ten thousand words, with nothing learned
/// before: with twenty of them the expression takes Python minutes where it does not fit. So
/// long a line reaches no filter of the daemon's, which reads none of 8 KiB or more.
fn add_hostile_rows(report: &mut Report, rounds: usize) -> anyhow::Result<()> {
    let zone = TimeZone::system();
    for hostile in &HOSTILE {
        let source = load_filter(&Disk, Path::new(DIR), hostile.filter, &[])?;
        let filter = Filter::new(&source)?;
        let now = Timestamp::now().to_zoned(zone.clone());
        let begin = now.strftime(hostile.begin);
        let words = hostile.word.repeat(WORDS);
        for (end, is_failure) in [(hostile.failed, true), (hostile.end, false)] {
            let text = format!("{begin}{words}{end}");
            let mut millis = Vec::new();
            for _ in 0..rounds {
                let mut state = filter.state();
                let (line, clock) = at_hand(&text, &zone);
                let begin = Instant::now();
                let found = filter.read(&mut state, line, clock);
                millis.push(begin.elapsed().as_secs_f64() * 1e3);
                ensure!(
                    found.is_ok() == is_failure && state.exhausted() == 0,
                    "{}: a line that ends with {end:?}: a failure: {}, given up: {}",
                    hostile.filter,
                    found.is_ok(),
                    state.exhausted() > 0
                );
            }
            let what = match is_failure {
                true => "a failure",
                false => "no failure",
            };
            let name = hostile.filter;
            let row = format!("target hostile line of {WORDS} words through {name}, {what}");
            report.add(&row, "ms", &millis);
        }
    }
    Ok(())
}

/// Jails of sshd's filter over one log, in each line of which each of them finds a failure: one
/// of them alone, and all of them at each line, whose date is found once. Lines read, a second,
/// each jail's counted.
fn add_shared_rows(report: &mut Report, rounds: usize) -> anyhow::Result<()> {
    let source = load_filter(&Disk, Path::new(DIR), "sshd", &[])?;
    let filters = vec![Filter::new(&source)?; JAILS];
    let log = log("sshd", LINES / JAILS as u32);
    let lines: Vec<_> = log.lines().collect();
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        for (filters, rates) in [(&filters[..1], &mut alone), (&filters[..], &mut together)] {
            let (seconds, found) = all_at_each_line(filters, &lines);
            ensure!(
                found.iter().all(|found| *found == lines.len()),
                "{found:?} of {} lines were failures",
                lines.len()
            );
            rates.push((lines.len() * filters.len()) as f64 / seconds / 1e3);
        }
    }
    let base = "line read by one jail, one log";
    report.add(base, "k/s", &alone);
    let target = format!("target line read by {JAILS} jails, one log");
    report.add_ratio(&target, "k/s", &together, (base, &alone));
    Ok(())
}

/// All filters of the package over one log with lines of four programs: each alone, and all of
/// them at each line, as jails read a log that they have in common: those with the same forms of
/// dates find them together.
fn add_mixed_rows(report: &mut Report, rounds: usize) -> anyhow::Result<()> {
    let names = fs::read_dir(Path::new(DIR).join("filter.d"))?;
    let mut names = names
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let name = name.strip_suffix(".conf")?;
            (!name.ends_with("common")).then(|| name.to_owned())
        })
        .collect::<Vec<_>>();
    names.sort();
    let mut filters = Vec::new();
    for name in &names {
        let source = load_filter(&Disk, Path::new(DIR), name, &[])?;
        filters.push(Filter::new(&source).with_context(|| name.clone())?);
    }
    let logs = FILTERS.map(|name| log(name, MIXED_LINES / FILTERS.len() as u32));
    let mut logs = logs.each_ref().map(|log| log.lines());
    let mut lines = Vec::new();
    while let Some(line) = logs[lines.len() % logs.len()].next() {
        lines.push(line);
    }
    ensure!(lines.len() == MIXED_LINES as usize, "the log is mixed");
    let read = (lines.len() * filters.len()) as f64 / 1e3;
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (seconds, found_alone) = each_alone(&filters, &lines);
        alone.push(read / seconds);
        let (seconds, found) = all_at_each_line(&filters, &lines);
        together.push(read / seconds);
        ensure!(
            found == found_alone,
            "together filters find other lines than alone"
        );
        let least = lines.len() / FILTERS.len();
        for name in FILTERS {
            let at = names.iter().position(|there| there == name);
            let found = at.map(|at| found[at]);
            ensure!(
                found.is_some_and(|found| found >= least),
                "{name}: {found:?} of {least} lines were failures"
            );
        }
    }
    let base = format!(
        "line read by each of {} filters alone, mixed log",
        filters.len()
    );
    report.add(&base, "k/s", &alone);
    let target = format!(
        "target line read by {} filters together, mixed log",
        filters.len()
    );
    report.add_ratio(&target, "k/s", &together, (&base, &alone));
    Ok(())
}

/// Seconds, and how many failures each filter has found.
fn each_alone(filters: &[Filter], lines: &[&str]) -> (f64, Vec<usize>) {
    let zone = TimeZone::system();
    let begin = Instant::now();
    let found = filters.iter().map(|filter| {
        let mut state = filter.state();
        let fails = lines.iter().filter(|line| {
            let (line, clock) = at_hand(line, &zone);
            filter.read(&mut state, line, clock).is_ok()
        });
        fails.count()
    });
    let found = found.collect();
    (begin.elapsed().as_secs_f64(), found)
}

/// Seconds, and how many failures each filter has found, line by line.
fn all_at_each_line(filters: &[Filter], lines: &[&str]) -> (f64, Vec<usize>) {
    let zone = TimeZone::system();
    let begin = Instant::now();
    let mut states: Vec<_> = filters.iter().map(Filter::state).collect();
    for n in 1..states.len() {
        let (before, rest) = states.split_at_mut(n);
        before.iter().any(|other| rest[0].share_dates(other));
    }
    let mut found = vec![0; filters.len()];
    for line in lines {
        for ((filter, state), found) in filters.iter().zip(&mut states).zip(&mut found) {
            let (line, clock) = at_hand(line, &zone);
            *found += usize::from(filter.read(state, line, clock).is_ok());
        }
    }
    (begin.elapsed().as_secs_f64(), found)
}

/// A line as a filter is given it, and the clock at that moment.
fn at_hand<'a>(text: &'a str, zone: &'a TimeZone) -> (LogLine<'a>, Clock<'a>) {
    let clock = Clock {
        now: Timestamp::now(),
        zone,
    };
    (LogLine { text, time: None }, clock)
}

/// fail2ban-rs, which is built by `cargo install fail2ban-rs`.
struct Fail2banRs {
    /// What the program calls itself, with its version.
    version: String,
    dir: PathBuf,
}

/// A jail of fail2ban-rs' that reads a file.
struct Fail2banRsJail {
    config: PathBuf,
    log: PathBuf,
    /// A log of one line, which costs what its start does.
    short: PathBuf,
    name: &'static str,
}

impl Fail2banRs {
    /// `None`: it is not installed.
    fn installed(dir: &Path) -> anyhow::Result<Option<Self>> {
        let Ok(version) = Command::new("fail2ban-rs").arg("--version").output() else {
            eprintln!("skipped: fail2ban-rs: it is not installed");
            return Ok(None);
        };
        let version = String::from_utf8(version.stdout)?.trim().to_owned();
        let dir = dir.join("fail2ban-rs");
        fs::create_dir(&dir)?;
        Ok(Some(Self { version, dir }))
    }

    /// Its filter for what Fail2ban's filter `name` reads, with `text` for a log.
    fn jail(&self, name: &str, text: &str) -> anyhow::Result<Option<Fail2banRsJail>> {
        let mut known = FAIL2BAN_RS_FILTERS.iter();
        let Some((_, own)) = known.find(|(of_fail2ban, _)| *of_fail2ban == name) else {
            return Ok(None);
        };
        let made = Command::new("fail2ban-rs")
            .args(["gen-config", own])
            .output()?;
        ensure!(made.status.success(), "fail2ban-rs has no filter {own}");
        let at = |kind: &str| self.dir.join(format!("{own}{kind}"));
        let jail = Fail2banRsJail {
            config: at(".toml"),
            log: at(".log"),
            short: at(".short"),
            name: own,
        };
        let global = format!(
            "[global]\nstate_dir = {:?}\n\n",
            self.dir.join("state").display().to_string()
        );
        let config = [global.as_bytes(), &made.stdout].concat();
        fs::write(&jail.config, config)?;
        fs::write(&jail.log, text)?;
        fs::write(&jail.short, text.split_inclusive('\n').next().unwrap_or(""))?;
        Ok(Some(jail))
    }
}

impl Fail2banRsJail {
    /// Thousand lines a second, without its start.
    fn rate(&self) -> anyhow::Result<f64> {
        let start = self.reads(&self.short, 1)?;
        let whole = self.reads(&self.log, LINES)?;
        let seconds = whole.saturating_sub(start).as_secs_f64();
        Ok(f64::from(LINES) / seconds / 1e3)
    }

    fn reads(&self, log: &Path, lines: u32) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        let output = Command::new("fail2ban-rs")
            .arg("--config")
            .arg(&self.config)
            .arg("dry-run")
            .arg(log)
            .args(["--jail", self.name])
            .output()?;
        let time = begin.elapsed();
        let text = String::from_utf8_lossy(&output.stdout);
        let mut found = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Matches:"));
        ensure!(
            found.next().map(str::trim) == Some(&lines.to_string()),
            "{}: fail2ban-rs found another number than {lines}:\n{text}{}",
            self.name,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(time)
    }
}

/// Failures, each of another session, of [`ADDRESSES`] by turns, as the program writes them.
fn log(name: &str, lines: u32) -> String {
    let now = Timestamp::now().to_zoned(TimeZone::system());
    let syslog = now.strftime("%b %d %H:%M:%S").to_string();
    let mut text = String::new();
    for n in 0..lines {
        let addr = std::net::Ipv4Addr::from(0x1000_0000 + n % ADDRESSES);
        let pid = 1000 + n;
        let port = 1024 + n % 60_000;
        let _ = match name {
            "sshd" => writeln!(
                text,
                "{syslog} host sshd[{pid}]: Failed password for invalid user u{n} from {addr} port {port} ssh2"
            ),
            "postfix" => writeln!(
                text,
                "{syslog} host postfix/smtpd[{pid}]: NOQUEUE: reject: RCPT from unknown[{addr}]: 554 5.7.1 <u{n}@example.org>: Relay access denied; from=<a@example.com> to=<u{n}@example.org> proto=ESMTP helo=<h>"
            ),
            "nginx-http-auth" => writeln!(
                text,
                "{} [error] {pid}#{pid}: *{n} user \"u{n}\": password mismatch, client: {addr}, server: shop, request: \"GET /private HTTP/1.1\", host: \"shop\"",
                now.strftime("%Y/%m/%d %H:%M:%S")
            ),
            _ => writeln!(
                text,
                "{},{:03} fail2ban.actions        [{pid}]: NOTICE  [sshd] Ban {addr}",
                now.strftime("%Y-%m-%d %H:%M:%S"),
                n % 1000
            ),
        };
    }
    text
}

/// Thousand lines a second, each of which is a failure.
fn weir(text: &str, name: &str) -> anyhow::Result<f64> {
    let source = load_filter(&Disk, Path::new(DIR), name, &[])?;
    let filter = Filter::new(&source)?;
    let mut state = filter.state();
    let zone = TimeZone::system();
    let begin = Instant::now();
    let mut found = 0;
    for line in text.lines() {
        let (line, clock) = at_hand(line, &zone);
        found += u32::from(filter.read(&mut state, line, clock).is_ok());
    }
    let seconds = begin.elapsed().as_secs_f64();
    ensure!(
        found == LINES,
        "{name}: {found} of {LINES} lines were failures"
    );
    Ok(f64::from(LINES) / seconds / 1e3)
}

/// The same by what `fail2ban-regex` says of its own time, without its start.
fn fail2ban(file: &Path, name: &str) -> anyhow::Result<f64> {
    let output = Command::new("fail2ban-regex")
        .arg(file)
        .arg(name)
        .output()
        .context("run fail2ban-regex")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let matched = format!("{FAIL2BAN_LINES} matched, 0 missed");
    ensure!(
        text.contains(&matched),
        "{name}: Fail2ban found another number:\n{text}"
    );
    let seconds: f64 = text
        .split_once("[processed in ")
        .and_then(|(_, rest)| rest.split_once(" sec]"))
        .context("fail2ban-regex says how long it took")?
        .0
        .parse()?;
    Ok(f64::from(FAIL2BAN_LINES) / seconds / 1e3)
}
