//! The program as its users meet it: a real daemon with the dry-run backend in
//! a directory of its own, fed by a real log file, asked by the real verbs.
//! Needs no privilege; nothing is left behind.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

#[path = "cli/limits.rs"]
mod limits;
#[path = "cli/metrics.rs"]
mod metrics;
#[path = "cli/shown.rs"]
mod shown;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const DEADLINE: Duration = Duration::from_secs(20);

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

/// Nobody may write into it, and every verb reads its configuration.
#[test]
fn a_fifo_is_no_configuration_and_nobody_waits_for_it() {
    let host = Host::new();
    let fifo = |path: PathBuf| {
        let made = Command::new("mkfifo").arg(path).status();
        assert!(made.unwrap().success());
    };
    fs::create_dir(host.path("conf.d")).unwrap();
    fifo(host.path("conf.d/a.toml"));
    fifo(host.path("fifo"));
    for config in [host.path("weir.toml"), host.path("fifo")] {
        for verb in ["check", "status", "daemon"] {
            let mut child = Command::new(WEIR)
                .arg("--config")
                .arg(&config)
                .arg(verb)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let deadline = Instant::now() + DEADLINE;
            while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            // Nothing to one that has ended.
            let _ = child.kill();
            let answer = Answer::from(child.wait_with_output().unwrap());
            // It ended by itself.
            assert_ne!(answer.code, -1, "{config:?} {verb}: {}", answer.err);
            if verb != "status" {
                assert_eq!(answer.code, 2, "{config:?} {verb}: {}", answer.err);
                let said = answer.out + &answer.err;
                assert!(said.contains("it is no regular file"), "{verb}: {said}");
            }
        }
    }
}

#[test]
fn bans_by_hand() {
    let host = Host::started();
    let ban = host.weir(&[
        "ban",
        "192.0.2.99",
        "--for",
        "10m",
        "--port",
        "22/tcp",
        "--reason",
        "no \u{202e}thanks",
        "--json",
    ]);
    assert_eq!(ban.code, 0, "{}", ban.err);
    assert_eq!(ban.json()["saved"], true);
    assert_eq!(host.weir(&["why", "192.0.2.99", "--port", "22"]).code, 0);
    assert_eq!(
        host.weir(&["why", "192.0.2.99", "--port", "22/tcp"]).code,
        0
    );
    assert_eq!(
        host.weir(&["why", "192.0.2.99", "--port", "22/udp"]).code,
        1
    );
    assert_eq!(host.weir(&["why", "192.0.2.99", "--port", "80"]).code, 1);
    let table = host.weir(&["bans"]).out;
    assert!(
        table.contains("22/tcp") && table.contains("no \\u{202e}thanks"),
        "{table}"
    );

    // One subject may hold several bans; an unban may name one.
    assert_eq!(host.weir(&["ban", "192.0.2.99"]).code, 0);
    assert_eq!(host.weir(&["bans", "--json"]).json()["total"], 2);
    let unban = host.weir(&["unban", "192.0.2.99", "--port", "22/tcp", "--json"]);
    assert_eq!(
        (unban.code, &unban.json()["lifted"]),
        (0, &1.into()),
        "{}",
        unban.err
    );
    assert_eq!(host.weir(&["why", "192.0.2.99", "--port", "80"]).code, 0);
    assert_eq!(host.weir(&["unban", "192.0.2.99"]).code, 0);
    let again = host.weir(&["unban", "192.0.2.99"]);
    assert_eq!(again.code, 1);
    assert!(again.out.contains("is not banned"), "{}", again.out);

    assert_eq!(
        host.weir(&["ban", "2001:db8:7::/64", "--for", "1d"]).code,
        0
    );
    assert!(host.is_banned("2001:db8:7::1"));
    let inside = host.weir(&["unban", "2001:db8:7::1"]);
    assert!(
        inside.code == 1 && inside.out.contains("but 2001:db8:7::/64 is"),
        "{}",
        inside.out
    );

    // What is asked of another's ban, and what holds after one is lifted.
    assert_eq!(host.weir(&["ban", "203.0.113.9"]).code, 0);
    let of_other = host.weir(&["unban", "203.0.113.9", "--jail", "sshd"]);
    assert_eq!(
        (of_other.code, of_other.out.as_str()),
        (
            1,
            "203.0.113.9 is banned manually on all ports, not by jail sshd\n"
        )
    );
    let of_port = host.weir(&["unban", "203.0.113.9", "--port", "22/tcp"]);
    assert!(
        of_port.code == 1 && of_port.out.contains("on all ports, not on 22/tcp"),
        "{}",
        of_port.out
    );
    assert_eq!(host.weir(&["ban", "203.0.113.0/24"]).code, 0);
    let one = host.weir(&["unban", "203.0.113.9"]);
    assert_eq!(
        (one.code, one.out.as_str()),
        (
            0,
            "1 ban lifted\n203.0.113.9 is still denied: 203.0.113.0/24 is banned manually on all ports\n"
        )
    );
    assert_eq!(host.weir(&["ban", "203.0.113.9"]).code, 0);
    let one = host.weir(&["unban", "203.0.113.9", "--json"]).json();
    assert!(
        one["still"][0].as_str().unwrap().contains("203.0.113.0/24"),
        "{one}"
    );

    let nobody = host.weir(&["unban", "--all", "--jail", "nosuch"]);
    assert_eq!(nobody.code, 2, "{}", nobody.out);
    assert!(
        nobody
            .err
            .contains("there is no jail \"nosuch\"; enabled are: sshd"),
        "{}",
        nobody.err
    );
    assert_eq!(host.weir(&["unban", "--all", "--jail", "sshd"]).code, 0);
    assert_eq!(host.weir(&["unban", "--all"]).code, 0);
    assert_eq!(host.weir(&["bans", "--json"]).json()["total"], 0);
}

