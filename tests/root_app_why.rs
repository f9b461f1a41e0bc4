//! `weir app why` about sockets, as ss prints them: who holds one, what was decided about it and
//! by which rule; of other network namespaces, without a connection, and without a process.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    fs::File,
    io::{BufRead, BufReader},
    process::{ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use app_host::{Running, TestHost, sha256};
use common::soon;
use serde_json::Value;
use weir_netlab::Child;

/// A program that makes sockets as it is told, one line each, and says their numbers.
const SOCKETS: &str = r#"
import socket, sys, os
kept = []
def told(s):
    kept.append(s)
    print(os.fstat(s.fileno()).st_ino, s.getsockname()[1], flush=True)
for line in sys.stdin:
    what, *args = line.split()
    family = socket.AF_INET6 if ':' in (args or [''])[0] else socket.AF_INET
    if what == 'tcp':
        for n in range(40):
            s = socket.socket(family); s.settimeout(5)
            try: s.connect((args[0], int(args[1]))); break
            except OSError as e: pass
        told(s)
    elif what == 'udp':
        s = socket.socket(family, socket.SOCK_DGRAM); s.bind((args[0], 0)); told(s)
    elif what == 'send':
        try: print(kept[-1].sendto(b'x', (args[0], int(args[1]))), flush=True)
        except OSError as e: print(type(e).__name__, flush=True)
    elif what == 'listen':
        s = socket.socket(family); s.bind((args[0], 0)); s.listen(4); told(s)
    elif what == 'over':
        # Three connections that the server has closed first, and one that goes on.
        s = socket.socket(family); s.bind((args[0], 0)); s.listen(4)
        for n in range(4):
            while True:
                c = socket.socket(family); c.settimeout(5)
                try: c.connect(s.getsockname()); break
                except OSError: c.close()
            a, _ = s.accept()
            if n < 3: a.close(); c.recv(1); c.close()
            else: kept.append(a); kept.append(c)
        told(s)
    elif what == 'idle':
        told(socket.socket(family))
    elif what == 'exec':
        n = os.dup(kept[-1].fileno()); os.set_inheritable(n, True)
        pid = os.spawnvp(os.P_NOWAIT, 'sleep', ['sleep', '300']); os.close(n)
        print(pid, flush=True)
    elif what == 'fill':
        s = socket.socket(family); s.bind((args[0], 0)); s.listen(4)
        c = socket.socket(family); c.connect(s.getsockname()); a, _ = s.accept()
        c.setblocking(False)
        try:
            while True: c.send(b'x' * 65536)
        except BlockingIOError: pass
        told(c); kept.append(a); kept.append(s)
    elif what == 'leave':
        # The peer stays, and reads nothing: what was sent waits without a process.
        if os.fork() == 0:
            kept[-3].close(); print('left', flush=True); sys.stdin.read(); os._exit(0)
        os._exit(0)
"#;

fn rules() -> String {
    format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.tool]\nverdict = \"allow\"\nexe = \"{}\"\nto = [\"127.0.0.0/8\", \"::1\"]\n[app.rules.serve]\nverdict = \"allow\"\ndirection = \"in\"\nexe = \"{}\"\nfrom = [\"127.0.0.1\", \"::1\"]\n",
        sha256("/usr/bin/python3"),
        sha256("/usr/bin/python3")
    )
}

struct Tool {
    running: Running,
}

impl Tool {
    fn new(host: &TestHost) -> Self {
        Self {
            running: host.begin(&["/usr/bin/python3", "-c", SOCKETS]),
        }
    }

    fn tell(&mut self, line: &str) -> String {
        self.running.say(line);
        self.running.line()
    }

    /// A socket's inode and port.
    fn socket(&mut self, line: &str) -> (u64, u16) {
        let told = self.tell(line);
        let (inode, port) = told.split_once(' ').unwrap();
        (inode.parse().unwrap(), port.parse().unwrap())
    }
}

/// What is said of the only socket that this is. One that nobody has accepted yet is told beside
/// its peer.
fn why(host: &TestHost, asked: &str) -> Value {
    soon("one socket alone", || {
        let why = host.host.json(&["app", "why", asked]);
        match &why["sockets"].as_array().unwrap()[..] {
            [socket] => Some(socket.clone()),
            _ => None,
        }
    })
}

