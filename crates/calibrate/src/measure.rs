//! What each hook and backend costs here, measured between network namespaces
//! that end with the run. Nothing leaves the host. Rounds are short, many and
//! interleaved (none, A, B, C, none, A, B, C …), and each figure is compared
//! with that of its own round without a hook: what else the host does meanwhile
//! falls on all alike.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use weir_bpf::attachment::Hook;
use weir_core::Reason;
use weir_netlab::Net;

use super::{
    CalibrateError,
    confidence::Spread,
    host::Spent,
    result_file::{Baseline, Figures, HookFigures, Run},
    target::{HOOKS, PacketPath, RULES, Rules, refusal},
    testbed::{Families, PACKETS, Source, Testbed},
};

type Result<T> = std::result::Result<T, CalibrateError>;

/// The time for measuring, preparations included.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Rounds go on until every hook's figures have settled, but not longer. A
    /// plan too short for [`Plan::LEAST_LATE`] rounds takes what they need.
    pub time: Duration,
}

impl Plan {
    /// As long as it takes on a host that is busy with other things.
    pub const FULL: Self = Self {
        time: Duration::from_secs(45),
    };
    /// A short plan, with more noise in its figures.
    pub const QUICK: Self = Self {
        time: Duration::from_secs(12),
    };
    /// Rounds before figures may have settled.
    const LEAST: usize = 5;
    /// Rounds in any case, on a host that gives hardly any processor time.
    const LEAST_LATE: usize = 3;
}

/// A drop cost has settled once its bounds are no further apart than this share
/// of it, or than this share of what the packet costs without a hook.
const DROP_SETTLED: [f64; 2] = [0.10, 0.03];
/// A cost to TCP has settled once its bounds are no further apart, percent.
const TCP_SETTLED: f64 = 6.0;

/// Measures every hook, and the other backends beside them. `progress` is told
/// what is going on; once `stop` is set, the run ends within a second and
/// leaves nothing behind.
pub fn measure(plan: &Plan, stop: &AtomicBool, progress: &mut dyn FnMut(&str)) -> Result<Figures> {
    let (begun, company) = (Instant::now(), Spent::now());
    progress("making namespaces and loading the packet path");
    let net = Net::new()?;
    let source = Source::new()?;
    let _ready = source.keep_ready(&net)?;
    let testbed = Testbed::new(&net, "hooks")?;
    let path = PacketPath::new(&testbed)?;
    let hooks = HOOKS.into_iter().map(|hook| {
        let refused = path.attach(&testbed.target, hook).err();
        Row::new(
            hook.name(),
            refused.map(|e| refusal(hook, &e)),
            What::Hook(hook),
        )
    });
    let mut rows: Vec<Row> = hooks.collect();
    for choice in RULES {
        if stop.load(Ordering::Relaxed) {
            return Err(CalibrateError::Interrupted);
        }
        // What cannot be had is reported; the run goes on.
        rows.push(match Rules::new(&net, choice) {
            Ok(rules) => Row::new(choice.name(), None, What::Rules(Box::new(rules))),
            Err(error) => Row::new(choice.name(), Some(error.to_string()), What::Nothing),
        });
    }
    let net = TestNet {
        source,
        testbed,
        path,
    };
    let mut nothing = Rounds::default();
    // The first round warms caches and page pools up.
    net.round(0, &mut rows, &mut nothing, stop)?;
    nothing = Rounds::default();
    rows.iter_mut()
        .for_each(|row| row.rounds = Rounds::default());

    let first = Instant::now();
    let settled = loop {
        let rounds = nothing.gbit.len();
        let unsettled = rows.iter().filter(|row| !row.has_settled(&nothing));
        let names: Vec<_> = unsettled.map(|row| row.name).collect();
        if rounds >= Plan::LEAST && names.is_empty() {
            break true;
        }
        // A round takes as long as those before it.
        let another = first.elapsed().div_f64(rounds.max(1) as f64);
        if rounds >= Plan::LEAST_LATE && begun.elapsed() + another > plan.time {
            break false;
        }
        let mut what = format!(
            "round {}, {} of {} s",
            rounds + 1,
            begun.elapsed().as_secs(),
            plan.time.as_secs()
        );
        if rounds >= Plan::LEAST {
            what += &format!(": {} not sure yet", names.join(", "));
        }
        progress(&what);
        net.round(rounds + 1, &mut rows, &mut nothing, stop)?;
    };
    let run = Run {
        rounds: nothing.gbit.len(),
        seconds: begun.elapsed().as_secs(),
        settled,
        company: Spent::now().since(&company),
    };
    let hooks = rows.into_iter().map(|row| row.figures(&nothing)).collect();
    Ok(Figures::new(run, nothing.baseline(), hooks))
}

/// The hook or rules in the packets' way.
enum What {
    Nothing,
    Hook(Hook),
    Rules(Box<Rules>),
}

struct TestNet {
    source: Source,
    testbed: Testbed,
    path: PacketPath,
}

impl TestNet {
    fn round(
        &self,
        round: usize,
        rows: &mut [Row],
        nothing: &mut Rounds,
        stop: &AtomicBool,
    ) -> Result<()> {
        let number = u32::try_from(round).unwrap_or(0);
        let watch = || match stop.load(Ordering::Relaxed) {
            true => Err(CalibrateError::Interrupted),
            false => Ok(()),
        };
        watch()?;
        let alone = self.testbed.alone(&self.source, number)?;
        self.measure(&What::Nothing, number, alone, nothing)?;
        for row in rows.iter_mut().filter(|row| row.refused.is_none()) {
            watch()?;
            self.measure(&row.what, number, alone, &mut row.rounds)
                .map_err(|error| error.about(row.name))?;
        }
        Ok(())
    }

