use std::{net::IpAddr, path::Path, sync::Arc};

use proptest::prelude::*;
use weir_core::{Prefix, geo::GeoTable};

use super::*;
use crate::{
    Condition, Criterion, Digest, Level, Object, Program, Rule, Where,
    config::{AppConfig, tests::parsed},
    policy::{Resolve, RuleBits},
};

/// One list, one name, one namespace.
pub(crate) struct Known {
    nobody: GeoTable,
    list: Vec<Prefix>,
    pub(crate) name: Option<Vec<IpAddr>>,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            nobody: GeoTable::default(),
            list: vec![
                "203.0.113.0/24".parse().unwrap(),
                "2001:db8:bad::/48".parse().unwrap(),
            ],
            name: Some(vec![
                "198.51.100.1".parse().unwrap(),
                "2001:db8::1".parse().unwrap(),
            ]),
        }
    }
}

impl Resolve for Known {
    fn places(&self) -> &GeoTable {
        &self.nobody
    }
    fn list(&self, name: &str) -> Option<&[Prefix]> {
        (name == "bad").then_some(&self.list)
    }
    fn addresses(&self, name: &str) -> Option<&[IpAddr]> {
        self.name.as_deref().filter(|_| name == "example.org")
    }
    fn netns(&self, file: &Path) -> Option<u64> {
        (file == Path::new("/run/netns/blue")).then_some(42)
    }
}

fn policy(text: &str) -> Policy {
    Policy::compile(&parsed(text).unwrap().0, &Known::default()).unwrap()
}

pub(crate) fn compiled(config: &AppConfig) -> Policy {
    Policy::compile(config, &Known::default()).unwrap()
}

/// The policy of these rules; by it who is not known is dropped.
pub(crate) fn of_rules(default: Verdict, rules: Vec<Rule>) -> Policy {
    compiled(&AppConfig {
        default,
        unknown: crate::Unknown::Drop,
        prompt_timeout: None,
        level: Level::Auto,
        cgroup: None,
        private_names: Vec::new(),
        container_sockets: Vec::new(),
        container_bundles: Vec::new(),
        upgrades: crate::Upgrades::Tell,
        rules,
        rule_lines: Vec::new(),
    })
}

fn object(path: &str, number: u8) -> Object {
    let digest = Some(Digest([number; 32]));
    let path = path.into();
    Object { path, digest }
}

/// A program whose executable has the first of these digests.
pub(crate) fn program(numbers: &[u8]) -> Program {
    let objects = numbers.iter().map(|n| object(&format!("/bin/{n}"), *n));
    let objects: Vec<_> = objects.collect();
    Program {
        exe: objects.first().cloned(),
        objects,
        cgroup: "/system.slice/a.service".to_owned(),
        ..Program::default()
    }
}

fn out(peer: &str, port: u16) -> Flow {
    Flow {
        is_outward: true,
        protocol: Protocols::TCP,
        peer: peer.parse().unwrap(),
        port: Some(port),
        netns: 1,
    }
}

fn decide(policy: &Policy, programs: &[Program], flow: &Flow) -> Verdict {
    let holders = programs.iter().map(|p| Holder::Known(policy.met_by(p)));
    policy.decide(&holders.collect::<Vec<_>>(), flow).verdict
}

fn hex(number: u8) -> String {
    Digest([number; 32]).to_string()
}

#[test]
fn to_deny_one_holder_is_enough_and_to_allow_all_are_needed() {
    let policy = policy(&format!(
        "[app]\ndefault = 'reject'\n[app.rules.no]\nverdict = 'drop'\nobject = '{}'\n\
         [app.rules.yes]\nverdict = 'allow'\nexe = ['{}', '{}']\n",
        hex(9),
        hex(1),
        hex(2)
    ));
    let flow = out("192.0.2.1", 80);
    for (holders, verdict) in [
        (vec![program(&[1])], Verdict::Allow),
        (vec![program(&[1, 5]), program(&[2])], Verdict::Allow),
        (vec![program(&[1]), program(&[3])], Verdict::Reject),
        (vec![program(&[1]), program(&[2, 9])], Verdict::Drop),
        (vec![program(&[3])], Verdict::Reject),
        // Its executable is not 1, though it has mapped it.
        (vec![program(&[3, 1])], Verdict::Reject),
    ] {
        assert_eq!(decide(&policy, &holders, &flow), verdict, "{holders:?}");
    }
}

