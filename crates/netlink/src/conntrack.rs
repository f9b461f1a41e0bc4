//! The kernel's table of connections (nf_conntrack): who has begun one, and its mark.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use crate::{
    Attributes, Message, NLA_F_NESTED, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, Protocol, Request,
    Socket, Writer, errno, family, ip,
};

/// `NFNL_SUBSYS_CTNETLINK` of linux/netfilter/nfnetlink.h, with the kinds of its messages.
const NEW: u16 = 1 << 8;
const GET: u16 = NEW | 1;

/// Attributes of linux/netfilter/nfnetlink_conntrack.h.
const TUPLE_ORIG: u16 = 1;
const MARK: u16 = 8;
const MARK_MASK: u16 = 21;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const IP_V4_SRC: u16 = 1;
const IP_V4_DST: u16 = 2;
const IP_V6_SRC: u16 = 3;
const IP_V6_DST: u16 = 4;
const PROTO_NUM: u16 = 1;
const PROTO_SRC_PORT: u16 = 2;
const PROTO_DST_PORT: u16 = 3;
const PROTO_ICMP_ID: u16 = 4;
const PROTO_ICMP_TYPE: u16 = 5;
const PROTO_ICMP_CODE: u16 = 6;
const PROTO_ICMPV6_ID: u16 = 7;
const PROTO_ICMPV6_TYPE: u16 = 8;
const PROTO_ICMPV6_CODE: u16 = 9;

/// IPPROTO_ICMP and IPPROTO_ICMPV6.
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// `ENOENT` of asm-generic/errno-base.h.
const ENOENT: i32 = 2;

/// What a packet is told from others by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    /// The protocol above IP.
    pub protocol: u8,
    /// The sender; the port is 0 where the protocol has none, and of ICMP the identifier.
    pub from: SocketAddr,
    /// The receiver; the port of ICMP is type and code.
    pub to: SocketAddr,
}

impl Tuple {
    /// The inverse: that of an answer.
    fn inverse(&self) -> Option<Self> {
        let has_type = [ICMP, ICMPV6].contains(&self.protocol);
        (!has_type).then_some(Self {
            protocol: self.protocol,
            from: self.to,
            to: self.from,
        })
    }

    fn is_of(&self, entry: &Entry) -> bool {
        let has_ports = self.from.port() != 0 && ![ICMP, ICMPV6].contains(&self.protocol);
        match has_ports {
            true => (entry.from, entry.to) == (self.from, self.to),
            false => (entry.from.ip(), entry.to.ip()) == (self.from.ip(), self.to.ip()),
        }
    }

    fn put(&self, to: &mut Writer) {
        let all = to.begin_nest();
        let ends = to.begin_nest();
        let kinds = match self.from.ip() {
            IpAddr::V4(_) => [IP_V4_SRC, IP_V4_DST],
            IpAddr::V6(_) => [IP_V6_SRC, IP_V6_DST],
        };
        for (kind, end) in kinds.into_iter().zip([self.from, self.to]) {
            match end.ip() {
                IpAddr::V4(v4) => to.attribute(kind, &v4.octets()),
                IpAddr::V6(v6) => to.attribute(kind, &v6.octets()),
            }
        }
        to.end_nest(ends, TUPLE_IP);
        let above = to.begin_nest();
        to.attribute(PROTO_NUM, &[self.protocol]);
        let icmp = match self.protocol {
            ICMP => Some([PROTO_ICMP_ID, PROTO_ICMP_TYPE, PROTO_ICMP_CODE]),
            ICMPV6 => Some([PROTO_ICMPV6_ID, PROTO_ICMPV6_TYPE, PROTO_ICMPV6_CODE]),
            _ => None,
        };
        let [kind, code] = self.to.port().to_be_bytes();
        match icmp {
            Some([id, kind_at, code_at]) => {
                to.attribute(id, &self.from.port().to_be_bytes());
                to.attribute(kind_at, &[kind]);
                to.attribute(code_at, &[code]);
            }
            None if self.from.port() != 0 => {
                to.attribute(PROTO_SRC_PORT, &self.from.port().to_be_bytes());
                to.attribute(PROTO_DST_PORT, &self.to.port().to_be_bytes());
            }
            None => {}
        }
        to.end_nest(above, TUPLE_PROTO);
        to.end_nest(all, TUPLE_ORIG);
    }
}

/// One entry of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The sender, from whom the first packet came; of protocols with ports also which.
    pub from: SocketAddr,
    /// The receiver, to whom it went.
    pub to: SocketAddr,
    /// The mark, of which others may have bits.
    pub mark: u32,
    /// The address family, and the attribute of the first packet as the kernel has it.
    family: u8,
    tuple: Vec<u8>,
}

