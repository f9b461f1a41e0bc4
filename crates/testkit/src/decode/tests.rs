//! Frames of every form, and what they are.

use super::*;
use crate::packet::{Packet, proto};

const A4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
pub(super) const B4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(super) const A6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
pub(super) const B6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

fn four() -> Packet {
    Packet::eth().ip4(A4, B4)
}

pub(super) fn six() -> Packet {
    Packet::eth().ip6(A6, B6)
}

pub(super) fn of(packet: &Packet) -> Decoded {
    decode(&packet.build(), 0)
}

const SSH: Transport = Transport::Ports {
    proto: 6,
    src: 1000,
    dst: 22,
};

#[test]
fn link_layer() {
    let tagged = |n: usize| (0..n).fold(Packet::eth(), |p, n| p.vlan(n as u16));
    let ssh = |packet: Packet| packet.ip4(A4, B4).tcp(1000, 22).build();
    for (tags, beside, l3) in [
        (0, 0, L3::V4(A4)),
        (1, 0, L3::V4(A4)),
        (2, 0, L3::V4(A4)),
        (8, 0, L3::V4(A4)),
        (9, 0, L3::TooManyTags),
        (1, 1, L3::V4(A4)),
        (7, 1, L3::V4(A4)),
        (8, 1, L3::TooManyTags),
        (0, 9, L3::TooManyTags),
    ] {
        assert_eq!(
            decode(&ssh(tagged(tags)), beside).l3,
            l3,
            "{tags} + {beside}"
        );
    }
    assert_eq!(
        decode(&ssh(Packet::eth().qinq(1).vlan(2)), 0).transport,
        SSH
    );
    assert_eq!(
        of(&Packet::eth().ethertype(0x0806).payload_len(28)).l3,
        L3::NotIp
    );
    assert_eq!(
        of(&Packet::eth().ethertype(46).payload_len(46)).l3,
        L3::NotIp
    );
    assert_eq!(decode(&[0; 13], 0).l3, L3::Malformed);
    assert_eq!(
        decode(&ssh(Packet::eth().vlan(1))[..17], 0).l3,
        L3::Malformed
    );
}

#[test]
fn ip4_headers() {
    let l3 = |packet: &Packet| of(packet).l3;
    assert_eq!(of(&four().tcp(1000, 22)).transport, SSH);
    assert_eq!(of(&four().options(&[1; 40]).tcp(1000, 22)).transport, SSH);
    assert_eq!(l3(&four().ihl(4).tcp(1, 2)), L3::Malformed);
    assert_eq!(l3(&four().version(6).tcp(1, 2)), L3::Malformed);
    assert_eq!(
        l3(&four().ihl(15).tcp(1, 2)),
        L3::Malformed,
        "header longer than the frame"
    );
    assert_eq!(l3(&four().length(19).tcp(1, 2)), L3::Malformed);
    assert_eq!(l3(&four().length(0).tcp(1, 2)), L3::Malformed);
    assert_eq!(
        of(&four().length(20).tcp(1, 2)).transport,
        Transport::Unknown
    );
    assert_eq!(
        of(&four().length(23).tcp(1, 2)).transport,
        Transport::Unknown
    );
    assert_eq!(of(&four().length(24).tcp(1000, 22)).transport, SSH);
    assert_eq!(of(&four().length(9000).tcp(1000, 22)).transport, SSH);
    assert_eq!(of(&four().bad_checksum().tcp(1000, 22)).transport, SSH);
    assert_eq!(
        of(&four().icmp(8, 0)).transport,
        Transport::NoPorts { proto: 1 }
    );
    assert_eq!(
        of(&four().auth().tcp(1, 2)).transport,
        Transport::NoPorts { proto: 51 }
    );
    assert_eq!(of(&four().fragment(0, true).tcp(1000, 22)).transport, SSH);
    let later = four().protocol(6).fragment(1, true).payload_len(40);
    assert_eq!(of(&later).transport, Transport::LaterFragment);
}

#[test]
fn every_protocol_with_ports() {
    for (packet, proto) in [
        (four().udp(1, 2), 17),
        (four().sctp(1, 2), 132),
        (four().dccp(1, 2), 33),
        (four().udplite(1, 2), 136),
    ] {
        assert_eq!(
            of(&packet).transport,
            Transport::Ports {
                proto,
                src: 1,
                dst: 2
            }
        );
    }
}

