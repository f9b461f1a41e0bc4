//! Rules about programs at their limits, and while weir is killed: ten thousand programs that
//! end at once, a hundred thousand processes of one, more programs than are known at a time, more
//! networks than rules can have, SIGKILL in the middle of a reload and of `weir app enforce`.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use app_host::{ADDRESSES, TestHost, curl_only, sha256};
use common::{skipped, soon};

/// Each child has another set of files mapped executable, sends one datagram, and ends.
const STORM: &str = r#"
import mmap, os, socket, sys
count, files = int(sys.argv[1]), [os.open(f, os.O_RDONLY) for f in sys.argv[2:]]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(count):
    pid = os.fork()
    if pid == 0:
        for bit, file in enumerate(files):
            if number >> bit & 1:
                mmap.mmap(file, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
        c = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try: c.sendto(b'x', ('127.0.0.1', 9))
        except OSError: pass
        os._exit(0)
    os.waitpid(pid, 0)
print('done')
"#;

/// The daemon's resident memory, in KiB.
fn memory(host: &TestHost) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", host.host.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse().unwrap()
}

#[test]
fn root_ten_thousand_programs_that_end_at_once_cost_a_bounded_amount() {
    const COUNT: usize = 10_000;
    let Some(host) = TestHost::new("storm", &curl_only()) else {
        return;
    };
    soon("curl to be known", || {
        (host.curl("127.0.0.1") == "200").then_some(())
    });
    // More files than bits of the number.
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..14)
        .map(|number| {
            let path = dir.path().join(number.to_string());
            fs::write(&path, [number; 4096]).unwrap();
            path.to_str().unwrap().to_owned()
        })
        .collect();
    let count = COUNT.to_string();
    let mut words = vec!["/usr/bin/python3", "-c", STORM, &count];
    words.extend(files.iter().map(String::as_str));
    let before = memory(&host);
    let done = host.run(&words);
    assert_eq!(
        String::from_utf8_lossy(&done.stdout).trim(),
        "done",
        "{done:?}"
    );
    // All of it is heard, or counted as lost.
    soon("the daemon to have done with them", || {
        let (code, _) = host.host.ask(&["status"]);
        (code == Some(0)).then_some(())
    });
    for address in ADDRESSES {
        assert_eq!(host.curl(address), "200");
        soon("python to be known, and refused", || {
            (host.connects(address).trim() == "PermissionError").then_some(())
        });
    }
    let app = host.host.json(&["app", "list"]);
    let number = |key: &str| app[key].as_u64().unwrap();
    println!("{before} KiB before, {} KiB after: {app}", memory(&host));
    assert!(number("programs") <= 8191, "{app}");
    assert!(number("files") <= 16_384, "{app}");
    assert!(number("executables") <= 4096, "{app}");
    let listed = host.host.json(&["app", "list", "--short-lived"]);
    assert!(listed.as_array().unwrap().len() <= 128);
    assert!(memory(&host) < before + 128 * 1024, "{before} KiB before");
}

/// So many networks that a reload takes a while.
fn many_networks(rules: &str, part: u8) -> String {
    let networks: Vec<_> = (0..64)
        .map(|n| format!("\"10.{part}.{}.{}\"", n / 256, n % 256))
        .collect();
    let networks = networks.join(", ");
    let more: String = (0..20)
        .map(|n| format!("[app.rules.n{n}]\nverdict = \"drop\"\nto = [{networks}]\n"))
        .collect();
    format!("{rules}{more}")
}

