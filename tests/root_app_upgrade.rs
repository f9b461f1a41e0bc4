//! `packages = "follow"`: a rule by path is about the new file after an upgrade of its package,
//! and stays with the one before where no package has the new one. Real packages of dpkg's and of
//! rpm's, built and installed here, and removed again.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use app_host::{Running, TestHost, sha256};
use common::{skipped, soon};
use serde_json::Value;

/// A program that connects, says so, and sends and hears on as it is told.
const PROGRAM: &str = r#"
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(8080)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(8080)};
	int is6 = strchr(argv[1], ':') != NULL, fd;
	char line[64];

	(void)argc;
	inet_pton(AF_INET, argv[1], &v4.sin_addr);
	inet_pton(AF_INET6, argv[1], &v6.sin6_addr);
	fd = socket(is6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
	if (connect(fd, is6 ? (void *)&v6 : (void *)&v4, is6 ? sizeof(v6) : sizeof(v4))) {
		puts("refused");
		return 1;
	}
	puts("connected " VERSION);
	fflush(stdout);
	if (argc > 2)
		return 0;
	while (fgets(line, sizeof(line), stdin)) {
		puts(write(fd, "G", 1) == 1 ? "sent" : "cut");
		fflush(stdout);
	}
	return 0;
}
"#;

/// A package of this process's own, which goes when this does.
struct Package {
    name: String,
    dir: tempfile::TempDir,
}

