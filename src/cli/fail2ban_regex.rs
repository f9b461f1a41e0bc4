//! `fail2ban-regex`: the front end of that name, which tries a filter of Fail2ban's on a
//! log and says what fits, in the texts that Fail2ban prints. No daemon is asked.

mod filter;
mod format;
mod report;

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs::File,
    io::{self, BufReader, Write},
    net::{IpAddr, ToSocketAddrs},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use jiff::{Timestamp, tz::TimeZone};
use weir_core::{Prefix, detect::MAX_LINE};
use weir_daemon::{escape, fail2ban};
use weir_fail2ban::{
    ENCODINGS, LogEncoding,
    date::Clock,
    matching::{Failure, Filter, IdKind, LogLine, Standing, Told},
};

use super::{complain, show};
use report::Report;

/// The exit code of Fail2ban's tool when it cannot do what it is asked.
const FAILED: u8 = 255;
/// Host names whose addresses are remembered.
const MAX_HOSTS: usize = 1000;

/// Try a filter of Fail2ban's on a log: which lines are failures, and of whom
#[derive(Parser)]
#[command(name = "fail2ban-regex", disable_version_flag = true)]
pub struct Args {
    /// A log file, one line of a log, or systemd-journal[journalpath=DIR]
    #[arg(value_name = "LOG")]
    log: Option<String>,
    /// A filter's name with its options (sshd[mode=aggressive]), its file, or an expression
    #[arg(value_name = "REGEX")]
    regex: Option<String>,
    /// An expression of lines that are no failures
    #[arg(value_name = "IGNOREREGEX")]
    ignoreregex: Option<String>,
    /// The directory with filter.d
    #[arg(short, long, value_name = "DIR", default_value = fail2ban::DEFAULT_PATH)]
    config: PathBuf,
    /// How dates are written, in place of what the filter says
    #[arg(short, long, value_name = "PATTERN")]
    datepattern: Option<String>,
    /// The zone of dates that name none, such as UTC+0200 [default: this host's]
    #[arg(long, visible_alias = "TZ", value_name = "TZ")]
    timezone: Option<String>,
    /// How the log is encoded
    #[arg(short, long, value_name = "ENCODING", default_value = "UTF-8")]
    encoding: String,
    /// Host names are kept as they are
    #[arg(short, long)]
    raw: bool,
    /// yes and warn: look up the addresses of host names; no: addresses only; raw
    #[arg(long, value_name = "WORD", value_parser = ["yes", "warn", "no", "raw"])]
    usedns: Option<String>,
    /// Lines that an expression may reach over, in place of what the filter says
    #[arg(short = 'L', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    maxlines: Option<u16>,
    /// Fields of the journal, in place of the filter's
    #[arg(short = 'm', long, value_name = "MATCH")]
    journalmatch: Option<String>,
    /// Accepted for scripts that ask for more or fewer messages
    #[arg(short, long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    /// Print every expression with what fits it; twice: the filter's options as well
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// The same by a number from 0 to 4
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=4))]
    verbosity: Option<u8>,
    /// The first expression that fits ends the search, as in a jail
    #[arg(long)]
    no_check_all: bool,
    /// Print this of each failure and nothing else: id, ip, msg, row, the name of a group,
    /// or a text with tags such as '<ip> <F-USER>'
    #[arg(short, long, value_name = "FORMAT")]
    out: Option<String>,
    /// Do not print lines that are missed
    #[arg(long, conflicts_with = "print_all_missed")]
    print_no_missed: bool,
    /// Do not print lines that are ignored
    #[arg(long, conflicts_with = "print_all_ignored")]
    print_no_ignored: bool,
    /// Print all lines that are matched
    #[arg(long)]
    print_all_matched: bool,
    /// Print all lines that are missed, no matter how many
    #[arg(long)]
    print_all_missed: bool,
    /// Print all lines that are ignored, no matter how many
    #[arg(long)]
    print_all_ignored: bool,
    /// Accepted for scripts
    #[arg(short = 't', long)]
    log_traceback: bool,
    /// Accepted for scripts
    #[arg(long)]
    full_traceback: bool,
}

/// Was the program called by this front end's name?
pub fn is_called(program: Option<&OsStr>) -> bool {
    let name = program.map(Path::new).and_then(Path::file_name);
    name.is_some_and(|name| name == "fail2ban-regex")
}

/// Does what the command line says, and exits as Fail2ban's tool does.
pub fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(error) if super::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::from(FAILED)
        }
    }
}

impl Args {
    fn verbosity(&self) -> u8 {
        self.verbosity.unwrap_or(self.verbose)
    }

