//! Packets through the packet path by BPF_PROG_RUN, on XDP and tcx: a table of
//! cases, each cut at every byte, and ten million generated ones, all against
//! the reference decoder of `weir-testkit`, which shares no code. Root: loads BPF.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use weir_bpf::{
    BanCounts, Generation, Geometry, Key, Options, Slot,
    attachment::{Hook, Link},
    prog_test_run,
    programs::netfilter_supported,
    small_maps,
    table::NEVER,
    tables::POLICY_SCOPED,
};
use weir_core::{Action, PortSet, Prefix, Reason};
use weir_netlab::{Side, VethOpts, wait_for};
use weir_testkit::{
    decode::{self, Allow, Decoded, L3, Table, Verdict, decode, reference_verdict},
    packet::{Packet, proto},
    traffic,
};

const HOST4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const HOST6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1);
const HOOKS: [Hook; 2] = [Hook::Xdp, Hook::Tcx];

/// A generation with bans, and the same bans as the reference has them.
struct Path {
    generation: Generation,
    table: Table,
    allow: Allow,
    observe: bool,
}

impl Path {
    fn new() -> Self {
        let options = Options {
            seed: [11, 22, 33],
            v4_length: 24,
            ..Options::bans(Geometry::for_bans(BanCounts::each(200)))
        };
        let generation = Generation::create(1, &options, None).expect("the packet path loads");
        // Where BPF_PROG_RUN has its packets come in.
        generation.judge_interface(0).unwrap();
        let table = Table {
            fixed_v4: Some(24),
            ..Table::default()
        };
        let mut path = Self {
            generation,
            table,
            allow: Allow::default(),
            observe: false,
        };
        for subject in [
            "192.0.2.7",
            "198.51.100.0/24",
            "2001:db8:1::/64",
            "2001:db8:2::7",
        ] {
            path.ban(subject, "all", 1);
        }
        for subject in [
            "192.0.2.8",
            "198.51.101.0/24",
            "2001:db8:3::/64",
            "2001:db8:2::8",
        ] {
            path.ban(subject, "22/tcp,6000-6010/udp,53", 2);
        }
        // Two bans on one subject: of two jails, of host and net.
        path.ban("192.0.2.9", "22/tcp", 3);
        path.ban("192.0.2.9", "80/tcp", 4);
        path.ban("2001:db8:3::9", "80/tcp", 4);
        path.ban("198.51.101.5", "all", 1);
        path.allow(&[
            "198.51.100.64/26",
            "192.0.2.10",
            "2001:db8:1:0:8::/80",
            "2001:db8:2::a",
            "0.1.2.10",
            "::a",
        ]);
        path.ban("192.0.2.10", "all", 1);
        path.ban("2001:db8:2::a", "22", 5);
        path
    }

    fn ban(&mut self, subject: &str, scope: &str, number: u16) {
        let prefix: Prefix = subject.parse().unwrap();
        let scope: PortSet = scope.parse().unwrap();
        small_maps::write_policy(
            &self.generation.policies,
            number.into(),
            &scope,
            Action::Drop,
            "test",
        )
        .unwrap();
        let policy = if scope.is_all() {
            number
        } else {
            number | POLICY_SCOPED
        };
        let key = Key::of(prefix).unwrap();
        self.generation.table.insert(Slot {
            key,
            policy,
            expiry: NEVER,
        });
        let ranges = scope.ranges().iter().map(|r| decode::PortRange {
            proto: Some(r.protocol.number()).filter(|n| *n != 0),
            lo: r.low,
            hi: r.high,
        });
        let scope = if scope.is_all() {
            decode::Scope::all()
        } else {
            decode::Scope::ports(ranges)
        };
        self.table
            .ban(decode::Prefix::new(prefix.addr(), prefix.bits()), scope);
    }

    fn allow(&mut self, prefixes: &[&str]) {
        let prefixes: Vec<Prefix> = prefixes.iter().map(|p| p.parse().unwrap()).collect();
        self.allow.prefixes = prefixes
            .iter()
            .map(|p| decode::Prefix::new(p.addr(), p.bits()))
            .collect();
        self.generation
            .allow
            .write(&prefixes.into_iter().collect())
            .unwrap();
    }

