//! What goes with `forward = "proxy"` of a pool; `[proxy]`.

use std::time::Duration;

use weir_config::{
    Section,
    manual::{
        Case, Key, NONE, Table,
        Usual::{By, Is, Means},
        key,
    },
    values::SECOND,
};
use weir_core::{PortRange, Protocol};
use weir_proxy::{Limits, ProxyHeader};

use crate::instance::MAX_FILES;

/// `[proxy]` in weir.toml(5).
pub(super) const MANUAL: Table = Table {
    name: "proxy",
    about: "The proxy of pools with forward = \"proxy\".",
    needs: &[],
    keys: &[key(
        "threads",
        Means("one for each processor"),
        "So many threads relay, each with a listening socket of its own; 1-64. A change needs a restart.",
    )],
};

// The keys of a pool that only a proxy has.
pub(super) const PROXY_PROTOCOL: Key = key(
    "proxy_protocol",
    NONE,
    "With forward = \"proxy\": \"v2\" sends the PROXY protocol's header of this version ahead (with UDP, of each datagram), which tells the real the client's address.",
);
pub(super) const TRANSPARENT: Key = key(
    "transparent",
    By(&[Case {
        value: "false",
        when: "",
        with: &[("forward", "\"proxy\"")],
        without: &[],
    }]),
    "With forward = \"proxy\": the reals see the client's address as the source; their answers must be routed to this host.",
);
pub(super) const MAX_CONNECTIONS: Key = key(
    "max_connections",
    By(&[Case {
        value: "10000",
        when: "",
        with: &[("forward", "\"proxy\"")],
        without: &[],
    }]),
    "With forward = \"proxy\": so many connections at once, and so many flows of datagrams. A connection beyond is reset; of datagrams the flow that was silent longest goes.",
);
pub(super) const MAX_CONNECTIONS_PER_CLIENT: Key = key(
    "max_connections_per_client",
    Means("no limit"),
    "With forward = \"proxy\": so many of them for one client, an IPv4 address or an IPv6 /64.",
);
pub(super) const CONNECT_TIMEOUT: Key = key(
    "connect_timeout",
    By(&[Case {
        value: "\"3s\"",
        when: "",
        with: &[("forward", "\"proxy\"")],
        without: &[],
    }]),
    "With forward = \"proxy\": how long a real may take to accept a connection until the next one is tried; three are.",
);
pub(super) const IDLE_TIMEOUT: Key = key(
    "idle_timeout",
    By(&[Case {
        value: "\"10m\"",
        when: "",
        with: &[("forward", "\"proxy\"")],
        without: &[],
    }]),
    "With forward = \"proxy\": how long a connection may be silent in both directions.",
);
/// How long a flow of datagrams lasts, with each `forward`.
pub(super) const UDP_TIMEOUT: Key = key(
    "udp_timeout",
    Is("\"1m\""),
    "How long a flow of datagrams may be silent: the proxy ends it then, and with another forward it leaves a real that drains.",
);

/// Keys of a pool that only a proxy has.
const PROXY_KEYS: [&str; 6] = [
    PROXY_PROTOCOL.name,
    TRANSPARENT.name,
    MAX_CONNECTIONS.name,
    MAX_CONNECTIONS_PER_CLIENT.name,
    CONNECT_TIMEOUT.name,
    IDLE_TIMEOUT.name,
];

/// The longest time of silence.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// How many threads there may be.
const MAX_THREADS: u64 = 64;
/// Reals that are tried for one connection.
const TRIES: usize = 3;
/// More connections than a process may have descriptors for.
const MOST_CONNECTIONS: u64 = 1_000_000;

/// Threads of the proxy; `None`: as many as there are processors.
pub(crate) fn threads(root: &mut Section<'_, '_>) -> Option<usize> {
    let mut section = root.section("proxy")?;
    let threads = section.integer("threads", 1..=MAX_THREADS);
    section.finish();
    threads.map(|at| at.value as usize)
}

/// How long a flow of datagrams may be silent.
pub(super) fn udp_timeout(section: &mut Section<'_, '_>) -> Duration {
    let typed = section.duration("udp_timeout", SECOND..=DAY);
    typed.map_or(60 * SECOND, |at| at.value)
}

