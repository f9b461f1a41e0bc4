//! Fail2ban's configuration, read as Fail2ban reads it. Pure: files come in through
//! [`Files`], so nothing here opens one, and nothing here knows of a ban.
//!
//! The boundary inside this crate is [`FilterSource`]: a filter as its author meant it,
//! after both layers of interpolation. Reading files up to there is one half; making
//! lines into findings by it is the other.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod action_command;
mod ban_action;
mod ban_time;
mod database;
pub mod date;
mod definition;
mod encoding;
mod error;
mod expression;
mod files;
mod filter_files;
mod filter_source;
mod ignored_addresses;
mod includes;
mod ini;
mod interpolate;
mod jail;
mod layers;
mod log_paths;
pub mod matching;
mod parameters;
mod ports;
pub mod regex;
mod server_settings;
mod tags;
mod text;
mod unknown_names;

pub use action_command::{CAPTURED_ID, Commands, FamilyCommands, Script, Tag, captured_variable};
pub use ban_action::{ActionKind, JailAction};
pub use database::database;
pub use encoding::{ENCODINGS, LogEncoding};
pub use error::{Error, ErrorKind, Origin};
pub use expression::duration;
pub use files::Files;
pub use filter_files::{load_filter, load_filter_file, load_filter_of, named};
pub use filter_source::{FilterSource, LogType, Pattern, UseDns};
pub use jail::{Jail, Jails, Log, LogFacts, load_jails, notes};
pub use server_settings::server_limits;
pub use weir_core::json::JsonError;
