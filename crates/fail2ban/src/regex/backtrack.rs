//! The matcher that means what Python's does, exactly: it tries one way after the other.
//!
//! Time is bounded twice. What a place of the text has led to at an instruction is
//! remembered once a search has become long, and not tried again, so that a search
//! costs no more than the expression's length times the text's (lookarounds that are
//! themselves long excepted); and a search ends without a match after a number of steps,
//! which the caller is told of. Back references are bounded by the latter alone.

use super::{
    ast::Anchor,
    char_set::{self, CharSet},
    compile::{Code, Inst},
};

/// A group that has matched nothing.
pub const NONE: usize = usize::MAX;
/// After so many steps what has failed is remembered.
const REMEMBER_AFTER: u64 = 2_000;
/// The most that is remembered, in bits.
const MAX_REMEMBERED: usize = 64 << 20;
/// Steps of one search, and as many more for each byte of the text.
const STEPS: (u64, u64) = (100_000, 200);

/// What a search needs of memory; kept from one to the next.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    /// What has failed is remembered from the first step on.
    eager: bool,
    /// Two places a group: the beginning and the end of what it has matched.
    pub slots: Vec<usize>,
    registers: Vec<usize>,
    stack: Vec<Frame>,
    /// Bits: here nothing is to be had.
    failed: Vec<u64>,
    remembers: bool,
    steps: u64,
    limit: u64,
    /// What was remembered in a lookaround, which may succeed and be asked again.
    log: Vec<usize>,
    in_look: u32,
    /// For each set a part of the text of which all is in it, to where that ends.
    stretches: Vec<(usize, usize)>,
}

#[derive(Clone, Copy, Debug)]
enum Frame {
    /// Go on there.
    Branch {
        at: usize,
        pos: usize,
    },
    /// A run that took as much as fits gives back.
    Greedy {
        at: usize,
        min: usize,
        pos: usize,
    },
    /// One that took as little takes one more.
    Lazy {
        at: usize,
        pos: usize,
        left: u32,
    },
    Slot {
        slot: usize,
        old: usize,
    },
    Register {
        register: usize,
        old: usize,
    },
}

impl Scratch {
    /// One for searches that remember from their first step on what has failed. They find
    /// the same, later.
    pub fn eager() -> Self {
        Self {
            eager: true,
            ..Self::default()
        }
    }
}

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// The groups are in [`Scratch::slots`].
    Found,
    /// Nowhere in the text.
    No,
    /// The search was given up, because it would have taken too long.
    Exhausted,
}

/// As the standard library's, for a few bytes.
#[inline]
fn starts_with(text: &[u8], with: &[u8]) -> bool {
    text.len() >= with.len() && text.iter().zip(with).all(|(a, b)| a == b)
}

/// The search was too long.
struct Exhausted;

struct Run<'c, 't> {
    code: &'c Code,
    text: &'t str,
    bytes: &'t [u8],
    scratch: &'c mut Scratch,
}

impl Code {
    /// The leftmost match from `from` on, which must be a place between characters.
    pub fn search(&self, text: &str, from: usize, scratch: &mut Scratch) -> Search {
        scratch.slots.clear();
        scratch.slots.resize(2 * self.groups, NONE);
        scratch.registers.clear();
        scratch.registers.resize(self.registers, NONE);
        scratch.stack.clear();
        scratch.steps = 0;
        scratch.limit = STEPS.0 + STEPS.1 * text.len() as u64;
        scratch.remembers = false;
        scratch.log.clear();
        scratch.in_look = 0;
        scratch.stretches.clear();
        scratch.stretches.resize(self.sets.len(), (NONE, 0));
        let mut run = Run {
            code: self,
            text,
            bytes: text.as_bytes(),
            scratch,
        };
        match run.search(from) {
            Ok(true) => Search::Found,
            Ok(false) => Search::No,
            Err(Exhausted) => Search::Exhausted,
        }
    }
}

impl Code {
    /// Under which number it is remembered where an instruction has failed, given which
    /// groups have matched.
    fn key(&self, at: usize, way: usize, slots: &[usize]) -> usize {
        let matched = |group: &usize| usize::from(slots[2 * group + 1] != NONE);
        let join = self.joins[at] as usize + way;
        (self.conditions.iter()).fold(join, |key, group| 2 * key + matched(group))
    }
}

