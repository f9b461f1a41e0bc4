//! The index protocol: which word is stored, loaded and fenced when. Generic
//! over the memory, so that `model` checks the same lines with loom that run
//! on the mapped segment.
//!
//! Positions are bytes since creation; they only grow, and `position mod
//! capacity` is where the byte lies.
//!
//! - `head` (writer): everything before it is published.
//! - `floor` (writer): everything before it may be overwritten at any moment.
//!   `head - floor <= capacity`, always on a record's first byte.
//! - `tail` (each reader): under [`Policy::DropNewest`] the writer leaves
//!   everything from there on alone.
//!
//! Every attempt to write takes the next sequence number, also one that is
//! dropped: a reader counts its losses from the numbers alone, whatever the
//! reason.

use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

use crate::layout::{Policy, RECORD_HEADER, SLOTS};

/// A 64-bit atomic, std's or loom's.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn swap(&self, value: u64, order: Ordering) -> u64;
    fn exchange(&self, old: u64, new: u64) -> bool;
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    fn fetch_max(&self, value: u64, order: Ordering) -> u64;
}

/// A segment's words.
pub(crate) trait Memory {
    type Word: Word;
    fn head(&self) -> &Self::Word;
    fn next_seq(&self) -> &Self::Word;
    fn floor(&self) -> &Self::Word;
    fn used(&self) -> &Self::Word;
    fn asleep(&self) -> &Self::Word;
    fn bell(&self) -> &Self::Word;
    fn state(&self, slot: usize) -> &Self::Word;
    fn tail(&self, slot: usize) -> &Self::Word;
    fn seen(&self, slot: usize) -> &Self::Word;
    fn capacity(&self) -> u64;
    /// Stores words, relaxed, one or two at a time: a reader that is overrun may load
    /// them at the same time.
    fn put(&self, position: u64, header: [u64; 2], payload: &[u8]);
    /// Loads words, relaxed, one or two at a time.
    fn get(&self, position: u64, words: &mut [u64]);
    fn fence(&self, order: Ordering);
    /// Between publishing and looking for sleepers: nothing but an order for
    /// the compiler if sleepers call membarrier.
    fn publisher_fence(&self);
}

/// More than any ring will ever carry: positions below add without overflow.
pub(crate) const POSITION_LIMIT: u64 = 1 << 62;
pub(crate) const SEQ_MASK: u64 = (1 << 40) - 1;

/// Bytes that a record takes in the ring.
#[inline]
pub(crate) fn footprint(length: usize) -> u64 {
    RECORD_HEADER + ((length as u64 + 7) & !7)
}

/// The newest record starts within the last 64th of the ring that it is in:
/// positions at which the floor may come to rest. Kept by the writer alone.
struct Marks {
    at: [u64; 128],
    first: usize,
    count: usize,
}

impl Marks {
    fn push(&mut self, position: u64) {
        if self.count < self.at.len() && self.last() != Some(position) {
            self.at[(self.first + self.count) % self.at.len()] = position;
            self.count += 1;
        }
    }

    fn get(&self, index: usize) -> u64 {
        self.at[(self.first + index) % self.at.len()]
    }

    fn last(&self) -> Option<u64> {
        self.count.checked_sub(1).map(|index| self.get(index))
    }

    fn forget_before(&mut self, position: u64) {
        while self.count > 0 && self.get(0) < position {
            self.first = (self.first + 1) % self.at.len();
            self.count -= 1;
        }
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = u64> + '_ {
        (0..self.count).map(|index| self.get(index))
    }
}

/// The writer's private view: it never reads its own indices back.
pub(crate) struct Producer {
    policy: Policy,
    capacity: u64,
    /// The distance between two marks, in bytes.
    step: u64,
    pub head: u64,
    pub seq: u64,
    pub floor: u64,
    /// Up to here without looking at anything.
    limit: u64,
    next_mark: u64,
    marks: Marks,
}

impl Producer {
    /// At `head`, with everything before it gone.
    pub(crate) fn new(policy: Policy, capacity: u64, head: u64, seq: u64) -> Producer {
        let step = (capacity / 64).max(8);
        Producer {
            policy,
            capacity,
            step,
            head,
            seq,
            floor: head,
            limit: head,
            next_mark: head,
            marks: Marks {
                at: [0; 128],
                first: 0,
                count: 0,
            },
        }
    }

    /// Steps over a record that is in the ring already.
    pub(crate) fn recall(&mut self, need: u64) {
        self.mark(self.head + need);
        self.head += need;
        self.limit = self.head;
    }

    /// Remembers where the record that ends at `end` begins, if it is the
    /// first to reach into another 64th.
    fn mark(&mut self, end: u64) {
        if end > self.next_mark {
            self.marks.push(self.head);
            self.next_mark = end.next_multiple_of(self.step);
        }
    }

