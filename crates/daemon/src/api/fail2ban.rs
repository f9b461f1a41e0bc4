//! The commands of `fail2ban-client`, answered for weir's jails, so that exporters,
//! panels and scripts made for Fail2ban go on working: `POST /v1/fail2ban`, which the
//! front end of that name uses, and Fail2ban's own socket (`socket`). What Fail2ban
//! changes in the running server and weir keeps in its configuration is refused by name.

mod change;
mod pickle;
mod reply;
pub(crate) mod socket;
mod unban;

use std::{net::IpAddr, path::PathBuf};

use axum::{body::Body, extract::State, response::Response};
use jiff::{Timestamp, tz::TimeZone};
use serde::Deserialize;
use weir_core::{BanSource, BanTarget, Prefix, Until, detect::Definition, policy::BanTime};
use weir_enforce::Entry;

pub use pickle::{NoCommand, read_command};
use reply::Reply;

use super::{Api, Handles, json};
use crate::{
    config::Config,
    jails::{JailConfig, SourceChoice, UseDns},
    service::{ListedBan, Refusal},
};

/// The answer to `version`: programs ask whether it is at least one of Fail2ban's.
const VERSION: &str = concat!("1.1.1+weir", env!("CARGO_PKG_VERSION"));
/// How Fail2ban writes a permanent ban, in seconds.
const PERMANENT: i64 = -1;

/// `POST /v1/fail2ban`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandRequest {
    /// As on the command line of `fail2ban-client`: `["status", "sshd"]`.
    command: Vec<String>,
}

pub(super) async fn command(State(api): State<Api>, body: Body) -> Response {
    let request: CommandRequest = match json(body).await {
        Ok(request) => request,
        Err(response) => return response,
    };
    let handles = api.handles.clone();
    api.command(move || {
        let reply = answer(&handles, &request.command).map_err(Refusal::from)?;
        let mut object = serde_json::json!({ "reply": reply });
        // Beside the reply, which programs know in Fail2ban's form.
        if request.command == ["status"] {
            let config = handles.questions.config();
            let broken = config.fail2ban.iter().flat_map(|fail2ban| &fail2ban.broken);
            let broken = broken.map(|(jail, why)| serde_json::json!({ "jail": jail, "why": why }));
            object["not_run"] = broken.collect();
        }
        Ok(object)
    })
    .await
}

/// `POST /v1/fail2ban/bans`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TakeOverRequest {
    /// The database; by default where Fail2ban's configuration says.
    path: Option<PathBuf>,
}

pub(super) async fn take_over(State(api): State<Api>, body: Body) -> Response {
    let request: TakeOverRequest = match json(body).await {
        Ok(request) => request,
        Err(response) => return response,
    };
    let state = api.handles.fail2ban_state.clone();
    api.command(move || state.take_over(request.path)).await
}

pub(super) async fn give_back(State(api): State<Api>) -> Response {
    let state = api.handles.fail2ban_state.clone();
    api.ask(move |_| state.give_back()).await
}

/// Why a command has no reply.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    /// Fail2ban's clients know this error by its class.
    #[error("there is no jail {0:?}")]
    UnknownJail(String),
    /// A refusal for any other reason, in words.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl From<Unanswered> for Refusal {
    fn from(error: Unanswered) -> Self {
        match error {
            Unanswered::UnknownJail(_) => Self::NotFound(error.to_string()),
            Unanswered::Refused(refusal) => refusal,
        }
    }
}

fn malformed(text: impl Into<String>) -> Unanswered {
    Refusal::Malformed(text.into()).into()
}

