//! Interfaces that come later, go, come back, or get another name.

use std::time::{Duration, Instant};

use weir_netlab::{Side, Veth, VethOpts};

use super::{
    RULES, ban,
    common::{ATTACKER, CUSTOMER, TestNet, Weir, addr, at, skipped, soon},
    config, enforces,
};

#[test]
fn root_an_interface_that_comes_back_is_protected_again() {
    if skipped(&[]) {
        return;
    }
    let mut all_took = vec![];
    for backend in ["xdp", "xdp-generic", "tcx", "cls_bpf", "netfilter"] {
        let mut net = TestNet::new();
        let weir = Weir::start(&net.host, &config(backend));
        ban(&weir);
        let _server = net.server();
        enforces(&net, &weir);
        let dropped = weir.packets("banned-all");
        for _ in 0..2 {
            net.veth.delete().unwrap();
            soon("the interface to be missed", || {
                (weir.attachment("eth0").0 == "none").then_some(())
            });
            net.veth.create().unwrap();
            // Until somebody looks who finds it so: what `weir status` itself takes does not count.
            let begun = Instant::now();
            let mut looked = begun;
            soon("the interface to be protected", || {
                looked = Instant::now();
                (weir.attachment("eth0").0 == backend).then_some(())
            });
            let took = looked - begun;
            println!("{backend}: protected {took:?} after the veth pair was ready");
            all_took.push(took);
            enforces(&net, &weir);
        }
        assert!(weir.packets("banned-all") > dropped, "counters began anew");
        // Renamed away and back: the name decides.
        net.veth.rename(Side::A, "wan").unwrap();
        net.veth.rename(Side::A, "eth0").unwrap();
        soon("the interface to be protected", || {
            (weir.attachment("eth0").0 == backend).then_some(())
        });
        enforces(&net, &weir);
    }
    // 4 to 11 ms here, `weir status` included; the promise is 100 ms. Who finds it
    // by looking once a second takes 500; and some may meet a machine that stands.
    all_took.sort();
    let median = all_took[all_took.len() / 2];
    assert!(median < Duration::from_millis(400), "{all_took:?}");
}

/// Rules name an interface: one that is made again is protected from its first
/// packet on, also where nobody is told of it.
#[test]
fn root_rules_protect_an_interface_made_again_without_a_gap() {
    if skipped(&RULES) {
        return;
    }
    for backend in ["nft", "ipset"] {
        let mut net = TestNet::new();
        let mut weir = Weir::start(&net.host, &config(backend));
        ban(&weir);
        let _server = net.server();
        enforces(&net, &weir);
        for daemon in [true, false] {
            if !daemon {
                weir.kill();
            }
            net.veth.delete().unwrap();
            if daemon {
                let (hook, note) = weir.attachment("eth0");
                assert_eq!(hook, "none");
                assert!(note.contains("no such interface now"), "{note}");
            }
            net.veth.create().unwrap();
            for family in [0, 1] {
                assert!(!net.connects(ATTACKER[family], at(family)), "{backend}");
                net.serves(CUSTOMER[family], at(family));
            }
        }
        weir.run();
        enforces(&net, &weir);
    }
}

/// The same by an alternative name, which a device is given when it has packets
/// already: rules go by the name that it had.
#[test]
fn root_rules_protect_a_device_before_it_has_its_alternative_name() {
    if skipped(&RULES) {
        return;
    }
    for (backend, rules) in [
        ("nft", &["nft", "list", "ruleset"][..]),
        ("ipset", &["iptables-save", "-t", "raw"]),
    ] {
        let mut net = TestNet::new();
        let named = ["link property add dev eth0 altname lan0".to_owned()];
        net.host.ip(&named).unwrap();
        let weir = Weir::start(&net.host, &config(backend).replace("eth0", "lan0"));
        ban(&weir);
        let _server = net.server();
        enforces(&net, &weir);
        for _ in 0..2 {
            net.veth.delete().unwrap();
            soon("rules for when it is back", || {
                let said = net.host.output(rules[0], &rules[1..]).unwrap();
                let said = String::from_utf8_lossy(&said.stdout).into_owned();
                said.contains("lan0").then_some(())
            });
            net.veth.create().unwrap();
            for family in [0, 1] {
                assert!(!net.connects(ATTACKER[family], at(family)), "{backend}");
                net.serves(CUSTOMER[family], at(family));
            }
            net.host.ip(&named).unwrap();
            protected_soon(&weir, "lan0", backend);
            enforces(&net, &weir);
        }
    }
}

