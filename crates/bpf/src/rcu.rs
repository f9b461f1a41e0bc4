//! Waiting for packets that are on their way through a program: what they have
//! read stays as it was until they are done.

use std::time::Duration;

/// `MEMBARRIER_CMD_GLOBAL` of linux/membarrier.h.
const GLOBAL: libc::c_int = 1;

/// Where the kernel does not wait: longer than any packet takes.
const LONG: Duration = Duration::from_millis(200);

/// Returns when every packet whose program ran when this was called is judged.
/// The system call waits for an RCU grace period, and packets are judged inside
/// of RCU's read side.
pub fn wait_for_packets() {
    // SAFETY: takes a number only.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    wait(
        processors,
        // SAFETY: takes numbers only.
        || unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) } == 0,
        || std::thread::sleep(LONG),
    );
}

/// With a single processor the system call returns at once, for memory needs no
/// barrier there: but a packet whose program was preempted (PREEMPT_RT) is still
/// on its way. And there may be none: a kernel with processors that never tick
/// (nohz_full), a sandbox without the call.
fn wait(processors: libc::c_long, barrier: impl FnOnce() -> bool, sleep: impl FnOnce()) {
    if processors < 2 || !barrier() {
        sleep();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn it_returns() {
        wait_for_packets();
    }

    #[test]
    fn where_the_kernel_does_not_wait_time_passes() {
        // -1: sysconf does not know.
        for (processors, has_call, sleeps) in [
            (1, true, true),
            (1, false, true),
            (-1, true, true),
            (2, true, false),
            (2, false, true),
        ] {
            let slept = Cell::new(false);
            wait(processors, || has_call, || slept.set(true));
            assert_eq!(slept.get(), sleeps, "{processors} processors, {has_call}");
        }
    }
}
