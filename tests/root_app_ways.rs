//! The bad day of rules about programs: a socket with two holders, io_uring, each way to get
//! other code or another sender behind a socket, connections that are there when the rules
//! change, and more events than the kernel has room for.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{path::PathBuf, process::Command, thread::sleep, time::Duration};

use app_host::{TestHost, sha256};
use common::soon;

/// From then on a connection that comes to be denied is not ended, and carries nothing: it is
/// for seconds after rules have changed only that all are gone through.
const NO_MORE_CUTS: Duration = Duration::from_secs(7);

/// What a client of each family connects to, and sends, before and after something happens.
/// The server at the other end is outside of the control group.
const CLIENT: &str = r#"
import sys, socket, os, time
what, family, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
kind, addr = (socket.AF_INET, '127.0.0.1') if family == '4' else (socket.AF_INET6, '::1')
for n in range(20):
    c = socket.socket(kind); c.settimeout(1.5)
    try:
        c.connect((addr, port)); break
    except OSError: time.sleep(.2)
c.settimeout(4)
c.sendall(b'before\n'); print('answer', c.recv(100), flush=True)
c.settimeout(None)
if what == 'waits':
    sys.stdin.readline()
    c.settimeout(2)
    try: c.sendall(b'after\n'); print('answer', c.recv(100), flush=True)
    except OSError as e: print('nothing', type(e).__name__, flush=True)
elif what == 'shares':
    if os.fork() == 0:
        os.dup2(c.fileno(), 9, True); os.execvp('sleep', ['sleep', '60'])
    print('shared', flush=True); sys.stdin.readline()
    c.sendall(b'after\n'); c.settimeout(2)
    try: print('answer', c.recv(100), flush=True)
    except OSError as e: print('nothing', type(e).__name__, flush=True)
else:
    if os.fork() == 0:
        os.dup2(c.fileno(), 9, True); os.execv(what, [what] + sys.argv[4:])
    c.settimeout(4)
    try: print('answer', c.recv(100), flush=True)
    except OSError as e: print('nothing', type(e).__name__, flush=True)
os._exit(0)
"#;

/// Sends each line back.
const SERVER: &str = r#"
import socket, threading
def serve(c):
    for line in c.makefile('rb'): c.sendall(line)
def listen(kind, addr):
    l = socket.socket(kind); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.bind((addr, 7007)); l.listen(20)
    while True: threading.Thread(target=serve, args=(l.accept()[0],), daemon=True).start()
threading.Thread(target=listen, args=(socket.AF_INET6, '::1'), daemon=True).start()
listen(socket.AF_INET, '127.0.0.1')
"#;

/// Sends `after` on descriptor 9 by io_uring; with an argument by its own thread in the
/// kernel, which polls for work.
const URING: &str = r#"
#define _GNU_SOURCE
#include <linux/io_uring.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int count, char **args)
{
    struct io_uring_params p = {0};
    if (count > 1) { p.flags = IORING_SETUP_SQPOLL; p.sq_thread_idle = 500; }
    int ring = syscall(SYS_io_uring_setup, 4, &p);
    if (ring < 0) { perror("io_uring_setup"); return 1; }
    char *sq = mmap(0, p.sq_off.array + p.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *e = mmap(0, p.sq_entries * sizeof(*e), PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    int fd = 9;
    syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, &fd, 1);
    close(fd); /* the ring alone holds the socket now */
    memset(e, 0, sizeof(*e));
    e->opcode = IORING_OP_SEND; e->flags = IOSQE_FIXED_FILE; e->fd = 0;
    e->addr = (unsigned long)"after\n"; e->len = 6;
    *(unsigned *)(sq + p.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(sq + p.sq_off.tail), 1, __ATOMIC_RELEASE);
    if (count == 1)
        syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0);
    /* The kernel's thread takes it by itself, unless it has fallen asleep before. */
    for (int i = 0; count > 1 && i < 300 && !__atomic_load_n((unsigned *)(sq + p.sq_off.head), __ATOMIC_ACQUIRE); i++) {
        if (__atomic_load_n((unsigned *)(sq + p.sq_off.flags), __ATOMIC_ACQUIRE) & IORING_SQ_NEED_WAKEUP)
            syscall(SYS_io_uring_enter, ring, 0, 0, IORING_ENTER_SQ_WAKEUP, 0, 0);
        usleep(10000);
    }
    sleep(6);
    return 0;
}
"#;

