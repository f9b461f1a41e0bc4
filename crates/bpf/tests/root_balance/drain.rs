//! A real that drains: it keeps the flows that it has, until their client opens new ones.

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
        let balancer = &self.generation.balancer;
        balancer.write_services_for(&services, &pools).unwrap();
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
