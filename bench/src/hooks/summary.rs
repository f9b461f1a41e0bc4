//! From points to rows: medians over the rounds with their standard deviation,
//! and the tables in Markdown. What is unavailable stays in them by name.

use std::{collections::BTreeMap, fmt::Write};

use super::{
    Run,
    measure::{ALONE, Point},
    table::{HOOKS, Hook, Sources},
};
use crate::report::median;

/// The size whose table has all columns: the paper's.
const MAIN: u16 = 32;

/// A row's figure with its spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// The middle one.
    pub median: f64,
    /// Of a sample; 0 for a single round.
    pub deviation: f64,
}

impl Figure {
    fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let degrees = (values.len() - 1).max(1) as f64;
        Some(Self {
            median: median(values),
            deviation: (squares / degrees).sqrt(),
        })
    }

    fn show(self, digits: usize) -> String {
        format!("{:.digits$} ± {:.digits$}", self.median, self.deviation)
    }
}

/// The points of one row, family and size.
pub struct Group<'a> {
    points: Vec<&'a Point>,
    alone: Option<f64>,
    idle: &'a BTreeMap<String, f64>,
    /// Joules of a packet of the generator alone, by meter.
    joules_alone: BTreeMap<&'a str, f64>,
}

impl<'a> Group<'a> {
    /// Its points, if there are any.
    pub fn of(run: &'a Run, hook: &str, family: &str, payload: u16) -> Option<Self> {
        let of = |name: &str| -> Vec<&Point> {
            let same = |p: &&Point| p.hook == name && p.family == family && p.payload == payload;
            run.points.iter().filter(same).collect()
        };
        let alone = of(ALONE);
        let points = of(hook);
        if points.is_empty() {
            return None;
        }
        let cpu: Vec<f64> = alone.iter().map(|p| p.cpu() / p.sent as f64).collect();
        let joules_alone = alone
            .first()
            .into_iter()
            .flat_map(|point| point.joules.keys())
            .filter_map(|meter| {
                let all: Vec<f64> = alone
                    .iter()
                    .filter_map(|p| Some(above_idle(p, meter, &run.idle_watts)? / p.sent as f64))
                    .collect();
                Some((meter.as_str(), Figure::of(&all)?.median))
            })
            .collect();
        Some(Self {
            points,
            alone: Figure::of(&cpu).map(|figure| figure.median),
            idle: &run.idle_watts,
            joules_alone,
        })
    }

    fn figure(&self, value: impl Fn(&Point) -> f64) -> Option<Figure> {
        let values: Vec<f64> = self.points.iter().map(|point| value(point)).collect();
        Figure::of(&values)
    }

    /// Million packets a second that it dropped.
    pub fn rate(&self) -> Option<Figure> {
        self.figure(|p| p.dropped as f64 / p.seconds / 1e6)
    }

    /// The same in bits of frames.
    pub fn gbits(&self) -> Option<Figure> {
        self.figure(|p| p.dropped as f64 * f64::from(p.frame) * 8.0 / p.seconds / 1e9)
    }

    /// Of what was sent, what came to the interface, in percent.
    fn arrived(&self) -> Option<f64> {
        let figure = self.figure(|p| 100.0 * p.arrived as f64 / p.sent as f64)?;
        Some(figure.median)
    }

    /// Of what arrived, what its own counter says it dropped, in percent.
    pub fn dropped(&self) -> Option<f64> {
        let figure = self.figure(|p| 100.0 * p.dropped as f64 / p.arrived as f64)?;
        Some(figure.median)
    }

    /// CPU seconds for a million dropped packets, the generator's included.
    pub fn cpu_in_all(&self) -> Option<Figure> {
        self.figure(|p| p.cpu() / p.dropped as f64 * 1e6)
    }

    /// Those of the generator alone, for a million packets.
    pub fn cpu_of_generator(&self) -> Option<f64> {
        Some(self.alone? * 1e6)
    }

