//! The daemon under flood: the shipped program with a real configuration.

use std::{path::Path, process::Command, time::Duration};

use anyhow::Context;
use serde_json::Value;
use weir_bpf::{Generation, pins, small_maps};
use weir_enforce::kernel;

use super::{
    scenario::{Transport, Use},
    server::{LIMIT, THREADS},
    test_net::{DEVICE, Process, TestNet},
};

/// A line of a log file is of whom its tag names.
const IDENTIFIERS: &str = "identifiers = [\"udpserver\"]\n";

/// Pins of a run; they go with the guard. Declare it before the process whose
/// pins they are.
pub struct Instance(pub String);

impl Instance {
    /// A name of our own.
    pub fn new() -> Self {
        Self(format!("bench-flood-{}", std::process::id()))
    }

    /// Packets by reason, counted where the packets are. The counters are the
    /// same for all generations of the tables.
    pub fn counters(&self) -> Option<DropCounters> {
        let root = Path::new(pins::DEFAULT_ROOT).join(pins::escape(&self.0));
        let generation = Generation::adopt(&root.join("current")).ok()?;
        Some(DropCounters(generation))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = kernel::detach(Path::new(pins::DEFAULT_ROOT), &self.0);
    }
}

/// Reads the packet path's counters.
pub struct DropCounters(Generation);

impl DropCounters {
    /// Packets dropped, and passed.
    pub fn read(&self) -> anyhow::Result<(u64, u64)> {
        let mut sums = (0, 0);
        for (reason, (packets, _)) in weir_core::Reason::ALL
            .into_iter()
            .zip(small_maps::read_counters(&self.0.counters)?)
        {
            if reason.is_drop() {
                sums.0 += packets;
            } else {
                sums.1 += packets;
            }
        }
        Ok(sums)
    }
}

/// What the daemon says of its jail.
#[derive(Debug, Clone, Copy, Default)]
pub struct Jail {
    /// Lines that the jail has read.
    pub lines: u64,
    /// Records of a ring that it knows it has lost.
    pub lost: u64,
    /// Bans that the jail has made.
    pub bans: u64,
}

/// A running daemon.
pub struct Weir {
    /// The daemon's process, whose CPU time is read.
    pub process: Process,
    binary: std::path::PathBuf,
    config: std::path::PathBuf,
}

impl Weir {
    /// Starts it and waits until it enforces. The ledger has room for all
    /// clients, as the thesis's table had: they come in turn, and with one
    /// subject more than it counts the least recent of them is the next.
    pub fn start(
        net: &TestNet,
        binary: &Path,
        dir: &Path,
        ring: &Path,
        instance: &Instance,
        transport: Transport,
        ban: Duration,
    ) -> anyhow::Result<Self> {
        let config = dir.join("weir.toml");
        let (source, identifiers) = match transport {
            Transport::File => (
                format!("source = \"file\"\npaths = [{:?}]", log(dir)),
                IDENTIFIERS,
            ),
            Transport::Ring(way) => (
                format!(
                    "source = \"ring\"\nring = {ring:?}\nworkers = {}",
                    if way == Use::Stealing { THREADS } else { 1 }
                ),
                if way == Use::Message { "" } else { IDENTIFIERS },
            ),
        };
        std::fs::write(
            &config,
            format!(
                "interfaces = [{DEVICE:?}]\nbackend = \"xdp\"\ninstance = {instance:?}\n\
                 state_dir = {state:?}\nsocket = {socket:?}\n\
                 [filter.udpserver]\n{identifiers}\
                 patterns = [\"refused request from <addr>\"]\n\
                 [jail.udpserver]\n{source}\n\
                 max_retry = {LIMIT}\nfind_time = \"10m\"\nmax_tracked = 1000000\nban_time = \"{ban}s\"\n",
                instance = instance.0,
                state = dir.join("state"),
                socket = dir.join("weir.sock"),
                ban = ban.as_secs(),
            ),
        )?;
        let mut command = Command::new(binary);
        command.arg("--config").arg(&config).arg("daemon");
        let mut weir = Self {
            process: Process::start(net, command, &dir.join("weir.stderr"))?,
            binary: binary.to_owned(),
            config,
        };
        let (binary, config) = (weir.binary.clone(), weir.config.clone());
        weir.process.wait_for("the daemon", || {
            let status = status(&binary, &config).ok()?;
            let attached = status["attachments"][0]["hook"].as_str()?;
            (attached == "xdp").then_some(())
        })?;
        Ok(weir)
    }

    /// The numbers of its jail, and what is wrong now.
    pub fn jail(&self) -> anyhow::Result<(Jail, Vec<String>)> {
        let status = status(&self.binary, &self.config)?;
        let number = |key: &str| {
            status["jails"][0][key]
                .as_u64()
                .with_context(|| format!("{key} in the daemon's status"))
        };
        let jail = Jail {
            lines: number("lines")?,
            // No ring, no loss.
            lost: status["rings"][0]["lost"].as_u64().unwrap_or(0),
            bans: number("bans")?,
        };
        let alerts = status["alerts"].as_array().into_iter().flatten();
        let alerts = alerts
            .filter_map(|alert| alert["message"].as_str().map(str::to_owned))
            .collect();
        Ok((jail, alerts))
    }
}

/// The log between server and filter.
pub fn log(dir: &Path) -> std::path::PathBuf {
    dir.join("udpserver.log")
}

fn status(binary: &Path, config: &Path) -> anyhow::Result<Value> {
    let out = Command::new(binary)
        .arg("--config")
        .arg(config)
        .args(["status", "--json"])
        .output()?;
    anyhow::ensure!(
        out.status.success(),
        "weir status: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(serde_json::from_slice(&out.stdout)?)
}
