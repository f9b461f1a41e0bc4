//! UDP through the proxy: answers come back to who asked, flows are bounded, and what a
//! real does not take is counted.

mod common;

use std::{net::UdpSocket, time::Duration};

use common::{DENIED, LIMITS, Proxy, SOON, at, service, soon};
use weir_proxy::{Limits, Protocol, ProxyHeader, RealState};

const VIP: &str = "127.0.0.80";
const REAL: &str = "127.0.0.1";

fn socket(addr: &str, port: u16) -> UdpSocket {
    let socket = UdpSocket::bind(at(addr, port)).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket
}

fn real(addr: &str) -> (UdpSocket, u16) {
    let socket = socket(addr, 0);
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

fn client(proxy: &Proxy) -> UdpSocket {
    let own = match proxy.service.vip.is_ipv4() {
        true => REAL,
        false => "::1",
    };
    let client = socket(own, 0);
    client.connect(proxy.service.vip).unwrap();
    client
}

/// One question of a client, and its answer.
#[track_caller]
fn ask(client: &UdpSocket, real: &UdpSocket, question: &[u8]) {
    client.send(question).unwrap();
    let mut buffer = vec![0; 1 << 16];
    let (len, from) = real.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], question);
    let answer = [question, b" answered"].concat();
    real.send_to(&answer, from).unwrap();
    let len = client.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], answer);
}

fn proxy(vip: &str, port: u16, reals: &[&str], limits: Limits) -> Proxy {
    Proxy::new(at(vip, port), Protocol::Udp, reals, limits, 1)
}

#[test]
fn answers_come_back_over_either_family() {
    for (vip, addr) in [(VIP, REAL), (VIP, "::1"), ("::1", REAL)] {
        let (real, port) = real(addr);
        let proxy = proxy(vip, port, &[addr], LIMITS);
        let clients = [client(&proxy), client(&proxy), client(&proxy)];
        for len in [0, 1, 1400, 60_000] {
            for (n, client) in clients.iter().enumerate() {
                ask(client, &real, &vec![n as u8; len]);
            }
        }
        let (counters, of_real) = (&proxy.service.counters, &proxy.reals[0].counters);
        assert_eq!((counters.flows.get(), of_real.active.get()), (3, 3));
        let counted =
            || [&counters.bytes_in, &of_real.bytes_in, &counters.bytes_out].map(|c| c.get());
        let answers = 184_203 + 3 * 4 * 9;
        soon("all bytes", || counted() == [184_203, 184_203, answers]);
        // Nobody but its real answers a client.
        let stranger = socket(addr, 0);
        let mut flows = vec![0; 1];
        clients[0].send(b"?").unwrap();
        let (_, flow) = real.recv_from(&mut flows).unwrap();
        stranger.send_to(b"forged", flow).unwrap();
        ask(&clients[0], &real, b"again");
    }
}

/// The flow that was silent longest goes, and comes back when its client speaks.
#[test]
fn at_the_cap_the_oldest_flow_goes() {
    const MOST: u64 = 50;
    let (real, port) = real(REAL);
    let limits = Limits {
        flows: MOST,
        ..LIMITS
    };
    let proxy = proxy(VIP, port, &[REAL], limits);
    let clients: Vec<_> = (0..MOST).map(|_| client(&proxy)).collect();
    clients
        .iter()
        .for_each(|client| ask(client, &real, b"first"));
    let counters = &proxy.service.counters;
    assert_eq!(
        (counters.evicted.get(), proxy.group.active()),
        (0, [0, MOST])
    );
    // The first one is not the oldest any more, but the second.
    ask(&clients[0], &real, b"second");
    ask(&client(&proxy), &real, b"new");
    assert_eq!(
        (counters.evicted.get(), counters.flows.get()),
        (1, MOST + 1)
    );
    ask(&clients[0], &real, b"third");
    assert_eq!(counters.flows.get(), MOST + 1);
    ask(&clients[1], &real, b"back");
    assert_eq!(
        (counters.flows.get(), proxy.group.active()),
        (MOST + 2, [0, MOST])
    );

    // Who has too many gets no more, and loses none.
    proxy.group.set_limits(Limits {
        flows: 100,
        flows_of_client: Some(1),
        ..limits
    });
    let [kept, refused] = [client(&proxy), client(&proxy)];
    ask(&kept, &real, b"one");
    refused.send(b"two").unwrap();
    soon("it is refused", || counters.refused_client.get() == 1);
    ask(&kept, &real, b"one");
}