const PYTHON: &str = "/usr/bin/python3";

fn allow(programs: &[&str]) -> String {
    let digests: Vec<_> = programs
        .iter()
        .map(|path| format!("\"{}\"", sha256(path)))
        .collect();
    format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.clients]\nverdict = \"allow\"\nexe = [{}]\n",
        digests.join(", ")
    )
}

/// A server that nobody judges, beside those of the host.
fn serve(host: &TestHost) -> weir_netlab::Child {
    let mut command = Command::new(PYTHON);
    command.args(["-c", SERVER]);
    let server = host.space.spawn(command).unwrap();
    soon("python to be known, and the server", || {
        let told = host.python(
            "import socket\ntry: socket.create_connection(('127.0.0.1', 7007), 3); print('connected')\nexcept OSError as e: print(type(e).__name__)",
        );
        (told.trim() == "connected").then_some(())
    });
    server
}

/// A reload judges what is connected again, also where nothing is sent: who may not any more
/// is cut off by then.
#[test]
fn root_a_connection_ends_to_carry_anything_when_the_rules_change() {
    let Some(host) = TestHost::new("cut", &allow(&[PYTHON])) else {
        return;
    };
    let _server = serve(&host);
    let clients: Vec<_> = ["4", "6"]
        .map(|family| host.begin(&[PYTHON, "-c", CLIENT, "waits", family, "7007"]))
        .into();
    let mut clients: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            assert_eq!(client.line(), "answer b'before\\n'");
            client
        })
        .collect();
    host.configure(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.nobody]\nverdict = \"drop\"\npath = \"/usr/bin/python3\"\n",
    );
    host.host.done(&["reload"]);
    for client in &mut clients {
        client.go_on();
        assert_eq!(client.line(), "nothing ConnectionAbortedError");
    }
    // And the other way round: what was not sent yet is sent again by TCP.
    host.configure(&allow(&[PYTHON]));
    host.host.done(&["reload"]);
    let mut client = host.begin(&[PYTHON, "-c", CLIENT, "waits", "4", "7007"]);
    assert_eq!(client.line(), "answer b'before\\n'");
    client.go_on();
    assert_eq!(client.line(), "answer b'after\\n'");
}

/// A program that may not has the socket too, and never sends on it: it is found by looking
/// through all descriptors, within ten seconds.
#[test]
fn root_a_socket_with_a_second_holder_is_allowed_only_if_both_are() {
    let Some(host) = TestHost::new("holders", &allow(&[PYTHON])) else {
        return;
    };
    sleep(NO_MORE_CUTS);
    let _server = serve(&host);
    let mut clients: Vec<_> = ["4", "6"]
        .map(|family| host.begin(&[PYTHON, "-c", CLIENT, "shares", family, "7007"]))
        .into();
    for client in &mut clients {
        assert_eq!(client.line(), "answer b'before\\n'");
        assert_eq!(client.line(), "shared");
    }
    sleep(Duration::from_secs(12));
    for client in &mut clients {
        client.go_on();
        assert_eq!(client.line(), "nothing TimeoutError");
    }
    let sleep = std::fs::canonicalize("/usr/bin/sleep").unwrap();
    host.configure(&allow(&[PYTHON, sleep.to_str().unwrap()]));
    host.host.done(&["reload"]);
    let mut client = host.begin(&[PYTHON, "-c", CLIENT, "shares", "6", "7007"]);
    assert_eq!(client.line(), "answer b'before\\n'");
    assert_eq!(client.line(), "shared");
    client.go_on();
    assert_eq!(client.line(), "answer b'after\\n'");
}

