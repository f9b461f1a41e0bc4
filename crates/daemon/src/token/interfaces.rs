//! The interfaces at which datagrams, or segments, get their tokens: those that the configuration
//! names, or else those to which routes lead. They come and go, so they are looked at again and
//! again.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use weir_bpf::{
    device::{Device, name_of},
    token::InterfaceSigner,
};
use weir_core::Prefix;
use weir_token::config::MAX_INTERFACES;

use crate::host::interfaces_to;

/// Where tokens are put in, and where they are not though they should be.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct SigningInterfaces {
    /// The names of those that have the program.
    pub(super) names: Vec<String>,
    /// The text of an alert; `None`: nothing is wrong.
    pub(super) problem: Option<String>,
    /// When a route led to them last.
    routed: BTreeMap<String, Instant>,
}

/// For so long an interface to which no route leads keeps the program: routes go for a moment
/// when an address or the state of a line changes.
const STAYS: Duration = Duration::from_secs(60);

/// Which interfaces are to sign, and for whom.
pub(super) struct Wanted<'c> {
    /// The interfaces, if the configuration names them.
    pub(super) interfaces: Option<&'c [String]>,
    /// To whom it is signed.
    pub(super) networks: &'c [Prefix],
    /// The keys that name these networks.
    pub(super) keys: &'static str,
    /// What becomes of it where an interface does not sign.
    pub(super) otherwise: &'static str,
}

/// Puts the program at the interfaces that should have it, and takes it from all others, if
/// it is known which those are.
pub(super) fn follow(
    signer: &InterfaceSigner,
    wanted: &Wanted<'_>,
    before: &SigningInterfaces,
    now: Instant,
) -> SigningInterfaces {
    let mut problems = Vec::new();
    let mut routed = BTreeMap::new();
    let mut is_known = true;
    let mut names = match wanted.interfaces {
        Some(names) => names.to_vec(),
        None => {
            let found = interfaces_to(wanted.networks).map_err(|error| {
                problems.push(format!("cannot read the routes: {error}"));
                is_known = false;
            });
            let mut names = Vec::new();
            for index in found.unwrap_or_default() {
                match name_of(index) {
                    Ok(Some(name)) => names.push(name),
                    // It has gone in between.
                    Ok(None) => {}
                    Err(error) => {
                        problems.push(format!("interface {index}: {error}"));
                        is_known = false;
                    }
                }
            }
            routed = stay(&before.routed, &names, now, is_known);
            let stays = routed.keys().filter(|name| !names.contains(name));
            let stays: Vec<_> = stays.filter(|name| is_there(name)).cloned().collect();
            names.extend(stays);
            names
        }
    };
    if names.len() > MAX_INTERFACES {
        problems.push(format!(
            "routes to {} lead to {} interfaces, and only {MAX_INTERFACES} of them sign: name those that matter in interfaces",
            wanted.keys,
            names.len()
        ));
        names.truncate(MAX_INTERFACES);
    }
    let mut attached = Vec::new();
    let mut signing_at = Vec::new();
    for name in names {
        let done = match Device::find_present(&name) {
            Ok(Some(device)) => {
                let done = signer.attach(device.index, device.is_ethernet());
                done.map(|()| device.index).map_err(|e| e.to_string())
            }
            Ok(None) => Err("it is not there".to_owned()),
            Err(error) => {
                is_known = false;
                Err(error.to_string())
            }
        };
        match done {
            Ok(index) => {
                attached.push(index);
                signing_at.push(name);
            }
            Err(error) => problems.push(format!("{name}: {error}")),
        }
    }
    if is_known {
        signer.keep_only(&attached);
    }
    if signing_at.is_empty() && problems.is_empty() {
        problems.push(format!("no route leads to {}", wanted.keys));
    }
    SigningInterfaces {
        names: signing_at,
        routed,
        problem: (!problems.is_empty()).then(|| {
            format!(
                "{} where this is so: {}",
                wanted.otherwise,
                problems.join("; ")
            )
        }),
    }
}

fn is_there(name: &str) -> bool {
    !matches!(Device::find_present(name), Ok(None))
}

/// The interfaces to which routes lead now, or have led until a moment ago, with the time of
/// that; while it is not known all of them stay.
fn stay(
    before: &BTreeMap<String, Instant>,
    names: &[String],
    now: Instant,
    is_known: bool,
) -> BTreeMap<String, Instant> {
    let mut all = before.clone();
    all.retain(|_, at| !is_known || now.saturating_duration_since(*at) < STAYS);
    all.extend(names.iter().map(|name| (name.clone(), now)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_keeps_the_program_while_its_route_is_gone_for_a_moment() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let names = |of: &BTreeMap<String, Instant>| of.keys().cloned().collect::<Vec<_>>();
        let (one, other) = (["eth0".to_owned()], ["eth1".to_owned()]);
        let all = stay(&BTreeMap::new(), &one, begin, true);
        let all = stay(&all, &other, after(59), true);
        assert_eq!(names(&all), ["eth0", "eth1"]);
        assert_eq!(names(&stay(&all, &other, after(60), true)), ["eth1"]);
        // Where routes cannot be read, nothing says that one is over.
        let unread = stay(&all, &[], after(600), false);
        assert_eq!(names(&unread), ["eth0", "eth1"]);
        assert!(stay(&unread, &[], after(610), true).is_empty());
    }
}