impl Run<'_, '_> {
    fn search(&mut self, from: usize) -> Result<bool, Exhausted> {
        let mut start = from;
        loop {
            if let Some(byte) = self.code.first_byte {
                match memchr::memchr(byte, &self.bytes[start..]) {
                    Some(behind) => start += behind,
                    None => return Ok(false),
                }
            } else if let Some(first) = &self.code.first {
                let rest = &self.bytes[start..];
                match rest.iter().position(|byte| first[usize::from(*byte)]) {
                    Some(behind) => start += behind,
                    None => return Ok(false),
                }
            }
            if !self.text.is_char_boundary(start) {
                start += 1;
                continue;
            }
            if self.code.anchored && start > 0 {
                return Ok(false);
            }
            if let Some(end) = self.run(0, start)? {
                self.scratch.slots[0] = start;
                self.scratch.slots[1] = end;
                return Ok(true);
            }
            if start >= self.bytes.len() {
                return Ok(false);
            }
            start += 1;
        }
    }

    /// Where it ends, from this instruction and place on.
    fn run(&mut self, mut at: usize, mut pos: usize) -> Result<Option<usize>, Exhausted> {
        let base = self.scratch.stack.len();
        let code = self.code;
        loop {
            self.spend(1)?;
            let goes_on = match &code.insts[at] {
                Inst::Byte(byte) => {
                    let fits = self.bytes.get(pos) == Some(byte);
                    pos += 1;
                    at += 1;
                    fits
                }
                Inst::Literal(bytes) => {
                    let fits = starts_with(&self.bytes[pos..], bytes);
                    pos += bytes.len();
                    at += 1;
                    fits
                }
                Inst::Set(set) => {
                    at += 1;
                    match self.next(*set, pos) {
                        Some(next) => {
                            pos = next;
                            true
                        }
                        None => false,
                    }
                }
                Inst::Run { .. } => match self.take_run(at, pos)? {
                    Some(end) => {
                        pos = end;
                        at += 1;
                        true
                    }
                    None => false,
                },
                Inst::Split { .. } => match self.split(at, pos) {
                    Some(way) => {
                        at = way;
                        true
                    }
                    None => false,
                },
                Inst::LoopInit(register) => {
                    self.set_register(*register, NONE);
                    at += 1;
                    true
                }
                Inst::LoopHead {
                    register,
                    exit,
                    lazy,
                } => {
                    if self.scratch.registers[*register] == pos {
                        at = *exit;
                    } else if *lazy {
                        self.scratch.stack.push(Frame::Branch { at: at + 1, pos });
                        self.set_register(*register, pos);
                        at = *exit;
                    } else {
                        self.scratch.stack.push(Frame::Branch { at: *exit, pos });
                        self.set_register(*register, pos);
                        at += 1;
                    }
                    true
                }
                Inst::Jump(to) => {
                    at = *to;
                    true
                }
                Inst::Save(slot) => {
                    let old = std::mem::replace(&mut self.scratch.slots[*slot], pos);
                    self.scratch.stack.push(Frame::Slot { slot: *slot, old });
                    at += 1;
                    true
                }
                Inst::At(place) => {
                    at += 1;
                    self.is_at(*place, pos)
                }
                Inst::Look {
                    behind,
                    negate,
                    end,
                } => {
                    let found = match behind {
                        None => self.sub(at + 1, pos, !negate)?.is_some(),
                        Some(chars) => match self.back(pos, *chars) {
                            Some(start) => self.sub(at + 1, start, !negate)?.is_some(),
                            None => false,
                        },
                    };
                    at = *end;
                    found != *negate
                }
                Inst::Atomic { end } => match self.sub(at + 1, pos, true)? {
                    Some(behind) => {
                        pos = behind;
                        at = *end;
                        true
                    }
                    None => false,
                },
                Inst::Backref { group, ignore_case } => {
                    at += 1;
                    match self.backref(*group, *ignore_case, pos) {
                        Some(end) => {
                            pos = end;
                            true
                        }
                        None => false,
                    }
                }
                Inst::Condition { group, no } => {
                    at = match self.has_matched(*group) {
                        true => at + 1,
                        false => *no,
                    };
                    true
                }
                Inst::Stop => {
                    // What was to be undone is the caller's now.
                    return Ok(Some(pos));
                }
            };
            if !goes_on {
                match self.back_up(base)? {
                    Some((next, place)) => (at, pos) = (next, place),
                    None => return Ok(None),
                }
            }
        }
    }

