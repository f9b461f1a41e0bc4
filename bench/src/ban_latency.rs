//! From the write of a log line to the ban in the kernel's table: the shipped
//! daemon with a file or a ring as its source, watched through its pinned table.

use std::{
    io::Write,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use weir_bpf::{Generation, Key, pins};
use weir_core::Prefix;
use weir_netlab::{Net, VethOpts};
use weir_ring::Writer;

use crate::report::{Report, percentile};

const LINES: u32 = 1000;

/// The rows about the delay from a log file, in milliseconds.
pub fn file(report: &mut Report, weir: &Path) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let log = dir.path().join("auth.log");
    std::fs::write(&log, "")?;
    let mut file = std::fs::OpenOptions::new().append(true).open(&log)?;
    let source = format!("source = \"file\"\npaths = [{log:?}]");
    let (idle, delays) = with_daemon(weir, dir.path(), &source, |line| {
        Ok(writeln!(file, "{line}")?)
    })?;
    report.add("memory of the daemon idle, RssAnon", "MiB", &[idle]);
    let millis: Vec<_> = delays.iter().map(|seconds| seconds * 1e3).collect();
    add(report, "delay log line to ban, file", "ms", &millis);
    Ok(())
}

/// The rows about the delay from a shared-memory ring, in microseconds.
pub fn ring(report: &mut Report, weir: &Path) -> anyhow::Result<()> {
    let dir = tempfile::Builder::new()
        .prefix("weir-bench-delay-")
        .tempdir_in("/dev/shm")
        .context("a directory in /dev/shm")?;
    let ring = dir.path().join("sshd");
    let mut writer = Writer::create(ring.join("thread-0"), &weir_ring::Options::new())?;
    let source = format!("source = \"ring\"\nring = {ring:?}\nworkers = 1");
    let (_, delays) = with_daemon(weir, dir.path(), &source, |line| {
        Ok(writer.write(line.as_bytes())?)
    })?;
    let micros: Vec<_> = delays.iter().map(|seconds| seconds * 1e6).collect();
    add(report, "delay record to ban, ring", "µs", &micros);
    Ok(())
}

fn add(report: &mut Report, name: &str, unit: &'static str, delays: &[f64]) {
    for (word, share) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        let value = percentile(delays, share);
        report.add(&format!("{name}, {word}"), unit, &[value]);
    }
}

/// Runs the daemon on a source with a jail of one failure; its idle memory in
/// MiB, and the seconds from the write of each line to its ban.
fn with_daemon(
    weir: &Path,
    dir: &Path,
    source: &str,
    write: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<(f64, Vec<f64>)> {
    ensure!(
        weir.exists(),
        "{} is missing: cargo build --release, or pass --weir",
        weir.display()
    );
    let net = Net::new()?;
    let (host, other) = (net.namespace("host")?, net.namespace("net")?);
    net.veth(
        &host,
        "h0",
        &other,
        "n0",
        VethOpts::new(&["10.9.1.1/24"], &["10.9.1.2/24"])?,
    )?;
    let instance = format!("bench-delay-{}", std::process::id());
    let config = dir.join("weir.toml");
    std::fs::write(
        &config,
        format!(
            "interfaces = [\"h0\"]\ninstance = \"{instance}\"\nstate_dir = {state:?}\nsocket = {socket:?}\n\
             [jail.sshd]\n{source}\nmax_retry = 1\n",
            state = dir.join("state"),
            socket = dir.join("weir.sock"),
        ),
    )?;
    let mut command = Command::new(weir);
    command
        .arg("--config")
        .arg(&config)
        .arg("daemon")
        .stderr(Stdio::null());
    let daemon = host.spawn(command)?;
    let root = Path::new(pins::DEFAULT_ROOT).join(pins::escape(&instance));
    let table = weir_netlab::wait_for("the daemon's table", Duration::from_secs(20), || {
        let ready = dir.join("weir.sock").exists();
        Ok(ready
            .then(|| Generation::adopt(&root.join("current")).ok())
            .flatten())
    });
    let idle = rss_anon(daemon.pid());
    let outcome = table
        .map_err(Into::into)
        .and_then(|generation| measure(&generation, write));
    drop(daemon);
    let _ = weir_enforce::kernel::detach(Path::new(pins::DEFAULT_ROOT), &instance);
    Ok((idle?, outcome?))
}

/// Private memory of a process, MiB.
pub fn rss_anon(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:")?.strip_suffix("kB"))
        .context("RssAnon in the process status")?;
    Ok(kib.trim().parse::<f64>()? / 1024.0)
}

/// Seconds per line, one address each. The watcher spins on the table, but gives
/// way at each look: on two cores the daemon's threads may need its one.
fn measure(
    generation: &Generation,
    mut write: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f64>> {
    let mut delays = Vec::new();
    for n in 0..=LINES {
        let addr = IpAddr::V4(Ipv4Addr::from(0xc612_0000 + n)); // 198.18.0.0/15
        let key = Key::of(Prefix::host(addr)).context("a key")?;
        let line = failure(addr, n);
        let start = Instant::now();
        write(&line)?;
        let mut again = Instant::now();
        while generation.table.get(key).is_empty() {
            ensure!(
                start.elapsed() < Duration::from_secs(5),
                "{addr} was not banned in 5 s"
            );
            // The first line finds out when the daemon has opened the source.
            if n == 0 && again.elapsed() > Duration::from_millis(100) {
                write(&line)?;
                again = Instant::now();
            }
            std::thread::yield_now();
        }
        if n == 0 {
            continue;
        }
        delays.push(start.elapsed().as_secs_f64());
        // The daemon goes back to sleep: each line pays for waking it.
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(delays)
}

/// One failed login as OpenSSH logs it, with an ISO stamp.
fn failure(addr: IpAddr, n: u32) -> String {
    let stamp = jiff::Timestamp::now();
    let (pid, port) = (1000 + n, 2000 + n);
    format!("{stamp} host sshd[{pid}]: Failed password for root from {addr} port {port} ssh2")
}
