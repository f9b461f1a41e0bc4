//! weir called as `fail2ban-regex`, beside the real one where that is installed: the same
//! lines are matched, of the same hosts at the same times, and the same text is printed.

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

const REAL: &str = "/usr/bin/fail2ban-regex";
const CONFIG: &str = "/etc/fail2ban";
/// Samples lines from the expressions of filters.
const LINES: &str = include_str!("fail2ban_regex/lines.py");

/// Is Fail2ban's own tool here, with the package's filters?
fn real() -> bool {
    let is_there = [REAL, "/etc/fail2ban/filter.d/sshd.conf"]
        .iter()
        .all(|path| Path::new(path).exists());
    if !is_there {
        eprintln!("skipped: fail2ban package: there is no {REAL} with its filters");
    }
    is_there
}

struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = TempDir::with_prefix("weir-regex-").unwrap();
        let link = dir.path().join("fail2ban-regex");
        symlink(env!("CARGO_BIN_EXE_weir"), link).unwrap();
        Self { dir }
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn run(&self, program: &Path, args: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(program)
            .args(args)
            .current_dir(self.dir.path())
            .env("TZ", "Europe/Berlin")
            .env("LC_ALL", "C.UTF-8")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    fn ours(&self, args: &[&str]) -> (Option<i32>, String) {
        self.run(&self.dir.path().join("fail2ban-regex"), args)
    }

    fn theirs(&self, args: &[&str]) -> (Option<i32>, String) {
        self.run(Path::new(REAL), args)
    }
}

/// "now", where it is the time of a line without a date.
fn without_now(line: &str) -> String {
    let Some((who, time)) = line
        .strip_prefix("|      ")
        .and_then(|l| l.split_once("  "))
    else {
        return line.to_owned();
    };
    let read = jiff::civil::DateTime::strptime("%a %b %d %H:%M:%S %Y", time);
    let zone = jiff::tz::TimeZone::get("Europe/Berlin").unwrap();
    let is_now = read.is_ok_and(|time| {
        let time = time.to_zoned(zone).unwrap().timestamp();
        jiff::Timestamp::now().duration_since(time).abs() < jiff::SignedDuration::from_mins(10)
    });
    match is_now {
        true => format!("{who} now"),
        false => line.to_owned(),
    }
}

/// Without what differs between two runs, and between two ways to write the expression of
/// an IPv6 address.
fn comparable(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(without_now).collect();
    lines.retain(|line| !line.starts_with("[processed in "));
    if let Some(at) = lines
        .iter()
        .position(|line| line.starts_with("Prefregex: "))
    {
        lines.remove(at + 1);
    }
    lines
}

#[track_caller]
fn equal(ours: &str, theirs: &str, what: &str) {
    let (ours, theirs) = (comparable(ours), comparable(theirs));
    let differ = ours
        .iter()
        .zip(&theirs)
        .position(|(one, other)| one != other);
    if let Some(at) = differ {
        panic!(
            "{what}: line {at}\nours:   {}\ntheirs: {}",
            ours[at], theirs[at]
        );
    }
    assert_eq!(ours.len(), theirs.len(), "{what}: {ours:#?}\n{theirs:#?}");
}

/// Logs for these filters, by the sampler.
fn logs(cases: &[(String, Value)]) -> Vec<Vec<String>> {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("cases");
    let lines: Vec<_> = cases
        .iter()
        .map(|(name, options)| json!([CONFIG, name, options]).to_string())
        .collect();
    fs::write(&input, lines.join("\n")).unwrap();
    let out = Command::new("/usr/bin/python3")
        .args(["-c", LINES])
        .stdin(File::open(input).unwrap())
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let text = String::from_utf8(out.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// "Lines: 120 lines, 0 ignored, 80 matched, 40 missed": the third number.
fn matched(report: &str) -> usize {
    let line = report
        .lines()
        .find(|line| line.starts_with("Lines: "))
        .unwrap();
    let count = line
        .split(", ")
        .find_map(|part| part.strip_suffix(" matched"));
    count.unwrap().parse().unwrap()
}

/// Every filter of the package over a log that is made from its expressions: each line
/// that is matched, ignored or missed, with host and time, and all totals.
#[test]
fn differential_the_real_tool_prints_the_same_for_the_stock_filters() {
    if !real() {
        return;
    }
    let mut names: Vec<_> = fs::read_dir(format!("{CONFIG}/filter.d"))
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let name = name.strip_suffix(".conf")?.to_owned();
            (!name.ends_with("common")).then_some(name)
        })
        .collect();
    names.sort();
    let mut cases: Vec<_> = names.into_iter().map(|name| (name, json!({}))).collect();
    for name in [
        "sshd",
        "postfix",
        "dovecot",
        "exim",
        "apache-auth",
        "nginx-http-auth",
    ] {
        cases.push((name.to_owned(), json!({ "mode": "aggressive" })));
    }
    let bench = Bench::new();
    let (mut filters, mut lines) = (0, 0);
    for ((name, options), log) in cases.iter().zip(logs(&cases)) {
        let path = bench.write("a.log", log.join("\n") + "\n");
        let word = match options["mode"].as_str() {
            Some(mode) => format!("{name}[mode={mode}]"),
            None => name.clone(),
        };
        let args = [
            "-v",
            "-r",
            "--print-all-matched",
            "--print-all-missed",
            "--print-all-ignored",
            path.to_str().unwrap(),
            &word,
        ];
        let (code, theirs) = bench.theirs(&args);
        assert_eq!(code, Some(0), "{word}: {theirs}");
        let (code, ours) = bench.ours(&args);
        assert_eq!(code, Some(0), "{word}: {ours}");
        equal(&ours, &theirs, &word);
        let count = matched(&ours);
        lines += count;
        filters += usize::from(count >= 3);
    }
    println!("{lines} lines matched alike, of {filters} filters at least 3");
    assert!(
        filters >= 60 && lines > 500,
        "{filters} filters, {lines} lines"
    );
}

