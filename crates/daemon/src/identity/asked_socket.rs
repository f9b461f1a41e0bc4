//! A socket as people name it: by its ends, as ss(8) and lsof(8) print them, or by its inode.

use std::{fmt, net::IpAddr, str::FromStr};

use weir_bpf::identity::ListedSocket;
use weir_identity::Protocols;

/// Bytes of a text that are read.
const MAX_TEXT: usize = 256;

/// One end: an address, a port, or both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct End {
    addr: Option<IpAddr>,
    port: Option<u16>,
}

/// Which sockets are asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskedSocket {
    /// The one with this inode, as `/proc/PID/fd` and `ss -e` have it.
    Inode(u64),
    /// The sockets with these ends.
    Ends(Ends),
}

/// The ends of a socket, as far as they are given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ends {
    kind: Option<Protocols>,
    own: End,
    peer: Option<End>,
}

/// The text names no socket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no process and no socket; allowed: {ALLOWED}")]
pub struct NoSocketName(String);

const ALLOWED: &str = "the number of a process; inode:NUMBER; LOCAL or LOCAL-REMOTE, each of them ADDRESS:PORT, [IPV6]:PORT or :PORT, with tcp:, udp:, icmp: or raw: before it or not, such as tcp:192.0.2.1:443-198.51.100.7:51000, [::1]:53 or :443";

/// Without the interfaces that ss(8) names, inside of the bracket or behind it: they say
/// nothing of the address, and may have any sign in their names.
fn without_zones(text: &str) -> String {
    let mut parts = text.split('%');
    let mut left = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        left.push_str(part.find([':', ']']).map_or("", |at| &part[at..]));
    }
    left
}

impl FromStr for End {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (addr, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (addr, port) = rest.split_once("]:").ok_or(())?;
                let addr: std::net::Ipv6Addr = addr.parse().map_err(|_| ())?;
                (Some(addr.to_canonical()), port)
            }
            None => match text.split_once(':').ok_or(())? {
                ("" | "*", port) => (None, port),
                (addr, port) => {
                    let addr: std::net::Ipv4Addr = addr.parse().map_err(|_| ())?;
                    (Some(addr.into()), port)
                }
            },
        };
        let port = match port {
            "*" => None,
            port if port.bytes().all(|b| b.is_ascii_digit()) => Some(port.parse().map_err(|_| ())?),
            _ => return Err(()),
        };
        Ok(Self { addr, port })
    }
}

impl FromStr for AskedSocket {
    type Err = NoSocketName;

    fn from_str(text: &str) -> Result<Self, NoSocketName> {
        let wrong = || NoSocketName(text.chars().take(MAX_TEXT).collect());
        let text = text.trim();
        if text.len() > MAX_TEXT {
            return Err(wrong());
        }
        if let Some(number) = text.strip_prefix("inode:") {
            let number = number.parse().ok().filter(|number| *number != 0);
            return Ok(Self::Inode(number.ok_or_else(wrong)?));
        }
        let kinds = &Protocols::ALL[..4];
        let named = kinds.iter().find_map(|(word, kind)| {
            let rest = text.strip_prefix(word)?.strip_prefix(':')?;
            Some((*kind, rest))
        });
        let (kind, ends) = match named {
            Some((kind, rest)) => (Some(kind), rest),
            None => (None, text),
        };
        let ends = without_zones(ends);
        let (own, peer) = match ends.split_once("->").or_else(|| ends.split_once('-')) {
            Some((own, peer)) => (own, Some(peer)),
            None => (&*ends, None),
        };
        let own: End = own.parse().map_err(|()| wrong())?;
        let peer: Option<End> = peer.map(str::parse).transpose().map_err(|()| wrong())?;
        if own == End::default() && peer.is_none_or(|peer| peer == End::default()) {
            return Err(wrong());
        }
        Ok(Self::Ends(Ends { kind, own, peer }))
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.addr {
            Some(IpAddr::V6(addr)) => write!(f, "[{addr}]")?,
            Some(addr) => write!(f, "{addr}")?,
            None => (),
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => write!(f, ":*"),
        }
    }
}

impl fmt::Display for AskedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ends { kind, own, peer } = match self {
            Self::Inode(inode) => return write!(f, "inode:{inode}"),
            Self::Ends(ends) => ends,
        };
        for kind in kind.iter().flat_map(|kind| kind.names()) {
            write!(f, "{kind}:")?;
        }
        write!(f, "{own}")?;
        peer.map_or(Ok(()), |peer| write!(f, "-{peer}"))
    }
}

/// How well a socket is what is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fit {
    /// It is bound to all addresses, the one that is asked about among them.
    Wildcard,
    /// The socket has these very ends.
    Exact,
}

