//! Sets of characters, as Python's `re` forms them: what `\w`, `\d` and `\s` hold there,
//! ranges, negation, letters of both cases.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, HirKind};

/// Which characters fit at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CharSet {
    /// Bit by code.
    ascii: u128,
    /// The others: first and last, in order, apart from each other. Sets that are equal
    /// there share them.
    wide: Ranges,
}

/// The first and the last character of each.
type Ranges = Arc<[(char, char)]>;

/// The most ranges beyond ASCII that are shared; those of further sets are their own.
const MAX_SHARED: usize = 256;

/// `\w` alone has some 800 ranges, and an expression with a host a dozen sets with them.
fn shared(wide: Vec<(char, char)>) -> Ranges {
    static KNOWN: Mutex<BTreeSet<Ranges>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(there) = known.get(&wide[..]) {
        return there.clone();
    }
    let new: Ranges = wide.into();
    if known.len() < MAX_SHARED {
        known.insert(new.clone());
    }
    new
}

impl CharSet {
    /// The set of the characters of a finished class.
    pub fn new(class: &ClassUnicode) -> Self {
        let mut ascii = 0;
        let mut wide = Vec::new();
        for range in class.ranges() {
            for c in range.start() as u32..=(range.end() as u32).min(0x7f) {
                ascii |= 1 << c;
            }
            if range.end() >= '\u{80}' {
                wide.push((range.start().max('\u{80}'), range.end()));
            }
        }
        Self {
            ascii,
            wide: shared(wide),
        }
    }

    /// Whether the set has the character.
    #[inline]
    pub fn has(&self, c: char) -> bool {
        match (c as u32) < 0x80 {
            true => self.has_ascii(c as u8),
            false => {
                let behind = self.wide.partition_point(|(first, _)| *first <= c);
                behind > 0 && c <= self.wide[behind - 1].1
            }
        }
    }

    /// The same of a byte below 128.
    #[inline]
    pub fn has_ascii(&self, byte: u8) -> bool {
        self.ascii >> (byte & 0x7f) & 1 == 1
    }

    /// The characters below 128, bit by code.
    pub fn ascii(&self) -> u128 {
        self.ascii
    }

    /// Whether the set has a character beyond 127.
    pub fn has_wide(&self) -> bool {
        !self.wide.is_empty()
    }

    /// The byte of ASCII that it lacks, where it lacks nothing else.
    pub fn all_but(&self) -> Option<u8> {
        let has_all_wide = matches!(
            &*self.wide,
            [('\u{80}', '\u{10ffff}')] | [('\u{80}', '\u{d7ff}'), ('\u{e000}', '\u{10ffff}')]
        );
        let lacks = !self.ascii;
        (has_all_wide && lacks.count_ones() == 1).then(|| lacks.trailing_zeros() as u8)
    }

    /// The only one that it holds.
    pub fn single(&self) -> Option<char> {
        match (self.ascii.count_ones(), &*self.wide) {
            (1, []) => Some(self.ascii.trailing_zeros() as u8 as char),
            (0, [(first, last)]) if first == last => Some(*first),
            _ => None,
        }
    }
}

/// A class of Python's that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// `\w`
    Word,
    /// `\d`
    Digit,
    /// `\s`
    Space,
}

/// What such a name stands for, in texts or (with `(?a)`) in ASCII alone.
pub fn named(name: Named, ascii: bool) -> ClassUnicode {
    if ascii {
        let ranges: &[(char, char)] = match name {
            Named::Word => &[('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')],
            Named::Digit => &[('0', '9')],
            Named::Space => &[('\t', '\r'), (' ', ' ')],
        };
        return of_ranges(ranges);
    }
    static CLASSES: OnceLock<[ClassUnicode; 3]> = OnceLock::new();
    let classes = CLASSES.get_or_init(|| {
        [
            // Marks and joiners are no part of a word there.
            parsed(r"[\p{L}\p{N}_]"),
            parsed(r"\p{Nd}"),
            // The separators of ASCII are blanks there.
            parsed(r"[\p{White_Space}\x1c-\x1f]"),
        ]
    });
    classes[name as usize].clone()
}

/// A class of these ranges.
pub fn of_ranges(ranges: &[(char, char)]) -> ClassUnicode {
    ClassUnicode::new(ranges.iter().map(|(a, b)| ClassUnicodeRange::new(*a, *b)))
}

/// Letters in both cases.
pub fn fold_case(class: &mut ClassUnicode) {
    class.case_fold_simple();
}

/// Is it a part of a word, for `\b`?
pub fn is_word(c: char, ascii: bool) -> bool {
    static WORD: OnceLock<CharSet> = OnceLock::new();
    if c.is_ascii() {
        return c.is_ascii_alphanumeric() || c == '_';
    }
    !ascii
        && WORD
            .get_or_init(|| CharSet::new(&named(Named::Word, false)))
            .has(c)
}

fn parsed(class: &str) -> ClassUnicode {
    let hir = regex_syntax::parse(class).expect("it is written here");
    match hir.into_kind() {
        HirKind::Class(Class::Unicode(class)) => class,
        _ => unreachable!("a class is parsed to a class"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_pythons_do() {
        let word = CharSet::new(&named(Named::Word, false));
        for c in ['a', 'Z', '_', '0', 'ä', '日', '²', '٣'] {
            assert!(word.has(c), "{c}");
        }
        for c in ['-', ' ', '\u{301}', '\u{200d}', '‿'] {
            assert!(!word.has(c), "{c}");
        }
        let space = CharSet::new(&named(Named::Space, false));
        for c in [' ', '\x0b', '\x1c', '\x1f', '\u{85}', '\u{a0}', '\u{2028}'] {
            assert!(space.has(c), "{c:?}");
        }
        assert!(!space.has('\u{200b}'));
        assert!(!CharSet::new(&named(Named::Space, true)).has('\x1c'));
        let mut not_a = of_ranges(&[('a', 'a')]);
        fold_case(&mut not_a);
        not_a.negate();
        let not_a = CharSet::new(&not_a);
        assert!(!not_a.has('A') && not_a.has('b') && not_a.has('\u{10ffff}'));
        assert_eq!(CharSet::new(&of_ranges(&[('x', 'x')])).single(), Some('x'));
    }
}
