//! The live flows of the reals of pools by least connections. The packet path adds those that
//! begin and takes off those that their clients end; here they are counted anew in its table
//! of flows from time to time, because most that end otherwise say nothing.

use std::time::{Duration, Instant};

use weir_enforce::CountedReal;

use super::{
    ABOUT_ACTIVE_FLOWS, Balancer, Pool, State,
    config::{Emergency, Method, PoolConfig},
    emergency::servers,
};

/// Flows are counted so often.
const INTERVAL: Duration = Duration::from_secs(1);
/// Of a large table less often, so that counting takes no more of the time than one part of
/// so many.
const PARTS: u32 = 100;

impl PoolConfig {
    /// Do new flows go by how many live ones each real has?
    pub(super) fn counts_flows(&self) -> bool {
        self.method == Method::LeastConnections && !self.is_proxied()
    }
}

impl State {
    /// The numbers of those who take new flows of a pool that counts flows, and their shares.
    pub(super) fn weights(&self, pool: &Pool) -> Vec<(u32, u32)> {
        if !pool.config.counts_flows() {
            return Vec::new();
        }
        let now = Instant::now();
        let takers = servers(pool, &self.pools).1.into_iter();
        let share = |real: &super::RealState| real.share(pool.config.slow_start, now);
        takers.map(|real| (real.number, share(real))).collect()
    }

    /// The reals of pools that count flows, and of those that stand in for such a pool.
    fn counted_reals(&self) -> Vec<CountedReal> {
        let counting = self.pools.iter().filter(|pool| pool.config.counts_flows());
        let stands_in = |name: &str| {
            counting.clone().any(|pool| match &pool.config.emergency {
                Some(Emergency::Pool(other)) => other == name,
                _ => false,
            })
        };
        let is_counted = |pool: &&Pool| pool.config.counts_flows() || stands_in(&pool.config.name);
        let pools = self.pools.iter().filter(is_counted);
        let of = |pool: &Pool| {
            let udp_silence = pool.config.udp_timeout.as_secs();
            let reals = pool.reals.iter().map(move |real| CountedReal {
                number: real.number,
                id: real.id,
                udp_silence,
                took_none_until: real.took_none_until.map(|at| at.elapsed().as_secs()),
            });
            reals.collect::<Vec<_>>()
        };
        pools.flat_map(of).collect()
    }
}

impl Balancer {
    /// Counts live flows, if it is time to and somebody wants to know. No lock is held
    /// meanwhile.
    pub(super) fn count_active_flows(&self) {
        let state = self.state();
        let begin = Instant::now();
        let reals = match state.count_flows_at.is_none_or(|at| begin >= at) {
            true => state.counted_reals(),
            false => return,
        };
        drop(state);
        let counted = match self.backend.balancer() {
            Some(forwarder) if !reals.is_empty() => forwarder.count_active_flows(&reals),
            _ => Ok(()),
        };
        match counted {
            Ok(()) => self.alerts.clear(ABOUT_ACTIVE_FLOWS),
            Err(error) => {
                let message = format!(
                    "cannot count the flows of reals, so pools with method = \"least-connections\" go by what began and what clients have ended: {error}"
                );
                self.alerts.raise(ABOUT_ACTIVE_FLOWS, message);
            }
        }
        self.state().count_flows_at = Some(begin + pause(begin.elapsed()));
    }
}

/// The time from one count to the next, if it has taken so long.
fn pause(taken: Duration) -> Duration {
    INTERVAL.max(taken * PARTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_table_is_counted_less_often() {
        assert_eq!(pause(Duration::from_micros(300)), INTERVAL);
        assert_eq!(pause(Duration::from_millis(10)), INTERVAL);
        assert_eq!(
            pause(Duration::from_millis(45)),
            Duration::from_millis(4500)
        );
    }
}
