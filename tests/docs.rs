//! What the documents say, held against the program: commands are parsed by
//! the definition of the verbs (not run), configuration goes through `weir
//! check`, tests that SPECIFICATION.md names exist, and so does every path.
//! The prose between them is the reader's to judge.

#[path = "docs/api.rs"]
mod api;
#[path = "../src/cli/mod.rs"]
#[allow(dead_code)] // the verbs' code; only their definition is used
mod cli;
#[path = "docs/dependencies.rs"]
mod dependencies;
#[path = "docs/fail2ban_settings.rs"]
mod fail2ban_settings;
#[path = "docs/help.rs"]
mod help;
#[path = "docs/imports.rs"]
mod imports;
#[path = "docs/links.rs"]
mod links;
#[path = "docs/metrics.rs"]
mod metrics;
#[path = "docs/names.rs"]
mod names;
#[path = "common/plain.rs"]
mod plain;
#[path = "docs/programs.rs"]
mod programs;
#[path = "docs/recording.rs"]
mod recording;
#[path = "docs/threads.rs"]
mod threads;
#[path = "common/tree.rs"]
mod tree;

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use clap::{CommandFactory, Parser, error::ErrorKind};
use tree::ROOT;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Programs of others that the documents may call.
const OTHERS: [&str; 28] = [
    "/usr/bin/fail2ban-client",
    "apt",
    "cargo",
    "cat",
    "cd",
    "cp",
    "curl",
    "editor",
    "fail2ban-client",
    "fail2ban-regex",
    "git",
    "grep",
    "ip",
    "ip6tables",
    "iptables",
    "journalctl",
    "last",
    "ln",
    "mv",
    "rm",
    "sh",
    "ssh",
    "sysctl",
    "systemctl",
    "tcpdump",
    "tests/run.py",
    "tshark",
    "xargs",
];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn documents() -> Vec<String> {
    let mut all = links::pages("docs");
    all.extend(links::pages("docs/guide"));
    let top = [
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "README.md",
        "SECURITY.md",
        "tests/README.md",
    ];
    all.extend(top.map(str::to_owned));
    all
}

/// A piece of a document, and where it begins.
struct Piece {
    place: String,
    text: String,
}

/// Fenced blocks of a language; those of a list are indented.
fn blocks(document: &str, language: &str) -> Vec<Piece> {
    let (text, mut found, mut open) = (read(document), Vec::new(), None::<(String, Piece)>);
    for (number, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => {
                let (tag, piece) = open.take().expect("it is open");
                if tag == language {
                    found.push(piece);
                }
            }
            (Some(tag), None) => {
                let place = format!("{document}:{}", number + 2);
                let text = String::new();
                open = Some((tag.trim().to_owned(), Piece { place, text }));
            }
            (None, Some((_, piece))) => piece.text.push_str(&format!("{line}\n")),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{document}: a block without an end");
    found
}

/// `Code` in running text.
fn spans(document: &str) -> Vec<Piece> {
    let (text, mut found, mut fenced) = (read(document), Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            found.extend(line.split('`').skip(1).step_by(2).map(|text| Piece {
                place: format!("{document}:{}", number + 1),
                text: text.to_owned(),
            }));
        }
    }
    found
}

/// The commands of a shell line, as words.
fn commands(line: &str) -> Vec<Vec<String>> {
    let words = shlex::split(line).unwrap_or_else(|| panic!("quotes do not match: {line}"));
    let mut commands = vec![Vec::new()];
    for word in words {
        match word.as_str() {
            "|" | "&&" | "||" | ";" | "&" => commands.push(Vec::new()),
            _ => commands.last_mut().expect("never empty").push(word),
        }
    }
    for command in &mut commands {
        command.retain(|word| !word.starts_with(['<', '>']) && !word.starts_with("2>"));
    }
    commands.retain(|command| !command.is_empty());
    commands
}

