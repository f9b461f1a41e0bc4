//! Interfaces: which hook each gets, links of an earlier daemon, and an
//! interface that goes and comes back. Another program is never displaced.

use std::{io, path::PathBuf};

use weir_bpf::{
    Generation,
    device::Device,
    link::{self, Hook, Link},
};

use super::link_pins::{attached_to, pin_of, pinned, remove_link, remove_pin, rename_pin};
use crate::{
    Attachment, Error,
    calibration::{self, Advice},
    devices,
};

/// What there is to say of an interface that is not there.
const AWAY: &str = "no such interface now; protected as soon as it is there";
/// The interface that every network namespace has.
const LOOPBACK: u32 = 1;

/// One configured interface.
pub(super) struct Interface {
    /// As configured. Its pins carry it, also while the device is called
    /// otherwise.
    pub(super) name: String,
    /// What the device is called that had the name when weir was attached.
    renamed: Option<String>,
    state: Option<Attached>,
    /// The twin on egress, while there is a class stage.
    egress: Option<Attached>,
    /// The configured name that this device has already: see [`super::same_device`].
    same_as: Option<String>,
    note: String,
}

struct Attached {
    link: Link,
    hook: Hook,
    ifindex: u32,
    pin: PathBuf,
}

/// What stands behind XDP: tcx, or a filter on a kernel without it.
fn tc() -> Hook {
    match weir_bpf::probe::tcx_programs(LOOPBACK) {
        Some(_) => Hook::Tcx,
        None => Hook::ClsBpf,
    }
}

/// Hooks to try in order, and why where `auto` chose.
fn candidates(
    wanted: Option<Hook>,
    advice: &Advice,
    name: &str,
    device: &Device,
) -> (Vec<Hook>, String) {
    match wanted {
        Some(Hook::Xdp) => (vec![Hook::Xdp, Hook::XdpGeneric, tc()], String::new()),
        Some(Hook::XdpGeneric) => (vec![Hook::XdpGeneric, tc()], String::new()),
        Some(Hook::Tcx | Hook::Egress) => (vec![Hook::Tcx, Hook::ClsBpf], String::new()),
        Some(Hook::Netfilter) => (vec![Hook::Netfilter], String::new()),
        Some(Hook::ClsBpf | Hook::EgressClsBpf) => (vec![Hook::ClsBpf], String::new()),
        None => calibration::candidates(advice, name, device),
    }
}

/// The device of this name, if there is one and the hook is for its kind.
fn find(name: &str, wanted: Option<Hook>) -> Result<Option<Device>, Error> {
    let Some(device) = devices::find(name)? else {
        return Ok(None);
    };
    if let Some(hook) = wanted
        && hook != Hook::Netfilter
        && !device.is_ethernet()
    {
        return Err(Error::Unsupported(format!(
            "interface {name} carries no Ethernet frames (kind {}, driver {:?}), and {} judges nothing else: backend = \"auto\", \"netfilter\", \"nft\" or \"ipset\" does",
            device.kind,
            device.driver,
            hook.name()
        )));
    }
    Ok(Some(device))
}

