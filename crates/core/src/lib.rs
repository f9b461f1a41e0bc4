//! The pure part of weir: no I/O, no clock, no unsafe. Addresses, scopes and
//! bans; `detect` reads findings out of records, `policy` turns findings into
//! decisions. Time, randomness and the kernel come in as arguments.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod action;
pub mod addr;
pub mod address_class;
pub mod balance;
pub mod ban;
pub mod checksum;
pub mod decoy;
pub mod detect;
pub mod geo;
pub mod geofence;
pub mod json;
pub mod neighbour;
pub mod policy;
pub mod port_set;
pub mod reason;
pub mod text;
pub mod verdict;

pub use action::Action;
pub use addr::{AddrError, BanTarget, Prefix, PrefixSet};
pub use ban::{Ban, BanSource, Decision, Until};
pub use port_set::{PortRange, PortSet, PortSetError, Protocol};
pub use reason::Reason;
