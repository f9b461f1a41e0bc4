//! Rules about programs that are out of the ordinary: on a file system that somebody else
//! holds, and whose holder has stopped; on one that is unmounted once they have ended; with very
//! many mappings, and changing them all the time; in a container that sees another tree of control
//! groups; and gone, while their connections are there.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
};

use app_host::{ADDRESSES, TestHost};
use common::soon;
use weir_testkit::fuse::FuseLog;

/// A script of Python's that does something first, then says for each line that it reads
/// whether it can connect.
fn connects_at_each_line(first: &str) -> String {
    format!(
        "import ctypes, encodings.idna, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
{first}
for line in sys.stdin:
    try: socket.create_connection((line.strip(), 8080), 3); print('connected', flush=True)
    except OSError as e: print(type(e).__name__, flush=True)
"
    )
}

/// Maps its arguments executable, too, so that it is another program, and reads all of its code
/// in.
const LOCKED: &str = "
for file in sys.argv[1:]: libc.mmap(None, 4096, 5, 2, os.open(file, os.O_RDONLY), 0)
assert libc.mlockall(1) == 0
print('ready', flush=True)
";

/// A program whose content somebody else holds is nobody that a digest names, and he is not
/// waited for: when he has stopped, other programs are known all the same.
#[test]
fn root_a_program_on_fuse_is_not_trusted_and_its_holder_not_waited_for() {
    const PYTHON: &str = "/usr/bin/python3";
    if let Some(missing) = weir_testkit::fuse::missing() {
        eprintln!("skipped: {missing}");
        return;
    }
    let rules = format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.python]\nverdict = \"allow\"\nexe = \"{}\"\n",
        app_host::sha256(PYTHON),
    );
    let Some(host) = TestHost::new("fuse", &rules) else {
        return;
    };
    let content = fs::read(PYTHON).unwrap();
    let remote = FuseLog::mount().unwrap();
    remote.append(&content);
    let (file, script) = (remote.path(), connects_at_each_line(LOCKED));
    let begin = |program: &Path, beside: &[&str]| {
        let words = [program.to_str().unwrap(), "-c", &script];
        let mut python = host.begin(&[&words, beside].concat());
        assert_eq!(python.line(), "ready");
        python
    };
    let mut refused = begin(&file, &[]);
    for address in ADDRESSES {
        soon("python to be known", || {
            (host.connects(address).trim() == "connected").then_some(())
        });
    }
    for address in ["127.0.0.1", "::1"] {
        refused.say(address);
        assert_ne!(refused.line(), "connected", "{address}");
    }
    soon("the alert", || {
        let alerts = host.host.alerts();
        (alerts.contains("app:files") && alerts.contains("answer otherwise")).then_some(())
    });
    // One that runs, and that nobody has looked at.
    let dir = tempfile::tempdir().unwrap();
    let beside = dir.path().join("beside");
    fs::write(&beside, [1; 4096]).unwrap();
    let mut python = begin(&file, &[beside.to_str().unwrap()]);
    remote.hang(true);
    for address in ["127.0.0.1", "::1"] {
        python.say(address);
        assert_ne!(python.line(), "connected");
    }
    // Another one is read after it.
    let copy = dir.path().join("python3");
    fs::copy(PYTHON, &copy).unwrap();
    let mut copy = begin(&copy, &[]);
    for address in ["127.0.0.1", "::1"] {
        soon("a copy of python to be known", || {
            copy.say(address);
            (copy.line() == "connected").then_some(())
        });
    }
    let (code, told) = host.host.ask(&["app", "list"]);
    assert_eq!(code, Some(0), "{told}");
    remote.hang(false);
}

