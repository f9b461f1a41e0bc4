//! Blocks of pcapng (draft-ietf-opsawg-pcapng): sections, interfaces, packets; others are
//! passed over.

use std::{io::Read, time::Duration};

use super::{ByteOrder, CaptureError, CaptureReader, Format, Found, MAX_RECORD};

/// The type of a section header, the same in both byte orders.
pub(super) const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// Interfaces of a section at most.
const MAX_INTERFACES: usize = 4096;
/// Type, length, and the length again at the end.
const FRAME: usize = 12;

const INTERFACE: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

const OPTION_RESOLUTION: u16 = 9;
const OPTION_OFFSET: u16 = 14;

#[derive(Debug, Clone, Copy)]
struct Interface {
    link: u32,
    snap_len: u32,
    /// A unit of its time stamps is this part of a second.
    units: u64,
    /// Seconds to be added to them.
    offset: i64,
}

impl Interface {
    fn time(&self, stamp: u64) -> Option<Duration> {
        let seconds = (stamp / self.units).checked_add_signed(self.offset)?;
        let rest = u128::from(stamp % self.units) * 1_000_000_000 / u128::from(self.units);
        Some(Duration::new(seconds, rest as u32))
    }
}

/// What is known of the section that is being read.
pub(super) struct Section {
    order: ByteOrder,
    interfaces: Vec<Interface>,
}

impl Section {
    /// Before the first one.
    pub(super) fn none() -> Self {
        Self {
            order: ByteOrder::Little,
            interfaces: Vec::new(),
        }
    }
}

impl<R: Read> CaptureReader<R> {
    /// A block of pcapng, whose packet may be `None`; the outer `None`: the end.
    pub(super) fn read_block(&mut self) -> Result<Option<Option<Found>>, CaptureError> {
        // Of the first block four bytes are here.
        if self.record.len() > 4 {
            self.next_record();
        }
        if !self.fill_or_end(8)? {
            return Ok(None);
        }
        let is_section = self.record[..4] == SECTION_HEADER;
        if is_section {
            self.fill(FRAME)?;
            let order = match self.record[8..12] {
                [0x4d, 0x3c, 0x2b, 0x1a] => ByteOrder::Little,
                [0x1a, 0x2b, 0x3c, 0x4d] => ByteOrder::Big,
                _ => return Err(self.malformed("a section header without a byte order")),
            };
            self.format = Format::PcapNg(Section {
                order,
                interfaces: Vec::new(),
            });
        }
        let Format::PcapNg(section) = &self.format else {
            return Ok(None);
        };
        let order = section.order;
        let kind = order.u32(&self.record, 0);
        let len = order.u32(&self.record, 4) as usize;
        if !len.is_multiple_of(4) || len < FRAME {
            return Err(self.malformed("a block's length"));
        }
        if len > MAX_RECORD {
            return Err(self.malformed("a block of more than 1,048,576 bytes"));
        }
        self.fill(len)?;
        if order.u32(&self.record, len - 4) as usize != len {
            return Err(self.malformed("the two lengths of a block differ"));
        }
        if is_section {
            return Ok(Some(None));
        }
        let body = 8..len - 4;
        let found = match kind {
            INTERFACE => {
                let interface = interface(order, &self.record[body]);
                let Some(interface) = interface else {
                    return Err(self.malformed("an interface description"));
                };
                let Format::PcapNg(section) = &mut self.format else {
                    return Ok(None);
                };
                if section.interfaces.len() == MAX_INTERFACES {
                    return Err(self.malformed("more than 4,096 interfaces"));
                }
                section.interfaces.push(interface);
                None
            }
            OBSOLETE_PACKET | SIMPLE_PACKET | ENHANCED_PACKET => {
                let Format::PcapNg(section) = &self.format else {
                    return Ok(None);
                };
                let packet = packet(section, kind, &self.record[body]);
                Some(packet.map_err(|why| self.malformed(why))?)
            }
            _ => None,
        };
        Ok(Some(found))
    }
}

fn interface(order: ByteOrder, body: &[u8]) -> Option<Interface> {
    let (head, mut options) = body.split_at_checked(8)?;
    let mut interface = Interface {
        link: order.u16(head, 0).into(),
        snap_len: order.u32(head, 4),
        units: 1_000_000,
        offset: 0,
    };
    while options.len() >= 4 {
        let (code, len) = (order.u16(options, 0), usize::from(order.u16(options, 2)));
        if code == 0 {
            break;
        }
        let value = options.get(4..4 + len)?;
        match (code, value) {
            (OPTION_RESOLUTION, [power]) => {
                interface.units = match power & 0x80 {
                    0 => 10_u64.checked_pow((*power).into())?,
                    _ => 2_u64.checked_pow((power & 0x7f).into())?,
                };
            }
            (OPTION_OFFSET, value) if value.len() == 8 => {
                let (one, other) = (order.u32(value, 0), order.u32(value, 4));
                let (high, low) = match order {
                    ByteOrder::Little => (other, one),
                    ByteOrder::Big => (one, other),
                };
                interface.offset = (u64::from(high) << 32 | u64::from(low)) as i64;
            }
            _ => {}
        }
        options = options.get(4 + len.next_multiple_of(4)..)?;
    }
    Some(interface)
}

/// The packet of a block, at its place in the whole record.
fn packet(section: &Section, kind: u32, body: &[u8]) -> Result<Found, &'static str> {
    let order = section.order;
    let head = if kind == SIMPLE_PACKET { 4 } else { 20 };
    if body.len() < head {
        return Err("a packet block that is too short");
    }
    let number = match kind {
        ENHANCED_PACKET => order.u32(body, 0) as usize,
        OBSOLETE_PACKET => order.u16(body, 0).into(),
        _ => 0,
    };
    let interface = section.interfaces.get(number);
    let interface = interface.ok_or("a packet of an interface that is not described")?;
    let (time, len, original) = match kind {
        SIMPLE_PACKET => {
            let original = order.u32(body, 0);
            let bound = match interface.snap_len {
                0 => original,
                snap_len => original.min(snap_len),
            };
            (None, bound as usize, original)
        }
        _ => {
            let stamp = u64::from(order.u32(body, 4)) << 32 | u64::from(order.u32(body, 8));
            let len = order.u32(body, 12) as usize;
            (interface.time(stamp), len, order.u32(body, 16))
        }
    };
    if len > body.len() - head {
        return Err("a packet that is longer than its block");
    }
    Ok(Found {
        time,
        link: interface.link,
        begin: 8 + head,
        len,
        is_shortened: original as usize > len,
    })
}
