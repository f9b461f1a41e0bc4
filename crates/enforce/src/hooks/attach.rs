//! Which hook an interface gets, and its program put there. Another program is
//! never displaced.

use std::path::Path;

use weir_bpf::{
    attachment::{Hook, Link},
    device::Device,
};

use super::{
    devices,
    interface::{AWAY, Attached, Interface},
    pins::{pin_of, pinned, remove_link, remove_pin},
    programs::{HookPlan, Programs},
    refusal::refusal,
};
use crate::{Error, Feature, hook_selection};

/// The interface that every network namespace has.
const LOOPBACK: u32 = 1;

/// The hook behind XDP: tcx, or a tc filter on a kernel without it.
fn tc() -> Hook {
    match weir_bpf::probe::tcx_programs(LOOPBACK) {
        Some(_) => Hook::Tcx,
        None => Hook::ClsBpf,
    }
}

/// That what goes out cannot be judged, as only geofence and lists want it to be.
fn outbound_not_judged(says: String) -> Error {
    Error::NotOffered {
        feature: Feature::Geofence,
        says,
    }
}

/// Hooks to try in order, and why where `auto` chose.
fn candidates(wanted: &HookPlan, name: &str, device: &Device) -> (Vec<Hook>, String) {
    match wanted.hook {
        Some(Hook::Xdp) => (vec![Hook::Xdp, Hook::XdpGeneric, tc()], String::new()),
        Some(Hook::XdpGeneric) => (vec![Hook::XdpGeneric, tc()], String::new()),
        Some(Hook::Tcx | Hook::Egress) => (vec![Hook::Tcx, Hook::ClsBpf], String::new()),
        Some(Hook::Netfilter) => (vec![Hook::Netfilter], String::new()),
        Some(Hook::ClsBpf | Hook::EgressClsBpf) => (vec![Hook::ClsBpf], String::new()),
        None => hook_selection::candidates(&wanted.advice, name, device),
    }
}

impl Interface {
    /// The hooks that it would be given, the best first; without its device, tc's,
    /// which every kind of Ethernet device has.
    pub(super) fn choices(&self, wanted: &HookPlan) -> Vec<Hook> {
        match devices::find(&self.name) {
            Ok(Some(device)) => candidates(wanted, &self.name, &device).0,
            _ => vec![wanted.hook.unwrap_or_else(tc)],
        }
    }

    /// Attaches, or takes over what an earlier daemon attached. An interface
    /// that is not there is waited for: see [`Self::follow`].
    pub(super) fn attach(
        &mut self,
        wanted: &HookPlan,
        programs: &dyn Programs,
        links: &Path,
    ) -> Result<(), Error> {
        if self.same_as.is_some() {
            return Ok(());
        }
        let Some(device) = self.device(wanted.hook, links)? else {
            self.note = AWAY.to_owned();
            return Ok(());
        };
        let (hooks, why) = candidates(wanted, &self.name, &device);
        self.note = why;
        self.attach_egress(hooks[0], &device, programs, links)?;
        for (hook, pin) in pinned(links, &self.name) {
            if hook.is_egress() {
                continue;
            }
            let link = Link::open(&pin)?;
            // One that does not load any more makes room for the next best.
            let fits = programs.refusal(hook).is_none() && programs.program(hook).is_ok();
            if self.state.is_none()
                && fits
                && hooks.contains(&hook)
                && link.target()?.0 == device.index
            {
                if hook == Hook::Netfilter {
                    programs.judge_interface(device.index)?;
                }
                match link.update(programs.program(hook)?) {
                    Ok(()) => {
                        self.state = Some(Attached {
                            link,
                            hook,
                            ifindex: device.index,
                            pin,
                        });
                    }
                    // Below it is attached anew, here or where else it can be.
                    Err(why) => tracing::warn!(
                        interface = self.name,
                        "cannot change the program at {}: {why}",
                        hook.name()
                    ),
                }
            } else {
                // Of an interface that is gone, or of a hook no longer wanted
                // (which ends once the new one is in place, below).
                if link.target()?.0 != device.index {
                    remove_link(&pin)?;
                }
            }
        }
        let best = hooks[0];
        if self.state.as_ref().is_some_and(|a| {
            a.hook == best || (wanted.hook.is_none() && wanted.advice.calibration.is_none())
        }) {
            return self.end_others(links);
        }
        self.attach_new(&hooks, &device, programs, links)?;
        self.end_others(links)
    }

