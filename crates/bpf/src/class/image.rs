//! A copy of the class table as the packet path reads it, built from the
//! partition of `weir_core::address_class`.

use std::net::IpAddr;

use weir_core::{
    address_class::{Classes, Cover, MAX_FENCES, MAX_LISTS},
    geo::{Number, Span},
};

use super::exceptions::{Exceptions, Family, Run};
use crate::{
    abi::{
        self, CLASS_NODE as NODE, CODE_APART as APART, CODE_EXCEPTION as EXCEPTION,
        CODE_MIXED as MIXED, CODE_UNIFORM as UNIFORM, CODE_WALK as WALK,
    },
    skeleton::{
        clock::types::{class, class_header, class_node, cover},
        firewall::types::class_line,
    },
};

/// 32-bit words in a line.
pub(super) const WORDS: usize = size_of::<class_line>() / 4;
/// What the header numbers in lines, in words.
const COVERS: usize = abi::CLASS_COVER_LINES as usize * WORDS;
const TOP4: usize = abi::CLASS_TOP4 as usize * WORDS;
const TOP6: usize = abi::CLASS_TOP6 as usize * WORDS;
const CODE4: usize = abi::CLASS_CODE4 as usize * WORDS;
const CODE6: usize = abi::CLASS_CODE6 as usize * WORDS;
const HINT4: usize = abi::CLASS_HINT4 as usize * WORDS;
const BODY: usize = abi::CLASS_BODY as usize * WORDS;
/// References that a node holds itself.
const INLINE: usize = abi::CLASS_INLINE_REFS as usize;
/// Where a node's references begin when it holds them itself, in words.
const HERE: usize = WORDS - INLINE;
const WAYS: [u16; 2] = [abi::COVER_IN as u16, abi::COVER_OUT as u16];

const _: () = assert!(size_of::<class_line>() == 64 && size_of::<class_header>() == 64);
const _: () = assert!(size_of::<class_node>() == 64 && size_of::<class>() == 16);
const _: () = assert!(size_of::<cover>() == 4);
const _: () = assert!(std::mem::offset_of!(class_node, here) == HERE * 4);
const _: () = assert!(MAX_LISTS + MAX_FENCES <= TOP4 - COVERS);

/// A class table, not yet in the kernel.
pub struct ClassImage {
    words: Vec<u32>,
    exceptions: Exceptions,
    /// Where the exceptions' filter and buckets begin, in lines.
    laid_out: [usize; 2],
}

impl ClassImage {
    /// Builds the table of `classes`. `policies` has the number of the ports
    /// that each list, then each rule covers; 0 is all ports. `seed`: random
    /// bits, of which those who publish lists know nothing.
    pub fn build(classes: &Classes, policies: &[u16], seed: [u64; 2]) -> Self {
        let mut words = vec![0; BODY];
        let records = BODY / WORDS;
        for class in &classes.classes {
            let country = class.country.map_or(0, |c| c.index() as u32 + 1);
            words.extend([
                class.lists as u32,
                (class.lists >> 32) as u32,
                u32::from(class.denied) | country << 16,
                0,
            ]);
        }
        pad(&mut words);
        let mut image = Self {
            words,
            exceptions: Exceptions::new(seed),
            laid_out: [0; 2],
        };
        image.top(TOP4, &classes.v4, 16);
        image.top(TOP6, &classes.v6, 112);
        let filter = image.words.len() / WORDS;
        let laid = image.exceptions.lay_out();
        image.words.extend(halves(&laid.filter));
        let buckets = image.words.len() / WORDS;
        image.words.extend(halves(&laid.buckets));
        image.laid_out = [filter, buckets];
        let header = class_header {
            lists: classes.lists.len() as u32,
            fences: classes.fences.len() as u32,
            records: records as u32,
            lines: (image.words.len() / WORDS) as u32,
            seed: image.exceptions.seed(),
            filter: filter as u32,
            words: laid.filter.len() as u32 - 1,
            buckets: buckets as u32,
            mask: (laid.buckets.len() / 8) as u32 - 1,
            pad: [0; 4],
        };
        image.words.splice(0..WORDS, header_words(&header));
        let lists = classes.lists.iter().enumerate();
        let fences = classes.fences.iter().zip(MAX_LISTS..);
        let places = lists.map(|(at, cover)| (cover, at)).chain(fences);
        for ((cover, at), policy) in places.zip(policies) {
            image.words[COVERS + at] = u32::from(*policy) | u32::from(ways(cover)) << 16;
        }
        image
    }

