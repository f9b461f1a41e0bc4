//! A host with rules about programs, and real programs that try them.
#![allow(dead_code)] // each test file uses its part

use std::{
    fs,
    io::{BufRead, BufReader, Lines, Write},
    path::{Path, PathBuf},
    process::{ChildStdin, ChildStdout, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use weir_bpf::identity::{CgroupAt, Level, detach, level};
use weir_netlab::{Child, Namespace, Net};

use crate::{
    common::{skipped, soon},
    plain::Plain,
};

const PROGRAMS: [&str; 3] = ["curl", "/usr/bin/python3", "ip"];
const START: Duration = Duration::from_secs(300);
pub const ADDRESSES: [&str; 2] = ["127.0.0.1", "[::1]"];

/// Sends each line, or datagram, back.
const ECHO: &str = r#"
import socket, threading
def serve(c):
    for line in c.makefile('rb'): c.sendall(line)
def tcp(kind, addr):
    l = socket.socket(kind); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.bind((addr, 7007)); l.listen(20)
    while True: threading.Thread(target=serve, args=(l.accept()[0],), daemon=True).start()
def udp(kind, addr):
    s = socket.socket(kind, socket.SOCK_DGRAM); s.bind((addr, 7007))
    while True: s.sendto(*s.recvfrom(100))
for kind, addr in [(socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')]:
    for what in (tcp, udp): threading.Thread(target=what, args=(kind, addr), daemon=True).start()
threading.Event().wait()
"#;

/// A host with `[app]` for a control group of its own, in a network namespace with web
/// servers on both loopback addresses that nobody judges.
pub struct TestHost {
    pub host: Plain,
    pub cgroup: PathBuf,
    pub instance: String,
    pub space: Namespace,
    _servers: Vec<Child>,
    pub net: Net,
}

/// The level that `WEIR_APP_LEVEL` names; none: the best that this kernel has.
pub fn wanted() -> Option<Level> {
    let name = std::env::var("WEIR_APP_LEVEL").ok()?;
    let found = Level::ALL.iter().find(|(level, _)| *level == name);
    Some(found.unwrap_or_else(|| panic!("WEIR_APP_LEVEL={name}")).1)
}

/// The same as a word of the configuration.
pub fn level_name() -> &'static str {
    wanted().map_or("auto", Level::name)
}

impl TestHost {
    /// A daemon with this `[app]`; none: what it takes is not here.
    pub fn new(name: &str, rules: &str) -> Option<Self> {
        Self::with(name, rules, |_| ())
    }

    /// The same, below a slice, as systemd has units.
    pub fn in_slice(name: &str, rules: &str) -> Option<Self> {
        Self::start(name, ".slice", rules, |_| ())
    }

    /// A host below a slice, after something is done before the daemon starts.
    pub fn in_slice_with(name: &str, rules: &str, before: impl FnOnce(&mut Self)) -> Option<Self> {
        Self::start(name, ".slice", rules, before)
    }

    /// The same, after something is done before the daemon starts.
    pub fn with(name: &str, rules: &str, before: impl FnOnce(&mut Self)) -> Option<Self> {
        Self::start(name, "", rules, before)
    }

    fn start(name: &str, kind: &str, rules: &str, before: impl FnOnce(&mut Self)) -> Option<Self> {
        if skipped(&PROGRAMS) {
            return None;
        }
        let missing = level(wanted()).err().unwrap_or_default();
        if !missing.is_empty() {
            eprintln!(
                "skipped: this kernel lacks {} (probe: its BTF)",
                missing.join(", ")
            );
            return None;
        }
        let instance = format!("weir-test-app-{name}-{}", std::process::id());
        let Some(root) = CgroupAt::mount_point() else {
            eprintln!("skipped: control groups of version 2 (probe: /proc/self/mounts)");
            return None;
        };
        let cgroup = root.join(format!("{instance}{kind}"));
        fs::create_dir(&cgroup).unwrap();
        let net = Net::new().unwrap();
        let space = net.namespace("app").unwrap();
        space.run("ip", &["link", "set", "lo", "up"]).unwrap();
        let mut servers = Vec::new();
        for address in ["127.0.0.1", "::1"] {
            let mut command = Command::new("/usr/bin/python3");
            command
                .args(["-m", "http.server", "-b", address, "8080"])
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            servers.push(space.spawn(command).unwrap());
        }
        let mut host = Self {
            host: Plain::new(),
            cgroup,
            instance,
            space,
            _servers: servers,
            net,
        };
        // The verifier takes half a minute where the processor is emulated.
        host.host.deadline = START;
        host.configure(rules);
        before(&mut host);
        host.host.start();
        host.has_servers();
        Some(host)
    }

    /// Waits for the servers, which may begin later than a daemon.
    fn has_servers(&self) {
        let listens = |file: &str| {
            let sockets = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
            sockets
                .lines()
                .any(|line| line.contains(":1F90 ") && line.contains(" 0A "))
        };
        soon("the servers of the host", || {
            let both = self.space.enter(|| ["tcp", "tcp6"].map(listens));
            (both.unwrap() == [true; 2]).then_some(())
        });
    }

    pub fn configure(&self, rules: &str) {
        self.configure_at(level_name(), rules);
    }

    /// The same, at the level of this name.
    pub fn configure_at(&self, level: &str, rules: &str) {
        self.host.configure_only(&format!(
            "instance = \"{}\"\n[app]\nlevel = \"{level}\"\ncgroup = \"{}\"\n{rules}",
            self.instance,
            self.cgroup.display()
        ));
    }

    /// A program in the namespace and the control group, to its end.
    pub fn run(&self, words: &[&str]) -> Output {
        let enter = format!(
            "echo 0 > {}/cgroup.procs && exec \"$@\"",
            self.cgroup.display()
        );
        let mut all = vec!["-c", &enter, "sh"];
        all.extend(words);
        self.space.output("sh", &all).unwrap()
    }

    /// The same, and it is talked to while it runs.
    pub fn begin(&self, words: &[&str]) -> Running {
        self.begin_in(&self.space, words)
    }

    /// A program in the control group and another namespace, talked to while it runs.
    pub fn begin_in(&self, space: &Namespace, words: &[&str]) -> Running {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo 0 > \"$0\" && exec \"$@\""])
            .arg(self.cgroup.join("cgroup.procs"))
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = space.spawn(command).unwrap();
        let (input, output) = (child.inner().stdin.take(), child.inner().stdout.take());
        Running {
            input: input.unwrap(),
            lines: BufReader::new(output.unwrap()).lines(),
            child,
        }
    }

    /// Another program at `name` in the host's directory, with its path: it has the bytes of this
    /// one in front, so that it does the same.
    pub fn copy(&self, program: &str, name: &str) -> String {
        let path = self.host.path(name).to_str().unwrap().to_owned();
        // By a process of its own: a child of another test could have a descriptor of ours.
        let copy = "cp \"$1\" \"$2\" && echo \"$3\" >> \"$2\"";
        let done = Command::new("sh")
            .args(["-c", copy, "sh", program, &path, name])
            .status();
        assert!(done.unwrap().success());
        path
    }

    /// A server at port 7007 of both loopback addresses, TCP and UDP, that nobody judges and that
    /// sends each line, or datagram, back.
    pub fn echo(&self) -> Child {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", ECHO]).stderr(Stdio::null());
        self.space.spawn(command).unwrap()
    }

    /// What curl says of the server: `200`, or why not.
    pub fn curl(&self, address: &str) -> String {
        let url = format!("http://{address}:8080/");
        let done = self.run(&[
            "curl",
            "-sS",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "--max-time",
            "6",
            &url,
        ]);
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    pub fn python(&self, script: &str) -> String {
        let done = self.run(&["/usr/bin/python3", "-c", script]);
        String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
    }

    /// What python3 says when it connects.
    pub fn connects(&self, address: &str) -> String {
        let address = address.trim_matches(['[', ']']);
        self.python(&format!(
            "import socket\ntry: socket.create_connection(('{address}', 8080), 3); print('connected')\nexcept OSError as e: print(type(e).__name__)"
        ))
    }
}

/// A program that runs, is talked to line by line, and is killed when this goes.
pub struct Running {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    /// The next line that the program prints.
    pub fn line(&mut self) -> String {
        let line = self.lines.next();
        line.unwrap_or_else(|| panic!("{:?} has ended", self.child))
            .unwrap()
    }

    /// Gives it a line.
    pub fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// Whether it has ended by now.
    pub fn has_ended(&mut self) -> bool {
        self.child.wait(Duration::ZERO).unwrap().is_some()
    }

    /// Waits until it has ended.
    pub fn ended(mut self) {
        let status = self.child.wait(Duration::from_secs(60)).unwrap();
        assert!(status.is_some(), "{:?} goes on", self.child);
    }

    /// Has it go on, which waits for a line.
    pub fn go_on(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }
}

impl Drop for TestHost {
    fn drop(&mut self) {
        self.host.end_if_running();
        let _ = detach(Path::new("/sys/fs/bpf/weir"), &self.instance);
        let _ = fs::remove_dir(Path::new("/sys/fs/bpf/weir").join(&self.instance));
        remove_group(&self.cgroup);
    }
}

/// Removes a control group with those below it, and ends who is in them.
fn remove_group(group: &Path) {
    let below = fs::read_dir(group).into_iter().flatten().flatten();
    for one in below.filter(|entry| entry.path().is_dir()) {
        remove_group(&one.path());
    }
    let until = Instant::now() + Duration::from_secs(10);
    while group.exists() && fs::remove_dir(group).is_err() && Instant::now() < until {
        // Those that a program has left behind.
        let left = fs::read_to_string(group.join("cgroup.procs"));
        for pid in left.unwrap_or_default().lines() {
            let _ = Command::new("kill").args(["-9", pid]).status();
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// A control group beside that of a host, which goes with this.
pub struct OtherGroup(pub PathBuf);

impl OtherGroup {
    pub fn beside(host: &TestHost) -> Self {
        let name = format!("{}-beside", host.instance);
        let group = host.cgroup.with_file_name(name);
        fs::create_dir(&group).unwrap();
        Self(group)
    }
}

impl Drop for OtherGroup {
    fn drop(&mut self) {
        remove_group(&self.0);
    }
}

pub fn sha256(path: &str) -> String {
    let done = Command::new("sha256sum").arg(path).output();
    let text = String::from_utf8(done.unwrap().stdout).unwrap();
    text.split_whitespace().next().unwrap().to_owned()
}

pub fn curl_only() -> String {
    format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.curl]\nverdict = \"allow\"\nexe = \"{}\"\n",
        sha256("/usr/bin/curl")
    )
}
