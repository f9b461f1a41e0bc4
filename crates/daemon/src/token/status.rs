//! What is shown of tokens. No secret, and nothing that is made of one but the fingerprint.

use std::{collections::BTreeMap, path::PathBuf};

use jiff::Timestamp;
use serde::Serialize;
use weir_bpf::token::{
    self as kernel, FlowTableCounts, GatewayKind, MAX_DATAGRAM_FLOWS, MAX_FORWARD_FLOWS, Outcome,
};
use weir_core::Protocol;
use weir_identity::Digest;
use weir_token::{
    KeyId,
    config::Scope,
    key_file::{Key, KeyState},
    key_ring::KeyRing,
};

use super::{State, Tokens, conduits::ConduitStatus, gateway::ForwardHookStatus};

/// `[token]` as it is in force.
#[derive(Debug, Clone, Serialize)]
pub struct TokenStatus {
    /// The directory of keys.
    pub keys_dir: PathBuf,
    /// The keys, as they were read at the start or the last reload.
    pub keys: Vec<KeyStatus>,
    /// The side that signs; `None`: there is neither `sign_to` nor `sign_udp_to`.
    pub signing: Option<SigningStatus>,
    /// The side that verifies, in the order in which requirements are asked.
    pub requirements: Vec<RequirementStatus>,
    /// Where forwarded packets are judged; `None`: nowhere.
    pub forward: Option<ForwardStatus>,
    /// Where tokens of others are overwritten; `None`: nowhere.
    pub strip: Option<StripStatus>,
    /// Flows of UDP datagrams that are remembered; `None`: no requirement is about UDP.
    pub datagram_flows: Option<DatagramFlowStatus>,
    /// The pinned program by which iptables on a gateway asks these requirements (`-m bpf
    /// --object-pinned`); `None`: there is no requirement.
    pub iptables_match: Option<PathBuf>,
}

/// One key, without its secret.
#[derive(Debug, Clone, Serialize)]
pub struct KeyStatus {
    /// The id that stands in its tokens.
    pub id: KeyId,
    /// `signs`, `accepted`, `accepted, will sign` or `retired`.
    pub r#use: &'static str,
    /// The same on each host that has the same secret; none of a key that is retired.
    pub fingerprint: Option<String>,
    /// The time at which the key was made.
    pub created: Timestamp,
    /// From when on it may sign.
    pub sign_from: Timestamp,
    /// The time at which the key was retired.
    pub retired: Option<Timestamp>,
}

impl KeyStatus {
    /// One key among others.
    pub fn of(key: &Key, among: &KeyRing, now: Timestamp) -> Self {
        Self {
            id: key.id,
            r#use: among.use_of(key, now),
            fingerprint: key.secret().map(|secret| secret.fingerprint(key.id)),
            created: key.created,
            sign_from: key.sign_from,
            retired: match &key.state {
                KeyState::Retired(at) => Some(*at),
                KeyState::Live(_) => None,
            },
        }
    }
}

/// Connections and datagrams that leave with a token, and without.
#[derive(Debug, Clone, Serialize)]
pub struct SigningStatus {
    /// Networks to which connections are signed.
    pub to: Vec<String>,
    /// What their tokens are about: `flow`, or `payload`; or `daf`: there are none, but the
    /// signature of DAF in each segment.
    pub scope: &'static str,
    /// Where tokens to each network of both kinds stand.
    pub conduits: Vec<ConduitStatus>,
    /// Interfaces at which tokens are put into IP headers.
    pub interfaces: Vec<String>,
    /// Programs that can sign.
    pub programs: usize,
    /// SYNs with a token.
    pub signed: u64,
    /// SYNs to these networks of sockets that are not those of one known program, or
    /// without a key.
    pub without_signer: u64,
    /// SYNs whose other options took the room.
    pub without_room: u64,
    /// Packets dropped because another program held the connection than had signed.
    pub changed: u64,
    /// Segments behind the SYN, with signatures of DAF all of them; `None`: the scope is `flow`.
    pub segments: Option<SegmentStatus>,
    /// UDP datagrams; `None`: there is no `sign_udp_to`.
    pub udp: Option<DatagramStatus>,
}

/// Segments of the scope `payload`, or with signatures of DAF: those that leave with one, and
/// those that were dropped because they could not get one.
#[derive(Debug, Clone, Serialize)]
pub struct SegmentStatus {
    /// Interfaces at which they get their tokens.
    pub interfaces: Vec<String>,
    /// Segments with a token, or signature.
    pub signed: u64,
    /// Dropped, of sockets that are not those of one known program, or without a key.
    pub without_signer: u64,
    /// Dropped: several in one superpacket (GSO).
    pub superpacket: u64,
    /// Dropped: by an interface at which none are signed; of another network namespace it is
    /// the SYN, which leaves without a token.
    pub without_interface: u64,
    /// Dropped: other TCP options are in the way, or for DAF other options of IPv4.
    pub without_room: u64,
    /// Dropped: the kernel failed.
    pub broken: u64,
    /// With the signature of DAF longer than the device takes: TCP was told, and sends them
    /// again in pieces that fit. Or dropped, in fragments.
    pub too_big: u64,
}

