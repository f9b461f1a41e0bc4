//! From a log line to a finding by filters of Fail2ban's as its package installs them,
//! and the same file through Fail2ban's own `fail2ban-regex`, which must find as much.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
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
    for name in FILTERS {
        let all = log(name, LINES);
        let few = dir.join(format!("{name}.log"));
        fs::write(&few, log(name, FAIL2BAN_LINES))?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            theirs.push(fail2ban(&few, name)?);
            ours.push(weir(&all, name)?);
        }
        let base = format!("fail2ban {version} line to finding {name}");
        report.add(&base, "k/s", &theirs);
        let target = format!("target line to finding fail2ban {name}");
        report.add_ratio(&target, "k/s", &ours, (&base, &theirs));
    }
    Ok(())
}

/// Failures, each of another address and session, as the program writes them.
fn log(name: &str, lines: u32) -> String {
    let now = Timestamp::now().to_zoned(TimeZone::system());
    let syslog = now.strftime("%b %d %H:%M:%S").to_string();
    let mut text = String::new();
    for n in 0..lines {
        let addr = std::net::Ipv4Addr::from(0x1000_0000 + n);
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
        let clock = Clock {
            now: Timestamp::now(),
            zone: &zone,
        };
        let line = LogLine {
            text: line,
            time: None,
        };
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
