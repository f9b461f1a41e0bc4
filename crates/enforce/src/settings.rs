//! What may change while a backend enforces.

use crate::{backend_kind::BackendChoice, hook_selection::Advice};

/// What may change while the daemon runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Names of the interfaces to protect.
    pub interfaces: Vec<String>,
    /// The backend, and its hook.
    pub backend: BackendChoice,
    /// The costs by which `auto` chooses a hook.
    pub advice: Advice,
    /// Bans at most, over all producers.
    pub max_bans: usize,
    /// Count what would be dropped, and pass it.
    pub observe: bool,
}