/// Carries a command out, and says what Fail2ban's server would.
fn answer(handles: &Handles, command: &[String]) -> Result<Reply, Unanswered> {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let questions = &handles.questions;
    match words[..] {
        ["ping"] => Ok("pong".into()),
        ["echo", ref said @ ..] => Ok(Reply::texts(said.iter().map(|word| (*word).to_owned()))),
        ["version"] => Ok(VERSION.into()),
        ["status"] => Ok(Reply::List(overview(handles))),
        ["status", "--all", ref flavour @ ..] => {
            let is_short = is_short(flavour)?;
            let config = questions.config();
            let jails = config.jails.iter().map(|jail| {
                let status = status(handles, &jail.name, is_short)?;
                Ok((jail.name.clone(), status))
            });
            let jails = jails.collect::<Result<_, Unanswered>>()?;
            let mut pairs = overview(handles);
            pairs.push(Reply::Map(jails));
            Ok(Reply::List(pairs))
        }
        ["status", name, ref flavour @ ..] => status(handles, name, is_short(flavour)?),
        ["banned"] => unban::banned(handles),
        ["banned", ref subjects @ ..] => {
            let holding = subjects
                .iter()
                .map(|subject| unban::holding(handles, subject));
            holding.collect::<Result<_, Unanswered>>().map(Reply::List)
        }
        ["unban", "--all"] => Ok(unban::all(handles)?.into()),
        ["unban", ref subjects @ ..] if !subjects.is_empty() => {
            let mut lifted = 0;
            for subject in subjects {
                lifted += unban::one(handles, subject)?;
            }
            Ok(lifted.into())
        }
        ["reload", ref more @ ..] => unban::reload(handles, more),
        ["stats" | "statistics"] => stats(handles),
        // weir keeps no log of its own open: the journal has it.
        ["flushlogs"] => Ok("flushed".into()),
        ["get", "loglevel"] => Ok("INFO".into()),
        ["get", "logtarget"] => Ok("SYSTEMD-JOURNAL".into()),
        ["get", "syslogsocket"] => Ok("auto".into()),
        ["get", "dbfile"] => {
            let file = questions.config().state_dir.join("weir.db");
            Ok(file.display().to_string().into())
        }
        ["get", "dbpurgeage"] => Ok(questions.config().keep_history.time.as_secs().into()),
        ["get", name, ref what @ ..] => {
            let config = questions.config();
            get(handles, &config, jail(&config, name)?, what)
        }
        ["set", name, ref what @ ..] => {
            let config = questions.config();
            // The bans of a jail that runs no more go on.
            if let ["unbanip", ref subjects @ ..] = *what
                && jail(&config, name).is_err()
                && unban::jails_away(handles)?.contains(name)
            {
                return unban::of_jail_away_all(handles, name, subjects);
            }
            let jail = jail(&config, name)?;
            match change::read(what) {
                Some(change) => change::carry_out(handles, jail, change?),
                None => set(handles, jail, what),
            }
        }
        ["stop" | "start" | "restart" | "add", ..] => Err(malformed(format!(
            "{} is not weir's to do: systemctl starts and stops weir, and weir.toml has its jails",
            words[0]
        ))),
        _ => Err(malformed(
            "Invalid command; weir answers ping, version, status, stats, banned, unban, reload, flushlogs, get and set",
        )),
    }
}

fn jail<'a>(config: &'a Config, name: &str) -> Result<&'a JailConfig, Unanswered> {
    if let Some(found) = config.jails.iter().find(|jail| jail.name == name) {
        return Ok(found);
    }
    let broken = config.fail2ban.iter().flat_map(|fail2ban| &fail2ban.broken);
    match broken.into_iter().find(|(jail, _)| jail == name) {
        Some((jail, why)) => Err(malformed(format!("jail {jail} is not run: {why}"))),
        None => Err(Unanswered::UnknownJail(escaped(name))),
    }
}

/// The bans of a jail, those that end first before the others.
fn in_force(handles: &Handles, jail: &str) -> Result<Vec<Entry>, Unanswered> {
    let mut entries = handles.questions.bans_in_force(Some(jail))?;
    entries.sort_by_key(|entry| entry.expiry);
    Ok(entries)
}

fn addresses(entries: &[Entry]) -> Vec<String> {
    entries
        .iter()
        .map(|entry| entry.subject.to_string())
        .collect()
}

/// Whether a status is to be without the list of who is banned.
fn is_short(flavour: &[&str]) -> Result<bool, Unanswered> {
    match flavour {
        [] | ["basic"] => Ok(false),
        ["short"] => Ok(true),
        _ => Err(malformed(format!(
            "there is no status {}; allowed: basic, short. weir geo ADDR says whose an address is",
            short(flavour)
        ))),
    }
}

