//! A C program and a Python program under the shim, which log in every way
//! that it claims to see, and what its library exports.

mod common;

use std::collections::BTreeMap;
use std::process::{Command, Output};

use common::{ServerFiles, shim};

const LINES: &[&str] = &[
    "write",
    "two lines at once",
    "in two parts",
    "writev in",
    "three parts",
    "open",
    "dup",
    "dup2",
    "dup3",
    "fcntl",
    "no end",
    "creat",
    "openat",
    "fprintf 1",
    "vfprintf x",
    "fputs",
    "putc",
    "fwrite",
    "written by fclose",
    "line buffered",
    "from a signal handler",
    "parent after vfork",
    "after closefrom",
];

fn succeed(command: &mut Command) -> Output {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.is_empty(), "{errors}");
    output
}

fn compile(place: &ServerFiles) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program.c");
    let strict = ["-Wall", "-Wextra", "-Werror", "-std=c11", "-pthread"];
    let fortified = ["-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"];
    let mut gcc = Command::new("gcc");
    gcc.args(strict).args(fortified).arg(source);
    succeed(gcc.arg("-o").arg(place.file("program")));
}

#[test]
fn every_way_to_write_is_seen() {
    let place = ServerFiles::new();
    compile(&place);
    let mut command = place.under_shim(place.file("program"), &["program.log"], false);
    succeed(command.arg(place.file("program.log")));
    let mut lines = place.reader();
    lines.read();
    assert!(place.lines_of("program.log").is_empty());

    let mut threads: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut children = Vec::new();
    let mut main = Vec::new();
    for line in lines.all() {
        if let Some((thread, number)) = line.split_once(" line ") {
            let number = number.parse().expect("a whole line");
            threads.entry(thread.to_owned()).or_default().push(number);
        } else if line.starts_with("child of ") {
            children.push(line);
        } else {
            main.push(line);
        }
    }
    assert_eq!(main, LINES);
    children.sort();
    assert_eq!(children, ["child of _Fork", "child of fork"]);
    let each: Vec<usize> = (0..1000).collect();
    assert_eq!(threads.len(), 4);
    assert!(threads.values().all(|numbers| *numbers == each));
}

#[test]
fn with_tee_the_file_is_what_it_is_without_the_shim() {
    let place = ServerFiles::new();
    compile(&place);
    let log = |name: &str, command: &mut Command| {
        succeed(command.arg(place.file(name)));
        let mut lines = place.lines_of(name);
        // Threads come in any order.
        lines.sort();
        lines
    };
    let plain = log("plain.log", &mut Command::new(place.file("program")));
    let mut command = place.under_shim(place.file("program"), &["teed.log"], true);
    assert_eq!(log("teed.log", &mut command), plain);
    let mut lines = place.reader();
    lines.read();
    assert_eq!(lines.all().len(), 4000 + LINES.len() + 2);
}

#[test]
fn python_logs_through_the_shim_across_subprocesses_and_forks() {
    let place = ServerFiles::new();
    let program = "
import logging, os, subprocess, sys, threading
logging.basicConfig(filename=sys.argv[1], format='%(message)s')
log = logging.warning
log('main')
subprocess.run(['/bin/true'], check=True, close_fds=True)
log('after subprocess')
thread = threading.Thread(target=log, args=['thread'])
thread.start(); thread.join()
child = os.fork()
if child == 0:
    log('child'); os._exit(0)
assert os.waitpid(child, 0)[1] == 0
with open(sys.argv[1], 'a') as file:
    print('print', file=file)
log('end')
";
    let mut command = place.under_shim("/usr/bin/python3", &["*.log"], false);
    succeed(command.args(["-c", program]).arg(place.file("a.log")));
    let mut lines = place.reader();
    lines.read();
    let mut all = lines.all();
    all.sort();
    let expected = [
        "after subprocess",
        "child",
        "end",
        "main",
        "print",
        "thread",
    ];
    assert_eq!(all, expected);
    assert!(place.lines_of("a.log").is_empty());
}

#[test]
fn a_bad_setting_is_told_and_changes_nothing() {
    let place = ServerFiles::new();
    let mut command = place.under_shim("/bin/sh", &["a.log"], false);
    command.env("WEIR_RING_TEE", "perhaps");
    command
        .args(["-c", "echo line >$0"])
        .arg(place.file("a.log"));
    let output = command.output().expect("sh");
    assert!(output.status.success());
    assert_eq!(place.lines_of("a.log"), ["line"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        said,
        "weir-ring-preload: WEIR_RING_TEE must be 0 or 1; doing nothing\n"
    );
}

#[test]
fn the_library_exports_what_it_stands_in_for_and_nothing_of_the_rings() {
    let output = succeed(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(shim()),
    );
    let names = String::from_utf8_lossy(&output.stdout);
    let names: Vec<&str> = names
        .lines()
        .filter_map(|line| line.split(' ').nth(2))
        .collect();
    for name in [
        "open",
        "open64",
        "__openat64_2",
        "fopen64",
        "writev",
        "close",
        "closefrom",
    ] {
        assert!(names.contains(&name), "{name}");
    }
    let foreign: Vec<&&str> = names
        .iter()
        .filter(|name| name.starts_with("weir") || name.starts_with("rust"))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}
