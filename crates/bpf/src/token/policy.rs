//! What tokens are wanted and given, as the kernel takes it.

use std::hash::{DefaultHasher, Hash, Hasher};

use weir_core::Prefix;

use super::{IdentityPrefix, MAX_CLAIMS, MAX_IDENTITIES, MAX_NETWORKS, MAX_REQUIREMENTS, PORTS};
use crate::{
    abi,
    error::{Error, Result},
    mapped,
};

/// What a token is about.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The connection: it is in the SYN.
    #[default]
    Flow,
    /// Each segment, with what it carries, as well.
    Payload,
    /// No token: each segment has the signature of DAF, which names no program.
    Daf,
}

impl Scope {
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Flow => abi::TOKEN_SCOPE_FLOW,
            Self::Payload => abi::TOKEN_SCOPE_PAYLOAD,
            Self::Daf => abi::TOKEN_SCOPE_DAF,
        }
    }
}

/// What a requirement about forwarded packets has beside others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Forwarded {
    /// Networks to which the packets go; never empty.
    pub to: Vec<Prefix>,
    /// For so many seconds after it has come into force, connections that are not known are
    /// taken for such that were there before; 0: none is.
    pub takes_up: u32,
}

/// Ports that want a token, and of whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// TCP ports of this host, as ranges with both ends in them.
    pub ports: Vec<(u16, u16)>,
    /// UDP ports of this host, likewise.
    pub udp_ports: Vec<(u16, u16)>,
    /// Sources that it is about; `None`: all.
    pub networks: Option<Vec<Prefix>>,
    /// Identities whose tokens open the port.
    pub identities: Vec<IdentityPrefix>,
    /// What has none is dropped, and not only counted.
    pub drops: bool,
    /// What the tokens at the TCP ports are about.
    pub scope: Scope,
    /// It is about packets that this host forwards, and not about its sockets; `None`: it is
    /// about these.
    pub forwarded: Option<Forwarded>,
}

impl Requirement {
    /// What one about forwarded packets is known by from one policy to the next: ports and
    /// networks, and not whom it names. Never 0.
    pub(super) fn name(&self) -> u64 {
        // Its keys are always the same ones.
        let mut hasher = DefaultHasher::new();
        (
            &self.ports,
            &self.udp_ports,
            &self.networks,
            &self.forwarded,
        )
            .hash(&mut hasher);
        hasher.finish().max(1)
    }
}

/// An identity that a token may claim, with the key that belongs to it.
#[derive(Clone, PartialEq, Eq)]
pub struct Claim {
    /// The id of the secret of which the key was made.
    pub key_id: u8,
    /// The key of SipHash.
    pub key: [u64; 2],
    /// The identity whose tokens are made or checked with the key.
    pub identity: IdentityPrefix,
}

/// The key of DAF, as the kernel has it: HMAC-SHA256 before the first byte of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DafStates {
    /// The inner hash behind the block of the key.
    pub inner: [u32; 8],
    /// The outer hash behind that.
    pub outer: [u32; 8],
}

/// Where tokens stand that go to a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Conduit {
    /// None go there, though a larger network gets them.
    Nothing = abi::TOKEN_BY_NOTHING,
    /// In an option of the TCP header of a SYN.
    TcpOption = abi::TOKEN_BY_TCP_OPTION,
    /// In an option of the IPv4 header, or an IPv6 destination option: what UDP has.
    IpOption = abi::TOKEN_BY_IP_OPTION,
}

/// All that holds for tokens.
#[derive(Clone, Default)]
pub struct TokenPolicy {
    /// To whom connections are signed.
    pub sign_to: Vec<(Prefix, Conduit)>,
    /// What their tokens are about; the payload goes with TCP options only.
    pub sign_scope: Scope,
    /// The network namespace at whose interfaces segments are signed, as the kernel names it
    /// ([`super::network_namespace`]).
    pub netns: u64,
    /// To whom UDP datagrams are signed.
    pub sign_udp_to: Vec<(Prefix, Conduit)>,
    /// Networks to which, and from which, tokens stay at an uplink.
    pub keep: Vec<Prefix>,
    /// The first one that is about a port and a source decides.
    pub requirements: Vec<Requirement>,
    /// The ids of keys that are accepted.
    pub keys: Vec<u8>,
    /// Each identity of a requirement with each of these keys.
    pub claims: Vec<Claim>,
    /// The key of DAF; `None`: nothing goes by its signatures.
    pub daf: Option<DafStates>,
}

impl TokenPolicy {
    /// A number for each UDP port, which is another one if tokens are wanted of other sources
    /// there; 0: of none.
    pub(super) fn udp_sources(&self) -> Vec<u64> {
        let mut all = vec![0_u64; PORTS];
        let of_sockets = self.requirements.iter();
        for requirement in of_sockets.filter(|one| one.forwarded.is_none()) {
            let mut networks = requirement.networks.clone();
            networks.iter_mut().for_each(|all| all.sort_unstable());
            // Its keys are always the same ones.
            let mut hasher = DefaultHasher::new();
            networks.hash(&mut hasher);
            let sources = hasher.finish();
            let ranges = requirement.udp_ports.iter();
            for port in ranges.flat_map(|(low, high)| *low..=*high) {
                let of = &mut all[usize::from(port)];
                // In any order of the requirements.
                *of = of.wrapping_add(sources).max(1);
            }
        }
        all
    }

