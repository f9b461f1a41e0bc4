//! The sets of an instance by their numbers: which are free, and which nobody asks
//! any more.

use super::{
    Ipset, KernelState, failed,
    rules::{self, SAVE},
    sets::{self, SetUse},
};
use crate::{Error, command};

impl Ipset {
    /// A number that no set of ours for this use has: one that has it may be in
    /// force, and must not be written to.
    pub(super) fn free_generation(&self, set_use: SetUse) -> Result<u8, Error> {
        let there = self.sets_there()?;
        let is_free = |generation: &u8| {
            let has_it = |set: &String| {
                let role = sets::role(set, &self.base);
                role.is_some_and(|role| role.set_use == set_use && role.generation == *generation)
            };
            !there.iter().any(has_it)
        };
        let begin = match set_use {
            SetUse::Bans => "",
            SetUse::List => "list",
        };
        let mut generations = sets::GENERATIONS;
        generations.find(is_free).ok_or_else(|| Error::System {
            what: "cannot make sets of ipset beside those in force".to_owned(),
            source: std::io::Error::other(format!(
                "{0}.{begin}0 to {0}.{begin}9 are all there; destroy those that no rule names (ipset list -terse: References: 0)",
                self.base
            )),
        })
    }

    pub(super) fn sets_there(&self) -> Result<Vec<String>, Error> {
        let listed = command::run("ipset", &["list", "-name"], "")
            .map_err(failed("list the sets of ipset"))?;
        let ours = sets::ours(&listed, &self.base).into_iter();
        Ok(ours.map(str::to_owned).collect())
    }

    /// Destroys sets of ours that no rule asks any more; again later, when the
    /// kernel has not let go of them yet.
    pub(super) fn tidy(&self, kernel: &mut KernelState) {
        let lists = kernel.classes.lists.len();
        let mut wanted: Vec<_> = kernel.sets.iter().map(|set| set.name(&self.base)).collect();
        for family in [0, 1] {
            wanted.push(rules::allow_set(&self.base, family));
            let list_set = |bit| rules::list_set(&self.base, kernel.lists, bit, family);
            wanted.extend((0..lists).map(list_set));
        }
        let there = self.sets_there().unwrap_or_default();
        kernel.untidy = false;
        for set in there.iter().filter(|set| !wanted.contains(set)) {
            if let Err(error) = command::run("ipset", &["destroy", set], "") {
                tracing::debug!("{error}; again in a second");
                kernel.untidy = true;
            }
        }
    }

    /// Destroys what an attempt that failed has made, and sets of earlier ones that
    /// no rule asks any more: each attempt takes another number, and there are ten.
    /// What the rules ask stays, with the other sets of its number, whose bans are
    /// for the next daemon. `before`: what was there before the attempt, which stays
    /// where nobody knows what the rules ask; the kernel destroys nothing that they do.
    pub(super) fn tidy_after_failure(&self, kernel: &mut KernelState, before: &[String]) {
        let mut asked = Vec::new();
        for program in SAVE {
            let Ok(saved) = command::run(program, &["-t", "raw"], "") else {
                asked.clear();
                break;
            };
            asked.extend(rules::asked_sets(&saved, &self.base));
        }
        let in_force: Vec<_> = asked
            .iter()
            .map(|set| sets::role(set, &self.base))
            .collect();
        for set in self.sets_there().unwrap_or_default() {
            let stays = match sets::role(&set, &self.base) {
                _ if set == self.aside() => false,
                // Without rules of ours, or without knowing them: what was found may be
                // all there is of the bans.
                _ if asked.is_empty() => before.contains(&set),
                None => asked.contains(&set),
                role => in_force.contains(&role),
            };
            if !stays && let Err(error) = command::run("ipset", &["destroy", &set], "") {
                tracing::debug!("{error}");
                kernel.untidy = true;
            }
        }
    }
}
