//! The chains at the devices' own hook (`ingress`, Linux 5.10): one for each
//! protected interface, in front of the IP stack, other people's flowtables and
//! the bridge, with the sets that prerouting has. A packet is judged once:
//! prerouting leaves those alone whose device is in the set `covered`, by its
//! number. So an interface that was deleted and made again is prerouting's from
//! its first packet on, until it has a chain again.
//!
//! An interface with an ingress qdisc stays with prerouting: a filter there can
//! send packets through another device (`ifb`) and back, behind this hook.

use std::{
    collections::{BTreeMap, HashMap},
    io,
};

use weir_bpf::{cls_bpf::with_ingress_qdisc, device::Device, rcu};

use super::{
    chains::by_family,
    names::{COVERED, FRONT, PRIORITY_IN},
    rule::{KEY, Meta, Verdict},
    socket::Nftables,
    table::{Element, Hook, Table},
    tags,
    verdict_chains::PASS,
    wire::{Batch, MessageKind},
};

/// The devices that have an ingress chain, and those that have none.
#[derive(Default)]
pub(super) struct Ingress {
    /// Whether nothing is dropped.
    pub(super) observe: bool,
    covered: BTreeMap<u32, String>,
    /// Why the others have none, by name.
    without: BTreeMap<String, Without>,
}

/// The result of [`Ingress::look`].
pub(super) struct Looked {
    /// Devices that shall have a chain, by index.
    wanted: BTreeMap<u32, String>,
    without: BTreeMap<String, Without>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Without {
    Gone,
    Qdisc,
    /// What the kernel said about the device with this number.
    Refused(u32, String),
}

fn chain(index: u32) -> String {
    format!("ingress-{index}")
}

/// The number of the device that a chain is for.
pub(super) fn read_chain(name: &str) -> Option<u32> {
    name.strip_prefix("ingress-")?.parse().ok()
}

/// Rules of such a chain.
const RULES: usize = 3;

impl Ingress {
    /// The table was made anew: no device has a chain.
    pub(super) fn forget(&mut self) {
        self.covered.clear();
    }

    /// Which devices there are, and which of them may have a chain.
    ///
    /// # Errors
    /// Nobody can say: what has a chain keeps it.
    pub(super) fn look(&self, interfaces: &[String]) -> io::Result<Looked> {
        let redirecting = with_ingress_qdisc()?;
        let mut wanted = BTreeMap::new();
        let mut without = BTreeMap::new();
        for name in interfaces {
            let found = Device::find_present(name)?.map(|device| device.index);
            let reason = match (found, self.without.get(name)) {
                (None, _) => Without::Gone,
                (Some(index), _) if redirecting.contains(&index) => Without::Qdisc,
                (Some(index), Some(refused @ Without::Refused(by, _))) if *by == index => {
                    refused.clone()
                }
                (Some(index), _) => {
                    wanted.insert(index, name.clone());
                    continue;
                }
            };
            without.insert(name.clone(), reason);
        }
        Ok(Looked { wanted, without })
    }

    /// Gives the devices that are there their chain and takes it from those
    /// that are not.
    pub(super) fn follow(
        &mut self,
        socket: &Nftables,
        table: &Table,
        Looked { wanted, without }: Looked,
    ) -> io::Result<()> {
        self.without = without;
        if wanted == self.covered {
            return Ok(());
        }
        let stays = |index: &u32, name: &String| wanted.get(index) == Some(name);
        let stale: Vec<u32> = self
            .covered
            .iter()
            .filter(|(index, name)| !stays(index, name))
            .map(|(index, _)| *index)
            .collect();
        if !stale.is_empty() {
            uncover(socket, table, &stale)?;
            self.covered.retain(|index, name| stays(index, name));
        }
        for (index, name) in wanted {
            if self.covered.contains_key(&index) {
                continue;
            }
            let chain = chain(index);
            let covered = tags::drop_stacked(socket, table, &chain, &name, self.observe)
                .and_then(|()| cover(socket, table, index, &name));
            match covered {
                Ok(()) => {
                    self.covered.insert(index, name);
                }
                Err(error) => {
                    // Both chains or none: prerouting judges what has none.
                    tags::let_go(socket, table, &chain)?;
                    let refused = Without::Refused(index, error.to_string());
                    self.without.insert(name, refused);
                }
            }
        }
        Ok(())
    }

