//! Packets out of a capture file: pcap (of micro- or nanoseconds) and pcapng, of either
//! byte order. The file is anybody's: what is read at once has a bound, and where the file
//! is cut or wrong is said by the offset of the record.

mod blocks;
mod link;

use std::{
    io::{self, Read},
    time::Duration,
};

pub use link::{LinkError, ip_packet};

/// Bytes of one record at most; libpcap's own bound of a packet is 262,144.
pub const MAX_RECORD: usize = 1 << 20;

/// Why a capture file is not read on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file cannot be read.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// The file does not begin like a capture.
    #[error("it is no capture: it begins with {0}; allowed: pcap and pcapng, not compressed")]
    NotACapture(String),
    /// The file ends within a record.
    #[error(
        "it is cut: the record at byte {offset}, after {packets} packets, has {there} of at least {wanted} bytes"
    )]
    Cut {
        /// Offset of the record in the file, in bytes.
        offset: u64,
        /// Whole packets before it.
        packets: u64,
        /// Bytes of the record that are there.
        there: u64,
        /// Bytes that it would have.
        wanted: u64,
    },
    /// A record contradicts itself.
    #[error("the record at byte {offset}, after {packets} packets, is wrong: {why}")]
    Malformed {
        /// Offset of the record in the file, in bytes.
        offset: u64,
        /// Whole packets before it.
        packets: u64,
        /// The mistake in the record.
        why: &'static str,
    },
}

/// One packet of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapturedPacket<'f> {
    /// Its number in the file, from 1 on, as Wireshark shows it.
    pub number: u64,
    /// Since 1970; `None`: a block of pcapng that has no time.
    pub time: Option<Duration>,
    /// What its first header is: a LINKTYPE of tcpdump.org.
    pub link: u32,
    /// The bytes of the packet that were captured.
    pub bytes: &'f [u8],
    /// Less was captured than was on the wire.
    pub is_shortened: bool,
}

/// Where a packet is in the buffer.
struct Found {
    time: Option<Duration>,
    link: u32,
    begin: usize,
    len: usize,
    is_shortened: bool,
}

#[derive(Debug, Clone, Copy)]
enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let two = [bytes[at], bytes[at + 1]];
        match self {
            Self::Little => u16::from_le_bytes(two),
            Self::Big => u16::from_be_bytes(two),
        }
    }

    fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let four = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        match self {
            Self::Little => u32::from_le_bytes(four),
            Self::Big => u32::from_be_bytes(four),
        }
    }
}

enum Format {
    Pcap {
        order: ByteOrder,
        is_nanos: bool,
        link: u32,
    },
    PcapNg(blocks::Section),
}

/// A capture file that is read packet by packet.
pub struct CaptureReader<R> {
    file: R,
    format: Format,
    /// The record that is being read.
    record: Vec<u8>,
    /// Offset of that record.
    offset: u64,
    packets: u64,
}

/// The file's header, of both kinds of pcap.
const PCAP_HEADER: usize = 24;
const PCAP_RECORD: usize = 16;

impl<R: Read> CaptureReader<R> {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// It is no capture, or cut within its header.
    pub fn new(file: R) -> Result<Self, CaptureError> {
        let mut capture = Self {
            file,
            format: Format::PcapNg(blocks::Section::none()),
            record: Vec::new(),
            offset: 0,
            packets: 0,
        };
        capture.fill(4)?;
        let magic: [u8; 4] = capture.record[..4].try_into().expect("four were read");
        let (order, is_nanos) = match magic {
            [0xd4, 0xc3, 0xb2, 0xa1] => (ByteOrder::Little, false),
            [0xa1, 0xb2, 0xc3, 0xd4] => (ByteOrder::Big, false),
            [0x4d, 0x3c, 0xb2, 0xa1] => (ByteOrder::Little, true),
            [0xa1, 0xb2, 0x3c, 0x4d] => (ByteOrder::Big, true),
            // A section header: it is read as the first block.
            blocks::SECTION_HEADER => return Ok(capture),
            _ => {
                let digits = magic.map(|byte| format!("{byte:02x}")).join(" ");
                return Err(CaptureError::NotACapture(digits));
            }
        };
        capture.fill(PCAP_HEADER)?;
        // Above the type are bits about checksums.
        let link = order.u32(&capture.record, 20) & 0xffff;
        capture.format = Format::Pcap {
            order,
            is_nanos,
            link,
        };
        capture.next_record();
        Ok(capture)
    }

    /// The next packet; `None`: the file ends here, where it may.
    ///
    /// # Errors
    /// It is cut or wrong, or cannot be read.
    pub fn next_packet(&mut self) -> Result<Option<CapturedPacket<'_>>, CaptureError> {
        loop {
            let read = match self.format {
                Format::Pcap { .. } => self.read_pcap()?,
                Format::PcapNg(_) => self.read_block()?,
            };
            let Some(found) = read else {
                return Ok(None);
            };
            let Some(found) = found else { continue };
            self.packets += 1;
            return Ok(Some(CapturedPacket {
                number: self.packets,
                time: found.time,
                link: found.link,
                bytes: &self.record[found.begin..found.begin + found.len],
                is_shortened: found.is_shortened,
            }));
        }
    }

    /// A record of pcap; `None`: the end.
    fn read_pcap(&mut self) -> Result<Option<Option<Found>>, CaptureError> {
        let Format::Pcap {
            order,
            is_nanos,
            link,
        } = self.format
        else {
            return Ok(None);
        };
        self.next_record();
        if !self.fill_or_end(PCAP_RECORD)? {
            return Ok(None);
        }
        let word = |at| order.u32(&self.record, at);
        let (seconds, part, len) = (word(0), word(4), word(8) as usize);
        let is_shortened = word(12) as usize > len;
        if len > MAX_RECORD {
            return Err(self.malformed("a packet of more than 1,048,576 bytes"));
        }
        self.fill(PCAP_RECORD + len)?;
        let nanos = u64::from(part) * if is_nanos { 1 } else { 1000 };
        Ok(Some(Some(Found {
            time: Some(Duration::from_secs(seconds.into()) + Duration::from_nanos(nanos)),
            link,
            begin: PCAP_RECORD,
            len,
            is_shortened,
        })))
    }

    fn malformed(&self, why: &'static str) -> CaptureError {
        CaptureError::Malformed {
            offset: self.offset,
            packets: self.packets,
            why,
        }
    }

    /// The record that has been read is done with.
    fn next_record(&mut self) {
        self.offset += self.record.len() as u64;
        self.record.clear();
    }

    /// Has `wanted` bytes of the record in the buffer; false: the file ends before its first.
    fn fill_or_end(&mut self, wanted: usize) -> Result<bool, CaptureError> {
        let missing = wanted.saturating_sub(self.record.len());
        let mut bounded = self.file.by_ref().take(missing as u64);
        bounded.read_to_end(&mut self.record)?;
        match self.record.len() {
            0 => Ok(wanted == 0),
            there if there < wanted => Err(CaptureError::Cut {
                offset: self.offset,
                packets: self.packets,
                there: there as u64,
                wanted: wanted as u64,
            }),
            _ => Ok(true),
        }
    }

    /// The same where there has to be something.
    fn fill(&mut self, wanted: usize) -> Result<(), CaptureError> {
        match self.fill_or_end(wanted)? {
            true => Ok(()),
            false => Err(CaptureError::Cut {
                offset: self.offset,
                packets: self.packets,
                there: 0,
                wanted: wanted as u64,
            }),
        }
    }
}

#[cfg(test)]
mod tests;
