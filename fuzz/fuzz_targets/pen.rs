//! A command line of Pen's, or a file of its commands, to `weir import pen`: what comes of
//! it is TOML, or an error, and nothing in it steers a terminal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_import::pen;

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
        let Ok(pen::Imported {
            text: made,
            incomplete,
        }) = made
        else {
            continue;
        };
        let table: Result<toml::Table, _> = made.parse();
        assert!(table.is_ok(), "{table:?}\n{made}");
        // Without a pool in force it says why.
        let has_pool = table.is_ok_and(|table| table.contains_key("pool"));
        assert_eq!(has_pool, incomplete.is_none(), "{incomplete:?}\n{made}");
        assert!(
            !made.contains(|c: char| c.is_control() && c != '\n'),
            "{made:?}"
        );
    }
});
