//! `[balance]` and `[pool.NAME]`: virtual addresses, and the servers behind them.

mod acl;
mod command;
mod emergency;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    ops::RangeInclusive,
    time::Duration,
};

use weir_bpf::decap::GUE_PORT;
use weir_config::{
    At, Section,
    manual::{
        Case, NONE, Table,
        Usual::{By, Is, Means, Required},
        key,
    },
    values::{SECOND, name_byte},
};
use weir_core::{
    PortRange, PortSet, Protocol, balance::acl::Acl, ban::MAX_NAME, decoy::DecoyPorts,
};
use weir_enforce::{MAX_POOLS, MAX_REALS, MAX_SERVICES, SlotBy};
use weir_proxy::Limits;

use super::proxy_config;
use crate::host::{HostFacts, InterfaceAddress};
pub use emergency::Emergency;

/// `[balance]` and `[pool.NAME]` in weir.toml(5).
pub(crate) const MANUAL: &[Table] = &[
    proxy_config::MANUAL,
    Table {
        name: "balance",
        about: "Load balancing by direct server return: packets for the virtual addresses of the pools go on to a real server, which answers the client itself.",
        needs: &[("interface", "\"eth0\"")],
        keys: &[
            key(
                "interface",
                Required,
                "The interface on whose network segment the reals are.",
            ),
            key(
                "announce",
                Is("false"),
                "With true, weir adds the virtual addresses to the interface itself, once nobody else on the segment has them, and announces them. Of several weirs with one configuration only one may.",
            ),
        ],
    },
    Table {
        name: "pool.NAME",
        about: "Virtual addresses, and the reals (servers) that serve them. Each real has the virtual addresses on its loopback interface, but where a proxy serves it.",
        needs: &[
            ("vip", "[\"192.0.2.80\"]"),
            ("ports", "[\"80/tcp\"]"),
            ("reals", "[{ address = \"192.0.2.11\" }]"),
        ],
        keys: &[
            key(
                "vip",
                Required,
                "The virtual addresses, IPv4 and IPv6. This host has them on an interface, so that it answers ARP and neighbour discovery for them: by announce in [balance], or because an administrator has added them.",
            ),
            key("ports", Required, "The ports that the pool serves."),
            key(
                "reals",
                Required,
                "The reals, a table each; see below. One address is enough for both families, for packets are sent to its link-layer address.",
            ),
            key(
                "acl",
                Means("everybody is served"),
                "Which clients are served: rules of which the first that fits decides, such as \"deny 203.0.113.0/24\", \"allow country:DE\", \"deny continent:AF\", \"allow list:NAME\" (a [list.NAME]).",
            ),
            key(
                "acl_default",
                Means("required with acl"),
                "What becomes of clients that no rule of acl is about: \"allow\" or \"deny\".",
            ),
            key(
                "emergency",
                NONE,
                "Who takes new flows while no real of the pool takes any: a list of reals as in reals, or the name of another pool, whose reals then have these virtual addresses as well.",
            ),
            key(
                "method",
                Is("\"maglev\""),
                "How a new flow finds its real: \"maglev\" is a consistent hash of both addresses and ports with weights, the same on every weir; \"source-hash\" one of the client's address, so that all of a client's flows go to one real; \"source-port-hash\" one of its address and port; \"round-robin\" gives each real its turn, by weight.",
            ),
            key(
                "slow_start",
                Is("\"0s\""),
                "So long the share of a real that comes back grows to its weight.",
            ),
            key(
                "forward",
                Is("\"l2\""),
                "How packets reach the reals: \"l2\" on the segment of the interface, by their link-layer addresses; \"ipip\" and \"gue\" beyond routers, in an outer packet to the real's own address: IP in IP, either family in either, or GUE (UDP). The real takes them out: weir real-side --decap. With \"proxy\" this host accepts connections and datagrams at the virtual addresses and relays them to the reals, wherever they are: it needs no [balance], and the reals need no virtual address.",
            ),
            key(
                "gue_port",
                By(&[Case {
                    value: "6080",
                    when: "",
                    with: &[("forward", "\"gue\"")],
                    without: &[],
                }]),
                "With forward = \"gue\": the UDP port of the reals.",
            ),
            key(
                "tunnel_source",
                Means("that of the route to the real"),
                "With \"ipip\" and \"gue\": the source of outer packets, one address of this host of each family.",
            ),
            key(
                "check",
                Means("a TCP connection to the pool's first TCP port each 2s"),
                "How it is found out whether a real lives; a table, see below.",
            ),
            proxy_config::PROXY_PROTOCOL,
            proxy_config::TRANSPARENT,
            proxy_config::MAX_CONNECTIONS,
            proxy_config::MAX_CONNECTIONS_PER_CLIENT,
            proxy_config::CONNECT_TIMEOUT,
            proxy_config::IDLE_TIMEOUT,
            proxy_config::UDP_TIMEOUT,
        ],
    },
    Table {
        name: "pool.NAME.reals",
        about: "A server of the pool; also as { address = ... } in the list.",
        needs: &[("address", "\"192.0.2.11\"")],
        keys: &[
            key(
                "address",
                Required,
                "Its own address, at which it is checked and found on the segment.",
            ),
            key(
                "weight",
                Is("1"),
                "Its share of the flows, beside those of the others; 0 takes no new flows, and flows that it has stay.",
            ),
        ],
    },
    Table {
        name: "pool.NAME.check",
        about: "Asks each real at its own address: this shows that it lives, not that it has the virtual address. Without http, dns and udp a TCP connection is all that is asked.",
        needs: &[],
        keys: &[
            key(
                "http",
                NONE,
                "Asks with GET for this path; the status of the answer decides. Redirects are not followed.",
            ),
            key(
                "host",
                Means("the real's address and port"),
                "With http: the Host of the request.",
            ),
            key(
                "status",
                Means("those of 2xx and 3xx"),
                "With http: which statuses the answer of a live real has.",
            ),
            key(
                "dns",
                NONE,
                "Asks for this name over UDP (type A); any answer without an error (NOERROR) is life.",
            ),
            key(
                "udp",
                NONE,
                "Sends this text as a datagram; \"port unreachable\" says that the real is down, silence does not.",
            ),
            key(
                "require_answer",
                Means("silence is life"),
                "With udp: silence says that the real is down, too.",
            ),
            key(
                "command",
                NONE,
                "Runs this command, without a shell and as the user of watches, with WEIR_REAL, WEIR_VIP, WEIR_PORT and WEIR_POOL in its environment; exit code 0 is life. Nobody but root may be able to change it.",
            ),
            key(
                "port",
                Means("the pool's first TCP port; with dns and udp the first UDP port"),
                "Which port.",
            ),
            key("interval", Is("\"2s\""), "How often."),
            key("timeout", Is("\"1s\""), "How long it may take."),
            key(
                "rise",
                Is("2"),
                "So many successes in a row bring a dead real back.",
            ),
            key("fall", Is("3"), "So many failures in a row make it dead."),
        ],
    },
];

const VIP: &str = "a list of addresses such as [\"198.51.100.80\", \"2001:db8::80\"]";
const PORTS: &str = "a list of ports such as [\"80/tcp\", \"443/udp\", \"8000-8003/tcp\"]";
const REALS: &str = "a list of tables such as [{ address = \"10.0.0.11\", weight = 2 }]";
pub(crate) const ADDRESS: &str = "an address of one host such as \"10.0.0.11\" or \"2001:db8::11\"";