/// What running text writes for a value of some kind.
fn filled(text: &str) -> String {
    let words = text
        .split(' ')
        .map(|word| match word.trim_matches(['[', ']']) {
            "ADDR" | "ATTACKER" => "192.0.2.7",
            "PREFIX" => "192.0.2.0/24",
            "NAME" => "sshd",
            "P" => "22",
            "DIR" | "FILE" => "/tmp/x",
            "VERB" => "status",
            plain => plain,
        });
    words.collect::<Vec<_>>().join(" ")
}

/// Why clap refuses these words, if it does; running text (not `strict`) may
/// name a verb without its arguments. Options that do nothing but print
/// are as good as any.
fn refusal(words: &[String], strict: bool) -> Option<String> {
    let named = words
        .iter()
        .all(|word| word.bytes().all(|b| b.is_ascii_lowercase()));
    match cli::Weir::try_parse_from(words) {
        Ok(_) => None,
        Err(e) => match e.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => None,
            // A verb that is named, not used.
            ErrorKind::MissingRequiredArgument if named && !strict => None,
            _ => Some(e.to_string()),
        },
    }
}

#[test]
fn the_definition_refuses_what_is_not_there() {
    let words = |line: &str| commands(line).remove(0);
    assert!(refusal(&words("weir why 192.0.2.7 --port 22 # why"), true).is_none());
    for wrong in [
        "weir why 192.0.2.7 --prt 22",
        "weir wy 192.0.2.7",
        "weir why",
        "weir ban 192.0.2.7 --port",
    ] {
        assert!(refusal(&words(wrong), true).is_some(), "{wrong}");
    }
    let piped = commands("weir bans --json | grep x && weir status >/tmp/x");
    assert_eq!(piped.len(), 3);
    assert_eq!(piped[2], ["weir", "status"]);
}