/// D4 of the predecessors' defects: there it was true of every program.
#[test]
fn a_negated_object_means_that_no_mapping_has_it() {
    let policy = policy(&format!(
        "[app.rules.a]\nverdict = 'drop'\nobject = '{}'\nnot = 'object'\n",
        hex(1)
    ));
    let flow = out("192.0.2.1", 80);
    assert_eq!(
        decide(&policy, &[program(&[2, 1, 3])], &flow),
        Verdict::Allow
    );
    assert_eq!(decide(&policy, &[program(&[2, 3])], &flow), Verdict::Drop);
}

#[test]
fn a_digest_that_is_not_known_allows_nothing() {
    let mut holder = program(&[1, 2]);
    holder.objects[1].digest = None;
    let flow = out("192.0.2.1", 80);
    let of = |verdict: &str, not: &str| {
        let text = format!(
            "[app]\ndefault = '{}'\n[app.rules.a]\nverdict = '{verdict}'\nobject = '{}'\n{not}\n",
            if verdict == "allow" { "drop" } else { "allow" },
            hex(7)
        );
        decide(&policy(&text), std::slice::from_ref(&holder), &flow)
    };
    assert_eq!(of("allow", ""), Verdict::Drop);
    assert_eq!(of("allow", "not = 'object'"), Verdict::Drop);
    assert_eq!(of("drop", ""), Verdict::Allow);
    assert_eq!(of("drop", "not = 'object'"), Verdict::Drop);
    // And a program of which not everything was read is no aggregate.
    holder.objects[1].digest = Some(Digest([2; 32]));
    assert!(holder.aggregate().is_some());
    holder.truncated = true;
    assert_eq!(holder.aggregate(), None);
}

#[test]
fn the_aggregate_is_over_the_digests_in_the_order_of_the_paths() {
    // sha256sum of 32 bytes 1 and 32 bytes 2.
    let known = "f818afd37a6dc3bc92fb44731011277006db4efa6e9023cd7468c02335d22a4d";
    let both = program(&[1, 2]).aggregate().unwrap();
    assert_eq!(both.to_string(), known);
    assert_ne!(both, program(&[2, 1]).aggregate().unwrap());
    let rule = Condition {
        is_negated: false,
        criterion: Criterion::Aggregate(vec![both]),
    };
    assert!(rule.is_met(&program(&[1, 2]), Verdict::Allow));
    assert!(!rule.is_met(&program(&[1, 2, 3]), Verdict::Allow));
    assert_eq!(Program::default().aggregate(), None);
}

