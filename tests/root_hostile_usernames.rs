//! Text written to get somebody else banned, or to harm who looks at it: user
//! names typed into real sshd by real clients, greetings and farewells that no
//! client sends. Whatever it says, only the address that it came from is found,
//! and a terminal sees no control character of it.

mod common;
#[path = "common/journal.rs"]
mod journal;
#[path = "common/ssh.rs"]
mod ssh;

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::ffi::OsStrExt,
};

use common::{ATTACKER, CUSTOMER, HOST, OTHER, SOON, TestNet, Weir, addr, skipped, soon};
use weir_testkit::{
    sshd::{self, Outcome, PROGRAMS, SshHost, SshOpts, Stamp},
    traffic,
};

/// The addresses that hostile texts accuse.
const VICTIM: [&str; 2] = ["203.0.113.9", "2001:db8:c::9"];

/// Real clients: Dropbear's for names with a line break.
const CLIENTS: [&str; 5] = {
    let [sshd, ssh, keygen, rsyslogd] = PROGRAMS;
    [sshd, ssh, keygen, rsyslogd, "dbclient"]
};

/// Jails with both filters; nobody is banned, so that every counted address can be seen.
const CONFIG: &str = "interfaces = [\"eth0\"]\n\
    [jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 100\nipv6_prefix = 128\n\
    [jail.sshd-aggressive]\npaths = [\"{log}\"]\nmax_retry = 100\nipv6_prefix = 128\n";

/// sshd logs at most this much of a message: behind it, the true address.
const SSHD_CUTS_AT: usize = 500;

/// A name with which sshd's message, which begins with `head`, is cut where
/// the lie ends. Before the login, sshd writes a control character as five
/// ("\\001"), so that the lie fits into the part of a name that it logs.
fn cut_behind(head: &str, lie: &str) -> Vec<u8> {
    let room = SSHD_CUTS_AT - head.len() - lie.len();
    let mut name = vec![1; room / 5];
    name.extend(vec![b'x'; room % 5]);
    name.extend(lie.bytes());
    name
}

/// No IPv6 address can be in a name: sshd takes what follows a colon for the
/// style of the login.
fn names() -> Vec<Vec<u8>> {
    let victim = VICTIM[0];
    let lie = format!(" from {victim} port 22 ssh2");
    let failed = format!("Failed password for root from {victim} port 22 ssh2");
    let mut names: Vec<Vec<u8>> = [
        format!("root{lie}"),
        format!(" {lie} "),
        format!("x]: {failed}"),
        format!("invalid user y{lie}: RSA SHA256:x"),
        format!("y from {victim} not allowed because shell /bin/no"),
        format!("y {victim} port 22 [preauth]"),
        format!("y {victim} port 22: Too many authentication failures [preauth]"),
        // Line breaks, as the end of one message and the begin of another.
        format!("a\nNov 21 10:00:00 host sshd[7]: {failed}"),
        format!("a\r\nNov 21 10:00:00 host sshd[7]: {failed}\r\n"),
        format!("a\n2026-11-21T10:00:00.000000+00:00 host sshd[7]: {failed}"),
        format!("a#012Nov 21 10:00:00 host sshd[7]: {failed}"),
        format!("a\\012{failed}"),
        format!("a\u{2028}{failed}"),
        // What a terminal or a format would take seriously.
        format!("\u{1b}[2K\u{1b}[1A{lie}"),
        format!("%s%n%x{lie}"),
        format!("\u{202e}{lie}"),
        // Longer than what sshd logs of a name, with the lie before, across
        // and behind the cut.
        format!("{lie}{}", "a".repeat(600)),
        format!("{}{lie}", "a".repeat(100 - lie.len())),
        format!("{}{lie}", "a".repeat(90)),
        format!("{}{lie}", "a".repeat(400)),
        format!("{}{lie}", "\u{1}".repeat(70)),
    ]
    .map(String::into_bytes)
    .into();
    names.push([b"\xff\xfe\xc3\x28\x80", lie.as_bytes(), b"\xf0\x9f"].concat());
    names.push([b"\xc0\xaf".repeat(40).as_slice(), lie.as_bytes()].concat());
    // The two that name no more than an address and a port behind the user.
    for head in ["closed by", "reset by"] {
        for extra in ["", " [preauth]"] {
            let head = format!("Connection {head} invalid user ");
            let lie = format!(" {victim} port 22{extra}");
            names.push(cut_behind(&head, &lie));
        }
    }
    let lie = format!(" {victim} port 22: Too many authentication failures");
    names.push(cut_behind("Disconnecting invalid user ", &lie));
    names.push(cut_behind(
        "error: maximum authentication attempts exceeded for invalid user ",
        &format!(" from {victim} port 22 ssh2"),
    ));
    names
}

