//! Attaching, copying and reading, as a reader does.

use super::*;

fn attach(memory: &Words, from: From) -> Option<Consumer> {
    Consumer::attach(memory, 2, from, Policy::OverwriteOldest, MAX_RECORD)
}

#[test]
fn a_reader_begins_where_it_asked_to_as_far_as_that_is_there() {
    // Position, number expected, bytes overwritten; floor 800, head 1600, next number 9.
    let cases = [
        ("newest", From::Newest, (1600, Some(9), 0)),
        ("oldest", From::Oldest, (800, None, 0)),
        ("at the head", From::At(1600, 9), (1600, Some(9), 0)),
        ("between", From::At(808, 4), (808, Some(4), 0)),
        ("at the floor", From::At(800, 4), (800, Some(4), 0)),
        ("overwritten", From::At(760, 4), (800, Some(4), 40)),
        ("past the head", From::At(1608, 9), (800, None, 0)),
        ("not on a word", From::At(804, 4), (800, None, 0)),
    ];
    for (name, from, (position, expected, overwritten)) in cases {
        let memory = Words::with(800, 1600, 9);
        memory.state(2).store(6, Relaxed);
        let consumer = attach(&memory, from).expect(name);
        assert_eq!(
            (consumer.position, consumer.released),
            (position, position),
            "{name}"
        );
        assert_eq!(consumer.expected, expected, "{name}");
        assert_eq!(consumer.overwritten, overwritten, "{name}");
        assert_eq!(memory.tail(2).load(Relaxed), position, "{name}");
        assert_eq!(
            memory.seen(2).load(Relaxed),
            expected.map_or(0, |seq| seq + 1),
            "{name}"
        );
        assert_eq!(
            memory.state(2).load(Relaxed),
            9,
            "{name}: taken, in a new life"
        );
        assert_eq!(memory.used().load(Relaxed), 3, "{name}");
    }
    let memory = Words::with(800, 800, 9);
    let consumer = attach(&memory, From::Oldest).expect("an empty ring");
    assert_eq!((consumer.position, consumer.expected), (800, Some(9)));
}

/// Its lowest bit says so, and the others count the lives of the slot, also where the one
/// before has not been buried.
#[test]
fn a_slot_is_taken_in_a_life_of_its_own() {
    for (before, after) in [(0, 3), (2, 5), (3, 5), (u64::MAX, 1)] {
        let memory = Words::with(800, 800, 9);
        memory.state(2).store(before, Relaxed);
        assert!(attach(&memory, From::Newest).is_some());
        assert_eq!(memory.state(2).load(Relaxed), after);
        assert_eq!(memory.used().load(Relaxed), 3);
    }
}

#[test]
fn a_reader_refuses_indices_that_make_no_sense() {
    let limit = POSITION_LIMIT;
    let cases = [
        ("empty", 800, 800, true),
        ("floor past the head", 808, 800, false),
        ("at the limit", limit, limit, true),
        ("past the limit", limit, limit + 8, false),
        ("head not on a word", 800, 804, false),
        ("floor not on a word", 804, 808, false),
        ("neither on a word", 804, 804, false),
    ];
    for (name, floor, head, good) in cases {
        let memory = Words::with(floor, head, 9);
        assert_eq!(attach(&memory, From::Newest).is_some(), good, "{name}");
    }
}

#[test]
fn a_reader_follows_the_floor_that_moves_while_it_attaches() {
    let memory = Words::with(0, 4096, 9);
    let mut moves = [320, 640].into_iter();
    memory.meanwhile(move |memory| {
        if let Some(floor) = moves.next() {
            memory.floor().store(floor, Relaxed);
        }
    });
    let consumer = attach(&memory, From::Oldest).expect("it rests at last");
    assert_eq!(consumer.position, 640);
    assert_eq!(memory.tail(2).load(Relaxed), 640);
    assert_eq!(memory.state(2).load(Relaxed), 3, "attached once");

    let memory = Words::with(0, 1 << 30, 9);
    memory.meanwhile(|memory| {
        memory.floor().fetch_add(8, Relaxed);
    });
    assert!(attach(&memory, From::Oldest).is_none(), "it never rests");
}

fn consumer(memory: &Words, policy: Policy, from: From) -> Consumer {
    Consumer::attach(memory, 0, from, policy, MAX_RECORD).expect("an honest writer")
}

#[test]
fn what_is_published_is_copied_as_far_as_the_buffer_goes() {
    for policy in [Policy::DropNewest, Policy::OverwriteOldest] {
        let memory = Words::with(800, 800, 9);
        let mut consumer = consumer(&memory, policy, From::Newest);
        let mut words = [0; 600];
        assert_eq!(consumer.pending(&memory), 0);
        assert!(matches!(
            consumer.copy(&memory, &mut words),
            Ok(Copied::Nothing)
        ));
        for (published, room, copied) in [(24, 600, 3), (24, 3, 3), (24, 2, 2), (4096, 600, 512)] {
            memory.head().store(800 + published, Relaxed);
            assert_eq!(consumer.pending(&memory), published);
            let got = consumer.copy(&memory, &mut words[..room]);
            let what = format!("{published} bytes, {policy:?}: {got:?}");
            assert!(
                matches!(got, Ok(Copied::Words(0, count)) if count == copied),
                "{what}"
            );
            assert_eq!(
                (consumer.position, consumer.overwritten),
                (800, 0),
                "{what}"
            );
        }
    }
}

