//! Connections that the rules allow no longer are closed at once, at both ends, and those
//! of programs that may go on are not touched.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use app_host::{Running, TestHost, sha256};
use common::soon;

const PYTHON: &str = "/usr/bin/python3";
/// Long before any time-out of TCP or of a client here; where the processor is emulated, the
/// reload alone takes seconds.
fn at_once() -> Duration {
    let is_emulated = std::env::var_os("WEIR_TEST_EMULATED").is_some();
    Duration::from_secs(if is_emulated { 30 } else { 15 })
}

/// Connects, by TCP or UDP, has a line sent back, and waits for more without end. It says
/// after how long which error came. With "then" as last word it sends once more when told.
const CLIENT: &str = r#"
import socket, sys, time
kind, addr, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
family = socket.AF_INET6 if ':' in addr else socket.AF_INET
for n in range(20):
    s = socket.socket(family, socket.SOCK_STREAM if kind == 'tcp' else socket.SOCK_DGRAM)
    s.settimeout(1.5)
    try:
        s.connect((addr, port)); s.send(b'before\n'); told = s.recv(100); break
    except OSError: time.sleep(.2)
print('answer', told, flush=True)
s.settimeout(None)
if sys.argv[4:] == ['then']:
    sys.stdin.readline(); s.send(b'after\n')
try: print('answer', s.recv(100), flush=True)
except OSError as e: print(type(e).__name__, flush=True)
"#;

/// Sends each line and datagram back; says how each connection ended.
const SERVER: &str = r#"
import socket, threading
def serve(c, kind):
    try:
        while True:
            told = c.recv(100)
            if not told: print('end', kind, flush=True); return
            c.sendall(told)
    except OSError as e: print(type(e).__name__, kind, flush=True)
def listen(kind, addr, name):
    l = socket.socket(kind); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.bind((addr, 7007)); l.listen(20)
    while True: threading.Thread(target=serve, args=(l.accept()[0], name), daemon=True).start()
def answer(kind, addr):
    s = socket.socket(kind, socket.SOCK_DGRAM); s.bind((addr, 7007))
    while True: told, peer = s.recvfrom(100); s.sendto(told, peer)
for kind, addr, name in (socket.AF_INET, '127.0.0.1', 'IPv4'), (socket.AF_INET6, '::1', 'IPv6'):
    for f, args in (listen, (kind, addr, name)), (answer, (kind, addr)):
        threading.Thread(target=f, args=args, daemon=True).start()
print('ready', flush=True)
threading.Event().wait()
"#;

/// A copy of python3 of which each test knows that nobody else runs it.
fn other_python(host: &TestHost) -> String {
    let path = host.host.path("other-python");
    let mut bytes = std::fs::read(PYTHON).unwrap();
    // Behind the program's end: another SHA-256, and the same program.
    bytes.extend_from_slice(b"another one");
    std::fs::write(&path, bytes).unwrap();
    let done = Command::new("chmod").arg("755").arg(&path).status();
    assert!(done.unwrap().success());
    path.display().to_string()
}

/// A server that nobody judges, in the host's namespace, and what it says.
fn serve(host: &TestHost) -> (weir_netlab::Child, impl Iterator<Item = String>) {
    let mut command = Command::new(PYTHON);
    command.args(["-c", SERVER]).stdout(Stdio::piped());
    let mut server = host.space.spawn(command).unwrap();
    let output = server.inner().stdout.take().unwrap();
    let mut lines = BufReader::new(output).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    (server, lines)
}

fn client(host: &TestHost, program: &str, kind: &str, addr: &str, more: &[&str]) -> Running {
    let words = [&[program, "-c", CLIENT, kind, addr, "7007"], more].concat();
    let mut client = host.begin(&words);
    assert_eq!(client.line(), "answer b'before\\n'", "{kind} {addr}");
    client
}

fn rules(rows: &[(&str, &str, &str)]) -> String {
    let row = |(name, verdict, exe): &(&str, &str, &str)| {
        format!(
            "[app.rules.{name}]\nverdict = \"{verdict}\"\nexe = \"{}\"\n",
            sha256(exe)
        )
    };
    let rows: String = rows.iter().map(row).collect();
    format!("default = \"drop\"\nunknown = \"drop\"\n{rows}")
}

