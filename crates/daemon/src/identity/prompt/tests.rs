//! Which questions are open, and how long answers hold.

use weir_identity::MAX_RULES;

use super::*;

fn question(program: u8, port: u16, deadline: Instant) -> Question {
    let peer = "192.0.2.1".parse().unwrap();
    Question {
        id: 0,
        asked: Timestamp::UNIX_EPOCH,
        ends: Timestamp::UNIX_EPOCH,
        programs: vec![Object {
            path: format!("/usr/bin/{program}").into(),
            digest: Some(Digest([program; 32])),
        }],
        pid: u32::from(program),
        uid: 0,
        cgroup: String::new(),
        parents: Vec::new(),
        direction: "out",
        protocol: "tcp",
        peer,
        port,
        flow: Flow {
            is_outward: true,
            protocol: Protocols::TCP,
            peer,
            port: Some(port),
            netns: 1,
        },
        handles: Vec::new(),
        started: Some(1),
        deadline,
    }
}

#[test]
fn questions_are_bounded_and_one_program_leaves_room_for_others() {
    let (mut prompts, now) = (Prompts::default(), Instant::now());
    for port in 0..MAX_OF_PROGRAM as u16 {
        assert!(prompts.open(question(1, port, now), MAX_RULES));
    }
    assert!(!prompts.open(question(1, 0, now), MAX_RULES), "it is open");
    assert_eq!(prompts.status(ASK_AGAIN).unasked, 0);
    assert!(!prompts.open(question(1, 1000, now), MAX_RULES));
    assert_eq!(prompts.status(ASK_AGAIN).unasked, 1);
    // One user with many programs leaves room for others, too.
    let mut of = |program: u8| {
        let mut question = question(program, 1, now);
        question.uid = u32::from(program) / MAX_OF_USER as u32;
        prompts.open(question, MAX_RULES)
    };
    let opened = (2..2 * MAX_OF_USER as u8)
        .filter(|program| of(*program))
        .count();
    assert_eq!(opened, MAX_QUESTIONS - MAX_OF_PROGRAM);
    assert!(!of(2 * MAX_OF_USER as u8), "so many questions are open");
    let status = prompts.status(ASK_AGAIN);
    let at_the_limit_of_user = (2 * MAX_OF_USER - 2) as u64 - opened as u64;
    assert_eq!(status.open, MAX_QUESTIONS);
    assert_eq!(status.unasked, 2 + at_the_limit_of_user);
    assert!(prompts.trouble().unwrap().contains("32 of one user"));
    // Where the configuration has all the rules that there may be, nobody is asked.
    assert!(!Prompts::default().open(question(1, 1, now), 0));
}

#[test]
fn of_many_answers_the_oldest_makes_room() {
    let (mut prompts, now) = (Prompts::default(), Instant::now());
    for number in 0..=MAX_ANSWERS as u16 {
        assert!(prompts.open(question(1, number, now), MAX_RULES));
        let id = prompts.questions()[0].id;
        let asked = Some(Timestamp::UNIX_EPOCH);
        let mut answer = |asked| prompts.answer(id, asked, Verdict::Allow, AnswerScope::Once);
        // That is the question of this number of another daemon.
        assert!(!answer(Some(Timestamp::MAX)));
        assert!(answer(asked));
        assert!(!answer(asked));
    }
    let rules = prompts.rules();
    assert_eq!(rules.len(), MAX_ANSWERS);
    assert_eq!(&*rules[0].name, "prompt:2");
    assert_eq!(prompts.status(ASK_AGAIN).forgotten, 1);
}

