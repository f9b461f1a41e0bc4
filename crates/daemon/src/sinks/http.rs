//! What the sinks that speak HTTP share: one client with limits, whom it
//! trusts, and what an answer means for the event that was sent.

use std::time::Duration;

use ureq::{
    Agent,
    tls::{Certificate, PemItem, RootCerts, TlsConfig},
};

use super::Failure;

/// A request is over within this time.
const WITHIN: Duration = Duration::from_secs(10);
/// What of an answer is read.
const MAX_ANSWER: u64 = 64 * 1024;
/// Longer than this nobody is left alone because a server says so.
const MAX_AFTER: Duration = Duration::from_secs(3600);
/// Whom this system trusts; without it, whom Mozilla does, as built in.
const SYSTEM: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The certificates of a text in PEM; an error if there are none.
pub fn certificates(pem: &str) -> Result<Vec<Certificate<'static>>, String> {
    let mut found = Vec::new();
    for item in ureq::tls::parse_pem(pem.as_bytes()) {
        if let PemItem::Certificate(certificate) = item.map_err(|e| e.to_string())? {
            found.push(certificate);
        }
    }
    match found.is_empty() {
        true => Err("no certificate in it".to_owned()),
        false => Ok(found),
    }
}

/// A client that trusts `ca`, or whom the system trusts.
pub(super) fn agent(ca: Option<&str>) -> Agent {
    let system = || std::fs::read_to_string(SYSTEM).ok();
    let pem = ca.map(str::to_owned).or_else(system);
    let roots = match pem.and_then(|pem| certificates(&pem).ok()) {
        Some(certificates) => RootCerts::new_with_certs(&certificates),
        None => RootCerts::WebPki,
    };
    Agent::config_builder()
        .timeout_global(Some(WITHIN))
        .http_status_as_error(false)
        // Where a redirect leads is not what the administrator wrote.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")))
        .tls_config(TlsConfig::builder().root_certs(roots).build())
        .build()
        .into()
}

/// Posts JSON. An error never holds the address: it may be a secret.
pub(super) fn post(
    agent: &Agent,
    url: &str,
    token: Option<&str>,
    json: &str,
) -> Result<String, Failure> {
    let mut request = agent.post(url).content_type("application/json");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let mut answer = request.send(json).map_err(|error| match error {
        // Its text would be the address.
        ureq::Error::BadUri(_) => Failure::later("the address is malformed"),
        error => Failure::later(error.to_string()),
    })?;
    let status = answer.status();
    let after = answer
        .headers()
        .get("retry-after")
        .and_then(|value| value.to_str().ok()?.parse().ok());
    let body = answer
        .body_mut()
        .with_config()
        .limit(MAX_ANSWER)
        .read_to_string()
        .unwrap_or_default();
    let said = || format!("the server answered {status}");
    match status.as_u16() {
        200..=299 => Ok(body),
        // It will not take this event, ever.
        400 | 405 | 413 | 415 | 422 => Err(Failure::Refused(said())),
        _ => Err(Failure::Later {
            why: said(),
            after: after.or_else(|| retry_after(&body)).map(limited),
        }),
    }
}

/// Telegram says it in the body.
fn retry_after(body: &str) -> Option<u64> {
    let body: serde_json::Value = serde_json::from_str(body).ok()?;
    body["parameters"]["retry_after"].as_u64()
}

fn limited(seconds: u64) -> Duration {
    Duration::from_secs(seconds).min(MAX_AFTER)
}
