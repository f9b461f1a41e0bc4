//! A virtual network: namespaces with a name of their own, joined by veth
//! pairs whose neighbours are permanent, so that no ARP or discovery packet
//! disturbs a count. Everything is removed when `Net` goes, panic included;
//! what a killed run left behind is removed by the next one.

use std::{
    fmt, fs,
    net::{IpAddr, Ipv6Addr},
    process,
    str::FromStr,
    sync::{
        Mutex, Once, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use crate::{
    error::{Context, Error, ErrorKind, Result},
    namespace::{Namespace, READY_IN, end_all, ip_batch, wait_for},
};

/// Begins every name that we give: `wl<pid>-<net>-<name>`.
const PREFIX: &str = "wl";

static NETS: AtomicU32 = AtomicU32::new(0);
static MACS: AtomicU32 = AtomicU32::new(1);
static SWEEP: Once = Once::new();

/// A set of namespaces that ends with this value.
#[derive(Debug)]
pub struct Net {
    prefix: String,
    namespaces: Mutex<Vec<Namespace>>,
}

impl Net {
    /// An empty network. The first in a process removes what dead runs left.
    pub fn new() -> Result<Self> {
        SWEEP.call_once(sweep);
        let number = NETS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{PREFIX}{}-{number}-", process::id());
        Ok(Self {
            prefix,
            namespaces: Mutex::default(),
        })
    }

    /// A new namespace, loopback up, no router advertisements, no duplicate
    /// address detection; `name` is the part of the name that people read.
    pub fn namespace(&self, name: &str) -> Result<Namespace> {
        let namespace = Namespace::new(&format!("{}{name}", self.prefix));
        run_ip(&[format!("netns add {}", namespace.name())])?;
        self.all().push(namespace.clone());
        for scope in ["all", "default"] {
            for (key, value) in [
                ("accept_dad", "0"),
                ("dad_transmits", "0"),
                ("accept_ra", "0"),
                ("router_solicitations", "0"),
                ("addr_gen_mode", "1"),
                // Repeats of multicast reports come in the next weeks.
                ("mldv1_unsolicited_report_interval", "2000000000"),
                ("mldv2_unsolicited_report_interval", "2000000000"),
            ] {
                namespace.sysctl(&format!("ipv6.conf.{scope}.{key}"), value)?;
            }
            // Packets of many made-up sources arrive on one device.
            namespace.sysctl(&format!("ipv4.conf.{scope}.rp_filter"), "0")?;
        }
        namespace.sysctl("ipv4.ip_nonlocal_bind", "1")?;
        namespace.sysctl("ipv6.ip_nonlocal_bind", "1")?;
        namespace.sysctl("ipv4.igmp_link_local_mcast_reports", "0")?;
        namespace.ip(&["link set lo up".into()])?;
        Ok(namespace)
    }

    /// Joins two namespaces and waits until both ends carry packets.
    pub fn veth(
        &self,
        a: &Namespace,
        dev_a: &str,
        b: &Namespace,
        dev_b: &str,
        opts: VethOpts,
    ) -> Result<Veth> {
        let mut veth = Veth {
            a: End::new(a, dev_a, opts.a),
            b: End::new(b, dev_b, opts.b),
            mtu: opts.mtu,
            queues: opts.queues,
            link_local: opts.link_local,
        };
        veth.create()?;
        Ok(veth)
    }

    fn all(&self) -> std::sync::MutexGuard<'_, Vec<Namespace>> {
        self.namespaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for namespace in self.all().drain(..) {
            remove(&namespace);
        }
    }
}

/// An address or prefix as a device or route has it: address and length, host
/// bits allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IfAddr {
    /// The address, or one of the prefix.
    pub addr: IpAddr,
    /// The length of its prefix.
    pub len: u8,
}

impl FromStr for IfAddr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| Error::new(ErrorKind::Malformed, format!("read {text:?}"), why);
        let (addr, len) = text
            .split_once('/')
            .ok_or_else(|| bad("write it as ADDRESS/LENGTH"))?;
        let addr: IpAddr = addr.parse().map_err(|_| bad("the address is malformed"))?;
        let len: u8 = len.parse().map_err(|_| bad("the length is not a number"))?;
        let max = if addr.is_ipv4() { 32 } else { 128 };
        if len > max {
            return Err(bad("the length is out of range"));
        }
        Ok(Self { addr, len })
    }
}

impl fmt::Display for IfAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

/// How a veth pair is made.
#[derive(Debug, Clone)]
pub struct VethOpts {
    /// The MTU of both ends, in bytes.
    pub mtu: u32,
    /// Addresses of the first end.
    pub a: Vec<IfAddr>,
    /// Addresses of the second end.
    pub b: Vec<IfAddr>,
    /// Whether the ends get fe80:: addresses (off: less multicast noise).
    pub link_local: bool,
    /// Queues of each direction at both ends.
    pub queues: u32,
}