/// A user leads to a file system whose holder has stopped by links: that of his process has no
/// link in it where he runs it, or stands below /proc; that of a program that rules name by its
/// content was his program's place before; one is an argument of what is called as an interpreter.
/// And the daemon goes through what runs while a program of such a file system does. Other programs
/// are known all the same.
#[test]
fn root_a_path_that_leads_to_a_file_system_of_others_keeps_nobody_waiting() {
    const PYTHON: &str = "/usr/bin/python3";
    if let Some(missing) = weir_testkit::fuse::missing() {
        eprintln!("skipped: {missing}");
        return;
    }
    let rules = format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.python]\nverdict = \"allow\"\nexe = \"{}\"\n",
        app_host::sha256(PYTHON),
    );
    let Some(host) = TestHost::new("paths", &rules) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let place = |name: &str| {
        let path = at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(PYTHON, &path).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (named, fresh) = (place("named/way/python3"), place("fresh"));
    place("real/way/python3");
    let script = connects_at_each_line(LOCKED);
    let module = connects_at_each_line("print('ready', flush=True)");
    fs::write(at("connects.py"), module).unwrap();
    let connects = |what: &str, program: &str| {
        let mut python = host.begin(&[program, "-c", &script]);
        assert_eq!(python.line(), "ready");
        for address in ["127.0.0.1", "::1"] {
            soon(&format!("{program} to be known {what}"), || {
                python.say(address);
                (python.line() == "connected").then_some(())
            });
        }
        let (code, told) = host.host.ask(&["app", "list"]);
        assert_eq!(code, Some(0), "{told}");
    };
    connects("before", &named);
    let remote = FuseLog::mount().unwrap();
    remote.append(fs::read(PYTHON).unwrap());
    let point = remote.path().parent().unwrap().to_owned();
    let out = format!("/proc/{}/root{}", std::process::id(), point.display());
    fs::create_dir(at("covered")).unwrap();
    symlink(&out, at("covered/way")).unwrap();
    let mut on_fuse = host.begin(&[remote.path().to_str().unwrap(), "-c", &script]);
    assert_eq!(on_fuse.line(), "ready");
    remote.hang(true);

    let covers =
        "mount --bind \"$0/real\" \"$0/covered\" && exec \"$0/covered/way/python3\" \"$@\"";
    let root = dir.path().to_str().unwrap();
    let mut elsewhere = host.begin(&["unshare", "-m", "sh", "-c", covers, root, "-c", &script]);
    assert_eq!(elsewhere.line(), "ready");
    elsewhere.say("127.0.0.1");
    elsewhere.line();
    connects("beside one that is elsewhere", &fresh);

    host.host.done(&["app", "learn", "start", "--for", "1h"]);
    let path = format!("PYTHONPATH={root}");
    let mut learned = host.begin(&["env", &path, PYTHON, "-mconnects", &format!("{out}/any")]);
    assert_eq!(learned.line(), "ready");
    learned.say("127.0.0.1");
    learned.line();
    let second = place("second");
    connects("while weir learns", &second);

    fs::rename(at("named/way"), at("named/before")).unwrap();
    symlink(&point, at("named/way")).unwrap();
    let packaged = "[app.rules.packaged]\nverdict = \"allow\"\npackage = \"coreutils\"\n";
    host.configure(&(rules + packaged));
    host.host.done(&["reload"]);
    let third = place("third");
    connects("after a reload", &third);
    remote.hang(false);
}

/// A file system in memory, and `umount` with options for it.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn mount() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "weir"]).arg(dir.path()).status();
        assert!(mounted.unwrap().success());
        Self(dir)
    }

    fn unmount(&self, options: &[&str]) -> bool {
        let mut umount = Command::new("umount");
        let done = umount.args(options).arg(self.0.path()).output();
        done.is_ok_and(|done| done.status.success())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        self.unmount(&["-l"]);
    }
}

/// What has ended keeps no file system busy, whosever its files were, and is known again when it
/// comes back.
#[test]
fn root_a_file_system_can_be_unmounted_once_nobody_runs_a_program_of_it() {
    const PYTHON: &str = "/usr/bin/python3";
    let rules = format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.python]\nverdict = \"allow\"\nexe = \"{}\"\n",
        app_host::sha256(PYTHON),
    );
    let Some(host) = TestHost::new("unmount", &rules) else {
        return;
    };
    let tmpfs = Tmpfs::mount();
    let script = connects_at_each_line("print('ready', flush=True)");
    let begin = |name: &str| {
        let program = tmpfs.0.path().join(name);
        let mut python = host.begin(&[program.to_str().unwrap(), "-c", &script]);
        assert_eq!(python.line(), "ready");
        for address in ["127.0.0.1", "::1"] {
            soon("a copy of python to be known", || {
                python.say(address);
                (python.line() == "connected").then_some(())
            });
        }
        python
    };
    let copy = |name: &str, owner: u32| {
        let to = tmpfs.0.path().join(name);
        // By a process of its own: a child of another test could have a descriptor of ours.
        let done = Command::new("cp").arg(PYTHON).arg(&to).status();
        assert!(done.unwrap().success());
        std::os::unix::fs::chown(&to, Some(owner), None).unwrap();
    };
    copy("python-of-root", 0);
    copy("python-of-another", 1000);
    for name in ["python-of-root", "python-of-another"] {
        drop(begin(name));
    }
    // It is known, and whoever wants to write to it would wait.
    assert!(!tmpfs.unmount(&[]));
    let running = begin("python-of-root");
    // That one ends keeps nobody from it that is run by others.
    drop(begin("python-of-another"));
    drop(running);
    drop(begin("python-of-root"));
    soon("nobody to be known who has its files", || {
        tmpfs.unmount(&[]).then_some(())
    });
}

