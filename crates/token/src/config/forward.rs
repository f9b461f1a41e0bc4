//! `[token.forward]` and `[token.forward.require.NAME]`: which ports of other hosts, to which this
//! one forwards packets, want a token.

use std::collections::BTreeMap;

use weir_config::{
    Section,
    manual::{
        Table,
        Usual::{Is, Means, Required},
        key,
    },
    values::check_name,
};
use weir_identity::Digest;

use super::{Requirement, interface_names, note_tags, prefixes, requirement};

/// For so many seconds connections that were there before are taken up, where they are.
const TAKES_UP: u32 = 60;

/// `[token.forward]` in weir.toml(5).
pub(super) const TABLE: Table = Table {
    name: "token.forward",
    about: "This host is a gateway, and hosts behind it have no weir: what it forwards to their ports passes with a token only. Packets are judged where they come in.",
    needs: &[
        ("interfaces", "[\"eth0\"]"),
        (
            "require",
            "{ web = { to = [\"198.51.100.0/24\"], ports = [\"8080/tcp\"], aggregate = \"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\" } }",
        ),
    ],
    keys: &[
        key(
            "interfaces",
            Required,
            "The interfaces by which these packets come in: of frames with two VLAN tags, or of tunnels, the inner ones. One that comes later is covered at once.",
        ),
        key(
            "hook",
            Is("\"tc\""),
            "Where they are judged: \"tc\"; \"xdp\", in the driver, if that can do it and no other program is there: else tc judges, and an alert says so; or \"auto\", which takes the same of each interface with no alert: weir status says which it is, and why.",
        ),
        key(
            "established",
            Is("\"drop\""),
            "What becomes of TCP connections that were there before their requirement: \"drop\", or \"pass\", which takes up for 60 seconds those that send something.",
        ),
        key(
            "require",
            Required,
            "Which ports of whom want a token; tables, see below.",
        ),
    ],
};

/// `[token.forward.require.NAME]` there.
pub(super) const REQUIREMENT: Table = Table {
    name: "token.forward.require.NAME",
    about: "TCP and UDP ports of other hosts that want a token of what this host forwards there. An address of this host in these networks is among them. Two that are about one port, source and network name the same programs, in the same mode.",
    needs: &[
        ("to", "[\"198.51.100.0/24\"]"),
        ("ports", "[\"8080/tcp\"]"),
        (
            "aggregate",
            "\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"",
        ),
    ],
    keys: &[
        key(
            "to",
            Required,
            "The networks of the hosts that are protected.",
        ),
        key("ports", Required, "Their ports."),
        key(
            "aggregate",
            Means("with compat none, else it has to be there"),
            "The SHA-256 of the programs that get through, as in [token.require.NAME].",
        ),
        key(
            "from",
            Means("everybody"),
            "Sources that it is about; others need no token.",
        ),
        key(
            "mode",
            Is("\"require\""),
            "\"require\" drops what has no valid token; \"log\" counts it and lets it pass.",
        ),
        key(
            "scope",
            Is("\"flow\""),
            "\"payload\" wants a valid token in each segment, as in [token.require.NAME].",
        ),
        key(
            "compat",
            super::NONE,
            "\"daf\" wants the signature of DAF in each segment, as in [token.require.NAME].",
        ),
    ],
};

/// Where packets that come in to be forwarded are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardHook {
    /// A program of tc.
    Tc,
    /// The driver; something is wrong where it cannot.
    Xdp,
    /// The driver where it can, else tc.
    Auto,
}

/// A checked `[token.forward]`, without its requirements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardConfig {
    /// The interfaces by which packets come in.
    pub interfaces: Vec<String>,
    /// The place where they are judged there.
    pub hook: ForwardHook,
    /// For so many seconds a requirement takes up connections that were there before it; 0: it
    /// takes up none.
    pub takes_up: u32,
}

/// Reads `[token.forward]` of `[token]`, and adds its requirements, each with its line.
pub(super) fn read(
    token: &mut Section<'_, '_>,
    requirements: &mut Vec<(Requirement, usize)>,
    tags: &mut BTreeMap<[u8; 4], Digest>,
) -> Option<ForwardConfig> {
    let mut section = token.section("forward")?;
    let line = section.line();
    if !section.has("interfaces") {
        section.error(
            line,
            format!(
                "interfaces is missing in [token.forward]: nothing would be judged; allowed: {}",
                super::INTERFACES
            ),
        );
    }
    let interfaces = interface_names(&mut section, "[token.forward]").unwrap_or_default();
    let hooks = [
        ("tc", ForwardHook::Tc),
        ("xdp", ForwardHook::Xdp),
        ("auto", ForwardHook::Auto),
    ];
    let hook = section.choice("hook", &hooks);
    let established = [("drop", 0), ("pass", TAKES_UP)];
    let takes_up = section.choice("established", &established);
    let has_some = section.has("require");
    let named = section.named_sections("require");
    if named.is_empty() && !has_some {
        section.error(
            line,
            "[token.forward] has no requirement: nothing would be judged; allowed: a table [token.forward.require.NAME]",
        );
    }
    for (name, mut table) in named {
        let line = table.line();
        check_name(&table, "requirement", &name);
        let mistakes = table.mistakes();
        let of = format!("[token.forward.require.{name}]");
        let mut one = requirement(&format!("forward.{name}"), &of, &mut table);
        if !table.has("to") {
            table.error(
                line,
                format!(
                    "to is missing in {of}: no host would be protected; allowed: {}",
                    super::PREFIXES
                ),
            );
        }
        one.to = Some(prefixes(&mut table, "to").unwrap_or_default());
        if let Some(mistake) = note_tags(tags, &one) {
            table.error(line, format!("aggregate in {of}: {mistake}"));
        }
        let is_right = table.mistakes() == mistakes;
        table.finish();
        if is_right {
            requirements.push((one, line));
        }
    }
    section.finish();
    Some(ForwardConfig {
        interfaces,
        hook: hook.map_or(ForwardHook::Tc, |at| at.value),
        takes_up: takes_up.map_or(0, |at| at.value),
    })
}
