//! Identity in the kernel: which program may send, with real programs in a control group
//! of the test's own; nobody else on the machine is looked at. Root: loads BPF. A kernel
//! that lacks what it takes is told by `missing`.

#[path = "root_identity/reference.rs"]
mod reference;

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, TcpListener, UdpSocket},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_bpf::identity::{
    CgroupAt, DecidedBy, Handle, Identity, IdentityEvent, IdentityEventKind, Level, Loaded,
    Networks, Policy, Rule, RuleBits, Unknown, Verdict, detach, is_attached, level,
};

const ROOT: &str = "/sys/fs/bpf/weir";
const LONG: Duration = Duration::from_secs(60);
/// At once, on a machine that does something else as well.
const AT_ONCE: Duration = Duration::from_secs(10);

/// A control group with identity of its own, both gone when it is dropped.
struct TestCgroup {
    name: String,
    cgroup: PathBuf,
    identity: Arc<Identity>,
    loaded: Loaded,
    told: Arc<Mutex<Vec<IdentityEvent>>>,
    names: Arc<Mutex<BTreeMap<PathBuf, RuleBits>>>,
    stop: Arc<AtomicBool>,
    teller: Option<JoinHandle<()>>,
}

fn rule(verdict: Verdict, has_who: bool) -> Rule {
    Rule {
        verdict,
        has_who,
        is_out: true,
        is_in: true,
        protocols: 0,
        ports: Vec::new(),
        outward: None,
        inward: None,
        netns: 0,
    }
}

fn policy(rules: Vec<Rule>) -> Policy {
    Policy {
        rules,
        default: Verdict::Drop,
        unknown: Unknown::Drop,
        by_uid: false,
        by_cgroup: false,
        by_process: false,
        observe: false,
        tell_all: false,
        asks: false,
    }
}

/// The level that `WEIR_APP_LEVEL` names: without it the best that this kernel has.
fn wanted() -> Option<Level> {
    let name = std::env::var("WEIR_APP_LEVEL").ok()?;
    let found = Level::ALL.iter().find(|(level, _)| *level == name);
    Some(found.unwrap_or_else(|| panic!("WEIR_APP_LEVEL={name}")).1)
}

impl TestCgroup {
    /// Programs are known by their executable: these meet the *who* of these rules, and
    /// others of none.
    fn new(name: &str, policy: &Policy, who: &[(&str, &[usize])]) -> Option<Self> {
        Self::new_at(wanted(), name, policy, who)
    }

    /// A group as of [`Self::new`], at a level; none: the best one.
    fn new_at(
        wanted: Option<Level>,
        name: &str,
        policy: &Policy,
        who: &[(&str, &[usize])],
    ) -> Option<Self> {
        let missing = level(wanted).err().unwrap_or_default();
        if !missing.is_empty() {
            eprintln!("skipped: this kernel lacks {}", missing.join(", "));
            return None;
        }
        let name = format!("weir-test-{name}-{}", std::process::id());
        let cgroup = CgroupAt::mount_point().unwrap().join(&name);
        fs::create_dir(&cgroup).unwrap();
        let at = CgroupAt::open(Some(&cgroup)).unwrap();
        let (identity, loaded) = Identity::load_at(Path::new(ROOT), &name, &at, wanted).unwrap();
        identity.put_policy(policy, &[], &[]).unwrap();
        loaded.attach_noting().unwrap();
        loaded.attach_judging().unwrap();
        let identity = Arc::new(identity);
        let names = who.iter().map(|(program, rules)| {
            let path = fs::canonicalize(program).unwrap();
            (path, rules.iter().copied().collect())
        });
        let mut group = Self {
            name,
            cgroup,
            identity,
            loaded,
            told: Arc::default(),
            names: Arc::new(Mutex::new(names.collect())),
            stop: Arc::default(),
            teller: None,
        };
        group.tell();
        Some(group)
    }

    /// Tells the kernel which identity each program has, as the daemon does.
    fn tell(&mut self) {
        let events = self.identity.events().unwrap();
        let (identity, told, names, stop) = (
            self.identity.clone(),
            self.told.clone(),
            self.names.clone(),
            self.stop.clone(),
        );
        self.teller = Some(thread::spawn(move || {
            let mut next = 1;
            while !stop.load(Ordering::Relaxed) {
                for event in events.read(Duration::from_millis(20)).unwrap() {
                    told.lock().unwrap().push(event);
                    if event.kind != IdentityEventKind::Unknown {
                        continue;
                    }
                    let Some(seen) = identity.look_at(event.pid).unwrap() else {
                        continue;
                    };
                    let exe = fs::read_link(format!("/proc/{}/exe", event.pid));
                    let exe = exe.unwrap_or_default();
                    let bits = names.lock().unwrap().get(&exe).copied().unwrap_or_default();
                    let handle = Handle::new(next, 1);
                    next += 1;
                    identity.put_identity(handle, &bits).unwrap();
                    identity.name(&seen.key, handle).unwrap();
                }
            }
        }));
    }

