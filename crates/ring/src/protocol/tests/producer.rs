//! Room, marks and the floor, as a writer moves them.

use super::*;

#[test]
fn a_record_takes_its_header_and_whole_words() {
    for (length, bytes) in [(0, 16), (1, 24), (8, 24), (9, 32), (16, 32), (17, 40)] {
        assert_eq!(footprint(length), bytes, "{length}");
    }
}

#[test]
fn marks_come_back_in_order_and_each_once() {
    let mut kept = no_marks();
    assert_eq!((kept.last(), marks(&kept)), (None, vec![]));
    for position in [0, 0, 64, 64, 128] {
        kept.push(position);
        assert_eq!(kept.last(), Some(position));
    }
    assert_eq!(marks(&kept), [0, 64, 128]);
}

#[test]
fn a_mark_too_many_is_not_kept_and_replaces_none() {
    let mut kept = no_marks();
    let all: Vec<u64> = (1..=128).map(|index| index * 64).collect();
    all.iter().for_each(|&position| kept.push(position));
    assert_eq!(marks(&kept), all);
    kept.push(129 * 64);
    assert_eq!(marks(&kept), all);
}

#[test]
fn marks_before_a_position_are_forgotten_and_not_the_one_there() {
    let mut kept = no_marks();
    [64, 128, 192].into_iter().for_each(|at| kept.push(at));
    kept.forget_before(64);
    assert_eq!(marks(&kept), [64, 128, 192]);
    kept.forget_before(129);
    assert_eq!(marks(&kept), [192]);
    kept.forget_before(1000);
    assert_eq!((kept.last(), marks(&kept)), (None, vec![]));
    kept.forget_before(2000);
    assert_eq!(marks(&kept), []);
}

#[test]
fn marks_go_round_their_array() {
    let mut kept = no_marks();
    for position in 1..1000 {
        kept.push(position);
        kept.forget_before(position.saturating_sub(99));
        let oldest = position.saturating_sub(99).max(1);
        assert_eq!(marks(&kept), (oldest..=position).collect::<Vec<_>>());
        assert_eq!((kept.get(0), kept.last()), (oldest, Some(position)));
    }
}

#[test]
fn marks_lie_a_64th_apart_and_never_less_than_a_word() {
    for (capacity, step) in [(64, 8), (512, 8), (1024, 16), (CAPACITY, STEP)] {
        let producer = Producer::new(Policy::DropNewest, capacity, 0, 0);
        assert_eq!(producer.step, step, "{capacity}");
    }
}

#[test]
fn the_first_record_to_reach_into_another_64th_is_marked() {
    let begin = 10 * CAPACITY;
    // Record lengths, and where those begin that are marked, after `begin`.
    let cases: [(&str, &[u64], &[u64]); 4] = [
        ("one ends at the border", &[32, 32, 32], &[0, 64]),
        ("one crosses the border", &[48, 48, 48], &[0, 48, 96]),
        (
            "one is longer than a 64th",
            &[16, 200, 16, 40],
            &[0, 16, 232],
        ),
        (
            "one ends a word after the border",
            &[40, 32, 16, 40],
            &[0, 40],
        ),
    ];
    for (name, lengths, marked) in cases {
        let mut producer = producer(Policy::DropNewest, begin);
        for &need in lengths {
            producer.recall(need);
        }
        let after: Vec<u64> = producer.marks.iter().map(|at| at - begin).collect();
        assert_eq!(after, marked, "{name}");
    }
}

#[test]
fn recalled_records_are_in_the_ring_and_reserve_nothing() {
    let mut producer = producer(Policy::DropNewest, 4096);
    producer.recall(32);
    producer.recall(48);
    assert_eq!((producer.head, producer.floor), (4096 + 80, 4096));
    assert!(producer.has_room(0) && !producer.has_room(8));
}

#[test]
fn room_that_was_made_lasts_until_the_next_64th() {
    let memory = Words::with(4096, 4096, 0);
    let mut producer = producer(Policy::DropNewest, 4096);
    assert!(producer.make_room(&memory, 24));
    assert!(producer.has_room(64) && !producer.has_room(72));
    producer.put(&memory, 0, &[0; 8]);
    assert!(producer.has_room(40) && !producer.has_room(48));
    assert!(producer.make_room(&memory, 48));
    assert_eq!(marks(&producer.marks), [4096, 4096 + 24]);
    assert!(producer.has_room(104) && !producer.has_room(112));
}

