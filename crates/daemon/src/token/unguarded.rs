//! What no program is at while no daemon runs: an interface that was deleted and is there again
//! under its name is another one, and the program went with the first.

use std::path::Path;

use weir_bpf::{
    device::index_of,
    token::{GatewayKind, is_without_gateway},
};
use weir_token::config::{StripDirection, TokenConfig};

/// An interface of a gateway without its program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unguarded {
    /// The table of the configuration that names it.
    pub table: &'static str,
    /// The name of the interface.
    pub interface: String,
}

/// The interfaces of `[token.forward]` and `[token.strip]` that are there in this network
/// namespace, and at which the last daemon has left no program. None where the programs are in
/// another namespace: of that one nothing is known here.
pub fn unguarded(token: &TokenConfig, pin_root: &Path, instance: &str) -> Vec<Unguarded> {
    let forward = token.forward.as_ref().map(|forward| {
        // Either of them judges.
        let kinds: &[&[GatewayKind]] = &[&[GatewayKind::Forward, GatewayKind::ForwardXdp]];
        ("[token.forward]", &forward.interfaces, kinds)
    });
    let strip = token.strip.as_ref().map(|strip| {
        let kinds: &[&[GatewayKind]] = match strip.direction {
            StripDirection::In => &[&[GatewayKind::StripIn]],
            StripDirection::Out => &[&[GatewayKind::StripOut]],
            StripDirection::Both => &[&[GatewayKind::StripIn], &[GatewayKind::StripOut]],
        };
        ("[token.strip]", &strip.interfaces, kinds)
    });
    let mut all = Vec::new();
    for (table, interfaces, wanted) in [forward, strip].into_iter().flatten() {
        for interface in interfaces {
            let Some(ifindex) = index_of(interface) else {
                continue;
            };
            let is_without =
                |kinds: &&[GatewayKind]| is_without_gateway(pin_root, instance, kinds, ifindex);
            if wanted.iter().any(is_without) {
                all.push(Unguarded {
                    table,
                    interface: interface.clone(),
                });
            }
        }
    }
    all
}
