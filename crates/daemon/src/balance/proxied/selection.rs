//! Which real takes a new flow of a pool that the proxy serves. By each method but
//! "least-connections" a flow goes where the ring of direct server return would send it,
//! so that a change of `forward` and a second weir choose the same real.

use std::{
    net::IpAddr,
    sync::{
        Arc, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use weir_core::{
    Protocol,
    balance::{
        acl::{Access, Exceptions},
        maglev::{Member, ring},
        slot,
        turns::turns,
    },
};
use weir_enforce::SLOTS;
use weir_proxy::{Chooser, Flow, Real};

use crate::balance::config::Method;

/// The access list of a pool, and what says which real takes a new flow.
pub(super) struct RealSelection {
    /// The clients that are admitted; `None`: everybody is.
    pub(super) acl: Option<Arc<Exceptions>>,
    method: Method,
    ring: Vec<usize>,
    /// The reals that take new flows.
    pub(super) reals: Vec<Arc<Real>>,
    /// The shares of these reals.
    weights: Vec<u32>,
    /// The number of the next real, where reals take turns.
    turn: AtomicUsize,
}

impl RealSelection {
    /// A selection of no real.
    pub(super) fn of_none(method: Method) -> Self {
        Self {
            acl: None,
            method,
            ring: Vec::new(),
            reals: Vec::new(),
            weights: Vec::new(),
            turn: AtomicUsize::new(0),
        }
    }

    /// Selects among these reals from now on. `shares`: their names and weights.
    pub(super) fn take_on(
        &mut self,
        method: Method,
        shares: &[(String, u32)],
        reals: Vec<Arc<Real>>,
    ) {
        let members = shares.iter();
        let members = members.map(|(name, weight)| Member {
            name,
            weight: *weight,
        });
        let members: Vec<_> = members.collect();
        self.ring = match method {
            Method::RoundRobin => turns(&members, SLOTS),
            _ => ring(&members, SLOTS),
        };
        self.weights = members.iter().map(|member| member.weight).collect();
        (self.method, self.reals) = (method, reals);
    }

    /// The slot of a flow, by the method of its pool.
    fn slot(&self, flow: &Flow) -> usize {
        match self.method {
            Method::Maglev | Method::LeastConnections => flow_slot(flow),
            Method::SourceHash => slot::of_source(flow.client.ip(), SLOTS),
            Method::SourcePortHash => slot::of_source_port(flow.client, SLOTS),
            Method::RoundRobin => self.turn.fetch_add(1, Ordering::Relaxed) % SLOTS,
        }
    }

    /// The real with the fewest flows for its weight; of several they take turns.
    fn least_busy(&self, tried: &[Arc<Real>]) -> Option<Arc<Real>> {
        let count = self.reals.len();
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % count.max(1);
        let all = (0..count).map(|n| (first + n) % count);
        let is_tried = |n: &usize| tried.iter().any(|one| Arc::ptr_eq(one, &self.reals[*n]));
        // With the one that comes: a real of twice the weight has two before another has one.
        let flows = |n: usize| u128::from(self.reals[n].counters.active.get()) + 1;
        let weight = |n: usize| u128::from(self.weights[n]);
        all.filter(|n| !is_tried(n))
            .min_by(|a, b| (flows(*a) * weight(*b)).cmp(&(flows(*b) * weight(*a))))
            .map(|n| self.reals[n].clone())
    }
}

/// Selects for the proxy's workers.
pub(super) struct Selector(pub(super) Arc<RwLock<RealSelection>>);

impl Chooser for Selector {
    fn admits(&self, client: IpAddr) -> bool {
        let choice = self.0.read().expect("no holder of this lock panics");
        let acl = choice.acl.as_ref();
        acl.is_none_or(|acl| acl.access(client.to_canonical()) == Access::Allow)
    }

    fn choose(&self, flow: &Flow, tried: &[Arc<Real>]) -> Option<Arc<Real>> {
        let choice = self.0.read().expect("no holder of this lock panics");
        if choice.method == Method::LeastConnections {
            return choice.least_busy(tried);
        }
        let slot = choice.slot(flow);
        let (before, after) = (choice.ring.get(..slot)?, &choice.ring[slot..]);
        // Whoever has the next slot takes what a real does not answer.
        let mut found = after.iter().chain(before).map(|real| &choice.reals[*real]);
        let is_tried = |real: &Arc<Real>| tried.iter().any(|one| Arc::ptr_eq(one, real));
        match tried.len() < choice.reals.len() {
            true => found.find(|real| !is_tried(real)).cloned(),
            false => None,
        }
    }
}

fn flow_slot(flow: &Flow) -> usize {
    let protocol = match flow.protocol {
        weir_proxy::Protocol::Tcp => Protocol::Tcp,
        weir_proxy::Protocol::Udp => Protocol::Udp,
    };
    slot::of_flow(flow.client, flow.vip, protocol, SLOTS)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn flow(client: &str, vip: &str) -> Flow {
        Flow {
            client: client.parse().unwrap(),
            vip: vip.parse().unwrap(),
            protocol: weir_proxy::Protocol::Tcp,
        }
    }

    const NAMES: [&str; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];

    /// The selection of a pool with three reals of the same weight.
    fn choice(method: Method) -> RealSelection {
        weighted(method, [1; 3])
    }

    fn weighted(method: Method, weights: [u32; 3]) -> RealSelection {
        let shares = NAMES.map(str::to_owned).into_iter().zip(weights);
        let reals = NAMES.map(|name| Arc::new(Real::new(name.parse().unwrap())));
        let mut selection = RealSelection::of_none(method);
        selection.take_on(method, &shares.collect::<Vec<_>>(), reals.to_vec());
        selection
    }

    fn chooser(choice: RealSelection) -> Selector {
        Selector(Arc::new(RwLock::new(choice)))
    }

    #[test]
    fn a_flow_has_one_slot_and_others_have_others() {
        let slots: BTreeSet<_> = (1..=1000)
            .map(|port| {
                let client = format!("192.0.2.1:{port}");
                let [once, again] = [(); 2].map(|()| flow_slot(&flow(&client, "192.0.2.80:80")));
                assert_eq!(once, again);
                assert!(once < SLOTS);
                once
            })
            .collect();
        assert!(slots.len() > 960, "{}", slots.len());
        let other = flow_slot(&flow("[2001:db8::1]:1", "[2001:db8::80]:80"));
        assert_ne!(
            other,
            flow_slot(&flow("[2001:db8::2]:1", "[2001:db8::80]:80"))
        );
    }

    #[test]
    fn what_a_real_does_not_answer_the_next_one_of_the_ring_takes() {
        for (_, method) in Method::ALL {
            let chooser = chooser(choice(method));
            let flow = flow("192.0.2.1:7", "192.0.2.80:80");
            let mut tried: Vec<Arc<Real>> = Vec::new();
            while let Some(real) = chooser.choose(&flow, &tried) {
                assert!(!tried.iter().any(|one| Arc::ptr_eq(one, &real)));
                tried.push(real);
            }
            assert_eq!(tried.len(), 3);
        }
        for (_, method) in Method::ALL {
            let nobody = chooser(RealSelection::of_none(method));
            let flow = flow("192.0.2.1:7", "192.0.2.80:80");
            assert!(nobody.choose(&flow, &[]).is_none());
        }
    }

    #[test]
    fn a_method_says_which_flows_share_a_real() {
        // For one client: by ports at one virtual address, and at many by one port.
        let reals = |method| {
            let chooser = chooser(choice(method));
            let taken = |flows: Vec<Flow>| -> BTreeSet<IpAddr> {
                let reals = flows.iter().map(|flow| chooser.choose(flow, &[]).unwrap());
                reals.map(|real| real.address).collect()
            };
            let by_port = (1..=60).map(|n| flow(&format!("192.0.2.1:{n}"), "192.0.2.80:80"));
            let by_vip = (1..=60).map(|n| flow("192.0.2.1:7", &format!("192.0.2.{n}:80")));
            [by_port.collect(), by_vip.collect()].map(|flows| taken(flows).len())
        };
        assert_eq!(reals(Method::Maglev), [3, 3]);
        assert_eq!(reals(Method::SourcePortHash), [3, 1]);
        assert_eq!(reals(Method::SourceHash), [1, 1]);
        let chooser = chooser(choice(Method::RoundRobin));
        let same = flow("192.0.2.1:7", "192.0.2.80:80");
        let mut served = BTreeMap::new();
        for _ in 0..30 {
            let real = chooser.choose(&same, &[]).unwrap();
            *served.entry(real.address).or_insert(0) += 1;
        }
        assert_eq!(served.into_values().collect::<Vec<_>>(), [10, 10, 10]);
    }

    /// Connections that end make room where they were.
    #[test]
    fn the_real_with_the_fewest_connections_for_its_weight_is_next() {
        let chooser = chooser(weighted(Method::LeastConnections, [1, 2, 1]));
        let same = flow("192.0.2.1:7", "192.0.2.80:80");
        let connect = || {
            let real = chooser.choose(&same, &[]).unwrap();
            real.counters.active.one();
            real
        };
        let count = |real: &Arc<Real>| (real.address.to_string(), real.counters.active.get());
        let all: Vec<_> = (0..40).map(|_| connect()).collect();
        let served: BTreeMap<_, _> = all.iter().map(count).collect();
        assert_eq!(served.into_values().collect::<Vec<_>>(), [10, 20, 10]);
        let quiet = all.iter().find(|real| real.address.to_string() == NAMES[2]);
        (0..5).for_each(|_| quiet.unwrap().counters.active.take_one());
        for _ in 0..5 {
            assert_eq!(connect().address.to_string(), NAMES[2]);
        }
    }

    #[test]
    fn who_is_denied_is_not_admitted() {
        let acl = Exceptions {
            default: Access::Allow,
            v4: vec![(0xcb00_7100, 24)],
            v6: Vec::new(),
        };
        let chooser = chooser(RealSelection {
            acl: Some(Arc::new(acl)),
            ..choice(Method::Maglev)
        });
        for (client, is_admitted) in [
            ("203.0.113.7", false),
            ("::ffff:203.0.113.7", false),
            ("203.0.114.7", true),
            ("2001:db8::1", true),
        ] {
            assert_eq!(chooser.admits(client.parse().unwrap()), is_admitted);
        }
    }
}
