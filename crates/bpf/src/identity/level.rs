//! How it is seen who sends on a connection: by the best that this kernel has. The kernel's
//! own types say which tracepoints and functions there are; whether a program can be put
//! at the beginning of a function is tried.

use std::{ffi::CString, io};

use libbpf_rs::libbpf_sys as sys;

use crate::probe;

/// How exact identity is; docs/guide/app.md draws them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The tracepoint `tcp_sendmsg_locked`, Linux 6.16: for each segment that a send fills.
    Tracepoint,
    /// The beginning of that function, and the end of its waits: for each send.
    Fentry,
}

impl Level {
    /// The level as `weir status` names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tracepoint => "tracepoint",
            Self::Fentry => "fentry",
        }
    }
}

/// What both levels need.
const NEEDED: [(&str, u32); 3] = [
    ("btf_trace_exit_mmap", sys::BTF_KIND_TYPEDEF),
    ("bpf_iter_task_vma_new", sys::BTF_KIND_FUNC),
    ("bpf_task_from_pid", sys::BTF_KIND_FUNC),
];

const TRACEPOINT: (&str, u32) = ("btf_trace_tcp_sendmsg_locked", sys::BTF_KIND_TYPEDEF);

/// The functions that level [`Level::Fentry`] looks at; the first one is tried.
const FUNCTIONS: [(&str, u32); 3] = [
    ("tcp_sendmsg_locked", sys::BTF_KIND_FUNC),
    ("sk_stream_wait_memory", sys::BTF_KIND_FUNC),
    ("sk_stream_wait_connect", sys::BTF_KIND_FUNC),
];

/// By which connections are ended that are no longer allowed.
const ENDS: (&str, u32) = ("bpf_sock_destroy", sys::BTF_KIND_FUNC);

/// A kernel of PREEMPT_RT has it: its locks have another form, by which level
/// [`Level::Fentry`] cannot tell that mappings are being changed.
const REAL_TIME: (&str, u32) = ("rwbase_rt", sys::BTF_KIND_STRUCT);

/// The types of the kernel.
struct KernelTypes(*mut sys::btf);

impl KernelTypes {
    fn load() -> Option<Self> {
        // SAFETY: takes nothing; null or a pointer that is freed when this is dropped.
        let btf = unsafe { sys::btf__load_vmlinux_btf() };
        (!btf.is_null()).then_some(Self(btf))
    }

    fn find(&self, (name, kind): (&str, u32)) -> Option<u32> {
        let name = CString::new(name).expect("these hold no NUL");
        // SAFETY: the types are whole, the name is terminated; both outlive the call.
        let id = unsafe { sys::btf__find_by_name_kind(self.0, name.as_ptr(), kind) };
        u32::try_from(id).ok()
    }

    fn missing(&self, needed: &[(&'static str, u32)]) -> Vec<&'static str> {
        let missing = needed.iter().filter(|one| self.find(**one).is_none());
        let missing = missing.map(|(name, _)| name.trim_start_matches("btf_trace_"));
        missing.collect()
    }
}

impl Drop for KernelTypes {
    fn drop(&mut self) {
        // SAFETY: it is ours, and not used after.
        unsafe { sys::btf__free(self.0) };
    }
}

const NO_TYPES: &str = "/sys/kernel/btf/vmlinux";
const NO_FUNCTION: &str = "tcp_sendmsg_locked as a tracepoint (Linux 6.16), or sk_stream_wait_memory and sk_stream_wait_connect beside it as functions";
const NO_FENTRY: &str = "tcp_sendmsg_locked as a tracepoint (Linux 6.16), or fentry programs (CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS)";
const NO_LOCK: &str =
    "tcp_sendmsg_locked as a tracepoint (Linux 6.16), or locks without PREEMPT_RT";

/// The level that this kernel has.
///
/// # Errors
/// What it lacks for each of them, by name.
pub fn level() -> Result<Level, Vec<&'static str>> {
    let Some(types) = KernelTypes::load() else {
        return Err(vec![NO_TYPES]);
    };
    let mut missing = types.missing(&NEEDED);
    let by_function = || {
        if !types.missing(&FUNCTIONS).is_empty() {
            return Err(NO_FUNCTION);
        }
        if types.find(REAL_TIME).is_some() {
            return Err(NO_LOCK);
        }
        let function = types.find(FUNCTIONS[0]).expect("it is not missing");
        match probe::fentry(function) {
            // Who may not load programs is told so when they are loaded.
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Err(NO_FENTRY),
            _ => Ok(Level::Fentry),
        }
    };
    let level = match types.find(TRACEPOINT) {
        Some(_) => Ok(Level::Tracepoint),
        None => by_function(),
    };
    match level {
        Ok(level) if missing.is_empty() => Ok(level),
        Ok(_) => Err(missing),
        Err(lack) => {
            missing.insert(0, lack);
            Err(missing)
        }
    }
}

/// What this kernel lacks for every level, by name; empty: nothing.
pub fn missing() -> Vec<&'static str> {
    level().err().unwrap_or_default()
}

/// Can connections be ended that are no longer allowed?
pub(super) fn can_end_connections() -> bool {
    KernelTypes::load().is_some_and(|types| types.missing(&[ENDS]).is_empty())
}
