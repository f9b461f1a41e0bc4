//! Which entries of the systemd journal a filter reads, in the words of journalctl
//! and of Fail2ban's `journalmatch`: `FIELD=VALUE`, of which values of one field
//! are alternatives and different fields must all fit, and `+` between sets of
//! them, any of which may fit. Only fields that journald itself sets choose
//! entries, and each set must say whose process it was: anybody can give a
//! program any name.

use std::fmt;

/// Fields that only journald sets, and that say who wrote an entry.
pub const TRUSTED: [&str; 4] = ["_SYSTEMD_UNIT", USER, "_COMM", "_EXE"];

const USER: &str = "_UID";

/// A field and its value.
pub type JournalField = (String, String);

/// Sets of fields, any of which an entry has; none where nothing is said.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct JournalMatch(Vec<Vec<JournalField>>);

/// What is wrong with one of the words, or with a set of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalMatchError {
    /// The number of the word, from 0; `None`: it is the whole list.
    pub word: Option<usize>,
    text: String,
    wrong: Wrong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    NoValue,
    NotTrusted,
    NoNumber,
    Empty,
    NotWhose,
    SomeUsers,
}

impl fmt::Display for JournalMatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ", self.text)?;
        match self.wrong {
            Wrong::NoValue => f.write_str("has no \"=\"; allowed: FIELD=VALUE, and + between sets of them"),
            Wrong::NotTrusted => write!(
                f,
                "can be written by anybody, or says nothing of who wrote; allowed: {}",
                TRUSTED.join(", ")
            ),
            Wrong::NoNumber => f.write_str("is not a user's number; allowed: _UID=NUMBER"),
            Wrong::Empty => f.write_str("has nothing behind \"=\", and fits no entry; allowed: FIELD=VALUE"),
            Wrong::SomeUsers => f.write_str(
                "names a user in some of its sets only; allowed: _UID=… in each set between +, or in none",
            ),
            Wrong::NotWhose => f.write_str(
                "does not say whose process it is, and anybody can name a program; allowed: with _SYSTEMD_UNIT=… or _UID=…",
            ),
        }
    }
}

impl std::error::Error for JournalMatchError {}

impl JournalMatch {
    /// Reads it as it is written.
    ///
    /// # Errors
    /// The first mistake.
    pub fn parse<'a>(
        words: impl IntoIterator<Item = &'a str> + Clone,
    ) -> Result<Self, JournalMatchError> {
        let mut sets = vec![Vec::new()];
        for (number, word) in words.clone().into_iter().enumerate() {
            let error = |text: &str, wrong| JournalMatchError {
                word: Some(number),
                text: text.to_owned(),
                wrong,
            };
            if word == "+" {
                sets.push(Vec::new());
                continue;
            }
            let (field, value) = word
                .split_once('=')
                .ok_or_else(|| error(word, Wrong::NoValue))?;
            if !TRUSTED.contains(&field) {
                return Err(error(field, Wrong::NotTrusted));
            }
            let value = match field {
                _ if value.is_empty() => return Err(error(word, Wrong::Empty)),
                USER => match value.parse::<u32>() {
                    Ok(number) => number.to_string(),
                    Err(_) => return Err(error(value, Wrong::NoNumber)),
                },
                _ => value.to_owned(),
            };
            let last = sets.last_mut().expect("there is always one");
            last.push((field.to_owned(), value));
        }
        let names = |field: &str| {
            let names = move |set: &Vec<JournalField>| set.iter().any(|(f, _)| f == field);
            sets.iter().map(names).collect::<Vec<_>>()
        };
        let (users, units) = (names(USER), names(TRUSTED[0]));
        let wrong = if users.iter().zip(&units).any(|(user, unit)| !user && !unit) {
            Wrong::NotWhose
        } else if users.contains(&true) && users.contains(&false) {
            // Whose user is named is believed, whoever that is: a set that names none
            // would be believed for it, and an entry does not say which set it fits.
            Wrong::SomeUsers
        } else {
            return Ok(Self(sets));
        };
        Err(JournalMatchError {
            word: None,
            text: words.into_iter().collect::<Vec<_>>().join(" "),
            wrong,
        })
    }

    /// Sets of any fields, as an administrator has written them for another program: who
    /// wrote an entry is for the source to ask.
    pub fn of_any_fields(sets: Vec<Vec<JournalField>>) -> Self {
        Self(sets)
    }

    /// Whether no field is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Alternatives: an entry fits if all fields of one set do.
    pub fn sets(&self) -> &[Vec<JournalField>] {
        &self.0
    }

    /// The users that it names, by number.
    pub fn users(&self) -> impl Iterator<Item = u32> {
        let fields = self.0.iter().flatten();
        fields.filter_map(|(field, value)| value.parse().ok().filter(|_| field == USER))
    }
}

/// The sets in the form of the configuration.
impl fmt::Display for JournalMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, set) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str(" +")?;
            }
            for (place, (field, value)) in set.iter().enumerate() {
                let blank = if (number, place) == (0, 0) { "" } else { " " };
                write!(f, "{blank}{field}={value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_fields_are_read_as_journalctl_reads_them() {
        for (text, sets, users) in [
            ("_UID=0", 1, &[0][..]),
            ("_SYSTEMD_UNIT=a.service _SYSTEMD_UNIT=b.service", 1, &[]),
            ("_SYSTEMD_UNIT=a + _SYSTEMD_UNIT=b _COMM=x", 2, &[]),
            ("_COMM=sshd _UID=0 + _UID=0 _COMM=x", 2, &[0, 0]),
            (
                "_UID=7 + _UID=1000 + _UID=9 _SYSTEMD_UNIT=a=b",
                3,
                &[7, 1000, 9],
            ),
        ] {
            let read = JournalMatch::parse(text.split(' ')).expect(text);
            assert_eq!(read.to_string(), text);
            assert_eq!(read.sets().len(), sets, "{text}");
            assert!(read.users().eq(users.iter().copied()), "{text}");
            assert!(!read.is_empty());
        }
        assert!(JournalMatch::default().is_empty());
    }

    #[test]
    fn what_anybody_can_write_chooses_nothing() {
        for (text, word, said) in [
            ("_COMM=sshd", None, "\"_COMM=sshd\" does not say whose"),
            ("_UID=0 + _COMM=sshd", None, "does not say whose process"),
            ("_UID=0 +", None, "\"_UID=0 +\" does not say whose"),
            ("_UID=0 SYSLOG_IDENTIFIER=x", Some(1), "written by anybody"),
            ("_UID=root", Some(0), "\"root\" is not a user's number"),
            ("_UID=0 x", Some(1), "\"x\" has no \"=\""),
            (
                "_UID=0 _SYSTEMD_UNIT=",
                Some(1),
                "\"_SYSTEMD_UNIT=\" has nothing behind \"=\"",
            ),
            ("_UID=", Some(0), "has nothing behind"),
            (
                "_UID=1000 + _SYSTEMD_UNIT=ssh.service",
                None,
                "\"_UID=1000 + _SYSTEMD_UNIT=ssh.service\" names a user in some of its sets only; allowed: _UID=… in each set between +, or in none",
            ),
        ] {
            let error = JournalMatch::parse(text.split(' ')).expect_err(text);
            assert_eq!(error.word, word, "{text}");
            assert!(error.to_string().contains(said), "{text}: {error}");
        }
        let error = JournalMatch::parse([]).unwrap_err().to_string();
        assert!(
            error.contains("does not say whose process it is"),
            "{error}"
        );
    }
}