    fn stop_telling(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(teller) = self.teller.take() {
            teller.join().unwrap();
        }
        self.stop.store(false, Ordering::Relaxed);
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        // A shell goes there first and becomes the program.
        let mut command = Command::new("sh");
        let procs = self.cgroup.join("cgroup.procs");
        command
            .args(["-c", "echo 0 > \"$0\" && exec \"$@\""])
            .arg(procs)
            .arg(program)
            .args(args);
        command
    }

    fn run(&self, program: &str, args: &[&str]) -> Output {
        self.command(program, args).output().unwrap()
    }

    fn python(&self, script: &str) -> String {
        let done = self.run("/usr/bin/python3", &["-c", script]);
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        format!("{text}{}", String::from_utf8_lossy(&done.stderr))
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(teller) = self.teller.take() {
            let _ = teller.join();
        }
        detach(Path::new(ROOT), &self.name).unwrap();
        let _ = fs::remove_dir(Path::new(ROOT).join(&self.name));
        let until = Instant::now() + LONG;
        while fs::remove_dir(&self.cgroup).is_err() && Instant::now() < until {
            for pid in fs::read_to_string(self.cgroup.join("cgroup.procs"))
                .unwrap_or_default()
                .lines()
            {
                let _ = Command::new("kill").args(["-9", pid]).status();
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Answers HTTP at a port of the loopback interface; outside of the control group.
fn web_server(addr: IpAddr) -> u16 {
    let listener = TcpListener::bind((addr, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut stream = stream;
                stream.set_read_timeout(Some(LONG)).unwrap();
                let mut request = [0; 4096];
                if stream.read(&mut request).unwrap_or(0) > 0 {
                    let _ =
                        stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nhello\n");
                }
            });
        }
    });
    port
}

/// Sends what it gets back.
fn echo_server(addr: IpAddr) -> u16 {
    let socket = UdpSocket::bind((addr, 0)).unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut buffer = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    port
}

const LOOPBACK: [&str; 2] = ["127.0.0.1", "::1"];

fn url(addr: &str, port: u16) -> String {
    match addr.contains(':') {
        true => format!("http://[{addr}]:{port}/"),
        false => format!("http://{addr}:{port}/"),
    }
}

#[test]
fn root_one_program_connects_and_another_one_does_not() {
    let who: [(&str, &[usize]); 1] = [("/usr/bin/curl", &[0])];
    let Some(mut group) =
        TestCgroup::new("connect", &policy(vec![rule(Verdict::Allow, true)]), &who)
    else {
        return;
    };
    for addr in LOOPBACK {
        let port = web_server(addr.parse().unwrap());
        // Not known yet: TCP asks again after a second.
        let done = group.run("curl", &["-sS", "--max-time", "60", &url(addr, port)]);
        assert_eq!(String::from_utf8_lossy(&done.stdout), "hello\n", "{done:?}");
        let begun = Instant::now();
        let done = group.run("curl", &["-sS", "--max-time", "60", &url(addr, port)]);
        assert_eq!(String::from_utf8_lossy(&done.stdout), "hello\n", "{done:?}");
        println!("known: {:?}", begun.elapsed());
        let script = format!(
            "import socket,time\nfor n in range(3):\n s=socket.socket(socket.{}); s.settimeout(3)\n try:\n  s.connect(('{addr}',{port})); print('connected')\n except OSError as e: print(type(e).__name__)\n time.sleep(.3)",
            if addr == "::1" { "AF_INET6" } else { "AF_INET" }
        );
        let told = group.python(&script);
        assert!(told.trim_end().ends_with("PermissionError"), "{told}");
        assert!(!told.contains("connected"), "{told}");
    }
    // Nobody tells the kernel anything any more: it goes on by what it knows.
    group.stop_telling();
    for addr in LOOPBACK {
        let port = web_server(addr.parse().unwrap());
        let done = group.run("curl", &["-sS", "--max-time", "60", &url(addr, port)]);
        assert_eq!(String::from_utf8_lossy(&done.stdout), "hello\n", "{done:?}");
    }
    println!("{:?}", group.identity.counts().unwrap());
    println!("{:?}", group.identity.hits(DecidedBy::Rule(0)).unwrap());
    assert!(group.identity.hits(DecidedBy::Rule(0)).unwrap().judged >= 6);
    assert!(group.identity.hits(DecidedBy::Default).unwrap().dropped >= 2);
}

/// What the verifier of Linux 6.18 may follow of a program: about a tenth above what it
/// follows with whichever of clang 14 and 19 is worse.
const MOST: [(&str, u64); 12] = [
    ("unlock", 100),
    ("lower", 100),
    ("exit", 100),
    ("create", 125_000),
    ("send", 70_000),
    ("room", 70_000),
    ("open", 70_000),
    ("pages", 70_000),
    ("connect4", 125_000),
    ("connect6", 125_000),
    ("egress", 245_000),
    ("ingress", 65_000),
];

/// The levels that this kernel has; none: it says so.
fn levels() -> Vec<Level> {
    let all = Level::ALL.map(|(_, level)| level).into_iter();
    let here: Vec<_> = all.filter(|one| level(Some(*one)).is_ok()).collect();
    if here.is_empty() {
        eprintln!(
            "skipped: this kernel lacks {}",
            level(None).unwrap_err().join(", ")
        );
    }
    here
}

/// Is there no tracepoint where connections send?
fn hooked_by_function() -> bool {
    level(Some(Level::Tracepoint)).is_err()
}

/// Does this kernel have the function by which sendfile went before Linux 6.5?
fn sends_pages_apart() -> bool {
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap();
    symbols
        .lines()
        .any(|line| line.ends_with(" do_tcp_sendpages"))
}

#[test]
fn root_identity_passes_the_verifier_with_room() {
    for level in levels() {
        let group = TestCgroup::new_at(Some(level), "loads", &policy(Vec::new()), &[]);
        println!("level {}", level.name());
        passes_the_verifier(&group.unwrap());
    }
}

fn passes_the_verifier(group: &TestCgroup) {
    let mut names = Vec::new();
    for (name, program) in group.loaded.programs() {
        let (_, most) = MOST.iter().find(|(of, _)| *of == name).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&program);
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
        let line = info.lines().find_map(|l| l.strip_prefix("verified_insns:"));
        let insns: u64 = line.unwrap().trim().parse().unwrap();
        println!("{name} {insns}");
        assert!(insns > 0 && insns <= *most, "{name} {insns} of {most}");
        names.push(name);
    }
    // Waits need a program of their own where sends are seen by the function, and so do pages
    // where another function sends them.
    let is_here = |name: &&str| match (*name, group.identity.level()) {
        ("unlock" | "lower", level) => level == Level::Push,
        ("pages", _) => sends_pages_apart(),
        ("room" | "open", Level::Tracepoint) => false,
        // By tracepoints from Linux 6.16 on.
        ("room" | "open", Level::Push) => hooked_by_function(),
        _ => true,
    };
    let expected: Vec<_> = MOST.iter().map(|(name, _)| *name).filter(is_here).collect();
    assert_eq!(names, expected);
}

