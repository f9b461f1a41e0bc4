//! What the sections of pools say, and what is refused.

use std::path::Path;

use super::*;
use crate::{
    config::Config,
    host::{InterfaceAddress, fake::FakeHost},
};

const BALANCE: &str = "[balance]\ninterface = \"eth0\"\n";

fn check(text: &str) -> Result<Config, String> {
    let checked = Config::check(Path::new("weir.toml"), text, &FakeHost::default());
    checked.map_err(|errors| errors.to_string())
}

#[test]
fn a_pool_is_read() {
    let text = format!(
        "{BALANCE}[pool.web]\nvip = [\"198.51.100.80\", \"2001:db8::80\"]\nports = [\"80/tcp\", \"443/udp\"]\n\
         reals = [{{ address = \"10.0.0.11\", weight = 2 }}, {{ address = \"2001:db8::12\" }}]\n\
         method = \"maglev\"\ncheck = {{ interval = \"5s\", rise = 4 }}"
    );
    let balance = check(&text).unwrap().balance.unwrap();
    assert_eq!(
        (balance.interface.as_deref(), balance.announce),
        (Some("eth0"), false)
    );
    assert!(check(&text).unwrap().vips().is_empty());
    let announced = text.replace("[pool.web]", "announce = true\n[pool.web]");
    let vips = check(&announced).unwrap().vips().held;
    assert_eq!(vips.into_values().collect::<Vec<_>>(), ["eth0", "eth0"]);
    let pool = &balance.pools[0];
    let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
    assert_eq!(
        pool.ports,
        [PortRange::one(tcp, 80), PortRange::one(udp, 443)]
    );
    assert_eq!(
        (pool.vips.len(), pool.reals[0].weight, pool.reals[1].weight),
        (2, 2, 1)
    );
    let expected = CheckConfig {
        kind: CheckKind::Tcp,
        port: 80,
        is_port_chosen: false,
        interval: 5 * SECOND,
        timeout: SECOND,
        rise: 4,
        fall: 3,
        asks_vips: true,
    };
    assert_eq!(pool.check, expected);
    assert!(check("").unwrap().balance.is_none());
    let warnings = check("[balance]\ninterface = \"eth9\"").unwrap().warnings;
    let warnings = warnings.join("\n");
    assert!(warnings.contains("which this host has not"), "{warnings}");
}

#[test]
fn all_ports_are_read() {
    let pool = |name: &str, ports: &str, more: &str| {
        format!(
            "[pool.{name}]\nvip = [\"198.51.100.80\", \"2001:db8::80\"]\nports = [{ports}]\nreals = [{{ address = \"10.0.0.11\" }}]\n{more}\n"
        )
    };
    let read = |ports: &str, check: &str| {
        let text = format!("{BALANCE}{}", pool("web", ports, check));
        let checked = self::check(&text).unwrap();
        let web = checked.balance.unwrap().pools[0].clone();
        let shown: Vec<_> = web.ports.iter().map(ToString::to_string).collect();
        (shown.join(" "), web.check.port)
    };
    let at = "check = { port = 8080 }";
    let udp = "check = { port = 53, dns = \".\" }";
    for (ports, check, shown, port) in [
        ("\"all\"", at, "1-65535/tcp 1-65535/udp", 8080),
        ("\"1-65535/tcp\"", at, "1-65535/tcp", 8080),
        ("\"1-65535/udp\"", udp, "1-65535/udp", 53),
        (
            "\"all\", \"1-65535/tcp\"",
            at,
            "1-65535/tcp 1-65535/udp",
            8080,
        ),
        // One that is named has counters of its own, and is checked.
        ("\"1-65535/tcp\", \"80/tcp\"", "", "1-65535/tcp 80/tcp", 80),
        ("\"1-3/tcp\"", "", "1/tcp 2/tcp 3/tcp", 1),
    ] {
        assert_eq!(read(ports, check), (shown.to_owned(), port), "{ports}");
    }
    // A port of its own goes before, in whichever pool and order.
    let both = [pool("all", "\"all\"", at), pool("web", "\"80/tcp\"", "")];
    for order in [[0, 1], [1, 0]] {
        let text = order.map(|n| both[n].as_str()).concat();
        check(&format!("{BALANCE}{text}")).unwrap();
    }
    let proxy = pool("web", "\"80/tcp\"", "forward = \"proxy\"");
    let refused = |pools: &[&str], told: &str| {
        let error = check(&format!("{BALANCE}{}", pools.concat())).unwrap_err();
        assert!(error.contains(told), "{error}\n{told}");
    };
    refused(
        &[&both[0], &both[0].replace("pool.all", "pool.too")],
        ":8: [pool.too] serves 1-65535/tcp of 198.51.100.80, which [pool.all] serves",
    );
    refused(
        &[&both[0], &proxy],
        ":8: [pool.web] serves 80/tcp of 198.51.100.80, which the proxy does not get where [pool.all] serves 1-65535/tcp",
    );
    refused(
        &[&proxy, &both[0]],
        ":8: [pool.all] serves 1-65535/tcp of 198.51.100.80, and 80/tcp there is the proxy's of [pool.web]",
    );
    refused(
        &[&pool(
            "web",
            "\"all\"",
            "forward = \"proxy\"\ncheck = { port = 80 }",
        )],
        ":5: ports in [pool.web] has 1-65535/tcp, and the proxy has a socket for each port; allowed: ports by number, or another forward",
    );
    for kind in [
        "",
        "check = { http = \"/\" }",
        "check = { dns = \".\" }",
        "check = { command = \"/bin/true\" }",
    ] {
        refused(
            &[&pool("web", "\"all\"", kind)],
            "[pool.web.check] has no port, and of 1-65535/",
        );
    }
    refused(
        &[&both[0], "[decoy]\nports = [\"2222/tcp\"]\n"],
        ":5: ports in [pool.all]: 2222/tcp is in [decoy] as well",
    );
    // As many as there may be.
    check(&format!("{BALANCE}{}", pool("web", "\"1-8192/tcp\"", ""))).unwrap();
    refused(
        &[&pool("web", "\"1024-65535/tcp\"", "")],
        ":5: [pool.web] has more than 16384 virtual addresses with a port; allowed: as many, of all pools together (all ports of a protocol are one: \"1-65535/tcp\")",
    );
    let error = check(&format!(
        "{BALANCE}{}",
        pool("web", "\"1-20000/tcp\"", "forward = \"proxy\"")
    ))
    .unwrap_err();
    assert!(
        error.ends_with("allowed: as many, of all pools together"),
        "{error}"
    );
    refused(
        &[
            &pool("web", "\"1-8192/tcp\"", ""),
            &pool("mail", "\"8193-8193/tcp\"", ""),
        ],
        ":1: [balance] has 16386 virtual addresses with a port; allowed: at most 16384 (all ports",
    );
}

