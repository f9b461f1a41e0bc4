//! The file of measurements: a line of JSON a pair of sites and family, after a first line that
//! says what the file is. A line is written when its pair is done, so that what was measured
//! before an interruption stays. The file may be anybody's: it is read with bounds.

use std::io::{self, BufRead, Read, Write};

use serde::{Deserialize, Serialize};

use weir_options::OptionSpec;

use crate::{
    probe_packet::Carrier,
    verdict::{Tally, Verdict},
};

/// Bytes of a line at most.
const MAX_LINE: u64 = 1 << 20;
/// Pairs in a file at most: 64 sites, all to all, in two families.
pub const MAX_PAIRS: usize = 8192;
/// Measurements of a pair at most.
pub const MAX_ROWS: usize = 1024;
/// Characters of a site's name at most.
pub const MAX_LABEL: usize = 64;

/// The version of the form.
const VERSION: u32 = 1;

/// Why a file is not one of measurements.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResultFileError {
    /// The file cannot be read.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// The first line is another one.
    #[error(
        "line 1: it is no file of weir options probe, or of another version; wanted: {{\"weir_options_probe\":{VERSION}}}"
    )]
    Head,
    /// A line is malformed.
    #[error("line {line}: {why}")]
    Line {
        /// The number of the line, from 1 on.
        line: usize,
        /// The mistake in the line.
        why: String,
    },
    /// There are too many pairs.
    #[error("line {0}: more than {MAX_PAIRS} pairs")]
    TooMany(usize),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    weir_options_probe: u32,
}

/// One option on one carrier, with what became of its packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measurement {
    /// The option; `None`: packets without any.
    pub option: Option<OptionSpec>,
    /// The protocol of the packets.
    pub carrier: Carrier,
    /// The packets by what became of them.
    pub tally: Tally,
}

/// What measurements have to have in common to be of one result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// The destination port of TCP and UDP.
    pub port: u16,
    /// Packets of each kind.
    pub tries: u16,
}

/// All measurements from one site to another in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairResult {
    /// The label of the sender.
    pub from: String,
    /// The label of the receiver.
    pub to: String,
    /// Whether by IPv4; else IPv6.
    pub is_v4: bool,
    /// The conditions of the measurements; `None`: a weir that did not write it yet.
    pub conditions: Option<Conditions>,
    /// The measurements, each option and carrier once.
    pub measurements: Vec<Measurement>,
}

impl PairResult {
    /// Packets of this carrier without options.
    pub fn plain(&self, carrier: Carrier) -> Tally {
        let mut plain = self.measurements.iter().filter(|m| m.option.is_none());
        plain
            .find(|m| m.carrier == carrier)
            .map_or(Tally::default(), |m| m.tally)
    }