/// What a client says before it has a name, which may hold a colon.
fn greetings(victim: &str) -> Vec<Vec<u8>> {
    let failed = format!("Failed password for root from {victim} port 22 ssh2");
    let mut greetings: Vec<Vec<u8>> = [
        failed.clone(),
        format!("x' from {victim} port 22"),
        format!("x\" from {victim} port 22: invalid format"),
        format!("\u{1b}[2K{failed}"),
        format!("SSH-1.0-x from {victim} port 22"),
        format!("SSH-2.0-x from {victim} port 22: {failed}\r\nno packet"),
        format!("GET / HTTP/1.1\r\nhost: {failed}"),
    ]
    .map(|text| [text.as_bytes(), b"\r\n"].concat())
    .into();
    for text in [
        format!("bye from {victim} port 22 [preauth]"),
        format!("x [preauth]\nNov 21 10:00:00 host sshd[7]: {failed}"),
        format!("11: {failed}"),
    ] {
        greetings.push([b"SSH-2.0-x\r\n".as_slice(), &farewell(&text)].concat());
    }
    greetings
}

/// SSH_MSG_DISCONNECT, in clear as before the exchange of keys (RFC 4253).
fn farewell(text: &str) -> Vec<u8> {
    let mut payload = vec![1];
    payload.extend(11_u32.to_be_bytes());
    payload.extend((text.len() as u32).to_be_bytes());
    payload.extend(text.bytes());
    payload.extend(0_u32.to_be_bytes());
    let padding = 4 + (8 - (payload.len() + 5 + 4) % 8) % 8;
    let mut packet = ((payload.len() + padding + 1) as u32)
        .to_be_bytes()
        .to_vec();
    packet.push(padding as u8);
    packet.extend(payload);
    packet.extend(vec![0; padding]);
    packet
}

