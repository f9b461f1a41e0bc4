//! Rules that name a host: its addresses as a name server says, and none that lead inside.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{fs, process::Command};

use app_host::{TestHost, sha256};
use common::soon;
use weir_netlab::{Namespace, Veth, VethOpts};

/// Answers for the names of a file: a line each, `NAME ADDRESS...`; others there are not.
const NAME_SERVER: &str = r#"
import socket, struct, sys, ipaddress
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 53))
while True:
    q, peer = s.recvfrom(512)
    at, labels = 12, []
    while q[at]: labels.append(q[at+1:at+1+q[at]].decode()); at += 1 + q[at]
    kind = struct.unpack('!H', q[at+1:at+3])[0]
    zone = {l.split()[0]: l.split()[1:] for l in open(sys.argv[1]) if l.strip()}
    name = '.'.join(labels).lower()
    found = [ipaddress.ip_address(a) for a in zone.get(name, [])]
    found = [a for a in found if (a.version, kind) in ((4, 1), (6, 28))]
    head = q[:2] + struct.pack('!HHHHH', 0x8580 | (0 if name in zone else 3), 1, len(found), 0, 0)
    answers = b''.join(b'\xc0\x0c' + struct.pack('!HHIH', kind, 1, 5, len(a.packed)) + a.packed for a in found)
    s.sendto(head + q[12:at+5] + answers, peer)
"#;

const WEB: [&str; 2] = ["192.0.2.80", "2001:db8::80"];

/// A server beyond a wire, and a name server, which the daemon asks.
struct Beside {
    _web: Namespace,
    _veth: Veth,
    children: Vec<weir_netlab::Child>,
}

fn start(name: &str, rules: &str, zone: &str) -> Option<(TestHost, Beside)> {
    start_with(name, rules, zone, &mut |_| ())
}

/// The same, after something is done to the wire before the daemon starts.
fn start_with(
    name: &str,
    rules: &str,
    zone: &str,
    before: &mut dyn FnMut(&mut TestHost),
) -> Option<(TestHost, Beside)> {
    let mut beside = None;
    let host = TestHost::with(name, rules, |host| {
        let web = host.net.namespace("web").unwrap();
        let opts = VethOpts::new(
            &["192.0.2.1/24", "2001:db8::1/64"],
            &["192.0.2.80/24", "2001:db8::80/64"],
        );
        let veth = host.net.veth(&host.space, "a0", &web, "w0", opts.unwrap());
        before(host);
        let mut children = Vec::new();
        for address in WEB {
            let mut command = Command::new("/usr/bin/python3");
            command
                .args(["-m", "http.server", "-b", address, "8080"])
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null());
            children.push(web.spawn(command).unwrap());
        }
        let zone = host.host.write("zone", zone);
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", NAME_SERVER]).arg(zone);
        children.push(host.space.spawn(command).unwrap());
        let resolv = host.host.write(
            "resolv.conf",
            "nameserver 127.0.0.1\noptions timeout:1 attempts:2\n",
        );
        // Not by `ip netns exec`, which hides the pins.
        let enter = format!(
            "mount --bind {} /etc/resolv.conf && exec \"$@\"",
            resolv.display()
        );
        host.host.under = [
            "nsenter",
            &format!("--net={}", host.space.path().display()),
            "unshare",
            "-m",
            "sh",
            "-c",
            &enter,
            "sh",
        ]
        .map(str::to_owned)
        .into();
        beside = Some(Beside {
            _web: web,
            _veth: veth.unwrap(),
            children,
        });
    })?;
    Some((host, beside?))
}

fn curl_to(name: &str) -> String {
    format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.web]\nverdict = \"allow\"\nexe = \"{}\"\nto = [\"name:{name}\"]\nports = [\"8080/tcp\"]\n",
        sha256("/usr/bin/curl")
    )
}

