//! The file of measurements: a line of JSON a pair of sites and family, after a first line that
//! says what the file is. A line is written when its pair is done, so that what was measured
//! before an interruption stays. The file may be anybody's: it is read with bounds.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufRead, Read, Write},
    net::IpAddr,
    ops::Deref,
};

use jiff::Timestamp;
use nix::fcntl::{Flock, FlockArg};

use serde::{Deserialize, Serialize};

use weir_options::OptionSpec;

use crate::{
    probe_packet::Carrier,
    verdict::{Tally, Verdict},
};

/// Bytes of a line at most.
const MAX_LINE: u64 = 1 << 20;
/// Sites of one measurement, and of a file, at most.
pub const MAX_SITES: usize = 64;
/// Pairs in a file at most: all sites to all, in two families.
pub const MAX_PAIRS: usize = 8192;
/// Lines of a file: each measurement that goes on with it adds one for each pair, and to read
/// one goes through all pairs.
pub const MAX_LINES: usize = 4 * MAX_PAIRS;
/// Measurements of all pairs in a file at most.
pub const MAX_MEASUREMENTS: usize = 1 << 20;
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
    /// There is too much of something.
    #[error("line {line}: more than {limit} {what}")]
    TooMany {
        /// The number of the line, from 1 on.
        line: usize,
        /// So many there may be.
        limit: usize,
        /// What there is too much of.
        what: &'static str,
    },
}

/// A file of results that nobody else writes for as long.
pub struct LockedFile(Flock<File>);

impl LockedFile {
    /// Locks a file; `None`: somebody else has it.
    ///
    /// # Errors
    /// The file system has no locks.
    pub fn lock(file: File) -> io::Result<Option<Self>> {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => Ok(Some(Self(locked))),
            Err((_, nix::Error::EWOULDBLOCK)) => Ok(None),
            Err((_, error)) => Err(error.into()),
        }
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
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
    /// The addresses of the packets; `None`: a weir that did not write them yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<Ends>,
}

/// Between which addresses packets went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ends {
    /// The sender's own address.
    pub source: IpAddr,
    /// The address by which others reach the receiver.
    pub dest: IpAddr,
    /// Whether nobody but the receiver's own host said that `dest` is its address; `None`: a
    /// weir that did not write it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<bool>,
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
    /// The time at which the oldest of the measurements was made; `None`: a weir that did not
    /// write it yet.
    pub measured: Option<Timestamp>,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    measured: Option<Timestamp>,
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
        if let Some(ends) = line.conditions.and_then(|conditions| conditions.ends) {
            for address in [ends.source, ends.dest] {
                if address.is_ipv4() != (line.family == 4) {
                    return Err(format!(
                        "{address} is of another family than {}",
                        line.family
                    ));
                }
            }
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
            measured: line.measured,
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
        let mut sites = BTreeSet::new();
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
                let pair = PairResult::try_from(line).map_err(wrong)?;
                for label in [&pair.from, &pair.to] {
                    if !sites.contains(label) {
                        sites.insert(label.clone());
                    }
                }
                read.add(pair);
                let measurements = read.pairs.iter().map(|pair| pair.measurements.len()).sum();
                for (count, limit, what) in [
                    (number, MAX_LINES, "lines"),
                    (sites.len(), MAX_SITES, "sites"),
                    (read.pairs.len(), MAX_PAIRS, "pairs of sites"),
                    (measurements, MAX_MEASUREMENTS, "measurements"),
                ] {
                    if count > limit {
                        return Err(ResultFileError::TooMany {
                            line: number,
                            limit,
                            what,
                        });
                    }
                }
            }
            read.whole += bytes;
        }
    }

    /// The labels of all sites.
    pub fn sites(&self) -> BTreeSet<&str> {
        let pairs = self.pairs.iter();
        pairs.flat_map(|pair| [&*pair.from, &*pair.to]).collect()
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
                    pair.measured = pair.measured.min(old.measured);
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
        measured: pair.measured,
        measurements: rows.collect(),
    };
    let text = serde_json::to_string(&line).map_err(io::Error::from)?;
    out.write_all(format!("{text}\n").as_bytes())
}

#[cfg(test)]
mod tests;
