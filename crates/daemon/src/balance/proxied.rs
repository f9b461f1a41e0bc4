//! Pools with `forward = "proxy"`: what the proxy is told of them, and what it has counted.
//! Relaying is `weir_proxy`'s; which reals live and what was said of them is the
//! balancer's.

mod selection;

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, RwLock, RwLockReadGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde::Serialize;
use weir_core::{PortRange, Protocol, balance::acl::Exceptions};
use weir_events::alerts::Alerts;
use weir_proxy::{Engine, Group, Limits, ProxyService, Real, RealState};

use super::{
    Pool, RealState as Checked, State,
    config::{Forward, Method},
    emergency::{Servers, servers},
    settings::Mode,
};
use crate::threads::{self, Pulses};
use selection::{RealSelection, Selector};

/// What clients have caused is told in the log at most so often.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// The proxy of all pools that have one. Its threads begin with the first of them, and end
/// with the last.
pub(super) struct Proxied {
    pulses: Arc<Pulses>,
    running: Option<Running>,
    pools: BTreeMap<String, ProxiedPool>,
}

struct Running {
    engine: Engine,
    stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

struct ProxiedPool {
    group: Arc<Group>,
    choice: Arc<RwLock<RealSelection>>,
    /// The method and the takers that the ring was made of.
    of: Option<(Method, Vec<Taker>)>,
    reals: BTreeMap<IpAddr, Arc<Real>>,
    services: BTreeMap<(IpAddr, u16, u8), Arc<ProxyService>>,
    told: Told,
}

/// What the log has said of refused flows.
#[derive(Default)]
struct Told {
    counts: [u64; 4],
    at: Option<Instant>,
}

/// A real that takes new flows: its pool, address and share.
type Taker = (String, IpAddr, u32);

/// What the proxy has counted of a virtual address with a port.
#[derive(Debug, Clone, Serialize)]
pub struct ProxiedService {
    /// Connections, or flows of datagrams, that a real was found for.
    pub flows: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
    /// Refused: the pool's access list denies their client. Connections and datagrams.
    pub denied: u64,
    /// Refused: no real takes any.
    pub no_real: u64,
    /// Refused: the pool has `max_connections`.
    pub refused: u64,
    /// Refused: the client has `max_connections_per_client`.
    pub refused_client: u64,
    /// Given up: no real that was tried could be reached.
    pub unreachable: u64,
    /// Ended: silent for `idle_timeout`.
    pub idle: u64,
    /// Flows of datagrams that had to go for others.
    pub evicted: u64,
    /// How often there was no descriptor, or no memory, for a connection.
    pub out_of_descriptors: u64,
}

impl ProxiedService {
    /// Flows that nobody served.
    pub fn unserved(&self) -> u64 {
        self.no_real + self.refused + self.refused_client + self.unreachable
    }
}

/// What the proxy has counted of a real.
#[derive(Debug, Clone, Serialize)]
pub struct ProxiedReal {
    /// Connections and flows of datagrams that it has now.
    pub active: u64,
    /// Connections and flows of datagrams that the real got so far.
    pub flows: u64,
    /// Bytes to it.
    pub bytes_in: u64,
    /// Bytes from it.
    pub bytes_out: u64,
    /// Connections that it refused, or did not answer in time.
    pub failed: u64,
    /// Datagrams that it answered by "port unreachable".
    pub port_unreachable: u64,
}

impl Proxied {
    pub fn new(pulses: Arc<Pulses>) -> Self {
        Self {
            pulses,
            running: None,
            pools: BTreeMap::new(),
        }
    }

    /// Has the proxy do what is known of the pools now.
    ///
    /// # Errors
    /// The system has no descriptors or threads for it.
    pub fn follow(&mut self, state: &State, alerts: &Alerts) -> io::Result<()> {
        let pools = &state.pools;
        let mut are_cut = false;
        let mut known = std::mem::take(&mut self.pools);
        for pool in pools {
            let Forward::Proxy(limits) = &pool.config.forward else {
                continue;
            };
            let name = &pool.config.name;
            let mut proxied = known
                .remove(name)
                .unwrap_or_else(|| ProxiedPool::new(pool.config.method, *limits));
            proxied.group.set_limits(*limits);
            are_cut |= proxied.follow_reals(&pool.reals);
            proxied.follow_services(pool);
            proxied.tell(name, limits);
            self.pools.insert(name.clone(), proxied);
        }
        for (name, gone) in known {
            alerts.clear(&about(&name));
            gone.reals
                .values()
                .for_each(|real| real.set_state(RealState::Cut));
            are_cut = true;
        }
        for pool in pools {
            self.choose_by(pool, state);
        }
        if self.pools.is_empty() {
            self.stop();
            return Ok(());
        }
        let running = match &mut self.running {
            Some(running) => running,
            None => self.running.insert(self.start(state.threads)?),
        };
        let all = self.pools.values().flat_map(|pool| pool.services.values());
        let failed = running.engine.serve(&all.cloned().collect::<Vec<_>>());
        for (name, pool) in &self.pools {
            let is_its = |service: &ProxyService| Arc::ptr_eq(&service.group, &pool.group);
            let of_pool = failed.iter().filter(|(service, _)| is_its(service));
            let all: Vec<_> = of_pool
                .map(|(service, error)| not_listening(service, error))
                .collect();
            match all.is_empty() {
                true => alerts.clear(&about(name)),
                false => alerts.raise(&about(name), format!("pool {name}: {}", all.join("; "))),
            }
        }
        if are_cut {
            running.engine.wake();
        }
        Ok(())
    }

