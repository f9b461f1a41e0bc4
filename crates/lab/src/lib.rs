//! Virtual networks, packets and real clients and servers for tests, the bench
//! and the demo. Nothing here asserts: what is right is for the caller to say.
//! The exception is knowledge, not judgement: `decode` holds the reference
//! decoder and verdict, written from the RFCs and sharing no code with the
//! packet path.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod decode;
mod error;
pub mod fuse;
pub mod mmdb;
mod namespace;
mod net;
pub mod packet;
pub mod sshd;
pub mod traffic;
mod view;

pub use error::{Error, ErrorKind, Result};
pub use namespace::{Child, Namespace, wait_for};
pub use net::{IfAddr, Net, Side, Veth, VethOpts};
pub use view::View;

/// The first thing that this machine lacks for a virtual network with these
/// programs, as text for a skipped test: `not root`, `no program sshd`.
pub fn missing(programs: &[&str]) -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("not root: network namespaces need CAP_SYS_ADMIN".into());
    }
    programs
        .iter()
        .chain(&["ip"])
        .find(|program| find_program(program).is_none())
        .map(|program| format!("no program {program}"))
}

/// Where a program is: the path, then the places that root's path has but a
/// user's may not.
pub(crate) fn find_program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(Into::into))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}
