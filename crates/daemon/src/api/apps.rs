//! `/v1/app`: rules about programs, programs, and what they were seen doing.

use std::{path::PathBuf, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use serde::Deserialize;
use weir_core::policy::{format_duration, parse_duration};

use super::{Api, Asked, Named, asked, error, json, named};
use crate::{
    identity::{
        AcceptError, AnswerError, AnswerScope, AppError, Apps, LearnError, Narrow, NoSocketName,
        Shape,
    },
    service::Refusal,
    store::SaveError,
};

/// The longest time for which is learned without being asked again.
const MAX_LEARNING: Duration = Duration::from_secs(366 * 86_400);

pub(super) async fn status(State(api): State<Api>) -> Response {
    api.ask(|questions| Ok(serde_json::json!({ "app": questions.app()? })))
        .await
}

pub(super) async fn programs(State(api): State<Api>) -> Response {
    api.ask(|questions| Ok(serde_json::json!({ "programs": questions.programs() })))
        .await
}

pub(super) async fn short_lived(State(api): State<Api>) -> Response {
    api.ask(|questions| Ok(serde_json::json!({ "short_lived": questions.short_lived() })))
        .await
}

pub(super) async fn why(State(api): State<Api>, asked: Named) -> Response {
    let asked = match named(asked) {
        Ok(text) => text,
        Err(response) => return response,
    };
    if let Ok(pid) = asked.parse() {
        return api.ask(move |questions| questions.why_program(pid)).await;
    }
    match asked.parse() {
        Ok(socket) => {
            api.ask(move |questions| questions.why_sockets(&socket))
                .await
        }
        Err(no_name) => {
            let no_name: NoSocketName = no_name;
            error(StatusCode::BAD_REQUEST, no_name.to_string()).into_response()
        }
    }
}

/// `POST /v1/app/pins`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AcceptRequest {
    path: PathBuf,
}

pub(super) async fn accept(State(api): State<Api>, body: Body) -> Response {
    let request: AcceptRequest = match json(body).await {
        Ok(request) => request,
        Err(response) => return response,
    };
    let apps = api.handles.apps.clone();
    api.command(move || {
        let accepted = apps.accept(&request.path).map_err(|error| match error {
            AcceptError::NoRules | AcceptError::NotNamed(_) => Refusal::NotFound(error.to_string()),
            AcceptError::Kernel(error) | AcceptError::App(AppError::Kernel(error)) => {
                Refusal::Backend(error.into())
            }
            error => Refusal::Malformed(error.to_string()),
        })?;
        Ok(serde_json::json!({ "accepted": accepted }))
    })
    .await
}

pub(super) async fn questions(State(api): State<Api>) -> Response {
    let apps = api.handles.apps.clone();
    api.ask(move |_| {
        let questions = apps.questions().map_err(answer_refusal)?;
        Ok(serde_json::json!({ "questions": questions }))
    })
    .await
}

/// `POST /v1/app/questions/{id}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerRequest {
    verdict: AnswerVerdict,
    /// When the question was asked that is meant; absent: whichever has the number.
    asked: Option<Timestamp>,
    /// For what the answer holds; absent: once.
    #[serde(rename = "for", default)]
    scope: AnswerFor,
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum AnswerVerdict {
    Allow,
    Deny,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "lowercase")]
enum AnswerFor {
    #[default]
    Once,
    Run,
}

pub(super) async fn answer(State(api): State<Api>, id: Named, body: Body) -> Response {
    let id = match named(id) {
        Ok(text) => text,
        Err(response) => return response,
    };
    let Ok(id) = id.parse::<u64>() else {
        let message = format!("{id:?} is no question; allowed: its number");
        return error(StatusCode::BAD_REQUEST, message).into_response();
    };
    let request: AnswerRequest = match json(body).await {
        Ok(request) => request,
        Err(response) => return response,
    };
    let apps = api.handles.apps.clone();
    api.command(move || {
        let scope = match request.scope {
            AnswerFor::Once => AnswerScope::Once,
            AnswerFor::Run => AnswerScope::Run,
        };
        let allows = request.verdict == AnswerVerdict::Allow;
        apps.answer(id, request.asked, allows, scope)
            .map_err(answer_refusal)?;
        Ok(serde_json::json!({ "id": id }))
    })
    .await
}

