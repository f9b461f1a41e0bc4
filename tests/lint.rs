//! What neither rustfmt nor clippy asks: the width of comments, doc comments
//! (lint/doc_comments.rs), documents that comments name, subjects of commits, lines of the
//! changelog, and results of trees with changes. `make lint` runs it. Each check has
//! a test that plants an offence. Rules: CONTRIBUTING.md.

#[path = "lint/doc_comments.rs"]
mod doc_comments;
#[path = "common/tree.rs"]
mod tree;

use std::{fs, path::Path, process::Command};

use tree::ROOT;

/// Columns that a comment's line may have; a tab is eight.
const WIDTH: usize = 100;
/// Columns that the subject of a commit may have.
const SUBJECT: usize = 72;
/// What tells an administrator of keys, metrics and routes, each held to the code by a test.
const NOTICED: [&str; 4] = [
    "dist/weir.toml",
    "docs/api.md",
    "docs/configuration.md",
    "docs/metrics.md",
];
/// A line in the message of a commit that changes the words of these, and no more.
const NO_LINE: &str = "Changelog: none";
/// What the names of sources and scripts end with.
const SOURCES: [&str; 5] = ["rs", "c", "h", "py", "sh"];
/// Results of before this rule, with `-dirty` in them; no other directory may have any.
const OLD_RUN: &str = "2026-11-21-2core-epyc-zen4";

/// Sources and scripts, by their paths in the tree.
fn sources() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for top in [
        "bench/src",
        "bench/tests",
        "bpf",
        "crates",
        "demo",
        "dist",
        "fuzz/fuzz_targets",
        "src",
        "tests",
    ] {
        for path in tree::files(top) {
            let extension = Path::new(&path).extension().unwrap_or_default();
            if SOURCES.iter().any(|e| extension == *e) {
                let text = fs::read_to_string(tree::at(&path)).unwrap();
                all.push((path, text));
            }
        }
    }
    assert!(all.len() > 300, "only {} sources were found", all.len());
    all
}

/// The lines that are comments and nothing else, with their numbers.
fn comments<'a>(name: &str, text: &'a str) -> Vec<(usize, &'a str)> {
    let is_script = [".py", ".sh"].iter().any(|end| name.ends_with(end));
    let mut in_block = false;
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let line = line.trim_start();
        if is_script {
            return line.starts_with('#');
        }
        let begins = line.starts_with("/*");
        let is_comment = in_block || begins || line.starts_with("//");
        if in_block || begins {
            in_block = !line.contains("*/");
        }
        is_comment
    });
    lines.map(|(at, line)| (at + 1, line)).collect()
}

fn width(line: &str) -> usize {
    line.chars().fold(0, |column, c| match c {
        '\t' => column / 8 * 8 + 8,
        _ => column + 1,
    })
}

/// Comments that are wider than the rest.
fn too_wide(name: &str, text: &str) -> Vec<String> {
    let comments = comments(name, text).into_iter();
    let wide = comments.filter(|(_, line)| width(line) > WIDTH);
    wide.map(|(number, line)| format!("{name}:{number}: {} columns", width(line)))
        .collect()
}

/// Documents that comments name and the tree lacks: seen from its top, from
/// the file's directory, or by a name without one. So with sources, where their path
/// begins with a directory of the tree's top.
fn lost_documents(name: &str, text: &str, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut lost = Vec::new();
    for (number, line) in comments(name, text) {
        let is_part = |c: char| c.is_alphanumeric() || "._-/".contains(c);
        for word in line.split(|c| !is_part(c)) {
            let word = word.trim_end_matches('.');
            let (stem, extension) = word.rsplit_once('.').unwrap_or_default();
            let is_named = match extension {
                "md" => stem.ends_with(|c: char| c.is_alphanumeric()),
                _ if SOURCES.contains(&extension) => stem
                    .split_once('/')
                    .is_some_and(|(top, _)| exists(Path::new(top))),
                _ => false,
            };
            if !is_named {
                continue;
            }
            let beside = Path::new(name).with_file_name(word);
            if !exists(Path::new(word)) && !exists(&beside) {
                lost.push(format!("{name}:{number}: there is no {word}"));
            }
        }
    }
    lost
}

/// What is wrong with a commit's message.
fn message_fault(message: &str) -> Option<String> {
    let (subject, body) = message.split_once('\n').unwrap_or((message, ""));
    let fault = if subject.chars().count() > SUBJECT {
        format!("more than {SUBJECT} columns")
    } else if !subject.split_once(": ").is_some_and(|(area, what)| {
        let is_area = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-,/ ".contains(c);
        !area.is_empty() && area.chars().all(is_area) && !what.trim().is_empty()
    }) {
        "not `area: imperative subject`".to_owned()
    } else if subject.ends_with('.') {
        "a full stop at its end".to_owned()
    } else if body.trim().is_empty() {
        "no body".to_owned()
    } else {
        return None;
    };
    Some(format!("{subject}: {fault}"))
}

/// What git prints, if there is a git that has an answer.
fn git(dir: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(dir)
        .args(arguments)
        .output();
    let output = output.ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}

