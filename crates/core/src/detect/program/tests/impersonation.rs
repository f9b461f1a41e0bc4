//! Filters in which one pattern could read another one's messages with an address
//! that a client wrote.

use proptest::prelude::*;

use super::*;
use crate::detect::{Cure, matcher::Matcher, template::Template};

const OWN: [(&str, &str); 2] = [
    ("192.0.2.7", "203.0.113.9"),
    ("2001:db8:bad::7", "2001:db8::9"),
];

fn filter(patterns: &[&str]) -> Result<Program, DefinitionError> {
    compile(Definition {
        patterns: patterns.iter().map(|text| (*text).into()).collect(),
        ..Definition::default()
    })
}

/// The address that a pattern names, all other patterns left out.
fn named(pattern: &str, message: &str) -> Option<String> {
    let matcher = Matcher::from(Template::parse(pattern).expect(pattern));
    let found = matcher.read(message.as_bytes())?.offender?;
    Some(Offender::from(found.ok()?).to_string())
}

/// The first pattern, the second, and a message of the second's program in which
/// the client wrote VICTIM.
const REFUSED: [(&str, &str, &str, &str, Cure); 13] = [
    // Fields of the first fit the second's address.
    (
        "rejected <word> <addr>: <text>",
        "rejected <addr>: <text>",
        "rejected OWN: VICTIM: x",
        "<text>",
        Cure::Order,
    ),
    (
        "no <word> <addr>",
        "no <addr> <user:word>",
        "no OWN VICTIM",
        "<user:word>",
        Cure::Order,
    ),
    (
        "[fatal: ]no <word> <addr>, <text>",
        "no <addr>, <user>",
        "no OWN, VICTIM, x",
        "<user>",
        Cure::Order,
    ),
    (
        "<user> <addr> <word>",
        "<user> <addr>",
        "VICTIM OWN",
        "<user>",
        Cure::Order,
    ),
    (
        "closed by <user> <addr> via <word>",
        "closed by <addr> for <user>",
        "closed by OWN for VICTIM via x",
        "<user>",
        Cure::FixedText,
    ),
    // The first's is read from the end, the second's from the start.
    (
        "<text> from <addr>",
        "<addr>: bad request <text>",
        "OWN: bad request x from VICTIM",
        "<text>",
        Cure::FixedText,
    ),
    (
        "<addr>: bad request <text>",
        "<text> from <addr>",
        "VICTIM: bad request x from OWN",
        "<text>",
        Cure::FixedText,
    ),
    (
        "login <user> from <addr>",
        "login from <addr> failed: <text>",
        "login from OWN failed: from VICTIM",
        "<text>",
        Cure::FixedText,
    ),
    (
        "no <addr> <text>",
        "no <user> at <addr>",
        "no VICTIM x at OWN",
        "<user>",
        Cure::FixedText,
    ),
    // A free text that may be empty, and blanks at the message's end.
    (
        "<text> by <addr>:",
        "x <addr>: <text>",
        "x OWN: y by VICTIM:",
        "<text>",
        Cure::FixedText,
    ),
    (
        "x <word> <addr>: <text>",
        "x <addr> <text>",
        "x OWN VICTIM:",
        "<text>",
        Cure::Order,
    ),
    // Client's words, and other fields that name somebody.
    (
        "user <addr> <word>",
        "user <user:word> <addr>",
        "user VICTIM OWN",
        "<user:word>",
        Cure::Order,
    ),
    (
        "rejected <word> <prefix>: <text>",
        "rejected <host>: <text>",
        "rejected OWN: VICTIM: x",
        "<text>",
        Cure::Order,
    ),
];

