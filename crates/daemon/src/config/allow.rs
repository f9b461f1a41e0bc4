//! How wide a prefix of an allow list may be: one that holds too much of the
//! Internet is a mistake, in the file as well as by command.

use std::net::IpAddr;

use weir_core::Prefix;

/// Wider prefixes than the largest that anybody was ever given are allowed by
/// mistake.
const WIDEST_V4: u8 = 8;
const WIDEST_V6: u8 = 16;

/// Is so much of all addresses in it that weir would do nothing?
pub(crate) fn is_too_wide(prefix: Prefix) -> bool {
    match prefix.addr() {
        IpAddr::V4(_) => prefix.bits() < WIDEST_V4,
        // Unique local addresses are all in fc00::/7.
        IpAddr::V6(addr) => {
            prefix.bits() < WIDEST_V6 && !(addr.is_unique_local() && prefix.bits() >= 7)
        }
    }
}

/// Why that is not allowed.
pub(crate) fn too_wide(prefix: Prefix) -> String {
    format!(
        "{prefix} is too wide to be allowed: no ban, list or geofence would hold for it; allowed are IPv4 /{WIDEST_V4} and IPv6 /{WIDEST_V6} and longer ones"
    )
}
