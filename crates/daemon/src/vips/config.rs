//! `[vrrp.NAME]`: virtual addresses that one of several hosts has at a time.

use std::{collections::BTreeMap, net::IpAddr};

use weir_config::{
    At, Section,
    manual::{
        NONE, Table,
        Usual::{Is, Means, Required},
        key,
    },
    values::check_name,
};
use weir_vrrp::{
    Checksum, Settings,
    advertisement::{MAX_INTERVAL, MAX_V4_ADDRESSES, MAX_V6_ADDRESSES},
};

use crate::{
    balance::config::{ADDRESS, BalanceConfig, PoolConfig, unicast},
    host::HostFacts,
};

/// `[vrrp.NAME]` in weir.toml(5).
pub(crate) const MANUAL: &[Table] = &[Table {
    name: "vrrp.NAME",
    about: "Virtual addresses that the active one of several hosts has (VRRP version 3, RFC 9568). weir adds them to the interface while it is active, whatever announce in [balance] says.",
    needs: &[
        ("id", "51"),
        ("interface", "\"eth0\""),
        ("addresses", "[\"192.0.2.80\"]"),
    ],
    keys: &[
        key(
            "id",
            Required,
            "The virtual router's id (VRID), the same on all of its hosts and of nobody else on the segment.",
        ),
        key(
            "interface",
            Means("that of [balance]"),
            "The interface on whose network segment the hosts agree, and that gets the addresses.",
        ),
        key("pools", NONE, "Pools whose virtual addresses these are."),
        key(
            "addresses",
            NONE,
            "Virtual addresses besides those of pools.",
        ),
        key(
            "priority",
            Is("100"),
            "The host with the highest one is active.",
        ),
        key(
            "interval",
            Is("100"),
            "How often the active host tells of itself, in hundredths of a second; the same on all of them. The next one takes over after a little more than three of them.",
        ),
        key(
            "preempt",
            Is("true"),
            "Whether this host takes over from an active one of a lower priority. With false it waits until that one is gone.",
        ),
        key(
            "track",
            Is("100"),
            "So much lower is the priority, and 1 at least, while all reals of one of the pools are dead; 0: it stays as it is.",
        ),
        key(
            "peers",
            Means("whoever is on the segment"),
            "The other hosts: advertisements of anybody else are refused. IPv6 ones are sent from link-local addresses.",
        ),
        key(
            "unicast",
            Is("false"),
            "With true, advertisements are sent to each of peers alone, where the network has no multicast.",
        ),
        key(
            "checksum",
            Is("\"pseudo-header\""),
            "What the checksum of an IPv4 advertisement covers beside itself: \"pseudo-header\", as keepalived and FRR have it, or \"plain\", as RFC 9568 has it. Both are accepted.",
        ),
    ],
}];

/// Below so many hundredths of a second an interval may be meant in seconds.
const SHORT_INTERVAL: u16 = 10;
const ID: std::ops::RangeInclusive<u64> = 1..=255;
const ADDRESSES: &str = "a list of addresses such as [\"192.0.2.80\", \"2001:db8::80\"]";
const PEERS: &str = "a list of addresses such as [\"192.0.2.2\", \"fe80::2\"]";
const POOLS: &str = "a list of pools by name such as [\"web\"]";

/// The virtual addresses that weir holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VipsConfig {
    /// Addresses that weir holds always, each with its interface.
    pub held: BTreeMap<IpAddr, String>,
    /// Virtual routers, whose addresses weir holds while it is active.
    pub routers: Vec<VrrpConfig>,
}

impl VipsConfig {
    /// Whether weir holds no virtual address.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.routers.is_empty()
    }
}

/// A checked `[vrrp.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VrrpConfig {
    /// The name in the configuration.
    pub name: String,
    /// The interface on which the hosts agree.
    pub interface: String,
    /// The virtual router's id.
    pub id: u8,
    /// Priority, interval and preemption.
    pub settings: Settings,
    /// How much lower its priority is while a pool has no live real.
    pub track: u8,
    /// The pools whose live reals the priority depends on.
    pub pools: Vec<String>,
    /// The virtual addresses, those of the pools as well.
    pub vips: Vec<IpAddr>,
    /// Those of them that are of none of its pools.
    pub own_vips: Vec<IpAddr>,
    /// The addresses of the other hosts; empty: any host takes part.
    pub peers: Vec<IpAddr>,
    /// Whether it tells each of them alone.
    pub unicast: bool,
    /// The part of a packet that an IPv4 checksum covers.
    pub checksum: Checksum,
}