/// UDP datagrams that leave with a token, and without; one of several (GSO) counts once.
#[derive(Debug, Clone, Serialize)]
pub struct DatagramStatus {
    /// Networks to which datagrams are signed.
    pub to: Vec<String>,
    /// Interfaces at which they get their tokens.
    pub interfaces: Vec<String>,
    /// Datagrams with a token.
    pub signed: u64,
    /// Datagrams without, of sockets that are not those of one known program, or without a key.
    pub without_signer: u64,
    /// Datagrams without: the token would make them longer than the path or device takes.
    pub too_big: u64,
    /// Datagrams without: other options or extension headers are in the way.
    pub without_room: u64,
    /// Datagrams without, in fragments.
    pub fragments: u64,
    /// Datagrams without: the kernel made no room, or they have another form.
    pub refused: u64,
    /// Datagrams dropped: the kernel failed with a part of the token written.
    pub broken: u64,
}

/// Flows of UDP datagrams that are remembered, by what is known of them.
#[derive(Debug, Clone, Serialize)]
pub struct DatagramFlowStatus {
    /// So many go into each table; then those go that were used least.
    pub limit: usize,
    /// Flows whose sender has proved himself.
    pub proven: FlowTableStatus,
    /// Flows that a program of this host has begun.
    pub own: FlowTableStatus,
    /// Flows that passed because their requirement only logs.
    pub logged: FlowTableStatus,
}

/// Packets that this host forwards, as they are judged: each requirement about them is among the
/// others.
#[derive(Debug, Clone, Serialize)]
pub struct ForwardStatus {
    /// Interfaces at which they are judged.
    pub interfaces: Vec<String>,
    /// Those of them where that is done in the driver.
    pub by_xdp: Vec<String>,
    /// Where it is done at each of them, and why there.
    pub hooks: Vec<ForwardHookStatus>,
    /// `drop`, or `pass`: what becomes of TCP connections that were there before.
    pub established: &'static str,
    /// TCP connections that have proved themselves, so that their later packets pass.
    pub connections: FlowTableStatus,
    /// So many are remembered; then those go that were used least.
    pub limit: usize,
}

/// Packets whose tokens were overwritten.
#[derive(Debug, Clone, Serialize)]
pub struct StripStatus {
    /// Interfaces at which they are.
    pub interfaces: Vec<String>,
    /// `in`, `out` or `both`.
    pub direction: &'static str,
    /// Networks beyond them whose tokens stay.
    pub except: Vec<String>,
    /// Packets that came in with a token as a TCP option.
    pub in_tcp: u64,
    /// Packets that came in with one in the IP header, or a signature of DAF.
    pub in_ip: u64,
    /// Packets that went out with a token as a TCP option.
    pub out_tcp: u64,
    /// Packets that went out with one in the IP header, or a signature of DAF.
    pub out_ip: u64,
    /// Packets dropped because the kernel failed.
    pub broken: u64,
}

/// One table of flows.
#[derive(Debug, Clone, Serialize)]
pub struct FlowTableStatus {
    /// Flows that are in it.
    pub flows: u64,
    /// Flows that had to go because the table was full.
    pub evicted: u64,
}

impl FlowTableStatus {
    fn of(counts: FlowTableCounts) -> Self {
        Self {
            flows: counts.present,
            evicted: counts.evicted,
        }
    }
}

/// Ports that want a token.
#[derive(Debug, Clone, Serialize)]
pub struct RequirementStatus {
    /// The requirement's name in the configuration.
    pub name: String,
    /// `require`, or `log`, which everything is with `observe`.
    pub mode: &'static str,
    /// What tokens at its TCP ports are about: `flow`, or `payload`; or `daf`: signatures of DAF
    /// are wanted, and no tokens.
    pub scope: &'static str,
    /// Networks behind this host that it is about; `None`: it is about sockets of this host.
    pub to: Option<Vec<String>>,
    /// Ports and ranges of them, as `8080/tcp`.
    pub ports: Vec<String>,
    /// Sources that it is about; `None`: all.
    pub from: Option<Vec<String>>,
    /// Aggregates of the programs that get in.
    pub aggregates: Vec<Digest>,
    /// Packets by outcome.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Packets of refused outcomes, those included that passed while it only logged.
    pub refused: u64,
}

fn texts(prefixes: &[weir_core::Prefix]) -> Vec<String> {
    prefixes.iter().map(ToString::to_string).collect()
}

impl Tokens {
    /// Tokens as they are in force; `None`: there is no `[token]`.
    ///
    /// # Errors
    /// The kernel's tables cannot be read.
    pub fn status(&self) -> Result<Option<TokenStatus>, weir_bpf::Error> {
        match &*self.state() {
            Some(state) => {
                let place = &self.place;
                let pin = kernel::match_pin(&place.root, &place.instance);
                state.status(pin).map(Some)
            }
            None => Ok(None),
        }
    }
}

