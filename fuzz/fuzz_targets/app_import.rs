//! Other firewalls' rules about programs, to `weir import daf` and `weir import opensnitch`:
//! whatever they hold, what is printed is TOML, and nothing in it steers a terminal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_import::{daf, opensnitch};

fuzz_target!(|data: (bool, &str)| {
    let (is_daf, text) = data;
    let made = match is_daf {
        true => daf::configuration("rules.sh", text),
        false => {
            let files: Vec<_> = text
                .split('\0')
                .enumerate()
                .map(|(number, text)| (format!("{number}.json"), text.to_owned()))
                .collect();
            opensnitch::configuration(&files)
        }
    };
    let Ok(made) = made else { return };
    let table: toml::Table = made.parse().expect("it is TOML");
    assert!(table.keys().all(|key| key == "app"), "{made}");
    assert!(!made.contains(|c: char| c.is_control() && c != '\n'), "{made:?}");
});
