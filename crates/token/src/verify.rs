//! Does a packet prove which program began its connection? The reference that the
//! program in the kernel (`bpf/token/verify.h`) is held against.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_identity::Digest;

use crate::{
    Datagram, DatagramStatement, EPOCH_SLACK, IP_KIND, IdentityKey, KeyId, OptionError, Secret,
    Statement, TokenOption, VERSION,
    datagram::{EXTENSION_MOST, find_ipv6},
    epoch_near, find,
    option::find_kind,
};

/// IPv6 headers before TCP's that are gone through.
const CHAIN: usize = 6;
const FRAGMENT: u8 = 44;
const TCP: u8 = 6;
const UDP: u8 = 17;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Why a SYN proves nothing, in the order in which it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Refusal {
    /// The SYN has no token.
    Missing,
    /// Its options contradict themselves, or it has no whole TCP header.
    Malformed,
    /// A version that is not known.
    OtherVersion,
    /// A key that is not there, or is retired.
    UnknownKey,
    /// A token of another time: a replay, or clocks that differ.
    OtherEpoch,
    /// A token of nobody whose token is wanted.
    NotNamed,
    /// Forged, or of another connection.
    WrongMac,
}

impl Refusal {
    /// Its word in status and metrics, which is that of the kernel's outcome.
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::OtherVersion => "other-version",
            Self::UnknownKey => "unknown-key",
            Self::OtherEpoch => "other-epoch",
            Self::NotNamed => "not-named",
            Self::WrongMac => "wrong-mac",
        }
    }
}

/// A TCP segment as far as it counts here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<'p> {
    /// Address and port of the sender.
    pub source: (IpAddr, u16),
    /// Address and port of the receiver.
    pub dest: (IpAddr, u16),
    /// The sequence number, of a SYN the initial one.
    pub sequence: u32,
    /// The flags of the fourteenth byte, CWR to FIN.
    pub flags: u8,
    /// What stands between its header and its data; `None`: the header says less than it
    /// has, or more than there is.
    pub options: Option<&'p [u8]>,
    /// The token in its IP header, where that of a SYN may stand as well, unless the options
    /// there contradict themselves.
    pub ip_token: Result<Option<TokenOption>, OptionError>,
    /// All of it, from the TCP header on.
    pub bytes: &'p [u8],
}

impl<'p> Segment<'p> {
    /// The segment in an IP packet; `None`: it is none, a part of one, or behind headers that
    /// are not gone through.
    pub fn read(packet: &'p [u8]) -> Option<Self> {
        let (source, dest, protocol, transport): (IpAddr, IpAddr, u8, &[u8]);
        let ip_token;
        match packet.first()? >> 4 {
            4 => {
                let head: &[u8; 20] = packet.first_chunk()?;
                let part = |at: usize| head[at..].first_chunk::<4>().copied();
                // A header in its own length.
                if head[0] & 15 < 5 {
                    return None;
                }
                // Another part than the first one, or one of several.
                if u16::from_be_bytes([head[6], head[7]]) & 0x3fff != 0 {
                    return None;
                }
                source = Ipv4Addr::from(part(12)?).into();
                dest = Ipv4Addr::from(part(16)?).into();
                protocol = head[9];
                let length = usize::from(head[0] & 15) * 4;
                transport = packet.get(length..)?;
                ip_token = find_kind(&packet[20..length], IP_KIND);
            }
            6 => {
                let (head, mut rest): (&[u8; 40], _) = packet.split_first_chunk()?;
                let part = |at: usize| head[at..].first_chunk::<16>().copied();
                source = Ipv6Addr::from(part(8)?).into();
                dest = Ipv6Addr::from(part(24)?).into();
                let mut next = head[6];
                let mut options: &[u8] = &[];
                for _ in 0..CHAIN {
                    if !is_extension(next) {
                        break;
                    }
                    let [after, length, offset, more, ..] = rest else {
                        return None;
                    };
                    let length = match next {
                        // That of a whole packet (RFC 6946).
                        FRAGMENT if *offset == 0 && more & 0xf9 == 0 => 8,
                        FRAGMENT => return None,
                        _ => (usize::from(*length) + 1) * 8,
                    };
                    if next == 60 && *after == 6 {
                        options = rest.get(2..length)?;
                    }
                    next = *after;
                    rest = rest.get(length..)?;
                }
                ip_token = match options.len() <= EXTENSION_MOST {
                    true => find_ipv6(options),
                    false => Ok(None),
                };
                (protocol, transport) = (next, rest);
            }
            _ => return None,
        }
        let head: &[u8; 20] = transport.first_chunk()?;
        if protocol != TCP {
            return None;
        }
        let port = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let length = usize::from(head[12] >> 4) * 4;
        Some(Self {
            source: (source, port(0)),
            dest: (dest, port(2)),
            sequence: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
            flags: head[13],
            options: transport.get(20..length),
            ip_token,
            bytes: transport,
        })
    }

