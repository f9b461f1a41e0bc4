//! Waiting for packets that are on their way through a program: what they have
//! read stays as it was until they are done.

use std::time::Duration;

/// `MEMBARRIER_CMD_GLOBAL` of linux/membarrier.h.
const GLOBAL: libc::c_int = 1;

/// Where the kernel cannot be asked: longer than any packet takes.
const LONG: Duration = Duration::from_millis(200);

/// Returns when every packet whose program ran when this was called is judged.
/// The system call waits for an RCU grace period, and packets are judged inside
/// of RCU's read side.
pub fn wait_for_packets() {
    // SAFETY: takes numbers only.
    let waited = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) };
    if waited != 0 {
        // A kernel with processors that never tick (nohz_full), or a sandbox
        // without the call.
        std::thread::sleep(LONG);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_returns() {
        super::wait_for_packets();
    }
}
