//! The headers of the packet path: each includes what it uses, and none, through
//! others, itself.

use std::{
    collections::BTreeMap,
    env, fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

/// The headers of the programs by their names in `#include`, with what they
/// include of one another.
fn headers() -> BTreeMap<String, Vec<String>> {
    let bpf = Path::new("../../bpf");
    let directories = fs::read_dir(bpf).unwrap().flatten();
    let files = directories
        .filter(|entry| entry.path().is_dir())
        .flat_map(|entry| fs::read_dir(entry.path()).unwrap().flatten())
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "h"));
    files
        .map(|path| {
            let name = path.strip_prefix(bpf).unwrap().display().to_string();
            let text = fs::read_to_string(&path).unwrap();
            let includes = text
                .lines()
                .filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'))
                .map(str::to_owned);
            (name, includes.collect())
        })
        .collect()
}

#[test]
fn no_header_includes_itself() {
    let mut left = headers();
    assert!(left.len() > 10, "{left:?}");
    // One after the other those that include nothing that is left.
    while !left.is_empty() {
        let names: Vec<_> = left.keys().cloned().collect();
        left.retain(|_, includes| includes.iter().any(|name| names.contains(name)));
        assert!(left.len() < names.len(), "in a cycle: {left:#?}");
    }
}

#[test]
fn each_header_includes_what_it_uses() {
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    for name in headers().into_keys() {
        let mut compiler = Command::new(&clang)
            .args(["-target", "bpf", "-mcpu=v3", "-O2", "-fsyntax-only"])
            .args(["-Wall", "-Werror", "-Wno-unused-function"])
            .arg(format!("-I/usr/include/{}-linux-gnu", env::consts::ARCH))
            .args(["-I../../bpf", "-x", "c", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("clang is there: it built the programs");
        let mut input = compiler.stdin.take().expect("it is piped");
        writeln!(input, "#include \"{name}\"").unwrap();
        drop(input);
        assert!(compiler.wait().unwrap().success(), "{name}");
    }
}
