//! Bans of prefixes of any length as the packet path reads them: a table of
//! cases, then random ones against a naive model, expiry, another generation,
//! and maps that were left half written. Root: loads BPF.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_bpf::{
    BanCounts, Generation, Geometry, JiffyClock, Key, Options, PrefixBan, PrefixBanPlaced,
    PrefixBans, Slot,
    attachment::Hook,
    pins::{self, InstanceDir},
    prefix_bans::{MAX_PREFIX_BANS, PREFIX_BAN_WORDS},
    prog_test_run, small_maps,
    table::NEVER,
    tables::POLICY_SCOPED,
};
use weir_core::{Action, PortSet, Prefix, Reason};
use weir_testkit::packet::{Packet, proto};

const HOOKS: [Hook; 2] = [Hook::Xdp, Hook::Tcx];
const ALL: u16 = 1;
/// Covers 22/tcp.
const SSH: u16 = 2 | POLICY_SCOPED;
/// Covers 80/tcp.
const WEB: u16 = 3 | POLICY_SCOPED;

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn generation(number: u64, previous: Option<&Generation>) -> Generation {
    let options = Options {
        seed: [11, 22, number],
        v4_length: 24,
        ..Options::bans(Geometry::for_bans(BanCounts::each(200)))
    };
    let generation = Generation::create(number, &options, previous).expect("the packet path loads");
    for (policy, scope) in [(ALL, "all"), (SSH, "22/tcp"), (WEB, "80/tcp")] {
        let scope: PortSet = scope.parse().unwrap();
        let number = u32::from(policy & !POLICY_SCOPED);
        small_maps::write_policy(&generation.policies, number, &scope, Action::Drop, "test")
            .unwrap();
    }
    generation
}

/// A packet path with its prefix bans.
struct Path {
    generation: Generation,
    prefix_bans: PrefixBans,
}

impl Path {
    fn new() -> Self {
        let generation = generation(1, None);
        let prefix_bans = PrefixBans::of(&generation.prefix_bans).unwrap();
        Self {
            generation,
            prefix_bans,
        }
    }

    fn ban_until(&mut self, subject: &str, policy: u16, expiry: u64) -> PrefixBanPlaced {
        let prefix = prefix(subject);
        let placed = self.prefix_bans.insert(PrefixBan {
            prefix,
            policy,
            expiry,
        });
        self.generation
            .table
            .set_prefix_bans(self.prefix_bans.families());
        placed.unwrap()
    }

    #[track_caller]
    fn ban(&mut self, subject: &str, policy: u16) {
        let placed = self.ban_until(subject, policy, NEVER);
        assert_eq!(placed, PrefixBanPlaced::New, "{subject}");
    }

    fn lift(&mut self, subject: &str) -> usize {
        let lifted = self.prefix_bans.remove(prefix(subject), |_| true).unwrap();
        self.generation
            .table
            .set_prefix_bans(self.prefix_bans.families());
        lifted.len()
    }

    /// Under which one reason, counted on both hooks alike, a packet leaves.
    #[track_caller]
    fn reason(&self, packet: &Packet) -> Reason {
        let [xdp, tcx] = HOOKS.map(|hook| self.reason_on(hook, packet));
        assert_eq!(xdp, tcx);
        xdp
    }

    #[track_caller]
    fn reason_on(&self, hook: Hook, packet: &Packet) -> Reason {
        let frame = packet.clone().pad().build();
        let counters = || small_maps::read_counters(&self.generation.counters).unwrap();
        let before = counters();
        let answer =
            prog_test_run::packet(self.generation.program(hook).unwrap(), &frame, 1).unwrap();
        let after = counters();
        let mut counted = Reason::ALL
            .into_iter()
            .filter(|r| after[*r as usize].0 != before[*r as usize].0);
        let reason = counted.next().expect("counted under a reason");
        assert_eq!(counted.next(), None, "counted under one reason");
        let (pass, drop) = match hook {
            Hook::Tcx => (u32::MAX, 2),
            _ => (2, 1),
        };
        let expected = if reason.is_drop() { drop } else { pass };
        assert_eq!(answer.verdict, expected, "{reason}");
        reason
    }

    #[track_caller]
    fn reason_of(&self, source: &str) -> Reason {
        self.reason(&tcp(source, 22))
    }
}

fn from(source: &str) -> Packet {
    let source: IpAddr = source.parse().unwrap();
    let to: IpAddr = match source {
        IpAddr::V4(_) => Ipv4Addr::new(203, 0, 113, 1).into(),
        IpAddr::V6(_) => "2001:db8:ffff::1".parse().unwrap(),
    };
    Packet::eth().ip(source, to)
}

