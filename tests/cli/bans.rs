//! Bans and exemptions by hand: made, shown, refused with the reason, lifted.

use super::Host;

#[test]
fn bans_by_hand() {
    let host = Host::started();
    let ban = host.weir(&[
        "ban",
        "192.0.2.99",
        "--for",
        "10m",
        "--port",
        "22/tcp",
        "--reason",
        "no \u{202e}thanks",
        "--json",
    ]);
    assert_eq!(ban.code, 0, "{}", ban.err);
    assert_eq!(ban.json()["saved"], true);
    assert_eq!(host.weir(&["why", "192.0.2.99", "--port", "22"]).code, 0);
    assert_eq!(
        host.weir(&["why", "192.0.2.99", "--port", "22/tcp"]).code,
        0
    );
    assert_eq!(
        host.weir(&["why", "192.0.2.99", "--port", "22/udp"]).code,
        1
    );
    assert_eq!(host.weir(&["why", "192.0.2.99", "--port", "80"]).code, 1);
    let table = host.weir(&["bans"]).out;
    assert!(
        table.contains("22/tcp") && table.contains("no \\u{202e}thanks"),
        "{table}"
    );

    // One subject may hold several bans; an unban may name one.
    assert_eq!(host.weir(&["ban", "192.0.2.99"]).code, 0);
    assert_eq!(host.weir(&["bans", "--json"]).json()["total"], 2);
    let unban = host.weir(&["unban", "192.0.2.99", "--port", "22/tcp", "--json"]);
    assert_eq!(
        (unban.code, &unban.json()["lifted"]),
        (0, &1.into()),
        "{}",
        unban.err
    );
    assert_eq!(host.weir(&["why", "192.0.2.99", "--port", "80"]).code, 0);
    assert_eq!(host.weir(&["unban", "192.0.2.99"]).code, 0);
    let again = host.weir(&["unban", "192.0.2.99"]);
    assert_eq!(again.code, 1);
    assert!(again.out.contains("is not banned"), "{}", again.out);

    assert_eq!(
        host.weir(&["ban", "2001:db8:7::/64", "--for", "1d"]).code,
        0
    );
    assert!(host.is_banned("2001:db8:7::1"));
    let inside = host.weir(&["unban", "2001:db8:7::1"]);
    assert!(
        inside.code == 1 && inside.out.contains("but 2001:db8:7::/64 is"),
        "{}",
        inside.out
    );

    // What is asked of another's ban, and what holds after one is lifted.
    assert_eq!(host.weir(&["ban", "203.0.113.9"]).code, 0);
    let of_other = host.weir(&["unban", "203.0.113.9", "--jail", "sshd"]);
    assert_eq!(
        (of_other.code, of_other.out.as_str()),
        (
            1,
            "203.0.113.9 is banned manually on all ports, not by jail sshd\n"
        )
    );
    let of_port = host.weir(&["unban", "203.0.113.9", "--port", "22/tcp"]);
    assert!(
        of_port.code == 1 && of_port.out.contains("on all ports, not on 22/tcp"),
        "{}",
        of_port.out
    );
    assert_eq!(host.weir(&["ban", "203.0.113.0/24"]).code, 0);
    let one = host.weir(&["unban", "203.0.113.9"]);
    assert_eq!(
        (one.code, one.out.as_str()),
        (
            0,
            "1 ban lifted\n203.0.113.9 is still denied: 203.0.113.0/24 is banned manually on all ports\n"
        )
    );
    assert_eq!(host.weir(&["ban", "203.0.113.9"]).code, 0);
    let one = host.weir(&["unban", "203.0.113.9", "--json"]).json();
    assert!(
        one["still"][0].as_str().unwrap().contains("203.0.113.0/24"),
        "{one}"
    );

    let nobody = host.weir(&["unban", "--all", "--jail", "nosuch"]);
    assert_eq!(nobody.code, 2, "{}", nobody.out);
    assert!(
        nobody
            .err
            .contains("there is no jail \"nosuch\"; enabled are: sshd"),
        "{}",
        nobody.err
    );
    assert_eq!(host.weir(&["unban", "--all", "--jail", "sshd"]).code, 0);
    assert_eq!(host.weir(&["unban", "--all"]).code, 0);
    assert_eq!(host.weir(&["bans", "--json"]).json()["total"], 0);
}

