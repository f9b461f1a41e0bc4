//! What sections of several kinds say in the same words: names, ports, what a
//! ban does and for how long.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use weir_core::{
    Action, Scope,
    policy::{BanTime, Increment, JailLimits, MAX_RETRY},
};

use crate::Section;

/// One second.
pub const SECOND: Duration = Duration::from_secs(1);
/// One day.
pub const DAY: Duration = Duration::from_secs(86_400);
/// Ten years: longer than anything that is configured.
pub const YEARS: Duration = Duration::from_secs(10 * 365 * 86_400);

/// May it be in the name of a section?
pub fn name_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'-' || b == b'_'
}

/// A key that holds an absolute path.
pub fn path(root: &mut Section<'_, '_>, key: &'static str, default: &str) -> PathBuf {
    let allowed = format!("an absolute path such as {default:?}");
    match root.string(key, &allowed) {
        Some(at) if Path::new(&at.value).is_absolute() => at.value.into(),
        Some(at) => {
            root.error(
                at.line,
                format!("{key} is {:?}; allowed: {allowed}", at.value),
            );
            default.into()
        }
        None => default.into(),
    }
}

/// What a section says of counting, where it `counts`, and of how long a ban
/// lasts.
pub fn limits(section: &mut Section<'_, '_>, counts: bool) -> JailLimits {
    let mut limits = JailLimits::default();
    if counts && let Some(at) = section.integer("max_retry", 1..=u64::from(MAX_RETRY)) {
        limits.max_retry = at.value as u32;
    }
    if counts && let Some(at) = section.duration("find_time", SECOND..=365 * DAY) {
        limits.find_time = at.value;
    }
    if let Some(at) = section.duration_or_forever("ban_time", SECOND..=YEARS, true) {
        limits.ban_time = at.value.map_or(BanTime::Never, BanTime::For);
    }
    limits.increment = section.section("increment").map(|mut increment| {
        let factor = increment.number("factor", 1.0..=100.0).unwrap_or(2.0);
        let max = increment
            .duration("max", SECOND..=YEARS)
            .map_or(5 * 7 * DAY, |at| at.value);
        increment.finish();
        Increment { factor, max }
    });
    limits
}

/// What the bans that a section makes do to packets.
pub fn action(section: &mut Section<'_, '_>) -> Action {
    let choices = [Action::Drop, Action::Reject].map(|action| (action.name(), action));
    section
        .choice("action", &choices)
        .map_or_else(Action::default, |at| at.value)
}

/// Which ports the bans of a section are for.
pub fn scope(section: &mut Section<'_, '_>) -> Scope {
    const PORTS: &str = "\"all\" or a list of ports such as [\"22/tcp\", \"6000-6010/udp\"]";
    match section.word_or_list("ports", PORTS) {
        None => Scope::all(),
        Some(Ok(word)) if word.value == "all" => Scope::all(),
        Some(Ok(word)) => {
            section.error(
                word.line,
                format!("ports is {:?}; allowed: {PORTS}", word.value),
            );
            Scope::all()
        }
        Some(Err(list)) => {
            if list.value.is_empty() {
                section.error(list.line, format!("ports is empty; allowed: {PORTS}"));
            }
            let mut ranges = Vec::new();
            for port in &list.value {
                match port.value.parse::<Scope>() {
                    Ok(scope) if !scope.is_all() => ranges.extend(scope.ranges()),
                    Ok(_) => section.error(
                        port.line,
                        "ports: write ports = \"all\", not as part of a list",
                    ),
                    Err(error) => section.error(port.line, format!("ports: {error}")),
                }
            }
            Scope::ports(ranges).unwrap_or_else(|error| {
                section.error(list.line, format!("ports: {error}"));
                Scope::all()
            })
        }
    }
}
