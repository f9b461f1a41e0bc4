//! Random packets: most of them valid and a pool's, or nearly so.

use std::net::IpAddr;

use weir_bpf::attachment::Hook;
use weir_core::Protocol;
use weir_testkit::packet::{Packet, checksum, flag};

use crate::{
    Random,
    pools::{Config, HERE, VIPS, VLAN},
};

const CLIENTS: [[&str; 8]; 2] = [
    [
        "203.0.113.7",
        "203.0.113.8",
        "203.0.113.200",
        "198.51.100.1",
        "198.51.100.2",
        "10.0.0.9",
        "127.0.0.5",
        "0.1.2.3",
    ],
    [
        "2001:db8:c::7",
        "2001:db8:c::8",
        "2001:db8:d::9",
        "2001:db8:d::a",
        "2001:db8:e::1",
        "fd00::5",
        "fe80::5",
        "::5",
    ],
];
const PORTS: [u16; 6] = [80, 443, 53, 22, 0, 65535];
const ROUTERS: [&str; 2] = ["198.51.100.254", "2001:db8:f::1"];

pub(crate) fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A flow of a client, or to no service.
#[derive(Clone)]
struct End {
    family: usize,
    client: IpAddr,
    vip: IpAddr,
    from: u16,
    protocol: Protocol,
    port: u16,
}

impl End {
    fn generated(random: &mut Random, config: &Config) -> Self {
        let family = random.below(2);
        // The last three are seldom: nobody is to answer them.
        let few = if random.one_in(25) { 8 } else { 4 };
        let of_family = |addr: IpAddr| addr.is_ipv4() == (family == 0);
        let services: Vec<_> = config.pools.services.iter().collect();
        let services: Vec<_> = services.into_iter().filter(|s| of_family(s.addr)).collect();
        let mut end = Self {
            family,
            client: addr(CLIENTS[family][random.below(few)]),
            vip: addr(random.pick(&VIPS[family])),
            from: 4000 + random.below(3) as u16,
            protocol: random.pick(&[Protocol::Tcp, Protocol::Udp]),
            port: random.pick(&PORTS),
        };
        if !services.is_empty() && !random.one_in(25) {
            let service = random.pick(&services);
            (end.vip, end.protocol) = (service.addr, service.protocol);
            // Of all ports also those that others name.
            end.port = service.port.unwrap_or_else(|| random.pick(&PORTS));
        }
        if random.one_in(40) {
            end.vip = addr(["192.0.2.99", "2001:db8::99"][family]);
        }
        end
    }

    /// The beginning of a packet that the flow's real sends.
    fn answer(&self, random: &mut Random) -> Vec<u8> {
        let mut packet = Packet::eth().ip(self.vip, self.client);
        if random.one_in(4) {
            packet = packet.fragment(random.pick(&[0, 0, 0, 9]), random.one_in(2));
        }
        let packet = match self.protocol {
            Protocol::Tcp => packet.tcp(self.port, self.from),
            _ => packet.udp(self.port, self.from),
        };
        let len = random.pick(&[0, 20, 700, 1300]);
        let mut answer = packet.payload_len(len).build().split_off(14);
        if random.one_in(6) {
            answer.truncate(random.below(answer.len().min(80) + 1));
        }
        answer
    }
}

/// Payload of a datagram: a QUIC packet's beginning.
fn quic(random: &mut Random) -> Vec<u8> {
    let flags = random.pick(&[0x43, 0x43, 0x43, 0xc3, 0x00]);
    let config = random.pick(&[0x0c, 0x0c, 0x0c, 0x2c, 0xec, 0x00]);
    let id: [u8; 2] = random.pick(&[[10, 1], [10, 2], [10, 3], [0, 0], [10, 9]]);
    let mut bytes = vec![flags, config, id[0], id[1]];
    let len = random.pick(&[0, 1, 3, 9, 10, 11, 40, 40, 40, 600, 1400]);
    bytes.resize(len, if random.one_in(2) { 0 } else { 0x5a });
    bytes
}

fn transport(random: &mut Random, packet: Packet, end: &End) -> Packet {
    let packet = match end.protocol {
        Protocol::Tcp => {
            let flags = [
                flag::SYN,
                flag::SYN | flag::ACK,
                flag::ACK,
                flag::PSH | flag::ACK,
                flag::FIN | flag::ACK,
                flag::RST,
            ];
            packet
                .tcp(end.from, end.port)
                .tcp_flags(random.pick(&flags))
        }
        _ => packet.udp(end.from, end.port),
    };
    if end.protocol == Protocol::Udp && random.one_in(2) {
        return packet.payload(&quic(random));
    }
    let near = random.pick(&[580, 1240, 1360, 1400, 1460]);
    let len = match random.below(4) {
        0 => 0,
        1 => random.below(40),
        // Around what tunnels take.
        2 => near - 60 + random.below(80),
        _ => random.below(1460),
    };
    packet.payload_len(len)
}

/// A maker of random packets, which remembers what later ones follow.
#[derive(Default)]
pub(crate) struct Packets {
    /// The flow and identification of the last first fragment: others follow it.
    first: Option<(End, u16)>,
}

impl Packets {
    /// A frame, and the hook by which it comes in.
    pub(crate) fn next(&mut self, random: &mut Random, config: &Config) -> (Hook, Vec<u8>) {
        loop {
            // BPF_PROG_RUN makes no skb whose tag was taken off.
            let hook = match has_vlan(config) && !random.one_in(6) {
                true => Hook::Xdp,
                false => random.pick(&[Hook::Xdp, Hook::Tcx]),
            };
            let kind = random.below(16);
            let (mut end, mut id) = (End::generated(random, config), random.below(6) as u16);
            if kind == LATER
                && let Some(first) = self.first.take()
            {
                (end, id) = first;
            }
            let frame = frame(random, config, hook, &end, kind, id);
            if kind == FIRST {
                self.first = Some((end, id));
            }
            if runs_on(hook, &frame) {
                return (hook, frame);
            }
        }
    }
}

