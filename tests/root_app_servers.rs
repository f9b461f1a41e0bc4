//! Servers under rules about programs: a real nginx with workers, other programs at its port by
//! SO_REUSEPORT, descriptors beyond 255, and a socket that more programs hold than are remembered.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    fs,
    process::{Command, Stdio},
    time::Duration,
};

use app_host::{TestHost, sha256};
use common::{skipped, soon};

const PYTHON: &str = "/usr/bin/python3";
const NGINX: &str = "/usr/sbin/nginx";
const CLOSED: &str = "default = \"drop\"\nunknown = \"drop\"\n";
const SITES: [&str; 2] = ["http://127.0.0.1:8090/", "http://[::1]:8090/"];

/// What somebody outside of the control group is answered; nothing within two seconds: empty.
fn fetched(host: &TestHost, url: &str) -> String {
    let done = host.space.output("curl", &["-s", "--max-time", "2", url]);
    String::from_utf8_lossy(&done.unwrap().stdout)
        .trim()
        .to_owned()
}

/// Serves `another program` at the port of nginx, beside it, and says what it has taken.
const BESIDE: &str = r#"
import socket, sys, threading, time
taken = 0
def serve(kind, addr):
    global taken
    l = socket.socket(kind); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # Connections of workers, which are another user's, may be there still.
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.bind((addr, 8090)); l.listen(50)
    # In one piece: print would write the end of the line by itself, and the other thread between.
    sys.stdout.write('listens\n'); sys.stdout.flush()
    while True:
        c, _ = l.accept(); taken += 1
        try: c.recv(1000); c.send(b'HTTP/1.0 200 OK\r\n\r\nanother program'); c.close()
        except OSError: pass