    /// The number of lines that the image takes.
    pub fn lines(&self) -> u32 {
        (self.words.len() / WORDS) as u32
    }

    /// The copy as the kernel's map has it, 64 bits at a time.
    pub(super) fn words64(&self) -> impl Iterator<Item = u64> + '_ {
        self.words
            .chunks_exact(2)
            .map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32)
    }

    /// The number of an address's class, as the packet path finds it.
    pub fn class(&self, addr: IpAddr) -> u32 {
        match addr {
            IpAddr::V4(a) => self.class4(addr, a.to_bits()),
            IpAddr::V6(a) => self.class6(addr, a.to_bits()),
        }
    }

    fn class4(&self, addr: IpAddr, bits: u32) -> u32 {
        let code = self.code_at(CODE4, bits >> 16);
        let upper = bits >> 8;
        let hint = self.words[HINT4 + upper as usize / 32] >> (upper % 32) & 1 == 1;
        let top = self.words[TOP4 + (bits >> 16) as usize];
        match code {
            UNIFORM => top,
            APART if !hint => top,
            MIXED | APART if hint && top & NODE == 0 => self.exception(addr).unwrap_or(top),
            MIXED if hint => self.walk(top, bits.into(), 16),
            _ => 0,
        }
    }

    fn class6(&self, addr: IpAddr, bits: u128) -> u32 {
        let code = self.code_at(CODE6, folded((bits >> 96) as u32));
        let found = (code & EXCEPTION != 0).then(|| self.exception(addr));
        found.flatten().unwrap_or_else(|| match code & WALK {
            0 => 0,
            _ => self.walk(self.words[TOP6 + (bits >> 112) as usize], bits, 112),
        })
    }

    fn code_at(&self, codes: usize, at: u32) -> u32 {
        self.words[codes + at as usize / 16] >> (at % 16 * 2) & 3
    }

    fn exception(&self, addr: IpAddr) -> Option<u32> {
        let [filter, buckets] = self.laid_out.map(|line| line * WORDS);
        let (filter, buckets) = (&self.words[filter..buckets], &self.words[buckets..]);
        let found = self.exceptions.find(addr, filter, buckets);
        found.map(u32::from)
    }

    fn walk(&self, mut reference: u32, bits: u128, mut shift: u32) -> u32 {
        while reference & NODE != 0 && shift > 0 {
            shift -= 8;
            reference = self.child(reference, (bits >> shift) as u8);
        }
        reference
    }

    fn child(&self, reference: u32, byte: u8) -> u32 {
        let node = &self.words[(reference & !NODE) as usize * WORDS..][..WORDS];
        let upto = usize::from(byte);
        let run: u32 = (0..=upto / 32)
            .map(|part| {
                let mask = if part == upto / 32 {
                    u32::MAX >> (31 - upto % 32)
                } else {
                    u32::MAX
                };
                (node[part] & mask).count_ones()
            })
            .sum();
        self.words[(node[8] + run - 1) as usize]
    }

    /// References of all 65,536 uppers of a family.
    fn top<A: Bits>(&mut self, at: usize, spans: &[Span<A, u16>], shift: u32) {
        let mut rest = spans;
        for upper in 0..65_536u32 {
            let first = A::at(upper, shift);
            let reference = self.reference(&mut rest, first, shift);
            self.words[at + upper as usize] = reference;
        }
    }

    /// The reference for the block of 2^shift addresses from `first` on.
    /// `spans`: those that do not end before it; moved on behind the block.
    fn reference<A: Bits>(&mut self, spans: &mut &[Span<A, u16>], first: A, shift: u32) -> u32 {
        let last = first.block_end(shift);
        skip(spans, first);
        let Some(span) = spans.first() else {
            return 0;
        };
        if span.first > last {
            return 0;
        }
        if span.first <= first && span.last >= last {
            let class = span.value.into();
            if shift >= A::CODED && class != 0 {
                self.code::<A>(first, last, A::WHOLE);
            }
            return class;
        }
        if shift == A::CODED {
            if let Some(class) = self.all_but_a_few(spans, first, last) {
                return class.into();
            }
            self.code::<A>(first, last, A::NODES);
            for span in spans.iter().take_while(|span| span.first <= last) {
                self.hint(span.first.max(first), span.last.min(last));
            }
        }
        let below = shift - 8;
        let mut children = [0u32; 256];
        for (byte, child) in children.iter_mut().enumerate() {
            *child = self.reference(spans, first.child(byte as u32, below), below);
        }
        self.node(&children)
    }

    /// The class of a block in which few parts have another one: those become
    /// exceptions.
    fn all_but_a_few<A: Bits>(&mut self, spans: &[Span<A, u16>], first: A, last: A) -> Option<u16> {
        let (mut at, last_number) = (first.number(), last.number());
        let mut runs = Vec::new();
        for span in spans.iter().take_while(|span| span.first <= last) {
            let begins = span.first.number();
            if begins > at {
                runs.push(Run {
                    first: at,
                    last: begins - 1,
                    class: 0,
                });
            }
            let ends = span.last.number().min(last_number);
            runs.push(Run {
                first: begins.max(at),
                last: ends,
                class: span.value,
            });
            at = ends + 1;
            if runs.len() > Exceptions::MOST_RUNS {
                return None;
            }
        }
        if at <= last_number {
            runs.push(Run {
                first: at,
                last: last_number,
                class: 0,
            });
        }
        let class = self.exceptions.take(A::FAMILY, &runs)?;
        let code = A::FEW[usize::from(class != 0)];
        self.code::<A>(first, last, code);
        for run in runs.iter().filter(|run| run.class != class) {
            self.hint(A::of(run.first), A::of(run.last));
        }
        Some(class)
    }

    /// Sets bits of the codes of all coded blocks from `first` to `last`.
    fn code<A: Bits>(&mut self, first: A, last: A, bits: u32) {
        let (first, last) = (first.upper(), last.upper());
        let codes = &mut self.words[A::CODES];
        let all = bits * 0x5555_5555; // of the 16 blocks in a word
        if (last - first) as usize >= codes.len() * 16 - 1 {
            codes.iter_mut().for_each(|word| *word |= all); // folded, that is every place
            return;
        }
        let mut upper = first;
        while upper <= last {
            let at = A::place(upper);
            let word = &mut codes[at as usize / 16];
            let step = if upper % 16 == 0 && last - upper >= 15 {
                *word |= all;
                16
            } else {
                *word |= bits << (at % 16 * 2);
                1
            };
            let Some(next) = upper.checked_add(step) else {
                break;
            };
            upper = next;
        }
    }

    /// Sets the hint of each /24 from `first` to `last`.
    fn hint<A: Bits>(&mut self, first: A, last: A) {
        if A::FAMILY == Family::V4 {
            for upper in (first.number() >> 8) as usize..=(last.number() >> 8) as usize {
                self.words[HINT4 + upper / 32] |= 1 << (upper % 32);
            }
        }
    }

    /// Appends a node, and its references if it cannot hold them; none for
    /// children that are of one class.
    fn node(&mut self, children: &[u32; 256]) -> u32 {
        if children[0] & NODE == 0 && children.iter().all(|child| *child == children[0]) {
            return children[0];
        }
        let line = self.words.len() / WORDS;
        let mut node = [0u32; WORDS];
        let mut refs = Vec::new();
        for (n, child) in children.iter().enumerate() {
            if n % 64 == 0 {
                node[9] |= (refs.len() as u32) << (8 * (n / 64));
            }
            if n == 0 || children[n - 1] != *child {
                node[n / 32] |= 1 << (n % 32);
                refs.push(*child);
            }
        }
        if refs.len() <= INLINE {
            node[8] = (line * WORDS + HERE) as u32;
            node[HERE..HERE + refs.len()].copy_from_slice(&refs);
            self.words.extend(node);
        } else {
            node[8] = ((line + 1) * WORDS) as u32;
            self.words.extend(node);
            self.words.extend(refs);
            pad(&mut self.words);
        }
        NODE | line as u32
    }
}

