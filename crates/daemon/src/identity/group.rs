//! A control group that is named by its path: one that was removed and made anew is another one,
//! and one may come later than the daemon.

use std::path::Path;

use weir_bpf::identity::CgroupAt;
use weir_events::alerts::Alerts;

/// A table of the configuration that holds in a control group.
pub(crate) struct GroupTable {
    /// As it is written, such as `[app]`.
    pub name: &'static str,
    /// The alert about the group.
    pub about: &'static str,
    /// What is not in force while there is no group.
    pub meanwhile: &'static str,
}

impl GroupTable {
    /// Has the table hold for the control group that is at its path now. `is_there`: it holds for
    /// that one.
    pub(crate) fn follow(
        &self,
        alerts: &Alerts,
        path: &Path,
        is_there: bool,
        move_to: impl FnOnce(CgroupAt) -> Result<(), weir_bpf::Error>,
    ) {
        let Self {
            name,
            about,
            meanwhile,
        } = self;
        if is_there {
            alerts.clear(about);
            return;
        }
        match CgroupAt::open(Some(path)).and_then(move_to) {
            Ok(()) => {
                tracing::info!(
                    "{name}: holds for the control group {} anew",
                    path.display()
                );
                alerts.clear(about);
            }
            Err(error) => alerts.raise(
                about,
                format!("{error}: {meanwhile} until it is there, and from then on"),
            ),
        }
    }
}
