//! A real sshd logs by a real rsyslogd, and real clients see what they should.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

use weir_netlab::{Net, Side, VethOpts, missing, wait_for};
use weir_testkit::sshd::{
    CUSTOMER, CUSTOMER_PASSWORD, Outcome, PROGRAMS, SshHost, SshOpts, Stamp, attempt, login,
};

/// Longer than a machine that is busy with other things takes.
const SOON: Duration = Duration::from_secs(60);

/// The first line of the log with all these words.
fn line_with(log: &Path, words: &[&str]) -> String {
    wait_for(&format!("a line with {words:?}"), SOON, || {
        let text = fs::read_to_string(log).unwrap();
        Ok(text
            .lines()
            .find(|line| words.iter().all(|w| line.contains(w)))
            .map(String::from))
    })
    .unwrap_or_else(|e| panic!("{e}; the log is:\n{}", fs::read_to_string(log).unwrap()))
}

/// `Nov 21 04:33:07`: what each byte may be.
fn is_traditional(stamp: &str) -> bool {
    stamp.len() == 15
        && stamp
            .bytes()
            .zip("Aaa D9 99:99:99".bytes())
            .all(|(byte, kind)| match kind {
                b'A' => byte.is_ascii_uppercase(),
                b'a' => byte.is_ascii_lowercase(),
                b'D' => byte == b' ' || byte.is_ascii_digit(),
                b'9' => byte.is_ascii_digit(),
                other => byte == other,
            })
}

#[test]
fn root_sshd_logs_a_failed_password() {
    if let Some(why) = missing(&PROGRAMS) {
        println!("skipped: {why}");
        return;
    }
    for stamp in [Stamp::Traditional, Stamp::Iso] {
        let net = Net::new().unwrap();
        let host = net.namespace("host").unwrap();
        let internet = net.namespace("internet").unwrap();
        let opts = VethOpts::new(
            &["192.0.2.1/24", "2001:db8::1/64"],
            &["192.0.2.2/24", "2001:db8::2/64"],
        );
        let mut veth = net
            .veth(&host, "eth0", &internet, "eth0", opts.unwrap())
            .unwrap();
        for prefix in ["198.51.100.0/24", "2001:db8:bad::/48"] {
            veth.add_sources(Side::B, prefix).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let mut opts = SshOpts::new(dir.path().join("auth.log"));
        opts.stamp = stamp;
        let sshd = SshHost::start(&host, &opts).unwrap();

        for (to, source) in [
            ("192.0.2.1", "198.51.100.7"),
            ("2001:db8::1", "2001:db8:bad::7"),
        ] {
            let to = SocketAddr::new(to.parse().unwrap(), sshd.port());
            let from: IpAddr = source.parse().unwrap();
            let guess =
                |user, password| attempt(&internet, Some(from), to, user, password, SOON).unwrap();
            assert_eq!(guess("root", "guess"), Outcome::Denied);
            let line = line_with(sshd.log(), &["Failed password for root from", source]);
            let (time, rest) = match stamp {
                Stamp::Traditional => line.split_at(15),
                Stamp::Iso => line
                    .split_once(' ')
                    .map(|(time, _)| line.split_at(time.len()))
                    .unwrap(),
            };
            match stamp {
                Stamp::Traditional => assert!(is_traditional(time), "{line}"),
                Stamp::Iso => assert!(time.starts_with("20") && time.contains('T'), "{line}"),
            }
            assert!(rest.starts_with(" host sshd["), "{line}");
            assert!(
                rest.contains(&format!("]: Failed password for root from {source} port ")),
                "{line}"
            );
            println!("{line}");

            assert_eq!(guess("no such user", "x"), Outcome::Denied);
            line_with(
                sshd.log(),
                &["Failed password for invalid user no such user from", source],
            );
            assert_eq!(guess(CUSTOMER, CUSTOMER_PASSWORD), Outcome::LoggedIn);
            line_with(sshd.log(), &["Accepted password for customer from", source]);
            let key = sshd.key();
            let seen = login(&internet, None, to, CUSTOMER, &key, SOON).unwrap();
            assert_eq!(seen, Outcome::LoggedIn);
            line_with(sshd.log(), &["Accepted publickey for customer"]);
            let closed = SocketAddr::new(to.ip(), 23);
            let seen = login(&internet, None, closed, CUSTOMER, &key, SOON).unwrap();
            assert_eq!(seen, Outcome::Refused);
        }
        let nobody = "192.0.2.99:22".parse().unwrap();
        let seen = attempt(&internet, None, nobody, "root", "x", Duration::from_secs(1)).unwrap();
        assert_eq!(seen, Outcome::TimedOut);

        fs::rename(sshd.log(), dir.path().join("auth.log.1")).unwrap();
        sshd.reopen_log().unwrap();
        wait_for("the log to be made again", SOON, || {
            let to = SocketAddr::new("192.0.2.1".parse().unwrap(), sshd.port());
            attempt(&internet, None, to, "root", "again", SOON)?;
            Ok(sshd.log().exists().then_some(()))
        })
        .unwrap();

        let pid = sshd.sshd_pid();
        drop(sshd);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        wait_for("the host's processes to end", SOON, || {
            Ok(host.pids().is_empty().then_some(()))
        })
        .unwrap();
    }
    assert!(
        !fs::read_to_string("/etc/passwd")
            .unwrap()
            .contains("customer:x:60990")
    );
    assert!(!Path::new("/run/authorized_keys").exists());
}
