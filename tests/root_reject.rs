//! Bans that reject, seen by real clients: refused at once where a ban that
//! drops leaves them waiting, IPv4 and IPv6, on every hook that can answer; and
//! the same after a restart. (Which packet is answered how:
//! crates/bpf/tests/root_reject.rs.)

mod common;

use std::{
    io::{ErrorKind, Read, Write},
    net::SocketAddr,
    time::Duration,
};

use common::{ATTACKER, CUSTOMER, HOST, OTHER, SILENCE, SOON, TestNet, Weir, addr, soon};
use weir_bpf::attachment::Link;
use weir_netlab::ErrorKind as Kind;
use weir_testkit::traffic::{self, TcpServer};

const BACKENDS: [&str; 5] = ["tcx", "xdp", "xdp-generic", "cls_bpf", "nft"];
/// One of weir's own programs and the one that is nftables' doing.
const KINDS: [&str; 2] = ["tcx", "nft"];
const PORT: u16 = 2022;
/// How long "at once" may take on a busy machine; a SYN is sent again after 1 s.
const AT_ONCE: Duration = Duration::from_millis(900);
const JAIL: &str = "[jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 3\nports = [\"2022/tcp\"]\naction = \"reject\"\n";

struct RejectHost {
    weir: Weir,
    net: TestNet,
    _servers: Vec<TcpServer>,
    _peer: Option<Link>,
}

impl RejectHost {
    fn new(backend: &str) -> Self {
        let net = TestNet::new();
        let peer = net.takes_answers_of(backend);
        let servers = HOST
            .map(|host| {
                let at = SocketAddr::new(addr(host), PORT);
                TcpServer::start(&net.host, at, b"hello\n").unwrap()
            })
            .into();
        let config = format!("interfaces = [\"eth0\"]\nbackend = \"{backend}\"\n{JAIL}");
        let weir = Weir::start(&net.host, &config);
        assert_eq!(weir.attachment("eth0").0, backend);
        Self {
            weir,
            net,
            _servers: servers,
            _peer: peer,
        }
    }

    fn served(&self, family: usize) -> SocketAddr {
        SocketAddr::new(addr(HOST[family]), PORT)
    }

    fn connect(&self, who: &str, family: usize, time: Duration) -> Option<Kind> {
        let from = Some(addr(who));
        traffic::tcp_connect(&self.net.internet, from, self.served(family), time)
            .err()
            .map(|error| error.kind())
    }

    #[track_caller]
    fn is_refused(&self, who: &str, family: usize) {
        let said = self.connect(who, family, AT_ONCE);
        assert_eq!(said, Some(Kind::Refused), "{who}: {}", self.weir.why(who));
    }

    #[track_caller]
    fn is_dropped(&self, who: &str, family: usize) {
        let said = self.connect(who, family, SILENCE);
        assert_eq!(said, Some(Kind::TimedOut), "{who}");
    }

    fn ban(&self, who: &str, more: &[&str]) {
        self.weir.ask(&[&["ban", who], more].concat()).done();
    }
}

