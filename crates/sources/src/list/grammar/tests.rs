//! Each grammar as it is published, what is refused, and that any bytes at all
//! are read without harm.

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits {
    max_bytes: 1 << 26,
    max_entries: 2_000_000,
    widest: WIDEST,
};

fn read(text: &str) -> Result<ParsedList, ListError> {
    parse(text.as_bytes(), Format::Auto, Admit::Public, &LIMITS)
}

fn shown(parsed: &ParsedList) -> Vec<String> {
    parsed.prefixes.iter().map(Prefix::to_string).collect()
}

#[test]
fn every_grammar_is_recognised_and_read() {
    // (what it is, its text, the format, its prefixes, lines that are no entry)
    let cases: &[(&str, &str, &str, &[&str], usize)] = &[
        (
            "addresses",
            "198.51.100.7\r\n2001:db8::7\r\n",
            "plain",
            &["198.51.100.7", "2001:db8::7"],
            0,
        ),
        (
            "a last line without an end",
            "198.51.100.7\n203.0.113.9",
            "plain",
            &["198.51.100.7", "203.0.113.9"],
            0,
        ),
        (
            "prefixes with bits behind their length, a netmask",
            "198.51.100.7/24\n203.0.113.0/255.255.255.128\n203.0.113.128 255.255.255.192\n2001:db8::1/32\n",
            "plain",
            &[
                "198.51.100.0/24",
                "203.0.113.0/25",
                "203.0.113.128/26",
                "2001:db8::/32",
            ],
            0,
        ),
        (
            "ranges",
            "198.51.100.4-198.51.100.7\n198.51.100.8 - 198.51.100.11 some net\n2001:db8::-2001:db8::1\n",
            "plain",
            &["198.51.100.4/30", "198.51.100.8/30", "2001:db8::/127"],
            0,
        ),
        (
            "Spamhaus DROP",
            "; Spamhaus DROP List\n; Last-Modified: Sat\n198.51.100.0/24 ; SBL1\n203.0.113.0/24 ; SBL2\n",
            "plain",
            &["198.51.100.0/24", "203.0.113.0/24"],
            0,
        ),
        (
            "comments of all kinds",
            "# one\n// two\n  ; three\n\n198.51.100.7# four\n198.51.100.9 // five\n",
            "plain",
            &["198.51.100.7", "198.51.100.9"],
            0,
        ),
        (
            "DShield: first, last, length",
            "#\n198.51.100.0\t198.51.100.255\t24\t1234\tNAME\n",
            "plain",
            &["198.51.100.0/24"],
            0,
        ),
        (
            "CSV with a heading, quoted",
            "\"seen\",\"dst_ip\",\"port\"\n\"2026-11-21 10:00, UTC\",\"198.51.100.7\",\"443\"\n\"x\",\"203.0.113.9\",\"80\"\n",
            "csv:2",
            &["198.51.100.7", "203.0.113.9"],
            1,
        ),
        (
            "CSV with ports",
            "# number, address, rating\n1,198.51.100.7:4444,0.5\n2,203.0.113.9:1,0.1\n",
            "csv:2",
            &["198.51.100.7", "203.0.113.9"],
            0,
        ),
        (
            "an address and more behind commas",
            "198.51.100.7,evil,10\n203.0.113.9,evil,20\n",
            "plain",
            &["198.51.100.7", "203.0.113.9"],
            0,
        ),
        (
            "ipset save",
            "create bad hash:net family inet hashsize 1024 maxelem 65536\n\
             add bad 198.51.100.0/24 timeout 5\nadd bad 198.51.100.128/26 nomatch\n\
             add bad 203.0.113.7-203.0.113.8\nadd ports 203.0.113.9,tcp:22\n\
             add bad 203.0.113.20 comment \"nomatch\"\n",
            "ipset",
            &[
                "198.51.100.0/25",
                "198.51.100.192/26",
                "203.0.113.7",
                "203.0.113.8",
                "203.0.113.20",
            ],
            1,
        ),
        (
            "hosts with an address in it",
            "127.0.0.1 localhost\n::1 localhost\n0.0.0.0 bad.example\n0.0.0.0 198.51.100.7\n0.0.0.0 worse.example # comment\n",
            "hosts",
            &["198.51.100.7"],
            0,
        ),
        (
            "JSON lines",
            "{\"cidr\":\"198.51.100.0/24\",\"sblid\":\"SBL1\"}\n{\"cidr\":\"2001:db8::/32\"}\n{\"type\":\"metadata\"}\n",
            "json",
            &["198.51.100.0/24", "2001:db8::/32"],
            0,
        ),
        (
            "a JSON array",
            "[\"198.51.100.7\", \"an \\\" escape\", \"203.0.113.0/24\"]",
            "json",
            &["198.51.100.7", "203.0.113.0/24"],
            0,
        ),
        (
            "IPv6 as in URLs",
            "[2001:db8::7]\n[2001:db8::9]:443\n",
            "plain",
            &["2001:db8::7", "2001:db8::9"],
            0,
        ),
        (
            "IPv4 in IPv6",
            "::ffff:198.51.100.7\n::ffff:203.0.113.0/120\n",
            "plain",
            &["198.51.100.7", "203.0.113.0/24"],
            0,
        ),
        (
            "a mark of byte order",
            "\u{feff}198.51.100.7\n",
            "plain",
            &["198.51.100.7"],
            0,
        ),
        (
            "nobody just now",
            "# nothing at the moment\n",
            "plain",
            &[],
            0,
        ),
        ("nobody, as JSON", "[]", "json", &[], 0),
        (
            "words that are no entry",
            "198.51.100.7\n198.51.100\n198.51.100.08\n198.51.100.256\n198.51.100.7/33\n198.51.100.7/\n\
             198.51.100.9-198.51.100.8\n198.51.100.7-2001:db8::\nfe80::1%eth0\nbad.example\n$(reboot)\n2001:db8::/129\n",
            "plain",
            &["198.51.100.7"],
            11,
        ),
    ];
    for (what, text, format, expected, skipped) in cases {
        let parsed = read(text).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(parsed.format.to_string(), *format, "{what}");
        assert_eq!(shown(&parsed), *expected, "{what}");
        assert_eq!(
            parsed.skipped.count, *skipped,
            "{what}: {:?}",
            parsed.skipped
        );
        assert_eq!(format.parse(), Ok(parsed.format), "{what}");
    }
}