/// A socket that has sent to itself what arrived; then something happens, and it sends again.
/// `other` is another program, which does with descriptor 9, or that of its parent, what it is
/// told to, and says that it tried. With "arrives" it is waited for long enough on any machine.
const SCENARIO: &str = r#"
import array, ctypes, mmap, os, socket, subprocess, sys, time
mode, transport, family, lib, other = sys.argv[1:6]
arrives = sys.argv[6:] == ['arrives']
wait = 20 if arrives else 1.5
kind, addr = (socket.AF_INET, '127.0.0.1') if family == '4' else (socket.AF_INET6, '::1')
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
READ, EXEC, PRIVATE, FIXED = 1, 4, 2, 0x10
def worked(value):
    if value in (-1, None, 2 ** 64 - 1): sys.exit(f'{mode}: errno {ctypes.get_errno()}')
    return value
def of_lib(prot, at=None, flags=0):
    return worked(libc.mmap(at, 4096, prot, PRIVATE | flags, os.open(lib, 0), 0))
# An executable mapping of equal size that "fixed" puts the library's in the place of.
before = worked(libc.mmap(None, 4096, READ | EXEC, PRIVATE, os.open('/proc/self/exe', 0), 0))
def pair():
    if transport == 'udp':
        s = socket.socket(kind, socket.SOCK_DGRAM); s.bind((addr, 0))
        c = socket.socket(kind, socket.SOCK_DGRAM); c.connect(s.getsockname())
        return c, s
    l = socket.socket(kind); l.bind((addr, 0)); l.listen(1)
    for n in range(10):
        c = socket.socket(kind); c.settimeout(1.5)
        try: c.connect(l.getsockname()); break
        except OSError: time.sleep(.2)
    c.settimeout(None)
    return c, l.accept()[0]
c, s = pair(); s.settimeout(.5)
for n in range(20):
    try: c.send(b'before'); print('before:', s.recv(100), flush=True); break
    except OSError: time.sleep(.2)
def send():
    try: c.send(b'after')
    except OSError: pass
# What the other program does first, and then until it may.
OTHERS = {
    'inherited': ("import os", "os.write(9, b'after')"),
    'sendfile': ("import os; f = os.memfd_create('x'); os.write(f, b'after')", "os.sendfile(9, f, 0, 5)"),
    'splice': ("import os; r, w = os.pipe(); os.write(w, b'after')", "os.splice(r, 9, 5)"),
    'zerocopy': ("import socket; s = socket.socket(fileno=9); s.setsockopt(1, 60, 1)", "s.send(b'after', 0x4000000)"),
    'scm': ("import array, os, socket; a = socket.socket(fileno=8).recvmsg(1, 100)[1]; f = array.array('i', a[0][2][:4])[0]", "os.write(f, b'after')"),
    'ktls': ("import socket, struct; s = socket.socket(fileno=9); s.setsockopt(6, 31, b'tls'); s.setsockopt(282, 1, struct.pack('HH8s16s4s8s', 0x303, 51, *[b''] * 4))", "s.send(b'after')"),
    'pidfd': ("import ctypes, os; f = ctypes.CDLL(None).syscall(438, os.pidfd_open(os.getppid()), 9, 0)", "os.write(f, b'after')"),
}
UNTIL = """
import time
for n in range(%d):
    try: %s; break
    except OSError: time.sleep(.02)
print('tried', flush=True)
"""
if mode == 'mmap': of_lib(READ | EXEC); send()
elif mode == 'mprotect': worked(libc.mprotect(ctypes.c_void_p(of_lib(READ)), 4096, READ | EXEC)); send()
elif mode == 'pkey_mprotect': worked(libc.syscall(329, ctypes.c_void_p(of_lib(READ)), 4096, READ | EXEC, -1)); send()
elif mode == 'fixed': of_lib(READ | EXEC, before, FIXED); send()
elif mode == 'anonymous': worked(libc.mmap(None, 4096, READ | EXEC, PRIVATE | 0x20, -1, 0)); send()
elif mode == 'unmap': libc.munmap(ctypes.c_void_p(before), 4096); send()
else:
    os.dup2(c.fileno(), 9, True); a, b = socket.socketpair(); os.dup2(b.fileno(), 8, True)
    passed = {'scm': (8,), 'pidfd': ()}.get(mode, (9,))
    p = subprocess.Popen([other, '-c', OTHERS[mode][0] + UNTIL % (1000 if arrives else 60, OTHERS[mode][1])], pass_fds=passed)
    if mode == 'scm': a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [9]))])
    p.wait()
