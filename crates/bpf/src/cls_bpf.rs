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
    os::fd::{AsRawFd, BorrowedFd},
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys as sys};
use rustix::io::Errno;
use weir_netlink::{
    Attributes, Message, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Protocol, Request, ask,
    errno, word,
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
    let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    let request = request(RTM_NEWQDISC, flags, ifindex, CLSACT_HANDLE, TC_H_CLSACT);
    let request = request.attribute(TCA_KIND, b"clsact\0").finish();
    match ask(Protocol::Route, &request, |_| None::<()>) {
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

/// linux/rtnetlink.h, linux/pkt_sched.h
const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWTFILTER: u16 = 44;
const RTM_GETTFILTER: u16 = 46;
const TCA_KIND: u16 = 1;
const TC_H_CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
/// Bytes of `struct tcmsg`.
const TCMSG: usize = 20;

/// The filters of all programs there: (priority, handle). Of a kind whose
/// chain is empty the handle is 0.
fn filters(ifindex: u32, way: Way) -> io::Result<Vec<(u32, u32)>> {
    let request = request(RTM_GETTFILTER, NLM_F_DUMP, ifindex, 0, way.parent());
    ask(Protocol::Route, &request.finish(), |message| {
        let (handle, info) = (word(message.body, 8)?, word(message.body, 16)?);
        (message.kind == RTM_NEWTFILTER).then_some((info >> 16, handle))
    })
}

/// The numbers of the devices with a qdisc of the kind `ingress` or `clsact`.
pub fn with_ingress_qdisc() -> io::Result<BTreeSet<u32>> {
    let request = request(RTM_GETQDISC, NLM_F_DUMP, 0, 0, 0).finish();
    none_without_tc(ask(Protocol::Route, &request, read_ingress_qdisc))
}

/// A kernel without traffic control has no qdisc, either.
fn none_without_tc(found: io::Result<Vec<u32>>) -> io::Result<BTreeSet<u32>> {
    match found {
        Err(e) if errno(&e) == Some(Errno::OPNOTSUPP.raw_os_error()) => Ok(BTreeSet::new()),
        found => Ok(found?.into_iter().collect()),
    }
}

fn read_ingress_qdisc(message: Message<'_>) -> Option<u32> {
    let device = word(message.body, 4)?;
    let kind = Attributes::behind(message.body, TCMSG).get(TCA_KIND)?;
    let is_ingress = matches!(kind, b"ingress\0" | b"clsact\0");
    (message.kind == RTM_NEWQDISC && is_ingress).then_some(device)
}

/// A request about a qdisc, or the filters of one.
fn request(kind: u16, flags: u16, ifindex: u32, handle: u32, parent: u32) -> Request {
    // Family and padding; priority and protocol.
    let fixed = [0, ifindex, handle, parent, 0].map(u32::to_ne_bytes);
    Request::new(kind, flags, fixed.as_flattened())
}

#[cfg(test)]
mod tests {
    use weir_netlink::Messages;

    use super::*;

    fn message(kind: u16, device: u32, name: &[u8]) -> Vec<u8> {
        let message = request(kind, 0, device, 0, 0);
        message.attribute(TCA_KIND, name).finish()
    }

    #[test]
    fn devices_with_an_ingress_qdisc_are_found() {
        let told = [
            message(RTM_NEWQDISC, 1, b"noqueue\0"),
            message(RTM_NEWQDISC, 2, b"ingress\0"),
            message(RTM_NEWQDISC, 3, b"clsact\0"),
            message(RTM_NEWTFILTER, 4, b"clsact\0"),
        ]
        .concat();
        let read = |bytes: &[u8]| -> Vec<_> {
            Messages::of(bytes).filter_map(read_ingress_qdisc).collect()
        };
        let found = read(&told);
        assert_eq!(found, [2, 3]);
        for cut in 0..told.len() {
            assert!(found.starts_with(&read(&told[..cut])), "cut at {cut}");
        }
        // As the kernel tells them.
        for (errno, is_none) in [(Errno::OPNOTSUPP, true), (Errno::PERM, false)] {
            let refused = Err(io::Error::from_raw_os_error(errno.raw_os_error()));
            assert_eq!(none_without_tc(refused).is_ok(), is_none);
        }
    }
}
