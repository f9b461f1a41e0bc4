//! dist/install-deps.sh: what it leaves behind however it ends, and what it
//! says when it cannot help. It runs in a mount namespace with a /usr/sbin of
//! its own; scripts stand in for apt-get, dpkg-query and cargo, so nothing is
//! installed.

mod common;

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::Command,
};

use common::{Answer, skipped};
use tempfile::TempDir;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/dist/install-deps.sh");
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Runs `before`, the script, and then shows what is in /usr/sbin.
const FRAME: &str = r#"
mount -t tmpfs tmpfs /usr/sbin
eval "$1"
code=0
"$2" ${WHAT-build demo bench fuzz test} || code=$?
for file in /usr/sbin/*; do [ ! -e "$file" ] || { echo "left: $file"; cat "$file"; }; done
exit $code
"#;

/// Programs that the script finds in place of the machine's.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        machine.program("cargo", "echo 'cargo 99.0.0 (abc 2030-01-01)'");
        machine.program("systemctl", "exit 0");
        machine.program("dpkg-query", "echo unknown ok not-installed");
        machine.program("apt-get", &format!("cat {POLICY}"));
        machine
    }

    fn program(&self, name: &str, body: &str) {
        let path = self.0.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn runs(&self, before: &str) -> Answer {
        let path = format!("{}:/usr/bin:/bin", self.0.path().display());
        // A shell cannot trap what it was started without: CI's own shell may
        // have started the tests with SIGINT ignored.
        let output = Command::new("env")
            .args(["--default-signal=INT,TERM", "unshare"])
            .args(["--mount", "--propagation", "private"])
            .args(["bash", "-uc", FRAME, "frame", before, SCRIPT])
            .env("PATH", path)
            .process_group(0)
            .output();
        Answer::of(output.unwrap())
    }
}

#[test]
fn root_services_are_denied_while_packages_are_installed_only() {
    if skipped(&["unshare", "bash"]) {
        return;
    }
    let machine = Machine::new();
    // apt-get's own output is not shown: it writes what it saw elsewhere.
    let seen = machine.0.path().join("seen");
    machine.program("apt-get", &format!("cat {POLICY} >>{}", seen.display()));
    let answer = machine.runs("").done();
    assert!(answer.out.starts_with("installing: gcc"), "{answer:?}");
    assert!(!answer.out.contains("left:"), "{answer:?}");
    let seen = fs::read_to_string(seen).unwrap();
    assert_eq!(seen.matches("exit 101").count(), 2, "update and install");

    // The machine has a policy of its own.
    let answer = machine.runs(&format!("echo own >{POLICY}")).done();
    assert!(
        answer.out.ends_with(&format!("left: {POLICY}\nown\n")),
        "{answer:?}"
    );

    // A run before this one was killed.
    let killed = format!(
        "printf '#!/bin/sh\\n# made by dist/install-deps.sh of weir\\n' >{POLICY}; \
         echo own >{POLICY}.before-weir"
    );
    let answer = machine.runs(&killed).done();
    assert!(
        answer.out.ends_with(&format!("left: {POLICY}\nown\n")),
        "{answer:?}"
    );
}

#[test]
fn root_the_policy_goes_when_apt_fails_and_at_a_signal() {
    if skipped(&["unshare", "bash"]) {
        return;
    }
    let machine = Machine::new();
    let install = |body: &str| format!("case $1 in install) {body} ;; esac");
    for (body, code, words) in [
        ("echo E: no route >&2; exit 100".to_owned(), 1, "online"),
        (
            install("echo E: no package >&2; exit 100"),
            1,
            "apt-get install failed",
        ),
        // Ctrl-C reaches the foreground's process group; bash, the frame, is
        // left out of it here.
        (install("kill -INT $PPID; exit 130"), 130, ""),
        (install("kill -TERM $PPID; exit 143"), 143, ""),
    ] {
        machine.program("apt-get", &body);
        let answer = machine.runs(&format!("echo own >{POLICY}"));
        assert_eq!(answer.code, Some(code), "{body}: {answer:?}");
        assert!(answer.err.contains(words), "{body}: {answer:?}");
        assert!(
            answer.out.ends_with(&format!("left: {POLICY}\nown\n")),
            "{body}: {answer:?}"
        );
    }
}

#[test]
fn root_what_is_missing_is_named() {
    if skipped(&["unshare", "bash"]) {
        return;
    }
    let machine = Machine::new();
    machine.program("id", "echo 1000");
    let answer = machine.runs("");
    assert_eq!(answer.code, Some(1), "{answer:?}");
    assert!(answer.err.contains("install them as root"), "{answer:?}");
    assert!(answer.err.contains(" openssh-server"), "{answer:?}");
}

/// Without Rust nothing can be built: forty packages would be installed for nothing.
#[test]
fn root_nothing_is_installed_without_a_cargo_that_is_new_enough() {
    if skipped(&["unshare", "bash"]) {
        return;
    }
    let machine = Machine::new();
    let seen = machine.0.path().join("seen");
    machine.program("apt-get", &format!("touch {}", seen.display()));
    machine.program("cargo", "echo 'cargo 1.63.0 (abc 2022-01-01)'");
    let answer = machine.runs("");
    assert_eq!(answer.code, Some(1), "{answer:?}");
    assert!(answer.err.contains("cargo is too old"), "{answer:?}");
    assert!(!answer.out.contains("installing"), "{answer:?}");
    assert!(!seen.exists(), "apt-get was run");
}

/// Postfix would take the place of the machine's own mail server.
#[test]
fn root_another_mail_server_stays() {
    if skipped(&["unshare", "bash"]) {
        return;
    }
    let machine = Machine::new();
    machine.program("id", "echo 1000");
    let answer = machine.runs("");
    assert!(answer.err.contains(" postfix"), "{answer:?}");
    let answer = machine.runs("touch /usr/sbin/sendmail");
    assert!(!answer.err.contains(" postfix"), "{answer:?}");
    assert!(answer.err.contains(" dovecot-imapd"), "{answer:?}");
}

/// Each purpose installs its own packages: a host that is to be protected gets no servers,
/// clients or scanners with a build.
#[test]
fn root_each_purpose_has_its_own_packages() {
    if skipped(&["unshare", "bash"]) {
        return;
    }
    let machine = Machine::new();
    machine.program("id", "echo 1000");
    let wanted = |what: &str| {
        let answer = machine.runs(&format!("export WHAT={what:?}"));
        assert_eq!(answer.code, Some(1), "{answer:?}");
        let line = answer
            .err
            .lines()
            .find_map(|line| line.split_once("--no-install-recommends "))
            .map(|(_, packages)| packages.to_owned());
        let line = line.unwrap_or_else(|| panic!("{answer:?}"));
        line.split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    let servers = [
        "openssh-server",
        "rsyslog",
        "nginx-light",
        "bind9",
        "dropbear-bin",
        "nmap",
        "masscan",
        "systemd-journal-remote",
    ];
    let build = wanted("build");
    assert!(build.iter().any(|package| package == "clang"), "{build:?}");
    for server in servers {
        assert!(!build.iter().any(|package| package == server), "{build:?}");
    }
    let demo = wanted("demo");
    for server in servers {
        let plays = ["openssh-server", "rsyslog", "nginx-light"].contains(&server);
        assert_eq!(demo.contains(&server.to_owned()), plays, "{demo:?}");
    }
    let test = wanted("build demo bench fuzz test");
    for package in build.iter().chain(&demo) {
        // Each once.
        assert_eq!(test.iter().filter(|p| *p == package).count(), 1, "{test:?}");
    }
    for what in ["", "tests"] {
        let answer = machine.runs(&format!("export WHAT={what:?}"));
        assert_eq!(answer.code, Some(1), "{answer:?}");
        assert!(answer.err.contains("build|demo|bench"), "{answer:?}");
    }
}

#[test]
fn an_old_cargo_is_told_what_is_needed() {
    let machine = Machine::new();
    machine.program("dpkg-query", "echo install ok installed");
    let wanted = env!("CARGO_PKG_RUST_VERSION");
    let runs = || {
        let path = format!("{}:/usr/bin:/bin", machine.0.path().display());
        let mut script = Command::new(SCRIPT);
        Answer::of(script.arg("build").env("PATH", path).output().unwrap())
    };
    for (version, good) in [
        ("1.9.0", false),
        ("1.63.0", false),
        ("1.87.9-nightly", false),
        (&format!("{wanted}.0"), true),
        ("1.100.1", true),
        ("2.0.0-nightly", true),
    ] {
        machine.program("cargo", &format!("echo 'cargo {version} (abc 2030-01-01)'"));
        let answer = runs();
        assert_eq!(answer.code, Some(i32::from(!good)), "{version}: {answer:?}");
        if !good {
            for words in [&format!("Rust {wanted} or newer"), version, "rustup update"] {
                assert!(answer.err.contains(words), "{version}: {answer:?}");
            }
        }
    }
    // rustup's stand-in without a toolchain.
    machine.program("cargo", "echo 'error: no toolchain' >&2; exit 1");
    let answer = runs();
    assert_eq!(answer.code, Some(1));
    assert!(answer.err.contains("does not run"), "{answer:?}");
    fs::remove_file(machine.0.path().join("cargo")).unwrap();
    if !Path::new("/usr/bin/cargo").exists() {
        let answer = runs();
        assert_eq!(answer.code, Some(1));
        assert!(answer.err.contains("cargo is missing"), "{answer:?}");
    }
}