/// What dpkg says if it cannot; it is waited for another one that works, as there is one lock.
fn dpkg(args: &[&str]) -> Result<(), String> {
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let done = Command::new("dpkg").args(args).output().unwrap();
        let told = [done.stdout, done.stderr].concat();
        let told = String::from_utf8_lossy(&told).into_owned();
        if done.status.success() {
            return Ok(());
        }
        if !told.contains("lock") || Instant::now() > until {
            return Err(told);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

impl Package {
    fn new(what: &str) -> Self {
        Self {
            name: format!("weir-test-{what}-{}", std::process::id()),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        Path::new("/usr/lib").join(&self.name).join("tool")
    }

    /// A program of this version, compiled here.
    fn compile(&self, version: &str, to: &Path) {
        let source = self.dir.path().join("tool.c");
        fs::write(&source, PROGRAM).unwrap();
        let done = Command::new("cc")
            .arg(format!("-DVERSION=\"{version}\""))
            .arg("-o")
            .arg(to)
            .arg(&source)
            .status();
        assert!(done.unwrap().success());
    }

    /// The package of a version.
    fn build(&self, version: &str) -> PathBuf {
        let root = self.dir.path().join(version);
        let program = root.join(self.path().strip_prefix("/").unwrap());
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        fs::create_dir_all(root.join("DEBIAN")).unwrap();
        self.compile(version, &program);
        let arch = Command::new("dpkg").arg("--print-architecture").output();
        let arch = String::from_utf8(arch.unwrap().stdout).unwrap();
        let control = format!(
            "Package: {}\nVersion: {version}\nArchitecture: {}\nMaintainer: nobody <nobody@example.org>\nDescription: a test of weir\n",
            self.name,
            arch.trim()
        );
        fs::write(root.join("DEBIAN/control"), control).unwrap();
        let md5 = Command::new("md5sum").arg(&program).output().unwrap();
        let md5 = String::from_utf8(md5.stdout).unwrap();
        let md5 = md5.split_whitespace().next().unwrap();
        let name = self.path();
        let name = name.strip_prefix("/").unwrap().display();
        fs::write(root.join("DEBIAN/md5sums"), format!("{md5}  {name}\n")).unwrap();
        let deb = self.dir.path().join(format!("{version}.deb"));
        let done = Command::new("dpkg-deb")
            .args(["--build", "--root-owner-group"])
            .args([&root, &deb])
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        deb
    }

    fn install(&self, deb: &Path) {
        dpkg(&["--install", deb.to_str().unwrap()]).unwrap();
    }
}

/// Where rpm has its records on Debian. A test of this file's is the only one that needs it.
const RPM: &str = "/var/lib/rpm";

/// The same program as a package of rpm's.
struct Rpm {
    package: Package,
    /// The directory was there before: whatever kind of database it has is not ours.
    is_older: bool,
}

impl Rpm {
    fn new(what: &str) -> Self {
        Self {
            package: Package::new(what),
            is_older: Path::new(RPM).exists(),
        }
    }

    /// The package of a version.
    fn build(&self, version: &str) -> PathBuf {
        let dir = self.package.dir.path();
        let (program, top) = (dir.join(format!("tool-{version}")), dir.join("rpm"));
        self.package.compile(version, &program);
        let (name, at) = (&self.package.name, self.package.path());
        let spec = dir.join("tool.spec");
        // Its programs are not taken apart for packages of their own.
        let text = format!(
            "%define __os_install_post %{{nil}}\n%define debug_package %{{nil}}\nName: {name}\n\
             Version: {version}\nRelease: 1\nSummary: a test of weir\nLicense: none\nAutoReqProv: no\n\
             %description\nA test.\n%install\nmkdir -p %{{buildroot}}{}\n\
             cp {} %{{buildroot}}{}\n%files\n{}\n",
            at.parent().unwrap().display(),
            program.display(),
            at.display(),
            at.display()
        );
        fs::write(&spec, text).unwrap();
        let done = Command::new("rpmbuild")
            .env("HOME", dir)
            .args(["-bb", "--quiet", "--define"])
            .arg(format!("_topdir {}", top.display()))
            .arg(&spec)
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        let built = top.join("RPMS").join(std::env::consts::ARCH);
        built.join(format!("{name}-{version}-1.{}.rpm", std::env::consts::ARCH))
    }

    /// Installs it, or puts an older one in the place of a newer one.
    fn install(&self, rpm: &Path) {
        let done = Command::new("rpm")
            .env("HOME", self.package.dir.path())
            .args(["--dbpath", RPM, "-U", "--oldpackage", "--nodeps"])
            .arg(rpm)
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
    }
}

impl Drop for Rpm {
    fn drop(&mut self) {
        let _ = Command::new("rpm")
            .args(["--dbpath", RPM, "-e", "--nodeps", &self.package.name])
            .output();
        if !self.is_older {
            let _ = fs::remove_dir_all(RPM);
        }
    }
}

impl Drop for Package {
    fn drop(&mut self) {
        let _ = dpkg(&["--purge", &self.name]);
        let _ = fs::remove_dir_all(Path::new("/usr/lib").join(&self.name));
    }
}

fn once(host: &TestHost, path: &Path, address: &str) -> String {
    let done = host.run(&[path.to_str().unwrap(), address, "once"]);
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

fn connects(host: &TestHost, path: &Path, version: &str) {
    for address in ["127.0.0.1", "::1"] {
        soon(&format!("version {version} to pass"), || {
            (once(host, path, address) == format!("connected {version}")).then_some(())
        });
    }
}

fn is_refused(host: &TestHost, path: &Path) {
    for address in ["127.0.0.1", "::1"] {
        assert_eq!(once(host, path, address), "refused");
    }
}

/// What the path stands for.
fn pin(host: &TestHost, path: &Path) -> Value {
    let app = host.host.json(&["app", "list"]);
    let mut pins = app["pins"].as_array().unwrap().iter();
    let pin = pins.find(|pin| pin["path"] == path.to_str().unwrap());
    pin.cloned().unwrap_or_default()
}

fn follows(host: &TestHost, path: &Path) {
    let is = sha256(path.to_str().unwrap());
    soon("the rule to follow", || {
        (pin(host, path)["digest"] == *is).then_some(())
    });
}

fn rules(path: &Path, packages: &str) -> String {
    format!(
        "default = \"reject\"\nunknown = \"drop\"\npackages = \"{packages}\"\n[app.rules.tool]\nverdict = \"allow\"\npath = \"{}\"\nports = [\"8080/tcp\"]\n",
        path.display()
    )
}

#[test]
fn root_a_rule_by_path_follows_an_upgrade_and_nothing_else() {
    if skipped(&["dpkg", "dpkg-deb", "cc", "md5sum"]) {
        return;
    }
    let package = Package::new("upgrade");
    let debs = ["1.0", "2.0", "3.0"].map(|version| package.build(version));
    package.install(&debs[0]);
    let path = package.path();
    let Some(mut host) = TestHost::new("upgrade", &rules(&path, "follow")) else {
        return;
    };
    connects(&host, &path, "1.0");
    let first = sha256(path.to_str().unwrap());
    assert_eq!(pin(&host, &path)["digest"], *first);
    assert_eq!(pin(&host, &path)["package"], Value::Null);
    // One that runs before and after.
    let mut running: Vec<Running> = ["127.0.0.1", "::1"]
        .map(|address| host.begin(&[path.to_str().unwrap(), address]))
        .into();
    for one in &mut running {
        assert_eq!(one.line(), "connected 1.0");
    }

    package.install(&debs[1]);
    follows(&host, &path);
    connects(&host, &path, "2.0");
    let now = pin(&host, &path);
    assert_eq!(now["package"], *package.name, "{now}");
    assert_eq!(now["previous"][0], *first, "{now}");
    let said = host.host.said();
    let words = format!("follow an upgrade of package {}", package.name);
    assert!(
        said.contains(&words) && said.contains("as MD5 has it on record"),
        "{said}"
    );
    // Who runs the old one goes on.
    for one in &mut running {
        one.go_on();
        assert_eq!(one.line(), "sent");
    }
    drop(running);
    soon(
        "the old one, which nobody runs, to be none of the rule's",
        || {
            let previous = pin(&host, &path)["previous"].clone();
            (previous.as_array()?.is_empty()).then_some(())
        },
    );
    connects(&host, &path, "2.0");

    // Somebody puts another file there, which no package has: refused, over a reload and restarts.
    let other = package.dir.path().join("other");
    package.compile("evil", &other);
    let next = path.with_extension("next");
    let put = |from: &Path| {
        fs::copy(from, &next).unwrap();
        fs::rename(&next, &path).unwrap();
    };
    put(&other);
    soon("the alert", || {
        let alerts = host.host.alerts();
        alerts.contains("does not agree with it").then_some(())
    });
    is_refused(&host, &path);
    host.host.done(&["reload"]);
    is_refused(&host, &path);
    host.host.end("KILL");
    is_refused(&host, &path);
    host.host.start();
    is_refused(&host, &path);
    let second = pin(&host, &path)["digest"].clone();
    assert_ne!(second, sha256(path.to_str().unwrap()));
    // Until somebody accepts it by name.
    let (code, said) = host.host.ask(&["app", "accept", "/usr/bin/curl"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("no rule of [app] has path"), "{said}");
    let said = host.host.done(&["app", "accept", path.to_str().unwrap()]);
    assert!(
        said.contains("is accepted") && said.contains("find out who"),
        "{said}"
    );
    connects(&host, &path, "evil");

    // The daemon is killed during the next upgrade, and knows of it when it is back.
    host.host.end("KILL");
    package.install(&debs[2]);
    // What nobody has seen is dropped (unknown).
    let tool = path.to_str().unwrap();
    let done = host.run(&["timeout", "2", tool, "127.0.0.1", "once"]);
    assert!(done.stdout.is_empty(), "{done:?}");
    host.host.start();
    connects(&host, &path, "3.0");
    assert_eq!(pin(&host, &path)["package"], *package.name);
    // Back to where it was, as dpkg has it on record: a package that is put back is followed, too.
    package.install(&debs[1]);
    follows(&host, &path);
    connects(&host, &path, "2.0");

    // With "tell" it is as it was: the next reload takes what is there.
    host.configure(&rules(&path, "tell"));
    host.host.done(&["reload"]);
    assert_eq!(pin(&host, &path), Value::Null);
    let (code, said) = host.host.ask(&["app", "accept", path.to_str().unwrap()]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("packages in [app] is \"tell\""), "{said}");
    put(&other);
    host.host.done(&["reload"]);
    connects(&host, &path, "evil");
}

/// The file is there before the record: dpkg puts files in their places first.
#[test]
fn root_a_file_whose_record_comes_later_is_followed_then() {
    if skipped(&["dpkg", "dpkg-deb", "cc", "md5sum"]) {
        return;
    }
    let package = Package::new("later");
    let debs = ["1.0", "2.0"].map(|version| package.build(version));
    package.install(&debs[0]);
    let path = package.path();
    let Some(host) = TestHost::new("later-record", &rules(&path, "follow")) else {
        return;
    };
    connects(&host, &path, "1.0");
    let built = package.dir.path().join("2.0");
    let next = path.with_extension("next");
    fs::copy(built.join(path.strip_prefix("/").unwrap()), &next).unwrap();
    fs::rename(&next, &path).unwrap();
    soon("the alert that it is not on record", || {
        let alerts = host.host.alerts();
        alerts.contains("does not agree with it").then_some(())
    });
    is_refused(&host, &path);
    package.install(&debs[1]);
    follows(&host, &path);
    connects(&host, &path, "2.0");
    soon("the alert to end", || {
        (!host.host.alerts().contains("app:replaced")).then_some(())
    });
}

/// The same with packages of rpm's, whose record is a SHA-256.
#[test]
fn root_a_rule_by_path_follows_an_upgrade_of_an_rpm() {
    if skipped(&["rpm", "rpmbuild", "cc"]) {
        return;
    }
    let rpm = Rpm::new("upgrade-rpm");
    let built = ["1.0", "2.0", "3.0"].map(|version| rpm.build(version));
    rpm.install(&built[0]);
    let path = rpm.package.path();
    let Some(mut host) = TestHost::new("rpm", &rules(&path, "follow")) else {
        return;
    };
    connects(&host, &path, "1.0");
    rpm.install(&built[1]);
    follows(&host, &path);
    connects(&host, &path, "2.0");
    assert_eq!(pin(&host, &path)["package"], *rpm.package.name);
    let said = host.host.said();
    assert!(said.contains("as SHA-256 has it on record"), "{said}");

    // Another file than that on record is refused, over a restart.
    let (other, next) = (
        rpm.package.dir.path().join("other"),
        path.with_extension("next"),
    );
    rpm.package.compile("evil", &other);
    fs::copy(&other, &next).unwrap();
    fs::rename(&next, &path).unwrap();
    soon("the alert", || {
        let alerts = host.host.alerts();
        alerts.contains("does not agree with it").then_some(())
    });
    is_refused(&host, &path);
    host.host.end("KILL");
    host.host.start();
    is_refused(&host, &path);

    // The next one, while no daemon runs, and back to the one before.
    host.host.end("KILL");
    rpm.install(&built[2]);
    host.host.start();
    connects(&host, &path, "3.0");
    rpm.install(&built[1]);
    follows(&host, &path);
    connects(&host, &path, "2.0");
}