impl Interface {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            renamed: None,
            state: None,
            egress: None,
            same_as: None,
            note: String::new(),
        }
    }

    /// Says whether another configured name has this device.
    pub(super) fn set_same_as(
        &mut self,
        other: Option<String>,
        links: &std::path::Path,
    ) -> Result<(), Error> {
        if let Some(other) = &other {
            self.note = format!("the same device as {other}, which is protected once");
            if self.state.is_some() {
                self.detach(links)?;
            }
        } else if self.same_as.is_some() {
            self.note = AWAY.to_owned();
        }
        self.same_as = other;
        Ok(())
    }

    /// Can weir protect an interface of this name, once it is there? The check
    /// before anything is changed.
    pub(super) fn check(name: &str, wanted: Option<Hook>) -> Result<(), Error> {
        find(name, wanted).map(|_| ())
    }

    /// Would netfilter be tried first?
    pub(super) fn leads_to_netfilter(name: &str, wanted: Option<Hook>, advice: &Advice) -> bool {
        find(name, wanted).is_ok_and(|device| {
            device.is_some_and(|device| {
                candidates(wanted, advice, name, &device).0[0] == Hook::Netfilter
            })
        })
    }

    /// The device that this is about: the one of the name, or else the one that
    /// had it and is called otherwise by now.
    fn device(
        &mut self,
        wanted: Option<Hook>,
        links: &std::path::Path,
    ) -> Result<Option<Device>, Error> {
        self.renamed = None;
        if let Some(device) = find(&self.name, wanted)? {
            return Ok(Some(device));
        }
        let attached = match &self.state {
            Some(attached) => Some(attached.ifindex),
            None => attached_to(&self.name, links),
        };
        let Some(index) = attached else {
            return Ok(None);
        };
        let Some(renamed) = devices::name_of(index)? else {
            return Ok(None);
        };
        let device = find(&renamed, wanted)?;
        self.renamed = device.is_some().then_some(renamed);
        Ok(device)
    }

    /// Is this the interface with that number, under another name?
    pub(super) fn was(&self, index: u32) -> bool {
        self.index() == Some(index)
    }

    /// The number of the device that weir is attached to.
    pub(super) fn index(&self) -> Option<u32> {
        self.state.as_ref().map(|attached| attached.ifindex)
    }

    /// The device keeps the name that it was given.
    pub(super) fn take_name(&mut self, name: &str, links: &std::path::Path) -> Result<(), Error> {
        for attached in [&mut self.state, &mut self.egress].into_iter().flatten() {
            let pin = pin_of(links, name, attached.hook);
            rename_pin(&attached.pin, &pin)?;
            attached.link = Link::open(&pin)?;
            attached.pin = pin;
        }
        self.name = name.to_owned();
        self.renamed = None;
        Ok(())
    }

    /// Attaches, or takes over what an earlier daemon attached. An interface
    /// that is not there is waited for: see [`Self::follow`].
    pub(super) fn attach(
        &mut self,
        wanted: Option<Hook>,
        advice: &Advice,
        generation: &Generation,
        links: &std::path::Path,
    ) -> Result<(), Error> {
        if self.same_as.is_some() {
            return Ok(());
        }
        let Some(device) = self.device(wanted, links)? else {
            self.note = AWAY.to_owned();
            return Ok(());
        };
        let (hooks, why) = candidates(wanted, advice, &self.name, &device);
        self.note = why;
        self.attach_egress(hooks[0], &device, generation, links)?;
        for (hook, pin) in pinned(links, &self.name) {
            if hook.is_egress() {
                continue;
            }
            let link = Link::open(&pin)?;
            let fits = hook != Hook::Netfilter || !generation.has_decoys;
            if self.state.is_none()
                && fits
                && hooks.contains(&hook)
                && link.target()?.0 == device.index
            {
                if hook == Hook::Netfilter {
                    generation.judge_interface(device.index)?;
                }
                link.update(generation.program(hook))?;
                self.state = Some(Attached {
                    link,
                    hook,
                    ifindex: device.index,
                    pin,
                });
            } else {
                // Of an interface that is gone, or of a hook no longer wanted
                // (which ends once the new one is in place, below).
                if link.target()?.0 != device.index {
                    remove_link(&pin)?;
                }
            }
        }
        let best = hooks[0];
        if self
            .state
            .as_ref()
            .is_some_and(|a| a.hook == best || (wanted.is_none() && advice.calibration.is_none()))
        {
            return self.end_others(links);
        }
        self.attach_new(&hooks, &device, generation, links)?;
        self.end_others(links)
    }

    fn attach_new(
        &mut self,
        hooks: &[Hook],
        device: &Device,
        generation: &Generation,
        links: &std::path::Path,
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
            if is_xdp(hook) && self.state.as_ref().is_some_and(|a| is_xdp(a.hook)) {
                stand_in =
                    Link::attach(generation.program(Hook::Tcx), device.index, Hook::Tcx).ok();
                let ours = self.state.take().expect("just looked");
                ours.link.detach();
                remove_pin(&ours.pin)?;
            }
            if hook == Hook::Netfilter {
                if generation.has_decoys {
                    refusals.push("netfilter: it has no decoy ports".to_owned());
                    continue;
                }
                if !generation.has_netfilter() {
                    refusals.push("netfilter: its program is not loaded".to_owned());
                    continue;
                }
                generation.judge_interface(device.index)?;
            }
            let pin = pin_of(links, &self.name, hook);
            // A leftover of an interface with another index.
            remove_link(&pin)?;
            match Link::attach_pinned(generation.program(hook), device.index, hook, &pin) {
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
        Err(Error::Unsupported(format!(
            "cannot protect {}: {}",
            self.name,
            refusals.join("; ")
        )))
    }

    /// What stood in on tcx while other hooks were tried is what there is.
    fn keep_stand_in(
        &mut self,
        link: Link,
        refusals: Vec<String>,
        device: &Device,
        links: &std::path::Path,
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
    fn attach_egress(
        &mut self,
        ingress: Hook,
        device: &Device,
        generation: &Generation,
        links: &std::path::Path,
    ) -> Result<(), Error> {
        if generation.classes.lines() == 0 {
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
            return Err(Error::Unsupported(format!(
                "what goes out of {} cannot be judged, as geofence and lists want: it carries no Ethernet frames",
                self.name
            )));
        }
        let mut hooks = vec![ingress.egress(), Hook::EgressClsBpf];
        hooks.dedup();
        let mut refusals = Vec::new();
        for hook in hooks {
            let program = generation.program(hook);
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
        Err(Error::Unsupported(format!(
            "cannot judge what goes out of {}: {}",
            self.name,
            refusals.join("; ")
        )))
    }

    /// Takes away weir's own other links on this interface.
    fn end_others(&self, links: &std::path::Path) -> Result<(), Error> {
        for (_, pin) in pinned(links, &self.name) {
            let ours = [&self.state, &self.egress];
            if ours.into_iter().flatten().all(|a| a.pin != pin) {
                remove_link(&pin)?;
            }
        }
        Ok(())
    }

    /// Attaches again when the interface came back under its name; drops the
    /// dead link when it went. True when something changed.
    pub(super) fn follow(
        &mut self,
        wanted: Option<Hook>,
        advice: &Advice,
        generation: &Generation,
        links: &std::path::Path,
    ) -> Result<bool, Error> {
        if self.same_as.is_some() {
            return Ok(false);
        }
        let index = devices::find(&self.name)?.map(|device| device.index);
        if let Some(attached) = &self.state {
            let renamed = match index {
                // The name decides between two devices.
                Some(_) => None,
                None => devices::name_of(attached.ifindex)?,
            };
            if index == Some(attached.ifindex) || renamed.is_some() {
                if self.renamed != renamed {
                    match &renamed {
                        Some(name) => tracing::warn!(
                            interface = self.name,
                            "it is called {name} now, and protected as before"
                        ),
                        None => tracing::info!(interface = self.name, "it has its name again"),
                    }
                    self.renamed = renamed;
                }
                let lost = |a: &mut Attached| !a.link.is_there();
                let ours = [self.state.take_if(lost), self.egress.take_if(lost)];
                if ours.iter().all(Option::is_none) {
                    return Ok(false);
                }
                tracing::warn!(interface = self.name, "somebody removed weir's filter");
            } else {
                if let Some(name) = devices::name_of(attached.ifindex)? {
                    tracing::warn!(
                        interface = self.name,
                        "another device has this name: the one that had it, {name} now, is no longer protected unless that name is configured"
                    );
                }
                remove_pin(&attached.pin)?;
                self.state = None;
                if let Some(egress) = self.egress.take() {
                    remove_pin(&egress.pin)?;
                }
                self.note = AWAY.to_owned();
                self.renamed = None;
            }
        }
        match index.is_some() || self.renamed.is_some() {
            true => self
                .attach(wanted, advice, generation, links)
                .map(|()| true),
            false => Ok(false),
        }
    }

    /// Puts a generation's programs in place.
    pub(super) fn update(
        &mut self,
        generation: &Generation,
        links: &std::path::Path,
    ) -> Result<(), Error> {
        let Some(attached) = &self.state else {
            return Ok(());
        };
        let gone = |e: &weir_bpf::Error| {
            // The interface went a moment ago; `follow` sees to it.
            e.io().raw_os_error() == Some(rustix::io::Errno::NOLINK.raw_os_error())
        };
        match attached.link.update(generation.program(attached.hook)) {
            Err(e) if gone(&e) => return Ok(()),
            done => done?,
        }
        let hook = attached.hook;
        let Ok(Some(device)) = self.device(Some(hook), links) else {
            return Ok(());
        };
        match self.attach_egress(hook, &device, generation, links) {
            Err(Error::Kernel(e)) if gone(&e) => Ok(()),
            done => done,
        }
    }

    /// Takes the program off this interface.
    pub(super) fn detach(&mut self, links: &std::path::Path) -> Result<(), Error> {
        self.state = None;
        self.egress = None;
        self.end_others(links)
    }

    /// The interface's number, if netfilter judges it.
    pub(super) fn judged_by_netfilter(&self) -> Option<u32> {
        let attached = self.state.as_ref()?;
        (attached.hook == Hook::Netfilter).then_some(attached.ifindex)
    }

    /// The configured name that has this device already.
    pub(super) fn same_as(&self) -> Option<&String> {
        self.same_as.as_ref()
    }

    pub(super) fn hook(&self) -> Option<Hook> {
        self.state.as_ref().map(|a| a.hook)
    }

    pub(super) fn describe(&self) -> Attachment {
        let mut note = self.note.clone();
        if let Some(renamed) = &self.renamed {
            note = match note.is_empty() {
                true => format!("called {renamed} now"),
                false => format!("called {renamed} now; {note}"),
            };
        }
        Attachment {
            interface: self.name.clone(),
            hook: self.hook().map_or("none", Hook::name).to_owned(),
            note,
            present: self.state.is_some() || !matches!(devices::find(&self.name), Ok(None)),
            renamed: self.renamed.clone(),
        }
    }
}

fn end(link: Option<Link>) {
    if let Some(link) = link {
        link.detach();
    }
}

/// Why a hook could not be had, for `weir status` and the log.
fn refusal(hook: Hook, device: &Device, e: &io::Error) -> String {
    let occupied = matches!(hook, Hook::Xdp | Hook::XdpGeneric)
        .then(|| link::xdp_program_on(device.index))
        .flatten();
    match occupied {
        Some((id, mode)) => {
            let name = link::program_name(id);
            let name = if name.is_empty() {
                String::new()
            } else {
                format!(" {name:?}")
            };
            format!(
                "{}: another XDP program{name} (id {id}, {mode}) is there",
                hook.name()
            )
        }
        None if matches!(hook, Hook::Tcx | Hook::Egress)
            && e.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) =>
        {
            format!("{}: this kernel has no tcx (6.6 or newer)", hook.name())
        }
        None if matches!(hook, Hook::Tcx | Hook::Egress)
            && e.raw_os_error() == Some(rustix::io::Errno::RANGE.raw_os_error()) =>
        {
            format!(
                "{}: as many other programs are there as the kernel takes",
                hook.name()
            )
        }
        None if hook == Hook::Netfilter => format!(
            "netfilter: {e} (probe: a BPF link of type netfilter; Linux 6.4, CONFIG_NETFILTER_BPF_LINK)"
        ),
        None if matches!(hook, Hook::ClsBpf | Hook::EgressClsBpf) => match e.kind() {
            io::ErrorKind::AlreadyExists => format!(
                "{}: filters of another kind have the first priorities; `tc filter show dev IF ingress` lists them",
                hook.name()
            ),
            _ => format!(
                "{}: {e} (probe: a clsact qdisc with a bpf filter; CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_BPF)",
                hook.name()
            ),
        },
        None if hook == Hook::Xdp
            && e.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()) =>
        {
            format!("xdp: the driver {:?} has no native XDP", device.driver)
        }
        None => format!("{}: {e}", hook.name()),
    }
}
