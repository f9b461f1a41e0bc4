//! Answers to questions about programs that cannot be given as they were meant: they are
//! refused with what to answer instead, and the question stays open. And those that the kernel
//! does not take: nothing is let through, and an alert says so.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;
#[path = "common/prompter.rs"]
mod prompter;

use std::{fs, io::Write, path::Path, process::Command};

use app_host::{ADDRESSES, TestHost, sha256};
use common::soon;
use libbpf_rs::MapHandle;
use prompter::Prompter;

const PYTHON: &str = "/usr/bin/python3";
const RULES: &str = "default = \"drop\"\nunknown = \"drop\"\nprompt_timeout = \"50s\"\n";

/// Sends an echo request by a socket for datagrams of ICMP, until one is answered.
const PING: &str = r#"
import socket, sys, time
addr = sys.argv[1]
v6 = ':' in addr
s = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM, 58 if v6 else 1)
s.settimeout(1)
for n in range(60):
    try:
        s.sendto(bytes([128 if v6 else 8, 0, 0, 0, 0, 1, 0, 1]) + b'weir', (addr, 0))
        s.recv(100); print('answered', flush=True); break
    except OSError: time.sleep(.2)
else: print('never answered', flush=True)
sys.stdin.readline()
"#;

/// Connects by one socket, and says how that ends.
const CONNECT: &str = r#"
import socket, sys
try: socket.create_connection((sys.argv[1], 8080), 40); print('connected', flush=True)
except OSError as e: print(type(e).__name__, flush=True)
sys.stdin.readline()
"#;

/// What is said of an answer that is refused.
fn refused(prompter: &mut Prompter, line: &str) -> String {
    writeln!(prompter.input, "{line}").unwrap();
    let said = prompter.next();
    let error = said["error"].as_str();
    error.unwrap_or_else(|| panic!("{line}: {said}")).to_owned()
}

#[test]
fn root_always_is_refused_for_icmp_and_the_question_stays_open() {
    let Some(host) = TestHost::new("icmp", RULES) else {
        return;
    };
    let range = "net.ipv4.ping_group_range=0 0";
    host.space.run("sysctl", &["-qw", range]).unwrap();
    let mut prompter = Prompter::new(&host);
    for addr in ["127.0.0.1", "::1"] {
        let mut ping = host.begin(&[PYTHON, "-c", PING, addr]);
        let question = prompter.next();
        assert_eq!(question["protocol"], "icmp", "{question}");
        assert_eq!(question["peer"], addr, "{question}");
        let id = question["id"].as_u64().unwrap();
        let error = refused(&mut prompter, &format!("{id} allow always"));
        assert!(error.contains("icmp has no port"), "{error}");
        assert!(error.contains("answer once or run"), "{error}");
        assert_eq!(host.host.read("conf.d/50-app-rules.toml"), "");
        prompter.answer(&format!("{id} allow once"));
        assert_eq!(ping.line(), "answered", "{addr}");
    }
}

/// The file is another one by the time of the answer: a rule by its SHA-256 would be about
/// a program that nobody has asked about.
#[test]
fn root_always_is_refused_when_the_file_is_another_one_by_then() {
    let Some(host) = TestHost::new("swap", RULES) else {
        return;
    };
    let mut prompter = Prompter::new(&host);
    for addr in ["127.0.0.1", "::1"] {
        let path = host.host.path("tool");
        let (tool, aside) = (path.to_str().unwrap(), host.host.path("aside"));
        let mut bytes = fs::read(PYTHON).unwrap();
        // Behind the program's end: a program of its own for each address.
        bytes.extend_from_slice(addr.as_bytes());
        let put = |bytes: &[u8]| {
            fs::write(host.host.path("bytes"), bytes).unwrap();
            // By another process: a child of the other test could have a descriptor of ours, and
            // nobody runs a file that somebody may write to.
            let copy = "cp \"$1\" \"$2\" && chmod 755 \"$2\" && mv \"$2\" \"$3\"";
            let mut command = Command::new("sh");
            command
                .args(["-c", copy, "sh"])
                .arg(host.host.path("bytes"));
            let done = command.arg(&aside).arg(&path).status();
            assert!(done.unwrap().success());
        };
        put(&bytes);
        let mut client = host.begin(&[tool, "-c", CONNECT, addr]);
        let id = prompter.question("tool", addr);
        bytes.extend_from_slice(b"replaced");
        put(&bytes);
        let error = refused(&mut prompter, &format!("{id} allow always"));
        assert!(
            error.contains("is another file than the program that has asked"),
            "{error}"
        );
        assert_eq!(host.host.read("conf.d/50-app-rules.toml"), "");
        // The one that has asked may be answered, and nobody who runs the other file is.
        prompter.answer(&format!("{id} allow run"));
        assert_eq!(client.line(), "connected", "{addr}");
        let _other = host.begin(&[tool, "-c", CONNECT, addr]);
        let other = prompter.question("tool", addr);
        assert_ne!(other, id);
        prompter.answer(&format!("{other} deny run"));
    }
}

