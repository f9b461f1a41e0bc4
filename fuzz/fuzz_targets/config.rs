//! A configuration file: accepted or refused with errors that name the file
//! and print on one line each, but never a panic.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use weir_daemon::{config::Config, host::HostFacts};

struct Host;

impl HostFacts for Host {
    fn interfaces(&self) -> Vec<String> {
        vec!["eth0".into(), "lo".into()]
    }
    fn has_interface(&self, name: &str) -> bool {
        ["eth0", "lo", "lan0"].contains(&name)
    }
    fn default_route_interfaces(&self) -> Vec<String> {
        vec!["eth0".into()]
    }
    fn has_journal(&self) -> bool {
        true
    }
    fn has_file(&self, path: &str) -> bool {
        path.len().is_multiple_of(2)
    }
    fn user(&self, name: &str) -> Option<u32> {
        name.len().is_multiple_of(2).then_some(33)
    }
    fn processors(&self) -> usize {
        4
    }
}

fuzz_target!(|text: &str| {
    match Config::check(Path::new("weir.toml"), text, &Host) {
        Ok(config) => {
            assert!(config.restart_needed(&config).is_empty());
            assert!(config.jails.iter().all(|jail| jail.limits.max_retry > 0));
        }
        Err(errors) => {
            let message = errors.to_string();
            assert!(!message.is_empty());
            assert!(message.starts_with("weir.toml:"), "{message:?}");
        }
    }
});