# More than one may have been sent before.
until, told = time.monotonic() + wait, b''
try:
    while not told:
        s.settimeout(max(until - time.monotonic(), .001))
        told = s.recv(1000)
        if not told: break
        told = told.replace(b'before', b'')
    print('after:', told, flush=True)
except OSError as e: print('nothing', type(e).__name__, flush=True)
os._exit(0)
"#;

/// Those of the scenarios in which the other program sends.
const SENDERS: [&str; 6] = [
    "inherited",
    "sendfile",
    "splice",
    "zerocopy",
    "scm",
    "pidfd",
];

/// What the scenario says of what arrives after `mode`.
fn after(
    host: &TestHost,
    mode: &str,
    (transport, family): (&str, &str),
    lib: &str,
    other: &str,
    arrives: bool,
) -> String {
    let wanted = if arrives { "arrives" } else { "denied" };
    let done = host.run(&[
        PYTHON, "-c", SCENARIO, mode, transport, family, lib, other, wanted,
    ]);
    let told = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(told.starts_with("before: b'before"), "{mode}: {told}");
    let is_tried = told.lines().any(|line| line == "tried");
    let is_sender = SENDERS.contains(&mode) || mode == "ktls";
    assert_eq!(is_tried, is_sender, "{mode}: {told}");
    let ends = ["after: ", "nothing "];
    let mut lines = told.lines();
    let after = lines.find(|line| ends.iter().any(|end| line.starts_with(end)));
    after.unwrap_or_else(|| panic!("{mode}: {told}")).to_owned()
}

/// Waits until the other program may connect.
fn is_let_in(host: &TestHost, other: &str) {
    soon("the other program to be known", || {
        let word = "import socket\ntry: socket.create_connection(('127.0.0.1', 8080), 3); print('connected')\nexcept OSError: print('no')";
        let done = host.run(&[other, "-c", word]);
        (String::from_utf8_lossy(&done.stdout).trim() == "connected").then_some(())
    });
}

/// Ways to have a library mapped executable that a rule denies, or executable memory of no
/// file, and ways by which another program comes to the socket. Of the latter it is shown that
/// they work: that program is allowed then.
#[test]
fn root_each_way_to_other_code_and_to_another_sender_is_met() {
    let lib = "/usr/lib/x86_64-linux-gnu/libgcc_s.so.1";
    if !std::path::Path::new(lib).exists() {
        eprintln!("skipped: {lib} (probe: it is not there)");
        return;
    }
    let rules = |programs: &[&str]| {
        let denied = format!(
            "[app.rules.lib]\nverdict = \"drop\"\nobject = \"{}\"\n[app.rules.anonymous]\nverdict = \"drop\"\nanonymous = true\n",
            sha256(lib)
        );
        allow(programs).replace(
            "[app.rules.clients]",
            &format!("{denied}[app.rules.clients]"),
        )
    };
    let Some(host) = TestHost::new("each", &rules(&[PYTHON])) else {
        return;
    };
    let other = host.copy(PYTHON, "another");
    soon("python to be known", || {
        (host.connects("127.0.0.1").trim() == "connected").then_some(())
    });
    let each = |modes: &[&str], arrives: bool| {
        for mode in modes {
            for (transport, family) in [("tcp", "4"), ("tcp", "6"), ("udp", "4"), ("udp", "6")] {
                let told = after(&host, mode, (transport, family), lib, &other, arrives);
                // Soon after rules have changed the connection is ended besides.
                let is_as_wanted = match arrives {
                    true => told == "after: b'after'",
                    false => told.starts_with("nothing "),
                };
                assert!(is_as_wanted, "{mode} {transport} IPv{family}: {told}");
            }
        }
    };
    each(
        &["mmap", "mprotect", "pkey_mprotect", "fixed", "anonymous"],
        false,
    );
    each(&["unmap"], true);
    each(&SENDERS, false);
    host.configure(&rules(&[PYTHON, &other]));
    host.host.done(&["reload"]);
    is_let_in(&host, &other);
    each(&SENDERS, true);
}

