//! `weir daemon`

use std::{env, ffi::OsStr, io::IsTerminal};

use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    fmt,
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use super::{Common, ExitAnswer, complain};

/// Which messages are shown: a level, or levels by module.
const LOG_LEVEL: &str = "WEIR_LOG";

/// Run the daemon in the foreground
///
/// Reads the logs of the enabled jails, bans, and answers on the control
/// socket. SIGHUP reloads the configuration; SIGTERM ends the daemon, and what
/// is banned stays banned in the kernel (see `weir detach`). Messages go to
/// standard error; WEIR_LOG=debug shows more.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(common: &Common, _: &Args) -> anyhow::Result<ExitAnswer> {
    let (levels, mistake) = log_levels(env::var_os(LOG_LEVEL).as_deref());
    let lines = fmt::layer()
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(levels);
    // The journal has its own time stamps.
    if env::var_os("JOURNAL_STREAM").is_some() {
        registry.with(lines.without_time()).init();
    } else {
        registry.with(lines).init();
    }
    if let Some(mistake) = mistake {
        complain(&anyhow::anyhow!("warning: {mistake}"));
    }
    weir_daemon::run::run(&common.config)?;
    Ok(ExitAnswer::Done)
}

/// What `WEIR_LOG` asks for, such as `debug` or `info,weir_enforce=debug`. A
/// value that says nothing is `info`, and told: a daemon starts all the same.
fn log_levels(value: Option<&OsStr>) -> (Targets, Option<String>) {
    let info = || Targets::new().with_default(LevelFilter::INFO);
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return (info(), None);
    };
    let value = value.to_string_lossy();
    // The parser takes a level's misspelling for a module's name.
    let known = |part: &str| part.contains('=') || part.parse::<LevelFilter>().is_ok();
    match value.parse::<Targets>() {
        Ok(levels) if value.split(',').all(known) => match levels.default_level() {
            Some(_) => (levels, None),
            None => (levels.with_default(LevelFilter::INFO), None),
        },
        _ => (
            info(),
            Some(format!(
                "{LOG_LEVEL}={:?} is no log level: write off, error, warn, info, debug or trace, or levels by module, such as info,weir_enforce=debug",
                value.chars().take(64).collect::<String>()
            )),
        ),
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::filter::LevelFilter;

    use super::log_levels;

    #[test]
    fn the_log_level_is_one_or_one_by_module_and_a_mistake_is_told() {
        for (value, default) in [
            (None, LevelFilter::INFO),
            (Some(""), LevelFilter::INFO),
            (Some("debug"), LevelFilter::DEBUG),
            (Some("off"), LevelFilter::OFF),
            (Some("warn,weir_enforce=debug"), LevelFilter::WARN),
            (Some("weir_enforce=debug"), LevelFilter::INFO),
        ] {
            let (levels, mistake) = log_levels(value.map(AsRef::as_ref));
            assert_eq!(levels.default_level(), Some(default), "{value:?}");
            assert_eq!(mistake, None, "{value:?}");
        }
        let debug = LevelFilter::DEBUG.into_level().unwrap();
        let (levels, _) = log_levels(Some("weir_enforce=debug".as_ref()));
        assert!(levels.would_enable("weir_enforce::nft", &debug));
        assert!(!levels.would_enable("weir_daemon", &debug));
        for wrong in ["a=b=c", "verbose", "info,weir=loud"] {
            let (levels, mistake) = log_levels(Some(wrong.as_ref()));
            assert_eq!(levels.default_level(), Some(LevelFilter::INFO));
            let mistake = mistake.unwrap();
            assert!(
                mistake.starts_with(&format!("WEIR_LOG={wrong:?} ")),
                "{mistake}"
            );
        }
    }
}