    fn run(&self, hook: Hook, frame: &[u8]) -> prog_test_run::RunResult {
        let program = self.generation.program(hook).unwrap();
        match hook {
            Hook::Netfilter => prog_test_run::netfilter(program, frame),
            _ => prog_test_run::packet(program, frame, 1),
        }
        .expect("the program runs")
    }

    /// What the reference says, in the packet path's words.
    fn expected(&self, decoded: &Decoded) -> (bool, Reason) {
        use decode::Reason as R;
        let (verdict, reason) = reference_verdict(decoded, &self.table, &self.allow);
        let reason = match reason {
            R::BannedAll | R::BannedScope if self.observe => Reason::Observed,
            R::Pass => Reason::Pass,
            R::NotIp => Reason::NotIp,
            R::Malformed => Reason::Malformed,
            R::InvalidSource | R::TooManyTags if self.observe => Reason::Observed,
            R::InvalidSource => Reason::InvalidSource,
            R::TooManyTags => Reason::TooManyTags,
            R::Allowed => Reason::Allowed,
            R::BannedAll => Reason::BannedAll,
            R::BannedScope => Reason::BannedScope,
            R::OtherPort => Reason::OtherPort,
            R::Essential => Reason::Essential,
        };
        (verdict == Verdict::Drop && !self.observe, reason)
    }

    fn counters(&self) -> [(u64, u64); Reason::ALL.len()] {
        small_maps::read_counters(&self.generation.counters)
            .unwrap()
            .try_into()
            .unwrap()
    }
}

/// Pass and drop as the hook says them; tcx passes with TCX_NEXT.
fn word(hook: Hook, drop: bool) -> u32 {
    match (hook, drop) {
        (Hook::Tcx, false) => u32::MAX,
        (Hook::Tcx, true) => 2,
        (Hook::Netfilter, drop) => u32::from(!drop),
        (_, false) => 2,
        (_, true) => 1,
    }
}

/// BPF_PROG_RUN of tc programs refuses (EINVAL) an skb whose IP header is not whole,
/// and that of netfilter programs what is not IP besides; the NAPI_FRAGS test sends
/// such ones over a device.
fn runs_on(hook: Hook, frame: &[u8]) -> bool {
    let least = match frame[12..14] {
        [0x08, 0x00] => 34,
        [0x86, 0xdd] => 54,
        _ => 15,
    };
    match hook {
        Hook::Tcx => frame.len() >= least,
        Hook::Netfilter => least > 15 && frame.len() >= least,
        _ => true,
    }
}

fn from(source: &str) -> Packet {
    Packet::eth().ip(
        source.parse().unwrap(),
        if source.contains(':') {
            HOST6.into()
        } else {
            HOST4.into()
        },
    )
}

/// Priority tags, which name no VLAN.
fn tagged(count: usize) -> Packet {
    (0..count).fold(Packet::eth(), |p, _| p.vlan(0))
}

