//! Hands a server's log records to any number of readers through shared
//! memory, without a system call.
//!
//! Each writing thread has a segment of its own: a file on a tmpfs, or
//! a memfd, with one [`Writer`] and up to 64 [`Reader`]s that come and go.
//! A [`Set`] reads all the segments of a directory, with as many threads as
//! there are [`Worker`]s. What to do with a full ring is the writer's choice
//! ([`Policy`]); in either case a reader knows how many records it lost.
//!
//! ```
//! use std::time::Duration;
//! use weir_ring::{Options, Reader, ReaderOptions, Writer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("worker-0");
//! let mut writer = Writer::create(&path, &Options::new().size(1 << 16))?;
//! let mut reader = Reader::open(&path, &ReaderOptions::new())?;
//!
//! writer.write(b"GET / 403 192.0.2.7")?;
//! while reader.sleep(Duration::from_millis(100)) {
//!     for record in reader.batch()? {
//!         assert_eq!(record.payload, b"GET / 403 192.0.2.7");
//!     }
//! }
//! assert_eq!(reader.lost(), 0);
//! # Ok(())
//! # }
//! ```
//!
//! Readers trust nothing in a segment: they copy, check, then use. Whoever
//! may read a segment may also write into it (readers publish how far they
//! are), so readers must be trusted not to forge records; a writer is safe
//! from them otherwise.
//!
//! `README.md` has the layout and the limits, `include/weir_ring.h` the C
//! interface.
#![deny(missing_docs)]
#![allow(
    unsafe_code,
    reason = "memory shared with other processes, system calls, the C interface"
)]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("weir-ring needs 64-bit Linux");

mod ancestors;
mod copy;
mod error;
#[cfg(feature = "capi")]
#[doc(hidden)]
pub mod ffi;
mod guard;
mod inspect;
mod layout;
#[cfg(test)]
mod model;
mod protocol;
mod reader;
mod segment;
mod set;
mod sys;
mod wake;
mod writer;

pub use ancestors::check_directory;
pub use error::{Error, ErrorKind, Result};
pub use guard::set_enabled as set_sigbus_guard;
pub use inspect::{Inspection, ReaderInfo, inspect};
pub use layout::{MAX_SIZE, MIN_SIZE, Policy, SLOTS};
pub use reader::{Batch, Reader, ReaderOptions, Record, Start};
pub use segment::Owner;
pub use set::{Set, Statistics, Trouble, Turn, Worker};
pub use writer::{Clock, Options, WriteError, Writer, Written};
