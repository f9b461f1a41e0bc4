//! What tests do to a running daemon: kill it inside growth, take-over and
//! link update; let it sleep. Without the cargo feature `fault-points` this is
//! nothing at all.

/// Dies by SIGKILL, as at a power cut, when `WEIR_FAULT` names this point. Waits for
/// as long as the file that `WEIR_FAULT_HOLD` names has a line that is this name, and
/// makes that file with the name behind a dot, so that others know.
#[cfg(feature = "fault-points")]
pub fn point(name: &str) {
    if let Some(held) = std::env::var_os("WEIR_FAULT_HOLD") {
        let is_held = || {
            let names = std::fs::read_to_string(&held).unwrap_or_default();
            names.lines().any(|line| line == name)
        };
        while is_held() {
            let mut reached = held.clone();
            reached.push(format!(".{name}"));
            let _ = std::fs::write(reached, "");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    if std::env::var_os("WEIR_FAULT").is_some_and(|wanted| wanted == name) {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

/// Does nothing in a program that is not under test.
#[cfg(not(feature = "fault-points"))]
#[inline(always)]
pub fn point(_name: &str) {}

/// Panics when `WEIR_FAULT` is `panic:` and this name, and never comes back
/// when it is `stall:` and this name.
#[cfg(feature = "fault-points")]
pub fn trip(name: &str) {
    let wanted = std::env::var("WEIR_FAULT").unwrap_or_default();
    match wanted.split_once(':') {
        Some(("panic", there)) if there == name => panic!("the fault point {name}"),
        Some(("stall", there)) if there == name => loop {
            std::thread::park();
        },
        _ => {}
    }
}

/// Does nothing in a program that is not under test.
#[cfg(not(feature = "fault-points"))]
#[inline(always)]
pub fn trip(_name: &str) {}

/// Fails as if the kernel had no memory for it, while the file that
/// `WEIR_FAULT_REFUSE` names has a line that is this name.
#[cfg(feature = "fault-points")]
pub fn refuse(name: &str) -> std::io::Result<()> {
    let refused = std::env::var_os("WEIR_FAULT_REFUSE")
        .and_then(|file| std::fs::read_to_string(file).ok())
        .unwrap_or_default();
    match refused.lines().any(|line| line == name) {
        true => Err(std::io::ErrorKind::OutOfMemory.into()),
        false => Ok(()),
    }
}

/// Refuses nothing in a program that is not under test.
#[cfg(not(feature = "fault-points"))]
#[inline(always)]
pub fn refuse(_name: &str) -> std::io::Result<()> {
    Ok(())
}

/// For how long, in nanoseconds, the machine is to have been suspended more
/// than it was: the file that `WEIR_FAULT_SLEPT` names holds the seconds.
#[cfg(feature = "fault-points")]
pub fn slept() -> u64 {
    static FILE: std::sync::OnceLock<Option<std::path::PathBuf>> = std::sync::OnceLock::new();
    FILE.get_or_init(|| std::env::var_os("WEIR_FAULT_SLEPT").map(Into::into))
        .as_ref()
        .and_then(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok())
        .map_or(0, |seconds: u64| seconds * 1_000_000_000)
}

/// Never, in a program that is not under test.
#[cfg(not(feature = "fault-points"))]
#[inline(always)]
pub fn slept() -> u64 {
    0
}

/// How often something is done that takes hours: the seconds that
/// `WEIR_FAULT_PROLONG` says, if it does.
#[cfg(feature = "fault-points")]
pub fn sooner(usual: std::time::Duration) -> std::time::Duration {
    let seconds = std::env::var("WEIR_FAULT_PROLONG").ok();
    seconds
        .and_then(|seconds| seconds.parse().ok())
        .map_or(usual, std::time::Duration::from_secs)
}

/// As often as usual, in a program that is not under test.
#[cfg(not(feature = "fault-points"))]
#[inline(always)]
pub fn sooner(usual: std::time::Duration) -> std::time::Duration {
    usual
}