fn cases() -> Vec<(&'static str, Packet, Reason)> {
    use Reason::*;
    vec![
        ("innocent", from("192.0.2.1").tcp(1234, 22), Pass),
        ("innocent, IPv6", from("2001:db8::1").tcp(1234, 22), Pass),
        (
            "not IP",
            Packet::eth().ethertype(0x0806).payload_len(28),
            NotIp,
        ),
        ("banned", from("192.0.2.7").tcp(1234, 22), BannedAll),
        (
            "banned, any port",
            from("192.0.2.7").udp(1234, 9),
            BannedAll,
        ),
        ("banned, no ports", from("192.0.2.7").icmp(8, 0), BannedAll),
        ("banned net", from("198.51.100.200").tcp(1, 2), BannedAll),
        (
            "beside the banned net",
            from("198.51.102.200").tcp(1, 2),
            Pass,
        ),
        ("banned /64", from("2001:db8:1::ffff").tcp(1, 2), BannedAll),
        (
            "beside the banned /64",
            from("2001:db8:1:1::ffff").tcp(1, 2),
            Pass,
        ),
        ("banned /128", from("2001:db8:2::7").tcp(1, 2), BannedAll),
        (
            "beside the banned /128",
            from("2001:db8:2::6").tcp(1, 2),
            Pass,
        ),
        (
            "scope, port in it",
            from("192.0.2.8").tcp(1234, 22),
            BannedScope,
        ),
        (
            "scope, port beside",
            from("192.0.2.8").tcp(1234, 80),
            OtherPort,
        ),
        (
            "scope, other protocol",
            from("192.0.2.8").udp(1234, 22),
            OtherPort,
        ),
        (
            "scope, range",
            from("192.0.2.8").udp(1234, 6010),
            BannedScope,
        ),
        (
            "scope, behind the range",
            from("192.0.2.8").udp(1234, 6011),
            OtherPort,
        ),
        (
            "scope, any protocol",
            from("192.0.2.8").sctp(1234, 53),
            BannedScope,
        ),
        (
            "scope, IPv6 /64",
            from("2001:db8:3::1").tcp(1234, 22),
            BannedScope,
        ),
        (
            "scope, IPv6 /128",
            from("2001:db8:2::8").tcp(1234, 22),
            BannedScope,
        ),
        (
            "scope, IPv6 port beside",
            from("2001:db8:2::8").tcp(1234, 23),
            OtherPort,
        ),
        ("scope, no ports", from("192.0.2.8").icmp(8, 0), OtherPort),
        (
            "scope, source port does not count",
            from("192.0.2.8").tcp(22, 1234),
            OtherPort,
        ),
        (
            "two jails, first port",
            from("192.0.2.9").tcp(1, 22),
            BannedScope,
        ),
        (
            "two jails, second port",
            from("192.0.2.9").tcp(1, 80),
            BannedScope,
        ),
        (
            "two jails, third port",
            from("192.0.2.9").tcp(1, 443),
            OtherPort,
        ),
        (
            "ban of net and host, net's port",
            from("2001:db8:3::9").tcp(1, 22),
            BannedScope,
        ),
        (
            "ban of net and host, host's port",
            from("2001:db8:3::9").tcp(1, 80),
            BannedScope,
        ),
        (
            "host all, net scoped",
            from("198.51.101.5").tcp(1, 81),
            BannedAll,
        ),
        ("allowed", from("192.0.2.10").tcp(1, 22), Allowed),
        (
            "allowed inside a banned net",
            from("198.51.100.65").tcp(1, 22),
            Allowed,
        ),
        (
            "allowed inside a banned /64",
            from("2001:db8:1:0:8::1").tcp(1, 22),
            Allowed,
        ),
        (
            "allowed, port beside the ban",
            from("2001:db8:2::a").tcp(1, 23),
            OtherPort,
        ),
        (
            "first fragment",
            from("192.0.2.8").fragment(0, true).tcp(1, 22),
            BannedScope,
        ),
        (
            "later fragment, all ports",
            from("192.0.2.7").fragment(8, false).payload_len(40),
            BannedAll,
        ),
        (
            "later fragment, scope",
            from("192.0.2.8")
                .fragment(8, true)
                .protocol(6)
                .payload_len(40),
            OtherPort,
        ),
        (
            "IPv6 later fragment, scope",
            from("2001:db8:2::8")
                .fragment(8, true)
                .protocol(6)
                .payload_len(40),
            OtherPort,
        ),
        (
            "IPv6 first fragment, scope",
            from("2001:db8:2::8").fragment(0, true).tcp(1, 22),
            BannedScope,
        ),
        (
            "first fragment without ports",
            from("192.0.2.8")
                .fragment(0, true)
                .protocol(6)
                .payload_len(2),
            BannedScope,
        ),
        (
            "options",
            from("192.0.2.8").options(&[1; 40]).tcp(1, 22),
            BannedScope,
        ),
        (
            "options, port beside",
            from("192.0.2.8").options(&[1; 40]).tcp(1, 23),
            OtherPort,
        ),
        (
            "ihl below 5",
            from("192.0.2.7").ihl(4).tcp(1, 22),
            Malformed,
        ),
        (
            "total length below the header",
            from("192.0.2.7").length(19).tcp(1, 22),
            Malformed,
        ),
        (
            "version 5",
            from("192.0.2.7").version(5).tcp(1, 22),
            Malformed,
        ),
        (
            "version 7",
            from("2001:db8:2::7").version(7).tcp(1, 22),
            Malformed,
        ),
        (
            "ports in the padding do not exist",
            from("192.0.2.8").length(20).tcp(1, 23),
            BannedScope,
        ),
        (
            "one tag",
            Packet::eth().vlan(5).ip4([192, 0, 2, 7], HOST4).tcp(1, 22),
            BannedAll,
        ),
        (
            "two tags",
            Packet::eth()
                .qinq(5)
                .vlan(6)
                .ip6("2001:db8:2::8".parse::<Ipv6Addr>().unwrap(), HOST6)
                .tcp(1, 22),
            BannedScope,
        ),
        (
            "three tags",
            Packet::eth()
                .qinq(5)
                .vlan(6)
                .vlan(7)
                .ip4([192, 0, 2, 7], HOST4)
                .tcp(1, 22),
            BannedAll,
        ),
        (
            "eight priority tags",
            tagged(8).ip4([192, 0, 2, 7], HOST4).tcp(1, 22),
            BannedAll,
        ),
        (
            "eight priority tags, innocent",
            tagged(8).ip4([192, 0, 2, 1], HOST4).tcp(1, 22),
            Pass,
        ),
        (
            "nine priority tags",
            tagged(9).ip4([192, 0, 2, 1], HOST4).tcp(1, 22),
            TooManyTags,
        ),
        (
            "from this network",
            from("0.1.2.3").udp(1, 22),
            InvalidSource,
        ),
        (
            "from this network, as DHCP",
            from("0.1.2.3").udp(68, 67),
            InvalidSource,
        ),
        (
            "without an address",
            from("0.0.0.0").udp(1, 22),
            InvalidSource,
        ),
        ("DHCP without an address", from("0.0.0.0").udp(68, 67), Pass),
        (
            "DHCP reply without an address",
            from("0.0.0.0").udp(67, 68),
            InvalidSource,
        ),
        (
            "IGMP without an address",
            from("0.0.0.0")
                .options(&[148, 4, 0, 0])
                .protocol(2)
                .payload_len(8),
            Pass,
        ),
        (
            "IPv4-mapped",
            from("::ffff:192.0.2.1").tcp(1, 22),
            InvalidSource,
        ),
        (
            "IPv4-compatible",
            from("::192.0.2.1").icmp6(128, 0),
            InvalidSource,
        ),
        ("from ::/24", from("::5").udp(1, 22), InvalidSource),
        (
            "from ::/24 as a neighbour",
            from("::5").solicitation(HOST6),
            InvalidSource,
        ),
        ("loopback", from("::1").tcp(1, 22), Pass),
        ("behind ::/24", from("64:ff9b::c000:201").tcp(1, 22), Pass),
        (
            "without an IPv6 address",
            from("::").udp(546, 547),
            InvalidSource,
        ),
        (
            "duplicate address detection",
            from("::").solicitation(HOST6),
            Pass,
        ),
        (
            "router solicitation",
            from("::").ttl(255).icmp6(133, 0),
            Pass,
        ),
        (
            "neighbour advertisement from nobody",
            from("::").advertisement(HOST6),
            InvalidSource,
        ),
        (
            "listener report",
            from("::").ttl(1).hop_by_hop().icmp6(143, 0),
            Pass,
        ),
        (
            "listener report from afar",
            from("::").ttl(2).hop_by_hop().icmp6(143, 0),
            InvalidSource,
        ),
        (
            "first fragment of a listener report",
            from("::").ttl(1).fragment(0, true).icmp6(143, 0),
            InvalidSource,
        ),
        (
            "allowed, of this network",
            from("0.1.2.10").tcp(1, 22),
            Allowed,
        ),
        ("allowed, of ::/24", from("::a").tcp(1, 22), Allowed),
        (
            "extension headers",
            from("2001:db8:2::8")
                .hop_by_hop()
                .destination()
                .routing()
                .auth()
                .tcp(1, 22),
            BannedScope,
        ),
        (
            "extension headers, port beside",
            from("2001:db8:2::8")
                .hop_by_hop()
                .destination()
                .routing()
                .auth()
                .tcp(1, 23),
            OtherPort,
        ),
        (
            "six extension headers",
            (0..6)
                .fold(from("2001:db8:2::8"), |p, _| p.destination())
                .tcp(1, 23),
            OtherPort,
        ),
        (
            "seven extension headers",
            (0..7)
                .fold(from("2001:db8:2::8"), |p, _| p.destination())
                .tcp(1, 23),
            BannedScope,
        ),
        (
            "ESP hides ports",
            from("2001:db8:2::8").extension(proto::ESP, &[0; 30]),
            OtherPort,
        ),
        (
            "neighbour solicitation",
            from("2001:db8:2::7").solicitation(HOST6),
            Essential,
        ),
        (
            "solicitation from afar",
            from("2001:db8:2::7").solicitation(HOST6).ttl(254),
            BannedAll,
        ),
        ("DHCP reply", from("192.0.2.7").udp(67, 68), Essential),
        (
            "DHCPv6 reply",
            from("2001:db8:2::7").udp(547, 546),
            Essential,
        ),
        ("looks like DHCP", from("192.0.2.7").udp(67, 69), BannedAll),
        (
            "jumbo frame",
            from("192.0.2.8").tcp(1, 22).payload_len(3000),
            BannedScope,
        ),
    ]
}