fn tcp(source: &str, port: u16) -> Packet {
    from(source).tcp(40000, port)
}

#[test]
fn root_prefix_bans_drop_what_they_cover_and_nothing_else() {
    use Reason::*;
    let mut path = Path::new();
    assert_eq!(path.reason_of("10.1.2.3"), Pass);
    for subject in ["10.0.0.0/9", "172.16.0.0/13", "198.51.100.128/25"] {
        path.ban(subject, ALL);
    }
    for subject in ["2a00::/12", "2001:db8:7000::/36", "2001:db8:8::8/127"] {
        path.ban(subject, ALL);
    }
    // Nested: all ports inside some ports, and the other way round.
    path.ban("100.64.0.0/10", SSH);
    path.ban("100.64.7.0/25", ALL);
    path.ban("100.64.8.0/22", WEB);
    path.ban("2600:100::/24", ALL);
    path.ban("2600:100:1::/48", SSH);
    path.ban("2600:200::/24", SSH);
    path.ban("2600:200:1::/56", WEB);
    // One subject, two policies; and an IPv4 prefix typed as IPv6.
    path.ban("192.0.0.0/14", SSH);
    path.ban("192.0.0.0/14", WEB);
    path.ban("::ffff:203.0.112.0/119", SSH);
    let allowed = ["10.1.0.0/16", "2a00:1::/32", "100.64.7.9"].map(prefix);
    path.generation
        .allow
        .write(&allowed.into_iter().collect())
        .unwrap();
    // Entries of the ban table count as well.
    for (subject, policy) in [("100.64.1.1", WEB), ("2600:200:1::/64", WEB)] {
        path.generation.table.insert(Slot {
            key: Key::of(prefix(subject)).unwrap(),
            policy,
            expiry: NEVER,
        });
    }
    let ssh = |source| tcp(source, 22);
    let web = |source| tcp(source, 80);
    for (name, packet, reason) in [
        ("first of a /9", ssh("10.0.0.0"), BannedAll),
        ("inside a /9", ssh("10.9.2.3"), BannedAll),
        ("last of a /9", ssh("10.127.255.255"), BannedAll),
        ("behind a /9", ssh("10.128.0.0"), Pass),
        ("before a /9", ssh("9.255.255.255"), Pass),
        ("last of a /13", ssh("172.23.255.255"), BannedAll),
        ("behind a /13", ssh("172.24.0.0"), Pass),
        ("inside a /25", ssh("198.51.100.200"), BannedAll),
        ("beside a /25, hint set", ssh("198.51.100.100"), Pass),
        ("no ports", from("10.9.2.3").icmp(8, 0), BannedAll),
        ("udp", from("10.9.2.3").udp(53, 53), BannedAll),
        ("inside a /12", ssh("2a0f:ffff::1"), BannedAll),
        ("behind a /12", ssh("2a10::1"), Pass),
        ("inside a /36", ssh("2001:db8:7fff::1"), BannedAll),
        ("behind a /36", ssh("2001:db8:8000::1"), Pass),
        ("inside a /127", ssh("2001:db8:8::9"), BannedAll),
        ("behind a /127", ssh("2001:db8:8::a"), Pass),
        ("allowed inside", ssh("10.1.2.3"), Allowed),
        ("allowed inside, IPv6", ssh("2a00:1::7"), Allowed),
        ("allowed inside both", ssh("100.64.7.9"), Allowed),
        ("scope, its port", ssh("100.64.1.9"), BannedScope),
        ("scope, another port", web("100.64.1.9"), OtherPort),
        ("scope, no ports", from("100.64.1.9").icmp(8, 0), OtherPort),
        (
            "later fragment in a scope",
            from("100.64.1.9")
                .fragment(8, true)
                .protocol(proto::TCP)
                .payload_len(64),
            OtherPort,
        ),
        (
            "later fragment in all ports",
            from("10.9.2.3")
                .fragment(8, true)
                .protocol(proto::TCP)
                .payload_len(64),
            BannedAll,
        ),
        (
            "later fragment in all ports, IPv6",
            from("2a00::9")
                .fragment(8, true)
                .protocol(proto::TCP)
                .payload_len(64),
            BannedAll,
        ),
        ("all inside scope", web("100.64.7.1"), BannedAll),
        ("scope inside scope, outer", ssh("100.64.8.1"), BannedScope),
        ("scope inside scope, inner", web("100.64.8.1"), BannedScope),
        (
            "scope inside scope, neither",
            tcp("100.64.8.1", 443),
            OtherPort,
        ),
        ("scope inside all", web("2600:100:1::1"), BannedAll),
        ("outer scope, IPv6", ssh("2600:200:1::1"), BannedScope),
        ("inner scope, IPv6", web("2600:200:1::1"), BannedScope),
        ("beside the inner", web("2600:200:1:100::1"), OtherPort),
        ("two policies, first", ssh("192.3.0.1"), BannedScope),
        ("two policies, second", web("192.3.0.1"), BannedScope),
        ("two policies, neither", tcp("192.3.0.1", 25), OtherPort),
        ("typed as IPv6", ssh("203.0.113.1"), BannedScope),
        ("typed as IPv6, beside", ssh("203.0.114.1"), Pass),
        ("a host's ban too, its port", web("100.64.1.1"), BannedScope),
        (
            "a host's ban too, the wide port",
            ssh("100.64.1.1"),
            BannedScope,
        ),
        (
            "a /64's ban too, the wide port",
            ssh("2600:200:1::5"),
            BannedScope,
        ),
        (
            "neighbour discovery",
            from("2a00::9").solicitation("2001:db8:ffff::1".parse::<Ipv6Addr>().unwrap()),
            Essential,
        ),
    ] {
        let seen = path.reason(&packet);
        assert_eq!(seen, reason, "{name}");
    }
    // An IPv6 packet that says it is from an IPv4 address is from nobody.
    let mapped = Packet::eth().ip6(
        Ipv4Addr::new(10, 9, 2, 3).to_ipv6_mapped(),
        "2001:db8:ffff::1".parse::<Ipv6Addr>().unwrap(),
    );
    assert_eq!(path.reason(&mapped.tcp(1, 22)), InvalidSource);

    path.generation.table.set_observe(true);
    assert_eq!(path.reason_of("10.9.2.3"), Observed);
    path.generation.table.set_observe(false);

    // Lifting the outer leaves the inner, and the other way round.
    assert_eq!(path.lift("100.64.0.0/10"), 1);
    assert_eq!(path.reason(&ssh("100.64.8.1")), OtherPort);
    assert_eq!(path.reason(&web("100.64.8.1")), BannedScope);
    assert_eq!(path.reason(&web("100.64.7.1")), BannedAll);
    assert_eq!(path.reason(&ssh("100.64.1.9")), Pass);
    assert_eq!(path.lift("2600:200:1::/56"), 1);
    assert_eq!(path.reason(&tcp("2600:200:1:5::1", 80)), OtherPort);
    assert_eq!(path.lift("192.0.0.0/14"), 2);
    assert_eq!(path.reason_of("192.3.0.1"), Pass);
    assert_eq!(path.lift("192.0.0.0/14"), 0);
    for ban in path.prefix_bans.iter().collect::<Vec<_>>() {
        path.lift(&ban.prefix.to_string());
    }
    assert_eq!(
        (path.prefix_bans.len(), path.prefix_bans.families()),
        (0, 0)
    );
    assert_eq!(path.reason_of("10.9.2.3"), Pass);
}

