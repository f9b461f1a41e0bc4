//! Other programs' configuration as weir's. Pure: text in, the text of a weir.toml out.
//! Whatever was typed there is answered: by a setting, or by a comment that says what
//! changes, what is asked back, or what is not carried over.
//!
//! What was typed is somebody else's text: it becomes a value only once it has been
//! read as an address, a port or a name, and is escaped in comments.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod app_rule;
pub mod daf;
pub mod ipt_geofence;
pub mod opensnitch;
pub mod pen;
mod toml_text;

use std::fmt;

use toml_text::Toml;

/// Why a configuration cannot be read at all; whole sentences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
