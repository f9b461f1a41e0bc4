//! Addresses that are tarpits: who finds them, what is held there, and what is left to a
//! pool or to those that have theirs.

use super::*;
use weir_bpf::{
    balance::{Real, SLOTS, VirtualService, real_id},
    decoy::TarpitLink,
};
use weir_core::{PrefixSet, Protocol};

const LINK: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const ASKER: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
const ALL: [u8; 6] = [0xff; 6];
/// BPF_PROG_RUN's interface, and the one that its skb came in by: none.
const HERE: [u32; 2] = [1, 0];

/// Links of these interfaces, with addresses of their own to ask from.
fn links(indices: &[u32]) -> std::collections::BTreeMap<u32, TarpitLink> {
    let link = TarpitLink {
        mac: LINK,
        addr4: Some(OWN4),
        addr6: Some(LOCAL6),
    };
    indices.iter().map(|index| (*index, link)).collect()
}

/// The link-local address of the interface.
const LOCAL6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x11);

impl Pit {
    /// A pit that holds the addresses of two prefixes, its own among them.
    fn of_addresses() -> Self {
        Self::of(0)
    }

    /// The same, each address once nobody has answered for so many seconds; 0: at once.
    fn of(after: u32) -> Self {
        let pit = Self::new();
        let prefixes = ["192.0.2.0/24", "2001:db8::/64"];
        let prefixes: PrefixSet = prefixes.iter().map(|p| p.parse().unwrap()).collect();
        let decoys = &pit.generation.decoys;
        decoys.write_tarpits(&DecoyPorts::default());
        let none = PrefixSet::default();
        let (at_once, dark) = if after == 0 {
            (prefixes, none)
        } else {
            (none, prefixes)
        };
        decoys.write_prefixes(&at_once, &dark, after).unwrap();
        decoys.write_links(&links(&HERE)).unwrap();
        let features = pit.generation.port_features();
        pit.generation.table.set_port_features(features);
        pit
    }

    /// Runs a frame, which is answered or leaves as it came: the answer.
    #[track_caller]
    fn asked(&self, hook: Hook, name: &str, frame: &[u8], otherwise: Reason) -> Option<Vec<u8>> {
        let counters = || small_maps::read_counters(&self.generation.counters).unwrap();
        let before = counters();
        let program = self.generation.program(hook).unwrap();
        let answer = prog_test_run::packet(program, frame, 1).unwrap();
        let sent = answer.verdict == if hook == Hook::Tcx { 7 } else { 3 };
        let reason = if sent { Reason::Tarpit } else { otherwise };
        let counted = counters()[reason as usize].0 - before[reason as usize].0;
        assert_eq!(counted, 1, "{name} on {}: {reason}", hook.name());
        if !sent {
            assert_eq!(answer.packet, frame, "{name}");
        }
        sent.then_some(answer.packet)
    }
}