    /// Are host names kept as they are?
    fn keeps_names(&self) -> bool {
        self.raw || self.usedns.as_deref() == Some("raw")
    }
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.version {
        show::line(format!("weir {}", env!("CARGO_PKG_VERSION")))?;
        return Ok(ExitCode::SUCCESS);
    }
    let (Some(log), Some(regex)) = (&args.log, &args.regex) else {
        anyhow::bail!("ERROR: provide both <LOG> and <REGEX>.");
    };
    let encoding = LogEncoding::of(&args.encoding).ok_or_else(|| {
        anyhow::anyhow!(
            "--encoding {}: allowed: {ENCODINGS}",
            escape(&args.encoding)
        )
    })?;
    let zone = match &args.timezone {
        None => TimeZone::system(),
        Some(text) => fail2ban::log_time_zone(text).ok_or_else(|| {
            anyhow::anyhow!("--timezone {text}: allowed: UTC, or with an offset as UTC+0200")
        })?,
    };
    let mut said = Sayer {
        out: io::BufWriter::new(io::stdout().lock()),
        is_quiet: args.out.is_some(),
    };
    said.line("")?;
    said.line("Running tests")?;
    said.line("=============")?;
    said.line("")?;
    let is_journal = log.starts_with("systemd-journal");
    let tried = match filter::read(args, regex, is_journal, &mut said)? {
        Ok(filter) => filter,
        Err(why) => {
            said.out.flush()?;
            // On standard output, as there.
            show::line(format!("ERROR: {}", escape(&why)))?;
            return Ok(ExitCode::from(FAILED));
        }
    };
    let mut run = Run {
        args,
        zone,
        state: tried.filter.trial_state(),
        report: Report::new(args, &tried),
        hosts: HashMap::new(),
        filter: &tried.filter,
        said,
    };
    let path = Path::new(log);
    if path.is_file() {
        run.said
            .line(format!("Use         log file : {}", escape(log)))?;
        run.said
            .line(format!("Use         encoding : {}", args.encoding))?;
        run.said.line("")?;
        run.file(path, encoding)?;
    } else if is_journal {
        run.said.line("Use         systemd journal")?;
        run.said
            .line(format!("Use         encoding : {}", args.encoding))?;
        run.journal(log, &tried.journalmatch)?;
    } else {
        run.text(log, tried.source.maxlines)?;
    }
    run.report.is_journal = is_journal;
    let dates = run.filter.date_hits(&run.state);
    if args.out.is_none() {
        run.report
            .print(&mut run.said.out, &dates, run.state.exhausted())?;
    }
    run.said.out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Prints what is no failure, unless failures alone are wanted.
struct Sayer {
    out: io::BufWriter<io::StdoutLock<'static>>,
    is_quiet: bool,
}

impl Sayer {
    fn line(&mut self, text: impl AsRef<str>) -> io::Result<()> {
        match self.is_quiet {
            true => Ok(()),
            false => writeln!(self.out, "{}", text.as_ref()),
        }
    }
}

/// Somebody's log, line by line.
struct Run<'r> {
    args: &'r Args,
    zone: TimeZone,
    filter: &'r Filter,
    state: weir_fail2ban::matching::TrialState,
    report: Report<'r>,
    /// The addresses of host names that were asked for.
    hosts: HashMap<String, Vec<IpAddr>>,
    said: Sayer,
}

