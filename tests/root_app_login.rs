//! Rules about programs that would shut out who is to mend them: `weir check` in a login
//! over a real sshd.

mod common;

use std::{
    fs,
    process::{Command, Stdio},
};

use common::{WEIR, skipped, soon};
use weir_netlab::{Child, Namespace, Net};

const PORT: u16 = 2222;

/// sshd for root with one key, in a namespace of its own.
struct Sshd {
    _sshd: Child,
    space: Namespace,
    dir: tempfile::TempDir,
    _net: Net,
}

impl Sshd {
    fn new() -> Option<Self> {
        if skipped(&["/usr/sbin/sshd", "ssh", "ssh-keygen"]) {
            return None;
        }
        let net = Net::new().unwrap();
        let space = net.namespace("host").unwrap();
        space.run("ip", &["link", "set", "lo", "up"]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display();
        for name in ["host", "user"] {
            let key = format!("{at}/{name}");
            let words = ["-q", "-t", "ed25519", "-N", "", "-f", &key];
            space.run("ssh-keygen", &words).unwrap();
        }
        fs::create_dir_all("/run/sshd").unwrap();
        let words = format!(
            "-D -f /dev/null -p {PORT} -h {at}/host -oAuthorizedKeysFile={at}/user.pub -oStrictModes=no \
             -oPidFile={at}/pid -oUsePAM=no -oPermitRootLogin=yes"
        );
        let mut command = Command::new("/usr/sbin/sshd");
        command
            .args(words.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let sshd = space.spawn(command).unwrap();
        soon("sshd to listen", || {
            dir.path().join("pid").exists().then_some(())
        });
        Some(Self {
            _sshd: sshd,
            space,
            dir,
            _net: net,
        })
    }

    fn configure(&self, text: &str) {
        let dir = self.dir.path();
        let head = format!(
            "state_dir = \"{0}\"\nsocket = \"{0}/socket\"\ninterfaces = [\"lo\"]\n",
            dir.display()
        );
        fs::write(dir.join("weir.toml"), format!("{head}{text}")).unwrap();
    }

    /// Exit code and words of `weir check` in a login at this address.
    fn check(&self, address: &str) -> (Option<i32>, String) {
        let at = self.dir.path().display();
        let (port, login) = (PORT.to_string(), format!("root@{address}"));
        let options = format!(
            "-F /dev/null -i {at}/user -oIdentitiesOnly=yes -oStrictHostKeyChecking=no \
             -oUserKnownHostsFile=/dev/null -oLogLevel=ERROR -p"
        );
        let check = format!("{WEIR} --config {at}/weir.toml check");
        let words: Vec<_> = options
            .split_whitespace()
            .chain([&*port, &*login, &*check])
            .collect();
        let done = self.space.output("ssh", &words).unwrap();
        let said = [done.stdout, done.stderr].concat();
        let said = String::from_utf8_lossy(&said).replace('\n', " ");
        let words: Vec<_> = said.split_whitespace().collect();
        (done.status.code(), words.join(" "))
    }
}

#[test]
fn root_a_login_is_told_of_rules_that_would_end_it() {
    let Some(sshd) = Sshd::new() else { return };
    let allow = |who: &str| {
        format!(
            "[app]\ndefault = \"drop\"\n[app.rules.ssh]\nverdict = \"allow\"\npath = \"{who}\"\ndirection = \"in\"\nports = [\"{PORT}/tcp\"]\n"
        )
    };
    for address in ["127.0.0.1", "::1"] {
        let told = |by: &str| {
            format!(
                "problem: {by} would end this login, or have it wait, and the next one (/usr/sbin/sshd at port {PORT}/tcp, from {address}): put a rule before it"
            )
        };
        sshd.configure("[app]\ndefault = \"drop\"\n");
        let (code, said) = sshd.check(address);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(&told("default in [app]")), "{said}");
        sshd.configure(&allow("/usr/bin/ssh"));
        assert!(sshd.check(address).1.contains(&told("default in [app]")));
        sshd.configure("[app]\n[app.rules.all]\nverdict = \"reject\"\ndirection = \"in\"\n");
        assert!(sshd.check(address).1.contains(&told("[app.rules.all]")));
        // With the rule that it asks for.
        sshd.configure(&allow("/usr/sbin/sshd"));
        let (code, said) = sshd.check(address);
        assert_eq!(code, Some(0), "{said}");
    }
}
