//! `[app]` at level `nfqueue`: without any program in the kernel the first packet of each
//! connection waits for the daemon. Real programs, real iptables; the daemon and those that it
//! judges are in one network namespace, and whom they talk to is in another one.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use app_host::sha256;
use common::{skipped, soon};
use plain::Plain;
use weir_netlab::{Child, Namespace, Net, Veth, VethOpts};

const PROGRAMS: [&str; 7] = [
    "curl",
    "/usr/bin/python3",
    "ip",
    "iptables",
    "ip6tables",
    "iptables-save",
    "nsenter",
];
/// The host's addresses, and those of whom it talks to.
const HOST: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const PEER: [&str; 2] = ["192.0.2.2", "2001:db8::2"];
const PYTHON: &str = "/usr/bin/python3";

/// A web server at 8080, and one at 7007 that sends each line or datagram back, at all addresses.
const SERVER: &str = r#"
import socket, threading, http.server
class Web(http.server.ThreadingHTTPServer): address_family = socket.AF_INET6
def serve(c):
    try:
        for line in c.makefile('rb'): c.sendall(line)
    except OSError: pass
def tcp():
    l = socket.create_server(('::', 7007), family=socket.AF_INET6, dualstack_ipv6=True)
    while True: threading.Thread(target=serve, args=(l.accept()[0],), daemon=True).start()
def udp():
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0); s.bind(('::', 7007))
    while True: s.sendto(*s.recvfrom(100))
for what in tcp, udp: threading.Thread(target=what, daemon=True).start()
web = Web(('::', 8080), http.server.SimpleHTTPRequestHandler)
print('ready', flush=True)
web.serve_forever()
"#;

/// Connects and has a line sent back: `answer`, or the name of the error.
const CLIENT: &str = r#"
import socket, sys
kind, addr, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
family = socket.AF_INET6 if ':' in addr else socket.AF_INET
s = socket.socket(family, socket.SOCK_STREAM if kind == 'tcp' else socket.SOCK_DGRAM)
s.settimeout(float(sys.argv[4]))
try:
    s.connect((addr, port)); s.send(b'x\n'); s.recv(100); print('answer', flush=True)
    for line in sys.stdin:
        s.send(b'x\n'); s.recv(100); print('answer', flush=True)
except OSError as e: print(type(e).__name__, flush=True)
"#;

struct QueueHost {
    host: Plain,
    space: Namespace,
    peer: Namespace,
    instance: String,
    _server: Child,
    _veth: Veth,
    _net: Net,
}

