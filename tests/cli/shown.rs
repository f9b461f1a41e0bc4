//! What people are shown: the first line of `status`, alerts, 80 columns,
//! colour, times; and what several targets at once, `help` and completions do.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
};

use super::{Answer, Host};

impl Host {
    /// Runs a verb on a terminal.
    fn on_terminal(&self, args: &str) -> Answer {
        let command = format!(
            "{} --config {} {args}",
            super::WEIR,
            self.path("weir.toml").display()
        );
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
        script.env("TERM", "xterm").env_remove("NO_COLOR");
        script.stdin(Stdio::null()).output().unwrap().into()
    }

    /// Runs a verb on a terminal that is so wide.
    fn on_terminal_of(&self, columns: usize, args: &str) -> Answer {
        let weir = super::WEIR;
        let config = self.path("weir.toml");
        let command = format!(
            "stty cols {columns} rows 24; {weir} --config {} {args}",
            config.display()
        );
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
        script.stdin(Stdio::null()).output().unwrap().into()
    }

    /// Runs a verb that reads this from standard input.
    fn fed(&self, args: &[&str], input: &str) -> Answer {
        let mut command = self.command(args);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap();
        child.wait_with_output().unwrap().into()
    }
}

#[test]
fn the_first_line_of_status_says_whether_the_host_is_protected() {
    let mut host = Host::started();
    let status = host.weir(&["status"]);
    assert_eq!(status.code, 0, "{}", status.out);
    assert!(
        status
            .out
            .starts_with("OBSERVING: backend = \"dry-run\" decides, and drops nothing\n"),
        "{}",
        status.out
    );
    assert_eq!(host.status()["protection"]["state"], "observing");
    // Nothing is dropped, and nobody says so.
    assert_eq!(host.weir(&["ban", "192.0.2.99"]).code, 0);
    let why = host.weir(&["why", "192.0.2.99"]);
    assert!(!why.out.contains("is dropped"), "{}", why.out);
    assert!(
        why.out
            .contains("192.0.2.99 would be dropped: banned on all ports"),
        "{}",
        why.out
    );
    assert_eq!(why.code, 0);
    let why = host.weir(&["why", "192.0.2.99", "--json"]).json();
    assert_eq!(
        (&why["dropped"], &why["would_drop"]),
        (&false.into(), &true.into())
    );
    assert!(
        host.weir(&["why", "192.0.2.99"])
            .out
            .contains("but it passes: backend = \"dry-run\" decides, and drops nothing"),
    );

    // An alert: exit code 1, with its subject, in JSON as well.
    host.configure("[jail.more]\nfilter = \"sshd\"\npaths = [\"/nonexistent/x.log\"]\n");
    assert_eq!(host.weir(&["reload"]).code, 0);
    host.until("an alert", |h| h.alerts().contains("x.log"));
    let status = host.weir(&["status"]);
    assert_eq!(status.code, 1);
    let lines: Vec<_> = status.out.lines().collect();
    assert!(
        lines[0].starts_with("OBSERVING: ") && lines[0].ends_with(", 1 alert"),
        "{lines:?}"
    );
    let json = host.weir(&["status", "--json"]);
    assert_eq!(json.code, 1);
    let about = json.json()["alerts"][0]["about"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        lines[1].starts_with(&format!("ALERT {about} since 20")),
        "{lines:?}"
    );
    assert_eq!(host.weir(&["status", "sshd"]).code, 0);

    // On a terminal: in colour, and in 80 columns.
    let shown = host.on_terminal("status");
    assert_eq!(shown.code, 1, "{}", shown.out);
    assert!(
        shown.out.starts_with("\u{1b}[1;33mOBSERVING\u{1b}[0m: "),
        "{:?}",
        shown.out
    );
    assert!(
        shown.out.contains("\u{1b}[1;31mALERT\u{1b}[0m"),
        "{:?}",
        shown.out
    );
    let plain = shown
        .out
        .replace("\u{1b}[1;33m", "")
        .replace("\u{1b}[1;31m", "")
        .replace("\u{1b}[0m", "");
    for line in plain.lines() {
        let words = line.trim().split(' ').count();
        assert!(
            line.trim_end().chars().count() <= 80 || words == 1,
            "{line:?}"
        );
    }
    assert!(!host.weir(&["status"]).out.contains('\u{1b}'));

    // Nobody answers: what is left in the kernel is said, here nothing.
    host.end("KILL");
    let dead = host.weir(&["status"]);
    assert_eq!(dead.code, 2);
    assert!(
        dead.out
            .starts_with("NOT PROTECTED: the daemon does not run"),
        "{}",
        dead.out
    );
    assert!(dead.err.contains("cannot reach the daemon"), "{}", dead.err);
    let dead = host.weir(&["status", "--json"]);
    assert_eq!(
        (dead.code, &dead.json()["protection"]["state"]),
        (2, &"not-protected".into())
    );
}