/// Moves on to the first span that does not end before `first`.
fn skip<A: Bits>(spans: &mut &[Span<A, u16>], first: A) {
    while let [span, rest @ ..] = *spans
        && span.last < first
    {
        *spans = rest;
    }
}

/// The place of an IPv6 /32 among the codes.
fn folded(upper: u32) -> u32 {
    (upper ^ upper >> 24) & 0xff_ffff
}

fn halves(words: &[u64]) -> impl Iterator<Item = u32> + '_ {
    words
        .iter()
        .flat_map(|word| [*word as u32, (*word >> 32) as u32])
}

fn header_words(header: &class_header) -> [u32; WORDS] {
    // SAFETY: both are 64 bytes of plain integers without padding.
    unsafe { std::mem::transmute_copy(header) }
}

fn pad(words: &mut Vec<u32>) {
    words.resize(words.len().next_multiple_of(WORDS), 0);
}

fn ways(cover: &Cover) -> u16 {
    let direction = cover.direction;
    let [inbound, outbound] = WAYS;
    let mut ways = 0;
    if direction.inbound() {
        ways |= inbound;
    }
    if direction.outbound() {
        ways |= outbound;
    }
    ways
}

/// Addresses of a family as blocks.
trait Bits: Number {
    /// The family whose addresses these are.
    const FAMILY: Family;
    /// The host bits of the blocks that have a code each.
    const CODED: u32;
    /// The words in which the family's codes are.
    const CODES: std::ops::Range<usize>;
    /// The code of a block of one class, not 0.
    const WHOLE: u32;
    /// The code of a block that is a node.
    const NODES: u32;
    /// The code of a block with exceptions from class 0, and from another one.
    const FEW: [u32; 2];
    /// The first address with these upper 16 bits.
    fn at(upper: u32, shift: u32) -> Self;
    /// The last address of the block of 2^shift addresses that begins here.
    fn block_end(self, shift: u32) -> Self;
    /// The first address of child `byte` of a block.
    fn child(self, byte: u32, shift: u32) -> Self;
    /// The bits above those of a coded block.
    fn upper(self) -> u32;
    /// The place of such a block's code.
    fn place(upper: u32) -> u32;
    /// The address as a number.
    fn number(self) -> u128;
    /// The address of this number.
    fn of(number: u128) -> Self;
}

