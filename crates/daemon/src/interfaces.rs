//! Which interfaces are protected: those that were typed, or with `"auto"` those
//! that have, or had, a default route. Reload and the look at the routes each
//! second change that by turns, never from what the other one has replaced; so
//! nothing is let go of because a route is away for a moment, and what is not
//! there yet is waited for, with an alert where it was named.

pub mod config;
pub(crate) mod hook_preference;

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard},
};

use weir_enforce::{Attachment, Backend, BackendChoice, Settings, backend_swap::BackendHome};
use weir_events::alerts::Alerts;

use crate::host;
use config::Enforcement;

/// What alerts about routes, and about interfaces that cannot be had, are about.
const ABOUT: &str = "interfaces";

/// The interfaces that packets are judged on: what is typed, and what the routes say.
#[derive(Default)]
pub struct ProtectedInterfaces(Mutex<State>);

/// Held while settings change, from the look at the configuration until the
/// next one is in force.
#[derive(Default)]
pub struct State {
    /// Have had a default route, or were protected when there was none.
    routed: BTreeSet<String>,
    /// The settings that the backend was told last.
    in_force: Option<Settings>,
    /// Interfaces that there is an alert about.
    told: BTreeSet<String>,
}

impl State {
    /// What a configuration asks for at this moment.
    pub fn settings(&mut self, enforcement: &Enforcement) -> Settings {
        self.settings_with(enforcement, &host::with_default_route())
    }

    fn settings_with(&mut self, enforcement: &Enforcement, routes: &[String]) -> Settings {
        let mut interfaces = enforcement.interfaces.clone();
        if enforcement.auto {
            if routes.is_empty() && self.routed.is_empty() {
                // No route is no reason to let go of anything.
                let held = self.in_force.iter().flat_map(|s| &s.interfaces);
                self.routed.extend(held.cloned());
            }
            self.routed.extend(routes.iter().cloned());
            interfaces = self.routed.iter().cloned().collect();
        }
        Settings {
            interfaces,
            backend: enforcement.backend,
            advice: enforcement.advice.clone(),
            max_bans: enforcement.max_bans,
            observe: enforcement.observe,
        }
    }

    /// The settings that the backend was told last.
    pub fn in_force(&self) -> Option<&Settings> {
        self.in_force.as_ref()
    }

    /// Notes the settings that the backend was told; `None` where nobody knows any more.
    pub fn put_in_force(&mut self, settings: Option<Settings>) {
        self.in_force = settings;
    }
}

