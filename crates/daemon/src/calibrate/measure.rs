//! What each hook and backend costs here, measured between network namespaces
//! that end with the run. Nothing leaves the host. Rounds are interleaved, so
//! that what else the host does meanwhile falls on all alike.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use weir_core::Reason;
use weir_kernel::link::Hook;
use weir_lab::Net;

use super::{
    CalibrateError,
    lane::{Lane, Source},
    stored::{Baseline, Figures, HookFigures, Spread, Tcp},
    stream::Flow,
    subject::{HOOKS, PacketPath, RULES, Rules, refusal},
};

type Result<T> = std::result::Result<T, CalibrateError>;

/// How long to measure.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    quick: bool,
    rounds: usize,
    packets: u32,
    stream: Duration,
}

impl Plan {
    /// Some 25 seconds.
    pub const FULL: Self = Self {
        quick: false,
        rounds: 5,
        packets: 200_000,
        stream: Duration::from_millis(250),
    };
    /// Some 7 seconds, with more noise.
    pub const QUICK: Self = Self {
        quick: true,
        rounds: 3,
        packets: 60_000,
        stream: Duration::from_millis(120),
    };
}

/// Measures every hook, and the other backends beside them. `progress` is told
/// what is going on; once `stop` is set, the run ends within a second and
/// leaves nothing behind.
pub fn measure(plan: &Plan, stop: &AtomicBool, progress: &mut dyn FnMut(&str)) -> Result<Figures> {
    progress("making namespaces and loading the packet path");
    let net = Net::new()?;
    let source = Source::new(plan.packets)?;
    let _ready = source.keep_ready(&net)?;
    let lane = Lane::new(&net, "hooks")?;
    let path = PacketPath::new(&lane)?;
    let hooks = HOOKS.into_iter().map(|hook| {
        let refused = path.attach(&lane.target, hook).err();
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
    let site = Site {
        plan,
        source,
        lane,
        path,
    };
    let mut nothing = Rounds::default();
    for round in 0..=plan.rounds {
        let mut watch = |what: &str| {
            progress(&format!("round {round} of {}: {what}", plan.rounds));
            match stop.load(Ordering::Relaxed) {
                true => Err(CalibrateError::Interrupted),
                false => Ok(()),
            }
        };
        // The first round warms caches and page pools up.
        let forget = |rounds: &mut Rounds| {
            if round == 0 {
                *rounds = Rounds::default();
            }
        };
        watch("no hook")?;
        let alone = site.lane.alone(&site.source)?;
        site.measure(&What::Nothing, round, alone, &mut nothing)?;
        forget(&mut nothing);
        for row in rows.iter_mut().filter(|row| row.refused.is_none()) {
            watch(row.name)?;
            site.measure(&row.what, round, alone, &mut row.rounds)
                .map_err(|error| error.about(row.name))?;
            forget(&mut row.rounds);
        }
    }
    let hooks = rows.into_iter().map(|row| row.figures(&nothing)).collect();
    let baseline = Baseline {
        unwanted_ns: spread(&nothing.unwanted),
        innocent_ns: spread(&nothing.innocent),
        tcp: tcp(&nothing.flow),
    };
    Ok(Figures::new(plan.quick, baseline, hooks))
}

/// What stands in the packets' way.
enum What {
    Nothing,
    Hook(Hook),
    Rules(Box<Rules>),
}

struct Site<'p> {
    plan: &'p Plan,
    source: Source,
    lane: Lane,
    path: PacketPath,
}

impl Site<'_> {
    /// One round of one row.
    fn measure(&self, what: &What, round: usize, alone: Duration, into: &mut Rounds) -> Result<()> {
        let (lane, hook) = match what {
            What::Nothing => (&self.lane, None),
            What::Hook(hook) => (&self.lane, Some(*hook)),
            What::Rules(rules) => (&rules.lane, None),
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
            let _attached = attach(&lane.target)?;
            let before = count(Reason::BannedAll)?;
            into.unwanted.push(lane.unwanted(&self.source, alone)?);
            self.all_counted(before, count(Reason::BannedAll)?)?;
            let before = count(Reason::Pass)?;
            into.innocent.push(lane.innocent(&self.source, alone)?);
            self.all_counted(before, count(Reason::Pass)?)?;
        }
        let _attached = attach(&lane.served)?;
        into.flow.push(lane.stream(round, self.plan.stream)?);
        Ok(())
    }

    /// Was the work done that was measured?
    fn all_counted(&self, before: Option<u64>, after: Option<u64>) -> Result<()> {
        let (Some(before), Some(after)) = (before, after) else {
            return Ok(());
        };
        match self.source.too_few(after - before) {
            Some(why) => Err(CalibrateError::Implausible(why)),
            None => Ok(()),
        }
    }
}

/// What was measured in each round.
#[derive(Default)]
struct Rounds {
    unwanted: Vec<f64>,
    innocent: Vec<f64>,
    flow: Vec<Flow>,
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

    fn figures(self, nothing: &Rounds) -> HookFigures {
        // Round by round: what disturbed one disturbed its neighbour, too.
        let beside = |ours: &[f64], theirs: &[f64], f: fn(f64, f64) -> f64| {
            let pairs = ours.iter().zip(theirs);
            Spread::of(&pairs.map(|(a, b)| f(*a, *b)).collect::<Vec<_>>())
        };
        let (ours, flows) = (&self.rounds, |rounds: &Rounds| -> Vec<f64> {
            rounds.flow.iter().map(Flow::cpu_per_gb).collect()
        });
        HookFigures {
            hook: self.name.to_owned(),
            drop_ns: Spread::of(&ours.unwanted),
            drop_ratio: beside(&ours.unwanted, &nothing.unwanted, |a, b| a / b),
            innocent_ns: beside(&ours.innocent, &nothing.innocent, |a, b| a - b),
            tcp: (!ours.flow.is_empty()).then(|| tcp(&ours.flow)),
            tcp_loss: beside(&flows(ours), &flows(nothing), |a, b| 100.0 * (1.0 - b / a)),
            refused: self.refused,
        }
    }
}

fn spread(rounds: &[f64]) -> Spread {
    Spread::of(rounds).expect("a plan has at least one round")
}

fn tcp(flows: &[Flow]) -> Tcp {
    let of = |f: fn(&Flow) -> f64| spread(&flows.iter().map(f).collect::<Vec<_>>());
    Tcp {
        gbit: of(Flow::gbit),
        cpu_per_gb: of(Flow::cpu_per_gb),
    }
}