#[test]
fn a_ring_is_filled_to_the_last_byte_before_anything_goes() {
    for policy in [Policy::DropNewest, Policy::OverwriteOldest] {
        for (need, begin) in [(32, 0), (64, 0), (64, 3 * CAPACITY), (512, 0)] {
            let (memory, mut producer) = full_of(need, policy, begin);
            assert_eq!(producer.head, begin + CAPACITY);
            assert_eq!(producer.floor, begin, "{need}");
            assert_eq!(memory.floor().load(Relaxed), begin, "{need}");
            assert!(!producer.has_room(8));
            assert!(producer.make_room(&memory, need), "nobody reads");
            assert!(producer.floor > begin);
        }
    }
}

#[test]
fn the_floor_wanted_is_a_16th_further_than_needed_but_not_past_the_head() {
    let head = 3 * CAPACITY;
    let producer = producer(Policy::DropNewest, head);
    let needed = head - CAPACITY + 32;
    assert_eq!(producer.wanted(head + 32), (needed, needed + CAPACITY / 16));
    let needed = head - 8;
    assert_eq!(producer.wanted(head + CAPACITY - 8), (needed, head));
}

#[test]
fn overwriting_moves_the_floor_to_the_first_mark_wanted() {
    let begin = 2 * CAPACITY;
    // A 16th is 256 bytes; marks are multiples of 64.
    for (need, floor) in [(32, 320), (64, 320), (72, 384), (128, 384)] {
        let (memory, mut producer) = full(Policy::OverwriteOldest, begin);
        // It need not ask readers.
        memory.reader(0, begin);
        assert!(producer.make_room(&memory, need));
        assert_eq!(producer.floor, begin + floor, "{need}");
        assert_eq!(memory.floor().load(Relaxed), producer.floor, "{need}");
        assert_eq!(producer.marks.iter().next(), Some(producer.floor));
        assert_eq!(producer.marks.last(), Some(producer.head), "{need}");
    }
}

#[test]
fn the_head_is_shown_before_the_floor_moves() {
    for policy in [Policy::DropNewest, Policy::OverwriteOldest] {
        let (memory, mut producer) = full(policy, 0);
        assert_eq!(memory.head().load(Relaxed), 0, "nothing was published");
        memory.meanwhile(|memory| {
            assert_eq!(memory.head().load(Relaxed), CAPACITY);
            assert_eq!(memory.next_seq().load(Relaxed), CAPACITY / 32);
        });
        assert!(producer.make_room(&memory, 32));
        assert_eq!(memory.head().load(Relaxed), CAPACITY);
    }
}

#[test]
fn a_full_ring_yields_up_to_its_slowest_reader() {
    let begin = 2 * CAPACITY;
    // Where the reader is, and where the floor is for a record of 64 bytes;
    // `None`: no room, and nothing moves.
    let cases = [
        (0, None),
        (56, None),
        (64, Some(64)),
        (127, Some(64)),
        (128, Some(128)),
        (319, Some(256)),
        (320, Some(320)),
        (2000, Some(320)),
        (CAPACITY, Some(320)),
    ];
    for (tail, floor) in cases {
        let (memory, mut producer) = full(Policy::DropNewest, begin);
        memory.reader(0, begin + tail);
        assert_eq!(producer.make_room(&memory, 64), floor.is_some(), "{tail}");
        assert_eq!(producer.floor, begin + floor.unwrap_or(0), "{tail}");
        assert_eq!(memory.floor().load(Relaxed), producer.floor, "{tail}");
        assert_eq!(producer.marks.iter().next(), Some(producer.floor), "{tail}");
    }
}

#[test]
fn the_floor_goes_back_for_a_reader_that_attaches_meanwhile() {
    // Where it attaches, where the floor then is, and whether there is room.
    let cases = [
        (0, 0, false),
        (63, 0, false),
        (64, 64, true),
        (319, 256, true),
        (320, 320, true),
        (1000, 320, true),
    ];
    for (tail, floor, room) in cases {
        let (memory, mut producer) = full(Policy::DropNewest, 0);
        memory.meanwhile(move |memory| {
            assert_eq!(memory.floor().load(Relaxed), 320);
            memory.reader(1, tail);
        });
        assert_eq!(producer.make_room(&memory, 64), room, "{tail}");
        assert_eq!(producer.floor, floor, "{tail}");
        assert_eq!(memory.floor().load(Relaxed), floor, "{tail}");
        assert_eq!(producer.marks.iter().next(), Some(floor), "{tail}");
    }
}

