//! `make install` and `make uninstall`: what they put where, that an upgrade
//! replaces the program in one step, and that nothing stays behind, neither in
//! the file system nor in the kernel. The "host" is a mount namespace with its
//! own /etc, /run, /var/lib, /var/log and unit directory, in which nothing of weir was
//! ever run and nobody has mounted the BPF file system, and a script stands in
//! for systemctl. What systemd does with the unit is not
//! tested here; `make lint` has it verify the file.

mod common;

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
};

use common::{ATTACKER, Answer, TestNet, WEIR, at, skipped, soon};
use tempfile::TempDir;
use weir_netlab::Child;

/// Makes the private places, says so, and holds them until its input closes.
const PLACES: &str = r#"
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /var/log
mount -t tmpfs tmpfs /lib/systemd/system
while umount /sys/fs/bpf 2>/dev/null; do :; done
mkdir /run/etc /run/systemd /run/systemd/system
cp -a /etc/. /run/etc
mount --bind /run/etc /etc
rm -rf /etc/weir /etc/default/weir-real-side /run/weir-real-side
echo ready
read -r _ || true
"#;

/// Writes down what it is asked; "stop" ends the daemon and waits for it (a
/// zombie, which the test has yet to wait for, has no `exe` any more).
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$*" >>"$LOG"
case "$*" in
"stop weir.service")
	read -r pid <"$LOG.pid" || exit 5
	kill "$pid"
	while [ -e "/proc/$pid/exe" ]; do sleep 0.02; done ;;
*is-active*) [ -e "$LOG.pid" ] && read -r pid <"$LOG.pid" && [ -e "/proc/$pid/exe" ] ;;
esac 2>/dev/null
"#;

struct Host {
    dir: TempDir,
    keeper: process::Child,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix(&format!("weir-system-{}-", process::id()))
            .tempdir()
            .unwrap();
        let systemctl = dir.path().join("bin/systemctl");
        fs::create_dir(dir.path().join("bin")).unwrap();
        fs::write(&systemctl, SYSTEMCTL).unwrap();
        fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).unwrap();
        let mut keeper = Command::new("unshare")
            .args(["--mount", "--net", "--propagation", "private"])
            .args(["sh", "-euc", PLACES])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(keeper.stdout.take().unwrap())
            .read_line(&mut said)
            .unwrap();
        assert_eq!(said, "ready\n", "the places could not be made");
        Self { dir, keeper }
    }

    /// A command that runs within the places, and in a network of their own: an
    /// instance has one holder in each.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        self.entering(&[("mount", "mnt"), ("net", "net")], program)
    }

    /// The command of the daemon, in the network in which it is started.
    fn daemons_command(&self, program: impl AsRef<Path>) -> Command {
        self.entering(&[("mount", "mnt")], program)
    }

    fn entering(&self, namespaces: &[(&str, &str)], program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        let path = std::env::var("PATH").unwrap_or_default();
        for (flag, name) in namespaces {
            command.arg(format!("--{flag}=/proc/{}/ns/{name}", self.keeper.id()));
        }
        command
            .arg("--wd=/")
            .arg(program.as_ref())
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("LOG", self.path("systemctl.log"))
            .stdin(Stdio::null());
        command
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn make(&self, args: &[&str]) -> Answer {
        Answer::of(self.makes(self.command("make"), args).output().unwrap())
    }

    fn makes(&self, mut command: Command, args: &[&str]) -> Command {
        command
            .args(["-s", "-C", env!("CARGO_MANIFEST_DIR")])
            .arg(format!("PROGRAM={WEIR}"))
            .arg(format!("PREFIX={}", self.path("usr").display()))
            .args(args)
            .env_remove("MAKEFLAGS");
        command
    }

    /// A path as the places have it, from outside.
    fn inside(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.keeper.id()))
    }

    fn asked(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("systemctl.log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    fn installed(&self) -> PathBuf {
        self.path("usr/sbin/weir")
    }

    fn weir(&self, args: &[&str]) -> Answer {
        Answer::of(self.command(self.installed()).args(args).output().unwrap())
    }

    fn start(&self, net: &TestNet) -> Child {
        let mut command = self.daemons_command(self.installed());
        command.arg("daemon").stdout(Stdio::null());
        let said = fs::File::create(self.path("daemon.err")).unwrap();
        command.stderr(said);
        let daemon = net.host.spawn(command).unwrap();
        soon("the daemon to answer", || {
            (self.weir(&["status"]).code == Some(0)).then_some(())
        });
        fs::write(
            self.path("systemctl.log.pid"),
            format!("{}\n", daemon.pid()),
        )
        .unwrap();
        daemon
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
        if std::thread::panicking() {
            let said = fs::read_to_string(self.path("daemon.err")).unwrap_or_default();
            eprintln!(
                "systemctl was asked {:?}; the daemon said:\n{said}",
                self.asked()
            );
        }
    }
}

