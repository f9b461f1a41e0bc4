//! Joins the stages in data-path order and keeps them running:
//!
//! `sources → filter → ledger → Bans::enforce → backend` in one thread per
//! group of sources (`log_worker`), beside them `tick`, the `threads` of classes and
//! packet events, and the `api`. The order of start and stop is here; what is done for a
//! start is in `start`, for a reload in `reload`, for a change of pools in `pool_changes` and
//! `added_pools`, which threads there are in `running`, whom the control sockets answer in
//! `control`, and what each part may touch in `handles`.

mod added_pools;
mod control;
pub(crate) mod handles;
mod pool_changes;
mod reload;
mod running;
mod start;
mod start_error;
mod threads;
mod tick;

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use jiff::Timestamp;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use weir_enforce::BackendChoice;
use weir_events::{Event, Kind};

use crate::{
    api::Reload,
    balance::added::Added,
    config::Config,
    host::Host,
    identity,
    instance::{self, Needs},
    log_worker::Workers,
    service::Service,
    threads::abort_on_panic,
};
use control::Sockets;
pub use reload::Reloader;
use running::Running;
use start::{announce, mount_bpffs, start_enforcement};
pub use start_error::StartError;
use tick::tidy_ledger;

/// How often the maintenance thread looks after things.
const TICK: Duration = Duration::from_secs(1);

/// Runs the daemon until SIGTERM or SIGINT; SIGHUP reloads. Enforcement stays
/// behind in the kernel.
pub fn run(config_file: &Path) -> Result<(), StartError> {
    weir_bpf::arenas::fit_address_space();
    abort_on_panic();
    let config = Config::load(config_file)?;
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(StartError::system("cannot handle signals"))?;
    // Held until the end.
    let lock = instance::lock(&config.state_dir)?;
    // An earlier daemon writes what commands have added until it has ended.
    let added = Added::read(&config.state_dir);
    let config = config.with_added(added, &Host);
    let sockets = Sockets::bind(&config)?;
    mount_bpffs(&config.enforcement)?;
    give_up_privileges(&config)?;

    let service = Arc::new(start_enforcement(config)?);
    if lock.is_none() {
        tell_of_no_state(&service);
    }
    let reloader = start_judging(&service)?;
    let running = Running::start(&service, &reloader, sockets)?;
    tell_of_the_start(&service);
    serve_signals(signals, &reloader);
    stop(&service, &reloader, running);
    Ok(())
}

/// Keeps what this configuration, or a reload, may need of root's capabilities.
fn give_up_privileges(config: &Config) -> Result<(), StartError> {
    // Also to take away what an earlier daemon left there.
    let raw_sockets = config.enforcement.backend == BackendChoice::Ipset
        || !config.vips().is_empty()
        || config.may_ask_vips()
        || config.app.as_ref().is_some_and(identity::is_queued)
        || weir_enforce::ipset::is_there(&config.enforcement.instance);
    instance::raise_file_limit();
    instance::drop_privileges(Needs {
        raw_sockets,
        watches: config.runs_commands(),
        low_ports: config.has_privileged_proxy_port(),
        // Who observes at first is told to act by a reload.
        actions: config.has_actions(),
        programs: config.app.is_some(),
    })?;
    Ok(())
}

/// An alert about the state directory, without which nothing is remembered.
fn tell_of_no_state(service: &Service) {
    let dir = service.config.get().state_dir.display().to_string();
    service.alerts.raise(
        "state-directory",
        format!("{dir} is not there and cannot be made: nothing is remembered, and a second daemon for it would not be noticed; mend it and restart weir"),
    );
}

/// Starts all that bans: lists, actions of bans, then the workers that read logs.
fn start_judging(service: &Arc<Service>) -> Result<Arc<Reloader>, StartError> {
    service.lists.start();
    // Before anybody bans.
    service.run_actions();
    service.fail2ban_state.take_over_once();
    // The log that jails read, before they look for it.
    service.bans.write_log();
    let workers = Workers::start(handles::of_logs(service), &service.config.get())?;
    Ok(Arc::new(Reloader::new(service.clone(), workers)))
}

fn tell_of_the_start(service: &Service) {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::warn!("cannot tell systemd: {error}");
    }
    announce(service);
    let version = format!("weir {}", env!("CARGO_PKG_VERSION"));
    let event = Event::new(Kind::Start, Timestamp::now(), version);
    service.events.tell(&event);
}

/// Reloads at each SIGHUP, and returns at a signal that ends the daemon.
fn serve_signals(mut signals: Signals, reloader: &Reloader) {
    for signal in signals.forever() {
        if signal != SIGHUP {
            break;
        }
        // A refusal is in the log.
        let _ = reloader.reload();
    }
}

/// Ends the threads, then those that they tell: events and the store last.
fn stop(service: &Service, reloader: &Reloader, running: Running) {
    tracing::info!("stopping; what is banned stays banned");
    service.stopping.store(true, Ordering::Relaxed);
    service.lists.stop();
    running.ask_to_stop();
    reloader.stop();
    running.join();
    service.ignore_checks.stop();
    service.actions.stop();
    service.bans.write_log();
    tidy_ledger(service, true);
    service.events.settle(true);
    service.store.close();
    let stopped = "what is banned stays banned";
    let event = Event::new(Kind::Stop, Timestamp::now(), stopped);
    service.events.tell(&event);
    reloader.stop_sinks();
    control::remove_sockets(&service.config.get());
}