fn status(handles: &Handles, name: &str, is_short: bool) -> Result<Reply, Unanswered> {
    let config = handles.questions.config();
    let jail = jail(&config, name)?;
    let all = handles.questions.jails()?;
    let counts = all.iter().find(|counts| counts.name == name);
    let counts = counts.ok_or_else(|| Unanswered::UnknownJail(name.to_owned()))?;
    let banned = addresses(&in_force(handles, name)?);
    let source = match &jail.source {
        SourceChoice::Journal => ("Journal matches", journal_matches(jail)),
        _ => ("File list", Reply::texts(log_paths(jail))),
    };
    let numbers: [(&str, Reply); 2] = [
        ("Currently banned", banned.len().into()),
        ("Total banned", counts.bans.into()),
    ];
    let list = (!is_short).then(|| ("Banned IP list", Reply::texts(banned)));
    let filter = Reply::pairs([
        ("Currently failed", counts.tracked.into()),
        ("Total failed", counts.findings.into()),
        source,
    ]);
    let actions = Reply::pairs(numbers.into_iter().chain(list));
    Ok(Reply::pairs([("Filter", filter), ("Actions", actions)]))
}

/// How many jails there are, and their names.
fn overview(handles: &Handles) -> Vec<Reply> {
    let config = handles.questions.config();
    let names: Vec<_> = config.jails.iter().map(|jail| jail.name.as_str()).collect();
    let pair = |name: &str, value: Reply| Reply::Tuple(vec![name.into(), value]);
    vec![
        pair("Number of jail", names.len().into()),
        pair("Jail list", names.join(", ").into()),
    ]
}

/// Of each jail what it reads, its failures and its bans, each now and in all.
fn stats(handles: &Handles) -> Result<Reply, Unanswered> {
    let config = handles.questions.config();
    let all = handles.questions.jails()?;
    let jails = config.jails.iter().filter_map(|jail| {
        let counts = all.iter().find(|counts| counts.name == jail.name)?;
        let backend = match &jail.source {
            SourceChoice::Journal => "systemd",
            _ => "auto",
        };
        Some(in_force(handles, &jail.name).map(|bans| {
            let failed = vec![counts.tracked.into(), counts.findings.into()];
            let banned = vec![bans.len().into(), counts.bans.into()];
            let row = vec![backend.into(), Reply::Tuple(failed), Reply::Tuple(banned)];
            (jail.name.clone(), Reply::List(row))
        }))
    });
    Ok(Reply::Map(jails.collect::<Result<_, Unanswered>>()?))
}

fn log_paths(jail: &JailConfig) -> Vec<String> {
    match &jail.source {
        SourceChoice::Journal => Vec::new(),
        SourceChoice::Files(patterns) => patterns.clone(),
        SourceChoice::Ring(ring) => vec![ring.directory.display().to_string()],
    }
}

/// In a list for each set of fields, as Fail2ban has them.
fn journal_matches(jail: &JailConfig) -> Reply {
    let text = jail.journal_match.to_string();
    let sets = text.split(" + ").filter(|set| !set.is_empty());
    Reply::List(
        sets.map(|set| Reply::texts(set.split(' ').map(str::to_owned)))
            .collect(),
    )
}

