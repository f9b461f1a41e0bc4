//! What `auto` knows of the hooks' costs on this host, and the choice that
//! follows from it: a pure function from figures and a preference to an order
//! of hooks and its reason. Measuring, storing and reading the figures is
//! `weir-calibrate`'s; whether a hook attaches shows when it is tried.

use std::time::Duration;

use weir_bpf::{attachment::Hook, device::Device};

/// The share of good TCP throughput, in percent, that a hook may cost and
/// still be taken for cheaper drops.
pub const TRAFFIC_LIMIT: u8 = 10;
/// Drop costs within this many percent of the least are the same, however sure
/// the figures are: the choice does not change from run to run.
const SAME_DROP: u32 = 10;

/// Between equals, and why it goes before those behind it. What drops later sees
/// less, and what is alone at its hook leaves no room.
const RANK: [(Hook, &str); 5] = [
    (Hook::Tcx, "it leaves room for other programs"),
    (Hook::ClsBpf, "it leaves room for other programs"),
    (Hook::XdpGeneric, "it needs nothing of the driver"),
    (Hook::Xdp, "it sees every frame and can answer"),
    (Hook::Netfilter, ""),
];

/// The traffic whose packets shall cost least.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Prefer {
    /// Good traffic first, then drops.
    #[default]
    Traffic,
    /// Drops alone: a gateway under attack.
    Drops,
}

/// A figure, and between which bounds it lies as far as the rounds can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate<T> {
    /// Half of the rounds were below.
    pub median: T,
    /// The lower bound.
    pub low: T,
    /// The upper bound.
    pub high: T,
}

/// The measured costs of one hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookCost {
    /// The hook that was measured.
    pub hook: Hook,
    /// Time of one core for one packet of a banned source.
    pub drop: Option<Estimate<Duration>>,
    /// Loss of the TCP throughput of a core by the hook, percent.
    pub traffic: Option<Estimate<u8>>,
}

impl HookCost {
    /// Could this one's drops be as cheap as `least`, the cheapest?
    fn drops_like(&self, least: &Estimate<Duration>) -> bool {
        self.drop.is_some_and(|drop| {
            drop.low <= least.high || drop.median <= least.median * (100 + SAME_DROP) / 100
        })
    }

    fn rank(&self) -> usize {
        let place = RANK.iter().position(|(hook, _)| *hook == self.hook);
        place.unwrap_or(RANK.len())
    }
}

/// One interface as it was when the hooks were measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownInterface {
    /// The interface's name.
    pub name: String,
    /// The name of its driver.
    pub driver: String,
    /// Does the driver carry native XDP? `None`: it could not be told.
    pub native: Option<bool>,
}

/// Figures of this host that are not stale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calibration {
    /// The day it was measured, for messages.
    pub day: String,
    /// The driver of the devices it was measured on.
    pub driver: String,
    /// The hooks that could be attached there.
    pub hooks: Vec<HookCost>,
    /// What was seen of this host's interfaces.
    pub interfaces: Vec<KnownInterface>,
}

/// The costs by which `auto` chooses a hook.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advice {
    /// The traffic whose packets shall cost least.
    pub prefer: Prefer,
    /// The host's own figures, if there are any.
    pub calibration: Option<Calibration>,
}

/// Hooks to try in order on a device, and why in this order. The last is always
/// [`Hook::Netfilter`], unless the figures put it before others: it sees only what
/// the IP stack takes, and cannot answer, but is there on any device.
pub fn candidates(advice: &Advice, name: &str, device: &Device) -> (Vec<Hook>, String) {
    if !device.is_ethernet() {
        let why = format!(
            "auto: {} carries no Ethernet frames, which all hooks but netfilter want",
            or_it(&device.driver)
        );
        return (vec![Hook::Netfilter], why);
    }
    let (mut hooks, why) = of_ethernet(advice, name, device);
    if !hooks.contains(&Hook::Netfilter) {
        hooks.push(Hook::Netfilter);
    }
    (hooks, why)
}

