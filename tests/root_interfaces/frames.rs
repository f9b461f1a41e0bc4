//! Frames as they come by interfaces: without Ethernet, with tags, longer than usual.

use std::net::SocketAddr;

use weir_netlab::Side;
use weir_testkit::{
    packet::Packet,
    traffic::{UdpServer, send_frames, udp_request, udp_send},
};

use super::{
    RULES, ban,
    common::{ATTACKER, CUSTOMER, HOST, PORT, SOON, TestNet, Weir, addr, at, skipped, soon},
    config,
};

/// Has a tun device receive packets, read in hexadecimal, one a line.
const RECEIVE_ON_TUN: &str = "
import fcntl, struct, sys
tun = open('/dev/net/tun', 'r+b', buffering=0)
fcntl.ioctl(tun, 0x400454ca, struct.pack('16sH', b'tun0', 0x1001))
for line in sys.argv[1].split():
    tun.write(bytes.fromhex(line))
";

/// Packets without an Ethernet header, as from a VPN: the kernel receives one
/// after the other, so what was sent before the last one has come or was dropped.
#[test]
fn root_rules_protect_an_interface_without_ethernet() {
    if skipped(&[&RULES[..], &["python3"]].concat()) {
        return;
    }
    for backend in ["nft", "ipset"] {
        let net = TestNet::new();
        if let Err(error) = net.make_tun() {
            println!("skipped: no tun device: {error}");
            return;
        }
        let server = UdpServer::start(&net.host, SocketAddr::new(addr("::"), PORT)).unwrap();
        let mut weir = Weir::start(
            &net.host,
            &format!("interfaces = [\"tun0\"]\nbackend = \"{backend}\"\n"),
        );
        let receive = |sources: &[&str]| {
            let packet = |from: &&str| {
                let to = addr(HOST[usize::from(addr(from).is_ipv6())]);
                let frame = Packet::eth().ip(addr(from), to).udp(40022, PORT).build();
                hex::encode(&frame[14..])
            };
            let packets: Vec<_> = sources.iter().map(packet).collect();
            net.host
                .run("python3", &["-c", RECEIVE_ON_TUN, &packets.join(" ")])
                .unwrap();
        };
        let mut expected = 0;
        let mut let_in = |sources: &[&str], passing: u64| {
            receive(sources);
            expected += passing;
            soon("those who are not banned", || {
                (server.received() >= expected).then_some(())
            });
            assert_eq!(server.received(), expected, "{backend}: {sources:?}");
        };
        let all = [ATTACKER, CUSTOMER].concat();
        let_in(&all, 4);
        ban(&weir);
        let before = weir.packets("banned-all");
        let_in(&all, 2);
        assert_eq!(weir.packets("banned-all") - before, 2);
        assert_eq!(weir.attachment("tun0").0, backend);
        // As a VPN that connects anew; then with nobody there to see it.
        for daemon in [true, false] {
            if !daemon {
                weir.kill();
            }
            net.host.run("ip", &["link", "del", "tun0"]).unwrap();
            net.make_tun().unwrap();
            let_in(&all, 2);
        }
        weir.run();
        let_in(&all, 2);
        for who in ATTACKER {
            weir.ask(&["unban", who]).done();
        }
        let_in(&all, 4);
    }
}

/// Sends frames as they are, read in hexadecimal, one a line.
const SEND_FRAMES: &str = "
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(('eth0', 0))
for line in sys.argv[1].split():
    s.send(bytes.fromhex(line))
";

#[test]
fn root_tagged_frames_of_a_banned_source_are_dropped() {
    if skipped(&["python3"]) {
        return;
    }
    for backend in ["xdp", "xdp-generic", "tcx", "cls_bpf"] {
        let net = TestNet::new();
        let weir = Weir::start(&net.host, &config(backend));
        ban(&weir);
        let tagged = |tags: usize, family: usize, from: &str| {
            let mut frame = Packet::eth_between(net.veth.mac(Side::B), net.veth.mac(Side::A));
            if tags == 2 {
                frame = frame.qinq(100);
            }
            if tags > 0 {
                frame = frame.vlan(7);
            }
            let frame = frame
                .ip(addr(from), addr(HOST[family]))
                .udp(40022, PORT)
                .pad()
                .build();
            hex::encode(frame)
        };
        for tags in 0..=2 {
            for family in [0, 1] {
                let counts = || (weir.packets("banned-all"), weir.packets("pass"));
                let before = counts();
                let frames: Vec<_> = (0..5)
                    .map(|_| tagged(tags, family, ATTACKER[family]))
                    .chain((0..3).map(|_| tagged(tags, family, CUSTOMER[family])))
                    .collect();
                net.internet
                    .run("python3", &["-c", SEND_FRAMES, &frames.join(" ")])
                    .unwrap();
                soon(
                    &format!("{backend}: five drops, three passes, {tags} tags"),
                    || (counts() == (before.0 + 5, before.1 + 3)).then_some(()),
                );
            }
        }
        assert_eq!(weir.attachment("eth0").0, backend);
    }
}

