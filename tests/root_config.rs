//! What an administrator does to a running daemon, right and wrong: addresses
//! that cannot be banned, reloads, a second daemon, the cap, bad requests, and
//! the privileges that it keeps.

mod common;

use std::{fs, net::IpAddr, os::unix::fs::PermissionsExt, process::Command, time::Duration};

use common::{
    ATTACKER, Answer, CUSTOMER, GATEWAY, HOST, OTHER, TestNet, WEIR, Weir, addr, at, skipped, soon,
};

const CONFIG: &str = "interfaces = [\"eth0\"]\n[jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 3\n";

#[test]
fn root_nobody_bans_the_host_or_its_gateway() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let weir = Weir::start(&net.host, CONFIG);
    for (who, why) in [
        (HOST[0], "address of this host"),
        (HOST[1], "address of this host"),
        ("::ffff:192.0.2.1", "address of this host"),
        (GATEWAY[0], "default gateway"),
        (GATEWAY[1], "default gateway"),
        ("127.0.0.1", ""),
        ("::1", ""),
        ("0.0.0.0", ""),
        ("::", ""),
        ("fe80::/64", "one by one"),
        ("ff02::1", ""),
        ("224.0.0.1", ""),
        ("255.255.255.255", ""),
        ("0.0.0.0/0", ""),
        ("::/0", ""),
        ("0.0.0.0/1", "this network"),
        ("fe80::/9", "one by one"),
        ("198.51.100.256", ""),
        ("198.51.100.7/33", ""),
        ("198.51.100.7/24", ""),
        ("example.com", ""),
        ("", ""),
        ("198.51.100.7\u{1b}[2J", ""),
    ] {
        let answer = weir.ask(&["ban", "--", who]);
        answer.refused(&[why]);
        assert!(!answer.err.contains('\u{1b}'), "{answer:?}");
    }
    assert!(weir.banned().is_empty());
    // By the log neither: the gateway fails and fails, and stays.
    weir.log_failures(GATEWAY.map(addr), 5);
    weir.log_failures(ATTACKER.map(addr), 5);
    soon("the attackers' bans", || {
        (weir.banned().len() == 2).then_some(())
    });
    let _server = net.server();
    for family in [0, 1] {
        net.serves(GATEWAY[family], at(family));
        assert!(!net.connects(ATTACKER[family], at(family)));
    }
    assert!(weir.json(&["status", "sshd"])["ignored"].as_u64() >= Some(10));
}

/// A jail whose log is not there bans nobody, whatever is attached.
#[test]
fn root_without_a_log_to_read_the_host_is_not_protected() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let none = "paths = [\"/nonexistent/auth.log\"]";
    let blind = CONFIG.replace("paths = [\"{log}\"]", none);
    let mut weir = Weir::start(&net.host, &blind);
    let protection = |weir: &Weir| {
        let status = weir.json(&["status"]);
        let text = |key: &str| status["protection"][key].as_str().unwrap().to_owned();
        (text("state"), text("why"))
    };
    let (state, why) = protection(&weir);
    assert_eq!(state, "not-protected", "{why}");
    assert!(why.contains("no log of any jail can be read"), "{why}");
    weir.ask(&["status"])
        .says_no(&["NOT PROTECTED: no log of any jail can be read"]);
    // What is banned is dropped all the same.
    weir.ask(&["ban", ATTACKER[0]]).done();
    let (state, why) = protection(&weir);
    let both = why.ends_with("; nobody else is banned, and the 1 ban in force is enforced");
    assert!(state == "not-protected" && both, "{why}");
    weir.ask(&["unban", ATTACKER[0]]).done();
    // Somebody else denies, or one of two logs is there.
    let other = "[jail.other]\nfilter = \"sshd\"\npaths = [\"{log}\"]\n";
    for more in ["[geofence]\ndeny = [\"country:RU\"]\n", other] {
        weir.configure(&format!("{blind}{more}"));
        weir.ask(&["reload"]).done();
        assert_eq!(protection(&weir).0, "protected", "{more}");
    }
    weir.configure(CONFIG);
    weir.ask(&["reload"]).done();
    assert_eq!(protection(&weir).0, "protected");
    // Its log is gone when it starts, and comes back.
    fs::remove_file(weir.log()).unwrap();
    weir.kill();
    weir.run();
    let (state, why) = protection(&weir);
    assert_eq!(state, "not-protected", "{why}");
    fs::write(weir.log(), "").unwrap();
    soon("the log to be found", || {
        (protection(&weir).0 == "protected").then_some(())
    });
}

