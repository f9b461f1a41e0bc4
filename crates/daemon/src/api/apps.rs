//! `/v1/app`: rules about programs, and programs.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};

use super::{Api, Named, error, named};
use crate::service::Refusal;

pub(super) async fn status(State(api): State<Api>) -> Response {
    api.ask(|questions| Ok(serde_json::json!({ "app": questions.app()? })))
        .await
}

pub(super) async fn programs(State(api): State<Api>) -> Response {
    api.ask(|questions| Ok(serde_json::json!({ "programs": questions.programs() })))
        .await
}

pub(super) async fn why(State(api): State<Api>, pid: Named) -> Response {
    let pid = match named(pid) {
        Ok(text) => text,
        Err(response) => return response,
    };
    let Ok(number) = pid.parse() else {
        let message = format!("{pid:?} is no process; allowed: its number");
        return error(StatusCode::BAD_REQUEST, message).into_response();
    };
    api.ask(move |questions| {
        let why = questions.why_program(number)?;
        why.ok_or_else(|| {
            Refusal::NotFound(format!(
                "there is no process {number}, or it changes its mappings without a pause"
            ))
        })
    })
    .await
}
