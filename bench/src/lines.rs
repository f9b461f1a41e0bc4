//! From a log line to a finding, on one core: lines as OpenSSH and syslog
//! write them, from a file and from a ring, with the ledger and without; then the same
//! by filters of Fail2ban's, where its package is installed.

use std::{
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::ensure;
use jiff::{Timestamp, tz::TimeZone};
use weir_core::{
    Action, PortSet, PrefixSet,
    detect::{Age, Context, Finding, Program, ProgramState, Record},
    policy::{Accusation, Jail, JailLimits, Ledger, MAX_RETRY, Outcome},
};
use weir_ring::{Options, Writer};
use weir_sources::{FileConfig, FileSource, Ring, RingConfig, Source, Start};

use crate::{fail2ban_lines, report::Report};

const LINES: u32 = 1 << 20;
const ADDRESSES: [(u32, &str); 2] = [(1 << 17, "131k"), (1 << 20, "1M")];
/// A prime: visits each address once before it comes back to the first.
const STRIDE: u32 = 611_953;
/// Findings that are counted at once: as in the daemon.
const MANY: usize = 512;
/// For what the other side of a ring has to do.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub struct LinesArgs {
    /// Write the rows to this file as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Interleaved rounds a row; the median is shown.
    #[arg(long, default_value_t = 7, value_name = "N")]
    rounds: usize,
}

/// All rows. Lines in both stamps' forms by turns, half of them IPv6.
pub fn run(args: &LinesArgs) -> anyhow::Result<()> {
    let mut report = Report::new();
    let dir = tempfile::tempdir()?;
    for (addresses, size) in ADDRESSES {
        let text = log(addresses)?;
        let file = dir.path().join(format!("auth-{size}.log"));
        std::fs::write(&file, &text)?;
        let mut rates: [Vec<f64>; 4] = Default::default();
        for _ in 0..args.rounds.max(1) {
            rates[0].push(from_file(&file, |record| u32::from(record.is_some()))?);
            rates[1].push(from_file(&file, {
                let mut find = finder();
                move |record| u32::from(record.and_then(&mut find).is_some())
            })?);
            rates[2].push(from_file(&file, counter(addresses))?);
            rates[3].push(from_ring(&text, counter(addresses))?);
        }
        let limit = format!("line read from a file {size} addresses");
        report.add(&limit, "M/s", &rates[0]);
        for (what, values) in [
            ("line to finding file", &rates[1]),
            ("line to ledger file", &rates[2]),
            ("line to ledger ring", &rates[3]),
        ] {
            let name = format!("target {what} {size} addresses");
            report.add_ratio(&name, "M/s", values, (&limit, &rates[0]));
        }
    }
    fail2ban_lines::add_rows(&mut report, dir.path(), args.rounds.max(1))?;
    report.finish(args.json.as_deref())
}

fn address(n: u32, of: u32) -> IpAddr {
    let n = (u64::from(n) * u64::from(STRIDE) % u64::from(of)) as u32;
    if n.is_multiple_of(2) {
        Ipv4Addr::from(0x1000_0000 + n).into()
    } else {
        // Each its own /64, which is what is counted.
        Ipv6Addr::from(0x2a00_u128 << 112 | u128::from(n) << 64 | 1).into()
    }
}

/// What syslog writes of so many failed logins.
fn log(addresses: u32) -> anyhow::Result<String> {
    let now = Timestamp::now().to_zoned(TimeZone::UTC);
    let stamps = [
        now.strftime("%Y-%m-%dT%H:%M:%S.%6f+00:00").to_string(),
        now.strftime("%b %e %H:%M:%S").to_string(),
    ];
    let mut text = String::new();
    for n in 0..LINES {
        let stamp = &stamps[(n / 2 % 2) as usize];
        let (addr, port) = (address(n, addresses), 1024 + n % 60_000);
        writeln!(
            text,
            "{stamp} host sshd[{pid}]: Failed password for invalid user u{n} from {addr} port {port} ssh2",
            pid = 1000 + n % 4000,
        )?;
    }
    Ok(text)
}