/// Each child sends one datagram of each family to port 9001, and ends; says how many could not.
const SHORT_LIVED: &str = r#"
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static int failed(const void *to, socklen_t size, int family)
{
	int fd = socket(family, SOCK_DGRAM, 0);

	return fd < 0 || sendto(fd, "x", 1, 0, to, size) != 1;
}
int main(int argc, char **argv)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(9001)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(9001)};
	long count = atol(argv[1]), begun, bad = 0;
	int status;

	(void)argc;
	inet_pton(AF_INET, "127.0.0.1", &v4.sin_addr);
	inet_pton(AF_INET6, "::1", &v6.sin6_addr);
	for (begun = 0; begun < count; begun++) {
		pid_t pid = fork();

		if (!pid)
			_exit(failed(&v4, sizeof(v4), AF_INET) + failed(&v6, sizeof(v6), AF_INET6));
		/* Eight at a time. */
		if (begun >= 8 && wait(&status) > 0)
			bad += !WIFEXITED(status) || WEXITSTATUS(status);
	}
	while (wait(&status) > 0)
		bad += !WIFEXITED(status) || WEXITSTATUS(status);
	printf("%ld failed\n", bad);
	return 0;
}
"#;

/// Counts what comes to port 9001 of both families until it is told to say how much.
const COUNTER: &str = r#"
import socket, sys, threading
counts = [0, 0]
# What this host has lost on the way: queues of a processor, which are everybody's, and of a socket.
def lost():
    columns = [line.split() for line in open('/proc/net/softnet_stat')]
    v4 = [line.split() for line in open('/proc/net/snmp') if line.startswith('Udp:')]
    v6 = [line.split() for line in open('/proc/net/snmp6') if line.startswith('Udp6InErrors')]
    return sum(int(line[1], 16) for line in columns) + int(dict(zip(*v4))['InErrors']) + int(v6[0][1])
def count(which, family, addr):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, 33, 1 << 27)  # SO_RCVBUFFORCE
    s.bind((addr, 9001))
    while True: s.recv(10); counts[which] += 1