    /// The token of a SYN: that of its TCP options, else that of its IP header.
    ///
    /// # Errors
    /// Options contradict themselves, or there is no whole TCP header.
    pub fn token(&self) -> Result<Option<TokenOption>, Refusal> {
        let options = self.options.ok_or(Refusal::Malformed)?;
        match find(options).map_err(|_| Refusal::Malformed)? {
            Some(token) => Ok(Some(token)),
            None => self.ip_token.map_err(|_| Refusal::Malformed),
        }
    }

    /// Does the segment begin a connection?
    pub fn is_syn(&self) -> bool {
        self.flags & (SYN | ACK) == SYN
    }

    /// Is it the answer to one that does?
    pub fn is_syn_ack(&self) -> bool {
        self.flags & (SYN | ACK) == SYN | ACK
    }
}

/// Does such an IPv6 header stand before another one: hop-by-hop options, routing, a fragment,
/// destination options?
fn is_extension(header: u8) -> bool {
    matches!(header, 0 | 43 | FRAGMENT | 60)
}

/// A packet that has TCP or UDP, or may have, and that is read neither as a segment nor as a
/// datagram: the first part of one, or one whose headers do not end. Its receiver may read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unread {
    /// The ports of the sender and of the receiver, where they are there.
    pub ports: Option<(u16, u16)>,
    /// It is UDP, as far as one can tell.
    pub is_udp: bool,
}

impl Unread {
    /// Looks at an IP packet that [`Segment::read`] and [`Datagram::read`] do not read; `None`:
    /// it has something else, it is a later part, or less of it was captured.
    pub fn read(packet: &[u8]) -> Option<Self> {
        let unknown = Some(Self {
            ports: None,
            is_udp: false,
        });
        let word = |at: usize| {
            let bytes = packet.get(at..).and_then(|rest| rest.first_chunk());
            bytes.map_or(0, |bytes| usize::from(u16::from_be_bytes(*bytes)))
        };
        let (protocol, transport, stated);
        match packet.first()? >> 4 {
            4 => {
                let head: &[u8; 20] = packet.first_chunk()?;
                let length = usize::from(head[0] & 15) * 4;
                if length < 20 || word(6) & 0x1fff != 0 {
                    return None;
                }
                stated = word(2);
                (protocol, transport) = (head[9], packet.get(length..).unwrap_or_default());
            }
            6 => {
                let (head, mut rest): (&[u8; 40], _) = packet.split_first_chunk()?;
                stated = word(4) + 40;
                let is_cut = stated > packet.len();
                let mut next = head[6];
                for _ in 0..CHAIN {
                    if !is_extension(next) {
                        break;
                    }
                    let [after, length, offset, more, ..] = rest else {
                        return unknown.filter(|_| !is_cut);
                    };
                    let length = match next {
                        FRAGMENT if *offset != 0 || more & 0xf8 != 0 => return None,
                        FRAGMENT => 8,
                        _ => (usize::from(*length) + 1) * 8,
                    };
                    next = *after;
                    let Some(behind) = rest.get(length..) else {
                        return unknown.filter(|_| !is_cut);
                    };
                    rest = behind;
                }
                if is_extension(next) {
                    return unknown;
                }
                (protocol, transport) = (next, rest);
            }
            _ => return None,
        }
        if !matches!(protocol, TCP | UDP) {
            return None;
        }
        let is_whole_head = transport.len() >= if protocol == TCP { 20 } else { 8 };
        if !is_whole_head && stated > packet.len() {
            return None;
        }
        let ports: Option<&[u8; 4]> = transport.first_chunk();
        Some(Self {
            ports: ports.map(|[a, b, c, d]| {
                let port = |high, low| u16::from_be_bytes([high, low]);
                (port(*a, *b), port(*c, *d))
            }),
            is_udp: protocol == UDP,
        })
    }
}

