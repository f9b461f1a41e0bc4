//! The daemon as a library, so that tests link it: `config` (what was typed →
//! checked) · `run` (joins the stages in data-path order) · `log_worker` (from
//! the log line to the ban) · `service` (what happens on request) · `store` ·
//! `api` · `watch` (from a command to the ban) · `access` (exemptions, lists,
//! geofence) · `events`, `alerts` and `sinks`, which are crates.
#![deny(missing_docs)]

pub mod access;
pub mod api;
mod command;
pub mod config;
pub mod decoy;
mod expiry;
pub mod instance;
mod judge;
mod log_alerts;
pub mod log_worker;
pub mod metrics;
mod positions;
mod refused;
pub mod run;
pub mod service;
pub mod store;
pub mod threads;
mod trial;
pub mod uplinks;
pub mod watch;
pub mod watch_stats;

pub use trial::trial;
pub use weir_core::text::{escape, escape_json};
pub use weir_events::{self as events, alerts};
pub use weir_sinks as sinks;
