//! Programs that another process traces (ptrace), or whose code is changed in memory, are told
//! apart from those that are as their files: without a change of their mappings.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{thread::sleep, time::Duration};

use app_host::{Running, TestHost, sha256};

const PYTHON: &str = "/usr/bin/python3";

/// Code that is changed in place is noticed once in 256 jiffies, of which a kernel has 100 a
/// second at least.
const NOTICED: Duration = Duration::from_millis(2700);

/// From then on a connection that comes to be denied is not ended, and carries nothing: it is
/// for seconds after rules have changed only that all are gone through.
const NO_MORE_CUTS: Duration = Duration::from_secs(7);

/// Says the numbers of its process and of its second thread; then sends once for each line it
/// is told, by the thread that it names, and says whether that was answered.
const CLIENT: &str = r#"
import queue, socket, sys, threading, time
transport, family = sys.argv[1:]
kind, addr = (socket.AF_INET, '127.0.0.1') if family == '4' else (socket.AF_INET6, '::1')
for n in range(40):
    s = socket.socket(kind, socket.SOCK_STREAM if transport == 'tcp' else socket.SOCK_DGRAM)
    s.settimeout(1.5)
    try:
        s.connect((addr, 7007)); s.send(b'0\n'); s.recv(100); break
    except OSError: time.sleep(.2)
number = 0
def once():
    global number
    number += 1
    want = b'%d\n' % number
    try:
        s.send(want)
        got = b''
        while want not in got: got += s.recv(1000)
        print('answered', flush=True)
    except OSError: print('nothing', flush=True)
lines, done = queue.Queue(), queue.Queue()
def second():
    print('client', threading.main_thread().native_id, threading.get_native_id(), flush=True)
    while lines.get(): once(); done.put(1)
threading.Thread(target=second, daemon=True).start()
for line in sys.stdin:
    if line == 'second\n': lines.put(1); done.get()
    else: once()
"#;

/// Holds a thread as a debugger does, without stopping it.
const TRACER: &str = r#"
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.ptrace(0x4206, int(sys.argv[1]), None, None) == 0, ctypes.get_errno()
print('traces', flush=True); sys.stdin.readline()
"#;

/// Writes the first byte of a program's code anew, as it is.
const CHANGER: &str = r#"
import os, sys
pid = sys.argv[1]
for line in open(f'/proc/{pid}/maps'):
    words = line.split()
    if 'x' in words[1] and words[4] != '0':
        at = int(words[0].split('-')[0], 16); break
f = os.open(f'/proc/{pid}/mem', os.O_RDWR)
assert os.pwrite(f, os.pread(f, 1, at), at) == 1
print('changed')
"#;

fn rules() -> String {
    format!(
        "default = \"drop\"\nunknown = \"drop\"\n\
         [app.rules.altered]\nverdict = \"drop\"\naltered = true\n\
         [app.rules.clients]\nverdict = \"allow\"\nexe = \"{}\"\n",
        sha256(PYTHON)
    )
}

/// A client of this transport and family, its process, and its second thread.
fn client(host: &TestHost, transport: &str, family: &str) -> (Running, String, String) {
    let mut client = host.begin(&[PYTHON, "-c", CLIENT, transport, family]);
    let line = client.line();
    let words: Vec<_> = line.split(' ').collect();
    let &["client", first, second] = &words[..] else {
        panic!("the client says {line:?}");
    };
    let (first, second) = (first.to_owned(), second.to_owned());
    (client, first, second)
}

/// Has one of its threads send, and says whether that was answered.
fn says(client: &mut Running, who: &str) -> String {
    client.say(who);
    client.line()
}

/// Somebody of this host, outside of the control group.
fn outside(host: &TestHost, words: &[&str]) -> String {
    let done = host.space.output(PYTHON, words).unwrap();
    String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
}

#[test]
fn root_a_program_that_is_traced_or_changed_in_memory_is_another_one() {
    let Some(host) = TestHost::new("alt", &rules()) else {
        return;
    };
    let _server = host.echo();
    sleep(NO_MORE_CUTS);
    for (transport, family) in [("tcp", "4"), ("tcp", "6"), ("udp", "4"), ("udp", "6")] {
        let of = format!("{transport} over IPv{family}");
        let begun = || {
            let (mut client, pid, thread) = client(&host, transport, family);
            assert_eq!(says(&mut client, "first"), "answered", "{of}");
            assert_eq!(says(&mut client, "second"), "answered", "{of}");
            (client, pid, thread)
        };
        let trace = |thread: &str| {
            let mut tracer = host.begin(&[PYTHON, "-c", TRACER, thread]);
            assert_eq!(tracer.line(), "traces");
            tracer
        };
        let (mut whole, pid, _) = begun();
        let tracer = trace(&pid);
        assert_eq!(says(&mut whole, "second"), "nothing", "{of}, traced");
        drop(tracer);
        assert_eq!(says(&mut whole, "first"), "nothing", "{of}, was traced");

        let (mut one, _, thread) = begun();
        let tracer = trace(&thread);
        assert_eq!(
            says(&mut one, "first"),
            "answered",
            "{of}, by another thread"
        );
        assert_eq!(
            says(&mut one, "second"),
            "nothing",
            "{of}, one thread traced"
        );
        drop(tracer);
        assert_eq!(says(&mut one, "first"), "nothing", "{of}, one was traced");

        let (mut changed, pid, _) = begun();
        assert_eq!(outside(&host, &["-c", CHANGER, &pid]), "changed\n");
        sleep(NOTICED);
        assert_eq!(says(&mut changed, "first"), "nothing", "{of}, changed");
        let why = host.host.output(&["app", "why", &pid]);
        let why = String::from_utf8_lossy(&why.stdout).into_owned();
        assert!(
            why.contains("its code was changed in memory") && why.contains("altered"),
            "{of}: {why}"
        );
    }
    let listed = host.host.json(&["app", "list", "--programs"]);
    let programs = listed.as_array().unwrap();
    assert!(
        programs.iter().any(|program| program["altered"] == true)
            && programs.iter().any(|program| program["altered"] == false),
        "{listed}"
    );
    // Others of the same files go on.
    let (mut other, ..) = client(&host, "tcp", "4");
    assert_eq!(says(&mut other, "first"), "answered");
}
