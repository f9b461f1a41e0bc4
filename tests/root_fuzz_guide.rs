//! `docs/guide/fuzz-a-service.md`, by its own commands: boofuzz against a real nginx, and
//! against a server that a certain request ends.

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use common::{SOON, skipped};
use weir_netlab::{Child, Namespace, Net, wait_for};

/// Ends with the first request whose path is longer than 300 bytes.
const FRAGILE: &str = "
import os, socket, sys
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('127.0.0.1', 8090))
server.listen(64)
while True:
    client, _ = server.accept()
    client.settimeout(0.05)
    data = b''
    try:
        while b'\\r\\n\\r\\n' not in data and (more := client.recv(65536)): data += more
    except OSError: pass
    if len(data.partition(b' ')[2].partition(b' ')[0]) > 300: os._exit(1)
    try: client.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n')
    except OSError: pass
    client.close()
";

/// The blocks of the guide in this language.
fn blocks(language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/fuzz-a-service.md");
    let text = fs::read_to_string(path).unwrap();
    let parts = text.split("```").skip(1).step_by(2);
    parts
        .filter_map(|part| part.strip_prefix(language)?.strip_prefix('\n'))
        .map(str::to_owned)
        .collect()
}

fn bash(space: Option<&Namespace>, dir: &Path, script: &str) -> Output {
    let mut command = Command::new("bash");
    command.args(["-ec", script]).current_dir(dir);
    command.stdin(Stdio::null());
    match space {
        Some(space) => space.enter(move || command.output()).unwrap().unwrap(),
        None => command.output().unwrap(),
    }
}

struct Fuzzing {
    space: Namespace,
    dir: PathBuf,
    _temp: tempfile::TempDir,
    _net: Net,
}

impl Fuzzing {
    /// The service, the fuzzer and its script, as the guide says; `None`: this machine lacks
    /// something, which was said.
    fn new() -> Option<Self> {
        if skipped(&["python3", "nginx", "bash"]) {
            return None;
        }
        let net = Net::new().unwrap();
        let space = net.namespace("fuzz").unwrap();
        let temp = tempfile::tempdir().unwrap();
        let shell = blocks("bash");
        assert_eq!(shell.len(), 4, "service, fuzzer, run, end");
        let dir = temp.path().join("fuzz");
        fs::create_dir(&dir).unwrap();
        // The machine has that; PyPI it may not reach.
        let made = bash(None, &dir, "python3 -m venv venv");
        assert!(made.status.success(), "package python3-venv: {made:?}");
        // Not from the namespace, which reaches nobody.
        let installed = bash(None, &dir, &shell[1]);
        if !installed.status.success() {
            let said = String::from_utf8_lossy(&installed.stderr);
            println!("skipped: boofuzz cannot be installed from PyPI: {said}");
            return None;
        }
        let served = bash(Some(&space), temp.path(), &shell[0]);
        assert!(served.status.success(), "{served:?}");
        let [script] = &blocks("python")[..] else {
            panic!("one script")
        };
        fs::write(dir.join("fuzz_http.py"), script).unwrap();
        Some(Self {
            space,
            dir,
            _temp: temp,
            _net: net,
        })
    }

    /// Waits until somebody accepts at this port.
    fn wait_for_port(&self, port: u16) {
        wait_for("the service", SOON, || {
            let at = std::net::SocketAddr::from(([127, 0, 0, 1], port));
            let connected = self
                .space
                .enter(|| std::net::TcpStream::connect(at))
                .unwrap();
            Ok(connected.ok())
        })
        .unwrap();
    }
}

#[test]
fn root_the_guide_fuzzes_a_real_server() {
    let Some(fuzzing) = Fuzzing::new() else {
        return;
    };
    fuzzing.wait_for_port(8089);
    let shell = blocks("bash");
    let ran = bash(Some(&fuzzing.space), &fuzzing.dir, &shell[2]);
    let out = String::from_utf8_lossy(&ran.stdout);
    assert!(
        out.contains("300 cases, and the service is there"),
        "{ran:?}"
    );
    // The server has seen them: requests for files with very long names.
    let seen = fs::read_to_string(fuzzing.dir.join("error.log")).unwrap();
    assert!(seen.lines().count() > 3, "{seen}");
    let log = fs::read_to_string(fuzzing.dir.join("fuzz.log")).unwrap();
    assert_eq!(log.matches("No crash detected").count(), 300);
    let ended = bash(Some(&fuzzing.space), &fuzzing.dir, &shell[3]);
    assert!(ended.status.success(), "{ended:?}");
    wait_for("nginx to end", SOON, || {
        Ok(fuzzing.space.pids().is_empty().then_some(()))
    })
    .unwrap();
}

/// The script says when a service has ended, and ends itself.
#[test]
fn root_a_service_that_a_request_ends_is_found() {
    let Some(fuzzing) = Fuzzing::new() else {
        return;
    };
    let start = || -> Child {
        let mut command = Command::new(weir_netlab::namespace::find("python3"));
        command.args(["-c", FRAGILE]).stdin(Stdio::null());
        let child = fuzzing.space.spawn(command).unwrap();
        fuzzing.wait_for_port(8090);
        child
    };
    let fuzz = |child: &mut Child, first: &str, last: &str| {
        let pid = child.pid();
        let script = format!("venv/bin/python fuzz_http.py 127.0.0.1 8090 {pid} {first} {last}");
        let ran = bash(Some(&fuzzing.space), &fuzzing.dir, &script);
        (
            ran.status.code(),
            String::from_utf8_lossy(&ran.stderr).into_owned(),
        )
    };
    let mut child = start();
    let (code, said) = fuzz(&mut child, "1", "300");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(": the service has ended"), "{said}");
    assert!(child.wait(Duration::from_secs(5)).unwrap().is_some());
    // Also when it ends after the script has looked, so that nobody accepts the next case.
    let (code, said) = fuzz(&mut child, "1", "2");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(": the service has ended"), "{said}");
}
