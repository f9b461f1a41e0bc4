//! Netlink, the kernel's socket for requests about its tables: messages and attributes as
//! bytes (`write`, `read`), and a socket that sends a request and reads the whole answer
//! (`socket`). What kinds, fixed headers and attributes mean is the business of those who
//! ask: interfaces, addresses and routes, filters of traffic control, nf_tables.
//!
//! By hand, because published crates are larger than what they would replace: neli and
//! netlink-packet-route bring types for every message that there is and an allocation for
//! each attribute, and a table of a million elements is read here once a start.
#![deny(missing_docs)]

pub mod conntrack;
pub mod diag;
pub mod queue;
mod read;
mod rewrite_queue;
mod socket;
#[cfg(test)]
mod tests;
mod write;

pub use read::{Attributes, Message, Messages, Outcome, half, ip, word};
pub use rewrite_queue::RewriteQueue;
pub use socket::{DATAGRAM, Protocol, Socket, ask, errno};
pub use write::{Request, Writer, family};

/// Every request has it.
pub const NLM_F_REQUEST: u16 = 0x1;
/// Asks for an answer that says whether it was done.
pub const NLM_F_ACK: u16 = 0x4;
/// Asks for all there are.
pub const NLM_F_DUMP: u16 = 0x300;
/// Replaces what is there.
pub const NLM_F_REPLACE: u16 = 0x100;
/// Refuses to delete what is still in use.
pub const NLM_F_NONREC: u16 = 0x100;
/// Refuses where it is there.
pub const NLM_F_EXCL: u16 = 0x200;
/// Makes it where it is not there.
pub const NLM_F_CREATE: u16 = 0x400;
/// Puts it behind those that are there.
pub const NLM_F_APPEND: u16 = 0x800;
/// Bytes of `struct nlmsghdr`.
pub const HEADER: usize = 16;

/// linux/netlink.h: what only this crate needs.
const NLM_F_MULTI: u16 = 0x2;
const NLM_F_DUMP_INTR: u16 = 0x10;
/// The request is not repeated in its refusal.
const NLM_F_CAPPED: u16 = 0x100;
/// Attributes behind a refusal say more of it.
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSG_OVERRUN: u16 = 4;
/// Kinds below are the protocol's own.
const NLMSG_MIN_TYPE: u16 = 16;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLA_F_NESTED: u16 = 0x8000;
/// The kind of an attribute, without its flags.
const NLA_TYPE_MASK: u16 = 0x3fff;
/// Bytes of `struct nlattr`.
const ATTRIBUTE: usize = 4;
/// What messages and attributes are filled up to.
const ALIGN: usize = 4;
