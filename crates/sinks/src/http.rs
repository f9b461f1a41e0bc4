//! What the sinks that speak HTTP share: one client with limits, whom it
//! trusts, and what an answer means for the event that was sent.

use std::time::Duration;

use ureq::{
    Agent,
    tls::{RootCerts, TlsConfig},
};
use weir_sources::certificates;

use crate::Failure;

/// A request is over within this time.
const WITHIN: Duration = Duration::from_secs(10);
/// Bytes of an answer that are read.
const MAX_ANSWER: u64 = 64 * 1024;
/// Longer than this nobody is left alone because a server says so.
const MAX_AFTER: Duration = Duration::from_secs(3600);

/// A client that trusts those who sign in `ca`, or whom the system trusts.
pub(crate) fn agent(ca: Option<&str>) -> Agent {
    let roots = match ca {
        // Checked with the configuration; never more than it names.
        Some(pem) => {
            certificates::of(pem.as_bytes()).unwrap_or_else(|_| RootCerts::new_with_certs(&[]))
        }
        None => certificates::of_system(),
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
pub(crate) fn post(
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
        // Too early, too many, somewhere else for now: it may, later.
        302 | 303 | 307 | 408 | 425 | 429 | 500.. => Err(Failure::Later {
            why: said(),
            after: after.or_else(|| retry_after(&body)).map(limited),
        }),
        // It will not take this event, whether for the event's sake or because
        // address or token are wrong: the events behind it must not wait for
        // somebody to mend that.
        _ => Err(Failure::Refused(said())),
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
