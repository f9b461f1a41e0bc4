//! Lists and the geofence by BPF_PROG_RUN: which packets of which classes pass,
//! on XDP and tcx and on egress. Root: loads BPF.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_bpf::{
    BanCounts, ClassImage, Generation, Geometry, Key, Options, Slot, attachment::Hook, class::By,
    prog_test_run, small_maps, table::NEVER, tables::POLICY_SCOPED,
};
use weir_core::{
    Action, PortSet, Prefix, PrefixSet, Reason,
    address_class::{Classes, ListLayer, Plan},
    geo::{Country, GeoTable, Place, Span},
    geofence::{Direction, Fence, RuleAction},
};
use weir_testkit::packet::Packet;

const HOST4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const HOST6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1);
const SYN: u8 = 0x02;
const SYN_ACK: u8 = 0x12;
const ACK: u8 = 0x10;

/// Seed of the exceptions' hash: any will do.
const SEED: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];

fn country(code: &str) -> Country {
    Country::from_letters(code.as_bytes().try_into().unwrap()).unwrap()
}

/// 10.1.0.0/16 and 2001:db8:1::/48 are RU, 10.2. and :2: are NL.
fn geo_table() -> GeoTable {
    let place = |code| Place {
        country: Some(country(code)),
        ..Place::default()
    };
    let v4 = |second: u32, value| Span {
        first: 10 << 24 | second << 16,
        last: 10 << 24 | second << 16 | 0xffff,
        value,
    };
    let v6 = |third: u128, value| Span {
        first: 0x2001_0db8u128 << 96 | third << 80,
        last: 0x2001_0db8u128 << 96 | third << 80 | ((1 << 80) - 1),
        value,
    };
    GeoTable {
        places: vec![place("RU"), place("NL")],
        v4: vec![v4(1, 0), v4(2, 1)],
        v6: vec![v6(1, 0), v6(2, 1)],
    }
}

fn fence(ports: &str, direction: Direction, deny: &[&str]) -> Fence {
    Fence {
        name: "geofence".into(),
        scope: ports.parse().unwrap(),
        direction,
        default: RuleAction::Pass,
        allow: Vec::new(),
        deny: deny.iter().map(|s| s.parse().unwrap()).collect(),
        unknown: RuleAction::Pass,
        except: PrefixSet::default(),
    }
}

struct Path {
    generation: Generation,
    image: ClassImage,
}

impl Path {
    fn new(fences: &[Fence], lists: &[(&str, &str, Direction, &[&str])]) -> Self {
        let scopes: Vec<PortSet> = lists.iter().map(|l| l.1.parse().unwrap()).collect();
        let prefixes: Vec<Vec<Prefix>> = lists
            .iter()
            .map(|l| l.3.iter().map(|p| p.parse().unwrap()).collect())
            .collect();
        let layers: Vec<ListLayer<'_>> = lists
            .iter()
            .zip(&scopes)
            .zip(&prefixes)
            .map(|((list, scope), prefixes)| ListLayer {
                name: list.0,
                scope,
                direction: list.2,
                prefixes,
            })
            .collect();
        let classes = Plan {
            geo_table: &geo_table(),
            fences,
            lists: &layers,
        }
        .join()
        .unwrap();
        Self::with(&classes)
    }

    fn with(classes: &Classes) -> Self {
        let covers: Vec<_> = classes.lists.iter().chain(&classes.fences).collect();
        let number = |at: usize| 10 + at as u16;
        let policies: Vec<u16> = covers
            .iter()
            .enumerate()
            .map(|(at, c)| if c.scope.is_all() { 0 } else { number(at) })
            .collect();
        let image = ClassImage::build(classes, &policies, SEED);
        let generation = Generation::create(
            1,
            &Options {
                // As random as real ones: a flow's tag is a hash.
                seed: [
                    0x9e37_79b9_7f4a_7c15,
                    0xbf58_476d_1ce4_e5b9,
                    0x94d0_49bb_1331_11eb,
                ],
                v4_length: 24,
                class_lines: image.lines(),
                flow_jiffies: 120 * 1000,
                ..Options::bans(Geometry::for_bans(BanCounts::each(200)))
            },
            None,
        )
        .expect("the packet path loads");
        for (at, cover) in covers.iter().enumerate() {
            small_maps::write_policy(
                &generation.policies,
                number(at).into(),
                &cover.scope,
                Action::Drop,
                "x",
            )
            .unwrap();
        }
        generation.classes.write(&image);
        Self { generation, image }
    }

