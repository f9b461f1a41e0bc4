//! The GeoTable against the reader it is made with, other makers' records, and
//! files that are broken.

use std::{collections::hash_map::Entry, net::Ipv6Addr};

use serde::Deserialize;
use weir_core::geo::{Number, find};
use weir_testkit::mmdb::{Mmdb, Value, country, map};

use super::*;

/// Reproducible disorder (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn wide(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }
}

/// What the reader itself says of an address in the built-in file, whose
/// records have a single key.
struct Oracle<'a> {
    reader: &'a Reader<Vec<u8>>,
    codes: HashMap<usize, Option<[u8; 2]>>,
}

#[derive(Deserialize)]
struct Code<'a> {
    country_code: &'a str,
}

impl Oracle<'_> {
    fn code(&mut self, addr: IpAddr) -> Option<[u8; 2]> {
        let found = self.reader.lookup(addr).unwrap();
        match self.codes.entry(found.offset()?) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(free) => {
                let code = found.decode::<Code<'_>>().unwrap().unwrap().country_code;
                *free.insert(Some(code.as_bytes().try_into().unwrap()))
            }
        }
    }
}

/// IPv4 in IPv6 is IPv4; the reader also knows the form that nobody uses.
fn is_compatible(addr: u128) -> bool {
    addr >> 32 == 0 || addr >> 32 == 0xffff
}

#[test]
fn the_geo_table_says_what_the_reader_says_everywhere() {
    const RANDOM: usize = 10_000_000;
    let mut database = Database::built_in().unwrap();
    // As the file says it, special-purpose addresses too.
    database.unknown.clear();
    let geo_table = database.countries().unwrap();
    assert!(geo_table.v4.len() > 100_000 && geo_table.v6.len() > 50_000);
    assert!(geo_table.v4.windows(2).all(|p| p[0].last < p[1].first));
    assert!(geo_table.v6.windows(2).all(|p| p[0].last < p[1].first));
    for place in &geo_table.places {
        let code = place.country.expect("this file knows countries only");
        assert!(code.name().is_some(), "{code} is missing in core's table");
        assert_eq!(place.continent, code.continent());
    }
    let code = |index: Option<&u16>| {
        index.map(|index| {
            geo_table.places[usize::from(*index)]
                .country
                .unwrap()
                .letters()
        })
    };
    let mut oracle = Oracle {
        reader: &database.reader,
        codes: HashMap::new(),
    };
    let mut v4 = |addr: u32| {
        assert_eq!(
            code(find(&geo_table.v4, addr)),
            oracle.code(addr.addr()),
            "{}",
            addr.addr()
        );
    };
    for span in &geo_table.v4 {
        v4(span.first);
        v4(span.last);
        v4(span.first.saturating_sub(1));
        v4(span.last.saturating_add(1));
    }
    let mut random = Random(4);
    for _ in 0..RANDOM / 2 {
        let both = random.next();
        v4(both as u32);
        v4((both >> 32) as u32);
    }
    let mut v6 = |addr: u128| {
        if !is_compatible(addr) {
            assert_eq!(
                code(find(&geo_table.v6, addr)),
                oracle.code(addr.addr()),
                "{}",
                addr.addr()
            );
        }
    };
    for span in &geo_table.v6 {
        v6(span.first);
        v6(span.last);
        v6(span.first.saturating_sub(1));
        v6(span.last.saturating_add(1));
    }
    // Most addresses belong to nobody: half of them are taken near others.
    for _ in 0..RANDOM / 2 {
        let addr = random.wide();
        v6(addr);
        let near = &geo_table.v6[random.next() as usize % geo_table.v6.len()];
        v6(near.first ^ (addr >> (32 + random.next() % 64)));
    }
}

/// One address per record, and the place it must give.
fn placed(record: Value) -> Place {
    let bytes = Mmdb::new("test")
        .with("192.0.2.0/24", record)
        .with("2001:db8::/32", country("NL", "EU"))
        .build();
    let database = Database::from_bytes(bytes).unwrap();
    let addr = "192.0.2.7".parse().unwrap();
    let mut place = database.countries().unwrap().place(addr);
    if let Ok(systems) = database.systems(&BTreeSet::from([64496])) {
        place.asn = systems.place(addr).asn;
    }
    let located = database.locate(addr).unwrap().unwrap();
    assert_eq!(located.network.to_string(), "192.0.2.0/24");
    assert_eq!(located.place, place);
    place
}

