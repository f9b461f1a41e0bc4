//! Debian's own Fail2ban configuration, run by weir on the logs of a real nginx and a real
//! vsftpd: whoever guesses passwords is banned from that server alone and let in again in
//! time, whoever is banned again and again is banned by `recidive` from all of the host,
//! and `fail2ban-client status` prints what the real Fail2ban's does of the same logs.

mod common;
#[path = "common/nginx.rs"]
mod nginx;
#[path = "common/stock_fail2ban.rs"]
mod stock_fail2ban;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::SocketAddr,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use common::{ATTACKER, CUSTOMER, HOST, SOON, TestNet, WEIR, Weir, addr, skipped, soon};
use nginx::{Nginx, base64};
use weir_netlab::{Child, Namespace};
use weir_testkit::traffic::{self, TcpServer};

const WEB: u16 = 80;
const FTP: u16 = 21;
/// A port that no jail but `recidive` is about.
const OTHER_PORT: u16 = 8080;
/// Failures that ban, by the stock configuration; and bans, for `recidive`.
const MAX_RETRY: usize = 5;
/// Bans of the web are this short, so that their ends can be waited for.
const WEB_BAN_SECONDS: u64 = 12;

fn at(who: &str, port: u16) -> SocketAddr {
    SocketAddr::new(addr(HOST[usize::from(who.contains(':'))]), port)
}

