use std::net::IpAddr;

use proptest::{prelude::*, sample::select};
use weir_core::{PortRange, Protocol};

use super::*;
use crate::{
    CgroupPattern, Container, Digest, Label, Program, Unknown, Where,
    config::tests::parsed,
    decision::{
        DecidedBy, Decision, Flow, Holder,
        tests::{Known, of_rules, program},
    },
    policy::Policy,
};

/// What is told of the second of two rules: that it never decides but for sockets that are
/// shared, and raw ones.
fn told(first: &str, second: &str) -> Option<[bool; 2]> {
    let text = format!("[app.rules.a]\n{first}\n[app.rules.b]\n{second}\n");
    let (config, _) = parsed(&text).unwrap();
    let Shadowed { found, compared } = shadowed(&config.rules);
    assert_eq!(compared, 2);
    match found[..] {
        [] => None,
        [one] => {
            assert_eq!((one.rule, one.by), (1, 0));
            Some([one.but_shared, one.but_raw])
        }
        _ => panic!("{found:?}"),
    }
}

#[test]
fn a_rule_is_shadowed_by_one_that_is_as_wide_in_all() {
    let (one, two) = ("1".repeat(64), "2".repeat(64));
    let one_of = format!("exe = ['{one}', '{two}']");
    let exe = format!("exe = '{one}'");
    let both = |verdict: &str, more: &str| format!("verdict = '{verdict}'\n{more}");
    let never = Some([false, false]);
    let (but_shared, but_raw) = (Some([true, false]), Some([false, true]));
    for (first, second, is) in [
        (both("drop", ""), both("allow", "user = '0'"), never),
        (both("drop", ""), both("reject", ""), never),
        (both("allow", ""), both("drop", &exe), but_raw),
        (
            both(
                "allow",
                "protocols = ['tcp', 'udp', 'icmp', 'raw', 'other']",
            ),
            both("drop", &exe),
            never,
        ),
        (both("drop", &one_of), both("allow", &exe), never),
        (both("drop", &exe), both("allow", &one_of), None),
        (both("drop", &exe), both("allow", ""), None),
        (both("allow", &one_of), both("allow", &exe), never),
        // Of a socket that somebody else holds, too, the first one does not hold.
        (
            both("allow", &one_of),
            both("reject", &format!("{exe}\nports = ['1/tcp']")),
            but_shared,
        ),
        (
            both("allow", "unit = 'a.service'"),
            both("reject", "unit = 'a.service'\nports = ['1']"),
            None,
        ),
        (
            both("drop", &format!("{exe}\nnot = 'exe'")),
            both("allow", &format!("{one_of}\nnot = 'exe'")),
            never,
        ),
        (
            both("drop", &format!("{one_of}\nnot = 'exe'")),
            both("allow", &format!("{exe}\nnot = 'exe'")),
            None,
        ),
        (
            both("drop", "path = '/usr/bin/curl'"),
            both("allow", "path = '/usr/bin/curl'\nuser = '7'"),
            never,
        ),
        (
            both("drop", "path = '/usr/bin/curl'\nuser = '7'"),
            both("allow", "path = '/usr/bin/curl'"),
            None,
        ),
        // Ports.
        (
            both("drop", "ports = ['1-100']"),
            both("allow", "ports = ['80/tcp', '53/udp']"),
            never,
        ),
        (
            both("drop", "ports = ['1-50/tcp', '51-100/tcp']"),
            both("allow", "ports = ['40-60/tcp']"),
            never,
        ),
        (
            both("drop", "ports = ['1-50/tcp', '52-100/tcp']"),
            both("allow", "ports = ['40-60/tcp']"),
            None,
        ),
        (
            both("drop", "ports = ['80/tcp']"),
            both("allow", "ports = ['80']"),
            None,
        ),
        (
            both("drop", "protocols = 'tcp'"),
            both("allow", "ports = ['80/tcp']"),
            never,
        ),
        (
            both("drop", "protocols = 'udp'"),
            both("allow", "ports = ['80/tcp']"),
            None,
        ),
        (
            both("allow", "ports = ['80/tcp']"),
            both("allow", "ports = ['80/tcp']"),
            never,
        ),
        // Of a fragment nobody knows the port: what denies is about it.
        (
            both("allow", "ports = ['80/tcp']"),
            both("drop", "ports = ['80/tcp']"),
            None,
        ),
        (
            both("allow", ""),
            both("allow", "protocols = 'icmp'"),
            never,
        ),
        (both("allow", ""), both("allow", "protocols = 'raw'"), None),
        // Peers and directions.
        (
            both("drop", "to = ['192.0.2.0/24', '2001:db8::/32']"),
            both("allow", "to = ['192.0.2.7', '2001:db8:1::/48']"),
            never,
        ),
        (
            both("drop", "to = ['192.0.2.0/24']"),
            both("allow", "to = ['192.0.2.7', '2001:db8::1']"),
            None,
        ),
        (
            both("drop", "to = ['192.0.2.0/24']\nnot = 'to'"),
            both("allow", "to = ['192.0.0.0/16']\nnot = 'to'"),
            never,
        ),
        (
            both("drop", "to = ['192.0.0.0/16']\nnot = 'to'"),
            both("allow", "to = ['192.0.2.0/24']\nnot = 'to'"),
            None,
        ),
        (
            both("drop", "to = ['list:bad', 'name:example.org']"),
            both("allow", "to = ['list:bad']"),
            never,
        ),
        (
            both("drop", "to = ['list:bad']\nnot = 'to'"),
            both("allow", "to = ['list:bad']\nnot = 'to'"),
            never,
        ),
        (
            both("drop", "to = ['list:bad']\nnot = 'to'"),
            both("allow", "to = ['list:bad', '192.0.2.1']\nnot = 'to'"),
            None,
        ),
        (
            both("drop", "to = ['country:DE', 'continent:AF']"),
            both("allow", "to = ['country:DE']"),
            never,
        ),
        (
            both("drop", "to = ['192.0.2.0/24']"),
            both("allow", "from = ['192.0.2.1']"),
            None,
        ),
        (
            both("drop", "direction = 'out'"),
            both("allow", "to = ['192.0.2.1']"),
            never,
        ),
        (
            both("drop", "direction = 'out'"),
            both("allow", "from = ['192.0.2.1']"),
            None,
        ),
        (
            both("drop", "direction = 'out'"),
            both("allow", "direction = 'both'"),
            None,
        ),
        // Namespaces.
        (
            both("drop", ""),
            both("allow", "netns = '/run/netns/blue'"),
            never,
        ),
        (
            both("drop", "netns = '/run/netns/blue'"),
            both("allow", "netns = '/run/netns/blue'"),
            never,
        ),
        (
            both("drop", "netns = '/run/netns/blue'"),
            both("allow", "netns = '/run/netns/red'"),
            None,
        ),
        // A rule that logs is asked whatever decides.
        (both("drop", ""), both("log", ""), None),
        (both("log", ""), both("drop", ""), None),
    ] {
        assert_eq!(told(&first, &second), is, "{first}\n---\n{second}");
    }
}

