//! `set JAIL bantime …` and its like: a jail's limits and whom it ignores, changed in the
//! running daemon. As in Fail2ban a reload, and a restart, goes by the files again.

use std::time::Duration;

use weir_core::{Prefix, policy::BanTime};

use super::{Reply, Unanswered, escaped, get, malformed};
use crate::{api::Handles, jails::JailConfig, service::Refusal};

/// The most prefixes that one jail may come to ignore this way.
const MAX_IGNORED: usize = 10_000;

/// A change of a jail.
pub(super) enum Change {
    BanTime(BanTime),
    FindTime(Duration),
    MaxRetry(u32),
    /// Whether they are to be ignored, or no longer.
    Ignore(bool, Vec<Prefix>),
}

/// What these words change; `None` if they are another command.
pub(super) fn read(words: &[&str]) -> Option<Result<Change, Unanswered>> {
    Some(match *words {
        ["bantime", time] => {
            length(time).map(|time| Change::BanTime(time.map_or(BanTime::Never, BanTime::For)))
        }
        ["findtime", time] => length(time).and_then(|time| match time {
            Some(time) => Ok(Change::FindTime(time)),
            None => Err(malformed(format!(
                "findtime {}: allowed: more than 0",
                escaped(words[1])
            ))),
        }),
        ["maxretry", number] => number.parse().map(Change::MaxRetry).map_err(|_| {
            malformed(format!(
                "maxretry {}: allowed: a number from 1",
                escaped(number)
            ))
        }),
        ["addignoreip", ref subjects @ ..] if !subjects.is_empty() => {
            prefixes(subjects).map(|all| Change::Ignore(true, all))
        }
        ["delignoreip", ref subjects @ ..] if !subjects.is_empty() => {
            prefixes(subjects).map(|all| Change::Ignore(false, all))
        }
        _ => return None,
    })
}

/// As Fail2ban writes it; `None` is for ever.
fn length(text: &str) -> Result<Option<Duration>, Unanswered> {
    weir_fail2ban::duration(text).map_err(|why| {
        malformed(format!(
            "{}: allowed: a time such as 600 or 10m: {why}",
            escaped(text)
        ))
    })
}

fn prefixes(words: &[&str]) -> Result<Vec<Prefix>, Unanswered> {
    let read = |word: &&str| Ok(word.parse::<Prefix>().map_err(Refusal::from)?);
    words.iter().map(read).collect()
}

/// Changes the jail, and says what it has now.
pub(super) fn carry_out(
    handles: &Handles,
    before: &JailConfig,
    change: Change,
) -> Result<Reply, Unanswered> {
    let name = &before.name;
    let what = match change {
        Change::BanTime(_) => "bantime",
        Change::FindTime(_) => "findtime",
        Change::MaxRetry(_) => "maxretry",
        Change::Ignore(..) => "ignoreip",
    };
    handles
        .reloader
        .change_jail(name, &mut |jail| put(jail, &change))?;
    let config = handles.questions.config();
    let now = get(handles, &config, super::jail(&config, name)?, &[what])?;
    tracing::info!("jail {name}: {what} changed by fail2ban-client set, until the next reload");
    Ok(now)
}

fn put(jail: &mut JailConfig, change: &Change) -> Result<(), Refusal> {
    let refuse = |why: String| Err(Refusal::Malformed(why));
    match change {
        Change::BanTime(_)
            if jail.limits.increment.is_some() || !jail.limits.ban_times.is_empty() =>
        {
            return refuse(format!(
                "bans of jail {} grow with each one (bantime.increment): change the jail in its configuration, then reload",
                jail.name
            ));
        }
        Change::BanTime(time) => jail.limits.ban_time = *time,
        Change::FindTime(time) => jail.limits.find_time = *time,
        Change::MaxRetry(number) => jail.limits.max_retry = *number,
        Change::Ignore(true, prefixes) => {
            if jail.ignore.len() + prefixes.len() > MAX_IGNORED {
                return refuse(format!(
                    "jail {} ignores {} prefixes already; allowed: {MAX_IGNORED}",
                    jail.name,
                    jail.ignore.len()
                ));
            }
            for prefix in prefixes {
                jail.ignore.insert(*prefix);
            }
        }
        Change::Ignore(false, prefixes) => {
            for prefix in prefixes {
                if !jail.ignore.remove(*prefix) {
                    return refuse(format!("jail {} does not ignore {prefix}", jail.name));
                }
            }
        }
    }
    Ok(())
}
