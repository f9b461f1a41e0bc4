//! Virtual routers (VRRP version 3): two weirs, or a weir and a keepalived, of which one
//! has the virtual addresses of two real nginx, and what others on the segment forge.

mod common;
#[path = "root_vrrp/families.rs"]
mod families;

use std::{
    fs,
    net::IpAddr,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use common::{
    SOON, Weir, addr,
    lan::{Flow, Lan, VIP, has, served_by},
    skipped, soon,
};
use serde_json::Value;
use weir_netlab::{Child, Namespace, Net};
use weir_testkit::{packet::Packet, traffic};
use weir_vrrp::{Advertisement, Checksum, GROUP_V4, GROUP_V6, PROTOCOL};

/// The interval of advertisements, in hundredths of a second.
const INTERVAL: u16 = 100;
/// When it is said that nobody is active any more: who heard nothing would wait for more than
/// three intervals.
const SHORTLY: Duration = Duration::from_secs(3);
const FAMILIES: [&str; 2] = ["ipv4", "ipv6"];

fn pool() -> String {
    format!(
        "interfaces = [\"eth0\"]\nbackend = \"tcx\"\n[balance]\ninterface = \"eth0\"\n\
         [pool.web]\nvip = [\"{}\", \"{}\"]\nports = [\"80/tcp\"]\n\
         reals = [{{ address = \"192.0.2.11\" }}, {{ address = \"192.0.2.12\" }}]\n\
         check = {{ interval = \"1s\", fall = 1, rise = 1, timeout = \"5s\" }}\n",
        VIP[0], VIP[1]
    )
}

fn config(priority: u8, more: &str) -> String {
    format!(
        "{}[vrrp.edge]\nid = 51\npools = [\"web\"]\npriority = {priority}\ninterval = {INTERVAL}\n{more}",
        pool()
    )
}

fn routers(weir: &Weir) -> Vec<Value> {
    weir.json(&["status"])["vrrp"].as_array().unwrap().clone()
}

fn is(weir: &Weir, state: &str) -> bool {
    let routers = routers(weir);
    assert_eq!(routers.len(), 2);
    routers.iter().all(|router| router["state"] == state)
}

#[track_caller]
fn soon_is(weir: &Weir, state: &str) {
    soon(&format!("both routers to be {state}"), || {
        is(weir, state).then_some(())
    });
}

fn alerts(weir: &Weir) -> String {
    weir.json(&["status"])["alerts"].to_string()
}

fn has_all(host: &Namespace) -> bool {
    VIP.iter().all(|vip| has(host, vip))
}

fn has_none(host: &Namespace) -> bool {
    !VIP.iter().any(|vip| has(host, vip))
}

/// How long it takes from now on until both addresses are served.
#[track_caller]
fn gap(client: &Namespace) -> Duration {
    let begun = Instant::now();
    for vip in VIP {
        soon("the next one to serve", || {
            served_by(client, None, addr(vip))
        });
    }
    begun.elapsed()
}

/// Of the next one in line, with some seconds for a machine that does something else as well.
fn bound(priority: u8) -> Duration {
    let interval = Duration::from_millis(10 * u64::from(INTERVAL));
    3 * interval + interval * (256 - u32::from(priority)) / 256 + Duration::from_secs(5)
}

#[test]
fn root_of_two_weirs_one_has_the_addresses() {
    if skipped(&["nginx", "ip", "bridge"]) {
        return;
    }
    let mut lan = Lan::new();
    let [one, two] = [("one", 2), ("two", 3)].map(|(name, number)| lan.join(name, number));
    let client = lan.join("client", 100);
    lan.real(11);
    lan.real(12);
    let mut first = Weir::start(&one, &config(150, ""));
    let second = Weir::start(&two, &config(100, ""));
    soon_is(&first, "active");
    soon_is(&second, "backup");
    assert!(has_all(&one) && has_none(&two));
    let shown = second.ask(&["status"]).out;
    let told = "virtual router edge (ipv4, id 51) on eth0: backup with priority 100 for 192.0.2.80, 192.0.2.2 is active (priority 150)";
    assert!(shown.contains(told), "{shown}");
    let mut flows: Vec<_> = (0..20)
        .map(|n| {
            let mut flow = soon("a flow", || Flow::open(&client, addr(VIP[n % 2])));
            (flow.ask(), flow)
        })
        .collect();
    let mut go_on = || flows.iter_mut().all(|(real, flow)| flow.ask() == *real);
    assert!(go_on());

    // Killed: what is pinned forwards still, the next one takes over in time, and the
    // kernel forgets the addresses of a daemon that is no more.
    first.kill();
    assert!(go_on());
    let begun = Instant::now();
    soon("the other one to take over", || has_all(&two).then_some(()));
    assert!(begun.elapsed() < bound(100), "{:?}", begun.elapsed());
    assert!(gap(&client) < bound(100));
    assert!(go_on());
    soon_is(&second, "active");
    soon("the addresses to be forgotten", || {
        has_none(&one).then_some(())
    });
    assert!(go_on() && gap(&client) < bound(100));

    // Back again, it takes over by its priority; no flow notices.
    first.run();
    soon_is(&first, "active");
    soon_is(&second, "backup");
    assert!(has_all(&one) && has_none(&two));
    assert!(go_on() && gap(&client) < bound(150));
    assert_eq!(
        (alerts(&first), alerts(&second)),
        ("[]".into(), "[]".into())
    );
    for family in FAMILIES {
        let labels = ["edge", family];
        assert_eq!(
            second.metric("weir_vrrp_transitions_total", &labels),
            Some(2)
        );
        assert_eq!(first.metric("weir_vrrp_active", &labels), Some(1));
        assert_eq!(second.metric("weir_vrrp_active", &labels), Some(0));
    }

    // Stopped: it says so, and nobody waits for it.
    first.stop();
    assert!(has_none(&one));
    let begun = Instant::now();
    soon("the other one to take over", || has_all(&two).then_some(()));
    assert!(begun.elapsed() < SHORTLY, "{:?}", begun.elapsed());
    assert!(go_on() && gap(&client) < bound(100));

    // Both are active while they do not hear each other, and one is when they do.
    first.run();
    soon_is(&first, "active");
    lan.part(["one", "two"], true);
    soon_is(&second, "active");
    assert!(is(&first, "active"));
    lan.part(["one", "two"], false);
    soon_is(&second, "backup");
    assert!(is(&first, "active") && has_none(&two) && has_all(&one));
    assert!(gap(&client) < bound(150));

    // One that an administrator has added is his, and an alert says what that means.
    first.stop();
    one.ip(&[format!("addr add {}/32 dev eth0", VIP[0])])
        .unwrap();
    soon_is(&second, "active");
    first.run();
    soon("it to be told", || {
        let told = "192.0.2.80 is on this host, and not by weir";
        alerts(&first).contains(told).then_some(())
    });
    one.ip(&[format!("addr del {}/32 dev eth0", VIP[0])])
        .unwrap();
    first.ask(&["reload"]).done();
    soon_is(&first, "active");
    soon("both to be held", || has_all(&one).then_some(()));

    // Another configuration takes no part, and has no address.
    first.configure(&pool());
    first.ask(&["reload"]).done();
    assert!(has_none(&one));
    soon_is(&second, "active");
    let events = second.said();
    assert!(
        events.contains("vrrp edge (IPv6): active (priority 100)"),
        "{events}"
    );
}

#[test]
fn root_a_weir_without_live_reals_gives_up() {
    if skipped(&["nginx", "ip"]) {
        return;
    }
    let mut lan = Lan::new();
    let [one, two] = [("one", 2), ("two", 3)].map(|(name, number)| lan.join(name, number));
    let client = lan.join("client", 100);
    lan.real(11);
    lan.real(12);
    let first = Weir::start(&one, &config(150, "track = 60"));
    // It waits for whoever is active, and is there when that one gives up.
    let second = Weir::start(&two, &config(100, ""));
    soon_is(&first, "active");
    // What is taken out here on purpose is no reason for the other one.
    first.ask(&["pool", "drain", "web"]).done();
    let begun = Instant::now();
    while begun.elapsed() < 2 * bound(100) {
        for family in FAMILIES {
            let shown = first.metric("weir_vrrp_priority", &["edge", family]);
            assert_eq!(shown, Some(150));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    first.ask(&["pool", "enable", "web"]).done();
    for (verb, priority, [of_first, of_second]) in [
        ("add", 90, ["backup", "active"]),
        ("del", 150, ["active", "backup"]),
    ] {
        let reals = [11, 12].map(|number| format!("route {verb} blackhole 192.0.2.{number}/32"));
        one.ip(&reals).unwrap();
        soon_is(&first, of_first);
        soon_is(&second, of_second);
        for family in FAMILIES {
            let shown = first.metric("weir_vrrp_priority", &["edge", family]);
            assert_eq!(shown, Some(priority));
        }
        gap(&client);
    }
}

#[test]
fn root_flows_that_change_between_weirs_stay_with_their_real() {
    if skipped(&["nginx", "ip"]) {
        return;
    }
    let mut lan = Lan::new();
    let [one, two] = [("one", 2), ("two", 3)].map(|(name, number)| lan.join(name, number));
    let client = lan.join("client", 100);
    lan.real(11);
    lan.real(12);
    let weirs = [&one, &two].map(|host| Weir::start(host, &pool()));
    for weir in &weirs {
        soon("both reals to live", || {
            (weir.json(&["pool", "list"])["pools"][0]["live"] == 2).then_some(())
        });
    }
    let through = |name: &str| {
        let lines = VIP.map(|vip| {
            let mac = lan.mac(name);
            format!("neigh replace {vip} lladdr {mac} nud permanent dev eth0")
        });
        client.ip(&lines).unwrap();
    };
    let mut flows = Vec::new();
    for (n, name) in (0..80).zip(["one", "one", "two", "two"].into_iter().cycle()) {
        through(name);
        let mut flow = Flow::open(&client, addr(VIP[n % 2])).expect("a connection");
        flows.push((flow.ask(), flow));
    }
    let of_first = flows.iter().filter(|(real, _)| *real == 11).count();
    assert!((15..65).contains(&of_first), "{of_first}");
    for name in ["two", "one", "two"] {
        through(name);
        for (real, flow) in &mut flows {
            assert_eq!(flow.ask(), *real, "through {name}");
        }
    }
}

/// A keepalived of this priority, which logs into its directory.
fn keepalived(dir: &tempfile::TempDir, host: &Namespace, priority: u8, unicast: bool) -> Child {
    keepalived_of_version(3, dir, host, priority, unicast)
}

/// The same of a version of VRRP over IPv4; over IPv6 it has none but 3.
fn keepalived_of_version(
    version: u8,
    dir: &tempfile::TempDir,
    host: &Namespace,
    priority: u8,
    unicast: bool,
) -> Child {
    let path = |name: &str| dir.path().join(name).display().to_string();
    let instance = |name: &str, vip: &str, own: &str, peer: &str| {
        let unicast = match unicast {
            true => format!("unicast_src_ip {own}\n unicast_ttl 255\n unicast_peer {{ {peer} }}"),
            false => String::new(),
        };
        format!(
            "vrrp_instance {name} {{
                 state BACKUP
                 interface eth0
                 virtual_router_id 51
                 priority {priority}
                 advert_int 1
                 {unicast}
                 virtual_ipaddress {{ {vip} dev eth0 }}
             }}\n"
        )
    };
    let text = format!(
        "global_defs {{\n vrrp_version {version}\n}}\n{}{}",
        instance("four", "192.0.2.80/32", "192.0.2.3", "192.0.2.2"),
        instance("six", "2001:db8::80/128", "2001:db8::3", "2001:db8::2"),
    );
    fs::write(path("keepalived.conf"), text).unwrap();
    let said = fs::File::options()
        .create(true)
        .append(true)
        .open(path("said"))
        .unwrap();
    let mut command = Command::new("/usr/sbin/keepalived");
    command
        .args(["--dont-fork", "--vrrp", "--log-console", "--log-detail"])
        .args(["--use-file", &path("keepalived.conf")])
        .args(["--pid", &path("pid"), "--vrrp_pid", &path("vrrp_pid")])
        .stdin(Stdio::null())
        .stdout(said.try_clone().unwrap())
        .stderr(said);
    host.spawn(command).unwrap()
}

/// What the guide sets beside weir's own: keepalived takes it, and would not take any text.
#[test]
fn root_the_guides_configuration_of_keepalived_is_one() {
    if skipped(&["keepalived", "ip"]) {
        return;
    }
    let net = Net::new().unwrap();
    let host = net.namespace("host").unwrap();
    host.ip(&[
        "link add eth0 type bridge forward_delay 0".into(),
        "link set eth0 up".into(),
        "address add 198.51.100.2/24 dev eth0".into(),
    ])
    .unwrap();
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide/ipvs.md");
    let guide = fs::read_to_string(guide).unwrap();
    let (_, block) = guide.split_once("```conf\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keepalived.conf");
    let takes = |text: &str| {
        fs::write(&file, text).unwrap();
        let mut command = Command::new("/usr/sbin/keepalived");
        command.args(["--log-console", "--config-test", "--use-file"]);
        command.arg(&file);
        let output = host.enter(move || command.output()).unwrap().unwrap();
        (output.status.success(), format!("{output:?}"))
    };
    let (is_taken, said) = takes(block);
    assert!(is_taken, "{said}");
    let (is_taken, said) = takes(&block.replace("lb_algo", "lb_aglo"));
    assert!(!is_taken && said.contains("lb_aglo"), "{said}");
}

#[test]
fn root_keepalived_is_a_peer_in_both_roles() {
    if skipped(&["nginx", "ip", "keepalived"]) {
        return;
    }
    for unicast in [false, true] {
        println!("unicast: {unicast}");
        let mut lan = Lan::new();
        let [one, two] = [("one", 2), ("two", 3)].map(|(name, number)| lan.join(name, number));
        lan.real(11);
        lan.real(12);
        let more = match unicast {
            false => "peers = [\"192.0.2.3\", \"fe80::3\"]",
            true => "peers = [\"192.0.2.3\", \"2001:db8::3\"]\nunicast = true",
        };
        let mut weir = Weir::start(&one, &config(150, more));
        soon_is(&weir, "active");

        // weir is active, and the other one believes it, until it is no more.
        let dir = tempfile::tempdir().unwrap();
        let said = || fs::read_to_string(dir.path().join("said")).unwrap_or_default();
        let mut other = keepalived(&dir, &two, 100, unicast);
        soon("keepalived to be there", || {
            (said().matches("Entering BACKUP STATE").count() >= 2).then_some(())
        });
        let begun = Instant::now();
        while begun.elapsed() < 2 * bound(100) {
            assert!(has_none(&two), "{}", said());
            std::thread::sleep(Duration::from_millis(100));
        }
        weir.kill();
        soon("keepalived to take over", || has_all(&two).then_some(()));
        weir.run();
        soon_is(&weir, "active");
        soon("keepalived to give up", || has_none(&two).then_some(()));

        // It gives up by itself, and comes back above weir.
        other.signal(15).unwrap();
        other.wait(SOON).unwrap();
        let mut other = keepalived(&dir, &two, 200, unicast);
        soon("keepalived to take over", || has_all(&two).then_some(()));
        soon_is(&weir, "backup");
        for router in routers(&weir) {
            assert_eq!(router["active_priority"], 200, "{router}");
        }
        assert!(has_none(&one));
        other.signal(15).unwrap();
        other.wait(SOON).unwrap();
        let begun = Instant::now();
        soon_is(&weir, "active");
        assert!(begun.elapsed() < SHORTLY, "{:?}", begun.elapsed());
        for refused in ["ttl", "checksum", "malformed", "version", "stranger"] {
            let count = weir.metric("weir_vrrp_refused_total", &["eth0", refused]);
            assert_eq!(count.unwrap_or_default(), 0, "{refused}");
        }
        assert_eq!(alerts(&weir), "[]");

        // Version 2, which is keepalived's default: neither hears the other over IPv4.
        let mut other = keepalived_of_version(2, &dir, &two, 200, unicast);
        soon("an alert", || {
            let told = "192.0.2.3 on eth0 speaks another version of VRRP than 3 about id 51";
            alerts(&weir).contains(told).then_some(())
        });
        other.signal(15).unwrap();
        other.wait(SOON).unwrap();
        soon("no alert", || (alerts(&weir) == "[]").then_some(()));
    }
}

/// An advertisement of the highest priority, as anybody can write it.
struct Forged {
    id: u8,
    ttl: u8,
    from: [&'static str; 2],
    is_damaged: bool,
    priority: u8,
}

const FORGED: Forged = Forged {
    id: 51,
    ttl: 255,
    from: ["192.0.2.3", "fe80::3"],
    is_damaged: false,
    priority: 255,
};

impl Forged {
    fn frames(&self, count: usize) -> Vec<Vec<u8>> {
        let groups: [IpAddr; 2] = [GROUP_V4.into(), GROUP_V6.into()];
        let families = self.from.iter().zip(groups).zip(VIP);
        let frames = families.map(|((from, to), vip)| {
            let advertisement = Advertisement {
                id: self.id,
                priority: self.priority,
                interval: INTERVAL,
                addresses: vec![addr(vip)],
            };
            let from = addr(from);
            let mut message = advertisement.write(from, to, Checksum::WithPseudoHeader);
            message[7] ^= u8::from(self.is_damaged);
            let mac = match to {
                IpAddr::V4(_) => [1, 0, 0x5e, 0, 0, 0x12],
                IpAddr::V6(_) => [0x33, 0x33, 0, 0, 0, 0x12],
            };
            Packet::eth_between([2, 0, 0, 0, 0, 9], mac)
                .ip(from, to)
                .ttl(self.ttl)
                .protocol(PROTOCOL)
                .payload(&message)
                .build()
        });
        frames.flat_map(|frame| vec![frame; count]).collect()
    }
}

#[test]
fn root_forged_advertisements_are_refused_and_counted() {
    if skipped(&["ip"]) {
        return;
    }
    let mut lan = Lan::new();
    let (host, other) = (lan.join("host", 2), lan.join("other", 9));
    lan.wire(&host, &other);
    let text = format!(
        "interfaces = [\"eth0\", \"eth1\"]\nbackend = \"tcx\"\n[vrrp.edge]\nid = 51\ninterface = \"eth0\"\n\
         addresses = [\"{}\", \"{}\"]\ninterval = {INTERVAL}\npeers = [\"192.0.2.3\", \"fe80::3\"]",
        VIP[0], VIP[1]
    );
    let weir = Weir::start(&host, &text);
    soon_is(&weir, "active");
    let send = |dev: &str, forged: &Forged, count: usize| {
        let frames = forged.frames(count);
        let all = frames.iter().map(Vec::as_slice);
        let sent = traffic::send_frames(&other, dev, all).unwrap();
        assert_eq!(sent, 2 * count as u64);
    };
    let refused = |why: &str| {
        let labels = ["eth0", why];
        weir.metric("weir_vrrp_refused_total", &labels)
            .unwrap_or_default()
    };
    for (why, counted, forged) in [
        ("ttl", 100, Forged { ttl: 254, ..FORGED }),
        (
            "checksum",
            100,
            Forged {
                is_damaged: true,
                ..FORGED
            },
        ),
        ("unknown-id", 100, Forged { id: 52, ..FORGED }),
        (
            "stranger",
            100,
            Forged {
                from: ["192.0.2.9", "fe80::9"],
                ..FORGED
            },
        ),
        // (Over IPv4 the kernel drops those itself.)
        (
            "own-address",
            50,
            Forged {
                from: ["192.0.2.2", "fe80::2"],
                ..FORGED
            },
        ),
    ] {
        send("eth0", &forged, 50);
        soon(&format!("all of {why} to be counted"), || {
            (refused(why) == counted).then_some(())
        });
    }
    // What is no advertisement at all.
    let packet = |len: usize| {
        let ip = Packet::eth_between([2, 0, 0, 0, 0, 9], [1, 0, 0x5e, 0, 0, 0x12])
            .ip(addr("192.0.2.3"), GROUP_V4.into());
        ip.ttl(255)
            .protocol(PROTOCOL)
            .payload(&vec![0x31; len])
            .build()
    };
    let frames: Vec<_> = (0..8).map(packet).collect();
    let all = frames.iter().map(Vec::as_slice);
    assert_eq!(traffic::send_frames(&other, "eth0", all).unwrap(), 8);
    soon("all of them to be counted", || {
        (refused("malformed") == 8).then_some(())
    });
    // On another interface nobody listens.
    send("eth1", &FORGED, 50);
    let state = |weir: &Weir| {
        let routers = routers(weir);
        let values = routers.iter().map(|router| {
            let [state, count] = ["state", "transitions"].map(|key| router[key].to_string());
            (state, count)
        });
        values.collect::<Vec<_>>()
    };
    let once = ("\"active\"".to_owned(), "1".to_owned());
    assert_eq!(state(&weir), [once.clone(), once]);
    assert!(has_all(&host));

    // A peer that is active as well, and goes on, is told of until it does not.
    send(
        "eth0",
        &Forged {
            priority: 50,
            ..FORGED
        },
        5,
    );
    soon("it to be told", || {
        let told = "two hosts are active, this one (priority 100) and 192.0.2.3 (priority 50)";
        alerts(&weir).contains(told).then_some(())
    });
    assert!(is(&weir, "active"));
    soon("it to be over", || {
        (!alerts(&weir).contains("two hosts")).then_some(())
    });
    // One that outranks it has the addresses, until it is silent: there is no proof of who
    // it is.
    send("eth0", &FORGED, 1);
    soon("it to give up and to take over again", || {
        let all = routers(&weir);
        let is_back = |router: &Value| router["state"] == "active" && router["transitions"] == 3;
        all.iter().all(is_back).then_some(())
    });
    assert!(
        weir.said()
            .contains("backup, 192.0.2.3 is active (priority 255)")
    );
}
