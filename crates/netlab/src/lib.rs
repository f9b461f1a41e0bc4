//! Virtual networks: namespaces, veth pairs between them, and hosts that are
//! other than this one. `weir calibrate` measures in them, and tests, the bench
//! and the demo live in them. Nothing here asserts: what is right is for the
//! caller to say. What only tests need is in `weir-testkit`.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod error;
pub mod fake_host;
pub mod namespace;
pub mod net;

pub use error::{Context, Error, ErrorKind, Result};
pub use fake_host::FakeHost;
pub use namespace::{Child, Namespace, wait_for};
pub use net::{IfAddr, Net, Side, Veth, VethOpts};

/// The first thing that this machine lacks for a virtual network with these
/// programs, as text for a skipped test: `not root`, `no program sshd`.
pub fn missing(programs: &[&str]) -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("not root: network namespaces need CAP_SYS_ADMIN".into());
    }
    programs
        .iter()
        .chain(&["ip"])
        .find(|program| namespace::find_program(program).is_none())
        .map(|program| format!("no program {program}"))
}
