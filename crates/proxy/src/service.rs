//! What is served: addresses, who chooses reals for them, and the limits they share.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, RwLock,
        atomic::{AtomicU8, AtomicU16, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    clients::Clients,
    counters::{Counter, RealCounters, ServiceCounters},
};

/// TCP or UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// A protocol with connections.
    Tcp,
    /// A protocol with datagrams, which this proxy joins to flows.
    Udp,
}

/// The client and the virtual address of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Address and port of the client.
    pub client: SocketAddr,
    /// The virtual address and port.
    pub vip: SocketAddr,
    /// The protocol of both ports.
    pub protocol: Protocol,
}

/// Finds reals. It is called by workers for each new flow, and must not wait.
pub trait Chooser: Send + Sync {
    /// May this client be served? Asked before anything else of each new flow.
    fn admits(&self, client: IpAddr) -> bool;

    /// The real of a new flow, which is none of `tried`: those could not be reached.
    fn choose(&self, flow: &Flow, tried: &[Arc<Real>]) -> Option<Arc<Real>>;
}

/// The treatment of a real's flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RealState {
    /// The real keeps the flows that it has. Whether it takes new ones is the [`Chooser`]'s
    /// matter.
    Keeps,
    /// The real is believed dead: connections are left to end by themselves, datagrams go
    /// to another real.
    Down,
    /// The real's connections are reset at once.
    Cut,
}

/// A server behind virtual addresses.
#[derive(Debug)]
pub struct Real {
    /// The address of the real.
    pub address: IpAddr,
    /// Counters of the real.
    pub counters: RealCounters,
    /// The port at which it serves; 0: that of each service.
    port: AtomicU16,
    state: AtomicU8,
}

impl Real {
    /// A real that keeps its flows, and serves at the port of each service.
    pub fn new(address: IpAddr) -> Self {
        Self {
            address,
            counters: RealCounters::default(),
            port: AtomicU16::new(0),
            state: AtomicU8::new(RealState::Keeps as u8),
        }
    }

    /// Has new flows go to this port of the real; `None`: to that which the client asked for.
    pub fn set_port(&self, port: Option<u16>) {
        self.port.store(port.unwrap_or(0), Relaxed);
    }

    /// Where a flow to a service with this port is relayed to.
    pub(crate) fn at(&self, service_port: u16) -> SocketAddr {
        let port = match self.port.load(Relaxed) {
            0 => service_port,
            port => port,
        };
        SocketAddr::new(self.address, port)
    }

    /// Has workers treat its flows so; of [`RealState::Cut`] they hear by
    /// [`crate::Engine::wake`].
    pub fn set_state(&self, state: RealState) {
        self.state.store(state as u8, Relaxed);
    }

    /// The state that was set last.
    pub fn state(&self) -> RealState {
        match self.state.load(Relaxed) {
            0 => RealState::Keeps,
            1 => RealState::Down,
            _ => RealState::Cut,
        }
    }
}

/// Whether a real is told of the client ahead of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHeader {
    /// The real is not told of the client.
    None,
    /// The real is told by the PROXY protocol, version 2; before each datagram with UDP.
    V2,
}

/// How much the flows of a [`Group`] may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once, and as many datagram flows.
    pub flows: u64,
    /// Flows of one client among these: an IPv4 address, or an IPv6 /64; `None`: no limit.
    pub flows_of_client: Option<u32>,
    /// Reals that are tried for one connection.
    pub tries: usize,
    /// How long each may take to accept.
    pub connect_timeout: Duration,
    /// How long a connection may be silent in both directions.
    pub idle_timeout: Duration,
    /// How long a datagram flow may be silent.
    pub udp_timeout: Duration,
    /// The header that is sent ahead of the client's bytes.
    pub header: ProxyHeader,
    /// Whether reals see the client's address as the source (IP_TRANSPARENT).
    pub is_transparent: bool,
}

