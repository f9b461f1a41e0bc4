//! Links between documents lead somewhere, and the guide's index has every page.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{ROOT, read, tree};

/// The Markdown files of a directory, not of those in it, sorted by name.
pub fn pages(dir: &str) -> Vec<String> {
    let names = tree::entries(dir).into_iter();
    let pages = names.filter(|name| name.ends_with(".md"));
    pages.map(|name| format!("{dir}/{name}")).collect()
}

/// All Markdown files of the repository, without what a build makes.
fn all_documents() -> Vec<String> {
    let mut all = tree::files("");
    all.retain(|path| path.ends_with(".md"));
    all
}

/// The lines outside of fenced blocks, without `code`.
fn prose(text: &str) -> Vec<String> {
    let mut fenced = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    });
    let without_code = |line: &str| line.split('`').step_by(2).collect::<Vec<_>>().join("");
    lines.map(without_code).collect()
}

/// Where `[text](target)`, `![text](target)`, `src="target"`, `srcset="target"`
/// and `href="target"` lead.
fn targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (opening, closing) in [
        ("](", ')'),
        ("src=\"", '"'),
        ("srcset=\"", '"'),
        ("href=\"", '"'),
    ] {
        for rest in line.split(opening).skip(1) {
            found.extend(rest.split_once(closing).map(|(target, _)| target));
        }
    }
    found
}

/// What the forges make of a heading: lower case, blanks to hyphens, no
/// punctuation.
fn anchor(heading: &str) -> String {
    let letters = heading.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        _ if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    letters.collect()
}

fn has_anchor(path: &Path, wanted: &str) -> bool {
    let text = fs::read_to_string(path).unwrap_or_default();
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| anchor(line.trim_start_matches('#')))
        .any(|found| found == wanted)
}

/// What is wrong with a link of this document, if anything is.
fn dead(document: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, fragment) = match target.split_once('#') {
        Some((path, fragment)) => (path, Some(fragment)),
        None => (target, None),
    };
    let document = Path::new(ROOT).join(document);
    let leads_to: PathBuf = match path {
        "" => document,
        path => document.parent().unwrap().join(path),
    };
    if !leads_to.exists() {
        return Some("there is no such file".to_owned());
    }
    let fragment = fragment.filter(|fragment| !has_anchor(&leads_to, fragment))?;
    Some(format!("no heading gives #{fragment}"))
}

#[test]
fn no_link_between_documents_is_dead() {
    assert!(dead("README.md", "docs/nowhere.md").is_some());
    assert!(dead("docs/metrics.md", "#nowhere").is_some());
    assert!(dead("docs/metrics.md", "../README.md#licence").is_none());
    assert_eq!(targets("a [b](c) ![d](e.svg)"), ["c", "e.svg"]);
    assert_eq!(anchor(" What it does not do"), "what-it-does-not-do");

    let (mut found, mut wrong) = (0, Vec::new());
    for document in all_documents() {
        for line in prose(&read(&document)) {
            for target in targets(&line) {
                found += 1;
                wrong.extend(
                    dead(&document, target).map(|why| format!("{document}: {target}: {why}")),
                );
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(found > 30, "only {found} links were found");
}

#[test]
fn the_index_of_the_guide_has_every_page() {
    let index = read("docs/guide/README.md");
    let pages = pages("docs/guide");
    for page in &pages {
        let name = page.strip_prefix("docs/guide/").unwrap();
        let listed = index.contains(&format!("]({name})"));
        assert!(listed || name == "README.md", "{page} is not in the index");
    }
    assert!(pages.len() > 15, "only {} pages were found", pages.len());
}
