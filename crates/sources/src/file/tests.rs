use super::*;
use crate::{MAX_LINE, fs_call};
use proptest::prelude::*;
use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
};

const NOW: Duration = Duration::ZERO;
const SOON: Duration = Duration::from_secs(60);

fn source(patterns: &[&Path], from: Start) -> FileSource {
    let patterns = patterns
        .iter()
        .map(|p| p.to_str().expect("test paths are UTF-8").to_owned())
        .collect();
    FileSource::open(FileConfig {
        subscriptions: vec![patterns],
        from,
        held: Age::Backlog,
    })
    .expect("the patterns are good")
}

/// Where a run stood that looked for these.
fn since(patterns: &[&Path], positions: Vec<Position>) -> Start {
    let patterns = patterns.iter().map(|p| p.to_str().unwrap().to_owned());
    Start::Saved {
        positions,
        patterns: patterns.collect(),
    }
}

fn append(path: &Path, text: impl AsRef<[u8]>) {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    file.write_all(text.as_ref()).unwrap();
}

/// What a log in UTF-16 says, whose characters have bytes that look like newlines; it is
/// written byte by byte, and read on by another run.
#[test]
fn lines_of_utf16_end_at_their_newlines_only() {
    for big_endian in [false, true] {
        let bytes = |text: &str| -> Vec<u8> {
            let pair = |unit: u16| match big_endian {
                true => unit.to_be_bytes(),
                false => unit.to_le_bytes(),
            };
            text.encode_utf16().flat_map(pair).collect()
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        let mut from = Start::Beginning;
        append(&path, bytes("\u{feff}"));
        let mut expected = vec![];
        for (number, text) in ["a\u{10a}b", "\u{a00}\u{a0a}", "", "c"]
            .into_iter()
            .enumerate()
        {
            let mut source = source(&[&path], from.clone());
            let mut read = vec![];
            for byte in bytes(&format!("{text}\n")) {
                append(&path, [byte]);
                let info = source.read_batch(NOW, &mut |line, _| read.push(line.to_vec()));
                _ = info.unwrap();
            }
            let mark = if number == 0 { "\u{feff}" } else { "" };
            expected.push(bytes(&format!("{mark}{text}")));
            assert_eq!(read, expected[number..], "big endian: {big_endian}");
            from = match number {
                // The end, where nothing is unfinished.
                1 => Start::End,
                _ => since(&[&path], source.positions()),
            };
        }
    }
}

/// The lines and counts of one batch.
fn batch(source: &mut FileSource, timeout: Duration) -> (Vec<String>, BatchInfo) {
    let mut lines = vec![];
    let info = source
        .read_batch(timeout, &mut |line, _| {
            lines.push(String::from_utf8_lossy(line).into_owned())
        })
        .expect("reading works");
    (lines, info)
}

/// All lines that are there now.
fn lines(source: &mut FileSource) -> Vec<String> {
    let mut all = vec![];
    loop {
        let (lines, info) = batch(source, NOW);
        all.extend(lines);
        if !info.more && info.lines == 0 && info.problems.is_empty() {
            return all;
        }
    }
}

#[test]
fn lines_are_delivered_once_when_their_newline_arrives() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("auth.log");
    append(&log, "old\nhal");
    let mut source = source(&[&log], Start::End);
    assert!(lines(&mut source).is_empty());
    append(&log, "f");
    assert!(lines(&mut source).is_empty());
    append(&log, "\nnew\n\nä\0x\r\ntail");
    assert_eq!(lines(&mut source), ["half", "new", "", "ä\0x\r"]);
    append(&log, "\n");
    assert_eq!(lines(&mut source), ["tail"]);
    fs::write(dir.path().join("b.log"), [b'\xff', b'\0', b'\n']).unwrap();
    let mut raw = vec![];
    let mut source = self::source(&[&dir.path().join("b.log")], Start::Beginning);
    let _ = source
        .read_batch(NOW, &mut |line, _| raw.push(line.to_vec()))
        .unwrap();
    assert_eq!(raw, [b"\xff\0"]);
}

#[test]
fn the_end_of_a_log_is_read_back_in_whole_lines() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("auth.log");
    append(&log, "one\ntwo\nthree\n");
    for (bytes, expected) in [
        (0, &[][..]),
        (4, &[]),
        (6, &["three"]),
        (8, &["three"]),
        (100, &["one", "two", "three"]),
    ] {
        let mut source = source(&[&log], Start::Tail(bytes));
        let mut seen = Vec::new();
        let _ = source
            .read_batch(NOW, &mut |line, origin| {
                assert_eq!(origin.age, Age::Backlog);
                seen.push(String::from_utf8(line.to_vec()).unwrap());
            })
            .unwrap();
        assert_eq!(seen, expected, "{bytes}");
        append(&log, "later\n");
        assert_eq!(lines(&mut source), ["later"], "{bytes}");
        fs::write(&log, "one\ntwo\nthree\n").unwrap();
    }
}

