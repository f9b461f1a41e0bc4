//! `[tarpit]`: ports that nobody serves, and addresses that nobody has, which hold whoever
//! connects. The packet path answers (bpf/answer/tarpit.h); [`super::Decoy`] tells the
//! backend which ports and addresses those are, beside its own.

use std::{net::IpAddr, time::Duration};

use serde::Serialize;
use weir_config::manual::{
    FACTOR, INCREMENT, NONE, Table,
    Usual::{Is, Means},
    key,
};
use weir_config::{
    Section,
    values::{SECOND, limits},
};
use weir_core::{
    PortRange, Prefix, PrefixSet, Protocol,
    decoy::{DecoyPorts, Entry},
    policy::JailLimits,
};
use weir_enforce::MAX_TARPIT_PREFIXES as MAX_ADDRESSES;

use super::config::{DecoyConfig, joined, refuse_used};
use crate::{host::HostFacts, jails::JailConfig};

/// `[tarpit]` in weir.toml(5).
pub(crate) const MANUAL: &[Table] = &[
    Table {
        name: "tarpit",
        about: "TCP ports that nobody serves, and addresses that nobody has: whoever connects to one is held, and banned for it only with max_retry.",
        needs: &[
            ("ports", "[\"25/tcp\"]"),
            ("dark", "[\"192.0.2.0/24\"]"),
            ("max_retry", "3"),
        ],
        keys: &[
            key(
                "ports",
                Means("none, where there are addresses or dark"),
                "The tarpit ports, on this host's own addresses; \"!22/tcp\" takes one out of a range.",
            ),
            key(
                "addresses",
                NONE,
                "Prefixes of addresses that nobody has: all their TCP ports are tarpits, and ARP and neighbour solicitations for them are answered.",
            ),
            key(
                "dark",
                NONE,
                "Prefixes of which each address is such a one once somebody has asked for it and nobody has answered, this host neither, for dark_after.",
            ),
            key(
                "dark_after",
                Is("\"10s\""),
                "For how long nobody must have answered; 2s to 1h.",
            ),
            key(
                "max_retry",
                NONE,
                "An address is banned after this number of completed handshakes within find_time; without it nobody is.",
            ),
            key(
                "find_time",
                Is("\"10m\""),
                "The time within which handshakes count together.",
            ),
            key(
                "ban_time",
                Is("\"1h\""),
                "How long a ban lasts. \"forever\" is a permanent ban.",
            ),
            INCREMENT,
        ],
    },
    Table {
        name: "tarpit.increment",
        about: "How the bans of an address that comes back grow longer.",
        needs: &[],
        keys: &[
            FACTOR,
            key("max", Is("\"5w\""), "The longest that a ban may last."),
        ],
    },
];

const PORTS: &str = "a list of TCP ports such as [\"25/tcp\", \"6000-6010/tcp\", \"!22/tcp\"]";

/// A checked `[tarpit]`.
#[derive(Debug, Clone, PartialEq)]
pub struct TarpitConfig {
    /// TCP ports that hold whoever connects.
    pub ports: DecoyPorts,
    /// The ports as typed, to be shown.
    pub typed: Vec<String>,
    /// Prefixes whose every address holds whoever connects, but for those that somebody has.
    pub addresses: PrefixSet,
    /// Prefixes whose addresses do so once nobody has answered for them for `dark_after`.
    pub dark: PrefixSet,
    /// Of this number of whole seconds, without an answer to anybody's question.
    pub dark_after: Duration,
    /// How many handshakes ban, and for how long; none: they ban nobody.
    pub limits: Option<JailLimits>,
}

/// Tarpit ports as shown.
#[derive(Debug, Clone, Serialize)]
pub struct TarpitStatus {
    /// The ports as typed in the configuration.
    pub ports: Vec<String>,
    /// Prefixes of addresses that nobody has.
    pub addresses: Vec<String>,
    /// Prefixes of addresses that are found out to be nobody's.
    pub dark: Vec<String>,
    /// How many ports those are, less those that are served.
    pub open: usize,
    /// Tarpit ports that somebody serves by now: they hold nobody.
    pub served: Vec<String>,
    /// ARP requests and neighbour solicitations answered for addresses that nobody has,
    /// since the tables were made.
    pub resolved: u64,
    /// Those that this host asked itself since then, to find out whether anybody answers.
    pub asked: u64,
    /// Those for an address that found no place to be learned, or took another's.
    pub crowded: u64,
    /// SYNs answered since then.
    pub answered: u64,
    /// Packets of held clients answered with a window of zero since then.
    pub held: u64,
    /// Packets above a limit, dropped without an answer.
    pub unanswered: u64,
    /// Handshakes completed since the daemon's start, as far as the kernel tells of them.
    pub handshakes: u64,
}

