//! Which clients a pool serves.

use super::*;

/// Somebody in the United States of the built-in database, in each family.
const AFAR: [&str; 2] = ["8.8.8.8", "2001:4860:4860::8888"];

fn with_acl(config: &str, acl: &str, default: &str) -> String {
    let keys = format!("acl = [{acl}]\nacl_default = \"{default}\"\ncheck = {{");
    config.replace("check = {", &keys)
}

fn is_served(segment: &PoolNetwork, who: [&str; 2]) -> [bool; 2] {
    [0, 1].map(|family| segment.open(who[family], family).is_some())
}

#[test]
fn root_an_access_list_decides_who_is_served() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    for backend in ["tcx", "xdp"] {
        println!("{backend}");
        decides(backend);
    }
}

fn decides(backend: &str) {
    let segment = PoolNetwork::new(backend);
    for at in [
        &segment.client,
        &segment.host,
        &segment.reals[0],
        &segment.reals[1],
    ] {
        let is_client = std::ptr::eq(at, &segment.client);
        let all = AFAR.map(|addr| match (is_client, addr.contains(':')) {
            (true, true) => format!("addr add {addr}/128 dev eth0 nodad"),
            (true, false) => format!("addr add {addr}/32 dev eth0"),
            (false, _) => format!("route add {addr} dev eth0"),
        });
        at.ip(&all).unwrap();
    }
    let partners = segment.dir.path().join("partners.txt");
    fs::write(&partners, format!("{}\n{}\n", CLIENT[0], CLIENT[1])).unwrap();
    let list = format!(
        "[list.partners]\nfile = \"{}\"\naction = \"allow\"\n",
        partners.display()
    );
    let config = config(backend) + &list;
    let rules = |rules: &str, default: &str| with_acl(&config, rules, default);
    let mut weir = Weir::start(
        &segment.host,
        &rules("\"deny 192.0.2.66\", \"deny 2001:db8::66\"", "allow"),
    );
    live_soon(&weir, 2);
    let served = [true, true];
    let denied = [false, false];

    // By prefix, of either family, and others are served.
    assert_eq!(is_served(&segment, BANNED), denied);
    assert_eq!(is_served(&segment, CLIENT), served);
    assert!(weir.packets("pool-denied") >= 2);
    let shown = pool(&weir);
    let services = shown["services"].as_array().unwrap();
    for vip in VIP {
        let is_it = |s: &&Value| s["vip"] == vip && s["port"] == "80/tcp";
        let counted = services.iter().find(is_it).unwrap()["denied"].as_u64();
        assert!(counted >= Some(1), "{shown}");
        let name = "weir_pool_service_denied_packets_total";
        assert_eq!(weir.metric(name, &["web", vip, "80/tcp"]), counted);
    }
    let text = weir.ask(&["pool", "show", "web"]).done().out;
    let words = "acl: deny 192.0.2.66, deny 2001:db8::66; others: allow (2 networks)";
    assert!(text.contains(words), "{text}");

    // By country and continent, with the built-in database and no geofence.
    let reload = |weir: &mut Weir, config: &str| {
        weir.configure(config);
        weir.ask(&["reload"]).done();
    };
    assert_eq!(is_served(&segment, AFAR), served);
    reload(&mut weir, &rules("\"deny country:US\"", "allow"));
    assert_eq!(is_served(&segment, AFAR), denied);
    assert_eq!(is_served(&segment, CLIENT), served);
    reload(
        &mut weir,
        &rules("\"deny country:DE\", \"allow continent:NA\"", "deny"),
    );
    assert_eq!(is_served(&segment, AFAR), served);
    assert_eq!(is_served(&segment, CLIENT), denied);
    // The kernel has it whatever becomes of the daemon.
    weir.kill();
    assert_eq!(is_served(&segment, AFAR), served);
    assert_eq!(is_served(&segment, CLIENT), denied);
    weir.run();
    live_soon(&weir, 2);
    assert_eq!(is_served(&segment, AFAR), served);
    assert_eq!(is_served(&segment, CLIENT), denied);

    // By list, and who is on it another time.
    reload(&mut weir, &rules("\"allow list:partners\"", "deny"));
    soon("the list", || {
        (is_served(&segment, CLIENT) == served).then_some(())
    });
    assert_eq!(is_served(&segment, BANNED), denied);
    fs::write(&partners, format!("{}\n{}\n", BANNED[0], BANNED[1])).unwrap();
    weir.ask(&["list", "refresh", "partners"]).done();
    soon("the other list", || {
        (is_served(&segment, BANNED) == served).then_some(())
    });
    assert_eq!(is_served(&segment, CLIENT), denied);

    // Observed: it is counted and served.
    let observing = format!(
        "observe = true\n{}",
        rules("\"deny 0.0.0.0/0\", \"deny ::/0\"", "allow")
    );
    let before = (weir.packets("observed"), weir.packets("pool-denied"));
    reload(&mut weir, &observing);
    assert_eq!(is_served(&segment, CLIENT), served);
    assert!(weir.packets("observed") > before.0);
    assert_eq!(weir.packets("pool-denied"), before.1);
    let asked = weir.json(&["why", CLIENT[0], "--port", "80/tcp"]);
    assert_eq!(asked["verdict"], "observed", "{asked}");

    // And without one everybody is.
    reload(&mut weir, &config);
    assert_eq!(is_served(&segment, BANNED), served);
    assert_eq!(is_served(&segment, CLIENT), served);
}