fn get(
    handles: &Handles,
    config: &Config,
    jail: &JailConfig,
    what: &[&str],
) -> Result<Reply, Unanswered> {
    let filter = jail.fail2ban.as_ref();
    match what {
        ["banip", "--with-time", ..] => {
            let entries = in_force(handles, &jail.name)?;
            let listed = handles.questions.explain(entries);
            Ok(Reply::texts(listed.iter().map(with_time)))
        }
        ["banip", ..] | ["banned"] => Ok(Reply::texts(addresses(&in_force(handles, &jail.name)?))),
        ["banned", subjects @ ..] => {
            let banned = subjects.iter().map(|subject| {
                let is_banned = is_banned(handles, jail, subject)?;
                Ok(usize::from(is_banned).into())
            });
            let mut banned = banned.collect::<Result<Vec<Reply>, Unanswered>>()?;
            Ok(match banned.len() {
                1 => banned.remove(0),
                _ => Reply::List(banned),
            })
        }
        ["bantime"] => Ok(match jail.limits.ban_time {
            BanTime::For(time) => time.as_secs().into(),
            BanTime::Never => PERMANENT.into(),
        }),
        ["findtime"] => Ok(jail.limits.find_time.as_secs().into()),
        ["maxretry"] => Ok(u64::from(jail.limits.max_retry).into()),
        ["usedns"] => Ok(match jail.use_dns {
            UseDns::Yes => "yes",
            UseDns::Warn => "warn",
            UseDns::No => "no",
        }
        .into()),
        ["logpath"] => Ok(Reply::texts(log_paths(jail))),
        ["journalmatch"] => Ok(journal_matches(jail)),
        // This host's addresses are exempt, whatever a jail says.
        ["ignoreself"] => Ok(Reply::Bool(true)),
        ["ignoreip"] => {
            let prefixes = jail.ignore.iter().map(|prefix| prefix.to_string());
            let names = jail.ignore_names.iter().map(ToString::to_string);
            Ok(Reply::texts(prefixes.chain(names)))
        }
        ["failregex"] => Ok(Reply::texts(patterns(config, jail))),
        ["ignoreregex"] => Ok(Reply::texts(
            filter.map_or(Vec::new(), |filter| filter.ignoreregex()),
        )),
        ["prefregex"] => {
            let prefregex = filter.and_then(|filter| filter.prefregex());
            Ok(prefregex.unwrap_or_default().into())
        }
        ["datepattern"] => Ok(date_pattern(jail)),
        ["logencoding"] => {
            let encoding = filter.and_then(|filter| filter.source().logencoding.as_deref());
            Ok(encoding
                .filter(|word| *word != "auto")
                .unwrap_or("UTF-8")
                .into())
        }
        ["logtimezone"] => Ok(match &jail.time_zone {
            Some(zone) => zone_name(zone).into(),
            None => Reply::None,
        }),
        ["ignorecommand"] => Ok(match &jail.ignore_command {
            Some(command) => command.script.text.as_str().into(),
            None => "".into(),
        }),
        ["bantime.increment"] => Ok(Reply::Bool(
            jail.limits.increment.is_some() || !jail.limits.ban_times.is_empty(),
        )),
        ["bantime.rndtime"] => Ok(jail.limits.random_time.as_secs().into()),
        ["bantime.overalljails"] => Ok(Reply::Bool(jail.limits.counts_all_jails)),
        ["actions"] => Ok(Reply::texts(jail.action_names())),
        ["maxlines"] => Ok(filter.map_or(1, |filter| filter.source().maxlines).into()),
        _ => Err(malformed(format!(
            "weir has no answer to get JAIL {}; it has: banip, banned, bantime, bantime.increment, bantime.rndtime, bantime.overalljails, findtime, maxretry, usedns, logpath, logencoding, logtimezone, journalmatch, ignoreself, ignoreip, ignorecommand, prefregex, failregex, ignoreregex, datepattern, maxlines, actions",
            short(what)
        ))),
    }
}

/// The pattern of dates and its form, as Fail2ban tells them: no pattern where it has several
/// forms, nothing where lines have their time from the journal.
fn date_pattern(jail: &JailConfig) -> Reply {
    let (Some(filter), SourceChoice::Files(_)) = (&jail.fail2ban, &jail.source) else {
        return Reply::None;
    };
    let pattern = filter.source().datepattern.as_ref();
    match (pattern, &filter.date_forms()[..]) {
        (Some(pattern), [form] | [form, _]) => {
            Reply::Tuple(vec![pattern.text.as_str().into(), form.as_str().into()])
        }
        _ => Reply::Tuple(vec![Reply::None, "Default Detectors".into()]),
    }
}

/// As `logtimezone` has it: `UTC+0200`.
fn zone_name(zone: &TimeZone) -> String {
    if *zone == TimeZone::UTC {
        return "UTC".to_owned();
    }
    let Ok(offset) = zone.to_fixed_offset() else {
        return zone.iana_name().unwrap_or_default().to_owned();
    };
    let minutes = offset.seconds() / 60;
    let sign = if minutes < 0 { '-' } else { '+' };
    let minutes = minutes.abs();
    format!("UTC{sign}{:02}{:02}", minutes / 60, minutes % 60)
}

/// The failures that the jail's filter looks for.
fn patterns(config: &Config, jail: &JailConfig) -> Vec<String> {
    if let Some(filter) = &jail.fail2ban {
        return filter.failregex();
    }
    let own = config.filters.get(&jail.filter);
    let definition = own.or_else(|| Definition::builtin(&jail.filter));
    let patterns = definition.map(|definition| definition.patterns.as_slice());
    let patterns = patterns.unwrap_or_default().iter();
    patterns.map(|pattern| pattern.text.clone()).collect()
}

