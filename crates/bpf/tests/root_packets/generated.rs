//! Ten million packets that a generator made, by every hook as the reference has them.

use std::net::{IpAddr, Ipv6Addr};

use weir_bpf::{attachment::Hook, programs::netfilter_supported};
use weir_core::Reason;
use weir_testkit::{
    decode::{L3, decode},
    packet::{Packet, proto},
};

use crate::{
    cases::from,
    path::{HOOKS, HOST4, HOST6, Path, runs_on, word},
};

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