pub(crate) fn read(
    root: &mut Section<'_, '_>,
    host: &dyn HostFacts,
    jails: &[JailConfig],
    decoy: Option<&DecoyConfig>,
) -> Option<TarpitConfig> {
    let mut section = root.section("tarpit")?;
    let line = section.line();
    let listed = section.list("ports", PORTS);
    let (line, typed) = listed.map_or((line, None), |at| (at.line, Some(at.value)));
    let mut entries = Vec::new();
    for entry in typed.iter().flatten() {
        match entry.value.parse::<Entry>() {
            Ok(parsed) if parsed.range.protocol == Protocol::Tcp => entries.push(parsed),
            _ => {
                let text: String = entry.value.chars().take(64).collect();
                section.error(
                    entry.line,
                    format!("ports in [tarpit]: {text:?} is not a TCP port; allowed: 25/tcp, 6000-6010/tcp, !22/tcp (ports 1-65535)"),
                );
            }
        }
    }
    let well_formed = typed.as_ref().is_some_and(|t| t.len() == entries.len());
    let ports = DecoyPorts::new(&entries);
    let addresses = read_addresses(&mut section, "addresses");
    let (dark, dark_after) = read_dark(&mut section, addresses.as_ref());
    let is_left_out = typed.is_none() && (addresses.is_some() || dark.is_some());
    if ports.is_empty() && !is_left_out && (well_formed || typed.is_none()) {
        section.error(
            line,
            format!("ports in [tarpit] names none; allowed: {PORTS}"),
        );
    }
    refuse_used(&section, "tarpit", line, &ports, host, jails);
    let both = decoy.map_or_else(Vec::new, |decoy| shared(&ports, &decoy.ports));
    if !both.is_empty() {
        section.error(
            line,
            format!(
                "ports in [tarpit]: {} in [decoy] as well, and a port is one or the other; leave out of one of them with {}",
                joined(&both, ""),
                joined(&both, "!")
            ),
        );
    }
    let bans = section.has("max_retry");
    let idle = ["find_time", "ban_time", "increment"].map(|key| (key, section.has(key)));
    let limits = limits(&mut section, true);
    if let Some((key, _)) = idle.iter().find(|(_, there)| *there && !bans) {
        section.error(
            line,
            format!("{key} in [tarpit] bans nobody without max_retry; allowed: max_retry = 1 or more beside it, or no {key}"),
        );
    }
    section.finish();
    Some(TarpitConfig {
        ports,
        typed: typed.into_iter().flatten().map(|at| at.value).collect(),
        addresses: addresses.unwrap_or_default(),
        dark: dark.unwrap_or_default(),
        dark_after,
        limits: bans.then_some(limits),
    })
}

const ADDRESSES: &str = "a list of prefixes of unicast addresses such as [\"192.0.2.128/25\", \"2001:db8::/64\"], of IPv4 /8 to /32, of IPv6 /32 to /128";

/// `dark`, and how long nobody answers for what is.
fn read_dark(
    section: &mut Section<'_, '_>,
    addresses: Option<&PrefixSet>,
) -> (Option<PrefixSet>, Duration) {
    let line = section.line_of("dark").unwrap_or(section.line());
    let dark = read_addresses(section, "dark");
    let after_line = section.line_of("dark_after");
    let after = section.duration("dark_after", 2 * SECOND..=3600 * SECOND);
    if let Some(line) = after_line.filter(|_| dark.is_none()) {
        section.error(
            line,
            "dark_after in [tarpit] is about nothing without dark; allowed: with dark = [\"192.0.2.0/24\"]",
        );
    }
    let of = |set: Option<&PrefixSet>| set.map_or(0, PrefixSet::len);
    let is_listed = |prefix: &Prefix| addresses.is_some_and(|set| set.iter().any(|p| p == *prefix));
    let both = dark.iter().flat_map(PrefixSet::iter).find(is_listed);
    if let Some(prefix) = both {
        section.error(
            line,
            format!("dark in [tarpit]: {prefix} is in addresses as well, and an address is a tarpit at once or later; leave it out of one of them"),
        );
    } else if of(addresses) + of(dark.as_ref()) > MAX_ADDRESSES {
        section.error(
            line,
            format!("addresses and dark in [tarpit] name more than {MAX_ADDRESSES} prefixes; allowed: 1 to {MAX_ADDRESSES}"),
        );
    }
    (dark, after.map_or(10 * SECOND, |at| at.value))
}

