//! The reals whose QUIC connections stay with them, by the server IDs in their connection
//! IDs (`bpf/balance/quic.h`).

use std::collections::BTreeMap;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_core::balance::quic::ServerId;

use super::{MAX_POOLS, PoolRules, bytes_of};
use crate::{
    abi,
    error::{Context, Result},
    skeleton::answer::types::{balance_quic_key, balance_quic_server},
};

/// A real that writes its server ID into the connection IDs that it chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuicServer {
    /// What its connection IDs hold.
    pub server_id: ServerId,
    /// The number of the real.
    pub real: u32,
    /// The real's [`real_id`](super::real_id): another real in its place has another.
    pub id: u64,
}

/// What the map is to hold, for all pools: keys and values as the kernel has them.
fn entries(pools: &[PoolRules]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let pools = (0..).zip(pools.iter().take(MAX_POOLS));
    let all = pools.flat_map(|(pool, rules)| rules.quic_servers.iter().map(move |s| (pool, s)));
    all.map(|(pool, server)| {
        let mut server_id = [0; abi::BALANCE_QUIC_SERVER_ID_MAX as usize];
        let bytes = server.server_id.bytes();
        server_id[..bytes.len()].copy_from_slice(bytes);
        let key = balance_quic_key {
            pool,
            pad: 0,
            server_id,
        };
        let value = balance_quic_server {
            id: server.id,
            real: server.real,
            pad: 0,
        };
        (bytes_of(&key), bytes_of(&value))
    })
    .collect()
}

/// Adds what pools have now. One that has gone to another real is nobody's for a moment,
/// for the kernel copies a value word by word.
pub(super) fn write(map: &MapHandle, pools: &[PoolRules]) -> Result<()> {
    let what = || "tell the kernel the server IDs of QUIC".into();
    for (key, value) in entries(pools) {
        let before = map.lookup(&key, MapFlags::ANY).context(what)?;
        if before.as_ref() == Some(&value) {
            continue;
        }
        if before.is_some() {
            map.delete(&key).context(what)?;
        }
        map.update(&key, &value, MapFlags::ANY).context(what)?;
    }
    Ok(())
}

/// Takes away what no pool has any more.
pub(super) fn forget_others(map: &MapHandle, pools: &[PoolRules]) -> Result<()> {
    let kept = entries(pools);
    let gone: Vec<_> = map.keys().filter(|key| !kept.contains_key(key)).collect();
    for key in gone {
        map.delete(&key)
            .context(|| "take server IDs of QUIC out of the kernel".into())?;
    }
    Ok(())
}

const _: () = assert!(ServerId::MAX_LEN == abi::BALANCE_QUIC_SERVER_ID_MAX as usize);