pub(crate) fn read(
    root: &mut Section<'_, '_>,
    host: &dyn HostFacts,
    balance: Option<&BalanceConfig>,
    warnings: &mut Vec<String>,
) -> Vec<VrrpConfig> {
    let mut all: Vec<VrrpConfig> = Vec::new();
    for (name, mut section) in root.named_sections("vrrp") {
        let line = section.line();
        let config = one(name, &mut section, balance);
        if !config.interface.is_empty() && !host.has_interface(&config.interface) {
            warnings.push(format!(
                "interface in [vrrp.{}] is {:?}, which this host has not: it takes no part until it comes",
                config.name, config.interface
            ));
        }
        if config.settings.interval < SHORT_INTERVAL {
            warnings.push(format!(
                "interval in [vrrp.{}] is {} hundredths of a second: an active host that is busy for a moment is taken for dead; a second is 100",
                config.name, config.settings.interval
            ));
        }
        for other in &all {
            let at = |config: &VrrpConfig| (config.interface.clone(), config.id);
            if at(other) == at(&config) {
                section.error(
                    line,
                    format!(
                        "[vrrp.{}] has id {} on {}, which [vrrp.{}] has; allowed: an id for each",
                        config.name, config.id, config.interface, other.name
                    ),
                );
            }
            if let Some(vip) = config.vips.iter().find(|vip| other.vips.contains(vip)) {
                section.error(
                    line,
                    format!(
                        "[vrrp.{}] has the virtual address {vip}, which [vrrp.{}] has",
                        config.name, other.name
                    ),
                );
            }
        }
        section.finish();
        all.push(config);
    }
    all
}

