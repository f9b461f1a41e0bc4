//! `weir-bench ring`: records through weir's ring, and through what else a
//! server could log through, on two cores. All rows of a round are made one
//! after the other, and every one does the same work (`work`): the ratios hold
//! where the machine's own speed wavers.

mod peers;
mod weir;
mod work;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use weir_ring::{Policy, Reader, Writer};

use crate::{ban_latency, report::Report};
use work::{AtWork, Nowhere, Outcome, Sink, Source, Track, race};

/// Bytes of a record.
const LENGTHS: [usize; 3] = [64, 128, 512];
/// The length of the rows about ways of use.
const LINE: usize = 128;

const WEIR: &str = "weir";

#[derive(clap::Args)]
pub struct RingArgs {
    /// Write the rows to this file as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Interleaved rounds a row; the median is shown.
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: usize,
    /// Milliseconds that the writer of a row writes in each round.
    #[arg(long, default_value_t = 500, value_name = "N")]
    millis: u64,
    /// Only rows whose name holds this text; several, separated by commas.
    #[arg(long, default_value = "", value_name = "TEXT")]
    only: String,
    /// The weir binary for the rows with a daemon; beside this one by default.
    #[arg(long, value_name = "FILE")]
    weir: Option<PathBuf>,
}

/// One figure of a case: what of it, unit, value.
type Figure = (&'static str, &'static str, f64);

/// Where threads never sleep, a round in which they waited for their cores for
/// more than this share of the time says what else ran. It is repeated, so
/// often at most.
const DISTURBED: f64 = 0.02;
const AGAIN: usize = 2;

/// What one round of a case has shown.
struct Round {
    figures: Vec<Figure>,
    /// Share of the time for which its threads waited for their cores.
    waited: f64,
}

type Run = Box<dyn Fn(&Track) -> anyhow::Result<Round>>;

/// One way of getting records from one core to the other.
struct Case {
    name: String,
    /// The row that the first figure is divided by.
    ratio_to: Option<String>,
    /// Whether the case's threads sleep, or share a core: they wait for it in any case.
    sleeps: bool,
    run: Run,
}

impl Case {
    fn sleeping(self) -> Self {
        Self {
            sleeps: true,
            ..self
        }
    }
}

/// Runs what was asked for and prints the table.
pub fn run(args: &RingArgs) -> anyhow::Result<()> {
    let track = Track {
        cores: work::cores()?,
        length: Duration::from_millis(args.millis.max(1)),
    };
    // Not on a disk: the file is to be as fast as a file can be.
    let dir = tempfile::Builder::new()
        .prefix("weir-bench-ring-")
        .tempdir_in("/dev/shm")
        .context("a directory in /dev/shm")?;
    let asked = |name: &str| args.only.split(',').any(|text| name.contains(text.trim()));
    let mut cases = cases(dir.path());
    cases.retain(|case| asked(&case.name));
    let delay = asked("delay record to ban, ring");
    anyhow::ensure!(
        delay || !cases.is_empty(),
        "no row's name holds {:?}",
        args.only
    );
    eprintln!(
        "writer on core {}, readers on core {}",
        track.cores[0], track.cores[1]
    );
    let mut rounds: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    let mut figures = vec![Vec::new(); cases.len()];
    let mut repeated = 0;
    for _ in 0..args.rounds.max(1) {
        for (number, case) in cases.iter().enumerate() {
            figures[number] =
                undisturbed(case, &track, &mut repeated).with_context(|| case.name.clone())?;
            for (of, (.., value)) in figures[number].iter().enumerate() {
                rounds.entry((number, of)).or_default().push(*value);
            }
        }
    }
    let mut report = Report::new();
    for (&(number, of), values) in &rounds {
        let case = &cases[number];
        let (what, unit, _) = figures[number][of];
        let name = format!("{}{what}", case.name);
        let base = case.ratio_to.as_ref().filter(|_| of == 0);
        let base = base.and_then(|name| {
            let at = cases.iter().position(|case| case.name == *name)?;
            Some((name.as_str(), rounds.get(&(at, 0))?.as_slice()))
        });
        match base {
            Some(base) => report.add_ratio(&name, unit, values, base),
            None => report.add(&name, unit, values),
        }
    }
    if delay {
        match weir_netlab::missing(&[]) {
            Some(why) => eprintln!("skipped: delay record to ban: {why}"),
            None => ban_latency::ring(&mut report, &crate::weir_binary(args.weir.as_deref())?)?,
        }
    }
    report.attach("cores", &track.cores)?;
    report.attach("repeated", &repeated)?;
    print!("{}", report.table());
    println!(
        "\nWriter on core {}, readers on core {}; each round {} ms; {repeated} were repeated because something \
         else ran. All sums agreed, all losses were counted exactly.",
        track.cores[0], track.cores[1], args.millis
    );
    if let Some(file) = &args.json {
        std::fs::write(file, report.json()?)?;
    }
    Ok(())
}