#[test]
fn a_batch_ends_although_its_writer_does_not() {
    // What a batch leads to takes effect at its end: a server that logs faster
    // than it is read must not put that off.
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("busy.log");
    append(&log, "first\n");
    let mut source = source(&[&log], Start::Beginning);
    for round in 0..10 {
        let mut delivered = 0;
        let info = source
            .read_batch(SOON, &mut |_, _| {
                delivered += 1;
                append(&log, "and another\n");
            })
            .unwrap();
        assert_eq!((delivered, info.lines), (1, 1), "batch {round}");
    }
    assert_eq!(lines(&mut source), ["and another"]);
}

#[test]
fn a_write_wakes_the_reader() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("auth.log");
    append(&log, "");
    let mut source = source(&[&log], Start::End);
    assert!(lines(&mut source).is_empty());
    let writer = std::thread::spawn({
        let log = log.clone();
        move || {
            std::thread::sleep(Duration::from_millis(50));
            append(&log, "wake\n");
        }
    });
    let (found, _) = batch(&mut source, SOON);
    assert_eq!(found, ["wake"]);
    writer.join().unwrap();
}

/// Issue 13, R8: no log was read, and its lines were lost for good.
#[test]
fn without_inotify_files_are_looked_at() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    static SPENT: AtomicBool = AtomicBool::new(true);
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("auth.log");
    append(&log, "old\n");
    let config = FileConfig {
        subscriptions: vec![vec![log.to_str().unwrap().to_owned()]],
        from: Start::End,
        held: Age::Backlog,
    };
    let mut source = FileSource::open_with(config, || match SPENT.load(Relaxed) {
        true => Err(Errno::MFILE),
        false => watch(),
    })
    .unwrap();
    let (_, info) = batch(&mut source, NOW);
    assert_eq!(info.problems.len(), 1);
    assert!(info.problems[0].message.contains("max_user_instances"));
    for round in 0..2 {
        append(&log, format!("{round}\n"));
        let mut found = vec![];
        while found.is_empty() {
            found.extend(batch(&mut source, SOON).0);
        }
        assert_eq!(found, [round.to_string()]);
    }
    // Rotated meanwhile; then there is one again.
    fs::rename(&log, dir.path().join("auth.log.1")).unwrap();
    append(&log, "new\n");
    SPENT.store(false, Relaxed);
    let (mut found, mut resolved) = (vec![], false);
    while found.is_empty() || !resolved {
        let (lines, info) = batch(&mut source, SOON);
        found.extend(lines);
        resolved |= info.problems.iter().any(|problem| problem.resolved);
    }
    assert_eq!(found, ["new"]);
    assert!(source.tails.values().any(|tail| tail.watch.is_some()));
}

#[test]
fn a_renamed_file_is_finished_before_its_successor() {
    let dir = tempfile::tempdir().unwrap();
    let (log, old) = (dir.path().join("auth.log"), dir.path().join("auth.log.1"));
    append(&log, "a\n");
    let mut source = source(&[&log], Start::Beginning);
    assert_eq!(lines(&mut source), ["a"]);
    append(&log, "b\n");
    fs::rename(&log, &old).unwrap();
    append(&log, "d\n");
    append(&old, "c\n");
    assert_eq!(lines(&mut source), ["b", "c", "d"]);
    // Its writer has not opened the new one yet.
    append(&old, "e\n");
    assert_eq!(lines(&mut source), ["e"]);
    assert_eq!(source.positions().len(), 2);
    // A second rotation, by deletion.
    fs::remove_file(&log).unwrap();
    append(&log, "f\n");
    let (mut found, mut rotated) = (vec![], 0);
    while found.is_empty() {
        let (lines, info) = batch(&mut source, SOON);
        found.extend(lines);
        rotated += info.rotated;
    }
    assert_eq!((found, rotated), (vec!["f".to_owned()], 1));
}

/// A renamed file grows while its writer was not told to open the new one: nginx without a
/// signal, say.
#[test]
fn a_renamed_file_is_read_while_it_grows() {
    let dir = tempfile::tempdir().unwrap();
    let (log, old) = (dir.path().join("auth.log"), dir.path().join("auth.log.1"));
    append(&log, "a\n");
    let mut source = source(&[&log], Start::Beginning);
    assert_eq!(lines(&mut source), ["a"]);
    fs::rename(&log, &old).unwrap();
    append(&log, "new\n");
    assert_eq!(lines(&mut source), ["new"]);
    let a_minute_later = |source: &mut FileSource| {
        let retired = source.tails.values_mut().filter_map(|t| t.retired.as_mut());
        retired.for_each(|since| *since = since.checked_sub(LINGER * 2).unwrap());
    };
    for round in 0..3 {
        a_minute_later(&mut source);
        append(&old, format!("{round}\n"));
        assert_eq!(lines(&mut source), [round.to_string()]);
        assert_eq!(source.positions().len(), 2);
    }
    a_minute_later(&mut source);
    append(&old, "half a line");
    assert_eq!(lines(&mut source), [] as [&str; 0]);
    assert_eq!(source.positions().len(), 2);
    a_minute_later(&mut source);
    assert_eq!(lines(&mut source), ["half a line"]);
    assert_eq!(source.positions().len(), 1);
}

