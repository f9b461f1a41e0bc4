//! A real BIND with response rate limiting under the shim. It logs with
//! stdio, from several threads, and rotates some files itself.

mod common;

use std::net::IpAddr;

use common::named::{LIMIT, Named};
use common::{Lines, ServerFiles, assert_same, wait_for};

const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 7));
const V6: IpAddr = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);

/// Floods with one name, then waits until each question that was not
/// answered in full has its line from the rate limit.
fn flood(named: &Named, lines: &mut Lines, from: IpAddr, name: &str) {
    let answers = named.ask(from, name, 100);
    assert!((1..=2 * LIMIT).contains(&answers.whole), "{answers:?}");
    let limited = lines.with(&format!("({name}): rate limit "), 100 - answers.whole);
    assert_eq!(limited.len(), 100 - answers.whole);
    let client = format!(" {from}#");
    let tail = format!(" for {name} IN A ");
    for line in &limited {
        assert!(
            line.contains("rate-limit: client @0x") && line.contains(&client),
            "{line}"
        );
        assert!(line.contains("drop response to ") || line.contains("slip response to "));
        assert!(line.contains(&tail), "{line}");
    }
    let slipped = limited.iter().filter(|line| line.contains(" slip "));
    assert_eq!(slipped.count(), answers.truncated);
}

#[test]
fn every_limited_answer_of_both_families_is_a_record() {
    let place = ServerFiles::new();
    let mut lines = place.reader();
    let named = Named::start(&place, &["rate.log", "query.log"], false);
    flood(&named, &mut lines, V4, "four.test");
    flood(&named, &mut lines, V6, "six.test");
    assert_eq!(lines.with("query: four.test IN A", 100).len(), 100);
    assert_eq!(lines.with("query: six.test IN A", 100).len(), 100);
    assert!(place.lines_of("rate.log").is_empty());
    assert!(place.lines_of("query.log").is_empty());
}

#[test]
fn with_tee_its_own_rotation_and_sighup_keep_every_line() {
    let place = ServerFiles::new();
    let mut lines = place.reader();
    let named = Named::start(&place, &["rate.log", "query.log"], true);
    flood(&named, &mut lines, V4, "before.test");
    std::fs::rename(place.file("rate.log"), place.file("rate.old")).expect("moved");
    named.running.signal("HUP");
    wait_for("named opens its file again", || {
        place.file("rate.log").exists().then_some(())
    });
    flood(&named, &mut lines, V4, "after.test");
    lines.with("query: after.test", 100);

    let mut rate = place.lines_of("rate.old");
    assert!(!rate.iter().any(|line| line.contains("after.test")));
    let new = place.lines_of("rate.log");
    assert!(new.iter().any(|line| line.contains("after.test")));
    rate.extend(new);
    let mut queries = Vec::new();
    for old in (0..50).rev() {
        queries.extend(place.lines_of(&format!("query.log.{old}")));
    }
    assert!(!queries.is_empty(), "named rotated");
    queries.extend(place.lines_of("query.log"));

    lines.read();
    assert_same(&lines.only("queries: "), &queries);
    // "stop limiting" comes by itself, at any time.
    let asked = |line: &String| line.contains("rate limit ");
    rate.retain(asked);
    assert_same(&lines.only("rate limit "), &rate);
}

#[test]
fn sigkill_leaves_the_ring_readable() {
    let place = ServerFiles::new();
    let mut named = Named::start(&place, &["rate.log"], false);
    let mut lines = place.reader();
    flood(&named, &mut lines, V4, "first.test");
    named.running.kill();
    drop(lines);
    let mut lines = place.reader();
    assert!(lines.with("(first.test): rate limit ", 90).len() >= 90);
    let named = Named::start(&place, &["rate.log"], false);
    flood(&named, &mut lines, V4, "second.test");
}
