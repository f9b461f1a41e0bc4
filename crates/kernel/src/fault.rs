//! Places where a test kills the daemon: growth, take-over, link update.
//! Without the cargo feature `fault-points` this is nothing at all.

/// Dies by SIGKILL, as at a power cut, when `WEIR_FAULT` names this point.
#[cfg(feature = "fault-points")]
pub fn point(name: &str) {
    if std::env::var_os("WEIR_FAULT").is_some_and(|wanted| wanted == name) {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

/// Does nothing in a program that is not under test.
#[cfg(not(feature = "fault-points"))]
#[inline(always)]
pub fn point(_name: &str) {}
