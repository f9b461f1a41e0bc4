//! Connections one after the other from one port of the client: what is known of one says
//! nothing about the next, and the socket of one keeps nobody out.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use weir_netlab::Child;

use super::{
    common::soon,
    lab::{CURL_AND_PYTHON, Host, Lab, PORT, SERVER, url},
};

/// The client's ports, by family.
const PORTS: [u16; 2] = [20_004, 20_006];

/// Connects from a port, says so, and asks each time it is told to. When it is ended, the
/// kernel sends a reset, and the port is free at once.
const HELD: &str = "
import errno, socket, struct, sys, time
address, port, own = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for n in range(100):
    s = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    s.settimeout(4)
    try: s.bind(('', own)); s.connect((address, port)); break
    except TimeoutError: pass
    # The one before is not over yet.
    except OSError as e:
        if e.errno not in (errno.EADDRNOTAVAIL, errno.EADDRINUSE): raise
        time.sleep(0.1)
    s.close()
else: sys.exit('never connected')
print('connected', flush=True)
for line in sys.stdin:
    s.send(b'HEAD / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n')
    try: print('answer' if s.recv(9999).startswith(b'HTTP/1.1 200') else 'end', flush=True)
    except TimeoutError: print('silence', flush=True)
";

/// Tries to connect from a port.
const CONNECT_FROM: &str = "
import socket, sys
try: socket.create_connection((sys.argv[1], int(sys.argv[2])), 3, ('', int(sys.argv[3]))); print('connected')
except OSError as e: print(type(e).__name__)
";

/// A connection of python3's, from a port of its own.
struct Held {
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    ask: std::process::ChildStdin,
    _python: Child,
}

impl Held {
    fn begin(host: &Host, address: &str, own: u16) -> Self {
        let words = ["/usr/bin/python3", "-c", HELD, address];
        let ports = [PORT, own].map(|port| port.to_string());
        let words: Vec<_> = words
            .into_iter()
            .chain(ports.iter().map(String::as_str))
            .collect();
        let mut command = Command::new("sh");
        command
            .args(host.entered(&words))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut python = host.space.spawn(command).unwrap();
        let ask = python.inner().stdin.take().unwrap();
        let lines = BufReader::new(python.inner().stdout.take().unwrap()).lines();
        let mut held = Self {
            lines,
            ask,
            _python: python,
        };
        assert_eq!(held.line(), "connected", "{address}");
        held
    }

    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    /// What becomes of a question: `answer`, `silence`, or `end`.
    fn asks(&mut self) -> String {
        writeln!(self.ask, "ask").unwrap();
        self.line()
    }
}

/// What curl says that asks from this port.
fn curl_from(host: &Host, address: &str, own: u16) -> String {
    let (own, url) = (own.to_string(), url(address, PORT));
    let words = "curl -sS -o /dev/null -w %{http_code} --max-time 20 --local-port";
    let words: Vec<_> = words.split(' ').chain([&*own, &*url]).collect();
    String::from_utf8_lossy(&host.run(&words).stdout).into_owned()
}

/// A server that only logs what curl alone may: `then` makes it drop that.
fn lab(name: &str) -> Option<(Lab, impl Fn(&Lab))> {
    let mut lab = Lab::new(name)?;
    lab.start_client(CURL_AND_PYTHON);
    // A port is free at once when its connection is over.
    let free = ["-qw", "net.ipv4.tcp_max_tw_buckets=0"];
    lab.client.space.run("sysctl", &free).unwrap();
    let curl = lab.aggregate_of_curl();
    lab.client.known_python(SERVER[0]);
    lab.server.copy_keys(&lab.client);
    lab.server.require(&curl, "mode = \"log\"\n");
    lab.server.weir.start();
    Some((lab, move |lab: &Lab| {
        lab.server.require(&curl, "");
        lab.server.weir.done(&["reload"]);
    }))
}

/// The server's sockets of connections from this port.
fn sockets(host: &Host, own: u16) -> String {
    let filter = format!("dport = :{own}");
    let told = host.space.output("ss", &["-Htn", &filter]).unwrap();
    String::from_utf8_lossy(&told.stdout).into_owned()
}

#[test]
fn root_a_socket_that_is_left_over_keeps_nobody_out() {
    let Some((lab, then)) = lab("left") else {
        return;
    };
    let (client, server) = (&lab.client, &lab.server);
    let mut held = [0, 1].map(|family| Held::begin(client, SERVER[family], PORTS[family]));
    for held in &mut held {
        assert_eq!(held.asks(), "answer");
    }
    then(&lab);
    for held in &mut held {
        assert_eq!(held.asks(), "silence");
    }
    // Nor does the reset reach the server's socket.
    drop(held);
    for (address, own) in SERVER.into_iter().zip(PORTS) {
        let left = sockets(server, own);
        assert!(left.contains(address), "{left}");
        // Who is not named does not get past it, and is told of.
        let before = server.outcome("not-named");
        let python = ["/usr/bin/python3", "-c", CONNECT_FROM, address];
        let ports = [PORT, own].map(|port| port.to_string());
        let said = client.run(&[&python[..], &[&ports[0], &ports[1]]].concat());
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert_eq!(said.trim(), "TimeoutError", "{address}");
        assert!(server.outcome("not-named") > before, "{address}");
        assert!(sockets(server, own).contains(address), "{address}");
        // curl is, and does.
        assert_eq!(curl_from(client, address, own), "200", "{address}");
    }
}

#[test]
fn root_who_had_the_port_before_proves_nothing_for_the_next() {
    let Some((lab, then)) = lab("before") else {
        return;
    };
    let client = &lab.client;
    let mut held = [0, 1].map(|family| {
        let (address, own) = (SERVER[family], PORTS[family]);
        assert_eq!(curl_from(client, address, own), "200", "{address}");
        Held::begin(client, address, own)
    });
    for held in &mut held {
        assert_eq!(held.asks(), "answer");
    }
    then(&lab);
    for held in &mut held {
        assert_eq!(held.asks(), "silence");
    }
    // What has been proven counts on.
    for address in SERVER {
        soon("curl, from another port", || {
            (client.curl(address, PORT) == "200").then_some(())
        });
    }
}
