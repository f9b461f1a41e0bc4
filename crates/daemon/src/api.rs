//! The control API: HTTP/1.1 with JSON on a unix socket that root and the
//! socket's group may use. Translates between requests and `service`. What a
//! client can hold, and for how long, is in `connection` and `places`; answers
//! without a bound on their length are written by `listing`.
// An error here is the response itself, made once per bad request.
#![allow(clippy::result_large_err)]

mod apps;
mod connection;
pub mod fail2ban;
mod listing;
mod lists;
mod places;
mod pools;

use std::{
    io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{
        DefaultBodyLimit, Path as UrlPath, Query, State,
        rejection::{PathRejection, QueryRejection},
    },
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{MethodRouter, delete, get, post},
};
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt},
};
use serde::{Deserialize, Serialize};
use tokio::{
    net::UnixListener,
    sync::{broadcast::error::RecvError, watch},
    time::Instant,
};
use weir_core::{Action, BanSource, PortSet, Prefix, policy::parse_duration};

use connection::{Connections, may_connect};
pub use places::THREADS;
use places::{Class, Places};

use crate::{
    balance::{Balancer, added::PoolChange},
    identity::Apps,
    jails::JailConfig,
    service::{AllowList, Fail2banState, ListRefreshes, ManualBans, Questions, Refusal},
};
use weir_events::{Events, alerts::Alerts};

/// So long who asks for a reload waits for it: the kernel may verify programs anew, which takes
/// minutes on a slow processor.
pub const RELOADED_WITHIN: Duration = Duration::from_secs(300);
/// The longest request body.
const MAX_BODY: usize = 64 * 1024;
/// Bans in one answer unless the request says otherwise.
const DEFAULT_LIMIT: usize = 1000;
/// What the alert about the control socket is about.
const ABOUT: &str = "control-socket";
/// A connection that cannot be taken is tried again after this time; after twice
/// the time that it was before, as long as none can be …
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// … and this at most.
const RETRY_LAST: Duration = Duration::from_secs(2);
/// The alert ends when every connection could be taken for so long: out of
/// descriptors, one is free whenever a client goes.
const ENDS_AFTER: Duration = Duration::from_secs(15);
/// The media type of nearly all answers.
const JSON: &str = "application/json";

/// Binds the socket: mode 0660 from its first moment, replacing one that a
/// dead daemon left, and none that somebody listens at.
pub fn bind(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {
            if let Some(who) = listens(path)? {
                return Err(io::Error::new(
                    io::ErrorKind::AddrInUse,
                    format!("{who} listens there; give this daemon a socket of its own"),
                ));
            }
            std::fs::remove_file(path)?;
        }
        Ok(_) => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "there is something that is not a socket",
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o117));
    let bound = std::os::unix::net::UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = bound?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whoever listens at a socket; `None` where its process has died.
