//! Points as rows with their spread, and as tables a reader can compare.

use std::fmt::Write;

use super::{
    Shown,
    clients::Latency,
    measure::{Part, Point},
    paper::{Delay, Simulation},
};
use crate::report::{Report, median};

/// A path loses when more than this of the background does not get through.
const LOSING_PERCENT: f64 = 0.1;
/// The path that the other paths are compared with.
const BASE: &str = "nothing";

/// A function that picks one of a point's two latencies.
pub type Kind = fn(&Point) -> Option<Latency>;
/// The two latencies by their names in rows.
pub const KINDS: [(&str, Kind); 2] = [("tcp", |p| p.tcp), ("udp", |p| p.udp)];

/// The line of one point, printed as soon as it is measured.
pub fn line(point: &Point) -> String {
    let mut text = format!(
        "{:?}, {} at {}:",
        point.part,
        point.path,
        rate_name(point.rate)
    );
    for (name, kind) in KINDS {
        if let Some(l) = kind(point) {
            let _ = write!(
                text,
                " {name} {:.1} / {:.1} / {:.1} µs, {} of {} lost;",
                l.p50, l.p99, l.p999, l.lost, l.tried
            );
        }
    }
    let _ = write!(
        text,
        " {} sent in {:.2} s, {} delivered, {} denied, wire full {}, queue full {}, rules {}; \
         CPU {:.3} + {:.3} + {:.3} s",
        point.sent,
        point.seconds,
        point.delivered,
        point.denied,
        point.wire_full,
        point.queue_full,
        point.rules,
        point.cpu_sender,
        point.cpu_softirq,
        point.cpu_path,
    );
    text
}

/// `80k`, or `limit`.
pub fn rate_name(rate: Option<u32>) -> String {
    match rate {
        None => "limit".into(),
        Some(0) => "none".into(),
        Some(rate) => format!("{}k", rate / 1000),
    }
}

/// The points of one row of a table: a part, a path, a rate.
#[derive(Clone, Copy)]
pub struct Group<'a> {
    points: &'a [Point],
    part: Part,
    rate: Option<u32>,
    /// Name of the path.
    pub path: &'a str,
}

impl<'a> Group<'a> {
    /// The points of the row, in order of their rounds.
    fn points(self) -> impl Iterator<Item = &'a Point> {
        self.points.iter().filter(move |point| {
            point.part == self.part && point.rate == self.rate && point.path == self.path
        })
    }

    fn values(self, value: impl Fn(&Point) -> f64) -> Vec<f64> {
        self.points().map(value).collect()
    }

    /// The median of the rounds; `None` without any.
    pub fn median(self, value: impl Fn(&Point) -> f64) -> Option<f64> {
        let values = self.values(value);
        (!values.is_empty()).then(|| median(&values))
    }

    /// The median of the differences to no filter, each within its round.
    pub fn added(self, value: impl Fn(&Point) -> f64) -> Option<f64> {
        let base = Group { path: BASE, ..self }.values(&value);
        let added: Vec<f64> = self
            .values(&value)
            .iter()
            .zip(&base)
            .map(|(with, without)| with - without)
            .collect();
        (!added.is_empty()).then(|| median(&added))
    }
}

/// The groups of a part at a rate, paths in the order they were measured in.
pub fn groups(points: &[Point], part: Part, rate: Option<u32>) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for point in points {
        let known = groups.iter().any(|group| group.path == point.path);
        if point.part == part && point.rate == rate && !known {
            groups.push(Group {
                points,
                part,
                rate,
                path: &point.path,
            });
        }
    }
    groups
}

/// The rates of a part, the generator's limit last.
pub fn rates(points: &[Point], part: Part) -> Vec<Option<u32>> {
    let mut rates: Vec<_> = points
        .iter()
        .filter(|point| point.part == part)
        .map(|point| point.rate)
        .collect();
    rates.sort_by_key(|rate| rate.unwrap_or(u32::MAX));
    rates.dedup();
    rates
}

