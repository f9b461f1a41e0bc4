//! Measures what becomes of options between sites, one ordered pair after the other.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    net::IpAddr,
    thread,
    time::Duration,
};

use jiff::Timestamp;
use weir_options::{OptionSpec, SectionError};

use crate::{
    agent::now_ns,
    agent_protocol::{HexBytes, MAX_PACKETS},
    probe_packet::{Carrier, Marker, Path, craft},
    result_file::{Conditions, Ends, Measurement, PairResult},
    site::{Arrived, Site, SiteError},
    verdict::{Tally, compare},
};

/// The pause between two packets: a path that limits rates is not to be measured instead.
const GAP: Duration = Duration::from_millis(1);
/// How often a pair is measured at most while the receiver's socket loses packets.
const ATTEMPTS: usize = 3;

/// An option, or none, on a carrier.
pub type Probe = (Option<OptionSpec>, Carrier);

/// The measurements of each pair.
#[derive(Debug, Clone)]
pub struct ProbePlan {
    /// Options to be sent, each alone.
    pub options: Vec<OptionSpec>,
    /// The protocols that carry them.
    pub carriers: Vec<Carrier>,
    /// Packets of each.
    pub tries: u16,
    /// The destination port of TCP and UDP.
    pub port: u16,
    /// How long the last packets have to arrive.
    pub wait: Duration,
}

impl ProbePlan {
    /// What earlier measurements between these addresses need to have in common with these to
    /// stand for them. `is_told`: nobody but the receiver's host says that `dest` is its.
    pub fn conditions(&self, source: IpAddr, dest: IpAddr, is_told: bool) -> Conditions {
        Conditions {
            port: self.port,
            tries: self.tries,
            ends: Some(Ends {
                source,
                dest,
                told: Some(is_told),
            }),
        }
    }

    /// All probes of a family, those without options first.
    pub fn probes(&self, is_v4: bool) -> Vec<Probe> {
        let mut probes: Vec<_> = self.carriers.iter().map(|c| (None, *c)).collect();
        for option in &self.options {
            let carriers = self.carriers.iter();
            let able = carriers.filter(|carrier| carrier.can_carry(option.layer, is_v4));
            probes.extend(able.map(|carrier| (Some(option.clone()), *carrier)));
        }
        // Without an option there is nothing to be measured.
        match probes.iter().any(|(option, _)| option.is_some()) {
            true => probes,
            false => Vec::new(),
        }
    }

    /// Packets of a pair in the family with the most.
    pub fn packets(&self) -> usize {
        let of = |is_v4| self.probes(is_v4).len() * usize::from(self.tries);
        of(true).max(of(false))
    }

    /// Packets of a pair at most.
    pub const MAX_PACKETS: usize = MAX_PACKETS;
}

/// Why a pair was not measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// A site failed.
    #[error(transparent)]
    Site(#[from] SiteError),
    /// An option does not go into a packet.
    #[error("{0}: {1}")]
    Section(String, SectionError),
}

/// A pair that was measured, with its packets.
pub struct MeasuredPair {
    /// What became of the options.
    pub result: PairResult,
    /// Packets as they were sent, with the time of this host.
    pub sent: Vec<(u64, Vec<u8>)>,
    /// Packets as they arrived, with the time of the receiver.
    pub arrived: Vec<(u64, Vec<u8>)>,
    /// Packets that the sender's own kernel refused, and its first error.
    pub refused: Option<(usize, String)>,
    /// Packets that arrived at the receiver's host and had no room in its agent's socket, of
    /// this measurement or others. Probes of which a packet is missing are left out then.
    pub lost: u64,
}

/// A number that nobody on the path knows beforehand.
fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

/// Measures from one site to another, again if the receiver's socket loses packets.
///
/// # Errors
/// A site fails.
pub fn measure(
    from: &mut Site,
    to: &mut Site,
    path: &Path,
    plan: &ProbePlan,
) -> Result<MeasuredPair, ProbeError> {
    let mut measured = measure_once(from, to, path, plan)?;
    for _ in 1..ATTEMPTS {
        if measured.lost == 0 {
            break;
        }
        measured = measure_once(from, to, path, plan)?;
    }
    Ok(measured)
}

fn measure_once(
    from: &mut Site,
    to: &mut Site,
    path: &Path,
    plan: &ProbePlan,
) -> Result<MeasuredPair, ProbeError> {
    let is_v4 = path.dest.is_ipv4();
    let probes = plan.probes(is_v4);
    let tries = usize::from(plan.tries);
    let run = random();
    let mut packets = Vec::new();
    // Try by try, so that those of an option are not all lost in one moment.
    for (number, (option, carrier)) in (0..tries).flat_map(|_| &probes).enumerate() {
        let marker = Marker {
            run,
            index: number as u16,
        };
        let packet = craft(path, *carrier, option.as_ref(), marker);
        let name = || {
            option
                .as_ref()
                .map_or_else(|| "no option".into(), OptionSpec::to_string)
        };
        packets.push(packet.map_err(|error| ProbeError::Section(name(), error))?);
    }
    to.listen(run)?;
    let sent_at = now_ns();
    let hex = packets.iter().cloned().map(HexBytes).collect();
    let (refused, error) = from.send(hex, GAP)?;
    thread::sleep(plan.wait);
    let Arrived {
        packets: arrived,
        lost,
    } = to.collect()?;
    let (packets, refused) = without_refused(packets, &refused);
    let measurements = tally(probes, &packets, &arrived, run, lost > 0);
    Ok(MeasuredPair {
        result: PairResult {
            from: from.label.clone(),
            to: to.label.clone(),
            is_v4,
            conditions: Some(plan.conditions(path.source, path.dest, to.is_told(is_v4))),
            measured: Timestamp::now().round(jiff::Unit::Second).ok(),
            measurements,
        },
        sent: packets
            .into_iter()
            .flatten()
            .map(|packet| (sent_at, packet))
            .collect(),
        arrived,
        refused: (refused > 0).then(|| (refused, error.unwrap_or_default())),
        lost,
    })
}

