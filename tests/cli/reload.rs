//! Configurations that are checked and loaded anew: whole, or not at all.

use std::{
    fs,
    io::Write,
    os::unix::net::UnixListener,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{Answer, DEADLINE, Host, WEIR};

/// Nobody may write into it, and every verb reads its configuration.
#[test]
fn a_fifo_is_no_configuration_and_nobody_waits_for_it() {
    let host = Host::new();
    let fifo = |path: PathBuf| {
        let made = Command::new("mkfifo").arg(path).status();
        assert!(made.unwrap().success());
    };
    fs::create_dir(host.path("conf.d")).unwrap();
    fifo(host.path("conf.d/a.toml"));
    fifo(host.path("fifo"));
    for config in [host.path("weir.toml"), host.path("fifo")] {
        for verb in ["check", "status", "daemon"] {
            let mut child = Command::new(WEIR)
                .arg("--config")
                .arg(&config)
                .arg(verb)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let deadline = Instant::now() + DEADLINE;
            while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            // Nothing to one that has ended.
            let _ = child.kill();
            let answer = Answer::from(child.wait_with_output().unwrap());
            // It ended by itself.
            assert_ne!(answer.code, -1, "{config:?} {verb}: {}", answer.err);
            if verb != "status" {
                assert_eq!(answer.code, 2, "{config:?} {verb}: {}", answer.err);
                let said = answer.out + &answer.err;
                assert!(said.contains("it is no regular file"), "{verb}: {said}");
            }
        }
    }
}

#[test]
fn a_reload_is_all_or_nothing() {
    let mut host = Host::started();
    host.configure("max_retyr = 1\n");
    let reload = host.weir(&["reload"]);
    assert_eq!(reload.code, 2);
    assert!(
        reload
            .err
            .contains("weir.toml:9: unknown key \"max_retyr\" in [jail.sshd] (did you mean max_retry?); allowed: "),
        "{}",
        reload.err
    );
    assert_eq!(host.status()["jails"][0]["max_retry"], 3);
    host.fail("203.0.113.7", 2);
    host.until("the old configuration counts", |h| {
        h.status()["jails"][0]["tracked"] == 1
    });

    // Counts go over into the new configuration.
    host.configure("ban_time = \"2h\"\n[jail.again]\nfilter = \"sshd\"\nmax_retry = 1\nports = [\"22/tcp\"]\npaths = [\"/nonexistent/x.log\"]\n");
    assert_eq!(host.weir(&["reload"]).code, 0);
    assert_eq!(host.status()["jails"].as_array().unwrap().len(), 2);
    host.fail("203.0.113.7", 1);
    host.until("the third failure bans", |h| h.is_banned("203.0.113.7"));
    let ban = &host.weir(&["bans", "--json"]).json()["bans"][0];
    assert!(ban["remaining_seconds"].as_u64().unwrap() > 3600);

    // A key that needs a restart is named, and nothing changes.
    let text = fs::read_to_string(host.path("weir.toml")).unwrap();
    fs::write(
        host.path("weir.toml"),
        format!("instance = \"other\"\n{text}"),
    )
    .unwrap();
    let reload = host.weir(&["reload"]);
    assert!(
        reload.code == 2 && reload.err.contains("instance needs a restart"),
        "{}",
        reload.err
    );

    // So it is by SIGHUP; each refusal is one line of the log.
    let refusals = |h: &Host| {
        let log = fs::read_to_string(h.path("daemon.log")).unwrap();
        log.lines().filter(|line| line.contains("refused")).count()
    };
    assert_eq!(refusals(&host), 2);
    host.signal("HUP");
    host.until("SIGHUP is refused", |h| refusals(h) > 2);

    host.configure("");
    host.signal("HUP");
    host.until("SIGHUP reloads", |h| {
        h.status()["jails"].as_array().unwrap().len() == 1
    });
    assert_eq!(refusals(&host), 3);
    assert_eq!(host.end("TERM"), Some(0));
    assert!(!host.path("weir.sock").exists());
}

/// Only one of them would hold, and nothing would say so.
#[test]
fn tokens_that_contradict_each_other_are_refused_by_check_reload_and_start() {
    let mut host = Host::started();
    let digest = |digit: &str| digit.repeat(64);
    let token = "[token]\n[token.require.web]\nports = [\"8080/tcp\"]\nmode = \"log\"\n";
    host.configure(&format!("{token}aggregate = \"{}\"\n", digest("1")));
    fs::create_dir(host.path("conf.d")).unwrap();
    let rule = "[app.rules.database]\nverdict = \"allow\"\n";
    fs::write(
        host.path("conf.d/app.toml"),
        format!(
            "{rule}ports = [\"8080/tcp\"]\nfrom = [\"2001:db8::/32\"]\npeer = \"{}\"\n",
            digest("1")
        ),
    )
    .unwrap();
    let told = format!(
        "{}:5: [app.rules.database] and [token.require.web] ({}:10) have different modes",
        host.path("conf.d/app.toml").display(),
        host.path("weir.toml").display()
    );
    for verb in ["check", "reload"] {
        let refused = host.weir(&[verb]);
        assert_eq!(refused.code, 2, "{verb}");
        let said = format!("{}{}", refused.out, refused.err);
        assert!(said.contains(&told), "{verb}: {said}");
        assert!(said.contains("8080/tcp from 2001:db8::/32"), "{said}");
    }
    assert_eq!(host.end("TERM"), Some(0));
    let start = host.weir(&["daemon"]);
    assert_eq!(start.code, 2);
    let said = format!("{}{}", start.out, start.err);
    assert!(said.contains(&told), "{said}");
}

#[test]
fn a_reload_does_not_trust_a_log_anew() {
    let host = Host::started();
    let mut log = fs::File::options()
        .append(true)
        .open(host.path("auth.log"))
        .unwrap();
    log.write_all(b"the rest of a line that a client broke\n")
        .unwrap();
    host.until("it is read", |h| h.status()["jails"][0]["lines"] == 1);
    for _ in 0..2 {
        assert_eq!(host.weir(&["reload"]).code, 0);
    }
    host.fail("203.0.113.66", 5);
    for _ in 5..weir_core::detect::BEHIND_NO_HEAD {
        host.log("Server listening on :: port 22.");
    }
    host.fail("203.0.113.7", 3);
    host.until("a line behind those counts", |h| h.is_banned("203.0.113.7"));
    assert!(!host.is_banned("203.0.113.66"));
}

#[test]
fn check_names_every_mistake() {
    let host = Host::new();
    assert_eq!(host.weir(&["check"]).code, 0);
    host.configure("max_retyr = 1\nban_time = \"x\"\n[jail.web]\n");
    let check = host.weir(&["check"]);
    assert_eq!(check.code, 2);
    for part in [
        "weir.toml:9: unknown key \"max_retyr\"",
        "weir.toml:10: ban_time",
        "weir.toml:11: [jail.web]: there is no filter",
    ] {
        assert!(check.out.contains(part), "{part}: {}", check.out);
    }
    let json = host.weir(&["check", "--json"]).json();
    assert_eq!(
        (&json["good"], json["errors"].as_array().unwrap().len()),
        (&false.into(), 3)
    );
    assert_eq!(host.weir(&["daemon"]).code, 2);
}

/// The kernel verifies programs for minutes where the processor is slow.
#[test]
fn a_reload_that_takes_long_is_waited_for() {
    let host = Host::new();
    let socket = host.path("slow.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let daemon = thread::spawn(move || {
        let (mut asked, _) = listener.accept().unwrap();
        // Longer than an answer to anything else is waited for.
        thread::sleep(Duration::from_secs(31));
        let body = r#"{"reloaded":true,"warnings":[]}"#;
        let length = body.len();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length";
        let _ = write!(asked, "{head}: {length}\r\n\r\n{body}");
    });
    let reload = host.weir(&["--socket", socket.to_str().unwrap(), "reload"]);
    daemon.join().unwrap();
    assert_eq!(
        (reload.code, reload.out.trim()),
        (0, "reloaded"),
        "{}",
        reload.err
    );
    assert!(
        reload.err.contains("has not answered for 5s; waiting"),
        "{}",
        reload.err
    );
}

