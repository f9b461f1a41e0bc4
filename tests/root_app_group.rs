//! The control group of `[app]` over its life: one that is removed and made anew under its
//! path is judged as the one before was, also if no daemon runs meanwhile, and one may come
//! after the daemon.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use app_host::{ADDRESSES, TestHost, curl_only};
use common::soon;

const ALERT: &str = "app:cgroup";

/// Removes the control group once all of its processes have ended.
fn remove(host: &TestHost) {
    let until = Instant::now() + Duration::from_secs(10);
    while let Err(error) = fs::remove_dir(&host.cgroup) {
        assert!(Instant::now() < until, "{error}");
        thread::sleep(Duration::from_millis(20));
    }
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
