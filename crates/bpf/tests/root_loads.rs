//! Every program that weir can ask for passes the verifier of this kernel, with room:
//! the packet path with and without classes, what answers, and netfilter. Older
//! kernels prune less and know less (tests/kernels/ boots them). What a kernel lacks
//! is left out by its probe, named. Root: loads BPF.

#[path = "root_loads/compilers.rs"]
mod compilers;
#[path = "../build/objects.rs"]
mod objects;
#[path = "root_loads/stack.rs"]
mod stack;

use libbpf_rs::{
    MapCore,
    query::{ProgInfoIter, ProgInfoQueryOptions},
};
use weir_bpf::{
    AnswerProgram, BanCounts, Generation, Geometry, Options, attachment::Hook,
    programs::netfilter_supported,
};

/// A third of what the kernel takes.
const MOST: u64 = 333_000;
/// Where the verifier prunes as today's do: without the class stage and with it.
const MOST_TODAY: [u64; 2] = [120_000, 160_000];
/// What the verifier of Linux 6.18 may follow of a program, without and with the class
/// stage. About a tenth above what it follows with whichever of clang 14 and 19 is worse.
/// When this was one stage behind the other and nothing was answered (2026-11-22), it
/// followed:
///
/// ```text
///            clang 14 then     now              clang 19 then     now
/// xdp        85,579 / 95,286   31,491 / 52,042  70,371 / 90,668   29,257 / 65,376
/// tcx        52,822 / 136,277  55,655 / 84,739  48,140 / 133,380  54,328 / 136,747
/// netfilter  21,738 / 87,194   21,639 / 40,328  22,984 / 86,376   22,275 / 59,096
/// egress          - / 75,343        - / 30,800       - / 72,997        - / 36,029
/// ```
///
/// With load balancing, which looks at the ports of what is allowed or observed as well, it is
/// 33,828 / 55,854 for xdp and 61,095 / 90,938 for tcx (clang 14); with addresses of tarpits,
/// for which ARP and ICMP are handed over, 34,682 / 55,998 and 65,903 / 96,443.
///
/// With answers, which were in the same programs then, it was 101,113 / 111,129 for xdp
/// (clang 14); now they are 3,885 (decoys) and 6,756 (bans that reject) of their own.
fn most_on_6_18(hook: Hook) -> [u64; 2] {
    match hook {
        Hook::Xdp | Hook::XdpGeneric => [37_000, 70_000],
        Hook::Tcx | Hook::ClsBpf => [67_000, 150_000],
        Hook::Netfilter => [22_900, 60_000],
        Hook::Egress | Hook::EgressClsBpf => [0, 39_000],
    }
}

/// The most instructions that the verifier may process of an answering program.
fn most_of(answer: AnswerProgram) -> u64 {
    match answer {
        AnswerProgram::Decoy => 5_500,
        AnswerProgram::Reject => 7_500,
        // With a kernel's hashes for flows and services it was 3,600; the tables are its own
        // now, and what looks further in them, writes them, or is about fragments and ICMP
        // errors are functions that are followed once: 8,500. With frames that have a tag,
        // which are the same once more, 14,900 on XDP; with the rules of pools 20,400.
        // What writes outer headers is another 6,000, and what reads the connection IDs of
        // QUIC 1,500; its counters, and how long a flow has lasted, 1,500. The look for a
        // service of all ports, and that frames of other hosts take nothing, are 2,500.
        AnswerProgram::Balance => 36_000,
        // Its own with addresses that are learned (1,900), and a pool's, to which it goes on:
        // 41,000. On XDP it reads and writes headers without a call where they lie in one
        // piece, which is followed beside the other way: with clang 14 another 1,700, with
        // clang 19 another 7,200.
        AnswerProgram::Tarpit => 50_000,
    }
}

/// Is this kernel 6.18 or newer, by what it says of itself?
fn is_6_18() -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|n| n.parse::<u32>().ok());
    (number(), number()) >= (Some(6), Some(18))
}

/// Instructions that the verifier processed for this program: others may be loaded on this
/// machine.
fn verified(generation: &Generation, hook: Hook) -> u64 {
    use std::os::fd::AsRawFd;
    let program = generation.program(hook).unwrap_or_else(|e| panic!("{e}"));
    let fd = program.as_raw_fd();
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
    let line = info.lines().find_map(|l| l.strip_prefix("verified_insns:"));
    // Told since Linux 5.16.
    line.map_or(0, |count| count.trim().parse().unwrap())
}

