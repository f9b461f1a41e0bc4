//! Pools that serve all ports of a protocol, but those that another names.

use weir_bpf::balance::{PoolRules, QuicServer};

use super::*;

/// The pool and the real of the port that is named.
const NAMED: (u32, u8) = (4, 2);
/// Ports that nobody names.
const OTHERS: [u16; 7] = [0, 1, 22, 79, 81, 32768, 65535];

impl Path {
    /// Pool 3 has all ports of TCP, with the first real; another has port 80, if it is there.
    fn serve_all_ports(&self, names_one: bool, rules: &[PoolRules]) {
        let service = |vip: &str, port: Option<u16>, pool| VirtualService {
            addr: addr(vip),
            protocol: Protocol::Tcp,
            port,
            pool,
        };
        let all = VIP.iter().map(|vip| service(vip, None, 3));
        let named = VIP.iter().map(|vip| service(vip, Some(80), NAMED.0));
        let named = named.filter(|_| names_one);
        let services: Vec<_> = all.chain(named).collect();
        let balancer = &self.generation.balancer;
        let reals = vec![Some(u16::from(NAMED.1)); SLOTS];
        self.write_real(NAMED.1, true, false);
        balancer.write_ring(NAMED.0, &reals).unwrap();
        balancer.write_services_for(&services, rules, 250).unwrap();
        let features = self.generation.port_features();
        self.generation.table.set_port_features(features);
    }
}

fn syn(family: usize, host: u8, port: u16) -> Vec<u8> {
    let syn = packet(family, host).tcp(4000, port);
    syn.tcp_flags(SYN).build()
}

#[test]
fn root_a_pool_with_all_ports_serves_those_that_no_other_names() {
    for hook in HOOKS {
        let path = Path::new();
        path.write_reals(&[true, false]);
        path.serve_all_ports(true, &[]);
        let count = |number| path.generation.balancer.service_count(number).unwrap();
        for family in 0..2 {
            for port in OTHERS {
                assert_eq!(path.forwarded(hook, &syn(family, 1, port)), 0, "{port}");
            }
            assert_eq!(path.forwarded(hook, &syn(family, 1, 80)), NAMED.1);
            // Each counts its own.
            let (all, named) = (count(family as u32), count(2 + family as u32));
            assert_eq!((all.packets, named.packets), (OTHERS.len() as u64, 1));
            assert_eq!((all.flows, named.flows), (OTHERS.len() as u64, 1));
            // Of the other protocol, and of another address, nothing.
            let datagram = packet(family, 1).udp(4000, 5353).build();
            path.passes(hook, "UDP", &datagram);
            let elsewhere = ["192.0.2.81", "2001:db8::81"][family];
            let client = ["203.0.113.1", "2001:db8:c::1"][family];
            let elsewhere = Packet::eth().ip(addr(client), addr(elsewhere));
            path.passes(hook, "another address", &elsewhere.tcp(4000, 81).build());
            // It was there, and is gone: the pool with all ports has it now.
            path.serve_all_ports(false, &[]);
            assert_eq!(path.forwarded(hook, &syn(family, 2, 80)), 0);
            path.serve_all_ports(true, &[]);
            assert_eq!(path.forwarded(hook, &syn(family, 3, 80)), NAMED.1);
        }
        // Without the pool no port is looked at.
        path.generation.balancer.write_services(&[]).unwrap();
        for family in 0..2 {
            path.passes(hook, "no pool", &syn(family, 1, 81));
        }
        assert!(!path.generation.port_features().any);
    }
}

/// Fragments, and errors about packets, by the ports of the first one and of the packet.
#[test]
fn root_what_has_no_ports_finds_its_pool_of_all_ports() {
    for hook in HOOKS {
        let path = Path::new();
        path.write_reals(&[true, false]);
        path.serve_all_ports(true, &[]);
        for family in 0..2 {
            for (id, (port, real)) in (1..).zip([(8080, 0), (80, NAMED.1), (65535, 0)]) {
                let part = |offset, more| {
                    let part = packet(family, 7).fragment(offset, more);
                    let mut frame = part.tcp(4000, port).payload_len(64).build();
                    let at = [18, 60][family];
                    frame[at..at + 2].copy_from_slice(&u16::to_be_bytes(id));
                    frame
                };
                assert_eq!(path.forwarded(hook, &part(0, true)), real);
                assert_eq!(path.forwarded(hook, &part(9, false)), real);
                let client = ["203.0.113.9", "2001:db8:c::9"][family];
                let answer = Packet::eth().ip(addr(VIP[family]), addr(client));
                let about = answer.tcp(port, 4000).build().split_off(14);
                let kind = [3, 2][family];
                assert_eq!(path.forwarded(hook, &error(family, kind, &about)), real);
            }
        }
    }
}

/// Every port of UDP is QUIC's then.
#[test]
fn root_a_connection_to_any_port_stays_with_its_real() {
    for hook in HOOKS {
        let path = Path::new();
        let server = |real: u8| QuicServer {
            server_id: format!("0a0{}", 1 + real).parse().unwrap(),
            real: real.into(),
            id: real_id("web", addr(&format!("10.0.0.{real}"))),
        };
        let mut rules = vec![PoolRules::default(); 4];
        rules[3].quic_servers = vec![server(0), server(1)];
        let services = VIP.map(|vip| VirtualService {
            addr: addr(vip),
            protocol: Protocol::Udp,
            port: None,
            pool: 3,
        });
        let balancer = &path.generation.balancer;
        balancer.write_services_for(&services, &rules, 250).unwrap();
        for family in 0..2 {
            for (from, port) in (5000..).zip(OTHERS) {
                for real in 0..2 {
                    let mut payload = vec![0x43, 0x0c, 10, 1 + real];
                    payload.resize(40, 0x5a);
                    let frame = packet(family, 1).udp(from, port).payload(&payload);
                    assert_eq!(path.forwarded(hook, &frame.build()), real);
                }
            }
        }
    }
}