/// What a verifier knows.
#[derive(Debug, Clone, Default)]
pub struct Verifier<'k> {
    /// The secrets that are accepted.
    pub keys: Vec<(KeyId, &'k Secret)>,
    /// The programs whose tokens are wanted; the first one of those that a tag means.
    pub identities: Vec<Digest>,
}

impl Verifier<'_> {
    /// Whose connection the SYN of an IP packet begins, in this epoch.
    ///
    /// # Errors
    /// It proves nothing, for this reason.
    pub fn verify(&self, packet: &[u8], epoch: u64) -> Result<Digest, Refusal> {
        let segment = Segment::read(packet).ok_or(Refusal::Malformed)?;
        self.verify_segment(&segment, epoch)
    }

    /// Whose connection a SYN that is read already begins, in this epoch.
    ///
    /// # Errors
    /// As above.
    pub fn verify_segment(&self, segment: &Segment<'_>, epoch: u64) -> Result<Digest, Refusal> {
        self.verify_option(segment.token()?, epoch, |key_id, epoch, key| {
            Statement {
                key_id,
                epoch,
                source: segment.source,
                dest: segment.dest,
                isn: segment.sequence,
            }
            .mac(key)
        })
    }

    /// Who sends a UDP datagram, in this epoch.
    ///
    /// # Errors
    /// As above.
    pub fn verify_datagram(&self, datagram: &Datagram, epoch: u64) -> Result<Digest, Refusal> {
        let option = datagram.token.map_err(|_| Refusal::Malformed)?;
        self.verify_option(option, epoch, |key_id, epoch, key| {
            DatagramStatement {
                key_id,
                epoch,
                source: datagram.source,
                dest: datagram.dest,
            }
            .mac(key)
        })
    }

    fn verify_option(
        &self,
        option: Option<TokenOption>,
        epoch: u64,
        mac: impl FnOnce(KeyId, u64, &IdentityKey) -> [u8; 8],
    ) -> Result<Digest, Refusal> {
        let option = option.ok_or(Refusal::Missing)?;
        if option.version != VERSION {
            return Err(Refusal::OtherVersion);
        }
        let known = |id: KeyId| self.keys.iter().find(|(known, _)| *known == id);
        let key = option.key().and_then(known);
        let (key_id, secret) = key.ok_or(Refusal::UnknownKey)?;
        let (epoch, ahead) = epoch_near(epoch, option.epoch);
        if u64::from(ahead.unsigned_abs()) > EPOCH_SLACK {
            return Err(Refusal::OtherEpoch);
        }
        let is_claimed = |identity: &&Digest| identity.0[..4] == option.tag;
        let identity = self.identities.iter().find(is_claimed);
        let identity = identity.ok_or(Refusal::NotNamed)?;
        let key = secret.identity_key(*key_id, identity);
        match mac(*key_id, epoch, &key) == option.mac {
            true => Ok(*identity),
            false => Err(Refusal::WrongMac),
        }
    }
}

#[cfg(test)]
mod tests;
