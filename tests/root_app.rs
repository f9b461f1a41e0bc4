//! Rules about programs, with the daemon and real programs: curl may, python3 may not, also
//! while no daemon runs. Everything happens in a network namespace and in a control group
//! of the test's own: nobody else on the machine is judged.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use app_host::{ADDRESSES, TestHost, curl_only, sha256, wanted};
use common::soon;
use weir_bpf::identity::{Level, level};

#[test]
fn root_a_rule_lets_curl_through_and_stops_python_also_without_a_daemon() {
    let Some(mut host) = TestHost::new("first", &curl_only()) else {
        return;
    };
    for address in ADDRESSES {
        // Not known at first: TCP asks again after a second.
        soon("the server, and curl to be known", || {
            (host.curl(address) == "200").then_some(())
        });
        soon("python to be known, and refused at once", || {
            (host.connects(address).trim() == "PermissionError").then_some(())
        });
        assert_eq!(host.curl(address), "200");
    }
    let rules = host.host.json(&["app", "list"]);
    let row = |name: &str| {
        let mut rules = rules["rules"].as_array().unwrap().iter();
        rules.find(|rule| rule["name"] == name).unwrap().clone()
    };
    assert!(row("curl")["judged"].as_u64().unwrap() >= 4, "{rules}");
    assert!(row("default")["dropped"].as_u64().unwrap() >= 2, "{rules}");
    assert_eq!(rules["level"], level_of_release());
    let checked = host.host.json(&["check"]);
    assert_eq!(checked["app"]["level"], level_of_release());
    assert!(host.host.said().contains("python3"), "{}", host.host.said());

    host.host.end("KILL");
    for address in ADDRESSES {
        assert_eq!(host.curl(address), "200");
        assert_eq!(host.connects(address).trim(), "PermissionError");
    }
    // Who has not been seen before is what `unknown` says: nobody can ask who it is.
    let perl = "use IO::Socket::IP; print IO::Socket::IP->new(PeerAddr=>'127.0.0.1',PeerPort=>8080,Timeout=>2) ? 'connected' : 'no'";
    let done = host.run(&["perl", "-e", perl]);
    assert_eq!(String::from_utf8_lossy(&done.stdout), "no");

    // The next one takes over what is there.
    host.host.start();
    for address in ADDRESSES {
        soon("curl after the restart", || {
            (host.curl(address) == "200").then_some(())
        });
        soon("python after the restart", || {
            (host.connects(address).trim() == "PermissionError").then_some(())
        });
    }
}

/// The level that is asked for, or by the kernel's number: `tcp_sendmsg_locked` is a
/// tracepoint since 6.16, and since 6.7 the kernel walks over mappings.
fn level_of_release() -> &'static str {
    if let Some(wanted) = wanted() {
        return wanted.name();
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|n| n.trim().parse::<u32>().ok());
    match (numbers.next().unwrap(), numbers.next().unwrap()) {
        (6, 16..) | (7.., _) => "tracepoint",
        (6, 7..) => "fentry",
        _ => "push",
    }
}

/// `level` in `[app]` takes a level that is there, also over a reload, and names what is
/// missing for another one.
#[test]
fn root_a_level_is_taken_by_name_or_refused_by_name() {
    let Some(host) = TestHost::new("level", &curl_only()) else {
        return;
    };
    let in_force = || host.host.json(&["app", "list"])["level"].clone();
    let (mut before, mut taken) = (in_force(), 0);
    for (name, wanted) in Level::ALL {
        host.configure_at(name, &curl_only());
        if let Err(lacks) = level(Some(wanted)) {
            for ask in [&["check"][..], &["reload"]] {
                let (code, said) = host.host.ask(ask);
                assert_ne!(code, Some(0), "{name}: {said}");
                let expected = format!("level = {name:?} in [app] needs {}", lacks.join(", "));
                let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
                assert!(said.contains(&expected), "{said}\n{expected}");
            }
            assert_eq!(in_force(), before, "{name}");
            continue;
        }
        // The verifier takes its time with the programs of another level, and on a busy
        // machine longer than who asks for the reload waits.
        let _ = host.host.ask(&["reload"]);
        let until = Instant::now() + Duration::from_secs(300);
        let is_in_force = || {
            let (_, said) = host.host.ask(&["app", "list", "--json"]);
            said.replace(' ', "")
                .contains(&format!("\"level\":\"{name}\""))
        };
        while !is_in_force() {
            assert!(Instant::now() < until, "level {name} is not in force");
        }
        (before, taken) = (in_force(), taken + 1);
        for address in ADDRESSES {
            soon("curl to be known", || {
                (host.curl(address) == "200").then_some(())
            });
            soon("python to be known, and refused at once", || {
                (host.connects(address).trim() == "PermissionError").then_some(())
            });
        }
    }
    assert!(taken > 0);
}