    pub(super) fn check(&self) -> Result<()> {
        let by_ip = |(_, conduit): &(Prefix, Conduit)| *conduit == Conduit::IpOption;
        if self.sign_scope == Scope::Payload
            && let Some((prefix, _)) = self.sign_to.iter().find(|to| by_ip(to))
        {
            return Err(Error::refused(
                "put the policy of tokens into force",
                format!("segments to {prefix} have their tokens in the TCP header, not in IP's"),
            ));
        }
        let scopes = self
            .requirements
            .iter()
            .map(|requirement| requirement.scope);
        let mut by_daf = scopes.chain([self.sign_scope]);
        if self.daf.is_none() && by_daf.any(|scope| scope == Scope::Daf) {
            return Err(Error::refused(
                "put the policy of tokens into force",
                "there is no key for signatures of DAF",
            ));
        }
        let for_programs = |one: &&Requirement| {
            one.scope == Scope::Daf && !(one.identities.is_empty() && one.udp_ports.is_empty())
        };
        if self.requirements.iter().any(|one| for_programs(&one)) {
            return Err(Error::refused(
                "put the policy of tokens into force",
                "a signature of DAF names no program, and is of TCP",
            ));
        }
        let networks = self.requirements.iter();
        let networks = networks.flat_map(|requirement| {
            let to = requirement.forwarded.iter().flat_map(|of| &of.to);
            requirement.networks.iter().flatten().chain(to)
        });
        let signed_to = self.sign_to.iter().chain(&self.sign_udp_to);
        let keys = networks
            .chain(signed_to.map(|(prefix, _)| prefix))
            .chain(&self.keep);
        let networks: usize = keys.map(|prefix| mapped::key_count(*prefix)).sum();
        let identities = self.requirements.iter().map(|r| r.identities.len());
        let limits = [
            (self.requirements.len(), MAX_REQUIREMENTS, "requirements"),
            (networks, MAX_NETWORKS, "networks"),
            (identities.sum(), MAX_IDENTITIES, "identities"),
            (
                self.claims.len(),
                MAX_CLAIMS,
                "identities times accepted keys",
            ),
        ];
        match limits.iter().find(|(count, most, _)| count > most) {
            None => Ok(()),
            Some((count, most, what)) => Err(Error::refused(
                "put the policy of tokens into force",
                format!("it has {count} {what}: at most {most}"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_sources_of_a_port_are_told_from_the_same() {
        let requirement = |networks: Option<&[&str]>, ports| Requirement {
            ports: Vec::new(),
            udp_ports: vec![ports],
            networks: networks.map(|all| all.iter().map(|one| one.parse().unwrap()).collect()),
            identities: vec![[1; 16]],
            drops: true,
            scope: Scope::Flow,
            forwarded: None,
        };
        let sources = |requirements: &[Requirement]| {
            let policy = TokenPolicy {
                requirements: requirements.to_vec(),
                ..TokenPolicy::default()
            };
            policy.udp_sources()
        };
        let two = Some(&["192.0.2.0/24", "2001:db8::/32"][..]);
        let few = requirement(two, (53, 53));
        let turned = requirement(Some(&["2001:db8::/32", "192.0.2.0/24"]), (53, 53));
        let all = requirement(None, (53, 54));
        let of = sources(std::slice::from_ref(&few));
        assert!(of[53] != 0 && of[54] == 0);
        assert_eq!(of, sources(&[turned]));
        let more = sources(&[few.clone(), all.clone()]);
        assert!(more[53] != of[53] && more[54] != 0);
        assert_eq!(more, sources(&[all, few.clone()]));
        // Whose tokens they are, and whether it drops, says nothing of the sources.
        let others = Requirement {
            identities: vec![[2; 16]],
            drops: false,
            ..few
        };
        assert_eq!(of, sources(&[others]));
    }

    #[test]
    fn what_the_kernel_has_no_room_for_is_refused() {
        let requirement = Requirement {
            ports: vec![(80, 80)],
            udp_ports: Vec::new(),
            networks: None,
            identities: vec![[1; 16]],
            drops: true,
            scope: Scope::Flow,
            forwarded: None,
        };
        let mut policy = TokenPolicy {
            requirements: vec![requirement.clone(); MAX_REQUIREMENTS],
            ..TokenPolicy::default()
        };
        policy.check().unwrap();
        policy.requirements.push(requirement.clone());
        let error = policy.check().unwrap_err().to_string();
        assert!(error.contains("65 requirements: at most 64"), "{error}");
        policy.requirements = vec![Requirement {
            identities: vec![[1; 16]; MAX_IDENTITIES + 1],
            ..requirement
        }];
        let error = policy.check().unwrap_err().to_string();
        assert!(error.contains("1025 identities: at most 1024"), "{error}");
    }

    #[test]
    fn tokens_of_segments_in_ip_headers_are_refused() {
        let to = |conduit| TokenPolicy {
            sign_to: vec![("192.0.2.0/24".parse().unwrap(), conduit)],
            sign_scope: Scope::Payload,
            ..TokenPolicy::default()
        };
        to(Conduit::TcpOption).check().unwrap();
        to(Conduit::Nothing).check().unwrap();
        let error = to(Conduit::IpOption).check().unwrap_err().to_string();
        assert!(error.contains("segments to 192.0.2.0/24"), "{error}");
    }
}
