//! A proxy on loopback addresses, between a client and reals that tests play.

#![allow(dead_code)] // Each test program uses a part.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use weir_proxy::{
    Chooser, Engine, Flow, Group, Limits, Protocol, ProxyHeader, ProxyService, Real, RealState,
};

/// Longer than anything here takes.
pub const SOON: Duration = Duration::from_secs(60);

pub const LIMITS: Limits = Limits {
    flows: 10_000,
    flows_of_client: None,
    tries: 3,
    connect_timeout: Duration::from_secs(3),
    idle_timeout: Duration::from_secs(600),
    udp_timeout: Duration::from_secs(60),
    header: ProxyHeader::None,
    is_transparent: false,
};

/// Nobody is served who comes from here.
pub const DENIED: &str = "127.0.0.66";

/// Takes the first real that is left.
struct InOrder(Vec<Arc<Real>>);

impl Chooser for InOrder {
    fn admits(&self, client: IpAddr) -> bool {
        client != DENIED.parse::<IpAddr>().unwrap()
    }

    fn choose(&self, _: &Flow, tried: &[Arc<Real>]) -> Option<Arc<Real>> {
        let fits = |real: &&Arc<Real>| {
            real.state() == RealState::Keeps && !tried.iter().any(|one| Arc::ptr_eq(one, real))
        };
        self.0.iter().find(fits).cloned()
    }
}

pub struct Proxy {
    pub engine: Engine,
    pub group: Arc<Group>,
    pub service: Arc<ProxyService>,
    pub reals: Vec<Arc<Real>>,
    stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Proxy {
    pub fn tcp(vip: SocketAddr, reals: &[&str], limits: Limits) -> Self {
        Self::new(vip, Protocol::Tcp, reals, limits, 1)
    }

    pub fn new(
        vip: SocketAddr,
        protocol: Protocol,
        reals: &[&str],
        limits: Limits,
        workers: usize,
    ) -> Self {
        let (service, reals) = service(vip, protocol, reals, limits);
        let group = service.group.clone();
        let (engine, workers) = Engine::new(workers).unwrap();
        let failed = engine.serve(std::slice::from_ref(&service));
        assert!(failed.is_empty(), "{}", failed[0].1);
        let stopping = Arc::new(AtomicBool::new(false));
        let threads = workers.into_iter().map(|worker| {
            let stopping = stopping.clone();
            thread::spawn(move || worker.run(&stopping, || ()))
        });
        Self {
            engine,
            group,
            service,
            reals,
            threads: threads.collect(),
            stopping,
        }
    }
}

/// A service of a group of its own, with these reals.
pub fn service(
    vip: SocketAddr,
    protocol: Protocol,
    reals: &[&str],
    limits: Limits,
) -> (Arc<ProxyService>, Vec<Arc<Real>>) {
    let reals = reals.iter().map(|real| real.parse::<IpAddr>().unwrap());
    let reals: Vec<_> = reals.map(|real| Arc::new(Real::new(real))).collect();
    let group = Arc::new(Group::new(Box::new(InOrder(reals.clone())), limits));
    (Arc::new(ProxyService::new(vip, protocol, group)), reals)
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stopping.store(true, Relaxed);
        self.engine.wake();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() && !thread::panicking() {
                panic!("a worker panicked");
            }
        }
    }
}

/// Waits until this is so.
#[track_caller]
pub fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < end, "in vain: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

pub fn at(addr: &str, port: u16) -> SocketAddr {
    SocketAddr::new(addr.parse().unwrap(), port)
}
