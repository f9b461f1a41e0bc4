//! The packet path with pools, the reference with the same, and how they are compared.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use weir_bpf::{
    AnswerProgram, BanCounts, Generation, Geometry, Options,
    attachment::Hook,
    balance::{PoolRules, QuicServer, Real, SLOTS, SlotBy, Tunnel, VirtualService},
    prog_test_run::{self, RunResult},
    small_maps,
};
use weir_core::{
    Reason,
    balance::{
        decision::{Arrival, Decision, Departure, Fate, Memory, Method, Part, Served},
        maglev::{Member, ring},
        turns::turns,
    },
    geo::GeoTable,
};
use weir_testkit::decode::{self, Allow, Table, decode, reference_verdict};

use crate::pools::{Config, INTERFACE};

/// The kernel's numbers of pools, by their places.
const POOLS: [u32; 3] = [3, 0, 31];
/// How many are told what fits, at once and in a second (`bpf/abi/answer.h`).
const TOLD_AT_ONCE: f64 = 250.0;
const TOLD_A_SECOND: f64 = 1000.0;

type Counts = Vec<[u64; 6]>;

pub(crate) struct Path {
    generation: Generation,
    pub(crate) config: Config,
    memory: Memory,
    next_id: u64,
    /// How many may be told what fits, at least.
    credit: f64,
    credited: Instant,
    /// The bits of outer headers that spread flows, by what is the same for them.
    spread: HashMap<String, u64>,
    reasons: Vec<u64>,
    before: (Counts, Vec<[u64; 2]>),
    counted: (Counts, Vec<[u64; 2]>),
}

impl Path {
    pub(crate) fn new() -> Self {
        // Turns and limits are counted on each CPU.
        let mut cpus = rustix::thread::CpuSet::new();
        cpus.set(rustix::thread::sched_getcpu());
        rustix::thread::sched_setaffinity(None, &cpus).expect("the thread is pinned");
        let options = Options {
            v4_length: 24,
            ..Options::bans(Geometry::for_bans(BanCounts::each(200)))
        };
        let generation = Generation::create(1, &options, None).expect("the packet path loads");
        generation.shift_limits(20);
        generation.answer(AnswerProgram::Balance).unwrap();
        Self {
            generation,
            config: crate::pools::generated(&mut crate::Random(1), 0),
            memory: Memory::default(),
            next_id: 1,
            credit: 0.0,
            credited: Instant::now() - Duration::from_secs(1),
            spread: HashMap::new(),
            reasons: Vec::new(),
            before: Default::default(),
            counted: Default::default(),
        }
    }

    /// One that no real has had; flows know the lower 16 bits of it.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Begins anew with these pools, whose reals nobody knows.
    pub(crate) fn begin(&mut self, config: Config) {
        self.next_id += config.pools.reals.len() as u64;
        assert!(self.next_id < 0xffff, "ids are told apart");
        let balancer = &self.generation.balancer;
        for number in 0..8 {
            balancer.write_real(number, None).unwrap();
        }
        self.config = config;
        self.memory = Memory::default();
        self.change(|_| ());
    }

