//! Whom a log names otherwise than by an address: by a prefix, which is banned as
//! a whole, or by a host name, whose addresses a real BIND knows.

mod common;

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    net::{SocketAddr, UdpSocket},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use common::{ATTACKER, CUSTOMER, GATEWAY, OTHER, SOON, TestNet, Weir, addr, at, skipped, soon};
use weir_netlab::{Child, FakeHost};

/// Lines of the log as a program with a syslog daemon behind it writes them.
fn log(weir: &Weir, messages: &[&str]) {
    let mut log = OpenOptions::new().append(true).open(weir.log()).unwrap();
    for message in messages {
        let now = jiff::Timestamp::now();
        writeln!(log, "{now:.0} host quotad[7]: {message}").unwrap();
    }
}

/// Waits for these bans, and no others.
#[track_caller]
fn bans_are(weir: &Weir, expected: &[&str]) {
    let mut expected: Vec<_> = expected.iter().map(|ban| (*ban).to_owned()).collect();
    expected.sort();
    soon(&format!("the bans {expected:?}"), || {
        let mut banned = weir.banned();
        banned.sort();
        (banned == expected).then_some(())
    });
}

#[track_caller]
fn alert_of(weir: &Weir, about: &str) -> String {
    soon(&format!("the alert {about}"), || {
        let status = weir.json(&["status"]);
        let alerts = status["alerts"].as_array()?;
        let alert = alerts.iter().find(|alert| alert["about"] == about)?;
        Some(alert["message"].as_str()?.to_owned())
    })
}

#[test]
fn root_a_prefix_that_a_log_names_is_banned_as_a_whole() {
    let net = TestNet::new();
    let _server = net.server();
    let mut weir = Weir::start(
        &net.host,
        r#"
        interfaces = ["eth0"]
        allow = ["203.0.113.5", "2001:db8:c::5"]
        [filter.quota]
        identifiers = ["quotad"]
        patterns = ["network <prefix> is over quota"]
        [jail.quota]
        paths = ["{log}"]
        max_retry = 2
        "#,
    );
    log(
        &weir,
        &[
            "network 198.51.100.0/24 is over quota",
            "network 2001:db8:bad::/48 is over quota",
            // All hold somebody exempt, are too wide, or are no prefixes.
            "network 203.0.113.0/24 is over quota",
            "network 2001:db8:c::/48 is over quota",
            "network 0.0.0.0/0 is over quota",
            "network ::/0 is over quota",
            "network 198.51.100.0/33 is over quota",
        ],
    );
    soon("all to be read", || {
        let refused = weir.metric("weir_jail_refused_findings_total", &["quota"]);
        (refused == Some(5)).then_some(())
    });
    assert_eq!(weir.banned(), [""; 0]);
    let held = alert_of(&weir, "jail:quota:holds-exempt");
    let said = "such as 203.0.113.0/24, which holds 203.0.113.5.";
    assert!(held.contains(said), "{held}");
    let refused = alert_of(&weir, "jail:quota:refused");
    assert!(refused.contains("network 0.0.0.0/0"), "{refused}");
    for family in [0, 1] {
        net.serves(OTHER[family], at(family));
    }

    // What is counted is there after a restart; bits behind the length mean the
    // same prefix.
    weir.stop();
    weir.run();
    log(
        &weir,
        &[
            "network 198.51.100.77/24 is over quota",
            "network 2001:db8:bad:7::/48 is over quota",
        ],
    );
    bans_are(&weir, &["198.51.100.0/24", "2001:db8:bad::/48"]);
    for family in [0, 1] {
        net.drops_soon(ATTACKER[family]);
        net.drops_soon(OTHER[family]);
        net.serves(CUSTOMER[family], at(family));
    }
    let dropped = weir.why(ATTACKER[1]);
    assert_eq!(dropped["dropped"], true, "{dropped}");
}

/// A name server outside that knows the hosts of the domain `test`.
struct Bind(Child);