#[test]
fn root_datagrams_are_judged_by_who_sends_them() {
    let who: [(&str, &[usize]); 1] = [("/usr/bin/python3", &[0])];
    let mut allow = rule(Verdict::Allow, true);
    allow.is_in = false;
    let Some(group) = TestCgroup::new("udp", &policy(vec![allow]), &who) else {
        return;
    };
    for addr in LOOPBACK {
        let port = echo_server(addr.parse().unwrap());
        let family = if addr == "::1" { "AF_INET6" } else { "AF_INET" };
        let script = format!(
            "import socket, time\ns=socket.socket(socket.{family},socket.SOCK_DGRAM); s.settimeout(.3)\nfor n in range(20):\n try:\n  s.sendto(b'ask',('{addr}',{port})); print(s.recv(9)); break\n except OSError as e: print(type(e).__name__); time.sleep(.2)"
        );
        let told = group.python(&script);
        assert!(told.contains("b'ask'"), "{told}");
        // The same by a program that may not.
        let perl = format!(
            "use IO::Socket::IP; my $s=IO::Socket::IP->new(PeerAddr=>'{addr}',PeerPort=>{port},Proto=>'udp'); for (1..100) {{ my $n=$s->send('ask'); print defined $n ? 'sent ' : \"refused:$! \"; last if !defined $n; select(undef,undef,undef,.2); }}"
        );
        let done = group.run("perl", &["-e", &perl]);
        let told = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(
            told.trim_end().ends_with("Operation not permitted"),
            "{told} {done:?}"
        );
    }
}