    /// Has new flows of this pool go to whoever takes them now: its reals, or those for an
    /// emergency, which may be another pool's.
    fn choose_by(&mut self, pool: &Pool, state: &State) {
        let now = Instant::now();
        let (by, takers) = servers(pool, &state.pools);
        let of = match by {
            Servers::Pool(name) => name,
            _ => pool.config.name.clone(),
        };
        let takers = takers.into_iter().filter_map(|real| {
            let address = real.config.address;
            let share = real.share(pool.config.slow_start, now);
            let known = self.pools.get(&of)?.reals.get(&address)?;
            Some(((of.clone(), address, share), known.clone()))
        });
        let (takers, reals): (Vec<_>, Vec<_>) = takers.unzip();
        if let Some(proxied) = self.pools.get_mut(&pool.config.name) {
            proxied.set_choice(pool.config.method, takers, reals);
            proxied.set_acl(state.acl(&pool.config.name));
        }
    }

    fn start(&self, threads: Option<usize>) -> io::Result<Running> {
        let processors = || thread::available_parallelism().map_or(1, |count| count.get().min(64));
        let (engine, workers) = Engine::new(threads.unwrap_or_else(processors))?;
        let mut running = Running {
            engine,
            stopping: Arc::default(),
            threads: Vec::new(),
        };
        for (number, worker) in (0..).zip(workers) {
            let pulse = self.pulses.of(format!("weir-proxy-{number}"));
            let stopping = running.stopping.clone();
            let run = move || worker.run(&stopping, || pulse.beat());
            match threads::spawn(format!("weir-proxy-{number}"), run) {
                Ok(thread) => running.threads.push(thread),
                Err(error) => {
                    running.stop();
                    return Err(error);
                }
            }
        }
        Ok(running)
    }

    /// Ends the threads, and with them all that is open.
    pub fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop();
        }
    }

    pub fn services(&self, pool: &str) -> Vec<(IpAddr, String, ProxiedService)> {
        let services = self.pools.get(pool).map(|pool| pool.services.iter());
        services
            .into_iter()
            .flatten()
            .map(|((vip, _, _), service)| {
                let counters = &service.counters;
                let counted = ProxiedService {
                    flows: counters.flows.get(),
                    bytes_in: counters.bytes_in.get(),
                    bytes_out: counters.bytes_out.get(),
                    denied: counters.denied.get(),
                    no_real: counters.no_real.get(),
                    refused: counters.refused_total.get(),
                    refused_client: counters.refused_client.get(),
                    unreachable: counters.unreachable.get(),
                    idle: counters.idle.get(),
                    evicted: counters.evicted.get(),
                    out_of_descriptors: counters.out_of_descriptors.get(),
                };
                (*vip, port(service), counted)
            })
            .collect()
    }

    pub fn real(&self, pool: &str, address: IpAddr) -> Option<ProxiedReal> {
        let counters = &self.pools.get(pool)?.reals.get(&address)?.counters;
        Some(ProxiedReal {
            active: counters.active.get(),
            flows: counters.flows.get(),
            bytes_in: counters.bytes_in.get(),
            bytes_out: counters.bytes_out.get(),
            failed: counters.failed.get(),
            port_unreachable: counters.port_unreachable.get(),
        })
    }
}

impl Running {
    fn stop(self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.engine.wake();
        for thread in self.threads {
            thread.join().expect("a panic ends the daemon");
        }
    }
}

impl ProxiedPool {
    fn new(method: Method, limits: Limits) -> Self {
        let choice = RealSelection::of_none(method);
        let choice = Arc::new(RwLock::new(choice));
        Self {
            group: Arc::new(Group::new(Box::new(Selector(choice.clone())), limits)),
            choice,
            of: None,
            reals: BTreeMap::new(),
            services: BTreeMap::new(),
            told: Told::default(),
        }
    }