#[test]
fn a_truncated_or_rewritten_file_is_read_anew() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("auth.log");
    append(&log, "first\nsecond\npar");
    let mut source = source(&[&log], Start::Beginning);
    assert_eq!(lines(&mut source), ["first", "second"]);
    OpenOptions::new()
        .write(true)
        .open(&log)
        .unwrap()
        .set_len(0)
        .unwrap();
    append(&log, "third\n");
    let (found, info) = batch(&mut source, NOW);
    assert_eq!((found, info.truncated), (vec!["third".to_owned()], 1));
    // Rewritten to the same size, and to a greater one.
    for text in ["THIRD\n", "other first\nother second\n"] {
        fs::write(&log, text).unwrap();
        assert_eq!(lines(&mut source), text.lines().collect::<Vec<_>>());
    }
}

#[test]
fn missing_files_and_directories_are_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("a/b/auth.log");
    let mut source = source(&[&log], Start::End);
    let (_, info) = batch(&mut source, NOW);
    assert_eq!(info.problems.len(), 1);
    assert!(info.problems[0].message.contains("waiting"), "{info:?}");
    assert!(lines(&mut source).is_empty());
    assert_eq!(source.problems.len(), 1);
    fs::create_dir_all(log.parent().unwrap()).unwrap();
    append(&log, "first\n");
    let started = Instant::now();
    let mut found = vec![];
    while found.is_empty() {
        found.extend(batch(&mut source, SOON).0);
    }
    assert_eq!(found, ["first"]);
    assert!(started.elapsed() < SOON, "woken, not found by chance");
    assert_eq!(source.problems.len(), 0);
}

#[test]
fn globs_find_files_and_directories_that_come_later() {
    let dir = tempfile::tempdir().unwrap();
    let pattern = dir.path().join("*/x-*.log");
    fs::create_dir(dir.path().join("one")).unwrap();
    append(&dir.path().join("one/x-1.log"), "1\n");
    append(&dir.path().join("one/y-1.log"), "no\n");
    let mut source = source(&[&pattern], Start::Beginning);
    assert_eq!(lines(&mut source), ["1"]);
    append(&dir.path().join("one/x-2.log"), "2\n");
    assert_eq!(lines(&mut source), ["2"]);
    fs::create_dir(dir.path().join("two")).unwrap();
    assert!(lines(&mut source).is_empty());
    append(&dir.path().join("two/x-3.log"), "3\n");
    assert_eq!(lines(&mut source), ["3"]);
    // Renamed within the pattern: the same file, read on.
    fs::rename(
        dir.path().join("two/x-3.log"),
        dir.path().join("two/x-4.log"),
    )
    .unwrap();
    append(&dir.path().join("two/x-4.log"), "4\n");
    assert_eq!(lines(&mut source), ["4"]);
}

#[test]
fn a_restart_resumes() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("auth.log");
    append(&log, "a\nb\npart");
    let mut first = source(&[&log], Start::Beginning);
    assert_eq!(lines(&mut first), ["a", "b"]);
    let saved = first.positions();
    let saved: Vec<Position> =
        serde_json::from_str(&serde_json::to_string(&saved).unwrap()).unwrap();
    assert_eq!(saved[0].offset, 4);
    drop(first);
    append(&log, "ial\nc\n");
    let mut again = source(&[&log], since(&[&log], saved.clone()));
    assert_eq!(lines(&mut again), ["partial", "c"]);
    drop(again);
    // Rotated meanwhile: the old one from where it was, then the new one.
    fs::rename(&log, dir.path().join("auth.log.1")).unwrap();
    append(&log, "d\n");
    let mut again = source(&[&log], since(&[&log], saved.clone()));
    assert_eq!(lines(&mut again), ["partial", "c", "d"]);
    drop(again);
    // In the middle of a line, as nothing of ours stored it.
    let mut middle = saved[0].clone();
    middle.offset = 5;
    let old = dir.path().join("auth.log.1");
    let mut again = source(&[&old], since(&[&old], vec![middle]));
    assert_eq!(lines(&mut again), ["c"]);
    drop(again);
    // Deleted meanwhile.
    fs::remove_file(dir.path().join("auth.log.1")).unwrap();
    let mut again = source(&[&log], since(&[&log], saved));
    assert_eq!(lines(&mut again), ["d"]);
    // It was waited for, and came while nobody looked.
    let mut late = source(&[&log], since(&[&log], vec![]));
    assert_eq!(lines(&mut late), ["d"]);
    let mut fresh = source(&[&log], Start::End);
    assert!(lines(&mut fresh).is_empty());
}