#[test]
fn a_rule_with_peer_has_an_effect_before_any_decision() {
    let text = format!(
        "[token]\n[app.rules.a]\nverdict = 'drop'\n[app.rules.b]\nverdict = 'allow'\nports = ['80/tcp']\npeer = '{}'\n",
        "1".repeat(64)
    );
    let (config, _) = parsed(&text).unwrap();
    assert_eq!(shadowed(&config.rules).found, []);
}

/// The last of 1,024 rules is compared with the first, and no more is done than is allowed.
#[test]
fn as_many_rules_as_there_may_be_are_compared_in_bounded_time() {
    let rule = |number: usize, port: usize| {
        format!(
            "[app.rules.r{number}]\nverdict = 'allow'\nuser = '{number}'\nports = ['{port}/tcp']\n"
        )
    };
    let mut text: String = (0..1023).map(|number| rule(number, 1 + number)).collect();
    text.push_str("[app.rules.last]\nverdict = 'allow'\nuser = '0'\nports = ['1/tcp']\n");
    let (config, _) = parsed(&text).unwrap();
    let all = shadowed(&config.rules);
    assert_eq!(all.compared, 1024);
    let last = Shadow {
        rule: 1023,
        by: 0,
        but_shared: false,
        but_raw: false,
    };
    assert_eq!(all.found, [last]);
    let some = within(&config.rules, 5000);
    assert!((50..1024).contains(&some.compared), "{some:?}");
    assert_eq!(some.found, []);
    // Each rule names 256 users, the last of which no rule before it has.
    let rules: Vec<_> = (0..1024)
        .map(|number| Rule {
            who: vec![Condition {
                is_negated: false,
                criterion: Criterion::User((0..255).chain([1000 + number]).collect()),
            }],
            ..config.rules[0].clone()
        })
        .collect();
    let Shadowed { found, compared } = shadowed(&rules);
    assert!(
        found.is_empty() && (20..1024).contains(&compared),
        "{compared}"
    );
}