/// A generator that needs no seed of the day: failures repeat.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Clustered, so that prefixes nest and addresses hit: of the upper 20 bits
    /// of an address few are free.
    fn addr(&mut self) -> IpAddr {
        let (upper, lower) = (self.next(), self.next());
        if upper & 1 == 0 {
            Ipv4Addr::from(0x2c00_0000 | (upper >> 1) as u32 & 0x0301_ffff).into()
        } else {
            let hi = 0x2c00_0000_0000_0000 | upper >> 1 & 0x0003_0003_0000_ffff;
            Ipv6Addr::from(u128::from(hi) << 64 | u128::from(lower & 0x3000_0000_0000_0003)).into()
        }
    }
}

#[test]
fn root_prefix_bans_agree_with_a_model() {
    use Reason::*;
    let mut path = Path::new();
    let mut model: Vec<PrefixBan> = Vec::new();
    let mut r = Random(0x5eed);
    let mut seen = [0u32; 4];
    for round in 0..1500 {
        let addr = r.addr();
        let longest = if addr.is_ipv4() { 32 } else { 128 };
        let prefix = Prefix::new(addr, 8 + (r.next() % (longest - 7)) as u8).unwrap();
        let policy = [SSH, WEB, ALL][(r.next() % 40) as usize * 2 / 39];
        if !r.next().is_multiple_of(3) {
            let ban = PrefixBan {
                prefix,
                policy,
                expiry: NEVER,
            };
            let depth = |at: Prefix| model.iter().filter(|b| b.prefix.covers(at)).count();
            let there = model.contains(&ban);
            let deepest = model
                .iter()
                .map(|b| b.prefix)
                .filter(|at| prefix.covers(*at))
                .chain([prefix])
                .map(depth)
                .max();
            let expected = match deepest {
                _ if there => PrefixBanPlaced::Replaced,
                Some(deepest) if deepest >= PREFIX_BAN_WORDS => PrefixBanPlaced::TooDeep,
                _ => PrefixBanPlaced::New,
            };
            assert_eq!(
                path.prefix_bans.insert(ban).unwrap(),
                expected,
                "{round}: {ban:?}"
            );
            if expected == PrefixBanPlaced::New {
                model.push(ban);
            }
        } else if !model.is_empty() {
            let ban = model.swap_remove(r.next() as usize % model.len());
            let lifted = path
                .prefix_bans
                .remove(ban.prefix, |p| p == ban.policy)
                .unwrap();
            assert_eq!(lifted, [ban], "{round}");
        }
        path.generation
            .table
            .set_prefix_bans(path.prefix_bans.families());
        for _ in 0..8 {
            let addr = match r.next() % 2 {
                0 => r.addr(),
                _ if model.is_empty() => r.addr(),
                _ => model[r.next() as usize % model.len()].prefix.addr(),
            };
            let port = [22, 80, 443][(r.next() % 3) as usize];
            let (mut all, mut scoped, mut hit) = (false, false, false);
            for ban in model.iter().filter(|b| b.prefix.contains(addr)) {
                all |= ban.policy == ALL;
                scoped = true;
                hit |= (ban.policy, port) == (SSH, 22) || (ban.policy, port) == (WEB, 80);
            }
            let expected = match (all, hit, scoped) {
                (true, ..) => BannedAll,
                (_, true, _) => BannedScope,
                (_, _, true) => OtherPort,
                _ => Pass,
            };
            seen[match expected {
                BannedAll => 0,
                BannedScope => 1,
                OtherPort => 2,
                _ => 3,
            }] += 1;
            let reason = path.reason(&tcp(&addr.to_string(), port));
            assert_eq!(reason, expected, "{round}: {addr} port {port}");
            let mut covering = path.prefix_bans.covering(Prefix::host(addr));
            covering.sort_unstable();
            let mut expected: Vec<_> = model
                .iter()
                .filter(|b| b.prefix.contains(addr))
                .copied()
                .collect();
            expected.sort_unstable();
            assert_eq!(covering, expected);
        }
    }
    println!(
        "all, scope, other port, pass: {seen:?}; {} bans at the end",
        model.len()
    );
    assert!(seen.iter().all(|n| *n > 200), "{seen:?}");
}

