//! `/v1/lists`: their state, and refreshes on request. Waits for a refresh
//! without holding a thread: a server may take its time.

use std::time::Duration;

use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::{Api, Named, json, named};

/// A refresh that takes longer goes on by itself; the client waits 30 s.
const WAIT: Duration = Duration::from_secs(25);
/// How often is looked whether it is through.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(super) async fn lists(State(api): State<Api>) -> Response {
    api.ask(move |questions| Ok(serde_json::json!({ "lists": questions.lists() })))
        .await
}

/// `POST /v1/lists/NAME/refresh`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RefreshRequest {
    /// Take it also if it has shrunk too much.
    #[serde(default)]
    force: bool,
}

pub(super) async fn refresh(State(api): State<Api>, name: Named, body: Body) -> Response {
    let (name, request): (_, RefreshRequest) = match (named(name), json(body).await) {
        (Ok(name), Ok(request)) => (name, request),
        (Err(response), _) | (_, Err(response)) => return response,
    };
    let lists = api.handles.list_refreshes.clone();
    let attempt = match lists.begin(&name, request.force) {
        Ok(attempt) => attempt,
        Err(refusal) => return refusal.into_response(),
    };
    let begun = Instant::now();
    loop {
        let done = match lists.attempted(&name, attempt) {
            Ok(done) => done,
            Err(refusal) => return refusal.into_response(),
        };
        if done.is_some() || begun.elapsed() > WAIT {
            return api
                .command(move || {
                    // So that it holds when the answer says so.
                    lists.put_in_force()?;
                    Ok(serde_json::json!({ "done": done.is_some(), "list": done }))
                })
                .await;
        }
        sleep(POLL_INTERVAL).await;
    }
}