    /// The reason for which a packet leaves, seen by its counter.
    #[track_caller]
    fn leaves(&self, hook: Hook, packet: &Packet) -> Option<Reason> {
        let before = small_maps::read_counters(&self.generation.counters).unwrap();
        let answer =
            prog_test_run::packet(self.generation.program(hook).unwrap(), &packet.build(), 1)
                .unwrap();
        let after = small_maps::read_counters(&self.generation.counters).unwrap();
        let reason = Reason::ALL
            .into_iter()
            .find(|r| after[*r as usize].0 > before[*r as usize].0);
        let dropped = match hook {
            Hook::Netfilter => answer.verdict == 0,
            Hook::Tcx | Hook::ClsBpf | Hook::Egress | Hook::EgressClsBpf => answer.verdict == 2,
            _ => answer.verdict == 1,
        };
        assert_eq!(dropped, reason.is_some_and(Reason::is_drop), "{reason:?}");
        reason
    }

    #[track_caller]
    fn inbound(&self, packet: &Packet, wanted: Reason) {
        for hook in [Hook::Xdp, Hook::Tcx] {
            let left = self.leaves(hook, packet);
            assert_eq!(left, Some(wanted), "{}", hook.name());
        }
    }

    #[track_caller]
    fn outbound(&self, packet: &Packet, wanted: Option<Reason>) {
        assert_eq!(self.leaves(Hook::Egress, packet), wanted);
    }
}

fn host(like: &str) -> IpAddr {
    if like.contains(':') {
        HOST6.into()
    } else {
        HOST4.into()
    }
}

fn from(source: &str) -> Packet {
    Packet::eth().ip(source.parse().unwrap(), host(source))
}

fn to(dest: &str) -> Packet {
    Packet::eth().ip(host(dest), dest.parse().unwrap())
}

/// An ICMP message of the address's family.
fn icmp(packet: Packet, addr: &str, kind: u8, code: u8) -> Packet {
    if addr.contains(':') {
        packet.icmp6(kind, code)
    } else {
        packet.icmp(kind, code)
    }
}

/// The numbers of an echo.
fn echo(addr: &str, request: bool) -> (u8, u8) {
    match (addr.contains(':'), request) {
        (false, true) => (8, 0),
        (false, false) => (0, 0),
        (true, true) => (128, 0),
        (true, false) => (129, 0),
    }
}

#[test]
fn root_the_geofence_judges_the_first_packet() {
    let path = Path::new(&[fence("all", Direction::In, &["country:RU"])], &[]);
    for denied in ["10.1.2.3", "2001:db8:1::3"] {
        path.inbound(&from(denied).tcp(999, 22).tcp_flags(SYN), Reason::Fenced);
        path.inbound(
            &from(denied).tcp(999, 22).tcp_flags(SYN | 0xc0),
            Reason::Fenced,
        );
        // Not the first: of a connection that was there before the rule, or ours.
        path.inbound(&from(denied).tcp(22, 999).tcp_flags(SYN_ACK), Reason::Pass);
        path.inbound(&from(denied).tcp(999, 22).tcp_flags(ACK), Reason::Pass);
        path.inbound(&from(denied).udp(999, 53), Reason::Fenced);
        let (kind, code) = echo(denied, true);
        path.inbound(&icmp(from(denied), denied, kind, code), Reason::Fenced);
        // Path MTU discovery goes on.
        let (kind, code) = if denied.contains(':') { (2, 0) } else { (3, 4) };
        path.inbound(&icmp(from(denied), denied, kind, code), Reason::Pass);
    }
    for other in ["10.2.2.3", "2001:db8:2::3", "198.51.100.1", "2001:db8:3::1"] {
        path.inbound(&from(other).tcp(999, 22).tcp_flags(SYN), Reason::Pass);
        path.inbound(&from(other).udp(999, 53), Reason::Pass);
    }
    let counts = path.generation.classes.counts().unwrap();
    assert_eq!(counts.len(), 1);
    assert_eq!(counts[0].by, By::Country(Some(country("RU"))));
    assert_eq!(counts[0].packets, 2 * 2 * 4);
}

