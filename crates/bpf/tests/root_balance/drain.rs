//! A real that drains: it keeps the flows that it has, until their client opens new ones,
//! or, of UDP, until they have been silent for long.

use std::thread::sleep;

use weir_bpf::balance::PoolRules;

use super::*;

const ACK: u8 = 16;

impl Path {
    /// Real 0 drains, or takes new flows as real 1 does.
    fn drain(&self, drains: bool) {
        self.write_real(0, true, drains);
        self.write_ring(&[!drains, true]);
        let mut pools = vec![PoolRules::default(); 4];
        pools[3].any_drains = drains;
        let services: Vec<_> = services().collect();
        pools[3].udp_silence = Some(SILENCE);
        let balancer = &self.generation.balancer;
        balancer
            .write_services_for(&services, &pools, hz())
            .unwrap();
    }
}

/// More than what is waited between two packets of a flow that is not silent.
const SILENCE: Duration = Duration::from_secs(3);

fn hz() -> u64 {
    weir_bpf::JiffyClock::probe().unwrap().hz()
}

/// Until then each packet keeps the flow where it is.
#[test]
fn root_a_silent_flow_of_udp_leaves_a_real_that_drains() {
    let path = Path::new();
    path.drain(false);
    let udp = |(family, host)| packet(family, host).udp(4000, 443).build();
    let all = (0..2usize).flat_map(|family| (1..60u8).map(move |host| (family, host)));
    let clients: Vec<_> = all
        .filter(|client| path.forwarded(HOOKS[0], &udp(*client)) == 0)
        .collect();
    let (busy, silent): (Vec<_>, Vec<_>) = clients.iter().partition(|(_, host)| host % 2 == 0);
    path.drain(true);
    for family in 0..2 {
        assert!(silent.iter().filter(|(of, _)| *of == family).count() > 5);
    }
    let begun = Instant::now();
    while begun.elapsed() < SILENCE + Duration::from_millis(2200) {
        sleep(Duration::from_millis(300));
        for client in &busy {
            assert_eq!(path.forwarded(HOOKS[0], &udp(*client)), 0);
        }
    }
    for (n, client) in silent.iter().enumerate() {
        assert_eq!(path.forwarded(HOOKS[n % 2], &udp(*client)), 1);
    }
    // Where they are now, they stay; and silence moves none from a real that does not drain.
    path.drain(false);
    sleep(SILENCE + Duration::from_millis(2200));
    for client in silent {
        assert_eq!(path.forwarded(HOOKS[1], &udp(client)), 1);
    }
    for client in busy {
        assert_eq!(path.forwarded(HOOKS[0], &udp(client)), 0);
    }
}

#[test]
fn root_a_real_that_drains_keeps_its_flows_and_gets_no_new_connection() {
    for hook in HOOKS {
        for family in 0..2 {
            let path = Path::new();
            path.drain(false);
            let of = |host, flags| packet(family, host).tcp(4000, 80).tcp_flags(flags).build();
            let udp = |host| packet(family, host).udp(4000, 443).build();
            let hosts: Vec<u8> = (1..60)
                .filter(|host| path.forwarded(hook, &of(*host, SYN)) == 0)
                .collect();
            let clients: Vec<u8> = (1..60)
                .filter(|host| path.forwarded(hook, &udp(*host)) == 0)
                .collect();
            assert!(hosts.len() > 10 && clients.len() > 10);
            path.drain(true);
            for host in &hosts {
                assert_eq!(path.forwarded(hook, &of(*host, ACK)), 0);
                assert_eq!(path.forwarded(hook, &of(*host, SYN | ACK)), 0);
            }
            for host in &clients {
                assert_eq!(path.forwarded(hook, &udp(*host)), 0);
            }
            // One more connection from the same port goes to the other, and stays there.
            for host in &hosts {
                assert_eq!(path.forwarded(hook, &of(*host, SYN)), 1);
                assert_eq!(path.forwarded(hook, &of(*host, ACK)), 1);
            }
            path.drain(false);
            for host in &hosts {
                assert_eq!(path.forwarded(hook, &of(*host, SYN)), 1);
            }
            for host in &clients {
                assert_eq!(path.forwarded(hook, &udp(*host)), 0);
            }
        }
    }
}

/// Of a packet of which the first fragment has gone to it, too.
#[test]
fn root_a_real_begins_to_drain_between_two_fragments() {
    for hook in HOOKS {
        for family in 0..2 {
            let path = Path::new();
            path.drain(false);
            let fragment = |host, at: u16, more| {
                packet(family, host)
                    .fragment(at, more)
                    .udp(4000, 443)
                    .payload_len(64)
                    .build()
            };
            let hosts: Vec<u8> = (1..40)
                .filter(|host| path.forwarded(hook, &fragment(*host, 0, true)) == 0)
                .collect();
            assert!(hosts.len() > 5);
            path.drain(true);
            for host in hosts {
                assert_eq!(path.forwarded(hook, &fragment(host, 9, false)), 0);
            }
        }
    }
}