/// Of two names of a device the one that is pinned has it after a restart, whatever
/// stands first.
#[test]
fn root_the_pinned_name_of_a_device_has_it_after_a_restart() {
    if skipped(&[]) {
        return;
    }
    for backend in ["xdp", "xdp-generic", "tcx", "cls_bpf"] {
        let net = TestNet::new();
        let named = ["link property add dev eth0 altname lan0".to_owned()];
        net.host.ip(&named).unwrap();
        let mut weir = Weir::start(&net.host, &config(backend));
        ban(&weir);
        let _server = net.server();
        enforces(&net, &weir);
        weir.kill();
        weir.configure(&config(backend).replace("[\"eth0\"", "[\"lan0\", \"eth0\""));
        weir.run();
        let (_, note) = weir.attachment("lan0");
        assert!(
            note.contains("the same device as eth0"),
            "{backend}: {note}"
        );
        let pins: Vec<_> = std::fs::read_dir(weir.pins().join("links"))
            .unwrap()
            .map(|pin| pin.unwrap().file_name())
            .collect();
        assert_eq!(pins, [format!("eth0@{backend}").as_str()]);
        enforces(&net, &weir);
    }
}

/// Whoever cannot look at an interface, here for want of descriptors, does not know
/// that it is gone: it is protected as before, and new bans are in force at once.
#[test]
fn root_want_of_descriptors_lets_go_of_no_interface() {
    if skipped(&RULES) {
        return;
    }
    for backend in ["xdp", "tcx", "cls_bpf", "netfilter", "nft"] {
        let net = TestNet::new();
        let named = ["link property add dev eth0 altname lan0".to_owned()];
        net.host.ip(&named).unwrap();
        let jail = "[jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 1\n";
        let config = config(backend).replace("eth0", "lan0") + jail;
        let weir = Weir::start(&net.host, &config);
        ban(&weir);
        let _server = net.server();
        enforces(&net, &weir);
        // Has the daemon open the log: it opens nothing for a while.
        weir.log_failures([addr("203.0.113.77")], 1);
        soon("the log to be read", || {
            (weir.banned().len() == 3).then_some(())
        });
        let descriptors = |most: &str| {
            let (pid, most) = (weir.pid().to_string(), format!("--nofile={most}:"));
            net.host.run("prlimit", &["--pid", &pid, &most]).unwrap();
        };
        descriptors("3");
        soon("the error to be told", || {
            weir.said()
                .contains("cannot look at interface")
                .then_some(())
        });
        for family in [0, 1] {
            assert!(!net.connects(ATTACKER[family], at(family)), "{backend}");
            net.serves(CUSTOMER[family], at(family));
        }
        weir.log_failures(CUSTOMER.map(addr), 1);
        for who in CUSTOMER {
            net.drops_soon(who);
        }
        descriptors("1024");
        soon("the end of the alert", || {
            let status = weir.ask(&["status", "--json"]);
            (status.code == Some(0)).then_some(())
        });
        protected_soon(&weir, "lan0", backend);
        for banned in [CUSTOMER[0], "2001:db8:c::/64"] {
            weir.ask(&["unban", banned]).done();
        }
        enforces(&net, &weir);
    }
}

#[test]
fn root_an_interface_made_again_while_no_daemon_runs() {
    if skipped(&[]) {
        return;
    }
    for backend in ["xdp", "tcx", "cls_bpf", "netfilter"] {
        let mut net = TestNet::new();
        let mut weir = Weir::start(&net.host, &config(backend));
        ban(&weir);
        let _server = net.server();
        weir.kill();
        net.veth.delete().unwrap();
        net.veth.create().unwrap();
        // Said in the README: nobody protects it until the daemon is back.
        net.serves(ATTACKER[0], at(0));
        weir.run();
        enforces(&net, &weir);
        assert_eq!(weir.attachment("eth0").0, backend);
        assert_eq!(weir.banned().len(), 2);
    }
}