    /// Whether there is room for a record of `need` bytes that needs no look
    /// at anything shared.
    #[inline]
    pub(crate) fn has_room(&self, need: u64) -> bool {
        self.head + need <= self.limit
    }

    /// Makes room for a record of `need` bytes, as far as the policy allows; false: there
    /// is none.
    #[cold]
    pub(crate) fn make_room<M: Memory>(&mut self, memory: &M, need: u64) -> bool {
        let end = self.head + need;
        self.mark(end);
        if end > self.floor + self.capacity {
            // The floor must never pass what readers know as the head.
            self.show(memory);
            match self.policy {
                Policy::DropNewest => self.yield_to_readers(memory, end),
                Policy::OverwriteOldest => self.overtake_readers(memory, end),
            }
        }
        self.limit = self.next_mark.min(self.floor + self.capacity);
        end <= self.limit
    }

    /// The floor that is needed, and the one to set: a 16th further, so that this happens
    /// 16 times a round at most.
    fn wanted(&self, end: u64) -> (u64, u64) {
        let must = end - self.capacity;
        (must, (must + self.capacity / 16).min(self.head))
    }

    fn overtake_readers<M: Memory>(&mut self, memory: &M, end: u64) {
        let (_, want) = self.wanted(end);
        let floor = self.marks.iter().find(|&mark| mark >= want);
        self.floor = floor.unwrap_or(self.head);
        self.marks.forget_before(self.floor);
        // Release for the head, which is never behind the floor; the fence
        // for what is stored into the data from now on: whoever loads some
        // of that and then fences finds this floor.
        memory.floor().store(self.floor, Release);
        memory.fence(Release);
    }

    fn yield_to_readers<M: Memory>(&mut self, memory: &M, end: u64) {
        let (must, want) = self.wanted(end);
        let old = self.floor;
        let Some(floor) = self.rest(want, self.slowest(memory)).filter(|&f| f >= must) else {
            return;
        };
        // A reader attaches by storing its tail, fencing and looking at the
        // floor again; here it is the other way round. One sees the other.
        memory.floor().store(floor, Release);
        memory.fence(SeqCst);
        let slowest = self.slowest(memory);
        if slowest < floor {
            self.floor = self.rest(want, slowest).unwrap_or(old);
            memory.floor().store(self.floor, Release);
        } else {
            self.floor = floor;
        }
        self.marks.forget_before(self.floor);
    }

    /// The first mark from `want` on, or else the last one, that is not past
    /// what the slowest reader still needs.
    fn rest(&self, want: u64, slowest: u64) -> Option<u64> {
        if slowest >= self.head {
            return Some(
                self.marks
                    .iter()
                    .find(|&mark| mark >= want)
                    .unwrap_or(self.head),
            );
        }
        let mut best = None;
        for mark in self.marks.iter().take_while(|&mark| mark <= slowest) {
            best = Some(mark);
            if mark >= want {
                break;
            }
        }
        best
    }

    /// The lowest tail. Readers' words are not trusted: at worst, a lie
    /// stops the writer like a reader that does not read.
    fn slowest<M: Memory>(&self, memory: &M) -> u64 {
        let used = (memory.used().load(Acquire) as usize).min(SLOTS);
        (0..used)
            .filter(|&slot| memory.state(slot).load(Acquire) & 1 == 1)
            .map(|slot| memory.tail(slot).load(Acquire).clamp(self.floor, self.head))
            .min()
            .unwrap_or(self.head)
    }

    /// Stores a record into reserved room; nobody sees it yet.
    #[inline]
    pub(crate) fn put<M: Memory>(&mut self, memory: &M, time: u64, payload: &[u8]) {
        let word = payload.len() as u64 | self.seq << 24;
        memory.put(self.head, [word, time], payload);
        self.head += footprint(payload.len());
        self.seq += 1;
    }

    /// A record that is not written takes a number all the same.
    pub(crate) fn skip<M: Memory>(&mut self, memory: &M) {
        self.seq += 1;
        memory.next_seq().store(self.seq, Relaxed);
    }

    #[inline]
    fn show<M: Memory>(&self, memory: &M) {
        memory.next_seq().store(self.seq, Relaxed);
        memory.head().store(self.head, Release);
    }

    /// Shows readers everything that was put. True if one sleeps.
    #[inline]
    pub(crate) fn publish<M: Memory>(&self, memory: &M) -> bool {
        self.show(memory);
        memory.publisher_fence();
        memory.asleep().load(Relaxed) != 0
    }
}

/// Ends the sleep of all: whoever goes to sleep from now on sets the flag
/// again, so a dead sleeper costs one call and no more. The caller wakes the
/// futex afterwards.
pub(crate) fn ring_bell<M: Memory>(memory: &M) {
    memory.asleep().swap(0, AcqRel);
    memory.bell().fetch_add(1, AcqRel);
}