    /// What remains for the receiver.
    pub fn cpu(&self) -> Option<Figure> {
        let alone = self.alone.unwrap_or(0.0);
        self.figure(|p| (p.cpu() - alone * p.sent as f64) / p.dropped as f64 * 1e6)
    }

    /// Busy cores, of one each, in percent.
    fn cores(&self) -> String {
        let count = self.points.iter().map(|p| p.cores.len()).max().unwrap_or(0);
        let of = |core: usize| {
            let busy = self.figure(|p| p.cores.get(core).map_or(0.0, |busy| busy * 100.0));
            busy.map_or(0.0, |busy| busy.median)
        };
        // Of many, those that do something.
        let all: Vec<String> = (0..count)
            .filter(|core| count <= 4 || of(*core) >= 5.0)
            .map(|core| match count {
                0..=4 => format!("{:.0}", of(core)),
                _ => format!("{core}: {:.0}", of(core)),
            })
            .collect();
        all.join(" / ")
    }

    /// Joules for a million dropped packets by a meter, without what the idle
    /// machine and the generator take.
    pub fn joules(&self, meter: &str) -> Option<Figure> {
        let alone = self.joules_alone.get(meter).copied().unwrap_or(0.0);
        self.figure(|p| {
            above_idle(p, meter, self.idle).map_or(f64::NAN, |joules| {
                (joules - alone * p.sent as f64) / p.dropped as f64 * 1e6
            })
        })
    }
}

/// What a point took above the idle machine.
fn above_idle(point: &Point, meter: &str, idle: &BTreeMap<String, f64>) -> Option<f64> {
    let joules = point.joules.get(meter)?;
    Some(joules - idle.get(meter).copied().unwrap_or(0.0) * point.seconds)
}

/// What stands in a row's cell when there is a figure, or when there is none.
fn cell(figure: Option<Figure>, digits: usize) -> String {
    figure.map_or_else(|| "-".into(), |figure| figure.show(digits))
}

/// The sizes of a family's points, from the shortest.
pub fn sizes(run: &Run, family: &str) -> Vec<u16> {
    let mut sizes: Vec<u16> = run
        .points
        .iter()
        .filter(|point| point.family == family)
        .map(|point| point.payload)
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// The size that stands for all: the paper's, or the shortest.
pub fn main_size(run: &Run, family: &str) -> Option<u16> {
    let sizes = sizes(run, family);
    sizes
        .iter()
        .find(|size| **size == MAIN)
        .or(sizes.first())
        .copied()
}

/// One point as it comes.
pub fn line(point: &Point) -> String {
    format!(
        "{:>22} {} {:>4} B, round {}: {:.3} Mpps dropped, {:.1} % of what arrived, {:.3} CPU s for a million",
        point.hook,
        point.family,
        point.payload,
        point.round,
        point.dropped as f64 / point.seconds / 1e6,
        100.0 * point.dropped as f64 / point.arrived.max(1) as f64,
        point.cpu() / point.dropped.max(1) as f64 * 1e6,
    )
}

/// Everything, in Markdown.
pub fn tables(run: &Run) -> String {
    let mut out = String::new();
    energy(&mut out, run);
    for family in ["ipv4", "ipv6"] {
        if let Some(size) = main_size(run, family) {
            main_table(&mut out, run, family, size);
            beside(&mut out, run, family, size);
            if sizes(run, family).len() > 1 {
                by_size(&mut out, run, family);
            }
        }
    }
    paper(&mut out, run);
    out
}

/// Meters whose figures there are.
fn meters(run: &Run) -> Vec<&str> {
    let mut names: Vec<&str> = run
        .points
        .iter()
        .flat_map(|point| point.joules.keys().map(String::as_str))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn energy(out: &mut String, run: &Run) {
    for (meter, watts) in &run.idle_watts {
        let _ = writeln!(out, "Energy by {meter}; idle: {watts:.2} W, subtracted.");
    }
    if let Some(why) = &run.no_energy {
        let _ = writeln!(out, "Measured energy: unavailable ({why}).");
    }
}

fn probe<'a>(run: &'a Run, hook: &Hook, family: &str) -> Option<&'a str> {
    run.missing
        .iter()
        .find(|missing| missing.hook == hook.name && missing.family == family)
        .map(|missing| missing.probe.as_str())
}

