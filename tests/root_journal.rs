//! A jail whose source is the systemd journal: the whole daemon follows a
//! journal that grows, is rotated and goes on while no daemon runs. No systemd
//! is needed: systemd-journal-remote writes the files, and the daemon sees
//! them as those of its host.

mod common;

use std::{
    fs,
    io::Write,
    net::IpAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};

use common::{ATTACKER, CUSTOMER, OTHER, Site, Weir, addr, at, skipped, soon};
use weir_lab::View;

const REMOTE: &str = "/lib/systemd/systemd-journal-remote";
const CONFIG: &str = "interfaces = [\"eth0\"]\n[jail.sshd]\nsource = \"journal\"\nmax_retry = 3\n";

/// The host's journal, as journald lays it out under /run.
struct Journal(PathBuf);

impl Journal {
    /// An empty one; the daemon sees it from its next start on.
    fn of(weir: &mut Weir) -> Self {
        let machine = fs::read_to_string("/etc/machine-id").unwrap();
        let run = weir.path("run");
        let dir = run.join("log/journal").join(machine.trim());
        fs::create_dir_all(&dir).unwrap();
        fs::create_dir(weir.path("no-journal")).unwrap();
        weir.view = View::default()
            .instead_of("/run", &run)
            .instead_of("/var/log", weir.path("no-journal"));
        Self(dir)
    }

    fn file(&self) -> PathBuf {
        self.0.join("system.journal")
    }

    /// Appends entries of a program, as journald would have.
    fn write(&self, program: &str, uid: u32, messages: impl IntoIterator<Item = String>) {
        let session = ("session-1.scope", "sshd");
        self.write_as(program, uid, session, messages);
    }