impl State {
    fn status(&self, match_pin: PathBuf) -> Result<TokenStatus, weir_bpf::Error> {
        let now = Timestamp::now();
        let config = &self.config;
        let keys = self.secrets.keys.keys().iter();
        let udp = match config.sign_udp_to.is_empty() {
            true => None,
            false => {
                let counts = self.kernel.datagrams()?;
                Some(DatagramStatus {
                    to: texts(&config.sign_udp_to),
                    interfaces: self.datagrams.at.names.clone(),
                    signed: counts.signed,
                    without_signer: counts.without_signer,
                    too_big: counts.too_big,
                    without_room: counts.without_room,
                    fragments: counts.fragment,
                    refused: counts.refused,
                    broken: counts.broken,
                })
            }
        };
        let segments = match self.segments.signer {
            None => None,
            Some(_) => {
                let counts = self.kernel.segments()?;
                Some(SegmentStatus {
                    interfaces: self.segments.at.names.clone(),
                    signed: counts.signed,
                    without_signer: counts.without_signer,
                    superpacket: counts.superpacket,
                    without_interface: counts.without_interface,
                    without_room: counts.without_room,
                    broken: counts.broken,
                    too_big: counts.too_big,
                })
            }
        };
        let signing = match super::signs(config) || config.scope == Scope::Daf {
            false => None,
            true => {
                let counts = self.kernel.signings()?;
                Some(SigningStatus {
                    to: texts(&config.sign_to),
                    scope: config.scope.word(),
                    conduits: self
                        .conduits
                        .networks
                        .iter()
                        .map(ConduitStatus::of)
                        .collect(),
                    interfaces: self.datagrams.at.names.clone(),
                    programs: self.signers.len(),
                    signed: counts.signed,
                    without_signer: counts.without_signer,
                    without_room: counts.without_room,
                    changed: counts.changed,
                    segments,
                    udp,
                })
            }
        };
        let all = self.all_outcomes()?;
        let mut ports = config.requirements.iter().flat_map(|r| &r.ports);
        let datagram_flows = match ports.any(|range| range.protocol == Protocol::Udp) {
            false => None,
            true => {
                let counts = self.kernel.datagram_flows()?;
                Some(DatagramFlowStatus {
                    limit: MAX_DATAGRAM_FLOWS,
                    proven: FlowTableStatus::of(counts.proven),
                    own: FlowTableStatus::of(counts.own),
                    logged: FlowTableStatus::of(counts.logged),
                })
            }
        };
        let hooks = self.gateway.forward_hooks();
        let in_driver = hooks.iter().filter(|at| at.hook == "xdp");
        let by_xdp = in_driver.map(|at| at.interface.clone()).collect();
        let forward = match &config.forward {
            Some(of) => Some(ForwardStatus {
                interfaces: self.gateway.names(GatewayKind::Forward),
                by_xdp,
                hooks,
                established: match of.takes_up {
                    0 => "drop",
                    _ => "pass",
                },
                connections: FlowTableStatus::of(self.kernel.forward_flows()?),
                limit: MAX_FORWARD_FLOWS,
            }),
            None => None,
        };
        let strip = match &config.strip {
            Some(of) => {
                let counts = self.kernel.strippings()?;
                let mut interfaces = self.gateway.names(GatewayKind::StripIn);
                interfaces.extend(self.gateway.names(GatewayKind::StripOut));
                interfaces.sort();
                interfaces.dedup();
                Some(StripStatus {
                    interfaces,
                    direction: of.direction.word(),
                    except: texts(&of.except),
                    in_tcp: counts.in_tcp,
                    in_ip: counts.in_ip,
                    out_tcp: counts.out_tcp,
                    out_ip: counts.out_ip,
                    broken: counts.broken,
                })
            }
            None => None,
        };
        let mut of_sockets = config.requirements.iter();
        let is_of_sockets = of_sockets.any(|requirement| requirement.to.is_none());
        let requirements = config.requirements.iter().map(|requirement| {
            let counts = all.get(&requirement.name).copied().unwrap_or_default();
            let outcomes = Outcome::ALL.into_iter().zip(counts);
            let drops = requirement.drops && !self.observe;
            let refused = outcomes.clone().filter(|(outcome, _)| !outcome.passes());
            RequirementStatus {
                name: requirement.name.clone(),
                mode: if drops { "require" } else { "log" },
                scope: requirement.scope.word(),
                to: requirement.to.as_deref().map(texts),
                ports: requirement.ports.iter().map(ToString::to_string).collect(),
                from: requirement.from.as_deref().map(texts),
                aggregates: requirement.aggregates.clone(),
                refused: refused.map(|(_, count)| count).sum(),
                outcomes: outcomes
                    .map(|(outcome, count)| (outcome.name(), count))
                    .collect(),
            }
        });
        Ok(TokenStatus {
            keys_dir: config.keys.clone(),
            keys: keys
                .map(|key| KeyStatus::of(key, &self.secrets.keys, now))
                .collect(),
            signing,
            requirements: requirements.collect(),
            forward,
            strip,
            datagram_flows,
            iptables_match: is_of_sockets.then_some(match_pin),
        })
    }
}
