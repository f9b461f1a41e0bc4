//! The table of threads in ARCHITECTURE.md has each thread that the sources name,
//! and no other. Threads without a name end within the call that makes them.

use std::collections::BTreeSet;

use crate::{read, tree};

/// The names that a source gives to threads, up to what is filled in: the first
/// literal behind `spawn(` or, of a thread's `Builder`, behind `.name(`.
fn names_given(source: &str) -> BTreeSet<String> {
    let calls = source.split("spawn(").skip(1);
    let builders = source.split("Builder::new()").skip(1);
    let named = builders.filter_map(|rest| rest.trim_start().strip_prefix(".name("));
    let names = calls.chain(named).filter_map(|rest| {
        let rest = rest.trim_start();
        let rest = rest.strip_prefix("format!(").unwrap_or(rest);
        let (name, _) = rest.strip_prefix('"')?.split_once('"')?;
        name.split('{').next()
    });
    names.map(str::to_owned).collect()
}

/// The names in the first column of the table below this heading, up to what is
/// filled in.
fn names_in_table(document: &str, heading: &str) -> BTreeSet<String> {
    let (_, section) = document.split_once(heading).expect(heading);
    let section = section.split("\n## ").next().unwrap();
    let cells = section.lines().filter_map(|line| line.split('|').nth(1));
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names
        .map(|name| name.trim_end_matches("NAME").trim_end_matches('N'))
        .map(str::to_owned)
        .collect()
}

/// Sources of programs, without the modules and programs that are tests.
fn sources(dir: &str) -> Vec<String> {
    let mut paths = tree::files(dir);
    let is_test = |path: &str| path.contains("/tests/") || path.ends_with("/tests.rs");
    paths.retain(|path| path.ends_with(".rs") && !is_test(path));
    let code = paths.iter().map(|path| {
        let text = read(path);
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        code.to_owned()
    });
    code.collect()
}

#[test]
fn the_table_of_threads_is_whole() {
    let of = |source| Vec::from_iter(names_given(source));
    assert_eq!(
        of("threads::spawn(\n    \"weir-a\", move || ())"),
        ["weir-a"]
    );
    assert_eq!(of("spawn(format!(\"weir-b-{n}\"), x)"), ["weir-b-"]);
    assert_eq!(of("Builder::new().name(\"c\".into()).spawn(x)"), ["c"]);
    let table = "## T\n| `weir-b-N` | 1 | `no` |\n| `list-NAME`, `c` | 1 | x |\n## U\n| `d` |";
    assert_eq!(
        Vec::from_iter(names_in_table(table, "## T")),
        ["c", "list-", "weir-b-"]
    );

    let mut all = sources("src");
    for dir in tree::crates() {
        // What is measured or tested with runs in no daemon.
        if !["crates/netlab", "crates/testkit"].contains(&dir.as_str()) {
            all.extend(sources(&format!("{dir}/src")));
        }
    }
    let given: BTreeSet<_> = all.iter().flat_map(|source| names_given(source)).collect();
    assert!(given.len() > 15, "only {given:?} were found");
    let told = names_in_table(&read("ARCHITECTURE.md"), "\n## Threads\n");
    assert_eq!(told, given);
}