impl Run<'_> {
    fn file(&mut self, path: &Path, mut encoding: LogEncoding) -> anyhow::Result<()> {
        let mut input = BufReader::new(File::open(path)?);
        let mut bytes = Vec::new();
        while encoding.read_line(&mut input, &mut bytes, MAX_LINE)? {
            let text = encoding.decode(&bytes).into_owned();
            if bytes.len() >= MAX_LINE {
                // As the daemon does: its end is where its writer wanted it.
                self.report.missed(text.trim_end_matches(['\r', '\n']));
                continue;
            }
            self.line(text.trim_end_matches(['\r', '\n']))?;
        }
        Ok(())
    }

    fn text(&mut self, log: &str, maxlines: usize) -> anyhow::Result<()> {
        if maxlines <= 1 && !log.contains('\n') {
            let shown = format!("Use      single line : {}", escape(&filter::short(log)));
            self.said.line(shown)?;
        } else {
            let lines: Vec<_> = log.split('\n').collect();
            let count = lines.len();
            self.said
                .line(format!("Use      multi line : {count} line(s)"))?;
            for (number, line) in lines.iter().enumerate() {
                if number >= 5 {
                    self.said.line("| ...")?;
                    break;
                }
                let shown = escape(&filter::short(line));
                self.said.line(format!("| {:2}: {shown}", number + 1))?;
            }
            self.said.line("`-")?;
        }
        self.said.line("")?;
        for line in log.split('\n') {
            self.line(line.trim_end_matches('\r'))?;
        }
        Ok(())
    }

    /// Entries of the journal, as Fail2ban formats them.
    fn journal(&mut self, log: &str, matches: &[Vec<String>]) -> anyhow::Result<()> {
        let (_, options) = weir_fail2ban::named(log).map_err(anyhow::Error::msg)?;
        let mut path = None;
        for (key, value) in options {
            match key.as_str() {
                "journalpath" | "journalfiles" => path = Some(PathBuf::from(value)),
                // Which journals are read is the host's.
                "journalflags" | "rotated" => {}
                _ => anyhow::bail!(
                    "systemd-journal[{key}]: allowed: journalpath, journalfiles, journalflags, rotated"
                ),
            }
        }
        if !matches.is_empty() {
            let sets: Vec<_> = matches.iter().map(|set| set.join(" ")).collect();
            let sets = escape(&sets.join(" + "));
            self.said.line(format!("Use    journal match : {sets}"))?;
        }
        self.said.line("")?;
        let mut result = Ok(());
        fail2ban::read_journal(path, matches, &mut |text, time| {
            if result.is_ok() {
                result = self.entry(text, time);
            }
        })?;
        result
    }

    fn line(&mut self, text: &str) -> anyhow::Result<()> {
        // Comments of whoever keeps a file of examples.
        if text.is_empty() || text.starts_with('#') {
            return Ok(());
        }
        self.read(text, None, text)
    }

    fn entry(&mut self, text: &str, time: Timestamp) -> anyhow::Result<()> {
        let zoned = time.to_zoned(self.zone.clone());
        let shown = format!("{} {text}", zoned.strftime("%Y-%m-%dT%H:%M:%S%.6f"));
        self.read(text, Some(time), &shown)
    }

    fn read(&mut self, text: &str, time: Option<Timestamp>, shown: &str) -> anyhow::Result<()> {
        let now = Timestamp::now();
        let clock = Clock {
            now,
            zone: &self.zone,
        };
        let line = LogLine { text, time };
        let all = !self.args.no_check_all && self.args.out.is_none();
        let trial = self.filter.try_line(&mut self.state, line, clock, all);
        if let Some(out) = &self.args.out {
            let failed = (trial.told.iter()).filter(|told| told.standing == Standing::Failed);
            for told in failed {
                for id in identify(self.args, &mut self.hosts, &told.failure) {
                    let groups = self.filter.group_names(told.failure.regex);
                    format::print(&mut self.said.out, out, &told.failure, &id, &groups)?;
                }
            }
            return Ok(());
        }
        let mut found = Vec::new();
        for Told { failure, standing } in trial.told {
            let ids = match standing {
                _ if failure.id.is_empty() => vec![None],
                _ => {
                    let ids = identify(self.args, &mut self.hosts, &failure);
                    ids.into_iter().map(Some).collect()
                }
            };
            let time = failure.time.unwrap_or(now);
            found.extend(ids.into_iter().map(|id| report::Found {
                regex: failure.regex,
                id,
                time,
                is_nofail: standing == Standing::NoFail,
            }));
        }
        let used = trial.used.iter().map(|line| line.text.as_str()).collect();
        self.report
            .count(shown, trial.prefix, &trial.ignored, found, used);
        Ok(())
    }
}

/// The addresses that a failure is counted by: one, or the addresses of a host's name.
fn identify(
    args: &Args,
    hosts: &mut HashMap<String, Vec<IpAddr>>,
    failure: &Failure,
) -> Vec<String> {
    if failure.kind != IdKind::Dns || args.keeps_names() {
        let id = match (failure.id.parse::<IpAddr>(), failure.prefix_length) {
            (Ok(address), Some(length)) => match Prefix::new(address, length) {
                Some(prefix) => prefix.to_string(),
                None => address.to_string(),
            },
            (Ok(address), None) => address.to_string(),
            (Err(_), _) => failure.id.clone(),
        };
        return vec![id];
    }
    if args.usedns.as_deref() == Some("no") {
        return Vec::new();
    }
    if hosts.len() >= MAX_HOSTS {
        hosts.clear();
    }
    let known = hosts.entry(failure.id.clone()).or_insert_with(|| {
        let addresses = (failure.id.as_str(), 0).to_socket_addrs();
        let mut addresses: Vec<_> = addresses.into_iter().flatten().map(|a| a.ip()).collect();
        addresses.sort();
        addresses.dedup();
        addresses
    });
    known.iter().map(IpAddr::to_string).collect()
}
