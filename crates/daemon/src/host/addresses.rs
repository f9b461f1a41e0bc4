//! The addresses of this host's interfaces, by rtnetlink: which there are, and virtual
//! addresses added and removed.

use std::{io, net::IpAddr};

use weir_netlink::{
    Attributes, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, Protocol, Request,
    ask, family, ip, word,
};

/// linux/rtnetlink.h, linux/if_addr.h
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_CACHEINFO: u16 = 6;
const IFA_FLAGS: u16 = 8;
/// Without the kernel's own question whether somebody has it, and without a route.
const IFA_F_NODAD_AND_NOPREFIXROUTE: u32 = 0x202;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_HOST: u8 = 254;
/// What an address's message has before its attributes.
const IFADDRMSG: usize = 8;

/// Every address with the index of its interface.
pub(crate) fn all() -> io::Result<Vec<(u32, IpAddr)>> {
    let request = Request::new(RTM_GETADDR, NLM_F_DUMP, &[0; IFADDRMSG]).finish();
    ask(Protocol::Route, &request, |message| {
        (message.kind == RTM_NEWADDR).then(|| read(message.body))?
    })
}

/// Reads an interface's index and address; of a link between two hosts IFA_ADDRESS is the
/// other end.
fn read(body: &[u8]) -> Option<(u32, IpAddr)> {
    let attributes = Attributes::behind(body, IFADDRMSG);
    let addr = |kind| attributes.get(kind).and_then(ip);
    let addr = addr(IFA_LOCAL).or_else(|| addr(IFA_ADDRESS))?;
    Some((word(body, 4)?, addr))
}

fn request(kind: u16, flags: u16, ifindex: u32, addr: IpAddr) -> Request {
    let (length, scope) = match addr {
        // Of this scope it is the source of nothing that leaves, unless asked for.
        IpAddr::V4(_) => (32, RT_SCOPE_HOST),
        IpAddr::V6(_) => (128, RT_SCOPE_UNIVERSE),
    };
    let mut body = vec![family(addr), length, 0, scope];
    body.extend(ifindex.to_ne_bytes());
    let request = Request::new(kind, flags | NLM_F_ACK, &body);
    request.address(IFA_LOCAL, addr).address(IFA_ADDRESS, addr)
}

/// Adds one host's address of which packets are received, and which is chosen as the
/// source of nothing: IPv6 has it deprecated for that (RFC 4862 5.5.4).
///
/// # Errors
/// It is there, or the kernel refuses it.
pub(crate) fn add(ifindex: u32, addr: IpAddr) -> io::Result<()> {
    let request = request(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, ifindex, addr);
    let request = match addr {
        IpAddr::V4(_) => request,
        // struct ifa_cacheinfo: preferred for no time, valid for ever.
        IpAddr::V6(_) => {
            request.attribute(IFA_CACHEINFO, &[[0; 4], [0xff; 4], [0; 4], [0; 4]].concat())
        }
    };
    carry_out(request)
}

/// Adds one like [`add`] that this host is known to be alone with, or gives one that is
/// there another lifetime: after so many seconds the kernel removes it.
///
/// # Errors
/// The kernel refuses it.
pub(crate) fn hold(ifindex: u32, addr: IpAddr, seconds: Option<u32>) -> io::Result<()> {
    let valid = seconds.unwrap_or(u32::MAX);
    let (preferred, flags) = match addr {
        IpAddr::V4(_) => (valid, 0),
        IpAddr::V6(_) => (0, IFA_F_NODAD_AND_NOPREFIXROUTE),
    };
    let lifetime = [preferred, valid, 0, 0].map(u32::to_ne_bytes).concat();
    let request = request(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, ifindex, addr)
        .attribute(IFA_FLAGS, &flags.to_ne_bytes())
        .attribute(IFA_CACHEINFO, &lifetime);
    carry_out(request)
}

/// Removes what [`add`] or [`hold`] added.
///
/// # Errors
/// It is not there, or the kernel refuses to.
pub(crate) fn remove(ifindex: u32, addr: IpAddr) -> io::Result<()> {
    carry_out(request(RTM_DELADDR, 0, ifindex, addr))
}

fn carry_out(request: Request) -> io::Result<()> {
    ask(Protocol::Route, &request.finish(), |_| None::<()>).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_hosts_loopback_addresses_are_read() {
        let all = all().unwrap();
        assert!(all.contains(&(1, IpAddr::from([127, 0, 0, 1]))), "{all:?}");
    }

    #[test]
    fn of_a_link_between_two_the_local_end_counts() {
        let mut body = vec![2, 32, 0, 0];
        body.extend(7u32.to_ne_bytes());
        for (kind, last) in [(IFA_ADDRESS, 2), (IFA_LOCAL, 1)] {
            body.extend(8u16.to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend([10, 0, 0, last]);
        }
        assert_eq!(read(&body), Some((7, IpAddr::from([10, 0, 0, 1]))));
        for cut in 0..body.len() {
            assert_ne!(read(&body[..cut]), Some((7, IpAddr::from([10, 0, 0, 1]))));
        }
    }
}