#[test]
fn a_datagram_of_who_is_denied_begins_no_flow() {
    let (real, port) = real(REAL);
    let proxy = proxy(VIP, port, &[REAL], LIMITS);
    let denied = UdpSocket::bind((DENIED, 0)).unwrap();
    denied.connect(proxy.service.vip).unwrap();
    let counters = &proxy.service.counters;
    for count in 1..=2 {
        denied.send(b"question").unwrap();
        soon("it is counted", || counters.denied.get() == count);
    }
    assert_eq!((counters.flows.get(), proxy.group.active()), (0, [0, 0]));
    ask(&client(&proxy), &real, b"question");
}

#[test]
fn a_silent_flow_ends_after_its_time() {
    let (real, port) = real(REAL);
    let limits = Limits {
        udp_timeout: Duration::from_secs(1),
        ..LIMITS
    };
    let proxy = proxy(VIP, port, &[REAL], limits);
    ask(&client(&proxy), &real, b"question");
    soon("it is over", || proxy.group.active() == [0, 0]);
    assert_eq!(proxy.service.counters.evicted.get(), 0);
}

#[test]
fn a_real_without_a_server_is_counted_and_one_that_is_down_is_left() {
    let (real, port) = real("127.0.0.2");
    let proxy = proxy(VIP, port, &[REAL, "127.0.0.2"], LIMITS);
    let asks = client(&proxy);
    asks.send(b"lost").unwrap();
    let unreachable = &proxy.reals[0].counters.port_unreachable;
    soon("port unreachable", || unreachable.get() == 1);
    assert_eq!(proxy.reals[0].counters.active.get(), 1, "it marks nothing");
    for state in [RealState::Down, RealState::Cut] {
        proxy.reals[0].set_state(state);
        ask(&asks, &real, b"question");
        assert_eq!(proxy.reals[1].counters.active.get(), 1);
        let gone = proxy.reals[0].counters.active.get();
        assert_eq!(gone, 0, "{state:?}");
    }
    proxy.reals[1].set_state(RealState::Cut);
    asks.send(b"nobody").unwrap();
    soon("no real", || proxy.service.counters.no_real.get() == 1);
}

#[test]
fn each_datagram_says_who_the_client_is() {
    let (real, port) = real(REAL);
    let limits = Limits {
        header: ProxyHeader::V2,
        ..LIMITS
    };
    let proxy = proxy("::1", port, &[REAL], limits);
    let client = client(&proxy);
    for _ in 0..2 {
        client.send(b"question").unwrap();
        let mut buffer = [0; 100];
        let (len, _) = real.recv_from(&mut buffer).unwrap();
        assert_eq!(
            (&buffer[..16], &buffer[52..len]),
            (
                &b"\r\n\r\n\0\r\nQUIT\n\x21\x22\x00\x24"[..],
                &b"question"[..]
            )
        );
        let port = client.local_addr().unwrap().port();
        assert_eq!(buffer[48..50], port.to_be_bytes());
    }
    // The header is not the client's.
    soon("its bytes", || proxy.service.counters.bytes_in.get() == 16);
}

/// A virtual address that moves to another pool is received all the time, and what its
/// clients send goes to a real of that one.
#[test]
fn an_address_moves_to_another_service_with_its_clients() {
    for (vip, workers) in [(VIP, 1), (VIP, 3), ("::1", 3)] {
        let (old, port) = real("127.0.0.2");
        let new = socket(REAL, port);
        let vip = at(vip, port);
        let proxy = Proxy::new(vip, Protocol::Udp, &["127.0.0.2"], LIMITS, workers);
        let client = client(&proxy);
        ask(&client, &old, b"before");
        let (other, _) = service(vip, Protocol::Udp, &[REAL], LIMITS);
        let failed = proxy.engine.serve(std::slice::from_ref(&other));
        assert!(failed.is_empty(), "{}", failed[0].1);
        soon("the old service's flow to end", || {
            proxy.group.active()[1] == 0
        });
        ask(&client, &new, b"after");
        assert_eq!(other.group.active()[1], 1);
    }
}
