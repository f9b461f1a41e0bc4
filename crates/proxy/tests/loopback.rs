//! TCP through the proxy: what goes in comes out, ends as it ended, and no client can take
//! more than the limits give it.

mod common;

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use common::{DENIED, LIMITS, Proxy, SOON, at, service, soon};
use proptest::prelude::*;
use rustix::net::sockopt;
use weir_proxy::{Limits, Protocol, ProxyHeader, RealState};

const VIP: &str = "127.0.0.80";
const REAL: &str = "127.0.0.1";

/// A real's listening socket, at a port that is free.
fn real(addr: &str) -> (TcpListener, u16) {
    let listener = TcpListener::bind(at(addr, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream
}

fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream
}

fn reset(stream: TcpStream) {
    sockopt::set_socket_linger(stream.as_fd(), Some(Duration::ZERO)).unwrap();
}

/// The connection ends by a reset, after these bytes.
#[track_caller]
fn is_reset_after(stream: &mut TcpStream, bytes: &[u8]) {
    let mut read = Vec::new();
    let error = stream.read_to_end(&mut read).unwrap_err();
    assert_eq!((error.kind(), &*read), (ErrorKind::ConnectionReset, bytes));
}

/// What both ends of a connection through `proxy` are.
fn pair(proxy: &Proxy, real: &TcpListener) -> (TcpStream, TcpStream) {
    (connect(proxy.service.vip), accept(real))
}

/// Bytes that a misplaced one is seen in.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut word = seed | 1;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Plays one end of a connection: sends its chunks, then ends, and reads all along.
fn play(mut stream: TcpStream, sent: Vec<u8>, chunk: usize, is_slow: bool) -> Vec<u8> {
    let mut writer = stream.try_clone().unwrap();
    let writing = thread::spawn(move || {
        for chunk in sent.chunks(chunk) {
            writer.write_all(chunk).unwrap();
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut read = Vec::new();
    let mut buffer = vec![0; 40_000];
    loop {
        if is_slow {
            thread::yield_now();
        }
        match stream.read(&mut buffer).unwrap() {
            0 => break,
            len => read.extend(&buffer[..len]),
        }
    }
    writing.join().unwrap();
    read
}

/// Every family is relayed to every family.
#[test]
fn a_connection_reaches_a_real_of_either_family() {
    for (vip, addr) in [(VIP, REAL), (VIP, "::1"), ("::1", REAL)] {
        let (listener, port) = real(addr);
        let proxy = Proxy::tcp(at(vip, port), &[addr], LIMITS);
        let (mut client, mut server) = pair(&proxy, &listener);
        client.write_all(b"question").unwrap();
        let mut buffer = [0; 8];
        server.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"question");
        server.write_all(b"answer").unwrap();
        drop(server);
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "answer");
        drop(client);
        let (counters, real) = (&proxy.service.counters, &proxy.reals[0].counters);
        // The place is free a moment before the real's count goes down.
        let is_over = || proxy.group.active() == [0, 0] && real.active.get() == 0;
        soon("it is over", is_over);
        for (bytes, expected) in [
            (&counters.bytes_in, 8),
            (&counters.bytes_out, 6),
            (&real.bytes_in, 8),
            (&real.bytes_out, 6),
            (&counters.flows, 1),
            (&real.flows, 1),
        ] {
            assert_eq!(bytes.get(), expected, "{vip} to {addr}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whoever ends first, in whatever pieces it is sent and however slowly it is read:
    /// each end gets what the other one has sent, all of it, and then the end.
    #[test]
    fn what_goes_in_comes_out(
        lens in prop::array::uniform2(prop_oneof![0..200usize, 0..60_000usize, 0..4_000_000usize]),
        chunks in prop::array::uniform2(prop_oneof![1000..20_000usize, 20_000..400_000usize]),
        slow in prop::array::uniform2(any::<bool>()),
        seed: u64,
    ) {
        let (listener, port) = real(REAL);
        let proxy = Proxy::tcp(at(VIP, port), &[REAL], LIMITS);
        let (client, server) = pair(&proxy, &listener);
        let [question, answer] = lens.map(|len| bytes(len, seed ^ len as u64));
        let (theirs, chunk) = (answer.clone(), chunks[1]);
        let serving = thread::spawn(move || play(server, theirs, chunk, slow[1]));
        let got = play(client, question.clone(), chunks[0], slow[0]);
        prop_assert!(got == answer, "{} bytes of {}", got.len(), answer.len());
        let got = serving.join().unwrap();
        prop_assert!(got == question, "{} bytes of {}", got.len(), question.len());
        soon("it is over", || proxy.group.active() == [0, 0]);
    }
}

#[test]
fn a_half_close_stays_one() {
    let (listener, port) = real(REAL);
    let proxy = Proxy::tcp(at(VIP, port), &[REAL], LIMITS);
    let (mut client, mut server) = pair(&proxy, &listener);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0; 8]).unwrap(), 0);
    for n in 0..20 {
        server.write_all(&[n]).unwrap();
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [n]);
    }
}

#[test]
fn a_reset_is_passed_on_after_what_was_sent() {
    let (listener, port) = real(REAL);
    let proxy = Proxy::tcp(at(VIP, port), &[REAL], LIMITS);
    for said in [&b""[..], &bytes(300_000, 7)] {
        let (mut client, mut server) = pair(&proxy, &listener);
        let before = proxy.service.counters.bytes_out.get();
        server.write_all(said).unwrap();
        // A reset takes back what has not left the server yet.
        let relayed = || proxy.service.counters.bytes_out.get() - before;
        soon("it is relayed", || relayed() == said.len() as u64);
        reset(server);
        is_reset_after(&mut client, said);

        let (mut client, mut server) = pair(&proxy, &listener);
        client.write_all(b"question").unwrap();
        server.read_exact(&mut [0; 8]).unwrap();
        reset(client);
        is_reset_after(&mut server, b"");
    }
    soon("all are over", || proxy.group.active() == [0, 0]);
}

#[test]
fn a_real_that_refuses_or_is_silent_is_passed_over() {
    let (listener, port) = real("127.0.0.3");
    // Its queue is full, and it accepts nobody.
    let silent = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(&silent, &at("127.0.0.2", port)).unwrap();
    rustix::net::listen(&silent, 0).unwrap();
    let _waits = connect(at("127.0.0.2", port));
    let limits = Limits {
        connect_timeout: Duration::from_secs(2),
        ..LIMITS
    };
    let reals = [REAL, "127.0.0.2", "127.0.0.3"];
    let proxy = Proxy::tcp(at(VIP, port), &reals, limits);
    let (mut client, mut server) = pair(&proxy, &listener);
    client.write_all(b"question").unwrap();
    server.read_exact(&mut [0; 8]).unwrap();
    let failed = proxy.reals.iter().map(|real| real.counters.failed.get());
    assert_eq!(failed.collect::<Vec<_>>(), [1, 1, 0]);
    // Tries are bounded: with two the third is never reached.
    proxy.group.set_limits(Limits { tries: 2, ..limits });
    is_reset_after(&mut connect(proxy.service.vip), b"");
    assert_eq!(proxy.service.counters.unreachable.get(), 1);
    assert_eq!(proxy.reals[2].counters.flows.get(), 1);
}

#[test]
fn without_a_real_a_client_is_reset() {
    let (_listener, port) = real(REAL);
    let proxy = Proxy::tcp(at(VIP, port), &[], LIMITS);
    is_reset_after(&mut connect(proxy.service.vip), b"");
    assert_eq!(proxy.service.counters.no_real.get(), 1);
}

#[test]
fn who_is_denied_is_reset_and_takes_no_place() {
    let (listener, port) = real(REAL);
    let limits = Limits { flows: 1, ..LIMITS };
    let proxy = Proxy::tcp(at(VIP, port), &[REAL], limits);
    for denied in 1..=3 {
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::STREAM,
            None,
        )
        .unwrap();
        rustix::net::bind(&socket, &at(DENIED, 0)).unwrap();
        rustix::net::connect(&socket, &proxy.service.vip).unwrap();
        is_reset_after(&mut socket.into(), b"");
        assert_eq!(proxy.service.counters.denied.get(), denied);
    }
    let counters = &proxy.service.counters;
    assert_eq!((counters.flows.get(), counters.no_real.get()), (0, 0));
    assert_eq!(counters.refused_total.get(), 0);
    pair(&proxy, &listener);
}

