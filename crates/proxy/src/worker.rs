//! One thread's share of the work: its listening sockets, connections and datagram flows.

use std::{
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, epoll::Event, eventfd},
    io::Errno,
    net::{SocketFlags, acceptfrom_with},
};

use crate::{
    datagrams::Datagrams,
    direction::COPY_SIZE,
    pipes::Pipes,
    poller::{self, Interest, Kind, Poller, Token},
    relay::{Connection, Then, Tools, is_want},
    service::{FlowSlot, Full, Protocol, ProxyService},
    socket,
    table::Table,
};

/// Events that are taken at once.
const EVENTS: usize = 256;
/// Connections that are accepted at once at most, of one listening socket.
const ACCEPTS: usize = 64;
/// How often timers are looked at: while something is about to time out, and otherwise.
const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(1);

/// What an engine has a worker do.
pub(crate) enum Order {
    /// Receive for this service at this socket.
    Listen(Arc<ProxyService>, OwnedFd),
    /// Receive for this service at the socket of that which has its address so far. Closing
    /// one and opening another would not do: the old one is open until each worker has
    /// come round to it, and has the address until then.
    Replace(Arc<ProxyService>),
    /// Receive at this address no more.
    Close(SocketAddr, Protocol),
    /// Look whether reals are cut off.
    Look,
}

/// The orders that wait for a worker.
pub(crate) struct Mailbox {
    orders: Mutex<Vec<Order>>,
    bell: OwnedFd,
}

impl Mailbox {
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            orders: Mutex::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub fn put(&self, order: Order) {
        let mut orders = self.orders.lock().expect("no holder of this lock panics");
        orders.push(order);
        drop(orders);
        // It is full only if it has not been read for long: then it rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn take(&self) -> Vec<Order> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        let mut orders = self.orders.lock().expect("no holder of this lock panics");
        std::mem::take(&mut orders)
    }
}

struct Listener {
    service: Arc<ProxyService>,
    socket: Arc<OwnedFd>,
    is_paused: bool,
    /// In which round connections were accepted last, and how many at most.
    accepted: (u64, usize),
}

impl Listener {
    fn is_at(&self, vip: SocketAddr, protocol: Protocol) -> bool {
        (self.service.vip, self.service.protocol) == (vip, protocol)
    }
}

/// The connections and flows of one thread.
pub struct Worker {
    mailbox: Arc<Mailbox>,
    tools: Tools,
    listeners: Table<Listener>,
    connections: Table<Connection>,
    datagrams: Datagrams,
    /// Connections that have had their turn and could go on.
    waiting: Vec<(u32, u32)>,
    /// So many connections are in a phase that a timer ends.
    timed: usize,
    paused: usize,
    /// Times that events were waited for.
    round: u64,
}

impl Worker {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> Result<Self, Errno> {
        let poller = Poller::new()?;
        let token = Token {
            kind: Kind::Wake,
            place: 0,
            turn: 0,
        };
        poller.add(&mailbox.bell, token, Interest::Level)?;
        Ok(Self {
            mailbox,
            tools: Tools {
                poller,
                pipes: Pipes::default(),
                buffer: Box::new([0; COPY_SIZE]),
                now: Instant::now(),
            },
            listeners: Table::default(),
            connections: Table::default(),
            datagrams: Datagrams::new(),
            waiting: Vec::new(),
            timed: 0,
            paused: 0,
            round: 0,
        })
    }

    /// Works until `stopping` is set and [`crate::Engine::wake`] called; `beat` is called
    /// at least once a second. What is open then is reset.
    pub fn run(mut self, stopping: &AtomicBool, mut beat: impl FnMut()) {
        let mut events = Vec::with_capacity(EVENTS);
        let mut looked = Instant::now();
        while !stopping.load(Relaxed) {
            beat();
            let is_short = self.timed > 0 || self.paused > 0;
            let round = if is_short { SHORT } else { LONG };
            let time = match self.waiting.is_empty() {
                true => round.saturating_sub(looked.elapsed()),
                false => Duration::ZERO,
            };
            self.tools.poller.wait(&mut events, time.as_nanos() as u32);
            self.tools.now = Instant::now();
            self.round += 1;
            for event in &events {
                self.event(event);
            }
            for (place, turn) in std::mem::take(&mut self.waiting) {
                self.step(place, turn, |connection, tools| connection.go_on(tools));
            }
            if looked.elapsed() >= round {
                looked = self.tools.now;
                self.tend();
            }
        }
        for (place, turn) in self.connections.places(|_| true) {
            self.step(place, turn, |connection, _| connection.reset());
        }
    }

    fn event(&mut self, event: &Event) {
        let (token, happened) = poller::read(event);
        match token.kind {
            Kind::Wake => self.obey(),
            Kind::Listener => self.receive(token),
            Kind::Client | Kind::Real => self.step(token.place, token.turn, |connection, tools| {
                connection.event(token.kind, happened, tools)
            }),
            Kind::Datagrams => self.datagrams.answers(token, &mut self.tools),
        }
    }

