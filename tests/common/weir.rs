//! One instance of the real program: its files, its daemon, its verbs.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::IpAddr,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Output, Stdio},
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;
use weir_netlab::{Child, FakeHost, Namespace, wait_for};

use super::SOON;

/// The program under test.
pub const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// The exit code and output of a verb.
#[derive(Debug)]
pub struct Answer {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Answer {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    pub fn done(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// The verb failed, and said so with these words.
    #[track_caller]
    pub fn refused(&self, words: &[&str]) {
        assert_eq!(self.code, Some(2), "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "no {word:?} in {}", self.err);
        }
    }

    /// The answer is no, in these words.
    #[track_caller]
    pub fn says_no(&self, words: &[&str]) {
        assert_eq!(self.code, Some(1), "{self:?}");
        for word in words {
            assert!(self.out.contains(word), "no {word:?} in {}", self.out);
        }
    }

    /// A configuration with mistakes, each named.
    #[track_caller]
    pub fn is_mistaken(&self, words: &[&str]) {
        assert_eq!(self.code, Some(2), "{self:?}");
        for word in words {
            assert!(self.out.contains(word), "no {word:?} in {}", self.out);
        }
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

static INSTANCES: AtomicU32 = AtomicU32::new(0);
static SWEEP: Once = Once::new();

/// Pins and directories of test runs that were killed: their process is gone.
/// (`Net` has ended their daemons.)
fn sweep() {
    let dead = |name: &str, prefix: &str| {
        let pid = name
            .strip_prefix(prefix)
            .and_then(|rest| rest.split('-').next());
        pid.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists())
    };
    let names = |dir: &Path| -> Vec<String> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    };
    for name in names(Path::new("/sys/fs/bpf/weir")) {
        if dead(&name, "test-") {
            let _ = Command::new(WEIR)
                .args(["detach", "--instance", &name])
                .output();
        }
    }
    let temp = std::env::temp_dir();
    for name in names(&temp) {
        if dead(&name, "weir-system-") {
            let _ = fs::remove_dir_all(temp.join(name));
        }
    }
}

/// One instance of weir on a host: its files, its pins and, when it runs, its
/// daemon. All of it goes with this value.
pub struct Weir {
    host: Namespace,
    pub dir: TempDir,
    pub instance: String,
    /// What the daemon sees of the machine from its next start on.
    pub fake_host: FakeHost,
    /// Added to the daemon's environment from its next start on.
    pub env: Vec<(&'static str, String)>,
    daemon: Option<Child>,
}

impl Weir {
    /// Files only; `config` is what is typed beside the places of files.
    pub fn new(host: &Namespace, config: &str) -> Self {
        SWEEP.call_once(sweep);
        let number = INSTANCES.fetch_add(1, Ordering::Relaxed);
        let weir = Self {
            host: host.clone(),
            dir: tempfile::Builder::new()
                .prefix(&format!("weir-system-{}-", std::process::id()))
                .tempdir()
                .unwrap(),
            instance: format!("test-{}-{number}", std::process::id()),
            fake_host: FakeHost::default(),
            env: Vec::new(),
            daemon: None,
        };
        fs::write(weir.log(), "").unwrap();
        weir.configure(config);
        weir
    }

    /// Files, and a daemon that answers.
    pub fn start(host: &Namespace, config: &str) -> Self {
        let mut weir = Self::new(host, config);
        weir.run();
        weir
    }