fn of_ethernet(advice: &Advice, name: &str, device: &Device) -> (Vec<Hook>, String) {
    let Some(calibration) = &advice.calibration else {
        return by_driver(advice.prefer, device);
    };
    let known = calibration.interfaces.iter().find(|i| i.name == name);
    if let Some(known) = known
        && known.driver != device.driver
    {
        let (hooks, why) = by_driver(advice.prefer, device);
        let why = format!(
            "{why}; calibrated {}, when its driver was {:?}: ignored, `weir calibrate` measures anew",
            calibration.day, known.driver
        );
        return (hooks, why);
    }
    let measured_here = device.driver == calibration.driver;
    let costs: Vec<_> = calibration
        .hooks
        .iter()
        // What XDP costs is the driver's doing; the hooks behind it are the
        // same code on every device.
        .filter(|cost| measured_here || !is_xdp(cost.hook))
        .cloned()
        .collect();
    let Some((mut hooks, why)) = order(&costs, advice.prefer) else {
        return by_driver(advice.prefer, device);
    };
    let day = &calibration.day;
    if measured_here {
        let why = format!("auto: {}, calibrated {day}: {why}", hooks[0].name());
        return (hooks, why);
    }
    // Behind what was measured, but before netfilter if that is last.
    let last = hooks.pop_if(|hook| *hook == Hook::Netfilter);
    hooks.push(Hook::XdpGeneric);
    hooks.extend(last);
    let driver = &device.driver;
    let (first, why) = match (native_is_worth_it(advice.prefer, device), known) {
        (
            true,
            Some(KnownInterface {
                native: Some(false),
                ..
            }),
        ) => (
            None,
            format!("the driver {driver} has no native XDP; of the others {why}"),
        ),
        (true, _) => (
            Some(Hook::Xdp),
            format!("the driver {driver} may carry native XDP; else {why}"),
        ),
        (false, _) => (
            None,
            format!("{} is a virtual device; {why}", or_it(driver)),
        ),
    };
    let hooks: Vec<_> = first.into_iter().chain(hooks).collect();
    let why = format!(
        "auto: {}, calibrated {day} on {}: {why}",
        hooks[0].name(),
        calibration.driver
    );
    (hooks, why)
}

/// Native XDP on hardware drivers and tcx on virtual devices, where native XDP
/// halves TCP throughput.
fn by_driver(prefer: Prefer, device: &Device) -> (Vec<Hook>, String) {
    let driver = &device.driver;
    if !device.is_virtual() {
        return (
            vec![Hook::Xdp, Hook::Tcx, Hook::ClsBpf, Hook::XdpGeneric],
            format!("auto: the driver {driver} may carry native XDP"),
        );
    }
    if native_is_worth_it(prefer, device) {
        return (
            vec![Hook::Xdp, Hook::Tcx, Hook::ClsBpf, Hook::XdpGeneric],
            "auto: only drops count, which native XDP makes cheapest".to_owned(),
        );
    }
    (
        vec![Hook::Tcx, Hook::ClsBpf, Hook::XdpGeneric],
        format!(
            "auto: {} is a virtual device, where native XDP costs TCP more than it saves",
            or_it(driver)
        ),
    )
}

fn native_is_worth_it(prefer: Prefer, device: &Device) -> bool {
    prefer == Prefer::Drops || !device.is_virtual()
}

fn is_xdp(hook: Hook) -> bool {
    matches!(hook, Hook::Xdp | Hook::XdpGeneric)
}

fn or_it(driver: &str) -> &str {
    if driver.is_empty() { "it" } else { driver }
}