/// A system call that a signal cuts short is no trouble.
#[test]
fn root_a_daemon_that_was_stopped_goes_on_without_an_alert() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let weir = Weir::start(&net.host, CONFIG);
    let pid = weir.pid().to_string();
    for _ in 0..10 {
        for signal in ["STOP", "CONT"] {
            let sent = Command::new("kill").args(["-s", signal, &pid]).status();
            assert!(sent.unwrap().success());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    weir.log_failures(ATTACKER.map(addr), 3);
    soon("the bans of one that goes on", || {
        (weir.banned().len() == 2).then_some(())
    });
    let said = weir.said();
    assert!(!said.contains("Interrupted"), "{said}");
}

#[test]
fn root_addresses_change() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let weir = Weir::start(&net.host, CONFIG);
    // Banned first, then it becomes the host's own: packets of it pass (a
    // neighbour's echo of it must not cut the host off), new bans are refused.
    let later = ["203.0.113.77", "2001:db8:c:77::1"];
    for who in later {
        weir.ask(&["ban", who]).done();
        assert_eq!(weir.why(who)["verdict"], "banned-all");
    }
    let _server = net.server();
    for family in [0, 1] {
        assert!(!net.connects(later[family], at(family)));
    }
    net.host
        .ip(&[
            format!("addr add {}/32 dev lo", later[0]),
            format!("addr add {}/128 dev lo nodad", later[1]),
        ])
        .unwrap();
    for who in later {
        soon("the new address to be exempt", || {
            (weir.why(who)["verdict"] == "allowed").then_some(())
        });
        weir.ask(&["ban", who]).refused(&["address of this host"]);
    }
    net.host
        .ip(&[
            format!("addr del {}/32 dev lo", later[0]),
            format!("addr del {}/128 dev lo", later[1]),
        ])
        .unwrap();
    for (family, who) in later.iter().enumerate() {
        soon("the old address to be bannable", || {
            (weir.why(who)["verdict"] == "banned-all").then_some(())
        });
        assert!(!net.connects(who, at(family)));
    }
    // Another gateway.
    let new = "192.0.2.77";
    weir.ask(&["ban", new]).done();
    net.host
        .ip(&[format!("route replace default via {new} dev eth0")])
        .unwrap();
    soon("the new gateway to be exempt", || {
        (weir.why(new)["verdict"] == "allowed").then_some(())
    });
    weir.ask(&["ban", new]).refused(&["default gateway"]);
    weir.ask(&["ban", GATEWAY[0]]).done();
}

#[test]
fn root_a_reload_is_all_or_nothing() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let weir = Weir::start(&net.host, CONFIG);
    weir.log_failures([addr(ATTACKER[0])], 3);
    soon("a ban", || (weir.banned().len() == 1).then_some(()));
    weir.log_failures([addr(OTHER[0])], 2);
    soon("five findings", || {
        (weir.json(&["status", "sshd"])["findings"] == 5).then_some(())
    });
    let _server = net.server();
    for (wrong, words) in [
        (
            "max_retyr = 1\n",
            &["weir.toml:9", "max_retyr", "max_retry"][..],
        ),
        ("ban_time = \"soon\"\n", &["weir.toml:9", "ban_time"]),
        ("[jail.web]\n", &["weir.toml:9", "web", "sshd"]),
        ("ports = [\"ssh\"]\n", &["weir.toml:9", "ports"]),
        ("\u{0}", &["weir.toml:9"]),
    ] {
        weir.configure(&format!("allow = [\"{}\"]\n{CONFIG}{wrong}", ATTACKER[0]));
        weir.ask(&["check"]).is_mistaken(words);
        weir.ask(&["reload"]).refused(words);
        let jail = weir.json(&["status", "sshd"]);
        assert_eq!(jail["max_retry"], 3, "{jail}");
        assert_eq!(jail["findings"], 5, "{jail}");
        assert!(
            !net.connects(ATTACKER[0], at(0)),
            "half a reload was done: {wrong:?}"
        );
    }
    weir.configure(&format!("ipv4_length = 24\n{CONFIG}"));
    weir.ask(&["reload"]).refused(&["ipv4_length", "restart"]);
    fs::remove_file(weir.path("weir.toml")).unwrap();
    weir.ask(&[
        "reload",
        "--socket",
        weir.path("weir.sock").to_str().unwrap(),
    ])
    .refused(&["weir.toml"]);

    // And a good one keeps counts and bans.
    weir.configure(&format!("allow = [\"{}\"]\n{CONFIG}", CUSTOMER[0]));
    weir.ask(&["reload"]).done();
    assert_eq!(weir.banned(), [ATTACKER[0]]);
    weir.ask(&["ban", CUSTOMER[0]]).refused(&["allow list"]);
    weir.log_failures([addr(OTHER[0])], 1);
    soon("the third failure to count", || {
        (weir.banned().len() == 2).then_some(())
    });
    assert!(!net.connects(OTHER[0], at(0)));
    net.serves(CUSTOMER[0], at(0));
}

