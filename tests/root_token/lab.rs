//! Hosts whose programs sign, and hosts that want tokens: a namespace each, with a control
//! group, a daemon and keys of its own.
#![allow(dead_code)] // each test file uses its part

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use weir_bpf::identity::{CgroupAt, detach, missing};
use weir_netlab::{Child, Namespace, Net, Veth, VethOpts};

use super::{
    common::{skipped, soon},
    plain::Plain,
};

pub const PROGRAMS: [&str; 4] = ["curl", "/usr/bin/python3", "/usr/sbin/nginx", "ip"];
/// The addresses of the host that serves, by family.
pub const SERVER: [&str; 2] = ["192.0.2.2", "2001:db8::2"];
/// The port of nginx that wants a token.
pub const PORT: u16 = 8080;
/// The port of nginx that wants none.
pub const OPEN: u16 = 8081;

/// A namespace with a control group of its own and a daemon.
pub struct Host {
    pub weir: Plain,
    pub cgroup: PathBuf,
    pub instance: String,
    pub space: Namespace,
}

impl Host {
    pub fn new(space: Namespace, name: &str) -> Self {
        let instance = format!("wt-{name}-{}", std::process::id());
        let cgroup = CgroupAt::mount_point().unwrap().join(&instance);
        fs::create_dir(&cgroup).unwrap();
        let mut weir = Plain::new();
        // The verifier takes half a minute where the processor is emulated.
        weir.deadline = Duration::from_secs(300);
        Self {
            weir,
            cgroup,
            instance,
            space,
        }
    }

    pub fn configure(&self, text: &str) {
        let text = text.replace("{cgroup}", &self.cgroup.display().to_string());
        self.weir
            .configure_only(&format!("instance = \"{}\"\n{text}", self.instance));
    }

    /// The words that run a program in the control group.
    pub fn entered(&self, words: &[&str]) -> Vec<String> {
        let enter = format!(
            "echo 0 > {}/cgroup.procs && exec \"$@\"",
            self.cgroup.display()
        );
        let head = ["-c".to_owned(), enter, "sh".to_owned()];
        let words = words.iter().map(|word| (*word).to_owned());
        head.into_iter().chain(words).collect()
    }

    pub fn run(&self, words: &[&str]) -> Output {
        self.space.output("sh", &self.entered(words)).unwrap()
    }

    pub fn spawn(&self, words: &[&str]) -> Child {
        self.spawn_telling(words, Stdio::null())
    }