/// Each way in which another program, or other code, comes to a connection that was
/// allowed: what is sent then does not arrive unless it is the same program.
#[test]
fn root_a_connection_is_judged_again_when_its_sender_is_another_one() {
    let objects = "/usr/lib/x86_64-linux-gnu/libgcc_s.so.1";
    let rules = format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.lib]\nverdict = \"drop\"\nobject = \"{}\"\n[app.rules.python]\nverdict = \"allow\"\nexe = \"{}\"\n",
        sha256(objects),
        sha256("/usr/bin/python3")
    );
    if !Path::new(objects).exists() {
        eprintln!("skipped: {objects} (probe: it is not there)");
        return;
    }
    let Some(host) = TestHost::new("again", &rules) else {
        return;
    };
    soon("python to be known", || {
        (host.connects("127.0.0.1").trim() == "connected").then_some(())
    });
    for family in ["4", "6"] {
        for (mode, arrives) in [
            ("data", true),
            ("fork", true),
            ("same-scm", true),
            ("dlopen", false),
            ("exec", false),
            ("rie", false),
            ("room", false),
            ("open", false),
        ] {
            let told = host.run(&["/usr/bin/python3", "-c", SCENARIO, mode, family, objects]);
            let told = String::from_utf8_lossy(&[told.stdout, told.stderr].concat()).into_owned();
            assert!(told.contains("before: b'before'"), "{mode}: {told}");
            assert_eq!(
                told.contains("after: b'after'"),
                arrives,
                "{mode} IPv{family}: {told}"
            );
        }
    }
}

/// A connection to itself, on which something is sent before and after a change.
const SCENARIO: &str = r#"
import sys, socket, os, ctypes, mmap, array, time, threading
mode, family, lib = sys.argv[1:4]
kind, addr = (socket.AF_INET, '127.0.0.1') if family == '4' else (socket.AF_INET6, '::1')
l = socket.socket(kind); l.bind((addr, 0)); l.listen(1)
libc = ctypes.CDLL(None)
def connected():
    for n in range(10):
        c = socket.socket(kind); c.settimeout(1.5)
        try:
            c.connect(l.getsockname()); return c
        except OSError: time.sleep(.2)
c = connected(); s, _ = l.accept()
s.settimeout(5); c.send(b'before'); print('before:', s.recv(100), flush=True)
s.settimeout(1.5); c.settimeout(None)
if mode == 'data':
    m = mmap.mmap(-1, 1 << 20); b = bytearray(50 << 20); c.send(b'after')
elif mode == 'fork':
    if os.fork() == 0:
        c.send(b'after'); time.sleep(2); os._exit(0)
elif mode == 'same-scm':
    a, b = socket.socketpair()
    if os.fork() == 0:
        c.close(); m, anc, _, _ = b.recvmsg(1, 100); fd = array.array('i', anc[0][2][:4])[0]
        os.write(fd, b'after'); time.sleep(2); os._exit(0)
    a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [c.fileno()]))])
elif mode == 'dlopen':
    ctypes.CDLL(lib); c.send(b'after')