#[test]
fn what_is_no_list_is_refused_in_words() {
    let prose = "Dear user 198.51.100.7,\n".to_owned() + &"you ask too often\n".repeat(5);
    let cases: &[(&str, &str)] = &[
        ("", "it is empty"),
        (" \r\n\t\n", "it is empty"),
        ("<!DOCTYPE html><html>198.51.100.7", "web page"),
        ("\n  <?xml version=\"1.0\"?>", "web page"),
        ("198.51.100.7\n\0\n", "not a text: byte 13"),
        ("too many requests", "line 1 is \"too many requests\""),
        (&prose, "line 1 is \"Dear user"),
        ("{\"error\": \"not found\"}", "no line of it is an address"),
        (
            "[{\"ip\":\"198.51.100.7\"},{\"ip\":\"198.51.",
            "damaged JSON: line 1: a text without an end",
        ),
        (
            "[{\"ip\":\"198.51.100.7\"},\n",
            "damaged JSON: line 2: the end before the last bracket",
        ),
        ("[[[[", "damaged JSON: line 1: the end before"),
        (
            "127.0.0.1 localhost\n0.0.0.0 a.example b.example\n0.0.0.0 c.example\n",
            "hosts file: 4 names and no address",
        ),
        ("0.0.0.0/0\n", "it is wider than"),
        (
            "# own\n127.0.0.0/8\n::1\n",
            "none of its 2 entries can be taken: line 2: 127.0.0.0/8: nobody can ban it",
        ),
    ];
    for (text, words) in cases {
        let error = read(text).expect_err(text).to_string();
        assert!(error.contains(words), "{text:?}: {error}");
    }
    let mixed = "198.51.100.7\n".to_owned() + &"some other text\n".repeat(20);
    let error = read(&mixed).unwrap_err().to_string();
    assert!(
        error.contains("20 lines, 1 are") && error.contains("line 2"),
        "{error}"
    );
    // Who names the format means it.
    let parsed = parse(mixed.as_bytes(), Format::Plain, Admit::Public, &LIMITS).unwrap();
    assert_eq!((parsed.prefixes.len(), parsed.skipped.count), (1, 20));
    assert_eq!(parsed.skipped.first.len(), TOLD);
    assert_eq!(parsed.skipped.first[0], (2, "some other text".to_owned()));
}

#[test]
fn entries_that_nobody_may_hold_are_left_out_and_counted() {
    let text = "198.51.100.7\n0.0.0.0/0\n::/0\n0.0.0.0\n10.0.0.0/8\n172.16.5.0/24\n192.168.1.1\n100.64.0.0/10\n\
                169.254.1.1\n127.0.0.1\n224.0.0.1\n239.0.0.0/8\n255.255.255.255\n172.0.0.0/8\n10.255.0.0-11.0.0.255\n\
                ::1\nfe80::1\nff02::1\nfd00::/8\n2000::/3\n";
    let public = read(text).unwrap();
    assert_eq!(shown(&public), ["198.51.100.7"]);
    assert_eq!(public.refused.count, 19);
    assert_eq!(
        public.refused.first[0],
        (2, format!("0.0.0.0/0: {TOO_WIDE}"))
    );
    let wide: Vec<_> = public.wide.first.iter().map(String::as_str).collect();
    assert_eq!(wide, ["0.0.0.0/0", "::/0", "2000::/3"]);
    assert_eq!((public.wide.entries, public.wide.share), (3, [1000, 1000]));

    // A list of one's own may name one's own network.
    let own = parse(text.as_bytes(), Format::Auto, Admit::Bannable, &LIMITS).unwrap();
    assert!(
        shown(&own).contains(&"192.168.1.1".to_owned()),
        "{:?}",
        shown(&own)
    );
    assert_eq!(own.refused.count, 11);

    let allow = parse(text.as_bytes(), Format::Auto, Admit::Allow, &LIMITS).unwrap();
    assert!(shown(&allow).contains(&"fd00::/8".to_owned()));
    assert_eq!(allow.refused.count, 4, "{:?}", allow.refused);
}

