//! The attachment of a program to an interface: a BPF link, or, where the
//! kernel has none for a hook, a tc filter (`cls_bpf`), or a part in the one
//! attachment of all interfaces (`netfilter`). libbpf-rs knows neither
//! XDP modes nor tcx, so this goes to the system call directly.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::Path,
};

use libbpf_rs::libbpf_sys as sys;

use crate::{
    cls_bpf::{Filter, Way},
    error::{Error, Result},
    netfilter::Netfilter,
    object::{end_link, link_info, open_pin, pin, program_id},
};

/// Where in the kernel weir's program sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hook {
    /// XDP in the driver: cheapest per dropped packet.
    Xdp,
    /// XDP in the network core, for drivers without it.
    XdpGeneric,
    /// tcx ingress (kernel 6.6): after the driver made an skb.
    Tcx,
    /// tc ingress by a filter (`cls_bpf`), for kernels without tcx.
    ClsBpf,
    /// A netfilter program before connection tracking (kernel 6.4): what the IP
    /// stack has accepted, on any device.
    Netfilter,
    /// tcx egress: beside one of the others, when there is a geofence or list.
    Egress,
    /// tc egress by a filter: the same beside `ClsBpf`.
    EgressClsBpf,
}

impl Hook {
    /// All hooks, those of ingress first.
    pub const ALL: [Self; 7] = [
        Self::Xdp,
        Self::XdpGeneric,
        Self::Tcx,
        Self::ClsBpf,
        Self::Netfilter,
        Self::Egress,
        Self::EgressClsBpf,
    ];

    /// The configuration's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::XdpGeneric => "xdp-generic",
            Self::Tcx => "tcx",
            Self::ClsBpf => "cls_bpf",
            Self::Netfilter => "netfilter",
            Self::Egress => "egress",
            Self::EgressClsBpf => "egress-cls_bpf",
        }
    }

    /// The hook of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|h| h.name() == name)
    }

    /// Whether the hook judges packets that go out.
    pub fn is_egress(self) -> bool {
        self.egress() == self
    }

    /// Where its twin sits that judges what goes out.
    pub fn egress(self) -> Self {
        match self {
            Self::ClsBpf | Self::EgressClsBpf => Self::EgressClsBpf,
            Self::Xdp | Self::XdpGeneric | Self::Tcx | Self::Netfilter | Self::Egress => {
                Self::Egress
            }
        }
    }
}

/// An attachment. As a BPF link it ends with the last reference, this handle or
/// its pin; as a filter when it is detached.
pub struct Link {
    kind: AttachmentKind,
}

enum AttachmentKind {
    Bpf(OwnedFd),
    Filter(Filter),
    Netfilter(Netfilter),
}