#[test]
fn records_of_every_maker_are_understood() {
    let text = |text: &str| Value::from(text);
    // (the record, its country, continent and system)
    let cases: Vec<(Value, &str, &str, u32)> = vec![
        (country("DE", "EU"), "DE", "EU", 0),
        // A continent of the file is believed.
        (country("CY", "AS"), "CY", "AS", 0),
        // ip-location-db: nothing but a code.
        (map([("country_code", text("NA"))]), "NA", "AF", 0),
        (map([("country_code", text("us"))]), "US", "NA", 0),
        // IPinfo: the country's name beside its code.
        (
            map([
                ("asn", text("AS64496")),
                ("continent_code", text("OC")),
                ("country", text("Australia")),
                ("country_code", text("AU")),
            ]),
            "AU",
            "OC",
            64496,
        ),
        (
            map([("country", text("FR")), ("continent", text("EU"))]),
            "FR",
            "EU",
            0,
        ),
        // A network without a country, that somebody has registered.
        (
            map([("registered_country", map([("iso_code", text("JP"))]))]),
            "JP",
            "AS",
            0,
        ),
        (
            map([
                ("registered_country", map([("iso_code", text("JP"))])),
                ("country", map([("iso_code", text("KR"))])),
            ]),
            "KR",
            "AS",
            0,
        ),
        (
            map([("continent", map([("code", text("NA"))]))]),
            "",
            "NA",
            0,
        ),
        // What registries write where there is no country.
        (map([("country_code", text("EU"))]), "", "EU", 0),
        (map([("country_code", text("AP"))]), "", "AS", 0),
        (map([("country_code", text("ZZ"))]), "", "", 0),
        (map([("country_code", text("-"))]), "", "", 0),
        // A code that no table has.
        (map([("country_code", text("QQ"))]), "QQ", "", 0),
        // Other types say nothing, and hide nothing.
        (
            map([
                ("country", Value::Number(5)),
                ("continent", Value::Array(vec![text("EU")])),
                ("country_code", text("IT")),
                ("city", map([("names", map([("en", text("Rome"))]))])),
            ]),
            "IT",
            "EU",
            0,
        ),
        (
            map([
                (
                    "country",
                    map([("iso_code", map([("iso_code", text("NL"))]))]),
                ),
                ("autonomous_system_number", Value::Number(64496)),
            ]),
            "",
            "",
            64496,
        ),
        (
            map([
                ("country", map([("iso_code", text("SE"))])),
                ("asn", Value::Number(64496)),
            ]),
            "SE",
            "EU",
            64496,
        ),
    ];
    for (record, code, continent, asn) in cases {
        let told = format!("{record:?}");
        let place = placed(record);
        let shown = |text: Option<String>| text.unwrap_or_default();
        assert_eq!(shown(place.country.map(|c| c.to_string())), code, "{told}");
        assert_eq!(
            shown(place.continent.map(|c| c.to_string())),
            continent,
            "{told}"
        );
        assert_eq!(place.asn.unwrap_or(0), asn, "{told}");
    }
}

#[test]
fn a_file_that_names_no_place_is_refused() {
    // The class of mistake to avoid: unknown keys, and everybody passes.
    let systems = Mmdb::new("GeoLite2-ASN").with(
        "192.0.2.0/24",
        map([
            ("autonomous_system_number", Value::Number(64496)),
            ("autonomous_system_organization", "Example".into()),
        ]),
    );
    let database = Database::from_bytes(systems.build()).unwrap();
    let message = database.countries().unwrap_err().to_string();
    assert_eq!(
        message,
        "it names no countries: its type is \"GeoLite2-ASN\", its records have \
         autonomous_system_number, autonomous_system_organization"
    );
    let countries = Mmdb::new("x").with("192.0.2.0/24", country("NL", "EU"));
    let database = Database::from_bytes(countries.build()).unwrap();
    let message = database.systems(&BTreeSet::from([1])).err().unwrap();
    assert!(
        message
            .to_string()
            .starts_with("it names no autonomous systems: ")
    );
    // Systems there are, only not the one that is asked about.
    let database = Database::from_bytes(systems.build()).unwrap();
    let geo_table = database.systems(&BTreeSet::from([64497])).unwrap();
    assert_eq!(geo_table, GeoTable::default());
    let empty = Database::from_bytes(Mmdb::new("x").build()).unwrap();
    assert!(
        empty
            .countries()
            .unwrap_err()
            .to_string()
            .contains("no keys")
    );
    let wrong = Mmdb::new("x").with("192.0.2.0/24", Value::Number(5));
    let wrong = Database::from_bytes(wrong.build()).unwrap();
    assert!(matches!(wrong.countries(), Err(GeoError::Broken(_))));
}