fn one(name: String, section: &mut Section<'_, '_>, balance: Option<&BalanceConfig>) -> VrrpConfig {
    let (line, of) = (section.line(), format!("[vrrp.{name}]"));
    check_name(section, "vrrp", &name);
    let id = section.integer("id", ID);
    if id.is_none() && !section.is_written("id") {
        section.error(
            line,
            format!("id is missing in {of}; allowed: a whole number 1-255"),
        );
    }
    let interface = section.string("interface", "the name of an interface such as \"eth0\"");
    let of_balance = balance.and_then(|balance| balance.interface.clone());
    let interface = match (interface, of_balance) {
        (Some(at), _) => {
            let is_one = |byte: u8| byte != b'/' && byte.is_ascii_graphic();
            if !(1..16).contains(&at.value.len()) || !at.value.bytes().all(is_one) {
                let allowed = "the name of an interface such as \"eth0\", 1-15 letters";
                wrong(section, &of, "interface", &at, allowed);
            }
            at.value
        }
        (None, Some(interface)) => interface,
        (None, None) if section.is_written("interface") => String::new(),
        (None, None) => {
            let message = format!(
                "interface is missing in {of}; allowed: the name of an interface such as \"eth0\""
            );
            section.error(line, message);
            String::new()
        }
    };
    let mut vips = Vec::new();
    let pools = pools(section, &of, balance, &mut vips);
    let own = section.list("addresses", ADDRESSES);
    let mut own_vips = Vec::new();
    let all_pools = || balance.iter().flat_map(|balance| &balance.pools);
    for entry in own.iter().flat_map(|at| &at.value) {
        match unicast(&entry.value) {
            Some(vip) if own_vips.contains(&vip) => {
                section.error(entry.line, format!("addresses in {of} has {vip} twice"));
            }
            Some(vip) if vips.contains(&vip) => section.error(
                entry.line,
                format!("addresses in {of} has {vip}, which a pool of pools has; leave it out"),
            ),
            Some(vip) => {
                // A proxy may relay to what runs on the active host.
                let has = |pool: &&PoolConfig| {
                    !pool.is_proxied() && pool.own_reals().any(|real| real.address == vip)
                };
                if let Some(pool) = all_pools().find(has) {
                    section.error(
                        entry.line,
                        format!(
                            "addresses in {of} has {vip}, a real of [pool.{}]; allowed: addresses that no host has of its own",
                            pool.name
                        ),
                    );
                }
                vips.push(vip);
                own_vips.push(vip);
            }
            None => wrong(section, &of, "addresses", entry, ADDRESS),
        }
    }
    let [v4, v6] = [false, true].map(|is_v6| of_family(&vips, is_v6).count());
    let is_unknown = vips.is_empty() && section.is_unread("pool");
    if !is_unknown && vips.is_empty() || v4 > MAX_V4_ADDRESSES || v6 > MAX_V6_ADDRESSES {
        section.error(
            line,
            format!(
                "{of} has {v4} IPv4 and {v6} IPv6 addresses; allowed: one at least, by pools or addresses, and at most {MAX_V4_ADDRESSES} and {MAX_V6_ADDRESSES}"
            ),
        );
    }
    let number = |section: &mut Section<'_, '_>, key, range, usual: u64| {
        section.integer(key, range).map_or(usual, |at| at.value)
    };
    let settings = Settings {
        priority: number(section, "priority", 1..=254, 100) as u8,
        interval: number(section, "interval", 1..=u64::from(MAX_INTERVAL), 100) as u16,
        preempt: section.boolean("preempt").unwrap_or(true),
    };
    let track = number(section, "track", 0..=253, 100) as u8;
    let peers = peers(section, &of, &vips);
    let unicast_line = section.line_of("unicast").unwrap_or(line);
    let unicast = section.boolean("unicast").unwrap_or_default();
    if unicast && peers.is_empty() {
        section.error(
            unicast_line,
            format!("unicast in {of} without peers; allowed: with peers = {PEERS}"),
        );
    }
    let checksums = [
        ("pseudo-header", Checksum::WithPseudoHeader),
        ("plain", Checksum::Plain),
    ];
    let checksum = section.choice("checksum", &checksums);
    VrrpConfig {
        name,
        interface,
        id: id.map_or(1, |at| at.value as u8),
        settings,
        track,
        pools,
        vips,
        own_vips,
        peers,
        unicast,
        checksum: checksum.map_or(Checksum::WithPseudoHeader, |at| at.value),
    }
}

/// The addresses of one family.
pub(super) fn of_family(addresses: &[IpAddr], is_v6: bool) -> impl Iterator<Item = IpAddr> {
    let addresses = addresses.iter().copied();
    addresses.filter(move |address| address.is_ipv6() == is_v6)
}

fn wrong(section: &Section<'_, '_>, of: &str, key: &str, at: &At<String>, allowed: &str) {
    section.error(
        at.line,
        format!("{key} in {of} has {:?}; allowed: {allowed}", at.value),
    );
}

fn pools(
    section: &mut Section<'_, '_>,
    of: &str,
    balance: Option<&BalanceConfig>,
    vips: &mut Vec<IpAddr>,
) -> Vec<String> {
    let typed = section.list("pools", POOLS);
    let mut pools = Vec::new();
    for entry in typed.iter().flat_map(|at| &at.value) {
        let known = balance.iter().flat_map(|balance| &balance.pools);
        match known.clone().find(|pool| pool.name == entry.value) {
            Some(pool) => {
                // Two pools may have other ports of one address.
                vips.extend(
                    pool.vips
                        .iter()
                        .filter(|vip| !vips.contains(vip))
                        .copied()
                        .collect::<Vec<_>>(),
                );
                pools.push(entry.value.clone());
            }
            None if section.is_unread("pool") => (),
            None => {
                let names: Vec<_> = known.map(|pool| pool.name.as_str()).collect();
                let allowed = match names.is_empty() {
                    true => "none, for there is no pool".to_owned(),
                    false => names.join(", "),
                };
                wrong(section, of, "pools", entry, &allowed);
            }
        }
    }
    pools
}

