//! The daemon as a library, so that tests link it. Features with their sections of
//! the configuration: `jails` · `watch` (from a command to the ban) · `decoy` (and tarpit) ·
//! `access` (exemptions, lists, geofence) · `balance` (pools, health checks, the proxy) ·
//! `vips` (virtual addresses that this host announces, VRRP) · `identity` (which programs
//! may talk to whom) · `interfaces` (those that are protected) · `store` · `fail2ban`
//! (another program's jails) · `actions` and `ignore_command` (their commands) ·
//! `ignored_names` (whom they ignore by name). `real_side` is what `weir real-side` does on
//! a real, without a daemon, `options` what `weir options inject` does. What joins them:
//! `config` (what was typed → checked) · `service` (what happens on request) · `log_worker`
//! (from the log line to the ban) · `api` · `run` (the stages in data-path order). `host` is
//! what all of them ask of this host.
#![deny(missing_docs)]

pub mod access;
pub mod api;
pub mod balance;
mod ban_log;
mod bans;
pub mod command;
pub mod config;
mod current;
pub mod decoy;
mod expiry;
pub mod fail2ban;
mod fail2ban_actions;
mod fail2ban_filter;
mod fail2ban_journal;
pub mod fail2ban_state;
pub mod file_users;
pub mod host;
pub mod identity;
pub mod ignore_command;
mod ignored_names;
pub mod instance;
pub mod interfaces;
pub mod jails;
mod judge;
mod log_alerts;
mod log_status;
pub mod log_worker;
pub mod metrics;
pub mod options;
mod positions;
pub mod real_side;
mod refused;
mod resolver;
pub mod run;
pub mod service;
pub mod store;
pub mod threads;
pub mod token;
mod trial;
pub mod vips;
pub mod watch;

pub use trial::{Trial, trial};
pub use weir_core::text::{escape, escape_json};

/// A number with what is counted, as `1 rule` and `2 rules`.
pub fn counted(number: u64, one: &str, many: &str) -> String {
    let what = if number == 1 { one } else { many };
    format!("{number} {what}")
}