const HOSTS: [&str; 5] = [
    "192.0.2.1",
    "192.0.2.9",
    "198.51.100.1",
    "203.0.113.5",
    "2001:db8::1",
];

fn condition() -> impl Strategy<Value = Condition> {
    let numbers = prop::collection::vec(0u8..3, 1..3);
    (0u8..9, numbers, any::<bool>()).prop_map(|(kind, numbers, is_negated)| {
        let digests = || numbers.iter().map(|n| Digest([*n; 32])).collect();
        let words = |all: [&str; 3]| {
            numbers
                .iter()
                .map(|n| all[usize::from(*n)].to_owned())
                .collect()
        };
        let criterion = match kind {
            0 => Criterion::Exe(digests()),
            1 => Criterion::Object(digests()),
            2 => Criterion::Aggregate(
                numbers
                    .iter()
                    .filter_map(|n| program(&[*n]).aggregate())
                    .collect(),
            ),
            3 => Criterion::User(numbers.iter().map(|n| u32::from(*n)).collect()),
            4 => Criterion::Unit(words(["a.service", "b.service", "*.service"])),
            5 => Criterion::Cgroup(
                numbers
                    .iter()
                    .map(|n| {
                        CgroupPattern::new(["/system.slice", "/user.slice", "/*"][usize::from(*n)])
                            .unwrap()
                    })
                    .collect(),
            ),
            6 => Criterion::Container(
                numbers
                    .iter()
                    .map(|n| Label::new(["app", "app=web", "team"][usize::from(*n)]).unwrap())
                    .collect(),
            ),
            7 => Criterion::Altered,
            _ => Criterion::Package(words(["curl", "wget", "bash"])),
        };
        let is_negated = is_negated && criterion != Criterion::Altered;
        Condition {
            is_negated,
            criterion,
        }
    })
}

fn peers() -> impl Strategy<Value = Option<Peers>> {
    let entry = select(vec![
        "192.0.2.0/24",
        "192.0.2.1",
        "198.51.100.0/24",
        "2001:db8::/32",
        "list:bad",
        "name:example.org",
    ]);
    let entry = entry.prop_map(|text| match text.split_once(':') {
        Some(("list", name)) => Peer::Known(Who::List(name.to_owned())),
        Some(("name", name)) => Peer::Name(name.to_owned()),
        _ => Peer::Known(Who::Prefix(text.parse().unwrap())),
    });
    let entries = prop::collection::vec(entry, 1..3);
    prop::option::of(
        (any::<bool>(), entries).prop_map(|(is_negated, entries)| Peers {
            is_negated,
            entries,
        }),
    )
}

