//! Speaks to the daemon: HTTP/1.1 over its unix socket, one connection per
//! request.

use std::{
    io,
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode, body::Incoming};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use weir_daemon::{api::RELOADED_WITHIN, config::places_of, instance};
use weir_enforce::is_stopped;

use super::complain;

/// An answer to anything but a reload must have begun within this time: a ban waits for the disk.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Whoever waits longer than this is told so; for one that is stopped nobody
/// waits longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where a reload is asked for.
const RELOAD: &str = "/v1/reload";

/// The daemon behind one socket.
pub struct Client {
    socket: PathBuf,
    /// The configuration, whose instance another process may hold.
    config: PathBuf,
}

/// The error that no daemon listens at the socket; it may be in the chain of another.
#[derive(Debug)]
pub struct Unreachable(String);

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The daemon is there and does not answer: in the chain of an error.
#[derive(Debug)]
pub struct Silent(pub String);

impl std::fmt::Display for Silent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Silent {}

/// The daemon's own words for why it did not do something.
#[derive(Debug)]
struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Did the daemon say so, who can be asked again?
pub fn is_answer(error: &anyhow::Error) -> bool {
    error.is::<Refused>()
}

/// The daemon's answer.
pub enum Reply {
    /// The value that was asked for.
    Ok(Value),
    /// The object does not exist; the daemon's own words.
    NotFound(String),
}

impl Reply {
    /// The answer; "not found" as an error.
    pub fn ok(self) -> anyhow::Result<Value> {
        match self {
            Self::Ok(value) => Ok(value),
            Self::NotFound(why) => bail!(why),
        }
    }
}

impl Client {
    pub fn new(socket: PathBuf, config: PathBuf) -> Self {
        Self { socket, config }
    }

    /// The daemon of this configuration, which listens elsewhere, or not yet.
    fn holder(&self) -> Option<Holder> {
        let state_dir = places_of(&self.config).ok()?.state_dir;
        let pid = instance::holder(&state_dir)?;
        Some(Holder { pid, state_dir })
    }

    pub fn get(&self, path: &str) -> anyhow::Result<Reply> {
        self.ask(Method::GET, path, None)
    }

    /// Has the daemon read its configuration again.
    pub fn reload(&self) -> anyhow::Result<Value> {
        self.post(RELOAD, &Value::Null)?.ok()
    }

    pub fn post(&self, path: &str, body: &Value) -> anyhow::Result<Reply> {
        self.ask(Method::POST, path, Some(body))
    }

    pub fn delete(&self, path: &str) -> anyhow::Result<Reply> {
        self.ask(Method::DELETE, path, None)
    }

    fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Reply> {
        runtime()?.block_on(async {
            let response = self.send(method, path, body).await?;
            match response.status().is_success() {
                true => Ok(Reply::Ok(read(response).await?)),
                false => refusal(response).await,
            }
        })
    }

    /// Hands over each piece of an answer without end, as it comes.
    pub fn stream(
        &self,
        path: &str,
        each: &mut dyn FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        runtime()?.block_on(async {
            let response = self.send(Method::GET, path, None).await?;
            if !response.status().is_success() {
                return refusal(response).await?.ok().map(drop);
            }
            let mut body = response.into_body();
            while let Some(frame) = body.frame().await {
                if let Some(data) = frame.context("the daemon went away")?.data_ref() {
                    each(data)?;
                }
            }
            Ok(())
        })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<hyper::Response<Incoming>> {
        let socket = self.socket.display();
        let stream = match tokio::net::UnixStream::connect(&self.socket).await {
            Ok(stream) => stream,
            Err(error) => return Err(unreachable(&self.socket, error, || self.holder())),
        };
        let peer = stream.peer_cred().ok().and_then(|peer| peer.pid());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .with_context(|| format!("speaking to the daemon at {socket}"))?;
        tokio::spawn(connection);
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "weir")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .context("this cannot be asked")?;
        let within = match path {
            RELOAD => RELOADED_WITHIN,
            _ => ANSWER_WITHIN,
        };
        answer_of(peer, within, sender.send_request(request))
            .await?
            .with_context(|| {
                format!("the daemon at {socket} closed the connection (only root and the socket's group may ask)")
            })
    }
}

/// A process that holds an instance.
struct Holder {
    pid: u32,
    state_dir: PathBuf,
}

