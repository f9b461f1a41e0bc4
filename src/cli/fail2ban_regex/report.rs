//! What was found, counted, and printed in the texts of Fail2ban's tool.

use std::{
    io::{self, Write},
    time::Instant,
};

use jiff::{Timestamp, tz::TimeZone};
use weir_daemon::escape;
use weir_fail2ban::{UseDns, regex::expand};

use super::{Args, filter::Tried, format::quoted};

/// The most matches and lines of one kind that are remembered: they are printed at the end.
const MAX_KEPT: usize = 1_000_000;
/// Lines of a kind that are printed unless all are wanted.
const USUAL_LINES: usize = 20;

/// An expression that fits a line.
pub struct Found {
    pub regex: usize,
    /// The name that the failure is counted by; `None`: nobody is named yet.
    pub id: Option<String>,
    pub time: Timestamp,
    /// Whether the line is no failure by itself (`<F-NOFAIL>`).
    pub is_nofail: bool,
}

/// One expression of the filter with what has fitted it.
struct Counted {
    text: String,
    hits: u64,
    /// Who, when, and whether more than one expression fits the line.
    found: Vec<(Option<String>, Timestamp, bool)>,
}

/// Lines of one kind.
#[derive(Default)]
struct Lines {
    count: u64,
    kept: Vec<String>,
}

/// All counts of a run.
pub struct Report<'r> {
    args: &'r Args,
    prefregex: Option<String>,
    prefix_hits: u64,
    prefix_groups: Vec<String>,
    failregex: Vec<Counted>,
    ignoreregex: Vec<Counted>,
    tested: u64,
    matched: Lines,
    ignored: Lines,
    missed: Lines,
    /// Lines of a kind that are shown.
    shown: usize,
    began: Instant,
    /// Dates are not looked for.
    pub is_journal: bool,
}

impl<'r> Report<'r> {
    pub fn new(args: &'r Args, tried: &Tried) -> Self {
        let counted = |patterns: &[weir_fail2ban::Pattern]| {
            let of = |pattern: &weir_fail2ban::Pattern| Counted {
                text: pattern.text.clone(),
                hits: 0,
                found: Vec::new(),
            };
            patterns.iter().map(of).collect()
        };
        let source = &tried.source;
        let names = source.usedns != Some(UseDns::No);
        Self {
            args,
            prefregex: source
                .prefregex
                .as_ref()
                .map(|pattern| expand(&pattern.text, names)),
            prefix_hits: 0,
            prefix_groups: Vec::new(),
            failregex: counted(&source.failregex),
            ignoreregex: counted(&source.ignoreregex),
            tested: 0,
            matched: Lines::default(),
            ignored: Lines::default(),
            missed: Lines::default(),
            shown: args.maxlines.map_or(USUAL_LINES, usize::from),
            began: Instant::now(),
            is_journal: false,
        }
    }

    /// Counts one line. `used`: lines before it that its match is of as well.
    pub fn count(
        &mut self,
        line: &str,
        prefix: Option<Vec<(String, Option<String>)>>,
        ignored: &[usize],
        found: Vec<Found>,
        used: Vec<&str>,
    ) {
        let args = self.args;
        for number in ignored {
            self.ignoreregex[*number].hits += 1;
        }
        let mut is_ignored = !ignored.is_empty();
        let mut failures = 0;
        for one in found {
            let counted = &mut self.failregex[one.regex];
            counted.hits += 1;
            if args.verbosity() > 0 && counted.found.len() < MAX_KEPT {
                counted.found.push((one.id, one.time, failures > 1));
            }
            match one.is_nofail {
                true => is_ignored = true,
                false => failures += 1,
            }
        }
        if let Some(groups) = prefix {
            self.prefix_hits += 1;
            if args.verbosity() > 0 && self.prefix_groups.len() <= self.shown {
                self.prefix_groups
                    .push(match self.prefix_groups.len() < self.shown {
                        true => dictionary(&groups),
                        false => "...".to_owned(),
                    });
            }
        }
        for before in used {
            if let Some(at) = self.missed.kept.iter().position(|line| line == before) {
                self.missed.kept.remove(at);
            }
            if args.print_all_matched {
                self.matched.keep(before);
            }
            self.matched.count += 1;
            self.missed.count = self.missed.count.saturating_sub(1);
        }
        self.tested += 1;
        if is_ignored {
            let all = args.print_all_ignored;
            let shown = (!args.print_no_ignored).then_some(self.shown);
            self.ignored.add(line, all, shown);
        } else if failures > 0 {
            self.matched.count += 1;
            if args.print_all_matched {
                self.matched.keep(line);
            }
        } else {
            self.missed_line(line);
        }
    }

    /// Counts a line that was not read.
    pub fn missed(&mut self, line: &str) {
        self.tested += 1;
        self.missed_line(line);
    }

    fn missed_line(&mut self, line: &str) {
        let shown = (!self.args.print_no_missed).then_some(self.shown);
        self.missed.add(line, self.args.print_all_missed, shown);
    }

