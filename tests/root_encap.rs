//! Reals beyond a router: client and balancer on one segment, a router, and two real nginx
//! behind it, each on a network of its own. One real is known by an IPv4 address and one by
//! an IPv6 address, so that either family goes in either, by IP in IP and by GUE. (Which
//! packet leaves how, and what is taken out: crates/bpf/tests/root_encap.rs.)

mod common;

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
};

use common::{Answer, SILENCE, SOON, WEIR, Weir, addr, skipped, soon};
use serde_json::Value;
use weir_bpf::{
    attachment::{Hook, Link},
    generator::Generator,
};
use weir_netlab::{Child, Namespace, Net, Veth, VethOpts};
use weir_testkit::traffic::{self, UdpServer};

const VIP: [&str; 2] = ["198.51.100.80", "2001:db8:80::80"];
const CLIENT: [&str; 2] = ["192.0.2.100", "2001:db8::100"];
const REAL: [&str; 2] = ["10.2.1.11", "fd02:2::11"];
const BALANCER: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
/// More than all windows on the way.
const UPLOAD: usize = 3_000_000;

/// Turns checksum offload off, as in root_balance.rs: native XDP has no checksums that are
/// promised only.
const WHOLE_CHECKSUMS: &str = "
import ctypes, fcntl, socket, struct
value = ctypes.create_string_buffer(struct.pack('II', 0x17, 0))
request = struct.pack('16sP', b'eth0', ctypes.addressof(value))
fcntl.ioctl(socket.socket(), 0x8946, request)
";

struct TestNet {
    dir: tempfile::TempDir,
    servers: [Option<Child>; 2],
    reals: [Namespace; 2],
    router: Namespace,
    host: Namespace,
    client: Namespace,
    _accepts: Option<Link>,
    _veths: Vec<Veth>,
    _net: Net,
}

