//! `allow` and `[lockout]`: who is exempt. A prefix that holds too much of the
//! Internet is a mistake, in the file as well as by command.

use std::{net::IpAddr, time::Duration};

use weir_config::manual::{Table, Usual::Is, key};
use weir_config::{At, Section, values::DAY};
use weir_core::{Prefix, PrefixSet};

/// `[lockout]` in weir.toml(5).
pub(crate) const MANUAL: &[Table] = &[Table {
    name: "lockout",
    about: "Keeps administrators from locking themselves out.",
    needs: &[],
    keys: &[
        key(
            "logins",
            Is("true"),
            "Addresses from which root, or a member of sudo, wheel or admin, is logged in are exempt.",
        ),
        key(
            "grace",
            Is("\"1h\""),
            "How long such an address stays exempt after the logout.",
        ),
    ],
}];

/// Exemptions of root logins, besides the allow list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lockout {
    /// How long the peers of root logins stay exempt after they log out.
    pub grace: Duration,
    /// Are root's remote logins exempt at all?
    pub logins: bool,
}

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

/// The error text for a prefix that is too wide to be allowed.
pub(crate) fn too_wide(prefix: Prefix) -> String {
    format!(
        "{prefix} is too wide to be allowed: no ban, list or geofence would hold for it; allowed are IPv4 /{WIDEST_V4} and IPv6 /{WIDEST_V6} and longer ones"
    )
}

/// The prefixes of `allow`, none wider than `weir allow add` takes without --force.
pub(crate) fn allow(root: &mut Section<'_, '_>) -> PrefixSet {
    let list = root.list("allow", "a list of prefixes such as \"192.0.2.0/24\"");
    let mut allow = PrefixSet::default();
    for At { value, line } in list.map(|at| at.value).unwrap_or_default() {
        match value.parse::<Prefix>() {
            Ok(prefix) if is_too_wide(prefix) => {
                root.error(line, format!("allow: {}", too_wide(prefix)));
            }
            Ok(prefix) => {
                allow.insert(prefix);
            }
            Err(error) => root.error(line, format!("allow: {error}")),
        }
    }
    allow
}

/// What keeps the administrator from being locked out.
pub(crate) fn lockout(root: &mut Section<'_, '_>) -> Lockout {
    let mut lockout = Lockout {
        grace: Duration::from_secs(3600),
        logins: true,
    };
    if let Some(mut section) = root.section("lockout") {
        if let Some(at) = section.duration("grace", Duration::ZERO..=30 * DAY) {
            lockout.grace = at.value;
        }
        if let Some(logins) = section.boolean("logins") {
            lockout.logins = logins;
        }
        section.finish();
    }
    lockout
}
