//! Cuts a stream into lines, in bounded memory whatever comes.

use std::io::{self, Read};

/// Bytes asked for at a time.
const PIECE: usize = 64 << 10;

/// The lines of a stream, as they come.
pub struct Lines {
    longest: usize,
    bytes: Vec<u8>,
    /// The rest of a line that was too long, up to its newline.
    skipping: bool,
    /// The number of lines that were cut.
    pub cut: u64,
}

impl Lines {
    /// A reader of lines; of lines longer than `longest`, the beginning is kept.
    pub fn new(longest: usize) -> Self {
        Self {
            longest,
            bytes: Vec::new(),
            skipping: false,
            cut: 0,
        }
    }

    /// Waits for something, and hands over the lines that are whole now,
    /// without their newlines. At the end of the stream also the last one,
    /// though it has no newline; then false.
    pub fn read(
        &mut self,
        input: &mut impl Read,
        each: impl FnOnce(&mut dyn Iterator<Item = &[u8]>),
    ) -> io::Result<bool> {
        let kept = self.bytes.len();
        self.bytes.resize(kept + PIECE, 0);
        let read = loop {
            match input.read(&mut self.bytes[kept..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.bytes.truncate(kept + *read.as_ref().unwrap_or(&0));
        let end = read? == 0;
        let mut begin = 0;
        if self.skipping {
            match self.bytes.iter().position(|byte| *byte == b'\n') {
                Some(newline) => {
                    begin = newline + 1;
                    self.skipping = false;
                }
                None => begin = self.bytes.len(),
            }
        }
        // What stays for the next time begins behind the last newline, which
        // cannot lie in what was kept.
        let rest = &self.bytes[begin..];
        let whole = match rest.iter().rposition(|byte| *byte == b'\n') {
            _ if end => rest.len(),
            Some(newline) => newline + 1,
            None if rest.len() > self.longest => {
                self.skipping = true;
                rest.len()
            }
            None => 0,
        };
        let (longest, cut) = (self.longest, &mut self.cut);
        if whole > 0 {
            let lines = rest[..whole].split_inclusive(|byte| *byte == b'\n');
            each(&mut lines.map(|line| {
                let line = line.strip_suffix(b"\n").unwrap_or(line);
                *cut += u64::from(line.len() > longest);
                &line[..line.len().min(longest)]
            }));
        }
        self.bytes.drain(..begin + whole);
        Ok(!end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives what it has in pieces of some length.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let length = self.1.min(self.0.len()).min(into.len());
            let (now, later) = self.0.split_at(length);
            into[..length].copy_from_slice(now);
            self.0 = later;
            Ok(length)
        }
    }

    fn lines(text: &[u8], piece: usize, longest: usize) -> (Vec<Vec<u8>>, u64) {
        let mut input = Pieces(text, piece);
        let mut lines = Lines::new(longest);
        let mut all = Vec::new();
        while lines
            .read(&mut input, |some| all.extend(some.map(<[u8]>::to_vec)))
            .unwrap()
        {
            assert!(lines.bytes.len() <= longest);
        }
        (all, lines.cut)
    }

    #[test]
    fn lines_are_the_same_however_the_stream_comes() {
        let text = b"one\n\nthree\r\nfour \0\xff\nlast";
        for piece in 1..text.len() + 1 {
            let (lines, cut) = lines(text, piece, 64);
            let expected: [&[u8]; 5] = [b"one", b"", b"three\r", b"four \0\xff", b"last"];
            assert_eq!(lines, expected, "pieces of {piece}");
            assert_eq!(cut, 0);
        }
        assert!(lines(b"", 1, 64).0.is_empty());
        assert_eq!(lines(b"\n", 1, 64).0, [b""]);
    }

    #[test]
    fn of_a_long_line_the_beginning_is_kept_and_the_rest_is_no_line() {
        let text = [&[b'x'; 100_000][..], b"\nshort\n", &[b'y'; 11], b"\n"].concat();
        for piece in [1, 7, 64, 4096, 1 << 20] {
            let (lines, cut) = lines(&text, piece, 10);
            let expected: [&[u8]; 3] = [b"xxxxxxxxxx", b"short", b"yyyyyyyyyy"];
            assert_eq!(lines, expected, "pieces of {piece}");
            assert_eq!(cut, 2);
        }
    }
}
