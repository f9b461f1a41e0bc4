//! What becomes of the packets that a ban covers, if anything does.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The effect of a ban on packets: dropped silently, rejected with an answer, or none.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The packet is dropped without an answer: the other side waits until it gives up.
    #[default]
    Drop,
    /// The packet is answered at once: a TCP reset, or ICMP "administratively prohibited".
    Reject,
    /// No packet is denied. The ban is counted and told, and the commands that its jail runs
    /// hear of it and of its end.
    Notify,
}

impl Action {
    /// All actions, by their words in the configuration and the database.
    pub const ALL: [Self; 3] = [Self::Drop, Self::Reject, Self::Notify];

    /// The configuration's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Reject => "reject",
            Self::Notify => "notify",
        }
    }

    /// Whether packets are denied by it. [`Action::Notify`] denies none.
    pub fn denies_packets(self) -> bool {
        self != Self::Notify
    }

    /// The other one of those that deny packets; of [`Action::Notify`] there is no other one.
    pub fn other(self) -> Self {
        match self {
            Self::Drop => Self::Reject,
            Self::Reject => Self::Drop,
            Self::Notify => Self::Notify,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Action {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|action| action.name() == text)
            .ok_or_else(|| {
                let shown: String = text.chars().take(64).collect();
                format!("{shown:?} is not an action: \"drop\", \"reject\" or \"notify\"")
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_reads_as_it_is_written() {
        for action in Action::ALL {
            assert_eq!(action.to_string().parse(), Ok(action));
            assert_eq!(
                serde_json::to_value(action).unwrap(),
                serde_json::json!(action.name())
            );
            assert_eq!(action.other() != action, action.denies_packets());
        }
        assert!("Drop".parse::<Action>().is_err());
        assert_eq!(Action::default(), Action::Drop);
    }
}
