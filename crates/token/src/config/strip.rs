//! `[token.strip]`: at which interfaces tokens of others are overwritten.

use weir_config::{
    Section,
    manual::{
        NONE, Table,
        Usual::{Is, Required},
        key,
    },
};
use weir_core::Prefix;

use super::{interface_names, prefixes};

/// `[token.strip]` in weir.toml(5).
pub(super) const TABLE: Table = Table {
    name: "token.strip",
    about: "Uplinks: tokens of packets that come in there from others, and of those that are forwarded there, are overwritten by options that do nothing. What programs of this host send keeps its tokens, and so does what comes in to a port that wants one, here or in [token.forward].",
    needs: &[("interfaces", "[\"eth0\"]")],
    keys: &[
        key("interfaces", Required, "The uplinks."),
        key(
            "direction",
            Is("\"both\""),
            "\"in\": what comes in; \"out\": what is forwarded and goes out; or \"both\".",
        ),
        key(
            "except",
            NONE,
            "Networks beyond the uplink from which tokens come in, and to which they go: these stay.",
        ),
    ],
};

/// Which packets lose their tokens at an uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StripDirection {
    /// Packets that come in.
    In,
    /// Packets that are forwarded and go out.
    Out,
    /// Packets of both kinds.
    Both,
}

impl StripDirection {
    const WORDS: [(&str, Self); 3] = [("in", Self::In), ("out", Self::Out), ("both", Self::Both)];

    /// The word for it in the configuration.
    pub fn word(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
            Self::Both => "both",
        }
    }
}

/// A checked `[token.strip]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StripConfig {
    /// The uplinks' names.
    pub interfaces: Vec<String>,
    /// What loses its tokens there.
    pub direction: StripDirection,
    /// Networks beyond them whose tokens stay, and those to them.
    pub except: Vec<Prefix>,
}

/// Reads `[token.strip]` of `[token]`.
pub(super) fn read(token: &mut Section<'_, '_>) -> Option<StripConfig> {
    let mut section = token.section("strip")?;
    if !section.has("interfaces") {
        section.error(
            section.line(),
            format!(
                "interfaces is missing in [token.strip]: nothing would be overwritten; allowed: {}",
                super::INTERFACES
            ),
        );
    }
    let interfaces = interface_names(&mut section, "[token.strip]").unwrap_or_default();
    let direction = section.choice("direction", &StripDirection::WORDS);
    let except = prefixes(&mut section, "except").unwrap_or_default();
    section.finish();
    Some(StripConfig {
        interfaces,
        direction: direction.map_or(StripDirection::Both, |at| at.value),
        except,
    })
}