fn reload(host: &TestHost, rules: &str) {
    host.configure(rules);
    host.host.done(&["reload"]);
}

fn cut_so_far(host: &TestHost) -> u64 {
    host.host.json(&["app", "list"])["cut"].as_u64().unwrap()
}

#[test]
fn root_revoked_connections_are_closed_at_once_and_others_go_on() {
    let start = rules(&[("first", "allow", PYTHON)]);
    let Some(host) = TestHost::new("cut", &start) else {
        return;
    };
    let other = other_python(&host);
    let both = rules(&[("first", "allow", PYTHON), ("other", "allow", &other)]);
    reload(&host, &both);
    let (_server, mut server) = serve(&host);
    let all = ["tcp", "udp"]
        .into_iter()
        .flat_map(|kind| ["127.0.0.1", "::1"].map(|addr| (kind, addr)));
    let all: Vec<_> = all.collect();
    let begin = |program: &str, more: &[&str]| -> Vec<_> {
        let all = all.iter();
        // Who is cut off waits for nothing but its peer.
        let more = |addr: &str| if addr == "::1" { &[] } else { more };
        all.map(|(kind, addr)| client(&host, program, kind, addr, more(addr)))
            .collect()
    };
    let mut revoked = begin(PYTHON, &[]);
    let mut allowed = begin(&other, &["then"]);
    assert_eq!(cut_so_far(&host), 0);

    let begun = Instant::now();
    let one = rules(&[("first", "drop", PYTHON)]);
    reload(&host, &one.replacen("drop", "allow", 1));
    for (client, of) in revoked.iter_mut().zip(&all) {
        assert_eq!(client.line(), "ConnectionAbortedError", "{of:?}");
    }
    let mut ends = [server.next().unwrap(), server.next().unwrap()];
    ends.sort();
    assert_eq!(
        ends,
        ["ConnectionResetError IPv4", "ConnectionResetError IPv6"]
    );
    assert!(begun.elapsed() < at_once(), "{:?}", begun.elapsed());
    assert_eq!(cut_so_far(&host), 4);
    soon("the events", || {
        let said = host.host.said();
        let cut = said.matches("cut off from").count();
        (cut == 4).then_some(())
    });

    // By a command, in the same way; longer than connections are looked for after it.
    host.host.done(&["app", "deny", &other, "--to", "::1"]);
    for (client, (kind, addr)) in allowed.iter_mut().zip(&all) {
        if *addr == "::1" {
            assert_eq!(client.line(), "ConnectionAbortedError", "{kind}");
        }
    }
    std::thread::sleep(Duration::from_secs(6));
    for (client, (kind, addr)) in allowed.iter_mut().zip(&all) {
        if *addr != "::1" {
            client.go_on();
            assert_eq!(client.line(), "answer b'after\\n'", "{kind}");
        }
    }
    assert_eq!(cut_so_far(&host), 6);
}

