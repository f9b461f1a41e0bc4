//! Whether a real serves the virtual addresses of its pool: behind each check that it
//! passes at its own address it is asked at them, by a SYN or the check's datagram to its
//! link-layer address, as the packet path sends it those of clients. A real without the
//! address gives no answer.
//!
//! A real beyond a router is asked in the outer header of its pool, as the packet path sends
//! it those of clients: one that does not take that off gives no answer either. It answers
//! from the virtual address, past the tunnel, by whichever interface that comes.
//!
//! The kernel of this host, which may have the virtual address itself, neither sends such
//! a frame nor takes the answer to it, so both go through packet sockets. Port and number
//! are drawn anew for each question: nobody who does not see it can answer in a real's place
//! (but the answer to a `udp` check, which has no number), and a real that still waits for
//! the end of an earlier one (its RST was lost) answers all the same.

mod asker;
mod filter;
mod senders;

use std::{
    io,
    net::{IpAddr, UdpSocket},
    time::Instant,
};

use weir_core::{
    Protocol as Transport,
    balance::probe::{self, Answer, Question},
};

use super::{
    check::dns_query,
    config::{CheckKind, PoolConfig},
    sources,
};
use crate::host::InterfaceAddress;
pub(super) use asker::{Answers, TunnelWay, VipAsker, Way};
use asker::{FIRST_PORT, LAST_PORT};

/// The most virtual addresses that one check asks; of more, the next ones come next.
const AT_ONCE: usize = 8;
/// So often a port is drawn for a datagram until one is free.
const DRAWS: usize = 16;
/// How a real is asked.
#[derive(Clone, Copy)]
enum Asks<'a> {
    /// By a SYN. Where a check has just found the port open at the real's own address it
    /// must be open.
    Syn { must_be_open: bool },
    /// For the addresses of this name, by DNS.
    Name(&'a str),
    /// By this datagram, which any other answers.
    Payload(&'a str),
}

/// How a real is asked, and at which port.
#[derive(Clone, Copy)]
struct By<'a> {
    port: u16,
    asks: Asks<'a>,
}

impl By<'_> {
    fn protocol(&self) -> Transport {
        match self.asks {
            Asks::Syn { .. } => Transport::Tcp,
            Asks::Name(_) | Asks::Payload(_) => Transport::Udp,
        }
    }

    /// Whether a port that is closed is as bad as silence.
    fn must_be_open(&self) -> bool {
        match self.asks {
            Asks::Syn { must_be_open } => must_be_open,
            Asks::Name(_) | Asks::Payload(_) => true,
        }
    }

    fn frame(&self, question: &Question) -> Vec<u8> {
        match self.asks {
            Asks::Syn { .. } => probe::syn(question),
            Asks::Name(name) => probe::datagram(question, &dns_query(question.number as u16, name)),
            Asks::Payload(text) => probe::datagram(question, text.as_bytes()),
        }
    }

    /// `None`: there are no sockets for it.
    fn question(
        &self,
        way: &Way,
        source: IpAddr,
        vip: IpAddr,
        asker: &mut VipAsker,
    ) -> Option<Question> {
        let [source_mac, real] = asker.ends(way)?;
        let drawn = asker.draw();
        let ports = u64::from(LAST_PORT - FIRST_PORT + 1);
        Some(Question {
            source_mac,
            real,
            source,
            protocol: self.protocol(),
            source_port: FIRST_PORT + ((drawn >> 32) % ports) as u16,
            vip,
            port: self.port,
            number: match self.asks {
                Asks::Syn { .. } => drawn as u32,
                Asks::Name(_) => (drawn as u32 & 0xffff).max(1),
                Asks::Payload(_) => 0,
            },
        })
    }

    /// A question to a real at this virtual address. One by a datagram has a port of its own,
    /// so that the answer to another question is none to this one.
    /// `None`: it cannot be asked so, because there is no socket or it is too long for the way.
    fn ask(&self, way: &Way, source: IpAddr, vip: IpAddr, asker: &mut VipAsker) -> Option<AskedAt> {
        let mut question = self.question(way, source, vip, asker)?;
        let mut holds_port = None;
        if self.protocol() == Transport::Udp {
            for _ in 0..DRAWS {
                match UdpSocket::bind((source, question.source_port)) {
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                        question = self.question(way, source, vip, asker)?;
                    }
                    bound => {
                        holds_port = bound.ok();
                        break;
                    }
                }
            }
        }
        let frame = self.frame(&question);
        way.takes(&frame, &question).then_some(AskedAt {
            frame,
            is_answered: false,
            _holds_port: holds_port,
            question,
        })
    }
}

