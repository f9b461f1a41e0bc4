//! Connections of QUIC whose client comes from elsewhere: their IDs say whose they are.

use weir_bpf::balance::{PoolRules, QuicServer};

use super::{
    vlan::{VLAN, tagged},
    *,
};

impl Path {
    /// The reals, by number, have these server IDs.
    fn name_servers(&self, ids: &[&str]) {
        let server = |(real, id): (u8, &&str)| QuicServer {
            server_id: id.parse().unwrap(),
            real: real.into(),
            id: real_id("web", addr(&format!("10.0.0.{real}"))),
        };
        let mut pools = vec![PoolRules::default(); 4];
        pools[3].quic_servers = (0..).zip(ids).map(server).collect();
        // Of another pool, which serves nothing here.
        pools[2].quic_servers = (0..).zip(&["0b01", "0b02"]).map(server).collect();
        let services: Vec<_> = services().collect();
        let balancer = &self.generation.balancer;
        balancer.write_services_for(&services, &pools, 250).unwrap();
    }
}

/// A datagram from this port; `head`: its first bytes.
fn quic(family: usize, port: u16, head: &[u8]) -> Vec<u8> {
    let mut payload = head.to_vec();
    payload.resize(40, 0x5a);
    packet(family, 1).udp(port, 443).payload(&payload).build()
}

/// A short header, and the connection ID of a server.
fn short(id: &[u8]) -> Vec<u8> {
    [&[0x43, 0x0c], id].concat()
}

#[test]
fn root_a_connection_that_moves_stays_with_its_real() {
    for hook in HOOKS {
        let path = Path::new();
        path.name_servers(&["0a01", "0a02"]);
        for family in 0..2 {
            // From 60 ports, to whichever real each of the flows would go.
            for port in 5000..5060u16 {
                let number = (port % 2) as u8;
                let frame = quic(family, port, &short(&[10, 1 + number]));
                assert_eq!(path.forwarded(hook, &frame), number);
                // It is remembered: "packet too big" finds the real, and so does what
                // says no server.
                let error = error(
                    family,
                    [3, 2][family],
                    &Packet::eth()
                        .ip(
                            addr(VIP[family]),
                            addr(["203.0.113.1", "2001:db8:c::1"][family]),
                        )
                        .udp(443, port)
                        .build()
                        .split_off(14),
                );
                assert_eq!(path.forwarded(hook, &error), number);
                assert_eq!(path.forwarded(hook, &quic(family, port, &[])), number);
                // A packet of another server's goes there, and the flow stays.
                let other = quic(family, port, &short(&[10, 2 - number]));
                assert_eq!(path.forwarded(hook, &other), 1 - number);
                assert_eq!(path.forwarded(hook, &quic(family, port, &[])), number);
            }
        }
    }
}

/// Behind a VLAN's tag the connection ID is four bytes further on.
#[test]
fn root_a_connection_in_a_vlan_stays_with_its_real() {
    let mut path = Path::new();
    path.vlan = VLAN;
    path.write_reals(&[true, true]);
    path.name_servers(&["0a01", "0a02"]);
    for family in 0..2 {
        for port in 5000..5060u16 {
            let number = (port % 2) as u8;
            let frame = |id: &[u8]| quic(family, port, &short(id));
            for tci in [VLAN, 0xa000 | VLAN] {
                let tagged = tagged(frame(&[10, 1 + number]), tci);
                assert_eq!(path.forwarded(Hook::Xdp, &tagged), number);
            }
            let other = tagged(frame(&[10, 2 - number]), VLAN);
            assert_eq!(path.forwarded(Hook::Xdp, &other), 1 - number);
            path.passes(Hook::Xdp, "no tag", &frame(&[10, 1]));
        }
    }
}

/// Each of these goes where its flow goes, as without server IDs.
#[test]
fn root_what_names_no_server_goes_by_its_flow() {
    let path = Path::new();
    for family in 0..2 {
        path.name_servers(&[]);
        let frames = |head: &dyn Fn(u8) -> Vec<u8>, by_flow: &[u8]| -> Vec<_> {
            let of = (6000..).zip(by_flow);
            of.map(|(port, real)| quic(family, port, &head(*real)))
                .collect()
        };
        let none = frames(&|_| vec![], &[0; 20]);
        let sent = |frames: &[Vec<u8>], hook: Hook| -> Vec<_> {
            frames
                .iter()
                .map(|frame| path.forwarded(hook, frame))
                .collect()
        };
        let by_flow = sent(&none, HOOKS[0]);
        assert_eq!(by_flow.iter().collect::<BTreeSet<_>>().len(), 2);
        // The other real's ID than that of the flow.
        let id = |real: u8| [10, 2 - real];
        let where_none_has_one = frames(&|real| short(&id(real)), &by_flow);
        for hook in HOOKS {
            assert_eq!(sent(&where_none_has_one, hook), by_flow, "no IDs");
        }
        path.name_servers(&["0a01", "0a02"]);
        let heads: [&dyn Fn(u8) -> Vec<u8>; 6] = [
            // Long headers, whose first IDs are the client's; another configuration, and
            // the one that is never routed; nobody's IDs.
            &|real| [&[0xc3, 0, 0, 0, 1, 8, 0x0c][..], &id(real)].concat(),
            &|real| [&[0x43, 0x2c][..], &id(real)].concat(),
            &|real| [&[0x43, 0xec][..], &id(real)].concat(),
            &|_| short(&[10, 7]),
            &|_| short(&[0, 10]),
            // Another pool's.
            &|real| short(&[11, 2 - real]),
        ];
        for (n, head) in heads.into_iter().enumerate() {
            for hook in HOOKS {
                assert_eq!(sent(&frames(head, &by_flow), hook), by_flow, "head {n}");
            }
        }
        // Too short for a packet of QUIC, by a byte at least.
        for len in [4, 9] {
            let cut = (6000..).zip(&by_flow).map(|(port, real)| {
                let mut payload = short(&id(*real));
                payload.resize(len, 0);
                packet(family, 1).udp(port, 443).payload(&payload).build()
            });
            let cut: Vec<_> = cut.collect();
            for hook in HOOKS {
                assert_eq!(sent(&cut, hook), by_flow, "{len} bytes");
            }
        }
        let whole = [&short(&id(by_flow[0]))[..], &[0; 6]].concat();
        let whole = packet(family, 1).udp(6000, 443).payload(&whole).build();
        for hook in HOOKS {
            assert_eq!(path.forwarded(hook, &whole), 1 - by_flow[0]);
        }
    }
}