    /// Measures one row in one round.
    fn measure(
        &self,
        what: &What,
        round: u32,
        alone: Families<Duration>,
        into: &mut Rounds,
    ) -> Result<()> {
        let (testbed, hook) = match what {
            What::Nothing => (&self.testbed, None),
            What::Hook(hook) => (&self.testbed, Some(*hook)),
            What::Rules(rules) => (&rules.testbed, None),
        };
        let count = |reason| match what {
            What::Nothing => Ok(None),
            What::Hook(_) => self.path.count(reason).map(Some),
            // What passes by rules is nobody's to count.
            What::Rules(_) if reason == Reason::Pass => Ok(None),
            What::Rules(rules) => rules.count(reason).map(Some),
        };
        let attach = |place| {
            hook.map(|hook| self.path.attach(place, hook))
                .transpose()
                .map_err(CalibrateError::system("attach again"))
        };
        {
            let _attached = attach(&testbed.target)?;
            let before = count(Reason::BannedAll)?;
            let unwanted = testbed.unwanted(&self.source, round, alone)?;
            into.unwanted.push(unwanted);
            all_counted(before, count(Reason::BannedAll)?)?;
            let before = count(Reason::Pass)?;
            let innocent = testbed.innocent(&self.source, round, alone)?;
            into.innocent.push(innocent);
            all_counted(before, count(Reason::Pass)?)?;
        }
        let _attached = attach(&testbed.served)?;
        into.gbit.push(testbed.stream()?);
        Ok(())
    }
}

/// Was the work done that was measured?
fn all_counted(before: Option<u64>, after: Option<u64>) -> Result<()> {
    let (Some(before), Some(after)) = (before, after) else {
        return Ok(());
    };
    let (counted, sent) = (after - before, u64::from(2 * PACKETS));
    if counted * 100 < sent * 99 {
        let why = format!("only {counted} of {sent} packets were counted");
        return Err(CalibrateError::Implausible(why));
    }
    Ok(())
}

/// Figures of each round.
#[derive(Default)]
struct Rounds {
    unwanted: Vec<Families<f64>>,
    innocent: Vec<Families<f64>>,
    /// TCP that a core carries.
    gbit: Vec<f64>,
}

/// The mean of both families, which weigh alike.
fn both(of: &Families<f64>) -> f64 {
    (of[0] + of[1]) / 2.0
}

/// A spread over rounds of which there is at least one.
fn spread<T>(rounds: &[T], of: impl Fn(&T) -> f64) -> Spread {
    Spread::of(&rounds.iter().map(of).collect::<Vec<_>>()).expect("there was a round")
}

/// Round by round: what disturbed one disturbed its neighbour, too.
fn beside<T>(ours: &[T], theirs: &[T], of: impl Fn(&T, &T) -> f64) -> Option<Spread> {
    let pairs = ours.iter().zip(theirs);
    Spread::of(&pairs.map(|(a, b)| of(a, b)).collect::<Vec<_>>())
}

impl Rounds {
    fn drop_ratio(&self, nothing: &Self) -> Option<Spread> {
        beside(&self.unwanted, &nothing.unwanted, |a, b| both(a) / both(b))
    }

    fn tcp_loss(&self, nothing: &Self) -> Option<Spread> {
        beside(&self.gbit, &nothing.gbit, |a, b| 100.0 * (1.0 - a / b))
    }

    fn baseline(&self) -> Baseline {
        Baseline {
            unwanted_ns: spread(&self.unwanted, both),
            unwanted_ns_ipv4: spread(&self.unwanted, |ns| ns[0]),
            unwanted_ns_ipv6: spread(&self.unwanted, |ns| ns[1]),
            innocent_ns: spread(&self.innocent, both),
            tcp_gbit: spread(&self.gbit, |gbit| *gbit),
        }
    }
}

struct Row {
    name: &'static str,
    what: What,
    refused: Option<String>,
    rounds: Rounds,
}

impl Row {
    fn new(name: &'static str, refused: Option<String>, what: What) -> Self {
        Self {
            name,
            what,
            refused,
            rounds: Rounds::default(),
        }
    }

    /// Would more rounds tell anything that matters to the choice?
    fn has_settled(&self, nothing: &Rounds) -> bool {
        if self.refused.is_some() || matches!(self.what, What::Rules(_)) {
            return true;
        }
        let [of_it, of_none] = DROP_SETTLED;
        let drops = self.rounds.drop_ratio(nothing);
        let loss = self.rounds.tcp_loss(nothing);
        drops.is_some_and(|ratio| ratio.width() <= of_none.max(of_it * ratio.median))
            && loss.is_some_and(|loss| loss.width() <= TCP_SETTLED)
    }

    fn figures(self, nothing: &Rounds) -> HookFigures {
        let ours = &self.rounds;
        let measured = !ours.gbit.is_empty();
        HookFigures {
            hook: self.name.to_owned(),
            drop_ns: measured.then(|| spread(&ours.unwanted, both)),
            drop_ns_ipv4: measured.then(|| spread(&ours.unwanted, |ns| ns[0])),
            drop_ns_ipv6: measured.then(|| spread(&ours.unwanted, |ns| ns[1])),
            drop_ratio: ours.drop_ratio(nothing),
            innocent_ns: beside(&ours.innocent, &nothing.innocent, |a, b| both(a) - both(b)),
            tcp_gbit: measured.then(|| spread(&ours.gbit, |gbit| *gbit)),
            tcp_loss: ours.tcp_loss(nothing),
            refused: self.refused,
        }
    }
}