/// The rows that a report keeps with their spread.
pub fn rows(report: &mut Report, shown: &Shown) {
    let points = &shown.points;
    for part in [Part::Idle, Part::Load, Part::Flood] {
        for rate in rates(points, part) {
            for group in groups(points, part, rate) {
                for (name, kind) in KINDS {
                    let values = group.values(|p| kind(p).map_or(f64::NAN, |l| l.p50));
                    let rate = rate_name(rate);
                    let row = format!("{part:?}, load {rate}, {}: {name} p50", group.path);
                    report.add(&row.to_lowercase(), "µs", &values);
                }
            }
        }
    }
    for rate in rates(points, Part::Cost) {
        for group in groups(points, Part::Cost, rate) {
            let values = group.values(Point::cpu_per_million);
            let row = format!("cost, load {}, {}: CPU", rate_name(rate), group.path);
            report.add(&row, "s/M", &values);
        }
    }
}

/// All tables of the points and simulations, in Markdown.
pub fn tables(shown: &Shown) -> String {
    let points = &shown.points;
    let mut out = String::new();
    idle(&mut out, points);
    load(&mut out, points);
    ceiling(&mut out, points);
    cost(&mut out, points);
    flood(&mut out, points);
    paper(&mut out, &shown.simulations);
    out
}

fn number(value: Option<f64>, digits: usize) -> String {
    match value.filter(|value| value.is_finite()) {
        Some(value) => format!("{value:.digits$}"),
        None => "-".into(),
    }
}

/// A sign in front: what is added may be less than nothing.
fn signed(value: Option<f64>) -> String {
    match value.filter(|value| value.is_finite()) {
        Some(value) => format!("{value:+.1}"),
        None => "-".into(),
    }
}

fn at(kind: Kind, value: fn(&Latency) -> f64) -> impl Fn(&Point) -> f64 {
    move |point| kind(point).as_ref().map_or(f64::NAN, value)
}

fn idle(out: &mut String, points: &[Point]) {
    let groups = groups(points, Part::Idle, Some(0));
    if groups.is_empty() {
        return;
    }
    out.push_str(
        "\nLatency of a new flow, nothing else on the wire, µs (added: p50 to `nothing` in the same round)\n\n\
         | path | connect() p50 | added | p90 | p99 | p99.9 | UDP p50 | added | p90 | p99 | p99.9 |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for group in groups {
        let _ = write!(out, "| {}", group.path);
        for (_, kind) in KINDS {
            let _ = write!(
                out,
                " | {} | {} | {} | {} | {}",
                number(group.median(at(kind, |l| l.p50)), 1),
                signed(group.added(at(kind, |l| l.p50))),
                number(group.median(at(kind, |l| l.p90)), 1),
                number(group.median(at(kind, |l| l.p99)), 1),
                number(group.median(at(kind, |l| l.p999)), 1),
            );
        }
        out.push_str(" |\n");
    }
}

fn load(out: &mut String, points: &[Point]) {
    let rates = rates(points, Part::Load);
    if rates.is_empty() {
        return;
    }
    for (name, kind) in [KINDS[1], KINDS[0]] {
        let what = if name == "tcp" { "connect()" } else { "UDP" };
        let _ = write!(
            out,
            "\n{what} of an allowed client beside new flows at these rates a second: p50 / p99 µs (of the client's flows lost)\n\n| path |"
        );
        for rate in &rates {
            let _ = write!(out, " {} |", rate_name(*rate));
        }
        let _ = write!(out, "\n|---|{}\n", "---|".repeat(rates.len()));
        for path in groups(points, Part::Load, rates[0]) {
            let _ = write!(out, "| {} |", path.path);
            for rate in &rates {
                let group = Group {
                    rate: *rate,
                    ..path
                };
                let _ = write!(
                    out,
                    " {} / {}",
                    number(group.median(at(kind, |l| l.p50)), 0),
                    number(group.median(at(kind, |l| l.p99)), 0),
                );
                let lost = group.median(at(kind, Latency::lost_percent));
                if lost.is_some_and(|lost| lost > 0.0) {
                    let _ = write!(out, " ({} %)", number(lost, 1));
                }
                out.push_str(" |");
            }
            out.push('\n');
        }
    }
}

/// The highest ordered rate up to which a path loses nothing to speak of, and
/// whether it goes on so at the generator's limit.
pub fn ceiling_of(points: &[Point], path: &str) -> Option<(Option<u32>, bool)> {
    let mut highest = None;
    for rate in rates(points, Part::Load) {
        let group = groups(points, Part::Load, rate)
            .into_iter()
            .find(|group| group.path == path)?;
        // What the wire loses is not the path's doing.
        let lost = group.median(|p| {
            100.0 * p.lost().saturating_sub(p.wire_full) as f64 / p.sent.max(1) as f64
        })?;
        if lost > LOSING_PERCENT {
            return Some((highest, true));
        }
        highest = rate.or(highest);
    }
    Some((highest, false))
}

