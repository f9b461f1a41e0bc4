//! The packet path under live frames: generator and receiver on one core. A target
//! row is the shipped object with rodata turning only the final pass into a drop,
//! against an unconditional drop at the same hook in the same round; the reason
//! counters show that the work was done.

use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Context, ensure};
use weir_bpf::{
    BanCounts, ClassImage, Generation, Geometry, Key, Options, Placed, PrefixBan, PrefixBanPlaced,
    PrefixBans, Slot, attachment::Hook, generator::Flood, prog_test_run, small_maps, table::NEVER,
    tables::POLICY_SCOPED,
};
use weir_core::{Action, PortSet, Prefix, PrefixSet, Reason};
use weir_netlab::Side;

use crate::{class_rows::ClassContents, report::Report, wire::Wire};

const ONE: u32 = 1;
const SMALL: u32 = 1 << 17;
const LARGE: u32 = 1 << 20;
const PORT: u16 = 12345;
/// Innocent sources: a salt far from the banned ones.
const INNOCENT: u32 = 1 << 30;

/// What floods the receiver in a row, and what its packets must count as.
struct Case {
    name: &'static str,
    bans: u32,
    sources: u32,
    salt: u32,
    allowed: bool,
    contents: ClassContents,
    counts_as: &'static [Reason],
}

const CASES: [Case; 13] = [
    Case {
        name: "innocent",
        bans: SMALL,
        sources: SMALL,
        salt: INNOCENT,
        allowed: false,
        contents: ClassContents::None,
        counts_as: &[Reason::Pass],
    },
    Case {
        name: "innocent",
        bans: LARGE,
        sources: SMALL,
        salt: INNOCENT,
        allowed: false,
        contents: ClassContents::None,
        counts_as: &[Reason::Pass],
    },
    Case {
        name: "banned",
        bans: SMALL,
        sources: SMALL,
        salt: 0,
        allowed: false,
        contents: ClassContents::None,
        counts_as: &[Reason::BannedAll, Reason::BannedScope],
    },
    Case {
        name: "banned",
        bans: LARGE,
        sources: LARGE,
        salt: 0,
        allowed: false,
        contents: ClassContents::None,
        counts_as: &[Reason::BannedAll, Reason::BannedScope],
    },
    // What of the row above is instructions, and what waiting for memory: the
    // same table and packets, from so few sources that theirs stays in cache.
    Case {
        name: "banned-in-cache",
        bans: SMALL,
        sources: 1 << 10,
        salt: 0,
        allowed: false,
        contents: ClassContents::None,
        counts_as: &[Reason::BannedAll, Reason::BannedScope],
    },
    // A single ban, beside what a filter of sources does at least: see `limit: one look-up`.
    Case {
        name: "banned",
        bans: ONE,
        sources: ONE,
        salt: 0,
        allowed: false,
        contents: ClassContents::None,
        counts_as: &[Reason::BannedAll],
    },
    Case {
        name: "allow-listed",
        bans: SMALL,
        sources: SMALL,
        salt: 0,
        allowed: true,
        contents: ClassContents::None,
        counts_as: &[Reason::Allowed],
    },
    Case {
        name: "innocent",
        bans: SMALL,
        sources: SMALL,
        salt: INNOCENT,
        allowed: false,
        contents: ClassContents::Countries,
        counts_as: &[Reason::Pass],
    },
    Case {
        name: "innocent",
        bans: SMALL,
        sources: SMALL,
        salt: INNOCENT,
        allowed: false,
        contents: ClassContents::CountriesAndLists,
        counts_as: &[Reason::Pass],
    },
    Case {
        name: "fenced",
        bans: SMALL,
        sources: SMALL,
        salt: INNOCENT,
        allowed: false,
        contents: ClassContents::Denied,
        counts_as: &[Reason::Fenced, Reason::Pass],
    },
    Case {
        name: "listed",
        bans: SMALL,
        sources: SMALL,
        salt: INNOCENT,
        allowed: false,
        contents: ClassContents::Listed,
        counts_as: &[Reason::Listed],
    },
    // As many prefix bans as there may be, in the innocents' neighbourhood: for
    // one in eleven the hint is set and the trie is walked in vain.
    Case {
        name: "innocent-beside-prefixes",
        bans: SMALL,
        sources: SMALL,
        salt: INNOCENT,
        allowed: false,
        contents: ClassContents::None,
        counts_as: &[Reason::Pass],
    },
    Case {
        name: "prefix-banned",
        bans: SMALL,
        sources: SMALL,
        salt: INNOCENT,
        allowed: false,
        contents: ClassContents::None,
        counts_as: &[Reason::BannedAll],
    },
];

