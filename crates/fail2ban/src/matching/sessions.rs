//! What the lines of one session (`<F-MLFID>`: a connection, a process) have told, until
//! one of them tells enough: who it is, or that it was no failure after all.

use std::{
    collections::{BTreeSet, HashMap, VecDeque, hash_map::Entry},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};

use super::{
    group_values::Said,
    groups::{Key, MLFFORGET, MLFGAINED, NOFAIL, USER, Value, Values},
};

/// The most sessions that are remembered; the oldest makes room.
pub const MAX_SESSIONS: usize = 100;
/// How long one is remembered.
pub const SESSION_TIME: SignedDuration = SignedDuration::from_mins(5);

/// The longest name of a session, and the most users of one: text of whoever writes.
const MAX_NAME: usize = 512;
const MAX_USERS: usize = 100;
/// The most lines of one that are kept.
const MAX_LINES: usize = 100;

/// A line as it was read, and where its date stands in it (bytes; an empty range: nowhere).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WholeLine {
    /// Without its newline.
    pub text: String,
    /// The bytes that say when.
    pub date: (usize, usize),
}

/// What the lines of one session hold together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// What the session's lines have said.
    pub said: Said,
    /// All that were tried.
    pub users: BTreeSet<Box<str>>,
    /// Lines that tell of the failure.
    pub matches: u32,
    /// Lines that told of none, and may yet.
    nofail_matches: u32,
    /// The lines themselves, where somebody wants them.
    pub lines: Vec<Arc<WholeLine>>,
    nofail_lines: Vec<Arc<WholeLine>>,
    /// A failure of somebody whom no line has named yet.
    pub pending: bool,
}

impl Session {
    /// What a line said under this key, if anything.
    pub fn get(&self, key: Key) -> Option<&str> {
        self.said.get(key)
    }

    fn says(&self, key: Key) -> bool {
        self.get(key).is_some_and(|value| !value.is_empty())
    }

    fn tries(&mut self, user: Option<&Value<'_>>) {
        if let Some(user) = user.map(Value::as_str).filter(|user| !user.is_empty())
            && self.users.len() < MAX_USERS
            && !self.users.contains(user)
        {
            self.users.insert(user.into());
        }
    }
}

/// The sessions that are remembered.
#[derive(Clone, Debug, Default)]
pub struct Sessions {
    by_name: HashMap<Arc<str>, Kept>,
    /// The oldest first; those that are forgotten as well, for a while.
    order: VecDeque<(u64, Arc<str>)>,
    next: u64,
}

#[derive(Clone, Debug)]
struct Kept {
    number: u64,
    until: Timestamp,
    session: Session,
}

