//! The header of the PROXY protocol, version 2, section 2.2: tells a real who the client
//! is, ahead of its bytes.

use std::net::{IpAddr, SocketAddr};

use crate::service::{Flow, Protocol};

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, and a connection on behalf of another host.
const PROXY: u8 = 0x21;

/// The header of a flow. Client and virtual address are of one family, as they are in
/// every packet.
pub(crate) fn header(flow: &Flow) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    let transport = match flow.protocol {
        Protocol::Tcp => 1,
        Protocol::Udp => 2,
    };
    let (family, len) = match flow.vip {
        SocketAddr::V4(_) => (0x10, 12u16),
        SocketAddr::V6(_) => (0x20, 36),
    };
    header.extend([PROXY, family | transport]);
    header.extend(len.to_be_bytes());
    for addr in [flow.client.ip(), flow.vip.ip()] {
        match addr {
            IpAddr::V4(v4) => header.extend(v4.octets()),
            IpAddr::V6(v6) => header.extend(v6.octets()),
        }
    }
    for port in [flow.client.port(), flow.vip.port()] {
        header.extend(port.to_be_bytes());
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_the_specification() {
        let flow = Flow {
            client: "192.0.2.1:258".parse().unwrap(),
            vip: "198.51.100.80:443".parse().unwrap(),
            protocol: Protocol::Tcp,
        };
        let mut expected =
            b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a\x21\x11\x00\x0c".to_vec();
        expected.extend([192, 0, 2, 1, 198, 51, 100, 80, 1, 2, 1, 187]);
        assert_eq!(header(&flow), expected);
        let flow = Flow {
            client: "[2001:db8::1]:1".parse().unwrap(),
            vip: "[2001:db8::80]:53".parse().unwrap(),
            protocol: Protocol::Udp,
        };
        let text = header(&flow);
        assert_eq!(text[..16], *b"\r\n\r\n\0\r\nQUIT\n\x21\x22\x00\x24");
        assert_eq!((text.len(), text[16], text[47]), (52, 0x20, 0x80));
        assert_eq!(text[48..], [0, 1, 0, 53]);
    }
}