/// The prefix bans of a case, by its name.
fn ban_prefix(case: &Case, generation: &Generation) -> anyhow::Result<()> {
    let v4 = |addr: u32, len| Prefix::new(IpAddr::from(addr.to_be_bytes()), len);
    let v6 = |addr: u32, len| Prefix::new(Ipv6Addr::from(u128::from(addr) << 96).into(), len);
    let prefixes: Vec<Prefix> = match case.name {
        "innocent-beside-prefixes" => (0..4096)
            .flat_map(|n| {
                [
                    v4(0x1000_0000 + n * (11 << 16), 25),
                    v6(0x2a00_0000 + n * 11, 72), // longer, so that none holds a source
                ]
            })
            .flatten()
            .collect(),
        "prefix-banned" => (16..192)
            .map(|first| v4(first << 24, 8))
            .chain([v6(0x2a00_0000, 16)])
            .flatten()
            .collect(),
        _ => return Ok(()),
    };
    let mut prefix_bans = PrefixBans::of(&generation.prefix_bans)?;
    for prefix in prefixes {
        let placed = prefix_bans.insert(PrefixBan {
            prefix,
            policy: 1,
            expiry: NEVER,
        })?;
        ensure!(placed == PrefixBanPlaced::New, "{prefix}: {placed:?}");
    }
    generation.table.set_prefix_bans(prefix_bans.families());
    Ok(())
}

const HOOKS: [Hook; 3] = [Hook::Xdp, Hook::XdpGeneric, Hook::Tcx];

fn size(bans: u32) -> &'static str {
    match bans {
        ONE => "one",
        SMALL => "131k",
        _ => "1M",
    }
}

/// A loaded packet path with this many bans of the flood's sources: every
/// eighth for the flood's port only; IPv6 ones half /64, half /128.
fn packet_path(
    flood: &Flood,
    bans: u32,
    allowed: bool,
    contents: Option<&ClassImage>,
    drop_innocent: bool,
) -> anyhow::Result<Generation> {
    let counts = if flood.dest.is_ipv4() {
        BanCounts {
            v4_hosts: bans as usize,
            ..BanCounts::default()
        }
    } else {
        BanCounts {
            networks: bans.div_ceil(2) as usize,
            v6_hosts: bans as usize / 2,
            ..BanCounts::default()
        }
    };
    let options = Options {
        class_lines: contents.map_or(0, ClassImage::lines),
        flow_jiffies: 30_000,
        drop_innocent,
        ..Options::bans(Geometry::for_bans(counts))
    };
    let generation = Generation::create(1, &options, None)?;
    if let Some(contents) = contents {
        generation.classes.write(contents);
    }
    let scope: PortSet = "22/tcp,12345/udp".parse()?;
    small_maps::write_policy(
        &generation.policies,
        1,
        &PortSet::all(),
        Action::Drop,
        "jail:bench",
    )?;
    small_maps::write_policy(&generation.policies, 2, &scope, Action::Drop, "jail:bench")?;
    for n in 0..bans {
        let addr = flood.source(n);
        let len = if addr.is_ipv4() {
            32
        } else if n % 2 == 0 {
            64
        } else {
            128
        };
        let prefix = Prefix::new(addr, len).context("a prefix of the family")?;
        let key = Key::of(prefix).context("a bannable source")?;
        let policy = if n % 8 == 7 { 2 | POLICY_SCOPED } else { 1 };
        let placed = generation.table.insert(Slot {
            key,
            policy,
            expiry: NEVER,
        });
        ensure!(placed != Placed::NoRoom, "the table is full at {n}");
    }
    let allow: PrefixSet = if allowed {
        (16..192u8)
            .map(|first| Prefix::new(IpAddr::from([first, 0, 0, 0]), 8))
            .chain([Prefix::new("2a00::".parse()?, 16)])
            .flatten()
            .collect()
    } else {
        ["10.0.0.0/8", "192.168.0.0/16", "2001:db8::/32"]
            .map(|p| p.parse().expect("a prefix"))
            .into_iter()
            .collect()
    };
    generation.allow.write(&allow)?;
    Ok(generation)
}

