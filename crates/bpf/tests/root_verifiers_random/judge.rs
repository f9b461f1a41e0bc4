//! What a program says of a packet, held against the reference.

use super::*;

/// One program, and what it is to do.
pub struct Judge<'p> {
    pub name: &'static str,
    pub program: BorrowedFd<'p>,
    pub passes: u32,
    pub is_forwarded: bool,
    /// Packets that passed because they proved themselves, and that did not.
    pub proved: u64,
    pub refused: u64,
}

/// What is known of a frame before a program has it.
pub struct Asked<'f> {
    pub frame: &'f [u8],
    pub packet: &'f [u8],
    pub ports: Option<Ports>,
    /// It is as long as it says, in one piece, and of the family that its frame names: each
    /// verifier says the same of it.
    pub is_plain: bool,
    /// It is of IPv6, its chain of headers does not end in it, and it is to this address.
    pub open_to: Option<IpAddr>,
}

impl<'f> Asked<'f> {
    pub fn of(frame: &'f [u8]) -> Self {
        let packet = frame.get(14..).unwrap_or_default();
        let version = if frame[12] == 8 { 4 } else { 6 };
        let is_of_family = packet.first().is_some_and(|byte| byte >> 4 == version);
        let ports = Ports::read(packet).filter(|_| is_of_family);
        let is_whole = ports.as_ref().is_some_and(|ports| !ports.is_part);
        Self {
            is_plain: is_whole && packet.len() == stated_length(packet),
            frame,
            packet,
            ports,
            open_to: open_chain(packet).filter(|_| is_of_family),
        }
    }

    /// The packet as verifiers may read it: all that there is, whatever it says, or as much as
    /// it says; in one piece.
    pub fn readings(&self) -> Vec<Vec<u8>> {
        let Some(ports) = &self.ports else {
            return Vec::new();
        };
        if self.is_plain {
            return vec![ports.whole.clone()];
        }
        let removed = self.packet.len() - ports.whole.len();
        let stated = stated_length(self.packet).min(self.packet.len());
        let mut cut = ports.whole.clone();
        cut.truncate(stated.saturating_sub(removed));
        let mut all = [ports.whole.clone(), cut];
        for packet in &mut all {
            let length = (packet.len() as u16).to_be_bytes();
            if let (4, Some(place)) = (ports.version, packet.get_mut(2..4)) {
                place.copy_from_slice(&length);
            }
        }
        all.into()
    }
}

/// Whom a packet of IPv6 is for, or its first part, whose chain of headers goes on behind its
/// end: what it carries is not there.
fn open_chain(packet: &[u8]) -> Option<IpAddr> {
    let head: &[u8; 40] = packet.first_chunk().filter(|head| head[0] >> 4 == 6)?;
    let end = stated_length(packet).min(packet.len());
    let (mut next, mut at) = (head[6], 40);
    while let 0 | 43 | 44 | 60 = next {
        if at + 8 > end {
            let dest: &[u8; 16] = head[24..].first_chunk()?;
            return Some(IpAddr::from(*dest));
        }
        if next == 44 && (packet[at + 2] != 0 || packet[at + 3] & 0xf8 != 0) {
            return None;
        }
        let words = if next == 44 { 0 } else { packet[at + 1] };
        next = packet[at];
        at += (usize::from(words) + 1) * 8;
    }
    None
}

pub fn stated_length(packet: &[u8]) -> usize {
    let number = |at: usize| {
        let bytes = packet.get(at..).and_then(|part| part.first_chunk());
        bytes.map_or(0, |bytes| usize::from(u16::from_be_bytes(*bytes)))
    };
    match packet.first().map(|byte| byte >> 4) {
        Some(4) => number(2),
        _ => number(4) + 40,
    }
}

