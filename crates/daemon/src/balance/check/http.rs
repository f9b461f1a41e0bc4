//! An HTTP request: GET of a path, whose answer's status says whether the real lives. By
//! hand, for a check needs a request and a head, no redirect, no body and no TLS, and a
//! client would bring a thread or a runtime for each.

use std::{
    io,
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};

use super::{Outcome, TOO_LATE, Target, tcp::Tcp, text};
use crate::balance::config::HttpConfig;

/// So long may the heads of an answer be.
const MAX_HEAD: usize = 8192;

/// A request that is under way.
pub(super) struct Http {
    tcp: Tcp,
    is_connected: bool,
    /// Bytes of the request that are still to be sent.
    request: Vec<u8>,
    /// Heads of the answer that have come so far.
    heads: Vec<u8>,
    status: Vec<RangeInclusive<u16>>,
}

impl Http {
    pub(super) fn begin(
        config: &HttpConfig,
        target: &Target,
        timeout: Duration,
    ) -> io::Result<Self> {
        let host = match &config.host {
            Some(host) => host.clone(),
            None => target.to.to_string(),
        };
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: weir\r\nAccept: */*\r\nConnection: close\r\n\r\n",
            config.path
        );
        Ok(Self {
            tcp: Tcp::begin(target, timeout)?,
            is_connected: false,
            request: request.into_bytes(),
            heads: Vec::new(),
            status: config.status.clone(),
        })
    }

    /// Goes on with it as far as it can.
    pub(super) fn look(&mut self) -> Outcome {
        if !self.is_connected {
            match self.tcp.look()? {
                Ok(()) => self.is_connected = true,
                failed => return Some(failed),
            }
        }
        match self.exchange() {
            Err(Errno::AGAIN | Errno::INTR) => {
                (Instant::now() >= self.tcp.ends).then(|| Err(TOO_LATE.to_owned()))
            }
            Err(errno) => Some(Err(text(errno))),
            Ok(status) => Some(status.and_then(|status| {
                let is_expected = self.status.iter().any(|range| range.contains(&status));
                match is_expected {
                    true => Ok(()),
                    false => Err(format!("status {status}")),
                }
            })),
        }
    }

    /// Sends and receives until the status is known, or what there is makes no answer.
    fn exchange(&mut self) -> Result<Result<u16, String>, Errno> {
        while !self.request.is_empty() {
            let sent = send(&self.tcp.socket, &self.request, SendFlags::NOSIGNAL)?;
            self.request.drain(..sent);
        }
        loop {
            let mut buffer = [0; 1024];
            let room = buffer.len().min(MAX_HEAD - self.heads.len());
            let (received, _) = recv(&self.tcp.socket, &mut buffer[..room], RecvFlags::empty())?;
            self.heads.extend(&buffer[..received]);
            match status(&self.heads) {
                Ok(Some(status)) => return Ok(Ok(status)),
                Err(why) => return Ok(Err(why.to_owned())),
                Ok(None) if received == 0 => {
                    return Ok(Err("the answer ends within its head".to_owned()));
                }
                Ok(None) if self.heads.len() >= MAX_HEAD => {
                    return Ok(Err(format!("the answer's head is over {MAX_HEAD} bytes")));
                }
                Ok(None) => (),
            }
        }
    }
}

/// The status of an answer that begins so, behind those that only announce it (1xx);
/// `None`: its head is not whole.
///
/// # Errors
/// It is no answer of HTTP/1.
pub fn status(mut heads: &[u8]) -> Result<Option<u16>, &'static str> {
    const NONE: &str = "the answer is no HTTP/1";
    loop {
        let expected = b"HTTP/1.";
        let common = heads.len().min(expected.len());
        if heads[..common] != expected[..common] {
            return Err(NONE);
        }
        let Some(line) = heads.split_inclusive(|byte| *byte == b'\n').next() else {
            return Ok(None);
        };
        let status = match line.get(expected.len()..) {
            Some([b'0' | b'1', b' ', digits @ .., b'\n']) => {
                let ends = |rest: &[u8]| matches!(rest, [] | [b'\r'] | [b' ', ..]);
                let (digits, rest) = digits.split_at_checked(3).ok_or(NONE)?;
                let is_number = matches!(digits[0], b'1'..=b'9') && ends(rest);
                let digits = digits.iter().map(|digit| match digit {
                    b'0'..=b'9' if is_number => Ok(u16::from(digit - b'0')),
                    _ => Err(NONE),
                });
                digits
                    .reduce(|high, low| Ok(high? * 10 + low?))
                    .unwrap_or(Err(NONE))?
            }
            Some([.., b'\n']) => return Err(NONE),
            _ => return Ok(None),
        };
        let Some(end) = end(heads) else {
            return Ok(None);
        };
        if status >= 200 {
            return Ok(Some(status));
        }
        heads = &heads[end..];
    }
}

/// The end of the first head: behind its first empty line.
fn end(heads: &[u8]) -> Option<usize> {
    let mut at = 0;
    for line in heads.split_inclusive(|byte| *byte == b'\n') {
        at += line.len();
        if matches!(line, b"\n" | b"\r\n") {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{SocketAddr, TcpListener, TcpStream},
        thread,
    };

    use super::super::{
        CheckKind,
        tests::{LOOPBACK, bound, outcome, outcome_within},
    };
    use super::*;

    fn kind(host: Option<&str>) -> CheckKind {
        CheckKind::Http(HttpConfig {
            path: "/healthz?a=b".to_owned(),
            host: host.map(str::to_owned),
            status: vec![200..=204, 301..=301],
        })
    }

    /// A server that has one request whole, and goes on as told. Returns the request.
    fn serve(
        addr: SocketAddr,
        answer: impl FnOnce(TcpStream) + Send + 'static,
    ) -> Option<(SocketAddr, thread::JoinHandle<String>)> {
        let listener = bound(addr, TcpListener::bind(addr))?;
        let addr = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            answer(stream);
            String::from_utf8(request).unwrap()
        });
        Some((addr, server))
    }

    #[track_caller]
    fn answered(answer: Vec<u8>) -> Result<(), String> {
        let write = move |mut stream: TcpStream| {
            // Who has heard enough goes.
            let _ = stream.write_all(&answer);
        };
        let (addr, server) = serve(LOOPBACK[0], write).unwrap();
        let outcome = outcome(&kind(None), addr);
        server.join().unwrap();
        outcome
    }

    #[test]
    fn the_status_decides() {
        let long = format!("HTTP/1.1 200 OK\r\nA: {}", "a".repeat(MAX_HEAD));
        let garbage = "\u{0}\u{1b}[2J".repeat(4000);
        let early = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        for (answer, told) in [
            ("HTTP/1.1 200 OK\r\n\r\n", None),
            ("HTTP/1.0 204\r\nA: b\r\n\r\nbody", None),
            ("HTTP/1.1 301 \n\n", None),
            (&format!("{early}HTTP/1.1 200 OK\r\n\r\n"), None),
            (
                &format!("{early}HTTP/1.1 503 No\r\n\r\n"),
                Some("status 503"),
            ),
            ("HTTP/1.1 503 \u{1b}[2J\r\n\r\n", Some("status 503")),
            (
                "HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n",
                Some("status 302"),
            ),
            (
                "HTTP/1.1 200 OK\r\nA: b\r\n",
                Some("the answer ends within its head"),
            ),
            ("HTTP/1.1 200", Some("the answer ends within its head")),
            ("", Some("the answer ends within its head")),
            (&long, Some("the answer's head is over 8192 bytes")),
            (
                &early.repeat(300),
                Some("the answer's head is over 8192 bytes"),
            ),
            (&garbage, Some("the answer is no HTTP/1")),
            ("HTTP/2 200 OK\r\n\r\n", Some("the answer is no HTTP/1")),
            ("HTTP/1.1 2000 OK\r\n\r\n", Some("the answer is no HTTP/1")),
            ("HTTP/1.1 20\r\n\r\n", Some("the answer is no HTTP/1")),
            ("HTTP/1.1 099 OK\r\n\r\n", Some("the answer is no HTTP/1")),
            ("HTTP/1.1 +20 OK\r\n\r\n", Some("the answer is no HTTP/1")),
            ("HTTP/1.1\n\n", Some("the answer is no HTTP/1")),
            ("SSH-2.0-OpenSSH_9.2\r\n", Some("the answer is no HTTP/1")),
        ] {
            let expected = match told {
                None => Ok(()),
                Some(why) => Err(format!("http: {why}")),
            };
            assert_eq!(answered(answer.as_bytes().to_vec()), expected, "{answer:?}");
        }
    }

    /// Whatever comes: an answer, or none, and the same when it comes in pieces.
    #[test]
    fn no_bytes_are_too_strange() {
        let whole = b"HTTP/1.1 100 A\r\n\r\nHTTP/1.0 204 B\r\nC: D\r\n\r\n";
        for cut in 0..whole.len() {
            assert_eq!(status(&whole[..cut]), Ok(None), "{cut}");
            for byte in 0..=255 {
                let mut changed = whole.to_vec();
                changed[cut] = byte;
                if let Ok(Some(status)) = status(&changed) {
                    assert!((100..1000).contains(&status));
                }
            }
        }
        assert_eq!(status(whole), Ok(Some(204)));
    }

    #[test]
    fn the_request_names_host_and_path_in_each_family() {
        for addr in LOOPBACK {
            for host in [None, Some("www.example.org")] {
                let answer = |mut stream: TcpStream| {
                    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
                };
                let Some((addr, server)) = serve(addr, answer) else {
                    continue;
                };
                assert_eq!(outcome(&kind(host), addr), Ok(()));
                let host = host.map_or(addr.to_string(), str::to_owned);
                let expected = format!("GET /healthz?a=b HTTP/1.1\r\nHost: {host}\r\n");
                let request = server.join().unwrap();
                assert!(request.starts_with(&expected), "{request}");
            }
        }
    }

    #[test]
    fn who_drips_or_is_silent_is_too_late() {
        let drip = |mut stream: TcpStream| {
            while stream.write_all(b"H").is_ok() {
                thread::yield_now();
            }
        };
        let silent = |mut stream: TcpStream| {
            let _ = stream.read(&mut [0]);
        };
        let slow = |mut stream: TcpStream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\nA: ").unwrap();
            let _ = stream.read(&mut [0]);
        };
        let time = Duration::from_millis(50);
        for server in [serve(LOOPBACK[0], silent), serve(LOOPBACK[0], slow)] {
            let (addr, server) = server.unwrap();
            let error = outcome_within(&kind(None), addr, time).unwrap_err();
            assert_eq!(error, "http: no answer in time");
            server.join().unwrap();
        }
        let (addr, server) = serve(LOOPBACK[0], drip).unwrap();
        let error = outcome(&kind(None), addr).unwrap_err();
        assert_eq!(error, "http: the answer is no HTTP/1");
        server.join().unwrap();
        // Nobody listens.
        let error = outcome(&kind(None), addr).unwrap_err();
        assert!(error.starts_with("http: Connection refused"), "{error}");
    }
}
