//! Where lines end in a log: at a byte, or in UTF-16 (which a mark at its beginning
//! tells, as no other text begins so) at two. A byte of another character that looks
//! like a newline is none: a client could end a line with it.

/// How a file's lines end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Newlines {
    /// At `\n`, in any encoding that has ASCII in it.
    Byte,
    /// At a character of two bytes.
    Utf16 {
        /// The high byte of each character comes first.
        big_endian: bool,
    },
}

impl Newlines {
    /// Of a file that begins with these bytes.
    pub fn of(head: &[u8]) -> Self {
        match head {
            [0xff, 0xfe, ..] => Self::Utf16 { big_endian: false },
            [0xfe, 0xff, ..] => Self::Utf16 { big_endian: true },
            _ => Self::Byte,
        }
    }

    /// Is this character of two bytes a newline?
    pub fn is_newline(self, pair: [u8; 2]) -> bool {
        match self {
            Self::Byte => false,
            Self::Utf16 { big_endian: true } => pair == [0, b'\n'],
            Self::Utf16 { big_endian: false } => pair == [b'\n', 0],
        }
    }

    /// Does a line end behind these bytes, which stand before the byte `end` of the file?
    pub fn ends(self, before: &[u8], end: u64) -> bool {
        match (self, before) {
            (Self::Byte, [.., last]) => *last == b'\n',
            (Self::Utf16 { .. }, [.., first, second]) => {
                end.is_multiple_of(2) && self.is_newline([*first, *second])
            }
            _ => false,
        }
    }

    /// Behind the first newline in bytes that stand at `at` in the file.
    pub fn first_end(self, bytes: &[u8], at: u64) -> Option<usize> {
        match self {
            Self::Byte => memchr::memchr(b'\n', bytes).map(|at| at + 1),
            Self::Utf16 { .. } => self.pair_ends(bytes, at).next(),
        }
    }

    /// Behind the last one.
    pub fn last_end(self, bytes: &[u8], at: u64) -> Option<usize> {
        match self {
            Self::Byte => memchr::memrchr(b'\n', bytes).map(|at| at + 1),
            Self::Utf16 { .. } => self.pair_ends(bytes, at).last(),
        }
    }

    fn pair_ends(self, bytes: &[u8], at: u64) -> impl Iterator<Item = usize> {
        let first = (at % 2) as usize;
        let pairs = bytes.get(first..).unwrap_or_default().chunks_exact(2);
        let is_end = move |(_, pair): &(usize, &[u8])| self.is_newline([pair[0], pair[1]]);
        let ends = pairs.enumerate().filter(is_end);
        ends.map(move |(number, _)| first + 2 * number + 2)
    }
}