#[test]
fn root_prefix_bans_expire_on_time_and_move_with_a_suspend() {
    let clock = JiffyClock::probe().unwrap();
    let mut path = Path::new();
    let soon = clock.now() + clock.hz() / 2;
    path.ban_until("10.0.0.0/9", ALL, soon);
    path.ban_until("2a00::/12", ALL, soon);
    path.ban_until("10.64.0.0/10", SSH, NEVER);
    loop {
        let before = clock.now();
        let reasons = ["10.9.2.3", "2a00::9", "10.64.0.1"]
            .map(|who| path.reason_on(Hook::Xdp, &tcp(who, 22)));
        let after = clock.now();
        if after < soon {
            assert_eq!(reasons, [Reason::BannedAll; 3]);
        } else if before >= soon {
            assert_eq!(reasons, [Reason::Pass, Reason::Pass, Reason::BannedScope]);
            break;
        }
    }
    // Nobody has tidied up until now; who does finds two.
    assert_eq!(path.prefix_bans.len(), 3);
    assert_eq!(path.prefix_bans.expire(clock.now()).unwrap(), 2);
    assert_eq!(
        (path.prefix_bans.len(), path.prefix_bans.families()),
        (1, 1)
    );
    // Time that jiffies did not count ends a ban earlier.
    let later = clock.now() + 1000 * clock.hz();
    path.ban_until("172.16.0.0/13", ALL, later);
    path.prefix_bans
        .shift_expiries(-(500 * clock.hz() as i64))
        .unwrap();
    assert_eq!(path.reason_of("172.16.0.1"), Reason::BannedAll);
    path.prefix_bans
        .shift_expiries(-(500 * clock.hz() as i64))
        .unwrap();
    assert_eq!(path.reason_of("172.16.0.1"), Reason::Pass);
    assert_eq!(path.reason_of("10.64.0.1"), Reason::BannedScope);
}

