//! All filters of Debian's fail2ban package over one mixed log: those that find dates
//! together, because they have the same forms, find what each finds alone, line by line.

mod common;

use std::{fs, path::Path};

use common::Disk;
use jiff::{Timestamp, ToSpan, tz::TimeZone};
use weir_fail2ban::{
    date::Clock,
    load_filter,
    matching::{Filter, FilterState, LogLine},
};

const DIR: &str = "/etc/fail2ban";
/// How often the lines below are read, each time with later dates.
const ROUNDS: i64 = 40;

/// Lines of several programs, with dates of several forms, without one, and with a client's
/// text that has one; `{…}` are dates.
const LINES: [&str; 20] = [
    "{syslog} host sshd[{n}]: Failed password for invalid user u{n} from 192.0.2.7 port 4711 ssh2",
    "{syslog} host sshd[{n}]: Invalid user {iso} from 2001:db8::7 port 4711",
    "{iso} host sshd[{n}]: Connection closed by authenticating user root 192.0.2.8 port 22 [preauth]",
    "{syslog} host postfix/smtpd[{n}]: NOQUEUE: reject: RCPT from unknown[192.0.2.9]: 554 5.7.1 <a@example.org>: Relay access denied; from=<b@example.com> to=<a@example.org> proto=ESMTP helo=<h>",
    "{slashed} [error] {n}#1: *5 user \"{web}\": password mismatch, client: 192.0.2.10, server: shop, request: \"GET / HTTP/1.1\", host: \"shop\"",
    "{iso},123 fail2ban.actions        [{n}]: NOTICE  [sshd] Ban 192.0.2.11",
    "192.0.2.12 - - [{web}] \"GET /x.php HTTP/1.1\" 404 12 \"-\" \"-\"",
    "192.0.2.13 - {iso} [{web}] \"GET /w00tw00t.at.ISC.SANS.DFind:) HTTP/1.1\" 400 12",
    "[{apache}] [auth_basic:error] [pid {n}] [client 192.0.2.14:55] AH01618: user nobody not found: /",
    "a line without any date from 192.0.2.15",
    "{epoch} 192.0.2.16 failed login {n}",
    "@400000005e0c000a00000000 tcpserver: deny 192.0.2.17",
    "{syslog} host dovecot: imap-login: Disconnected (auth failed, 1 attempts in 2 secs): user=<u{n}>, method=PLAIN, rip=2001:db8::18, lip=192.0.2.1",
    "{syslog} host vsftpd[{n}]: pam_unix(vsftpd:auth): authentication failure; logname= uid=0 euid=0 tty=ftp ruser=u rhost=192.0.2.19",
    "{apache} [pid {n}] [u] FAIL LOGIN: Client \"192.0.2.20\"",
    "{syslog}.123 host named[{n}]: client 192.0.2.21#53: query (cache) 'x/A/IN' denied",
    "{iso} {syslog} host sshd[{n}]: Failed password for root from 192.0.2.22 port 1 ssh2",
    "",
    "  {iso}",
    "{named}, 03:04:05 AM login from 192.0.2.23 failed",
];

/// The lines of a round, with dates of then.
fn lines(round: i64) -> (Timestamp, Vec<String>) {
    let start = Timestamp::from_second(1_772_600_000).unwrap();
    let now = start + (round * 7).seconds();
    let zoned = now.to_zoned(TimeZone::UTC);
    let dates = [
        ("{syslog}", "%b %e %H:%M:%S"),
        ("{iso}", "%Y-%m-%d %H:%M:%S"),
        ("{slashed}", "%Y/%m/%d %H:%M:%S"),
        ("{web}", "%d/%b/%Y:%H:%M:%S +0000"),
        ("{apache}", "%a %b %d %H:%M:%S.123456 %Y"),
        ("{epoch}", "%s"),
        ("{named}", "%b %d, %Y"),
    ];
    // Another one first each time, so that detection has to learn.
    let turned = LINES.iter().cycle().skip(round as usize).take(LINES.len());
    let lines = turned.map(|line| {
        let line = line.replace("{n}", &(round + 100).to_string());
        dates.iter().fold(line, |line, (name, format)| {
            line.replace(name, &zoned.strftime(format).to_string())
        })
    });
    (now, lines.collect())
}

/// What a line tells each filter, in words.
fn told(
    filters: &[(String, Filter)],
    states: &mut [FilterState],
    line: &str,
    now: Timestamp,
) -> Vec<String> {
    let clock = Clock {
        now,
        zone: &TimeZone::UTC,
    };
    let line = LogLine {
        text: line,
        time: None,
    };
    let all = filters.iter().zip(states);
    all.map(|((_, filter), state)| format!("{:?}", filter.read(state, line, clock)))
        .collect()
}

#[test]
fn filters_that_find_dates_together_find_what_each_finds_alone() {
    let Ok(files) = fs::read_dir(Path::new(DIR).join("filter.d")) else {
        eprintln!("skipped: fail2ban package: there is no {DIR}/filter.d");
        return;
    };
    let names = files.filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        let name = name.strip_suffix(".conf")?;
        (!name.ends_with("common")).then(|| name.to_owned())
    });
    let filters: Vec<_> = names
        .map(|name| {
            let source = load_filter(&Disk, Path::new(DIR), &name, &[]).unwrap();
            let filter = Filter::new(&source).unwrap();
            (name, filter)
        })
        .collect();
    let states = || -> Vec<_> { filters.iter().map(|(_, filter)| filter.state()).collect() };
    let (mut alone, mut together) = (states(), states());
    let mut shared = 0;
    for n in 1..together.len() {
        let (before, rest) = together.split_at_mut(n);
        shared += usize::from(before.iter().any(|other| rest[0].share_dates(other)));
    }
    assert!(shared > 40, "{shared} of {} share", filters.len());
    let mut failures = 0;
    for round in 0..ROUNDS {
        let (now, lines) = lines(round);
        for line in &lines {
            let expected = told(&filters, &mut alone, line, now);
            let found = told(&filters, &mut together, line, now);
            for ((name, _), (expected, found)) in filters.iter().zip(expected.iter().zip(&found)) {
                assert_eq!(found, expected, "{name}: {line}");
            }
            failures += found.iter().filter(|told| told.starts_with("Ok(")).count();
        }
    }
    assert!(failures > 300, "{failures} failures were found");
}
