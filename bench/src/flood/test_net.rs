//! The wire of one run: the clients' namespace, the host's, and the thread
//! that sends requests at a given rate.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::Context;
use weir_bpf::{
    attachment::{Hook, Link},
    clients::{Clients, Crowd, Families},
    device::set_gro,
};
use weir_netlab::{Child, Namespace, Net, Side, Veth, VethOpts};

use super::{CAUGHT, scenario::Rate};

/// The server's port.
pub const PORT: u16 = 12345;
/// The device that the host protects.
pub const DEVICE: &str = "d0";

/// Requests leave in bursts this far apart: what a call of the generator costs
/// is small against it, and no socket buffer overflows.
const BURST: Duration = Duration::from_millis(4);
/// A sender that was held up for longer forgives the rest of its debt: the
/// rate that is reported is the one that was sent.
const CATCH_UP: Duration = Duration::from_millis(40);
/// The length of a call when sending without a pause.
const SLICE: Duration = Duration::from_millis(10);

/// Two namespaces and a veth pair, with the programs on the clients' side.
pub struct TestNet {
    clients: Clients,
    host: Namespace,
    outside: Namespace,
    _answers: Link,
    _idle: Link,
    _net: Net,
}

impl TestNet {
    /// Builds it for this many clients.
    pub fn new(families: Families, unwanted: u32, wanted: u32) -> anyhow::Result<Self> {
        let net = Net::new()?;
        let (outside, host) = (net.namespace("net")?, net.namespace("host")?);
        let opts = VethOpts::new(
            &["10.9.0.1/24", "fd00:9::1/64"],
            &["10.9.0.2/24", "fd00:9::2/64"],
        )?;
        let veth = net.veth(&outside, "g0", &host, DEVICE, opts)?;
        let idle = net.veth(
            &outside,
            "idle0",
            &outside,
            "idle1",
            VethOpts::new(&[], &[])?,
        )?;
        host.ip(&["10.9.0.1", "fd00:9::1"]
            .map(|via| format!("route add default via {via} dev {DEVICE}")))?;
        // Redirected frames reach a device that has NAPI; the filter's own XDP
        // program brings it, Fail2ban has none.
        host.enter(|| set_gro(DEVICE, true))?
            .context("switch GRO on")?;
        let clients = Clients::load(Crowd {
            families,
            unwanted,
            wanted,
            dest: (
                Ipv4Addr::new(10, 9, 0, 2),
                Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 2),
            ),
            port: PORT,
            macs: [veth.mac(Side::B), veth.mac(Side::A)],
            ifindex: outside.ifindex("g0")?,
        })?;
        let attach = |veth: &Veth, program| -> anyhow::Result<Link> {
            let index = outside.ifindex(veth.dev(Side::A))?;
            let link = outside.enter(|| Link::attach(program, index, Hook::Xdp))?;
            link.context("attach the clients' programs")
        };
        Ok(Self {
            _answers: attach(&veth, clients.answer())?,
            _idle: attach(&idle, clients.request())?,
            clients,
            host,
            outside,
            _net: net,
        })
    }

    /// The namespace in which server and filter run.
    pub fn host(&self) -> &Namespace {
        &self.host
    }

    /// The clients, with their counts of requests and answers.
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Sends until `stop`; the thread and the host's softirq keep to core 0.
    pub fn send(&self, unwanted: Rate, wanted: u32, stop: &AtomicBool) -> anyhow::Result<()> {
        self.outside.enter(|| {
            let mut cpus = rustix::thread::CpuSet::new();
            cpus.set(0);
            rustix::thread::sched_setaffinity(None, &cpus)?;
            match unwanted {
                Rate::PerSecond(rate) => self.pace(rate, wanted, stop),
                Rate::Highest => self.rush(wanted, stop),
            }
        })?
    }

    fn pace(&self, unwanted: u32, wanted: u32, stop: &AtomicBool) -> anyhow::Result<()> {
        let rate = f64::from(unwanted) + f64::from(wanted);
        let share = f64::from(wanted) / rate;
        let mut paid = Instant::now();
        let mut next = paid;
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            paid = paid.max(now.checked_sub(CATCH_UP).unwrap_or(now));
            let due = (rate * (now - paid).as_secs_f64()) as u32;
            if due > 0 {
                self.clients.send(due, share)?;
                paid += Duration::from_secs_f64(f64::from(due) / rate);
            }
            next = (next + BURST).max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    fn rush(&self, wanted: u32, stop: &AtomicBool) -> anyhow::Result<()> {
        let start = Instant::now();
        let mut rate = 1e6;
        let mut sent_wanted = 0.0;
        while !stop.load(Ordering::Relaxed) {
            let packets = (rate * SLICE.as_secs_f64()).clamp(640.0, 1e6);
            let now = start.elapsed();
            let due = f64::from(wanted) * (now + SLICE).as_secs_f64() - sent_wanted;
            // A tenth at most: the debt of a slow phase is paid over some slices.
            let due = due.clamp(0.0, packets / 10.0);
            self.clients.send(packets as u32, due / packets)?;
            sent_wanted += due;
            rate = packets / (start.elapsed() - now).as_secs_f64().max(1e-6);
        }
        Ok(())
    }
}

/// A program of the run, with what it says in a file; it ends with the guard.
pub struct Process {
    child: Child,
    said: std::path::PathBuf,
}

impl Process {
    /// Starts it in the host's namespace.
    pub fn start(net: &TestNet, mut command: Command, said: &Path) -> anyhow::Result<Self> {
        let file = std::fs::File::create(said)?;
        command.stderr(file);
        Ok(Self {
            child: net.host().spawn(command)?,
            said: said.to_owned(),
        })
    }

    /// The child, for its pipes and signals.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The process id of the program.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Waits until `look` finds what it looks for; an exit is an error with
    /// what the program said.
    pub fn wait_for<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut() -> Option<T>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            interrupted()?;
            if let Some(found) = look() {
                return Ok(found);
            }
            let ended = self.child.wait(Duration::ZERO)?;
            if ended.is_some() || Instant::now() > deadline {
                let said = std::fs::read_to_string(&self.said).unwrap_or_default();
                anyhow::bail!("{what} did not come: {ended:?} {said}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Seconds of CPU that its threads have used. What softirqs did on their
    /// back is part of it; dropping packets runs in the sender's.
    pub fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.pid())
    }
}

/// Seconds of CPU of all threads of a process.
pub fn cpu_seconds(pid: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let nanos: u64 = threads
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|thread| {
            let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        })
        .sum();
    nanos as f64 / 1e9
}

/// Has the user pressed Ctrl-C? As an error, so that guards clean up.
pub fn interrupted() -> anyhow::Result<()> {
    anyhow::ensure!(!CAUGHT.load(Ordering::Relaxed), "interrupted");
    Ok(())
}
