//! The verbs: one definition for parsing, help, man page and completions.

mod allow;
mod app;
mod ban;
mod bans;
mod calibrate;
mod check;
mod client;
mod daemon;
mod detach;
mod documents;
mod events;
mod export;
pub mod fail2ban_client;
pub mod fail2ban_regex;
mod filter;
mod geo;
mod import;
mod list;
mod metrics;
mod options;
mod pool;
mod real_side;
mod reload;
mod ring;
mod show;
mod sink;
mod status;
mod targets;
mod token;
mod unban;
mod watch_child;
mod why;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use clap::{Parser, Subcommand};
use weir_daemon::config::{DEFAULT_PATH, DEFAULT_SOCKET};

/// Bans the sources of attacks and drops their packets in the kernel
///
/// weir reads logs, bans addresses that misbehave, and drops their packets in
/// the kernel before the network stack sees them. It also drops by list and
/// country, answers scanners on ports that nobody serves, and balances load.
/// `weir daemon` does the work; most other verbs ask it over a unix socket.
///
/// Exit codes: 0: done, 1: negative result, 2: error.
#[derive(Parser)]
#[command(name = "weir", version, propagate_version = true)]
pub struct Weir {
    /// The configuration file [default: /etc/weir/weir.toml]
    #[arg(short, long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The daemon's control socket [default: the configuration's, else /run/weir/weir.sock]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Show times in this host's time zone instead of UTC
    #[arg(long, global = true)]
    local: bool,
    #[command(subcommand)]
    verb: Verb,
}

// What each does is said by its own type, in full: a doc comment here would be the whole of
// its help.
#[derive(Subcommand)]
enum Verb {
    Daemon(daemon::Args),
    Check(check::Args),
    Reload(reload::Args),
    Status(status::Args),
    Metrics(metrics::Args),
    Bans(bans::Args),
    Ban(ban::Args),
    Unban(unban::Args),
    Why(why::Args),
    #[command(subcommand)]
    Allow(allow::Verb),
    #[command(subcommand)]
    List(list::Verb),
    #[command(subcommand)]
    Pool(pool::Verb),
    #[command(subcommand)]
    Real(pool::RealVerb),
    RealSide(real_side::Args),
    #[command(subcommand)]
    App(app::Verb),
    #[command(subcommand)]
    Token(token::Verb),
    #[command(subcommand)]
    Options(options::Verb),
    Events(events::Args),
    Geo(geo::Args),
    #[command(subcommand)]
    Import(import::Verb),
    #[command(subcommand)]
    Export(export::Verb),
    #[command(subcommand)]
    Filter(filter::Verb),
    #[command(subcommand)]
    Ring(ring::Verb),
    #[command(subcommand)]
    Sink(sink::Verb),
    Calibrate(calibrate::Args),
    Detach(detach::Args),
    #[command(hide = true)]
    WatchChild(watch_child::Args),
    #[command(hide = true)]
    Man(documents::ManArgs),
    #[command(hide = true)]
    Completions(documents::CompletionArgs),
}

/// What a verb found, for the exit code.
pub enum ExitAnswer {
    /// The verb was carried out, or its result is positive: exit code 0.
    Done,
    /// The result is negative: exit code 1.
    No,
    /// The verb failed, and the error is printed already: exit code 2.
    Mistaken,
}

/// The options that all verbs share.
pub struct Common {
    config: PathBuf,
    socket: Option<PathBuf>,
}

impl Common {
    fn client(&self) -> client::Client {
        let socket = self.socket.clone().unwrap_or_else(|| {
            // A daemon with a socket of its own is found by its configuration.
            weir_daemon::config::socket_of(&self.config)
                .unwrap_or_else(|| PathBuf::from(DEFAULT_SOCKET))
        });
        client::Client::new(socket, self.config.clone())
    }
}

/// Carries out the verb of the command line.
pub fn run(weir: Weir) -> anyhow::Result<ExitAnswer> {
    if weir.local {
        show::local_times();
    }
    let of_check = match &weir.verb {
        Verb::Check(args) => args.file(),
        _ => None,
    };
    if let (Some(option), Some(file)) = (&weir.config, of_check) {
        anyhow::bail!(
            "--config {} and the argument {}: which of both is to be checked? Leave one of them out",
            option.display(),
            file.display()
        );
    }
    let named = weir.config.or_else(|| of_check.map(Path::to_owned));
    let common = Common {
        config: named.unwrap_or_else(|| PathBuf::from(DEFAULT_PATH)),
        socket: weir.socket,
    };
    match weir.verb {
        Verb::Daemon(args) => daemon::run(&common, &args),
        Verb::Check(args) => check::run(&common, &args),
        Verb::Reload(args) => reload::run(&common, &args),
        Verb::Status(args) => status::run(&common, &args),
        Verb::Metrics(args) => metrics::run(&common, &args),
        Verb::Bans(args) => bans::run(&common, &args),
        Verb::Ban(args) => ban::run(&common, &args),
        Verb::Unban(args) => unban::run(&common, &args),
        Verb::Why(args) => why::run(&common, &args),
        Verb::Allow(verb) => allow::run(&common, &verb),
        Verb::List(verb) => list::run(&common, &verb),
        Verb::Pool(verb) => pool::run(&common, &verb),
        Verb::Real(verb) => pool::change(&common, &verb),
        Verb::App(verb) => app::run(&common, &verb),
        Verb::Token(verb) => token::run(&common, &verb),
        Verb::Options(verb) => options::run(&verb),
        Verb::RealSide(args) => real_side::run(&args),
        Verb::Events(args) => events::run(&common, &args),
        Verb::Geo(args) => geo::run(&common, &args),
        Verb::Import(verb) => import::run(&common, &verb),
        Verb::Export(verb) => export::run(&common, &verb),
        Verb::Filter(verb) => filter::run(&common, &verb),
        Verb::Ring(verb) => ring::run(&verb),
        Verb::Sink(verb) => sink::run(&common, &verb),
        Verb::Calibrate(args) => calibrate::run(&common, &args),
        Verb::Detach(args) => detach::run(&common, &args),
        Verb::WatchChild(args) => watch_child::run(&args),
        Verb::Man(args) => documents::man(&args),
        Verb::Completions(args) => documents::completions(&args),
    }
}

/// Is the reader of our output gone?
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// Prints an error on standard error, fit for a terminal.
pub fn complain(error: &anyhow::Error) {
    for line in words(error).lines() {
        // Nobody is left to tell if this fails.
        let _ = writeln!(io::stderr(), "weir: {}", weir_daemon::escape(line));
    }
}

/// An error with its causes, each said once: some name theirs themselves.
fn words(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if words.is_empty() {
            words = cause;
        } else if !words.contains(&cause) {
            words.push_str(": ");
            words.push_str(&cause);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use std::{error::Error, fmt, io};

    use anyhow::Context;

    #[derive(Debug)]
    struct Unreadable(io::Error);

    impl fmt::Display for Unreadable {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "cannot read it: {}", self.0)
        }
    }

    impl Error for Unreadable {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_cause_is_said_once() {
        let missing = || io::Error::from_raw_os_error(2);
        let told = Err::<(), _>(Unreadable(missing())).context("/a");
        assert_eq!(
            super::words(&told.unwrap_err()),
            "/a: cannot read it: No such file or directory (os error 2)"
        );
        let told = Err::<(), _>(missing()).context("reading /a");
        assert_eq!(
            super::words(&told.unwrap_err()),
            "reading /a: No such file or directory (os error 2)"
        );
    }
}
