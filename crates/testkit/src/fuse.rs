//! A file system of one file, a log or a program, that stops answering when it is told
//! to, as a server of NFS does that has gone, or answers late or with errors: FUSE, spoken
//! over `/dev/fuse` as far as opening and reading that file needs (linux/fuse.h, version
//! 7).

use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Read, Write},
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::{
    fcntl::OFlag,
    mount::{MntFlags, MsFlags, mount, umount2},
};
use tempfile::TempDir;

use weir_netlab::{Context, Result};

/// The file's name in its directory.
const NAME: &str = "hung.log";
const ROOT: u64 = 1;
const LOG: u64 = 2;
/// Operations of linux/fuse.h.
mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const RELEASE: u32 = 18;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const INTERRUPT: u32 = 36;
    pub const BATCH_FORGET: u32 = 42;
}
/// Reads of the file come here, not from the page cache.
const DIRECT_IO: u32 = 1;

/// The part of FUSE that this machine lacks, if any.
pub fn missing() -> Option<String> {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !known.lines().any(|line| line.trim_end() == "nodev\tfuse") {
        return Some("no FUSE in this kernel (/proc/filesystems)".into());
    }
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.err().map(|error| format!("/dev/fuse: {error}"))
}

#[derive(Default)]
struct Shared {
    content: Mutex<Vec<u8>>,
    hangs: AtomicBool,
    /// The number of requests that have come.
    requests: AtomicU64,
    /// Milliseconds before each answer.
    delay: AtomicU64,
    /// Reads of so many bytes or fewer get EIO.
    fails_up_to: AtomicU32,
    stop: AtomicBool,
}

/// The mounted file system; unmounted with this value, and whoever waits for it
/// gets an error.
pub struct FuseLog {
    shared: Arc<Shared>,
    server: Option<JoinHandle<()>>,
    directory: TempDir,
}

impl FuseLog {
    /// Mounts it, with an empty file, for all processes of this mount namespace.
    ///
    /// # Errors
    /// It cannot be mounted; see [`missing`].
    pub fn mount() -> Result<Self> {
        let directory = TempDir::with_prefix("weir-fuse-").context(|| "make a directory".into())?;
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open("/dev/fuse")
            .context(|| "open /dev/fuse".into())?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
            device.as_raw_fd()
        );
        mount(
            Some("weir-testkit"),
            directory.path(),
            Some("fuse"),
            MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
            Some(options.as_str()),
        )
        .context(|| format!("mount a FUSE file system at {}", directory.path().display()))?;
        let shared = Arc::new(Shared::default());
        let server = thread::spawn({
            let shared = shared.clone();
            move || serve(device, &shared)
        });
        let mounted = Self {
            shared,
            server: Some(server),
            directory,
        };
        // The kernel's own first request (FUSE_INIT) is nobody's who asks for a file.
        let begun = Instant::now();
        while mounted.requests() == 0 && begun.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(mounted)
    }

    /// The path of the log file.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join(NAME)
    }

    /// Adds to the log, from behind: this never waits.
    pub fn append(&self, text: impl AsRef<[u8]>) {
        content(&self.shared).extend_from_slice(text.as_ref());
    }

    /// From now on nothing is answered; or all is, what was asked meanwhile first.
    pub fn hang(&self, hangs: bool) {
        self.shared.hangs.store(hangs, Relaxed);
    }

    /// How often it has been asked something.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Relaxed)
    }

    /// From now on each answer comes so late, one after the other.
    pub fn delay(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.shared.delay.store(millis, Relaxed);
    }

    /// From now on whoever reads so many bytes at once, or fewer, gets an I/O
    /// error; 0: nobody.
    pub fn fail_reads_up_to(&self, bytes: u32) {
        self.shared.fails_up_to.store(bytes, Relaxed);
    }
}

