//! The programs of a gateway at its interfaces: what judges packets that it forwards, where they
//! come in (`bpf/token/forward.h`), and what overwrites tokens of others (`bpf/token/strip.h`).
//! Each attachment is pinned beside the tables, and goes on without a daemon.

use std::{
    fs,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use libbpf_rs::{
    MapCore, MapHandle, Object, OpenObject,
    skel::{OpenSkel, Skel, SkelBuilder},
};

use super::{
    forms,
    interface_signer::{attach_program, namespace},
    is_pinned,
};
use crate::{
    attachment::{Hook, Link, xdp_program_on},
    error::{Context, Error, Result},
    object, pins,
    skeleton::{forward_xdp::ForwardXdpSkelBuilder, gateway::GatewaySkelBuilder},
};

/// What a gateway does at an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GatewayKind {
    /// Judges what comes in to be forwarded, as a program of tc.
    Forward,
    /// Judges it in the driver.
    ForwardXdp,
    /// Overwrites tokens of what comes in.
    StripIn,
    /// Overwrites tokens of what is forwarded and goes out.
    StripOut,
}

impl GatewayKind {
    /// Every kind there is.
    pub const ALL: [Self; 4] = [
        Self::Forward,
        Self::ForwardXdp,
        Self::StripIn,
        Self::StripOut,
    ];

    /// What the pins begin with; then come network namespace and interface.
    fn pin(self) -> &'static str {
        match self {
            Self::Forward => "forward-",
            Self::ForwardXdp => "xdp-forward-",
            Self::StripIn => "strip-in-",
            Self::StripOut => "strip-out-",
        }
    }

    /// The first that the kernel has of these.
    fn hooks(self) -> [Hook; 2] {
        match self {
            Self::Forward | Self::StripIn => [Hook::Tcx, Hook::ClsBpf],
            Self::ForwardXdp => [Hook::Xdp, Hook::Xdp],
            Self::StripOut => [Hook::Egress, Hook::EgressClsBpf],
        }
    }
}

/// A loaded program, in both forms.
pub struct GatewayProgram {
    kind: GatewayKind,
    /// At interfaces with an Ethernet header, and at others.
    programs: [OwnedFd; 2],
    dir: PathBuf,
}

impl GatewayProgram {
    pub(super) fn new(kind: GatewayKind, programs: [OwnedFd; 2], dir: &Path) -> Self {
        Self {
            kind,
            programs,
            dir: dir.to_owned(),
        }
    }

    /// The programs for interfaces with an Ethernet header and for others, to be run by tests and
    /// benches.
    pub fn programs(&self) -> [BorrowedFd<'_>; 2] {
        self.programs.each_ref().map(AsFd::as_fd)
    }

    fn pin(&self, ifindex: u32) -> Result<PathBuf> {
        let name = format!("{}{}-{ifindex}", self.kind.pin(), namespace()?);
        Ok(self.dir.join(name))
    }

    /// Puts the program at this interface: as tcx, or as a filter where the kernel has no tcx.
    /// One that is there already is left, or gets this program in one step.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn attach(&self, ifindex: u32, is_ethernet: bool) -> Result<()> {
        if self.kind == GatewayKind::ForwardXdp {
            let what = "attach the program for tokens on XDP";
            if !is_ethernet {
                return Err(Error::refused(what, "its frames have no Ethernet header"));
            }
            let pin = self.pin(ifindex)?;
            let other = xdp_program_on(ifindex).filter(|_| !pin.exists());
            if let Some((id, mode)) = other {
                let why = format!("another program is there: id {id}, {mode}");
                return Err(Error::refused(what, why));
            }
        }
        let program = &self.programs[usize::from(!is_ethernet)];
        attach_program(ifindex, program, self.kind.hooks(), self.pin(ifindex)?)
    }

    /// Takes the program from all other interfaces than these.
    pub fn keep_only(&self, interfaces: &[u32]) {
        let kept = interfaces.iter().filter_map(|index| self.pin(*index).ok());
        end_but(&self.dir, self.kind, &kept.collect::<Vec<_>>());
    }
}

/// Has an object use the tables that are pinned here.
fn reuse(object: &mut OpenObject, dir: &Path) -> libbpf_rs::Result<()> {
    for mut map in object.maps_mut() {
        let pin = dir.join(map.name());
        if is_pinned(map.name()) && pin.exists() {
            map.reuse_fd(MapHandle::from_pinned_path(pin)?.as_fd())?;
        }
    }
    Ok(())
}

/// Pins the tables of an object that are not yet.
fn pin_tables(object: &Object, dir: &Path) -> Result<()> {
    for map in object.maps().filter(|map| is_pinned(map.name())) {
        let pin = dir.join(map.name());
        if !pin.exists() {
            object::pin(map.as_fd(), &pin)?;
        }
    }
    Ok(())
}

