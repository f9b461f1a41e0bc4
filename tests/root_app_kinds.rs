//! Each way in which a rule says whom it is about, or with whom: a package, a script, a user, a
//! unit, a network namespace, a country, a kind of socket. Of each, who fits may, and the next
//! one who does not may not.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    fs,
    process::{Command, Output, Stdio},
};

use app_host::{ADDRESSES, TestHost, sha256};
use common::{skipped, soon};
use serde_json::Value;
use weir_netlab::{Child, Namespace};

const PYTHON: &str = "/usr/bin/python3";
const CLOSED: &str = "default = \"drop\"\nunknown = \"drop\"\n";

/// Connects to each argument but the first, which is the port, and says what came of it.
const CONNECT: &str = r#"
import socket, sys
for address in sys.argv[2:]:
    try: socket.create_connection((address.strip('[]'), int(sys.argv[1])), 4); print('connected')
    except OSError as e: print(type(e).__name__)
"#;

fn said(done: &Output) -> Vec<String> {
    let text = [&done.stdout[..], &done.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().map(str::to_owned).collect()
}

/// Waits until these words, run in the host, print `what` for each address.
#[track_caller]
fn until(host: &TestHost, what: &str, words: &[&str], addresses: &[&str]) {
    let words = [words, addresses].concat();
    soon(&format!("{what} of {words:?}"), || {
        let told = said(&host.run(&words));
        let all = told.len() == addresses.len() && told.iter().all(|line| line == what);
        all.then_some(())
    });
}

/// Who may comes first, so that what is kept of it is there when the other one comes, who must
/// not have got through before it was known who that is.
#[track_caller]
fn may_and_may_not(host: &TestHost, may: &[&str], may_not: &[&str]) {
    until(host, "connected", may, &ADDRESSES);
    // Each process is somebody new: its first SYN may be lost before it is known who that is.
    let words = [may_not, &ADDRESSES, &ADDRESSES].concat();
    soon(&format!("{words:?} to be refused"), || {
        let told = said(&host.run(&words));
        assert!(!told.contains(&"connected".to_owned()), "{words:?}");
        told.ends_with(&["PermissionError"; 2].map(str::to_owned))
            .then_some(())
    });
    until(host, "connected", may, &ADDRESSES);
}

#[test]
fn root_a_package_is_its_own_executable_and_no_copy_of_it() {
    if skipped(&["dpkg"]) {
        return;
    }
    let rules = format!("{CLOSED}[app.rules.curl]\nverdict = \"allow\"\npackage = \"curl\"\n");
    let Some(host) = TestHost::new("package", &rules) else {
        return;
    };
    for address in ADDRESSES {
        soon("curl of the package", || {
            (host.curl(address) == "200").then_some(())
        });
    }
    until(
        &host,
        "PermissionError",
        &[PYTHON, "-c", CONNECT, "8080"],
        &ADDRESSES,
    );
    // The same bytes at another path are of no package, and other bytes at the package's path
    // are not what its record has.
    let copy = host.host.path("curl");
    fs::copy("/usr/bin/curl", &copy).unwrap();
    let copy = copy.to_str().unwrap();
    for address in ADDRESSES {
        let url = format!("http://{address}:8080/");
        let words = [
            copy,
            "-sS",
            "-o",
            "/dev/null",
            "--max-time",
            "3",
            "--retry",
            "0",
            &url,
        ];
        soon("the copy to be known, and refused", || {
            let done = host.run(&words);
            assert!(!done.status.success(), "{:?}", said(&done));
            said(&done)
                .iter()
                .any(|line| line.contains("Couldn't connect"))
                .then_some(())
        });
        assert_eq!(host.curl(address), "200");
    }
}

#[test]
fn root_a_script_is_the_one_that_the_interpreter_was_started_with() {
    let Some(host) = TestHost::with("script", CLOSED, |host| {
        let (good, _) = scripts(host);
        host.configure(&format!(
            "{CLOSED}[app.rules.good]\nverdict = \"allow\"\nexe = \"{}\"\nscript = \"{good}\"\n",
            sha256(PYTHON)
        ));
    }) else {
        return;
    };
    let (good, other) = scripts(&host);
    let may = [PYTHON, &good, "8080"];
    may_and_may_not(&host, &may, &[PYTHON, &other, "8080"]);
    may_and_may_not(&host, &may, &[PYTHON, "-c", CONNECT, "8080"]);
    // Options before it are options, and what stands behind another script is its argument.
    may_and_may_not(
        &host,
        &[PYTHON, "-B", &good, "8080"],
        &[PYTHON, &other, "8080"],
    );
    let behind = [PYTHON, &other, "8080", "127.0.0.1", &good];
    assert_ne!(said(&host.run(&behind))[0], "connected");
    // A process that has ended leaves its address space to the next one, which has the same
    // files mapped: it is no other script's for that.
    for _ in 0..20 {
        let one_after_another = format!(
            "echo 0 > {}/cgroup.procs; for n in 1 2 3 4 5; do taskset 1 {PYTHON} {good} 8080 127.0.0.1 >&2; taskset 1 {PYTHON} {other} 8080 ::1; done",
            host.cgroup.display()
        );
        let done = host
            .space
            .output("sh", &["-c", &one_after_another])
            .unwrap();
        let others = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(!others.contains("connected"), "{others}");
    }
}

/// Two scripts that do the same.
fn scripts(host: &TestHost) -> (String, String) {
    let good = host.host.write("good.py", CONNECT);
    let other = host.host.write("other.py", CONNECT);
    let text = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
    (text(good), text(other))
}

#[test]
fn root_a_user_is_the_effective_one() {
    if skipped(&["setpriv"]) {
        return;
    }
    let rules = format!(
        "{CLOSED}[app.rules.nobody]\nverdict = \"allow\"\nexe = \"{}\"\nuser = \"nobody\"\n",
        sha256(PYTHON)
    );
    let Some(host) = TestHost::new("user", &rules) else {
        return;
    };
    let nobody = [
        "setpriv",
        "--reuid",
        "nobody",
        "--clear-groups",
        PYTHON,
        "-c",
        CONNECT,
        "8080",
    ];
    may_and_may_not(&host, &nobody, &[PYTHON, "-c", CONNECT, "8080"]);
    // The real user is another one here, and does not count.
    let only_effective = "import os, sys\nos.seteuid(65534)\n";
    let script = format!("{only_effective}{CONNECT}");
    until(
        &host,
        "connected",
        &[PYTHON, "-c", &script, "8080"],
        &ADDRESSES,
    );
}

#[test]
fn root_a_unit_is_a_part_of_the_path_of_the_control_group() {
    let rules = format!(
        "{CLOSED}[app.rules.shop]\nverdict = \"allow\"\nexe = \"{}\"\nunit = \"shop-*.service\"\n",
        sha256(PYTHON)
    );
    let Some(host) = TestHost::in_slice("unit", &rules) else {
        return;
    };
    let within = |unit: &str| {
        let group = host.cgroup.join(unit);
        let _ = fs::create_dir(&group);
        let procs = group.join("cgroup.procs").to_str().unwrap().to_owned();
        ["sh", "-c", "echo 0 > \"$0\" && exec \"$@\"", &procs]
            .map(str::to_owned)
            .into_iter()
            .chain([PYTHON, "-c", CONNECT, "8080"].map(str::to_owned))
            .collect::<Vec<_>>()
    };
    let (shop, other) = (within("shop-1.service"), within("myshop-1.service"));
    let shop: Vec<_> = shop.iter().map(String::as_str).collect();
    let other: Vec<_> = other.iter().map(String::as_str).collect();
    may_and_may_not(&host, &shop, &other);
    may_and_may_not(&host, &shop, &[PYTHON, "-c", CONNECT, "8080"]);
    // A user's own manager gives him what is below it, with whatever names he likes.
    let manager = host.cgroup.join("user@1000.service");
    fs::create_dir(&manager).unwrap();
    let claimed = within("user@1000.service/shop-1.service");
    let claimed: Vec<_> = claimed.iter().map(String::as_str).collect();
    may_and_may_not(&host, &shop, &claimed);
    fs::remove_dir(manager.join("shop-1.service")).unwrap();
}

/// A server on these addresses, outside of the control group.
fn serve(space: &Namespace, addresses: &[&str]) -> Vec<Child> {
    let each = addresses.iter().map(|address| {
        let mut command = Command::new(PYTHON);
        command
            .args(["-m", "http.server", "-b", address, "8080"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        space.spawn(command).unwrap()
    });
    each.collect()
}

#[test]
fn root_a_network_namespace_is_where_the_socket_is() {
    let mut other = None;
    let Some(host) = TestHost::with("netns", CLOSED, |host| {
        let space = host.net.namespace("other").unwrap();
        space.run("ip", &["link", "set", "lo", "up"]).unwrap();
        host.configure(&format!(
            "{CLOSED}[app.rules.here]\nverdict = \"allow\"\nexe = \"{}\"\nnetns = \"/run/netns/{}\"\n",
            sha256(PYTHON),
            host.space.name()
        ));
        let servers = serve(&space, &["127.0.0.1", "::1"]);
        other = Some((space, servers));
    }) else {
        return;
    };
    let (space, _servers) = other.unwrap();
    until(
        &host,
        "connected",
        &[PYTHON, "-c", CONNECT, "8080"],
        &ADDRESSES,
    );
    soon("the same program in the other namespace, refused", || {
        let enter = format!(
            "echo 0 > {}/cgroup.procs && exec \"$@\"",
            host.cgroup.display()
        );
        let words = [
            "-c",
            &enter,
            "sh",
            PYTHON,
            "-c",
            CONNECT,
            "8080",
            "127.0.0.1",
            "::1",
        ];
        let told = said(&space.output("sh", &words).unwrap());
        assert!(!told.contains(&"connected".to_owned()), "{told:?}");
        (told == ["PermissionError"; 2]).then_some(())
    });
    // Nobody judges there whom the control group does not hold: the servers answer.
    let outside = space.output(PYTHON, &["-c", CONNECT, "8080", "127.0.0.1", "::1"]);
    assert_eq!(said(&outside.unwrap()), ["connected"; 2]);
}

#[test]
fn root_a_country_is_that_of_the_peer() {
    // Addresses of a German host and of a Dutch one, in the built-in database.
    let places = [
        ("DE", ["85.214.1.1", "2a01:238:20a::1"]),
        ("NL", ["193.0.0.1", "2001:67c:2e8::1"]),
    ];
    let rules = format!(
        "{CLOSED}[app.rules.germany]\nverdict = \"allow\"\nexe = \"{}\"\nto = [\"country:DE\"]\n",
        sha256(PYTHON)
    );
    let mut servers = Vec::new();
    let Some(host) = TestHost::with("country", &rules, |host| {
        for (_, addresses) in places {
            let parsed = addresses.map(|address| address.parse().unwrap());
            host.space.add_to_loopback(&parsed).unwrap();
            servers.push(serve(&host.space, &addresses));
        }
    }) else {
        return;
    };
    for (place, addresses) in places {
        let told = host.host.done(&["geo", addresses[0], addresses[1]]);
        assert_eq!(
            told.matches(&format!("country:{place} ")).count(),
            2,
            "{told}"
        );
    }
    let [(_, german), (_, dutch)] = places;
    let words = [PYTHON, "-c", CONNECT, "8080"];
    until(&host, "connected", &words, &german);
    until(&host, "PermissionError", &words, &dutch);
    until(&host, "PermissionError", &words, &ADDRESSES);
    until(&host, "connected", &words, &german);
}

/// A rule that allows a program is not about its raw sockets, unless it says so.
#[test]
fn root_raw_sockets_are_for_whom_a_rule_names_them() {
    const RAW: &str = r#"
import os, socket, struct, sys
answers = 0
for kind, protocol, address, echo in ((socket.AF_INET, 1, '127.0.0.1', 8), (socket.AF_INET6, 58, '::1', 128)):
    try:
        s = socket.socket(kind, socket.SOCK_RAW, protocol); s.settimeout(3)
        packet = struct.pack('!BBHHH', echo, 0, 0, 7, 1)
        if echo == 8: packet = struct.pack('!BBHHH', echo, 0, 0xffff - (0x0800 + 7 + 1), 7, 1)
        s.sendto(packet, (address, 0)); s.recv(1000); print('connected')
    except OSError as e: print(type(e).__name__)
"#;
    let allowed = |more: &str| {
        format!(
            "{CLOSED}[app.rules.python]\nverdict = \"allow\"\nexe = \"{}\"\n{more}",
            sha256(PYTHON)
        )
    };
    let Some(host) = TestHost::new("raw", &allowed("")) else {
        return;
    };
    // Known, and may connect; a raw socket is not even made.
    until(
        &host,
        "connected",
        &[PYTHON, "-c", CONNECT, "8080"],
        &ADDRESSES,
    );
    assert_eq!(
        said(&host.run(&[PYTHON, "-c", RAW])),
        ["PermissionError"; 2]
    );
    host.configure(&allowed("protocols = [\"tcp\", \"raw\"]\n"));
    host.host.done(&["reload"]);
    soon("raw sockets for the one whom a rule names", || {
        (said(&host.run(&[PYTHON, "-c", RAW])) == ["connected"; 2]).then_some(())
    });
    // Of the rule that allows, those of another program are not: of a copy, with another digest.
    let other = host.copy(PYTHON, "other");
    soon("another program to be known, and refused", || {
        let told = said(&host.run(&[&other, "-c", RAW]));
        assert!(!told.contains(&"connected".to_owned()), "{told:?}");
        (told == ["PermissionError"; 2]).then_some(())
    });
}

/// `hash` prints what rules take, `top` which rules decide most, and an event all that the
/// guide promises of who it was.
#[test]
fn root_hash_top_and_events_say_who_it_was() {
    let rules = format!(
        "{CLOSED}[app.rules.curl]\nverdict = \"allow\"\nexe = \"{}\"\n[app.rules.python]\nverdict = \"reject\"\nexe = \"{}\"\n[sink.file]\nkind = \"file\"\npath = \"{{dir}}/events.json\"\nevents = [\"app\"]\n",
        sha256("/usr/bin/curl"),
        sha256(PYTHON)
    );
    let Some(host) = TestHost::new("told", &rules) else {
        return;
    };
    let hashes = host.host.json(&["app", "hash", "/usr/bin/curl", PYTHON]);
    let hashes = hashes.to_string();
    assert!(hashes.contains(&sha256("/usr/bin/curl")), "{hashes}");
    assert!(hashes.contains(&sha256(PYTHON)), "{hashes}");
    let (code, told) = host.host.ask(&["app", "hash", "/nowhere/at/all"]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("/nowhere/at/all"), "{told}");

    for address in ADDRESSES {
        soon("curl to be known", || {
            (host.curl(address) == "200").then_some(())
        });
    }
    // A unit of its own, below this test: its name is in the event.
    let group = host.cgroup.join("shop.service");
    fs::create_dir(&group).unwrap();
    let enter = format!("echo 0 > {}/cgroup.procs && \"$@\"; :", group.display());
    // Who has ended by the time that the event is read has no parents any more.
    let stays = format!("{CONNECT}\nsys.stdout.flush(); sys.stdin.read()");
    let words = [
        "sh",
        "-c",
        &enter,
        "sh",
        PYTHON,
        "-c",
        &stays,
        "8080",
        "127.0.0.1",
        "::1",
    ];
    let mut stay = Vec::new();
    soon("python to be known, and refused", || {
        let mut one = host.begin(&words);
        let told = [one.line(), one.line()];
        stay.push(one);
        (told == ["PermissionError"; 2]).then_some(())
    });
    for address in ["127.0.0.1", "::1"] {
        let event = soon("the event of it", || {
            let events = host.host.read("events.json");
            let mut events = events
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let is_it = |event: &Value| {
                event["actor"]["rule"] == "python"
                    && event["subject"]
                        .as_str()
                        .is_some_and(|text| text.starts_with(address))
            };
            events.find(is_it)
        });
        let actor = &event["actor"];
        assert_eq!(actor["sha256"], sha256(PYTHON), "{event}");
        assert_eq!(
            actor["aggregate"].as_str().map(str::len),
            Some(64),
            "{event}"
        );
        assert_eq!(actor["uid"], 0, "{event}");
        assert_eq!(
            [
                &actor["verdict"],
                &actor["direction"],
                &actor["protocol"],
                &actor["port"]
            ],
            [
                &Value::from("deny"),
                &Value::from("out"),
                &Value::from("tcp"),
                &Value::from(8080)
            ],
            "{event}"
        );
        let cgroup = actor["cgroup"].as_str().unwrap();
        assert!(cgroup.ends_with("/shop.service"), "{event}");
        // The shell that waits for it, by number and executable; init is the last.
        let parents = actor["parents"].as_array().unwrap();
        let shell = fs::canonicalize("/bin/sh").unwrap();
        let first = parents[0].as_str().unwrap();
        assert!(first.ends_with(shell.to_str().unwrap()), "{event}");
        assert!(parents.len() >= 2, "{event}");
    }
    let top = host.host.json(&["app", "top", "--count", "2"]);
    let top = top.as_array().unwrap();
    assert_eq!(top.len(), 2, "{top:?}");
    let judged = |row: &Value| row["judged"].as_u64().unwrap();
    assert!(
        judged(&top[0]) >= judged(&top[1]) && judged(&top[1]) > 0,
        "{top:?}"
    );
    let names: Vec<_> = top
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert!(
        names.contains(&"curl") && names.contains(&"python"),
        "{names:?}"
    );
}
