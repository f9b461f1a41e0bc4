//! The threads that run while the daemon does, besides those that read logs.

use std::{sync::Arc, thread::JoinHandle};

use tokio::sync::watch;

use super::{
    Reloader, StartError,
    control::{self, Sockets},
    threads::{ClassKeeper, PacketTeller},
    tick::maintain,
};
use crate::service::Service;

/// Threads that run until the daemon stops.
pub(super) struct Running {
    /// Sleeps between its ticks.
    maintenance: JoinHandle<()>,
    others: Vec<JoinHandle<()>>,
    stop_control: watch::Sender<bool>,
}

impl Running {
    /// Starts them all; from then on requests are answered.
    pub fn start(
        service: &Arc<Service>,
        reloader: &Arc<Reloader>,
        sockets: Sockets,
    ) -> Result<Self, StartError> {
        let maintenance = {
            let service = service.clone();
            spawn("weir-maintain", move || maintain(&service))?
        };
        let pulse = |name| service.pulses.of(name);
        let stopping = || service.stopping.clone();
        let packets = {
            let (teller, pulse) = (PacketTeller::of(service), pulse("weir-packets"));
            spawn("weir-packets", move || teller.run(&pulse))?
        };
        let classes = {
            let (keeper, pulse) = (ClassKeeper::of(service), pulse("weir-classes"));
            spawn("weir-classes", move || keeper.run(&pulse))?
        };
        let health = {
            let (balancer, stopping) = (service.balancer.clone(), stopping());
            let pulse = pulse("weir-health");
            spawn("weir-health", move || balancer.run(&stopping, &pulse))?
        };
        let vips = {
            let (vips, stopping) = (service.vips.clone(), stopping());
            let pulse = pulse("weir-vips");
            spawn("weir-vips", move || vips.run(&stopping, &pulse))?
        };
        let apps = {
            let (apps, stopping) = (service.apps.clone(), stopping());
            let pulse = pulse("weir-app");
            spawn("weir-app", move || apps.run(&stopping, &pulse))?
        };
        let tokens = {
            let (tokens, stopping) = (service.tokens.clone(), stopping());
            let pulse = pulse("weir-token");
            spawn("weir-token", move || tokens.run(&stopping, &pulse))?
        };
        let (stop_control, stopped) = watch::channel(false);
        let control = {
            let serve = control::server(service, reloader.clone(), sockets, stopped)?;
            spawn("weir-control", serve)?
        };
        Ok(Self {
            maintenance,
            others: vec![packets, classes, health, vips, apps, tokens, control],
            stop_control,
        })
    }

    /// Wakes those that wait for something else than the flag that they look at.
    pub fn ask_to_stop(&self) {
        self.maintenance.thread().unpark();
        // Receivers gone: the control thread has ended already.
        let _ = self.stop_control.send(true);
    }

    /// Waits for the end of each.
    pub fn join(self) {
        for thread in std::iter::once(self.maintenance).chain(self.others) {
            thread.join().expect("a panic ends the daemon");
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StartError> {
    let what = format!("cannot start the thread {name}");
    crate::threads::spawn(name, work).map_err(StartError::system(what))
}
