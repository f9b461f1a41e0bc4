//! From a configuration to a host that is enforced: database and backend made to
//! agree, rules in, then attached.

use std::{io, sync::Arc, time::Instant};

use weir_enforce::{
    Backend, BanCounts, Entry, Settings,
    backend_swap::{self, BackendHome},
};
use weir_events::alerts::Alerts;

use super::{added_pools, reload, start_error::StartError};
use crate::{
    config::{Config, WithAdded},
    expiry::{ExpiredBan, Expiries},
    interfaces::{ProtectedInterfaces, config::Enforcement},
    service::Service,
    store::{Change, PORTION, Store, clock::Now, restore},
};

/// Where the backend of a configuration keeps what it has.
fn place(config: &Config) -> BackendHome {
    let enforcement = &config.enforcement;
    BackendHome {
        instance: enforcement.instance.clone(),
        pin_root: enforcement.pin_root.clone(),
        ipv4_length: enforcement.ipv4_length,
        room: BanCounts::default(),
        balanced_flows: config.balance.as_ref().map(|balance| balance.flows),
        settings: Settings {
            interfaces: enforcement.interfaces.clone(),
            backend: enforcement.backend,
            advice: enforcement.advice.clone(),
            max_bans: enforcement.max_bans,
            observe: enforcement.observe,
        },
    }
}

/// While this process may still mount: without systemd nobody has. A backend
/// that pins nothing lives without it; a later reload may name one that does.
pub(super) fn mount_bpffs(enforcement: &Enforcement) -> Result<(), weir_enforce::Error> {
    match weir_enforce::kernel::mount_bpffs(&enforcement.pin_root) {
        Err(error) if enforcement.backend.is_bpf() => Err(error.into()),
        Err(error) => {
            tracing::debug!(
                "{error}; backend {:?} pins nothing",
                enforcement.backend.name()
            );
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

pub(super) fn announce(service: &Service) {
    let config = service.config.get();
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    for limit in service.backend.limits() {
        tracing::info!("backend {}: {limit}", service.backend.name());
    }
    tracing::info!(
        "weir {} runs: backend {}, jails {}, control socket {}",
        env!("CARGO_PKG_VERSION"),
        service.backend.name(),
        config
            .jails
            .iter()
            .map(|jail| jail.name.as_str())
            .collect::<Vec<_>>()
            .join(", "),
        config.socket.display()
    );
}

/// Database and backend made to agree, exemptions in, then attached: fill
/// first, attach last.
pub(super) fn start_enforcement(config: Config) -> Result<Service, StartError> {
    let alerts = Arc::new(Alerts::default());
    let begin = Instant::now();
    let interfaces = ProtectedInterfaces::default();
    let mut place = place(&config);
    let ((store, loaded), backend) = Store::open_beside(
        &config.state_dir,
        config.keep_history,
        alerts.clone(),
        |room| {
            interfaces.begin(&mut place, &config.enforcement);
            place.room = room;
            backend_swap::open(&place)
        },
    );
    let backend = backend?;
    let now = Now::read();
    let in_force = backend.entries()?;
    let taken_over = in_force.len();
    let filling = restore::FillMarker::new(&config.state_dir);
    let partly = filling.was_cut_short();
    let expiries = Expiries::default();
    expiries.put(&in_force, now.boottime);
    let plan = restore::plan(loaded, in_force, partly, &now);
    expiries.put(&plan.insert, now.boottime);
    let over = plan.forget.iter().cloned();
    expiries.add_over(over.map(|(subject, policy)| ExpiredBan { subject, policy }));
    let is_denying = |entry: &Entry| entry.policy.action.denies_packets();
    if plan.insert.iter().any(is_denying) {
        marked(&alerts, filling.begin());
    }
    let (restored, evicted) = insert_restored(&*backend, &plan.insert, &alerts);
    marked(&alerts, filling.end());
    let bans = |number: usize| crate::counted(number as u64, "ban", "bans");
    let restored = if taken_over == 0 || plan.insert.iter().any(is_denying) {
        format!("{} restored from the database", bans(restored))
    } else if restored > 0 {
        format!(
            "{} taken over from the kernel, and {restored} that only notify restored from the database",
            bans(taken_over)
        )
    } else {
        format!("{} taken over from the kernel", bans(taken_over))
    };
    tracing::info!("{restored} in {} ms", begin.elapsed().as_millis());
    store.remember(
        plan.forget
            .into_iter()
            .map(|(subject, policy)| Change::Unban { subject, policy }),
    );
    // On disk before anybody counts: what led to them is not counted again.
    store.recover(plan.unexplained);
    let rewrite = if plan.rewrite {
        plan.insert
    } else {
        Vec::new()
    };

    let service = Service::new(config, backend, store, interfaces, alerts, restored);
    service.bans.know_ends(expiries);
    service.allow_list.refresh_exemptions()?;
    service.configure_decoy();
    reload::put_rules(&service, &service.config.get())?;
    service.backend.attach()?;
    let config = service.config.get();
    added_pools::forget_settings(&service, &config);
    added_pools::tell_of_added(&service, &WithAdded::default(), &config.added);
    for portion in rewrite.chunks(PORTION) {
        let saved = service.store.remember_now(
            portion
                .iter()
                .map(|entry| Change::Restored {
                    entry: entry.clone(),
                    until: now.until(entry.expiry),
                })
                .collect(),
        );
        if saved.is_err() {
            break; // Its rows still have the wall clock; there is an alert.
        }
    }
    service.bans.evicted(&evicted);
    Ok(service)
}

/// How many are in force again, and who had to go for them at the cap.
fn insert_restored(
    backend: &dyn Backend,
    entries: &[Entry],
    alerts: &Alerts,
) -> (usize, Vec<Entry>) {
    if entries.is_empty() {
        return (0, Vec::new());
    }
    let ended = match backend.insert(entries) {
        Ok(done) => return (entries.len(), done.evicted),
        Err(ended) => ended,
    };
    tracing::warn!("restoring bans in bulk: {ended}; one by one");
    let (mut restored, mut evicted) = (0, ended.done.evicted);
    for entry in entries {
        match backend.insert(std::slice::from_ref(entry)) {
            Ok(done) => {
                restored += 1;
                evicted.extend(done.evicted);
            }
            Err(ended) => {
                evicted.extend(ended.done.evicted);
                alerts.raise(
                    "restore",
                    format!(
                        "cannot restore the ban of {}: {}",
                        entry.subject, ended.error
                    ),
                );
            }
        }
    }
    (restored, evicted)
}

/// Without the mark, bans that a daemon had no time to restore count as lifted.
fn marked(alerts: &Alerts, done: io::Result<()>) {
    if let Err(error) = done {
        alerts.raise(
            "restore",
            format!("cannot mark in the state directory that bans are being restored: {error}"),
        );
    }
}
