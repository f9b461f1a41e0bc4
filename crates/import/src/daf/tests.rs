use super::*;

fn hash(digit: char) -> String {
    String::from(digit).repeat(64)
}

fn made(text: &str) -> String {
    configuration("rules.sh", text).unwrap()
}

#[test]
fn a_rule_keeps_its_meaning() {
    let (a, b) = (hash('a'), hash('B'));
    let text = made(&format!(
        "#!/bin/sh\n\nsudo ./app-fw -e obj --pol-out DROP --pol-in=DROP -t packet\n\
         ctl-fw -A -c OUTPUT -v ACCEPT -p tcp -d 192.0.2.7/24 --dport 443 --sng-hash {a} -n /proc/1/ns/net\n\
         ctl-fw -A -c INPUT -v DROP -! -s 198.51.100.0/255.255.255.0 -! --agg-hash {b} -p 17 -! --dport 53\n\
         ctl-fw -L -c INPUT\n"
    ));
    let expected = format!(
        "[app]\ndefault = \"drop\"\nunknown = \"drop\"\n\n# rules.sh:4\n[app.rules.daf]\nverdict = \"allow\"\n\
         object = \"{a}\"\nto = [\"192.0.2.0/24\"]\nports = [\"443/tcp\"]\nnetns = \"/proc/1/ns/net\"\n\n\
         # rules.sh:5\n[app.rules.daf-2]\nverdict = \"drop\"\naggregate = \"{}\"\nfrom = [\"198.51.100.0/24\"]\n\
         ports = [\"1-52/udp\", \"54-65535/udp\"]\nnot = [\"aggregate\", \"from\"]\n",
        b.to_lowercase()
    );
    assert!(text.ends_with(&expected), "{text}\n{expected}");
    assert!(
        text.contains("# rules.sh:3: -t is not carried over"),
        "{text}"
    );
}

#[test]
fn rules_are_in_the_order_that_the_commands_make() {
    let text = made(
        "ctl-fw -A -c OUTPUT -v DROP -p tcp\nctl-fw -I 0 -c OUTPUT -v ACCEPT -p udp\n\
         ctl-fw -A -c INPUT -v DROP -p 1\nctl-fw -D 1\nctl-fw -D 9\n",
    );
    let verdicts: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("protocols"))
        .collect();
    assert_eq!(
        verdicts,
        ["protocols = [\"udp\"]", "protocols = [\"icmp\"]"]
    );
    assert!(
        text.contains("rules.sh:4: deletes the rule of rules.sh:1"),
        "{text}"
    );
    assert!(
        text.contains("rules.sh:5: deletes rule 9, which there is not"),
        "{text}"
    );
}

/// Without its condition the rule would hold for more than it did.
#[test]
fn a_rule_of_which_a_part_is_not_honoured_is_a_comment() {
    for (typed, told) in [
        (
            "-c OUTPUT -s 192.0.2.1",
            "-s 192.0.2.1, the address of this host",
        ),
        (
            "-c INPUT -d 192.0.2.1",
            "-d 192.0.2.1, the address of this host",
        ),
        ("-c OUTPUT --sport 40", "--sport 40, a port of the program"),
        ("-c INPUT --sport 40", "--sport 40, a port of the peer"),
        ("-c INPUT -p 47", "-p 47: \"other\" is every protocol"),
        ("-c INPUT --frob", "--frob, which is no option of ctl-fw"),
    ] {
        let text = made(&format!("ctl-fw -A -v ACCEPT {typed}\n"));
        assert!(
            text.contains(&format!("# not honoured: {told}")),
            "{typed}: {text}"
        );
        assert!(
            text.contains("\n#[app.rules.daf]\n#verdict = \"allow\"\n"),
            "{typed}: {text}"
        );
        assert!(!text.contains("\n[app.rules"), "{typed}: {text}");
    }
}

#[test]
fn what_is_no_rule_is_told_by_its_line() {
    for (typed, told) in [
        (
            "ctl-fw -A -c OUTPUT",
            "rules.sh:1: not carried over: -v is missing",
        ),
        (
            "ctl-fw -A -v DROP",
            "rules.sh:1: not carried over: -c is missing",
        ),
        (
            "ctl-fw -A -v DROP -c OUTPUT --sng-hash abc",
            "\"abc\" is no SHA-256 of 64 hexadecimal digits",
        ),
        (
            "ctl-fw -A -v DROP -c OUTPUT -d 192.0.2.1/255.0.255.0",
            "is no network",
        ),
        ("ctl-fw -A -v DROP -c OUTPUT --dport 0", "\"0\" is no port"),
        (
            "ctl-fw -A -v DROP -c OUTPUT -p icmp --dport 7",
            "a port of a protocol without ports",
        ),
        ("ctl-fw -v DROP", "neither -A nor -I nor -D"),
        ("ctl-fw -I x", "not read: -I without a number"),
        (
            "ctl-fw -L\nfrobnicate",
            "rules.sh:2: not read: it is no command of ctl-fw",
        ),
        (
            "ctl-fw -L\nctl-fw 'a",
            "rules.sh:2: not read: a quotation mark",
        ),
    ] {
        let text = made(typed);
        // Comments are broken into lines.
        let joined = text.replace("\n#   ", " ");
        assert!(joined.contains(told), "{typed}: {text}");
    }
    assert!(configuration("a", "echo\n").is_err());
    assert!(configuration("a", "").is_err());
    let many = "ctl-fw -A -v DROP -c OUTPUT\n".repeat(MAX_RULES);
    assert!(configuration("a", &many).is_ok());
    assert!(configuration("a", &(many + "ctl-fw -A -v DROP -c OUTPUT\n")).is_err());
}

#[test]
fn two_policies_become_a_default_and_a_rule() {
    let text = made("app-fw --pol-out DROP\n");
    assert!(text.contains("default = \"drop\""), "{text}");
    assert!(
        text.ends_with("[app.rules.daf-policy]\nverdict = \"allow\"\ndirection = \"in\"\n"),
        "{text}"
    );
    let text = made("app-fw --pol-out ACCEPT\n");
    assert!(
        text.contains("default = \"allow\"") && !text.contains("[app.rules"),
        "{text}"
    );
}

#[test]
fn a_port_at_either_end_is_negated() {
    for (port, ranges) in [
        ("1", "\"2-65535\""),
        ("65535", "\"1-65534\""),
        ("2", "\"1\", \"3-65535\""),
    ] {
        let text = made(&format!("ctl-fw -A -v DROP -c OUTPUT -! --dport {port}\n"));
        assert!(text.contains(&format!("ports = [{ranges}]")), "{text}");
    }
}