const PATH: &str = "a path such as \"/healthz\": it begins with / and has no blanks";
const HOST: &str = "a host such as \"www.example.org\" or \"[2001:db8::80]:8080\"";
const STATUS: &str = "a status or a range such as \"200\" or \"200-399\", or a list of these";
const DNS: &str = "a name such as \"example.org\", or \".\" for the root";
const UDP: &str = "a text of at most 1200 bytes such as \"ping\"";
/// So long may a name be.
const MAX_NAME_LENGTH: usize = 253;
/// And a label of it.
const MAX_LABEL: usize = 63;
/// So long may a datagram be: it is none in fragments.
const MAX_PAYLOAD: usize = 1200;
/// So long may a path be.
const MAX_PATH: usize = 1024;
/// And a host: a name with its port.
const MAX_HOST: usize = 260;

/// The largest weight of a real.
pub const MAX_WEIGHT: u32 = 1000;

/// A checked `[balance]` with its pools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BalanceConfig {
    /// On whose segment the reals of direct server return are, if any are.
    pub interface: Option<String>,
    /// Whether weir holds the virtual addresses there.
    pub announce: bool,
    /// Threads of the proxy; `None`: as many as there are processors.
    pub threads: Option<usize>,
    /// Its pools by name.
    pub pools: Vec<PoolConfig>,
}

/// A checked `[pool.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// The name in the configuration.
    pub name: String,
    /// Its virtual addresses.
    pub vips: Vec<IpAddr>,
    /// What it serves at each.
    pub ports: Vec<(Protocol, u16)>,
    /// Who serves it.
    pub reals: Vec<RealConfig>,
    /// Who serves it while none of these does.
    pub emergency: Option<Emergency>,
    /// Which clients it serves; everybody, if there is none.
    pub acl: Option<Acl>,
    /// How a new flow finds its real.
    pub method: Method,
    /// So long the share of a real that comes back grows.
    pub slow_start: Duration,
    /// How packets reach them.
    pub forward: Forward,
    /// How they are checked.
    pub check: CheckConfig,
}

impl BalanceConfig {
    /// Does the packet path forward, and not the proxy alone?
    pub(crate) fn forwards(&self) -> bool {
        self.interface.is_some()
            && (self.pools.is_empty() || !self.pools.iter().all(PoolConfig::is_proxied))
    }
}

impl PoolConfig {
    /// Does this host relay for it?
    pub fn is_proxied(&self) -> bool {
        matches!(self.forward, Forward::Proxy(_))
    }

    /// Does it take a capability to receive at its ports?
    pub(crate) fn has_privileged_proxy_port(&self) -> bool {
        self.is_proxied() && self.ports.iter().any(|(_, port)| *port < 1024)
    }

    /// What the proxy cannot do for it.
    pub(super) fn check_proxy(&self, section: &Section<'_, '_>, line: usize) {
        let Forward::Proxy(limits) = &self.forward else {
            return;
        };
        let reals = self.own_reals().map(|real| real.address);
        let mut all = self.vips.iter().copied().chain(reals);
        let first = all.next().map(|addr| addr.is_ipv4());
        if limits.is_transparent && all.any(|addr| Some(addr.is_ipv4()) != first) {
            section.error(
                line,
                format!(
                    "transparent in [pool.{}]: its virtual addresses and reals are of both families, and no real can see a client's address of the other one; allowed: a pool for each family",
                    self.name
                ),
            );
        }
    }

    /// All that are checked for it: its reals, then those for an emergency that are its
    /// own.
    pub fn own_reals(&self) -> impl Iterator<Item = &RealConfig> {
        let emergency = self.emergency.iter().flat_map(Emergency::reals);
        self.reals.iter().chain(emergency)
    }
}

/// How a new flow finds its real.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// A consistent hash of both addresses and ports.
    Maglev,
    /// One of the client's address.
    SourceHash,
    /// One of the client's address and port.
    SourcePortHash,
    /// Each has its turn.
    RoundRobin,
}

impl Method {
    pub(super) const ALL: [(&str, Self); 4] = [
        ("maglev", Self::Maglev),
        ("source-hash", Self::SourceHash),
        ("source-port-hash", Self::SourcePortHash),
        ("round-robin", Self::RoundRobin),
    ];

    /// By the word of the configuration.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    pub(super) fn slot_by(self) -> SlotBy {
        match self {
            Self::Maglev => SlotBy::Flow,
            Self::SourceHash => SlotBy::Source,
            Self::SourcePortHash => SlotBy::SourcePort,
            Self::RoundRobin => SlotBy::Turn,
        }
    }
}

impl BalanceConfig {
    /// Are there reals beyond a router?
    pub fn has_tunnels(&self) -> bool {
        let mut pools = self.pools.iter();
        pools.any(|pool| matches!(pool.forward, Forward::Tunnel(_)))
    }
}

/// How packets reach the reals of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forward {
    /// By their link-layer addresses, on the segment of the interface.
    L2,
    /// In outer packets.
    Tunnel(TunnelConfig),
    /// By connections of this host.
    Proxy(Limits),
}

impl Forward {
    /// The configuration's word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::L2 => "l2",
            Self::Tunnel(tunnel) if tunnel.gue_port.is_some() => "gue",
            Self::Tunnel(_) => "ipip",
            Self::Proxy(_) => "proxy",
        }
    }
}

/// What stands in outer headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelConfig {
    /// The port of GUE; `None`: IP in IP.
    pub gue_port: Option<u16>,
    /// Their sources, at most one of each family.
    pub sources: Vec<IpAddr>,
}

/// A server of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RealConfig {
    /// Its own address.
    pub address: IpAddr,
    /// Its share of the flows.
    pub weight: u32,
}

/// How a pool's reals are checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckConfig {
    /// What is asked.
    pub kind: CheckKind,
    /// A port of each real.
    pub port: u16,
    /// How often it is done.
    pub interval: Duration,
    /// How long one may take.
    pub timeout: Duration,
    /// Successes in a row that bring a dead real back.
    pub rise: u32,
    /// Failures in a row that make one dead.
    pub fall: u32,
}

impl CheckConfig {
    /// Does the other one find out the same of a real, however often?
    pub(super) fn asks_like(&self, other: &Self) -> bool {
        (&self.kind, self.port) == (&other.kind, other.port)
    }
}

/// What a check asks of a real.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckKind {
    /// A TCP connection, and nothing over it.
    Tcp,
    /// The status of an answer.
    Http(HttpConfig),
    /// The addresses of a name, over DNS.
    Dns(String),
    /// A datagram, and what silence means.
    Udp(UdpConfig),
    /// The exit code of a command, by its words.
    Command(Vec<String>),
}

impl CheckKind {
    /// Of the port that is asked; a command knows itself.
    fn protocol(&self) -> Option<Protocol> {
        match self {
            Self::Tcp | Self::Http(_) => Some(Protocol::Tcp),
            Self::Dns(_) | Self::Udp(_) => Some(Protocol::Udp),
            Self::Command(_) => None,
        }
    }
}

/// A request, and what a live real answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// What is asked for.
    pub path: String,
    /// The Host that is asked, in place of the real's address.
    pub host: Option<String>,
    /// The statuses of a live real.
    pub status: Vec<RangeInclusive<u16>>,
}

