//! Whom a log names otherwise than by an address: by a prefix, which is banned as
//! a whole.

mod common;

use std::{fs::OpenOptions, io::Write};

use common::{ATTACKER, CUSTOMER, OTHER, Site, Weir, at, soon};

/// Lines of the log as a program with a syslog daemon behind it writes them.
fn log(weir: &Weir, messages: &[&str]) {
    let mut log = OpenOptions::new().append(true).open(weir.log()).unwrap();
    for message in messages {
        let now = jiff::Timestamp::now();
        writeln!(log, "{now:.0} host quotad[7]: {message}").unwrap();
    }
}

/// Waits for these bans, and no others.
#[track_caller]
fn bans_are(weir: &Weir, expected: &[&str]) {
    let mut expected: Vec<_> = expected.iter().map(|ban| (*ban).to_owned()).collect();
    expected.sort();
    soon(&format!("the bans {expected:?}"), || {
        let mut banned = weir.banned();
        banned.sort();
        (banned == expected).then_some(())
    });
}

#[track_caller]
fn alert_of(weir: &Weir, about: &str) -> String {
    soon(&format!("the alert {about}"), || {
        let status = weir.json(&["status"]);
        let alerts = status["alerts"].as_array()?;
        let alert = alerts.iter().find(|alert| alert["about"] == about)?;
        Some(alert["message"].as_str()?.to_owned())
    })
}

#[test]
fn root_a_prefix_that_a_log_names_is_banned_as_a_whole() {
    let site = Site::new();
    let _server = site.server();
    let mut weir = Weir::start(
        &site.host,
        r#"
        interfaces = ["eth0"]
        allow = ["203.0.113.5", "2001:db8:c::5"]
        [filter.quota]
        identifiers = ["quotad"]
        patterns = ["network <prefix> is over quota"]
        [jail.quota]
        paths = ["{log}"]
        max_retry = 2
        "#,
    );
    log(
        &weir,
        &[
            "network 198.51.100.0/24 is over quota",
            "network 2001:db8:bad::/48 is over quota",
            // All hold somebody exempt, are too wide, or are no prefixes.
            "network 203.0.113.0/24 is over quota",
            "network 2001:db8:c::/48 is over quota",
            "network 0.0.0.0/0 is over quota",
            "network ::/0 is over quota",
            "network 198.51.100.0/33 is over quota",
        ],
    );
    soon("all to be read", || {
        let refused = weir.metric("weir_jail_refused_findings_total", &["quota"]);
        (refused == Some(5)).then_some(())
    });
    assert_eq!(weir.banned(), [""; 0]);
    let held = alert_of(&weir, "jail:quota:holds-exempt");
    let said = "such as 203.0.113.0/24, which holds 203.0.113.5.";
    assert!(held.contains(said), "{held}");
    let refused = alert_of(&weir, "jail:quota:refused");
    assert!(refused.contains("network 0.0.0.0/0"), "{refused}");
    for family in [0, 1] {
        site.serves(OTHER[family], at(family));
    }

    // What is counted is there after a restart; bits behind the length mean the
    // same prefix.
    weir.stop();
    weir.run();
    log(
        &weir,
        &[
            "network 198.51.100.77/24 is over quota",
            "network 2001:db8:bad:7::/48 is over quota",
        ],
    );
    bans_are(&weir, &["198.51.100.0/24", "2001:db8:bad::/48"]);
    for family in [0, 1] {
        site.drops_soon(ATTACKER[family]);
        site.drops_soon(OTHER[family]);
        site.serves(CUSTOMER[family], at(family));
    }
    let dropped = weir.why(ATTACKER[1]);
    assert_eq!(dropped["dropped"], true, "{dropped}");
}
