//! Datagrams from very many addresses, which anybody can write into a packet: those that the
//! rules refuse take nothing from programs that may send and be answered, and those that are
//! allowed take nothing from other sockets.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    time::Instant,
};

use app_host::{TestHost, sha256};
use common::soon;

const PYTHON: &str = "/usr/bin/python3";
/// Three times as many as flows are remembered in each direction (IDENT_FLOWS).
const SOURCES: u32 = 200_000;

/// One datagram from each of so many addresses, to one port.
const FLOOD: &str = r#"
import socket, sys
addr, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
v6 = ':' in addr
for n in range(count):
    s = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM)
    if v6: s.setsockopt(socket.IPPROTO_IPV6, 78, 1)  # IPV6_FREEBIND
    high, low = n >> 16, n & 0xffff
    source = f'fd00:5::{high + 1:x}:{low:x}' if v6 else f'127.{high + 1}.{low >> 8}.{low & 255}'
    s.bind((source, 4000)); s.sendto(b'x', (addr, port)); s.close()
"#;

/// At three ports: one that answers when told, one that sends first when told and answers
/// after that, and one that answers at once.
const SERVER: &str = r#"
import socket, sys, threading
addr = sys.argv[1]
def at(port):
    s = socket.socket(socket.AF_INET6 if ':' in addr else socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((addr, port)); return s
late, pushing, echo = at(7007), at(7008), at(7009)
def answer(s):
    while True: told, peer = s.recvfrom(100); s.sendto(told, peer)
for s in pushing, echo: threading.Thread(target=answer, args=(s,), daemon=True).start()
print('ready', flush=True)
told, peer = late.recvfrom(100)
sys.stdin.readline()
late.sendto(told, peer)
sys.stdin.readline()
pushing.sendto(b'first', (addr, 9100))
print('pushed', flush=True)
sys.stdin.readline()
"#;

/// One socket that sends to each of them, and says what came back.
const CLIENT: &str = r#"
import socket, sys, time
addr = sys.argv[1]
s = socket.socket(socket.AF_INET6 if ':' in addr else socket.AF_INET, socket.SOCK_DGRAM)
s.bind((addr, 9100))
def hears(wanted, within=30):
    # Answers to what was asked before may come in between.
    until, told = time.monotonic() + within, b'nothing'
    while told != wanted and (left := until - time.monotonic()) > 0:
        s.settimeout(left)
        try: told = s.recvfrom(100)[0]
        except OSError as e: return type(e).__name__
    return told
def asks(port, told):
    try: s.sendto(told, (addr, port)); return 'sent'
    except OSError as e: return type(e).__name__
for n in range(50):
    if asks(7009, b'known') == 'sent' and hears(b'known', 1) == b'known': break
    time.sleep(.2)
print(asks(7007, b'late'), flush=True)
sys.stdin.readline()
print(hears(b'late'), flush=True)
sys.stdin.readline()
print(asks(7008, b'after') == 'sent' and hears(b'after'), flush=True)
sys.stdin.readline()
"#;

fn metric(host: &TestHost, name: &str) -> u64 {
    let metrics = host.host.done(&["metrics"]);
    let mut lines = metrics.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap().parse().unwrap()
}

fn refused_flows(host: &TestHost) -> u64 {
    metric(host, "weir_app_refused_flows_total")
}

/// Datagrams of IPv6 can be from each of these addresses.
fn route_sources(host: &TestHost) {
    let route = ["-6", "route", "add", "local", "fd00:5::/64", "dev", "lo"];
    host.space.run("ip", &route).unwrap();
}

fn flood(host: &TestHost, addr: &str, port: &str) {
    let count = SOURCES.to_string();
    let words = ["-c", FLOOD, addr, port, &count];
    let flood = host.space.output(PYTHON, &words).unwrap();
    assert!(flood.status.success(), "{flood:?}");
}

#[test]
fn root_refused_datagrams_from_very_many_addresses_cost_no_flow_that_passes() {
    let rules = format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.python]\nverdict = \"allow\"\nexe = \"{}\"\ndirection = \"out\"\n",
        sha256(PYTHON)
    );
    let Some(host) = TestHost::new("flood", &rules) else {
        return;
    };
    route_sources(&host);
    for addr in ["127.0.0.1", "::1"] {
        let mut command = Command::new(PYTHON);
        command
            .args(["-c", SERVER, addr])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut server = host.space.spawn(command).unwrap();
        let mut input = server.inner().stdin.take().unwrap();
        let mut client = host.begin(&[PYTHON, "-c", CLIENT, addr]);
        assert_eq!(client.line(), "sent", "{addr}");
        let before = refused_flows(&host);
        flood(&host, addr, "9100");
        // All of them came, and each is a flow that was refused.
        let refused = refused_flows(&host) - before;
        assert!(refused >= u64::from(SOURCES), "{refused}");
        // Who was sent to before may answer now.
        input.write_all(b"\n").unwrap();
        client.go_on();
        assert_eq!(client.line(), "b'late'", "{addr}");
        // Who has sent first, and was refused, may be sent to, and answer.
        input.write_all(b"\n").unwrap();
        soon("the datagram that nobody asked for", || {
            (refused_flows(&host) - before > refused).then_some(())
        });
        client.go_on();
        assert_eq!(client.line(), "b'after'", "{addr}");
    }
}