fn listens(path: &Path) -> io::Result<Option<String>> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&probe, &address) {
        Ok(()) => {
            let peer = sockopt::socket_peercred(&probe)?;
            Ok(Some(format!(
                "another process (pid {})",
                peer.pid.as_raw_nonzero()
            )))
        }
        // More wait there already than may.
        Err(Errno::AGAIN) => Ok(Some("another process, a busy one,".to_owned())),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads the configuration again and puts it into force.
pub trait Reload: Send + Sync {
    /// Does so, all of it or nothing; returns the configuration's warnings.
    fn reload(&self) -> Result<Vec<String>, Refusal>;

    /// Changes one jail of the configuration in force, until the next reload. On an error
    /// all is as it was.
    fn change_jail(&self, jail: &str, change: &mut JailChange<'_>) -> Result<(), Refusal>;

    /// Adds a pool or a real to those in force, or takes back what was added, and keeps that
    /// over reloads and restarts. On an error all is as it was.
    fn change_pools(&self, change: PoolChange) -> Result<PoolsChanged, Refusal>;
}

/// What came of a change of pools.
pub struct PoolsChanged {
    /// Whether it is on disk.
    pub saved: io::Result<()>,
    /// What is allowed of it but probably not meant.
    pub warnings: Vec<String>,
}

/// What is to be another way in a jail.
pub type JailChange<'a> = dyn FnMut(&mut JailConfig) -> Result<(), Refusal> + 'a;

/// What requests may touch, by what they ask for.
#[derive(Clone)]
pub struct Handles {
    /// Whatever only asks.
    pub questions: Arc<Questions>,
    /// `/v1/bans`, to change them.
    pub manual_bans: Arc<ManualBans>,
    /// `/v1/fail2ban/bans`
    pub fail2ban_state: Arc<Fail2banState>,
    /// `/v1/allow`, to change it.
    pub allow_list: Arc<AllowList>,
    /// `/v1/lists/NAME/refresh`
    pub list_refreshes: Arc<ListRefreshes>,
    /// `/v1/pools/POOL/reals/REAL`
    pub balancer: Arc<Balancer>,
    /// `/v1/app/learning` and `/v1/app/learned`
    pub apps: Arc<Apps>,
    /// `/v1/events`
    pub events: Arc<Events>,
    /// `/v1/reload`
    pub reloader: Arc<dyn Reload>,
}

/// The parts of the daemon that handlers need.
#[derive(Clone)]
struct Api {
    handles: Handles,
    places: Places,
}

impl Api {
    /// Answers a question, where looking at a million bans is no harm.
    async fn ask<T: Serialize + Send + 'static>(
        &self,
        work: impl FnOnce(&Questions) -> Result<T, Refusal> + Send + 'static,
    ) -> Response {
        let questions = self.handles.questions.clone();
        self.run(Class::Question, JSON, in_json(move || work(&questions)))
            .await
    }

    /// Carries out a command, where waiting for the disk is no harm.
    async fn command<T: Serialize + Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Response {
        self.run(Class::Command, JSON, in_json(work)).await
    }

    async fn run(
        &self,
        class: Class,
        content_type: &'static str,
        work: impl FnOnce() -> Result<Vec<u8>, Response> + Send + 'static,
    ) -> Response {
        let _running = match self.places.run(class).await {
            Ok(running) => running,
            Err(refusal) => return refusal,
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(Ok(answer)) => ([(header::CONTENT_TYPE, content_type)], answer).into_response(),
            Ok(Err(refusal)) => refusal,
            Err(panic) => error(StatusCode::INTERNAL_SERVER_ERROR, panic.to_string()),
        }
    }
}

/// Work whose answer is written in JSON.
fn in_json<T: Serialize>(
    work: impl FnOnce() -> Result<T, Refusal>,
) -> impl FnOnce() -> Result<Vec<u8>, Response> {
    move || {
        let answer = work().map_err(Refusal::into_response)?;
        let failure =
            |e: serde_json::Error| error(StatusCode::INTERNAL_SERVER_ERROR, e.to_string());
        serde_json::to_vec(&answer).map_err(failure)
    }
}

/// Serves until `stop` says so.
pub async fn serve(
    listener: std::os::unix::net::UnixListener,
    socket: PathBuf,
    handles: Handles,
    alerts: Arc<Alerts>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let listener = UnixListener::from_std(listener)?;
    let places = Places::new();
    let router = router(Api {
        handles,
        places: places.clone(),
    });
    let mut connections = Connections::new(router, places);
    let mut pause = RETRY_FIRST;
    let mut failed = None;
    loop {
        let is_over = async |since: Instant| tokio::time::sleep_until(since + ENDS_AFTER).await;
        let stream = tokio::select! {
            () = is_over(failed.unwrap_or_else(Instant::now)), if failed.is_some() => {
                alerts.clear(ABOUT);
                failed = None;
                continue;
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                // That client has gone.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    // Out of descriptors, most likely: wait, do not spin.
                    alerts.raise(ABOUT, format!("cannot take a connection: {error}; tried again"));
                    failed = Some(Instant::now());
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        _ = stop.changed() => return Ok(()),
                    }
                    pause = (2 * pause).min(RETRY_LAST);
                    continue;
                }
            },
            _ = stop.changed() => return Ok(()),
        };
        pause = RETRY_FIRST;
        if let Err(who) = may_connect(&stream, &socket) {
            tracing::warn!("control socket: refused {who}");
            continue;
        }
        tokio::select! {
            () = connections.serve(stream) => {}
            _ = stop.changed() => return Ok(()),
        }
    }
}

