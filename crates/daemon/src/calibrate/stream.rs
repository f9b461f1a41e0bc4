//! A bulk TCP stream between two namespaces, with sockets of our own, and the
//! processor time that it takes: that of both ends' threads, in whose context
//! the packets of a veth pair are handled, and of ksoftirqd beside them.

use std::{
    fs,
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};
use weir_lab::Namespace;

use super::{CalibrateError, lane::pin};

/// For a connection that a hook does not let through.
const PATIENCE: Duration = Duration::from_secs(3);
const CHUNK: usize = 128 << 10;
const ENOUGH: usize = 8 << 20;

/// What went through in which time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    bytes: u64,
    took: Duration,
    cpu: Duration,
}

impl Flow {
    pub(super) fn gbit(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.took.as_secs_f64() / 1e9
    }

    /// Seconds for a gigabyte.
    pub(super) fn cpu_per_gb(&self) -> f64 {
        self.cpu.as_secs_f64() / (self.bytes as f64 / 1e9)
    }
}

/// A client and a server.
pub(super) struct Ends {
    client: Namespace,
    server: Namespace,
    /// The server's, one of each family.
    addrs: [IpAddr; 2],
    cpu: Processors,
}

impl Ends {
    pub(super) fn new(client: Namespace, server: Namespace, addrs: [IpAddr; 2]) -> Self {
        Self {
            client,
            server,
            addrs,
            cpu: Processors::new(),
        }
    }

    /// Streams for so long, in turn by one family and the other.
    pub(super) fn run(&self, round: usize, time: Duration) -> Result<Flow, CalibrateError> {
        let fail = || CalibrateError::system("stream through a veth pair");
        let at = SocketAddr::new(self.addrs[round % 2], 0);
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
            stream
                .set_read_timeout(Some(PATIENCE))
                .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
                .map_err(fail())?;
        }
        let begun = Instant::now();
        let (kernel, (sent, received)) = self.cpu.kernel(|| {
            thread::scope(|scope| {
                let sender = scope.spawn(|| on_cpu(0, || send(client, time)));
                let receiver = scope.spawn(|| on_cpu(1, || receive(server)));
                (sender.join(), receiver.join())
            })
        });
        let took = begun.elapsed();
        let (sending, sent) = sent.expect("no panic in here");
        let (receiving, received) = received.expect("no panic in here");
        sent.map_err(fail())?;
        let bytes = received.map_err(fail())?;
        if bytes == 0 {
            let why = "no byte of a TCP stream came through";
            return Err(CalibrateError::Implausible(why.to_owned()));
        }
        Ok(Flow {
            bytes,
            took,
            cpu: sending + receiving + kernel,
        })
    }
}

/// A thread's answer, and its processor time for it.
fn on_cpu<T>(which: usize, work: impl FnOnce() -> T) -> (Duration, T) {
    pin(which);
    thread_time(work)
}

/// On a busy host the time may be over before this thread had its turn: it
/// goes on until enough was sent to divide by.
fn send(mut stream: TcpStream, time: Duration) -> io::Result<()> {
    let bytes = vec![0x77; CHUNK];
    let begun = Instant::now();
    let mut sent = 0;
    while begun.elapsed() < time || (sent < ENOUGH && begun.elapsed() < PATIENCE) {
        stream.write_all(&bytes)?;
        sent += CHUNK;
    }
    stream.shutdown(Shutdown::Write)
}

fn receive(mut stream: TcpStream) -> io::Result<u64> {
    let mut bytes = vec![0; CHUNK];
    let mut received = 0;
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(received),
            len => received += len as u64,
        }
    }
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

/// Processor time, which unlike the clock on the wall does not count what
/// other programs do meanwhile.
pub(super) struct Processors {
    /// schedstat of each ksoftirqd, which helps out when packets are many.
    kernel_threads: Vec<PathBuf>,
}

impl Processors {
    pub(super) fn new() -> Self {
        let kernel_threads = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|dir| {
                fs::read_to_string(dir.join("comm"))
                    .is_ok_and(|name| name.starts_with("ksoftirqd/"))
            })
            .map(|dir| dir.join("schedstat"))
            .collect();
        Self { kernel_threads }
    }

    /// Of the kernel's own threads while something is done.
    fn kernel<T>(&self, work: impl FnOnce() -> T) -> (Duration, T) {
        let now = || -> Duration { self.kernel_threads.iter().map(|file| of_thread(file)).sum() };
        let before = now();
        let done = work();
        (now().saturating_sub(before), done)
    }

    /// Of the calling thread and of the kernel's.
    pub(super) fn spent<T>(&self, work: impl FnOnce() -> T) -> (Duration, T) {
        let (kernel, (own, done)) = self.kernel(|| thread_time(work));
        (own + kernel, done)
    }
}

/// The first number of schedstat: nanoseconds on a processor.
fn of_thread(file: &Path) -> Duration {
    let text = fs::read_to_string(file).unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|n| n.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}