impl Link {
    /// Attaches `prog` to an interface, for as long as the handle lives. Never
    /// displaces another program: where another XDP program sits, the error is
    /// EBUSY or EEXIST. tc programs are put first in the chain; those of others
    /// keep their order.
    ///
    /// # Errors
    /// EINVAL for a hook without BPF links.
    pub fn attach(prog: BorrowedFd<'_>, ifindex: u32, hook: Hook) -> io::Result<Self> {
        let mut opts = sys::bpf_link_create_opts {
            sz: size_of::<sys::bpf_link_create_opts>() as _,
            ..Default::default()
        };
        let kind = match hook {
            Hook::Xdp => {
                opts.flags = sys::XDP_FLAGS_DRV_MODE;
                sys::BPF_XDP
            }
            Hook::XdpGeneric => {
                opts.flags = sys::XDP_FLAGS_SKB_MODE;
                sys::BPF_XDP
            }
            Hook::Tcx => {
                opts.flags = sys::BPF_F_BEFORE;
                sys::BPF_TCX_INGRESS
            }
            Hook::Egress => {
                opts.flags = sys::BPF_F_BEFORE;
                sys::BPF_TCX_EGRESS
            }
            Hook::ClsBpf | Hook::Netfilter | Hook::EgressClsBpf => {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        };
        // SAFETY: `opts` is whole, and outlives the call.
        let fd = unsafe { sys::bpf_link_create(prog.as_raw_fd(), ifindex as i32, kind, &opts) };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd));
        }
        // SAFETY: a non-negative answer is a new descriptor, and ours.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            kind: AttachmentKind::Bpf(fd),
        })
    }

    /// Attaches for longer than this process: `path`, which must be free, names the
    /// attachment.
    pub fn attach_pinned(
        prog: BorrowedFd<'_>,
        ifindex: u32,
        hook: Hook,
        path: &Path,
    ) -> io::Result<Self> {
        let way = match hook {
            Hook::ClsBpf => Way::In,
            Hook::EgressClsBpf => Way::Out,
            Hook::Netfilter => {
                let netfilter = Netfilter::attach(prog, ifindex, path)?;
                return Ok(Self {
                    kind: AttachmentKind::Netfilter(netfilter),
                });
            }
            _ => {
                let link = Self::attach(prog, ifindex, hook)?;
                link.pin(path)
                    .map_err(|e| io::Error::other(e.to_string()))?;
                return Ok(link);
            }
        };
        Ok(Self {
            kind: AttachmentKind::Filter(Filter::attach(prog, ifindex, way, path)?),
        })
    }

    /// The attachment pinned at `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let fd = open_pin(path)?;
        let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))
            .map_err(|e| Error::new(format!("look at the pin {}", path.display()), e))?;
        Ok(Self {
            // A record is a map with one entry, of another size each.
            kind: match about
                .lines()
                .find_map(|line| line.strip_prefix("value_size:"))
            {
                Some(size) if size.trim() == "4" => {
                    AttachmentKind::Netfilter(Netfilter::open(path)?)
                }
                Some(_) => AttachmentKind::Filter(Filter::open(path)?),
                None => AttachmentKind::Bpf(fd),
            },
        })
    }

    /// Keeps the attachment when this process ends; a filter's is kept.
    pub fn pin(&self, path: &Path) -> Result<()> {
        match &self.kind {
            AttachmentKind::Bpf(fd) => pin(fd.as_fd(), path),
            AttachmentKind::Filter(_) | AttachmentKind::Netfilter(_) => Ok(()),
        }
    }

    /// Puts another program in place, in one step: each packet sees the old or
    /// the new one.
    pub fn update(&self, prog: BorrowedFd<'_>) -> Result<()> {
        let fd = match &self.kind {
            AttachmentKind::Bpf(fd) => fd,
            AttachmentKind::Filter(filter) => return filter.update(prog),
            AttachmentKind::Netfilter(netfilter) => return netfilter.update(prog),
        };
        // SAFETY: no options are passed.
        let rc =
            unsafe { sys::bpf_link_update(fd.as_raw_fd(), prog.as_raw_fd(), std::ptr::null()) };
        if rc < 0 {
            return Err(Error::new(
                "update a link",
                io::Error::from_raw_os_error(-rc),
            ));
        }
        Ok(())
    }

    /// Is it a link that has this very program, so that nothing is to be changed? Of
    /// what consists of several parts that is not known.
    pub fn runs(&self, prog: BorrowedFd<'_>) -> bool {
        let is_it = |(ifindex, id): (u32, u32)| {
            ifindex != 0 && program_id(prog).is_ok_and(|this| this == id)
        };
        matches!(self.kind, AttachmentKind::Bpf(_)) && self.target().is_ok_and(is_it)
    }

    /// False when somebody took it away: a filter is anybody's to delete.
    pub fn is_there(&self) -> bool {
        match &self.kind {
            AttachmentKind::Bpf(_) => true,
            AttachmentKind::Filter(filter) => filter.target().0 != 0,
            AttachmentKind::Netfilter(netfilter) => netfilter.target().0 != 0,
        }
    }

    /// Whether the interface of a BPF link is gone, in whichever network namespace it was; of a
    /// filter this is not known.
    pub fn has_ended(&self) -> bool {
        let is_link = matches!(self.kind, AttachmentKind::Bpf(_));
        is_link && matches!(self.target(), Ok((0, _)))
    }

    /// The priority of a tc filter, 1 when no other kind comes before it; `None` for other
    /// links.
    pub fn priority(&self) -> Option<u32> {
        match &self.kind {
            AttachmentKind::Bpf(_) | AttachmentKind::Netfilter(_) => None,
            AttachmentKind::Filter(filter) => Some(filter.priority()),
        }
    }

    /// Takes the program off its hook now. Dropping the last reference to a
    /// link does so too, but a little later, and the hook looks occupied until
    /// then.
    pub fn detach(&self) {
        match &self.kind {
            AttachmentKind::Bpf(fd) => end_link(fd),
            AttachmentKind::Filter(filter) => filter.detach(),
            AttachmentKind::Netfilter(netfilter) => netfilter.detach(),
        }
    }

    /// (interface index, program id); the index is 0 when the interface is gone.
    pub fn target(&self) -> Result<(u32, u32)> {
        let fd = match &self.kind {
            AttachmentKind::Bpf(fd) => fd,
            AttachmentKind::Filter(filter) => return Ok(filter.target()),
            AttachmentKind::Netfilter(netfilter) => return Ok(netfilter.target()),
        };
        let info = link_info(fd).map_err(|e| Error::new("ask a link for its interface", e))?;
        // SAFETY: the variant that belongs to the link's type.
        let ifindex = unsafe {
            if info.type_ == sys::BPF_LINK_TYPE_XDP {
                info.__bindgen_anon_1.xdp.ifindex
            } else {
                info.__bindgen_anon_1.tcx.ifindex
            }
        };
        Ok((ifindex, info.prog_id))
    }
}

/// The XDP program on an interface that is not ours to touch: its id and mode.
pub fn xdp_program_on(ifindex: u32) -> Option<(u32, &'static str)> {
    let mut opts = sys::bpf_xdp_query_opts {
        sz: size_of::<sys::bpf_xdp_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: `opts` is whole, and outlives the call.
    let rc = unsafe { sys::bpf_xdp_query(ifindex as i32, 0, &mut opts) };
    (rc == 0 && opts.prog_id != 0).then_some((
        opts.prog_id,
        match opts.attach_mode as u32 {
            sys::XDP_ATTACHED_DRV => "xdp",
            sys::XDP_ATTACHED_SKB => "xdp-generic",
            sys::XDP_ATTACHED_HW => "xdp in the device",
            _ => "xdp in several modes",
        },
    ))
}