/// Every file and link below a directory.
fn files(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.insert(entry.path());
        }
    }
    found
}

const CONFIG: &str =
    "interfaces = [\"eth0\"]\n[jail.sshd]\npaths = [\"/run/auth.log\"]\nsource = \"file\"\n";

#[test]
fn root_uninstall_leaves_nothing_in_force() {
    if skipped(&["make", "unshare", "nsenter"]) {
        return;
    }
    let (host, net) = (Host::new(), TestNet::new());
    let place = |path: &str| host.inside(path);
    host.make(&["install"]).done();
    let unit = fs::read_to_string(place("/lib/systemd/system/weir.service")).unwrap();
    let starts = format!("ExecStart={} daemon", host.installed().display());
    assert!(unit.contains(&starts), "{unit}");
    // The daemon counts on being started again.
    for needed in ["Type=notify", "Restart=always", "WatchdogSec=3min"] {
        assert!(unit.lines().any(|line| line == needed), "{unit}");
    }
    fs::write(place("/etc/weir/weir.toml"), CONFIG).unwrap();
    fs::write(place("/run/auth.log"), "").unwrap();
    let mut daemon = host.start(&net);
    host.weir(&["ban", "198.51.100.66"]).done();
    assert!(place("/sys/fs/bpf/weir/default").is_dir());

    // Upgrade: another inode under the name, the configuration as it was.
    let before = fs::metadata(host.installed()).unwrap().ino();
    let said = host.make(&["install"]).done().out;
    assert!(said.contains("systemctl restart weir"), "{said}");
    assert_ne!(fs::metadata(host.installed()).unwrap().ino(), before);
    let config = fs::read_to_string(place("/etc/weir/weir.toml")).unwrap();
    assert_eq!(config, CONFIG);

    // A ring's unit that is enabled, and a sink's file.
    let ring = "weir-ring-syslog@web.service";
    let wants = place("/etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).unwrap();
    let template = "/lib/systemd/system/weir-ring-syslog@.service";
    std::os::unix::fs::symlink(template, wants.join(ring)).unwrap();
    fs::create_dir(place("/var/log/weir")).unwrap();
    fs::write(place("/var/log/weir/events.json"), "").unwrap();

    // A file of somebody else's whose name begins alike.
    let other = host.path("usr/share/man/man1/weird.1");
    fs::write(&other, "").unwrap();
    let said = host.make(&["uninstall"]).done().out;
    assert!(said.contains("detached from eth0"), "{said}");
    let configuration = ["/etc/weir", "/etc/default/weir-real-side"];
    let kept_places = [&configuration[..], &["/var/lib/weir", "/var/log/weir"]].concat();
    for kept in &kept_places {
        assert!(said.contains(&format!("kept: {kept} ")), "{said}");
    }
    assert!(daemon.wait(common::SOON).unwrap().is_some());
    let asked = host.asked();
    for request in [
        "stop weir.service",
        "--quiet disable weir.service",
        "stop weir-ring-syslog@*.service",
        &format!("--quiet disable {ring}"),
        "stop weir-real-side.service",
        "--quiet disable weir-real-side.service",
    ] {
        assert!(asked.iter().any(|a| a == request), "{asked:?}");
    }
    assert_eq!(asked.last().unwrap(), "reset-failed weir weir-real-side");
    assert!(!place("/sys/fs/bpf/weir/default").exists());
    let attached = net
        .host
        .output("tc", &["filter", "show", "dev", "eth0", "ingress"]);
    assert!(attached.unwrap().stdout.is_empty());
    assert_eq!(files(&host.path("usr")), [other.clone()].into());
    assert!(files(&place("/lib/systemd/system")).is_empty());
    assert!(place("/var/lib/weir/weir.db").exists());

    // Again is harmless, and takes the rest on demand.
    let said = host.make(&["uninstall", "PURGE=1"]).done().out;
    assert!(!said.contains("kept"), "{said}");
    for gone in kept_places {
        assert!(!place(gone).exists(), "{gone}");
    }
}

#[test]
fn root_uninstall_refuses_while_something_is_in_force() {
    if skipped(&["make", "unshare", "nsenter"]) {
        return;
    }
    let (host, net) = (Host::new(), TestNet::new());
    host.make(&["install"]).done();
    fs::write(host.inside("/etc/weir/weir.toml"), CONFIG).unwrap();
    fs::write(host.inside("/run/auth.log"), "").unwrap();
    let daemon = host.start(&net);
    // No unit: systemctl knows nothing of this daemon.
    fs::remove_file(host.path("systemctl.log.pid")).unwrap();
    let refused = |words: &[&str]| {
        let answer = host.make(&["uninstall"]);
        answer.refused(words);
        assert!(
            host.installed().exists(),
            "the program went before its pins"
        );
    };
    refused(&["another weir daemon holds", "nothing was removed"]);
    drop(daemon);
    // Another instance: its directory alone stands for it.
    let other = host.inside("/sys/fs/bpf/weir/other");
    fs::create_dir(&other).unwrap();
    refused(&["other instances", "other", "detach --instance"]);
    fs::remove_dir(&other).unwrap();
    host.make(&["uninstall", "PURGE=1"]).done();
    assert!(files(&host.path("usr")).is_empty());
}

/// Without systemd nobody mounts the BPF file system: the daemon does, before it gives up
/// the right to.
#[test]
fn root_the_first_start_mounts_the_bpf_file_system() {
    if skipped(&["make", "unshare", "nsenter", "setpriv"]) {
        return;
    }
    let (host, net) = (Host::new(), TestNet::new());
    host.make(&["install"]).done();
    fs::write(host.inside("/etc/weir/weir.toml"), CONFIG).unwrap();
    fs::write(host.inside("/run/auth.log"), "").unwrap();
    let mounted = || {
        let mounts = fs::read_to_string(format!("/proc/{}/mounts", host.keeper.id())).unwrap();
        mounts
            .lines()
            .any(|line| line.contains(" /sys/fs/bpf bpf "))
    };
    assert!(!mounted());
    let said = host.weir(&["detach"]).done().out;
    assert!(said.contains("nothing was attached"), "{said}");

    // As in a container that may not mount.
    let mut weak = host.daemons_command("setpriv");
    weak.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"])
        .arg(host.installed())
        .arg("daemon");
    let answer = net.host.enter(move || weak.output()).unwrap().unwrap();
    Answer::of(answer).refused(&[
        "cannot mount the BPF file system at /sys/fs/bpf",
        "as root: mount -t bpf bpf /sys/fs/bpf",
    ]);
    assert!(!mounted());

    let daemon = host.start(&net);
    assert!(mounted());
    let _server = net.server();
    for (family, who) in ATTACKER.into_iter().enumerate() {
        net.serves(who, at(family));
        host.weir(&["ban", who]).done();
        assert!(!net.connects(who, at(family)));
    }
    // What is pinned there outlives the daemon, and goes by `weir detach`.
    drop(daemon);
    assert!(!net.connects(ATTACKER[0], at(0)));
    let said = host.weir(&["detach"]).done().out;
    assert!(said.contains("detached from eth0"), "{said}");
    net.serves(ATTACKER[0], at(0));
}

/// The unit of a real, as systemd would run it.
struct RealUnit<'a> {
    host: &'a Host,
    net: &'a TestNet,
    lines: Vec<String>,
}

