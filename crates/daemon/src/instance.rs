//! What makes this process the only daemon of its state directory, and how it
//! gives up the privileges that it does not need.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use caps::{CapSet, Capability, CapsHashSet};
use weir_bpf::lock::{self, NotTaken};

/// Why this process cannot be the daemon.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstanceError {
    /// Somebody is already.
    #[error(
        "another weir daemon ({owner}) uses {dir}; stop it, or give this one its own state_dir, socket and instance"
    )]
    Busy {
        /// The process id of the other daemon, if it said so.
        owner: String,
        /// The state directory.
        dir: PathBuf,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done to which object.
        what: String,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// Held for as long as the daemon lives; the kernel lets go of it at any death.
#[derive(Debug)]
pub struct InstanceLock(#[allow(dead_code)] File);

/// Makes the state directory if it is not there (mode 0700) and locks it. On a
/// disk that cannot be written to, the lock is taken on what is there already,
/// the file or the directory; `None`: there is nothing, and no lock.
pub fn lock(state_dir: &Path) -> Result<Option<InstanceLock>, InstanceError> {
    let system = |what: &str, path: &Path| {
        let what = format!("cannot {what} {}", path.display());
        move |source| InstanceError::System { what, source }
    };
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state_dir);
    let path = state_dir.join("weir.lock");
    let opened = made.and_then(|()| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
    });
    let (mut file, writable) = match opened {
        Ok(file) => (file, true),
        Err(error) if cannot_be_written(&error) => {
            match File::open(&path).or_else(|_| File::open(state_dir)) {
                Ok(file) => (file, false),
                Err(_) => return Ok(None),
            }
        }
        Err(error) => return Err(system("make", &path)(error)),
    };
    lock::take_file(&file, || owner_of(&file)).map_err(|error| match error {
        NotTaken::Held(pid) => InstanceError::Busy {
            owner: lock::owner(pid),
            dir: state_dir.to_owned(),
        },
        NotTaken::Failed(error) => system("lock", &path)(error),
    })?;
    if writable && let Err(error) = note_pid(&mut file) {
        tracing::debug!("cannot write {}: {error}", path.display());
    }
    Ok(Some(InstanceLock(file)))
}

/// The process that has the lock: as the kernel says and, where it cannot, as the
/// file does. The one that is dead, if the two differ: what it left ends soon, and a
/// stranger may have the number that the file notes by now.
fn owner_of(file: &File) -> Option<u32> {
    let owners = [lock::owner_of_file(file), noted_pid(file)];
    let mut known = owners.into_iter().flatten();
    let dead = known.clone().find(|pid| !lock::is_alive(*pid));
    dead.or_else(|| known.next())
}

/// The living process that holds the lock of a state directory, as far as that can
/// be told without trying to take it.
pub fn holder(state_dir: &Path) -> Option<u32> {
    let file = File::open(state_dir.join("weir.lock"))
        .or_else(|_| File::open(state_dir))
        .ok()?;
    lock::owner_of_file(&file)
        .or_else(|| noted_pid(&file).filter(|pid| is_weir(*pid)))
        .filter(|pid| lock::is_alive(*pid))
}

/// Does this process run a program of our name? A stranger may have the number.
fn is_weir(pid: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    name.is_ok_and(|name| name.trim_end() == "weir")
}

/// The process that noted itself in the lock's file last.
fn noted_pid(file: &File) -> Option<u32> {
    let mut text = [0; 32];
    let length = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..length])
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// For a process that finds the lock taken.
fn note_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())
}

/// A daemon works without a state directory: bans are not remembered then, and
/// an alert says so.
fn cannot_be_written(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
    )
}

/// May this process see everything?
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes the directory that a file is to be in (mode 0755), if it is not there.
pub fn make_parent(file: &Path) -> Result<(), InstanceError> {
    let Some(dir) = file.parent() else {
        return Ok(());
    };
    fs::create_dir_all(dir).map_err(|source| InstanceError::System {
        what: format!("cannot make {}", dir.display()),
        source,
    })
}

/// Capabilities that the daemon keeps: for loading and attaching programs, and for reading
/// logs of other users.
pub const KEPT: [Capability; 4] = [
    Capability::CAP_BPF,
    Capability::CAP_NET_ADMIN,
    Capability::CAP_PERFMON,
    Capability::CAP_DAC_READ_SEARCH,
];

