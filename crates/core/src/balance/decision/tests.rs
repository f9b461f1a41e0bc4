//! The reference by frames that were worked out by hand.

use proptest::prelude::*;

use super::*;

const HERE: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THERE: [u8; 6] = [2, 0, 0, 0, 0, 9];
const ARRIVAL: Arrival = Arrival {
    ifindex: 1,
    is_skb: false,
    mac: None,
};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    let pairs = digits.chunks_exact(2);
    pairs.map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

/// A SYN from 203.0.113.7 port 4000 to 192.0.2.80 port 80.
fn syn() -> Vec<u8> {
    bytes(
        "020000000001 020000000007 0800 45b90028 00004000 40063bbf cb007107 c0000250
         0fa00050 00000001 00000000 5002ffff a1990000",
    )
}

/// A datagram's first and later fragment from 2001:db8::7 to 2001:db8::80.
fn fragments() -> [Vec<u8>; 2] {
    let head = "020000000001 020000000007 86dd 60000000 0010 2c40
         20010db8000000000000000000000007 20010db8000000000000000000000080";
    [
        "11 00 0001 00000005 0fa001bb00100000",
        "3b 00 0008 00000005 0fa001bc00100000",
    ]
    .map(|rest| bytes(&format!("{head}{rest}")))
}

fn pools() -> Pools {
    let real = |number: u8| Real {
        id: u64::from(number),
        dest: [2, 0, 0, 0, 1, number],
        source: HERE,
        ifindex: 1,
        vlan: 0,
        tunnel: None,
        drains: false,
    };
    let service = |addr: &str, protocol, port| Service {
        addr: addr.parse().unwrap(),
        protocol,
        port: Some(port),
        pool: 0,
    };
    Pools {
        services: vec![
            service("192.0.2.80", Protocol::Tcp, 80),
            service("2001:db8::80", Protocol::Udp, 443),
        ],
        pools: vec![Pool {
            ring: vec![0, 1],
            method: Method::Flow,
            acl: None,
            quic_servers: vec![],
        }],
        reals: vec![Some(real(1)), Some(real(2))],
        observe: false,
    }
}