for n, (family, addr) in enumerate([(socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')]):
    threading.Thread(target=count, args=(n, family, addr), daemon=True).start()
print('ready', flush=True)
for line in sys.stdin: print(*counts, lost(), flush=True)
"#;

/// A program that has been seen is known in each process that it makes, without the daemon: not
/// one of 100,000 that end at once loses what it sends, and nothing is left of them.
#[test]
fn root_a_hundred_thousand_short_lived_processes_are_known_at_once() {
    const COUNT: usize = 100_000;
    if skipped(&["cc"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("short.c"), dir.path().join("short"));
    fs::write(&source, SHORT_LIVED).unwrap();
    let done = Command::new("cc")
        .arg("-o")
        .args([&program, &source])
        .status();
    assert!(done.unwrap().success());
    let program = program.to_str().unwrap();
    let rules = format!(
        "{}[app.rules.short]\nverdict = \"allow\"\nexe = \"{}\"\nports = [\"9001/udp\"]\n",
        curl_only(),
        sha256(program)
    );
    let Some(host) = TestHost::new("short", &rules) else {
        return;
    };
    let mut counter = Command::new("/usr/bin/python3");
    counter
        .args(["-c", COUNTER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut counter = host.space.spawn(counter).unwrap();
    let mut ask = counter.inner().stdin.take().unwrap();
    let mut lines = BufReader::new(counter.inner().stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let mut count = || -> Vec<usize> {
        ask.write_all(b"\n").unwrap();
        let line = lines.next().unwrap().unwrap();
        line.split(' ').map(|word| word.parse().unwrap()).collect()
    };
    soon("the program to be known", || {
        let before = count();
        host.run(&[program, "1"]);
        (count()[..2] == [before[0] + 1, before[1] + 1]).then_some(())
    });
    let (before, resident) = (count(), memory(&host));
    let words = COUNT.to_string();
    thread::scope(|scope| {
        let many = scope.spawn(|| host.run(&[program, &words]));
        // Others are served meanwhile.
        for address in ADDRESSES {
            soon("curl, beside them", || {
                (host.curl(address) == "200").then_some(())
            });
        }
        let done = many.join().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&done.stdout),
            "0 failed\n",
            "{done:?}"
        );
    });
    soon("all of them to be counted", || {
        let now = count();
        let [v4, v6, lost] = [0, 1, 2].map(|of| now[of] - before[of]);
        let is_all = v4 + v6 + lost >= 2 * COUNT && v4.min(v6) > COUNT / 2;
        println!("{v4} and {v6} of {COUNT} came, {lost} packets were lost on the way");
        is_all.then_some(())
    });
    let more = memory(&host).saturating_sub(resident);
    assert!(more < 32 << 10, "{more} KiB");
    // Nothing is said of any of them, and nobody waits.
    let alerts = host.host.alerts();
    assert!(!alerts.contains("app"), "{alerts}");
}

/// Whenever the daemon is killed while it takes other rules into force, what both allow is
/// allowed, and what both deny is denied, before and after the next start.
#[test]
fn root_sigkill_in_the_middle_of_a_reload_lets_nothing_through() {
    let Some(mut host) = TestHost::new("reload", &curl_only()) else {
        return;
    };
    let holds = |host: &TestHost, moment: u64| {
        for address in ADDRESSES {
            assert_eq!(host.curl(address), "200", "after {moment} ms");
            let told = host.connects(address);
            assert_eq!(told.trim(), "PermissionError", "after {moment} ms");
        }
    };
    soon("both to be known", || {
        let is_known = host.curl("127.0.0.1") == "200"
            && host.connects("127.0.0.1").trim() == "PermissionError";
        is_known.then_some(())
    });
    for (number, moment) in [1, 3, 6, 10, 20, 40, 80, 160].into_iter().enumerate() {
        host.configure(&many_networks(&curl_only(), number as u8));
        let mut reload = Command::new(env!("CARGO_BIN_EXE_weir"))
            .arg("--config")
            .arg(host.host.path("weir.toml"))
            .arg("reload")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(moment));
        host.host.end("KILL");
        let _ = reload.kill();
        reload.wait().unwrap();
        holds(&host, moment);
        host.host.start();
        soon("what both rules allow, and deny, after the start", || {
            let is_same = host.curl("127.0.0.1") == "200"
                && host.connects("127.0.0.1").trim() == "PermissionError";
            is_same.then_some(())
        });
        holds(&host, moment);
    }
}

/// `weir app enforce` is killed while it works: the file is as it was, or whole, and the next
/// one does what this one should have done.
#[test]
fn root_sigkill_in_the_middle_of_enforce_leaves_no_half_file() {
    let Some(host) = TestHost::new("enforce", "") else {
        return;
    };
    host.host.done(&["app", "learn", "start"]);
    soon("curl to be learned", || {
        assert_eq!(host.curl("127.0.0.1"), "200");
        host.host
            .done(&["app", "learn", "status"])
            .contains("1 program")
            .then_some(())
            .or_else(|| {
                let (_, review) = host.host.ask(&["app", "review"]);
                review.contains("/curl").then_some(())
            })
    });
    host.host.done(&["app", "review", "--accept"]);
    let file = host.host.path("conf.d/60-app-learned.toml");
    for moment in [0, 1, 2, 4, 8, 16, 32] {
        let _ = fs::remove_file(&file);
        host.host.done(&["reload"]);
        let mut enforce = Command::new(env!("CARGO_BIN_EXE_weir"))
            .arg("--config")
            .arg(host.host.path("weir.toml"))
            .args(["app", "enforce"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(moment));
        enforce.kill().unwrap();
        enforce.wait().unwrap();
        if let Ok(text) = fs::read_to_string(&file) {
            assert!(text.parse::<toml::Table>().is_ok(), "{moment} ms: {text}");
            assert!(
                text.contains("[app.rules.learned-curl-1]"),
                "{moment} ms: {text}"
            );
        }
        let (code, told) = host.host.ask(&["check"]);
        assert_eq!(code, Some(0), "{moment} ms: {told}");
        host.host.done(&["app", "enforce"]);
        soon("what was learned to be in force", || {
            let told = host.connects("127.0.0.1");
            (told.trim() == "PermissionError").then_some(())
        });
        assert_eq!(host.curl("127.0.0.1"), "200", "{moment} ms");
    }
}

/// One program after the other, each with another set of files mapped executable beside the
/// first: each sends until it is let through, which takes that it is known.
const PROGRAMS: &str = r#"
import mmap, socket, sys, time
count, files = int(sys.argv[1]), [open(f, 'rb') for f in sys.argv[2:]]
def is_let(within):
    until = time.monotonic() + within
    while time.monotonic() < until:
        try:
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('127.0.0.1', 9)); return True
        except PermissionError: time.sleep(.001)
    return False
def mapped(file): return mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
marked = mapped(files[0])
for number in range(count):
    others = [mapped(f) for bit, f in enumerate(files[1:]) if number >> bit & 1]
    if not is_let(20): print('never let through', number, flush=True); sys.exit()
    for other in others: other.close()
print('known' if is_let(20) else 'not known', flush=True)
marked.close()
print('let through' if is_let(1.5) else 'refused', flush=True)
for line in sys.stdin: print('let through' if is_let(.2) else 'refused', flush=True)
"#;

/// A rule about a library, so that each program has to be looked at as a whole.
#[test]
fn root_more_programs_than_are_known_at_a_time_are_told_and_none_is_mistaken_for_another() {
    const COUNT: usize = 8_400;
    let dir = tempfile::tempdir().unwrap();
    // More files than bits of the number, and the one that the rule names.
    let files: Vec<_> = (0..15)
        .map(|number| {
            let path = dir.path().join(number.to_string());
            fs::write(&path, [number; 4096]).unwrap();
            path.to_str().unwrap().to_owned()
        })
        .collect();
    let rules = format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.marked]\nverdict = \"allow\"\nobject = \"{}\"\n",
        sha256(&files[0])
    );
    let Some(host) = TestHost::new("many", &rules) else {
        return;
    };
    let count = COUNT.to_string();
    let mut words = vec!["/usr/bin/python3", "-c", PROGRAMS, &count];
    words.extend(files.iter().map(String::as_str));
    let mut python = host.begin(&words);
    assert_eq!(python.line(), "known");
    // The same process without that file, after others had every number of the table.
    assert_eq!(python.line(), "refused");
    // Not as one who is not known: by what holds where no rule does.
    let by_default = || {
        let rules = host.host.json(&["app", "list"])["rules"].clone();
        let mut rules = rules.as_array().unwrap().iter();
        let default = rules.find(|rule| rule["name"] == "default").unwrap();
        default["dropped"].as_u64().unwrap()
    };
    soon("the program to be known as another one", || {
        let before = by_default();
        python.go_on();
        assert_eq!(python.line(), "refused");
        (by_default() > before).then_some(())
    });
    let app = host.host.json(&["app", "list"]);
    let number = |key: &str| app[key].as_u64().unwrap();
    assert!(number("programs") <= 8191, "{app}");
    assert!(number("evicted") >= (COUNT - 8191) as u64, "{app}");
    soon("the alert", || {
        host.host.alerts().contains("app:room").then_some(())
    });
    for address in ADDRESSES {
        assert_eq!(host.curl(address), "000");
        // One that there is no room to know is refused at once, or its packets are dropped.
        let told = host.connects(address);
        assert!(
            ["PermissionError", "TimeoutError"].contains(&told.trim()),
            "{told}"
        );
    }
}

/// A web server for each of these addresses, which nobody judges.
fn serve(host: &TestHost, addresses: &[&str]) -> Vec<weir_netlab::Child> {
    let serve = |address: &&str| {
        host.space
            .add_to_loopback(&[address.parse().unwrap()])
            .unwrap();
        let mut command = Command::new("/usr/bin/python3");
        command
            .args(["-m", "http.server", "-b", address, "8080"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        host.space.spawn(command).unwrap()
    };
    addresses.iter().map(serve).collect()
}

/// A list with so many addresses, half of them IPv6, no two of which make one prefix; and these.
fn write_list(host: &TestHost, count: u32, more: &[&str]) {
    let mut text = String::new();
    for number in 0..count / 2 {
        let (high, low) = (number >> 7, (number & 127) * 2 + 1);
        text += &format!("10.{}.{}.{low}\n", high >> 8, high & 255);
        text += &format!("fd00:7::{high:x}:{low:x}\n");
    }
    for address in more {
        text += &format!("{address}\n");
    }
    // In one step: half a list is another one.
    let aside = host.host.write("aside.txt", &text);
    fs::rename(aside, host.host.path("many.txt")).unwrap();
}

/// A list that grows beyond the room for networks: the rules before stay in force, and nothing
/// that has come to the list is allowed, also not by a reload or the next start.
#[test]
fn root_more_networks_than_there_is_room_for_are_told_and_let_nothing_through() {
    const ROOM: u32 = 524_288;
    let rule = |name: &str| {
        format!(
            "[app.rules.{name}]\nverdict = \"allow\"\nexe = \"{}\"\ndirection = \"out\"\nto = [\"list:many\"]\n",
            sha256("/usr/bin/curl")
        )
    };
    // Both rules have all of them.
    let rules = format!(
        "default = \"drop\"\nunknown = \"drop\"\n{}{}[list.many]\nfile = \"{{dir}}/many.txt\"\nmax_shrink = 100\n",
        rule("one"),
        rule("two")
    );
    let (on_it, beyond) = (["192.0.2.9", "2001:db8::9"], ["192.0.2.11", "2001:db8::b"]);
    let full = |host: &mut TestHost| {
        // All of them are written before the daemon answers.
        host.host.deadline = Duration::from_secs(120);
        write_list(host, ROOM / 2 - 2, &on_it);
    };
    let Some(mut host) = TestHost::with("networks", &rules, full) else {
        return;
    };
    let _servers = serve(&host, &[on_it, beyond].concat());
    let curl = |host: &TestHost, address: &str| match address.contains(':') {
        true => host.curl(&format!("[{address}]")),
        false => host.curl(address),
    };
    let reaches = |host: &TestHost, wanted: [&str; 2]| {
        for (addresses, wanted) in [on_it, beyond].into_iter().zip(wanted) {
            for address in addresses {
                assert_eq!(curl(host, address), wanted, "{address}");
            }
        }
    };
    // As many as there is room for.
    for address in on_it {
        soon("the list to be in force", || {
            (curl(&host, address) == "200").then_some(())
        });
    }
    reaches(&host, ["200", "000"]);
    assert!(!host.host.alerts().contains("app:rules"));
    // And two more.
    write_list(&host, ROOM / 2 - 2, &[on_it, beyond].concat());
    let alert = |host: &TestHost| {
        soon("the alert", || {
            let alerts = host.host.alerts();
            alerts.contains("app:rules").then_some(alerts)
        })
    };
    let told = "the rules of [app] have 524292 networks; allowed: at most 524288";
    let said = alert(&host);
    assert!(said.contains(told), "{said}");
    assert!(said.contains("the rules before stay in force"), "{said}");
    reaches(&host, ["200", "000"]);
    let (code, said) = host.host.ask(&["reload"]);
    assert_ne!(code, Some(0), "{said}");
    assert!(said.contains(told), "{said}");
    reaches(&host, ["200", "000"]);
    // A start is refused, too: what the kernel has stays in force.
    host.host.end("KILL");
    let (code, said) = host.host.ask(&["daemon"]);
    assert_ne!(code, Some(0), "{said}");
    assert!(said.contains(told), "{said}");
    reaches(&host, ["200", "000"]);
}