/// The virtual addresses that are asked next, each with the address that asks: of those that
/// this host can ask, so many from the `turn`th on.
fn next(
    vips: &[IpAddr],
    turn: usize,
    source: impl Fn(IpAddr) -> Option<IpAddr>,
) -> Vec<(IpAddr, IpAddr)> {
    let all = vips.iter();
    let all: Vec<_> = all.filter_map(|vip| Some((*vip, source(*vip)?))).collect();
    let count = all.len();
    (0..count.min(AT_ONCE))
        .map(|n| all[(turn + n) % count])
        .collect()
}

/// A question that was asked.
struct AskedAt {
    question: Question,
    frame: Vec<u8>,
    is_answered: bool,
    /// Has the port of a datagram, so that the kernel does not refuse the answer, which it
    /// would tell the virtual address.
    _holds_port: Option<UdpSocket>,
}

impl AskedAt {
    fn is_answered_by(&self, answer: &Answer) -> bool {
        let of = |question: &Question| (question.protocol, question.vip, question.source_port);
        // An error tells no number, nor does the answer to a datagram that has none.
        let is_unnumbered = self.question.protocol == Transport::Udp
            && (!answer.is_open || self.question.number == 0);
        of(&self.question) == of(&answer.question)
            && self.question.port == answer.question.port
            && (is_unnumbered || self.question.number == answer.question.number)
    }
}

/// A real that is being asked.
pub(super) struct VipCheck {
    way: Way,
    asked: Vec<AskedAt>,
    /// Whether a port that is closed is as bad as silence.
    must_be_open: bool,
    refused: Option<IpAddr>,
    /// The time at which those that have not answered are asked once more.
    again: Option<Instant>,
    until: Instant,
}

impl VipCheck {
    /// Asks a real at the virtual addresses of its pool, from the `turn`th on. `None`:
    /// there is nothing to ask. The pool is relayed for, has no TCP port and no check by a
    /// datagram that is answered, or this host no address of its own to ask from; or the
    /// datagram is too long for the tunnel.
    pub(super) fn begin(
        pool: &PoolConfig,
        (address, to): (IpAddr, Way),
        turn: usize,
        sources: &[InterfaceAddress],
        asker: &mut VipAsker,
    ) -> Option<Self> {
        if !pool.asks_vips() {
            return None;
        }
        let by = asked_by(pool)?;
        // The address that the real has just answered to, where it is of the family.
        let source = |vip: IpAddr| match vip.is_ipv4() == address.is_ipv4() {
            true => sources::of(sources, address),
            false => sources::of(sources, vip),
        };
        let asked = next(&pool.vips, turn, source);
        let asked = asked.into_iter();
        let asked: Vec<_> = asked
            .filter_map(|(vip, source)| by.ask(&to, source, vip, asker))
            .collect();
        let now = Instant::now();
        let timeout = pool.check.timeout;
        let check = Self {
            way: to,
            asked,
            must_be_open: by.must_be_open(),
            refused: None,
            again: Some(now + timeout / 2),
            until: now + timeout,
        };
        check.ask(asker);
        (!check.asked.is_empty()).then_some(check)
    }

    /// How many turns further the next check begins behind one that was passed; behind another
    /// one the same are asked again.
    pub(super) const STEP: usize = AT_ONCE;

    fn ask(&self, asker: &mut VipAsker) {
        for AskedAt {
            question, frame, ..
        } in self.asked.iter().filter(|asked| !asked.is_answered)
        {
            asker.send(&self.way, frame, question);
        }
    }

