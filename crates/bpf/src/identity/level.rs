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
    /// One of these two, and each change of the mappings is noted when it is made: for
    /// kernels that keep no number of that, or do not walk over mappings for a program.
    Push,
}

impl Level {
    /// By the words of the configuration, from the best one on.
    pub const ALL: [(&str, Self); 3] = [
        ("tracepoint", Self::Tracepoint),
        ("fentry", Self::Fentry),
        ("push", Self::Push),
    ];

    /// The level as `weir status` names it.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// A level, and where its programs go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hooks {
    pub(super) level: Level,
    /// At the beginning of functions, not at tracepoints.
    pub(super) by_function: bool,
    /// Also of the one by which pages are sent without the others.
    pub(super) has_pages: bool,
}

/// What all levels need.
const NEEDED: [(&str, u32); 1] = [("btf_trace_exit_mmap", sys::BTF_KIND_TYPEDEF)];

/// What the levels need by which the kernel walks over mappings.
const WALK: [(&str, u32); 2] = [
    ("bpf_iter_task_vma_new", sys::BTF_KIND_FUNC),
    ("bpf_task_from_pid", sys::BTF_KIND_FUNC),
];

/// What level [`Level::Push`] walks over itself (Linux 6.1), and where it holds that nobody
/// changes that without its lock for writing: a stack that grew did so before 6.1.37.
const TREE: [(&str, u32); 2] = [
    ("maple_arange_64", sys::BTF_KIND_STRUCT),
    ("lock_mm_and_find_vma", sys::BTF_KIND_FUNC),
];

/// Where level [`Level::Push`] sees that mappings have changed.
const UNLOCKS: [(&str, u32); 2] = [
    ("up_write", sys::BTF_KIND_FUNC),
    ("downgrade_write", sys::BTF_KIND_FUNC),
];
const UNLOCK_TRACEPOINTS: [(&str, u32); 2] = [
    ("btf_trace_mmap_lock_released", sys::BTF_KIND_TYPEDEF),
    (
        "btf_trace_mmap_lock_acquire_returned",
        sys::BTF_KIND_TYPEDEF,
    ),
];

const TRACEPOINT: (&str, u32) = ("btf_trace_tcp_sendmsg_locked", sys::BTF_KIND_TYPEDEF);

/// The functions that are looked at where that is none; the first one is tried.
const FUNCTIONS: [(&str, u32); 3] = [
    ("tcp_sendmsg_locked", sys::BTF_KIND_FUNC),
    ("sk_stream_wait_memory", sys::BTF_KIND_FUNC),
    ("sk_stream_wait_connect", sys::BTF_KIND_FUNC),
];

/// sendfile, splice and kTLS do not come by these before Linux 6.5, but by this.
const PAGES: (&str, u32) = ("do_tcp_sendpages", sys::BTF_KIND_FUNC);

/// By which connections are ended that are no longer allowed.
const ENDS: (&str, u32) = ("bpf_sock_destroy", sys::BTF_KIND_FUNC);

/// A kernel of PREEMPT_RT has it: its locks have another form, by which the levels
/// [`Level::Fentry`] and [`Level::Push`] cannot tell that mappings are being changed.
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
const NO_TRACEPOINT: &str = "tcp_sendmsg_locked as a tracepoint (Linux 6.16)";
const NO_FUNCTION: &str = "tcp_sendmsg_locked as a tracepoint (Linux 6.16), or sk_stream_wait_memory and sk_stream_wait_connect beside it as functions";
const NO_FENTRY: &str = "tcp_sendmsg_locked as a tracepoint (Linux 6.16), or fentry programs (CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS)";
const NO_LOCK: &str =
    "tcp_sendmsg_locked as a tracepoint (Linux 6.16), or locks without PREEMPT_RT";
const NO_FENTRY_ALONE: &str = "fentry programs (CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS)";
const NO_LOCK_ALONE: &str = "locks without PREEMPT_RT";

/// What a kernel lacks, by name.
type Lacks = Vec<&'static str>;

