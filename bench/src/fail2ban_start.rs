//! A start of the daemon with 99 jails of Fail2ban's package and 100,000 bans of an earlier
//! run: from exec to the message that systemd gets, with the tables of that run and, as after a
//! boot, without them; and its memory then.

use std::{
    fs,
    io::Write as _,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use jiff::{Timestamp, tz::TimeZone};
use serde_json::Value;
use weir_bpf::pins;
use weir_netlab::{Child, Namespace, Net, VethOpts};

use crate::{ban_latency::rss_anon, report::Report};

/// The directory where the package installs its configuration.
const STOCK: &str = "/etc/fail2ban";
const JAILS: usize = 99;
const BANS: u32 = 100_000;
/// For a start, and for that many bans.
const PATIENCE: Duration = Duration::from_secs(60);

/// Adds the rows, if the package is there.
pub fn run(report: &mut Report, weir: &Path, rounds: usize) -> anyhow::Result<()> {
    if !Path::new(STOCK).join("jail.conf").exists() {
        eprintln!("skipped: fail2ban package: there is no {STOCK}/jail.conf");
        return Ok(());
    }
    let net = Net::new()?;
    let (namespace, other) = (net.namespace("host")?, net.namespace("net")?);
    net.veth(
        &namespace,
        "h0",
        &other,
        "n0",
        VethOpts::new(&["10.9.1.1/24"], &["10.9.1.2/24"])?,
    )?;
    let dir = tempfile::tempdir()?;
    let host = Host::new(weir, dir.path(), &namespace)?;
    host.ban_all()?;
    let (mut seconds, mut memory) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for _ in 0..rounds {
        for (n, from_pins) in [true, false].into_iter().enumerate() {
            if !from_pins {
                host.detach()?;
            }
            let (daemon, took) = host.start()?;
            host.is_complete()?;
            seconds[n].push(took.as_secs_f64());
            memory[n].push(rss_anon(daemon.pid())?);
            // By SIGKILL.
            drop(daemon);
        }
    }
    let what = format!("{JAILS} jails and {},000 bans", BANS / 1000);
    for (n, way) in ["pins", "the database"].into_iter().enumerate() {
        let row = format!("start with {what}, from {way}");
        report.add(&row, "s", &seconds[n]);
        let row = format!("memory of {what}, from {way}, RssAnon");
        report.add(&row, "MiB", &memory[n]);
    }
    Ok(())
}

/// Where the daemon runs again and again.
struct Host<'a> {
    weir: &'a Path,
    dir: &'a Path,
    namespace: &'a Namespace,
    instance: String,
}

impl<'a> Host<'a> {
    fn new(weir: &'a Path, dir: &'a Path, namespace: &'a Namespace) -> anyhow::Result<Self> {
        ensure!(
            weir.exists(),
            "{} is missing: cargo build --release, or pass --weir",
            weir.display()
        );
        let instance = format!("bench-start-{}", std::process::id());
        let fail2ban = dir.join("fail2ban");
        copy_tree(Path::new(STOCK), &fail2ban)?;
        fs::create_dir(dir.join("log"))?;
        fs::write(
            dir.join("weir.toml"),
            format!(
                "interfaces = [\"h0\"]\ninstance = {instance:?}\nstate_dir = {:?}\nsocket = {:?}\n\
                 [fail2ban]\npath = {fail2ban:?}\n",
                dir.join("state"),
                dir.join("weir.sock"),
            ),
        )?;
        let host = Self {
            weir,
            dir,
            namespace,
            instance,
        };
        // In place of those that there are not, or that weir refuses, others of sshd's filter.
        let mut stock = stock_jails()?;
        stock.truncate(JAILS);
        let missing = JAILS - stock.len();
        host.enable(&stock, missing)?;
        let (daemon, _) = host.start()?;
        let refused = JAILS - host.status()?.jails;
        drop(daemon);
        host.enable(&stock, missing + refused)?;
        Ok(host)
    }

    fn log(&self, jail: &str) -> PathBuf {
        self.dir.join("log").join(format!("{jail}.log"))
    }

