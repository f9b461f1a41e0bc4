use weir_config::{Document, Part};
use weir_core::{PortRange, geofence::Direction};
use weir_identity::{Level, Peers, Protocols, Unknown, Verdict, Where};

use super::*;

const DIGEST: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// `[app]` in this control group, with rules that have a peer.
fn app(cgroup: Option<&Path>, rules: Vec<Rule>) -> AppConfig {
    AppConfig {
        default: Verdict::Drop,
        unknown: Unknown::Drop,
        prompt_timeout: None,
        level: Level::Auto,
        cgroup: cgroup.map(Path::to_owned),
        private_names: Vec::new(),
        container_sockets: Vec::new(),
        container_bundles: Vec::new(),
        upgrades: weir_identity::Upgrades::Tell,
        rule_lines: vec![1; rules.len()],
        rules,
    }
}

fn rule(name: &str, peer: &str, from: &[&str]) -> Rule {
    let from = from
        .iter()
        .map(|text| Peer::Known(Who::Prefix(text.parse().unwrap())));
    let from: Vec<_> = from.collect();
    Rule {
        name: name.into(),
        verdict: Verdict::Allow,
        who: Vec::new(),
        place: Where {
            direction: Direction::In,
            protocols: Protocols::default(),
            ports: vec![PortRange::one(Protocol::Tcp, 5432)],
            to: None,
            from: (!from.is_empty()).then_some(Peers {
                is_negated: false,
                entries: from,
            }),
            netns: None,
        },
        peer: vec![peer.parse().unwrap()],
    }
}

fn check_with(app: Option<AppConfig>, text: &str) -> Result<(TokenConfig, Vec<String>), String> {
    let files = Part::all(vec![("weir.toml".into(), text.to_owned(), None)]);
    let document = Document::new(&files);
    let mut root = document.root();
    let mut warnings = Vec::new();
    let config = read(&mut root, app.as_ref(), &mut warnings);
    root.finish();
    let config = document
        .finish(config)
        .map_err(|errors| errors.to_string())?;
    Ok((config.unwrap(), warnings))
}

fn check(text: &str) -> Result<(TokenConfig, Vec<String>), String> {
    check_with(Some(app(None, Vec::new())), text)
}

fn ranges(text: &str) -> Vec<PortRange> {
    text.parse::<weir_core::PortSet>()
        .unwrap()
        .ranges()
        .to_vec()
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
    assert_eq!(
        web.ports,
        ["8080/tcp", "9000-9009/tcp"].map(|text| ranges(text)[0])
    );
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
    let of_app = || Some(app(Some(group), Vec::new()));
    let (config, warnings) = check_with(of_app(), text).unwrap();
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
    let error = check_with(of_app(), &other).unwrap_err();
    assert!(
        error.contains("weir.toml:4: cgroup in [token] is another one"),
        "{error}"
    );
}

#[test]
fn datagrams_are_signed_and_wanted() {
    let udp = "ports = [\"53/udp\", \"8080/tcp\"]";
    let text = format!(
        "[token]\nsign_udp_to = [\"192.0.2.0/24\", \"2001:db8::/32\"]\ninterfaces = [\"eth0\", \"vlan.7\"]\n[token.require.dns]\n{udp}\naggregate = \"{DIGEST}\""
    );
    let (config, warnings) = check(&text).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(config.sign_udp_to.len(), 2);
    assert_eq!(
        config.interfaces,
        Some(["eth0", "vlan.7"].map(str::to_owned).to_vec())
    );
    let mut ports = [ranges("53/udp"), ranges("8080/tcp")].concat();
    ports.sort_unstable();
    let mut read = config.requirements[0].ports.clone();
    read.sort_unstable();
    assert_eq!(read, ports);
    for (text, told) in [
        (
            text.replace("\"vlan.7\"", "\"a name of 16 bytes\""),
            "weir.toml:3: interfaces in [token] has \"a name of 16 bytes\"",
        ),
        (
            text.replace("[\"eth0\",", "[\"eth0\", \"vlan.7\", \"eth0\","),
            "weir.toml:3: interfaces in [token] has \"eth0\" twice",
        ),
        (
            text.replace("[\"eth0\", \"vlan.7\"]", "[]"),
            "interfaces in [token] has 0 names",
        ),
        (
            text.replace("sign_udp_to", "sign_to"),
            "interfaces in [token] without sign_udp_to",
        ),
    ] {
        let error = check(&text).unwrap_err();
        assert!(error.contains(told), "{text}\n{error}");
    }
    let error = check_with(None, &text).unwrap_err();
    assert!(
        error.contains("weir.toml:2: sign_udp_to in [token]: without [app]"),
        "{error}"
    );
    // A port of the one protocol is none of the other.
    let another = format!("aggregate = \"{}\"", "7".repeat(64));
    let beside = |port| format!("{text}\n[token.require.b]\nports = [\"{port}\"]\n{another}");
    assert!(check(&beside("53/tcp")).is_ok());
    let error = check(&beside("53/udp")).unwrap_err();
    assert!(error.contains("53/udp from everybody"), "{error}");
}

