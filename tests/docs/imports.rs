//! The shape of the crates, read from their sources: no modules that name each
//! other in a circle, and nothing for tests in what is installed.
//!
//! The modules of a crate are a tree, and the rule holds at every level of it: among
//! the children of one module, each taken together with all that is below it, who
//! names whom has no cycle. A name is what follows `crate::`, `super::` or `self::`,
//! in a `use` or in the code; what a `use` brings into a module is named through it,
//! too. What is only compiled for tests does not count. A parent and its own children
//! may name each other: they are one module to everybody else.
//!
//! A reader of tokens, not of syntax: a parser of Rust would be a large
//! dependency for three kinds of paths.

use std::collections::{BTreeMap, BTreeSet};

use crate::{read, tree};

/// The cycles that are still there, each as the step that closes it. This list
/// only shrinks: a step that closes no cycle makes the test fail.
const KNOWN: &[(&str, &str)] = &[];

/// A module, from the root of its crate: `["config", "check"]`.
type Module = Vec<String>;

/// Names, `::` and single characters, without comments, texts and lifetimes.
fn tokens(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = source;
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let after = &rest[word..];
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            text(rest)
        } else if ["r", "br", "cr"].contains(&&rest[..word])
            && after.trim_start_matches('#').starts_with('"')
        {
            let marks = after.find('"').unwrap_or(0);
            let end = format!("\"{}", &after[..marks]);
            let body = word + marks + 1;
            rest[body..]
                .find(&end)
                .map_or(rest.len(), |at| body + at + end.len())
        } else if ["b", "c"].contains(&&rest[..word]) && after.starts_with('"') {
            word + text(after)
        } else if first == '\'' {
            character(rest)
        } else if word > 0 {
            found.push(rest[..word].to_owned());
            word
        } else if rest.starts_with("::") {
            found.push("::".to_owned());
            2
        } else {
            if !first.is_whitespace() {
                found.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    found
}

/// How long the text is that begins here.
fn text(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// How long the character is that begins here; of a lifetime, its mark.
fn character(rest: &str) -> usize {
    let mut inside = rest[1..].chars();
    match (inside.next(), inside.next()) {
        (Some('\\'), _) => rest[3..].find('\'').map_or(1, |end| 3 + end + 1),
        (Some(c), Some('\'')) => c.len_utf8() + 2,
        _ => 1,
    }
}

/// Behind the group of brackets that begins here.
fn behind(tokens: &[String], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "{" | "[" | "(" => depth += 1,
            "}" | "]" | ")" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// Reads the modules that a file names.
struct Names<'t> {
    tokens: &'t [String],
    at: usize,
    /// The module that is being read, and the depth of brackets at which each
    /// inner one began.
    module: Module,
    inner: Vec<usize>,
    found: BTreeSet<Module>,
    /// Whether a `use` is being read.
    in_use: bool,
    brought: Brought,
}

/// What each module has from elsewhere, by the name that it has there.
type Brought = BTreeMap<Module, Module>;

impl Names<'_> {
    fn token(&self, ahead: usize) -> &str {
        let token = self.tokens.get(self.at + ahead);
        token.map_or("", String::as_str)
    }

    fn read(mut self) -> (BTreeSet<Module>, Brought) {
        let mut depth = 0;
        while self.at < self.tokens.len() {
            match (self.token(0), self.token(1)) {
                ("#", "[") => self.attribute(),
                ("mod", name) if self.token(2) == "{" => {
                    self.module.push(name.to_owned());
                    self.inner.push(depth);
                    depth += 1;
                    self.at += 3;
                }
                ("use", _) => {
                    self.at += 1;
                    self.in_use = true;
                    self.path(&[]);
                    self.in_use = false;
                }
                ("crate" | "super" | "self", "::") => {
                    self.path(&[]);
                }
                (token, _) => {
                    match token {
                        "{" => depth += 1,
                        "}" => depth -= 1,
                        _ => {}
                    }
                    if token == "}" && self.inner.last() == Some(&depth) {
                        self.inner.pop();
                        self.module.pop();
                    }
                    self.at += 1;
                }
            }
        }
        (self.found, self.brought)
    }

    /// Leaves out what it stands before if that is for tests.
    fn attribute(&mut self) {
        let end = behind(self.tokens, self.at + 1);
        let inside = &self.tokens[self.at + 1..end];
        let has = |word: &str| inside.iter().any(|token| token == word);
        self.at = end;
        if has("cfg") && (has("test") || has("loom")) && !has("not") {
            while self.token(0) == "#" {
                self.at = behind(self.tokens, self.at + 1);
            }
            while !["{", ";", ""].contains(&self.token(0)) {
                self.at += 1;
            }
            self.at = match self.token(0) {
                "{" => behind(self.tokens, self.at),
                _ => self.at + 1,
            };
        }
    }

    /// A path, or the tree of a `use`.
    fn path(&mut self, before: &[String]) {
        let mut path = before.to_vec();
        loop {
            match self.token(0) {
                "{" => {
                    let end = behind(self.tokens, self.at);
                    self.at += 1;
                    while self.at + 1 < end {
                        match self.token(0) {
                            "," => self.at += 1,
                            _ => self.path(&path),
                        }
                    }
                    self.at = end;
                    return;
                }
                name if name.starts_with(|c: char| c.is_alphabetic() || c == '_') => {
                    path.push(name.to_owned());
                    self.at += 1;
                }
                "*" => self.at += 1,
                _ => break,
            }
            if self.token(0) != "::" {
                break;
            }
            self.at += 1;
        }
        let mut name = path.last().cloned();
        if (self.in_use || !before.is_empty()) && self.token(0) == "as" {
            name = Some(self.token(1).to_owned());
            self.at += 2;
        }
        let mut base = self.module.clone();
        let mut steps = path.into_iter().peekable();
        while let Some(step) =
            steps.next_if(|step| ["crate", "super", "self"].contains(&step.as_str()))
        {
            match step.as_str() {
                "crate" => base.clear(),
                "super" => drop(base.pop()),
                _ => {}
            }
        }
        base.extend(steps);
        if let Some(name) = name
            && self.in_use
        {
            let here = [&self.module[..], &[name]].concat();
            if here != base {
                self.brought.insert(here, base.clone());
            }
        }
        self.found.insert(base);
    }
}

/// The modules of a crate and what is in their files.
fn modules(src: &str) -> BTreeMap<Module, String> {
    let mut all = BTreeMap::new();
    for path in tree::files(src) {
        let inside = path.strip_prefix(src).unwrap().trim_start_matches('/');
        let Some(inside) = inside.strip_suffix(".rs") else {
            continue;
        };
        let mut module: Vec<_> = inside.split('/').map(str::to_owned).collect();
        if ["mod", "lib", "main"].contains(&module.last().unwrap().as_str()) {
            module.pop();
        }
        all.insert(module, read(&path));
    }
    all.retain(|module, _| {
        let is_test = |name: &String| name == "tests" || name.ends_with("_tests");
        !module.iter().any(is_test)
    });
    all
}

/// The modules that each module names, among the children of each module.
type Graph = BTreeMap<String, BTreeSet<String>>;

fn graphs(files: &BTreeMap<Module, String>) -> BTreeMap<Module, Graph> {
    let mut all: BTreeMap<Module, Graph> = BTreeMap::new();
    // A directory is a module, also when its file is not beside it.
    let known: BTreeSet<&[String]> = files
        .keys()
        .flat_map(|module| (0..=module.len()).map(|end| &module[..end]))
        .collect();
    let mut brought = Brought::new();
    let mut named = Vec::new();
    for (module, source) in files {
        let names = Names {
            tokens: &tokens(source),
            at: 0,
            module: module.clone(),
            inner: Vec::new(),
            found: BTreeSet::new(),
            in_use: false,
            brought: Brought::new(),
        };
        let (found, has) = names.read();
        named.push((module, found));
        brought.extend(has);
    }
    for (module, found) in named {
        for mut named in found {
            // Where it is from; names that go in a circle themselves are followed
            // a few steps.
            for _ in 0..8 {
                let through = (1..=named.len()).find_map(|end| {
                    let from = brought.get(&named[..end])?;
                    (!known.contains(&named[..end])).then(|| [from, &named[end..]].concat())
                });
                match through {
                    Some(through) => named = through,
                    None => break,
                }
            }
            while !known.contains(&named[..]) {
                named.pop();
            }
            let pairs = module.iter().zip(&named);
            let shared = pairs.take_while(|(a, b)| a == b).count();
            if let (Some(from), Some(to)) = (module.get(shared), named.get(shared)) {
                let graph = all.entry(module[..shared].to_vec()).or_default();
                graph.entry(from.clone()).or_default().insert(to.clone());
            }
        }
    }
    all
}

/// A way from one to the other, both included.
fn way(graph: &Graph, from: &str, to: &str) -> Option<Vec<String>> {
    let mut ways = vec![vec![from.to_owned()]];
    let mut seen = BTreeSet::from([from.to_owned()]);
    while let Some(way) = (!ways.is_empty()).then(|| ways.remove(0)) {
        let last = way.last().expect("it has its beginning");
        if last == to {
            return Some(way);
        }
        for next in graph.get(last).into_iter().flatten() {
            if seen.insert(next.clone()) {
                ways.push([&way[..], std::slice::from_ref(next)].concat());
            }
        }
    }
    None
}

/// The mistakes of a crate: a cycle that is not known, a known step that closes none.
fn mistakes(name: &str, files: &BTreeMap<Module, String>, known: &[&str]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut left: BTreeSet<&str> = known.iter().copied().collect();
    for (parent, mut graph) in graphs(files) {
        let inside: String = parent.iter().map(|module| format!("{module}/")).collect();
        let step = |from: &str, to: &str| format!("{inside}{from} -> {inside}{to}");
        let mut removed = Vec::new();
        for (from, to) in graph
            .clone()
            .iter()
            .flat_map(|(from, to)| to.iter().map(move |to| (from.clone(), to.clone())))
        {
            if left.remove(&*step(&from, &to)) {
                graph.get_mut(&from).expect("it is there").remove(&to);
                removed.push((from, to));
            }
        }
        for (from, to) in removed {
            if way(&graph, &to, &from).is_none() {
                let step = step(&from, &to);
                wrong.push(format!(
                    "{name}: {step} closes no cycle, delete it from KNOWN"
                ));
            }
        }
        // Each cycle once, though it begins at each of its members.
        let mut told = BTreeSet::new();
        for (from, to) in graph
            .iter()
            .flat_map(|(from, to)| to.iter().map(move |to| (from, to)))
        {
            if let Some(back) = way(&graph, to, from)
                && told.insert(back.iter().cloned().collect::<BTreeSet<_>>())
            {
                let cycle = [from.as_str()]
                    .into_iter()
                    .chain(back.iter().map(String::as_str));
                let cycle: Vec<_> = cycle.map(|module| format!("{inside}{module}")).collect();
                wrong.push(format!("{name}: a cycle: {}", cycle.join(" -> ")));
            }
        }
    }
    let missing = left.into_iter();
    wrong.extend(missing.map(|step| format!("{name}: {step} is not there, delete it from KNOWN")));
    wrong
}

/// The directories of all crates.
fn crates() -> Vec<String> {
    let mut all = tree::crates();
    all.extend([".", "bench", "demo"].map(str::to_owned));
    all.sort();
    all
}

#[test]
fn modules_do_not_name_each_other_in_a_circle() {
    let mut wrong = Vec::new();
    let all = crates();
    for name in &all {
        let known = KNOWN.iter().filter(|(crate_name, _)| crate_name == name);
        let known: Vec<&str> = known.map(|(_, step)| *step).collect();
        let files = modules(&format!("{name}/src"));
        assert!(!files.is_empty(), "{name} has sources");
        wrong.extend(mistakes(name, &files, &known));
    }
    for (name, step) in KNOWN {
        assert!(all.iter().any(|one| one == name), "{name}: {step}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A crate on paper.
fn paper(files: &[(&str, &str)]) -> BTreeMap<Module, String> {
    let module = |path: &str| path.split('/').map(str::to_owned).collect();
    let files = files.iter();
    files
        .map(|(path, source)| (module(path), (*source).to_owned()))
        .collect()
}

#[test]
fn a_cycle_is_found_and_named() {
    let files = paper(&[
        ("a", "use crate::{c, b::{x as y, Z}};"),
        (
            "b",
            "/* a */ fn f<'c>(_: &'c str) { super::c::deep::<'c'>(\"}\") }",
        ),
        (
            "c",
            "#[cfg(test)] mod tests { use super::super::b; } fn f() {}",
        ),
        (
            "c/deep",
            "pub(super) fn deep() { let _ = r#\"\"{\"#; crate::a::f() }",
        ),
        ("d", "// use crate::e;\nuse crate::a;"),
        (
            "e",
            "use super::{a::*, d}; mod inner { use super::super::d; }",
        ),
    ]);
    assert_eq!(
        mistakes("paper", &files, &[]),
        [
            "paper: a cycle: a -> b -> c -> a",
            "paper: a cycle: a -> c -> a",
        ]
    );
    let one = ["c -> a"];
    assert_eq!(mistakes("paper", &files, &one), [""; 0]);
    // The list knows only what is there.
    assert_eq!(
        mistakes("paper", &files, &["c -> a", "d -> a", "a -> e"]),
        [
            "paper: d -> a closes no cycle, delete it from KNOWN",
            "paper: a -> e is not there, delete it from KNOWN",
        ]
    );
}

#[test]
fn a_cycle_within_a_module_is_found_and_a_parent_is_none() {
    let files = paper(&[
        ("a", "use self::b::B; use crate::a::c::C; struct A;"),
        ("a/b", "use super::{A, c::C};"),
        ("a/c", "use crate::a::A; fn f() { super::b::g() }"),
    ]);
    assert_eq!(
        mistakes("paper", &files, &[]),
        ["paper: a cycle: a/b -> a/c -> a/b"]
    );
}

#[test]
fn a_cycle_through_a_name_that_was_brought_in_is_found() {
    let files = paper(&[
        (
            "",
            "mod a; mod b; pub use a::{Thing as Other, deep}; use std::fs;",
        ),
        ("a", "pub mod deep; fn f() { crate::b::g() }"),
        ("b", "fn f(_: crate::Other) {}"),
        ("c", "fn f(_: super::fs::File) { crate::deep::f() }"),
    ]);
    let files = files.into_iter().map(|(mut module, source)| {
        module.retain(|step| !step.is_empty());
        (module, source)
    });
    assert_eq!(
        mistakes("paper", &files.collect(), &[]),
        ["paper: a cycle: a -> b -> a"]
    );
}

/// `weir-testkit` is for tests, the bench and the demo.
#[test]
fn what_is_installed_links_nothing_that_is_for_tests() {
    let mut seen = 0;
    for name in crates()
        .iter()
        .filter(|name| !["bench", "demo"].contains(&name.as_str()))
    {
        let manifest = super::read(&format!("{name}/Cargo.toml"));
        let manifest: toml::Table = manifest.parse().unwrap();
        let has = |section: &str| {
            let section = manifest.get(section).and_then(toml::Value::as_table);
            section.is_some_and(|section| section.contains_key("weir-testkit"))
        };
        seen += usize::from(has("dev-dependencies"));
        assert!(!has("dependencies"), "{name} links weir-testkit");
    }
    assert!(seen > 2, "only {seen} crates have it for their tests");
}