#[test]
fn a_prefix_of_any_length_is_banned_shown_and_lifted() {
    let host = Host::started();
    for (prefix, inside, beside) in [
        ("10.0.0.0/9", "10.1.2.3", "10.128.0.0"),
        ("2001:db8:8000::/33", "2001:db8:ffff::9", "2001:db8::9"),
    ] {
        let banned = host.weir(&["ban", prefix, "--for", "1h", "--port", "22/tcp"]);
        assert_eq!(banned.code, 0, "{}", banned.err);
        assert!(banned.out.contains(prefix), "{}", banned.out);
        assert!(host.weir(&["bans"]).out.contains(prefix));
        let why = host.weir(&["why", inside, "--port", "22/tcp"]);
        assert_eq!(why.code, 0, "{}", why.out);
        assert!(why.out.contains(&format!("ban of {prefix}")), "{}", why.out);
        assert_eq!(host.weir(&["why", beside]).code, 1);
        let status = host.weir(&["status", "--json"]).json();
        assert_eq!(status["usage"]["prefix_bans"], 1, "{status}");
        assert!(
            host.weir(&["status"])
                .out
                .contains("1 of 8192 bans of other prefixes")
        );
        let inner = host.weir(&["unban", inside]);
        assert_eq!(inner.code, 1, "{}", inner.out);
        assert!(inner.out.contains(prefix), "{}", inner.out);
        assert_eq!(host.weir(&["unban", prefix]).code, 0);
        assert_eq!(host.weir(&["unban", prefix]).code, 1);
    }
    assert_eq!(host.weir(&["bans", "--json"]).json()["total"], 0);
}