/// A datagram, and whether its answer is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpConfig {
    /// What is in it.
    pub payload: String,
    /// Whether a real that says nothing is down.
    pub require_answer: bool,
}

/// Ports of this host that are answered on it, by the table that names them.
type Answering<'a> = [(&'static str, Option<&'a DecoyPorts>)];

pub(crate) fn read(
    root: &mut Section<'_, '_>,
    host: &dyn HostFacts,
    answering: &Answering<'_>,
    lists: &[&str],
    warnings: &mut Vec<String>,
) -> Option<BalanceConfig> {
    let line = root.line_of("pool").unwrap_or(0);
    let balance = root.section("balance").map(|mut section| {
        const NAME: &str = "the name of an interface such as \"eth0\"";
        let line = section.line();
        let interface = section.string("interface", NAME);
        match &interface {
            None => section.error(
                line,
                format!("interface is missing in [balance]; allowed: {NAME}"),
            ),
            Some(at) if !host.has_interface(&at.value) => warnings.push(format!(
                "interface in [balance] is {:?}, which this host has not: no real is found until it comes",
                at.value
            )),
            Some(_) => (),
        }
        let announce = section.boolean("announce").unwrap_or_default();
        section.finish();
        let interface = interface.map(|at| at.value).unwrap_or_default();
        (line, interface, announce)
    });
    let threads = proxy_config::threads(root);
    let mut taken = BTreeMap::new();
    let mut pools = Vec::new();
    let mut stand_ins = Vec::new();
    for (name, section) in root.named_sections("pool") {
        stand_ins.extend(emergency::named_line(&name, &section));
        pools.extend(pool(name, section, &mut taken, answering, lists, warnings));
    }
    if balance.is_none() && pools.iter().any(|pool| !pool.is_proxied()) {
        root.error(
            line,
            "[pool] without [balance], which names the interface of its reals; allowed without it: pools with forward = \"proxy\"",
        );
    }
    emergency::check(root, &pools, &stand_ins);
    if balance.is_none() && pools.is_empty() {
        return None;
    }
    let (balance_line, interface, announce) = match balance {
        Some((line, interface, announce)) => (line, Some(interface), announce),
        None => (line, None, false),
    };
    pools.sort_by(|a, b| a.name.cmp(&b.name));
    let most = [
        (pools.len(), MAX_POOLS, "pools"),
        (
            pools.iter().map(|p| p.own_reals().count()).sum(),
            MAX_REALS,
            "reals",
        ),
        (taken.len(), MAX_SERVICES, "virtual addresses with a port"),
    ];
    for (count, most, what) in most {
        if count > most {
            root.error(
                balance_line,
                format!("[balance] has {count} {what}; allowed: at most {most}"),
            );
        }
    }
    let vips: BTreeSet<_> = pools.iter().flat_map(|pool| &pool.vips).collect();
    for pool in &pools {
        for real in pool.own_reals().filter(|r| vips.contains(&r.address)) {
            root.error(
                balance_line,
                format!(
                    "address in [pool.{}.reals] is {}, a virtual address; allowed: the real's own address",
                    pool.name, real.address
                ),
            );
        }
    }
    let config = BalanceConfig {
        interface,
        announce,
        threads,
        pools,
    };
    warn_of_host(&config, &host.addresses(), warnings);
    Some(config)
}

/// What is no mistake, and serves nobody on this host as it is now.
fn warn_of_host(
    config: &BalanceConfig,
    addresses: &[InterfaceAddress],
    warnings: &mut Vec<String>,
) {
    let interface = config.interface.as_deref().unwrap_or_default();
    let here = || addresses.iter().filter(|one| one.interface == interface);
    if config.interface.is_some() && here().next().is_none() {
        return;
    }
    for pool in &config.pools {
        // One that weir holds itself comes with it.
        let is_missing =
            |vip: &&IpAddr| !config.announce && !addresses.iter().any(|one| one.address == **vip);
        for vip in pool.vips.iter().filter(is_missing) {
            warnings.push(format!(
                "vip in [pool.{}] is {vip}, which this host has on no interface: unless a router sends its packets here, none come",
                pool.name
            ));
        }
        let is_beside = |real: &RealConfig| here().any(|one| one.network.contains(real.address));
        let reals = pool.own_reals().filter(|_| pool.forward == Forward::L2);
        for real in reals.filter(|real| !is_beside(real)) {
            warnings.push(format!(
                "reals of [pool.{}] have {}, which is in no network of {interface}: only a neighbour there is found",
                pool.name, real.address
            ));
        }
    }
}

type Taken = BTreeMap<(IpAddr, u8, u16), String>;

fn pool(
    name: String,
    mut section: Section<'_, '_>,
    taken: &mut Taken,
    answering: &Answering<'_>,
    lists: &[&str],
    warnings: &mut Vec<String>,
) -> Option<PoolConfig> {
    let line = section.line();
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(name_byte) {
        section.error(
            line,
            format!("pool name {name:?}; allowed: 1-{MAX_NAME} letters, digits, - and _"),
        );
    }
    let of = format!("[pool.{name}]");
    let vips = vips(&mut section, &of);
    let ports_line = section.line_of("ports").unwrap_or(line);
    let ports = ports(&mut section, &of);
    for (table, theirs) in answering {
        let both = ports.iter().find(|(protocol, port)| {
            let is_theirs = |theirs: &DecoyPorts| theirs.contains(*protocol, *port);
            theirs.is_some_and(is_theirs)
        });
        if let Some((protocol, port)) = both {
            let port = PortRange::one(*protocol, *port);
            section.error(
                ports_line,
                format!("ports in {of}: {port} is in [{table}] as well, which answers on this host's addresses, virtual ones too; leave it out of one of them"),
            );
        }
    }
    let forward = forward(&mut section, &of);
    let reals = reals(&mut section, &of, "reals", REALS);
    let acl = acl::read(&mut section, &of, lists);
    let emergency = emergency::read(&mut section, &of, &reals);
    let method = section.choice("method", &Method::ALL);
    let slow_start = section.duration("slow_start", Duration::ZERO..=3600 * SECOND);
    let checked = check(
        &mut section,
        &format!("[pool.{name}.check]"),
        &ports,
        warnings,
    );
    for vip in &vips {
        for (protocol, port) in &ports {
            let key = (*vip, protocol.number(), *port);
            if let Some(other) = taken.insert(key, name.clone()) {
                section.error(
                    line,
                    format!(
                        "{of} serves {} of {vip}, which [pool.{other}] serves",
                        PortRange::one(*protocol, *port)
                    ),
                );
            }
        }
    }
    let pool = checked.map(|check| PoolConfig {
        name,
        vips,
        ports,
        reals,
        emergency,
        acl,
        method: method.map_or(Method::Maglev, |at| at.value),
        slow_start: slow_start.map_or(Duration::ZERO, |at| at.value),
        forward,
        check,
    });
    if let Some(pool) = &pool {
        pool.check_proxy(&section, line);
    }
    section.finish();
    pool
}