fn serve(space: &Namespace) -> Child {
    let mut command = Command::new(PYTHON);
    command
        .args(["-c", SERVER])
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut server = space.spawn(command).unwrap();
    let mut lines = BufReader::new(server.inner().stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    server
}

impl QueueHost {
    /// A host without a daemon; none: what it takes is not here.
    fn new(name: &str) -> Option<Self> {
        if skipped(&PROGRAMS) {
            return None;
        }
        let net = Net::new().unwrap();
        let space = net.namespace("host").unwrap();
        let peer = net.namespace("peer").unwrap();
        let [own, other] = [HOST, PEER].map(|[v4, v6]| [format!("{v4}/24"), format!("{v6}/64")]);
        let opts = VethOpts::new(&[&own[0], &own[1]], &[&other[0], &other[1]]).unwrap();
        let veth = net.veth(&space, "eth0", &peer, "eth0", opts).unwrap();
        let wait = [
            "-t", "mangle", "-A", "OUTPUT", "-o", "none", "-j", "NFQUEUE",
        ];
        if let Err(error) = space.run("iptables", &wait) {
            eprintln!("skipped: {error} (probe: a rule with NFQUEUE)");
            return None;
        }
        space
            .run("iptables", &["-t", "mangle", "-F", "OUTPUT"])
            .unwrap();
        let server = serve(&peer);
        let mut host = Plain::new();
        host.under = ["nsenter", &format!("--net={}", space.path().display())]
            .map(str::to_owned)
            .to_vec();
        Some(Self {
            host,
            space,
            peer,
            instance: format!("nfq-{name}-{}", std::process::id()),
            _server: server,
            _veth: veth,
            _net: net,
        })
    }

    /// The same, with a daemon that has these rules.
    fn started(name: &str, rules: &str) -> Option<Self> {
        let mut host = Self::new(name)?;
        host.configure(rules);
        host.host.start();
        assert_eq!(host.host.json(&["app", "list"])["level"], "nfqueue");
        Some(host)
    }

    fn configure(&self, rules: &str) {
        self.host.configure_only(&format!(
            "instance = \"{}\"\n[app]\nlevel = \"nfqueue\"\n{rules}",
            self.instance
        ));
    }

    fn reload(&self, rules: &str) {
        self.configure(rules);
        self.host.done(&["reload"]);
    }

    /// A daemon that has these rules, and is killed then.
    fn reload_stopped(&mut self, rules: &str) {
        self.configure(rules);
        self.host.start();
        self.host.end("KILL");
    }

    /// What curl says of the peer's web server.
    fn curl(&self, address: &str) -> String {
        let address = match address.contains(':') {
            true => format!("[{address}]"),
            false => address.to_owned(),
        };
        let url = format!("http://{address}:8080/");
        let words = [
            "-sS",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "--max-time",
            "9",
            &url,
        ];
        let done = self.space.output("curl", &words).unwrap();
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// What a program that is python3 says of the peer's echo, within so many seconds.
    fn tries(&self, program: &str, kind: &str, address: &str, seconds: &str) -> String {
        let words = ["-c", CLIENT, kind, address, "7007", seconds];
        let done = self.space.output(program, &words).unwrap();
        let text = [done.stdout, done.stderr].concat();
        String::from_utf8_lossy(&text).trim().to_owned()
    }

    /// Another program than python3 that does the same.
    fn copy(&self, name: &str) -> String {
        let path = self.host.path(name).display().to_string();
        let copy = "cp \"$1\" \"$2\" && echo \"$3\" >> \"$2\"";
        let done = Command::new("sh")
            .args(["-c", copy, "sh", PYTHON, &path, name])
            .status();
        assert!(done.unwrap().success());
        path
    }

    fn rule(&self, name: &str) -> (u64, u64) {
        let list = self.host.json(&["app", "list"]);
        let rules = list["rules"].as_array().unwrap();
        let rule = rules.iter().find(|rule| rule["name"] == name).unwrap();
        (
            rule["judged"].as_u64().unwrap(),
            rule["dropped"].as_u64().unwrap(),
        )
    }

    /// All rules of iptables and nft in the namespace.
    fn firewall(&self) -> String {
        let text = |program: &str, words: &[&str]| {
            let done = self.space.output(program, words).unwrap();
            String::from_utf8_lossy(&done.stdout).into_owned()
        };
        let mut all = text("nft", &["-s", "list", "ruleset"]);
        for program in ["iptables-save", "ip6tables-save"] {
            let saved = text(program, &[]);
            // But when it was saved.
            let lines = saved.lines().filter(|line| !line.starts_with('#'));
            all.extend(lines.flat_map(|line| [line, "\n"]));
        }
        all
    }
}

impl Drop for QueueHost {
    fn drop(&mut self) {
        self.host.end_if_running();
        let _ = fs::remove_dir(Path::new("/sys/fs/bpf/weir").join(&self.instance));
    }
}

/// Says that what was tried was denied: packets were dropped, and the socket may have been ended.
#[track_caller]
fn denied(said: &str, what: &str) {
    let known = ["TimeoutError", "ConnectionAbortedError", "OSError"];
    assert!(known.contains(&said), "{what}: {said}");
}

/// Denies by default and allows these programs.
fn only(programs: &[(&str, &str)]) -> String {
    let rule = |(name, program): &(&str, &str)| {
        let exe = sha256(program);
        format!("[app.rules.{name}]\nverdict = \"allow\"\nexe = \"{exe}\"\n")
    };
    let rules: String = programs.iter().map(rule).collect();
    format!("default = \"drop\"\nunknown = \"drop\"\n{rules}")
}

/// A program that talks to the echo, and goes on for each line that it is given.
struct Talk {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Talk {
    fn begin(host: &QueueHost, program: &str, kind: &str, address: &str) -> Self {
        let mut command = Command::new(program);
        command
            .args(["-c", CLIENT, kind, address, "7007", "20"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = host.space.spawn(command).unwrap();
        let lines = BufReader::new(child.inner().stdout.take().unwrap()).lines();
        let mut talk = Self { child, lines };
        assert_eq!(talk.line(), "answer", "{kind} {address}");
        talk
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("it goes on").unwrap()
    }

    fn again(&mut self) -> String {
        let input = self.child.inner().stdin.as_mut().unwrap();
        // Who was cut off may have ended.
        let _ = writeln!(input, "more");
        self.line()
    }
}

#[test]
fn root_who_is_not_allowed_does_not_connect_and_who_is_does() {
    let Some(host) = QueueHost::started("basic", &only(&[("curl", "/usr/bin/curl")])) else {
        return;
    };
    for address in PEER {
        assert_eq!(host.curl(address), "200", "{address}: {}", host.host.said());
        for kind in ["tcp", "udp"] {
            let said = host.tries(PYTHON, kind, address, "2");
            denied(&said, &format!("{kind} {address}"));
        }
    }
    assert!(host.rule("curl").0 >= 2);
    assert!(host.rule("default").1 >= 4);
    let status = host.host.done(&["status"]);
    assert!(status.contains("nfqueue"), "{status}");
    // Now the other one.
    host.reload(&only(&[("python", PYTHON)]));
    for address in PEER {
        for kind in ["tcp", "udp"] {
            assert_eq!(
                host.tries(PYTHON, kind, address, "9"),
                "answer",
                "{kind} {address}"
            );
        }
        assert_eq!(host.curl(address), "000", "{address}");
    }
}

/// A child that has its parent's socket from it, and another one that has it by a message.
const SHARED: &str = r#"
import socket, sys, os, subprocess, array
how, other, addr = sys.argv[1:4]
family = socket.AF_INET6 if ':' in addr else socket.AF_INET
s = socket.socket(family); s.settimeout(float(sys.argv[4]))
wait = 'import sys; sys.stdin.read()'
take = 'import socket, array; a = socket.socket(fileno=0); a.recvmsg(1, 4096); a.send(b"x"); a.recv(1)'
if how == 'inherit':
    p = subprocess.Popen([other, '-c', wait], stdin=subprocess.PIPE, pass_fds=[s.fileno()])
elif how == 'message':
    ours, theirs = socket.socketpair()
    p = subprocess.Popen([other, '-c', take], stdin=theirs)
    ours.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [s.fileno()]))])
    ours.recv(1)
try: s.connect((addr, 7007)); s.send(b'x\n'); s.recv(9); print('answer')
except OSError as e: print(type(e).__name__)
if how != 'alone': p.kill()
"#;

#[test]
fn root_all_who_hold_a_socket_are_asked_about() {
    let Some(host) = QueueHost::new("holders") else {
        return;
    };
    let mut host = host;
    let other = host.copy("other-python");
    let tries = |host: &QueueHost, how: &str, address: &str, seconds: &str| {
        let words = ["-c", SHARED, how, &other, address, seconds];
        let done = host.space.output(PYTHON, &words).unwrap();
        let text = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        text.trim().to_owned()
    };
    host.configure(&only(&[("python", PYTHON)]));
    host.host.start();
    for address in PEER {
        assert_eq!(tries(&host, "alone", address, "9"), "answer", "{address}");
        for how in ["inherit", "message"] {
            let said = tries(&host, how, address, "2");
            denied(
                &said,
                &format!("{how} {address}: one holder is not allowed"),
            );
        }
    }
    // Two rules that allow one each do not allow both together.
    host.reload(&only(&[("python", PYTHON), ("other", &other)]));
    denied(&tries(&host, "inherit", PEER[0], "2"), "two rules");
    let both = format!("exe = [\"{}\", \"{}\"]\n", sha256(PYTHON), sha256(&other));
    host.reload(&format!(
        "{}[app.rules.both]\nverdict = \"allow\"\n{both}",
        only(&[])
    ));
    for how in ["inherit", "message"] {
        assert_eq!(tries(&host, how, PEER[0], "9"), "answer", "{how}: both are");
    }
    // One that denies holds if any of them fits.
    let deny = format!(
        "[app.rules.other]\nverdict = \"drop\"\nexe = \"{}\"\n",
        sha256(&other)
    );
    host.reload(&format!("default = \"allow\"\nunknown = \"drop\"\n{deny}"));
    assert_eq!(tries(&host, "alone", PEER[1], "9"), "answer");
    for how in ["inherit", "message"] {
        denied(&tries(&host, how, PEER[1], "2"), how);
    }
}

/// Connects before and after it has a library.
const LOADS: &str = r#"
import socket, sys, ctypes
library, addr = sys.argv[1:3]
family = socket.AF_INET6 if ':' in addr else socket.AF_INET
def tries(seconds):
    s = socket.socket(family); s.settimeout(seconds)
    try: s.connect((addr, 7007)); s.send(b'x\n'); s.recv(9); return 'answer'
    except OSError as e: return type(e).__name__
first = tries(9)
ctypes.CDLL(library)
print(first, tries(2))
"#;

#[test]
fn root_a_library_that_is_loaded_later_is_seen_at_the_next_connection() {
    let Some(mut host) = QueueHost::new("dlopen") else {
        return;
    };
    let library = host.host.path("library.so").display().to_string();
    let listed = Command::new("ldd").arg("/usr/bin/curl").output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let some = listed.lines().find_map(|line| {
        let path = line.split_once("=> ")?.1.split(' ').next()?;
        path.contains("libnghttp2").then(|| path.to_owned())
    });
    let Some(some) = some else {
        eprintln!("skipped: a library of curl's (probe: ldd)");
        return;
    };
    fs::copy(some, &library).unwrap();
    let rules = format!(
        "default = \"allow\"\nunknown = \"drop\"\n[app.rules.no]\nverdict = \"drop\"\nobject = \"{}\"\n",
        sha256(&library)
    );
    host.configure(&rules);
    host.host.start();
    for address in PEER {
        let done = host
            .space
            .output(PYTHON, &["-c", LOADS, &library, address])
            .unwrap();
        let text = [done.stdout, done.stderr].concat();
        let said = String::from_utf8_lossy(&text);
        let second = said.trim().strip_prefix("answer ");
        let second = second.unwrap_or_else(|| panic!("{said}: {}", host.host.said()));
        denied(second, address);
    }
}

#[test]
fn root_without_the_daemon_who_was_allowed_goes_on_and_nobody_else_begins() {
    let rules = only(&[("python", PYTHON)]);
    let Some(mut host) = QueueHost::started("killed", &rules) else {
        return;
    };
    let mut talks: Vec<_> = PEER
        .iter()
        .map(|to| Talk::begin(&host, PYTHON, "tcp", to))
        .collect();
    for signal in ["KILL", "TERM"] {
        // An answer marks the connection, which happens behind its first packet.
        talks
            .iter_mut()
            .for_each(|talk| assert_eq!(talk.again(), "answer"));
        host.host.end(signal);
        talks
            .iter_mut()
            .for_each(|talk| assert_eq!(talk.again(), "answer", "{signal}"));
        for address in PEER {
            assert_eq!(
                host.curl(address),
                "000",
                "{signal}: it was not allowed before"
            );
            for kind in ["tcp", "udp"] {
                let said = host.tries(PYTHON, kind, address, "2");
                assert_ne!(
                    said, "answer",
                    "{signal} {kind} {address}: nobody can tell who it is"
                );
            }
        }
        host.host.start();
        for address in PEER {
            assert_eq!(
                host.tries(PYTHON, "tcp", address, "9"),
                "answer",
                "{signal}"
            );
            assert_eq!(host.curl(address), "000", "{signal}");
        }
    }
    // Where nothing can be denied nobody waits for a daemon that is not there.
    host.reload("default = \"allow\"\nunknown = \"allow\"\n");
    host.host.end("KILL");
    assert_eq!(host.tries(PYTHON, "tcp", PEER[0], "9"), "answer");
    // The way out.
    host.reload_stopped(&rules);
    assert_ne!(host.tries(PYTHON, "tcp", PEER[0], "2"), "answer");
    let gone = host.host.done(&["detach"]);
    assert!(gone.contains("app-out"), "{gone}");
    assert_eq!(host.tries(PYTHON, "tcp", PEER[0], "9"), "answer");
}

#[test]
fn root_a_reload_revokes_what_it_no_longer_allows_and_spares_the_rest() {
    let Some(mut host) = QueueHost::new("revoke") else {
        return;
    };
    let other = host.copy("other-python");
    host.configure(&only(&[("python", PYTHON), ("other", &other)]));
    host.host.start();
    let begin = |program: &str| -> Vec<Talk> {
        let all = PEER
            .iter()
            .flat_map(|to| ["tcp", "udp"].map(|kind| (kind, to)));
        all.map(|(kind, to)| Talk::begin(&host, program, kind, to))
            .collect()
    };
    let (mut kept, mut revoked) = (begin(PYTHON), begin(&other));
    host.reload(&only(&[("python", PYTHON)]));
    for talk in &mut kept {
        assert_eq!(talk.again(), "answer");
    }
    for talk in &mut revoked {
        let said = talk.again();
        // A datagram socket has no peer then (EDESTADDRREQ).
        let ends = ["ConnectionAbortedError", "BrokenPipeError", "OSError"];
        assert!(ends.contains(&&*said), "{said}");
    }
    assert_eq!(host.host.json(&["app", "list"])["cut"], 4);
    let talks = host.host.said();
    assert!(talks.contains("cut off"), "{talks}");
}

#[test]
fn root_who_listens_is_judged_by_who_comes() {
    let Some(mut host) = QueueHost::new("in") else {
        return;
    };
    let rules = format!(
        "default = \"allow\"\nunknown = \"drop\"\n[app.rules.in]\nverdict = \"drop\"\nexe = \"{}\"\ndirection = \"in\"\nports = [\"7007\"]\n",
        sha256(PYTHON)
    );
    host.configure("default = \"allow\"\nunknown = \"allow\"\n");
    host.host.start();
    let _server = serve(&host.space);
    let from = |address: &str, kind: &str, port: &str, seconds: &str| {
        let words = ["-c", CLIENT, kind, address, port, seconds];
        let done = host.peer.output(PYTHON, &words).unwrap();
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    };
    let web = |address: &str| {
        let url = match address.contains(':') {
            true => format!("http://[{address}]:8080/"),
            false => format!("http://{address}:8080/"),
        };
        let words = [
            "-sS",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "--max-time",
            "9",
            &url,
        ];
        let done = host.peer.output("curl", &words).unwrap();
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    for address in HOST {
        for kind in ["tcp", "udp"] {
            assert_eq!(
                from(address, kind, "7007", "9"),
                "answer",
                "{kind} {address}"
            );
        }
    }
    host.reload(&rules);
    for address in HOST {
        for kind in ["tcp", "udp"] {
            denied(
                &from(address, kind, "7007", "2"),
                &format!("{kind} {address}"),
            );
        }
        assert_eq!(web(address), "200", "another port of the same program");
        // Nobody listens: the kernel says so, as without weir.
        let said = from(address, "tcp", "7008", "9");
        assert_eq!(said, "ConnectionRefusedError", "{address}");
    }
    // What python3 begins itself is not meant.
    assert_eq!(host.tries(PYTHON, "tcp", PEER[0], "9"), "answer");
}

#[test]
fn root_rules_of_others_stay_as_they_are() {
    let Some(mut host) = QueueHost::new("others") else {
        return;
    };
    let add = |program: &str, rule: &str| {
        let words: Vec<_> = rule.split(' ').collect();
        host.space.run(program, &words).unwrap();
    };
    // The chain INPUT of IPv6 is not there before.
    for program in ["iptables", "ip6tables"] {
        add(
            program,
            "-A OUTPUT -p tcp --dport 9 -m comment --comment others -j REJECT",
        );
    }
    add("iptables", "-t mangle -N other");
    add("iptables", "-t mangle -A OUTPUT -j other");
    add("iptables", "-t mangle -A INPUT -p udp -j MARK --set-mark 7");
    let nft = "table inet other {\n chain out {\n type filter hook output priority 5\n tcp dport 9 drop\n }\n}\n";
    host.space.run("nft", &[nft]).unwrap();
    let before = host.firewall();
    let rules = only(&[("python", PYTHON)]);
    host.configure(&rules);
    host.host.start();
    let during = host.firewall();
    let own = |line: &&str| line.contains("weir_");
    assert!(during.lines().any(|line| own(&line)), "{during}");
    for line in before.lines() {
        assert!(
            during.lines().any(|other| other == line),
            "{line}\n{during}"
        );
    }
    assert_eq!(host.tries(PYTHON, "tcp", PEER[0], "9"), "answer");
    // Somebody takes all rules of the table away: ours come back.
    host.space
        .run("iptables", &["-t", "mangle", "-F", "OUTPUT"])
        .unwrap();
    soon("the jump to be there again", || {
        let saved = host
            .space
            .output("iptables-save", &["-t", "mangle"])
            .unwrap();
        let saved = String::from_utf8_lossy(&saved.stdout).into_owned();
        saved
            .contains("-A OUTPUT -m comment --comment \"weir: programs\"")
            .then_some(())
    });
    add("iptables", "-t mangle -A OUTPUT -j other");
    // Or puts one before ours.
    add("iptables", "-t mangle -I OUTPUT -j ACCEPT");
    soon("the jump to be first again", || {
        let words = ["-t", "mangle", "-S", "OUTPUT", "1"];
        let first = host.space.output("iptables", &words).unwrap();
        let first = String::from_utf8_lossy(&first.stdout).into_owned();
        first.contains("weir: programs").then_some(())
    });
    assert!(host.host.alerts().contains("app:queue"));
    add("iptables", "-t mangle -D OUTPUT -j ACCEPT");
    // Without the table, and by detach behind a killed daemon.
    host.host
        .configure_only(&format!("instance = \"{}\"\n", host.instance));
    host.host.done(&["reload"]);
    assert_eq!(host.firewall(), before);
    host.reload(&rules);
    assert_ne!(host.firewall(), before);
    host.host.end("KILL");
    host.host.done(&["detach"]);
    assert_eq!(host.firewall(), before);
}

#[test]
fn root_more_than_can_wait_is_dropped_and_told() {
    let Some(host) = QueueHost::started("full", &only(&[("curl", "/usr/bin/curl")])) else {
        return;
    };
    // A stopped daemon answers nobody: more than the queue holds.
    host.host.signal("STOP");
    // Of many sockets: each may have so many bytes on their way.
    let flood = "import socket\nfor n in range(60):\n s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n for m in range(50): s.sendto(b'x', ('192.0.2.2', 9))";
    host.space.run(PYTHON, &["-c", flood]).unwrap();
    host.host.signal("CONT");
    soon("the alert", || {
        host.host.alerts().contains("app:queue").then_some(())
    });
    let list = host.host.json(&["app", "list"]);
    assert!(list["queue_dropped"].as_u64().unwrap() >= 1000, "{list}");
    // Nothing of it went out, and there is room again.
    assert_eq!(host.curl(PEER[0]), "200");
    denied(&host.tries(PYTHON, "udp", PEER[0], "2"), "udp");
}

/// Where nothing can be denied, what finds no room passes.
#[test]
fn root_nothing_is_dropped_where_rules_only_log() {
    let rules =
        "default = \"allow\"\n[app.rules.seen]\nverdict = \"log\"\npath = \"/usr/bin/curl\"\n";
    let Some(host) = QueueHost::started("logs", rules) else {
        return;
    };
    host.host.signal("STOP");
    let flood = "import socket\nfor n in range(60):\n s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n for m in range(50): s.sendto(b'x', ('192.0.2.2', 9))";
    host.space.run(PYTHON, &["-c", flood]).unwrap();
    host.host.signal("CONT");
    let sent = || {
        let text = host.space.output("cat", &["/proc/net/dev"]).unwrap();
        let text = String::from_utf8_lossy(&text.stdout).into_owned();
        let line = text
            .lines()
            .find(|line| line.trim().starts_with("eth0"))
            .unwrap();
        let sent: u64 = line.split_whitespace().nth(10).unwrap().parse().unwrap();
        sent
    };
    soon("all datagrams to leave", || (sent() >= 3000).then_some(()));
    let list = host.host.json(&["app", "list"]);
    assert_eq!(list["queue_dropped"], 0, "{list}");
}

#[test]
fn root_it_is_taken_by_itself_where_the_kernel_has_no_other() {
    let Some(mut host) = QueueHost::new("auto") else {
        return;
    };
    // No BTF is to be had.
    let hide = "mount --bind /dev/null /sys/kernel/btf/vmlinux && exec \"$@\"";
    let words = ["unshare", "-m", "sh", "-c", hide, "sh"].map(str::to_owned);
    host.host.under.splice(0..0, words);
    let rules = only(&[("python", PYTHON)]);
    host.host
        .configure_only(&format!("instance = \"{}\"\n[app]\n{rules}", host.instance));
    host.host.start();
    let list = host.host.json(&["app", "list"]);
    assert_eq!(list["level"], "nfqueue", "{list}");
    let misses = list["misses"].to_string();
    assert!(misses.contains("after its first packet"), "{misses}");
    for address in PEER {
        assert_eq!(host.tries(PYTHON, "tcp", address, "9"), "answer");
        assert_eq!(host.curl(address), "000");
    }
}

#[test]
fn root_what_it_cannot_judge_is_refused_by_name() {
    let Some(host) = QueueHost::new("refused") else {
        return;
    };
    for (rules, says) in [
        (
            "unknown = \"drop\"\nprompt_timeout = \"1m\"\n",
            "prompt_timeout in [app]",
        ),
        ("cgroup = \"/sys/fs/cgroup\"\n", "cgroup in [app]"),
        ("packages = \"follow\"\n", "packages = \"follow\""),
        (
            "[app.rules.a]\nverdict = \"drop\"\naltered = true\n",
            "altered in [app.rules.a]",
        ),
    ] {
        host.configure(rules);
        let said = host.host.refuses_to_start();
        assert!(
            said.contains("level nfqueue") && said.contains(says),
            "{said}"
        );
        let (code, said) = host.host.ask(&["check"]);
        assert!(said.contains(says), "{code:?} {said}");
    }
    assert!(!host.firewall().contains("weir_"), "nothing is left");
}

/// The rules of IPv4 are there when those of IPv6 turn out not to be had: they go again.
#[test]
fn root_a_start_that_is_refused_leaves_nothing_that_waits() {
    let Some(mut host) = QueueHost::new("refuses") else {
        return;
    };
    let before = host.firewall();
    let bin = host.host.path("bin");
    let path = format!("PATH={}:{}", bin.display(), std::env::var("PATH").unwrap());
    host.host.under.splice(0..0, ["env".to_owned(), path]);
    host.configure(&only(&[("python", PYTHON)]));
    for fails in ["save", "restore"] {
        let _ = fs::remove_dir_all(&bin);
        fs::create_dir(&bin).unwrap();
        for variant in ["", "-nft", "-legacy"] {
            let program = bin.join(format!("ip6tables{variant}-{fails}"));
            fs::write(&program, "#!/bin/sh\nexit 1\n").unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let said = host.host.refuses_to_start();
        assert!(said.contains("ip6tables"), "{said}");
        assert_eq!(host.firewall(), before, "{fails}");
        assert_eq!(host.curl(PEER[0]), "200", "{fails}");
    }
}

#[test]
fn root_a_rule_that_rejects_has_connect_fail_at_once() {
    let rules = format!(
        "default = \"allow\"\nunknown = \"drop\"\n[app.rules.no]\nverdict = \"reject\"\nexe = \"{}\"\n",
        sha256(PYTHON)
    );
    let Some(host) = QueueHost::started("reject", &rules) else {
        return;
    };
    for address in PEER {
        for kind in ["tcp", "udp"] {
            let said = host.tries(PYTHON, kind, address, "20");
            assert_eq!(said, "ConnectionAbortedError", "{kind} {address}");
        }
        assert_eq!(host.curl(address), "200", "{address}");
    }
}
