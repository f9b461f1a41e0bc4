//! Links of programs to a control group, by pins that outlive the daemon. A group that was
//! removed and made anew under the same path is another one to the kernel: links to the one
//! before hold on to it, and judge nobody.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::Path,
};

use libbpf_rs::libbpf_sys as sys;

use crate::{
    error::{Context, Result},
    object,
};

/// A control group that is there.
pub(crate) struct ControlGroup {
    directory: File,
    /// The inode's number is the group's id.
    id: u64,
}

impl ControlGroup {
    /// The one at this path; `None`: there is none.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        let what = || format!("open the control group {}", path.display());
        let directory = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.context(what)?,
        };
        let id = directory.metadata().context(what)?.ino();
        Ok(Some(Self { directory, id }))
    }

    /// Is this a link to this very group?
    fn has(&self, link: &OwnedFd) -> bool {
        object::link_info(link).is_ok_and(|info| {
            // SAFETY: the variant that belongs to the link's type.
            let id = unsafe { info.__bindgen_anon_1.cgroup.cgroup_id };
            info.type_ == sys::BPF_LINK_TYPE_CGROUP && id == self.id
        })
    }

    /// Attaches a program here for as long as the link is held.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn link(
        &self,
        program: BorrowedFd<'_>,
        kind: sys::bpf_attach_type,
        what: &dyn Fn() -> String,
    ) -> Result<OwnedFd> {
        let group = self.directory.as_raw_fd();
        // SAFETY: options may be null.
        let fd =
            unsafe { sys::bpf_link_create(program.as_raw_fd(), group, kind, std::ptr::null()) };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd)).context(what);
        }
        // SAFETY: a non-negative answer is a new descriptor, and ours.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Attaches a program here, and pins the link. What is attached here by that pin gets this
    /// program; a link to another group goes.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn attach(
        &self,
        program: BorrowedFd<'_>,
        kind: sys::bpf_attach_type,
        pin: &Path,
        what: &dyn Fn() -> String,
    ) -> Result<()> {
        if let Ok(link) = object::open_pin(pin)
            && self.has(&link)
        {
            // SAFETY: no options are passed.
            let rc = unsafe {
                sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), std::ptr::null())
            };
            if rc == 0 {
                return Ok(());
            }
        }
        let link = self.link(program, kind, what)?;
        // In one step: a daemon that is killed between two would leave nobody who judges. Without
        // a dot, which the BPF file system refuses.
        let mut next = pin.as_os_str().to_owned();
        next.push("-next");
        let _ = std::fs::remove_file(&next);
        object::pin(link.as_fd(), Path::new(&next))?;
        std::fs::rename(&next, pin).context(what)
    }
}