#[test]
fn cut_at_every_byte() {
    let whole = four().tcp(1000, 22).build();
    for n in 0..whole.len() {
        let seen = decode(&whole[..n], 0);
        match n {
            0..34 => assert_eq!(seen.l3, L3::Malformed, "{n}"),
            34..38 => assert_eq!((seen.l3, seen.transport), (L3::V4(A4), Transport::Unknown)),
            _ => assert_eq!((seen.l3, seen.transport), (L3::V4(A4), SSH), "{n}"),
        }
    }
    let whole = six().hop_by_hop().auth().tcp(1000, 22).build();
    for n in 0..whole.len() {
        let seen = decode(&whole[..n], 0);
        match n {
            0..54 => assert_eq!(seen.l3, L3::Malformed, "{n}"),
            54..90 => assert_eq!((seen.l3, seen.transport), (L3::V6(A6), Transport::Unknown)),
            _ => assert_eq!((seen.l3, seen.transport), (L3::V6(A6), SSH), "{n}"),
        }
    }
}

#[test]
fn ip6_chains() {
    let chain = |n: usize| (0..n).fold(six(), |p, _| p.destination()).tcp(1000, 22);
    for n in 0..=6 {
        assert_eq!(of(&chain(n)).transport, SSH, "{n}");
    }
    assert_eq!(of(&chain(7)).transport, Transport::Unknown);
    let all = six().hop_by_hop().routing().fragment(0, true).auth();
    let all = all
        .extension(proto::MOBILITY, &[0; 14])
        .extension(proto::HIP, &[0; 6]);
    assert_eq!(of(&all.clone().tcp(1000, 22)).transport, SSH);
    assert_eq!(
        of(&all.extension(proto::SHIM6, &[]).tcp(1, 2)).transport,
        Transport::Unknown
    );
    assert_eq!(
        of(&six().extension(proto::SHIM6, &[]).tcp(1000, 22)).transport,
        SSH
    );
    for proto in [proto::NO_NEXT, proto::ESP, 200] {
        let packet = six().destination().protocol(proto).payload_len(30);
        assert_eq!(of(&packet).transport, Transport::NoPorts { proto });
    }
    let later = six().fragment(5, false).protocol(6).payload_len(30);
    assert_eq!(of(&later).transport, Transport::LaterFragment);
    assert_eq!(of(&later.truncate(61)).transport, Transport::Unknown);
    assert_eq!(of(&six().version(4).tcp(1, 2)).l3, L3::Malformed);
    // The packet ends where its length says, a jumbogram with its frame.
    assert_eq!(of(&six().length(3).tcp(1, 2)).transport, Transport::Unknown);
    assert_eq!(of(&six().length(0).tcp(1, 2)).transport, Transport::Unknown);
    assert_eq!(of(&six().length(4).tcp(1000, 22)).transport, SSH);
    assert_eq!(
        of(&six().length(0).hop_by_hop().tcp(1000, 22)).transport,
        SSH
    );
}

#[test]
fn essential_packets() {
    for (name, packet, essential) in [
        ("solicitation", six().solicitation(B6), true),
        ("advertisement", six().advertisement(B6), true),
        ("redirect", six().ttl(255).icmp6(137, 0), true),
        (
            "behind options",
            six().ttl(255).destination().icmp6(133, 0),
            true,
        ),
        ("hop limit 254", six().solicitation(B6).ttl(254), false),
        ("code 1", six().ttl(255).icmp6(135, 1), false),
        ("type 132", six().ttl(255).icmp6(132, 0), false),
        ("type 138", six().ttl(255).icmp6(138, 0), false),
        (
            "whole, fragment header",
            six().fragment(0, false).solicitation(B6),
            false,
        ),
        (
            "cut after the type",
            six().ttl(255).icmp6(135, 0).truncate(55),
            false,
        ),
        ("as ICMP over IPv4", four().ttl(255).icmp(135, 0), false),
        ("dhcp request", four().udp(68, 67), true),
        ("dhcp reply", four().udp(67, 68), true),
        ("dhcp relay", four().udp(67, 67), false),
        ("dhcp over tcp", four().tcp(68, 67), false),
        ("dhcp fragment", four().fragment(0, true).udp(68, 67), false),
        ("dhcpv6", six().udp(546, 547), true),
        ("dhcpv6 reply", six().udp(547, 546), true),
        ("dhcpv6 ports over ipv4", four().udp(547, 546), false),
        ("dhcp ports over ipv6", six().udp(67, 68), false),
    ] {
        assert_eq!(of(&packet).essential, essential, "{name}");
    }
}