#[test]
fn what_nobody_answers_is_decided_by_default_and_asked_again_later() {
    let (mut prompts, now) = (Prompts::default(), Instant::now());
    let later = now + Duration::from_secs(5);
    prompts.open(question(1, 1, now), MAX_RULES);
    prompts.open(question(2, 1, later), MAX_RULES);
    prompts.open(question(3, 1, now), MAX_RULES);
    // The third one's process is gone: others may wait for the same answer.
    let ended = prompts.expire(now, Verdict::Drop, |pid, _| pid != 3);
    assert!(ended.answers && ended.questions);
    assert_eq!(prompts.questions().len(), 1);
    let rules = prompts.rules();
    assert_eq!((rules.len(), rules[0].verdict), (1, Verdict::Drop));
    assert_eq!(
        prompts.expire(now, Verdict::Drop, |_, _| true),
        Ended::default()
    );
    assert!(
        prompts
            .expire(now + ASK_AGAIN, Verdict::Allow, |_, _| true)
            .answers
    );
    let rules = prompts.rules();
    assert_eq!((rules.len(), rules[0].verdict), (1, Verdict::Allow));
    // What is allowed stays until the process ends, and a minute for what it has sent.
    let end = now + 10 * ASK_AGAIN;
    assert_eq!(
        prompts.expire(end, Verdict::Allow, |_, _| true),
        Ended::default()
    );
    assert_eq!(
        prompts.expire(end, Verdict::Allow, |_, _| false),
        Ended::default()
    );
    let later = end + LINGER - Duration::from_secs(1);
    assert_eq!(
        prompts.expire(later, Verdict::Allow, |_, _| false),
        Ended::default()
    );
    assert_eq!(prompts.rules().len(), 1);
    assert!(
        prompts
            .expire(end + LINGER, Verdict::Allow, |_, _| false)
            .answers
    );
    assert!(prompts.rules().is_empty());
    assert_eq!(prompts.status(ASK_AGAIN).timed_out, 2);
}

/// A program that connects to very many peers, until `default` has answered about all of them,
/// takes no person's answer away.
#[test]
fn what_nobody_has_answered_makes_room_first() {
    let (mut prompts, now) = (Prompts::default(), Instant::now());
    let all = MAX_ANSWERS as u16;
    assert!(prompts.open(question(1, 0, now), MAX_RULES));
    assert!(prompts.answer(1, None, Verdict::Reject, AnswerScope::Once));
    for port in 1..3 * all {
        assert!(prompts.open(question(2, port, now), MAX_RULES));
        assert!(prompts.expire(now, Verdict::Allow, |_, _| true).answers);
    }
    let rules = prompts.rules();
    assert_eq!(
        (rules.len(), rules[0].verdict),
        (MAX_ANSWERS, Verdict::Reject)
    );
    // Of people's answers the oldest goes, and nothing for what nobody has answered.
    for port in 0..2 * all {
        assert!(prompts.open(question(3, port, now), MAX_RULES));
        let id = prompts.questions()[0].id;
        assert!(prompts.answer(id, None, Verdict::Drop, AnswerScope::Run));
    }
    assert!(prompts.open(question(4, 1, now), MAX_RULES));
    prompts.expire(now, Verdict::Allow, |_, _| true);
    let is_denied = |rule: &Rule| rule.verdict == Verdict::Drop;
    assert!(prompts.rules().iter().all(is_denied));
}

/// `connect` to the unspecified address reaches this host, and only that is answered.
#[test]
fn an_answer_about_one_peer_is_about_no_other() {
    for (protocol, is_anybody) in [(Protocols::TCP, false), (Protocols::RAW, true)] {
        for peer in ["0.0.0.0", "::"] {
            let mut of = question(1, 443, Instant::now());
            of.peer = peer.parse().unwrap();
            (of.flow.peer, of.flow.protocol) = (of.peer, protocol);
            let rule = of.answer(Verdict::Allow, AnswerScope::Once, None).rule;
            assert_eq!(rule.place.to.is_none(), is_anybody, "{peer}");
        }
    }
}

#[test]
fn the_start_of_a_process_is_known_while_it_runs() {
    assert!(started(std::process::id()).is_some());
    assert_eq!(started(u32::MAX), None);
    let mut child = std::process::Command::new("cat")
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    assert!(started(child.id()).is_some());
    drop(child.stdin.take());
    let until = Instant::now() + Duration::from_secs(20);
    while started(child.id()).is_some() {
        assert!(Instant::now() < until, "a process that has ended is there");
        std::thread::yield_now();
    }
    assert!(child.wait().unwrap().success(), "only now it is gone");
}
