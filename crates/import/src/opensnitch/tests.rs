use super::*;

fn made(rules: &[(&str, &str)]) -> String {
    let files: Vec<_> = rules
        .iter()
        .map(|(name, text)| (format!("{name}.json"), (*text).to_owned()))
        .collect();
    configuration(&files).unwrap()
}

fn rule(action: &str, more: &str, operators: &str) -> String {
    format!(
        "{{\n\"action\": \"{action}\",\n\"enabled\": true,\n\"duration\": \"always\"{more},\n\"operator\": {{\"type\": \"list\", \"operand\": \"list\", \"list\": [\n{operators}\n]}}\n}}\n"
    )
}

fn operator(operand: &str, kind: &str, data: &str) -> String {
    format!("{{\"operand\": \"{operand}\", \"type\": \"{kind}\", \"data\": \"{data}\"}}")
}

#[test]
fn a_rule_keeps_its_conditions() {
    let operators = [
        operator("process.path", "simple", "/usr/bin/curl"),
        operator("user.id", "simple", "1000"),
        operator("dest.network", "network", "192.0.2.7/24"),
        operator("dest.port", "simple", "443"),
        operator("protocol", "simple", "tcp6"),
    ];
    let text = made(&[("a rule", &rule("allow", "", &operators.join(",\n")))]);
    assert!(
        text.ends_with(
            "# a rule.json: a rule\n[app.rules.a_rule]\nverdict = \"allow\"\npath = \"/usr/bin/curl\"\nuser = \"1000\"\n\
             to = [\"192.0.2.0/24\"]\nports = [\"443/tcp\"]\n"
        ),
        "{text}"
    );
}

#[test]
fn what_denies_or_has_precedence_comes_first() {
    let of = |action, more: &str| rule(action, more, &operator("process.path", "simple", "/bin/x"));
    let text = made(&[
        ("1-allow", &of("allow", "")),
        ("2-deny", &of("deny", "")),
        ("3-first", &of("allow", ",\n\"precedence\": true")),
        ("0-reject", &of("reject", "")),
    ]);
    let heads: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("[app.rules"))
        .collect();
    assert_eq!(
        heads,
        [
            "[app.rules.0-reject]",
            "[app.rules.2-deny]",
            "[app.rules.3-first]",
            "[app.rules.1-allow]"
        ]
    );
    assert!(
        text.contains("verdict = \"reject\"") && text.contains("verdict = \"drop\""),
        "{text}"
    );
}

#[test]
fn a_condition_that_weir_has_not_makes_the_rule_a_comment() {
    for (operand, kind, data, told) in [
        (
            "process.command",
            "simple",
            "curl x",
            "arguments are a program's own word",
        ),
        (
            "process.path",
            "regexp",
            "^/usr/.*$",
            "no regular expressions",
        ),
        (
            "process.hash.md5",
            "simple",
            "0123",
            "weir knows programs by SHA-256",
        ),
        ("dest.host", "regexp", ".*", "no regular expressions"),
        ("dest.network", "network", "FOO", "no alias that is known"),
        ("dest.port", "simple", "0", "it is no port"),
        ("dest.ip", "simple", "x", "it is no address"),
        ("iface.out", "simple", "eth0", "weir has no such condition"),
        ("lists.ips", "lists", "/etc/lists", "[list.NAME]"),
    ] {
        let text = made(&[("a", &rule("allow", "", &operator(operand, kind, data)))]);
        let joined = text.replace("\n#   ", " ");
        let place = format!("# not honoured: a.json:6: {operand} {kind}");
        assert!(
            joined.contains(&place) && joined.contains(told),
            "{operand}: {joined}"
        );
        assert!(
            text.contains("\n#[app.rules.a]\n#verdict"),
            "{operand}: {text}"
        );
    }
    let twice = [
        operator("dest.ip", "simple", "192.0.2.1"),
        operator("dest.network", "network", "LAN"),
    ];
    let text = made(&[("a", &rule("allow", "", &twice.join(",")))]);
    assert!(text.contains("a second condition on the peer"), "{text}");
    let off = rule("deny", "", &operator("true", "simple", ""))
        .replace("\"enabled\": true", "\"enabled\": false");
    let text = made(&[("a", &off.replace("always", "1h"))]);
    assert!(
        text.contains("a.json:3: it is not enabled") && text.contains("a.json:4: duration \"1h\""),
        "{text}"
    );
}

#[test]
fn what_is_no_rule_is_told_by_its_line() {
    let text = made(&[
        ("broken", "{\n\"action\": }"),
        ("list", "[]"),
        ("odd", "{\"action\":\n \"ask\"}"),
        ("fine", &rule("deny", "", &operator("true", "simple", ""))),
    ]);
    for told in [
        "# broken.json:2: not read: it is no JSON",
        "# list.json: not read: it is no rule",
        "# odd.json:1: not carried over: action \"ask\"",
        "[app.rules.fine]\nverdict = \"drop\"\ndirection = \"out\"\n",
    ] {
        assert!(text.contains(told), "{told}: {text}");
    }
    assert!(configuration(&[]).is_err());
    let many = vec![("a.json".to_owned(), "{}".to_owned()); MAX_RULES + 1];
    assert!(configuration(&many).is_err());
}

#[test]
fn somebody_elses_text_ends_no_comment() {
    let text = made(&[(
        "a\n[app.rules.x]",
        "{\"name\": \"a\\n[evil]\\u202e\", \"action\": \"deny\", \"operator\": {\"operand\": \"b\\n[evil]\"}}",
    )]);
    let odd: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with('[') && line.contains("evil"))
        .collect();
    assert!(odd.is_empty(), "{text}");
    assert!(text.contains("#[app.rules.a__evil__]"), "{text}");
    assert!(!text.contains('\u{202e}'), "{text}");
}