fn place() -> impl Strategy<Value = Where> {
    let range = (
        select(vec![Protocol::Any, Protocol::Tcp, Protocol::Udp]),
        1u16..4,
        0u16..3,
    );
    let range = range.prop_map(|(protocol, low, more)| PortRange {
        protocol,
        low,
        high: low + more,
    });
    let ports = prop_oneof![Just(Vec::new()), prop::collection::vec(range, 1..4)];
    let direction = select(vec![Both, In, Out]);
    let netns = prop_oneof![3 => Just(None), 1 => Just(Some("/run/netns/blue".into()))];
    (direction, 0u8..32, ports, peers(), peers(), netns).prop_map(
        |(direction, protocols, ports, to, from, netns)| Where {
            direction,
            protocols: match ports.is_empty() && protocols > 15 {
                true => Protocols(protocols & 31),
                false => Protocols::default(),
            },
            ports,
            to: to.filter(|_| direction != In),
            from: from.filter(|_| direction != Out),
            netns,
        },
    )
}

/// A rule, and one that is mostly much like it, before it.
fn pair() -> impl Strategy<Value = [Rule; 2]> {
    let verdict = || select(vec![Verdict::Allow, Verdict::Drop, Verdict::Reject]);
    let rule = |who| {
        (verdict(), who, place()).prop_map(|(verdict, who, place)| Rule {
            name: "r".into(),
            verdict,
            who,
            place,
            peer: Vec::new(),
        })
    };
    let who = || prop::collection::vec(condition(), 0..3);
    (
        rule(who().boxed()),
        rule(who().boxed()),
        any::<u16>(),
        0usize..4,
    )
        .prop_map(|(rule, other, like, more)| {
            let mut before = other.clone();
            let is = |bit: u16| like >> bit & 1 == 1;
            if is(0) || is(1) {
                before.who = rule.who.iter().skip(more % 3).cloned().collect();
                let entries = before.who.iter_mut().zip(&other.who);
                // With an entry more.
                for (condition, other) in entries.filter(|_| is(2)) {
                    match (&mut condition.criterion, &other.criterion) {
                        (Criterion::Exe(a), Criterion::Exe(b) | Criterion::Object(b)) => {
                            a.extend(b)
                        }
                        (Criterion::Object(a), Criterion::Object(b) | Criterion::Exe(b)) => {
                            a.extend(b)
                        }
                        (Criterion::Unit(a), Criterion::Unit(b)) => a.extend(b.iter().cloned()),
                        (Criterion::User(a), Criterion::User(b)) => a.extend(b),
                        _ => (),
                    }
                }
            }
            if is(3) || is(4) {
                before.place = rule.place.clone();
                if is(5) {
                    before.place.ports.extend(&other.place.ports);
                }
                if is(6) {
                    before.place.to = other.place.to.clone();
                }
                if is(7) {
                    before.place.from = other.place.from.clone();
                }
                if is(8) {
                    before.place.direction = Both;
                }
                if is(9) && before.place.ports.is_empty() {
                    before.place.protocols = other.place.protocols;
                }
            }
            [before, rule]
        })
}

fn holders() -> impl Strategy<Value = Vec<(u8, Program)>> {
    let numbers = prop::collection::vec(0u8..3, 1..3);
    let cgroup = select(vec![
        "/system.slice/a.service",
        "/system.slice/b.service",
        "/user.slice/user@1000.service/app.slice/a.service",
        "/user.slice/user-0.slice",
    ]);
    let container = select(vec![
        Container::None,
        Container::Unknown,
        Container::Labels([("app".to_owned(), "web".to_owned())].into()),
        Container::Labels([("team".to_owned(), String::new())].into()),
    ]);
    let package = prop::option::of(select(vec!["curl", "wget", "dash"]));
    let one = (
        numbers,
        0u32..3,
        cgroup,
        container,
        package,
        any::<u8>(),
        0u8..8,
    );
    let one = one.prop_map(|(numbers, uid, cgroup, container, package, odd, seen)| {
        let mut program = Program {
            uid,
            cgroup: cgroup.to_owned(),
            container,
            package: package.map(str::to_owned),
            altered: odd & 7 == 0,
            truncated: odd >> 3 & 7 == 0,
            ..program(&numbers)
        };
        // A digest that is not known.
        if odd >> 6 == 0 {
            let at = usize::from(odd & 1) % program.objects.len();
            program.objects[at].digest = None;
            program.exe = program.objects.first().cloned();
        }
        (seen, program)
    });
    prop::collection::vec(one, 0..4)
}