#[test]
fn root_a_name_is_resolved_and_answers_that_lead_inside_are_refused() {
    let zone = "web.test 192.0.2.80 2001:db8::80\nempty.test\n";
    let Some((host, _beside)) = start("names", &curl_to("web.test"), zone) else {
        return;
    };
    for address in ["192.0.2.80", "[2001:db8::80]"] {
        soon("curl to reach the name's address", || {
            (host.curl(address) == "200").then_some(())
        });
    }
    // The servers of this host are not what is named.
    for address in ["127.0.0.1", "[::1]"] {
        assert_eq!(host.curl(address), "000");
    }
    assert!(
        !host.host.alerts().contains("app:"),
        "{}",
        host.host.alerts()
    );

    // The name is bound to this host: DNS rebinding.
    host.host
        .write("zone", "web.test 192.0.2.80 127.0.0.1 ::1 192.0.2.1\n");
    host.host.done(&["reload"]);
    let alert = soon("the alert", || {
        let alerts = host.host.alerts();
        alerts.contains("app:names").then_some(alerts)
    });
    assert!(alert.contains("refused because it is"), "{alert}");
    for address in ["127.0.0.1", "[::1]"] {
        assert_eq!(host.curl(address), "000");
    }
    assert_eq!(host.curl("192.0.2.80"), "200");
    // Where that is expected, it is what is named.
    host.configure(&format!(
        "private_names = [\"*.test\"]\n{}",
        curl_to("web.test")
    ));
    host.host.done(&["reload"]);
    for address in ["127.0.0.1", "[::1]"] {
        soon("curl to reach this host by name", || {
            (host.curl(address) == "200").then_some(())
        });
    }
    soon("the alert to end", || {
        (!host.host.alerts().contains("app:names")).then_some(())
    });
}

/// The router of this host is inside as well, whatever addresses it has.
#[test]
fn root_a_name_that_leads_to_the_router_is_refused() {
    let zone = "web.test 192.0.2.80 2001:db8::80\n";
    let mut before = |host: &mut TestHost| {
        for (family, via) in [("-4", "192.0.2.80"), ("-6", "2001:db8::80")] {
            let route = [family, "route", "add", "default", "via", via];
            host.space.run("ip", &route).unwrap();
        }
    };
    let Some((host, _beside)) = start_with("router", &curl_to("web.test"), zone, &mut before)
    else {
        return;
    };
    let alert = soon("the alert", || {
        let alerts = host.host.alerts();
        alerts.contains("app:names").then_some(alerts)
    });
    assert!(
        alert.contains("because it is this host's router"),
        "{alert}"
    );
    for address in ["192.0.2.80", "[2001:db8::80]"] {
        assert_eq!(host.curl(address), "000");
    }
    host.configure(&format!(
        "private_names = [\"web.test\"]\n{}",
        curl_to("web.test")
    ));
    host.host.done(&["reload"]);
    for address in ["192.0.2.80", "[2001:db8::80]"] {
        soon("curl to reach the router by name", || {
            (host.curl(address) == "200").then_some(())
        });
    }
}

#[test]
fn root_a_name_without_an_address_is_told_and_holds_for_nobody() {
    let Some((host, _beside)) = start("noname", &curl_to("none.test"), "empty.test\n") else {
        return;
    };
    let alert = soon("the alert", || {
        let alerts = host.host.alerts();
        alerts
            .contains("name:none.test has no address")
            .then_some(alerts)
    });
    assert!(alert.contains("app:names"), "{alert}");
    assert_eq!(host.curl("192.0.2.80"), "000");
    // It has one later, and is asked for again without a reload.
    fs::write(host.host.path("zone"), "none.test 192.0.2.80\n").unwrap();
    soon("curl to reach the name's address", || {
        (host.curl("192.0.2.80") == "200").then_some(())
    });
}

