//! `weir app prompt --json`, asked and answered by a test.
#![allow(dead_code)] // each test file uses its part

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::app_host::{self, TestHost};

/// `weir app prompt --json`, and what it prints.
pub struct Prompter {
    pub child: Child,
    pub input: ChildStdin,
    pub lines: Receiver<Value>,
}

impl Prompter {
    pub fn new(host: &TestHost) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .arg("--config")
            .arg(host.host.path("weir.toml"))
            .args(["app", "prompt", "--json"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = send.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self {
            input: child.stdin.take().unwrap(),
            child,
            lines,
        }
    }

    #[track_caller]
    pub fn next(&self) -> Value {
        let next = self.lines.recv_timeout(Duration::from_secs(60));
        next.expect("a line of weir app prompt")
    }

    /// The next question, which is about this program and this peer.
    #[track_caller]
    pub fn question(&self, program: &str, peer: &str) -> u64 {
        let question = self.next();
        let path = question["programs"][0]["path"].as_str().unwrap_or_default();
        assert!(path.contains(program), "{question}");
        let digest = question["programs"][0]["digest"].as_str().unwrap();
        assert_eq!(digest, app_host::sha256(path));
        assert_eq!(question["peer"], peer);
        assert_eq!(
            (&question["port"], &question["protocol"]),
            (&8080.into(), &"tcp".into())
        );
        question["id"].as_u64().unwrap()
    }

    #[track_caller]
    pub fn answer(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
        let answered = self.next();
        let mut words = line.split(' ');
        let id: u64 = words.next().unwrap().parse().unwrap();
        assert_eq!(answered["id"], id, "{line}: {answered}");
        assert_eq!(answered["answered"], words.next().unwrap(), "{line}");
    }
}

impl Drop for Prompter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