#[test]
fn root_p3_who_is_denied_is_not_served_in_an_emergency() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let mut segment = PoolNetwork::new("tcx");
    let denied = "\"deny 192.0.2.64/28\", \"deny 2001:db8::66\"";
    let emergency = format!("emergency = [{{ address = \"{}\" }}]", REAL[1]);
    let config = emergency::config_of(&emergency);
    let weir = Weir::start(&segment.host, &with_acl(&config, denied, "allow"));
    live_soon(&weir, 1);
    assert_eq!(is_served(&segment, BANNED), [false, false]);
    segment.kill(0);
    emergency::served_by_soon(&weir, "emergency");
    assert_eq!(segment.all_served_by(20), [1].into());
    let before = weir.packets("pool-denied");
    assert_eq!(is_served(&segment, BANNED), [false, false]);
    assert!(weir.packets("pool-denied") >= before + 2);
    // Nobody is left to serve anybody: he is denied all the same, and not unserved.
    segment.kill(1);
    emergency::served_by_soon(&weir, "nobody");
    let unserved = weir.packets("no-real");
    assert_eq!(is_served(&segment, BANNED), [false, false]);
    assert_eq!(weir.packets("no-real"), unserved);
    segment.serve(1);
    emergency::served_by_soon(&weir, "emergency");

    // `weir why` names the rule of each pool at the port.
    for (who, rule) in BANNED
        .into_iter()
        .zip(["deny 192.0.2.64/28", "deny 2001:db8::66"])
    {
        let why = weir.ask(&["why", who, "--port", "80/tcp"]).done().out;
        let words = format!("pool web at 192.0.2.80, 2001:db8::80: denied ({rule})");
        assert!(why.contains(&words), "{why}");
        assert!(
            why.contains(&format!("{who} is dropped: see below")),
            "{why}"
        );
        assert_eq!(weir.ask(&["why", who, "--port", "22/tcp"]).code, Some(1));
    }
    let why = weir.ask(&["why", CLIENT[0], "--port", "80/tcp"]);
    let words = "served (acl_default = \"allow\")";
    assert!(why.code == Some(1) && why.out.contains(words), "{why:?}");

    // A client whom a reload denies is cut off.
    let mut flows = [0, 1].map(|family| segment.open(CLIENT[family], family).unwrap());
    for (family, flow) in flows.iter_mut().enumerate() {
        assert_eq!(flow.ask(CLIENT[family]), 1);
    }
    weir.configure(&with_acl(&config, "\"allow 192.0.2.64/28\"", "deny"));
    weir.ask(&["reload"]).done();
    let before = weir.packets("pool-denied");
    for flow in &mut flows {
        flow.0.set_read_timeout(Some(SILENCE)).unwrap();
        flow.0
            .write_all(b"GET / HTTP/1.1\r\nHost: vip\r\n\r\n")
            .unwrap();
        assert!(flow.0.read(&mut [0; 64]).is_err());
    }
    assert!(weir.packets("pool-denied") >= before + 2);
    assert_eq!(is_served(&segment, CLIENT), [false, false]);
    assert_eq!(is_served(&segment, BANNED), [true, false]);
}