#[test]
fn root_answers_to_our_own_flows_pass() {
    let path = Path::new(&[fence("all", Direction::In, &["country:RU"])], &[]);
    for denied in ["10.1.2.3", "2001:db8:1::3"] {
        path.inbound(&from(denied).udp(53, 4000), Reason::Fenced);
        path.outbound(&to(denied).udp(4000, 53), None);
        path.inbound(&from(denied).udp(53, 4000), Reason::Reply);
        path.inbound(&from(denied).udp(53, 4001), Reason::Fenced);
        path.inbound(&from(denied).udp(54, 4000), Reason::Fenced);
        let (request, _) = echo(denied, true);
        let (reply, _) = echo(denied, false);
        path.inbound(&icmp(from(denied), denied, reply, 0), Reason::Fenced);
        path.outbound(&icmp(to(denied), denied, request, 0), None);
        path.inbound(&icmp(from(denied), denied, reply, 0), Reason::Reply);
    }
    // A neighbour of the one we talked to is somebody else.
    path.inbound(&from("10.1.2.4").udp(53, 4000), Reason::Fenced);
}

/// A fragment behind the first has no flags to tell whether it begins anything:
/// the first one decides, without which it comes to nothing.
#[test]
fn root_later_fragments_of_own_connections_pass() {
    let path = Path::new(&[fence("all", Direction::In, &["country:RU"])], &[]);
    for denied in ["10.1.2.3", "2001:db8:1::3"] {
        let later = |offset, protocol| {
            let packet = from(denied).fragment(offset, false).protocol(protocol);
            packet.payload_len(40)
        };
        let first = |flags| {
            from(denied)
                .fragment(0, true)
                .tcp(80, 4000)
                .tcp_flags(flags)
        };
        path.inbound(&first(ACK), Reason::Pass);
        path.inbound(&first(SYN_ACK), Reason::Pass);
        path.inbound(&later(185, 6), Reason::Pass);
        path.inbound(&later(2, 6), Reason::Pass);
        // A beginning is none the less denied, however it is cut.
        path.inbound(&first(SYN), Reason::Fenced);
        let short = from(denied).fragment(0, true).protocol(6).payload_len(8);
        path.inbound(&short, Reason::Fenced);
        // It could write a SYN over the first one's flags.
        path.inbound(&later(1, 6), Reason::Fenced);
        // Without flags there is the flow's own stamp.
        path.inbound(&later(185, 17), Reason::Fenced);
        path.outbound(&to(denied).udp(4000, 53), None);
        path.inbound(&later(185, 17), Reason::Reply);
    }
    let path = Path::new(
        &[],
        &[(
            "bad",
            "all",
            Direction::In,
            &["10.1.0.0/16", "2001:db8:1::/48"],
        )],
    );
    for listed in ["10.1.2.3", "2001:db8:1::3"] {
        let later = from(listed).fragment(185, false).protocol(6);
        path.inbound(&later.payload_len(40), Reason::Listed);
    }
}