#[test]
fn a_file_that_is_away_at_the_start_is_gone_on_with_when_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let (mount, elsewhere) = (dir.path().join("mnt"), dir.path().join("elsewhere"));
    fs::create_dir(&mount).unwrap();
    let log = mount.join("auth.log");
    append(&log, "a\nb\n");
    let mut first = source(&[&log], Start::Beginning);
    assert_eq!(lines(&mut first), ["a", "b"]);
    let mut saved = first.positions();
    drop(first);
    // Over two starts; the second one finds it.
    fs::rename(&mount, &elsewhere).unwrap();
    for found in [false, true] {
        let mut source = source(&[&log], since(&[&log], saved.clone()));
        assert!(lines(&mut source).is_empty());
        assert_eq!(source.positions(), saved);
        if found {
            append(&elsewhere.join("auth.log"), "c\n");
            fs::rename(&elsewhere, &mount).unwrap();
            source.rescan = true;
            assert_eq!(lines(&mut source), ["c"]);
            assert_eq!(source.positions()[0].offset, 6);
            assert_eq!(source.positions().len(), 1);
        }
        saved = source.positions();
    }
    // It was rotated while it was away.
    fs::rename(&mount, &elsewhere).unwrap();
    let mut late = source(&[&log], since(&[&log], saved));
    assert!(lines(&mut late).is_empty());
    let old = elsewhere.join("auth.log.1");
    fs::rename(elsewhere.join("auth.log"), &old).unwrap();
    append(&old, "d\n");
    append(&elsewhere.join("auth.log"), "e\n");
    fs::rename(&elsewhere, &mount).unwrap();
    late.rescan = true;
    assert_eq!(lines(&mut late), ["d", "e"]);
    assert_eq!(late.positions().len(), 2);
}

#[test]
fn positions_of_files_that_are_away_are_kept_as_long_as_they_may_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let (log, glob) = (dir.path().join("auth.log"), dir.path().join("*.log"));
    append(&log, "a\n");
    let mut first = source(&[&log], Start::Beginning);
    lines(&mut first);
    let saved = first.positions();
    drop(first);
    fs::remove_file(&log).unwrap();
    let kept = |patterns: &[&Path], saved: &[Position]| {
        let source = source(patterns, since(patterns, saved.to_vec()));
        source.positions().len()
    };
    assert_eq!(kept(&[&log], &saved), 1, "it is named");
    assert_eq!(kept(&[&glob], &saved), 0, "deleted");
    let other = Position {
        device: saved[0].device + 1,
        ..saved[0].clone()
    };
    assert_eq!(kept(&[&glob], &[other]), 1, "its file system is away");
    assert_eq!(
        kept(&[&dir.path().join("b.log")], &saved),
        0,
        "not asked for"
    );
    let many: Vec<Position> = (0..MAX_AWAY + 5)
        .map(|n| Position {
            path: dir.path().join(format!("{n}.log")),
            device: saved[0].device + 1,
            ..saved[0].clone()
        })
        .collect();
    assert_eq!(kept(&[&glob], &many), MAX_AWAY);
}

#[test]
fn how_far_it_has_read_is_known_while_it_waits() {
    struct Waits(FilePositions, std::sync::mpsc::Sender<Vec<u64>>);
    impl fs_call::Observer for Waits {
        fn begins(&self, _: &'static str, _: &Path) {
            let reached = self.0.positions();
            let _ = self.1.send(reached.iter().map(|p| p.offset).collect());
        }
        fn ended(&self) {}
    }
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.log"), dir.path().join("b.log"));
    for log in [&a, &b] {
        append(log, "one\n");
    }
    let mut source = source(&[&a, &b], Start::Beginning);
    let (calls, seen) = std::sync::mpsc::channel();
    fs_call::observe(Waits(source.reached.clone(), calls));
    assert_eq!(lines(&mut source), ["one", "one"]);
    let seen: Vec<_> = seen.try_iter().collect();
    // Before the first line, and between the files.
    for offsets in [[0, 0], [4, 0]] {
        assert!(seen.contains(&offsets.to_vec()), "{seen:?}");
    }
}

/// The first bytes of a file are read again, to know it by: where that fails, what
/// was read before is no less unread.
#[test]
fn root_what_cannot_be_read_is_told_once_and_read_later() {
    use weir_testkit::fuse::{FuseLog, missing};

    if let Some(why) = missing() {
        println!("skipped: {why}");
        return;
    }
    for bytes in [HEAD_AND_LESS, u32::MAX] {
        let log = FuseLog::mount().unwrap();
        log.append("one\ntwo\n");
        let mut source = source(&[&log.path()], Start::Beginning);
        let mut look = || {
            // As every few seconds.
            source.scanned = None;
            let (lines, info) = batch(&mut source, NOW);
            let problems = info.problems.into_iter();
            let told: Vec<_> = problems.map(|p| (p.message, p.resolved)).collect();
            (lines, told)
        };
        log.fail_reads_up_to(bytes);
        let (none, told) = look();
        assert_eq!((none, told.len()), (vec![], 1), "{told:?}");
        assert!(told[0].0.starts_with("cannot read: "), "{told:?}");
        for _ in 0..3 {
            assert_eq!(look(), (vec![], vec![]));
        }
        log.fail_reads_up_to(0);
        assert_eq!(look().0, ["one", "two"]);
        assert_eq!(look().1, [("can be read again".to_owned(), true)]);
        assert_eq!(look(), (vec![], vec![]));
    }
}

/// No more is read of a file to know it by.
const HEAD_AND_LESS: u32 = 256;