fn main_table(out: &mut String, run: &Run, family: &str, size: u16) {
    let meters = meters(run);
    let joules: String = meters
        .iter()
        .map(|meter| format!(" J for a million, {meter} |"))
        .collect();
    let joules = if run.no_energy.is_some() {
        format!(" J for a million, measured |{joules}")
    } else {
        joules
    };
    let _ = write!(
        out,
        "\n{family}, {size} bytes of payload\n\n\
         | hook | Mpps dropped | Gbit/s | arrived of sent, dropped of arrived, % | \
         CPU s for a million | with the generator's | cores busy, % |{joules} sources | dropped by |\n\
         |---|---|---|---|---|---|---|{}---|---|\n",
        "---|".repeat(joules.matches('|').count())
    );
    for hook in HOOKS {
        let Some(group) = Group::of(run, hook.name, family, size) else {
            if let Some(probe) = probe(run, hook, family) {
                let _ = writeln!(out, "| {} | unavailable (probe: {probe}) |", hook.name);
            }
            continue;
        };
        let mut energy = String::new();
        if run.no_energy.is_some() {
            energy.push_str(" unavailable |");
        }
        for meter in &meters {
            let _ = write!(energy, " {} |", cell(group.joules(meter), 3));
        }
        let percent =
            |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.1}"));
        let sources = group.points[0].sources;
        let _ = writeln!(
            out,
            "| {} | {} | {} | {}, {} | {} | {} | {} |{energy} {} | {} |",
            hook.name,
            cell(group.rate(), 3),
            cell(group.gbits(), 2),
            if run.remote {
                "-".into()
            } else {
                percent(group.arrived())
            },
            percent(group.dropped()),
            cell(group.cpu(), 3),
            cell(group.cpu_in_all(), 3),
            group.cores(),
            if sources == 0 {
                "?".to_owned()
            } else {
                sources.to_string()
            },
            hook.counted,
        );
    }
    if let Some(group) = Group::of(run, ALONE, family, size) {
        let _ = writeln!(
            out,
            "\nThe generator alone: {:.3} CPU s for a million packets, {} Mpps.",
            group.cpu_of_generator().unwrap_or(f64::NAN),
            cell(group.rate(), 2)
        );
    }
}

fn by_size(out: &mut String, run: &Run, family: &str) {
    let sizes = sizes(run, family);
    let head: String = sizes.iter().map(|size| format!(" {size} |")).collect();
    for (title, digits, figure) in [
        (
            "Mpps dropped",
            2,
            (|group: &Group<'_>| group.rate()) as fn(&Group<'_>) -> Option<Figure>,
        ),
        ("Gbit/s of frames dropped", 1, |group| group.gbits()),
        ("CPU s for a million", 3, |group| group.cpu()),
    ] {
        let _ = write!(
            out,
            "\n{family}, {title}, by bytes of payload\n\n| hook |{head}\n|---|{}\n",
            "---|".repeat(sizes.len())
        );
        for hook in HOOKS {
            let groups: Vec<_> = sizes
                .iter()
                .map(|size| Group::of(run, hook.name, family, *size))
                .collect();
            if groups.iter().all(Option::is_none) {
                continue;
            }
            let cells: String = groups
                .iter()
                .map(|group| match group.as_ref().and_then(figure) {
                    Some(found) => format!(" {:.digits$} |", found.median),
                    None => " - |".to_owned(),
                })
                .collect();
            let _ = writeln!(out, "| {} |{cells}", hook.name);
        }
    }
}

