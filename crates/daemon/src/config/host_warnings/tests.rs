//! Which warnings a host's addresses, gateways and listeners make, and which they do not.

use std::path::Path;

use weir_core::Protocol;

use super::*;
use crate::{balance::added::KeyValues, host::fake::FakeHost};

const BALANCE: &str = "interfaces = [\"eth0\"]\n[balance]\ninterface = \"eth0\"\n";
const WEB: &str = "[pool.web]\nvip = [\"198.51.100.80\", \"2001:db8::80\"]\nports = [\"80/tcp\"]\n\
    reals = [{ address = \"198.51.100.11\" }, { address = \"2001:db8::12\" }]\n";
const EDGE: &str =
    "[vrrp.edge]\nid = 51\npools = [\"web\"]\npeers = [\"198.51.100.3\", \"fe80::3\"]\n";

fn at(interface: &str, address: &str, bits: u8) -> InterfaceAddress {
    let address = address.parse().unwrap();
    InterfaceAddress {
        interface: interface.to_owned(),
        address,
        network: Prefix::new(address, bits).unwrap(),
    }
}

/// On eth0 with an address of each family, behind a gateway of each.
fn host() -> FakeHost {
    FakeHost {
        addresses: vec![
            at("eth0", "198.51.100.2", 24),
            at("eth0", "2001:db8::2", 64),
            at("eth0", "fe80::2", 64),
            at("eth1", "192.0.2.2", 24),
        ],
        gateways: ["198.51.100.1", "fe80::1"]
            .map(|gateway| gateway.parse().unwrap())
            .to_vec(),
        ..FakeHost::default()
    }
}

#[track_caller]
fn checked(host: &FakeHost, text: &str) -> Config {
    let checked = Config::check(Path::new("weir.toml"), text, host);
    checked.unwrap_or_else(|errors| panic!("{text}\n{errors}"))
}

/// What is said of pools, virtual routers and the tarpit.
#[track_caller]
fn warned(host: &FakeHost, text: &str) -> Vec<String> {
    let of = ["[pool.", "[balance]", "[vrrp.", "[tarpit]"];
    let warnings = checked(host, text).warnings.into_iter();
    warnings
        .filter(|text| of.iter().any(|of| text.contains(of)))
        .collect()
}

#[track_caller]
fn warned_once(host: &FakeHost, text: &str, words: &str) {
    let told = warned(host, text);
    assert!(
        told.len() == 1 && told[0].contains(words),
        "{text}\n{told:#?}"
    );
}

#[test]
fn an_address_that_weir_holds_itself_is_not_missing() {
    let host = host();
    let told = warned(&host, &[BALANCE, WEB].concat());
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.iter().all(|text| text.contains("on no interface")
        && text.contains("with announce = true in [balance], or by a [vrrp.NAME], weir adds it")));
    let announced = [BALANCE, "announce = true\n", WEB].concat();
    assert_eq!(warned(&host, &announced), [""; 0]);
    assert_eq!(warned(&host, &[BALANCE, WEB, EDGE].concat()), [""; 0]);
    // Also those that are of no pool there.
    let edge = EDGE.replace(
        "pools = [\"web\"]",
        "addresses = [\"198.51.100.80\", \"2001:db8::80\"]",
    );
    assert_eq!(warned(&host, &[BALANCE, WEB, &edge].concat()), [""; 0]);
}

#[test]
fn what_stays_where_others_move_is_warned_of() {
    let mail = "[pool.mail]\nvip = [\"198.51.100.25\"]\nports = [\"25/tcp\"]\nreals = [{ address = \"198.51.100.11\" }]\n";
    let text = [BALANCE, "announce = true\n", WEB, mail, EDGE].concat();
    warned_once(
        &host(),
        &text,
        "vip in [pool.mail] has 198.51.100.25, which no [vrrp.NAME] has",
    );
    let both = text.replace("pools = [\"web\"]", "pools = [\"web\", \"mail\"]");
    assert_eq!(warned(&host(), &both), [""; 0]);
    // The host's own stays in any case.
    let own = text.replace("198.51.100.25", "198.51.100.2");
    assert_eq!(warned(&host(), &own), [""; 0]);
}