/// Maps a file very often, and goes on to change its mappings, in each of eight processes, which
/// connect all the time.
const RESTLESS: &str = "
import ctypes, mmap, os, socket, sys, threading, time
f = os.open(sys.argv[1], os.O_RDONLY)
kept = [mmap.mmap(f, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC) for n in range(4000)]
os.setuid(65534)
for n in range(8):
    if os.fork() == 0: break
def change():
    while True:
        mmap.mmap(f, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()
        time.sleep(.0005)
threading.Thread(target=change).start()
while True:
    for family, address in (socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1'):
        s = socket.socket(family); s.setblocking(False)
        try: s.connect((address, 8080))
        except OSError: pass
        time.sleep(.1); s.close()
";

/// Programs of one user whose mappings change all the time are not looked at for long, and others
/// are judged meanwhile.
#[test]
fn root_programs_that_never_stand_still_keep_no_others_waiting() {
    let Some(host) = TestHost::new("restless", &app_host::curl_only()) else {
        return;
    };
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = dir.path().join("code");
    fs::write(&file, vec![7; 4096]).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(dir.path(), mode).unwrap();
    let _restless = host.begin(&["/usr/bin/python3", "-c", RESTLESS, file.to_str().unwrap()]);
    // Whether their user has spent his time depends on how fast this machine is.
    soon("the alert about them", || {
        host.host.alerts().contains("app:restless").then_some(())
    });
    for address in ADDRESSES {
        soon("curl to be known beside them", || {
            (host.curl(address) == "200").then_some(())
        });
    }
}

/// Maps two files in turns until the kernel gives no more mappings, and leaves a few.
const MANY: &str = "
fds = [os.open(file, os.O_RDONLY) for file in sys.argv[1:]]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
count, last, failed = 0, [], ctypes.c_void_p(-1).value
while (at := libc.mmap(None, 4096, 5, 2, fds[count & 1], 0)) != failed:
    last = last[-99:] + [at]
    count += 1
for at in last: libc.munmap(at, 4096)
print(count, flush=True)
";

/// A program with as many mappings as the kernel gives: it is known, and judged as it is.
#[test]
fn root_a_program_with_all_mappings_that_there_may_be_is_judged_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["one", "two"].map(|name| dir.path().join(name));
    for (number, file) in files.iter().enumerate() {
        fs::write(file, vec![number as u8; 4096]).unwrap();
    }
    let rules = format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.odd]\nverdict = \"drop\"\nobject = \"{}\"\n\
         [app.rules.python]\nverdict = \"allow\"\nobject = \"{}\"\n",
        app_host::sha256(files[1].to_str().unwrap()),
        app_host::sha256("/usr/bin/python3"),
    );
    let Some(host) = TestHost::new("mappings", &rules) else {
        return;
    };
    let plain = dir.path().join("plain");
    fs::write(&plain, vec![7; 4096]).unwrap();
    let script = connects_at_each_line(MANY);
    let with = |other: &Path, wanted: &str| {
        let files = [plain.to_str().unwrap(), other.to_str().unwrap()];
        let mut words = vec!["/usr/bin/python3", "-c", &script];
        words.extend(files);
        let mut python = host.begin(&words);
        let count: u32 = python.line().parse().unwrap();
        assert!(count > 60_000, "{count} mappings");
        for address in ["127.0.0.1", "::1"] {
            soon("it to be known", || {
                python.say(address);
                (python.line() == wanted).then_some(())
            });
        }
    };
    with(&files[0], "connected");
    with(&files[1], "PermissionError");
}

/// Enters a control group, then a namespace of control groups and of mounts, mounts the tree
/// that there is at the place of the real one, makes a group of the allowed one's name in it,
/// enters that, and runs the rest.
const OWN_TREE: &str = r#"
echo 0 > "$0/cgroup.procs"
exec unshare --cgroup --mount sh -ec '
mount -t cgroup2 none "$0"
mkdir -p "$0/allowed.slice"
echo 0 > "$0/allowed.slice/cgroup.procs"
exec "$@"' "$@"
"#;

