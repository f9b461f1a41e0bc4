//! `/v1/pools`: pools of servers, those that are added, and what is changed of single ones.

use std::net::IpAddr;

use axum::{
    body::Body,
    extract::{Path as UrlPath, State, rejection::PathRejection},
    http::StatusCode,
    response::Response,
};
use serde::{Deserialize, Deserializer, Serialize};

use serde_json::{Value, json};

use super::{Api, Named, PoolsChanged, Reload, error, json as read_json, named};
use crate::{
    balance::{
        Change, MAX_WEIGHT, Mode, RealChangeError,
        added::{AddedPool, AddedReal, KeyValues, PoolChange},
    },
    service::{Questions, Refusal},
};

pub(super) async fn pools(State(api): State<Api>) -> Response {
    api.ask(move |questions| {
        let pools = questions.pools()?;
        Ok(json!({ "pools": pools, "not_in_force": questions.pools_not_in_force() }))
    })
    .await
}

/// `POST /v1/pools`: its name, and the keys of `[pool.NAME]`.
#[derive(Deserialize)]
struct AddRequest {
    name: String,
    #[serde(flatten)]
    pool: KeyValues,
}

pub(super) async fn add(State(api): State<Api>, body: Body) -> Response {
    let AddRequest { name, pool } = match read_json(body).await {
        Ok(request) => request,
        Err(response) => return response,
    };
    let shown = name.clone();
    let change = PoolChange::Add(AddedPool { name, pool });
    let answer = json!({ "pool": null });
    carry_out(api, Ok(change), answer, move |questions, answer| {
        answer["pool"] = json!(questions.pool(&shown)?);
        Ok(())
    })
    .await
}

pub(super) async fn remove(State(api): State<Api>, path: Named) -> Response {
    let name = match named(path) {
        Ok(name) => name,
        Err(response) => return response,
    };
    let change = PoolChange::Delete(name.clone());
    let answer = json!({ "deleted": name });
    carry_out(api, Ok(change), answer, |_, _| Ok(())).await
}

pub(super) async fn add_real(State(api): State<Api>, path: Named, body: Body) -> Response {
    let pool = match named(path) {
        Ok(name) => name,
        Err(response) => return response,
    };
    let real: KeyValues = match read_json(body).await {
        Ok(real) => real,
        Err(response) => return response,
    };
    let added = AddedReal { pool, real };
    let (pool, address) = (added.pool.clone(), added.address());
    let change = PoolChange::AddReal(added);
    let answer = json!({ "real": null });
    carry_out(api, Ok(change), answer, move |questions, answer| {
        let pool = questions.pool(&pool)?;
        let real = pool.reals.into_iter().find(|r| Some(r.address) == address);
        answer["real"] = json!(real);
        Ok(())
    })
    .await
}

pub(super) async fn remove_real(State(api): State<Api>, path: Real) -> Response {
    let (pool, real) = match path {
        Ok(UrlPath(path)) => path,
        Err(rejection) => return error(StatusCode::BAD_REQUEST, rejection.body_text()),
    };
    let address = address(&real);
    let deleted = address
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default();
    let change = address.map(|address| PoolChange::DeleteReal(pool.clone(), address));
    let answer = json!({ "pool": pool, "deleted": deleted });
    carry_out(api, change, answer, |_, _| Ok(())).await
}

/// Makes a change, and answers with what `shows` then puts into `answer` and whether it is on
/// disk.
async fn carry_out(
    api: Api,
    change: Result<PoolChange, Refusal>,
    mut answer: Value,
    shows: impl FnOnce(&Questions, &mut Value) -> Result<(), Refusal> + Send + 'static,
) -> Response {
    let (reloader, questions) = (api.handles.reloader.clone(), api.handles.questions.clone());
    api.command(move || {
        let changed = Reload::change_pools(&*reloader, change?)?;
        let shown = shows(&questions, &mut answer);
        Ok(completed(answer, changed, shown))
    })
    .await
}

