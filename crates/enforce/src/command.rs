//! Runs a program of the system with text on its standard input: arguments as
//! they are, no shell, bounded in output and time.

use std::{
    io::{self, Read, Write},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// A million elements take a few seconds.
const LIMIT: Duration = Duration::from_secs(60);
/// What is read of its output at most: a million elements, listed.
const OUTPUT: u64 = 512 << 20;
/// What a message may have of what it said.
const SAID: usize = 300;

/// Runs it to its end; returns its standard output.
///
/// # Errors
/// It cannot be started, fails, or takes too long; with what it said.
pub(crate) fn run(program: &str, args: &[&str], input: &str) -> io::Result<String> {
    let mut child = Command::new(program)
        .args(args)
        .env_remove("LD_PRELOAD")
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().expect("piped");
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (ended, out, said) = std::thread::scope(|scope| {
        // Gone before it has read all: its exit code tells why.
        scope.spawn(move || drop(stdin.write_all(input.as_bytes())));
        let out = scope.spawn(move || read(stdout.expect("piped")));
        let said = scope.spawn(move || read(stderr.expect("piped")));
        let deadline = Instant::now() + LIMIT;
        let mut pause = Duration::from_micros(200);
        let ended = loop {
            match child.try_wait() {
                Ok(None) if Instant::now() < deadline => std::thread::sleep(pause),
                Ok(None) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break Err(io::Error::from(io::ErrorKind::TimedOut));
                }
                Ok(Some(status)) => break Ok(status),
                Err(error) => break Err(error),
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        };
        let text = |thread: std::thread::ScopedJoinHandle<'_, String>| {
            thread.join().expect("reading does not panic")
        };
        (ended, text(out), text(said))
    });
    let status = ended?;
    if status.success() {
        return Ok(out);
    }
    let said: String = said.trim().chars().take(SAID).collect();
    Err(io::Error::other(format!("{program} {status}: {said}")))
}

fn read(from: impl Read) -> String {
    let mut bytes = Vec::new();
    // What came until then is what there is.
    let _ = from.take(OUTPUT).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_reads_writes_and_fails() {
        let long = "x\n".repeat(200_000);
        assert_eq!(run("cat", &[], &long).unwrap(), long);
        let error = run("cat", &["/no such file"], "").unwrap_err().to_string();
        assert!(error.contains("/no such file"), "{error}");
        assert!(run("/no such program", &[], "").is_err());
        // One that does not read.
        assert_eq!(run("true", &[], &long).unwrap(), "");
    }
}
