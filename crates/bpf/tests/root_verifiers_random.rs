//! Random packets through every program that verifies or overwrites tokens, by BPF_PROG_RUN: the
//! match of iptables and sockets, a gateway on tc and on XDP, what strips tokens. A tenth of the
//! packets is nearly right. What passes is held against the verifier of `weir token verify`
//! (`weir_token::verify`): to a port that wants tokens nothing passes that does not prove itself
//! to both. Root: loads BPF.
//!
//! `WEIR_RANDOM_PACKETS` says how many packets there are, `WEIR_RANDOM_SEED` which: a failure
//! prints the seed and the packet.

use std::{
    collections::HashMap,
    net::IpAddr,
    os::fd::BorrowedFd,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use weir_bpf::{
    identity::CgroupAt,
    prog_test_run,
    token::{
        self, Claim, DafStates, Forwarded, GatewayKind, Requirement, Scope, TokenPolicy, Tokens,
    },
};
use weir_core::Prefix;
use weir_identity::Digest;
use weir_token::{
    Datagram, DatagramStatement, IdentityKey, KeyId, Secret, Statement, TokenOption, VERSION,
    daf::DafKey,
    epoch_at,
    segment::{self, SEGMENT_BIT, SEGMENT_TOKEN_BYTES, SegmentToken},
    verify::{Refusal, Segment, Verifier},
};

const ROOT: &str = "/sys/fs/bpf/weir";
/// Packets of a run where nothing else is said, each through five programs.
const PACKETS: u64 = 400_000;
/// Right packets that nearly right ones are made of, made anew in each epoch.
const POOL: usize = 1024;

const FROM: [&str; 2] = ["192.0.2.0/24", "2001:db8::/32"];
const TO: [&str; 2] = ["198.51.100.0/24", "2001:db8:9::/48"];
/// Ports of TCP and UDP that want a token of the flow.
const FLOW: (u16, u16) = (8080, 8083);
/// Ports that want one in each segment.
const PAYLOAD: (u16, u16) = (8090, 8091);
/// The port that wants signatures of DAF, of IPv4.
const DAF: (u16, u16) = (8100, 8100);
/// A port that wants nothing.
const OTHER: u16 = 9000;
/// The number of SYNs to ports that want tokens in segments.
const PAYLOAD_ISN: u32 = 7;

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// What lets a packet pass: MATCH, TC_ACT_UNSPEC, XDP_PASS.
const MATCHES: u32 = 0xffff;
const TC_PASSES: u32 = u32::MAX;
const XDP_PASSES: u32 = 2;

/// xorshift64*: the same packets for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() % most as u64) as usize
    }

    fn one_in(&mut self, most: usize) -> bool {
        self.below(most) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(4) {
            let word = self.next().to_ne_bytes();
            part.copy_from_slice(&word[..part.len()]);
        }
    }
}

fn epoch() -> u64 {
    epoch_at(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs())
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}: {text} is no number")),
    )
}

fn is_within(ports: (u16, u16), port: u16) -> bool {
    (ports.0..=ports.1).contains(&port)
}

/// The keys of a run.
struct Known {
    secret: Secret,
    id: KeyId,
    identity: Digest,
    key: IdentityKey,
    daf: DafKey,
}

impl Known {
    fn new() -> Self {
        let secret = Secret::new(std::array::from_fn(|n| n as u8 * 5 + 1));
        let (id, identity) = (KeyId::new(66).unwrap(), Digest([0x5a; 32]));
        Self {
            key: secret.identity_key(id, &identity),
            secret,
            id,
            identity,
            daf: DafKey::new(b"a key that all share").unwrap(),
        }
    }

