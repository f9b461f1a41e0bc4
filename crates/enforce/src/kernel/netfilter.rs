//! When the netfilter program is loaded, and whom it judges. It costs time and
//! memory to load, and an old kernel refuses it: so it is there only where it is
//! wanted by name, or where `auto` has nothing better.

use std::sync::atomic::Ordering;

use weir_bpf::{
    generation::{NO_NETFILTER, netfilter_supported},
    link::Hook,
};

use super::Kernel;
use crate::{
    Choice, Error, Settings,
    hooks::{self, Wanted},
};

/// # Errors
/// The kernel has no such programs.
pub(super) fn require() -> Result<(), Error> {
    match netfilter_supported() {
        true => Ok(()),
        false => Err(Error::Unsupported(NO_NETFILTER.to_owned())),
    }
}

impl Kernel {
    /// Attaches with the netfilter program where that hook is named, or `auto`
    /// tries it first or finds no other: it is loaded for nobody else.
    pub(super) fn or_with_netfilter(
        &self,
        settings: &Settings,
        attach: impl Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let wanted = settings.backend.hook();
        let leads_there = |name: &String| hooks::leads_to_netfilter(name, &Wanted::by(settings));
        let first = wanted == Some(Hook::Netfilter) || settings.interfaces.iter().any(leads_there);
        let has_it = || self.tables().current.has_netfilter();
        if first && !has_it() {
            require()?;
        }
        self.netfilter.store(first, Ordering::Relaxed);
        let load = || {
            self.netfilter.store(true, Ordering::Relaxed);
            let mut maintenance = self.maintenance.lock();
            let geometry = self.tables().current.table.geometry();
            self.next_generation(&mut maintenance, geometry)
        };
        if first && !has_it() {
            load()?;
        }
        match attach() {
            Err(Error::Unsupported(why))
                if wanted.is_none() && !has_it() && netfilter_supported() =>
            {
                load().map_err(|e| Error::Unsupported(format!("{why}; netfilter: {e}")))?;
                attach()
            }
            outcome => outcome,
        }
    }

    /// The backend as far as its limits go.
    pub(super) fn effective(&self) -> Choice {
        let backend = self.settings().backend;
        match backend {
            Choice::Auto if self.hooks.any_on_netfilter() => Choice::Kernel(Hook::Netfilter),
            backend => backend,
        }
    }
}