/// What a rule with a name allows goes on while weir is restarted, and while a reload is
/// refused that would have taken the name away.
#[test]
fn root_connections_to_a_name_outlive_a_restart() {
    const PYTHON: &str = "/usr/bin/python3";
    let rules = curl_to("web.test").replace(&sha256("/usr/bin/curl"), &sha256(PYTHON));
    let zone = "web.test 192.0.2.80 2001:db8::80\n";
    let Some((mut host, _beside)) = start("restart", &rules, zone) else {
        return;
    };
    let script = "import socket, sys\n\
         s = socket.create_connection((sys.argv[1], 8080), 20); print('connected', flush=True)\n\
         sys.stdin.readline()\n\
         try: s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); print(s.recv(12), flush=True)\n\
         except OSError as e: print(type(e).__name__, flush=True)\n";
    for address in WEB {
        soon("python to be known", || {
            (host.connects(address).trim() == "connected").then_some(())
        });
    }
    let mut clients = WEB.map(|address| host.begin(&[PYTHON, "-c", script, address]));
    for client in &mut clients {
        assert_eq!(client.line(), "connected");
    }
    host.host.end("KILL");
    host.host.start();
    // Without the name, and with a mistake.
    host.configure("default = \"drop\"\nunknown = \"drop\"\n[app.rules.no]\nverdict = \"never\"\n");
    assert_ne!(host.host.ask(&["reload"]).0, Some(0));
    host.configure(&rules);
    host.host.done(&["reload"]);
    // Longer than connections are gone through.
    std::thread::sleep(std::time::Duration::from_secs(6));
    for client in &mut clients {
        client.go_on();
        assert_eq!(client.line(), "b'HTTP/1.0 200'");
    }
    assert_eq!(host.host.json(&["app", "list"])["cut"], 0);
}

/// Takes what it is asked, and never answers.
const DEAF_SERVER: &str = "import socket\n\
     s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 53))\n\
     while True: s.recvfrom(512)\n";

/// While nobody answers, what was answered before the start holds from its first moment on;
/// addresses on disk that lead inside do not, and what is no record of weir's is told.
#[test]
fn root_a_name_keeps_its_addresses_over_a_start_without_a_name_server() {
    let zone = "web.test 192.0.2.80 2001:db8::80\n";
    let Some((mut host, mut beside)) = start("kept", &curl_to("web.test"), zone) else {
        return;
    };
    for address in ["192.0.2.80", "[2001:db8::80]"] {
        soon("curl to reach the name's address", || {
            (host.curl(address) == "200").then_some(())
        });
    }
    host.host.end("TERM");
    // The name server is the last of them.
    beside.children.pop();
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", DEAF_SERVER]);
    beside.children.push(host.space.spawn(command).unwrap());
    host.host.start();
    for address in ["192.0.2.80", "[2001:db8::80]"] {
        assert_eq!(host.curl(address), "200");
    }
    let kept = host.host.json(&["app", "list"])["kept_names"].clone();
    assert_eq!(kept[0]["name"], "web.test", "{kept}");
    assert_eq!(kept[0]["addresses"], 2, "{kept}");
    // It is an alert, too.
    let (_, status) = host.host.ask(&["status"]);
    assert!(
        status.contains("until a name server answers: name:web.test (2)"),
        "{status}"
    );

    // Somebody has written other addresses.
    host.host.end("TERM");
    let database = host.host.path("state/weir.db");
    let write = |record: &str| {
        let script = "import sqlite3, sys\n\
             c = sqlite3.connect(sys.argv[1]); c.execute('UPDATE resolved SET record = ?', sys.argv[2:]); c.commit()\n\
             print(c.execute('SELECT count(*) FROM resolved').fetchone()[0])";
        let mut command = Command::new("/usr/bin/python3");
        let done = command
            .args(["-c", script])
            .arg(&database)
            .arg(record)
            .output();
        let done = done.unwrap();
        assert_eq!(
            String::from_utf8_lossy(&done.stdout).trim(),
            "1",
            "{done:?}"
        );
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.unwrap().as_micros();
    write(&format!(
        "[[\"127.0.0.1\",{now}],[\"::1\",{now}],[\"192.0.2.80\",{now}]]"
    ));
    host.host.start();
    assert_eq!(host.curl("192.0.2.80"), "200");
    for address in ["127.0.0.1", "[::1]", "[2001:db8::80]"] {
        assert_eq!(host.curl(address), "000", "{address}");
    }
    host.host.end("TERM");
    write(&"x".repeat(100_000));
    host.host.start();
    let told = "the addresses of name:web.test in weir.db are not used";
    assert!(host.host.said().contains(told), "{}", host.host.said());
    assert_eq!(host.curl("192.0.2.80"), "000");
}
