//! Pools with `transparent`: with the guide's routes a real sees the client's own address,
//! and a client has its answers from the address that it asked.

use std::net::UdpSocket;

use super::*;

/// Two virtual addresses of each family, both of one real.
const VIPS: [[&str; 2]; 2] = [
    ["192.0.2.80", "192.0.2.81"],
    ["2001:db8::80", "2001:db8::81"],
];
const PROTOCOLS: [&str; 2] = ["tcp", "udp"];

/// The networks, where this host takes what its reals answer by the guide's routes.
fn networks() -> Networks {
    let networks = Networks::new();
    let host = &networks.host;
    host.ip(&[
        format!("addr add {}/32 dev eth0", VIPS[0][1]),
        format!("addr add {}/128 dev eth0 preferred_lft 0", VIPS[1][1]),
        "route add local default dev lo table 100".into(),
    ])
    .unwrap();
    let six = "-6 route add local default dev lo table 100".to_owned();
    let rule = |family: &str, device: &str, protocol: &str| {
        format!("{family} rule add iif {device} ipproto {protocol} sport 80 lookup 100")
    };
    let rules =
        PROTOCOLS.map(|protocol| [rule("-4", "real1", protocol), rule("-6", "real2", protocol)]);
    for line in rules.into_iter().flatten().chain([six]) {
        let words: Vec<_> = line.split(' ').collect();
        host.run("ip", &words).unwrap();
    }
    networks
}

/// A pool of each family at port 80 of this protocol.
fn weir(networks: &Networks, protocol: &str, check: &str) -> Weir {
    let pools = [0, 1].map(|family| {
        let [one, two] = VIPS[family];
        format!(
            "[pool.web{family}]\nforward = \"proxy\"\ntransparent = true\n\
             vip = [\"{one}\", \"{two}\"]\nports = [\"80/{protocol}\"]\n\
             reals = [{{ address = \"{}\" }}]\n{check}",
            REAL[family]
        )
    });
    let config = format!(
        "interfaces = [\"eth0\"]\nbackend = \"tcx\"\n{}",
        pools.concat()
    );
    let weir = Weir::start(&networks.host, &config);
    soon("live reals", || {
        let pools = weir.json(&["pool", "list"])["pools"].clone();
        (0..2).all(|n| pools[n]["live"] == 1).then_some(())
    });
    weir
}

#[test]
fn root_a_transparent_proxy_shows_the_client() {
    if skipped(&["nginx", "named"]) {
        return;
    }
    let networks = networks();
    let _weir = weir(&networks, "tcp", "");
    for (family, client) in CLIENT.into_iter().enumerate() {
        for _ in 0..3 {
            let mut flow = networks.open(client, family, 80).unwrap();
            assert_eq!(flow.ask().unwrap(), (family, client.to_owned()));
        }
        // From one port to both virtual addresses: the real can have it of one only.
        let from = SocketAddr::new(addr(client), 33_333);
        let mut flows = VIPS[family].map(|vip| {
            let to = SocketAddr::new(addr(vip), 80);
            let stream = traffic::tcp_open_from(&networks.client, from, to, SOON).unwrap();
            stream.set_read_timeout(Some(SOON)).unwrap();
            Flow(stream)
        });
        for flow in &mut flows {
            assert_eq!(flow.ask(), Some((family, client.to_owned())));
        }
    }
}

/// Answers each datagram with the address and port that it comes from, until it is told to
/// end.
struct SeesWhom {
    at: SocketAddr,
    real: Namespace,
    thread: Option<std::thread::JoinHandle<()>>,
}

const END: &[u8] = b"end";

impl SeesWhom {
    fn start(real: &Namespace, address: &str) -> Self {
        let at = SocketAddr::new(addr(address), 80);
        let socket = real.enter(|| UdpSocket::bind(at)).unwrap().unwrap();
        let thread = std::thread::spawn(move || {
            let mut question = [0; 64];
            loop {
                let (len, from) = socket.recv_from(&mut question).unwrap();
                if &question[..len] == END {
                    return;
                }
                let answer = [&question[..len], format!(" {from}").as_bytes()].concat();
                // Who is gone hears nothing.
                let _ = socket.send_to(&answer, from);
            }
        });
        Self {
            at,
            real: real.clone(),
            thread: Some(thread),
        }
    }
}

impl Drop for SeesWhom {
    fn drop(&mut self) {
        let sent = traffic::udp_send(&self.real, None, self.at, END, 1);
        if let (Ok(1), Some(thread)) = (sent, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

/// What a client hears from a virtual address on a question to it: whom the real sees.
#[track_caller]
fn ask(socket: &UdpSocket, vip: &str, question: &str) -> SocketAddr {
    let to = SocketAddr::new(addr(vip), 80);
    socket.send_to(question.as_bytes(), to).unwrap();
    let mut answer = [0; 128];
    let (len, from) = socket.recv_from(&mut answer).expect("an answer");
    let answer = String::from_utf8(answer[..len].to_vec()).unwrap();
    let (heard, seen) = answer.split_once(' ').unwrap();
    assert_eq!((heard, from), (question, to));
    seen.parse().unwrap()
}

#[test]
fn root_a_transparent_proxy_shows_the_client_by_datagrams() {
    if skipped(&["nginx", "named"]) {
        return;
    }
    let networks = networks();
    let _servers = [0, 1].map(|n| SeesWhom::start(&networks.reals[n], REAL[n]));
    let weir = weir(&networks, "udp", "check = { udp = \"ping\" }\n");
    for (family, client) in CLIENT.into_iter().enumerate() {
        // The port is the client's as well, over all of its flow.
        for port in 40_001..=40_004 {
            let own = SocketAddr::new(addr(client), port);
            let flow = networks.client.enter(|| UdpSocket::bind(own));
            let flow = flow.unwrap().unwrap();
            flow.set_read_timeout(Some(SOON)).unwrap();
            let [one, two] = VIPS[family];
            for n in 0..3 {
                assert_eq!(ask(&flow, one, &format!("question-{n}")), own);
            }
            // To both virtual addresses: what the real answers comes from one address and
            // port, and goes back from the virtual address that was asked.
            for n in 0..3 {
                for vip in [two, one] {
                    let seen = ask(&flow, vip, &format!("{vip}-{n}"));
                    assert_eq!(seen.ip(), own.ip());
                }
            }
        }
        let pool = pool(&weir, &format!("web{family}"));
        assert_eq!(pool["reals"][0]["proxy"]["active"], 8, "{pool}");
    }
}