#[test]
fn a_prefix_of_any_length_is_banned_shown_and_lifted() {
    let host = Host::started();
    for (prefix, inside, beside) in [
        ("10.0.0.0/9", "10.1.2.3", "10.128.0.0"),
        ("2001:db8:8000::/33", "2001:db8:ffff::9", "2001:db8::9"),
    ] {
        let banned = host.weir(&["ban", prefix, "--for", "1h", "--port", "22/tcp"]);
        assert_eq!(banned.code, 0, "{}", banned.err);
        assert!(banned.out.contains(prefix), "{}", banned.out);
        assert!(host.weir(&["bans"]).out.contains(prefix));
        let why = host.weir(&["why", inside, "--port", "22/tcp"]);
        assert_eq!(why.code, 0, "{}", why.out);
        assert!(why.out.contains(&format!("ban of {prefix}")), "{}", why.out);
        assert_eq!(host.weir(&["why", beside]).code, 1);
        let status = host.weir(&["status", "--json"]).json();
        assert_eq!(status["usage"]["prefix_bans"], 1, "{status}");
        assert!(
            host.weir(&["status"])
                .out
                .contains("1 of 8192 bans of other prefixes")
        );
        let inner = host.weir(&["unban", inside]);
        assert_eq!(inner.code, 1, "{}", inner.out);
        assert!(inner.out.contains(prefix), "{}", inner.out);
        assert_eq!(host.weir(&["unban", prefix]).code, 0);
        assert_eq!(host.weir(&["unban", prefix]).code, 1);
    }
    assert_eq!(host.weir(&["bans", "--json"]).json()["total"], 0);
}

#[test]
fn what_cannot_be_banned_is_refused_with_the_reason() {
    let host = Host::started();
    for (args, message) in [
        (vec!["ban", "198.51.100.7"], "allow list"),
        (vec!["ban", "127.0.0.1"], "loopback"),
        (vec!["ban", "::1"], "loopback"),
        (vec!["ban", "0.0.0.0/0"], "cannot be banned"),
        (vec!["ban", "fe80::/64"], "link-local"),
        (vec!["ban", "192.0.2.1/24"], "write 192.0.2.0/24"),
        (vec!["ban", "10.1.0.0/9"], "write 10.0.0.0/9"),
        (vec!["ban", "2001:db8:1::/33"], "write 2001:db8::/33"),
        (vec!["ban", "10.0.0.0/33"], "at most 32 for IPv4"),
        (vec!["ban", "224.0.0.0/3"], "multicast"),
        (vec!["ban", "fc00::/6"], "link-local"),
        (vec!["ban", "198.51.100.128/25"], "allow list"),
        (vec!["ban", "example.org"], "is not an address"),
        (vec!["ban", "$(reboot)"], "is not an address"),
        (vec!["ban", "192.0.2.7", "--for", "soon"], "length of time"),
        (vec!["ban", "192.0.2.7", "--for", "0"], "a ban lasts"),
        (vec!["ban", "192.0.2.7", "--port", "ssh"], "is not a port"),
        (vec!["unban", "nobody"], "is not an address"),
        (vec!["why", "nobody"], "is not an address"),
        (vec!["why", "192.0.2.7", "--port", "1-9"], "is not one port"),
        (vec!["allow", "add", "here"], "is not an address"),
    ] {
        let answer = host.weir(&args);
        assert_eq!(answer.code, 2, "{args:?}: {}", answer.out);
        assert!(answer.err.contains(message), "{args:?}: {}", answer.err);
    }
    assert_eq!(host.weir(&["bans", "--json"]).json()["total"], 0);
}

#[test]
fn the_allow_list_of_run_time_wins_and_survives() {
    let mut host = Host::started();
    assert_eq!(host.weir(&["ban", "192.0.2.77"]).code, 0);
    assert_eq!(
        host.weir(&["allow", "add", "192.0.2.0/25", "--note", "office"])
            .code,
        0
    );
    let why = host.weir(&["why", "192.0.2.77"]);
    assert!(why.code == 1 && why.out.contains("office"), "{}", why.out);
    assert_eq!(host.weir(&["ban", "192.0.2.78"]).code, 2);
    host.end("KILL");
    host.start();
    let list = host.weir(&["allow", "list", "--json"]).json();
    let office = list["allow"]
        .as_array()
        .unwrap()
        .iter()
        .find(|e| e["prefix"] == "192.0.2.0/25");
    assert!(
        office.unwrap()["reason"]
            .as_str()
            .unwrap()
            .contains("office")
    );
    assert!(
        list.to_string()
            .contains("it is an address of this host (lo)")
    );
    assert_eq!(host.weir(&["allow", "del", "192.0.2.0/25"]).code, 0);
    assert_eq!(host.weir(&["allow", "remove", "192.0.2.0/25"]).code, 1);
    assert!(host.is_banned("192.0.2.77"));
}
