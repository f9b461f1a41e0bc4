//! A real BIND with response rate limiting, on the loopback, and a client
//! that counts what it is answered.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::{DEADLINE, Running, ServerFiles, free_port};

pub const PROGRAM: &str = "/usr/sbin/named";

/// Answers a second to one client; the rest is limited.
pub const LIMIT: usize = 5;

pub struct Named {
    pub running: Running,
    port: u16,
}

impl Named {
    /// Starts it with the zone `test.`, queries logged to `query.log`, of
    /// which it keeps old versions of 8 KiB itself, and what the rate limit
    /// does to `rate.log`.
    pub fn start(place: &ServerFiles, patterns: &[&str], tee: bool) -> Named {
        let port = free_port();
        let directory = place.file("");
        let configuration = format!(
            "options {{
                 directory \"{directory}\"; pid-file \"named.pid\"; session-keyfile \"session.key\";
                 listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 port {port} {{ ::1; }};
                 recursion no; dnssec-validation no; notify no;
                 rate-limit {{
                     responses-per-second {LIMIT}; ipv4-prefix-length 32; ipv6-prefix-length 64;
                 }};
             }};
             controls {{ }};
             logging {{
                 channel query {{ file \"query.log\" versions 50 size 8k; print-category yes; }};
                 channel rate {{ file \"{directory}/rate.log\"; severity info;
                     print-time iso8601; print-category yes; }};
                 category queries {{ query; }};
                 category rate-limit {{ rate; }};
             }};
             zone \"test\" {{ type primary; file \"zone\"; }};",
            directory = directory.display().to_string().trim_end_matches('/'),
        );
        std::fs::write(place.file("named.conf"), configuration).expect("its configuration");
        let zone =
            "$TTL 60\n@ SOA ns hostmaster 1 60 60 60 60\n@ NS ns\nns A 192.0.2.1\n* A 192.0.2.2\n";
        std::fs::write(place.file("zone"), zone).expect("its zone");
        let errors = std::fs::File::create(place.file("stderr.txt")).expect("a file");
        let mut command = place.under_shim(PROGRAM, patterns, tee);
        command
            .args(["-f", "-n", "2", "-c"])
            .arg(place.file("named.conf"))
            .stderr(errors);
        let running = Running::start(&mut command);
        let mut named = Named { running, port };
        let from = IpAddr::from([127, 0, 0, 99]);
        let begun = Instant::now();
        while named.ask(from, "up.test", 1).whole == 0 {
            let ended = named.running.has_ended();
            assert!(!ended, "{:?}", place.lines_of("stderr.txt"));
            assert!(begun.elapsed() < DEADLINE, "named does not answer");
        }
        named
    }

    /// Asks for a name's address so many times at once. Few enough fit into
    /// the socket's buffer (208 KiB: some 270).
    pub fn ask(&self, from: IpAddr, name: &str, times: usize) -> Answers {
        assert!(times <= 200);
        let server = match from {
            IpAddr::V4(_) => IpAddr::from([127, 0, 0, 1]),
            IpAddr::V6(_) => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        };
        let socket = UdpSocket::bind(SocketAddr::new(from, 0)).expect("a socket");
        socket
            .connect(SocketAddr::new(server, self.port))
            .expect("the loopback");
        for number in 0..times {
            let _ = socket.send(&question(number as u16, name));
        }
        let mut answers = Answers::default();
        let mut answer = [0; 512];
        // An answer that is not there by then was dropped, which is what the
        // rate limit is for: its log lines tell whether it was.
        socket
            .set_read_timeout(Some(Duration::from_secs(1)))
            .expect("a timeout");
        while let Ok(length) = socket.recv(&mut answer) {
            assert!(length >= 12);
            if answer[2] & 2 == 0 {
                answers.whole += 1;
            } else {
                answers.truncated += 1;
            }
        }
        answers
    }
}

/// The answers that the name server gave.
#[derive(Debug, Default)]
pub struct Answers {
    pub whole: usize,
    /// Sent instead of being dropped ("slip").
    pub truncated: usize,
}

/// A DNS question for an address (RFC 1035, 4.1).
fn question(id: u16, name: &str) -> Vec<u8> {
    let mut packet = id.to_be_bytes().to_vec();
    packet.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        packet.push(label.len() as u8);
        packet.extend(label.as_bytes());
    }
    packet.extend([0, 0, 1, 0, 1]);
    packet
}
