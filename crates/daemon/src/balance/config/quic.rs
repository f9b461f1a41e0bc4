//! `quic_server_id` of reals: by which part of their connection IDs QUIC connections stay
//! with them.

use weir_config::Section;
use weir_core::{PortRange, Protocol, balance::quic::ServerId};

use super::{PoolConfig, RealConfig};

/// The key of one real. `of`: where the real is, for messages; `others`: those of the pool
/// that were read before.
pub(super) fn read<'a>(
    table: &mut Section<'_, '_>,
    of: &str,
    is_proxied: bool,
    others: impl Iterator<Item = &'a RealConfig>,
) -> Option<ServerId> {
    let at = table.string("quic_server_id", ServerId::ALLOWED)?;
    let wrong = |why: String| {
        table.error(
            at.line,
            format!("quic_server_id in {of} is {:?}{why}", at.value),
        );
    };
    if is_proxied {
        wrong("; allowed: without forward = \"proxy\", for the proxy knows connections by addresses and ports".into());
        return None;
    }
    let Ok(id) = at.value.parse::<ServerId>() else {
        wrong(format!("; allowed: {}", ServerId::ALLOWED));
        return None;
    };
    for (address, other) in others.filter_map(|r| Some((r.address, r.quic_server_id?))) {
        if other == id {
            wrong(format!(", that of {address}; allowed: one real each"));
            break;
        }
        if other.bytes().len() != id.bytes().len() {
            wrong(format!(
                ", and {address} has {other}; allowed: one length for all of a pool, for connection IDs do not say it"
            ));
            break;
        }
    }
    Some(id)
}

/// What the pool must have for it.
pub(super) fn check(
    pool: &PoolConfig,
    section: &Section<'_, '_>,
    line: usize,
    warnings: &mut Vec<String>,
) {
    if pool.own_reals().all(|real| real.quic_server_id.is_none()) {
        return;
    }
    let is_udp = |port: &&PortRange| port.protocol == Protocol::Udp;
    let mut all = pool
        .ports
        .iter()
        .filter(is_udp)
        .filter(|port| port.is_all());
    match pool.ports.iter().filter(is_udp).count() {
        0 => section.error(
            line,
            format!("quic_server_id in [pool.{}], which serves no port of UDP; allowed: with one, such as \"443/udp\"", pool.name),
        ),
        _ if all.next().is_some() => warnings.push(format!(
            "[pool.{}] serves all ports of UDP, and with quic_server_id all are taken for QUIC's: datagrams of another protocol may go to another real than their flow's; name the port of QUIC in a pool of its own",
            pool.name
        )),
        1 => (),
        count => warnings.push(format!(
            "[pool.{}] serves {count} ports of UDP, and with quic_server_id all are taken for QUIC's: datagrams of another protocol may go to another real than their flow's; give it a pool of its own",
            pool.name
        )),
    }
    for real in pool
        .own_reals()
        .filter(|real| real.quic_server_id.is_none())
    {
        warnings.push(format!(
            "reals of [pool.{}] have quic_server_id, and {} has none: its QUIC connections break when a client's address or port changes",
            pool.name, real.address
        ));
    }
}

/// Why another pool's reals cannot stand in for those of `pool`, if it is for their server
/// IDs: a connection of theirs would be taken for one of the pool's own.
pub(super) fn shared(pool: &PoolConfig, other: &PoolConfig) -> Option<String> {
    let own = pool.own_reals().filter_map(|real| real.quic_server_id);
    let mut theirs = other.own_reals().filter_map(|real| real.quic_server_id);
    let own: Vec<_> = own.collect();
    let begins = |id: &ServerId, other: &ServerId| other.bytes().starts_with(id.bytes());
    let is_same = |id: &ServerId| own.iter().any(|own| begins(id, own) || begins(own, id));
    let id = theirs.find(is_same)?;
    Some(format!(
        "whose real with quic_server_id {id:?} looks like one of this pool's; allowed: IDs that differ",
        id = id.to_string()
    ))
}
