//! Joins the stages in data-path order and keeps them running:
//!
//! `sources → filter → ledger → Service::enforce → backend` in one thread per
//! group of sources (`worker`), beside them `maintenance`, `packet events` and
//! `control`. Start, reload and stop are here, nothing else.

use std::{
    io,
    path::Path,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio::sync::watch;
use weir_core::{Prefix, Producer, Reason};
use weir_enforce::{
    Backend, Choice, Entry, Settings,
    switch::{self, Place},
};

use crate::{
    alerts::Alerts,
    config::{Config, Enforcement},
    control,
    events::{Event, Kind, Packet},
    expiry::{Ended, Expiries},
    instance,
    reload::{self, Reloader},
    service::Service,
    start_error::StartError,
    store::{Change, PORTION, Store, clock::Now, restore},
    threads::{self, Pulse},
    uplinks::Uplinks,
    worker::Workers,
};

/// Where the backend of a configuration keeps what it has.
fn place(enforcement: &Enforcement) -> Place {
    Place {
        instance: enforcement.instance.clone(),
        pin_root: enforcement.pin_root.clone(),
        ipv4_length: enforcement.ipv4_length,
        room: (0, 0),
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
fn mount_bpffs(enforcement: &Enforcement) -> Result<(), weir_enforce::Error> {
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

/// How often the maintenance thread looks after things.
const TICK: Duration = Duration::from_secs(1);
/// Longer than any daemon runs.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);
/// How long the packet-event thread waits before it looks whether to stop.
const EVENT_WAIT: Duration = Duration::from_millis(250);
/// How long the look at the other inputs of the classes may wait for news of a list.
const LISTS_WAIT: Duration = Duration::from_secs(1);

/// Runs the daemon until SIGTERM or SIGINT; SIGHUP reloads. Enforcement stays
/// behind in the kernel.
pub fn run(config_file: &Path) -> Result<(), StartError> {
    weir_bpf::arenas::fit_address_space();
    threads::abort_on_panic();
    let config = Config::load(config_file)?;
    let system = |what: String| move |source| StartError::System { what, source };
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGHUP,
    ])
    .map_err(system("cannot handle signals".into()))?;
    let lock = instance::lock(&config.state_dir)?;
    instance::make_parent(&config.socket)?;
    let listener = control::bind(&config.socket).map_err(system(format!(
        "cannot listen on {}",
        config.socket.display()
    )))?;
    mount_bpffs(&config.enforcement)?;
    // Also to take away what an earlier daemon left there.
    let iptables = config.enforcement.backend == Choice::Ipset
        || weir_enforce::ipset::is_there(&config.enforcement.instance);
    instance::raise_file_limit();
    instance::drop_privileges(iptables, !config.watches.is_empty())?;

    let service = Arc::new(start_enforcement(config)?);
    if lock.is_none() {
        let dir = service.config().state_dir.display().to_string();
        service.alerts.raise(
            "state-directory",
            format!("{dir} is not there and cannot be made: nothing is remembered, and a second daemon for it would not be noticed; mend it and restart weir"),
        );
    }
    service.lists.start();
    let workers = Workers::start(&service, &service.config())?;
    let reloader = Arc::new(Reloader::new(service.clone(), workers));
    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        threads::spawn(name, work).map_err(system(format!("cannot start the thread {name}")))
    };
    let maintenance = {
        let service = service.clone();
        spawn("weir-maintain", Box::new(move || maintain(&service)))?
    };
    let packets = {
        let (service, pulse) = (service.clone(), service.pulses.of("weir-packets"));
        spawn(
            "weir-packets",
            Box::new(move || tell_packets(&service, &pulse)),
        )?
    };
    let classes = {
        let (service, pulse) = (service.clone(), service.pulses.of("weir-classes"));
        spawn(
            "weir-classes",
            Box::new(move || keep_classes(&service, &pulse)),
        )?
    };
    let (stop_control, stopped) = watch::channel(false);
    let control = {
        let (service, reloader) = (service.clone(), reloader.clone());
        let socket = service.config().socket.clone();
        let pulse = service.pulses.of("weir-control");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(control::THREADS)
            // Where there is no thread to be had, tokio waits for one that it has,
            // and panics if it has none: the first one stays.
            .thread_keep_alive(FOREVER)
            .build()
            .map_err(system("cannot start the control socket".into()))?;
        spawn(
            "weir-control",
            Box::new(move || {
                runtime.spawn_blocking(|| ());
                runtime.spawn(async move {
                    loop {
                        pulse.beat();
                        tokio::time::sleep(TICK).await;
                    }
                });
                let served =
                    runtime.block_on(control::serve(listener, socket, service, reloader, stopped));
                if let Err(error) = served {
                    tracing::error!("control socket: {error}");
                }
                // Event streams have no end of their own.
                runtime.shutdown_timeout(Duration::from_secs(1));
            }),
        )?
    };
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::warn!("cannot tell systemd: {error}");
    }
    announce(&service);
    let version = format!("weir {}", env!("CARGO_PKG_VERSION"));
    service
        .events
        .tell(&Event::new(Kind::Start, Timestamp::now(), version));

    for signal in signals.forever() {
        if signal != signal_hook::consts::SIGHUP {
            break;
        }
        match reloader.reload() {
            Ok(_) => {}
            Err(error) => tracing::error!("reload refused, the old configuration stays: {error}"),
        }
    }
    tracing::info!("stopping; what is banned stays banned");
    service.stopping.store(true, Ordering::Relaxed);
    service.lists.stop();
    maintenance.thread().unpark();
    // Receivers gone: the control thread has ended already.
    let _ = stop_control.send(true);
    reloader.stop();
    for thread in [maintenance, packets, classes, control] {
        thread.join().expect("a panic ends the daemon");
    }
    tidy_ledger(&service, true);
    service.events.settle(true);
    service.store.close();
    let stopped = "what is banned stays banned";
    service
        .events
        .tell(&Event::new(Kind::Stop, Timestamp::now(), stopped));
    reloader.stop_sinks();
    let socket = service.config().socket.clone();
    if let Err(error) = std::fs::remove_file(&socket) {
        tracing::debug!("cannot remove {}: {error}", socket.display());
    }
    Ok(())
}

