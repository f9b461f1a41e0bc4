//! Load balancing by direct server return: two real nginx behind one virtual address of
//! each family, on one segment with their clients and the balancer, on every hook that
//! forwards. (Which packet leaves how: crates/bpf/tests/root_balance.rs.)

#[path = "root_balance/acl.rs"]
mod acl;
#[path = "root_balance/added.rs"]
mod added;
#[path = "root_balance/all_ports.rs"]
mod all_ports;
#[path = "common/bind.rs"]
mod bind;
#[path = "root_balance/capacity.rs"]
mod capacity;
#[path = "root_balance/command.rs"]
mod command;
mod common;
#[path = "root_balance/emergency.rs"]
mod emergency;
#[path = "root_balance/least.rs"]
mod least;
#[path = "root_balance/methods.rs"]
mod methods;
#[path = "root_balance/neighbours.rs"]
mod neighbours;
#[path = "root_balance/not_asked.rs"]
mod not_asked;
#[path = "root_balance/quic.rs"]
mod quic;
#[path = "root_balance/reload.rs"]
mod reload;
#[path = "root_balance/roll_back.rs"]
mod roll_back;
#[path = "root_balance/vip_check.rs"]
mod vip_check;

use std::{
    collections::BTreeSet,
    fs,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
};

use common::{SILENCE, SOON, WEIR, Weir, addr, skipped, soon};
use serde_json::Value;
use weir_bpf::{
    attachment::{Hook, Link},
    generator::Generator,
};
use weir_netlab::{Child, Namespace, Net, Veth, VethOpts};
use weir_testkit::traffic::{self, TcpServer, UdpServer};

const VIP: [&str; 2] = ["192.0.2.80", "2001:db8::80"];
const CLIENT: [&str; 2] = ["192.0.2.100", "2001:db8::100"];
const BANNED: [&str; 2] = ["192.0.2.66", "2001:db8::66"];
const REAL: [&str; 2] = ["192.0.2.11", "192.0.2.12"];

/// A client's checksums are to be whole when a frame leaves by native XDP, as they are on
/// every wire; a veth end leaves them to whoever receives.
const WHOLE_CHECKSUMS: &str = "
import ctypes, fcntl, socket, struct
value = ctypes.create_string_buffer(struct.pack('II', 0x17, 0))
request = struct.pack('16sP', b'eth0', ctypes.addressof(value))
fcntl.ioctl(socket.socket(), 0x8946, request)
";

struct PoolNetwork {
    dir: tempfile::TempDir,
    servers: [Option<Child>; 2],
    reals: [Namespace; 2],
    host: Namespace,
    client: Namespace,
    _accepts: Option<Link>,
    _veths: Vec<Veth>,
    _net: Net,
}