impl KernelTypes {
    /// Can programs be put at the beginning of the functions that send?
    fn fentry(&self) -> Result<(), &'static str> {
        if !self.missing(&FUNCTIONS).is_empty() {
            return Err(NO_FUNCTION);
        }
        let function = self.find(FUNCTIONS[0]).expect("it is not missing");
        match probe::fentry(function) {
            // A kernel may also not permit it. Who may load no program at all is told so when
            // they are loaded.
            Err(error) => match error.kind() == io::ErrorKind::PermissionDenied {
                true if !self.may_load() => Ok(()),
                _ => Err(NO_FENTRY),
            },
            Ok(()) => Ok(()),
        }
    }

    /// May this process load a program for a tracepoint?
    fn may_load(&self) -> bool {
        let tracepoint = self.find(NEEDED[0]);
        tracepoint.is_some_and(|tracepoint| probe::raw_tracepoint(tracepoint).is_ok())
    }

    fn real_time(&self) -> bool {
        self.find(REAL_TIME).is_some()
    }

    /// What is missing for a level that is named; the answer: whether by functions.
    fn check(&self, level: Level) -> Result<bool, Lacks> {
        let has_tracepoint = self.find(TRACEPOINT).is_some();
        let mut lacks = self.missing(&NEEDED);
        let by_function = match level {
            Level::Tracepoint => {
                if !has_tracepoint {
                    lacks.push(NO_TRACEPOINT);
                }
                false
            }
            Level::Fentry => true,
            Level::Push => !has_tracepoint,
        };
        if by_function {
            match self.fentry() {
                Err(NO_FENTRY) if level == Level::Fentry => lacks.push(NO_FENTRY_ALONE),
                Err(lack) => lacks.push(lack),
                Ok(()) => (),
            }
        }
        if level != Level::Tracepoint && self.real_time() {
            lacks.push(match has_tracepoint {
                true => NO_LOCK_ALONE,
                false => NO_LOCK,
            });
        }
        match level {
            Level::Tracepoint | Level::Fentry => lacks.extend(self.missing(&WALK)),
            Level::Push => {
                lacks.extend(self.missing(&TREE));
                lacks.extend(self.missing(match by_function {
                    true => &UNLOCKS,
                    false => &UNLOCK_TRACEPOINTS,
                }));
            }
        }
        match lacks.is_empty() {
            true => Ok(by_function),
            false => Err(lacks),
        }
    }
}

/// The level that this kernel has; `wanted`: this one, where there are better ones, too.
///
/// # Errors
/// What the kernel lacks for it, by name: without `wanted` for the last one of all.
pub(super) fn hooks(wanted: Option<Level>) -> Result<Hooks, Lacks> {
    let Some(types) = KernelTypes::load() else {
        return Err(vec![NO_TYPES]);
    };
    let all = Level::ALL.map(|(_, level)| level);
    let tried = match &wanted {
        Some(level) => std::slice::from_ref(level),
        None => &all,
    };
    let mut lacks = Vec::new();
    for level in tried {
        match types.check(*level) {
            Ok(by_function) => {
                return Ok(Hooks {
                    level: *level,
                    by_function,
                    has_pages: by_function && types.find(PAGES).is_some(),
                });
            }
            Err(missing) => lacks = missing,
        }
    }
    Err(lacks)
}

/// The name of the level that this kernel has; `wanted`: this one, where there are better
/// ones, too.
///
/// # Errors
/// What the kernel lacks for it, by name: without `wanted` for the last one of all.
pub fn level(wanted: Option<Level>) -> Result<Level, Vec<&'static str>> {
    hooks(wanted).map(|hooks| hooks.level)
}

/// What this kernel lacks for every level, by name; empty: nothing.
pub fn missing() -> Vec<&'static str> {
    level(None).err().unwrap_or_default()
}

/// Can connections be ended that are no longer allowed?
pub(super) fn can_end_connections() -> bool {
    KernelTypes::load().is_some_and(|types| types.missing(&[ENDS]).is_empty())
}
