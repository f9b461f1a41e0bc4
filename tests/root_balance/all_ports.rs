//! A pool that serves all ports of its virtual addresses, but one that another pool names.

use super::*;

/// Ports of servers on both reals, beside nginx's.
const TCP: [u16; 3] = [22, 3306, 65535];
const UDP: [u16; 2] = [53, 40000];
/// Of a pool that has the second real alone.
const NAMED: u16 = 8080;

fn with_all_ports(backend: &str) -> String {
    let web = config(backend).replace("\"80/tcp\", \"5353/udp\"", "\"all\"");
    let web = web.replace("check = { ", "check = { port = 80, ");
    let [v4, v6] = VIP;
    web + &format!(
        "[pool.admin]\nvip = [\"{v4}\", \"{v6}\"]\nports = [\"{NAMED}/tcp\"]\n\
         reals = [{{ address = \"{}\" }}]\ncheck = {{ interval = \"1s\" }}\n",
        REAL[1]
    )
}

/// The server that greets a client there.
fn greeted_by(segment: &PoolNetwork, family: usize, port: u16) -> Option<u8> {
    let to = SocketAddr::new(addr(VIP[family]), port);
    let from = Some(addr(CLIENT[family]));
    let (mut stream, _) = traffic::tcp_open(&segment.client, from, to, SILENCE).ok()?;
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut who = [0];
    traffic::retry_interrupted(|| stream.read_exact(&mut who)).ok()?;
    Some(who[0])
}

#[test]
fn root_all_ports_of_a_virtual_address_are_served() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    for backend in ["tcx", "xdp"] {
        println!("{backend}");
        serves_all_ports(backend);
    }
}

