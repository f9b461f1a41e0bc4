//! From learning what programs do to enforcing it: what was reviewed passes, everything
//! else does not; rules by hand; programs that are replaced.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use app_host::{ADDRESSES, TestHost};
use common::soon;
use serde_json::Value;

/// What was learned of a program, by the end of its path.
fn learned(host: &TestHost, name: &str) -> Option<Value> {
    let review = host.host.json(&["app", "review"]);
    let mut programs = review["programs"].as_array()?.iter();
    let of = |program: &&Value| program["path"].as_str().is_some_and(|p| p.ends_with(name));
    programs.find(of).cloned()
}

/// Has curl run until it was seen at both addresses. It asks for so little at a time that it is not
/// gone before it is known, on a slow machine as well.
fn learn_curl(host: &TestHost) {
    for address in ADDRESSES {
        let peer = address.trim_matches(['[', ']']);
        let url = format!("http://{address}:8080/Cargo.lock");
        let words = "curl -sS -o /dev/null --limit-rate 5k";
        let words: Vec<_> = words.split(' ').chain([url.as_str()]).collect();
        let mut running = host.begin(&words);
        soon("curl to be learned", || {
            if running.has_ended() {
                running = host.begin(&words);
            }
            let flows = learned(host, "/curl")?["flows"].clone();
            let mut flows = flows.as_array()?.iter();
            flows.any(|flow| flow["peer"] == peer).then_some(())
        });
    }
}

#[test]
fn root_curl_is_learned_reviewed_and_enforced_and_python_is_stopped() {
    let Some(mut host) = TestHost::new("learn", "") else {
        return;
    };
    assert_eq!(host.host.ask(&["app", "learn", "status"]).0, Some(1));
    let (code, _) = host.host.ask(&["app", "learn", "start", "--for", "0s"]);
    assert_eq!(code, Some(2));
    host.host.done(&["app", "learn", "start", "--for", "1h"]);
    host.host.done(&["app", "learn", "status"]);
    learn_curl(&host);
    let curl = learned(&host, "/curl").unwrap();
    assert_eq!(
        (&curl["is_new"], &curl["is_at_path"]),
        (&true.into(), &true.into())
    );
    for flow in curl["flows"].as_array().unwrap() {
        assert_eq!(flow["direction"], "out", "{curl}");
        assert_eq!(
            (&flow["port"], &flow["protocol"]),
            (&8080.into(), &"tcp".into())
        );
        assert_eq!(flow["needs_rule"], true, "{curl}");
        assert_eq!(flow["denied"], 0, "{curl}");
    }
    // Of what nobody has reviewed no rule is made.
    let (code, said) = host.host.ask(&["app", "enforce"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("nobody has reviewed"), "{said}");
    let said = host.host.done(&["app", "review", "--accept"]);
    assert!(
        said.contains("8080/tcp") && said.contains("no rule"),
        "{said}"
    );
    assert_eq!(host.host.ask(&["app", "review", "--new"]).0, Some(1));
    let said = host.host.done(&["app", "enforce", "--dry-run"]);
    assert!(said.contains("+[app.rules.learned-curl-1]"), "{said}");
    let file = host.host.path("conf.d/60-app-learned.toml");
    assert!(!file.exists());
    soon("python to connect while nothing is enforced", || {
        (host.connects("127.0.0.1").trim() == "connected").then_some(())
    });

    // All of it is known after a crash.
    host.host.end("KILL");
    host.host.start();
    assert_eq!(host.host.ask(&["app", "learn", "status"]).0, Some(0));
    let said = host.host.done(&["app", "enforce"]);
    assert!(said.contains("+default = \"drop\""), "{said}");
    assert!(file.exists());
    for address in ADDRESSES {
        soon("curl to pass by its rule", || {
            (host.curl(address) == "200").then_some(())
        });
        soon("python to be refused", || {
            let told = host.connects(address);
            (told.trim() == "PermissionError").then_some(())
        });
        assert_eq!(host.curl(address), "200");
    }
    let curl = learned(&host, "/curl").unwrap();
    assert_eq!(curl["flows"][0]["rule"], "learned-curl-1", "{curl}");
    assert_eq!(curl["flows"][0]["needs_rule"], false, "{curl}");
    // What was denied is learned as well, and is new.
    let python = soon("python's attempts to be recorded", || {
        learned(&host, "/python3.11").or_else(|| {
            let review = host.host.json(&["app", "review", "--new"]);
            let mut programs = review["programs"].as_array()?.iter();
            programs
                .find(|p| p["path"].as_str().is_some_and(|p| p.contains("/python3")))
                .cloned()
        })
    });
    let denied = python["flows"].as_array().unwrap().iter();
    let denied: u64 = denied.map(|flow| flow["denied"].as_u64().unwrap()).sum();
    assert!(denied > 0, "{python}");

    // A reload that is refused leaves the file as it was.
    let before = fs::read_to_string(&file).unwrap();
    let rules = host.host.path("conf.d/50-app-rules.toml");
    let wrong = ["app", "allow", "/usr/bin/python3", "--to", "nonsense"];
    let (code, said) = host.host.ask(&wrong);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("nonsense") && !rules.exists(), "{said}");
    // One rule more, for one peer.
    let allow = ["app", "allow", "/usr/bin/python3", "--to", "127.0.0.1"];
    host.host
        .done(&[&allow[..], &["--port", "8080/tcp"]].concat());
    soon("python to be allowed to one peer", || {
        (host.connects("127.0.0.1").trim() == "connected").then_some(())
    });
    assert_eq!(host.connects("[::1]").trim(), "PermissionError");
    host.host.done(&["app", "deny", "/usr/bin/python3"]);
    soon("python to be refused again", || {
        (host.connects("127.0.0.1").trim() == "PermissionError").then_some(())
    });
    assert_eq!(host.curl("127.0.0.1"), "200");
    assert_eq!(fs::read_to_string(&file).unwrap(), before);

    host.host.done(&["app", "learn", "stop"]);
    assert_eq!(host.host.ask(&["app", "learn", "status"]).0, Some(1));
    host.host.done(&["app", "learn", "forget"]);
    assert_eq!(host.host.ask(&["app", "review"]).0, Some(1));
    // Where another file says what holds for everybody else, that is not overridden.
    host.configure("default = \"allow\"\n");
    fs::remove_file(&file).unwrap();
    let (code, said) = host.host.ask(&["app", "enforce", "--unreviewed"]);
    assert_eq!(code, Some(1), "{said}");
}

