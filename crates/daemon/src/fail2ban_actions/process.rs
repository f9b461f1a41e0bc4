//! Scripts of Fail2ban's, run to their ends as processes.

use std::{
    io::Read,
    time::{Duration, Instant},
};

use weir_core::BanTarget;
use weir_fail2ban::Script;

use super::{WAIT, notice::BanNotice, values};
use crate::command::child::{Group, Rights};

/// What a command answers by its exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ran {
    /// The command ended with exit code 0.
    Yes,
    /// The command ended with exit code 1.
    No,
    /// The command failed, for this reason.
    Failed(String),
}

/// Asks a command about an address of a jail. `is_over` is looked at while it runs.
pub(crate) fn ask(
    script: &Script,
    jail: &str,
    subject: BanTarget,
    timeout: Duration,
    is_over: impl Fn() -> bool,
) -> Ran {
    let told = BanNotice::of_address(subject);
    let environment = values::environment(script, Some(&told), told.family(), jail, 0, || None);
    match run_script(script, &environment, timeout, is_over) {
        Ok((Some(0), _)) => Ran::Yes,
        Ok((Some(1), _)) => Ran::No,
        Ok((code, said)) => Ran::Failed(ended_with(code, &said)),
        Err(why) => Ran::Failed(why),
    }
}

pub(super) fn ended_with(code: Option<i32>, said: &str) -> String {
    let code = code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
    match said.trim() {
        "" => format!("ended with {code}"),
        said => format!("ended with {code}: {said}"),
    }
}

/// What of a command's last words a message has, in bytes.
const SAID: usize = 300;

/// Runs a script to its end, or ends it: its exit code, and its last words.
pub(super) fn run_script(
    script: &Script,
    environment: &[(&'static str, String)],
    timeout: Duration,
    is_over: impl Fn() -> bool,
) -> Result<(Option<i32>, String), String> {
    let command = ["/bin/sh", "-c", &script.text].map(str::to_owned);
    let started = Group::start(Rights::Daemon, environment, &command);
    let mut group = started.map_err(|error| format!("cannot be started: {error}"))?;
    let ends = Instant::now() + timeout;
    let mut said = Vec::new();
    loop {
        // (The supervisor has the pipes open as long as it lives.)
        group.wait(WAIT.min(ends.saturating_duration_since(Instant::now())));
        let has_ended = group.has_ended();
        let mut bytes = [0; 4096];
        for _ in 0..16 {
            let output = group.output().map(|pipe| pipe.read(&mut bytes));
            if !matches!(output, Some(Ok(1..))) {
                break;
            }
        }
        for _ in 0..16 {
            match group.complaints().map(|pipe| pipe.read(&mut bytes)) {
                Some(Ok(count @ 1..)) => {
                    said.extend_from_slice(&bytes[..count]);
                    let surplus = said.len().saturating_sub(SAID);
                    said.drain(..surplus);
                }
                _ => break,
            }
        }
        if has_ended {
            let status = group.end().map_err(|error| error.to_string())?;
            return Ok((status.code(), String::from_utf8_lossy(&said).into_owned()));
        }
        if Instant::now() >= ends {
            group.kill();
            let time = weir_core::policy::format_duration(timeout);
            return Err(format!(
                "took longer than its timeout of {time} and was ended"
            ));
        }
        if is_over() {
            group.kill();
            return Err("was ended with the daemon".to_owned());
        }
    }
}