/// The order in which to try measured hooks, and the figures that decided;
/// `None` when nothing was measured.
///
/// With [`Prefer::Traffic`] those come first that cost good TCP at most
/// [`TRAFFIC_LIMIT`], or perhaps, and then no more than the least of them as far
/// as the rounds can tell; then the others of which that is not sure; then those
/// above it, which beat no enforcement at all. Within each, and with
/// [`Prefer::Drops`] over all, a cheaper drop comes first; of those that the
/// figures do not tell apart, the first of [`RANK`].
pub fn order(costs: &[HookCost], prefer: Prefer) -> Option<(Vec<Hook>, String)> {
    let harmless = costs
        .iter()
        .filter_map(|cost| cost.traffic)
        .min_by_key(|lost| lost.median)
        .filter(|least| least.median <= TRAFFIC_LIMIT);
    let is_harmless = |lost: Estimate<u8>| {
        let perhaps = lost.low <= TRAFFIC_LIMIT;
        lost.median <= TRAFFIC_LIMIT
            || perhaps && harmless.is_some_and(|least| lost.low <= least.high)
    };
    let class = |cost: &HookCost| match (prefer, cost.traffic) {
        (Prefer::Drops, _) => 0,
        (Prefer::Traffic, Some(lost)) if is_harmless(lost) => 0,
        (Prefer::Traffic, None) => 1,
        (Prefer::Traffic, Some(lost)) if lost.low <= TRAFFIC_LIMIT => 1,
        // The least harm first, in steps of the noise.
        (Prefer::Traffic, Some(lost)) => 2 + lost.median / TRAFFIC_LIMIT,
    };
    let mut left: Vec<&HookCost> = costs.iter().collect();
    let mut ordered: Vec<&HookCost> = Vec::new();
    // What the first one's drops are like.
    let mut equals: Vec<&HookCost> = Vec::new();
    while let Some(best) = left.iter().map(|cost| class(cost)).min() {
        let best: Vec<&HookCost> = left.iter().copied().filter(|c| class(c) == best).collect();
        let least = best
            .iter()
            .filter_map(|cost| cost.drop)
            .min_by_key(|drop| drop.median);
        let like: Vec<_> = best
            .into_iter()
            .filter(|cost| least.is_none_or(|least| cost.drops_like(&least)))
            .collect();
        let next = *like
            .iter()
            .min_by_key(|cost| cost.rank())
            .expect("the least is among them");
        if ordered.is_empty() {
            equals = like;
        }
        left.retain(|cost| cost.hook != next.hook);
        ordered.push(next);
    }
    let first = *ordered.first()?;
    let mut why: Vec<String> = vec![format!("{} and {}", drops(first), traffic(first))];
    // What a reader of the first one's figures asks: why not a cheaper drop?
    let cheaper = ordered[1..]
        .iter()
        .filter(|cost| cost.drop.is_some())
        .filter(|cost| cost.drop.map(|d| d.median) < first.drop.map(|d| d.median));
    for cost in cheaper {
        if class(cost) > class(first) {
            why.push(format!("{} but {}", drops(cost), traffic(cost)));
        } else if equals.iter().any(|equal| equal.hook == cost.hook) {
            let rank = RANK.get(first.rank()).map_or("", |(_, rank)| rank);
            why.push(format!(
                "{}, no cheaper as far as the rounds can tell, and {} goes first: {rank}",
                drops(cost),
                first.hook.name(),
            ));
        }
    }
    if why.len() == 1
        && let Some(second) = ordered.get(1)
    {
        why.push(format!("next {} and {}", drops(second), traffic(second)));
    }
    if prefer == Prefer::Drops {
        why.push("prefer = \"drops\"".to_owned());
    }
    Some((
        ordered.into_iter().map(|c| c.hook).collect(),
        why.join("; "),
    ))
}

fn drops(cost: &HookCost) -> String {
    let name = cost.hook.name();
    match cost.drop {
        Some(drop) => format!("{name} drops at {:.2} µs", drop.median.as_secs_f64() * 1e6),
        None => format!("{name} drops at an unknown cost"),
    }
}

fn traffic(cost: &HookCost) -> String {
    match cost.traffic {
        // Above the limit, but not surely so.
        Some(lost) if lost.median > TRAFFIC_LIMIT && lost.low <= TRAFFIC_LIMIT => {
            format!("costs TCP {} to {} %", lost.low, lost.high)
        }
        Some(lost) => format!("costs TCP {} %", lost.median),
        None => "costs TCP an unknown share".to_owned(),
    }
}

#[cfg(test)]
mod tests;