#[test]
fn flows_that_a_failover_ends_are_warned_of() {
    for (method, is_told) in [
        ("maglev", false),
        ("source-hash", false),
        ("source-port-hash", false),
        ("round-robin", true),
        ("least-connections", true),
    ] {
        let text = format!("{BALANCE}{WEB}method = \"{method}\"\n{EDGE}");
        match is_told {
            true => warned_once(&host(), &text, "and [vrrp.edge] moves its addresses"),
            false => assert_eq!(warned(&host(), &text), [""; 0], "{method}"),
        }
    }
    let proxy = format!("{BALANCE}{WEB}forward = \"proxy\"\nmethod = \"round-robin\"\n{EDGE}");
    assert_eq!(warned(&host(), &proxy), [""; 0]);
}

#[test]
fn peers_by_which_two_hosts_are_active_are_warned_of() {
    let text = |peers: &str, more: &str| {
        let peers = format!("peers = {peers}\n{more}");
        let edge = EDGE.replace("peers = [\"198.51.100.3\", \"fe80::3\"]\n", &peers);
        [BALANCE, WEB, &edge].concat()
    };
    let own = "an address of this host itself, and no other of";
    warned_once(&host(), &text("[\"198.51.100.2\", \"fe80::3\"]", ""), own);
    warned_once(&host(), &text("[\"198.51.100.3\", \"fe80::2\"]", ""), own);
    warned_once(
        &host(),
        &text("[\"198.51.101.3\", \"fe80::3\"]", ""),
        "198.51.101.3, which is in no network of the interface",
    );
    // One list for all hosts.
    let all = "[\"198.51.100.2\", \"198.51.100.3\", \"fe80::2\", \"fe80::3\"]";
    assert_eq!(warned(&host(), &text(all, "")), [""; 0]);
    let global = "[\"198.51.100.3\", \"2001:db8::3\"]";
    warned_once(&host(), &text(global, ""), "come from link-local addresses");
    warned_once(
        &host(),
        &text("[\"198.51.100.3\", \"fe80::2\", \"2001:db8::3\"]", ""),
        own,
    );
    for unicast in [global, "[\"198.51.101.3\", \"2001:db8:1::3\"]"] {
        assert_eq!(warned(&host(), &text(unicast, "unicast = true\n")), [""; 0]);
    }
    // The same link-local address is another host's on another segment.
    let mut two = host();
    two.addresses.push(at("eth1", "fe80::3", 64));
    assert_eq!(warned(&two, &[BALANCE, WEB, EDGE].concat()), [""; 0]);
    // A family without virtual addresses has no virtual router.
    let v4 = text("[\"198.51.100.3\", \"2001:db8::3\"]", "").replace(", \"2001:db8::80\"", "");
    assert_eq!(warned(&host(), &v4), [""; 0]);
}

#[test]
fn an_interface_at_which_nothing_is_taken_is_warned_of() {
    let reals = WEB.replace(", { address = \"2001:db8::12\" }", "");
    let reals = reals.replace("198.51.100.11", "192.0.2.11");
    let on = |name: &str, more: &str| {
        let balance = BALANCE.replace("interface = \"eth0\"", &format!("interface = \"{name}\""));
        [&balance, more, &reals].concat()
    };
    let announced = on("eth1", "announce = true\n");
    let told =
        "vip in [pool.web] has 198.51.100.80, an address of eth1, and interfaces has eth0 only";
    warned_once(&host(), &announced, told);
    let both = announced.replace("[\"eth0\"]", "[\"eth0\", \"eth1\"]");
    assert_eq!(warned(&host(), &both), [""; 0]);
    // Below these are interfaces at which the packets are seen.
    let mut stacked = host();
    stacked.addresses.push(at("eth0.10", "192.0.2.3", 24));
    for name in ["eth0.10", "lan0"] {
        let text = on(name, "announce = true\n");
        let told = warned(&stacked, &text);
        assert!(!told.join("").contains("are not taken"), "{name}: {told:?}");
    }
    // Clients come in by another interface than that of the reals.
    let mut router = host();
    router.addresses.push(at("eth0", "198.51.100.80", 32));
    router.addresses.push(at("lo", "2001:db8::80", 128));
    assert_eq!(warned(&router, &on("eth1", "")), [""; 0]);
    let mut wrong = host();
    wrong.addresses.push(at("eth1", "198.51.100.80", 32));
    wrong.addresses.push(at("eth0", "2001:db8::80", 128));
    let text = [BALANCE, WEB].concat();
    warned_once(&wrong, &text, told);
    // The proxy listens on whatever interface it is.
    assert_eq!(warned(&wrong, &(text + "forward = \"proxy\"\n")), [""; 0]);
    let edge = format!("{EDGE}interface = \"eth1\"\n");
    let edge = edge.replace("peers = [\"198.51.100.3\", \"fe80::3\"]\n", "");
    warned_once(&host(), &[BALANCE, WEB, &edge].concat(), told);
}

