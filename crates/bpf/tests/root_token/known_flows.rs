//! Packets of flows that are known, when the rules about them change: the match of a gateway
//! notes in a flow's entry what it has found, and the note must not outlive the rules.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// An identity that no packet here has a token of.
const OTHER: IdentityPrefix = [9; 16];
/// A port that no packet here goes to.
const FAR: u16 = 9999;

/// Ends what runs beside, also when the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Known {
    fn syn_of(&self, (source, dest): Flow, isn: u32) -> Vec<u8> {
        self.frame(source, dest, isn, epoch(), &[], 0)
    }

    /// An acknowledgement, with the options of the SYN.
    fn later_of(&self, flow: Flow) -> Vec<u8> {
        let mut frame = self.syn_of(flow, 7);
        let flags = if flow.0.0.is_ipv6() { 40 } else { 20 } + 14 + 13;
        frame[flags] = 0x10;
        frame
    }

    /// The policy with another requirement before it.
    fn behind(&self, ports: (u16, u16), drops: bool) -> TokenPolicy {
        let mut policy = self.policy();
        let first = Requirement {
            ports: vec![ports],
            udp_ports: Vec::new(),
            networks: None,
            identities: vec![OTHER],
            drops,
            scope: Scope::Flow,
            forwarded: None,
        };
        policy.requirements.insert(0, first);
        policy
    }

    /// The policy with its requirement changed.
    fn with(&self, change: impl FnOnce(&mut Requirement)) -> TokenPolicy {
        let mut policy = self.policy();
        change(&mut policy.requirements[0]);
        policy
    }

    fn names_another(&self) -> TokenPolicy {
        self.with(|requirement| requirement.identities = vec![OTHER])
    }

    fn of_another_port(&self) -> TokenPolicy {
        self.with(|requirement| requirement.ports = vec![(FAR, FAR)])
    }

    fn of_other_sources(&self) -> TokenPolicy {
        let networks = ["203.0.113.0/24", "2001:db8:ff::/48"].map(|text| text.parse().unwrap());
        self.with(|requirement| requirement.networks = Some(networks.to_vec()))
    }
}

#[test]
fn root_a_known_flow_is_judged_again_when_rules_change() {
    let (_lab, tokens, loaded) = Lab::load("known");
    let known = Known::new();
    let matches = |frame: &[u8]| {
        let ran = prog_test_run::packet(loaded.matcher(), frame, 1).unwrap();
        ran.verdict == MATCH
    };
    let count = |requirement: usize| -> Vec<(&str, u64)> {
        let counts = tokens.outcomes(requirement).unwrap();
        let named = Outcome::ALL.into_iter().zip(counts);
        named
            .filter(|(_, count)| *count > 0)
            .map(|(outcome, count)| (outcome.name(), count))
            .collect()
    };
    for v6 in [false, true] {
        let flow = flow(v6, 40_000);
        let (syn, later) = (known.syn_of(flow, 7), known.later_of(flow));
        // No requirement at all, before any and after.
        assert!(!matches(&later), "{flow:?}");
        tokens.put_policy(&known.policy()).unwrap();
        assert!(!matches(&later));
        assert!(matches(&syn));
        assert!(matches(&syn), "its handshake is not over");
        for _ in 0..5 {
            assert!(matches(&later));
        }
        assert!(!matches(&syn), "its handshake is over");
        let counts = [("valid", 2), ("proven", 5), ("replayed", 1), ("no-flow", 1)];
        assert_eq!(count(0), counts);

        for (name, policy, is_let_in, first, second) in [
            ("the same", known.policy(), true, Some("proven"), None),
            (
                "another program is named",
                known.names_another(),
                false,
                Some("not-named"),
                None,
            ),
            (
                "it is named again",
                known.policy(),
                true,
                Some("proven"),
                None,
            ),
            (
                "it is the second requirement",
                known.behind((FAR, FAR), true),
                true,
                None,
                Some("proven"),
            ),
            (
                "another requirement comes first",
                known.behind(PORTS, true),
                false,
                Some("not-named"),
                None,
            ),
            (
                "one that only logs comes first",
                known.behind(PORTS, false),
                true,
                Some("not-named"),
                None,
            ),
            ("other sources", known.of_other_sources(), false, None, None),
            ("another port", known.of_another_port(), false, None, None),
            ("no requirement", TokenPolicy::default(), false, None, None),
            (
                "all of it again",
                known.policy(),
                true,
                Some("proven"),
                None,
            ),
        ] {
            tokens.put_policy(&policy).unwrap();
            for times in 1..=3 {
                assert_eq!(matches(&later), is_let_in, "{name}, {flow:?}, {times}");
                for (number, outcome) in [first, second].into_iter().enumerate() {
                    let expected = Vec::from_iter(outcome.map(|outcome| (outcome, times)));
                    assert_eq!(count(number), expected, "{name}, {flow:?}, {number}");
                }
            }
        }

        // A retired key begins no connection any more, and those that there are go on.
        let mut retired = known.policy();
        retired.keys.clear();
        retired.claims.clear();
        tokens.put_policy(&retired).unwrap();
        assert!(matches(&later) && matches(&later));
        assert!(!matches(&known.syn_of(flow, 8)));
        assert_eq!(count(0), [("proven", 2), ("unknown-key", 1)]);

        // The same ports once more: another SYN, whose handshake is to come.
        tokens.put_policy(&known.policy()).unwrap();
        let anew = known.syn_of(flow, 8);
        assert!(matches(&anew) && matches(&anew));
        assert!(matches(&later) && matches(&later));
        assert!(!matches(&anew));
        assert_eq!(count(0), [("valid", 2), ("proven", 2), ("replayed", 1)]);
    }
}

