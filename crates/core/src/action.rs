//! What becomes of the packets that a ban covers.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The effect of a ban on packets: dropped silently, or rejected with an answer.
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
}

impl Action {
    /// The configuration's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Reject => "reject",
        }
    }

    /// The one that it is not.
    pub fn other(self) -> Self {
        match self {
            Self::Drop => Self::Reject,
            Self::Reject => Self::Drop,
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
        [Self::Drop, Self::Reject]
            .into_iter()
            .find(|action| action.name() == text)
            .ok_or_else(|| {
                let shown: String = text.chars().take(64).collect();
                format!("{shown:?} is not an action: \"drop\" or \"reject\"")
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_reads_as_it_is_written() {
        for action in [Action::Drop, Action::Reject] {
            assert_eq!(action.to_string().parse(), Ok(action));
            assert_eq!(
                serde_json::to_value(action).unwrap(),
                serde_json::json!(action.name())
            );
            assert_ne!(action.other(), action);
        }
        assert!("Drop".parse::<Action>().is_err());
        assert_eq!(Action::default(), Action::Drop);
    }
}