    /// Starts a program, whose standard error goes there.
    fn spawn_telling(&self, words: &[&str], said: Stdio) -> Child {
        let mut command = Command::new("sh");
        command
            .args(self.entered(words))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said);
        self.space.spawn(command).unwrap()
    }

    /// What curl says of the server: `200`, or `000`.
    pub fn curl(&self, address: &str, port: u16) -> String {
        let done = self.run(&curl(&url(address, port)));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    pub fn python(&self, script: &str, args: &[&str]) -> String {
        let done = self.run(&[&["/usr/bin/python3", "-c", script], args].concat());
        String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
    }

    /// What python3 says when it connects.
    pub fn connects(&self, address: &str, port: u16) -> String {
        let told = self.python(CONNECT, &[address, &port.to_string()]);
        told.trim().to_owned()
    }

    /// The directory of its keys.
    pub fn keys(&self) -> String {
        self.weir.path("keys").display().to_string()
    }

    /// What `weir token verify` says of a capture by its keys, at this port and of this program:
    /// the exit code, and the JSON.
    pub fn verify(&self, file: &Path, port: u16, aggregate: &str) -> (Option<i32>, Value) {
        let (keys, port) = (self.keys(), port.to_string());
        let words = ["token", "verify", "--keys", &keys, "--port", &port];
        let file = file.to_str().unwrap();
        let more = ["--json", "--aggregate", aggregate, file];
        let (code, said) = self.weir.ask(&[&words[..], &more].concat());
        let answer = serde_json::from_str(&said);
        (
            code,
            answer.unwrap_or_else(|error| panic!("{error}: {said}")),
        )
    }

    /// Makes the first key.
    pub fn make_key(&self) {
        self.weir
            .done(&["token", "key", "new", "--keys", &self.keys()]);
    }

    /// Gives it the keys that another one has.
    pub fn copy_keys(&self, from: &Host) {
        let _ = fs::remove_dir_all(self.keys());
        let done = Command::new("cp")
            .args(["-a", &from.keys(), &self.keys()])
            .status()
            .unwrap();
        assert!(done.success());
    }

    /// Signs to these networks; programs that are not known yet wait until they are.
    pub fn start_signing(&mut self, app: &str, to: [&str; 2]) {
        self.configure(&format!(
            "[app]\ncgroup = \"{{cgroup}}\"\n{app}\n[token]\nkeys = \"{{dir}}/keys\"\nsign_to = {to:?}\n"
        ));
        self.weir.start();
    }

    /// Wants tokens of a program.
    pub fn require(&self, aggregate: &str, more: &str) {
        self.configure(&format!(
            "[token]\nkeys = \"{{dir}}/keys\"\ncgroup = \"{{cgroup}}\"\n[token.require.web]\nports = [\"{PORT}/tcp\"]\naggregate = \"{aggregate}\"\n{more}"
        ));
    }

    /// The aggregate of a program, once it is known. `run`: to its end, as often as it takes.
    pub fn known(&self, exe: &str, run: impl Fn()) -> String {
        soon(exe, || {
            run();
            self.aggregate(exe)
        })
    }

    /// curl's aggregate, once it is known. It asks for so little at a time that it is not at its
    /// end before: on a slow machine one that is allowed by its path could be.
    pub fn known_curl(&self, address: &str) -> String {
        let words = "curl -sS -o /dev/null --limit-rate 5k";
        let url = url(address, OPEN);
        let words: Vec<_> = words.split(' ').chain([url.as_str()]).collect();
        self.known_while("/curl", &words)
    }

    /// The same of python3, which waits for what nobody sends.
    pub fn known_python(&self, address: &str) -> String {
        let port = OPEN.to_string();
        self.known_while("python3", &["/usr/bin/python3", "-c", STAY, address, &port])
    }

    /// The aggregate of a program that stays until it is known.
    fn known_while(&self, exe: &str, words: &[&str]) -> String {
        let mut running = self.spawn(words);
        soon(exe, || {
            if running.wait(Duration::ZERO).unwrap().is_some() {
                running = self.spawn(words);
            }
            self.aggregate(exe)
        })
    }

    pub fn token(&self) -> Value {
        self.weir.json(&["status"])["token"].clone()
    }

    /// How often a packet to the port that wants tokens had this outcome.
    pub fn outcome(&self, name: &str) -> u64 {
        let token = self.token();
        let count = token["requirements"][0]["outcomes"][name].as_u64();
        count.unwrap_or_else(|| panic!("no {name} in {token}"))
    }

    pub fn signing(&self, name: &str) -> u64 {
        self.token()["signing"][name].as_u64().unwrap()
    }

    /// The aggregate of a program that is known here.
    pub fn aggregate(&self, exe: &str) -> Option<String> {
        let programs = self.weir.json(&["app", "list", "--programs"]);
        let mut programs = programs.as_array().unwrap().iter();
        let found = programs.find(|program| {
            let path = program["exe"]["path"].as_str();
            path.is_some_and(|path| path.contains(exe))
        })?;
        Some(found["aggregate"].as_str()?.to_owned())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{} said:\n{}", self.instance, self.weir.said());
        }
        self.weir.end_if_running();
        let root = Path::new("/sys/fs/bpf/weir");
        let _ = weir_bpf::token::detach(root, &self.instance);
        let _ = detach(root, &self.instance);
        let _ = fs::remove_dir(root.join(&self.instance));
        let until = Instant::now() + Duration::from_secs(10);
        while fs::remove_dir(&self.cgroup).is_err() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Says why tokens cannot be tried here.
pub fn cannot_run(programs: &[&str]) -> bool {
    if skipped(programs) {
        return true;
    }
    let missing = missing();
    if !missing.is_empty() {
        eprintln!(
            "skipped: this kernel lacks {} (probe: its BTF)",
            missing.join(", ")
        );
        return true;
    }
    if CgroupAt::mount_point().is_none() {
        eprintln!("skipped: control groups of version 2 (probe: /proc/self/mounts)");
        return true;
    }
    false
}

/// Writes what nginx serves at both ports, and its configuration.
pub fn nginx_conf(dir: &Path) -> PathBuf {
    fs::create_dir(dir.join("www")).unwrap();
    fs::write(dir.join("www/index.html"), vec![b'x'; 200_000]).unwrap();
    let conf = dir.join("nginx.conf");
    let dir = dir.display();
    fs::write(
        &conf,
        format!(
            "daemon off; master_process off; user root; pid {dir}/nginx.pid; error_log {dir}/error.log; events {{}}\n\
             http {{ access_log off; keepalive_requests 100000000; server {{ listen {PORT}; listen [::]:{PORT} ipv6only=on; \
             listen {OPEN}; listen [::]:{OPEN} ipv6only=on; root {dir}/www; }} }}"
        ),
    )
    .unwrap();
    conf
}

pub fn url(address: &str, port: u16) -> String {
    match address.contains(':') {
        true => format!("http://[{address}]:{port}/"),
        false => format!("http://{address}:{port}/"),
    }
}

pub fn curl(url: &str) -> Vec<&str> {
    let words = "curl -sS -o /dev/null -w %{http_code} --max-time 6";
    words.split(' ').chain([url]).collect()
}

/// Requests of curl on one connection, which goes on until this is dropped.
pub struct LongConnection {
    _curl: Child,
    told: PathBuf,
}

impl LongConnection {
    /// Asks the server many times in a second. `name` is that of a file.
    pub fn begin(host: &Host, address: &str, name: &str) -> Self {
        let told = host.weir.path(name);
        let urls = format!("{}?[1-1000000]", url(address, PORT));
        let words = ["curl", "-sS", "--limit-rate", "400k", "-o", "/dev/null"];
        // A file that curl opens itself has what it says much later.
        let tell = ["-w", "%{stderr}%{num_connects} %{http_code}\\n", &urls];
        let said = fs::File::create(&told).unwrap();
        let curl = host.spawn_telling(&[&words[..], &tell].concat(), said.into());
        let mut long = Self { _curl: curl, told };
        long.goes_on("at its begin");
        long
    }

    /// Each answer: whether it took a new connection, and the status.
    fn answers(&self) -> Vec<String> {
        let told = fs::read_to_string(&self.told).unwrap_or_default();
        let whole = told.split_inclusive('\n');
        let whole = whole.filter_map(|line| line.strip_suffix('\n'));
        whole.map(str::to_owned).collect()
    }

    /// Waits until an answer comes to a question that is asked from now on, and sees that all
    /// came on the first connection.
    pub fn goes_on(&mut self, when: &str) {
        let before = self.answers().len();
        let answers = soon(&format!("an answer on the long connection {when}"), || {
            let answers = self.answers();
            (answers.len() > before + 1).then_some(answers)
        });
        assert_eq!(answers[0], "1 200", "{when}: {answers:?}");
        let is_same = answers[1..].iter().all(|answer| answer == "0 200");
        assert!(is_same, "{when}: {answers:?}");
    }
}

pub const CONNECT: &str = "
import socket, sys
try: socket.create_connection((sys.argv[1], int(sys.argv[2])), 3); print('connected')
except OSError as e: print(type(e).__name__)
";

/// Connects, as [`CONNECT`] does, and waits.
const STAY: &str = "
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)
s.settimeout(60); s.recv(1)
";

