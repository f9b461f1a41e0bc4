//! OpenSnitch as Debian packages it, for one turn: its daemon in the client's namespace, with a
//! configuration of its own, no window to ask anybody, and a rule that allows the client. That
//! it judges by program is looked at each time: a copy of the client, which another rule
//! denies, must not get through.

use std::{
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use serde_json::json;
use weir_netlab::{Child, FakeHost, Namespace, net::temp_dir, wait_for};

const DAEMON: &str = "opensnitchd";
/// Programs without which OpenSnitch cannot be measured.
const PROGRAMS: [&str; 5] = [DAEMON, "iptables", "ip6tables", "nft", "ss"];
/// Programs that make OpenSnitch's rules, each in tables of this family.
const IPTABLES: [(&str, &str); 2] = [("iptables", "ip"), ("ip6tables", "ip6")];
/// Where the daemon looks for its configuration; it takes no other place.
const CONFIG: &str = "/etc/opensnitchd";
/// OpenSnitch's queue; it takes the next one, too.
const QUEUE: &str = "19";
/// How long OpenSnitch may take to start, and an allowed program to get through.
const PATIENCE: Duration = Duration::from_secs(5);
/// How much longer than an allowed program a denied one is watched.
const GRACE: Duration = Duration::from_millis(200);
/// Loads of both programs: a few connections, and a few questions.
const LOADS: [&str; 2] = ["connect", "query"];

/// OpenSnitch's configuration, and the program that it is to deny.
pub struct OpenSnitch {
    dir: tempfile::TempDir,
    allowed: PathBuf,
    denied: PathBuf,
}

impl OpenSnitch {
    /// Finds out whether it judges here, between this namespace and each of the addresses.
    /// An error is a reason to leave its rows out.
    pub fn probe(client: &Namespace, to: &[&str]) -> anyhow::Result<Self> {
        if let Some(why) = weir_netlab::missing(&PROGRAMS) {
            bail!("{why} (Debian's package opensnitch)");
        }
        ensure!(Path::new(CONFIG).is_dir(), "there is no {CONFIG}");
        has_queue(client)?;
        let dir = temp_dir()?;
        let denied = dir.path().join("denied");
        let allowed = std::env::current_exe()?;
        fs::copy(&allowed, &denied)?;
        let opensnitch = Self {
            dir,
            allowed,
            denied,
        };
        opensnitch.configure()?;
        for to in to {
            // A check of the check: what is denied later gets through when nothing is in its
            // way.
            gets_through(client, &opensnitch.denied, to)?;
            opensnitch.start(client, to)?;
        }
        Ok(opensnitch)
    }

    fn configure(&self) -> anyhow::Result<()> {
        let file = |name: &str| self.dir.path().join(name);
        fs::create_dir(file("rules"))?;
        let config = json!({
            "Server": {
                "Address": format!("unix://{}", file("window.sock").display()),
                "LogFile": file("log"),
            },
            // As packaged, but for a line in the log when it is ready, and the monitor method:
            // the package is without the BPF program of `ebpf`, and goes on with this one then.
            "DefaultAction": "allow",
            "DefaultDuration": "once",
            "InterceptUnknown": false,
            "ProcMonitorMethod": "proc",
            "LogLevel": 1,
            "Firewall": "iptables",
            "Stats": { "MaxEvents": 150, "MaxStats": 25 },
        });
        fs::write(file("default-config.json"), config.to_string())?;
        fs::write(file("system-fw.json"), r#"{"SystemRules": []}"#)?;
        for (action, program) in [("allow", &self.allowed), ("deny", &self.denied)] {
            let rule = json!({
                "created": "2026-01-01T00:00:00Z",
                "updated": "2026-01-01T00:00:00Z",
                "name": action,
                "enabled": true,
                "precedence": false,
                "action": action,
                "duration": "always",
                "operator": {
                    "type": "simple",
                    "operand": "process.path",
                    "sensitive": true,
                    "data": program,
                    "list": [],
                },
            });
            fs::write(file(&format!("rules/{action}.json")), rule.to_string())?;
        }
        Ok(())
    }

    /// Starts it, and waits until it judges what goes to this address.
    pub fn start(&self, client: &Namespace, to: &str) -> anyhow::Result<Judging> {
        end_connections(client)?;
        let file = |name: &str| self.dir.path().join(name);
        let said = File::create(file("said"))?;
        let mut command = Command::new(DAEMON);
        command
            .arg("-rules-path")
            .arg(file("rules"))
            .args(["-queue-num", QUEUE])
            .env("PATH", with_sbin())
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said);
        let _ = fs::remove_file(file("log"));
        let host = FakeHost::default().instead_of(CONFIG, self.dir.path());
        let mut judging = Judging {
            client: client.clone(),
            program: client.spawn_on(command, &host)?,
            said: file("said"),
            before: 0,
        };
        self.wait_until_ready(&mut judging)
            .and_then(|()| self.check(&mut judging, to))
            .with_context(|| format!("{DAEMON} says: {}", self.said()))?;
        // Those of the check.
        end_connections(client)?;
        Ok(judging)
    }

    /// Waits until it takes packets from its queue; its rules are there before.
    fn wait_until_ready(&self, judging: &mut Judging) -> anyhow::Result<()> {
        let mut ended = None;
        wait_for("OpenSnitch at its queue", PATIENCE, || {
            ended = judging.program.wait(Duration::ZERO)?;
            let is_ready = self.written().contains("Running on netfilter queue");
            Ok((is_ready || ended.is_some()).then_some(()))
        })?;
        match ended {
            Some(status) => bail!("it ends with {status}"),
            None => Ok(()),
        }
    }

    /// Checks that it judges; once more, if packets went through unjudged meanwhile.
    fn check(&self, judging: &mut Judging, to: &str) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let checked = self.denies(&judging.client, to);
            let passed = judging.passed();
            let have_passed = passed > judging.before;
            judging.before = passed;
            match checked {
                Err(_) if have_passed && Instant::now() < until => {}
                checked => return checked,
            }
        }
    }

    /// The client gets through, and its copy does not.
    fn denies(&self, client: &Namespace, to: &str) -> anyhow::Result<()> {
        let mut denied = Vec::new();
        for load in LOADS {
            denied.push((load, spawn(client, &self.denied, load, to)?));
        }
        gets_through(client, &self.allowed, to)?;
        for (load, program) in &mut denied {
            let ended = program.wait(GRACE)?;
            ensure!(
                !ended.is_some_and(|status| status.success()),
                "a program that a rule denies gets through to {to} ({load})"
            );
        }
        Ok(())
    }

    /// The log: what it wrote before it read its configuration, and after.
    fn written(&self) -> String {
        let read = |name| fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        read("said") + &read("log")
    }

    /// The last of what it wrote, on one line and without its colours.
    fn said(&self) -> String {
        let text = self.written();
        let lines: Vec<_> = text.lines().rev().take(4).collect();
        let lines: Vec<_> = lines.into_iter().rev().map(without_colours).collect();
        lines.join("; ")
    }
}

