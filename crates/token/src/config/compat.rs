//! `compat = "daf"`: signatures of DAF in the place of tokens. They name no program, are of
//! IPv4 and TCP, and stand in a place of their own, so most of what is said of tokens cannot be
//! said beside it.

use std::path::PathBuf;

use weir_config::{Section, values::optional_path};
use weir_core::{PortRange, Prefix, Protocol};

use super::Scope;

/// What they do not prove, for whoever begins to use them.
const WEAK: &str = "signatures of DAF are of the payload alone: bound to no connection and no time, so whoever sees a segment can send it again; all segments without data have the same one; no program is named, IPv4 only, and the key cannot be changed without a break";

/// Keys of `[token]` that are about tokens of TCP.
pub(super) const OF_TOKENS: [&str; 3] = ["scope", "conduits", "probe_result"];

/// Reads `compat` of `[token]`: how segments to `sign_to` are signed. With it come the lines of
/// [`OF_TOKENS`] and of `sign_to`.
pub(super) fn read_signing(
    section: &mut Section<'_, '_>,
    lines: &[(&str, Option<usize>)],
    sign_line: usize,
    sign_to: &[Prefix],
) -> Option<Scope> {
    let at = section.choice("compat", &Scope::COMPAT)?;
    if sign_to.is_empty() {
        section.error(
            at.line,
            "compat in [token] without sign_to: it is about the segments that are signed; allowed: a sign_to beside it, or no compat (that of a port is in [token.require.NAME])",
        );
    }
    for (key, line) in lines {
        if let Some(line) = line {
            section.error(
                *line,
                format!("{key} in [token] beside compat: it is about tokens, and the segments to sign_to have signatures of DAF; allowed: one of them"),
            );
        }
    }
    if let Some(network) = sign_to.iter().find(|one| is_ipv6(one)) {
        section.error(
            sign_line,
            format!("sign_to in [token] has {network} beside compat, and DAF signs IPv4 alone: segments there would leave without a signature; allowed: networks of IPv4"),
        );
    }
    Some(at.value)
}

/// Reads `compat` of `[token.require.NAME]`, whose head is `of`.
pub(super) fn read_required(
    table: &mut Section<'_, '_>,
    of: &str,
    ports: &[PortRange],
) -> Option<Scope> {
    let lines = [
        (
            "aggregate",
            table.line_of("aggregate"),
            "a signature of DAF names no program, so any of a host with the key would get in",
        ),
        ("scope", table.line_of("scope"), "it is about tokens"),
    ];
    let at = table.choice("compat", &Scope::COMPAT)?;
    for (key, line, why) in lines {
        if let Some(line) = line {
            table.error(
                line,
                format!("{key} in {of} beside compat: {why}; allowed: one of them"),
            );
        }
    }
    let is_udp = |range: &&PortRange| range.protocol == Protocol::Udp;
    if let Some(range) = ports.iter().find(is_udp) {
        table.error(
            at.line,
            format!("compat in {of}, and {range} is a port of UDP, whose signatures DAF itself cannot verify; allowed: ports of TCP beside it"),
        );
    }
    Some(at.value)
}

/// A source of a requirement with `compat` that cannot sign.
pub(super) fn check_sources(
    table: &Section<'_, '_>,
    of: &str,
    line: usize,
    from: Option<&[Prefix]>,
) {
    if let Some(network) = from.into_iter().flatten().find(|one| is_ipv6(one)) {
        table.error(
            line,
            format!("from in {of} has {network} beside compat, and DAF signs IPv4 alone: nobody there would get in; allowed: networks of IPv4, and a requirement of its own for those of IPv6"),
        );
    }
}

/// Reads `daf_secret`, which `[token]` needs where it `signs` so, and a requirement at this
/// line; and notes what signatures of DAF do not prove.
pub(super) fn read_secret(
    section: &mut Section<'_, '_>,
    signs: bool,
    required: Option<usize>,
    warnings: &mut Vec<String>,
) -> Option<PathBuf> {
    let line = section.line_of("daf_secret");
    let secret = optional_path(section, "daf_secret", "/etc/daf/secret");
    let used = match signs {
        true => Some(section.line()),
        false => required,
    };
    match (line, used) {
        (Some(line), None) => section.error(
            line,
            "daf_secret in [token] without compat, here or in [token.require.NAME]: nothing goes by it; allowed: a compat, or no daf_secret",
        ),
        (None, Some(line)) => section.error(
            line,
            "daf_secret is missing in [token], and compat needs it; allowed: an absolute path such as \"/etc/daf/secret\", the file that -s of DAF names",
        ),
        (Some(_), Some(line)) => warnings.push(format!("{}: compat: {WEAK}", section.place(line))),
        (None, None) => {}
    }
    secret
}

fn is_ipv6(prefix: &Prefix) -> bool {
    prefix.addr().is_ipv6()
}
