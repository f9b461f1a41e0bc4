//! Joins the stages in data-path order and keeps them running:
//!
//! `sources → filter → ledger → Bans::enforce → backend` in one thread per
//! group of sources (`log_worker`), beside them `tick`, the `threads` of classes and
//! packet events, and the `api`. Start and stop are here; what is done for a start
//! is in `start`, for a reload in `reload`, and what each part may touch in `handles`.

pub(crate) mod handles;
mod reload;
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
use tokio::sync::watch;
use weir_enforce::BackendChoice;
use weir_events::{Event, Kind};

use crate::{
    api::{self, Reload, fail2ban},
    config::Config,
    instance::{self, Needs},
    log_worker::Workers,
    threads::{abort_on_panic, spawn as spawn_thread},
};
pub use reload::Reloader;
use start::{announce, mount_bpffs, start_enforcement};
pub use start_error::StartError;
use threads::{ClassKeeper, PacketTeller};
use tick::{maintain, tidy_ledger};

/// How often the maintenance thread looks after things.
const TICK: Duration = Duration::from_secs(1);
/// Longer than any daemon runs.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Runs the daemon until SIGTERM or SIGINT; SIGHUP reloads. Enforcement stays
/// behind in the kernel.
pub fn run(config_file: &Path) -> Result<(), StartError> {
    weir_bpf::arenas::fit_address_space();
    abort_on_panic();
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
    let listener = api::bind(&config.socket).map_err(system(format!(
        "cannot listen on {}",
        config.socket.display()
    )))?;
    let fail2ban_listener = match &config.fail2ban_socket {
        None => None,
        Some(path) => {
            instance::make_parent(path)?;
            let what = format!("fail2ban_socket: cannot listen on {}", path.display());
            Some(api::bind(path).map_err(system(what))?)
        }
    };
    mount_bpffs(&config.enforcement)?;
    // Also to take away what an earlier daemon left there.
    let raw_sockets = config.enforcement.backend == BackendChoice::Ipset
        || !config.vips().is_empty()
        || config.asks_vips()
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

    let service = Arc::new(start_enforcement(config)?);
    if lock.is_none() {
        let dir = service.config.get().state_dir.display().to_string();
        service.alerts.raise(
            "state-directory",
            format!("{dir} is not there and cannot be made: nothing is remembered, and a second daemon for it would not be noticed; mend it and restart weir"),
        );
    }
    service.lists.start();
    // Before anybody bans.
    service.run_actions();
    service.fail2ban_state.take_over_once();
    // The log that jails read, before they look for it.
    service.bans.write_log();
    let workers = Workers::start(handles::of_logs(&service), &service.config.get())?;
    let reloader = Arc::new(Reloader::new(service.clone(), workers));
    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        spawn_thread(name, work).map_err(system(format!("cannot start the thread {name}")))
    };
    let maintenance = {
        let service = service.clone();
        spawn("weir-maintain", Box::new(move || maintain(&service)))?
    };
    let packets = {
        let (teller, pulse) = (
            PacketTeller::of(&service),
            service.pulses.of("weir-packets"),
        );
        spawn("weir-packets", Box::new(move || teller.run(&pulse)))?
    };
    let classes = {
        let (keeper, pulse) = (ClassKeeper::of(&service), service.pulses.of("weir-classes"));
        spawn("weir-classes", Box::new(move || keeper.run(&pulse)))?
    };
    let health = {
        let (balancer, stopping) = (service.balancer.clone(), service.stopping.clone());
        let pulse = service.pulses.of("weir-health");
        spawn(
            "weir-health",
            Box::new(move || balancer.run(&stopping, &pulse)),
        )?
    };
    let vips = {
        let (vips, stopping) = (service.vips.clone(), service.stopping.clone());
        let pulse = service.pulses.of("weir-vips");
        spawn("weir-vips", Box::new(move || vips.run(&stopping, &pulse)))?
    };
    let apps = {
        let (apps, stopping) = (service.apps.clone(), service.stopping.clone());
        let pulse = service.pulses.of("weir-app");
        spawn("weir-app", Box::new(move || apps.run(&stopping, &pulse)))?
    };
    let tokens = {
        let (tokens, stopping) = (service.tokens.clone(), service.stopping.clone());
        let pulse = service.pulses.of("weir-token");
        spawn(
            "weir-token",
            Box::new(move || tokens.run(&stopping, &pulse)),
        )?
    };
    let (stop_control, stopped) = watch::channel(false);
    let control = {
        let handles = handles::of_api(&service, reloader.clone());
        let (socket, alerts) = (service.config.get().socket.clone(), service.alerts.clone());
        let fail2ban = fail2ban_listener.zip(service.config.get().fail2ban_socket.clone());
        let pulse = service.pulses.of("weir-control");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(api::THREADS)
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
                if let Some((listener, path)) = fail2ban {
                    let (handles, stopped) = (handles.clone(), stopped.clone());
                    runtime.spawn(async move {
                        let serving = fail2ban::socket::serve(listener, path, handles, stopped);
                        if let Err(error) = serving.await {
                            tracing::error!("Fail2ban's socket: {error}");
                        }
                    });
                }
                let served =
                    runtime.block_on(api::serve(listener, socket, handles, alerts, stopped));
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
        // A refusal is in the log.
        let _ = reloader.reload();
    }
    tracing::info!("stopping; what is banned stays banned");
    service.stopping.store(true, Ordering::Relaxed);
    service.lists.stop();
    maintenance.thread().unpark();
    // Receivers gone: the control thread has ended already.
    let _ = stop_control.send(true);
    reloader.stop();
    for thread in [
        maintenance,
        packets,
        classes,
        health,
        vips,
        apps,
        tokens,
        control,
    ] {
        thread.join().expect("a panic ends the daemon");
    }
    service.ignore_checks.stop();
    service.actions.stop();
    service.bans.write_log();
    tidy_ledger(&service, true);
    service.events.settle(true);
    service.store.close();
    let stopped = "what is banned stays banned";
    service
        .events
        .tell(&Event::new(Kind::Stop, Timestamp::now(), stopped));
    reloader.stop_sinks();
    let config = service.config.get();
    for socket in std::iter::once(&config.socket).chain(&config.fail2ban_socket) {
        if let Err(error) = std::fs::remove_file(socket) {
            tracing::debug!("cannot remove {}: {error}", socket.display());
        }
    }
    Ok(())
}