#[test]
fn a_rule_with_a_peer_wants_tokens_behind_the_requirements() {
    let group = Path::new("/sys/fs/cgroup/x");
    let rules = || vec![rule("db", DIGEST, &["192.0.2.0/24", "2001:db8::/32"])];
    let (config, warnings) = check_with(Some(app(Some(group), rules())), &required("")).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(config.cgroup.as_deref(), Some(group));
    let [web, db] = &config.requirements[..] else {
        panic!("{config:?}")
    };
    assert_eq!((&*web.name, &*db.name), ("web", "app.rules.db"));
    assert_eq!(db.ports, [PortRange::one(Protocol::Tcp, 5432)]);
    assert_eq!(db.from.as_ref().unwrap().len(), 2);
    assert_eq!((db.aggregates.len(), db.drops), (1, true));
    let all = Some(app(None, vec![rule("db", DIGEST, &[])]));
    let (config, warnings) = check_with(all, "[token]").unwrap();
    assert_eq!(config.requirements[0].from, None);
    assert!(warnings.is_empty(), "{warnings:?}");
    // Elsewhere the rule would hold without what it asks.
    let other = "[token]\ncgroup = \"/sys/fs/cgroup/y\"";
    for of_app in [app(Some(group), rules()), app(None, rules())] {
        let error = check_with(Some(of_app), other).unwrap_err();
        assert!(error.contains("weir.toml:2: cgroup in [token]"), "{error}");
    }
    let alike = rule("db", &format!("{}00", &DIGEST[..62]), &[]);
    let error = check_with(Some(app(None, vec![alike])), &required("")).unwrap_err();
    assert!(
        error.contains("peer in [app.rules.db]: ") && error.contains("begin alike"),
        "{error}"
    );
    let many = (0..=MAX_REQUIREMENTS).map(|n| rule(&format!("r{n}"), DIGEST, &[]));
    let error = check_with(Some(app(None, many.collect())), "[token]").unwrap_err();
    assert!(
        error.contains("65 requirements, those of rules with peer"),
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
            "ports is missing in [token.require.web]; allowed: a list of TCP and UDP ports",
        ),
        (
            "[token.require.web]\nports = [\"80/tcp\"]".to_owned(),
            "aggregate is missing in [token.require.web]: nobody would get in",
        ),
        (
            required("").replace("8080/tcp", "8080/sctp"),
            "weir.toml:2: ports in [token.require.web]: \"8080/sctp\" is no port of TCP or UDP, and tokens are of these",
        ),
        (
            required("").replace("8080/tcp", "all"),
            "\"all\" is no port of TCP or UDP",
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

/// A second requirement beside `web` of [`required`].
fn beside(ports: &str, more: &str) -> Result<(TokenConfig, Vec<String>), String> {
    check(&format!(
        "{}[token.require.other]\nports = [{ports}]\n{more}",
        required("from = [\"192.0.2.0/24\", \"2001:db8::/32\"]\n")
    ))
}

#[test]
fn a_scope_is_of_connections_and_ports_of_tcp() {
    let (config, _) = check(&required("")).unwrap();
    assert_eq!(config.scope, Scope::Flow);
    assert_eq!(config.requirements[0].scope, Scope::Flow);
    let (config, _) = check(&required("scope = \"payload\"")).unwrap();
    assert_eq!(config.requirements[0].scope, Scope::Payload);
    let signs = "[token]\nsign_to = [\"192.0.2.0/24\", \"2001:db8::/32\"]\n";
    let (config, warnings) = check(&format!(
        "{signs}scope = \"payload\"\ninterfaces = [\"eth0\"]"
    ))
    .unwrap();
    assert_eq!(config.scope, Scope::Payload);
    assert_eq!(config.interfaces, Some(vec!["eth0".to_owned()]));
    assert!(warnings.is_empty(), "{warnings:?}");
    for (text, told) in [
        (
            format!("{signs}interfaces = [\"eth0\"]"),
            "weir.toml:3: interfaces in [token] without sign_udp_to, without \"ip-option\" in conduits, and without scope \"payload\"",
        ),
        (
            "[token]\nscope = \"payload\"\nsign_udp_to = [\"192.0.2.1\"]".to_owned(),
            "weir.toml:2: scope in [token] is \"payload\", without sign_to",
        ),
        (
            format!("{signs}conduits = [\"tcp-option\", \"ip-option\"]\nscope = \"payload\""),
            "weir.toml:4: scope in [token] is \"payload\", and conduits has \"ip-option\"",
        ),
        (
            format!("{signs}scope = \"segment\""),
            "weir.toml:3: scope in [token] is \"segment\"; allowed: \"flow\", \"payload\"",
        ),
        (
            required("scope = \"payload\"").replace("8080/tcp", "53/udp"),
            "weir.toml:4: scope in [token.require.web] is \"payload\", and 53/udp is a port of UDP",
        ),
    ] {
        let error = check(&text).unwrap_err();
        assert!(error.contains(told), "{told}\n{error}");
    }
}

/// Signatures of DAF: what is said beside them that they cannot prove is refused.
#[test]
fn compat_takes_a_secret_and_nothing_that_is_about_tokens() {
    let secret = "daf_secret = \"/etc/daf/secret\"\n";
    let signs = "[token]\nsign_to = [\"192.0.2.0/24\"]\n";
    let port = "[token.require.web]\nports = [\"8080/tcp\"]\n";
    let daf = "compat = \"daf\"\n";
    // No program signs, so it takes no [app].
    let text = format!("{signs}{daf}{secret}interfaces = [\"eth0\"]\n{port}{daf}");
    let (config, warnings) = check_with(None, &text).unwrap();
    assert_eq!(config.scope, Scope::Daf);
    assert_eq!(config.daf_secret, Some("/etc/daf/secret".into()));
    let [web] = &config.requirements[..] else {
        panic!("{config:?}")
    };
    assert_eq!((web.scope, web.aggregates.len()), (Scope::Daf, 0));
    let [warning] = &warnings[..] else {
        panic!("{warnings:?}")
    };
    for weakness in [
        "no connection and no time",
        "send it again",
        "no program",
        "IPv4 only",
    ] {
        assert!(warning.contains(weakness), "{warning}");
    }
    // The one side alone, and beside other tokens.
    let (config, _) = check_with(None, &format!("[token]\n{secret}{port}{daf}")).unwrap();
    assert_eq!(config.scope, Scope::Flow);
    assert_eq!(config.requirements[0].scope, Scope::Daf);
    check_with(None, &format!("{signs}{daf}{secret}")).unwrap();
    let other = required("").replace("8080/tcp", "8081/tcp");
    check(&format!(
        "{signs}{daf}{secret}{other}[token.require.old]\nports = [\"8080/tcp\"]\n{daf}"
    ))
    .unwrap();
    let (config, _) = check("[token]\nsign_to = [\"192.0.2.0/24\"]\n").unwrap();
    assert_eq!((config.scope, config.daf_secret), (Scope::Flow, None));

    let v6 = "from = [\"192.0.2.0/24\", \"2001:db8::/32\"]\n";
    for (text, told) in [
        (
            format!("{signs}{daf}"),
            "weir.toml:1: daf_secret is missing in [token]",
        ),
        (
            format!("[token]\n{port}{daf}"),
            "weir.toml:2: daf_secret is missing in [token]",
        ),
        (
            format!("{signs}{secret}"),
            "weir.toml:3: daf_secret in [token] without compat",
        ),
        (
            format!("[token]\n{daf}{secret}sign_udp_to = [\"192.0.2.0/24\"]"),
            "weir.toml:2: compat in [token] without sign_to",
        ),
        (
            format!("[token]\nsign_to = [\"192.0.2.1\", \"2001:db8::/32\"]\n{daf}{secret}"),
            "weir.toml:2: sign_to in [token] has 2001:db8::/32 beside compat",
        ),
        (
            format!("{signs}scope = \"payload\"\n{daf}{secret}"),
            "weir.toml:3: scope in [token] beside compat",
        ),
        (
            format!("{signs}conduits = [\"ip-option\"]\n{daf}{secret}"),
            "weir.toml:3: conduits in [token] beside compat",
        ),
        (
            format!("{signs}probe_result = \"/etc/weir/result\"\n{daf}{secret}"),
            "weir.toml:3: probe_result in [token] beside compat",
        ),
        (
            format!("{signs}compat = \"xt_daf\"\n"),
            "weir.toml:3: compat in [token] is \"xt_daf\"; allowed: \"daf\"",
        ),
        (
            format!("{signs}{daf}daf_secret = \"secret\""),
            "weir.toml:4: daf_secret is \"secret\"; allowed: an absolute path",
        ),
        (
            format!("[token]\n{secret}{port}{daf}aggregate = \"{DIGEST}\""),
            "weir.toml:6: aggregate in [token.require.web] beside compat: a signature of DAF names no program",
        ),
        (
            format!("[token]\n{secret}{port}{daf}scope = \"payload\""),
            "weir.toml:6: scope in [token.require.web] beside compat",
        ),
        (
            format!("[token]\n{secret}{port}{v6}{daf}"),
            "weir.toml:5: from in [token.require.web] has 2001:db8::/32 beside compat",
        ),
        (
            format!("[token]\n{secret}{port}{daf}").replace("8080/tcp", "8080/tcp\", \"53/udp"),
            "weir.toml:5: compat in [token.require.web], and 53/udp is a port of UDP",
        ),
        (
            format!(
                "[token]\n{secret}{}[token.require.old]\nports = [\"8080/tcp\"]\n{daf}",
                required("")
            ),
            "want different things (one signatures of DAF",
        ),
    ] {
        let error = check(&text).unwrap_err();
        assert!(error.contains(told), "{told}\n{error}");
    }
    // A rule that names the program of a peer.
    let rules = vec![rule("db", DIGEST, &["192.0.2.0/24"])];
    let text = format!("[token]\n{secret}[token.require.old]\nports = [\"5432/tcp\"]\n{daf}");
    let error = check_with(Some(app(None, rules)), &text).unwrap_err();
    assert!(
        error.contains("[app.rules.db] and [token.require.old]"),
        "{error}"
    );
}

#[test]
fn requirements_that_contradict_each_other_are_refused() {
    let another = format!("aggregate = \"{}\"", "7".repeat(64));
    let same = format!("aggregate = \"{DIGEST}\"");
    for (ports, more, told) in [
        (
            "\"8080/tcp\"",
            format!("{another}\n"),
            "8080/tcp from 192.0.2.0/24",
        ),
        (
            "\"9009-9100/tcp\"",
            format!("{another}\nfrom = [\"0.0.0.0/0\"]"),
            "9009/tcp from 192.0.2.0/24",
        ),
        (
            "\"1/tcp\", \"9001-9003/tcp\"",
            format!("{another}\nfrom = [\"198.51.100.1\", \"192.0.2.7\"]"),
            "9001-9003/tcp from 192.0.2.7",
        ),
        (
            "\"8080/tcp\"",
            format!("{another}\nfrom = [\"2001:db8:1::/48\"]"),
            "8080/tcp from 2001:db8:1::/48",
        ),
        // Of IPv6 alone, though IPv4 is in it as ::ffff:0:0/96.
        (
            "\"8080/tcp\"",
            format!("{another}\nfrom = [\"::/0\"]"),
            "8080/tcp from 2001:db8::/32",
        ),
        (
            "\"8080/tcp\"",
            format!("aggregate = [\"{DIGEST}\", \"{}\"]", "7".repeat(64)),
            "name different programs",
        ),
        (
            "\"8080/tcp\"",
            format!("{same}\nmode = \"log\""),
            "have different modes",
        ),
        (
            "\"8080/tcp\"",
            format!("{same}\nscope = \"payload\""),
            "have different scopes",
        ),
    ] {
        let error = beside(ports, &more).unwrap_err();
        assert!(error.contains(told), "{told}\n{error}");
        assert!(
            error.starts_with(
                "weir.toml:5: [token.require.other] and [token.require.web] (weir.toml:1) "
            ),
            "{error}"
        );
    }
    // Which one comes first is no matter.
    let error = check(&format!(
        "[token.require.first]\nports = [\"8080/tcp\"]\nmode = \"log\"\n{same}\n{}",
        required("")
    ));
    let error = error.unwrap_err();
    assert!(error.contains("8080/tcp from everybody"), "{error}");
    for (ports, more) in [
        ("\"8081/tcp\"", another.clone()),
        (
            "\"8080/tcp\"",
            format!("{another}\nfrom = [\"192.0.3.0/24\", \"2001:db9::/32\"]"),
        ),
        ("\"8080/tcp\"", format!("{another}\nfrom = [\"8000::/1\"]")),
        ("\"8080/tcp\"", format!("{another}\nfrom = [\"::/8\"]")),
        ("\"8000-8100/tcp\"", same.clone()),
    ] {
        let (config, _) = beside(ports, &more).unwrap();
        assert_eq!(config.requirements.len(), 2, "{ports} {more}");
    }
}

#[test]
fn a_rule_with_a_peer_contradicts_like_a_requirement() {
    let another = "7".repeat(64);
    let two = vec![
        rule("db", DIGEST, &[]),
        rule("more", &another, &["192.0.2.0/24"]),
    ];
    let error = check_with(Some(app(None, two)), "[token]").unwrap_err();
    assert!(
        error.contains("[app.rules.more] and [app.rules.db] (weir.toml:1) name different programs")
            && error.contains("5432/tcp from 192.0.2.0/24"),
        "{error}"
    );
    let log = required("mode = \"log\"").replace("8080", "5432");
    let one = app(None, vec![rule("db", DIGEST, &["2001:db8::/32"])]);
    let error = check_with(Some(one), &log).unwrap_err();
    assert!(
        error.contains("[app.rules.db] and [token.require.web] (weir.toml:1) have different modes")
            && error.contains("5432/tcp from 2001:db8::/32"),
        "{error}"
    );
}

#[test]
fn conduits_and_a_probe_are_read() {
    let text = "[token]\nsign_to = [\"192.0.2.0/24\"]\n";
    let (config, _) = check(text).unwrap();
    assert_eq!(config.conduits, [Conduit::TcpOption]);
    assert_eq!(config.probe, None);
    let (config, _) = check(&format!(
        "{text}conduits = [\"ip-option\", \"tcp-option\"]\ninterfaces = [\"eth0\"]\nprobe_result = \"/etc/weir/result.jsonl\"\n"
    ))
    .unwrap();
    assert_eq!(config.conduits, [Conduit::IpOption, Conduit::TcpOption]);
    let usual = ProbeUse {
        result: "/etc/weir/result.jsonl".into(),
        site: None,
        max_age: std::time::Duration::from_secs(90 * 86_400),
        pass_percent: 90,
    };
    assert_eq!(config.probe, Some(usual.clone()));
    let (config, _) = check(&format!(
        "{text}probe_result = \"/etc/weir/result.jsonl\"\nprobe_site = \"root@192.0.2.1\"\nprobe_max_age = \"7d\"\nprobe_pass_percent = 100\n"
    ))
    .unwrap();
    assert_eq!(
        config.probe,
        Some(ProbeUse {
            site: Some("root@192.0.2.1".into()),
            max_age: std::time::Duration::from_secs(7 * 86_400),
            pass_percent: 100,
            ..usual
        })
    );
    for (more, wanted) in [
        ("conduits = []", "weir.toml:3: conduits in [token] is empty"),
        (
            "conduits = [\"ip-option\", \"ip-option\"]",
            "has \"ip-option\"; allowed: a list of \"tcp-option\" and \"ip-option\", each at most once",
        ),
        ("conduits = [\"udp-option\"]", "has \"udp-option\"; allowed"),
        (
            "probe_site = \"west\"",
            "weir.toml:3: probe_site in [token] without probe_result",
        ),
        (
            "probe_result = \"/r\"\nprobe_site = \"a site\"",
            "probe_site in [token] is \"a site\"; allowed",
        ),
        (
            "probe_result = \"/r\"\nprobe_pass_percent = 0",
            "allowed: a whole number 1-100",
        ),
        (
            "probe_result = \"/r\"\nprobe_max_age = \"1h\"",
            "allowed: 1d-",
        ),
        ("probe_result = \"r\"", "probe_result"),
    ] {
        let error = check(&format!("{text}{more}\n")).unwrap_err();
        assert!(error.contains(wanted), "{more}: {error}");
    }
    for (more, wanted) in [
        (
            "probe_result = \"/r\"",
            "weir.toml:2: probe_result in [token] without sign_to and sign_udp_to",
        ),
        (
            "conduits = [\"ip-option\"]",
            "weir.toml:2: conduits in [token] without sign_to",
        ),
    ] {
        let error = check(&format!("[token]\n{more}\n{}", required(""))).unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn what_is_forwarded_has_interfaces_networks_and_requirements() {
    let forward = "[token.forward]\ninterfaces = [\"eth0\"]\n";
    let of = |more: &str| {
        format!(
            "[token.forward.require.web]\nports = [\"80/tcp\"]\naggregate = \"{DIGEST}\"\n{more}"
        )
    };
    let to = "to = [\"192.0.2.0/24\", \"2001:db8::/32\"]\n";
    let good = format!(
        "{forward}hook = \"xdp\"\nestablished = \"pass\"\n{}",
        of(to)
    );
    let (config, warnings) = check_with(None, &good).unwrap();
    assert_eq!(warnings, [""; 0]);
    let forward_config = config.forward.unwrap();
    assert_eq!(forward_config.interfaces, ["eth0"]);
    assert_eq!(forward_config.hook, ForwardHook::Xdp);
    assert_eq!(forward_config.takes_up, 60);
    let [requirement] = &config.requirements[..] else {
        panic!("{:?}", config.requirements);
    };
    assert_eq!(requirement.name, "forward.web");
    assert_eq!(requirement.to.as_ref().unwrap().len(), 2);
    let (config, _) = check(&format!("{forward}{}", of(to))).unwrap();
    let forward_config = config.forward.unwrap();
    assert_eq!(forward_config.hook, ForwardHook::Tc);
    assert_eq!(forward_config.takes_up, 0);
    let (config, _) = check(&format!("{forward}hook = \"auto\"\n{}", of(to))).unwrap();
    assert_eq!(config.forward.unwrap().hook, ForwardHook::Auto);

    for (text, told) in [
        (
            format!("[token.forward]\n{}", of(to)),
            "weir.toml:1: interfaces is missing in [token.forward]",
        ),
        (
            forward.to_owned(),
            "weir.toml:1: [token.forward] has no requirement",
        ),
        (
            format!("{forward}{}", of("")),
            "weir.toml:3: to is missing in [token.forward.require.web]",
        ),
        (
            format!("{forward}hook = \"netfilter\"\n{}", of(to)),
            "weir.toml:3: hook in [token.forward]",
        ),
        (
            format!("{forward}established = \"maybe\"\n{}", of(to)),
            "established in [token.forward]",
        ),
        (
            format!("[token.forward]\ninterfaces = [\"a/b\"]\n{}", of(to)),
            "interfaces in [token.forward] has \"a/b\"",
        ),
        (
            format!("{forward}{}", of("to = [\"everybody\"]\n")),
            "everybody",
        ),
    ] {
        let error = check(&text).unwrap_err();
        assert!(error.contains(told), "{told}: {error}");
    }

    // Of one port, source and network there is one demand; sockets are another matter.
    let another = format!(
        "[token.forward.require.other]\nports = [\"80/tcp\"]\naggregate = \"{}\"\n",
        "7".repeat(64)
    );
    let error = check(&format!(
        "{forward}{}{another}to = [\"192.0.2.128/25\"]\n",
        of(to)
    ));
    let error = error.unwrap_err();
    assert!(
        error.contains("80/tcp from everybody to 192.0.2.128/25")
            && error.contains("[token.forward.require.web]"),
        "{error}"
    );
    check(&format!(
        "{forward}{}{another}to = [\"198.51.100.0/24\"]\n",
        of(to)
    ))
    .unwrap();
    let of_sockets = another.replace("forward.", "");
    check(&format!("{forward}{}{of_sockets}", of(to))).unwrap();
}

#[test]
fn uplinks_at_which_tokens_are_overwritten_are_named() {
    let (config, warnings) = check_with(
        None,
        "[token.strip]\ninterfaces = [\"eth0\"]\ndirection = \"out\"\nexcept = [\"192.0.2.0/24\"]\n",
    )
    .unwrap();
    assert_eq!(warnings, [""; 0]);
    let strip = config.strip.unwrap();
    assert_eq!(strip.direction, StripDirection::Out);
    assert_eq!((strip.interfaces.len(), strip.except.len()), (1, 1));
    let (config, _) = check("[token.strip]\ninterfaces = [\"eth0\"]\n").unwrap();
    assert_eq!(config.strip.unwrap().direction, StripDirection::Both);
    for (text, told) in [
        ("[token.strip]\n", "interfaces is missing in [token.strip]"),
        (
            "[token.strip]\ninterfaces = [\"eth0\"]\ndirection = \"up\"\n",
            "direction in [token.strip]",
        ),
        (
            "[token.strip]\ninterfaces = [\"eth0\", \"eth0\"]\n",
            "interfaces in [token.strip] has \"eth0\" twice",
        ),
    ] {
        let error = check(text).unwrap_err();
        assert!(error.contains(told), "{told}: {error}");
    }
}
