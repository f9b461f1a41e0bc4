//! The packets of a run: right ones, nearly right ones, and any others.

use super::*;

/// The keys of a run.
pub struct Known {
    pub secret: Secret,
    pub id: KeyId,
    pub identity: Digest,
    pub key: IdentityKey,
    pub daf: DafKey,
}

impl Known {
    pub fn new() -> Self {
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

    /// Every scope, of this host's ports and of those of the hosts behind it; in front of those
    /// about forwarded packets one that only logs, about a port to which nothing goes: what
    /// cannot be judged is not its.
    pub fn policy(&self) -> TokenPolicy {
        let prefixes = |texts: &[&str]| -> Vec<Prefix> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let identity = *self.identity.0.first_chunk().unwrap();
        let states = self.daf.states();
        let mut requirements = Vec::new();
        for is_forwarded in [false, true] {
            if is_forwarded {
                requirements.push(Requirement {
                    ports: vec![(LOGGED, LOGGED)],
                    udp_ports: vec![(LOGGED, LOGGED)],
                    networks: None,
                    identities: vec![identity],
                    drops: false,
                    scope: Scope::Flow,
                    forwarded: Some(Forwarded {
                        to: prefixes(&TO),
                        takes_up: 0,
                    }),
                });
            }
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

    pub fn token(&self, epoch: u64, mac: [u8; 8]) -> TokenOption {
        TokenOption {
            version: VERSION,
            key_id: self.id.number(),
            epoch: epoch as u16,
            tag: *self.identity.0.first_chunk().unwrap(),
            mac,
        }
    }

    /// A packet that is right, or would be at another time or in another order.
    pub fn packet(&self, random: &mut Random, now: u64) -> Vec<u8> {
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

    pub fn syn_token(
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
pub struct Place {
    pub is_in_tcp: bool,
    pub is_in_ip: bool,
    /// IPv6 headers of options in front of it.
    pub chain: usize,
    /// Options of IPv4, or the IPv6 header with the token.
    pub options: Vec<u8>,
}

impl Place {
    pub fn of(random: &mut Random) -> Self {
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
    pub fn put(
        &mut self,
        protocol: u8,
        is_v6: bool,
        before: &[u8],
        token: &TokenOption,
    ) -> Vec<u8> {
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

pub fn tcp(source: u16, dest: u16, number: u32, flags: u8, options: &[u8], data: &[u8]) -> Vec<u8> {
    let words = (20 + options.len()) as u8 / 4;
    let mut bytes = [source.to_be_bytes(), dest.to_be_bytes()].concat();
    bytes.extend(number.to_be_bytes());
    bytes.extend([0, 0, 0, 0, words << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    [&bytes, options, data].concat()
}

/// An IP packet, as long as it says.
pub fn ip(source: IpAddr, dest: IpAddr, protocol: u8, place: &Place, transport: &[u8]) -> Vec<u8> {
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

pub fn frame(packet: &[u8]) -> Vec<u8> {
    let kind: [u8; 2] = match packet.first().map(|byte| byte >> 4) {
        Some(6) => [0x86, 0xdd],
        _ => [8, 0],
    };
    [&[0; 12][..], &kind, packet].concat()
}

/// Changes a right packet a little, or not at all.
pub fn change(frame: &mut Vec<u8>, random: &mut Random) {
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

pub fn set_length(frame: &mut [u8]) {
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
pub fn unsigned(random: &mut Random) -> Vec<u8> {
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