/// May this process take what is attached away?
pub fn may_detach() -> bool {
    let has = |capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false);
    // Before Linux 5.8, and on it, CAP_SYS_ADMIN stands for the other.
    has(Capability::CAP_NET_ADMIN) && (has(Capability::CAP_BPF) || has(Capability::CAP_SYS_ADMIN))
}

/// Kept as well when the backend is `ipset`, because libxt_set of iptables asks for the
/// numbers of sets through a raw socket, as older iptables does for every rule (level `nfqueue`
/// of `[app]`), and when weir holds virtual addresses or asks reals at them.
const FOR_RAW_SOCKETS: Capability = Capability::CAP_NET_RAW;

/// Can this process, or a child that runs iptables with sets, open raw sockets?
pub fn may_open_raw_sockets() -> bool {
    caps::has_cap(None, CapSet::Permitted, FOR_RAW_SOCKETS).unwrap_or(false)
}

/// Kept as well when watches are configured: what they run has a user of its own,
/// and ending that takes the last.
const FOR_WATCHES: [Capability; 3] = [
    Capability::CAP_SETUID,
    Capability::CAP_SETGID,
    Capability::CAP_KILL,
];

/// Can what a watch runs be run, and ended, as another user? Who is not root
/// runs it as himself.
pub fn may_run_watches() -> bool {
    let has = |capability| caps::has_cap(None, CapSet::Permitted, capability).unwrap_or(false);
    !rustix::process::geteuid().is_root() || FOR_WATCHES.into_iter().all(has)
}

/// What actions of Fail2ban's may need beside that: files of others, mailers that become
/// another user. The daemon itself gives them up; whatever it starts as root has them.
const FOR_ACTIONS: [Capability; 6] = [
    Capability::CAP_CHOWN,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_FOWNER,
    Capability::CAP_SETUID,
    Capability::CAP_SETGID,
    Capability::CAP_KILL,
];

/// Whether they could be gained again since the start.
static KEEPS_ACTIONS: AtomicBool = AtomicBool::new(false);

/// Can actions gain what they may need? Who is not root runs them as himself.
pub fn may_run_actions() -> bool {
    !rustix::process::geteuid().is_root() || KEEPS_ACTIONS.load(Ordering::Relaxed)
}

/// Kept as well when the proxy of a pool receives at a port below 1024.
const FOR_PROXY: Capability = Capability::CAP_NET_BIND_SERVICE;

/// Can the proxy receive at such ports?
pub fn may_bind_low_ports() -> bool {
    caps::has_cap(None, CapSet::Permitted, FOR_PROXY).unwrap_or(false)
}

/// Kept as well when there are rules about programs: what another process has mapped is
/// read through /proc/PID/map_files, and a lease is taken on it.
const FOR_PROGRAMS: [Capability; 3] = [
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_CHECKPOINT_RESTORE,
    Capability::CAP_LEASE,
];

/// Kept as well, where the daemon has it: connections that are no longer allowed are ended
/// in other network namespaces, too. The unit has it not.
const FOR_NAMESPACES: Capability = Capability::CAP_SYS_ADMIN;

/// Can the daemon go into other network namespaces?
pub fn may_enter_namespaces() -> bool {
    caps::has_cap(None, CapSet::Effective, FOR_NAMESPACES).unwrap_or(false)
}

/// Can programs be identified?
pub fn may_identify_programs() -> bool {
    let has = |capability| caps::has_cap(None, CapSet::Permitted, capability).unwrap_or(false);
    FOR_PROGRAMS.into_iter().all(has)
}

/// Descriptors that the daemon may hold, where the host allows so many: systemd
/// gives 1,024 at first, and one source of logs may hold 4,096 files. (No more:
/// some programs close every descriptor that they might have.)
pub(crate) const MAX_FILES: u64 = 65_536;

/// Has the limit of open files raised as far as it may be.
pub fn raise_file_limit() {
    use rustix::process::{Resource::Nofile, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Nofile);
    let wanted = maximum.map_or(MAX_FILES, |most| most.min(MAX_FILES));
    if current.is_some_and(|current| current < wanted) {
        let raised = Rlimit {
            current: Some(wanted),
            maximum,
        };
        if let Err(error) = setrlimit(Nofile, raised) {
            tracing::warn!("cannot raise the limit of open files: {error}");
        }
    }
}

