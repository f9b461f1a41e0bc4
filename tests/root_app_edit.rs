//! `weir app allow` and `weir app deny` for each kind of who that rules know, and `weir app
//! remove`, which takes away what they have added.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::fs;

use app_host::{TestHost, sha256};
use common::{skipped, soon};
use serde_json::Value;

const FILE: &str = "conf.d/50-app-rules.toml";
const DROPS: &str = "default = \"drop\"\nunknown = \"drop\"\n";

/// Python as another user.
fn connects_as(host: &TestHost, user: u32, address: &str) -> String {
    let script = format!(
        "import os, socket\nos.setuid({user})\ntry: socket.create_connection(('{address}', 8080), 3); print('connected')\nexcept OSError as e: print(type(e).__name__)"
    );
    host.python(&script).trim().to_owned()
}

fn added(host: &TestHost) -> Value {
    let (code, said) = host.host.ask(&["app", "remove", "--json"]);
    let found: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{code:?} {said}"));
    assert_eq!(code, Some(if found[0].is_null() { 1 } else { 0 }), "{said}");
    found
}

/// A rule by whatever names a program lets it through, and what does not fit stays refused; then
/// it is taken away, and all is as before.
#[test]
fn root_a_rule_by_user_group_unit_script_package_object_or_whole_is_added_and_removed() {
    if skipped(&["dpkg"]) {
        return;
    }
    let Some(host) = TestHost::in_slice("edit", DROPS) else {
        return;
    };
    for address in ["127.0.0.1", "::1"] {
        soon("python to be known, and refused", || {
            (host.connects(address).trim() == "PermissionError").then_some(())
        });
    }
    assert_eq!(added(&host), Value::Array(Vec::new()));
    let group = host.cgroup.join("weir-test.service");
    fs::create_dir(&group).unwrap();
    let script = host.host.write(
        "tool.py",
        "import socket, sys\ntry: socket.create_connection((sys.argv[1], 8080), 3); print('connected')\nexcept OSError as e: print(type(e).__name__)\n",
    );
    let script = script.to_str().unwrap();
    let plain = host
        .host
        .write("other.py", &fs::read_to_string(script).unwrap());
    let run_script = |path: &str, address: &str| {
        let done = host.run(&["/usr/bin/python3", path, address]);
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    };
    let in_group = |address: &str| {
        let run = format!(
            "echo 0 > {}/cgroup.procs && exec /usr/bin/python3 {script} {address}",
            group.display()
        );
        let done = host.space.output("sh", &["-c", &run]).unwrap();
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    };
    let root = |address: &str| host.connects(address).trim().to_owned();
    let user = |address: &str| connects_as(&host, 65534, address);
    let named = |address: &str| run_script(script, address);
    let other = |address: &str| run_script(plain.to_str().unwrap(), address);
    let curl = |address: &str| {
        let address = match address.contains(':') {
            true => format!("[{address}]"),
            false => address.to_owned(),
        };
        match host.curl(&address).as_str() {
            "200" => "connected".to_owned(),
            other => other.to_owned(),
        }
    };
    let python = sha256("/usr/bin/python3");
    let below = format!("/{}.slice/weir-test.service", host.instance);
    let binary = fs::canonicalize("/usr/bin/python3").unwrap();
    let of_python = binary.file_name().unwrap().to_str().unwrap();
    let of_python = format!("allow-{}", of_python.replace('.', "_"));
    type Try<'a> = &'a dyn Fn(&str) -> String;
    let cases: [(&[&str], &str, Try<'_>, Try<'_>); 9] = [
        (&["--user", "65534"], "allow-65534", &user, &root),
        (&["--user", "0", "--not", "user"], "allow-0", &user, &root),
        (
            &["/usr/bin/python3", "--user", "nobody"],
            &of_python,
            &user,
            &root,
        ),
        (
            &["--cgroup", &below],
            "allow-weir-test_service",
            &in_group,
            &root,
        ),
        (
            &["--unit", "weir-*.service"],
            "allow-weir-__service",
            &in_group,
            &root,
        ),
        (
            &["/usr/bin/python3", "--script", script],
            &of_python,
            &named,
            &other,
        ),
        (&["--package", "curl"], "allow-curl", &curl, &root),
        (&["--path", "/usr/bin/curl"], "allow-curl", &curl, &root),
        (&["--object", &python], "allow-object", &root, &curl),
    ];
    let first = std::env::var("WEIR_TEST_CASE")
        .ok()
        .and_then(|n| n.parse().ok());
    for (who, name, may, may_not) in cases.iter().skip(first.unwrap_or(0)) {
        let mut words = vec!["app", "allow"];
        words.extend(*who);
        words.extend(["--to", "127.0.0.1", "--to", "::1", "--port", "8080/tcp"]);
        let said = host.host.done(&words);
        assert!(
            said.contains(&format!("[app.rules.{name}] is in force")),
            "{said}"
        );
        for address in ["127.0.0.1", "::1"] {
            soon("who is named to pass", || {
                (may(address) == "connected").then_some(())
            });
            let refused = may_not(address);
            assert_ne!(refused, "connected", "{who:?} {address}");
        }
        assert_eq!(added(&host)[0]["name"], *name);
        let said = host.host.done(&["app", "remove", name]);
        assert!(said.contains(&format!("-[app.rules.{name}]")), "{said}");
        assert!(said.contains("is no more"), "{said}");
        for address in ["127.0.0.1", "::1"] {
            soon("it to be refused again", || {
                (may(address) != "connected").then_some(())
            });
        }
        assert!(!host.host.path(FILE).exists(), "{name}");
    }
    fs::remove_dir(&group).unwrap();
}

