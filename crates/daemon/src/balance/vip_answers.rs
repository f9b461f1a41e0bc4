//! What reals answer at virtual addresses, and what follows: a real that lacks one of its
//! pool's is down while another has it, and one that would stand in for another pool and lacks
//! that pool's is named before it is needed. How they are asked is vip_check.rs's.

use std::collections::BTreeMap;

use super::{
    Neighbours, Pool, RealState, State,
    config::{Emergency, Forward, PoolConfig},
    health::{Health, Life},
    tunnel,
    vip_check::{Answers, TunnelWay, VipAsker, VipCheck, Way},
};
use crate::host::{Mac, neighbours};

/// How a real answers at the virtual addresses of its pool.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) enum AtVips {
    /// No check there has ended yet.
    #[default]
    NotAsked,
    /// The real passes its check, and cannot be asked there: it is no neighbour, or there is no
    /// way to it, or this host has no socket for it, or no address.
    CannotBeAsked,
    /// It answers at those that were asked last.
    Answers,
    /// It does not answer at one of them.
    Fails {
        /// The address, and what to do.
        why: String,
        /// Whether it is down for that is open: other reals are asked still.
        is_undecided: bool,
    },
}

/// How a real answers at the virtual addresses of another pool, for whose reals it would stand
/// in.
pub(super) struct StandIn {
    check: Option<VipCheck>,
    turn: usize,
    health: Health,
    why: String,
}

impl StandIn {
    const NEW: Self = Self {
        check: None,
        turn: 0,
        health: Health::UNKNOWN,
        why: String::new(),
    };
}

impl RealState {
    /// Whether its first answer at the virtual addresses is waited for: this host has what its
    /// checks take.
    fn may_answer_yet(&self) -> bool {
        self.at_vips == AtVips::NotAsked && self.not_asked.is_none()
    }

    /// A check of the real itself has ended, and the answer to it at the virtual addresses does
    /// not come: what it said there last decides nothing more.
    pub(super) fn decide_by_check(&mut self) {
        if let AtVips::Fails { is_undecided, .. } = &mut self.at_vips {
            *is_undecided = false;
        }
    }

    /// The reason for which it would not serve the virtual addresses of this other pool.
    pub(super) fn lacks_vips_of(&self, pool: &str) -> Option<&str> {
        let stand_in = self.stand_ins.get(pool)?;
        (stand_in.health.life == Life::Down).then_some(&*stand_in.why)
    }

    /// The reason for which it fails at the virtual addresses of its pool, if it does.
    pub(super) fn lacks_vips(&self) -> Option<&str> {
        match &self.at_vips {
            AtVips::Fails { why, .. } => Some(why),
            _ => None,
        }
    }

    /// Whether answers to it are to be looked at soon.
    pub(super) fn is_being_asked(&self) -> bool {
        let mut stand_ins = self.stand_ins.values();
        self.is_being_checked() || stand_ins.any(|stand_in| stand_in.check.is_some())
    }

    /// Forgets what was asked of it and not yet answered.
    pub(super) fn forget_questions(&mut self) {
        self.vip_check = None;
        let all = self.stand_ins.values_mut();
        all.for_each(|stand_in| stand_in.check = None);
    }

    /// Takes note of answers at the virtual addresses of other pools; whether another one
    /// would stand in by now.
    fn look_at_stand_ins(
        &mut self,
        pool: &PoolConfig,
        answers: &Answers,
        asker: &mut VipAsker,
    ) -> bool {
        let mut changed = false;
        for stand_in in self.stand_ins.values_mut() {
            let check = stand_in.check.as_mut();
            let Some(outcome) = check.and_then(|check| check.look(answers, asker)) else {
                continue;
            };
            stand_in.check = None;
            if outcome.is_ok() {
                stand_in.turn = stand_in.turn.wrapping_add(VipCheck::STEP);
            }
            let (rise, fall) = (pool.check.rise, pool.check.fall);
            let lives = outcome.is_ok();
            stand_in.why = outcome.err().unwrap_or_default();
            changed |= stand_in.health.note(lives, rise, fall);
        }
        changed
    }
}