/// This host answers a datagram that it must let in (DHCP) by an ICMP error when
/// nobody listens: that begins nothing, so it lets no echo request in.
#[test]
fn root_an_icmp_error_opens_nothing() {
    let path = Path::new(&[fence("all", Direction::In, &["country:RU"])], &[]);
    for (denied, from_port, port, (kind, code)) in [
        ("10.1.2.3", 67, 68, (3, 3)),
        ("2001:db8:1::3", 547, 546, (1, 4)),
    ] {
        path.inbound(&from(denied).udp(from_port, port), Reason::Essential);
        path.outbound(&icmp(to(denied), denied, kind, code), None);
        for wanted in [true, false] {
            let (echo, _) = echo(denied, wanted);
            path.inbound(&icmp(from(denied), denied, echo, 0), Reason::Fenced);
        }
    }
    // Nor does what a neighbour is told, as he asks for our address.
    let (denied, neighbour) = ("2001:db8:1::3", to("2001:db8:1::3").ttl(255));
    path.outbound(&icmp(neighbour, denied, 136, 0), None);
    for wanted in [true, false] {
        let (echo, _) = echo(denied, wanted);
        path.inbound(&icmp(from(denied), denied, echo, 0), Reason::Fenced);
    }
    // Nor does one that comes in open a way out.
    let path = Path::new(&[fence("all", Direction::Out, &["country:RU"])], &[]);
    for (denied, (kind, code)) in [("10.1.2.3", (3, 3)), ("2001:db8:1::3", (1, 4))] {
        path.inbound(&icmp(from(denied), denied, kind, code), Reason::Pass);
        let (request, _) = echo(denied, true);
        let request = icmp(to(denied), denied, request, 0);
        path.outbound(&request, Some(Reason::FencedOut));
    }
}

/// Tables that grow get another seed, and a class table that grows another map;
/// lists may go and come back: what was asked before is answered all the same.
#[test]
fn root_answers_pass_after_the_tables_have_grown() {
    let mut path = Path::new(&[fence("all", Direction::In, &["country:RU"])], &[]);
    let addrs = ["10.1.2.3", "2001:db8:1::3"];
    for denied in addrs {
        path.outbound(&to(denied).udp(4000, 53), None);
    }
    let lines = path.generation.classes.lines();
    for (number, class_lines) in [(2, lines), (3, lines + 4096), (4, 0), (5, lines)] {
        let options = Options {
            seed: [number, 7_654_321, 555],
            v4_length: 24,
            class_lines,
            flow_jiffies: 120_000,
            ..Options::bans(Geometry::for_bans(BanCounts::each(400)))
        };
        let next = Generation::create(number, &options, Some(&path.generation)).unwrap();
        let anew = class_lines != path.generation.classes.lines();
        path.generation = next;
        if class_lines == 0 {
            continue; // nothing is judged by its class
        }
        if anew {
            path.generation.classes.write(&path.image);
        }
        for denied in addrs {
            path.inbound(&from(denied).udp(53, 4000), Reason::Reply);
            path.inbound(&from(denied).udp(53, 4001), Reason::Fenced);
        }
    }
}

#[test]
fn root_the_first_rule_that_covers_the_port_decides() {
    let mut strict = fence("22/tcp", Direction::In, &[]);
    strict.default = RuleAction::Drop;
    strict.unknown = RuleAction::Drop;
    strict.allow = vec!["country:NL".parse().unwrap()];
    let general = fence("all", Direction::In, &["country:NL"]);
    let path = Path::new(&[strict, general], &[]);
    for (addr, ssh, web) in [
        ("10.1.2.3", Reason::Fenced, Reason::Pass),
        ("10.2.2.3", Reason::Pass, Reason::Fenced),
        ("198.51.100.1", Reason::Fenced, Reason::Pass),
        ("2001:db8:1::3", Reason::Fenced, Reason::Pass),
        ("2001:db8:2::3", Reason::Pass, Reason::Fenced),
    ] {
        path.inbound(&from(addr).tcp(999, 22).tcp_flags(SYN), ssh);
        path.inbound(&from(addr).tcp(999, 80).tcp_flags(SYN), web);
    }
}