/// Two ports that anybody may send to: at one the answer waits until told, at the other who
/// asks is answered at once, and nobody else.
const OPEN_PORTS: &str = r#"
import socket, sys, threading
addr = sys.argv[1]
def at(port):
    s = socket.socket(socket.AF_INET6 if ':' in addr else socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)  # SO_RCVBUFFORCE
    s.bind((addr, port)); return s
late, flooded = at(9101), at(9102)
def answer():
    while True:
        told, peer = flooded.recvfrom(100)
        if told != b'x':
            try: flooded.sendto(told, peer)
            except OSError as e: print('not answered:', e, flush=True)
threading.Thread(target=answer, daemon=True).start()
print('ready', flush=True)
told, peer = late.recvfrom(100)
print(told, flush=True)
sys.stdin.readline()
try: print(late.sendto(told, peer), flush=True)
except OSError as e: print(type(e).__name__, flush=True)
sys.stdin.readline()
"#;

/// Outside of the control group: asks at each of the two, and says what came back.
const ASKER: &str = r#"
import socket, sys, time
addr = sys.argv[1]
def asks(port, told):
    s = socket.socket(socket.AF_INET6 if ':' in addr else socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(1)
    for n in range(20):
        s.sendto(told, (addr, port))
        if port == 9101: return s
        try: return s.recvfrom(100)[0]
        except OSError: pass
print(asks(9102, b'before'), flush=True)
waits = asks(9101, b'late'); print('asked', flush=True)
sys.stdin.readline()
waits.settimeout(10)
try: print(waits.recvfrom(100)[0], flush=True)
except OSError as e: print(type(e).__name__, flush=True)
print(asks(9102, b'after'), flush=True)
sys.stdin.readline()
"#;

/// A port that anybody may send to gets three times as many flows as are remembered: who has
/// asked at another one, before that, is answered, and so is who asks at the same one.
#[test]
fn root_allowed_datagrams_from_very_many_addresses_cost_other_sockets_no_flow() {
    let rules = format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.python]\nverdict = \"allow\"\nexe = \"{}\"\ndirection = \"in\"\nports = [\"9101-9102/udp\"]\n",
        sha256(PYTHON)
    );
    let Some(host) = TestHost::new("open", &rules) else {
        return;
    };
    route_sources(&host);
    for addr in ["127.0.0.1", "::1"] {
        let mut server = host.begin(&[PYTHON, "-c", OPEN_PORTS, addr]);
        assert_eq!(server.line(), "ready", "{addr}");
        let mut command = Command::new(PYTHON);
        command
            .args(["-c", ASKER, addr])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut asker = host.space.spawn(command).unwrap();
        let mut input = asker.inner().stdin.take().unwrap();
        let output = asker.inner().stdout.take().unwrap();
        let mut lines = BufReader::new(output).lines();
        let mut said = || lines.next().unwrap().unwrap();
        assert_eq!(said(), "b'before'", "{addr}");
        assert_eq!(said(), "asked", "{addr}");
        assert_eq!(server.line(), "b'late'", "{addr}");
        let overflow = || metric(&host, "weir_app_overflow_flows_total");
        let before = overflow();
        let begun = Instant::now();
        flood(&host, addr, "9102");
        // All of them came, and few are beside flows of others: a share in each window, of
        // which the first and the last may be cut short, and one more for what is late.
        let windows = begun.elapsed().as_secs() / 10 + 3;
        let (over, share) = (overflow() - before, 1024 * windows);
        assert!(over >= u64::from(SOURCES) - share, "{over}, {share}");
        server.go_on();
        assert_eq!(server.line(), "4", "{addr}");
        input.write_all(b"\n").unwrap();
        assert_eq!(said(), "b'late'", "{addr}");
        assert_eq!(said(), "b'after'", "{addr}");
    }
}