fn announce(service: &Service) {
    let config = service.config();
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
fn start_enforcement(config: Config) -> Result<Service, StartError> {
    let alerts = Arc::new(Alerts::default());
    let begin = Instant::now();
    let uplinks = Uplinks::default();
    let mut place = place(&config.enforcement);
    let ((store, loaded), backend) = Store::open_beside(
        &config.state_dir,
        config.keep_history,
        alerts.clone(),
        |room| {
            uplinks.begin(&mut place, &config.enforcement);
            place.room = room;
            switch::open(&place)
        },
    );
    let backend = backend?;
    let now = Now::read();
    let in_force = backend.entries()?;
    let taken_over = in_force.len();
    let filling = restore::Filling::new(&config.state_dir);
    let partly = filling.was_cut_short();
    let expiries = Expiries::default();
    expiries.put(&in_force, now.boottime);
    let plan = restore::plan(loaded, in_force, partly, &now);
    expiries.put(&plan.insert, now.boottime);
    let over = plan.forget.iter().cloned();
    expiries.add_over(over.map(|(subject, policy)| Ended { subject, policy }));
    if !plan.insert.is_empty() {
        marked(&alerts, filling.begin());
    }
    let (restored, evicted) = insert_restored(&*backend, &plan.insert, &alerts);
    marked(&alerts, filling.end());
    let restored = if taken_over > 0 && !partly {
        format!("{taken_over} bans taken over from the kernel")
    } else {
        format!("{restored} bans restored from the database")
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

    let service =
        Service::new(config, backend, store, uplinks, alerts, restored).with_expiries(expiries);
    service.refresh_exemptions()?;
    service.decoy.configure(&service);
    match reload::put_rules(&service, &service.config()) {
        Err(StartError::Classes(error)) if !error.is_for_good() => {
            service.alerts.raise("classes", error.to_string());
        }
        put => put?,
    }
    service.backend.attach()?;
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
    service.evicted(&evicted);
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

fn maintain(service: &Service) {
    while !service.stopping.load(Ordering::Relaxed) {
        alert_on(service, "backend", service.backend.maintain());
        service.follow_usage();
        service.evicted(&service.backend.take_evicted());
        let config = || service.config();
        let (backend, alerts) = (&*service.backend, &*service.alerts);
        service.uplinks.follow(config, backend, alerts);
        service.geography.look();
        alert_on(service, "allow-list", service.refresh_exemptions());
        alert_on(service, "decoy", service.decoy.follow(service));
        if service.store.take_recreated() {
            service.remember_allow_again();
            if let Err(error) = service.remember_bans_again() {
                tracing::error!("reading the ban table: {error}");
            }
        }
        service.follow_refused();
        service.follow_expiries();
        tidy_ledger(service, false);
        service.events.settle(false);
        service.pulses.tend(&service.alerts);
        thread::park_timeout(TICK);
    }
}

/// Has lists and geofence follow what they are made of; on a thread of its own: a
/// rebuild of everything takes a good part of a second.
fn keep_classes(service: &Service, pulse: &Pulse) {
    let mut seen = service.lists.changes();
    while !service.stopping.load(Ordering::Relaxed) {
        pulse.beat();
        match service.classes.follow(|| service.config()) {
            Ok(()) => service.alerts.clear("classes"),
            Err(error) => service.alerts.raise("classes", error.to_string()),
        }
        seen = service.lists.wait_for_change(seen, LISTS_WAIT);
    }
}

/// Remembers what the watches have counted; the workers see to the jails. Forgets
/// what no longer counts.
fn tidy_ledger(service: &Service, last: bool) {
    let Some(ledger) = service.ledger() else {
        return;
    };
    ledger.forget_expired(Timestamp::now());
    let is_watch = |name: &str| matches!(Producer::of_ledger_name(name), Producer::Watch(_));
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

fn tell_packets(service: &Service, pulse: &Pulse) {
    let Some(events) = service.backend.packet_events() else {
        return;
    };
    while !service.stopping.load(Ordering::Relaxed) {
        pulse.beat();
        let polled = events.poll_events(EVENT_WAIT, &mut |packet| {
            service.decoy.packet(service, &packet);
            let dropped = packet.reason.is_drop() || packet.reason == Reason::Observed;
            if !dropped || !service.events.has_readers() {
                return;
            }
            let port = match packet.port {
                0 => String::new(),
                port => format!(" to port {port}"),
            };
            // It may have gone since.
            let interface = nix::net::if_::if_indextoname(packet.ifindex).ok();
            let interface = interface.map(|name| name.to_string_lossy().into_owned());
            let mut event = Event::new(
                Kind::Drop,
                Timestamp::now(),
                format!(
                    "{}: protocol {}{port}, interface {}",
                    packet.reason,
                    packet.protocol,
                    interface
                        .clone()
                        .unwrap_or_else(|| packet.ifindex.to_string())
                ),
            );
            event.interface = interface;
            event.subject = Some(Prefix::host(packet.source));
            event.packet = Some(Packet {
                reason: packet.reason,
                protocol: packet.protocol,
                port: packet.port,
                interface: packet.ifindex,
            });
            service.events.tell(&service.geography.placed(event));
        });
        match polled {
            Ok(_) => service.alerts.clear("packet-events"),
            Err(error) => {
                service.alerts.raise("packet-events", error.to_string());
                thread::sleep(TICK);
            }
        }
    }
}
