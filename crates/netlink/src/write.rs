//! Messages as they are written.

use std::net::IpAddr;

use crate::{ALIGN, ATTRIBUTE, NLA_F_NESTED, NLM_F_REQUEST};

/// Netlink messages, one behind the other.
#[derive(Debug, Clone, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Begins a message with its fixed header; [`Self::end`] takes the position that this
    /// returns.
    pub fn begin(&mut self, kind: u16, flags: u16, sequence: u32, fixed: &[u8]) -> usize {
        let begin = self.0.len();
        self.0.extend([0; 4]);
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(flags.to_ne_bytes());
        self.0.extend(sequence.to_ne_bytes());
        // The port: the kernel knows whose socket it is.
        self.0.extend([0; 4]);
        self.0.extend(fixed);
        self.fill_up();
        begin
    }

    /// Ends the message that begins there: from now on its header has its length.
    ///
    /// # Panics
    /// It has 4 GiB.
    pub fn end(&mut self, begin: usize) {
        let length = u32::try_from(self.0.len() - begin).expect("a message has less than 4 GiB");
        self.0[begin..begin + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Adds flags to those of the message that begins there.
    pub fn add_flags(&mut self, begin: usize, flags: u16) {
        let at = begin + 6;
        let flags = u16::from_ne_bytes([self.0[at], self.0[at + 1]]) | flags;
        self.0[at..at + 2].copy_from_slice(&flags.to_ne_bytes());
    }

    /// Appends an attribute.
    ///
    /// # Panics
    /// Its value has 64 KiB: the caller bounds what it has from others.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        let begin = self.begin_nest();
        self.0.extend(value);
        self.end_attribute(begin, kind);
        self.fill_up();
    }

    /// Begins an attribute of attributes; [`Self::end_nest`] takes the position.
    pub fn begin_nest(&mut self) -> usize {
        let begin = self.0.len();
        self.0.extend([0; ATTRIBUTE]);
        begin
    }

    /// Ends an attribute of attributes.
    ///
    /// # Panics
    /// They have 64 KiB together.
    pub fn end_nest(&mut self, begin: usize, kind: u16) {
        self.end_attribute(begin, kind | NLA_F_NESTED);
    }

    fn end_attribute(&mut self, begin: usize, kind: u16) {
        let length = self.0.len() - begin;
        let length = u16::try_from(length).expect("an attribute has less than 64 KiB");
        self.0[begin..begin + 2].copy_from_slice(&length.to_ne_bytes());
        self.0[begin + 2..begin + 4].copy_from_slice(&kind.to_ne_bytes());
    }

    fn fill_up(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(ALIGN), 0);
    }

    /// Appends messages that are written already.
    pub fn append(&mut self, messages: &[u8]) {
        self.0.extend(messages);
    }

    /// Throws away what is written; its room stays.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The bytes up to here.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes to send.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// A request of one message.
#[derive(Debug, Clone)]
pub struct Request(Writer);

impl Request {
    /// A request of this kind, with the fixed header before its attributes.
    pub fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut writer = Writer::default();
        writer.begin(kind, NLM_F_REQUEST | flags, 0, fixed);
        Self(writer)
    }

    /// Appends one attribute.
    ///
    /// # Panics
    /// As [`Writer::attribute`].
    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.attribute(kind, value);
        self
    }

    /// Appends an attribute that is an address.
    pub fn address(self, kind: u16, addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(v4) => self.attribute(kind, &v4.octets()),
            IpAddr::V6(v6) => self.attribute(kind, &v6.octets()),
        }
    }

    /// The bytes to send.
    pub fn finish(mut self) -> Vec<u8> {
        self.0.end(0);
        self.0.into_bytes()
    }
}

/// The number of an address's family: AF_INET or AF_INET6.
pub fn family(addr: IpAddr) -> u8 {
    match addr {
        IpAddr::V4(_) => 2,
        IpAddr::V6(_) => 10,
    }
}