impl Pool {
    /// The reals that could take over the flows of another one. Where nobody takes new flows,
    /// as all are drained, they are those that would if they were not.
    fn successors(&self) -> impl Iterator<Item = &RealState> {
        let has_weight = |real: &&RealState| real.weight() > 0;
        let is_drained = !self.reals.iter().any(|real| has_weight(&real));
        let lives = self
            .reals
            .iter()
            .filter(|real| real.health.life != Life::Down);
        lives.filter(move |real| is_drained || has_weight(real))
    }

    /// Takes note of what a real answered at the virtual addresses.
    pub(super) fn note_at_vips(&mut self, real: usize, outcome: Result<(), String>) {
        let asked = &mut self.reals[real];
        asked.at_vips = match outcome {
            Ok(()) => {
                asked.vip_turn = asked.vip_turn.wrapping_add(VipCheck::STEP);
                AtVips::Answers
            }
            Err(why) => AtVips::Fails {
                why,
                is_undecided: true,
            },
        };
    }

    /// Decides what becomes of reals that have failed at virtual addresses, and returns them
    /// with the outcome of their checks. One is down for it while another that takes new flows
    /// answers there. While others are asked still it is as it was found before; where none
    /// answers all stay: that is no reason to serve nobody, but one to tell
    /// ([`Pool::lack_vips`]).
    pub(super) fn decide_at_vips(&mut self) -> Vec<(usize, Result<(), String>)> {
        let is_undecided = |real: &RealState| {
            matches!(
                real.at_vips,
                AtVips::Fails {
                    is_undecided: true,
                    ..
                }
            )
        };
        if !self.reals.iter().any(is_undecided) {
            return Vec::new();
        }
        let one_answers = self
            .successors()
            .any(|real| real.at_vips == AtVips::Answers);
        if !one_answers && self.successors().any(RealState::may_answer_yet) {
            return Vec::new();
        }
        let mut decided = Vec::new();
        for (number, real) in self.reals.iter_mut().enumerate() {
            if let AtVips::Fails { why, is_undecided } = &mut real.at_vips
                && std::mem::take(is_undecided)
            {
                let outcome = match one_answers {
                    true => Err(why.clone()),
                    false => Ok(()),
                };
                decided.push((number, outcome));
            }
        }
        decided
    }

    /// The reals that fail at a virtual address, each with the reason, where no real that takes
    /// new flows answers there, so that none is taken out for it.
    pub(super) fn lack_vips(&self) -> Vec<String> {
        let answers = |real: &RealState| real.at_vips == AtVips::Answers || real.may_answer_yet();
        if self.successors().any(answers) {
            return Vec::new();
        }
        let all = self.reals.iter();
        let lacking = all.filter_map(|real| Some((real, real.lacks_vips()?)));
        lacking
            .map(|(real, why)| format!("{} ({why})", real.config.address))
            .collect()
    }
}

impl State {
    /// The way by which a real that has just answered can be asked; `None`: it is none of the
    /// segment, packets have no way to it, or there are no sockets.
    fn way_to_ask(&mut self, pool: usize, real: usize) -> Option<Way> {
        let way = match &self.pools[pool].config.forward {
            Forward::L2 => {
                let opened = self.vip_asker.open_segment(&self.interface);
                let index = self.note_asker(opened)??;
                Way::Segment(self.mac_to_ask(pool, real, index)?)
            }
            Forward::Tunnel(_) => {
                let opened = self.vip_asker.open_tunnels();
                self.note_asker(opened)?;
                Way::Tunnel(self.tunnel_to_ask(pool, real)?)
            }
            Forward::Proxy(_) => return None,
        };
        Some(way)
    }

    /// Takes note of why there are no sockets.
    fn note_asker<T>(&mut self, opened: std::io::Result<T>) -> Option<T> {
        match opened {
            Ok(opened) => {
                self.no_vip_asker = None;
                Some(opened)
            }
            Err(error) => {
                self.no_vip_asker = Some(error.to_string());
                None
            }
        }
    }

    fn mac_to_ask(&self, pool: usize, real: usize, ifindex: u32) -> Option<Mac> {
        let real = &self.pools[pool].reals[real];
        // A first check has just made a neighbour of it.
        real.mac.or_else(|| {
            let known = neighbours(ifindex).ok()?;
            known.get(&real.config.address).copied()
        })
    }