#[test]
fn check_says_which_ports_want_tokens_and_which_interfaces_are_not_there() {
    let host = Host::new();
    let digest = "1".repeat(64);
    host.configure(&format!(
        "[app]\n[app.rules.db]\nverdict = \"allow\"\nports = [\"5432/tcp\"]\npeer = \"{digest}\"\n\
         [token]\nsign_udp_to = [\"192.0.2.0/24\"]\ninterfaces = [\"lo\", \"weir-a0\"]\n\
         [token.require.web]\nports = [\"8080/tcp\", \"53/udp\"]\naggregate = [\"{digest}\", \"{0}\"]\nmode = \"log\"\nfrom = [\"2001:db8::/32\"]\n\
         [token.forward]\ninterfaces = [\"weir-b0\"]\n\
         [token.forward.require.far]\nto = [\"198.51.100.7\"]\nports = [\"443/tcp\"]\naggregate = \"{digest}\"\n\
         [token.strip]\ninterfaces = [\"weir-c0\"]\n",
        "2".repeat(64)
    ));
    let said = host.weir(&["check"]);
    let flat = said.out.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "tokens wanted: web (8080/tcp, 53/udp from 2001:db8::/32, 2 programs, only logged: nothing is dropped), forward.far (443/tcp of 198.51.100.7, forwarded, 1 program), app.rules.db (5432/tcp, 1 program)",
        "warning: interfaces in [token]: there is no interface \"weir-a0\" now: weir signs there as soon as it is there; this host has:",
        "warning: interfaces in [token.forward]: there is no interface \"weir-b0\" now: weir judges",
        "warning: interfaces in [token.strip]: there is no interface \"weir-c0\" now: weir overwrites",
        "programs: 1 rule, 1 allow",
    ] {
        assert!(flat.contains(words), "{words}\n{}{}", said.out, said.err);
    }
    assert!(!flat.contains("no interface \"lo\""), "{flat}");
    let json = host.weir(&["check", "--json"]).json();
    let web = &json["token_requirements"][0];
    assert_eq!(web["name"], "web");
    assert_eq!(
        (&web["mode"], &web["scope"]),
        (&"log".into(), &"flow".into())
    );
    assert_eq!(web["ports"][0], "8080/tcp");
}

#[test]
fn refused_tokens_without_a_daemon_are_told_with_what_to_do() {
    let host = Host::new();
    for words in [
        &["token", "why"][..],
        &["why", "--token"],
        &["why", "--token", "192.0.2.7"],
    ] {
        let said = host.weir(words);
        assert_eq!(said.code, 2, "{}", said.err);
        let flat = said.err.split_whitespace().collect::<Vec<_>>().join(" ");
        let told = match weir_daemon::instance::is_root() {
            true => "weir is not running, and has left none in the kernel: systemctl start weir",
            false => "it takes root (sudo weir token why)",
        };
        assert!(flat.contains(told), "{}", said.err);
    }
}

/// What a start refuses for want of keys is a problem beforehand, in the same words.
#[test]
fn check_looks_for_the_keys_of_tokens_as_a_start_does() {
    let host = Host::new();
    let keys = host.path("keys");
    let dir = keys.display().to_string();
    host.configure(&format!(
        "[token]\nkeys = \"{dir}\"\n[token.require.web]\nports = [\"8080/tcp\"]\naggregate = \"{}\"\n",
        "0".repeat(64)
    ));
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let refused = |told: &str| {
        let check = host.weir(&["check"]);
        assert_eq!(check.code, 1, "{}{}", check.out, check.err);
        let said = flat(&check.out);
        for words in [told, "weir token key new", "sound, but not all of it"] {
            assert!(said.contains(words), "no {words:?} in {said}");
        }
        let json = host.weir(&["check", "--json"]).json();
        let problem = json["problems"][0].as_str().unwrap();
        let start = host.weir(&["daemon"]);
        assert_eq!(start.code, 2, "{}", start.err);
        assert!(
            flat(&start.err).contains(problem),
            "{problem}\n{}",
            start.err
        );
    };
    refused(&format!("keys {dir}: it is not there"));
    assert!(!keys.exists(), "it changes nothing");
    fs::create_dir(&keys).unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o755)).unwrap();
    refused(&format!("there is no key in {dir} that is not retired"));
    assert_eq!(host.weir(&["token", "key", "new"]).code, 0);
    let check = host.weir(&["check"]);
    assert_eq!(check.code, 0, "{}", check.out);
    let key = keys.join("1.key");
    let mode = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&key, 0o644);
    refused(&format!(
        "{dir}/1.key: its mode is 0644; allowed: root's, of mode 0600 (chmod go-rwx {dir}/1.key; "
    ));
    mode(&key, 0o600);
    fs::copy(&key, keys.join("2.key")).unwrap();
    refused(&format!("{dir}/2.key: it has the id 1, and would be 1.key"));
    fs::remove_file(keys.join("2.key")).unwrap();
    let text = fs::read_to_string(&key).unwrap();
    fs::write(&key, text.replace("secret = ", "secrets = ")).unwrap();
    refused(&format!("{dir}/1.key: line 6: unknown key"));
    fs::write(&key, text).unwrap();
}

