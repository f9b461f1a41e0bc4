//! Rules as the kernel takes them.

use std::sync::Arc;

use weir_core::Prefix;

use super::{MAX_NETWORKS, MAX_PORTS, MAX_RULES};
use crate::{
    abi,
    error::{Error, Result},
    mapped,
    skeleton::identity::types::ident_rule,
};

/// What becomes of what a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Packets of the connection pass.
    Allow,
    /// Packets of the connection are dropped.
    Drop,
    /// connect fails with EPERM; what is not a connection is dropped.
    Reject,
}

impl Verdict {
    pub(super) fn raw(self) -> u8 {
        (match self {
            Self::Allow => abi::IDENT_ALLOW,
            Self::Drop => abi::IDENT_DROP,
            Self::Reject => abi::IDENT_REJECT,
        }) as u8
    }
}

/// What becomes of programs that are not known yet, where a rule is about some programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// Unknown programs may send and receive.
    Allow,
    /// They may, and each decision is told.
    Learn,
    /// They may not, until they are known: what is dropped meanwhile is sent again by TCP.
    Drop,
}

impl Unknown {
    pub(super) fn raw(self) -> u8 {
        (match self {
            Self::Allow => abi::IDENT_ALLOW,
            Self::Learn => abi::IDENT_LEARN,
            Self::Drop => abi::IDENT_PENDING,
        }) as u8
    }
}

/// Networks of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Networks {
    /// IPv4 and IPv6.
    pub prefixes: Arc<[Prefix]>,
    /// The rule holds outside of them.
    pub outside: bool,
}

/// Where a rule holds; for whom is a bit of [`RuleBits`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What the rule says.
    pub verdict: Verdict,
    /// It is about some programs, not about all.
    pub has_who: bool,
    /// The rule holds for what goes out: connections that the program begins.
    pub is_out: bool,
    /// The rule holds for what comes in.
    pub is_in: bool,
    /// `IDENT_TCP` and so on; 0: any, but that raw sockets are allowed by name only.
    pub protocols: u8,
    /// Ranges of ports of the peer; of what comes in, one's own. None: any.
    pub ports: Vec<(u16, u16)>,
    /// Peers of what goes out; `None`: all.
    pub outward: Option<Networks>,
    /// Peers of what comes in; `None`: all.
    pub inward: Option<Networks>,
    /// The inode of a network namespace; 0: any.
    pub netns: u64,
}

impl Rule {
    pub(super) fn raw(&self) -> ident_rule {
        let mut raw = ident_rule {
            verdict: self.verdict.raw(),
            has_who: self.has_who.into(),
            protocols: self.protocols,
            ranges: self.ports.len() as u8,
            netns: self.netns,
            ..ident_rule::default()
        };
        let directions = [
            (self.is_out, abi::IDENT_OUT, &self.outward),
            (self.is_in, abi::IDENT_IN, &self.inward),
        ];
        for (is_wanted, bit, networks) in directions {
            raw.directions |= if is_wanted { bit as u8 } else { 0 };
            let is_outside = networks.as_ref().is_some_and(|networks| networks.outside);
            raw.not_in |= if is_outside { bit as u8 } else { 0 };
        }
        for (to, (low, high)) in raw.ports.iter_mut().zip(&self.ports) {
            to.low = *low;
            to.high = *high;
        }
        raw
    }

    fn networks(&self) -> usize {
        let lists = [&self.outward, &self.inward].into_iter().flatten();
        let prefixes = lists.flat_map(|networks| networks.prefixes.iter());
        prefixes.map(|prefix| mapped::key_count(*prefix)).sum()
    }
}

/// The rules of a configuration, the first that holds first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// At most [`MAX_RULES`].
    pub rules: Vec<Rule>,
    /// Where none holds.
    pub default: Verdict,
    /// See [`Unknown`].
    pub unknown: Unknown,
    /// Some are about users.
    pub by_uid: bool,
    /// Some are about control groups.
    pub by_cgroup: bool,
    /// Some are about what two processes of one program differ in.
    pub by_process: bool,
    /// Nothing is dropped, and it is told what would be.
    pub observe: bool,
    /// Each decision is told.
    pub tell_all: bool,
    /// What no rule is about is dropped and told until [`Identity::put_policy`] says more
    /// of it; not what `default` says.
    ///
    /// [`Identity::put_policy`]: super::Identity::put_policy
    pub asks: bool,
}