impl Drop for FuseLog {
    fn drop(&mut self) {
        // Best effort: a guard has nobody to tell.
        let _ = umount2(self.directory.path(), MntFlags::MNT_DETACH);
        self.shared.stop.store(true, Relaxed);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

fn content(shared: &Shared) -> MutexGuard<'_, Vec<u8>> {
    shared
        .content
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Answers until it is to stop, or the file system is unmounted; closing the
/// device lets go of all who wait. While it hangs it takes no request: who waits
/// for one that was taken cannot even be killed.
fn serve(mut device: File, shared: &Shared) {
    let mut buffer = vec![0; 256 << 10];
    while !shared.stop.load(Relaxed) {
        if shared.hangs.load(Relaxed) {
            thread::sleep(Duration::from_millis(2));
            continue;
        }
        match device.read(&mut buffer) {
            Ok(len) => {
                shared.requests.fetch_add(1, Relaxed);
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_millis(shared.delay.load(Relaxed))
                    && !shared.stop.load(Relaxed)
                {
                    thread::sleep(Duration::from_millis(2));
                }
                answer(&mut device, &buffer[..len], shared);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(2));
            }
            // The request was interrupted before it was read.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Interrupted) => {}
            Err(_) => return,
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    u32::from_ne_bytes(bytes.unwrap_or_default())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    u64::from_ne_bytes(bytes.unwrap_or_default())
}

/// Numbers one after the other, as the kernel's structs have them.
#[derive(Default)]
struct Reply(Vec<u8>);

impl Reply {
    fn u64(mut self, values: &[u64]) -> Self {
        values
            .iter()
            .for_each(|value| self.0.extend(value.to_ne_bytes()));
        self
    }

    fn u32(mut self, values: &[u32]) -> Self {
        values
            .iter()
            .for_each(|value| self.0.extend(value.to_ne_bytes()));
        self
    }

    /// `struct fuse_attr`.
    fn attributes(self, node: u64, size: usize) -> Self {
        let (mode, links) = match node {
            ROOT => (0o040_755, 2),
            _ => (0o100_755, 1),
        };
        let size = if node == ROOT { 0 } else { size as u64 };
        self.u64(&[node, size, size.div_ceil(512), 0, 0, 0])
            .u32(&[0, 0, 0, mode, links, 0, 0, 0, 4096, 0])
    }
}

const NO_SUCH_FILE: i32 = 2;
const IO_ERROR: i32 = 5;
const NOT_IMPLEMENTED: i32 = 38;

fn answer(device: &mut File, request: &[u8], shared: &Shared) {
    let (operation, unique, node) = (u32_at(request, 4), u64_at(request, 8), u64_at(request, 16));
    let arguments = request.get(40..).unwrap_or_default();
    let content = content(shared);
    let size = content.len();
    let reply = match operation {
        op::FORGET | op::BATCH_FORGET | op::INTERRUPT => return,
        // `struct fuse_init_out` of 7.31, with the kernel's own sizes.
        op::INIT => Ok(Reply::default()
            .u32(&[7, 31, 0, 0])
            .u32(&[0, 4096, 1, 0])
            .u32(&[0; 8])),
        op::LOOKUP => {
            let name = arguments.split(|byte| *byte == 0).next();
            match node == ROOT && name == Some(NAME.as_bytes()) {
                // Nothing is kept in the kernel: each look asks.
                true => Ok(Reply::default()
                    .u64(&[LOG, 0, 0, 0])
                    .u32(&[0, 0])
                    .attributes(LOG, size)),
                false => Err(NO_SUCH_FILE),
            }
        }
        op::GETATTR => Ok(Reply::default()
            .u64(&[0])
            .u32(&[0, 0])
            .attributes(node, size)),
        op::OPEN => Ok(Reply::default().u64(&[0]).u32(&[DIRECT_IO, 0])),
        op::OPENDIR => Ok(Reply::default().u64(&[0]).u32(&[0, 0])),
        op::READ => {
            let from = usize::try_from(u64_at(arguments, 8)).unwrap_or(size);
            let most = u32_at(arguments, 16);
            let rest = content.get(from..).unwrap_or_default();
            match most <= shared.fails_up_to.load(Relaxed) {
                true => Err(IO_ERROR),
                false => Ok(Reply(rest[..rest.len().min(most as usize)].to_vec())),
            }
        }
        op::READDIR | op::RELEASE | op::RELEASEDIR => Ok(Reply::default()),
        // FLUSH among them: else a process that ends waits at each open file, and
        // cannot be killed there.
        _ => Err(NOT_IMPLEMENTED),
    };
    let (error, body) = match reply {
        Ok(Reply(body)) => (0, body),
        Err(number) => (-number, Vec::new()),
    };
    let mut message = Vec::with_capacity(16 + body.len());
    message.extend(((16 + body.len()) as u32).to_ne_bytes());
    message.extend(error.to_ne_bytes());
    message.extend(unique.to_ne_bytes());
    message.extend(body);
    // Whoever asked may have gone.
    let _ = device.write(&message);
}