/// Method, path and what answers.
type Route = (&'static str, &'static str, fn() -> MethodRouter<Api>);

/// All routes of the API; `docs/api.md` has the same.
const ROUTES: [Route; 39] = [
    ("GET", "/v1/status", || get(status)),
    ("GET", "/v1/metrics", || get(metrics)),
    ("GET", "/v1/jails", || get(jails)),
    ("GET", "/v1/bans", || get(bans)),
    ("POST", "/v1/bans", || post(ban)),
    ("DELETE", "/v1/bans", || delete(unban_all)),
    ("DELETE", "/v1/bans/{*subject}", || delete(unban)),
    ("GET", "/v1/why/{*addr}", || get(why)),
    ("GET", "/v1/allow", || get(allowed)),
    ("POST", "/v1/allow", || post(allow)),
    ("DELETE", "/v1/allow/{*prefix}", || delete(disallow)),
    ("GET", "/v1/lists", || get(lists::lists)),
    ("POST", "/v1/lists/{name}/refresh", || post(lists::refresh)),
    ("GET", "/v1/pools", || get(pools::pools)),
    ("POST", "/v1/pools", || post(pools::add)),
    ("POST", "/v1/pools/{pool}", || post(pools::change)),
    ("DELETE", "/v1/pools/{pool}", || delete(pools::remove)),
    ("POST", "/v1/pools/{pool}/reals", || post(pools::add_real)),
    ("POST", "/v1/pools/{pool}/reals/{real}", || {
        post(pools::change_real)
    }),
    ("DELETE", "/v1/pools/{pool}/reals/{real}", || {
        delete(pools::remove_real)
    }),
    ("GET", "/v1/app", || get(apps::status)),
    ("GET", "/v1/app/programs", || get(apps::programs)),
    ("GET", "/v1/app/short-lived", || get(apps::short_lived)),
    ("GET", "/v1/app/why/{asked}", || get(apps::why)),
    ("POST", "/v1/app/pins", || post(apps::accept)),
    ("GET", "/v1/app/questions", || get(apps::questions)),
    ("POST", "/v1/app/questions/{id}", || post(apps::answer)),
    ("POST", "/v1/app/learning", || post(apps::learn)),
    ("DELETE", "/v1/app/learning", || delete(apps::stop_learning)),
    ("GET", "/v1/app/learned", || get(apps::learned)),
    ("DELETE", "/v1/app/learned", || delete(apps::forget)),
    ("POST", "/v1/app/learned/reviewed", || post(apps::reviewed)),
    ("GET", "/v1/app/learned/rules", || get(apps::rules)),
    ("GET", "/v1/events", || get(events)),
    ("POST", "/v1/reload", || post(reload)),
    ("POST", "/v1/fail2ban", || post(fail2ban::command)),
    ("GET", "/v1/fail2ban/bans", || get(fail2ban::give_back)),
    ("POST", "/v1/fail2ban/bans", || post(fail2ban::take_over)),
    ("POST", "/v1/sinks/{name}/test", || post(test_sink)),
];

/// Method and path of every route.
pub fn routes() -> impl Iterator<Item = (&'static str, &'static str)> {
    ROUTES.iter().map(|(method, path, _)| (*method, *path))
}