    /// Which way to go first; the other one is noted. Splits are often one behind the
    /// other.
    #[inline]
    fn split(&mut self, mut at: usize, pos: usize) -> Option<usize> {
        let byte = self.bytes.get(pos).copied();
        while let Inst::Split {
            first,
            second,
            next,
        } = &self.code.insts[at]
        {
            if self.has_failed(at, pos, 0) {
                return None;
            }
            let next = &self.code.next[*next];
            at = match (next[0].allows(byte), next[1].allows(byte)) {
                (true, true) => {
                    self.scratch.stack.push(Frame::Branch { at: *second, pos });
                    *first
                }
                (true, false) => *first,
                (false, true) => *second,
                (false, false) => return None,
            };
        }
        Some(at)
    }

    /// To the last way that was left.
    fn back_up(&mut self, base: usize) -> Result<Option<(usize, usize)>, Exhausted> {
        while self.scratch.stack.len() > base {
            self.spend(1)?;
            match self.scratch.stack.pop().expect("there is one") {
                Frame::Branch { at, pos } => return Ok(Some((at, pos))),
                Frame::Slot { slot, old } => self.scratch.slots[slot] = old,
                Frame::Register { register, old } => self.scratch.registers[register] = old,
                Frame::Greedy { at, min, pos } => {
                    let Some(pos) = self.give_back(at, min, pos) else {
                        continue;
                    };
                    if pos > min {
                        self.scratch.stack.push(Frame::Greedy { at, min, pos });
                    }
                    if !self.has_failed(at, pos, 1) {
                        return Ok(Some((at + 1, pos)));
                    }
                    self.skip_failed(at, min)?;
                }
                Frame::Lazy { at, pos, left } => {
                    let Inst::Run { set, next, .. } = &self.code.insts[at] else {
                        unreachable!("only a run is lazy");
                    };
                    let (mut pos, mut left) = (pos, left);
                    // On to where what follows can begin.
                    while let Some(behind) = self.next(*set, pos).filter(|_| left > 0) {
                        self.spend(1)?;
                        pos = behind;
                        left -= 1;
                        let next = &self.code.next[*next][0];
                        if !next.allows(self.bytes.get(pos).copied()) {
                            continue;
                        }
                        self.scratch.stack.push(Frame::Lazy { at, pos, left });
                        if self.has_failed(at, pos, 1) {
                            break;
                        }
                        return Ok(Some((at + 1, pos)));
                    }
                }
            }
        }
        Ok(None)
    }

    /// The place before that one at which a run may end.
    fn give_back(&self, at: usize, min: usize, pos: usize) -> Option<usize> {
        let Inst::Run { next, .. } = &self.code.insts[at] else {
            unreachable!("only a run gives back");
        };
        if pos <= min {
            return None;
        }
        let next = &self.code.next[*next][0];
        if let Some(byte) = next.single() {
            return Some(min + memchr::memrchr(byte, &self.bytes[min..pos])?);
        }
        // Inside of a character the rest of it is no beginning of anything.
        (min..pos)
            .rev()
            .find(|pos| self.text.is_char_boundary(*pos) && next.allows(Some(self.bytes[*pos])))
    }

