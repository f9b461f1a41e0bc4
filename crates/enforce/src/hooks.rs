//! Attach points: where programs sit in the kernel, apart from what they do. One
//! [`Hooks`] has all those of an instance, whichever backend enforces its bans,
//! so that a feature with programs of its own needs no backend for them.
//!
//! The only targets are interfaces: each gets the first hook that takes a
//! program, keeps it when the device is renamed, and gets it again when it comes
//! back. A control group (identity) or a traced function has neither a device
//! nor a second choice of hook: its attachments are a list beside `interfaces`,
//! with pins of their own beside `IFACE@HOOK`, when there is a program for them.
//!
//! Nothing here takes another lock while it has the one of the interfaces but what
//! [`Programs`] take: theirs, while they load one, which takes no other. Who has the
//! [`AttachPoints`] waits for the verifier and for other owners of the interfaces, so
//! a lock that a ban needs is taken after them and never before.

mod attach;
pub(crate) mod attachment;
pub(crate) mod devices;
mod interface;
pub(crate) mod link_events;
mod pins;
mod programs;
mod refusal;
mod same_device;

use std::{
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use weir_bpf::{attachment::Hook, device::Device, fault};

use crate::Error;
use attachment::Attachment;
use interface::Interface;
pub use programs::{HookPlan, Programs};

/// The attach points of one instance.
pub struct Hooks {
    /// The directory of the pins: what is attached outlives the daemon by them.
    pins: PathBuf,
    interfaces: Mutex<Vec<Interface>>,
    attached: AtomicBool,
}

/// The attach points, had alone: nothing is attached or switched meanwhile by others.
pub struct AttachPoints<'a> {
    hooks: &'a Hooks,
    interfaces: MutexGuard<'a, Vec<Interface>>,
}

/// Can an interface of this name have the hook, once it is there? The check
/// before anything is changed.
///
/// # Errors
/// The hook is not for an interface of its kind.
pub fn check(interface: &str, wanted: Option<Hook>) -> Result<(), Error> {
    Interface::check(interface, wanted)
}

/// The interfaces that something is attached to, by their names now.
pub fn attached(pins: &Path) -> Vec<String> {
    pins::attached(pins)
}

/// Ends all that is pinned there; returns interfaces and hooks.
///
/// # Errors
/// A pin stays.
pub fn detach(pins: &Path) -> Result<Vec<String>, Error> {
    let mut gone = Vec::new();
    for (name, hook, pin) in pins::all_pinned(pins) {
        pins::remove_link(&pin)?;
        gone.push(format!("{name} ({})", hook.name()));
    }
    Ok(gone)
}

impl Hooks {
    /// The hooks of these interfaces; nothing is attached yet.
    pub fn new(pins: PathBuf, interfaces: &[String]) -> Self {
        let names = same_device::unique(interfaces);
        let interfaces = names.iter().map(|name| Interface::new(name)).collect();
        Self {
            pins,
            interfaces: Mutex::new(interfaces),
            attached: AtomicBool::new(false),
        }
    }

    fn interfaces(&self) -> MutexGuard<'_, Vec<Interface>> {
        self.interfaces
            .lock()
            .expect("no holder of this lock panics")
    }

    /// Waits for whoever has them, and that may be for the verifier.
    pub fn lock(&self) -> AttachPoints<'_> {
        AttachPoints {
            hooks: self,
            interfaces: self.interfaces(),
        }
    }

    /// Whether [`AttachPoints::attach`] has succeeded.
    pub fn is_attached(&self) -> bool {
        self.attached.load(Ordering::Relaxed)
    }

    /// The hooks that something of the instance is attached to, of an earlier
    /// daemon among it.
    pub fn in_use(&self) -> Vec<Hook> {
        let pinned = pins::all_pinned(&self.pins);
        let has = |hook: &Hook| pinned.iter().any(|(_, there, _)| there == hook);
        Hook::ALL.into_iter().filter(has).collect()
    }

    /// The hooks that programs are needed for: those in use for ingress, or, where none is,
    /// the ones that each interface would be given, the first that takes a program. Tables
    /// whose programs nobody has tried would else be found out when an interface comes.
    pub fn expected(&self, wanted: &HookPlan) -> Vec<Vec<Hook>> {
        let mut expected: Vec<_> = self.in_use().into_iter().map(|hook| vec![hook]).collect();
        expected.retain(|hooks| !hooks[0].is_egress());
        if expected.is_empty() {
            for interface in self.interfaces().iter() {
                let choices = interface.choices(wanted);
                if !expected.contains(&choices) {
                    expected.push(choices);
                }
            }
        }
        expected
    }

    /// Is an interface judged by netfilter's hook?
    pub fn any_on_netfilter(&self) -> bool {
        any_on_netfilter(&self.interfaces())
    }

    /// The hook of the first interface that has one.
    pub fn first_hook(&self) -> Option<Hook> {
        self.interfaces().iter().find_map(Interface::hook)
    }

    /// The hooks that interfaces have, in this daemon.
    pub fn of_interfaces(&self) -> Vec<Hook> {
        let interfaces = self.interfaces();
        interfaces.iter().filter_map(Interface::hook).collect()
    }

    /// Interfaces and their hooks, for `weir status`.
    pub fn attachments(&self) -> Vec<Attachment> {
        let interfaces = self.interfaces();
        let described = interfaces.iter().map(|interface| {
            let mut described = interface.describe();
            let mut others = interfaces.iter();
            let owner = others.find(|other| interface.same_as() == Some(&other.name));
            if let Some(hook) = owner.and_then(Interface::hook) {
                described.hook = hook.name().to_owned();
            }
            described
        });
        described.collect()
    }
}

