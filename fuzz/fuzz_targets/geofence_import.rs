//! A configuration of ipt_geofence and the dump of its bans to `weir import ipt_geofence`: what
//! comes of it is TOML, or an error, and nothing in it steers a terminal.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use weir_import::ipt_geofence::{bans, configuration};

fn steers(text: &str) -> bool {
    text.contains(|c: char| c.is_control() && c != '\n')
}

fuzz_target!(|text: &str| {
    let commands = bans(text);
    assert!(!steers(&commands), "{commands:?}");
    let known = |line: &str| line.starts_with("weir ban ") || line.starts_with("# line ");
    assert!(commands.lines().all(known), "{commands:?}");
    if let Ok(made) = configuration(text, Path::new("/etc/weir")) {
        let table: Result<toml::Table, _> = made.parse();
        assert!(table.is_ok(), "{table:?}\n{made}");
        assert!(!steers(&made), "{made:?}");
    }
});
