//! Datagrams: those of one client's address and port go to one real, and what this
//! answers goes back. Each flow has a socket of its own, connected to its real: the kernel
//! then takes answers from nobody else, and tells of "port unreachable". A socket that
//! many flows share would need a source port for each of them just the same, because a
//! real's answer names nothing else. Flows are bounded; the one that was silent longest
//! goes first.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::Arc,
    time::Instant,
};

use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, recv, recvfrom, send, sendto},
};

use crate::{
    poller::{Interest, Kind, Token},
    proxy_header,
    relay::{Tools, is_want},
    service::{
        Assigned, Flow, FlowSlot, Full, Group, Limits, ProxyHeader, ProxyService, RealState,
    },
    socket,
    table::Table,
};

/// The longest datagram, and a header ahead of it.
const BUFFER: usize = 64 << 10;
/// Datagrams of one socket until others have their turn.
const TURN: usize = 64;

struct DatagramFlow {
    place: FlowSlot,
    flow: Flow,
    assigned: Assigned,
    socket: OwnedFd,
    /// The socket by which answers leave.
    listener: Arc<OwnedFd>,
    header: Vec<u8>,
    last: Instant,
}

/// Flows by when they were active, the oldest on top. Who was active since is put where it
/// belongs when its turn comes, so that a datagram costs nothing here.
type Ages = BinaryHeap<Reverse<(Instant, u32, u32)>>;

/// The datagram flows of a worker.
pub(crate) struct Datagrams {
    flows: Table<DatagramFlow>,
    by_client: HashMap<(SocketAddr, SocketAddr), (u32, u32)>,
    ages: HashMap<usize, (Arc<Group>, Ages)>,
    buffer: Vec<u8>,
}

fn key(group: &Arc<Group>) -> usize {
    Arc::as_ptr(group) as usize
}

impl Datagrams {
    pub fn new() -> Self {
        Self {
            flows: Table::default(),
            by_client: HashMap::new(),
            ages: HashMap::new(),
            buffer: vec![0; BUFFER],
        }
    }

    /// Sends on what clients have sent.
    pub fn requests(
        &mut self,
        service: &Arc<ProxyService>,
        listener: &Arc<OwnedFd>,
        tools: &mut Tools,
    ) {
        for _ in 0..TURN {
            let received = recvfrom(&**listener, &mut self.buffer[..], RecvFlags::empty());
            let (len, client) = match received {
                Ok((len, _, Some(client))) => (len, client),
                Ok(_) | Err(Errno::INTR) => continue,
                Err(_) => return,
            };
            let Ok(client) = SocketAddr::try_from(client) else {
                continue;
            };
            // Nobody has port 0; its answers could not be sent.
            if client.port() != 0 {
                self.request(service, listener, client, len, tools);
            }
        }
    }

    fn request(
        &mut self,
        service: &Arc<ProxyService>,
        listener: &Arc<OwnedFd>,
        client: SocketAddr,
        len: usize,
        tools: &Tools,
    ) {
        let at = (service.vip, client);
        let known = self.by_client.get(&at).copied();
        let known = known.filter(|(place, turn)| {
            let flow = self.flows.get(*place, *turn);
            flow.is_some_and(|flow| flow.assigned.real().state() == RealState::Keeps)
        });
        let (place, turn) = match known {
            Some(known) => known,
            None => {
                if let Some((place, _)) = self.by_client.get(&at) {
                    self.remove(*place);
                }
                match self.begin(service, listener, client, tools) {
                    Some(begun) => begun,
                    None => return,
                }
            }
        };
        let Some(flow) = self.flows.get(place, turn) else {
            return;
        };
        flow.last = tools.now;
        let ahead = flow.header.len();
        if ahead > 0 {
            if ahead + len > self.buffer.len() {
                return;
            }
            self.buffer.copy_within(..len, ahead);
            self.buffer[..ahead].copy_from_slice(&flow.header);
        }
        let datagram = &self.buffer[..ahead + len];
        let sent = match send(&flow.socket, datagram, SendFlags::NOSIGNAL) {
            // What an earlier datagram has met: this one was not sent yet.
            Err(Errno::CONNREFUSED) => {
                flow.assigned.real().counters.port_unreachable.one();
                send(&flow.socket, datagram, SendFlags::NOSIGNAL)
            }
            sent => sent,
        };
        if sent.is_ok() {
            service.counters.bytes_in.add(len as u64);
            flow.assigned.real().counters.bytes_in.add(len as u64);
        }
    }

