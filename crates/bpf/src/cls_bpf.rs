//! A program as a tc filter (`cls_bpf`, direct action) on a clsact qdisc: for
//! kernels without tcx. There is no BPF link to it, so what says that it is
//! ours, and keeps it findable when this process ends, is a pinned map with one
//! entry: where the filter is, and which program it runs.
//!
//! Filters of others are never touched, nor a qdisc that was there before or
//! that others use by now.

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys as sys};
use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with},
};

use crate::{
    error::{Context, Error, Result},
    object,
};

/// Handles of weir's filters: on a qdisc that was there, and on one that weir
/// made. The low bits tell several instances on an interface apart.
const HANDLE_GUEST: u32 = 0x7765_6900;
const HANDLE_OWNER: u32 = 0x7765_6f00;
const HANDLE_KIND: u32 = 0xffff_ff00;
/// As many instances of weir on one interface, and so many places to look for
/// before filters of another kind.
const INSTANCES: u32 = 16;
const PRIORITIES: std::ops::RangeInclusive<u16> = 1..=8;

/// Which packets a filter of `cls_bpf` sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    In,
    Out,
}

impl Way {
    fn attach_point(self) -> sys::bpf_tc_attach_point {
        match self {
            Self::In => sys::BPF_TC_INGRESS,
            Self::Out => sys::BPF_TC_EGRESS,
        }
    }

    /// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)` and its twin.
    fn parent(self) -> u32 {
        match self {
            Self::In => 0xffff_fff2,
            Self::Out => 0xffff_fff3,
        }
    }
}

/// The value of the pinned map: five words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FilterLocation {
    ifindex: u32,
    parent: u32,
    handle: u32,
    priority: u32,
}

/// A filter of ours.
pub(crate) struct Filter {
    place: FilterLocation,
    program: AtomicU32,
    record: MapHandle,
}

impl Filter {
    /// Puts `prog` before the filters that are there. The record is pinned
    /// first: no filter is ever without one.
    pub(crate) fn attach(
        prog: BorrowedFd<'_>,
        ifindex: u32,
        way: Way,
        pin: &Path,
    ) -> io::Result<Self> {
        let program = object::program_id(prog)?;
        let made = make_qdisc(ifindex)?;
        let there = [Way::In, Way::Out].map(|way| filters(ifindex, way));
        let [inward, outward] = there;
        let (inward, outward) = (inward?, outward?);
        // The twin in the other direction may have made it.
        let owner = |f: &(u32, u32)| f.1 & HANDLE_KIND == HANDLE_OWNER;
        let kind = match made || inward.iter().chain(&outward).any(owner) {
            true => HANDLE_OWNER,
            false => HANDLE_GUEST,
        };
        let mine = match way {
            Way::In => inward,
            Way::Out => outward,
        };
        let taken = |low: u32| mine.iter().any(|f| f.1 & !HANDLE_KIND == low);
        let low = (0..INSTANCES).find(|low| !taken(*low)).unwrap_or(INSTANCES);
        let record = write_record(pin)?;
        let mut refused = io::Error::from(rustix::io::Errno::EXIST);
        for priority in PRIORITIES {
            let place = FilterLocation {
                ifindex,
                parent: way.parent(),
                handle: kind | low,
                priority: priority.into(),
            };
            let filter = Self {
                place,
                program: program.into(),
                record: MapHandle::try_from(&record).map_err(io::Error::other)?,
            };
            let put = filter
                .write()
                .map_err(|e| io::Error::other(e.to_string()))
                .and_then(|()| filter.put(prog, 0));
            match put {
                Ok(()) => return Ok(filter),
                // Filters of another kind or protocol have this priority.
                Err(e) if e.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {}
                Err(e) => {
                    refused = e;
                    break;
                }
            }
        }
        let _ = std::fs::remove_file(pin);
        if made {
            remove_unused_qdisc(ifindex);
        }
        Err(refused)
    }