/// `--whole`: a library that is put in by LD_PRELOAD makes another program of it.
#[test]
fn root_a_preloaded_library_is_refused_where_the_whole_program_is_named() {
    let library = "/usr/lib/x86_64-linux-gnu/libgcc_s.so.1";
    if !Path::new(library).exists() {
        eprintln!("skipped: {library} (probe: it is not there)");
        return;
    }
    let Some(host) = TestHost::new("whole", "") else {
        return;
    };
    host.host.done(&["app", "learn", "start"]);
    learn_curl(&host);
    host.host.done(&["app", "review", "--accept"]);
    let said = host.host.done(&["app", "enforce", "--whole"]);
    assert!(said.contains("+aggregate = ["), "{said}");
    let preload = format!("LD_PRELOAD={library}");
    for address in ADDRESSES {
        let url = format!("http://{address}:8080/");
        soon("curl to pass", || {
            (host.curl(address) == "200").then_some(())
        });
        // Until it is known it is dropped, and then refused.
        for _ in 0..3 {
            let done = host.run(&[
                "env",
                &preload,
                "curl",
                "-sS",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                "--max-time",
                "2",
                &url,
            ]);
            assert_eq!(String::from_utf8_lossy(&done.stdout), "000");
        }
        assert_eq!(host.curl(address), "200");
    }
}