/// Who may not look at the keys is not told that all is well.
#[test]
fn check_says_that_it_could_not_look_at_the_keys() {
    let host = Host::new();
    let keys = host.path("keys");
    host.configure(&format!(
        "[token]\nkeys = \"{}\"\n[token.require.web]\nports = [\"8080/tcp\"]\naggregate = \"{}\"\n",
        keys.display(),
        "0".repeat(64)
    ));
    assert_eq!(host.weir(&["token", "key", "new"]).code, 0);
    let is_root = weir_daemon::instance::is_root();
    let mode = |mode| fs::Permissions::from_mode(mode);
    let weir = host.path("weir");
    fs::copy(super::WEIR, &weir).unwrap();
    fs::set_permissions(host.dir.path(), mode(0o755)).unwrap();
    fs::set_permissions(&keys, mode(if is_root { 0o700 } else { 0 })).unwrap();
    let ask = |more: &[&str]| -> Answer {
        let mut command = match is_root {
            true => Command::new("setpriv"),
            false => Command::new(&weir),
        };
        if is_root {
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
            command.arg(&weir);
        }
        command.arg("check").arg(host.path("weir.toml")).args(more);
        command.output().unwrap().into()
    };
    let (check, json) = (ask(&[]), ask(&["--json"]));
    fs::set_permissions(&keys, mode(0o700)).unwrap();
    assert_eq!(check.code, 1, "{}{}", check.out, check.err);
    let said = check.out.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        &format!(
            "not looked at: [token]: cannot read the directory of keys {}: Permission denied",
            keys.display()
        )[..],
        "root alone can say (sudo weir check)",
        "no mistakes, but not all that it needs could be looked at",
    ] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    assert!(!said.contains("sound") && !said.contains("OK"), "{said}");
    let json = json.json();
    assert_eq!(json["unseen"].as_array().unwrap().len(), 1);
    assert_eq!(json["problems"].as_array().unwrap().len(), 0);
}

/// As a program that has mapped these files has it, whatever way they are named.
#[test]
fn the_whole_of_files_is_over_their_digests_in_the_order_of_their_paths() {
    let host = Host::new();
    let [b, a, link] = ["b", "a", "link"].map(|name| host.path(name));
    fs::write(&a, "one").unwrap();
    fs::write(&b, "two").unwrap();
    std::os::unix::fs::symlink(&a, &link).unwrap();
    let digests = [&a, &b].map(|file| {
        let said = host.weir(&["app", "hash", file.to_str().unwrap()]);
        assert_eq!(said.code, 0, "{}", said.err);
        said.out[..64].to_owned()
    });
    let mut both = Vec::new();
    for digest in &digests {
        let bytes = (0..64).step_by(2);
        both.extend(bytes.map(|at| u8::from_str_radix(&digest[at..at + 2], 16).unwrap()));
    }
    fs::write(host.path("both"), both).unwrap();
    let both = host.weir(&["app", "hash", host.path("both").to_str().unwrap()]);
    let [a, b, link] = [&a, &b, &link].map(|path| path.to_str().unwrap());
    for files in [&[a, b][..], &[b, a], &[b, link, a, b]] {
        let words = [&["app", "hash", "--aggregate"], files].concat();
        let said = host.weir(&words);
        assert_eq!(said.code, 0, "{}", said.err);
        let told = format!("{}  {} and 1 other file\n", &both.out[..64], files[0]);
        assert_eq!(said.out, told);
    }
    let json = host
        .weir(&["app", "hash", "--json", "--aggregate", b, a])
        .json();
    assert_eq!(json[0]["aggregate"], both.out[..64]);
    assert_eq!(json[0]["files"][0]["path"], a);
    assert_eq!(json[0]["files"][1]["sha256"], digests[1][..]);
    for (words, told) in [
        (
            vec![a, "pid:1"],
            "of files and of processes; allowed: either",
        ),
        (vec!["pid:x"], "allowed: pid: and the number of a process"),
        (vec!["/none"], "cannot find /none"),
        (vec!["pid:1"], "weir is not running"),
    ] {
        let words = [vec!["app", "hash", "--aggregate"], words].concat();
        let said = host.weir(&words);
        assert_eq!(said.code, 2, "{words:?}: {}", said.out);
        let flat = said.err.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(told), "{words:?}: {flat}");
    }

    // And rules take it with the name of its kind.
    let rules = |digest: &str| {
        host.configure(&format!(
            "[app]\n[app.rules.a]\nverdict = \"allow\"\nexe = \"{digest}\"\nobject = [\"{digest}\"]\n\
             aggregate = \"{digest}\"\n[app.rules.b]\nverdict = \"allow\"\nports = [\"5432/tcp\"]\n\
             peer = \"{digest}\"\n[token.require.c]\nports = [\"80/tcp\"]\naggregate = \"{digest}\"\n"
        ));
        host.weir(&["check", "--json"]).json()["errors"].clone()
    };
    let good = rules(&format!("sha256:{}", digests[0]));
    assert_eq!(good.as_array().unwrap().len(), 0, "{good}");
    let errors = rules(&format!("sha512:{}", digests[0]));
    assert_eq!(errors.as_array().unwrap().len(), 5, "{errors}");
    let message = errors[0]["message"].as_str().unwrap();
    assert!(
        message.contains("\"sha256:\" before them or not"),
        "{message}"
    );
}

