//! Pools with `forward = "proxy"`: two real nginx and a real BIND behind virtual addresses
//! of each family, each on a network of its own that no client reaches, relayed to over
//! the other family as well. (What the proxy does with single connections:
//! crates/proxy/tests.)

#[path = "common/bind.rs"]
mod bind;
#[path = "root_proxy/choice.rs"]
mod choice;
mod common;
#[path = "root_proxy/transparent.rs"]
mod transparent;

use std::{
    collections::BTreeSet,
    fs,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
};

use bind::serve_dns;
use common::{SILENCE, SOON, Weir, addr, skipped, soon};
use serde_json::Value;
use weir_netlab::{Child, Namespace, Net, Veth, VethOpts};
use weir_testkit::traffic;

const VIP: [&str; 2] = ["192.0.2.80", "2001:db8::80"];
const CLIENT: [&str; 2] = ["192.0.2.100", "2001:db8::100"];
const BANNED: [&str; 2] = ["192.0.2.66", "2001:db8::66"];
/// Each client of one family is served by the real of the other one, too.
const REAL: [&str; 2] = ["10.1.1.11", "2001:db8:2::12"];

struct Networks {
    dir: tempfile::TempDir,
    servers: [Option<Child>; 2],
    _dns: Child,
    reals: [Namespace; 2],
    host: Namespace,
    client: Namespace,
    _veths: Vec<Veth>,
    _net: Net,
}