#[test]
fn every_shape_of_tree_gives_the_same_atlas() {
    let fill = |mmdb: Mmdb| {
        mmdb.with("0.0.0.0/1", country("US", "NA"))
            .with("192.0.2.0/24", country("NL", "EU"))
            .with("192.0.2.128/25", country("DE", "EU"))
    };
    let geo_table = |mmdb: Mmdb| {
        let database = Database::from_bytes(mmdb.build()).unwrap();
        database.countries().unwrap()
    };
    let plain = geo_table(fill(Mmdb::v4("x")));
    assert_eq!(plain.v4.len(), 3);
    for bits in [24, 28, 32] {
        assert_eq!(geo_table(fill(Mmdb::v4("x")).record_size(bits)), plain);
        assert_eq!(geo_table(fill(Mmdb::new("x")).record_size(bits)), plain);
        // An alias of IPv4 adds no span.
        assert_eq!(
            geo_table(fill(Mmdb::new("x")).record_size(bits).aliases()),
            plain
        );
    }
    // What holds for half of IPv6 holds for the IPv4 in it.
    let half = geo_table(Mmdb::new("x").with("::/1", country("NL", "EU")));
    for addr in ["255.255.255.255", "0.0.0.0", "7fff::", "::1"] {
        let place = half.place(addr.parse().unwrap());
        assert_eq!(place.country.unwrap().to_string(), "NL", "{addr}");
    }
    assert_eq!(half.place("8000::".parse().unwrap()), Place::default());
    // IPv4 alone says nothing about IPv6, rather than being an error.
    let v4 = Database::from_bytes(fill(Mmdb::v4("x")).build()).unwrap();
    assert_eq!(v4.locate(Ipv6Addr::LOCALHOST.into()).unwrap(), None);
}

/// A record that is about more than all of IPv4 says so of an address of IPv4.
#[test]
fn the_network_of_an_address_is_of_its_family() {
    for network in ["::/1", "::/19", "::/96"] {
        let bytes = Mmdb::new("X").with(network, country("DE", "EU")).build();
        let database = Database::from_bytes(bytes).unwrap();
        let addr: IpAddr = [192, 0, 2, 9].into();
        let found = database.locate(addr).unwrap().unwrap();
        assert_eq!(found.network.to_string(), "0.0.0.0/0", "{network}");
        let found = database.locate("::1:2".parse().unwrap()).unwrap().unwrap();
        assert_eq!(found.network.to_string(), network, "{network}");
    }
}

/// Everything that may be asked of a file; it may fail, but must return.
fn try_all(bytes: Vec<u8>) -> bool {
    let Ok(database) = Database::from_bytes(bytes) else {
        return false;
    };
    let _ = (database.kind().len(), database.built());
    let countries = database.countries();
    let _ = database.systems(&BTreeSet::from([64496]));
    for addr in ["192.0.2.7", "2001:db8::1", "::1", "255.255.255.255"] {
        let _ = database.locate(addr.parse().unwrap());
    }
    countries.is_ok()
}

