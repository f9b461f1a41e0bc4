//! The rows at the top of the stack: a program that reads each datagram and
//! throws it away, and filters of its socket and of its cgroup.

use std::{
    fs,
    net::SocketAddr,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, ensure};
use socket2::{Domain, SockFilter, Socket, Type};
use weir_bpf::bare::{Attached, BareDrop, BareHook};

use super::{
    cpu,
    flood_target::{FloodTarget, PORT},
    rules,
    task::{Running, Task},
};
use crate::cores;

/// How soon a reader sees that it shall stop.
const TICK: Duration = Duration::from_millis(50);
/// The core on which readers run: not the generator's.
const READER_CORE: usize = 1;

fn socket(task: &Task) -> anyhow::Result<Socket> {
    let at = SocketAddr::from((task.place.host, PORT));
    let opened = task.place.enter(|| -> std::io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(at), Type::DGRAM, None)?;
        socket.bind(&at.into())?;
        socket.set_read_timeout(Some(TICK))?;
        Ok(socket)
    })?;
    opened.with_context(|| format!("UDP socket at {at}"))
}

/// Reads in a thread of its own.
struct Reader {
    received: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    schedstat: PathBuf,
    thread: Option<JoinHandle<()>>,
    _rules: Box<dyn Running>,
}

/// A program that receives each datagram, recv() by recv().
pub fn receive(task: &Task, track: bool) -> anyhow::Result<Box<dyn Running>> {
    let rules = rules::let_in(task, track)?;
    let socket = socket(task)?;
    let (received, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let id = Arc::new(OnceLock::new());
    let thread = {
        let (received, stop, id) = (received.clone(), stop.clone(), id.clone());
        std::thread::spawn(move || {
            cores::pin(READER_CORE);
            let _ = id.set(rustix::thread::gettid());
            let mut datagram = [0; 2048];
            while !stop.load(Ordering::Relaxed) {
                if rustix::net::recv(&socket, &mut datagram, rustix::net::RecvFlags::empty())
                    .is_ok()
                {
                    received.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    };
    let id = id.wait().as_raw_nonzero();
    Ok(Box::new(Reader {
        received,
        stop,
        schedstat: format!("/proc/self/task/{id}/schedstat").into(),
        thread: Some(thread),
        _rules: rules,
    }))
}

impl Running for Reader {
    fn dropped(&mut self) -> anyhow::Result<u64> {
        Ok(self.received.load(Ordering::Relaxed))
    }

    fn cpu(&self) -> f64 {
        cpu::seconds_in(&self.schedstat)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A socket that nobody reads, with the classic filter.
struct Classic {
    place: Arc<FloodTarget>,
    _socket: Socket,
}

/// Classic BPF on the socket.
pub fn classic(task: &Task) -> anyhow::Result<Box<dyn Running>> {
    let socket = socket(task)?;
    // The destination port; a datagram to it has no bytes to keep.
    let filter = [
        SockFilter::new(0x28, 0, 0, 2),
        SockFilter::new(0x15, 0, 1, PORT.into()),
        SockFilter::new(0x06, 0, 0, 0),
        SockFilter::new(0x06, 0, 0, u32::MAX),
    ];
    socket.attach_filter(&filter).context("SO_ATTACH_FILTER")?;
    Ok(Box::new(Classic {
        place: task.place.clone(),
        _socket: socket,
    }))
}

impl Running for Classic {
    fn dropped(&mut self) -> anyhow::Result<u64> {
        self.place.udp_refused()
    }
}

/// A socket that nobody reads, and the program that judges for it.
struct Judged {
    drop: BareDrop,
    _attached: Option<Attached>,
    _socket: Socket,
    _cgroup: Option<Cgroup>,
}

impl Running for Judged {
    fn dropped(&mut self) -> anyhow::Result<u64> {
        Ok(self.drop.dropped()?)
    }
}

/// eBPF on the socket.
pub fn extended(task: &Task) -> anyhow::Result<Box<dyn Running>> {
    let drop = BareDrop::load(BareHook::Socket).context("BPF program for a socket")?;
    let socket = socket(task)?;
    drop.attach_socket(socket.as_fd())
        .context("SO_ATTACH_BPF")?;
    Ok(Box::new(Judged {
        drop,
        _attached: None,
        _socket: socket,
        _cgroup: None,
    }))
}

/// eBPF on the cgroup that the socket is of.
pub fn cgroup(task: &Task) -> anyhow::Result<Box<dyn Running>> {
    let drop = BareDrop::load(BareHook::Cgroup).context("BPF program for a cgroup")?;
    let cgroup = Cgroup::new()?;
    let attached = drop.attach_cgroup(&cgroup.0).context("cgroup_skb")?;
    let socket = cgroup.within(|| socket(task))?;
    Ok(Box::new(Judged {
        drop,
        _attached: Some(attached),
        _socket: socket,
        _cgroup: Some(cgroup),
    }))
}

/// A cgroup of version 2 of our own; its end removes it.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> anyhow::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let root = mounts
            .lines()
            .find_map(|line| {
                let mut fields = line.split(' ');
                let at = fields.nth(1)?;
                (fields.next() == Some("cgroup2")).then_some(at)
            })
            .context("cgroup2: it is not mounted")?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-bench-{}-{number}", std::process::id());
        let dir = Path::new(root).join(name);
        fs::create_dir(&dir).with_context(|| format!("cgroup2: make {}", dir.display()))?;
        Ok(Self(dir))
    }

    /// Runs `f` with the whole process in this cgroup: a socket belongs to the
    /// one in which it was made.
    fn within<T>(&self, f: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let before = fs::read_to_string("/proc/self/cgroup")?;
        let before = before
            .lines()
            .find_map(|line| line.strip_prefix("0::/"))
            .context("cgroup2: this process is in none")?;
        let root = self.0.parent().expect("made below the root");
        let move_to = |dir: &Path| {
            fs::write(dir.join("cgroup.procs"), std::process::id().to_string())
                .with_context(|| format!("cgroup2: move to {}", dir.display()))
        };
        ensure!(
            root.join(before).is_dir(),
            "cgroup2: /{before} is not seen here"
        );
        move_to(&self.0)?;
        let done = f();
        move_to(&root.join(before))?;
        done
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}
