//! ActionQueues without processes: what waits, in which order, and what has no room. Commands
//! that run are in tests/fail2ban_actions.rs.

use std::sync::Arc;

use weir_fail2ban::{Commands, FamilyCommands, Script};

use super::queue::{ActionQueue, BanNotice, Job, MAX_BANS};
use crate::{jails::JailCommands, metrics::Metrics};

fn queue(norestored: bool, keys: &[&str], in_force: &[&str]) -> ActionQueue {
    let script = |key: &str| {
        keys.contains(&key).then(|| Script {
            text: key.to_owned(),
            tags: Vec::new(),
        })
    };
    let family = FamilyCommands {
        start: script("start"),
        stop: script("stop"),
        flush: script("flush"),
        ban: script("ban"),
        unban: script("unban"),
        prolong: script("prolong"),
        ..FamilyCommands::default()
    };
    let action = JailCommands {
        name: "x".to_owned(),
        commands: Arc::new(Commands {
            families: [family.clone(), family],
            norestored,
            timeout: std::time::Duration::from_secs(1),
        }),
        max_matches: 5,
    };
    let in_force = in_force
        .iter()
        .map(|who| (who.parse().unwrap(), None))
        .collect();
    let counters = Metrics::default().actions.of("j", "x");
    ActionQueue::new(1, "j", &action, counters, in_force)
}

fn told(who: &str) -> Arc<BanNotice> {
    let mut told = BanNotice::again(who.parse().unwrap(), None);
    told.is_restored = false;
    Arc::new(told)
}

/// All that it would run, in order.
fn all(queue: &mut ActionQueue) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(job) = queue.take() {
        queue.is_running = false;
        all.push(match job {
            Job::Start => "start".to_owned(),
            Job::Stop => "stop".to_owned(),
            Job::Flush => "flush".to_owned(),
            Job::Ban(told) => format!("ban {} {}", told.subject, u8::from(told.is_restored)),
            Job::Prolong(told) => format!("prolong {}", told.subject),
            Job::Unban(told) => format!("unban {}", told.subject),
        });
    }
    all
}

#[test]
fn a_new_ban_goes_before_those_that_were_there() {
    let old = ["192.0.2.1", "192.0.2.2", "2001:db8::3"];
    let mut queue = queue(false, &["start", "ban", "unban", "prolong"], &old);
    assert!(queue.ban(&told("192.0.2.9")));
    // One of them ends before it is told of, and one is made longer.
    assert!(queue.unban("192.0.2.2".parse().unwrap()));
    assert!(queue.ban(&told("192.0.2.1")));
    let expected = [
        "start",
        "ban 192.0.2.9 0",
        "ban 192.0.2.1 1",
        "ban 2001:db8::3 1",
    ];
    assert_eq!(all(&mut queue), expected);
    assert!(queue.ban(&told("192.0.2.1")) && queue.unban("192.0.2.1".parse().unwrap()));
    assert!(queue.unban("192.0.2.1".parse().unwrap()));
    assert_eq!(all(&mut queue), ["prolong 192.0.2.1", "unban 192.0.2.1"]);
}

#[test]
fn an_action_is_told_of_older_bans_as_it_wants() {
    let old = ["192.0.2.1"];
    let unban = |queue: &mut ActionQueue| {
        assert!(queue.unban("192.0.2.1".parse().unwrap()));
        all(queue)
    };
    // It keeps what it was told: only the end is told.
    let mut keeps = queue(false, &["ban", "unban"], &old);
    assert_eq!(all(&mut keeps), ["start"]);
    assert_eq!(unban(&mut keeps), ["unban 192.0.2.1"]);
    // It ended while no daemon ran.
    assert_eq!(unban(&mut keeps), ["unban 192.0.2.1"]);
    let mut mail = queue(true, &["start", "stop", "ban", "unban"], &old);
    assert_eq!(all(&mut mail), ["start"]);
    assert_eq!(unban(&mut mail), [""; 0]);
    // Bans of another program's are older ones as well.
    let imported = Arc::new(BanNotice::again("192.0.2.5".parse().unwrap(), None));
    assert!(mail.ban(&imported) && keeps.ban(&imported));
    assert_eq!(all(&mut mail), [""; 0]);
    assert_eq!(all(&mut keeps), ["ban 192.0.2.5 1"]);
}

#[test]
fn all_ends_at_once_if_the_action_can_do_that() {
    let mut flushes = queue(false, &["flush", "stop", "ban", "unban"], &[]);
    let mut without = queue(false, &["stop", "ban", "unban"], &[]);
    for queue in [&mut flushes, &mut without] {
        assert!(queue.ban(&told("192.0.2.1")) && queue.ban(&told("192.0.2.2")));
        all(queue);
        assert!(queue.unban("192.0.2.1".parse().unwrap()));
        queue.flush();
        assert!(queue.unban("192.0.2.2".parse().unwrap()));
        queue.leave();
        queue.leave();
    }
    assert_eq!(all(&mut flushes), ["flush", "flush", "stop"]);
    assert_eq!(
        all(&mut without),
        ["unban 192.0.2.1", "unban 192.0.2.2", "stop"]
    );
}

#[test]
fn what_waits_is_bounded_and_ends_have_room_still() {
    let mut queue = queue(false, &["start", "ban", "unban"], &[]);
    let who = |n: usize| format!("10.0.{}.{}", n / 250, n % 250 + 1);
    for n in 0..MAX_BANS {
        assert!(queue.ban(&told(&who(n))));
    }
    assert!(!queue.ban(&told(&who(MAX_BANS))));
    assert!(queue.unban(who(0).parse().unwrap()));
    // What it was not told of has no end to be told.
    assert!(queue.unban(who(MAX_BANS).parse().unwrap()));
    assert_eq!(queue.waiting(), MAX_BANS + 2);
    assert_eq!(queue.take(), Some(Job::Start));
    queue.is_running = false;
    assert!(matches!(queue.take(), Some(Job::Ban(_))));
    // One at a time.
    assert_eq!(queue.take(), None);
    assert!(queue.ban(&told(&who(MAX_BANS))));
}