/// Tells where the configuration is, and stands still.
const STANDS_STILL: &str = "
import json, os, signal, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1] + '.new'); listener.listen()
os.rename(sys.argv[1] + '.new', sys.argv[1])
asked, _ = listener.accept()
asked.recv(65536)
body = json.dumps({'config': sys.argv[2]})
head = 'HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\ncontent-length'
asked.sendall(f'{head}: {len(body)}\\r\\n\\r\\n{body}'.encode())
os.kill(os.getpid(), signal.SIGSTOP)
";

/// The file is put back, and nobody says that the daemon will not take what it has read.
#[test]
fn a_rule_that_the_daemon_does_not_answer_about_may_come_into_force() {
    let mut host = Host::new();
    let main = host.path("weir.toml");
    let text = fs::read_to_string(&main).unwrap();
    fs::write(&main, format!("{text}[app]\n")).unwrap();
    let socket = host.path("weir.sock");
    let mut daemon = Command::new("python3");
    daemon.args(["-c", STANDS_STILL]).args([&socket, &main]);
    host.daemon = Some(daemon.spawn().unwrap());
    host.until("it listens", |_| socket.exists());
    let allow = host.weir(&["app", "allow", WEIR]);
    assert_eq!(allow.code, 2, "{}{}", allow.out, allow.err);
    assert!(allow.err.contains("it is stopped"), "{}", allow.err);
    assert!(allow.err.contains("perhaps in force"), "{}", allow.err);
    assert!(!host.path("conf.d/50-app-rules.toml").exists());
}