#[test]
fn root_known_flows_are_judged_as_the_reference_does_while_rules_change() {
    let (_lab, tokens, loaded) = Lab::load("changes");
    let known = Known::new();
    // Is a requirement about the flows, and does it name their program?
    let policies = [
        (known.policy(), Some(true)),
        (known.behind((FAR, FAR), true), Some(true)),
        (known.names_another(), Some(false)),
        (known.behind(PORTS, true), Some(false)),
        (known.of_other_sources(), None),
        (known.of_another_port(), None),
        (TokenPolicy::default(), None),
    ];
    let mut random = Random(0xf10e5);
    let mut flows = HashMap::<Flow, (u32, bool)>::new();
    let mut matched = 0;
    for _ in 0..300 {
        let (policy, named) = &policies[random.below(policies.len())];
        tokens.put_policy(policy).unwrap();
        for _ in 0..100 {
            let flow = flow(random.below(2) == 1, 40_000 + random.below(6) as u16);
            let isn = random.below(3) as u32;
            let is_syn = random.below(4) == 0;
            let frame = match is_syn {
                true => known.syn_of(flow, isn),
                false => known.later_of(flow),
            };
            let expected = *named == Some(true)
                && match flows.get(&flow) {
                    Some((before, is_used)) if is_syn && *before == isn => !is_used,
                    Some(_) => true,
                    None => is_syn,
                };
            match flows.get_mut(&flow) {
                // What no requirement is about, nobody looks up.
                _ if named.is_none() => {}
                Some((_, is_used)) if !is_syn => *is_used = true,
                Some((before, _)) if *before == isn => {}
                _ if is_syn && expected => {
                    flows.insert(flow, (isn, false));
                }
                _ => {}
            }
            let ran = prog_test_run::packet(loaded.matcher(), &frame, 1).unwrap();
            assert_eq!(
                ran.verdict == MATCH,
                expected,
                "{flow:?} {named:?} {is_syn}"
            );
            matched += u32::from(expected);
        }
    }
    assert!(matched > 1_000, "{matched}");
}

#[test]
fn root_what_other_processors_note_does_not_outlive_the_rules() {
    let (_lab, tokens, loaded) = Lab::load("noted");
    let known = Known::new();
    tokens.put_policy(&known.policy()).unwrap();
    let matcher = loaded.matcher();
    let run = |frame: &[u8], repeat| {
        let ran = prog_test_run::packet(matcher, frame, repeat).unwrap();
        ran.verdict == MATCH
    };
    let flows = [flow(false, 40_000), flow(true, 40_000)];
    for flow in flows {
        assert!(run(&known.syn_of(flow, 7), 1));
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&is_over);
        // As many processors as there are ask about both flows all the time.
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for flow in flows {
                        run(&known.later_of(flow), 1_000);
                    }
                }
            });
        }
        for number in 0..100 {
            let is_named = number % 2 == 1;
            let policy = match is_named {
                true => known.policy(),
                false => known.names_another(),
            };
            tokens.put_policy(&policy).unwrap();
            for flow in flows {
                let is_let_in = run(&known.later_of(flow), 1);
                assert_eq!(is_let_in, is_named, "{flow:?} after {number} changes");
            }
        }
    });
}

/// Where a requirement only logs, whoever begins a connection with a SYN that proves nothing is
/// not taken for who had its ports before.
#[test]
fn root_a_logged_connection_of_the_same_ports_is_another_one() {
    let (_lab, tokens, loaded) = Lab::load("logged");
    let known = Known::new();
    let matches = |frame: &[u8]| {
        let ran = prog_test_run::packet(loaded.matcher(), frame, 1).unwrap();
        ran.verdict == MATCH
    };
    for v6 in [false, true] {
        let flow = flow(v6, 40_200);
        let later = known.later_of(flow);
        let mut unsigned = known.syn_of(flow, 9);
        let options = unsigned.len() - 20;
        unsigned[options + 2] = 0; // another experiment's option
        tokens.put_policy(&known.policy()).unwrap();
        assert!(matches(&known.syn_of(flow, 7)) && matches(&later));
        assert!(!matches(&unsigned));
        assert!(matches(&later), "it was dropped, and changes nothing");
        let logs = known.with(|requirement| requirement.drops = false);
        tokens.put_policy(&logs).unwrap();
        assert!(matches(&unsigned), "it is logged");
        tokens.put_policy(&known.policy()).unwrap();
        assert!(!matches(&later), "nobody has proven this one");
    }
}