#[test]
fn root_what_no_rule_is_about_waits_until_the_rules_say_more() {
    let asks = Policy {
        asks: true,
        ..policy(Vec::new())
    };
    // Whom a rule about all programs is about is said of each, too.
    let who: [(&str, &[usize]); 1] = [("/usr/bin/curl", &[0])];
    let Some(group) = TestCgroup::new("asks", &asks, &who) else {
        return;
    };
    for addr in LOOPBACK {
        let port = web_server(addr.parse().unwrap());
        for verdict in [Verdict::Allow, Verdict::Reject] {
            group.identity.put_policy(&asks, &[], &[]).unwrap();
            group.told.lock().unwrap().clear();
            let curl = group
                .command("curl", &["-sS", "--max-time", "90", &url(addr, port)])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let is_asked = |event: &IdentityEvent| {
                event.kind == IdentityEventKind::Judged
                    && event.by == DecidedBy::Default
                    && (event.port, event.is_out, event.passes) == (port, true, false)
            };
            let until = Instant::now() + LONG;
            while !group.told.lock().unwrap().iter().any(is_asked) {
                assert!(Instant::now() < until, "{addr}: it is not told");
                thread::sleep(Duration::from_millis(10));
            }
            let answer = policy(vec![rule(verdict, false)]);
            group.identity.put_policy(&answer, &[], &[]).unwrap();
            let begun = Instant::now();
            if group.identity.can_cut() {
                group.identity.cut_revoked().unwrap();
            }
            let done = curl.wait_with_output().unwrap();
            let page = String::from_utf8_lossy(&done.stdout);
            if verdict == Verdict::Allow {
                assert_eq!(page, "hello\n", "{addr}: {done:?}");
            } else {
                assert_eq!((&*page, done.status.success()), ("", false), "{addr}");
                // Else with its next packet, or by its own time-out.
                let is_at_once = begun.elapsed() < AT_ONCE;
                assert!(!group.identity.can_cut() || is_at_once, "{addr}: {done:?}");
            }
        }
    }
}

/// Pins of a weir whose tables had another form: its programs judge until those of this one
/// do, and no longer.
#[test]
fn root_what_an_older_form_has_attached_ends_when_this_one_judges() {
    let who: [(&str, &[usize]); 1] = [("/usr/bin/curl", &[])];
    let Some(mut group) = TestCgroup::new("form", &policy(Vec::new()), &who) else {
        return;
    };
    let root = Path::new(ROOT);
    let connects = |group: &TestCgroup, addr: &str| {
        let port = web_server(addr.parse().unwrap());
        let done = group.run("curl", &["-sS", "--max-time", "3", &url(addr, port)]);
        done.stdout == b"hello\n"
    };
    for addr in LOOPBACK {
        assert!(!connects(&group, addr), "{addr}");
    }
    let here = group.identity.dir().to_owned();
    let older = here.with_file_name("app-1");
    fs::rename(&here, &older).unwrap();
    assert!(is_attached(root, &group.name));
    group.stop_telling();
    let at = CgroupAt::open(Some(&group.cgroup)).unwrap();
    let (identity, loaded) = Identity::load_at(root, &group.name, &at, wanted()).unwrap();
    let mut allow = policy(Vec::new());
    allow.default = Verdict::Allow;
    identity.put_policy(&allow, &[], &[]).unwrap();
    loaded.attach_noting().unwrap();
    for addr in LOOPBACK {
        assert!(!connects(&group, addr), "{addr}: nobody judges yet");
    }
    loaded.attach_judging().unwrap();
    assert!(!older.exists());
    for addr in LOOPBACK {
        assert!(connects(&group, addr), "{addr}");
    }
    // An instance without rules takes those of every form away.
    fs::rename(&here, &older).unwrap();
    detach(root, &group.name).unwrap();
    assert!(!is_attached(root, &group.name));
}

/// What is left of a policy that was refused while it was written is of no later one, whose
/// rules have the same numbers.
#[test]
fn root_a_policy_that_is_refused_midway_leaves_nothing_to_the_next_one() {
    let allow = |prefixes: &[&str]| {
        let prefixes = prefixes.iter().map(|text| text.parse().unwrap());
        let mut allow = rule(Verdict::Allow, false);
        allow.outward = Some(Networks {
            prefixes: prefixes.collect(),
            outside: false,
        });
        policy(vec![allow])
    };
    // A rule about everybody is in the bits of each program.
    let who: [(&str, &[usize]); 1] = [("/usr/bin/python3", &[0])];
    let Some(group) = TestCgroup::new("midway", &policy(Vec::new()), &who) else {
        return;
    };
    // Nobody has such a number: that is found once the networks are written.
    let nobody = [(Handle::new(u16::MAX, 1), RuleBits::default())];
    let refused = allow(&["127.0.0.0/8", "::1/128"]);
    let error = group.identity.put_policy(&refused, &nobody, &[]);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("there is no number 65535"), "{error}");
    assert_eq!(group.identity.networks(), 0);
    let other = allow(&["192.0.2.0/24", "2001:db8::/32"]);
    group.identity.put_policy(&other, &[], &[]).unwrap();
    assert_eq!(group.identity.networks(), 2);
    let sends = |group: &TestCgroup, addr: &str| {
        let port = echo_server(addr.parse().unwrap());
        let family = if addr == "::1" { "AF_INET6" } else { "AF_INET" };
        group.python(&format!(
            "import socket\ns=socket.socket(socket.{family},socket.SOCK_DGRAM)\ntry: s.sendto(b'ask',('{addr}',{port})); print('sent')\nexcept OSError as e: print(type(e).__name__)"
        ))
    };
    for addr in LOOPBACK {
        assert_eq!(sends(&group, addr).trim(), "PermissionError", "{addr}");
    }
    group.identity.put_policy(&refused, &[], &[]).unwrap();
    for addr in LOOPBACK {
        assert_eq!(sends(&group, addr).trim(), "sent", "{addr}");
    }
}