#[test]
fn root_packet_cases() {
    let path = Path::new();
    for (name, packet, reason) in cases() {
        let frame = packet.pad().build();
        assert_eq!(
            path.expected(&decode(&frame, 0)),
            (reason.is_drop(), reason),
            "{name}: the reference"
        );
        for hook in HOOKS {
            let before = path.counters();
            let answer = path.run(hook, &frame);
            assert_eq!(
                answer.verdict,
                word(hook, reason.is_drop()),
                "{name} on {}",
                hook.name()
            );
            assert_eq!(
                answer.packet,
                frame,
                "{name} on {}: the packet was changed",
                hook.name()
            );
            let after = path.counters();
            for r in Reason::ALL {
                let (packets, bytes) = if r == reason {
                    (1, frame.len() as u64)
                } else {
                    (0, 0)
                };
                let (b, a) = (before[r as usize], after[r as usize]);
                assert_eq!(
                    (a.0 - b.0, a.1 - b.1),
                    (packets, bytes),
                    "{name} on {}: counted as {r}",
                    hook.name()
                );
            }
        }
    }
}

#[test]
fn root_packets_cut_at_every_byte() {
    let path = Path::new();
    for (name, packet, _) in cases() {
        let whole = packet.build();
        // The kernel runs no frame without a byte behind the Ethernet header.
        for len in 15..whole.len().min(400) {
            let cut = &whole[..len];
            let (drop, reason) = path.expected(&decode(cut, 0));
            for hook in HOOKS.into_iter().filter(|hook| runs_on(*hook, cut)) {
                let before = path.counters()[reason as usize].0;
                let verdict = path.run(hook, cut).verdict;
                assert_eq!(
                    verdict,
                    word(hook, drop),
                    "{name} cut at {len} on {}",
                    hook.name()
                );
                let counted = path.counters()[reason as usize].0 - before;
                assert_eq!(
                    counted,
                    1,
                    "{name} cut at {len} on {}: not {reason}",
                    hook.name()
                );
            }
        }
    }
}