    /// The verdict about an option on a carrier; `None`: it was not measured.
    pub fn verdict(&self, option: &OptionSpec, carrier: Carrier) -> Option<Verdict> {
        let is_it = |m: &&Measurement| m.option.as_ref() == Some(option) && m.carrier == carrier;
        let measured = self.measurements.iter().find(is_it)?;
        Some(measured.tally.verdict(&self.plain(carrier)))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PairLine {
    from: String,
    to: String,
    family: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    conditions: Option<Conditions>,
    measurements: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    option: Option<String>,
    carrier: String,
    sent: u16,
    passed: u16,
    stripped: u16,
    altered: u16,
}

/// Whether a text can be the label of a site.
pub fn is_label(text: &str) -> bool {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "._-@:".contains(c);
    !text.is_empty() && text.len() <= MAX_LABEL && text.chars().all(is_fine)
}

impl TryFrom<PairLine> for PairResult {
    type Error = String;

    fn try_from(line: PairLine) -> Result<Self, String> {
        for label in [&line.from, &line.to] {
            if !is_label(label) {
                return Err(format!("{label:?} is no name of a site"));
            }
        }
        if !matches!(line.family, 4 | 6) {
            return Err(format!("family is {}; allowed: 4, 6", line.family));
        }
        if line.measurements.len() > MAX_ROWS {
            return Err(format!("more than {MAX_ROWS} measurements"));
        }
        let mut measurements: Vec<Measurement> = Vec::new();
        for row in line.measurements {
            let option = match &row.option {
                None => None,
                Some(text) => Some(
                    text.parse::<OptionSpec>()
                        .map_err(|error| format!("option {text:?}: {error}"))?,
                ),
            };
            let carrier: Carrier = row
                .carrier
                .parse()
                .map_err(|error| format!("carrier {:?}: {error}", row.carrier))?;
            let tally = Tally {
                sent: row.sent,
                passed: row.passed,
                stripped: row.stripped,
                altered: row.altered,
            };
            if tally.arrived() > tally.sent {
                return Err(format!(
                    "{} packets arrived of {} that were sent",
                    tally.arrived(),
                    tally.sent
                ));
            }
            let measured = |m: &Measurement| m.option == option && m.carrier == carrier;
            if measurements.iter().any(measured) {
                return Err(format!(
                    "{} on {carrier} is there twice",
                    row.option.as_deref().unwrap_or("no option")
                ));
            }
            measurements.push(Measurement {
                option,
                carrier,
                tally,
            });
        }
        Ok(Self {
            from: line.from,
            to: line.to,
            is_v4: line.family == 4,
            conditions: line.conditions,
            measurements,
        })
    }
}

/// What a file has.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ResultFile {
    /// The pairs that are done, in the order of the file; of one that is there twice, the last.
    pub pairs: Vec<PairResult>,
    /// Bytes of the whole lines: what is behind them is the beginning of one that was being
    /// written when its writer was ended.
    pub whole: u64,
    /// Whether there is such a beginning.
    pub is_cut: bool,
}

impl ResultFile {
    /// Reads a file to its end.
    ///
    /// # Errors
    /// It cannot be read, is another file, or a whole line of it is malformed.
    pub fn read(file: impl Read) -> Result<Self, ResultFileError> {
        let mut file = io::BufReader::new(file);
        let mut read = Self::default();
        let mut number = 0;
        loop {
            let mut line = Vec::new();
            let bytes = (&mut file).take(MAX_LINE).read_until(b'\n', &mut line)? as u64;
            number += 1;
            if bytes == 0 {
                return Ok(read);
            }
            let wrong = |why: String| ResultFileError::Line { line: number, why };
            if line.last() != Some(&b'\n') {
                if bytes == MAX_LINE {
                    return Err(wrong(format!("it has more than {MAX_LINE} bytes")));
                }
                // What is cut goes: of the first line it has to be ours.
                if number == 1 && !head_line()?.as_bytes().starts_with(&line) {
                    return Err(ResultFileError::Head);
                }
                read.is_cut = true;
                return Ok(read);
            }
            if number == 1 {
                let head = serde_json::from_slice::<Head>(&line);
                if !head.is_ok_and(|head| head.weir_options_probe == VERSION) {
                    return Err(ResultFileError::Head);
                }
            } else {
                let line: PairLine =
                    serde_json::from_slice(&line).map_err(|error| wrong(error.to_string()))?;
                read.add(PairResult::try_from(line).map_err(wrong)?);
                if read.pairs.len() > MAX_PAIRS {
                    return Err(ResultFileError::TooMany(number));
                }
            }
            read.whole += bytes;
        }
    }

    /// Adds a pair. Of an earlier result of it, under the same conditions, stays what is not
    /// measured again, unless it means something else beside the packets without options now.
    pub fn add(&mut self, mut pair: PairResult) {
        let is_it = |p: &PairResult| p.from == pair.from && p.to == pair.to;
        let mut all = self.pairs.iter();
        let before = all.position(|p| is_it(p) && p.is_v4 == pair.is_v4);
        let before = before.map(|at| self.pairs.remove(at));
        for old in before.iter().filter(|p| p.conditions == pair.conditions) {
            for m in &old.measurements {
                let mut there = pair.measurements.iter();
                let is_new = |n: &Measurement| n.option == m.option && n.carrier == m.carrier;
                let verdict = |of: &PairResult| m.tally.verdict(&of.plain(m.carrier));
                if pair.measurements.len() < MAX_ROWS
                    && !there.any(is_new)
                    && (m.option.is_none() || verdict(old) == verdict(&pair))
                {
                    pair.measurements.push(m.clone());
                }
            }
        }
        self.pairs.push(pair);
    }

