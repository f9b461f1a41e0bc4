//! What a network segment says of who has an address: ARP, neighbour discovery,
//! advertisements of VRRP and answers to checks at virtual addresses, from anybody on it.
#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use weir_core::{balance::probe, neighbour};
use weir_vrrp::{
    Advertisement, Checksum,
    packet::{read_ipv4, read_ipv6},
};

fuzz_target!(|data: &[u8]| {
    let _ = (neighbour::read(data), read_ipv4(data), read_ipv6(data));
    let _ = probe::read(data);
    for [source, destination] in [["192.0.2.1", "224.0.0.18"], ["fe80::1", "ff02::12"]] {
        let [source, destination]: [IpAddr; 2] =
            [source, destination].map(|text| text.parse().expect("an address"));
        // What is read is what would be written, but for reserved bits.
        if let Ok(read) = Advertisement::read(data, source, destination) {
            let written = read.write(source, destination, Checksum::WithPseudoHeader);
            let again = Advertisement::read(&written, source, destination);
            assert_eq!(again.as_ref(), Ok(&read));
            assert_eq!(written.len(), data.len());
        }
    }
});
