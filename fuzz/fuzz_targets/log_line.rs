//! Log lines, whole and as the journal's message only, through the sshd filter
//! and the ledger. Two promises beside not panicking: what an attacker chooses
//! (the user name) never changes whose address is found, and a ban's evidence
//! stays bounded.
#![no_main]

use std::net::IpAddr;

use arbitrary::Arbitrary;
use jiff::{Timestamp, tz::TimeZone};
use libfuzzer_sys::fuzz_target;
use weir_core::{
    Action, PrefixSet, PortSet,
    detect::{Age, Context, Offender, Program, ProgramState, Record},
    policy::{Jail, JailLimits, Ledger, MAX_EVIDENCE, Outcome},
};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Lines as they may come.
    lines: Vec<(bool, &'a [u8])>,
    /// A user name that sshd prints in lines of its own.
    user: &'a [u8],
    message: u8,
    seconds: u32,
}

const ATTACKER: &str = "198.51.100.7";

/// sshd's words, with the user name as it came (a line break would end the line).
fn crafted(user: &[u8], message: u8) -> Vec<u8> {
    let user: Vec<u8> = user.iter().copied().filter(|b| *b != b'\n').collect();
    let from = format!(" from {ATTACKER}");
    let head = format!("authenticating user root {ATTACKER} port 40022");
    let (before, after): (String, String) = match message % 8 {
        0 => (
            "Failed password for ".into(),
            format!("{from} port 40022 ssh2"),
        ),
        1 => (
            "Failed password for invalid user ".into(),
            format!("{from} port 40022 ssh2"),
        ),
        2 => ("Invalid user ".into(), format!("{from} port 40022")),
        3 => (
            "Failed none for invalid user ".into(),
            format!("{from} port 40022 ssh2"),
        ),
        4 => (
            "Failed publickey for ".into(),
            format!("{from} port 40022 ssh2: ED25519 SHA256:x"),
        ),
        // A service's name, and another user's, which end the message.
        5 => (
            format!("Disconnecting {head}: bad service request "),
            String::new(),
        ),
        6 => (
            format!(
                "Disconnecting {head}: Change of username or service not allowed: (root,ssh-connection) -> ("
            ),
            String::new(),
        ),
        _ => (
            "User ".into(),
            format!("{from} not allowed because not listed in AllowUsers"),
        ),
    };
    let mut line = before.into_bytes();
    line.extend(user);
    line.extend(after.bytes());
    line
}

fuzz_target!(|input: Input<'_>| {
    let filter = Program::builtin("sshd").expect("it is built in");
    let mut state = ProgramState::default();
    let zone = TimeZone::UTC;
    let now = Timestamp::from_second(1_800_000_000 + i64::from(input.seconds)).expect("in range");
    let context = Context { now, zone: &zone };
    let limits = JailLimits {
        max_retry: 2,
        max_tracked: 16,
        ..JailLimits::default()
    };
    let ledger = Ledger::new(vec![Jail {
        name: "sshd".into(),
        limits,
        scope: PortSet::all(),
        action: Action::Drop,
        ignore: PrefixSet::default(),
        names_prefixes: false,
    }]);
    let attacker: IpAddr = ATTACKER.parse().expect("an address");
    let crafted_message = crafted(input.user, input.message);
    let mut crafted_line = b"Nov 21 04:33:07 host sshd[77]: ".to_vec();
    crafted_line.extend(&crafted_message);
    let own = [
        (true, &crafted_message[..], true),
        (false, &crafted_line[..], true),
    ];
    let theirs = input
        .lines
        .iter()
        .map(|(message_only, line)| (*message_only, *line, false));
    for (message_only, line, ours) in own.into_iter().chain(theirs) {
        let record = Record {
            line,
            time: message_only.then_some(now),
            message_only,
            age: Age::Unknown,
            ..Record::default()
        };
        let Some(finding) = filter.read(&mut state, &record, &context) else {
            continue;
        };
        if ours {
            assert_eq!(
                finding.offender,
                Offender::from(attacker),
                "{:?}",
                String::from_utf8_lossy(line)
            );
        }
        if let Outcome::Ban(ban) = ledger.record(0, &finding, line, now) {
            let prefix = finding.offender.prefix().expect("it names no host");
            assert!(ban.subject.prefix().covers(prefix));
            assert!(
                ban.evidence
                    .iter()
                    .all(|line| line.len() <= MAX_EVIDENCE * 4)
            );
        }
        assert!(ledger.snapshot(now).len() <= 16 * 64);
    }
});
