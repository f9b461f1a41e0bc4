//! The sockets that there are, and what is remembered at each: for whoever asks about one.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
};

use libbpf_rs::{MapCore, MapFlags};

use super::{DecidedBy, Handle, Identity, Key, programs, value_of};
use crate::{
    abi,
    error::Result,
    skeleton::identity::types::{ident_flow, ident_flow_key, ident_listed, ident_socket},
};

/// `AF_INET` of linux/socket.h.
const INET: u8 = 2;

/// What was decided about a connection or a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decided {
    /// Packets of the connection or flow pass.
    pub passes: bool,
    /// It waits until it is known who sends, or until somebody has said whether it may.
    pub waits: bool,
    /// What has decided.
    pub by: DecidedBy,
    /// By the epoch of the rules: it is asked again when that is another one.
    pub epoch: u32,
}

impl Decided {
    /// `None`: nothing was decided.
    fn of(verdict: u8, rule: u16, epoch: u32) -> Option<Self> {
        let verdict = u32::from(verdict);
        (verdict != abi::IDENT_UNJUDGED && epoch != 0).then_some(Self {
            passes: [abi::IDENT_ALLOW, abi::IDENT_LEARN].contains(&verdict),
            waits: verdict == abi::IDENT_PENDING,
            by: DecidedBy::of(rule),
            epoch,
        })
    }
}

/// What the kernel's programs have noted at a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketRecord {
    /// Programs that have used the socket, or have a descriptor of it, as far as they are known.
    pub holders: Vec<Handle>,
    /// One more that is not known yet.
    pub pending: Option<Key>,
    /// There are more holders than are remembered.
    pub is_crowded: bool,
    /// The decision about the connection; of sockets without connections each flow has its own.
    pub decided: Option<Decided>,
    /// The program has begun the connection.
    pub is_out: bool,
    /// The process that used it last.
    pub pid: u32,
}

/// A socket of IPv4 or IPv6, and one who has a descriptor of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedSocket {
    /// The kernel's number of the socket, of which there is one in the life of a host.
    pub cookie: u64,
    /// The number by which /proc and ss(8) know it; `None`: nobody has a descriptor.
    pub inode: Option<u64>,
    /// The network namespace, by its inode.
    pub netns: u64,
    /// The own address and port; of a raw socket the protocol is the port.
    pub own: SocketAddr,
    /// The peer's; the port is 0 where the socket is not connected.
    pub peer: SocketAddr,
    /// The process that has a descriptor, and which; `None`: it is from the kernel's table.
    pub descriptor: Option<(u32, u32)>,
    /// `IDENT_TCP` and so on.
    pub kind: u8,
    /// The protocol by its number.
    pub protocol: u16,
    /// As the states of TCP are numbered.
    pub state: u8,
    /// The kernel's record of the socket; `None`: it is not judged.
    pub record: Option<SocketRecord>,
}

/// A flow of datagrams of one socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketFlow {
    /// The other side.
    pub peer: SocketAddr,
    /// The port of this side.
    pub own_port: u16,
    /// The program has begun it.
    pub is_out: bool,
    /// The decision about the flow.
    pub decided: Decided,
}

/// An address and a port; IPv4-mapped ones are IPv4.
fn address(family: u8, words: [u32; 4], port: u16) -> SocketAddr {
    let addr = match family {
        INET => Ipv4Addr::from(words[0].to_ne_bytes()).into(),
        _ => {
            let mut bytes = [0; 16];
            for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
            Ipv6Addr::from(bytes).to_canonical()
        }
    };
    SocketAddr::new(addr, port)
}

fn record_of(raw: &ident_socket) -> SocketRecord {
    let has = |flag: u32| u32::from(raw.flags) & flag != 0;
    SocketRecord {
        holders: raw
            .holders
            .iter()
            .filter_map(|holder| Handle::of(holder.handle))
            .collect(),
        pending: has(abi::IDENT_S_PENDING).then(|| Key::of(&raw.pending)),
        is_crowded: has(abi::IDENT_S_LOST),
        decided: Decided::of(raw.verdict, raw.rule, raw.epoch),
        is_out: u32::from(raw.direction) == abi::IDENT_OUT,
        pid: raw.tgid,
    }
}

/// Sockets out of what an iterator writes, which may end anywhere.
struct Parts<'a> {
    bytes: Vec<u8>,
    each: &'a mut dyn FnMut(ListedSocket),
}

impl Parts<'_> {
    fn add(&mut self, read: &[u8]) {
        self.bytes.extend_from_slice(read);
        let mut rest = &self.bytes[..];
        while let Some((socket, after)) = take(rest) {
            (self.each)(socket);
            rest = after;
        }
        let left = rest.len();
        let taken = self.bytes.len() - left;
        self.bytes.drain(..taken);
    }
}

fn take(bytes: &[u8]) -> Option<(ListedSocket, &[u8])> {
    let (head, rest) = bytes.split_at_checked(size_of::<ident_listed>())?;
    let raw: ident_listed = value_of(head)?;
    let (record, rest) = match raw.has_record {
        0 => (None, rest),
        _ => {
            let (record, rest) = rest.split_at_checked(size_of::<ident_socket>())?;
            (value_of(record).map(|raw| record_of(&raw)), rest)
        }
    };
    let socket = ListedSocket {
        cookie: raw.cookie,
        inode: (raw.inode != 0).then_some(raw.inode),
        netns: raw.netns,
        own: address(raw.family, raw.own, raw.own_port),
        peer: address(raw.family, raw.peer, raw.peer_port),
        descriptor: (raw.tgid != 0).then_some((raw.tgid, raw.fd)),
        kind: raw.kind,
        protocol: raw.protocol,
        state: raw.state,
        record,
    };
    Some((socket, rest))
}

