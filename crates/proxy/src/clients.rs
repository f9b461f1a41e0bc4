//! How many flows each client has, where that is limited.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, MutexGuard},
};

/// So many clients are known at once: one beyond is refused as if it had too many flows.
/// No client is known without a flow, so only a limit of flows above this reaches it.
pub const MAX_TRACKED_CLIENTS: usize = 1 << 20;

/// Flows by client.
#[derive(Default)]
pub(crate) struct Clients(Mutex<HashMap<IpAddr, u32>>);

impl Clients {
    fn all(&self) -> MutexGuard<'_, HashMap<IpAddr, u32>> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Counts another flow, unless there are `most`.
    pub fn enter(&self, client: IpAddr, most: u32) -> bool {
        let mut all = self.all();
        let client = network(client);
        if all.len() >= MAX_TRACKED_CLIENTS && !all.contains_key(&client) {
            return false;
        }
        let count = all.entry(client).or_default();
        let fits = *count < most;
        if fits {
            *count += 1;
        } else if *count == 0 {
            all.remove(&client);
        }
        fits
    }

    /// Counts one flow less of this client.
    pub fn leave(&self, client: IpAddr) {
        let mut all = self.all();
        let client = network(client);
        if let Some(count) = all.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                all.remove(&client);
            }
        }
    }
}

/// What one host can take addresses from: of IPv6 the /64.
fn network(client: IpAddr) -> IpAddr {
    match client {
        IpAddr::V4(_) => client,
        IpAddr::V6(v6) => {
            let bits = u128::from(v6) & !u128::from(u64::MAX);
            Ipv6Addr::from(bits).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_an_address_or_a_network_of_64_bits() {
        let clients = Clients::default();
        let [one, other, next] = ["2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"];
        let addr = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(clients.enter(addr(one), 2) && clients.enter(addr(other), 2));
        assert!(!clients.enter(addr(one), 2));
        assert!(clients.enter(addr(next), 2));
        assert!(clients.enter(addr("192.0.2.1"), 1) && clients.enter(addr("192.0.2.2"), 1));
        assert!(!clients.enter(addr("192.0.2.1"), 1));
        clients.leave(addr(other));
        assert!(clients.enter(addr(one), 2));
        for client in [one, one, next, "192.0.2.1", "192.0.2.2"] {
            clients.leave(addr(client));
        }
        assert!(clients.all().is_empty(), "who has no flow is not kept");
    }
}