/// Expressions and lines of the command line, and what scripts ask of each failure.
#[test]
fn differential_the_real_tool_answers_scripts_alike() {
    if !real() {
        return;
    }
    let bench = Bench::new();
    let log = "Nov 25 10:00:01 host sshd[100]: Failed publickey for root from 192.0.2.1 port 22 ssh2\n\
        Nov 25 10:00:01 host sshd[100]: Failed password for invalid user a from 192.0.2.1 port 22 ssh2\n\
        # a comment\n\nNov 25 10:00:02 host sshd[101]: Invalid user bob from 2001:db8::7 port 1234\n\
        Nov 25 10:00:02 host sshd[101]: Connection closed by invalid user bob 2001:db8::7 port 1234 [preauth]\n\
        2019-12-31 23:59:59 host sshd[102]: Failed password for root from ::ffff:192.0.2.3 port 22 ssh2\n\
        Nov 25 10:00:04 host sshd[103]: Failed password for invalid user x from evil.example.org port 22 ssh2\n";
    bench.write("a.log", log);
    bench.write("many.log", log.repeat(8));
    bench.write(
        "own/own.conf",
        "[INCLUDES]\nbefore = part.conf\n[Definition]\nfailregex = ^%(who)s failed <F-USER>\\S+</F-USER>$\nignoreregex = nobody$\nmaxlines = 1\n",
    );
    bench.write("own/part.conf", "[DEFAULT]\nwho = <HOST>\n");
    bench.write(
        "own.log",
        "10:00:00 192.0.2.1 failed a\n10:00:01 192.0.2.2 failed nobody\n10:00:02 x\n",
    );
    let multi = "10:00:00 begin\n10:00:01 between\n10:00:02 end 192.0.2.1\n10:00:03 end 192.0.2.1";
    let cases: &[&[&str]] = &[
        &["a.log", "sshd"],
        &["-vv", "a.log", "sshd[mode=aggressive, logtype=file]"],
        &["--no-check-all", "-v", "a.log", "sshd"],
        &["many.log", "sshd"],
        &[
            "--print-all-ignored",
            "--print-all-matched",
            "--print-no-missed",
            "many.log",
            "sshd",
        ],
        &[
            "--print-no-ignored",
            "-L",
            "3",
            "many.log",
            "^ host sshd.* from <HOST> port",
        ],
        &["-c", "/etc/fail2ban/filter.d", "a.log", "sshd"],
        &["a.log", "/etc/fail2ban/filter.d/sshd.conf"],
        &["own.log", "own/own.conf"],
        &["-v", "own.log", "own/own.conf"],
        &["-d", "^%H:%M:%S", "own.log", "own/own.conf"],
        &[
            "Nov 25 10:00:01 host foo 192.0.2.4",
            "foo <HOST>$",
            "foo 192.0.2.5",
        ],
        &[
            "Nov 25 10:00:01 host foo 192.0.2.4",
            "foo <HOST>$",
            "foo 192.0.2.4",
        ],
        &[
            "-d",
            "{NONE}",
            "host foo 192.0.2.4 and a text that is longer than what is shown",
            "foo <HOST>",
        ],
        &["--usedns", "no", "-v", "x host.example.org", "x <HOST>"],
        &[
            "-r",
            "-v",
            "--TZ",
            "UTC+0200",
            "2026-01-02 03:04:05 x host.example.org",
            "x <HOST>",
        ],
        &[
            "-v",
            "2026-01-02T03:04:05Z net 192.0.2.77/24",
            "net <SUBNET>$",
        ],
        &[
            "-L",
            "3",
            "--print-all-matched",
            multi,
            "^ begin<SKIPLINES> end <ADDR>$",
        ],
        &["-o", "id", "a.log", "sshd"],
        &["-o", "ip", "a.log", "sshd"],
        &["-o", "msg", "a.log", "sshd"],
        &["-o", "user", "a.log", "sshd"],
        &["-o", "ip6", "a.log", "sshd"],
        &[
            "-o",
            "<ip> <family> <ip-rev> <F-USER> <time>",
            "a.log",
            "sshd",
        ],
        &["-o", "row", "x 192.0.2.4", "x <HOST>"],
        &[
            "-o",
            "row",
            "-d",
            "{NONE}",
            "it's 192.0.2.4 \"x\"",
            "(?P<user>\\S+) <HOST> (?P<more>.*)",
        ],
        &["-o", "matches", "own.log", "own/own.conf"],
    ];
    for args in cases {
        let (code, theirs) = bench.theirs(args);
        let (our_code, ours) = bench.ours(args);
        assert_eq!(our_code, code, "{args:?}: {ours}\n{theirs}");
        // "now" where a line has no date.
        if args.contains(&"{NONE}") && args.contains(&"row") {
            let cut = |text: &str| text.split('\t').nth(2).unwrap().to_owned();
            assert_eq!(cut(&ours), cut(&theirs));
            continue;
        }
        equal(&ours, &theirs, &format!("{args:?}"));
    }
}