#[test]
fn root_prefix_bans_have_a_cap_and_a_depth() {
    let mut path = Path::new();
    for n in 0..PREFIX_BAN_WORDS as u8 {
        path.ban(&format!("11.0.0.0/{}", 8 + n), ALL);
    }
    assert_eq!(
        path.ban_until("11.0.0.0/20", ALL, NEVER),
        PrefixBanPlaced::TooDeep
    );
    // Nor above, where it would cover the deepest.
    assert_eq!(
        path.ban_until("10.0.0.0/7", ALL, NEVER),
        PrefixBanPlaced::TooDeep
    );
    assert_eq!(
        path.ban_until("11.0.0.0/15", ALL, 5),
        PrefixBanPlaced::Replaced
    );
    assert_eq!(path.reason_of("11.0.0.1"), Reason::BannedAll);
    // The one that is over makes room.
    assert_eq!(path.prefix_bans.expire(6).unwrap(), 1);
    path.ban("10.0.0.0/7", ALL);
    assert_eq!(path.reason_of("10.0.0.1"), Reason::BannedAll);

    for n in path.prefix_bans.len() as u32..MAX_PREFIX_BANS as u32 {
        let addr = Ipv4Addr::from(0x2000_0000 + (n << 8));
        path.ban(&format!("{addr}/25"), ALL);
    }
    assert_eq!(
        path.ban_until("2a00::/12", ALL, NEVER),
        PrefixBanPlaced::Full
    );
    assert_eq!(
        path.ban_until("10.0.0.0/7", ALL, 1),
        PrefixBanPlaced::Replaced
    );
    assert_eq!(path.ban_until("10.0.0.0/7", SSH, 1), PrefixBanPlaced::Full);
    let last = Ipv4Addr::from(0x2000_0000 + ((MAX_PREFIX_BANS as u32 - 1) << 8));
    assert_eq!(path.reason_of(&last.to_string()), Reason::BannedAll);
    assert_eq!(path.lift(&format!("{last}/25")), 1);
    path.ban("2a00::/12", ALL);
    assert_eq!(path.reason_of("2a00::9"), Reason::BannedAll);
    assert_eq!(path.reason_of(&last.to_string()), Reason::Pass);
}

#[test]
fn root_prefix_bans_are_handed_on_and_taken_over() {
    let instance = format!("test-wide-{}", std::process::id());
    let dir = InstanceDir::open(std::path::Path::new(pins::DEFAULT_ROOT), &instance).unwrap();
    let mut path = Path::new();
    path.ban("10.0.0.0/9", SSH);
    path.ban("10.0.0.0/16", WEB);
    path.ban("10.0.0.0/16", ALL);
    path.ban("10.0.7.0/25", SSH);
    path.ban("2a00::/12", ALL);
    // To the next generation, as it is.
    let next = generation(2, Some(&path.generation));
    next.table.set_prefix_bans(path.prefix_bans.families());
    path.generation = next;
    assert_eq!(path.reason_of("10.9.9.9"), Reason::BannedScope);
    assert_eq!(path.reason_of("2a00::9"), Reason::BannedAll);
    path.ban("172.16.0.0/13", ALL);
    assert_eq!(path.reason_of("172.16.0.9"), Reason::BannedAll);
    let before: Vec<_> = path.prefix_bans.iter().collect();

    // Over pins, by one who finds a covering ban not yet told to those that it
    // covers, and a stale one in another.
    let pin = dir.generation(2);
    path.generation.pin(&pin).unwrap();
    drop(path);
    let trie = MapHandle::from_pinned_path(pin.join("prefix_bans")).unwrap();
    let key = |addr: [u8; 4], bits: u32| {
        let addr = Ipv4Addr::from(addr).to_ipv6_mapped().octets();
        [&(96 + bits).to_ne_bytes()[..], &addr].concat()
    };
    let mut value = trie
        .lookup(&key([10, 0, 7, 0], 25), MapFlags::ANY)
        .unwrap()
        .unwrap();
    value[4..8].copy_from_slice(&1u32.to_ne_bytes());
    trie.update(&key([10, 0, 7, 0], 25), &value, MapFlags::ANY)
        .unwrap();
    let adopted = Generation::adopt(&pin).unwrap();
    let mut path = Path {
        prefix_bans: PrefixBans::of(&adopted.prefix_bans).unwrap(),
        generation: adopted,
    };
    assert_eq!(path.prefix_bans.iter().collect::<Vec<_>>(), before);
    assert_eq!(path.reason(&tcp("10.0.7.1", 443)), Reason::BannedAll);
    assert_eq!(path.lift("10.0.0.0/16"), 2);
    assert_eq!(path.reason(&tcp("10.0.7.1", 443)), Reason::OtherPort);
    assert_eq!(path.reason_of("172.16.0.9"), Reason::BannedAll);
    dir.remove().unwrap();
}
