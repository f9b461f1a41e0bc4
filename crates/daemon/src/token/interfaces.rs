//! The interfaces at which datagrams get their tokens: those that the configuration names,
//! or else those to which routes lead. They come and go, so they are looked at again and
//! again.

use weir_bpf::{
    device::{Device, name_of},
    token::DatagramSigner,
};
use weir_token::config::{MAX_INTERFACES, TokenConfig};

use crate::host::interfaces_to;

/// Where datagrams get tokens, and where they do not though they should.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct SigningInterfaces {
    /// The names of those that have the program.
    pub(super) names: Vec<String>,
    /// The text of an alert; `None`: nothing is wrong.
    pub(super) problem: Option<String>,
}

/// Puts the program at the interfaces that should have it, and takes it from all others.
pub(super) fn follow(datagram_signer: &DatagramSigner, config: &TokenConfig) -> SigningInterfaces {
    let mut problems = Vec::new();
    // Each once: the configuration names none twice, and routes are read as a set.
    let mut names = match &config.interfaces {
        Some(names) => names.clone(),
        None => routed(config, &mut problems),
    };
    if names.len() > MAX_INTERFACES {
        problems.push(format!(
            "routes to sign_udp_to lead to {} interfaces, and only {MAX_INTERFACES} of them sign: name those that matter in interfaces",
            names.len()
        ));
        names.truncate(MAX_INTERFACES);
    }
    let mut attached = Vec::new();
    let mut signing_at = Vec::new();
    for name in names {
        let done = match Device::find_present(&name) {
            Ok(Some(device)) => {
                let done = datagram_signer.attach(device.index, device.is_ethernet());
                done.map(|()| device.index).map_err(|e| e.to_string())
            }
            Ok(None) => Err("it is not there".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        match done {
            Ok(index) => {
                attached.push(index);
                signing_at.push(name);
            }
            Err(error) => problems.push(format!("{name}: {error}")),
        }
    }
    datagram_signer.keep_only(&attached);
    if signing_at.is_empty() && problems.is_empty() {
        problems.push("no route leads to sign_udp_to".to_owned());
    }
    SigningInterfaces {
        names: signing_at,
        problem: (!problems.is_empty()).then(|| {
            format!(
                "UDP datagrams to sign_udp_to leave without a token where this is so: {}",
                problems.join("; ")
            )
        }),
    }
}

fn routed(config: &TokenConfig, problems: &mut Vec<String>) -> Vec<String> {
    let found = interfaces_to(&config.sign_udp_to);
    let names = found.and_then(|found| {
        let names = found.into_iter().map(name_of);
        names.collect::<Result<Vec<_>, _>>()
    });
    match names {
        // One that has gone in between has no name.
        Ok(names) => names.into_iter().flatten().collect(),
        Err(error) => {
            problems.push(format!("cannot read the routes: {error}"));
            Vec::new()
        }
    }
}