/// Two hosts with daemons, and a third one without.
pub struct Lab {
    /// Ends before the control group that it is in.
    nginx: Option<Child>,
    conf: PathBuf,
    pub client: Host,
    pub server: Host,
    pub other: Namespace,
    /// Ends of the client, the server, the other one: their devices are `eth0`.
    pub veths: Vec<Veth>,
    _files: tempfile::TempDir,
    _net: Net,
}

impl Lab {
    /// None: what it takes is not here.
    pub fn new(name: &str) -> Option<Self> {
        if cannot_run(&PROGRAMS) {
            return None;
        }
        let net = Net::new().unwrap();
        let switch = net.namespace("switch").unwrap();
        switch
            .ip(&[
                "link add br0 type bridge forward_delay 0 mcast_snooping 0".into(),
                "link set br0 up".into(),
            ])
            .unwrap();
        let mut veths = Vec::new();
        let spaces = ["client", "server", "other"].map(|name| {
            let space = net.namespace(name).unwrap();
            space.run("ip", &["link", "set", "lo", "up"]).unwrap();
            let number = veths.len() + 1;
            let addresses = [
                format!("192.0.2.{number}/24"),
                format!("2001:db8::{number}/64"),
            ];
            let opts = VethOpts::new(&addresses.each_ref().map(String::as_str), &[]).unwrap();
            veths.push(net.veth(&space, "eth0", &switch, name, opts).unwrap());
            switch.ip(&[format!("link set {name} master br0")]).unwrap();
            space
        });
        let [client, server, other] = spaces;
        let server = Host::new(server, &format!("{name}-s"));
        let files = tempfile::tempdir().unwrap();
        let conf = nginx_conf(files.path());
        let nginx = server.spawn(&["/usr/sbin/nginx", "-c", conf.to_str().unwrap()]);
        let client = Host::new(client, &format!("{name}-c"));
        let lab = Self {
            client,
            server,
            other,
            veths,
            nginx: Some(nginx),
            conf,
            _files: files,
            _net: net,
        };
        lab.client.make_key();
        Some(lab)
    }

