//! One POST of JSON per event.

use ureq::Agent;

use crate::{Deliver, Failure, format::Records, http};
use weir_events::Event;

use crate::config::Secret;

pub(crate) struct Webhook {
    agent: Agent,
    url: Secret,
    token: Option<Secret>,
    records: Records,
}

impl Webhook {
    pub(crate) fn new(
        url: Secret,
        token: Option<Secret>,
        ca: Option<&str>,
        records: Records,
    ) -> Self {
        Self {
            agent: http::agent(ca),
            url,
            token,
            records,
        }
    }
}

impl Deliver for Webhook {
    fn deliver(&mut self, event: &Event) -> Result<(), Failure> {
        let Some(json) = self.records.json(event) else {
            return Ok(());
        };
        let token = self.token.as_ref().map(Secret::reveal);
        http::post(&self.agent, self.url.reveal(), token, &json).map(drop)
    }
}
