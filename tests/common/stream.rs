//! Packets that come all the time, and what became of them.

use std::{
    fs,
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use weir_testkit::traffic::udp_send;

use super::{ATTACKER, CUSTOMER, HOST, OTHER, SOON, TestNet, addr};

/// Senders that go on until they are told to stop, each in turn.
pub struct Stream<'a> {
    pub stop: &'a AtomicBool,
    /// Packets so far.
    pub sent: &'a AtomicU64,
}

impl Stream<'_> {
    /// Sends from these while `beside` runs, which sees how many packets there
    /// are so far, and returns how many there were.
    pub fn beside(net: &TestNet, from: &[&str], port: u16, beside: impl FnOnce(&AtomicU64)) -> u64 {
        let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            let stream = Stream {
                stop: &stop,
                sent: &sent,
            };
            scope.spawn(move || stream.run(net, from, port));
            beside(&sent);
        });
        sent.into_inner()
    }

    pub fn run(&self, net: &TestNet, from: &[&str], port: u16) {
        let from: Vec<_> = from.iter().map(|who| addr(who)).collect();
        while !self.stop.load(Ordering::Relaxed) {
            for who in &from {
                let to = SocketAddr::new(addr(HOST[usize::from(who.is_ipv6())]), port);
                let some = udp_send(&net.internet, Some(*who), to, b"x", 20).unwrap();
                self.sent.fetch_add(some, Ordering::Relaxed);
            }
            // The host under test needs the processors as well.
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// Ends the stream, whatever becomes of the test.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Packets that came beside something.
#[derive(Default)]
pub struct Traffic {
    /// Packets of denied clients, to a port.
    pub denied: AtomicU64,
    /// Packets of customers, to the port behind it.
    pub customers: AtomicU64,
}

impl Traffic {
    /// Sends all the time while `beside` runs.
    pub fn flows(&self, net: &TestNet, port: u16, beside: impl FnOnce()) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            let denied = Stream {
                stop: &stop,
                sent: &self.denied,
            };
            scope.spawn(move || denied.run(net, &[ATTACKER, OTHER].concat(), port));
            let customers = Stream {
                stop: &stop,
                sent: &self.customers,
            };
            scope.spawn(move || customers.run(net, &CUSTOMER, port + 1));
            beside();
        });
    }
}

/// Sends datagrams in groups that a loaded machine's queues have room for.
#[track_caller]
pub fn send_gently(net: &TestNet, from: &str, to: SocketAddr, count: u64) {
    const GROUP: u64 = 100;
    let mut left = count;
    while left > 0 {
        let some = left.min(GROUP);
        let sent = udp_send(&net.internet, Some(addr(from)), to, b"x", some).unwrap();
        assert_eq!(sent, some, "{from}");
        left -= some;
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The sum of these counters of the host's IP stack: `Ip:InHdrErrors`, or in
/// IPv6 `Ip6InHdrErrors`.
pub fn stack_counted(net: &TestNet, wanted: &[&str]) -> u64 {
    let read = |file: &str| fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
    let [v4, v6] = net.host.enter(|| ["snmp", "snmp6"].map(read)).unwrap();
    let lines: Vec<Vec<&str>> = v4.lines().map(|line| line.split(' ').collect()).collect();
    // Names, and their values in the line below.
    let v4 = lines.chunks_exact(2).flat_map(|pair| {
        let pairs = pair[0].iter().zip(&pair[1]).skip(1);
        pairs.map(|(name, value)| (format!("{}{name}", pair[0][0]), *value))
    });
    let v6 = v6.lines().filter_map(|line| {
        let (name, value) = line.split_once(char::is_whitespace)?;
        Some((name.to_owned(), value.trim()))
    });
    v4.chain(v6)
        .filter(|(name, _)| wanted.contains(&name.as_str()))
        .map(|(_, value)| value.parse::<u64>().unwrap())
        .sum()
}

/// UDP datagrams that reached its sockets, whether there was room or not.
fn udp_arrived(net: &TestNet) -> u64 {
    let v4 = ["Udp:InDatagrams", "Udp:InErrors"];
    stack_counted(
        net,
        &[&v4[..], &["Udp6InDatagrams", "Udp6InErrors"]].concat(),
    )
}

/// Asserts that all of these datagrams come, and no others, perhaps when the
/// server has no room.
#[track_caller]
pub fn all_arrived(net: &TestNet, sent: u64) {
    let deadline = Instant::now() + SOON;
    while udp_arrived(net) < sent && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    let came = udp_arrived(net);
    println!("{came} of {sent} allowed packets came");
    assert_eq!(came, sent);
}
