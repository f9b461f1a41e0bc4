//! What an owner of programs tells [`super::Hooks`] about them: which program
//! belongs to which hook, and which hooks cannot have one now.

use std::os::fd::BorrowedFd;

use weir_bpf::attachment::Hook;

use crate::{Error, Feature, Settings, hook_selection::Advice};

/// The hook that interfaces shall get.
#[derive(Debug, Clone)]
pub struct HookPlan {
    /// The hook that the configuration names; `None` leaves it to `advice`.
    pub hook: Option<Hook>,
    /// The costs by which `auto` chooses a hook.
    pub advice: Advice,
}

impl HookPlan {
    /// The plan of these settings.
    pub fn by(settings: &Settings) -> Self {
        Self {
            hook: settings.backend.hook(),
            advice: settings.advice.clone(),
        }
    }
}

/// Programs for attach points. Loading them, and what they do, is their owner's.
pub trait Programs {
    /// Why a hook cannot have a program of these, though the kernel might take it: for
    /// interfaces that would be given it, not for those that have it.
    fn refusal(&self, hook: Hook) -> Option<&'static str>;

    /// The feature in use without which the hook could have a program of these, where
    /// nothing else is a reason for the [`Self::refusal`].
    fn in_the_way(&self, _hook: Hook) -> Option<Feature> {
        None
    }

    /// The program for a hook, which may be loaded for it now; the caller has asked
    /// for a [`Self::refusal`], unless the interface has the hook, or for
    /// [`Self::judge_outbound`] where the hook is on egress.
    ///
    /// # Errors
    /// There is none, or the kernel refuses it: hook and program are named.
    fn program(&self, hook: Hook) -> Result<BorrowedFd<'_>, Error>;

    /// Whether the programs judge packets that go out. Then an interface gets the twin of
    /// its hook on egress as well.
    fn judge_outbound(&self) -> bool;

    /// A program at a hook of all interfaces, netfilter's, judges this one too.
    ///
    /// # Errors
    /// There is no room for it.
    fn judge_interface(&self, index: u32) -> Result<(), Error>;

    /// Has the program at such a hook judge only these interfaces.
    fn judge_only(&self, indexes: &[u32]);
}