    /// The filter whose record is pinned at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let record = MapHandle::from_pinned_path(path)
            .context(|| format!("open the record {}", path.display()))?;
        let bytes = record
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .context(|| format!("read the record {}", path.display()))?
            .unwrap_or_default();
        let mut words = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_ne_bytes(*word));
        let mut word = || {
            words.next().ok_or_else(|| {
                Error::refused(
                    format!("read the record {}", path.display()),
                    "it is too short",
                )
            })
        };
        Ok(Self {
            place: FilterLocation {
                ifindex: word()?,
                parent: word()?,
                handle: word()?,
                priority: word()?,
            },
            program: word()?.into(),
            record,
        })
    }

    fn write(&self) -> Result<()> {
        let p = self.place;
        let words = [
            p.ifindex,
            p.parent,
            p.handle,
            p.priority,
            self.program.load(Ordering::Relaxed),
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.record
            .update(&0u32.to_ne_bytes(), &bytes, MapFlags::ANY)
            .context(|| "write a filter's record".into())
    }

    fn hook(&self) -> sys::bpf_tc_hook {
        sys::bpf_tc_hook {
            sz: size_of::<sys::bpf_tc_hook>() as _,
            ifindex: self.place.ifindex as i32,
            attach_point: if self.place.parent == Way::In.parent() {
                Way::In.attach_point()
            } else {
                Way::Out.attach_point()
            },
            ..Default::default()
        }
    }

    fn opts(&self) -> sys::bpf_tc_opts {
        sys::bpf_tc_opts {
            sz: size_of::<sys::bpf_tc_opts>() as _,
            handle: self.place.handle,
            priority: self.place.priority,
            ..Default::default()
        }
    }

    fn put(&self, prog: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
        let hook = self.hook();
        let mut opts = self.opts();
        opts.prog_fd = prog.as_raw_fd();
        opts.flags = flags;
        // SAFETY: both are whole, and outlive the call.
        check(unsafe { sys::bpf_tc_attach(&hook, &mut opts) })
    }

    /// The program that runs there now; `None`: no such filter, or it is
    /// somebody else's by now.
    fn running(&self) -> Option<u32> {
        let hook = self.hook();
        let mut opts = self.opts();
        // SAFETY: both are whole, and outlive the call.
        check(unsafe { sys::bpf_tc_query(&hook, &mut opts) }).ok()?;
        Some(opts.prog_id).filter(|id| *id == self.program.load(Ordering::Relaxed))
    }

    /// See [`crate::attachment::Link::update`].
    pub(crate) fn update(&self, prog: BorrowedFd<'_>) -> Result<()> {
        let failed = |e| Error::new("replace a filter's program", e);
        let before = self.running().ok_or_else(|| {
            // As a link says whose interface is gone.
            failed(io::Error::from(rustix::io::Errno::NOLINK))
        })?;
        let after = object::program_id(prog).map_err(failed)?;
        self.put(prog, sys::BPF_TC_F_REPLACE).map_err(failed)?;
        self.program.store(after, Ordering::Relaxed);
        self.write().inspect_err(|_| {
            self.program.store(before, Ordering::Relaxed);
        })
    }

    /// See [`crate::attachment::Link::detach`].
    pub(crate) fn detach(&self) {
        if self.running().is_none() {
            return;
        }
        let hook = self.hook();
        let opts = self.opts();
        // SAFETY: both are whole, and outlive the call.
        if unsafe { sys::bpf_tc_detach(&hook, &opts) } == 0
            && self.place.handle & HANDLE_KIND == HANDLE_OWNER
        {
            remove_unused_qdisc(self.place.ifindex);
        }
    }

    /// 1 when no filter of others comes before it.
    pub(crate) fn priority(&self) -> u32 {
        self.place.priority
    }

    /// See [`crate::attachment::Link::target`].
    pub(crate) fn target(&self) -> (u32, u32) {
        match self.running() {
            Some(program) => (self.place.ifindex, program),
            None => (0, 0),
        }
    }
}

fn check(answer: i32) -> io::Result<()> {
    if answer < 0 {
        return Err(io::Error::from_raw_os_error(-answer));
    }
    Ok(())
}