    /// Has a connection do something, and follows what comes of it.
    fn step(
        &mut self,
        place: u32,
        turn: u32,
        act: impl FnOnce(&mut Connection, &mut Tools) -> Then,
    ) {
        let Some(connection) = self.connections.get(place, turn) else {
            return;
        };
        let was_timed = connection.is_timed();
        let then = act(connection, &mut self.tools);
        let is_timed = then != Then::Close && connection.is_timed();
        self.timed = self.timed + usize::from(is_timed) - usize::from(was_timed);
        match then {
            Then::Wait => (),
            Then::GoOn => self.waiting.push((place, turn)),
            Then::Close => {
                connection.close(&mut self.tools.pipes);
                self.connections.remove(place);
            }
        }
    }

    fn obey(&mut self) {
        for order in self.mailbox.take() {
            match order {
                Order::Listen(service, socket) => {
                    let (place, turn) = self.listeners.next();
                    let token = Token {
                        kind: Kind::Listener,
                        place,
                        turn,
                    };
                    // Without memory for it, it is closed: nobody is left waiting there.
                    if self
                        .tools
                        .poller
                        .add(&socket, token, Interest::Level)
                        .is_ok()
                    {
                        self.listeners.insert(Listener {
                            service,
                            socket: Arc::new(socket),
                            is_paused: false,
                            accepted: (0, 1),
                        });
                    }
                }
                Order::Replace(service) => {
                    let is_it = |listener: &Listener| listener.is_at(service.vip, service.protocol);
                    for (place, turn) in self.listeners.places(is_it) {
                        if let Some(listener) = self.listeners.get(place, turn) {
                            let gone = std::mem::replace(&mut listener.service, service.clone());
                            self.datagrams.forget(&gone);
                        }
                    }
                }
                Order::Close(vip, protocol) => {
                    let is_it = |listener: &Listener| listener.is_at(vip, protocol);
                    for (place, _) in self.listeners.places(is_it) {
                        if let Some(gone) = self.listeners.remove(place) {
                            self.paused -= usize::from(gone.is_paused);
                            self.datagrams.forget(&gone.service);
                        }
                    }
                }
                Order::Look => self.tend(),
            }
        }
    }

    fn receive(&mut self, token: Token) {
        let Some(listener) = self.listeners.get(token.place, token.turn) else {
            return;
        };
        // Asking whether there is another costs as much as finding one: only where the
        // last round found one, too, is it likely.
        let (last, count) = listener.accepted;
        let accepts = match last + 1 == self.round {
            true => (count * 2).min(ACCEPTS),
            false => 1,
        };
        listener.accepted = (self.round, accepts);
        let (service, socket) = (listener.service.clone(), listener.socket.clone());
        match service.protocol {
            Protocol::Udp => self.datagrams.requests(&service, &socket, &mut self.tools),
            Protocol::Tcp => {
                for _ in 0..accepts {
                    match self.accept(&service, &socket) {
                        Ok(()) | Err(Errno::CONNABORTED | Errno::INTR) => (),
                        Err(error) if is_want(error) => {
                            // Who waits is accepted later: asking again at once would
                            // take a processor for nothing.
                            self.pause(token, true);
                            return;
                        }
                        Err(_) => return,
                    }
                }
            }
        }
    }

    fn accept(&mut self, service: &Arc<ProxyService>, socket: &OwnedFd) -> Result<(), Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (accepted, client) = acceptfrom_with(socket, flags).inspect_err(|error| {
            if is_want(*error) {
                service.counters.out_of_descriptors.one();
            }
        })?;
        let client = client.and_then(|client| SocketAddr::try_from(client).ok());
        let Some(client) = client else {
            return Ok(());
        };
        if !service.group.admits(client) {
            service.counters.denied.one();
            socket::reset_on_close(&accepted);
            return Ok(());
        }
        let limits = service.group.limits();
        let place = match FlowSlot::take(service, client.ip(), &limits) {
            Ok(place) => place,
            Err(full) => {
                match full {
                    Full::Group => service.counters.refused_total.one(),
                    Full::Client => service.counters.refused_client.one(),
                }
                socket::reset_on_close(&accepted);
                return Ok(());
            }
        };
        let (number, turn) = self.connections.next();
        let token = Token {
            kind: Kind::Client,
            place: number,
            turn,
        };
        let connection = Connection::new(place, client, accepted, limits, token, self.tools.now);
        self.connections.insert(connection);
        self.timed += 1;
        self.step(number, turn, |connection, tools| connection.connect(tools));
        match self.connections.get(number, turn) {
            Some(connection) if connection.wants_descriptor() => Err(Errno::MFILE),
            _ => Ok(()),
        }
    }

    fn pause(&mut self, token: Token, pause: bool) {
        let Some(listener) = self.listeners.get(token.place, token.turn) else {
            return;
        };
        let interest = if pause {
            Interest::Nothing
        } else {
            Interest::Level
        };
        let changed = self.tools.poller.change(&*listener.socket, token, interest);
        if changed.is_ok() && listener.is_paused != pause {
            listener.is_paused = pause;
            self.paused = self.paused + usize::from(pause) - usize::from(!pause);
        }
    }

    /// Ends what has timed out or been cut off, and accepts again where that was paused.
    fn tend(&mut self) {
        for (place, turn) in self.connections.places(|_| true) {
            self.step(place, turn, |connection, tools| connection.tend(tools));
        }
        self.datagrams.tend(self.tools.now);
        for (place, turn) in self.listeners.places(|listener| listener.is_paused) {
            let token = Token {
                kind: Kind::Listener,
                place,
                turn,
            };
            self.pause(token, false);
        }
    }
}