/// Can the kernel encrypt what is sent on a connection?
const HAS_KTLS: &str = "
import socket
l = socket.create_server(('127.0.0.1', 0))
socket.create_connection(l.getsockname()).setsockopt(6, 31, b'tls')
";

/// On a connection whose data the kernel encrypts (kTLS) they leave by another way.
#[test]
fn root_what_the_kernel_encrypts_is_judged_by_who_sends_it() {
    let Some(host) = TestHost::new("ktls", &allow(&[PYTHON])) else {
        return;
    };
    let has_ktls = host.space.output(PYTHON, &["-c", HAS_KTLS]).unwrap();
    if !has_ktls.status.success() {
        eprintln!("skipped: kTLS, CONFIG_TLS (probe: the socket option TCP_ULP)");
        return;
    }
    let other = host.copy(PYTHON, "another");
    soon("python to be known", || {
        (host.connects("127.0.0.1").trim() == "connected").then_some(())
    });
    let told = |family, arrives| after(&host, "ktls", ("tcp", family), "", &other, arrives);
    for family in ["4", "6"] {
        let told = told(family, false);
        assert!(told.starts_with("nothing "), "IPv{family}: {told}");
    }
    host.configure(&allow(&[PYTHON, &other]));
    host.host.done(&["reload"]);
    is_let_in(&host, &other);
    for family in ["4", "6"] {
        // A record of TLS 1.2 with data.
        let told = told(family, true);
        let is_record = told.starts_with(r"after: b'\x17\x03\x03");
        assert!(is_record, "IPv{family}: {told}");
    }
}

/// What a program has sent that may not stands in the queue of the connection when it ends. The
/// kernel gives its address space to the next process: that one is another holder, not the one
/// in whose place the first is forgotten and what it has sent leaves.
const HEIR: &str = r#"
import os, socket, subprocess, sys, time
family, other = sys.argv[1:]
kind, addr = (socket.AF_INET, '127.0.0.1') if family == '4' else (socket.AF_INET6, '::1')
os.sched_setaffinity(0, {0})
c = socket.create_connection((addr, 7007), 20); c.settimeout(20)
c.sendall(b'before\n'); print('answer', c.recv(100), flush=True)
os.dup2(c.fileno(), 9, True)
subprocess.run([other, '-c', "import os; os.write(9, b'by another\\n')"], pass_fds=(9,))
for n in range(300):
    if os.fork() == 0:
        os.write(9, b'after\n'); os._exit(0)
    os.wait()
c.settimeout(12)
try: print('answer', c.recv(100), flush=True)
except OSError as e: print('nothing', type(e).__name__, flush=True)
"#;

#[test]
fn root_who_gets_the_address_space_of_one_that_has_ended_does_not_stand_in_for_it() {
    let Some(host) = TestHost::new("heir", &allow(&[PYTHON])) else {
        return;
    };
    let other = host.copy(PYTHON, "another");
    sleep(NO_MORE_CUTS);
    let _server = serve(&host);
    let mut clients: Vec<_> = ["4", "6"]
        .map(|family| host.begin(&[PYTHON, "-c", HEIR, family, &other]))
        .into();
    for client in &mut clients {
        assert_eq!(client.line(), "answer b'before\\n'");
        assert_eq!(client.line(), "nothing TimeoutError");
    }
}

/// The C compiler's program that sends by io_uring; none: there is no compiler.
fn uring(host: &TestHost) -> Option<PathBuf> {
    let (source, program) = (host.host.path("uring.c"), host.host.path("uring"));
    std::fs::write(&source, URING).unwrap();
    let built = Command::new("cc")
        .args(["-O1", "-o"])
        .arg(&program)
        .arg(&source)
        .output();
    match built {
        Ok(built) if built.status.success() => Some(program),
        other => {
            eprintln!("skipped: no C compiler with <linux/io_uring.h> (probe: cc): {other:?}");
            None
        }
    }
}

