//! Measurements shown: a table of what options fare how often, and for each option a matrix of
//! senders and receivers, as text and as SVG.

use std::{collections::BTreeSet, fmt::Write as _};

use weir_options::OptionSpec;

use crate::{probe_packet::Carrier, result_file::PairResult, verdict::Verdict};

/// An option on a carrier in a family: what a row or matrix is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// Whether by IPv4; else IPv6.
    pub is_v4: bool,
    /// The option that was sent.
    pub option: OptionSpec,
    /// The protocol of the packets.
    pub carrier: Carrier,
}

impl Subject {
    /// The subject in words: `ip:rr on icmp, IPv4`.
    pub fn title(&self) -> String {
        let family = if self.is_v4 { "IPv4" } else { "IPv6" };
        format!("{} on {}, {family}", self.option, self.carrier)
    }
}

/// Measurements as they are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix<'r> {
    pairs: &'r [PairResult],
    sites: Vec<&'r str>,
    subjects: Vec<Subject>,
}

impl<'r> Matrix<'r> {
    /// The matrices of these pairs.
    pub fn new(pairs: &'r [PairResult]) -> Self {
        let sites: BTreeSet<_> = pairs.iter().flat_map(|p| [&*p.from, &*p.to]).collect();
        let subjects: BTreeSet<_> = pairs
            .iter()
            .flat_map(|pair| {
                pair.measurements.iter().filter_map(|m| {
                    Some(Subject {
                        is_v4: pair.is_v4,
                        option: m.option.clone()?,
                        carrier: m.carrier,
                    })
                })
            })
            .collect();
        Self {
            pairs,
            sites: sites.into_iter().collect(),
            subjects: subjects.into_iter().collect(),
        }
    }

    /// What rows and matrices are about, in their order.
    pub fn subjects(&self) -> &[Subject] {
        &self.subjects
    }

    /// The verdict about a subject from one site to another.
    fn verdict(&self, subject: &Subject, from: &str, to: &str) -> Option<Verdict> {
        let is_it = |p: &&PairResult| p.from == from && p.to == to && p.is_v4 == subject.is_v4;
        let pair = self.pairs.iter().find(is_it)?;
        pair.verdict(&subject.option, subject.carrier)
    }

    /// How many ordered pairs have each verdict about a subject, in the order of
    /// [`Verdict::ALL`].
    pub fn counts(&self, subject: &Subject) -> [usize; Verdict::ALL.len()] {
        let mut counts = [0; Verdict::ALL.len()];
        for pair in self.pairs.iter().filter(|p| p.is_v4 == subject.is_v4) {
            let verdict = pair.verdict(&subject.option, subject.carrier);
            for (count, one) in counts.iter_mut().zip(Verdict::ALL) {
                *count += usize::from(verdict == Some(one));
            }
        }
        counts
    }