fn serves_all_ports(backend: &str) {
    let segment = PoolNetwork::new(backend);
    let mut servers = Vec::new();
    let everywhere = |port| SocketAddr::new(addr("::"), port);
    for (number, real) in (b'0'..).zip(&segment.reals) {
        for port in TCP.into_iter().chain([NAMED]) {
            servers.push(TcpServer::start(real, everywhere(port), &[number]).unwrap());
        }
    }
    // This host's own, at all of its addresses.
    let own = TcpServer::start(&segment.host, everywhere(22), b"h").unwrap();
    let mut weir = Weir::start(&segment.host, &with_all_ports(backend));
    let live = |weir: &Weir, name: &str, count: u64| {
        soon(&format!("{count} live reals of {name}"), || {
            (weir.json(&["pool", "show", name])["live"] == count).then_some(())
        });
    };
    live(&weir, "web", 2);
    live(&weir, "admin", 1);
    let both = BTreeSet::from([b'0', b'1']);
    let greeted = |port| -> BTreeSet<u8> {
        let all = (0..40).map(|n| greeted_by(&segment, n % 2, port));
        all.map(|who| who.expect("a connection")).collect()
    };
    for port in TCP {
        assert_eq!(greeted(port), both, "{port}");
    }
    assert_eq!(own.accepted(), 0);
    assert_eq!(segment.all_served_by(40), BTreeSet::from([0, 1]));
    // The port that is named goes before.
    assert_eq!(greeted(NAMED), [b'1'].into());
    // A port that no real has is refused by a real, and its own address is the host's.
    for (family, own_addr) in ["192.0.2.1", "2001:db8::1"].into_iter().enumerate() {
        let (from, vip) = (Some(addr(CLIENT[family])), addr(VIP[family]));
        let closed = SocketAddr::new(vip, 9999);
        let refused = traffic::tcp_connect(&segment.client, from, closed, SOON);
        assert!(refused.unwrap_err().to_string().contains("refused"));
        let to = SocketAddr::new(addr(own_addr), 22);
        traffic::tcp_connect(&segment.client, from, to, SILENCE).unwrap();
        for port in UDP {
            let at = SocketAddr::new(vip, port);
            let servers =
                { segment.reals.each_ref() }.map(|real| UdpServer::start(real, at).unwrap());
            for n in 0..20 {
                let asked = [n; 4000];
                let answer = traffic::udp_request(&segment.client, from, at, &asked, SOON);
                assert!(answer.unwrap().0 == asked, "{at}");
            }
            let [one, two] = servers.map(|server| server.received());
            assert!(one > 0 && two > 0 && one + two == 20, "{one} {two}");
        }
        traffic::ping(&segment.client, from, vip, SOON).unwrap();
    }
    segment.datagrams_arrive();

    // What is shown of them.
    let shown = weir.json(&["pool", "show", "web"]);
    let ports: BTreeSet<_> = { shown["services"].as_array().unwrap().iter() }
        .map(|service| service["port"].as_str().unwrap())
        .collect();
    assert_eq!(ports, ["1-65535/tcp", "1-65535/udp"].into());
    let packets = |service: &Value| service["packets"].as_u64().unwrap();
    assert!(
        shown["services"]
            .as_array()
            .unwrap()
            .iter()
            .all(|s| packets(s) > 0)
    );
    let metrics = weir.ask(&["metrics"]).done().out;
    let metric = format!(
        "weir_pool_service_packets_total{{pool=\"web\",vip=\"{}\",port=\"1-65535/tcp\"}} ",
        VIP[0]
    );
    assert!(metrics.contains(&metric), "{metrics}");
    assert!(
        metrics.contains("weir_pool_services_left_out 0"),
        "{metrics}"
    );

    // New flows a second, of each virtual address and real.
    let rates = soon("rates of new flows", || {
        greeted(22);
        let shown = weir.json(&["pool", "show", "web"]);
        let of = |of: &Value| {
            of["new_flows_per_second"]
                .as_f64()
                .filter(|rate| *rate > 0.0)
        };
        let services = shown["services"].as_array().unwrap().iter();
        let tcp = services.filter(|service| service["port"] == "1-65535/tcp");
        let reals = shown["reals"].as_array().unwrap().iter();
        let rates: Vec<_> = tcp.map(of).collect();
        let of_reals: Vec<_> = reals.map(of).collect();
        Some((
            rates.into_iter().collect::<Option<Vec<_>>>()?,
            of_reals.into_iter().collect::<Option<Vec<_>>>()?,
        ))
    });
    assert_eq!((rates.0.len(), rates.1.len()), (2, 2));
    let listed = weir.ask(&["pool", "list"]).done().out;
    assert!(listed.contains("NEW/S"), "{listed}");

    // Who is banned reaches no real by any port, and a crash takes nothing away.
    weir.ask(&["ban", BANNED[0]]).done();
    let to = SocketAddr::new(addr(VIP[0]), 3306);
    let banned = Some(addr(BANNED[0]));
    assert!(traffic::tcp_connect(&segment.client, banned, to, SILENCE).is_err());
    weir.kill();
    assert_eq!(greeted(3306), both);
    assert_eq!(greeted(NAMED), [b'1'].into());
    weir.run();
    live(&weir, "web", 2);
    assert_eq!(greeted(3306), both);

    // Without it the host is back.
    weir.configure(&config(backend));
    weir.ask(&["reload"]).done();
    soon("the host's own server", || {
        (greeted_by(&segment, 0, 22)? == b'h').then_some(())
    });
}

/// A pool that a command adds may have them as well.
#[test]
fn root_a_command_adds_a_pool_with_all_ports() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let config = config("tcx");
    let (base, _) = config.split_once("[pool.web]").unwrap();
    let weir = Weir::start(&segment.host, base);
    let add = |more: &[&str]| {
        let [v4, v6] = VIP;
        let usual = ["pool", "add", "web", "--vip", v4, v6, "--real", REAL[0]];
        weir.ask(&[&usual, more].concat())
    };
    let refused = add(&["--port", "1-65535/tcp"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let why = "none is the one that is checked; allowed: check = { port = ... }";
    assert!(refused.err.contains(why), "{refused:?}");
    add(&["--port", "1-65535/tcp", "--check", "port=80,interval=1s"]).done();
    live_soon(&weir, 1);
    assert_eq!(segment.all_served_by(10), [0].into());
    let server =
        TcpServer::start(&segment.reals[0], SocketAddr::new(addr("::"), 443), b"0").unwrap();
    for family in 0..2 {
        assert_eq!(greeted_by(&segment, family, 443), Some(b'0'));
    }
    assert_eq!(server.accepted(), 2);
}