/// Kinds of packets; others are errors, or whole.
const FIRST: usize = 0;
const LATER: usize = 1;

fn frame(
    random: &mut Random,
    config: &Config,
    hook: Hook,
    end: &End,
    kind: usize,
    id: u16,
) -> Vec<u8> {
    let dest = match random.below(60) {
        0 => [2, 0x77, 0x6c, 0xff, 0, 3],
        1 => [0xff; 6],
        2 => [0x33, 0x33, 0, 0, 0, 1],
        _ => HERE,
    };
    let mut packet = Packet::eth_between([2, 0x77, 0x6c, 0xff, 0, 1], dest);
    let has_vlan = config
        .pools
        .reals
        .iter()
        .flatten()
        .any(|real| real.vlan != 0);
    let tags = match hook {
        Hook::Xdp if has_vlan => random.pick(&[1, 1, 1, 1, 1, 1, 0, 2]),
        Hook::Xdp => random.pick(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 2]),
        _ => usize::from(random.one_in(40)),
    };
    for _ in 0..tags {
        let tci = match has_vlan {
            true => random.pick(&[VLAN, VLAN, VLAN, VLAN | 0xa000, 0, 11]),
            false => random.pick(&[0, 0x6000, 11]),
        };
        packet = packet.tag(if random.one_in(20) { 0x88a8 } else { 0x8100 }, tci);
    }
    let ttl = match random.below(12) {
        0 => random.pick(&[0, 1]),
        1 => 2,
        2 => 255,
        _ => 64,
    };
    packet = match kind {
        // An error.
        2..5 => {
            let kinds = [[3, 3, 11, 12, 4, 8], [1, 2, 2, 3, 4, 128]][end.family];
            let kind = random.pick(&kinds);
            let answer = end.answer(random);
            let to = packet.ip(addr(ROUTERS[end.family]), end.vip).ttl(ttl);
            let to = match end.family {
                0 => to.icmp(kind, 4),
                _ => to.icmp6(kind, 0),
            };
            to.payload(&answer)
        }
        FIRST => {
            let part = packet.ip(end.client, end.vip).ttl(ttl).id(id);
            let part = part.fragment(0, !random.one_in(4));
            transport(random, part, end)
        }
        LATER => {
            let part = packet.ip(end.client, end.vip).ttl(ttl).id(id);
            let part = part.fragment(1 + random.below(90) as u16, random.one_in(2));
            let number = end.protocol.number();
            let number = if random.one_in(12) { 1 } else { number };
            part.protocol(number)
                .payload_len(random.pick(&[8, 100, 560, 1380, 1440]))
        }
        _ => {
            packet = packet.ip(end.client, end.vip).ttl(ttl);
            if random.one_in(40) {
                packet = match end.family {
                    0 => packet.options(&vec![1; 4 * (1 + random.below(10))]),
                    _ if random.one_in(2) => packet.hop_by_hop(),
                    _ => packet.destination(),
                };
            }
            if random.one_in(30) {
                packet = packet.length(random.below(1500) as u16);
            }
            if random.one_in(40) {
                let number = random.pick(&[1, 58, 132, 50, 4, 41, 2]);
                packet.protocol(number).payload_len(40)
            } else {
                transport(random, packet, end)
            }
        }
    };
    if random.one_in(12) {
        packet = packet.bad_checksum();
    }
    let mut frame = packet.build();
    if end.family == 1 {
        let at = 14 + 4 * tags + 40;
        if frame.get(at - 34) == Some(&44) && frame.len() > at + 8 {
            frame[at + 7] = id as u8;
        }
    }
    if random.one_in(4) {
        set_class(
            &mut frame,
            14 + 4 * tags,
            random.pick(&[0x03, 0xb9, 0x20, 0xff]),
        );
    }
    if frame.len() < 60 && random.one_in(2) {
        // What a card pads with is whatever was there.
        let with = random.pick(&[0, 0x0a, 0xee]);
        frame.resize(60, with);
    }
    if random.one_in(20) {
        frame.truncate(15 + random.below(frame.len() - 14));
    }
    if random.one_in(10) {
        // Of the headers, mostly.
        for _ in 0..1 + random.below(2) {
            let at = 12 + random.below(frame.len().min(100) - 12);
            frame[at] ^= 1 << random.below(8);
        }
    }
    frame
}

/// Sets the traffic class, with ECN, of the IP header there.
fn set_class(frame: &mut [u8], at: usize, class: u8) {
    let Some(ip) = frame.get_mut(at..).filter(|ip| ip.len() >= 40) else {
        return;
    };
    if ip[0] >> 4 == 6 {
        ip[0] = 0x60 | class >> 4;
        ip[1] = class << 4;
        return;
    }
    ip[1] = class;
    ip[10..12].fill(0);
    let head = usize::from(ip[0] & 0xf) * 4;
    let sum = checksum(&ip[..head.min(40)]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn has_vlan(config: &Config) -> bool {
    let mut reals = config.pools.reals.iter().flatten();
    reals.any(|real| real.vlan != 0)
}

/// BPF_PROG_RUN of tc programs refuses an skb whose IP header is not whole.
fn runs_on(hook: Hook, frame: &[u8]) -> bool {
    let least = match frame[12..14] {
        [0x08, 0x00] => 34,
        [0x86, 0xdd] => 54,
        _ => 15,
    };
    hook != Hook::Tcx || frame.len() >= least
}