/// Announces sleep. The bell's value to sleep on; look for records between
/// this and sleeping.
pub(crate) fn announce_sleep<M: Memory>(memory: &M) -> u32 {
    let bell = memory.bell().load(Acquire) as u32;
    memory.asleep().store(1, Relaxed);
    bell
}

/// The position at which a reader begins.
#[derive(Clone, Copy)]
pub(crate) enum From {
    Oldest,
    Newest,
    /// A position and the number expected there.
    At(u64, u64),
}

/// What a slot says of the number expected: 0 where none is, else one more.
fn seen(expected: Option<u64>) -> u64 {
    expected.map_or(0, |seq| seq.wrapping_add(1))
}

/// A reader's private view, and what it makes of the words it copied out.
pub(crate) struct Consumer {
    policy: Policy,
    capacity: u64,
    max_record: u64,
    /// The position of the next record.
    pub position: u64,
    /// The tail that the writer knows.
    pub released: u64,
    /// The number expected next. `None`: whatever comes first.
    expected: Option<u64>,
    /// Before the first record, a number below the expected one is no lie.
    fresh: bool,
    /// The highest head seen.
    head: u64,
    /// The writer's next number, loaded after the words were copied.
    hint: u64,
    pub lost: u64,
    /// Bytes that were overwritten before they were read.
    pub overwritten: u64,
}

/// A record in copied words.
pub(crate) struct Found {
    /// Words from the record's first to its payload's, and to the next record.
    pub payload: usize,
    pub next: usize,
    pub length: usize,
    pub time: u64,
    pub seq: u64,
    pub lost: u64,
}

/// The next thing in copied words.
pub(crate) enum Step {
    Record(Found),
    /// The words end within a record that the segment holds whole.
    Cut,
    /// Words that no correct writer writes.
    Bad(&'static str),
}

/// The result of copying words.
#[derive(Debug)]
pub(crate) enum Copied {
    Nothing,
    /// Records lie in these words of the buffer.
    Words(usize, usize),
    /// The writer is too far ahead to catch up at this moment; try again.
    Overrun,
}

impl Consumer {
    /// Occupies a slot, which the caller owns already, and finds the
    /// beginning. `None`: the words make no sense.
    pub(crate) fn attach<M: Memory>(
        memory: &M,
        slot: usize,
        from: From,
        policy: Policy,
        max_record: u64,
    ) -> Option<Consumer> {
        let capacity = memory.capacity();
        let state = memory.state(slot).load(Relaxed);
        let mut position = 0;
        let mut expected = None;
        let mut overwritten = 0;
        let mut found = false;
        // The floor moves 16 times a round at most; a writer that outruns
        // this loop a thousand times is not one of ours.
        for attempt in 0..1000 {
            let floor = memory.floor().load(Acquire);
            let seq = memory.next_seq().load(Acquire);
            let head = memory.head().load(Acquire);
            if head < floor || head > POSITION_LIMIT || !(head | floor).is_multiple_of(8) {
                return None;
            }
            (position, expected) = match from {
                From::Newest => (head, Some(seq)),
                From::At(position, seen) if position <= head && position.is_multiple_of(8) => {
                    overwritten = floor.saturating_sub(position);
                    (position.max(floor), Some(seen))
                }
                _ if head == floor => (head, Some(seq)),
                _ => (floor, None),
            };
            memory.seen(slot).store(seen(expected), Relaxed);
            memory.tail(slot).store(position, Relaxed);
            if attempt == 0 {
                // A swap, so that it comes after a burial of the one before
                // in everybody's eyes.
                let attached = (state | 1).wrapping_add(2);
                memory.state(slot).swap(attached, AcqRel);
                memory.used().fetch_max(slot as u64 + 1, AcqRel);
            }
            memory.fence(SeqCst);
            if memory.floor().load(Acquire) <= position {
                found = true;
                break;
            }
        }
        found.then_some(Consumer {
            policy,
            capacity,
            max_record,
            position,
            released: position,
            expected,
            fresh: true,
            head: position,
            hint: 0,
            lost: 0,
            overwritten,
        })
    }

    /// Whether there is something to copy.
    pub(crate) fn pending<M: Memory>(&mut self, memory: &M) -> u64 {
        memory.head().load(Acquire).wrapping_sub(self.position)
    }

