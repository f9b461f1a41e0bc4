//! A file of countries and networks (MaxMind's format) from wherever the administrator has it:
//! a small one with changes, or any bytes behind its mark.
#![no_main]

use std::{net::IpAddr, sync::LazyLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use weir_sources::geo::Database;
use weir_testkit::mmdb::{Mmdb, country};

/// What a file has between its records and what it says of itself.
const MARK: &[u8] = b"\xab\xcd\xefMaxMind.com";

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    /// Changes of the small file, by their place from its end and from its beginning.
    changes: Vec<(bool, u16, u8)>,
    cut: u16,
    /// Records and what the file says of itself, in place of the small file.
    any: Option<(&'a [u8], &'a [u8])>,
    addresses: Vec<IpAddr>,
}

static SMALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    Mmdb::new("GeoLite2-Country")
        .with("192.0.2.0/24", country("DE", "EU"))
        .with("198.51.100.0/25", country("CN", "AS"))
        .with("2001:db8::/32", country("BR", "SA"))
        .aliases()
        .build()
});

fn file(input: &Input<'_>) -> Vec<u8> {
    if let Some((records, about)) = input.any {
        return [records, MARK, about].concat();
    }
    let mut file = SMALL.clone();
    for (is_from_end, at, value) in &input.changes {
        let at = usize::from(*at) % file.len();
        let at = if *is_from_end {
            file.len() - 1 - at
        } else {
            at
        };
        file[at] = *value;
    }
    file.truncate(file.len() - usize::from(input.cut) % file.len());
    file
}

fuzz_target!(|input: Input<'_>| {
    let Ok(database) = Database::from_bytes(file(&input)) else {
        return;
    };
    let _ = (database.kind(), database.built());
    let given: [IpAddr; 3] = [
        [192, 0, 2, 9].into(),
        [10, 0, 0, 1].into(),
        [0x2001; 8].into(),
    ];
    for addr in given.iter().chain(&input.addresses) {
        if let Ok(Some(found)) = database.locate(*addr) {
            assert!(
                found.network.contains(addr.to_canonical()),
                "{addr}: {found:?}"
            );
        }
    }
    let _ = (database.countries(), database.systems(&[64500].into()));
});