/// What the next backend has not is taken away before it comes, in one reload.
#[test]
fn root_one_reload_leaves_a_feature_and_moves_to_a_backend_without_it() {
    if skipped(&["nft"]) {
        return;
    }
    let net = TestNet::new();
    let with = format!(
        "backend = \"tcx\"\n{CONFIG}[decoy]\nports = [\"23/tcp\"]\n[geofence]\ndeny = [\"country:AQ\"]\n"
    );
    let weir = Weir::start(&net.host, &with);
    weir.ask(&["ban", ATTACKER[0]]).done();
    let _server = net.server();
    for backend in ["netfilter", "nft"] {
        weir.configure(&format!("backend = \"{backend}\"\n{CONFIG}"));
        weir.ask(&["reload"]).done();
        assert_eq!(weir.attachment("eth0").0, backend);
        assert!(!net.connects(ATTACKER[0], at(0)), "{backend}");
        net.serves(CUSTOMER[0], at(0));
        // It cannot have both, and stays as it is.
        weir.configure(&with.replace("tcx", backend));
        weir.ask(&["reload"]).refused(&["decoy"]);
        assert_eq!(weir.attachment("eth0").0, backend);
        weir.configure(&with);
        weir.ask(&["reload"]).done();
        assert_eq!(weir.attachment("eth0").0, "tcx");
        let status = weir.json(&["status"]);
        assert_eq!(status["decoy"]["open"], 1, "{status}");
        assert_eq!(status["alerts"], serde_json::json!([]));
    }
}

#[test]
fn root_a_second_daemon_is_refused() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::start(&net.host, CONFIG);
    weir.ask(&["ban", ATTACKER[0]]).done();
    let pid = weir.pid().to_string();
    // The same files; then the same pins with other files.
    weir.ask(&["daemon"])
        .refused(&["another weir daemon", &pid]);
    let mut second = Weir::new(&net.host, CONFIG);
    second.instance.clone_from(&weir.instance);
    second.configure(CONFIG);
    second
        .fails()
        .refused(&["another weir daemon holds this instance", &pid]);
    assert_eq!(weir.banned(), [ATTACKER[0]]);
    let _server = net.server();
    assert!(!net.connects(ATTACKER[0], at(0)));
    // An instance of its own is welcome, and both are obeyed.
    let third = Weir::start(&net.host, CONFIG);
    third.ask(&["ban", OTHER[0]]).done();
    assert!(!net.connects(OTHER[0], at(0)));
    assert!(!net.connects(ATTACKER[0], at(0)));
    net.serves(CUSTOMER[0], at(0));
    drop(third);
    net.serves(OTHER[0], at(0));
    weir.stop();
    drop(second);
}

/// With files of its own, and the other one's socket.
#[test]
fn root_a_second_daemon_takes_no_socket_away() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::start(&net.host, CONFIG);
    let mut second = Weir::new(&net.host, CONFIG);
    let config = fs::read_to_string(second.path("weir.toml")).unwrap();
    let (own, others) = (second.path("weir.sock"), weir.path("weir.sock"));
    let config = config.replace(own.to_str().unwrap(), others.to_str().unwrap());
    fs::write(second.path("weir.toml"), config).unwrap();
    let pid = format!("another process (pid {})", weir.pid());
    second.fails().refused(&[others.to_str().unwrap(), &pid]);
    assert!(!second.pins().exists());
    assert_eq!(weir.json(&["status"])["pid"], weir.pid());
    // What a dead daemon left is in nobody's way.
    weir.kill();
    assert!(others.exists());
    second.run();
    assert_eq!(weir.json(&["status"])["pid"], second.pid());
}

