//! What the sources say for `--help` is what `--help` prints: clap drops the text of
//! a verb's type where the verb's variant has a comment of its own.

use clap::CommandFactory;

use crate::{cli::Weir, read, tree};

/// One line, one blank between words.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The texts of a command and of all its verbs.
fn texts(command: &clap::Command) -> String {
    let own = command.get_long_about().or(command.get_about());
    let mut all = own.map_or(String::new(), |text| plain(&text.to_string()));
    for verb in command.get_subcommands() {
        all.push('\n');
        all.push_str(&texts(verb));
    }
    all
}

/// The paragraphs that are written for a command: those of the comment on its `Args`,
/// on its `Verb`, or on `Weir` itself.
fn paragraphs(source: &str) -> Vec<String> {
    let (mut found, mut comment) = (Vec::new(), Vec::new());
    for line in source.lines() {
        if let Some(text) = line.strip_prefix("///") {
            comment.push(text.trim());
        } else if !line.starts_with("#[") {
            let name = line
                .trim_end_matches(['{', '}', ' ', ';'])
                .split(' ')
                .next_back();
            let name = name.unwrap_or_default();
            let is_command = name == "Weir" || name.ends_with("Args") || name.ends_with("Verb");
            if line.starts_with("pub ") && is_command {
                let text = comment.join("\n");
                found.extend(text.split("\n\n").map(plain).filter(|p| !p.is_empty()));
            }
            comment.clear();
        }
    }
    found
}

#[test]
fn paragraphs_are_those_on_commands() {
    let source = "/// One\n/// two.\n///\n/// Three.\n#[derive(X)]\npub struct Args {\n    /// No.\n}\n\
                  /// Nor this.\npub struct Real {}\n/// Four\npub enum RealVerb {\n";
    assert_eq!(paragraphs(source), ["One two.", "Three.", "Four"]);
}

#[test]
fn the_help_has_every_paragraph_that_is_written_for_it() {
    let told = texts(&Weir::command());
    let mut looked = 0;
    for path in tree::files("src/cli") {
        // Another program's name, and no verb.
        if path.ends_with("fail2ban_client.rs") || path.ends_with("fail2ban_regex.rs") {
            continue;
        }
        for paragraph in paragraphs(&read(&path)) {
            looked += 1;
            let text = paragraph.trim_end_matches('.');
            assert!(told.contains(text), "{path}: not in any help: {paragraph}");
        }
    }
    assert!(looked > 40, "only {looked} paragraphs");
}