    /// A matrix for each subject: senders in rows, receivers in columns, a letter each.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let width = self.sites.iter().map(|site| site.len()).max().unwrap_or(0);
        for subject in &self.subjects {
            let _ = writeln!(text, "{}", subject.title());
            for (row, from) in self.sites.iter().enumerate() {
                let _ = write!(text, "  {:2} {from:width$}", row + 1);
                for to in &self.sites {
                    let letter = match self.verdict(subject, from, to) {
                        Some(verdict) => verdict.letter(),
                        None => '.',
                    };
                    let _ = write!(text, " {letter}");
                }
                text.push('\n');
            }
        }
        let letters = Verdict::ALL.map(|v| format!("{} {v}", v.letter()));
        let _ = writeln!(
            text,
            "from rows to columns, in the same order: {}",
            letters.join(", ")
        );
        text
    }

    /// The matrices as an SVG image, side by side.
    pub fn svg(&self) -> String {
        const CELL: usize = 14;
        const ACROSS: usize = 4;
        let sites = self.sites.len();
        let label = 8 * self
            .sites
            .iter()
            .map(|site| site.len())
            .max()
            .unwrap_or(0)
            .min(16);
        let (wide, high) = (label + CELL * sites + 40, CELL * sites + 52);
        let wide = wide.max(230);
        let rows = self.subjects.len().div_ceil(ACROSS).max(1);
        let (width, height) = (wide * ACROSS, high * rows + 30);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        for (number, subject) in self.subjects.iter().enumerate() {
            let (x, y) = (10 + number % ACROSS * wide, 10 + number / ACROSS * high);
            let title = shortened(&subject.title(), 36);
            let _ = writeln!(svg, "<text x=\"{x}\" y=\"{}\">{title}</text>", y + 12);
            for (row, from) in self.sites.iter().enumerate() {
                let top = y + 20 + row * CELL;
                let name = shortened(from, 16);
                let _ = writeln!(svg, "<text x=\"{x}\" y=\"{}\">{name}</text>", top + 11);
                for (column, to) in self.sites.iter().enumerate() {
                    let Some(verdict) = self.verdict(subject, from, to) else {
                        continue;
                    };
                    let left = x + label + column * CELL;
                    let _ = writeln!(
                        svg,
                        "<rect x=\"{left}\" y=\"{top}\" width=\"{0}\" height=\"{0}\" fill=\"{1}\"><title>{2} to {3}: {verdict}</title></rect>",
                        CELL - 1,
                        colour(verdict),
                        escaped(from),
                        escaped(to),
                    );
                }
            }
        }
        for (number, verdict) in Verdict::ALL.into_iter().enumerate() {
            let (x, y) = (10 + number * 110, high * rows + 10);
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{}\" y=\"{}\">{verdict}</text>",
                colour(verdict),
                x + 18,
                y + 10,
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn colour(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "#2c7bb6",
        Verdict::Stripped => "#fdae61",
        Verdict::Altered => "#ffdf66",
        Verdict::Dropped => "#d7191c",
        Verdict::Mixed => "#b294c7",
        Verdict::NoPath => "#bbbbbb",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn shortened(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => escaped(&text.chars().take(most - 1).chain(['…']).collect::<String>()),
        false => escaped(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{result_file::Measurement, verdict::Tally};

    fn pair(from: &str, to: &str, passed: u16, stripped: u16) -> PairResult {
        let measurement = |option: Option<&str>, passed, stripped| Measurement {
            option: option.map(|text| text.parse().unwrap()),
            carrier: Carrier::Udp,
            tally: Tally {
                sent: 2,
                passed,
                stripped,
                altered: 0,
            },
        };
        PairResult {
            from: from.into(),
            to: to.into(),
            is_v4: true,
            conditions: None,
            measured: None,
            measurements: vec![
                measurement(None, 2, 0),
                measurement(Some("ip:rr"), passed, stripped),
            ],
        }
    }

    #[test]
    fn senders_are_rows_and_receivers_columns() {
        let pairs = [
            pair("a", "b", 2, 0),
            pair("b", "a", 0, 0),
            pair("a", "c", 0, 2),
        ];
        let matrix = Matrix::new(&pairs);
        let [subject] = matrix.subjects() else {
            panic!("{:?}", matrix.subjects())
        };
        assert_eq!(subject.title(), "ip:rr on udp, IPv4");
        assert_eq!(matrix.counts(subject), [1, 1, 0, 1, 0, 0]);
        let text = matrix.text();
        assert!(
            text.starts_with("ip:rr on udp, IPv4\n   1 a . P S\n   2 b D . .\n   3 c . . .\n"),
            "{text}"
        );
        let svg = matrix.svg();
        for part in [
            "a to b: pass",
            "b to a: dropped",
            "a to c: stripped",
            "</svg>",
        ] {
            assert_eq!(svg.matches(part).count(), 1, "{part}");
        }
        assert!(Matrix::new(&[]).svg().ends_with("</svg>\n"));
    }
}
