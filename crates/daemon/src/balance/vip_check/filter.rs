//! The filter of the packet sockets that ask: classic BPF of few instructions, whose jumps have
//! names in place of counted distances.

use std::ops::RangeInclusive;

use socket2::SockFilter;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const TCP: u32 = 6;
const UDP: u32 = 17;
const ICMP: u32 = 1;
const ICMPV6: u32 = 58;
/// Type and code of "port unreachable" (RFC 792, RFC 4443).
const UNREACHABLE: u32 = 0x0303;
const UNREACHABLE_V6: u32 = 0x0104;
/// linux/filter.h
const LOAD_BYTE: u16 = 0x30;
const LOAD_INDEX: u16 = 0x01;
const LOAD_HALF_BEHIND: u16 = 0x48;
const LOAD_BYTE_BEHIND: u16 = 0x50;
/// Four times the lower half of a byte: the length of an IPv4 header.
const LOAD_HEADER_LENGTH: u16 = 0xb1;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_ABOVE: u16 = 0x25;
const JUMP_IF_NOT_BELOW: u16 = 0x35;
const JUMP_IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;
const ACK: u32 = 0x10;
const SYN_OR_RST: u32 = 0x06;

/// A place in the filter to which a jump goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    /// The instruction behind the jump.
    Next,
    Datagram,
    Error,
    Take,
    Leave,
}

/// A line of the filter.
enum Line {
    At(Label),
    Do {
        code: u16,
        value: u32,
    },
    Jump {
        code: u16,
        value: u32,
        then: Label,
        otherwise: Label,
    },
}

/// Puts distances in the place of labels.
fn assemble(lines: &[Line]) -> Vec<SockFilter> {
    let mut places = Vec::new();
    let mut count = 0;
    for line in lines {
        match line {
            Line::At(label) => places.push((*label, count)),
            _ => count += 1,
        }
    }
    let mut filter = Vec::new();
    for line in lines {
        let behind = filter.len() + 1;
        let distance = |to: Label| {
            let mut places = places.iter();
            let place = places.find_map(|(label, place)| (*label == to).then_some(*place));
            let place = place.unwrap_or(behind);
            (place - behind) as u8
        };
        filter.push(match line {
            Line::At(_) => continue,
            Line::Do { code, value } => SockFilter::new(*code, 0, 0, *value),
            Line::Jump {
                code,
                value,
                then,
                otherwise,
            } => SockFilter::new(*code, distance(*then), distance(*otherwise), *value),
        });
    }
    filter
}

/// The protocol of Ethernet frames with a packet of this family.
pub(super) fn ethertype(is_ipv6: bool) -> u16 {
    match is_ipv6 {
        true => ETHERTYPE_IPV6,
        false => ETHERTYPE_IPV4,
    }
}

/// Takes nothing: of a socket that only sends.
pub(super) fn nothing() -> Vec<SockFilter> {
    vec![SockFilter::new(RETURN, 0, 0, 0)]
}

/// Takes the first `length` bytes of what may answer one of the `ports` that ask, and nothing
/// else: TCP segments which acknowledge a SYN or refuse it, datagrams, and "port unreachable".
/// The kernel asks it of each packet of the family that reaches this host's stack by the
/// interface, or by any. `l2`: bytes of the link-layer header that the socket shows.
pub(super) fn filter(
    is_ipv6: bool,
    l2: usize,
    ports: RangeInclusive<u16>,
    length: usize,
) -> Vec<SockFilter> {
    use Label::{Datagram, Error, Leave, Next, Take};
    let l3 = l2 as u32;
    let (header_length, protocol, icmp, unreachable) = match is_ipv6 {
        false => ((LOAD_HEADER_LENGTH, l3), l3 + 9, ICMP, UNREACHABLE),
        true => ((LOAD_INDEX, 40), l3 + 6, ICMPV6, UNREACHABLE_V6),
    };
    let (first, last) = (u32::from(*ports.start()), u32::from(*ports.end()));
    let run = |code, value| Line::Do { code, value };
    let jump = |code, value, then, otherwise| Line::Jump {
        code,
        value,
        then,
        otherwise,
    };
    assemble(&[
        run(header_length.0, header_length.1),
        run(LOAD_BYTE, protocol),
        jump(JUMP_IF_EQUAL, TCP, Next, Datagram),
        run(LOAD_HALF_BEHIND, l3 + 2),
        jump(JUMP_IF_NOT_BELOW, first, Next, Leave),
        jump(JUMP_IF_ABOVE, last, Leave, Next),
        run(LOAD_BYTE_BEHIND, l3 + 13),
        jump(JUMP_IF_ANY_BIT, ACK, Next, Leave),
        jump(JUMP_IF_ANY_BIT, SYN_OR_RST, Take, Leave),
        Line::At(Datagram),
        jump(JUMP_IF_EQUAL, UDP, Next, Error),
        run(LOAD_HALF_BEHIND, l3 + 2),
        jump(JUMP_IF_NOT_BELOW, first, Next, Leave),
        jump(JUMP_IF_ABOVE, last, Leave, Take),
        Line::At(Error),
        jump(JUMP_IF_EQUAL, icmp, Next, Leave),
        run(LOAD_HALF_BEHIND, l3),
        jump(JUMP_IF_EQUAL, unreachable, Take, Leave),
        Line::At(Take),
        run(RETURN, length as u32),
        Line::At(Leave),
        run(RETURN, 0),
    ])
}

