//! Who has a descriptor of a socket: every process, for the sockets of all packets that wait at
//! one moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::fd::OwnedFd,
    time::Instant,
};

use rustix::fs::{Dir, Mode, OFlags, open, readlinkat};

/// Processes that hold one socket, of which it is asked who they are.
const MAX_HOLDERS: usize = 64;
/// Descriptors that are looked at before it is asked again what time it is.
const AT_ONCE: u32 = 256;

/// The processes that hold sockets.
#[derive(Debug, Default)]
pub(super) struct Holders {
    of: BTreeMap<u64, Vec<u32>>,
    /// Sockets that more hold than are asked about.
    crowded: BTreeSet<u64>,
    /// There was no time for all processes.
    pub is_cut: bool,
    /// The process with the most descriptors of those that were looked at, and how many it has.
    pub largest: (u32, u32),
}

fn number(name: &std::ffi::CStr) -> Option<u32> {
    name.to_str().ok()?.parse().ok()
}

fn directory(path: &str) -> Option<(OwnedFd, Dir)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let at = open(path, flags, Mode::empty()).ok()?;
    let listed = Dir::read_from(&at).ok()?;
    Some((at, listed))
}

impl Holders {
    /// Looks through the descriptors of all processes for sockets with these inodes, until then.
    /// Threads with descriptors of their own are looked through where nobody else has one.
    pub fn find(wanted: &BTreeSet<u64>, until: Instant) -> Self {
        let mut found = Self::default();
        let wanted: BTreeSet<u64> = wanted.iter().copied().filter(|inode| *inode != 0).collect();
        if wanted.is_empty() {
            return found;
        }
        let processes = || {
            let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        };
        for pid in processes() {
            if Instant::now() > until {
                found.is_cut = true;
                return found;
            }
            found.look(pid, &format!("/proc/{pid}/fd"), &wanted, until);
        }
        let missing = wanted
            .into_iter()
            .filter(|inode| found.holding(*inode).is_empty());
        let missing: BTreeSet<u64> = missing.collect();
        if missing.is_empty() {
            return found;
        }
        for pid in processes() {
            let threads = fs::read_dir(format!("/proc/{pid}/task"))
                .into_iter()
                .flatten()
                .flatten();
            for thread in threads {
                if Instant::now() > until {
                    found.is_cut = true;
                    return found;
                }
                if let Some(path) = thread.path().join("fd").to_str() {
                    found.look(pid, path, &missing, until);
                }
            }
        }
        found
    }

    fn look(&mut self, pid: u32, path: &str, wanted: &BTreeSet<u64>, until: Instant) {
        let Some((at, listed)) = directory(path) else {
            return;
        };
        let mut count = 0;
        for entry in listed.flatten() {
            let name = entry.file_name();
            if number(name).is_none() {
                continue;
            }
            count += 1;
            if count > self.largest.1 {
                self.largest = (pid, count);
            }
            if count % AT_ONCE == 0 && Instant::now() > until {
                self.is_cut = true;
                return;
            }
            let Ok(link) = readlinkat(&at, name, [0; 64]) else {
                continue;
            };
            let inode = link.to_str().ok().and_then(|link| {
                let inode = link.strip_prefix("socket:[")?.strip_suffix(']')?;
                inode.parse().ok()
            });
            let Some(inode) = inode.filter(|inode| wanted.contains(inode)) else {
                continue;
            };
            let holding = self.of.entry(inode).or_default();
            match holding.len() < MAX_HOLDERS {
                _ if holding.contains(&pid) => {}
                true => holding.push(pid),
                false => {
                    self.crowded.insert(inode);
                }
            }
        }
    }

    /// Are there, or may there be, others that hold this socket?
    pub fn may_be_more(&self, inode: u64) -> bool {
        self.is_cut || self.crowded.contains(&inode)
    }

    /// The processes that hold this socket.
    pub fn holding(&self, inode: u64) -> &[u32] {
        self.of.get(&inode).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, os::fd::AsFd, process::Command, time::Duration};

    use super::*;

    #[test]
    fn who_holds_a_socket_is_found() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let inode = rustix::fs::fstat(socket.as_fd()).unwrap().st_ino;
        let soon = || Instant::now() + Duration::from_secs(60);
        let found = Holders::find(&BTreeSet::from([0, inode]), soon());
        // A child that another test starts may have a copy until it calls exec.
        assert!(found.holding(inode).contains(&std::process::id()));
        assert!(found.holding(0).is_empty() && !found.is_cut);
        // A thread with descriptors of its own, of which the process has none.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            #[allow(
                unsafe_code,
                reason = "no safe crate gives a thread a table of its own"
            )]
            // SAFETY: the thread uses no descriptor that another one closes.
            let apart =
                unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FILES) };
            let own = UdpSocket::bind("127.0.0.1:0").unwrap();
            tell.send((
                apart.is_ok(),
                rustix::fs::fstat(own.as_fd()).unwrap().st_ino,
            ))
            .unwrap();
            let _ = wait.recv();
        });
        let (is_apart, inode) = told.recv().unwrap();
        let found = Holders::find(&BTreeSet::from([inode]), soon());
        let is_found = found.holding(inode).contains(&std::process::id());
        assert!(is_found, "apart: {is_apart}");
        drop(go);
        thread.join().unwrap();
        let past = Instant::now();
        std::thread::sleep(Duration::from_millis(1));
        let cut = Holders::find(&BTreeSet::from([inode]), past);
        assert!(cut.is_cut && cut.may_be_more(inode));
    }

    /// One socket that very many hold says nothing about those of others.
    #[test]
    fn who_holds_other_sockets_than_a_crowded_one_is_found() {
        let [crowded, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let inode = |socket: &UdpSocket| rustix::fs::fstat(socket.as_fd()).unwrap().st_ino;
        let wanted = BTreeSet::from([inode(&crowded), inode(&other)]);
        let mut children = Vec::new();
        for _ in 0..=MAX_HOLDERS {
            let input = crowded.as_fd().try_clone_to_owned().unwrap();
            let child = Command::new("sleep").arg("100").stdin(input).spawn();
            children.push(child.unwrap());
        }
        let found = Holders::find(&wanted, Instant::now() + Duration::from_secs(60));
        for mut child in children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(found.holding(inode(&crowded)).len(), MAX_HOLDERS);
        assert!(found.may_be_more(inode(&crowded)) && !found.is_cut);
        assert!(!found.may_be_more(inode(&other)));
        assert!(found.holding(inode(&other)).contains(&std::process::id()));
    }

    /// A process with very many descriptors is left in time, and named.
    #[test]
    fn a_process_with_many_descriptors_is_left_in_time() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let copies: Vec<_> = (0..2 * AT_ONCE)
            .map(|_| socket.as_fd().try_clone_to_owned().unwrap())
            .collect();
        let inode = rustix::fs::fstat(socket.as_fd()).unwrap().st_ino;
        let own = std::process::id();
        let mut found = Holders::default();
        let past = Instant::now();
        std::thread::sleep(Duration::from_millis(1));
        found.look(
            own,
            &format!("/proc/{own}/fd"),
            &BTreeSet::from([inode]),
            past,
        );
        assert!(found.is_cut);
        assert_eq!(found.largest, (own, AT_ONCE));
        drop(copies);
    }
}