#[test]
fn broken_files_are_errors_and_take_no_longer() {
    let whole = Mmdb::new("test")
        .aliases()
        .with("192.0.2.0/24", country("NL", "EU"))
        .with(
            "2001:db8::/32",
            map([
                ("asn", "AS64496".into()),
                ("country_code", "DE".into()),
                ("list", Value::Array(vec![Value::Number(1), "x".into()])),
            ]),
        )
        .build();
    assert!(try_all(whole.clone()));
    let begin = Instant::now();
    for length in 0..whole.len() {
        try_all(whole[..length].to_vec());
        assert!(!try_all(whole[length + 1..].to_vec()) || length < 6);
    }
    let mut random = Random(11);
    for at in 0..whole.len() {
        for flip in [0x01, 0x80, 0xff, random.next() as u8 | 2] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            try_all(bytes);
        }
    }
    assert!(begin.elapsed() < MAX_TIME, "{:?}", begin.elapsed());
}

#[test]
fn a_tree_that_refers_to_itself_ends() {
    let mut bytes = Mmdb::new("test")
        .with("192.0.2.0/24", country("NL", "EU"))
        .build();
    // Both records of the root are the root.
    bytes[..6].fill(0);
    let database = Database::from_bytes(bytes).unwrap();
    let begin = Instant::now();
    assert!(database.countries().is_err());
    assert!(begin.elapsed() < MAX_TIME / 10);
    // A chain whose two records are both the next node has 2^127 leaves.
    let mut bytes = Mmdb::new("test")
        .with("8000::/128", country("NL", "EU"))
        .build();
    for node in 0..127_u32 {
        let next = (node + 1).to_be_bytes();
        let at = node as usize * 6;
        bytes[at..at + 3].copy_from_slice(&next[1..]);
        bytes[at + 3..at + 6].copy_from_slice(&next[1..]);
    }
    let database = Database::from_bytes(bytes).unwrap();
    let begin = Instant::now();
    assert!(matches!(database.countries(), Err(GeoError::Endless)));
    assert!(begin.elapsed() < MAX_TIME / 10);
}

#[test]
fn the_built_in_database_places_nobody_in_a_private_network() {
    let table = Database::built_in().unwrap().countries().unwrap();
    let place = |addr: &str| table.place(addr.parse().unwrap());
    for addr in [
        "192.168.1.1",
        "10.0.0.1",
        "172.31.255.255",
        "203.0.113.7",
        "2001:db8::1",
    ] {
        assert_eq!(place(addr), Place::default(), "{addr}");
    }
    for addr in [
        "8.8.8.8",
        "192.167.255.255",
        "192.169.0.0",
        "2001:4860:4860::8888",
    ] {
        assert!(place(addr).country.is_some(), "{addr}");
    }
}

#[test]
fn the_built_in_database_broken_anywhere_is_no_panic() {
    let mut whole = Vec::new();
    lzma_rust2::XzReader::new(BUILT_IN, false)
        .read_to_end(&mut whole)
        .unwrap();
    let mut random = Random(23);
    for _ in 0..16 {
        let length = random.next() as usize % whole.len();
        assert!(!try_all(whole[..length].to_vec()), "cut at {length}");
    }
    for _ in 0..16 {
        let mut bytes = whole.clone();
        for _ in 0..32 {
            let at = random.next() as usize % bytes.len();
            bytes[at] ^= random.next() as u8;
        }
        try_all(bytes);
    }
}

#[test]
fn what_is_no_file_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let told = |path: &Path| Database::open(path).err().unwrap().to_string();
    assert!(told(dir.path()).contains("not a regular file"));
    assert!(told(&dir.path().join("none")).contains("cannot read it"));
    for (name, content) in [("empty", &b""[..]), ("text", b"<html>not found</html>")] {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        assert!(told(&path).contains("not a whole database"), "{name}");
    }
    let path = dir.path().join("large");
    File::create(&path).unwrap().set_len(MAX_FILE + 1).unwrap();
    assert!(told(&path).contains("at most"));
}

#[test]
fn countries_that_a_database_lacks_are_named() {
    let bytes = Mmdb::new("x")
        .with("192.0.2.0/24", country("NL", "EU"))
        .build();
    let geo_table = Database::from_bytes(bytes).unwrap().countries().unwrap();
    let code = |letters: &[u8; 2]| Country::from_letters(*letters).unwrap();
    assert_eq!(
        unheard_of(&geo_table, [code(b"NL"), code(b"DE")]),
        [code(b"DE")]
    );
}
