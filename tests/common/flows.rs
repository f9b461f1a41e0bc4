//! Many TCP connections that are open at once: servers that say who they are, and a client
//! that asks on each of its connections, and notes those that break. Either is one thread.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::{
    net::{TcpSocket, TcpStream},
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::timeout,
};
use weir_netlab::Namespace;

use crate::common::SOON;

/// HTTP, so that an nginx may be one of the servers.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: vip\r\n\r\n";
/// How soon a server sees that it shall stop.
const TICK: Duration = Duration::from_millis(50);
/// Connections that are opened at once: a listener has room for more.
const AT_ONCE: usize = 64;

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Answers requests at port 80 with a number, on any number of connections.
pub struct NumberServer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NumberServer {
    /// Serves IPv4 and IPv6.
    pub fn start(namespace: &Namespace, number: u8) -> Self {
        let listener = namespace.enter(|| TcpListener::bind("[::]:80"));
        let listener = listener.unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{number}");
        let answer: Arc<str> = answer.into();
        let thread = thread::spawn(move || {
            runtime().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                while !stopped.load(Ordering::Relaxed) {
                    if let Ok(Ok((stream, _))) = timeout(TICK, listener.accept()).await {
                        tokio::spawn(serve(stream, answer.clone()));
                    }
                }
            });
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for NumberServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(stream: TcpStream, answer: Arc<str>) -> io::Result<()> {
    let mut request = Vec::new();
    loop {
        read(&stream, &mut request).await?;
        if request.ends_with(b"\r\n\r\n") {
            request.clear();
            write(&stream, answer.as_bytes()).await?;
        }
    }
}

/// What has come, behind what is there; an end is an error.
async fn read(stream: &TcpStream, to: &mut Vec<u8>) -> io::Result<()> {
    loop {
        stream.readable().await?;
        let mut piece = [0; 1024];
        match stream.try_read(&mut piece) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                to.extend_from_slice(&piece[..len]);
                return Ok(());
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => (),
            Err(error) => return Err(error),
        }
    }
}

async fn write(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends a request; the number of two digits in its answer.
async fn ask(stream: &TcpStream) -> io::Result<u8> {
    let asked = async {
        write(stream, REQUEST).await?;
        let mut answer = Vec::new();
        loop {
            read(stream, &mut answer).await?;
            let text = String::from_utf8_lossy(&answer);
            match text.split_once("\r\n\r\n") {
                Some((_, body)) if body.len() == 2 => {
                    return body.parse().map_err(|_| ErrorKind::InvalidData.into());
                }
                _ => (),
            }
        }
    };
    timeout(SOON, asked).await?
}

/// Who is at the ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ends {
    pub client: SocketAddr,
    pub vip: SocketAddr,
    /// The number of the real that has answered.
    pub real: u8,
}

/// Connections of one client, all of them open.
pub struct Flows {
    client: Namespace,
    runtime: Runtime,
    open: Vec<(Ends, Arc<TcpStream>)>,
}

impl Flows {
    pub fn new(client: &Namespace) -> Self {
        Self {
            client: client.clone(),
            runtime: runtime(),
            open: Vec::new(),
        }
    }

    /// Opens so many more, from these addresses to those of their family by turns, and has
    /// each answered.
    #[track_caller]
    pub fn open(&mut self, count: usize, pairs: &[(IpAddr, IpAddr)]) {
        let Self {
            client,
            runtime,
            open,
        } = self;
        let opened = client.enter(|| {
            runtime.block_on(async {
                let mut opened = Vec::new();
                let mut under_way = JoinSet::new();
                let mut pairs = pairs.iter().copied().cycle().take(count);
                loop {
                    while under_way.len() < AT_ONCE
                        && let Some((from, vip)) = pairs.next()
                    {
                        under_way.spawn(connect(from, SocketAddr::new(vip, 80)));
                    }
                    match under_way.join_next().await {
                        Some(flow) => opened.push(flow.expect("it does not panic")?),
                        None => return Ok::<_, io::Error>(opened),
                    }
                }
            })
        });
        open.extend(opened.unwrap().expect("each connection is answered"));
    }

    /// The ends of all open connections.
    pub fn all(&self) -> Vec<Ends> {
        self.open.iter().map(|(ends, _)| *ends).collect()
    }

    /// How many are open, by the number of their real.
    pub fn by_real(&self) -> BTreeMap<u8, usize> {
        count_by_real(&self.all())
    }

    /// Asks once on each connection; returns those that broke, which are open no more.
    pub fn ask_all(&mut self) -> Vec<Ends> {
        let Self { runtime, open, .. } = self;
        let mut broken = Vec::new();
        runtime.block_on(async {
            let mut asked = JoinSet::new();
            for (ends, stream) in open.drain(..) {
                asked.spawn(async move {
                    let answer = ask(&stream).await;
                    (ends, stream, answer)
                });
            }
            while let Some(flow) = asked.join_next().await {
                let (ends, stream, answer) = flow.expect("it does not panic");
                match answer {
                    Ok(real) => {
                        assert_eq!(real, ends.real, "one end of {ends:?} is another");
                        open.push((ends, stream));
                    }
                    Err(_) => broken.push(ends),
                }
            }
        });
        broken.sort_unstable();
        broken
    }

    /// Asks on all connections, again and again, while something happens, and once when it is
    /// done; returns those that broke.
    pub fn during(&mut self, happens: impl FnOnce()) -> Vec<Ends> {
        struct SetAtEnd<'a>(&'a AtomicBool);
        impl Drop for SetAtEnd<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let mut broken = Vec::new();
                loop {
                    let is_last = is_done.load(Ordering::Relaxed);
                    broken.extend(self.ask_all());
                    if is_last {
                        return broken;
                    }
                }
            });
            {
                let _set = SetAtEnd(&is_done);
                happens();
            }
            let mut broken = asking.join().expect("the client does not panic");
            broken.sort_unstable();
            broken
        })
    }
}

/// How many there are, by the number of their real.
pub fn count_by_real(flows: &[Ends]) -> BTreeMap<u8, usize> {
    let mut count = BTreeMap::new();
    flows
        .iter()
        .for_each(|flow| *count.entry(flow.real).or_default() += 1);
    count
}

async fn connect(from: IpAddr, vip: SocketAddr) -> io::Result<(Ends, Arc<TcpStream>)> {
    let socket = match from {
        IpAddr::V4(_) => TcpSocket::new_v4()?,
        IpAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.bind(SocketAddr::new(from, 0))?;
    let stream = timeout(SOON, socket.connect(vip)).await??;
    let client = stream.local_addr()?;
    let real = ask(&stream).await?;
    Ok((Ends { client, vip, real }, Arc::new(stream)))
}
