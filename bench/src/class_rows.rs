//! Class tables for the rows of `live`: the built-in country database as it is,
//! and a million prefixes of lists, laid out so that the flood's sources are
//! what the row says they are and everything around them is not.

use std::{net::IpAddr, time::Instant};

use anyhow::Context;
use weir_bpf::{ClassImage, generator::Flood};
use weir_core::{
    PortSet, Prefix,
    address_class::{Class, Classes, Cover, ListLayer, Plan},
    geo::{GeoTable, Number, Span, find},
    geofence::{Direction, Fence, RuleAction},
};
use weir_sources::geo::Database;

use crate::report::Report;

/// What is in the class table of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassContents {
    /// A packet path without a class stage.
    None,
    /// Every range of the country database that holds none of the flood's
    /// sources is denied.
    Countries,
    /// The same, and a million prefixes on lists, none of which holds a source.
    CountriesAndLists,
    /// Every range of the country database is denied.
    Denied,
    /// Every source is in one of a million prefixes on lists.
    Listed,
}

/// Seed of the exceptions' hash: any will do.
const SEED: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];
/// Prefixes of the lists.
const MILLION: u32 = 1_000_000;

impl ClassContents {
    /// The word in the row's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Countries => " country table",
            Self::CountriesAndLists => " country table and 1M prefixes",
            Self::Denied => " country table",
            Self::Listed => " country table and 1M prefixes",
        }
    }

    /// The table, for sources of this flood.
    pub fn image(self, geo_table: &GeoTable, flood: &Flood) -> anyhow::Result<Option<ClassImage>> {
        let Some(classes) = self.classes(geo_table, flood)? else {
            return Ok(None);
        };
        Ok(Some(ClassImage::build(&classes, &[0, 0], SEED)))
    }

    fn classes(self, geo_table: &GeoTable, flood: &Flood) -> anyhow::Result<Option<Classes>> {
        let denied = match self {
            Self::None => return Ok(None),
            Self::Denied | Self::Listed => denied(geo_table, &[]),
            Self::Countries | Self::CountriesAndLists => denied(geo_table, &sources(flood)),
        };
        let lists = match self {
            Self::CountriesAndLists => prefixes(flood, false)?,
            Self::Listed => prefixes(flood, true)?,
            _ => return Ok(Some(denied)),
        };
        // The lists over the countries, as the daemon joins them.
        let scope = PortSet::all();
        let layers = [ListLayer {
            name: "bench",
            scope: &scope,
            direction: Direction::In,
            prefixes: &lists,
        }];
        let lists = Plan {
            geo_table: &GeoTable::default(),
            fences: &[],
            lists: &layers,
        }
        .join()?;
        Ok(Some(over(denied, lists)))
    }
}

fn sources(flood: &Flood) -> Vec<IpAddr> {
    (0..flood.sources).map(|n| flood.source(n)).collect()
}

/// The GeoTable with a class per country; class 0 for ranges that hold `spared`.
fn denied(geo_table: &GeoTable, spared: &[IpAddr]) -> Classes {
    let mut classes = vec![Class::default()];
    classes.extend(geo_table.places.iter().map(|place| Class {
        lists: 0,
        denied: 1,
        country: place.country,
    }));
    let v4: Vec<u32> = spared
        .iter()
        .filter_map(|a| match a {
            IpAddr::V4(a) => Some(a.to_bits()),
            IpAddr::V6(_) => None,
        })
        .collect();
    let v6: Vec<u128> = spared
        .iter()
        .filter_map(|a| match a {
            IpAddr::V6(a) => Some(a.to_bits()),
            IpAddr::V4(_) => None,
        })
        .collect();
    Classes {
        lists: Vec::new(),
        fences: vec![Cover {
            name: "geofence".into(),
            scope: PortSet::all(),
            direction: Direction::In,
        }],
        classes,
        v4: without(&geo_table.v4, v4),
        v6: without(&geo_table.v6, v6),
    }
}

fn without<A: Number>(spans: &[Span<A, u16>], mut spared: Vec<A>) -> Vec<Span<A, u16>> {
    spared.sort_unstable();
    spans
        .iter()
        .filter(|span| {
            let next = spared.partition_point(|addr| *addr < span.first);
            spared.get(next).is_none_or(|addr| *addr > span.last)
        })
        .map(|span| Span {
            value: span.value + 1,
            ..*span
        })
        .collect()
}

/// A million prefixes where the flood's sources come from, half of them /24
/// (IPv6: /48), half of them single addresses; with a source in each of the
/// first ones, or with none in any.
fn prefixes(flood: &Flood, hit: bool) -> anyhow::Result<Vec<Prefix>> {
    let others = Flood {
        sources: 1 << 21,
        salt: 3 << 28,
        ..*flood
    };
    let wide = if flood.dest.is_ipv4() { 24 } else { 48 };
    let host = if flood.dest.is_ipv4() { 32 } else { 128 };
    let of = |addr, n: u32| {
        let len = if n.is_multiple_of(2) { wide } else { host };
        Prefix::new(addr, len).context("a prefix of the family")
    };
    let own = sources(flood);
    let taken: std::collections::HashSet<Prefix> = own
        .iter()
        .filter_map(|addr| Prefix::new(*addr, wide))
        .collect();
    let mut prefixes = Vec::with_capacity(MILLION as usize);
    if hit {
        for (n, addr) in (0..).zip(&own) {
            prefixes.push(of(*addr, n)?);
        }
    }
    for n in 0..others.sources {
        if prefixes.len() == MILLION as usize {
            break;
        }
        let addr = others.source(n);
        let near = Prefix::new(addr, wide).context("a prefix of the family")?;
        if !taken.contains(&near) {
            prefixes.push(of(addr, n)?);
        }
    }
    Ok(prefixes)
}