/// Asks nginx for a page with a password; the status of the answer. `None`: there was none,
/// because the ban came before it.
#[track_caller]
fn get(net: &TestNet, from: &str, password: &str) -> Option<u16> {
    let opened = traffic::tcp_open(&net.internet, Some(addr(from)), at(from, WEB), SOON);
    let (mut stream, _) = opened.unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let basic = base64(&format!("anna:{password}"));
    let request = format!(
        "GET / HTTP/1.1\r\nHost: shop\r\nAuthorization: Basic {basic}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer);
    answer.strip_prefix("HTTP/1.1 ")?[..3].parse().ok()
}

/// Fails to log in at the FTP server.
#[track_caller]
fn fails_at_ftp(net: &TestNet, from: &str) {
    let opened = traffic::tcp_open(&net.internet, Some(addr(from)), at(from, FTP), SOON);
    let (mut stream, _) = opened.unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    for (command, code) in [
        ("", "220"),
        ("USER anna\r\n", "331"),
        ("PASS guess\r\n", "530"),
    ] {
        stream.write_all(command.as_bytes()).unwrap();
        let mut answer = String::new();
        let answered = answers.read_line(&mut answer);
        // The ban may come before the last answer.
        let is_banned = code == "530" && answered.is_err();
        assert!(
            is_banned || answer.starts_with(code),
            "{command:?}: {answer:?}"
        );
    }
}

/// A real vsftpd, in the foreground.
struct Vsftpd(Child);

impl Vsftpd {
    fn start(host: &Namespace, dir: &Path) -> Self {
        let empty = dir.join("empty");
        fs::create_dir(&empty).unwrap();
        let conf = dir.join("vsftpd.conf");
        let text = format!(
            "listen=NO\nlisten_ipv6=YES\nlisten_port={FTP}\nbackground=NO\nanonymous_enable=NO\n\
             local_enable=YES\nuse_localtime=YES\nxferlog_enable=YES\nvsftpd_log_file={dir}/vsftpd.log\n\
             delay_failed_login=0\nsecure_chroot_dir={empty}\npam_service_name=vsftpd\nssl_enable=NO\n",
            dir = dir.display(),
            empty = empty.display()
        );
        fs::write(&conf, text).unwrap();
        let mut command = Command::new("/usr/sbin/vsftpd");
        command
            .arg(&conf)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Self(host.spawn(command).unwrap())
    }
}

impl Drop for Vsftpd {
    fn drop(&mut self) {
        let _ = self.0.signal(9);
        let _ = self.0.wait(SOON);
    }
}

/// Debian's configuration in `own`, for servers with their logs in `logs`.
fn configuration(own: &Path, logs: &Path) {
    stock_fail2ban::copy("", own);
    let (dir, logs) = (own.display(), logs.display());
    let jails = format!(
        "[DEFAULT]\nnginx_error_log = {logs}/error.log\nvsftpd_log = {logs}/vsftpd.log\n\
         [sshd]\nenabled = false\n\
         [nginx-http-auth]\nenabled = true\nbantime = {WEB_BAN_SECONDS}\n\
         [vsftpd]\nenabled = true\n\
         [recidive]\nenabled = true\nlogpath = {dir}/fail2ban.log\n"
    );
    fs::write(own.join("jail.local"), jails).unwrap();
    let server = format!(
        "[Definition]\nlogtarget = {dir}/fail2ban.log\nsocket = {dir}/sock\npidfile = {dir}/pid\n\
         dbfile = {dir}/db.sqlite3\n"
    );
    fs::write(own.join("fail2ban.local"), server).unwrap();
    fs::write(own.join("fail2ban.log"), "").unwrap();
}

#[test]
fn root_stock_jails_of_real_servers_ban_who_guesses_and_who_comes_again() {
    if skipped(&[
        "nginx",
        "vsftpd",
        "fail2ban-client",
        "fail2ban-server",
        "iptables",
    ]) {
        return;
    }
    let net = TestNet::new();
    let logs = tempfile::Builder::new()
        .prefix("weir-test-")
        .tempdir()
        .unwrap();
    fs::write(logs.path().join("users"), "anna:{PLAIN}right\n").unwrap();
    let http = format!(
        "server {{
             listen {WEB}; listen [::]:{WEB}; access_log off;
             location / {{ auth_basic shop; auth_basic_user_file {{dir}}/users; empty_gif; }}
         }}"
    );
    let _nginx = Nginx::start(&net.host, logs.path(), &http, || {
        net.connects(CUSTOMER[0], at(CUSTOMER[0], WEB))
    });
    fs::write(logs.path().join("vsftpd.log"), "").unwrap();
    let _vsftpd = Vsftpd::start(&net.host, logs.path());
    let _others = [0, 1].map(|family| {
        let to = at(CUSTOMER[family], OTHER_PORT);
        TcpServer::start(&net.host, to, b"").unwrap()
    });
    for who in CUSTOMER {
        net.serves_soon(who, at(who, FTP));
    }

    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for dir in [&ours, &theirs] {
        configuration(dir.path(), logs.path());
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
    let prints_the_same = |jail: &str| stock_fail2ban::prints_the_same(ask, &fail2ban, jail);
    let bans = |who: &str, jail: &str| {
        let why = weir.why(who);
        let producer = format!("jail:{jail}");
        let bans = why["bans"].as_array().unwrap().clone();
        bans.into_iter().find(|ban| ban["producer"] == producer)
    };
    let guesses_at_the_web = |who: &str| {
        for _ in 1..MAX_RETRY {
            assert_eq!(get(&net, who, "guess"), Some(401));
        }
        assert_ne!(get(&net, who, "guess"), Some(200));
        soon("the ban from the web", || bans(who, "nginx-http-auth"))
    };

    for family in [0, 1] {
        let who = ATTACKER[family];
        let ban = guesses_at_the_web(who);
        assert_eq!(
            (&ban["scope"], &ban["action"]),
            (&"80/tcp,443/tcp".into(), &"reject".into())
        );
        assert!(!net.connects(who, at(who, WEB)));
        for port in [FTP, OTHER_PORT] {
            net.serves(who, at(who, port));
        }
        assert_eq!(get(&net, CUSTOMER[family], "right"), Some(200));
        net.serves_soon(who, at(who, WEB));
    }
    prints_the_same("nginx-http-auth");

    // Its failures cost PAM two seconds each.
    thread::scope(|scope| {
        for who in ATTACKER {
            for _ in 0..MAX_RETRY {
                let net = &net;
                scope.spawn(move || fails_at_ftp(net, who));
            }
        }
    });
    for family in [0, 1] {
        let who = ATTACKER[family];
        let ban = soon("the ban from FTP", || bans(who, "vsftpd"));
        assert_eq!(
            (&ban["scope"], &ban["action"]),
            (&"20-21/tcp,989-990/tcp".into(), &"reject".into())
        );
        let left = ban["remaining_seconds"].as_u64().unwrap();
        // The kernel's clock ends it up to a jiffy later.
        assert!((500..=601).contains(&left), "{ban}");
        assert!(!net.connects(who, at(who, FTP)));
        assert_eq!(get(&net, who, "right"), Some(200));
        net.serves(CUSTOMER[family], at(who, FTP));
    }
    prints_the_same("vsftpd");

    // Two bans each so far, and three more make five.
    for ban in 3..=MAX_RETRY {
        for who in ATTACKER {
            assert!(bans(who, "recidive").is_none(), "at ban {ban}");
            net.serves_soon(who, at(who, WEB));
            guesses_at_the_web(who);
        }
    }
    for family in [0, 1] {
        let who = ATTACKER[family];
        let ban = soon("the ban by recidive", || bans(who, "recidive"));
        assert_eq!(ban["scope"], "all ports", "{ban}");
        let left = ban["remaining_seconds"].as_u64().unwrap();
        assert!((604_700..=604_800).contains(&left), "{ban}");
        for port in [WEB, FTP, OTHER_PORT] {
            assert!(!net.connects(who, at(who, port)), "{port}");
            net.serves(CUSTOMER[family], at(who, port));
        }
    }
    // Not compared: each program counts a ban only where its own one before has ended.
    for who in ATTACKER {
        for jail in ["recidive", "vsftpd"] {
            assert_eq!(ask(&["set", jail, "unbanip", who]), "1\n");
        }
        for port in [WEB, FTP, OTHER_PORT] {
            net.serves_soon(who, at(who, port));
        }
    }
}
