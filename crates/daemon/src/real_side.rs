//! What a server behind the balancer (a real) needs to serve virtual addresses: it has
//! them on its loopback interface, answers no ARP for them, and beyond a router takes their
//! packets out of what the balancer sends. Works without a daemon;
//! what was done stands in a file before it is done, and only that is taken back.

mod decap;
mod record;

use std::{
    collections::BTreeSet,
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use serde::Serialize;
use weir_bpf::fault;

use crate::host::addresses;
pub use decap::{DecapSettings, Packets, TunnelEnds};
use record::{AppliedChanges, Locked, Setting};
pub use weir_bpf::decap::GUE_PORT;

/// The file with the changes that weir has made; gone after a reboot, as they are.
pub const DEFAULT_RECORD: &str = "/run/weir-real-side/record.json";
/// So many virtual addresses may a real have.
pub const MAX_VIPS: usize = 1024;

/// The interface that has the virtual addresses.
const LOOPBACK: &str = "lo";
/// Answers ARP for addresses of the interface that is asked only, and asks with none but
/// those (Documentation/networking/ip-sysctl.rst): the balancer alone is to be found by
/// the virtual addresses.
const SYSCTLS: [(&str, u32); 2] = [("arp_ignore", 1), ("arp_announce", 2)];

/// Why a real is as it was, or what is in the way.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be carried out, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The system refused a part of it.
    #[error("cannot {what}: {error}")]
    System {
        /// The action that failed.
        what: String,
        /// The system's error.
        #[source]
        error: io::Error,
    },
}

type Result<T> = std::result::Result<T, Error>;

fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |error| Error::System { what, error }
}

fn refused<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::Refused(why.into()))
}

/// One setting of the system, with what was, or would be, done about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    /// `address`, `sysctl` or `decap`.
    pub kind: &'static str,
    /// The object: `198.51.100.80/32 on lo`, `net.ipv4.conf.all.arp_ignore`.
    pub name: String,
    /// The result of the step.
    pub outcome: Outcome,
    /// The value of a sysctl before and afterwards; `None` for other objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<(String, String)>,
    /// Whose packets the program for tunnels takes out, and for whom; `None` where it takes
    /// none out any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends: Option<TunnelEnds>,
    /// Packets that the program for tunnels has counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<Packets>,
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Set by weir just now.
    Set,
    /// Set by weir at an earlier time.
    Kept,
    /// Set already by somebody else as it must be: weir will not take it back.
    Foreign,
    /// Taken back: it is as it was before weir.
    Undone,
    /// Taken back by somebody else before.
    Gone,
    /// Changed by somebody else since: it stays so.
    Changed,
}

impl Outcome {
    /// Whether the system was changed.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Set | Self::Undone)
    }
}

/// May this address be virtual? What only one host or no host has cannot.
pub fn is_fit(addr: IpAddr) -> bool {
    !addr.is_multicast()
        && match addr {
            IpAddr::V4(v4) => v4.octets()[0] != 0 && !v4.is_broadcast() && !v4.is_loopback(),
            IpAddr::V6(v6) => {
                !v6.is_loopback()
                    && !v6.is_unspecified()
                    && !v6.is_unicast_link_local()
                    && v6.to_ipv4_mapped().is_none()
            }
        }
}

/// The real that this host, or network namespace, is.
pub struct RealSide {
    record: PathBuf,
    is_dry: bool,
}

impl RealSide {
    /// `record`: where it stands what was done. `is_dry`: nothing is done, and it is said
    /// what would be.
    pub fn new(record: &Path, is_dry: bool) -> Self {
        Self {
            record: record.to_owned(),
            is_dry,
        }
    }

    /// Takes the record, for nobody else to change it meanwhile.
    fn lock(&self) -> Result<Locked> {
        Locked::open(&self.record, self.is_dry)
    }