fn list(program: BorrowedFd<'_>, each: &mut dyn FnMut(ListedSocket)) -> Result<()> {
    let mut parts = Parts {
        bytes: Vec::new(),
        each,
    };
    programs::read_iterator(program, None, &mut |read| parts.add(read))
}

impl Identity {
    /// Each descriptor of a socket of IPv4 or IPv6, of every process and network namespace.
    ///
    /// # Errors
    /// The kernel refuses to go through them.
    pub fn descriptors(&self, each: &mut dyn FnMut(ListedSocket)) -> Result<()> {
        list(self.list[0].as_fd(), each)
    }

    /// The sockets of TCP and UDP that are bound or connected in the network namespace that the
    /// calling thread is in, those without a descriptor too.
    ///
    /// # Errors
    /// The kernel refuses to go through them.
    pub fn sockets_here(&self, each: &mut dyn FnMut(ListedSocket)) -> Result<()> {
        let mut tables = self.list[1..].iter();
        tables.try_for_each(|program| list(program.as_fd(), each))
    }

    /// The flows of datagrams that are remembered of these sockets, at most `most`, each with
    /// the cookie of its socket; and whether there are more.
    pub fn flows_of(&self, cookies: &[u64], most: usize) -> (Vec<(u64, SocketFlow)>, bool) {
        let mut found = Vec::new();
        for map in &self.flows {
            // While others come and go the kernel may begin anew.
            for key in map.keys().take(2 * abi::IDENT_FLOWS as usize) {
                let Some(raw) = value_of::<ident_flow_key>(&key) else {
                    continue;
                };
                if !cookies.contains(&raw.cookie) {
                    continue;
                }
                let value = map.lookup(&key, MapFlags::ANY).ok().flatten();
                let Some(flow) = value.as_deref().and_then(value_of::<ident_flow>) else {
                    continue;
                };
                let Some(decided) = Decided::of(flow.verdict, flow.rule, flow.epoch) else {
                    continue;
                };
                let peer = Ipv6Addr::from(raw.peer).to_canonical();
                let flow = SocketFlow {
                    peer: SocketAddr::new(peer, raw.port as u16),
                    own_port: (raw.port >> 16) as u16,
                    is_out: u32::from(flow.direction) == abi::IDENT_OUT,
                    decided,
                };
                if found.contains(&(raw.cookie, flow.clone())) {
                    continue;
                }
                if found.len() == most {
                    return (found, true);
                }
                found.push((raw.cookie, flow));
            }
        }
        (found, false)
    }

    /// The epoch of the rules: what was decided in another one is asked again.
    ///
    /// # Errors
    /// The kernel refuses to read it.
    pub fn epoch(&self) -> Result<u32> {
        Ok(self.control()?.epoch)
    }
}

const _: () = {
    assert!(size_of::<ident_listed>() == 80);
    assert!(size_of::<ident_socket>() == 200);
};

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(raw: &ident_listed) -> Vec<u8> {
        super::super::bytes_of(raw).to_vec()
    }

    #[test]
    fn sockets_are_read_whatever_is_read_at_once() {
        let own = Ipv4Addr::new(192, 0, 2, 1).octets();
        let mut first = ident_listed {
            cookie: 7,
            tgid: 5,
            fd: 3,
            family: INET,
            own_port: 443,
            ..ident_listed::default()
        };
        first.own[0] = u32::from_ne_bytes(own);
        let mut second = ident_listed {
            cookie: 8,
            inode: 9,
            family: 10,
            has_record: 1,
            ..ident_listed::default()
        };
        second.peer[3] = u32::from_ne_bytes([0, 0, 0, 1]);
        second.peer_port = 80;
        let record = ident_socket {
            epoch: 4,
            verdict: abi::IDENT_ALLOW as u8,
            rule: 2,
            direction: abi::IDENT_OUT as u8,
            ..ident_socket::default()
        };
        let all = [
            bytes(&first),
            bytes(&second),
            super::super::bytes_of(&record).to_vec(),
        ]
        .concat();
        for at_once in [1, 7, 79, 80, 81, 200, all.len()] {
            let mut found = Vec::new();
            let mut each = |socket| found.push(socket);
            let mut parts = Parts {
                bytes: Vec::new(),
                each: &mut each,
            };
            all.chunks(at_once).for_each(|read| parts.add(read));
            assert!(parts.bytes.is_empty());
            assert_eq!(found.len(), 2, "{at_once}");
            assert_eq!(found[0].own.to_string(), "192.0.2.1:443");
            assert_eq!((found[0].descriptor, found[0].inode), (Some((5, 3)), None));
            assert_eq!(found[1].peer.to_string(), "[::1]:80");
            let record = found[1].record.as_ref().unwrap();
            let decided = record.decided.unwrap();
            assert!(decided.passes && !decided.waits && record.is_out);
            assert_eq!((decided.by, decided.epoch), (DecidedBy::Rule(2), 4));
        }
    }
}