/// The rest of what names somebody; rules that deny; what is refused leaves the file as it was.
#[test]
fn root_what_is_added_is_listed_and_a_refused_reload_leaves_the_file_as_it_was() {
    let Some(host) = TestHost::new("edit2", "default = \"allow\"\n") else {
        return;
    };
    soon("curl to pass", || {
        (host.curl("127.0.0.1") == "200").then_some(())
    });
    // The whole of a process that runs, in this namespace alone.
    let mut running = host.begin(&[
        "/usr/bin/python3",
        "-c",
        "print('there', flush=True); input()",
    ]);
    assert_eq!(running.line(), "there");
    let pid = fs::read_to_string(host.cgroup.join("cgroup.procs")).unwrap();
    let pid = format!("pid:{}", pid.lines().next().unwrap());
    let space = host.space.path();
    let space = space.to_str().unwrap();
    let whole = host.host.done(&["app", "hash", "--aggregate", &pid]);
    let (whole, about) = whole.trim().split_once("  ").unwrap();
    assert!(
        about.contains("python3") && about.contains(" other files"),
        "{about}"
    );
    let json = host.host.json(&["app", "hash", "--aggregate", &pid]);
    assert_eq!(json[0]["aggregate"], whole);
    let files = json[0]["files"].as_array().unwrap().iter();
    let files: Vec<_> = files
        .map(|file| file["path"].as_str().unwrap())
        .rev()
        .collect();
    let words = [&["app", "hash", "--aggregate"], &files[..]].concat();
    assert!(host.host.done(&words).starts_with(whole), "{files:?}");
    let prefixed = format!("sha256:{whole}");
    host.host.done(&[
        "app",
        "deny",
        "--aggregate",
        &prefixed,
        "--netns",
        space,
        "--name",
        "whole",
    ]);
    running.go_on();
    running.ended();
    host.host.done(&["app", "deny", "--altered"]);
    host.host
        .done(&["app", "deny", "--anonymous", "--user", "nobody", "--out"]);
    host.host.done(&["app", "deny", "--container", "app=shop"]);
    host.host.done(&[
        "app",
        "allow",
        "/usr/bin/curl",
        "--protocol",
        "raw",
        "--protocol",
        "tcp",
    ]);
    let library = "/usr/lib/x86_64-linux-gnu/libssl.so.3";
    if std::path::Path::new(library).exists() {
        host.host.done(&[
            "app",
            "deny",
            "--object",
            library,
            "--name",
            "ssl",
            "--to",
            "192.0.2.1",
        ]);
    }
    let rules = added(&host);
    let of = |name: &str| {
        let mut rules = rules.as_array().unwrap().iter();
        let rule = rules.find(|rule| rule["name"] == name);
        rule.unwrap_or_else(|| panic!("{name}: {rules:?}"))["rule"].clone()
    };
    assert_eq!(of("whole")["netns"], space);
    assert_eq!(of("whole")["aggregate"], whole);
    assert_eq!(of("deny-altered")["altered"], true);
    assert_eq!(of("deny-nobody")["anonymous"], true);
    assert_eq!(of("deny-nobody")["direction"], "out");
    assert_eq!(of("deny-app_shop")["container"], "app=shop");
    assert_eq!(of("allow-curl")["protocols"][0], "raw");
    let listed = host.host.json(&["app", "list"]);
    assert!(listed.to_string().contains("deny-app_shop"), "{listed}");
    // Whether a script that is run so is the same program depends on its libraries.
    soon("python to be denied as a whole", || {
        (host.connects("127.0.0.1").trim() == "PermissionError").then_some(())
    });
    assert_eq!(host.curl("127.0.0.1"), "200");

    // What is refused changes nothing.
    let before = fs::read_to_string(host.host.path(FILE)).unwrap();
    for (words, says) in [
        (
            vec!["allow", "--user", "nobody-at-all"],
            "this host has no such user",
        ),
        (
            vec!["allow", "--script", "/tmp/x.py"],
            "without the interpreter",
        ),
        (vec!["allow", "--unit", "a/b"], "it is no name of a unit"),
        (
            vec!["allow", "--aggregate", "nonsense"],
            "allowed: a SHA-256",
        ),
        (
            vec!["allow", "--aggregate", "pid:4194304"],
            "there is no process",
        ),
        (
            vec!["allow", "--user", "nobody", "--not", "package"],
            "which is no key of the rule",
        ),
        (vec!["allow", "--to", "192.0.2.1"], "required"),
        (vec!["deny", "--library"], "required"),
        (vec!["remove", "nonsense"], "allowed: "),
        (vec!["remove", "allow-curl", "nonsense"], "allowed: "),
    ] {
        let words = [&["app"], &words[..]].concat();
        let (code, said) = host.host.ask(&words);
        assert_eq!(code, Some(2), "{words:?}: {said}");
        let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(says), "{words:?}: {said}");
        // What will not come about is not shown as if it would.
        assert!(!said.contains("+[app.rules"), "{words:?}: {said}");
        let now = fs::read_to_string(host.host.path(FILE)).unwrap();
        assert_eq!(now, before, "{words:?}");
    }
    let (code, said) = host.host.ask(&[
        "app",
        "allow",
        "/usr/bin/python3",
        "--port",
        "443/tpc",
        "--dry-run",
    ]);
    assert_eq!(code, Some(2), "{said}");
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains("tcp or udp)") && !flat.contains('+'),
        "{said}"
    );
    // A rule of another file is left alone, and it is said where it is.
    let other = host.host.path("conf.d/70-mine.toml");
    fs::write(&other, "[app.rules.mine]\nverdict = \"log\"\n").unwrap();
    let (code, said) = host.host.ask(&["app", "remove", "mine"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("70-mine.toml"), "{said}");
    // A configuration that is refused for another reason: the removal is taken back.
    fs::write(&other, "[app.rules.mine]\nverdict = \"nonsense\"\n").unwrap();
    let (code, said) = host.host.ask(&["app", "remove", "whole"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("is as it was"), "{said}");
    assert!(!said.contains("-[app.rules"), "{said}");
    assert_eq!(fs::read_to_string(host.host.path(FILE)).unwrap(), before);
    fs::remove_file(&other).unwrap();
    host.host.done(&["app", "remove", "--dry-run", "whole"]);
    assert_eq!(fs::read_to_string(host.host.path(FILE)).unwrap(), before);
    host.host.done(&["app", "remove", "whole", "deny-altered"]);
    let now = fs::read_to_string(host.host.path(FILE)).unwrap();
    assert!(
        !now.contains("whole]") && now.contains("deny-nobody"),
        "{now}"
    );
    soon("python to pass again", || {
        (host.connects("127.0.0.1").trim() == "connected").then_some(())
    });
}

/// A program that was uninstalled keeps no host from its start: its rule is about nobody, which is
/// told, until a reload finds the file.
#[test]
fn root_a_path_without_a_file_is_told_and_holds_once_it_is_there() {
    let gone = "[app.rules.gone]\nverdict = \"allow\"\npath = \"{dir}/gone\"\n";
    let Some(host) = TestHost::new("gone", &format!("{DROPS}{gone}")) else {
        return;
    };
    let alerts = host.host.alerts();
    assert!(
        alerts.contains("app:rules") && alerts.contains("/gone, which is not there"),
        "{alerts}"
    );
    let (_, status) = host.host.ask(&["status"]);
    let first = status.lines().next().unwrap();
    assert!(first.contains("; programs: judged ("), "{status}");
    let program = host.copy("/usr/bin/curl", "gone");
    soon("the file to be seen", || {
        host.host.alerts().contains("is there by now").then_some(())
    });
    let gets = |address: &str| {
        let url = format!("http://{address}:8080/");
        let words = ["-s", "-o", "/dev/null", "--max-time", "5", &url];
        let done = host.run(&[&[program.as_str()], &words[..]].concat());
        done.status.success()
    };
    assert!(!gets("127.0.0.1"), "before the reload");
    host.host.done(&["reload"]);
    for address in ["127.0.0.1", "[::1]"] {
        soon("the program to get out", || gets(address).then_some(()));
    }
    let alerts = host.host.alerts();
    assert!(!alerts.contains("app:rules"), "{alerts}");
}

/// A rule does not have weir judge all programs of a host whose administrator has not asked for it.
#[test]
fn root_no_rule_is_made_without_app() {
    let Some(host) = TestHost::new("none", DROPS) else {
        return;
    };
    host.host
        .configure_only(&format!("instance = \"{}\"\n", host.instance));
    host.host.done(&["reload"]);
    for verb in ["allow", "deny"] {
        let (code, said) = host.host.ask(&["app", verb, "/usr/bin/curl"]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("there is no [app]"), "{said}");
    }
    assert!(!host.host.path(FILE).exists());
    let (_, status) = host.host.ask(&["status"]);
    let first = status.lines().next().unwrap();
    assert!(!first.contains("programs"), "{status}");
}
