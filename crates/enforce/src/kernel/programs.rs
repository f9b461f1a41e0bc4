//! The programs of a generation, for the attach points.

use std::os::fd::BorrowedFd;

use weir_bpf::{
    Generation,
    attachment::Hook,
    fault,
    programs::{NO_NETFILTER, netfilter_supported},
};

use crate::{Error, Feature, hooks::Programs};

// Why netfilter's hook is refused, by what is in its way.
/// To decoy ports.
const NO_DECOYS: &str = "it has no decoy ports";
/// To tarpit ports.
const NO_TARPITS: &str = "it has no tarpit ports";
/// To pools, which forward frames.
const NO_POOLS: &str = "it has no load balancing";

impl Programs for Generation {
    fn refusal(&self, hook: Hook) -> Option<&'static str> {
        match hook {
            // First: a kernel without the hook is no reason to give up decoys or pools.
            Hook::Netfilter if !netfilter_supported() => Some(NO_NETFILTER),
            Hook::Netfilter if self.decoys.are_there() => Some(NO_DECOYS),
            Hook::Netfilter if self.decoys.are_tarpits_there() => Some(NO_TARPITS),
            // Last: only where nothing else is refused do pools go for it.
            Hook::Netfilter if self.balancer.is_there() => Some(NO_POOLS),
            _ => None,
        }
    }

    fn in_the_way(&self, hook: Hook) -> Option<Feature> {
        match self.refusal(hook)? {
            NO_DECOYS | NO_TARPITS => Some(Feature::Decoys),
            NO_POOLS => Some(Feature::Balance),
            _ => None,
        }
    }

    fn program(&self, hook: Hook) -> Result<BorrowedFd<'_>, Error> {
        fault::point("before-program");
        Ok(Generation::program(self, hook)?)
    }

    fn judge_outbound(&self) -> bool {
        self.classes.lines() > 0
    }

    fn judge_interface(&self, index: u32) -> Result<(), Error> {
        Ok(Generation::judge_interface(self, index)?)
    }

    fn judge_only(&self, indexes: &[u32]) {
        Generation::judge_only(self, indexes);
    }
}
