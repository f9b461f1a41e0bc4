//! A command line of Pen's, or a file of its commands: what comes of it is a
//! configuration that the check accepts, or an error, and nothing that steers a terminal.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use weir_daemon::{config::Config, host::HostFacts};
use weir_import::pen;

struct Host;

impl HostFacts for Host {
    fn interfaces(&self) -> Vec<String> {
        vec!["eth0".into(), "lo".into()]
    }
    fn has_interface(&self, name: &str) -> bool {
        ["eth0", "lo"].contains(&name)
    }
    fn default_route_interfaces(&self) -> Vec<String> {
        vec!["eth0".into()]
    }
    fn has_journal(&self) -> bool {
        true
    }
    fn has_file(&self, _: &str) -> bool {
        true
    }
    fn user(&self, _: &str) -> Option<u32> {
        None
    }
    fn processors(&self) -> usize {
        4
    }
}

fuzz_target!(|text: &str| {
    // A file that names one includes the same text again.
    let read = |name: &str| match name.len().is_multiple_of(2) {
        true => Ok(text.to_owned()),
        false => Err("no such file".to_owned()),
    };
    for made in [
        pen::command_line(text, &read),
        pen::file("pen.cfg", text, &read),
    ] {
        let Ok(toml) = made else {
            continue;
        };
        let steers = |c: char| c.is_control() && c != '\n';
        assert!(!toml.contains(steers), "{toml:?}");
        if let Err(errors) = Config::check(Path::new("weir.toml"), &toml, &Host) {
            panic!("{errors}\n{toml}");
        }
    }
});