/// What goes with `forward = "proxy"`, and with nothing else. `udp_timeout`: see
/// [`udp_timeout`].
pub(super) fn limits(
    section: &mut Section<'_, '_>,
    of: &str,
    is_proxied: bool,
    udp_timeout: Duration,
) -> Limits {
    for key in PROXY_KEYS.iter().filter(|_| !is_proxied) {
        if let Some(line) = section.line_of(key).filter(|_| section.has(key)) {
            section.error(
                line,
                format!("{key} in {of} is of forward = \"proxy\" only"),
            );
        }
    }
    let header = section.choice("proxy_protocol", &[("v2", ProxyHeader::V2)]);
    let transparent = section.boolean("transparent").unwrap_or(false);
    let most = section.integer("max_connections", 1..=MOST_CONNECTIONS);
    let of_client = section.integer("max_connections_per_client", 1..=MOST_CONNECTIONS);
    let mut time = |key, usual, most| {
        let typed = section.duration(key, SECOND..=most);
        typed.map_or(usual, |at| at.value)
    };
    Limits {
        flows: most.map_or(10_000, |at| at.value),
        flows_of_client: of_client.map(|at| at.value as u32),
        tries: TRIES,
        connect_timeout: time("connect_timeout", 3 * SECOND, 60 * SECOND),
        idle_timeout: time("idle_timeout", 600 * SECOND, DAY),
        udp_timeout,
        header: header.map_or(ProxyHeader::None, |at| at.value),
        is_transparent: transparent,
    }
}

/// A warning if the proxy may have more connections than the daemon has descriptors for: by
/// the ports and limits of its pools.
pub(super) fn too_many_connections<'a>(
    pools: impl Iterator<Item = (&'a [PortRange], &'a Limits)>,
) -> Option<String> {
    let descriptors = pools.map(|(ports, limits)| {
        let has = |protocol| ports.iter().any(|port| port.protocol == protocol);
        // A connection has a socket at each end, a flow of datagrams one to its real.
        let tcp = if has(Protocol::Tcp) { 2 } else { 0 };
        let udp = if has(Protocol::Udp) { 1 } else { 0 };
        (tcp + udp) * limits.flows
    });
    let descriptors: u64 = descriptors.sum();
    (descriptors > MAX_FILES).then(|| {
        format!(
            "pools with forward = \"proxy\" may have connections and flows of datagrams for {descriptors} descriptors (max_connections), and the daemon has {MAX_FILES} at most, for all it does: beyond that connections wait, and checks of reals cannot be begun"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{config::Config, host::fake::FakeHost};

    #[test]
    fn more_connections_than_the_daemon_has_descriptors_for_are_warned_of() {
        let pool = |name: &str, vip: u8, ports: &str, most: u64| {
            format!(
                "[pool.{name}]\nvip = [\"198.51.100.{vip}\"]\nports = {ports}\nreals = [{{ address = \"10.0.0.11\" }}]\nforward = \"proxy\"\nmax_connections = {most}\ncheck = {{ port = 80 }}\n"
            )
        };
        let warned = |text: &str| {
            let config = Config::check(Path::new("weir.toml"), text, &FakeHost::default());
            let warnings = config
                .map_err(|errors| errors.to_string())
                .unwrap()
                .warnings;
            warnings.join("\n")
        };
        let of_each = "[\"53/tcp\", \"53/udp\"]";
        for (ports, most) in [
            ("[\"80/tcp\", \"443/tcp\"]", 65_536 / 2),
            ("[\"53/udp\"]", 65_536),
            (of_each, 65_536 / 3),
        ] {
            let text = pool("web", 80, ports, most);
            assert!(!warned(&text).contains("descriptors"), "{ports}");
            let text = pool("web", 80, ports, most + 1);
            let told = warned(&text);
            assert!(told.contains("the daemon has 65536 at most"), "{told}");
        }
        // They are of all pools together.
        let one = pool("web", 80, "[\"80/tcp\"]", 30_000);
        assert!(!warned(&one).contains("descriptors"));
        let both = one + &pool("names", 81, of_each, 3_000);
        assert!(warned(&both).contains("for 69000 descriptors"));
    }
}