elif mode == 'exec':
    if os.fork() == 0:
        os.dup2(c.fileno(), 9, True); os.execvp('sh', ['sh', '-c', 'echo after >&9; sleep 2'])
elif mode == 'rie':
    f = os.open(lib, 0); libc.personality(0x0400000)
    m = mmap.mmap(f, 4096, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE); libc.personality(0); c.send(b'after')
elif mode == 'room':
    # One send, which waits for room while another thread loads the library.
    c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    threading.Thread(target=c.send, args=[b'x' * (16 << 20) + b'after'], daemon=True).start()
    time.sleep(1); ctypes.CDLL(lib)
elif mode == 'open':
    # The same, and it waits for the connection: there is no room in the queue of these.
    l = socket.socket(kind); l.bind((addr, 0)); l.listen(0); full = connected()
    c = socket.socket(kind); c.setblocking(False); c.connect_ex(l.getsockname()); c.setblocking(True)
    threading.Thread(target=c.send, args=[b'after'], daemon=True).start()
    time.sleep(.5); ctypes.CDLL(lib); l.accept(); l.settimeout(5)
    s, _ = l.accept(); s.settimeout(1.5)
try:
    got = s.recv(1 << 20)
    while mode == 'room' and not got.endswith(b'after'): got = got[-5:] + s.recv(1 << 20)
    print('after:', got[-5:], flush=True)
except OSError as e: print('nothing', e, flush=True)
os._exit(0)
"#;

#[test]
fn root_other_ways_to_send_are_closed_and_rules_hold_for_what_is_connected() {
    let Some(host) = TestHost::new("ways", &curl_only()) else {
        return;
    };
    soon("curl to be known", || {
        (host.curl("127.0.0.1") == "200").then_some(())
    });
    // A rule that logs decides nothing, and is told of.
    host.configure(&format!(
        "{}[app.rules.seen]\nverdict = \"log\"\nports = [\"8080/tcp\"]\n",
        curl_only()
    ));
    host.host.done(&["reload"]);
    soon("the connection to be logged", || {
        assert_eq!(host.curl("127.0.0.1"), "200");
        host.host
            .said()
            .contains("logged to 127.0.0.1 port 8080, seen")
            .then_some(())
    });
    // Raw sockets, MPTCP and SMC, by a program that may not.
    for (kind, args) in [
        (
            "raw",
            "socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP",
        ),
        (
            "raw6",
            "socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW",
        ),
        ("mptcp", "socket.AF_INET, socket.SOCK_STREAM, 262"),
        ("smc", "socket.AF_INET, socket.SOCK_STREAM, 256"),
    ] {
        let script = format!(
            "import errno, socket\ntry: socket.socket({args}); print('made')\nexcept OSError as e: print(type(e).__name__, errno.errorcode[e.errno])"
        );
        // Outside of the control group: whether this kernel has such sockets at all.
        let outside = host.space.output("/usr/bin/python3", &["-c", &script]);
        let outside = String::from_utf8_lossy(&outside.unwrap().stdout).into_owned();
        if kind == "smc" && outside.contains("EPROTONOSUPPORT") {
            eprintln!("skipped: {kind}: the module smc (probe: socket(AF_INET, SOCK_STREAM, 256))");
            continue;
        }
        let told = host.python(&script);
        assert!(told.starts_with("PermissionError "), "{kind}: {told}");
    }
    // What comes in is judged by who listens: python3 may not be reached.
    let listens = format!(
        "echo 0 > {}/cgroup.procs && exec /usr/bin/python3 -m http.server -b 127.0.0.1 8081",
        host.cgroup.display()
    );
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", &listens])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    let server = host.space.spawn(command).unwrap();
    let reach = || {
        let done = host.space.output(
            "curl",
            &[
                "-sS",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                "--max-time",
                "2",
                "http://127.0.0.1:8081/",
            ],
        );
        String::from_utf8_lossy(&done.unwrap().stdout).into_owned()
    };
    for _ in 0..3 {
        assert_eq!(reach(), "000");
    }
    // Another rule, in force without a restart.
    host.configure(&format!(
        "{}[app.rules.server]\nverdict = \"allow\"\ndirection = \"in\"\nports = [\"8081/tcp\"]\nexe = \"{}\"\n",
        curl_only(),
        sha256("/usr/bin/python3")
    ));
    host.host.done(&["reload"]);
    soon("the server to be reached", || {
        (reach() == "200").then_some(())
    });
    // It is about what comes in, and about that port alone.
    soon("python to be known, and refused", || {
        let told = host.connects("127.0.0.1");
        assert!(!told.contains("connected"), "{told}");
        (told.trim() == "PermissionError").then_some(())
    });
    drop(server);
}

