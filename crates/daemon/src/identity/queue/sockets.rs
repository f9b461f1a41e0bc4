//! Which sockets a packet may be of: the one of its connection, or all that could have sent it,
//! or would get it.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use weir_identity::Protocols;
use weir_netlink::{
    Socket,
    diag::{self, ALL_STATES, LISTENING, Listed, SocketId},
};

use super::packet::{ICMP, ICMPV6, TCP, UDP, UDP_LITE};

/// AF_INET and AF_INET6.
const FAMILIES: [u8; 2] = [2, 10];
/// `IPPROTO_RAW`: whatever its owner writes.
const ANY_RAW: u16 = 255;
/// `TCP_TIME_WAIT` and `TCP_NEW_SYN_RECV` of net/tcp_states.h: what the kernel keeps of a
/// connection that has no socket any more, or not yet.
const TIME_WAIT: u8 = 6;
const NOT_YET: u8 = 12;

/// The owners that a packet may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Owners {
    /// Nobody's: the kernel says it, or nobody would get it.
    Kernel,
    /// Sockets of this kind, by their inodes; 0: one that nobody has a descriptor of.
    Sockets(Protocols, Vec<u64>),
}

/// A line of `/proc/net/raw` and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line {
    own: SocketAddr,
    peer: SocketAddr,
    inode: u64,
}

/// Sockets of this namespace at one moment. Each table is read when it is asked for first.
pub(super) struct Sockets<'a> {
    diag: &'a Socket,
    listening: Option<Vec<Listed>>,
    datagrams: [Option<Vec<Listed>>; 2],
    raw: Option<Vec<Line>>,
    ping: Option<Vec<Line>>,
}

/// Does a socket that is bound there serve this address? One of IPv6 that is bound to all serves
/// IPv4 as well, unless it is told not to.
fn serves(bound: IpAddr, address: IpAddr) -> bool {
    bound == address || bound.is_unspecified() && (bound.is_ipv6() || address.is_ipv4())
}

fn is_between(own: SocketAddr, peer: SocketAddr, here: SocketAddr, there: SocketAddr) -> bool {
    let has_peer = peer.port() != 0 || !peer.ip().is_unspecified();
    own.port() == here.port()
        && serves(own.ip(), here.ip())
        && (!has_peer || peer.ip() == there.ip() && [0, there.port()].contains(&peer.port()))
}

impl<'a> Sockets<'a> {
    pub fn now(diag: &'a Socket) -> Self {
        Self {
            diag,
            listening: None,
            datagrams: [None, None],
            raw: None,
            ping: None,
        }
    }

    /// The inodes of sockets that are listening at this end.
    fn listening(&mut self, here: SocketAddr) -> io::Result<Vec<u64>> {
        if self.listening.is_none() {
            let mut all = Vec::new();
            for family in FAMILIES {
                all.extend(diag::list(self.diag, family, TCP, LISTENING)?);
            }
            self.listening = Some(all);
        }
        let all = self.listening.iter().flatten();
        let here =
            all.filter(|one| one.own.port() == here.port() && serves(one.own.ip(), here.ip()));
        Ok(here.map(|one| u64::from(one.inode)).collect())
    }

    /// Does anybody listen there?
    pub fn has_listener(&mut self, here: SocketAddr) -> io::Result<bool> {
        Ok(!self.listening(here)?.is_empty())
    }

    fn tcp(
        &mut self,
        here: SocketAddr,
        there: SocketAddr,
        interface: u32,
        is_outward: bool,
    ) -> io::Result<Option<Owners>> {
        let id = SocketId::of_ends(TCP, here, there, interface);
        let found = diag::find(self.diag, &id)?;
        let own = found.filter(|one| one.peer.port() != 0);
        let inodes = match own.map(|one| (one.state, u64::from(one.inode))) {
            Some((TIME_WAIT, _)) => return Ok(Some(Owners::Kernel)),
            Some((state, inode)) if state != NOT_YET && (inode != 0 || is_outward) => vec![inode],
            // It is nobody's until somebody accepts it: who listens may.
            _ if !is_outward => match self.listening(here)? {
                inodes if inodes.is_empty() => return Ok(Some(Owners::Kernel)),
                inodes => inodes,
            },
            _ => return Ok(None),
        };
        Ok(Some(Owners::Sockets(Protocols::TCP, inodes)))
    }

    fn datagrams(
        &mut self,
        protocol: u8,
        here: SocketAddr,
        there: SocketAddr,
        is_outward: bool,
    ) -> io::Result<Option<Owners>> {
        let number = usize::from(protocol == UDP_LITE);
        if self.datagrams[number].is_none() {
            let mut all = Vec::new();
            for family in FAMILIES {
                all.extend(diag::list(self.diag, family, protocol, ALL_STATES)?);
            }
            self.datagrams[number] = Some(all);
        }
        let all = self.datagrams[number].iter().flatten();
        let fitting: Vec<_> = all
            .filter(|one| is_between(one.own, one.peer, here, there))
            .map(|one| u64::from(one.inode))
            .collect();
        Ok(match fitting.iter().all(|inode| *inode == 0) {
            // Tunnels of the kernel's have sockets of their own; nobody else would get it.
            true if !fitting.is_empty() || !is_outward => Some(Owners::Kernel),
            true => None,
            false => Some(Owners::Sockets(Protocols::UDP, fitting)),
        })
    }