/// Options are put on packets by the kernel: who lacks its rights is told so at once.
#[test]
fn options_are_not_injected_without_the_rights_for_it() {
    let words = ["options", "inject", "ip:rr", "-i", "lo", "--for", "1h"];
    let mut command = Command::new("setpriv");
    command
        .args(["--bounding-set=-all", "--inh-caps=-all", super::WEIR])
        .args(words);
    if !weir_daemon::instance::is_root() {
        command = Command::new(super::WEIR);
        command.args(words);
    }
    let said: Answer = command.output().unwrap().into();
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(
        said.err
            .contains("takes root (CAP_BPF): sudo weir options inject"),
        "{}",
        said.err
    );
}

/// A daemon whose socket the configuration no longer names has not ended: nobody is
/// told so.
#[test]
fn a_daemon_that_listens_elsewhere_is_not_called_dead() {
    let mut host = Host::started();
    let pid = host.daemon.as_ref().unwrap().id();
    let holds = format!("pid {pid} holds the instance");
    let elsewhere = host.path("other.sock").display().to_string();
    // No socket, and one at which nobody listens.
    for is_left in [false, true] {
        if is_left {
            drop(std::os::unix::net::UnixListener::bind(&elsewhere).unwrap());
        }
        let status = host.weir(&["--socket", &elsewhere, "status"]);
        assert_eq!(status.code, 2);
        assert!(status.out.starts_with("NO ANSWER: "), "{}", status.out);
        assert!(status.out.contains(&holds), "{}", status.out);
        let json = host.weir(&["--socket", &elsewhere, "status", "--json"]);
        assert_eq!(json.json()["protection"]["state"], "unknown");
        for verb in [
            &["bans"][..],
            &["ban", "192.0.2.7"],
            &["reload"],
            &["events"],
        ] {
            let answer = host.weir(&[&["--socket", &elsewhere], verb].concat());
            assert_eq!(answer.code, 2, "{verb:?}");
            assert!(answer.err.contains(&holds), "{verb:?}: {}", answer.err);
            assert!(!answer.err.contains("not running"), "{}", answer.err);
        }
    }
    host.end("KILL");
    let dead = host.weir(&["--socket", &elsewhere, "bans"]);
    assert!(dead.err.contains("weir is not running"), "{}", dead.err);
}