    fn tunnel_to_ask(&self, pool: usize, real: usize) -> Option<TunnelWay> {
        let Pool { config, reals, .. } = &self.pools[pool];
        let real = &reals[real];
        if let Some(way) = &real.way {
            return TunnelWay::of(way);
        }
        // A first check has just had the next hop resolved.
        let Forward::Tunnel(tunnel) = &config.forward else {
            return None;
        };
        let mut now = Neighbours::default();
        let way = tunnel::way(config, tunnel, real.config.address, None, &mut now);
        TunnelWay::of(&way.ok()?.ok()?)
    }

    /// Asks a real that has passed its check at the virtual addresses of its pool;
    /// `false`: it is not asked.
    pub(super) fn begin_vip_check(&mut self, pool: usize, real: usize) -> bool {
        if !self.pools[pool].config.asks_vips() {
            return false;
        }
        let way = self.way_to_ask(pool, real);
        let Pool { config, reals, .. } = &mut self.pools[pool];
        let real = &mut reals[real];
        let (sources, asker) = (&self.sources, &mut self.vip_asker);
        let begun = way.and_then(|way| {
            let at = (real.config.address, way);
            VipCheck::begin(config, at, real.vip_turn, sources, asker)
        });
        if begun.is_none() {
            real.at_vips = AtVips::CannotBeAsked;
        }
        real.vip_check = begun;
        real.vip_check.is_some()
    }

    /// Asks a real that has passed its check at the virtual addresses of those pools for whose
    /// reals it stands in.
    pub(super) fn begin_stand_in_checks(&mut self, pool: usize, real: usize) {
        let Pool { config, reals, .. } = &self.pools[pool];
        if config.is_proxied() || reals[real].is_emergency {
            return;
        }
        let serves = |other: &PoolConfig| {
            let named = Some(Emergency::Pool(config.name.clone()));
            other.asks_vips() && other.emergency == named
        };
        let all = self.pools.iter().enumerate();
        let served = all.filter(|(_, other)| serves(&other.config));
        let served: Vec<_> = served.map(|(number, _)| number).collect();
        if served.is_empty() {
            return;
        }
        let Some(way) = self.way_to_ask(pool, real) else {
            return;
        };
        let mut stand_ins: BTreeMap<String, StandIn> =
            std::mem::take(&mut self.pools[pool].reals[real].stand_ins);
        for other in served {
            let config = &self.pools[other].config;
            let stand_in = stand_ins.entry(config.name.clone());
            let stand_in = stand_in.or_insert(StandIn::NEW);
            if stand_in.check.is_none() {
                let at = (self.pools[pool].reals[real].config.address, way);
                let (sources, asker) = (&self.sources, &mut self.vip_asker);
                stand_in.check = VipCheck::begin(config, at, stand_in.turn, sources, asker);
            }
        }
        self.pools[pool].reals[real].stand_ins = stand_ins;
    }

    /// Takes note of answers of reals that would stand in for those of other pools.
    pub(super) fn look_at_stand_ins(&mut self, answers: &Answers) {
        let mut changed = false;
        for Pool { config, reals, .. } in &mut self.pools {
            for real in reals {
                changed |= real.look_at_stand_ins(config, answers, &mut self.vip_asker);
            }
        }
        // Who takes a pool's flows in an emergency may be another.
        self.is_new |= changed;
    }

    /// An alert if reals of a pool's emergency pool lack its virtual addresses.
    pub(super) fn stand_ins_that_lack(&self, pool: &PoolConfig) -> Option<String> {
        let Some(Emergency::Pool(named)) = &pool.emergency else {
            return None;
        };
        let other = self.pools.iter().find(|pool| pool.config.name == *named)?;
        let reals = other.reals.iter();
        let lacking = reals.filter_map(|real| {
            let why = real.lacks_vips_of(&pool.name)?;
            Some(format!("{} ({why})", real.config.address))
        });
        let lacking: Vec<_> = lacking.collect();
        if lacking.is_empty() {
            return None;
        }
        Some(format!(
            "pool {}: in an emergency these reals of pool {named} would not serve it: {}",
            pool.name,
            lacking.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests;