/// Services that share limits and reals: a pool.
pub struct Group {
    chooser: Box<dyn Chooser>,
    limits: RwLock<Limits>,
    pub(crate) clients: Clients,
    pub(crate) connections: Counter,
    pub(crate) datagram_flows: Counter,
}

impl Group {
    /// A pool without any flow yet.
    pub fn new(chooser: Box<dyn Chooser>, limits: Limits) -> Self {
        Self {
            chooser,
            limits: RwLock::new(limits),
            clients: Clients::default(),
            connections: Counter::default(),
            datagram_flows: Counter::default(),
        }
    }

    pub(crate) fn admits(&self, client: SocketAddr) -> bool {
        self.chooser.admits(client.ip())
    }

    pub(crate) fn choose(&self, flow: &Flow, tried: &[Arc<Real>]) -> Option<Arc<Real>> {
        self.chooser.choose(flow, tried)
    }

    /// The limits as they are now.
    pub fn limits(&self) -> Limits {
        *self.limits.read().expect("no holder of this lock panics")
    }

    /// Sets the limits from now on; flows beyond a lower limit stay.
    pub fn set_limits(&self, limits: Limits) {
        *self.limits.write().expect("no holder of this lock panics") = limits;
    }

    /// Connections, and datagram flows, that are open now.
    pub fn active(&self) -> [u64; 2] {
        [self.connections.get(), self.datagram_flows.get()]
    }

    fn open(&self, protocol: Protocol) -> &Counter {
        match protocol {
            Protocol::Tcp => &self.connections,
            Protocol::Udp => &self.datagram_flows,
        }
    }
}

/// A virtual address with a port.
pub struct ProxyService {
    /// The virtual address and port.
    pub vip: SocketAddr,
    /// The protocol of the port.
    pub protocol: Protocol,
    /// The pool whose limits and reals the service shares.
    pub group: Arc<Group>,
    /// Counters of the service.
    pub counters: ServiceCounters,
}

impl ProxyService {
    /// A service with nothing counted yet.
    pub fn new(vip: SocketAddr, protocol: Protocol, group: Arc<Group>) -> Self {
        Self {
            vip,
            protocol,
            group,
            counters: ServiceCounters::default(),
        }
    }

    pub(crate) fn flow(&self, client: SocketAddr) -> Flow {
        Flow {
            client,
            vip: self.vip,
            protocol: self.protocol,
        }
    }
}

/// A place among the flows of a group, given back when dropped.
pub(crate) struct FlowSlot {
    service: Arc<ProxyService>,
    client: IpAddr,
    is_of_client: bool,
}

/// The limit that leaves no room for a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    Group,
    Client,
}

impl FlowSlot {
    pub fn take(
        service: &Arc<ProxyService>,
        client: IpAddr,
        limits: &Limits,
    ) -> Result<Self, Full> {
        let (group, protocol) = (&service.group, service.protocol);
        if !group.open(protocol).one_below(limits.flows) {
            return Err(Full::Group);
        }
        let is_of_client = match limits.flows_of_client {
            None => false,
            Some(most) if group.clients.enter(client, most) => true,
            Some(_) => {
                group.open(protocol).take_one();
                return Err(Full::Client);
            }
        };
        Ok(Self {
            service: service.clone(),
            client,
            is_of_client,
        })
    }

    pub fn service(&self) -> &Arc<ProxyService> {
        &self.service
    }
}

impl Drop for FlowSlot {
    fn drop(&mut self) {
        let group = &self.service.group;
        group.open(self.service.protocol).take_one();
        if self.is_of_client {
            group.clients.leave(self.client);
        }
    }
}

/// A flow that a real has, counted as long as this lives.
pub(crate) struct Assigned(Arc<Real>);

impl Assigned {
    pub fn new(real: Arc<Real>) -> Self {
        real.counters.active.one();
        real.counters.flows.one();
        Self(real)
    }

    pub fn real(&self) -> &Arc<Real> {
        &self.0
    }
}

impl Drop for Assigned {
    fn drop(&mut self) {
        self.0.counters.active.take_one();
    }
}
