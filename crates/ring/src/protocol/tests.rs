//! The protocol's arithmetic on words of one thread: which position, number
//! and verdict come out. What other threads may see meanwhile is `model`'s.

use std::cell::RefCell;
use std::sync::atomic::AtomicU64;

use super::*;

const CAPACITY: u64 = 4096;
/// The distance between two marks.
const STEP: u64 = CAPACITY / 64;
const MAX_RECORD: u64 = 1000;

type Meanwhile = Box<dyn FnMut(&Words)>;

/// A segment's words. What somebody else does while a fence is passed, is `meanwhile`.
struct Words {
    words: [AtomicU64; 6],
    slots: [[AtomicU64; 3]; SLOTS],
    data: Vec<AtomicU64>,
    meanwhile: RefCell<Option<Meanwhile>>,
}

impl Words {
    fn new() -> Words {
        let word = |_| AtomicU64::new(0);
        Words {
            words: std::array::from_fn(word),
            slots: std::array::from_fn(|_| std::array::from_fn(word)),
            data: (0..CAPACITY as usize / 8).map(word).collect(),
            meanwhile: RefCell::new(None),
        }
    }

    fn with(floor: u64, head: u64, next_seq: u64) -> Words {
        let memory = Words::new();
        memory.floor().store(floor, Relaxed);
        memory.head().store(head, Relaxed);
        memory.next_seq().store(next_seq, Relaxed);
        memory
    }

    fn reader(&self, slot: usize, tail: u64) {
        self.tail(slot).store(tail, Relaxed);
        self.state(slot).store(3, Relaxed);
        self.used().fetch_max(slot as u64 + 1, Relaxed);
    }

    fn meanwhile(&self, what: impl FnMut(&Words) + 'static) {
        *self.meanwhile.borrow_mut() = Some(Box::new(what));
    }

    fn word(&self, position: u64) -> &AtomicU64 {
        &self.data[(position % CAPACITY / 8) as usize]
    }
}

impl Memory for Words {
    type Word = AtomicU64;
    fn head(&self) -> &AtomicU64 {
        &self.words[0]
    }
    fn next_seq(&self) -> &AtomicU64 {
        &self.words[1]
    }
    fn floor(&self) -> &AtomicU64 {
        &self.words[2]
    }
    fn used(&self) -> &AtomicU64 {
        &self.words[3]
    }
    fn asleep(&self) -> &AtomicU64 {
        &self.words[4]
    }
    fn bell(&self) -> &AtomicU64 {
        &self.words[5]
    }
    fn state(&self, slot: usize) -> &AtomicU64 {
        &self.slots[slot][0]
    }
    fn tail(&self, slot: usize) -> &AtomicU64 {
        &self.slots[slot][1]
    }
    fn seen(&self, slot: usize) -> &AtomicU64 {
        &self.slots[slot][2]
    }
    fn capacity(&self) -> u64 {
        CAPACITY
    }
    fn put(&self, position: u64, header: [u64; 2], payload: &[u8]) {
        let payload = payload.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        });
        for (word, at) in header
            .into_iter()
            .chain(payload)
            .zip((position..).step_by(8))
        {
            self.word(at).store(word, Relaxed);
        }
    }
    fn get(&self, position: u64, words: &mut [u64]) {
        for (word, at) in words.iter_mut().zip((position..).step_by(8)) {
            *word = self.word(at).load(Relaxed);
        }
    }
    fn fence(&self, _: Ordering) {
        let what = self.meanwhile.borrow_mut().take();
        if let Some(mut what) = what {
            what(self);
            *self.meanwhile.borrow_mut() = Some(what);
        }
    }
    fn publisher_fence(&self) {}
}

fn producer(policy: Policy, head: u64) -> Producer {
    Producer::new(policy, CAPACITY, head, 0)
}

/// A ring of records of `need` bytes each, full to the last byte.
fn full_of(need: u64, policy: Policy, begin: u64) -> (Words, Producer) {
    let memory = Words::with(begin, begin, 0);
    let mut producer = producer(policy, begin);
    let payload = vec![0; (need - RECORD_HEADER) as usize];
    for _ in 0..CAPACITY / need {
        assert!(producer.has_room(need) || producer.make_room(&memory, need));
        producer.put(&memory, 0, &payload);
    }
    (memory, producer)
}

fn full(policy: Policy, begin: u64) -> (Words, Producer) {
    full_of(32, policy, begin)
}

fn marks(marks: &Marks) -> Vec<u64> {
    marks.iter().collect()
}

fn no_marks() -> Marks {
    producer(Policy::DropNewest, 0).marks
}

mod consumer;
mod producer;