/// A line of its own for each ban; what is not for a person is whole.
#[test]
fn bans_fit_into_the_columns_of_a_terminal() {
    let host = Host::started();
    let reason = "named in ticket 4711 by the abuse desk of another network";
    let whole = [
        "192.0.2.7",
        "2001:db8:1111:2222::/64",
        "2001:db8:3333:4444:5555:6666:7777:8888",
    ];
    for (subject, more) in whole.into_iter().zip([
        &["--for", "1h"][..],
        &["--port", "22/tcp,25/tcp,80/tcp,443/tcp"],
        &[
            "--port",
            "22/tcp,8000-8999/udp",
            "--for",
            "23h59m",
            "--reject",
        ],
    ]) {
        let ban = [&["ban", subject, "--reason", reason], more].concat();
        assert_eq!(host.weir(&ban).code, 0);
    }
    let lines = |shown: &Answer| -> Vec<String> {
        assert_eq!(shown.code, 0, "{}", shown.err);
        let lines = shown.out.lines().map(|line| line.trim_end().to_owned());
        lines.collect()
    };
    let width = |lines: &[String]| lines.iter().map(|line| line.chars().count()).max().unwrap();
    for columns in [80, 100, 120] {
        let narrow = lines(&host.on_terminal_of(columns, "bans"));
        assert!(width(&narrow) <= columns, "{narrow:#?}");
        assert_eq!(narrow.len(), 4);
        for (line, subject) in narrow[1..].iter().zip(whole) {
            assert!(line.starts_with(subject), "{narrow:#?}");
        }
        assert!(narrow[1].contains(" left") && narrow[2].contains("permanent"));
        assert_eq!(
            narrow[1].contains("named in ti"),
            columns > 80,
            "{narrow:#?}"
        );
    }
    let piped = lines(&host.weir(&["bans"]));
    for line in &piped[1..] {
        assert!(
            line.ends_with(reason) && line.contains(" manual "),
            "{piped:#?}"
        );
    }
    assert!(piped[1].contains(" until 20"), "{piped:#?}");
    let wide = lines(&host.on_terminal_of(250, "bans"));
    assert_eq!(width(&wide), width(&piped));
    assert!(wide[3].ends_with(reason));
}

#[test]
fn several_targets_are_banned_and_lifted_at_once() {
    let host = Host::started();
    let total = |host: &Host| host.weir(&["bans", "--json"]).json()["total"].clone();
    let ban = host.weir(&["ban", "203.0.113.101", "2001:db8:7::/64", "--for", "1h"]);
    assert_eq!(ban.code, 0, "{}", ban.err);
    assert_eq!(ban.out.lines().count(), 2, "{}", ban.out);
    let input = "# from elsewhere\n203.0.113.102 203.0.113.103 # two\n\n";
    assert_eq!(host.fed(&["ban", "-"], input).code, 0);
    let bad = host.fed(&["ban", "-"], "203.0.113.103 ssh\n");
    assert_eq!(bad.code, 2);
    assert!(bad.err.contains("ssh"), "{}", bad.err);
    assert_eq!(total(&host), 4);
    // One that cannot be banned is named and keeps nobody else from it.
    let ban = host.weir(&["ban", "198.51.100.1", "203.0.113.104", "x", "--json"]);
    assert_eq!(ban.code, 2);
    let json = ban.json();
    assert_eq!(json["bans"][0]["subject"], "203.0.113.104");
    assert_eq!(json["refused"][0]["subject"], "198.51.100.1");
    assert_eq!(json["refused"][1]["subject"], "x");
    assert!(ban.err.contains("allow list"), "{}", ban.err);
    assert_eq!(total(&host), 5);
    assert_eq!(host.fed(&["ban", "-"], "# nobody\n").code, 2);

    let unban = host.fed(
        &["unban", "203.0.113.101", "-"],
        "203.0.113.102\n203.0.113.200\n",
    );
    assert_eq!(unban.code, 1);
    assert_eq!(unban.out, "203.0.113.200 is not banned\n2 bans lifted\n");
    assert_eq!(total(&host), 3);

    let unban = host.weir(&["unban", "x", "203.0.113.104"]);
    assert_eq!((unban.code, &*unban.out), (2, "1 ban lifted\n"));
    assert!(
        unban.err.contains("\"x\" is not an address"),
        "{}",
        unban.err
    );
    assert_eq!(host.weir(&["ban", "203.0.113.104"]).code, 0);

    // All of one jail.
    host.fail("203.0.113.7", 3);
    host.until("the jail bans", |h| h.is_banned("203.0.113.7"));
    let unban = host.weir(&["unban", "--all", "--jail", "sshd", "--json"]);
    assert_eq!((unban.code, &unban.json()["lifted"]), (0, &1.into()));
    assert!(!host.is_banned("203.0.113.7"));
    assert_eq!(total(&host), 3);
    let unban = host.weir(&["unban", "--all"]);
    assert_eq!((unban.code, &*unban.out), (0, "3 bans lifted\n"));
}

#[test]
fn a_ban_that_is_renewed_without_a_reason_keeps_its_own() {
    let mut host = Host::started();
    let reason = |host: &Host| {
        let bans = host.weir(&["bans", "--json"]).json();
        assert_eq!(bans["total"], 1);
        bans["bans"][0]["reason"].as_str().unwrap().to_owned()
    };
    let ban = ["ban", "192.0.2.7", "--for", "1h"];
    assert_eq!(
        host.weir(&[&ban[..], &["--reason", "ticket 4711"]].concat())
            .code,
        0
    );
    assert_eq!(host.weir(&["ban", "192.0.2.7", "--for", "2d"]).code, 0);
    assert_eq!(reason(&host), "ticket 4711");
    host.end("KILL");
    host.start();
    assert_eq!(host.weir(&ban).code, 0);
    assert_eq!(reason(&host), "ticket 4711");
    assert_eq!(
        host.weir(&[&ban[..], &["--reason", "another"]].concat())
            .code,
        0
    );
    assert_eq!(reason(&host), "another");
    assert_eq!(host.weir(&["unban", "192.0.2.7"]).code, 0);
    assert_eq!(host.weir(&ban).code, 0);
    assert_eq!(reason(&host), "manual ban");
}