    /// The result of a pair, if it has all of these measurements under these conditions.
    pub fn find(
        &self,
        from: &str,
        to: &str,
        is_v4: bool,
        conditions: Conditions,
        wanted: &[(Option<OptionSpec>, Carrier)],
    ) -> Option<&PairResult> {
        let mut pairs = self.pairs.iter();
        let pair = pairs.find(|p| p.from == from && p.to == to && p.is_v4 == is_v4)?;
        if pair.conditions != Some(conditions) {
            return None;
        }
        let has = |(option, carrier): &(Option<OptionSpec>, Carrier)| {
            let mut all = pair.measurements.iter();
            all.any(|m| m.option == *option && m.carrier == *carrier)
        };
        wanted.iter().all(has).then_some(pair)
    }
}

fn head_line() -> io::Result<String> {
    let head = Head {
        weir_options_probe: VERSION,
    };
    let text = serde_json::to_string(&head).map_err(io::Error::from)?;
    Ok(format!("{text}\n"))
}

/// Writes the first line of a file.
///
/// # Errors
/// Those of the writer.
pub fn write_head(out: &mut impl Write) -> io::Result<()> {
    out.write_all(head_line()?.as_bytes())
}

/// Writes the line of a pair, in one piece.
///
/// # Errors
/// Those of the writer.
pub fn write_pair(out: &mut impl Write, pair: &PairResult) -> io::Result<()> {
    let rows = pair.measurements.iter().map(|m| Row {
        option: m.option.as_ref().map(ToString::to_string),
        carrier: m.carrier.name().to_owned(),
        sent: m.tally.sent,
        passed: m.tally.passed,
        stripped: m.tally.stripped,
        altered: m.tally.altered,
    });
    let line = PairLine {
        from: pair.from.clone(),
        to: pair.to.clone(),
        family: if pair.is_v4 { 4 } else { 6 },
        conditions: pair.conditions,
        measurements: rows.collect(),
    };
    let text = serde_json::to_string(&line).map_err(io::Error::from)?;
    out.write_all(format!("{text}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONDITIONS: Conditions = Conditions {
        port: 443,
        tries: 3,
    };

    fn pair(to: &str) -> PairResult {
        let measurement = |option: Option<&str>, passed| Measurement {
            option: option.map(|text| text.parse().unwrap()),
            carrier: Carrier::Icmp,
            tally: Tally {
                sent: 3,
                passed,
                ..Tally::default()
            },
        };
        PairResult {
            from: "west".into(),
            to: to.into(),
            is_v4: true,
            conditions: Some(CONDITIONS),
            measurements: vec![
                measurement(None, 3),
                measurement(Some("ip:rr"), 0),
                measurement(Some("ip:94=aabb"), 3),
            ],
        }
    }

    fn file(pairs: &[PairResult]) -> Vec<u8> {
        let mut out = Vec::new();
        write_head(&mut out).unwrap();
        for pair in pairs {
            write_pair(&mut out, pair).unwrap();
        }
        out
    }

    #[test]
    fn what_is_written_is_read() {
        let pairs = [pair("east"), pair("north")];
        let bytes = file(&pairs);
        let read = ResultFile::read(&bytes[..]).unwrap();
        assert_eq!(read.pairs, pairs);
        assert_eq!((read.whole, read.is_cut), (bytes.len() as u64, false));
        let route = "ip:rr".parse().unwrap();
        assert_eq!(
            pairs[0].verdict(&route, Carrier::Icmp),
            Some(Verdict::Dropped)
        );
        assert_eq!(pairs[0].verdict(&route, Carrier::Udp), None);
        let wanted = [(Some(route), Carrier::Icmp)];
        assert!(
            read.find("west", "east", true, CONDITIONS, &wanted)
                .is_some()
        );
        assert!(
            read.find("west", "east", false, CONDITIONS, &wanted)
                .is_none()
        );
        let more = [(None, Carrier::Udp)];
        assert!(read.find("west", "east", true, CONDITIONS, &more).is_none());
    }

    #[test]
    fn a_file_that_is_cut_anywhere_keeps_its_whole_lines() {
        let pairs = [pair("east"), pair("north")];
        let bytes = file(&pairs);
        let ends: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at] == b'\n').collect();
        for cut in 0..=bytes.len() {
            let read = ResultFile::read(&bytes[..cut]).unwrap();
            let whole = ends.iter().filter(|end| **end < cut).count();
            assert_eq!(read.pairs.len(), whole.saturating_sub(1), "{cut}");
            assert_eq!(read.is_cut, read.whole != cut as u64);
        }
        // A pair that is measured again counts as it was measured last.
        let again = [pair("east"), pair("north"), pair("east")];
        assert_eq!(ResultFile::read(&file(&again)[..]).unwrap().pairs.len(), 2);
    }