#[test]
fn a_copy_refuses_indices_that_no_writer_writes() {
    use Policy::{DropNewest, OverwriteOldest};
    let limit = POSITION_LIMIT;
    let far = limit - CAPACITY;
    // Policy, where the reader is, the floor and the head it finds.
    let cases = [
        ("as long as the ring", DropNewest, 800, 800, 4896, true),
        ("longer than the ring", DropNewest, 800, 800, 4904, false),
        ("as long as the ring", OverwriteOldest, 800, 800, 4896, true),
        (
            "longer than the ring",
            OverwriteOldest,
            800,
            800,
            4904,
            false,
        ),
        ("floor at the head", OverwriteOldest, 800, 1600, 1600, true),
        (
            "floor past the head",
            OverwriteOldest,
            800,
            1608,
            1600,
            false,
        ),
        ("back", DropNewest, 800, 792, 792, false),
        ("back", OverwriteOldest, 800, 792, 792, false),
        ("at the limit", DropNewest, far, far, limit, true),
        (
            "past the limit",
            DropNewest,
            far + 8,
            far + 8,
            limit + 8,
            false,
        ),
        ("head not on a word", DropNewest, 800, 800, 812, false),
        ("neither on a word", OverwriteOldest, 800, 804, 804, false),
    ];
    for (name, policy, position, floor, head, good) in cases {
        let memory = Words::with(position, position, 9);
        let mut consumer = consumer(&memory, policy, From::Newest);
        memory.floor().store(floor, Relaxed);
        memory.head().store(head, Relaxed);
        let copied = consumer.copy(&memory, &mut [0; 600]);
        assert_eq!(copied.is_ok(), good, "{name}, {policy:?}: {copied:?}");
    }
}

#[test]
fn a_reader_that_was_overtaken_goes_on_at_the_floor_and_counts_the_bytes() {
    let memory = Words::with(0, 0, 0);
    let mut consumer = consumer(&memory, Policy::OverwriteOldest, From::Newest);
    for (floor, head, overwritten) in [(320, 4096, 320), (400, 4096, 400)] {
        memory.floor().store(floor, Relaxed);
        memory.head().store(head, Relaxed);
        let copied = consumer
            .copy(&memory, &mut [0; 600])
            .expect("an honest writer");
        let count = (head - floor) as usize / 8;
        assert!(
            matches!(copied, Copied::Words(0, end) if end == count),
            "{copied:?}"
        );
        assert_eq!(
            (consumer.position, consumer.overwritten),
            (floor, overwritten)
        );
    }
}

#[test]
fn words_overwritten_during_a_copy_are_not_handed_out() {
    // The floor after the copy of 20 words from 800 on; the words left of those copied.
    // Where it is past them, the next copy begins at the floor.
    for (floor, begin, end) in [
        (800, 0, 20),
        (840, 5, 20),
        (952, 19, 20),
        (960, 0, 20),
        (968, 0, 20),
    ] {
        let memory = Words::with(800, 2400, 9);
        let mut consumer = consumer(&memory, Policy::OverwriteOldest, From::Oldest);
        memory.meanwhile(move |memory| memory.floor().store(floor, Relaxed));
        let copied = consumer
            .copy(&memory, &mut [0; 20])
            .expect("an honest writer");
        let what = format!("floor {floor}: {copied:?}");
        assert!(
            matches!(copied, Copied::Words(b, e) if (b, e) == (begin, end)),
            "{what}"
        );
        assert_eq!(
            (consumer.position, consumer.overwritten),
            (floor, floor - 800),
            "{what}"
        );
    }
    let memory = Words::with(800, 4800, 9);
    let mut consumer = consumer(&memory, Policy::OverwriteOldest, From::Oldest);
    memory.meanwhile(|memory| {
        memory.floor().fetch_add(160, Relaxed);
    });
    let copied = consumer
        .copy(&memory, &mut [0; 20])
        .expect("an honest writer");
    assert!(matches!(copied, Copied::Overrun), "{copied:?}");
}

/// A record's words: the header with its number, the time 70, a payload of `length`.
fn record(seq: u64, length: u64) -> Vec<u64> {
    let mut words = vec![length | seq << 24, 70];
    words.resize(2 + length.div_ceil(8) as usize, 0);
    words
}

/// A reader at 800 that knows of `published` bytes.
fn reading(published: u64, expected: Option<u64>) -> Consumer {
    let memory = Words::with(800, 800, 9);
    let mut consumer = consumer(&memory, Policy::DropNewest, From::Newest);
    consumer.head = 800 + published;
    consumer.hint = 200;
    consumer.expected = expected;
    consumer
}

