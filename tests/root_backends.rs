//! The same through every backend, with real packets: what a ban, a list, the
//! allow list and the geofence do does not depend on who carries it out.

mod common;

use std::{net::SocketAddr, time::Duration};

use common::{
    ATTACKER, CUSTOMER, GATEWAY, HOST, OTHER, SILENCE, SOON, Site, Weir, addr, skipped, soon,
};
use weir_lab::traffic::{TcpServer, UdpServer, ping, udp_request};

const PORT: u16 = 8080;
const OTHER_PORT: u16 = 2222;

/// What the table has a line for.
#[derive(Clone, Copy, Debug)]
struct Case {
    backend: &'static str,
    geofence: bool,
}

const BACKENDS: [Case; 4] = [
    Case {
        backend: "xdp",
        geofence: true,
    },
    Case {
        backend: "xdp-generic",
        geofence: true,
    },
    Case {
        backend: "tcx",
        geofence: true,
    },
    Case {
        backend: "nft",
        geofence: true,
    },
];

fn at(family: usize, port: u16) -> SocketAddr {
    SocketAddr::new(addr(HOST[family]), port)
}

fn any(port: u16) -> SocketAddr {
    SocketAddr::new(addr("::"), port)
}

fn config(case: Case, more: &str) -> String {
    format!(
        "interfaces = [\"eth0\"]\nbackend = \"{}\"\nipv4_length = 24\n{more}",
        case.backend
    )
}

fn pings(site: &Site, from: &str, family: usize, time: Duration) -> bool {
    ping(&site.internet, Some(addr(from)), addr(HOST[family]), time).is_ok()
}

#[test]
fn root_bans_are_the_same_everywhere() {
    if skipped(&[]) {
        return;
    }
    for case in only() {
        println!("{case:?}");
        let site = Site::new();
        let mut weir = Weir::start(&site.host, &config(case, ""));
        let _tcp = TcpServer::start(&site.host, any(PORT), b"").unwrap();
        let _other = TcpServer::start(&site.host, any(OTHER_PORT), b"").unwrap();
        assert_eq!(weir.json(&["status"])["backend"], case.backend);
        for family in [0, 1] {
            let bad = ATTACKER[family];
            site.serves(bad, at(family, PORT));
            weir.ask(&["ban", bad]).done();
            assert!(!site.connects(bad, at(family, PORT)), "{bad}");
            assert!(!pings(&site, bad, family, SILENCE));
            assert!(weir.packets("banned-all") >= 2);
            for good in [CUSTOMER[family], OTHER[family], GATEWAY[family]] {
                site.serves(good, at(family, PORT));
            }
            // The allow list wins.
            weir.ask(&["allow", "add", bad]).done();
            site.serves(bad, at(family, PORT));
            weir.ask(&["allow", "del", bad]).done();
            assert!(!site.connects(bad, at(family, PORT)));
            // Some ports only, beside a ban of all of them.
            weir.ask(&["ban", bad, "--port", "8080/tcp", "--for", "1h"])
                .done();
            weir.ask(&["unban", bad]).done();
            site.serves(bad, at(family, PORT));
            weir.ask(&["ban", bad, "--port", "8080/tcp", "--for", "1h"])
                .done();
            assert!(!site.connects(bad, at(family, PORT)));
            site.serves(bad, at(family, OTHER_PORT));
            assert!(pings(&site, bad, family, SOON));
            // Ends by itself.
            weir.ask(&["ban", OTHER[family], "--for", "2s"]).done();
            assert!(!site.connects(OTHER[family], at(family, PORT)));
            site.serves_soon(OTHER[family], at(family, PORT));
        }
        // Prefixes: the one that the table has, and others.
        for (family, prefix) in [
            (0, "198.51.100.0/24"),
            (0, "198.51.96.0/20"),
            (1, "2001:db8:bad:1::/64"),
            (1, "2001:db8:bad::/48"),
        ] {
            weir.ask(&["ban", prefix, "--for", "1h"]).done();
            assert!(
                !site.connects(OTHER[family], at(family, OTHER_PORT)),
                "{prefix}"
            );
            site.serves(CUSTOMER[family], at(family, PORT));
            // Nobody's doing: the next daemon finds it.
            weir.kill();
            assert!(
                !site.connects(OTHER[family], at(family, OTHER_PORT)),
                "{prefix}"
            );
            weir.run();
            assert!(
                !site.connects(OTHER[family], at(family, OTHER_PORT)),
                "{prefix}"
            );
            weir.ask(&["unban", prefix]).done();
            site.serves(OTHER[family], at(family, OTHER_PORT));
        }
        for family in [0, 1] {
            assert!(!site.connects(ATTACKER[family], at(family, PORT)));
            site.serves(ATTACKER[family], at(family, OTHER_PORT));
        }
        weir.stop();
        assert!(!site.connects(ATTACKER[0], at(0, PORT)));
        let gone = weir.detach().done();
        assert!(
            gone.out.contains("eth0") || gone.out.contains(case.backend),
            "{gone:?}"
        );
        site.serves(ATTACKER[0], at(0, PORT));
        weir.run();
        assert!(!site.connects(ATTACKER[0], at(0, PORT)));
    }
}

/// The cases, or the one that WEIR_BACKEND names.
fn only() -> impl Iterator<Item = Case> {
    let only = std::env::var("WEIR_BACKEND").ok();
    BACKENDS
        .into_iter()
        .filter(move |case| only.as_ref().is_none_or(|name| name == case.backend))
}