impl Networks {
    fn new() -> Self {
        let net = Net::new().unwrap();
        let [host, client, one, two] =
            ["host", "client", "one", "two"].map(|name| net.namespace(name).unwrap());
        let join = |dev: &str, here: [&str; 2], there: &Namespace, addresses: &[&str]| {
            let opts = VethOpts::new(&here, addresses).unwrap();
            net.veth(&host, dev, there, "eth0", opts).unwrap()
        };
        let veths = vec![
            join(
                "eth0",
                ["192.0.2.1/24", "2001:db8::1/64"],
                &client,
                &[
                    "192.0.2.100/24",
                    "192.0.2.66/24",
                    "2001:db8::100/64",
                    "2001:db8::66/64",
                ],
            ),
            join(
                "real1",
                ["10.1.1.1/24", "2001:db8:1::1/64"],
                &one,
                &["10.1.1.11/24", "2001:db8:1::11/64"],
            ),
            join(
                "real2",
                ["10.1.2.1/24", "2001:db8:2::1/64"],
                &two,
                &["10.1.2.12/24", "2001:db8:2::12/64"],
            ),
        ];
        host.ip(&[
            format!("addr add {}/32 dev eth0", VIP[0]),
            format!("addr add {}/128 dev eth0 preferred_lft 0", VIP[1]),
        ])
        .unwrap();
        // To clients whose address a real sees, for transparency.
        for (real, router) in [
            (&one, ["10.1.1.1", "2001:db8:1::1"]),
            (&two, ["10.1.2.1", "2001:db8:2::1"]),
        ] {
            real.ip(&router.map(|via| format!("route add default via {via}")))
                .unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let dns = serve_dns(dir.path(), &one, 0);
        let mut networks = Self {
            dir,
            servers: [None, None],
            _dns: dns,
            reals: [one, two],
            host,
            client,
            _veths: veths,
            _net: net,
        };
        networks.serve(0);
        networks.serve(1);
        networks
    }

    /// Starts the nginx of a real. At port 80 it says who it is and whom it sees, at port
    /// 83 who it is; at port 81 it wants the header of the PROXY protocol first, and says
    /// whom that names.
    fn serve(&mut self, number: usize) {
        let dir = self.dir.path().join(number.to_string());
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("large"), large()).unwrap();
        let dir = dir.display();
        let config = format!(
            "daemon off; master_process off; worker_processes 1; user root;
             pid {dir}/pid; error_log {dir}/error.log;
             events {{ worker_connections 256; }}
             http {{
                 log_format told \"$proxy_protocol_addr\";
                 access_log {dir}/access.log told;
                 client_body_temp_path {dir}/tmp; proxy_temp_path {dir}/tmp;
                 fastcgi_temp_path {dir}/tmp; uwsgi_temp_path {dir}/tmp; scgi_temp_path {dir}/tmp;
                 keepalive_timeout 600s;
                 server {{
                     listen 80; listen [::]:80;
                     location = /large {{ root {dir}; }}
                     location / {{ return 200 \"{number} $remote_addr\\n\"; }}
                 }}
                 server {{
                     listen 83; listen [::]:83;
                     location / {{ return 200 \"{number} at 83\\n\"; }}
                 }}
                 server {{
                     listen 81 proxy_protocol; listen [::]:81 proxy_protocol;
                     location / {{ return 200 \"{number} $proxy_protocol_addr\\n\"; }}
                 }}
             }}"
        );
        let conf = format!("{dir}/conf");
        fs::write(&conf, config).unwrap();
        let mut command = Command::new("/usr/sbin/nginx");
        command.args(["-c", &conf]).stdin(Stdio::null());
        let real = &self.reals[number];
        self.servers[number] = Some(real.spawn(command).unwrap());
        soon("nginx to listen", || {
            let at = SocketAddr::new(addr("127.0.0.1"), 81);
            traffic::tcp_connect(real, None, at, SILENCE).ok()
        });
    }

    fn open(&self, from: &str, family: usize, port: u16) -> Option<Flow> {
        let to = SocketAddr::new(addr(VIP[family]), port);
        let opened = traffic::tcp_open(&self.client, Some(addr(from)), to, SILENCE);
        let (stream, _) = opened.ok()?;
        stream.set_read_timeout(Some(SOON)).unwrap();
        Some(Flow(stream))
    }

    /// A new connection is reset; that may be there before it is looked at.
    #[track_caller]
    fn refuses(&self, from: &str, family: usize) {
        if let Some(mut flow) = self.open(from, family, 80) {
            flow.is_reset();
        }
    }

    /// Which real serves a new connection of each of `count` clients, half of each family.
    #[track_caller]
    fn all_served_by(&self, count: usize) -> BTreeSet<usize> {
        let served = (0..count).map(|n| {
            let mut flow = self.open(CLIENT[n % 2], n % 2, 80).expect("a connection");
            flow.ask().expect("an answer").0
        });
        served.collect()
    }

    /// A connection that stays open to each real, in each family.
    fn flows(&self) -> Vec<(usize, Flow)> {
        let mut flows = Vec::new();
        for (family, client) in CLIENT.into_iter().enumerate() {
            for number in 0..2 {
                let flow = soon("a flow to each real", || {
                    let mut flow = self.open(client, family, 80)?;
                    (flow.ask()?.0 == number).then_some(flow)
                });
                flows.push((number, flow));
            }
        }
        flows
    }
}

/// Data whose length is no multiple of a buffer's or a segment's.
fn large() -> Vec<u8> {
    (0..5_000_003u32).map(|n| (n ^ n >> 11) as u8).collect()
}

struct Flow(TcpStream);

impl Flow {
    /// Which real answers here, and whom it sees; `None`: the connection is over.
    fn ask(&mut self) -> Option<(usize, String)> {
        let request = b"GET / HTTP/1.1\r\nHost: vip\r\n\r\n";
        self.0.write_all(request).ok()?;
        let mut answer = String::new();
        loop {
            let mut buffer = [0; 1024];
            let len = self.0.read(&mut buffer).ok()?;
            answer.push_str(std::str::from_utf8(&buffer[..len]).unwrap());
            let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
            if let Some(line) = body.and_then(|body| body.strip_suffix('\n')) {
                let (number, seen) = line.split_once(' ').unwrap();
                return Some((number.parse().unwrap(), seen.to_owned()));
            }
            if len == 0 {
                return None;
            }
        }
    }

    /// Asserts that the connection is reset, not just silent.
    #[track_caller]
    fn is_reset(&mut self) {
        let error = self.0.read(&mut [0; 64]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

/// Pools of the two nginx at port 80 and 81 and of the name server, with more keys for
/// `web`.
fn config(backend: &str, more: &str) -> String {
    let [vip, vip6] = VIP;
    let [one, two] = REAL;
    format!(
        "interfaces = [\"eth0\"]\nbackend = \"{backend}\"\n[proxy]\nthreads = 2\n\
         [pool.web]\nforward = \"proxy\"\nvip = [\"{vip}\", \"{vip6}\"]\nports = [\"80/tcp\"]\n\
         reals = [{{ address = \"{one}\" }}, {{ address = \"{two}\" }}]\n\
         check = {{ http = \"/\", interval = \"1s\", rise = 1, fall = 1, timeout = \"5s\" }}\n{more}\n\
         [pool.told]\nforward = \"proxy\"\nproxy_protocol = \"v2\"\nvip = [\"{vip}\", \"{vip6}\"]\nports = [\"81/tcp\"]\n\
         reals = [{{ address = \"{one}\" }}, {{ address = \"{two}\" }}]\ncheck = {{ port = 80 }}\n\
         [pool.dns]\nforward = \"proxy\"\nvip = [\"{vip}\", \"{vip6}\"]\nports = [\"53/udp\", \"53/tcp\"]\n\
         reals = [{{ address = \"{one}\" }}]\ncheck = {{ dns = \"www.test\" }}\n"
    )
}

fn pool(weir: &Weir, name: &str) -> Value {
    weir.ask(&["pool", "show", name, "--json"]).json()
}

#[track_caller]
fn live_soon(weir: &Weir, count: u64) {
    soon(&format!("{count} live reals"), || {
        (pool(weir, "web")["live"] == count).then_some(())
    });
}

#[test]
fn root_a_pool_is_relayed_with_every_kind_of_backend() {
    if skipped(&["nginx", "named"]) {
        return;
    }
    for backend in ["tcx", "nft"] {
        println!("{backend}");
        relayed(backend);
    }
}

fn relayed(backend: &str) {
    let both = BTreeSet::from([0, 1]);
    let mut networks = Networks::new();
    let mut weir = Weir::start(&networks.host, &config(backend, ""));
    live_soon(&weir, 2);
    assert_eq!(networks.all_served_by(40), both);

    // Each real sees this host, and the one that is told of it the client.
    for (family, client) in CLIENT.into_iter().enumerate() {
        let mut flow = networks.open(client, family, 80).unwrap();
        let (number, seen) = flow.ask().unwrap();
        assert_eq!(seen, ["10.1.1.1", "2001:db8:2::1"][number]);
        let mut flow = networks.open(client, family, 81).unwrap();
        let (number, seen) = flow.ask().unwrap();
        assert_eq!(seen, client);
        let log = networks.dir.path().join(format!("{number}/access.log"));
        let log = || fs::read_to_string(&log).unwrap();
        soon("the log", || {
            log().lines().any(|line| line == client).then_some(())
        });
    }

    // What is large arrives whole.
    for (family, client) in CLIENT.into_iter().enumerate() {
        let mut flow = networks.open(client, family, 80).unwrap().0;
        flow.write_all(b"GET /large HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        flow.read_to_end(&mut answer).unwrap();
        assert!(answer.ends_with(&large()), "{} bytes", answer.len());
    }

    // A name server answers by datagrams and connections.
    let query =
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03www\x04test\x00\x00\x01\x00\x01";
    for (family, client) in CLIENT.into_iter().enumerate() {
        let (from, at) = (Some(addr(client)), SocketAddr::new(addr(VIP[family]), 53));
        for _ in 0..20 {
            let asked = traffic::udp_request(&networks.client, from, at, query, SOON);
            let (answer, _) = asked.unwrap();
            assert!(answer.starts_with(b"\x12\x34\x85\x00"), "{answer:?}");
            let address = [192, 0, 2, 99];
            assert!(answer.windows(4).any(|window| window == address));
        }
        let mut flow = networks.open(client, family, 53).unwrap().0;
        let len = (query.len() as u16).to_be_bytes();
        flow.write_all(&[&len, &query[..]].concat()).unwrap();
        let mut answer = [0; 6];
        flow.read_exact(&mut answer).unwrap();
        assert_eq!(answer[2..], *b"\x12\x34\x85\x00");
    }
    let dns = pool(&weir, "dns");
    let flows = |n: usize| dns["services"][n]["proxy"]["flows"].as_u64().unwrap();
    let all: Vec<_> = (0..4).map(flows).collect();
    // Two datagrams from one port, which the kernel chose, are one flow.
    assert!((38..=42).contains(&all.iter().sum::<u64>()), "{dns}");

    // Who is banned never reaches a real.
    for (family, who) in BANNED.iter().enumerate() {
        assert!(networks.open(who, family, 80).is_some());
        weir.ask(&["ban", who]).done();
        assert!(networks.open(who, family, 80).is_none(), "{who}");
    }

    // A drained real keeps what it has, a disabled one loses it.
    let mut flows = networks.flows();
    weir.ask(&["real", "drain", "web", REAL[0]]).done();
    assert_eq!(networks.all_served_by(20), [1].into());
    for (number, flow) in &mut flows {
        assert_eq!(flow.ask().unwrap().0, *number);
    }
    weir.ask(&["real", "disable", "web", REAL[0]]).done();
    for (number, flow) in &mut flows {
        match number {
            0 => flow.is_reset(),
            _ => assert_eq!(flow.ask().unwrap().0, 1),
        }
    }
    drop(flows);
    weir.ask(&["real", "enable", "web", REAL[0]]).done();
    assert_eq!(networks.all_served_by(40), both);

    // A reload keeps connections, but for those of a real that leaves.
    let mut flows = networks.flows();
    let other = config(backend, "max_connections = 20");
    weir.configure(&other.replace("threads = 2", ""));
    let refused = weir.ask(&["reload"]);
    assert!(refused.err.contains("threads in [proxy]"), "{refused:?}");
    weir.configure(&other);
    weir.ask(&["reload"]).done();
    for (number, flow) in &mut flows {
        assert_eq!(flow.ask().unwrap().0, *number);
    }
    weir.configure(&other.replacen(&format!("{{ address = \"{}\" }}, ", REAL[0]), "", 1));
    weir.ask(&["reload"]).done();
    for (number, flow) in &mut flows {
        match number {
            0 => flow.is_reset(),
            _ => assert_eq!(flow.ask().unwrap().0, 1),
        }
    }
    // At the cap a client is refused, counted and told of.
    flows.retain(|(number, _)| *number == 1);
    soon("only those are open", || {
        let active = &pool(&weir, "web")["reals"][0]["proxy"]["active"];
        (*active == flows.len()).then_some(())
    });
    while flows.len() < 20 {
        let mut flow = networks.open(CLIENT[0], 0, 80).unwrap();
        flow.ask().unwrap();
        flows.push((1, flow));
    }
    networks.refuses(CLIENT[1], 1);
    assert_eq!(pool(&weir, "web")["services"][1]["proxy"]["refused"], 1);
    soon("the log", || {
        let words = "pool web: 1 connections refused, for there are max_connections (20)";
        weir.said().contains(words).then_some(())
    });
    drop(flows);
    weir.configure(&config(backend, ""));
    weir.ask(&["reload"]).done();
    live_soon(&weir, 2);

    // A real that dies is passed over at once: of this pool it takes three checks.
    networks.servers[0] = None;
    for n in 0..20 {
        let mut flow = networks.open(CLIENT[n % 2], n % 2, 81).unwrap();
        assert_eq!(flow.ask().unwrap().0, 1);
    }
    let told = pool(&weir, "told");
    let failed = &told["reals"][0]["proxy"]["failed"];
    assert!(failed.as_u64() > Some(0), "{told}");
    networks.serve(0);
    live_soon(&weir, 2);
    assert_eq!(networks.all_served_by(40), both);

    // SIGKILL ends connections, and a restart listens at once, over what is in TIME_WAIT.
    let mut flows = networks.flows();
    weir.kill();
    for (_, flow) in &mut flows {
        assert!(flow.ask().is_none());
    }
    weir.run();
    live_soon(&weir, 2);
    assert_eq!(networks.all_served_by(40), both);

    let shown = weir.ask(&["pool", "show", "web"]).done().out;
    for words in [
        "192.0.2.80",
        "80/tcp",
        "BYTES-OUT",
        "2001:db8:2::12",
        "ACTIVE",
        "up",
    ] {
        assert!(shown.contains(words), "{shown}");
    }
    soon("all are over", || {
        let active = |real| weir.metric("weir_pool_real_active_flows", &["web", real]);
        (REAL.map(active) == [Some(0); 2]).then_some(())
    });
    let sum: u64 = REAL
        .map(|real| {
            weir.metric("weir_pool_real_flows_total", &["web", real])
                .unwrap()
        })
        .iter()
        .sum();
    assert_eq!(sum, 40);

    // Without a real a client is reset, and told of.
    networks.servers = [None, None];
    live_soon(&weir, 0);
    for (family, client) in CLIENT.into_iter().enumerate() {
        networks.refuses(client, family);
    }
    let alerts = weir.json(&["status"])["alerts"].to_string();
    let told = "pool web has no live real, new connections are reset";
    assert!(alerts.contains(told), "{alerts}");
    let refused = "weir_pool_service_refused_flows_total";
    let of = ["web", VIP[0], "80/tcp", "no-real"];
    assert_eq!(weir.metric(refused, &of), Some(1));

    // And without the pool nobody listens.
    weir.configure(&format!(
        "interfaces = [\"eth0\"]\nbackend = \"{backend}\"\n"
    ));
    weir.ask(&["reload"]).done();
    assert!((0..2).all(|family| networks.open(CLIENT[family], family, 80).is_none()));
}

/// The server of another program at the address is an alert by name, and over when that
/// has gone; a first port below 1024 needs a capability that a running daemon gave up.
#[test]
fn root_an_address_that_cannot_be_had_is_told() {
    if skipped(&["nginx", "named", "python3"]) {
        return;
    }
    let networks = Networks::new();
    let program = "import socket,time\ns=socket.socket()\ns.setsockopt(1,15,1)\ns.bind(('',80))\ns.listen()\nprint(flush=True)\ntime.sleep(999)";
    let mut command = Command::new("python3");
    command.args(["-c", program]).stdout(Stdio::piped());
    let mut other = networks.host.spawn(command).unwrap();
    let out = other.inner().stdout.as_mut().unwrap();
    out.read_exact(&mut [0]).unwrap();
    let mut weir = Weir::start(&networks.host, &config("tcx", ""));
    live_soon(&weir, 2);
    let alerts = || weir.json(&["status"])["alerts"].to_string();
    let told = "pool web: cannot receive 80/tcp at 192.0.2.80: another program of this host does";
    assert!(alerts().contains(told), "{}", alerts());
    let mut flow = networks.open(CLIENT[1], 1, 80).unwrap();
    assert!(flow.ask().is_some(), "the other family is served");
    drop(other);
    soon("no alert", || (alerts() == "[]").then_some(()));
    assert_eq!(networks.all_served_by(40), [0, 1].into());

    weir.stop();
    weir.configure("interfaces = [\"eth0\"]\nbackend = \"tcx\"\n");
    weir.run();
    weir.configure(&config("tcx", ""));
    let refused = weir.ask(&["reload"]);
    assert!(refused.err.contains("CAP_NET_BIND_SERVICE"), "{refused:?}");
}