    /// Prints all of it. `dates`: the forms of dates with their hits.
    pub fn print(
        &self,
        out: &mut impl Write,
        dates: &[(String, u32)],
        exhausted: u64,
    ) -> io::Result<()> {
        let args = self.args;
        writeln!(out, "\nResults\n=======")?;
        if let Some(text) = &self.prefregex {
            writeln!(out, "\nPrefregex: {} total", self.prefix_hits)?;
            let groups = self
                .prefix_groups
                .iter()
                .map(|group| format!("    {group}"));
            list(out, None, std::iter::once(escape(text)).chain(groups))?;
        }
        self.expressions(out, "Failregex", &self.failregex)?;
        self.expressions(out, "Ignoreregex", &self.ignoreregex)?;
        if !self.is_journal {
            writeln!(out, "\nDate template hits:")?;
            let dates = dates.iter();
            let hit = dates.filter(|(_, hits)| *hits > 0 || args.verbosity() > 0);
            let lines = hit.map(|(name, hits)| format!("[{hits}] {name}"));
            list(out, Some("[# of hits] date format"), lines)?;
        }
        let (ignored, matched, missed) =
            (self.ignored.count, self.matched.count, self.missed.count);
        writeln!(
            out,
            "\nLines: {} lines, {ignored} ignored, {matched} matched, {missed} missed",
            self.tested
        )?;
        let seconds = self.began.elapsed().as_secs_f64();
        writeln!(out, "[processed in {seconds:.2} sec]")?;
        if exhausted > 0 {
            writeln!(
                out,
                "[{exhausted} searches were given up: they would take too long]"
            )?;
        }
        writeln!(out)?;
        if args.print_all_matched {
            self.lines(out, "Matched", &self.matched, true)?;
        }
        if !args.print_no_ignored {
            self.lines(out, "Ignored", &self.ignored, args.print_all_ignored)?;
        }
        if !args.print_no_missed {
            self.lines(out, "Missed", &self.missed, args.print_all_missed)?;
        }
        Ok(())
    }

    fn expressions(&self, out: &mut impl Write, title: &str, all: &[Counted]) -> io::Result<()> {
        let is_verbose = self.args.verbosity() > 0;
        let total: u64 = all.iter().map(|one| one.hits).sum();
        writeln!(out, "\n{title}: {total} total")?;
        let mut lines = Vec::new();
        for (number, one) in all.iter().enumerate() {
            if one.hits == 0 && !is_verbose {
                continue;
            }
            let text = escape(&one.text);
            lines.push(format!("{:2}) [{}] {text}", number + 1, one.hits));
            for (id, time, is_multiple) in &one.found {
                let id = id.as_deref().map_or("None".to_owned(), escape);
                let time = time.to_zoned(TimeZone::system());
                let more = match is_multiple {
                    true => " (multiple regex matched)",
                    false => "",
                };
                let at = time.strftime("%a %b %d %H:%M:%S");
                lines.push(format!("    {id}  {at} {}{more}", time.year()));
            }
        }
        let header = " #) [# of hits] regular expression";
        list(out, Some(header), lines.into_iter())
    }

    fn lines(&self, out: &mut impl Write, kind: &str, lines: &Lines, all: bool) -> io::Result<()> {
        let header = format!("{kind} line(s):");
        if lines.count == 0 {
            return Ok(());
        }
        if !all && lines.count >= self.shown as u64 {
            let word = kind.to_lowercase();
            return writeln!(
                out,
                "{header} too many to print.  Use --print-all-{word} to print all {} lines",
                lines.count
            );
        }
        let kept = lines.kept.iter().map(|line| shown(line.trim_end()));
        list(out, Some(&header), kept)
    }
}

impl Lines {
    /// Counts a line and keeps it, if all are wanted or it is one of the first `shown`.
    fn add(&mut self, line: &str, all: bool, shown: Option<usize>) {
        self.count += 1;
        if let Some(shown) = shown
            && (all || self.count <= shown as u64 + 1)
        {
            self.keep(line);
        }
    }

    fn keep(&mut self, line: &str) {
        if self.kept.len() < MAX_KEPT {
            self.kept.push(line.to_owned());
        }
    }
}

/// A line fit for a terminal; what stands between columns stays.
fn shown(line: &str) -> String {
    let parts: Vec<_> = line.split('\t').map(escape).collect();
    parts.join("\t")
}

/// Lines below a header; nothing at all if there are none.
fn list(
    out: &mut impl Write,
    header: Option<&str>,
    lines: impl Iterator<Item = String>,
) -> io::Result<()> {
    let mut lines = lines.peekable();
    if lines.peek().is_none() {
        return Ok(());
    }
    if let Some(header) = header {
        writeln!(out, "|- {header}")?;
    }
    for line in lines {
        writeln!(out, "|  {line}")?;
    }
    writeln!(out, "`-")
}

fn dictionary(groups: &[(String, Option<String>)]) -> String {
    let pairs: Vec<_> = (groups.iter())
        .map(|(name, value)| {
            let value = value.as_deref().map_or("None".to_owned(), quoted);
            format!("{}: {value}", quoted(name))
        })
        .collect();
    format!("{{{}}}", pairs.join(", "))
}