#[test]
fn times_are_local_where_that_is_asked_for() {
    let host = Host::started();
    assert_eq!(host.weir(&["ban", "192.0.2.7", "--for", "1h"]).code, 0);
    let shown = |args: &[&str]| {
        let answer = host.command(args).env("TZ", "XYZ-05:30").output().unwrap();
        Answer::from(answer).out
    };
    let why = shown(&["why", "192.0.2.7"]);
    assert!(why.contains("Z (") && !why.contains("+05:30"), "{why}");
    for verb in [&["why", "192.0.2.7", "--local"][..], &["--local", "bans"]] {
        let text = shown(verb);
        assert!(text.contains("+05:30 ("), "{text}");
    }
}

#[test]
fn help_is_a_verb_and_completion_offers_what_people_use() {
    let host = Host::new();
    let help = host.weir(&["help"]);
    assert!(help.code == 0 && help.out.contains("unban"), "{}", help.err);
    assert!(!help.out.contains("watch-child"), "{}", help.out);
    let help = host.weir(&["help", "ban"]);
    assert!(help.out.contains("--reason"), "{}", help.out);
    for shell in ["bash", "zsh", "fish"] {
        let script = host.weir(&["completions", shell]).out;
        assert!(
            script.contains("unban") && script.contains("socket"),
            "{shell}"
        );
        assert!(!script.contains("watch-child"), "{shell}");
        assert!(!script.contains("completions"), "{shell}");
    }
}

#[test]
fn check_shows_all_of_it_and_tries_what_can_be_tried() {
    let host = Host::new();
    let dir = host.dir.path().display().to_string();
    host.configure(&format!(
        "[decoy]\nports = [\"4711/tcp\"]\n[geofence]\ndeny = [\"country:AQ\"]\n\
         [list.bad]\nfile = \"{dir}/bad.txt\"\n[watch.mail]\ncommand = [\"/bin/true\"]\n\
         [sink.log]\nkind = \"file\"\npath = \"{dir}/events.json\"\n"
    ));
    let check = host.weir(&["check"]);
    assert_eq!(check.code, 0, "{}{}", check.out, check.err);
    for words in [
        "weir.toml: configuration OK",
        "  jails: sshd (",
        "  watches: mail (/bin/true)",
        "  lists: bad (deny, ",
        "  geofence: database built-in, rules geofence",
        "  decoy ports: 4711/tcp",
        "  sinks: log (",
    ] {
        assert!(check.out.contains(words), "no {words:?} in {}", check.out);
    }
    let json = host.weir(&["check", "--json"]).json();
    assert_eq!(json["lists"][0], "bad");
    assert_eq!(json["decoy"][0], "4711/tcp");
    assert_eq!(json["problems"].as_array().unwrap().len(), 0);

    // A sound file that this host cannot do: named, exit code 1.
    fs::create_dir(host.path("keys")).unwrap();
    host.configure(&format!(
        "[token]\nkeys = \"{dir}/keys\"\n[token.require.web]\nports = [\"8080/tcp\"]\n\
         aggregate = \"{}\"\n",
        "0".repeat(64)
    ));
    let check = host.weir(&["check"]);
    assert_eq!(check.code, 1, "{}{}", check.out, check.err);
    assert!(
        check.out.contains("keys that is not retired"),
        "{}",
        check.out
    );
    fs::write(host.path("state"), "a file").unwrap();
    fs::write(host.path("c.mmdb"), "x").unwrap();
    host.configure(&format!(
        "[geofence]\ndeny = [\"country:AQ\"]\ndatabase = \"{dir}/c.mmdb\"\n"
    ));
    let check = host.weir(&["check"]);
    assert_eq!(check.code, 1, "{}{}", check.out, check.err);
    assert!(
        check
            .out
            .contains("c.mmdb: not a whole database in MaxMind's format"),
        "{}",
        check.out
    );
    let text = fs::read_to_string(host.path("weir.toml")).unwrap();
    let text = text.replace("/state\"", "/state/deeper\"");
    fs::write(host.path("weir.toml"), text).unwrap();
    let check = host.weir(&["check"]);
    assert_eq!(check.code, 1, "{}{}", check.out, check.err);
    assert!(
        check.out.contains("problem: state_dir: ") && check.out.contains("it is no directory"),
        "{}",
        check.out
    );
}