/// A TAP with NAPI_FRAGS hands the tc hook skbs whose linear part ends after
/// 34 bytes or less: the packet path must pull what it needs.
#[test]
fn root_packets_with_short_heads() {
    let net = weir_netlab::Net::new().unwrap();
    let host = net.namespace("tap").unwrap();
    let path = Path::new();
    host.enter(|| {
        let tap = tap::open("t0").expect("a TAP with NAPI_FRAGS");
        host.run("ip", &["link", "set", "t0", "up"]).unwrap();
        let index = host.ifindex("t0").unwrap();
        let tcx = path.generation.program(Hook::Tcx).unwrap();
        let _link = match Link::attach(tcx, index, Hook::Tcx) {
            Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => {
                println!("skipped: no tcx (Linux 6.6)");
                return;
            }
            attached => attached.expect("tcx attaches to a TAP"),
        };
        for (name, packet, reason) in cases() {
            let frame = packet.pad().build();
            let before = path.counters();
            tap::write(&tap, &frame).unwrap_or_else(|e| panic!("{name}: {e}"));
            let after = path.counters();
            let counted: Vec<_> = Reason::ALL
                .into_iter()
                .filter(|r| after[*r as usize].0 != before[*r as usize].0)
                .collect();
            // The stack itself throws away what it cannot parse before tc.
            if counted.is_empty() && matches!(reason, Reason::Malformed | Reason::TooManyTags) {
                continue;
            }
            assert_eq!(counted, [reason], "{name}");
        }
    })
    .unwrap();
}

