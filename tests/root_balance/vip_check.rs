//! Reals that are asked at the virtual addresses of their pool.

use super::*;
use crate::bind::serve_dns;

impl PoolNetwork {
    /// Has a real lose a virtual address, or have it back.
    fn change_vip(&self, real: usize, change: &str, vip: &str) {
        let length = if vip.contains(':') { 128 } else { 32 };
        self.reals[real]
            .ip(&[format!("addr {change} {vip}/{length} dev lo")])
            .unwrap();
    }
}

/// As [`config`], with this in its check.
fn with_check(check: &str) -> String {
    config("tcx").replace(
        "check = { interval = \"1s\"",
        &format!("check = {{ interval = \"1s\", rise = 1, fall = 2, {check}"),
    )
}

#[test]
fn root_a_real_without_a_virtual_address_is_down_by_name() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let mut weir = Weir::start(&segment.host, &with_check("http = \"/healthz\""));
    live_soon(&weir, 2);
    for (number, real) in REAL.into_iter().enumerate() {
        for vip in VIP {
            segment.change_vip(number, "del", vip);
            live_soon(&weir, 1);
            assert_eq!(segment.all_served_by(20), [1 - number].into());
            let alerts = weir.json(&["status"])["alerts"].to_string();
            let why = format!(
                "pool web does without {real} (no answer at the virtual address {vip}: the real needs it on its loopback interface (weir real-side))"
            );
            assert!(alerts.contains(&why), "{alerts}");
            segment.change_vip(number, "add", vip);
            live_soon(&weir, 2);
        }
    }
    // Nothing is left half open at a real, but while a check is on its way.
    for real in &segment.reals {
        soon("a real with nothing half open", || {
            let open = real.run("ss", &["-Htan", "state", "syn-recv"]).unwrap();
            open.stdout.is_empty().then_some(())
        });
    }
    // What no real has is no reason to serve nobody.
    (0..2).for_each(|number| segment.change_vip(number, "del", VIP[1]));
    soon("the alert", || {
        let alerts = weir.json(&["status"])["alerts"].to_string();
        let told =
            "pool web: all reals fail at a virtual address, so that none is taken out for it";
        alerts.contains(told).then_some(())
    });
    live_soon(&weir, 2);
    (0..2).for_each(|number| segment.change_vip(number, "add", VIP[1]));
    soon("the end of the alert", || {
        let alerts = weir.json(&["status"])["alerts"].to_string();
        (!alerts.contains("virtual address")).then_some(())
    });
    // By a setting it is not asked.
    weir.configure(&with_check("vip = false"));
    weir.ask(&["reload"]).done();
    segment.change_vip(0, "del", VIP[0]);
    let since = std::time::Instant::now();
    while since.elapsed() < std::time::Duration::from_secs(5) {
        assert_eq!(pool(&weir)["live"], 2);
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    // At a start as well.
    weir.configure(&with_check("port = 80"));
    weir.ask(&["reload"]).done();
    live_soon(&weir, 1);
    weir.kill();
    weir.run();
    live_soon(&weir, 1);
    assert_eq!(segment.all_served_by(20), [1].into());
}

/// Nobody knows which of them is right: all go on serving, at each start.
#[test]
fn root_a_start_takes_no_real_out_where_none_has_a_virtual_address() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    for number in 0..2 {
        segment.change_vip(number, "del", VIP[0]);
    }
    let mut weir = Weir::start(&segment.host, &with_check("http = \"/healthz\""));
    for start in 0..3 {
        if start > 0 {
            weir.kill();
            weir.run();
        }
        let begin = std::time::Instant::now();
        let mut alerts = String::new();
        while begin.elapsed() < std::time::Duration::from_secs(4) {
            let shown = pool(&weir);
            let mut reals = shown["reals"].as_array().unwrap().iter();
            assert!(reals.all(|real| real["state"] != "down"), "{shown}");
            assert!(start == 0 || shown["live"] == 2, "{shown}");
            alerts = weir.json(&["status"])["alerts"].to_string();
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        assert_eq!(pool(&weir)["live"], 2);
        for real in REAL {
            let why = format!("{real} (no answer at the virtual address {}", VIP[0]);
            assert!(alerts.contains(&why), "{alerts}");
        }
        let shown = weir.ask(&["pool", "show", "web"]).out;
        assert!(
            shown.contains("no answer at the virtual address"),
            "{shown}"
        );
    }
    // As soon as one has it, the other one is out.
    segment.change_vip(1, "add", VIP[0]);
    live_soon(&weir, 1);
    assert_eq!(segment.all_served_by(20), [1].into());
    weir.kill();
    weir.run();
    live_soon(&weir, 1);
    assert_eq!(segment.all_served_by(20), [1].into());
}

