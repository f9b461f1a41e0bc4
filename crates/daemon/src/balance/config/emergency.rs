//! `emergency` of a pool: who takes new flows while none of its reals does.

use weir_config::Section;

use super::{Forward, PoolConfig, RealConfig, quic, reals};

const ALLOWED: &str =
    "the name of another pool, or a list of tables such as [{ address = \"10.0.0.19\" }]";

/// Servers that stand in for the reals of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Emergency {
    /// Servers of the pool itself, checked as its reals are.
    Reals(Vec<RealConfig>),
    /// The reals of the pool of this name, as its own checks find them.
    Pool(String),
}

impl Emergency {
    /// The servers of the pool itself.
    pub(super) fn reals(&self) -> &[RealConfig] {
        match self {
            Self::Reals(reals) => reals,
            Self::Pool(_) => &[],
        }
    }
}

/// The pool of this name, with the line on which it names another one.
pub(super) fn named_line(name: &str, section: &Section<'_, '_>) -> Option<(String, usize)> {
    let line = section.line_of("emergency");
    let line = line.filter(|_| section.is_text("emergency"))?;
    Some((name.to_owned(), line))
}

pub(super) fn read(
    section: &mut Section<'_, '_>,
    of: &str,
    regular: &[RealConfig],
    is_proxied: bool,
) -> Option<Emergency> {
    let Some(line) = section.line_of("emergency") else {
        // Asked for, and so known.
        section.string("emergency", ALLOWED);
        return None;
    };
    if section.is_text("emergency") {
        let name = section.string("emergency", ALLOWED)?;
        return Some(Emergency::Pool(name.value));
    }
    let stand_ins = reals(section, of, "emergency", ALLOWED, is_proxied, regular);
    for real in &stand_ins {
        if regular.iter().any(|known| known.address == real.address) {
            section.error(
                line,
                format!(
                    "emergency in {of} has {}, which is in reals; allowed: other servers",
                    real.address
                ),
            );
        }
    }
    Some(Emergency::Reals(stand_ins))
}

/// Pools that are named are there. `lines`: which pool names one, on which line.
pub(super) fn check(root: &Section<'_, '_>, pools: &[PoolConfig], lines: &[(String, usize)]) {
    for pool in pools {
        let Some(Emergency::Pool(named)) = &pool.emergency else {
            continue;
        };
        let line = lines.iter().find(|(name, _)| *name == pool.name);
        let line = line.map_or(root.line(), |(_, line)| *line);
        let others = pools.iter().filter(|other| other.name != pool.name);
        if let Some(other) = others.clone().find(|other| other.name == *named) {
            if let Some(why) = why_not(pool, other) {
                let of = format!("emergency in [pool.{}] is {named:?}", pool.name);
                root.error(line, format!("{of}, {why}"));
            }
            continue;
        }
        let others: Vec<_> = others.map(|other| other.name.as_str()).collect();
        let there = match others.is_empty() {
            true => "there is no other".to_owned(),
            false => others.join(", "),
        };
        root.error(
            line,
            format!(
                "emergency in [pool.{}] is {named:?}; allowed: {ALLOWED} ({there})",
                pool.name
            ),
        );
    }
}

/// Why the reals of `other` cannot stand in for those of `pool`.
fn why_not(pool: &PoolConfig, other: &PoolConfig) -> Option<String> {
    if let Some(why) = quic::shared(pool, other) {
        return Some(why);
    }
    if pool.is_proxied() != other.is_proxied() {
        let which = if pool.is_proxied() {
            "a pool with \"proxy\" as well"
        } else {
            "a pool without \"proxy\""
        };
        return Some(format!(
            "a pool with forward = \"{}\"; allowed beside forward = \"{}\": {which}, or reals",
            other.forward.name(),
            pool.forward.name()
        ));
    }
    let Forward::Proxy(limits) = &pool.forward else {
        return None;
    };
    let is_v4 = pool.vips.first()?.is_ipv4();
    let mut reals = other.reals.iter().map(|real| real.address);
    let stranger = reals.find(|real| limits.is_transparent && real.is_ipv4() != is_v4)?;
    Some(format!(
        "which has {stranger}, and with transparent no real can see a client's address of the other family"
    ))
}