fn peers(section: &mut Section<'_, '_>, of: &str, vips: &[IpAddr]) -> Vec<IpAddr> {
    let Some(typed) = section.list("peers", PEERS) else {
        return Vec::new();
    };
    let mut peers = Vec::new();
    for entry in &typed.value {
        let link_local = entry
            .value
            .parse()
            .ok()
            .filter(|address| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()));
        match unicast(&entry.value).or(link_local) {
            Some(peer) if !vips.contains(&peer) => peers.push(peer),
            _ => wrong(
                section,
                of,
                "peers",
                entry,
                "a peer's own address such as \"192.0.2.2\" or \"fe80::2\"",
            ),
        }
    }
    for (is_v6, family) in [(false, "IPv4"), (true, "IPv6")] {
        let needs = of_family(vips, is_v6).next().is_some();
        if needs && of_family(&peers, is_v6).next().is_none() {
            section.error(
                typed.line,
                format!("peers in {of} names none of {family}, and a virtual address is of it; allowed: {PEERS}, or no peers"),
            );
        }
    }
    peers
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{config::Config, host::fake::FakeHost};

    fn check(text: &str) -> Result<Config, String> {
        let checked = Config::check(Path::new("weir.toml"), text, &FakeHost::default());
        checked.map_err(|errors| errors.to_string())
    }

    const BALANCE: &str = "[balance]\ninterface = \"eth0\"\nannounce = true\n\
        [pool.web]\nvip = [\"198.51.100.80\", \"2001:db8::80\"]\nports = [\"80/tcp\"]\n\
        reals = [{ address = \"10.0.0.11\" }]\n\
        [pool.mail]\nvip = [\"198.51.100.25\"]\nports = [\"25/tcp\"]\nreals = [{ address = \"10.0.0.11\" }]\n";

    #[test]
    fn a_virtual_router_is_read() {
        let text = format!(
            "{BALANCE}[vrrp.edge]\nid = 51\npools = [\"web\"]\naddresses = [\"198.51.100.1\"]\npriority = 150\n\
             interval = 50\npreempt = false\ntrack = 0\npeers = [\"198.51.100.3\", \"fe80::3\"]\nunicast = true\nchecksum = \"plain\""
        );
        let vips = check(&text).unwrap().vips();
        // What is not this one's is held always.
        let mail = ("198.51.100.25".parse().unwrap(), "eth0".to_owned());
        assert_eq!(vips.held, BTreeMap::from([mail]));
        let expected = VrrpConfig {
            name: "edge".to_owned(),
            interface: "eth0".to_owned(),
            id: 51,
            settings: Settings {
                priority: 150,
                interval: 50,
                preempt: false,
            },
            track: 0,
            pools: vec!["web".to_owned()],
            vips: ["198.51.100.80", "2001:db8::80", "198.51.100.1"]
                .map(|vip| vip.parse().unwrap())
                .to_vec(),
            own_vips: vec!["198.51.100.1".parse().unwrap()],
            peers: ["198.51.100.3", "fe80::3"]
                .map(|peer| peer.parse().unwrap())
                .to_vec(),
            unicast: true,
            checksum: Checksum::Plain,
        };
        assert_eq!(vips.routers, [expected]);
        let text = "[vrrp.a]\nid = 1\ninterface = \"eth1\"\naddresses = [\"192.0.2.80\"]";
        let config = check(text).unwrap();
        let router = config.vips().routers.remove(0);
        let usual = Settings {
            priority: 100,
            interval: 100,
            preempt: true,
        };
        assert_eq!((router.settings, router.track), (usual, 100));
        assert!(router.peers.is_empty() && !router.unicast);
        let short = check(&format!("{text}\ninterval = 1")).unwrap().warnings;
        let told = "interval in [vrrp.a] is 1 hundredths of a second";
        assert!(short.iter().any(|text| text.contains(told)), "{short:?}");
        assert!(
            !config
                .warnings
                .iter()
                .any(|text| text.contains("hundredths"))
        );
        let warnings = check(&text.replace("eth1", "eth9"))
            .unwrap()
            .warnings
            .join("\n");
        assert!(
            warnings.contains("\"eth9\", which this host has not"),
            "{warnings}"
        );
    }

    #[test]
    fn mistakes_in_virtual_routers_are_named() {
        let usual = "id = 1\ninterface = \"eth0\"\naddresses = [\"192.0.2.80\"]\n";
        for (words, told) in [
            (
                "interface = \"eth0\"\naddresses = [\"192.0.2.80\"]".to_owned(),
                ":1: id is missing in [vrrp.a]",
            ),
            (
                "id = 256".to_owned(),
                ":2: id in [vrrp.a] is 256; allowed: a whole number 1-255",
            ),
            (
                "id = 1\naddresses = [\"192.0.2.80\"]".to_owned(),
                ":1: interface is missing in [vrrp.a]",
            ),
            (
                "id = 1\ninterface = \"eth0\"".to_owned(),
                ":1: [vrrp.a] has 0 IPv4 and 0 IPv6 addresses; allowed: one at least",
            ),
            (
                usual.replace("192.0.2.80", "224.0.0.1"),
                ":4: addresses in [vrrp.a] has \"224.0.0.1\"; allowed: ",
            ),
            (
                format!("{usual}pools = [\"web\"]"),
                ":5: pools in [vrrp.a] has \"web\"; allowed: none, for there is no pool",
            ),
            (
                format!("{usual}{BALANCE}").replace("\"192.0.2.80\"", "\"10.0.0.11\""),
                ":4: addresses in [vrrp.a] has 10.0.0.11, a real of [pool.mail]; allowed",
            ),
            (
                format!("{usual}pools = [\"mail\"]\n{BALANCE}")
                    .replace("192.0.2.80", "198.51.100.25"),
                ":4: addresses in [vrrp.a] has 198.51.100.25, which a pool of pools has; leave it out",
            ),
            (
                format!("{usual}[tarpit]\naddresses = [\"192.0.2.64/26\"]"),
                ":6: addresses in [tarpit]: 192.0.2.80 is a virtual address of [vrrp.a], and in 192.0.2.64/26; allowed: prefixes",
            ),
            (
                format!("{usual}peers = [\"192.0.2.3\"]\n[tarpit]\naddresses = [\"192.0.2.0/28\"]"),
                ":7: addresses in [tarpit]: 192.0.2.3 is a peer of [vrrp.a], and in 192.0.2.0/28",
            ),
            (
                format!("{usual}{BALANCE}[tarpit]\naddresses = [\"10.0.0.0/28\"]"),
                "addresses in [tarpit]: 10.0.0.11 is a real of [pool.mail], and in 10.0.0.0/28",
            ),
            (
                usual.replace("eth0", ""),
                ":3: interface in [vrrp.a] has \"\"; allowed: the name of an interface",
            ),
            (
                usual.replace("eth0", "a/b"),
                ":3: interface in [vrrp.a] has \"a/b\"; allowed",
            ),
            (
                format!("{usual}priority = 255"),
                ":5: priority in [vrrp.a] is 255; allowed: a whole number 1-254",
            ),
            (
                format!("{usual}interval = 4096"),
                ":5: interval in [vrrp.a] is 4096; allowed: a whole number 1-4095",
            ),
            (
                format!("{usual}unicast = true"),
                ":5: unicast in [vrrp.a] without peers; allowed: with peers",
            ),
            (
                format!("{usual}peers = [\"fe80::1\"]"),
                ":5: peers in [vrrp.a] names none of IPv4",
            ),
            (
                format!("{usual}peers = [\"192.0.2.80\"]"),
                ":5: peers in [vrrp.a] has \"192.0.2.80\"; allowed: a peer's own",
            ),
            (
                format!("{usual}checksum = \"crc\""),
                ":5: checksum in [vrrp.a] is \"crc\"; allowed: ",
            ),
            (
                format!("{usual}password = \"x\""),
                "unknown key \"password\" in [vrrp.a]",
            ),
            (
                format!("{usual}[vrrp.b]\n{}", usual.replace("80", "81")),
                ":5: [vrrp.b] has id 1 on eth0, which [vrrp.a] has",
            ),
            (
                format!("{usual}[vrrp.b]\n{}", usual.replace("id = 1", "id = 2")),
                ":5: [vrrp.b] has the virtual address 192.0.2.80, which [vrrp.a] has",
            ),
        ] {
            let error = check(&format!("[vrrp.a]\n{words}")).expect_err(&words);
            assert!(error.contains(told), "{words}\n{error}");
        }
    }
}