/// A daemon that was killed while it wrote a policy has left networks behind, each time under
/// another number: they take no room of the next policies, even if these are refused, too.
#[test]
fn root_networks_that_a_killed_daemon_has_left_are_gone_before_the_next_are_written() {
    let mut allow = rule(Verdict::Allow, false);
    allow.outward = Some(Networks {
        prefixes: ["192.0.2.0/24".parse().unwrap()].into(),
        outside: false,
    });
    let in_force = policy(vec![allow]);
    let Some(group) = TestCgroup::new("left", &in_force, &[]) else {
        return;
    };
    assert_eq!(group.identity.networks(), 1);
    let pin = group.identity.dir().join("ident_networks");
    let map = MapHandle::from_pinned_path(pin).unwrap();
    let leave = || {
        for generation in [1_000_u32, 1_001, 1_002] {
            // As `struct ident_network`: the length, of which rule of which policy, the address.
            let words = [160, generation << 11, 0xfd00, 0, 0, generation];
            let key: Vec<_> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
            map.update(&key, &1_u32.to_ne_bytes(), MapFlags::ANY)
                .unwrap();
        }
        assert_eq!(group.identity.networks(), 4);
    };
    leave();
    // Nobody has such a number: it is refused once the networks are written.
    let nobody = [(Handle::new(u16::MAX, 1), RuleBits::default())];
    let refused = group.identity.put_policy(&in_force, &nobody, &[]);
    assert!(refused.is_err());
    assert_eq!(group.identity.networks(), 1);
    leave();
    group.identity.put_policy(&in_force, &[], &[]).unwrap();
    assert_eq!(group.identity.networks(), 1);
}

/// Sends on descriptor 9 until it may, or so often, a millisecond apart; prints whether it
/// did, and stays until its input ends. It calls nothing that changes
/// mappings: two files with the same program are alike to the kernel's count of changes.
const SENDER: &str = r#"
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int count, char **args)
{
    char passed = 'n', end;
    for (int left = atoi(args[1]); left > 0 && passed == 'n'; left--) {
        if (send(9, "x", 1, 0) == 1) passed = 'y';
        else usleep(1000);
    }
    if (write(1, &passed, 1) != 1) return 1;
    return read(0, &end, 1) != 0;
}
"#;

/// On each line a socket that one program has sent on is sent on by another one.
const REUSE: &str = r#"
import os, socket, subprocess, sys, time
family, addr, first, second = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for line in sys.stdin:
    s = socket.socket(family, socket.SOCK_DGRAM); s.connect((addr, 9))
    for n in range(300):
        # Until this program itself is known.
        try: s.send(b'x'); break
        except ConnectionRefusedError: break
        except OSError: time.sleep(.01)
    os.dup2(s.fileno(), 9, True); s.close()
    for program, patience in (first, '3000'), (second, '20'):
        p = subprocess.Popen([program, patience], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[9])
        print(p.pid, p.stdout.read(1).decode(), flush=True)
        sys.stdin.readline()
        p.stdin.close(); p.wait(); p.stdout.close()
"#;

/// The kernel gives the address space of a program that has ended to the next one, at the
/// same address, and with as many changes of its mappings: that is another program.
#[test]
fn root_an_address_space_that_is_used_again_is_not_the_program_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (source, first, second) = (path("sender.c"), path("first"), path("other"));
    fs::write(&source, SENDER).unwrap();
    let built = Command::new("cc")
        .args(["-O1", "-o", &first, &source])
        .output();
    match built {
        Ok(built) if built.status.success() => (),
        other => {
            eprintln!("skipped: no C compiler (probe: cc): {other:?}");
            return;
        }
    }
    // The same program in another file, which no child of another test has open.
    let copied = Command::new("cp").args([&first, &second]).status();
    assert!(copied.unwrap().success());
    let python = fs::canonicalize("/usr/bin/python3").unwrap();
    let who: [(&str, &[usize]); 2] = [(python.to_str().unwrap(), &[0]), (&first, &[0])];
    let Some(group) = TestCgroup::new("reuse", &policy(vec![rule(Verdict::Allow, true)]), &who)
    else {
        return;
    };
    for (addr, family) in [("127.0.0.1", "2"), ("::1", "10")] {
        let mut python = group
            .command(
                "/usr/bin/python3",
                &["-c", REUSE, family, addr, &first, &second],
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = python.stdin.take().unwrap();
        let mut lines = BufReader::new(python.stdout.take().unwrap()).lines();
        let (mut alike, mut rounds) = (0, 0);
        let until = Instant::now() + 3 * LONG;
        while alike < 5 {
            assert!(
                Instant::now() < until,
                "{addr}: {alike} of {rounds} are alike"
            );
            writeln!(input).unwrap();
            let mut seen = Vec::new();
            for passes in ["y", "n"] {
                let line = lines.next().unwrap().unwrap();
                let (pid, passed) = line.split_once(' ').unwrap();
                assert_eq!(
                    passed, passes,
                    "{addr}: round {rounds}, {alike} alike before"
                );
                let now = group
                    .identity
                    .look_at(pid.parse().unwrap())
                    .unwrap()
                    .unwrap();
                // At level push no two address spaces have the same number.
                let number = match group.identity.level() {
                    Level::Push => 0,
                    _ => now.sequence,
                };
                seen.push((now.space, number));
                writeln!(input).unwrap();
            }
            alike += u32::from(seen[0] == seen[1]);
            rounds += 1;
        }
        println!("{addr}: {alike} of {rounds} rounds with the same space and sequence");
        drop(input);
        python.wait().unwrap();
    }
}