    /// Takes as many characters as fit, or as few; where it goes on.
    fn take_run(&mut self, at: usize, pos: usize) -> Result<Option<usize>, Exhausted> {
        let Inst::Run {
            set,
            min,
            max,
            lazy,
            next,
        } = &self.code.insts[at]
        else {
            unreachable!("it is called at a run");
        };
        if self.has_failed(at, pos, 0) {
            return Ok(None);
        }
        let mut end = pos;
        for _ in 0..*min {
            match self.next(*set, end) {
                Some(behind) => end = behind,
                None => return Ok(None),
            }
        }
        let least = end;
        if *lazy {
            self.scratch.stack.push(Frame::Lazy {
                at,
                pos: end,
                left: max - min,
            });
            return Ok(Some(end));
        }
        let (begin, known) = self.scratch.stretches[*set];
        let lacks = self.code.lacks[*set].filter(|_| *max == u32::MAX);
        if let Some(byte) = lacks {
            let rest = &self.bytes[end..];
            end += memchr::memchr(byte, rest).unwrap_or(rest.len());
            self.spend(((end - least) / 64) as u64)?;
        } else if *max == u32::MAX && (begin..known).contains(&end) {
            end = known;
        } else {
            let mut left = max - min;
            let mut scanned = 0;
            let of = &self.code.sets[*set];
            while left > 0 {
                if end == begin && *max == u32::MAX {
                    end = known;
                    break;
                }
                scanned += 1;
                match self.bytes.get(end) {
                    Some(byte @ 0..0x80) if of.has_ascii(*byte) => end += 1,
                    Some(0x80..) => match self.next(*set, end) {
                        Some(behind) => end = behind,
                        None => break,
                    },
                    _ => break,
                }
                left -= 1;
            }
            if *max == u32::MAX {
                self.scratch.stretches[*set] = (least, end);
            }
            self.spend(scanned / 8)?;
        }
        if !self.code.next[*next][0].allows(self.bytes.get(end).copied()) {
            match self.give_back(at, least, end) {
                Some(before) => end = before,
                None => return Ok(None),
            }
        }
        if end > least {
            self.scratch.stack.push(Frame::Greedy {
                at,
                min: least,
                pos: end,
            });
        }
        Ok(Some(end))
    }

