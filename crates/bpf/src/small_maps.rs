//! Typed access to the smaller maps: policies and counters.

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_core::{Action, PortRange, PortSet, Protocol};

use crate::{
    abi::{ACTION_DROP, ACTION_REJECT, MAX_POLICIES, R_MAX},
    error::{Context, Result},
    skeleton::firewall::types::{counter, policy},
};

/// Writes what a policy number means. `producer` is cut at 65 bytes.
pub fn write_policy(
    map: &MapHandle,
    number: u32,
    scope: &PortSet,
    action: Action,
    producer: &str,
) -> Result<()> {
    let mut record = policy {
        ranges: scope.ranges().len() as u16,
        action: match action {
            Action::Drop | Action::Notify => ACTION_DROP,
            Action::Reject => ACTION_REJECT,
        } as u16,
        ..Default::default()
    };
    for (to, from) in record.range.iter_mut().zip(scope.ranges()) {
        to.protocol = from.protocol.number();
        to.low = from.low;
        to.high = from.high;
    }
    for (to, from) in record.producer.iter_mut().zip(producer.bytes().take(65)) {
        *to = from as _;
    }
    // SAFETY: `policy` is plain old data without padding (its size is asserted).
    let bytes = unsafe {
        std::slice::from_raw_parts((&raw const record).cast::<u8>(), size_of::<policy>())
    };
    map.update(&number.to_ne_bytes(), bytes, MapFlags::ANY)
        .context(|| format!("write policy {number}"))
}

/// Every policy in use: (number, scope, action, producer's text).
pub fn read_policies(map: &MapHandle) -> Result<Vec<(u32, PortSet, Action, String)>> {
    let mut policies = Vec::new();
    for number in 1..MAX_POLICIES {
        let Some(bytes) = map
            .lookup(&number.to_ne_bytes(), MapFlags::ANY)
            .context(|| format!("read policy {number}"))?
        else {
            break;
        };
        if bytes.len() != size_of::<policy>() {
            break;
        }
        // SAFETY: the right number of bytes, and every bit pattern is a `policy`.
        let record: policy = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
        let producer: Vec<u8> = record
            .producer
            .iter()
            .map(|c| *c as u8)
            .take_while(|c| *c != 0)
            .collect();
        if producer.is_empty() {
            break; // numbers are given in order
        }
        let ranges = record
            .range
            .iter()
            .take(record.ranges.into())
            .map(|r| PortRange {
                protocol: Protocol::from_number(r.protocol).unwrap_or(Protocol::Any),
                low: r.low,
                high: r.high,
            });
        let Ok(scope) = PortSet::ports(ranges) else {
            continue;
        };
        let action = match record.action.into() {
            ACTION_REJECT => Action::Reject,
            _ => Action::Drop,
        };
        policies.push((
            number,
            scope,
            action,
            String::from_utf8_lossy(&producer).into_owned(),
        ));
    }
    Ok(policies)
}

/// A number of a per-CPU array of 64-bit counters, summed over all CPUs. `of`: what is
/// counted there, for an error.
pub(crate) fn sum_of(map: &MapHandle, number: u32, of: &str) -> Result<u64> {
    let cpus = map
        .lookup_percpu(&number.to_ne_bytes(), MapFlags::ANY)
        .context(|| format!("read the counters of {of}"))?;
    let of_cpu = |bytes: Vec<u8>| bytes.try_into().map_or(0, u64::from_ne_bytes);
    // What one processor adds another may take away.
    let cpus = cpus.into_iter().flatten().map(of_cpu);
    Ok(cpus.fold(0, u64::wrapping_add))
}

/// Packets and bytes by reason number, over all CPUs.
pub fn read_counters(map: &MapHandle) -> Result<Vec<(u64, u64)>> {
    (0..R_MAX)
        .map(|reason| {
            let cpus = map
                .lookup_percpu(&reason.to_ne_bytes(), MapFlags::ANY)
                .context(|| "read the counters".into())?
                .unwrap_or_default();
            Ok(cpus
                .iter()
                .filter(|b| b.len() >= size_of::<counter>())
                .fold((0, 0), |sum, bytes| {
                    // SAFETY: long enough, and every bit pattern is a `counter`.
                    let c: counter = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
                    (sum.0 + c.packets, sum.1 + c.bytes)
                }))
        })
        .collect()
}
