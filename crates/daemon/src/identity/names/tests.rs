//! Names without a name server: the answers are given here.

use super::*;
use crate::store::KeepHistory;

fn names(private: &[&str]) -> Arc<Names> {
    let names = Arc::new(Names::with(
        Box::new(|_| Err("nobody is asked".to_owned())),
        Box::new(|| Inside {
            own: vec![
                "198.51.100.1".parse().unwrap(),
                "2001:db8::1".parse().unwrap(),
            ],
            routers: vec![
                "198.51.100.254".parse().unwrap(),
                "2001:db8::ffff".parse().unwrap(),
            ],
        }),
    ));
    // No thread: the answers are given here.
    names.table().is_started = true;
    let private: Vec<_> = private
        .iter()
        .map(|text| NamePattern::new(text).unwrap())
        .collect();
    names.follow(["example.org", "nas.home.arpa"].into_iter(), &private);
    names
}

fn answer(texts: &[&str]) -> Result<Vec<IpAddr>, String> {
    Ok(texts.iter().map(|text| text.parse().unwrap()).collect())
}

fn of(names: &Names, name: &str) -> Option<Vec<String>> {
    let (all, _) = names.addresses();
    let addresses = all.get(name)?;
    Some(addresses.iter().map(ToString::to_string).collect())
}

#[test]
fn answers_that_lead_inside_are_refused() {
    let names = names(&["*.home.arpa"]);
    let now = Instant::now();
    assert_eq!(of(&names, "example.org"), None);
    for inside in [
        "127.0.0.1",
        "::1",
        "::ffff:127.0.0.1",
        "10.0.0.1",
        "192.168.1.1",
        "100.64.1.1",
        "fd00::1",
        "fe80::1",
        "169.254.169.254",
        "198.51.100.1",
        "2001:db8::1",
        "198.51.100.254",
        "2001:db8::ffff",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
    ] {
        names.answered("example.org", answer(&[inside, "192.0.2.7"]), now);
        assert_eq!(
            of(&names, "example.org").unwrap(),
            ["192.0.2.7"],
            "{inside}"
        );
        let troubles = names.troubles();
        assert!(
            troubles[0].contains("refused because"),
            "{inside}: {troubles:?}"
        );
    }
    names.answered("nas.home.arpa", answer(&["192.168.1.9", "::1"]), now);
    assert_eq!(of(&names, "nas.home.arpa").unwrap(), ["192.168.1.9", "::1"]);
    names.answered("example.org", answer(&["192.0.2.7"]), now);
    assert_eq!(names.troubles(), [""; 0]);
}

#[test]
fn an_address_holds_for_a_while_after_it_was_seen() {
    let names = names(&[]);
    let begun = Instant::now();
    names.answered("example.org", answer(&["192.0.2.1"]), begun);
    let changes = names.changes();
    names.answered(
        "example.org",
        answer(&["192.0.2.2", "2001:db8:1::2"]),
        begun + REFRESH,
    );
    assert_eq!(of(&names, "example.org").unwrap().len(), 3);
    assert_eq!(names.changes(), changes + 1);
    names.answered("example.org", answer(&["192.0.2.2"]), begun + 2 * REFRESH);
    assert_eq!(names.changes(), changes + 1);
    names.answered("example.org", answer(&["192.0.2.2"]), begun + KEEP);
    assert_eq!(
        of(&names, "example.org").unwrap(),
        ["192.0.2.2", "2001:db8:1::2"]
    );
    // One that fails keeps them, and is told.
    names.answered("example.org", Err("timed out".to_owned()), begun + KEEP);
    assert_eq!(of(&names, "example.org").unwrap().len(), 2);
    assert!(names.troubles()[0].contains("not answered any more (timed out)"));
    names.answered("example.org", Err("timed out".to_owned()), begun + 3 * KEEP);
    assert_eq!(of(&names, "example.org").unwrap().len(), 0);
}

#[test]
fn a_name_with_very_many_addresses_has_a_bound() {
    let names = names(&[]);
    let many: Vec<IpAddr> = (0..MAX_ADDRESSES as u32 + 5)
        .map(|n| (0xc000_0200 + n).into())
        .map(|v4: std::net::Ipv4Addr| v4.into())
        .collect();
    names.answered("example.org", Ok(many), Instant::now());
    assert_eq!(of(&names, "example.org").unwrap().len(), MAX_ADDRESSES);
    assert!(names.troubles()[0].contains("5 are left out"));
    // The rules ask for it no more.
    names.follow(["nas.home.arpa"].into_iter(), &[]);
    assert_eq!(of(&names, "example.org"), None);
    names.answered("example.org", answer(&["192.0.2.1"]), Instant::now());
    assert_eq!(of(&names, "example.org"), None);
}

