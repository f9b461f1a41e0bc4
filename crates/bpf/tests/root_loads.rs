//! Every generation that weir can ask for passes the verifier of this kernel,
//! with room: the packet path with and without classes, answers, decoy ports
//! and netfilter. Older kernels prune less and know less (tests/kernels/ boots
//! them). What a kernel lacks is left out by its probe, named. Root: loads BPF.

#[path = "root_loads/stack.rs"]
mod stack;

use weir_bpf::{
    BanCounts, Generation, Geometry, Options, decoy,
    link::Hook,
    programs::{netfilter_supported, rejects_supported},
};
use weir_core::decoy::DecoyPorts;

/// A third of what the kernel takes.
const MOST: u64 = 333_000;
/// Where the verifier prunes as today's do: without the class stage, with it
/// alone, and with answers or decoys beside it.
const MOST_TODAY: [u64; 3] = [120_000, 160_000, 200_000];
/// What the verifier of Linux 6.18 may follow of a program: without and with the class
/// stage, then the same with answers or decoys. About a tenth above what it follows
/// with whichever of clang 14 and 19 is worse, and no more than it followed when this
/// was one stage behind the other (2026-11-22), which was without answers:
///
/// ```text
///            clang 14  then              now              clang 19  then              now
/// xdp                  85,579 / 95,286   72,724 / 49,371            70,371 / 90,668   48,941 / 55,455
/// tcx                  52,822 / 136,277  45,456 / 72,015            48,140 / 133,380  40,943 / 100,209
/// netfilter            21,738 / 87,194   21,166 / 39,030            22,984 / 86,376   22,332 / 55,224
/// egress                   - / 75,343        - / 30,657                 - / 72,997        - / 35,517
/// ```
fn most_on_6_18(hook: Hook) -> [u64; 4] {
    match hook {
        Hook::Xdp | Hook::XdpGeneric => [80_000, 62_000, 98_000, 76_000],
        Hook::Tcx | Hook::ClsBpf => [50_000, 110_000, 67_000, 126_000],
        Hook::Netfilter => [22_900, 60_000, 23_900, 62_000],
        Hook::Egress | Hook::EgressClsBpf => [0, 39_000, 0, 39_000],
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

/// Of this program: others may be loaded on this machine.
fn verified(generation: &Generation, hook: Hook) -> u64 {
    use std::os::fd::AsRawFd;
    let program = generation.program(hook).unwrap_or_else(|e| panic!("{e}"));
    let fd = program.as_raw_fd();
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
    let line = info.lines().find_map(|l| l.strip_prefix("verified_insns:"));
    // Told since Linux 5.16.
    line.map_or(0, |count| count.trim().parse().unwrap())
}

#[test]
fn root_every_generation_loads() {
    let possible = |has: bool, probe: &str| {
        if !has {
            eprintln!("left out, for this kernel lacks it: {probe}");
        }
        [false, true]
            .into_iter()
            .filter(move |wanted| has || !wanted)
    };
    let rejects = possible(rejects_supported(), "helper bpf_xdp_load_bytes");
    let decoys = possible(
        decoy::supported(),
        "helper bpf_tcp_raw_check_syncookie_ipv6",
    );
    let netfilter = possible(netfilter_supported(), "program type netfilter").any(|has| has);
    let mut kinds = Vec::new();
    for reject in rejects {
        for decoy in decoys.clone() {
            kinds.extend([0, 4096].map(|lines| (reject, decoy, lines)));
        }
    }
    let mut options = Options {
        v4_length: 24,
        flow_jiffies: 250,
        ..Options::bans(Geometry::for_bans(BanCounts::each(200)))
    };
    let first = Generation::create(1, &options, None).expect("the plain packet path loads");
    for (reject, decoy, class_lines) in kinds {
        let ports: &[&str] = if decoy { &["23/tcp", "5060/udp"] } else { &[] };
        let ports: Vec<_> = ports.iter().map(|port| port.parse().unwrap()).collect();
        first.decoys.write_ports(&DecoyPorts::new(&ports));
        options = Options {
            reject,
            class_lines,
            ..options
        };
        let kind = format!("reject {reject}, decoys {decoy}, {class_lines} class lines");
        let made = Generation::create(2, &options, Some(&first))
            .unwrap_or_else(|e| panic!("{kind}: {e:?}"));
        assert_eq!(made.has_decoys, decoy, "{kind}");
        assert_eq!(made.has_reject, reject, "{kind}");
        let most = match netfilter_supported() {
            true if class_lines == 0 => MOST_TODAY[0],
            true => MOST_TODAY[1 + usize::from(reject || decoy)],
            false => MOST,
        };
        let mut hooks = vec![Hook::Xdp, Hook::XdpGeneric, Hook::Tcx];
        // With decoy ports nobody attaches it, and it does not look at them.
        hooks.extend(netfilter.then_some(Hook::Netfilter));
        hooks.extend((class_lines != 0).then_some(Hook::Egress));
        for hook in hooks {
            let insns = verified(&made, hook);
            println!("{kind}: {} {insns}", hook.name());
            let most = match is_6_18() {
                true => {
                    let answers = 2 * usize::from(reject || decoy);
                    most_on_6_18(hook)[answers + usize::from(class_lines != 0)]
                }
                false => most,
            };
            assert!(insns <= most, "{kind}: {} {insns} of {most}", hook.name());
            // A count that is not told holds nothing.
            assert!(insns > 0 || !netfilter_supported(), "{kind}");
        }
    }
}