impl VethOpts {
    /// MTU 1500 and these addresses, each `ADDRESS/LENGTH`, IPv4 or IPv6.
    pub fn new(a: &[&str], b: &[&str]) -> Result<Self> {
        let parse = |list: &[&str]| -> Result<Vec<IfAddr>> {
            list.iter().map(|text| text.parse()).collect()
        };
        Ok(Self {
            mtu: 1500,
            a: parse(a)?,
            b: parse(b)?,
            link_local: false,
            queues: 1,
        })
    }

    /// More than one queue, chosen by flow or as `xps_cpus` says.
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// Gives both ends this MTU in bytes.
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }
}

/// One of the two ends of a `Veth`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The end named first.
    A,
    /// The end named second.
    B,
}

#[derive(Debug, Clone)]
struct End {
    namespace: Namespace,
    dev: String,
    mac: [u8; 6],
    addrs: Vec<IfAddr>,
    sources: Vec<IfAddr>,
}

impl End {
    fn new(namespace: &Namespace, dev: &str, addrs: Vec<IfAddr>) -> Self {
        let [_, x, y, z] = MACS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let mac = [0x02, 0x77, 0x6c, x, y, z];
        Self {
            namespace: namespace.clone(),
            dev: dev.into(),
            mac,
            addrs,
            sources: Vec::new(),
        }
    }

    fn gateway(&self, ipv4: bool) -> Option<IpAddr> {
        self.addrs
            .iter()
            .map(|a| a.addr)
            .find(|a| a.is_ipv4() == ipv4)
    }
}

/// A veth pair. It may be deleted, created again and renamed; MAC addresses,
/// addresses, neighbours and routes come back as they were.
#[derive(Debug, Clone)]
pub struct Veth {
    a: End,
    b: End,
    mtu: u32,
    queues: u32,
    link_local: bool,
}

impl Veth {
    /// Creates the pair (again): after `delete`, under the same names.
    pub fn create(&mut self) -> Result<()> {
        let (a, b, mtu) = (&self.a, &self.b, self.mtu);
        let queues = match self.queues {
            1 => String::new(),
            n => format!(" numtxqueues {n} numrxqueues {n}"),
        };
        let end = |end: &End| {
            let (mac, name) = (mac_text(end.mac), end.namespace.name());
            format!("{} netns {name} mtu {mtu} address {mac}{queues}", end.dev)
        };
        run_ip(&[format!(
            "link add name {} type veth peer name {}",
            end(a),
            end(b)
        )])?;
        self.configure()?;
        self.settle(&self.a);
        self.settle(&self.b);
        Ok(())
    }

    /// Deletes both ends.
    pub fn delete(&self) -> Result<()> {
        self.a
            .namespace
            .ip(&[format!("link delete {}", self.a.dev)])
    }

    /// Gives one end another name.
    pub fn rename(&mut self, side: Side, name: &str) -> Result<()> {
        let end = self.end_mut(side);
        let live = format!("link set {} name {name}", end.dev);
        if end.namespace.ip(std::slice::from_ref(&live)).is_err() {
            // Kernels before 6.2 rename only a device that is down.
            end.namespace
                .ip(&[format!("link set {} down", end.dev), live])?;
        }
        end.dev = name.into();
        self.configure()
    }

    /// Takes one end down, or both up with everything that down removed.
    pub fn set_up(&mut self, side: Side, up: bool) -> Result<()> {
        if up {
            return self.configure();
        }
        let end = self.end(side);
        end.namespace.ip(&[format!("link set {} down", end.dev)])
    }

    /// Makes every address of `prefix` local to one end and routes it there
    /// from the other, so that one namespace can be many attackers.
    pub fn add_sources(&mut self, side: Side, prefix: &str) -> Result<()> {
        let prefix: IfAddr = prefix.parse()?;
        let end = self.end_mut(side);
        end.namespace
            .ip(&[format!("route replace local {prefix} dev lo")])?;
        end.sources.push(prefix);
        self.configure()
    }

    /// The device name of an end.
    pub fn dev(&self, side: Side) -> &str {
        &self.end(side).dev
    }

    /// The MAC address of an end.
    pub fn mac(&self, side: Side) -> [u8; 6] {
        self.end(side).mac
    }

    /// The namespace of an end.
    pub fn namespace(&self, side: Side) -> &Namespace {
        &self.end(side).namespace
    }