#[cfg(test)]
mod tests {
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
    };
    use socket2::Socket;
    use weir_core::balance::probe::ETHERNET;

    use super::*;

    /// A packet with a transport header behind so long a link-layer header: of IPv4 behind as
    /// many words of options.
    fn frame(is_ipv6: bool, l2: usize, options: u8, protocol: u8, transport: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; l2];
        let start = frame.len();
        match is_ipv6 {
            false => {
                frame.resize(start + 20 + 4 * usize::from(options), 0);
                frame[start] = 0x45 + options;
                frame[start + 9] = protocol;
            }
            true => {
                frame.resize(start + 40, 0);
                frame[start] = 0x60;
                frame[start + 6] = protocol;
            }
        }
        frame.extend(transport);
        frame
    }

    /// A segment to this port with these flags.
    fn segment(port: u16, flags: u8) -> Vec<u8> {
        let mut segment = vec![0; 20];
        segment[2..4].copy_from_slice(&port.to_be_bytes());
        segment[13] = flags;
        segment
    }

    fn icmp(kind: u8, code: u8) -> Vec<u8> {
        let mut message = vec![0; 36];
        message[..2].copy_from_slice(&[kind, code]);
        message
    }

    /// The kernel runs the filter, on a pair of sockets that needs no right.
    #[test]
    fn answers_are_taken_and_all_else_is_left() {
        let families = [(false, 0), (false, 3), (true, 0)];
        let all = [ETHERNET, 0].map(|l2| families.map(|(is_ipv6, options)| (l2, is_ipv6, options)));
        for (l2, is_ipv6, options) in all.into_iter().flatten() {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (ask, answer) =
                socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap();
            let ask = Socket::from(ask);
            ask.attach_filter(&filter(is_ipv6, l2, 61_000..=64_999, 128))
                .unwrap();
            let (icmp_protocol, unreachable, other) = match is_ipv6 {
                false => (1, icmp(3, 3), icmp(3, 1)),
                true => (58, icmp(1, 4), icmp(1, 3)),
            };
            let datagram = |port: u16| segment(port, 0)[..8].to_vec();
            let cases = [
                (true, 6, segment(61_000, 0x12)),
                (true, 6, segment(64_999, 0x14)),
                (false, 6, segment(61_000, 0x10)),
                (false, 6, segment(61_000, 0x02)),
                (false, 6, segment(60_999, 0x12)),
                (false, 6, segment(65_000, 0x12)),
                (true, 17, datagram(61_000)),
                (true, 17, datagram(64_999)),
                (false, 17, datagram(60_999)),
                (false, 17, datagram(65_000)),
                (true, icmp_protocol, unreachable),
                (false, icmp_protocol, other),
                (false, icmp_protocol, icmp(0, 0)),
                (false, 47, segment(61_000, 0x12)),
            ];
            for (n, (is_taken, protocol, transport)) in cases.into_iter().enumerate() {
                let frame = frame(is_ipv6, l2, options, protocol, &transport);
                // A filter that leaves a packet refuses it to a sender on this host.
                let _ = send(&answer, &frame, SendFlags::empty());
                let mut buffer = [0; 256];
                let got = recv(&ask, &mut buffer, RecvFlags::empty());
                assert_eq!(got.is_ok(), is_taken, "{is_ipv6} {l2} {options} {n}");
            }
        }
    }
}