/// A hole in a library is known, and there is no other version yet: whatever program maps it is
/// cut off by one command, and the others go on.
#[test]
fn root_what_maps_a_vulnerable_library_is_cut_off_within_a_second_and_others_go_on() {
    let Some(host) = TestHost::new("hole", "default = \"allow\"\n") else {
        return;
    };
    let mapped = "import ssl\nprint(next(l.split()[-1] for l in open('/proc/self/maps') if '/libssl.so' in l))";
    let library = host.space.output(PYTHON, &["-c", mapped]).unwrap();
    let library = String::from_utf8(library.stdout).unwrap();
    let library = library.trim();
    if library.is_empty() {
        eprintln!("skipped: a python3 with libssl.so (probe: import ssl)");
        return;
    }
    let (_server, mut server) = serve(&host);
    let all = [
        ("tcp", "127.0.0.1"),
        ("tcp", "::1"),
        ("udp", "127.0.0.1"),
        ("udp", "::1"),
    ];
    let with_library = format!("import ssl\n{CLIENT}");
    let begin = |script: &str, more: &[&str]| {
        let of_each = all.iter().map(|(kind, addr)| {
            let words = [&[PYTHON, "-c", script, kind, addr, "7007"], more].concat();
            let mut client = host.begin(&words);
            assert_eq!(client.line(), "answer b'before\\n'", "{kind} {addr}");
            client
        });
        of_each.collect::<Vec<_>>()
    };
    let mut vulnerable = begin(&with_library, &[]);
    let mut others = begin(CLIENT, &["then"]);
    assert_eq!(host.curl("127.0.0.1"), "200");
    // Rules say nothing of who is not known yet: both have sent, and weir may not have looked.
    soon(
        "the clients with the library, and those without it, to be known",
        || {
            let list = host.host.json(&["app", "list", "--programs"]);
            let list = list.as_array().unwrap().iter();
            let paths = list.filter_map(|one| one["exe"]["path"].as_str());
            let count = paths.filter(|path| path.contains("/python3")).count();
            (count >= 2).then_some(())
        },
    );
    let begun = Instant::now();
    host.host.done(&["app", "deny", "--library", library]);
    let (commanded, done) = (begun.elapsed(), Instant::now());
    for (client, of) in vulnerable.iter_mut().zip(&all) {
        assert_eq!(client.line(), "ConnectionAbortedError", "{of:?}");
    }
    for _ in 0..2 {
        let end = server.next().unwrap();
        assert!(end.starts_with("ConnectionResetError"), "{end}");
    }
    println!("{commanded:?}, and {:?} after it", done.elapsed());
    assert!(done.elapsed() < at_once(), "{:?}", done.elapsed());
    // Another program with the same library begins nothing either.
    for address in ["127.0.0.1", "[::1]"] {
        soon("curl to be refused", || {
            (host.curl(address) == "000").then_some(())
        });
        assert_eq!(host.connects(address).trim(), "connected", "{address}");
    }
    for (client, of) in others.iter_mut().zip(&all) {
        client.go_on();
        assert_eq!(client.line(), "answer b'after\\n'", "{of:?}");
    }
}

/// The kernel refuses to go through the connections of TCP: those of UDP are closed all the
/// same, in other network namespaces too, an alert says so, and the others are closed as soon
/// as it does no more.
#[cfg(feature = "fault-points")]
#[test]
fn root_what_cannot_be_closed_does_not_spare_the_others() {
    let allow = rules(&[("first", "allow", PYTHON)]);
    let refused = |host: &mut TestHost| {
        let file = format!("WEIR_FAULT_REFUSE={}", host.host.path("refused").display());
        host.host.under = vec!["env".into(), file];
    };
    let Some(host) = TestHost::with("spared", &allow, refused) else {
        return;
    };
    let other = host.net.namespace("other").unwrap();
    other.run("ip", &["link", "set", "lo", "up"]).unwrap();
    let (_server, _lines) = serve(&host);
    let mut command = Command::new(PYTHON);
    command.args(["-c", SERVER]).stdout(Stdio::null());
    let _other_server = other.spawn(command).unwrap();
    let begin = |kind: &str| -> Vec<_> {
        let spaces = [&host.space, &other].into_iter();
        let all = spaces.flat_map(|space| ["127.0.0.1", "::1"].map(|addr| (space, addr)));
        all.map(|(space, addr)| {
            let mut client = host.begin_in(space, &[PYTHON, "-c", CLIENT, kind, addr, "7007"]);
            assert_eq!(client.line(), "answer b'before\\n'", "{kind} {addr}");
            client
        })
        .collect()
    };
    let (mut tcp, mut udp) = (begin("tcp"), begin("udp"));
    host.host.write("refused", "app-cut-tcp\n");
    reload(&host, &rules(&[("first", "drop", PYTHON)]));
    for client in &mut udp {
        assert_eq!(client.line(), "ConnectionAbortedError");
    }
    soon("an alert", || {
        host.host.alerts().contains("app:cut").then_some(())
    });
    assert_eq!(cut_so_far(&host), 4);
    host.host.write("refused", "");
    reload(&host, &rules(&[("first", "reject", PYTHON)]));
    for client in &mut tcp {
        assert_eq!(client.line(), "ConnectionAbortedError");
    }
    soon("the alert to go", || {
        (!host.host.alerts().contains("app:cut")).then_some(())
    });
    assert_eq!(cut_so_far(&host), 8);
}

