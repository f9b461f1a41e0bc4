//! Frames from anybody to a gateway: what `[token.forward]` lets through, on tc and on XDP, and
//! what `[token.strip]` overwrites, by BPF_PROG_RUN, against the reference that reads captures.
//! Nobody here has a key. Without root only the reference reads them.
#![no_main]

use std::{net::IpAddr, path::Path};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use weir_bpf::{
    identity::CgroupAt,
    prog_test_run,
    token::{
        Forwarded, GatewayKind, GatewayProgram, Requirement, Scope, TokenPolicy, Tokens,
        clock_offset, detach,
    },
};
use weir_core::{Prefix, checksum::checksum};
use weir_token::{Datagram, segment::SegmentToken, verify::Segment};

const ROOT: &str = "/sys/fs/bpf/weir";
const TO: [&str; 2] = ["198.51.100.0/24", "2001:db8:9::/48"];
/// Ports that want a token of the connection or datagram, and a token in each segment.
const FLOW: (u16, u16) = (8080, 8083);
const PAYLOAD: (u16, u16) = (8090, 8091);
const TC_PASSES: u32 = u32::MAX;
const XDP_PASSES: u32 = 2;
/// What the kernel makes no packet of.
const SHORTEST: usize = 14 + 40;
/// One page has room for it, with what the kernel puts around it.
const LONGEST: usize = 2048;
const ETHERTYPE: [[u8; 2]; 2] = [[8, 0], [0x86, 0xdd]];

#[derive(Debug, Arbitrary)]
struct Input {
    is_v6: bool,
    tags: Vec<bool>,
    /// Extension headers: which, and what they have.
    chain: Vec<(u8, Vec<u8>)>,
    options: Vec<u8>,
    is_udp: bool,
    port: u8,
    flags: u8,
    transport_options: Vec<u8>,
    payload: Vec<u8>,
    changes: Vec<(u16, u8)>,
    cut: u8,
    /// Any frame in place of all that.
    any: Option<Vec<u8>>,
}

/// Options with a token among them, where these bytes begin with a mark.
fn options(bytes: &[u8], kind: u8, is_ipv6: bool) -> Vec<u8> {
    let mut all = Vec::new();
    let mut rest = bytes;
    while let [first, behind @ ..] = rest {
        if first % 4 == 3 {
            all.extend([kind, if is_ipv6 { 18 } else { 20 }, 0x77, 0x65]);
            all.extend([1; 16]);
        } else {
            all.push(*first);
        }
        rest = behind;
    }
    all
}