#[test]
fn ports_peers_protocols_and_namespaces_say_where() {
    let text = "[app]\ndefault = 'drop'\n\
        [app.rules.dns]\nverdict = 'allow'\nports = ['53/udp', '53/tcp']\nto = ['192.0.2.53', '2001:db8::53']\n\
        [app.rules.list]\nverdict = 'reject'\nto = ['list:bad']\n\
        [app.rules.name]\nverdict = 'allow'\nto = ['name:example.org']\nports = ['443/tcp']\n\
        [app.rules.served]\nverdict = 'allow'\nfrom = ['10.0.0.0/8']\nports = ['8080']\nnot = 'from'\n\
        [app.rules.blue]\nverdict = 'allow'\nnetns = '/run/netns/blue'\n\
        [app.rules.ping]\nverdict = 'allow'\nprotocols = 'icmp'\n";
    let policy = policy(text);
    assert_eq!(policy.places.len(), 7);
    assert_eq!(policy.places[1].rule, 0);
    assert!(policy.unresolved.is_empty());
    let udp = |flow: Flow| Flow {
        protocol: Protocols::UDP,
        ..flow
    };
    let comes = |peer: &str, port| Flow {
        is_outward: false,
        ..out(peer, port)
    };
    for (flow, verdict) in [
        (out("192.0.2.53", 53), Verdict::Allow),
        (udp(out("192.0.2.53", 53)), Verdict::Allow),
        (udp(out("2001:db8::53", 53)), Verdict::Allow),
        (out("192.0.2.53", 54), Verdict::Drop),
        (out("192.0.2.54", 53), Verdict::Drop),
        (comes("192.0.2.53", 53), Verdict::Drop),
        (out("203.0.113.9", 443), Verdict::Reject),
        (out("::ffff:203.0.113.9", 443), Verdict::Reject),
        (out("2001:db8:bad::1", 1), Verdict::Reject),
        (out("198.51.100.1", 443), Verdict::Allow),
        (out("2001:db8::1", 443), Verdict::Allow),
        (udp(out("198.51.100.1", 443)), Verdict::Drop),
        (out("198.51.100.2", 443), Verdict::Drop),
        (comes("192.0.2.7", 8080), Verdict::Allow),
        (udp(comes("2001:db8::7", 8080)), Verdict::Allow),
        (comes("10.1.2.3", 8080), Verdict::Drop),
        (comes("192.0.2.7", 8081), Verdict::Drop),
        (
            Flow {
                netns: 42,
                ..out("192.0.2.1", 1)
            },
            Verdict::Allow,
        ),
        (
            Flow {
                protocol: Protocols::ICMP,
                port: None,
                ..out("192.0.2.1", 1)
            },
            Verdict::Allow,
        ),
        // Raw sockets are allowed by name only.
        (
            Flow {
                netns: 42,
                protocol: Protocols::RAW,
                port: None,
                ..out("192.0.2.1", 1)
            },
            Verdict::Drop,
        ),
    ] {
        assert_eq!(
            decide(&policy, &[program(&[1])], &flow),
            verdict,
            "{flow:?}"
        );
    }
}

#[test]
fn a_port_that_is_not_known_matches_what_denies() {
    let raw = Flow {
        port: None,
        ..out("192.0.2.1", 0)
    };
    for (verdict, default, expected) in [
        ("drop", "allow", Verdict::Drop),
        ("allow", "drop", Verdict::Drop),
    ] {
        let text = format!(
            "[app]\ndefault = '{default}'\n[app.rules.a]\nverdict = '{verdict}'\nports = ['80']\n"
        );
        assert_eq!(decide(&policy(&text), &[program(&[1])], &raw), expected);
    }
}

#[test]
fn what_cannot_be_resolved_is_told_and_opens_nothing() {
    let of = |verdict: &str, not: &str, netns: &str| {
        let default = if verdict == "allow" { "drop" } else { "allow" };
        let text = format!(
            "[app]\ndefault = '{default}'\n[app.rules.a]\nverdict = '{verdict}'\nto = ['192.0.2.1', 'name:example.org']\n{not}\n{netns}"
        );
        let known = Known {
            name: None,
            ..Known::default()
        };
        let policy = Policy::compile(&parsed(&text).unwrap().0, &known).unwrap();
        assert_eq!(
            policy.unresolved[0].to_string(),
            "[app.rules.a]: name:example.org is not known"
        );
        ["192.0.2.1", "198.51.100.1"].map(|peer| decide(&policy, &[program(&[1])], &out(peer, 1)))
    };
    use Verdict::{Allow, Drop};
    assert_eq!(of("allow", "", ""), [Allow, Drop]);
    assert_eq!(of("drop", "", ""), [Drop, Allow]);
    assert_eq!(of("allow", "not = 'to'", ""), [Drop, Drop]);
    assert_eq!(of("drop", "not = 'to'", ""), [Drop, Drop]);
    // Nobody is in a namespace that is not there.
    assert_eq!(of("drop", "", "netns = '/run/netns/red'"), [Allow, Allow]);
}