/// What the verifier followed of each loaded program over these tables, by its name.
fn verified_of(generation: &Generation) -> Vec<(String, u64)> {
    let counters = generation.counters.info().unwrap().info.id;
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    let programs = ProgInfoIter::with_query_opts(options);
    let mut verified: Vec<_> = programs
        .filter(|program| program.map_ids.contains(&counters))
        .map(|program| {
            let name = program.name.to_string_lossy().into_owned();
            (name, program.verified_insns.into())
        })
        .collect();
    verified.sort();
    verified
}

fn options() -> Options {
    Options {
        v4_length: 24,
        flow_jiffies: 250,
        ..Options::bans(Geometry::for_bans(BanCounts::each(200)))
    }
}

#[test]
fn root_every_generation_loads() {
    let netfilter = netfilter_supported();
    if !netfilter {
        eprintln!("left out, for this kernel lacks it: program type netfilter");
    }
    for class_lines in [0, 4096] {
        let kind = format!("{class_lines} class lines");
        let options = Options {
            class_lines,
            ..options()
        };
        let made = Generation::create(1, &options, None).unwrap_or_else(|e| panic!("{kind}: {e}"));
        let mut hooks = vec![Hook::Xdp, Hook::XdpGeneric, Hook::Tcx];
        hooks.extend(netfilter.then_some(Hook::Netfilter));
        hooks.extend((class_lines != 0).then_some(Hook::Egress));
        for hook in hooks {
            let insns = verified(&made, hook);
            println!("{kind}: {} {insns}", hook.name());
            let with_classes = usize::from(class_lines != 0);
            let most = match (is_6_18(), netfilter) {
                (true, _) => most_on_6_18(hook)[with_classes],
                (false, true) => MOST_TODAY[with_classes],
                (false, false) => MOST,
            };
            assert!(insns <= most, "{kind}: {} {insns} of {most}", hook.name());
            // A count that is not told holds nothing.
            assert!(insns > 0 || !netfilter, "{kind}");
        }
    }
}

/// What answers is loaded when it is wanted, once for each kind of program that calls
/// it; what judges is not verified again, and next tables load neither.
#[test]
fn root_what_answers_loads_beside_what_judges() {
    for answer in AnswerProgram::ALL {
        if !answer.is_supported() {
            eprintln!(
                "left out, for this kernel lacks it: {answer:?} (helpers bpf_xdp_load_bytes, bpf_tcp_raw_check_syncookie_ipv6)"
            );
            continue;
        }
        let (xdp, tc) = match answer {
            AnswerProgram::Decoy => ("weir_decoy_xdp", "weir_decoy_tc"),
            AnswerProgram::Reject => ("weir_reject_xdp", "weir_reject_tc"),
            AnswerProgram::Balance => ("weir_pool_xdp", "weir_pool_tc"),
            AnswerProgram::Tarpit => ("weir_tarpit_xdp", "weir_tarpit_tc"),
        };
        let made = Generation::create(1, &options(), None).unwrap();
        let names = |made: &Generation| -> Vec<_> {
            verified_of(made)
                .into_iter()
                .map(|(name, _)| name)
                .collect()
        };
        made.program(Hook::Tcx).unwrap();
        assert_eq!(names(&made), ["weir_tcx"]);
        assert_eq!(made.lacks(answer, &Hook::ALL), None, "nobody wants it");
        made.answer(answer).unwrap();
        assert_eq!(names(&made), [tc, "weir_tcx"]);
        assert_eq!(made.lacks(answer, &Hook::ALL), None);
        // And with a hook that comes later.
        made.program(Hook::Xdp).unwrap();
        assert_eq!(names(&made), [tc, xdp, "weir_tcx", "weir_xdp"]);
        for (name, insns) in verified_of(&made) {
            if name == tc || name == xdp {
                println!("{name} {insns}");
                let most = if is_6_18() { most_of(answer) } else { MOST };
                assert!(insns <= most, "{name} {insns} of {most}");
            }
        }
        let next = Generation::create(2, &options(), Some(&made)).unwrap();
        next.program(Hook::Tcx).unwrap();
        assert_eq!(names(&next), [tc, xdp, "weir_tcx", "weir_tcx", "weir_xdp"]);
        assert_eq!(next.lacks(answer, &Hook::ALL), None);
        next.fall_silent(answer).unwrap();
        assert_eq!(names(&next), ["weir_tcx", "weir_tcx", "weir_xdp"]);
        assert!(!made.wants(answer));
    }
}
