//! `make demo`: attackers guess passwords at a real OpenSSH server while a
//! customer logs in; weir bans the attackers, survives SIGKILL, balances load
//! between two nginx of which one dies, lets one program of the host talk to the
//! network and another one not, explains itself and lets an attacker back in.
//! Every claim on the screen is checked; the exit code is 0 only when all of
//! them held.
//!
//! Three processes of this program, so that Ctrl-C can come at any moment:
//! the one that was started waits, in the terminal's foreground; it starts one
//! that plays, and, when that was cut short, one that tidies up. These two
//! have process groups of their own, which the terminal's signals do not
//! reach: nothing is interrupted halfway but by SIGKILL, and removing what is
//! left never is.

mod network;
mod participant;
mod pool;
mod programs;
mod screen;
mod script;

use std::{
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use nix::{
    sys::signal::{SigSet, Signal, killpg},
    unistd::Pid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use network::DemoNetwork;
use screen::Screen;

/// Failures before the ban; as in dist/weir.toml.
const MAX_RETRY: u32 = 5;
/// It takes some 30 s, on a machine that is busy with other things a few times
/// that; one that needs more than this has a problem.
const LIMIT: Duration = Duration::from_secs(300);

const PLAY: &str = "--play";
const TIDY: &str = "--tidy";

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let args: Vec<&OsStr> = args.iter().map(OsString::as_os_str).collect();
    let done = match args[..] {
        [role, instance, weir] if role == PLAY => shield().map(|()| play(instance, weir.as_ref())),
        [role, instance, weir] if role == TIDY => shield().and_then(|()| tidy(instance, weir)),
        [weir] if !weir.as_encoded_bytes().starts_with(b"-") => match probe(weir.as_ref()) {
            Ok(()) => supervise(weir),
            Err(e) => Err(e),
        },
        _ => Err(anyhow::anyhow!(
            "usage: weir-demo PATH-OF-WEIR (or just: make demo)"
        )),
    };
    done.unwrap_or_else(|e| {
        eprintln!("weir-demo: {e:#}");
        ExitCode::from(2)
    })
}

/// What a terminal, or whoever ends a session, sends to all of its foreground.
const TERMINAL_SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

fn terminal_signals() -> SigSet {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
        .into_iter()
        .collect()
}

/// Swallows the signals that reached this process before it had a process
/// group of its own, and those that come later. The programs it starts are as
/// any others.
fn shield() -> anyhow::Result<()> {
    for number in TERMINAL_SIGNALS {
        signal_hook::flag::register(number, Arc::default()).context("cannot handle signals")?;
    }
    terminal_signals()
        .thread_unblock()
        .context("cannot unblock signals")
}

/// Fails with the reason if the demo cannot run here.
fn probe(weir: &Path) -> anyhow::Result<()> {
    let programs = [&weir_testkit::sshd::PROGRAMS[..], &["nginx"]].concat();
    if let Some(why) = weir_netlab::missing(&programs) {
        anyhow::bail!("the demo cannot run here: {why}");
    }
    std::fs::metadata(weir).with_context(|| format!("no program {}", weir.display()))?;
    Ok(())
}

/// Starts the play, and sees to it that nothing is left however it ends.
fn supervise(weir: &OsStr) -> anyhow::Result<ExitCode> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in TERMINAL_SIGNALS {
        signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)
            .context("cannot handle signals")?;
    }
    // Whatever makes temporary files makes them in here.
    let dir = tempfile::Builder::new().prefix("weir-demo-").tempdir()?;
    let instance = format!("demo-{}", std::process::id());
    let run = |role: &str| {
        // A process is in its parent's group for a moment, and one of Ctrl-C's
        // signals may reach it there: blocked, it waits for `shield`.
        let signals = terminal_signals();
        signals.thread_block().context("cannot block signals")?;
        let child = Command::new("/proc/self/exe")
            .args([OsStr::new(role), instance.as_ref(), weir])
            .env("TMPDIR", dir.path())
            .stdin(Stdio::null())
            .process_group(0)
            .spawn();
        signals.thread_unblock().context("cannot unblock signals")?;
        child.context("cannot start the demo's other half")
    };
    let begun = Instant::now();
    let mut player = run(PLAY)?;
    let ended = loop {
        let stopped = signal.load(Ordering::Relaxed) != 0 || begun.elapsed() > LIMIT;
        match player.try_wait()? {
            Some(status) => break Some(status),
            None if stopped => break None,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let code = ended.and_then(|status: ExitStatus| status.code());
    if code.is_none() {
        end(&mut player)?;
        let tidied = run(TIDY)?.wait()?;
        anyhow::ensure!(tidied.success(), "could not remove everything: {tidied}");
    }
    dir.close().context("removing the temporary files")?;
    Ok(match (code, signal.load(Ordering::Relaxed)) {
        (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        (None, 0) => {
            let why = match ended {
                Some(status) => format!("it ended with {status}"),
                None => format!("it took more than {} s", LIMIT.as_secs()),
            };
            eprintln!("weir-demo: {why}; everything is removed");
            ExitCode::FAILURE
        }
        (None, number) => {
            eprintln!("weir-demo: interrupted; everything is removed");
            ExitCode::from(u8::try_from(128 + number).unwrap_or(1))
        }
    })
}

/// Kills the player with all of its process group. (Who left the group, as
/// sshd's sessions do, is found by the namespace.)
fn end(player: &mut Child) -> anyhow::Result<()> {
    let group = Pid::from_raw(i32::try_from(player.id())?);
    match killpg(group, Signal::SIGKILL) {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
        Err(e) => return Err(e).context("cannot end the demo"),
    }
    player.wait()?;
    Ok(())
}

fn play(instance: &OsStr, weir: &Path) -> ExitCode {
    let mut screen = Screen::new();
    let outcome = DemoNetwork::set(weir, &instance.to_string_lossy())
        .and_then(|mut network| script::play(&mut network, &mut screen));
    match outcome {
        Ok(()) => {
            screen.summary();
            ExitCode::SUCCESS
        }
        Err(e) => {
            screen.failed(&format!("{e:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Removes what a player left that was killed: namespaces with the processes
/// and wires in them, then programs, tables and pins.
fn tidy(instance: &OsStr, weir: &OsStr) -> anyhow::Result<ExitCode> {
    // The first network of a process removes those of processes that are gone.
    drop(weir_netlab::Net::new()?);
    programs::tidy(&instance.to_string_lossy());
    // A killed daemon leaves its namespace some milliseconds before it lets go
    // of the instance's lock.
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let detached = Command::new(weir)
            .args([OsStr::new("detach"), "--instance".as_ref(), instance])
            .output()
            .context("cannot run weir detach")?;
        if detached.status.success() {
            break;
        }
        let said = String::from_utf8_lossy(&detached.stderr);
        anyhow::ensure!(Instant::now() < deadline, "weir detach: {}", said.trim());
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(ExitCode::SUCCESS)
}