/// One rule, however they are written: a prefix, a range, neighbours, halves.
#[test]
fn what_is_too_wide_is_left_out_whole_with_its_share() {
    let all = |parts: &[String]| parts.concat();
    let neighbours = |from: u8, to: u8| -> Vec<String> {
        (from..=to).map(|n| format!("{n}.0.0.0/8\n")).collect()
    };
    for text in [
        "20.0.0.0/7\n",
        "16.0.0.0/4\n",
        "16.0.0.0-31.255.255.255\n",
        &all(&neighbours(16, 31)),
        "16.0.0.0/5\n24.0.0.0/5\n",
        "2600::/8\n",
        "2600::/9\n2680::/9\n",
    ] {
        let parsed = read(&("198.51.100.7\n".to_owned() + text)).unwrap();
        assert_eq!(
            (&parsed.wide, parsed.refused.count),
            (&Wide::default(), 0),
            "{text}"
        );
        assert!(parsed.prefixes.len() >= 2, "{text}");
    }
    for (text, entries, shown_as, share) in [
        ("16.0.0.0/3\n".to_owned(), 1, "0.0.0.0/3", [1000, 0]),
        (
            "16.0.0.0-32.0.0.0\n".to_owned(),
            1,
            "16.0.0.0-32.0.0.0",
            [1000, 0],
        ),
        (
            all(&neighbours(16, 32)),
            17,
            "16.0.0.0-32.255.255.255",
            [1000, 0],
        ),
        (
            "16.0.0.0/4\n32.0.0.0\n".to_owned(),
            2,
            "16.0.0.0-32.0.0.0",
            [1000, 0],
        ),
        ("2600::/7\n".to_owned(), 1, "2600::/7", [0, 1000]),
        (
            "2600::/8\n2700::\n".to_owned(),
            2,
            "2600::-2700::",
            [0, 1000],
        ),
    ] {
        let text = "198.51.100.7\n2001:db8::7\n".to_owned() + &text;
        let parsed = read(&text).unwrap();
        assert_eq!(shown(&parsed), ["198.51.100.7", "2001:db8::7"], "{text}");
        assert_eq!(parsed.wide.entries, entries, "{text}");
        assert_eq!(parsed.refused.count, entries, "{text}");
        assert_eq!(parsed.wide.share, share, "{text}");
        assert_eq!(parsed.wide.first[0], shown_as, "{text}");
    }
    // A sixth of what it names.
    let text =
        "16.0.0.0/4\n32.0.0.0\n48.0.0.0/4\n80.0.0.0/4\n128.0.0.0/4\n176.0.0.0/4\n208.0.0.0/4\n";
    let parsed = read(text).unwrap();
    assert_eq!(parsed.wide.share, [167, 0]);
    assert_eq!(
        (parsed.entries, parsed.refused.count, parsed.prefixes.len()),
        (7, 2, 5)
    );

    // A list of one's own.
    let own = Limits {
        widest: [0; 2],
        ..LIMITS
    };
    let text = "128.0.0.0/2\n2000::/3\n1.0.0.0-126.255.255.255\n";
    let parsed = parse(text.as_bytes(), Format::Auto, Admit::Bannable, &own).unwrap();
    assert_eq!((parsed.refused.count, &parsed.wide), (0, &Wide::default()));
    assert!(shown(&parsed).contains(&"128.0.0.0/2".to_owned()));
    // Nobody bans his own network, though.
    let error = parse(b"0.0.0.0/1\n", Format::Auto, Admit::Bannable, &own).unwrap_err();
    assert!(error.to_string().contains("nobody can ban it"), "{error}");
}

#[test]
fn overlaps_and_neighbours_are_joined() {
    let parsed = read(
        "198.51.100.0/25\n198.51.100.128/25\n198.51.100.7\n203.0.113.8\n203.0.113.9\n203.0.113.9\n\
         2001:db8::/33\n2001:db8:8000::/33\n2001:db8::1\n",
    )
    .unwrap();
    assert_eq!(
        shown(&parsed),
        ["198.51.100.0/24", "203.0.113.8/31", "2001:db8::/32"]
    );
    assert_eq!(parsed.entries, 9);
}