    /// Copies what is published, as much as fits into `words`, and makes
    /// sure that none of it was overwritten meanwhile.
    pub(crate) fn copy<M: Memory>(
        &mut self,
        memory: &M,
        words: &mut [u64],
    ) -> Result<Copied, &'static str> {
        for _ in 0..16 {
            let mut head = memory.head().load(Acquire);
            let mut position = self.position;
            if self.policy == Policy::OverwriteOldest {
                // This floor is at least as new as that head, and a newer
                // head at least as new as this floor: a writer that breaks
                // either is not one of ours.
                let floor = memory.floor().load(Acquire);
                if floor > head {
                    head = memory.head().load(Acquire);
                    if floor > head {
                        return Err("floor is past the head");
                    }
                } else if head - floor > self.capacity {
                    return Err("head is further from the floor than the ring is long");
                }
                position = position.max(floor);
            }
            if head < self.head || head > POSITION_LIMIT || !(head | position).is_multiple_of(8) {
                return Err("head went backwards");
            }
            self.head = head;
            self.overwritten = self.overwritten.saturating_add(position - self.position);
            self.position = position;
            let published = head - position;
            if published == 0 {
                return Ok(Copied::Nothing);
            }
            if published > self.capacity {
                if self.policy == Policy::DropNewest {
                    return Err("head is further than the ring is long");
                }
                continue;
            }
            let count = (published / 8).min(words.len() as u64) as usize;
            memory.get(self.position, &mut words[..count]);
            self.hint = memory.next_seq().load(Relaxed);
            if self.policy == Policy::DropNewest {
                return Ok(Copied::Words(0, count));
            }
            memory.fence(Acquire);
            let floor = memory.floor().load(Relaxed);
            if floor <= self.position {
                return Ok(Copied::Words(0, count));
            }
            // Some of it is gone. What follows the floor is whole.
            let gone = (floor - self.position) / 8;
            if floor.is_multiple_of(8) && gone < count as u64 {
                self.overwritten = self.overwritten.saturating_add(floor - self.position);
                self.position = floor;
                return Ok(Copied::Words(gone as usize, count));
            }
        }
        Ok(Copied::Overrun)
    }

    /// Reads one record out of copied words, which nobody changes any more.
    #[inline]
    pub(crate) fn step(&mut self, words: &[u64]) -> Step {
        let [word, time, ..] = *words else {
            // Records are whole numbers of words, so two words are missing
            // only where the buffer ends.
            return self.cut(2);
        };
        let length = word & 0xff_ffff;
        if length > self.max_record {
            return Step::Bad("record is longer than any can be");
        }
        let next = 2 + (length as usize).div_ceil(8);
        if next > words.len() {
            return self.cut(next);
        }
        let short = word >> 24;
        let (seq, lost) = match self.expected {
            Some(expected) if expected & SEQ_MASK == short => (expected, 0),
            expected => {
                let seq = self
                    .hint
                    .wrapping_sub(self.hint.wrapping_sub(short) & SEQ_MASK);
                match expected {
                    None => (seq, 0),
                    Some(expected) if seq >= expected => (seq, seq - expected),
                    Some(_) if self.fresh => (seq, 0),
                    Some(_) => return Step::Bad("record numbers go backwards"),
                }
            }
        };
        self.fresh = false;
        self.expected = Some(seq.wrapping_add(1));
        self.lost = self.lost.saturating_add(lost);
        self.position += next as u64 * 8;
        Step::Record(Found {
            payload: 2,
            next,
            length: length as usize,
            time,
            seq,
            lost,
        })
    }

    /// How many words the first record wants, if it may be one at all.
    pub(crate) fn wants(&self, words: &[u64]) -> Option<usize> {
        let length = words.first()? & 0xff_ffff;
        (length <= self.max_record).then(|| 2 + (length as usize).div_ceil(8))
    }

    fn cut(&self, words: usize) -> Step {
        if self.position + words as u64 * 8 > self.head {
            Step::Bad("record goes past the head")
        } else {
            Step::Cut
        }
    }

    /// After the writer closed and everything was read: numbers given to
    /// records that it dropped at the very end.
    pub(crate) fn settle<M: Memory>(&mut self, memory: &M) {
        let next = memory.next_seq().load(Acquire);
        if let Some(expected) = self.expected
            && next > expected
            && memory.head().load(Acquire) == self.position
        {
            self.lost = self.lost.saturating_add(next - expected);
            self.expected = Some(next);
        }
    }

    /// Lets the writer have everything before `position`.
    pub(crate) fn release<M: Memory>(&mut self, memory: &M, slot: usize) {
        memory.seen(slot).store(seen(self.expected), Relaxed);
        memory.tail(slot).store(self.position, Release);
        self.released = self.position;
    }
}

/// Takes a slot away from a reader that is known to be gone, unless another
/// has come meanwhile. `state` is what it was before its death was noticed.
pub(crate) fn bury<M: Memory>(memory: &M, slot: usize, state: u64) -> bool {
    memory.state(slot).exchange(state, state & !1)
}

/// Gives the slot back; the position stays for whoever resumes under its name.
pub(crate) fn detach<M: Memory>(memory: &M, slot: usize) {
    let state = memory.state(slot).load(Relaxed);
    memory.state(slot).store(state & !1, Release);
}

#[cfg(test)]
mod tests;
