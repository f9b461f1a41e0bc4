//! Packets through the packet path by BPF_PROG_RUN, on XDP and tcx: a table of
//! cases, each cut at every byte, and ten million generated ones, all against
//! the reference decoder of `weir-testkit`, which shares no code. Root: loads BPF.

#[path = "root_packets/cases.rs"]
mod cases;
#[path = "root_packets/devices.rs"]
mod devices;
#[path = "root_packets/generated.rs"]
mod generated;
#[path = "root_packets/path.rs"]
mod path;

use weir_core::Reason;
use weir_testkit::decode::decode;

use crate::{
    cases::cases,
    path::{HOOKS, Path, runs_on, word},
};

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
