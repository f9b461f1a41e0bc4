//! What the kernel has, and what an interface and its driver say of themselves,
//! without attaching anything to them.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use libbpf_rs::{
    MapCore, MapHandle, libbpf_sys as sys,
    query::{ProgInfoIter, ProgInfoQueryOptions},
};

use crate::{
    error::{Context, Result},
    object::program_name,
};

/// `NETDEV_XDP_ACT_BASIC` of linux/netdev.h: pass, drop, abort, send back.
const BASIC: u64 = 1;
/// `NETDEV_XDP_ACT_RX_SG`: frames of more than one buffer.
const RX_SG: u64 = 32;

/// Does this kernel have a BPF helper for programs of this type? Asked by
/// loading a program of two instructions.
pub(crate) fn has_helper(program: sys::bpf_prog_type, helper: sys::bpf_func_id) -> bool {
    // SAFETY: takes two numbers; options may be null.
    unsafe { sys::libbpf_probe_bpf_helper(program, helper, std::ptr::null()) == 1 }
}

/// Does this kernel have BPF programs of this type?
pub(crate) fn has_program_type(program: sys::bpf_prog_type) -> bool {
    // SAFETY: takes a number; options may be null.
    unsafe { sys::libbpf_probe_bpf_prog_type(program, std::ptr::null()) == 1 }
}

