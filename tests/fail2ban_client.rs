//! weir called as `fail2ban-client`, and Fail2ban's own client and protocol at
//! `fail2ban_socket`: what scripts, exporters and panels made for Fail2ban get of
//! weir's jails.

#[path = "common/plain.rs"]
mod plain;

use std::{
    fs::File,
    io::{Read, Write},
    os::unix::{fs::symlink, net::UnixStream},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use plain::{DEADLINE, Plain};

const V4: &str = "203.0.113.7";
const V6: &str = "2001:db8:bad::7";
/// What a jail bans for one IPv6 address.
const V6_NETWORK: &str = "2001:db8:bad::/64";

/// A daemon that reads a log of sshd's for two jails and has banned an address of each
/// family in the first.
fn host() -> Plain {
    let mut host = Plain::new();
    host.configure(
        "fail2ban_socket = \"{dir}/fail2ban.sock\"\n\
         [jail.sshd]\npaths = [\"{dir}/auth.log\"]\nmax_retry = 2\nban_time = \"10m\"\nports = [\"22/tcp\"]\n\
         [jail.second]\nfilter = \"sshd\"\npaths = [\"{dir}/other.log\"]\nban_time = \"forever\"\nignore = [\"192.0.2.0/24\"]\n",
    );
    File::create(host.path("other.log")).unwrap();
    let mut log = File::create(host.path("auth.log")).unwrap();
    symlink(env!("CARGO_BIN_EXE_weir"), host.path("fail2ban-client")).unwrap();
    host.start();
    let now = jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%.6f%:z");
    for who in [V4, V6, V4, V6, "203.0.113.99"] {
        let said = "host sshd[77]: Failed password for root from";
        writeln!(log, "{now} {said} {who} port 40022 ssh2").unwrap();
    }
    host.until("the bans", |host| host.json(&["bans"])["total"] == 2);
    host
}

/// The front end's exit code, and what it printed on standard output and error.
fn client(host: &Plain, command: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(host.path("fail2ban-client"))
        .arg("-s")
        .arg(host.path("weir.sock"))
        .args(command)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[track_caller]
fn prints(host: &Plain, command: &[&str], expected: &str) {
    let expected = host.filled(expected);
    assert_eq!(
        client(host, command),
        (Some(0), format!("{expected}\n")),
        "{command:?}"
    );
}

const STATUS: &str = "Status for the jail: sshd\n\
    |- Filter\n\
    |  |- Currently failed:\t1\n\
    |  |- Total failed:\t5\n\
    |  `- File list:\t{dir}/auth.log\n\
    `- Actions\n   |- Currently banned:\t2\n   |- Total banned:\t2\n   `- Banned IP list:\t";

#[test]
fn the_front_end_prints_what_fail2ban_would() {
    let host = host();
    prints(&host, &["ping"], "Server replied: pong");
    prints(
        &host,
        &["status"],
        "Status\n|- Number of jail:\t2\n`- Jail list:\tsshd, second",
    );
    let (code, status) = client(&host, &["status", "sshd"]);
    assert_eq!(code, Some(0), "{status}");
    let banned = status.strip_prefix(&host.filled(STATUS)).expect(&status);
    let mut banned: Vec<_> = banned.split_whitespace().collect();
    banned.sort_unstable();
    assert_eq!(banned, [V6_NETWORK, V4]);

    let short = STATUS.replace(
        "   |- Total banned:\t2\n   `- Banned IP list:\t",
        "   `- Total banned:\t2",
    );
    prints(&host, &["status", "sshd", "short"], &short);
    prints(&host, &["echo", "a", "b"], "a b");
    prints(
        &host,
        &["get", "dbpurgeage"],
        "Current database purge age is:\n`- 2592000seconds",
    );
    prints(&host, &["get", "sshd", "bantime.increment"], "False");
    prints(&host, &["get", "sshd", "bantime"], "600");
    prints(&host, &["get", "second", "bantime"], "-1");
    prints(&host, &["get", "sshd", "maxretry"], "2");
    prints(&host, &["get", "sshd", "findtime"], "600");
    prints(
        &host,
        &["get", "sshd", "logpath"],
        "Current monitored log file(s):\n`- {dir}/auth.log",
    );
    prints(
        &host,
        &["get", "sshd", "ignoreip"],
        "No IP address/network is ignored",
    );
    prints(
        &host,
        &["get", "second", "ignoreip"],
        "These IP addresses/networks are ignored:\n`- 192.0.2.0/24",
    );
    prints(&host, &["banned", V4], "[['sshd']]");
    prints(&host, &["get", "sshd", "banned", V6], "1");
    prints(&host, &["get", "second", "banned", V4], "0");

    let (_, timed) = client(&host, &["get", "sshd", "banip", "--with-time"]);
    let line = timed
        .lines()
        .find(|line| line.starts_with(V4))
        .expect(&timed);
    assert!(
        line.starts_with(&format!("{V4} \t20")) && line.contains(" + 600 = 20"),
        "{line}"
    );

    // Failures that a person tells of; two are a ban, by IPv6 of the network.
    prints(&host, &["set", "sshd", "attempt", "203.0.113.61"], "1");
    prints(&host, &["get", "sshd", "banned", "203.0.113.61"], "0");
    prints(&host, &["set", "sshd", "attempt", "203.0.113.61"], "1");
    let two = ["set", "sshd", "attempt", "2001:db8:61::1", "one", "two"];
    prints(&host, &two, "1");
    for (who, banned) in [
        ("203.0.113.61", "203.0.113.61"),
        ("2001:db8:61::1", "2001:db8:61::/64"),
    ] {
        prints(&host, &["get", "sshd", "banned", who], "1");
        prints(&host, &["set", "sshd", "unbanip", banned], "1");
    }
    let why = host.json(&["why", "2001:db8:61::1"]).to_string();
    assert!(why.contains("2 failures"), "{why}");

    // Both families, by the address that a person would type.
    prints(&host, &["set", "sshd", "unbanip", V6], "1");
    prints(&host, &["set", "sshd", "unbanip", V6], "0");
    prints(&host, &["get", "sshd", "banip"], V4);
    prints(
        &host,
        &["set", "second", "banip", "2001:db8:77::1", "203.0.113.44"],
        "2",
    );
    prints(&host, &["banned", "203.0.113.44"], "[['second']]");
    let ban = host.json(&["bans", "--jail", "second"]);
    assert!(
        ban["total"] == 2 && ban["bans"][0]["until"].is_null(),
        "{ban}"
    );
    prints(&host, &["unban", V4, "203.0.113.44"], "2");
    prints(&host, &["unban", "--all"], "1");
    prints(&host, &["banned"], "[{'sshd': []}, {'second': []}]");
    prints(&host, &["reload"], "OK");
    for (text, seconds) in [
        ("1h", "3600"),
        ("1week", "604800"),
        ("1mo", "2629800"),
        ("1y6mo", "47336400"),
        ("10m+5s", "605"),
    ] {
        prints(&host, &["--str2sec", text], seconds);
    }
}

#[test]
fn the_front_end_gives_overviews_and_lifts_with_a_reload() {
    let host = host();
    let (code, all) = client(&host, &["status", "--all"]);
    assert_eq!(code, Some(0), "{all}");
    let head = "Status\n|- Number of jail:\t2\n`- Jail list:\tsshd, second\n\n";
    let rest = all.strip_prefix(head).expect(&all);
    for jail in ["sshd", "second"] {
        let own = client(&host, &["status", jail]).1;
        assert!(rest.contains(own.trim_end()), "{own}: {all}");
    }
    prints(
        &host,
        &["stats"],
        "Jail    Backend  Failed  Total  Banned  Total\n\
         second  auto          0      0       0      0\n\
         sshd    auto          1      5       2      2",
    );
    prints(&host, &["flushlogs"], "flushed");
    prints(&host, &["get", "sshd", "maxlines"], "1");
    prints(
        &host,
        &["get", "sshd", "actions"],
        "The jail sshd has the following actions:\nweir-drop",
    );
    // Of Fail2ban's own socket, too, whose protocol is another one.
    let output = Command::new(host.path("fail2ban-client"))
        .arg("-c")
        .arg(host.path("weir.toml"))
        .arg("-s")
        .arg(host.path("fail2ban.sock"))
        .arg("ping")
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"Server replied: pong\n", "{output:?}");

    prints(&host, &["set", "second", "banip", "203.0.113.44"], "1");
    prints(&host, &["reload", "--unban", "sshd"], "OK");
    prints(
        &host,
        &["banned"],
        "[{'sshd': []}, {'second': ['203.0.113.44']}]",
    );
    prints(&host, &["reload", "--if-exists", "gone"], "OK");
    for (command, why) in [
        (&["reload", "gone"][..], "does not exist"),
        (&["reload", "--unbann"], "allowed: --restart, --unban"),
        (&["reload", "sshd", "second"], "one jail"),
    ] {
        let (code, text) = client(&host, command);
        assert_eq!(code, Some(255), "{command:?}: {text}");
        assert!(text.contains(why), "{command:?}: {text}");
    }
    prints(&host, &["reload", "--restart", "--unban", "--all"], "OK");
    prints(&host, &["banned"], "[{'sshd': []}, {'second': []}]");
}

/// The bans of a jail that is taken away go on, and are lifted as those of any other.
#[test]
fn bans_of_a_jail_that_is_gone_are_within_reach() {
    let host = host();
    let networks = ["192.0.2.200", "2001:db8:77::1", "203.0.113.0/24"];
    let banned = [&["set", "sshd", "banip"][..], &networks].concat();
    prints(&host, &banned, "3");
    host.configure(
        "fail2ban_socket = \"{dir}/fail2ban.sock\"\n\
         [jail.second]\nfilter = \"sshd\"\npaths = [\"{dir}/other.log\"]\n",
    );
    prints(&host, &["reload"], "OK");
    prints(
        &host,
        &["status"],
        "Status\n|- Number of jail:\t1\n`- Jail list:\tsecond",
    );
    prints(&host, &["banned", V4, V6], "[['sshd'], ['sshd']]");
    let (_, banned) = client(&host, &["banned"]);
    assert!(
        banned.starts_with("[{'second': []}, {'sshd': ["),
        "{banned}"
    );
    prints(&host, &["unban", V4], "1");
    prints(&host, &["unban", V4], "0");
    prints(&host, &["set", "sshd", "unbanip", V6], "1");
    prints(&host, &["banned", V6], "[[]]");
    // An address is not the network that it is in.
    prints(&host, &["set", "sshd", "unbanip", "203.0.113.5"], "0");
    prints(&host, &["set", "sshd", "unbanip", "203.0.113.0/24"], "1");
    prints(&host, &["unban", "--all"], "2");
    prints(&host, &["banned"], "[{'second': []}]");
    let (code, text) = client(&host, &["set", "sshd", "unbanip", V6]);
    assert_eq!(code, Some(255), "{text}");
}

#[test]
fn the_front_end_says_what_it_cannot_do() {
    let host = host();
    let (code, text) = client(&host, &["status", "nginx"]);
    assert_eq!(
        (code, text.as_str()),
        (
            Some(255),
            "weir: Sorry but the jail 'nginx' does not exist\n"
        )
    );
    for (command, why) in [
        (&["set", "sshd", "logencoding", "x"][..], "then reload"),
        (&["set", "sshd", "bantime", "soon"], "such as 600 or 10m"),
        (
            &["set", "sshd", "bantime", "0"],
            "ban_time is longer than 0",
        ),
        (&["set", "sshd", "findtime", "-1"], "more than 0"),
        (&["set", "sshd", "maxretry", "0"], "max_retry is 1 to"),
        (&["set", "sshd", "maxretry", "many"], "a number from 1"),
        (&["set", "sshd", "addignoreip", "friend"], "friend"),
        (
            &["set", "sshd", "delignoreip", "192.0.2.1"],
            "does not ignore 192.0.2.1",
        ),
        (&["set", "nginx", "maxretry", "3"], "does not exist"),
        (&["get", "sshd", "actionmethods"], "weir has no answer"),
        (&["status", "sshd", "cymru"], "allowed: basic, short"),
        (&["stop"], "systemctl"),
        (&["nonsense"], "Invalid command"),
        (&["set", "sshd", "attempt", "example.org"], "example.org"),
        (
            &["set", "second", "attempt", "192.0.2.7"],
            "jail second ignores 192.0.2.0/24",
        ),
        (&["set", "sshd", "banip", "example.org"], "example.org"),
        (
            &["set", "sshd", "banip", "198.51.100.7"],
            "cannot be banned",
        ),
        (
            &["set", "sshd", "unbanip", "--report-absent", "192.0.2.1"],
            "is not banned",
        ),
        (&[], "there is no command"),
    ] {
        let (code, text) = client(&host, command);
        assert_eq!(code, Some(255), "{command:?}: {text}");
        assert!(text.contains(why), "{command:?}: {text}");
    }
}

/// Fail2ban's own client, whose protocol is Python's pickle, if it is installed.
#[test]
fn fail2bans_own_client_is_answered() {
    let theirs = Path::new("/usr/bin/fail2ban-client");
    if !theirs.exists() {
        println!("skipped: no {}", theirs.display());
        return;
    }
    let host = host();
    let theirs = |command: &[&str]| {
        let output = Command::new(theirs)
            .arg("-s")
            .arg(host.path("fail2ban.sock"))
            .args(command)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    for command in [
        &["ping"][..],
        &["version"],
        &["status"],
        &["status", "sshd"],
        &["status", "sshd", "short"],
        &["echo", "a", "b"],
        &["get", "dbpurgeage"],
        &["get", "sshd", "datepattern"],
        &["get", "sshd", "ignorecommand"],
        &["get", "sshd", "ignoreregex"],
        &["get", "sshd", "logencoding"],
        &["get", "sshd", "logtimezone"],
        &["get", "sshd", "prefregex"],
        &["banned"],
        &["banned", V4, V6],
        &["get", "sshd", "banip"],
        &["get", "sshd", "banip", "--with-time"],
        &["get", "sshd", "logpath"],
        &["get", "sshd", "bantime"],
        &["get", "second", "ignoreip"],
        &["get", "sshd", "failregex"],
        &["get", "sshd", "actions"],
        &["get", "dbfile"],
        &["set", "second", "banip", "203.0.113.50"],
        &["set", "second", "unbanip", "203.0.113.51"],
    ] {
        let (code, ours) = client(&host, command);
        assert_eq!(code, Some(0), "{command:?}: {ours}");
        assert_eq!(theirs(command), ours, "{command:?}");
    }
    let refused = theirs(&["status", "nginx"]);
    assert!(
        refused.contains("Sorry but the jail 'nginx' does not exist"),
        "{refused}"
    );
    assert_eq!(theirs(&["set", "second", "maxretry", "7"]), "7\n");
    assert_eq!(
        client(&host, &["get", "second", "maxretry"]),
        (Some(0), "7\n".to_owned())
    );
    let refused = theirs(&["set", "sshd", "logencoding", "latin-1"]);
    assert!(refused.contains("then reload"), "{refused}");
}

/// Whatever a program sends to the socket, it and the others are served on.
#[test]
fn what_is_no_command_ends_its_connection_alone() {
    let host = host();
    let connect = || {
        let stream = UnixStream::connect(host.path("fail2ban.sock")).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    };
    // One that calls a function of Python's, and one that never ends.
    let mut hostile = connect();
    hostile
        .write_all(b"\x80\x04cos\nsystem\n(\x8c\x02idtR.<F2B_END_COMMAND>")
        .unwrap();
    let mut answer = vec![0; 4096];
    let length = hostile.read(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
    assert!(
        answer.contains("not a command of fail2ban-client"),
        "{answer}"
    );

    let mut endless = connect();
    let began = Instant::now();
    while endless.write_all(&[b'('; 4096]).is_ok() {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "it is read for ever"
        );
    }
    // More silent clients than there are places, and one that asks.
    let silent: Vec<_> = (0..20).map(|_| connect()).collect();
    drop(silent);
    let mut asks = connect();
    asks.write_all(b"\x80\x04]\x94\x8c\x04ping\x94a.<F2B_END_COMMAND>")
        .unwrap();
    let mut answer = [0; 64];
    let length = asks.read(&mut answer).unwrap();
    assert!(answer[..length].windows(4).any(|part| part == b"pong"));
}

/// `-t` and `-d` need no daemon: of weir's configuration and of a directory of Fail2ban's.
#[test]
fn what_is_configured_is_checked_and_dumped() {
    let host = Plain::new();
    host.configure(
        "[jail.web]\nfilter = \"sshd\"\npaths = [\"{dir}/a.log\"]\nmax_retry = 2\nignore = [\"192.0.2.0/24\"]\n",
    );
    for dir in ["f", "f/filter.d", "f/action.d"] {
        std::fs::create_dir(host.path(dir)).unwrap();
    }
    host.write(
        "f/jail.conf",
        "[shop]\nenabled = true\nbackend = polling\nfilter = shop\nlogpath = {dir}/a.log\nport = http\nbantime = 1h\n\
         action = nftables[port=\"%(port)s\", protocol=tcp]\n",
    );
    host.write(
        "f/filter.d/shop.conf",
        "[Definition]\nfailregex = it's <HOST>$\n            no <F-ID>x</F-ID>\ndatepattern = {NONE}\n",
    );
    host.write("f/action.d/nftables.conf", "[Definition]\n[Init]\n");
    host.write("a.log", "");
    symlink(env!("CARGO_BIN_EXE_weir"), host.path("fail2ban-client")).unwrap();
    symlink(env!("CARGO_BIN_EXE_weir"), host.path("fail2ban-server")).unwrap();
    let run = |program: &str, config: &str, words: &[&str]| {
        let output = Command::new(host.path(program))
            .arg("-c")
            .arg(host.path(config))
            .args(words)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let good = (Some(0), "OK: configuration test is successful\n".to_owned());
    for (program, config) in [
        ("fail2ban-client", "weir.toml"),
        ("fail2ban-client", "f"),
        ("fail2ban-server", "f"),
    ] {
        assert_eq!(run(program, config, &["-t"]), good, "{program} {config}");
    }
    let (code, dump) = run("fail2ban-client", "f", &["-d"]);
    assert_eq!(code, Some(0), "{dump}");
    let expected = host.filled(
        "['add', 'shop', 'auto']\n['set', 'shop', 'usedns', 'warn']\n['set', 'shop', 'maxretry', 3]\n\
         ['set', 'shop', 'findtime', 600]\n['set', 'shop', 'bantime', 3600]\n\
         ['set', 'shop', 'datepattern', '{NONE}']\n\
         ['multi-set', 'shop', 'addfailregex', ['it\\'s <HOST>$', 'no <F-ID>x</F-ID>']]\n\
         ['set', 'shop', 'addlogpath', '{dir}/a.log', 'head']\n\
         ['set', 'shop', 'addaction', 'weir-reject']\n['start', 'shop']\n",
    );
    assert_eq!(dump, expected);
    let (_, dump) = run("fail2ban-client", "weir.toml", &["--dp"]);
    for line in [
        "['set', 'web', 'addignoreip', '192.0.2.0/24']",
        "['set', 'web', 'addfilter', 'sshd']",
        "['start', 'web']",
    ] {
        assert!(dump.lines().any(|there| there == line), "{line}: {dump}");
    }
    // What is not honoured, and what is not there, is said; sound is it all the same.
    let local = "[shop]\nmaxrety = 3\nlogpath = {dir}/a.log\n          {dir}/b.log\n";
    host.write("f/jail.local", local);
    let (code, said) = run("fail2ban-client", "f", &["-t"]);
    assert_eq!(code, Some(0), "{said}");
    for expected in [
        "warning: jail shop: {dir}/f/jail.local:2: maxrety: there is no such key (did you mean maxretry?)",
        "warning: jail shop: there is no log {dir}/b.log yet; it is read once it is there",
    ] {
        let expected = host.filled(expected);
        assert!(said.contains(&expected), "{expected}: {said}");
    }
    std::fs::remove_file(host.path("f/jail.local")).unwrap();
    let (_, json) = run("fail2ban-client", "f", &["-d", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[2], serde_json::json!(["set", "shop", "maxretry", 3]));
}

/// What is set in the running daemon holds at once, for lines that come now, and until the
/// next reload.
#[test]
fn a_jail_is_changed_while_it_runs() {
    let host = host();
    prints(&host, &["set", "second", "maxretry", "1"], "1");
    prints(&host, &["set", "second", "bantime", "2h"], "7200");
    prints(&host, &["set", "second", "findtime", "1d 12h"], "129600");
    prints(
        &host,
        &[
            "set",
            "second",
            "addignoreip",
            "2001:db8:f::/48",
            "198.51.100.9",
        ],
        "These IP addresses/networks are ignored:\n|- 192.0.2.0/24\n|- 198.51.100.9\n`- 2001:db8:f::/48",
    );
    prints(
        &host,
        &["set", "second", "delignoreip", "192.0.2.0/24"],
        "These IP addresses/networks are ignored:\n|- 198.51.100.9\n`- 2001:db8:f::/48",
    );
    prints(&host, &["get", "second", "maxretry"], "1");
    prints(&host, &["get", "second", "bantime"], "7200");
    prints(&host, &["get", "second", "findtime"], "129600");
    prints(&host, &["get", "sshd", "bantime"], "600");

    let now = jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%.6f%:z");
    let mut log = File::options()
        .append(true)
        .open(host.path("other.log"))
        .unwrap();
    for who in ["2001:db8:f::1", "192.0.2.4", "2001:db8:e::1"] {
        writeln!(
            log,
            "{now} host sshd[78]: Failed password for root from {who} port 40022 ssh2"
        )
        .unwrap();
    }
    host.until("the bans", |host| {
        host.is_banned("192.0.2.4") && host.is_banned("2001:db8:e::1")
    });
    assert!(!host.is_banned("2001:db8:f::1"), "it is ignored now");
    // Bans of before are as they were.
    assert!(host.is_banned(V4));

    prints(&host, &["reload"], "OK");
    prints(&host, &["get", "second", "bantime"], "-1");
    prints(
        &host,
        &["get", "second", "ignoreip"],
        "These IP addresses/networks are ignored:\n`- 192.0.2.0/24",
    );
}
