use weir_config::{Document, Part};

use super::*;

/// Two users, and executables whose digest is told by their names.
struct Host;

impl Facts for Host {
    fn user(&self, name: &str) -> Option<u32> {
        (name == "www-data").then_some(33)
    }
    fn digest(&self, path: &Path) -> Result<Option<Digest>, String> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match &*name {
            "curl" => Ok(Some(Digest([1; 32]))),
            "wget" | "shim" => Ok(Some(Digest([2; 32]))),
            "gone" => Ok(None),
            _ => Err("Permission denied (os error 13)".to_owned()),
        }
    }
    fn never_runs(&self, path: &Path) -> Option<String> {
        path.ends_with("shim").then(|| "a script".to_owned())
    }
    fn packages(&self) -> Result<BTreeSet<String>, String> {
        Ok(["curl", "libc6", "nginx-core"].map(str::to_owned).into())
    }
}

/// What is made of a configuration with `[list.bad]`, and what it is warned about.
pub(crate) fn parsed(text: &str) -> Result<(AppConfig, Vec<String>), String> {
    let files = Part::all(vec![("weir.toml".into(), text.to_owned(), None)]);
    let document = Document::new(&files);
    let mut root = document.root();
    let mut warnings = Vec::new();
    let config = read(&mut root, &Host, &["bad"], &mut warnings);
    // Somebody else reads that, and here it is empty.
    if let Some(token) = root.section("token") {
        token.finish();
    }
    root.finish();
    let config = document
        .finish(config)
        .map_err(|errors| errors.to_string())?;
    Ok((config.expect("[app]"), warnings))
}

fn rule(text: &str) -> Rule {
    let (config, _) = parsed(&format!("[app.rules.a]\n{text}")).unwrap();
    let [rule] = &config.rules[..] else {
        panic!("{text}")
    };
    rule.clone()
}

fn error(text: &str) -> String {
    parsed(text).map(drop).expect_err(text)
}

/// A program that was uninstalled keeps no host from its start.
#[test]
fn a_path_without_a_file_is_warned_of_and_met_by_nobody() {
    let text = "[app.rules.a]\nverdict = 'allow'\npath = ['/usr/bin/curl', '/usr/bin/gone']";
    let (config, warnings) = parsed(text).unwrap();
    let digests: Vec<_> = config.rules[0].pinned().map(|one| one.digest).collect();
    assert_eq!(digests, [Digest([1; 32]), Digest::NONE]);
    assert!(
        warnings[0]
            .contains("path in [app.rules.a] has \"/usr/bin/gone\", and there is no such file"),
        "{warnings:?}"
    );
}

#[test]
fn a_default_that_denies_everything_is_warned_of() {
    let warned = |more: &str| {
        let (_, warnings) = parsed(&format!("[app]\ndefault = 'drop'\n{more}")).unwrap();
        warnings
            .iter()
            .any(|one| one.contains("no rule that allows"))
    };
    assert!(warned(""));
    assert!(warned("[app.rules.a]\nverdict = 'drop'\nuser = '33'"));
    assert!(!warned("[app.rules.a]\nverdict = 'allow'\nuser = '33'"));
    assert!(!warned("unknown = 'drop'\nprompt_timeout = '1m'"));
}

#[test]
fn a_peer_is_of_connections_that_others_begin() {
    let digest = "1".repeat(64);
    let text =
        |more: &str| format!("[app.rules.a]\nports = ['5432/tcp']\npeer = '{digest}'\n{more}");
    let (config, _) = parsed(&format!("[token]\n{}", text("verdict = 'allow'"))).unwrap();
    assert_eq!(config.rules[0].peer, [Digest([0x11; 32])]);
    assert_eq!(config.rules[0].place.direction, Direction::In);
    let from = text("verdict = 'allow'\nfrom = ['192.0.2.0/24', '2001:db8::/32']\n[token]");
    assert!(parsed(&from).is_ok());
    assert!(parsed(&from.replace("/tcp", "/udp")).is_ok());
    let allow = |more: &str| format!("[token]\n{}", text(&format!("verdict = 'allow'\n{more}")));
    for (text, told) in [
        (
            text("verdict = 'allow'"),
            "weir.toml:3: peer in [app.rules.a] without [token]",
        ),
        (
            allow("").replace("allow", "drop"),
            "allowed: verdict = \"allow\"",
        ),
        (allow("to = ['192.0.2.1']"), "allowed: no to"),
        (allow("direction = 'both'"), "no direction but \"in\""),
        (
            allow("").replace("/tcp", ""),
            "ports such as [\"5432/tcp\", \"53/udp\"]",
        ),
        (
            allow("").replace("ports = ['5432/tcp']\n", ""),
            "ports such as",
        ),
        (
            allow("from = ['name:example.org']"),
            "addresses and networks in from",
        ),
        (allow("from = ['192.0.2.1']\nnot = 'from'"), "without not"),
        (allow("netns = '/run/netns/blue'"), "allowed: no netns"),
        (allow("").replace(&digest, "11"), "allowed: a SHA-256"),
    ] {
        let error = error(&text);
        assert!(error.contains(told), "{text}\n{error}");
    }
}

