//! A secret as its file has it: a few lines of TOML. No message here repeats what stands in
//! the file.

use jiff::Timestamp;
use serde::Deserialize;

use crate::{KeyId, Secret};

/// A key file is no longer than this, in bytes.
pub const MAX_BYTES: usize = 4096;

/// What a file of keys says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The id that stands in its tokens.
    pub id: KeyId,
    /// The time at which the key was made.
    pub created: Timestamp,
    /// From when on it may sign. It is accepted at once, so that all hosts know it by then.
    pub sign_from: Timestamp,
    /// The secret, or when it was retired.
    pub state: KeyState,
}

/// Is a key good?
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyState {
    /// The key is accepted, and may sign.
    Live(Secret),
    /// It is over, and its secret is gone.
    Retired(Timestamp),
}

/// Why a file is no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    /// It is no TOML, or has other keys.
    #[error("line {line}: {message}")]
    Toml {
        /// Counted from 1, in the file.
        line: usize,
        /// Without the text of the file.
        message: String,
    },
    /// A value is not what it has to be.
    #[error("{key} is {wrong}; allowed: {allowed}")]
    Value {
        /// The key in the file.
        key: &'static str,
        /// The mistake in the value.
        wrong: &'static str,
        /// What may stand there.
        allowed: &'static str,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    id: Option<toml::Value>,
    created: Option<toml::Value>,
    sign_from: Option<toml::Value>,
    retired: Option<toml::Value>,
    secret: Option<toml::Value>,
}

const TIME: &str = "a time such as \"2026-11-25T22:00:00Z\"";
const SECRET: &str = "64 hexadecimal digits, unless the key is retired";

fn time(key: &'static str, value: Option<&toml::Value>) -> Result<Option<Timestamp>, KeyFileError> {
    let Some(value) = value else { return Ok(None) };
    let parsed = value.as_str().and_then(|text| text.parse().ok());
    parsed.map(Some).ok_or(KeyFileError::Value {
        key,
        wrong: "no time",
        allowed: TIME,
    })
}

impl Key {
    /// Reads a file.
    ///
    /// # Errors
    /// It is no key; what stands in it is not said.
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        let value = |key, wrong, allowed| KeyFileError::Value {
            key,
            wrong,
            allowed,
        };
        let raw: Raw = toml::from_str(text).map_err(|error| KeyFileError::Toml {
            line: error.span().map_or(1, |span| {
                let before = &text.as_bytes()[..span.start.min(text.len())];
                before.iter().filter(|byte| **byte == b'\n').count() + 1
            }),
            // Its other words may be those of the secret.
            message: match error.message().strip_prefix("unknown field") {
                Some(_) => {
                    "unknown key; allowed: id, created, sign_from, retired, secret".to_owned()
                }
                None => "this is no TOML".to_owned(),
            },
        })?;
        let id = raw.id.as_ref().and_then(toml::Value::as_integer);
        let id = id.and_then(|id| KeyId::new(u8::try_from(id).ok()?));
        let id = id.ok_or(value("id", "missing or no number", "1 to 255"))?;
        let created = time("created", raw.created.as_ref())?;
        let created = created.ok_or(value("created", "missing", TIME))?;
        let sign_from = time("sign_from", raw.sign_from.as_ref())?.unwrap_or(created);
        let retired = time("retired", raw.retired.as_ref())?;
        let state = match (retired, raw.secret) {
            (Some(retired), None) => KeyState::Retired(retired),
            (None, Some(secret)) => {
                let secret = secret.as_str().and_then(|text| text.parse().ok());
                KeyState::Live(secret.ok_or(value("secret", "none", SECRET))?)
            }
            (None, None) => return Err(value("secret", "missing", SECRET)),
            (Some(_), Some(_)) => {
                return Err(value("secret", "there though the key is retired", SECRET));
            }
        };
        Ok(Self {
            id,
            created,
            sign_from,
            state,
        })
    }

    /// As [`Self::parse`] reads it, with the secret.
    pub fn text(&self) -> String {
        let mut text = format!(
            "# A key of weir's tokens. Whoever has it can sign as any program: readable for root only,\n# and copied to the hosts that prove something to each other.\nid = {}\ncreated = \"{}\"\nsign_from = \"{}\"\n",
            self.id, self.created, self.sign_from
        );
        text.push_str(&match &self.state {
            KeyState::Live(secret) => format!("secret = \"{}\"\n", secret.to_hex()),
            KeyState::Retired(at) => format!("retired = \"{at}\"\n"),
        });
        text
    }

    /// The secret, unless it is retired.
    pub fn secret(&self) -> Option<&Secret> {
        match &self.state {
            KeyState::Live(secret) => Some(secret),
            KeyState::Retired(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key {
            id: KeyId::new(3).unwrap(),
            created: "2026-11-25T22:00:00Z".parse().unwrap(),
            sign_from: "2026-11-25T23:00:00Z".parse().unwrap(),
            state: KeyState::Live(Secret::new([0xab; 32])),
        }
    }

    #[test]
    fn a_key_is_read_as_it_is_written() {
        let live = key();
        assert_eq!(Key::parse(&live.text()), Ok(live.clone()));
        let retired = Key {
            state: KeyState::Retired(live.sign_from),
            ..live
        };
        let text = retired.text();
        assert!(!text.contains("abab"), "{text}");
        assert_eq!(Key::parse(&text), Ok(retired));
    }

    #[test]
    fn mistakes_are_named_without_the_secret() {
        let text = key().text();
        let digits = "ab".repeat(32);
        for (from, to, told) in [
            (
                "id = 3",
                "id = 0",
                "id is missing or no number; allowed: 1 to 255",
            ),
            ("id = 3", "id = 256", "id is missing or no number"),
            ("id = 3\n", "", "id is missing"),
            (
                "T22:00:00Z",
                "",
                "created is no time; allowed: a time such as",
            ),
            (
                "created",
                "made",
                "line 4: unknown key; allowed: id, created",
            ),
            (
                &digits[2..],
                "",
                "secret is none; allowed: 64 hexadecimal digits",
            ),
            ("secret = \"", "secret = \"x", "secret is none"),
            ("secret = \"", "secret = ", "this is no TOML"),
            ("secret = \"", "secrets = \"", "unknown key"),
            (
                "secret =",
                "retired = \"2026-11-25T22:00:00Z\"\nsecret =",
                "secret is there though the key is retired",
            ),
        ] {
            let changed = text.replacen(from, to, 1);
            let changed = match from {
                "created" => text.replace("\ncreated", "\nmade"),
                _ => changed,
            };
            let error = Key::parse(&changed).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(told), "{changed}: {shown}");
            assert!(!shown.contains("abab"), "{shown}");
        }
    }
}