/// The sshd filter, and what it needs to know of the world.
fn finder() -> impl FnMut(&Record<'_>) -> Option<Finding> {
    let filter = Program::builtin("sshd").expect("it is built in");
    let mut state = ProgramState::default();
    let (now, zone) = (Timestamp::now(), TimeZone::UTC);
    move |record| {
        let context = Context { now, zone: &zone };
        filter.read(&mut state, record, &context)
    }
}

/// The same, counted in a ledger that has room for everybody, many at a time as
/// the daemon does.
fn counter(addresses: u32) -> impl FnMut(Option<&Record<'_>>) -> u32 {
    let ledger = Ledger::new(vec![Jail {
        name: "sshd".into(),
        limits: JailLimits {
            max_retry: MAX_RETRY,
            max_tracked: 2 * addresses as usize,
            ..JailLimits::default()
        },
        scope: PortSet::all(),
        action: Action::Drop,
        ignore: PrefixSet::default(),
        names_prefixes: false,
    }]);
    let mut find = finder();
    let now = Timestamp::now();
    let (mut found, mut lines) = (Vec::with_capacity(MANY), Vec::new());
    move |record| {
        if let Some(record) = record {
            if let Some(finding) = find(record) {
                let begin = lines.len();
                lines.extend_from_slice(record.line);
                found.push((finding, begin..lines.len()));
            }
            if found.len() < MANY {
                return 0;
            }
        }
        let accusations = found
            .iter()
            .map(|(finding, line)| Accusation::new(0, finding, &lines[line.clone()]));
        let outcomes = ledger.record_batch(&accusations.collect::<Vec<_>>(), now);
        found.clear();
        lines.clear();
        let counted = |outcome: &&Outcome| matches!(outcome, Outcome::Counted { .. });
        outcomes.iter().filter(counted).count() as u32
    }
}

/// Million lines a second. `judge` is given each line, and nothing at the end of a
/// batch, and says how many it has taken for failures: all of them, in the end.
fn rate(
    source: &mut dyn Source,
    mut judge: impl FnMut(Option<&Record<'_>>) -> u32,
) -> anyhow::Result<f64> {
    let (mut good, mut seen) = (0, 0);
    let start = Instant::now();
    while seen < LINES {
        let info = source.read_batch(PATIENCE, &mut |line, origin| {
            good += judge(Some(&origin.record(line)));
            seen += 1;
        })?;
        good += judge(None);
        ensure!(info.lines > 0, "only {seen} of {LINES} lines came");
    }
    let rate = f64::from(LINES) / start.elapsed().as_secs_f64() / 1e6;
    ensure!(good == LINES, "{good} of {LINES} lines were failures");
    Ok(rate)
}

fn from_file(file: &Path, judge: impl FnMut(Option<&Record<'_>>) -> u32) -> anyhow::Result<f64> {
    let mut source = FileSource::open(FileConfig {
        subscriptions: vec![vec![file.display().to_string()]],
        from: Start::Beginning,
        held: Age::Unknown,
    })?;
    rate(&mut source, judge)
}

/// A server's thread fills the ring as fast as it is read, on the other core.
fn from_ring(text: &str, judge: impl FnMut(Option<&Record<'_>>) -> u32) -> anyhow::Result<f64> {
    let dir = tempfile::Builder::new()
        .prefix("weir-bench-")
        .tempdir_in("/dev/shm")?;
    let mut writer = Writer::create(dir.path().join("0"), &Options::new())?;
    let ring = Ring::new(RingConfig {
        directory: dir.path().into(),
        reader: "bench".into(),
        owner: None,
        workers: 1,
        max_memory: 1 << 30,
    });
    let mut source = ring.source(0)?;
    thread::scope(|scope| {
        let filling = scope.spawn(move || {
            text.lines()
                .try_for_each(|line| writer.write_patiently(0, line.as_bytes(), PATIENCE))
        });
        let rate = rate(&mut source, judge)?;
        filling
            .join()
            .expect("writing does not panic")
            .map_err(|refused| anyhow::anyhow!("the ring refused a line: {refused}"))?;
        Ok(rate)
    })
}