impl Policy {
    pub(super) fn raw_default(&self) -> u8 {
        match self.asks {
            true => abi::IDENT_PENDING as u8,
            false => self.default.raw(),
        }
    }

    pub(super) fn flags(&self) -> u8 {
        let flags = [
            (self.by_uid, abi::IDENT_BY_UID),
            (self.by_cgroup, abi::IDENT_BY_CGROUP),
            (self.by_process, abi::IDENT_BY_SPACE),
            (self.observe, abi::IDENT_OBSERVE),
            (self.tell_all, abi::IDENT_TELL_ALL),
        ];
        let set = flags.into_iter().filter(|(is_set, _)| *is_set);
        set.fold(0, |all, (_, flag)| all | flag as u8)
    }

    pub(super) fn check(&self) -> Result<()> {
        let refused = |why: String| Err(Error::refused("put rules about programs into force", why));
        if self.rules.len() > MAX_RULES {
            return refused(format!(
                "there are {}: at most {MAX_RULES}",
                self.rules.len()
            ));
        }
        if let Some(most) = self.rules.iter().map(|rule| rule.ports.len()).max()
            && most > MAX_PORTS
        {
            return refused(format!(
                "one has {most} ranges of ports: at most {MAX_PORTS}"
            ));
        }
        let networks: usize = self.rules.iter().map(Rule::networks).sum();
        if networks > MAX_NETWORKS {
            return refused(format!(
                "they have {networks} networks: at most {MAX_NETWORKS}"
            ));
        }
        Ok(())
    }
}

/// Rules by their numbers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RuleBits(pub(super) [u64; abi::IDENT_RULE_WORDS as usize]);

impl RuleBits {
    /// Adds a rule; those from [`MAX_RULES`] on there are not.
    pub fn insert(&mut self, rule: usize) {
        if let Some(word) = self.0.get_mut(rule / 64) {
            *word |= 1 << (rule % 64);
        }
    }

    /// Is the rule with this number in the set?
    pub fn contains(&self, rule: usize) -> bool {
        let word = self.0.get(rule / 64);
        word.is_some_and(|word| word >> (rule % 64) & 1 == 1)
    }
}

impl FromIterator<usize> for RuleBits {
    fn from_iter<I: IntoIterator<Item = usize>>(rules: I) -> Self {
        let mut bits = Self::default();
        rules.into_iter().for_each(|rule| bits.insert(rule));
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_have_rules_of_each_word() {
        let bits: RuleBits = [0, 63, 64, 1023, 1024].into_iter().collect();
        for rule in [0, 63, 64, 1023] {
            assert!(bits.contains(rule), "{rule}");
        }
        assert!(!bits.contains(1) && !bits.contains(1024));
    }

    #[test]
    fn what_the_kernel_has_no_room_for_is_refused() {
        let rule = Rule {
            verdict: Verdict::Drop,
            has_who: false,
            is_out: true,
            is_in: true,
            protocols: 0,
            ports: vec![(1, 2)],
            outward: None,
            inward: None,
            netns: 0,
        };
        let mut policy = Policy {
            rules: vec![rule; MAX_RULES],
            default: Verdict::Allow,
            unknown: Unknown::Allow,
            by_uid: false,
            by_cgroup: false,
            by_process: false,
            observe: false,
            tell_all: false,
            asks: false,
        };
        policy.check().unwrap();
        policy.rules[0].ports = vec![(1, 2); MAX_PORTS + 1];
        assert!(
            policy
                .check()
                .unwrap_err()
                .to_string()
                .contains("at most 8")
        );
        policy.rules[0].ports.clear();
        policy.rules.push(policy.rules[0].clone());
        let error = policy.check().unwrap_err().to_string();
        assert!(error.contains("1025: at most 1024"), "{error}");
    }
}