#[test]
fn what_cannot_be_banned_is_refused_with_the_reason() {
    let host = Host::started();
    for (args, message) in [
        (vec!["ban", "198.51.100.7"], "allow list"),
        (vec!["ban", "127.0.0.1"], "loopback"),
        (vec!["ban", "::1"], "loopback"),
        (vec!["ban", "0.0.0.0/0"], "cannot be banned"),
        (vec!["ban", "fe80::/64"], "link-local"),
        (vec!["ban", "192.0.2.1/24"], "write 192.0.2.0/24"),
        (vec!["ban", "10.1.0.0/9"], "write 10.0.0.0/9"),
        (vec!["ban", "2001:db8:1::/33"], "write 2001:db8::/33"),
        (vec!["ban", "10.0.0.0/33"], "at most 32 for IPv4"),
        (vec!["ban", "224.0.0.0/3"], "multicast"),
        (vec!["ban", "fc00::/6"], "link-local"),
        (vec!["ban", "198.51.100.128/25"], "allow list"),
        (vec!["ban", "example.org"], "is not an address"),
        (vec!["ban", "$(reboot)"], "is not an address"),
        (vec!["ban", "192.0.2.7", "--for", "soon"], "length of time"),
        (vec!["ban", "192.0.2.7", "--for", "0"], "a ban lasts"),
        (vec!["ban", "192.0.2.7", "--port", "ssh"], "is not a port"),
        (vec!["unban", "nobody"], "is not an address"),
        (vec!["why", "nobody"], "is not an address"),
        (vec!["why", "192.0.2.7", "--port", "1-9"], "is not one port"),
        (vec!["allow", "add", "here"], "is not an address"),
    ] {
        let answer = host.weir(&args);
        assert_eq!(answer.code, 2, "{args:?}: {}", answer.out);
        assert!(answer.err.contains(message), "{args:?}: {}", answer.err);
    }
    assert_eq!(host.weir(&["bans", "--json"]).json()["total"], 0);
}

#[test]
fn the_allow_list_of_run_time_wins_and_survives() {
    let mut host = Host::started();
    assert_eq!(host.weir(&["ban", "192.0.2.77"]).code, 0);
    assert_eq!(
        host.weir(&["allow", "add", "192.0.2.0/25", "--note", "office"])
            .code,
        0
    );
    let why = host.weir(&["why", "192.0.2.77"]);
    assert!(why.code == 1 && why.out.contains("office"), "{}", why.out);
    assert_eq!(host.weir(&["ban", "192.0.2.78"]).code, 2);
    host.end("KILL");
    host.start();
    let list = host.weir(&["allow", "list", "--json"]).json();
    let office = list["allow"]
        .as_array()
        .unwrap()
        .iter()
        .find(|e| e["prefix"] == "192.0.2.0/25");
    assert!(
        office.unwrap()["reason"]
            .as_str()
            .unwrap()
            .contains("office")
    );
    assert!(
        list.to_string()
            .contains("it is an address of this host (lo)")
    );
    assert_eq!(host.weir(&["allow", "del", "192.0.2.0/25"]).code, 0);
    assert_eq!(host.weir(&["allow", "remove", "192.0.2.0/25"]).code, 1);
    assert!(host.is_banned("192.0.2.77"));
}

#[test]
fn a_second_daemon_is_refused_and_the_first_is_named() {
    let host = Host::started();
    let second = host.weir(&["daemon"]);
    assert_eq!(second.code, 2);
    let pid = host.daemon.as_ref().unwrap().id();
    assert!(second.err.contains(&format!("pid {pid}")), "{}", second.err);
    assert_eq!(host.weir(&["status"]).code, 0);
}

#[test]
fn after_sigkill_bans_counts_and_positions_are_intact() {
    let mut host = Host::started();
    assert_eq!(host.weir(&["ban", "192.0.2.50", "--for", "1h"]).code, 0);
    assert_eq!(host.weir(&["ban", "192.0.2.51", "--for", "2s"]).code, 0);
    assert_eq!(host.weir(&["ban", "192.0.2.52"]).code, 0);
    host.fail("203.0.113.7", 3);
    host.fail("203.0.113.8", 2);
    host.until("the jail bans", |h| h.is_banned("203.0.113.7"));
    // Jail bans, counts and positions are on disk within a second or two.
    host.until("everything is written", |h| h.status()["unsaved"] == 0);
    std::thread::sleep(Duration::from_secs(3));
    host.end("KILL");
    // While nobody reads.
    host.fail("203.0.113.8", 1);
    host.start();

    let bans = host.weir(&["bans", "--json"]).json();
    let of = |subject: &str| {
        bans["bans"]
            .as_array()
            .unwrap()
            .iter()
            .find(|b| b["subject"] == subject)
            .cloned()
    };
    let hour = of("192.0.2.50").unwrap();
    let left = hour["remaining_seconds"].as_u64().unwrap();
    assert!((3500..3600).contains(&left), "{left}");
    assert_eq!(hour["reason"], "manual ban");
    assert_eq!(of("192.0.2.51"), None, "it ended while the daemon was dead");
    assert_eq!(of("192.0.2.52").unwrap()["until"], Value::Null);
    let jail = of("203.0.113.7").unwrap();
    assert_eq!(jail["evidence"].as_array().unwrap().len(), 3);
    host.until("the line written meanwhile completes the count", |h| {
        h.is_banned("203.0.113.8")
    });
    // No line was read twice: the count of the ended ban did not start anew.
    assert_eq!(host.status()["jails"][0]["lines"], 1);
}