/// weir's rates beside those of the bare hook, and of other programs' tables.
fn beside(out: &mut String, run: &Run, family: &str, size: u16) {
    let mut rows = String::new();
    for hook in HOOKS {
        let Some(name) = hook.name.strip_prefix("weir-") else {
            continue;
        };
        let Some((backend, _)) = name.rsplit_once('-') else {
            continue;
        };
        let bare = match backend {
            "netfilter" => "netfilter-bpf",
            "nft" => "nft-prerouting",
            "ipset" => "iptables-raw",
            hook => hook,
        };
        let peers: &[&str] = match hook.sources {
            Sources::Banned => &[bare, "ipset-131k", "nft-set-131k"],
            _ => &[bare],
        };
        let cells: Vec<String> = peers
            .iter()
            .filter_map(|peer| {
                let ratio = ratio(run, hook.name, peer, family, size)?;
                Some(format!("{:.2} of {peer}", ratio.median))
            })
            .collect();
        if !cells.is_empty() {
            let _ = writeln!(rows, "| {} | {} |", hook.name, cells.join(", "));
        }
    }
    if !rows.is_empty() {
        let _ = write!(
            out,
            "\n{family}, weir's drop rate beside others', median of the rounds' ratios\n\n\
             | weir | ratio |\n|---|---|\n{rows}"
        );
    }
}

/// One row's drop rate by another's: each point by that of the other which was
/// measured next to it, for parts of a run may have been joined.
fn ratio(run: &Run, hook: &str, peer: &str, family: &str, size: u16) -> Option<Figure> {
    let [own, other] = [hook, peer].map(|name| Group::of(run, name, family, size));
    let (own, other) = (own?, other?);
    let rate = |p: &Point| p.dropped as f64 / p.seconds;
    let ratios: Vec<f64> = own
        .points
        .iter()
        .filter_map(|own| {
            let apart = |p: &&&Point| (p.from - own.from).abs();
            let next = other
                .points
                .iter()
                .min_by(|a, b| apart(a).total_cmp(&apart(b)))?;
            Some(rate(own) / rate(next))
        })
        .collect();
    Figure::of(&ratios)
}

/// The paper's orders, cheapest first, as far as it says them: in figures 4 and
/// 5 the best of packet processing is nft, the best of packet analysis eBPF on
/// the socket; user space, tc and XDP (generic) are said to be dear, and nft a
/// little better than iptables.
pub const PAPER: [(&str, &str); 9] = [
    (
        "nft-ingress",
        "best of what filters packets (figures 4 and 5)",
    ),
    ("iptables-raw", "slightly behind nft"),
    ("iptables-input", "slightly behind nft"),
    ("ebpf-socket", "best of what filters at a socket"),
    ("cbpf-socket", "behind eBPF"),
    ("tc-u32", "high CPU"),
    ("xdp-generic", "high CPU, dearer than nft"),
    ("userspace-notrack", "high CPU"),
    ("userspace", "high CPU"),
];

