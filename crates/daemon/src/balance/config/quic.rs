//! `quic_server_id` of reals: by which part of their connection IDs QUIC connections stay
//! with them.

use std::collections::BTreeMap;

use weir_config::Section;
use weir_core::{Protocol, balance::quic::ServerId};

use super::PoolConfig;

/// The key of one real. `of`: where the real is, for messages.
pub(super) fn read(table: &mut Section<'_, '_>, of: &str, is_proxied: bool) -> Option<ServerId> {
    let at = table.string("quic_server_id", ServerId::ALLOWED)?;
    if is_proxied {
        table.error(
            at.line,
            format!("quic_server_id in {of}: the proxy knows connections by addresses and ports; allowed: with another forward"),
        );
        return None;
    }
    let parsed = at.value.parse().ok();
    if parsed.is_none() {
        table.error(
            at.line,
            format!(
                "quic_server_id in {of} is {:?}; allowed: {}",
                at.value,
                ServerId::ALLOWED
            ),
        );
    }
    parsed
}

/// What the reals of a pool must have in common.
pub(super) fn check(
    pool: &PoolConfig,
    section: &Section<'_, '_>,
    line: usize,
    warnings: &mut Vec<String>,
) {
    let with = pool
        .own_reals()
        .filter_map(|real| Some((real, real.quic_server_id?)));
    let mut known: BTreeMap<ServerId, _> = BTreeMap::new();
    let mut first: Option<ServerId> = None;
    for (real, id) in with {
        let of = format!(
            "quic_server_id {id} of {} in [pool.{}]",
            real.address, pool.name
        );
        if let Some(other) = known.insert(id, real.address) {
            section.error(
                line,
                format!("{of} is that of {other}; allowed: one real each"),
            );
        }
        let first = first.get_or_insert(id);
        if first.bytes().len() != id.bytes().len() {
            section.error(
                line,
                format!("{of} is not as long as {first}; allowed: one length for all of a pool, for connection IDs do not say it"),
            );
        }
    }
    if first.is_none() {
        return;
    }
    if pool
        .ports
        .iter()
        .all(|(protocol, _)| *protocol != Protocol::Udp)
    {
        section.error(
            line,
            format!("quic_server_id in [pool.{}], which serves no port of UDP; allowed: with one, such as \"443/udp\"", pool.name),
        );
    }
    for real in pool
        .own_reals()
        .filter(|real| real.quic_server_id.is_none())
    {
        warnings.push(format!(
            "reals of [pool.{}] have quic_server_id, and {} has none: a QUIC connection of its that changes its address or port is lost",
            pool.name, real.address
        ));
    }
}