#[test]
fn root_reject_refuses_at_once() {
    for backend in BACKENDS {
        let place = RejectHost::new(backend);
        for family in [0, 1] {
            let (who, other) = (ATTACKER[family], OTHER[family]);
            place.net.serves(who, place.served(family));
            // One that is there already ends, too.
            let (mut open, _) = traffic::tcp_open(
                &place.net.internet,
                Some(addr(who)),
                place.served(family),
                SOON,
            )
            .unwrap();
            open.read_exact(&mut [0; 6]).unwrap();
            place.ban(who, &["--reject"]);
            place.ban(other, &[]);
            open.set_read_timeout(Some(AT_ONCE)).unwrap();
            open.write_all(b"still there?").unwrap();
            let reset = open.read(&mut [0; 8]).unwrap_err().kind();
            assert_eq!(reset, ErrorKind::ConnectionReset, "{backend}, {who}");

            place.is_refused(who, family);
            place.is_dropped(other, family);
            place.net.serves(CUSTOMER[family], place.served(family));

            // What Linux makes of "administratively prohibited".
            let udp = traffic::udp_request(
                &place.net.internet,
                Some(addr(who)),
                SocketAddr::new(addr(HOST[family]), 53),
                &[7; 100],
                AT_ONCE,
            );
            let said = udp.unwrap_err().to_string();
            let word = ["No route to host", "Permission denied"][family];
            assert!(said.contains(word), "{backend}: {said}");
            let silent = traffic::udp_request(
                &place.net.internet,
                Some(addr(other)),
                SocketAddr::new(addr(HOST[family]), 53),
                &[7; 100],
                SILENCE,
            );
            assert_eq!(silent.unwrap_err().kind(), Kind::TimedOut);

            let why = place.weir.why(who);
            assert_eq!(
                (&why["verdict"], &why["dropped"]),
                (&"rejected".into(), &true.into())
            );
            let text = place.weir.ask(&["why", who]).done().out;
            assert!(text.contains("is rejected on all ports"), "{text}");
            let bans = place.weir.ask(&["bans"]).done().out;
            assert!(bans.contains("all ports (reject)"), "{bans}");
        }
        assert!(place.weir.packets("rejected") >= 6);
    }
}

#[test]
fn root_reject_is_the_jails_action() {
    KINDS.into_iter().for_each(is_the_jails_action);
}

fn is_the_jails_action(backend: &str) {
    let place = RejectHost::new(backend);
    for family in [0, 1] {
        let who = ATTACKER[family];
        place.weir.log_failures([addr(who)], 3);
        soon(&format!("{who} to be banned"), || {
            (place.weir.why(who)["dropped"] == true).then_some(())
        });
        let ban = &place.weir.why(who)["bans"][0];
        assert_eq!(
            (&ban["action"], &ban["scope"]),
            (&"reject".into(), &"2022/tcp".into())
        );
        place.is_refused(who, family);
    }
}

#[test]
fn root_reject_and_drop_replace_each_other() {
    KINDS.into_iter().for_each(replace_each_other);
}

fn replace_each_other(backend: &str) {
    let place = RejectHost::new(backend);
    for family in [0, 1] {
        let who = ATTACKER[family];
        for _ in 0..2 {
            place.ban(who, &["--reject"]);
            place.is_refused(who, family);
            place.ban(who, &[]);
            place.is_dropped(who, family);
            assert_eq!(place.weir.banned().len(), 1);
        }
        // A wide one, too.
        let wide = ["198.51.100.0/23", "2001:db8:bac::/47"][family];
        place.weir.ask(&["unban", who]).done();
        for _ in 0..2 {
            place.ban(wide, &["--reject"]);
            place.is_refused(who, family);
            place.ban(wide, &[]);
            place.is_dropped(who, family);
            assert_eq!(place.weir.banned().len(), 1);
        }
        place.weir.ask(&["unban", wide]).done();
        place.net.serves(who, place.served(family));
    }
}

#[test]
fn root_reject_outlives_the_daemon() {
    KINDS.into_iter().for_each(outlives_the_daemon);
}

fn outlives_the_daemon(backend: &str) {
    let mut place = RejectHost::new(backend);
    let refused = |place: &RejectHost| {
        for family in [0, 1] {
            place.is_refused(ATTACKER[family], family);
            place.is_dropped(OTHER[family], family);
        }
    };
    for family in [0, 1] {
        place.ban(ATTACKER[family], &["--reject"]);
        place.ban(OTHER[family], &[]);
    }
    refused(&place);
    place.weir.kill();
    for family in [0, 1] {
        let said = place.connect(ATTACKER[family], family, AT_ONCE);
        assert_eq!(said, Some(Kind::Refused), "no daemon");
    }
    // From the pinned tables; then, without them, from the database.
    place.weir.run();
    refused(&place);
    place.weir.stop();
    place.weir.detach().done();
    place.net.serves(ATTACKER[0], place.served(0));
    place.weir.run();
    refused(&place);
    let bans = place.weir.json(&["bans"]);
    let mut actions: Vec<_> = bans["bans"].as_array().unwrap().iter().collect();
    actions.retain(|ban| ban["action"] == "reject");
    assert_eq!(actions.len(), 2, "{bans}");
}