fn ceiling(out: &mut String, points: &[Point]) {
    let rates = rates(points, Part::Load);
    let Some(first) = rates.first() else { return };
    let _ = write!(
        out,
        "\nNew flows of the background lost, in percent (of which the wire's ring had no room, before the path), \
         and handled a second at the generator's limit; a path's ceiling is the highest rate with {LOSING_PERCENT} % lost at most\n\n| path | ceiling |"
    );
    for rate in &rates {
        let _ = write!(out, " {} |", rate_name(*rate));
    }
    let _ = write!(
        out,
        " handled at limit |\n|---|---|{}---|\n",
        "---|".repeat(rates.len())
    );
    for path in groups(points, Part::Load, *first) {
        let ceiling = match ceiling_of(points, path.path) {
            Some((_, false)) => "none".into(),
            Some((Some(rate), true)) => rate_name(Some(rate)),
            _ => format!("below {}", rate_name(*first)),
        };
        let _ = write!(out, "| {} | {ceiling} |", path.path);
        for rate in &rates {
            let group = Group {
                rate: *rate,
                ..path
            };
            let _ = write!(out, " {}", number(group.median(Point::lost_percent), 2));
            let wire = group.median(|p| 100.0 * p.wire_full as f64 / p.sent.max(1) as f64);
            if wire.is_some_and(|wire| wire >= 0.005) {
                let _ = write!(out, " ({})", number(wire, 2));
            }
            out.push_str(" |");
        }
        let limit = Group { rate: None, ..path };
        let handled = limit.median(Point::handled_rate).map(|rate| rate / 1e3);
        let _ = writeln!(out, " {}k |", number(handled, 0));
    }
}

fn cost(out: &mut String, points: &[Point]) {
    let rates = rates(points, Part::Cost);
    if rates.is_empty() {
        return;
    }
    out.push_str(
        "\nCPU seconds for a million new flows: generator, network stack and path together; what the path adds to `nothing`; \
         its process alone; flows handled a second and lost\n\n\
         | path | rate | all | added | process | handled | lost |\n|---|---|---|---|---|---|---|\n",
    );
    for rate in rates {
        for group in groups(points, Part::Cost, rate) {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {}k | {} % |",
                group.path,
                rate_name(rate),
                number(group.median(Point::cpu_per_million), 2),
                number(group.added(Point::cpu_per_million), 2),
                number(
                    group.median(|p| {
                        let handled = (p.delivered + p.denied).max(1) as f64;
                        p.cpu_path / handled * 1e6
                    }),
                    2
                ),
                number(group.median(Point::handled_rate).map(|rate| rate / 1e3), 0),
                number(group.median(Point::lost_percent), 2),
            );
        }
    }
}

fn flood(out: &mut String, points: &[Point]) {
    let rates = rates(points, Part::Flood);
    if rates.is_empty() {
        return;
    }
    out.push_str(
        "\nAn allowed client in a flood of denied sources from all over the world: p50 / p99 µs and its flows lost; \
         the flood as sent, denied a second, and not handled\n\n\
         | path | flood | sent a second | connect() | lost | UDP | lost | denied a second | flood not handled | rules inserted a second |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for path in groups(points, Part::Flood, rates[0]) {
        for rate in &rates {
            let group = Group {
                rate: *rate,
                ..path
            };
            let a_second = |count: fn(&Point) -> u64| {
                group
                    .median(|p| count(p) as f64 / p.seconds.max(1e-9) / 1e3)
                    .map(|rate| rate.max(0.0))
            };
            let _ = write!(
                out,
                "| {} | {} | {}k |",
                group.path,
                rate_name(*rate),
                number(a_second(|p| p.sent), 0)
            );
            for (_, kind) in KINDS {
                let _ = write!(
                    out,
                    " {} / {} | {} % |",
                    number(group.median(at(kind, |l| l.p50)), 1),
                    number(group.median(at(kind, |l| l.p99)), 0),
                    number(group.median(at(kind, Latency::lost_percent)), 2),
                );
            }
            let _ = writeln!(
                out,
                " {}k | {} % | {}k |",
                number(a_second(|p| p.denied), 0),
                number(group.median(Point::lost_percent), 1),
                number(a_second(|p| p.rules), 2),
            );
        }
    }
}

