//! The flows of each real that live, for pools by least connections. The packet path counts
//! them as they begin, and as their clients end them (`bpf/balance/turns.h`); how many there
//! are in truth says its table of flows, which is read here: what is silent for long, or was
//! displaced, is no flow any more.

use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::{MapCore, MapHandle};

use super::MAX_REALS;
use crate::{
    abi::{
        self, FLOW_CONFIRMED, FLOW_ENDED, FLOW_ID_SHIFT, FLOW_REAL_SHIFT, FLOW_SILENT, FLOW_THERE,
        FLOW_UDP, FLOW_USED,
    },
    error::Result,
    memory::Words,
};

/// Words of a real's load: its flows and its weight.
pub(super) const WORDS: usize = 2;

/// So long is a flow without a second packet one, in windows of 256 ticks: a handshake is
/// over by then, and a question answered. Of a flood of SYN, which nobody goes on with, no
/// more counts than comes in this time.
const UNCONFIRMED: u64 = 4;
/// So long without a packet a TCP connection is one, in seconds: as with IPVS.
const TCP_SILENCE: u64 = 15 * 60;

/// A real whose flows are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedReal {
    /// The number of the real, below [`MAX_REALS`].
    pub number: u32,
    /// The [`super::real_id`] of the real.
    pub id: u64,
    /// So long without a packet a flow of UDP is one, in seconds.
    pub udp_silence: u64,
    /// Before so many seconds it took no packets at all, so flows without one since then are
    /// lost; `None`: it always took some.
    pub took_none_until: Option<u64>,
}

/// The loads of all reals, and the table of flows once it was asked for.
pub(super) struct Loads {
    words: Arc<Words>,
    table: Mutex<Option<Arc<LiveFlows>>>,
}

impl Loads {
    pub(super) fn map(map: &MapHandle) -> Result<Self> {
        let words = Words::map(map, WORDS * MAX_REALS, "the flows of reals")?;
        Ok(Self {
            words: Arc::new(words),
            table: Mutex::default(),
        })
    }

    pub(super) fn set_weight(&self, number: u32, weight: u32) {
        self.words.store(WORDS * number as usize + 1, weight.into());
    }

    pub(super) fn flows(&self, number: u32) -> u64 {
        let flows = self.words.load(WORDS * number as usize) as i64;
        flows.max(0) as u64
    }

    pub(super) fn live_flows(&self, table: &MapHandle) -> Result<Arc<LiveFlows>> {
        let mut there = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = &*there {
            return Ok(there.clone());
        }
        let places = table.max_entries() as usize * abi::BALANCE_BUCKET as usize;
        let made = Arc::new(LiveFlows {
            table: Words::map(table, 2 * places, "the table of flows")?,
            loads: self.words.clone(),
        });
        *there = Some(made.clone());
        Ok(made)
    }
}

/// The table of flows, from which those of each real are counted.
pub struct LiveFlows {
    table: Words,
    loads: Arc<Words>,
}

impl LiveFlows {
    /// Makes the loads of these reals what the table says. All of the table is read, 32 bytes
    /// for each flow that finds room: 0.1 ms for 65,536, 20 ms for 4,194,304. `jiffies`: now,
    /// of which there are `hz` in a second. Flows that begin or end meanwhile may count twice,
    /// or not at all, until the next time. What is silent is marked, so that its next packet
    /// counts it again, and its end does not count; nor does it live again when the windows
    /// by which flows are dated begin anew.
    pub fn correct(&self, reals: &[CountedReal], jiffies: u64, hz: u64) {
        let mut known = vec![None; MAX_REALS];
        let mut before = Vec::with_capacity(reals.len());
        let window = |seconds: u64| (seconds.saturating_mul(hz) >> abi::EVENT_WINDOW_SHIFT) + 1;
        for real in reals {
            let number = real.number as usize;
            let most = real.took_none_until.unwrap_or(u64::MAX);
            let silence = [TCP_SILENCE, real.udp_silence];
            let silence = silence.map(|time| window(time.min(most)).min(FLOW_USED / 2));
            known[number] = Some((real.id as u16, silence, 0u64));
            before.push(self.loads.load(WORDS * number));
        }
        let now = jiffies >> abi::EVENT_WINDOW_SHIFT;
        for place in 0..self.table.len() / 2 {
            let state = self.table.load(2 * place + 1);
            if state & (FLOW_THERE | FLOW_ENDED | FLOW_SILENT) != FLOW_THERE {
                continue;
            }
            let number = (state >> FLOW_REAL_SHIFT & 0xffff) as usize;
            if let Some(Some((id, silence, count))) = known.get_mut(number)
                && u64::from(*id) == state >> FLOW_ID_SHIFT
            {
                let most = match state & FLOW_CONFIRMED {
                    0 => UNCONFIRMED,
                    _ => silence[usize::from(state & FLOW_UDP != 0)],
                };
                // A packet of the next window may have come already.
                let silent = now.wrapping_sub(state).wrapping_add(1) & FLOW_USED;
                if silent <= most + 1 {
                    *count += 1;
                } else {
                    // A packet that comes at this moment goes before.
                    self.table
                        .replace(2 * place + 1, state, state | FLOW_SILENT);
                }
            }
        }
        for (real, before) in reals.iter().zip(before) {
            let number = real.number as usize;
            let counted = known[number].map_or(0, |(_, _, count)| count);
            let flows = WORDS * number;
            self.loads.add(flows, counted.wrapping_sub(before));
        }
    }
}