/// Neither a descriptor nor a system call for each send is needed for that.
#[test]
fn root_what_io_uring_sends_is_judged_by_who_made_the_ring() {
    let Some(host) = TestHost::new("uring", &allow(&[PYTHON])) else {
        return;
    };
    sleep(NO_MORE_CUTS);
    let Some(program) = uring(&host) else { return };
    let program = program.to_str().unwrap();
    let _server = serve(&host);
    let send = |family: &str, more: &[&str]| {
        let words = [&[PYTHON, "-c", CLIENT, program, family, "7007"], more].concat();
        let mut client = host.begin(&words);
        assert_eq!(client.line(), "answer b'before\\n'");
        client.line()
    };
    for family in ["4", "6"] {
        for more in [&[][..], &["poll"]] {
            assert_eq!(
                send(family, more),
                "nothing TimeoutError",
                "IPv{family} {more:?}"
            );
        }
    }
    host.configure(&allow(&[PYTHON, program]));
    host.host.done(&["reload"]);
    for family in ["4", "6"] {
        for more in [&[][..], &["poll"]] {
            assert_eq!(
                send(family, more),
                "answer b'after\\n'",
                "IPv{family} {more:?}"
            );
        }
    }
}

/// Nobody reads the ring for a while: what is enforced goes on, and what found no room is
/// counted and told.
#[test]
fn root_events_that_find_no_room_are_counted_and_told() {
    let Some(host) = TestHost::new("ring", &allow(&["/usr/bin/curl"])) else {
        return;
    };
    soon("python to be known, and refused", || {
        (host.connects("127.0.0.1").trim() == "PermissionError").then_some(())
    });
    host.host.signal("STOP");
    let told = host.python(
        "import socket\nn = 0\nfor i in range(12000):\n s = socket.socket()\n try: s.connect(('127.0.0.1', 8080))\n except PermissionError: n += 1\n s.close()\nprint(n)",
    );
    host.host.signal("CONT");
    assert_eq!(told.trim(), "12000");
    let alert = soon("the alert", || {
        let alerts = host.host.alerts();
        alerts.contains("app:events").then_some(alerts)
    });
    assert!(alert.contains("found no room"), "{alert}");
    soon("the alert to end", || {
        (!host.host.alerts().contains("app:events")).then_some(())
    });
}

/// What comes in, which anybody can send, leaves room for questions about programs.
#[test]
fn root_a_flood_of_denied_packets_leaves_room_for_what_programs_do() {
    let Some(host) = TestHost::new("flood", &allow(&["/usr/bin/curl"])) else {
        return;
    };
    let serve = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 9999)); print('ready', flush=True)\nimport sys; sys.stdin.readline()";
    let mut server = host.begin(&[PYTHON, "-c", serve]);
    assert_eq!(server.line(), "ready");
    soon("python to be known, and refused", || {
        (host.connects("127.0.0.1").trim() == "PermissionError").then_some(())
    });
    host.host.signal("STOP");
    // Each of another port, which is another flow; not of the control group.
    let flood = "import socket\nfor i in range(12000):\n s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('127.0.0.1', 9999)); s.close()";
    host.space.run(PYTHON, &["-c", flood]).unwrap();
    let told = host.python(
        "import socket\nfor i in range(500):\n s = socket.socket()\n try: s.connect(('127.0.0.1', 8080))\n except PermissionError: pass\n s.close()\nprint('done')",
    );
    host.host.signal("CONT");
    assert_eq!(told.trim(), "done");
    let alert = soon("the alert", || {
        let alerts = host.host.alerts();
        alerts.contains("app:untold").then_some(alerts)
    });
    assert!(alert.contains("counted and not told"), "{alert}");
    assert!(!alert.contains("app:events"), "{alert}");
    soon("the alert to end", || {
        (!host.host.alerts().contains("app:untold")).then_some(())
    });
    let metrics = host.host.done(&["metrics"]);
    assert!(
        metrics.contains("weir_app_lost_events_total 0"),
        "{metrics}"
    );
}
