//! What a sink's section is refused for; keys and tokens are real files.

use std::{fs, os::unix::fs::PermissionsExt};

use weir_config::{Document, Part};

use super::*;

/// What a file's sections say, and what is warned of.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) sinks: Vec<SinkConfig>,
    warnings: Vec<String>,
}

/// Reads the sections of sinks as the daemon does.
pub(crate) fn check(text: &str) -> Result<Checked, String> {
    let files = Part::all(vec![(PathBuf::from("weir.toml"), text.to_owned(), None)]);
    let document = Document::new(&files);
    let (mut root, mut warnings) = (document.root(), Vec::new());
    let sinks = read(&mut root, &mut warnings);
    root.finish();
    let checked = document.finish(Checked { sinks, warnings });
    checked.map_err(|errors| errors.to_string())
}

const KEY: &str = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
const TOKEN: &str = "123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw";

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, text: &str, mode: u32) {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn check(&self, text: &str) -> Result<Checked, String> {
        let text = text.replace("{dir}", &self.0.path().display().to_string());
        check(&format!("# Two lines\n# before it.\n{text}"))
    }

    #[track_caller]
    fn refused(&self, text: &str, words: &[&str]) {
        let errors = self.check(text).expect_err(text);
        for word in words {
            assert!(
                errors.contains(word),
                "no {word:?} for {text:?} in: {errors}"
            );
        }
        assert!(!errors.contains(TOKEN), "{errors}");
    }
}

#[test]
fn each_mistake_is_named_with_line_key_and_what_is_allowed() {
    let files = Files::new();
    files.file("key", KEY, 0o644);
    files.file("token", TOKEN, 0o600);
    let cases: &[(&str, &[&str])] = &[
        (
            "[sink.a]",
            &[
                "weir.toml:3: kind is missing in [sink.a]; allowed: \"webhook\", \"telegram\", \"zmq\", \"file\"",
            ],
        ),
        (
            "[sink.a]\nkind = \"mail\"",
            &["weir.toml:4: kind in [sink.a] is \"mail\""],
        ),
        (
            "[sink.\"a b\"]\nkind = \"file\"\npath = \"/tmp/x\"",
            &["weir.toml:3: sink name \"a b\"; allowed: 1-48"],
        ),
        (
            "[sink.a]\nkind = \"webhook\"",
            &["weir.toml:3: url is missing in [sink.a]"],
        ),
        (
            "[sink.a]\nkind = \"webhook\"\nurl = \"ftp://example.org/\"",
            &["weir.toml:5: url in [sink.a] is no such address"],
        ),
        (
            "[sink.a]\nkind = \"webhook\"\nurl = \"https://me:secret@example.org/\"",
            &["weir.toml:5: url in [sink.a]", "without a user name"],
        ),
        (
            "[sink.a]\nkind = \"webhook\"\nurl = \"https://example.org/\"\nevents = [\"bans\"]",
            &[
                "weir.toml:6: events in [sink.a] has \"bans\"; allowed: a list of \"found\", \"ban\"",
            ],
        ),
        (
            "[sink.a]\nkind = \"webhook\"\nurl = \"https://example.org/\"\nevents = []",
            &["weir.toml:6: events in [sink.a] is empty"],
        ),
        (
            "[sink.a]\nkind = \"webhook\"\nurl = \"https://example.org/\"\nformat = \"ipt_geofence\"\nevents = [\"found\"]",
            &[
                "weir.toml:7: events in [sink.a] has \"found\"; allowed: a list of \"ban\", \"unban\", \"drop\", \"start\", \"stop\"",
            ],
        ),
        (
            "[sink.a]\nkind = \"webhook\"\nurl = \"https://example.org/\"\nrate = 0",
            &["weir.toml:6: rate in [sink.a] is 0"],
        ),
        (
            "[sink.a]\nkind = \"webhook\"\nurl = \"https://example.org/\"\nchat_id = \"1\"",
            &["weir.toml:6: unknown key \"chat_id\" in [sink.a]; allowed: kind"],
        ),
        (
            "[sink.a]\nkind = \"webhook\"\nurl = \"https://example.org/\"\nca_file = \"{dir}/key\"",
            &["weir.toml:6: ca_file in [sink.a]", "no certificate in it"],
        ),
        (
            "[sink.a]\nkind = \"telegram\"",
            &[
                "chat_id is missing in [sink.a]",
                "token_file is missing in [sink.a]",
            ],
        ),
        (
            "[sink.a]\nkind = \"telegram\"\ntoken_file = \"{dir}/token\"\nchat_id = \"everybody\"",
            &["weir.toml:6: chat_id in [sink.a] is \"everybody\""],
        ),
        (
            "[sink.a]\nkind = \"telegram\"\ntoken_file = \"{dir}/key\"\nchat_id = \"-1001\"",
            &[
                "weir.toml:5: token_file in [sink.a]",
                "everybody can read it",
            ],
        ),
        (
            "[sink.a]\nkind = \"telegram\"\ntoken_file = \"token\"\nchat_id = \"-1001\"",
            &["weir.toml:5: token_file in [sink.a]: token: not an absolute path"],
        ),
        (
            "[sink.a]\nkind = \"telegram\"\ntoken_file = \"{dir}/token\"\nchat_id = \"1\"\napi = \"http://example.org\"",
            &["weir.toml:7: api in [sink.a]"],
        ),
        (
            "[sink.a]\nkind = \"zmq\"\nurl = \"tcp://127.0.0.1:5556\"",
            &[
                "weir.toml:3: server_key_file is missing in [sink.a]",
                "plain = true",
            ],
        ),
        (
            "[sink.a]\nkind = \"zmq\"\nurl = \"tcp://127.0.0.1:5556\"\nserver_key_file = \"{dir}/key\"\nplain = true",
            &["weir.toml:3: [sink.a] has both server_key_file and plain = true"],
        ),
        (
            "[sink.a]\nkind = \"zmq\"\nurl = \"udp://127.0.0.1:5556\"\nplain = true",
            &["weir.toml:5: url in [sink.a] is \"udp://127.0.0.1:5556\""],
        ),
        (
            "[sink.a]\nkind = \"zmq\"\nurl = \"tcp://127.0.0.1\"\nplain = true",
            &["weir.toml:5: url in [sink.a]"],
        ),
        (
            "[sink.a]\nkind = \"file\"\npath = \"events.json\"",
            &["weir.toml:5: path in [sink.a] is \"events.json\""],
        ),
        (
            "[sink.a]\nkind = \"file\"\npath = \"/tmp\"",
            &["weir.toml:5: path in [sink.a]"],
        ),
    ];
    for (text, words) in cases {
        files.refused(text, words);
    }
}