    #[test]
    fn a_foreign_file_without_the_end_of_a_line_is_no_cut_one() {
        for foreign in [
            "n",
            "notes of mine",
            "{\"weir_options_probe\":2}",
            "{\"a\":1}",
        ] {
            let error = ResultFile::read(foreign.as_bytes()).unwrap_err();
            assert!(matches!(error, ResultFileError::Head), "{foreign}: {error}");
        }
        let head = ResultFile::read(&b"{\"weir_opt"[..]).unwrap();
        assert_eq!((head.whole, head.is_cut), (0, true));
    }

    #[test]
    fn other_ports_and_tries_are_other_measurements() {
        let mut file = ResultFile::default();
        file.add(pair("east"));
        let wanted = [(Some("ip:rr".parse().unwrap()), Carrier::Icmp)];
        let found = |file: &ResultFile, port, tries| {
            let conditions = Conditions { port, tries };
            file.find("west", "east", true, conditions, &wanted)
                .is_some()
        };
        assert!(found(&file, 443, 3));
        assert!(!found(&file, 80, 3));
        assert!(!found(&file, 443, 4));
        // Of other conditions nothing stays, so that a table is of one measurement.
        let mut other = pair("east");
        other.conditions = Some(Conditions { port: 80, tries: 3 });
        other.measurements.truncate(2);
        file.add(other.clone());
        assert_eq!(file.pairs, [other]);
        // A line of an earlier weir is read, and is measured again.
        let line = r#"{"from":"west","to":"east","family":4,"measurements":[]}"#;
        let old = format!("{}{line}\n", head_line().unwrap());
        let old = ResultFile::read(old.as_bytes()).unwrap();
        assert_eq!(old.pairs[0].conditions, None);
        assert!(old.find("west", "east", true, CONDITIONS, &[]).is_none());
    }

    #[test]
    fn measurements_of_other_options_stay() {
        let with = |text: &str, plain, passed| {
            let mut pair = pair("east");
            pair.measurements.truncate(2);
            pair.measurements[0].tally.passed = plain;
            pair.measurements[1].option = Some(text.parse().unwrap());
            pair.measurements[1].tally.passed = passed;
            pair
        };
        let verdict = |file: &ResultFile, text: &str| {
            file.pairs[0].verdict(&text.parse().unwrap(), Carrier::Icmp)
        };
        let mut file = ResultFile::default();
        file.add(with("ip:rr", 3, 0));
        file.add(with("ip:nop", 3, 3));
        assert_eq!(file.pairs[0].measurements.len(), 3);
        assert_eq!(verdict(&file, "ip:rr"), Some(Verdict::Dropped));
        assert_eq!(verdict(&file, "ip:nop"), Some(Verdict::Pass));
        // Where there was no path, nothing was dropped, although there is one now.
        file.add(with("ip:ts", 0, 0));
        assert_eq!(verdict(&file, "ip:rr"), None);
        assert_eq!(verdict(&file, "ip:ts"), Some(Verdict::NoPath));
        file.add(with("ip:rr", 3, 0));
        assert_eq!(verdict(&file, "ip:ts"), None);
        assert_eq!(verdict(&file, "ip:nop"), Some(Verdict::Pass));
    }

    #[test]
    fn mistakes_are_named_by_line() {
        let good = String::from_utf8(file(&[pair("east")])).unwrap();
        for (from, to, said) in [
            (
                "\"weir_options_probe\":1",
                "\"weir_options_probe\":2",
                "line 1: it is no file",
            ),
            (
                "\"family\":4",
                "\"family\":5",
                "line 2: family is 5; allowed: 4, 6",
            ),
            (
                "\"to\":\"east\"",
                "\"to\":\"ea st\"",
                "line 2: \"ea st\" is no name",
            ),
            (
                "ip:rr",
                "ip:no",
                "line 2: option \"ip:no\": ip has no option",
            ),
            (
                "\"icmp\"",
                "\"ICMP\"",
                "line 2: carrier \"ICMP\": allowed: icmp, udp, tcp",
            ),
            (
                "\"passed\":3",
                "\"passed\":4",
                "line 2: 4 packets arrived of 3",
            ),
            (
                "ip:exp-94=aabb",
                "ip:rr",
                "line 2: ip:rr on icmp is there twice",
            ),
            (
                "\"sent\":3",
                "\"sent\":3,\"more\":1",
                "unknown field `more`",
            ),
            ("\"sent\":3", "\"sent\":70000", "line 2: "),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good);
            let error = ResultFile::read(bad.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        let long = format!("{good}{}", " ".repeat(1 << 20));
        assert!(ResultFile::read(long.as_bytes()).is_err());
    }
}