impl AskedSocket {
    /// How well this socket is the one that is asked about; `None`: it is another one.
    pub(super) fn fit(&self, socket: &ListedSocket) -> Option<Fit> {
        let ends = match self {
            Self::Inode(inode) => return (socket.inode == Some(*inode)).then_some(Fit::Exact),
            Self::Ends(ends) => ends,
        };
        let is_port = |end: &End, port| end.port.is_none_or(|wanted| wanted == port);
        if ends.kind.is_some_and(|kind| kind.0 != socket.kind)
            || !is_port(&ends.own, socket.own.port())
        {
            return None;
        }
        if let Some(peer) = &ends.peer
            && (!is_port(peer, socket.peer.port())
                || peer.addr.is_some_and(|addr| addr != socket.peer.ip()))
        {
            return None;
        }
        match ends.own.addr {
            Some(addr) if addr != socket.own.ip() => {
                let bound = socket.own.ip();
                // One of IPv6 serves IPv4 as well, unless it is told not to.
                let serves = bound.is_unspecified() && (bound.is_ipv6() || addr.is_ipv4());
                serves.then_some(Fit::Wildcard)
            }
            _ => Some(Fit::Exact),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> AskedSocket {
        text.parse().unwrap()
    }

    #[test]
    fn sockets_are_named_as_ss_and_lsof_print_them() {
        for (text, is) in [
            ("inode:4711", "inode:4711"),
            (":443", ":443"),
            ("*:443", ":443"),
            ("tcp:*:443", "tcp::443"),
            ("192.0.2.1:443", "192.0.2.1:443"),
            ("udp:127.0.0.53%lo:53", "udp:127.0.0.53:53"),
            ("[fe80::1%eth0]:546", "[fe80::1]:546"),
            ("[fe80::1]%eth-0:546", "[fe80::1]:546"),
            ("[::ffff:192.0.2.1]:443", "192.0.2.1:443"),
            (
                "tcp:192.0.2.1:443-198.51.100.7:51000",
                "tcp:192.0.2.1:443-198.51.100.7:51000",
            ),
            (
                "[2001:db8::1]:443->[2001:db8::7]:51000",
                "[2001:db8::1]:443-[2001:db8::7]:51000",
            ),
            (":*-198.51.100.7:*", ":*-198.51.100.7:*"),
            ("raw:*:1", "raw::1"),
        ] {
            assert_eq!(asked(text).to_string(), is, "{text}");
        }
        for text in [
            "",
            "tcp",
            "tcp:",
            "sctp::1",
            "inode:",
            "inode:0",
            "inode:-1",
            "inode:x",
            ":",
            ":*",
            ":*-:*",
            ":65536",
            ":+80",
            ":http",
            "::1:80",
            "[::1]",
            "[::1]80",
            "[192.0.2.1]:80",
            "192.0.2.300:80",
            "192.0.2.1",
            "192.0.2.1:80-",
            "192.0.2.1:80-x",
            "[::1",
            "%",
            &"1".repeat(1000),
        ] {
            let error = text.parse::<AskedSocket>().unwrap_err().to_string();
            assert!(
                error.contains("allowed: the number of a process"),
                "{error}"
            );
            assert!(error.len() < 800, "{error}");
        }
    }

    #[test]
    fn one_that_is_bound_to_all_addresses_fits_less_well() {
        let socket = |kind: Protocols, own: &str, peer: &str| ListedSocket {
            cookie: 1,
            inode: Some(7),
            netns: 1,
            own: own.parse().unwrap(),
            peer: peer.parse().unwrap(),
            descriptor: None,
            kind: kind.0,
            protocol: 6,
            state: 1,
            record: None,
        };
        let tcp = socket(Protocols::TCP, "192.0.2.1:443", "198.51.100.7:51000");
        let all = socket(Protocols::TCP, "0.0.0.0:443", "0.0.0.0:0");
        let all6 = socket(Protocols::UDP, "[::]:443", "[::]:0");
        for (text, fits) in [
            (":443", [Some(Fit::Exact); 3]),
            ("udp::443", [None, None, Some(Fit::Exact)]),
            (
                "192.0.2.1:443",
                [Some(Fit::Exact), Some(Fit::Wildcard), Some(Fit::Wildcard)],
            ),
            ("[2001:db8::1]:443", [None, None, Some(Fit::Wildcard)]),
            ("tcp:192.0.2.1:443-:51000", [Some(Fit::Exact), None, None]),
            (":*-198.51.100.7:*", [Some(Fit::Exact), None, None]),
            ("inode:7", [Some(Fit::Exact); 3]),
            ("inode:8", [None; 3]),
            (":444", [None; 3]),
        ] {
            let found = [&tcp, &all, &all6].map(|socket| asked(text).fit(socket));
            assert_eq!(found, fits, "{text}");
        }
    }
}