/// The range of the commits that main does not have yet; why there is none to be had:
/// no git, an archive of the sources, no `origin/main` in this clone, or a clone too
/// shallow to say.
fn new_commits(dir: &Path) -> Result<String, &'static str> {
    // Of this directory, not of a repository that an unpacked archive lies in.
    let top = git(dir, &["rev-parse", "--show-toplevel"]).ok_or("no git repository")?;
    let same = |path: &Path| path.canonicalize().ok();
    if same(Path::new(top.trim_end())) != same(dir) {
        return Err("no git repository of its own");
    }
    let base = git(dir, &["merge-base", "origin/main", "HEAD"]);
    let base = base.ok_or("no origin/main that this clone has a common commit with")?;
    Ok(format!("{}..HEAD", base.trim()))
}

/// The messages of those commits.
fn new_messages(dir: &Path) -> Result<Vec<String>, &'static str> {
    let range = new_commits(dir)?;
    let log = git(dir, &["log", "--no-merges", "--format=%B%x00", &range]);
    let log = log.ok_or("git log has no answer")?;
    let messages = log.split('\0').map(str::trim).filter(|m| !m.is_empty());
    Ok(messages.map(str::to_owned).collect())
}

/// What of these files an administrator notices when it changes: keys, metrics, routes
/// and the configuration that is installed. The changelog has a line for it, or a
/// commit says by `NO_LINE` that nobody notices.
fn unlogged<'a>(changed: &[&'a str], messages: &[String]) -> Vec<&'a str> {
    let says_so = |message: &String| message.lines().any(|line| line.trim() == NO_LINE);
    if changed.contains(&"CHANGELOG.md") || messages.iter().any(says_so) {
        return Vec::new();
    }
    let noticed = changed.iter().filter(|path| NOTICED.contains(path));
    noticed.copied().collect()
}

/// Results of a tree with changes, of which nobody can have the code.
fn dirty_results(runs: &Path) -> Vec<String> {
    let mut found = Vec::new();
    if runs.is_dir() {
        for path in tree::files(runs.to_str().unwrap()) {
            let name = Path::new(&path).strip_prefix(runs).unwrap();
            let Ok(text) = fs::read_to_string(&path) else {
                continue; // A picture.
            };
            let commits = text.split(|c: char| !c.is_alphanumeric() && c != '-');
            let is_commit =
                |hex: &str| hex.len() >= 7 && hex.chars().all(|c| c.is_ascii_hexdigit());
            let mut dirty = commits.filter_map(|word| word.strip_suffix("-dirty"));
            if !name.starts_with(OLD_RUN) && dirty.any(is_commit) {
                found.push(name.display().to_string());
            }
        }
    }
    found
}

fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn comments_are_no_wider_than_the_rest() {
    let all = sources().into_iter();
    none(
        &all.flat_map(|(name, text)| too_wide(&name, &text))
            .collect::<Vec<_>>(),
    );

    let wide = "x".repeat(WIDTH - 2);
    assert_eq!(too_wide("a.rs", &format!("// {wide}")).len(), 1);
    assert_eq!(too_wide("a.h", &format!("/* one\n * {wide}\n */")).len(), 1);
    assert_eq!(too_wide("a.py", &format!("# {wide}x")).len(), 1);
    assert_eq!(too_wide("a.c", &format!("\t// {}", &wide[..90])).len(), 1);
    let code = format!("let x = \"{wide}\";\n//{wide}");
    none(&too_wide("a.rs", &code));
}

