//! The netfilter hook: one pair of BPF links, for IPv4 and IPv6, for all
//! interfaces of an instance, since netfilter has no interfaces; a map of the
//! generation says whose packets are judged. An interface's own pin is a record,
//! so that it is found by its name as other attachments are.
//!
//! A netfilter link's program cannot be exchanged: the next pair is put beside
//! the old one, at another priority, before that goes.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys as sys};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::{
    error::{Context, Error, Result},
    object,
};

/// Address family and pin of the two. No `@`, so they are no interface's.
const PAIR: [(u32, &str); 2] = [
    (libc::NFPROTO_IPV4 as u32, "netfilter4"),
    (libc::NFPROTO_IPV6 as u32, "netfilter6"),
];
/// Priorities before anything of iptables (raw: -300) and defragmentation (-400 would see
/// fragments only before it). One program sits at a priority.
const PRIORITIES: std::ops::RangeInclusive<i32> = -316..=-301;
/// `NF_INET_PRE_ROUTING` of linux/netfilter.h.
const PRE_ROUTING: u32 = 0;
/// How the pin of an interface's record ends.
const RECORD: &[u8] = b"@netfilter";

/// The netfilter link of one interface.
pub(crate) struct Netfilter {
    pin: PathBuf,
    ifindex: u32,
}

impl Netfilter {
    /// Puts `prog` before connection tracking, unless it is there.
    pub(crate) fn attach(prog: BorrowedFd<'_>, ifindex: u32, pin: &Path) -> io::Result<Self> {
        let netfilter = Self {
            pin: pin.to_owned(),
            ifindex,
        };
        // First: a pair without a record would be nobody's.
        write_record(pin, ifindex)?;
        if let Err(e) = netfilter.put(prog) {
            netfilter.detach();
            let _ = fs::remove_file(pin);
            return Err(e);
        }
        Ok(netfilter)
    }

    /// The record that is pinned at `pin`.
    pub(crate) fn open(pin: &Path) -> Result<Self> {
        let record = MapHandle::from_pinned_path(pin)
            .context(|| format!("open the record {}", pin.display()))?;
        let bytes = record
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .context(|| format!("read the record {}", pin.display()))?
            .unwrap_or_default();
        let word = bytes.first_chunk().ok_or_else(|| {
            Error::refused(
                format!("read the record {}", pin.display()),
                "it is too short",
            )
        })?;
        Ok(Self {
            pin: pin.to_owned(),
            ifindex: u32::from_ne_bytes(*word),
        })
    }

    fn dir(&self) -> &Path {
        self.pin.parent().unwrap_or(Path::new("/"))
    }

    fn put(&self, prog: BorrowedFd<'_>) -> io::Result<()> {
        let id = object::program_id(prog)?;
        for (family, name) in PAIR {
            let path = self.dir().join(name);
            let old = object::open_pin(&path).ok();
            let there = old.as_ref().and_then(|old| object::link_info(old).ok());
            if there.is_some_and(|info| info.prog_id == id) {
                continue;
            }
            let new = link(prog, family)?;
            let aside = self.dir().join(format!("{name}-new"));
            let _ = fs::remove_file(&aside);
            object::pin(std::os::fd::AsFd::as_fd(&new), &aside)
                .map_err(|e| io::Error::other(e.to_string()))?;
            fs::rename(&aside, &path)?;
            if let Some(old) = old {
                object::end_link(&old);
            }
        }
        Ok(())
    }

    /// See [`crate::attachment::Link::update`].
    pub(crate) fn update(&self, prog: BorrowedFd<'_>) -> Result<()> {
        self.put(prog)
            .map_err(|e| Error::new("put the next netfilter program", e))
    }

    /// Takes the pair away with the last interface that has a part in it.
    pub(crate) fn detach(&self) {
        let others = fs::read_dir(self.dir()).is_ok_and(|entries| {
            entries.flatten().any(|entry| {
                let name = entry.file_name();
                name.as_bytes().ends_with(RECORD) && Some(&*name) != self.pin.file_name()
            })
        });
        if others {
            return;
        }
        for (_, name) in PAIR {
            let path = self.dir().join(name);
            if let Ok(old) = object::open_pin(&path) {
                object::end_link(&old);
            }
            let _ = fs::remove_file(path);
        }
    }

    /// See [`crate::attachment::Link::target`].
    pub(crate) fn target(&self) -> (u32, u32) {
        let program = PAIR
            .map(|(_, name)| {
                let link = object::open_pin(&self.dir().join(name)).ok()?;
                Some(object::link_info(&link).ok()?.prog_id)
            })
            .into_iter()
            .reduce(|a, b| a.filter(|_| b.is_some()));
        match program.flatten() {
            Some(program) if exists(self.ifindex) => (self.ifindex, program),
            _ => (0, 0),
        }
    }
}

fn exists(ifindex: u32) -> bool {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    );
    socket.is_ok_and(|socket| netdevice::index_to_name(&socket, ifindex).is_ok())
}

/// At the first priority that no other BPF program has.
fn link(prog: BorrowedFd<'_>, family: u32) -> io::Result<OwnedFd> {
    let mut refused = io::Error::from(io::ErrorKind::Unsupported);
    for priority in PRIORITIES {
        let mut opts = sys::bpf_link_create_opts {
            sz: size_of::<sys::bpf_link_create_opts>() as _,
            ..Default::default()
        };
        opts.__bindgen_anon_1.netfilter.pf = family;
        opts.__bindgen_anon_1.netfilter.hooknum = PRE_ROUTING;
        opts.__bindgen_anon_1.netfilter.priority = priority;
        // SAFETY: `opts` is whole, and outlives the call.
        let fd = unsafe { sys::bpf_link_create(prog.as_raw_fd(), 0, sys::BPF_NETFILTER, &opts) };
        if fd >= 0 {
            // SAFETY: a non-negative answer is a new descriptor, and ours.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        refused = io::Error::from_raw_os_error(-fd);
        if refused.kind() != io::ErrorKind::ResourceBusy {
            break;
        }
    }
    Err(refused)
}

fn write_record(pin: &Path, ifindex: u32) -> io::Result<()> {
    let opts = sys::bpf_map_create_opts {
        sz: size_of::<sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let mut record = MapHandle::create(MapType::Array, Some("weir_netfilter"), 4, 4, 1, &opts)
        .map_err(io::Error::other)?;
    record
        .update(&0u32.to_ne_bytes(), &ifindex.to_ne_bytes(), MapFlags::ANY)
        .map_err(io::Error::other)?;
    match fs::remove_file(pin) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    record.pin(pin).map_err(io::Error::other)
}