/// What the paper found beside what is found here.
fn paper(out: &mut String, run: &Run) {
    let Some(size) = main_size(run, "ipv4") else {
        return;
    };
    let cost = |hook: &str| Group::of(run, hook, "ipv4", size)?.cpu();
    let mut order: Vec<(&Hook, f64)> = HOOKS
        .iter()
        .filter(|hook| hook.paper.is_some())
        .filter_map(|hook| Some((hook, cost(hook.name)?.median)))
        .collect();
    if order.len() < 2 {
        return;
    }
    order.sort_by(|a, b| a.1.total_cmp(&b.1));
    let _ = write!(
        out,
        "\nThe paper's hooks from the cheapest here\n\n\
         | here | hook | paper's name | CPU s for a million | the paper, Raspberry Pi |\n|---|---|---|---|---|\n"
    );
    for (place, (hook, cost)) in order.iter().enumerate() {
        let said = PAPER.iter().find(|(name, _)| *name == hook.name);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {cost:.3} | {} |",
            place + 1,
            hook.name,
            hook.paper.unwrap_or_default(),
            said.map_or("", |(_, said)| said)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::Missing;

    fn point(hook: &str, round: u32, sent: u64, dropped: u64, cpu: f64) -> Point {
        Point {
            hook: hook.into(),
            family: "ipv4".into(),
            payload: 32,
            frame: 74,
            round,
            sources: 1,
            sent,
            arrived: sent,
            dropped,
            seconds: 1.0,
            cpu_sender: cpu,
            cpu_softirq: 0.0,
            cpu_program: 0.0,
            cores: vec![1.0, 0.0],
            from: 0.0,
            to: 1.0,
            joules: BTreeMap::from([("meter".into(), 2.0 + cpu)]),
        }
    }

    fn run() -> Run {
        Run {
            points: vec![
                point(ALONE, 0, 1_000_000, 1_000_000, 0.06),
                point("xdp", 0, 1_000_000, 1_000_000, 0.14),
                point("xdp", 1, 1_000_000, 1_000_000, 0.16),
                point("xdp", 2, 1_000_000, 1_000_000, 0.18),
                point("userspace", 0, 1_000_000, 500_000, 1.06),
            ],
            missing: vec![Missing {
                hook: "tc-u32".into(),
                family: "ipv4".into(),
                probe: "act_gact: no".into(),
            }],
            idle: None,
            idle_watts: BTreeMap::from([("meter".into(), 2.0)]),
            no_energy: None,
            remote: false,
        }
    }

    #[test]
    fn the_generators_cost_is_subtracted_and_losses_are_paid_for() {
        let run = run();
        let close = |value: f64, wanted: f64| assert!((value - wanted).abs() < 1e-9, "{value}");
        let xdp = Group::of(&run, "xdp", "ipv4", 32).unwrap();
        close(xdp.cpu_in_all().unwrap().median, 0.16);
        close(xdp.cpu().unwrap().median, 0.10);
        close(xdp.cpu().unwrap().deviation, 0.02);
        close(xdp.rate().unwrap().median, 1.0);
        close(xdp.gbits().unwrap().median, 0.592);
        close(xdp.joules("meter").unwrap().median, 0.10);
        // Half of the packets were lost before the program saw them.
        let user = Group::of(&run, "userspace", "ipv4", 32).unwrap();
        close(user.dropped().unwrap(), 50.0);
        close(user.cpu().unwrap().median, 2.0);
        assert!(user.joules("other").is_none());
    }

    #[test]
    fn tables_name_what_is_unavailable_and_why() {
        let mut run = run();
        let text = tables(&run);
        assert!(
            text.contains("| tc-u32 | unavailable (probe: act_gact: no) |"),
            "{text}"
        );
        assert!(text.contains("\n| xdp | 1.000 ± 0.000 |"), "{text}");
        assert!(text.contains("idle: 2.00 W, subtracted"), "{text}");
        assert!(!text.contains("| tcx |"), "{text}");
        run.no_energy = Some("no powercap zone".into());
        let text = tables(&run);
        assert!(text.contains("unavailable (no powercap zone)"), "{text}");
    }

    #[test]
    fn weir_stands_beside_the_bare_hook_and_other_tables() {
        let mut run = run();
        // The last one is of another part of the run, a minute later.
        for (hook, seconds, from) in [
            ("weir-xdp-131k", 2.0, 1.0),
            ("nft-set-131k", 4.0, 2.0),
            ("nft-set-131k", 40.0, 60.0),
        ] {
            let mut point = point(hook, 0, 1_000_000, 1_000_000, 1.0);
            (point.seconds, point.from) = (seconds, from);
            run.points.push(point);
        }
        let text = tables(&run);
        assert!(
            text.contains("| weir-xdp-131k | 0.50 of xdp, 2.00 of nft-set-131k |"),
            "{text}"
        );
    }

    #[test]
    fn the_papers_hooks_are_all_in_the_table() {
        for (name, _) in PAPER {
            assert!(
                HOOKS.iter().any(|h| h.name == name && h.paper.is_some()),
                "{name}"
            );
        }
        assert_eq!(
            HOOKS.iter().filter(|h| h.paper.is_some()).count(),
            PAPER.len()
        );
    }
}
