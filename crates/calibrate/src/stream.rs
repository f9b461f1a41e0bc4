//! A bulk TCP stream between two namespaces, with sockets of our own, and the
//! processor time that it takes. One thread is both ends: packets of a veth pair
//! are handled in the context of who sends them, so all the work is that thread's
//! (and ksoftirqd's beside it), and does not depend on when a scheduler lets two
//! ends have their turns.

use std::{
    fs,
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::LazyLock,
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    time::{ClockId, clock_gettime},
};
use weir_netlab::Namespace;

use super::{CalibrateError, processor::pin};

/// For a connection that a hook does not let through.
const PATIENCE: Duration = Duration::from_secs(3);
const CHUNK: usize = 128 << 10;
/// Bytes sent over each family: a connection's first packets, which are small, weigh
/// little.
const BYTES: usize = 24 << 20;

/// A client and a server.
pub(super) struct Ends {
    client: Namespace,
    server: Namespace,
    /// The server's, one of each family.
    addrs: [IpAddr; 2],
}

impl Ends {
    pub(super) fn new(client: Namespace, server: Namespace, addrs: [IpAddr; 2]) -> Self {
        Self {
            client,
            server,
            addrs,
        }
    }

    /// What a core carries when it does all that both ends have to, Gbit/s, half
    /// of it by each family.
    pub(super) fn gbit(&self) -> Result<f64, CalibrateError> {
        let mut took = Duration::ZERO;
        for addr in self.addrs {
            let (client, server) = self.connect(addr)?;
            let (spent, done) = thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    pin(0);
                    spent(|| carry(client, server))
                });
                thread.join().expect("no panic in here")
            });
            done.map_err(fail())?;
            took += spent;
        }
        let bits = (self.addrs.len() * BYTES * 8) as f64;
        Ok(bits / took.as_secs_f64() / 1e9)
    }

    fn connect(&self, addr: IpAddr) -> Result<(TcpStream, TcpStream), CalibrateError> {
        let at = SocketAddr::new(addr, 0);
        let listener = self
            .server
            .enter(|| TcpListener::bind(at))?
            .map_err(fail())?;
        let at = listener.local_addr().map_err(fail())?;
        let client = self
            .client
            .enter(|| TcpStream::connect_timeout(&at, PATIENCE))?
            .map_err(fail())?;
        let (server, _) = listener.accept().map_err(fail())?;
        for stream in [&client, &server] {
            stream.set_nonblocking(true).map_err(fail())?;
        }
        Ok((client, server))
    }
}

fn fail() -> impl FnOnce(io::Error) -> CalibrateError {
    CalibrateError::system("stream through a veth pair")
}

/// Writes as much as the connection takes, reads what came, and so on.
fn carry(mut client: TcpStream, mut server: TcpStream) -> io::Result<()> {
    let (bytes, mut buffer) = (vec![0x77; CHUNK], vec![0; CHUNK]);
    let (mut sent, mut received) = (0, 0);
    while received < BYTES {
        let before = sent + received;
        while sent < BYTES {
            match unless_blocked(client.write(&bytes[..CHUNK.min(BYTES - sent)]))? {
                Some(len) => sent += len,
                None => break,
            }
        }
        while received < BYTES {
            match unless_blocked(server.read(&mut buffer))? {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(len) => received += len,
                None => break,
            }
        }
        if sent + received == before {
            wait(&client, &server, sent < BYTES)?;
        }
    }
    Ok(())
}

fn unless_blocked(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Ok(len) => Ok(Some(len)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e),
    }
}

/// Until one of the two can go on: ksoftirqd has the packets.
fn wait(client: &TcpStream, server: &TcpStream, more: bool) -> io::Result<()> {
    let mut ends = [
        PollFd::new(server, PollFlags::IN),
        PollFd::new(client, PollFlags::OUT),
    ];
    let ends = if more { &mut ends[..] } else { &mut ends[..1] };
    let patience = Timespec {
        tv_sec: PATIENCE.as_secs() as _,
        tv_nsec: 0,
    };
    match poll(ends, Some(&patience))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

/// Processor time, which unlike the clock on the wall does not count what
/// other programs do meanwhile: of the calling thread, and of ksoftirqd, which
/// helps out when packets are many.
pub(super) fn spent<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let (kernel, (own, done)) = of_kernel(|| thread_time(work));
    (own + kernel, done)
}

fn thread_time<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let before = now();
    let done = work();
    (now().saturating_sub(before), done)
}

fn of_kernel<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let before = kernel_threads();
    let done = work();
    (kernel_threads().saturating_sub(before), done)
}

/// Processor time of all ksoftirqd threads so far.
pub(super) fn kernel_threads() -> Duration {
    static SCHEDSTAT: LazyLock<Vec<PathBuf>> = LazyLock::new(|| {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let is_one = |dir: &PathBuf| {
            fs::read_to_string(dir.join("comm")).is_ok_and(|name| name.starts_with("ksoftirqd/"))
        };
        let dirs = processes.map(|entry| entry.path()).filter(is_one);
        dirs.map(|dir| dir.join("schedstat")).collect()
    });
    SCHEDSTAT.iter().map(|file| of_thread(file)).sum()
}

/// The first number of schedstat: nanoseconds on a processor.
fn of_thread(file: &Path) -> Duration {
    let text = fs::read_to_string(file).unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|n| n.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}
