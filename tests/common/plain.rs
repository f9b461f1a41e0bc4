//! A real daemon with the dry-run backend in a directory of its own, asked by
//! the real verbs. Needs no privilege; nothing is left behind.
#![allow(dead_code)] // each test file uses its part

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

pub const DEADLINE: Duration = Duration::from_secs(60);

/// A directory with a configuration, and a daemon when one was started.
pub struct Plain {
    pub dir: TempDir,
    /// A command that weir is run by, which ends with running its arguments.
    pub under: Vec<String>,
    /// So long something is waited for.
    pub deadline: Duration,
    daemon: Option<Child>,
}

impl Plain {
    pub fn new() -> Self {
        Self {
            dir: TempDir::with_prefix("weir-plain-").unwrap(),
            under: vec![],
            deadline: DEADLINE,
            daemon: None,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, self.filled(text)).unwrap();
        path
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// `{dir}` is this host's directory.
    pub fn filled(&self, text: &str) -> String {
        text.replace("{dir}", &self.dir.path().display().to_string())
    }

    /// Writes the configuration, with somebody exempt; takes nothing into force.
    pub fn configure(&self, more: &str) {
        self.configure_only(&format!("allow = [\"198.51.100.0/24\"]\n{more}"));
    }

    /// Writes the configuration with nobody exempt; takes nothing into force.
    pub fn configure_only(&self, more: &str) {
        let text = format!(
            "backend = \"dry-run\"\ninterfaces = [\"lo\"]\nstate_dir = \"{{dir}}/state\"\n\
             socket = \"{{dir}}/weir.sock\"\n{more}"
        );
        self.write("weir.toml", &text);
    }

    /// A daemon that answers.
    pub fn start(&mut self) {
        let said = fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("daemon.log"))
            .unwrap();
        let mut command = self.command(&["daemon"]);
        command.stdin(Stdio::null()).stderr(said);
        self.daemon = Some(command.spawn().unwrap());
        self.until("the daemon to answer", |host| {
            host.ask(&["status", "--json"]).0 != Some(2)
        });
    }

    pub fn started(config: &str) -> Self {
        let mut host = Self::new();
        host.configure(config);
        host.start();
        host
    }

    fn command(&self, args: &[&str]) -> Command {
        let weir = env!("CARGO_BIN_EXE_weir").to_owned();
        let mut words = self.under.iter().chain([&weir]);
        let mut command = Command::new(words.next().expect("weir, at least"));
        command
            .args(words)
            .arg("--config")
            .arg(self.path("weir.toml"))
            .args(args);
        command
    }

    /// A verb, run to its end.
    pub fn output(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().unwrap()
    }

    /// A verb's exit code and all that it printed, on standard error as well.
    pub fn ask(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = self.output(args);
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    /// The same for a verb that reads this text.
    pub fn ask_with(&self, args: &[&str], input: &str) -> (Option<i32>, String) {
        let file = self.write("input", input);
        let mut command = self.command(args);
        let output = command
            .stdin(fs::File::open(file).unwrap())
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    #[track_caller]
    pub fn done(&self, args: &[&str]) -> String {
        let (code, text) = self.ask(args);
        assert_eq!(code, Some(0), "{args:?}: {text}");
        text
    }

    /// A verb that is done before the deadline, where it might wait for ever.
    #[track_caller]
    pub fn done_in_time(&self, args: &[&str]) {
        let mut verb = self.command(args).stdin(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + DEADLINE;
        while verb.try_wait().unwrap().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        // Nothing to one that has ended.
        let _ = verb.kill();
        let code = verb.wait().unwrap().code();
        assert_eq!(code, Some(0), "{args:?}: {}", self.said());
    }

    /// What a verb printed on standard output, in JSON. On a busy machine it may
    /// say on standard error that the daemon has not answered yet.
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let output = self.output(&[args, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
    }

    /// An entry of one of the status' lists, by name.
    #[track_caller]
    pub fn status_of(&self, list: &str, name: &str) -> Value {
        let status = self.json(&["status"]);
        let all = status[list].as_array().unwrap();
        let found = all.iter().find(|entry| entry["name"] == name);
        found
            .unwrap_or_else(|| panic!("no {name} in {status}"))
            .clone()
    }

    pub fn alerts(&self) -> String {
        self.json(&["status"])["alerts"].to_string()
    }

    pub fn is_banned(&self, addr: &str) -> bool {
        self.ask(&["why", addr]).0 == Some(0)
    }

    /// The daemon's log so far.
    pub fn said(&self) -> String {
        self.read("daemon.log")
    }

    #[track_caller]
    pub fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + self.deadline;
        while !holds(self) {
            assert!(Instant::now() < deadline, "never: {what}\n{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().unwrap().id()
    }

    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Ends the daemon and returns its exit code, if it had one.
    pub fn end(&mut self, signal: &str) -> Option<i32> {
        self.end_by(signal).code()
    }

    /// Ends the daemon and returns how it ended.
    pub fn end_by(&mut self, signal: &str) -> ExitStatus {
        self.signal(signal);
        let mut daemon = self.daemon.take().unwrap();
        let mut ended = None;
        self.until("the daemon to end", |_| {
            ended = daemon.try_wait().unwrap();
            ended.is_some()
        });
        ended.expect("it was waited for")
    }

    /// Kills the daemon, if one runs.
    pub fn end_if_running(&mut self) {
        if self.daemon.is_some() {
            self.end("KILL");
        }
    }

    /// A start that fails: what it said.
    #[track_caller]
    pub fn refuses_to_start(&self) -> String {
        let output = self.command(&["daemon"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}
