//! What comes of somebody's offence, wherever it was seen: in a line of a log, by a
//! watch's command or at a decoy port. Of whoever is exempt nothing is counted;
//! of others the ledger counts, and says when it is enough. What is said of it and
//! counted for the screen is each caller's; bans come into force by
//! [`crate::bans::Bans::enforce`].

use std::{convert::Infallible, sync::Arc};

use jiff::Timestamp;
use weir_core::{
    Prefix,
    detect::{Finding, Offender},
    policy::{Accusation, Ledger, Outcome},
};

use crate::access::exemptions::{Exempt, Exemption, Exemptions};

/// An offence, as its jail counts it.
#[derive(Clone, Copy)]
pub struct Offence<'a> {
    /// The number of the jail in the ledger.
    pub jail: usize,
    /// The address, prefix or name that is suspected.
    pub suspect: Suspect<'a>,
    /// The line of the offence; kept as evidence.
    pub line: &'a [u8],
}

/// The suspect of an offence.
#[derive(Clone, Copy)]
pub enum Suspect<'a> {
    /// An address, with when and how often.
    Found(&'a Finding),
    /// A prefix or an address, once and now.
    Named(Prefix),
}

/// The result of judging an offence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement<R = Infallible> {
    /// No ban: the suspect is exempt.
    Exempt(Exemption),
    /// No ban: a line names a prefix, and this one inside it is exempt, or on the ignore
    /// list of the jail.
    HoldsExempt(Prefix),
    /// No ban, for a reason of the caller's own.
    Spared(R),
    /// The outcome by the jail's own rules.
    Judged(Outcome),
}

/// Judges by the exemptions of the moment when it was made; the same suspect is
/// looked up among them once, however many jails accuse it in a row.
pub struct Judge {
    exemptions: Arc<Exemptions>,
    last: Option<(Prefix, Option<Exemption>)>,
}

impl Judge {
    /// A judge by the exemptions in force now.
    pub fn new(exempt: &Exempt) -> Self {
        Self {
            exemptions: exempt.current(),
            last: None,
        }
    }

    /// Judges an offence.
    pub fn judge(&mut self, ledger: &Ledger, offence: Offence<'_>, now: Timestamp) -> Judgement {
        self.judge_unless(ledger, offence, now, || None)
    }

    /// The same, unless there is a reason to spare a suspect who is not exempt.
    pub fn judge_unless<R>(
        &mut self,
        ledger: &Ledger,
        Offence {
            jail,
            suspect,
            line,
        }: Offence<'_>,
        now: Timestamp,
        spare: impl FnOnce() -> Option<R>,
    ) -> Judgement<R> {
        let prefix = match suspect {
            Suspect::Found(finding) => finding.offender.prefix(),
            Suspect::Named(prefix) => Some(prefix),
        };
        if let Some(exemption) = prefix.and_then(|prefix| self.exemption(prefix)) {
            return Judgement::Exempt(exemption.clone());
        }
        if let Suspect::Found(finding) = suspect
            && let Offender::Prefix(prefix) = finding.offender
            && let Some(inside) = self.exempt_inside(ledger, jail, prefix)
        {
            return Judgement::HoldsExempt(inside);
        }
        if let Some(reason) = spare() {
            return Judgement::Spared(reason);
        }
        Judgement::Judged(match suspect {
            Suspect::Found(finding) => ledger.record(jail, finding, line, now),
            Suspect::Named(prefix) => ledger.record_prefix(jail, prefix, line, now),
        })
    }

    /// What of a prefix may not be banned although the rest may. (What a person or
    /// a watch names may be that wide: the exempt addresses inside it pass.)
    fn exempt_inside(&self, ledger: &Ledger, jail: usize, prefix: Prefix) -> Option<Prefix> {
        let ignore = ledger.jails().get(jail).map(|jail| &jail.ignore);
        // All of it: the ledger says so.
        if ignore.is_some_and(|ignore| ignore.covering(prefix).is_some()) {
            return None;
        }
        let exempt = self.exemptions.set().inside(prefix);
        exempt.or_else(|| ignore?.inside(prefix))
    }

