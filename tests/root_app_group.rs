//! What rules name by a path, over its life: the control group of `[app]` and network
//! namespaces that are removed and made anew are judged as those before were, also if no
//! daemon runs meanwhile, and a control group may come after the daemon.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    fs,
    process::{Command, Stdio},
};

use app_host::{ADDRESSES, TestHost, curl_only, sha256};
use common::soon;
use weir_netlab::{Child, Namespace};

const ALERT: &str = "app:cgroup";

/// Removes the control group once all of its processes have ended.
fn remove(host: &TestHost) {
    soon("the control group to be empty", || {
        fs::remove_dir(&host.cgroup).ok()
    });
}

/// curl gets through, and python3 is refused at once.
#[track_caller]
fn is_judged(host: &TestHost, when: &str) {
    for address in ADDRESSES {
        soon(&format!("curl to be known {when}"), || {
            (host.curl(address) == "200").then_some(())
        });
        soon(&format!("python to be refused {when}"), || {
            (host.connects(address).trim() == "PermissionError").then_some(())
        });
    }
}

fn alert(host: &TestHost, is_there: bool) {
    soon(
        &format!("an alert of the control group: {is_there}"),
        || (host.host.alerts().contains(ALERT) == is_there).then_some(()),
    );
}

#[test]
fn root_a_control_group_that_is_made_anew_is_judged_as_before() {
    let Some(mut host) = TestHost::new("anew", &curl_only()) else {
        return;
    };
    is_judged(&host, "at first");
    let judged = |host: &TestHost| {
        let rules = host.host.json(&["app", "list"])["rules"].clone();
        let rules = rules.as_array().unwrap();
        let curl = rules.iter().find(|rule| rule["name"] == "curl").unwrap();
        curl["judged"].as_u64().unwrap()
    };
    for turn in 0..2 {
        remove(&host);
        alert(&host, true);
        // Rules can be changed while it is not there.
        host.configure(&curl_only());
        host.host.done(&["reload"]);
        let before = judged(&host);
        fs::create_dir(&host.cgroup).unwrap();
        alert(&host, false);
        is_judged(&host, "in the next group");
        assert!(
            judged(&host) > before,
            "turn {turn}: what was counted is lost"
        );
    }
    // At one moment, so that nobody sees that it was away.
    remove(&host);
    fs::create_dir(&host.cgroup).unwrap();
    is_judged(&host, "in one that nobody saw go");

    // Without a daemon nobody notices; the next one does.
    host.host.end("KILL");
    remove(&host);
    fs::create_dir(&host.cgroup).unwrap();
    host.host.start();
    is_judged(&host, "after the daemon was killed");
    host.host.end("KILL");
    remove(&host);
    host.host.start();
    alert(&host, true);
    fs::create_dir(&host.cgroup).unwrap();
    alert(&host, false);
    is_judged(&host, "in a group that comes after the next daemon");
}

/// What is connected when a group is taken is judged, too.
#[test]
fn root_a_control_group_may_come_after_the_daemon() {
    let Some(host) = TestHost::with("later", &curl_only(), |host| remove(host)) else {
        return;
    };
    alert(&host, true);
    let (code, said) = host.host.ask(&["check"]);
    assert!(
        said.contains(&host.cgroup.display().to_string()),
        "{code:?}: {said}"
    );
    host.host.done(&["reload"]);
    fs::create_dir(&host.cgroup).unwrap();
    alert(&host, false);
    is_judged(&host, "in the group that came");

    // A group that can never come is refused as before.
    host.host.configure_only(&format!(
        "instance = \"{}\"\n[app]\ncgroup = \"/weir-test-nowhere\"\n{}",
        host.instance,
        curl_only()
    ));
    let (code, said) = host.host.ask(&["reload"]);
    assert_ne!(code, Some(0), "{said}");
    assert!(said.contains("/weir-test-nowhere"), "{said}");
    is_judged(&host, "after a reload that is refused");
}

const CONNECT: &str = "import socket\nfor address in ('127.0.0.1', '::1'):\n try: socket.create_connection((address, 8080), 4); print('connected')\n except OSError as e: print(type(e).__name__)";

/// Servers in this namespace that nobody judges.
fn servers(space: &Namespace) -> Vec<Child> {
    let each = ["127.0.0.1", "::1"].iter().map(|address| {
        let mut command = Command::new("/usr/bin/python3");
        command
            .args(["-m", "http.server", "-b", address, "8080"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        space.spawn(command).unwrap()
    });
    each.collect()
}

/// What a program prints in a namespace and the control group.
fn said_in(host: &TestHost, space: &Namespace, words: &[&str]) -> String {
    let enter = format!(
        "echo 0 > {}/cgroup.procs && exec \"$@\"",
        host.cgroup.display()
    );
    let words = [&["-c", &enter, "sh"], words].concat();
    let done = space.output("sh", &words).unwrap();
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// There a rule lets curl through and another one refuses everybody else; python3 may anywhere
/// else.
#[track_caller]
fn rules_meet(host: &TestHost, there: &Namespace, when: &str) {
    let python = ["/usr/bin/python3", "-c", CONNECT];
    let curl = |address: &str| {
        let url = format!("http://{address}:8080/");
        let words = [
            "curl",
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "--max-time",
            "6",
        ];
        said_in(host, there, &[&words[..], &[&url]].concat())
    };
    soon(&format!("python to be refused there {when}"), || {
        (said_in(host, there, &python) == "PermissionError\n".repeat(2)).then_some(())
    });
    soon(&format!("python to connect elsewhere {when}"), || {
        (said_in(host, &host.space, &python) == "connected\n".repeat(2)).then_some(())
    });
    for address in ADDRESSES {
        soon(&format!("curl to get through there {when}"), || {
            (curl(address) == "200").then_some(())
        });
    }
    assert_ne!(host.curl(ADDRESSES[0]), "200", "{when}");
}

#[test]
fn root_a_network_namespace_that_is_made_anew_is_met_by_its_path() {
    let mut there = None;
    let Some(host) = TestHost::with("space", &curl_only(), |host| {
        let space = host.net.namespace("anew").unwrap();
        let path = space.path();
        let path = path.display();
        host.configure(&format!(
            "default = \"drop\"\nunknown = \"drop\"\n\
             [app.rules.curl]\nverdict = \"allow\"\nexe = \"{}\"\nnetns = \"{path}\"\n\
             [app.rules.there]\nverdict = \"drop\"\nnetns = \"{path}\"\n\
             [app.rules.python]\nverdict = \"allow\"\nexe = \"{}\"\n",
            sha256("/usr/bin/curl"),
            sha256("/usr/bin/python3")
        ));
        there = Some(space);
    }) else {
        return;
    };
    let there = there.unwrap();
    // They hold on to the namespace that they are in: the next one has another number.
    let mut held = vec![servers(&there)];
    rules_meet(&host, &there, "at first");
    let ip = |words: &[&str]| {
        let done = Command::new("ip").args(words).output().unwrap();
        assert!(done.status.success(), "{words:?}: {done:?}");
    };
    let is_told = |is: bool| {
        soon(&format!("an alert of rules: {is}"), || {
            (host.host.alerts().contains("app:rules") == is).then_some(())
        });
    };
    ip(&["netns", "del", there.name()]);
    is_told(true);
    for turn in ["anew", "once more"] {
        let _ = Command::new("ip")
            .args(["netns", "del", there.name()])
            .output();
        ip(&["netns", "add", there.name()]);
        there.run("ip", &["link", "set", "lo", "up"]).unwrap();
        held.push(servers(&there));
        is_told(false);
        rules_meet(&host, &there, turn);
    }
}
