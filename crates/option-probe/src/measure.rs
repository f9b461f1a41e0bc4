//! Measures what becomes of options between sites, one ordered pair after the other.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    thread,
    time::Duration,
};

use weir_options::{OptionSpec, SectionError};

use crate::{
    agent::now_ns,
    agent_protocol::{HexBytes, MAX_PACKETS},
    probe_packet::{Carrier, Marker, Path, craft},
    result_file::{Conditions, Measurement, PairResult},
    site::{Site, SiteError},
    verdict::{Tally, compare},
};

/// The pause between two packets: a path that limits rates is not to be measured instead.
const GAP: Duration = Duration::from_millis(1);

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
    /// What earlier measurements need to have in common with these to stand for them.
    pub fn conditions(&self) -> Conditions {
        Conditions {
            port: self.port,
            tries: self.tries,
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
}

/// A number that nobody on the path knows beforehand.
fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

/// Measures from one site to another.
///
/// # Errors
/// A site fails.
pub fn measure(
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
    let arrived = to.collect()?;
    let (packets, refused) = without_refused(packets, &refused);
    let measurements = tally(probes, &packets, &arrived, run);
    Ok(MeasuredPair {
        result: PairResult {
            from: from.label.clone(),
            to: to.label.clone(),
            is_v4,
            conditions: Some(plan.conditions()),
            measurements,
        },
        sent: packets
            .into_iter()
            .flatten()
            .map(|packet| (sent_at, packet))
            .collect(),
        arrived,
        refused: (refused > 0).then(|| (refused, error.unwrap_or_default())),
    })
}

/// Packets with a gap for each that the sender's kernel refused, and how many those are.
fn without_refused(packets: Vec<Vec<u8>>, refused: &[usize]) -> (Vec<Option<Vec<u8>>>, usize) {
    let mut packets: Vec<_> = packets.into_iter().map(Some).collect();
    let taken = refused.iter().filter_map(|at| packets.get_mut(*at)?.take());
    let count = taken.count();
    (packets, count)
}

/// What became of the packets that left. A probe of which none left was not measured.
fn tally(
    probes: Vec<Probe>,
    sent: &[Option<Vec<u8>>],
    arrived: &[(u64, Vec<u8>)],
    run: u32,
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
    let all = probes.into_iter().zip(tallies);
    all.filter(|(_, tally)| tally.sent > 0)
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
        let measured = tally(probes, &sent, &arrived, run);
        let [plain, nop] = &measured[..] else {
            panic!("{measured:?}")
        };
        assert_eq!((plain.tally.sent, plain.tally.passed), (2, 2));
        assert_eq!((nop.tally.sent, nop.tally.passed), (1, 1));
        assert_eq!(nop.option, Some("ip:nop".parse().unwrap()));
    }
}