    fn attach_new(
        &mut self,
        hooks: &[Hook],
        device: &Device,
        programs: &dyn Programs,
        links: &Path,
    ) -> Result<(), Error> {
        let mut refusals = Vec::new();
        // The two XDP modes exclude each other: ours ends before the other
        // begins, and tcx stands in until a hook is in place, however many
        // are refused.
        let mut stand_in = None;
        for &hook in hooks {
            if self.state.as_ref().is_some_and(|a| a.hook == hook) {
                self.add_note(&refusals);
                return Ok(());
            }
            let is_xdp = |hook| matches!(hook, Hook::Xdp | Hook::XdpGeneric);
            if hook == Hook::Tcx
                && let Some(link) = stand_in.take()
            {
                // The kernel takes a program once on a hook.
                return self.keep_stand_in(link, refusals, device, links);
            }
            if let Some(why) = programs.refusal(hook) {
                refusals.push(format!("{}: {why}", hook.name()));
                continue;
            }
            // Before what is there ends: it may be loaded for this.
            let program = match programs.program(hook) {
                Ok(program) => program,
                Err(why) => {
                    refusals.push(format!("{}: {why}", hook.name()));
                    continue;
                }
            };
            if is_xdp(hook) && self.state.as_ref().is_some_and(|a| is_xdp(a.hook)) {
                let tcx = programs.program(Hook::Tcx).ok();
                stand_in = tcx.and_then(|tcx| Link::attach(tcx, device.index, Hook::Tcx).ok());
                let ours = self.state.take().expect("just looked");
                ours.link.detach();
                remove_pin(&ours.pin)?;
            }
            if hook == Hook::Netfilter {
                programs.judge_interface(device.index)?;
            }
            let pin = pin_of(links, &self.name, hook);
            // A leftover of an interface with another index.
            remove_link(&pin)?;
            match Link::attach_pinned(program, device.index, hook, &pin) {
                Ok(link) => {
                    if let Some(priority) = link.priority().filter(|priority| *priority > 1) {
                        refusals.push(format!(
                            "{}: filters of others come before it (priority {priority})",
                            hook.name()
                        ));
                    }
                    self.add_note(&refusals);
                    let old = self.state.replace(Attached {
                        link,
                        hook,
                        ifindex: device.index,
                        pin,
                    });
                    end(old.map(|old| old.link));
                    end(stand_in);
                    return Ok(());
                }
                Err(e) => refusals.push(refusal(hook, device, &e)),
            }
        }
        if let Some(link) = stand_in {
            return self.keep_stand_in(link, refusals, device, links);
        }
        let says = format!("cannot protect {}: {}", self.name, refusals.join("; "));
        // Where there are several hooks, each was refused for a reason of its own.
        let feature = match hooks {
            [hook] => programs.in_the_way(*hook),
            _ => None,
        };
        Err(match feature {
            Some(feature) => Error::NotOffered { feature, says },
            None => Error::Unsupported(says),
        })
    }

    /// What stood in on tcx while other hooks were tried is what there is.
    fn keep_stand_in(
        &mut self,
        link: Link,
        refusals: Vec<String>,
        device: &Device,
        links: &Path,
    ) -> Result<(), Error> {
        let pin = pin_of(links, &self.name, Hook::Tcx);
        // A leftover of an interface with another index.
        remove_link(&pin)?;
        link.pin(&pin)?;
        self.add_note(&refusals);
        self.state = Some(Attached {
            link,
            hook: Hook::Tcx,
            ifindex: device.index,
            pin,
        });
        Ok(())
    }

