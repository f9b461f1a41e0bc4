//! What `weir status` says of an attach point.

use serde::Serialize;

/// One interface and how weir is attached to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attachment {
    /// The name of the interface.
    pub interface: String,
    /// Hook in force: `xdp`, `xdp-generic`, `tcx`; `none` while the interface is away.
    pub hook: String,
    /// Why this hook and not a cheaper one; empty when nothing stood in the way.
    pub note: String,
    /// Whether there is an interface of this name. An absent one is waited for.
    pub present: bool,
    /// The device's name since somebody renamed it; it is protected as before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renamed: Option<String>,
}