    /// Every scope, of this host's ports and of those of the hosts behind it.
    fn policy(&self) -> TokenPolicy {
        let prefixes = |texts: &[&str]| -> Vec<Prefix> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let identity = *self.identity.0.first_chunk().unwrap();
        let states = self.daf.states();
        let mut requirements = Vec::new();
        for is_forwarded in [false, true] {
            for (ports, scope) in [
                (FLOW, Scope::Flow),
                (PAYLOAD, Scope::Payload),
                (DAF, Scope::Daf),
            ] {
                let families = if scope == Scope::Daf { 1 } else { 2 };
                requirements.push(Requirement {
                    ports: vec![ports],
                    udp_ports: if scope == Scope::Flow {
                        vec![ports]
                    } else {
                        Vec::new()
                    },
                    networks: Some(prefixes(&FROM[..families])),
                    identities: if scope == Scope::Daf {
                        Vec::new()
                    } else {
                        vec![identity]
                    },
                    drops: true,
                    scope,
                    forwarded: is_forwarded.then(|| Forwarded {
                        to: prefixes(&TO[..families]),
                        takes_up: 0,
                    }),
                });
            }
        }
        TokenPolicy {
            requirements,
            keys: vec![self.id.number()],
            claims: vec![Claim {
                key_id: self.id.number(),
                key: self.key.0,
                identity,
            }],
            daf: Some(DafStates {
                inner: states.inner,
                outer: states.outer,
            }),
            ..TokenPolicy::default()
        }
    }

    fn token(&self, epoch: u64, mac: [u8; 8]) -> TokenOption {
        TokenOption {
            version: VERSION,
            key_id: self.id.number(),
            epoch: epoch as u16,
            tag: *self.identity.0.first_chunk().unwrap(),
            mac,
        }
    }

    /// A packet that is right, or would be at another time or in another order.
    fn packet(&self, random: &mut Random, now: u64) -> Vec<u8> {
        let is_v6 = random.one_in(2);
        let last = random.below(4) as u8 + 1;
        let (source, dest): (IpAddr, IpAddr) = match is_v6 {
            false => ([192, 0, 2, last].into(), [198, 51, 100, 9].into()),
            true => (
                [0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(last)].into(),
                [0x2001, 0xdb8, 9, 0, 0, 0, 0, 9].into(),
            ),
        };
        let source = (source, 40_000 + random.below(4) as u16);
        let to = |ports: (u16, u16), random: &mut Random| {
            let count = usize::from(ports.1 - ports.0) + 1;
            match random.one_in(8) {
                true => (dest, OTHER),
                false => (dest, ports.0 + random.below(count) as u16),
            }
        };
        // Those of now twice as often.
        let epoch = (now + random.of(&[2, 2, 2, 2, 0, 1, 3, 4])).saturating_sub(2);
        let mut payload = vec![0; random.of(&[0, 0, 1, 7, 40])];
        random.fill(&mut payload);
        let before = random.of(&[&[][..], &[1, 1, 1, 1], &[2, 4, 5, 180]]);
        match random.below(8) {
            0..=2 => {
                let dest = to(FLOW, random);
                let isn = random.below(3) as u32;
                let token = self.syn_token(epoch, source, dest, isn);
                let mut place = Place::of(random);
                let options = place.put(TCP, is_v6, before, &token);
                let segment = tcp(source.1, dest.1, isn, SYN, &options, &[]);
                ip(source.0, dest.0, TCP, &place, &segment)
            }
            3 => {
                let dest = to(FLOW, random);
                let segment = tcp(source.1, dest.1, 9, ACK, before, &payload);
                ip(source.0, dest.0, TCP, &Place::default(), &segment)
            }
            4 => {
                let dest = to(FLOW, random);
                let mut place = Place::default();
                if !random.one_in(3) {
                    let statement = DatagramStatement {
                        key_id: self.id,
                        epoch,
                        source,
                        dest,
                    };
                    let token = self.token(epoch, statement.mac(&self.key));
                    place = Place {
                        is_in_ip: true,
                        ..place
                    };
                    place.put(UDP, is_v6, &[], &token);
                }
                let length = (8 + payload.len() as u16).to_be_bytes();
                let ports = [source.1.to_be_bytes(), dest.1.to_be_bytes()].concat();
                let datagram = [&ports[..], &length, &[0, 0], &payload].concat();
                ip(source.0, dest.0, UDP, &place, &datagram)
            }
            5 => {
                let dest = to(PAYLOAD, random);
                let token = self.syn_token(epoch, source, dest, PAYLOAD_ISN);
                let mut place = Place::of(random);
                let options = place.put(TCP, is_v6, before, &token);
                // Data in a SYN is signed by nobody.
                let data: &[u8] = if random.one_in(4) { &payload } else { &[] };
                let segment = tcp(source.1, dest.1, PAYLOAD_ISN, SYN, &options, data);
                ip(source.0, dest.0, TCP, &place, &segment)
            }
            6 => {
                let dest = to(PAYLOAD, random);
                let mut token = SegmentToken {
                    version: VERSION | SEGMENT_BIT,
                    key_id: self.id.number(),
                    epoch: epoch as u16,
                    mac: [0; 8],
                };
                let options = [before, &token.bytes()].concat();
                let bytes = tcp(source.1, dest.1, 8, ACK, &options, &payload);
                let mut packet = ip(source.0, dest.0, TCP, &Place::default(), &bytes);
                let read = Segment::read(&packet).unwrap();
                let mac = segment::mac(&read, PAYLOAD_ISN, self.id, epoch, &self.key);
                token.mac = mac.unwrap();
                let at = packet.len() - payload.len() - SEGMENT_TOKEN_BYTES;
                packet[at..at + SEGMENT_TOKEN_BYTES].copy_from_slice(&token.bytes());
                packet
            }
            _ => {
                let source = (IpAddr::from([192, 0, 2, last]), source.1);
                let dest = IpAddr::from([198, 51, 100, 9]);
                let flags = random.of(&[SYN, ACK]);
                let segment = tcp(source.1, DAF.0, 8, flags, before, &payload);
                let option = [&self.daf.option(&payload)[..], &[0, 0]].concat();
                let place = Place {
                    options: option,
                    ..Place::default()
                };
                ip(source.0, dest, TCP, &place, &segment)
            }
        }
    }

