//! How much address space the allocator reserves.

/// Keeps glibc's allocator to one arena where the address space of this process
/// is limited (`ulimit -v`, `prlimit --as`): it reserves 64 MiB for each thread
/// otherwise, and what finds nothing left, aborts. To be called before threads
/// are made. Without a limit nothing changes, for threads with an arena each do
/// not wait for one another.
pub fn fit_address_space() {
    #[cfg(target_env = "gnu")]
    {
        use rustix::process::{Resource, getrlimit};

        if getrlimit(Resource::As).current.is_some() {
            // SAFETY: takes numbers only.
            unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
        }
    }
}
