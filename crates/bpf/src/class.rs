//! The class table in the kernel (`bpf/abi/class.h`): two
//! copies, of which packets read one; `image` builds a copy aside, `exceptions`
//! its hash.

mod exceptions;
mod image;

use std::sync::{Mutex, atomic::Ordering};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_core::{
    address_class::{MAX_FENCES, MAX_LISTS},
    geo::Country,
};

use crate::{
    abi::{CLASS_COUNTERS, CLASS_COVER_LINES},
    error::{Context, Result},
    fault,
    memory::Words,
    skeleton::firewall::types::{class_counter, control},
};

pub use image::ClassImage;

/// The word of `struct control` (as 64-bit words) that names the copy in use.
const CONTROL: usize = 2;
/// The half of it that does.
const BASE: u64 = 0xffff_ffff;

const _: () = assert!(size_of::<class_counter>() == 16);
const _: () = assert!(std::mem::offset_of!(control, class_base) == CONTROL * 8);

/// Drops of one list, or because of one country.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassCount {
    /// The list or country that dropped the packets.
    pub by: By,
    /// Packets, over all CPUs and interfaces.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
}

/// The reason of a class for dropping packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The list of this bit.
    List(usize),
    /// The geofence: addresses of this country, or of none that is known.
    Country(Option<Country>),
}

/// The table in the kernel: two copies, of which packets read one.
pub struct ClassTable {
    /// Lines of one copy; 0 when there is no class stage.
    lines: u32,
    counters: MapHandle,
    words: Option<Words>,
    control: Words,
    writing: Mutex<()>,
}

impl ClassTable {
    pub(crate) fn map(
        lines: u32,
        map: &MapHandle,
        counters: MapHandle,
        control: &MapHandle,
    ) -> Result<Self> {
        let words = (lines != 0)
            .then(|| Words::map(map, (1 + 2 * lines as usize) * 8, "the class table"))
            .transpose()?;
        Ok(Self {
            lines,
            counters,
            words,
            control: Words::map(control, size_of::<control>() / 8, "the control words")?,
            writing: Mutex::default(),
        })
    }

    /// The first line of the copy in use.
    fn base(&self) -> u64 {
        self.control.load(CONTROL) & BASE
    }

    fn use_base(&self, base: u64) {
        self.control.set_masked(CONTROL, BASE, base);
    }

    /// Lines that one copy may have; 0: no class stage in this generation.
    pub fn lines(&self) -> u32 {
        self.lines
    }

    /// The numbers of the policies that the copy in use refers to, with 0 for
    /// all ports.
    pub fn policies(&self) -> Vec<u16> {
        let base = self.base() as usize;
        let Some(words) = self.words.as_ref().filter(|_| base != 0) else {
            return Vec::new();
        };
        let covers = MAX_LISTS + MAX_FENCES;
        let first = (base + CLASS_COVER_LINES as usize) * 8;
        (first..first + covers / 2)
            .flat_map(|index| {
                // Two words of a line, each with a policy in its lower half.
                let [a, b, c, d, e, f, g, h] = words.load(index).to_ne_bytes();
                [[a, b, c, d], [e, f, g, h]].map(|word| u32::from_ne_bytes(word) as u16)
            })
            .collect()
    }

    /// Reads the copy that another generation reads, of the same map.
    pub(crate) fn use_copy_of(&self, other: &Self) {
        self.use_base(other.base());
    }

    /// Puts a table into force, whole. It must fit (`lines`). Packets that
    /// still walk the copy before last have had a rebuild's time to finish.
    pub fn write(&self, image: &ClassImage) {
        assert!(image.lines() <= self.lines, "the caller makes room first");
        let Some(words) = &self.words else { return };
        let _alone = self.writing.lock().expect("no holder of this lock panics");
        let first = 1;
        let second = 1 + u64::from(self.lines);
        let base = if self.base() == first { second } else { first };
        for (at, word) in image.words64().enumerate() {
            if at == image.lines() as usize * 4 {
                fault::point("classes-half-written");
            }
            words
                .at(base as usize * 8 + at)
                .store(word, Ordering::Relaxed);
        }
        fault::point("classes-before-swap");
        self.use_base(base);
    }

    /// Takes everything out of force at once.
    pub fn clear(&self) {
        self.use_base(0);
    }

    /// Whether a class table is in force.
    pub fn is_set(&self) -> bool {
        self.base() != 0
    }

    /// What was dropped since the counters were made, lists and countries that
    /// dropped something.
    pub fn counts(&self) -> Result<Vec<ClassCount>> {
        let mut counts = Vec::new();
        for key in 0..CLASS_COUNTERS {
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
