//! What the groups of an expression held, kept beyond the line.

use std::sync::Arc;

use super::groups::Key;

/// Values by their keys, in one piece of memory: each line that fits makes new ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    text: String,
    /// Where in `text` each stands, from and to.
    places: Vec<Option<(usize, usize)>>,
}

impl Said {
    pub fn of<'v>(values: impl ExactSizeIterator<Item = Option<&'v str>> + Clone) -> Self {
        let length = values.clone().flatten().map(str::len).sum();
        let mut said = Self {
            text: String::with_capacity(length),
            places: Vec::with_capacity(values.len()),
        };
        for value in values {
            let place = value.map(|value| {
                let begin = said.text.len();
                said.text.push_str(value);
                (begin, said.text.len())
            });
            said.places.push(place);
        }
        said
    }

    pub fn get(&self, key: Key) -> Option<&str> {
        let (begin, end) = self.places[key]?;
        Some(&self.text[begin..end])
    }

    /// Forgets the value of this key.
    pub fn unsay(&mut self, key: Key) {
        self.places[key] = None;
    }
}

/// What the groups of a match held, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupValues {
    /// Of all groups of the filter, in the order of their keys.
    names: Arc<[Arc<str>]>,
    said: Said,
}

impl GroupValues {
    pub(super) fn new(names: Arc<[Arc<str>]>, said: Said) -> Self {
        Self { names, said }
    }

    /// The names and values of the groups that held something.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &str)> {
        let places = self.names.iter().zip(&self.said.places);
        places.filter_map(|(name, place)| {
            let (begin, end) = (*place)?;
            Some((name, &self.said.text[begin..end]))
        })
    }

    /// What the group of this name held.
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.iter().find(|(known, _)| ***known == *name)?;
        Some(value)
    }
}