/// Says that a list is not there, or has nothing in it; not of one that is something else,
/// which was said.
fn missing(section: &Section<'_, '_>, of: &str, key: &str, read: Read, allowed: &str) {
    let line = match read {
        Read::Absent => section.line(),
        Read::Empty(line) => line,
        Read::Some => return,
    };
    section.error(
        line,
        format!("{key} in {of} names none; allowed: {allowed}"),
    );
}

/// What of a list there was to be read.
enum Read {
    Absent,
    Empty(usize),
    Some,
}

impl Read {
    /// `line`: of the key, before it was read.
    fn of<T>(line: Option<usize>, read: Option<&[T]>) -> Self {
        match (line, read) {
            (None, _) => Self::Absent,
            (Some(line), Some([])) => Self::Empty(line),
            (Some(_), _) => Self::Some,
        }
    }
}

fn vips(section: &mut Section<'_, '_>, of: &str) -> Vec<IpAddr> {
    let line = section.line_of("vip");
    let typed = section.list("vip", VIP);
    let mut vips = Vec::new();
    for entry in typed.iter().flat_map(|at| &at.value) {
        match unicast(&entry.value) {
            Some(vip) if vips.contains(&vip) => {
                section.error(entry.line, format!("vip in {of} has {vip} twice"));
            }
            Some(vip) => vips.push(vip),
            None => section.error(
                entry.line,
                format!("vip in {of} has {:?}; allowed: {ADDRESS}", entry.value),
            ),
        }
    }
    let read = Read::of(line, typed.as_ref().map(|at| at.value.as_slice()));
    missing(section, of, "vip", read, VIP);
    vips
}

fn forward(section: &mut Section<'_, '_>, of: &str) -> Forward {
    const SOURCE: &str = "at most one address of this host of each family, such as [\"10.1.0.1\", \"2001:db8:1::1\"]";
    #[derive(Clone, Copy, PartialEq)]
    enum Kind {
        L2,
        Ipip,
        Gue,
        Proxy,
    }
    const KINDS: [(&str, Kind); 4] = [
        ("l2", Kind::L2),
        ("ipip", Kind::Ipip),
        ("gue", Kind::Gue),
        ("proxy", Kind::Proxy),
    ];
    let kind = section.choice("forward", &KINDS);
    let kind = kind.map_or(Kind::L2, |at| at.value);
    let limits = proxy_config::limits(section, of, kind == Kind::Proxy);
    let port = section.integer("gue_port", 1..=65535);
    if let Some(port) = port.as_ref().filter(|_| kind != Kind::Gue) {
        let what = format!("gue_port in {of} is of forward = \"gue\" only");
        section.error(port.line, what);
    }
    let typed = section.list("tunnel_source", SOURCE);
    let mut sources: Vec<IpAddr> = Vec::new();
    for entry in typed.iter().flat_map(|at| &at.value) {
        let source = unicast(&entry.value);
        let is_new = |s: &IpAddr| sources.iter().all(|known| known.is_ipv4() != s.is_ipv4());
        match source.filter(is_new) {
            Some(source) => sources.push(source),
            None => section.error(
                entry.line,
                format!(
                    "tunnel_source in {of} has {:?}; allowed: {SOURCE}",
                    entry.value
                ),
            ),
        }
    }
    let has_tunnel = matches!(kind, Kind::Ipip | Kind::Gue);
    if let Some(typed) = typed.filter(|_| !has_tunnel) {
        let what = format!("tunnel_source in {of} is of forward = \"ipip\" and \"gue\" only");
        section.error(typed.line, what);
    }
    match kind {
        Kind::L2 => Forward::L2,
        Kind::Ipip | Kind::Gue => {
            let port = port.map_or(GUE_PORT, |at| at.value as u16);
            Forward::Tunnel(TunnelConfig {
                gue_port: (kind == Kind::Gue).then_some(port),
                sources,
            })
        }
        Kind::Proxy => Forward::Proxy(limits),
    }
}

fn ports(section: &mut Section<'_, '_>, of: &str) -> Vec<(Protocol, u16)> {
    let line = section.line_of("ports");
    let typed = section.list("ports", PORTS);
    let mut ports = Vec::new();
    for entry in typed.iter().flat_map(|at| &at.value) {
        let scope = entry.value.parse::<PortSet>().ok();
        let ranges = scope.as_ref().map(PortSet::ranges).unwrap_or_default();
        let known = |protocol| [Protocol::Tcp, Protocol::Udp].contains(&protocol);
        if ranges.is_empty() || !ranges.iter().all(|range| known(range.protocol)) {
            section.error(
                entry.line,
                format!("ports in {of} has {:?}; allowed: {PORTS}", entry.value),
            );
            continue;
        }
        for range in ranges {
            for port in range.low..=range.high {
                if !ports.contains(&(range.protocol, port)) && ports.len() <= MAX_SERVICES {
                    ports.push((range.protocol, port));
                }
            }
        }
    }
    let read = Read::of(line, typed.as_ref().map(|at| at.value.as_slice()));
    missing(section, of, "ports", read, PORTS);
    ports
}

/// The tables of this key.
fn reals(
    section: &mut Section<'_, '_>,
    of: &str,
    key: &'static str,
    allowed: &str,
) -> Vec<RealConfig> {
    let line = section.line_of(key);
    let typed = section.texts_or_sections(key, allowed);
    let mut reals: Vec<RealConfig> = Vec::new();
    let read = Read::of(line, typed.as_deref());
    for entry in typed.into_iter().flatten() {
        let mut table = match entry {
            Ok(text) => {
                section.error(
                    text.line,
                    format!("{key} in {of} is {:?}; allowed: {allowed}", text.value),
                );
                continue;
            }
            Err(table) => table,
        };
        let line = table.line();
        let address = table.string("address", ADDRESS);
        let weight = table
            .integer("weight", 0..=MAX_WEIGHT.into())
            .map_or(1, |at| at.value as u32);
        match address.as_ref().map(|at| (at, unicast(&at.value))) {
            None => table.error(
                line,
                format!("address is missing in {key} of {of}; allowed: {ADDRESS}"),
            ),
            Some((at, None)) => table.error(
                at.line,
                format!(
                    "address in {key} of {of} is {:?}; allowed: {ADDRESS}",
                    at.value
                ),
            ),
            Some((at, Some(address))) => {
                if reals.iter().any(|real| real.address == address) {
                    table.error(at.line, format!("{key} in {of} has {address} twice"));
                }
                reals.push(RealConfig { address, weight });
            }
        }
        table.finish();
    }
    missing(section, of, key, read, allowed);
    reals
}

/// What is asked, with the keys that belong to it.
fn kind(check: &mut Section<'_, '_>, of: &str, warnings: &mut Vec<String>) -> CheckKind {
    const KINDS: [&str; 4] = ["http", "dns", "udp", "command"];
    const OF_KINDS: [(&str, &str); 3] = [
        ("host", "http"),
        ("status", "http"),
        ("require_answer", "udp"),
    ];
    // A key that is read is there no more.
    let asked: Vec<_> = KINDS.into_iter().filter(|key| check.has(key)).collect();
    if asked.len() > 1 {
        let line = check.line_of(asked[1]).unwrap_or(check.line());
        check.error(
            line,
            format!(
                "{of} has {}; allowed: at most one of {}",
                asked.join(" and "),
                KINDS.join(", ")
            ),
        );
    }
    for (key, kind) in OF_KINDS {
        if let Some(line) = check.line_of(key).filter(|_| !check.has(kind)) {
            let allowed = format!("{key} in {of} without {kind}; allowed: with {kind} = \"...\"");
            check.error(line, allowed);
        }
    }
    let (http, dns, udp) = (http(check, of), dns(check, of), udp(check, of));
    let command = command::read(check, of, warnings);
    let kinds = [http, dns, udp, command].into_iter().flatten();
    kinds.last().unwrap_or(CheckKind::Tcp)
}

