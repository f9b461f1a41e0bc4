//! Paths and names in the documents for those who change weir: a path in
//! backticks is there, a bare name of a file is a file's, and an identifier
//! occurs in the sources; in parentheses behind a path, in that file.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::{ROOT, exists, read, tree};

/// Directories whose files are sources, and files beside them.
const SOURCES: [&str; 9] = [
    "bench/src",
    "bpf",
    "crates",
    "demo",
    "dist",
    "fuzz/fuzz_targets",
    "src",
    "tests",
    "Makefile",
];

/// The documents that are held to it.
const DOCUMENTS: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "tests/README.md"];

/// The identifiers of each source file, by its path.
struct Tree(BTreeMap<String, BTreeSet<String>>);

fn words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .map(str::to_owned)
        .collect()
}

impl Tree {
    fn read() -> Self {
        let mut tree = Self(BTreeMap::new());
        for source in SOURCES {
            tree.add(source);
        }
        assert!(tree.0.len() > 300, "only {} files", tree.0.len());
        tree
    }

    fn add(&mut self, path: &str) {
        for path in tree::files(path) {
            // A picture is no text.
            if let Ok(text) = fs::read_to_string(tree::at(&path)) {
                self.0.insert(path, words(&text));
            }
        }
    }

    /// Does an identifier occur in this file, or below this directory?
    fn has(&self, path: &str, word: &str) -> bool {
        let below = format!("{}/", path.trim_end_matches('/'));
        self.0
            .iter()
            .filter(|(file, _)| path.is_empty() || *file == path || file.starts_with(&below))
            .any(|(_, words)| words.contains(word))
    }

    /// Is a file or directory called so somewhere?
    fn has_file(&self, name: &str) -> bool {
        let name = format!("/{}", name.trim_end_matches('/'));
        self.0
            .keys()
            .any(|file| file.ends_with(&name) || file.contains(&format!("{name}/")))
    }
}

fn is_file_name(text: &str) -> bool {
    ["rs", "h", "c", "md", "toml", "py", "sh", "json", "txt"]
        .iter()
        .any(|end| text.strip_suffix(end).is_some_and(|t| t.ends_with('.')))
}

/// The parts of `name`, `Type::name` or `name()`, if it is one.
fn identifier(text: &str) -> Option<Vec<&str>> {
    let parts: Vec<_> = text
        .strip_suffix("()")
        .unwrap_or(text)
        .split("::")
        .collect();
    let is_name = |part: &&str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    parts.iter().all(is_name).then_some(parts)
}

/// What a document names and the tree lacks, and how many names were looked for.
fn unknown(tree: &Tree, document: &str) -> (Vec<String>, usize) {
    let (mut wrong, mut looked, mut fenced) = (Vec::new(), 0, false);
    // The file that names in parentheses are in; it may be on the line before.
    let mut file = None::<String>;
    let mut in_parentheses = false;
    for (number, line) in document.lines().enumerate() {
        if line.starts_with("```") {
            fenced = !fenced;
        }
        if fenced || line.starts_with("```") {
            continue;
        }
        if line.is_empty() {
            (file, in_parentheses) = (None, false);
        }
        for (at, piece) in line.split('`').enumerate() {
            if at % 2 == 0 {
                // A parenthesis that opens right behind the path, or a list
                // that it is the first of: (`path`, `name`).
                let between = piece.trim();
                let goes_on = between.is_empty() || between == ",";
                in_parentheses = match between {
                    "(" => file.is_some(),
                    _ => goes_on && (in_parentheses || at > 0 && between == ","),
                };
                if between.contains(['.', ';', '|', ':', ')']) {
                    file = None;
                }
                continue;
            }
            let place = number + 1;
            let text = piece.trim_end_matches(['.', ',']);
            let is_placeholder = text.contains(['<', '>', ' ', '=', '"', '[']);
            if is_placeholder || text.starts_with('/') || text.is_empty() {
                continue;
            }
            if text.contains('/') {
                looked += 1;
                let found = exists(&Path::new(ROOT).join(text)) || tree.has_file(text);
                if !found {
                    wrong.push(format!("{place}: there is no {text}"));
                }
                file = Some(text.to_owned());
            } else if is_file_name(text) || text == "Makefile" {
                looked += 1;
                if !(Path::new(ROOT).join(text).exists() || tree.has_file(text)) {
                    wrong.push(format!("{place}: no file is called {text}"));
                }
                file = None;
            } else if let Some(parts) = identifier(text) {
                let path = if in_parentheses {
                    file.as_deref()
                } else {
                    None
                };
                for part in parts {
                    looked += 1;
                    if !tree.has(path.unwrap_or_default(), part) {
                        let place = format!("{place}: {part} is nowhere in");
                        wrong.push(format!("{place} {}", path.unwrap_or("the sources")));
                    }
                }
            }
        }
    }
    (wrong, looked)
}

#[test]
fn every_path_and_name_in_the_book_exists() {
    let tree = Tree::read();
    for document in DOCUMENTS {
        let (wrong, looked) = unknown(&tree, &read(document));
        assert!(wrong.is_empty(), "{document}:\n{}", wrong.join("\n"));
        assert!(looked > 20, "{document}: only {looked} were found");
    }
}

#[test]
fn an_invented_path_or_name_is_found() {
    let tree = Tree::read();
    let check = |text: &str| unknown(&tree, text).0;
    let none = Vec::<String>::new();
    // Put together here, or this file would be where they occur.
    let invented = ["no", "such", "thing"].join("_");
    assert_eq!(
        check("see `src/main.rs` and `bpf/lib/` and `main.rs`"),
        none
    );
    assert_eq!(
        check("`crates/daemon/src/bans.rs` (`enforce`) calls `Backend::insert()`"),
        none
    );
    assert_eq!(check("of (`crates/daemon/src/bans.rs`, `enforce`)"), none);
    for wrong in [
        format!("`src/{invented}.rs`"),
        format!("`{invented}.rs`"),
        format!("`{invented}`"),
        format!("`Backend::{invented}`"),
        format!("`{invented}()`"),
        // It exists, elsewhere.
        "`src/main.rs` (`follow_expiries`)".to_owned(),
        "(`src/main.rs`, `follow_expiries`)".to_owned(),
        "`src/main.rs`\n(`main`, `follow_expiries`)".to_owned(),
    ] {
        assert_eq!(check(&wrong).len(), 1, "{wrong}: {:?}", check(&wrong));
    }
}

/// As the map of the code in ARCHITECTURE.md has it.
#[test]
fn the_command_names_nothing_of_bpf() {
    let sources = tree::files("src");
    assert!(sources.len() > 30, "only {} sources", sources.len());
    let named = sources
        .iter()
        .filter(|path| read(path).contains("weir_bpf"));
    assert_eq!(named.collect::<Vec<_>>(), Vec::<&String>::new());
}

/// "Only crates/bpf loads programs": nobody else can name libbpf.
#[test]
fn only_one_crate_links_libbpf() {
    let mut linking = Vec::new();
    for dir in tree::crates() {
        let manifest: toml::Table = read(&format!("{dir}/Cargo.toml")).parse().unwrap();
        let named = |part: &str| {
            let table = manifest.get(part).and_then(toml::Value::as_table);
            table.is_some_and(|table| table.keys().any(|name| name.starts_with("libbpf")))
        };
        if named("dependencies") || named("build-dependencies") {
            linking.push(dir);
        }
    }
    assert_eq!(linking, ["crates/bpf"]);
}