    /// What was done, and whether it is still so.
    ///
    /// # Errors
    /// The record, or the kernel, cannot be read.
    pub fn status(&self) -> Result<Vec<Step>> {
        let record = AppliedChanges::read(&self.record)?;
        let there = there()?;
        let mut steps = Vec::new();
        for addr in &record.addresses {
            let outcome = match there.of(*addr).is_some() {
                true => Outcome::Kept,
                false => Outcome::Gone,
            };
            steps.push(address_step(*addr, outcome));
        }
        for setting in &record.settings {
            let now = read_sysctl(&setting.name)?;
            let outcome = match now == setting.after {
                true => Outcome::Kept,
                false => Outcome::Changed,
            };
            steps.push(setting_step(&setting.name, outcome, &setting.before, &now));
        }
        for (decap, interface) in interfaces_of(&record) {
            let outcome = match decap::is_on(record.namespace, interface) {
                true => Outcome::Kept,
                false => Outcome::Gone,
            };
            steps.push(Step {
                packets: decap::packets(record.namespace, interface),
                ..decap.step(interface, outcome)
            });
        }
        Ok(steps)
    }

    /// Has this host serve these virtual addresses, beside those that it serves already;
    /// `decap`: and take packets for all of them out of tunnels.
    ///
    /// # Errors
    /// One of them cannot be, or the system refuses a part; what is done by then stands in
    /// the record.
    pub fn set(&self, vips: &BTreeSet<IpAddr>, decap: Option<DecapSettings>) -> Result<Vec<Step>> {
        let mut locked = self.lock()?;
        let there = there()?;
        if let Some(unfit) = vips.iter().find(|vip| !is_fit(**vip)) {
            return refused(format!(
                "{unfit} cannot be a virtual address; allowed: an address of one host such as 198.51.100.80 or 2001:db8::80"
            ));
        }
        for vip in vips {
            if let Some(other) = there.of(*vip).filter(|name| name != LOOPBACK) {
                return refused(format!(
                    "{vip} is an address of {other}, where this host answers ARP and neighbour discovery for it: take it from there (ip addr del {vip} dev {other}), the balancer alone is to have it on its network"
                ));
            }
        }
        let record = &mut locked.record;
        let mut wanted = record.addresses.clone();
        wanted.extend(vips.iter().filter(|vip| there.of(**vip).is_none()));
        if wanted.len() > MAX_VIPS {
            return refused(format!(
                "{} virtual addresses; allowed: at most {MAX_VIPS}",
                wanted.len()
            ));
        }
        let mut steps = Vec::new();
        if vips.iter().any(IpAddr::is_ipv4) {
            for (name, least) in SYSCTLS {
                let name = format!("ipv4/conf/all/{name}");
                let now = read_sysctl(&name)?;
                let known = record.settings.iter().position(|s| s.name == name);
                if now.parse::<u32>().is_ok_and(|now| now >= least) {
                    let outcome = known.map_or(Outcome::Foreign, |_| Outcome::Kept);
                    steps.push(setting_step(&name, outcome, &now, &now));
                    continue;
                }
                let after = least.to_string();
                if known.is_none() {
                    record.settings.push(Setting {
                        name: name.clone(),
                        before: now.clone(),
                        after: after.clone(),
                    });
                }
                steps.push(setting_step(&name, Outcome::Set, &now, &after));
            }
        }
        for vip in vips {
            let outcome = match (there.of(*vip), record.addresses.contains(vip)) {
                (Some(_), true) => Outcome::Kept,
                (Some(_), false) => Outcome::Foreign,
                (None, _) => Outcome::Set,
            };
            steps.push(address_step(*vip, outcome));
        }
        record.addresses = wanted;
        let before = record.decap.take();
        if let Some(mut decap) = decap.or_else(|| before.clone()) {
            let known = before.iter().flat_map(|before| &before.vips);
            decap.vips = known
                .chain(vips)
                .chain(&record.addresses)
                .copied()
                .collect();
            record.decap = Some(decap.checked()?);
        }
        let is_same = record.decap == before;
        for (decap, interface) in interfaces_of(record) {
            let outcome = match is_same && decap::is_on(record.namespace, interface) {
                true => Outcome::Kept,
                false => Outcome::Set,
            };
            steps.push(decap.step(interface, outcome));
        }
        let let_go: Vec<String> = before
            .iter()
            .flat_map(|before| &before.interfaces)
            .filter(|name| {
                record
                    .decap
                    .iter()
                    .all(|now| !now.interfaces.contains(*name))
            })
            .cloned()
            .collect();
        for (before, name) in before
            .iter()
            .flat_map(|b| let_go.iter().map(move |n| (b, n)))
        {
            steps.push(before.step(name, Outcome::Undone));
        }
        // What takes packets out of tunnels is told the addresses of the host anew.
        let is_done = record.decap.is_none() && !steps.iter().any(|s| s.outcome.is_change());
        if self.is_dry || is_done {
            return Ok(steps);
        }
        // First the record, then what it says; and no address before ARP is silent.
        locked.save()?;
        fault::point("real-side-recorded");
        for step in steps.iter().filter(|step| step.outcome == Outcome::Set) {
            if let Some((_, after)) = &step.value {
                let mut settings = locked.record.settings.iter();
                let setting = settings.find(|s| sysctl_name(&s.name) == step.name);
                write_sysctl(&setting.expect("it is in the record").name, after)?;
            }
        }
        fault::point("real-side-half-done");
        for vip in vips.iter().filter(|vip| there.of(**vip).is_none()) {
            addresses::add(there.loopback, *vip)
                .map_err(system(format!("add {vip} to {LOOPBACK}")))?;
        }
        let record = &locked.record;
        for name in &let_go {
            decap::detach(record.namespace, name)?;
        }
        if let Some(decap) = &record.decap {
            decap.attach(record.namespace, &there)?;
            fault::point("real-side-attached");
        }
        Ok(steps)
    }

