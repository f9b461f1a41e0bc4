use weir_config::{Document, Part};

use super::*;

const DIGEST: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn check_with(
    app: Option<Option<&Path>>,
    text: &str,
) -> Result<(TokenConfig, Vec<String>), String> {
    let files = Part::all(vec![("weir.toml".into(), text.to_owned(), None)]);
    let document = Document::new(&files);
    let mut root = document.root();
    let mut warnings = Vec::new();
    let config = read(&mut root, app, &mut warnings);
    root.finish();
    let config = document
        .finish(config)
        .map_err(|errors| errors.to_string())?;
    Ok((config.unwrap(), warnings))
}

fn check(text: &str) -> Result<(TokenConfig, Vec<String>), String> {
    check_with(Some(None), text)
}

fn required(more: &str) -> String {
    format!(
        "[token.require.web]\nports = [\"8080/tcp\", \"9000-9009/tcp\"]\naggregate = \"{DIGEST}\"\n{more}"
    )
}

#[test]
fn a_requirement_is_read() {
    let (config, warnings) = check(&required("")).unwrap();
    assert_eq!(config.keys, Path::new(DEFAULT_KEYS));
    assert!(config.sign_to.is_empty() && warnings.is_empty());
    let [web] = &config.requirements[..] else {
        panic!("{config:?}")
    };
    assert_eq!(web.name, "web");
    assert_eq!(web.ports, [(8080, 8080), (9000, 9009)]);
    assert_eq!(web.from, None);
    assert_eq!(web.aggregates, [DIGEST.parse().unwrap()]);
    assert!(web.drops);
    let (config, _) = check(&required(
        "from = [\"192.0.2.0/24\", \"2001:db8::/32\"]\nmode = \"log\"",
    ))
    .unwrap();
    let web = &config.requirements[0];
    assert_eq!(web.from.as_ref().unwrap().len(), 2);
    assert!(!web.drops);
}

#[test]
fn who_signs_has_the_control_group_of_app() {
    let text = "[token]\nkeys = \"/etc/keys\"\nsign_to = [\"198.51.100.0/24\", \"::/0\"]";
    let group = Path::new("/sys/fs/cgroup/x");
    let (config, warnings) = check_with(Some(Some(group)), text).unwrap();
    assert_eq!(config.cgroup.as_deref(), Some(group));
    assert_eq!((config.sign_to.len(), warnings.len()), (2, 0));
    assert_eq!(config.keys, Path::new("/etc/keys"));
    let (_, warnings) = check("[token]").unwrap();
    assert!(
        warnings[0].contains("signs nothing and requires nothing"),
        "{warnings:?}"
    );
    let error = check_with(None, text).unwrap_err();
    assert!(
        error.contains("weir.toml:3: sign_to in [token]: without [app]"),
        "{error}"
    );
    let other = format!("{text}\ncgroup = \"/sys/fs/cgroup/y\"");
    let error = check_with(Some(Some(group)), &other).unwrap_err();
    assert!(
        error.contains("weir.toml:4: cgroup in [token] is another one"),
        "{error}"
    );
}

#[test]
fn mistakes_are_named() {
    let same_tag = format!("[\"{DIGEST}\", \"{}00\"]", &DIGEST[..62]);
    let tags = required("").replace(&format!("\"{DIGEST}\""), &same_tag);
    for (text, told) in [
        (
            "[token.require.web]".to_owned(),
            "ports is missing in [token.require.web]; allowed: a list of TCP ports",
        ),
        (
            "[token.require.web]\nports = [\"80/tcp\"]".to_owned(),
            "aggregate is missing in [token.require.web]: nobody would get in",
        ),
        (
            required("").replace("8080/tcp", "8080/udp"),
            "weir.toml:2: ports in [token.require.web]: \"8080/udp\" is no TCP port, and tokens are of TCP",
        ),
        (
            required("").replace("8080/tcp", "all"),
            "\"all\" is no TCP port",
        ),
        (
            required("").replace(DIGEST, "e3b0"),
            "weir.toml:3: aggregate in [token.require.web]: 4 characters",
        ),
        (
            required("mode = \"drop\""),
            "mode in [token.require.web] is \"drop\"; allowed: \"require\", \"log\"",
        ),
        (
            required("from = []"),
            "from has 0 networks; allowed: 1 to 256",
        ),
        (required("from = [\"x\"]"), "from in [token.require.web]: "),
        (required("for = 1"), "unknown key \"for\""),
        (
            required("").replace("web", "\"a b\""),
            "requirement name \"a b\"",
        ),
        (tags, "begin alike"),
        (
            "[token]\nkeys = \"keys\"".to_owned(),
            "keys is \"keys\"; allowed: an absolute path",
        ),
    ] {
        let error = check(&text).unwrap_err();
        assert!(error.contains(told), "{text}\n{error}");
    }
}