/// What passes XDP's generic mode comes to whatever is behind it as it was: of a
/// program for frames of many pages the kernel would copy them and leave the
/// Ethernet header out (docs/kernel.md). The one behind it is weir's own, by tcx.
#[test]
fn root_generic_xdp_leaves_frames_whole() {
    let net = weir_netlab::Net::new().unwrap();
    let (host, peer) = (net.namespace("h").unwrap(), net.namespace("p").unwrap());
    let opts = VethOpts::new(&["203.0.113.1/24"], &["203.0.113.2/24"]).unwrap();
    let veth = net.veth(&host, "e0", &peer, "e0", opts.mtu(9000)).unwrap();
    let index = host.ifindex("e0").unwrap();
    let options = Options::bans(Geometry::for_bans(BanCounts::each(200)));
    let first = Generation::create(1, &options, None).unwrap();
    let behind = Path::new();
    let hook = Hook::XdpGeneric;
    let attach = |program, hook| host.enter(|| Link::attach(program, index, hook)).unwrap();
    let _generic =
        attach(first.program(hook).unwrap(), hook).expect("generic mode takes any device");
    let _tcx = match attach(behind.generation.program(Hook::Tcx).unwrap(), Hook::Tcx) {
        Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => {
            println!("skipped: no tcx (Linux 6.6)");
            return;
        }
        attached => attached.expect("tcx attaches behind it"),
    };
    let wire = || Packet::eth_between(veth.mac(Side::B), veth.mac(Side::A));
    let frames: Vec<_> = [0, 40, 300, 1400, 3000, 4000, 8900]
        .into_iter()
        .flat_map(|len| ["192.0.2.7", "2001:db8:1::1"].map(|source| (len, source)))
        .map(|(len, source)| {
            let source: IpAddr = source.parse().unwrap();
            let own = match source {
                IpAddr::V4(_) => IpAddr::from(HOST4),
                IpAddr::V6(_) => HOST6.into(),
            };
            wire().ip(source, own).udp(9, 22).payload_len(len).build()
        })
        .collect();
    const TIMES: usize = 20;
    let all = frames.iter().cycle().take(frames.len() * TIMES);
    let sent = traffic::send_frames(&peer, "e0", all.map(Vec::as_slice)).unwrap();
    assert_eq!(sent as usize, frames.len() * TIMES);
    let what = "all of them behind generic XDP, their headers whole";
    wait_for(what, Duration::from_secs(60), || {
        let seen = behind.counters();
        let others: u64 = seen.iter().map(|(packets, _)| packets).sum();
        let banned = seen[Reason::BannedAll as usize].0;
        assert!(
            others - banned < 50,
            "{banned} whole, {} not",
            others - banned
        );
        Ok((banned == sent).then_some(()))
    })
    .unwrap();
}

mod tap {
    #![allow(unsafe_code, reason = "no safe crate makes a TAP with NAPI_FRAGS")]

    use std::{
        fs::File,
        io::{self, IoSlice, Write},
        os::fd::AsRawFd,
    };

    pub fn open(name: &str) -> io::Result<File> {
        const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
        let tap = File::options()
            .read(true)
            .write(true)
            .open("/dev/net/tun")?;
        // SAFETY: an all-zero ifreq is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags =
            (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_NAPI | libc::IFF_NAPI_FRAGS)
                as libc::c_short;
        // SAFETY: TUNSETIFF reads the ifreq, which outlives the call.
        if unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETIFF, &raw mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(tap)
    }

    /// Each part becomes a page fragment of its own.
    pub fn write(mut tap: &File, frame: &[u8]) -> io::Result<usize> {
        let (head, rest) = frame.split_at(20);
        let (middle, tail) = rest.split_at(rest.len() / 2);
        tap.write_vectored(&[IoSlice::new(head), IoSlice::new(middle), IoSlice::new(tail)])
    }
}

/// xorshift64*: the same packets in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

