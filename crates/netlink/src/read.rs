//! Messages of a datagram, and attributes of a message, as they are read. Whatever is cut
//! or has a length that cannot be ends the reading; nothing of it is taken for a message.

use std::{error, fmt, io, net::IpAddr};

use crate::{
    ALIGN, ATTRIBUTE, HEADER, NLA_TYPE_MASK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP_INTR,
    NLM_F_MULTI, NLMSG_DONE, NLMSG_ERROR, NLMSG_MIN_TYPE, NLMSG_OVERRUN, NLMSGERR_ATTR_MSG,
};

/// Bytes of the kernel's text about an error that are shown.
const MAX_TEXT: usize = 256;

/// One message of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// The kind of the message, as its header has it.
    pub kind: u16,
    flags: u16,
    /// The bytes behind the header: a fixed header of this kind, then attributes.
    pub body: &'a [u8],
}

/// What a message is to the one that asked.
#[derive(Debug)]
pub enum Outcome {
    /// It is one of those that were asked for.
    Data,
    /// The request was carried out, or refused.
    Acknowledged(io::Result<()>),
    /// The end of the answer; a dump that the kernel broke off says why.
    Done(io::Result<()>),
    /// Of no meaning to the one that asked.
    Nothing,
}

impl Message<'_> {
    /// What the message says of the request.
    pub fn outcome(&self) -> Outcome {
        match self.kind {
            NLMSG_ERROR => Outcome::Acknowledged(match word(self.body, 0) {
                Some(errno) => self.result(errno as i32),
                None => Err(malformed()),
            }),
            // Older kernels say nothing behind it.
            NLMSG_DONE => Outcome::Done(self.result(word(self.body, 0).unwrap_or(0) as i32)),
            NLMSG_OVERRUN => Outcome::Acknowledged(Err(io::Error::from_raw_os_error(
                rustix::io::Errno::NOBUFS.raw_os_error(),
            ))),
            kind if kind < NLMSG_MIN_TYPE => Outcome::Nothing,
            _ => Outcome::Data,
        }
    }

    /// Whether more messages follow it.
    pub(crate) fn goes_on(&self) -> bool {
        self.flags & NLM_F_MULTI != 0
    }

    /// Whether the dump met a change, so that it may lack something.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.flags & NLM_F_DUMP_INTR != 0
    }

    fn result(&self, errno: i32) -> io::Result<()> {
        // The kernel's are negative; another one is no error of the system's.
        match errno.checked_neg() {
            Some(0) => Ok(()),
            Some(errno @ 1..) => Err(match self.text() {
                Some(text) => Refused { errno, text }.into(),
                None => io::Error::from_raw_os_error(errno),
            }),
            _ => Err(malformed()),
        }
    }

    /// The kernel's own words about an error (NETLINK_EXT_ACK).
    fn text(&self) -> Option<String> {
        if self.flags & NLM_F_ACK_TLVS == 0 {
            return None;
        }
        let skipped = match self.kind {
            NLMSG_DONE => 4,
            _ if self.flags & NLM_F_CAPPED != 0 => 4 + HEADER,
            // The whole request is repeated behind the number.
            _ => 4 + (word(self.body, 4)? as usize).checked_next_multiple_of(ALIGN)?,
        };
        let text = Attributes(self.body.get(skipped..)?).get(NLMSGERR_ATTR_MSG)?;
        let text = text.split(|byte| *byte == 0).next()?;
        let text = String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT)]);
        let text = text.replace(char::is_control, "?");
        (!text.is_empty()).then_some(text)
    }
}

/// An error of the kernel's with its words about it.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) errno: i32,
    text: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = io::Error::from_raw_os_error(self.errno);
        write!(f, "{error}: {}", self.text)
    }
}

impl error::Error for Refused {}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> Self {
        Self::new(Self::from_raw_os_error(refused.errno).kind(), refused)
    }
}

/// The error for bytes that are no answer.
pub(crate) fn malformed() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the kernel's answer is no netlink message, or cut",
    )
}

/// The messages of a datagram, in order.
#[derive(Debug, Clone)]
pub struct Messages<'a>(&'a [u8]);

impl<'a> Messages<'a> {
    /// The messages of a datagram's bytes.
    pub fn of(datagram: &'a [u8]) -> Self {
        Self(datagram)
    }

    /// The bytes that are no message: none, where a whole datagram was read to its end.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let size = word(self.0, 0)? as usize;
        let message = self.0.get(..size).filter(|bytes| bytes.len() >= HEADER)?;
        self.0 = behind(self.0, size);
        Some(Message {
            kind: half(message, 4)?,
            flags: half(message, 6)?,
            body: &message[HEADER..],
        })
    }
}

/// Attributes as they lie behind one another.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// The attributes of a value's bytes.
    pub fn of(value: &'a [u8]) -> Self {
        Self(value)
    }

    /// The attributes of a message's body, behind a fixed header of so many bytes.
    pub fn behind(body: &'a [u8], fixed: usize) -> Self {
        Self(body.get(fixed..).unwrap_or(&[]))
    }

    /// Kind, without flags, and value of each.
    pub fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let size = usize::from(half(rest, 0)?);
            let kind = half(rest, 2)? & NLA_TYPE_MASK;
            let value = rest.get(ATTRIBUTE..size)?;
            rest = behind(rest, size);
            Some((kind, value))
        })
    }

    /// The value of the first of this kind.
    pub fn get(self, kind: u16) -> Option<&'a [u8]> {
        let mut all = self.iter();
        all.find_map(|(other, value)| (other == kind).then_some(value))
    }

    /// The attributes in the value of the first of this kind; none if there is no such.
    pub fn nested(self, kind: u16) -> Self {
        Self(self.get(kind).unwrap_or(&[]))
    }

    /// A value as text; `None`: it is no UTF-8.
    pub fn text(self, kind: u16) -> Option<&'a str> {
        let bytes = self.get(kind)?;
        std::str::from_utf8(bytes.strip_suffix(&[0]).unwrap_or(bytes)).ok()
    }

    /// A value as a number of four bytes in network order, as netfilter has them.
    pub fn number(self, kind: u16) -> Option<u32> {
        Some(u32::from_be_bytes(self.get(kind)?.try_into().ok()?))
    }

    /// A value as a number of eight bytes in network order.
    pub fn long(self, kind: u16) -> Option<u64> {
        Some(u64::from_be_bytes(self.get(kind)?.try_into().ok()?))
    }
}

fn behind(bytes: &[u8], size: usize) -> &[u8] {
    // The last one need not be filled up.
    bytes.get(size.next_multiple_of(ALIGN)..).unwrap_or(&[])
}

/// The address that a value is.
pub fn ip(value: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from))
        .ok()
}

/// Sixteen bits in this machine's order, if they are there.
pub fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*bytes))
}

/// Thirty-two bits in this machine's order, if they are there.
pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}