#[test]
fn a_path_that_is_never_a_program_is_warned_about() {
    let (_, warnings) = parsed(
        "[app.rules.a]\nverdict = 'reject'\npath = '/usr/bin/curl'\n\
         [app.rules.b]\nverdict = 'reject'\nports = ['80/tcp']\npath = ['/usr/bin/wget', '/opt/shim']\n",
    )
    .unwrap();
    assert_eq!(
        warnings,
        ["line 7: path in [app.rules.b] has \"/opt/shim\", which is never a program: a script"]
    );
}

#[test]
fn a_package_that_this_host_does_not_have_is_warned_about() {
    let of = |packages: &str| {
        let text = format!("[app.rules.a]\nverdict = 'drop'\npackage = {packages}\n");
        parsed(&text).unwrap().1
    };
    assert_eq!(of("['curl', 'libc6']"), [""; 0]);
    assert_eq!(
        of("['curl', 'ngnix-core', 'zsh']"),
        [
            "line 3: package in [app.rules.a] has \"ngnix-core\", and no package of this host is called that (did you mean nginx-core?): no program is of it unless it is installed",
            "line 3: package in [app.rules.a] has \"zsh\", and no package of this host is called that: no program is of it unless it is installed",
        ]
    );
    let none = is_missing("zsh", &Ok(BTreeSet::new())).unwrap();
    assert!(
        none.contains("no package on record, of dpkg or rpm"),
        "{none}"
    );
    let open = is_missing("zsh", &Err("why".to_owned())).unwrap();
    assert!(open.contains("cannot be said: why"), "{open}");
}

#[test]
fn a_mistyped_protocol_of_a_port_is_told_without_those_that_are_refused() {
    let of = |port: &str| {
        error(&format!(
            "[app.rules.a]\nverdict = 'drop'\nports = ['{port}']\n"
        ))
    };
    let told = of("443/tpc");
    assert!(
        told.contains("weir.toml:3: ports: \"443/tpc\" is not a port; allowed:"),
        "{told}"
    );
    assert!(
        told.contains("tcp or udp") && !told.contains("sctp"),
        "{told}"
    );
    let sctp = of("7/sctp");
    assert!(sctp.contains("protocols = [\"other\"] for SCTP"), "{sctp}");
}

#[test]
fn a_rule_has_all_that_is_written() {
    let one = "1".repeat(64);
    let rule = rule(&format!(
        "verdict = 'reject'\nexe = '{one}'\nobject = ['{one}', '{}']\nuser = ['www-data', '0']\n\
         cgroup = '/system.slice/docker-*.scope'\nunit = 'nginx.service'\npackage = 'libc6'\n\
         script = '/srv/a.py'\nanonymous = true\naltered = true\nnot = ['object', 'to', 'user']\n\
         to = ['192.0.2.0/24', '2001:db8::/32', 'list:bad', 'country:DE', 'name:Example.ORG.']\n\
         ports = ['443/tcp', '5000-5010/udp', '53']\nnetns = '/run/netns/blue'\ndirection = 'out'\n",
        "2".repeat(64)
    ));
    assert_eq!((&*rule.name, rule.verdict), ("a", Verdict::Reject));
    let negated: Vec<bool> = rule.who.iter().map(|who| who.is_negated).collect();
    assert_eq!(
        negated,
        [false, true, false, false, true, false, false, false, false]
    );
    assert_eq!(
        rule.who[0].criterion,
        Criterion::Exe(vec![Digest([0x11; 32])])
    );
    assert_eq!(rule.who[4].criterion, Criterion::User(vec![33, 0]));
    assert_eq!(rule.who[7].criterion, Criterion::Anonymous);
    assert_eq!(rule.who[8].criterion, Criterion::Altered);
    let to = rule.place.to.unwrap();
    assert!(to.is_negated && rule.place.from.is_none());
    assert_eq!(to.entries[4].to_string(), "name:example.org");
    assert_eq!(rule.place.ports.len(), 3);
    assert_eq!(
        rule.place.netns.as_deref(),
        Some(Path::new("/run/netns/blue"))
    );
}