#[test]
fn root_a_server_that_drains_keeps_its_connections_and_one_that_is_gone_has_none() {
    for hook in HOOKS {
        let path = Path::new();
        // Of the longest, in which only the last byte differs, and of one byte.
        for ids in [["0102030405060701", "0102030405060702"], ["01", "02"]] {
            path.write_reals(&[true, true]);
            path.name_servers(&ids);
            let id: Vec<u8> = match ids[0].len() {
                2 => vec![1],
                _ => vec![1, 2, 3, 4, 5, 6, 7, 1],
            };
            path.write_real(0, true, true);
            path.write_ring(&[false, true]);
            for family in 0..2 {
                for port in 7000..7010 {
                    assert_eq!(path.forwarded(hook, &quic(family, port, &short(&id))), 0);
                }
            }
            // Gone, and then another in its place, whose connections these are not.
            path.write_real(0, false, false);
            assert_eq!(path.forwarded(hook, &quic(0, 7001, &short(&id))), 1);
            let other = Real {
                id: real_id("web", addr("10.0.0.99")),
                dest: mac(10),
                source: path.mac,
                ifindex: path.ifindex,
                vlan: 0,
                tunnel: None,
                drains: false,
            };
            path.generation.balancer.write_real(0, Some(other)).unwrap();
            assert_eq!(path.forwarded(hook, &quic(0, 7002, &short(&id))), 1);
        }
    }
}

/// A service counts its own, on every hook: by an ID that says the real, wherever the flow is,
/// and by one of no real, or of one that is gone.
#[test]
fn root_server_ids_are_counted_by_what_they_name() {
    let path = Path::new();
    path.name_servers(&["0a01", "0a02"]);
    let counts = |service: u32| {
        let count = path.generation.balancer.service_count(service).unwrap();
        (count.quic_placed, count.quic_unknown)
    };
    // By number: TCP and UDP of IPv4, then of IPv6.
    let mut expected = [(0, 0); 4];
    for hook in HOOKS {
        for family in 0..2 {
            let udp = 2 * family + 1;
            let heads: [(&[u8], (u64, u64)); 8] = [
                (&[0x43, 0x0c, 10, 1], (1, 0)),
                (&[0x43, 0x0c, 10, 2], (1, 0)),
                (&[0x43, 0x0c, 10, 3], (0, 1)),
                // Another pool's.
                (&[0x43, 0x0c, 11, 1], (0, 1)),
                // A long header, other configurations, and none.
                (&[0xc3, 0, 0, 0, 1, 8, 0x0c, 10, 1], (0, 0)),
                (&[0x43, 0x2c, 10, 1], (0, 0)),
                (&[0x43, 0xec, 10, 1], (0, 0)),
                (&[0x80], (0, 0)),
            ];
            for (n, (head, (placed, unknown))) in (0..).zip(heads) {
                path.forwarded(hook, &quic(family, 8000, head));
                expected[udp].0 += placed;
                expected[udp].1 += unknown;
                let all = [0, 1, 2, 3].map(counts);
                assert_eq!(all, expected, "head {n} on {}", hook.name());
            }
            // The same octets in TCP, where its acknowledgement number stands.
            let tcp = packet(family, 1).tcp(8000, 80).tcp_seq(1, 0x430c_0a01);
            path.forwarded(hook, &tcp.build());
            // One that drains has its own still; one that is gone has none.
            path.write_real(0, true, true);
            path.forwarded(hook, &quic(family, 8001, &short(&[10, 1])));
            expected[udp].0 += 1;
            path.write_real(0, false, false);
            path.write_ring(&[false, true]);
            path.forwarded(hook, &quic(family, 8002, &short(&[10, 1])));
            expected[udp].1 += 1;
            path.write_reals(&[true, true]);
            assert_eq!([0, 1, 2, 3].map(counts), expected);
        }
    }
    path.generation.balancer.forget_service_count(1).unwrap();
    assert_eq!(counts(1), (0, 0));
}

/// Each of two pools has so many, and the next ones are written beside them.
#[test]
fn root_all_reals_may_have_a_server_id() {
    let path = Path::new();
    let balancer = &path.generation.balancer;
    let services: Vec<_> = services().collect();
    for first in [0u32, 0x10000, 0x20000] {
        let server = |real: u32| QuicServer {
            server_id: format!("{:08x}", first + real).parse().unwrap(),
            real,
            id: 1 + u64::from(real),
        };
        let mut pools = vec![PoolRules::default(); 4];
        pools[3].quic_servers = (0..weir_bpf::balance::MAX_REALS as u32)
            .map(server)
            .collect();
        balancer.write_services_for(&services, &pools, 250).unwrap();
    }
}
