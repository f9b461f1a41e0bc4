//! The programs that put tokens into what leaves by an interface: into UDP datagrams
//! (`bpf/token/sign_datagram.h`), and into each segment of connections whose scope is the
//! payload (`bpf/token/sign_segment.h`); or signatures of DAF into each segment
//! (`bpf/token/sign_daf.h`). Each attachment is pinned beside the tables, and goes on without a
//! daemon.
//!
//! Segments are signed one by one. So an interface at which they are has the kernel make no
//! superpackets for it (GSO): what it had before is kept in a pinned table, and comes back when
//! the program goes.

use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::value_of;
use crate::{
    attachment::{Hook, Link},
    device,
    error::{Context, Error, Result},
    skeleton::token::types::token_interface,
};

/// Packets that get their tokens at an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignedKind {
    /// UDP datagrams to networks of `sign_udp_to`.
    Datagrams,
    /// Segments of connections whose scope is the payload.
    Segments,
    /// Segments that get the signature of DAF.
    Daf,
}

impl SignedKind {
    const ALL: [Self; 3] = [Self::Datagrams, Self::Segments, Self::Daf];

    /// What the pins begin with; then come network namespace and interface.
    fn pin(self) -> &'static str {
        match self {
            Self::Datagrams => "sign-udp-",
            Self::Segments => "sign-tcp-",
            Self::Daf => "sign-daf-",
        }
    }

    /// The same of the pins of what looks at the packets that come in.
    fn back_pin(self) -> Option<&'static str> {
        match self {
            Self::Datagrams | Self::Segments => None,
            Self::Daf => Some("back-daf-"),
        }
    }

    /// Is each packet signed for itself, so that there may be no superpackets?
    fn is_of_segments(self) -> bool {
        match self {
            Self::Datagrams => false,
            Self::Segments | Self::Daf => true,
        }
    }
}

/// The table of interfaces at which segments are signed, below the pins.
const INTERFACES: &str = "token_interfaces";

/// The loaded program, in both forms.
pub struct InterfaceSigner {
    kind: SignedKind,
    /// At interfaces with an Ethernet header, and at others.
    programs: [OwnedFd; 2],
    /// What looks at the packets that come in there, likewise; `None`: nothing does.
    back: Option<[OwnedFd; 2]>,
    /// The table of interfaces at which segments are signed.
    table: MapHandle,
    dir: PathBuf,
}

/// The number of this network namespace.
pub(super) fn namespace() -> Result<u64> {
    let found = fs::metadata("/proc/self/ns/net");
    let found = found.context(|| "tell this network namespace from others".into())?;
    Ok(found.ino())
}

impl InterfaceSigner {
    pub(super) fn new(
        kind: SignedKind,
        programs: [OwnedFd; 2],
        back: Option<[OwnedFd; 2]>,
        table: MapHandle,
        dir: &Path,
    ) -> Self {
        Self {
            kind,
            programs,
            back,
            table,
            dir: dir.to_owned(),
        }
    }

    /// What gets tokens or signatures by it.
    pub fn kind(&self) -> SignedKind {
        self.kind
    }

    fn pin(&self, prefix: &str, ifindex: u32) -> Result<PathBuf> {
        let name = format!("{prefix}{}-{ifindex}", namespace()?);
        Ok(self.dir.join(name))
    }

    /// Has what leaves this interface get tokens: as tcx, or as a filter where
    /// the kernel has no tcx. One that is there already is left, or gets this program.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn attach(&self, ifindex: u32, is_ethernet: bool) -> Result<()> {
        let form = usize::from(!is_ethernet);
        if let (Some(prefix), Some(programs)) = (self.kind.back_pin(), &self.back) {
            let pin = self.pin(prefix, ifindex)?;
            attach_program(ifindex, &programs[form], [Hook::Tcx, Hook::ClsBpf], pin)?;
        }
        let pin = self.pin(self.kind.pin(), ifindex)?;
        let hooks = [Hook::Egress, Hook::EgressClsBpf];
        attach_program(ifindex, &self.programs[form], hooks, pin)?;
        match self.kind.is_of_segments() {
            false => Ok(()),
            // Last: from here on connections may leave by it.
            true => open_interface(&self.table, ifindex),
        }
    }

    /// Takes the program from all other interfaces than these.
    pub fn keep_only(&self, interfaces: &[u32]) {
        let prefixes = [Some(self.kind.pin()), self.kind.back_pin()];
        let kept = prefixes.into_iter().flatten().flat_map(|prefix| {
            let pins = interfaces.iter();
            pins.filter_map(move |index| self.pin(prefix, *index).ok())
        });
        let kept: Vec<_> = kept.collect();
        end_but(&self.dir, self.kind, Some(&self.table), &kept);
    }
}