#[test]
fn a_file_that_is_added_begins_at_its_end_and_the_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("auth.log");
    let (added, glob) = (dir.path().join("more/a.log"), dir.path().join("*/*.log"));
    fs::create_dir(dir.path().join("more")).unwrap();
    append(&log, "a\n");
    append(&added, "long ago\n");
    let mut first = source(&[&log], Start::Beginning);
    assert_eq!(lines(&mut first), ["a"]);
    let saved = first.positions();
    drop(first);
    append(&log, "b\n");
    let mut both = source(&[&glob, &log], since(&[&log], saved));
    assert_eq!(lines(&mut both), ["b"]);
    append(&added, "now\n");
    assert_eq!(lines(&mut both), ["now"]);
    // What the same pattern found before is new now.
    let mut again = source(&[&glob], since(&[&glob], vec![]));
    assert_eq!(lines(&mut again), ["long ago", "now"]);
}

#[test]
fn a_line_of_10_mib_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("auth.log");
    let mut source = source(&[&log], Start::Beginning);
    let mut text = vec![b'x'; 10 << 20];
    text.extend(b"\nnext\n");
    append(&log, &text);
    let (mut found, mut cut) = (vec![], 0);
    while found.len() < 2 {
        let (lines, info) = batch(&mut source, SOON);
        found.extend(lines);
        cut += info.cut;
    }
    assert_eq!(found[0].len(), MAX_LINE);
    assert_eq!((found[1].as_str(), cut), ("next", 1));
    let tail = source.tails.values().next().unwrap();
    assert!(tail.held() <= 2 * MAX_LINE, "{} bytes held", tail.held());
}

#[test]
fn what_cannot_be_read_is_told_once_and_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("auth.log");
    // A directory in its place: root reads everything else.
    fs::create_dir(&log).unwrap();
    let mut source = source(&[&log], Start::Beginning);
    let (_, info) = batch(&mut source, NOW);
    assert!(
        info.problems[0].message.contains("not a regular file"),
        "{info:?}"
    );
    assert!(batch(&mut source, NOW).1.problems.is_empty(), "told once");
    fs::remove_dir(&log).unwrap();
    append(&log, "x\n");
    assert_eq!(lines(&mut source), ["x"]);
    for pattern in ["auth.log", "/var/log/[", "/var/log/a***"] {
        let config = FileConfig {
            subscriptions: vec![vec![pattern.into()]],
            from: Start::End,
            held: Age::Backlog,
        };
        assert!(
            matches!(FileSource::open(config), Err(SourceError::Pattern { .. })),
            "{pattern}"
        );
    }
}

#[test]
fn a_symbolic_links_target_may_rotate() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("real")).unwrap();
    let (target, link) = (dir.path().join("real/log"), dir.path().join("log"));
    append(&target, "a\n");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let mut source = source(&[&link], Start::Beginning);
    assert_eq!(lines(&mut source), ["a"]);
    fs::rename(&target, dir.path().join("real/log.1")).unwrap();
    append(&target, "b\n");
    assert_eq!(lines(&mut source), ["b"]);
}