#[test]
fn root_lists_deny_every_packet_in_their_direction() {
    let path = Path::new(
        &[],
        &[
            (
                "in",
                "all",
                Direction::In,
                &["10.1.0.0/17", "2001:db8:1::/56"],
            ),
            (
                "web",
                "80/tcp",
                Direction::In,
                &["10.1.128.7", "2001:db8:9::7"],
            ),
            (
                "both",
                "all",
                Direction::Both,
                &["10.3.0.0/30", "2001:db8:4::/127"],
            ),
        ],
    );
    for listed in ["10.1.2.3", "2001:db8:1::3"] {
        path.inbound(&from(listed).tcp(999, 22).tcp_flags(ACK), Reason::Listed);
        path.inbound(&from(listed).udp(53, 999), Reason::Listed);
        path.outbound(&to(listed).udp(999, 53), None);
    }
    for listed in ["10.1.128.7", "2001:db8:9::7"] {
        path.inbound(&from(listed).tcp(999, 80), Reason::Listed);
        path.inbound(&from(listed).tcp(999, 81), Reason::Pass);
        path.inbound(&from(listed).udp(999, 80), Reason::Pass);
    }
    for beside in ["10.1.128.8", "2001:db8:9::8", "10.3.0.4", "2001:db8:4::2"] {
        path.inbound(&from(beside).tcp(999, 80), Reason::Pass);
    }
    for listed in ["10.3.0.3", "2001:db8:4::1"] {
        path.inbound(&from(listed).tcp(999, 80), Reason::Listed);
        path.outbound(&to(listed).tcp(999, 80), Some(Reason::ListedOut));
    }
    let counts = path.generation.classes.counts().unwrap();
    let of = |bit| {
        counts
            .iter()
            .find(|c| c.by == By::List(bit))
            .map(|c| c.packets)
    };
    assert_eq!((of(0), of(1), of(2)), (Some(8), Some(4), Some(6)));
}

#[test]
fn root_outbound_flows_are_judged_by_where_they_go() {
    let path = Path::new(
        &[fence("443/tcp,53/udp", Direction::Out, &["country:RU"])],
        &[],
    );
    for denied in ["10.1.2.3", "2001:db8:1::3"] {
        path.inbound(&from(denied).tcp(999, 443).tcp_flags(SYN), Reason::Pass);
        path.outbound(
            &to(denied).tcp(999, 443).tcp_flags(SYN),
            Some(Reason::FencedOut),
        );
        path.outbound(&to(denied).tcp(443, 999).tcp_flags(SYN_ACK), None);
        path.outbound(&to(denied).udp(999, 53), Some(Reason::FencedOut));
        path.outbound(&to(denied).udp(999, 54), None);
        // They asked us: what we say is an answer.
        path.inbound(&from(denied).udp(53, 999), Reason::Pass);
        path.outbound(&to(denied).udp(999, 53), Some(Reason::Reply));
    }
}

