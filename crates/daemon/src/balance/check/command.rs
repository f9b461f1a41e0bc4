//! A command of the administrator's, run as a watch's is: without a shell, as the user of
//! watches, in a process group of its own. Exit code 0 is life. What it prints is read and
//! forgotten; what is not over in time is ended with all that it has started.

use std::{
    io::{self, Read},
    net::SocketAddr,
    time::{Duration, Instant},
};

use rustix::net::{SendFlags, SocketType, connect, send};

use super::{Outcome, TOO_LATE, Target, socket};
use crate::command::child::{Group, Rights};

/// So much of what it prints is read in one look.
const MOST_OUTPUT: usize = 64 * 1024;

/// A check whose command runs.
pub(super) struct Command {
    group: Group,
    ends: Instant,
}

impl Command {
    pub(super) fn begin(
        command: &[String],
        target: &Target,
        timeout: Duration,
    ) -> io::Result<Self> {
        let environment = [
            ("WEIR_POOL", target.pool.clone()),
            ("WEIR_REAL", target.to.ip().to_string()),
            ("WEIR_VIP", target.vip.to_string()),
            ("WEIR_PORT", target.to.port().to_string()),
        ];
        // Whatever the command asks, the kernel looks for the real's link-layer address
        // only when something is sent there: a datagram of nothing (RFC 863).
        let discard = SocketAddr::new(target.to.ip(), 9);
        let socket = socket(target, SocketType::DGRAM)?;
        let _ = connect(&socket, &discard).and_then(|()| send(&socket, &[], SendFlags::NOSIGNAL));
        Ok(Self {
            group: Group::start(Rights::ReadLogs, &environment, command, Duration::ZERO)?,
            ends: Instant::now() + timeout,
        })
    }

    pub(super) fn look(&mut self) -> Outcome {
        // Else it would wait for ever when its pipe is full.
        drain(self.group.output());
        drain(self.group.complaints());
        if self.group.has_ended() {
            return Some(match self.group.end() {
                Ok(status) if status.success() => Ok(()),
                Ok(status) => Err(status.to_string()),
                Err(error) => Err(error.to_string()),
            });
        }
        if Instant::now() < self.ends {
            return None;
        }
        self.group.kill();
        Some(Err(TOO_LATE.to_owned()))
    }
}

impl Drop for Command {
    /// Who waits for it to end by itself would hold all other checks up.
    fn drop(&mut self) {
        self.group.kill();
    }
}

fn drain(pipe: Option<&mut impl Read>) {
    let Some(pipe) = pipe else {
        return;
    };
    let mut buffer = [0; 4096];
    for _ in 0..MOST_OUTPUT / buffer.len() {
        // It is not waited for: an error is that there is no more now.
        if !matches!(pipe.read(&mut buffer), Ok(1..)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        CheckKind,
        tests::{LOOPBACK, outcome},
    };

    /// (The supervisor is the daemon's program, which a unit test is not: what a command
    /// does is tests/root_balance/command.rs's.)
    #[test]
    fn what_cannot_be_run_is_named() {
        for addr in LOOPBACK {
            let kind = CheckKind::Command(vec!["/nowhere/check".to_owned()]);
            let why = outcome(&kind, addr).unwrap_err();
            assert!(why.starts_with("command: /nowhere/check"), "{why}");
        }
    }
}