    /// The log that jails read: `{log}` in a configuration.
    pub fn log(&self) -> PathBuf {
        self.path("auth.log")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes the configuration; takes nothing into force.
    pub fn configure(&self, config: &str) {
        let dir = self.dir.path().display();
        let config = config.replace("{log}", &self.log().display().to_string());
        let text = format!(
            "instance = \"{}\"\nstate_dir = \"{dir}/state\"\nsocket = \"{dir}/weir.sock\"\n{config}",
            self.instance
        );
        fs::write(self.path("weir.toml"), text).unwrap();
    }

    fn command(&self) -> Command {
        let mut command = Command::new(WEIR);
        command.arg("--config").arg(self.path("weir.toml"));
        command
    }

    /// Starts the daemon and waits until it answers.
    #[track_caller]
    pub fn run(&mut self) {
        self.launch(None);
        let running = wait_for("the daemon to answer", SOON, || {
            let ended = self
                .daemon
                .as_mut()
                .expect("launched")
                .wait(Duration::ZERO)?;
            Ok(match ended {
                Some(status) => Some(Err(status)),
                None => (self.ask(&["status"]).code != Some(2)).then_some(Ok(())),
            })
        });
        match running {
            Ok(Ok(())) => {}
            Ok(Err(status)) => panic!("the daemon ended ({status}): {}", self.said()),
            Err(error) => panic!("{error}: {}", self.said()),
        }
    }

    /// Starts the daemon, to die at a fault point if one is named.
    pub fn launch(&mut self, fault: Option<&str>) {
        let said = File::options()
            .create(true)
            .append(true)
            .open(self.path("daemon.err"))
            .unwrap();
        let mut command = self.command();
        command
            .arg("daemon")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said);
        if let Some(point) = fault {
            command.env("WEIR_FAULT", point);
        }
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        let daemon = self.host.spawn_on(command, &self.fake_host);
        self.daemon = Some(daemon.unwrap());
    }

    /// A start that fails: its exit code and what it said.
    pub fn fails(&mut self) -> Answer {
        let before = self.said().len();
        self.launch(None);
        let status = self.ended();
        Answer {
            code: status.code(),
            out: String::new(),
            err: self.said()[before..].to_owned(),
        }
    }

    /// Waits for the daemon's end.
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        let mut daemon = self.daemon.take().expect("a daemon runs");
        match daemon.wait(SOON).unwrap() {
            Some(status) => status,
            None => panic!("the daemon does not end: {}", self.said()),
        }
    }

    /// SIGKILL, as a crash.
    pub fn kill(&mut self) {
        self.daemon
            .as_ref()
            .expect("a daemon runs")
            .signal(9)
            .unwrap();
        self.ended();
    }

    /// SIGTERM, as systemd does.
    #[track_caller]
    pub fn stop(&mut self) {
        self.daemon
            .as_ref()
            .expect("a daemon runs")
            .signal(15)
            .unwrap();
        let status = self.ended();
        assert!(status.success(), "{status}: {}", self.said());
    }

    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("a daemon runs").pid()
    }

    /// The daemon's resident memory, in KiB.
    #[track_caller]
    pub fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        let number = line.unwrap().trim_end_matches("kB").trim();
        number.parse().unwrap()
    }

    /// The daemon's standard error so far.
    pub fn said(&self) -> String {
        fs::read_to_string(self.path("daemon.err")).unwrap_or_default()
    }

    /// Runs a verb.
    pub fn ask(&self, args: &[&str]) -> Answer {
        let mut command = self.command();
        command.args(args).stdin(Stdio::null());
        Answer::of(self.host.enter(move || command.output()).unwrap().unwrap())
    }

