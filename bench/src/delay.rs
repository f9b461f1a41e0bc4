//! From the write of a log line to the ban in the kernel's table: the shipped
//! daemon with a file source, watched through its pinned table.

use std::{
    io::Write,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use weir_core::Prefix;
use weir_kernel::{Generation, Key, pins};
use weir_lab::{Net, VethOpts};

use crate::report::{Report, percentile};

const LINES: u32 = 1000;

/// The rows about the delay.
pub fn run(report: &mut Report, weir: &Path) -> anyhow::Result<()> {
    ensure!(
        weir.exists(),
        "{} is missing: cargo build --release, or pass --weir",
        weir.display()
    );
    let dir = tempfile::tempdir()?;
    let net = Net::new()?;
    let (host, other) = (net.namespace("host")?, net.namespace("net")?);
    net.veth(
        &host,
        "h0",
        &other,
        "n0",
        VethOpts::new(&["10.9.1.1/24"], &["10.9.1.2/24"])?,
    )?;
    let log = dir.path().join("auth.log");
    std::fs::write(&log, "")?;
    let instance = format!("bench-delay-{}", std::process::id());
    let config = dir.path().join("weir.toml");
    std::fs::write(
        &config,
        format!(
            "interfaces = [\"h0\"]\ninstance = \"{instance}\"\nstate_dir = {state:?}\nsocket = {socket:?}\n\
             [jail.sshd]\nsource = \"file\"\npaths = [{log:?}]\nmax_retry = 1\n",
            state = dir.path().join("state"),
            socket = dir.path().join("weir.sock"),
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
    let table = weir_lab::wait_for("the daemon's table", Duration::from_secs(20), || {
        let ready = dir.path().join("weir.sock").exists();
        Ok(ready
            .then(|| Generation::adopt(&root.join("current")).ok())
            .flatten())
    });
    let idle = rss_anon(daemon.pid());
    let outcome = table
        .map_err(Into::into)
        .and_then(|generation| measure(&generation, &log));
    drop(daemon);
    let _ = weir_enforce::kernel::detach(Path::new(pins::DEFAULT_ROOT), &instance);
    let millis = outcome?;
    report.add("memory of the daemon idle, RssAnon", "MiB", &[idle?]);
    report.add(
        "delay log line to ban, file, p50",
        "ms",
        &[percentile(&millis, 0.5)],
    );
    report.add(
        "delay log line to ban, file, p99",
        "ms",
        &[percentile(&millis, 0.99)],
    );
    report.add(
        "delay log line to ban, file, max",
        "ms",
        &[percentile(&millis, 1.0)],
    );
    Ok(())
}

/// Private memory of a process, MiB.
fn rss_anon(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:")?.strip_suffix("kB"))
        .context("RssAnon in the process status")?;
    Ok(kib.trim().parse::<f64>()? / 1024.0)
}

/// Milliseconds per line, one address each. The watcher spins on the table:
/// one of the two cores is its.
fn measure(generation: &Generation, log: &Path) -> anyhow::Result<Vec<f64>> {
    let mut file = std::fs::OpenOptions::new().append(true).open(log)?;
    let mut millis = Vec::new();
    for n in 0..=LINES {
        let addr = IpAddr::V4(Ipv4Addr::from(0xc612_0000 + n)); // 198.18.0.0/15
        let key = Key::of(Prefix::host(addr)).context("a key")?;
        let start = Instant::now();
        write_failure(&mut file, addr, n)?;
        let mut again = Instant::now();
        while generation.table.get(key).is_empty() {
            ensure!(
                start.elapsed() < Duration::from_secs(5),
                "{addr} was not banned in 5 s"
            );
            // The first line finds out when the daemon has opened the file.
            if n == 0 && again.elapsed() > Duration::from_millis(100) {
                write_failure(&mut file, addr, n)?;
                again = Instant::now();
            }
            std::hint::spin_loop();
        }
        if n == 0 {
            continue;
        }
        millis.push(start.elapsed().as_secs_f64() * 1e3);
        // The daemon goes back to sleep: each line pays for waking it.
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(millis)
}

/// One failed login as OpenSSH logs it, with an ISO stamp.
fn write_failure(file: &mut std::fs::File, addr: IpAddr, n: u32) -> std::io::Result<()> {
    let stamp = jiff::Timestamp::now();
    let (pid, port) = (1000 + n, 2000 + n);
    let line = format!(
        "{stamp} host sshd[{pid}]: Failed password for root from {addr} port {port} ssh2\n"
    );
    file.write_all(line.as_bytes())
}
