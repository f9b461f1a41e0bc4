//! Rules that are the first to tell programs apart by something else, such as their users: a
//! server goes on to accept and to fork over such a reload, and over one that is refused.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    io::{BufRead, BufReader, Lines, Write},
    process::{ChildStdin, ChildStdout, Command, Stdio},
};

use app_host::{TestHost, sha256};
use common::soon;

const PYTHON: &str = "/usr/bin/python3";

/// Accepts, and has a child of its own serve each connection, as many servers do.
const SERVER: &str = r#"
import os, signal, socket, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
l = socket.create_server((sys.argv[1], 7007), family=socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET)
print('ready', flush=True)
while True:
    c = l.accept()[0]
    if os.fork() == 0:
        l.close()
        while True:
            told = c.recv(100)
            if not told: os._exit(0)
            c.sendall(told)
    c.close()
"#;

/// Sends each line that it is given, and says what comes back.
const CLIENT: &str = r#"
import socket, sys
try:
    s = socket.create_connection((sys.argv[1], 7007), 15)
    for line in sys.stdin:
        s.sendall(line.encode()); print(s.recv(100).decode().strip() or 'end', flush=True)
except OSError as e: print(type(e).__name__, flush=True)
"#;

/// A peer that nobody judges.
struct Peer {
    _child: weir_netlab::Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn new(host: &TestHost, addr: &str) -> Self {
        let mut command = Command::new(PYTHON);
        command
            .args(["-c", CLIENT, addr])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = host.space.spawn(command).unwrap();
        let (input, output) = (child.inner().stdin.take(), child.inner().stdout.take());
        Self {
            _child: child,
            input: input.unwrap(),
            lines: BufReader::new(output.unwrap()).lines(),
        }
    }

    fn asks(&mut self, word: &str) -> String {
        // Who was refused has ended.
        let _ = writeln!(self.input, "{word}");
        self.lines.next().unwrap().unwrap()
    }
}

fn allow() -> String {
    format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.all]\nverdict = \"allow\"\nexe = \"{}\"\n",
        sha256(PYTHON)
    )
}

/// The same but for one user, whom the first rule denies.
fn by_user(user: &str) -> String {
    let denies = format!(
        "[app.rules.a]\nverdict = \"reject\"\nexe = \"{}\"\nuser = \"{user}\"\n",
        sha256(PYTHON)
    );
    allow().replacen("[app.rules.all]", &format!("{denies}[app.rules.all]"), 1)
}

const ADDRESSES: [&str; 2] = ["127.0.0.1", "::1"];

/// Servers at both addresses, and a connection to each.
fn serve(host: &TestHost) -> (Vec<app_host::Running>, Vec<Peer>) {
    let servers: Vec<_> = ADDRESSES
        .iter()
        .map(|addr| {
            let mut server = host.begin(&[PYTHON, "-c", SERVER, addr]);
            assert_eq!(server.line(), "ready", "{addr}");
            server
        })
        .collect();
    let peers = ADDRESSES.map(|addr| {
        soon("the server to be known", || {
            let mut peer = Peer::new(host, addr);
            (peer.asks("before") == "before").then_some(peer)
        })
    });
    (servers, peers.into())
}

fn cut_so_far(host: &TestHost) -> u64 {
    host.host.json(&["app", "list"])["cut"].as_u64().unwrap()
}

#[test]
fn root_a_server_forks_and_serves_on_after_a_reload_that_tells_users_apart() {
    let Some(host) = TestHost::new("forks", &allow()) else {
        return;
    };
    let (_servers, mut peers) = serve(&host);
    host.configure(&by_user("4711"));
    host.host.done(&["reload"]);
    for (addr, peer) in ADDRESSES.iter().zip(&mut peers) {
        // The child of before, and one that is forked now: by the first packet of each.
        assert_eq!(peer.asks("after"), "after", "{addr}");
        for _ in 0..3 {
            assert_eq!(Peer::new(&host, addr).asks("new"), "new", "{addr}");
        }
    }
    // Longer than connections are gone through.
    std::thread::sleep(std::time::Duration::from_secs(6));
    for (addr, peer) in ADDRESSES.iter().zip(&mut peers) {
        assert_eq!(peer.asks("later"), "later", "{addr}");
    }
    assert_eq!(cut_so_far(&host), 0);
    // It is by the users: those of root are denied by rules that say so.
    host.configure(&by_user("0"));
    host.host.done(&["reload"]);
    for (addr, peer) in ADDRESSES.iter().zip(&mut peers) {
        assert_ne!(peer.asks("denied"), "denied", "{addr}");
    }
}

/// Of a reload the rules about programs are in force when something behind them is refused:
/// they are taken back, with what programs were told apart by.
#[test]
fn root_a_reload_that_is_refused_behind_its_rules_brings_the_rules_before_back() {
    let Some(host) = TestHost::new("undone", &allow()) else {
        return;
    };
    let (_servers, _peers) = serve(&host);
    std::fs::create_dir(host.host.path("keys")).unwrap();
    let keys = host.host.path("keys");
    host.configure(&format!(
        "{}[token]\nkeys = \"{}\"\nsign_to = [\"192.0.2.0/24\"]\n",
        by_user("0"),
        keys.display()
    ));
    let (code, told) = host.host.ask(&["reload"]);
    assert_ne!(code, Some(0), "{told}");
    assert!(told.contains("key"), "{told}");
    for addr in ADDRESSES {
        assert_eq!(Peer::new(&host, addr).asks("new"), "new", "{addr}");
        assert_eq!(host.connects(addr).trim(), "connected", "{addr}");
    }
    let rules = host.host.json(&["app", "list"])["rules"].clone();
    assert_eq!(rules[0]["name"], "all", "{rules}");
    // And again, from what was brought back.
    host.configure(&by_user("4711"));
    host.host.done(&["reload"]);
    for addr in ADDRESSES {
        assert_eq!(Peer::new(&host, addr).asks("new"), "new", "{addr}");
        assert_eq!(host.connects(addr).trim(), "connected", "{addr}");
    }
}
