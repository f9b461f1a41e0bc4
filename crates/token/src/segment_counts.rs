//! What became of the segments of one connection whose scope is the payload: how many have a
//! right token, and which have not, and why.

use crate::verify::Refusal;

/// Segments without a right token that are named, of one capture at most; those beyond are counted.
pub const MAX_NAMED: usize = 4096;

/// Whether a segment is as the program of its SYN has sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentVerdict {
    /// The segment has a right token.
    Valid,
    /// Its token proves nothing, or it has none.
    Refused(Refusal),
    /// Less was captured than the MAC is of.
    Shortened,
    /// The capture does not say when it was, by which the epoch would be known.
    NoTime,
}

impl SegmentVerdict {
    /// The word for it, which is that of the kernel's outcome, where it has one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Refused(refusal) => refusal.name(),
            Self::Shortened => "shortened",
            Self::NoTime => "no-time",
        }
    }
}

/// Segments of one direction of a connection, behind its SYN.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SegmentCounts {
    /// Whether a segment has a token: so its sender has the scope "payload".
    is_signed: bool,
    /// The first one without a right token before one had a token at all.
    early: Option<(u64, SegmentVerdict)>,
    counts: Vec<(SegmentVerdict, u64)>,
    named: Vec<(u64, SegmentVerdict)>,
}

impl SegmentCounts {
    /// Counts a segment: the number of its packet, whether it has a token at all, and what
    /// became of it. Names it if it was refused and there is `room` for another one; says how many
    /// are named by that.
    pub fn add(
        &mut self,
        number: u64,
        has_token: bool,
        verdict: SegmentVerdict,
        room: usize,
    ) -> usize {
        match self.counts.iter_mut().find(|(known, _)| *known == verdict) {
            Some((_, count)) => *count += 1,
            None => self.counts.push((verdict, 1)),
        }
        self.is_signed |= has_token;
        let refused = (verdict != SegmentVerdict::Valid).then_some((number, verdict));
        // Before the first token nothing says that there would be one.
        if !self.is_signed {
            self.early = self.early.or(refused);
            return 0;
        }
        let before = self.named.len();
        let new = self.early.take().into_iter().chain(refused);
        self.named.extend(new.take(room));
        self.named.len() - before
    }

    /// Is the scope of the connection the payload?
    pub fn is_signed(&self) -> bool {
        self.is_signed
    }

    /// How many segments there are of each verdict, in the order in which those came up.
    pub fn counts(&self) -> &[(SegmentVerdict, u64)] {
        &self.counts
    }

    /// Segments with a right token.
    pub fn valid(&self) -> u64 {
        let mut valid = self.counts.iter();
        let valid = valid.find(|(verdict, _)| *verdict == SegmentVerdict::Valid);
        valid.map_or(0, |(_, count)| *count)
    }

    /// Segments without one.
    pub fn refused(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum::<u64>() - self.valid()
    }

    /// The numbers of the packets of those without one, as far as they are named.
    pub fn named(&self) -> &[(u64, SegmentVerdict)] {
        &self.named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISSING: SegmentVerdict = SegmentVerdict::Refused(Refusal::Missing);

    #[test]
    fn segments_are_named_once_one_has_a_token() {
        let mut counts = SegmentCounts::default();
        for number in 1..100 {
            assert_eq!(counts.add(number, false, MISSING, 10), 0);
        }
        assert!(!counts.is_signed() && counts.named().is_empty());
        let wrong = SegmentVerdict::Refused(Refusal::WrongMac);
        assert_eq!(counts.add(100, true, wrong, 10), 2);
        assert_eq!(counts.named(), [(1, MISSING), (100, wrong)]);
        assert_eq!(counts.add(101, true, SegmentVerdict::Valid, 8), 0);
        // Without room they are counted.
        assert_eq!(counts.add(102, false, MISSING, 0), 0);
        assert_eq!((counts.valid(), counts.refused()), (1, 101));
        assert_eq!(counts.counts()[0], (MISSING, 100));
    }
}