#[test]
fn a_pattern_that_takes_a_clients_text_in_anothers_message_is_refused() {
    for (first, second, _, field, cure) in REFUSED {
        let error = filter(&[first, second]).map(drop).unwrap_err();
        let DefinitionError::Impersonation(told) = &error else {
            panic!("{first} before {second}: {error}");
        };
        assert_eq!(told.field, field, "{first} before {second}");
        assert_eq!(told.cure, cure, "{first} before {second}");
        assert_eq!((told.reader.0, told.writer.0), (0, 1), "{error}");
        let said = error.to_string();
        for part in [
            "patterns[0]",
            "patterns[1]",
            first,
            second,
            field,
            "an address of its choice",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // The other way round is as it is said to be, whatever stands between.
        let turned = filter(&[second, "unlike <addr> these", first]);
        assert_eq!(
            turned.is_ok(),
            cure == Cure::Order,
            "{second} before {first}"
        );
        if cure == Cure::Order {
            assert!(
                said.contains("move patterns[1] before patterns[0]"),
                "{said}"
            );
        }
    }
}

/// No pattern is refused for nothing.
#[test]
fn what_is_refused_would_name_somebody_else() {
    for (own, victim) in OWN {
        for (first, second, message, ..) in REFUSED {
            let message = message.replace("OWN", own).replace("VICTIM", victim);
            assert_eq!(named(first, &message).as_deref(), Some(victim), "{message}");
            let read = named(second, &message).expect(second);
            assert!(read == own || read == victim, "{second}: {message}");
        }
    }
}

#[test]
fn patterns_that_leave_each_others_messages_alone_are_a_filter() {
    for patterns in [
        &["rejected <addr>: <text>", "rejected <word> <addr>: <text>"][..],
        &["rejected <addr>: <text>", "refused <word> <addr>: <text>"],
        &[
            "rejected by <word> <addr>: <text>",
            "rejected <addr>: <text>",
        ],
        &[
            "rejected <number>, <addr>: <text>",
            "rejected <addr>: <text>",
        ],
        &[
            "rejected <number> <addr>: <text>",
            "rejected <addr>: <text>",
        ],
        // No client's text, or none where it could be read.
        &["rejected <word> <addr>", "rejected <addr> <word>"],
        &["rejected <word> <addr>", "rejected <addr>: <text>, bye"],
        &["<user> from <addr>", "<user> from <addr> port <port>"],
        &["<user> from <addr> port <port>", "<user> from <addr>"],
        &[
            "<user> from <addr>[ port <port>]",
            "login of <user> from <addr>",
        ],
        &["invalid user <user> from <addr>", "user <user> from <addr>"],
        &["no <user> from <addr>", "no <text> by <addr>"],
        &["<text> by <addr>:", "x <addr>, <text>;"],
        // The second's messages end where the first's go on.
        &["no <word> <addr> again", "no <addr> <user:word>"],
        // Twice the same.
        &["<user> from <addr>", "<user> from <addr>"],
        // One before both takes all that the second could take of the third.
        &[
            "rejected <addr>: <text>",
            "rejected <word> <addr>: <text>",
            "refused <addr>: <text>",
        ],
    ] {
        filter(patterns).unwrap_or_else(|error| panic!("{patterns:?}: {error}"));
    }
}

/// The first pattern, the second, and a message of the first's program which it does
/// not read, as it takes what fits: the second would, with what the client wrote.
const UNREAD: [(&str, &str, &str, &str); 8] = [
    // An optional part, before and behind the free text.
    (
        "refused [by <word> ]<user> from <addr>",
        "refused by <addr> from <word>",
        "refused by VICTIM from OWN",
        "<user>",
    ),
    (
        "login [<word> ]<user:word> from <addr>",
        "login <addr> from <word>",
        "login VICTIM from OWN",
        "<user:word>",
    ),
    (
        "login [as <word>[ of] ][by ]<user> from <addr>",
        "login as <addr> from <word>",
        "login as VICTIM from OWN",
        "<user>",
    ),
    (
        "<user> at <addr>[ <word>] x",
        "<addr> at <word> x",
        "VICTIM at OWN x",
        "<user>",
    ),
    // The longest of a choice.
    (
        "x (a|a b) <user:word> <text> from <addr>",
        "x a <word> <addr> <word> <word>",
        "x a b VICTIM from OWN",
        "<text>",
    ),
    // All bytes that a field can have.
    (
        "n <number><user:word> <text> from <addr>",
        "n <number> <addr> <word> <word>",
        "n 15 VICTIM from OWN",
        "<text>",
    ),
    (
        "x <addr>:<word> <text>",
        "x <word> <addr> <text>",
        "x OWN:z:b VICTIM y",
        "<text>",
    ),
    (
        "<user> at <word>:<addr>",
        "<addr> at <word>",
        "VICTIM at b:z:OWN",
        "<user>",
    ),
];

#[test]
fn a_pattern_does_not_take_a_clients_text_in_what_an_earlier_one_does_not_read() {
    for (first, second, message, field) in UNREAD {
        for (own, victim) in OWN {
            let message = message.replace("OWN", own).replace("VICTIM", victim);
            assert_eq!(named(first, &message), None, "{first}: {message}");
            let read = named(second, &message);
            assert_eq!(read.as_deref(), Some(victim), "{second}: {message}");
        }
        let error = filter(&[first, second]).map(drop).expect_err(first);
        let DefinitionError::Impersonation(told) = &error else {
            panic!("{first} before {second}: {error}");
        };
        assert_eq!((told.reader.0, told.writer.0), (1, 0), "{error}");
        assert_eq!((told.field, told.cure), (field, Cure::Split), "{error}");
        let said = error.to_string();
        for part in [
            first,
            second,
            "patterns[0] does not read all of its own messages",
            "all before patterns[1]",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    // As it is said to be.
    filter(&[
        "refused <user> from <addr>",
        "refused by <word> <user> from <addr>",
        "refused by <addr> from <word>",
    ])
    .unwrap();
}

/// It goes another way than its program and comes to the same, or nothing of the
/// client's is where it does not.
#[test]
fn a_pattern_that_reads_all_of_its_messages_keeps_them_from_later_ones() {
    for (first, second) in [
        (
            "Failed for [invalid user ]<user> from <addr>",
            "Failed for invalid user <addr> <word> <word>",
        ),
        (
            "Failed for (user|user x) <user> from <addr>",
            "Failed for user <addr> from <word>",
        ),
        (
            "refused [x ]to <user> from <addr>",
            "refused to <addr> from <word>",
        ),
        ("<user> at <addr>[ x] y", "<addr> at <word> y"),
        (
            "refused <user> from <addr>:<port>",
            "refused <addr> from <word>",
        ),
        (
            "refused <addr>[ x <number>]: <text>",
            "refused <word> <addr> <text>",
        ),
    ] {
        filter(&[first, second]).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// What a pattern leaves to those behind it: messages longer than it reads, and cut
/// ones.
#[test]
fn a_pattern_behind_another_one_may_not_take_its_long_messages() {
    let limited = |text: &str, max_length| PatternDefinition {
        max_length,
        ..PatternDefinition::from(text)
    };
    let before = "login <addr>: <text>, again";
    let behind = "login <word> <addr> <text>, again";
    let open = "login <word> <addr> <text>";
    for (first, of_first, second, of_second, cure) in [
        (before, None, behind, None, None),
        (before, Some(200), behind, Some(200), None),
        (before, Some(200), behind, Some(100), None),
        (before, Some(200), behind, Some(201), Some(200)),
        (before, Some(5000), behind, None, Some(5000)),
        // A cut line ends wherever the client wants it to.
        (before, Some(200), open, Some(200), None),
        (before, Some(200), open, None, Some(200)),
        (before, None, open, Some(798), None),
        (before, None, open, Some(799), Some(798)),
        (before, None, open, None, Some(798)),
        ("login <addr>: <text>", None, open, None, None),
        ("login <addr>: <text>", Some(200), open, None, Some(200)),
    ] {
        let compiled = compile(Definition {
            patterns: vec![limited(first, of_first), limited(second, of_second)],
            ..Definition::default()
        });
        let row = format!("{first} {of_first:?}, {second} {of_second:?}");
        match (compiled.map(drop), cure) {
            (Ok(()), None) => {}
            (Err(DefinitionError::Impersonation(told)), Some(length)) => {
                assert_eq!(told.cure, Cure::MaxLength(length), "{row}");
                assert_eq!((told.reader.0, told.writer.0), (1, 0), "{row}");
                let cure = format!("give patterns[1] max_length = {length}");
                assert!(told.to_string().contains(&cure), "{told}");
            }
            (found, expected) => panic!("{row}: {found:?}, not {expected:?}"),
        }
    }
    // The other order is not enough where the first then leaves messages to the other.
    let turned = compile(Definition {
        patterns: vec![
            limited("rejected <word> <addr>: <text>", None),
            limited("rejected <addr>: <text>", Some(200)),
        ],
        ..Definition::default()
    });
    let Err(DefinitionError::Impersonation(told)) = turned else {
        panic!("{:?}", turned.map(drop));
    };
    assert_eq!(told.cure, Cure::OrderAndMaxLength(200));
    let said = told.to_string();
    let cure = "move patterns[1] before patterns[0], and give the latter, which reads longer messages, or cut ones, max_length = 200";
    assert!(said.contains(cure), "{said}");
    // It does.
    compile(Definition {
        patterns: vec![
            limited("rejected <addr>: <text>", Some(200)),
            limited("rejected <word> <addr>: <text>", Some(200)),
        ],
        ..Definition::default()
    })
    .unwrap();
}

/// Whoever writes a filter is told soon that it is too much, and many patterns
/// that say what their program says are not.
#[test]
fn the_largest_filters_are_judged_soon() {
    let judged = |pattern: &dyn Fn(usize) -> String| {
        let patterns = (0..1000).map(|n| pattern(n).as_str().into()).collect();
        let begun = std::time::Instant::now();
        let compiled = compile(Definition {
            patterns,
            ..Definition::default()
        });
        let took = begun.elapsed();
        assert!(took < std::time::Duration::from_secs(30), "{took:?}");
        compiled.map(drop)
    };
    let long = |part: &str, end: &str| part.repeat((1024 - end.len()) / part.len()) + end;
    for part in [
        "[<word> ]",
        "[<number>[ <word>] ]",
        "<word> ",
        "(a|aa|aaa)",
        "(a|a)",
    ] {
        let text = long(part, "<addr>: <text>");
        let error = judged(&|_| text.clone()).expect_err(part);
        let said = error.to_string();
        assert!(said.contains("an address of its choice"), "{said}");
    }
    let many = judged(&|n| format!("<text> {n} (a|b|c|d) <addr>"));
    let error = many.expect_err("each fits any start").to_string();
    assert!(error.contains("make two filters of it"), "{error}");
    judged(&|n| format!("error {n}: <word> <addr>: <text>")).unwrap();
    judged(&|n| format!("<user> from <addr> failed with error {n}.")).unwrap();
}

/// A pattern's message with the client's text in its place; `parts`: the optional
/// ones are there.
fn written(pattern: &str, own: &str, text: &str, parts: bool) -> String {
    let mut message = pattern.to_owned();
    while let (Some(begin), Some(end)) = (message.find('['), message.find(']')) {
        let part = if parts { &message[begin + 1..end] } else { "" };
        message = format!("{}{part}{}", &message[..begin], &message[end + 1..]);
    }
    for (field, value) in [
        ("<addr>", own),
        ("<word>", "mail"),
        ("<number>", "7"),
        ("(a|b)", "b"),
        ("<text>", text),
        ("<user>", text),
        (
            "<user:word>",
            text.split(' ')
                .next()
                .filter(|w| !w.is_empty())
                .unwrap_or("x"),
        ),
    ] {
        message = message.replace(field, value);
    }
    message
}

/// Patterns that often fit each other's messages.
fn pattern() -> impl Strategy<Value = String> {
    let one_of = |parts: &[&'static str]| prop::sample::select(parts.to_vec());
    let start = one_of(&["no ", "no ", "", "[b: ]"]);
    let word = one_of(&[
        "",
        "",
        "<word> ",
        "[<word> ]",
        "<number> ",
        "(a|b) ",
        "[b: ]",
    ]);
    let behind = one_of(&[": ", " ", ", ", "[ b]: ", " b ", ""]);
    let client = one_of(&["<text>", "<user>", "<user:word>"]);
    let end = one_of(&["", "", " b", ":"]);
    let part = one_of(&["", "", "", "[a ]", "[b <word> ]", "[<word> ]"]);
    let from_start = (
        start.clone(),
        word.clone(),
        behind,
        client.clone(),
        end.clone(),
    )
        .prop_map(|(start, word, behind, client, end)| {
            format!("{start}{word}<addr>{behind}{client}{end}")
        });
    let before = one_of(&[" ", ": ", " by ", ""]);
    let tail = one_of(&["", " <word>", "[ <word>]", ", <number>", "[ b]"]);
    let from_end = (start, word, part, client, before, tail, end).prop_map(
        |(start, word, part, client, before, tail, end)| {
            format!("{start}{word}{part}{client}{before}<addr>{tail}{end}")
        },
    );
    prop_oneof![from_start, from_end]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Whatever a client writes into a message of any of a filter's patterns that
    /// reads its own.
    #[test]
    fn no_filter_reads_an_address_that_a_client_wrote(
        patterns in prop::collection::vec(pattern(), 2..4),
        texts in prop::collection::vec(
            prop::collection::vec(prop::sample::select(vec![
                "VICTIM", "VICTIM: ", "VICTIM ", " by VICTIM", " ", "a ", " b", ": ", "x", ", 7", "no ", "7 ",
            ]), 0..6),
            20,
        ),
    ) {
        let texts_of: Vec<&str> = patterns.iter().map(String::as_str).collect();
        let Ok(filter) = filter(&texts_of) else {
            return Ok(());
        };
        let zone = TimeZone::UTC;
        let context = Context { now: NOW.parse().unwrap(), zone: &zone };
        for (own, victim) in OWN {
            for (pattern, text) in patterns.iter().flat_map(|p| texts.iter().map(move |t| (p, t))) {
                let text = text.concat().replace("VICTIM", victim);
                for parts in [false, true] {
                    let message = written(pattern, own, &text, parts);
                    let record = Record {
                        line: message.as_bytes(),
                        message_only: true,
                        ..Record::default()
                    };
                    let found = filter.read(&mut ProgramState::default(), &record, &context);
                    let named = found.map(|found| found.offender.to_string());
                    prop_assert!(
                        named.as_deref() != Some(victim),
                        "{:?}: {:?} of {:?}", patterns, message, pattern
                    );
                }
            }
        }
    }
}
