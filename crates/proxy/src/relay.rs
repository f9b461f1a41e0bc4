//! One TCP connection of a client, and that to its real: found, kept, and ended as the
//! other end ends. A half-close stays one, a reset becomes a reset.

use std::{
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{Shutdown, shutdown, sockopt},
};

use crate::{
    direction::{COPY_SIZE, Direction, End, Progress},
    pipes::Pipes,
    poller::{Happened, Interest, Kind, Poller, Token},
    proxy_header,
    service::{Assigned, Flow, FlowSlot, Limits, ProxyHeader, Real, RealState},
    socket,
};

/// A client gets what its real has sent before a reset: closing the socket at once would
/// take back what is on its way.
const RESET_GRACE: Duration = Duration::from_secs(1);

/// What a worker lends to each of its connections.
pub(crate) struct Tools {
    pub poller: Poller,
    pub pipes: Pipes,
    pub buffer: Box<[u8; COPY_SIZE]>,
    pub now: Instant,
}

/// The next step of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// The connection waits for its sockets.
    Wait,
    /// The connection goes on when others have had their turn.
    GoOn,
    /// The connection is over, and is closed.
    Close,
}

enum Phase {
    Connecting {
        until: Instant,
        tried: Vec<Arc<Real>>,
    },
    Open,
    /// The real has reset it; the client still reads.
    Resetting {
        until: Instant,
    },
}

pub(crate) struct Connection {
    place: FlowSlot,
    flow: Flow,
    limits: Limits,
    phase: Phase,
    token: Token,
    client: End,
    client_interest: Option<Interest>,
    real: Option<End>,
    assigned: Option<Assigned>,
    inward: Direction,
    outward: Direction,
    is_done: [bool; 2],
    has_nodelay: bool,
    last_active: Instant,
    last_outward: Option<Instant>,
}

impl Connection {
    /// A connection of a client that was accepted; `place` in the table is where events
    /// find it.
    pub fn new(
        place: FlowSlot,
        client: SocketAddr,
        socket: OwnedFd,
        limits: Limits,
        token: Token,
        now: Instant,
    ) -> Self {
        let flow = place.service().flow(client);
        let mut inward = Direction::default();
        if limits.header == ProxyHeader::V2 {
            inward.put_first(proxy_header::header(&flow));
        }
        Self {
            place,
            flow,
            limits,
            phase: Phase::Connecting {
                until: now + limits.connect_timeout,
                tried: Vec::new(),
            },
            token,
            client: End::new(socket),
            client_interest: None,
            real: None,
            assigned: None,
            inward,
            outward: Direction::default(),
            is_done: [false; 2],
            has_nodelay: false,
            last_active: now,
            last_outward: None,
        }
    }

    /// Whether the connection is in a phase that a timer ends.
    pub fn is_timed(&self) -> bool {
        !matches!(self.phase, Phase::Open)
    }

    /// Could it not even begin to connect, because this process has no descriptor left?
    pub fn wants_descriptor(&self) -> bool {
        matches!(self.phase, Phase::Connecting { .. }) && self.real.is_none()
    }

    /// Begins to connect to the next real that is worth trying.
    pub fn connect(&mut self, tools: &Tools) -> Then {
        let Phase::Connecting { until, tried } = &mut self.phase else {
            return Then::Wait;
        };
        let service = self.place.service();
        let counters = &service.counters;
        let real = match service.group.choose(&self.flow, tried) {
            Some(real) if tried.len() < self.limits.tries => real,
            _ => {
                match tried.is_empty() {
                    true => counters.no_real.one(),
                    false => counters.unreachable.one(),
                }
                return self.reset();
            }
        };
        let to = real.at(self.flow.vip.port());
        let source = self.limits.is_transparent.then_some(self.flow.client);
        let token = Token {
            kind: Kind::Real,
            ..self.token
        };
        let begun = socket::connected(to, self.flow.protocol, source).and_then(|socket| {
            tools.poller.add(&socket, token, Interest::ReadAndWrite)?;
            Ok(socket)
        });
        match begun {
            Ok(socket) => {
                *until = tools.now + self.limits.connect_timeout;
                self.real = Some(End {
                    readable: false,
                    ..End::new(socket)
                });
                self.assigned = Some(Assigned::new(real));
                Then::Wait
            }
            // Of this process: no real is to blame, and one may be free in a moment.
            Err(error) if is_want(error) => {
                counters.out_of_descriptors.one();
                Then::Wait
            }
            Err(_) => {
                real.counters.failed.one();
                tried.push(real);
                self.connect(tools)
            }
        }
    }