/// Many mappings, of which none can be one with the next, and changes of them when told.
const MANY: &str = r#"
import ctypes, mmap, os, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
lib, exe = None, os.open('/usr/bin/true', os.O_RDONLY)
def map_one(prot, fd=-1):
    found = libc.mmap(None, 4096, prot, 2 if fd >= 0 else 0x22, fd, 0)
    assert found not in (None, ctypes.c_void_p(-1).value)
    return found
def busy():
    while True:
        libc.munmap(map_one(3), 4096); time.sleep(.001)
for line in sys.stdin:
    word = line.split()
    if word[0] == 'many':
        for n in range(int(word[1])): map_one(1 + n % 2 * 2)
    elif word[0] == 'apart':
        for n in range(int(word[1])):
            found = libc.mmap(None, 8192, 3, 0x22, -1, 0)
            assert found not in (None, ctypes.c_void_p(-1).value), n
            assert libc.munmap(found + 4096, 4096) == 0, n
    elif word[0] == 'map': lib = map_one(5, exe)
    elif word[0] == 'unmap': libc.munmap(lib, 4096)
    elif word[0] == 'busy': threading.Thread(target=busy, daemon=True).start()
    print('done', flush=True)
"#;

/// What is found of a program is what it has mapped executable, however many mappings it has,
/// wherever these are, and while its threads change others. A level that reads the kernel's
/// tree of mappings itself meets all forms of that here.
#[test]
fn root_a_program_of_many_mappings_is_known_at_each_level() {
    for level in levels() {
        let group = TestCgroup::new_at(Some(level), "many", &policy(Vec::new()), &[]);
        println!("level {}", level.name());
        knows_many_mappings(&group.unwrap());
    }
}

fn knows_many_mappings(group: &TestCgroup) {
    let mut program = Many::new(group);
    program.tell("many 1");
    let first = program.look().unwrap();
    assert!(first.executable.is_some());
    let mut count = 1;
    for more in [1, 7, 8, 9, 60, 300, 1_000, 10_000, 40_000] {
        program.tell(&format!("many {more}"));
        count += more;
        let now = program.look().unwrap();
        assert_eq!(now.key, first.key, "{count} mappings");
        assert_ne!(now.sequence, first.sequence, "{count} mappings");
        let again = program.look().unwrap();
        assert_eq!(now.sequence, again.sequence, "nothing has changed");
        println!("{count} mappings: {} us", now.walk_ns / 1000);
        program.tell("map");
        let other = program.look().unwrap();
        assert_ne!(other.key.set, first.key.set, "{count} mappings");
        program.tell("unmap");
        let now = program.look().unwrap();
        assert_eq!(now.key, first.key, "{count} mappings");
        assert_ne!(now.sequence, other.sequence, "{count} mappings");
    }
    // With gaps between them: as many as there may be, or nearly.
    let mut program = Many::new(group);
    program.tell("many 1");
    let first = program.look().unwrap();
    for (more, count) in [(30_000, 30_000), (10_000, 40_000), (20_000, 60_000)] {
        program.tell(&format!("apart {more}"));
        let now = program
            .look()
            .unwrap_or_else(|| panic!("{count} with gaps"));
        assert_eq!(now.key, first.key, "{count} with gaps");
        println!("{count} with gaps: {} us", now.walk_ns / 1000);
        program.tell("map");
        let other = program.look().unwrap();
        assert_ne!(other.key.set, first.key.set, "{count} with gaps");
        program.tell("unmap");
    }
    // While a thread changes others, a thousand times a second.
    let mut program = Many::new(group);
    program.tell("many 1");
    assert_eq!(program.look().unwrap().key, first.key);
    program.tell("busy");
    let seen: Vec<_> = (0..200).filter_map(|_| program.look()).collect();
    println!(
        "{} of 200 times known while it changes mappings",
        seen.len()
    );
    assert!(!seen.is_empty());
    assert!(seen.iter().all(|seen| seen.key == first.key));
    program.tell("map");
    let until = Instant::now() + LONG;
    let other = loop {
        assert!(Instant::now() < until);
        if let Some(seen) = program.look() {
            break seen;
        }
    };
    assert_ne!(other.key.set, first.key.set);
}