fn http(check: &mut Section<'_, '_>, of: &str) -> Option<CheckKind> {
    let path = check.string("http", PATH);
    let host = check.string("host", HOST);
    let status = status(check, of);
    if let Some(at) = &path {
        let has_blank = !at.value.bytes().all(|byte| byte.is_ascii_graphic());
        if !at.value.starts_with('/') || has_blank || at.value.len() > MAX_PATH {
            wrong(check, of, "http", at, PATH);
        }
    }
    if let Some(at) = &host {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        if at.value.is_empty() || at.value.len() > MAX_HOST || !at.value.bytes().all(fits) {
            wrong(check, of, "host", at, HOST);
        }
    }
    Some(CheckKind::Http(HttpConfig {
        path: path?.value,
        host: host.map(|at| at.value),
        status,
    }))
}

fn dns(check: &mut Section<'_, '_>, of: &str) -> Option<CheckKind> {
    let name = check.string("dns", DNS)?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let text = name.value.strip_suffix('.').unwrap_or(&name.value);
    let is_label = |label: &str| (1..=MAX_LABEL).contains(&label.len()) && label.bytes().all(fits);
    let is_name = name.value == "." || text.split('.').all(is_label);
    if !is_name || text.len() > MAX_NAME_LENGTH {
        wrong(check, of, "dns", &name, DNS);
    }
    Some(CheckKind::Dns(name.value))
}

fn udp(check: &mut Section<'_, '_>, of: &str) -> Option<CheckKind> {
    let payload = check.string("udp", UDP);
    let require_answer = check.boolean("require_answer").unwrap_or(false);
    let payload = payload?;
    if payload.value.len() > MAX_PAYLOAD {
        wrong(check, of, "udp", &payload, UDP);
    }
    Some(CheckKind::Udp(UdpConfig {
        payload: payload.value,
        require_answer,
    }))
}

fn wrong(section: &Section<'_, '_>, of: &str, key: &str, at: &At<String>, allowed: &str) {
    section.error(
        at.line,
        format!("{key} in {of} is {:?}; allowed: {allowed}", at.value),
    );
}

fn status(check: &mut Section<'_, '_>, of: &str) -> Vec<RangeInclusive<u16>> {
    let words = match check.word_or_list("status", STATUS) {
        None => return vec![200..=399],
        Some(Ok(word)) => vec![word],
        Some(Err(words)) => {
            if words.value.is_empty() {
                check.error(
                    words.line,
                    format!("status in {of} names none; allowed: {STATUS}"),
                );
            }
            words.value
        }
    };
    let mut ranges = Vec::new();
    for word in &words {
        let (low, high) = word
            .value
            .split_once('-')
            .unwrap_or((&word.value, &word.value));
        let number = |text: &str| {
            let is_plain = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
            is_plain.then(|| text.parse().ok()).flatten()
        };
        match (number(low), number(high)) {
            (Some(low @ 200..), Some(high @ ..=599)) if low <= high => ranges.push(low..=high),
            _ => wrong(check, of, "status", word, STATUS),
        }
    }
    ranges
}

fn check(
    section: &mut Section<'_, '_>,
    of: &str,
    ports: &[(Protocol, u16)],
    warnings: &mut Vec<String>,
) -> Option<CheckConfig> {
    let line = section.line();
    let mut config = CheckConfig {
        kind: CheckKind::Tcp,
        port: 0,
        interval: 2 * SECOND,
        timeout: SECOND,
        rise: 2,
        fall: 3,
    };
    let mut table = section.section("check");
    if let Some(check) = &mut table {
        config.kind = kind(check, of, warnings);
        if let Some(at) = check.integer("port", 1..=65535) {
            config.port = at.value as u16;
        }
        if let Some(at) = check.duration("interval", SECOND..=3600 * SECOND) {
            config.interval = at.value;
        }
        if let Some(at) = check.duration("timeout", SECOND..=60 * SECOND) {
            config.timeout = at.value;
        }
        if let Some(at) = check.integer("rise", 1..=100) {
            config.rise = at.value as u32;
        }
        if let Some(at) = check.integer("fall", 1..=100) {
            config.fall = at.value as u32;
        }
    }
    if let Some(table) = table {
        table.finish();
    }
    let protocol = config.kind.protocol();
    if config.port == 0 {
        let first = ports
            .iter()
            .find(|(known, _)| protocol.is_none_or(|protocol| *known == protocol));
        config.port = first.map_or(0, |(_, port)| *port);
    }
    if config.port == 0 && !ports.is_empty() {
        let name = if protocol == Some(Protocol::Udp) {
            "UDP"
        } else {
            "TCP"
        };
        section.error(
            line,
            format!("a pool without a {name} port needs check = {{ port = ... }}, a {name} port at which its reals answer"),
        );
    }
    (config.port != 0).then_some(config)
}