/// All flows of this small world.
fn flows() -> Vec<Flow> {
    let mut flows = Vec::new();
    for peer in HOSTS {
        for protocol in KINDS {
            for port in [None, Some(1), Some(3), Some(4), Some(9)] {
                for (is_outward, netns) in [(true, 1), (false, 1), (true, 42)] {
                    let peer: IpAddr = peer.parse().unwrap();
                    let port = port.filter(|_| protocol != Protocols::RAW);
                    flows.push(Flow {
                        is_outward,
                        protocol,
                        peer,
                        port,
                        netns,
                    });
                }
            }
        }
    }
    flows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Of random pairs of rules, one of which is told to never decide: whoever holds the socket,
    /// and however much is known of him, each decision is what it is without that rule.
    #[test]
    fn a_rule_that_is_told_never_decides(
        rules in pair(),
        holders in holders(),
        knows_name: bool,
        default in select(vec![Verdict::Allow, Verdict::Drop]),
    ) {
        let Shadowed { found, .. } = shadowed(&rules);
        let Some(told) = found.first() else {
            return Ok(());
        };
        let mut known = Known::default();
        if !knows_name {
            known.name = None;
        }
        let [with, without] = [&rules[..], &rules[..1]].map(|rules| {
            let mut policy = of_rules(default, Vec::new());
            policy.unknown = Unknown::Learn;
            let config = crate::AppConfig { rules: rules.to_vec(), ..parsed("[app]\n").unwrap().0 };
            let compiled = Policy::compile(&config, &known).unwrap();
            Policy { places: compiled.places, rules: compiled.rules, ..policy }
        });
        let seen = |policy: &Policy| -> Vec<Holder> {
            let holders = holders.iter().map(|(seen, program)| {
                match (seen, program.exe.as_ref().and_then(|exe| exe.digest)) {
                    (0, _) => Holder::Unknown,
                    (1 | 2, Some(digest)) => Holder::Executable(policy.met_by_executable(digest)),
                    _ => Holder::Known(policy.met_by(program)),
                }
            });
            let at_most = if told.but_shared { 1 } else { usize::MAX };
            holders.take(at_most).collect()
        };
        let (of_with, of_without) = (seen(&with), seen(&without));
        let is_meant = |flow: &Flow| {
            !told.but_raw || !Protocols::RAW.and(Protocols::OTHER).has(flow.protocol)
        };
        for flow in flows().into_iter().filter(is_meant) {
            let is: Decision = with.decide(&of_with, &flow);
            prop_assert_eq!(is, without.decide(&of_without, &flow), "{:?} {:?}", flow, rules);
            if let DecidedBy::Place(place) = is.by {
                prop_assert_eq!(with.places[place].rule, 0);
            }
        }
    }
}

/// The world of the property above has such rules in it, of all kinds.
#[test]
fn random_pairs_have_rules_that_never_decide() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let (mut plain, mut shared, mut of_somebody) = (0, 0, 0);
    for _ in 0..3000 {
        let rules = pair().new_tree(&mut runner).unwrap().current();
        if let Some(told) = shadowed(&rules).found.first() {
            match told.but_shared {
                true => shared += 1,
                false => plain += 1,
            }
            of_somebody += usize::from(!rules[0].who.is_empty());
        }
    }
    assert!(
        plain > 100 && shared > 3 && of_somebody > 50,
        "{plain} {shared} {of_somebody}"
    );
}