/// How many mappings a process may have, put back when it is dropped.
struct MaxMappings(String);

impl MaxMappings {
    const AT: &str = "/proc/sys/vm/max_map_count";

    fn raise(count: u32) -> Self {
        let before = fs::read_to_string(Self::AT).unwrap();
        if before.trim().parse::<u32>().unwrap() < count {
            fs::write(Self::AT, count.to_string()).unwrap();
        }
        Self(before)
    }
}

impl Drop for MaxMappings {
    fn drop(&mut self) {
        fs::write(Self::AT, &self.0).unwrap();
    }
}

/// At level push one walk looks at no more than so many mappings: whoever has more is unknown,
/// and that is counted by its own reason.
#[test]
fn root_at_level_push_a_program_of_too_many_mappings_is_unknown_and_counted() {
    let Some(group) = TestCgroup::new_at(Some(Level::Push), "large", &policy(Vec::new()), &[])
    else {
        return;
    };
    let _raised = MaxMappings::raise(400_000);
    let mut program = Many::new(&group);
    program.tell("apart 140000");
    let known = program.look().unwrap();
    let counts = || {
        let counts = group.identity.counts().unwrap();
        (counts.large, counts.busy)
    };
    println!("140,000 with gaps: {} us", known.walk_ns / 1000);
    assert_eq!(counts(), (0, 0));
    program.tell("apart 200000");
    assert_eq!(program.look(), None);
    assert_eq!(counts(), (1, 0));
}

/// A process that runs [`MANY`], killed when it is dropped.
struct Many {
    identity: Arc<Identity>,
    python: std::process::Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Many {
    fn new(group: &TestCgroup) -> Self {
        let mut python = group
            .command("/usr/bin/python3", &["-u", "-c", MANY])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            identity: group.identity.clone(),
            lines: BufReader::new(python.stdout.take().unwrap()).lines(),
            python,
        }
    }

    fn tell(&mut self, word: &str) {
        writeln!(self.python.stdin.as_mut().unwrap(), "{word}").unwrap();
        let answer = self.lines.next().unwrap().unwrap();
        assert_eq!(answer, "done", "{word}");
    }

    fn look(&self) -> Option<weir_bpf::identity::Seen> {
        self.identity.look_at(self.python.id()).unwrap()
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        let _ = self.python.kill();
        let _ = self.python.wait();
    }
}

/// A connection on whose segments over IPv6 a header stands before TCP's, with what would be
/// the flag of a reset where TCP's flags are without it.
const ODD: &str = r#"
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
if s.family == socket.AF_INET6:
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_DSTOPTS, bytes([0, 1, 0x1e, 12]) + bytes([4] * 12))
for line in sys.stdin:
    s.send(line.encode())
    print('sent', flush=True)
"#;

/// At level push user space ends connections, which may fail: until then only what is a reset
/// may leave, and not what is made to look like one.
#[test]
fn root_a_connection_that_cannot_be_ended_carries_nothing() {
    let who: [(&str, &[usize]); 1] = [("/usr/bin/python3", &[0])];
    let allowed = policy(vec![rule(Verdict::Allow, true)]);
    let Some(group) = TestCgroup::new_at(Some(Level::Push), "ended", &allowed, &who) else {
        return;
    };
    for addr in LOOPBACK {
        group.identity.put_policy(&allowed, &[], &[]).unwrap();
        let listener = TcpListener::bind((addr, 0)).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let mut python = group
            .command("/usr/bin/python3", &["-u", "-c", ODD, addr, &port])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut input, output) = (python.stdin.take().unwrap(), python.stdout.take().unwrap());
        let mut lines = BufReader::new(output).lines();
        let (mut server, _) = listener.accept().unwrap();
        server.set_read_timeout(Some(LONG)).unwrap();
        let mut read = [0; 64];
        writeln!(input, "first").unwrap();
        let length = server.read(&mut read).unwrap();
        assert_eq!(&read[..length], b"first\n", "{addr}");
        lines.next().unwrap().unwrap();

        let nothing = policy(Vec::new());
        group.identity.put_policy(&nothing, &[], &[]).unwrap();
        let cut = || group.identity.counts().unwrap().cut;
        let before_cut = cut();
        let refused = thread::scope(|scope| {
            let ends = || {
                without_net_admin();
                [group.identity.cut_revoked(), group.identity.cut_revoked()]
            };
            scope.spawn(ends).join().unwrap()
        });
        assert!(
            refused.iter().all(Result::is_err),
            "{addr}: who may not end it says so"
        );
        assert_eq!(cut(), before_cut, "{addr}: it has not been ended");
        let dropped = || group.identity.counts().unwrap().dropped_out;
        let before = dropped();
        writeln!(input, "second").unwrap();
        lines.next().unwrap().unwrap();
        let until = Instant::now() + LONG;
        server
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        while dropped() < before + 2 {
            let got = server.read(&mut read);
            assert!(got.is_err(), "{addr}: {got:?} bytes came through");
            assert!(Instant::now() < until, "{addr}: nothing was dropped");
        }
        let got = server.read(&mut read);
        assert!(got.is_err(), "{addr}: {got:?} bytes came through");

        // Who may ends it, and the peer is told. It is counted and told of once.
        for _ in 0..2 {
            group.identity.cut_revoked().unwrap();
            assert_eq!(cut(), before_cut + 1, "{addr}");
        }
        soon_told(&group, 1 + u64::from(addr != LOOPBACK[0]), addr);
        if addr == "127.0.0.1" {
            server.set_read_timeout(Some(LONG)).unwrap();
            let ended = server.read(&mut read).unwrap_err();
            assert_eq!(ended.kind(), std::io::ErrorKind::ConnectionReset, "{addr}");
        }
        drop(input);
        python.wait().unwrap();
    }
}

