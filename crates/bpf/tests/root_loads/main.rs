//! Every generation that weir can ask for passes the verifier of this kernel,
//! with room: the packet path with and without classes, answers, decoy ports
//! and netfilter. Older kernels prune less and know less (tests/kernels/ boots
//! them). What a kernel lacks is left out by its probe, named. Root: loads BPF.

mod stack;

use weir_bpf::{
    BanCounts, Generation, Geometry, Options, decoy,
    generation::{netfilter_supported, rejects_supported},
    link::Hook,
};
use weir_core::decoy::DecoyPorts;

/// A quarter of what the kernel takes.
const MOST: u64 = 250_000;
/// Where the verifier prunes as today's do: without the class stage, with it
/// alone, and with answers or decoys beside it.
const MOST_TODAY: [u64; 3] = [120_000, 160_000, 200_000];

/// Of this program: others may be loaded on this machine.
fn verified(generation: &Generation, hook: Hook) -> u64 {
    use std::os::fd::AsRawFd;
    let fd = generation.program(hook).as_raw_fd();
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
    let netfilters = possible(netfilter_supported(), "program type netfilter");
    let mut kinds = Vec::new();
    for reject in rejects {
        for decoy in decoys.clone() {
            for netfilter in netfilters.clone() {
                kinds.extend([0, 4096].map(|lines| (reject, decoy, netfilter, lines)));
            }
        }
    }
    let mut options = Options {
        v4_length: 24,
        flow_jiffies: 250,
        ..Options::bans(Geometry::for_bans(BanCounts::each(200)))
    };
    let first = Generation::create(1, &options, None).expect("the plain packet path loads");
    for (reject, decoy, netfilter, class_lines) in kinds {
        let ports: &[&str] = if decoy { &["23/tcp", "5060/udp"] } else { &[] };
        let ports: Vec<_> = ports.iter().map(|port| port.parse().unwrap()).collect();
        first.decoys.write_ports(&DecoyPorts::new(&ports));
        options = Options {
            reject,
            netfilter,
            class_lines,
            ..options
        };
        let kind = format!(
            "reject {reject}, decoys {decoy}, netfilter {netfilter}, {class_lines} class lines"
        );
        let made = Generation::create(2, &options, Some(&first))
            .unwrap_or_else(|e| panic!("{kind}: {e:?}"));
        assert_eq!(made.has_decoys, decoy, "{kind}");
        assert_eq!(made.has_reject, reject, "{kind}");
        assert_eq!(made.has_netfilter(), netfilter, "{kind}");
        let most = match netfilter_supported() {
            true if class_lines == 0 => MOST_TODAY[0],
            true => MOST_TODAY[1 + usize::from(reject || decoy)],
            false => MOST,
        };
        let mut hooks = vec![Hook::Xdp, Hook::XdpGeneric, Hook::Tcx];
        hooks.extend(netfilter.then_some(Hook::Netfilter));
        hooks.extend((class_lines != 0).then_some(Hook::Egress));
        for hook in hooks {
            let insns = verified(&made, hook);
            println!("{kind}: {} {insns}", hook.name());
            assert!(insns < most, "{kind}: {} {insns}", hook.name());
            // A count that is not told holds nothing.
            assert!(insns > 0 || !netfilter_supported(), "{kind}");
        }
    }
}
