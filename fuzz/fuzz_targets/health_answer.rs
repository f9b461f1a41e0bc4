//! What a real, or whoever takes its place, answers to a health check: HTTP and DNS.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use weir_daemon::balance::check_answer::{dns_query, dns_verdict, http_status};

#[derive(Debug, Arbitrary)]
struct Input {
    http: Vec<u8>,
    cut: u16,
    dns: Vec<u8>,
    id: u16,
    name: String,
    code: u8,
}

fuzz_target!(|input: Input| {
    let whole = http_status(&input.http);
    if let Ok(Some(status)) = whole {
        assert!((200..1000).contains(&status));
    }
    // It comes in pieces, and what was known of the first ones stays so.
    let cut = usize::from(input.cut) % (input.http.len() + 1);
    match http_status(&input.http[..cut]) {
        Ok(None) => (),
        known => assert_eq!(known, whole),
    }
    // Behind a head that only announces it.
    let behind = [b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n", &input.http[..]].concat();
    assert_eq!(http_status(&behind).is_err(), whole.is_err());

    // Names are checked by the configuration.
    let name: String = input
        .name
        .bytes()
        .filter(u8::is_ascii_alphanumeric)
        .take(63)
        .map(char::from)
        .collect();
    let query = dns_query(input.id, &name);
    if let Some(verdict) = dns_verdict(&query, &input.dns) {
        assert_eq!(input.dns[..2], query[..2], "an answer to another question");
        let is_printable = |why: &String| why.chars().all(|c| c.is_ascii_graphic() || c == ' ');
        assert!(verdict.err().is_none_or(|why| is_printable(&why)));
    }
    // The answer that repeats the question, whatever is behind it.
    let mut answer = query.clone();
    answer[2] |= 0x80;
    answer[3] = input.code & 0x0f;
    answer.extend(&input.dns);
    let verdict = dns_verdict(&query, &answer).expect("an answer");
    assert_eq!(verdict.is_ok(), answer[3] == 0);
});