fn entry(message: Message<'_>) -> Option<Entry> {
    let family = *message.body.first()?;
    let attributes = Attributes::behind(message.body, 4);
    let tuple = attributes.get(TUPLE_ORIG)?;
    let ends = Attributes::of(tuple).nested(TUPLE_IP);
    let above = Attributes::of(tuple).nested(TUPLE_PROTO);
    let end = |addresses: [u16; 2], port: u16| {
        let address = addresses.into_iter().find_map(|kind| ends.get(kind));
        let port = above.get(port).and_then(|port| port.try_into().ok());
        let port = port.map_or(0, u16::from_be_bytes);
        Some(SocketAddr::new(ip(address?)?, port))
    };
    Some(Entry {
        from: end([IP_V4_SRC, IP_V6_SRC], PROTO_SRC_PORT)?,
        to: end([IP_V4_DST, IP_V6_DST], PROTO_DST_PORT)?,
        mark: attributes.number(MARK).unwrap_or(0),
        family,
        tuple: tuple.to_vec(),
    })
}

/// A socket for questions about the table of this process's network namespace.
#[derive(Debug)]
pub struct Conntrack(Socket);

impl Conntrack {
    /// Opens one.
    ///
    /// # Errors
    /// The kernel has no such table, or nobody can be asked about it (nf_conntrack_netlink).
    pub fn open() -> io::Result<Self> {
        let table = Self(Socket::open(Protocol::Netfilter)?);
        // Asked for an entry that there is not: whoever answers so can be asked.
        let nobody = SocketAddr::from(([0, 0, 0, 0], 1));
        table.find(&Tuple {
            protocol: 17,
            from: nobody,
            to: nobody,
        })?;
        Ok(table)
    }

    /// Has the sender of this packet begun what it belongs to, and not its receiver? `None`: there
    /// is no entry yet. Where one of the addresses was translated, its answers may have them.
    ///
    /// # Errors
    /// The kernel refuses the question.
    pub fn has_begun(&self, tuple: &Tuple) -> io::Result<Option<bool>> {
        if let Some(entry) = self.find(tuple)? {
            return Ok(Some(tuple.is_of(&entry)));
        }
        let Some(inverse) = tuple.inverse() else {
            return Ok(None);
        };
        let entry = self.find(&inverse)?;
        Ok(entry.map(|entry| !inverse.is_of(&entry)))
    }

    /// The entry that a packet belongs to, whichever way it goes; `None`: there is none yet.
    ///
    /// # Errors
    /// The kernel refuses the question.
    pub fn find(&self, tuple: &Tuple) -> io::Result<Option<Entry>> {
        let mut writer = Writer::default();
        let fixed = [family(tuple.from.ip()), 0, 0, 0];
        // The entry says that more follows: what does is the acknowledgement.
        let begin = writer.begin(GET, NLM_F_REQUEST | NLM_F_ACK, 0, &fixed);
        tuple.put(&mut writer);
        writer.end(begin);
        let asked = self.0.ask(&writer.into_bytes(), |message, found| {
            found.extend(entry(message));
        });
        match asked {
            Ok(found) => Ok(found.into_iter().next()),
            Err(error) if errno(&error) == Some(ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets the bits of `mask` in the mark of the entry that this packet has begun, or answers;
    /// false: there is none.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn mark(&self, tuple: &Tuple, mark: u32, mask: u32) -> io::Result<bool> {
        if self.mark_one(tuple, mark, mask)? {
            return Ok(true);
        }
        match tuple.inverse() {
            Some(inverse) => self.mark_one(&inverse, mark, mask),
            None => Ok(false),
        }
    }

    fn mark_one(&self, tuple: &Tuple, mark: u32, mask: u32) -> io::Result<bool> {
        let mut writer = Writer::default();
        let fixed = [family(tuple.from.ip()), 0, 0, 0];
        let begin = writer.begin(NEW, NLM_F_REQUEST | NLM_F_ACK, 0, &fixed);
        tuple.put(&mut writer);
        writer.attribute(MARK, &mark.to_be_bytes());
        writer.attribute(MARK_MASK, &mask.to_be_bytes());
        writer.end(begin);
        self.put(&writer.into_bytes())
    }

    fn put(&self, request: &[u8]) -> io::Result<bool> {
        match self.0.ask(request, |_, _: &mut Vec<()>| ()) {
            Ok(_) => Ok(true),
            Err(error) if errno(&error) == Some(ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes these bits out of all marks; returns of how many.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn unmark(&self, mask: u32) -> io::Result<usize> {
        let mut count = 0;
        for family in [2, 10] {
            let all = Request::new(GET, NLM_F_DUMP, &[family, 0, 0, 0]).finish();
            let marked = self.0.ask(&all, |message, found| {
                found.extend(entry(message).filter(|entry| entry.mark & mask != 0));
            })?;
            for entry in marked {
                let request = Request::new(NEW, NLM_F_ACK, &[entry.family, 0, 0, 0])
                    .attribute(TUPLE_ORIG | NLA_F_NESTED, &entry.tuple)
                    .attribute(MARK, &[0; 4])
                    .attribute(MARK_MASK, &mask.to_be_bytes());
                count += usize::from(self.put(&request.finish())?);
            }
        }
        Ok(count)
    }
}
