//! Messages of a Telegram bot, one per event: `sendMessage` of the Bot API. The
//! token is a part of the address, which therefore appears nowhere.

use serde_json::json;
use ureq::Agent;

use crate::{Deliver, Failure, format::Records, http};
use weir_events::Event;

use crate::config::Secret;

/// The longest message, in characters.
const MAX_TEXT: usize = 4096;

pub(crate) struct Telegram {
    agent: Agent,
    url: Secret,
    chat_id: String,
    records: Records,
}

impl Telegram {
    pub(crate) fn new(api: &str, token: &Secret, chat_id: String, records: Records) -> Self {
        let url = format!("{api}/bot{}/sendMessage", token.reveal());
        Self {
            agent: http::agent(None),
            url: Secret::from(url.as_str()),
            chat_id,
            records,
        }
    }
}

impl Deliver for Telegram {
    fn deliver(&mut self, event: &Event) -> Result<(), Failure> {
        let text: String = self.records.text(event).chars().take(MAX_TEXT).collect();
        // No parse_mode: what an attacker wrote stays text.
        let message = json!({
            "chat_id": self.chat_id,
            "text": text,
            "link_preview_options": { "is_disabled": true },
        });
        http::post(&self.agent, self.url.reveal(), None, &message.to_string()).map(drop)
    }
}
