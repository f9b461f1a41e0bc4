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
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
};

use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with},
};
use weir_kernel::device::Device;

use super::{
    chains::{COVERED, FRONT, PRIORITY_IN, by_family},
    ends::PASS,
    rule::{KEY, Meta, Verdict},
    socket::Nftables,
    table::{Element, Hook, Table},
    wire::{Attributes, Batch, Kind},
};

/// Which devices have their chain.
#[derive(Default)]
pub(super) struct Ingress {
    covered: BTreeMap<u32, String>,
    /// Why the others have none, by name.
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

    /// Gives the devices that are there their chain and takes it from those
    /// that are not.
    pub(super) fn follow(
        &mut self,
        socket: &Nftables,
        table: &Table,
        interfaces: &[String],
    ) -> io::Result<()> {
        let redirecting = with_ingress_qdisc()?;
        let mut wanted = BTreeMap::new();
        let mut without = BTreeMap::new();
        for name in interfaces {
            let found = Device::find(name).map(|device| device.index);
            let reason = match (found, self.without.get(name)) {
                (Err(_), _) => Without::Gone,
                (Ok(index), _) if redirecting.contains(&index) => Without::Qdisc,
                (Ok(index), Some(refused @ Without::Refused(by, _))) if *by == index => {
                    refused.clone()
                }
                (Ok(index), _) => {
                    wanted.insert(index, name.clone());
                    continue;
                }
            };
            without.insert(name.clone(), reason);
        }
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
            match cover(socket, table, index, &name) {
                Ok(()) => {
                    self.covered.insert(index, name);
                }
                Err(error) => {
                    let refused = Without::Refused(index, error.to_string());
                    self.without.insert(name, refused);
                }
            }
        }
        Ok(())
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
    let key = index.to_ne_bytes();
    table.elements(&mut to, Kind::NewElements, COVERED, &[Element::key(&key)]);
    socket.commit(to)
}

/// Before Linux 6.16 the chain of a device is gone when the device is.
fn uncover(socket: &Nftables, table: &Table, indexes: &[u32]) -> io::Result<()> {
    let there = socket.dump(
        Kind::GetChain,
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
        table.elements(&mut to, Kind::DelElements, COVERED, &[Element::key(&key)]);
        let chain = chain(*index);
        if there.contains(&chain) {
            table.empty_chain(&mut to, &chain);
            table.delete_chain(&mut to, &chain);
        }
    }
    socket.commit(to)
}

/// linux/rtnetlink.h, linux/pkt_sched.h
const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const TCA_KIND: u16 = 1;
const HEADER: usize = 16;
/// `struct tcmsg`: family, number of the device, three more words.
const TCMSG: usize = 20;
const REQUEST_DUMP: u16 = 0x301;
const DONE: u16 = 3;
const ERROR: u16 = 2;

/// The numbers of the devices with a qdisc of the kind `ingress` or `clsact`.
fn with_ingress_qdisc() -> io::Result<BTreeSet<u32>> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None, // NETLINK_ROUTE is 0, the default
    )?;
    let mut question = vec![0u8; HEADER + TCMSG];
    question[..4].copy_from_slice(&((HEADER + TCMSG) as u32).to_ne_bytes());
    question[4..6].copy_from_slice(&RTM_GETQDISC.to_ne_bytes());
    question[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    send(&socket, &question, SendFlags::empty())?;
    let mut found = BTreeSet::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = match recv(&socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((_, length)) => length.min(buffer.len()),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        if read_qdiscs(&buffer[..length], &mut found) {
            return Ok(found);
        }
    }
}

/// Reads one datagram of that dump; is it the last?
fn read_qdiscs(mut bytes: &[u8], found: &mut BTreeSet<u32>) -> bool {
    while let Some(head) = bytes.get(..HEADER) {
        let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let kind = u16::from_ne_bytes([head[4], head[5]]);
        if kind == DONE || kind == ERROR {
            return true;
        }
        let message = bytes.get(HEADER..length).unwrap_or(&[]);
        if let (RTM_NEWQDISC, Some((tcmsg, attributes))) = (kind, message.split_at_checked(TCMSG)) {
            let kind = Attributes::of(attributes).text(TCA_KIND);
            if matches!(kind, Some("ingress" | "clsact")) {
                found.insert(u32::from_ne_bytes([tcmsg[4], tcmsg[5], tcmsg[6], tcmsg[7]]));
            }
        }
        bytes = bytes
            .get(length.max(HEADER).next_multiple_of(4)..)
            .unwrap_or(&[]);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, device: u32, name: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + TCMSG];
        bytes[HEADER + 4..HEADER + 8].copy_from_slice(&device.to_ne_bytes());
        bytes.extend((4 + name.len() as u16).to_ne_bytes());
        bytes.extend(TCA_KIND.to_ne_bytes());
        bytes.extend(name);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes
    }

    #[test]
    fn devices_with_an_ingress_qdisc_are_found() {
        let told = [
            message(RTM_NEWQDISC, 1, b"noqueue\0"),
            message(RTM_NEWQDISC, 2, b"ingress\0"),
            message(RTM_NEWQDISC, 3, b"clsact\0"),
        ]
        .concat();
        let mut found = BTreeSet::new();
        assert!(!read_qdiscs(&told, &mut found));
        assert_eq!(found, BTreeSet::from([2, 3]));
        assert!(read_qdiscs(&message(DONE, 0, b""), &mut found));
        for cut in 0..told.len() {
            let mut some = BTreeSet::new();
            read_qdiscs(&told[..cut], &mut some);
            assert!(some.is_subset(&found), "cut at {cut}");
        }
    }
}