/// G13: a key that is none refuses the whole configuration.
#[test]
fn a_malformed_key_is_refused_and_never_clear_text() {
    let files = Files::new();
    let section =
        "[sink.a]\nkind = \"zmq\"\nurl = \"tcp://127.0.0.1:5556\"\nserver_key_file = \"{dir}/key\"";
    files.refused(
        section,
        &["weir.toml:6: server_key_file in [sink.a]", "cannot be read"],
    );
    for (text, why) in [
        ("", "not one line"),
        ("short", "5 characters"),
        (&KEY[..39], "39 characters"),
        (&"~".repeat(40), "Z85 does not have"),
        (&"0".repeat(40), "all zeros"),
        (&"0".repeat(5000), "more than 4096 bytes"),
        (&format!("{KEY}\n{KEY}"), "not one line"),
    ] {
        files.file("key", text, 0o644);
        files.refused(section, &["weir.toml:6: server_key_file in [sink.a]", why]);
    }
    files.file("key", KEY, 0o646);
    files.refused(section, &["others can write to it"]);
    for text in [KEY.to_owned(), format!("{KEY}\n"), hex::encode(KEY)] {
        files.file("key", &text, 0o644);
        let config = files.check(section).unwrap();
        let SinkKind::Zmq { server_key, .. } = &config.sinks[0].kind else {
            panic!("{:?}", config.sinks);
        };
        assert_eq!(server_key.unwrap()[..2], [0x54, 0xfc]);
        assert!(config.warnings.iter().all(|w| !w.contains("clear text")));
    }
}

#[test]
fn secrets_are_not_shown() {
    let files = Files::new();
    files.file("token", TOKEN, 0o600);
    files.file("bad", "my secret token", 0o600);
    let config = files
        .check(
            "[sink.t]\nkind = \"telegram\"\ntoken_file = \"{dir}/token\"\nchat_id = \"@here\"\n\
             [sink.w]\nkind = \"webhook\"\nurl = \"http://example.org/hook/s3cret\"\ntoken_file = \"{dir}/token\"",
        )
        .unwrap();
    let shown = format!("{config:?}");
    assert!(
        !shown.contains(TOKEN) && !shown.contains("s3cret"),
        "{shown}"
    );
    assert_eq!(config.sinks[1].target(), "http://example.org");
    assert!(
        config
            .warnings
            .iter()
            .any(|w| w.contains("[sink.w]: its events and its token"))
    );
    assert_eq!(
        (config.sinks[0].rate, config.sinks[1].rate),
        (Some(20), Some(60))
    );
    let errors = files
        .check("[sink.t]\nkind = \"telegram\"\ntoken_file = \"{dir}/bad\"\nchat_id = \"1\"")
        .unwrap_err();
    assert!(
        errors.contains("holds no token") && !errors.contains("my secret"),
        "{errors}"
    );
}

#[test]
fn every_kind_of_event_can_be_chosen_but_those_that_sinks_make() {
    for (word, kind) in Kind::ALL {
        let text =
            format!("[sink.a]\nkind = \"file\"\npath = \"/x/y.json\"\nevents = [{word:?}]\n");
        match check(&text) {
            Ok(checked) => {
                assert!(kind.can_be_chosen(), "{word}");
                assert_eq!(checked.sinks[0].events, kind.bit());
            }
            Err(error) => {
                assert!(!kind.can_be_chosen(), "{word}: {error}");
                assert!(error.contains("allowed: a list of"), "{error}");
            }
        }
    }
}