impl Bits for u32 {
    const FAMILY: Family = Family::V4;
    const CODED: u32 = 16;
    const CODES: std::ops::Range<usize> = CODE4..CODE6;
    const WHOLE: u32 = UNIFORM;
    const NODES: u32 = MIXED;
    const FEW: [u32; 2] = [MIXED, APART];
    fn at(upper: u32, shift: u32) -> Self {
        upper << shift
    }
    fn block_end(self, shift: u32) -> Self {
        self | ((1 << shift) - 1)
    }
    fn child(self, byte: u32, shift: u32) -> Self {
        self | byte << shift
    }
    fn upper(self) -> u32 {
        self >> Self::CODED
    }
    fn place(upper: u32) -> u32 {
        upper
    }
    fn number(self) -> u128 {
        self.into()
    }
    fn of(number: u128) -> Self {
        number as u32
    }
}

impl Bits for u128 {
    const FAMILY: Family = Family::V6;
    const CODED: u32 = 96;
    const CODES: std::ops::Range<usize> = CODE6..HINT4;
    const WHOLE: u32 = WALK;
    const NODES: u32 = WALK;
    const FEW: [u32; 2] = [EXCEPTION, EXCEPTION | WALK];
    fn at(upper: u32, shift: u32) -> Self {
        u128::from(upper) << shift
    }
    fn block_end(self, shift: u32) -> Self {
        self | ((1 << shift) - 1)
    }
    fn child(self, byte: u32, shift: u32) -> Self {
        self | u128::from(byte) << shift
    }
    fn upper(self) -> u32 {
        (self >> Self::CODED) as u32
    }
    fn place(upper: u32) -> u32 {
        folded(upper)
    }
    fn number(self) -> u128 {
        self
    }
    fn of(number: u128) -> Self {
        number
    }
}
