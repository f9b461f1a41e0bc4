//! Who takes part, and where they go.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// The longest wait for what must happen.
pub const SOON: Duration = Duration::from_secs(60);
/// The addresses that the servers of the pool share, by family.
pub const VIP: [&str; 2] = ["192.0.2.80", "2001:db8::80"];

/// Somebody on the Internet, and where they go.
#[derive(Clone)]
pub struct Participant {
    name: &'static str,
    pub from: IpAddr,
    pub to: SocketAddr,
}

impl Participant {
    /// From this address to port 22 of that one.
    pub fn new(name: &'static str, from: &str, to: &str) -> Self {
        let addr = |text: &str| {
            text.parse::<IpAddr>()
                .expect("the demo's addresses are addresses")
        };
        Self {
            name,
            from: addr(from),
            to: SocketAddr::new(addr(to), 22),
        }
    }

    /// The same, on the way to the web server that the pool's virtual address is.
    pub fn to_pool(&self) -> Self {
        let vip = VIP[usize::from(self.from.is_ipv6())].parse();
        let vip: IpAddr = vip.expect("the demo's addresses are addresses");
        Self {
            to: SocketAddr::new(vip, 80),
            ..self.clone()
        }
    }
}

impl fmt::Display for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
