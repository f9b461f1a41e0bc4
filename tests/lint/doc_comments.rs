//! Doc comments that say something, and name what they are about: a reader has one of
//! them alone before him, in an editor or in rustdoc.

use super::{none, sources};

/// Openings of a doc comment that lean on the line above: who reads it alone, in an
/// editor or in rustdoc, does not learn what it is about.
const LEANING: [&str; 54] = [
    "All of them",
    "And",
    "Are they",
    "As it",
    "As they",
    "Both of that",
    "Can it",
    "Does it",
    "Each of them",
    "For it",
    "For them",
    "For these",
    "For this",
    "Has it",
    "He",
    "His",
    "How it",
    "How they",
    "Is it",
    "It",
    "Its",
    "May it",
    "Neither of them",
    "None of that",
    "None of them",
    "Nor",
    "Nothing",
    "Of",
    "One of them",
    "That",
    "The same",
    "Their",
    "These",
    "They",
    "This one",
    "Those",
    "Was it",
    "What he",
    "What is",
    "What it",
    "What that",
    "What they",
    "What was",
    "When it",
    "When they",
    "Where it",
    "Where that",
    "Where they",
    "Who",
    "Whom",
    "Whose",
    "Why it",
    "Why they",
    "With which",
];
/// Words of a first sentence that is long enough to say what it is about all the same.
const NAMES_ITSELF: usize = 7;

/// Doc comments of one or two words; a name in backticks or brackets is a reference
/// and says enough.
fn terse(name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut begins, mut words) = (0, Vec::new());
    for (at, line) in text.lines().chain([""]).enumerate() {
        if let Some(doc) = line.trim_start().strip_prefix("///") {
            if words.is_empty() {
                begins = at + 1;
            }
            words.extend(doc.split_whitespace());
        } else {
            let refers = words
                .iter()
                .any(|word: &&str| word.contains(['`', '[', '/', '_']));
            if !words.is_empty() && words.len() < 3 && !refers {
                found.push(format!("{name}:{begins}: {}", words.join(" ")));
            }
            words.clear();
        }
    }
    found
}

/// The words of the first sentence of a doc comment; a colon ends it as well.
fn first_sentence<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let ends = |word: &&str| word.ends_with(['.', ':', ';', '?']);
    let end = words.iter().position(ends);
    words[..end.map_or(words.len(), |at| at + 1)].to_vec()
}

/// Does a sentence begin with these words?
fn begins_with(sentence: &[&str], opening: &str) -> bool {
    let bare = |word: &&str, wanted| word.trim_end_matches([',', '.', ':', ';', '?']) == wanted;
    let mut words = sentence.iter();
    opening
        .split(' ')
        .all(|wanted| words.next().is_some_and(|word| bare(word, wanted)))
}

/// Short doc comments that name nothing. The help of an option is read beside its name.
fn leaning(name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut begins, mut words) = (0, Vec::new());
    for (at, line) in text.lines().chain([""]).enumerate() {
        let line = line.trim_start();
        if let Some(doc) = line.strip_prefix("///") {
            if words.is_empty() {
                begins = at + 1;
            }
            words.extend(doc.split_whitespace());
            continue;
        }
        let sentence = first_sentence(&words);
        let leans = LEANING.iter().any(|begin| begins_with(&sentence, begin));
        if leans && sentence.len() < NAMES_ITSELF && !line.starts_with("#[arg") {
            found.push(format!("{name}:{begins}: {}", sentence.join(" ")));
        }
        words.clear();
    }
    found
}

#[test]
fn doc_comments_say_something() {
    let all = sources().into_iter();
    let rust = all.filter(|(name, _)| name.ends_with(".rs"));
    none(
        &rust
            .flat_map(|(name, text)| terse(&name, &text))
            .collect::<Vec<_>>(),
    );

    assert_eq!(terse("a.rs", "/// Which.\nlist: String,").len(), 1);
    assert_eq!(terse("a.rs", "fn a() {}\n    /// Its name.\nx").len(), 1);
    none(&terse("a.rs", "/// One\n/// and\n/// more.\nx: u8,"));
    none(&terse(
        "a.rs",
        "/// `POST /v1/bans`\nfn ban() {}\n/// See [`pin`].\nfn x() {}",
    ));
}

#[test]
fn doc_comments_name_what_they_are_about() {
    let all = sources();
    let rust = all.into_iter().filter(|(name, _)| name.ends_with(".rs"));
    none(
        &rust
            .flat_map(|(name, text)| leaning(&name, &text))
            .collect::<Vec<_>>(),
    );

    for wrong in [
        "/// What it said.\nsaid: String,",
        "/// It is\n/// taken.\nHeld,",
        "/// The same of IPv6.\nv6: u64,",
        "fn a() {}\n    /// Of its content: see below, for there is more to say.\n    x: u8,",
        "/// They are dropped. More of that\n/// is in the guide.\nDeny,",
    ] {
        assert_eq!(leaning("a.rs", wrong).len(), 1, "{wrong}");
    }
    for good in [
        "/// Office hours.\nx: u8,",
        "/// The same prefix is never listed twice by one source.\nfn a() {}",
        "/// Whether packets are dropped.\nx: bool,\n// What it said.",
        "/// The same as --wait 5\n#[arg(long)]\nquick: bool,",
    ] {
        none(&leaning("a.rs", good));
    }
}