#[test]
fn a_path_is_pinned_when_it_is_read() {
    let rule = rule("verdict = 'allow'\npath = ['/usr/bin/curl', '/usr/bin/wget']");
    let pinned: Vec<_> = rule.pinned().map(|pinned| pinned.digest).collect();
    assert_eq!(pinned, [Digest([1; 32]), Digest([2; 32])]);
}

#[test]
fn the_direction_follows_from_the_peers() {
    for (text, direction) in [
        ("to = ['192.0.2.1']", Direction::Out),
        ("from = ['192.0.2.1']", Direction::In),
        ("from = ['192.0.2.1']\nto = ['192.0.2.2']", Direction::Both),
        ("ports = ['22']", Direction::Both),
        ("direction = 'in'", Direction::In),
        ("direction = 'both'\nto = ['192.0.2.1']", Direction::Both),
    ] {
        let rule = rule(&format!("verdict = 'drop'\n{text}"));
        assert_eq!(rule.place.direction, direction, "{text}");
    }
}

#[test]
fn each_mistake_is_named_with_its_line_its_key_and_what_is_allowed() {
    let long = "a".repeat(63);
    let other = "g".repeat(64);
    let (one, two) = ("1".repeat(64), "01".repeat(32));
    let hosts: Vec<_> = (0..=MAX_PEERS).map(|n| format!("'192.0.2.{n}'")).collect();
    let many = hosts.join(", ");
    for (text, told) in [
        (
            "verdict = 'deny'",
            "weir.toml:2: verdict in [app.rules.a] is \"deny\"; allowed: \"allow\", \"drop\", \"reject\", \"log\"",
        ),
        (
            "exe = ''",
            "verdict is missing in [app.rules.a]; allowed: \"allow\"",
        ),
        (
            &*format!("verdict = 'drop'\nexe = '{long}'"),
            "weir.toml:3: exe in [app.rules.a] is \"aaa",
        ),
        (
            &*format!("verdict = 'drop'\nexe = '{long}'"),
            "63 characters, where a SHA-256 has 64",
        ),
        (
            &*format!("verdict = 'drop'\nobject = ['{one}',\n'{other}']"),
            "weir.toml:4: object in [app.rules.a]",
        ),
        (
            "verdict = 'drop'\naggregate = []",
            "aggregate in [app.rules.a] has 0 entries; allowed: 1-256 of them",
        ),
        (
            "verdict = 'drop'\npath = 'bin/curl'",
            "path in [app.rules.a] is \"bin/curl\": it is no absolute path; allowed: the absolute path",
        ),
        (
            "verdict = 'drop'\npath = '/usr/../bin/curl'",
            "it is no absolute path",
        ),
        (
            "verdict = 'drop'\npath = '/usr/bin/none'",
            "is \"/usr/bin/none\": Permission denied (os error 13); allowed:",
        ),
        (
            "verdict = 'drop'\nuser = 'nobody-here'",
            "this host has no such user; allowed: a user of this host",
        ),
        (
            "verdict = 'drop'\ncgroup = 'system.slice'",
            "it is no path of a control group from their root on",
        ),
        (
            "verdict = 'drop'\ncgroup = '/sys/fs/cgroup/system.slice'",
            "such as /system.slice; allowed:",
        ),
        ("verdict = 'drop'\nunit = '*'", "it is no name of a unit"),
        (
            "verdict = 'drop'\nunit = 'nginx'",
            "no unit is called that; write nginx.service",
        ),
        (
            "verdict = 'drop'\nscript = '/srv/a.py'",
            "script in [app.rules.a] without the interpreter",
        ),
        (
            "verdict = 'drop'\nto = []",
            "to in [app.rules.a] has 0 entries; allowed: 1-64",
        ),
        (
            &*format!("verdict = 'drop'\nto = [{many}]"),
            "to in [app.rules.a] has 65 entries; allowed: 1-64",
        ),
        (
            "verdict = 'drop'\nto = ['192.0.2.1/24']",
            "write 192.0.2.0/24",
        ),
        (
            "verdict = 'drop'\nto = ['list:good']",
            "to in [app.rules.a] has list:good, which is not configured; allowed: bad",
        ),
        (
            "verdict = 'drop'\nto = ['asn:64496']",
            "to in [app.rules.a] has \"asn:64496\"",
        ),
        (
            "verdict = 'drop'\nto = ['name:-..']",
            "it is no host name; allowed: a list of peers",
        ),
        (
            "verdict = 'drop'\nto = ['name:192.0.2.1']",
            "it is no host name",
        ),
        (
            "verdict = 'drop'\nto = ['192.0.2.1']\ndirection = 'in'",
            "weir.toml:3: to in [app.rules.a] with direction = \"in\" holds for nothing",
        ),
        (
            "verdict = 'drop'\nfrom = ['192.0.2.1']\ndirection = 'out'",
            "from in [app.rules.a] with direction = \"out\" holds for nothing",
        ),
        (
            "verdict = 'drop'\nports = ['80/tcp']\nprotocols = 'tcp'",
            "protocols in [app.rules.a] beside ports",
        ),
        (
            "verdict = 'drop'\nports = ['80/sctp']",
            "ports in [app.rules.a] has 80/sctp; allowed: ports of tcp and udp",
        ),
        (
            "verdict = 'drop'\nprotocols = ['tcp', 'gre']",
            "protocols in [app.rules.a] has \"gre\"; allowed: \"tcp\"",
        ),
        (
            "verdict = 'drop'\nnot = 'object'",
            "not in [app.rules.a] has \"object\", which is no key of the rule",
        ),
        (
            "verdict = 'drop'\nnot = []",
            "not in [app.rules.a] is empty",
        ),
        (
            "verdict = 'drop'\nnetns = 'blue'",
            "netns is \"blue\"; allowed: an absolute path",
        ),
        (
            "verdict = 'drop'\nnonsense = 1",
            "weir.toml:3: unknown key \"nonsense\" in [app.rules.a]; allowed: verdict, exe",
        ),
        (
            &*format!("verdict = 'drop'\nexe = '{two}'\npath = '/usr/bin/wget'"),
            "wants an executable with a digest of exe and with that of a file of path",
        ),
    ] {
        let told_is = error(&format!("[app.rules.a]\n{text}\n"));
        assert!(told_is.contains(told), "{text}\n{told_is}\n{told}");
    }
    for (text, told) in [
        (
            "[app]\ndefault = 'log'",
            "weir.toml:2: default in [app] is \"log\"; allowed: \"allow\", \"drop\", \"reject\"",
        ),
        (
            "[app]\nunknown = 'ask'",
            "weir.toml:2: unknown in [app] is \"ask\"; allowed: \"learn\", \"allow\", \"drop\"",
        ),
        (
            "[app]\ndefault = 'ask'",
            "weir.toml:2: default in [app] cannot ask; prompt_timeout = \"1m\" with unknown = \"drop\" asks somebody",
        ),
        (
            "[app]\nunknown = 'prompt'",
            "weir.toml:2: unknown in [app] cannot ask; prompt_timeout",
        ),
        (
            "[app]\nlevel = 'lsm'",
            "weir.toml:2: level in [app] is \"lsm\"; allowed: \"auto\", \"tracepoint\", \"fentry\", \"push\"",
        ),
        (
            "[app]\ncgroup = 'a'",
            "cgroup is \"a\"; allowed: an absolute path",
        ),
        (
            "[app]\nrule = 1",
            "unknown key \"rule\" in [app] (did you mean rules?); allowed: default, unknown, prompt_timeout, level, cgroup, private_names, container_sockets, container_bundles, packages, rules",
        ),
        (
            "[app]\nprompt_timeout = '1m'",
            "weir.toml:2: unknown in [app] is \"learn\"; allowed with prompt_timeout: \"drop\"",
        ),
        (
            "[app]\nprompt_timeout = '1m'\nunknown = 'allow'",
            "weir.toml:3: unknown in [app] is \"allow\"; allowed with prompt_timeout: \"drop\"",
        ),
        (
            "[app]\nprompt_timeout = '2h'\nunknown = 'drop'",
            "weir.toml:2: prompt_timeout in [app] is \"2h\"; allowed: ",
        ),
        (
            "[app]\nprivate_names = ['a b']",
            "weir.toml:2: private_names in [app] has \"a b\"; allowed: a list of names of hosts",
        ),
        (
            "[app.rules.'a b']\nverdict = 'drop'",
            "rule name \"a b\"; allowed: 1-48 letters",
        ),
    ] {
        let told_is = error(text);
        assert!(told_is.contains(told), "{text}\n{told_is}\n{told}");
    }
}