/// Why the daemon cannot be reached, and what to do. `holder`: who holds the
/// instance although nobody listens.
fn unreachable(
    socket: &Path,
    error: io::Error,
    holder: impl FnOnce() -> Option<Holder>,
) -> anyhow::Error {
    let (kind, error) = (error.kind(), anyhow::Error::new(error));
    let socket = socket.display();
    let nobody = matches!(
        kind,
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    );
    if let Some(Holder { pid, state_dir }) = nobody.then(holder).flatten() {
        return error.context(Silent(format!(
            "nobody listens at {socket}, but pid {pid} holds the instance ({}): it listens at another socket (--socket), or starts or ends just now",
            state_dir.display()
        )));
    }
    match kind {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => error.context(Unreachable(
            format!(
                "cannot reach the daemon at {socket}: weir is not running (systemctl start weir; journalctl -u weir says why it ended)"
            ),
        )),
        io::ErrorKind::PermissionDenied => error.context(format!(
            "cannot reach the daemon at {socket}: be root, or in the socket's group"
        )),
        _ => error.context(format!("cannot reach the daemon at {socket}")),
    }
}

/// What the daemon of this process answers, if it does so in this time.
async fn answer_of<T>(
    peer: Option<i32>,
    within: Duration,
    answer: impl Future<Output = T>,
) -> anyhow::Result<T> {
    let mut answer = pin!(answer);
    if let Ok(answer) = tokio::time::timeout(PATIENCE, &mut answer).await {
        return Ok(answer);
    }
    // Of a process outside of this one's PID namespace there is no number.
    let peer = peer
        .and_then(|pid| u32::try_from(pid).ok())
        .filter(|pid| *pid > 0);
    let daemon = match peer {
        Some(pid) => format!("the daemon (pid {pid})"),
        None => "the daemon".to_owned(),
    };
    if let Some(pid) = peer.filter(|pid| is_stopped(*pid)) {
        let why = format!("{daemon} does not answer: it is stopped (kill -CONT {pid})");
        return Err(Silent(why).into());
    }
    complain(&anyhow::anyhow!(
        "{daemon} has not answered for {}s; waiting",
        PATIENCE.as_secs()
    ));
    tokio::time::timeout(within - PATIENCE, answer)
        .await
        .map_err(|_| {
            let seconds = within.as_secs();
            Silent(format!("{daemon} has not answered for {seconds}s")).into()
        })
}

async fn read(response: hyper::Response<Incoming>) -> anyhow::Result<Value> {
    let body = response.into_body().collect().await;
    let bytes = body.context("reading the daemon's answer")?.to_bytes();
    Ok(serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

/// The reason why there is no answer; "not found" may be one.
async fn refusal(response: hyper::Response<Incoming>) -> anyhow::Result<Reply> {
    let status = response.status();
    let why = match read(response).await?["error"].as_str() {
        Some(why) => why.to_owned(),
        None => format!("the daemon answered {status}"),
    };
    match status {
        StatusCode::NOT_FOUND => Ok(Reply::NotFound(why)),
        _ => Err(Refused(why).into()),
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the client")
}

/// Text as a part of a URL.
pub fn quote(text: &str) -> String {
    let mut quoted = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:/".contains(&byte) {
            quoted.push(byte as char);
        } else {
            quoted.push_str(&format!("%{byte:02X}"));
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_reach_the_daemon_is_told_what_to_do() {
        for (kind, words, is_dead) in [
            (io::ErrorKind::NotFound, "weir is not running", true),
            (
                io::ErrorKind::ConnectionRefused,
                "weir is not running",
                true,
            ),
            (
                io::ErrorKind::PermissionDenied,
                "be root, or in the socket's group",
                false,
            ),
            (io::ErrorKind::WouldBlock, "cannot reach the daemon", false),
        ] {
            let socket = Path::new("/run/weir.sock");
            let error = unreachable(socket, kind.into(), || None);
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(error.is::<Unreachable>(), is_dead, "{error}");
            // Where somebody holds the instance, nobody says that he is not there.
            let error = unreachable(socket, kind.into(), || {
                let state_dir = "/var/lib/weir".into();
                Some(Holder { pid: 7, state_dir })
            });
            assert!(!error.is::<Unreachable>(), "{error}");
            assert_eq!(error.is::<Silent>(), is_dead, "{error}");
            let said = error.to_string();
            assert_eq!(said.contains("pid 7 holds the instance"), is_dead, "{said}");
        }
    }
}