/// Packets with a gap for each that the sender's kernel refused, and how many those are.
fn without_refused(packets: Vec<Vec<u8>>, refused: &[usize]) -> (Vec<Option<Vec<u8>>>, usize) {
    let mut packets: Vec<_> = packets.into_iter().map(Some).collect();
    let taken = refused.iter().filter_map(|at| packets.get_mut(*at)?.take());
    let count = taken.count();
    (packets, count)
}

/// What became of the packets that left. A probe of which none left was not measured, nor one
/// of which none arrived, if nothing without an option left beside it: both may be the sender's
/// host. Where the receiver's host has lost some, those of which all arrived were measured.
fn tally(
    probes: Vec<Probe>,
    sent: &[Option<Vec<u8>>],
    arrived: &[(u64, Vec<u8>)],
    run: u32,
    has_lost: bool,
) -> Vec<Measurement> {
    let mut tallies = vec![Tally::default(); probes.len()];
    for (index, packet) in sent.iter().enumerate() {
        tallies[index % probes.len()].sent += u16::from(packet.is_some());
    }
    let mut is_seen = vec![false; sent.len()];
    for (_, packet) in arrived {
        let Some(index) = Marker::find(packet, run).map(|marker| usize::from(marker.index)) else {
            continue;
        };
        // One that comes twice counts once, one that was never sent is somebody's joke.
        let Some(Some(as_sent)) = sent.get(index) else {
            continue;
        };
        if std::mem::replace(&mut is_seen[index], true) {
            continue;
        }
        let probe = index % probes.len();
        match &probes[probe].0 {
            Some(option) => tallies[probe].add(compare(option, as_sent, packet)),
            None => tallies[probe].passed += 1,
        }
    }
    let all: Vec<_> = probes.into_iter().zip(tallies).collect();
    let has_plain = |carrier: Carrier| {
        let mut plain = all.iter().filter(|((option, _), _)| option.is_none());
        plain.any(|((_, of), tally)| *of == carrier && tally.sent > 0)
    };
    let left: Vec<_> = Carrier::ALL.into_iter().filter(|c| has_plain(*c)).collect();
    all.into_iter()
        .filter(|(_, tally)| tally.sent > 0 && (!has_lost || tally.arrived() == tally.sent))
        .filter(|((_, carrier), tally)| tally.arrived() > 0 || left.contains(carrier))
        .map(|((option, carrier), tally)| Measurement {
            option,
            carrier,
            tally,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_did_not_leave_are_not_dropped_on_the_path() {
        let path = Path {
            source: "192.0.2.1".parse().unwrap(),
            dest: "192.0.2.2".parse().unwrap(),
            port: 443,
        };
        let probes: Vec<Probe> = [None, Some("ip:rr"), Some("ip:nop")]
            .map(|text| (text.map(|text| text.parse().unwrap()), Carrier::Udp))
            .into();
        let run = 7;
        // Two tries of each.
        let packets: Vec<_> = (0..6u16)
            .map(|index| {
                let (option, carrier) = &probes[usize::from(index) % 3];
                let marker = Marker { run, index };
                craft(&path, *carrier, option.as_ref(), marker).unwrap()
            })
            .collect();
        // Of ip:rr nothing leaves, of ip:nop one packet; places that are none are nothing.
        let (sent, count) = without_refused(packets.clone(), &[1, 4, 5, 5, 900]);
        assert_eq!(count, 3);
        // One comes twice, one was never sent.
        let arrived = [0, 0, 2, 3, 1].map(|at: usize| (0, packets[at].clone()));
        let measured = tally(probes.clone(), &sent, &arrived, run, false);
        let [plain, nop] = &measured[..] else {
            panic!("{measured:?}")
        };
        assert_eq!((plain.tally.sent, plain.tally.passed), (2, 2));
        assert_eq!((nop.tally.sent, nop.tally.passed), (1, 1));
        assert_eq!(nop.option, Some("ip:nop".parse().unwrap()));
        // Nothing without an option left: nobody knows whether the path passes anything.
        let (sent, _) = without_refused(packets.clone(), &[0, 3]);
        let arrived = [2, 5].map(|at: usize| (0, packets[at].clone()));
        let measured = tally(probes.clone(), &sent, &arrived, run, false);
        assert_eq!(measured.len(), 1, "{measured:?}");
        assert_eq!(measured[0].option, nop.option);
        // What the receiver's host has lost may be any packet that is missing.
        let (sent, _) = without_refused(packets.clone(), &[]);
        let arrived = [0, 3, 1, 2, 5].map(|at: usize| (0, packets[at].clone()));
        let options = |has_lost| {
            let measured = tally(probes.clone(), &sent, &arrived, run, has_lost);
            let options = measured.iter().map(|m| m.option.clone());
            options.collect::<Vec<_>>()
        };
        assert_eq!(options(false).len(), 3);
        assert_eq!(options(true), [None, nop.option.clone()]);
    }
}