/// Issue 13, 10: additions before deletions found no room for good.
#[test]
fn root_an_allow_list_changes_at_its_cap() {
    // Who is not allowed is dropped.
    let denied = ["11.0.0.0/8", "2a00::/16"];
    let path = Path::new(&[], &[("bad", "all", Direction::Both, &denied)]);
    let many = |first: u32, count: u32| (first..first + count).map(|n| (0x0b00_0000 + 2 * n, n));
    let v4 = |first, count| {
        many(first, count).map(|(n, _)| Prefix::host(std::net::Ipv4Addr::from_bits(n).into()))
    };
    let v6 = |first, count| {
        many(first, count).map(|(_, n)| {
            let bits = 0x2a00_u128 << 112 | u128::from(n) << 64;
            Prefix::host(std::net::Ipv6Addr::from_bits(bits).into())
        })
    };
    let both = |first, count| v4(first, count).chain(v6(first, count));
    let allow = &path.generation.allow;
    let full = 65_536;
    // A tenth of it is new, all of it is.
    for first in [0, full / 10, full / 5, 2 * full] {
        let wanted: PrefixSet = both(first, full).collect();
        allow.write(&wanted).unwrap();
        for (n, _) in [many(first, full).next(), many(first, full).next_back()]
            .into_iter()
            .flatten()
        {
            let addr = std::net::Ipv4Addr::from_bits(n).to_string();
            path.inbound(&from(&addr).udp(999, 22), Reason::Allowed);
        }
    }
    // What makes room is covered by what comes.
    let covering = ["11.0.0.0/8", "2a00::/16"].map(|p| p.parse().unwrap());
    let elsewhere = both(1 << 23, full - 1).chain(covering);
    allow.write(&elsewhere.collect()).unwrap();
    for allowed in ["11.4.0.0", "2a00:0:2::"] {
        path.inbound(&from(allowed).udp(999, 22), Reason::Allowed);
    }
    // And it is refused when there is no room.
    assert!(allow.write(&v4(0, full + 1).collect()).is_err());
    allow.write(&v4(0, 1).collect()).unwrap();
    path.inbound(&from("11.0.0.0").udp(999, 22), Reason::Allowed);
}

#[test]
fn root_the_allow_list_wins_and_bans_come_first() {
    let path = Path::new(
        &[fence("all", Direction::In, &["country:RU"])],
        &[(
            "bad",
            "all",
            Direction::Both,
            &["10.1.9.0/24", "2001:db8:1:9::/64"],
        )],
    );
    let allow = [
        "10.1.2.0/24",
        "10.1.9.9",
        "2001:db8:1:9::9",
        "2001:db8:1:2::/64",
    ];
    let allow: PrefixSet = allow.iter().map(|p| p.parse().unwrap()).collect();
    path.generation.allow.write(&allow).unwrap();
    for allowed in ["10.1.2.3", "10.1.9.9", "2001:db8:1:9::9", "2001:db8:1:2::5"] {
        path.inbound(&from(allowed).udp(999, 22), Reason::Allowed);
    }
    path.outbound(&to("10.1.9.9").udp(1, 2), Some(Reason::Allowed));
    small_maps::write_policy(
        &path.generation.policies,
        1,
        &PortSet::all(),
        Action::Drop,
        "test",
    )
    .unwrap();
    small_maps::write_policy(
        &path.generation.policies,
        2,
        &"80/tcp".parse().unwrap(),
        Action::Drop,
        "test",
    )
    .unwrap();
    for (addr, policy) in [
        ("10.1.9.3", 1),
        ("10.1.9.4", 2 | POLICY_SCOPED),
        ("10.2.0.1", 1),
    ] {
        path.generation.table.insert(Slot {
            key: Key::of(addr.parse().unwrap()).unwrap(),
            policy,
            expiry: NEVER,
        });
    }
    path.inbound(&from("10.1.9.3").udp(999, 22), Reason::BannedAll);
    path.inbound(&from("10.1.9.4").tcp(999, 80), Reason::BannedScope);
    // The ban covers another port, the list covers this one.
    path.inbound(&from("10.1.9.4").tcp(999, 81), Reason::Listed);
    path.inbound(&from("10.2.0.1").tcp(999, 81), Reason::BannedAll);
    path.generation.table.set_observe(true);
    path.inbound(&from("10.1.9.4").tcp(999, 81), Reason::Observed);
}

#[test]
fn root_a_swap_replaces_the_whole_table() {
    let path = Path::new(&[], &[("a", "all", Direction::In, &["10.1.0.0/24"])]);
    path.inbound(&from("10.1.0.7").udp(9, 9), Reason::Listed);
    let scope = PortSet::all();
    let other: Vec<Prefix> = vec!["10.1.1.0/24".parse().unwrap()];
    let lists = [ListLayer {
        name: "a",
        scope: &scope,
        direction: Direction::In,
        prefixes: &other,
    }];
    let plan = Plan {
        geo_table: &GeoTable::default(),
        fences: &[],
        lists: &lists,
    };
    for _ in 0..3 {
        let image = ClassImage::build(&plan.join().unwrap(), &[0], SEED);
        path.generation.classes.write(&image);
        path.inbound(&from("10.1.0.7").udp(9, 9), Reason::Pass);
        path.inbound(&from("10.1.1.7").udp(9, 9), Reason::Listed);
    }
    path.generation.classes.clear();
    path.inbound(&from("10.1.1.7").udp(9, 9), Reason::Pass);
}