    /// The same of a unit's process, under an identifier.
    fn write_as(
        &self,
        program: &str,
        uid: u32,
        (unit, tag): (&str, &str),
        messages: impl IntoIterator<Item = String>,
    ) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut text = Vec::new();
        for (n, message) in messages.into_iter().enumerate() {
            let n = n as u128;
            let head = format!(
                "__REALTIME_TIMESTAMP={}\n__MONOTONIC_TIMESTAMP={}\n\
                 _BOOT_ID=4d5f2b9a3c1e4f6f8a7b6c5d4e3f2a1b\n_COMM={program}\n_UID={uid}\n\
                 _SYSTEMD_UNIT={unit}\nSYSLOG_IDENTIFIER={tag}\nMESSAGE\n",
                now.as_micros() + n,
                // Any clock that goes on will do.
                now.as_micros() + n,
            );
            text.extend(head.bytes());
            text.extend((message.len() as u64).to_le_bytes());
            text.extend(message.bytes());
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

    fn failures(&self, source: &str, times: usize) {
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
    fn rotate(&self, number: u32) {
        let archived = format!("system@{number:032x}-0000000000000001-{number:016x}.journal");
        fs::rename(self.file(), self.0.join(archived)).unwrap();
    }
}

fn ready() -> bool {
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

#[track_caller]
fn findings(weir: &Weir, number: u64) {
    soon(&format!("{number} findings"), || {
        let jail = weir.json(&["status", "sshd"]);
        (jail["findings"].as_u64() >= Some(number)).then_some(())
    });
    assert_eq!(weir.json(&["status", "sshd"])["findings"], number);
}

#[test]
fn root_the_journal_is_followed_over_rotation_and_restart() {
    if !ready() {
        return;
    }
    let site = Site::new();
    let mut weir = Weir::new(&site.host, CONFIG);
    let journal = Journal::of(&mut weir);
    // Older than the daemon: not its business.
    journal.failures("198.51.100.99", 9);
    weir.run();
    let status = weir.json(&["status"]);
    assert_eq!(status["alerts"].as_array().unwrap().len(), 0, "{status}");
    assert_eq!(weir.json(&["status", "sshd"])["source"], "journal");
    let _server = site.server();

    // It grows.
    for (family, who) in ATTACKER.into_iter().enumerate() {
        journal.failures(who, 2);
        findings(&weir, family as u64 * 3 + 2);
        site.serves(who, at(family));
        journal.failures(who, 1);
        site.drops_soon(who);
        site.serves(CUSTOMER[family], at(family));
        let why = weir.why(who);
        assert_eq!(why["bans"][0]["producer"], "jail:sshd", "{why}");
        let line = format!("Failed password for root from {who} port 40000 ssh2");
        assert_eq!(why["bans"][0]["evidence"][0], line, "{why}");
    }
    assert_eq!(weir.banned().len(), 2);

    // What anybody can write is not believed: another program with sshd's
    // identifier, another user's program of that name.
    let forged = |_| format!("Failed password for root from {} port 1 ssh2", CUSTOMER[0]);
    journal.write("logger", 0, (0..5).map(forged));
    journal.write("sshd", 1000, (0..5).map(forged));

    // Rotated between the second and the third failure.
    for (family, who) in OTHER.into_iter().enumerate() {
        journal.failures(who, 2);
        findings(&weir, 6 + family as u64 * 3 + 2);
        journal.rotate(family as u32 + 1);
        journal.failures(who, 1);
        site.drops_soon(who);
    }
    findings(&weir, 12);

    // Stopped after one, rotated while it is down, one in each file: neither
    // read twice nor lost.
    let who = ["198.51.100.31", "2001:db8:bad:31::1"];
    for family in [0, 1] {
        journal.failures(who[family], 1);
    }
    findings(&weir, 14);
    weir.stop();
    for source in who {
        journal.failures(source, 1);
    }
    journal.rotate(3);
    // The first is complete, the second is not.
    journal.failures(who[0], 1);
    weir.run();
    site.drops_soon(who[0]);
    findings(&weir, 3);
    site.serves(who[1], at(1));
    assert_eq!(weir.why(who[1])["tracked"][0]["findings"], 2);
    // And killed: what was saved within the last second counts.
    soon("the position to be saved", || {
        (weir.json(&["status"])["unsaved"] == 0).then_some(())
    });
    weir.kill();
    journal.failures(who[1], 1);
    weir.run();
    site.drops_soon(who[1]);
    site.serves(CUSTOMER[0], at(0));
    assert_eq!(weir.banned().len(), 6);
    assert_eq!(
        weir.why(CUSTOMER[0])["tracked"].as_array().unwrap().len(),
        0
    );
}

/// On a fresh host sshd has written nothing yet when the daemon first runs.
#[test]
fn root_a_journal_without_entries_is_read_from_the_first_start_on() {
    if !ready() {
        return;
    }
    let site = Site::new();
    let mut weir = Weir::new(&site.host, CONFIG);
    let journal = Journal::of(&mut weir);
    journal.write("cron", 0, ["nothing of sshd's".to_owned()]);
    weir.run();
    soon("the position to be saved", || {
        (weir.json(&["status"])["unsaved"] == 0).then_some(())
    });
    weir.stop();
    for who in ATTACKER {
        journal.failures(who, 3);
    }
    weir.run();
    soon("both bans", || (weir.banned().len() == 2).then_some(()));
    let _server = site.server();
    for family in [0, 1] {
        assert!(!site.connects(ATTACKER[family], at(family)));
    }
}

/// Issue 13, 9: Postfix, Dovecot and BIND do not log as root.
#[test]
fn root_a_service_is_read_by_its_unit() {
    if !ready() {
        return;
    }
    const MAIL: &str = "interfaces = [\"eth0\"]\n\
        [filter.mail]\nidentifiers = [\"postfix/smtpd\"]\n\
        patterns = ['lost connection after AUTH from <addr>']\n\
        [jail.mail]\nfilter = \"mail\"\nsource = \"journal\"\nmax_retry = 3\n\
        [jail.exim]\nfilter = \"mail\"\nsource = \"journal\"\nmax_retry = 3\nports = [\"25/tcp\"]\n\
        journal_match = [\"_SYSTEMD_UNIT=exim4.service\", \"_UID=101\"]\n";
    let site = Site::new();
    let mut weir = Weir::new(&site.host, MAIL);
    let journal = Journal::of(&mut weir);
    journal.write("cron", 0, ["the journal is there".to_owned()]);
    weir.run();
    let lines = |who: &str| {
        let line = format!("lost connection after AUTH from {who}");
        std::iter::repeat_n(line, 3)
    };
    let tag = "postfix/smtpd";
    // In the service's name, and not by it.
    for (uid, unit) in [
        (1000, "postfix@-.service"),
        (1000, "user@1000.service"),
        (33, "apache2.service"),
    ] {
        journal.write_as("smtpd", uid, (unit, tag), lines(CUSTOMER[0]));
    }
    journal.write_as("exim4", 102, ("exim4.service", tag), lines(CUSTOMER[0]));
    for who in ATTACKER {
        journal.write_as("smtpd", 106, ("postfix@-.service", tag), lines(who));
    }
    journal.write_as("exim4", 101, ("exim4.service", tag), lines(OTHER[0]));
    soon("the bans", || (weir.banned().len() == 3).then_some(()));
    for who in ATTACKER {
        assert_eq!(weir.why(who)["bans"][0]["producer"], "jail:mail");
    }
    assert_eq!(weir.why(OTHER[0])["bans"][0]["producer"], "jail:exim");
    assert_eq!(
        weir.why(CUSTOMER[0])["tracked"].as_array().unwrap().len(),
        0
    );
}