/// A host whose only address it is would be off the network, for SSH as well.
#[test]
fn all_ports_of_the_only_address_are_warned_of() {
    let warned = |addresses: &[&str], ports: &str| {
        let address = |text: &&str| InterfaceAddress {
            interface: "eth0".to_owned(),
            address: text.parse().unwrap(),
            network: weir_core::Prefix::host(text.parse().unwrap()),
        };
        let host = FakeHost {
            addresses: addresses.iter().map(address).collect(),
            ..FakeHost::default()
        };
        let text = format!(
            "{BALANCE}[pool.web]\nvip = [\"198.51.100.80\", \"2001:db8::80\"]\nports = [{ports}]\nreals = [{{ address = \"10.0.0.11\" }}]\ncheck = {{ port = 53, dns = \".\" }}"
        );
        let checked = Config::check(Path::new("weir.toml"), &text, &host).unwrap();
        let told = checked.warnings.into_iter();
        let told = told.filter(|text| text.contains("nobody reaches the host itself"));
        told.map(|text| text.contains("IPv4") as usize + 2 * text.contains("IPv6") as usize)
            .collect::<Vec<_>>()
    };
    let vips = ["198.51.100.80", "2001:db8::80", "fe80::1", "127.0.0.1"];
    assert_eq!(warned(&vips, "\"all\""), [1, 2]);
    assert_eq!(warned(&vips, "\"1-65535/udp\""), [0; 0]);
    let with = |more: &[&'static str]| [&vips[..], more].concat();
    assert_eq!(warned(&with(&["192.0.2.1"]), "\"all\""), [2]);
    assert_eq!(
        warned(&with(&["192.0.2.1", "2001:db8::1"]), "\"all\""),
        [0; 0]
    );
    // At an address where a pool has single ports the host is reached by the others.
    let beside = "\"all\"]\nreals = [{ address = \"10.0.0.11\" }]\ncheck = { port = 53, dns = \".\" }\n[pool.two]\nvip = [\"192.0.2.1\"]\nports = [\"80/tcp\"";
    let text = warned(
        &with(&["192.0.2.1"]),
        &beside.replace("53, dns = \".\"", "53"),
    );
    assert_eq!(text, [2]);
}

#[test]
fn an_emergency_is_read() {
    let pool = |name: &str, words: &str| {
        format!(
            "[pool.{name}]\nvip = [\"198.51.100.80\"]\nports = [\"{}/tcp\"]\nreals = [{{ address = \"10.0.0.11\" }}]\n{words}\n",
            80 + name.len()
        )
    };
    let text = [
        BALANCE,
        &pool("a", "emergency = \"bb\""),
        &pool("bb", "emergency = [{ address = \"10.0.0.12\" }]"),
    ];
    let pools = check(&text.concat()).unwrap().balance.unwrap().pools;
    assert_eq!(pools[0].emergency, Some(Emergency::Pool("bb".to_owned())));
    let own = pools[1].own_reals().map(|real| real.address.to_string());
    assert_eq!(own.collect::<Vec<_>>(), ["10.0.0.11", "10.0.0.12"]);
    assert_eq!(pools[0].own_reals().count(), 1);
}

#[test]
fn what_this_host_cannot_serve_as_it_is_is_warned_of() {
    let address = |interface: &str, address: &str, bits| {
        let address = address.parse().unwrap();
        InterfaceAddress {
            interface: interface.to_owned(),
            address,
            network: weir_core::Prefix::new(address, bits).unwrap(),
        }
    };
    let host = |addresses| FakeHost {
        addresses,
        ..FakeHost::default()
    };
    let text = format!(
        "{BALANCE}[pool.web]\nvip = [\"198.51.100.80\", \"2001:db8::80\"]\nports = [\"80/tcp\"]\n\
         reals = [{{ address = \"10.0.0.11\" }}, {{ address = \"2001:db8::12\" }}]"
    );
    let warned = |host: &FakeHost| {
        let checked = Config::check(Path::new("weir.toml"), &text, host).unwrap();
        let told = checked
            .warnings
            .into_iter()
            .filter(|text| text.contains("pool.web"));
        told.collect::<Vec<_>>()
    };
    let eth0 = |addr, bits| address("eth0", addr, bits);
    let here = host(vec![
        eth0("10.0.0.1", 8),
        eth0("2001:db8::80", 64),
        address("lo", "198.51.100.80", 32),
    ]);
    assert_eq!(warned(&here), [""; 0]);
    let elsewhere = host(vec![eth0("192.0.2.1", 24), address("eth1", "10.0.0.1", 8)]);
    let told = warned(&elsewhere).join("\n");
    for words in [
        "vip in [pool.web] is 198.51.100.80, which this host has on no interface",
        "vip in [pool.web] is 2001:db8::80, which this host has on no interface",
        "reals of [pool.web] have 10.0.0.11, which is in no network of eth0",
        "reals of [pool.web] have 2001:db8::12, which is in no network of eth0",
    ] {
        assert!(told.contains(words), "{told}");
    }
    // Its interface is yet to come.
    assert_eq!(warned(&host(vec![address("eth1", "10.0.0.1", 8)])), [""; 0]);
}

#[test]
fn checks_that_say_little_of_their_reals_are_warned_of() {
    let warned = |ports: &str, more: &str| {
        let text = format!(
            "{BALANCE}[pool.web]\nvip = [\"198.51.100.80\"]\nports = [{ports}]\nreals = [{{ address = \"10.0.0.11\" }}]\n{more}"
        );
        let warnings = check(&text)
            .unwrap_or_else(|error| panic!("{error}"))
            .warnings;
        warnings
            .into_iter()
            .filter(|text| text.contains("[pool.web.check]"))
            .collect::<Vec<_>>()
            .join("\n")
    };
    let proxy = "forward = \"proxy\"\nproxy_protocol = \"v2\"\n";
    for (ports, more, told) in [
        (
            "\"443/tcp\"",
            "check = { http = \"/\" }".to_owned(),
            "http in [pool.web.check] is asked at port 443",
        ),
        (
            "\"443/tcp\"",
            "check = { http = \"/\", port = 80 }".to_owned(),
            "",
        ),
        ("\"443/tcp\"", "check = { port = 443 }".to_owned(), ""),
        (
            "\"80/tcp\", \"443/tcp\"",
            "check = { http = \"/\" }".to_owned(),
            "",
        ),
        (
            "\"80/tcp\"",
            "check = { interval = \"1s\", timeout = \"5s\" }".to_owned(),
            "timeout in [pool.web.check] is 5s, longer than interval, 1s",
        ),
        (
            "\"80/tcp\"",
            "check = { interval = \"5s\", timeout = \"5s\" }".to_owned(),
            "",
        ),
        (
            "\"80/tcp\"",
            format!("{proxy}check = {{ http = \"/\" }}"),
            "is asked at port 80 of 10.0.0.11, where the header of proxy_protocol is expected",
        ),
        (
            "\"80/tcp\"",
            format!("{proxy}check = {{ http = \"/\", port = 80 }}"),
            "header of proxy_protocol is expected",
        ),
        (
            "\"80/tcp\"",
            format!("{proxy}check = {{ http = \"/\", port = 8080 }}"),
            "",
        ),
        ("\"80/tcp\"", proxy.to_owned(), ""),
        (
            "\"80/tcp\"",
            "forward = \"proxy\"\ncheck = { http = \"/\" }".to_owned(),
            "",
        ),
    ] {
        let said = warned(ports, &more);
        assert!(
            said.contains(told) && said.is_empty() == told.is_empty(),
            "{ports} {more}: {said}"
        );
    }
    // A real with a port of its own expects the header there, and nowhere else.
    let own = |port: u16| {
        let text = format!(
            "[pool.web]\nvip = [\"198.51.100.80\"]\nports = [\"80/tcp\"]\nreals = [{{ address = \"10.0.0.11\", port = 8080 }}]\n{proxy}check = {{ http = \"/\", port = {port} }}"
        );
        let warnings = check(&text).unwrap().warnings;
        warnings
            .iter()
            .any(|text| text.contains("port 8080 of 10.0.0.11, where the header"))
    };
    assert!(own(8080) && !own(80));
}

/// A key with a mistyped value counts as present: no second message says that it is
/// missing.
#[test]
fn one_mistake_is_named_once() {
    for (key, wrong) in [("vip", "5"), ("ports", "80"), ("reals", "\"10.0.0.11\"")] {
        let keys = [
            ("vip", "[\"198.51.100.80\"]"),
            ("ports", "[\"80/tcp\"]"),
            ("reals", "[{ address = \"10.0.0.11\" }]"),
        ];
        let keys =
            keys.map(|(k, right)| format!("{k} = {}\n", if k == key { wrong } else { right }));
        let error = check(&format!("{BALANCE}[pool.web]\n{}", keys.concat())).unwrap_err();
        assert!(
            error.contains(&format!("{key} in [pool.web] is ")),
            "{error}"
        );
        assert!(!error.contains("names none"), "{error}");
    }
}

#[test]
fn a_proxy_is_read_and_needs_no_interface() {
    let pool = "[pool.web]\nvip = [\"198.51.100.80\"]\nports = [\"80/tcp\"]\nreals = [{ address = \"2001:db8::11\" }]\nforward = \"proxy\"\n";
    let keys = "max_connections = 7\nmax_connections_per_client = 2\nidle_timeout = \"2m\"\nproxy_protocol = \"v2\"\n[proxy]\nthreads = 3";
    for backend in ["auto", "nft", "dry-run"] {
        let text = format!("backend = \"{backend}\"\n{pool}{keys}");
        let balance = check(&text).unwrap().balance.unwrap();
        assert_eq!((&balance.interface, balance.threads), (&None, Some(3)));
        // Whatever table of flows an earlier configuration has left is no other than it wants.
        assert_eq!(balance.wanted_flows(), None);
        let Forward::Proxy(limits) = balance.pools[0].forward else {
            panic!("it is relayed for");
        };
        assert_eq!((limits.flows, limits.flows_of_client), (7, Some(2)));
        assert_eq!(limits.idle_timeout, 120 * SECOND);
        assert_eq!(limits.udp_timeout, 60 * SECOND);
    }
    // A real's own port is checked, unless the check has one.
    let with_port = pool.replace("::11\"", "::11\", port = 8080");
    for (check_of, port) in [("", 8080), ("check = { port = 81 }", 81)] {
        let balance = check(&format!("{with_port}{check_of}"));
        let web = &balance.unwrap().balance.unwrap().pools[0];
        assert_eq!(web.reals[0].port, Some(8080));
        assert_eq!(web.checked_port(&web.reals[0]), port);
    }
    let kept = format!("{BALANCE}{}", with_port.replace("\"proxy\"", "\"l2\""));
    let told = check(&kept).unwrap_err();
    assert!(
        told.contains("packets keep the port that they have"),
        "{told}"
    );
    // One beside it that is not relayed for needs what it needed.
    let other = pool.replace("web", "mail").replace(".80\"", ".81\"");
    let other = other.replace("forward = \"proxy\"", "");
    let told = check(&format!("{pool}{other}")).unwrap_err();
    assert!(told.contains("[pool] without [balance]"), "{told}");
}

#[test]
fn reals_of_the_segment_and_beyond_a_router_are_asked_at_virtual_addresses() {
    for (words, asks) in [
        ("", true),
        ("forward = \"ipip\"", true),
        ("forward = \"gue\"", true),
        ("forward = \"gue\"\ncheck = { vip = true }", true),
        ("forward = \"ipip\"\ncheck = { vip = false }", false),
        ("check = { vip = false }", false),
        ("forward = \"proxy\"", false),
    ] {
        let pool = "[pool.web]\nvip = [\"198.51.100.80\"]\nports = [\"80/tcp\"]\nreals = [{ address = \"10.0.0.11\" }]";
        let read = check(&format!("{BALANCE}{pool}\n{words}\n")).unwrap();
        let pools = read.balance.unwrap().pools;
        assert_eq!(pools[0].asks_vips(), asks, "{words}");
    }
}

#[test]
fn a_check_is_read() {
    let kind = |words: &str| {
        let pool = "[pool.web]\nvip = [\"198.51.100.80\"]\nports = [\"80/tcp\", \"53/udp\"]\nreals = [{ address = \"10.0.0.11\" }]";
        let text = format!("{BALANCE}{pool}\ncheck = {{ {words} }}");
        let check = check(&text).unwrap().balance.unwrap().pools[0]
            .check
            .clone();
        (check.kind, check.port)
    };
    let http = |host: Option<&str>, status| {
        CheckKind::Http(HttpConfig {
            path: "/healthz".to_owned(),
            host: host.map(str::to_owned),
            status,
        })
    };
    for words in ["\"/bin/true -a 'b c'\"", "[\"/bin/true\", \"-a\", \"b c\"]"] {
        let command = ["/bin/true", "-a", "b c"].map(str::to_owned);
        let command = CheckKind::Command(command.to_vec());
        assert_eq!(kind(&format!("command = {words}")), (command, 80));
    }
    let usual = http(None, vec![200..=399]);
    assert_eq!(kind("http = \"/healthz\""), (usual, 80));
    let words = "http = \"/healthz\", host = \"a.example:8080\", port = 8080, status = [\"200\", \"401-403\"]";
    let all = http(Some("a.example:8080"), vec![200..=200, 401..=403]);
    assert_eq!(kind(words), (all, 8080));
    for name in [".", "www.example.org", "_a.b-c."] {
        let dns = CheckKind::Dns(name.to_owned());
        assert_eq!(kind(&format!("dns = {name:?}")), (dns, 53));
    }
    for require_answer in [false, true] {
        let udp = CheckKind::Udp(UdpConfig {
            payload: "ping".to_owned(),
            require_answer,
        });
        let words = format!("udp = \"ping\", require_answer = {require_answer}");
        assert_eq!(kind(&words), (udp, 53));
    }
}

#[test]
fn mistakes_are_named() {
    let pool = |words: &str| format!("{BALANCE}[pool.web]\n{words}");
    let usual = |but: &str, words: &str| {
        let keys = [
            ("vip", "[\"198.51.100.80\"]"),
            ("ports", "[\"80/tcp\"]"),
            ("reals", "[{ address = \"10.0.0.11\" }]"),
        ];
        let kept = keys.iter().filter(|(key, _)| *key != but);
        let kept: String = kept
            .map(|(key, value)| format!("{key} = {value}\n"))
            .collect();
        pool(&format!("{words}\n{kept}"))
    };
    for (text, told) in [
        (
            "[balance]".to_owned(),
            "weir.toml:1: interface is missing in [balance]; allowed: ",
        ),
        (
            usual("", "").replace(BALANCE, ""),
            "[pool] without [balance]",
        ),
        (
            usual("vip", "vip = []"),
            ":4: vip in [pool.web] names none; allowed: ",
        ),
        (
            usual("vip", "vip = [\"224.0.0.1\"]"),
            ":4: vip in [pool.web] has \"224.0.0.1\"; allowed: ",
        ),
        (
            usual("ports", "ports = [\"80\"]"),
            ":4: ports in [pool.web] has \"80\"; allowed: ",
        ),
        (
            usual("ports", "ports = [\"53/udp\"]"),
            ":3: a pool without a TCP port needs check = { port = ... }, a TCP port at which its reals answer, or { dns = ",
        ),
        (
            usual("reals", ""),
            ":3: reals in [pool.web] names none; allowed: ",
        ),
        (
            usual("", "acl = [\"deny 203.0.113.0/24\"]"),
            ":4: acl in [pool.web] without acl_default, which holds for clients that no rule is about; allowed: acl_default = \"allow\" or \"deny\"",
        ),
        (
            usual("", "acl_default = \"deny\""),
            ":4: acl_default in [pool.web] without acl; allowed: with acl = a list of rules such as [\"deny 203.0.113.0/24\"",
        ),
        (
            usual(
                "",
                "acl_default = \"drop\"\nacl = [\"deny 203.0.113.0/24\"]",
            ),
            ":4: acl_default in [pool.web] is \"drop\"; allowed: \"allow\", \"deny\"",
        ),
        (
            usual(
                "",
                "acl_default = \"allow\"\nacl = [\"deny 203.0.113.1/24\"]",
            ),
            ":5: acl in [pool.web] has \"deny 203.0.113.1/24\"; allowed: a list of rules such as",
        ),
        (
            usual("", "acl_default = \"allow\"\nacl = [\"deny asn:64496\"]"),
            ":5: acl in [pool.web] has \"deny asn:64496\"; allowed: a list of rules such as",
        ),
        (
            usual("", "acl_default = \"allow\"\nacl = []"),
            ":5: acl in [pool.web] names none; allowed: a list of rules such as",
        ),
        (
            usual("", "acl_default = \"allow\"\nacl = [\"deny list:bad\"]"),
            ":5: acl in [pool.web] has list:bad, which is not configured; there is no [list.NAME]",
        ),
        (
            usual(
                "",
                &format!(
                    "acl_default = \"allow\"\nacl = [{}]",
                    "\"deny 192.0.2.7\",".repeat(65)
                ),
            ),
            ":5: acl in [pool.web] has 65 rules; allowed: at most 64",
        ),
        (
            usual("", "emergency = \"other\""),
            ":4: emergency in [pool.web] is \"other\"; allowed: the name of another pool, or a list of tables such as [{ address = \"10.0.0.19\" }] (there is no other)",
        ),
        (
            usual("", "emergency = \"web\""),
            ":4: emergency in [pool.web] is \"web\"; allowed: the name of another pool",
        ),
        (
            usual("", "emergency = []"),
            ":4: emergency in [pool.web] names none; allowed: the name of another pool, or a list of tables",
        ),
        (
            usual("", "emergency = [{ address = \"10.0.0.11\" }]"),
            ":4: emergency in [pool.web] has 10.0.0.11, which is in reals; allowed: other servers",
        ),
        (
            usual("", "emergency = [{ address = \"198.51.100.80\" }]"),
            ":4: emergency in [pool.web] has 198.51.100.80, a virtual address; allowed: the real's own address",
        ),
        (
            usual("reals", "reals = [\"10.0.0.11\"]"),
            ":4: reals in [pool.web] is \"10.0.0.11\"; allowed: ",
        ),
        (
            usual(
                "reals",
                "reals = [{ address = \"10.0.0.11\" }, { address = \"10.0.0.11\" }]",
            ),
            ":4: reals in [pool.web] has 10.0.0.11 twice",
        ),
        (
            usual("reals", "reals = [{ address = \"198.51.100.80\" }]"),
            ":4: reals in [pool.web] has 198.51.100.80, a virtual address; allowed: the real's own address",
        ),
        (
            usual("", "") + "[decoy]\nports = [\"79-81/tcp\"]",
            ":6: ports in [pool.web]: 80/tcp is in [decoy] as well",
        ),
        (
            usual("", "") + "[tarpit]\nports = [\"80/tcp\"]",
            ":6: ports in [pool.web]: 80/tcp is in [tarpit] as well",
        ),
        (
            usual("", "method = \"least-connection\""),
            ":4: method in [pool.web] is \"least-connection\" (did you mean least-connections?); allowed: \"maglev\", \"source-hash\", \"source-port-hash\", \"round-robin\", \"least-connections\"",
        ),
        (
            usual("", "slow_start = \"2h\""),
            ":4: slow_start in [pool.web] is ",
        ),
        (
            usual("", "forward = \"vxlan\""),
            ":4: forward in [pool.web] is \"vxlan\"; allowed: \"l2\", \"ipip\", \"gue\", \"proxy\"",
        ),
        (
            usual("", "forward = \"gue\"\nidle_timeout = \"1m\""),
            ":5: idle_timeout in [pool.web] is of forward = \"proxy\" only",
        ),
        (
            usual("", "udp_timeout = \"2d\""),
            ":4: udp_timeout in [pool.web] is ",
        ),
        (
            usual("", "forward = \"proxy\"\ngue_port = 6080"),
            ":5: gue_port in [pool.web] is of forward = \"gue\" only",
        ),
        (
            usual("", "forward = \"proxy\"\ntunnel_source = [\"10.1.0.1\"]"),
            ":5: tunnel_source in [pool.web] is of forward = \"ipip\" and \"gue\" only",
        ),
        (
            usual("", "forward = \"proxy\"\nemergency = \"mail\"")
                + "[pool.mail]\nvip = [\"198.51.100.81\"]\nports = [\"80/tcp\"]\nreals = [{ address = \"10.0.0.12\" }]\n",
            ":5: emergency in [pool.web] is \"mail\", a pool with forward = \"l2\"; allowed beside forward = \"proxy\": a pool with \"proxy\" as well, or reals",
        ),
        (
            usual("", "emergency = \"mail\"")
                + "[pool.mail]\nvip = [\"198.51.100.81\"]\nports = [\"80/tcp\"]\nreals = [{ address = \"10.0.0.12\" }]\nforward = \"proxy\"\n",
            ":4: emergency in [pool.web] is \"mail\", a pool with forward = \"proxy\"; allowed beside forward = \"l2\": a pool without \"proxy\", or reals",
        ),
        (
            usual(
                "",
                "forward = \"proxy\"\ntransparent = true\nemergency = [{ address = \"2001:db8::12\" }]",
            ),
            "transparent in [pool.web]: its virtual addresses and reals are of both families",
        ),
        (
            usual(
                "",
                "forward = \"proxy\"\ntransparent = true\nemergency = \"mail\"",
            ) + "[pool.mail]\nvip = [\"198.51.100.81\"]\nports = [\"80/tcp\"]\nreals = [{ address = \"2001:db8::12\" }]\nforward = \"proxy\"\n",
            ":6: emergency in [pool.web] is \"mail\", which has 2001:db8::12, and with transparent no real can see a client's address of the other family",
        ),
        (
            usual("", "forward = \"ipip\"\ngue_port = 6080"),
            "gue_port in [pool.web] is of forward = \"gue\" only",
        ),
        (usual("", "forward = \"gue\"\ngue_port = 0"), "gue_port"),
        (
            usual("", "tunnel_source = [\"10.1.0.1\"]"),
            "tunnel_source in [pool.web] is of forward = \"ipip\" and \"gue\" only",
        ),
        (
            usual(
                "",
                "forward = \"gue\"\ntunnel_source = [\"10.1.0.1\", \"10.1.0.2\"]",
            ),
            "tunnel_source in [pool.web] has \"10.1.0.2\"; allowed: at most one",
        ),
        (
            format!(
                "backend = \"xdp-generic\"\n{}",
                usual("", "forward = \"gue\"")
            ),
            "[pool] with backend = \"xdp-generic\": no tunnels to reals",
        ),
        (
            usual("", "idle_timeout = \"1m\""),
            ":4: idle_timeout in [pool.web] is of forward = \"proxy\" only",
        ),
        (
            usual("", "forward = \"proxy\"\nproxy_protocol = \"v1\""),
            ":5: proxy_protocol in [pool.web] is \"v1\"; allowed: \"v2\"",
        ),
        (
            usual("", "forward = \"proxy\"\nmax_connections = 0"),
            ":5: max_connections in [pool.web] is 0; allowed: ",
        ),
        (
            usual(
                "vip",
                "vip = [\"2001:db8::80\"]\nforward = \"proxy\"\ntransparent = true",
            ),
            "transparent in [pool.web]: its virtual addresses and reals are of both families",
        ),
        (
            usual("", "forward = \"proxy\"\ncheck = { vip = true }"),
            ":5: vip in [pool.web.check] is true, and reals that this host relays to have no virtual addresses; allowed: with forward = \"l2\", \"ipip\" or \"gue\"",
        ),
        (
            "[proxy]\nthreads = 0".to_owned(),
            "weir.toml:2: threads in [proxy] is 0; allowed: ",
        ),
        (
            usual("", "check = { https = \"/\" }"),
            "unknown key \"https\" in [pool.web.check]",
        ),
        (
            usual("", "check = { http = \"healthz\" }"),
            ":4: http in [pool.web.check] is \"healthz\"; allowed: a path such as",
        ),
        (
            usual("", "check = { http = \"/a b\" }"),
            ":4: http in [pool.web.check] is \"/a b\"; allowed: a path such as",
        ),
        (
            usual("", "check = { http = \"/a\\r\\nX-A: b\" }"),
            ":4: http in [pool.web.check] is \"/a\\r\\nX-A: b\"; allowed: ",
        ),
        (
            usual("", "check = { http = 80 }"),
            ":4: http in [pool.web.check] is ",
        ),
        (
            usual("", "check = { http = \"/\", host = \"a\\r\\nb\" }"),
            ":4: host in [pool.web.check] is \"a\\r\\nb\"; allowed: a host such as",
        ),
        (
            usual("", "check = { http = \"/\", status = \"2xx\" }"),
            ":4: status in [pool.web.check] is \"2xx\"; allowed: a status or a range such as \"200\"",
        ),
        (
            usual("", "check = { http = \"/\", status = 200 }"),
            "; allowed: a status or a range such as \"200\"",
        ),
        (
            usual(
                "",
                "check = { http = \"/\", status = [\"200\", \"399-300\"] }",
            ),
            ":4: status in [pool.web.check] is \"399-300\"; allowed: ",
        ),
        (
            usual("", "check = { http = \"/\", status = [] }"),
            ":4: status in [pool.web.check] names none; allowed: ",
        ),
        (
            usual("", "check = { http = \"/\", dns = \".\" }"),
            ":4: [pool.web.check] has http and dns; allowed: at most one of http, dns, udp, command",
        ),
        (
            usual("", "check = { command = \"check-web\" }"),
            ":4: command in [pool.web.check] begins with \"check-web\"; allowed: an absolute path",
        ),
        (
            usual("", "check = { command = \"/bin/true 'a\" }"),
            ":4: command in [pool.web.check] is \"/bin/true 'a\", a quote without its end; allowed: ",
        ),
        (
            usual("", "check = { command = \"\" }"),
            ":4: command in [pool.web.check] is empty; allowed: an absolute path",
        ),
        (
            usual("", "check = { command = 5 }"),
            ":4: command in [pool.web.check] is 5; allowed: an absolute path",
        ),
        (
            usual("", "check = { port = 53, dns = \"a..b\" }"),
            ":4: dns in [pool.web.check] is \"a..b\"; allowed: a name such as \"example.org\"",
        ),
        (
            usual("", "check = { port = 53, dns = \"\" }"),
            ":4: dns in [pool.web.check] is \"\"; allowed: a name such as",
        ),
        (
            usual("", "check = { port = 53, dns = \"a b\" }"),
            ":4: dns in [pool.web.check] is \"a b\"; allowed: a name such as",
        ),
        (
            usual("", "check = { dns = \"a\" }"),
            ":3: a pool without a UDP port needs check = { port = ... }, a UDP port",
        ),
        (
            usual("", "check = { port = 53, udp = true }"),
            ":4: udp in [pool.web.check] is ",
        ),
        (
            usual(
                "",
                &format!("check = {{ port = 53, udp = \"{}\" }}", "a".repeat(1201)),
            ),
            "; allowed: a text of at most 1200 bytes",
        ),
        (
            usual("", "check = { require_answer = true }"),
            ":4: require_answer in [pool.web.check] without udp; allowed: with udp = ",
        ),
        (
            usual("", "check = { host = \"a\" }"),
            ":4: host in [pool.web.check] without http; allowed: with http = ",
        ),
        (
            usual("", "check = { status = \"200\" }"),
            ":4: status in [pool.web.check] without http; allowed: with http = ",
        ),
        (
            format!(
                "{}[pool.other]\nvip = [\"198.51.100.80\"]\nports = [\"80/tcp\"]\nreals = [{{ address = \"10.0.0.12\" }}]",
                usual("", "")
            ),
            "serves 80/tcp of 198.51.100.80, which [pool.web] serves",
        ),
    ] {
        let error = check(&text).expect_err(&text);
        assert!(error.contains(told), "{text}\n{error}");
    }
}

#[test]
fn a_backend_that_cannot_forward_is_refused() {
    let text = format!(
        "backend = \"nft\"\n{BALANCE}[pool.web]\nvip = [\"198.51.100.80\"]\nports = [\"80/tcp\"]\nreals = [{{ address = \"10.0.0.11\" }}]"
    );
    let error = check(&text).unwrap_err();
    let told = "weir.toml:2: [balance] with backend = \"nft\": no load balancing";
    assert!(error.contains(told), "{error}");
    // What is allowed in its place is nothing that is refused next.
    let text = text.replace("\"nft\"", "\"xdp-generic\"") + "\nforward = \"gue\"";
    let error = check(&text).unwrap_err();
    assert!(
        error.ends_with("allowed: \"auto\", \"xdp\", \"tcx\""),
        "{error}"
    );
}

#[test]
fn server_ids_of_quic_are_read() {
    const BOTH: &str = "443/tcp\", \"443/udp";
    let pool = |reals: &str, ports: &str, more: &str| {
        format!(
            "{BALANCE}[pool.web]\nvip = [\"198.51.100.80\"]\nports = [\"{ports}\"]\nreals = [{reals}]\n{more}"
        )
    };
    let real = |address: &str, id: &str| match id {
        "" => format!("{{ address = \"{address}\" }}"),
        id => format!("{{ address = \"{address}\", quic_server_id = \"{id}\" }}"),
    };
    let two = |ids: [&str; 2]| [real("10.0.0.11", ids[0]), real("10.0.0.12", ids[1])].join(", ");
    let read = check(&pool(&two(["0a01", "0A02"]), BOTH, "")).unwrap();
    let reals = &read.balance.unwrap().pools[0].reals;
    let ids = reals
        .iter()
        .map(|real| real.quic_server_id.unwrap().to_string());
    assert_eq!(ids.collect::<Vec<_>>(), ["0a01", "0a02"]);
    assert!(!read.warnings.join("\n").contains("quic_server_id"));

    let half = check(&pool(&two(["0a01", ""]), BOTH, "")).unwrap();
    let warnings = half.warnings.join("\n");
    assert!(
        warnings.contains("10.0.0.12 has none: its QUIC connections break"),
        "{warnings}"
    );

    let more = pool(&two(["0a01", "0a02"]), "443/tcp\", \"443-444/udp", "");
    let warnings = check(&more).unwrap().warnings.join("\n");
    assert!(warnings.contains("all are taken for QUIC's"), "{warnings}");

    let emergency = format!("emergency = [{}]", real("10.0.0.13", "0a01"));
    let proxy = "forward = \"proxy\"";
    for (text, said) in [
        (
            pool(&two(["0a01", "0a0"]), BOTH, ""),
            "is \"0a0\"; allowed: an even number of hexadecimal digits",
        ),
        (
            pool(&two(["0a01", "0a01"]), BOTH, ""),
            "is \"0a01\", that of 10.0.0.11; allowed: one real each",
        ),
        (
            pool(&two(["0a01", "0a02"]), BOTH, &emergency),
            "emergency of [pool.web] is \"0a01\", that of 10.0.0.11",
        ),
        (
            pool(&two(["0a01", "0a"]), BOTH, ""),
            "is \"0a\", and 10.0.0.11 has 0a01; allowed: one length",
        ),
        (
            pool(&two(["0a01", "0a02"]), "443/tcp", ""),
            "serves no port of UDP",
        ),
        (
            pool(&two(["0a01", "0a02"]), BOTH, proxy),
            "the proxy knows connections by addresses and ports",
        ),
    ] {
        let errors = check(&text).unwrap_err();
        assert!(errors.contains(said), "{errors}");
    }

    // Another pool's reals that stand in must not look like the pool's own.
    let backup = |id: &str| {
        let text = pool(&two(["0a01", "0a02"]), BOTH, "emergency = \"backup\"\n");
        let real = real("10.0.0.21", id);
        format!(
            "{text}[pool.backup]\nvip = [\"198.51.100.81\"]\nports = [\"{BOTH}\"]\nreals = [{real}]\n"
        )
    };
    assert!(check(&backup("0a03")).is_ok());
    for id in ["0a02", "0a0201", "0a"] {
        let errors = check(&backup(id)).unwrap_err();
        assert!(errors.contains("looks like one of this pool's"), "{errors}");
    }
}
