//! Rules of others: weir leaves them as they are, and comes back after their
//! flushes.

use super::*;

/// As firewalld and Docker have them, in part: zones, a service chain, address
/// translation to a container, user chains.
const THEIRS: &str = "
table inet firewalld {
	set trusted { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 203.0.113.0/24 } }
	chain mangle_PREROUTING { type filter hook prerouting priority mangle + 10; policy accept; }
	chain nat_PREROUTING { type nat hook prerouting priority dstnat + 10; policy accept;
		tcp dport 8081 counter dnat ip to 10.9.0.2:8080
	}
	chain public {
		tcp dport { 22, 8080 } accept
	}
	map zones { type ifname : verdict; elements = { \"eth0\" : goto public } }
	chain filter_INPUT { type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		iifname vmap @zones
	}
	chain filter_FORWARD { type filter hook forward priority filter + 10; policy accept;
		ip saddr @trusted counter accept
	}
}
";
const THEIR_IPTABLES: &str = "*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A DOCKER ! -i docker0 -p tcp -m tcp --dport 8082 -j DNAT --to-destination 10.9.0.2:8080
-A POSTROUTING -s 10.9.0.0/24 ! -o docker0 -j MASQUERADE
COMMIT
*filter
:DOCKER - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -o docker0 -j DOCKER
-A DOCKER -d 10.9.0.2/32 -o docker0 -p tcp -m tcp --dport 8080 -j ACCEPT
-A DOCKER-USER -j RETURN
COMMIT
*raw
:THEIRS - [0:0]
-A PREROUTING -p udp -m udp --dport 12345 -j THEIRS
-A THEIRS -s 203.0.113.9/32 -j NOTRACK
COMMIT
";

/// As ufw has them, in part, for IPv4 and for IPv6.
const THEIR_UFW: &str = "*filter
:ufw-before-input - [0:0]
:ufw-user-input - [0:0]
-A INPUT -j ufw-before-input
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-input -j ufw-user-input
-A ufw-user-input -p tcp -m tcp --dport 8080 -j ACCEPT
COMMIT
";

/// Everybody else's rules and sets, without counters and dates.
fn theirs(net: &TestNet) -> String {
    [
        ("nft", &["-s", "list", "ruleset"][..]),
        ("ipset", &["save"]),
        ("iptables-save", &[]),
        ("ip6tables-save", &[]),
    ]
    .map(|(program, args)| {
        let out = net.host.output(program, args).unwrap();
        assert!(out.status.success(), "{program}: {out:?}");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| line.split(" [").next().unwrap().to_owned() + "\n")
            .collect::<String>()
    })
    .concat()
}

/// With other people's rules in place: translated and forwarded packets of
/// banned sources are dropped as well, and the rules are the same, byte by byte,
/// before and after weir's whole life.
#[test]
fn root_other_rules_stay_and_forwarded_packets_are_dropped() {
    if skipped(&PROGRAMS) {
        return;
    }
    for case in only() {
        println!("{case:?}");
        let net = TestNet::new();
        let inside = net.net.namespace("inside").unwrap();
        let opts = VethOpts::new(&["10.9.0.1/24"], &["10.9.0.2/24"]).unwrap();
        let _wire = net
            .net
            .veth(&net.host, "docker0", &inside, "eth0", opts)
            .unwrap();
        inside
            .ip(&["route add default via 10.9.0.1".to_owned()])
            .unwrap();
        net.host.forward().unwrap();
        let feed = |program: &str, args: &[&str], text: &str| {
            let file = std::env::temp_dir().join(format!("weir-rules-{}", std::process::id()));
            fs::write(&file, text).unwrap();
            let path = file.display().to_string();
            let args = [args, &[path.as_str()]].concat();
            net.host.run(program, &args).unwrap();
            fs::remove_file(file).unwrap();
        };
        feed("nft", &["-f"], THEIRS);
        feed("iptables-restore", &["--noflush"], THEIR_IPTABLES);
        for restore in ["iptables-restore", "ip6tables-restore"] {
            feed(restore, &["--noflush"], THEIR_UFW);
        }
        net.host
            .run("ipset", &["create", "theirs", "hash:net"])
            .unwrap();
        net.host
            .run("ipset", &["add", "theirs", "10.0.0.0/8"])
            .unwrap();
        let before = theirs(&net);

        let server = TcpServer::start(&inside, any(PORT), b"").unwrap();
        let _own = TcpServer::start(&net.host, any(PORT), b"").unwrap();
        let mut weir = Weir::start(&net.host, &config(case, ""));
        for port in [8081, 8082] {
            net.serves(ATTACKER[0], at(0, port));
        }
        soon("both to be accepted", || {
            (server.accepted() == 2).then_some(())
        });
        weir.ask(&["ban", ATTACKER[0], "--for", "1h"]).done();
        for port in [PORT, 8081, 8082] {
            assert!(!net.connects(ATTACKER[0], at(0, port)), "{port}");
            net.serves(CUSTOMER[0], at(0, port));
        }
        // Of one port: that on the wire, before translation.
        weir.ask(&["unban", ATTACKER[0]]).done();
        weir.ask(&["ban", ATTACKER[0], "--port", "8081/tcp"]).done();
        assert!(!net.connects(ATTACKER[0], at(0, 8081)));
        net.serves(ATTACKER[0], at(0, 8082));
        // All others can still be listed beside ours.
        let beside = theirs(&net);
        for line in before.lines().filter(|line| !line.is_empty()) {
            assert!(beside.contains(line), "{line}");
        }
        weir.kill();
        assert!(!net.connects(ATTACKER[0], at(0, 8081)));
        weir.run();
        weir.stop();
        weir.detach().done();
        assert_eq!(theirs(&net), before, "{case:?}");
        net.serves(ATTACKER[0], at(0, 8081));
    }
}

/// Somebody reloads the firewall and takes everybody's rules with it.
#[test]
fn root_what_others_flush_comes_back() {
    if skipped(&PROGRAMS) {
        return;
    }
    for (backend, flush) in [
        ("nft", &["nft", "flush", "ruleset"][..]),
        ("ipset", &["iptables", "-t", "raw", "-F"]),
        ("ipset", &["nft", "flush", "ruleset"]),
    ] {
        let net = TestNet::new();
        let case = Case {
            backend,
            geofence: false,
        };
        let weir = Weir::start(&net.host, &config(case, ""));
        let _tcp = TcpServer::start(&net.host, any(PORT), b"").unwrap();
        weir.ask(&["ban", ATTACKER[0], "--for", "1h"]).done();
        assert!(!net.connects(ATTACKER[0], at(0, PORT)));
        for _ in 0..2 {
            net.host.run(flush[0], &flush[1..]).unwrap();
            soon("the bans to be back", || {
                (!net.connects(ATTACKER[0], at(0, PORT))).then_some(())
            });
            net.serves(CUSTOMER[0], at(0, PORT));
        }
        assert!(weir.said().contains("somebody has changed"));
    }
}
