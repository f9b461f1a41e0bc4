//! Speaks to the daemon: HTTP/1.1 over its unix socket, one connection per
//! request.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode, body::Incoming};
use hyper_util::rt::TokioIo;
use serde_json::Value;

/// An answer must have begun within this time: a ban waits for the disk.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// The daemon behind one socket.
pub struct Client {
    socket: PathBuf,
}

/// What the daemon answered.
pub enum Reply {
    /// As asked.
    Ok(Value),
    /// There is nothing like that; in its words.
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
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    pub fn get(&self, path: &str) -> anyhow::Result<Reply> {
        self.ask(Method::GET, path, None)
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
            let status = response.status();
            let bytes = response
                .into_body()
                .collect()
                .await
                .context("reading the daemon's answer")?
                .to_bytes();
            let value: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            if status.is_success() {
                return Ok(Reply::Ok(value));
            }
            let why = match value["error"].as_str() {
                Some(why) => why.to_owned(),
                None => format!("the daemon answered {status}"),
            };
            match status {
                StatusCode::NOT_FOUND => Ok(Reply::NotFound(why)),
                _ => bail!(why),
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
            let mut body = self.send(Method::GET, path, None).await?.into_body();
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
        let stream = tokio::net::UnixStream::connect(&self.socket)
            .await
            .with_context(|| {
                format!("cannot reach the daemon at {socket} (is it running? are you root, or in the socket's group?)")
            })?;
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
        tokio::time::timeout(ANSWER_WITHIN, sender.send_request(request))
            .await
            .with_context(|| format!("the daemon at {socket} does not answer"))?
            .with_context(|| {
                format!("the daemon at {socket} closed the connection (only root and the socket's group may ask)")
            })
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