    /// Takes note of answers to any questions, and says what is known by now.
    pub(super) fn look(
        &mut self,
        answers: &Answers,
        asker: &mut VipAsker,
    ) -> Option<Result<(), String>> {
        for answer in answers.by(&self.way) {
            let mut asked = self.asked.iter_mut();
            let Some(asked) = asked.find(|asked| asked.is_answered_by(answer)) else {
                continue;
            };
            let was_answered = std::mem::replace(&mut asked.is_answered, true);
            if let Way::Tunnel(_) = self.way
                && answer.is_open
                && answer.question.protocol == Transport::Tcp
            {
                // Only here is known which real it goes to. Lost, or when the answer comes later
                // than the check ends, the real gives up by itself within a minute.
                asker.send(&self.way, &probe::reset(&asked.question), &asked.question);
            }
            // Whoever forges an error has no more time than the real takes to answer.
            if !answer.is_open && self.must_be_open && !was_answered {
                self.refused = Some(asked.question.vip);
            }
        }
        let port = self.asked.first().map_or(0, |asked| asked.question.port);
        if let Some(vip) = self.refused {
            return Some(Err(format!(
                "nobody listens at the virtual address {vip}, port {port}"
            )));
        }
        let silent = self.asked.iter().find(|asked| !asked.is_answered);
        let Some(AskedAt { question, .. }) = silent else {
            return Some(Ok(()));
        };
        let now = Instant::now();
        if now >= self.until {
            let server = match question.protocol {
                Transport::Udp => ", and its server has to answer from there",
                _ => "",
            };
            let (by, decap) = match self.way {
                Way::Segment(_) => ("", " (weir real-side)"),
                Way::Tunnel(_) => (
                    " through the tunnel",
                    " and has to take the encapsulation off (weir real-side --decap)",
                ),
            };
            return Some(Err(format!(
                "no answer at the virtual address {}{by}: the real needs it on its loopback interface{decap}{server}",
                question.vip
            )));
        }
        if self.again.is_some_and(|again| now >= again) {
            self.again = None;
            self.ask(asker);
        }
        None
    }
}

impl PoolConfig {
    /// Whether its reals are asked at its virtual addresses as well.
    pub(crate) fn asks_vips(&self) -> bool {
        self.check.asks_vips && !self.is_proxied()
    }
}

/// How a real is asked: as the check asks, at its port, if clients are sent to that and an
/// answer can be told from silence, or else by a SYN at the pool's first TCP port.
fn asked_by(pool: &PoolConfig) -> Option<By<'_>> {
    let checked = pool.check.port;
    // Of all ports one may be the check's alone, and closed at the virtual address.
    let named = |of: &&weir_core::PortRange| !of.is_all();
    let at = |protocol| {
        let mut ports = pool.ports.iter().filter(named);
        ports.any(|of| of.protocol == protocol && of.contains(protocol, checked))
    };
    let asks = match &pool.check.kind {
        CheckKind::Tcp | CheckKind::Http(_) if at(Transport::Tcp) => {
            Asks::Syn { must_be_open: true }
        }
        CheckKind::Dns(name) if at(Transport::Udp) => Asks::Name(name),
        CheckKind::Udp(config) if config.require_answer && at(Transport::Udp) => {
            Asks::Payload(&config.payload)
        }
        _ => {
            let tcp = pool.ports.iter();
            let mut tcp = tcp.filter(|port| port.protocol == Transport::Tcp);
            let named = tcp.clone().find(|port| !port.is_all());
            let port = match named {
                Some(named) => named.low,
                None => tcp.next().map(|_| checked)?,
            };
            return Some(By {
                port,
                asks: Asks::Syn {
                    must_be_open: false,
                },
            });
        }
    };
    Some(By {
        port: checked,
        asks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses of a family that this host has not are no reason to ask none of the other.
    #[test]
    fn addresses_that_cannot_be_asked_take_no_turn() {
        let six = (0..8).map(|n| format!("2001:db8::{:x}", 0x80 + n));
        let four = (0..9).map(|n| format!("192.0.2.{}", 80 + n));
        let vips: Vec<IpAddr> = six.chain(four).map(|vip| vip.parse().unwrap()).collect();
        let of = |is_ipv4: bool| {
            let asked_from: IpAddr = if is_ipv4 { "192.0.2.1" } else { "2001:db8::1" }
                .parse()
                .unwrap();
            move |vip: IpAddr| (vip.is_ipv4() == is_ipv4).then_some(asked_from)
        };
        let asked = |turn, source: &dyn Fn(IpAddr) -> Option<IpAddr>| -> Vec<IpAddr> {
            next(&vips, turn, source)
                .into_iter()
                .map(|(vip, _)| vip)
                .collect()
        };
        let (four, six) = (of(true), of(false));
        assert_eq!(asked(0, &four), vips[8..16]);
        let second = asked(VipCheck::STEP, &four);
        assert_eq!(second[0], vips[16]);
        assert_eq!(second[1..], vips[8..15]);
        assert_eq!(asked(0, &six), vips[..8]);
        assert!(asked(3, &|_| None).is_empty());
        // All of them have their turn.
        let source = |_| Some(vips[0]);
        let mut seen: Vec<_> = (0..3)
            .flat_map(|n| asked(n * VipCheck::STEP, &source))
            .collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), vips.len());
    }
}
