//! Which ports somebody on this host serves, as /proc tells: those cannot be
//! decoys. Sockets on loopback addresses do not count, nobody outside meets
//! them. In this network namespace only: what is forwarded to a container is
//! not seen.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufRead, BufReader},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

use weir_core::Protocol;

/// State TCP_LISTEN of net/tcp_states.h.
const LISTEN: &str = "0A";

/// The ports with a listener (TCP) or a socket (UDP).
pub(crate) fn all() -> BTreeSet<(Protocol, u16)> {
    [
        (Protocol::Tcp, "/proc/net/tcp"),
        (Protocol::Tcp, "/proc/net/tcp6"),
        (Protocol::Udp, "/proc/net/udp"),
        (Protocol::Udp, "/proc/net/udp6"),
    ]
    .into_iter()
    .filter_map(|(protocol, path)| Some((protocol, BufReader::new(File::open(path).ok()?))))
    .flat_map(|(protocol, file)| read(protocol, file))
    .collect()
}

/// The rows of one of these files: `sl local_address rem_address st …`,
/// addresses as hexadecimal words in host byte order. TCP's listeners come
/// first, so the many connections behind them are never read.
fn read(protocol: Protocol, file: impl BufRead) -> BTreeSet<(Protocol, u16)> {
    file.lines()
        .skip(1)
        .map_while(Result::ok)
        .map_while(|line| {
            let mut columns = line.split_whitespace().skip(1);
            let (local, state) = (columns.next()?.to_owned(), columns.nth(1)?);
            (protocol != Protocol::Tcp || state == LISTEN).then_some(local)
        })
        .filter_map(|local| {
            let (addr, port) = local.split_once(':')?;
            let port = u16::from_str_radix(port, 16).ok()?;
            (!address(addr)?.to_canonical().is_loopback()).then_some((protocol, port))
        })
        .collect()
}

fn address(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(hex.get(at..at + 8)?, 16).ok();
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?.to_ne_bytes()).into()),
        32 => {
            let mut bytes = [0; 16];
            for n in 0..4 {
                bytes[n * 4..n * 4 + 4].copy_from_slice(&word(n * 8)?.to_ne_bytes());
            }
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

/// The ports from which this host's own connections begin.
pub(crate) fn ephemeral() -> RangeInclusive<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let mut bounds = text.as_deref().unwrap_or_default().split_whitespace();
    let mut bound = |default| {
        let read = bounds.next().and_then(|word| word.parse().ok());
        read.unwrap_or(default)
    };
    bound(32_768)..=bound(60_999)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue\n";

    #[test]
    fn listeners_are_read() {
        let any = "0: 00000000:0016 00000000:0000 0A 00000000:00000000\n";
        let loopback = "1: 0100007F:0CEA 00000000:0000 0A 00000000:00000000\n";
        let own = "2: 010200C0:0050 00000000:0000 0A 00000000:00000000\n";
        let connection = "3: 010200C0:9C40 020200C0:0016 01 00000000:00000000\n";
        let tcp = format!("{HEAD}{any}{loopback}{own}{connection}{any}");
        let found = read(Protocol::Tcp, tcp.as_bytes());
        let found: Vec<_> = found.into_iter().collect();
        assert_eq!(found, [(Protocol::Tcp, 22), (Protocol::Tcp, 80)]);
        let udp = format!("{HEAD}{}", connection.replace("9C40", "0035"));
        let found: Vec<_> = read(Protocol::Udp, udp.as_bytes()).into_iter().collect();
        assert_eq!(found, [(Protocol::Udp, 53)]);
    }

    #[test]
    fn listeners_on_ipv6_are_read() {
        let any = "00000000000000000000000000000000:0017 0:0 0A 0\n";
        let loopback = "00000000000000000000000001000000:0018 0:0 0A 0\n";
        let mapped = "0000000000000000FFFF00000100007F:0019 0:0 0A 0\n";
        let tcp = format!("{HEAD}0: {any}1: {loopback}2: {mapped}short\n");
        let found: Vec<_> = read(Protocol::Tcp, tcp.as_bytes()).into_iter().collect();
        assert_eq!(found, [(Protocol::Tcp, 23)]);
    }
}
