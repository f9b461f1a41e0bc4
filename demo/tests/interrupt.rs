//! Ctrl-C: the demo ends at once, whenever it comes, with nothing left behind.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tempfile::TempDir;
use weir_bpf::identity::CgroupAt;

const DEMO: &str = env!("CARGO_BIN_EXE_weir-demo");

/// The program under demonstration, beside the demo; built if it is not.
fn weir() -> PathBuf {
    let weir = Path::new(DEMO).with_file_name("weir");
    if !weir.exists() {
        let target = weir.parent().and_then(Path::parent).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--locked", "-p", "weir", "--target-dir"]);
        cargo.arg(target);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success());
    }
    weir
}

fn skipped() -> bool {
    let programs = [&weir_testkit::sshd::PROGRAMS[..], &["nginx"]].concat();
    let why = weir_netlab::missing(&programs);
    if let Some(why) = &why {
        println!("skipped: {why}");
    }
    why.is_some()
}

/// One run of the demo, with a directory of its own for temporary files.
struct Run {
    dir: TempDir,
    demo: std::process::Child,
}

impl Run {
    fn start(weir: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let demo = Command::new(DEMO)
            .arg(weir)
            .env("TMPDIR", dir.path())
            .stdin(Stdio::null())
            .stdout(fs::File::create(dir.path().join("said")).unwrap())
            .stderr(fs::File::create(dir.path().join("complained")).unwrap())
            .process_group(0)
            .spawn()
            .unwrap();
        Self { dir, demo }
    }

    fn said(&self) -> String {
        fs::read_to_string(self.dir.path().join("said")).unwrap()
    }

    fn complained(&self) -> String {
        fs::read_to_string(self.dir.path().join("complained")).unwrap()
    }

    fn wait(&mut self, within: Duration) -> ExitStatus {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.demo.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "still runs: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The process that plays.
    fn player(&self) -> String {
        let pid = self.demo.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.trim().to_owned()
    }

    /// Interrupts the demo as a terminal does: everything in the foreground gets SIGINT.
    fn interrupt(&self) {
        let group = Pid::from_raw(self.demo.id().try_into().unwrap());
        killpg(group, Signal::SIGINT).unwrap();
    }

    /// Everything of this run that is there: processes (they inherited where
    /// temporary files go), files, pins, its control group.
    fn left(&self) -> BTreeSet<String> {
        let mark = self.dir.path().to_str().unwrap();
        let mut left = BTreeSet::new();
        for process in entries(Path::new("/proc")) {
            let pid = process.file_name().unwrap().to_string_lossy().into_owned();
            if pid == "self" || pid == "thread-self" {
                continue;
            }
            let environment = fs::read(process.join("environ")).unwrap_or_default();
            let words = fs::read(process.join("cmdline")).unwrap_or_default();
            let ours = |text: &[u8]| String::from_utf8_lossy(text).contains(mark);
            if ours(&environment) || ours(&words) {
                left.insert(format!("{pid}: {}", String::from_utf8_lossy(&words)));
            }
        }
        for path in entries(self.dir.path()) {
            if !path.ends_with("said") && !path.ends_with("complained") {
                left.insert(path.display().to_string());
            }
        }
        let pins = format!("/sys/fs/bpf/weir/demo-{}", self.demo.id());
        if Path::new(&pins).exists() {
            left.insert(pins);
        }
        if let Some(groups) = CgroupAt::mount_point() {
            let cgroup = groups.join(format!("weir-demo-{}", self.demo.id()));
            if cgroup.exists() {
                left.insert(cgroup.display().to_string());
            }
        }
        left
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.demo.try_wait().unwrap().is_none() {
            let _ = nix::sys::signal::kill(
                Pid::from_raw(self.demo.id().try_into().unwrap()),
                Signal::SIGTERM,
            );
            let _ = self.demo.wait();
        }
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// The namespaces that a process made (their names tell which did).
fn namespaces_of(pid: &str) -> Vec<PathBuf> {
    let mut all = entries(Path::new("/run/netns"));
    all.retain(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with(&format!("wl{pid}-"))
    });
    all
}

#[test]
fn root_an_interrupt_ends_it_at_once_and_leaves_nothing() {
    if skipped() {
        return;
    }
    let weir = weir();
    // As soon as somebody plays, and at lines that the watcher sees.
    for moment in [
        "",
        "weir protects",
        "weir found",
        "SIGKILL to weir daemon",
        "SIGKILL to server 1",
        "a rule lets curl talk",
    ] {
        let mut run = Run::start(&weir);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !run.said().contains(moment) || run.player().is_empty() {
            assert!(Instant::now() < deadline, "{moment:?}: {}", run.said());
            let ended = run.demo.try_wait().unwrap();
            assert!(ended.is_none(), "{moment:?}: {}", run.complained());
            std::thread::sleep(Duration::from_millis(2));
        }
        let player = run.player();
        // The first moment is before they are made, the others are not.
        assert!(moment.is_empty() || namespaces_of(&player).len() == 5);
        run.interrupt();
        let begun = Instant::now();
        // Once more, as people do.
        std::thread::sleep(Duration::from_millis(20));
        run.interrupt();
        let status = run.wait(Duration::from_secs(60));
        println!("{moment:?}: ended within {:?}", begun.elapsed());
        assert_eq!(status.code(), Some(130), "{moment:?}: {}", run.complained());
        assert_eq!(run.left(), BTreeSet::new(), "{moment:?}");
        assert_eq!(namespaces_of(&player), [] as [PathBuf; 0], "{moment:?}");
        assert!(run.complained().contains("interrupted"), "{moment:?}");
    }
}

/// Somebody holds Ctrl-C down: signals also reach each process of the demo in
/// the moment before it has left the terminal's foreground.
#[test]
fn root_an_interrupt_that_is_held_down_spares_who_tidies_up() {
    if skipped() {
        return;
    }
    let weir = weir();
    let mut run = Run::start(&weir);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !run.said().contains("weir protects") {
        assert!(Instant::now() < deadline, "{}", run.complained());
        std::thread::sleep(Duration::from_millis(2));
    }
    let player = run.player();
    let deadline = Instant::now() + Duration::from_secs(60);
    let status = loop {
        run.interrupt();
        if let Some(status) = run.demo.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "{}", run.complained());
        std::thread::sleep(Duration::from_micros(20));
    };
    assert_eq!(status.code(), Some(130), "{}", run.complained());
    assert_eq!(run.left(), BTreeSet::new());
    assert_eq!(namespaces_of(&player), [] as [PathBuf; 0]);
}

#[test]
fn root_a_daemon_that_dies_is_quoted() {
    if skipped() {
        return;
    }
    // A daemon that finds something wrong with the machine.
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("weir");
    fs::write(
        &program,
        "#!/bin/sh\ncase \"$*\" in *detach) exit 0 ;; esac\necho 'no BTF in this kernel' >&2; exit 2\n",
    )
    .unwrap();
    fs::set_permissions(
        &program,
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let mut run = Run::start(&program);
    let status = run.wait(Duration::from_secs(30));
    assert_eq!(status.code(), Some(1), "{}", run.complained());
    let said = run.said();
    assert!(said.contains("no BTF in this kernel"), "{said}");
    assert!(said.contains("The demo failed"), "{said}");
    // Not a terminal: plain lines.
    assert!(!said.contains('\x1b'), "{said:?}");
    assert_eq!(run.left(), BTreeSet::new());
}
