//! What is looked after once a second.

use std::sync::atomic::Ordering;

use jiff::Timestamp;
use weir_core::BanSource;

use super::TICK;
use crate::{service::Service, threads};

/// Looks after everything until the daemon stops.
pub(super) fn maintain(service: &Service) {
    while !service.stopping.load(Ordering::Relaxed) {
        alert_on(service, "backend", service.backend.maintain());
        service.bans.follow_usage();
        service.bans.evicted(&service.backend.take_evicted());
        let enforcement = || service.config.get().enforcement.clone();
        let (backend, alerts) = (&*service.backend, &*service.alerts);
        service.interfaces.follow(enforcement, backend, alerts);
        service.geography.look();
        alert_on(
            service,
            "allow-list",
            service.allow_list.refresh_exemptions(),
        );
        let now = || {
            (
                service.config.get().decoy.clone(),
                service.config.get().tarpit.clone(),
                service.own.get().to_vec(),
            )
        };
        alert_on(service, "decoy", service.decoy.follow(now));
        if service.store.take_recreated() {
            service.allow_list.remember_allow_again();
            if let Err(error) = service.bans.remember_bans_again() {
                tracing::error!("reading the ban table: {error}");
            }
        }
        service.bans.follow_refused();
        service.bans.follow_expiries();
        service.bans.write_log();
        tidy_ledger(service, false);
        service.events.settle(false);
        service.pulses.tend(&service.alerts);
        threads::wait(TICK, &service.stopping);
    }
}

/// Remembers what the watches have counted; the workers see to the jails. Forgets
/// what no longer counts.
pub(super) fn tidy_ledger(service: &Service, last: bool) {
    let ledger = service.ledger.get();
    ledger.forget_expired(Timestamp::now());
    let is_watch = |name: &str| matches!(BanSource::of_ledger_name(name), BanSource::Watch(_));
    let numbered = ledger.jails().iter().enumerate();
    let watches: Vec<usize> = numbered
        .filter(|(_, jail)| is_watch(&jail.name))
        .map(|(number, _)| number)
        .collect();
    if !watches.is_empty() {
        service.store.progress("watches", last, |again| {
            (None, ledger.take_changes(&watches, again))
        });
    }
}

fn alert_on(service: &Service, about: &str, result: Result<(), weir_enforce::Error>) {
    match result {
        Ok(()) => service.alerts.clear(about),
        Err(error) => service.alerts.raise(about, error.to_string()),
    }
}