for kind, addr in [(socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')]:
    threading.Thread(target=serve, args=(kind, addr), daemon=True).start()
sys.stdin.readline(); print('taken', taken, flush=True)
"#;

#[test]
fn root_nginx_is_reached_and_another_program_at_its_port_is_not() {
    if skipped(&[NGINX]) {
        return;
    }
    let rules = |more: &str| {
        format!(
            "{CLOSED}[app.rules.web]\nverdict = \"allow\"\npath = \"{NGINX}\"\ndirection = \"in\"\nports = [\"8090/tcp\"]\n{more}"
        )
    };
    let Some(host) = TestHost::new("nginx", &rules("")) else {
        return;
    };
    let dir = host.host.path("nginx");
    fs::create_dir(&dir).unwrap();
    let at = dir.display();
    let config = format!(
        "daemon off; worker_processes 2; user www-data; pid {at}/pid; error_log {at}/error.log;
         events {{ worker_connections 64; }}
         http {{
             access_log off; client_body_temp_path {at}/tmp; proxy_temp_path {at}/tmp;
             fastcgi_temp_path {at}/tmp; uwsgi_temp_path {at}/tmp; scgi_temp_path {at}/tmp;
             server {{
                 listen 127.0.0.1:8090 reuseport; listen [::1]:8090 reuseport;
                 location / {{ return 200 'nginx $pid'; }}
             }}
         }}"
    );
    let conf = host.host.write("nginx/conf", &config);
    let conf = conf.to_str().unwrap();
    let enter = format!(
        "echo 0 > {}/cgroup.procs && exec \"$@\"",
        host.cgroup.display()
    );
    let mut command = Command::new("sh");
    command
        .args(["-c", &enter, "sh", NGINX, "-c", conf])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let nginx = host.space.spawn(command).unwrap();
    let answers = |url: &str| fetched(&host, url).starts_with("nginx ");
    for url in SITES {
        soon("nginx", || answers(url).then_some(()));
    }
    // Its workers are others after a reload, and the same program.
    nginx.signal(1).unwrap();
    for url in SITES {
        for _ in 0..6 {
            soon("nginx after its reload", || answers(url).then_some(()));
        }
    }
    let tried = |url: &str| {
        let told: Vec<_> = (0..16).map(|_| fetched(&host, url)).collect();
        let of = |what: &str| told.iter().filter(|text| text.starts_with(what)).count();
        (of("nginx "), of("another program"), of(""))
    };
    // Known by then: it serves, and what comes to it is dropped, not handed to nginx.
    let mut beside = host.begin(&[PYTHON, "-c", BESIDE]);
    assert_eq!([beside.line(), beside.line()], ["listens", "listens"]);
    for url in SITES {
        let (by_nginx, by_another, all) = tried(url);
        assert_eq!((by_another, all), (0, 16), "{url}");
        assert!(by_nginx > 0, "{url}");
    }
    beside.go_on();
    assert_eq!(beside.line(), "taken 0");
    beside.ended();
    // And with a rule it is reached: connections do come there.
    host.configure(&rules(&format!(
        "[app.rules.another]\nverdict = \"allow\"\nexe = \"{}\"\ndirection = \"in\"\n",
        sha256(PYTHON)
    )));
    host.host.done(&["reload"]);
    let mut beside = host.begin(&[PYTHON, "-c", BESIDE]);
    assert_eq!([beside.line(), beside.line()], ["listens", "listens"]);
    for url in SITES {
        soon("the other program, which may now", || {
            (fetched(&host, url) == "another program").then_some(())
        });
    }
    drop(nginx);
}

/// DAF kept descriptors in eight bits: 256 was 0 to it.
#[test]
fn root_a_socket_is_known_by_any_number_of_its_descriptor() {
    const MANY: &str = r#"
import os, socket, sys
other, kinds = sys.argv[1], [(socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')]
held = [os.open('/dev/null', os.O_RDONLY) for n in range(600)]
for kind, addr in kinds:
    c = socket.create_connection((addr, 8080), 10)
    for number in (256, 511, 512, 1000):
        os.dup2(c.fileno(), number, True)
    print('number', c.fileno() > 255, flush=True)
    os.write(1000, b'GET / HTTP/1.0\r\n'); os.write(256, b'\r\n')
    print('answer', c.recv(12), flush=True)
    # The other program, with nothing but such a descriptor.
    c = socket.create_connection((addr, 8080), 10); os.dup2(c.fileno(), 512, True)
    if os.fork() == 0:
        os.execv(other, [other, '-c', "import os; os.write(512, b'GET / HTTP/1.0\\r\\n\\r\\n')"])
    os.wait(); c.settimeout(2)
    try: print('answer', c.recv(12), flush=True)
    except OSError as e: print('nothing', type(e).__name__, flush=True)
"#;
    let rules = format!(
        "{CLOSED}[app.rules.python]\nverdict = \"allow\"\nexe = \"{}\"\n",
        sha256(PYTHON)
    );
    let Some(host) = TestHost::new("descriptors", &rules) else {
        return;
    };
    let other = host.copy(PYTHON, "other");
    soon("python to be known", || {
        (host.connects("127.0.0.1").trim() == "connected").then_some(())
    });
    std::thread::sleep(Duration::from_secs(6));
    let done = host.run(&[PYTHON, "-c", MANY, &other]);
    let told = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    let each = [
        "number True",
        "answer b'HTTP/1.0 200'",
        "nothing TimeoutError",
    ];
    assert_eq!(told.lines().collect::<Vec<_>>(), [each, each].concat());
}

/// A socket that more different programs have sent on than are remembered: whoever is beyond
/// them could be anybody, so that it carries what an unknown program may, and it is counted.
#[test]
fn root_a_socket_of_more_programs_than_are_remembered_is_as_if_unknown() {
    const PROGRAMS: usize = 6;
    // One datagram by each of the programs, on one socket that all of them inherit.
    const EACH: &str = r#"
import os, socket, sys, time
kind, addr = (socket.AF_INET, '127.0.0.1') if sys.argv[1] == '4' else (socket.AF_INET6, '::1')
s = socket.socket(kind, socket.SOCK_DGRAM); s.bind((addr, 0)); s.settimeout(1)
c = socket.socket(kind, socket.SOCK_DGRAM); c.connect(s.getsockname()); os.dup2(c.fileno(), 9, True)
send = "import os, time\nfor n in range(60):\n try: os.write(9, b'x'); break\n except OSError: time.sleep(.05)"
arrived = ''
for program in sys.argv[2:]:
    if os.fork() == 0: os.execv(program, [program, '-c', send])
    os.wait()
    try: s.recv(10); arrived += '+'
    except OSError: arrived += '-'
print(arrived)
"#;
    let mut programs = Vec::new();
    let Some(host) = TestHost::with("crowded", CLOSED, |host| {
        for number in 0..PROGRAMS {
            programs.push(host.copy(PYTHON, &format!("program{number}")));
        }
        let digests: Vec<_> = [PYTHON]
            .into_iter()
            .chain(programs.iter().map(String::as_str))
            .map(|path| format!("\"{}\"", sha256(path)))
            .collect();
        host.configure(&format!(
            "{CLOSED}[app.rules.all]\nverdict = \"allow\"\nexe = [{}]\n",
            digests.join(", ")
        ));
    }) else {
        return;
    };
    let crowded = || {
        let metrics = host.host.done(&["metrics"]);
        let mut lines = metrics.lines();
        let line = lines.find_map(|line| line.strip_prefix("weir_app_crowded_sockets_total "));
        line.unwrap().parse::<u64>().unwrap()
    };
    // Each of them may, where it is alone with the one that has made the socket.
    for program in &programs {
        soon("each program to be known", || {
            let words = [PYTHON, "-c", EACH, "4", program];
            let done = host.run(&words);
            (String::from_utf8_lossy(&done.stdout).trim() == "+").then_some(())
        });
    }
    let before = crowded();
    let mut words: Vec<&str> = vec![PYTHON, "-c", EACH, ""];
    words.extend(programs.iter().map(String::as_str));
    for family in ["4", "6"] {
        words[3] = family;
        let done = host.run(&words);
        let told = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        // The one that has made it is the first of four.
        assert_eq!(told.trim(), "+++---", "IPv{family}");
    }
    assert_eq!(crowded(), before + 2);
}