/// A thousand silent connections take all places: one more is refused at once, counted,
/// and served when one has gone. Nobody else's connection suffers.
#[test]
fn at_the_cap_a_client_is_refused_and_others_go_on() {
    const MOST: u64 = 1000;
    let (listener, port) = real(REAL);
    let limits = Limits {
        flows: MOST,
        ..LIMITS
    };
    let proxy = Proxy::new(at(VIP, port), Protocol::Tcp, &[REAL], limits, 2);
    let mut idle: Vec<_> = (0..MOST).map(|_| pair(&proxy, &listener)).collect();
    soon("all have a place", || proxy.group.active()[0] == MOST);
    for refused in 1..=5 {
        is_reset_after(&mut connect(proxy.service.vip), b"");
        assert_eq!(proxy.service.counters.refused_total.get(), refused);
    }
    let (client, server) = &mut idle[500];
    client.write_all(b"question").unwrap();
    server.read_exact(&mut [0; 8]).unwrap();
    idle.pop();
    soon("a place is free", || proxy.group.active()[0] < MOST);
    idle.push(pair(&proxy, &listener));

    let limits = Limits {
        flows: MOST + 10,
        flows_of_client: Some(2),
        ..LIMITS
    };
    proxy.group.set_limits(limits);
    let kept = [pair(&proxy, &listener), pair(&proxy, &listener)];
    is_reset_after(&mut connect(proxy.service.vip), b"");
    assert_eq!(proxy.service.counters.refused_client.get(), 1);
    drop(kept);
    soon("its places are free", || proxy.group.active()[0] == MOST);
    idle.push(pair(&proxy, &listener));
}