fn router(api: Api) -> Router {
    let add = |router: Router<Api>, (_, path, answers): &Route| router.route(path, answers());
    ROUTES
        .iter()
        .fold(Router::new(), add)
        .fallback(async || error(StatusCode::NOT_FOUND, "there is no such path; see weir(1)"))
        .method_not_allowed_fallback(async || {
            error(
                StatusCode::METHOD_NOT_ALLOWED,
                "this path does not take this method",
            )
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(api)
}

fn error(status: StatusCode, message: impl Into<String>) -> Response {
    let body = serde_json::json!({ "error": message.into() });
    (status, [(header::CONTENT_TYPE, JSON)], body.to_string()).into_response()
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Malformed(_) | Self::Address(_) => StatusCode::BAD_REQUEST,
            Self::Exempt { .. } | Self::Conflict(_) => StatusCode::CONFLICT,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Reload(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Backend(weir_enforce::Error::TooDeep(_)) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Backend(
                weir_enforce::Error::Full(_)
                | weir_enforce::Error::PrefixBansFull(_)
                | weir_enforce::Error::PrefixBanShareFull(_),
            ) => StatusCode::INSUFFICIENT_STORAGE,
            Self::Backend(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        error(status, self.to_string())
    }
}

/// The JSON of a body.
async fn json<T: for<'de> Deserialize<'de>>(body: Body) -> Result<T, Response> {
    let bytes = axum::body::to_bytes(body, MAX_BODY).await;
    let bytes = bytes.map_err(|e| error(StatusCode::PAYLOAD_TOO_LARGE, e.to_string()))?;
    serde_json::from_slice(&bytes)
        .map_err(|e| error(StatusCode::BAD_REQUEST, format!("the body: {e}")))
}

type Named = Result<UrlPath<String>, PathRejection>;

fn named(path: Named) -> Result<String, Response> {
    match path {
        Ok(UrlPath(text)) => Ok(text),
        Err(rejection) => Err(error(StatusCode::BAD_REQUEST, rejection.body_text())),
    }
}

type Asked<T> = Result<Query<T>, QueryRejection>;

fn asked<T>(query: Asked<T>) -> Result<T, Response> {
    match query {
        Ok(Query(query)) => Ok(query),
        Err(rejection) => Err(error(StatusCode::BAD_REQUEST, rejection.body_text())),
    }
}

async fn status(State(api): State<Api>) -> Response {
    api.ask(Questions::status).await
}

/// Answers with all metrics as text, for Prometheus.
async fn metrics(State(api): State<Api>) -> Response {
    let questions = api.handles.questions.clone();
    let text = move || {
        let text = questions.metrics_text().map_err(Refusal::into_response)?;
        Ok(text.into_bytes())
    };
    api.run(Class::Question, weir_metrics::CONTENT_TYPE, text)
        .await
}

async fn jails(State(api): State<Api>) -> Response {
    api.ask(Questions::jails).await
}

async fn test_sink(State(api): State<Api>, name: Named) -> Response {
    match named(name) {
        Ok(name) => {
            let questions = api.handles.questions.clone();
            api.command(move || questions.test_sink(&name)).await
        }
        Err(response) => response,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BansQuery {
    jail: Option<String>,
    limit: Option<usize>,
}

async fn bans(State(api): State<Api>, query: Asked<BansQuery>) -> Response {
    let query = match asked(query) {
        Ok(query) => query,
        Err(response) => return response,
    };
    listing::bans(&api, query.jail, query.limit.unwrap_or(DEFAULT_LIMIT)).await
}

/// `POST /v1/bans`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BanRequest {
    subject: String,
    /// `"1h"`, seconds, or absent for a ban without end.
    #[serde(rename = "for")]
    length: Option<String>,
    /// The ports of the ban, as in `22/tcp,443/tcp`; absent for all ports.
    port: Option<String>,
    /// `"drop"`, which it is when absent, or `"reject"`.
    action: Option<String>,
    /// Absent: that of the ban which it renews, if there is one.
    reason: Option<String>,
}

async fn ban(State(api): State<Api>, body: Body) -> Response {
    let request: BanRequest = match json(body).await {
        Ok(request) => request,
        Err(response) => return response,
    };
    let bans = api.handles.manual_bans.clone();
    api.command(move || {
        let malformed = Refusal::Malformed;
        let length = match request.length.as_deref() {
            None | Some("forever") => None,
            Some(text) => Some(parse_duration(text).ok().ok_or_else(|| {
                malformed(format!(
                    "{:?} is not a length of time: write 90s, 10m, 1h, 7d or forever",
                    text.chars().take(64).collect::<String>()
                ))
            })?),
        };
        let scope = match request.port.as_deref() {
            None => PortSet::all(),
            Some(text) => text.parse().map_err(|e| malformed(format!("{e}")))?,
        };
        let action = match request.action.as_deref() {
            None => Action::default(),
            Some("drop") => Action::Drop,
            Some("reject") => Action::Reject,
            Some(other) => {
                let shown: String = other.chars().take(64).collect();
                let message = format!("{shown:?} is not an action: \"drop\" or \"reject\"");
                return Err(malformed(message));
            }
        };
        bans.ban(&request.subject, length, scope, action, request.reason)
    })
    .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UnbanAllQuery {
    producer: Option<BanSource>,
}

async fn unban_all(State(api): State<Api>, query: Asked<UnbanAllQuery>) -> Response {
    match asked(query) {
        Ok(query) => {
            let bans = api.handles.manual_bans.clone();
            api.command(move || bans.unban_all(query.producer.as_ref()))
                .await
        }
        Err(response) => response,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UnbanQuery {
    producer: Option<BanSource>,
    port: Option<PortSet>,
}

async fn unban(State(api): State<Api>, subject: Named, query: Asked<UnbanQuery>) -> Response {
    let (subject, query) = match (named(subject), asked(query)) {
        (Ok(subject), Ok(query)) => (subject, query),
        (Err(response), _) | (_, Err(response)) => return response,
    };
    let bans = api.handles.manual_bans.clone();
    api.command(move || bans.unban(&subject, query.producer.as_ref(), query.port.as_ref()))
        .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WhyQuery {
    port: Option<String>,
}

async fn why(State(api): State<Api>, addr: Named, query: Asked<WhyQuery>) -> Response {
    let (addr, query) = match (named(addr), asked(query)) {
        (Ok(addr), Ok(query)) => (addr, query),
        (Err(response), _) | (_, Err(response)) => return response,
    };
    api.ask(move |questions| {
        let prefix: Prefix = addr.parse()?;
        let port = match query.port.as_deref() {
            None => None,
            Some(text) => {
                let one_port = || {
                    Refusal::Malformed(format!(
                        "{:?} is not one port: write 22 or 22/tcp",
                        text.chars().take(64).collect::<String>()
                    ))
                };
                let scope: PortSet = text.parse().map_err(|_| one_port())?;
                match scope.ranges() {
                    [one] if one.low == one.high => Some((one.protocol, one.low)),
                    _ => return Err(one_port()),
                }
            }
        };
        questions.why(prefix, port)
    })
    .await
}

async fn allowed(State(api): State<Api>) -> Response {
    listing::allowed(&api).await
}

/// `POST /v1/allow`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowRequest {
    prefix: String,
    note: Option<String>,
    #[serde(default)]
    force: bool,
}

async fn allow(State(api): State<Api>, body: Body) -> Response {
    let request: AllowRequest = match json(body).await {
        Ok(request) => request,
        Err(response) => return response,
    };
    let note = request.note.unwrap_or_default();
    let list = api.handles.allow_list.clone();
    api.command(move || list.allow(&request.prefix, note, request.force))
        .await
}

async fn disallow(State(api): State<Api>, prefix: Named) -> Response {
    let prefix = match named(prefix) {
        Ok(prefix) => prefix,
        Err(response) => return response,
    };
    let list = api.handles.allow_list.clone();
    api.command(move || list.disallow(&prefix)).await
}

async fn reload(State(api): State<Api>) -> Response {
    let reloader = api.handles.reloader.clone();
    api.command(move || {
        let warnings = reloader.reload()?;
        Ok(serde_json::json!({ "reloaded": true, "warnings": warnings }))
    })
    .await
}

/// JSON lines for as long as the client reads.
async fn events(State(api): State<Api>) -> Response {
    let receiver = api.handles.events.subscribe();
    let lines = futures_util::stream::unfold(receiver, async |mut receiver| {
        let line = match receiver.recv().await {
            Ok(line) => format!("{line}\n"),
            Err(RecvError::Lagged(missed)) => format!(
                "{{\"time\":\"{}\",\"kind\":\"error\",\"reason\":\"this reader was too slow and missed {missed} events\"}}\n",
                jiff::Timestamp::now()
            ),
            Err(RecvError::Closed) => return None,
        };
        Some((Ok::<_, std::convert::Infallible>(line), receiver))
    });
    (
        [(header::CONTENT_TYPE, "application/x-ndjson")],
        Body::from_stream(lines),
    )
        .into_response()
}
