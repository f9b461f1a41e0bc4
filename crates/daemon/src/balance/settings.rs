//! What an administrator says of single reals while the daemon runs (`weir real`): kept
//! in the state directory over restarts and reloads, until it is taken back or the real
//! leaves the configuration.

use std::{collections::BTreeMap, io, net::IpAddr, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::state_file;

/// A file of this many bytes has more reals than there can be.
const MOST_BYTES: u64 = 1 << 20;

/// May a real take flows?
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The real takes new flows while its checks succeed.
    #[default]
    Enabled,
    /// The real gets no new flows; those that it has stay.
    Draining,
    /// The real gets no flows: those that it has go elsewhere.
    Disabled,
}

impl Mode {
    /// The mode's word in answers and in the API.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Enabled => "enabled",
            Self::Draining => "draining",
            Self::Disabled => "disabled",
        }
    }
}

/// The setting of one real by `weir real`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Whether it takes flows.
    #[serde(default)]
    pub mode: Mode,
    /// The real's share, in place of the configuration's.
    #[serde(default)]
    pub weight: Option<u32>,
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
struct Kept {
    pool: String,
    real: IpAddr,
    #[serde(flatten)]
    setting: Setting,
}

/// Settings of all reals that `weir real` has named.
#[derive(Debug, Default)]
pub(super) struct Settings {
    path: PathBuf,
    all: BTreeMap<(String, IpAddr), Setting>,
}

impl Settings {
    /// Reads what an earlier daemon kept; none if there is no such file. A file that
    /// cannot be read is left as it is until something else is said.
    pub fn read(path: PathBuf) -> (Self, io::Result<()>) {
        let (all, read) = match state_file::read::<Vec<Kept>>(&path, MOST_BYTES) {
            Ok(all) => (all, Ok(())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (vec![], Ok(())),
            Err(error) => (vec![], Err(error)),
        };
        let all = all
            .into_iter()
            .map(|kept| ((kept.pool, kept.real), kept.setting));
        let all = all.collect();
        (Self { path, all }, read)
    }

    pub fn of(&self, pool: &str, real: IpAddr) -> Setting {
        let key = (pool.to_owned(), real);
        self.all.get(&key).copied().unwrap_or_default()
    }

    pub fn set(&mut self, pool: &str, real: IpAddr, setting: Setting) {
        let key = (pool.to_owned(), real);
        match setting == Setting::default() {
            true => self.all.remove(&key),
            false => self.all.insert(key, setting),
        };
    }

    /// Forgets those of reals that are no more; returns them.
    pub fn keep(&mut self, is_there: impl Fn(&str, IpAddr) -> bool) -> Vec<(String, IpAddr)> {
        let all = self.all.keys();
        let gone: Vec<_> = all
            .filter(|(pool, real)| !is_there(pool, *real))
            .cloned()
            .collect();
        self.all.retain(|key, _| !gone.contains(key));
        gone
    }

    /// Puts them on disk: all of them, or the file is as it was.
    pub fn save(&self) -> io::Result<()> {
        let lines = self.all.iter().map(|((pool, real), setting)| Kept {
            pool: pool.clone(),
            real: *real,
            setting: *setting,
        });
        state_file::write(&self.path, &lines.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_was_said_of_a_real_outlives_the_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reals.json");
        let (one, other) = (
            IpAddr::from([192, 0, 2, 11]),
            "2001:db8::12".parse().unwrap(),
        );
        let (mut settings, read) = Settings::read(path.clone());
        assert!(read.is_ok() && settings.of("web", one) == Setting::default());
        let draining = Setting {
            mode: Mode::Draining,
            weight: None,
        };
        let light = Setting {
            mode: Mode::Enabled,
            weight: Some(3),
        };
        settings.set("web", one, draining);
        settings.set("web", other, light);
        settings.save().unwrap();
        let (mut again, read) = Settings::read(path.clone());
        assert!(read.is_ok());
        assert_eq!(
            (again.of("web", one), again.of("web", other)),
            (draining, light)
        );
        assert_eq!(again.of("mail", one), Setting::default());
        // A real that leaves takes it along; one that is as configured has none.
        assert_eq!(
            again.keep(|_, real| real == one),
            [("web".to_owned(), other)]
        );
        again.set("web", one, Setting::default());
        again.save().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "[]");
        // What cannot be read is told, and not taken for nothing by the next save alone.
        for wrong in ["{", "[{\"pool\": \"web\", \"real\": \"x\"}]"] {
            fs::write(&path, wrong).unwrap();
            let (settings, read) = Settings::read(path.clone());
            assert!(read.is_err() && settings.all.is_empty(), "{wrong}");
            assert_eq!(fs::read_to_string(&path).unwrap(), wrong);
        }
    }
}