/// A client that never reads stops its real, and neither memory nor others pay for it.
#[test]
fn a_client_that_never_reads_stops_its_real_alone() {
    static SENT: AtomicU64 = AtomicU64::new(0);
    let (listener, port) = real(REAL);
    let proxy = Proxy::tcp(at(VIP, port), &[REAL], LIMITS);
    let (_never_reads, mut server) = pair(&proxy, &listener);
    server
        .set_write_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let sending = thread::spawn(move || {
        let chunk = bytes(1 << 16, 3);
        while let Ok(len) = server.write(&chunk) {
            SENT.fetch_add(len as u64, Relaxed);
        }
        server
    });
    let _server = sending.join().unwrap();
    // Socket buffers of the kernel on both sides, and one pipe.
    let (sent, relayed) = (SENT.load(Relaxed), proxy.service.counters.bytes_out.get());
    assert!(relayed > 0 && sent - relayed < 40 << 20, "{sent} {relayed}");
    let (mut client, mut server) = pair(&proxy, &listener);
    client.write_all(b"question").unwrap();
    server.read_exact(&mut [0; 8]).unwrap();
    assert_eq!(proxy.service.counters.bytes_out.get(), relayed);
}

#[test]
fn a_silent_connection_ends_after_its_time() {
    let (listener, port) = real(REAL);
    let limits = Limits {
        idle_timeout: Duration::from_secs(5),
        ..LIMITS
    };
    let proxy = Proxy::tcp(at(VIP, port), &[REAL], limits);
    let (mut silent, _silent) = pair(&proxy, &listener);
    let (mut client, mut server) = pair(&proxy, &listener);
    let talking = thread::spawn(move || {
        while proxy.service.counters.idle.get() == 0 {
            client.write_all(b"x").unwrap();
            server.read_exact(&mut [0]).unwrap();
            thread::sleep(Duration::from_millis(50));
        }
        client.write_all(b"still here").unwrap();
        server.read_exact(&mut [0; 10]).unwrap();
        proxy.service.counters.idle.get()
    });
    is_reset_after(&mut silent, b"");
    assert_eq!(talking.join().unwrap(), 1);
}