#[test]
fn who_is_not_known_is_judged_by_the_setting_where_a_rule_may_hold() {
    let text = |unknown: &str| {
        format!(
            "[app]\ndefault = 'reject'\nunknown = '{unknown}'\n\
             [app.rules.loopback]\nverdict = 'allow'\nto = ['127.0.0.0/8']\n\
             [app.rules.no]\nverdict = 'drop'\nexe = '{}'\nto = ['192.0.2.0/24']\n\
             [app.rules.yes]\nverdict = 'allow'\nexe = '{}'\nto = ['192.0.2.0/24']\n",
            hex(1),
            hex(2)
        )
    };
    let learn = policy(&text("learn"));
    let of =
        |policy: &Policy, holders: &[Holder], peer: &str| policy.decide(holders, &out(peer, 1));
    let known = |number| Holder::Known(learn.met_by(&program(&[number])));
    let by = DecidedBy::Unknown;
    let learned = Decision {
        verdict: Verdict::Allow,
        is_learned: true,
        by,
    };
    for holders in [&[][..], &[Holder::Unknown], &[known(2), Holder::Unknown]] {
        assert_eq!(of(&learn, holders, "192.0.2.1"), learned, "{holders:?}");
        // Rules about everybody, and the default, need nobody.
        assert_eq!(of(&learn, holders, "127.0.0.1").by, DecidedBy::Place(0));
        assert_eq!(of(&learn, holders, "198.51.100.1").by, DecidedBy::Default);
    }
    // One that is known is enough to deny.
    let holders = [Holder::Unknown, known(1)];
    assert_eq!(of(&learn, &holders, "192.0.2.1").by, DecidedBy::Place(1));
    let drop = policy(&text("drop"));
    assert_eq!(
        of(&drop, &[Holder::Unknown], "192.0.2.1").verdict,
        Verdict::Drop
    );
    let allow = policy(&text("allow"));
    let decision = of(&allow, &[Holder::Unknown], "192.0.2.1");
    assert_eq!(
        (decision.verdict, decision.is_learned),
        (Verdict::Allow, false)
    );
}

/// Its files are those of the aggregate, and what runs is not.
#[test]
fn an_altered_program_is_none_that_its_files_say() {
    let whole = program(&[1, 2]);
    let altered = Program {
        altered: true,
        ..whole.clone()
    };
    let aggregate = whole.aggregate().unwrap();
    let meets = |verdict: &str, more: &str| {
        let text = format!(
            "[app.rules.a]\nverdict = '{verdict}'\naggregate = '{aggregate}'\n{more}\n\
             [app.rules.b]\nverdict = '{verdict}'\nexe = '{}'\n[app.rules.c]\nverdict = '{verdict}'\naltered = true\n",
            hex(1)
        );
        let rules = parsed(&text).unwrap().0.rules;
        [&whole, &altered].map(|program| {
            rules
                .iter()
                .map(|rule| rule.is_about(program))
                .collect::<Vec<_>>()
        })
    };
    let is = |of_whole: [bool; 3], of_altered: [bool; 3]| [of_whole.to_vec(), of_altered.to_vec()];
    assert_eq!(
        meets("allow", ""),
        is([true, true, false], [false, true, true])
    );
    assert_eq!(
        meets("drop", "not = 'aggregate'"),
        is([false, true, false], [true, true, true])
    );
    assert_eq!(
        meets("allow", "not = 'aggregate'"),
        is([false, true, false], [false, true, true])
    );
}

#[test]
fn rules_that_log_decide_nothing() {
    let policy = policy(&format!(
        "[app.rules.told]\nverdict = 'log'\nexe = '{}'\nports = ['80']\n[app.rules.no]\nverdict = 'drop'\n",
        hex(1)
    ));
    assert_eq!(policy.places.len(), 1);
    let told = |holders: &[Program], port| {
        let flow = out("192.0.2.1", port);
        assert_eq!(decide(&policy, holders, &flow), Verdict::Drop);
        policy.logged(holders, &flow).count()
    };
    assert_eq!(told(&[program(&[2]), program(&[1])], 80), 1);
    assert_eq!(told(&[program(&[1])], 81), 0);
    assert_eq!(told(&[program(&[2])], 80), 0);
}

