//! A jail's keys about a shared-memory ring: `ring`, `ring_owner`,
//! `ring_max_mib`, `workers`.

use std::path::Path;

use weir_config::{At, Section};

use super::{JailConfig, RingChoice, SourceChoice};
use crate::host::HostFacts;

const RING: &str = "the absolute path of a ring's directory such as \"/run/weir-ring/shop\"";
const OWNER: &str = "the name or number of the user whose segments are read besides root's";
/// MiB that the segments of a ring may take together: unless said otherwise, and
/// at most.
const MIB: u64 = 1024;
const MAX_MIB: u64 = 1 << 20;
const MAX_WORKERS: u64 = 64;
/// More threads than these are not started unasked.
const WORKERS: usize = 8;

/// What the jail says of a ring, if it names one.
pub(super) fn read(
    section: &mut Section<'_, '_>,
    jail: &str,
    host: &dyn HostFacts,
    warnings: &mut Vec<String>,
) -> Option<At<RingChoice>> {
    let ring = section.string("ring", RING);
    let owner = section.string("ring_owner", OWNER);
    let max_mib = section.integer("ring_max_mib", 1..=MAX_MIB);
    let workers = section.integer("workers", 1..=MAX_WORKERS);
    let Some(ring) = ring else {
        let lines = [
            ("ring_owner", owner.map(|at| at.line)),
            ("ring_max_mib", max_mib.map(|at| at.line)),
            ("workers", workers.map(|at| at.line)),
        ];
        for (key, line) in lines {
            if let Some(line) = line {
                section.error(
                    line,
                    format!("{key} in [jail.{jail}] is about rings; allowed: with ring = \"/run/weir-ring/…\""),
                );
            }
        }
        return None;
    };
    if !ring.value.starts_with('/') {
        section.error(
            ring.line,
            format!("ring in [jail.{jail}] is {:?}; allowed: {RING}", ring.value),
        );
    }
    if !host.has_file(&ring.value) {
        warnings.push(format!(
            "[jail.{jail}]: {} does not exist yet; it is read as soon as it appears",
            ring.value
        ));
    }
    let owner = owner.and_then(|at| {
        let number = at.value.parse().ok().or_else(|| host.user(&at.value));
        if number.is_none() {
            section.error(
                at.line,
                format!(
                    "ring_owner in [jail.{jail}] is {:?}, no user of this host; allowed: {OWNER}",
                    at.value
                ),
            );
        }
        number
    });
    if let Some(fault) = host.ring_fault(Path::new(&ring.value), owner) {
        warnings.push(format!(
            "[jail.{jail}]: {fault}; nothing in it is read. Rings belong below a directory of root's, such as /run/weir-ring"
        ));
    }
    Some(At {
        value: RingChoice {
            max_mib: max_mib.map_or(MIB, |at| at.value),
            directory: ring.value.into(),
            owner,
            workers: workers.map_or_else(|| host.processors().min(WORKERS), |at| at.value as usize),
        },
        line: ring.line,
    })
}

/// A ring is opened once for all jails that read it, so they must agree.
pub(super) fn check_against(
    section: &Section<'_, '_>,
    jail: &str,
    choice: &RingChoice,
    others: &[JailConfig],
) {
    let differs = others.iter().find(|other| {
        matches!(&other.source, SourceChoice::Ring(known)
            if known.directory == choice.directory && known != choice)
    });
    if let Some(other) = differs {
        section.error(
            section.line(),
            format!(
                "[jail.{jail}] and [jail.{}] read one ring with other words; allowed: the same ring_owner, ring_max_mib and workers in both",
                other.name
            ),
        );
    }
}
