//! A real nginx under the shim: every line of it reaches the ring, whole, once
//! and in order, whatever happens to its files and to itself.

mod common;

use common::nginx::Nginx;
use common::{Lines, ServerFiles, assert_same, wait_for};

/// Requests `/<name>/<number>` for each number; none of them exists.
fn ask(nginx: &Nginx, name: &str, numbers: std::ops::Range<usize>) {
    let mut client = nginx.client();
    for number in numbers {
        assert_eq!(client.get(&format!("/{name}/{number}")), 404);
    }
}

/// Fails unless the ring has each of these requests once, and all of them in
/// one segment in the order of asking, since one worker served them.
fn assert_asked(lines: &mut Lines, name: &str, numbers: std::ops::Range<usize>) {
    let of = |line: &str| -> Option<usize> {
        let rest = line.split(&format!("\"GET /{name}/")).nth(1)?;
        assert!(rest.contains(" HTTP/1.1\" 404 "), "not whole: {line}");
        rest.split(' ').next()?.parse().ok()
    };
    lines.with(&format!("] \"GET /{name}/"), numbers.len());
    let segments: Vec<Vec<usize>> = lines
        .by_segment
        .values()
        .map(|lines| {
            let of = |line: &String| line.contains("] \"GET /").then(|| of(line))?;
            lines.iter().filter_map(of).collect()
        })
        .filter(|numbers: &Vec<usize>| !numbers.is_empty())
        .collect();
    assert_eq!(segments, [numbers.collect::<Vec<_>>()], "{name}");
}

#[test]
fn access_and_error_lines_go_to_the_ring_and_not_to_the_files() {
    let place = ServerFiles::new();
    let mut lines = place.reader();
    let nginx = Nginx::start(&place, &["*.log"], false);
    std::thread::scope(|scope| {
        for name in ["a", "b", "c", "d"] {
            let nginx = &nginx;
            scope.spawn(move || ask(nginx, name, 0..500));
        }
    });
    for name in ["a", "b", "c", "d"] {
        assert_asked(&mut lines, name, 0..500);
    }
    let errors = lines.with("failed (2: No such file or directory)", 2000);
    assert!(errors.iter().all(|line| line.contains("[error]")));
    assert_eq!(errors.len(), 2000);
    assert!(place.lines_of("access.log").is_empty());
    assert!(place.lines_of("error.log").is_empty());
    let said = place.lines_of("stderr.txt");
    assert!(
        !said.iter().any(|line| line.contains("weir-ring-preload")),
        "{said:?}"
    );
}

#[test]
fn with_tee_the_file_has_the_same_lines() {
    let place = ServerFiles::new();
    let mut lines = place.reader();
    let nginx = Nginx::start(&place, &["access.log"], true);
    for name in ["a", "b", "c"] {
        ask(&nginx, name, 0..100);
    }
    lines.with("GET /", 300);
    assert_same(&lines.by_segment, &place.lines_of("access.log"));
    // Not named, so it is as without the shim.
    assert!(place.lines_of("error.log").len() >= 300);
}

#[test]
fn rotation_loses_nothing() {
    for tee in [true, false] {
        let place = ServerFiles::new();
        let mut lines = place.reader();
        let nginx = Nginx::start(&place, &["access.log"], tee);
        ask(&nginx, "before", 0..200);
        std::thread::scope(|scope| {
            let during = scope.spawn(|| ask(&nginx, "during", 0..2000));
            std::fs::rename(place.file("access.log"), place.file("access.log.1")).expect("moved");
            nginx.reopen(&place);
            wait_for("every process has the new file", || {
                let new = place.file("access.log");
                let has = |process: &u32| {
                    let Ok(open) = std::fs::read_dir(format!("/proc/{process}/fd")) else {
                        return false;
                    };
                    open.flatten()
                        .any(|entry| std::fs::read_link(entry.path()).is_ok_and(|file| file == new))
                };
                (new.exists() && nginx.workers().iter().all(has)).then_some(())
            });
            during.join().expect("all answered");
        });
        ask(&nginx, "after", 0..200);
        for (name, count) in [("before", 200), ("during", 2000), ("after", 200)] {
            assert_asked(&mut lines, name, 0..count);
        }
        let mut kept = place.lines_of("access.log.1");
        assert_eq!(kept.is_empty(), !tee);
        let new = place.lines_of("access.log");
        assert_eq!(
            new.iter().filter(|line| line.contains("/after/")).count(),
            if tee { 200 } else { 0 }
        );
        kept.extend(new);
        if tee {
            assert_same(&lines.by_segment, &kept);
        }
    }
}

#[test]
fn sigkill_leaves_the_ring_readable_and_a_restart_goes_on_in_it() {
    let place = ServerFiles::new();
    let mut nginx = Nginx::start(&place, &["access.log"], false);
    ask(&nginx, "first", 0..300);
    // nginx logs a request after its answer.
    let mut lines = place.reader();
    lines.with("GET /first/", 300);
    nginx.running.kill();
    drop(lines);

    let mut lines = place.reader();
    assert_asked(&mut lines, "first", 0..300);
    let names = || std::fs::read_dir(place.ring()).expect("the ring").count();
    let before = names();
    let nginx = Nginx::start(&place, &["access.log"], false);
    ask(&nginx, "second", 0..300);
    assert_asked(&mut lines, "second", 0..300);
    assert_eq!(names(), before, "segments are used again");
}

#[test]
fn without_a_ring_the_lines_are_in_the_file_and_nginx_says_why_once() {
    let place = ServerFiles::new();
    // A directory cannot be made where a file is.
    std::fs::remove_dir(place.ring()).expect("empty");
    std::fs::write(place.ring(), "in the way").expect("a file");
    let nginx = Nginx::start(&place, &["*.log"], false);
    ask(&nginx, "x", 0..100);
    let logged = || {
        let lines = place.lines_of("access.log");
        let asked = lines.iter().filter(|line| line.contains("GET /x/"));
        (asked.count() == 100).then_some(())
    };
    wait_for("the lines in the file", logged);
    let said = place.lines_of("stderr.txt");
    let ours: Vec<&String> = said
        .iter()
        .filter(|line| line.contains("weir-ring-preload"))
        .collect();
    assert_eq!(ours.len(), 1, "{said:?}");
    assert!(ours[0].ends_with("logging to files instead"), "{said:?}");
    drop(nginx);
    std::fs::remove_file(place.ring()).expect("ours");
    std::fs::create_dir(place.ring()).expect("for its guard");
}