    /// Addresses, neighbours and routes of both ends, each replaced, then up
    /// and ready.
    fn configure(&self) -> Result<()> {
        for (own, peer) in [(&self.a, &self.b), (&self.b, &self.a)] {
            let dev = &own.dev;
            let mode = if self.link_local { "eui64" } else { "none" };
            let mut lines = vec![format!("link set {dev} addrgenmode {mode} up")];
            for addr in &own.addrs {
                let nodad = if addr.addr.is_ipv6() { " nodad" } else { "" };
                lines.push(format!("addr replace {addr} dev {dev}{nodad}"));
            }
            let mac = mac_text(peer.mac);
            let mut neighbour = |addr: IpAddr| {
                lines.push(format!(
                    "neigh replace {addr} lladdr {mac} dev {dev} nud permanent"
                ));
            };
            peer.addrs.iter().for_each(|a| neighbour(a.addr));
            if self.link_local {
                neighbour(eui64(peer.mac).into());
            }
            for prefix in &peer.sources {
                let Some(via) = peer.gateway(prefix.addr.is_ipv4()) else {
                    continue;
                };
                lines.push(format!("route replace {prefix} via {via} dev {dev}"));
            }
            own.namespace.ip(&lines)?;
        }
        self.ready(&self.a)?;
        self.ready(&self.b)
    }

    /// Carrier, a queue that sends, and the local route of each IPv6 address.
    fn ready(&self, end: &End) -> Result<()> {
        let what = format!("{} in {} to be ready", end.dev, end.namespace.name());
        let show = |args: &[&str]| -> Result<String> {
            let out = end
                .namespace
                .run("ip", &[args, &["dev", &end.dev]].concat())?;
            Ok(String::from_utf8_lossy(&out.stdout).into_owned())
        };
        wait_for(&what, READY_IN, || {
            let link = show(&["-o", "link", "show"])?;
            if !link.contains("state UP") || link.contains("qdisc noop ") {
                return Ok(None);
            }
            let addresses = end.addrs.iter().map(|a| a.addr);
            let all = end.namespace.has_local_routes(&end.dev, addresses)?;
            let late = show(&["-6", "-o", "addr", "show", "tentative"])?;
            Ok((all && late.is_empty()).then_some(()))
        })
    }

    /// Lets the one multicast report (ICMPv6 type 143) that a new device sends
    /// go by, so that the caller counts from silence. It leaves after 4-8 ms;
    /// a kernel that sends none costs this wait and is no error.
    fn settle(&self, end: &End) {
        let file = format!("/proc/thread-self/net/dev_snmp6/{}", end.dev);
        let _ = wait_for("a multicast report", Duration::from_millis(100), || {
            let counters = end.namespace.enter(|| fs::read_to_string(&file))?;
            let sent = counters.is_ok_and(|text| text.contains("Icmp6OutType143"));
            Ok(sent.then_some(()))
        });
    }

    fn end(&self, side: Side) -> &End {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }

    fn end_mut(&mut self, side: Side) -> &mut End {
        match side {
            Side::A => &mut self.a,
            Side::B => &mut self.b,
        }
    }
}

/// The address that the kernel makes of a MAC address.
fn eui64([a, b, c, d, e, f]: [u8; 6]) -> Ipv6Addr {
    let iid = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    Ipv6Addr::from((0xfe80_u128 << 112) | u128::from(iid))
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn run_ip(lines: &[String]) -> Result<()> {
    let what = || format!("run `ip` with {lines:?}");
    let out = ip_batch(lines).context(what)?;
    if out.status.success() {
        Ok(())
    } else {
        Err(Error::command(what(), &out))
    }
}

/// Ends what runs in it, then removes it. Errors have nobody to go to.
fn remove(namespace: &Namespace) {
    end_all(|| namespace.pids());
    let _ = run_ip(&[format!("netns delete {}", namespace.name())]);
}

/// Namespaces and directories of runs whose process is gone.
fn sweep() {
    for (dir, prefix) in [
        ("/run/netns".into(), PREFIX),
        (std::env::temp_dir(), TEMP_PREFIX),
    ] {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let pid = name
                .strip_prefix(prefix)
                .and_then(|rest| rest.split_once('-'));
            let Some(Ok(pid)) = pid.map(|(pid, _)| pid.parse::<u32>()) else {
                continue;
            };
            if fs::exists(format!("/proc/{pid}")).unwrap_or(true) {
                continue;
            }
            if prefix == PREFIX {
                remove(&Namespace::new(name));
            } else {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

const TEMP_PREFIX: &str = "weir-netlab-";

/// A directory that ends with the guard, or with the next run's sweep.
pub fn temp_dir() -> Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix(&format!("{TEMP_PREFIX}{}-", process::id()))
        .tempdir()
        .context(|| "make a temporary directory".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_addresses_parse_and_print() {
        for good in ["192.0.2.1/24", "2001:db8::1/64", "0.0.0.0/0"] {
            assert_eq!(good.parse::<IfAddr>().unwrap().to_string(), good);
        }
        for bad in ["192.0.2.1", "192.0.2.1/33", "x/8", "::/129", "::/x"] {
            assert_eq!(
                bad.parse::<IfAddr>().unwrap_err().kind(),
                ErrorKind::Malformed,
                "{bad}"
            );
        }
    }

    #[test]
    fn link_local_address_of_a_mac() {
        // RFC 2464, section 4.
        let addr = eui64([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
        assert_eq!(addr.to_string(), "fe80::3656:78ff:fe9a:bcde");
    }
}
