//! The virtual network of a test.

use std::{net::SocketAddr, time::Duration};

use weir_bpf::{
    attachment::{Hook, Link},
    generator::Generator,
};
use weir_netlab::{Namespace, Net, Side, Veth, VethOpts};
use weir_testkit::traffic::{self, TcpServer};

use super::{GATEWAY, HOST, SILENCE, SOON, addr, soon};

/// Where the host serves, unless a test says otherwise.
pub const PORT: u16 = 8080;

/// The host's [`PORT`], by family.
pub fn at(family: usize) -> SocketAddr {
    SocketAddr::new(addr(HOST[family]), PORT)
}

/// A host and everybody else, on one wire named `eth0` at both ends.
pub struct TestNet {
    pub veth: Veth,
    pub host: Namespace,
    pub internet: Namespace,
    pub net: Net,
}

impl TestNet {
    pub fn new() -> Self {
        Self::with_mtu(1500)
    }

    pub fn with_mtu(mtu: u32) -> Self {
        let net = Net::new().unwrap();
        let host = net.namespace("host").unwrap();
        let internet = net.namespace("net").unwrap();
        let opts = VethOpts::new(
            &["192.0.2.1/24", "2001:db8::1/64"],
            &["192.0.2.2/24", "2001:db8::2/64"],
        );
        let opts = opts.unwrap().mtu(mtu);
        let mut veth = net.veth(&host, "eth0", &internet, "eth0", opts).unwrap();
        for prefix in [
            "198.51.100.0/24",
            "203.0.113.0/24",
            "198.18.0.0/15",
            "2001:db8:bad::/48",
            "2001:db8:c::/48",
        ] {
            veth.add_sources(Side::B, prefix).unwrap();
        }
        host.ip(&GATEWAY.map(|gateway| format!("route add default via {gateway} dev eth0")))
            .unwrap();
        Self {
            veth,
            host,
            internet,
            net,
        }
    }

    /// What lets the outer end take the frames that native XDP sends back: a veth
    /// end without an XDP program of its own drops them. None for other backends.
    pub fn takes_answers_of(&self, backend: &str) -> Option<Link> {
        (backend == "xdp").then(|| {
            let index = self.internet.ifindex("eth0").unwrap();
            let accept = Generator::load().unwrap();
            self.internet
                .enter(|| Link::attach(accept.accept(), index, Hook::Xdp))
                .unwrap()
                .unwrap()
        })
    }

    /// Gives the host `tun0`, a device without Ethernet frames; the error says why there is none.
    pub fn make_tun(&self) -> Result<(), String> {
        let add = ["tuntap", "add", "mode", "tun", "name", "tun0"];
        let made = self.host.run("ip", &add);
        made.and_then(|_| self.host.run("ip", &["link", "set", "tun0", "up"]))
            .map(|_| ())
            .map_err(|error| error.to_string())
    }

    /// A server of the host's at [`PORT`], in both families.
    pub fn server(&self) -> TcpServer {
        TcpServer::start(&self.host, SocketAddr::new(addr("::"), PORT), b"").unwrap()
    }

    /// Waits until somebody is dropped at [`PORT`].
    #[track_caller]
    pub fn drops_soon(&self, who: &str) {
        let to = at(usize::from(who.contains(':')));
        soon(&format!("{who} to be dropped"), || {
            (!self.connects(who, to)).then_some(())
        });
    }

    /// Does a TCP connection from outside come about?
    pub fn connects(&self, from: &str, to: SocketAddr) -> bool {
        self.connects_within(from, to, SILENCE)
    }

    fn connects_within(&self, from: &str, to: SocketAddr, time: Duration) -> bool {
        traffic::tcp_connect(&self.internet, Some(addr(from)), to, time).is_ok()
    }

    /// Asserts that somebody is served.
    #[track_caller]
    pub fn serves(&self, from: &str, to: SocketAddr) {
        let seen = traffic::tcp_connect(&self.internet, Some(addr(from)), to, SOON);
        assert!(seen.is_ok(), "{}", seen.unwrap_err());
    }

    /// Waits until somebody is served (again).
    #[track_caller]
    pub fn serves_soon(&self, from: &str, to: SocketAddr) {
        soon(&format!("{from} to reach {to}"), || {
            self.connects_within(from, to, SILENCE).then_some(())
        });
    }
}