    /// The real that is being tried cannot be reached.
    fn try_another(&mut self, tools: &Tools) -> Then {
        let Phase::Connecting { tried, .. } = &mut self.phase else {
            return Then::Wait;
        };
        self.real = None;
        if let Some(assigned) = self.assigned.take() {
            assigned.real().counters.failed.one();
            tried.push(assigned.real().clone());
        }
        self.connect(tools)
    }

    /// Something has happened at one of its sockets.
    pub fn event(&mut self, kind: Kind, happened: Happened, tools: &mut Tools) -> Then {
        match (&self.phase, kind) {
            (Phase::Connecting { .. }, Kind::Real) => {
                if happened.failed || happened.ended && !happened.writable {
                    return self.try_another(tools);
                }
                if !happened.writable {
                    return Then::Wait;
                }
                self.phase = Phase::Open;
                self.last_active = tools.now;
                let service = self.place.service();
                service.counters.flows.one();
            }
            (Phase::Connecting { .. }, _) => return Then::Wait,
            (Phase::Resetting { .. }, _) => {
                return match happened.ended {
                    true => self.reset(),
                    false => Then::Wait,
                };
            }
            (Phase::Open, _) => (),
        }
        let end = match kind {
            Kind::Client => Some(&mut self.client),
            _ => self.real.as_mut(),
        };
        if let Some(end) = end {
            end.readable |= happened.readable;
            end.writable |= happened.writable;
            end.ended |= happened.ended;
            end.failed |= happened.failed;
        }
        self.go_on(tools)
    }

    /// Moves what can be moved in both directions.
    pub fn go_on(&mut self, tools: &mut Tools) -> Then {
        let Some(real) = self
            .real
            .as_mut()
            .filter(|_| matches!(self.phase, Phase::Open))
        else {
            return Then::Wait;
        };
        let (buffer, pipes) = (&mut tools.buffer, &mut tools.pipes);
        let mut has_more = false;
        let mut is_reset_by = [false; 2];
        if !self.is_done[0] {
            match self.inward.go_on(&mut self.client, real, buffer, pipes) {
                Progress::Waits => (),
                Progress::HasMore => has_more = true,
                Progress::Done => {
                    self.is_done[0] = true;
                    if !self.is_done[1] {
                        let _ = shutdown(&real.socket, Shutdown::Write);
                    }
                }
                Progress::SenderFailed => is_reset_by[0] = true,
                Progress::ReceiverFailed => {
                    // What it has sent before is still to be had.
                    (real.failed, real.readable, self.is_done[0]) = (true, true, true);
                }
            }
            // The first write never waits for Nagle's algorithm, so that short requests do
            // without this. It also pushes what a second one has left waiting.
            if self.inward.writes > 1 && !self.has_nodelay {
                self.has_nodelay = sockopt::set_tcp_nodelay(&real.socket, true).is_ok();
            }
        }
        if !self.is_done[1] {
            match self.outward.go_on(real, &mut self.client, buffer, pipes) {
                Progress::Waits => (),
                Progress::HasMore => has_more = true,
                Progress::Done => {
                    self.is_done[1] = true;
                    if !self.is_done[0] {
                        let _ = shutdown(&self.client.socket, Shutdown::Write);
                    }
                }
                Progress::SenderFailed => is_reset_by[1] = true,
                Progress::ReceiverFailed => is_reset_by[0] = true,
            }
        }
        self.count(tools.now);
        if is_reset_by[0] || self.client.failed {
            return self.reset();
        }
        if is_reset_by[1] {
            return self.reset_by_real(tools);
        }
        if self.is_done == [true; 2] {
            return Then::Close;
        }
        if self.follow_client(tools).is_err() {
            return self.reset();
        }
        match has_more {
            true => Then::GoOn,
            false => Then::Wait,
        }
    }