    /// Runs a verb that does what it is asked, and reads its JSON. (`status` has
    /// exit code 1 with an alert.)
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let answer = self.ask(&[args, &["--json"]].concat());
        match args {
            ["status"] if answer.code == Some(1) => answer.json(),
            _ => answer.done().json(),
        }
    }

    /// The value of a metric with these values of its labels.
    pub fn metric(&self, name: &str, labels: &[&str]) -> Option<u64> {
        let metrics = self.json(&["metrics"]);
        let mut metrics = metrics.as_array().unwrap().iter();
        let metric = metrics.find(|metric| metric["name"] == name);
        let samples = metric.unwrap_or_else(|| panic!("no metric {name}"))["samples"].clone();
        let mut samples = samples.as_array().unwrap().iter();
        let has = |sample: &&Value| {
            let values = sample["labels"].as_object().unwrap().values();
            labels
                .iter()
                .all(|label| values.clone().any(|v| v == label))
        };
        samples.find(has)?["value"].as_u64()
    }

    /// `weir why`, whatever its exit code.
    #[track_caller]
    pub fn why(&self, address: &str) -> Value {
        self.ask(&["why", address, "--json"]).json()
    }

    /// The subjects banned, each as often as it has bans.
    #[track_caller]
    pub fn banned(&self) -> Vec<String> {
        let bans = self.json(&["bans", "--limit", "0"]);
        let bans = bans["bans"].as_array().unwrap();
        bans.iter()
            .map(|ban| ban["subject"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Packets that left by one reason.
    #[track_caller]
    pub fn packets(&self, reason: &str) -> u64 {
        let status = self.json(&["status"]);
        let counters = status["counters"].as_array().unwrap();
        let counter = counters.iter().find(|c| c["reason"] == reason);
        counter.unwrap()["packets"].as_u64().unwrap()
    }

    /// (hook, note) of an interface.
    #[track_caller]
    pub fn attachment(&self, interface: &str) -> (String, String) {
        let status = self.json(&["status"]);
        let all = status["attachments"].as_array().unwrap();
        let one = all.iter().find(|a| a["interface"] == interface).unwrap();
        let text = |key: &str| one[key].as_str().unwrap().to_owned();
        (text("hook"), text("note"))
    }

    /// Bans many addresses by the API; each is answered. A connection each: the
    /// daemon closes one that waits too long for its next request, as it does on
    /// a machine that stands still for some seconds.
    #[track_caller]
    pub fn ban_all(&self, subjects: impl IntoIterator<Item = IpAddr>) {
        for subject in subjects {
            let mut stream = UnixStream::connect(self.path("weir.sock")).unwrap();
            stream.set_read_timeout(Some(SOON)).unwrap();
            let body = format!("{{\"subject\":\"{subject}\",\"for\":\"1h\"}}");
            let request = format!(
                "POST /v1/bans HTTP/1.1\r\nhost: weir\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(request.as_bytes()).unwrap();
            let answer = read_answer(&mut stream);
            let process = self.daemon.as_ref().map(|daemon| {
                fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).unwrap_or_default()
            });
            assert!(
                answer.starts_with("HTTP/1.1 200"),
                "{subject}: {answer:?} from {process:?}"
            );
        }
    }

    /// Sends bytes to the socket as they are; the status line of the answer.
    pub fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(self.path("weir.sock")).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        // It may be refused before all of it has gone.
        let _ = stream.write_all(bytes);
        read_answer(&mut stream)
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    }

    /// Appends sshd's words about failed passwords, as syslog writes them now.
    pub fn log_failures(&self, sources: impl IntoIterator<Item = IpAddr>, each: usize) {
        let stamp = jiff::Zoned::now().strftime("%b %e %H:%M:%S");
        let mut text = String::new();
        for source in sources {
            for _ in 0..each {
                text.push_str(&format!(
                    "{stamp} host sshd[77]: Failed password for root from {source} port 40022 ssh2\n"
                ));
            }
        }
        let mut log = File::options().append(true).open(self.log()).unwrap();
        log.write_all(text.as_bytes()).unwrap();
    }

    /// The pin directory.
    pub fn pins(&self) -> PathBuf {
        Path::new("/sys/fs/bpf/weir").join(&self.instance)
    }

    /// `weir detach`, once the daemon is no more.
    pub fn detach(&mut self) -> Answer {
        self.daemon = None;
        self.ask(&["detach", "--instance", &self.instance])
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the daemon said:\n{}", self.said());
        }
        let answer = self.detach();
        if answer.code != Some(0) {
            eprintln!("detach: {answer:?}");
        }
    }
}

/// Head and, by its content-length, body of one HTTP answer.
fn read_answer(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < SOON {
        let mut piece = [0; 4096];
        match stream.read(&mut piece) {
            // With a timeout the kernel does not go on by itself.
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => break,
            Ok(len) => bytes.extend_from_slice(&piece[..len]),
        }
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse::<usize>().ok())?
        });
        if length.is_some_and(|length| body.len() >= length) {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