/// The kernel takes its own address for none (0.0.0.0, ::): the rules are asked about that.
#[test]
fn root_an_address_that_is_none_is_the_one_that_the_kernel_takes() {
    let loopback = "to = [\"127.0.0.0/8\", \"::1\"]\n";
    let denies = format!("default = \"allow\"\n[app.rules.own]\nverdict = \"reject\"\n{loopback}");
    let Some(host) = TestHost::new("nobody", &denies) else {
        return;
    };
    let none = ["0.0.0.0", "::", "::ffff:0.0.0.0"];
    for address in none {
        assert_eq!(
            host.connects(address).trim(),
            "PermissionError",
            "{address}"
        );
    }
    host.configure(&format!(
        "default = \"reject\"\nunknown = \"drop\"\n[app.rules.own]\nverdict = \"allow\"\nexe = \"{}\"\n{loopback}",
        app_host::sha256("/usr/bin/python3")
    ));
    host.host.done(&["reload"]);
    for address in none {
        soon("python to be known", || {
            (host.connects(address).trim() == "connected").then_some(())
        });
    }
    // Bound to another address of this host, that one is the peer.
    host.space
        .run("ip", &["addr", "add", "192.0.2.9/32", "dev", "lo"])
        .unwrap();
    let told = host.python(
        "import socket\ns = socket.socket(); s.bind(('192.0.2.9', 0))\ntry: s.connect(('0.0.0.0', 8080)); print('connected')\nexcept OSError as e: print(type(e).__name__)",
    );
    assert_eq!(told.trim(), "PermissionError");
}

/// A rule by control group, as container engines name them, holds for a container that
/// begins later, in a network namespace of its own, without a reload; not for another
/// engine's.
#[test]
fn root_a_rule_by_control_group_holds_for_a_container_that_begins_later() {
    let instance = format!("weir-test-app-later-{}", std::process::id());
    let rules = format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.containers]\nverdict = \"allow\"\ncgroup = \"/{instance}/docker-*.scope\"\nports = [\"8080/tcp\"]\n"
    );
    let Some(host) = TestHost::new("later", &rules) else {
        return;
    };
    let space = host.net.namespace("later").unwrap();
    space.run("ip", &["link", "set", "lo", "up"]).unwrap();
    let servers = ["127.0.0.1", "::1"].map(|address| {
        let mut command = std::process::Command::new("/usr/bin/python3");
        command
            .args(["-m", "http.server", "-b", address, "8080"])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        space.spawn(command).unwrap()
    });
    let containers = ["docker-1.scope", "docker-2.scope", "podman-1.scope"];
    let containers = containers.map(|name| host.cgroup.join(name));
    let answer = |container: &Path, address: &str| {
        let script = format!(
            "echo 0 > {}/cgroup.procs && exec curl -s -o /dev/null -w '%{{http_code}}' --max-time 6 http://{address}:8080/",
            container.display()
        );
        let done = space.output("sh", &["-c", &script]).unwrap();
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    for container in &containers {
        std::fs::create_dir(container).unwrap();
    }
    for address in ADDRESSES {
        for container in &containers[..2] {
            soon("the server, and the container to be known", || {
                (answer(container, address) == "200").then_some(())
            });
        }
        assert_eq!(answer(&containers[2], address), "000");
        assert_eq!(host.curl(address), "000");
    }
    drop(servers);
}
