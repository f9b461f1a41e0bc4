//! New flows a second, of virtual addresses and of reals: what their counters have grown by
//! between the last two readings.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{Balancer, status::port_of};

/// The time between two readings.
const INTERVAL: Duration = Duration::from_secs(5);

/// The owner of a counter: a pool's real, or a virtual address with a port.
type Counted = (String, IpAddr, Option<String>);

/// Where a counter is read.
#[derive(Debug, Clone, Copy, PartialEq)]
enum At {
    Service(u32),
    Real(u32),
    /// The proxy's, which is known already.
    Known(u64),
}

/// The counters of new flows as they were read last, and their rates before that.
#[derive(Debug, Default)]
pub(super) struct Rates {
    read: Option<Instant>,
    /// The time of the next reading.
    next: Option<Instant>,
    flows: HashMap<Counted, (u64, Option<f64>)>,
}

impl Rates {
    fn is_due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// The counters begin anew.
    pub(super) fn forget(&mut self) {
        self.read = None;
        self.flows.clear();
    }

    fn note(&mut self, now: Instant, counts: impl Iterator<Item = (Counted, u64)>) {
        let elapsed = self.read.replace(now).map(|read| now - read);
        let before = std::mem::take(&mut self.flows);
        let rate = |of: &Counted, flows: u64| {
            // One that is less has begun anew.
            let more = flows.checked_sub(before.get(of)?.0)?;
            let seconds = elapsed?.as_secs_f64();
            Some((more as f64 / seconds * 10.0).round() / 10.0)
        };
        let flows = counts.map(|(of, flows)| {
            let rate = rate(&of, flows);
            (of, (flows, rate))
        });
        self.flows = flows.collect();
    }

    /// The rate of a real, or of a virtual address with this port; `None`: it was not read
    /// twice.
    pub(super) fn of(&self, pool: &str, address: IpAddr, port: Option<&str>) -> Option<f64> {
        let of = (pool.to_owned(), address, port.map(str::to_owned));
        self.flows.get(&of)?.1
    }
}

impl Balancer {
    /// Reads the counters, if it is time. There are thousands of them, of each processor, so
    /// no lock is held meanwhile.
    pub(super) fn read_rates(&self) -> Result<(), weir_enforce::Error> {
        let begin = Instant::now();
        if !self.rates().is_due(begin) {
            return Ok(());
        }
        let counters = self.counters_of_flows();
        let read = self.read_counters(&counters);
        // A number may have become another's meanwhile.
        let is_same = |(now, before): (&(Counted, At), &(Counted, At))| match (now.1, before.1) {
            (At::Known(_), At::Known(_)) => now.0 == before.0,
            _ => now == before,
        };
        let now = self.counters_of_flows();
        let mut rates = self.rates();
        rates.next = Some(begin + pause(begin.elapsed()));
        match read {
            Ok(read) if now.len() == counters.len() && now.iter().zip(&counters).all(is_same) => {
                let counted = counters.into_iter().map(|(of, _)| of);
                rates.note(begin, counted.zip(read));
                Ok(())
            }
            // Those of before are none of now.
            other => {
                rates.forget();
                other.map(drop)
            }
        }
    }

    /// The counters of new flows of all virtual addresses and reals.
    fn counters_of_flows(&self) -> Vec<(Counted, At)> {
        let state = self.state();
        let is_here = self.backend.balancer().is_some();
        let mut counters = Vec::new();
        let names: HashMap<_, _> = state
            .pools
            .iter()
            .map(|pool| (pool.number, &pool.config.name))
            .collect();
        let told = state.told.iter().flat_map(|told| &told.services);
        for (number, service) in (0..).zip(told).filter(|_| is_here) {
            if let Some(name) = names.get(&service.pool) {
                let of = (
                    (*name).clone(),
                    service.addr,
                    Some(port_of(service).to_string()),
                );
                counters.push((of, At::Service(number)));
            }
        }
        for pool in &state.pools {
            let name = &pool.config.name;
            for (vip, port, of) in self.proxied().services(name) {
                counters.push(((name.clone(), vip, Some(port)), At::Known(of.flows)));
            }
            for real in &pool.reals {
                let address = real.config.address;
                let at = match self.proxied().real(name, address) {
                    Some(proxied) => At::Known(proxied.flows),
                    None if is_here => At::Real(real.number),
                    None => At::Known(0),
                };
                counters.push(((name.clone(), address, None), at));
            }
        }
        counters
    }

    fn read_counters(&self, counters: &[(Counted, At)]) -> Result<Vec<u64>, weir_enforce::Error> {
        let forwarder = self.backend.balancer();
        let read = counters.iter().map(|(_, at)| match (at, &forwarder) {
            (At::Service(number), Some(forwarder)) => Ok(forwarder.service_count(*number)?.flows),
            (At::Real(number), Some(forwarder)) => Ok(forwarder.real_count(*number)?.flows),
            (At::Known(flows), _) => Ok(*flows),
            (_, None) => Ok(0),
        });
        read.collect()
    }
}

/// The time from one reading to the next, if it has taken so long: no more of the time than
/// one part of a hundred.
fn pause(taken: Duration) -> Duration {
    INTERVAL.max(taken * 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_what_a_counter_has_grown_by_in_a_second() {
        let vip: IpAddr = "2001:db8::80".parse().unwrap();
        let of = |pool: &str, port: Option<&str>| (pool.to_owned(), vip, port.map(str::to_owned));
        let mut rates = Rates::default();
        let begin = Instant::now();
        let read = |rates: &mut Rates, seconds, counts: &[(Counted, u64)]| {
            let now = begin + Duration::from_secs(seconds);
            rates.note(now, counts.iter().cloned());
        };
        let counts = |service, real| {
            [
                (of("web", Some("80/tcp")), service),
                (of("web", None), real),
            ]
        };
        read(&mut rates, 0, &counts(100, 7));
        assert_eq!(rates.of("web", vip, None), None);
        read(&mut rates, 5, &counts(162, 7));
        assert_eq!(rates.of("web", vip, Some("80/tcp")), Some(12.4));
        assert_eq!(rates.of("web", vip, None), Some(0.0));
        assert_eq!(rates.of("mail", vip, None), None);
        // Its number is another service's now, and counts from zero.
        read(&mut rates, 15, &counts(3, 9));
        assert_eq!(rates.of("web", vip, Some("80/tcp")), None);
        assert_eq!(rates.of("web", vip, None), Some(0.2));
        read(&mut rates, 20, &counts(4, 9)[..1]);
        assert_eq!(rates.of("web", vip, Some("80/tcp")), Some(0.2));
        // One that is gone is forgotten.
        assert_eq!(rates.flows.len(), 1);
        // It began anew, and has grown beyond the number of before.
        rates.forget();
        read(&mut rates, 25, &counts(10, 9));
        assert_eq!(rates.of("web", vip, Some("80/tcp")), None);
    }

    #[test]
    fn many_counters_are_read_less_often() {
        let mut rates = Rates::default();
        let begin = Instant::now();
        assert!(rates.is_due(begin));
        for (taken, seconds) in [(1, 5), (50, 5), (200, 20)] {
            rates.next = Some(begin + pause(Duration::from_millis(taken)));
            assert!(!rates.is_due(begin + Duration::from_secs(seconds - 1)));
            assert!(rates.is_due(begin + Duration::from_secs(seconds)));
        }
    }
}