/// `POST /v1/app/learning`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LearnRequest {
    /// `"1d"`, seconds, or absent: until it is stopped.
    #[serde(rename = "for")]
    length: Option<String>,
}

fn learn_refusal(error: LearnError) -> Refusal {
    match error {
        LearnError::NoRules => Refusal::NotFound(error.to_string()),
        LearnError::Kernel(error) => Refusal::Backend(error.into()),
    }
}

fn answer_refusal(error: AnswerError) -> Refusal {
    match error {
        AnswerError::NoQuestion(_) | AnswerError::NoPrompt => Refusal::NotFound(error.to_string()),
        AnswerError::App(AppError::Kernel(error)) => Refusal::Backend(error.into()),
        AnswerError::App(_) => Refusal::Malformed(error.to_string()),
    }
}

fn no_rules() -> Refusal {
    learn_refusal(LearnError::NoRules)
}

/// Learning as it is now, and whether that is on disk.
fn learning(apps: &Apps, saved: Result<(), SaveError>) -> serde_json::Value {
    serde_json::json!({
        "learning": apps.learning(),
        "saved": saved.is_ok(),
        "warning": saved.err().map(|error| error.to_string()),
    })
}

pub(super) async fn learn(State(api): State<Api>, body: Body) -> Response {
    let request: LearnRequest = match json(body).await {
        Ok(request) => request,
        Err(response) => return response,
    };
    let apps = api.handles.apps.clone();
    api.command(move || {
        let length = request.length.as_deref().map(|text| {
            let length = parse_duration(text).ok();
            let fits = length.filter(|l| !l.is_zero() && *l <= MAX_LEARNING);
            fits.ok_or_else(|| {
                let text: String = text.chars().take(64).collect();
                Refusal::Malformed(format!(
                    "{text:?} is no time to learn for; allowed: 1s-{} such as \"1d\"",
                    format_duration(MAX_LEARNING)
                ))
            })
        });
        let saved = apps.learn(length.transpose()?).map_err(learn_refusal)?;
        Ok(learning(&apps, saved))
    })
    .await
}

pub(super) async fn stop_learning(State(api): State<Api>) -> Response {
    let apps = api.handles.apps.clone();
    api.command(move || {
        let saved = apps.stop_learning().map_err(learn_refusal)?;
        Ok(learning(&apps, saved))
    })
    .await
}

pub(super) async fn learned(State(api): State<Api>) -> Response {
    let apps = api.handles.apps.clone();
    api.ask(move |_| apps.review().ok_or_else(no_rules)).await
}

pub(super) async fn forget(State(api): State<Api>) -> Response {
    let apps = api.handles.apps.clone();
    api.command(move || {
        let saved = apps.forget_learned();
        Ok(learning(&apps, saved))
    })
    .await
}

/// `POST /v1/app/learned/reviewed`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReviewedRequest {
    as_of: Timestamp,
}

pub(super) async fn reviewed(State(api): State<Api>, body: Body) -> Response {
    let request: ReviewedRequest = match json(body).await {
        Ok(request) => request,
        Err(response) => return response,
    };
    let apps: Arc<Apps> = api.handles.apps.clone();
    api.command(move || {
        let saved = apps.set_reviewed(request.as_of);
        Ok(learning(&apps, saved))
    })
    .await
}

/// `GET /v1/app/learned/rules`; what is absent is false.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RulesQuery {
    /// To the peers that were seen.
    #[serde(default)]
    peers: bool,
    /// About the whole program.
    #[serde(default)]
    whole: bool,
    /// About scripts of interpreters.
    #[serde(default)]
    scripts: bool,
    /// With what nobody has reviewed.
    #[serde(default)]
    unreviewed: bool,
    /// With `default` and `unknown`.
    #[serde(default)]
    defaults: bool,
}

pub(super) async fn rules(State(api): State<Api>, query: Asked<RulesQuery>) -> Response {
    let query = match asked(query) {
        Ok(query) => query,
        Err(response) => return response,
    };
    let shape = Shape {
        narrow: match query.peers {
            true => Narrow::ToPeers,
            false => Narrow::ToPorts,
        },
        is_whole: query.whole,
        by_script: query.scripts,
        has_defaults: query.defaults,
    };
    let apps = api.handles.apps.clone();
    api.ask(move |_| {
        let rules = apps.learned_rules(shape, query.unreviewed);
        rules.ok_or_else(no_rules)
    })
    .await
}