/// A container that mounts a tree of control groups of its own has the groups' names as it
/// likes; a rule means the path from the host's root.
#[test]
fn root_a_container_with_a_tree_of_its_own_is_judged_by_the_hosts() {
    let instance = format!("weir-test-app-tree-{}", std::process::id());
    let rules = format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.slice]\nverdict = \"allow\"\n\
         cgroup = [\"/allowed.slice\", \"/{instance}/real.slice\"]\nports = [\"8080/tcp\"]\n"
    );
    let Some(host) = TestHost::new("tree", &rules) else {
        return;
    };
    let [real, other] = ["real.slice", "other.slice"].map(|name| host.cgroup.join(name));
    for group in [&real, &other] {
        fs::create_dir(group).unwrap();
    }
    let at = tempfile::tempdir().unwrap();
    let at = at.path().to_str().unwrap();
    let within = |group: &Path, address: &str| {
        let url = format!("http://{address}:8080/");
        let words = [
            "-c",
            OWN_TREE,
            group.to_str().unwrap(),
            at,
            "curl",
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "--max-time",
            "3",
            &url,
        ];
        let done = host.space.output("sh", &words).unwrap();
        let told = [done.stdout, done.stderr].concat();
        String::from_utf8_lossy(&told).into_owned()
    };
    for address in ADDRESSES {
        // By what stands above the group that it made.
        soon("what is below the allowed one to be known", || {
            (within(&real, address) == "200").then_some(())
        });
        assert_eq!(within(&other, address), "000");
    }
    for group in [&real, &other] {
        let _ = fs::remove_dir(group.join("allowed.slice"));
        let _ = fs::remove_dir(group);
    }
}

/// Takes a hundred connections, sends into them for each line, and closes them at the end.
const HOLDS: &str = r#"
import socket, sys
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 8090), family=family, backlog=128)
print('ready', flush=True)
held = [server.accept()[0] for _ in range(100)]
print('taken', flush=True)
for line in sys.stdin:
    for one in held:
        try:
            for _ in range(10): one.send(b'x' * 100)
        except OSError: pass
    print('sent', flush=True)
    if line.strip() == 'last': break
for one in held: one.close()
print('closed', flush=True)
"#;

const OPENS: &str = r#"
import socket, sys
held = [socket.create_connection((sys.argv[1], 8090), 5) for _ in range(100)]
for one in held: one.send(b'x')
print('open', flush=True)
sys.stdin.readline()
if sys.argv[2] == 'closes':
    for one in held: one.shutdown(socket.SHUT_WR)
"#;

/// Packets of connections that no process holds any more (D3: each of them had all of /proc
/// gone through): one that its program has left open, whose answer is a reset, and one that it
/// has closed first, which is in TIME_WAIT then.
#[test]
fn root_packets_of_connections_that_nobody_holds_walk_over_no_mappings() {
    let rules = format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.python]\nverdict = \"allow\"\nobject = \"{}\"\n",
        app_host::sha256("/usr/bin/python3"),
    );
    let Some(host) = TestHost::new("nobody", &rules) else {
        return;
    };
    let walks = || {
        let metrics = host.host.done(&["metrics"]);
        let lines = metrics.lines();
        let values =
            lines.filter_map(|line| line.strip_prefix("weir_app_walks_total{")?.rsplit_once(' '));
        values
            .map(|(_, value)| value.parse::<u64>().unwrap())
            .sum::<u64>()
    };
    for address in ADDRESSES {
        soon("python to be known", || {
            (host.connects(address).trim() == "connected").then_some(())
        });
    }
    assert!(walks() > 0);
    for (address, how) in [
        ("127.0.0.1", "leaves"),
        ("::1", "leaves"),
        ("127.0.0.1", "closes"),
        ("::1", "closes"),
    ] {
        let mut server = Holder::start(&host, address);
        let mut client = host.begin(&["/usr/bin/python3", "-c", OPENS, address, how]);
        assert_eq!(client.line(), "open", "{address} {how}");
        assert_eq!(server.line(), "taken");
        client.go_on();
        client.ended();
        let before = walks();
        for word in ["first", "second", "last"] {
            server.say(word);
            assert_eq!(server.line(), "sent");
        }
        assert_eq!(server.line(), "closed");
        // Somebody else may be looked at meanwhile; three packets would be three walks.
        let more = walks() - before;
        assert!(more < 3, "{address} {how}: {more}");
    }
}

/// [`HOLDS`], which nobody judges.
struct Holder {
    child: weir_netlab::Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Holder {
    fn start(host: &TestHost, address: &str) -> Self {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", HOLDS, address]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = host.space.spawn(command).unwrap();
        let lines = BufReader::new(child.inner().stdout.take().unwrap()).lines();
        let mut holder = Self { child, lines };
        assert_eq!(holder.line(), "ready");
        holder
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("it runs").unwrap()
    }

    fn say(&mut self, word: &str) {
        let input = self.child.inner().stdin.as_mut().unwrap();
        writeln!(input, "{word}").unwrap();
    }
}