/// A record with nothing in it yet, pinned.
fn write_record(pin: &Path) -> io::Result<MapHandle> {
    let opts = sys::bpf_map_create_opts {
        sz: size_of::<sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let mut record = MapHandle::create(MapType::Array, Some("weir_filter"), 4, 20, 1, &opts)
        .map_err(io::Error::other)?;
    match std::fs::remove_file(pin) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    record.pin(pin).map_err(io::Error::other)?;
    Ok(record)
}

fn clsact(ifindex: u32) -> sys::bpf_tc_hook {
    sys::bpf_tc_hook {
        sz: size_of::<sys::bpf_tc_hook>() as _,
        ifindex: ifindex as i32,
        attach_point: sys::BPF_TC_INGRESS | sys::BPF_TC_EGRESS,
        ..Default::default()
    }
}

/// True when it was not there. Not by libbpf, which complains on standard error
/// when it was.
fn make_qdisc(ifindex: u32) -> io::Result<bool> {
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    let mut request = request(RTM_NEWQDISC, flags, ifindex, CLSACT_HANDLE, TC_H_CLSACT);
    // TCA_KIND, with the text's NUL and padding.
    request.extend(11u16.to_ne_bytes());
    request.extend(TCA_KIND.to_ne_bytes());
    request.extend(b"clsact\0\0");
    let size = request.len() as u32;
    request[..4].copy_from_slice(&size.to_ne_bytes());
    match ask(&request, |_, _| None::<()>) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(e),
    }
}

fn remove_unused_qdisc(ifindex: u32) {
    let empty = |way| filters(ifindex, way).is_ok_and(|f| f.is_empty());
    if empty(Way::In) && empty(Way::Out) {
        let mut hook = clsact(ifindex);
        // SAFETY: it is whole, and outlives the call. When it fails, the
        // interface is gone.
        unsafe { sys::bpf_tc_hook_destroy(&mut hook) };
    }
}

/// linux/rtnetlink.h, linux/netlink.h, linux/pkt_sched.h
const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWTFILTER: u16 = 44;
const RTM_GETTFILTER: u16 = 46;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const TCA_KIND: u16 = 1;
const TC_H_CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
/// `struct nlmsghdr` and `struct tcmsg`.
const NLMSG_HEAD: usize = 16;
const TCMSG: usize = 20;

/// The filters of all programs there: (priority, handle). Of a kind whose
/// chain is empty the handle is 0.
fn filters(ifindex: u32, way: Way) -> io::Result<Vec<(u32, u32)>> {
    let flags = NLM_F_REQUEST | NLM_F_DUMP;
    let request = request(RTM_GETTFILTER, flags, ifindex, 0, way.parent());
    ask(&request, |kind, message| {
        let (handle, info) = (word(message, 8)?, word(message, 16)?);
        (kind == RTM_NEWTFILTER).then_some((info >> 16, handle))
    })
}

/// The numbers of the devices with a qdisc of the kind `ingress` or `clsact`.
pub fn with_ingress_qdisc() -> io::Result<BTreeSet<u32>> {
    let request = request(RTM_GETQDISC, NLM_F_REQUEST | NLM_F_DUMP, 0, 0, 0);
    none_without_tc(ask(&request, read_ingress_qdisc))
}

/// A kernel without traffic control has no qdisc, either.
fn none_without_tc(found: io::Result<Vec<u32>>) -> io::Result<BTreeSet<u32>> {
    match found {
        Err(e) if e.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => Ok(BTreeSet::new()),
        found => Ok(found?.into_iter().collect()),
    }
}

