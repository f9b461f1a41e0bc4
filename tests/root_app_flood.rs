//! Datagrams from very many addresses, which anybody can write into a packet: those that the
//! rules refuse take nothing from programs that may send and be answered.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    io::Write,
    process::{Command, Stdio},
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

fn refused_flows(host: &TestHost) -> u64 {
    let metrics = host.host.done(&["metrics"]);
    let mut lines = metrics.lines();
    let value = lines.find_map(|line| line.strip_prefix("weir_app_refused_flows_total "));
    value.unwrap().parse().unwrap()
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
    let route = ["-6", "route", "add", "local", "fd00:5::/64", "dev", "lo"];
    host.space.run("ip", &route).unwrap();
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
        let count = SOURCES.to_string();
        let flood = host
            .space
            .output(PYTHON, &["-c", FLOOD, addr, "9100", &count])
            .unwrap();
        assert!(flood.status.success(), "{flood:?}");
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