/// What is only observed is not ended, and neither is a server that listens.
#[test]
fn root_nothing_is_closed_where_weir_only_observes() {
    let allow = rules(&[("first", "allow", PYTHON)]);
    let Some(host) = TestHost::new("uncut", &allow) else {
        return;
    };
    let (_server, _lines) = serve(&host);
    let mut client = client(&host, PYTHON, "tcp", "127.0.0.1", &["then"]);
    host.host.configure_only(&format!(
        "instance = \"{}\"\nobserve = true\n[app]\nlevel = \"{}\"\ncgroup = \"{}\"\ndefault = \"drop\"\nunknown = \"drop\"\n",
        host.instance,
        app_host::level_name(),
        host.cgroup.display()
    ));
    host.host.done(&["reload"]);
    std::thread::sleep(Duration::from_secs(2));
    client.go_on();
    assert_eq!(client.line(), "answer b'after\\n'");
    assert_eq!(cut_so_far(&host), 0);
}

/// With the unit's capabilities: the daemon's own namespace alone, which is told.
#[test]
fn root_without_cap_sys_admin_connections_of_the_own_namespace_are_closed() {
    let allow = rules(&[("first", "allow", PYTHON)]);
    let under = |host: &mut TestHost| {
        let net = format!("--net={}", host.space.path().display());
        let words = [
            "nsenter",
            &net,
            "--",
            "setpriv",
            "--bounding-set",
            "-sys_admin",
        ];
        host.host.under = words.map(str::to_owned).to_vec();
    };
    let Some(mut host) = TestHost::with("own", &allow, under) else {
        return;
    };
    host.host.under.clear();
    let other = host.net.namespace("other").unwrap();
    other.run("ip", &["link", "set", "lo", "up"]).unwrap();
    let (_server, _lines) = serve(&host);
    let mut command = Command::new(PYTHON);
    command.args(["-c", SERVER]).stdout(Stdio::null());
    let _other_server = other.spawn(command).unwrap();
    let mut of_other = host.begin_in(
        &other,
        &[PYTHON, "-c", CLIENT, "tcp", "127.0.0.1", "7007", "then"],
    );
    assert_eq!(of_other.line(), "answer b'before\\n'");
    let mut clients = ["127.0.0.1", "::1"].map(|addr| client(&host, PYTHON, "tcp", addr, &[]));
    reload(&host, &rules(&[("first", "reject", PYTHON)]));
    for client in &mut clients {
        assert_eq!(client.line(), "ConnectionAbortedError");
    }
    assert_eq!(cut_so_far(&host), 2);
    let status = host.host.done(&["status"]);
    assert!(
        status.contains("the daemon lacks CAP_SYS_ADMIN"),
        "{status}"
    );
    // It carries nothing all the same: no answer comes.
    of_other.go_on();
    soon("packets that are dropped", || {
        let rules = host.host.json(&["app", "list"])["rules"].clone();
        (rules[0]["dropped"].as_u64() > Some(2)).then_some(())
    });
}

/// Rules that are the first to be about users: two programs that were one until then are
/// told apart at once, and connections of the one that may go on are not ended.
#[test]
fn root_a_reload_that_names_users_tells_apart_who_was_the_same() {
    let start = rules(&[("all", "allow", PYTHON)]);
    let Some(host) = TestHost::new("users", &start) else {
        return;
    };
    let (_server, _lines) = serve(&host);
    let own = host.cgroup.join("cgroup.procs");
    let enter = format!(
        "echo 0 > {} && exec setpriv --reuid=4711 --clear-groups \"$@\"",
        own.display()
    );
    for (denied, roots) in [("4711", true), ("0", false)] {
        reload(&host, &start);
        // Who is cut off waits for nothing but its peer.
        let more = |goes_on: bool| if goes_on { &["then"][..] } else { &[] };
        let mut root = client(&host, PYTHON, "tcp", "127.0.0.1", more(roots));
        // Looked at after root's, whose it was to the rules so far.
        let words = [
            "sh", "-c", &enter, "sh", PYTHON, "-c", CLIENT, "tcp", "::1", "7007",
        ];
        let words = [&words[..], more(!roots)].concat();
        let mut user = host.begin(&words);
        assert_eq!(user.line(), "answer b'before\\n'");
        let denies = format!(
            "[app.rules.a]\nverdict = \"reject\"\nexe = \"{}\"\nuser = \"{denied}\"\n",
            sha256(PYTHON)
        );
        reload(
            &host,
            &start.replacen("[app.rules.all]", &format!("{denies}[app.rules.all]"), 1),
        );
        let (allowed, revoked) = match roots {
            true => (&mut root, &mut user),
            false => (&mut user, &mut root),
        };
        assert_eq!(revoked.line(), "ConnectionAbortedError", "{denied}");
        allowed.go_on();
        assert_eq!(allowed.line(), "answer b'after\\n'", "{denied}");
        let new = host.connects("127.0.0.1");
        let expected = if roots {
            "connected"
        } else {
            "PermissionError"
        };
        assert_eq!(new.trim(), expected, "{denied}");
    }
}