    /// Takes back what was done: these virtual addresses, or all of it where none is named.
    ///
    /// # Errors
    /// A virtual address is not weir's doing, or the system refuses a part: then the record
    /// stays.
    pub fn undo(&self, vips: &BTreeSet<IpAddr>) -> Result<Vec<Step>> {
        let mut locked = self.lock()?;
        let there = there()?;
        let record = &mut locked.record;
        if let Some(other) = vips.iter().find(|vip| !record.addresses.contains(vip)) {
            return refused(format!(
                "{other} is not among the addresses that weir real-side has added ({}): nothing was taken back",
                self.record.display()
            ));
        }
        let is_all = vips.is_empty();
        let (gone, kept) = std::mem::take(&mut record.addresses)
            .into_iter()
            .partition(|addr| is_all || vips.contains(addr));
        record.addresses = kept;
        let gone: BTreeSet<IpAddr> = gone;
        let mut steps = Vec::new();
        if let Some(mut decap) = record.decap.take() {
            decap.vips.retain(|vip| !is_all && !gone.contains(vip));
            if decap.vips.is_empty() {
                for name in &decap.interfaces {
                    let outcome = match decap::is_on(record.namespace, name) {
                        true => Outcome::Undone,
                        false => Outcome::Gone,
                    };
                    steps.push(decap.step(name, outcome));
                    if !self.is_dry {
                        decap::detach(record.namespace, name)?;
                    }
                }
            } else {
                if !self.is_dry {
                    decap.attach(record.namespace, &there)?;
                }
                record.decap = Some(decap);
            }
        }
        for addr in &gone {
            let outcome = match there.of(*addr).as_deref() {
                Some(LOOPBACK) => Outcome::Undone,
                _ => Outcome::Gone,
            };
            steps.push(address_step(*addr, outcome));
            if outcome == Outcome::Undone && !self.is_dry {
                addresses::remove(there.loopback, *addr)
                    .map_err(system(format!("remove {addr} from {LOOPBACK}")))?;
            }
        }
        if is_all || !record.addresses.iter().any(IpAddr::is_ipv4) {
            for Setting {
                name,
                before,
                after,
            } in std::mem::take(&mut record.settings)
            {
                let now = read_sysctl(&name)?;
                let outcome = match &now {
                    now if *now == after => Outcome::Undone,
                    now if *now == before => Outcome::Gone,
                    _ => Outcome::Changed,
                };
                if outcome == Outcome::Undone {
                    steps.push(setting_step(&name, outcome, &now, &before));
                    if !self.is_dry {
                        write_sysctl(&name, &before)?;
                    }
                } else {
                    steps.push(setting_step(&name, outcome, &now, &now));
                }
            }
        }
        if !self.is_dry {
            locked.save()?;
        }
        Ok(steps)
    }
}

