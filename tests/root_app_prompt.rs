//! Prompt mode: connections that no rule is about wait, and `weir app prompt` asks whether
//! they may; on a terminal, as a person does, and by a script that reads JSON lines.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;
#[path = "common/prompter.rs"]
mod prompter;

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use app_host::TestHost;
use common::soon;
use prompter::Prompter;
use serde_json::Value;

const PYTHON: &str = "/usr/bin/python3";

/// Connects by one socket, and says how that ends and after how many seconds at least.
const CONNECT: &str = r#"
import socket, sys, time
addr, kind = sys.argv[1], socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
s = socket.socket(kind); s.settimeout(float(sys.argv[2])); begun = time.monotonic()
try: s.connect((addr, 8080)); print('connected', flush=True)
except OSError as e: print(type(e).__name__, flush=True)
sys.stdin.readline()
"#;

/// Sends a datagram until that is allowed; prints what comes first, and the end.
const SEND: &str = r#"
import socket, sys, time
addr, kind = sys.argv[1], socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
s = socket.socket(kind, socket.SOCK_DGRAM); told = None
for n in range(200):
    try: s.sendto(b'x', (addr, 9)); print('sent', flush=True); break
    except OSError as e:
        if told is None: told = type(e).__name__; print(told, flush=True)
    time.sleep(.1)
sys.stdin.readline()
"#;

/// A terminal of its own for a program, of which this program's standard input and output
/// are the keyboard and the screen.
const TERMINAL: &str =
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";

/// `weir app prompt` on a terminal.
struct Terminal {
    child: Child,
    keyboard: ChildStdin,
    screen: Receiver<String>,
}

impl Terminal {
    fn new(host: &TestHost) -> Self {
        let mut child = Command::new(PYTHON)
            .args(["-c", TERMINAL, env!("CARGO_BIN_EXE_weir"), "--config"])
            .arg(host.host.path("weir.toml"))
            .args(["app", "prompt"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, screen) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = send.send(line.trim_end().to_owned());
            }
        });
        Self {
            keyboard: child.stdin.take().unwrap(),
            child,
            screen,
        }
    }

    /// The next line that has this, which comes before long.
    #[track_caller]
    fn shows(&self, text: &str) -> String {
        let until = Instant::now() + Duration::from_secs(60);
        let mut before = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => before.push(line),
                Err(_) => panic!("{text:?} is not on the screen, but {before:?}"),
            }
        }
    }

    fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rules(timeout: &str) -> String {
    format!("default = \"drop\"\nunknown = \"drop\"\nprompt_timeout = \"{timeout}\"\n")
}

fn prompt(host: &TestHost) -> Value {
    host.host.json(&["app", "list"])["prompt"].clone()
}

/// curl prints the status and stays no longer.
fn curl(host: &TestHost, address: &str) -> app_host::Running {
    let url = format!("http://{address}:8080/");
    host.begin(&[
        "/usr/bin/curl",
        "-sS",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}\n",
        "--max-time",
        "40",
        &url,
    ])
}

#[test]
fn root_two_programs_are_asked_about_at_once_and_answered_in_reverse() {
    let Some(mut host) = TestHost::new("prompt", &rules("50s")) else {
        return;
    };
    let mut prompter = Prompter::new(&host);
    for (address, peer) in [("127.0.0.1", "127.0.0.1"), ("[::1]", "::1")] {
        let mut first = curl(&host, address);
        let curls = prompter.question("curl", peer);
        let mut second = host.begin(&[PYTHON, "-c", CONNECT, peer, "40"]);
        let pythons = prompter.question("python3", peer);

        let begun = Instant::now();
        prompter.answer(&format!("{pythons} deny once"));
        assert_eq!(second.line(), "ConnectionAbortedError");
        // By itself it would give up after 40 s.
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "it fails at once"
        );
        let word = if peer == "::1" { "always" } else { "once" };
        prompter.answer(&format!("{curls} allow {word}"));
        assert_eq!(first.line(), "200");
    }
    // What comes too late, or is about nothing, is said.
    writeln!(prompter.input, "1 allow").unwrap();
    assert_eq!(prompter.next()["error"], "no question 1 is open");
    let status = prompt(&host);
    assert_eq!(
        (&status["asked"], &status["timed_out"]),
        (&4.into(), &0.into())
    );
    drop(prompter);

    let written = host.host.read("conf.d/50-app-rules.toml");
    assert!(written.contains("ports = [\"8080/tcp\"]"), "{written}");
    assert!(
        written.contains(&app_host::sha256("/usr/bin/curl")),
        "{written}"
    );
    host.host.end("TERM");
    host.host.start();
    soon("curl after the restart", || {
        (host.curl("127.0.0.1") == "200").then_some(())
    });
    assert_eq!(prompt(&host)["asked"], 0);
}

