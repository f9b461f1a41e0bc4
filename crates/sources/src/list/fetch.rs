//! Fetches a list by http or https, on the caller's thread: conditional when
//! there is something to compare with, and bounded in time, bytes (unpacked)
//! and redirects whatever the server does. What the bytes mean is `grammar`'s.

use std::{
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::Duration,
};

use flate2::read::MultiGzDecoder;
use rustix::fs::OFlags;
use rustls::{CertificateError, Error as TlsError};
use serde::{Deserialize, Serialize};
use ureq::{
    Agent, Error, Timeout,
    http::{HeaderMap, Response, StatusCode, header},
    tls::{RootCerts, TlsConfig},
};

use super::ListError;
use crate::certificates;

/// The times that a server may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// The longest time for looking the server's name up, and for a connection to it.
    pub connect: Duration,
    /// The longest wait for the next bytes.
    pub read: Duration,
    /// The longest time for all of it, redirects included.
    pub total: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            read: Duration::from_secs(30),
            total: Duration::from_secs(300),
        }
    }
}

/// The marks of a version by which a server tells whether it has a newer one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validators {
    /// The version's entity tag.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub etag: Option<String>,
    /// The version's time, as the server wrote it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_modified: Option<String>,
}

/// A request for a list.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The URL to fetch.
    pub url: &'a str,
    /// A file with the certificates that the server is trusted by, in place of the
    /// system's.
    pub ca_file: Option<&'a Path>,
    /// The most bytes of an answer: a longer one is refused.
    pub max_bytes: usize,
    /// The version that is there already.
    pub known: Option<&'a Validators>,
    /// A key, and the name of the header that carries it. Who sends one
    /// follows no redirect.
    pub key: Option<(&'a str, &'a str)>,
    /// The times that the server may take.
    pub patience: Patience,
}

/// The answer of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchOutcome {
    /// The list has not changed.
    Unchanged,
    /// The whole list.
    Changed {
        /// The body, with its compression undone.
        bytes: Vec<u8>,
        /// The marks to ask with next time.
        validators: Validators,
    },
}

/// The most redirects that are followed.
const REDIRECTS: u32 = 5;
/// The longest validator that is sent back.
const MAX_VALIDATOR: usize = 512;
/// A certificate file is not larger.
const MAX_CA_FILE: usize = 4 << 20;

/// Whether it is a URL that [`get`] can ask. Not one with a user and a password: they would
/// not be sent.
pub fn is_url(text: &str) -> bool {
    let Ok(uri) = text.parse::<ureq::http::Uri>() else {
        return false;
    };
    matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.host().is_some_and(|host| !host.is_empty())
        && uri
            .authority()
            .is_some_and(|who| !who.as_str().contains('@'))
}

/// Fetches a list within the request's limits.
pub fn get(request: &Request<'_>) -> Result<FetchOutcome, ListError> {
    if !is_url(request.url) {
        return Err(ListError::Url(request.url.to_owned()));
    }
    let redirects = if request.key.is_some() { 0 } else { REDIRECTS };
    let patience = &request.patience;
    let agent: Agent = Agent::config_builder()
        .http_status_as_error(false)
        // Whoever asked safely is not sent on to somebody unknown.
        .https_only(request.url.starts_with("https"))
        .max_redirects(redirects)
        .max_redirects_will_error(redirects > 0)
        .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")))
        .accept("*/*")
        .timeout_resolve(Some(patience.connect))
        .timeout_connect(Some(patience.connect))
        .timeout_recv_response(Some(patience.read))
        .timeout_per_read(Some(patience.read))
        .timeout_global(Some(patience.total))
        .tls_config(TlsConfig::builder().root_certs(roots(request)?).build())
        .build()
        .into();
    let mut ask = agent.get(request.url);
    if let Some(known) = request.known {
        if let Some(etag) = &known.etag {
            ask = ask.header(header::IF_NONE_MATCH, etag);
        }
        if let Some(since) = &known.last_modified {
            ask = ask.header(header::IF_MODIFIED_SINCE, since);
        }
    }
    if let Some((name, value)) = request.key {
        ask = ask.header(name, value);
    }
    let mut response = ask.call().map_err(|error| failure(error, 0))?;
    match response.status() {
        StatusCode::OK => {
            let bytes = body(&mut response, request.max_bytes)?;
            let bytes = unpacked(bytes, request.max_bytes)?;
            Ok(FetchOutcome::Changed {
                bytes,
                validators: validators(response.headers()),
            })
        }
        StatusCode::NOT_MODIFIED if request.known.is_some() => Ok(FetchOutcome::Unchanged),
        StatusCode::NOT_MODIFIED => Err(ListError::Unasked),
        status => Err(ListError::Status(status.as_u16())),
    }
}

/// The certificates that the server is trusted by.
fn roots(request: &Request<'_>) -> Result<RootCerts, ListError> {
    if !request.url.starts_with("https") {
        return Ok(RootCerts::WebPki);
    }
    let Some(file) = request.ca_file else {
        return Ok(certificates::of_system());
    };
    let pem = read_file(file, MAX_CA_FILE)?;
    certificates::of(&pem)
        .map_err(|why| ListError::Certificate(format!("{}: {why}", file.display())))
}