#[test]
fn every_command_in_the_documents_parses() {
    let makefile = read("Makefile");
    let is_target = |word: &str| makefile.lines().any(|l| l.starts_with(&format!("{word}:")));
    let (mut parsed, mut wrong) = (0, Vec::new());
    let mut check = |place: &str, line: &str, in_full: bool| {
        for command in commands(line) {
            let command: Vec<_> = command
                .into_iter()
                .skip_while(|word| word == "sudo")
                .collect();
            match command[0].as_str() {
                "weir" => {
                    parsed += 1;
                    wrong.extend(
                        refusal(&command, in_full).map(|why| format!("{place}: {line}\n{why}")),
                    );
                }
                "make" => {
                    let targets = command[1..].iter().filter(|word| !word.contains('='));
                    for target in targets.filter(|word| !is_target(word)) {
                        wrong.push(format!("{place}: no target {target}"));
                    }
                }
                "weir-bench" | "weir-ring" => {}
                other if in_full && !OTHERS.contains(&other) => {
                    wrong.push(format!("{place}: {other} is not known: {line}"));
                }
                _ => {}
            }
        }
    };
    for document in documents() {
        for block in blocks(&document, "sh") {
            for line in block.text.lines() {
                check(&block.place, line, true);
            }
        }
        for span in spans(&document) {
            // A verb with its arguments, not the program's name alone.
            if ["weir ", "make "]
                .iter()
                .any(|name| span.text.starts_with(name))
            {
                check(&span.place, &filled(&span.text), false);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(parsed > 300, "only {parsed} commands were found");
}

/// The mistakes that `weir check` finds in a configuration.
fn mistakes(config: &str) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weir.toml");
    // Which interfaces there are is this machine's affair.
    let mut config = if config.contains("interfaces") {
        config.to_owned()
    } else {
        format!("interfaces = [\"lo\"]\n{config}")
    };
    // Keys and tokens that it names are read.
    let authorities = fs::read_to_string("/etc/ssl/certs/ca-certificates.crt").unwrap();
    for (name, text) in [
        (
            "telegram.token",
            "123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw",
        ),
        ("tower.token", "a token"),
        ("daf.secret", "a secret"),
        ("tower.pem", &authorities),
        ("zmq.key", "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"),
    ] {
        let file = dir.path().join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    }
    if config.contains("[token") {
        let keys = dir.path().join("token-keys");
        let mut make = Command::new(WEIR);
        let made = make.args(["token", "key", "new", "--keys"]).arg(&keys);
        assert!(made.output().unwrap().status.success());
        if !config.contains("keys = ") {
            let keys = format!("[token]\nkeys = \"{}\"\n", keys.display());
            config = match config.contains("[token]\n") {
                true => config.replacen("[token]\n", &keys, 1),
                false => format!("{config}\n{keys}"),
            };
        }
    }
    let fail2ban = dir.path().join("fail2ban");
    fs::create_dir(&fail2ban).unwrap();
    fs::write(fail2ban.join("jail.conf"), "").unwrap();
    let config = config
        .replace("/etc/weir/", &format!("{}/", dir.path().display()))
        .replace(
            "/etc/daf/secret",
            &dir.path().join("daf.secret").display().to_string(),
        )
        .replace("/etc/fail2ban", &fail2ban.display().to_string());
    fs::write(&path, &config).unwrap();
    let mut check = Command::new(WEIR);
    check.args(["check", "--config"]).arg(&path);
    let output = check.output().unwrap();
    (!output.status.success()).then(|| {
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        format!(
            "{config}\n{said}{}",
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

#[test]
fn every_configuration_in_the_documents_is_good() {
    assert!(mistakes("bakend = \"tcx\"\n").is_some());
    let (mut checked, mut wrong) = (0, Vec::new());
    for document in documents() {
        for block in blocks(&document, "toml") {
            checked += 1;
            wrong.extend(mistakes(&block.text).map(|why| format!("{}: {why}", block.place)));
        }
        for span in spans(&document) {
            let is_setting = |text: &str| {
                let key = text.split_once(" = ").map(|(key, _)| key);
                key.is_some_and(|key| key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
            };
            if !is_setting(&span.text) || span.text.contains('…') {
                continue;
            }
            checked += 1;
            // The sentence says where it belongs.
            let jail = "[jail.sshd]\npaths = [\"/var/log/auth.log\"]\n";
            let sink = "[sink.log]\nkind = \"file\"\npath = \"/var/log/weir.json\"\n";
            let zmq = "[sink.bus]\nkind = \"zmq\"\nurl = \"tcp://127.0.0.1:5556\"\n";
            let filter = "[filter.own]\npatterns = [\"<addr>\"]\n";
            let watch = "[watch.mail]\ncommand = [\"/bin/true\"]\n";
            let list = "[list.bad]\nfile = \"/etc/weir/bad.txt\"\n";
            let pool = "[balance]\ninterface = \"lo\"\n[pool.backup]\nvip = [\"192.0.2.81\"]\n\
                        ports = [\"80/tcp\"]\nreals = [{ address = \"192.0.2.12\" }]\n\
                        [pool.web]\nvip = [\"192.0.2.80\"]\nports = [\"80/tcp\"]\n\
                        reals = [{ address = \"192.0.2.11\" }]\n";
            let places = [
                "",
                "[lockout]\n",
                "[jail.sshd]\n",
                jail,
                "[geofence]\n",
                watch,
                list,
                pool,
                "[decoy]\nports = [\"1/tcp\"]\n",
                sink,
                zmq,
                filter,
            ];
            let tried = places.map(|section| mistakes(&format!("{section}{}\n", span.text)));
            if tried.iter().all(Option::is_some) {
                wrong.push(format!("{}: {}: {tried:?}", span.place, span.text));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 85, "only {checked} were found");
    // The default configuration, and with every option in it put into force.
    let default = read("dist/weir.toml").replace("interfaces = \"auto\"", "interfaces = [\"lo\"]");
    assert_eq!(mistakes(&default), None);
    let full: Vec<_> = default
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(option) if option.starts_with(|c: char| c == '[' || c.is_ascii_lowercase()) => {
                option
            }
            _ => line,
        })
        .collect();
    assert!(full.contains(&"[jail.mine]"));
    assert_eq!(mistakes(&full.join("\n")), None);
}

/// All sources, for names of functions in them.
fn sources() -> String {
    let mut all = String::new();
    for dir in ["src", "tests", "crates", "bench", "demo"] {
        let paths = tree::files(dir).into_iter();
        for path in paths.filter(|path| path.ends_with(".rs")) {
            all.push_str(&read(&path));
        }
    }
    all
}

#[test]
fn every_test_that_the_specification_names_exists() {
    let (sources, makefile) = (sources(), read("Makefile"));
    let mut held = 0;
    let mut missing = Vec::new();
    let mut heading = "";
    let text = read("SPECIFICATION.md");
    for (number, line) in text.lines().enumerate() {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        if !line.starts_with('|') || line.starts_with("|--") {
            continue;
        }
        let last = *cells.last().unwrap();
        // Tables of figures name rows of weir-bench, not tests.
        if ["held by", "row"].contains(&last) {
            heading = last;
            continue;
        }
        if heading != "held by" {
            continue;
        }
        let mut before = "";
        for (i, part) in last.split('`').enumerate() {
            if i % 2 == 0 {
                before = part;
                continue;
            }
            held += 1;
            let at = |path: &str| Path::new(ROOT).join(path);
            let exists = if before.trim_end().ends_with("fuzz target") {
                at(&format!("fuzz/fuzz_targets/{part}.rs")).exists()
            } else if let Some(target) = part.strip_prefix("make ") {
                makefile
                    .lines()
                    .any(|l| l.starts_with(&format!("{target}:")))
            } else if let Some(name) = part.strip_prefix("weir-") {
                at(&format!("crates/{name}")).is_dir()
            } else if part.contains('/') {
                at(part).exists()
            } else if let Some((module, inner)) = part.split_once("::") {
                fs::read_dir(at("crates")).unwrap().any(|c| {
                    let file = format!("src/{module}/{inner}.rs");
                    c.unwrap().path().join(file).exists()
                })
            } else {
                sources.contains(&format!("fn {part}("))
            };
            if !exists {
                missing.push(format!("SPECIFICATION.md:{}: {part}", number + 1));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(held > 40, "only {held} were found");
}

/// tests/kernels/run.sh looks for programs by their paths in the package, as the build
/// names them.
#[test]
fn every_test_for_other_kernels_is_a_file_of_its_package() {
    let suite = read("tests/kernels/suite");
    let mut lines = 0;
    for line in suite.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace().skip(1);
        let (Some(package), Some(test)) = (words.next(), words.next()) else {
            continue;
        };
        let package = package
            .strip_prefix("weir-")
            .map_or(String::new(), |name| format!("crates/{name}/"));
        let path = format!("{package}tests/{test}.rs");
        assert!(exists(Path::new(&path)), "{line}: there is no {path}");
        lines += 1;
    }
    assert!(lines > 10, "tests/kernels/suite has {lines} tests");
}

/// Does a name with at most one `*` exist there?
fn exists(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some((head, tail)) = name.split_once('*') else {
        return path.exists();
    };
    let entries = fs::read_dir(path.parent().unwrap());
    entries.into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with(head) && name.ends_with(tail)
    })
}

#[test]
fn every_file_that_the_documents_name_exists() {
    let top: Vec<_> = fs::read_dir(ROOT)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut found = 0;
    for document in documents() {
        for Piece { place, text } in spans(&document) {
            // A path of this repository begins with one of its directories; what is
            // built need not be there.
            let first = text.split('/').next().unwrap();
            if first != "target"
                && text.contains('/')
                && !text.contains(' ')
                && top.iter().any(|name| name == first)
            {
                found += 1;
                assert!(Path::new(ROOT).join(&text).exists(), "{place}: {text}");
            }
        }
    }
    assert!(found > 2, "only {found} were found");
}

/// The headings of a changelog: `## VERSION (when)`, newest first.
fn versions(changelog: &str) -> Vec<(u64, u64, u64)> {
    let headings = changelog.lines().filter_map(|l| l.strip_prefix("## "));
    let parsed = headings.map(|heading| {
        let (version, when) = heading.split_once(" (").expect(heading);
        assert!(when.len() > 1 && when.ends_with(')'), "{heading}");
        let parts: Vec<_> = version
            .split('.')
            .map(|part| part.parse().expect(heading))
            .collect();
        let [major, minor, patch] = parts[..] else {
            panic!("{heading}");
        };
        (major, minor, patch)
    });
    parsed.collect()
}

#[test]
fn the_changelog_is_by_version_newest_first() {
    let two = "# C\n## 0.2.0 (not released yet)\n- x\n## 0.1.9 (2026-01-01)\n- y";
    assert_eq!(versions(two), [(0, 2, 0), (0, 1, 9)]);

    let changelog = read("CHANGELOG.md");
    let found = versions(&changelog);
    assert!(
        found.is_sorted_by(|newer, older| newer > older),
        "{found:?}"
    );
    let ours = format!("\n## {} (", env!("CARGO_PKG_VERSION"));
    let first = changelog.find("\n## ").expect("it has a version");
    assert!(
        changelog[first..].starts_with(&ours),
        "the newest is not {ours}"
    );
}

#[test]
fn the_guide_explains_every_reason() {
    let guide = read("docs/guide/dropped-packets.md");
    for reason in weir_core::Reason::ALL {
        let explained = guide.lines().any(|line| {
            let cell = line.split('|').nth(1).unwrap_or_default();
            cell.contains(&format!("`{}`", reason.name()))
        });
        assert!(explained, "{}", reason.name());
    }
}

#[test]
fn the_man_pages_are_sound() {
    let dir = tempfile::tempdir().unwrap();
    let mut man = Command::new(WEIR);
    assert!(man.arg("man").arg(dir.path()).status().unwrap().success());
    let pages: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    // One for weir, one for each verb that is not hidden.
    fn count(command: &clap::Command) -> usize {
        let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        1 + verbs.map(count).sum::<usize>()
    }
    // And one for the configuration.
    assert_eq!(pages.len(), count(&cli::Weir::command()) + 1);
    let config = fs::read_to_string(dir.path().join("weir.toml.5")).unwrap();
    assert!(config.starts_with(".TH weir.toml 5 20"), "{config}");
    for part in [
        "\n.B max_retry\n",
        "\nAllowed: a whole number 1\\-1000.\n",
        "\nDefault: \"10m\".\n",
    ] {
        assert!(config.contains(part), "{part:?} in {config}");
    }
    for path in pages
        .iter()
        .filter(|path| path.extension() == Some("1".as_ref()))
    {
        let page = fs::read_to_string(path).unwrap();
        for part in ["EXIT STATUS", "FILES", "VERSION"] {
            let heading = format!("\n.SH {part}\n");
            assert_eq!(
                page.matches(&heading).count(),
                1,
                "{}: {part}",
                path.display()
            );
        }
    }
    let page = fs::read_to_string(dir.path().join("weir-why.1")).unwrap();
    let example = "\n.TP\n\\fBweir why 203.0.113.7\\fR\n";
    assert!(page.contains(example), "{page}");
    assert!(page.contains("\nHere: exit code 1 if it is not."), "{page}");
    let header = page.lines().find(|line| line.starts_with(".TH")).unwrap();
    assert!(header.starts_with(".TH weir-why 1 20"), "{header}");
    let mut lint = Command::new("mandoc");
    let Ok(output) = lint
        .args(["-T", "lint", "-W", "warning"])
        .args(&pages)
        .output()
    else {
        println!("skipped: no program mandoc");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.is_empty(), "{said}");
}