#[test]
fn the_floor_rests_on_a_mark_that_the_slowest_reader_has_passed() {
    let mut producer = producer(Policy::DropNewest, 64);
    (0..6).for_each(|_| producer.recall(32));
    assert_eq!(producer.head, 256);
    assert_eq!(marks(&producer.marks), [64, 128, 192]);
    // The floor wanted, the slowest reader, and the floor.
    let cases = [
        (128, 256, Some(128)),
        (129, 256, Some(192)),
        (193, 256, Some(256)),
        (64, 192, Some(64)),
        (128, 192, Some(128)),
        (192, 192, Some(192)),
        (193, 192, Some(192)),
        (128, 191, Some(128)),
        (192, 191, Some(128)),
        (64, 64, Some(64)),
        (64, 63, None),
    ];
    for (want, slowest, floor) in cases {
        let what = format!("{want} with a reader at {slowest}");
        assert_eq!(producer.rest(want, slowest), floor, "{what}");
    }
}

#[test]
fn the_slowest_reader_is_the_lowest_tail_of_those_attached() {
    let mut producer = producer(Policy::DropNewest, 1024);
    (0..4).for_each(|_| producer.recall(256));
    let memory = Words::with(1024, 2048, 4);
    assert_eq!(producer.slowest(&memory), 2048, "nobody is there");
    memory.reader(3, 1800);
    memory.reader(5, 1600);
    assert_eq!(producer.slowest(&memory), 1600);
    detach(&memory, 5);
    assert_eq!(producer.slowest(&memory), 1800, "the other one left");
    memory.reader(63, 1700);
    assert_eq!(producer.slowest(&memory), 1700, "the last slot");
    // Lies about tails and slots.
    memory.tail(3).store(8, Relaxed);
    assert_eq!(producer.slowest(&memory), 1024);
    for slot in [3, 63] {
        memory.tail(slot).store(u64::MAX, Relaxed);
    }
    assert_eq!(producer.slowest(&memory), 2048);
    memory.used().store(u64::MAX, Relaxed);
    assert_eq!(producer.slowest(&memory), 2048);
    memory.tail(63).store(1500, Relaxed);
    memory.used().store(63, Relaxed);
    assert_eq!(producer.slowest(&memory), 2048, "not in use");
}

#[test]
fn records_lie_behind_one_another_and_show_when_published() {
    let memory = Words::new();
    let mut producer = Producer::new(Policy::DropNewest, CAPACITY, 0, 5);
    producer.put(&memory, 77, b"12345678");
    producer.put(&memory, 78, b"");
    let first = u64::from_ne_bytes(*b"12345678");
    let stored: Vec<u64> = (0..5)
        .map(|word| memory.word(word * 8).load(Relaxed))
        .collect();
    assert_eq!(stored, [8 | 5 << 24, 77, first, 6 << 24, 78]);
    assert_eq!((producer.head, producer.seq), (40, 7));
    assert_eq!(memory.head().load(Relaxed), 0);
    assert!(!producer.publish(&memory));
    assert_eq!(memory.head().load(Relaxed), 40);
    assert_eq!(memory.next_seq().load(Relaxed), 7);
    producer.skip(&memory);
    assert_eq!((producer.head, producer.seq), (40, 8));
    assert_eq!(memory.next_seq().load(Relaxed), 8);
}

#[test]
fn publishing_says_whether_somebody_sleeps_until_the_bell_rings() {
    let memory = Words::new();
    let producer = producer(Policy::DropNewest, 0);
    memory.bell().store(41, Relaxed);
    assert!(!producer.publish(&memory));
    assert_eq!(announce_sleep(&memory), 41);
    assert!(producer.publish(&memory));
    ring_bell(&memory);
    assert!(!producer.publish(&memory));
    assert_eq!(announce_sleep(&memory), 42);
}
