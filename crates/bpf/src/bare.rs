//! One small rule, drop UDP to port 12345, as a program of its own for every
//! hook that takes one (`bpf/tools/hooks.bpf.c`), and a deny list in a hash of the
//! kernel's: what a drop costs there without weir. Each program is loaded alone, so
//! that a kernel without one hook has the others.

use std::{
    io,
    mem::MaybeUninit,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::Path,
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, libbpf_sys as sys,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    attachment::{Hook, Link},
    error::{Context, Error, Result},
    skeleton::hooks::HooksSkelBuilder,
};

/// The hook to which such a program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BareHook {
    /// XDP in the driver.
    Xdp,
    /// XDP in the driver, with a deny list instead of the rule: [`BareDrop::denying`].
    XdpHash,
    /// XDP in the network core.
    XdpGeneric,
    /// The ingress of tcx.
    Tcx,
    /// A direct-action filter of the clsact qdisc.
    ClsBpf,
    /// A BPF link of netfilter, prerouting before connection tracking.
    Netfilter,
    /// cgroup_skb ingress: judges what goes to the sockets of a cgroup.
    Cgroup,
    /// The filter of one UDP socket.
    Socket,
}

/// A loaded program with its counter.
pub struct BareDrop {
    hook: BareHook,
    program: OwnedFd,
    dropped: MapHandle,
}

impl BareDrop {
    /// Loads the program for this hook.
    ///
    /// # Errors
    /// The kernel does not know the hook's kind of program, or what it calls.
    pub fn load(hook: BareHook) -> Result<Self> {
        Self::denying(hook, &[])
    }

    /// The same with these sources on its deny list, for a hook that has one.
    ///
    /// # Errors
    /// Also where the kernel has no room for the list.
    pub fn denying(hook: BareHook, sources: &[IpAddr]) -> Result<Self> {
        let what = || format!("load the program for {hook:?}");
        let mut storage = MaybeUninit::uninit();
        let mut open = HooksSkelBuilder::default()
            .open(&mut storage)
            .context(what)?;
        let progs = &mut open.progs;
        for (of, program) in [
            (
                &[BareHook::Xdp, BareHook::XdpGeneric][..],
                &mut progs.hook_xdp,
            ),
            (&[BareHook::XdpHash], &mut progs.hook_xdp_hash),
            (&[BareHook::Tcx], &mut progs.hook_tcx),
            (&[BareHook::ClsBpf], &mut progs.hook_cls_bpf),
            (&[BareHook::Netfilter], &mut progs.hook_netfilter),
            (&[BareHook::Cgroup], &mut progs.hook_cgroup),
            (&[BareHook::Socket], &mut progs.hook_socket),
        ] {
            program.set_autoload(of.contains(&hook));
        }
        for map in [&mut open.maps.denied4, &mut open.maps.denied6] {
            map.set_max_entries(sources.len().max(1) as u32)
                .context(what)?;
        }
        let skel = open.load().context(what)?;
        for source in sources {
            match source {
                IpAddr::V4(addr) => skel
                    .maps
                    .denied4
                    .update(&addr.octets(), &[1], MapFlags::ANY),
                IpAddr::V6(addr) => skel
                    .maps
                    .denied6
                    .update(&addr.octets(), &[1], MapFlags::ANY),
            }
            .context(|| format!("deny {source}"))?;
        }
        let progs = &skel.progs;
        let program = match hook {
            BareHook::Xdp | BareHook::XdpGeneric => progs.hook_xdp.as_fd(),
            BareHook::XdpHash => progs.hook_xdp_hash.as_fd(),
            BareHook::Tcx => progs.hook_tcx.as_fd(),
            BareHook::ClsBpf => progs.hook_cls_bpf.as_fd(),
            BareHook::Netfilter => progs.hook_netfilter.as_fd(),
            BareHook::Cgroup => progs.hook_cgroup.as_fd(),
            BareHook::Socket => progs.hook_socket.as_fd(),
        };
        let dropped = skel.maps.dropped.info().context(what)?.info.id;
        Ok(Self {
            hook,
            program: program.try_clone_to_owned().context(what)?,
            dropped: MapHandle::from_map_id(dropped).context(what)?,
        })
    }

    fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Packets it has dropped, on all CPUs.
    pub fn dropped(&self) -> Result<u64> {
        let counts = self
            .dropped
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
            .context(|| "read what was dropped".into())?
            .unwrap_or_default();
        Ok(counts
            .iter()
            .filter_map(|count| Some(u64::from_ne_bytes(count.get(..8)?.try_into().ok()?)))
            .sum())
    }

    /// Puts it in place on an interface of the calling thread's namespace; for
    /// netfilter, in that namespace.
    ///
    /// # Errors
    /// The kernel refuses. A cgroup's and a socket's have no interface.
    pub fn attach(&self, ifindex: u32) -> Result<Attached> {
        let hook = match self.hook {
            BareHook::Xdp | BareHook::XdpHash => Hook::Xdp,
            BareHook::XdpGeneric => Hook::XdpGeneric,
            BareHook::Tcx => Hook::Tcx,
            BareHook::ClsBpf => return self.attach_filter(ifindex),
            BareHook::Netfilter => return self.attach_netfilter(),
            BareHook::Cgroup | BareHook::Socket => {
                return Err(Error::refused("attach", "this hook has no interface"));
            }
        };
        let link = Link::attach(self.program(), ifindex, hook)
            .context(|| format!("attach by {}", hook.name()))?;
        Ok(Attached(BareKind::Link(link)))
    }