    fn begin(
        &mut self,
        service: &Arc<ProxyService>,
        listener: &Arc<OwnedFd>,
        client: SocketAddr,
        tools: &Tools,
    ) -> Option<(u32, u32)> {
        let (limits, counters) = (service.group.limits(), &service.counters);
        if !service.group.admits(client) {
            counters.denied.one();
            return None;
        }
        let flow = service.flow(client);
        let Some(real) = service.group.choose(&flow, &[]) else {
            counters.no_real.one();
            return None;
        };
        let place = self.place(service, client, &limits)?;
        let to = real.at(service.vip.port());
        let source = limits.is_transparent.then_some(client);
        let connect = || socket::connected(to, service.protocol, source);
        let connected = match connect() {
            Err(error) if is_want(error) => {
                counters.out_of_descriptors.one();
                self.evict(service);
                connect()
            }
            connected => connected,
        };
        let Ok(socket) = connected else {
            real.counters.failed.one();
            counters.unreachable.one();
            return None;
        };
        let (number, turn) = self.flows.next();
        let token = Token {
            kind: Kind::Datagrams,
            place: number,
            turn,
        };
        tools.poller.add(&socket, token, Interest::Read).ok()?;
        counters.flows.one();
        let header = match limits.header {
            ProxyHeader::None => Vec::new(),
            ProxyHeader::V2 => proxy_header::header(&flow),
        };
        self.flows.insert(DatagramFlow {
            place,
            flow,
            assigned: Assigned::new(real),
            socket,
            listener: listener.clone(),
            header,
            last: tools.now,
        });
        self.by_client.insert((service.vip, client), (number, turn));
        let group = &service.group;
        let ages = self.ages.entry(key(group));
        let (_, ages) = ages.or_insert_with(|| (group.clone(), Ages::new()));
        ages.push(Reverse((tools.now, number, turn)));
        Some((number, turn))
    }

    /// A place among the flows of the group, if need be that of its oldest one.
    fn place(
        &mut self,
        service: &Arc<ProxyService>,
        client: SocketAddr,
        limits: &Limits,
    ) -> Option<FlowSlot> {
        let counters = &service.counters;
        match FlowSlot::take(service, client.ip(), limits) {
            Ok(place) => Some(place),
            Err(Full::Client) => {
                counters.refused_client.one();
                None
            }
            Err(Full::Group) => {
                self.evict(service);
                let place = FlowSlot::take(service, client.ip(), limits).ok();
                if place.is_none() {
                    counters.refused_total.one();
                }
                place
            }
        }
    }

    /// Ends the flow of the service's group that was silent longest.
    fn evict(&mut self, service: &Arc<ProxyService>) {
        let Some((_, ages)) = self.ages.get_mut(&key(&service.group)) else {
            return;
        };
        while let Some(Reverse((seen, place, turn))) = ages.pop() {
            match self.flows.get(place, turn) {
                None => (),
                Some(flow) if flow.last > seen => ages.push(Reverse((flow.last, place, turn))),
                Some(_) => {
                    service.counters.evicted.one();
                    self.remove(place);
                    return;
                }
            }
        }
    }

    fn remove(&mut self, place: u32) {
        if let Some(gone) = self.flows.remove(place) {
            self.by_client.remove(&(gone.flow.vip, gone.flow.client));
        }
    }

    /// Sends back what a real has answered.
    pub fn answers(&mut self, token: Token, tools: &mut Tools) {
        let Some(flow) = self.flows.get(token.place, token.turn) else {
            return;
        };
        let (service, real) = (flow.place.service(), flow.assigned.real());
        for _ in 0..TURN {
            match recv(&flow.socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((len, _)) => {
                    flow.last = tools.now;
                    let (answer, to) = (&self.buffer[..len], &flow.flow.client);
                    if sendto(&*flow.listener, answer, SendFlags::NOSIGNAL, to).is_ok() {
                        service.counters.bytes_out.add(len as u64);
                        real.counters.bytes_out.add(len as u64);
                    }
                }
                Err(Errno::CONNREFUSED) => real.counters.port_unreachable.one(),
                Err(Errno::INTR) => (),
                Err(_) => return,
            }
        }
        // There may be more, of which no event tells again until it is asked for.
        let again = tools.poller.change(&flow.socket, token, Interest::Read);
        debug_assert!(again.is_ok());
    }

    /// Ends the flows of a service that is received no more.
    pub fn forget(&mut self, service: &Arc<ProxyService>) {
        for (place, _) in self
            .flows
            .places(|flow| Arc::ptr_eq(flow.place.service(), service))
        {
            self.remove(place);
        }
    }

    /// Ends flows that were silent for too long, or whose real is cut off.
    pub fn tend(&mut self, now: Instant) {
        let is_cut = |flow: &DatagramFlow| flow.assigned.real().state() == RealState::Cut;
        for (place, _) in self.flows.places(is_cut) {
            self.remove(place);
        }
        let mut over = Vec::new();
        self.ages.retain(|_, (group, ages)| {
            let timeout = group.limits().udp_timeout;
            let is_old = |age: &&Reverse<(Instant, u32, u32)>| age.0.0 + timeout <= now;
            while let Some(Reverse((_, place, turn))) = ages.peek().filter(is_old).copied() {
                ages.pop();
                match self.flows.get(place, turn) {
                    None => (),
                    Some(flow) if flow.last + timeout > now => {
                        ages.push(Reverse((flow.last, place, turn)));
                    }
                    Some(_) => over.push(place),
                }
            }
            !ages.is_empty()
        });
        for place in over {
            self.remove(place);
        }
    }
}
