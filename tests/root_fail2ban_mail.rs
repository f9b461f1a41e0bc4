//! Debian's own Fail2ban configuration, run by weir on the log of a real Postfix and a real
//! Dovecot: whoever guesses passwords, or wants mail relayed, is banned from the ports of that
//! jail alone, and `fail2ban-client status` prints what the real Fail2ban's does of the same log.

mod common;
#[path = "common/mail.rs"]
mod mail;
#[path = "common/nginx.rs"]
mod nginx;
#[path = "common/stock_fail2ban.rs"]
mod stock_fail2ban;

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    os::unix::fs::symlink,
    path::Path,
    process::Command,
};

use common::{ATTACKER, CUSTOMER, HOST, OTHER, SOON, TestNet, WEIR, Weir, addr, skipped, soon};
use mail::{IMAP, MailServers, SMTP, logs_in_by_imap, logs_in_by_smtp};
use weir_testkit::traffic::{self, TcpServer};

/// A port that no jail is about.
const OTHER_PORT: u16 = 8080;
/// Failures that ban, by the stock configuration.
const MAX_RETRY: usize = 5;
/// Clients that want mail relayed.
const SPAMMER: [&str; 2] = ["198.51.100.9", "2001:db8:bad:2::9"];

fn at(who: &str, port: u16) -> SocketAddr {
    SocketAddr::new(addr(HOST[usize::from(who.contains(':'))]), port)
}

#[track_caller]
fn connection(net: &TestNet, from: &str, port: u16) -> TcpStream {
    let opened = traffic::tcp_open(&net.internet, Some(addr(from)), at(from, port), SOON);
    opened.unwrap().0
}

/// Debian's configuration in `own`, for servers that log into `log`.
fn configuration(own: &Path, log: &Path) {
    stock_fail2ban::copy("", own);
    let (dir, log) = (own.display(), log.display());
    let jails = format!(
        "[DEFAULT]\npostfix_log = {log}\ndovecot_log = {log}\n[sshd]\nenabled = false\n\
         [postfix]\nenabled = true\n[postfix-sasl]\nenabled = true\n[dovecot]\nenabled = true\n"
    );
    fs::write(own.join("jail.local"), jails).unwrap();
    let server = format!(
        "[Definition]\nlogtarget = {dir}/fail2ban.log\nsocket = {dir}/sock\npidfile = {dir}/pid\n\
         dbfile = {dir}/db.sqlite3\n"
    );
    fs::write(own.join("fail2ban.local"), server).unwrap();
}

#[test]
fn root_stock_jails_of_real_mail_servers_ban_who_guesses_and_who_relays() {
    if skipped(&[
        "postfix",
        "dovecot",
        "fail2ban-client",
        "fail2ban-server",
        "iptables",
    ]) {
        return;
    }
    let net = TestNet::new();
    let files = tempfile::Builder::new()
        .prefix("weir-test-")
        .tempdir()
        .unwrap();
    let _servers = MailServers::start(&net.host, files.path());
    let _others = [0, 1].map(|family| {
        let to = at(CUSTOMER[family], OTHER_PORT);
        TcpServer::start(&net.host, to, b"").unwrap()
    });
    for who in CUSTOMER {
        net.serves_soon(who, at(who, SMTP));
        net.serves_soon(who, at(who, IMAP));
    }

    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for dir in [&ours, &theirs] {
        configuration(dir.path(), &files.path().join("mail.log"));
    }
    let beside = net.net.namespace("f2b").unwrap();
    let fail2ban = stock_fail2ban::Fail2ban::start(&beside, theirs.path());
    let path = ours.path().display();
    let weir = Weir::start(
        &net.host,
        &format!("interfaces = [\"eth0\"]\n[fail2ban]\npath = \"{path}\"\n"),
    );
    let client = ours.path().join("fail2ban-client");
    symlink(WEIR, &client).unwrap();
    let ask = |command: &[&str]| {
        let mut ours = Command::new(&client);
        ours.arg("-s").arg(weir.path("weir.sock")).args(command);
        let output = net.host.enter(move || ours.output()).unwrap().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    // Each fails as often as the jail allows: `fails` is false once, at most, for the ban
    // may come before the last answer.
    let is_banned = |who: &str, jail: &str, fails: &dyn Fn() -> bool| {
        for _ in 1..MAX_RETRY {
            assert!(fails(), "{who}");
        }
        fails();
        let ban = soon(&format!("the ban of {who} by {jail}"), || {
            let why = weir.why(who);
            let bans = why["bans"].as_array().unwrap();
            bans.iter()
                .find(|ban| ban["producer"] == format!("jail:{jail}"))
                .cloned()
        });
        assert_eq!(ban["action"], "reject", "{ban}");
        let left = ban["remaining_seconds"].as_u64().unwrap();
        // The kernel's clock ends it up to a jiffy later.
        assert!((500..=601).contains(&left), "{ban}");
        ban["scope"].as_str().unwrap().to_owned()
    };
    let is_kept_from = |who: &str, closed: &[u16], open: &[u16]| {
        for port in closed {
            assert!(!net.connects(who, at(who, *port)), "{who}: {port}");
        }
        for port in open {
            net.serves(who, at(who, *port));
        }
    };

    for family in [0, 1] {
        let who = ATTACKER[family];
        let scope = is_banned(who, "dovecot", &|| {
            logs_in_by_imap(connection(&net, who, IMAP), "guess") == Some(false)
        });
        assert_eq!(
            scope,
            "110/tcp,143/tcp,465/tcp,587/tcp,993/tcp,995/tcp,4190/tcp"
        );
        is_kept_from(who, &[IMAP], &[SMTP, OTHER_PORT]);

        let who = OTHER[family];
        let scope = is_banned(who, "postfix-sasl", &|| {
            logs_in_by_smtp(connection(&net, who, SMTP), "guess") == Some(false)
        });
        assert_eq!(
            scope,
            "25/tcp,110/tcp,143/tcp,465/tcp,587/tcp,993/tcp,995/tcp"
        );
        is_kept_from(who, &[SMTP, IMAP], &[OTHER_PORT]);

        let who = SPAMMER[family];
        let scope = is_banned(who, "postfix", &|| {
            let answer = mail::asks_to_relay(connection(&net, who, SMTP));
            answer.is_some_and(|answer| answer.contains("Relay access denied"))
        });
        assert_eq!(scope, "25/tcp,465/tcp,587/tcp");
        is_kept_from(who, &[SMTP], &[IMAP, OTHER_PORT]);

        let who = CUSTOMER[family];
        let right = mail::USER.1;
        let imap = logs_in_by_imap(connection(&net, who, IMAP), right);
        let smtp = logs_in_by_smtp(connection(&net, who, SMTP), right);
        assert_eq!((imap, smtp), (Some(true), Some(true)));
    }
    for jail in ["dovecot", "postfix-sasl", "postfix"] {
        stock_fail2ban::prints_the_same(ask, &fail2ban, jail);
    }
    for who in ATTACKER {
        assert_eq!(ask(&["set", "dovecot", "unbanip", who]), "1\n");
        let taken = logs_in_by_imap(connection(&net, who, IMAP), mail::USER.1);
        assert_eq!(taken, Some(true));
    }
}
