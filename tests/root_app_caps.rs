//! Rules about programs at their limits, and while weir is killed: ten thousand programs that
//! end at once, SIGKILL in the middle of a reload and of `weir app enforce`.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    fs,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use app_host::{ADDRESSES, TestHost, curl_only};
use common::soon;

/// Each child has another set of files mapped executable, sends one datagram, and ends.
const STORM: &str = r#"
import mmap, os, socket, sys
count, files = int(sys.argv[1]), [os.open(f, os.O_RDONLY) for f in sys.argv[2:]]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(count):
    pid = os.fork()
    if pid == 0:
        for bit, file in enumerate(files):
            if number >> bit & 1:
                mmap.mmap(file, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
        c = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try: c.sendto(b'x', ('127.0.0.1', 9))
        except OSError: pass
        os._exit(0)
    os.waitpid(pid, 0)
print('done')
"#;

/// The daemon's resident memory, in KiB.
fn memory(host: &TestHost) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", host.host.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse().unwrap()
}

#[test]
fn root_ten_thousand_programs_that_end_at_once_cost_a_bounded_amount() {
    const COUNT: usize = 10_000;
    let Some(host) = TestHost::new("storm", &curl_only()) else {
        return;
    };
    soon("curl to be known", || {
        (host.curl("127.0.0.1") == "200").then_some(())
    });
    // More files than bits of the number.
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..14)
        .map(|number| {
            let path = dir.path().join(number.to_string());
            fs::write(&path, [number; 4096]).unwrap();
            path.to_str().unwrap().to_owned()
        })
        .collect();
    let count = COUNT.to_string();
    let mut words = vec!["/usr/bin/python3", "-c", STORM, &count];
    words.extend(files.iter().map(String::as_str));
    let before = memory(&host);
    let done = host.run(&words);
    assert_eq!(
        String::from_utf8_lossy(&done.stdout).trim(),
        "done",
        "{done:?}"
    );
    // All of it is heard, or counted as lost.
    soon("the daemon to have done with them", || {
        let (code, _) = host.host.ask(&["status"]);
        (code == Some(0)).then_some(())
    });
    for address in ADDRESSES {
        assert_eq!(host.curl(address), "200");
        soon("python to be known, and refused", || {
            (host.connects(address).trim() == "PermissionError").then_some(())
        });
    }
    let app = host.host.json(&["app", "list"]);
    let number = |key: &str| app[key].as_u64().unwrap();
    println!("{before} KiB before, {} KiB after: {app}", memory(&host));
    assert!(number("programs") <= 8191, "{app}");
    assert!(number("files") <= 16_384, "{app}");
    assert!(number("executables") <= 4096, "{app}");
    let listed = host.host.json(&["app", "list", "--short-lived"]);
    assert!(listed.as_array().unwrap().len() <= 128);
    assert!(memory(&host) < before + 128 * 1024, "{before} KiB before");
}

/// So many networks that a reload takes a while.
fn many_networks(rules: &str, part: u8) -> String {
    let networks: Vec<_> = (0..64)
        .map(|n| format!("\"10.{part}.{}.{}\"", n / 256, n % 256))
        .collect();
    let networks = networks.join(", ");
    let more: String = (0..20)
        .map(|n| format!("[app.rules.n{n}]\nverdict = \"drop\"\nto = [{networks}]\n"))
        .collect();
    format!("{rules}{more}")
}

/// Whenever the daemon is killed while it takes other rules into force, what both allow is
/// allowed, and what both deny is denied, before and after the next start.
#[test]
fn root_sigkill_in_the_middle_of_a_reload_lets_nothing_through() {
    let Some(mut host) = TestHost::new("reload", &curl_only()) else {
        return;
    };
    let holds = |host: &TestHost, moment: u64| {
        for address in ADDRESSES {
            assert_eq!(host.curl(address), "200", "after {moment} ms");
            let told = host.connects(address);
            assert_eq!(told.trim(), "PermissionError", "after {moment} ms");
        }
    };
    soon("both to be known", || {
        let is_known = host.curl("127.0.0.1") == "200"
            && host.connects("127.0.0.1").trim() == "PermissionError";
        is_known.then_some(())
    });
    for (number, moment) in [1, 3, 6, 10, 20, 40, 80, 160].into_iter().enumerate() {
        host.configure(&many_networks(&curl_only(), number as u8));
        let mut reload = Command::new(env!("CARGO_BIN_EXE_weir"))
            .arg("--config")
            .arg(host.host.path("weir.toml"))
            .arg("reload")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(moment));
        host.host.end("KILL");
        let _ = reload.kill();
        reload.wait().unwrap();
        holds(&host, moment);
        host.host.start();
        soon("what both rules allow, and deny, after the start", || {
            let is_same = host.curl("127.0.0.1") == "200"
                && host.connects("127.0.0.1").trim() == "PermissionError";
            is_same.then_some(())
        });
        holds(&host, moment);
    }
}

/// `weir app enforce` is killed while it works: the file is as it was, or whole, and the next
/// one does what this one should have done.
#[test]
fn root_sigkill_in_the_middle_of_enforce_leaves_no_half_file() {
    let Some(host) = TestHost::new("enforce", "") else {
        return;
    };
    host.host.done(&["app", "learn", "start"]);
    soon("curl to be learned", || {
        assert_eq!(host.curl("127.0.0.1"), "200");
        host.host
            .done(&["app", "learn", "status"])
            .contains("1 program")
            .then_some(())
            .or_else(|| {
                let (_, review) = host.host.ask(&["app", "review"]);
                review.contains("/curl").then_some(())
            })
    });
    host.host.done(&["app", "review", "--accept"]);
    let file = host.host.path("conf.d/60-app-learned.toml");
    for moment in [0, 1, 2, 4, 8, 16, 32] {
        let _ = fs::remove_file(&file);
        host.host.done(&["reload"]);
        let mut enforce = Command::new(env!("CARGO_BIN_EXE_weir"))
            .arg("--config")
            .arg(host.host.path("weir.toml"))
            .args(["app", "enforce"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(moment));
        enforce.kill().unwrap();
        enforce.wait().unwrap();
        if let Ok(text) = fs::read_to_string(&file) {
            assert!(text.parse::<toml::Table>().is_ok(), "{moment} ms: {text}");
            assert!(
                text.contains("[app.rules.learned-curl-1]"),
                "{moment} ms: {text}"
            );
        }
        let (code, told) = host.host.ask(&["check"]);
        assert_eq!(code, Some(0), "{moment} ms: {told}");
        host.host.done(&["app", "enforce"]);
        soon("what was learned to be in force", || {
            let told = host.connects("127.0.0.1");
            (told.trim() == "PermissionError").then_some(())
        });
        assert_eq!(host.curl("127.0.0.1"), "200", "{moment} ms");
    }
}