#[test]
fn the_database_is_its_owners_alone_whatever_the_umask() {
    let mut host = Host::new();
    let log = fs::File::create(host.path("daemon.log")).unwrap();
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "umask 000; exec \"$0\" \"$@\"",
            super::WEIR,
            "--config",
        ])
        .arg(host.path("weir.toml"))
        .arg("daemon")
        .stderr(log);
    host.daemon = Some(command.spawn().unwrap());
    host.until("the daemon answers", |h| h.weir(&["status"]).code != 2);
    assert_eq!(host.weir(&["ban", "192.0.2.7"]).code, 0);
    for entry in fs::read_dir(host.path("state")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        if name.starts_with("weir.") {
            assert_eq!(mode & 0o077, 0, "{name}: {mode:o}");
        }
    }
}

/// Whether all of a prefix is banned, and not only the first address of it.
#[test]
fn why_tells_of_prefixes() {
    let host = Host::started();
    for subject in [
        "203.0.113.0/24",
        "192.0.2.0",
        "192.0.2.7",
        "2001:db8:7::/48",
        "198.51.0.0/16",
    ] {
        assert_eq!(host.weir(&["ban", subject]).code, 0);
    }
    for (asked, code, words) in [
        ("203.0.113.0/24", 0, "203.0.113.0/24 would be dropped"),
        ("203.0.113.64/26", 0, "ban of 203.0.113.0/24 on all ports"),
        ("203.0.112.0/23", 1, "there is 1 ban of parts of it"),
        ("192.0.2.0/24", 1, "there are 2 bans of parts of it"),
        ("192.0.2.0/32", 0, "192.0.2.0 would be dropped"),
        ("2001:db8:7:8::/64", 0, "ban of 2001:db8:7::/48"),
        ("2001:db8:7::7", 0, "ban of 2001:db8:7::/48"),
        ("2001:db8::/32", 1, "there is 1 ban of parts of it"),
        ("198.51.100.0/25", 1, "exempt: 198.51.100.0/24"),
        ("198.51.0.0/16", 0, "198.51.0.0/16 would be dropped"),
        ("198.51.0.0/16", 0, "but not 198.51.100.0/24 in it"),
        ("192.0.2.0/24", 1, "no ban holds for all of it; lists and"),
        // No packet comes from their first address.
        ("0.0.0.0/0", 1, "no ban holds for all of it; lists and"),
        ("::/0", 1, "no ban holds for all of it; lists and"),
    ] {
        let why = host.weir(&["why", asked]);
        assert_eq!(why.code, code, "{asked}: {}{}", why.out, why.err);
        assert!(why.out.contains(words), "{asked}: {}", why.out);
    }
    let json = host.weir(&["why", "192.0.2.0/24", "--json"]).json();
    assert_eq!(
        (&json["address"], &json["within"]),
        (&"192.0.2.0/24".into(), &2.into())
    );
    assert_eq!(
        (&json["bans_only"], &json["verdict"]),
        (&true.into(), &"pass".into())
    );
    let host_json = host.weir(&["why", "192.0.2.9", "--json"]).json();
    assert!(host_json["bans_only"].is_null(), "{host_json}");
    let json = host.weir(&["why", "198.51.0.0/16", "--json"]).json();
    assert_eq!(json["holds_exempt"], "198.51.100.0/24", "{json}");
    let wrong = host.weir(&["why", "192.0.2.7/24"]);
    assert_eq!(wrong.code, 2, "{}", wrong.out);
}