    /// The sockets that have sent, or would get, a packet between these ends; `is_outward`: who
    /// is here has begun.
    ///
    /// # Errors
    /// The kernel lacks the protocol's part of sock_diag.
    pub fn of(
        &mut self,
        protocol: u8,
        (here, there): (SocketAddr, SocketAddr),
        interface: u32,
        is_outward: bool,
    ) -> io::Result<Owners> {
        let found = match protocol {
            TCP => self.tcp(here, there, interface, is_outward)?,
            UDP | UDP_LITE => self.datagrams(protocol, here, there, is_outward)?,
            ICMP | ICMPV6 => self.pings(here, there),
            _ => None,
        };
        if let Some(found) = found {
            return Ok(found);
        }
        let raw = self.raw(protocol);
        let kind = match protocol {
            _ if !raw.is_empty() => Protocols::RAW,
            TCP => Protocols::TCP,
            UDP | UDP_LITE => Protocols::UDP,
            ICMP | ICMPV6 => Protocols::ICMP,
            _ => Protocols::OTHER,
        };
        Ok(Owners::Sockets(kind, raw))
    }

    /// Datagram sockets of ICMP, where its identifier is the port.
    fn pings(&mut self, here: SocketAddr, there: SocketAddr) -> Option<Owners> {
        let read = || lines(["/proc/net/icmp", "/proc/net/icmp6"]);
        let all = self.ping.get_or_insert_with(read).iter();
        let there = SocketAddr::new(there.ip(), 0);
        let fitting = all.filter(|one| {
            let peer = SocketAddr::new(one.peer.ip(), 0);
            is_between(one.own, peer, here, there)
        });
        let fitting: Vec<_> = fitting.map(|one| one.inode).collect();
        (!fitting.is_empty()).then_some(Owners::Sockets(Protocols::ICMP, fitting))
    }

    /// Raw sockets by which a packet of this protocol may be sent.
    fn raw(&mut self, protocol: u8) -> Vec<u64> {
        let read = || lines(["/proc/net/raw", "/proc/net/raw6"]);
        let all = self.raw.get_or_insert_with(read).iter();
        let fitting = all.filter(|one| [protocol.into(), ANY_RAW].contains(&one.own.port()));
        fitting.map(|one| one.inode).collect()
    }
}

fn lines(files: [&str; 2]) -> Vec<Line> {
    let texts = files.map(|file| fs::read_to_string(file).unwrap_or_default());
    let lines = texts.iter().flat_map(|text| text.lines().skip(1));
    lines.filter_map(line).collect()
}

/// `  0: 0100007F:0001 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 4711 …`
fn line(text: &str) -> Option<Line> {
    let mut words = text.split_ascii_whitespace().skip(1);
    let (own, peer) = (end(words.next()?)?, end(words.next()?)?);
    Some(Line {
        own,
        peer,
        inode: words.nth(6)?.parse().ok()?,
    })
}

fn end(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // Words of 32 bits as this machine has them.
    let word = |at: usize| {
        let digits = address.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let address = match address.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let bytes: Vec<u8> = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_are_read() {
        let v4 = "  12: 0100007F:0001 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4711 2 0000000000000000 0";
        let found = line(v4).unwrap();
        assert_eq!(found.own, "127.0.0.1:1".parse().unwrap());
        assert_eq!((found.peer.port(), found.inode), (0, 4711));
        let v6 = v4.replace("0100007F", "00000000000000000000000001000000");
        assert_eq!(line(&v6).unwrap().own, "[::1]:1".parse().unwrap());
        assert_eq!(line("  sl  local_address rem_address   st"), None);
        assert_eq!(line(""), None);
    }

    #[test]
    fn a_socket_without_a_peer_may_have_sent_to_anybody() {
        let end = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (here, there) = (end("192.0.2.1:53"), end("198.51.100.7:9"));
        for (own, peer, is) in [
            ("192.0.2.1:53", "0.0.0.0:0", true),
            ("0.0.0.0:53", "0.0.0.0:0", true),
            ("[::]:53", "[::]:0", true),
            ("192.0.2.1:53", "198.51.100.7:9", true),
            ("192.0.2.1:53", "198.51.100.7:10", false),
            ("192.0.2.2:53", "0.0.0.0:0", false),
            ("192.0.2.1:54", "0.0.0.0:0", false),
        ] {
            assert_eq!(
                is_between(end(own), end(peer), here, there),
                is,
                "{own} {peer}"
            );
        }
        assert!(!serves(end("0.0.0.0:0").ip(), end("[::1]:0").ip()));
    }
}