/// What it refuses ends with the exit code that scripts know, and says why.
#[test]
fn what_cannot_be_tried_is_named() {
    let bench = Bench::new();
    bench.write(
        "f/filter.d/bad.conf",
        "[Definition]\nfailregex = a (<HOST>\n",
    );
    bench.write(
        "f/filter.d/deep.conf",
        "[Definition]\nfailregex = ^%(no)s <HOST>\n",
    );
    for (args, why) in [
        (&["a.log"][..], "provide both <LOG> and <REGEX>"),
        (&["x", "nohost"], "it names nobody"),
        (&["x", "(x <HOST>"], "ERROR: "),
        (&["-c", "f", "x", "bad"], "f/filter.d/bad.conf:2: "),
        (&["-c", "f", "x", "deep"], "f/filter.d/deep.conf:2: "),
        (&["-d", "%Q", "x", "x <HOST>"], "there is no field %Q"),
        (
            &["-e", "utf-9", "x", "x <HOST>"],
            "--encoding utf-9: allowed: auto, utf-8",
        ),
        (
            &["--TZ", "Mars", "x", "x <HOST>"],
            "--timezone Mars: allowed: UTC",
        ),
    ] {
        let (code, said) = bench.ours(args);
        assert_eq!(code, Some(255), "{args:?}: {said}");
        assert!(said.contains(why), "{args:?}: {said}");
    }
    let (code, version) = bench.ours(&["-V"]);
    assert_eq!(code, Some(0));
    assert_eq!(
        version.trim(),
        format!("weir {}", env!("CARGO_PKG_VERSION"))
    );
}

/// A log of a client's text: no control character of it reaches the terminal, a line that
/// is no text is replaced where it is none, and the last line needs no newline.
#[test]
fn a_hostile_log_is_read_and_shown_safely() {
    let bench = Bench::new();
    let log = [
        &b"10:00:00 x \x1b[2J\xff 192.0.2.1\n"[..],
        &[b"10:00:01 x ", &b"a".repeat(10_000)[..], b" 192.0.2.2\n"].concat(),
        b"10:00:02 x y 2001:db8::1",
    ]
    .concat();
    let path = bench.write("a.log", log);
    let path = path.to_str().unwrap();
    let (code, said) = bench.ours(&["--print-all-matched", path, "x .* <HOST>$"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("|  10:00:00 x \\u{1b}[2J\u{fffd} 192.0.2.1\n"),
        "{said}"
    );
    assert!(said.contains("|  10:00:02 x y 2001:db8::1\n"), "{said}");
    assert!(
        said.contains("3 lines, 0 ignored, 2 matched, 1 missed"),
        "{said}"
    );
    assert!(!said.contains('\u{1b}'));
}

/// In other encodings than UTF-8 lines say what they say.
#[test]
fn logs_of_other_encodings_are_read() {
    let bench = Bench::new();
    let text = "10:00:00 user=Jörg from 192.0.2.1\n10:00:01 user=Ċb from 2001:db8::1\n";
    let utf16 = |big: bool| -> Vec<u8> {
        let units = std::iter::once(0xfeff).chain(text.encode_utf16());
        let bytes = units.flat_map(|unit| match big {
            true => unit.to_be_bytes(),
            false => unit.to_le_bytes(),
        });
        bytes.collect()
    };
    bench.write("be.log", utf16(true));
    bench.write("le.log", utf16(false));
    bench.write("latin.log", b"10:00:00 user=J\xf6rg from 192.0.2.1\n");
    let regex = r"user=(?P<user>\w+) from <HOST>$";
    for (encoding, log, expected) in [
        ("utf-16", "be.log", "Jörg\nĊb\n"),
        ("utf-16", "le.log", "Jörg\nĊb\n"),
        ("latin-1", "latin.log", "Jörg\n"),
        ("cp1250", "latin.log", "Jörg\n"),
        ("cp1251", "latin.log", "Jцrg\n"),
        ("utf-8", "latin.log", ""),
    ] {
        let (code, said) = bench.ours(&["-e", encoding, "-o", "user", log, regex]);
        assert_eq!(
            (code, said.as_str()),
            (Some(0), expected),
            "{encoding} {log}"
        );
    }
}
