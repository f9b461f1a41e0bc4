//! What is read beside the file, and how its mistakes are named.

use std::fs;

use crate::config::{Config, places_of, socket_of};

fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

const MAIN_TEXT: &str = "backend = \"dry-run\"\ninterfaces = []\n\n[jail.sshd]\nmax_retry = 2\n";

#[test]
fn directories_beside_the_file_are_read() {
    let dir = directory(&[
        ("weir.toml", MAIN_TEXT),
        (
            "conf.d/b.toml",
            "keep_history = \"2d\"\n[jail.two]\nfilter = \"own\"\npaths = [\"/x\"]\n",
        ),
        ("conf.d/a.toml", "[lockout]\ngrace = \"5m\"\n"),
        ("conf.d/a.toml~", "no"),
        ("conf.d/.b.toml", "no"),
        (
            "filter.d/own.toml",
            "identifiers = [\"own\"]\n[[patterns]]\ntext = \"denied <addr>\"\n",
        ),
        ("jail.d/three.toml", "filter = \"own\"\npaths = [\"/y\"]\n"),
    ]);
    for path in [dir.path().to_owned(), dir.path().join("weir.toml")] {
        let config = Config::load(&path).unwrap_or_else(|e| panic!("{e}"));
        let jails: Vec<_> = config.jails.iter().map(|jail| jail.name.as_str()).collect();
        assert_eq!(jails, ["sshd", "two", "three"]);
        assert_eq!(config.lockout.grace.as_secs(), 300);
        assert_eq!(config.keep_history.time.as_secs(), 2 * 86_400);
        assert_eq!(config.filters["own"].identifiers, ["own"]);
        assert_eq!(config.file, dir.path().join("weir.toml"));
    }
    // Beside a file of another name they are somebody else's.
    fs::write(dir.path().join("other.toml"), MAIN_TEXT).unwrap();
    let config = Config::load(&dir.path().join("other.toml")).unwrap();
    assert_eq!(config.jails.len(), 1);
    let socket = |text: &str| {
        fs::write(dir.path().join("conf.d/a.toml"), text).unwrap();
        socket_of(dir.path())
    };
    assert_eq!(socket("socket = \"/a/b\"\n"), Some("/a/b".into()));
    assert_eq!(socket(""), None);
    assert_eq!(socket("instance = \"b\"\n"), None);
    let instance = places_of(dir.path()).unwrap().instance;
    assert_eq!(instance, "b");
}

/// `weir status` and `weir detach` ask for no more than these of a configuration.
#[test]
fn a_mistake_about_a_place_is_named_with_its_own_file_and_line() {
    for (main, fragment, said) in [
        (
            "\nstate_dir = 7\n",
            "",
            "/weir.toml:2: state_dir is 7; allowed: an absolute path such as",
        ),
        (
            MAIN_TEXT,
            "\n\ninstance = [\"b\"]\n",
            "/conf.d/a.toml:3: instance is ",
        ),
        (MAIN_TEXT, "\n[jail.x\n", "/conf.d/a.toml:2: "),
        ("pin_root = \"/a\"\nx = = 1\n", "", "/weir.toml:2: "),
    ] {
        let dir = directory(&[("weir.toml", main), ("conf.d/a.toml", fragment)]);
        let error = places_of(dir.path()).unwrap_err().to_string();
        let said = format!("{}{said}", dir.path().display());
        assert!(error.starts_with(&said), "{said}: {error}");
    }
    // Mistakes about something else do not hide them.
    let dir = directory(&[
        ("weir.toml", "bakend = 1\ninstance = \"a\"\n"),
        ("conf.d/a.toml", "state_dir = \"/b\"\nbakend = 2\n"),
    ]);
    let places = places_of(dir.path()).unwrap();
    assert_eq!(places.instance, "a");
    assert_eq!(places.state_dir, std::path::Path::new("/b"));
    assert_eq!(places.pin_root, std::path::Path::new("/sys/fs/bpf/weir"));
}

#[test]
fn a_mistake_is_named_with_its_own_file_and_line() {
    for (file, text, said) in [
        (
            "conf.d/a.toml",
            "\n[jail.x]\nfilter = \"sshd\"\nretry = 3\n",
            "conf.d/a.toml:4: unknown key \"retry\" in [jail.x]",
        ),
        ("conf.d/a.toml", "\n\n[jail.x\n", "conf.d/a.toml:3: "),
        (
            "conf.d/a.toml",
            "[jail.sshd]\n",
            "conf.d/a.toml:1: jail.sshd is in {dir}/weir.toml:4 already",
        ),
        (
            "conf.d/a.toml",
            "\nbackend = \"xdp\"\n",
            "conf.d/a.toml:2: backend is in {dir}/weir.toml:1 already",
        ),
        (
            "conf.d/a.toml",
            "nonsense = 1\n",
            "conf.d/a.toml:1: unknown key \"nonsense\"",
        ),
        (
            "filter.d/own.toml",
            "\npatterns = [\"x\"]\n",
            "filter.d/own.toml:2: [filter.own]: patterns[0]",
        ),
        (
            "filter.d/own.toml",
            "patterns = [\n\"no <addr>\",\n\"<word>: <addr>\",\n]\n",
            "filter.d/own.toml:3: [filter.own]: patterns[1] \"<word>: <addr>\": <word> takes all bytes",
        ),
        (
            "filter.d/own.toml",
            "patterns = [\"<addr>\"]\nretry = 3\n",
            "filter.d/own.toml:2: unknown key \"retry\" in [filter.own]; allowed: identifiers, ",
        ),
        (
            "jail.d/own.toml",
            "filter = \"sshd\"\n[jail.own]\n",
            "jail.d/own.toml:2: unknown key \"jail\" in [jail.own]",
        ),
        (
            "jail.d/sshd.toml",
            "max_retry = 3\n",
            "jail.d/sshd.toml:1: jail.sshd is in {dir}/weir.toml:4 already",
        ),
        (
            "jail.d/own.toml",
            "filter = \"sshd\"\nobserve = true\n",
            "own.toml:2: unknown key \"observe\" in [jail.own] (it is a top-level key",
        ),
        (
            "jail.d/own.toml",
            "filter = \"sshd\"\nobserve = true\n",
            ": write it above the first [table] of {dir}/weir.toml); allowed: enabled",
        ),
    ] {
        let dir = directory(&[("weir.toml", MAIN_TEXT), (file, text)]);
        let error = Config::load(dir.path())
            .map(drop)
            .expect_err(text)
            .to_string();
        let said = said.replace("{dir}", &dir.path().display().to_string());
        assert!(error.contains(&said), "{file} {text:?}: {error}");
    }
    let dir = directory(&[("weir.toml", MAIN_TEXT)]);
    fs::create_dir(dir.path().join("jail.d")).unwrap();
    fs::write(dir.path().join("jail.d/x.toml"), b"\nignore = [\xff]").unwrap();
    let error = Config::load(dir.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains("jail.d/x.toml:2: not UTF-8"), "{error}");
}
