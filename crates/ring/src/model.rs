//! The index protocol under loom: every interleaving, and every value that
//! the memory model lets a load return, within the bounds below. The code is
//! that of `protocol`; only the words are loom's, and membarrier, which loom
//! does not know, is the fence that it stands for on both sides.

use std::sync::atomic::Ordering::{self, Acquire, Relaxed};

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use crate::layout::Policy;
use crate::protocol::{self, Consumer, Copied, From, Memory, Producer, Step, Word};

/// Two records of one word, and 16 bytes over: the third wraps.
const CAPACITY: u64 = 64;
/// A record's footprint with a payload of eight bytes.
const RECORD: u64 = 24;
const SLOTS: usize = 2;

struct Tiny {
    words: [AtomicU64; 6],
    slots: [[AtomicU64; 3]; SLOTS],
    data: [AtomicU64; (CAPACITY / 8) as usize],
}

impl Tiny {
    fn new() -> Arc<Tiny> {
        let word = |_| AtomicU64::new(0);
        Arc::new(Tiny {
            words: std::array::from_fn(word),
            slots: std::array::from_fn(|_| std::array::from_fn(word)),
            data: std::array::from_fn(word),
        })
    }

    fn at(&self, position: u64) -> &AtomicU64 {
        &self.data[(position % CAPACITY / 8) as usize]
    }
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }
    fn exchange(&self, old: u64, new: u64) -> bool {
        self.compare_exchange(old, new, Ordering::AcqRel, Relaxed)
            .is_ok()
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }
    fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_max(value, order)
    }
}

impl Memory for Tiny {
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
        &self.slots[slot % SLOTS][0]
    }
    fn tail(&self, slot: usize) -> &AtomicU64 {
        &self.slots[slot % SLOTS][1]
    }
    fn seen(&self, slot: usize) -> &AtomicU64 {
        &self.slots[slot % SLOTS][2]
    }
    fn capacity(&self) -> u64 {
        CAPACITY
    }
    fn put(&self, position: u64, header: [u64; 2], payload: &[u8]) {
        let payload = u64::from_ne_bytes(payload.try_into().expect("one word"));
        for (index, word) in [header[0], header[1], payload].into_iter().enumerate() {
            self.at(position + index as u64 * 8).store(word, Relaxed);
        }
    }
    fn get(&self, position: u64, words: &mut [u64]) {
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.at(position + index as u64 * 8).load(Relaxed);
        }
    }
    fn fence(&self, order: Ordering) {
        loom::sync::atomic::fence(order);
    }
    fn publisher_fence(&self) {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Writes the next record, its number as time and payload. Whether it fit.
fn write(producer: &mut Producer, memory: &Tiny) -> bool {
    let seq = producer.seq;
    if !producer.has_room(RECORD) && !producer.make_room(memory, RECORD) {
        producer.skip(memory);
        return false;
    }
    producer.put(memory, seq, &seq.to_ne_bytes());
    if producer.publish(memory) {
        protocol::ring_bell(memory);
    }
    true
}

/// One copy, and what is in it: each record whole, numbers rising.
fn read(consumer: &mut Consumer, memory: &Tiny, got: &mut Vec<u64>) {
    let mut words = [0; (CAPACITY / 8) as usize];
    let copied = consumer.copy(memory, &mut words).expect("an honest writer");
    let Copied::Words(mut begin, end) = copied else {
        return;
    };
    while begin < end {
        match consumer.step(&words[begin..end]) {
            Step::Record(found) => {
                let payload = words[begin + found.payload];
                assert_eq!((found.time, payload), (found.seq, found.seq), "torn");
                assert!(got.last().is_none_or(|&last| last < found.seq));
                got.push(found.seq);
                begin += found.next;
            }
            Step::Cut => panic!("the copy ends at the head"),
            Step::Bad(why) => panic!("{why}"),
        }
    }
}

fn attach(memory: &Tiny, from: From, policy: Policy) -> Consumer {
    Consumer::attach(memory, 0, from, policy, 8).expect("an honest writer")
}

/// Every attempt is either read or counted as lost, once the writer is done.
fn settle(consumer: &mut Consumer, memory: &Tiny, got: &mut Vec<u64>, attempts: u64) {
    read(consumer, memory, got);
    consumer.settle(memory);
    assert_eq!(got.len() as u64 + consumer.lost, attempts);
}

#[test]
fn publish_and_wrap_without_loss_of_what_was_stored() {
    check(3, || {
        let memory = Tiny::new();
        let mut consumer = attach(&memory, From::Newest, Policy::DropNewest);
        let writer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let mut producer = Producer::new(Policy::DropNewest, CAPACITY, 0, 0);
                (0..4).filter(|_| write(&mut producer, &memory)).count()
            })
        };
        let mut got = Vec::new();
        for _ in 0..2 {
            read(&mut consumer, &memory, &mut got);
            consumer.release(&*memory, 0);
        }
        let stored = writer.join().expect("no panic");
        settle(&mut consumer, &memory, &mut got, 4);
        assert_eq!(got.len(), stored);
    });
}