    /// Attaches at a hook that takes a program beside the one that is there, which
    /// cannot be changed, as `refused` says, and ends when the other is in place.
    pub(super) fn change_hook(
        &mut self,
        refused: String,
        programs: &dyn Programs,
        links: &Path,
    ) -> Result<(), Error> {
        let running = self.hook();
        let mut refusals = vec![refused];
        let device = self.device(running, links)?;
        let device = device.filter(Device::is_ethernet);
        for hook in [Hook::Tcx, Hook::ClsBpf] {
            let Some(device) = device.as_ref().filter(|_| running != Some(hook)) else {
                continue;
            };
            let program = match programs.program(hook) {
                Ok(program) => program,
                Err(why) => {
                    refusals.push(format!("{}: {why}", hook.name()));
                    continue;
                }
            };
            let pin = pin_of(links, &self.name, hook);
            // A leftover of an interface with another index.
            remove_link(&pin)?;
            match Link::attach_pinned(program, device.index, hook, &pin) {
                Ok(link) => {
                    let old = self.state.replace(Attached {
                        link,
                        hook,
                        ifindex: device.index,
                        pin,
                    });
                    if let Some(old) = old {
                        old.link.detach();
                        remove_pin(&old.pin)?;
                    }
                    self.note = refusals.join("; ");
                    tracing::warn!(
                        interface = self.name,
                        "{}; it is protected at {} instead",
                        self.note,
                        hook.name()
                    );
                    return Ok(());
                }
                Err(e) => refusals.push(refusal(hook, device, &e)),
            }
        }
        Err(Error::Unsupported(format!(
            "{}; until {} is taken out of `interfaces`, or its device is made anew, the tables of no interface change",
            refusals.join("; "),
            self.name
        )))
    }

    /// Behind why this hook was chosen: why those before it were not had.
    fn add_note(&mut self, refusals: &[String]) {
        for refusal in refusals {
            if !self.note.is_empty() {
                self.note.push_str("; ");
            }
            self.note.push_str(refusal);
        }
    }

    /// Attaches the twin on egress, takes it over, or takes it away where
    /// there is nothing for it to judge. Beside `ingress`, it is of its kind;
    /// a filter where the kernel has no tcx.
    pub(super) fn attach_egress(
        &mut self,
        ingress: Hook,
        device: &Device,
        programs: &dyn Programs,
        links: &Path,
    ) -> Result<(), Error> {
        if !programs.judge_outbound() {
            end(self.egress.take().map(|egress| egress.link));
            for (_, pin) in pinned(links, &self.name)
                .iter()
                .filter(|(hook, _)| hook.is_egress())
            {
                remove_link(pin)?;
            }
            return Ok(());
        }
        for (hook, pin) in pinned(links, &self.name) {
            if !hook.is_egress() || self.egress.is_some() {
                continue;
            }
            let link = Link::open(&pin)?;
            if link.target()?.0 == device.index {
                self.egress = Some(Attached {
                    link,
                    hook,
                    ifindex: device.index,
                    pin,
                });
            }
        }
        if !device.is_ethernet() {
            return Err(outbound_not_judged(format!(
                "what goes out of {} cannot be judged, as geofence and lists want: it carries no Ethernet frames",
                self.name
            )));
        }
        let mut hooks = vec![ingress.egress(), Hook::EgressClsBpf];
        hooks.dedup();
        let mut refusals = Vec::new();
        for hook in hooks {
            let program = match programs.program(hook) {
                Ok(program) => program,
                Err(why) => {
                    refusals.push(format!("{}: {why}", hook.name()));
                    continue;
                }
            };
            if let Some(egress) = &self.egress
                && egress.ifindex == device.index
                && egress.hook == hook
            {
                return Ok(egress.link.update(program)?);
            }
            let pin = pin_of(links, &self.name, hook);
            remove_link(&pin)?;
            match Link::attach_pinned(program, device.index, hook, &pin) {
                Ok(link) => {
                    let old = self.egress.replace(Attached {
                        link,
                        hook,
                        ifindex: device.index,
                        pin,
                    });
                    if let Some(old) = old {
                        old.link.detach();
                        remove_pin(&old.pin)?;
                    }
                    return Ok(());
                }
                Err(e) => refusals.push(refusal(hook, device, &e)),
            }
        }
        Err(outbound_not_judged(format!(
            "cannot judge what goes out of {}: {}",
            self.name,
            refusals.join("; ")
        )))
    }

    /// Takes away weir's own other links on this interface.
    pub(super) fn end_others(&self, links: &Path) -> Result<(), Error> {
        for (_, pin) in pinned(links, &self.name) {
            let ours = [&self.state, &self.egress];
            if ours.into_iter().flatten().all(|a| a.pin != pin) {
                remove_link(&pin)?;
            }
        }
        Ok(())
    }
}

fn end(link: Option<Link>) {
    if let Some(link) = link {
        link.detach();
    }
}