/// Of so many connections it was told that they are ended, and no more.
#[track_caller]
fn soon_told(group: &TestCgroup, count: u64, what: &str) {
    let told = || {
        let told = group.told.lock().unwrap();
        let ends = told.iter().filter(|e| e.kind == IdentityEventKind::Cut);
        ends.count() as u64
    };
    let until = Instant::now() + LONG;
    while told() < count {
        assert!(Instant::now() < until, "{what}: {} of {count}", told());
        thread::sleep(Duration::from_millis(10));
    }
    // As long as the teller takes to read what is there.
    thread::sleep(Duration::from_millis(100));
    assert_eq!(told(), count, "{what}");
}

/// The same of datagrams, on a socket that is connected: each pass comes to it until it has
/// been ended, and it is counted, and told of, once.
#[test]
fn root_a_flow_that_cannot_be_ended_is_counted_once() {
    let who: [(&str, &[usize]); 1] = [("/usr/bin/python3", &[0])];
    let allowed = policy(vec![rule(Verdict::Allow, true)]);
    let Some(group) = TestCgroup::new_at(Some(Level::Push), "flow", &allowed, &who) else {
        return;
    };
    for (number, addr) in LOOPBACK.into_iter().enumerate() {
        group.identity.put_policy(&allowed, &[], &[]).unwrap();
        let peer = UdpSocket::bind((addr, 0)).unwrap();
        peer.set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        let port = peer.local_addr().unwrap().port().to_string();
        let mut python = group
            .command("/usr/bin/python3", &["-u", "-c", CONNECTED, addr, &port])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut input, output) = (python.stdin.take().unwrap(), python.stdout.take().unwrap());
        let mut lines = BufReader::new(output).lines();
        let until = Instant::now() + LONG;
        loop {
            writeln!(input, "send").unwrap();
            lines.next().unwrap().unwrap();
            if peer.recv(&mut [0; 64]).is_ok() {
                break;
            }
            assert!(Instant::now() < until, "{addr}: it is never known");
        }
        let nothing = policy(Vec::new());
        group.identity.put_policy(&nothing, &[], &[]).unwrap();
        let counts = || {
            let hits = group.identity.hits(DecidedBy::Default).unwrap();
            (group.identity.counts().unwrap().cut, hits.dropped)
        };
        let before = counts();
        let refused = thread::scope(|scope| {
            let ends = || {
                without_net_admin();
                [(); 3].map(|()| group.identity.cut_revoked())
            };
            scope.spawn(ends).join().unwrap()
        });
        assert!(refused.iter().all(Result::is_err), "{addr}: {refused:?}");
        assert_eq!(counts(), before, "{addr}");
        for _ in 0..2 {
            group.identity.cut_revoked().unwrap();
            assert_eq!(counts(), (before.0 + 1, before.1 + 1), "{addr}");
        }
        soon_told(&group, number as u64 + 1, addr);
        writeln!(input, "hear").unwrap();
        let heard = lines.next().unwrap().unwrap();
        assert_eq!(heard, "ConnectionAbortedError", "{addr}");
        drop(input);
        python.wait().unwrap();
    }
}

/// A socket for datagrams that is connected.
const CONNECTED: &str = r#"
import socket, sys
s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], int(sys.argv[2])))
for line in sys.stdin:
    try:
        s.send(b'x') if line.startswith('send') else s.recv(100)
        print('done', flush=True)
    except OSError as e: print(type(e).__name__, flush=True)
"#;

/// This thread may end no connections any more.
fn without_net_admin() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::NET_ADMIN);
    set_capabilities(None, sets).unwrap();
}
