//! The C interface as C and C++ see it: header and examples without a
//! warning, linked with the static and the shared library, run.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use weir_ring::{ReaderOptions, Set};

fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && errors.is_empty(),
        "{command:?}: {errors}"
    );
    String::from_utf8(output.stdout).expect("text")
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Where cargo put the library that this test was built with.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("ourselves");
    test.parent().expect("deps").join(name)
}

const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1"];

#[test]
fn the_header_is_clean_c11_and_cpp17_for_gcc_and_clang() {
    for (compiler, standard, language) in [
        ("gcc", "-std=c11", "c"),
        ("clang", "-std=c11", "c"),
        ("g++", "-std=c++17", "c++"),
    ] {
        let header = here("include/weir_ring.h");
        let unused = ["-fsyntax-only", standard, "-x", language];
        run(Command::new(compiler).args(STRICT).args(unused).arg(header));
    }
}

#[test]
fn the_header_declares_what_the_library_exports() {
    let header = fs::read_to_string(here("include/weir_ring.h")).expect("the header");
    let source = fs::read_to_string(here("src/ffi.rs")).expect("its functions");
    let exported: Vec<&str> = source
        .split("extern \"C\" fn ")
        .skip(1)
        .filter_map(|rest| rest.split('(').next())
        .filter(|name| name.starts_with("weir_ring_"))
        .collect();
    assert!(exported.len() > 25);
    for name in exported {
        assert!(
            header.contains(&format!("{name}(")),
            "{name} is not in the header"
        );
    }
}

#[test]
fn the_examples_talk_to_each_other_through_both_libraries() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let at = |name: &str| directory.path().join(name);
    fs::copy(built("libweir_ring.so"), at("libweir_ring.so")).expect("the shared library");
    std::os::unix::fs::symlink("libweir_ring.so", at("libweir_ring.so.0")).expect("its soname");
    let include = here("include");
    for name in ["writer", "reader"] {
        let compile = |output: &str| {
            let mut command = Command::new("gcc");
            command.args(STRICT).arg("-std=c11").arg("-I").arg(&include);
            command.arg(here("examples/c").join(name).with_extension("c"));
            command.arg("-o").arg(at(output));
            command
        };
        run(compile(&format!("{name}-static"))
            .arg(built("libweir_ring.a"))
            .args(["-lpthread", "-ldl", "-lm", "-lgcc_s"]));
        run(compile(&format!("{name}-shared"))
            .arg("-L")
            .arg(directory.path())
            .arg("-lweir_ring"));
    }
    let lines: String = (0..5000).map(|n| format!("line {n}\n")).collect();
    fs::write(at("lines"), &lines).expect("lines");
    for (writer, reader) in [("static", "shared"), ("shared", "static")] {
        let segment = at(&format!("{writer}-{reader}"));
        let start = |name: String| {
            let mut command = Command::new(at(&name));
            command
                .arg(&segment)
                .env("LD_LIBRARY_PATH", directory.path());
            command
        };
        let status = start(format!("writer-{writer}"))
            .stdin(fs::File::open(at("lines")).expect("lines"))
            .stderr(Stdio::null())
            .status();
        assert!(status.expect("the writer").success());
        let output = start(format!("reader-{reader}"))
            .output()
            .expect("the reader");
        assert!(output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stderr), "0 lost\n");
        assert!(output.stdout == lines.as_bytes());
    }
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `program`, waits until it answers, sends it `unwanted` requests from
/// each of five addresses and ends it with SIGTERM.
fn with_unwanted(program: &Path, log: &Path, unwanted: usize) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let port = socket.local_addr().expect("its address").port();
    drop(socket);
    let mut command = Command::new(program);
    command.arg(port.to_string()).arg(log);
    let mut server = Server(command.spawn().expect("the server"));
    let clients: Vec<UdpSocket> = (1..=5)
        .map(|last| {
            let client = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, last), 0)).expect("a client");
            client
                .connect(("127.0.0.1", port))
                .expect("on the loopback");
            client
                .set_read_timeout(Some(Duration::from_millis(100)))
                .expect("a timeout");
            client
        })
        .collect();
    let begun = Instant::now();
    let greet = |client: &UdpSocket| {
        let mut answer = [0; 16];
        while client.send(b"hello").is_err() || client.recv(&mut answer).ok() != Some(7) {
            assert!(begun.elapsed() < Duration::from_secs(30), "no answer");
        }
    };
    for client in &clients {
        greet(client);
        for _ in 0..unwanted {
            client.send(b"give me everything").expect("sent");
        }
        // The same thread serves it, in order.
        greet(client);
    }
    let id = server.0.id().to_string();
    run(Command::new("kill").args(["-s", "TERM", &id]));
    assert!(server.0.wait().expect("our child").success());
}

#[test]
fn the_patched_udp_server_logs_into_a_ring_what_it_logged_into_a_file() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let compile = |output: &str| {
        let mut command = Command::new("gcc");
        command.args(STRICT).args(["-std=c11", "-pthread"]);
        command.arg(here("examples/c/udp_server.c"));
        command.arg("-o").arg(at(output));
        command
    };
    run(&mut compile("plain"));
    run(compile("patched")
        .arg("-DWITH_RING")
        .arg("-I")
        .arg(here("include"))
        .arg(built("libweir_ring.a"))
        .args(["-lpthread", "-ldl", "-lm", "-lgcc_s"]));

    with_unwanted(&at("plain"), &at("log"), 40);
    let text = fs::read_to_string(at("log")).expect("the log");
    let mut file: Vec<&str> = text.lines().collect();
    assert_eq!(file.len(), 200);
    assert!(file.contains(&"unwanted request from ::ffff:127.0.0.5, 18 bytes"));

    with_unwanted(&at("patched"), &at("ring"), 40);
    let set = Set::open(at("ring"), &ReaderOptions::new()).expect("the ring");
    let mut worker = set.worker(0, 1);
    let mut ring = Vec::new();
    while worker
        .turn(|_, batch| {
            ring.extend(batch.map(|record| String::from_utf8_lossy(record.payload).into_owned()));
        })
        .is_some()
    {}
    ring.sort();
    file.sort_unstable();
    assert_eq!(ring, file);
    assert_eq!(set.statistics().segments, 2, "one for each thread");
}
