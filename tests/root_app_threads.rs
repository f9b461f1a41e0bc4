//! Threads that are not like the first one of their process: that has ended while they go
//! on, or they have a user of their own.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use app_host::{TestHost, sha256};
use common::soon;

const PYTHON: &str = "/usr/bin/python3";

/// What the scripts below have in common. The system calls are those of x86-64.
const HEAD: &str = r#"
import ctypes, os, socket, sys, threading, time
libc = ctypes.CDLL(None)
ADDRESSES = ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1'))
def has_user(uid):
    # Of this thread alone: setresuid(2) of glibc's would be that of all.
    assert libc.syscall(117, -1, uid, -1) == 0
def connects(address, wanted):
    for n in range(15):
        try: socket.create_connection((address, 8080), 2); said = 'connected'
        except OSError as e: said = type(e).__name__
        if said == wanted: break
        time.sleep(.2)
    return said
def in_thread(work):
    thread = threading.Thread(target=work); thread.start(); thread.join()
"#;

/// The first thread ends, and another one goes on with what it is told.
const WITHOUT_FIRST: &str = r#"
def work():
    while open(f'/proc/{os.getpid()}/stat').read().rsplit(')', 1)[1].split()[0] != 'Z': time.sleep(.01)
    print('alone', flush=True)
    for line in sys.stdin:
        if line.strip() == 'connect':
            print(*(connects(address, 'connected') for _, address in ADDRESSES), flush=True)
        else:
            print(*(answers(c) for c in CONNECTED), flush=True)
    os._exit(0)
def answers(c):
    for n in range(30):
        try:
            c.send(b'x\n')
            if not c.recv(100): return 'closed'
        except OSError: return 'silent'
        time.sleep(.2)
    return 'answered'
CONNECTED = []
if sys.argv[1] == 'connected':
    for _, address in ADDRESSES:
        CONNECTED.append(socket.create_connection((address, 7007), 3))
        assert CONNECTED[-1].send(b'x\n') and CONNECTED[-1].recv(100)
threading.Thread(target=work).start()
libc.syscall(60, 0)
"#;

#[test]
fn root_a_process_whose_first_thread_has_ended_is_known_by_another_one() {
    let rules = format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.python]\nverdict = \"allow\"\nexe = \"{}\"\nuser = \"root\"\n",
        sha256(PYTHON)
    );
    let Some(host) = TestHost::new("leader", &rules) else {
        return;
    };
    let script = format!("{HEAD}{WITHOUT_FIRST}");
    let mut process = host.begin(&[PYTHON, "-c", &script, "alone"]);
    assert_eq!(process.line(), "alone");
    process.say("connect");
    assert_eq!(process.line(), "connected connected");
}

/// One that runs before the daemon, with connections of its own.
#[test]
fn root_connections_of_a_process_without_its_first_thread_are_judged() {
    let rules = format!(
        "default = \"allow\"\nunknown = \"allow\"\n[app.rules.python]\nverdict = \"drop\"\nexe = \"{}\"\nuser = \"root\"\n",
        sha256(PYTHON)
    );
    let script = format!("{HEAD}{WITHOUT_FIRST}");
    let mut begun = None;
    let Some(_host) = TestHost::with("leaderless", &rules, |host| {
        let echo = host.echo();
        soon("the server", || {
            let words = [
                "-c",
                "import socket; socket.create_connection(('::1', 7007))",
            ];
            host.space.run(PYTHON, &words).ok()
        });
        let mut process = host.begin(&[PYTHON, "-c", &script, "connected"]);
        assert_eq!(process.line(), "alone");
        begun = Some((process, echo));
    }) else {
        return;
    };
    let (mut process, _echo) = begun.unwrap();
    process.say("send");
    let said = process.line();
    let mut said = said.split(' ');
    assert!(said.all(|answer| answer != "answered"), "it goes on");
}

/// A thread connects as nobody, and the process as root.
const USERS: &str = r#"
def work():
    has_user(65534)
    print(*(connects(address, 'connected') for _, address in ADDRESSES), flush=True)
in_thread(work)
print(*(connects(address, 'PermissionError') for _, address in ADDRESSES), flush=True)
"#;

#[test]
fn root_a_rule_by_user_is_about_the_thread_that_connects() {
    let rules = format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.nobody]\nverdict = \"allow\"\nexe = \"{}\"\nuser = \"nobody\"\n",
        sha256(PYTHON)
    );
    let Some(host) = TestHost::new("thread", &rules) else {
        return;
    };
    let said = host.python(&format!("{HEAD}{USERS}"));
    let expected = ["connected connected", "PermissionError PermissionError"];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

/// The process sends on a socket that a thread of another user has sent on.
const ONE_SOCKET: &str = r#"
def answers(s, text):
    try: s.send(text); return s.recv(100) == text
    except OSError: return False
def socket_of(kind, what, address):
    for n in range(15):
        s = socket.socket(kind, what); s.settimeout(2)
        try:
            s.connect((address, 7007))
            if answers(s, b'own\n'): return s
        except OSError: time.sleep(.2)
    sys.exit('never')
for kind, address in ADDRESSES:
    for what in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        s = socket_of(kind, what, address); heard = []
        def work():
            has_user(65534)
            heard.append(answers(s, b'of nobody\n'))
        in_thread(work)
        for n in range(3): heard.append(answers(s, b'behind it\n'))
        # The process may, on a socket that nobody else has used.
        socket_of(kind, what, address)
        print(*heard, flush=True)
"#;

#[test]
fn root_what_a_thread_of_another_user_sends_never_leaves_behind_its_process() {
    let rules = format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.nobody]\nverdict = \"drop\"\nuser = \"nobody\"\n[app.rules.python]\nverdict = \"allow\"\nexe = \"{}\"\n",
        sha256(PYTHON)
    );
    let Some(host) = TestHost::new("users", &rules) else {
        return;
    };
    let _echo = host.echo();
    let said = host.python(&format!("{HEAD}{ONE_SOCKET}"));
    assert_eq!(said, "False False False False\n".repeat(4));
}
