//! Where hooks are measured: a host's interface, in a network of two
//! namespaces of its own or a real one, and what arrives there. Setting hooks
//! up is `table`'s.

use std::{io::Write, net::IpAddr, process::Stdio, sync::Arc};

use anyhow::{Context, bail};
use weir_bpf::{device::set_gro, generator::Flood};
use weir_netlab::{Namespace, Net, Side, VethOpts};

/// The port that the paper floods.
pub const PORT: u16 = 12345;
/// Where the host is, in a network of our own.
pub const HOST: [&str; 2] = ["10.9.0.2", "2001:db8::2"];

/// The host's side: the interface that is flooded, and how to get there.
#[derive(Debug, Clone)]
pub struct FloodTarget {
    /// `None`: this process's own.
    namespace: Option<Namespace>,
    /// The name of the interface that is flooded.
    pub dev: String,
    /// The flooded address; its family is the run's.
    pub host: IpAddr,
}

impl FloodTarget {
    /// An interface of this process's own namespace.
    pub fn here(dev: &str, host: IpAddr) -> Self {
        Self {
            namespace: None,
            dev: dev.to_owned(),
            host,
        }
    }

    /// Runs `f` there.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        match &self.namespace {
            Some(namespace) => Ok(namespace.enter(f)?),
            None => Ok(f()),
        }
    }

    /// The interface's number.
    pub fn ifindex(&self) -> anyhow::Result<u32> {
        Ok(self
            .enter(|| weir_bpf::device::Device::find(&self.dev))?
            .with_context(|| format!("look at interface {}", self.dev))?
            .index)
    }

    /// Runs a program there, with this on its standard input; what it prints.
    pub fn run(&self, program: &str, args: &[String], input: &[u8]) -> anyhow::Result<String> {
        let shown = || format!("{program} {}", args.join(" "));
        let mut command = std::process::Command::new(program);
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self
            .enter(|| command.spawn())?
            .with_context(|| format!("run {}", shown()))?;
        let mut stdin = child.stdin.take().expect("it is piped");
        let out = std::thread::scope(|scope| {
            // A program that reads nothing closes its end: not our error.
            scope.spawn(move || drop(stdin.write_all(input)));
            child.wait_with_output()
        })?;
        if !out.status.success() {
            let said = String::from_utf8_lossy(&out.stderr);
            let said: Vec<&str> = said.lines().map(str::trim).take(2).collect();
            bail!("{}: {}", shown(), said.join(" "));
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// Packets and bytes that came to the interface so far.
    pub fn arrived(&self) -> anyhow::Result<Arrived> {
        let counters = self.counters()?;
        Ok(Arrived {
            bytes: counters[0],
            packets: counters[1],
        })
    }

    /// Packets that left it.
    pub fn left(&self) -> anyhow::Result<u64> {
        Ok(self.counters()?[9])
    }

    /// The interface's line in /proc/net/dev: eight counters of what came, as
    /// many of what left, bytes and packets first.
    fn counters(&self) -> anyhow::Result<[u64; 16]> {
        let text = self.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev"))??;
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(&self.dev)?.strip_prefix(':'))
            .with_context(|| format!("{} among the devices", self.dev))?;
        let numbers: Vec<u64> = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        numbers
            .try_into()
            .map_err(|_| anyhow::anyhow!("/proc/net/dev has other columns"))
    }

    /// Datagrams that the host's UDP sockets refused, a full buffer aside.
    pub fn udp_refused(&self) -> anyhow::Result<u64> {
        let counters = self.enter(|| {
            ["snmp", "snmp6"]
                .map(|name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")))
        })?;
        let [v4, v6] = counters;
        let [v4, v6] = [v4?, v6.unwrap_or_default()];
        let mut lines = v4
            .lines()
            .filter_map(|line| line.strip_prefix("Udp: "))
            .map(|line| line.split(' '));
        let (names, values) = lines.next().zip(lines.next()).context("UDP's counters")?;
        let of4 = |wanted: &str| {
            let mut both = names.clone().zip(values.clone());
            let found = both.find_map(|(name, value)| (name == wanted).then(|| value.parse()));
            found.unwrap_or(Ok(0))
        };
        let of6 = |wanted: &str| {
            let mut fields = v6
                .lines()
                .filter_map(|line| line.split_once(char::is_whitespace));
            let found = fields.find_map(|(name, n)| (name == wanted).then(|| n.trim().parse()));
            found.unwrap_or(Ok(0))
        };
        let errors: u64 = of4("InErrors")? + of6("Udp6InErrors")?;
        let full: u64 = of4("RcvbufErrors")? + of6("Udp6RcvbufErrors")?;
        Ok(errors.saturating_sub(full))
    }
}

/// An interface's counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Frames that arrived.
    pub packets: u64,
    /// Bytes of these frames.
    pub bytes: u64,
}

/// A network for one hook, with the flood that goes through it.
pub struct TestNet {
    /// The host's side.
    pub place: Arc<FloodTarget>,
    /// The namespace of the sender.
    pub outside: Namespace,
    /// The flood towards the host.
    pub flood: Flood,
    _net: Net,
}

impl TestNet {
    /// Two namespaces and the wire between them.
    pub fn new(host: IpAddr) -> anyhow::Result<Self> {
        let net = Net::new()?;
        let (outside, inside) = (net.namespace("net")?, net.namespace("host")?);
        let opts = VethOpts::new(
            &["10.9.0.1/24", "2001:db8::1/64"],
            &["10.9.0.2/24", "2001:db8::2/64"],
        )?;
        let veth = net.veth(&outside, "g0", &inside, "d0", opts)?;
        // The sources are all over the world; what answers they get is lost.
        inside.ip(&[
            "route add default via 10.9.0.1 dev d0".into(),
            "route add ::/0 via 2001:db8::1 dev d0".into(),
        ])?;
        // Redirected frames reach a device that has NAPI, and XDP brings that
        // with it: all hooks get it.
        inside
            .enter(|| set_gro("d0", true))?
            .context("switch GRO on")?;
        Ok(Self {
            flood: Flood {
                sources: 1,
                salt: 0,
                dest: host,
                port: PORT,
                macs: [veth.mac(Side::B), veth.mac(Side::A)],
                ifindex: outside.ifindex("g0")?,
            },
            place: Arc::new(FloodTarget {
                namespace: Some(inside),
                dev: "d0".into(),
                host,
            }),
            outside,
            _net: net,
        })
    }
}
