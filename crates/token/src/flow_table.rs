//! Connections of a capture, and which of them proved who began them, and its flows of UDP
//! datagrams, and which datagrams proved who sent them: what a verifier that had seen these
//! packets would have said of each.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use weir_identity::Digest;

use crate::{
    Datagram, TokenOption, epoch_at, segment,
    segment_counts::{MAX_NAMED, SegmentCounts, SegmentVerdict},
    verify::{Refusal, Segment, Verifier},
};

/// Connections and flows of datagrams of one capture at most, a flow once for each verdict;
/// packets of those beyond it are counted. A capture may be anybody's, and each entry costs some
/// 280 bytes with what finds it again.
pub const MAX_FLOWS: usize = 1 << 18;
/// So long after its last token a flow of datagrams goes on without, as in the kernel
/// (`TOKEN_DATAGRAM_IDLE` in `bpf/abi/token.h`).
pub const DATAGRAM_IDLE: Duration = Duration::from_secs(120);

/// Address and port of one end.
pub type Endpoint = (IpAddr, u16);

/// Whether a connection proved who began it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowVerdict {
    /// The connection proved to be of this identity.
    Valid(Digest),
    /// Datagrams without a token, soon enough after one of this identity.
    Proven(Digest),
    /// The SYN, or datagram, proves nothing, for this reason.
    Refused(Refusal),
    /// Its SYN was valid, and comes again after the connection has been used.
    Replayed,
    /// Its SYN is not in the capture; or datagrams without a token, too long after the last one.
    NoSyn,
    /// Less of its SYN was captured than there was.
    Shortened,
    /// Its SYN, or datagram, has no time, by which the epoch would be known.
    NoTime,
}

impl FlowVerdict {
    /// The word for it: that of the kernel's outcome, where it has one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Valid(_) => "valid",
            Self::Proven(_) => "proven",
            Self::Refused(refusal) => refusal.name(),
            Self::Replayed => "replayed",
            Self::NoSyn => "no-flow",
            Self::Shortened => "shortened",
            Self::NoTime => "no-time",
        }
    }

    /// Would a port that wants a token take it?
    pub fn passes(self) -> bool {
        self.identity().is_some()
    }

    /// Whose it is, if that is proved.
    pub fn identity(self) -> Option<Digest> {
        match self {
            Self::Valid(identity) | Self::Proven(identity) => Some(identity),
            _ => None,
        }
    }
}

/// One TCP connection of a capture; or those datagrams from one end to another that have one
/// verdict.
#[derive(Debug, Clone)]
pub struct Flow {
    /// Datagrams of UDP; else a connection of TCP.
    pub is_udp: bool,
    /// The end that began.
    pub client: Endpoint,
    /// The end that it began with.
    pub server: Endpoint,
    /// The number of the packet that decided, in the file; of datagrams the first one.
    pub packet: u64,
    /// When that was, since 1970.
    pub time: Option<Duration>,
    /// Packets of both directions; of datagrams those with this verdict.
    pub packets: u64,
    /// What the token in its SYN, or first datagram, says, true or not.
    pub token: Option<TokenOption>,
    /// Whether it proved who began it.
    pub verdict: FlowVerdict,
    /// What became of the segments of the client behind a SYN that is valid.
    segments: Option<Box<SegmentCounts>>,
    isn: u32,
    /// The client has sent more than its SYN.
    is_used: bool,
}

impl Flow {
    /// The segments of the client behind its SYN, where one of them has a token; others have
    /// none, because only a SYN has one without the scope "payload".
    pub fn segments(&self) -> Option<&SegmentCounts> {
        let segments = self.segments.as_deref();
        segments.filter(|segments| segments.is_signed())
    }
}

/// Datagrams from one end to another.
#[derive(Debug, Default)]
struct DatagramFlow {
    /// Whose the last valid token was, and when.
    proven: Option<(Digest, Duration)>,
    /// The entries of the table, one for each verdict.
    entries: Vec<usize>,
}