#[test]
fn control_groups_are_named_by_patterns() {
    let meets = |key: &str, cgroup: &str| {
        let (config, _) = parsed(&format!("[app.rules.a]\nverdict = 'drop'\n{key}")).unwrap();
        let program = Program {
            cgroup: cgroup.to_owned(),
            ..Program::default()
        };
        config.rules[0].is_about(&program)
    };
    for (key, cgroup, is) in [
        ("cgroup = '/system.slice'", "/system.slice/a.service", true),
        ("cgroup = '/system.slice'", "/system.slice", true),
        (
            "cgroup = '/system.slice'",
            "/system.slice2/a.service",
            false,
        ),
        (
            "cgroup = '/system.slice'",
            "/user.slice/system.slice",
            false,
        ),
        ("cgroup = '/system.slice'", "", false),
        (
            "cgroup = '/system.slice/docker-*.scope'",
            "/system.slice/docker-0af.scope/init",
            true,
        ),
        (
            "cgroup = '/system.slice/docker-*.scope'",
            "/system.slice/docker.scope",
            false,
        ),
        ("cgroup = '/a*b*c'", "/aXbYc", true),
        ("cgroup = '/a*b*c'", "/acb", false),
        ("cgroup = '/ab*ba'", "/aba", false),
        ("unit = 'a.service'", "/system.slice/a.service/sub", true),
        ("unit = 'a.service'", "/system.slice/aa.service", false),
    ] {
        assert_eq!(meets(key, cgroup), is, "{key}: {cgroup}");
    }
}

/// Below a unit that has processes anybody may be who has it: a user, or root in a container.
#[test]
fn a_unit_is_what_systemd_has_made_and_no_group_below_it() {
    let of = |key: &str, cgroup: &str| {
        ["allow", "drop"].map(|verdict| {
            let text = format!("[app.rules.a]\nverdict = '{verdict}'\n{key}");
            let (config, _) = parsed(&text).unwrap();
            let program = Program {
                cgroup: cgroup.to_owned(),
                ..Program::default()
            };
            config.rules[0].is_about(&program)
        })
    };
    let manager = "/user.slice/user-1000.slice/user@1000.service";
    let (unit, not) = (
        "unit = 'sshd.service'",
        "unit = 'sshd.service'\nnot = 'unit'",
    );
    for (key, cgroup, is) in [
        (unit, "/system.slice/sshd.service".to_owned(), [true, true]),
        (
            unit,
            "/system.slice/sshd.service/main".to_owned(),
            [true, true],
        ),
        (not, "/system.slice/sshd.service".to_owned(), [false, false]),
        (
            unit,
            format!("{manager}/app.slice/sshd.service"),
            [false, true],
        ),
        (
            not,
            format!("{manager}/app.slice/sshd.service"),
            [false, true],
        ),
        (
            unit,
            "/system.slice/docker-0af.scope/sshd.service".to_owned(),
            [false, true],
        ),
        (
            unit,
            format!("{manager}/app.slice/a.service"),
            [false, false],
        ),
        (not, format!("{manager}/app.slice/a.service"), [true, true]),
        // Of a container that systemd has not made, and that has a tree of its own.
        (
            unit,
            "/lxc.payload.web/system.slice/sshd.service".to_owned(),
            [false, true],
        ),
        (unit, "/docker/0af/sshd.service".to_owned(), [false, true]),
        (
            unit,
            "/kubepods/a.slice/sshd.service".to_owned(),
            [false, true],
        ),
        // systemd writes names that the kernel has itself with `_`.
        (
            "unit = 'cpu.service'",
            "/system.slice/_cpu.service".to_owned(),
            [true, true],
        ),
        (
            "unit = 'user@*.service'",
            format!("{manager}/app.slice/a.service"),
            [true, true],
        ),
        (
            "unit = 'user.slice'",
            format!("{manager}/app.slice/a.service"),
            [true, true],
        ),
    ] {
        assert_eq!(of(key, &cgroup), is, "{key}: {cgroup}");
    }
}