/// Whoever is told that nothing is attached, while something is, is misled.
#[test]
fn root_detach_says_what_it_did_not_do() {
    if skipped(&["setpriv"]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::start(&net.host, CONFIG);
    weir.ask(&["ban", ATTACKER[0]]).done();
    weir.stop();
    let _server = net.server();
    let enforced = || assert!(!net.connects(ATTACKER[0], at(0)));

    // Root by its number alone.
    let mut powerless = Command::new("setpriv");
    powerless
        .args(["--bounding-set=-all", "--inh-caps=-all", WEIR, "--config"])
        .arg(weir.path("weir.toml"))
        .arg("detach");
    let answer = net.host.enter(move || powerless.output()).unwrap();
    Answer::of(answer.unwrap()).refused(&["cannot detach: it needs root"]);
    enforced();
    // What is no configuration names no instance.
    fs::write(weir.path("weir.toml"), "interfaces = [\n").unwrap();
    weir.ask(&["detach"])
        .refused(&["weir.toml", "weir detach --instance NAME"]);
    enforced();
    fs::remove_file(weir.path("weir.toml")).unwrap();
    weir.ask(&["detach"])
        .refused(&["weir.toml: cannot read", "weir detach --instance NAME"]);
    enforced();
    // Another one is not this one.
    fs::write(weir.path("weir.toml"), "instance = \"nosuch\"\n").unwrap();
    let answer = weir.ask(&["detach"]);
    answer.says_no(&["\"nosuch\": nothing was attached", &weir.instance]);
    enforced();
    // A mistake elsewhere does not hide whose it is.
    weir.configure(&format!("max_bnas = 7\n{CONFIG}"));
    let said = weir.ask(&["detach"]).done().out;
    assert!(said.contains("detached from eth0"), "{said}");
    assert!(net.connects(ATTACKER[0], at(0)));
}

/// What it has in the kernel for programs and tokens would be gone, and it would not notice.
#[test]
fn root_detach_is_refused_beside_a_daemon_that_drops_nothing() {
    let net = TestNet::new();
    let mut weir = Weir::start(&net.host, &format!("backend = \"dry-run\"\n{CONFIG}"));
    let pid = format!("pid {}", weir.pid());
    for args in [&["detach"][..], &["detach", "--instance", &weir.instance]] {
        weir.ask(args)
            .refused(&["another weir daemon holds this instance", &pid]);
    }
    weir.stop();
    // Who has the number now that a daemon noted is no daemon for it, weir detach itself included.
    let mut noted = Command::new("sh");
    noted
        .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
        .arg(weir.path("state/weir.lock"))
        .args([WEIR, "--config"])
        .arg(weir.path("weir.toml"))
        .args(["detach", "--instance", &weir.instance]);
    let answer = net.host.enter(move || noted.output()).unwrap();
    Answer::of(answer.unwrap()).done();
    weir.detach().done();
}

/// A daemon would put everything back within a second, so detach is refused beside one.
#[test]
fn root_detach_is_refused_beside_a_daemon() {
    if skipped(&["nft", "ipset", "iptables-restore"]) {
        return;
    }
    for backend in ["tcx", "nft", "ipset"] {
        let net = TestNet::new();
        let config = format!("backend = \"{backend}\"\n{CONFIG}");
        let mut weir = Weir::start(&net.host, &config);
        weir.ask(&["ban", ATTACKER[0]]).done();
        let pid = format!("pid {}", weir.pid());
        for args in [&["detach"][..], &["detach", "--instance", &weir.instance]] {
            weir.ask(args)
                .refused(&["another weir daemon holds this instance", &pid]);
        }
        // Nor does another daemon begin beside it.
        let mut second = Weir::new(&net.host, &config);
        let own = std::mem::replace(&mut second.instance, weir.instance.clone());
        second.configure(&config);
        second
            .fails()
            .refused(&["another weir daemon holds this instance", &pid]);
        second.instance = own;
        let _server = net.server();
        assert!(!net.connects(ATTACKER[0], at(0)), "{backend}");
        weir.stop();
        let said = weir.detach().done().out;
        assert!(!said.contains("nothing"), "{backend}: {said}");
        assert!(net.connects(ATTACKER[0], at(0)), "{backend}");
    }
}

#[test]
fn root_the_cap_evicts_within_the_producer() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let config = CONFIG.replace("max_retry = 3", "max_retry = 1\nban_time = \"1h\"");
    let weir = Weir::start(&net.host, &format!("max_bans = 64\n{config}"));
    let manual: Vec<IpAddr> = (1..=20)
        .map(|n| addr(&format!("203.0.113.{}", n + 100)))
        .collect();
    weir.ban_all(manual.iter().copied());
    let attackers = |range: std::ops::RangeInclusive<u8>| {
        range
            .map(|n| addr(&format!("198.51.100.{n}")))
            .collect::<Vec<_>>()
    };
    weir.log_failures(attackers(1..=44), 1);
    soon("a full table", || (weir.banned().len() == 64).then_some(()));
    assert_eq!(weir.json(&["status"])["usage"]["evicted"], 0);
    weir.log_failures(attackers(45..=60), 1);
    soon("sixteen evictions", || {
        (weir.json(&["status"])["usage"]["evicted"] == 16).then_some(())
    });
    let bans = weir.banned();
    assert_eq!(bans.len(), 64);
    for who in manual.iter().chain(&attackers(45..=60)) {
        assert!(bans.contains(&who.to_string()), "{who} is not banned");
    }
    let status = weir.json(&["status"]);
    let alerts = status["alerts"].as_array().unwrap();
    assert_eq!(alerts.len(), 1, "{status}");
    assert!(alerts[0].to_string().contains("max_bans"), "{status}");
    // The oldest of the jail, each told.
    for n in 1..=16 {
        let told = format!("unban 198.51.100.{n}, jail sshd: evicted");
        soon(&told, || weir.said().contains(&told).then_some(()));
    }
    // For a manual ban nothing is evicted: it is said.
    weir.ask(&["ban", "203.0.113.200"])
        .refused(&["the ban table is full", "max_bans"]);
    assert_eq!(weir.banned().len(), 64);
    let _server = net.server();
    assert!(!net.connects("203.0.113.101", at(0)));
    assert!(!net.connects("198.51.100.60", at(0)));
    net.serves(CUSTOMER[0], at(0));
    // With room again the alert is over.
    for n in 45..=48 {
        weir.ask(&["unban", &format!("198.51.100.{n}")]).done();
    }
    soon("no alert", || {
        let status = weir.json(&["status"]);
        status["alerts"]
            .as_array()
            .unwrap()
            .is_empty()
            .then_some(())
    });
}