    /// The client signs to the server.
    pub fn start_client(&mut self, app: &str) {
        self.client
            .start_signing(app, ["192.0.2.2", "2001:db8::/64"]);
    }

    /// The server wants tokens of these.
    pub fn start_server(&mut self, aggregate: &str) {
        self.server.copy_keys(&self.client);
        self.server.require(aggregate, "");
        self.server.weir.start();
    }

    /// Ends nginx, does this, and begins it anew.
    pub fn without_nginx(&mut self, then: impl FnOnce(&Self)) {
        self.nginx = None;
        then(self);
        let words = ["/usr/sbin/nginx", "-c", self.conf.to_str().unwrap()];
        self.nginx = Some(self.server.spawn(&words));
    }

    /// curl's aggregate, once it is known.
    pub fn aggregate_of_curl(&self) -> String {
        self.client.known_curl(SERVER[0])
    }
}

/// Of programs that may talk to anybody, of which each is known before it does.
pub const CURL_AND_PYTHON: &str = "default = \"drop\"\nunknown = \"drop\"\n[app.rules.both]\nverdict = \"allow\"\npath = [\"/usr/bin/curl\", \"/usr/bin/python3\"]\n";

/// Takes what is sent on each connection and answers with a digest of it; takes datagrams, and
/// answers likewise.
pub const SERVE_DIGESTS: &str = "
import hashlib, socket, sys, threading
port = int(sys.argv[1])
def tcp(s):
    while True:
        c, _ = s.accept()
        data = b''
        while True:
            more = c.recv(65536)
            if not more: break
            data += more
        c.send(hashlib.sha256(data).hexdigest().encode()); c.close()
def udp(s):
    while True:
        data, peer = s.recvfrom(65536)
        s.sendto(hashlib.sha256(data).hexdigest().encode(), peer)
for family, address in ((socket.AF_INET, '0.0.0.0'), (socket.AF_INET6, '::')):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        s = socket.socket(family, kind)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6: s.setsockopt(41, socket.IPV6_V6ONLY, 1)
        s.bind((address, port))
        if kind == socket.SOCK_STREAM: s.listen()
        threading.Thread(target=tcp if kind == socket.SOCK_STREAM else udp, args=(s,)).start()
";
