//! Shared-memory rings with a real daemon that enforces in the kernel: what
//! servers write is counted and banned, wherever it is spread, whatever
//! becomes of a segment or of the daemon.

mod common;

use std::{
    io::Write,
    net::SocketAddr,
    path::PathBuf,
    process::{Command, Stdio},
};

use common::{ATTACKER, CUSTOMER, HOST, OTHER, Site, WEIR, Weir, addr, skipped, soon};
use tempfile::TempDir;
use weir_lab::traffic::TcpServer;
use weir_ring::{Options, Writer};

const PORT: u16 = 8080;

/// A ring's directory in shared memory, which goes with this value.
struct Ring(TempDir);

impl Ring {
    fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("weir-test-")
            .tempdir_in("/dev/shm");
        Self(dir.unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("shop")
    }

    /// A configuration that reads it.
    fn config(&self, more: &str) -> String {
        format!(
            "interfaces = [\"eth0\"]\n\
             [filter.shop]\npatterns = [\"denied <addr> <text>\"]\n\
             [jail.shop]\nsource = \"ring\"\nring = \"{}\"\nmax_retry = 3\n{more}",
            self.path().display()
        )
    }

    fn writer(&self, name: &str) -> Writer {
        Writer::create(self.path().join(name), &Options::new()).unwrap()
    }
}

fn line(who: &str) -> String {
    format!("denied {who} /wp-login.php")
}

fn at(family: usize) -> SocketAddr {
    SocketAddr::new(addr(HOST[family]), PORT)
}

fn server(site: &Site) -> TcpServer {
    TcpServer::start(&site.host, SocketAddr::new(addr("::"), PORT), b"").unwrap()
}

#[track_caller]
fn dropped_soon(site: &Site, who: &str) {
    let family = usize::from(who.contains(':'));
    soon(&format!("{who} to be dropped"), || {
        (!site.connects(who, at(family))).then_some(())
    });
}

#[test]
fn root_lines_piped_into_a_ring_ban_their_senders() {
    if skipped(&[]) {
        return;
    }
    let site = Site::new();
    let _server = server(&site);
    let ring = Ring::new();
    let weir = Weir::start(&site.host, &ring.config(""));
    let mut pipe = Command::new(WEIR)
        .args(["ring", "pipe"])
        .arg(ring.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = pipe.stdin.take().unwrap();
    for who in ATTACKER {
        site.serves(who, at(usize::from(who.contains(':'))));
        for _ in 0..3 {
            writeln!(stdin, "{}", line(who)).unwrap();
        }
        dropped_soon(&site, who);
    }
    // Twice is not enough.
    writeln!(stdin, "{0}\n{0}", line(OTHER[0])).unwrap();
    soon("two failures", || {
        (weir.why(OTHER[0])["tracked"][0]["findings"] == 2).then_some(())
    });
    drop(stdin);
    assert!(pipe.wait().unwrap().success());
    for (family, who) in CUSTOMER.into_iter().enumerate() {
        site.serves(who, at(family));
    }
    site.serves(OTHER[0], at(0));
    let status = soon("the counters", || {
        let status = weir.json(&["status"]);
        (status["rings"][0]["records"] == 8).then_some(status)
    });
    let seen = &status["rings"][0];
    assert_eq!((&seen["segments"], &seen["lost"]), (&1.into(), &0.into()));
    assert_eq!(
        status["jails"][0]["source"],
        format!("ring {}", ring.path().display())
    );
}

#[test]
fn root_an_attacker_spread_over_segments_counts_once() {
    if skipped(&[]) {
        return;
    }
    let site = Site::new();
    let _server = server(&site);
    let ring = Ring::new();
    let weir = Weir::start(&site.host, &ring.config("workers = 4\n"));
    let mut writers: Vec<_> = (0..4).map(|i| ring.writer(&i.to_string())).collect();
    for who in ATTACKER {
        // One line each by three threads; the fourth asks too late.
        std::thread::scope(|scope| {
            for writer in &mut writers[..3] {
                scope.spawn(move || writer.write(line(who).as_bytes()).unwrap());
            }
        });
        dropped_soon(&site, who);
        writers[3].write(line(who).as_bytes()).unwrap();
    }
    soon("all records to be read", || {
        (weir.json(&["status"])["rings"][0]["records"] == 8).then_some(())
    });
    // An IPv6 attacker is its /64.
    let mut banned = weir.banned();
    banned.sort();
    assert_eq!(banned, [ATTACKER[0], "2001:db8:bad::/64"]);
    site.serves(CUSTOMER[0], at(0));
}