/// The answer to a change that is in force, whether it could be shown or not: an error would
/// say that nothing has changed.
fn completed(mut answer: Value, changed: PoolsChanged, shown: Result<(), Refusal>) -> Value {
    let PoolsChanged {
        saved,
        mut warnings,
    } = changed;
    if let Err(error) = shown {
        warnings.push(format!(
            "the change is in force, and cannot be shown: {error}"
        ));
    }
    let warning = { saved.as_ref().err() }.map(|error| format!("not saved: {error}"));
    answer["saved"] = saved.is_ok().into();
    answer["warning"] = warning.into();
    answer["warnings"] = warnings.into();
    answer
}

fn address(text: &str) -> Result<IpAddr, Refusal> {
    let address = text.parse::<IpAddr>().map(|address| address.to_canonical());
    address.map_err(|_| {
        let text: String = text.chars().take(64).collect();
        Refusal::Malformed(format!("{text:?} is no address of a real"))
    })
}

/// `POST /v1/pools/POOL/reals/REAL`, and `POST /v1/pools/POOL`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeRequest {
    /// Absent: as it is.
    mode: Option<Mode>,
    /// Absent: as it is; `null`: the configuration's again.
    #[serde(default, deserialize_with = "present")]
    weight: Option<Option<u32>>,
}

impl ChangeRequest {
    fn change(self) -> Result<Change, Refusal> {
        if let Some(Some(weight)) = self.weight
            && weight > MAX_WEIGHT
        {
            let message = format!("weight {weight}; allowed: 0-{MAX_WEIGHT}, or null");
            return Err(Refusal::Malformed(message));
        }
        Ok(Change {
            mode: self.mode,
            weight: self.weight,
        })
    }
}

impl From<RealChangeError> for Refusal {
    fn from(error: RealChangeError) -> Self {
        match error {
            RealChangeError::NotFound(message) => Self::NotFound(message),
            RealChangeError::Backend(error) => error.into(),
        }
    }
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
    let request: ChangeRequest = match read_json(body).await {
        Ok(request) => request,
        Err(response) => return response,
    };
    let balancer = api.handles.balancer.clone();
    api.command(move || {
        let address = address(&real)?;
        let changed = balancer.change(&pool, address, request.change()?);
        let (real, saved) = changed?;
        Ok(changed_answer("real", &real, &saved))
    })
    .await
}

/// `POST /v1/pools/POOL`: all of its reals but those for an emergency.
pub(super) async fn change(State(api): State<Api>, path: Named, body: Body) -> Response {
    let pool = match named(path) {
        Ok(name) => name,
        Err(response) => return response,
    };
    let request: ChangeRequest = match read_json(body).await {
        Ok(request) => request,
        Err(response) => return response,
    };
    let balancer = api.handles.balancer.clone();
    api.command(move || {
        let (reals, saved) = balancer.change_all(&pool, request.change()?)?;
        Ok(changed_answer("reals", &reals, &saved))
    })
    .await
}

fn changed_answer(key: &str, changed: &impl Serialize, saved: &std::io::Result<()>) -> Value {
    let warning = saved.as_ref().err();
    json!({
        key: changed,
        "saved": saved.is_ok(),
        "warning": warning.map(|error| format!("not saved: {error}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_cannot_be_shown_is_told_as_one_that_is_in_force() {
        let changed = PoolsChanged {
            saved: Err(std::io::Error::other("disk full")),
            warnings: vec!["one".to_owned()],
        };
        let gone = Err(Refusal::NotFound("there is no pool shop".to_owned()));
        assert_eq!(
            completed(json!({ "pool": null }), changed, gone),
            json!({
                "pool": null,
                "saved": false,
                "warning": "not saved: disk full",
                "warnings": ["one", "the change is in force, and cannot be shown: there is no pool shop"],
            })
        );
    }
}