/// Linux takes any number of priority tags (VLAN 0) off a frame: behind as many as
/// a sender likes, weir judges what is inside, or drops it.
#[test]
fn root_stacked_priority_tags_hide_nobody() {
    if skipped(&["nft", "ipset", "iptables-restore"]) {
        return;
    }
    for (backend, judged) in [
        ("xdp", 8),
        ("xdp-generic", 8),
        ("tcx", 8),
        ("cls_bpf", 8),
        // Behind the stack, which takes all of them off.
        ("netfilter", usize::MAX),
        ("ipset", usize::MAX),
        // nftables' ingress looks behind one.
        ("nft", 1),
    ] {
        let net = TestNet::new();
        let weir = Weir::start(&net.host, &config(backend));
        if backend == "nft" {
            soon("its chain at ingress", || {
                let note = weir.attachment("eth0").1;
                note.contains("at ingress and").then_some(())
            });
        }
        ban(&weir);
        let servers = [0, 1].map(|family| UdpServer::start(&net.host, at(family)).unwrap());
        let send = |tags: usize, from: &str| {
            let wire = Packet::eth_between(net.veth.mac(Side::B), net.veth.mac(Side::A));
            let to = addr(HOST[usize::from(addr(from).is_ipv6())]);
            let frame = (0..tags)
                .fold(wire, |frame, _| frame.vlan(0))
                .ip(addr(from), to)
                .udp(40022, PORT)
                .build();
            send_frames(&net.internet, "eth0", [&frame[..]].into_iter()).unwrap();
        };
        let most = [1, 2, 3, 4, 8, 9, 12, 40];
        for (family, server) in servers.iter().enumerate() {
            let mut expected = 0;
            for tags in most {
                send(tags, ATTACKER[family]);
                send(tags, CUSTOMER[family]);
                // More are dropped unjudged, where they are seen.
                expected += u64::from(tags <= judged);
                // One wire: what was sent before has come, or does not.
                send(0, CUSTOMER[family]);
                expected += 1;
                soon(
                    &format!("{backend}: who is not banned, {tags} tags"),
                    || (server.received() >= expected).then_some(()),
                );
                assert_eq!(server.received(), expected, "{backend}: {tags} tags");
            }
        }
        let banned = most.iter().filter(|tags| **tags <= judged).count() as u64;
        let too_many = 2 * 2 * (most.len() as u64 - banned);
        assert_eq!(weir.packets("too-many-tags"), too_many, "{backend}");
        assert_eq!(weir.packets("banned-all"), 2 * banned, "{backend}");
    }
}

#[test]
fn root_jumbo_frames() {
    if skipped(&[]) {
        return;
    }
    for backend in ["xdp", "xdp-generic", "tcx", "cls_bpf", "netfilter"] {
        let net = TestNet::with_mtu(9000);
        let weir = Weir::start(&net.host, &config(backend));
        assert_eq!(weir.attachment("eth0").0, backend);
        ban(&weir);
        let bytes = vec![7; 8900];
        for family in [0, 1] {
            let server = UdpServer::start(&net.host, at(family)).unwrap();
            let before = weir.packets("banned-all");
            let from = Some(addr(ATTACKER[family]));
            udp_send(&net.internet, from, at(family), &bytes, 10).unwrap();
            soon("ten drops", || {
                (weir.packets("banned-all") == before + 10).then_some(())
            });
            let from = Some(addr(CUSTOMER[family]));
            let (echo, _) = udp_request(&net.internet, from, at(family), &bytes, SOON).unwrap();
            assert_eq!(echo, bytes, "{backend}");
            assert_eq!(server.received(), 1, "{backend}");
        }
    }
}
