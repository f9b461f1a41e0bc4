//! `/v1/pools`: pools of servers, and what is changed of single ones.

use std::net::IpAddr;

use axum::{
    body::Body,
    extract::{Path as UrlPath, State, rejection::PathRejection},
    http::StatusCode,
    response::Response,
};
use serde::{Deserialize, Deserializer};

use super::{Api, error, json};
use crate::{
    balance::{Change, MAX_WEIGHT, Mode, RealChangeError},
    service::Refusal,
};

pub(super) async fn pools(State(api): State<Api>) -> Response {
    api.ask(move |questions| Ok(serde_json::json!({ "pools": questions.pools()? })))
        .await
}

/// `POST /v1/pools/POOL/reals/REAL`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeRequest {
    /// Absent: as it is.
    mode: Option<Mode>,
    /// Absent: as it is; `null`: the configuration's again.
    #[serde(default, deserialize_with = "present")]
    weight: Option<Option<u32>>,
}

fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<u32>>, D::Error> {
    Option::deserialize(from).map(Some)
}

type Real = Result<UrlPath<(String, String)>, PathRejection>;

pub(super) async fn change_real(State(api): State<Api>, path: Real, body: Body) -> Response {
    let (pool, real) = match path {
        Ok(UrlPath(path)) => path,
        Err(rejection) => return error(StatusCode::BAD_REQUEST, rejection.body_text()),
    };
    let request: ChangeRequest = match json(body).await {
        Ok(request) => request,
        Err(response) => return response,
    };
    let balancer = api.handles.balancer.clone();
    api.command(move || {
        let address: IpAddr = real.parse().map_err(|_| {
            let text: String = real.chars().take(64).collect();
            Refusal::Malformed(format!("{text:?} is no address of a real"))
        })?;
        if let Some(Some(weight)) = request.weight
            && weight > MAX_WEIGHT
        {
            let message = format!("weight {weight}; allowed: 0-{MAX_WEIGHT}, or null");
            return Err(Refusal::Malformed(message));
        }
        let change = Change {
            mode: request.mode,
            weight: request.weight,
        };
        let changed = balancer.change(&pool, address, change);
        let (real, saved) = changed.map_err(|error| match error {
            RealChangeError::NotFound(message) => Refusal::NotFound(message),
            RealChangeError::Backend(error) => error.into(),
        })?;
        Ok(serde_json::json!({
            "real": real,
            "saved": saved.is_ok(),
            "warning": saved.err().map(|error| format!("not saved: {error}")),
        }))
    })
    .await
}
