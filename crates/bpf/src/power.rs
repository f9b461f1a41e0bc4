//! Energy counters of the processor as perf events. Which there are, and in
//! which unit they count, sysfs tells the caller.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::FromRawFd,
};

use libbpf_rs::libbpf_sys as sys;

/// An event of a whole CPU package or machine, counting since it was opened.
#[derive(Debug)]
pub struct PerfCounter(File);

impl PerfCounter {
    /// Opens event `config` of the PMU with this number (`type` in
    /// /sys/bus/event_source/devices), on this CPU, whatever runs there.
    pub fn open(pmu: u32, config: u64, cpu: u32) -> io::Result<Self> {
        let attr = sys::perf_event_attr {
            type_: pmu,
            size: size_of::<sys::perf_event_attr>() as u32,
            config,
            ..Default::default()
        };
        // SAFETY: `attr` is whole with its size in it, and outlives the call.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attr,
                -1i32,
                cpu as i32,
                -1i32,
                u64::from(sys::PERF_FLAG_FD_CLOEXEC),
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a non-negative answer is a new descriptor, and ours.
        Ok(Self(unsafe { File::from_raw_fd(fd as i32) }))
    }

    /// The counter's value since it was opened.
    pub fn read(&mut self) -> io::Result<u64> {
        let mut count = [0; 8];
        self.0.read_exact(&mut count)?;
        Ok(u64::from_ne_bytes(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The machine's energy counters are not everywhere; the clock of a CPU,
    /// which is opened and read in the same way, is.
    #[test]
    fn root_a_perf_counter_counts() {
        const SOFTWARE: u32 = 1;
        const CPU_CLOCK: u64 = 0;
        let mut counter = match PerfCounter::open(SOFTWARE, CPU_CLOCK, 0) {
            Ok(counter) => counter,
            Err(e) => return eprintln!("skipped: perf_event_open: {e}"),
        };
        let before = counter.read().unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while counter.read().unwrap() == before {
            assert!(std::time::Instant::now() < end, "the clock stands still");
        }
        assert!(PerfCounter::open(u32::MAX, 0, 0).is_err());
    }
}