    /// Makes it the filter of this UDP socket; it ends with the socket.
    pub fn attach_socket(&self, socket: BorrowedFd<'_>) -> Result<()> {
        let program = self.program.as_raw_fd();
        // SAFETY: the option's value is a descriptor, which outlives the call.
        let rc = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_BPF,
                (&raw const program).cast(),
                size_of_val(&program) as u32,
            )
        };
        if rc == 0 {
            Ok(())
        } else {
            Err(Error::new("filter a socket", io::Error::last_os_error()))
        }
    }

    /// Puts it in place on a cgroup (of version 2), given its directory.
    pub fn attach_cgroup(&self, cgroup: &Path) -> Result<Attached> {
        let what = || format!("attach to the cgroup {}", cgroup.display());
        let dir = std::fs::File::open(cgroup).context(what)?;
        let options = sys::bpf_link_create_opts {
            sz: size_of::<sys::bpf_link_create_opts>() as _,
            ..Default::default()
        };
        let link = self
            .create(dir.as_raw_fd(), sys::BPF_CGROUP_INET_INGRESS, &options)
            .context(what)?;
        Ok(Attached(BareKind::Fds(vec![link])))
    }

    fn attach_netfilter(&self) -> Result<Attached> {
        /// Before connection tracking and the raw table (-300).
        const PRIORITY: i32 = -301;
        let mut links = Vec::new();
        for family in [libc::NFPROTO_IPV4, libc::NFPROTO_IPV6] {
            let mut options = sys::bpf_link_create_opts {
                sz: size_of::<sys::bpf_link_create_opts>() as _,
                ..Default::default()
            };
            options.__bindgen_anon_1.netfilter.pf = family as u32;
            options.__bindgen_anon_1.netfilter.hooknum = libc::NF_INET_PRE_ROUTING as u32;
            options.__bindgen_anon_1.netfilter.priority = PRIORITY;
            links.push(
                self.create(0, sys::BPF_NETFILTER, &options)
                    .context(|| "attach to netfilter's prerouting".into())?,
            );
        }
        Ok(Attached(BareKind::Fds(links)))
    }

    fn create(
        &self,
        target: i32,
        kind: sys::bpf_attach_type,
        options: &sys::bpf_link_create_opts,
    ) -> io::Result<OwnedFd> {
        // SAFETY: `options` is whole, and outlives the call.
        let fd = unsafe { sys::bpf_link_create(self.program.as_raw_fd(), target, kind, options) };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd));
        }
        // SAFETY: a non-negative answer is a new descriptor, and ours.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn attach_filter(&self, ifindex: u32) -> Result<Attached> {
        let mut filter = Filter {
            ifindex: ifindex as i32,
            created: false,
        };
        let mut hook = filter.hook();
        // SAFETY: the hook is whole, and outlives the call.
        let rc = unsafe { sys::bpf_tc_hook_create(&mut hook) };
        // There already: somebody else's, and stays.
        filter.created = rc == 0;
        let mut options = Filter::options();
        options.prog_fd = self.program.as_raw_fd();
        // SAFETY: hook and options are whole, and outlive the call.
        let rc = unsafe { sys::bpf_tc_attach(&hook, &mut options) };
        if rc < 0 {
            return Err(Error::new(
                "attach by cls_bpf",
                io::Error::from_raw_os_error(-rc),
            ));
        }
        Ok(Attached(BareKind::Filter(filter)))
    }
}

/// A filter of clsact, and the qdisc if it is ours.
struct Filter {
    ifindex: i32,
    created: bool,
}

impl Filter {
    fn hook(&self) -> sys::bpf_tc_hook {
        sys::bpf_tc_hook {
            sz: size_of::<sys::bpf_tc_hook>() as _,
            ifindex: self.ifindex,
            attach_point: sys::BPF_TC_INGRESS,
            ..Default::default()
        }
    }

    fn options() -> sys::bpf_tc_opts {
        sys::bpf_tc_opts {
            sz: size_of::<sys::bpf_tc_opts>() as _,
            handle: 1,
            // Some number that another filter hardly has.
            priority: 12345,
            ..Default::default()
        }
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        let mut hook = self.hook();
        // SAFETY: hook and options are whole, and outlive the calls, which
        // fail where the filter or its interface is gone.
        unsafe {
            sys::bpf_tc_detach(&hook, &Self::options());
            if self.created {
                hook.attach_point = sys::BPF_TC_INGRESS | sys::BPF_TC_EGRESS;
                sys::bpf_tc_hook_destroy(&mut hook);
            }
        }
    }
}

/// A program in place; its end takes the program away. A filter of cls_bpf
/// goes only where it ends in the namespace in which it began.
pub struct Attached(BareKind);

enum BareKind {
    Link(Link),
    Fds(Vec<OwnedFd>),
    Filter(#[expect(dead_code, reason = "held for its end")] Filter),
}

impl Drop for Attached {
    fn drop(&mut self) {
        match &self.0 {
            BareKind::Link(link) => link.detach(),
            BareKind::Fds(links) => {
                for link in links {
                    // SAFETY: a plain descriptor goes in. It fails only where
                    // the link is detached already.
                    unsafe { sys::bpf_link_detach(link.as_raw_fd()) };
                }
            }
            // Ends with its own value.
            BareKind::Filter(_) => {}
        }
    }
}