#[test]
fn a_real_that_is_cut_off_loses_its_connections_and_one_that_drains_does_not() {
    let (listener, port) = real("127.0.0.2");
    let (other, _) = (TcpListener::bind(at(REAL, port)).unwrap(), ());
    let proxy = Proxy::new(
        at(VIP, port),
        Protocol::Tcp,
        &["127.0.0.2", REAL],
        LIMITS,
        2,
    );
    let mut cut: Vec<_> = (0..8).map(|_| pair(&proxy, &listener)).collect();
    // Down is only what checks say: what it still does it may do.
    proxy.reals[0].set_state(RealState::Down);
    let (_kept, _) = pair(&proxy, &other);
    for (client, server) in &mut cut {
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
    }
    proxy.reals[0].set_state(RealState::Cut);
    proxy.engine.wake();
    for (client, server) in &mut cut {
        is_reset_after(client, b"");
        is_reset_after(server, b"");
    }
    soon("one is left", || proxy.group.active()[0] == 1);
}

#[test]
fn a_real_is_told_who_the_client_is() {
    for (vip, len) in [(VIP, 28), ("::1", 52)] {
        let (listener, port) = real(REAL);
        let limits = Limits {
            header: ProxyHeader::V2,
            ..LIMITS
        };
        let proxy = Proxy::tcp(at(vip, port), &[REAL], limits);
        let (mut client, mut server) = pair(&proxy, &listener);
        let mut header = vec![0; len];
        server.read_exact(&mut header).unwrap();
        assert_eq!(&header[..12], b"\r\n\r\n\0\r\nQUIT\n");
        let ports = [client.local_addr().unwrap().port(), port].map(u16::to_be_bytes);
        assert_eq!(header[len - 4..], *ports.as_flattened());
        client.write_all(b"question").unwrap();
        server.read_exact(&mut [0; 8]).unwrap();
        // What is not the client's is not counted as if it were.
        soon("its bytes", || proxy.service.counters.bytes_in.get() == 8);
    }
}

/// Even where the other server shares its address with others of its kind.
#[test]
fn an_address_that_another_server_has_is_refused() {
    let (listener, port) = real(REAL);
    let proxy = Proxy::new(at(VIP, port), Protocol::Tcp, &[REAL], LIMITS, 2);
    let again = weir_proxy::Engine::new(2).unwrap().0;
    let failed = again.serve(std::slice::from_ref(&proxy.service));
    assert_eq!(failed[0].1.kind(), ErrorKind::AddrInUse);
    // When it has gone, the address is to be had at once, and connections stay.
    let (mut client, mut server) = pair(&proxy, &listener);
    assert!(proxy.engine.serve(&[]).is_empty());
    soon("it is free", || {
        again.serve(std::slice::from_ref(&proxy.service)).is_empty()
    });
    client.write_all(b"question").unwrap();
    server.read_exact(&mut [0; 8]).unwrap();
}

/// A virtual address that moves from one pool to another is received all the time: no
/// client is refused, and connections stay with the real that they have.
#[test]
fn an_address_moves_to_another_service_without_a_moment_closed() {
    for (vip, workers) in [(VIP, 1), (VIP, 3), ("::1", 3)] {
        let (listener, port) = real("127.0.0.2");
        let _listener = TcpListener::bind(at(REAL, port)).unwrap();
        let vip = at(vip, port);
        let proxy = Proxy::new(vip, Protocol::Tcp, &["127.0.0.2"], LIMITS, workers);
        let (mut client, mut server) = pair(&proxy, &listener);
        let (other, _) = service(vip, Protocol::Tcp, &[REAL], LIMITS);
        for _ in 0..20 {
            for service in [&other, &proxy.service] {
                let failed = proxy.engine.serve(std::slice::from_ref(service));
                assert!(failed.is_empty(), "{}", failed[0].1);
                connect(vip);
            }
        }
        let failed = proxy.engine.serve(std::slice::from_ref(&other));
        assert!(failed.is_empty(), "{}", failed[0].1);
        let (before, counters) = (other.counters.flows.get(), &other.counters);
        soon("a connection of the other service's", || {
            connect(vip);
            counters.flows.get() > before
        });
        client.write_all(b"question").unwrap();
        server.read_exact(&mut [0; 8]).unwrap();
    }
}