#[test]
fn documents_that_comments_name_exist() {
    let exists = |path: &Path| Path::new(ROOT).join(path).exists();
    let all = sources()
        .into_iter()
        .filter(|(name, _)| name != "tests/lint.rs");
    let lost = all.flat_map(|(name, text)| lost_documents(&name, &text, exists));
    none(&lost.collect::<Vec<_>>());

    let there = [
        "docs/a.md",
        "crates/ring/b.md",
        "crates",
        "crates/ring/c.rs",
    ];
    let there = |path: &Path| there.iter().any(|p| path == *p);
    let lost = |line: &str| lost_documents("crates/ring/x.rs", line, there);
    assert_eq!(lost("//! As docs/gone.md says.").len(), 1);
    assert_eq!(lost("// see gone.md").len(), 1);
    assert_eq!(lost("/* gone.md */").len(), 1);
    for gone in ["gone.rs", "sub/gone.h", "gone.py", "gone.c", "gone.sh"] {
        let found = lost(&format!("// as crates/ring/{gone} has it, and gone.rs."));
        assert_eq!(found.len(), 1, "{found:?}");
    }
    none(&lost(
        "// crates/ring/c.rs, linux/tcp.h; conf.d/x.rs and src/c.rs are others'",
    ));
    none(
        &lost("// docs/a.md, b.md and any.mdx; \"x.md\" is in code\nlet x = \"gone.md\";")
            .into_iter()
            .filter(|found| !found.ends_with("x.md"))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn commits_say_what_they_do_and_why() {
    match new_messages(Path::new(ROOT)) {
        Ok(messages) => none(
            &messages
                .iter()
                .filter_map(|m| message_fault(m))
                .collect::<Vec<_>>(),
        ),
        Err(why) => println!("skipped: subjects of commits: {why}"),
    }

    let good = "bpf: judge fragments by their first\n\nWhat was wrong.";
    assert_eq!(message_fault(good), None);
    assert_eq!(
        message_fault("bench/hooks, docs: name the row\n\nWhy."),
        None
    );
    for wrong in [
        "judge fragments\n\nWhy.".to_owned(),
        "Fix: it\n\nWhy.".to_owned(),
        "bpf: \n\nWhy.".to_owned(),
        "bpf: judge.\n\nWhy.".to_owned(),
        "bpf: judge fragments".to_owned(),
        format!("bpf: {}\n\nWhy.", "x".repeat(SUBJECT - 4)),
    ] {
        assert!(message_fault(&wrong).is_some(), "{wrong}");
    }
}

#[test]
fn what_an_administrator_notices_is_in_the_changelog() {
    let root = Path::new(ROOT);
    match new_commits(root).and_then(|range| {
        let changed = git(root, &["diff", "--name-only", &range]);
        Ok((
            changed.ok_or("git diff has no answer")?,
            new_messages(root)?,
        ))
    }) {
        Ok((changed, messages)) => {
            let changed: Vec<_> = changed.lines().collect();
            let missing = unlogged(&changed, &messages);
            let told = format!("CHANGELOG.md has no new line, \"{NO_LINE}\" is in no message");
            assert!(missing.is_empty(), "{missing:?} changed: {told}");
        }
        Err(why) => println!("skipped: lines of the changelog: {why}"),
    }

    let metrics = ["docs/metrics.md", "src/main.rs"];
    let messages = |text: &str| vec!["core: count\n\nWhy.".to_owned(), text.to_owned()];
    let plain = messages("docs: say it\n\nChangelog: none of it");
    assert_eq!(unlogged(&metrics, &plain), ["docs/metrics.md"]);
    assert!(unlogged(&["src/main.rs"], &plain).is_empty());
    assert!(unlogged(&["docs/metrics.md", "CHANGELOG.md"], &plain).is_empty());
    assert!(
        unlogged(
            &metrics,
            &messages("docs: say it\n\nWhy.\n\nChangelog: none")
        )
        .is_empty()
    );
    for path in NOTICED {
        assert!(root.join(path).exists(), "{path}");
    }
}

/// A clone of a repository is asked about its own commits, and a clone without
/// the history, a repository without a remote and an unpacked archive about none.
#[test]
fn commits_are_those_that_main_has_not() {
    if git(Path::new("/"), &["--version"]).is_none() {
        println!("skipped: no git");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let git_in = |at: &str, arguments: &[&str]| {
        let who = ["-c", "user.name=x", "-c", "user.email=x@example.org"];
        let arguments: Vec<_> = who.iter().chain(arguments).copied().collect();
        git(&dir.path().join(at), &arguments).unwrap_or_else(|| panic!("{at}: {arguments:?}"))
    };
    let commit = |at: &str, message: &str| {
        git_in(at, &["commit", "-q", "--allow-empty", "-m", message]);
    };
    git_in("", &["init", "-q", "-b", "main", "one"]);
    commit("one", "no area at all");
    commit("one", "nor here");
    assert!(
        new_messages(&dir.path().join("one")).is_err(),
        "it has no remote"
    );

    let origin = format!("file://{}", dir.path().join("one").display());
    git_in("", &["clone", "-q", &origin, "two"]);
    let two = dir.path().join("two");
    assert_eq!(new_messages(&two), Ok(vec![]));
    commit("two", "core: count once\n\nBecause.");
    commit("two", "wrong");
    let new = new_messages(&two).unwrap();
    assert_eq!(new, ["wrong", "core: count once\n\nBecause."]);
    assert_eq!(new.iter().filter_map(|m| message_fault(m)).count(), 1);

    git_in("", &["clone", "-q", "--depth", "1", &origin, "shallow"]);
    assert_eq!(new_messages(&dir.path().join("shallow")), Ok(vec![]));
    // Nothing in common with what origin/main is here.
    git_in("shallow", &["checkout", "-q", "--orphan", "other"]);
    commit("shallow", "wrong again");
    assert!(new_messages(&dir.path().join("shallow")).is_err());

    // An archive that was unpacked inside somebody's repository.
    fs::create_dir(two.join("unpacked")).unwrap();
    assert!(new_messages(&two.join("unpacked")).is_err());
}

#[test]
fn results_are_of_trees_without_changes() {
    let runs = Path::new(ROOT).join("bench/runs");
    none(&dirty_results(&runs));

    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("new/a.md", "2 × CPU, commit 7857775, no -dirty tree");
    put(&format!("{OLD_RUN}/b.md"), "commit 7857775-dirty");
    none(&dirty_results(dir.path()));
    put("new/ring/c.json", "\"commit\": \"7857775-dirty\",");
    assert_eq!(dirty_results(dir.path()), ["new/ring/c.json"]);
}
