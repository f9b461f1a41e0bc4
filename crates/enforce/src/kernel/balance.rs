//! Load balancing: told to the kernel, with what forwards from the first pool on until the
//! last goes.

use std::collections::HashMap;

use weir_bpf::{
    AnswerProgram,
    balance::{CountedReal, KnownReal, RealCount, ServiceCount},
};

use super::Kernel;
use crate::{Balance, Error, Feature, Forwarder};

impl Forwarder for Kernel {
    fn set_balance(&self, balance: &Balance) -> Result<(), Error> {
        let maintenance = self.maintenance.lock();
        // Held until the ports are there: an interface that came in between could be
        // given netfilter's hook, which cannot forward.
        let (points, _) = self.attach_points();
        let backend = self.effective_where(points.any_on_netfilter());
        let wanted = !balance.services.is_empty();
        if wanted {
            let features = [Feature::Balance, Feature::Tunnels];
            let asked = if balance.has_tunnels() { 2 } else { 1 };
            let mut limits = features[..asked].iter().map(|f| backend.limit(*f));
            if let Some(limit) = limits.find_map(|limit| limit) {
                return Err(limit.refusal(backend.name()));
            }
            // Of what the kernel refuses maintenance asks again.
            if !self.tables().current.wants(AnswerProgram::Balance) {
                self.answer(&maintenance, AnswerProgram::Balance);
            }
        }
        let tables = self.tables();
        // The maps are those of all generations. What is referred to comes first, and
        // what nobody refers to any more goes last.
        let current = &tables.current;
        let balancer = &current.balancer;
        for (number, real) in (0..).zip(&balance.reals) {
            if real.is_some() {
                balancer.write_real(number, *real)?;
            }
        }
        let rings = |of_nobody: bool| {
            let all = (0..).zip(&balance.rings);
            all.filter(move |(_, ring)| ring.iter().all(Option::is_none) == of_nobody)
        };
        for (pool, ring) in rings(false) {
            balancer.write_ring(pool, ring)?;
        }
        balancer.write_services_for(&balance.services, &balance.pools, self.clock.hz())?;
        for (pool, ring) in rings(true) {
            balancer.write_ring(pool, ring)?;
        }
        let reals = balance.reals.iter().copied();
        let reals = reals.chain(std::iter::repeat(None));
        for (number, real) in (0..weir_bpf::balance::MAX_REALS as u32).zip(reals) {
            if real.is_none() {
                balancer.write_real(number, None)?;
            }
        }
        for generation in tables.generations() {
            generation.table.set_port_features(current.port_features());
        }
        if !wanted {
            current.fall_silent(AnswerProgram::Balance)?;
        }
        Ok(())
    }

    fn flows(&self) -> Option<u32> {
        Some(self.tables().current.balancer.flows())
    }

    fn known_reals(&self) -> Result<HashMap<u64, KnownReal>, Error> {
        Ok(self.tables().current.balancer.known_reals()?)
    }

    fn real_count(&self, number: u32) -> Result<RealCount, Error> {
        Ok(self.tables().current.balancer.real_count(number)?)
    }

    fn count_active_flows(&self, reals: &[CountedReal]) -> Result<(), Error> {
        // Counted without a lock: an insertion waits for none of it.
        let flows = self.tables().current.balancer.live_flows()?;
        flows.correct(reals, self.clock.now(), self.clock.hz());
        Ok(())
    }

    fn active_flows(&self, number: u32) -> u64 {
        self.tables().current.balancer.active_flows(number)
    }

    fn service_count(&self, number: u32) -> Result<ServiceCount, Error> {
        Ok(self.tables().current.balancer.service_count(number)?)
    }

    fn forget_balance_counts(&self, reals: &[u32], services: &[u32]) -> Result<(), Error> {
        let tables = self.tables();
        let balancer = &tables.current.balancer;
        for number in reals {
            balancer.forget_real_count(*number)?;
        }
        for number in services {
            balancer.forget_service_count(*number)?;
        }
        Ok(())
    }
}