#[test]
fn addresses_that_others_have_are_warned_of() {
    let with =
        |from: &str, to: &str| [BALANCE, "announce = true\n", &WEB.replace(from, to)].concat();
    for (from, to, words) in [
        (
            "198.51.100.11",
            "198.51.100.2",
            "have 198.51.100.2, an address of this host",
        ),
        (
            "2001:db8::12",
            "2001:db8::2",
            "have 2001:db8::2, an address of this host",
        ),
        (
            "198.51.100.11",
            "198.51.100.1",
            "have 198.51.100.1, a gateway of this host",
        ),
        (
            "198.51.100.80",
            "198.51.100.1",
            "is 198.51.100.1, a gateway of this host",
        ),
        ("\"198.51.100.11\"", "\"198.51.100.11\", weight = 0", ""),
    ] {
        match words {
            "" => assert_eq!(warned(&host(), &with(from, to)), [""; 0]),
            words => warned_once(&host(), &with(from, to), words),
        }
    }
    // The proxy connects as any program does.
    let proxy = with("198.51.100.11", "198.51.100.2") + "forward = \"proxy\"\n";
    assert_eq!(warned(&host(), &proxy), [""; 0]);
    let none = with("\" }", "\", weight = 0 }");
    warned_once(&host(), &none, "have weight = 0, all of them");
    let emergency = |weight: u8| {
        none.clone()
            + &format!("emergency = [{{ address = \"198.51.100.19\", weight = {weight} }}]\n")
    };
    assert_eq!(warned(&host(), &emergency(1)), [""; 0]);
    let told = warned(&host(), &emergency(0)).join("\n");
    assert!(
        told.contains("emergency of [pool.web] has weight = 0") && told.contains("have weight = 0"),
        "{told}"
    );
    let gue = |source: &str| {
        with("", "") + &format!("forward = \"gue\"\ntunnel_source = [\"{source}\"]\n")
    };
    assert_eq!(warned(&host(), &gue("198.51.100.2")), [""; 0]);
    warned_once(
        &host(),
        &gue("10.99.0.1"),
        "has 10.99.0.1, which this host has on no interface",
    );
}

#[test]
fn an_address_of_a_virtual_router_that_stays_is_warned_of() {
    let text = |addresses: &str| format!("{BALANCE}{WEB}{EDGE}addresses = [{addresses}]\n");
    let with_network = "[vrrp.edge] has 198.51.100.2, which is an address of eth0 with its network";
    warned_once(&host(), &text("\"198.51.100.2\""), with_network);
    // Where the pair is its network's gateway, the backup goes by the active one.
    assert_eq!(warned(&host(), &text("\"198.51.100.1\"")), [""; 0]);
    // As weir adds it.
    let mut active = host();
    active.addresses.push(at("eth0", "198.51.100.90", 32));
    active.addresses.push(at("eth0", "2001:db8::90", 128));
    let held = text("\"198.51.100.90\", \"2001:db8::90\"");
    assert_eq!(warned(&active, &held), [""; 0]);
}

#[test]
fn a_port_of_this_host_at_its_only_address_is_warned_of() {
    let only = |listeners: &[(Protocol, u16)]| FakeHost {
        addresses: vec![
            at("eth0", "198.51.100.80", 24),
            at("eth0", "2001:db8::2", 64),
        ],
        listeners: listeners.iter().copied().collect(),
        ..FakeHost::default()
    };
    let text = [BALANCE, WEB, "\n"]
        .concat()
        .replace(", \"2001:db8::80\"", "");
    let told = "serves 80/tcp of 198.51.100.80, and this host, which serves 80/tcp itself, has no other IPv4 address";
    warned_once(&only(&[(Protocol::Tcp, 80)]), &text, told);
    for others in [&[(Protocol::Tcp, 22), (Protocol::Udp, 80)][..], &[]] {
        assert_eq!(warned(&only(others), &text), [""; 0]);
    }
    // The proxy listens there itself.
    let proxy = text.clone() + "forward = \"proxy\"\n";
    assert_eq!(warned(&only(&[(Protocol::Tcp, 80)]), &proxy), [""; 0]);
    let mut two = only(&[(Protocol::Tcp, 80)]);
    two.addresses.push(at("eth1", "192.0.2.2", 24));
    assert_eq!(warned(&two, &text), [""; 0]);
    // Nobody reaches the host by an address that weir has added.
    let held = FakeHost {
        addresses: vec![
            at("eth0", "198.51.100.2", 24),
            at("eth0", "2001:db8::80", 128),
        ],
        ..only(&[(Protocol::Tcp, 80)])
    };
    let routed = [
        BALANCE,
        WEB,
        &EDGE.replace("peers = [\"198.51.100.3\", \"fe80::3\"]\n", ""),
    ]
    .concat();
    assert_eq!(warned(&held, &routed), [""; 0]);
}