/// An address that one host can have, and that is reached by a network.
pub(crate) fn unicast(text: &str) -> Option<IpAddr> {
    let addr: IpAddr = text.parse().ok()?;
    let addr = addr.to_canonical();
    let fits = match addr {
        IpAddr::V4(v4) => v4.octets()[0] != 0 && !v4.is_broadcast() && !v4.is_loopback(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unspecified() && !v6.is_unicast_link_local(),
    };
    (fits && !addr.is_multicast()).then_some(addr)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{config::Config, host::fake::FakeHost};

    const BALANCE: &str = "[balance]\ninterface = \"eth0\"\n";

    fn check(text: &str) -> Result<Config, String> {
        let checked = Config::check(Path::new("weir.toml"), text, &FakeHost::default());
        checked.map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_pool_is_read() {
        let text = format!(
            "{BALANCE}[pool.web]\nvip = [\"198.51.100.80\", \"2001:db8::80\"]\nports = [\"80/tcp\", \"443/udp\"]\n\
             reals = [{{ address = \"10.0.0.11\", weight = 2 }}, {{ address = \"2001:db8::12\" }}]\n\
             method = \"maglev\"\ncheck = {{ interval = \"5s\", rise = 4 }}"
        );
        let balance = check(&text).unwrap().balance.unwrap();
        assert_eq!(
            (balance.interface.as_deref(), balance.announce),
            (Some("eth0"), false)
        );
        assert!(check(&text).unwrap().vips().is_empty());
        let announced = text.replace("[pool.web]", "announce = true\n[pool.web]");
        let vips = check(&announced).unwrap().vips().held;
        assert_eq!(vips.into_values().collect::<Vec<_>>(), ["eth0", "eth0"]);
        let pool = &balance.pools[0];
        assert_eq!(pool.ports, [(Protocol::Tcp, 80), (Protocol::Udp, 443)]);
        assert_eq!(
            (pool.vips.len(), pool.reals[0].weight, pool.reals[1].weight),
            (2, 2, 1)
        );
        let expected = CheckConfig {
            kind: CheckKind::Tcp,
            port: 80,
            interval: 5 * SECOND,
            timeout: SECOND,
            rise: 4,
            fall: 3,
        };
        assert_eq!(pool.check, expected);
        assert!(check("").unwrap().balance.is_none());
        let warnings = check("[balance]\ninterface = \"eth9\"").unwrap().warnings;
        let warnings = warnings.join("\n");
        assert!(warnings.contains("which this host has not"), "{warnings}");
    }

    #[test]
    fn an_emergency_is_read() {
        let pool = |name: &str, words: &str| {
            format!(
                "[pool.{name}]\nvip = [\"198.51.100.80\"]\nports = [\"{}/tcp\"]\nreals = [{{ address = \"10.0.0.11\" }}]\n{words}\n",
                80 + name.len()
            )
        };
        let text = [
            BALANCE,
            &pool("a", "emergency = \"bb\""),
            &pool("bb", "emergency = [{ address = \"10.0.0.12\" }]"),
        ];
        let pools = check(&text.concat()).unwrap().balance.unwrap().pools;
        assert_eq!(pools[0].emergency, Some(Emergency::Pool("bb".to_owned())));
        let own = pools[1].own_reals().map(|real| real.address.to_string());
        assert_eq!(own.collect::<Vec<_>>(), ["10.0.0.11", "10.0.0.12"]);
        assert_eq!(pools[0].own_reals().count(), 1);
    }

    #[test]
    fn what_this_host_cannot_serve_as_it_is_is_warned_of() {
        let address = |interface: &str, address: &str, bits| {
            let address = address.parse().unwrap();
            InterfaceAddress {
                interface: interface.to_owned(),
                address,
                network: weir_core::Prefix::new(address, bits).unwrap(),
            }
        };
        let host = |addresses| FakeHost {
            addresses,
            ..FakeHost::default()
        };
        let text = format!(
            "{BALANCE}[pool.web]\nvip = [\"198.51.100.80\", \"2001:db8::80\"]\nports = [\"80/tcp\"]\n\
             reals = [{{ address = \"10.0.0.11\" }}, {{ address = \"2001:db8::12\" }}]"
        );
        let warned = |host: &FakeHost| {
            let checked = Config::check(Path::new("weir.toml"), &text, host).unwrap();
            let told = checked
                .warnings
                .into_iter()
                .filter(|text| text.contains("pool.web"));
            told.collect::<Vec<_>>()
        };
        let eth0 = |addr, bits| address("eth0", addr, bits);
        let here = host(vec![
            eth0("10.0.0.1", 8),
            eth0("2001:db8::80", 64),
            address("lo", "198.51.100.80", 32),
        ]);
        assert_eq!(warned(&here), [""; 0]);
        let elsewhere = host(vec![eth0("192.0.2.1", 24), address("eth1", "10.0.0.1", 8)]);
        let told = warned(&elsewhere).join("\n");
        for words in [
            "vip in [pool.web] is 198.51.100.80, which this host has on no interface",
            "vip in [pool.web] is 2001:db8::80, which this host has on no interface",
            "reals of [pool.web] have 10.0.0.11, which is in no network of eth0",
            "reals of [pool.web] have 2001:db8::12, which is in no network of eth0",
        ] {
            assert!(told.contains(words), "{told}");
        }
        // Its interface is yet to come.
        assert_eq!(warned(&host(vec![address("eth1", "10.0.0.1", 8)])), [""; 0]);
    }

    /// What was mistyped is there: nothing is said to be missing beside it.
    #[test]
    fn one_mistake_is_named_once() {
        for (key, wrong) in [("vip", "5"), ("ports", "80"), ("reals", "\"10.0.0.11\"")] {
            let keys = [
                ("vip", "[\"198.51.100.80\"]"),
                ("ports", "[\"80/tcp\"]"),
                ("reals", "[{ address = \"10.0.0.11\" }]"),
            ];
            let keys =
                keys.map(|(k, right)| format!("{k} = {}\n", if k == key { wrong } else { right }));
            let error = check(&format!("{BALANCE}[pool.web]\n{}", keys.concat())).unwrap_err();
            assert!(
                error.contains(&format!("{key} in [pool.web] is ")),
                "{error}"
            );
            assert!(!error.contains("names none"), "{error}");
        }
    }

    #[test]
    fn a_proxy_is_read_and_needs_no_interface() {
        let pool = "[pool.web]\nvip = [\"198.51.100.80\"]\nports = [\"80/tcp\"]\nreals = [{ address = \"2001:db8::11\" }]\nforward = \"proxy\"\n";
        let keys = "max_connections = 7\nmax_connections_per_client = 2\nidle_timeout = \"2m\"\nproxy_protocol = \"v2\"\n[proxy]\nthreads = 3";
        for backend in ["auto", "nft", "dry-run"] {
            let text = format!("backend = \"{backend}\"\n{pool}{keys}");
            let balance = check(&text).unwrap().balance.unwrap();
            assert_eq!((&balance.interface, balance.threads), (&None, Some(3)));
            let Forward::Proxy(limits) = balance.pools[0].forward else {
                panic!("it is relayed for");
            };
            assert_eq!((limits.flows, limits.flows_of_client), (7, Some(2)));
            assert_eq!(limits.idle_timeout, 120 * SECOND);
            assert_eq!(limits.udp_timeout, 60 * SECOND);
        }
        // One beside it that is not relayed for needs what it needed.
        let other = pool.replace("web", "mail").replace(".80\"", ".81\"");
        let other = other.replace("forward = \"proxy\"", "");
        let told = check(&format!("{pool}{other}")).unwrap_err();
        assert!(told.contains("[pool] without [balance]"), "{told}");
    }

    #[test]
    fn a_check_is_read() {
        let kind = |words: &str| {
            let pool = "[pool.web]\nvip = [\"198.51.100.80\"]\nports = [\"80/tcp\", \"53/udp\"]\nreals = [{ address = \"10.0.0.11\" }]";
            let text = format!("{BALANCE}{pool}\ncheck = {{ {words} }}");
            let check = check(&text).unwrap().balance.unwrap().pools[0]
                .check
                .clone();
            (check.kind, check.port)
        };
        let http = |host: Option<&str>, status| {
            CheckKind::Http(HttpConfig {
                path: "/healthz".to_owned(),
                host: host.map(str::to_owned),
                status,
            })
        };
        for words in ["\"/bin/true -a 'b c'\"", "[\"/bin/true\", \"-a\", \"b c\"]"] {
            let command = ["/bin/true", "-a", "b c"].map(str::to_owned);
            let command = CheckKind::Command(command.to_vec());
            assert_eq!(kind(&format!("command = {words}")), (command, 80));
        }
        let usual = http(None, vec![200..=399]);
        assert_eq!(kind("http = \"/healthz\""), (usual, 80));
        let words = "http = \"/healthz\", host = \"a.example:8080\", port = 8080, status = [\"200\", \"401-403\"]";
        let all = http(Some("a.example:8080"), vec![200..=200, 401..=403]);
        assert_eq!(kind(words), (all, 8080));
        for name in [".", "www.example.org", "_a.b-c."] {
            let dns = CheckKind::Dns(name.to_owned());
            assert_eq!(kind(&format!("dns = {name:?}")), (dns, 53));
        }
        for require_answer in [false, true] {
            let udp = CheckKind::Udp(UdpConfig {
                payload: "ping".to_owned(),
                require_answer,
            });
            let words = format!("udp = \"ping\", require_answer = {require_answer}");
            assert_eq!(kind(&words), (udp, 53));
        }
    }

    #[test]
    fn mistakes_are_named() {
        let pool = |words: &str| format!("{BALANCE}[pool.web]\n{words}");
        let usual = |but: &str, words: &str| {
            let keys = [
                ("vip", "[\"198.51.100.80\"]"),
                ("ports", "[\"80/tcp\"]"),
                ("reals", "[{ address = \"10.0.0.11\" }]"),
            ];
            let kept = keys.iter().filter(|(key, _)| *key != but);
            let kept: String = kept
                .map(|(key, value)| format!("{key} = {value}\n"))
                .collect();
            pool(&format!("{words}\n{kept}"))
        };
        for (text, told) in [
            (
                "[balance]".to_owned(),
                "weir.toml:1: interface is missing in [balance]; allowed: ",
            ),
            (
                usual("", "").replace(BALANCE, ""),
                "[pool] without [balance]",
            ),
            (
                usual("vip", "vip = []"),
                ":4: vip in [pool.web] names none; allowed: ",
            ),
            (
                usual("vip", "vip = [\"224.0.0.1\"]"),
                ":4: vip in [pool.web] has \"224.0.0.1\"; allowed: ",
            ),
            (
                usual("ports", "ports = [\"80\"]"),
                ":4: ports in [pool.web] has \"80\"; allowed: ",
            ),
            (
                usual("ports", "ports = [\"53/udp\"]"),
                ":3: a pool without a TCP port needs check",
            ),
            (
                usual("reals", ""),
                ":3: reals in [pool.web] names none; allowed: ",
            ),
            (
                usual("", "acl = [\"deny 203.0.113.0/24\"]"),
                ":4: acl in [pool.web] without acl_default, which holds for clients that no rule is about; allowed: acl_default = \"allow\" or \"deny\"",
            ),
            (
                usual("", "acl_default = \"deny\""),
                ":4: acl_default in [pool.web] without acl; allowed: with acl = a list of rules such as [\"deny 203.0.113.0/24\"",
            ),
            (
                usual(
                    "",
                    "acl_default = \"drop\"\nacl = [\"deny 203.0.113.0/24\"]",
                ),
                ":4: acl_default in [pool.web] is \"drop\"; allowed: \"allow\", \"deny\"",
            ),
            (
                usual(
                    "",
                    "acl_default = \"allow\"\nacl = [\"deny 203.0.113.1/24\"]",
                ),
                ":5: acl in [pool.web] has \"deny 203.0.113.1/24\"; allowed: a list of rules such as",
            ),
            (
                usual("", "acl_default = \"allow\"\nacl = [\"deny asn:64496\"]"),
                ":5: acl in [pool.web] has \"deny asn:64496\"; allowed: a list of rules such as",
            ),
            (
                usual("", "acl_default = \"allow\"\nacl = []"),
                ":5: acl in [pool.web] names none; allowed: a list of rules such as",
            ),
            (
                usual("", "acl_default = \"allow\"\nacl = [\"deny list:bad\"]"),
                ":5: acl in [pool.web] has list:bad, which is not configured; there is no [list.NAME]",
            ),
            (
                usual(
                    "",
                    &format!(
                        "acl_default = \"allow\"\nacl = [{}]",
                        "\"deny 192.0.2.7\",".repeat(65)
                    ),
                ),
                ":5: acl in [pool.web] has 65 rules; allowed: at most 64",
            ),
            (
                usual("", "emergency = \"other\""),
                ":4: emergency in [pool.web] is \"other\"; allowed: the name of another pool, or a list of tables such as [{ address = \"10.0.0.19\" }] (there is no other)",
            ),
            (
                usual("", "emergency = \"web\""),
                ":4: emergency in [pool.web] is \"web\"; allowed: the name of another pool",
            ),
            (
                usual("", "emergency = []"),
                ":4: emergency in [pool.web] names none; allowed: the name of another pool, or a list of tables",
            ),
            (
                usual("", "emergency = [{ address = \"10.0.0.11\" }]"),
                ":4: emergency in [pool.web] has 10.0.0.11, which is in reals; allowed: other servers",
            ),
            (
                usual("", "emergency = [{ address = \"198.51.100.80\" }]"),
                "is 198.51.100.80, a virtual address; allowed: the real's own address",
            ),
            (
                usual("reals", "reals = [\"10.0.0.11\"]"),
                ":4: reals in [pool.web] is \"10.0.0.11\"; allowed: ",
            ),
            (
                usual(
                    "reals",
                    "reals = [{ address = \"10.0.0.11\" }, { address = \"10.0.0.11\" }]",
                ),
                ":4: reals in [pool.web] has 10.0.0.11 twice",
            ),
            (
                usual("reals", "reals = [{ address = \"198.51.100.80\" }]"),
                "is 198.51.100.80, a virtual address; allowed: the real's own address",
            ),
            (
                usual("", "") + "[decoy]\nports = [\"79-81/tcp\"]",
                ":6: ports in [pool.web]: 80/tcp is in [decoy] as well",
            ),
            (
                usual("", "") + "[tarpit]\nports = [\"80/tcp\"]",
                ":6: ports in [pool.web]: 80/tcp is in [tarpit] as well",
            ),
            (
                usual("", "method = \"least-connections\""),
                ":4: method in [pool.web] is \"least-connections\"; allowed: \"maglev\", \"source-hash\", \"source-port-hash\", \"round-robin\"",
            ),
            (
                usual("", "slow_start = \"2h\""),
                ":4: slow_start in [pool.web] is ",
            ),
            (
                usual("", "forward = \"vxlan\""),
                ":4: forward in [pool.web] is \"vxlan\"; allowed: \"l2\", \"ipip\", \"gue\", \"proxy\"",
            ),
            (
                usual("", "forward = \"gue\"\nudp_timeout = \"1m\""),
                ":5: udp_timeout in [pool.web] is of forward = \"proxy\" only",
            ),
            (
                usual("", "forward = \"proxy\"\ngue_port = 6080"),
                ":5: gue_port in [pool.web] is of forward = \"gue\" only",
            ),
            (
                usual("", "forward = \"proxy\"\ntunnel_source = [\"10.1.0.1\"]"),
                ":5: tunnel_source in [pool.web] is of forward = \"ipip\" and \"gue\" only",
            ),
            (
                usual("", "forward = \"proxy\"\nemergency = \"mail\"")
                    + "[pool.mail]\nvip = [\"198.51.100.81\"]\nports = [\"80/tcp\"]\nreals = [{ address = \"10.0.0.12\" }]\n",
                ":5: emergency in [pool.web] is \"mail\", a pool with forward = \"l2\"; allowed beside forward = \"proxy\": a pool with \"proxy\" as well, or reals",
            ),
            (
                usual("", "emergency = \"mail\"")
                    + "[pool.mail]\nvip = [\"198.51.100.81\"]\nports = [\"80/tcp\"]\nreals = [{ address = \"10.0.0.12\" }]\nforward = \"proxy\"\n",
                ":4: emergency in [pool.web] is \"mail\", a pool with forward = \"proxy\"; allowed beside forward = \"l2\": a pool without \"proxy\", or reals",
            ),
            (
                usual(
                    "",
                    "forward = \"proxy\"\ntransparent = true\nemergency = [{ address = \"2001:db8::12\" }]",
                ),
                "transparent in [pool.web]: its virtual addresses and reals are of both families",
            ),
            (
                usual(
                    "",
                    "forward = \"proxy\"\ntransparent = true\nemergency = \"mail\"",
                ) + "[pool.mail]\nvip = [\"198.51.100.81\"]\nports = [\"80/tcp\"]\nreals = [{ address = \"2001:db8::12\" }]\nforward = \"proxy\"\n",
                ":6: emergency in [pool.web] is \"mail\", which has 2001:db8::12, and with transparent no real can see a client's address of the other family",
            ),
            (
                usual("", "forward = \"ipip\"\ngue_port = 6080"),
                "gue_port in [pool.web] is of forward = \"gue\" only",
            ),
            (usual("", "forward = \"gue\"\ngue_port = 0"), "gue_port"),
            (
                usual("", "tunnel_source = [\"10.1.0.1\"]"),
                "tunnel_source in [pool.web] is of forward = \"ipip\" and \"gue\" only",
            ),
            (
                usual(
                    "",
                    "forward = \"gue\"\ntunnel_source = [\"10.1.0.1\", \"10.1.0.2\"]",
                ),
                "tunnel_source in [pool.web] has \"10.1.0.2\"; allowed: at most one",
            ),
            (
                format!(
                    "backend = \"xdp-generic\"\n{}",
                    usual("", "forward = \"gue\"")
                ),
                "[pool] with backend = \"xdp-generic\": no tunnels to reals",
            ),
            (
                usual("", "idle_timeout = \"1m\""),
                ":4: idle_timeout in [pool.web] is of forward = \"proxy\" only",
            ),
            (
                usual("", "forward = \"proxy\"\nproxy_protocol = \"v1\""),
                ":5: proxy_protocol in [pool.web] is \"v1\"; allowed: \"v2\"",
            ),
            (
                usual("", "forward = \"proxy\"\nmax_connections = 0"),
                ":5: max_connections in [pool.web] is 0; allowed: ",
            ),
            (
                usual(
                    "vip",
                    "vip = [\"2001:db8::80\"]\nforward = \"proxy\"\ntransparent = true",
                ),
                "transparent in [pool.web]: its virtual addresses and reals are of both families",
            ),
            (
                "[proxy]\nthreads = 0".to_owned(),
                "weir.toml:2: threads in [proxy] is 0; allowed: ",
            ),
            (
                usual("", "check = { https = \"/\" }"),
                "unknown key \"https\" in [pool.web.check]",
            ),
            (
                usual("", "check = { http = \"healthz\" }"),
                ":4: http in [pool.web.check] is \"healthz\"; allowed: a path such as",
            ),
            (
                usual("", "check = { http = \"/a b\" }"),
                ":4: http in [pool.web.check] is \"/a b\"; allowed: a path such as",
            ),
            (
                usual("", "check = { http = \"/a\\r\\nX-A: b\" }"),
                ":4: http in [pool.web.check] is \"/a\\r\\nX-A: b\"; allowed: ",
            ),
            (
                usual("", "check = { http = 80 }"),
                ":4: http in [pool.web.check] is ",
            ),
            (
                usual("", "check = { http = \"/\", host = \"a\\r\\nb\" }"),
                ":4: host in [pool.web.check] is \"a\\r\\nb\"; allowed: a host such as",
            ),
            (
                usual("", "check = { http = \"/\", status = \"2xx\" }"),
                ":4: status in [pool.web.check] is \"2xx\"; allowed: a status or a range such as \"200\"",
            ),
            (
                usual("", "check = { http = \"/\", status = 200 }"),
                "; allowed: a status or a range such as \"200\"",
            ),
            (
                usual(
                    "",
                    "check = { http = \"/\", status = [\"200\", \"399-300\"] }",
                ),
                ":4: status in [pool.web.check] is \"399-300\"; allowed: ",
            ),
            (
                usual("", "check = { http = \"/\", status = [] }"),
                ":4: status in [pool.web.check] names none; allowed: ",
            ),
            (
                usual("", "check = { http = \"/\", dns = \".\" }"),
                ":4: [pool.web.check] has http and dns; allowed: at most one of http, dns, udp, command",
            ),
            (
                usual("", "check = { command = \"check-web\" }"),
                ":4: command in [pool.web.check] begins with \"check-web\"; allowed: an absolute path",
            ),
            (
                usual("", "check = { command = \"/bin/true 'a\" }"),
                ":4: command in [pool.web.check] is \"/bin/true 'a\", a quote without its end; allowed: ",
            ),
            (
                usual("", "check = { command = \"\" }"),
                ":4: command in [pool.web.check] is empty; allowed: an absolute path",
            ),
            (
                usual("", "check = { command = 5 }"),
                ":4: command in [pool.web.check] is 5; allowed: an absolute path",
            ),
            (
                usual("", "check = { port = 53, dns = \"a..b\" }"),
                ":4: dns in [pool.web.check] is \"a..b\"; allowed: a name such as \"example.org\"",
            ),
            (
                usual("", "check = { port = 53, dns = \"\" }"),
                ":4: dns in [pool.web.check] is \"\"; allowed: a name such as",
            ),
            (
                usual("", "check = { port = 53, dns = \"a b\" }"),
                ":4: dns in [pool.web.check] is \"a b\"; allowed: a name such as",
            ),
            (
                usual("", "check = { dns = \"a\" }"),
                ":3: a pool without a UDP port needs check = { port = ... }, a UDP port",
            ),
            (
                usual("", "check = { port = 53, udp = true }"),
                ":4: udp in [pool.web.check] is ",
            ),
            (
                usual(
                    "",
                    &format!("check = {{ port = 53, udp = \"{}\" }}", "a".repeat(1201)),
                ),
                "; allowed: a text of at most 1200 bytes",
            ),
            (
                usual("", "check = { require_answer = true }"),
                ":4: require_answer in [pool.web.check] without udp; allowed: with udp = ",
            ),
            (
                usual("", "check = { host = \"a\" }"),
                ":4: host in [pool.web.check] without http; allowed: with http = ",
            ),
            (
                usual("", "check = { status = \"200\" }"),
                ":4: status in [pool.web.check] without http; allowed: with http = ",
            ),
            (
                format!(
                    "{}[pool.other]\nvip = [\"198.51.100.80\"]\nports = [\"80/tcp\"]\nreals = [{{ address = \"10.0.0.12\" }}]",
                    usual("", "")
                ),
                "serves 80/tcp of 198.51.100.80, which [pool.web] serves",
            ),
        ] {
            let error = check(&text).expect_err(&text);
            assert!(error.contains(told), "{text}\n{error}");
        }
    }

    #[test]
    fn a_backend_that_cannot_forward_is_refused() {
        let text = format!(
            "backend = \"nft\"\n{BALANCE}[pool.web]\nvip = [\"198.51.100.80\"]\nports = [\"80/tcp\"]\nreals = [{{ address = \"10.0.0.11\" }}]"
        );
        let error = check(&text).unwrap_err();
        let told = "weir.toml:2: [balance] with backend = \"nft\": no load balancing";
        assert!(error.contains(told), "{error}");
    }
}
