//! New flows a second, of virtual addresses and of reals: what their counters have grown by
//! between the last two readings.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{Balancer, State, status::port_of};

/// The time between two readings.
const INTERVAL: Duration = Duration::from_secs(5);

/// The owner of a counter: a pool's real, or a virtual address with a port.
type Counted = (String, IpAddr, Option<String>);

/// The counters of new flows as they were read last, and their rates before that.
#[derive(Debug, Default)]
pub(super) struct Rates {
    read: Option<Instant>,
    flows: HashMap<Counted, (u64, Option<f64>)>,
}

impl Rates {
    fn is_due(&self, now: Instant) -> bool {
        self.read.is_none_or(|read| now >= read + INTERVAL)
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
    /// Reads the counters, if it is time.
    pub(super) fn read_rates(&self, state: &State) -> Result<(), weir_enforce::Error> {
        let now = Instant::now();
        if !self.rates().is_due(now) {
            return Ok(());
        }
        let forwarder = self.backend.balancer();
        let mut counts = Vec::new();
        let told = state.told.iter().flat_map(|told| &told.services);
        for (number, service) in (0..).zip(told) {
            let pool = state.pools.iter().find(|pool| pool.number == service.pool);
            if let (Some(pool), Some(forwarder)) = (pool, &forwarder) {
                let port = Some(port_of(service).to_string());
                let of = (pool.config.name.clone(), service.addr, port);
                counts.push((of, forwarder.service_count(number)?.flows));
            }
        }
        for pool in &state.pools {
            let name = &pool.config.name;
            let of_proxy = self.proxied().services(name).into_iter();
            counts.extend(
                of_proxy.map(|(vip, port, of)| ((name.clone(), vip, Some(port)), of.flows)),
            );
            for real in &pool.reals {
                let address = real.config.address;
                let flows = match (self.proxied().real(name, address), &forwarder) {
                    (Some(proxied), _) => proxied.flows,
                    (None, Some(forwarder)) => forwarder.real_count(real.number)?.flows,
                    (None, None) => 0,
                };
                counts.push(((name.clone(), address, None), flows));
            }
        }
        self.rates().note(now, counts.into_iter());
        Ok(())
    }
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
            let is_due = rates.is_due(now);
            rates.note(now, counts.iter().cloned());
            is_due
        };
        let counts = |service, real| {
            [
                (of("web", Some("80/tcp")), service),
                (of("web", None), real),
            ]
        };
        assert!(read(&mut rates, 0, &counts(100, 7)));
        assert_eq!(rates.of("web", vip, None), None);
        assert!(!rates.is_due(begin + INTERVAL / 2));
        assert!(read(&mut rates, 5, &counts(162, 7)));
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
    }
}