    /// Judges many findings of one moment, as one after the other.
    pub fn judge_all(
        &mut self,
        ledger: &Ledger,
        accusations: &[Accusation<'_>],
        now: Timestamp,
    ) -> impl Iterator<Item = Judgement> + use<> {
        let mut apart = vec![];
        let mut others = Vec::with_capacity(accusations.len());
        for (number, accusation) in accusations.iter().enumerate() {
            let prefix = accusation.offender.prefix();
            if let Some(exemption) = prefix.and_then(|prefix| self.exemption(prefix)) {
                apart.push((number, Judgement::Exempt(exemption.clone())));
            } else if let Offender::Prefix(prefix) = *accusation.offender
                && let Some(inside) = self.exempt_inside(ledger, accusation.jail, prefix)
            {
                apart.push((number, Judgement::HoldsExempt(inside)));
            } else {
                others.push(*accusation);
            }
        }
        let mut outcomes = ledger.record_batch(&others, now).into_iter();
        let mut apart = apart.into_iter().peekable();
        (0..accusations.len()).map(move |number| {
            match apart.next_if(|(judged, _)| *judged == number) {
                Some((_, judgement)) => judgement,
                None => Judgement::Judged(outcomes.next().expect("there is one for each")),
            }
        })
    }

    /// The exemption that holds all of a prefix.
    fn exemption(&mut self, prefix: Prefix) -> Option<&Exemption> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != prefix) {
            self.last = Some((prefix, self.exemptions.holding(prefix)));
        }
        self.last
            .as_ref()
            .and_then(|(_, exemption)| exemption.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use weir_core::{
        Action, PortSet, PrefixSet,
        detect::Clock,
        policy::{Ignored, Jail, JailLimits},
    };

    use super::*;

    fn exempting(prefix: &str) -> Exempt {
        let mut exemptions = Exemptions::default();
        exemptions.add(prefix.parse().unwrap(), "it is allowed");
        let exempt = Exempt::default();
        assert!(exempt.replace(exemptions, Arc::default()));
        exempt
    }

    /// Each with the second failure.
    fn ledger(jails: usize) -> Ledger {
        let jail = |number| Jail {
            name: format!("jail-{number}"),
            limits: JailLimits {
                max_retry: 2,
                ..JailLimits::default()
            },
            scope: PortSet::all(),
            action: Action::Drop,
            ignore: PrefixSet::default(),
            names_prefixes: false,
        };
        Ledger::new((0..jails).map(jail).collect())
    }

    fn found(addr: &str, now: Timestamp) -> Finding {
        Finding {
            offender: addr.parse::<IpAddr>().unwrap().into(),
            time: now,
            clock: Clock::Stamp,
            user: None,
            attempts: 1,
            pattern: 0,
        }
    }

    #[test]
    fn who_is_exempt_is_neither_counted_nor_spared() {
        let (exempt, ledger) = (exempting("192.0.2.0/24"), ledger(1));
        let mut judge = Judge::new(&exempt);
        let now = Timestamp::now();
        let spared = || -> Option<()> { panic!("nobody asks") };
        for named in ["192.0.2.7", "192.0.2.0/25", "192.0.2.0/24"] {
            let offence = Offence {
                jail: 0,
                suspect: Suspect::Named(named.parse().unwrap()),
                line: b"",
            };
            for _ in 0..3 {
                let judgement = judge.judge_unless(&ledger, offence, now, spared);
                assert!(
                    matches!(&judgement, Judgement::Exempt(by) if by.reason == "it is allowed"),
                    "{named}: {judgement:?}"
                );
            }
        }
        assert_eq!(ledger.stats(0).unwrap().tracked, 0);
        // Something wider holds others as well.
        let offence = Offence {
            jail: 0,
            suspect: Suspect::Named("192.0.0.0/16".parse().unwrap()),
            line: b"",
        };
        let judgement = judge.judge_unless(&ledger, offence, now, || Some("why"));
        assert_eq!(judgement, Judgement::Spared("why"));
        assert_eq!(ledger.stats(0).unwrap().tracked, 0);
    }

    #[test]
    fn a_prefix_of_a_line_that_holds_somebody_exempt_is_not_counted() {
        let mut jail = ledger(1).jails()[0].clone();
        jail.ignore = ["2001:db8:1::7", "203.0.113.0/24"]
            .map(|prefix| prefix.parse().unwrap())
            .into_iter()
            .collect();
        let (exempt, ledger) = (exempting("192.0.2.7"), Ledger::new(vec![jail]));
        let mut judge = Judge::new(&exempt);
        let now = Timestamp::now();
        let mut judged = |prefix: &str| {
            let finding = Finding {
                offender: Offender::Prefix(prefix.parse().unwrap()),
                ..found("192.0.2.7", now)
            };
            let offence = Offence {
                jail: 0,
                suspect: Suspect::Found(&finding),
                line: b"",
            };
            judge.judge(&ledger, offence, now)
        };
        for (prefix, inside) in [
            ("192.0.2.0/24", "192.0.2.7"),
            ("192.0.0.0/16", "192.0.2.7"),
            ("2001:db8:1::/48", "2001:db8:1::7"),
            ("203.0.0.0/16", "203.0.113.0/24"),
        ] {
            let held = Judgement::HoldsExempt(inside.parse().unwrap());
            assert_eq!(judged(prefix), held, "{prefix}");
        }
        let listed = Ignored::Listed("203.0.113.0/24".parse().unwrap());
        let listed = Judgement::Judged(Outcome::Ignored(listed));
        assert_eq!(judged("203.0.113.128/25"), listed);
        let counted = Judgement::Judged(Outcome::Counted { failures: 1, of: 2 });
        assert_eq!(judged("192.0.2.128/25"), counted);
        assert_eq!(judged("2001:db8:2::/48"), counted);
    }

    #[test]
    fn many_are_judged_as_one_after_the_other() {
        let exempt = exempting("192.0.2.0/24");
        let now = Timestamp::now();
        let who = [
            "203.0.113.9",
            "192.0.2.7",
            "192.0.2.7",
            "2001:db8::7",
            "127.0.0.1",
            "203.0.113.9",
            "192.0.2.8",
            "2001:db8::8",
        ];
        let mut findings = who.map(|addr| found(addr, now));
        findings[2].offender = Offender::Prefix("192.0.0.0/16".parse().unwrap());
        findings[6].offender = Offender::Prefix("2001:db8:9::/48".parse().unwrap());
        let (one, all) = (ledger(1), ledger(1));
        let mut judge = Judge::new(&exempt);
        let expected = findings.each_ref().map(|finding| {
            let offence = Offence {
                jail: 0,
                suspect: Suspect::Found(finding),
                line: b"the line",
            };
            judge.judge(&one, offence, now)
        });
        let exempted = |judged: &&Judgement| matches!(judged, Judgement::Exempt(_));
        assert_eq!(expected.iter().filter(exempted).count(), 1);
        assert!(matches!(expected[2], Judgement::HoldsExempt(_)));
        let banned = |judged: &&Judgement| matches!(judged, Judgement::Judged(Outcome::Ban(_)));
        assert_eq!(expected.iter().filter(banned).count(), 2);
        let accusations = findings
            .each_ref()
            .map(|finding| Accusation::new(0, finding, b"the line"));
        let judged = Judge::new(&exempt).judge_all(&all, &accusations, now);
        assert_eq!(judged.collect::<Vec<_>>(), expected);
    }

    /// A ban of their network would drop the packets of the ignored one.
    #[test]
    fn neighbours_of_an_ignored_address_are_banned_by_their_own() {
        let exempt = exempting("192.0.2.7");
        let now = Timestamp::now();
        let banned = |ignored: &[&str], who: &str| {
            let ignore = ignored.iter().map(|prefix| prefix.parse().unwrap());
            let jail = |name: &str, ignore: PrefixSet| Jail {
                name: name.into(),
                limits: JailLimits {
                    max_retry: 1,
                    ..JailLimits::default()
                },
                scope: PortSet::all(),
                action: Action::Drop,
                ignore,
                names_prefixes: false,
            };
            // What another jail ignores is nothing to this one.
            let other = ["2001:db8:8::9".parse().unwrap()].into_iter().collect();
            let ledger = Ledger::new(vec![jail("sshd", ignore.collect()), jail("www", other)]);
            ledger.set_own(&["2001:db8:5::1".parse().unwrap()]);
            let finding = found(who, now);
            let offence = Offence {
                jail: 0,
                suspect: Suspect::Found(&finding),
                line: b"",
            };
            match Judge::new(&exempt).judge(&ledger, offence, now) {
                Judgement::Judged(Outcome::Ban(ban)) => ban.subject.to_string(),
                other => panic!("{other:?}"),
            }
        };
        let own = "2001:db8:7::8";
        for inside in ["2001:db8:7::7", "2001:db8:7:0:7::/80"] {
            assert_eq!(banned(&[inside], own), own);
            assert_eq!(banned(&[inside], "2001:db8:8::8"), "2001:db8:8::/64");
        }
        assert_eq!(banned(&["192.0.2.9"], own), "2001:db8:7::/64");
        assert_eq!(banned(&[], "2001:db8:5::8"), "2001:db8:5::8");
    }

    #[test]
    fn each_jail_counts_for_itself_and_bans() {
        let (exempt, ledger) = (exempting("192.0.2.7"), ledger(2));
        let mut judge = Judge::new(&exempt);
        let now = Timestamp::now();
        for who in ["192.0.2.7", "203.0.113.9", "192.0.2.7", "2001:db8::7"] {
            let finding = found(who, now);
            let mut judged = |jail| {
                let offence = Offence {
                    jail,
                    suspect: Suspect::Found(&finding),
                    line: b"the line",
                };
                judge.judge(&ledger, offence, now)
            };
            if who == "192.0.2.7" {
                assert!(matches!(judged(0), Judgement::Exempt(_)));
                continue;
            }
            let one = Judgement::Judged(Outcome::Counted { failures: 1, of: 2 });
            assert_eq!((judged(0), judged(1)), (one.clone(), one));
            for (jail, name) in ["jail-0", "jail-1"].into_iter().enumerate() {
                let Judgement::Judged(Outcome::Ban(ban)) = judged(jail) else {
                    panic!("{who}: the second failure bans");
                };
                assert_eq!(ban.producer.ledger_name().as_deref(), Some(name));
                assert!(
                    ban.subject
                        .prefix()
                        .covers(finding.offender.prefix().unwrap())
                );
            }
            let ignored = Outcome::Ignored(Ignored::BeforeBan);
            assert_eq!(judged(0), Judgement::Judged(ignored));
            let old = found("203.0.113.10", now - JailLimits::default().find_time * 2);
            let offence = Offence {
                jail: 0,
                suspect: Suspect::Found(&old),
                line: b"",
            };
            let too_old = Judgement::Judged(Outcome::TooOld);
            assert_eq!(judge.judge(&ledger, offence, now), too_old);
        }
    }
}