/// A running OpenSnitch; with this it ends, and so do its rules.
pub struct Judging {
    client: Namespace,
    program: Child,
    said: PathBuf,
    /// What [`Self::passed`] was when the turn began.
    before: usize,
}

impl Judging {
    /// How many packets went through unjudged: it lets those pass of which nobody there takes
    /// notice within a millisecond.
    fn passed(&self) -> usize {
        let said = fs::read_to_string(&self.said).unwrap_or_default();
        said.matches("Timed out while sending packet").count()
    }
}

impl Drop for Judging {
    fn drop(&mut self) {
        match self.passed().saturating_sub(self.before) {
            0 => {}
            passed => eprintln!("opensnitch: {passed} packets went through unjudged in a turn"),
        }
        // Asked to end, it would take five seconds.
        let ended = self.program.signal(9);
        let ended = ended.and_then(|()| self.program.wait(PATIENCE));
        if let Err(error) = ended {
            eprintln!("{error}");
        }
        if let Err(error) = forget_rules(&self.client) {
            eprintln!("{error:#}");
        }
    }
}

/// Has the kernel what OpenSnitch's rules need? They are tried, and removed.
fn has_queue(client: &Namespace) -> anyhow::Result<()> {
    let queue = ["-j", "NFQUEUE", "--queue-num", QUEUE, "--queue-bypass"];
    let new = ["-m", "conntrack", "--ctstate", "NEW,RELATED"];
    let rule = [&["-t", "mangle", "-A", "OUTPUT"], &new[..], &queue].concat();
    let tried = IPTABLES
        .iter()
        .try_for_each(|(program, _)| client.run(program, &rule).map(drop));
    let forgotten = forget_rules(client);
    tried.context("this kernel lacks what its rules need, NFQUEUE or conntrack for iptables")?;
    forgotten
}

/// Removes OpenSnitch's rules, and the tables in which they were, whichever iptables made them.
fn forget_rules(client: &Namespace) -> anyhow::Result<()> {
    for (program, family) in IPTABLES {
        for (table, chain) in [("mangle", "OUTPUT"), ("filter", "INPUT")] {
            client.run(program, &["-t", table, "-F", chain])?;
            let table = format!("table {family} {table}");
            client.run("nft", &[format!("add {table}; delete {table}")])?;
        }
    }
    Ok(())
}

/// Ends the namespace's connections, which are all of programs that have ended. OpenSnitch would
/// take what they still send for new ones, and for each new one it has the kernel go through all
/// that there are, those that are over (TIME_WAIT) included.
fn end_connections(client: &Namespace) -> anyhow::Result<()> {
    let all = |option| client.run("ss", &[option, "state", "all"]);
    // The last of them may be over only now.
    let none_left = wait_for("connections to be gone", PATIENCE, || {
        all("-HtnK")?;
        Ok(all("-Htn")?.stdout.is_empty().then_some(()))
    });
    none_left.context(
        "this kernel lacks INET_DIAG_DESTROY: connections of before stay, for each of which it \
         takes longer",
    )
}

/// `program`, a client, with so little to do that it ends at once.
fn spawn(client: &Namespace, program: &Path, load: &str, to: &str) -> anyhow::Result<Child> {
    let mut command = Command::new(program);
    command
        .args(["identity-client", "--load", load, "--to", to])
        .args(["--millis", "1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Ok(client.spawn(command)?)
}

fn gets_through(client: &Namespace, program: &Path, to: &str) -> anyhow::Result<()> {
    for load in LOADS {
        let what = format!("{load} to {to} of a program that nothing denies");
        match spawn(client, program, load, to)?.wait(PATIENCE)? {
            Some(status) => ensure!(status.success(), "{what} ends with {status}"),
            None => bail!("{what} takes more than {PATIENCE:?}"),
        }
    }
    Ok(())
}

/// The path with root's programs: OpenSnitch runs `iptables` by name.
fn with_sbin() -> OsString {
    let mut path = OsString::from("/usr/sbin:/sbin:");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}

/// A line of its log, which is coloured.
fn without_colours(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.split_once('m').map_or("", |(_, rest)| rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_log_lose_their_colours() {
        let line = "\x1b[2m[2026-11-27 20:18:29]\x1b[0m \x1b[97m\x1b[104m IMP \x1b[0m Starting";
        assert_eq!(
            without_colours(line),
            "[2026-11-27 20:18:29]  IMP  Starting"
        );
        assert_eq!(without_colours("plain \x1b"), "plain ");
    }
}