#[test]
fn a_gateway_in_the_tarpit_is_warned_of() {
    let text =
        |prefix: &str| format!("interfaces = [\"eth0\"]\n[tarpit]\naddresses = [\"{prefix}\"]\n");
    warned_once(
        &host(),
        &text("198.51.100.0/31"),
        "198.51.100.1 is a gateway of this host",
    );
    assert_eq!(warned(&host(), &text("198.51.100.128/25")), [""; 0]);
}

#[test]
fn a_tarpit_in_networks_where_somebody_is_is_warned_of() {
    let text = |key: &str, prefix: &str| {
        format!("interfaces = [\"eth0\"]\n[tarpit]\n{key} = [\"{prefix}\"]\n")
    };
    let one = FakeHost {
        gateways: Vec::new(),
        ..host()
    };
    warned_once(
        &one,
        &text("addresses", "198.51.100.0/24"),
        "dark = [\"198.51.100.0/24\"] finds out",
    );
    warned_once(
        &one,
        &text("addresses", "2001:db8::/64"),
        "2001:db8::2 is an address of this host",
    );
    warned_once(
        &one,
        &text("dark", "203.0.113.0/24"),
        "is in no network of an interface of this host",
    );
    warned_once(
        &one,
        &text("dark", "198.51.0.0/16"),
        "is in no network of an interface of this host",
    );
    for (key, prefix) in [
        ("addresses", "203.0.113.0/24"),
        ("dark", "198.51.100.0/24"),
        ("dark", "198.51.100.128/25"),
        ("dark", "2001:db8::/64"),
    ] {
        assert_eq!(warned(&one, &text(key, prefix)), [""; 0], "{key} {prefix}");
    }
}

#[test]
fn ipv6_addresses_of_the_tarpit_that_nobody_is_heard_to_ask_for_are_warned_of() {
    let text = |interface: &str, key: &str, prefix: &str| {
        format!("interfaces = [\"{interface}\"]\n[tarpit]\n{key} = [\"{prefix}\"]\n")
    };
    for key in ["addresses", "dark"] {
        let deaf = text("eth1", key, "2001:db8:1::/64");
        warned_once(&host(), &deaf, "ip link set eth1 allmulticast on");
        assert_eq!(
            warned(&host(), &text("eth1", key, "192.0.2.128/25")),
            [""; 0]
        );
        assert_eq!(
            warned(&host(), &text("eth0", key, "2001:db8:1::/64")),
            [""; 0]
        );
    }
}

#[test]
fn what_commands_add_is_held_against_the_host_too() {
    use crate::balance::added::{AddedPool, AddedReal, PoolChange};
    let table = |value: serde_json::Value| -> KeyValues { value.as_object().unwrap().clone() };
    let config = checked(&host(), &[BALANCE, "announce = true\n", WEB].concat());
    let added = |change: PoolChange| {
        let mut all = config.added.all.clone();
        all.change(&change, config.balance.as_ref()).unwrap();
        let with = config.clone().with_added(all, &host());
        (with.added.not_in_force.len(), with.added.warnings)
    };
    let real = |address: &str| {
        added(PoolChange::AddReal(AddedReal {
            pool: "web".to_owned(),
            real: table(serde_json::json!({ "address": address })),
        }))
    };
    assert_eq!(real("198.51.100.13"), (0, Vec::new()));
    let (refused, told) = real("198.51.100.2");
    assert!(
        refused == 0 && told.len() == 1 && told[0].contains("an address of this host"),
        "{told:?}"
    );
    let (refused, told) = added(PoolChange::Add(AddedPool {
        name: "shop".to_owned(),
        pool: table(
            serde_json::json!({ "vip": ["198.51.100.81"], "ports": ["80/tcp"],
            "reals": [{ "address": "198.51.100.14", "weight": 0 }] }),
        ),
    }));
    assert!(
        refused == 0 && told.len() == 1 && told[0].contains("all of them"),
        "{told:?}"
    );
}