    /// Has the kernel and the reference know changed reals and rings.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Config)) {
        change(&mut self.config);
        self.memory.forget_slots();
        let balancer = &self.generation.balancer;
        for (number, real) in (0..).zip(&self.config.pools.reals) {
            balancer
                .write_real(number, real.as_ref().map(told))
                .unwrap();
        }
        for (place, pool) in self.config.pools.pools.iter().enumerate() {
            let members = &self.config.members[place];
            let names: Vec<_> = pool.ring.iter().map(|n| format!("10.0.0.{n}")).collect();
            let weight = |number| members.iter().find(|(n, _)| *n == number).map(|(_, w)| *w);
            let members: Vec<_> = (pool.ring.iter().zip(&names))
                .map(|(number, name)| Member {
                    name,
                    // Of a ring that is an old one somebody may have none by now.
                    weight: weight(*number).unwrap_or(1).max(1),
                })
                .collect();
            let slots = match pool.method {
                Method::Turn => turns(&members, SLOTS),
                _ => ring(&members, SLOTS),
            };
            let mut slots: Vec<_> = slots.iter().map(|n| Some(pool.ring[*n])).collect();
            slots.resize(SLOTS, None);
            balancer.write_ring(POOLS[place], &slots).unwrap();
        }
        self.write_services();
        self.generation.table.set_observe(self.config.pools.observe);
        self.reasons = self.read_reasons();
        self.before = self.read_counters();
        let zero = (
            vec![[0; 6]; self.before.0.len()],
            vec![[0; 2]; self.before.1.len()],
        );
        self.counted = zero;
    }

    fn write_services(&self) {
        let pools = &self.config.pools;
        let services = pools.services.iter().map(|service| VirtualService {
            addr: service.addr,
            protocol: service.protocol,
            port: service.port,
            pool: POOLS[service.pool],
        });
        let mut rules = vec![PoolRules::default(); 32];
        for (place, pool) in pools.pools.iter().enumerate() {
            let servers = pool
                .quic_servers
                .iter()
                .map(|(server_id, real)| QuicServer {
                    server_id: *server_id,
                    real: u32::from(*real),
                    id: self.config.id(*real),
                });
            let nowhere = GeoTable::default();
            let acl = pool
                .acl
                .as_ref()
                .map(|acl| acl.exceptions(&nowhere, |_| &[]));
            rules[POOLS[place] as usize] = PoolRules {
                slot_by: match pool.method {
                    Method::Flow => SlotBy::Flow,
                    Method::Turn => SlotBy::Turn,
                    Method::Least => SlotBy::Least,
                    Method::Source => SlotBy::Source,
                    Method::SourcePort => SlotBy::SourcePort,
                },
                acl: acl.map(Arc::new),
                any_drains: pools.reals.iter().flatten().any(|real| real.drains),
                udp_silence: None,
                quic_servers: servers.collect(),
                weights: (self.config.members[place].iter())
                    .map(|(number, weight)| (u32::from(*number), *weight))
                    .collect(),
            };
        }
        let services: Vec<_> = services.collect();
        let balancer = &self.generation.balancer;
        balancer.write_services_for(&services, &rules, 250).unwrap();
        let features = self.generation.port_features();
        self.generation.table.set_port_features(features);
    }

    fn read_reasons(&self) -> Vec<u64> {
        let counters = small_maps::read_counters(&self.generation.counters).unwrap();
        counters.into_iter().map(|(packets, _)| packets).collect()
    }

    /// The counters of services (packets, bytes, unserved, denied, QUIC placed and unknown)
    /// and of reals (packets and bytes).
    fn read_counters(&self) -> (Counts, Vec<[u64; 2]>) {
        let balancer = &self.generation.balancer;
        let services = (0..self.config.pools.services.len()).map(|number| {
            let count = balancer.service_count(number as u32).unwrap();
            assert_eq!(count.unremembered, 0, "the limit of new flows is raised");
            [
                count.packets,
                count.bytes,
                count.unserved,
                count.denied,
                count.quic_placed,
                count.quic_unknown,
            ]
        });
        let reals = (0..self.config.pools.reals.len()).map(|number| {
            let count = balancer.real_count(number as u32).unwrap();
            [count.packets, count.bytes]
        });
        (services.collect(), reals.collect())
    }

    /// Services and reals have counted what the reference has since the last change.
    pub(crate) fn counters_agree(&self, what: &str) {
        let after = self.read_counters();
        for (n, expected) in self.counted.0.iter().enumerate() {
            let counted: Vec<_> = (0..6)
                .map(|i| after.0[n][i] - self.before.0[n][i])
                .collect();
            assert_eq!(counted, expected, "{what}: service {n}");
        }
        for (n, expected) in self.counted.1.iter().enumerate() {
            let counted: Vec<_> = (0..2)
                .map(|i| after.1[n][i] - self.before.1[n][i])
                .collect();
            assert_eq!(counted, expected, "{what}: real {n}");
        }
    }

    /// Asserts that the kernel does with a frame what the reference says, and returns what
    /// that is.
    #[track_caller]
    pub(crate) fn agree(&mut self, hook: Hook, frame: &[u8], what: &str) -> String {
        let family = match decode(frame, 0).l3 {
            decode::L3::V4(_) => "IPv4",
            decode::L3::V6(_) => "IPv6",
            _ => "",
        };
        let is_told = self.credit_now() > 3.0;
        let program = self.generation.program(hook).unwrap();
        let answer = prog_test_run::packet(program, frame, 1).expect("the program runs");
        let reasons = self.read_reasons();
        let counted: Vec<_> = Reason::ALL
            .into_iter()
            .zip(reasons.iter().zip(&self.reasons))
            .flat_map(|(reason, (after, before))| vec![reason; (after - before) as usize])
            .collect();
        self.reasons = reasons;
        let seen = Seen {
            hook,
            frame,
            answer,
            counted,
            is_told,
        };
        let context = |expected: String| {
            let name = hook.name();
            let [frame, left] = [frame, &seen.answer.packet].map(hex::encode);
            let (verdict, counted) = (seen.answer.verdict, &seen.counted);
            format!(
                "{what} on {name}: {frame}\nkernel: verdict {verdict}, counted {counted:?}, {left}\nreference: {expected}"
            )
        };
        // What the firewall does not let pass.
        let (_, reason) =
            reference_verdict(&decode(frame, 0), &Table::default(), &Allow::default());
        let observe = self.config.pools.observe;
        let firewall = match reason {
            decode::Reason::Pass => None,
            decode::Reason::NotIp => Some(Fate::Host(Reason::NotIp)),
            decode::Reason::Malformed => Some(Fate::Host(Reason::Malformed)),
            decode::Reason::InvalidSource if !observe => Some(Fate::Dropped(Reason::InvalidSource)),
            decode::Reason::TooManyTags if !observe => Some(Fate::Dropped(Reason::TooManyTags)),
            _ => Some(Fate::Host(Reason::Observed)),
        };
        if let Some(fate) = firewall {
            assert!(seen.is(&fate), "{}", context(shown(&fate)));
            return "the firewall's".into();
        }
        let arrival = Arrival {
            ifindex: INTERFACE,
            is_skb: hook == Hook::Tcx,
            // The loopback device's.
            mac: (hook == Hook::Tcx).then_some([0; 6]),
        };
        let bytes = frame.len() as u64;
        let pools = &self.config.pools;
        let served = match pools.decide(&self.memory, &arrival, frame) {
            Decision::NotServed => {
                let fate = Fate::Host(Reason::Pass);
                assert!(seen.is(&fate), "{}", context(shown(&fate)));
                return format!("{family} not served");
            }
            Decision::Denied(service) => {
                let fate = Fate::Dropped(Reason::PoolDenied);
                assert!(seen.is(&fate), "{}", context(shown(&fate)));
                self.counted.0[service][3] += 1;
                return format!("{family} denied");
            }
            Decision::Served(served) => served,
        };
        let right: Vec<_> = served
            .choices
            .iter()
            .filter(|choice| seen.is(&choice.fate))
            .collect();
        assert!(!right.is_empty(), "{}", context(shown_all(&served)));
        let choice = right[0];
        self.memory.note(pools, &served, &right);
        let count = &mut self.counted.0[choice.service];
        if served.is_observed() {
            count[3] += 1;
        }
        match served.is_quic_placed {
            Some(true) => count[4] += 1,
            Some(false) => count[5] += 1,
            None => (),
        }
        match &choice.fate {
            Fate::Host(Reason::Malformed) => format!("{family} malformed"),
            Fate::Host(_) => format!("{family} to the host"),
            Fate::Dropped(_) => {
                count[2] += 1;
                format!("{family} no real")
            }
            Fate::TooBig(Some(_)) if seen.answer.verdict != drop(hook) => {
                self.credit -= 1.0;
                format!("{family} too big and told")
            }
            Fate::TooBig(_) => format!("{family} too big"),
            Fate::Sent(_, departure) => {
                count[0] += 1;
                count[1] += bytes;
                let number = choice.number.expect("a real has it");
                let count = &mut self.counted.1[usize::from(number)];
                count[0] += 1;
                count[1] += bytes;
                let spread = departure.spread(&seen.answer.packet);
                let way = if departure.spread.is_some() {
                    "in an outer packet"
                } else {
                    "to a real"
                };
                let fate = named(&served, way, family);
                if let (Some(bits), Some(of)) = (spread, departure.spread) {
                    let before = *self.spread.entry(format!("{of:?}")).or_insert(bits);
                    assert_eq!(
                        before,
                        bits,
                        "one flow, two ways: {}",
                        context(shown_all(&served))
                    );
                }
                fate
            }
        }
    }

    /// How many the kernel may tell now, at least.
    fn credit_now(&mut self) -> f64 {
        let now = Instant::now();
        let earned = (now - self.credited).as_secs_f64() * TOLD_A_SECOND;
        self.credited = now;
        self.credit = (self.credit + earned).min(TOLD_AT_ONCE);
        self.credit
    }
}

