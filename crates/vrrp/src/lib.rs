//! VRRP version 3 (RFC 9568): several hosts agree which of them has the addresses of a
//! virtual router. The form of its packets ([`advertisement`]) and what follows from them
//! and from time ([`router`]); sockets and addresses are the caller's.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod advertisement;
pub mod packet;
pub mod router;

pub use advertisement::{Advertisement, Checksum, ParseError};
pub use router::{Action, Router, Settings, State};

/// The protocol's number.
pub const PROTOCOL: u8 = 112;
/// With which time to live, or hop limit, packets are sent; one of another segment
/// arrives with less.
pub const TTL: u8 = 255;
/// The IPv4 group that packets are sent to, if to no peer alone.
pub const GROUP_V4: std::net::Ipv4Addr = std::net::Ipv4Addr::new(224, 0, 0, 18);
/// The IPv6 group that packets are sent to, if to no peer alone.
pub const GROUP_V6: std::net::Ipv6Addr = std::net::Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x12);