/// A round of a case, if need be another. Counts those that were not used.
fn undisturbed(case: &Case, track: &Track, repeated: &mut usize) -> anyhow::Result<Vec<Figure>> {
    let mut best = (case.run)(track)?;
    for _ in 0..AGAIN {
        if case.sleeps || best.waited <= DISTURBED {
            break;
        }
        *repeated += 1;
        let other = (case.run)(track)?;
        if other.waited < best.waited {
            best = other;
        }
    }
    Ok(best.figures)
}

fn round(outcome: &Outcome, figures: Vec<Figure>) -> anyhow::Result<Round> {
    Ok(Round {
        figures,
        waited: outcome.waited / outcome.seconds,
    })
}

fn rate(outcome: &Outcome) -> Figure {
    ("", "M records/s", outcome.rate())
}

fn lost(outcome: &Outcome) -> Figure {
    (": lost, all counted", "%", outcome.lost_percent())
}

/// The quantity that a case measures.
#[derive(Clone, Copy)]
enum About {
    /// The rate at which records get through.
    Rate,
    /// What handing one over costs a server that has other work to do, and
    /// readers that keep up with it.
    Cost,
}

impl About {
    fn name(self, of: &str, bytes: usize) -> String {
        match self {
            Self::Rate if of == WEIR => main_row(bytes),
            Self::Rate => format!("{of} {bytes}"),
            Self::Cost => format!("cost to a server: {of} {bytes}"),
        }
    }

    /// A case in which every record must arrive.
    fn case<W: Sink, R: Source>(
        self,
        name: String,
        ratio_to: Option<String>,
        bytes: usize,
        make: impl Fn() -> anyhow::Result<(W, R)> + 'static,
    ) -> Case {
        Case {
            name,
            ratio_to,
            sleeps: false,
            run: Box::new(move |track| {
                let (sink, source) = make()?;
                match self {
                    Self::Rate => {
                        let outcome = race(track, bytes, false, sink, vec![source])?;
                        round(&outcome, vec![rate(&outcome)])
                    }
                    Self::Cost => {
                        let alone = race::<R>(track, bytes, false, AtWork(Nowhere), vec![])?;
                        let logged = race(track, bytes, false, AtWork(sink), vec![source])?;
                        let nanos = logged.nanos_written() - alone.nanos_written();
                        round(&logged, vec![("", "ns/record", nanos)])
                    }
                }
            }),
        }
    }

    /// weir and its peers, one reader each.
    fn cases(self, dir: &Path, bytes: usize) -> Vec<Case> {
        let dir = dir.to_owned();
        let weir = self.name(WEIR, bytes);
        let textbook = self.name("textbook", bytes);
        let peer = |of: &str| (self.name(of, bytes), Some(weir.clone()));
        let (cached, cached_to) = peer("textbook, cached indices");
        let (message, message_to) = peer("atomic per message");
        let (pipe, pipe_to) = peer("pipe");
        let (datagram, datagram_to) = peer("unix datagram");
        let (file, file_to) = peer("file and inotify");
        vec![
            self.case(weir.clone(), Some(textbook.clone()), bytes, patient),
            self.case(textbook, Some(weir.clone()), bytes, move || {
                Ok(peers::textbook(bytes, false))
            }),
            self.case(cached, cached_to, bytes, move || {
                Ok(peers::textbook(bytes, true))
            }),
            self.case(message, message_to, bytes, move || {
                Ok(peers::per_message(bytes))
            }),
            self.case(pipe, pipe_to, bytes, move || peers::pipe(bytes))
                .sleeping(),
            self.case(datagram, datagram_to, bytes, move || peers::datagram(bytes))
                .sleeping(),
            self.case(file, file_to, bytes, move || peers::file(&dir, bytes))
                .sleeping(),
        ]
    }
}