const SOURCES4: [[u8; 4]; 18] = [
    [192, 0, 2, 7],
    [192, 0, 2, 8],
    [192, 0, 2, 8],
    [192, 0, 2, 9],
    [192, 0, 2, 10],
    [198, 51, 100, 1],
    [198, 51, 100, 70],
    [198, 51, 101, 1],
    [198, 51, 101, 5],
    [192, 0, 2, 1],
    [192, 0, 2, 6],
    [198, 51, 99, 255],
    [8, 8, 8, 8],
    [0, 0, 0, 0],
    [0, 1, 2, 3],
    [0, 1, 2, 10],
    [224, 0, 0, 1],
    [10, 0, 0, 1],
];
const SOURCES6: [&str; 17] = [
    "2001:db8:1::1",
    "2001:db8:1::2",
    "2001:db8:1:0:8::5",
    "2001:db8:2::7",
    "2001:db8:2::8",
    "2001:db8:2::a",
    "2001:db8:3::1",
    "2001:db8:3::9",
    "2001:db8:1:1::1",
    "2001:db8:2::6",
    "fe80::1",
    "::",
    "::ffff:192.0.2.7",
    "::5",
    "::a",
    "::1",
    "2620::1",
];

fn generated(r: &mut Random) -> Vec<u8> {
    let mut p = Packet::eth();
    for _ in 0..r.pick(&[0, 0, 0, 0, 0, 0, 1, 1, 2, 2]) {
        p = if r.one_in(2) { p.vlan(7) } else { p.qinq(8) };
    }
    if r.one_in(30) {
        let tags = 1 + r.below(10);
        p = (0..tags).fold(p, |p, _| p.vlan(0));
    }
    let v6 = r.one_in(2);
    let protocol = r.pick(&[6, 6, 6, 17, 17, 17, 132, 136, 33, 1, 58, 50, 59, 0xfd, 2]);
    if v6 {
        let source: Ipv6Addr = r.pick(&SOURCES6).parse().expect("constants parse");
        p = p.ip6(source, HOST6);
        for _ in 0..r.pick(&[0, 0, 0, 0, 1, 1, 2, 3, 6, 7]) {
            p = match r.below(8) {
                0 => p.hop_by_hop(),
                1 => p.routing(),
                2 => p.auth(),
                3 => p.fragment(0, r.one_in(2)),
                4 if r.one_in(4) => p.fragment(1 + r.below(100) as u16, r.one_in(2)),
                5 => p.extension(
                    r.pick(&[proto::MOBILITY, proto::HIP, proto::SHIM6]),
                    &[0; 14],
                ),
                _ => p.destination(),
            };
        }
    } else {
        p = p.ip4(r.pick(&SOURCES4), HOST4);
        if r.one_in(8) {
            p = p.options(&vec![1; 4 * (1 + r.below(10) as usize)]);
        }
        if r.one_in(10) {
            p = p.fragment(r.pick(&[0, 0, 1, 185]), r.one_in(2));
        }
        if r.one_in(80) {
            p = p.ihl(r.below(16) as u8);
        }
    }
    if r.one_in(100) {
        p = p.version(r.below(16) as u8);
    }
    if r.one_in(40) {
        p = p.length(r.below(90) as u16);
    }
    const PORTS: [u16; 14] = [
        22, 22, 53, 53, 80, 443, 6000, 6010, 6011, 67, 68, 546, 547, 1,
    ];
    let (from, to) = (r.pick(&PORTS), r.pick(&PORTS));
    p = match protocol {
        6 => p.tcp(from, to),
        17 => p.udp(from, to),
        132 => p.sctp(from, to),
        136 => p.udplite(from, to),
        33 => p.dccp(from, to),
        1 => p.icmp(8, 0),
        58 => p.icmp6(129 + r.below(15) as u8, r.pick(&[0, 0, 0, 1])),
        other => p.protocol(other).payload_len(20),
    };
    p = p
        .payload_len(r.below(30) as usize)
        .ttl(r.pick(&[64, 255, 255, 1]));
    if r.one_in(100) {
        p = p.ethertype(r.pick(&[0x0806, 0x88cc, 0x0800, 0x86dd, 0x8847]));
    }
    let mut frame = if r.one_in(2) {
        p.pad().build()
    } else {
        p.build()
    };
    if r.one_in(12) {
        frame.truncate(15 + r.below(frame.len() as u64 - 14) as usize);
    }
    frame
}

/// Packets in all; half of them through each hook.
const GENERATED: u64 = 10_000_000;
const BATCH: u64 = 10_000;