/// Merges two partitions, the second above the first: lists decide before the geofence.
fn over(mut below: Classes, above: Classes) -> Classes {
    let listed = u16::try_from(below.classes.len()).expect("few countries");
    below.classes.push(Class {
        lists: 1,
        ..Class::default()
    });
    below.lists = above.lists;
    below.v4 = laid(&below.v4, &above.v4, listed);
    below.v6 = laid(&below.v6, &above.v6, listed);
    below
}

fn laid<A: Number>(
    below: &[Span<A, u16>],
    above: &[Span<A, u16>],
    listed: u16,
) -> Vec<Span<A, u16>> {
    let mut out = Vec::with_capacity(below.len() + 2 * above.len());
    let mut rest = below.iter().copied().peekable();
    for top in above {
        while let Some(span) = rest.peek_mut() {
            if span.last < top.first {
                out.push(*span);
                rest.next();
                continue;
            }
            if span.first < top.first {
                out.push(Span {
                    last: top.first.previous(),
                    ..*span
                });
            }
            match top.last.next() {
                Some(next) if span.last > top.last => {
                    span.first = span.first.max(next);
                    break;
                }
                _ if span.first > top.last => break,
                _ => {
                    rest.next();
                }
            }
        }
        out.push(Span {
            value: listed,
            ..*top
        });
    }
    out.extend(rest);
    out
}

/// Rows about the table itself: how long a rebuild takes and what it holds.
pub fn rows(report: &mut Report, rounds: usize) -> anyhow::Result<()> {
    let database = Database::built_in()?;
    let flood = Flood {
        sources: 1 << 17,
        salt: 0,
        dest: "192.0.2.1".parse()?,
        port: 9,
        macs: [[0; 6]; 2],
        ifindex: 0,
    };
    let mut read = Vec::new();
    for _ in 0..rounds {
        let begin = Instant::now();
        let geo_table = database.countries()?;
        read.push(begin.elapsed().as_secs_f64());
        assert!(find(&geo_table.v4, 0x0808_0808).is_some());
    }
    report.add("class table: read the country database", "s", &read);
    let geo_table = database.countries()?;
    report.add(
        "class table: IPv4 ranges of the database",
        "",
        &[geo_table.v4.len() as f64],
    );
    report.add(
        "class table: IPv6 ranges of the database",
        "",
        &[geo_table.v6.len() as f64],
    );
    let lists = prefixes(&flood, false)?;
    for (name, lists) in [
        ("countries", &[][..]),
        ("countries and 1M prefixes", &lists),
    ] {
        let (mut join, mut build, mut size) = (Vec::new(), Vec::new(), 0);
        for _ in 0..rounds {
            let scope = PortSet::all();
            let layers = [ListLayer {
                name: "bench",
                scope: &scope,
                direction: Direction::In,
                prefixes: lists,
            }];
            let fences = [Fence {
                name: "geofence".into(),
                scope: PortSet::all(),
                direction: Direction::In,
                default: RuleAction::Drop,
                allow: vec!["country:NL".parse()?],
                deny: Vec::new(),
                unknown: RuleAction::Drop,
                except: weir_core::PrefixSet::default(),
            }];
            let begin = Instant::now();
            let classes = Plan {
                geo_table: &geo_table,
                fences: &fences,
                lists: &layers,
            }
            .join()?;
            join.push(begin.elapsed().as_secs_f64());
            let begin = Instant::now();
            let image = ClassImage::build(&classes, &[0, 0], SEED);
            build.push(begin.elapsed().as_secs_f64());
            size = image.lines() as usize * 64;
        }
        report.add(&format!("class table: join {name}"), "s", &join);
        report.add(&format!("class table: build {name}"), "s", &build);
        let mib = size as f64 / f64::from(1 << 20);
        report.add(&format!("class table: one copy, {name}"), "MiB", &[mib]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_sources_are_what_the_row_says() {
        let geo_table = Database::built_in().unwrap().countries().unwrap();
        for dest in ["192.0.2.1", "2001:db8::1"] {
            let flood = Flood {
                sources: 1 << 12,
                salt: 0,
                dest: dest.parse().unwrap(),
                port: 9,
                macs: [[0; 6]; 2],
                ifindex: 0,
            };
            for (contents, innocent) in [
                (ClassContents::Countries, true),
                (ClassContents::CountriesAndLists, true),
                (ClassContents::Listed, false),
            ] {
                let classes = contents.classes(&geo_table, &flood).unwrap().unwrap();
                for addr in sources(&flood) {
                    let class = classes.class(addr);
                    assert_eq!(class == Class::default(), innocent, "{contents:?} {addr}");
                    assert!(innocent || class.lists == 1, "{contents:?} {addr}");
                }
                let sorted = |spans: &[Span<u32, u16>]| {
                    spans.windows(2).all(|pair| pair[0].last < pair[1].first)
                };
                assert!(sorted(&classes.v4), "{contents:?}");
            }
        }
    }
}