fn cases(dir: &Path) -> Vec<Case> {
    let mut all = vec![Case {
        name: "cache line there and back".to_owned(),
        ratio_to: None,
        sleeps: false,
        run: Box::new(|track| {
            Ok(Round {
                figures: vec![("", "ns", work::round_trip(track)?)],
                waited: 0.0,
            })
        }),
    }];
    for bytes in LENGTHS {
        all.extend(About::Rate.cases(dir, bytes));
        let (name, to) = (format!("limit: whole buffers {bytes}"), main_row(bytes));
        all.push(About::Rate.case(name, Some(to), bytes, || Ok(peers::buffers())));
    }
    all.extend(ways_of_use(dir));
    all.extend(About::Cost.cases(dir, LINE));
    all
}

fn main_row(bytes: usize) -> String {
    format!("weir {bytes} one reader")
}

/// weir's ring otherwise than one patient writer and one reader in batches.
fn ways_of_use(dir: &Path) -> Vec<Case> {
    let against = || Some(main_row(LINE));
    let mut all = vec![
        About::Rate.case(
            format!("weir {LINE} read, not readv"),
            against(),
            LINE,
            move || {
                let (writer, reader) = one(Policy::DropNewest)?;
                Ok((weir::Patient(writer), weir::Single(reader)))
            },
        ),
        Case {
            name: format!("weir {LINE} writev of 64"),
            ratio_to: against(),
            sleeps: false,
            run: Box::new(move |track| {
                let (writer, reader) = one(Policy::DropNewest)?;
                let sink = weir::Vectored::new(writer, LINE);
                let outcome = race(track, LINE, true, sink, vec![weir::Batches(reader)])?;
                let read = outcome.read as f64 / outcome.seconds / 1e6;
                round(&outcome, vec![("", "M records/s", read), lost(&outcome)])
            }),
        },
        Case {
            name: format!("weir {LINE} two readers, one core"),
            ratio_to: against(),
            sleeps: true,
            run: Box::new(|track| {
                let (writer, readers) = weir::segment(Policy::DropNewest, 2)?;
                let readers = readers.into_iter().map(weir::Polite).collect();
                let outcome = race(track, LINE, false, weir::Patient(writer), readers)?;
                round(&outcome, vec![rate(&outcome)])
            }),
        },
        Case {
            name: format!("weir {LINE} overwrite"),
            ratio_to: against(),
            sleeps: false,
            run: Box::new(move |track| {
                let (writer, reader) = one(Policy::OverwriteOldest)?;
                let sink = weir::Hasty(writer);
                let outcome = race(track, LINE, true, sink, vec![weir::Batches(reader)])?;
                round(&outcome, vec![rate(&outcome), lost(&outcome)])
            }),
        },
    ];
    for (policy, word) in [
        (Policy::DropNewest, "drop-newest"),
        (Policy::OverwriteOldest, "overwrite"),
    ] {
        all.push(Case {
            name: format!("weir {LINE} slow reader, {word}, the writer's rate"),
            ratio_to: against(),
            sleeps: false,
            run: Box::new(move |track| {
                let (writer, reader) = one(policy)?;
                let sink = weir::Hasty(writer);
                let outcome = race(track, LINE, true, sink, vec![weir::Slow(reader)])?;
                round(&outcome, vec![rate(&outcome), lost(&outcome)])
            }),
        });
    }
    for (stealing, word) in [(false, "its own"), (true, "stolen")] {
        let home = dir.to_owned();
        all.push(About::Rate.case(
            format!("weir {LINE} 4 segments, {word}"),
            against(),
            LINE,
            move || weir::set(&home, stealing),
        ));
    }
    all
}

/// weir as in its main row: no record is lost.
fn patient() -> anyhow::Result<(weir::Patient, weir::Batches)> {
    let (writer, reader) = one(Policy::DropNewest)?;
    Ok((weir::Patient(writer), weir::Batches(reader)))
}

/// A segment with one reader.
fn one(policy: Policy) -> anyhow::Result<(Writer, Reader)> {
    let (writer, mut readers) = weir::segment(policy, 1)?;
    Ok((writer, readers.pop().context("a reader")?))
}