/// The kernel tells of a connection that waits, once more by each answer to another question;
/// weir hears of it when that connection has been answered too, and nobody is asked again.
#[cfg(feature = "fault-points")]
#[test]
fn root_what_was_answered_before_weir_hears_of_it_is_not_asked_again() {
    let held = |host: &mut TestHost| {
        let file = format!("WEIR_FAULT_HOLD={}", host.host.path("points").display());
        host.host.under = vec!["env".into(), file];
    };
    let Some(host) = TestHost::with("late", &rules("50s"), held) else {
        return;
    };
    let mut prompter = Prompter::new(&host);
    for (number, (address, peer)) in [("127.0.0.1", "127.0.0.1"), ("[::1]", "::1")]
        .into_iter()
        .enumerate()
    {
        // It stays when it is connected: of who is gone nothing is asked.
        let mut first = host.begin(&[PYTHON, "-c", CONNECT, peer, "40"]);
        let pythons = prompter.question("python3", peer);
        let mut second = curl(&host, address);
        let curls = prompter.question("curl", peer);
        host.host.write("points", "app-hear\n");
        prompter.answer(&format!("{curls} deny once"));
        assert_eq!(second.line(), "000");
        let reached = host.host.path("points.app-hear");
        soon("the kernel to tell", || reached.exists().then_some(()));
        prompter.answer(&format!("{pythons} allow once"));
        assert_eq!(first.line(), "connected");
        host.host.write("points", "");
        let more = prompter.lines.recv_timeout(Duration::from_secs(2));
        assert!(more.is_err(), "{more:?}");
        let status = prompt(&host);
        let asked = 2 * (number + 1);
        assert_eq!(
            (&status["asked"], &status["open"]),
            (&asked.into(), &0.into())
        );
        std::fs::remove_file(reached).unwrap();
    }
}

/// Two processes wait for one answer; the one that has asked ends, and the other asks.
#[test]
fn root_who_waits_for_the_question_of_another_process_is_asked_about() {
    let Some(host) = TestHost::new("waits", &rules("50s")) else {
        return;
    };
    let mut prompter = Prompter::new(&host);
    for peer in ["127.0.0.1", "::1"] {
        let asker = host.begin(&[PYTHON, "-c", CONNECT, peer, "40"]);
        let first = prompter.question("python3", peer);
        let mut other = host.begin(&[PYTHON, "-c", CONNECT, peer, "40"]);
        // It has sent by then, and weir has heard of it.
        thread::sleep(Duration::from_secs(1));
        drop(asker);
        let over = prompter.next();
        assert_eq!(
            (&over["id"], &over["is_over"]),
            (&first.into(), &true.into())
        );
        let second = prompter.question("python3", peer);
        prompter.answer(&format!("{second} allow once"));
        assert_eq!(other.line(), "connected");
    }
}