impl<'a> RealUnit<'a> {
    fn new(host: &'a Host, net: &'a TestNet) -> Self {
        let unit = host.inside("/lib/systemd/system/weir-real-side.service");
        let unit = fs::read_to_string(unit).unwrap();
        Self {
            host,
            net,
            lines: unit.lines().map(str::to_owned).collect(),
        }
    }

    /// The last one, which does the work.
    fn value(&self, key: &str) -> String {
        let mut lines = self.lines.iter().rev();
        let value = lines.find_map(|line| line.strip_prefix(key));
        value.unwrap_or_else(|| panic!("no {key}")).to_owned()
    }

    /// Variables of the file that configures it.
    fn variables(&self) -> Vec<(String, String)> {
        let file = self.host.inside(&self.value("EnvironmentFile="));
        let text = fs::read_to_string(file).unwrap();
        let set = text.lines().filter(|line| !line.starts_with('#'));
        set.filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned()))
            .collect()
    }

    /// Runs a command of the unit with its capabilities alone; a variable that is a word by
    /// itself becomes as many words as it has.
    fn run(&self, key: &str) -> Answer {
        let variables = self.variables();
        let mut line = self.value(key);
        for (name, value) in &variables {
            line = line.replace(&format!(" ${name}"), &format!(" {value}"));
        }
        let has = self.value("CapabilityBoundingSet=");
        let has = has
            .split(' ')
            .map(|name| name.to_lowercase().replace("cap_", ",+"));
        let has = format!("--bounding-set=-all{}", has.collect::<String>());
        let mut command = self.host.daemons_command("setpriv");
        command.args([&has, "--inh-caps=-all", "--no-new-privs"]);
        // Its quotation marks are the shell's.
        command.args(["sh", "-c", &format!("exec {line}")]);
        command.envs(variables);
        let ran = self.net.host.enter(move || command.output());
        Answer::of(ran.unwrap().unwrap())
    }

    fn configure(&self, vips: &str, options: &str) {
        let text = format!("# By hand.\nVIPS=\"{vips}\"\nOPTIONS=\"{options}\"\n");
        fs::write(self.host.inside("/etc/default/weir-real-side"), text).unwrap();
    }

    fn loopback(&self) -> String {
        let shown = self.net.host.output("ip", &["addr", "show", "dev", "lo"]);
        String::from_utf8(shown.unwrap().stdout).unwrap()
    }
}