#[test]
fn a_record_is_read_whole_or_cut_or_no_record() {
    let longest = record(9, MAX_RECORD);
    let words = longest.len();
    for (length, next) in [(0, 2), (1, 3), (8, 3), (9, 4), (MAX_RECORD, words)] {
        let mut consumer = reading(4096, Some(9));
        let mut words = record(9, length);
        words.push(0);
        assert_eq!(consumer.wants(&words), Some(next), "{length}");
        let Step::Record(found) = consumer.step(&words) else {
            panic!("{length} bytes are a record");
        };
        assert_eq!((found.payload, found.next), (2, next));
        assert_eq!((found.length as u64, found.time), (length, 70));
        assert_eq!((found.seq, found.lost), (9, 0));
        assert_eq!(consumer.position, 800 + next as u64 * 8);
    }
    let too_long = record(9, MAX_RECORD + 1);
    assert_eq!(reading(4096, Some(9)).wants(&too_long), None);
    assert!(matches!(
        reading(4096, Some(9)).step(&too_long),
        Step::Bad(_)
    ));
    assert_eq!(reading(4096, Some(9)).wants(&[]), None);
    for cut in 0..words {
        let mut consumer = reading(words as u64 * 8, Some(9));
        assert!(matches!(consumer.step(&longest[..cut]), Step::Cut), "{cut}");
        assert_eq!(consumer.position, 800);
        // The segment does not hold it whole either: a header is two words.
        let short = if cut < 2 { 8 } else { words as u64 * 8 - 8 };
        let mut consumer = reading(short, Some(9));
        assert!(
            matches!(consumer.step(&longest[..cut]), Step::Bad(_)),
            "{cut}"
        );
    }
}

#[test]
fn numbers_are_completed_and_what_is_missing_is_lost() {
    let round = SEQ_MASK + 1;
    // The number expected, the writer's next, the record's, and what it lost.
    let cases = [
        ("the next", Some(9), 10, 9, 0),
        ("a gap", Some(9), 20, 15, 6),
        ("whatever comes first", None, 20, 15, 0),
        (
            "the next, over 40 bits",
            Some(round + 3),
            round + 4,
            round + 3,
            0,
        ),
        (
            "a gap over 40 bits",
            Some(round - 2),
            round + 9,
            round + 3,
            5,
        ),
        (
            "before 40 bits, the writer is after",
            None,
            round + 9,
            round - 2,
            0,
        ),
    ];
    for (name, expected, hint, seq, lost) in cases {
        let mut consumer = reading(4096, expected);
        consumer.hint = hint;
        let Step::Record(found) = consumer.step(&record(seq & SEQ_MASK, 8)) else {
            panic!("{name}: no record");
        };
        assert_eq!((found.seq, found.lost), (seq, lost), "{name}");
        assert_eq!(
            (consumer.expected, consumer.lost),
            (Some(seq + 1), lost),
            "{name}"
        );
    }
}

#[test]
fn a_number_goes_back_only_before_the_first_record() {
    let mut consumer = reading(4096, Some(9));
    assert!(matches!(consumer.step(&record(5, 8)), Step::Record(found) if found.lost == 0));
    assert!(matches!(consumer.step(&record(8, 8)), Step::Record(found) if found.lost == 2));
    assert!(matches!(consumer.step(&record(8, 8)), Step::Bad(_)));
    assert_eq!(consumer.lost, 2);
}

#[test]
fn numbers_dropped_at_the_very_end_are_lost_once_all_is_read() {
    // The number expected, the writer's next, its head, and what is lost.
    let cases = [
        ("all read", Some(9), 12, 800, 3),
        ("nothing dropped", Some(9), 9, 800, 0),
        ("a record is left", Some(9), 12, 824, 0),
        ("unknown", None, 12, 800, 0),
    ];
    for (name, expected, next, head, lost) in cases {
        let mut consumer = reading(0, expected);
        let memory = Words::with(800, head, next);
        for _ in 0..2 {
            consumer.settle(&memory);
            assert_eq!(consumer.lost, lost, "{name}");
        }
    }
}

#[test]
fn what_was_read_is_released_and_the_slot_given_back() {
    let memory = Words::with(800, 1600, 9);
    let mut consumer = consumer(&memory, Policy::DropNewest, From::At(800, 4));
    consumer.hint = 9;
    assert!(matches!(consumer.step(&record(4, 8)), Step::Record(_)));
    assert_eq!(
        (consumer.released, memory.tail(0).load(Relaxed)),
        (800, 800)
    );
    consumer.release(&memory, 0);
    assert_eq!(
        (consumer.released, memory.tail(0).load(Relaxed)),
        (824, 824)
    );
    assert_eq!(memory.seen(0).load(Relaxed), 6);
    detach(&memory, 0);
    assert_eq!(
        (memory.state(0).load(Relaxed), memory.tail(0).load(Relaxed)),
        (2, 824)
    );
}

#[test]
fn only_the_life_that_ended_is_buried() {
    let memory = Words::new();
    memory.state(0).store(7, Relaxed);
    assert!(!bury(&memory, 0, 5), "another came meanwhile");
    assert_eq!(memory.state(0).load(Relaxed), 7);
    assert!(bury(&memory, 0, 7));
    assert_eq!(memory.state(0).load(Relaxed), 6);
}
