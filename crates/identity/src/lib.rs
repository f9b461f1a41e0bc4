//! Application identity without the kernel: which program a process is (`program`, by
//! the files that it has mapped executable, whose digests are of `hash`), the rules about
//! programs (`rule`, read by `config`), the same in a form that fits into maps of the
//! kernel (`policy`), and the decision that both have to agree on (`decision`), by which some
//! rules never decide (`shadowed`). What programs have done (`learn`) becomes rules (`rules_text`).
//!
//! What is sent and received, and by whom, is seen in `crates/bpf`; who asks for
//! identities and puts rules into force is the daemon.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod config;
pub mod decision;
mod digest;
pub mod hash;
pub mod learn;
mod login;
mod names;
pub mod packages;
pub mod policy;
mod program;
mod rule;
pub mod rules_text;
mod shadowed;

pub use digest::{Digest, DigestError};
pub use login::Login;
pub use names::NamePattern;
pub use program::{Container, Object, Program, aggregate};
pub use rule::{
    AppConfig, CgroupPattern, Condition, Criterion, Label, Level, MAX_PEERS, MAX_RULES, Peer,
    Peers, Pinned, Protocols, Rule, Unknown, Upgrades, Verdict, Where, split_at_unit,
};
