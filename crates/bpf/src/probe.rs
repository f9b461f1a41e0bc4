//! What the kernel has, and what an interface and its driver say of themselves,
//! without attaching anything to them.

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
    /// It carries native XDP.
    pub supported: bool,
    /// It carries it for jumbo frames, too.
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