#[derive(Clone, Debug)]
enum Step {
    Write(String),
    Rename,
    Truncate,
    Rewrite(String),
    Delete,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let text = "([a-z]{0,12}\n){0,4}[a-z]{0,6}";
    prop_oneof![
        6 => text.prop_map(Step::Write),
        1 => Just(Step::Rename),
        1 => Just(Step::Truncate),
        1 => "([A-Z]{3,12}\n){1,4}".prop_map(Step::Rewrite),
        1 => Just(Step::Delete),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Every complete line is delivered once and in order. Read after each
    /// step, as what is truncated unread is lost.
    #[test]
    fn as_the_model(steps in prop::collection::vec(step(), 1..25)) {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut source = source(&[&log], Start::Beginning);
        // What the file holds behind its last newline.
        let mut unfinished = String::new();
        let mut renamed = 0;
        for (n, step) in steps.into_iter().enumerate() {
            let mut expected = vec![];
            match step {
                Step::Write(text) => {
                    // Numbered, as stamped lines differ.
                    let text = text.replace('\n', &format!("{n}\n"));
                    append(&log, &text);
                    unfinished.push_str(&text);
                    let mut parts: Vec<_> = unfinished.split('\n').map(String::from).collect();
                    unfinished = parts.pop().unwrap_or_default();
                    expected = parts;
                }
                Step::Rename => {
                    if log.exists() {
                        renamed += 1;
                        fs::rename(&log, dir.path().join(format!("log.{renamed}"))).unwrap();
                    }
                    unfinished.clear();
                }
                Step::Truncate => {
                    fs::write(&log, "").unwrap();
                    unfinished.clear();
                }
                Step::Rewrite(text) => {
                    let text = text.replace('\n', &format!("{n}\n"));
                    let before = fs::read_to_string(&log).unwrap_or_default();
                    fs::write(&log, &text).unwrap();
                    // A rewrite that begins with all that was there is an append.
                    prop_assume!(before.is_empty() || !text.starts_with(&before));
                    expected = text.lines().map(String::from).collect();
                    unfinished.clear();
                }
                Step::Delete => {
                    let _ = fs::remove_file(&log);
                    unfinished.clear();
                }
                Step::Restart => {
                    let saved = source.positions();
                    // Without a position it would begin at the end.
                    if !saved.is_empty() {
                        source = self::source(&[&log], since(&[&log], saved));
                    }
                }
            }
            prop_assert_eq!(lines(&mut source), expected);
        }
    }
}

/// The age of lines: those that were there are a backlog, those that came since are new,
/// and of a file that appears as a whole nobody knows.
#[test]
fn lines_know_whether_they_are_a_backlog() {
    let dir = tempfile::tempdir().unwrap();
    let (log, new) = (dir.path().join("a.log"), dir.path().join("b.log"));
    append(&log, "one\ntwo\nhal");
    let pattern = dir.path().join("*.log");
    let mut source = source(&[&pattern], Start::Beginning);
    let mut read = || {
        let mut lines = Vec::new();
        loop {
            let info = source.read_batch(NOW, &mut |line, origin| {
                lines.push((String::from_utf8_lossy(line).into_owned(), origin.age));
            });
            let info = info.unwrap();
            if !info.more && info.lines == 0 && info.problems.is_empty() {
                return lines;
            }
        }
    };
    let line = |line: &str, age| (line.to_owned(), age);
    assert_eq!(
        read(),
        [line("one", Age::Backlog), line("two", Age::Backlog)]
    );
    append(&log, "f\nthree\n");
    assert_eq!(
        read(),
        [line("half", Age::Backlog), line("three", Age::Live)]
    );
    let other = dir.path().join("other");
    append(&other, "old\n");
    fs::rename(&other, &new).unwrap();
    assert_eq!(read(), [line("old", Age::Unknown)]);
    append(&new, "four\n");
    assert_eq!(read(), [line("four", Age::Live)]);
    // Emptied by its writer, or overwritten with an old log.
    fs::write(&new, "five\n").unwrap();
    assert_eq!(read(), [line("five", Age::Unknown)]);
    append(&new, "six\n");
    assert_eq!(read(), [line("six", Age::Live)]);
}

/// Lines with the numbers of those who read them.
fn read_for(source: &mut FileSource) -> (Vec<(String, Vec<usize>)>, u64) {
    let (mut all, mut bytes) = (vec![], 0);
    loop {
        let info = source
            .read_batch(NOW, &mut |line, origin| {
                let readers = (0..9).filter(|reader| origin.readers.has(*reader));
                all.push((
                    String::from_utf8_lossy(line).into_owned(),
                    readers.collect(),
                ));
            })
            .expect("reading works");
        bytes += info.bytes;
        if info.lines == 0 && !info.more {
            all.sort();
            return (all, bytes);
        }
    }
}

#[test]
fn a_file_is_read_once_for_all_who_subscribe_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let patterns = |names: &[&str]| -> Vec<String> {
        let all = names.iter().map(|name| path(name).display().to_string());
        all.collect()
    };
    let open = |from| {
        FileSource::open(FileConfig {
            subscriptions: vec![
                patterns(&["a.log"]),
                patterns(&["a.log", "b.log"]),
                patterns(&["*.log"]),
                patterns(&["none.txt"]),
                patterns(&["a*"]),
            ],
            from,
            held: Age::Backlog,
        })
        .unwrap()
    };
    append(&path("a.log"), "a1\n");
    append(&path("b.log"), "b1\n");
    append(&path("c.log"), "c1\n");
    let mut first = open(Start::Beginning);
    let of = |line: &str, readers: &[usize]| (line.to_owned(), readers.to_vec());
    let (lines, bytes) = read_for(&mut first);
    assert_eq!(
        lines,
        [of("a1", &[0, 1, 2, 4]), of("b1", &[1, 2]), of("c1", &[2])]
    );
    assert_eq!((first.tails.len(), bytes), (3, 9), "opened and read once");
    // A file that is rotated away is still its subscribers', by its old name,
    // also when the pattern of one of them finds it by the new one.
    fs::rename(path("a.log"), path("a.log.1")).unwrap();
    append(&path("a.log.1"), "a2\n");
    append(&path("a.log"), "a3\n");
    first.rescan = true;
    let (lines, _) = read_for(&mut first);
    assert_eq!(lines, [of("a2", &[0, 1, 2, 4]), of("a3", &[0, 1, 2, 4])]);
    // So is one that was rotated while nobody looked.
    let saved = Start::Saved {
        positions: first.positions(),
        patterns: patterns(&["*.log", "a.log", "a*"]),
    };
    drop(first);
    append(&path("a.log.1"), "a4\n");
    fs::rename(path("b.log"), path("b.log.1")).unwrap();
    append(&path("b.log.1"), "b2\n");
    append(&path("b.log"), "b3\n");
    let mut second = open(saved);
    let (lines, _) = read_for(&mut second);
    assert_eq!(
        lines,
        [
            of("a4", &[0, 1, 2, 4]),
            of("b2", &[1, 2]),
            of("b3", &[1, 2])
        ]
    );
    // Another name of a file makes it another reader's as well.
    std::os::unix::fs::symlink(path("c.log"), path("none.txt")).unwrap();
    append(&path("c.log"), "c2\n");
    second.rescan = true;
    assert_eq!(read_for(&mut second).0, [of("c2", &[2, 3])]);
}

