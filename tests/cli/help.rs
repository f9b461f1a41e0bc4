//! Help is read on a terminal: what is written for a reader of the source has no place there.

use std::process::Command;

fn help(words: &[String]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(words)
        .arg("--help")
        .output()
        .unwrap();
    assert!(done.status.success(), "{words:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// The verbs that a help lists.
fn verbs(help: &str) -> Vec<String> {
    let rest = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = rest.take_while(|line| line.starts_with("  "));
    let names = listed.filter(|line| !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

fn look(words: &[String], looked: &mut usize) {
    let text = help(words);
    *looked += 1;
    for line in text.lines() {
        // An example of a pattern may have one.
        let is_escape = ['[', ']', '<', '>', '*', '_', '`', '#'];
        let mut after = line.split('\\').skip(1);
        assert!(
            !after.any(|rest| rest.starts_with(is_escape)),
            "weir {} --help has an escape of rustdoc: {line}",
            words.join(" ")
        );
    }
    for verb in verbs(&text) {
        look(&[words, &[verb]].concat(), looked);
    }
}

#[test]
fn no_help_has_an_escape_of_rustdoc() {
    let mut looked = 0;
    look(&[], &mut looked);
    assert!(looked > 60, "only {looked} helps");
}