    fn syn_token(
        &self,
        epoch: u64,
        source: (IpAddr, u16),
        dest: (IpAddr, u16),
        isn: u32,
    ) -> TokenOption {
        let statement = Statement {
            key_id: self.id,
            epoch,
            source,
            dest,
            isn,
        };
        self.token(epoch, statement.mac(&self.key))
    }
}

/// Where a token stands, and what the IP header has.
#[derive(Default)]
struct Place {
    is_in_tcp: bool,
    is_in_ip: bool,
    /// IPv6 headers of options in front of it.
    chain: usize,
    /// Options of IPv4, or the IPv6 header with the token.
    options: Vec<u8>,
}

impl Place {
    fn of(random: &mut Random) -> Self {
        let (is_in_tcp, is_in_ip) =
            random.of(&[(true, false), (true, false), (false, true), (true, true)]);
        Self {
            is_in_tcp,
            is_in_ip,
            chain: random.of(&[0, 0, 1, 2]),
            options: Vec::new(),
        }
    }

    /// Puts the token into the IP header, or gives the options of TCP with it.
    fn put(&mut self, protocol: u8, is_v6: bool, before: &[u8], token: &TokenOption) -> Vec<u8> {
        if self.is_in_ip && is_v6 {
            self.options = token.ipv6_header().to_vec();
            self.options[0] = protocol;
        } else if self.is_in_ip {
            self.options = token.ipv4_bytes().to_vec();
        }
        match self.is_in_tcp {
            true => [before, &token.bytes()].concat(),
            false => before.to_vec(),
        }
    }
}