#[test]
fn caps_are_kept() {
    let few = Limits {
        max_bytes: 40,
        max_entries: 2,
        widest: WIDEST,
    };
    let read = |text: &str| parse(text.as_bytes(), Format::Auto, Admit::Public, &few);
    assert_eq!(
        read("198.51.100.1\n198.51.100.2\n").unwrap().prefixes.len(),
        2
    );
    assert_eq!(
        read("198.51.100.1\n198.51.100.3\n198.51.100.5\n"),
        Err(ListError::TooMany(2))
    );
    // One entry, but five prefixes.
    assert_eq!(
        read("198.51.100.1-198.51.100.10"),
        Err(ListError::TooMany(2))
    );
    assert_eq!(read(&"#".repeat(41)), Err(ListError::TooLarge(40)));
}

/// Printed, not asserted: `cargo test --release -p weir-sources a_million -- --nocapture`.
#[test]
fn a_million_entries_are_read() {
    let mut text = String::new();
    for n in 0..1_000_000u32 {
        let addr = Ipv4Addr::from_bits(0x0100_0000 + n.wrapping_mul(2_654_435_761) % 0x0800_0000);
        let _ = writeln!(text, "{addr}");
    }
    let begin = std::time::Instant::now();
    let parsed = read(&text).unwrap();
    println!(
        "{} entries, {} MiB, {} prefixes: {:?}",
        parsed.entries,
        text.len() >> 20,
        parsed.prefixes.len(),
        begin.elapsed()
    );
    assert_eq!(parsed.entries, 1_000_000);
    assert_eq!(parsed.refused.count + parsed.skipped.count, 0);
    assert!(parsed.prefixes.windows(2).all(|w| w[0] < w[1]));
}

fn any_prefix() -> impl Strategy<Value = Prefix> {
    let v4 = (any::<u32>(), 8u8..=32).prop_map(|(a, len)| (IpAddr::V4(a.into()), len));
    let v6 = (any::<u128>(), 16u8..=128).prop_map(|(a, len)| (IpAddr::V6(a.into()), len));
    prop_oneof![v4, v6].prop_filter_map("in the family", |(addr, len)| Prefix::new(addr, len))
}

proptest! {
    /// A set prints as a text that reads as the same set, and holds exactly
    /// the addresses of the prefixes it was made of.
    #[test]
    fn a_set_reads_as_it_prints(prefixes in proptest::collection::vec(any_prefix(), 1..40)) {
        let Ok(parsed) = read(&print(&prefixes)) else {
            // All of it is private or unbannable.
            prop_assert!(prefixes.iter().all(|p| Admit::Public.refusal(*p).is_some()));
            return Ok(());
        };
        // Sixteen neighbours and one more are another test's.
        prop_assume!(parsed.wide.entries == 0);
        let again = read(&print(&parsed.prefixes));
        prop_assert_eq!(&again.unwrap().prefixes, &parsed.prefixes);
        for prefix in &prefixes {
            let held = parsed.prefixes.iter().any(|p| p.covers(*prefix));
            prop_assert_eq!(held, Admit::Public.refusal(*prefix).is_none(), "{}", prefix);
        }
        for pair in parsed.prefixes.windows(2) {
            prop_assert!(pair[0] < pair[1] && !pair[0].covers(pair[1]));
        }
    }

    /// Any bytes, as any format.
    #[test]
    fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..400), column in 1usize..5) {
        for format in [Format::Auto, Format::Plain, Format::Csv(column), Format::Ipset, Format::Hosts, Format::Json] {
            let _ = parse(&bytes, format, Admit::Bannable, &LIMITS);
        }
    }

    /// Pieces of lists in any order.
    #[test]
    fn pieces_of_lists_are_read_without_harm(pieces in proptest::collection::vec(
        prop_oneof![
            Just("198.51.100."), Just("7"), Just("/"), Just("-"), Just(" "), Just(","), Just("\n"), Just("\""),
            Just("::"), Just("ffff:"), Just("["), Just("]"), Just("{"), Just("\\"), Just("add "), Just("nomatch"),
            Just("0.0.0.0 "), Just("255.255.255.0"), Just("24"), Just("#"), Just(";"), Just("create "), Just("x"),
        ], 0..60)) {
        let text = pieces.concat();
        for admit in [Admit::Public, Admit::Allow] {
            if let Ok(parsed) = parse(text.as_bytes(), Format::Auto, admit, &LIMITS) {
                prop_assert!(parsed.refused.count <= parsed.entries);
                prop_assert!(parsed.prefixes.iter().all(|p| admit.refusal(*p).is_none()));
            }
        }
    }
}