impl PoolNetwork {
    fn new(backend: &str) -> Self {
        let net = Net::new().unwrap();
        let switch = net.namespace("switch").unwrap();
        switch
            .ip(&[
                "link add br0 type bridge forward_delay 0 mcast_snooping 0".into(),
                "link set br0 up".into(),
            ])
            .unwrap();
        let mut veths = Vec::new();
        let mut join = |name: &str, addresses: &[&str]| {
            let namespace = net.namespace(name).unwrap();
            let opts = VethOpts::new(addresses, &[]).unwrap();
            veths.push(net.veth(&namespace, "eth0", &switch, name, opts).unwrap());
            switch.ip(&[format!("link set {name} master br0")]).unwrap();
            namespace
        };
        let host = join("host", &["192.0.2.1/24", "2001:db8::1/64"]);
        let client = join(
            "client",
            &[
                "192.0.2.100/24",
                "192.0.2.66/24",
                "2001:db8::100/64",
                "2001:db8::66/64",
            ],
        );
        let reals = [
            join("one", &["192.0.2.11/24", "2001:db8::11/64"]),
            join("two", &["192.0.2.12/24", "2001:db8::12/64"]),
        ];
        // Without one no neighbour is asked for, whose own address is on another interface.
        for (number, real) in reals.iter().enumerate() {
            real.ip(&[format!("addr add fe80::{}/64 dev eth0 nodad", number + 1)])
                .unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        for (number, real) in reals.iter().enumerate() {
            let record = dir.path().join(format!("real-{number}.json"));
            let record = record.to_str().unwrap();
            let args = ["real-side", VIP[0], VIP[1], "--record", record];
            real.run(WEIR, &args).unwrap();
        }
        host.ip(&VIP.map(|vip| match vip.contains(':') {
            true => format!("addr add {vip}/128 dev eth0"),
            false => format!("addr add {vip}/32 dev eth0"),
        }))
        .unwrap();
        client.run("python3", &["-c", WHOLE_CHECKSUMS]).unwrap();
        let accepts = (backend == "xdp").then(|| {
            let index = switch.ifindex("host").unwrap();
            let accept = Generator::load().unwrap();
            let attach = || Link::attach(accept.accept(), index, Hook::Xdp);
            switch.enter(attach).unwrap().unwrap()
        });
        let mut segment = Self {
            dir,
            servers: [None, None],
            reals,
            host,
            client,
            _accepts: accepts,
            _veths: veths,
            _net: net,
        };
        segment.serve(0);
        segment.serve(1);
        segment
    }

    /// Starts the nginx of a real, which says who it is and whom it sees.
    fn serve(&mut self, number: usize) {
        let dir = self.dir.path().join(number.to_string());
        fs::create_dir_all(&dir).unwrap();
        let dir = dir.display();
        let config = format!(
            "daemon off; master_process off; worker_processes 1; user root;
             pid {dir}/pid; error_log {dir}/error.log;
             events {{ worker_connections 256; }}
             http {{
                 access_log {dir}/access.log;
                 client_body_temp_path {dir}/tmp; proxy_temp_path {dir}/tmp;
                 fastcgi_temp_path {dir}/tmp; uwsgi_temp_path {dir}/tmp; scgi_temp_path {dir}/tmp;
                 keepalive_timeout 600s; keepalive_requests 100000000;
                 server {{
                     listen 80; listen [::]:80;
                     location = /healthz {{
                         if (-f {dir}/ill) {{ return 503; }}
                         return 204;
                     }}
                     location / {{ return 200 \"{number} $remote_addr\"; }}
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
            let at = SocketAddr::new(addr("127.0.0.1"), 80);
            traffic::tcp_connect(real, None, at, SILENCE).ok()
        });
    }

    /// Has its nginx answer 503 at /healthz, or 204 again; all else it serves.
    fn is_ill(&self, number: usize, is_ill: bool) {
        let sign = self.dir.path().join(number.to_string()).join("ill");
        match is_ill {
            true => fs::write(sign, "").unwrap(),
            false => fs::remove_file(sign).unwrap(),
        }
    }

    fn kill(&mut self, number: usize) {
        self.servers[number] = None;
    }

    fn open(&self, from: &str, family: usize) -> Option<Flow> {
        let to = SocketAddr::new(addr(VIP[family]), 80);
        let opened = traffic::tcp_open(&self.client, Some(addr(from)), to, SILENCE);
        let (stream, _) = opened.ok()?;
        stream.set_read_timeout(Some(SOON)).unwrap();
        Some(Flow(stream))
    }

    /// Waits until the servers, too, have ended all connections that the client has: none of
    /// them sends more.
    fn is_quiet(&self) {
        let ends = "state fin-wait-1 state fin-wait-2 state closing src";
        for client in CLIENT.map(|client| format!("[{client}]")) {
            let words: Vec<_> = ["-Htn"].into_iter().chain(ends.split(' ')).collect();
            soon("connections to end at both sides", || {
                let open = self.client.run("ss", &[&words[..], &[&client]].concat());
                open.unwrap().stdout.is_empty().then_some(())
            });
        }
    }

    /// A new connection is served by this real, which sees the client's address.
    #[track_caller]
    fn served_by(&self, family: usize) -> usize {
        let mut flow = self.open(CLIENT[family], family).expect("a connection");
        flow.ask(CLIENT[family])
    }

    /// So many new connections are, by these.
    #[track_caller]
    fn all_served_by(&self, count: usize) -> BTreeSet<usize> {
        let families = (0..count).map(|n| n % 2);
        families.map(|family| self.served_by(family)).collect()
    }

    /// Datagrams of one packet and of several fragments come back from the reals, and an
    /// echo request from the balancer, which holds the address as well.
    fn datagrams_arrive(&self) {
        for (family, client) in CLIENT.into_iter().enumerate() {
            let (from, vip) = (Some(addr(client)), addr(VIP[family]));
            let at = SocketAddr::new(vip, 5353);
            let servers = self.reals.each_ref();
            let servers = servers.map(|real| UdpServer::start(real, at).unwrap());
            for n in 0..20 {
                for len in [1, 4000, 20_000] {
                    let asked = vec![n; len];
                    let answer = traffic::udp_request(&self.client, from, at, &asked, SOON);
                    assert!(answer.unwrap().0 == asked, "{len} bytes to {vip}");
                }
            }
            let [one, two] = servers.map(|server| server.received());
            assert!(one > 0 && two > 0 && one + two == 60, "{one} {two}");
            traffic::ping(&self.client, from, vip, SOON).unwrap();
        }
    }

    /// A connection that stays open to each real, in each family.
    fn flows(&self) -> Vec<(usize, usize, Flow)> {
        let mut flows = Vec::new();
        for (family, client) in CLIENT.into_iter().enumerate() {
            for number in 0..2 {
                let flow = soon("a flow to each real", || {
                    let mut flow = self.open(client, family)?;
                    (flow.ask(client) == number).then_some(flow)
                });
                flows.push((family, number, flow));
            }
        }
        flows
    }
}

struct Flow(TcpStream);

impl Flow {
    /// The number of the real behind this connection; it must see the client's own address.
    #[track_caller]
    fn ask(&mut self, client: &str) -> usize {
        self.0
            .write_all(b"GET / HTTP/1.1\r\nHost: vip\r\n\r\n")
            .unwrap();
        let mut answer = Vec::new();
        let text = loop {
            let mut buffer = [0; 1024];
            let len = match self.0.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.unwrap(),
            };
            assert_ne!(len, 0, "closed: {}", String::from_utf8_lossy(&answer));
            answer.extend(&buffer[..len]);
            let text = String::from_utf8_lossy(&answer);
            if let Some((_, body)) = text.split_once("\r\n\r\n")
                && body.len() > client.len()
            {
                break body.to_owned();
            }
        };
        let (number, seen) = text.split_once(' ').unwrap();
        assert_eq!(seen, client);
        number.parse().unwrap()
    }
}

fn config(backend: &str) -> String {
    format!(
        "interfaces = [\"eth0\"]\nbackend = \"{backend}\"\n[balance]\ninterface = \"eth0\"\n\
         [pool.web]\nvip = [\"{}\", \"{}\"]\nports = [\"80/tcp\", \"5353/udp\"]\n\
         reals = [{{ address = \"{}\" }}, {{ address = \"{}\" }}]\n\
         check = {{ interval = \"1s\" }}\n",
        VIP[0], VIP[1], REAL[0], REAL[1]
    )
}

fn pool(weir: &Weir) -> Value {
    weir.json(&["pool", "list"])["pools"][0].clone()
}

#[track_caller]
fn live_soon(weir: &Weir, count: u64) {
    soon(&format!("{count} live reals"), || {
        (pool(weir)["live"] == count).then_some(())
    });
}

/// Reals are checked at their own addresses, of either family, and serve both.
const OF_EACH_FAMILY: [&str; 2] = ["192.0.2.11", "2001:db8::12"];

/// With those two, live by such a check.
fn checked_by(segment: &PoolNetwork, check: &str) -> Weir {
    let config = config("tcx").replace(REAL[1], OF_EACH_FAMILY[1]).replace(
        "check = { interval = \"1s\"",
        &format!("check = {{ {check}"),
    );
    let weir = Weir::start(&segment.host, &config);
    live_soon(&weir, 2);
    weir
}

#[test]
fn root_a_real_that_answers_503_leaves_and_comes_back() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let check = "http = \"/healthz\", status = \"204\", interval = \"1s\", rise = 1, fall = 2";
    let weir = checked_by(&segment, check);
    let mut flows = segment.flows();
    for (number, real) in OF_EACH_FAMILY.into_iter().enumerate() {
        segment.is_ill(number, true);
        live_soon(&weir, 1);
        assert_eq!(segment.all_served_by(20), [1 - number].into());
        // It listens, and TCP would have called it live.
        for (family, _, flow) in flows.iter_mut().filter(|(_, n, _)| *n != number) {
            assert_eq!(flow.ask(CLIENT[*family]), 1 - number);
        }
        let why = format!("{real} (http: status 503)");
        let alerts = weir.json(&["status"])["alerts"].to_string();
        assert!(
            alerts.contains(&format!("pool web does without {why}")),
            "{alerts}"
        );
        let shown = weir.ask(&["pool", "show", "web"]).out;
        assert!(shown.contains("http: status 503"), "{shown}");
        segment.is_ill(number, false);
        live_soon(&weir, 2);
        assert_eq!(segment.all_served_by(40), BTreeSet::from([0, 1]));
        assert_eq!(weir.json(&["status"])["alerts"].to_string(), "[]");
    }
}

/// The kernel of a real says that nobody is at the port, over each family.
#[test]
fn root_a_real_without_its_udp_server_leaves_and_comes_back() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let at = |number: usize| SocketAddr::new(addr(OF_EACH_FAMILY[number]), 5353);
    let servers = [0, 1].map(|n| UdpServer::start(&segment.reals[n], at(n)).unwrap());
    let check = "udp = \"ping\", interval = \"2s\", rise = 1, fall = 1";
    let weir = checked_by(&segment, check);
    let mut back = Vec::new();
    for (number, server) in servers.into_iter().enumerate() {
        drop(server);
        live_soon(&weir, 1);
        let alerts = weir.json(&["status"])["alerts"].to_string();
        let why = format!("{} (udp: port unreachable)", OF_EACH_FAMILY[number]);
        assert!(alerts.contains(&why), "{alerts}");
        back.push(UdpServer::start(&segment.reals[number], at(number)).unwrap());
        live_soon(&weir, 2);
    }
}

#[test]
fn root_a_pool_is_served_on_every_hook() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    for backend in ["tcx", "xdp", "xdp-generic"] {
        println!("{backend}");
        served(backend);
    }
}

/// A configuration of the two reals with these ones in their place.
fn with_reals(config: &str, reals: [&str; 2]) -> String {
    let line = |reals: [&str; 2]| {
        reals
            .map(|real| format!("{{ address = \"{real}\" }}"))
            .join(", ")
    };
    let there = line([REAL[0], REAL[1]]);
    assert!(config.contains(&there), "{config}");
    config.replace(&there, &line(reals))
}

fn served(backend: &str) {
    let both = BTreeSet::from([0, 1]);
    let mut segment = PoolNetwork::new(backend);
    let mut weir = Weir::start(&segment.host, &config(backend));
    assert_eq!(weir.attachment("eth0").0, backend);
    live_soon(&weir, 2);
    assert_eq!(segment.all_served_by(40), both);

    segment.datagrams_arrive();

    // Who is banned never reaches a real.
    for (family, who) in BANNED.iter().enumerate() {
        assert!(segment.open(who, family).is_some());
        weir.ask(&["ban", who]).done();
        assert!(segment.open(who, family).is_none(), "{who}");
    }
    // And who is one cannot be banned: its answers to checks would be dropped.
    for real in REAL {
        let refused = weir.ask(&["ban", real]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        let why = "it is a real of the pool web";
        assert!(refused.err.contains(why), "{refused:?}");
    }
    let begun = || {
        let counted = pool(&weir);
        let reals = counted["reals"].as_array().unwrap().iter();
        reals.map(|real| real["flows"].clone()).collect::<Vec<_>>()
    };
    let flows_before = begun();
    assert!(
        BANNED
            .iter()
            .enumerate()
            .all(|(f, who)| segment.open(who, f).is_none())
    );
    assert_eq!(begun(), flows_before);

    // One that is drained gets no new flows, and keeps those that it has, whatever becomes
    // of the daemon.
    let mut flows = segment.flows();
    let ask_all = |flows: &mut Vec<(usize, usize, Flow)>| {
        for (family, number, flow) in flows {
            assert_eq!(flow.ask(CLIENT[*family]), *number);
        }
    };
    let drained = weir.ask(&["real", "drain", "web", REAL[0]]).done().out;
    let told = "192.0.2.11 of pool web: draining, weight 0, up\n";
    assert_eq!(drained, told);
    for again in [false, true] {
        if again {
            // Their order in the configuration is another one then: flows know their
            // real by its number, which stays.
            weir.kill();
            weir.configure(&with_reals(&config(backend), [REAL[1], REAL[0]]));
            weir.run();
            live_soon(&weir, 1);
        }
        assert_eq!(segment.all_served_by(20), [1].into());
        ask_all(&mut flows);
    }
    // A client that uses the port of an earlier connection again leaves it.
    for (family, client) in CLIENT.into_iter().enumerate() {
        let ended = flows
            .iter()
            .position(|(of, real, _)| (*of, *real) == (family, 0));
        let (_, _, Flow(ended)) = flows.swap_remove(ended.unwrap());
        let (from, to) = (ended.local_addr().unwrap(), ended.peer_addr().unwrap());
        traffic::reset(ended).unwrap();
        let opened = soon("the port to be free", || {
            match traffic::tcp_open_from(&segment.client, from, to, SILENCE) {
                Err(error) if error.to_string().contains("in use") => None,
                done => Some(done.unwrap()),
            }
        });
        opened.set_read_timeout(Some(SOON)).unwrap();
        assert_eq!(Flow(opened).ask(client), 1);
    }
    weir.ask(&["real", "enable", "web", REAL[0]]).done();
    weir.ask(&["real", "weight", "web", REAL[1], "0"]).done();
    assert_eq!(segment.all_served_by(20), [0].into());
    ask_all(&mut flows);
    weir.ask(&["real", "weight", "web", REAL[1], "default"])
        .done();
    weir.ask(&["real", "disable", "web", REAL[0]]).done();
    assert_eq!(segment.all_served_by(20), [1].into());
    let nobody = weir.ask(&["real", "drain", "web", "192.0.2.99"]);
    assert_eq!(nobody.code, Some(2), "{nobody:?}");
    weir.ask(&["real", "enable", "web", REAL[0]]).done();
    assert_eq!(segment.all_served_by(40), both);

    // A real that dies gets no new flows, and those of the other stay.
    let mut flows = segment.flows();
    segment.kill(0);
    live_soon(&weir, 1);
    assert_eq!(segment.all_served_by(20), [1].into());
    flows.retain(|(_, number, _)| *number == 1);
    ask_all(&mut flows);
    let status = weir.json(&["status"]).to_string();
    let told = "pool web does without 192.0.2.11 (Connection refused";
    assert!(status.contains(told), "{status}");

    // It comes back, and nobody's flow moves.
    segment.serve(0);
    live_soon(&weir, 2);
    assert_eq!(segment.all_served_by(40), both);
    ask_all(&mut flows);

    // Whatever becomes of the daemon.
    weir.kill();
    assert_eq!(segment.all_served_by(40), both);
    ask_all(&mut flows);
    weir.run();
    live_soon(&weir, 2);
    assert_eq!(segment.all_served_by(40), both);
    ask_all(&mut flows);

    let shown = weir.ask(&["pool", "show", "web"]).done().out;
    for words in ["192.0.2.80", "80/tcp", "2001:db8::80", "192.0.2.12", "up"] {
        assert!(shown.contains(words), "{shown}");
    }
    segment.is_quiet();
    let counted = pool(&weir);
    let sum = |of: &str, key: &str| -> u64 {
        let all = counted[of].as_array().unwrap().iter();
        all.map(|one| one[key].as_u64().unwrap()).sum()
    };
    // A client may use the port of a flow that its real has reset: no new one, then.
    assert!(sum("reals", "flows") >= 36, "{counted}");
    assert_eq!(
        sum("reals", "packets"),
        sum("services", "packets"),
        "{counted}"
    );

    let metric = |name: &str, labels: &[&str]| weir.metric(name, labels).expect(name);
    for real in &REAL {
        let mut reals = counted["reals"].as_array().unwrap().iter();
        let counted = reals.find(|one| one["address"] == **real).unwrap();
        for key in ["packets", "bytes", "flows"] {
            let name = format!("weir_pool_real_{key}_total");
            let value = counted[key].as_u64();
            assert_eq!(weir.metric(&name, &["web", real]), value, "{key}");
        }
        assert_eq!(metric("weir_pool_real_up", &["web", real]), 1);
        assert_eq!(metric("weir_pool_real_weight", &["web", real]), 1);
    }
    let packets = VIP.map(|vip| {
        let name = "weir_pool_service_packets_total";
        metric(name, &["web", vip, "80/tcp"]) + metric(name, &["web", vip, "5353/udp"])
    });
    assert_eq!(packets[0] + packets[1], sum("services", "packets"));

    // Without a real its packets are dropped, counted and told of.
    segment.kill(0);
    segment.kill(1);
    live_soon(&weir, 0);
    assert!((0..2).all(|family| segment.open(CLIENT[family], family).is_none()));
    assert!(weir.packets("no-real") >= 2);
    assert_eq!(weir.metric("weir_pool_live_reals", &["web"]), Some(0));
    let unserved = "weir_pool_service_unserved_packets_total";
    assert!(weir.metric(unserved, &["web", VIP[0], "80/tcp"]) >= Some(1));
    let alerts = weir.json(&["status"])["alerts"].to_string();
    assert!(alerts.contains("pool web has no live real"), "{alerts}");
    assert_eq!(weir.ask(&["pool", "show", "web"]).code, Some(1));

    // And without a pool they are the host's again.
    weir.configure(&format!(
        "interfaces = [\"eth0\"]\nbackend = \"{backend}\"\n"
    ));
    weir.ask(&["reload"]).done();
    let before = weir.packets("no-real");
    assert!((0..2).all(|family| segment.open(CLIENT[family], family).is_none()));
    assert_eq!(weir.packets("no-real"), before);
    assert_eq!(
        weir.json(&["pool", "list"])["pools"],
        Value::Array(Vec::new())
    );
}

/// P6: two pools with virtual addresses of their own, over TCP and UDP and both families,
/// on the interface by which the host is managed.
#[test]
fn root_pools_share_the_interface_with_what_manages_the_host() {
    /// Addresses of the second pool.
    const NAMES: [&str; 2] = ["192.0.2.81", "2001:db8::81"];
    const OWN: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
    if skipped(&["nginx", "python3"]) {
        return;
    }
    for backend in ["tcx", "xdp", "xdp-generic"] {
        let segment = PoolNetwork::new(backend);
        for (namespace, dev) in [
            (&segment.reals[0], "lo"),
            (&segment.reals[1], "lo"),
            (&segment.host, "eth0"),
        ] {
            let [v4, v6] = NAMES;
            namespace
                .ip(&[
                    format!("addr add {v4}/32 dev {dev}"),
                    format!("addr add {v6}/128 dev {dev} nodad preferred_lft 0"),
                ])
                .unwrap();
        }
        let web = config(backend).replace(", \"5353/udp\"", "");
        let names = format!(
            "[pool.names]\nvip = {NAMES:?}\nports = [\"5353/udp\"]\n\
             reals = [{{ address = \"{}\" }}, {{ address = \"{}\" }}]\n\
             check = {{ port = 80, interval = \"1s\" }}\n",
            REAL[0], REAL[1]
        );
        // The host's own: a session that is there before, and the same port as the pool's.
        let manages = OWN.map(|own| {
            [22, 80].map(|port| {
                let at = SocketAddr::new(addr(own), port);
                TcpServer::start(&segment.host, at, b"").unwrap()
            })
        });
        let open = |family: usize, port| {
            let at = SocketAddr::new(addr(OWN[family]), port);
            let from = Some(addr(CLIENT[family]));
            traffic::tcp_open(&segment.client, from, at, SOON)
                .unwrap()
                .0
        };
        let sessions = [0, 1].map(|family| open(family, 22));
        let weir = Weir::start(&segment.host, &format!("{web}{names}"));
        soon("both pools to live", || {
            let pools = weir.json(&["pool", "list"])["pools"].clone();
            (pools[0]["live"] == 2 && pools[1]["live"] == 2).then_some(())
        });
        assert_eq!(
            segment.all_served_by(40),
            BTreeSet::from([0, 1]),
            "{backend}"
        );
        for family in [0, 1] {
            let at = SocketAddr::new(addr(NAMES[family]), 5353);
            let from = Some(addr(CLIENT[family]));
            let servers = segment.reals.each_ref();
            let servers = servers.map(|real| UdpServer::start(real, at).unwrap());
            for n in 0..20 {
                let answer = traffic::udp_request(&segment.client, from, at, &[n], SOON);
                assert_eq!(answer.unwrap().0, [n], "{backend}");
            }
            let [one, two] = servers.map(|server| server.received());
            assert!(one > 0 && two > 0 && one + two == 20, "{one} {two}");
            // What is no service's is the host's, which has nobody there.
            let other = SocketAddr::new(addr(NAMES[family]), 80);
            let refused = traffic::tcp_connect(&segment.client, from, other, SILENCE);
            assert!(refused.is_err(), "{backend}");
            for port in [22, 80] {
                open(family, port);
            }
            traffic::ping(&segment.client, from, addr(OWN[family]), SOON).unwrap();
        }
        for mut session in sessions {
            session.write_all(b"still here").unwrap();
            session.set_read_timeout(Some(SOON)).unwrap();
            let mut echo = [0; 10];
            session.read_exact(&mut echo).unwrap();
            assert_eq!(&echo, b"still here", "{backend}");
        }
        soon("the host's own servers to have had each connection", || {
            let servers = manages.each_ref();
            let accepted = servers.map(|[ssh, web]| [ssh.accepted(), web.accepted()]);
            (accepted == [[2, 1]; 2]).then_some(())
        });
    }
}
