//! `weir ring syslog`: sockets and threads. What becomes of a message is
//! `message`'s.

use std::{
    fs, io,
    net::{SocketAddr, UdpSocket},
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::UnixDatagram,
    },
    path::{Path, PathBuf},
    str::FromStr,
    sync::mpsc,
    thread,
};

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use weir_ring::{WriteError, Writer};

use super::{
    message::Messages,
    segment::{Segment, parse_mode},
};
use crate::cli::ExitAnswer;

/// The longest datagram, in bytes.
const LONGEST: usize = 64 << 10;

/// Receive syslog messages and write them to a ring
///
/// RFC 3164 and RFC 5424, one message per datagram. Records are lines as a
/// syslog daemon writes them to a file, so that filters for files read them;
/// control characters are escaped, so that no message becomes two lines.
/// Each socket has a segment of its own. Never waits for readers. Whoever can
/// send to a socket can have anybody banned: listen on loopback or a socket
/// with permissions, or let only known senders through.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    segment: Segment,
    /// Where to listen: udp:ADDR:PORT, udp:[ADDR]:PORT or unix:PATH; may be repeated
    #[arg(long, required = true, value_name = "SOCKET")]
    listen: Vec<Listen>,
    /// Permissions of unix sockets
    #[arg(long, value_name = "OCTAL", value_parser = parse_mode, default_value = "660")]
    socket_mode: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Listen {
    Udp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let listen = match text.split_once(':') {
            Some(("udp", addr)) => addr.parse().ok().map(Self::Udp),
            Some(("unix", path)) if path.starts_with('/') => Some(Self::Unix(path.into())),
            _ => None,
        };
        listen.ok_or_else(|| {
            "allowed: udp:127.0.0.1:514, udp:[::1]:514, unix:/run/weir/log.sock".to_owned()
        })
    }
}

enum Socket {
    Udp(UdpSocket),
    Unix(UnixDatagram),
}

impl Socket {
    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Udp(socket) => socket.recv(into),
            Self::Unix(socket) => socket.recv(into),
        }
    }
}

pub fn run(args: &Args) -> anyhow::Result<ExitAnswer> {
    if args.segment.is_named() && args.listen.len() > 1 {
        bail!("--name is for one --listen: each socket has a segment of its own");
    }
    let mut parts = Vec::new();
    for listen in &args.listen {
        let socket = match listen {
            Listen::Udp(addr) => Socket::Udp(
                UdpSocket::bind(addr).with_context(|| format!("cannot listen on udp:{addr}"))?,
            ),
            Listen::Unix(path) => Socket::Unix(bind(path, args.socket_mode)?),
        };
        parts.push((socket, args.segment.create("syslog")?));
    }
    let (failed, failure) = mpsc::channel();
    for (socket, writer) in parts {
        let failed = failed.clone();
        thread::Builder::new()
            .name("weir-syslog".into())
            .spawn(move || {
                let error = receive(&socket, writer);
                // Nobody waits any more if another one has failed.
                let _ = failed.send(error);
            })
            .context("cannot start a thread")?;
    }
    Err(failure.recv().context("all threads are gone")?)
}

/// Binds in the place of a socket that nobody listens on.
fn bind(path: &Path, mode: u32) -> anyhow::Result<UnixDatagram> {
    let what = || format!("cannot listen on unix:{}", path.display());
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket {
        let probe = UnixDatagram::unbound().with_context(what)?;
        match probe.connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).with_context(what)?;
            }
            _ => bail!("{}: somebody listens there", what()),
        }
    }
    let socket = UnixDatagram::bind(path).with_context(what)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).with_context(what)?;
    Ok(socket)
}

/// Receives datagrams until something fails.
fn receive(socket: &Socket, mut writer: Writer) -> anyhow::Error {
    let mut datagram = vec![0; LONGEST];
    let mut messages = Messages::new();
    loop {
        let length = match socket.receive(&mut datagram) {
            Ok(length) => length,
            // An ICMP error about somebody's earlier message.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionRefused
                ) =>
            {
                continue;
            }
            Err(error) => return anyhow::Error::new(error).context("cannot receive"),
        };
        let Some(line) = messages.line(&datagram[..length], Timestamp::now()) else {
            continue;
        };
        let line = &line[..line.len().min(writer.max_record())];
        // The ring counts what it drops.
        if writer.write(line) == Err(WriteError::Gone) {
            return anyhow::anyhow!("the ring's segment was cut short by somebody");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_named_by_kind() {
        let listen = |text: &str| text.parse::<Listen>();
        let udp = |addr: &str| Ok(Listen::Udp(addr.parse().unwrap()));
        assert_eq!(listen("udp:127.0.0.1:514"), udp("127.0.0.1:514"));
        assert_eq!(listen("udp:[::1]:514"), udp("[::1]:514"));
        assert_eq!(listen("unix:/run/a:b"), Ok(Listen::Unix("/run/a:b".into())));
        for bad in [
            "",
            "udp",
            "udp:",
            "udp:514",
            "udp:localhost:514",
            "unix:log",
            "tcp:127.0.0.1:1",
        ] {
            assert!(listen(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_socket_that_nobody_listens_on_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let first = bind(&path, 0o660).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let error = bind(&path, 0o660).unwrap_err().to_string();
        assert!(error.contains("somebody listens"), "{error}");
        drop(first);
        bind(&path, 0o600).unwrap();
        // Anything else is left alone.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        assert!(bind(&path, 0o660).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }
}
