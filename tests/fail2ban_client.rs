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
    prints(&host, &["--str2sec", "1h"], "3600");
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
        (&["set", "sshd", "bantime", "60"][..], "then reload"),
        (&["get", "sshd", "datepattern"], "weir has no answer"),
        (&["stop"], "systemctl"),
        (&["nonsense"], "Invalid command"),
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
    let refused = theirs(&["set", "sshd", "bantime", "60"]);
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