#[test]
fn a_reload_is_all_or_nothing() {
    let mut host = Host::started();
    host.configure("max_retyr = 1\n");
    let reload = host.weir(&["reload"]);
    assert_eq!(reload.code, 2);
    assert!(
        reload
            .err
            .contains("weir.toml:9: unknown key \"max_retyr\" in [jail.sshd] (did you mean max_retry?); allowed: "),
        "{}",
        reload.err
    );
    assert_eq!(host.status()["jails"][0]["max_retry"], 3);
    host.fail("203.0.113.7", 2);
    host.until("the old configuration counts", |h| {
        h.status()["jails"][0]["tracked"] == 1
    });

    // Counts go over into the new configuration.
    host.configure("ban_time = \"2h\"\n[jail.again]\nfilter = \"sshd\"\nmax_retry = 1\nports = [\"22/tcp\"]\npaths = [\"/nonexistent/x.log\"]\n");
    assert_eq!(host.weir(&["reload"]).code, 0);
    assert_eq!(host.status()["jails"].as_array().unwrap().len(), 2);
    host.fail("203.0.113.7", 1);
    host.until("the third failure bans", |h| h.is_banned("203.0.113.7"));
    let ban = &host.weir(&["bans", "--json"]).json()["bans"][0];
    assert!(ban["remaining_seconds"].as_u64().unwrap() > 3600);

    // A key that needs a restart is named, and nothing changes.
    let text = fs::read_to_string(host.path("weir.toml")).unwrap();
    fs::write(
        host.path("weir.toml"),
        format!("instance = \"other\"\n{text}"),
    )
    .unwrap();
    let reload = host.weir(&["reload"]);
    assert!(
        reload.code == 2 && reload.err.contains("instance needs a restart"),
        "{}",
        reload.err
    );

    // So it is by SIGHUP; each refusal is one line of the log.
    let refusals = |h: &Host| {
        let log = fs::read_to_string(h.path("daemon.log")).unwrap();
        log.lines().filter(|line| line.contains("refused")).count()
    };
    assert_eq!(refusals(&host), 2);
    host.signal("HUP");
    host.until("SIGHUP is refused", |h| refusals(h) > 2);

    host.configure("");
    host.signal("HUP");
    host.until("SIGHUP reloads", |h| {
        h.status()["jails"].as_array().unwrap().len() == 1
    });
    assert_eq!(refusals(&host), 3);
    assert_eq!(host.end("TERM"), Some(0));
    assert!(!host.path("weir.sock").exists());
}

#[test]
fn a_corrupt_database_is_moved_aside() {
    let mut host = Host::new();
    fs::create_dir(host.path("state")).unwrap();
    fs::write(host.path("state/weir.db"), "no database ".repeat(1000)).unwrap();
    host.start();
    assert!(host.alerts().contains("was corrupt"), "{}", host.alerts());
    let aside = fs::read_dir(host.path("state")).unwrap().any(|e| {
        e.unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with("weir.db.corrupt-")
    });
    assert!(aside);
    assert_eq!(
        host.weir(&["ban", "192.0.2.99", "--json"]).json()["saved"],
        true
    );
}

