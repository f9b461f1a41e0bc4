//! What a packet proves, by the verifier of `weir token verify`.

use super::*;

/// A TCP or UDP packet, or the first part of one, as far as its ports; of nothing else is
/// something claimed here.
pub struct Ports {
    pub protocol: u8,
    pub source: IpAddr,
    pub dest: (IpAddr, u16),
    /// The packet as it would be in one piece.
    pub whole: Vec<u8>,
    pub is_part: bool,
    /// The packet says that it is so long.
    pub is_stated: bool,
    pub version: u8,
}

impl Ports {
    /// Written for itself, and less strict than any verifier: the ports are there.
    pub fn read(packet: &[u8]) -> Option<Self> {
        let mut whole = packet.to_vec();
        let mut is_part = false;
        let is_stated;
        let (source, dest, protocol, at): (IpAddr, IpAddr, u8, usize) = match packet.first()? >> 4 {
            4 => {
                let head: &[u8; 20] = packet.first_chunk()?;
                let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
                let at = usize::from(head[0] & 15) * 4;
                let part = u16::from_be_bytes([head[6], head[7]]) & 0x3fff;
                if at < 20 || part & 0x1fff != 0 {
                    return None;
                }
                is_stated = length >= at + 4;
                is_part = part != 0;
                whole[6] &= 0xc0;
                let addr = |at: usize| IpAddr::from(*head[at..].first_chunk::<4>().unwrap());
                (addr(12), addr(16), head[9], at)
            }
            6 => {
                let head: &[u8; 40] = packet.first_chunk()?;
                let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
                let (mut next, mut at, mut place) = (head[6], 40, 6);
                while let 0 | 43 | 44 | 60 = next {
                    let header: &[u8; 4] = whole.get(at..)?.first_chunk()?;
                    if next == 44 {
                        if header[2] != 0 || header[3] & 0xf8 != 0 {
                            return None;
                        }
                        is_part = true;
                        next = header[0];
                        whole[place] = next;
                        whole.drain(at..(at + 8).min(packet.len()));
                        continue;
                    }
                    (next, place) = (header[0], at);
                    at += (usize::from(header[1]) + 1) * 8;
                }
                is_stated = length + 40 >= at + 4;
                let addr = |at: usize| IpAddr::from(*head[at..].first_chunk::<16>().unwrap());
                (addr(8), addr(24), next, at)
            }
            _ => return None,
        };
        let ports: &[u8; 4] = whole.get(at..)?.first_chunk()?;
        let port = u16::from_be_bytes([ports[2], ports[3]]);
        matches!(protocol, TCP | UDP).then_some(Self {
            protocol,
            source,
            dest: (dest, port),
            version: packet[0] >> 4,
            whole,
            is_part,
            is_stated,
        })
    }

    /// Which tokens such a packet needs; `None`: none.
    pub fn wants(&self, networks: &Networks, is_forwarded: bool) -> Option<Scope> {
        let is_in = |all: &[Prefix; 2], addr| all.iter().any(|prefix| prefix.contains(addr));
        if !is_in(&networks.from, self.source)
            || (is_forwarded && !is_in(&networks.to, self.dest.0))
        {
            return None;
        }
        match self.dest.1 {
            port if is_within(FLOW, port) => Some(Scope::Flow),
            port if is_within(PAYLOAD, port) && self.protocol == TCP => Some(Scope::Payload),
            port if is_within(DAF, port) && self.protocol == TCP && self.source.is_ipv4() => {
                Some(Scope::Daf)
            }
            _ => None,
        }
    }
}

pub struct Networks {
    pub from: [Prefix; 2],
    pub to: [Prefix; 2],
}

pub type Flow = ((IpAddr, u16), (IpAddr, u16));

/// What a packet proves, by the reference.
pub enum Proof {
    Nothing,
    /// It is right at any time, and changes nothing.
    Stateless,
    /// A SYN that begins its flow.
    Begins(Flow, u32),
    /// It is of a flow that has proved itself.
    Of(Flow),
    /// A datagram with a token of its own.
    Datagram(Flow),
    /// One without, at a moment at which the time of its flow may be over or not.
    Late,
}

/// The connections of sockets and iptables, or of a gateway, that have proved themselves.
#[derive(Default)]
pub struct Flows {
    /// The numbers of their SYNs, and whether something came after these.
    pub connections: HashMap<Flow, (u32, bool)>,
}

/// Datagrams are remembered for all together.
pub type Datagrams = HashMap<Flow, Instant>;

pub struct Reference<'k> {
    pub known: &'k Known,
    pub verifier: Verifier<'k>,
}

impl Reference<'_> {
    pub fn judge(
        &self,
        packet: &[u8],
        scope: Scope,
        flows: &Flows,
        datagrams: &Datagrams,
        epoch: u64,
    ) -> Proof {
        if let Some(datagram) = Datagram::read(packet) {
            return self.judge_datagram(&datagram, datagrams, epoch);
        }
        let Some(segment) = Segment::read(packet) else {
            return Proof::Nothing;
        };
        if scope == Scope::Daf {
            let verdict = self.known.daf.verify(packet);
            return match verdict.is_some_and(|(_, verdict)| verdict.is_valid()) {
                true => Proof::Stateless,
                false => Proof::Nothing,
            };
        }
        let flow = (segment.source, segment.dest);
        let before = flows.connections.get(&flow);
        if segment.is_syn() {
            if self.verifier.verify_segment(&segment, epoch).is_err() {
                return Proof::Nothing;
            }
            let header = 20 + segment.options.map_or(0, <[u8]>::len);
            if scope == Scope::Payload && segment.bytes.len() > header {
                return Proof::Nothing;
            }
            return match before {
                Some((isn, true)) if *isn == segment.sequence => Proof::Nothing,
                Some((isn, false)) if *isn == segment.sequence => Proof::Stateless,
                _ => Proof::Begins(flow, segment.sequence),
            };
        }
        let Some((isn, _)) = before else {
            return Proof::Nothing;
        };
        let (keys, identity) = (&self.verifier.keys, &self.known.identity);
        let is_right =
            scope == Scope::Flow || segment::verify(&segment, *isn, keys, identity, epoch).is_ok();
        match is_right {
            true => Proof::Of(flow),
            false => Proof::Nothing,
        }
    }

    pub fn judge_datagram(&self, datagram: &Datagram, datagrams: &Datagrams, epoch: u64) -> Proof {
        let flow = (datagram.source, datagram.dest);
        match self.verifier.verify_datagram(datagram, epoch) {
            Ok(_) => Proof::Datagram(flow),
            Err(Refusal::Missing) => match datagrams.get(&flow).map(Instant::elapsed) {
                Some(since) if since < Duration::from_secs(110) => Proof::Stateless,
                Some(since) if since < Duration::from_secs(130) => Proof::Late,
                _ => Proof::Nothing,
            },
            Err(_) => Proof::Nothing,
        }
    }
}
