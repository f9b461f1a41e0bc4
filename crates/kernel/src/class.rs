//! The class table as the packet path reads it (`bpf/abi.h`, `struct
//! class_line` and on): built here from the partition of `weir_core::class`,
//! written aside and swapped by one store.

use std::{
    net::IpAddr,
    sync::{Mutex, atomic::Ordering},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_core::{
    class::{Classes, Cover, MAX_FENCES, MAX_LISTS},
    geo::{Country, Number, Span},
};

use crate::{
    error::{Context, Result},
    memory::Words,
    skeleton::{
        clock::types::{class, class_header, class_node, cover},
        ingress::types::{class_counter, class_line, control},
    },
};

/// 32-bit words in a line.
const WORDS: usize = 16;
/// `CLASS_NODE` of bpf/abi.h.
const NODE: u32 = 0x8000_0000;
/// `CLASS_COVER_LINES` of bpf/abi.h, in words.
const COVERS: usize = WORDS;
/// `CLASS_TOP4` of bpf/abi.h, in words.
const TOP4: usize = 8 * WORDS;
/// `CLASS_TOP6` of bpf/abi.h, in words.
const TOP6: usize = TOP4 + 65_536;
/// `CLASS_HINT4` of bpf/abi.h, in words.
const HINT4: usize = TOP6 + 65_536;
/// `CLASS_HINT6` of bpf/abi.h, in words.
const HINT6: usize = HINT4 + HINT_BITS / 32;
/// `CLASS_BODY` of bpf/abi.h, in words.
const BODY: usize = HINT6 + HINT_BITS / 32;
/// Bits of a family's hint.
const HINT_BITS: usize = 1 << 24;
/// `CLASS_INLINE_REFS` of bpf/abi.h.
const INLINE: usize = 6;
/// Where a node's references begin when it holds them itself, in words.
const HERE: usize = WORDS - INLINE;
/// `COVER_IN` and `COVER_OUT` of bpf/abi.h.
const WAYS: [u16; 2] = [1, 2];
/// `CLASS_COUNTERS` of bpf/abi.h.
const COUNTERS: u32 = MAX_LISTS as u32 + 1 + 26 * 26;
/// The word of `struct control` (as 64-bit words) that names the copy in use.
const CONTROL: usize = 2;

const _: () = assert!(size_of::<class_line>() == 64 && size_of::<class_header>() == 64);
const _: () = assert!(size_of::<class_node>() == 64 && size_of::<class>() == 16);
const _: () = assert!(size_of::<cover>() == 4 && size_of::<class_counter>() == 16);
const _: () = assert!(std::mem::offset_of!(class_node, here) == HERE * 4);
const _: () = assert!(std::mem::offset_of!(control, class_base) == CONTROL * 8);
const _: () = assert!(MAX_LISTS + MAX_FENCES <= TOP4 - COVERS);

/// A class table, not yet in the kernel.
pub struct ClassImage {
    words: Vec<u32>,
}

impl ClassImage {
    /// Builds the table of `classes`. `policies` has the number of the ports
    /// that each list, then each rule covers; 0 is all ports.
    pub fn build(classes: &Classes, policies: &[u16]) -> Self {
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
        let mut image = Self { words };
        for span in &classes.v4 {
            set_bits(
                &mut image.words[HINT4..HINT6],
                span.first >> 8,
                span.last >> 8,
                |upper| upper,
            );
        }
        for span in &classes.v6 {
            let (first, last) = ((span.first >> 96) as u32, (span.last >> 96) as u32);
            set_bits(&mut image.words[HINT6..BODY], first, last, folded);
        }
        image.top(TOP4, &classes.v4, 16);
        image.top(TOP6, &classes.v6, 112);
        image.words.splice(
            0..4,
            [
                classes.lists.len() as u32,
                classes.fences.len() as u32,
                records as u32,
                (image.words.len() / WORDS) as u32,
            ],
        );
        let lists = classes.lists.iter().enumerate();
        let fences = classes.fences.iter().zip(MAX_LISTS..);
        let places = lists.map(|(at, cover)| (cover, at)).chain(fences);
        for ((cover, at), policy) in places.zip(policies) {
            image.words[COVERS + at] = u32::from(*policy) | u32::from(ways(cover)) << 16;
        }
        image
    }

    /// How many lines it has.
    pub fn lines(&self) -> u32 {
        (self.words.len() / WORDS) as u32
    }

    /// The number of an address's class, as the packet path finds it.
    pub fn class(&self, addr: IpAddr) -> u32 {
        let (hint, bit) = match addr {
            IpAddr::V4(a) => (HINT4, a.to_bits() >> 8),
            IpAddr::V6(a) => (HINT6, folded((a.to_bits() >> 96) as u32)),
        };
        if self.words[hint + bit as usize / 32] >> (bit % 32) & 1 == 0 {
            return 0;
        }
        let (mut reference, bits, mut shift) = match addr {
            IpAddr::V4(a) => {
                let bits = u128::from(a.to_bits());
                (self.words[TOP4 + (bits >> 16) as usize], bits, 16)
            }
            IpAddr::V6(a) => {
                let bits = a.to_bits();
                (self.words[TOP6 + (bits >> 112) as usize], bits, 112)
            }
        };
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
        while let [span, rest @ ..] = *spans
            && span.last < first
        {
            *spans = rest;
        }
        let Some(span) = spans.first() else {
            return 0;
        };
        if span.first > last {
            return 0;
        }
        if span.first <= first && span.last >= last {
            return span.value.into();
        }
        let below = shift - 8;
        let mut children = [0u32; 256];
        for (byte, child) in children.iter_mut().enumerate() {
            *child = self.reference(spans, first.child(byte as u32, below), below);
        }
        self.node(&children)
    }

    /// Appends a node, and its references if it cannot hold them.
    fn node(&mut self, children: &[u32; 256]) -> u32 {
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

/// The place of an IPv6 /32 in the hint.
fn folded(upper: u32) -> u32 {
    (upper ^ upper >> 24) & 0xff_ffff
}

/// Sets the bits of all uppers from `first` to `last`.
fn set_bits(words: &mut [u32], first: u32, last: u32, place: impl Fn(u32) -> u32) {
    if (last - first) as usize >= HINT_BITS - 1 {
        words.fill(u32::MAX); // as many in a row fold to every place
        return;
    }
    for upper in first..=last {
        let bit = place(upper);
        words[bit as usize / 32] |= 1 << (bit % 32);
    }
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
    /// The first address with these upper 16 bits.
    fn at(upper: u32, shift: u32) -> Self;
    /// The last address of the block of 2^shift addresses that begins here.
    fn block_end(self, shift: u32) -> Self;
    /// The first address of child `byte` of a block.
    fn child(self, byte: u32, shift: u32) -> Self;
}

impl Bits for u32 {
    fn at(upper: u32, shift: u32) -> Self {
        upper << shift
    }
    fn block_end(self, shift: u32) -> Self {
        self | ((1 << shift) - 1)
    }
    fn child(self, byte: u32, shift: u32) -> Self {
        self | byte << shift
    }
}

impl Bits for u128 {
    fn at(upper: u32, shift: u32) -> Self {
        u128::from(upper) << shift
    }
    fn block_end(self, shift: u32) -> Self {
        self | ((1 << shift) - 1)
    }
    fn child(self, byte: u32, shift: u32) -> Self {
        self | u128::from(byte) << shift
    }
}

/// Drops of one list, or because of one country.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassCount {
    /// What dropped them.
    pub by: By,
    /// Packets, over all CPUs and interfaces.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What dropped packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The list of this bit.
    List(usize),
    /// The geofence: addresses of this country, or of none that is known.
    Country(Option<Country>),
}

/// The table in the kernel: two copies, of which packets read one.
pub struct ClassTable {
    /// Of one copy; 0 when there is no class stage.
    lines: u32,
    map: MapHandle,
    counters: MapHandle,
    words: Option<Words>,
    control: Words,
    writing: Mutex<()>,
}

impl ClassTable {
    pub(crate) fn map(
        lines: u32,
        map: MapHandle,
        counters: MapHandle,
        control: &MapHandle,
    ) -> Result<Self> {
        let words = (lines != 0)
            .then(|| Words::map(&map, (1 + 2 * lines as usize) * 8, "the class table"))
            .transpose()?;
        Ok(Self {
            lines,
            map,
            counters,
            words,
            control: Words::map(control, size_of::<control>() / 8, "the control words")?,
            writing: Mutex::default(),
        })
    }

    /// Lines that one copy may have; 0: no class stage in this generation.
    pub fn lines(&self) -> u32 {
        self.lines
    }

    pub(crate) fn table_map(&self) -> &MapHandle {
        &self.map
    }

    pub(crate) fn counters_map(&self) -> &MapHandle {
        &self.counters
    }

    /// Reads the copy that another generation reads, of the same map.
    pub(crate) fn use_copy_of(&self, other: &Self) {
        let base = other.control.load(CONTROL);
        self.control.store(CONTROL, base);
    }

    /// Puts a table into force, whole. It must fit (`lines`). Packets that
    /// still walk the copy before last have had a rebuild's time to finish.
    pub fn write(&self, image: &ClassImage) {
        assert!(image.lines() <= self.lines, "the caller makes room first");
        let Some(words) = &self.words else { return };
        let _alone = self.writing.lock().expect("no holder of this lock panics");
        let first = 1;
        let second = 1 + u64::from(self.lines);
        let base = if self.control.load(CONTROL) & 0xffff_ffff == first {
            second
        } else {
            first
        };
        for (at, pair) in image.words.chunks_exact(2).enumerate() {
            let word = u64::from(pair[0]) | u64::from(pair[1]) << 32;
            words
                .at(base as usize * 8 + at)
                .store(word, Ordering::Relaxed);
        }
        self.control.store(CONTROL, base);
    }

    /// Takes everything out of force at once.
    pub fn clear(&self) {
        self.control.store(CONTROL, 0);
    }

    /// Is a table in force?
    pub fn is_set(&self) -> bool {
        self.control.load(CONTROL) & 0xffff_ffff != 0
    }

    /// What was dropped since the counters were made, lists and countries that
    /// dropped something.
    pub fn counts(&self) -> Result<Vec<ClassCount>> {
        let mut counts = Vec::new();
        for key in 0..COUNTERS {
            let cpus = self
                .counters
                .lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY)
                .context(|| "read the counters of lists and countries".into())?
                .unwrap_or_default();
            let (packets, bytes) = cpus
                .iter()
                .filter(|b| b.len() >= size_of::<class_counter>())
                .fold((0, 0), |sum, bytes| {
                    // SAFETY: long enough, and every bit pattern is a counter.
                    let c: class_counter =
                        unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
                    (sum.0 + c.packets, sum.1 + c.bytes)
                });
            if packets > 0 {
                counts.push(ClassCount {
                    by: by(key as usize),
                    packets,
                    bytes,
                });
            }
        }
        Ok(counts)
    }

    /// Sets the counters of lists to nothing: their bits mean others now.
    pub fn forget_list_counts(&self) -> Result<()> {
        let cpus = libbpf_rs::num_possible_cpus().context(|| "count the processors".into())?;
        let zero = vec![vec![0u8; size_of::<class_counter>()]; cpus];
        for key in 0..MAX_LISTS as u32 {
            self.counters
                .update_percpu(&key.to_ne_bytes(), &zero, MapFlags::ANY)
                .context(|| "reset the counters of lists".into())?;
        }
        Ok(())
    }
}

fn by(key: usize) -> By {
    if key < MAX_LISTS {
        return By::List(key);
    }
    let letters = (key - MAX_LISTS)
        .checked_sub(1)
        .map(|index| [b'A' + (index / 26) as u8, b'A' + (index % 26) as u8]);
    By::Country(letters.and_then(Country::from_letters))
}

#[cfg(test)]
mod tests;