/// A server that listens at the real's own address, and not at those of the pool.
#[test]
fn root_a_real_that_does_not_listen_at_a_virtual_address_is_down() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let mut segment = PoolNetwork::new("tcx");
    let weir = Weir::start(&segment.host, &with_check("port = 80"));
    live_soon(&weir, 2);
    segment.kill(0);
    live_soon(&weir, 1);
    let mut server = Command::new("python3");
    server.args(["-m", "http.server", "80", "--bind", REAL[0]]);
    server.stdout(Stdio::null()).stderr(Stdio::null());
    let _server = segment.reals[0].spawn(server).unwrap();
    let of = |vip| format!("nobody listens at the virtual address {vip}, port 80");
    soon("the reason", || {
        let shown = weir.ask(&["pool", "show", "web"]).out;
        VIP.iter().any(|vip| shown.contains(&of(vip))).then_some(())
    });
    assert_eq!(pool(&weir)["live"], 1);
}

/// A pool of datagrams only is asked by the check's own question.
#[test]
fn root_a_name_server_without_a_virtual_address_is_down_by_name() {
    if skipped(&["nginx", "python3", "named"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let _servers = [0, 1].map(|number| {
        let dir = segment.dir.path().join(format!("dns-{number}"));
        fs::create_dir(&dir).unwrap();
        serve_dns(&dir, &segment.reals[number], number as u8)
    });
    let ports = "\"80/tcp\", \"5353/udp\"";
    let config = with_check("dns = \"www.test\"").replace(ports, "\"53/udp\"");
    let weir = Weir::start(&segment.host, &config);
    live_soon(&weir, 2);
    for (number, real) in REAL.into_iter().enumerate() {
        for vip in VIP {
            segment.change_vip(number, "del", vip);
            live_soon(&weir, 1);
            let alerts = weir.json(&["status"])["alerts"].to_string();
            let why = format!(
                "pool web does without {real} (no answer at the virtual address {vip}: the real needs it on its loopback interface (weir real-side), and its server has to answer from there)"
            );
            assert!(alerts.contains(&why), "{alerts}");
            segment.change_vip(number, "add", vip);
            live_soon(&weir, 2);
        }
    }
}

/// A server of datagrams that listens at the real's own address, and not at one of the pool.
#[test]
fn root_a_real_without_its_udp_server_at_a_virtual_address_is_down() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let at = |number: usize, address: &str| {
        let at = SocketAddr::new(addr(address), 5353);
        UdpServer::start(&segment.reals[number], at).unwrap()
    };
    let serve = |number: usize| [REAL[number], VIP[0], VIP[1]].map(|address| at(number, address));
    let [own, four, six] = serve(0);
    let mut servers = [Some(four), Some(six)];
    let _others = (own, serve(1));
    // A real's kernel sends few "port unreachable" in a second.
    let check = with_check("udp = \"ping\", require_answer = true")
        .replace("interval = \"1s\"", "interval = \"2s\"")
        .replace("\"80/tcp\", ", "");
    let weir = Weir::start(&segment.host, &check);
    live_soon(&weir, 2);
    for (family, vip) in VIP.into_iter().enumerate() {
        servers[family] = None;
        live_soon(&weir, 1);
        let shown = weir.ask(&["pool", "show", "web"]).out;
        let why = format!("nobody listens at the virtual address {vip}, port 5353");
        assert!(shown.contains(&why), "{shown}");
        servers[family] = Some(at(0, vip));
        live_soon(&weir, 2);
    }
}