impl Bind {
    fn start(net: &TestNet, dir: &Path) -> Self {
        let [attacker, other, customer] = [ATTACKER, OTHER, CUSTOMER];
        let zone = format!(
            "$TTL 60\n@ SOA ns hostmaster 1 60 60 60 60\n@ NS ns\n\
             ns A {0}\nns AAAA {1}\n\
             attacker A {2}\nattacker AAAA {3}\n\
             other CNAME another\nanother A {4}\nanother AAAA {5}\n\
             customer A {6}\ncustomer AAAA {7}\n\
             none TXT none\n",
            GATEWAY[0],
            GATEWAY[1],
            attacker[0],
            attacker[1],
            other[0],
            other[1],
            customer[0],
            customer[1],
        );
        let config = format!(
            "options {{ directory \"{}\"; pid-file none; session-keyfile none;\n\
                 listen-on {{ any; }}; listen-on-v6 {{ any; }};\n\
                 recursion no; dnssec-validation no; notify no; }};\n\
             controls {{ }};\n\
             zone \"test\" {{ type primary; file \"zone\"; }};\n",
            dir.display()
        );
        fs::write(dir.join("zone"), zone).unwrap();
        fs::write(dir.join("named.conf"), config).unwrap();
        let said = dir.join("named.log");
        let mut command = Command::new("/usr/sbin/named");
        command.args(["-g", "-n", "1", "-c"]);
        command
            .arg(dir.join("named.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&said).unwrap());
        let named = Self(net.internet.spawn(command).unwrap());
        soon("named to run", || {
            let said = fs::read_to_string(&said).unwrap();
            said.contains(" running").then_some(())
        });
        named
    }
}

impl Drop for Bind {
    fn drop(&mut self) {
        let _ = self.0.signal(15);
        let _ = self.0.wait(SOON);
    }
}

/// A daemon whose host asks one name server; it has not been started.
fn asking(net: &TestNet, server: &str, config: &str) -> Weir {
    let mut weir = Weir::new(&net.host, config);
    let file = weir.path("resolv.conf");
    let text = format!("nameserver {server}\nsearch test\noptions timeout:30 attempts:1\n");
    fs::write(&file, text).unwrap();
    weir.fake_host = FakeHost::default().instead_of("/etc/resolv.conf", file);
    weir
}

const BY_NAME: &str = r#"
    interfaces = ["eth0"]
    allow = ["203.0.113.5", "2001:db8:c::5"]
    [filter.mail]
    identifiers = ["quotad"]
    patterns = ["<host> failed"]
    [jail.mail]
    paths = ["{log}"]
    max_retry = 2
    "#;

#[test]
fn root_each_address_of_a_host_that_a_log_names_is_banned() {
    if skipped(&["named"]) {
        return;
    }
    // The name server by IPv4, and by IPv6.
    for server in GATEWAY {
        let net = TestNet::new();
        let _server = net.server();
        let mut weir = asking(&net, server, BY_NAME);
        let _bind = Bind::start(&net, weir.dir.path());
        weir.run();
        let failed = |weir: &Weir| weir.metric("weir_jail_failed_names_total", &["mail"]);
        let resolved = |weir: &Weir| weir.metric("weir_jail_resolved_names_total", &["mail"]);
        log(
            &weir,
            &[
                "attacker.test failed",
                "Attacker.TEST. failed",
                // By its other name, and once.
                "other.test failed",
                // Exempt: all of them.
                "customer.test failed",
                "customer.test failed",
                "ns.test failed",
                "ns.test failed",
                // A name without an address, and two that there are not.
                "none.test failed",
                "no-such-host.test failed",
                // Of the domain searched: nobody means it.
                "other failed",
                "other failed",
                // No name.
                "../test failed",
            ],
        );
        bans_are(&weir, &[ATTACKER[0], "2001:db8:bad::/64"]);
        soon("all to have an answer", || {
            let all = (resolved(&weir), failed(&weir));
            (all == (Some(7), Some(4))).then_some(())
        });
        soon("the refused one to be counted", || {
            let refused = weir.metric("weir_jail_refused_findings_total", &["mail"]);
            (refused == Some(1)).then_some(())
        });
        for family in [0, 1] {
            net.drops_soon(ATTACKER[family]);
            net.serves(OTHER[family], at(family));
            net.serves(CUSTOMER[family], at(family));
            let why = weir.why(ATTACKER[family]).to_string();
            assert!(why.contains("by host name attacker.test"), "{why}");
        }
        let said = weir.said();
        let warned = "its log names the host attacker.test";
        assert!(said.contains(warned), "{said}");
        let status = weir.ask(&["status"]).out.replace("\n  ", " ");
        assert!(status.contains("host names: 0 waiting"), "{status}");

        // What was counted by a name is there after a restart.
        weir.stop();
        weir.run();
        log(&weir, &["another.test failed"]);
        bans_are(
            &weir,
            &[
                ATTACKER[0],
                "2001:db8:bad::/64",
                OTHER[0],
                "2001:db8:bad:1::/64",
            ],
        );
    }
}

const BY_FAIL2BAN: &str = r#"
    interfaces = ["eth0"]
    [fail2ban]
    path = "{dir}/f"
    "#;

/// Of a host that a jail of Fail2ban's ignores by name nobody is banned as long as the name
/// server answers, and bans from before it did are lifted.
#[test]
fn root_a_host_that_ignoreip_names_is_not_banned() {
    if skipped(&["named"]) {
        return;
    }
    let net = TestNet::new();
    let _server = net.server();
    let mut weir = asking(&net, GATEWAY[0], "");
    let dir = weir.dir.path().to_owned();
    let filled = |text: &str| text.replace("{dir}", &dir.display().to_string());
    weir.configure(&filled(BY_FAIL2BAN));
    let log_file = weir.log();
    let jails = |ignoreip: &str| {
        let text = format!(
            "[DEFAULT]\nmaxretry = 1\nbantime = 1h\naction = route[blocktype=blackhole]\n\
             [quota]\nenabled = true\nfilter = quota\nlogpath = {}\nignoreip = {ignoreip}\n",
            log_file.display()
        );
        fs::create_dir_all(dir.join("f/filter.d")).unwrap();
        fs::create_dir_all(dir.join("f/action.d")).unwrap();
        fs::write(dir.join("f/jail.conf"), text).unwrap();
        let filter = "[Definition]\nfailregex = quotad\\S+ <ADDR> failed$\n";
        fs::write(dir.join("f/filter.d/quota.conf"), filter).unwrap();
        fs::write(
            dir.join("f/action.d/route.conf"),
            "[Definition]\n[Init]\nblocktype = x\n",
        )
        .unwrap();
    };
    jails("192.0.2.99 customer.test none.test");
    weir.run();
    let fail = |weir: &Weir| {
        let lines = [ATTACKER, CUSTOMER].concat().into_iter();
        let lines: Vec<_> = lines.map(|who| format!("{who} failed")).collect();
        log(weir, &lines.iter().map(String::as_str).collect::<Vec<_>>());
    };
    fail(&weir);
    let everybody = [ATTACKER, CUSTOMER].concat();
    bans_are(&weir, &everybody);
    let alert = alert_of(&weir, "ignoreip:customer.test");
    assert!(alert.contains("cannot be looked up"), "{alert}");
    net.drops_soon(CUSTOMER[0]);

    // The name server comes back.
    let _bind = Bind::start(&net, weir.dir.path());
    bans_are(&weir, &ATTACKER);
    for family in [0, 1] {
        net.drops_soon(ATTACKER[family]);
        net.serves(CUSTOMER[family], at(family));
    }
    soon("the other name to be known", || {
        let alert = alert_of(&weir, "ignoreip:none.test");
        alert.contains("none.test has no address").then_some(())
    });
    // Who is ignored stays so, and it is told. A failure of the second of a ban is not one more.
    let are_spared = |weir: &Weir, from: usize| {
        soon("both to be spared", || {
            fail(weir);
            let said = weir.said()[from..].to_owned();
            let spared = |who: &&str| {
                let about = |line: &&str| line.contains(*who) && line.contains("not banned");
                let mut lines = said.lines().filter(about);
                lines.any(|line| line.contains("that of customer.test in ignoreip"))
            };
            CUSTOMER.iter().all(spared).then_some(())
        });
        bans_are(weir, &ATTACKER);
    };
    are_spared(&weir, 0);
    weir.stop();
    let from = weir.said().len();
    weir.run();
    soon("the names to be known again", || {
        let status = weir.json(&["status"]).to_string();
        status.contains("none.test has no address").then_some(())
    });
    are_spared(&weir, from);

    // A reload that takes the name away.
    jails("192.0.2.99");
    weir.ask(&["reload"]).done();
    soon("nobody to be spared any more", || {
        fail(&weir);
        (weir.banned().len() == everybody.len()).then_some(())
    });
    bans_are(&weir, &everybody);
    let status = weir.json(&["status"]).to_string();
    assert!(!status.contains("ignoreip:"), "{status}");
}

/// No line waits for a name server that does not answer.
#[test]
fn root_no_line_waits_for_a_name_server() {
    let net = TestNet::new();
    let silent: Vec<_> = GATEWAY
        .map(|gateway| {
            let at = SocketAddr::new(addr(gateway), 53);
            net.internet.enter(|| UdpSocket::bind(at)).unwrap().unwrap()
        })
        .into();
    let mut weir = asking(&net, GATEWAY[1], BY_NAME);
    weir.run();
    let names: Vec<_> = (0..20).map(|n| format!("h{n}.test failed")).collect();
    log(&weir, &names.iter().map(String::as_str).collect::<Vec<_>>());
    soon("the names to wait", || {
        let waiting = weir.metric("weir_resolver_waiting_names", &[]);
        (waiting == Some(20)).then_some(())
    });
    let both = ATTACKER.map(|who| format!("{who} failed"));
    for _ in 0..2 {
        log(&weir, &both.each_ref().map(String::as_str));
    }
    bans_are(&weir, &[ATTACKER[0], "2001:db8:bad::/64"]);
    let waiting = weir.metric("weir_resolver_waiting_findings", &[]);
    assert_eq!(waiting, Some(20), "nobody was waited for");

    // A reload takes those over who wait; they are told of, in time.
    weir.ask(&["reload"]).done();
    let waiting = weir.metric("weir_resolver_waiting_findings", &[]);
    assert!(waiting > Some(0), "{waiting:?}");
    soon("all to have waited long enough", || {
        let failed = weir.metric("weir_jail_failed_names_total", &["mail"]);
        (failed == Some(20)).then_some(())
    });
    let alert = alert_of(&weir, "resolver");
    assert!(alert.contains("no answer in time"), "{alert}");

    // Nor does the end wait for long.
    log(&weir, &["late.test failed"]);
    soon("the name to wait", || {
        let waiting = weir.metric("weir_resolver_waiting_findings", &[]);
        (waiting == Some(1)).then_some(())
    });
    let begun = Instant::now();
    weir.stop();
    assert!(begun.elapsed() < Duration::from_secs(20), "{begun:?}");
    let said = weir.said();
    let left = "1 failures by host name do not count: the resolver has not answered before the end";
    assert!(said.contains(left), "{said}");
    drop(silent);
}
