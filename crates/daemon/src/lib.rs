//! The daemon as a library, so that tests link it: `config` (what was typed →
//! checked) · `wiring` (joins the stages in data-path order) · `worker` (from
//! the log line to the ban) · `service` (what happens on request) · `store` ·
//! `control` (the API) · `watch` (from a command to the ban) · `exempt` · `lists`
//! · `events` · `sinks` · `alerts` · `geo` (where addresses are).
#![deny(missing_docs)]

pub mod alerts;
pub mod calibrate;
pub mod classes;
pub mod config;
pub mod control;
pub mod decoy;
pub mod events;
pub mod exempt;
mod expiry;
pub mod geo;
pub mod instance;
pub mod lists;
mod log_alerts;
mod positions;
mod refused;
pub mod reload;
pub mod service;
pub mod sinks;
pub mod store;
pub mod threads;
pub mod uplinks;
pub mod watch;
pub mod wiring;
pub mod worker;

/// Somebody else's text, fit for a terminal or a log: control characters and
/// those that reorder what is shown are written as escapes.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        let reorders = matches!(
            c,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        );
        if c.is_control() || reorders {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_an_attacker_wrote_cannot_steer_a_terminal() {
        assert_eq!(
            super::escape("a\u{1b}[2Jb\r\n\u{202e}c\u{9b}é"),
            "a\\u{1b}[2Jb\\r\\n\\u{202e}c\\u{9b}é"
        );
    }
}