    /// A part of its own: of it only whether it fits stays, and its groups.
    fn sub(&mut self, at: usize, pos: usize, keeps: bool) -> Result<Option<usize>, Exhausted> {
        let stack = self.scratch.stack.len();
        let log = self.scratch.log.len();
        self.scratch.in_look += 1;
        let found = self.run(at, pos)?;
        self.scratch.in_look -= 1;
        if found.is_some() {
            // It may be asked again at the same place, and will fit again.
            while self.scratch.log.len() > log {
                let bit = self.scratch.log.pop().expect("there is one");
                self.scratch.failed[bit / 64] &= !(1 << (bit % 64));
            }
            if keeps {
                // What it kept is undone when this was in vain; its other ways are not.
                let mut keep = stack;
                for n in stack..self.scratch.stack.len() {
                    let frame = self.scratch.stack[n];
                    if matches!(frame, Frame::Slot { .. } | Frame::Register { .. }) {
                        self.scratch.stack[keep] = frame;
                        keep += 1;
                    }
                }
                self.scratch.stack.truncate(keep);
            } else {
                while self.scratch.stack.len() > stack {
                    match self.scratch.stack.pop().expect("there is one") {
                        Frame::Slot { slot, old } => self.scratch.slots[slot] = old,
                        Frame::Register { register, old } => {
                            self.scratch.registers[register] = old;
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(found)
    }

    fn set_register(&mut self, register: usize, value: usize) {
        let old = std::mem::replace(&mut self.scratch.registers[register], value);
        self.scratch.stack.push(Frame::Register { register, old });
    }

    #[inline]
    fn spend(&mut self, steps: u64) -> Result<(), Exhausted> {
        self.scratch.steps += steps;
        match self.scratch.steps > self.scratch.limit {
            true => Err(Exhausted),
            false => Ok(()),
        }
    }

    /// Takes the run on top of the stack back over all places that are known to fail.
    fn skip_failed(&mut self, at: usize, min: usize) -> Result<(), Exhausted> {
        let Some(Frame::Greedy { at: top, pos, .. }) = self.scratch.stack.last_mut() else {
            return Ok(());
        };
        if *top != at {
            return Ok(());
        }
        let row = self.code.key(at, 1, &self.scratch.slots) * (self.bytes.len() + 1);
        let failed = &self.scratch.failed;
        let mut words = 0;
        while *pos > min {
            let bit = row + *pos - 1;
            let word = failed[bit / 64];
            if word == u64::MAX && bit % 64 == 63 && *pos > min + 64 {
                *pos -= 64;
                words += 1;
            } else if word >> (bit % 64) & 1 == 1 {
                *pos -= 1;
            } else {
                break;
            }
        }
        while !self.text.is_char_boundary(*pos) {
            *pos += 1;
        }
        self.spend(words / 8)
    }

    /// Has this been tried in vain? If not, it is noted: who comes here again comes
    /// because it was. `way`: 1 behind a run, 0 at it and elsewhere.
    #[inline]
    fn has_failed(&mut self, at: usize, pos: usize, way: usize) -> bool {
        let is_early = self.scratch.steps < REMEMBER_AFTER && !self.scratch.eager;
        if is_early || self.code.joins.is_empty() {
            return false;
        }
        self.remembers(at, pos, way)
    }

    #[cold]
    fn remembers(&mut self, at: usize, pos: usize, way: usize) -> bool {
        let code = self.code;
        if code.joins[at] == u32::MAX {
            return false;
        }
        let ways = 1 << code.conditions.len();
        let size = code.join_count * ways * (self.bytes.len() + 1);
        if size > MAX_REMEMBERED {
            return false;
        }
        if !self.scratch.remembers {
            self.scratch.failed.clear();
            self.scratch.failed.resize(size.div_ceil(64), 0);
            self.scratch.remembers = true;
        }
        let bit = code.key(at, way, &self.scratch.slots) * (self.bytes.len() + 1) + pos;
        let word = &mut self.scratch.failed[bit / 64];
        if *word >> (bit % 64) & 1 == 1 {
            return true;
        }
        *word |= 1 << (bit % 64);
        if self.scratch.in_look > 0 {
            self.scratch.log.push(bit);
        }
        false
    }

    fn has_matched(&self, group: usize) -> bool {
        self.scratch.slots[2 * group + 1] != NONE
    }

    /// Behind a character of the set.
    #[inline(always)]
    fn next(&self, set: usize, pos: usize) -> Option<usize> {
        let byte = *self.bytes.get(pos)?;
        let set = &self.code.sets[set];
        match byte < 0x80 {
            true => set.has_ascii(byte).then_some(pos + 1),
            false => self.next_wide(set, pos),
        }
    }

    #[cold]
    fn next_wide(&self, set: &CharSet, pos: usize) -> Option<usize> {
        let c = self.text[pos..].chars().next()?;
        set.has(c).then_some(pos + c.len_utf8())
    }

    fn back(&self, pos: usize, chars: u32) -> Option<usize> {
        let mut pos = pos;
        for _ in 0..chars {
            pos -= self.text[..pos].chars().next_back()?.len_utf8();
        }
        Some(pos)
    }

    fn backref(&self, group: usize, ignore_case: bool, pos: usize) -> Option<usize> {
        let [begin, end] = [0, 1].map(|n| self.scratch.slots[2 * group + n]);
        if begin == NONE || end == NONE || begin > end {
            return None;
        }
        let wanted = &self.text[begin..end];
        let rest = &self.text[pos..];
        if !ignore_case {
            return rest.starts_with(wanted).then_some(pos + wanted.len());
        }
        let mut at = pos;
        let mut chars = rest.chars();
        for wanted in wanted.chars() {
            let c = chars.next()?;
            if !c.to_lowercase().eq(wanted.to_lowercase()) {
                return None;
            }
            at += c.len_utf8();
        }
        Some(at)
    }

    fn is_at(&self, place: Anchor, pos: usize) -> bool {
        let len = self.bytes.len();
        let word = |ascii| {
            let before = self.text[..pos].chars().next_back();
            let behind = self.text[pos..].chars().next();
            let [before, behind] =
                [before, behind].map(|c| c.is_some_and(|c| char_set::is_word(c, ascii)));
            before != behind
        };
        match place {
            Anchor::TextStart => pos == 0,
            Anchor::LineStart => pos == 0 || self.bytes[pos - 1] == b'\n',
            Anchor::TextEnd => pos == len,
            Anchor::End => pos == len || pos + 1 == len && self.bytes[pos] == b'\n',
            Anchor::LineEnd => pos == len || self.bytes[pos] == b'\n',
            Anchor::WordBoundary { ascii } => word(ascii),
            // Python finds none in an empty text, not even this.
            Anchor::NotWordBoundary { ascii } => len > 0 && !word(ascii),
        }
    }
}
