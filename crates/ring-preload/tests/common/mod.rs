//! What tests of the shim share: a command under the shim, the ring that it
//! fills, and real servers with a configuration of their own. Nothing here
//! knows what is tested, so that other tests can use it.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod named;
pub mod nginx;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use weir_ring::{Owner, ReaderOptions, Set, Worker};

/// How long anything may take on a machine that is busy.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The shared library that cargo built with this test.
pub fn shim() -> PathBuf {
    let test = std::env::current_exe().expect("ourselves");
    let built = test.with_file_name("libweir_ring_preload.so");
    assert!(built.exists(), "{} is missing", built.display());
    built
}

/// Waits until `done` gives something.
pub fn wait_for<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(begun.elapsed() < DEADLINE, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A directory for a server's files, which its unprivileged workers may
/// enter, and one for the ring.
pub struct ServerFiles {
    files: tempfile::TempDir,
    ring: tempfile::TempDir,
}

impl ServerFiles {
    pub fn new() -> ServerFiles {
        let directory = |parent: &Path| {
            let made = tempfile::Builder::new()
                .prefix("weir-preload-")
                .tempdir_in(parent)
                .expect("a directory");
            std::fs::set_permissions(made.path(), std::fs::Permissions::from_mode(0o777))
                .expect("its mode");
            made
        };
        ServerFiles {
            files: directory(&std::env::temp_dir()),
            ring: directory(Path::new("/dev/shm")),
        }
    }

    /// Where one of the server's files is.
    pub fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// The lines of one of them; none if it is not there.
    pub fn lines_of(&self, name: &str) -> Vec<String> {
        let text = std::fs::read(self.file(name)).unwrap_or_default();
        String::from_utf8_lossy(&text)
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// The directory of segments.
    pub fn ring(&self) -> &Path {
        self.ring.path()
    }

    /// A program with the files matching `patterns` diverted.
    pub fn under_shim(&self, program: impl AsRef<Path>, patterns: &[&str], tee: bool) -> Command {
        let mut command = Command::new(program.as_ref());
        let patterns: Vec<String> = patterns
            .iter()
            .map(|pattern| self.file(pattern).display().to_string())
            .collect();
        command
            .env("LD_PRELOAD", shim())
            .env("WEIR_RING", self.ring())
            .env("WEIR_RING_FILES", patterns.join(":"))
            .env("WEIR_RING_TEE", if tee { "1" } else { "0" })
            .stdin(Stdio::null());
        command
    }

    /// A reader of the ring.
    pub fn reader(&self) -> Lines {
        let options = ReaderOptions::new().owner(Owner::Anyone);
        let set = Set::open(self.ring(), &options).expect("the ring");
        Lines {
            worker: set.worker(0, 1),
            by_segment: BTreeMap::new(),
        }
    }
}

/// All lines of a ring so far, by segment.
pub struct Lines {
    worker: Worker,
    pub by_segment: BTreeMap<usize, Vec<String>>,
}

impl Lines {
    /// Reads what is there now.
    pub fn read(&mut self) {
        let by_segment = &mut self.by_segment;
        self.worker.set().rescan().expect("the directory");
        while self
            .worker
            .turn(|segment, batch| {
                let lines = by_segment.entry(segment).or_default();
                for record in batch {
                    lines.push(String::from_utf8_lossy(record.payload).into_owned());
                }
            })
            .is_some()
        {}
        let seen = self.worker.set().statistics();
        assert_eq!((seen.bad, seen.refused, seen.lost), (0, 0, 0), "{seen:?}");
    }

    /// Every line, segment by segment.
    pub fn all(&self) -> Vec<String> {
        self.by_segment.values().flatten().cloned().collect()
    }

    /// Reads until so many lines have `word` in them; returns those.
    pub fn with(&mut self, word: &str, count: usize) -> Vec<String> {
        wait_for(&format!("{count} lines with {word:?}"), || {
            self.read();
            let mut found = self.all();
            found.retain(|line| line.contains(word));
            (found.len() >= count).then_some(found)
        })
    }

    /// The lines with `word` in them, by segment.
    pub fn only(&self, word: &str) -> BTreeMap<usize, Vec<String>> {
        let of = |lines: &Vec<String>| {
            let lines = lines.iter().filter(|line| line.contains(word));
            lines.cloned().collect()
        };
        let segments = self.by_segment.iter();
        segments
            .map(|(&segment, lines)| (segment, of(lines)))
            .collect()
    }
}

/// Fails unless the file has the same lines, and those of each segment
/// in the same order.
pub fn assert_same(segments: &BTreeMap<usize, Vec<String>>, file: &[String]) {
    let mut ring: Vec<String> = segments.values().flatten().cloned().collect();
    let mut sorted = file.to_vec();
    ring.sort();
    sorted.sort();
    assert_eq!(ring, sorted);
    for lines in segments.values() {
        let mut rest = file.iter();
        for line in lines {
            assert!(rest.any(|other| other == line), "out of order: {line}");
        }
    }
}

/// A server and whatever it started, killed when dropped.
pub struct Running(Child);

impl Running {
    pub fn start(command: &mut Command) -> Running {
        Running(
            command
                .process_group(0)
                .spawn()
                .unwrap_or_else(|error| panic!("{command:?}: {error}")),
        )
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("our child").is_some()
    }

    /// Sends a signal to the server's first process.
    pub fn signal(&self, name: &str) {
        kill(name, &self.id().to_string());
    }

    /// SIGKILL for all of its processes, and waits until they are gone.
    pub fn kill(&mut self) {
        let group = format!("-{}", self.id());
        kill("KILL", &group);
        let _ = self.0.wait();
        wait_for("the end of the server's processes", || {
            let left = Command::new("kill")
                .args(["-0", "--", &group])
                .stderr(Stdio::null())
                .status()
                .expect("kill");
            (!left.success()).then_some(())
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.kill();
        }
    }
}

fn kill(signal: &str, target: &str) {
    let status = Command::new("kill")
        .args(["-s", signal, "--", target])
        .status();
    assert!(status.expect("kill").success(), "kill -s {signal} {target}");
}

/// A port of the loopback that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}