#[test]
fn overwrite_tears_nothing_and_counts_exactly() {
    check(3, || {
        let memory = Tiny::new();
        let mut consumer = attach(&memory, From::Newest, Policy::OverwriteOldest);
        let writer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let mut producer = Producer::new(Policy::OverwriteOldest, CAPACITY, 0, 0);
                (0..4).for_each(|_| assert!(write(&mut producer, &memory)));
            })
        };
        let mut got = Vec::new();
        for _ in 0..2 {
            read(&mut consumer, &memory, &mut got);
        }
        writer.join().expect("no panic");
        settle(&mut consumer, &memory, &mut got, 4);
        assert_eq!(got.last(), Some(&3), "the newest is never lost");
    });
}

#[test]
fn attaching_while_the_floor_moves_protects_what_is_read() {
    check(2, || {
        let memory = Tiny::new();
        let mut producer = Producer::new(Policy::DropNewest, CAPACITY, 0, 0);
        assert!(write(&mut producer, &memory) && write(&mut producer, &memory));
        let writer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || (0..3).filter(|_| write(&mut producer, &memory)).count())
        };
        let mut consumer = attach(&memory, From::Oldest, Policy::DropNewest);
        let mut got = Vec::new();
        read(&mut consumer, &memory, &mut got);
        read(&mut consumer, &memory, &mut got);
        writer.join().expect("no panic");
        read(&mut consumer, &memory, &mut got);
        assert!(!got.is_empty());
    });
}

#[test]
fn detaching_lets_the_writer_go_on() {
    check(3, || {
        let memory = Tiny::new();
        let mut consumer = attach(&memory, From::Newest, Policy::DropNewest);
        let writer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let mut producer = Producer::new(Policy::DropNewest, CAPACITY, 0, 0);
                for _ in 0..3 {
                    write(&mut producer, &memory);
                }
                producer
            })
        };
        let mut got = Vec::new();
        read(&mut consumer, &memory, &mut got);
        consumer.release(&*memory, 0);
        protocol::detach(&*memory, 0);
        let before = consumer.lost;
        let mut producer = writer.join().expect("no panic");
        assert!(write(&mut producer, &memory), "nobody is in the way");
        // Back under its name: what it missed is counted.
        let seen = memory.seen(0).load(Relaxed);
        let tail = memory.tail(0).load(Acquire);
        let mut consumer = attach(&memory, From::At(tail, seen - 1), Policy::DropNewest);
        let missed = 4 - got.len() as u64 - before;
        settle(&mut consumer, &memory, &mut Vec::new(), missed);
    });
}

#[test]
fn a_slot_taken_over_from_the_dead_is_not_buried() {
    check(2, || {
        let memory = Tiny::new();
        let mut producer = Producer::new(Policy::DropNewest, CAPACITY, 0, 0);
        // It died before it read anything.
        let _ = attach(&memory, From::Newest, Policy::DropNewest);
        assert!(write(&mut producer, &memory) && write(&mut producer, &memory));
        let writer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                // The lock was free after this was loaded: the owner is dead.
                let state = memory.state(0).load(Acquire);
                if state == 3 {
                    protocol::bury(&*memory, 0, state);
                }
                for _ in 0..3 {
                    write(&mut producer, &memory);
                }
            })
        };
        let mut consumer = attach(&memory, From::Oldest, Policy::DropNewest);
        let mut got = Vec::new();
        read(&mut consumer, &memory, &mut got);
        read(&mut consumer, &memory, &mut got);
        writer.join().expect("no panic");
        read(&mut consumer, &memory, &mut got);
        assert!(!got.is_empty());
    });
}

#[test]
fn nobody_sleeps_on_a_published_record() {
    check(4, || {
        let memory = Tiny::new();
        let writer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let mut producer = Producer::new(Policy::DropNewest, CAPACITY, 0, 0);
                for _ in 0..2 {
                    write(&mut producer, &memory);
                }
            })
        };
        let mut consumer = attach(&memory, From::At(0, 0), Policy::DropNewest);
        let mut got = Vec::new();
        for _ in 0..2 {
            let bell = protocol::announce_sleep(&*memory);
            loom::sync::atomic::fence(Ordering::SeqCst);
            if consumer.pending(&*memory) == 0 {
                // Asleep now; would it be woken for each record to come?
                while memory.bell().load(Acquire) as u32 == bell {
                    thread::yield_now();
                }
            }
            read(&mut consumer, &memory, &mut got);
            if got.len() == 2 {
                break;
            }
        }
        writer.join().expect("no panic");
        read(&mut consumer, &memory, &mut got);
        assert_eq!(got, [0, 1]);
    });
}