fn counted(generation: &Generation) -> anyhow::Result<Vec<u64>> {
    Ok(small_maps::read_counters(&generation.counters)?
        .into_iter()
        .map(|(n, _)| n)
        .collect())
}

/// All rows with live frames.
pub fn run(report: &mut Report, rounds: usize, only: &str) -> anyhow::Result<()> {
    let wire = Wire::new()?;
    let geo_table = weir_sources::geo::Database::built_in()?.countries()?;
    for (family, dest) in [("ipv4", "10.9.0.2"), ("ipv6", "2001:db8::2")] {
        let flood = Flood {
            sources: SMALL,
            salt: 0,
            dest: dest.parse()?,
            port: PORT,
            macs: [wire.veth.mac(Side::B), wire.veth.mac(Side::A)],
            ifindex: wire.ifindex(Side::A)?,
        };
        if format!("pass innocent {family} 131k xdp").contains(only) {
            pass_rows(report, &wire, &flood, family, rounds)?;
        }
        let wanted = |case: &Case, hook| name(case, family, hook).contains(only);
        let mut paths = Vec::new();
        for case in &CASES {
            if HOOKS.into_iter().any(|hook| wanted(case, hook)) {
                let own = Flood {
                    sources: case.sources,
                    salt: case.salt,
                    ..flood
                };
                let contents = case.contents.image(&geo_table, &own)?;
                let path = packet_path(&flood, case.bans, case.allowed, contents.as_ref(), true)?;
                ban_prefix(case, &path)?;
                paths.push((case, path));
            }
        }
        if paths.is_empty() {
            continue;
        }
        let alone = Flood {
            ifindex: 0,
            ..flood
        };
        let rates: Vec<f64> = (0..rounds)
            .map(|_| wire.rate(&alone, 8_000_000))
            .collect::<anyhow::Result<_>>()?;
        report.add(&format!("generator alone {family}"), "Mpps", &rates);
        test_run(report, &paths, &flood, family)?;
        for hook in HOOKS {
            let rows: Vec<_> = paths.iter().filter(|(c, _)| wanted(c, hook)).collect();
            if !rows.is_empty() {
                hook_rows(report, &wire, &flood, &rows, family, hook, rounds)?;
            }
        }
    }
    Ok(())
}

fn name(case: &Case, family: &str, hook: Hook) -> String {
    let target = if case.sources < SMALL { "" } else { "target " };
    format!(
        "{target}{} {family} {}{} {}",
        case.name,
        size(case.bans),
        case.contents.name(),
        hook.name()
    )
}

