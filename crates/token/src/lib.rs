//! Tokens without the kernel: what a SYN carries to prove which program began the
//! connection (`option`), a UDP datagram which one sends it (`datagram`), and each segment of
//! a connection that it is as it was sent (`segment`), of which keys the MAC is made (`key`,
//! files of them in `key_file`, which of several in `key_ring`), what it is about
//! (`statement`), and whether a packet proves what it claims (`verify`): the reference that the
//! programs of `bpf/token/` have to agree with. Of capture files, `capture` reads the packets
//! and `flow_table` says which connections proved what, and their segments (`segment_counts`);
//! `daf` reads DAF's tokens in them. What
//! is wanted of whom is configured (`config`).
//!
//! Files are read and written by the daemon and the command line, packets by the kernel.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod capture;
pub mod config;
pub mod daf;
mod datagram;
pub mod flow_table;
mod key;
pub mod key_file;
pub mod key_ring;
mod option;
pub mod segment;
pub mod segment_counts;
mod statement;
pub mod verify;

pub use datagram::{Datagram, EXTENSION_BYTES, IP_KIND};
pub use key::{IdentityKey, KeyId, KeyIdError, Secret, SecretError};
pub use option::{EXID, KIND, OPTION_BYTES, OptionError, TokenOption, VERSION, find};
pub use statement::{DatagramStatement, EPOCH_SECONDS, Statement, epoch_at, epoch_near};
/// The aggregate of a program, which a token is of.
pub use weir_identity::Digest;

/// How many epochs a token may be from the one in which it is verified.
pub const EPOCH_SLACK: u64 = 1;
