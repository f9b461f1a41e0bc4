//! Scripts of Fail2ban's, run to their ends as processes, and what they leave behind.

use std::{
    collections::VecDeque,
    io::Read,
    time::{Duration, Instant},
};

use weir_core::BanTarget;
use weir_fail2ban::Script;
use weir_metrics::Counter;

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
    match run_script(script, &environment, timeout, false, is_over) {
        Ok(Ended { code: Some(0), .. }) => Ran::Yes,
        Ok(Ended { code: Some(1), .. }) => Ran::No,
        Ok(ended) => Ran::Failed(ended_with(ended.code, &ended.said)),
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

/// How a script has ended by itself.
pub(super) struct Ended {
    /// The exit code; `None`: it was killed.
    pub code: Option<i32>,
    /// The script's last words.
    pub said: String,
    /// What it has left behind, if that may go on.
    pub left: Option<Group>,
}

/// Runs a script to its end, or ends it. What it leaves behind may go on until the timeout,
/// if `may_leave`.
pub(super) fn run_script(
    script: &Script,
    environment: &[(String, String)],
    timeout: Duration,
    may_leave: bool,
    is_over: impl Fn() -> bool,
) -> Result<Ended, String> {
    let command = ["/bin/sh", "-c", &script.text].map(str::to_owned);
    let leave = if may_leave { timeout } else { Duration::ZERO };
    let started = Group::start(Rights::Daemon, environment, &command, leave);
    let mut group = started.map_err(|error| format!("cannot be started: {error}"))?;
    let ends = Instant::now() + timeout;
    let mut said = Vec::new();
    loop {
        // (The supervisor has the pipes open as long as it lives.)
        group.wait(WAIT.min(ends.saturating_duration_since(Instant::now())));
        let mut left_with = group.code_while_others_go_on();
        let has_ended = left_with.is_none() && group.has_ended();
        // It may have said so in between, and its own exit code is another one then.
        if has_ended {
            left_with = group.code_while_others_go_on();
        }
        discard(group.output());
        let mut bytes = [0; 4096];
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
        let said = || String::from_utf8_lossy(&said).into_owned();
        if let Some(code) = left_with {
            return Ok(Ended {
                code: Some(code.into()),
                said: said(),
                left: Some(group),
            });
        }
        if has_ended {
            let status = group.end().map_err(|error| error.to_string())?;
            return Ok(Ended {
                code: status.code(),
                said: said(),
                left: None,
            });
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

/// Reads some of what a command prints, so that it does not wait for ever.
fn discard(pipe: Option<&mut impl Read>) {
    let Some(pipe) = pipe else {
        return;
    };
    let mut bytes = [0; 4096];
    for _ in 0..16 {
        if !matches!(pipe.read(&mut bytes), Ok(1..)) {
            break;
        }
    }
}

/// Commands of one action whose leftovers may go on at a time: of one more, those of the
/// oldest are ended.
pub(super) const MAX_LEFT: usize = 8;

/// What commands have left behind, as a mailer does that delivers while its caller goes on:
/// its supervisor ends it at the command's timeout.
#[derive(Default)]
pub(super) struct Leftovers(VecDeque<Left>);

struct Left {
    /// The number of the action's queue.
    queue: u64,
    group: Group,
    /// Counts those that were ended.
    ended: Counter,
}

impl Leftovers {
    /// Takes in what a command of a queue has left behind; returns what has to go for it.
    pub fn keep(&mut self, queue: u64, group: Group, ended: Counter) -> Option<Group> {
        // What is over takes no place.
        self.reap();
        let of_queue = |left: &Left| left.queue == queue;
        let is_full = self.0.iter().filter(|left| of_queue(left)).count() >= MAX_LEFT;
        let oldest = self.0.iter().position(of_queue).filter(|_| is_full);
        let goes = oldest.and_then(|at| self.0.remove(at));
        self.0.push_back(Left {
            queue,
            group,
            ended,
        });
        goes.map(|left| {
            left.ended.inc();
            left.group
        })
    }

    /// Lets go of those that are over.
    pub fn reap(&mut self) {
        self.0.retain_mut(|left| {
            discard(left.group.output());
            discard(left.group.complaints());
            let is_over = left.group.has_ended();
            // The supervisor's exit code, see `command::supervisor`.
            if is_over && left.group.end().is_ok_and(|status| !status.success()) {
                left.ended.inc();
            }
            !is_over
        });
    }

    /// Ends what commands have left behind, at the end of the daemon.
    pub fn end(&mut self) {
        for left in &mut self.0 {
            left.group.begin_end();
        }
        self.0.clear();
    }
}
