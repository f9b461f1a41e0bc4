//! One POST of JSON per event.

use ureq::Agent;

use super::{Deliver, Failure, http, record::Records};
use crate::{config::Secret, events::Event};

pub(super) struct Webhook {
    agent: Agent,
    url: Secret,
    token: Option<Secret>,
    records: Records,
}

impl Webhook {
    pub(super) fn new(
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
