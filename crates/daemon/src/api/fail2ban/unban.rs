//! `unban`, `banned` and `reload --unban`: also of jails that are not run any more, or cannot
//! be run, since their bans go on.

use std::{collections::BTreeSet, ops::RangeInclusive};

use weir_core::{BanSource, Prefix};

use super::{
    Handles, Refusal, Reply, Unanswered, addresses, escaped, in_force, is_banned, lift, malformed,
};

/// The lengths of IPv6 prefixes that jails count by, but for whole addresses.
const COUNTED: RangeInclusive<u8> = 32..=64;

/// The jails that have bans in force and do not run.
pub(super) fn jails_away(handles: &Handles) -> Result<BTreeSet<String>, Unanswered> {
    let config = handles.questions.config();
    let bans = handles.questions.bans_in_force(None)?;
    let names = bans
        .into_iter()
        .filter_map(|entry| match &entry.policy.producer {
            BanSource::Jail(name) => Some(name.clone()),
            _ => None,
        });
    let runs = |name: &String| config.jails.iter().any(|jail| jail.name == *name);
    Ok(names.filter(|name| !runs(name)).collect())
}

/// All bans, by jail.
pub(super) fn banned(handles: &Handles) -> Result<Reply, Unanswered> {
    let config = handles.questions.config();
    let names = config.jails.iter().map(|jail| jail.name.clone());
    let jails = names.chain(jails_away(handles)?).map(|name| {
        let banned = addresses(&in_force(handles, &name)?);
        Ok(Reply::Map(vec![(name, Reply::texts(banned))]))
    });
    jails.collect::<Result<_, Unanswered>>().map(Reply::List)
}

/// The jails that ban an address.
pub(super) fn holding(handles: &Handles, subject: &str) -> Result<Reply, Unanswered> {
    let config = handles.questions.config();
    let mut holding = Vec::new();
    for jail in &config.jails {
        if is_banned(handles, jail, subject)? {
            holding.push(jail.name.clone());
        }
    }
    let asked: Prefix = subject.parse().map_err(Refusal::from)?;
    for name in jails_away(handles)? {
        let mut bans = in_force(handles, &name)?.into_iter();
        if bans.any(|entry| entry.subject.prefix().covers(asked)) {
            holding.push(name);
        }
    }
    Ok(Reply::texts(holding))
}

/// Lifts all bans of jails.
pub(super) fn all(handles: &Handles) -> Result<usize, Unanswered> {
    let config = handles.questions.config();
    let names = config.jails.iter().map(|jail| jail.name.clone());
    let mut lifted = 0;
    for name in names.chain(jails_away(handles)?) {
        lifted += all_of(handles, &name)?;
    }
    Ok(lifted)
}

fn all_of(handles: &Handles, jail: &str) -> Result<usize, Unanswered> {
    let of = BanSource::Jail(jail.to_owned());
    Ok(handles.manual_bans.unban_all(Some(&of))?.what.lifted)
}

/// Lifts an address's bans of all jails.
pub(super) fn one(handles: &Handles, subject: &str) -> Result<usize, Unanswered> {
    let config = handles.questions.config();
    let mut lifted = 0;
    for jail in &config.jails {
        lifted += lift(handles, jail, subject)?;
    }
    for name in jails_away(handles)? {
        lifted += of_jail_away(handles, &name, subject)?;
    }
    Ok(lifted)
}

/// `unbanip [--report-absent] ADDR…` of a jail that does not run.
pub(super) fn of_jail_away_all(
    handles: &Handles,
    jail: &str,
    words: &[&str],
) -> Result<Reply, Unanswered> {
    let (flags, subjects): (Vec<&str>, Vec<&str>) =
        words.iter().partition(|word| word.starts_with("--"));
    let mut lifted = 0;
    for subject in subjects {
        let of_subject = of_jail_away(handles, jail, subject)?;
        if of_subject == 0 && flags.contains(&"--report-absent") {
            let shown = escaped(subject);
            return Err(malformed(format!("{shown} is not banned")));
        }
        lifted += of_subject;
    }
    Ok(lifted.into())
}

/// Is this the ban that a jail made of an address, or of the network asked for? Which
/// prefix of IPv6 the jail counted by is not known any more: any that one may count by.
/// An address does not lift a network of IPv4 that it is in, nor a wider one of IPv6.
fn is_ban_of(banned: Prefix, asked: Prefix) -> bool {
    let is_counted =
        || asked.is_host() && asked.addr().is_ipv6() && COUNTED.contains(&banned.bits());
    banned == asked || (banned.covers(asked) && is_counted())
}

/// Lifts an address's bans of a jail that does not run.
pub(super) fn of_jail_away(
    handles: &Handles,
    jail: &str,
    subject: &str,
) -> Result<usize, Unanswered> {
    let asked: Prefix = subject.parse().map_err(Refusal::from)?;
    let of = BanSource::Jail(jail.to_owned());
    let mut lifted = 0;
    for entry in in_force(handles, jail)? {
        if !is_ban_of(entry.subject.prefix(), asked) {
            continue;
        }
        let subject = entry.subject.to_string();
        match handles.manual_bans.unban(&subject, Some(&of), None) {
            Ok(done) => lifted += done.what.lifted,
            Err(Refusal::NotFound(_)) => {}
            Err(refusal) => return Err(refusal.into()),
        }
    }
    Ok(lifted)
}

/// `reload [--restart] [--unban] [--all|JAIL]`: all of the configuration is read again, and
/// with `--unban` the bans of the jail, or of all, are lifted behind it.
pub(super) fn reload(handles: &Handles, words: &[&str]) -> Result<Reply, Unanswered> {
    let (mut lifts, mut may_be_missing, mut name) = (false, false, None);
    for word in words {
        match *word {
            "--restart" | "--all" => {}
            "--unban" => lifts = true,
            "--if-exists" => may_be_missing = true,
            flag if flag.starts_with('-') => {
                return Err(malformed(format!(
                    "reload {}; allowed: --restart, --unban, --if-exists, --all, a jail",
                    escaped(flag)
                )));
            }
            jail if name.is_none() => name = Some(jail),
            more => {
                return Err(malformed(format!(
                    "reload takes one jail: {}",
                    escaped(more)
                )));
            }
        }
    }
    handles.reloader.reload()?;
    if let Some(name) = name {
        let config = handles.questions.config();
        match super::jail(&config, name) {
            Err(Unanswered::UnknownJail(_)) if may_be_missing => return Ok("OK".into()),
            found => _ = found?,
        }
    }
    match name {
        _ if !lifts => {}
        Some(name) => _ = all_of(handles, name)?,
        None => _ = all(handles)?,
    }
    Ok("OK".into())
}