/// What the section says, if it does: prefixes whose addresses a host could have.
fn read_addresses(section: &mut Section<'_, '_>, key: &'static str) -> Option<PrefixSet> {
    let listed = section.list(key, ADDRESSES)?;
    let mut addresses = PrefixSet::default();
    for entry in &listed.value {
        match entry.value.parse::<Prefix>() {
            Ok(prefix) if is_unicast(prefix) => {
                addresses.insert(prefix);
            }
            _ => {
                let text: String = entry.value.chars().take(64).collect();
                section.error(
                    entry.line,
                    format!("{key} in [tarpit]: {text:?} is none; allowed: {ADDRESSES}"),
                );
            }
        }
    }
    if listed.value.is_empty() || addresses.len() > MAX_ADDRESSES {
        section.error(
            listed.line,
            format!(
                "{key} in [tarpit] names {} prefixes; allowed: 1 to {MAX_ADDRESSES}",
                addresses.len()
            ),
        );
    }
    Some(addresses)
}

fn is_unicast(prefix: Prefix) -> bool {
    match prefix.addr() {
        IpAddr::V4(addr) => prefix.bits() >= 8 && !matches!(addr.octets()[0], 0 | 127 | 224..),
        IpAddr::V6(addr) => {
            prefix.bits() >= 32 && !matches!(addr.segments()[0], 0 | 0xfe80..=0xfebf | 0xff00..)
        }
    }
}

