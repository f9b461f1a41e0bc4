//! The program as its users meet it: a real daemon with the dry-run backend in
//! a directory of its own, fed by a real log file, asked by the real verbs.
//! Needs no privilege; nothing is left behind.

#[path = "cli/bans.rs"]
mod bans;
#[path = "cli/filters.rs"]
mod filters;
#[path = "cli/help.rs"]
mod help;
#[path = "cli/limits.rs"]
mod limits;
#[path = "cli/metrics.rs"]
mod metrics;
#[path = "cli/reload.rs"]
mod reload;
#[path = "cli/shown.rs"]
mod shown;
#[path = "cli/state.rs"]
mod state;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

const DEADLINE: Duration = Duration::from_secs(60);

/// A directory with a configuration, a log, and a daemon when one was started.
struct Host {
    dir: TempDir,
    daemon: Option<Child>,
}

struct Answer {
    code: i32,
    out: String,
    err: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}{}", self.out, self.err))
    }
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Host {
    fn new() -> Self {
        let host = Self {
            dir: TempDir::with_prefix("weir-cli-").unwrap(),
            daemon: None,
        };
        fs::write(host.path("auth.log"), "").unwrap();
        host.configure("");
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes the configuration; `more` goes into [jail.sshd].
    fn configure(&self, more: &str) {
        let dir = self.dir.path().display();
        fs::write(
            self.path("weir.toml"),
            format!(
                "backend = \"dry-run\"\ninterfaces = [\"lo\"]\nstate_dir = \"{dir}/state\"\nsocket = \"{dir}/weir.sock\"\n\
                 allow = [\"198.51.100.0/24\"]\n[jail.sshd]\npaths = [\"{dir}/auth.log\"]\nmax_retry = 3\n{more}"
            ),
        )
        .unwrap();
    }

    fn weir(&self, args: &[&str]) -> Answer {
        self.command(args).output().unwrap().into()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(WEIR);
        command
            .arg("--config")
            .arg(self.path("weir.toml"))
            .args(args);
        command
    }

    fn started() -> Self {
        let mut host = Self::new();
        host.start();
        host
    }

    fn start(&mut self) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("daemon.log"))
            .unwrap();
        self.daemon = Some(self.command(&["daemon"]).stderr(log).spawn().unwrap());
        self.until("the daemon answers", |host| {
            host.weir(&["status", "--json"]).code != 2
        });
    }

    fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !holds(self) {
            let log = fs::read_to_string(self.path("daemon.log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "never: {what}\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&mut self, name: &str) {
        let pid = self.daemon.as_ref().unwrap().id().to_string();
        let status = Command::new("kill")
            .args(["-s", name, &pid])
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Ends the daemon and returns its exit code, if it had one.
    fn end(&mut self, signal: &str) -> Option<i32> {
        self.signal(signal);
        self.daemon.take().unwrap().wait().unwrap().code()
    }

    /// A line of sshd's log, of now.
    fn line(&self, message: &str) -> String {
        let now = jiff::Zoned::now().strftime("%b %e %H:%M:%S").to_string();
        format!("{now} host sshd[123]: {message}\n")
    }

    fn log(&self, message: &str) {
        let mut log = fs::File::options()
            .append(true)
            .open(self.path("auth.log"))
            .unwrap();
        log.write_all(self.line(message).as_bytes()).unwrap();
    }

    fn fail(&self, addr: &str, times: usize) {
        for i in 0..times {
            self.log(&format!(
                "Failed password for root from {addr} port {} ssh2",
                40_000 + i
            ));
        }
    }

    fn status(&self) -> Value {
        self.weir(&["status", "--json"]).json()
    }

    fn is_banned(&self, addr: &str) -> bool {
        self.weir(&["why", addr]).code == 0
    }

    fn alerts(&self) -> String {
        self.status()["alerts"].to_string()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

#[test]
fn a_log_line_becomes_a_ban_that_is_explained() {
    let host = Host::started();
    host.fail("203.0.113.7", 2);
    host.until("two failures are counted", |h| {
        h.weir(&["why", "203.0.113.7"])
            .out
            .contains("2 of 3 failures counted")
    });
    assert_eq!(host.weir(&["why", "203.0.113.7"]).code, 1);
    // The user name is the attacker's text.
    host.log("Failed password for invalid user a\u{1b}[2Jb from 203.0.113.7 port 1 ssh2");
    host.until("the third failure bans", |h| h.is_banned("203.0.113.7"));

    let why = host.weir(&["why", "203.0.113.7"]);
    assert!(
        why.out.contains("jail:sshd") && why.out.contains("3 failures"),
        "{}",
        why.out
    );
    assert!(
        why.out.contains("a\\u{1b}[2Jb") && !why.out.contains('\u{1b}'),
        "{}",
        why.out
    );
    let why = host.weir(&["why", "203.0.113.7", "--json"]).json();
    assert_eq!(why["verdict"], "banned-all");
    assert_eq!(why["bans"][0]["evidence"].as_array().unwrap().len(), 3);

    let bans = host.weir(&["bans", "--json"]).json();
    assert_eq!(bans["total"], 1);
    assert_eq!(bans["bans"][0]["subject"], "203.0.113.7");
    assert_eq!(bans["bans"][0]["producer"], "jail:sshd");
    let left = bans["bans"][0]["remaining_seconds"].as_u64().unwrap();
    assert!((3500..=3600).contains(&left), "{left}");
    let other = host.weir(&["bans", "--jail", "other", "--json"]);
    assert_eq!(other.code, 2, "{}", other.out);
    assert!(
        other
            .err
            .contains("there is no jail \"other\"; enabled are: sshd"),
        "{}",
        other.err
    );
    let of_sshd = host.weir(&["bans", "--jail", "sshd", "--json"]).json();
    assert_eq!(of_sshd["total"], 1);

    // IPv6 counts and is banned by /64.
    for last in 1..=3 {
        host.fail(&format!("2001:db8::{last}"), 1);
    }
    host.until("the /64 is banned", |h| h.is_banned("2001:db8::ffff"));

    // The allow list is never banned, however often it fails.
    host.fail("198.51.100.9", 10);
    host.until("its failures are ignored", |h| {
        h.status()["jails"][0]["ignored"] == 10
    });
    assert!(!host.is_banned("198.51.100.9"));
    let status = host.weir(&["status"]);
    assert!(
        status.out.contains("dry-run") && status.out.contains("sshd"),
        "{}",
        status.out
    );
    assert_eq!(host.weir(&["status", "sshd"]).code, 0);
    assert_eq!(host.weir(&["status", "nginx"]).code, 2);
}

#[test]
fn a_daemon_that_does_not_answer_is_named() {
    let mut host = Host::started();
    let pid = host.daemon.as_ref().unwrap().id();
    host.signal("STOP");
    let status = host.weir(&["status"]);
    assert_eq!(status.code, 2, "{}", status.out);
    assert!(
        status.out.starts_with(&format!(
            "NO ANSWER: the daemon (pid {pid}) does not answer: it is stopped (kill -CONT {pid})"
        )),
        "{}",
        status.out
    );
    assert!(status.err.contains("does not answer"), "{}", status.err);
    let json = host.weir(&["status", "--json"]).json();
    assert_eq!(json["protection"]["state"], "unknown");
    host.signal("CONT");
    host.until("an answer", |h| h.weir(&["status"]).code == 0);
}

#[test]
fn a_missing_log_is_an_alert_until_it_is_there() {
    let mut host = Host::new();
    fs::remove_file(host.path("auth.log")).unwrap();
    host.start();
    host.until("it is missed", |h| h.alerts().contains("auth.log"));
    fs::write(host.path("auth.log"), "").unwrap();
    host.fail("203.0.113.7", 3);
    host.until("it is read", |h| h.is_banned("203.0.113.7"));
    host.until("the alert is over", |h| !h.alerts().contains("auth.log"));
}

#[test]
fn hostile_logs_do_no_harm() {
    let host = Host::started();
    let mut log = fs::File::options()
        .append(true)
        .open(host.path("auth.log"))
        .unwrap();
    log.write_all(&[0u8; 5000]).unwrap();
    log.write_all(b"\n\xff\xfe\xfd\n").unwrap();
    log.write_all(&vec![b'A'; 10 << 20]).unwrap();
    log.write_all(b"\n").unwrap();
    // Who writes such lines may write any: for a while none counts.
    host.fail("203.0.113.67", 3);
    for _ in 0..weir_core::detect::BEHIND_NO_HEAD {
        host.log("Server listening on :: port 22.");
    }
    // Somebody's text that names somebody else.
    host.log("Failed password for invalid user x from 203.0.113.66 port 1 ssh2 from 203.0.113.7 port 2 ssh2");
    host.log("Accepted password for root from 203.0.113.66 port 1 ssh2");
    host.fail("203.0.113.7", 3);
    host.until("the attacker is banned", |h| h.is_banned("203.0.113.7"));
    assert!(!host.is_banned("203.0.113.66") && !host.is_banned("203.0.113.67"));
    host.until("the alert", |h| {
        h.status()["alerts"]
            .to_string()
            .contains("jail:sshd:headless")
    });
}

#[test]
fn malformed_requests_get_4xx_and_the_daemon_stays() {
    let host = Host::started();
    let ask = |request: &[u8]| -> String {
        let mut stream = UnixStream::connect(host.path("weir.sock")).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    let post = |path: &str, body: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let plain = |method: &str, path: &str| {
        format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    };
    let huge = "x".repeat(70_000);
    for (request, status) in [
        (post("/v1/bans", "{"), "400"),
        (post("/v1/bans", ""), "400"),
        (post("/v1/bans", "[]"), "400"),
        (post("/v1/bans", "{\"subject\": 5}"), "400"),
        (
            post("/v1/bans", "{\"subject\": \"192.0.2.7\", \"fro\": 1}"),
            "400",
        ),
        (
            post("/v1/bans", "{\"subject\": \"192.0.2.7\", \"for\": \"-1\"}"),
            "400",
        ),
        (post("/v1/bans", "{\"subject\": \"198.51.100.1\"}"), "409"),
        (
            post("/v1/bans", &format!("{{\"subject\": \"{huge}\"}}")),
            "413",
        ),
        (
            post(
                "/v1/bans",
                &format!(
                    "{{\"subject\": \"192.0.2.7\", \"reason\": \"{}\"}}",
                    &huge[..2000]
                ),
            ),
            "400",
        ),
        (post("/v1/allow", "{\"prefix\": \"x\"}"), "400"),
        (post("/v1/status", "{}"), "405"),
        (plain("GET", "/"), "404"),
        (plain("GET", "/v1/nothing"), "404"),
        (plain("GET", "/v1/bans?limit=-1"), "400"),
        (plain("GET", "/v1/bans?limti=1"), "400"),
        (plain("GET", "/v1/why/1.2.3"), "400"),
        (plain("GET", "/v1/why/%ff%fe"), "400"),
        (plain("DELETE", "/v1/bans/192.0.2.7"), "404"),
        (plain("DELETE", "/v1/bans/192.0.2.7?producer=me"), "400"),
        (plain("DELETE", "/v1/allow/192.0.2.7"), "404"),
        ("\u{0}\u{1}garbage\r\n\r\n".to_owned(), "400"),
        (format!("GET /{huge} HTTP/1.1\r\n\r\n"), "4"),
    ] {
        let answer = ask(request.as_bytes());
        let head: String = request.chars().take(60).collect();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{head:?}: {answer}"
        );
        // hyper itself answers what is not HTTP, without a body.
        if !request.contains("garbage") && request.len() < 69_000 {
            assert!(answer.contains("{\"error\":"), "{head:?}: {answer}");
        }
    }
    // Connections that say nothing do not keep the others out.
    let idle: Vec<_> = (0..20)
        .map(|_| UnixStream::connect(host.path("weir.sock")).unwrap())
        .collect();
    assert_eq!(host.weir(&["status"]).code, 0);
    drop(idle);
    assert_eq!(host.weir(&["bans", "--json"]).json()["total"], 0);
}

#[test]
fn events_are_json_lines() {
    let host = Host::started();
    let mut events = host
        .command(&["events", "--follow"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(events.stdout.take().unwrap()).lines();
    let mut kinds = Vec::new();
    let mut n = 0;
    let pump = std::thread::spawn(move || {
        let mut seen = Vec::new();
        for line in &mut lines {
            let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
            assert!(event["time"].is_string());
            // The stream may have begun between a ban and its end.
            let done = event["kind"] == "unban" && seen.iter().any(|e: &Value| e["kind"] == "ban");
            seen.push(event);
            if done {
                break;
            }
        }
        seen
    });
    host.until("an unban is told", |h| {
        n += 1;
        if n == 1 {
            h.fail("203.0.113.7", 3);
        }
        h.weir(&["ban", "192.0.2.99"]);
        h.weir(&["unban", "192.0.2.99"]);
        pump.is_finished()
    });
    for event in pump.join().unwrap() {
        kinds.push(event["kind"].as_str().unwrap().to_owned());
    }
    assert!(kinds.iter().any(|k| k == "ban"), "{kinds:?}");
    events.kill().unwrap();
    events.wait().unwrap();
}

#[test]
fn help_man_pages_and_completions_come_from_one_definition() {
    let host = Host::new();
    let man = host.path("man");
    assert_eq!(host.weir(&["man", man.to_str().unwrap()]).code, 0);
    let page = fs::read_to_string(man.join("weir.1")).unwrap();
    assert!(page.contains("weir") && page.contains("Exit codes"));
    for verb in [
        "daemon", "check", "reload", "status", "bans", "ban", "unban", "allow", "why", "events",
        "detach", "filter",
    ] {
        assert!(man.join(format!("weir-{verb}.1")).exists(), "{verb}");
        let help = host.weir(&[verb, "--help"]);
        assert!(help.code == 0 && help.out.len() > 100, "{verb}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = host.weir(&["completions", shell]);
        assert!(script.code == 0 && script.out.contains("unban"), "{shell}");
    }
    assert_eq!(host.weir(&["fly"]).code, 2);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let host = Host::started();
    for verb in [["allow", "list"], ["completions", "bash"]] {
        let mut child = host
            .command(&verb)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let answer: Answer = child.wait_with_output().unwrap().into();
        assert_eq!((answer.code, answer.err.as_str()), (0, ""), "{verb:?}");
    }
    // And without a daemon, the error says what to look at.
    let alone = Host::new().weir(&["status"]);
    assert!(
        alone.code == 2 && alone.err.contains("cannot reach the daemon"),
        "{}",
        alone.err
    );
}