/// Loads what this kind of gateway takes, over the tables that are pinned here; those that are
/// not yet are, for the other kinds.
pub(super) fn load(dir: &Path, kind: GatewayKind) -> Result<GatewayProgram> {
    let what = || match kind {
        GatewayKind::Forward => "load the programs of [token.forward]".to_owned(),
        GatewayKind::ForwardXdp => {
            "load the program of [token.forward] for XDP (needs Linux 5.18)".to_owned()
        }
        GatewayKind::StripIn | GatewayKind::StripOut => "load the programs of [token.strip]".into(),
    };
    let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().context(what);
    let mut storage = MaybeUninit::<OpenObject>::uninit();
    let programs = if kind == GatewayKind::ForwardXdp {
        let open = ForwardXdpSkelBuilder::default().open(&mut storage);
        let mut open = open.context(what)?;
        reuse(open.open_object_mut(), dir).context(what)?;
        let skel = open.load().context(what)?;
        pin_tables(skel.object(), dir)?;
        let program = skel.progs.weir_forward_xdp.as_fd();
        [copy(program)?, copy(program)?]
    } else {
        let open = GatewaySkelBuilder::default().open(&mut storage);
        let mut open = open.context(what)?;
        reuse(open.open_object_mut(), dir).context(what)?;
        let progs = &mut open.progs;
        for (of, programs) in [
            (
                GatewayKind::Forward,
                [&mut progs.weir_forward, &mut progs.weir_forward_ip],
            ),
            (
                GatewayKind::StripIn,
                [&mut progs.weir_strip_in, &mut progs.weir_strip_in_ip],
            ),
            (
                GatewayKind::StripOut,
                [&mut progs.weir_strip_out, &mut progs.weir_strip_out_ip],
            ),
        ] {
            for program in programs {
                program.set_autoload(of == kind);
            }
        }
        let skel = open.load().context(what)?;
        pin_tables(skel.object(), dir)?;
        let progs = &skel.progs;
        let [ethernet, other] = match kind {
            GatewayKind::StripIn => [&progs.weir_strip_in, &progs.weir_strip_in_ip],
            GatewayKind::StripOut => [&progs.weir_strip_out, &progs.weir_strip_out_ip],
            GatewayKind::Forward | GatewayKind::ForwardXdp => {
                [&progs.weir_forward, &progs.weir_forward_ip]
            }
        };
        [copy(ethernet.as_fd())?, copy(other.as_fd())?]
    };
    Ok(GatewayProgram::new(kind, programs, dir))
}

/// Is no program of these kinds at this interface, of those that a daemon has left? False where
/// they are in another network namespace than this process, or where nothing of tokens is
/// attached.
pub fn is_without_gateway(
    root: &Path,
    instance: &str,
    kinds: &[GatewayKind],
    ifindex: u32,
) -> bool {
    // Of a daemon that was killed when it had just begun those of the one before judge, whose
    // tables may have had another form.
    let dirs: Vec<_> = forms(&root.join(pins::escape(instance))).collect();
    let Ok(here) = namespace() else {
        return false;
    };
    if dirs.is_empty() {
        return false;
    }
    // A pin stays when its interface goes.
    let entries = dirs.iter().flat_map(fs::read_dir).flatten().flatten();
    let pins: Vec<_> = entries
        .filter_map(|pin| pin.file_name().into_string().ok())
        .collect();
    let is_of_it = |name: &&String| kinds.iter().any(|kind| name.starts_with(kind.pin()));
    let is_here = |name: &String| {
        let of = |kind: &GatewayKind| {
            let place = name.strip_prefix(kind.pin());
            place.is_some_and(|place| place.starts_with(&format!("{here}-")))
        };
        kinds.iter().any(of)
    };
    if pins.iter().any(|name| is_of_it(&name)) && !pins.iter().any(is_here) {
        return false;
    }
    let mut all = dirs
        .iter()
        .flat_map(|dir| kinds.iter().map(move |kind| (dir, kind)));
    !all.any(|(dir, kind)| {
        let link = Link::open(&dir.join(format!("{}{here}-{ifindex}", kind.pin())));
        link.is_ok_and(|link| link.is_there() && link.target().is_ok_and(|(on, _)| on == ifindex))
    })
}

/// Takes the program of this kind from every interface.
pub(super) fn end(dir: &Path, kind: GatewayKind) {
    end_but(dir, kind, &[]);
}

fn end_but(dir: &Path, kind: GatewayKind, kept: &[PathBuf]) {
    for pin in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, name) = (pin.path(), pin.file_name());
        if !name.to_string_lossy().starts_with(kind.pin()) || kept.contains(&path) {
            continue;
        }
        if let Ok(link) = Link::open(&path) {
            link.detach();
        }
        let _ = fs::remove_file(&path);
    }
}
