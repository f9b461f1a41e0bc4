//! Control groups of hosts that sign and that want tokens, removed and made anew.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use super::{
    common::soon,
    lab::{CURL_AND_PYTHON, Host, Lab, OPEN, PORT, SERVER},
};

const ALERT: &str = "token:cgroup";

/// Removes the control group once all of its processes have ended.
fn remove(host: &Host) {
    let until = Instant::now() + Duration::from_secs(10);
    while let Err(error) = fs::remove_dir(&host.cgroup) {
        assert!(Instant::now() < until, "{error}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn anew(host: &Host) {
    remove(host);
    soon("an alert of the control group", || {
        host.weir.alerts().contains(ALERT).then_some(())
    });
    fs::create_dir(&host.cgroup).unwrap();
    soon("no alert of the control group", || {
        (!host.weir.alerts().contains(ALERT)).then_some(())
    });
}

/// curl's token lets it in, python's does not.
#[track_caller]
fn tokens_hold(lab: &Lab, when: &str) {
    for address in SERVER {
        soon(&format!("curl to get in {when}"), || {
            (lab.client.curl(address, PORT) == "200").then_some(())
        });
        soon(&format!("python to be known {when}"), || {
            (lab.client.connects(address, OPEN) == "connected").then_some(())
        });
        soon(&format!("python to be kept out {when}"), || {
            (lab.client.connects(address, PORT) == "TimeoutError").then_some(())
        });
    }
}

#[test]
fn root_tokens_hold_for_a_control_group_that_is_made_anew() {
    let Some(mut lab) = Lab::new("anew") else {
        return;
    };
    lab.start_client(CURL_AND_PYTHON);
    let curl = lab.aggregate_of_curl();
    lab.start_server(&curl);
    tokens_hold(&lab, "at first");
    anew(&lab.client);
    tokens_hold(&lab, "from a group that was made anew");
    lab.without_nginx(|lab| anew(&lab.server));
    tokens_hold(&lab, "to a group that was made anew");

    // Without a daemon, and before the next one.
    lab.server.weir.end("KILL");
    lab.without_nginx(|lab| {
        remove(&lab.server);
        fs::create_dir(&lab.server.cgroup).unwrap();
    });
    lab.server.weir.start();
    tokens_hold(&lab, "after the daemon was killed");
    lab.client.weir.end("KILL");
    remove(&lab.client);
    lab.client.weir.start();
    soon("an alert of the control group", || {
        lab.client.weir.alerts().contains(ALERT).then_some(())
    });
    fs::create_dir(&lab.client.cgroup).unwrap();
    tokens_hold(&lab, "from a group that came after the daemon");
}
