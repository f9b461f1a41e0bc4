//! Makes Rust constants of the numbers in bpf/abi/*.h: the names are read from
//! the text, the values are clang's. BTF would carry enums only, and of these
//! only what a map or a global mentions, 64-bit ones from clang 15 on; bindgen
//! would take libclang at build for a list of integers.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    process::{Command, Stdio},
};

/// One `pub const` for each `#define` with a value and each enumerator. `clang`
/// has the arguments that find the headers; `out` is a directory for what it
/// reads.
///
/// Panics where a header defines what is not a number, for that would be missing
/// in Rust.
pub fn generate(abi: &Path, mut clang: Command, out: &Path) -> String {
    let mut headers: Vec<_> = fs::read_dir(abi)
        .expect("bpf/abi/ is readable")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    headers.sort();
    let mut names = Vec::new();
    let mut source = String::new();
    for header in &headers {
        let text = fs::read_to_string(header).expect("headers are readable");
        let file = header.file_name().expect("it has a name").to_string_lossy();
        writeln!(source, "#include \"abi/{file}\"").expect("memory");
        names.extend(constants(&text).into_iter().map(|n| (n, file.to_string())));
    }
    for (name, _) in &names {
        // Its size first, so that none is all zeros, which assemblers write in
        // another way.
        writeln!(
            source,
            "const long long constant_{name}[3] = {{ sizeof({name}), {name} < 0, {name} }};"
        )
        .expect("memory");
    }
    let file = out.join("constants.c");
    fs::write(&file, source).expect("the build's directory is writable");
    let output = clang
        .args(["-target", "bpf", "-S", "-o", "-"])
        .arg(&file)
        .stderr(Stdio::inherit())
        .output()
        .unwrap_or_else(|e| panic!("cannot run {clang:?}: {e}"));
    assert!(output.status.success(), "{clang:?}: {}", output.status);
    let assembly = String::from_utf8(output.stdout).expect("assembly is text");
    let mut rust = String::new();
    for (name, header) in names {
        let kind = match words(&assembly, &name) {
            Some([4, 0, value]) => format!("u32 = {value}"),
            Some([8, 0, value]) => format!("u64 = {}", value as u64),
            other => panic!("bpf/abi/{header}: {name} is not an unsigned number: {other:?}"),
        };
        writeln!(rust, "/// bpf/abi/{header}\npub const {name}: {kind};").expect("memory");
    }
    rust
}

/// The three numbers at `constant_NAME:` in assembly.
fn words(assembly: &str, name: &str) -> Option<[i64; 3]> {
    let label = format!("constant_{name}:");
    let mut lines = assembly.lines().skip_while(|l| !l.starts_with(&label));
    let mut quad = || {
        let mut words = lines.find(|l| l.contains(".quad"))?.split_whitespace();
        words.nth(1)?.parse().ok()
    };
    Some([quad()?, quad()?, quad()?])
}

/// The names of macros with a value and no parameters, and of enumerators.
fn constants(header: &str) -> Vec<String> {
    let text = without_comments(header);
    let macros = text.lines().filter_map(|line| {
        let mut words = line.strip_prefix("#define ")?.split_whitespace();
        let name = words.next().filter(|name| !name.contains('('))?;
        words.next().map(|_| name.to_owned())
    });
    let enums = text.split("enum ").skip(1).filter_map(|rest| {
        let (name, body) = rest.split_once('{')?;
        let is_declared = name.trim().chars().all(|c| c.is_alphanumeric() || c == '_');
        is_declared.then(|| body.split('}').next().unwrap_or_default())
    });
    let enumerators = enums.flat_map(|body| body.split(',')).filter_map(|one| {
        let name = one.split('=').next().unwrap_or_default().trim();
        (!name.is_empty()).then(|| name.to_owned())
    });
    macros.chain(enumerators).collect()
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push_str(part.split_once("*/").map_or("", |(_, after)| after));
    }
    kept
}