/// The connections and flows of datagrams of a capture, in the order of their first packets.
#[derive(Debug)]
pub struct FlowTable<'k> {
    verifier: Verifier<'k>,
    flows: Vec<Flow>,
    /// Client and server to the last connection between them.
    last: HashMap<(Endpoint, Endpoint), usize>,
    /// Client and server to the last connection between them whose SYN was valid: what a verifier
    /// remembers, also while others try.
    valid: HashMap<(Endpoint, Endpoint), usize>,
    datagrams: HashMap<(Endpoint, Endpoint), DatagramFlow>,
    beyond: u64,
    /// Segments that are named so far.
    named: usize,
}

impl<'k> FlowTable<'k> {
    /// A table of no packet yet.
    pub fn new(verifier: Verifier<'k>) -> Self {
        Self {
            verifier,
            flows: Vec::new(),
            last: HashMap::new(),
            valid: HashMap::new(),
            datagrams: HashMap::new(),
            beyond: 0,
            named: 0,
        }
    }

    /// The connections and flows of datagrams so far.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// Packets that would have begun an entry more than [`MAX_FLOWS`].
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
            self.add_later(number, time, segment, is_shortened);
            return;
        }
        let verdict = self.judge(time, segment, is_shortened);
        let is_valid = matches!(verdict, FlowVerdict::Valid(_));
        let before = self.valid.get(&ends).map(|at| &self.flows[*at]);
        let before = before.filter(|flow| flow.isn == segment.sequence);
        if is_valid && before.is_some_and(|flow| flow.is_used) {
            self.begin(ends, number, time, segment, FlowVerdict::Replayed, false);
            return;
        }
        let last = self.last.get(&ends).copied();
        match last.filter(|at| self.flows[*at].isn == segment.sequence) {
            Some(at) => {
                let flow = &mut self.flows[at];
                flow.packets += 1;
                // Sent again: a program that has become known meanwhile has its token now.
                if is_valid {
                    // What came behind a SYN that proved nothing was not of it.
                    flow.is_used &= flow.verdict.passes();
                    flow.verdict = verdict;
                    (flow.packet, flow.time) = (number, time);
                    flow.token = segment.token().ok().flatten();
                    self.valid.insert(ends, at);
                }
            }
            None => {
                let at = self.flows.len();
                self.begin(ends, number, time, segment, verdict, true);
                if is_valid && at < self.flows.len() {
                    self.valid.insert(ends, at);
                }
            }
        }
    }

    /// Takes the next datagram of the capture: the number of its packet, and its time since
    /// 1970. Answers, which go back where datagrams have come from, prove nothing, and have
    /// no token.
    pub fn add_datagram(&mut self, number: u64, time: Option<Duration>, datagram: &Datagram) {
        let forth = (datagram.source, datagram.dest);
        let back = (datagram.dest, datagram.source);
        let is_known = self.datagrams.contains_key(&forth);
        if !is_known && self.is_answer(&back, time, datagram) {
            return;
        }
        // Each flow has an entry of the table, which is bounded.
        if !is_known && self.flows.len() == MAX_FLOWS {
            self.beyond += 1;
            return;
        }
        let flow = self.datagrams.entry(forth).or_default();
        let verdict = judge_datagram(&self.verifier, flow.proven, time, datagram);
        if let (FlowVerdict::Valid(identity), Some(time)) = (verdict, time) {
            flow.proven = Some((identity, time));
        }
        let mut entries = flow.entries.iter().copied();
        if let Some(at) = entries.find(|at| self.flows[*at].verdict == verdict) {
            self.flows[at].packets += 1;
            return;
        }
        if self.flows.len() == MAX_FLOWS {
            self.beyond += 1;
            return;
        }
        flow.entries.push(self.flows.len());
        self.flows.push(Flow {
            is_udp: true,
            client: datagram.source,
            server: datagram.dest,
            packet: number,
            time,
            packets: 1,
            token: datagram.token.ok().flatten(),
            verdict,
            segments: None,
            isn: 0,
            is_used: false,
        });
    }

    /// Whether a datagram answers those that went `back`: it has no token, and what proved
    /// the other end, if something has, was not too long ago.
    fn is_answer(
        &self,
        back: &(Endpoint, Endpoint),
        time: Option<Duration>,
        datagram: &Datagram,
    ) -> bool {
        let Some(flow) = self.datagrams.get(back) else {
            return false;
        };
        let is_over = |(_, at): (_, Duration)| {
            time.is_some_and(|time| time.saturating_sub(at) > DATAGRAM_IDLE)
        };
        matches!(datagram.token, Ok(None)) && !flow.proven.is_some_and(is_over)
    }

    /// A segment that begins nothing.
    fn add_later(
        &mut self,
        number: u64,
        time: Option<Duration>,
        segment: &Segment<'_>,
        is_shortened: bool,
    ) {
        let forth = (segment.source, segment.dest);
        let back = (segment.dest, segment.source);
        if let Some(at) = self.valid.get(&forth) {
            self.flows[*at].is_used = true;
        }
        if let Some(at) = self.last.get(&forth).copied() {
            self.flows[at].packets += 1;
            self.flows[at].is_used = true;
            if let FlowVerdict::Valid(identity) = self.flows[at].verdict {
                self.add_segment(at, number, time, segment, is_shortened, &identity);
            }
        } else if let Some(at) = self.last.get(&back) {
            self.flows[*at].packets += 1;
        } else {
            let ends = if segment.is_syn_ack() { back } else { forth };
            self.begin(ends, number, time, segment, FlowVerdict::NoSyn, true);
        }
    }

    /// A segment of the client of a connection that this identity began.
    fn add_segment(
        &mut self,
        at: usize,
        number: u64,
        time: Option<Duration>,
        segment: &Segment<'_>,
        is_shortened: bool,
        identity: &Digest,
    ) {
        let token = segment.options.map(segment::SegmentToken::find);
        let has_token = matches!(token, Some(Ok(Some(_))));
        let verdict = match (time, is_shortened && (has_token || token.is_none())) {
            (_, true) => SegmentVerdict::Shortened,
            (None, _) => SegmentVerdict::NoTime,
            (Some(time), _) => {
                let (isn, epoch) = (self.flows[at].isn, epoch_at(time.as_secs()));
                match segment::verify(segment, isn, &self.verifier.keys, identity, epoch) {
                    Ok(()) => SegmentVerdict::Valid,
                    Err(refusal) => SegmentVerdict::Refused(refusal),
                }
            }
        };
        let segments = self.flows[at].segments.get_or_insert_default();
        self.named += segments.add(number, has_token, verdict, MAX_NAMED - self.named);
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
            is_udp: false,
            client: ends.0,
            server: ends.1,
            packet: number,
            time,
            packets: 1,
            token: segment.token().ok().flatten(),
            verdict,
            segments: None,
            isn: segment.sequence,
            is_used: false,
        });
    }
}

/// What becomes of a datagram of a flow whose last valid token was this one.
fn judge_datagram(
    verifier: &Verifier<'_>,
    proven: Option<(Digest, Duration)>,
    time: Option<Duration>,
    datagram: &Datagram,
) -> FlowVerdict {
    let Some(time) = time else {
        return FlowVerdict::NoTime;
    };
    match (
        verifier.verify_datagram(datagram, epoch_at(time.as_secs())),
        proven,
    ) {
        (Ok(identity), _) => FlowVerdict::Valid(identity),
        (Err(Refusal::Missing), Some((identity, at))) => {
            // A capture whose times go back is of one moment.
            match time.saturating_sub(at) < DATAGRAM_IDLE {
                true => FlowVerdict::Proven(identity),
                false => FlowVerdict::NoSyn,
            }
        }
        (Err(refusal), _) => FlowVerdict::Refused(refusal),
    }
}

#[cfg(test)]
mod tests;