impl Sessions {
    /// What the session tells with a match that says `values` and has `lines` lines, which
    /// are `wholes` if they are to be kept; it is to be given back by [`put`](Self::put) if
    /// that says so.
    pub fn merge(
        &mut self,
        name: &str,
        mut values: Values<'_>,
        (lines, wholes): (u32, &[Arc<WholeLine>]),
        now: Timestamp,
    ) -> (Session, bool) {
        let says = |values: &Values<'_>, key: Key| {
            values[key]
                .as_ref()
                .is_some_and(|value| !value.as_str().is_empty())
        };
        let mut gained = says(&values, MLFGAINED);
        let mut nofail = gained || says(&values, NOFAIL);
        if gained && !says(&values, NOFAIL) {
            values[NOFAIL] = values[MLFGAINED].clone();
        }
        let forgets = says(&values, MLFFORGET);
        values[MLFFORGET] = None;
        let (mut session, keeps, mut counts_users) = match self.take(name, now) {
            Some(mut session) => {
                session.tries(values[USER].as_ref());
                let was_nofail = [NOFAIL, MLFGAINED].map(|key| {
                    let was = session.says(key);
                    session.said.unsay(key);
                    was
                });
                if gained {
                    session.pending = false;
                }
                if was_nofail == [false, false] && !session.pending {
                    session.matches = 0;
                    session.lines.clear();
                }
                let both = values.iter().enumerate().map(|(key, value)| match value {
                    Some(value) => Some(value.as_str()),
                    None => session.get(key),
                });
                session.said = Said::of(both);
                (session, !forgets, true)
            }
            None => {
                let own = values.iter();
                let mut session = Session {
                    said: Said::of(own.map(|value| value.as_ref().map(Value::as_str))),
                    ..Session::default()
                };
                if !forgets {
                    session.tries(values[USER].as_ref());
                }
                (session, !forgets, !forgets)
            }
        };
        counts_users &= session.users.len() > 1;
        if std::mem::take(&mut session.pending) || counts_users {
            session.said.unsay(NOFAIL);
            session.said.unsay(MLFGAINED);
            (nofail, gained) = (false, false);
        }
        if !nofail {
            let more = match gained {
                true => 0,
                false => lines,
            };
            let before = std::mem::take(&mut session.nofail_matches);
            session.matches = (session.matches)
                .saturating_add(before)
                .saturating_add(more);
            let before = std::mem::take(&mut session.nofail_lines);
            session.lines.extend(before);
            if !gained {
                session.lines.extend_from_slice(wholes);
            }
        } else if !forgets {
            session.nofail_matches = session.nofail_matches.saturating_add(lines);
            session.nofail_lines.extend_from_slice(wholes);
        }
        session.lines.truncate(MAX_LINES);
        session.nofail_lines.truncate(MAX_LINES);
        (session, keeps)
    }

    /// Takes one that is not too old; its place stays.
    fn take(&mut self, name: &str, now: Timestamp) -> Option<Session> {
        let kept = self.by_name.get_mut(name)?;
        if kept.until <= now {
            self.forget(name);
            return None;
        }
        Some(std::mem::take(&mut kept.session))
    }

    /// Forgets the session of this name.
    pub fn forget(&mut self, name: &str) {
        self.by_name.remove(name);
        if self.order.len() > 2 * MAX_SESSIONS {
            let known = &self.by_name;
            self.order
                .retain(|(number, name)| known.get(name).is_some_and(|k| k.number == *number));
        }
    }

    /// Remembers one, at its old place or as the newest.
    pub fn put(&mut self, name: &str, session: Session, now: Timestamp) {
        if let Some(kept) = self.by_name.get_mut(name) {
            kept.session = session;
            return;
        }
        if name.len() > MAX_NAME {
            return;
        }
        while self.by_name.len() >= MAX_SESSIONS {
            let Some((number, oldest)) = self.order.pop_front() else {
                break;
            };
            if let Entry::Occupied(kept) = self.by_name.entry(oldest)
                && kept.get().number == number
            {
                kept.remove();
            }
        }
        let kept = Kept {
            number: self.next,
            until: now.saturating_add(SESSION_TIME).unwrap_or(Timestamp::MAX),
            session,
        };
        let name: Arc<str> = name.into();
        self.order.push_back((self.next, name.clone()));
        self.next += 1;
        self.by_name.insert(name, kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten thousand ids are a hundred sessions.
    #[test]
    fn the_oldest_make_room() {
        let mut all = Sessions::default();
        let now = Timestamp::UNIX_EPOCH;
        let values = || vec![None; 12];
        for n in 0..10_000 {
            let name = format!("pid {n}");
            let (session, keeps) = all.merge(&name, values(), (1, &[]), now);
            assert!(keeps);
            all.put(&name, session, now);
            if n % 3 == 0 {
                all.forget(&name);
            }
        }
        assert!(all.by_name.len() <= MAX_SESSIONS && all.order.len() <= 3 * MAX_SESSIONS);
        let (known, _) = all.merge("pid 9998", values(), (1, &[]), now);
        assert_eq!(known.matches, 1);
        let late = now + SESSION_TIME;
        all.put(
            "pid 9998",
            Session {
                pending: true,
                ..known.clone()
            },
            now,
        );
        let (pending, _) = all.merge("pid 9998", values(), (1, &[]), now);
        assert_eq!(pending.matches, 2);
        all.put(
            "pid 9998",
            Session {
                pending: true,
                ..pending
            },
            now,
        );
        assert_eq!(all.merge("pid 9998", values(), (1, &[]), late).0.matches, 1);
    }
}