impl ProtectedInterfaces {
    /// The lock for a change of settings; held until it is over.
    pub fn change(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// The settings of a start. With `"auto"` and no default route those stay
    /// protected that an earlier daemon protects.
    pub fn begin(&self, place: &mut BackendHome, enforcement: &Enforcement) {
        let mut state = self.change();
        let routes = host::with_default_route();
        if enforcement.auto && routes.is_empty() {
            state
                .routed
                .extend(weir_enforce::backend_swap::protected(place));
        }
        place.settings = state.settings_with(enforcement, &routes);
        state.put_in_force(Some(place.settings.clone()));
    }

    /// Once a second: protects what has got a default route since, and tells of
    /// what is not as it was configured.
    /// The configuration is asked for when no other can come any more.
    pub fn follow(
        &self,
        enforcement: impl FnOnce() -> Enforcement,
        backend: &dyn Backend,
        alerts: &Alerts,
    ) {
        let mut state = self.change();
        let enforcement = enforcement();
        if enforcement.backend == BackendChoice::DryRun {
            return;
        }
        let wanted = state.settings(&enforcement);
        let mut refused = Vec::new();
        if state.in_force.as_ref() != Some(&wanted) {
            let before = state.in_force.clone();
            match backend.reconfigure(&wanted) {
                Ok(()) => state.put_in_force(Some(wanted)),
                Err(error) => {
                    refused = one_by_one(&mut state, backend, &wanted);
                    if refused.is_empty() && state.in_force() != Some(&wanted) {
                        refused.push(error.to_string());
                    }
                }
            }
            if let Some(now) = state.in_force().filter(|now| Some(*now) != before.as_ref()) {
                tracing::info!("protected interfaces: {}", now.interfaces.join(", "));
            }
        }
        let attachments = backend.attachments();
        if enforcement.auto && attachments.iter().all(|one| !one.present) {
            refused.push(
                "no interface has a default route yet: no ban, list or geofence is enforced"
                    .to_owned(),
            );
        }
        match refused.is_empty() {
            true => alerts.clear(ABOUT),
            false => alerts.raise(ABOUT, refused.join("; ")),
        }
        tell(&mut state, alerts, &enforcement, &attachments);
    }
}

/// One that cannot be protected keeps no other from it.
fn one_by_one(state: &mut State, backend: &dyn Backend, wanted: &Settings) -> Vec<String> {
    let attached = backend.attachments();
    let (good, refused) = as_far_as(wanted, state.in_force(), &attached, |settings| {
        backend.reconfigure(settings)
    });
    if good.is_some() {
        state.put_in_force(good);
    }
    refused
}

/// Adds one interface after the other to those that are protected; nobody lets go
/// of these meanwhile, also when `in_force` is unknown. Returns what is in force
/// then, if anything was taken, and what was refused.
fn as_far_as<E: ToString>(
    wanted: &Settings,
    in_force: Option<&Settings>,
    attached: &[Attachment],
    mut reconfigure: impl FnMut(&Settings) -> Result<(), E>,
) -> (Option<Settings>, Vec<String>) {
    let mut good = wanted.clone();
    good.interfaces = match in_force {
        Some(settings) => settings.interfaces.clone(),
        None => {
            let held = attached.iter().filter(|one| one.hook != "none");
            let mut names: Vec<_> = held.map(|one| one.interface.clone()).collect();
            names.retain(|name| wanted.interfaces.contains(name));
            names
        }
    };
    let (mut taken, mut refused) = (false, Vec::new());
    for name in &wanted.interfaces {
        if good.interfaces.contains(name) {
            continue;
        }
        good.interfaces.push(name.clone());
        match reconfigure(&good) {
            Ok(()) => taken = true,
            Err(error) => {
                good.interfaces.pop();
                refused.push(error.to_string());
            }
        }
    }
    good.interfaces.sort();
    (taken.then_some(good), refused)
}

/// An alert for each named interface that is away, or renamed.
fn tell(state: &mut State, alerts: &Alerts, enforcement: &Enforcement, attachments: &[Attachment]) {
    let mut told = BTreeSet::new();
    for one in attachments.iter().filter(|_| !enforcement.auto) {
        let name = &one.interface;
        let message = match (&one.renamed, one.present) {
            (Some(renamed), _) => {
                format!(
                    "it is called {renamed} now, and protected as before: name that in interfaces"
                )
            }
            (None, false) => format!(
                "there is no interface {name:?}: it is protected as soon as it is there; this host has: {}",
                host::interfaces().join(", ")
            ),
            (None, true) => continue,
        };
        alerts.raise(&format!("interface:{name}"), message);
        told.insert(name.clone());
    }
    for over in state.told.difference(&told) {
        alerts.clear(&format!("interface:{over}"));
    }
    state.told = told;
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{config::Config, host::Host};

    fn enforcement(interfaces: &str) -> Enforcement {
        let text = format!("interfaces = {interfaces}\n");
        let config = Config::check(Path::new("weir.toml"), &text, &Host).unwrap();
        config.enforcement
    }

    fn names(state: &mut State, enforcement: &Enforcement, routes: &[&str]) -> String {
        let routes: Vec<_> = routes.iter().map(|name| (*name).to_owned()).collect();
        let settings = state.settings_with(enforcement, &routes);
        let names = settings.interfaces.join(" ");
        state.put_in_force(Some(settings));
        names
    }

    #[test]
    fn a_route_that_is_away_lets_go_of_nothing() {
        let (auto, typed) = (enforcement("\"auto\""), enforcement("[\"lo\"]"));
        let mut state = State::default();
        assert_eq!(names(&mut state, &auto, &[]), "");
        assert_eq!(names(&mut state, &auto, &["eth0"]), "eth0");
        assert_eq!(names(&mut state, &auto, &["wwan0"]), "eth0 wwan0");
        // A reload while there is none; then what is typed, and back.
        assert_eq!(names(&mut state, &auto, &[]), "eth0 wwan0");
        assert_eq!(names(&mut state, &typed, &["eth0"]), "lo");
        assert_eq!(names(&mut state, &auto, &[]), "eth0 wwan0");
    }

    #[test]
    fn auto_keeps_what_was_typed_until_there_is_a_route() {
        let (auto, typed) = (enforcement("\"auto\""), enforcement("[\"lo\"]"));
        let mut state = State::default();
        assert_eq!(names(&mut state, &typed, &[]), "lo");
        assert_eq!(names(&mut state, &auto, &[]), "lo");
        let mut state = State::default();
        assert_eq!(names(&mut state, &typed, &[]), "lo");
        assert_eq!(names(&mut state, &auto, &["eth0"]), "eth0");
    }

    fn attached(name: &str, hook: &str) -> Attachment {
        Attachment {
            interface: name.to_owned(),
            hook: hook.to_owned(),
            note: String::new(),
            present: hook != "none",
            renamed: None,
        }
    }

    #[test]
    fn one_that_is_refused_costs_no_other_its_protection() {
        let (three, two) = (["eth0", "eth1", "wwan0"], ["eth0", "eth1"]);
        let settings = |names: &[&str]| {
            let enforcement = enforcement("[\"lo\"]");
            let mut settings = State::default().settings_with(&enforcement, &[]);
            settings.interfaces = names.iter().map(|name| (*name).to_owned()).collect();
            settings
        };
        let there = two.map(|name| attached(name, "tcx"));
        let away = [there[0].clone(), attached("eth1", "none")];
        for (in_force, attached) in [
            (Some(settings(&two)), &there[..]),
            // A reload that was refused half-way: nobody knows any more.
            (None, &there[..]),
            (None, &away[..]),
            (None, &[][..]),
        ] {
            let mut tried = Vec::new();
            let (good, refused) =
                as_far_as(&settings(&three), in_force.as_ref(), attached, |settings| {
                    tried.push(settings.interfaces.clone());
                    match settings.interfaces.iter().any(|name| name == "wwan0") {
                        true => Err("wwan0 cannot be had"),
                        false => Ok(()),
                    }
                });
            let held = attached.iter().filter(|one| one.present).count();
            assert!(tried.iter().all(|names| names.len() > held), "{tried:?}");
            assert_eq!(refused, ["wwan0 cannot be had"]);
            let taken = in_force.is_none() && held < two.len();
            assert_eq!(good, taken.then(|| settings(&two)));
        }
    }
}
