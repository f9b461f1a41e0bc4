//! What the client talks to, outside of the control group: it throws away, accepts, and
//! sends back.

use std::{
    io::Read,
    net::{IpAddr, TcpListener, UdpSocket},
    thread,
};

use weir_netlab::Namespace;

use crate::cores;

/// Reads and throws away.
pub const DISCARD: u16 = 9;
/// Accepts, and closes when the client does.
pub const ACCEPT: u16 = 10;
/// Sends back what it gets.
pub const ECHO: u16 = 53;

/// What answers; the client has the other one. On one core the client, which connects again
/// and again, would leave the server no time to accept until the backlog is full.
const SERVER_CORE: usize = 0;

/// Connections that wait to be accepted: as many as Linux lets.
const BACKLOG: i32 = 4096;

/// Serves at an address of a namespace until this process ends.
pub fn start(space: &Namespace, addr: IpAddr) -> anyhow::Result<()> {
    let (discard, accept, echo) = space.enter(|| -> std::io::Result<_> {
        Ok((
            TcpListener::bind((addr, DISCARD))?,
            TcpListener::bind((addr, ACCEPT))?,
            UdpSocket::bind((addr, ECHO))?,
        ))
    })??;
    // A connection more than the backlog holds takes a second, and std asks for 128.
    for listener in [&discard, &accept] {
        rustix::net::listen(listener, BACKLOG)?;
    }
    thread::spawn(move || {
        cores::pin(SERVER_CORE);
        for stream in discard.incoming().flatten() {
            let small = thread::Builder::new().stack_size(64 << 10);
            // Where there is no thread to be had, the client sees it.
            let _ = small.spawn(move || {
                let (mut stream, mut buffer) = (stream, vec![0; 16 << 10]);
                while stream.read(&mut buffer).is_ok_and(|read| read > 0) {}
            });
        }
    });
    thread::spawn(move || {
        cores::pin(SERVER_CORE);
        accept.incoming().for_each(drop);
    });
    thread::spawn(move || {
        cores::pin(SERVER_CORE);
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = echo.recv_from(&mut buffer) {
            let _ = echo.send_to(&buffer[..length], from);
        }
    });
    Ok(())
}