/// Another wire into the same host, with a neighbour of its own.
fn wire(net: &TestNet, name: &str, number: u8) -> Veth {
    let more = net.net.namespace(name).unwrap();
    let opts = VethOpts::new(
        &[&format!("198.51.{number}.1/24")],
        &[&format!("198.51.{number}.2/24")],
    );
    let opts = opts.unwrap();
    net.net.veth(&net.host, name, &more, "eth0", opts).unwrap()
}

fn alerts(weir: &Weir) -> String {
    weir.json(&["status"])["alerts"].to_string()
}

#[track_caller]
fn protected_soon(weir: &Weir, interface: &str, hook: &str) {
    soon(&format!("{interface} to be protected by {hook}"), || {
        let status = weir.json(&["status"]);
        let all = status["attachments"].as_array().unwrap();
        let found = all
            .iter()
            .any(|a| a["interface"] == interface && a["hook"] == hook && a["present"] == true);
        found.then_some(())
    });
}

/// A modem, a tunnel: it comes later than the daemon, and keeps nobody waiting.
#[test]
fn root_an_interface_that_is_not_there_is_waited_for() {
    if skipped(&RULES) {
        return;
    }
    for backend in ["xdp", "tcx", "cls_bpf", "netfilter", "nft", "ipset"] {
        let net = TestNet::new();
        let three = format!("interfaces = [\"wan1\", \"eth0\"]\nbackend = \"{backend}\"\n");
        let mut weir = Weir::new(&net.host, &three);
        let said = weir.ask(&["check"]).done();
        let said = said.out + &said.err;
        assert!(said.contains("no interface \"wan1\" now"), "{said}");
        weir.run();
        ban(&weir);
        let _server = net.server();
        enforces(&net, &weir);
        soon("an alert", || {
            alerts(&weir).contains("interface:wan1").then_some(())
        });
        let status = weir.json(&["status"]);
        let absent = status["attachments"].as_array().unwrap().iter();
        let absent: Vec<_> = absent.filter(|a| a["present"] == false).collect();
        assert_eq!(absent.len(), 1, "{status}");
        assert_eq!(absent[0]["interface"], "wan1");
        // One more by a reload, which takes no other away.
        weir.configure(&three.replace("[\"wan1\"", "[\"wan1\", \"wan2\""));
        weir.ask(&["reload"]).done();
        enforces(&net, &weir);
        let _wires = [wire(&net, "wan1", 1), wire(&net, "wan2", 2)];
        for name in ["wan1", "wan2"] {
            protected_soon(&weir, name, backend);
        }
        soon("no alert", || {
            (!alerts(&weir).contains("interface:")).then_some(())
        });
        enforces(&net, &weir);
    }
}

/// An interface that lost its default route may get it back: until then it is attacked as
/// before.
#[test]
fn root_auto_keeps_what_is_attached_without_a_default_route() {
    if skipped(&RULES) {
        return;
    }
    for (backend, hook) in [
        ("auto", "tcx"),
        ("xdp", "xdp"),
        ("nft", "nft"),
        ("ipset", "ipset"),
    ] {
        let net = TestNet::new();
        let auto = format!("interfaces = \"auto\"\nbackend = \"{backend}\"\n");
        let mut weir = Weir::start(&net.host, &auto);
        ban(&weir);
        let _server = net.server();
        enforces(&net, &weir);
        let gateways = ["route del default", "-6 route del default"];
        for gateway in gateways {
            let words: Vec<_> = gateway.split(' ').collect();
            net.host.run("ip", &words).unwrap();
        }
        let drops = |weir: &Weir| {
            for family in [0, 1] {
                let before = weir.packets("banned-all");
                assert!(!net.connects(ATTACKER[family], at(family)));
                assert!(weir.packets("banned-all") > before, "{backend}");
            }
        };
        drops(&weir);
        weir.configure(&format!("max_bans = 1000\n{auto}"));
        weir.ask(&["reload"]).done();
        assert_eq!(weir.attachment("eth0").0, hook);
        drops(&weir);
        weir.kill();
        weir.run();
        assert_eq!(weir.attachment("eth0").0, hook);
        drops(&weir);
    }
}