/// Thousands of prefixes, in all forms that the table has: blocks of one class,
/// of one but for a few parts, within another list, and of very many parts.
#[test]
fn root_the_packet_path_finds_what_the_classes_say() {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 32) as u32
    };
    let v4 = |bits: u32, len| Prefix::new(IpAddr::V4(bits.into()), len).unwrap();
    let v6 = |bits: u128, len| Prefix::new(IpAddr::V6(bits.into()), len).unwrap();
    let mut lists = [Vec::new(), Vec::new()];
    for n in 0..1500u32 {
        let (r, list) = (random(), (n % 2) as usize);
        // Two blocks with hundreds of parts, 80 with so few that they are hashed.
        let dense = n % 3 == 0;
        let block = if dense { n % 2 } else { 2 + n % 80 };
        let lens = match dense {
            true => [(20, 40), (24, 48), (25, 56), (30, 64), (32, 127), (32, 128)],
            false => [(24, 48), (24, 48), (30, 64), (32, 64), (32, 127), (32, 128)],
        };
        let (len4, len6) = lens[(r >> 20) as usize % 6];
        lists[list].push(v4(0x0b14_0000 + (block << 16) + (r & 0xffff), len4));
        let block = (0x2a0b_0000u128 + u128::from(block)) << 96;
        let low = u128::from(r & 0xff) << 80 | u128::from(r >> 9 & 3) << 64 | u128::from(r >> 30);
        lists[list].push(v6(block | low, len6));
    }
    // All of these blocks is on the first list, and a part on both.
    lists[0].extend([v4(0x0b18_0000, 15), v6(0x2a0b_0004u128 << 96, 31)]);
    let scopes: [PortSet; 2] = ["all".parse().unwrap(), "80/tcp".parse().unwrap()];
    let layers: Vec<_> = lists
        .iter()
        .zip(&scopes)
        .map(|(prefixes, scope)| ListLayer {
            name: "list",
            scope,
            direction: Direction::In,
            prefixes,
        })
        .collect();
    let classes = Plan {
        geo_table: &GeoTable::default(),
        fences: &[],
        lists: &layers,
    };
    let classes = classes.join().unwrap();
    let path = Path::with(&classes);
    let v4 = classes.v4.iter().flat_map(|span| {
        [
            span.first.wrapping_sub(1),
            span.first,
            span.last,
            span.last.wrapping_add(1),
        ]
        .map(|bits| IpAddr::V4(bits.into()))
    });
    let v6 = classes.v6.iter().flat_map(|span| {
        [
            span.first.wrapping_sub(1),
            span.first,
            span.last,
            span.last.wrapping_add(1),
        ]
        .map(|bits| IpAddr::V6(bits.into()))
    });
    let mut seen = [0; 2];
    for (n, addr) in v4.chain(v6).enumerate() {
        let hook = [Hook::Xdp, Hook::Tcx][n % 2];
        for port in [22, 80] {
            let said = classes.judge(addr, false, Some((6, port)));
            let wanted = said.reason().unwrap_or(Reason::Pass);
            let packet = Packet::eth().ip(addr, host(&addr.to_string()));
            let left = path.leaves(hook, &packet.tcp(999, port).tcp_flags(SYN));
            assert_eq!(left, Some(wanted), "{addr} to {port} on {}", hook.name());
            seen[usize::from(wanted == Reason::Listed)] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 2000), "{seen:?}");
}
