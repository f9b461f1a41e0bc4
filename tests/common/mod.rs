//! What the system tests share: a host on a virtual network with attackers and
//! customers outside (`net`), and a real daemon in it that leaves nothing
//! behind (`weir`).
#![allow(dead_code, unused_imports)] // each test file uses its part

pub mod lan;
mod stream;
mod test_net;
mod weir;

use std::{net::IpAddr, time::Duration};

use weir_netlab::wait_for;

pub use stream::{Stop, Stream, Traffic, all_arrived, send_gently, stack_counted};
pub use test_net::{PORT, TestNet, at};
pub use weir::{Answer, WEIR, Weir};

/// The longest wait for what should happen, on a machine that is not emulated.
pub const SOON: Duration = Duration::from_secs(60);
/// The wait for what should not happen: a packet on a veth pair takes microseconds.
pub const SILENCE: Duration = Duration::from_millis(300);

/// The host's addresses, IPv4 and IPv6.
pub const HOST: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
/// The gateway's: the other end of the wire.
pub const GATEWAY: [&str; 2] = ["192.0.2.2", "2001:db8::2"];
/// Somebody who misbehaves, in both families.
pub const ATTACKER: [&str; 2] = ["198.51.100.7", "2001:db8:bad::7"];
/// Somebody else who does.
pub const OTHER: [&str; 2] = ["198.51.100.8", "2001:db8:bad:1::8"];
/// Somebody who does not.
pub const CUSTOMER: [&str; 2] = ["203.0.113.5", "2001:db8:c::5"];

/// Prints why a test cannot run here.
pub fn skipped(programs: &[&str]) -> bool {
    let why = weir_netlab::missing(programs);
    if let Some(why) = &why {
        println!("skipped: {why}");
    }
    why.is_some()
}

pub fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Waits for an answer, and fails with what was waited for.
#[track_caller]
pub fn soon<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    // `make kernels` has an emulated processor, perhaps beside others that use the real one.
    let longest = match std::env::var_os("WEIR_TEST_EMULATED") {
        Some(_) => SOON * 4,
        None => SOON,
    };
    match wait_for(what, longest, || Ok(look())) {
        Ok(found) => found,
        Err(error) => panic!("{error}"),
    }
}