    /// Enables all jails, each with a log of its own; sshd's bans at the first failure.
    fn enable(&self, stock: &[String], more: usize) -> anyhow::Result<()> {
        let added: Vec<_> = (0..more).map(|n| format!("more-{n}")).collect();
        let mut local = String::new();
        for jail in stock.iter().chain(&added) {
            let log = self.log(jail);
            fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(&log)?;
            let log = log.display();
            local += &format!("[{jail}]\nenabled = true\nbackend = auto\nlogpath = {log}\n");
            match jail.as_str() {
                "sshd" => local += "maxretry = 1\nbantime = 1d\n",
                name if added.iter().any(|more| more == name) => local += "filter = sshd\n",
                _ => {}
            }
        }
        let file = self.dir.join("fail2ban/jail.d/zz-bench.local");
        Ok(fs::write(file, local)?)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.weir);
        command.arg("--config").arg(self.dir.join("weir.toml"));
        command
    }

    /// Until it is ready.
    fn start(&self) -> anyhow::Result<(Child, Duration)> {
        let path = self.dir.join("notify");
        let _ = fs::remove_file(&path);
        let notify = UnixDatagram::bind(&path)?;
        notify.set_read_timeout(Some(PATIENCE))?;
        let mut command = self.command();
        command
            .arg("daemon")
            .env("NOTIFY_SOCKET", &path)
            .stderr(Stdio::null());
        let begin = Instant::now();
        let daemon = self.namespace.spawn(command)?;
        let mut message = [0; 1024];
        loop {
            let length = notify.recv(&mut message).context("weir is not ready")?;
            let text = String::from_utf8_lossy(&message[..length]);
            if text.lines().any(|line| line == "READY=1") {
                return Ok((daemon, begin.elapsed()));
            }
        }
    }

    fn status(&self) -> anyhow::Result<Status> {
        // 1: it has something to complain of, such as a jail that is refused.
        let out = self.command().args(["status", "--json"]).output()?;
        let all: Value = serde_json::from_slice(&out.stdout).context("weir status --json")?;
        Ok(Status {
            jails: all["jails"].as_array().context("jails")?.len(),
            bans: all["usage"]["bans"].as_u64().context("bans")?,
        })
    }

    /// All jails and bans are there.
    fn is_complete(&self) -> anyhow::Result<()> {
        let Status { jails, bans } = self.status()?;
        ensure!(jails == JAILS, "{jails} of {JAILS} jails run");
        ensure!(bans == u64::from(BANS), "{bans} of {BANS} bans are there");
        Ok(())
    }

    /// Has sshd's jail make all bans from its log, and ends the daemon.
    fn ban_all(&self) -> anyhow::Result<()> {
        let (mut daemon, _) = self.start()?;
        let now = Timestamp::now().to_zoned(TimeZone::system());
        let stamp = now.strftime("%b %d %H:%M:%S").to_string();
        let lines: String = (0..BANS)
            .map(|n| {
                let addr = std::net::Ipv4Addr::from(0x1000_0000 + n * 97);
                let (pid, port) = (1000 + n, 1024 + n % 60_000);
                format!("{stamp} host sshd[{pid}]: Failed password for invalid user u{n} from {addr} port {port} ssh2\n")
            })
            .collect();
        let mut log = fs::OpenOptions::new().append(true).open(self.log("sshd"))?;
        log.write_all(lines.as_bytes())?;
        weir_netlab::wait_for("the bans", PATIENCE, || {
            let bans = self.status().map_or(0, |status| status.bans);
            Ok((bans >= u64::from(BANS)).then_some(()))
        })?;
        daemon.signal(signal_hook::consts::SIGTERM)?;
        let ended = daemon.wait(PATIENCE)?;
        ensure!(ended.is_some(), "the daemon has not ended");
        Ok(())
    }

    fn detach(&self) -> anyhow::Result<()> {
        Ok(
            weir_enforce::kernel::detach(Path::new(pins::DEFAULT_ROOT), &self.instance)
                .map(drop)?,
        )
    }
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        let _ = self.detach();
    }
}

/// What the daemon says of itself.
struct Status {
    jails: usize,
    bans: u64,
}

/// The names of the jails in jail.conf.
fn stock_jails() -> anyhow::Result<Vec<String>> {
    let text = fs::read_to_string(Path::new(STOCK).join("jail.conf"))?;
    let sections = text
        .lines()
        .filter_map(|line| line.strip_prefix('[')?.split_once(']'));
    let names = sections.map(|(name, _)| name.to_owned());
    Ok(names
        .filter(|name| !matches!(name.as_str(), "INCLUDES" | "DEFAULT"))
        .collect())
}

fn copy_tree(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match fs::metadata(entry.path())?.is_dir() {
            true => copy_tree(&entry.path(), &to)?,
            false => _ = fs::copy(entry.path(), to)?,
        }
    }
    Ok(())
}