fn tcp(source: u16, dest: u16, number: u32, flags: u8, options: &[u8], data: &[u8]) -> Vec<u8> {
    let words = (20 + options.len()) as u8 / 4;
    let mut bytes = [source.to_be_bytes(), dest.to_be_bytes()].concat();
    bytes.extend(number.to_be_bytes());
    bytes.extend([0, 0, 0, 0, words << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    [&bytes, options, data].concat()
}

/// An IP packet, as long as it says.
fn ip(source: IpAddr, dest: IpAddr, protocol: u8, place: &Place, transport: &[u8]) -> Vec<u8> {
    match (source, dest) {
        (IpAddr::V4(source), IpAddr::V4(dest)) => {
            let header = 20 + place.options.len();
            let length = ((header + transport.len()) as u16).to_be_bytes();
            let mut packet = vec![0x40 | (header / 4) as u8, 0, length[0], length[1]];
            packet.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
            packet.extend([source.octets(), dest.octets()].concat());
            [&packet, &place.options, transport].concat()
        }
        (IpAddr::V6(source), IpAddr::V6(dest)) => {
            let mut headers = Vec::new();
            let behind = if place.options.is_empty() {
                protocol
            } else {
                60
            };
            for more in (0..place.chain).rev() {
                headers.extend([if more == 0 { behind } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
            }
            headers.extend(&place.options);
            let first = if place.chain > 0 { 60 } else { behind };
            let length = ((headers.len() + transport.len()) as u16).to_be_bytes();
            let mut packet = vec![0x60, 0, 0, 0, length[0], length[1], first, 64];
            packet.extend([source.octets(), dest.octets()].concat());
            [&packet, &headers, transport].concat()
        }
        _ => unreachable!("both are of one family"),
    }
}

fn frame(packet: &[u8]) -> Vec<u8> {
    let kind: [u8; 2] = match packet.first().map(|byte| byte >> 4) {
        Some(6) => [0x86, 0xdd],
        _ => [8, 0],
    };
    [&[0; 12][..], &kind, packet].concat()
}

/// Changes a right packet a little, or not at all.
fn change(frame: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..random.of(&[0, 0, 1, 1, 2, 4]) {
        let at = 14 + random.below(frame.len() - 14);
        match random.below(3) {
            0 => frame[at] = random.of(&[0, 1, 6, 17, 44, 60, 0x7f, 0xff]),
            _ => frame[at] ^= 1 << random.below(8),
        }
    }
    match random.below(16) {
        0 => frame.truncate(14 + random.below(frame.len() - 14)),
        1 => frame.extend([0; 6]),
        // It is shorter and says so, or longer.
        2 => {
            let by = random.below(24);
            frame.truncate(frame.len().saturating_sub(by).max(15));
            set_length(frame);
        }
        3 => {
            frame.extend([1, 2, 3, 4]);
            set_length(frame);
        }
        // A first or later part.
        4 if frame.len() > 22 && frame[12] == 8 => {
            let part: u16 = random.of(&[0x2000, 0x2000, 1, 0x2009]);
            frame[20..22].copy_from_slice(&part.to_be_bytes());
        }
        // A chain of headers that what is behind the packet ends.
        5 if frame.len() > 70 && frame[12] != 8 => {
            frame[20] = random.of(&[0, 43, 60]);
            frame[54..62].copy_from_slice(&[60, 0, 1, 4, 0, 0, 0, 0]);
            frame[18..20].copy_from_slice(&[0, 8]);
            frame[62..64].copy_from_slice(&[random.of(&[6, 17, 58, 59]), 0]);
        }
        _ => {}
    }
}

fn set_length(frame: &mut [u8]) {
    let (at, before) = if frame[12] == 8 {
        (16, 14)
    } else {
        (18, 14 + 40)
    };
    let length = (frame.len().saturating_sub(before) as u16).to_be_bytes();
    if let Some(place) = frame.get_mut(at..at + 2) {
        place.copy_from_slice(&length);
    }
}

/// A packet of which nothing is signed: any bytes, or headers to a port that wants tokens.
fn unsigned(random: &mut Random) -> Vec<u8> {
    let is_v6 = random.one_in(2);
    let mut frame = vec![0; 15 + random.below(120)];
    random.fill(&mut frame[14..]);
    frame[12..14].copy_from_slice(if is_v6 { &[0x86, 0xdd] } else { &[8, 0] });
    if random.one_in(3) {
        return frame;
    }
    let protocol = random.of(&[TCP, UDP]);
    let port = random.of(&[8080, 8083, 8084, 8090, 8100, 22]);
    let (header, at) = match is_v6 {
        false => {
            let words = random.of(&[5, 5, 6, 10, 15]);
            let mut header = vec![0x40 | words, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
            header.extend([192, 0, 2, 1, 198, 51, 100, 9]);
            (header, 14 + usize::from(words) * 4)
        }
        true => {
            let first = random.of(&[protocol, protocol, protocol, 0, 43, 44, 60]);
            let mut header = vec![0x60, 0, 0, 0, 0, 0, first, 64];
            header.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            header.extend([0x20, 1, 0xd, 0xb8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
            let chain = if first == protocol { 0 } else { 8 };
            if chain > 0 {
                header.extend([protocol, 0, 0, random.of(&[0, 0, 1]), 0, 0, 0, 0]);
            }
            (header, 14 + 40 + chain)
        }
    };
    frame.resize(at + 4 + random.below(60), 7);
    frame[14..14 + header.len()].copy_from_slice(&header);
    frame[at + 2..at + 4].copy_from_slice(&u16::to_be_bytes(port));
    set_length(&mut frame);
    frame
}

/// A TCP or UDP packet, or the first part of one, as far as its ports; of nothing else is
/// something claimed here.
struct Ports {
    protocol: u8,
    source: IpAddr,
    dest: (IpAddr, u16),
    /// The packet as it would be in one piece.
    whole: Vec<u8>,
    is_part: bool,
    /// The packet says that it is so long.
    is_stated: bool,
    version: u8,
}

impl Ports {
    /// Written for itself, and less strict than any verifier: the ports are there.
    fn read(packet: &[u8]) -> Option<Self> {
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
    fn wants(&self, networks: &Networks, is_forwarded: bool) -> Option<Scope> {
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

struct Networks {
    from: [Prefix; 2],
    to: [Prefix; 2],
}

type Flow = ((IpAddr, u16), (IpAddr, u16));

/// What a packet proves, by the reference.
enum Proof {
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
struct Flows {
    /// The numbers of their SYNs, and whether something came after these.
    connections: HashMap<Flow, (u32, bool)>,
}

/// Datagrams are remembered for all together.
type Datagrams = HashMap<Flow, Instant>;

struct Reference<'k> {
    known: &'k Known,
    verifier: Verifier<'k>,
}

impl Reference<'_> {
    fn judge(
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

    fn judge_datagram(&self, datagram: &Datagram, datagrams: &Datagrams, epoch: u64) -> Proof {
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

/// One program, and what it is to do.
struct Judge<'p> {
    name: &'static str,
    program: BorrowedFd<'p>,
    passes: u32,
    is_forwarded: bool,
    /// Packets that passed because they proved themselves, and that did not.
    proved: u64,
    refused: u64,
}

/// What is known of a frame before a program has it.
struct Asked<'f> {
    frame: &'f [u8],
    packet: &'f [u8],
    ports: Option<Ports>,
    /// It is of IPv6, its chain of headers does not end in it, and it is to this address.
    open_to: Option<IpAddr>,
    /// It is as long as it says, in one piece, and of the family that its frame names: each
    /// verifier says the same of it.
    is_plain: bool,
}

impl<'f> Asked<'f> {
    fn of(frame: &'f [u8]) -> Self {
        let packet = frame.get(14..).unwrap_or_default();
        let version = if frame[12] == 8 { 4 } else { 6 };
        let is_of_family = packet.first().is_some_and(|byte| byte >> 4 == version);
        let ports = Ports::read(packet).filter(|_| is_of_family);
        let is_whole = ports.as_ref().is_some_and(|ports| !ports.is_part);
        Self {
            is_plain: is_whole && packet.len() == stated_length(packet),
            frame,
            packet,
            ports,
            open_to: open_chain(packet).filter(|_| is_of_family),
        }
    }

    /// The packet as verifiers may read it: all that there is, whatever it says, or as much as
    /// it says; in one piece.
    fn readings(&self) -> Vec<Vec<u8>> {
        let Some(ports) = &self.ports else {
            return Vec::new();
        };
        if self.is_plain {
            return vec![ports.whole.clone()];
        }
        let removed = self.packet.len() - ports.whole.len();
        let stated = stated_length(self.packet).min(self.packet.len());
        let mut cut = ports.whole.clone();
        cut.truncate(stated.saturating_sub(removed));
        let mut all = [ports.whole.clone(), cut];
        for packet in &mut all {
            let length = (packet.len() as u16).to_be_bytes();
            if let (4, Some(place)) = (ports.version, packet.get_mut(2..4)) {
                place.copy_from_slice(&length);
            }
        }
        all.into()
    }
}

/// Whom a packet of IPv6 is for, or its first part, whose chain of headers goes on behind its
/// end: what it carries is not there.
fn open_chain(packet: &[u8]) -> Option<IpAddr> {
    let head: &[u8; 40] = packet.first_chunk().filter(|head| head[0] >> 4 == 6)?;
    let end = stated_length(packet).min(packet.len());
    let (mut next, mut at) = (head[6], 40);
    while let 0 | 43 | 44 | 60 = next {
        if at + 8 > end {
            let dest: &[u8; 16] = head[24..].first_chunk()?;
            return Some(IpAddr::from(*dest));
        }
        if next == 44 && (packet[at + 2] != 0 || packet[at + 3] & 0xf8 != 0) {
            return None;
        }
        let words = if next == 44 { 0 } else { packet[at + 1] };
        next = packet[at];
        at += (usize::from(words) + 1) * 8;
    }
    None
}

fn stated_length(packet: &[u8]) -> usize {
    let number = |at: usize| {
        let bytes = packet.get(at..).and_then(|part| part.first_chunk());
        bytes.map_or(0, |bytes| usize::from(u16::from_be_bytes(*bytes)))
    };
    match packet.first().map(|byte| byte >> 4) {
        Some(4) => number(2),
        _ => number(4) + 40,
    }
}

impl Judge<'_> {
    /// Runs a frame, and holds what the program says against the reference.
    fn run(
        &mut self,
        asked: &Asked<'_>,
        networks: &Networks,
        reference: &Reference<'_>,
        flows: &mut Flows,
        datagrams: &mut Datagrams,
    ) -> Result<(), String> {
        let before = epoch();
        // Some are too short for the kernel to make a packet of them.
        let Ok(ran) = prog_test_run::packet(self.program, asked.frame, 1) else {
            return match asked.frame.len() < 14 + 40 {
                true => Ok(()),
                false => Err(format!("{}: the kernel does not run it", self.name)),
            };
        };
        let passes = ran.verdict == self.passes;
        if let Some(dest) = asked.open_to
            && self.is_forwarded
            && passes
            && networks.to.iter().any(|prefix| prefix.contains(dest))
        {
            return Err(format!(
                "{}: its headers do not end, and it passes",
                self.name
            ));
        }
        let Some(ports) = &asked.ports else {
            // A match is about packets with ports alone.
            return match passes && !self.is_forwarded {
                true => Err(format!("{} matches no packet", self.name)),
                false => Ok(()),
            };
        };
        let Some(scope) = ports.wants(networks, self.is_forwarded) else {
            let is_read =
                Segment::read(asked.packet).is_some() || Datagram::read(asked.packet).is_some();
            let wanted = self.is_forwarded;
            return match asked.is_plain && is_read && passes != wanted {
                true => Err(format!(
                    "{}: it is of no requirement, passes {passes}",
                    self.name
                )),
                false => Ok(()),
            };
        };
        let epochs = [before, epoch()];
        let mut proofs = Vec::new();
        for packet in asked.readings() {
            for epoch in &epochs[..if epochs[0] == epochs[1] { 1 } else { 2 }] {
                proofs.push(reference.judge(&packet, scope, flows, datagrams, *epoch));
            }
        }
        let is_sure = asked.is_plain && proofs.len() == 1;
        let proof = proofs
            .into_iter()
            .find(|proof| !matches!(proof, Proof::Nothing));
        match (&proof, passes) {
            // Its receiver would not read as far.
            (None, true) if self.is_forwarded && !ports.is_stated => {}
            (None, true) => return Err(format!("{}: nothing is proved, and it passes", self.name)),
            (Some(Proof::Late), _) => {}
            (Some(_), false) if is_sure => {
                return Err(format!("{}: it is right, and does not pass", self.name));
            }
            (_, true) => self.proved += 1,
            (_, false) => self.refused += 1,
        }
        if !passes {
            return Ok(());
        }
        match proof {
            Some(Proof::Begins(flow, isn)) => {
                flows.connections.insert(flow, (isn, false));
            }
            Some(Proof::Of(flow)) => {
                if let Some((_, is_used)) = flows.connections.get_mut(&flow) {
                    *is_used = true;
                }
            }
            Some(Proof::Datagram(flow)) => {
                datagrams.insert(flow, Instant::now());
            }
            _ => {}
        }
        Ok(())
    }
}

/// Has a segment or datagram a token among options that do not contradict themselves?
fn has_token(packet: &[u8]) -> bool {
    let of_segment = Segment::read(packet).is_some_and(|segment| {
        let options = segment.options.unwrap_or_default();
        matches!(weir_token::find(options), Ok(Some(_)))
            || matches!(SegmentToken::find(options), Ok(Some(_)))
            || matches!(segment.ip_token, Ok(Some(_)))
    });
    let of_datagram =
        Datagram::read(packet).is_some_and(|datagram| matches!(datagram.token, Ok(Some(_))));
    of_segment || of_datagram
}

/// What overwrites tokens passes each packet, as long as it was; of others than those to ports
/// that want tokens none is left.
fn strip(program: BorrowedFd<'_>, asked: &Asked<'_>) -> Result<bool, String> {
    let Ok(ran) = prog_test_run::packet(program, asked.frame, 1) else {
        return Ok(false);
    };
    if ran.verdict != TC_PASSES {
        return Err(format!("strip: verdict {:#x}", ran.verdict));
    }
    if ran.packet.len() != asked.frame.len() {
        return Err("strip: another length".to_owned());
    }
    let Some(ports) = asked.ports.as_ref().filter(|_| asked.is_plain) else {
        return Ok(false);
    };
    // Of sockets it is the port that counts, whatever source it is about.
    let port = ports.dest.1;
    let is_wanted = is_within(FLOW, port)
        || (ports.protocol == TCP && (is_within(PAYLOAD, port) || is_within(DAF, port)));
    let is_changed = ran.packet != asked.frame;
    if is_wanted {
        return match is_changed {
            true => Err("strip: a port wants the token".to_owned()),
            false => Ok(false),
        };
    }
    match has_token(&ran.packet[14..]) {
        true => Err(format!("strip: a token is left in {:02x?}", ran.packet)),
        false => Ok(is_changed),
    }
}

/// The tables of the test, gone when it ends.
struct Lab(String);

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = token::detach(Path::new(ROOT), &self.0);
        let _ = std::fs::remove_dir(Path::new(ROOT).join(&self.0));
    }
}

#[test]
fn root_no_random_packet_gets_by_a_verifier() {
    let lab = Lab(format!("wt-random-{}", std::process::id()));
    let cgroup = CgroupAt::open(None).unwrap();
    let (tokens, loaded) = Tokens::load(Path::new(ROOT), &lab.0, &cgroup, None).unwrap();
    tokens.put_clock(token::clock_offset()).unwrap();
    let known = Known::new();
    tokens.put_policy(&known.policy()).unwrap();
    let [forward, by_xdp, strip_in] = [
        GatewayKind::Forward,
        GatewayKind::ForwardXdp,
        GatewayKind::StripIn,
    ]
    .map(|kind| loaded.gateway(kind).unwrap());
    let of_sockets = loaded.programs().find(|(name, _)| *name == "verify");
    let of_sockets = of_sockets.unwrap().1;
    let judge = |name, program, passes, is_forwarded| Judge {
        name,
        program,
        passes,
        is_forwarded,
        proved: 0,
        refused: 0,
    };
    let mut judges = [
        judge("match", loaded.matcher(), MATCHES, false),
        judge("gateway on tc", forward.programs()[0], TC_PASSES, true),
        judge("gateway on XDP", by_xdp.programs()[0], XDP_PASSES, true),
    ];
    let networks = Networks {
        from: FROM.map(|text| text.parse().unwrap()),
        to: TO.map(|text| text.parse().unwrap()),
    };
    let reference = Reference {
        known: &known,
        verifier: Verifier {
            keys: vec![(known.id, &known.secret)],
            identities: vec![known.identity],
        },
    };
    // Both programs of the gateway have one table.
    let (mut of_match, mut of_gateway) = (Flows::default(), Flows::default());
    let mut datagrams = Datagrams::new();
    let (packets, seed) = (
        number("WEIR_RANDOM_PACKETS").unwrap_or(PACKETS),
        number("WEIR_RANDOM_SEED").unwrap_or(0x5eed),
    );
    let mut random = Random(seed | 1);
    let (mut pool, mut of_epoch): (Vec<Vec<u8>>, _) = (Vec::new(), 0);
    let (mut stripped, began) = (0_u64, Instant::now());
    for number in 0..packets {
        if of_epoch != epoch() {
            of_epoch = epoch();
            tokens.put_clock(token::clock_offset()).unwrap();
            pool = (0..POOL)
                .map(|_| frame(&known.packet(&mut random, of_epoch)))
                .collect();
        }
        let frame = match random.below(10) {
            0 => {
                let mut frame = pool[random.below(POOL)].clone();
                change(&mut frame, &mut random);
                frame
            }
            _ => unsigned(&mut random),
        };
        let asked = Asked::of(&frame);
        for judge in &mut judges {
            let flows = match judge.is_forwarded {
                true => &mut of_gateway,
                false => &mut of_match,
            };
            let said = judge.run(&asked, &networks, &reference, flows, &mut datagrams);
            if let Err(why) = said {
                panic!("seed {seed}, packet {number}: {why}: {frame:02x?}");
            }
        }
        match strip(strip_in.programs()[0], &asked) {
            Ok(is_changed) => stripped += u64::from(is_changed),
            Err(why) => panic!("seed {seed}, packet {number}: {why}: {frame:02x?}"),
        }
        // It is of no socket here: it lets it pass, whatever it is.
        if let Ok(ran) = prog_test_run::packet(of_sockets, &frame, 1) {
            assert_eq!(ran.verdict, 1, "seed {seed}, packet {number}: {frame:02x?}");
        }
    }
    for Judge {
        name,
        proved,
        refused,
        ..
    } in &judges
    {
        println!("{name}: {proved} proved themselves, {refused} did not");
        assert!(*proved > packets / 200, "{name}: {proved}");
        assert!(*refused > packets / 10, "{name}: {refused}");
    }
    println!(
        "{packets} packets through 5 programs in {:.1?}, {stripped} overwritten",
        began.elapsed()
    );
    assert!(stripped > 0);
}
