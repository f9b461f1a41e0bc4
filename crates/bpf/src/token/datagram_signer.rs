//! The program that puts tokens into UDP datagrams (`bpf/token/sign_datagram.h`), at the interfaces
//! by which they leave. Each attachment is pinned beside the tables, and goes on without a
//! daemon.

use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
};

use crate::{
    attachment::{Hook, Link},
    error::{Context, Error, Result},
};

/// What the pins begin with; then come network namespace and interface.
const PIN: &str = "sign-udp-";

/// The loaded program, in both forms.
pub struct DatagramSigner {
    /// At interfaces with an Ethernet header, and at others.
    programs: [OwnedFd; 2],
    dir: PathBuf,
    namespace: u64,
}

impl DatagramSigner {
    pub(super) fn new(programs: [OwnedFd; 2], dir: &Path) -> Result<Self> {
        let namespace = fs::metadata("/proc/self/ns/net")
            .context(|| "tell this network namespace from others".into())?;
        Ok(Self {
            programs,
            dir: dir.to_owned(),
            namespace: namespace.ino(),
        })
    }

    fn pin(&self, ifindex: u32) -> PathBuf {
        self.dir.join(format!("{PIN}{}-{ifindex}", self.namespace))
    }

    /// Has the datagrams that leave this interface get tokens: as tcx, or as a filter where
    /// the kernel has no tcx. One that is there already is left, or gets this program.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn attach(&self, ifindex: u32, is_ethernet: bool) -> Result<()> {
        let program = self.programs[usize::from(!is_ethernet)].as_fd();
        let pin = self.pin(ifindex);
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
        for hook in [Hook::Egress, Hook::EgressClsBpf] {
            match Link::attach_pinned(program, ifindex, hook, &pin) {
                Ok(_) => return Ok(()),
                Err(error) => refused = error,
            }
        }
        Err(Error::new(
            format!("attach the program for tokens of UDP to interface {ifindex}"),
            refused,
        ))
    }

    /// Takes the program from all other interfaces than these.
    pub fn keep_only(&self, interfaces: &[u32]) {
        let kept: Vec<_> = interfaces.iter().map(|index| self.pin(*index)).collect();
        end_but(&self.dir, &kept);
    }
}

/// Takes the program from every interface.
pub(super) fn end(dir: &Path) {
    end_but(dir, &[]);
}

fn end_but(dir: &Path, kept: &[PathBuf]) {
    for pin in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = pin.path();
        if !pin.file_name().to_string_lossy().starts_with(PIN) || kept.contains(&path) {
            continue;
        }
        if let Ok(link) = Link::open(&path) {
            link.detach();
        }
        let _ = fs::remove_file(&path);
    }
}