/// A socket for datagrams: "send PORT" and "hear" are done, and it is said how that ended.
const DATAGRAMS: &str = r#"
import socket, sys
addr, port = sys.argv[1], int(sys.argv[2])
s = socket.socket(socket.AF_INET6 if ':' in addr else socket.AF_INET, socket.SOCK_DGRAM)
s.bind((addr, port)); s.settimeout(1)
print('ready', flush=True)
for line in sys.stdin:
    try:
        if line.startswith('send'): s.sendto(b'x', (addr, int(line.split()[1]))); print('sent', flush=True)
        else: s.recv(100); print('heard', flush=True)
    except OSError as e: print(type(e).__name__, flush=True)
"#;

/// A flow that rules allow no longer does not go on as one that the other side begins, though
/// such a one would be allowed.
#[test]
fn root_a_revoked_flow_of_datagrams_is_not_begun_anew_from_its_other_end() {
    let allow = |directions: &[&str]| {
        let row = |direction: &&str| {
            format!(
                "[app.rules.{direction}]\nverdict = \"allow\"\nexe = \"{}\"\ndirection = \"{direction}\"\n",
                sha256(PYTHON)
            )
        };
        let rows: String = directions.iter().map(row).collect();
        format!("default = \"drop\"\nunknown = \"drop\"\n{rows}")
    };
    let both = allow(&["in", "out"]);
    let Some(host) = TestHost::new("anew", &both) else {
        return;
    };
    for addr in ["127.0.0.1", "::1"] {
        for (revoked, left) in [("in", "out"), ("out", "in")] {
            reload(&host, &both);
            let mut own = host.begin(&[PYTHON, "-c", DATAGRAMS, addr, "7010"]);
            let mut command = Command::new(PYTHON);
            command
                .args(["-c", DATAGRAMS, addr, "7011"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            let mut child = host.space.spawn(command).unwrap();
            let mut input = child.inner().stdin.take().unwrap();
            let mut lines = BufReader::new(child.inner().stdout.take().unwrap()).lines();
            assert_eq!(own.line(), "ready");
            assert_eq!(lines.next().unwrap().unwrap(), "ready");
            let mut own_does = |what: &str| {
                own.say(what);
                own.line()
            };
            let mut peer_does = |what: &str| {
                writeln!(input, "{what}").unwrap();
                lines.next().unwrap().unwrap()
            };
            // Until the program is known.
            soon("the flow to pass", || {
                let heard = if revoked == "in" {
                    peer_does("send 7010");
                    own_does("hear")
                } else {
                    own_does("send 7011");
                    peer_does("hear")
                };
                (heard == "heard").then_some(())
            });
            reload(&host, &allow(&[left]));
            let what = format!("{addr}, {revoked} is revoked");
            for _ in 0..2 {
                if revoked == "in" {
                    peer_does("send 7010");
                    assert_ne!(own_does("hear"), "heard", "{what}");
                    assert_eq!(own_does("send 7011"), "PermissionError", "{what}");
                    assert_ne!(peer_does("hear"), "heard", "{what}");
                } else {
                    assert_eq!(own_does("send 7011"), "PermissionError", "{what}");
                    peer_does("send 7010");
                    assert_ne!(own_does("hear"), "heard", "{what}");
                }
            }
        }
    }
}