/// Has an interface run a program, at the first of these hooks that the kernel has. One that
/// is there already is left, or gets this program.
pub(super) fn attach_program(
    ifindex: u32,
    program: &OwnedFd,
    hooks: [Hook; 2],
    pin: PathBuf,
) -> Result<()> {
    let program = program.as_fd();
    if let Ok(link) = Link::open(&pin) {
        if link.runs(program) {
            return Ok(());
        }
        let is_on = link.target().is_ok_and(|(on, _)| on == ifindex);
        if is_on && link.is_there() && link.update(program).is_ok() {
            return Ok(());
        }
        link.detach();
    }
    // Of an interface that is gone.
    let _ = fs::remove_file(&pin);
    let mut refused = io::Error::from(io::ErrorKind::Unsupported);
    for hook in hooks {
        match Link::attach_pinned(program, ifindex, hook, &pin) {
            Ok(_) => return Ok(()),
            Err(error) => refused = error,
        }
    }
    Err(Error::new(
        format!("attach the program for tokens to interface {ifindex}"),
        refused,
    ))
}

/// Takes the program of this kind from every interface.
pub(super) fn end(dir: &Path, kind: SignedKind) {
    // One of an earlier form has no such table.
    let table = MapHandle::from_pinned_path(dir.join(INTERFACES)).ok();
    end_but(dir, kind, table.as_ref(), &[]);
}

/// Takes all programs from every interface.
pub(super) fn end_all(dir: &Path) {
    SignedKind::ALL.iter().for_each(|kind| end(dir, *kind));
}

fn end_but(dir: &Path, kind: SignedKind, table: Option<&MapHandle>, kept: &[PathBuf]) {
    for pin in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, name) = (pin.path(), pin.file_name());
        let name = name.to_string_lossy();
        let place = name.strip_prefix(kind.pin());
        let is_back = kind.back_pin().is_some_and(|pin| name.starts_with(pin));
        if (place.is_none() && !is_back) || kept.contains(&path) {
            continue;
        }
        if kind.is_of_segments()
            && let (Some(place), Some(table)) = (place, table)
        {
            close_interface(table, place);
        }
        if let Ok(link) = Link::open(&path) {
            link.detach();
        }
        let _ = fs::remove_file(&path);
    }
}

/// Has no superpackets made for an interface, and says that its segments are signed.
fn open_interface(table: &MapHandle, ifindex: u32) -> Result<()> {
    let what = || format!("have segments made one by one for interface {ifindex}");
    let key = ifindex.to_ne_bytes();
    let found = table.lookup(&key, MapFlags::ANY).context(what)?;
    let segments = device::gso_max_segments(ifindex).context(what)?;
    // Somebody has changed it since, or it is another interface of this number.
    if found.is_none() || segments != 1 {
        table
            .update(&key, &segments.to_ne_bytes(), MapFlags::ANY)
            .context(what)?;
    }
    if segments != 1
        && let Err(refused) = device::set_gso_max_segments(ifindex, 1)
    {
        let _ = table.delete(&key);
        return Err(refused).context(what);
    }
    Ok(())
}

/// Undoes it, at `NAMESPACE-INTERFACE`. Of another network namespace the interface is not in
/// reach: there it stays as it is.
fn close_interface(table: &MapHandle, place: &str) {
    let Some((of, ifindex)) = place.split_once('-') else {
        return;
    };
    let (Ok(of), Ok(ifindex)) = (of.parse::<u64>(), ifindex.parse::<u32>()) else {
        return;
    };
    let key = ifindex.to_ne_bytes();
    let found = table.lookup(&key, MapFlags::ANY).ok().flatten();
    let before = found.as_deref().and_then(value_of::<token_interface>);
    let _ = table.delete(&key);
    if let Some(before) = before
        && namespace().is_ok_and(|here| here == of)
        // What somebody else has set since stays.
        && device::gso_max_segments(ifindex).is_ok_and(|segments| segments == 1)
    {
        let _ = device::set_gso_max_segments(ifindex, before.segments);
    }
}