/// A reload that is refused brings back what the rules before had.
#[test]
fn a_name_that_comes_back_soon_has_its_addresses() {
    let names = names(&[]);
    names.answered("example.org", answer(&["192.0.2.1"]), Instant::now());
    assert!(names.has_unanswered());
    names.follow(["nas.home.arpa"].into_iter(), &[]);
    assert_eq!(of(&names, "example.org"), None);
    names.follow(["example.org"].into_iter(), &[]);
    assert_eq!(of(&names, "example.org").unwrap(), ["192.0.2.1"]);
    assert!(!names.has_unanswered());
    names.wait(Duration::from_secs(60));
    // Not for ever, and not very many.
    names.follow([].into_iter(), &[]);
    let later = Instant::now() + KEEP_LEFT;
    names.table().forget_left(later);
    names.follow(["example.org"].into_iter(), &[]);
    assert_eq!(of(&names, "example.org"), None);
    for number in 0..2 * MAX_LEFT {
        names.follow([format!("n{number}.test").as_str()].into_iter(), &[]);
    }
    assert_eq!(names.table().names.len(), MAX_LEFT + 1);
    assert!(!names.table().names.contains_key("n0.test"));
}

#[test]
fn names_come_in_turn_and_those_that_fail_sooner() {
    let names = names(&[]);
    let now = Instant::now();
    let next = |at: Instant| Names::next(&mut names.table(), at);
    let (first, second) = (next(now).unwrap(), next(now).unwrap());
    assert_ne!(first, second);
    assert_eq!(next(now), Err(REFRESH));
    names.answered(&first, Err("no".to_owned()), now);
    names.answered(&second, answer(&["192.0.2.1"]), now);
    assert_eq!(next(now), Err(RETRY));
    assert_eq!(next(now + RETRY), Ok(first));
    assert_eq!(next(now + REFRESH), Ok(second));
}

fn store_with(rows: &[(&str, String)]) -> (tempfile::TempDir, Arc<Store>) {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), KeepHistory::default(), Arc::default());
    let rows = rows.iter().map(|(name, record)| {
        let (name, record) = ((*name).into(), Some(record.clone()));
        Change::Resolved(ResolvedRow { name, record })
    });
    store.remember_now(rows.collect()).unwrap();
    (dir, Arc::new(store))
}

/// The record of these addresses, which were in an answer so many seconds ago.
fn seen(all: &[(&str, u64)]) -> String {
    let all = all.iter();
    let all = all.map(|(text, age)| (text.parse().unwrap(), Duration::from_secs(*age)));
    kept::record(all, Timestamp::now()).unwrap()
}

fn names_in(store: &Arc<Store>, private: &[NamePattern]) -> Names {
    let inside = || Inside {
        own: vec!["198.51.100.1".parse().unwrap()],
        ..Inside::default()
    };
    let names = Names::with(Box::new(|_| Err("dead".to_owned())), Box::new(inside));
    let names = names.kept_in(store.clone());
    names.table().is_started = true;
    let names = Arc::new(names);
    names.follow(["example.org", "nas.home.arpa"].into_iter(), private);
    Arc::into_inner(names).unwrap()
}

#[test]
fn addresses_from_disk_hold_until_there_is_an_answer_and_a_day_at_most() {
    let rows = [
        (
            "example.org",
            seen(&[
                ("192.0.2.1", 60),
                ("192.0.2.2", 3000),
                // Running, weir would not have it any more.
                ("2001:db8:1::3", 7200),
            ]),
        ),
        ("nas.home.arpa", seen(&[("192.0.2.8", 90_000)])),
        ("of.no.rule", seen(&[("192.0.2.9", 60)])),
    ];
    let (_dir, store) = store_with(&rows);
    let names = names_in(&store, &[]);
    assert_eq!(of(&names, "nas.home.arpa"), None);
    // Nobody waits for the one that has addresses.
    names.answered("nas.home.arpa", Err("dead".to_owned()), Instant::now());
    names.wait(Duration::from_secs(60));
    assert_eq!(
        of(&names, "example.org").unwrap(),
        ["192.0.2.1", "192.0.2.2"]
    );
    assert!(names.has_unanswered());
    assert_eq!(names.kept().len(), 1);
    assert_eq!(names.kept()[0].addresses, 2);
    let changes = names.changes();
    names.answered("example.org", Err("dead".to_owned()), Instant::now());
    assert_eq!(of(&names, "example.org").unwrap().len(), 2);
    assert_eq!(names.changes(), changes);
    assert!(names.troubles()[0].contains("2 addresses from before the start"));
    // What was in an answer within the hour holds beside the answer, as ever.
    let now = Instant::now() + Duration::from_secs(7200);
    names.answered("example.org", answer(&["192.0.2.3"]), now);
    assert_eq!(
        of(&names, "example.org").unwrap(),
        ["192.0.2.1", "192.0.2.2", "192.0.2.3"]
    );
    assert!(names.kept().is_empty());
    let forget = |names: &Names| {
        let gone = names.table().forget_left(Instant::now() + KEEP_LEFT);
        names.delete(gone.clone());
        store.flush().unwrap();
        gone
    };
    assert_eq!(forget(&names), ["of.no.rule"]);
    let rows = store.resolved(10, 1000);
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(
        rows[0].1.as_ref().unwrap().contains("192.0.2.3"),
        "{rows:?}"
    );
    // The rules are gone.
    let names = Arc::new(names);
    names.follow([].into_iter(), &[]);
    assert_eq!(forget(&names).len(), 2);
    assert!(store.resolved(10, 1000).is_empty());
}