fn address_step(addr: IpAddr, outcome: Outcome) -> Step {
    let length = if addr.is_ipv4() { 32 } else { 128 };
    Step {
        kind: "address",
        name: format!("{addr}/{length} on {LOOPBACK}"),
        outcome,
        value: None,
        ends: None,
        packets: None,
    }
}

/// Interfaces with the program that takes packets out of tunnels.
fn interfaces_of(record: &AppliedChanges) -> impl Iterator<Item = (&DecapSettings, &String)> {
    let all = record.decap.iter();
    all.flat_map(|decap| decap.interfaces.iter().map(move |name| (decap, name)))
}

fn setting_step(name: &str, outcome: Outcome, before: &str, after: &str) -> Step {
    Step {
        kind: "sysctl",
        name: sysctl_name(name),
        outcome,
        value: Some((before.to_owned(), after.to_owned())),
        ends: None,
        packets: None,
    }
}

fn sysctl_name(path: &str) -> String {
    format!("net.{}", path.replace('/', "."))
}

fn sysctl_path(name: &str) -> PathBuf {
    Path::new("/proc/sys/net").join(name)
}

fn read_sysctl(name: &str) -> Result<String> {
    let text = fs::read_to_string(sysctl_path(name));
    let text = text.map_err(system(format!("read {}", sysctl_name(name))))?;
    Ok(text.trim().to_owned())
}

fn write_sysctl(name: &str, value: &str) -> Result<()> {
    fs::write(sysctl_path(name), value)
        .map_err(system(format!("set {} to {value}", sysctl_name(name))))
}

/// The addresses of this host, by interface.
struct Addresses {
    loopback: u32,
    all: Vec<(u32, IpAddr)>,
}

impl Addresses {
    /// The name of the interface that has it.
    fn of(&self, addr: IpAddr) -> Option<String> {
        let (index, _) = self.all.iter().find(|(_, there)| *there == addr)?;
        if *index == self.loopback {
            return Some(LOOPBACK.to_owned());
        }
        let all = nix::net::if_::if_nameindex().ok();
        let name = all.iter().flatten().find(|one| one.index() == *index);
        let name = name.map(|one| one.name().to_string_lossy().into_owned());
        Some(name.unwrap_or_else(|| format!("interface {index}")))
    }
}

fn there() -> Result<Addresses> {
    let loopback = nix::net::if_::if_nametoindex(LOOPBACK)
        .map_err(io::Error::from)
        .map_err(system(format!("find {LOOPBACK}")))?;
    let all = addresses::all().map_err(system("read this host's addresses"))?;
    let interfaces = nix::ifaddrs::getifaddrs()
        .map_err(io::Error::from)
        .map_err(system("read this host's interfaces"))?;
    let is_up = |one: &nix::ifaddrs::InterfaceAddress| {
        one.flags.contains(nix::net::if_::InterfaceFlags::IFF_UP)
    };
    if !interfaces
        .into_iter()
        .any(|one| one.interface_name == LOOPBACK && is_up(&one))
    {
        return refused(format!(
            "{LOOPBACK} is down, and serves no address: ip link set {LOOPBACK} up"
        ));
    }
    Ok(Addresses { loopback, all })
}
