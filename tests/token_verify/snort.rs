//! The plugin for Snort 3 (`dist/snort3/`): its verification says of each packet of a capture what
//! `weir token verify` says, by two compilers; and it builds where Snort is installed.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::{
    IDENTITY, Lab, json, pcap,
    suricata::{alone, by_packet, cut_everywhere, of_lines, replays},
    syns,
};

/// The verification alone, built by this compiler.
fn build(lab: &Lab, compiler: &str, more: &[&str]) -> PathBuf {
    let program = lab.dir.path().join(compiler);
    let built = Command::new(compiler)
        .args(["-std=c++14", "-O1", "-Wall", "-Wextra", "-Werror"])
        .args(more)
        .args(["-Idist/snort3", "tests/token_verify/snort_core.cc", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{compiler}: {said}");
    program
}

/// Settings that name the key of the lab and the program.
fn settings(lab: &Lab) -> String {
    let key = lab.dir.path().join("keys/1.key");
    format!(
        "# keys and programs\nkey_file {}\n\naggregate {IDENTITY}\n",
        key.display()
    )
}

fn run(program: &Path, settings: &Path, capture: &Path) -> Output {
    Command::new(program)
        .args([settings, capture])
        .output()
        .unwrap()
}

fn has(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        eprintln!("skipped: no program {program}");
    }
    is_there
}

#[test]
fn the_plugin_for_snort_says_of_each_syn_what_weir_says() {
    if !has("g++") || !has("clang++") {
        return;
    }
    let lab = Lab::new();
    let settings = lab.write("weir_token.conf", settings(&lab).as_bytes());
    let syns = syns::of_each_verdict(&lab);
    let packets: Vec<_> = syns.iter().map(|syn| (0, syn.packet.clone())).collect();
    let whole = lab.write("syns.pcap", &pcap(1, false, &packets));
    let weir = by_packet(&json(&lab.verify(&whole, &["--json"])));
    let (cut, file) = cut_everywhere(&syns);
    let cut_file = lab.write("cut.pcap", &file);
    // What is read beyond a packet ends the program.
    let sanitized = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    for (compiler, more) in [("g++", &sanitized[..]), ("clang++", &[])] {
        let program = build(&lab, compiler, more);
        let done = run(&program, &settings, &whole);
        assert!(done.status.success(), "{compiler}: {done:?}");
        assert_eq!(of_lines(&done.stdout), weir, "{compiler}");
        let done = run(&program, &settings, &cut_file);
        assert!(done.status.success(), "{compiler}: {done:?}");
        let said = of_lines(&done.stdout);
        assert_eq!(said.len(), cut.len());
        for ((packet, length), (number, said)) in cut.iter().zip(&said) {
            if number % 29 == 0 {
                let weir = alone(&lab, packet, *length);
                assert_eq!(*said, weir, "{length} bytes of {packet:?}");
            }
            assert!(["-", "shortened", "valid"].contains(&said.as_str()));
        }
    }
}

#[test]
fn the_plugin_for_snort_says_of_replays_what_weir_says() {
    if !has("g++") {
        return;
    }
    let lab = Lab::new();
    let settings = lab.write("weir_token.conf", settings(&lab).as_bytes());
    let (capture, weir, wanted) = replays(&lab);
    let program = build(&lab, "g++", &["-fsanitize=address,undefined"]);
    let done = run(&program, &settings, &capture);
    assert!(done.status.success(), "{done:?}");
    let said = of_lines(&done.stdout);
    assert_eq!(said, wanted);
    let judged = said.into_iter().filter(|(_, verdict)| verdict != "-");
    assert_eq!(judged.collect::<std::collections::BTreeMap<_, _>>(), weir);
}

#[test]
fn the_plugin_for_snort_says_what_is_wrong_with_a_setting() {
    if !has("g++") {
        return;
    }
    let lab = Lab::new();
    let program = build(&lab, "g++", &[]);
    let capture = lab.write("syns.pcap", &pcap(1, false, &lab.packets(false)));
    let good = settings(&lab);
    let key = lab.dir.path().join("keys/1.key");
    let text = fs::read_to_string(&key).unwrap();
    let secret = lab.key.secret().unwrap().to_hex();
    let error = |settings: &str| {
        let settings = lab.write("weir_token.conf", settings.as_bytes());
        let done = run(&program, &settings, &capture);
        assert_eq!(done.status.code(), Some(2), "{done:?}");
        let error = String::from_utf8(done.stderr).unwrap();
        assert!(!error.contains(&secret), "{error}");
        error
    };
    for (more, told) in [
        (
            "epoch_slack 1001",
            "conf:5: epoch_slack; allowed: 0 to 1000",
        ),
        ("epoch_slack", "conf:5: a line is a word and a value"),
        (
            "aggregate x",
            "conf:5: aggregate; allowed: 64 hexadecimal digits",
        ),
        (
            "keys /etc",
            "conf:5: unknown word; allowed: key_file, aggregate, epoch_slack",
        ),
        ("key_file /nowhere", "/nowhere: cannot read it"),
    ] {
        let error = error(&format!("{good}{more}\n"));
        assert!(error.contains(told), "{more}: {error}");
    }
    assert!(error("").contains("a key_file and an aggregate have to be there"));
    for (mode, text, told) in [
        (
            0o640,
            text.clone(),
            "others can read it; allowed: mode 0600",
        ),
        (0o600, text.replace("id = 1", "id = 256"), "it is no key"),
        (
            0o600,
            text.replace("secret", "retired"),
            "it is no key, or one that is retired",
        ),
    ] {
        fs::write(&key, text).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        let error = error(&good);
        assert!(error.contains(told), "{error}");
    }
    // A sender whose clock is further from this one's.
    fs::write(&key, text).unwrap();
    let wider = lab.write("wider.conf", format!("{good}epoch_slack 5").as_bytes());
    let done = run(&program, &wider, &capture);
    // The sixth packet is five minutes late.
    assert_eq!(of_lines(&done.stdout)[&6], "valid");
}

#[test]
fn the_plugin_for_snort_builds_where_snort_is() {
    let mut found = Command::new("pkg-config");
    // The prefix of a Snort that is built but not installed for all.
    let prefix = std::env::var_os("SNORT3_DIR").map(PathBuf::from);
    let path = prefix.map(|prefix| prefix.join("lib/pkgconfig"));
    if let Some(path) = &path {
        found.env("PKG_CONFIG_PATH", path);
    }
    let is_there = found.args(["--exists", "snort >= 3"]).status();
    if !is_there.is_ok_and(|status| status.success()) {
        eprintln!(
            "skipped: Snort 3 is not installed (probe: pkg-config snort, also in SNORT3_DIR)"
        );
        return;
    }
    let lab = Lab::new();
    let build = lab.dir.path().join("build");
    for words in [
        &["-S", "dist/snort3", "-B", build.to_str().unwrap()][..],
        &["--build", build.to_str().unwrap()],
    ] {
        let mut cmake = Command::new("cmake");
        if let Some(path) = &path {
            cmake.env("PKG_CONFIG_PATH", path);
        }
        let done = cmake.args(words).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    assert!(build.join("weir_token.so").exists());
}