#[test]
fn root_where_nobody_answers_default_decides() {
    let Some(host) = TestHost::new("timeout", &rules("3s")) else {
        return;
    };
    for peer in ["127.0.0.1", "::1"] {
        let mut client = host.begin(&[PYTHON, "-c", CONNECT, peer, "9"]);
        assert_eq!(client.line(), "TimeoutError", "{peer}");
    }
    assert_eq!(prompt(&host)["timed_out"], 2);
    // The next one is not asked about for a minute, and with another default it passes.
    host.configure(&rules("3s").replacen("drop", "allow", 1));
    host.host.done(&["reload"]);
    let mut client = curl(&host, "127.0.0.1");
    assert_eq!(client.line(), "200");
    let status = prompt(&host);
    assert_eq!(
        (&status["timed_out"], &status["unasked"]),
        (&3.into(), &0.into())
    );
    host.configure("unknown = \"drop\"\n");
    host.host.done(&["reload"]);
    let (code, said) = host.host.ask(&["app", "prompt"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("[app] has no prompt_timeout"), "{said}");
    assert_eq!(prompt(&host), Value::Null);
}

/// A program that connects to very many peers leaves room for others.
#[test]
fn root_at_the_cap_of_questions_more_are_counted_and_told() {
    let Some(host) = TestHost::new("questions", &rules("40s")) else {
        return;
    };
    let many = "import socket\nall = []\nfor n in range(20):\n s = socket.socket(); s.setblocking(False); all.append(s)\n try: s.connect(('127.0.0.1', 9000 + n))\n except OSError: pass\nprint('ready', flush=True); input()";
    let mut client = host.begin(&[PYTHON, "-c", many]);
    assert_eq!(client.line(), "ready");
    let status = soon("as many questions as there may be", || {
        let status = prompt(&host);
        (status["unasked"].as_u64() >= Some(1)).then_some(status)
    });
    assert_eq!(status["open"], 8, "{status}");
    soon("the alert", || {
        host.host.alerts().contains("app:questions").then_some(())
    });
    let mut prompter = Prompter::new(&host);
    for _ in 0..8 {
        prompter.next();
    }
    let mut other = curl(&host, "127.0.0.1");
    let id = prompter.question("curl", "127.0.0.1");
    prompter.answer(&format!("{id} allow once"));
    assert_eq!(other.line(), "200");
}

#[test]
fn root_a_person_answers_at_a_terminal() {
    let Some(host) = TestHost::new("terminal", &rules("50s")) else {
        return;
    };
    let mut terminal = Terminal::new(&host);
    terminal.shows("waiting for questions; answer: [NUMBER] allow|deny");
    // Datagrams, IPv4 and IPv6.
    let mut first = host.begin(&[PYTHON, "-c", SEND, "127.0.0.1"]);
    assert_eq!(first.line(), "PermissionError");
    let asked = terminal.shows("question 1: ");
    let python = std::fs::canonicalize(PYTHON).unwrap();
    assert_eq!(
        asked,
        "question 1: a program wants to connect to 127.0.0.1 port 9/udp"
    );
    terminal.shows(&format!("  program {}", python.display()));
    terminal.shows(&format!("  SHA-256 {}", app_host::sha256(PYTHON)));
    terminal.shows("  called as /usr/bin/python3 -c ");
    terminal.shows(&format!("control group /{}", host.instance));
    terminal.shows("  started by ");
    terminal.shows("  drop without an answer until ");
    let mut second = host.begin(&[PYTHON, "-c", SEND, "::1"]);
    assert_eq!(second.line(), "PermissionError");
    terminal.shows("wants to connect to ::1 port 9/udp");
    let status = host.host.done(&["status"]);
    assert!(status.contains("2 questions open"), "{status}");
    terminal.types("maybe\n");
    terminal.shows("\"maybe\" is no answer; allowed: [NUMBER] allow|deny");
    terminal.types("a\n");
    terminal.shows("2 questions are open: begin with the number of one");
    terminal.types("1 a\n");
    terminal.shows("question 1: allow once");
    assert_eq!(first.line(), "sent");
    terminal.types("a\n");
    terminal.shows("question 2: allow once");
    assert_eq!(second.line(), "sent");

    // What others begin with a program of this host.
    let serve = "import socket\ns = socket.create_server(('::1', 8081), family=socket.AF_INET6); print('ready', flush=True)\nwhile True:\n c = s.accept()[0]; c.recv(1000); c.sendall(b'HTTP/1.0 200 OK\\r\\n\\r\\n'); c.close()";
    let mut server = host.begin(&[PYTHON, "-c", serve]);
    assert_eq!(server.line(), "ready");
    let mut client = Command::new("curl");
    client
        .args(["-sS", "-o", "/dev/null", "-w", "%{http_code}"])
        .args(["--max-time", "40", "http://[::1]:8081/"])
        .stdout(Stdio::piped());
    let mut client = host.space.spawn(client).unwrap();
    terminal.shows("wants to be reached by ::1 at port 8081/tcp");
    terminal.types("3 allow run\n");
    terminal.shows("question 3: allow run");
    let mut said = String::new();
    let mut output = client.inner().stdout.take().unwrap();
    output.read_to_string(&mut said).unwrap();
    assert_eq!(said, "200");

    // Who has asked is gone: so is the question.
    let third = host.begin(&[PYTHON, "-c", CONNECT, "127.0.0.1", "40"]);
    terminal.shows("question 4: ");
    drop(third);
    terminal.shows("question 4 is over");
    // Ctrl-D.
    terminal.types("\x04");
    soon("the end of weir app prompt", || {
        terminal.child.try_wait().unwrap()
    });
    let ended = terminal.child.wait().unwrap();
    assert!(ended.success(), "{ended}");
}

/// Nobody can be asked: what no rule is about has the fate of `unknown`.
#[test]
fn root_without_the_daemon_what_is_asked_has_the_fate_of_unknown() {
    let curls = format!(
        "[app.rules.curl]\nverdict = \"allow\"\nexe = \"{}\"\n",
        app_host::sha256("/usr/bin/curl")
    );
    let rules = rules("40s") + &curls;
    let Some(mut host) = TestHost::new("nobody", &rules) else {
        return;
    };
    let mut prompter = Prompter::new(&host);
    assert_eq!(host.curl("127.0.0.1"), "200");
    // Known as well, and no rule is about it.
    let mut known = host.begin(&[PYTHON, "-c", CONNECT, "127.0.0.1", "40"]);
    let id = prompter.question("python3", "127.0.0.1");
    prompter.answer(&format!("{id} allow once"));
    assert_eq!(known.line(), "connected");
    drop((known, prompter));
    host.host.end("KILL");
    for (address, peer) in [("127.0.0.1", "127.0.0.1"), ("[::1]", "::1")] {
        assert_eq!(host.curl(address), "200", "rules go on");
        if peer == "::1" {
            let mut client = host.begin(&[PYTHON, "-c", CONNECT, peer, "3"]);
            assert_eq!(client.line(), "TimeoutError");
        }
        let mut client = host.begin(&[PYTHON, "-c", SEND, peer]);
        assert_eq!(client.line(), "PermissionError");
    }
    host.host.start();
    let mut prompter = Prompter::new(&host);
    for peer in ["127.0.0.1", "::1"] {
        let mut client = host.begin(&[PYTHON, "-c", CONNECT, peer, "40"]);
        let id = prompter.question("python3", peer);
        prompter.answer(&format!("{id} allow once"));
        assert_eq!(client.line(), "connected");
    }
}

/// Who answers need not start again when weir does, and is told when there is nothing more
/// to answer.
#[test]
fn root_a_prompter_outlives_the_daemon_and_ends_with_prompt_mode() {
    let Some(mut host) = TestHost::new("outlives", &rules("40s")) else {
        return;
    };
    let mut prompter = Prompter::new(&host);
    let mut before = host.begin(&[PYTHON, "-c", CONNECT, "127.0.0.1", "40"]);
    let id = prompter.question("python3", "127.0.0.1");
    host.host.end("KILL");
    let told = prompter.next();
    let error = told["error"].as_str().unwrap_or_default();
    assert!(error.contains("waiting for weir to start"), "{told}");
    host.host.start();
    assert_eq!(prompter.next()["note"], "weir answers again");
    // The kernel tells the new daemon of who still waits; the number is the same by chance.
    assert_eq!(prompter.question("python3", "127.0.0.1"), id);
    prompter.answer(&format!("{id} allow once"));
    assert_eq!(before.line(), "connected");

    host.configure("default = \"drop\"\nunknown = \"drop\"\n");
    host.host.done(&["reload"]);
    let ended = soon("the end of weir app prompt", || {
        prompter.child.try_wait().unwrap()
    });
    assert!(!ended.success(), "{ended}");
}