fn hook_rows(
    report: &mut Report,
    wire: &Wire,
    flood: &Flood,
    rows: &[&(&Case, Generation)],
    family: &str,
    hook: Hook,
    rounds: usize,
) -> anyhow::Result<()> {
    let packets = if hook == Hook::Xdp {
        4_000_000
    } else {
        1_500_000
    };
    let limit_name = format!("unconditional drop {family} {}", hook.name());
    let look_up_name = format!("limit: one look-up {family} {}", hook.name());
    let (mut limit, mut look_up) = (Vec::new(), Vec::new());
    let mut rates = vec![Vec::new(); rows.len()];
    for round in 0..=rounds {
        let link = wire.attach(wire.generator.bare_drop(hook), hook)?;
        let rate = wire.rate(flood, packets)?;
        drop(link);
        // The first round warms caches and page pools up.
        if round > 0 {
            limit.push(rate);
        }
        if hook == Hook::Xdp {
            let flood = Flood {
                sources: ONE,
                ..*flood
            };
            let link = wire.attach(wire.generator.bare_look_up(), hook)?;
            let rate = wire.rate(&flood, packets)?;
            drop(link);
            if round > 0 {
                look_up.push(rate);
            }
        }
        for (i, (case, path)) in rows.iter().enumerate() {
            let flood = Flood {
                sources: case.sources,
                salt: case.salt,
                ..*flood
            };
            let link = wire.attach(path.program(hook)?, hook)?;
            let before = counted(path)?;
            let rate = wire.rate(&flood, packets)?;
            let after = counted(path)?;
            drop(link);
            let as_meant: u64 = case
                .counts_as
                .iter()
                .map(|r| after[*r as usize] - before[*r as usize])
                .sum();
            ensure!(
                as_meant * 100 >= u64::from(packets) * 99,
                "{}: {as_meant} of {packets} packets counted as meant",
                name(case, family, hook)
            );
            if round > 0 {
                rates[i].push(rate);
            }
        }
    }
    report.add(&limit_name, "Mpps", &limit);
    if hook == Hook::Xdp {
        report.add_ratio(&look_up_name, "Mpps", &look_up, (&limit_name, &limit));
    }
    for ((case, _), rates) in rows.iter().zip(&rates) {
        report.add_ratio(
            &name(case, family, hook),
            "Mpps",
            rates,
            (&limit_name, &limit),
        );
    }
    Ok(())
}

/// The shipped program with nothing changed: innocent packets go on to the
/// host's stack, which takes most of the time and finds nobody at home.
fn pass_rows(
    report: &mut Report,
    wire: &Wire,
    flood: &Flood,
    family: &str,
    rounds: usize,
) -> anyhow::Result<()> {
    const PACKETS: u32 = 500_000;
    let path = packet_path(flood, SMALL, false, None, false)?;
    let flood = Flood {
        salt: INNOCENT,
        ..*flood
    };
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        for (program, rates) in [
            (wire.generator.accept(), &mut bare),
            (path.program(Hook::Xdp)?, &mut ours),
        ] {
            let link = wire.attach(program, Hook::Xdp)?;
            let rate = wire.rate(&flood, PACKETS)?;
            drop(link);
            if round > 0 {
                rates.push(rate);
            }
        }
    }
    let passed = counted(&path)?[Reason::Pass as usize];
    ensure!(
        passed >= u64::from(PACKETS) * rounds as u64 * 99 / 100,
        "{passed} packets were counted as passed"
    );
    let limit = format!("unconditional pass {family} xdp");
    report.add(&limit, "Mpps", &bare);
    let name = format!("pass innocent {family} {} xdp", size(SMALL));
    report.add_ratio(&name, "Mpps", &ours, (&limit, &bare));
    Ok(())
}

/// One packet again and again through BPF_PROG_RUN: nanoseconds only (its
/// floor is some 22 ns), and everything in cache.
fn test_run(
    report: &mut Report,
    paths: &[(&Case, Generation)],
    flood: &Flood,
    family: &str,
) -> anyhow::Result<()> {
    for (case, path) in paths {
        let source = Flood {
            salt: case.salt,
            ..*flood
        }
        .source(0);
        let packet = weir_testkit::packet::Packet::eth()
            .ip(source, flood.dest)
            .udp(1024, PORT)
            .pad()
            .build();
        for hook in [Hook::Xdp, Hook::Tcx] {
            let nanos: Vec<f64> = (0..5)
                .map(|_| {
                    prog_test_run::packet(path.program(hook)?, &packet, 1_000_000)
                        .map(|a| f64::from(a.nanos))
                })
                .collect::<Result<_, _>>()?;
            let name = format!(
                "test_run {} {family} {} {}",
                case.name,
                size(case.bans),
                hook.name()
            );
            report.add(&name, "ns", &nanos);
        }
    }
    Ok(())
}