    /// How many devices have their chain.
    pub(super) fn len(&self) -> usize {
        self.covered.len()
    }

    /// Are these rules, counted by devices, all that there should be?
    pub(super) fn is_whole(&self, rules: &HashMap<u32, usize>) -> bool {
        let mut devices = self.covered.keys();
        devices.all(|device| rules.get(device) == Some(&RULES))
    }

    /// Where packets of an interface are judged, for `weir status`.
    pub(super) fn tell(&self, interface: &str) -> String {
        if self.covered.values().any(|name| name == interface) {
            return "at ingress and, what comes past that, in prerouting".to_owned();
        }
        match self.without.get(interface) {
            None | Some(Without::Gone) => String::new(),
            Some(Without::Qdisc) => "in prerouting only: an ingress or clsact qdisc is there, whose filters may send packets past nftables' ingress".to_owned(),
            Some(Without::Refused(_, error)) => format!(
                "in prerouting only: the kernel refuses a chain at ingress ({error}; inet tables have it since Linux 5.10 with CONFIG_NETFILTER_INGRESS)"
            ),
        }
    }
}

/// First the chain, then the device's number in the set: a packet that was past the
/// hook when the chain came must not meet a prerouting that leaves it to that.
fn cover(socket: &Nftables, table: &Table, index: u32, name: &str) -> io::Result<()> {
    let mut to = Batch::new();
    let chain = chain(index);
    table.base_chain(&mut to, &chain, Hook::Ingress(name, PRIORITY_IN));
    by_family(table, &mut to, &chain, FRONT.map(Verdict::Jump));
    // Since Linux 6.16 a chain goes over to the next device of that name, whose
    // packets prerouting counts.
    table.rule(&mut to, &chain, |rule| {
        rule.meta(Meta::InIndex, KEY)
            .equals(KEY, &index.to_ne_bytes())
            .verdict(Verdict::Goto(PASS));
    });
    socket.commit(to)?;
    rcu::wait_for_packets();
    let mut to = Batch::new();
    let key = index.to_ne_bytes();
    table.elements(
        &mut to,
        MessageKind::NewElements,
        COVERED,
        &[Element::key(&key)],
    );
    let covered = socket.commit(to);
    if covered.is_err() {
        let mut to = Batch::new();
        table.empty_chain(&mut to, &chain);
        table.delete_chain(&mut to, &chain);
        socket.commit(to)?;
    }
    covered
}

/// Before Linux 6.16 the chain of a device is gone when the device is.
fn uncover(socket: &Nftables, table: &Table, indexes: &[u32]) -> io::Result<()> {
    let there = socket.dump(
        MessageKind::GetChain,
        |_| {},
        |found, all: &mut Vec<String>| {
            if found.text(1) == Some(&table.0) {
                all.extend(found.text(3).map(str::to_owned));
            }
        },
    )?;
    let mut to = Batch::new();
    for index in indexes {
        let key = index.to_ne_bytes();
        table.elements(
            &mut to,
            MessageKind::DelElements,
            COVERED,
            &[Element::key(&key)],
        );
        let chain = chain(*index);
        if there.contains(&chain) {
            table.empty_chain(&mut to, &chain);
            table.delete_chain(&mut to, &chain);
        }
    }
    socket.commit(to)?;
    let mut indexes = indexes.iter();
    indexes.try_for_each(|index| tags::let_go(socket, table, &chain(*index)))
}