/// RFC 826, of Ethernet and IPv4.
fn arp(to: [u8; 6], operation: u8, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut frame = [&to[..], &ASKER, &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
    frame.extend([&ASKER[..], &sender, &[0; 6], &target].concat());
    frame.resize(60, 0);
    frame
}

/// A solicitation with its sender's link-layer address.
fn solicitation(to: [u8; 6], source: &str, group: &str, target: &str) -> Packet {
    let target: Ipv6Addr = target.parse().unwrap();
    let option = [&[1, 1][..], &ASKER].concat();
    Packet::eth_between(ASKER, to)
        .ip(source.parse().unwrap(), group.parse().unwrap())
        .ttl(255)
        .icmp6(135, 0)
        .payload(&[&target.octets()[..], &option].concat())
}

#[test]
fn root_tarpit_addresses_are_located() {
    let pit = Pit::of_addresses();
    let decoys = &pit.generation.decoys;
    for hook in HOOKS {
        let run = |name, frame: &[u8]| pit.asked(hook, name, frame, Reason::NotIp);
        // Whoever asks is told, and once he sends in their name they are somebody's.
        let asker = [192, 0, 2, 254];
        for (name, to) in [("to all", ALL), ("to this interface", LINK)] {
            let answer = run(name, &arp(to, 1, asker, [192, 0, 2, 77])).expect(name);
            let mut told = [&ASKER[..], &LINK, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
            told.extend([&LINK[..], &[192, 0, 2, 77], &ASKER, &asker].concat());
            assert_eq!((&answer[..42], answer.len()), (&told[..], 60), "{name}");
        }
        let silent = |name, frame: &[u8]| assert_eq!(run(name, frame), None, "{name}");
        silent("elsewhere", &arp(ALL, 1, asker, [198, 51, 100, 1]));
        silent("this host's own", &arp(ALL, 1, asker, OWN4.octets()));
        silent("another's", &arp(ASKER, 1, asker, [192, 0, 2, 78]));
        silent("who asked", &arp(ALL, 1, [192, 0, 2, 7], asker));
        silent("a probe", &arp(ALL, 1, [0; 4], [192, 0, 2, 80]));
        silent("what was probed", &arp(ALL, 1, asker, [192, 0, 2, 80]));
        silent(
            "an announcement",
            &arp(ALL, 1, [192, 0, 2, 81], [192, 0, 2, 81]),
        );
        silent("what was announced", &arp(ALL, 1, asker, [192, 0, 2, 81]));
        silent("an answer", &arp(ALL, 2, [192, 0, 2, 82], [192, 0, 2, 83]));
        silent("who answered", &arp(ALL, 1, asker, [192, 0, 2, 82]));
        silent(
            "a loopback address",
            &arp(ALL, 1, [127, 0, 0, 1], [192, 0, 2, 84]),
        );
        let whole = arp(ALL, 1, asker, [192, 0, 2, 85]);
        for len in 15..42 {
            pit.asked(hook, "cut", &whole[..len], Reason::NotIp);
        }

        let run = |name, packet: &Packet| pit.asked(hook, name, &packet.build(), Reason::Pass);
        let group = "ff02::1:ff00:77";
        let all = [0x33, 0x33, 0xff, 0, 0, 0x77];
        let (asker, target) = ("2001:db8::fe", "2001:db8::77");
        for (name, to, group) in [("to the group", all, group), ("to one", LINK, target)] {
            let answer = run(name, &solicitation(to, asker, group, target)).expect(name);
            assert_eq!(answer[..12], [ASKER, LINK].concat()[..], "{name}");
            let ip = &answer[14..];
            assert_eq!((ip[6], ip[7], be16(ip, 4)), (58, 255, 32));
            let address = |at: usize| {
                let bytes: [u8; 16] = ip[at..at + 16].try_into().unwrap();
                Ipv6Addr::from(bytes).to_string()
            };
            assert_eq!((address(8), address(24)), (target.into(), asker.into()));
            let mut pseudo = ip[8..40].to_vec();
            pseudo.extend([0, 0, 0, 32, 0, 0, 0, 58]);
            pseudo.extend(&ip[40..72]);
            assert_eq!(checksum(&pseudo), 0, "{name}");
            // An advertisement, solicited, that overrides nobody's.
            assert_eq!((ip[40], ip[41], be32(ip, 44)), (136, 0, 0x4000_0000));
            assert_eq!(address(48), target);
            assert_eq!(ip[64..72], [&[2, 1][..], &LINK].concat()[..]);
        }
        let silent = |name, packet: &Packet| assert_eq!(run(name, packet), None, "{name}");
        let own = OWN6.to_string();
        let ask = |target| solicitation(all, asker, group, target);
        silent("elsewhere", &ask("2001:db8:1::1"));
        silent("this host's own", &ask(&own));
        silent("who asked", &ask(asker));
        silent("not of this link", &ask("2001:db8::78").ttl(254));
        silent("wrong", &ask("2001:db8::78").bad_checksum());
        let tentative = Packet::eth_between(ASKER, all)
            .ip("::".parse().unwrap(), group.parse().unwrap())
            .solicitation("2001:db8::80".parse::<Ipv6Addr>().unwrap());
        silent("a probe", &tentative);
        silent("what was probed", &ask("2001:db8::80"));
        let advertised = Packet::eth_between(ASKER, [0x33, 0x33, 0, 0, 0, 1])
            .ip("fe80::5".parse().unwrap(), "ff02::1".parse().unwrap())
            .advertisement("2001:db8::81".parse::<Ipv6Addr>().unwrap());
        silent("an advertisement", &advertised);
        silent("who advertised", &ask("2001:db8::81"));
    }
    // Nor what user space says is alive, until that is an hour ago.
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec as u32;
    let addr: IpAddr = "192.0.2.90".parse().unwrap();
    let ask = arp(ALL, 1, [192, 0, 2, 254], [192, 0, 2, 90]);
    for (seconds, answered) in [(now, false), (now.wrapping_sub(3_601), true)] {
        decoys.note_alive(&[addr], seconds).unwrap();
        let answer = pit.asked(Hook::Xdp, "alive", &ask, Reason::NotIp);
        assert_eq!(answer.is_some(), answered, "{seconds} of {now}");
    }
    // Nor on another interface.
    decoys.write_links(&links(&[2])).unwrap();
    assert_eq!(
        pit.asked(Hook::Xdp, "another link", &ask, Reason::NotIp),
        None
    );
    let counts = decoys.tarpit_counts().unwrap();
    assert_eq!((counts.resolved, counts.silent), (9, 0));
}

/// All ports of such an address hold, but for frames that are somebody else's, and for an
/// address that somebody has.
#[test]
fn root_tarpit_addresses_hold_on_all_ports() {
    let pit = Pit::of_addresses();
    let held_by = |seq, ack, len| held(seq, ack, len, false);
    let dark = ["192.0.2.77", "2001:db8::77"];
    let alive = ["192.0.2.78", "2001:db8::78"];
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec as u32;
    let seen = alive.map(|addr| addr.parse().unwrap());
    pit.generation.decoys.note_alive(&seen, now).unwrap();
    for hook in HOOKS {
        for (family, peer) in PEERS.into_iter().enumerate() {
            let to = |mac: [u8; 6], addr: &str, port: u16| {
                let peer: IpAddr = peer.parse().unwrap();
                let eth = Packet::eth_between(ASKER, mac);
                eth.ip(peer, addr.parse().unwrap()).tcp(40_000, port)
            };
            for port in [1, 22, 25, 443, 65_535] {
                let syn = to(LINK, dark[family], port).tcp_seq(9, 0);
                let reply = pit.answered(hook, "SYN", &syn, Reason::Tarpit);
                assert_eq!((reply.flags, reply.ack), (SYN | ACK, 10));
                let data = to(LINK, dark[family], port).tcp_flags(ACK).tcp_seq(9, 8);
                let data = data.payload_len(5);
                let reply = pit.answered(hook, "data", &data, Reason::Tarpit);
                assert_eq!(reply, held_by(9, 8, 5));
            }
            let own = if family == 0 {
                OWN4.to_string()
            } else {
                OWN6.to_string()
            };
            for (name, packet) in [
                ("this host's own", to(LINK, &own, 25)),
                ("alive", to(LINK, alive[family], 25)),
                ("a flooded frame", to(ASKER, dark[family], 25)),
                ("a SYN-ACK", to(LINK, dark[family], 25).tcp_flags(SYN | ACK)),
                ("a reset", to(LINK, dark[family], 25).tcp_flags(RST)),
            ] {
                pit.passes(hook, name, &packet, Reason::Pass);
            }
        }
    }
}

/// Where addresses are tarpits a pool goes on to serve: its ports, and what is about its
/// flows; and at such an address its ports hold as any other.
#[test]
fn root_tarpit_addresses_leave_pools_alone() {
    let pit = Pit::of_addresses();
    pit.generation.answer(AnswerProgram::Balance).unwrap();
    let vips: [IpAddr; 2] = ["203.0.113.80", "2001:db8:5::80"].map(|vip| vip.parse().unwrap());
    let balancer = &pit.generation.balancer;
    let services: Vec<_> = vips
        .iter()
        .flat_map(|vip| {
            [(Protocol::Tcp, 80), (Protocol::Udp, 443)].map(|(protocol, port)| VirtualService {
                addr: *vip,
                protocol,
                port: Some(port),
                pool: 3,
            })
        })
        .collect();
    let dest = [2, 0, 0, 0, 0, 0x33];
    let real = Real {
        id: real_id("web", "10.0.0.1".parse().unwrap()),
        dest,
        source: LINK,
        ifindex: 1,
        vlan: 0,
        tunnel: None,
        drains: false,
    };
    balancer.write_real(0, Some(real)).unwrap();
    balancer.write_ring(3, &vec![Some(0); SLOTS]).unwrap();
    balancer.write_services(&services).unwrap();
    let features = pit.generation.port_features();
    pit.generation.table.set_port_features(features);
    let dark = ["192.0.2.77", "2001:db8::77"];
    let allowed = ["198.51.100.70", "2001:db8:a::1"];
    for hook in HOOKS {
        for (family, peer) in PEERS.into_iter().enumerate() {
            let vip = vips[family];
            let to = |addr: IpAddr, from: &str| {
                Packet::eth_between(ASKER, LINK).ip(from.parse().unwrap(), addr)
            };
            let quoted = Packet::eth().ip(vip, peer.parse().unwrap());
            let quoted = quoted.tcp(80, 40_000).build().split_off(14);
            let error = match family {
                0 => to(vip, "198.51.100.1").icmp(3, 4),
                _ => to(vip, "2001:db8:f::1").icmp6(2, 0),
            };
            for (name, packet) in [
                ("TCP", to(vip, peer).tcp(40_000, 80)),
                ("UDP", to(vip, peer).udp(40_000, 443)),
                ("too big", error.payload(&quoted)),
                ("allowed", to(vip, allowed[family]).tcp(4, 80)),
            ] {
                let frame = packet.build();
                let answer = pit.leaves(hook, name, &frame, Reason::Pass);
                let sent = if hook == Hook::Tcx { 7 } else { 3 };
                assert_eq!(answer.verdict, sent, "{name} on {}", hook.name());
                assert_eq!(answer.packet[..12], [dest, LINK].concat()[..], "{name}");
                // Behind one hop, and IPv4's checksum.
                assert_eq!(answer.packet[26..], frame[26..], "{name}");
            }
            let dark: IpAddr = dark[family].parse().unwrap();
            for port in [80, 443] {
                let syn = to(dark, peer).tcp(40_000, port).tcp_seq(9, 0);
                let reply = pit.answered(hook, "SYN", &syn, Reason::Tarpit);
                assert_eq!((reply.flags, reply.ack), (SYN | ACK, 10));
            }
            let other = to(vip, peer).tcp(40_000, 81);
            pit.passes(hook, "another port of the pool", &other, Reason::Pass);
            let own: IpAddr = [OWN4.into(), OWN6.into()][family];
            let own = to(own, peer).tcp(40_000, 80);
            pit.passes(hook, "this host's own", &own, Reason::Pass);
        }
        // What only looks like ARP is another protocol's.
        let mut frame = arp(ALL, 1, [192, 0, 2, 254], [192, 0, 2, 77]);
        assert!(pit.asked(hook, "ARP", &frame, Reason::NotIp).is_some());
        frame[12..14].copy_from_slice(&[0x80, 0x35]);
        assert_eq!(pit.asked(hook, "RARP", &frame, Reason::NotIp), None);
    }
}

/// What an address is that is asked for now and then: who asks is passed on, until nobody
/// has answered for long enough.
#[test]
fn root_tarpit_dark_addresses_are_learned() {
    let pit = Pit::of(2);
    let decoys = &pit.generation.decoys;
    let asker = [192, 0, 2, 254];
    let arp_for = |last: u8| arp(ALL, 1, asker, [192, 0, 2, last]);
    let group = "ff02::1:ff00:77";
    let to_group = [0x33, 0x33, 0xff, 0, 0, 0x77];
    let solicit = |target: &str| solicitation(to_group, "2001:db8::fe", group, target).build();
    let counts = || decoys.tarpit_counts().unwrap();
    // A packet says that its sender is there; its own address is not asked for below.
    let packet = |from: &str, to: &str| {
        let eth = Packet::eth_between(ASKER, LINK);
        eth.ip(from.parse().unwrap(), to.parse().unwrap())
    };
    for (n, hook) in HOOKS.into_iter().enumerate() {
        let n = n as u8 * 16 + 16;
        let run = |name, frame: &[u8]| pit.asked(hook, name, frame, Reason::NotIp);
        let run6 = |name, frame: &[u8]| pit.asked(hook, name, frame, Reason::Pass);
        let before = counts();

        // The first question goes on as this host's own, to all, with nobody's address.
        let passed_on = run("first", &arp_for(n + 1)).expect("first");
        let mut told = [&ALL[..], &LINK, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        told.extend([&LINK[..], &OWN4.octets(), &[0; 6], &[192, 0, 2, n + 1]].concat());
        assert_eq!((&passed_on[..42], passed_on.len()), (&told[..], 60));
        let six = format!("2001:db8::{n:x}1");
        let passed_on = run6("first", &solicit(&six)).expect("first");
        assert_eq!(passed_on[..12], [to_group, LINK].concat()[..]);
        let ip = &passed_on[14..];
        assert_eq!(ip[8..24], LOCAL6.octets());
        assert_eq!(ip[24..40], group.parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!((ip[40], ip[7], &ip[64..66]), (135, 255, &[1, 1][..]));
        assert_eq!(ip[66..72], LINK);
        let mut pseudo = ip[8..40].to_vec();
        pseudo.extend([0, 0, 0, 32, 0, 0, 0, 58]);
        pseudo.extend(&ip[40..72]);
        assert_eq!(checksum(&pseudo), 0);
        // Until then nothing is held there.
        let dark = format!("192.0.2.{}", n + 1);
        for to in [dark.as_str(), &six] {
            let from = PEERS[usize::from(to.contains(':'))];
            pit.passes(hook, "too soon", &packet(from, to).tcp(4, 22), Reason::Pass);
        }
        // Others are asked for as well, and answer in one way or another.
        for last in [2, 3, 4, 5, 6] {
            assert!(run("first", &arp_for(n + last)).is_some());
        }
        let alive = [192, 0, 2, n + 2];
        let silent = |name, frame: &[u8]| assert_eq!(run(name, frame), None, "{name}");
        silent(
            "an answer to this host",
            &arp(LINK, 2, alive, OWN4.octets()),
        );
        silent("a probe", &arp(ALL, 1, [0; 4], [192, 0, 2, n + 3]));
        let sender = format!("192.0.2.{}", n + 4);
        pit.passes(
            hook,
            "a packet",
            &packet(&sender, &OWN4.to_string()).udp(4, 5),
            Reason::Pass,
        );
        let seen = format!("192.0.2.{}", n + 5).parse().unwrap();
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec as u32;
        decoys.note_alive(&[seen], now).unwrap();
        // Nor is one learned that this host cannot ask for: to it alone, or from nowhere.
        assert_eq!(
            run("unicast", &arp(LINK, 1, asker, [192, 0, 2, n + 7])),
            None
        );
        let no_address = TarpitLink {
            mac: LINK,
            ..TarpitLink::default()
        };
        decoys
            .write_links(&HERE.map(|index| (index, no_address)).into())
            .unwrap();
        assert_eq!(run("from nowhere", &arp_for(n + 8)), None);
        assert_eq!(run6("from nowhere", &solicit("2001:db8::8")), None);
        decoys.write_links(&links(&HERE)).unwrap();
        let asked = counts();
        assert_eq!(asked.asked - before.asked, 7);
        assert_eq!(asked.resolved, before.resolved);

        // Two seconds later those are dark that nobody answered for.
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        let is_answer = |frame: &[u8]| frame[21] == 2;
        while !run("again", &arp_for(n + 6)).is_some_and(|answer| is_answer(&answer)) {
            assert!(std::time::Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(counts().asked > asked.asked, "asked again meanwhile");
        assert!(is_answer(&run("again", &arp_for(n + 1)).unwrap()));
        let answer = run6("again", &solicit(&six)).unwrap();
        assert_eq!(answer[14 + 40], 136);
        for last in [2, 3, 4, 5] {
            assert_eq!(run("alive", &arp_for(n + last)), None, "{last}");
        }
        for last in [7, 8] {
            let first = run("first after all", &arp_for(n + last)).unwrap();
            assert!(!is_answer(&first), "{last} is learned from here on");
        }
        for to in [dark.as_str(), &six] {
            let from = PEERS[usize::from(to.contains(':'))];
            let syn = packet(from, to).tcp(4_000, 22).tcp_seq(9, 0);
            let reply = pit.answered(hook, "dark", &syn, Reason::Tarpit);
            assert_eq!((reply.flags, reply.ack), (SYN | ACK, 10));
        }
        // Somebody takes it: it is his.
        silent(
            "an announcement",
            &arp(ALL, 1, [192, 0, 2, n + 1], [192, 0, 2, n + 1]),
        );
        silent("taken", &arp_for(n + 1));
        pit.passes(
            hook,
            "taken",
            &packet(PEERS[0], &dark).tcp(4, 22),
            Reason::Pass,
        );
    }
}

/// Addresses without number: the places are as many as there are, what is dark keeps its
/// own, and what finds none is counted.
#[test]
fn root_tarpit_dark_addresses_are_bounded() {
    let pit = Pit::of(2);
    let decoys = &pit.generation.decoys;
    let group = "ff02::1:ff00:77";
    let to_group = [0x33, 0x33, 0xff, 0, 0, 0x77];
    let program = pit.generation.program(Hook::Tcx).unwrap();
    let ask = |target: u128| {
        // From many sources, for one has a limit.
        let source = format!("2001:db8:{:x}::fe", target >> 9 & 0xffff);
        let target = Ipv6Addr::from_bits(0x2001_0db8 << 96 | target);
        let frame = solicitation(to_group, &source, group, &target.to_string()).build();
        prog_test_run::packet(program, &frame, 1).unwrap()
    };
    let counts = || decoys.tarpit_counts().unwrap();
    // Every one is asked for until it was, whatever limit there is for a moment.
    let ask_all = |targets: std::ops::Range<u128>| {
        let deadline = std::time::Instant::now() + Duration::from_secs(120);
        for target in targets {
            loop {
                let before = counts().silent;
                ask(target);
                if counts().silent == before {
                    break;
                }
                assert!(std::time::Instant::now() < deadline);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    };
    let known = 0x1000..0x1100;
    ask_all(known.clone());
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while ask(0x10ff).packet[14 + 40] != 136 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(50));
    }
    ask_all(known.clone());
    let before = counts();
    let crowd = u128::from(weir_bpf::abi::TARPIT_DARK) / 4;
    ask_all(0x10_0000..0x10_0000 + crowd);
    let after = counts();
    let crowded = after.crowded - before.crowded;
    // A quarter of the places: one in nine has met another by then.
    assert!(
        (crowd / 20..crowd / 5).contains(&u128::from(crowded)),
        "{crowded}"
    );
    let resolved = counts().resolved;
    ask_all(known);
    assert_eq!(
        counts().resolved - resolved,
        0x100,
        "what was dark stays so"
    );
}