#[test]
fn containers_are_meant_by_their_labels() {
    let labels = |all: &[(&str, &str)]| {
        let all = all.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        crate::Container::Labels(all.collect())
    };
    let web = labels(&[("app", "web"), ("team", "")]);
    // Of rules that allow and that deny.
    let meets = |key: &str, container: &crate::Container| {
        ["allow", "drop"].map(|verdict| {
            let text = format!("[app]\n[app.rules.r]\nverdict = '{verdict}'\n{key}\n");
            let (config, _) = parsed(&text).unwrap();
            assert!(config.rules[0].asks_cgroup() && config.rules[0].asks_container());
            let program = Program {
                container: container.clone(),
                ..Program::default()
            };
            config.rules[0].is_about(&program)
        })
    };
    for (key, container, is) in [
        ("container = 'app=web'", &web, [true; 2]),
        ("container = 'app=w*b'", &web, [true; 2]),
        ("container = 'app'", &web, [true; 2]),
        ("container = 'team'", &web, [true; 2]),
        ("container = 'team='", &web, [true; 2]),
        ("container = 'app=we'", &web, [false; 2]),
        ("container = 'ap*=web'", &web, [false; 2]),
        ("container = ['app=db', 'app=web']", &web, [true; 2]),
        ("container = 'app=web'", &labels(&[]), [false; 2]),
        ("container = 'app'", &crate::Container::None, [false; 2]),
        ("container = 'app'", &crate::Container::Unknown, [false; 2]),
        ("container = 'app=db'\nnot = 'container'", &web, [true; 2]),
        (
            "container = 'app'\nnot = 'container'",
            &crate::Container::None,
            [true; 2],
        ),
        // Nobody can say that it is another one.
        (
            "container = 'app'\nnot = 'container'",
            &crate::Container::Unknown,
            [false, true],
        ),
    ] {
        assert_eq!(meets(key, container), is, "{key}: {container:?}");
    }
    let refused = |text: &str, told: &str| {
        let error = parsed(text).unwrap_err();
        assert!(error.contains(told), "{error}");
    };
    refused(
        "[app.rules.r]\nverdict = 'allow'\ncontainer = '=web'\n",
        "weir.toml:3: container in [app.rules.r] is \"=web\": it is no label; allowed: a label",
    );
    refused(
        "[app]\ncontainer_sockets = ['/run/other.sock']\n",
        "weir.toml:2: container_sockets in [app] without a rule that has container",
    );
    let rule = "[app.rules.r]\nverdict = 'allow'\ncontainer = 'app'\n";
    refused(
        &format!("[app]\ncontainer_sockets = ['docker.sock']\n{rule}"),
        "weir.toml:2: container_sockets in [app] has \"docker.sock\"; allowed: a list of 1-8",
    );
    refused(
        &format!("[app]\ncontainer_sockets = []\n{rule}"),
        "weir.toml:2: container_sockets in [app] has 0 entries",
    );
    refused(
        "[app]\ncontainer_bundles = ['/run/other']\n",
        "weir.toml:2: container_bundles in [app] without a rule that has container",
    );
    refused(
        &format!("[app]\ncontainer_bundles = ['/run/../etc']\n{rule}"),
        "weir.toml:2: container_bundles in [app] has \"/run/../etc\"; allowed: a list of 1-8",
    );
    let (config, _) = parsed(rule).unwrap();
    assert_eq!(config.container_sockets.len(), 2);
    assert_eq!(config.container_bundles.len(), 3);
}

/// One more than there is room for.
#[test]
fn what_the_kernel_has_no_room_for_is_refused() {
    let (config, _) = parsed("[app.rules.a]\nverdict = 'drop'\nto = ['list:bad']\n").unwrap();
    let known = |hosts: u32| Known {
        list: (0..hosts)
            .map(|n| Prefix::host(IpAddr::V4((n * 2).into())))
            .collect(),
        ..Known::default()
    };
    let most = crate::policy::MAX_NETWORKS as u32;
    assert!(Policy::compile(&config, &known(most)).is_ok());
    let error = Policy::compile(&config, &known(most + 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the rules of [app] have 524289 networks; allowed: at most 524288"
    );
}

/// Rules over four digests and four hosts, as they are in the configuration.
fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let digests = prop::collection::vec(0u8..4, 1..3);
    let condition = (0u8..3, digests, any::<bool>()).prop_map(|(kind, numbers, is_negated)| {
        let digests: Vec<_> = numbers.iter().map(|n| Digest([*n; 32])).collect();
        let criterion = match kind {
            0 => Criterion::Exe(digests),
            1 => Criterion::Object(digests),
            _ => Criterion::User(numbers.iter().map(|n| u32::from(*n)).collect()),
        };
        Condition {
            is_negated,
            criterion,
        }
    });
    let peers = prop::option::of((any::<bool>(), 0u8..4).prop_map(|(is_negated, host)| {
        let prefix = Prefix::host(IpAddr::from([192, 0, 2, host]));
        let who = weir_core::balance::acl::Who::Prefix(prefix);
        crate::Peers {
            is_negated,
            entries: vec![crate::Peer::Known(who)],
        }
    }));
    let verdict = prop::sample::select(vec![Verdict::Allow, Verdict::Drop, Verdict::Reject]);
    let who = prop::collection::vec(condition, 0..3);
    let rule = (verdict, who, peers.clone(), peers).prop_map(|(verdict, who, to, from)| Rule {
        name: "r".into(),
        verdict,
        who,
        place: Where {
            direction: Direction::Both,
            protocols: Protocols::default(),
            ports: Vec::new(),
            to,
            from,
            netns: None,
        },
        peer: Vec::new(),
    });
    prop::collection::vec(rule, 0..8)
}

