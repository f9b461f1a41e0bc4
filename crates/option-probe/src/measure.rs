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
    let (left, error) = from.send(hex, GAP)?;
    thread::sleep(plan.wait);
    let arrived = to.collect()?;
    let mut tallies = vec![
        Tally {
            sent: plan.tries,
            ..Tally::default()
        };
        probes.len()
    ];
    let mut is_seen = vec![false; packets.len()];
    for (_, packet) in &arrived {
        let Some(index) = Marker::find(packet, run).map(|marker| usize::from(marker.index)) else {
            continue;
        };
        // One that comes twice counts once, one that was never sent is somebody's joke.
        let Some(seen) = is_seen.get_mut(index).filter(|seen| !**seen) else {
            continue;
        };
        *seen = true;
        let probe = index % probes.len();
        match &probes[probe].0 {
            Some(option) => tallies[probe].add(compare(option, &packets[index], packet)),
            None => tallies[probe].passed += 1,
        }
    }
    let measurements = probes.into_iter().zip(tallies);
    let measurements = measurements.map(|((option, carrier), tally)| Measurement {
        option,
        carrier,
        tally,
    });
    let refused = packets.len().saturating_sub(left);
    Ok(MeasuredPair {
        result: PairResult {
            from: from.label.clone(),
            to: to.label.clone(),
            is_v4,
            conditions: Some(plan.conditions()),
            measurements: measurements.collect(),
        },
        sent: packets
            .into_iter()
            .map(|packet| (sent_at, packet))
            .collect(),
        arrived,
        refused: (refused > 0).then(|| (refused, error.unwrap_or_default())),
    })
}
