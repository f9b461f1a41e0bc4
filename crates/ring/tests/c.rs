//! The C interface as C and C++ see it: header and examples without a
//! warning, linked with the static and the shared library, run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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