#[track_caller]
fn served<'a>(pools: &Pools, memory: &Memory, frame: &'a [u8]) -> Served<'a> {
    match pools.decide(memory, &ARRIVAL, frame) {
        Decision::Served(served) => served,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn sent(choice: &Choice) -> &[u8] {
    match &choice.fate {
        Fate::Sent(Reason::Pass, departure) => &departure.frame,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_real_gets_the_frame_with_one_hop_less() {
    let (pools, frame) = (pools(), syn());
    let served = served(&pools, &Memory::default(), &frame);
    for (choice, last) in served.choices.iter().zip(["01", "02"]) {
        let expected = format!(
            "0200000001{last} 020000000001 0800 45b90028 00004000 3f063cbf cb007107 c0000250
             0fa00050 00000001 00000000 5002ffff a1990000"
        );
        assert_eq!(sent(choice), bytes(&expected));
    }
    for ttl in [0, 1] {
        let mut frame = syn();
        frame[22] = ttl;
        let served = self::served(&pools, &Memory::default(), &frame);
        assert_eq!(served.choices[0].fate, Fate::Host(Reason::Pass));
    }
}

#[test]
fn a_real_beyond_a_router_gets_it_in_an_outer_packet() {
    let mut pools = pools();
    let frame = syn();
    let real = pools.reals[0].as_mut().unwrap();
    real.dest = THERE;
    real.tunnel = Some(Tunnel {
        source: "10.1.0.1".parse().unwrap(),
        dest: "10.2.0.11".parse().unwrap(),
        mtu: 60,
        gue_port: None,
    });
    pools.pools[0].ring = vec![0];
    let within = "45b90028 00004000 3f063cbf cb007107 c0000250
         0fa00050 00000001 00000000 5002ffff a1990000";
    let outer = "020000000009 020000000001 0800 45b8003c 00004000 400425f8 0a010001 0a02000b";
    let decided = served(&pools, &Memory::default(), &frame);
    assert_eq!(
        sent(&decided.choices[0]),
        bytes(&format!("{outer}{within}"))
    );
    // One byte less, and it is too big; of so short a one nobody is told.
    let real = pools.reals[0].as_mut().unwrap();
    real.tunnel.as_mut().unwrap().mtu = 59;
    let decided = served(&pools, &Memory::default(), &frame);
    assert_eq!(decided.choices[0].fate, Fate::TooBig(None));
}

#[test]
fn a_flow_stays_where_it_was_seen_while_its_real_is_there() {
    let (mut pools, frame) = (pools(), syn());
    let mut memory = Memory::default();
    let numbers = |pools: &Pools, memory: &Memory| -> Vec<_> {
        let served = served(pools, memory, &frame);
        served.choices.iter().map(|choice| choice.number).collect()
    };
    assert_eq!(numbers(&pools, &memory), [Some(0), Some(1)]);
    let first = served(&pools, &memory, &frame);
    memory.note(&pools, &first, &[&first.choices[1]]);
    pools.pools[0].ring = vec![0];
    memory.forget_slots();
    assert_eq!(numbers(&pools, &memory), [Some(1)]);
    // A new connection leaves one that drains; a new real in its place is another.
    pools.reals[1].as_mut().unwrap().drains = true;
    assert_eq!(numbers(&pools, &memory), [Some(0)]);
    pools.reals[1].as_mut().unwrap().drains = false;
    pools.reals[1].as_mut().unwrap().id = 3;
    assert_eq!(numbers(&pools, &memory), [Some(0)]);
    pools.pools[0].ring.clear();
    assert_eq!(numbers(&pools, &memory), [None]);
}

#[test]
fn a_connection_that_its_client_has_ended_is_followed_by_one_to_any_real() {
    let mut pools = pools();
    pools.pools[0].method = Method::Least;
    let mut memory = Memory::default();
    let numbers = |memory: &Memory, frame: &[u8]| -> Vec<_> {
        let served = served(&pools, memory, frame);
        served.choices.iter().map(|choice| choice.number).collect()
    };
    let frame = |flags: u8| {
        let mut frame = syn();
        frame[47] = flags;
        frame
    };
    let note = |memory: &mut Memory, flags: u8, real: usize| {
        let frame = frame(flags);
        let served = served(&pools, memory, &frame);
        memory.note(&pools, &served, &[&served.choices[real]]);
    };
    let (syn, ack) = (2, 16);
    note(&mut memory, syn, 1);
    assert_eq!(numbers(&memory, &frame(syn)), [Some(1)]);
    for ends in [1 | ack, 4] {
        note(&mut memory, ends, 0);
        // What the real still sends is acknowledged.
        assert_eq!(numbers(&memory, &frame(ack)), [Some(1)]);
        note(&mut memory, ack, 0);
        assert_eq!(numbers(&memory, &frame(syn)), [Some(0), Some(1)]);
        note(&mut memory, syn, 1);
        assert_eq!(numbers(&memory, &frame(syn)), [Some(1)]);
    }
}

#[test]
fn a_later_fragment_follows_the_first() {
    let (pools, [first, later]) = (pools(), fragments());
    let mut memory = Memory::default();
    let unseen = pools.decide(&memory, &ARRIVAL, &later);
    assert!(matches!(unseen, Decision::NotServed), "{unseen:?}");
    let decided = served(&pools, &memory, &first);
    memory.note(&pools, &decided, &[&decided.choices[1]]);
    let decided = served(&pools, &memory, &later);
    assert_eq!((decided.service, decided.choices.len()), (1, 1));
    assert_eq!(decided.choices[0].number, Some(1));
}

/// Nor does a known packet's fragment leave its real by what is not for this host.
#[test]
fn no_fragment_follows_a_frame_for_another_host() {
    let (mut pools, [first, later]) = (pools(), fragments());
    let mut memory = Memory::default();
    let mut flooded = first.clone();
    flooded[5] ^= 0x40;
    let decided = served(&pools, &memory, &flooded);
    memory.note(
        &pools,
        &decided,
        &decided.choices.iter().collect::<Vec<_>>(),
    );
    let decided = served(&pools, &memory, &later);
    assert_eq!(decided.choices[0].fate, Fate::Host(Reason::Pass));
    let decided = served(&pools, &memory, &first);
    memory.note(&pools, &decided, &[&decided.choices[1]]);
    pools.pools[0].ring = vec![0];
    memory.forget_slots();
    let decided = served(&pools, &memory, &flooded);
    memory.note(
        &pools,
        &decided,
        &decided.choices.iter().collect::<Vec<_>>(),
    );
    let decided = served(&pools, &memory, &later);
    let numbers = decided.choices.iter().map(|choice| choice.number);
    assert_eq!(numbers.collect::<Vec<_>>(), [Some(1)]);
}

#[test]
fn a_service_of_a_port_goes_before_one_of_all_ports() {
    let mut pools = pools();
    let frame = syn();
    let service = |port| Service {
        port,
        ..pools.services[0]
    };
    let (named, all, other) = (service(Some(80)), service(None), service(Some(81)));
    let memory = Memory::default();
    for (services, place) in [
        (vec![all, named], Some(1)),
        (vec![named, all], Some(0)),
        (vec![other, all], Some(1)),
        (vec![other], None),
    ] {
        pools.services = services;
        let decided = pools.decide(&memory, &ARRIVAL, &frame);
        let seen = match decided {
            Decision::Served(served) => Some(served.service),
            _ => None,
        };
        assert_eq!(seen, place);
    }
}

#[test]
fn what_ends_before_its_ports_is_nobodys() {
    let [first, _] = fragments();
    for (frame, ports) in [(syn(), 38), (first, 66)] {
        for len in 0..frame.len() {
            let cut = &frame[..len];
            let is_served = matches!(
                pools().decide(&Memory::default(), &ARRIVAL, cut),
                Decision::Served(_)
            );
            assert_eq!(is_served, len >= ports, "{len}");
        }
    }
}

proptest! {
    #[test]
    fn no_frame_is_too_strange(
        kind in 0..4usize,
        at in any::<[prop::sample::Index; 3]>(),
        with in any::<[u8; 3]>(),
        cut in 0..100usize,
    ) {
        let [first, later] = fragments();
        let mut frame = [syn(), first, later, vec![0x45; 80]][kind].clone();
        for (at, with) in at.iter().zip(with) {
            let at = at.index(frame.len());
            frame[at] = with;
        }
        frame.truncate(cut);
        let mut pools = pools();
        pools.reals[0].as_mut().unwrap().tunnel = Some(Tunnel {
            source: "fd01::1".parse().unwrap(),
            dest: "fd02::1".parse().unwrap(),
            mtu: 100,
            gue_port: Some(6080),
        });
        let mut memory = Memory::default();
        for is_skb in [false, true] {
            let arrival = Arrival { ifindex: 1, is_skb, mac: None };
            if let Decision::Served(served) = pools.decide(&memory, &arrival, &frame) {
                prop_assert!(!served.choices.is_empty());
                memory.note(&pools, &served, &served.choices.iter().collect::<Vec<_>>());
            }
        }
    }
}