impl Judge<'_> {
    /// Runs a frame, and holds what the program says against the reference.
    pub fn run(
        &mut self,
        asked: &Asked<'_>,
        networks: &Networks,
        reference: &Reference<'_>,
        flows: &mut Flows,
        datagrams: &mut Datagrams,
    ) -> Result<(), String> {
        let before = epoch();
        // Some are too short for the kernel to make a packet of them.
        let Ok(ran) = prog_test_run::packet(self.program, asked.frame, 1) else {
            return match asked.frame.len() < 14 + 40 {
                true => Ok(()),
                false => Err(format!("{}: the kernel does not run it", self.name)),
            };
        };
        let passes = ran.verdict == self.passes;
        if let Some(dest) = asked.open_to
            && self.is_forwarded
            && passes
            && networks.to.iter().any(|prefix| prefix.contains(dest))
        {
            return Err(format!(
                "{}: its headers do not end, and it passes",
                self.name
            ));
        }
        let Some(ports) = &asked.ports else {
            // A match is about packets with ports alone.
            return match passes && !self.is_forwarded {
                true => Err(format!("{} matches no packet", self.name)),
                false => Ok(()),
            };
        };
        let Some(scope) = ports.wants(networks, self.is_forwarded) else {
            let is_read =
                Segment::read(asked.packet).is_some() || Datagram::read(asked.packet).is_some();
            let wanted = self.is_forwarded;
            return match asked.is_plain && is_read && passes != wanted {
                true => Err(format!(
                    "{}: it is of no requirement, passes {passes}",
                    self.name
                )),
                false => Ok(()),
            };
        };
        let epochs = [before, epoch()];
        let mut proofs = Vec::new();
        for packet in asked.readings() {
            for epoch in &epochs[..if epochs[0] == epochs[1] { 1 } else { 2 }] {
                proofs.push(reference.judge(&packet, scope, flows, datagrams, *epoch));
            }
        }
        let is_sure = asked.is_plain && proofs.len() == 1;
        let proof = proofs
            .into_iter()
            .find(|proof| !matches!(proof, Proof::Nothing));
        match (&proof, passes) {
            // Its receiver would not read as far.
            (None, true) if self.is_forwarded && !ports.is_stated => {}
            (None, true) => return Err(format!("{}: nothing is proved, and it passes", self.name)),
            (Some(Proof::Late), _) => {}
            (Some(_), false) if is_sure => {
                return Err(format!("{}: it is right, and does not pass", self.name));
            }
            (_, true) => self.proved += 1,
            (_, false) => self.refused += 1,
        }
        if !passes {
            return Ok(());
        }
        match proof {
            Some(Proof::Begins(flow, isn)) => {
                flows.connections.insert(flow, (isn, false));
            }
            Some(Proof::Of(flow)) => {
                if let Some((_, is_used)) = flows.connections.get_mut(&flow) {
                    *is_used = true;
                }
            }
            Some(Proof::Datagram(flow)) => {
                datagrams.insert(flow, Instant::now());
            }
            _ => {}
        }
        Ok(())
    }
}

/// Has a segment or datagram a token among options that do not contradict themselves?
pub fn has_token(packet: &[u8]) -> bool {
    let of_segment = Segment::read(packet).is_some_and(|segment| {
        let options = segment.options.unwrap_or_default();
        matches!(weir_token::find(options), Ok(Some(_)))
            || matches!(SegmentToken::find(options), Ok(Some(_)))
            || matches!(segment.ip_token, Ok(Some(_)))
    });
    let of_datagram =
        Datagram::read(packet).is_some_and(|datagram| matches!(datagram.token, Ok(Some(_))));
    of_segment || of_datagram
}

/// What overwrites tokens passes each packet, as long as it was; of others than those to ports
/// that want tokens none is left.
pub fn strip(program: BorrowedFd<'_>, asked: &Asked<'_>) -> Result<bool, String> {
    let Ok(ran) = prog_test_run::packet(program, asked.frame, 1) else {
        return Ok(false);
    };
    if ran.verdict != TC_PASSES {
        return Err(format!("strip: verdict {:#x}", ran.verdict));
    }
    if ran.packet.len() != asked.frame.len() {
        return Err("strip: another length".to_owned());
    }
    let Some(ports) = asked.ports.as_ref().filter(|_| asked.is_plain) else {
        return Ok(false);
    };
    // Of sockets it is the port that counts, whatever source it is about.
    let port = ports.dest.1;
    let is_wanted = is_within(FLOW, port)
        || (ports.protocol == TCP && (is_within(PAYLOAD, port) || is_within(DAF, port)));
    let is_changed = ran.packet != asked.frame;
    if is_wanted {
        return match is_changed {
            true => Err("strip: a port wants the token".to_owned()),
            false => Ok(false),
        };
    }
    match has_token(&ran.packet[14..]) {
        true => Err(format!("strip: a token is left in {:02x?}", ran.packet)),
        false => Ok(is_changed),
    }
}
