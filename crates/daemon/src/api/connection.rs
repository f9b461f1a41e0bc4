//! The connections of the control socket: who may have one, how many there
//! are, and when a client has had its time. One request each. A client that
//! says nothing makes room for the next when all connections are taken; one
//! that does not read its answer is let go.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::Future,
    io::{self, IoSlice},
    os::unix::fs::MetadataExt,
    path::Path,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body, extract::Request, http::StatusCode, response::Response};
use hyper::{body::Incoming, service::Service, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    task::AbortHandle,
    time::Sleep,
};

use super::{
    MAX_BODY, RELOADED_WITHIN, error,
    places::{self, Class, Places},
};

/// Connections at once: a place for every request, and some for clients that
/// have said nothing yet.
const MAX_CONNECTIONS: usize = places::ALL + 16;
/// A client must send its request's head within this time.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// A body must have come within this time.
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// A client that reads nothing of its answer for this long is let go.
const READS_WITHIN: Duration = Duration::from_secs(10);
/// No request but a stream of events takes longer, whatever the client does: who asks for a reload
/// has stopped waiting by then.
const OVER_WITHIN: Duration = RELOADED_WITHIN.saturating_add(Duration::from_secs(30));

/// The states of a connection: no request yet, a request under way, a stream of events.
const SILENT: u8 = 0;
const ASKED: u8 = 1;
const STREAMS: u8 = 2;

/// A connection as its neighbours see it.
#[derive(Default)]
struct Slot {
    stage: AtomicU8,
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Slot {
    fn is_silent(&self) -> bool {
        self.stage.load(Relaxed) == SILENT
    }

    fn is_stream(&self) -> bool {
        self.stage.load(Relaxed) == STREAMS
    }

    /// The request is there, and has a place.
    fn asks(&self, class: Class, place: OwnedSemaphorePermit) {
        let stage = match class {
            Class::Stream => STREAMS,
            _ => ASKED,
        };
        self.stage.store(stage, Relaxed);
        *self.place.lock().expect("no holder of this lock panics") = Some(place);
    }
}

/// All open connections.
pub(super) struct Connections {
    router: Router,
    places: Places,
    room: Arc<Semaphore>,
    /// Connections that may still be silent, oldest first.
    silent: VecDeque<(Arc<Slot>, AbortHandle)>,
}

impl Connections {
    pub(super) fn new(router: Router, places: Places) -> Self {
        Self {
            router,
            places,
            room: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            silent: VecDeque::new(),
        }
    }

    /// Serves one more client. Returns when it has a connection, which may
    /// wait for others to be served.
    pub(super) async fn serve(&mut self, stream: UnixStream) {
        let room = match self.room.clone().try_acquire_owned() {
            Ok(room) => room,
            Err(_) => {
                self.end_oldest_silent();
                let room = self.room.clone().acquire_owned().await;
                room.expect("nobody closes it")
            }
        };
        let slot = Arc::new(Slot::default());
        let task = tokio::spawn(serve(
            stream,
            slot.clone(),
            self.router.clone(),
            self.places.clone(),
            room,
        ));
        self.silent
            .retain(|(slot, task)| slot.is_silent() && !task.is_finished());
        self.silent.push_back((slot, task.abort_handle()));
    }

    fn end_oldest_silent(&mut self) {
        while let Some((slot, task)) = self.silent.pop_front() {
            if slot.is_silent() && !task.is_finished() {
                task.abort();
                return;
            }
        }
    }
}

async fn serve(
    stream: UnixStream,
    slot: Arc<Slot>,
    router: Router,
    places: Places,
    _room: OwnedSemaphorePermit,
) {
    let handler = TowerToHyperService::new(router);
    let asking = slot.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (handler, places, slot) = (handler.clone(), places.clone(), asking.clone());
        async move {
            let request = match whole(request).await {
                Ok(request) => request,
                Err(refusal) => return Ok::<Response, Infallible>(refusal),
            };
            let class = Class::of(request.method(), request.uri().path());
            match places.take(class) {
                Ok(place) => {
                    slot.asks(class, place);
                    handler.call(request).await
                }
                Err(refusal) => Ok(refusal),
            }
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(MAX_BODY)
        // A place is held for one request.
        .keep_alive(false)
        .serve_connection(TokioIo::new(Client::new(stream, slot.clone())), service);
    tokio::pin!(connection);
    let served = tokio::select! {
        served = &mut connection => served,
        () = tokio::time::sleep(OVER_WITHIN), if !slot.is_stream() => match slot.is_stream() {
            true => connection.await,
            false => {
                tracing::debug!("control socket: a request took too long");
                return;
            }
        },
    };
    if let Err(error) = served {
        tracing::debug!("control socket: {error}");
    }
}

/// The request with its body, all of it within a time.
async fn whole(request: Request<Incoming>) -> Result<Request, Response> {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(Body::new(body), MAX_BODY);
    match tokio::time::timeout(BODY_WITHIN, body).await {
        Err(_) => Err(error(StatusCode::REQUEST_TIMEOUT, "the body did not come")),
        Ok(Err(_)) => Err(error(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is cut off or has more than {MAX_BODY} bytes"),
        )),
        Ok(Ok(bytes)) => Ok(Request::from_parts(head, Body::from(bytes))),
    }
}

/// A client's end, which may not leave its answer unread.
struct Client {
    stream: UnixStream,
    slot: Arc<Slot>,
    /// Runs while the client reads nothing.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl Client {
    fn new(stream: UnixStream, slot: Arc<Slot>) -> Self {
        Self {
            stream,
            slot,
            stuck: None,
        }
    }

    /// What came of a write, or an error when none has for too long. A stream
    /// of events may be left alone: what is not read of it is not kept.
    fn within_time<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() || self.slot.is_stream() {
            self.stuck = None;
            return written;
        }
        let stuck = self
            .stuck
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(READS_WITHIN)));
        match stuck.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client does not read its answer",
            ))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.within_time(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.within_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Root, the daemon's own user, and members of the socket's group.
pub(super) fn may_connect(stream: &UnixStream, socket: &Path) -> Result<(), String> {
    let peer = stream
        .peer_cred()
        .map_err(|e| format!("a peer without credentials: {e}"))?;
    if peer.uid() == 0 || peer.uid() == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let group = std::fs::metadata(socket)
        .map_err(|e| format!("uid {}: the socket is gone: {e}", peer.uid()))?
        .gid();
    if peer.gid() == group || is_member(peer.uid(), group) {
        return Ok(());
    }
    Err(format!(
        "uid {} gid {}: neither root nor in the socket's group {group}",
        peer.uid(),
        peer.gid()
    ))
}

fn is_member(uid: u32, group: u32) -> bool {
    let Ok(Some(user)) = nix::unistd::User::from_uid(uid.into()) else {
        return false;
    };
    let Ok(name) = std::ffi::CString::new(user.name) else {
        return false;
    };
    nix::unistd::getgrouplist(&name, user.gid)
        .is_ok_and(|groups| groups.iter().any(|g| g.as_raw() == group))
}