#[test]
fn with_a_read_only_database_bans_go_on() {
    let mut host = Host::started();
    assert_eq!(host.weir(&["ban", "192.0.2.50"]).code, 0);
    assert_eq!(host.end("TERM"), Some(0));
    let dir = host.dir.path().to_owned();
    let mode = |name: &str, mode| {
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("state/weir.db", 0o444);
    mode("state", 0o555);
    host.start();
    assert!(host.is_banned("192.0.2.50"), "what can be read is restored");
    let ban = host.weir(&["ban", "192.0.2.99", "--json"]);
    assert_eq!(ban.code, 0, "{}", ban.err);
    assert_eq!(ban.json()["saved"], false);
    assert!(ban.err.contains("warning: not saved"), "{}", ban.err);
    assert!(host.is_banned("192.0.2.99"));
    host.fail("203.0.113.7", 3);
    host.until("the jail bans", |h| h.is_banned("203.0.113.7"));
    host.until("there is an alert", |h| h.alerts().contains("weir.db"));
    // The disk is writable again: everything is caught up with.
    mode("state", 0o700);
    mode("state/weir.db", 0o600);
    host.until("it is saved after all", |h| {
        h.status()["unsaved"] == 0 && !h.alerts().contains("weir.db")
    });
    host.end("KILL");
    host.start();
    assert!(host.is_banned("192.0.2.99") && host.is_banned("203.0.113.7"));
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

/// Only one of them would hold, and nothing would say so.
#[test]
fn tokens_that_contradict_each_other_are_refused_by_check_reload_and_start() {
    let mut host = Host::started();
    let digest = |digit: &str| digit.repeat(64);
    let token = "[token]\n[token.require.web]\nports = [\"8080/tcp\"]\nmode = \"log\"\n";
    host.configure(&format!("{token}aggregate = \"{}\"\n", digest("1")));
    fs::create_dir(host.path("conf.d")).unwrap();
    let rule = "[app.rules.database]\nverdict = \"allow\"\n";
    fs::write(
        host.path("conf.d/app.toml"),
        format!(
            "{rule}ports = [\"8080/tcp\"]\nfrom = [\"2001:db8::/32\"]\npeer = \"{}\"\n",
            digest("1")
        ),
    )
    .unwrap();
    let told = format!(
        "{}:5: [app.rules.database] and [token.require.web] ({}:10) have different modes",
        host.path("conf.d/app.toml").display(),
        host.path("weir.toml").display()
    );
    for verb in ["check", "reload"] {
        let refused = host.weir(&[verb]);
        assert_eq!(refused.code, 2, "{verb}");
        let said = format!("{}{}", refused.out, refused.err);
        assert!(said.contains(&told), "{verb}: {said}");
        assert!(said.contains("8080/tcp from 2001:db8::/32"), "{said}");
    }
    assert_eq!(host.end("TERM"), Some(0));
    let start = host.weir(&["daemon"]);
    assert_eq!(start.code, 2);
    let said = format!("{}{}", start.out, start.err);
    assert!(said.contains(&told), "{said}");
}

#[test]
fn a_reload_does_not_trust_a_log_anew() {
    let host = Host::started();
    let mut log = fs::File::options()
        .append(true)
        .open(host.path("auth.log"))
        .unwrap();
    log.write_all(b"the rest of a line that a client broke\n")
        .unwrap();
    host.until("it is read", |h| h.status()["jails"][0]["lines"] == 1);
    for _ in 0..2 {
        assert_eq!(host.weir(&["reload"]).code, 0);
    }
    host.fail("203.0.113.66", 5);
    for _ in 5..weir_core::detect::BEHIND_NO_HEAD {
        host.log("Server listening on :: port 22.");
    }
    host.fail("203.0.113.7", 3);
    host.until("a line behind those counts", |h| h.is_banned("203.0.113.7"));
    assert!(!host.is_banned("203.0.113.66"));
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

/// The allocator reserves 64 MiB of address space a thread where it may.
#[test]
fn a_limited_address_space_is_not_reserved_by_threads() {
    let mut host = Host::new();
    let mut command = Command::new("prlimit");
    command
        .args(["--as=400000000", WEIR, "--config"])
        .arg(host.path("weir.toml"))
        .arg("daemon");
    host.daemon = Some(command.stderr(Stdio::null()).spawn().unwrap());
    host.until("the daemon answers", |host| {
        host.weir(&["status", "--json"]).code != 2
    });
    let pid = host.daemon.as_ref().unwrap().id();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmPeak:"));
    let kib = line.unwrap().trim_end_matches("kB").trim();
    let kib: u64 = kib.parse().unwrap();
    assert!(kib < 200_000, "{kib} KiB");
}

#[test]
fn the_daemon_holds_no_more_than_it_needs() {
    let host = Host::started();
    let mode = fs::metadata(host.path("weir.sock"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o660);
    let pid = host.daemon.as_ref().unwrap().id();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // CAP_DAC_READ_SEARCH 2, CAP_NET_ADMIN 12, CAP_PERFMON 38, CAP_BPF 39.
    let kept: u64 = 1 << 2 | 1 << 12 | 1 << 38 | 1 << 39;
    for task in tasks {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let field = |name: &str| {
            status
                .lines()
                .find_map(|l| l.strip_prefix(name))
                .unwrap()
                .trim()
                .to_owned()
        };
        for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
            let held = u64::from_str_radix(&field(set), 16).unwrap();
            assert_eq!(held & !kept, 0, "{set} {held:x}");
        }
        assert_eq!(field("NoNewPrivs:"), "1");
    }
}

#[test]
fn check_names_every_mistake() {
    let host = Host::new();
    assert_eq!(host.weir(&["check"]).code, 0);
    host.configure("max_retyr = 1\nban_time = \"x\"\n[jail.web]\n");
    let check = host.weir(&["check"]);
    assert_eq!(check.code, 2);
    for part in [
        "weir.toml:9: unknown key \"max_retyr\"",
        "weir.toml:10: ban_time",
        "weir.toml:11: [jail.web]: there is no filter",
    ] {
        assert!(check.out.contains(part), "{part}: {}", check.out);
    }
    let json = host.weir(&["check", "--json"]).json();
    assert_eq!(
        (&json["good"], json["errors"].as_array().unwrap().len()),
        (&false.into(), 3)
    );
    assert_eq!(host.weir(&["daemon"]).code, 2);
}

#[test]
fn filters_are_shown_and_their_mistakes_named() {
    let host = Host::new();
    host.configure("[filter.shop]\nidentifiers = [\"shop\"]\npatterns = [\"refused <addr>\"]\n");
    let shown = host.weir(&["filter", "show", "shop"]);
    assert_eq!(
        (shown.code, &*shown.out),
        (
            0,
            "identifiers = [\n    \"shop\",\n]\npatterns = [\n    \"refused <addr>\",\n]\n"
        ),
        "{}",
        shown.err
    );
    let json = host.weir(&["filter", "show", "sshd", "--json"]).json();
    assert_eq!(json["identifiers"][0], "sshd", "{json}");
    let none = host.weir(&["filter", "show", "sshdd"]);
    assert!(
        none.code == 2 && none.err.contains("there are: sshd, sshd-aggressive, shop"),
        "{}",
        none.err
    );
    // What is shown is a file of filter.d; without a weir.toml it is enough.
    let dir = host.path("etc/filter.d");
    fs::create_dir_all(&dir).unwrap();
    let built_in = host.weir(&["filter", "show", "sshd"]).out;
    assert!(built_in.starts_with("# OpenSSH's server"), "{built_in}");
    fs::write(dir.join("copy.toml"), &built_in).unwrap();
    let show = |name: &str| {
        let mut show = Command::new(WEIR);
        show.args(["filter", "show", name, "--config"])
            .arg(host.path("etc"));
        show.output().unwrap().into()
    };
    let copy: Answer = show("copy");
    assert_eq!((copy.code, copy.out), (0, built_in), "{}", copy.err);
    let bad = "patterns = [\n  \"refused <addr>\",\n]\nidentifeirs = []\n";
    fs::write(dir.join("bad.toml"), bad).unwrap();
    let bad: Answer = show("bad");
    let told = "filter.d/bad.toml:4: unknown key \"identifeirs\" in [filter.bad] (did you mean identifiers?); allowed: ";
    assert!(bad.code == 2 && bad.err.contains(told), "{}", bad.err);
}

#[test]
fn filters_are_tried_on_lines() {
    let list = Host::new().weir(&["filter", "list", "--json"]).json();
    assert_eq!(list["filters"][0]["from"], "built in", "{list}");
    // Of one's own: the file that defines it.
    let host = Host::new();
    fs::create_dir(host.path("filter.d")).unwrap();
    fs::write(
        host.path("filter.d/shop.toml"),
        "patterns = ['denied <addr>']\n",
    )
    .unwrap();
    host.configure("[filter.web]\npatterns = ['refused <addr>']\n");
    let list = host.weir(&["filter", "list"]);
    for (name, file) in [("shop", "filter.d/shop.toml"), ("web", "weir.toml")] {
        let line = format!("{name} ({})\n", host.path(file).display());
        assert!(list.out.contains(&line), "no {line} in {}", list.out);
    }
    let host = Host::new();
    let dir = host.path("etc/filter.d");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("web.toml"), "patterns = ['refused <addr>']\n").unwrap();
    fs::write(dir.join("old.conf"), "[Definition]\nfailregex = x\n").unwrap();
    let test = |args: &[&str], input: &str| -> Answer {
        let mut child = Command::new(WEIR)
            .args(["filter", "test"])
            .args(args)
            .arg("--config")
            .arg(host.path("etc"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A verb that refuses does not read.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap().into()
    };
    let lines = "Aug 14 11:53:04 host sshd[1]: Failed password for root from 192.0.2.7 port 1 ssh2\n\
                 Aug 14 11:53:05 host sshd[1]: Accepted password for root from 192.0.2.7 port 1 ssh2\nno newline";
    let tz = "CET-01CEST-02,M3.5.0,M10.5.0";
    let out = test(
        &["sshd", "--json", "--tz", tz, "--now", "1124013600"],
        lines,
    );
    assert_eq!(out.code, 0, "{}", out.err);
    let objects: Vec<Value> = out
        .out
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(objects.len(), 3);
    assert_eq!(objects[0]["match"], true);
    assert_eq!(objects[0]["host"], "192.0.2.7");
    assert_eq!(objects[0]["user"], "root");
    assert_eq!(objects[0]["time"], 1124013184);
    assert_eq!(objects[1]["match"], false);
    let why = |n: usize| objects[n]["why"].as_str().unwrap();
    assert!(why(1).contains("no pattern fits"), "{}", why(1));
    assert!(why(2).contains("no time stamp"), "{}", why(2));
    // A reason once, with an example; or of each line; and the clock.
    let now = ["--tz", tz, "--now", "1124017200"];
    let thrice = format!("{lines}\n").repeat(3);
    let out = test(&[&["sshd"][..], &now].concat(), &thrice);
    for said in [
        "comes furthest: it wants \"",
        "the newest time stamp, 2005-08-14T09:53:04Z, is 1h 6m behind the clock",
        " of 9 lines are failures",
    ] {
        assert!(out.out.contains(said), "{said}: {}", out.out);
    }
    assert_eq!(out.out.matches("no pattern fits").count(), 1, "{}", out.out);
    let out = test(&[&["sshd", "--missed"][..], &now].concat(), &thrice);
    assert!(
        out.out.matches("no failure: no pattern fits").count() >= 2,
        "{}",
        out.out
    );
    fs::write(dir.join("bare.toml"), "patterns = ['refused <addr>']\n").unwrap();
    let out = test(
        &["bare"],
        "Aug 14 11:53:04 host shop[1]: refused 192.0.2.7\n",
    );
    assert!(
        out.code == 1
            && out
                .out
                .contains("add identifiers = [\"shop\"], then a pattern fits"),
        "{}",
        out.out
    );
    let out = test(
        &["sshd", "--journal", "--json", "--now", "1124013600"],
        "Failed password for root from 2001:db8::7 port 1 ssh2\n",
    );
    let object: Value = serde_json::from_str(&out.out).unwrap();
    assert_eq!(
        (&object["ip6"], &object["time"]),
        (&"2001:db8::7".into(), &1124013600.into())
    );
    let own = "head = '<time> \\[<word>\\] <pid>#<number>: '\ntime_format = '%Y/%m/%d %T'\npatterns = ['refused <addr>']\n";
    fs::write(dir.join("own.toml"), own).unwrap();
    let line = "2005/08/14 11:53:04 [error] 77#8: refused 192.0.2.7\n";
    let out = test(
        &["own", "--json", "--tz", "UTC", "--now", "1124024000"],
        line,
    );
    let object: Value = serde_json::from_str(&out.out).unwrap();
    assert_eq!(
        (&object["host"], &object["time"]),
        (&"192.0.2.7".into(), &1124020384.into())
    );
    let out = test(
        &["own", "--missed"],
        "2005/08/14 11:53:04 error: refused 192.0.2.7\n",
    );
    let said =
        "its start is not the filter's head, which wants \" [\" behind \"2005/08/14 11:53:04\"";
    assert!(out.code == 1 && out.out.contains(said), "{}", out.out);
    assert_eq!(test(&["web"], "refused 192.0.2.7\n").code, 0);
    assert_eq!(test(&["web"], "welcome 192.0.2.7\n").code, 1);
    for (args, message) in [
        (&["old"][..], "old.conf:2: it names nobody"),
        (&["none"], "there is no filter"),
        (&["../etc"], "is not the name of a filter"),
        (&["sshd", "--tz", "Nowhere/Land"], "is not a time zone"),
        (&["sshd", "--option", "mode=normal"], "take no options"),
    ] {
        let out = test(args, "");
        assert!(
            out.code == 2 && out.err.contains(message),
            "{args:?}: {}",
            out.err
        );
    }
}

#[test]
fn fail2ban_filters_are_run_as_they_are() {
    let host = Host::new();
    fs::create_dir(host.path("filter.d")).unwrap();
    let filter = "[Definition]\n\
        _daemon = shopd\n\
        prefregex = ^ \\S+ %(_daemon)s\\[\\d+\\]: <F-CONTENT>.+</F-CONTENT>$\n\
        failregex = ^refused <F-USER>(?!admin)\\S+</F-USER> from <HOST><suffix>$\n\
        ignoreregex = from 192\\.0\\.2\\.9\n\
        [Init]\n\
        suffix =\n";
    fs::write(host.path("filter.d/shop.conf"), filter).unwrap();
    let test = |args: &[&str], input: &str| -> Answer {
        let mut child = Command::new(WEIR)
            .args([
                "filter",
                "test",
                "shop",
                "--tz",
                "UTC",
                "--now",
                "1124024000",
            ])
            .args(args)
            .arg("--config")
            .arg(host.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap().into()
    };
    let head = "Aug 14 11:53:04 web shopd[7]: ";
    let lines = format!(
        "{head}refused eve from 2001:db8::7\n{head}refused admin from 192.0.2.7\n\
         {head}refused eve from 192.0.2.9\nAug 14 11:53:04 web other: x\n"
    );
    let out = test(&["--json"], &lines);
    let objects: Vec<Value> = (out.out.lines())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(objects.len(), 4, "{}", out.err);
    for (key, value) in [
        ("match", true.into()),
        ("host", "2001:db8::7".into()),
        ("ip6", "2001:db8::7".into()),
        ("user", "eve".into()),
        ("time", Value::from(1_124_020_384)),
        ("regex", 0.into()),
    ] {
        assert_eq!(objects[0][key], value, "{key}");
    }
    for (object, why) in objects[1..].iter().zip([
        "no failregex fits",
        "ignoreregex 1 fits",
        "prefregex does not fit",
    ]) {
        assert_eq!(object["match"], false);
        assert!(object["why"].as_str().unwrap().contains(why), "{object}");
    }
    let out = test(&[], &lines);
    assert_eq!(out.code, 0, "{}", out.err);
    for said in [
        "2005-08-14T11:53:04Z 2001:db8::7 user=\"eve\" (failregex 1)",
        "1: ignoreregex 1 fits",
        "1 of 4 lines are failures",
    ] {
        assert!(out.out.contains(said), "{said}: {}", out.out);
    }
    let suffix = ["--journal", "--json", "--option", "suffix= port \\d+"];
    let out = test(
        &suffix,
        " web shopd[7]: refused eve from 192.0.2.7 port 1\n",
    );
    assert!(
        out.out.contains("\"time\":1124024000"),
        "{}{}",
        out.out,
        out.err
    );
    let out = test(&["--option", "suffix=("], "");
    assert!(
        out.code == 2 && out.err.contains("shop.conf:4: missing )"),
        "{}",
        out.err
    );
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