/// The path stays, the file does not: it is another program, and an alert says so.
#[test]
fn root_a_replaced_program_loses_its_rule_and_is_told() {
    let Some(host) = TestHost::new("replaced", "") else {
        return;
    };
    let program = host.host.path("transfer");
    fs::copy("/usr/bin/curl", &program).unwrap();
    let path = program.to_str().unwrap();
    let get = |address: &str| {
        let url = format!("http://{address}:8080/");
        let done = host.run(&[
            path,
            "-sS",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "--max-time",
            "4",
            &url,
        ]);
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    host.host.done(&["app", "allow", path]);
    host.configure("default = \"drop\"\nunknown = \"drop\"\n");
    host.host.done(&["reload"]);
    for address in ADDRESSES {
        soon("the program to pass", || {
            (get(address) == "200").then_some(())
        });
    }
    assert!(!host.host.alerts().contains("app:replaced"));
    // The same program with a byte more behind its end, put there by rename.
    let mut bytes = fs::read(&program).unwrap();
    bytes.push(0);
    let next = host.host.path("next");
    fs::copy("/usr/bin/curl", &next).unwrap();
    fs::write(&next, bytes).unwrap();
    fs::rename(&next, &program).unwrap();
    for address in ADDRESSES {
        for _ in 0..2 {
            assert_eq!(get(address), "000");
        }
    }
    let alert = soon("the alert", || {
        let alerts = host.host.alerts();
        alerts.contains("app:replaced").then_some(alerts)
    });
    assert!(alert.contains("no package has it on record"), "{alert}");
    let app = host.host.json(&["app", "list"]);
    assert_eq!(app["replaced"][0]["path"], path, "{app}");
    // Allowed as it is now, it passes, and nothing is wrong any more.
    host.host.done(&["app", "allow", path]);
    soon("the program to pass again", || {
        (get("127.0.0.1") == "200").then_some(())
    });
    soon("the alert to end", || {
        (!host.host.alerts().contains("app:replaced")).then_some(())
    });
}

/// Asks by a datagram from another port each time, and waits for the answer.
const ASKS: &str = r#"
import socket, sys
addr = sys.argv[1]
s = socket.socket(socket.AF_INET6 if ':' in addr else socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(3); s.sendto(b'x', (addr, 7012)); s.recv(100); print('answered')
"#;

/// Sends each datagram back.
const ANSWERS: &str = r#"
import socket, sys
addr = sys.argv[1]
s = socket.socket(socket.AF_INET6 if ':' in addr else socket.AF_INET, socket.SOCK_DGRAM)
s.bind((addr, 7012)); print('ready', flush=True)
while True: told, peer = s.recvfrom(100); s.sendto(told, peer)
"#;

/// What the rules would refuse passes where weir only observes: the answer to a question is
/// no flow of its own, of which a rule would be made that opens ports.
#[test]
fn root_answers_to_what_is_only_observed_are_not_learned_as_coming_in() {
    let Some(host) = TestHost::new("answers", "") else {
        return;
    };
    host.host.configure_only(&format!(
        "instance = \"{}\"\nobserve = true\n[app]\nlevel = \"{}\"\ncgroup = \"{}\"\ndefault = \"drop\"\nunknown = \"drop\"\n",
        host.instance,
        app_host::level_name(),
        host.cgroup.display()
    ));
    host.host.done(&["reload"]);
    host.host.done(&["app", "learn", "start"]);
    let of_python = || {
        let review = host.host.json(&["app", "review"]);
        let mut programs = review["programs"].as_array()?.iter();
        let of = |program: &&Value| {
            let path = program["path"].as_str();
            path.is_some_and(|path| path.contains("/python3"))
        };
        programs.find(of)?["flows"].as_array().cloned()
    };
    for address in ADDRESSES {
        let peer = address.trim_matches(['[', ']']);
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", ANSWERS, peer]).stdout(Stdio::piped());
        let mut server = host.space.spawn(command).unwrap();
        let mut line = String::new();
        let output = server.inner().stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let asks = || {
            let done = host.run(&["/usr/bin/python3", "-c", ASKS, peer]);
            assert_eq!(String::from_utf8_lossy(&done.stdout), "answered\n");
        };
        soon("the question to be learned", || {
            asks();
            let flows = of_python()?;
            let mut flows = flows.iter();
            flows.any(|flow| flow["peer"] == peer).then_some(())
        });
        for _ in 0..5 {
            asks();
        }
    }
    std::thread::sleep(Duration::from_secs(1));
    for flow in of_python().unwrap() {
        assert_eq!(flow["direction"], "out", "{flow}");
        assert_eq!(flow["port"], 7012, "{flow}");
    }
}