const FLAWS: &str = "
Flaws of the method, kept as they are: negative addends are thrown away, which makes a path that adds nothing slow
(`nothing again` is such a path; the mean of all addends stands beside); simulations I and II are separate runs whose
packets are paired by number though nothing pairs them; the interval takes the addends for independent, and packets that
wait in one queue are not; a mean without percentiles hides who waits; packets that do not come back have no round trip
and make the result better; what a sender of packets pays is not what a client's connection pays, for nobody opens one;
T_e is the distance between packets that come back, so that a path which keeps up shows the sender's rate as its own.
";

fn paper(out: &mut String, simulations: &[Simulation]) {
    if simulations.is_empty() {
        return;
    }
    out.push_str(
        "\nThe paper's method: packets of a flow each, routed back by the host; D_g by its equation 1, µs \
         (paper: 24.6 ± 0.6 at 30,000 pps; T_e 15.96, from which 62,637 pps)\n\n\
         | path | sent | came back | RTT p50 / p99 | D_g ± 95 % | σ | addends: counted, negative | mean of all | T_e | 1 / T_e |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut done: Vec<(&str, Option<u32>)> = Vec::new();
    for simulation in simulations {
        let key = (simulation.path.as_str(), simulation.rate);
        if done.contains(&key) {
            continue;
        }
        done.push(key);
        let of = |value: &dyn Fn(&Simulation) -> f64| {
            let values: Vec<f64> = simulations
                .iter()
                .filter(|other| (other.path.as_str(), other.rate) == key)
                .map(value)
                .collect();
            Some(median(&values))
        };
        let delay = |value: fn(&Delay) -> f64| of(&|s| s.delay.as_ref().map_or(f64::NAN, value));
        let _ = writeln!(
            out,
            "| {} | {} at {}k pps | {} % | {} / {} | {} ± {} | {} | {}, {} | {} | {} | {}k |",
            simulation.path,
            simulation.sent,
            number(of(&|s| s.send_rate / 1e3), 0),
            number(of(&|s| 100.0 * s.returned as f64 / s.sent as f64), 1),
            number(of(&|s| s.rtt_p50), 1),
            number(of(&|s| s.rtt_p99), 0),
            number(delay(|d| d.mean), 1),
            number(delay(|d| d.half_interval), 1),
            number(delay(|d| d.sigma), 1),
            number(delay(|d| d.counted as f64), 0),
            number(delay(|d| d.negative as f64), 0),
            signed(delay(|d| d.mean_of_all)),
            number(of(&|s| s.spacing), 2),
            number(of(&|s| 1e3 / s.spacing), 0),
        );
    }
    out.push_str(FLAWS);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(path: &str, rate: u32, p50: f64, delivered: u64) -> Point {
        Point {
            part: Part::Load,
            path: path.into(),
            round: 0,
            rate: Some(rate),
            tcp: None,
            udp: Some(Latency {
                p50,
                ..Latency::default()
            }),
            sent: 1000,
            seconds: 1.0,
            wire_full: 0,
            delivered,
            denied: 0,
            queue_full: 0,
            rules: 0,
            cpu_sender: 0.0,
            cpu_softirq: 0.0,
            cpu_path: 0.0,
        }
    }

    #[test]
    fn a_ceiling_is_the_last_rate_without_loss() {
        let points = [
            point("a", 10_000, 1.0, 1000),
            point("b", 10_000, 1.0, 990),
            point("a", 60_000, 1.0, 999),
            point("b", 60_000, 1.0, 900),
            point("a", 80_000, 1.0, 500),
        ];
        assert_eq!(ceiling_of(&points, "a"), Some((Some(60_000), true)));
        assert_eq!(ceiling_of(&points, "b"), Some((None, true)));
        assert_eq!(ceiling_of(&points[..3], "a"), Some((Some(60_000), false)));
    }

    #[test]
    fn what_is_added_is_taken_within_a_round() {
        let points = [
            point("nothing", 10_000, 10.0, 0),
            point("x", 10_000, 12.0, 0),
            point("nothing", 10_000, 100.0, 0),
            point("x", 10_000, 102.0, 0),
            point("nothing", 10_000, 11.0, 0),
            point("x", 10_000, 14.0, 0),
        ];
        let groups = groups(&points, Part::Load, Some(10_000));
        assert_eq!(groups[1].added(at(KINDS[1].1, |l| l.p50)), Some(2.0));
    }
}