/// Loads a program that calls a function of its own and tail-calls another program.
///
/// # Errors
/// The kernel does not take the two together, or we may not load programs.
pub(crate) fn tail_call_beside_function() -> io::Result<()> {
    let options = sys::bpf_map_create_opts {
        sz: size_of::<sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    // SAFETY: a name that ends in NUL, and options that are whole; both outlive the call.
    let array = unsafe {
        sys::bpf_map_create(
            sys::BPF_MAP_TYPE_PROG_ARRAY,
            c"weir_probe".as_ptr(),
            4,
            4,
            1,
            &options,
        )
    };
    if array < 0 {
        return Err(io::Error::from_raw_os_error(-array));
    }
    // SAFETY: a non-negative answer is a new descriptor, and ours.
    let array = unsafe { OwnedFd::from_raw_fd(array) };
    let insn = |code: u8, to: u8, from: u8, off: i16, imm: i32| {
        let mut insn = sys::bpf_insn {
            code,
            off,
            imm,
            ..Default::default()
        };
        insn.set_dst_reg(to);
        insn.set_src_reg(from);
        insn
    };
    // BPF_JMP | BPF_CALL and so on, as linux/bpf.h makes them.
    let (call, exit, moved, set, set64) = (0x85, 0x95, 0xbf, 0xb7, 0x18);
    let program = [
        insn(moved, 6, 1, 0, 0),
        insn(call, 0, 1, 0, 7), // the function
        insn(moved, 1, 6, 0, 0),
        insn(set64, 2, 1, 0, array.as_raw_fd()), // the map
        insn(0, 0, 0, 0, 0),
        insn(set, 3, 0, 0, 0),
        insn(call, 0, 0, 0, sys::BPF_FUNC_tail_call as i32),
        insn(set, 0, 0, 0, 0),
        insn(exit, 0, 0, 0, 0),
        insn(set, 0, 0, 0, 0), // the function
        insn(exit, 0, 0, 0, 0),
    ];
    // SAFETY: as many instructions as are said, and a license that ends in NUL; options
    // may be null. All outlive the call.
    let fd = unsafe {
        sys::bpf_prog_load(
            sys::BPF_PROG_TYPE_SCHED_CLS,
            c"weir_probe".as_ptr(),
            c"GPL".as_ptr(),
            program.as_ptr(),
            program.len() as _,
            std::ptr::null_mut(),
        )
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a non-negative answer is a new descriptor, and ours.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// Puts a program of two instructions at the beginning of a function of the kernel's, by the
/// number that the kernel's types have for it, and takes it away.
///
/// # Errors
/// The kernel does not take such programs, or we may not load programs.
pub(crate) fn fentry(function: u32) -> io::Result<()> {
    let program = tracing(sys::BPF_TRACE_FENTRY, function)?;
    // SAFETY: programs of this type have the name of where they go themselves.
    let link = unsafe { sys::bpf_raw_tracepoint_open(std::ptr::null(), program.as_raw_fd()) };
    if link < 0 {
        return Err(io::Error::from_raw_os_error(-link));
    }
    // SAFETY: a non-negative answer is a new descriptor, and ours.
    drop(unsafe { OwnedFd::from_raw_fd(link) });
    Ok(())
}

/// May we load a program for the tracepoint with this type? It is not attached.
///
/// # Errors
/// As of [`fentry`].
pub(crate) fn raw_tracepoint(tracepoint: u32) -> io::Result<()> {
    tracing(sys::BPF_TRACE_RAW_TP, tracepoint).map(drop)
}

/// Loads a program that does nothing for something of the kernel's own types.
fn tracing(attach: sys::bpf_attach_type, id: u32) -> io::Result<OwnedFd> {
    let mut options = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as _,
        expected_attach_type: attach,
        attach_btf_id: id,
        ..Default::default()
    };
    let insn = |code: u8| sys::bpf_insn {
        code,
        ..Default::default()
    };
    // BPF_ALU64 | BPF_MOV | BPF_K, BPF_JMP | BPF_EXIT of linux/bpf.h.
    let program = [insn(0xb7), insn(0x95)];
    // SAFETY: as many instructions as are said, a license that ends in NUL, and options that
    // are whole. All outlive the call.
    let fd = unsafe {
        sys::bpf_prog_load(
            sys::BPF_PROG_TYPE_TRACING,
            c"weir_probe".as_ptr(),
            c"GPL".as_ptr(),
            program.as_ptr(),
            program.len() as _,
            &mut options,
        )
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a non-negative answer is a new descriptor, and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The names of the loaded programs, whoever loaded them, that use this map: sorted.
///
/// # Errors
/// The kernel does not tell which map it is.
pub fn programs_over(map: &MapHandle) -> Result<Vec<String>> {
    let info = map.info().context(|| "ask which map it is".into())?;
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    let using = ProgInfoIter::with_query_opts(options)
        .filter(|program| program.map_ids.contains(&info.info.id))
        .map(|program| program.name.to_string_lossy().into_owned());
    let mut names: Vec<_> = using.collect();
    names.sort();
    Ok(names)
}

/// What a driver says that it can do with native XDP (kernel 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NativeXdp {
    /// The driver carries native XDP.
    pub supported: bool,
    /// The driver carries native XDP for jumbo frames, too.
    pub frags: bool,
}

/// Asks a driver. On a kernel before 6.3 every driver seems to say no.
pub fn native_xdp(ifindex: u32) -> Option<NativeXdp> {
    let mut opts = sys::bpf_xdp_query_opts {
        sz: size_of::<sys::bpf_xdp_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: `opts` is whole, and outlives the call.
    let rc = unsafe { sys::bpf_xdp_query(ifindex as i32, 0, &mut opts) };
    (rc == 0).then_some(NativeXdp {
        supported: opts.feature_flags & BASIC != 0,
        frags: opts.feature_flags & RX_SG != 0,
    })
}

/// The programs on an interface's tcx ingress hook in their order, (id, name);
/// `None` on a kernel without tcx.
pub fn tcx_programs(ifindex: u32) -> Option<Vec<(u32, String)>> {
    let mut ids = [0u32; 64];
    let mut opts = sys::bpf_prog_query_opts {
        sz: size_of::<sys::bpf_prog_query_opts>() as _,
        prog_ids: ids.as_mut_ptr(),
        ..Default::default()
    };
    opts.__bindgen_anon_1.count = ids.len() as u32;
    // SAFETY: `opts` is whole and points to as many ids as it says; both
    // outlive the call.
    let rc = unsafe { sys::bpf_prog_query_opts(ifindex as i32, sys::BPF_TCX_INGRESS, &mut opts) };
    // SAFETY: the kernel wrote a number into it, whatever the variant.
    let count = unsafe { opts.__bindgen_anon_1.count } as usize;
    (rc == 0).then(|| {
        ids[..count.min(ids.len())]
            .iter()
            .map(|id| (*id, program_name(*id)))
            .collect()
    })
}
