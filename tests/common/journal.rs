//! The host's journal without systemd: systemd-journal-remote writes the files,
//! with the trusted fields that it is told, and the daemon sees them as those of
//! its host.

#![allow(dead_code)] // each test file uses its part

use std::{
    fs,
    io::Write,
    net::IpAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};

use weir_netlab::FakeHost;

use crate::common::{Weir, addr, skipped};

const REMOTE: &str = "/lib/systemd/systemd-journal-remote";

/// The host's journal, as journald lays it out under /run.
pub struct Journal(PathBuf);

impl Journal {
    /// An empty one; the daemon sees it from its next start on.
    pub fn of(weir: &mut Weir) -> Self {
        let machine = fs::read_to_string("/etc/machine-id").unwrap();
        let run = weir.path("run");
        let dir = run.join("log/journal").join(machine.trim());
        fs::create_dir_all(&dir).unwrap();
        fs::create_dir(weir.path("no-journal")).unwrap();
        weir.fake_host = FakeHost::default()
            .instead_of("/run", &run)
            .instead_of("/var/log", weir.path("no-journal"));
        Self(dir)
    }

    fn file(&self) -> PathBuf {
        self.0.join("system.journal")
    }

    /// Appends entries of a program, as journald would have.
    pub fn write(&self, program: &str, uid: u32, messages: impl IntoIterator<Item = String>) {
        let session = ("session-1.scope", "sshd");
        self.write_as(program, uid, session, messages);
    }

    /// Writes an entry of a unit's process, under an identifier.
    pub fn write_as(
        &self,
        program: &str,
        uid: u32,
        (unit, tag): (&str, &str),
        messages: impl IntoIterator<Item = String>,
    ) {
        let uid = uid.to_string();
        let fields = [
            ("_COMM", program),
            ("_UID", &uid),
            ("_SYSTEMD_UNIT", unit),
            ("SYSLOG_IDENTIFIER", tag),
            ("_TRANSPORT", "syslog"),
        ];
        let messages = messages.into_iter().map(String::into_bytes);
        self.write_entries(&fields, messages);
    }

    /// Writes entries with these fields, and no others.
    pub fn write_entries(
        &self,
        fields: &[(&str, &str)],
        messages: impl IntoIterator<Item = Vec<u8>>,
    ) {
        let fields = fields
            .iter()
            .map(|(name, value)| format!("{name}={value}\n"));
        let fields: String = fields.collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut text = Vec::new();
        for (n, message) in messages.into_iter().enumerate() {
            let n = n as u128;
            let head = format!(
                "__REALTIME_TIMESTAMP={}\n__MONOTONIC_TIMESTAMP={}\n\
                 _BOOT_ID=4d5f2b9a3c1e4f6f8a7b6c5d4e3f2a1b\n{fields}MESSAGE\n",
                now.as_micros() + n,
                // Any clock that goes on will do.
                now.as_micros() + n,
            );
            text.extend(head.bytes());
            text.extend((message.len() as u64).to_le_bytes());
            text.extend(message);
            text.extend(b"\n\n");
        }
        let mut remote = Command::new(REMOTE)
            .arg("--output")
            .arg(self.file())
            .arg("-")
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = remote.stdin.take().unwrap();
        input.write_all(&text).unwrap();
        drop(input);
        assert!(remote.wait().unwrap().success());
    }

    pub fn failures(&self, source: &str, times: usize) {
        let source: IpAddr = addr(source);
        let message = |n| {
            format!(
                "Failed password for root from {source} port {} ssh2",
                40_000 + n
            )
        };
        self.write("sshd", 0, (0..times).map(message));
    }

    /// As journald does when a file is full: renamed, and a new one begun.
    pub fn rotate(&self, number: u32) {
        let archived = format!("system@{number:032x}-0000000000000001-{number:016x}.journal");
        fs::rename(self.file(), self.0.join(archived)).unwrap();
    }
}

/// Can such a journal be had here? Prints why not.
pub fn ready() -> bool {
    if skipped(&[]) {
        return false;
    }
    for (file, why) in [
        (REMOTE, "Debian package systemd-journal-remote"),
        ("/etc/machine-id", "systemd-machine-id-setup makes it"),
    ] {
        if !Path::new(file).exists() {
            println!("skipped: no {file} ({why})");
            return false;
        }
    }
    true
}