#[test]
fn root_bad_requests_are_answered_and_do_no_harm() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let weir = Weir::start(&net.host, CONFIG);
    let post = |body: &str| {
        format!(
            "POST /v1/bans HTTP/1.1\r\nhost: weir\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: weir\r\n\r\n");
    for (request, status) in [
        (post("{}"), 400),
        (post("[]"), 400),
        (post("{\"subject\":7}"), 400),
        (post("{\"subject\":\"198.51.100.7\",\"fro\":\"1h\"}"), 400),
        (post("{\"subject\":\"198.51.100.7\",\"for\":\"-1s\"}"), 400),
        (post("{\"subject\":\"198.51.100.7\",\"for\":\"0s\"}"), 400),
        (
            post("{\"subject\":\"198.51.100.7\",\"port\":\"0/tcp\"}"),
            400,
        ),
        (
            post("{\"subject\":\"198.51.100.7\",\"port\":\"99999\"}"),
            400,
        ),
        (
            post(&format!(
                "{{\"subject\":\"198.51.100.7\",\"reason\":\"{}\"}}",
                "x".repeat(2000)
            )),
            400,
        ),
        (post(&"[".repeat(60_000)), 400),
        (post(&" ".repeat(70_000)), 413),
        (post("\u{0}"), 400),
        (get("/v1/why/nobody"), 400),
        (get("/v1/why/198.51.100.7?port=x"), 400),
        (get("/v1/bans?limit=-1"), 400),
        (get("/v1/bans?limt=1"), 400),
        (get("/v2/bans"), 404),
        (get("/v1/bans/../../etc/passwd"), 405),
        ("PUT /v1/bans HTTP/1.1\r\nhost: weir\r\n\r\n".into(), 405),
        (
            "DELETE /v1/bans/198.51.100.7 HTTP/1.1\r\nhost: weir\r\n\r\n".into(),
            404,
        ),
        (
            "DELETE /v1/bans/%ff HTTP/1.1\r\nhost: weir\r\n\r\n".into(),
            400,
        ),
        ("\u{16}\u{3}\u{1} no http\r\n\r\n".into(), 400),
    ] {
        let answer = weir.raw(request.as_bytes());
        let wanted = format!("HTTP/1.1 {status} ");
        let shown: String = request.chars().take(120).collect();
        assert!(
            answer.starts_with(&wanted),
            "{shown:?}: {answer:?}, not {status}"
        );
    }
    assert!(weir.banned().is_empty());
    // Slow and silent clients keep nobody out.
    let idle: Vec<_> = (0..40)
        .map(|_| std::os::unix::net::UnixStream::connect(weir.path("weir.sock")).unwrap())
        .collect();
    weir.ask(&["ban", ATTACKER[0]]).done();
    drop(idle);
    let mode = fs::metadata(weir.path("weir.sock"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o660);
}

/// CAP_DAC_READ_SEARCH, CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF (linux/capability.h).
const KEPT: u64 = 1 << 2 | 1 << 12 | 1 << 38 | 1 << 39;

#[test]
fn root_everything_works_with_four_capabilities() {
    if skipped(&[]) {
        return;
    }
    let mut net = TestNet::new();
    let mut weir = Weir::start(&net.host, &format!("max_bans = 100000\n{CONFIG}"));
    let exactly_four = |pid: u32| {
        for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
            let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            let set = |name: &str| {
                let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap();
                u64::from_str_radix(line.trim(), 16).unwrap()
            };
            assert_eq!(set("CapEff:"), KEPT, "{status}");
            assert_eq!(set("CapPrm:"), KEPT, "{status}");
            assert_eq!((set("CapInh:"), set("CapAmb:")), (0, 0), "{status}");
            assert_eq!(set("CapBnd:") & !KEPT, 0, "{status}");
            assert!(status.contains("NoNewPrivs:\t1"), "{status}");
        }
    };
    exactly_four(weir.pid());
    let _server = net.server();
    weir.log_failures(ATTACKER.map(addr), 3);
    soon("two bans", || (weir.banned().len() == 2).then_some(()));
    for family in [0, 1] {
        assert!(!net.connects(ATTACKER[family], at(family)));
        net.serves(CUSTOMER[family], at(family));
    }
    // Growth: new maps and programs are loaded, links updated.
    let many = (0..20_000_u32).map(|n| IpAddr::from((0xc612_0000 + n).to_be_bytes()));
    weir.log_failures(many, 3);
    soon("growth", || {
        let usage = weir.json(&["status"])["usage"].clone();
        (usage["generation"].as_u64() > Some(1) && usage["bans"] == 20_002).then_some(())
    });
    assert!(!net.connects("198.18.78.31", at(0)));
    // The interface goes and comes back: attached anew.
    net.veth.delete().unwrap();
    soon("the interface to be missed", || {
        (weir.attachment("eth0").0 == "none").then_some(())
    });
    net.veth.create().unwrap();
    soon("the interface to be protected", || {
        (weir.attachment("eth0").0 == "tcx").then_some(())
    });
    for family in [0, 1] {
        assert!(!net.connects(ATTACKER[family], at(family)));
        net.serves(CUSTOMER[family], at(family));
    }
    // Another hook by reload, the allow list, an unban.
    weir.configure(&format!("backend = \"xdp\"\nmax_bans = 100000\n{CONFIG}"));
    weir.ask(&["reload"]).done();
    assert_eq!(weir.attachment("eth0").0, "xdp");
    assert!(!net.connects(ATTACKER[0], at(0)));
    weir.ask(&["allow", "add", ATTACKER[0]]).done();
    net.serves(ATTACKER[0], at(0));
    weir.ask(&["unban", "2001:db8:bad::/64"]).done();
    net.serves(ATTACKER[1], at(1));
    // A rotated log that only root may read.
    fs::rename(weir.log(), weir.path("auth.log.1")).unwrap();
    fs::write(weir.log(), "").unwrap();
    fs::set_permissions(weir.log(), fs::Permissions::from_mode(0o600)).unwrap();
    weir.log_failures([addr(OTHER[0])], 3);
    soon("a ban from the new log", || {
        (!net.connects(OTHER[0], at(0))).then_some(())
    });
    exactly_four(weir.pid());
    // The next start takes over under the same four.
    weir.kill();
    weir.run();
    exactly_four(weir.pid());
    assert!(!net.connects(OTHER[0], at(0)));
    assert!(weir.json(&["status"])["usage"]["bans"].as_u64() > Some(20_000));
}
