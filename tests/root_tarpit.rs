//! Tarpit ports against real clients: a Linux client is connected and held by the window
//! of zero, and a port scan finds the ports open. IPv4 and IPv6, on tcx, native and
//! generic XDP. (Which packet is answered how: crates/bpf/tests/root_tarpit.rs.)

mod common;

use std::{
    io::{ErrorKind, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use common::{ATTACKER, CUSTOMER, GATEWAY, HOST, OTHER, SOON, TestNet, Weir, addr, skipped, soon};
use weir_bpf::attachment::Link;
use weir_netlab::Side;
use weir_testkit::{
    packet::Packet,
    traffic::{self, TcpServer},
};

#[path = "root_tarpit/dark.rs"]
mod dark;
#[path = "root_tarpit/scans.rs"]
mod scans;

const BACKENDS: [&str; 3] = ["tcx", "xdp", "xdp-generic"];
/// A port that is served among tarpits.
const SERVED: u16 = 1500;
const TARPIT: &str = "[tarpit]\nports = [\"25/tcp\", \"1000-1999/tcp\", \"!1500/tcp\"]\n";

struct Pit {
    weir: Weir,
    net: TestNet,
    _servers: Vec<TcpServer>,
    _peer: Option<Link>,
}

impl Pit {
    fn new(backend: &str, more: &str) -> Self {
        Self::with(backend, &format!("{TARPIT}{more}"))
    }

    fn with(backend: &str, sections: &str) -> Self {
        let net = TestNet::new();
        let peer = net.takes_answers_of(backend);
        let servers = HOST
            .map(|host| {
                let at = SocketAddr::new(addr(host), SERVED);
                TcpServer::start(&net.host, at, b"").unwrap()
            })
            .into();
        let config = format!("interfaces = [\"eth0\"]\nbackend = \"{backend}\"\n{sections}");
        let weir = Weir::start(&net.host, &config);
        assert_eq!(weir.attachment("eth0").0, backend);
        Self {
            weir,
            net,
            _servers: servers,
            _peer: peer,
        }
    }

    fn at(family: usize, port: u16) -> SocketAddr {
        SocketAddr::new(addr(HOST[family]), port)
    }

    fn connect(&self, who: &str, to: SocketAddr) -> TcpStream {
        let opened = traffic::tcp_open(&self.net.internet, Some(addr(who)), to, SOON);
        opened.unwrap().0
    }

    fn tarpit(&self) -> serde_json::Value {
        self.weir.json(&["status"])["tarpit"].clone()
    }

    /// What the client's kernel knows of its connection.
    fn socket(&self, stream: &TcpStream) -> Client {
        let port = stream.local_addr().unwrap().port();
        let filter = format!("sport = :{port}");
        let args = ["-tinoH", &filter];
        let output = self.net.internet.output("ss", &args).unwrap();
        Client::read(&String::from_utf8(output.stdout).unwrap())
    }
}

/// A connection as `ss` shows it.
#[derive(Debug)]
struct Client {
    state: String,
    send_queue: u64,
    is_persisting: bool,
    backoff: u32,
    segments_in: u64,
    segments_out: u64,
    next_probe: Duration,
}

impl Client {
    fn read(text: &str) -> Self {
        let mut words = text.split_whitespace();
        let number = |name: &str| {
            let mut values = text.split_whitespace().filter_map(|w| w.strip_prefix(name));
            values.next().map_or(0, |value| value.parse().unwrap())
        };
        Self {
            state: words.next().unwrap_or_default().to_owned(),
            send_queue: words.nth(1).map_or(0, |queue| queue.parse().unwrap()),
            is_persisting: text.contains("timer:(persist,"),
            backoff: number("backoff:") as u32,
            segments_in: number("segs_in:"),
            segments_out: number("segs_out:"),
            next_probe: next_probe(text).unwrap_or_default(),
        }
    }
}

/// The time until the next probe of `timer:(persist,25sec,8)`, or `1min2sec`; below ten
/// seconds `3.216ms`, which are 3.216 s, and `120ms`.
fn next_probe(text: &str) -> Option<Duration> {
    let (_, timer) = text.split_once("timer:(persist,")?;
    let (timer, _) = timer.split_once(',')?;
    let (minutes, rest) = timer.split_once("min").unwrap_or(("0", timer));
    let number = rest.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: f64 = match number {
        "" => 0.0,
        number => number.parse().ok()?,
    };
    let is_millis = rest.ends_with("ms") && !rest.contains('.');
    let seconds = if is_millis { number / 1000.0 } else { number };
    let minutes: f64 = minutes.parse().ok()?;
    Some(Duration::from_secs_f64(60.0 * minutes + seconds))
}

/// The client has the queue full and probes the window at intervals that double, and for
/// each segment of its own it gets one of ours at most: so of a minute there are few.
#[test]
fn root_tarpit_holds_a_client() {
    if skipped(&["ss"]) {
        return;
    }
    for backend in BACKENDS {
        let pit = Pit::new(backend, "");
        for family in [0, 1] {
            let mut stream = pit.connect(ATTACKER[family], Pit::at(family, 25));
            stream.set_nonblocking(true).unwrap();
            let mut written = 0;
            loop {
                match stream.write(&[b'x'; 4096]) {
                    Ok(bytes) => written += bytes as u64,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
            // The window that was offered once, and no byte more.
            let most = u64::from(weir_bpf::abi::TARPIT_WINDOW);
            let mut backoffs = Vec::new();
            let held = soon("the client to probe for the fourth time", || {
                let client = pit.socket(&stream);
                assert_eq!(client.state, "ESTAB", "{client:?}");
                assert!(
                    client.send_queue >= written - most,
                    "{client:?} of {written}"
                );
                if client.is_persisting && backoffs.last() != Some(&client.backoff) {
                    backoffs.push(client.backoff);
                }
                (client.is_persisting && client.backoff >= 4).then_some(client)
            });
            println!("{backend}: {held:?}, backoffs {backoffs:?}");
            // No answer to its probes sets the interval back: it doubles, to two minutes.
            assert!(backoffs.is_sorted(), "{backoffs:?}");
            // The SYN and the end of the handshake have one answer between them.
            assert!(held.segments_in < held.segments_out, "{held:?}");
            assert!(held.segments_out <= 10, "{held:?}");
            // Besides the handshake and the data; of probes one in sixteen is not answered.
            assert!(held.segments_in >= 3, "probes are answered: {held:?}");
        }
        let status = pit.tarpit();
        assert_eq!(
            (&status["answered"], &status["handshakes"]),
            (&2.into(), &2.into())
        );
        assert!(status["held"].as_u64() >= Some(4), "{status}");
        assert_eq!(status["unanswered"], 0, "{status}");
        assert_eq!(status["open"], 1000, "{status}");
        let answers = status["answered"].as_u64().unwrap() + status["held"].as_u64().unwrap();
        assert!(answers < pit.weir.packets("tarpit") + pit.weir.packets("tarpit-handshake"));
        assert_eq!(pit.weir.packets("tarpit-handshake"), 2);
        assert_eq!(pit.weir.banned(), [""; 0], "it holds, and bans nobody");
        let text = pit.weir.ask(&["status"]).out;
        assert!(text.contains("tarpit ports 25/tcp 1000-1999/tcp"), "{text}");
        let metric = pit.weir.metric("weir_tarpit_handshakes_total", &[]);
        assert_eq!(metric, Some(2));
    }
}

#[test]
fn root_tarpit_a_scan_finds_the_ports_open() {
    if skipped(&["nmap"]) {
        return;
    }
    for backend in BACKENDS {
        let pit = Pit::new(backend, "");
        for family in [0, 1] {
            for kind in ["-sS", "-sT"] {
                let who = ATTACKER[family];
                let mut args = vec![kind, "-Pn", "-n", "-p", "1000-1010", "-S", who];
                args.extend(["-e", "eth0", HOST[family]]);
                args.extend(["-6"].iter().take(family));
                let scan = pit.net.internet.output("nmap", &args).unwrap();
                let found = String::from_utf8_lossy(&scan.stdout).into_owned();
                for port in 1000..=1010 {
                    let open = format!("{port}/tcp open");
                    assert!(found.contains(&open), "{backend} {kind}: {found}");
                }
            }
        }
        assert_eq!(pit.weir.banned(), [""; 0]);
    }
}

#[test]
fn root_tarpit_bans_exemptions_and_servers_keep_their_meaning() {
    if skipped(&[]) {
        return;
    }
    for backend in BACKENDS {
        let pit = Pit::new(backend, "");
        for family in [0, 1] {
            let at = Pit::at(family, 1000);
            // Banned: dropped, and not answered.
            pit.net.serves(OTHER[family], at);
            pit.weir.ask(&["ban", OTHER[family]]).done();
            let before = pit.tarpit();
            assert!(!pit.net.connects(OTHER[family], at), "{backend}");
            assert_eq!(pit.tarpit()["answered"], before["answered"], "{backend}");
            // The gateway is exempt: it meets the port as without weir.
            assert!(!pit.net.connects(GATEWAY[family], at), "{backend}");
            assert_eq!(pit.tarpit()["answered"], before["answered"], "{backend}");
            // The server among them is served.
            pit.net.serves(CUSTOMER[family], Pit::at(family, SERVED));
        }
        // One that begins to be served later is no tarpit then.
        let late = Pit::at(0, 1234);
        let server = TcpServer::start(&pit.net.host, late, b"").unwrap();
        soon("the listener to be seen", || {
            (pit.tarpit()["served"] == serde_json::json!(["1234/tcp"])).then_some(())
        });
        let alerts = pit.weir.json(&["status"])["alerts"].to_string();
        assert!(alerts.contains("tarpit port 1234/tcp"), "{alerts}");
        pit.net.serves_soon(CUSTOMER[0], late);
        soon("the server to be asked", || {
            (server.accepted() > 0).then_some(())
        });
    }
}

/// Addresses of the segment that nobody has, by family; the first one in each test.
const DARK: [&str; 2] = ["192.0.2.77", "2001:db8::40:4d"];
const ADDRESSES: &str = "[tarpit]\naddresses = [\"192.0.2.64/26\", \"2001:db8::40:0/112\"]\n";

/// Whoever looks for an address that nobody has finds it, and all its ports open; those
/// that somebody has are left to him.
#[test]
fn root_tarpit_holds_at_addresses_that_nobody_has() {
    if skipped(&["nmap"]) {
        return;
    }
    for backend in BACKENDS {
        let pit = Pit::with(backend, ADDRESSES);
        // Its solicitations for sources that are not the interface's own come from there.
        let link_local = "addr add fe80::2/64 dev eth0 nodad".to_owned();
        pit.net.internet.ip(&[link_local]).unwrap();
        for family in [0, 1] {
            let dark = |port| SocketAddr::new(addr(DARK[family]), port);
            pit.net.serves_soon(ATTACKER[family], dark(22));
            pit.net.serves(ATTACKER[family], dark(65_535));
            let mut args = vec!["-sS", "-Pn", "-n", "-p", "1,445,8080"];
            args.extend(["-S", ATTACKER[family], "-e", "eth0"]);
            args.extend(["-6"].iter().take(family));
            let range = [
                &["192.0.2.80-83"][..],
                &["2001:db8::40:50", "2001:db8::40:51"],
            ];
            args.extend(range[family]);
            let scan = pit.net.internet.output("nmap", &args).unwrap();
            let found = String::from_utf8_lossy(&scan.stdout).into_owned();
            let open = found.matches("/tcp").count();
            assert_eq!(open, [12, 6][family], "{backend}: {found}");
            assert_eq!(found.matches("open").count(), open, "{backend}: {found}");
            // This host's own ports are as they were.
            pit.net.serves(ATTACKER[family], Pit::at(family, SERVED));
            let closed = Pit::at(family, 25);
            assert!(!pit.net.connects(ATTACKER[family], closed), "{backend}");
        }
        assert_eq!(pit.weir.banned(), [""; 0]);
        let status = pit.tarpit();
        assert!(status["resolved"].as_u64() >= Some(8), "{status}");
        let metric = pit.weir.metric("weir_tarpit_resolved_total", &[]);
        assert_eq!(metric, status["resolved"].as_u64());

        // One that somebody has by now, to whom this host talks.
        let taken = "192.0.2.100";
        let more = format!("addr add {taken}/24 dev eth0");
        pit.net.internet.ip(&[more]).unwrap();
        let server = SocketAddr::new(addr(taken), 8080);
        let _server = TcpServer::start(&pit.net.internet, server, b"").unwrap();
        traffic::tcp_connect(&pit.net.host, None, server, SOON).unwrap();
        let veth = &pit.net.veth;
        let ask = |last: u8| {
            let asker = veth.mac(Side::B);
            let mut frame = [&[0xff; 6], &asker[..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
            frame.extend([&asker[..], &[192, 0, 2, 2], &[0; 6], &[192, 0, 2, last]].concat());
            let before = pit.tarpit()["resolved"].as_u64().unwrap();
            let frames = [frame.as_slice()].into_iter();
            traffic::send_frames(&pit.net.internet, "eth0", frames).unwrap();
            before
        };
        soon("the neighbour to be seen", || {
            let before = ask(100);
            ask(101);
            soon("the other to be answered", || {
                (pit.tarpit()["resolved"].as_u64() > Some(before)).then_some(())
            });
            (pit.tarpit()["resolved"].as_u64() == Some(before + 1)).then_some(())
        });
        // Without the section nobody is there.
        let plain = format!("interfaces = [\"eth0\"]\nbackend = \"{backend}\"\n");
        pit.weir.configure(&plain);
        pit.weir.ask(&["reload"]).done();
        let gone = SocketAddr::new(addr(DARK[0]), 22);
        assert!(!pit.net.connects(ATTACKER[0], gone), "{backend}");
    }
}

/// Where the configuration says so, who completes handshakes is banned: SYNs, which
/// anybody can send in anybody's name, count for nothing, and the exempt stay so.
#[test]
fn root_tarpit_bans_who_completes_handshakes() {
    if skipped(&[]) {
        return;
    }
    for backend in BACKENDS {
        let pit = Pit::new(backend, "max_retry = 2\nban_time = \"20m\"\n");
        let waits_for = |handshakes: u64| {
            soon("the handshake to be told", || {
                (pit.tarpit()["handshakes"] == handshakes).then_some(())
            });
        };
        for family in [0, 1] {
            let told = 2 * family as u64;
            let veth = &pit.net.veth;
            let syns = (1000..1010).map(|port| {
                Packet::eth_between(veth.mac(Side::B), veth.mac(Side::A))
                    .ip(addr(CUSTOMER[family]), addr(HOST[family]))
                    .tcp(40_000, port)
                    .build()
            });
            let syns: Vec<_> = syns.collect();
            let frames = syns.iter().map(Vec::as_slice);
            let sent = traffic::send_frames(&pit.net.internet, "eth0", frames).unwrap();
            assert_eq!(sent, 10);
            pit.net.serves(ATTACKER[family], Pit::at(family, 1000));
            waits_for(told + 1);
            assert_eq!(pit.weir.banned().len(), family, "the first is found only");
            pit.net.serves(ATTACKER[family], Pit::at(family, 1001));
            soon("the second to ban", || {
                (pit.weir.why(ATTACKER[family])["dropped"] == true).then_some(())
            });
            waits_for(told + 2);
            let bans = pit.weir.why(ATTACKER[family]).to_string();
            assert!(bans.contains(r#""producer":"tarpit""#), "{bans}");
            let why = "completed a handshake with tarpit port 1001/tcp";
            assert!(bans.contains(why), "{bans}");
            assert_ne!(pit.weir.why(CUSTOMER[family])["dropped"], true);
        }
        assert_eq!(pit.weir.banned().len(), 2);
        // A reload that leaves the limits as they are forgets no handshake.
        pit.net.serves(OTHER[0], Pit::at(0, 1000));
        waits_for(5);
        pit.weir.ask(&["reload"]).done();
        pit.net.serves(OTHER[0], Pit::at(0, 1001));
        soon("the count to go on", || {
            (pit.weir.why(OTHER[0])["dropped"] == true).then_some(())
        });
    }
}

/// Connections that this host opens from such a port are not taken for clients, whoever
/// sends SYNs in the other end's name before.
#[test]
fn root_tarpit_own_connections_work() {
    if skipped(&[]) {
        return;
    }
    for backend in BACKENDS {
        let pit = Pit::new(backend, "");
        pit.net
            .host
            .sysctl("ipv4.ip_local_port_range", "1024 1400")
            .unwrap();
        for family in [0, 1] {
            let at = SocketAddr::new(addr(CUSTOMER[family]), 8080);
            let _server = TcpServer::start(&pit.net.internet, at, b"hello").unwrap();
            for _ in 0..5 {
                let opened = traffic::tcp_open(&pit.net.host, None, at, SOON);
                let (mut stream, _) = opened.unwrap();
                let port = stream.local_addr().unwrap().port();
                assert!((1024..=1400).contains(&port), "{port} is a tarpit port");
                let mut hello = [0; 5];
                std::io::Read::read_exact(&mut stream, &mut hello).unwrap();
                assert_eq!(&hello, b"hello");
            }
        }
        assert_eq!(pit.weir.packets("tarpit"), 0, "{backend}");
    }
}

#[test]
fn root_tarpit_comes_and_goes_by_reload() {
    if skipped(&[]) {
        return;
    }
    let pit = Pit::new("tcx", "");
    let at = Pit::at(0, 1000);
    pit.net.serves(ATTACKER[0], at);
    let plain = "interfaces = [\"eth0\"]\nbackend = \"tcx\"\n";
    pit.weir.configure(plain);
    pit.weir.ask(&["reload"]).done();
    assert!(!pit.net.connects(ATTACKER[0], at));
    assert!(pit.tarpit().is_null());
    // With decoys beside it: each port is what its section says.
    let both = format!("{plain}{TARPIT}[decoy]\nports = [\"23/tcp\"]\n");
    pit.weir.configure(&both);
    pit.weir.ask(&["reload"]).done();
    pit.net.serves(ATTACKER[0], at);
    assert_eq!(pit.weir.banned(), [""; 0]);
    pit.net.serves(ATTACKER[0], Pit::at(0, 23));
    soon("the decoy's visitor to be banned", || {
        (pit.weir.why(ATTACKER[0])["dropped"] == true).then_some(())
    });
    // And a port is not both.
    let twice = format!("{plain}{TARPIT}[decoy]\nports = [\"1000/tcp\"]\n");
    pit.weir.configure(&twice);
    let told = pit.weir.ask(&["reload"]);
    told.refused(&["1000/tcp in [decoy] as well"]);
}
