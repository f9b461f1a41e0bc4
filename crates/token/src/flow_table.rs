//! Connections of a capture, and which of them proved who began them: what a verifier that
//! had seen these packets would have said of each.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use weir_identity::Digest;

use crate::{
    TokenOption, epoch_at, find,
    verify::{Refusal, Segment, Verifier},
};

/// Connections of one capture at most; those beyond it are counted.
pub const MAX_FLOWS: usize = 1 << 20;

/// Address and port of one end.
pub type Endpoint = (IpAddr, u16);

/// Whether a connection proved who began it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowVerdict {
    /// The connection proved to be of this identity.
    Valid(Digest),
    /// The SYN proves nothing, for this reason.
    Refused(Refusal),
    /// Its SYN was valid, and comes again after the connection has been used.
    Replayed,
    /// Its SYN is not in the capture.
    NoSyn,
    /// Less of its SYN was captured than there was.
    Shortened,
    /// Its SYN has no time, by which the epoch would be known.
    NoTime,
}

impl FlowVerdict {
    /// The word for it: that of the kernel's outcome, where it has one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Valid(_) => "valid",
            Self::Refused(refusal) => refusal.name(),
            Self::Replayed => "replayed",
            Self::NoSyn => "no-flow",
            Self::Shortened => "shortened",
            Self::NoTime => "no-time",
        }
    }
}

/// One TCP connection of a capture.
#[derive(Debug, Clone)]
pub struct Flow {
    /// The end that began the connection.
    pub client: Endpoint,
    /// The end that it began the connection with.
    pub server: Endpoint,
    /// The number of the packet that decided, in the file.
    pub packet: u64,
    /// When that was, since 1970.
    pub time: Option<Duration>,
    /// Packets of both directions.
    pub packets: u64,
    /// What the token in its SYN says, true or not.
    pub token: Option<TokenOption>,
    /// Whether it proved who began it.
    pub verdict: FlowVerdict,
    isn: u32,
    /// The client has sent more than its SYN.
    is_used: bool,
}

/// The connections of a capture, in the order of their first packets.
#[derive(Debug)]
pub struct FlowTable<'k> {
    verifier: Verifier<'k>,
    flows: Vec<Flow>,
    /// Client and server to the last connection between them.
    last: HashMap<(Endpoint, Endpoint), usize>,
    beyond: u64,
}

impl<'k> FlowTable<'k> {
    /// A table of no packet yet.
    pub fn new(verifier: Verifier<'k>) -> Self {
        Self {
            verifier,
            flows: Vec::new(),
            last: HashMap::new(),
            beyond: 0,
        }
    }

    /// The connections so far.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// Packets that would have begun a connection more than [`MAX_FLOWS`].
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// Takes the next segment of the capture: the number of its packet, its time since
    /// 1970, and whether less was captured than there was.
    pub fn add(
        &mut self,
        number: u64,
        time: Option<Duration>,
        segment: &Segment<'_>,
        is_shortened: bool,
    ) {
        let ends = (segment.source, segment.dest);
        if !segment.is_syn() {
            self.add_later(number, time, segment);
            return;
        }
        let verdict = self.judge(time, segment, is_shortened);
        let is_valid = matches!(verdict, FlowVerdict::Valid(_));
        let last = self.last.get(&ends).map(|at| &mut self.flows[*at]);
        match last.filter(|flow| flow.isn == segment.sequence) {
            Some(flow) if flow.is_used && is_valid => {
                self.begin(ends, number, time, segment, FlowVerdict::Replayed, false);
            }
            Some(flow) => {
                flow.packets += 1;
                // Sent again: a program that has become known meanwhile has its token now.
                if is_valid {
                    flow.verdict = verdict;
                    (flow.packet, flow.time) = (number, time);
                    flow.token = segment.options.and_then(|options| find(options).ok()?);
                }
            }
            None => self.begin(ends, number, time, segment, verdict, true),
        }
    }

    /// A segment that begins nothing.
    fn add_later(&mut self, number: u64, time: Option<Duration>, segment: &Segment<'_>) {
        let forth = (segment.source, segment.dest);
        let back = (segment.dest, segment.source);
        if let Some(at) = self.last.get(&forth) {
            self.flows[*at].packets += 1;
            self.flows[*at].is_used = true;
        } else if let Some(at) = self.last.get(&back) {
            self.flows[*at].packets += 1;
        } else {
            let ends = if segment.is_syn_ack() { back } else { forth };
            self.begin(ends, number, time, segment, FlowVerdict::NoSyn, true);
        }
    }

    fn judge(
        &self,
        time: Option<Duration>,
        segment: &Segment<'_>,
        is_shortened: bool,
    ) -> FlowVerdict {
        if is_shortened && segment.options.is_none() {
            return FlowVerdict::Shortened;
        }
        let Some(time) = time else {
            return FlowVerdict::NoTime;
        };
        let epoch = epoch_at(time.as_secs());
        match self.verifier.verify_segment(segment, epoch) {
            Ok(identity) => FlowVerdict::Valid(identity),
            Err(refusal) => FlowVerdict::Refused(refusal),
        }
    }

    fn begin(
        &mut self,
        ends: (Endpoint, Endpoint),
        number: u64,
        time: Option<Duration>,
        segment: &Segment<'_>,
        verdict: FlowVerdict,
        is_last: bool,
    ) {
        if self.flows.len() == MAX_FLOWS {
            self.beyond += 1;
            return;
        }
        if is_last {
            self.last.insert(ends, self.flows.len());
        }
        self.flows.push(Flow {
            client: ends.0,
            server: ends.1,
            packet: number,
            time,
            packets: 1,
            token: segment.options.and_then(|options| find(options).ok()?),
            verdict,
            isn: segment.sequence,
            is_used: false,
        });
    }
}

#[cfg(test)]
mod tests;
