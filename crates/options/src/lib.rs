//! Options of IPv4, TCP, UDP (RFC 9868) and IPv6, and its extension headers: those that
//! have a number (`codepoint`), how one is named on the command line (`option_spec`), and the
//! bytes that go into a packet (`section`), or that the kernel writes on connections
//! (`connection`).
//!
//! What puts them on packets is `bpf/options/`, by `weir options inject`, or for packets that come
//! to a program `rewrite`.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod codepoint;
mod connection;
mod option_spec;
mod rewrite;
mod section;

pub use codepoint::{CODEPOINTS, Codepoint, Layer};
pub use connection::{ConnectionError, connection_options};
pub use option_spec::{OptionSpec, SpecError};
pub use rewrite::{FlowSelector, LeftAlone, Rewritten, rewrite};
pub use section::{
    ExtensionChain, MAX_EXTENSION_BYTES, MAX_HEADER_OPTIONS, MAX_SURPLUS, SectionError, Sections,
    extension_chain, header_options, surplus_area,
};
