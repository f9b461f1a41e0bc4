//! One interface: what is attached to it, and which device it is when that goes,
//! comes back or is called otherwise.

use std::path::{Path, PathBuf};

use weir_bpf::{
    attachment::{Hook, Link},
    device::Device,
    fault,
};

use super::{
    attachment::Attachment,
    devices,
    pins::{attached_to, pin_of, remove_pin, rename_pin},
    programs::{HookPlan, Programs},
};
use crate::Error;

/// What there is to say of an interface that is not there.
pub(super) const AWAY: &str = "no such interface now; protected as soon as it is there";

/// One configured interface.
pub(super) struct Interface {
    /// The name in the configuration. Its pins carry it, also while the device is called
    /// otherwise.
    pub(super) name: String,
    /// What the device is called that had the name when weir was attached.
    renamed: Option<String>,
    pub(super) state: Option<Attached>,
    /// The twin on egress, while something judges what goes out.
    pub(super) egress: Option<Attached>,
    /// The configured name that this device has already: see [`super::same_device`].
    pub(super) same_as: Option<String>,
    pub(super) note: String,
}

/// A program at a hook.
pub(super) struct Attached {
    pub(super) link: Link,
    pub(super) hook: Hook,
    pub(super) ifindex: u32,
    pub(super) pin: PathBuf,
}

/// The device of this name, if there is one and the hook is for its kind.
pub(super) fn find(name: &str, wanted: Option<Hook>) -> Result<Option<Device>, Error> {
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
    pub(super) fn set_same_as(&mut self, other: Option<String>, links: &Path) -> Result<(), Error> {
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

    /// The device that this is about: the one of the name, or else the one that
    /// had it and is called otherwise by now.
    pub(super) fn device(
        &mut self,
        wanted: Option<Hook>,
        links: &Path,
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
    pub(super) fn take_name(&mut self, name: &str, links: &Path) -> Result<(), Error> {
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

    /// Attaches again when the interface came back under its name; drops the
    /// dead link when it went. True when something changed.
    pub(super) fn follow(
        &mut self,
        wanted: &HookPlan,
        programs: &dyn Programs,
        links: &Path,
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
            true => self.attach(wanted, programs, links).map(|()| true),
            false => Ok(false),
        }
    }

    /// Puts these programs in place. Where the one at the hook in use cannot be changed
    /// and `insist`s who asks, another hook gets its own, and what was there ends.
    pub(super) fn update(
        &mut self,
        programs: &dyn Programs,
        insist: bool,
        links: &Path,
    ) -> Result<(), Error> {
        let Some(attached) = &self.state else {
            return Ok(());
        };
        let gone = |e: &weir_bpf::Error| {
            // The interface went a moment ago; `follow` sees to it.
            e.io().raw_os_error() == Some(rustix::io::Errno::NOLINK.raw_os_error())
        };
        // What is refused to those that come holds not for what is there.
        let updated = programs.program(attached.hook).and_then(|program| {
            if attached.link.runs(program) {
                return Ok(());
            }
            fault::refuse(&format!("update {}", self.name))
                .map_err(|why| weir_bpf::Error::new("update a link", why))?;
            Ok(attached.link.update(program)?)
        });
        match updated {
            Ok(()) => {}
            Err(Error::Kernel(e)) if gone(&e) => return Ok(()),
            Err(why) => {
                let (hook, name) = (attached.hook.name(), &self.name);
                let refused = format!("cannot change the program at {hook} of {name}: {why}");
                if !insist {
                    return Err(Error::Unsupported(refused));
                }
                self.change_hook(refused, programs, links)?;
            }
        }
        let hook = self.hook().expect("it has a hook still");
        let Ok(Some(device)) = self.device(Some(hook), links) else {
            return Ok(());
        };
        match self.attach_egress(hook, &device, programs, links) {
            Err(Error::Kernel(e)) if gone(&e) => Ok(()),
            done => done,
        }
    }

    /// Takes the program off this interface.
    pub(super) fn detach(&mut self, links: &Path) -> Result<(), Error> {
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