    /// Has the poller tell what is waited for at the client's socket. That begins after
    /// the first look, so that the usual request costs no event of its own.
    fn follow_client(&mut self, tools: &Tools) -> Result<(), Errno> {
        let (socket, poller) = (&self.client.socket, &tools.poller);
        match (self.client_interest, self.client.writable) {
            (None, true) => {
                poller.add(socket, self.token, Interest::Read)?;
                self.client_interest = Some(Interest::Read);
            }
            (None, false) => {
                poller.add(socket, self.token, Interest::ReadAndWrite)?;
                self.client_interest = Some(Interest::ReadAndWrite);
            }
            (Some(Interest::Read), false) => {
                poller.change(socket, self.token, Interest::ReadAndWrite)?;
                self.client_interest = Some(Interest::ReadAndWrite);
            }
            _ => (),
        }
        Ok(())
    }

    fn count(&mut self, now: Instant) {
        let [inward, outward] = [self.inward.take_moved(), self.outward.take_moved()];
        let (service, real) = (self.place.service(), &self.assigned);
        if inward > 0 {
            service.counters.bytes_in.add(inward);
            if let Some(assigned) = real {
                assigned.real().counters.bytes_in.add(inward);
            }
            self.last_active = now;
        }
        if outward > 0 {
            service.counters.bytes_out.add(outward);
            if let Some(assigned) = real {
                assigned.real().counters.bytes_out.add(outward);
            }
            self.last_active = now;
            self.last_outward = Some(now);
        }
    }

    /// Ends it at both ends, and lets them know that it did not end well.
    pub fn reset(&self) -> Then {
        socket::reset_on_close(&self.client.socket);
        if let Some(real) = &self.real {
            socket::reset_on_close(&real.socket);
        }
        Then::Close
    }

    fn reset_by_real(&mut self, tools: &Tools) -> Then {
        let sent = self.last_outward.map(|at| at + RESET_GRACE);
        match sent.filter(|until| tools.now < *until) {
            None => self.reset(),
            Some(until) => {
                self.real = None;
                self.assigned = None;
                self.phase = Phase::Resetting { until };
                match self.follow_client(tools) {
                    Ok(()) => Then::Wait,
                    Err(_) => self.reset(),
                }
            }
        }
    }

    /// Looks whether its time is over, or its real is cut off.
    pub fn tend(&mut self, tools: &Tools) -> Then {
        let is_cut = |assigned: &Assigned| assigned.real().state() == RealState::Cut;
        if self.assigned.as_ref().is_some_and(is_cut) {
            return match self.phase {
                Phase::Connecting { .. } => self.try_another(tools),
                _ => self.reset(),
            };
        }
        match &self.phase {
            Phase::Connecting { until, .. } if self.real.is_none() => match tools.now >= *until {
                true => {
                    self.place.service().counters.unreachable.one();
                    self.reset()
                }
                false => self.connect(tools),
            },
            Phase::Connecting { until, .. } if tools.now >= *until => self.try_another(tools),
            Phase::Resetting { until } if tools.now >= *until => self.reset(),
            Phase::Open => {
                let service = self.place.service();
                let silent = tools.now.saturating_duration_since(self.last_active);
                if silent < service.group.limits().idle_timeout {
                    return Then::Wait;
                }
                service.counters.idle.one();
                self.reset()
            }
            _ => Then::Wait,
        }
    }

    /// What is left of it, before it is dropped.
    pub fn close(&mut self, pipes: &mut Pipes) {
        self.inward.close(pipes);
        self.outward.close(pipes);
    }
}

/// Is the error a want of this process or host, and not a real's?
pub(crate) fn is_want(error: Errno) -> bool {
    [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].contains(&error)
}