/// The TCP ports that are in both.
fn shared(one: &DecoyPorts, other: &DecoyPorts) -> Vec<PortRange> {
    let mut both = one.clone();
    for port in 1..=u16::MAX {
        if !other.contains(Protocol::Tcp, port) {
            both.remove(Protocol::Tcp, port);
        }
    }
    both.ranges()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use weir_config::ConfigErrors;

    use super::*;
    use crate::{config::Config, host::fake::FakeHost};

    fn check(text: &str) -> Result<Config, ConfigErrors> {
        let lab = FakeHost {
            has_file: |_| false,
            listeners: [(Protocol::Tcp, 22), (Protocol::Tcp, 443)].into(),
            ..FakeHost::default()
        };
        Config::check(Path::new("weir.toml"), text, &lab)
    }

    #[test]
    fn tarpit_ports_are_read() {
        let text = "[tarpit]\nports = [\"1-1024/tcp\", \"!22/tcp\", \"!443/tcp\"]\n\
                    [decoy]\nports = [\"2323/tcp\", \"25/udp\"]";
        let config = check(text).unwrap_or_else(|e| panic!("{e}"));
        let tarpit = config.tarpit.as_ref().unwrap();
        assert_eq!(tarpit.ports.len(), 1022);
        assert_eq!(tarpit.typed[1], "!22/tcp");
        assert!(!config.denies_nothing());
        assert!(check("").unwrap().tarpit.is_none());
        assert_eq!(tarpit.limits, None);
        let dark = "[tarpit]\naddresses = [\"192.0.2.128/25\", \"2001:db8::/64\"]";
        let dark = check(dark).unwrap().tarpit.unwrap();
        assert_eq!((dark.addresses.len(), dark.ports.is_empty()), (2, true));
        let learned = |after: &str| {
            let text = format!("[tarpit]\ndark = [\"192.0.2.0/24\", \"2001:db8::/64\"]{after}");
            check(&text).unwrap().tarpit.unwrap()
        };
        let (usual, soon) = (learned(""), learned("\ndark_after = \"3s\""));
        assert_eq!((usual.dark.len(), usual.dark_after), (2, 10 * SECOND));
        assert_eq!((soon.ports.is_empty(), soon.dark_after), (true, 3 * SECOND));
        let bans = "[tarpit]\nports = [\"25/tcp\"]\nmax_retry = 3\nincrement = { max = \"2w\" }";
        let limits = check(bans).unwrap().tarpit.unwrap().limits.unwrap();
        assert_eq!((limits.max_retry, limits.increment.is_some()), (3, true));
    }

    #[test]
    fn mistakes_in_tarpit_are_named() {
        for (words, told) in [
            ("", "weir.toml:1: ports in [tarpit] names none; allowed: "),
            ("ports = []", ":2: ports in [tarpit] names none; allowed: "),
            (
                "ports = [\"25/tcp\",\n\"25/udp\"]",
                ":3: ports in [tarpit]: \"25/udp\" is not a TCP port; allowed: 25/tcp",
            ),
            (
                "ports = [\"25\"]",
                ":2: ports in [tarpit]: \"25\" is not a TCP port",
            ),
            (
                "ports = [\"smtp\"]",
                ":2: ports in [tarpit]: \"smtp\" is not a TCP port",
            ),
            (
                "ports = [\"1-1024/tcp\"]",
                ":2: ports in [tarpit]: 22/tcp, 443/tcp are served on this host; leave out with \"!22/tcp\", \"!443/tcp\"",
            ),
            (
                "ports = [\"25/tcp\"]\n[jail.sshd]\nports = [\"20-30\"]",
                ":2: ports in [tarpit]: 20-30 belong to a service, by [jail.sshd]",
            ),
            (
                "ports = [\"23-25/tcp\"]\n[decoy]\nports = [\"24-30/tcp\", \"23/udp\"]",
                ":2: ports in [tarpit]: 24-25/tcp in [decoy] as well, and a port is one or the other; leave out of one of them with \"!24-25/tcp\"",
            ),
            (
                "ports = [\"25/tcp\"]\naddress = [\"192.0.2.9\"]",
                "unknown key \"address\" in [tarpit] (did you mean addresses?); allowed: ",
            ),
            (
                "addresses = []",
                ":2: addresses in [tarpit] names 0 prefixes; allowed: 1 to 256",
            ),
            (
                "addresses = [\"192.0.2.0/24\",\n\"224.0.0.0/8\"]",
                ":3: addresses in [tarpit]: \"224.0.0.0/8\" is none; allowed: a list of prefixes",
            ),
            (
                "dark = [\"0.0.0.0/0\"]",
                "dark in [tarpit]: \"0.0.0.0/0\" is none",
            ),
            (
                "dark = []",
                "dark in [tarpit] names 0 prefixes; allowed: 1 to 256",
            ),
            (
                "dark = [\"192.0.2.0/24\"]\ndark_after = \"1s\"",
                ":3: dark_after in [tarpit] is ",
            ),
            (
                "ports = [\"25/tcp\"]\ndark_after = \"5s\"",
                ":3: dark_after in [tarpit] is about nothing without dark",
            ),
            (
                "dark = [\"192.0.2.0/24\"]\naddresses = [\"192.0.2.0/24\"]",
                ":2: dark in [tarpit]: 192.0.2.0/24 is in addresses as well",
            ),
            ("addresses = [\"0.0.0.0/0\"]", ": \"0.0.0.0/0\" is none"),
            ("addresses = [\"fe80::/64\"]", ": \"fe80::/64\" is none"),
            ("addresses = [\"eth0\"]", ": \"eth0\" is none"),
            (
                "addresses = [\"192.0.2.0/24\"]\nports = []",
                ":3: ports in [tarpit] names none",
            ),
            (
                "addresses = [\"192.0.2.0/24\"]\n[balance]\ninterface = \"eth0\"\n\
                 [pool.web]\nvip = [\"192.0.2.80\"]\nports = [\"80/tcp\"]\nreals = [\"192.0.2.11\"]",
                ":2: addresses in [tarpit]: 192.0.2.80 is a virtual address of [pool.web]",
            ),
            (
                "ports = [\"25/tcp\"]\nban_time = \"1h\"",
                ":2: ban_time in [tarpit] bans nobody without max_retry",
            ),
            (
                "ports = [\"25/tcp\"]\nmax_retry = 0",
                ":3: max_retry in [tarpit] is 0; allowed: a whole number 1-1000",
            ),
        ] {
            let error = check(&format!("[tarpit]\n{words}")).expect_err(words);
            let error = error.to_string();
            assert!(error.contains(told), "{words}: {error}");
        }
        let nft = check("backend = \"nft\"\n[tarpit]\nports = [\"25/tcp\"]").unwrap_err();
        let nft = nft.to_string();
        assert!(
            nft.contains("weir.toml:2: [tarpit] with backend = \"nft\""),
            "{nft}"
        );
    }
}
