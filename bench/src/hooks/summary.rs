//! The tables in Markdown. What is unavailable stays in them by name.

use std::fmt::Write;

use super::{
    Run,
    figures::{Figure, Group, main_size, ratio, sizes},
    measure::{ALONE, Point},
    table::{HOOKS, Hook},
    task::Sources,
};

/// What stands in a row's cell when there is a figure, or when there is none.
fn cell(figure: Option<Figure>, digits: usize) -> String {
    figure.map_or_else(|| "-".into(), |figure| figure.show(digits))
}

/// The line of one point, printed as soon as it is measured.
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

/// All tables of a run, in Markdown.
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
    let all = sizes(run, family);
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
            Sources::Banned => &[
                bare,
                "xdp-hash-131k",
                "ipset-131k",
                "ipset-timeout-131k",
                "nft-set-131k",
                "nft-set-timeout-131k",
            ],
            _ => &[bare, "xdp-hash-1"],
        };
        for peer in peers {
            let over = |sizes: &[u16]| ratio(run, hook.name, peer, family, sizes);
            let Some(at) = over(&[size]) else {
                continue;
            };
            let _ = write!(rows, "| {} | {peer} | {} |", hook.name, at.show(2));
            if all.len() > 1 {
                let _ = write!(rows, " {} |", cell(over(&all), 2));
            }
            rows.push('\n');
        }
    }
    if !rows.is_empty() {
        let (all, line) = match all.len() {
            1 => ("", ""),
            _ => (" all sizes |", "---|"),
        };
        let _ = write!(
            out,
            "\n{family}, weir's drop rate beside others', median of the rounds' ratios\n\n\
             | weir | of | {size} bytes |{all}\n|---|---|---|{line}\n{rows}"
        );
    }
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
    use crate::hooks::figures::tests::{point, run};

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
        assert!(text.contains("| weir | of | 32 bytes |\n"), "{text}");
        assert!(
            text.contains("| weir-xdp-131k | xdp | 0.50 ± 0.00 |\n"),
            "{text}"
        );
        let beside = "| weir-xdp-131k | nft-set-131k | 2.00 ± 0.00 |";
        assert!(text.contains(&format!("{beside}\n")), "{text}");
        // Of another size, as fast as that set.
        for hook in ["weir-xdp-131k", "nft-set-131k"] {
            let mut point = point(hook, 0, 1_000_000, 1_000_000, 1.0);
            (point.payload, point.from) = (64, 90.0);
            run.points.push(point);
        }
        let text = tables(&run);
        assert!(
            text.contains("| weir | of | 32 bytes | all sizes |\n"),
            "{text}"
        );
        assert!(
            text.contains(&format!("{beside} 2.00 ± 0.71 |\n")),
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