/// From here on the kernel refuses what user space writes into this table of `[app]`.
fn refuse_writes(host: &TestHost, table: &str) {
    let instance = Path::new("/sys/fs/bpf/weir").join(&host.instance);
    let entries = fs::read_dir(instance).unwrap().flatten();
    let forms = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("app-"));
    let dirs: Vec<_> = forms.map(|entry| entry.path()).collect();
    assert_eq!(dirs.len(), 1, "{dirs:?}");
    let map = MapHandle::from_pinned_path(dirs[0].join(table)).unwrap();
    map.freeze().unwrap();
}

/// Rules that ask for more than the executable, so that a program has to be known as a whole.
#[test]
fn root_a_program_that_the_kernel_cannot_be_told_of_stays_unknown_and_is_an_alert() {
    let rules = format!(
        "default = \"drop\"\nunknown = \"drop\"\n[app.rules.both]\nverdict = \"allow\"\nobject = [\"{}\", \"{}\"]\n",
        sha256("/usr/bin/curl"),
        sha256(PYTHON)
    );
    let Some(host) = TestHost::new("untaken", &rules) else {
        return;
    };
    for address in ADDRESSES {
        soon("curl to be known", || {
            (host.curl(address) == "200").then_some(())
        });
    }
    refuse_writes(&host, "ident_sets");
    let by_unknown = || {
        let rules = host.host.json(&["app", "list"])["rules"].clone();
        let mut rules = rules.as_array().unwrap().iter();
        let unknown = rules.find(|rule| rule["name"] == "unknown").unwrap();
        unknown["dropped"].as_u64().unwrap()
    };
    for address in ADDRESSES {
        let before = by_unknown();
        assert_eq!(host.connects(address).trim(), "TimeoutError", "{address}");
        assert!(by_unknown() > before, "{address}");
    }
    let alert = soon("the alert", || {
        let alerts = host.host.alerts();
        alerts.contains("app:refused").then_some(alerts)
    });
    assert!(alert.contains("say who a program is"), "{alert}");
    assert!(
        alert.contains("(unknown = \\\"drop\\\" decides)"),
        "{alert}"
    );
    // Who was known before goes on.
    for address in ADDRESSES {
        assert_eq!(host.curl(address), "200", "{address}");
    }
}

#[test]
fn root_an_answer_that_the_kernel_does_not_take_lets_nothing_through_and_is_an_alert() {
    let rules = format!(
        "{RULES}[app.rules.curl]\nverdict = \"allow\"\nexe = \"{}\"\n",
        sha256("/usr/bin/curl")
    );
    for addr in ["127.0.0.1", "::1"] {
        let Some(host) = TestHost::new("notaken", &rules) else {
            return;
        };
        soon("curl to be known", || {
            (host.curl("127.0.0.1") == "200").then_some(())
        });
        let judged = || {
            let rules = host.host.json(&["app", "list"])["rules"].clone();
            let mut rules = rules.as_array().unwrap().iter();
            let curl = rules.find(|rule| rule["name"] == "curl").unwrap();
            curl["judged"].as_u64().unwrap()
        };
        let before = judged();
        assert!(before > 0, "{addr}");
        let mut prompter = Prompter::new(&host);
        let _client = host.begin(&[PYTHON, "-c", CONNECT, addr]);
        let id = prompter.question("python", addr);
        refuse_writes(&host, "ident_rules");
        writeln!(prompter.input, "{id} allow once").unwrap();
        // That the question is over is told as well.
        let error = loop {
            let said = prompter.next();
            match said["error"].as_str() {
                Some(error) => break error.to_owned(),
                None => assert_eq!(said["is_over"], true, "{addr}: {said}"),
            }
        };
        assert!(error.contains("write rule 0"), "{addr}: {error}");
        let alert = soon("the alert", || {
            let alerts = host.host.alerts();
            alerts.contains("app:questions").then_some(alerts)
        });
        assert!(alert.contains("answers are not in force"), "{alert}");
        // What rules have decided counts once, however often others are refused.
        assert_eq!(judged(), before, "{addr}");
        // The answer is about this executable, peer and port: another process of it.
        let told = host.connects(addr);
        assert!(!told.contains("connected"), "{addr}: {told}");
    }
}