impl AttachPoints<'_> {
    /// Attaches to every interface that is there, or takes over what an earlier
    /// daemon attached; ends what it attached to others.
    ///
    /// # Errors
    /// An interface where nothing can attach; those before it stay attached.
    pub fn attach(&mut self, wanted: &HookPlan, programs: &dyn Programs) -> Result<(), Error> {
        let interfaces = &mut *self.interfaces;
        let names: Vec<_> = interfaces.iter().map(|i| i.name.clone()).collect();
        pins::follow_names(&names, &self.hooks.pins)?;
        same_device::find(interfaces.iter_mut(), &self.hooks.pins)?;
        for interface in interfaces.iter_mut() {
            interface.attach(wanted, programs, &self.hooks.pins)?;
            fault::point("attach-between-interfaces");
        }
        for (name, _, pin) in pins::all_pinned(&self.hooks.pins) {
            if !interfaces.iter().any(|i| i.name == name) {
                pins::remove_link(&pin)?;
            }
        }
        judge_only(programs, interfaces);
        self.hooks.attached.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Changes over to these interfaces and this hook. `then` is done before
    /// anybody else sees them.
    ///
    /// # Errors
    /// An interface where nothing can attach; the earlier ones stay, and new ones
    /// are let go of.
    pub fn reconfigure(
        &mut self,
        configured: &[String],
        wanted: &HookPlan,
        programs: &dyn Programs,
        then: impl FnOnce(),
    ) -> Result<(), Error> {
        let interfaces = &mut *self.interfaces;
        let mut added: Vec<Interface> = Vec::new();
        // One that was renamed has the new name from here on, if that is asked
        // for; first, for then its old one is another's.
        for name in configured {
            if interfaces.iter().any(|i| i.name == *name) {
                continue;
            }
            let Some(device) = devices::find(name)? else {
                continue;
            };
            let keeps_its_name = |i: &Interface| {
                let named = Device::find(&i.name).is_ok_and(|d| d.index == device.index);
                named && configured.contains(&i.name)
            };
            let mut others = interfaces.iter_mut();
            if let Some(renamed) = others.find(|i| i.was(device.index) && !keeps_its_name(i)) {
                renamed.take_name(name, &self.hooks.pins)?;
            }
        }
        let is_known = |name: &&String| interfaces.iter().any(|i| i.name == **name);
        let names = same_device::unique(configured);
        let new = names.iter().filter(|name| !is_known(name));
        added.extend(new.map(|name| Interface::new(name)));
        let stays = |i: &&mut Interface| names.contains(&i.name);
        let staying = interfaces.iter_mut().filter(stays);
        same_device::find(staying.chain(&mut added), &self.hooks.pins)?;
        for name in &names {
            let mut all = interfaces.iter_mut().chain(&mut added);
            let interface = all.find(|i| i.name == *name).expect("known or added");
            if let Err(error) = interface.attach(wanted, programs, &self.hooks.pins) {
                // Nobody would know of them.
                for new in &mut added {
                    new.detach(&self.hooks.pins)?;
                }
                return Err(error);
            }
        }
        for gone in interfaces
            .iter_mut()
            .filter(|i| !configured.contains(&i.name))
        {
            gone.detach(&self.hooks.pins)?;
        }
        interfaces.retain(|i| configured.contains(&i.name));
        interfaces.append(&mut added);
        judge_only(programs, interfaces);
        then();
        Ok(())
    }

    /// Attaches to interfaces that came back under their name. Called on every
    /// change the kernel announces; cheap when nothing happened.
    ///
    /// # Errors
    /// The last of those that interfaces had; the others are attached.
    pub fn follow(&mut self, wanted: &HookPlan, programs: &dyn Programs) -> Result<(), Error> {
        let mut outcome = Ok(());
        let interfaces = &mut *self.interfaces;
        let mut changed = false;
        same_device::find(interfaces.iter_mut(), &self.hooks.pins)?;
        for interface in interfaces.iter_mut() {
            match interface.follow(wanted, programs, &self.hooks.pins) {
                Ok(true) => {
                    changed = true;
                    tracing::info!(interface = interface.name, "attached again");
                }
                Ok(false) => {}
                Err(e) => outcome = Err(e),
            }
        }
        if changed {
            judge_only(programs, interfaces);
        }
        outcome
    }

    /// Puts other programs in place of those that are attached, in one step at
    /// each interface. `between` is done behind each. With `insist`, an interface whose
    /// program cannot be changed gets these at tc's hook, before the other one ends.
    ///
    /// # Errors
    /// The first of those that interfaces had, which keep their earlier programs; the
    /// others have these.
    pub fn update(
        &mut self,
        programs: &dyn Programs,
        insist: bool,
        between: impl Fn(),
    ) -> Result<(), Error> {
        let mut outcome = Ok(());
        for interface in self.interfaces.iter_mut() {
            let updated = interface.update(programs, insist, &self.hooks.pins);
            outcome = outcome.and(updated);
            between();
        }
        outcome
    }

    /// Is an interface judged by netfilter's hook?
    pub fn any_on_netfilter(&self) -> bool {
        any_on_netfilter(&self.interfaces)
    }
}

fn any_on_netfilter(interfaces: &[Interface]) -> bool {
    interfaces.iter().any(|i| i.judged_by_netfilter().is_some())
}

/// Has netfilter judge those that are attached there, and no others.
fn judge_only(programs: &dyn Programs, interfaces: &[Interface]) {
    let judged = interfaces.iter().filter_map(Interface::judged_by_netfilter);
    programs.judge_only(&judged.collect::<Vec<_>>());
}
