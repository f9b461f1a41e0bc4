//! By what a new flow finds its real.

use weir_bpf::balance::{PoolRules, SlotBy};

use super::*;

const ACK: u8 = 16;

impl Path {
    pub(super) fn by(&self, slot_by: SlotBy) {
        let mut pools = vec![PoolRules::default(); 4];
        pools[3].slot_by = slot_by;
        let services: Vec<_> = services().collect();
        self.generation
            .balancer
            .write_services_for(&services, &pools, 250)
            .unwrap();
    }
}

/// Turns are counted on each CPU: this thread stays on one.
pub(super) fn stay_on_this_cpu() {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &cpus).expect("the thread is pinned");
}

#[test]
fn root_each_method_finds_its_slot() {
    stay_on_this_cpu();
    for hook in HOOKS {
        for family in 0..2 {
            let path = Path::new();
            let syn =
                |host, from: u16, to| packet(family, host).tcp(from, to).tcp_flags(SYN).build();
            let quic = |host, from: u16| packet(family, host).udp(from, 443).build();

            // All of a client's go to one, whatever the port, and not all clients' do.
            path.by(SlotBy::Source);
            let mut taken = BTreeSet::new();
            for host in 1..40 {
                let real = path.forwarded(hook, &syn(host, 4000, 80));
                for port in 4001..4010 {
                    assert_eq!(path.forwarded(hook, &syn(host, port, 80)), real);
                    assert_eq!(path.forwarded(hook, &quic(host, port)), real);
                }
                taken.insert(real);
            }
            assert_eq!(taken.len(), 2);

            path.by(SlotBy::SourcePort);
            let mut taken = BTreeSet::new();
            for port in 5000..5040 {
                let real = path.forwarded(hook, &syn(1, port, 80));
                assert_eq!(path.forwarded(hook, &quic(1, port)), real);
                taken.insert(real);
            }
            assert_eq!(taken.len(), 2);

            // One after the other, each packet of a flow as its first one.
            path.by(SlotBy::Turn);
            let first = path.forwarded(hook, &syn(1, 6000, 80));
            for n in 1..40u16 {
                let real = path.forwarded(hook, &syn(1, 6000 + n, 80));
                assert_eq!(u16::from(real), (u16::from(first) + n) % 2);
                let ack = packet(family, 1).tcp(6000 + n, 80).tcp_flags(ACK).build();
                assert_eq!(path.forwarded(hook, &ack), real);
                assert_eq!(path.forwarded(hook, &syn(1, 6000 + n, 80)), real);
            }
            // What does not begin a flow has no turn: it goes by the hash.
            let acks: Vec<_> = (7000..7020)
                .map(|port| packet(family, 1).tcp(port, 80).tcp_flags(ACK).build())
                .collect();
            let by_turn: Vec<_> = acks.iter().map(|ack| path.forwarded(hook, ack)).collect();
            let other = Path::new();
            let by_hash: Vec<_> = acks.iter().map(|ack| other.forwarded(hook, ack)).collect();
            assert_eq!(by_turn, by_hash);
        }
    }
}