impl TestNet {
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
        let mut join = |name: &str, addresses: [&str; 2]| {
            let namespace = net.namespace(name).unwrap();
            let opts = VethOpts::new(&addresses, &[]).unwrap();
            veths.push(net.veth(&namespace, "eth0", &switch, name, opts).unwrap());
            switch.ip(&[format!("link set {name} master br0")]).unwrap();
            namespace
        };
        let host = join("host", ["192.0.2.1/24", "2001:db8::1/64"]);
        let client = join("client", ["192.0.2.100/24", "2001:db8::100/64"]);
        let router = join("router", ["192.0.2.254/24", "2001:db8::254/64"]);
        let reals = ["one", "two"].map(|name| net.namespace(name).unwrap());
        for (n, real) in (1..).zip(&reals) {
            let near = [format!("10.2.{n}.11/24"), format!("fd02:{n}::11/64")];
            let far = [format!("10.2.{n}.1/24"), format!("fd02:{n}::1/64")];
            let opts = VethOpts::new(
                &near.each_ref().map(String::as_str),
                &far.each_ref().map(String::as_str),
            );
            let dev = format!("eth{n}");
            veths.push(
                net.veth(real, "eth0", &router, &dev, opts.unwrap())
                    .unwrap(),
            );
            real.ip(&[
                format!("route add default via 10.2.{n}.1"),
                format!("route add default via fd02:{n}::1"),
                "addr add fe80::11/64 dev eth0 nodad".into(),
            ])
            .unwrap();
            router
                .ip(&[format!("addr add fe80::{n}/64 dev {dev} nodad")])
                .unwrap();
        }
        router.forward().unwrap();
        router
            .ip(&["addr add fe80::254/64 dev eth0 nodad".into()])
            .unwrap();
        host.ip(&[
            "addr add fe80::1/64 dev eth0 nodad".into(),
            "route add 10.2.0.0/16 via 192.0.2.254".into(),
            "route add fd02::/16 via 2001:db8::254".into(),
        ])
        .unwrap();
        // The balancer is the client's way to the virtual addresses.
        client
            .ip(&[
                format!("route add {}/32 via 192.0.2.1", VIP[0]),
                format!("route add {}/128 via 2001:db8::1", VIP[1]),
            ])
            .unwrap();
        if backend == "xdp" {
            client.run("python3", &["-c", WHOLE_CHECKSUMS]).unwrap();
        }
        let accepts = (backend == "xdp").then(|| {
            let index = switch.ifindex("host").unwrap();
            let accept = Generator::load().unwrap();
            let attach = || Link::attach(accept.accept(), index, Hook::Xdp);
            switch.enter(attach).unwrap().unwrap()
        });
        let mut net = Self {
            dir: tempfile::tempdir().unwrap(),
            servers: [None, None],
            reals,
            router,
            host,
            client,
            _accepts: accepts,
            _veths: veths,
            _net: net,
        };
        for number in 0..2 {
            net.serve(number);
        }
        net
    }

    fn real_side(&self, number: usize, args: &[&str]) -> Answer {
        let mut command = Command::new(WEIR);
        let record = self.dir.path().join(format!("real-{number}.json"));
        command.arg("real-side").args(args);
        command.arg("--record").arg(record).stdin(Stdio::null());
        let run = move || command.output();
        Answer::of(self.reals[number].enter(run).unwrap().unwrap())
    }

    /// Both reals hold the virtual addresses, and take these tunnels' packets.
    fn prepare(&self, decap: &str) {
        (0..2).for_each(|number| self.prepare_one(number, decap));
    }

    fn prepare_one(&self, number: usize, decap: &str) {
        let from = BALANCER.join(",");
        let args = [VIP[0], VIP[1], "--decap", decap, "--from", &from];
        self.real_side(number, &args).done();
        self.real_side(number, &[]).done();
    }

    /// Has a real lose a virtual address, or have it, and nothing else.
    fn change_vip(&self, number: usize, change: &str, vip: &str) {
        let length = if vip.contains(':') { 128 } else { 32 };
        self.reals[number]
            .ip(&[format!("addr {change} {vip}/{length} dev lo")])
            .unwrap();
    }

    /// What a real counted of what came in tunnels.
    fn counted(&self, number: usize, key: &str) -> u64 {
        let shown = self.real_side(number, &["--json"]).json();
        let steps = shown["steps"].as_array().unwrap().iter();
        let decap = steps.filter(|step| step["kind"] == "decap");
        decap
            .map(|step| step["packets"][key].as_u64().unwrap())
            .sum()
    }

    /// Starts the nginx of a real, which says who it is and takes files.
    fn serve(&mut self, number: usize) {
        let dir = self.dir.path().join(number.to_string());
        fs::create_dir_all(dir.join("up")).unwrap();
        let dir = dir.display();
        let config = format!(
            "daemon off; master_process off; worker_processes 1; user root;
             pid {dir}/pid; error_log {dir}/error.log;
             events {{ worker_connections 256; }}
             http {{
                 access_log {dir}/access.log;
                 client_body_temp_path {dir}/tmp; proxy_temp_path {dir}/tmp;
                 fastcgi_temp_path {dir}/tmp; uwsgi_temp_path {dir}/tmp; scgi_temp_path {dir}/tmp;
                 keepalive_timeout 600s; client_max_body_size 0;
                 server {{
                     listen 80; listen [::]:80;
                     location /up/ {{ root {dir}; dav_methods PUT; }}
                     location / {{ return 200 \"{number} $remote_addr\\n\"; }}
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

    fn open(&self, family: usize) -> Option<Flow> {
        let to = SocketAddr::new(addr(VIP[family]), 80);
        let opened = traffic::tcp_open(&self.client, Some(addr(CLIENT[family])), to, SILENCE);
        let (stream, _) = opened.ok()?;
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.set_write_timeout(Some(SOON)).unwrap();
        Some(Flow { family, stream })
    }

    #[track_caller]
    fn served_by(&self, family: usize) -> usize {
        self.open(family).expect("a connection").ask()
    }

    #[track_caller]
    fn all_served_by(&self, count: usize) -> BTreeSet<usize> {
        (0..count).map(|n| self.served_by(n % 2)).collect()
    }

    /// A connection that stays open to each real, in each family.
    fn flows(&self) -> Vec<(usize, Flow)> {
        let all = (0..4).map(|n| {
            let (family, number) = (n % 2, n / 2);
            let flow = soon("a flow to each real", || {
                let mut flow = self.open(family)?;
                (flow.ask() == number).then_some(flow)
            });
            (number, flow)
        });
        all.collect()
    }
}

struct Flow {
    family: usize,
    stream: TcpStream,
}

impl Flow {
    /// Up to the end of the first line of the answer's body, or of its head.
    #[track_caller]
    fn answer(&mut self, until: &str) -> String {
        let mut answer = Vec::new();
        loop {
            let mut buffer = [0; 1024];
            let len = self.stream.read(&mut buffer).unwrap();
            assert_ne!(len, 0, "closed: {}", String::from_utf8_lossy(&answer));
            answer.extend(&buffer[..len]);
            let text = String::from_utf8_lossy(&answer);
            if text.contains("\r\n\r\n") && text.ends_with(until) {
                return text.into_owned();
            }
        }
    }

    /// The number of the real behind this connection; it must see the client's own address.
    #[track_caller]
    fn ask(&mut self) -> usize {
        self.stream
            .write_all(b"GET / HTTP/1.1\r\nHost: vip\r\n\r\n")
            .unwrap();
        let text = self.answer("\n");
        let (_, body) = text.split_once("\r\n\r\n").unwrap();
        let (number, seen) = body.trim().split_once(' ').unwrap();
        assert_eq!(seen, CLIENT[self.family]);
        number.parse().unwrap()
    }

    /// A large file arrives as it was sent.
    #[track_caller]
    fn upload(&mut self, net: &TestNet, number: usize, name: &str) {
        let body: Vec<u8> = (0..UPLOAD).map(|n| (n / 7 % 251) as u8).collect();
        let head =
            format!("PUT /up/{name} HTTP/1.1\r\nHost: vip\r\nContent-Length: {UPLOAD}\r\n\r\n");
        self.stream.write_all(head.as_bytes()).unwrap();
        self.stream.write_all(&body).unwrap();
        let answer = self.answer("\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
        let file = net
            .dir
            .path()
            .join(number.to_string())
            .join("up")
            .join(name);
        assert!(fs::read(file).unwrap() == body);
    }
}

fn config(backend: &str, forward: &str) -> String {
    format!(
        "interfaces = [\"eth0\"]\nbackend = \"{backend}\"\n[balance]\ninterface = \"eth0\"\n\
         [pool.web]\nvip = [\"{}\", \"{}\"]\nports = [\"80/tcp\", \"5353/udp\"]\n\
         reals = [{{ address = \"{}\" }}, {{ address = \"{}\" }}]\n{forward}\n\
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

#[test]
fn root_reals_beyond_a_router_are_served_by_ip_in_ip() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    for backend in ["tcx", "xdp"] {
        println!("{backend}");
        served(backend, "forward = \"ipip\"", "ipip");
    }
}

#[test]
fn root_reals_beyond_a_router_are_served_by_gue() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    for backend in ["tcx", "xdp"] {
        println!("{backend}");
        served(backend, "forward = \"gue\"", "ipip,gue");
    }
}

fn served(backend: &str, forward: &str, decap: &str) {
    let both = BTreeSet::from([0, 1]);
    let mut net = TestNet::new(backend);
    net.prepare(decap);
    let mut weir = Weir::start(&net.host, &config(backend, forward));
    assert_eq!(weir.attachment("eth0").0, backend);
    live_soon(&weir, 2);
    assert_eq!(net.all_served_by(40), both);
    // Both answer at the virtual addresses.
    let alerts = weir.json(&["status"])["alerts"].to_string();
    assert!(!alerts.contains("virtual address"), "{alerts}");
    for number in 0..2 {
        assert!(net.counted(number, "taken") > 0, "{number}");
        assert_eq!(net.counted(number, "malformed"), 0, "{number}");
    }

    // What is too big at first arrives all the same: the client is told.
    for (number, mut flow) in net.flows() {
        let name = format!("{}-{number}", flow.family);
        flow.upload(&net, number, &name);
    }
    assert!(weir.packets("too-big") > 0);
    assert_eq!(weir.packets("no-room"), 0);

    // Datagrams of one packet and of several fragments.
    for (family, client) in CLIENT.into_iter().enumerate() {
        let (from, at) = (Some(addr(client)), SocketAddr::new(addr(VIP[family]), 5353));
        let servers = net.reals.each_ref();
        let servers = servers.map(|real| UdpServer::start(real, at).unwrap());
        for n in 0..10 {
            for len in [1, 4000, 20_000] {
                let asked = vec![n; len];
                soon("the datagram to come back", || {
                    let answer = traffic::udp_request(&net.client, from, at, &asked, SILENCE);
                    answer.ok().filter(|(answer, _)| *answer == asked)
                });
            }
        }
        let received = servers.map(|server| server.received());
        assert!(received.iter().all(|n| *n > 0), "{received:?}");
    }

    // A real that dies leaves, and flows of the other stay; whatever becomes of the daemon.
    let mut flows = net.flows();
    net.servers[0] = None;
    live_soon(&weir, 1);
    assert_eq!(net.all_served_by(20), [1].into());
    flows.retain(|(number, _)| *number == 1);
    for again in [false, true] {
        if again {
            weir.kill();
        }
        for (number, flow) in &mut flows {
            assert_eq!(flow.ask(), *number);
        }
    }
    weir.run();
    net.serve(0);
    live_soon(&weir, 2);
    assert_eq!(net.all_served_by(40), both);
    let shown = pool(&weir);
    let word = forward.split('"').nth(1).unwrap();
    assert_eq!(shown["forward"], word, "{shown}");

    // A way that is too narrow is said, and its real left out.
    let narrow = "route add 10.2.1.0/24 via 192.0.2.254 mtu 1299";
    net.host.ip(&[narrow.into()]).unwrap();
    live_soon(&weir, 1);
    assert_eq!(net.all_served_by(10), [1].into());
    let alerts = weir.json(&["status"])["alerts"].to_string();
    let told = "10.2.1.11 (the MTU of the way to it is 1299: with an outer header of";
    assert!(alerts.contains(told), "{alerts}");
    net.host.ip(&["route del 10.2.1.0/24".into()]).unwrap();
    live_soon(&weir, 2);
    // So is a router that does not answer.
    net.host
        .ip(&["route add 10.2.1.0/24 via 192.0.2.253".into()])
        .unwrap();
    live_soon(&weir, 1);
    net.host.ip(&["route del 10.2.1.0/24".into()]).unwrap();
    live_soon(&weir, 2);

    // What a real does not take out any more its stack does not know.
    for number in 0..2 {
        net.real_side(number, &["--undo"]).done();
    }
    assert!((0..2).all(|family| net.open(family).is_none()));
    for number in 0..2 {
        assert_eq!(net.real_side(number, &[]).code, Some(1));
    }
}

#[test]
fn root_only_balancers_reach_a_virtual_address_by_a_tunnel() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let net = TestNet::new("tcx");
    // Another one is named: the balancer of this test is a stranger.
    for number in 0..2 {
        let args = [VIP[0], VIP[1], "--decap", "gue", "--gue-port", "7000"];
        let from = ["--from", "192.0.2.9", "--interface", "eth0"];
        let done = net.real_side(number, &[&args[..], &from].concat()).done();
        assert!(
            done.out
                .contains("GUE at port 7000 on eth0, from 192.0.2.9, for 198.51.100.80, "),
            "{done:?}"
        );
    }
    let weir = Weir::start(
        &net.host,
        &config("tcx", "forward = \"gue\"\ngue_port = 7000"),
    );
    live_soon(&weir, 2);
    assert!((0..2).all(|family| net.open(family).is_none()));
    let strangers = || (0..2).map(|n| net.counted(n, "stranger")).sum::<u64>();
    assert!(strangers() >= 2);
    // It is told so in place, and what was counted is kept.
    for number in 0..2 {
        let from = BALANCER.join(",");
        let args = ["--decap", "gue", "--gue-port", "7000", "--from", &from];
        net.real_side(number, &args).done();
    }
    assert_eq!(net.all_served_by(20), BTreeSet::from([0, 1]));
    assert!(strangers() >= 2);
    // One virtual address less, and packets for it are left alone.
    for number in 0..2 {
        net.real_side(number, &["--undo", VIP[0]]).done();
    }
    assert!(net.open(0).is_none());
    net.served_by(1);
    assert!((0..2).map(|n| net.counted(n, "other")).sum::<u64>() > 0);
    let refused = net.real_side(0, &["--decap", "ipip", "--interface", "eth9"]);
    refused.refused(&["this host has no interface \"eth9\""]);
    for number in 0..2 {
        net.real_side(number, &["--undo"]).done();
        let counted = net.real_side(number, &["--json"]).json();
        assert_eq!(counted["steps"], Value::Array(vec![]));
    }
    net.router.ip(&["link set eth1 down".into()]).unwrap();
    live_soon(&weir, 1);
}

#[test]
fn root_a_real_beyond_a_router_that_does_not_serve_a_virtual_address_is_down_by_name() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    for (forward, decap) in [("ipip", "ipip"), ("gue", "gue")] {
        println!("{forward}");
        asked_through_the_tunnel(forward, decap);
    }
}

fn asked_through_the_tunnel(forward: &str, decap: &str) {
    let net = TestNet::new("tcx");
    for number in 0..2 {
        for vip in VIP {
            net.change_vip(number, "add", vip);
        }
    }
    // A daemon that is killed in the middle of a check ends it at no real: these give it up within
    // seconds, not within a minute (ip-sysctl, tcp_synack_retries).
    for real in &net.reals {
        let retries = "echo 2 > /proc/sys/net/ipv4/tcp_synack_retries";
        assert!(real.run("sh", &["-c", retries]).unwrap().status.success());
    }
    let text = config("tcx", &format!("forward = \"{forward}\"")).replace(
        "check = { interval = \"1s\"",
        "check = { interval = \"1s\", rise = 1, fall = 2",
    );
    let mut weir = Weir::start(&net.host, &text);
    let alerts = |weir: &Weir| weir.json(&["status"])["alerts"].to_string();
    let why = |real: &str, vip: &str| {
        format!(
            "{real} (no answer at the virtual address {vip} through the tunnel: the real needs it on its loopback interface and has to take the encapsulation off (weir real-side --decap))"
        )
    };
    // Neither takes the encapsulation off: that is told, and none is taken out for it.
    soon("the alert", || {
        let alerts = alerts(&weir);
        let told =
            "pool web: all reals fail at a virtual address, so that none is taken out for it";
        let names_all = REAL.iter().all(|real| alerts.contains(&why(real, VIP[0])));
        (alerts.contains(told) && names_all).then_some(())
    });
    live_soon(&weir, 2);
    // As soon as one does the other is out, until it does as well.
    net.prepare_one(0, decap);
    live_soon(&weir, 1);
    assert_eq!(net.all_served_by(20), [0].into());
    let told = format!("pool web does without {}", why(REAL[1], VIP[0]));
    assert!(alerts(&weir).contains(&told), "{}", alerts(&weir));
    net.prepare_one(1, decap);
    live_soon(&weir, 2);
    assert_eq!(net.all_served_by(40), BTreeSet::from([0, 1]));
    for (number, real) in REAL.into_iter().enumerate() {
        // It takes the encapsulation off, and has not what is inside.
        for vip in VIP {
            net.change_vip(number, "del", vip);
            live_soon(&weir, 1);
            assert_eq!(net.all_served_by(20), [1 - number].into());
            let told = format!("pool web does without {}", why(real, vip));
            assert!(alerts(&weir).contains(&told), "{}", alerts(&weir));
            net.change_vip(number, "add", vip);
            live_soon(&weir, 2);
        }
        // It has all virtual addresses, and takes nothing off.
        net.real_side(number, &["--undo"]).done();
        live_soon(&weir, 1);
        assert_eq!(net.all_served_by(20), [1 - number].into());
        // At a start as well.
        weir.kill();
        weir.run();
        live_soon(&weir, 1);
        assert_eq!(net.all_served_by(20), [1 - number].into());
        net.prepare_one(number, decap);
        live_soon(&weir, 2);
    }
    assert_eq!(net.all_served_by(40), BTreeSet::from([0, 1]));
    // Nothing is left half open at a real, but while a check is on its way.
    for real in &net.reals {
        soon("a real with nothing half open", || {
            let open = real.run("ss", &["-Htan", "state", "syn-recv"]).unwrap();
            open.stdout.is_empty().then_some(())
        });
    }
    // By a setting they are not asked.
    weir.configure(&text.replace("fall = 2", "fall = 2, vip = false"));
    weir.ask(&["reload"]).done();
    net.real_side(0, &["--undo"]).done();
    let since = std::time::Instant::now();
    while since.elapsed() < std::time::Duration::from_secs(4) {
        assert_eq!(pool(&weir)["live"], 2);
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

/// The question leaves by the interface of the route, and the answer comes back by whichever.
#[test]
fn root_a_datagram_of_a_check_goes_through_the_tunnel_by_the_route_to_the_real() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let mut net = TestNet::new("tcx");
    net.prepare("gue");
    // Another way from the balancer to the router, by which packets for reals leave.
    let opts = VethOpts::new(
        &["10.9.0.1/24", "fd09::1/64"],
        &["10.9.0.254/24", "fd09::254/64"],
    );
    let link = net
        ._net
        .veth(&net.host, "eth1", &net.router, "eth9", opts.unwrap());
    net._veths.push(link.unwrap());
    net.host
        .ip(&[
            "route replace 10.2.0.0/16 via 10.9.0.254".into(),
            "route replace fd02::/16 via fd09::254".into(),
        ])
        .unwrap();
    let at = |number: usize, address: &str| {
        let at = SocketAddr::new(addr(address), 5353);
        UdpServer::start(&net.reals[number], at).unwrap()
    };
    let _servers =
        [0, 1].map(|number| [REAL[number], VIP[0], VIP[1]].map(|address| at(number, address)));
    let forward = format!(
        "forward = \"gue\"\ntunnel_source = [\"{}\", \"{}\"]",
        BALANCER[0], BALANCER[1]
    );
    let text = config("tcx", &forward).replace(
        "check = { interval = \"1s\"",
        "check = { interval = \"1s\", rise = 1, fall = 2, udp = \"ping\", require_answer = true",
    );
    let weir = Weir::start(&net.host, &text);
    let alerts = || weir.json(&["status"])["alerts"].to_string();
    for back in ["eth0", "eth9"] {
        println!("back by {back}");
        if back == "eth9" {
            let routes = ["192.0.2.1/32 via 10.9.0.1", "2001:db8::1/128 via fd09::1"];
            let routes = routes.map(|route| format!("route add {route}"));
            net.router.ip(&routes).unwrap();
        }
        for (number, real) in REAL.into_iter().enumerate() {
            live_soon(&weir, 2);
            soon("all to answer at the virtual addresses", || {
                (!alerts().contains("virtual address")).then_some(())
            });
            for vip in VIP {
                net.real_side(number, &["--undo", vip]).done();
                live_soon(&weir, 1);
                let why = format!(
                    "pool web does without {real} (no answer at the virtual address {vip} through the tunnel: the real needs it on its loopback interface and has to take the encapsulation off (weir real-side --decap), and its server has to answer from there)"
                );
                assert!(alerts().contains(&why), "{}", alerts());
                net.prepare_one(number, "gue");
                live_soon(&weir, 2);
            }
        }
        assert_eq!(net.all_served_by(40), BTreeSet::from([0, 1]));
    }
}