#[test]
fn root_packets_agree_with_the_reference() {
    let halves: Vec<_> = HOOKS
        .into_iter()
        .enumerate()
        .map(|(i, hook)| {
            std::thread::spawn(move || generated_part(hook, 0x9e37_79b9 + i as u64, GENERATED / 2))
        })
        .collect();
    let (mut reasons, mut past_ip, mut listed) = ([0u64; Reason::ALL.len()], 0, 0);
    for half in halves {
        let (r, p, l) = half.join().expect("no disagreement");
        reasons.iter_mut().zip(r).for_each(|(sum, n)| *sum += n);
        past_ip += p;
        listed += l;
    }
    println!("{reasons:?}; {past_ip} past the IP header, {listed} from banned or scoped sources");
    assert_eq!(reasons.iter().sum::<u64>(), GENERATED);
    assert!(
        past_ip * 10 >= GENERATED * 9,
        "{past_ip} parse past the IP header"
    );
    assert!(
        listed * 2 >= GENERATED,
        "{listed} from banned or scoped sources"
    );
    // The others need tables that this path has not.
    let judged = |reason: &Reason| {
        (*reason <= Reason::BannedScope && *reason != Reason::Reply)
            || [Reason::InvalidSource, Reason::TooManyTags].contains(reason)
    };
    for reason in Reason::ALL.into_iter().filter(judged) {
        assert!(
            reasons[reason as usize] >= 10_000,
            "{reason}: {}",
            reasons[reason as usize]
        );
    }
}

/// Packets as netfilter sees them: IP, without tags, the header whole.
#[test]
fn root_packets_agree_with_the_reference_on_netfilter() {
    if !netfilter_supported() {
        println!("skipped: no BPF programs of type netfilter (Linux 6.4)");
        return;
    }
    let (reasons, past_ip, listed) = generated_part(Hook::Netfilter, 0x6e66, GENERATED / 10);
    println!("{reasons:?}; {past_ip} past the IP header, {listed} from banned or scoped sources");
    for reason in [
        Reason::Pass,
        Reason::Malformed,
        Reason::Allowed,
        Reason::OtherPort,
        Reason::Essential,
        Reason::Observed,
        Reason::BannedAll,
        Reason::BannedScope,
        Reason::InvalidSource,
    ] {
        let seen = reasons[reason as usize];
        assert!(seen >= 1000, "{reason}: {seen}");
    }
    // What no configured interface took passes, and is not counted.
    let path = Path::new();
    path.generation.judge_only(&[]);
    let before = path.counters();
    let banned = from("192.0.2.7").tcp(1234, 22).build();
    let verdict = path.run(Hook::Netfilter, &banned).verdict;
    assert_eq!(verdict, word(Hook::Netfilter, false));
    assert_eq!(path.counters(), before);
}

fn generated_part(hook: Hook, seed: u64, packets: u64) -> ([u64; Reason::ALL.len()], u64, u64) {
    let mut path = Path::new();
    let mut r = Random(seed);
    let (mut reasons, mut past_ip, mut listed) = ([0u64; Reason::ALL.len()], 0, 0);
    for batch in 0..packets / BATCH {
        path.observe = batch % 20 == 19;
        path.generation.table.set_observe(path.observe);
        let before = path.counters();
        let mut wanted = [0u64; Reason::ALL.len()];
        for _ in 0..BATCH {
            let mut frame = generated(&mut r);
            while !runs_on(hook, &frame) {
                frame = generated(&mut r);
            }
            let decoded = decode(&frame, 0);
            let (drop, reason) = path.expected(&decoded);
            let verdict = path.run(hook, &frame).verdict;
            assert_eq!(
                verdict,
                word(hook, drop),
                "{} and {decoded:?} ({reason}) disagree on {frame:02x?}",
                hook.name()
            );
            wanted[reason as usize] += 1;
            let source = match decoded.l3 {
                L3::V4(a) => Some(IpAddr::V4(a)),
                L3::V6(a) => Some(IpAddr::V6(a)),
                _ => None,
            };
            past_ip += u64::from(source.is_some());
            listed += u64::from(!matches!(
                reason,
                Reason::Pass | Reason::NotIp | Reason::Malformed | Reason::TooManyTags
            ));
        }
        let after = path.counters();
        for reason in Reason::ALL {
            let i = reason as usize;
            assert_eq!(
                after[i].0 - before[i].0,
                wanted[i],
                "{reason} in batch {batch}"
            );
            reasons[i] += wanted[i];
        }
    }
    (reasons, past_ip, listed)
}
