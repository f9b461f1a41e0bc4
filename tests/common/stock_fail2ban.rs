//! The configuration of Debian's fail2ban package, for tests that run it.
#![allow(dead_code)] // each test file uses its part

use std::{fs, path::Path, time::Duration};

use weir_netlab::Namespace;

/// Where the package has its configuration.
pub const STOCK: &str = "/etc/fail2ban";

/// Says why a test cannot run where the package is not installed.
pub fn is_missing() -> bool {
    let is_missing = !Path::new(STOCK).join("jail.conf").exists();
    if is_missing {
        println!("skipped: fail2ban package: there is no {STOCK}/jail.conf");
    }
    is_missing
}

/// A copy of a part of it, or of all (`""`), in `to`.
pub fn copy(part: &str, to: &Path) {
    copy_tree(&Path::new(STOCK).join(part), to);
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_tree(&entry.path(), &to),
            false => _ = fs::copy(entry.path(), to).unwrap(),
        }
    }
}

/// The real Fail2ban, in a namespace where it may have what firewall it likes.
pub struct Fail2ban<'a> {
    host: &'a Namespace,
    dir: String,
}

impl<'a> Fail2ban<'a> {
    /// Starts it with the configuration in `dir`, and waits until it is ready.
    pub fn start(host: &'a Namespace, dir: &Path) -> Self {
        let fail2ban = Self {
            host,
            dir: dir.display().to_string(),
        };
        let said = fail2ban.ask(&["start"]);
        assert!(said.contains("Server ready"), "{said}");
        fail2ban
    }

    /// What its client prints of a command.
    pub fn ask(&self, command: &[&str]) -> String {
        let (socket, pid) = (format!("{}/sock", self.dir), format!("{}/pid", self.dir));
        let mut args = vec!["-c", &self.dir, "-s", &socket, "-p", &pid];
        args.extend(command);
        let output = self.host.output("fail2ban-client", &args).unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }
}

impl Drop for Fail2ban<'_> {
    fn drop(&mut self) {
        self.ask(&["stop"]);
    }
}

/// What is known of a jail besides its bans.
const SETTINGS: [&str; 14] = [
    "bantime",
    "datepattern",
    "failregex",
    "findtime",
    "ignorecommand",
    "ignoreip",
    "ignoreregex",
    "ignoreself",
    "logpath",
    "logtimezone",
    "maxlines",
    "maxretry",
    "prefregex",
    "usedns",
];

/// Waits until weir, which `ours` asks, and Fail2ban have the same to say of a jail's status,
/// and holds what it goes by against each other.
#[track_caller]
pub fn prints_the_same(ours: impl Fn(&[&str]) -> String, theirs: &Fail2ban<'_>, jail: &str) {
    let shown = |status: String| {
        let sorted = |line: &str| {
            let mut words: Vec<_> = line.split(' ').collect();
            words.sort_unstable();
            words.join(" ")
        };
        status
            .lines()
            .map(|line| match line.split_once("Banned IP list:\t") {
                Some((head, who)) => format!("{head}Banned IP list:\t{}", sorted(who)),
                None => line.to_owned(),
            })
            .collect::<Vec<_>>()
    };
    let command = ["status", jail];
    let mut last = Default::default();
    let same = weir_netlab::wait_for("the same status", Duration::from_secs(60), || {
        last = (shown(ours(&command)), shown(theirs.ask(&command)));
        Ok((last.0 == last.1).then_some(()))
    });
    assert!(same.is_ok(), "{jail}: weir, and Fail2ban: {last:#?}");
    for what in SETTINGS {
        let command = ["get", jail, what];
        // weir understands what an address is as later versions than Debian's do.
        let theirs = theirs.ask(&command).replace("::?|::){1,7}", "::?|:){1,7}");
        assert_eq!(ours(&command), theirs, "{command:?}");
    }
    let short = ["status", jail, "short"];
    assert_eq!(ours(&short), theirs.ask(&short));
}