fn programs() -> impl Strategy<Value = Vec<Program>> {
    let one = (prop::collection::vec(0u8..4, 1..4), 0u32..4);
    let one = one.prop_map(|(numbers, uid)| Program {
        uid,
        ..program(&numbers)
    });
    prop::collection::vec(one, 1..4)
}

/// The meaning, by the rules as they are written.
fn naive(rules: &[Rule], holders: &[Program], outward: bool, peer: IpAddr) -> Option<Verdict> {
    let meets = |rule: &Rule, program: &Program| {
        rule.who.iter().all(|condition| {
            let is = match &condition.criterion {
                Criterion::Exe(digests) => digests.contains(&program.objects[0].digest.unwrap()),
                Criterion::Object(digests) => digests
                    .iter()
                    .any(|d| program.objects.iter().any(|o| o.digest == Some(*d))),
                Criterion::User(users) => users.contains(&program.uid),
                other => panic!("{other:?}"),
            };
            is != condition.is_negated
        })
    };
    rules.iter().find_map(|rule| {
        let peers = if outward {
            &rule.place.to
        } else {
            &rule.place.from
        };
        let there = peers.as_ref().is_none_or(|peers| {
            (peers.entries[0].to_string() == Prefix::host(peer).to_string()) != peers.is_negated
        });
        let holds = match rule.verdict {
            Verdict::Allow => holders.iter().all(|program| meets(rule, program)),
            _ => holders.iter().any(|program| meets(rule, program)),
        };
        (there && holds).then_some(rule.verdict)
    })
}

proptest! {
    /// First match, any and all, and negation, of rules that are compiled and of rules as
    /// they are written.
    #[test]
    fn the_compiled_rules_say_what_the_written_ones_say(
        rules in rules(),
        holders in programs(),
        outward: bool,
        host in 0u8..5,
    ) {
        let policy = of_rules(Verdict::Reject, rules.clone());
        let peer = IpAddr::from([192, 0, 2, host]);
        let flow = Flow { is_outward: outward, peer, ..out("192.0.2.1", 1) };
        let expected = naive(&rules, &holders, outward, peer).unwrap_or(Verdict::Reject);
        prop_assert_eq!(decide(&policy, &holders, &flow), expected);
        // The same programs once more, in another order, are the same holders.
        let mut more: Vec<Program> = holders.iter().rev().cloned().collect();
        more.extend(holders.clone());
        prop_assert_eq!(decide(&policy, &more, &flow), expected);
    }

    /// What is decided by an executable alone is what is decided once the rest is known.
    #[test]
    fn an_executable_alone_decides_as_its_program(
        rules in rules(),
        holders in programs(),
        host in 0u8..5,
    ) {
        let policy = of_rules(Verdict::Drop, rules);
        let flow = Flow { peer: IpAddr::from([192, 0, 2, host]), ..out("192.0.2.1", 1) };
        let mut known: Vec<Holder> =
            holders.iter().map(|program| Holder::Known(policy.met_by(program))).collect();
        let whole = policy.decide(&known, &flow);
        let executable = holders[0].objects[0].digest.unwrap();
        let bits = policy.met_by_executable(executable);
        known[0] = Holder::Executable(bits);
        let early = policy.decide(&known, &flow);
        if early.by != DecidedBy::Unknown {
            prop_assert_eq!(early, whole);
        }
        // Rules that ask for nothing else leave nothing open.
        if bits.meets == bits.may {
            prop_assert_eq!(early, whole);
        }
    }

    /// Whatever peer there is, what is decided is one of those that are told where the peer is
    /// not known, and the last of these is about everybody.
    #[test]
    fn what_is_decided_is_told_without_the_peer(rules in rules(), holders in programs(), host in 0u8..5) {
        let policy = of_rules(Verdict::Drop, rules);
        let flow = Flow { peer: IpAddr::from([192, 0, 2, host]), ..out("192.0.2.1", 1) };
        let mut known: Vec<Holder> =
            holders.iter().map(|program| Holder::Known(policy.met_by(program))).collect();
        known.push(Holder::Unknown);
        for holders in [&known[..1], &known[..]] {
            let nobody = Flow { peer: IpAddr::from([0; 4]), port: None, ..flow.clone() };
            let told = policy.decide_for_any_peer(holders, &nobody);
            let decision = policy.decide(holders, &flow);
            prop_assert!(told.iter().any(|(one, _)| *one == decision), "{:?} {:?}", decision, told);
            prop_assert_eq!(told.iter().filter(|(_, is_for_all)| *is_for_all).count(), 1);
            prop_assert!(told.last().unwrap().1);
        }
    }

    /// A holder more never opens what was denied by one of the others, and who is not
    /// known never passes where anybody known would be denied.
    #[test]
    fn a_holder_more_opens_nothing(rules in rules(), holders in programs(), host in 0u8..5) {
        let policy = of_rules(Verdict::Drop, rules);
        let flow = Flow { peer: IpAddr::from([192, 0, 2, host]), ..out("192.0.2.1", 1) };
        let mut known: Vec<Holder> =
            holders.iter().map(|program| Holder::Known(policy.met_by(program))).collect();
        let before = policy.decide(&known, &flow);
        known.push(Holder::Unknown);
        let after = policy.decide(&known, &flow);
        if after.verdict == Verdict::Allow {
            // Only by a rule about everybody, which decided before as well.
            prop_assert_eq!(after, before);
        }
    }
}