/// Of more files than are followed those with a name of their own are found first.
#[test]
fn patterns_without_a_wildcard_come_first() {
    let all = [&["/a/*", "/b"][..], &["/c", "/a/*"]];
    let all = all.map(|some| some.iter().map(|one| (*one).to_owned()).collect());
    let found: Vec<_> = subscribed(all.to_vec())
        .into_iter()
        .map(|subscribed| (subscribed.pattern, subscribed.by))
        .collect();
    let of = |pattern: &str, by: &[usize]| (pattern.to_owned(), by.to_vec());
    assert_eq!(found, [of("/b", &[0]), of("/c", &[1]), of("/a/*", &[0, 1])]);
}

/// A line of a log with stamps, as long as most are.
fn stamped(n: usize) -> String {
    format!(
        "2026-11-24T01:02:03 host sshd[{n}]: Failed password for root from 192.0.2.{n} port 22\n"
    )
}

/// Puts `text` in the place of a log as `sed -i` and rsync do; `aside`: the old one
/// keeps a name, as with `sed -i.bak`.
fn replace(log: &Path, text: &str, aside: Option<&Path>) {
    let new = log.with_extension("new");
    fs::write(&new, text).unwrap();
    if let Some(aside) = aside {
        fs::rename(log, aside).unwrap();
    }
    fs::rename(new, log).unwrap();
}

fn joined(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Failures that an editor or `sed -i` wrote out again were counted twice.
#[test]
fn a_copy_in_the_place_of_a_log_is_not_read_again() {
    let text = |lines: std::ops::Range<usize>| lines.map(stamped).collect::<String>();
    type Edit = fn(String) -> String;
    let edits: [(&str, Edit); 3] = [
        ("copied", |text| text),
        ("longer", |text| text.replace("[4]", "[forty-four]")),
        ("shorter", |text| text.replace(&stamped(2), "")),
    ];
    for (name, edit) in edits {
        for keep in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (log, bak) = (dir.path().join("auth.log"), dir.path().join("bak"));
            append(&log, text(0..40));
            let mut running = source(&[&log], Start::Beginning);
            assert_eq!(lines(&mut running).len(), 40, "{name}");
            let saved = running.positions();
            // Two that were not read yet are in the copy, and one that came later is
            // in the old file only.
            append(&log, text(40..42) + "half a li");
            let old = OpenOptions::new().append(true).open(&log).unwrap();
            replace(
                &log,
                &(edit(text(0..42)) + "half a li"),
                keep.then_some(&bak),
            );
            (&old).write_all(b"ne\nold only\n").unwrap();
            append(&log, "ne\nnew only\n");
            let mut all = lines(&mut running);
            all.sort();
            let both = text(40..42) + "half a line\nnew only\nold only\n";
            assert_eq!(joined(&all), both, "{name} {keep}");
            // The same over a restart: of the old one nobody has more if it is deleted.
            let mut again = source(&[&log], since(&[&log], saved));
            let mut all = lines(&mut again);
            all.sort();
            let old = if keep { "old only\n" } else { "" };
            let both = text(40..42) + "half a line\nnew only\n" + old;
            // Of an edited one that was deleted as well nobody knows the place.
            if keep || name == "copied" {
                assert_eq!(joined(&all), both, "{name} {keep}");
            }
        }
    }
}

/// Lines without time stamps look alike; a rotated log's successor is no copy.
#[test]
fn a_successor_that_begins_alike_is_read_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (log, old) = (dir.path().join("app.log"), dir.path().join("app.log.1"));
    let alike = "refused 192.0.2.7\n".repeat(20);
    append(&log, &alike);
    let mut source = source(&[&log], Start::Beginning);
    assert_eq!(lines(&mut source).len(), 20);
    fs::rename(&log, &old).unwrap();
    append(&log, &alike);
    assert_eq!(lines(&mut source).len(), 20, "renamed");
    // Made after the old one was deleted: not at the same tick of a coarse clock.
    fs::remove_file(&log).unwrap();
    let deleted = std::time::SystemTime::now();
    let probe = dir.path().join("probe");
    while fs::write(&probe, "").is_ok()
        && fs::metadata(&probe).unwrap().created().unwrap() <= deleted + Duration::from_millis(8)
    {
        fs::remove_file(&probe).unwrap();
    }
    append(&log, &alike);
    assert_eq!(lines(&mut source).len(), 20, "deleted");
}