#[test]
fn there_is_room_for_1024_rules() {
    let rules = |number: usize, more: &str| -> String {
        let rules =
            (0..number).map(|n| format!("[app.rules.r{n}]\nverdict = 'drop'\nuser = '{n}'\n"));
        rules.collect::<String>() + more
    };
    assert_eq!(parsed(&rules(1024, "")).unwrap().0.rules.len(), 1024);
    let told = error(&rules(1025, ""));
    assert!(
        told.contains("[app] has 1025 rules; allowed: at most 1024"),
        "{told}"
    );
    // Ports of two protocols are two places in the kernel.
    let ports = "[app.rules.ports]\nverdict = 'drop'\nports = ['53/udp', '53/tcp']\n";
    let told = error(&rules(1023, ports));
    assert!(told.contains("[app] has 1025 rules"), "{told}");
    assert!(parsed(&rules(1022, ports)).is_ok());
}

#[test]
fn rules_that_never_decide_are_told() {
    let all = "[app.rules.all]\nverdict = 'drop'\n[app.rules.b]\nverdict = 'allow'\nuser = '0'\n";
    let (_, warnings) = parsed(all).unwrap();
    assert_eq!(
        warnings,
        ["weir.toml:3: [app.rules.b] never decides: [app.rules.all] at weir.toml:1 does before it"]
    );
    let curl = "verdict = 'allow'\npath = '/usr/bin/curl'\n";
    let (_, warnings) = parsed(&format!(
        "[app.rules.a]\n{curl}[app.rules.b]\n{curl}ports = ['443/tcp']\n[app.rules.c]\n{}to = ['192.0.2.1']\n",
        curl.replace("allow", "drop")
    ))
    .unwrap();
    assert_eq!(
        warnings,
        [
            "weir.toml:4: [app.rules.b] never decides: [app.rules.a] at weir.toml:1 does before it",
            "weir.toml:8: [app.rules.c] decides only of raw sockets, those of SCTP and other protocols, and those that another program holds as well: [app.rules.a] at weir.toml:1 does before it",
        ]
    );
    let twenty = |number| format!("[app.rules.r{number}]\nverdict = 'drop'\n");
    let (_, warnings) = parsed(&(0..20).map(twenty).collect::<String>()).unwrap();
    assert_eq!(warnings.len(), 17);
    let (_, of_one_less) = parsed(&(0..18).map(twenty).collect::<String>()).unwrap();
    let last = |warnings: &[String]| warnings.last().unwrap().clone();
    assert_eq!(
        last(&warnings),
        "[app]: of 3 more rules it is the same: one before decides"
    );
    assert_eq!(
        last(&of_one_less),
        "[app]: of 1 more rule it is the same: one before decides"
    );
    let (_, warnings) = parsed("[app]\nunknown = 'allow'\n").unwrap();
    assert!(
        warnings[0].contains("[app] denies nothing and learns nothing"),
        "{warnings:?}"
    );
    let asks = "[app]\nunknown = 'drop'\nprompt_timeout = '1h'\n";
    let (config, warnings) = parsed(asks).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(config.prompt_timeout.unwrap().as_secs(), 3600);
    let (_, warnings) = parsed("[app]\n").unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
}
