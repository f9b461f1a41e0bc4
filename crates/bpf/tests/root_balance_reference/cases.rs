//! Packets about which the balancer and the reference once differed.

use weir_bpf::attachment::Hook;
use weir_testkit::packet::{Packet, flag, proto};

use crate::{
    packets::addr,
    path::Path,
    pools::{self, Config, HERE, VIPS},
};

const HOOKS: [Hook; 2] = [Hook::Xdp, Hook::Tcx];
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const CLIENT: [&str; 2] = ["203.0.113.7", "2001:db8:c::7"];

fn eth() -> Packet {
    Packet::eth_between([2, 0x77, 0x6c, 0xff, 0, 1], HERE)
}

/// From a client to a virtual address.
fn packet(family: usize) -> Packet {
    eth().ip(addr(CLIENT[family]), addr(VIPS[family][0]))
}

/// Each packet, of either family and on either hook, has this fate, of the kernel and of
/// the reference.
#[track_caller]
fn agree(config: Config, packets: impl Fn(usize) -> Vec<(Vec<u8>, &'static str)>) {
    let mut path = Path::new();
    path.begin(config);
    for hook in HOOKS {
        for (family, name) in FAMILIES.into_iter().enumerate() {
            for (n, (frame, fate)) in packets(family).into_iter().enumerate() {
                let what = format!("packet {n}");
                let of_reference = path.agree(hook, &frame, &what);
                assert_eq!(of_reference, format!("{name} {fate}"), "{what}");
            }
        }
    }
    path.counters_agree("in the end");
}

/// As a router: it counts hops before it looks at the size.
#[test]
fn root_what_has_no_hop_left_is_the_hosts_however_large() {
    agree(pools::two_beyond_a_router(1280), |family| {
        let large = || packet(family).tcp(4000, 80).payload_len(1400);
        vec![
            (large().ttl(1).build(), "to the host"),
            (large().ttl(0).build(), "to the host"),
            (large().ttl(2).build(), "too big and told"),
        ]
    });
}

/// RFC 1122 3.2.2; RFC 4443 2.4 has no such rule.
#[test]
fn root_of_later_ipv4_fragments_nobody_is_told() {
    agree(pools::two_beyond_a_router(1280), |family| {
        let first = packet(family).fragment(0, true).udp(4000, 443);
        let later = packet(family).fragment(170, false).protocol(proto::UDP);
        let told = ["too big", "too big and told"][family];
        vec![
            (first.clone().payload_len(1400).build(), "too big and told"),
            (
                first.payload_len(400).build(),
                "in an outer packet, first fragment",
            ),
            (later.payload_len(1400).build(), told),
        ]
    });
}

/// Without it a real goes on sending datagrams whose fragments do not arrive.
#[test]
fn root_an_error_about_a_fragment_reaches_its_real() {
    agree(pools::two(), |family| {
        let router = ["198.51.100.254", "2001:db8:f::1"][family];
        let about = |offset, len| {
            let sent = eth().ip(addr(VIPS[family][0]), addr(CLIENT[family]));
            let sent = sent.fragment(offset, true).udp(443, 4000).payload_len(1200);
            let mut quote = sent.build().split_off(14);
            quote.truncate(len);
            let error = eth().ip(addr(router), addr(VIPS[family][0]));
            let error = match family {
                0 => error.icmp(3, 4),
                _ => error.icmp6(2, 0),
            };
            error.payload(&quote).build()
        };
        // Its headers, and the ports.
        let least = [24, 52][family];
        vec![
            (about(0, 500), "to a real, ICMP error"),
            (about(0, least), "to a real, ICMP error"),
            (about(0, least - 1), "not served"),
            (about(9, 500), "not served"),
        ]
    });
}

/// RFC 8200 4.5: of later fragments the next header is not looked at. IPv4's protocol is
/// a part of what a fragment is known by (RFC 791).
#[test]
fn root_fragments_of_ipv6_are_known_by_their_identification() {
    agree(pools::two(), |family| {
        let later = |protocol| {
            let later = packet(family).fragment(9, false).protocol(protocol);
            later.payload_len(64).build()
        };
        let first = packet(family).fragment(0, true).udp(4000, 443);
        let follows = "to a real, later fragment";
        vec![
            (first.payload_len(64).build(), "to a real, first fragment"),
            (later(proto::UDP), follows),
            (later(proto::NO_NEXT), ["not served", follows][family]),
        ]
    });
}

/// RFC 1812 5.3.4: whoever is of the group would send it on.
#[test]
fn root_a_frame_to_a_group_is_not_sent_on() {
    // The reals are at another interface.
    let mut config = pools::two();
    config.each_real(|real| real.ifindex = 7);
    agree(config, |family| {
        let from = [2, 0x77, 0x6c, 0xff, 0, 1];
        let to = |dest| {
            let packet = Packet::eth_between(from, dest);
            let packet = packet.ip(addr(CLIENT[family]), addr(VIPS[family][0]));
            packet.tcp(4000, 80).tcp_flags(flag::SYN).build()
        };
        vec![
            (to(HERE), "to a real, whole"),
            (to([0xff; 6]), "to the host"),
            (to([1, 0, 0x5e, 0, 0, 1]), "to the host"),
        ]
    });
}

/// Behind it is the padding of its frame, with whatever a card had there.
#[test]
fn root_a_server_id_is_within_its_datagram() {
    let mut config = pools::two();
    config.name_servers(&["0a01", "0a02"]);
    agree(config, |family| {
        let head = [0x43, 0x0c, 0x0a, 0x01, 0, 0, 0, 0, 0, 0];
        let datagram = |len: u8| {
            // The frame has all of it.
            let udp = packet(family).udp(4000, 443).payload(&head);
            let mut frame = udp.build();
            let at = 14 + [20, 40][family];
            frame[at + 5] = 8 + len;
            frame
        };
        vec![
            (datagram(10), "by QUIC"),
            (datagram(9), "to a real, whole"),
            (datagram(3), "to a real, whole"),
        ]
    });
}

/// A switch floods frames of another host, which may send their flow elsewhere.
#[test]
fn root_a_flooded_frame_begins_and_moves_no_flow() {
    let syn = |family: usize, to, port| {
        let packet = Packet::eth_between([2, 0x77, 0x6c, 0xff, 0, 1], to);
        let packet = packet.ip(addr(CLIENT[family]), addr(VIPS[family][0]));
        packet.tcp(port, 80).tcp_flags(flag::SYN).build()
    };
    let only = |real: u16| {
        move |config: &mut Config| {
            config.members[0] = vec![(real, 1)];
            config.fill_rings();
        }
    };
    let mut path = Path::new();
    for hook in HOOKS {
        for (family, name) in FAMILIES.into_iter().enumerate() {
            let mut config = pools::two();
            let id = path.next_id();
            config.each_real(|real| real.id += id);
            path.begin(config);
            let agree = |path: &mut Path, to, port, fate| {
                let of_reference = path.agree(hook, &syn(family, to, port), "a SYN");
                assert_eq!(of_reference, format!("{name} {fate}"));
            };
            path.change(only(0));
            agree(&mut path, HERE, 4000, "to a real, whole");
            path.change(only(1));
            for port in [4000, 4001] {
                agree(&mut path, [2, 0x77, 0x6c, 0xff, 0, 3], port, "to the host");
            }
            // The known one is where it was; the other one goes where the ring says now.
            path.change(only(0));
            agree(&mut path, HERE, 4001, "to a real, whole");
            path.change(only(1));
            agree(&mut path, HERE, 4000, "to a real, whole");
            path.counters_agree("in the end");
        }
    }
}

/// By an interface that is promiscuous, and not the reals': XDP is not told.
#[test]
fn root_another_hosts_frame_is_not_sent_on_where_the_kernel_tells() {
    let mut config = pools::two();
    config.each_real(|real| real.ifindex = 7);
    let mut path = Path::new();
    path.begin(config);
    for (family, name) in FAMILIES.into_iter().enumerate() {
        let packet = Packet::eth_between([2, 0x77, 0x6c, 0xff, 0, 1], [2, 0x77, 0x6c, 0xff, 0, 3]);
        let packet = packet.ip(addr(CLIENT[family]), addr(VIPS[family][0]));
        let frame = packet.tcp(4000, 80).tcp_flags(flag::SYN).build();
        for (hook, fate) in HOOKS.into_iter().zip(["to a real, whole", "to the host"]) {
            let of_reference = path.agree(hook, &frame, hook.name());
            assert_eq!(of_reference, format!("{name} {fate}"));
        }
    }
    path.counters_agree("in the end");
}