impl Input {
    fn frame(&self) -> Vec<u8> {
        if let Some(any) = &self.any {
            return any[..any.len().min(LONGEST)].to_vec();
        }
        let mut frame = vec![2; 12];
        for is_outer in self.tags.iter().take(6) {
            frame.extend(if *is_outer { [0x88, 0xa8] } else { [0x81, 0] });
            frame.extend([0, 7]);
        }
        frame.extend(ETHERTYPE[usize::from(self.is_v6)]);
        let port = [8080, 8083, 8084, 8090, 22][usize::from(self.port) % 5_usize];
        let mut transport = [40_000_u16.to_be_bytes(), u16::to_be_bytes(port)].concat();
        if self.is_udp {
            transport.extend(((8 + self.payload.len()) as u16).to_be_bytes());
            transport.extend([0, 0]);
        } else {
            let mut all = options(&self.transport_options, 254, false);
            all.resize(all.len().next_multiple_of(4).min(40), 0);
            let words = 5 + all.len() as u8 / 4;
            transport.extend([
                0,
                0,
                0,
                7,
                0,
                0,
                0,
                0,
                words << 4,
                self.flags,
                9,
                9,
                0,
                0,
                0,
                0,
            ]);
            transport.extend(all);
        }
        transport.extend(&self.payload);
        let protocol = if self.is_udp { 17 } else { 6 };
        let mut ip = Vec::new();
        if self.is_v6 {
            let kinds: Vec<u8> = self
                .chain
                .iter()
                .take(8)
                .map(|(kind, _)| kind_of(*kind))
                .collect();
            let mut headers = Vec::new();
            for (at, (_, bytes)) in self.chain.iter().take(8).enumerate() {
                let mut header = vec![*kinds.get(at + 1).unwrap_or(&protocol), 0];
                match kinds[at] {
                    44 => {
                        header.extend([0, bytes.first().copied().unwrap_or(0) & 0xf9, 0, 0, 0, 1])
                    }
                    _ => {
                        header.extend(options(bytes, 0x1e, true));
                        header.resize(header.len().next_multiple_of(8).min(2048), 0);
                        header[1] = (header.len() / 8 - 1) as u8;
                    }
                }
                headers.extend(header);
            }
            let length = ((headers.len() + transport.len()) as u16).to_be_bytes();
            let first = *kinds.first().unwrap_or(&protocol);
            ip.extend([0x60, 0, 0, 0, length[0], length[1], first, 64]);
            ip.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            ip.extend([0x20, 1, 0xd, 0xb8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
            ip.extend(headers);
        } else {
            let mut all = options(&self.options, 30, false);
            all.resize(all.len().next_multiple_of(4).min(40), 0);
            let length = ((20 + all.len() + transport.len()) as u16).to_be_bytes();
            ip.extend([
                0x45 + all.len() as u8 / 4,
                0,
                length[0],
                length[1],
                0,
                0,
                0,
                0,
                64,
            ]);
            ip.extend([protocol, 0, 0, 192, 0, 2, 1, 198, 51, 100, 9]);
            ip.extend(all);
        }
        frame.extend(ip);
        frame.extend(transport);
        for (at, value) in &self.changes {
            let at = usize::from(*at) % frame.len();
            frame[at] ^= value;
        }
        frame.truncate(frame.len() - usize::from(self.cut) % frame.len());
        frame.truncate(LONGEST);
        frame
    }
}

fn kind_of(number: u8) -> u8 {
    [0, 43, 44, 60, 60, 60][usize::from(number) % 6]
}

/// The programs of a gateway in the kernel, and their tables.
struct Gateway {
    on_tc: GatewayProgram,
    on_xdp: GatewayProgram,
    strip: GatewayProgram,
}

/// `None`: the kernel refuses them, to others than root for instance.
fn load() -> Option<Gateway> {
    let instance = format!("fuzz-{}", std::process::id());
    let loaded = CgroupAt::open(None)
        .and_then(|cgroup| Tokens::load(Path::new(ROOT), &instance, &cgroup, None))
        .and_then(|(tokens, loaded)| {
            tokens.put_clock(clock_offset())?;
            tokens.put_policy(&policy())?;
            Ok(Gateway {
                on_tc: loaded.gateway(GatewayKind::Forward)?,
                on_xdp: loaded.gateway(GatewayKind::ForwardXdp)?,
                strip: loaded.gateway(GatewayKind::StripIn)?,
            })
        });
    // The programs hold their tables.
    let _ = detach(Path::new(ROOT), &instance);
    let _ = std::fs::remove_dir(Path::new(ROOT).join(&instance));
    loaded
        .inspect_err(|error| eprintln!("without the kernel's part: {error}"))
        .ok()
}

fn policy() -> TokenPolicy {
    let to = TO.map(|text| text.parse::<Prefix>().expect("a network"));
    let requirement = |ports, udp_ports: &[_], scope| Requirement {
        ports: vec![ports],
        udp_ports: udp_ports.to_vec(),
        networks: None,
        identities: vec![[1; 16]],
        drops: true,
        scope,
        forwarded: Some(Forwarded {
            to: to.to_vec(),
            takes_up: 0,
        }),
    };
    TokenPolicy {
        requirements: vec![
            requirement(FLOW, &[FLOW], Scope::Flow),
            requirement(PAYLOAD, &[], Scope::Payload),
        ],
        keys: vec![1],
        ..TokenPolicy::default()
    }
}

/// The IP packet of a frame, behind the tags that are gone through, if it is whole: of the
/// family that the frame names, and as long as it says.
fn whole_packet(frame: &[u8]) -> Option<&[u8]> {
    let mut at = 12;
    for _ in 0..4 {
        if !matches!(frame.get(at..at + 2)?, [0x81, 0] | [0x88, 0xa8]) {
            break;
        }
        at += 4;
    }
    let kind = frame.get(at..at + 2)?;
    let packet = &frame[at + 2..];
    let number = |at: usize| {
        Some(usize::from(u16::from_be_bytes(
            *packet.get(at..)?.first_chunk()?,
        )))
    };
    let stated = match packet.first()? >> 4 {
        4 if kind == ETHERTYPE[0] => number(2)?,
        6 if kind == ETHERTYPE[1] => number(4)? + 40,
        _ => return None,
    };
    (stated == packet.len()).then_some(packet)
}

/// What the reference says of a packet: whether a port that it goes to wants a token, and
/// whether it has one.
fn read(packet: &[u8]) -> Option<(bool, bool)> {
    let is_within = |ports: (u16, u16), port| (ports.0..=ports.1).contains(&port);
    let is_protected = |addr: IpAddr| {
        let networks = TO.map(|text| text.parse::<Prefix>().expect("a network"));
        networks.iter().any(|prefix| prefix.contains(addr))
    };
    if let Some(datagram) = Datagram::read(packet) {
        let (addr, port) = datagram.dest;
        let wants = is_protected(addr) && is_within(FLOW, port);
        return Some((wants, matches!(datagram.token, Ok(Some(_)))));
    }
    let segment = Segment::read(packet)?;
    let (addr, port) = segment.dest;
    let wants = is_protected(addr) && (is_within(FLOW, port) || is_within(PAYLOAD, port));
    let options = segment.options.unwrap_or_default();
    let has = matches!(weir_token::find(options), Ok(Some(_)))
        || matches!(SegmentToken::find(options), Ok(Some(_)))
        || matches!(segment.ip_token, Ok(Some(_)));
    Some((wants, has))
}

/// Whether both packets have the same sum where an IPv4 header has one, and a TCP segment.
fn have_equal_sums(before: &[u8], after: &[u8]) -> bool {
    let sum = |packet: &[u8]| checksum(&[packet]) % 0xffff;
    // The addresses are as they were: so the whole may be summed.
    sum(before) == sum(after)
}

fn run(gateway: &Gateway, frame: &[u8]) {
    let one = |program: &GatewayProgram| prog_test_run::packet(program.programs()[0], frame, 1);
    let packet = whole_packet(frame);
    let read = packet.and_then(read);
    let on_tc = one(&gateway.on_tc).map(|ran| ran.verdict == TC_PASSES);
    let on_xdp = one(&gateway.on_xdp).map(|ran| ran.verdict == XDP_PASSES);
    match (on_tc, on_xdp) {
        (Ok(on_tc), Ok(on_xdp)) => {
            assert_eq!(on_tc, on_xdp, "tc and XDP: {frame:02x?}");
            if let Some((wants, _)) = read {
                assert_eq!(on_tc, !wants, "passes {on_tc}: {frame:02x?}");
            }
        }
        _ => assert!(frame.len() < SHORTEST, "not run: {frame:02x?}"),
    }
    let Ok(ran) = one(&gateway.strip) else {
        assert!(frame.len() < SHORTEST, "not run: {frame:02x?}");
        return;
    };
    assert_eq!(ran.packet.len(), frame.len());
    let (Some(packet), TC_PASSES) = (packet, ran.verdict) else {
        return;
    };
    let after = &ran.packet[frame.len() - packet.len()..];
    if let (Some((wants, _)), Some((_, has))) = (read, self::read(after)) {
        assert!(wants || !has, "a token is left: {:02x?}", ran.packet);
    }
    if packet[0] >> 4 == 4 {
        assert!(have_equal_sums(packet, after), "{frame:02x?}");
    }
}

fuzz_target!(|input: Input| {
    // It ends with the thread that has loaded it.
    thread_local!(static GATEWAY: Option<Gateway> = load());
    let frame = input.frame();
    if let Some(packet) = whole_packet(&frame) {
        let _ = read(packet);
    }
    GATEWAY.with(|gateway| {
        if let Some(gateway) = gateway {
            run(gateway, &frame);
        }
    });
});