#[test]
fn root_a_real_is_set_up_by_its_unit() {
    if skipped(&["make", "unshare", "nsenter", "setpriv"]) {
        return;
    }
    let (host, net) = (Host::new(), TestNet::new());
    host.make(&["install"]).done();
    // As systemd has it mounted.
    let mut mount = host.command("mount");
    mount.args(["-t", "bpf", "bpf", "/sys/fs/bpf"]);
    assert!(mount.status().unwrap().success());
    let unit = RealUnit::new(&host, &net);
    for line in [
        "Type=oneshot",
        "RemainAfterExit=yes",
        "After=network-online.target",
        "WantedBy=multi-user.target",
    ] {
        assert!(unit.lines.iter().any(|l| l == line), "{line}");
    }
    let program = host.installed().display().to_string();
    assert!(unit.value("ExecStart=").starts_with(&program));

    // As installed it names no address, and says so.
    for vips in [None, Some("  ")] {
        if let Some(vips) = vips {
            unit.configure(vips, "");
        }
        let nothing = unit.run("ExecStartPre=");
        assert_eq!(nothing.code, Some(1), "{nothing:?}");
        let told = "VIPS in /etc/default/weir-real-side names no virtual address";
        assert!(nothing.err.contains(told), "{nothing:?}");
    }

    let before = unit.loopback();
    let tunnels = "--decap ipip,gue --from 192.0.2.1,192.0.2.2,2001:db8::1 --interface eth0";
    unit.configure("203.0.113.80 2001:db8:80::80", tunnels);
    unit.run("ExecStartPre=").done();
    let started = unit.run("ExecStart=").done().out;
    assert!(
        started.contains("on eth0, from 192.0.2.1, 192.0.2.2, 2001:db8::1, for 203.0.113.80"),
        "{started}"
    );
    let lo = unit.loopback();
    assert!(lo.contains("inet 203.0.113.80/32 "), "{lo}");
    assert!(lo.contains("inet6 2001:db8:80::80/128 "), "{lo}");
    assert!(host.inside("/run/weir-real-side/record.json").exists());

    // An installation leaves the file as it is, and a reload adds what it has by then.
    unit.configure("203.0.113.80 203.0.113.81 2001:db8:80::80", tunnels);
    host.make(&["install"]).done();
    // The first one asks whether there is something to add, as before a start.
    let asks = format!("ExecReload={}", unit.value("ExecStartPre="));
    assert!(unit.lines.contains(&asks), "{:?}", unit.lines);
    let reloaded = unit.run("ExecReload=").done().out;
    assert!(
        reloaded.contains("203.0.113.80/32 on lo: set by weir before"),
        "{reloaded}"
    );
    assert!(
        reloaded.contains("203.0.113.81/32 on lo: set\n"),
        "{reloaded}"
    );

    unit.run("ExecStopPost=").done();
    assert_eq!(unit.loopback(), before);
    unit.run("ExecStart=").done();
    assert_ne!(unit.loopback(), before);

    // The program does not go before what it has done.
    let elsewhere = host.make(&["uninstall"]);
    elsewhere.refused(&["another network namespace", "no file was removed"]);
    assert!(host.installed().exists());
    let mut make = host.makes(host.daemons_command("make"), &["uninstall"]);
    let ran = net.host.enter(move || make.output()).unwrap().unwrap();
    let said = Answer::of(ran).done().out;
    assert!(said.contains("203.0.113.81/32 on lo: taken back"), "{said}");
    assert_eq!(unit.loopback(), before);
    assert!(!host.installed().exists());
    assert!(!host.inside("/run/weir-real-side").exists());
    assert!(files(&host.inside("/lib/systemd/system")).is_empty());
}

