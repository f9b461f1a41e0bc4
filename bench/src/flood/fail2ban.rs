//! Debian's Fail2ban in the host's namespace, with directories of its own: the
//! thesis's experiment 1.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::Context;

use super::{
    server::LIMIT,
    test_net::{Process, TestNet},
    weir::log,
};

/// Programs without which the row cannot run.
const PROGRAMS: [&str; 2] = ["fail2ban-server", "nft"];
/// The table that its action makes.
const TABLE: [&str; 3] = ["table", "inet", "f2b-table"];

/// The program that is missing here, if any.
pub fn missing() -> Option<String> {
    weir_netlab::missing(&PROGRAMS)
}

/// A running Fail2ban.
pub struct Fail2ban {
    /// The server's process, whose CPU time is read.
    pub process: Process,
}

impl Fail2ban {
    /// Starts it and waits until its jail reads.
    pub fn start(net: &TestNet, dir: &Path, ban: Duration) -> anyhow::Result<Self> {
        let conf = dir.join("fail2ban");
        std::fs::create_dir_all(conf.join("filter.d"))?;
        let [socket, pid, db, said] = ["f2b.sock", "f2b.pid", "f2b.sqlite3", "f2b.log"]
            .map(|name| dir.join(name).display().to_string());
        std::fs::write(
            conf.join("fail2ban.conf"),
            format!(
                "[Definition]\nloglevel = INFO\nlogtarget = {said}\nsyslogsocket = auto\nallowipv6 = auto\n\
                 socket = {socket}\npidfile = {pid}\ndbfile = {db}\ndbpurgeage = 1d\ndbmaxmatches = 10\n\
                 [Thread]\nstacksize = 0\n"
            ),
        )?;
        // Its stock action, set and all; only that dropped packets are counted.
        std::os::unix::fs::symlink("/etc/fail2ban/action.d", conf.join("action.d"))?;
        std::fs::write(
            conf.join("filter.d/udpserver.conf"),
            "[Definition]\nfailregex = ^\\s*\\S+ udpserver\\[\\d+\\]: refused request from <ADDR>$\n",
        )?;
        std::fs::write(
            conf.join("jail.conf"),
            format!(
                "[DEFAULT]\nbackend = pyinotify\nusedns = no\nignoreself = false\n\
                 [udpserver]\nenabled = true\nfilter = udpserver\nlogpath = {log}\n\
                 maxretry = {LIMIT}\nfindtime = 600\nbantime = {ban}\n\
                 action = nftables-allports[name=udpserver, protocol=udp, blocktype=\"counter drop\"]\n",
                log = log(dir).display(),
                ban = ban.as_secs(),
            ),
        )?;
        let mut command = Command::new("fail2ban-server");
        command
            .args(["-xf", "-c"])
            .arg(&conf)
            .arg("start")
            .stdout(Stdio::null());
        let mut process = Process::start(net, command, &dir.join("f2b.stderr"))?;
        process.wait_for("Fail2ban's jail", || {
            let said = std::fs::read_to_string(&said).ok()?;
            said.contains("Jail 'udpserver' started").then_some(())
        })?;
        Ok(Self { process })
    }

    /// Packets that its rules have dropped; there are no rules before the
    /// first ban.
    pub fn dropped(net: &TestNet) -> anyhow::Result<u64> {
        let mut args = vec!["-j", "-t", "list"];
        args.extend(TABLE);
        let out = net.host().output("nft", &args)?;
        if !out.status.success() {
            return Ok(0);
        }
        let listed: serde_json::Value =
            serde_json::from_slice(&out.stdout).context("what nft lists")?;
        Ok(counters(&listed))
    }
}

/// The sum of all packet counters in what nft lists.
fn counters(value: &serde_json::Value) -> u64 {
    match value {
        serde_json::Value::Object(map) => map
            .iter()
            .map(
                |(key, value)| match (key.as_str(), value["packets"].as_u64()) {
                    ("counter", Some(packets)) => packets,
                    _ => counters(value),
                },
            )
            .sum(),
        serde_json::Value::Array(list) => list.iter().map(counters).sum(),
        _ => 0,
    }
}
