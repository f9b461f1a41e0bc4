//! The keys of one host, and which of them signs.

use jiff::Timestamp;

use crate::{
    KeyId, Secret,
    key_file::{Key, KeyState},
};

/// Keys by their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyRing {
    keys: Vec<Key>,
}

/// Two keys of one id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there are two keys with the id {0}: a token does not say which one it means")]
pub struct TwoKeys(pub KeyId);

impl KeyRing {
    /// The ring of these keys.
    ///
    /// # Errors
    /// Two have one id.
    pub fn new(mut keys: Vec<Key>) -> Result<Self, TwoKeys> {
        keys.sort_by_key(|key| key.id);
        match keys.windows(2).find(|pair| pair[0].id == pair[1].id) {
            Some(pair) => Err(TwoKeys(pair[0].id)),
            None => Ok(Self { keys }),
        }
    }

    /// All keys, by their numbers.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The keys whose tokens are accepted: all that are not retired.
    pub fn accepted(&self) -> impl Iterator<Item = (KeyId, &Secret)> {
        let keys = self.keys.iter();
        keys.filter_map(|key| Some((key.id, key.secret()?)))
    }

    /// The one that signs: of those that may by now the one that may since the least time.
    pub fn signing(&self, now: Timestamp) -> Option<(KeyId, &Secret)> {
        let may_sign = self.keys.iter().filter(|key| key.sign_from <= now);
        let live = may_sign.filter(|key| key.secret().is_some());
        let newest = live.max_by_key(|key| (key.sign_from, key.created, key.id))?;
        Some((newest.id, newest.secret()?))
    }

    /// A number that no key has, and none has had whose file is still there.
    pub fn free_id(&self) -> Option<KeyId> {
        KeyId::all().find(|id| self.get(*id).is_none())
    }

    /// The key of this number.
    pub fn get(&self, id: KeyId) -> Option<&Key> {
        self.keys.iter().find(|key| key.id == id)
    }

    /// What a key is good for now, in a word.
    pub fn use_of(&self, key: &Key, now: Timestamp) -> &'static str {
        match &key.state {
            KeyState::Retired(_) => "retired",
            KeyState::Live(_) if self.signing(now).is_some_and(|(id, _)| id == key.id) => "signs",
            KeyState::Live(_) if key.sign_from > now => "accepted, will sign",
            KeyState::Live(_) => "accepted",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: u8, sign_from: i64) -> Key {
        Key {
            id: KeyId::new(id).unwrap(),
            created: Timestamp::from_second(0).unwrap(),
            sign_from: Timestamp::from_second(sign_from).unwrap(),
            state: KeyState::Live(Secret::new([id; 32])),
        }
    }

    #[test]
    fn the_newest_that_may_sign_does_and_all_are_accepted() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let ring = KeyRing::new(vec![key(2, 200), key(1, 100)]).unwrap();
        let signing = |second| ring.signing(at(second)).map(|(id, _)| id.number());
        assert_eq!(signing(99), None);
        assert_eq!(signing(100), Some(1));
        assert_eq!(signing(199), Some(1));
        assert_eq!(signing(200), Some(2));
        assert_eq!(ring.accepted().count(), 2);
        assert_eq!(ring.free_id(), KeyId::new(3));
        let uses: Vec<_> = ring
            .keys()
            .iter()
            .map(|key| ring.use_of(key, at(150)))
            .collect();
        assert_eq!(uses, ["signs", "accepted, will sign"]);
        let retired = Key {
            state: KeyState::Retired(at(300)),
            ..key(2, 200)
        };
        let ring = KeyRing::new(vec![retired, key(1, 100)]).unwrap();
        assert_eq!(ring.signing(at(400)).unwrap().0, KeyId::MIN);
        assert_eq!(ring.accepted().count(), 1);
        assert_eq!(ring.use_of(&ring.keys()[1], at(400)), "retired");
    }

    #[test]
    fn an_id_is_that_of_one_key() {
        let error = KeyRing::new(vec![key(7, 1), key(1, 1), key(7, 2)]).unwrap_err();
        assert!(error.to_string().contains("two keys with the id 7"));
    }
}
