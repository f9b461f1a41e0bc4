//! The kernel's routing socket (rtnetlink): a request, and the messages that answer it.
//! What their attributes mean is the business of those who ask.

use std::{io, net::IpAddr};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// linux/netlink.h
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_MULTI: u16 = 2;
/// Asks for an answer that says whether it was done.
pub(crate) const NLM_F_ACK: u16 = 4;
/// Asks for all there are.
pub(crate) const NLM_F_DUMP: u16 = 0x300;
/// Makes it, and refuses where it is there.
pub(crate) const NLM_F_CREATE_EXCL: u16 = 0x600;
/// Makes it, or changes what is there.
pub(crate) const NLM_F_CREATE_REPLACE: u16 = 0x500;
/// Bytes of a message's header.
const HEAD: usize = 16;

/// A request of route netlink.
pub(crate) struct Request(Vec<u8>);

impl Request {
    /// A request of this kind, with the fixed header before its attributes.
    pub(crate) fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(body);
        Self(bytes)
    }

    /// Appends one attribute.
    pub(crate) fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend((4 + value.len() as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// With an attribute that is an address.
    pub(crate) fn address(self, kind: u16, addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(v4) => self.attribute(kind, &v4.octets()),
            IpAddr::V6(v6) => self.attribute(kind, &v6.octets()),
        }
    }

    /// Asks the kernel; `each` is given kind and body of every message of the answer.
    ///
    /// # Errors
    /// What the kernel answers.
    pub(crate) fn ask(mut self, mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None, // NETLINK_ROUTE is 0, the default
        )?;
        send(&socket, &self.0, SendFlags::empty())?;
        let mut buffer = vec![0u8; 64 * 1024];
        loop {
            let len = match recv(&socket, &mut *buffer, RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => continue,
                received => received?.0,
            };
            if !read(&buffer[..len], &mut each)? {
                return Ok(());
            }
        }
    }
}

/// Reads one datagram of an answer; false: no more follow.
pub(crate) fn read(mut rest: &[u8], each: &mut impl FnMut(u16, &[u8])) -> io::Result<bool> {
    if rest.is_empty() {
        return Ok(false);
    }
    let mut goes_on = true;
    while rest.len() >= HEAD {
        let size = word(rest, 0) as usize;
        if size < HEAD || size > rest.len() {
            break;
        }
        let body = &rest[HEAD..size];
        match half(rest, 4) {
            NLMSG_DONE => return Ok(false),
            NLMSG_ERROR if body.len() >= 4 => {
                return match word(body, 0) as i32 {
                    0 => Ok(false),
                    errno => Err(io::Error::from_raw_os_error(-errno)),
                };
            }
            kind => {
                each(kind, body);
                goes_on = half(rest, 6) & NLM_F_MULTI != 0;
            }
        }
        rest = &rest[size.next_multiple_of(4).min(rest.len())..];
    }
    Ok(goes_on)
}

/// Kind and value of each attribute.
pub(crate) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        if rest.len() < 4 {
            return None;
        }
        let size = usize::from(half(rest, 0));
        if size < 4 || size > rest.len() {
            return None;
        }
        let found = (half(rest, 2), &rest[4..size]);
        rest = &rest[size.next_multiple_of(4).min(rest.len())..];
        Some(found)
    })
}

/// An address in an attribute.
pub(crate) fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

/// Sixteen bits in the kernel's order; there are so many.
pub(crate) fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

/// Thirty-two bits in the kernel's order; there are so many.
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// AF_INET and AF_INET6.
pub(crate) fn family(addr: IpAddr) -> u8 {
    match addr {
        IpAddr::V4(_) => 2,
        IpAddr::V6(_) => 10,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A message of a dump.
    pub(crate) fn message(kind: u16, body: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let request = Request::new(kind, NLM_F_MULTI, body);
        let add = |request: Request, (kind, value): &(u16, &[u8])| request.attribute(*kind, value);
        let Request(mut bytes) = attributes.iter().fold(request, add);
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes
    }

    #[test]
    fn answers_are_read_to_their_end_and_cut_anywhere() {
        let mut answer = message(7, &[1, 2, 3, 4], &[(5, b"abc"), (6, b"")]);
        answer.extend(message(8, &[], &[]));
        let mut found = Vec::new();
        let mut note = |kind: u16, body: &[u8]| found.push((kind, body.to_vec()));
        assert!(read(&answer, &mut note).unwrap());
        assert_eq!(found.len(), 2);
        let (kind, body) = &found[0];
        assert_eq!((*kind, &body[..4]), (7, &[1, 2, 3, 4][..]));
        let values: Vec<_> = attributes(&body[4..]).collect();
        assert_eq!(values, [(5, &b"abc"[..]), (6, b"")]);
        for cut in 0..answer.len() {
            let _ = read(&answer[..cut], &mut |_, body| {
                attributes(body).for_each(drop)
            });
        }
        assert!(!read(&message(NLMSG_DONE, &[0; 4], &[]), &mut |_, _| ()).unwrap());
        let refused = message(NLMSG_ERROR, &(-13i32).to_ne_bytes(), &[]);
        let error = read(&refused, &mut |_, _| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let done = message(NLMSG_ERROR, &[0; 4], &[]);
        assert!(!read(&done, &mut |_, _| ()).unwrap());
    }
}