/// `ADDRESS TAB SINCE + SECONDS = UNTIL`, such as `… 2026-11-25 08:00:00 + 600 = …`, in the
/// host's time.
fn with_time(ban: &ListedBan) -> String {
    let zone = TimeZone::system();
    let at = |time: Timestamp| {
        let zoned = time.to_zoned(zone.clone());
        zoned.strftime("%Y-%m-%d %H:%M:%S").to_string()
    };
    let since = ban.since.unwrap_or_else(Timestamp::now);
    let (length, end) = match ban.until {
        Until::Never => (PERMANENT, "9999-12-31 23:59:59".to_owned()),
        Until::At(end) => (end.duration_since(since).as_secs(), at(end)),
    };
    format!("{} \t{} + {length} = {end}", ban.subject, at(since))
}

fn set(handles: &Handles, jail: &JailConfig, what: &[&str]) -> Result<Reply, Unanswered> {
    match what {
        ["banip", subjects @ ..] if !subjects.is_empty() => {
            for subject in subjects {
                handles
                    .manual_bans
                    .ban_in_jail(jail, target(jail, subject)?)?;
            }
            Ok(subjects.len().into())
        }
        ["attempt", subject, lines @ ..] => {
            let prefix: Prefix = subject.parse().map_err(Refusal::from)?;
            let lines = match lines {
                [] => &["told by fail2ban-client"],
                lines => lines,
            };
            handles.manual_bans.attempt(jail, prefix, lines)?;
            Ok(1usize.into())
        }
        ["unbanip", "--report-absent", subjects @ ..] if !subjects.is_empty() => {
            let mut lifted = 0;
            for subject in subjects {
                match lift(handles, jail, subject)? {
                    0 => return Err(malformed(format!("{} is not banned", short(&[*subject])))),
                    some => lifted += some,
                }
            }
            Ok(lifted.into())
        }
        ["unbanip", subjects @ ..] if !subjects.is_empty() => {
            let mut lifted = 0;
            for subject in subjects {
                lifted += lift(handles, jail, subject)?;
            }
            Ok(lifted.into())
        }
        _ => Err(malformed(format!(
            "set JAIL {} is not weir's to do while it runs; it does attempt, banip, unbanip, bantime, findtime, maxretry, addignoreip and delignoreip: change the jail in its configuration, then reload",
            short(what)
        ))),
    }
}

/// Others' text, short and without what a terminal obeys.
fn escaped(text: &str) -> String {
    crate::escape(&text.chars().take(64).collect::<String>())
}

/// A script's words, short enough for a message.
fn short(words: &[&str]) -> String {
    escaped(&words.join(" "))
}

/// The target of the jail's ban of this address: of IPv6 its network. A prefix is itself.
fn target(jail: &JailConfig, subject: &str) -> Result<BanTarget, Unanswered> {
    let prefix: Prefix = subject.parse().map_err(Refusal::from)?;
    let counted = match prefix.addr() {
        IpAddr::V6(_) if prefix.is_host() => Prefix::new(prefix.addr(), jail.limits.ipv6_prefix),
        _ => Some(prefix),
    };
    Ok(BanTarget::new(counted.unwrap_or(prefix)).map_err(Refusal::from)?)
}

fn is_banned(handles: &Handles, jail: &JailConfig, subject: &str) -> Result<bool, Unanswered> {
    let asked = target(jail, subject)?.prefix();
    let entries = handles.questions.bans_in_force(Some(&jail.name))?;
    Ok(entries
        .iter()
        .any(|entry| entry.subject.prefix().covers(asked)))
}

/// Lifts the jail's bans of an address, and says how many there were.
fn lift(handles: &Handles, jail: &JailConfig, subject: &str) -> Result<usize, Unanswered> {
    let of = BanSource::Jail(jail.name.clone());
    let subject = target(jail, subject)?.to_string();
    match handles.manual_bans.unban(&subject, Some(&of), None) {
        Ok(done) => Ok(done.what.lifted),
        Err(Refusal::NotFound(_)) => Ok(0),
        Err(refusal) => Err(refusal.into()),
    }
}