    /// Returns whether a real is cut off that was not.
    fn follow_reals(&mut self, checked: &[Checked]) -> bool {
        let mut are_cut = false;
        let mut cut = |real: &Real| {
            are_cut |= real.state() != RealState::Cut;
            real.set_state(RealState::Cut);
        };
        self.reals.retain(|address, real| {
            let stays = checked.iter().any(|one| one.config.address == *address);
            if !stays {
                cut(real);
            }
            stays
        });
        for one in checked {
            let address = one.config.address;
            let real = self.reals.entry(address);
            let real = real.or_insert_with(|| Arc::new(Real::new(address)));
            real.set_port(one.config.port);
            match (one.setting.mode, one.health.may_have_flows()) {
                (Mode::Disabled, _) => cut(real),
                (_, true) => real.set_state(RealState::Keeps),
                (_, false) => real.set_state(RealState::Down),
            }
        }
        are_cut
    }

    /// `reals`: those of the takers, in their order.
    fn set_choice(&mut self, method: Method, takers: Vec<Taker>, reals: Vec<Arc<Real>>) {
        let of = Some((method, takers));
        let are_same = {
            let choice = self.choice();
            let pairs = choice.reals.iter().zip(&reals);
            self.of == of && { pairs }.all(|(known, real)| Arc::ptr_eq(known, real))
        };
        if are_same {
            return;
        }
        let takers = of.iter().flat_map(|(_, takers)| takers);
        let shares: Vec<_> = takers
            .map(|(_, at, share)| (at.to_string(), *share))
            .collect();
        self.choice
            .write()
            .expect("no holder of this lock panics")
            .take_on(method, &shares, reals);
        self.of = of;
    }

    fn set_acl(&self, acl: Option<Arc<Exceptions>>) {
        let mut choice = self.choice.write().expect("no holder of this lock panics");
        choice.acl = acl;
    }

    fn choice(&self) -> RwLockReadGuard<'_, RealSelection> {
        self.choice.read().expect("no holder of this lock panics")
    }

    fn follow_services(&mut self, pool: &Pool) {
        let mut known = std::mem::take(&mut self.services);
        for vip in &pool.config.vips {
            for range in &pool.config.ports {
                let (protocol, port) = (range.protocol, range.low);
                let key = (*vip, port, protocol.number());
                let service = known.remove(&key).unwrap_or_else(|| {
                    let at = SocketAddr::new(*vip, port);
                    let protocol = match protocol {
                        Protocol::Udp => weir_proxy::Protocol::Udp,
                        _ => weir_proxy::Protocol::Tcp,
                    };
                    Arc::new(ProxyService::new(at, protocol, self.group.clone()))
                });
                self.services.insert(key, service);
            }
        }
    }

    /// Says in the log what clients were refused, the first time at once and then in a
    /// line a minute at most.
    fn tell(&mut self, name: &str, limits: &Limits) {
        let sum = |count: fn(&ProxyService) -> u64| -> u64 {
            self.services.values().map(|service| count(service)).sum()
        };
        let counts = [
            sum(|service| service.counters.refused_total.get()),
            sum(|service| service.counters.refused_client.get()),
            sum(|service| service.counters.evicted.get()),
            sum(|service| service.counters.out_of_descriptors.get()),
        ];
        let is_soon = self.told.at.is_some_and(|at| at.elapsed() < TELL_EVERY);
        if counts == self.told.counts || is_soon {
            return;
        }
        let words = [
            format!(
                "connections refused, for there are max_connections ({})",
                limits.flows
            ),
            "connections refused, for their client has max_connections_per_client".to_owned(),
            format!(
                "flows of datagrams ended for others, for there are max_connections ({})",
                limits.flows
            ),
            "times no descriptor or memory for a connection".to_owned(),
        ];
        let before = self.told.counts;
        let more = counts
            .iter()
            .zip(before)
            .map(|(now, before)| now.saturating_sub(before));
        let said = more.zip(words).filter(|(count, _)| *count > 0);
        let said: Vec<_> = said
            .map(|(count, words)| format!("{count} {words}"))
            .collect();
        if !said.is_empty() {
            tracing::warn!("pool {name}: {}", said.join("; "));
        }
        self.told = Told {
            counts,
            at: Some(Instant::now()),
        };
    }
}

/// What alerts about a pool's listening sockets are about.
fn about(pool: &str) -> String {
    format!("pool-{pool}:proxy")
}

fn port(service: &ProxyService) -> String {
    let protocol = match service.protocol {
        weir_proxy::Protocol::Tcp => Protocol::Tcp,
        weir_proxy::Protocol::Udp => Protocol::Udp,
    };
    PortRange::one(protocol, service.vip.port()).to_string()
}

fn not_listening(service: &ProxyService, error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another program of this host does, there or at all addresses".to_owned()
        }
        io::ErrorKind::PermissionDenied => "that takes CAP_NET_BIND_SERVICE".to_owned(),
        _ => error.to_string(),
    };
    format!(
        "cannot receive {} at {}: {why}",
        port(service),
        service.vip.ip()
    )
}