/// For which parts of the configuration capabilities are kept beside those that every
/// daemon has (`capabilities(7)`).
#[derive(Debug, Clone, Copy, Default)]
pub struct Needs {
    /// Virtual addresses of its own, checks at them, and iptables for `backend = "ipset"` or
    /// level `nfqueue` of `[app]`: CAP_NET_RAW.
    pub raw_sockets: bool,
    /// Commands as another user: CAP_SETUID, CAP_SETGID, CAP_KILL.
    pub watches: bool,
    /// A proxy at a port below 1024: CAP_NET_BIND_SERVICE.
    pub low_ports: bool,
    /// Fail2ban's actions, run as root: what they start may gain [`FOR_ACTIONS`] again.
    pub actions: bool,
    /// `[app]`: CAP_SYS_PTRACE, CAP_CHECKPOINT_RESTORE, CAP_LEASE; CAP_SYS_ADMIN if there.
    pub programs: bool,
}

/// Gives up all other capabilities for good, and gaining any by exec, but for the commands
/// of actions. Must run before the first thread is started: the kernel keeps them per
/// thread.
pub fn drop_privileges(needs: Needs) -> Result<(), caps::errors::CapsError> {
    // Before Linux 5.11 BPF tables count as locked memory. Not allowed: then what
    // is allowed must do, and loading them says that it does not.
    let all = rustix::process::Rlimit {
        current: None,
        maximum: None,
    };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Memlock, all);
    let mut keep: CapsHashSet = KEPT.into_iter().collect();
    keep.extend(needs.raw_sockets.then_some(FOR_RAW_SOCKETS));
    keep.extend(FOR_WATCHES.into_iter().filter(|_| needs.watches));
    keep.extend(needs.low_ports.then_some(FOR_PROXY));
    keep.extend(FOR_PROGRAMS.into_iter().filter(|_| needs.programs));
    keep.extend(needs.programs.then_some(FOR_NAMESPACES));
    KEEPS_ACTIONS.store(needs.actions, Ordering::Relaxed);
    let permitted = caps::read(None, CapSet::Permitted)?;
    if permitted.contains(&Capability::CAP_SETPCAP) {
        for capability in caps::all() {
            let for_actions = needs.actions && FOR_ACTIONS.contains(&capability);
            if !keep.contains(&capability) && !for_actions {
                // A kernel older than the capability does not know it.
                let _ = caps::drop(None, CapSet::Bounding, capability);
            }
        }
    }
    let kept: CapsHashSet = permitted.intersection(&keep).copied().collect();
    if caps::clear(None, CapSet::Ambient).is_err() {
        tracing::debug!("no ambient capabilities on this kernel");
    }
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Inheritable, &CapsHashSet::new())?;
    caps::set(None, CapSet::Permitted, &kept)?;
    if !needs.actions
        && let Err(error) = rustix::thread::set_no_new_privs(true)
    {
        tracing::warn!("cannot set no_new_privs: {error}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_a_child_of_a_dead_daemon_holds_for_a_moment_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let first = lock(dir.path()).unwrap().unwrap();
        // It lives, so there is nothing to wait for.
        let error = lock(dir.path()).map(|_| ()).unwrap_err().to_string();
        let us = format!("(pid {})", std::process::id());
        assert!(error.contains(&us), "{error}");
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        assert!(!lock::is_alive(dead.id()));
        let file = dir.path().join("weir.lock");
        fs::write(&file, format!("{}\n", dead.id())).unwrap();
        let child = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(first);
        });
        lock(dir.path()).unwrap().unwrap();
        child.join().unwrap();
        assert_eq!(
            fs::read_to_string(&file).unwrap().trim(),
            std::process::id().to_string()
        );
    }

    /// The number that a dead daemon noted is a stranger's by now.
    #[test]
    fn a_stranger_with_the_noted_number_refuses_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weir.lock");
        let mut stranger = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        fs::write(&path, format!("{}\n", stranger.id())).unwrap();
        // A shell locks what a child of its own holds when it is gone.
        let script = "exec 9<\"$1\"; flock 9; sleep 1 & exit";
        let shell = std::process::Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&path)
            .status();
        assert!(shell.unwrap().success());
        let taken = match lock::owner_of_file(File::open(&path).unwrap()) {
            Some(_) => lock(dir.path()).map(drop),
            None => {
                eprintln!(
                    "skipped: owners of locks (probe: /proc/locks has a file by other numbers than fstat, as btrfs and overlay do)"
                );
                Ok(())
            }
        };
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        taken.unwrap();
    }
}