/// The configuration to check is the word behind `check`, `-c` or `--config`, never two of them.
#[test]
fn a_file_is_checked_by_whichever_way_it_is_named() {
    let host = Host::new();
    let file = host.path("weir.toml");
    let file = file.to_str().unwrap();
    let broken = host.path("broken.toml");
    fs::write(&broken, "interfaces = [\"lo\"]\nballance = 1\n").unwrap();
    let broken = broken.to_str().unwrap();
    let weir = |args: &[&str]| -> Answer {
        let mut command = Command::new(super::WEIR);
        command.args(args).output().unwrap().into()
    };
    let ways = |file| {
        [
            weir(&["check", file]),
            weir(&["check", "-c", file]),
            weir(&["-c", file, "check"]),
            weir(&["check", "--config", file]),
        ]
    };
    for answer in ways(file) {
        assert_eq!(answer.code, 0, "{}{}", answer.out, answer.err);
        assert!(answer.out.contains(&format!("{file}: configuration OK")));
    }
    for answer in ways(broken) {
        assert_eq!(answer.code, 2, "{}{}", answer.out, answer.err);
        let told = format!("{broken}:2: unknown key \"ballance\"");
        assert!(answer.out.contains(&told), "{}", answer.out);
    }
    let json = weir(&["check", file, "--json"]).json();
    assert_eq!(json["file"].as_str(), Some(file));
    // Of two files none is checked, be they the same.
    for (one, other) in [(file, broken), (broken, file), (file, file)] {
        for answer in [
            weir(&["-c", one, "check", other]),
            weir(&["check", other, "--config", one]),
        ] {
            assert_eq!(answer.code, 2, "{}{}", answer.out, answer.err);
            let told = format!("weir: --config {one} and the argument {other}: which of both");
            assert!(answer.err.starts_with(&told), "{}", answer.err);
            assert_eq!(answer.out, "");
        }
    }
    let missing = host.path("missing.toml");
    let answer = weir(&["check", missing.to_str().unwrap()]);
    assert_eq!(answer.code, 2);
    assert!(answer.out.contains("missing.toml"), "{}", answer.out);
    // Without a name it is the usual one, as help says.
    let help = weir(&["check", "--help"]).out;
    assert!(help.contains("-c, --config <FILE>"), "{help}");
    assert!(help.contains("[default: /etc/weir/weir.toml]"), "{help}");
    for (shell, offered) in [
        ("bash", "opts=\"-c -h -V --json --config"),
        ("zsh", "'::file -- The configuration file"),
        (
            "fish",
            "-n \"__fish_weir_using_subcommand check\" -s c -l config",
        ),
    ] {
        let script = weir(&["completions", shell]).out;
        assert!(script.contains(offered), "{shell}");
    }
}

/// What one mistake makes is one error, at its line, and nothing of other tables that follows
/// from it.
#[test]
fn one_mistake_of_a_balancer_is_one_error() {
    let host = Host::new();
    let good = "interfaces = [\"lo\"]\n[balance]\ninterface = \"lo\"\n[pool.web]\n\
                vip = [\"198.51.100.80\", \"2001:db8::80\"]\nports = [\"80/tcp\"]\n\
                reals = [{ address = \"198.51.100.11\" }]\ncheck = { http = \"/healthz\" }\n\
                [vrrp.edge]\nid = 51\npools = [\"web\"]\npeers = [\"198.51.100.3\", \"fe80::3\"]\n";
    let file = host.path("one.toml");
    let check = |text: &str| -> Answer {
        fs::write(&file, text).unwrap();
        let mut command = Command::new(super::WEIR);
        command.arg("check").arg(&file).output().unwrap().into()
    };
    let sound = check(good);
    assert_eq!(sound.code, 0, "{}", sound.out);
    for (from, to, line, told) in [
        ("[pool.web]", "[pool]", 4, "[pool] has no name"),
        ("[vrrp.edge]", "[vrrp]", 9, "[vrrp] has no name"),
        (
            "[pool.web]",
            "[[pool.web]]",
            4,
            "pool.web is a list; allowed: a table",
        ),
        (
            "id = 51",
            "id = 256",
            10,
            "id in [vrrp.edge] is 256; allowed: a whole number 1-255",
        ),
        ("id = 51", "id = \"51\"", 10, "id in [vrrp.edge] is \"51\""),
        ("id = 51\n", "", 9, "id is missing in [vrrp.edge]"),
        (
            "interface = \"lo\"",
            "interface = 1",
            3,
            "interface in [balance] is 1",
        ),
        (
            "{ address = \"198.51.100.11\" }",
            "{ address = 1 }",
            7,
            "address in [pool.web.reals] is 1",
        ),
        (
            "\"198.51.100.80\"",
            "198.51.100.80",
            5,
            "198.51.100.80 is no value; allowed: \"198.51.100.80\"",
        ),
        (
            "::80\"]",
            "::80\"",
            5,
            "the list that begins here with [ is not closed",
        ),
        (
            "::80\"]",
            "::80]",
            5,
            "a text ends in its line; write \" before it",
        ),
        ("ports =", "ports", 6, "is no setting; write KEY = VALUE"),
        (
            "[pool.web]",
            "[pool.web",
            4,
            "[pool.web is no head of a table",
        ),
        (
            "11\" }]",
            "11\" ]",
            7,
            "the table that begins here with { is not closed",
        ),
    ] {
        let answer = check(&good.replacen(from, to, 1));
        assert_eq!(answer.code, 2, "{to}: {}", answer.out);
        let errors: Vec<_> = answer.out.lines().collect();
        assert_eq!(errors.len(), 1, "{to}: {}", answer.out);
        let place = format!("{}:{line}: ", file.display());
        assert!(errors[0].starts_with(&place), "{to}: {}", answer.out);
        assert!(errors[0].contains(told), "{to}: {}", answer.out);
    }
}
