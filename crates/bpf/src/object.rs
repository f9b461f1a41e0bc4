//! BPF objects by their descriptors: what the kernel says of them, and their pins.
//! Attaching programs is the business of `link`, and of the two kinds of
//! attachment that are no BPF link.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use libbpf_rs::libbpf_sys as sys;

use crate::error::{Error, Result};

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("paths hold no NUL")
}

/// Pins a BPF object.
pub(crate) fn pin(fd: BorrowedFd<'_>, path: &Path) -> Result<()> {
    // SAFETY: the path is NUL-terminated and outlives the call.
    let rc = unsafe { sys::bpf_obj_pin(fd.as_raw_fd(), c_path(path).as_ptr()) };
    if rc < 0 {
        return Err(Error::new(
            format!("pin {}", path.display()),
            io::Error::from_raw_os_error(-rc),
        ));
    }
    Ok(())
}

/// Opens a pinned BPF object.
pub(crate) fn open_pin(path: &Path) -> Result<OwnedFd> {
    // SAFETY: the path is NUL-terminated and outlives the call.
    let fd = unsafe { sys::bpf_obj_get(c_path(path).as_ptr()) };
    if fd < 0 {
        return Err(Error::new(
            format!("open the pin {}", path.display()),
            io::Error::from_raw_os_error(-fd),
        ));
    }
    // SAFETY: a non-negative answer is a new descriptor, and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn program_info(fd: BorrowedFd<'_>) -> io::Result<sys::bpf_prog_info> {
    let mut info = sys::bpf_prog_info::default();
    let mut len = size_of_val(&info) as u32;
    // SAFETY: `info` and `len` are whole, and outlive the call.
    match unsafe { sys::bpf_prog_get_info_by_fd(fd.as_raw_fd(), &mut info, &mut len) } {
        rc if rc < 0 => Err(io::Error::from_raw_os_error(-rc)),
        _ => Ok(info),
    }
}

/// The number of a loaded program.
pub(crate) fn program_id(prog: BorrowedFd<'_>) -> io::Result<u32> {
    program_info(prog).map(|info| info.id)
}

/// The name of a loaded program, for messages; empty when it has none.
pub fn program_name(id: u32) -> String {
    // SAFETY: a plain number goes in.
    let fd = unsafe { sys::bpf_prog_get_fd_by_id(id) };
    if fd < 0 {
        return String::new();
    }
    // SAFETY: a non-negative answer is a new descriptor, and ours.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let Ok(info) = program_info(fd.as_fd()) else {
        return String::new();
    };
    info.name
        .iter()
        .take_while(|c| **c != 0)
        .map(|c| *c as u8 as char)
        .collect()
}

/// What the kernel says of a link.
pub(crate) fn link_info(link: &OwnedFd) -> io::Result<sys::bpf_link_info> {
    let mut info = sys::bpf_link_info::default();
    let mut len = size_of_val(&info) as u32;
    // SAFETY: `info` and `len` are whole, and outlive the call.
    match unsafe { sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &mut info, &mut len) } {
        rc if rc < 0 => Err(io::Error::from_raw_os_error(-rc)),
        _ => Ok(info),
    }
}

/// Detaches a link, whoever else refers to it.
pub(crate) fn end_link(link: &OwnedFd) {
    // SAFETY: a plain descriptor goes in. It fails only where the link is
    // detached already, its interface being gone.
    unsafe { sys::bpf_link_detach(link.as_raw_fd()) };
}
