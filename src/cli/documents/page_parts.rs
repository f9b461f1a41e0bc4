//! What a man page has beside what the definition of its verb says: exit status, files,
//! examples.

use super::{
    config_page::{line, page_section},
    examples::of_verb,
};

/// What the exit codes mean for every verb.
const EXIT_CODES: [(&str, &str); 3] = [
    (
        "0",
        "It is done; or the answer is yes, and what was asked for is there.",
    ),
    ("1", "The answer is no, or there is nothing to show."),
    (
        "2",
        "It failed, or the command line is wrong: why is on standard error.",
    ),
];

/// Files, and of which verbs they are: each of those words stands at the beginning of the
/// verb's, and "" is of all.
const FILES: &[(&str, &[&str], &str)] = &[
    (
        "/etc/weir/weir.toml",
        &[""],
        "The configuration, unless --config names another one: weir.toml(5).",
    ),
    (
        "/etc/weir/conf.d/*.toml",
        &["daemon", "check", "reload", "app", "token"],
        "More of the configuration, read in the order of the names.",
    ),
    (
        "/etc/weir/conf.d/50-app-rules.toml",
        &["app allow", "app deny", "app remove", "app prompt"],
        "The rules that weir-app-allow(1), weir-app-deny(1) and answers to questions have added.",
    ),
    (
        "/etc/weir/conf.d/60-app-learned.toml",
        &["app enforce"],
        "The rules that were made of what was learned and reviewed.",
    ),
    (
        "/etc/weir/filter.d/*.toml",
        &["daemon", "check", "reload", "filter"],
        "Filters of this host's own.",
    ),
    (
        "/etc/weir/token-keys/*.key",
        &["token", "daemon", "check"],
        "The keys of tokens, root's and of mode 0600.",
    ),
    (
        "/etc/fail2ban",
        &["import fail2ban", "filter"],
        "The configuration of Fail2ban, if it is not named.",
    ),
    (
        "/var/lib/weir/weir.db",
        &[
            "daemon",
            "export",
            "bans",
            "ban",
            "unban",
            "import fail2ban",
        ],
        "Bans, counts and positions in logs, in state_dir.",
    ),
    (
        "/var/lib/weir/calibration.json",
        &["daemon", "calibrate"],
        "What weir-calibrate(1) has measured, in state_dir.",
    ),
    (
        "/run/weir/weir.sock",
        &[""],
        "The control socket of the daemon, unless the configuration or --socket names another one.",
    ),
    (
        "/sys/fs/bpf/weir",
        &["daemon", "detach", "token why"],
        "What stays in the kernel while no daemon runs, by instance.",
    ),
];

/// The whole page of a verb, or of weir itself (`verb` is empty): what is made of its definition,
/// with these parts before the version. `about` is its help.
pub fn with_parts(page: &str, verb: &str, about: &str) -> String {
    let (before, version) = match page.find(".SH VERSION\n") {
        Some(at) => page.split_at(at),
        None => (page, ""),
    };
    let mut whole = before.to_owned();
    page_section(&mut whole, "EXIT STATUS");
    for (code, meaning) in EXIT_CODES {
        item(&mut whole, code, meaning);
    }
    let own = exit_sentences(about);
    if !own.is_empty() {
        whole.push_str(".PP\n");
        line(&mut whole, &format!("Here: {}", own.join(" ")));
    }
    let is_of = |of: &&str| {
        let rest = verb.strip_prefix(*of);
        of.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    page_section(&mut whole, "FILES");
    for (path, verbs, meaning) in FILES {
        if verb.is_empty() || verbs.iter().any(is_of) {
            item(&mut whole, path, meaning);
        }
    }
    let mut examples = of_verb(verb).peekable();
    if examples.peek().is_some() {
        page_section(&mut whole, "EXAMPLES");
    }
    for (command, meaning) in examples {
        item(&mut whole, command, meaning);
    }
    whole.push_str(version);
    whole
}

/// An entry: what stands in its first line, and what it means.
fn item(page: &mut String, tag: &str, meaning: &str) {
    page.push_str(".TP\n\\fB");
    let mut head = String::new();
    line(&mut head, tag);
    page.push_str(head.trim_end());
    page.push_str("\\fR\n");
    line(page, meaning);
}

/// The sentences of a help text that say what exit codes mean.
fn exit_sentences(about: &str) -> Vec<String> {
    let mut found = Vec::new();
    let paragraphs = about.split("\n\n").map(str::split_whitespace);
    let paragraphs = paragraphs.map(|words| words.collect::<Vec<_>>().join(" "));
    for sentence in paragraphs.flat_map(|text| sentences(&text)) {
        // Behind what else the sentence says.
        let tail = match sentence.find("; exit code") {
            Some(at) => &sentence[at + 2..],
            None => &sentence[..],
        };
        if tail.contains("exit code") || tail.contains("Exit code") {
            let end = if tail.ends_with('.') { "" } else { "." };
            found.push(format!("{tail}{end}"));
        }
    }
    found
}

/// The sentences of one paragraph.
fn sentences(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(". ") {
        found.push(rest[..=at].to_owned());
        rest = &rest[at + 2..];
    }
    found.push(rest.to_owned());
    found
}