#[test]
fn addresses_from_disk_that_lead_inside_are_refused_as_answers_are() {
    let inside = [
        ("127.0.0.1", 60),
        ("::ffff:127.0.0.1", 60),
        ("10.0.0.1", 60),
        ("fd00::1", 60),
        ("198.51.100.1", 60),
        ("192.0.2.1", 60),
    ];
    let rows = [
        ("example.org", seen(&inside)),
        ("nas.home.arpa", seen(&inside)),
    ];
    let (_dir, store) = store_with(&rows);
    let names = names_in(&store, &[NamePattern::new("*.home.arpa").unwrap()]);
    assert_eq!(of(&names, "example.org").unwrap(), ["192.0.2.1"]);
    assert!(
        names.troubles()[0].contains("refused because"),
        "{:?}",
        names.troubles()
    );
    assert_eq!(of(&names, "nas.home.arpa").unwrap().len(), 5);
}

#[test]
fn what_on_disk_is_refused_is_told_and_goes() {
    let rows = [
        ("example.org", "[[\"192.0.2.1\"".to_owned()),
        ("nas.home.arpa", seen(&[("192.0.2.8", 60)])),
    ];
    let (_dir, store) = store_with(&rows);
    // A name that is no text, and one of which not all is read.
    let foreign = [b"\xff.test".to_vec(), vec![b'a'; 300]].map(|name| {
        let record = Some("[]".to_owned());
        Change::Resolved(ResolvedRow { name, record })
    });
    store.remember_now(foreign.into()).unwrap();
    assert_eq!(store.resolved(10, 1000).len(), 4);
    let names = names_in(&store, &[]);
    assert_eq!(of(&names, "example.org"), None);
    let told = "the addresses of name:example.org in weir.db are not used";
    let troubles = || names.troubles().join("; ");
    assert!(troubles().contains(told), "{}", troubles());
    // It alone.
    assert_eq!(of(&names, "nas.home.arpa").unwrap(), ["192.0.2.8"]);
    store.flush().unwrap();
    let rows = store.resolved(10, 1000);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0].0, b"nas.home.arpa");
    for name in ["example.org", "nas.home.arpa"] {
        names.answered(name, answer(&["192.0.2.1"]), Instant::now());
    }
    assert_eq!(troubles(), "");
}

/// The rules of a reload are followed before it is known whether they come into force.
#[test]
fn a_reload_that_is_refused_costs_no_address_from_disk() {
    let rows = [
        ("example.org", seen(&[("192.0.2.1", 60)])),
        ("nas.home.arpa", seen(&[("10.0.0.1", 60)])),
    ];
    let (_dir, store) = store_with(&rows);
    let private = [NamePattern::new("*.home.arpa").unwrap()];
    let names = Arc::new(names_in(&store, &private));
    // A name less, and the other may not be private.
    names.follow(["nas.home.arpa"].into_iter(), &[]);
    assert_eq!(of(&names, "example.org"), None);
    assert_eq!(of(&names, "nas.home.arpa"), None);
    assert!(names.kept().is_empty());
    assert!(names.troubles()[0].contains("10.0.0.1, which is refused"));
    names.follow(["example.org", "nas.home.arpa"].into_iter(), &private);
    assert_eq!(of(&names, "example.org").unwrap(), ["192.0.2.1"]);
    assert_eq!(of(&names, "nas.home.arpa").unwrap(), ["10.0.0.1"]);
    assert_eq!(names.kept().len(), 2);
    assert_eq!(names.troubles(), [""; 0]);
    store.flush().unwrap();
    assert_eq!(store.resolved(10, 1000).len(), 2);
}
