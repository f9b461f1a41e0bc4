//! Who may sign tokens: programs whose files are all known, and which run nothing else.

use std::sync::Arc;

use weir_bpf::identity::{Handle, Identity};
use weir_identity::Digest;

use super::Apps;

/// A state of what is known, to ask only for what comes after it.
pub struct KnownSince {
    of: Arc<Identity>,
    changes: u64,
}

impl Apps {
    /// The tables in the kernel; `None`: there is no `[app]`.
    pub fn identity(&self) -> Option<Arc<Identity>> {
        self.state().as_ref().map(|state| state.identity.clone())
    }

    /// Programs that may sign, with their aggregates; `None`: nothing is new since then, or
    /// there is no `[app]`. A program with executable memory of no file may not: what it
    /// runs is not what its files say.
    pub fn who_may_sign(
        &self,
        since: Option<&KnownSince>,
    ) -> Option<(KnownSince, Vec<(Handle, Digest)>)> {
        let guard = self.state();
        let state = guard.as_ref()?;
        let changes = state.programs.changes();
        if since.is_some_and(|since| {
            Arc::ptr_eq(&since.of, &state.identity) && since.changes == changes
        }) {
            return None;
        }
        let known = state.programs.iter();
        let signing = known.filter_map(|(handle, known)| {
            let program = &known.read.program;
            let aggregate = program
                .aggregate()
                .filter(|_| !program.anonymous && !program.altered)?;
            Some((handle, aggregate))
        });
        let now = KnownSince {
            of: state.identity.clone(),
            changes,
        };
        Some((now, signing.collect()))
    }
}
