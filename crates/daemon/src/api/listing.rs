//! Answers whose length has no bound: all bans, all exemptions. Written piece
//! by piece, as fast as the client reads; what is kept meanwhile is the table
//! as it was, without its explanations.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use tokio::{sync::OwnedSemaphorePermit, task::spawn_blocking};
use weir_enforce::Entry;

use super::{Api, error, places::Class};
use crate::service::{Questions, Refusal};

/// Items that are explained and written at a time.
const PIECE: usize = 1024;

/// `GET /v1/bans`
pub(super) async fn bans(api: &Api, jail: Option<String>, limit: usize) -> Response {
    let listing = begin(api, move |questions| {
        let mut entries = questions.bans_in_force(jail.as_deref())?;
        let total = entries.len();
        entries.truncate(limit);
        entries.shrink_to_fit();
        Ok((format!("{{\"total\":{total},\"bans\":["), entries))
    });
    let explain = |questions: &Questions, entries: Vec<Entry>| json(&questions.explain(entries));
    answer(listing.await, explain)
}

/// `GET /v1/allow`
pub(super) async fn allowed(api: &Api) -> Response {
    let listing = begin(api, |questions| {
        Ok(("{\"allow\":[".to_owned(), questions.exemptions()))
    });
    answer(listing.await, |_, exemptions| json(&exemptions))
}

/// The items without the brackets of their list.
fn json<T: Serialize>(items: &[T]) -> Vec<u8> {
    let mut text = serde_json::to_vec(items).expect("an answer can be written as JSON");
    text.pop();
    if !text.is_empty() {
        text.remove(0);
    }
    text
}

struct Listing<T> {
    questions: Arc<Questions>,
    head: Option<String>,
    items: std::vec::IntoIter<T>,
    /// Held until the last of it is written, or the client has gone.
    _running: OwnedSemaphorePermit,
}

async fn begin<T: Send + 'static>(
    api: &Api,
    items: impl FnOnce(&Questions) -> Result<(String, Vec<T>), Refusal> + Send + 'static,
) -> Result<Listing<T>, Response> {
    let running = api.places.run(Class::Listing).await?;
    let questions = api.handles.questions.clone();
    let asked = questions.clone();
    let (head, items) = match spawn_blocking(move || items(&asked)).await {
        Ok(Ok(begun)) => begun,
        Ok(Err(refusal)) => return Err(refusal.into_response()),
        Err(panic) => {
            return Err(error(StatusCode::INTERNAL_SERVER_ERROR, panic.to_string()));
        }
    };
    Ok(Listing {
        questions,
        head: Some(head),
        items: items.into_iter(),
        _running: running,
    })
}

fn answer<T, W>(listing: Result<Listing<T>, Response>, write: W) -> Response
where
    T: Send + 'static,
    W: Fn(&Questions, Vec<T>) -> Vec<u8> + Copy + Send + 'static,
{
    let listing = match listing {
        Ok(listing) => listing,
        Err(response) => return response,
    };
    let pieces = futures_util::stream::unfold(Some(listing), move |listing| async move {
        let mut listing = listing?;
        let worked = spawn_blocking(move || {
            let head = listing.head.take();
            let items: Vec<T> = listing.items.by_ref().take(PIECE).collect();
            let separator = match head.is_some() || items.is_empty() {
                true => "",
                false => ",",
            };
            let mut text = head.unwrap_or_default().into_bytes();
            text.extend_from_slice(separator.as_bytes());
            text.extend(write(&listing.questions, items));
            let rest = match listing.items.len() {
                0 => {
                    text.extend_from_slice(b"]}");
                    None
                }
                _ => Some(listing),
            };
            (text, rest)
        })
        .await;
        Some(match worked {
            Ok((text, rest)) => (Ok(text), rest),
            Err(panic) => (Err(panic), None),
        })
    });
    (
        [(header::CONTENT_TYPE, "application/json")],
        Body::from_stream(pieces),
    )
        .into_response()
}
