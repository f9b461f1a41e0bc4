//! The decision that all of weir is about: a ban, who made it and until when.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Action, BanTarget, PortSet};

/// The source of a ban: an administrator, a jail, a watch, a list or a port. Eviction at
/// the cap stays inside the producer that overflows; manual bans are never evicted.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum BanSource {
    /// An administrator: `weir ban` or the API.
    Manual,
    /// The jail of this name.
    Jail(String),
    /// The list of this name.
    List(String),
    /// A decoy port.
    Decoy,
    /// A tarpit port.
    Tarpit,
    /// The geofence: it drops flows, and bans nobody.
    Geofence,
    /// The watch of this name: a command that prints addresses.
    Watch(String),
}

impl BanSource {
    /// The name under which the ledger counts for it, if it does: a jail's is
    /// the jail's own, any other is written as the producer is, with a colon
    /// that no jail's name has.
    pub fn ledger_name(&self) -> Option<String> {
        match self {
            Self::Jail(name) => Some(name.clone()),
            Self::Watch(_) => Some(self.to_string()),
            Self::Manual | Self::List(_) | Self::Decoy | Self::Tarpit | Self::Geofence => None,
        }
    }

    /// The way back.
    pub fn of_ledger_name(name: &str) -> Self {
        match name.split_once(':') {
            Some(("watch", watch)) => Self::Watch(watch.to_owned()),
            _ => Self::Jail(name.to_owned()),
        }
    }
}

impl fmt::Display for BanSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manual => f.write_str("manual"),
            Self::Jail(name) => write!(f, "jail:{name}"),
            Self::List(name) => write!(f, "list:{name}"),
            Self::Decoy => f.write_str("decoy"),
            Self::Tarpit => f.write_str("tarpit"),
            Self::Geofence => f.write_str("geofence"),
            Self::Watch(name) => write!(f, "watch:{name}"),
        }
    }
}

/// The longest name of a jail, list or watch, in bytes: it is stored in the kernel
/// beside the ban.
pub const MAX_NAME: usize = 48;

impl FromStr for BanSource {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("jail", name)) if !name.is_empty() => Ok(Self::Jail(name.to_owned())),
            Some(("list", name)) if !name.is_empty() => Ok(Self::List(name.to_owned())),
            Some(("watch", name)) if !name.is_empty() => Ok(Self::Watch(name.to_owned())),
            None if text == "manual" => Ok(Self::Manual),
            None if text == "decoy" => Ok(Self::Decoy),
            None if text == "tarpit" => Ok(Self::Tarpit),
            None if text == "geofence" => Ok(Self::Geofence),
            _ => Err(format!(
                "{text:?} is not a producer: manual, decoy, tarpit, jail:NAME, list:NAME or watch:NAME"
            )),
        }
    }
}

impl Serialize for BanSource {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BanSource {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// When a ban ends, by the wall clock. The kernel's own expiry is in jiffies
/// (see `weir-enforce`); this is what people and the database read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Until {
    /// The ban ends at this moment.
    At(Timestamp),
    /// The ban never ends by itself, only when somebody lifts it; `null` in JSON.
    Never,
}

impl Until {
    /// Whether the end has passed at `now`.
    pub fn is_over(self, now: Timestamp) -> bool {
        matches!(self, Self::At(end) if end <= now)
    }
}

/// A subject that may not talk to this host, within a scope, until an end.
/// (subject, scope, producer) names a ban: the same again replaces it, with
/// whatever action.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ban {
    /// The addresses that are banned.
    pub subject: BanTarget,
    /// The ports on which they are.
    pub scope: PortSet,
    /// The administrator, jail, watch, list or port that decided the ban.
    pub producer: BanSource,
    /// Whether packets of the ban are dropped or rejected, or the ban only notifies.
    #[serde(default)]
    pub action: Action,
    /// The reason, in words for a person; somebody else's text in it is escaped when
    /// printed.
    pub reason: String,
    /// The time of the decision.
    pub since: Timestamp,
    /// The time when the ban expires.
    pub until: Until,
    /// The last lines or events that led to it, oldest first; bounded by the producer.
    #[serde(default)]
    pub evidence: Vec<String>,
}

/// What policy tells enforcement to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Put this ban into force.
    Ban(Ban),
    /// Lift bans of a subject: of one producer and scope, or all (`None`).
    Unban {
        /// The addresses whose bans are lifted.
        subject: BanTarget,
        /// Only the bans of this producer; all producers when `None`.
        producer: Option<BanSource>,
        /// Only bans of this scope; all scopes when `None`.
        scope: Option<PortSet>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_producer_reads_as_it_is_written() {
        for (producer, ledger) in [
            (BanSource::Manual, None),
            (BanSource::Decoy, None),
            (BanSource::Tarpit, None),
            (BanSource::List("spamhaus".into()), None),
            (BanSource::Jail("sshd".into()), Some("sshd")),
            (BanSource::Watch("mail".into()), Some("watch:mail")),
        ] {
            assert_eq!(producer.to_string().parse(), Ok(producer.clone()));
            let name = producer.ledger_name();
            assert_eq!(name.as_deref(), ledger);
            if let Some(name) = name {
                assert_eq!(BanSource::of_ledger_name(&name), producer);
            }
        }
        for wrong in ["", "watch", "watch:", "jail:", "list:", "guard:mail"] {
            assert!(wrong.parse::<BanSource>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn json_says_null_for_a_ban_without_end() {
        let ban = Ban {
            subject: "192.0.2.7".parse().unwrap(),
            scope: "22/tcp".parse().unwrap(),
            producer: BanSource::Jail("sshd".into()),
            action: Action::Drop,
            reason: "5 failures".into(),
            since: Timestamp::UNIX_EPOCH,
            until: Until::Never,
            evidence: vec![],
        };
        let json = serde_json::to_value(&ban).unwrap();
        assert_eq!(json["until"], serde_json::Value::Null);
        assert_eq!(json["producer"], "jail:sshd");
        assert_eq!(serde_json::from_value::<Ban>(json).unwrap(), ban);
    }
}