/// What logrotate's copytruncate left while nobody looked was skipped, and nobody
/// was told.
#[test]
fn what_was_copied_and_truncated_meanwhile_is_finished() {
    let dir = tempfile::tempdir().unwrap();
    let (log, copy) = (dir.path().join("auth.log"), dir.path().join("auth.log.1"));
    append(&log, (0..10).map(stamped).collect::<String>());
    let mut first = source(&[&log], Start::Beginning);
    assert_eq!(lines(&mut first).len(), 10);
    let saved = first.positions();
    drop(first);
    append(&log, stamped(10));
    fs::copy(&log, &copy).unwrap();
    fs::write(&log, stamped(11)).unwrap();
    // Another one that only begins with its name.
    append(&dir.path().join("auth.log.note"), stamped(5));
    let mut again = source(&[&log], since(&[&log], saved.clone()));
    assert_eq!(joined(&lines(&mut again)), stamped(10) + &stamped(11));
    // Compressed: nobody can read on in it, and that is told.
    fs::remove_file(&copy).unwrap();
    let mut again = source(&[&log], since(&[&log], saved.clone()));
    let (found, info) = batch(&mut again, NOW);
    assert_eq!(joined(&found), stamped(11));
    let warning = info.warnings.concat();
    let behind = format!("lines behind byte {} are lost", saved[0].offset);
    assert!(
        warning.contains("auth.log was rotated, truncated or deleted"),
        "{warning}"
    );
    assert!(warning.contains(&behind), "{warning}");
    // Nothing is missing when it goes on where it stood.
    let saved = again.positions();
    let mut again = source(&[&log], since(&[&log], saved));
    assert_eq!(batch(&mut again, NOW).1.warnings, [] as [&str; 0]);
}

/// The inode of a deleted log goes to the next file that is made, which may be
/// anybody's: its lines went to the deleted log's jail.
#[test]
fn a_position_in_an_empty_file_finds_no_other_log() {
    let dir = tempfile::tempdir().unwrap();
    let (mail, auth) = (dir.path().join("mail.log"), dir.path().join("auth.log"));
    append(&mail, "");
    append(&auth, "a\n");
    let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let empty = Position {
        path: mail.clone(),
        device: 0,
        inode: inode(&auth),
        offset: 0,
        fingerprint: Fingerprint::of(b""),
    };
    let subscriptions = [&mail, &auth].map(|path| vec![path.to_str().unwrap().to_owned()]);
    let patterns = subscriptions.concat();
    let mut source = FileSource::open(FileConfig {
        subscriptions: subscriptions.to_vec(),
        from: Start::Saved {
            positions: vec![empty.clone()],
            patterns,
        },
        held: Age::Backlog,
    })
    .unwrap();
    assert_eq!(read_for(&mut source).0, [("a".to_owned(), vec![1])]);
    // Rotated while it was empty, it is still found.
    let old = dir.path().join("mail.log.1");
    fs::rename(&mail, &old).unwrap();
    append(&old, "b\n");
    append(&mail, "c\n");
    let position = Position {
        inode: inode(&old),
        ..empty
    };
    let mut source = self::source(&[&mail], since(&[&mail], vec![position]));
    assert_eq!(lines(&mut source), ["b", "c"]);
}

/// A writer that was not told of the rotation, and writes a line an hour, was given up
/// after a minute.
#[test]
fn a_renamed_file_is_kept_until_its_writer_has_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let (log, old) = (dir.path().join("auth.log"), dir.path().join("auth.log.1"));
    append(&log, "a\n");
    let mut source = source(&[&log], Start::Beginning);
    assert_eq!(lines(&mut source), ["a"]);
    fs::rename(&log, &old).unwrap();
    let later = |source: &mut FileSource, by: Duration| {
        let retired = source.tails.values_mut().filter_map(|t| t.retired.as_mut());
        retired.for_each(|since| *since = since.checked_sub(by).unwrap());
        source.rescan = true;
        let found = lines(source);
        (found, source.positions().len())
    };
    assert_eq!(lines(&mut source), [] as [&str; 0]);
    assert_eq!(later(&mut source, LINGER * 2), (vec![], 1), "no successor");
    append(&log, "");
    assert_eq!(later(&mut source, LINGER * 2), (vec![], 2), "an empty one");
    append(&old, "b\n");
    assert_eq!(later(&mut source, LINGER * 2), (vec!["b".into()], 2));
    assert_eq!(later(&mut source, LINGER_UNTOLD - LINGER), (vec![], 2));
    assert_eq!(later(&mut source, LINGER * 2), (vec![], 1), "a day");
    // A deleted one keeps its place on the disk: not for long.
    fs::remove_file(&log).unwrap();
    append(&log, "");
    assert_eq!(later(&mut source, Duration::ZERO), (vec![], 2));
    assert_eq!(later(&mut source, LINGER * 2), (vec![], 1), "deleted");
}

#[test]
fn a_long_rotated_file_holds_up_its_successor_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    append(&path("a.log"), "");
    append(&path("b.log"), "");
    let mut source = FileSource::open(FileConfig {
        subscriptions: vec![vec![path("*.log").display().to_string()]],
        from: Start::Beginning,
        held: Age::Backlog,
    })
    .unwrap();
    read_for(&mut source);
    append(&path("a.log"), "old\n".repeat(100_000));
    fs::rename(path("a.log"), path("a.log.1")).unwrap();
    append(&path("a.log"), "next\n");
    append(&path("b.log"), "other\n");
    source.rescan = true;
    let mut lines = Vec::new();
    let info = source
        .read_batch(NOW, &mut |line, _| lines.push(line.to_vec()))
        .unwrap();
    assert!(info.more);
    assert!(lines.len() < 100_000 && lines.contains(&b"other".to_vec()));
    assert!(!lines.contains(&b"next".to_vec()));
    let (rest, _) = read_for(&mut source);
    assert_eq!(lines.len() + rest.len(), 100_002);
    assert!(rest.iter().any(|(line, _)| line == "next"));
}
