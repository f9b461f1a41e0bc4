//! What Fail2ban's server replies: values of Python, of which clients tell tuples
//! from lists.

use serde::{Serialize, Serializer, ser::SerializeMap};

/// A value as the server has it. In JSON a tuple is a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// `None`, which a client shows in words of its own.
    None,
    /// `True` and `False`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A text of any length.
    Text(String),
    /// A list of any length.
    List(Vec<Reply>),
    /// A tuple: here always a name and what belongs to it.
    Tuple(Vec<Reply>),
    /// A dictionary with names as keys, in this order.
    Map(Vec<(String, Reply)>),
}

impl Reply {
    /// A list of names with what belongs to each.
    pub(super) fn pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, Reply)>) -> Self {
        Self::List(
            pairs
                .into_iter()
                .map(|(name, value)| Self::Tuple(vec![name.into(), value]))
                .collect(),
        )
    }

    /// A list of texts.
    pub(super) fn texts(texts: impl IntoIterator<Item = String>) -> Self {
        Self::List(texts.into_iter().map(Self::Text).collect())
    }
}

impl From<&str> for Reply {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Reply {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Reply {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<u64> for Reply {
    fn from(number: u64) -> Self {
        Self::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Reply {
    fn from(number: usize) -> Self {
        (number as u64).into()
    }
}

impl Serialize for Reply {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => to.serialize_none(),
            Self::Bool(value) => to.serialize_bool(*value),
            Self::Int(number) => to.serialize_i64(*number),
            Self::Text(text) => to.serialize_str(text),
            Self::List(values) | Self::Tuple(values) => to.collect_seq(values),
            Self::Map(pairs) => {
                let mut map = to.serialize_map(Some(pairs.len()))?;
                for (name, value) in pairs {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
        }
    }
}
