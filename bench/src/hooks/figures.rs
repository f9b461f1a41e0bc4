//! From points to figures: medians over the rounds with their standard
//! deviation, without what the generator and the idle machine take.

use std::collections::BTreeMap;

use super::{
    Run,
    measure::{ALONE, Point},
};
use crate::report::median;

/// The size whose table has all columns: the paper's.
const MAIN: u16 = 32;

/// A row's figure with its spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// The median of the rounds.
    pub median: f64,
    /// The sample standard deviation; 0 for a single round.
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

    /// Median and deviation.
    pub fn show(self, digits: usize) -> String {
        format!("{:.digits$} ± {:.digits$}", self.median, self.deviation)
    }
}

/// The points of one row, family and size.
pub struct Group<'a> {
    /// The points of the row, in the order of their rounds.
    pub points: Vec<&'a Point>,
    alone: Option<f64>,
    idle: &'a BTreeMap<String, f64>,
    /// Joules of a packet of the generator alone, by meter.
    joules_alone: BTreeMap<&'a str, f64>,
}

impl<'a> Group<'a> {
    /// The group of a row's points; `None` if the run has none.
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

    /// Dropped packets, in Gbit/s of whole frames.
    pub fn gbits(&self) -> Option<Figure> {
        self.figure(|p| p.dropped as f64 * f64::from(p.frame) * 8.0 / p.seconds / 1e9)
    }

    /// Packets that came to the interface, in percent of those sent.
    pub fn arrived(&self) -> Option<f64> {
        let figure = self.figure(|p| 100.0 * p.arrived as f64 / p.sent as f64)?;
        Some(figure.median)
    }

    /// Packets that the row dropped by its own counter, in percent of those that arrived.
    pub fn dropped(&self) -> Option<f64> {
        let figure = self.figure(|p| 100.0 * p.dropped as f64 / p.arrived as f64)?;
        Some(figure.median)
    }

    /// CPU seconds for a million dropped packets, the generator's included.
    pub fn cpu_in_all(&self) -> Option<Figure> {
        self.figure(|p| p.cpu() / p.dropped as f64 * 1e6)
    }

    /// CPU seconds of the generator alone, for a million packets.
    pub fn cpu_of_generator(&self) -> Option<f64> {
        Some(self.alone? * 1e6)
    }

    /// CPU seconds of the receiver for a million dropped packets: all but the generator's.
    pub fn cpu(&self) -> Option<Figure> {
        let alone = self.alone.unwrap_or(0.0);
        self.figure(|p| (p.cpu() - alone * p.sent as f64) / p.dropped as f64 * 1e6)
    }

    /// Busy cores, of one each, in percent.
    pub fn cores(&self) -> String {
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

/// One row's drop rate by another's, over some sizes: each point by that of the
/// other which was measured next to it, for parts of a run may have been joined.
pub fn ratio(run: &Run, hook: &str, peer: &str, family: &str, sizes: &[u16]) -> Option<Figure> {
    let rate = |p: &Point| p.dropped as f64 / p.seconds;
    let mut ratios = Vec::new();
    for size in sizes {
        let [own, other] = [hook, peer].map(|name| Group::of(run, name, family, *size));
        let (Some(own), Some(other)) = (own, other) else {
            continue;
        };
        ratios.extend(own.points.iter().filter_map(|own| {
            let apart = |p: &&&Point| (p.from - own.from).abs();
            let next = other
                .points
                .iter()
                .min_by(|a, b| apart(a).total_cmp(&apart(b)))?;
            Some(rate(own) / rate(next))
        }));
    }
    Figure::of(&ratios)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::hooks::Missing;

    pub fn point(hook: &str, round: u32, sent: u64, dropped: u64, cpu: f64) -> Point {
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

    pub fn run() -> Run {
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
}