#[test]
fn rules_about_some_peers_are_told_before_what_holds_for_all() {
    let policy = policy(
        "[app]\ndefault = 'drop'\n[app.rules.a]\nverdict = 'reject'\nto = ['192.0.2.0/24']\n[app.rules.b]\nverdict = 'allow'\nports = ['53/udp']\n[app.rules.c]\nverdict = 'allow'\ndirection = 'in'\nports = ['80/tcp']\n[app.rules.d]\nverdict = 'allow'\nprotocols = 'udp'\n[app.rules.e]\nverdict = 'drop'\n",
    );
    let told = |flow: &Flow| {
        let told = policy.decide_for_any_peer(&[], flow).into_iter();
        let name = |by| match by {
            DecidedBy::Place(number) => policy.rules[policy.places[number].rule].name.to_string(),
            by => format!("{by:?}"),
        };
        told.map(|(decision, is_for_all)| (name(decision.by), is_for_all))
            .collect::<Vec<_>>()
    };
    let named = |all: &[(&str, bool)]| {
        let all = all.iter().map(|(name, is)| ((*name).to_owned(), *is));
        all.collect::<Vec<_>>()
    };
    let tcp = Flow {
        port: None,
        ..out("0.0.0.0", 1)
    };
    assert_eq!(told(&tcp), named(&[("a", false), ("e", true)]));
    let udp = Flow {
        protocol: Protocols::UDP,
        ..tcp.clone()
    };
    let expected = named(&[("a", false), ("b", false), ("d", true)]);
    assert_eq!(told(&udp), expected);
    let inward = Flow {
        is_outward: false,
        port: Some(80),
        ..tcp
    };
    assert_eq!(told(&inward), named(&[("c", true)]));
}

#[test]
fn bits_have_places_of_each_word() {
    let bits: RuleBits = [0, 63, 64, 1023, 1024].into_iter().collect();
    assert_eq!(bits.iter().collect::<Vec<_>>(), [0, 63, 64, 1023]);
    assert!(!bits.contains(1) && !bits.contains(1024));
    let policy =
        policy("[app.rules.a]\nverdict = 'drop'\nuser = '7'\n[app.rules.b]\nverdict = 'drop'\n");
    assert_eq!(policy.of_everybody().iter().collect::<Vec<_>>(), [1]);
    let names: Vec<Arc<str>> = policy.rules.iter().map(|rule| rule.name.clone()).collect();
    assert_eq!(names, ["a".into(), "b".into()]);
}