fn read_ingress_qdisc(kind: u16, message: &[u8]) -> Option<u32> {
    let (tcmsg, mut attributes) = message.split_at_checked(TCMSG)?;
    if kind != RTM_NEWQDISC {
        return None;
    }
    while let Some(head) = word(attributes, 0) {
        // Length, and type.
        let [length, name] = [head as u16, (head >> 16) as u16].map(usize::from);
        let value = attributes.get(4..length)?;
        if name == usize::from(TCA_KIND) {
            let is_ingress = matches!(value, b"ingress\0" | b"clsact\0");
            return word(tcmsg, 4).filter(|_| is_ingress);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(word.try_into().expect("4 bytes")))
}

fn request(kind: u16, flags: u16, ifindex: u32, handle: u32, parent: u32) -> Vec<u8> {
    let mut request = Vec::with_capacity(64);
    request.extend(((NLMSG_HEAD + TCMSG) as u32).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    request.extend([0; 8]); // sequence, port
    request.extend([0; 4]); // family, padding
    request.extend(ifindex.to_ne_bytes());
    request.extend(handle.to_ne_bytes());
    request.extend(parent.to_ne_bytes());
    request.extend(0u32.to_ne_bytes()); // priority and protocol
    request
}

/// Sends a request, and reads its answer to the end: what `read` makes of the
/// type of each message, and of what is behind its head.
fn ask<T>(request: &[u8], read: impl Fn(u16, &[u8]) -> Option<T>) -> io::Result<Vec<T>> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None, // NETLINK_ROUTE is 0, the default
    )?;
    send(&socket, request, SendFlags::empty())?;
    let mut found = Vec::new();
    let mut buffer = vec![0u8; 64 * 1024];
    loop {
        let len = match recv(socket.as_fd(), &mut *buffer, RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            received => received?.0,
        };
        if !read_answer(&buffer[..len], &read, &mut found)? {
            return Ok(found);
        }
    }
}

/// Reads one datagram of an answer; false: no more follow.
fn read_answer<T>(
    answer: &[u8],
    read: impl Fn(u16, &[u8]) -> Option<T>,
    found: &mut Vec<T>,
) -> io::Result<bool> {
    let mut rest = answer;
    while let Some(size) = word(rest, 0) {
        let size = size as usize;
        if size < NLMSG_HEAD || size > rest.len() {
            break;
        }
        let message = &rest[..size];
        match u16::from_ne_bytes([message[4], message[5]]) {
            NLMSG_DONE => return Ok(false),
            NLMSG_ERROR => {
                let errno = word(message, NLMSG_HEAD).unwrap_or(0) as i32;
                return check(errno).map(|()| false);
            }
            kind => found.extend(read(kind, &message[NLMSG_HEAD..])),
        }
        rest = &rest[size.next_multiple_of(4).min(rest.len())..];
    }
    Ok(!answer.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, device: u32, name: &[u8]) -> Vec<u8> {
        let mut bytes = request(kind, 0, device, 0, 0);
        bytes.extend((4 + name.len() as u16).to_ne_bytes());
        bytes.extend(TCA_KIND.to_ne_bytes());
        bytes.extend(name);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
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
        let mut found = vec![];
        assert!(read_answer(&told, read_ingress_qdisc, &mut found).unwrap());
        assert_eq!(found, [2, 3]);
        let done = message(NLMSG_DONE, 0, b"");
        assert!(!read_answer(&done, read_ingress_qdisc, &mut found).unwrap());
        let refused = message(NLMSG_ERROR, 0, b"");
        assert!(!read_answer(&refused, read_ingress_qdisc, &mut found).unwrap());
        // `-EOPNOTSUPP`, and another one, as the kernel tells them.
        for (errno, is_none) in [(Errno::OPNOTSUPP, true), (Errno::PERM, false)] {
            let mut refused = message(NLMSG_ERROR, 0, b"");
            let errno = (-errno.raw_os_error()).to_ne_bytes();
            refused[NLMSG_HEAD..NLMSG_HEAD + 4].copy_from_slice(&errno);
            let read = read_answer(&refused, read_ingress_qdisc, &mut vec![]);
            assert_eq!(none_without_tc(read.map(|_| vec![])).is_ok(), is_none);
        }
        for cut in 0..told.len() {
            let mut some = vec![];
            read_answer(&told[..cut], read_ingress_qdisc, &mut some).unwrap();
            assert!(found.starts_with(&some), "cut at {cut}");
        }
    }
}