/// Reads a file of the administrator's, bounded. Not a FIFO or a device: the
/// reader would wait for a writer, for good.
pub fn read_file(path: &Path, max_bytes: usize) -> Result<Vec<u8>, ListError> {
    let failed = |error: io::Error| ListError::file("read", path, &error);
    let file = std::fs::File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path)
        .map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is not a regular file")));
    }
    let mut bytes = Vec::new();
    let most = (max_bytes as u64).saturating_add(1);
    file.take(most).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > max_bytes {
        return Err(ListError::TooLarge(max_bytes));
    }
    Ok(bytes)
}

fn body(response: &mut Response<ureq::Body>, max_bytes: usize) -> Result<Vec<u8>, ListError> {
    let promised = response.body().content_length().unwrap_or(0);
    if promised > max_bytes as u64 {
        return Err(ListError::TooLarge(max_bytes));
    }
    let mut reader = response.body_mut().as_reader();
    let mut bytes = Vec::with_capacity(promised as usize);
    let mut piece = vec![0; 64 * 1024];
    loop {
        match reader.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(len) if bytes.len() + len > max_bytes => {
                return Err(ListError::TooLarge(max_bytes));
            }
            Ok(len) => bytes.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failure(error.into(), bytes.len())),
        }
    }
}

/// A list that is published as a gzip file.
pub fn unpacked(bytes: Vec<u8>, max_bytes: usize) -> Result<Vec<u8>, ListError> {
    if !bytes.starts_with(b"\x1f\x8b") {
        return Ok(bytes);
    }
    let mut plain = Vec::new();
    let most = (max_bytes as u64).saturating_add(1);
    MultiGzDecoder::new(bytes.as_slice())
        .take(most)
        .read_to_end(&mut plain)
        .map_err(|error| ListError::Packed(error.to_string()))?;
    if plain.len() > max_bytes {
        return Err(ListError::TooLarge(max_bytes));
    }
    Ok(plain)
}

fn validators(headers: &HeaderMap) -> Validators {
    let text = |name| {
        let value = headers.get(name)?.to_str().ok()?;
        (value.len() <= MAX_VALIDATOR).then(|| value.to_owned())
    };
    Validators {
        etag: text(header::ETAG),
        last_modified: text(header::LAST_MODIFIED),
    }
}

/// An error in words that say what to do; `got` bytes had come before it.
fn failure(error: Error, got: usize) -> ListError {
    let timeout = |what: Timeout| {
        ListError::Timeout(match what {
            Timeout::Resolve => "its name cannot be resolved".to_owned(),
            Timeout::Connect => "no connection".to_owned(),
            Timeout::Global | Timeout::RecvBody | Timeout::PerRead if got > 0 => {
                format!("after {got} bytes")
            }
            other => other.to_string(),
        })
    };
    match error {
        Error::Timeout(what) => timeout(what),
        Error::TooManyRedirects | Error::RequireHttpsOnly(_) | Error::RedirectFailed => {
            ListError::Redirects(REDIRECTS)
        }
        Error::HostNotFound => ListError::Network("there is no host of this name".to_owned()),
        Error::BadUri(url) => ListError::Url(url),
        Error::Rustls(error) => certificate(&error),
        Error::Decompress(_, error) => {
            io_failure(&error, got).unwrap_or_else(|| ListError::Packed(error.to_string()))
        }
        Error::Io(error) => {
            io_failure(&error, got).unwrap_or_else(|| ListError::Network(error.to_string()))
        }
        other => ListError::Network(other.to_string()),
    }
}

/// The errors behind a system error that have words of their own.
fn io_failure(error: &io::Error, got: usize) -> Option<ListError> {
    let mut inner = error
        .get_ref()
        .map(|e| e as &(dyn std::error::Error + 'static));
    while let Some(cause) = inner {
        if let Some(tls) = cause.downcast_ref::<TlsError>() {
            return Some(certificate(tls));
        }
        if let Some(Error::Timeout(what)) = cause.downcast_ref::<Error>() {
            return Some(failure(Error::Timeout(*what), got));
        }
        inner = cause.source();
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset if got > 0 => {
            Some(ListError::Cut(got))
        }
        io::ErrorKind::UnexpectedEof => Some(ListError::Network(
            "the server closed the connection without an answer".to_owned(),
        )),
        _ => None,
    }
}

fn certificate(error: &TlsError) -> ListError {
    let why = match error {
        TlsError::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "nobody known vouches for the server's certificate (is it self-signed?): name the one who does with ca_file".to_owned()
        }
        TlsError::InvalidCertificate(CertificateError::Expired)
        | TlsError::InvalidCertificate(CertificateError::ExpiredContext { .. }) => {
            "the server's certificate has expired".to_owned()
        }
        TlsError::InvalidCertificate(CertificateError::NotValidForName)
        | TlsError::InvalidCertificate(CertificateError::NotValidForNameContext { .. }) => {
            "the server's certificate is for another name".to_owned()
        }
        TlsError::InvalidCertificate(other) => {
            format!("the server's certificate is not accepted: {other:?}")
        }
        other => format!("TLS: {other}"),
    };
    ListError::Certificate(why)
}
