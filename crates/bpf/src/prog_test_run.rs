//! BPF_PROG_RUN: one packet through a loaded program.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use libbpf_rs::libbpf_sys as sys;

use crate::error::{Error, Result};

/// The verdict and packet of one test run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunResult {
    /// The program's return value: `XDP_PASS` (2), `TC_ACT_SHOT` (2), …
    pub verdict: u32,
    /// Mean duration of a repetition, nanoseconds.
    pub nanos: u32,
    /// The packet afterwards.
    pub packet: Vec<u8>,
}

fn run(prog: BorrowedFd<'_>, opts: &mut sys::bpf_test_run_opts) -> Result<()> {
    opts.sz = size_of::<sys::bpf_test_run_opts>() as _;
    // SAFETY: every pointer in `opts` was set by a caller in this module to a
    // buffer that outlives the call, with its true size.
    let rc = unsafe { sys::bpf_prog_test_run_opts(prog.as_raw_fd(), opts) };
    if rc < 0 {
        return Err(Error::new(
            "run a BPF program",
            io::Error::from_raw_os_error(-rc),
        ));
    }
    Ok(())
}

/// Runs a packet through an XDP or tc program, `repeat` times on the same data.
pub fn packet(prog: BorrowedFd<'_>, packet: &[u8], repeat: u32) -> Result<RunResult> {
    let mut out = vec![0u8; packet.len() + 256];
    let mut opts = sys::bpf_test_run_opts {
        data_in: packet.as_ptr().cast(),
        data_size_in: packet.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        repeat: repeat as i32,
        ..Default::default()
    };
    run(prog, &mut opts)?;
    out.truncate(opts.data_size_out as usize);
    Ok(RunResult {
        verdict: opts.retval,
        nanos: opts.duration,
        packet: out,
    })
}

/// Runs a packet through a netfilter program, as if it came in nowhere: the
/// kernel (6.18) leaves out the interface. The Ethernet header says whether it is
/// IPv4 or IPv6.
pub fn netfilter(prog: BorrowedFd<'_>, packet: &[u8]) -> Result<RunResult> {
    /// `struct nf_hook_state`; what is a pointer must be null.
    #[repr(C)]
    struct HookState {
        hook: u8,
        family: u8,
        pointers: [u64; 5],
    }
    let ipv6 = packet.get(12..14) == Some(&[0x86, 0xdd]);
    let state = HookState {
        hook: 0,
        family: if ipv6 { 10 } else { 2 },
        pointers: [0; 5],
    };
    let mut out = vec![0u8; packet.len() + 256];
    let mut opts = sys::bpf_test_run_opts {
        data_in: packet.as_ptr().cast(),
        data_size_in: packet.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        ctx_in: (&raw const state).cast(),
        ctx_size_in: size_of::<HookState>() as u32,
        ..Default::default()
    };
    run(prog, &mut opts)?;
    out.truncate(opts.data_size_out as usize);
    Ok(RunResult {
        verdict: opts.retval,
        nanos: opts.duration,
        packet: out,
    })
}

/// Runs a program of type syscall on this argument, which it may change.
pub(crate) fn syscall<T: Copy>(prog: BorrowedFd<'_>, argument: &mut T) -> Result<()> {
    run(
        prog,
        &mut sys::bpf_test_run_opts {
            ctx_in: std::ptr::from_mut(argument).cast(),
            ctx_size_in: size_of::<T>() as u32,
            ..Default::default()
        },
    )
}

/// Runs an XDP program on live frames of this length.
pub(crate) fn live(program: BorrowedFd<'_>, packets: u32, len: usize, ifindex: u32) -> Result<()> {
    let frame = vec![0u8; len];
    let mut context = sys::xdp_md {
        data_end: len as u32,
        ingress_ifindex: ifindex.max(1),
        ..Default::default()
    };
    run(
        program,
        &mut sys::bpf_test_run_opts {
            data_in: frame.as_ptr().cast(),
            data_size_in: len as u32,
            ctx_in: (&raw mut context).cast(),
            ctx_size_in: size_of::<sys::xdp_md>() as u32,
            repeat: packets as i32,
            flags: sys::BPF_F_TEST_XDP_LIVE_FRAMES,
            batch_size: 64,
            ..Default::default()
        },
    )
}