fn named(served: &Served<'_>, way: &str, family: &str) -> String {
    let part = match served.part() {
        _ if served.is_quic_placed == Some(true) => return format!("{family} by QUIC"),
        Part::Whole(_) => "whole",
        Part::FirstFragment(..) => "first fragment",
        Part::LaterFragment(_) => "later fragment",
        Part::Error(_) => "ICMP error",
    };
    format!("{family} {way}, {part}")
}

fn shown(fate: &Fate) -> String {
    match fate {
        Fate::Sent(reason, departure) => {
            let Departure { ifindex, frame, .. } = departure;
            format!("{reason} to {ifindex}: {}", hex::encode(frame))
        }
        Fate::TooBig(Some(told)) => format!("too big: {}", hex::encode(&told.frame)),
        fate => format!("{fate:?}"),
    }
}

fn shown_all(served: &Served<'_>) -> String {
    let choices = served.choices.iter().map(|choice| {
        let number = choice
            .number
            .map_or("nobody".into(), |number| number.to_string());
        format!("\n  real {number}: {}", shown(&choice.fate))
    });
    let choices: String = choices.collect();
    format!("{:?} of service {}{choices}", served.part(), served.service)
}

fn drop(hook: Hook) -> u32 {
    if hook == Hook::Tcx { 2 } else { 1 }
}