fn is_python(holder: &Value) -> bool {
    let path = holder["exe"]["path"].as_str().unwrap_or_default();
    path.contains("/python3") && holder["exe"]["digest"] == sha256("/usr/bin/python3")
}

#[test]
fn root_a_connection_is_named_as_ss_prints_it_and_has_holder_verdict_and_rule() {
    let Some(host) = TestHost::new("why", &rules()) else {
        return;
    };
    let mut tool = Tool::new(&host);
    for (address, shown) in [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")] {
        let (inode, port) = tool.socket(&format!("tcp {address} 8080"));
        let ends = format!("tcp:{shown}:{port}-{shown}:8080");
        let socket = soon("the connection to be judged by who is known", || {
            let socket = why(&host, &ends);
            (socket["decided"]["rule"] == "tool").then_some(socket)
        });
        assert_eq!(socket["inode"], inode, "{socket}");
        assert_eq!(socket["state"], "established", "{socket}");
        assert_eq!(socket["decided"]["verdict"], "allow", "{socket}");
        assert_eq!(socket["decided"]["is_current"], true, "{socket}");
        assert_eq!(socket["direction"], "out", "{socket}");
        assert_eq!(socket["netns"]["is_own"], false, "{socket}");
        let holders = socket["holders"].as_array().unwrap();
        assert_eq!(holders.len(), 1, "{socket}");
        let holder = &holders[0];
        assert!(is_python(holder) && holder["is_noted"] == true, "{socket}");
        assert_eq!(holder["uid"], 0);
        assert_eq!(holder["processes"].as_array().unwrap().len(), 1);
        assert!(
            holder["cgroup"].as_str().unwrap().ends_with(&host.instance),
            "{socket}"
        );
        assert_eq!(holder["out"][0]["rule"], "tool", "{socket}");
        assert_eq!(holder["in"][0]["rule"], "serve", "{socket}");
        // All ways to name it are about the one.
        for other in [
            format!("inode:{inode}"),
            format!("{shown}:{port}->{shown}:8080"),
            format!("tcp::{port}"),
            format!(":{port}-:8080"),
        ] {
            assert_eq!(why(&host, &other)["inode"], inode, "{other}");
        }
        let said = host.host.done(&["app", "why", &format!(":{port}-:8080")]);
        for part in [
            "established",
            "allowed by rule tool; the program has begun it",
            "rules now: allow (tool)",
            "by itself, out: allow (tool)",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // Of TCP, not of UDP.
        let (code, said) = host.host.ask(&["app", "why", &format!("udp::{port}")]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("there is no socket udp::"), "{said}");
    }

    // Another program has it, too: all holders count, and it is said what each one may.
    let pid: u32 = tool.tell("exec").parse().unwrap();
    let (inode, _) = {
        // Between fork and exec it is what has begun it.
        soon("sleep to run", || {
            let said = host.host.json(&["app", "why", &pid.to_string()]);
            let path = said["program"]["exe"]["path"].as_str()?;
            ["sleep", "coreutils"]
                .iter()
                .any(|name| path.contains(name))
                .then_some(())
        });
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let inode = fds.flatten().find_map(|fd| {
            let link = std::fs::read_link(fd.path()).ok()?;
            let number = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            number.parse::<u64>().ok()
        });
        (inode.unwrap(), ())
    };
    let socket = why(&host, &format!("inode:{inode}"));
    let holders = socket["holders"].as_array().unwrap();
    assert_eq!(holders.len(), 2, "{socket}");
    let python = holders.iter().find(|holder| is_python(holder)).unwrap();
    let other = holders.iter().find(|holder| !is_python(holder)).unwrap();
    assert_eq!(python["out"][0]["rule"], "tool", "{socket}");
    assert_eq!(other["out"][0]["rule"], "default", "{socket}");
    assert_eq!(other["processes"][0]["pid"], pid, "{socket}");
    assert_eq!(socket["rules"][0]["rule"], "default", "{socket}");
    assert_eq!(socket["rules"][0]["verdict"], "drop", "{socket}");
    // It has not sent: the kernel counts it when it looks at all descriptors.
    soon(
        "the other holder to be noted, and the connection denied",
        || {
            let socket = why(&host, &format!("inode:{inode}"));
            let holders = socket["holders"].as_array().unwrap();
            holders
                .iter()
                .all(|holder| holder["is_noted"] == true)
                .then_some(())
        },
    );
}

#[test]
fn root_sockets_without_a_connection_are_told_of_with_rules_for_some_peers_and_flows() {
    let Some(host) = TestHost::new("whyudp", &rules()) else {
        return;
    };
    let mut tool = Tool::new(&host);
    for (address, shown, beyond) in [
        ("127.0.0.1", "127.0.0.1", "192.0.2.1"),
        ("::1", "[::1]", "2001:db8::1"),
    ] {
        let (inode, port) = tool.socket(&format!("udp {address}"));
        let ends = format!("udp:{shown}:{port}");
        let socket = why(&host, &ends);
        assert_eq!(socket["inode"], inode, "{socket}");
        assert_eq!(socket["state"], "not connected", "{socket}");
        assert_eq!(socket["remote"], Value::Null);
        assert!(is_python(&socket["holders"][0]), "{socket}");
        let out = socket["holders"][0]["out"].as_array().unwrap();
        let out: Vec<_> = out
            .iter()
            .map(|rule| (rule["rule"].as_str().unwrap(), rule["is_for_all"] == true))
            .collect();
        assert_eq!(out, [("tool", false), ("default", true)], "{socket}");
        let incoming = socket["holders"][0]["in"].as_array().unwrap();
        assert_eq!(incoming[0]["rule"], "serve", "{socket}");
        assert_eq!(incoming[0]["is_for_all"], false, "{socket}");
        // Each flow has its verdict.
        soon("a datagram to pass", || {
            (tool.tell(&format!("send {address} 9")) == "1").then_some(())
        });
        let socket = why(&host, &ends);
        let flow = |peer: &str, socket: &Value| {
            let mut flows = socket["flows"].as_array().unwrap().iter();
            flows.find(|flow| flow["peer"] == peer).cloned()
        };
        let passed = flow(&format!("{shown}:9"), &socket).unwrap();
        assert_eq!(passed["verdict"], "allow", "{socket}");
        assert_eq!(passed["rule"], "tool", "{socket}");
        assert_eq!(passed["direction"], "out", "{socket}");
        let said = host.host.done(&["app", "why", &ends]);
        let line = format!("flow to {shown}:9: allowed by rule tool");
        assert!(said.contains(&line), "{said}");
        assert!(
            said.contains("allow (tool) some peers, else drop (default)"),
            "{said}"
        );

        // One that listens, asked about by an address of the many that it is bound to.
        let all = if shown.starts_with('[') {
            "::"
        } else {
            "0.0.0.0"
        };
        let (inode, port) = tool.socket(&format!("listen {all}"));
        let socket = why(&host, &format!("tcp:{shown}:{port}"));
        assert_eq!(
            (&socket["inode"], &socket["state"]),
            (&inode.into(), &"listening".into())
        );
        assert_eq!(socket["decided"], Value::Null, "{socket}");
        assert_eq!(socket["rules"][0]["rule"], "serve", "{socket}");
        // One that is neither bound nor connected.
        let (inode, _) = tool.socket(&format!("idle {address}"));
        let socket = why(&host, &format!("inode:{inode}"));
        assert!(is_python(&socket["holders"][0]), "{socket}");
        let _ = beyond;
    }

    // In a network namespace of another container.
    let space = host.net.namespace("other").unwrap();
    space.run("ip", &["link", "set", "lo", "up"]).unwrap();
    let mut other = Tool {
        running: host.begin_in(&space, &["/usr/bin/python3", "-c", SOCKETS]),
    };
    let (inode, port) = other.socket("udp ::1");
    let socket = why(&host, &format!("udp:[::1]:{port}"));
    assert_eq!(socket["inode"], inode, "{socket}");
    let (inode_of, own) = (
        std::fs::metadata(space.path()).unwrap(),
        std::fs::metadata("/proc/self/ns/net").unwrap(),
    );
    use std::os::unix::fs::MetadataExt;
    assert_eq!(socket["netns"]["inode"], inode_of.ino(), "{socket}");
    assert_ne!(inode_of.ino(), own.ino());

    // What names no socket is told what does.
    for wrong in ["tcp:x", "4711x", "::1:80", "inode:", ":99999"] {
        let (code, said) = host.host.ask(&["app", "why", wrong]);
        assert_eq!(code, Some(2), "{said}");
        assert!(
            said.contains("is no process and no socket; allowed: "),
            "{said}"
        );
    }
    let (code, said) = host.host.ask(&["app", "why", "inode:18446744073709551615"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("there is no socket inode:"), "{said}");
}

/// Of a connection whose process is gone, while the kernel still sends for it, the kernel's
/// record says whose it was.
#[test]
fn root_a_connection_without_a_process_is_told_of_by_its_record() {
    let Some(host) = TestHost::new("whygone", &rules()) else {
        return;
    };
    for address in ["127.0.0.1", "::1"] {
        let mut tool = Tool::new(&host);
        // Known first, or the connection to itself would not come about.
        tool.socket(&format!("tcp {address} 8080"));
        let (_, port) = tool.socket(&format!("fill {address}"));
        let shown = match address.contains(':') {
            true => format!("[{address}]"),
            false => address.to_owned(),
        };
        assert_eq!(tool.tell("leave"), "left");
        let socket = soon("the process to be gone", || {
            let socket = why(&host, &format!("tcp:{shown}:{port}"));
            (socket["inode"] == Value::Null).then_some(socket)
        });
        assert_eq!(socket["state"], "closing (FIN-WAIT-1)", "{socket}");
        assert_eq!(socket["decided"]["rule"], "tool", "{socket}");
        let holder = &socket["holders"][0];
        assert!(is_python(holder), "{socket}");
        assert_eq!(holder["processes"].as_array().unwrap().len(), 0, "{socket}");
        let (_, said) = host
            .host
            .ask(&["app", "why", &format!("tcp:{shown}:{port}")]);
        assert!(said.contains("no process that has it open"), "{said}");
    }
}

/// A port may be the own end of some sockets and the remote end of others; what is over is counted.
#[test]
fn root_a_port_is_that_of_both_ends_and_sockets_in_time_wait_are_counted() {
    let Some(host) = TestHost::new("whyport", &rules()) else {
        return;
    };
    let mut tool = Tool::new(&host);
    for (address, shown) in [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")] {
        let (inode, port) = tool.socket(&format!("over {address}"));
        for asked in [format!("tcp::{port}"), format!("{shown}:{port}")] {
            let why = host.host.json(&["app", "why", &asked]);
            let in_state = |state: &str| {
                let sockets = why["sockets"].as_array().unwrap().iter();
                let sockets = sockets.filter(|socket| socket["state"] == state);
                sockets.cloned().collect::<Vec<_>>()
            };
            assert_eq!(in_state("closed (TIME-WAIT)").len(), 3, "{why}");
            assert_eq!(in_state("listening")[0]["inode"], inode, "{why}");
            assert_eq!(in_state("established").len(), 1, "{why}");
            let remote = why["by_remote"]["sockets"].as_array().unwrap();
            assert_eq!(remote.len(), 1, "{why}");
            assert_eq!(remote[0]["remote"], format!("{shown}:{port}"), "{why}");

            // Whether a rule decides by now is not what this is about.
            let (_, said) = host.host.ask(&["app", "why", &asked]);
            let (own, remote) = said.split_once("connected to ").unwrap();
            assert!(!said.contains("closed (TIME-WAIT)"), "{said}");
            let counted = "3 sockets in TIME-WAIT, and nobody holds them";
            assert!(
                own.contains(counted) && own.contains(": listening"),
                "{said}"
            );
            assert!(remote.contains(", as the remote end:\ntcp "), "{said}");
            let peer = format!(" - {shown}:{port}: established");
            assert!(remote.contains(&peer) && !own.contains(&peer), "{said}");
        }
        // The end of the client, which listens nowhere.
        let client = host
            .host
            .json(&["app", "why", &format!(":*-{shown}:{port}")]);
        assert_eq!(client["by_remote"], Value::Null, "{client}");
        let local = client["sockets"][0]["local"].as_str().unwrap();
        let why = host.host.json(&["app", "why", local]);
        assert_eq!(why["by_remote"]["sockets"][0]["remote"], local, "{why}");
    }
    // Nobody here has it, and no process is at either end: both were asked about.
    let (code, said) = host.host.ask(&["app", "why", "tcp:192.0.2.9:1"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("there is no socket tcp:192.0.2.9:1 of"),
        "{said}"
    );
}

/// Maps files executable that take long to read, and listens.
const LONG: &str = "
import mmap, os, socket, sys
kept = []
for path in sys.argv[1:]:
    f = os.open(path, os.O_RDONLY)
    kept.append(mmap.mmap(f, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))
for family, address in (socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1'):
    s = socket.socket(family); s.bind((address, 0)); s.listen(4); kept.append(s)
    print(s.getsockname()[1], flush=True)
sys.stdin.read()
";

/// One that nobody judges, so that it is read for answers alone.
struct Slow {
    _process: Child,
    _input: ChildStdin,
    _files: tempfile::TempDir,
    pid: String,
    /// Its sockets, of IPv4 and of IPv6.
    sockets: Vec<String>,
}

impl Slow {
    fn new(host: &TestHost) -> Self {
        // Holes in memory, which take no room. Each is read within two seconds, and all are not.
        let files = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", LONG]);
        for number in 0..40 {
            let path = files.path().join(number.to_string());
            let file = File::create(&path).unwrap();
            file.set_len(256 << 20).unwrap();
            command.arg(path);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = host.space.spawn(command).unwrap();
        let input = process.inner().stdin.take().unwrap();
        let lines = BufReader::new(process.inner().stdout.take().unwrap()).lines();
        let sockets = ["127.0.0.1", "[::1]"].into_iter().zip(lines);
        let sockets = sockets.map(|(address, port)| format!("tcp:{address}:{}", port.unwrap()));
        Self {
            sockets: sockets.collect(),
            pid: process.inner().id().to_string(),
            _process: process,
            _input: input,
            _files: files,
        }
    }
}

/// Others wait while files are read for an answer: so it is given within two seconds, and says so.
#[test]
fn root_what_takes_too_long_to_read_is_said_and_not_waited_for() {
    let Some(host) = TestHost::new("long", &rules()) else {
        return;
    };
    let asked = |asked: &str| -> Value {
        let (_, said) = host.host.ask(&["app", "why", asked, "--json"]);
        serde_json::from_str(&said).unwrap_or_else(|_| panic!("{asked}: {said}"))
    };
    // What each answer takes, on a machine that does something else as well.
    let soon_enough = |begun: Instant| {
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}");
    };
    for family in 0..2 {
        let slow = Slow::new(&host);
        let begun = Instant::now();
        let why = asked(&slow.sockets[family]);
        soon_enough(begun);
        assert_eq!(why["gave_up"], true, "{why}");
        assert_eq!(why["sockets"].as_array().unwrap().len(), 1, "{why}");
        // For people, of another one that nobody has read.
        let other = Slow::new(&host);
        let named = [&other.pid, &other.sockets[1]][family];
        let (_, said) = host.host.ask(&["app", "why", named]);
        assert!(said.contains("gave up after 2 s"), "{said}");
    }
    let slow = Slow::new(&host);
    let begun = Instant::now();
    let why = asked(&slow.pid);
    soon_enough(begun);
    assert_eq!(why["gave_up"], true, "{why}");
    assert_eq!(why["aggregate"], Value::Null, "{why}");
    // What was read is known: there is an answer some time.
    let why = soon("all to be read", || {
        let why = asked(&slow.pid);
        (why["gave_up"] == false).then_some(why)
    });
    assert!(why["aggregate"].is_string(), "{why}");
    for socket in &slow.sockets {
        let why = asked(socket);
        assert_eq!(why["gave_up"], false, "{why}");
    }
}
