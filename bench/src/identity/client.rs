//! The program that is judged, a process of its own in the control group: it connects,
//! sends and asks, and says in one line what it reached.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};

use super::server::{ACCEPT, DISCARD, ECHO};
use crate::{cores, report::percentile};

/// Where all of the client runs; the server has the other one.
const CLIENT_CORE: usize = 1;

/// A question as it is asked of a name server, which programs that read DNS understand:
/// `www.weir-bench.example`, A.
const QUESTION: &[u8; 40] =
    b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x03www\x0aweir-bench\x07example\0\0\x01\0\x01";

/// What the client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Load {
    /// Streams that send all the time, 128 KiB a call.
    Stream,
    /// Connections one behind the other, each closed at once.
    Connect,
    /// Datagrams one behind the other, each answered, as questions to a name server.
    Query,
    /// Connections that stay; a byte on each of them whenever a line comes in.
    Sockets,
}

/// How the client is started.
#[derive(clap::Args)]
pub struct ClientArgs {
    /// What it does
    #[arg(long, value_enum)]
    load: Load,
    /// The server's address
    #[arg(long)]
    to: IpAddr,
    /// Streams at a time, or connections that stay
    #[arg(long, default_value_t = 1)]
    number: usize,
    /// How long it is measured
    #[arg(long, default_value_t = 1000)]
    millis: u64,
    /// Change the mappings before each connection, so that it has to be found out anew
    /// which program this is
    #[arg(long)]
    remap: bool,
    /// Congestion control that sends when it may, and not by a timer for each packet
    #[arg(long)]
    unpaced: bool,
}

/// What the client reached.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Reached {
    /// Bytes, connections or answers a second.
    pub rate: f64,
    /// What connect took, in microseconds; of half of the connections less.
    pub connect_us: f64,
}

/// Runs and prints what was reached.
pub fn run(args: &ClientArgs) -> anyhow::Result<()> {
    cores::pin(CLIENT_CORE);
    let time = Duration::from_millis(args.millis);
    let reached = match args.load {
        Load::Stream => streams(args, time)?,
        Load::Connect => connections(args, time)?,
        Load::Query => queries(args, time)?,
        Load::Sockets => return sockets(args),
    };
    println!("{}", serde_json::to_string(&reached)?);
    Ok(())
}

/// Connects; `unpaced`: with Reno, which is in each kernel.
fn connect(to: SocketAddr, unpaced: bool) -> anyhow::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    if unpaced {
        socket.set_tcp_congestion(b"reno")?;
    }
    socket.connect(&to.into())?;
    Ok(socket.into())
}

fn streams(args: &ClientArgs, time: Duration) -> anyhow::Result<Reached> {
    let begin = Arc::new(Barrier::new(args.number + 1));
    let to = SocketAddr::new(args.to, DISCARD);
    let threads: Vec<_> = (0..args.number)
        .map(|_| {
            let (begin, unpaced) = (begin.clone(), args.unpaced);
            thread::spawn(move || -> anyhow::Result<u64> {
                let connected = connect(to, unpaced);
                begin.wait();
                let mut stream = connected?;
                let bytes = vec![7_u8; 128 << 10];
                let until = Instant::now() + time;
                let mut sent = 0;
                while Instant::now() < until {
                    sent += stream.write(&bytes)? as u64;
                }
                Ok(sent)
            })
        })
        .collect();
    begin.wait();
    let begun = Instant::now();
    let mut bytes = 0;
    for thread in threads {
        bytes += thread.join().expect("a stream does not panic")?;
    }
    Ok(Reached {
        rate: bytes as f64 / begun.elapsed().as_secs_f64(),
        connect_us: 0.0,
    })
}

/// Memory that malloc maps for itself, and gives back at once: the mappings have changed.
fn remap() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(64 << 20)));
}

fn connections(args: &ClientArgs, time: Duration) -> anyhow::Result<Reached> {
    let to = SocketAddr::new(args.to, ACCEPT);
    let mut took = Vec::with_capacity(100_000);
    // Not to be counted: it is found out who this is.
    for _ in 0..20 {
        drop(TcpStream::connect(to)?);
        thread::sleep(Duration::from_millis(2));
    }
    let begun = Instant::now();
    while begun.elapsed() < time {
        if args.remap {
            remap();
        }
        let before = Instant::now();
        let stream = TcpStream::connect(to)?;
        took.push(before.elapsed().as_secs_f64() * 1e6);
        drop(stream);
    }
    Ok(Reached {
        rate: took.len() as f64 / begun.elapsed().as_secs_f64(),
        connect_us: percentile(&took, 0.5),
    })
}

fn queries(args: &ClientArgs, time: Duration) -> anyhow::Result<Reached> {
    let any: IpAddr = match args.to {
        IpAddr::V4(_) => [0, 0, 0, 0].into(),
        IpAddr::V6(_) => [0_u16; 8].into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    let to = SocketAddr::new(args.to, ECHO);
    let mut answer = [0; 512];
    let ask = |answer: &mut [u8]| -> anyhow::Result<()> {
        socket.send_to(QUESTION, to)?;
        let (length, _) = socket.recv_from(answer).context("an answer")?;
        ensure!(length == QUESTION.len(), "an answer of {length} bytes");
        Ok(())
    };
    for _ in 0..20 {
        ask(&mut answer)?;
        thread::sleep(Duration::from_millis(2));
    }
    let (begun, mut answers) = (Instant::now(), 0_u64);
    while begun.elapsed() < time {
        ask(&mut answer)?;
        answers += 1;
    }
    Ok(Reached {
        rate: answers as f64 / begun.elapsed().as_secs_f64(),
        connect_us: 0.0,
    })
}

/// Says `ready`, and for each line that comes in how many milliseconds a byte on every
/// connection took.
fn sockets(args: &ClientArgs) -> anyhow::Result<()> {
    let to = SocketAddr::new(args.to, DISCARD);
    let streams: std::io::Result<Vec<_>> =
        (0..args.number).map(|_| TcpStream::connect(to)).collect();
    let mut streams = streams.context("connect")?;
    println!("ready");
    let mut byte = [0];
    while std::io::stdin().read(&mut byte)? > 0 {
        let begun = Instant::now();
        for stream in &mut streams {
            stream.write_all(b"x")?;
        }
        println!("{}", begun.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(())
}