/// What the kernel has done with a frame.
struct Seen<'a> {
    hook: Hook,
    frame: &'a [u8],
    answer: RunResult,
    counted: Vec<Reason>,
    /// Not too many were told before.
    is_told: bool,
}

impl Seen<'_> {
    fn is(&self, fate: &Fate) -> bool {
        let is_dropped = self.answer.verdict == drop(self.hook);
        match fate {
            Fate::Host(reason) => {
                let pass = if self.hook == Hook::Tcx { u32::MAX } else { 2 };
                let is_whole = self.answer.packet == self.frame;
                self.answer.verdict == pass && self.counted == [*reason] && is_whole
            }
            Fate::Dropped(reason) => is_dropped && self.counted == [*reason],
            Fate::Sent(reason, departure) => self.counted == [*reason] && self.leaves(departure),
            Fate::TooBig(told) => {
                let is_silent = is_dropped && (told.is_none() || !self.is_told);
                let is_right = told
                    .as_ref()
                    .is_some_and(|departure| self.leaves(departure));
                self.counted == [Reason::TooBig] && (is_silent || is_right)
            }
        }
    }

    fn leaves(&self, departure: &Departure) -> bool {
        let verdict = match self.hook {
            Hook::Tcx => 7,
            _ if departure.ifindex == INTERFACE => 3,
            _ => 4,
        };
        self.answer.verdict == verdict && departure.spread(&self.answer.packet).is_some()
    }
}

fn told(real: &weir_core::balance::decision::Real) -> Real {
    Real {
        id: real.id,
        dest: real.dest,
        source: real.source,
        ifindex: real.ifindex,
        vlan: real.vlan,
        tunnel: real.tunnel.as_ref().map(|tunnel| Tunnel {
            source: tunnel.source,
            dest: tunnel.dest,
            mtu: tunnel.mtu,
            gue_port: tunnel.gue_port,
        }),
        drains: real.drains,
    }
}