/// A reload and the look at the routes each second have one owner.
#[test]
fn root_auto_follows_routes_through_reloads_and_losses() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let auto = "interfaces = \"auto\"\n";
    let weir = Weir::start(&net.host, auto);
    ban(&weir);
    let _server = net.server();
    let route = |verb: &str, name: &str, number: u8| {
        let line = format!("route {verb} default via 198.51.{number}.2 dev {name} metric 9000");
        net.host.ip(&[line]).unwrap();
    };
    let mut first = wire(&net, "wan1", 1);
    route("add", "wan1", 1);
    protected_soon(&weir, "wan1", "tcx");
    route("del", "wan1", 1);
    for turn in 0..4 {
        weir.configure(&format!("max_bans = {}\n{auto}", 1000 + turn));
        weir.ask(&["reload"]).done();
        assert_eq!(weir.attachment("wan1").0, "tcx");
        enforces(&net, &weir);
    }
    // One that is gone keeps no other from being protected.
    first.delete().unwrap();
    let _second = wire(&net, "wan2", 2);
    route("add", "wan2", 2);
    protected_soon(&weir, "wan2", "tcx");
    enforces(&net, &weir);
    first.create().unwrap();
    protected_soon(&weir, "wan1", "tcx");
}

/// The device is the same, and so are its attackers.
#[test]
fn root_a_renamed_interface_stays_protected() {
    if skipped(&[]) {
        return;
    }
    for backend in [
        "xdp",
        "xdp-generic",
        "tcx",
        "cls_bpf",
        "netfilter",
        "nft",
        "ipset",
    ] {
        println!("{backend}");
        let has_rules = ["nft", "ipset"].contains(&backend);
        if has_rules && skipped(&["nft", "ipset", "iptables-restore"]) {
            continue;
        }
        let mut net = TestNet::new();
        let mut weir = Weir::start(&net.host, &config(backend));
        ban(&weir);
        let _server = net.server();
        enforces(&net, &weir);
        net.veth.rename(Side::A, "wan").unwrap();
        soon("an alert", || {
            alerts(&weir).contains("called wan now").then_some(())
        });
        enforces(&net, &weir);
        let (hook, note) = weir.attachment("eth0");
        assert_eq!(
            (hook.as_str(), note.contains("wan")),
            (backend, true),
            "{note}"
        );
        // The next daemon finds it by what is attached; rules have names only.
        if !has_rules {
            weir.kill();
            weir.run();
            enforces(&net, &weir);
            assert_eq!(weir.attachment("eth0").0, backend);
        }
        // Named as it is called now, by a reload; back, by a restart.
        weir.configure(&config(backend).replace("eth0", "wan"));
        weir.ask(&["reload"]).done();
        enforces(&net, &weir);
        assert_eq!(weir.attachment("wan").0, backend);
        soon("no alert", || {
            (!alerts(&weir).contains("wan")).then_some(())
        });
        net.veth.rename(Side::A, "eth0").unwrap();
        weir.kill();
        weir.configure(&config(backend));
        weir.run();
        enforces(&net, &weir);
        assert_eq!(weir.attachment("eth0").0, backend);
        if !has_rules {
            let links = std::fs::read_dir(weir.pins().join("links")).unwrap();
            let names = links.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            assert!(names.into_iter().all(|name| !name.contains("wan")));
        }
    }
}

/// Of a bridge and of an alternative name the kernel tells which interface packets come in
/// by.
#[test]
fn root_a_virtual_address_is_known_to_come_in_by_the_port_of_its_bridge() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let lines = [
        "link add br0 type bridge",
        "addr add 203.0.113.2/24 dev br0",
        "link set br0 up",
        "link property add dev eth0 altname lan0",
    ];
    net.host.ip(&lines.map(String::from)).unwrap();
    let pool = |interfaces: &str| {
        format!(
            "interfaces = [\"{interfaces}\"]\n[balance]\ninterface = \"br0\"\nannounce = true\n[pool.web]\nvip = [\"203.0.113.80\"]\nports = [\"80/tcp\"]\nreals = [{{ address = \"203.0.113.11\" }}]\n"
        )
    };
    let weir = Weir::start(&net.host, "interfaces = [\"eth0\"]\n");
    let is_warned = |interfaces: &str| {
        weir.configure(&pool(interfaces));
        let told = weir.ask(&["check"]).done();
        [told.out, told.err].concat().contains("are not taken")
    };
    assert!(is_warned("eth0") && is_warned("lan0"));
    net.host
        .ip(&["link set eth0 master br0".to_owned()])
        .unwrap();
    assert!(!is_warned("eth0") && !is_warned("lan0") && !is_warned("br0"));
}
