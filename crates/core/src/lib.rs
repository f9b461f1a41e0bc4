//! The pure part of weir: no I/O, no clock, no unsafe. Addresses, scopes and
//! bans; `detect` reads findings out of records, `policy` turns findings into
//! decisions. Time, randomness and the kernel come in as arguments.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod action;
pub mod addr;
pub mod ban;
pub mod class;
pub mod decoy;
pub mod detect;
pub mod fence;
pub mod geo;
pub mod policy;
pub mod reason;
pub mod scope;
pub mod text;
pub mod verdict;

pub use action::Action;
pub use addr::{AddrError, Prefix, PrefixSet, Subject};
pub use ban::{Ban, Decision, Producer, Until};
pub use reason::Reason;
pub use scope::{PortRange, Protocol, Scope, ScopeError};
