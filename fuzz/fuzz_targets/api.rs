//! The control API: a whole daemon with the dry-run backend in this process,
//! asked over its real socket. Every request gets an answer that is not 500,
//! and bytes that are no request do not take the daemon down.
#![no_main]

use std::{
    fmt::Write as _,
    io::{Read, Write as _},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Request<'a> {
    Ban {
        subject: &'a str,
        length: Option<&'a str>,
        port: Option<&'a str>,
        reason: Option<&'a str>,
    },
    Body(bool, &'a [u8]),
    Get(u8, &'a str, Option<&'a str>),
    Unban(&'a str, Option<&'a str>, Option<&'a str>),
    Allow(&'a str, &'a str),
    Raw(&'a [u8]),
}

/// The daemon's directory; it ends with the process.
static DAEMON: LazyLock<PathBuf> = LazyLock::new(|| {
    let dir = tempfile::Builder::new()
        .prefix("weir-fuzz-")
        .tempdir()
        .expect("a directory")
        .keep();
    let config = dir.join("weir.toml");
    let path = dir.display();
    let text = format!(
        "interfaces = [\"lo\"]\nbackend = \"dry-run\"\nmax_bans = 64\n\
         state_dir = \"{path}/state\"\nsocket = \"{path}/weir.sock\"\n\
         [jail.sshd]\npaths = [\"{path}/auth.log\"]\n"
    );
    std::fs::write(&config, text).expect("a configuration");
    thread::spawn(move || {
        let ended = weir_daemon::run::run(&config);
        panic!("the daemon ended: {ended:?}");
    });
    dir
});

fn connect() -> UnixStream {
    let begun = Instant::now();
    loop {
        match UnixStream::connect(DAEMON.join("weir.sock")) {
            Ok(stream) => return stream,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(30), "{error}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// JSON's string, any text.
fn string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c < ' ' => write!(quoted, "\\u{:04x}", u32::from(c)).expect("to a string"),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

fn quote(text: &str) -> String {
    let mut quoted = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b':' | b'/' => {
                quoted.push(char::from(byte));
            }
            _ => write!(quoted, "%{byte:02X}").expect("to a string"),
        }
    }
    quoted
}

fn with_body(path: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend(body);
    request
}

fn without_body(method: &str, path: &str) -> Vec<u8> {
    format!("{method} {path} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n").into_bytes()
}

fn bytes(request: &Request<'_>) -> Vec<u8> {
    let optional = |text: &Option<&str>| text.map_or("null".to_owned(), string);
    match request {
        Request::Ban {
            subject,
            length,
            port,
            reason,
        } => {
            let body = format!(
                "{{\"subject\":{},\"for\":{},\"port\":{},\"reason\":{}}}",
                string(subject),
                optional(length),
                optional(port),
                optional(reason)
            );
            with_body("/v1/bans", body.as_bytes())
        }
        Request::Body(bans, body) => with_body(if *bans { "/v1/bans" } else { "/v1/allow" }, body),
        Request::Get(which, text, port) => {
            let port = port
                .map(|port| format!("?port={}", quote(port)))
                .unwrap_or_default();
            let path = match which % 4 {
                0 => format!("/v1/why/{}{port}", quote(text)),
                1 => format!("/v1/bans?limit=5&jail={}", quote(text)),
                2 => format!("/v1/bans?{}", quote(text)),
                _ => "/v1/status".to_owned(),
            };
            without_body("GET", &path)
        }
        Request::Unban(subject, producer, port) => {
            let mut path = format!("/v1/bans/{}?", quote(subject));
            if let Some(producer) = producer {
                write!(path, "producer={}&", quote(producer)).expect("to a string");
            }
            if let Some(port) = port {
                write!(path, "port={}", quote(port)).expect("to a string");
            }
            without_body("DELETE", &path)
        }
        Request::Allow(prefix, note) => {
            let body = format!(
                "{{\"prefix\":{},\"note\":{}}}",
                string(prefix),
                string(note)
            );
            with_body("/v1/allow", body.as_bytes())
        }
        Request::Raw(bytes) => bytes.to_vec(),
    }
}

fuzz_target!(|request: Request<'_>| {
    let mut stream = connect();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a time limit");
    let sent = stream.write_all(&bytes(&request));
    let raw = matches!(request, Request::Raw(_));
    if raw {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut head = [0; 12];
    let answered = stream.read_exact(&mut head);
    if raw {
        return;
    }
    assert!(
        sent.is_ok() && answered.is_ok(),
        "{request:?}: {sent:?} {answered:?}"
    );
    let status = std::str::from_utf8(&head[9..]).expect("a number");
    assert_ne!(status, "500", "{request:?}");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
});
