//! Read leases: whoever opens the file to write waits until the lease is given back, so
//! that what was concluded from its content is taken back before it changes.

use std::{fs::File, io, os::fd::AsRawFd};

/// Has the kernel say of broken leases nothing by signals, whose default is to end the
/// process: [`Lease::is_broken`] asks.
pub fn ignore_signals() {
    // SAFETY: no handler is installed; it is the disposition alone that changes.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
}

/// A file that nobody writes to while this is held. Call [`ignore_signals`] before.
#[derive(Debug)]
pub struct Lease(File);

impl Lease {
    /// Takes it; the file is open for reading.
    ///
    /// # Errors
    /// EAGAIN: somebody has the file open to write. EINVAL, and others: there are no leases
    /// on this file system, or not for us (CAP_LEASE).
    pub fn take(file: File) -> Result<Self, (File, io::Error)> {
        // SAFETY: plain numbers go in.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) } {
            0 => Ok(Self(file)),
            _ => {
                let error = io::Error::last_os_error();
                Err((file, error))
            }
        }
    }

    /// Does somebody wait to write? He waits until this is dropped, for 45 seconds at most
    /// (fs.lease-break-time).
    pub fn is_broken(&self) -> bool {
        // SAFETY: plain numbers go in.
        let now = unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_GETLEASE) };
        now != libc::F_RDLCK
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::OpenOptions,
        io::Write,
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn whoever_writes_waits_for_the_lease() {
        ignore_signals();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        let mut writer = File::create(&path).unwrap();
        writer.write_all(b"one").unwrap();
        let (_, refused) = Lease::take(File::open(&path).unwrap()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EAGAIN));
        drop(writer);
        // A child that another test starts holds a copy of each descriptor until it calls exec.
        let lease = (0..1000)
            .find_map(|_| {
                let taken = Lease::take(File::open(&path).unwrap());
                taken
                    .inspect_err(|_| thread::sleep(Duration::from_millis(10)))
                    .ok()
            })
            .expect("a lease");
        assert!(!lease.is_broken());
        let other = path.clone();
        let writes = thread::spawn(move || {
            OpenOptions::new().write(true).open(other).unwrap();
        });
        let until = Instant::now() + Duration::from_secs(10);
        while !lease.is_broken() && Instant::now() < until {
            thread::yield_now();
        }
        assert!(lease.is_broken() && !writes.is_finished());
        drop(lease);
        writes.join().unwrap();
    }
}