#[test]
fn a_staged_tree_is_filled_and_emptied() {
    let stage = tempfile::tempdir().unwrap();
    let make = |args: &[&str]| {
        let output = Command::new("make")
            .args(["-s", "-C", env!("CARGO_MANIFEST_DIR")])
            .arg(format!("PROGRAM={WEIR}"))
            .arg(format!("DESTDIR={}", stage.path().display()))
            .args(args)
            .env_remove("MAKEFLAGS")
            .output();
        Answer::of(output.unwrap()).done().out
    };
    make(&["install"]);
    let names = files(stage.path());
    for name in [
        "usr/sbin/weir",
        "lib/systemd/system/weir.service",
        "lib/systemd/system/weir-real-side.service",
        "lib/systemd/system/weir-ring-syslog@.service",
        "etc/default/weir-real-side",
        "etc/weir/weir.toml",
        "usr/share/man/man1/weir.1",
        "usr/share/man/man1/weir-ban.1",
        "usr/share/man/man5/weir.toml.5",
        "usr/share/bash-completion/completions/weir",
        "usr/share/zsh/vendor-completions/_weir",
        "usr/share/fish/vendor_completions.d/weir.fish",
        "usr/lib/debug/usr/sbin/weir.debug",
    ] {
        let path = stage.path().join(name);
        assert!(names.contains(&path), "{name}");
        let mode = fs::metadata(&path).unwrap().mode() & 0o777;
        let program = name.ends_with("sbin/weir");
        assert_eq!(mode, if program { 0o755 } else { 0o644 }, "{name}");
        assert!(fs::metadata(&path).unwrap().len() > 0, "{name}");
    }
    // The program without its symbols, and where a debugger finds them.
    let sections = |name: &str| {
        let path = stage.path().join(name);
        let said = Command::new("readelf").args(["-SW"]).arg(path).output();
        Answer::of(said.unwrap()).done().out
    };
    let program = sections("usr/sbin/weir");
    assert!(program.contains(" .gnu_debuglink "), "{program}");
    let debug = sections("usr/lib/debug/usr/sbin/weir.debug");
    for section in [" .debug_line ", " .symtab "] {
        assert!(!program.contains(section), "{program}");
        // (CI builds without lines.)
        let is_built = sections(WEIR).contains(section) || section == " .symtab ";
        assert_eq!(debug.contains(section), is_built, "{debug}");
    }
    let config = stage.path().join("etc/weir/weir.toml");
    let of_real = stage.path().join("etc/default/weir-real-side");
    let log = stage.path().join("var/log/weir/events.json");
    fs::create_dir_all(log.parent().unwrap()).unwrap();
    fs::write(&log, "").unwrap();
    let said = make(&["uninstall"]);
    for kept in ["/etc/weir", "/etc/default/weir-real-side", "/var/log/weir"] {
        let kept = format!("kept: {}{kept} ", stage.path().display());
        assert!(said.contains(&kept), "{said}");
    }
    assert_eq!(files(stage.path()), [config, of_real, log].into());
    make(&["uninstall", "PURGE=1"]);
    assert!(files(stage.path()).is_empty());
}
