//! A process without descriptors: who waits is served later, and waiting costs nothing.
//! Alone in its program, for the limit is the process's.

mod common;

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use common::{LIMITS, Proxy, SOON, at, soon};
use rustix::{
    net::{AddressFamily, SocketType, connect, socket},
    process::{Resource, Rlimit, getrlimit, setrlimit},
    time::{ClockId, clock_gettime},
};

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_process_without_descriptors_waits_and_goes_on() {
    const CLIENTS: usize = 40;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let proxy = Proxy::tcp(at("127.0.0.80", port), &["127.0.0.1"], LIMITS);
    let before = getrlimit(Resource::Nofile);
    let sockets: Vec<_> = (0..CLIENTS)
        .map(|_| socket(AddressFamily::INET, SocketType::STREAM, None).unwrap())
        .collect();
    // A few connections of the proxy have descriptors.
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let few = Rlimit {
        current: Some(open + 9),
        maximum: before.maximum,
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let clients = sockets.into_iter().map(|socket| {
        connect(&socket, &proxy.service.vip).unwrap();
        TcpStream::from(socket)
    });
    let mut clients: Vec<_> = clients.collect();
    let wants = &proxy.service.counters.out_of_descriptors;
    soon("a want of descriptors", || wants.get() > 1);
    let (begin, used) = (Instant::now(), processor_time());
    soon("some rounds", || begin.elapsed() > Duration::from_secs(1));
    let used = processor_time() - used;
    // This thread's own looks are in it.
    assert!(used < Duration::from_millis(400), "{used:?}");
    setrlimit(Resource::Nofile, before).unwrap();
    let serving = std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut byte = [0];
            let _ = stream
                .read_exact(&mut byte)
                .and_then(|()| stream.write_all(&byte));
        }
    });
    let served = clients.iter_mut().filter_map(|client| {
        client.set_read_timeout(Some(SOON)).unwrap();
        client.write_all(b"x").ok()?;
        client.read_exact(&mut [0]).ok()
    });
    let served = served.count();
    assert_eq!(served, CLIENTS);
    drop(serving);
}