/// Says it, and listens until sshd hangs up.
fn greet(net: &TestNet, from: &str, to: SocketAddr, greeting: &[u8]) {
    let (mut stream, _) = traffic::tcp_open(&net.internet, Some(addr(from)), to, SOON).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    // It may hang up before it has heard all.
    let _ = stream.write_all(greeting);
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn root_no_text_accuses_anybody_else() {
    if skipped(&CLIENTS) {
        return;
    }
    for (stamp, tries) in [(Stamp::Traditional, 1), (Stamp::Iso, 6)] {
        let net = TestNet::new();
        let mut weir = Weir::new(&net.host, CONFIG);
        let mut opts = SshOpts::new(weir.log());
        opts.stamp = stamp;
        // With one try, each ends in "Too many authentication failures".
        opts.sshd_config = format!("MaxAuthTries {tries}\n");
        let ssh = SshHost::start(&net.host, &opts).unwrap();
        weir.run();
        let guess = |family: usize, from: &str, user: &OsStr| {
            let to = SocketAddr::new(addr(HOST[family]), ssh.port());
            let from = Some(addr(from));
            sshd::attempt(&net.internet, from, to, user, "guess", SOON).unwrap()
        };
        // The longest an address can be makes the message the longest.
        let attackers = [ATTACKER[0], "2001:db8:bad:1234:5678:9abc:def0:1234"];
        let mut typed = 0;
        for family in [0, 1] {
            for name in names() {
                let name = OsString::from(OsStr::from_bytes(&name));
                let seen = guess(family, attackers[family], &name);
                assert_ne!(seen, Outcome::LoggedIn, "{name:?}");
                typed += u64::from(matches!(seen, Outcome::Denied) || tries == 1);
            }
            for greeting in VICTIM.into_iter().flat_map(greetings) {
                let to = SocketAddr::new(addr(HOST[family]), ssh.port());
                greet(&net, attackers[family], to, &greeting);
            }
        }
        // Read in order: once this one has counted, all of them have.
        for who in OTHER {
            guess(usize::from(who.contains(':')), who, OsStr::new("root"));
            soon("the last failure to count", || {
                let tracked = weir.why(who)["tracked"].as_array().unwrap().len();
                (tracked == 2).then_some(())
            });
        }
        let log = String::from_utf8_lossy(&fs::read(weir.log()).unwrap()).into_owned();
        for victim in VICTIM {
            assert!(log.contains(victim), "{victim} was not logged");
            let why = weir.why(victim);
            assert_eq!(why["tracked"].as_array().unwrap().len(), 0, "{why}");
        }
        for jail in ["sshd", "sshd-aggressive"] {
            let status = weir.json(&["status", jail]);
            // Two attackers and the two who came last; nobody else.
            assert_eq!(status["tracked"], 4, "{status}\n{log}");
            assert!(status["findings"].as_u64() > Some(typed / 2), "{status}");
        }
        for who in attackers {
            assert_eq!(weir.why(who)["tracked"].as_array().unwrap().len(), 2);
        }
        assert!(weir.banned().is_empty());
    }
}

/// What a client can say in a message of the protocol that sshd logs, from its
/// sources: testdata/sshd/client_text.txt. `lie` and what pads it may hold
/// colons, so both families are accused.
fn dialogues(lie: &[u8]) -> Vec<(&'static str, Vec<Vec<u8>>)> {
    const CONNECTION: &[u8] = b"ssh-connection";
    let none = |user: &[u8]| ssh::userauth(user, CONNECTION, b"none", b"");
    let service = || ssh::message(ssh::SERVICE_REQUEST, &[lie]);
    let key = |blob: &[u8], algorithm: &[u8]| ssh::public_key(algorithm, blob);
    let publickey = |user: &[u8], rest: &[u8]| ssh::userauth(user, CONNECTION, b"publickey", rest);
    let certificate = key(&ssh::certificate(lie), b"ssh-ed25519-cert-v01@openssh.com");
    let host = [
        ssh::string(b"ssh-ed25519"),
        ssh::string(&ssh::key_blob()),
        ssh::string(lie),
        ssh::string(lie),
        ssh::string(b"junk"),
    ]
    .concat();
    let debug = [&[ssh::DEBUG, 1][..], &ssh::string(lie), &ssh::string(b"")].concat();
    let guess = [&[0][..], &ssh::string(b"guess")].concat();
    let root_guess = ssh::userauth(b"root", CONNECTION, b"password", &guess);
    let with_method = |method: &[u8]| ssh::userauth(b"root", CONNECTION, method, b"");
    vec![
        ("a service", vec![service()]),
        ("a service behind root", vec![none(b"root"), service()]),
        ("a service behind nobody", vec![none(b"x"), service()]),
        ("a service behind the lie", vec![none(lie), service()]),
        (
            "a login for a service",
            vec![
                ssh::userauth(b"root", lie, b"none", b""),
                ssh::userauth(b"root", CONNECTION, b"none", b""),
            ],
        ),
        (
            "another service",
            vec![none(b"root"), ssh::userauth(b"root", lie, b"none", b"")],
        ),
        ("another name", vec![none(b"root"), none(lie)]),
        ("another name behind nobody", vec![none(b"x"), none(lie)]),
        (
            "another name behind the lie",
            vec![none(lie), none(b"root")],
        ),
        ("a method", vec![with_method(lie)]),
        ("an algorithm", vec![publickey(b"root", &key(b"junk", lie))]),
        ("a key", vec![publickey(b"x", &key(lie, b"ssh-ed25519"))]),
        ("a certificate", vec![publickey(b"x", &certificate)]),
        // Of a key that is refused sshd says something from the third failure on.
        (
            "a certificate of root",
            [
                vec![root_guess.clone(); 3],
                vec![publickey(b"root", &certificate); 2],
            ]
            .concat(),
        ),
        (
            "a host",
            [
                vec![root_guess.clone(); 3],
                vec![ssh::userauth(b"root", CONNECTION, b"hostbased", &host); 2],
            ]
            .concat(),
        ),
        (
            "passwords",
            vec![ssh::userauth(lie, CONNECTION, b"password", &guess); 7],
        ),
        ("a farewell", vec![ssh::disconnect(11, lie)]),
        (
            "a farewell behind root",
            vec![none(b"root"), ssh::disconnect(14, lie)],
        ),
        ("a remark", vec![debug]),
        ("an offer", vec![none(b"x"), ssh::kexinit(Some(lie))]),
        (
            "nothing that is known",
            vec![ssh::message(199, &[lie]), ssh::message(ssh::IGNORE, &[lie])],
        ),
    ]
}

/// As much in front of a lie that what sshd writes of it, with `head` before
/// it, is cut where it ends.
fn padded(head: &str, cut_at: usize, lie: &str) -> Vec<u8> {
    let room = cut_at - head.len() - lie.len();
    [&vec![b'x'; room], lie.as_bytes()].concat()
}

/// The attacker of a family says something to sshd.
fn say(net: &TestNet, family: usize, port: u16, speak: &dyn Fn(TcpStream) -> std::io::Result<()>) {
    let to = SocketAddr::new(addr(HOST[family]), port);
    let from = Some(addr(ATTACKER[family]));
    let (stream, _) = traffic::tcp_open(&net.internet, from, to, SOON).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    // The server may hang up at any moment.
    let _ = speak(stream);
}

/// Read in order: once these have counted, all before them have.
fn the_last_have_counted(net: &TestNet, weir: &Weir, sshd: &SshHost) {
    for who in OTHER {
        let to = SocketAddr::new(addr(HOST[usize::from(who.contains(':'))]), sshd.port());
        sshd::attempt(&net.internet, Some(addr(who)), to, "root", "guess", SOON).unwrap();
        soon("the last failure to count", || {
            let tracked = weir.why(who)["tracked"].as_array().unwrap().len();
            (tracked == 2).then_some(())
        });
    }
}

/// Says a lie in each of them.
fn say_all(net: &TestNet, family: usize, port: u16, lie: &[u8]) {
    let say = |speak: &dyn Fn(TcpStream) -> std::io::Result<()>| say(net, family, port, speak);
    for (_, messages) in dialogues(lie) {
        say(&|stream| {
            let mut ssh = ssh::Ssh::open(stream)?;
            for message in &messages {
                ssh.send(message)?;
            }
            ssh.hang_up();
            Ok(())
        });
    }
    // Before there are keys.
    for message in [ssh::kexinit(Some(lie)), ssh::disconnect(11, lie)] {
        say(&|stream| {
            let mut ssh = ssh::Ssh::greet(stream)?;
            ssh.send(&message)?;
            ssh.hang_up();
            Ok(())
        });
    }
    say(&|stream| {
        let mut ssh = ssh::Ssh::open(stream)?;
        ssh.send_raw(&[lie, &[0; 300]].concat())?;
        ssh.hang_up();
        Ok(())
    });
}

/// Issue 13, R1: a service's name did.
#[test]
fn root_no_message_of_the_protocol_accuses_anybody_else() {
    if skipped(&PROGRAMS) {
        return;
    }
    let net = TestNet::new();
    let config = CONFIG.replace("max_retry = 100\n", "max_retry = 1000\n");
    let mut weir = Weir::new(&net.host, &config);
    let mut opts = SshOpts::new(weir.log());
    opts.sshd_config = "HostbasedAuthentication yes\n".into();
    let sshd = SshHost::start(&net.host, &opts).unwrap();
    weir.run();
    for (family, victim) in [
        (0, VICTIM[0]),
        (1, VICTIM[1]),
        (0, VICTIM[1]),
        (1, VICTIM[0]),
    ] {
        let failures = format!("x {victim} port 1: Too many authentication failures");
        let change = "Change of username or service not allowed: (root,ssh-connection) -> (";
        let failed = format!(" from {victim} port 22 ssh2");
        let lies: Vec<Vec<u8>> = vec![
            failures.clone().into_bytes(),
            format!("x{failed}").into_bytes(),
            format!("x {victim} port 22 [preauth]").into_bytes(),
            format!("x from {victim} not allowed because not listed in AllowUsers").into_bytes(),
            padded(change, 100 - 1, &format!(" {victim} port 1")),
            padded("bad service request ", 100, &failures),
            // Behind the cut at 500 there is no address of sshd's.
            padded(
                "Failed publickey for invalid user x from 198.51.100.7 port 40000 ssh2: ED25519-CERT SHA256:2jmj7l5rSw0yVb/vlWAYkK/YBwk2jmj7l5rSw0yVb/v ID ",
                500,
                &failed,
            ),
            [&vec![1; 100 - failed.len()], failed.as_bytes()].concat(),
        ];
        for lie in &lies {
            say_all(&net, family, sshd.port(), lie);
        }
    }
    the_last_have_counted(&net, &weir, &sshd);
    has_logged(
        &weir,
        &[
            "authenticating user root 198.51.100.7 port",
            "bad service request x 203.0.113.9 port 1: Too many authentication failures [preauth]",
            "bad service request x 2001:db8:c::9 port 1: Too many authentication failures [preauth]",
            "Change of username or service not allowed: (root,ssh-connection) -> (",
            "Their offer: x from 203.0.113.9 port 22 ssh2",
            "Received disconnect from 198.51.100.7 port",
            "maximum authentication attempts exceeded for invalid user x",
            "client sends x from",
            "ED25519-CERT SHA256:",
            " ID x from 203.0.113.9 port 22 ssh2",
        ],
    );
    only_those_who_spoke(&weir);
}

/// What was tried did reach sshd, and its log.
#[track_caller]
fn has_logged(weir: &Weir, texts: &[&str]) {
    let log = String::from_utf8_lossy(&fs::read(weir.log()).unwrap()).into_owned();
    for said in texts {
        assert!(log.contains(said), "sshd has not logged {said:?}:\n{log}");
    }
}

/// The attackers and the two who came last have counted, and nobody else.
fn only_those_who_spoke(weir: &Weir) {
    for jail in ["sshd", "sshd-aggressive"] {
        let status = weir.json(&["status", jail]);
        assert_eq!(status["tracked"], 4, "{status}");
    }
    for victim in VICTIM {
        let why = weir.why(victim);
        assert_eq!(why["tracked"].as_array().unwrap().len(), 0, "{why}");
    }
    for who in ATTACKER.into_iter().chain(OTHER) {
        let why = weir.why(who);
        assert_eq!(why["tracked"].as_array().unwrap().len(), 2, "{why}");
    }
    assert!(weir.banned().is_empty());
}

/// Debian's sshd asks PAM, whose modules and whose "keyboard-interactive" log
/// names in messages of their own.
#[test]
fn root_no_name_accuses_anybody_else_through_pam() {
    if skipped(&PROGRAMS) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    let mut opts = SshOpts::new(weir.log());
    opts.sshd_config = "UsePAM yes\nKbdInteractiveAuthentication yes\n".into();
    let sshd = SshHost::start(&net.host, &opts).unwrap();
    weir.run();
    let guess = [&[0][..], &ssh::string(b"guess")].concat();
    let no_devices = [ssh::string(b""), ssh::string(b"")].concat();
    let answer = [
        &[ssh::INFO_RESPONSE][..],
        &1_u32.to_be_bytes(),
        &ssh::string(b"guess"),
    ]
    .concat();
    for (family, victim) in [(0, VICTIM[0]), (1, VICTIM[1])] {
        for lie in [
            format!("x from {victim} port 22 ssh2"),
            format!("x from {victim}"),
            format!("x  rhost={victim} user=root"),
        ] {
            let said = |method: &[u8], rest: &[u8]| {
                ssh::userauth(lie.as_bytes(), b"ssh-connection", method, rest)
            };
            say(&net, family, sshd.port(), &|stream| {
                let mut ssh = ssh::Ssh::open(stream)?;
                ssh.send(&said(b"password", &guess))?;
                ssh.send(&said(b"keyboard-interactive", &no_devices))?;
                ssh.send(&answer)?;
                ssh.hang_up();
                Ok(())
            });
        }
    }
    the_last_have_counted(&net, &weir, &sshd);
    has_logged(
        &weir,
        &[
            "pam_unix(sshd:auth): ",
            " for illegal user x from 203.0.113.9 port 22 ssh2 from 198.51.100.7",
            "Failed keyboard-interactive/pam for invalid user x from 203.0.113.9",
            "Failed password for invalid user x from 203.0.113.9",
        ],
    );
    only_those_who_spoke(&weir);
}

/// Whole lines and entries, behind a line break that is none for sshd.
fn with_line_breaks(victim: &str) -> Vec<Vec<u8>> {
    // A name has 100 characters, and no colon (but other texts have).
    let heads = [
        "",
        "1 - - sshd - - - ",
        "Nov 21 10:00:00 h sshd: ",
        "2026-11-21T10:00:00Z h sshd[7]: ",
        "h sshd[7]: ",
        "sshd: ",
    ];
    let mut lies = Vec::new();
    for (head, line_break) in heads
        .map(|head| (head, "\n"))
        .into_iter()
        .chain([("", "\r")])
    {
        let lie = format!("{head}Invalid user x from {victim}");
        let text = [line_break, &lie, line_break, &lie, line_break].concat();
        lies.push([b"x", text.as_bytes()].concat());
    }
    let lie = format!("Failed password for x from {victim} port 1 ssh2");
    lies.push(format!("\n{lie}\n1 - - sshd - - - {lie}\n").into_bytes());
    lies
}

/// Issue 13: sshd escapes line breaks for syslog, and for nothing else. With -E
/// its file holds a client's lines, with -e the journal a client's entries, and what
/// puts a stamp before each line, as `ts` and `svlogd` do, makes them no truer.
#[test]
fn root_no_line_break_that_sshd_leaves_accuses_anybody() {
    if skipped(&PROGRAMS) || !journal::ready() {
        return;
    }
    let net = TestNet::new();
    let config = "interfaces = [\"eth0\"]\n\
        [jail.sshd]\nsource = \"journal\"\nmax_retry = 1\nipv6_prefix = 128\n\
        [jail.sshd-aggressive]\nsource = \"journal\"\nmax_retry = 1\nipv6_prefix = 128\n\
        [jail.file]\nfilter = \"sshd\"\npaths = [\"{log}\"]\nmax_retry = 1\nipv6_prefix = 128\n\
        [jail.file-aggressive]\nfilter = \"sshd-aggressive\"\npaths = [\"{log}\"]\nmax_retry = 1\nipv6_prefix = 128\n\
        [jail.stamped]\nfilter = \"sshd\"\npaths = [\"{log}.stamped\"]\nmax_retry = 1\nipv6_prefix = 128\n\
        [jail.stamped-aggressive]\nfilter = \"sshd-aggressive\"\npaths = [\"{log}.stamped\"]\nmax_retry = 1\nipv6_prefix = 128\n";
    let mut weir = Weir::new(&net.host, config);
    let journal = journal::Journal::of(&mut weir);
    journal.write("cron", 0, ["the journal is there".to_owned()]);
    let own_file = weir.log();
    let start = |port, args: &[&str]| {
        let mut opts = SshOpts::new(weir.path(&format!("syslog-{port}.log")));
        opts.port = port;
        opts.sshd_config = "HostbasedAuthentication yes\n".into();
        opts.sshd_args = args.iter().map(|arg| (*arg).to_owned()).collect();
        SshHost::start(&net.host, &opts).unwrap()
    };
    let with_file = start(22, &["-E", own_file.to_str().unwrap()]);
    let with_stderr = start(2222, &["-e"]);
    // What sshd has said so far has no client's text. (A reload would refuse it.)
    fs::write(&own_file, "").unwrap();
    weir.run();
    for family in [0, 1] {
        for lie in with_line_breaks(VICTIM[family]) {
            for port in [with_file.port(), with_stderr.port()] {
                say_all(&net, family, port, &lie);
            }
        }
    }
    let said = fs::read(with_stderr.stderr()).unwrap();
    // As journald takes a service's standard error apart.
    let entries = said
        .split(|b| *b == b'\n')
        .map(|line| line.trim_ascii_end().to_vec());
    let entries: Vec<_> = entries.filter(|entry| !entry.is_empty()).collect();
    let fields = |transport| {
        [
            ("_COMM", "sshd"),
            ("_UID", "0"),
            ("_SYSTEMD_UNIT", "ssh.service"),
            ("SYSLOG_IDENTIFIER", "sshd"),
            ("_TRANSPORT", transport),
        ]
    };
    journal.write_entries(&fields("stdout"), entries.clone());
    // Read in order: once these have counted, all of it has been read.
    let last = |who: &str| format!("Failed password for root from {who} port 1 ssh2");
    journal.write_entries(&fields("syslog"), [last(OTHER[0]).into_bytes()]);
    let now = jiff::Zoned::now().strftime("%b %e %H:%M:%S").to_string();
    let stamped_file = format!("{}.stamped", own_file.display());
    let mut stamped = File::create(&stamped_file).unwrap();
    for line in said.split_inclusive(|b| *b == b'\n') {
        stamped
            .write_all(&[now.as_bytes(), b" ", line].concat())
            .unwrap();
    }
    let own = File::options().append(true).open(&own_file).unwrap();
    for (mut file, who) in [(own, OTHER[1]), (stamped, CUSTOMER[0])] {
        for n in 0..weir_core::detect::BEHIND_NO_HEAD {
            writeln!(file, "Nov 21 10:00:00 host cron[{n}]: x").unwrap();
        }
        writeln!(file, "{now} host sshd[1]: {}", last(who)).unwrap();
    }
    soon("the last failures to count", || {
        (weir.banned().len() == 6).then_some(())
    });
    for (said, name) in [(said, "-e"), (fs::read(&own_file).unwrap(), "-E")] {
        let lines: Vec<_> = said.split(|b| *b == b'\n').collect();
        for victim in VICTIM {
            let lie = format!("1 - - sshd - - - Invalid user x from {victim}");
            assert!(
                lines.contains(&lie.as_bytes()),
                "{name} wrote no line of {victim}'s"
            );
        }
        // Of the true ones there were some.
        assert!(
            lines.iter().any(|line| line.starts_with(b"Invalid user x")),
            "{name}"
        );
    }
    let status = weir.json(&["status"]);
    for jail in [
        "sshd",
        "sshd-aggressive",
        "file",
        "file-aggressive",
        "stamped",
        "stamped-aggressive",
    ] {
        let of = weir.json(&["status", jail]);
        assert_eq!(of["findings"], 1, "{of}");
        let kind = if jail.starts_with("sshd") {
            "stdout"
        } else {
            "headless"
        };
        soon(&format!("the alert of {jail}"), || {
            let status = weir.json(&["status"]);
            let alerts = status["alerts"].as_array().unwrap();
            let about = format!("jail:{jail}:{kind}");
            alerts
                .iter()
                .any(|alert| alert["about"] == about.as_str())
                .then_some(())
        });
    }
    for who in VICTIM.into_iter().chain(ATTACKER) {
        let why = weir.why(who);
        assert_eq!(
            why["tracked"].as_array().unwrap().len(),
            0,
            "{why} {status}"
        );
        assert_eq!(why["bans"].as_array().unwrap().len(), 0, "{why}");
    }
    // And of such a file the check warns.
    let mixed = fs::read(&own_file).unwrap();
    let end = mixed.len() - 12_000;
    fs::write(&own_file, &mixed[..end]).unwrap();
    let checked = weir.ask(&["check"]).done().out;
    for word in ["[jail.file]", "start it without -E"] {
        assert!(checked.contains(word), "no {word:?} in {checked}");
    }
}

/// A line feed ends each line; nothing else may move a cursor, set a title, or
/// turn the order of letters round.
#[track_caller]
fn harmless(what: &str, shown: &str) {
    let harm = shown.chars().find(|&c| {
        c.is_control() && c != '\n'
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    });
    assert_eq!(harm, None, "{what}: {shown:?}");
}

/// Not every syslog daemon escapes what it writes.
#[test]
fn root_a_terminal_sees_no_control_character_of_a_log() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let weir = Weir::start(
        &net.host,
        "interfaces = [\"eth0\"]\n[jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 1\nipv6_prefix = 128\n",
    );
    let evil = "\u{1b}[2J\u{1b}]0;title\u{7}\r\u{8}\u{9b}2J\u{202e}\u{2066}\t";
    let stamp = jiff::Zoned::now().strftime("%b %e %H:%M:%S").to_string();
    let line = |who: &str| {
        format!(
            "{stamp} host sshd[7]: Failed password for invalid user evil{evil} from {who} port 1 ssh2\n"
        )
    };
    fs::write(weir.path("evil.log"), line(CUSTOMER[0])).unwrap();
    let mut log = File::options().append(true).open(weir.log()).unwrap();
    for who in ATTACKER {
        log.write_all(line(who).as_bytes()).unwrap();
    }
    soon("both bans", || (weir.banned().len() == 2).then_some(()));
    weir.ask(&["ban", OTHER[0], "--reason", &format!("evil{evil}")])
        .done();
    weir.ask(&[
        "allow",
        "add",
        CUSTOMER[1],
        "--note",
        &format!("evil{evil}"),
    ])
    .done();
    // And what is refused is named without harm.
    let name = format!("evil{evil}");
    let file = weir.path("evil.log").display().to_string();
    for (args, shows) in [
        (vec!["why", ATTACKER[0]], true),
        (vec!["why", ATTACKER[1]], true),
        (vec!["why", OTHER[0]], true),
        (vec!["why", CUSTOMER[1]], true),
        (vec!["bans"], true),
        (vec!["allow", "list"], true),
        (vec!["status"], false),
        (vec!["status", "sshd"], false),
        (vec!["filter", "test", "sshd", &file], true),
        (vec!["ban", &name], true),
        (vec!["unban", &name], true),
        (vec!["why", &name], true),
        (vec!["status", &name], true),
    ] {
        let answer = weir.ask(&args);
        let shown = answer.out + &answer.err;
        harmless(&format!("{args:?}"), &shown);
        assert!(
            !shown.is_empty() && shown.contains("evil") >= shows,
            "{args:?}: {shown}"
        );
    }
    soon("the ban to be told", || {
        weir.said().contains("evil").then_some(())
    });
    harmless("the daemon's log", &weir.said());
}
