//! ActionQueues without processes: what waits, in which order, and what has no room. Commands
//! that run are in tests/fail2ban_actions.rs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use weir_core::{BanTarget, Until};
use weir_fail2ban::{Commands, FamilyCommands, Script};

use super::{
    notice::BanNotice,
    queue::{ActionQueue, BanInForce, Job, MAX_BANS, MAX_KNOWN, UNDO_WITHIN},
};
use crate::{
    jails::JailCommands,
    metrics::Metrics,
    store::{ActionNotice, ActionNoticeChange, Change},
};

fn who(text: &str) -> BanTarget {
    text.parse().unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A ban that was made before.
fn notice(subject: &str) -> ActionNotice {
    ActionNotice {
        subject: who(subject),
        since: at(1_000),
        until: Until::Never,
        failures: 3,
        is_restored: false,
        captured: None,
    }
}

fn queue(norestored: bool, keys: &[&str], in_force: &[&str]) -> ActionQueue {
    let in_force = in_force.iter().map(|who| notice(who)).collect();
    queue_of(norestored, keys, in_force, Vec::new())
}

fn queue_of(
    norestored: bool,
    keys: &[&str],
    in_force: Vec<ActionNotice>,
    remembered: Vec<ActionNotice>,
) -> ActionQueue {
    let script = |key: &str| {
        keys.contains(&key).then(|| Script {
            text: key.to_owned(),
            tags: Vec::new(),
            captured: Vec::new(),
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
            start_on_demand: None,
            repair_on_unban: false,
            timeout: std::time::Duration::from_secs(1),
        }),
        max_matches: 5,
    };
    let in_force = in_force.into_iter().map(|notice| BanInForce {
        notice,
        policy: None,
    });
    let counters = Metrics::default().actions.of("j", "x");
    ActionQueue::new(1, "j", &action, counters, in_force.collect(), remembered)
}

fn told(subject: &str) -> Arc<BanNotice> {
    Arc::new(BanNotice::of_address(who(subject)))
}

/// Runs the next job, well.
fn step(queue: &mut ActionQueue) -> Job {
    let job = queue.take().unwrap();
    queue.is_running = false;
    queue.has_ended(&job, true, None);
    job
}

/// What the database is to have by now: `+` and `-` with the subject.
fn remembered(queue: &mut ActionQueue) -> Vec<String> {
    let changes = queue.changes.drain(..).map(|change| match change {
        Change::ActionNotice(ActionNoticeChange::Put(_, notice)) => format!("+{}", notice.subject),
        Change::ActionNotice(ActionNoticeChange::Delete(_, subject)) => format!("-{subject}"),
        other => panic!("{other:?}"),
    });
    changes.collect()
}

/// All that it would run, in order.
fn all(queue: &mut ActionQueue) -> Vec<String> {
    let mut all = Vec::new();
    while queue.waiting() > 0 {
        let Some(job) = queue.take() else {
            break;
        };
        queue.is_running = false;
        queue.has_ended(&job, true, None);
        let ban = |told: &BanNotice| format!("ban {} {}", told.subject, u8::from(told.is_restored));
        all.push(match &job {
            Job::Start => "start".to_owned(),
            Job::Stop => "stop".to_owned(),
            Job::Flush => "flush".to_owned(),
            Job::Ban(told) => ban(told),
            Job::Restored(told, _) => ban(told),
            Job::Reban(told) => format!("reban {}", told.subject),
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
    let old = "192.0.2.1";
    let unban = |queue: &mut ActionQueue| {
        assert!(queue.unban(who(old)));
        all(queue)
    };
    // It has kept what an earlier daemon told it: only the end is told, and remembered.
    let keys = ["ban", "unban"];
    let mut keeps = queue_of(false, &keys, vec![notice(old)], vec![notice(old)]);
    assert_eq!(all(&mut keeps), ["start"]);
    assert_eq!(unban(&mut keeps), ["unban 192.0.2.1"]);
    assert_eq!(remembered(&mut keeps), ["-192.0.2.1"]);
    // It was never told of that ban, as with one that was made while weir observed.
    let mut new = queue(false, &keys, &[old]);
    assert_eq!(all(&mut new), ["start", "ban 192.0.2.1 1"]);
    assert_eq!(remembered(&mut new), ["+192.0.2.1"]);
    assert_eq!(unban(&mut new), ["unban 192.0.2.1"]);
    // The ban has ended while no daemon ran.
    let mut ended = queue_of(false, &keys, vec![], vec![notice(old)]);
    assert_eq!(all(&mut ended), ["start", "unban 192.0.2.1"]);
    assert_eq!(unban(&mut ended), [""; 0]);
    // What sets something up has kept nothing.
    let start = ["start", "ban", "unban"];
    let mut forgets = queue_of(false, &start, vec![notice(old)], vec![notice(old)]);
    assert_eq!(all(&mut forgets), ["start", "ban 192.0.2.1 1"]);
    assert_eq!(remembered(&mut forgets), [""; 0]);
    let mut mail = queue(true, &["start", "stop", "ban", "unban"], &[old]);
    assert_eq!(all(&mut mail), ["start"]);
    assert_eq!(unban(&mut mail), [""; 0]);
    // Bans of another program's are older ones as well.
    let mut imported = BanNotice::of_address(who("192.0.2.5"));
    imported.is_restored = true;
    let imported = Arc::new(imported);
    assert!(mail.ban(&imported) && keeps.ban(&imported));
    assert_eq!(all(&mut mail), [""; 0]);
    assert_eq!(all(&mut keeps), ["ban 192.0.2.5 1"]);
    // One that was made while the action began is a new one.
    let mut begins = queue(true, &["ban"], &["192.0.2.7"]);
    assert!(begins.ban_meanwhile(&told("192.0.2.7")));
    assert_eq!(all(&mut begins), ["start", "ban 192.0.2.7 0"]);
}

#[test]
fn after_a_repair_each_ban_is_told_again_once_and_behind_new_ones() {
    let mut queue = queue(false, &["start", "stop", "ban", "unban"], &[]);
    let ban = |queue: &mut ActionQueue, subject: &str, length: i64| {
        let mut notice = BanNotice::of_address(who(subject));
        notice.until = Some(notice.since + jiff::SignedDuration::from_secs(length));
        notice.failures = 5;
        assert!(queue.ban(&Arc::new(notice)));
    };
    for subject in ["192.0.2.1", "192.0.2.2", "2001:db8::1"] {
        ban(&mut queue, subject, 600);
    }
    for _ in 0..4 {
        step(&mut queue);
    }
    ban(&mut queue, "192.0.2.3", 600);
    let job = queue.take().unwrap();
    // Meanwhile others come, and one ends.
    ban(&mut queue, "192.0.2.4", 600);
    assert!(queue.unban(who("192.0.2.2")));
    queue.lose([true, false], true, who("192.0.2.3"));
    queue.is_running = false;
    queue.has_ended(&job, true, None);
    ban(&mut queue, "192.0.2.5", 600);
    // The set of the other family has lost nothing.
    for expected in ["192.0.2.4", "192.0.2.5"] {
        let job = step(&mut queue);
        assert!(
            matches!(&job, Job::Ban(told) if told.subject == who(expected)),
            "{job:?}"
        );
    }
    let Job::Reban(again) = step(&mut queue) else {
        panic!("no ban is told again");
    };
    let left = again.until.unwrap().duration_since(again.since).as_secs();
    assert_eq!((again.subject, again.failures), (who("192.0.2.1"), 5));
    assert!(
        (590..=600).contains(&left) && !again.is_restored,
        "{again:?}"
    );
    assert_eq!(queue.waiting(), 0);
    // The end is told with the ban's own beginning and length.
    assert!(queue.unban(who("192.0.2.1")));
    let Job::Unban(end) = step(&mut queue) else {
        panic!("no end is told");
    };
    let length = end.until.unwrap().duration_since(end.since).as_secs();
    assert_eq!((end.failures, length), (5, 600));
    // One that ends before it is told again needs no end.
    queue.lose([true, true], true, who("192.0.2.3"));
    assert!(queue.unban(who("192.0.2.4")));
    assert_eq!(all(&mut queue), ["reban 2001:db8::1", "reban 192.0.2.5"]);
}

#[test]
fn a_removed_action_undoes_what_it_was_told_and_nothing_else() {
    let mut queue = queue(false, &["ban", "unban"], &["192.0.2.1"]);
    assert!(queue.ban(&told("192.0.2.2")));
    for _ in 0..3 {
        step(&mut queue);
    }
    // It waits yet, and one older end does.
    assert!(queue.ban(&told("192.0.2.3")) && queue.unban(who("192.0.2.2")));
    queue.leave_and_undo();
    assert_eq!(
        all(&mut queue),
        ["unban 192.0.2.2", "unban 192.0.2.1", "stop"]
    );
    let undoing = queue.undoing.as_ref().unwrap();
    assert_eq!((undoing.total, undoing.left, undoing.failed), (2, 0, 0));

    // One that can undo all at once does, and messages are sent all the same.
    let mut flushes = queue_of(false, &["flush", "ban", "unban"], vec![], vec![]);
    let mut mail = queue_of(false, &["ban"], vec![], vec![]);
    for queue in [&mut flushes, &mut mail] {
        step(queue);
        assert!(queue.ban(&told("192.0.2.1")));
        queue.leave_and_undo();
    }
    assert_eq!(all(&mut flushes), ["flush", "stop"]);
    assert_eq!(all(&mut mail), ["ban 192.0.2.1 0", "stop"]);
}

#[test]
fn a_removed_action_has_a_bounded_time() {
    let mut queue = queue(false, &["ban", "unban"], &["192.0.2.1", "192.0.2.2"]);
    for _ in 0..3 {
        step(&mut queue);
    }
    queue.leave_and_undo();
    assert!(matches!(step(&mut queue), Job::Unban(_)));
    queue.give_up_if_late(Instant::now() + UNDO_WITHIN - Duration::from_secs(5));
    assert_eq!(queue.waiting(), 2);
    queue.give_up_if_late(Instant::now() + UNDO_WITHIN);
    assert_eq!(all(&mut queue), ["stop"]);
    let undoing = queue.undoing.as_ref().unwrap();
    assert_eq!((undoing.total, undoing.failed), (2, 1));
}

#[test]
fn an_action_knows_of_so_many_bans_at_most() {
    let addr = |n: usize| format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255);
    let old = (0..=MAX_KNOWN).map(|n| notice(&addr(n))).collect();
    let mut queue = queue_of(false, &["ban", "unban"], old, Vec::new());
    assert_eq!((queue.overflow, queue.waiting()), (1, MAX_KNOWN + 1));
    assert!(!queue.ban(&told("192.0.2.1")));
    assert!(queue.unban(who(&addr(0))));
    assert!(queue.ban(&told("192.0.2.1")));
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
