//! `check` of a pool: what its reals are asked, and how often.

use std::{ops::RangeInclusive, time::Duration};

use weir_config::{Section, values::SECOND};
use weir_core::{PortRange, Protocol, policy::format_duration};
use weir_proxy::ProxyHeader;

use super::{Forward, PoolConfig, RealConfig, command, wrong};

const PATH: &str = "a path such as \"/healthz\": it begins with / and has no blanks";
const HOST: &str = "a host such as \"www.example.org\" or \"[2001:db8::80]:8080\"";
const STATUS: &str = "a status or a range such as \"200\" or \"200-399\", or a list of these";
const DNS: &str = "a name such as \"example.org\", or \".\" for the root";
const UDP: &str = "a text of at most 1200 bytes such as \"ping\"";
/// The longest DNS name, in bytes.
const MAX_NAME_LENGTH: usize = 253;
/// The longest label of a name, in bytes.
const MAX_LABEL: usize = 63;
/// The longest payload of a datagram, in bytes: it is none in fragments.
const MAX_PAYLOAD: usize = 1200;
/// The longest path, in bytes.
const MAX_PATH: usize = 1024;
/// The longest host, a name with its port, in bytes.
const MAX_HOST: usize = 260;

/// How a pool's reals are checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckConfig {
    /// The kind of the check.
    pub kind: CheckKind,
    /// A port of each real, unless the real has one of its own and none was chosen here.
    pub port: u16,
    /// Whether `check` itself says at which port.
    pub is_port_chosen: bool,
    /// The time between two checks of a real.
    pub interval: Duration,
    /// The longest time that one check may take.
    pub timeout: Duration,
    /// Successes in a row that bring a dead real back.
    pub rise: u32,
    /// Failures in a row that make one dead.
    pub fall: u32,
    /// Whether a real must answer at the pool's virtual addresses as well, unless it is
    /// relayed for.
    pub asks_vips: bool,
}

impl CheckConfig {
    /// Whether the other check asks the same of a real, however often.
    pub(in crate::balance) fn asks_like(&self, other: &Self) -> bool {
        let asks = |check: &Self| (check.port, check.is_port_chosen, check.asks_vips);
        self.kind == other.kind && asks(self) == asks(other)
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
    /// The transport protocol of the checked port; `None` for a command, which chooses
    /// itself.
    pub(super) fn protocol(&self) -> Option<Protocol> {
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
    /// The path that is requested.
    pub path: String,
    /// The Host that is asked, in place of the real's address.
    pub host: Option<String>,
    /// The statuses of a live real.
    pub status: Vec<RangeInclusive<u16>>,
}

/// A datagram, and whether its answer is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpConfig {
    /// The datagram's content.
    pub payload: String,
    /// Whether a real that says nothing is down.
    pub require_answer: bool,
}

/// `check` of a pool. `of`: its name; `forward`: how packets reach the pool's reals.
pub(super) fn read(
    section: &mut Section<'_, '_>,
    of: &str,
    ports: &[PortRange],
    forward: &Forward,
    warnings: &mut Vec<String>,
) -> Option<CheckConfig> {
    let line = section.line();
    let mut config = CheckConfig {
        kind: CheckKind::Tcp,
        port: 0,
        is_port_chosen: false,
        interval: 2 * SECOND,
        timeout: SECOND,
        rise: 2,
        fall: 3,
        asks_vips: true,
    };
    let mut table = section.section("check");
    if let Some(check) = &mut table {
        config.kind = kind(check, of, warnings);
        if let Some(at) = check.integer("port", 1..=65535) {
            config.port = at.value as u16;
            config.is_port_chosen = true;
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
        let vip_line = check.line_of("vip").unwrap_or(line);
        if let Some(asks_vips) = check.boolean("vip") {
            config.asks_vips = asks_vips;
            if asks_vips && matches!(forward, Forward::Proxy(_)) {
                let why = format!(
                    "vip in {of} is true, and reals that this host relays to have no virtual addresses; allowed: with forward = \"l2\", \"ipip\" or \"gue\""
                );
                check.error(vip_line, why);
            }
        }
    }
    if let Some(table) = table {
        table.finish();
    }
    let protocol = config.kind.protocol();
    let mut all = None;
    if config.port == 0 {
        let of_protocol = |port: &&PortRange| protocol.is_none_or(|of| port.protocol == of);
        let mut first = ports.iter().filter(of_protocol);
        all = first.clone().find(|port| port.is_all());
        let first = first.find(|port| !port.is_all());
        config.port = first.map_or(0, |port| port.low);
    }
    if config.port == 0
        && let Some(all) = all
    {
        let name = match protocol {
            Some(Protocol::Udp) => "a UDP port",
            Some(_) => "a TCP port",
            None => "one",
        };
        section.error(
            line,
            format!("{of} has no port, and of {all} none is the one that is checked; allowed: check = {{ port = ... }}, {name} at which the reals answer"),
        );
        return None;
    }
    if config.port == 0 && !ports.is_empty() {
        let (name, or) = match (protocol, &config.kind) {
            (Some(Protocol::Udp), _) => ("UDP", ""),
            (_, CheckKind::Tcp) => (
                "TCP",
                ", or { dns = \"example.org\", port = ... } or { udp = \"ping\", port = ... } with a UDP port",
            ),
            _ => ("TCP", ""),
        };
        section.error(
            line,
            format!("a pool without a {name} port needs check = {{ port = ... }}, a {name} port at which its reals answer{or}"),
        );
    }
    (config.port != 0).then_some(config)
}

/// The port at which servers expect TLS, which weir does not speak.
const HTTPS: u16 = 443;

/// What is allowed, and takes a live real for dead, or a dead one for long for alive.
pub(super) fn warnings(pool: &PoolConfig) -> Vec<String> {
    let (of, check) = (format!("[pool.{}.check]", pool.name), &pool.check);
    let mut warnings = Vec::new();
    if check.timeout > check.interval {
        warnings.push(format!(
            "timeout in {of} is {}, longer than interval, {}: a real that says nothing is asked only after each timeout",
            format_duration(check.timeout),
            format_duration(check.interval)
        ));
    }
    if !matches!(check.kind, CheckKind::Http(_)) {
        return warnings;
    }
    let sends_header = matches!(
        &pool.forward,
        Forward::Proxy(limits) if limits.header != ProxyHeader::None
    );
    let expects_header = |real: &&RealConfig| {
        let port = pool.checked_port(real);
        sends_header
            && match real.port {
                Some(own) => own == port,
                None => pool.serves(Protocol::Tcp, port),
            }
    };
    let expects_tls = |real: &&RealConfig| pool.checked_port(real) == HTTPS;
    if let Some(real) = pool.own_reals().find(expects_header) {
        warnings.push(format!(
            "http in {of} is asked at port {} of {}, where the header of proxy_protocol is expected, which checks do not send: the answer is 400 or none; set port to one without it, or leave http out to ask for a connection only",
            pool.checked_port(real),
            real.address
        ));
    } else if pool.own_reals().any(|real| expects_tls(&real)) {
        warnings.push(format!(
            "http in {of} is asked at port {HTTPS}, where servers expect TLS, which weir does not speak: the answer is 400 or none; set port = 80, or leave http out to ask for a connection only"
        ));
    }
    warnings
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
    let command = command::read(check, of, warnings).map(CheckKind::Command);
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
