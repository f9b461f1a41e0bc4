//! Tokens in the kernel (`bpf/token/token.bpf.c`): its programs, which are pinned and go
//! on without a daemon, and its tables: who signs with which key, and which ports want a
//! token of whom. Keys come here as keys of SipHash, of one identity each; the secrets that
//! they are made of do not.

mod gate;
mod gateway;
mod interface_signer;
mod policy;
mod programs;
mod refused;

pub use gate::match_pin;
pub use gateway::{GatewayKind, GatewayProgram, is_without_gateway};
pub use interface_signer::{InterfaceSigner, SignedKind};
pub use policy::{Claim, Conduit, DafStates, Forwarded, Requirement, Scope, TokenPolicy};
pub use programs::{Loaded, detach, is_attached};
pub use refused::{KEPT, Refusals, RefusedPacket, refusals};

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::{
    abi,
    error::{Context, Error, Result},
    identity::Handle,
    mapped,
    memory::Words,
    pins,
    skeleton::token::types::{
        token_claim, token_claimed, token_control, token_daf_key, token_key, token_met,
        token_network, token_requirement, token_signer,
    },
    small_maps::sum_of,
};

/// Requirements of one configuration.
pub const MAX_REQUIREMENTS: usize = abi::TOKEN_REQUIREMENTS as usize;
/// Networks of all requirements, of `sign_to` and `sign_udp_to`.
pub const MAX_NETWORKS: usize = abi::TOKEN_NETWORKS as usize / 2;
/// Identities that requirements name.
pub const MAX_IDENTITIES: usize = abi::TOKEN_IDENTITIES as usize;
/// The same times the keys that are accepted.
pub const MAX_CLAIMS: usize = abi::TOKEN_CLAIMS as usize / 2;

/// Below an instance's pins.
fn dir_of(root: &Path, instance: &str) -> PathBuf {
    root.join(pins::escape(instance))
        .join(format!("token-{}", abi::TOKEN_ABI))
}

/// The directories, below an instance's, in which a weir has its pins, whatever form its tables
/// have.
fn forms(of_instance: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let all = fs::read_dir(of_instance).into_iter().flatten().flatten();
    all.map(|entry| entry.path()).filter(|dir| {
        let name = dir.file_name().and_then(|name| name.to_str());
        let form = name.and_then(|name| name.strip_prefix("token-"));
        form.is_some_and(|form| form.parse::<u32>().is_ok())
    })
}

/// What an identity is to the kernel: the first half of its aggregate.
pub type IdentityPrefix = [u8; 16];

/// What became of packets to ports that want a token; see `enum token_outcome`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[allow(missing_docs, reason = "bpf/abi/token.h says what each is")]
pub enum Outcome {
    Valid = abi::TOKEN_VALID,
    Proven = abi::TOKEN_PROVEN,
    Free = abi::TOKEN_FREE,
    Missing = abi::TOKEN_MISSING,
    Malformed = abi::TOKEN_MALFORMED,
    OtherVersion = abi::TOKEN_OTHER_VERSION,
    UnknownKey = abi::TOKEN_UNKNOWN_KEY,
    OtherEpoch = abi::TOKEN_OTHER_EPOCH,
    NotNamed = abi::TOKEN_NOT_NAMED,
    WrongMac = abi::TOKEN_WRONG_MAC,
    Replayed = abi::TOKEN_REPLAYED,
    NoFlow = abi::TOKEN_NO_FLOW,
}

impl Outcome {
    /// Every outcome, at the place of its number.
    pub const ALL: [Self; abi::TOKEN_OUTCOMES as usize] = [
        Self::Valid,
        Self::Proven,
        Self::Free,
        Self::Missing,
        Self::Malformed,
        Self::OtherVersion,
        Self::UnknownKey,
        Self::OtherEpoch,
        Self::NotNamed,
        Self::WrongMac,
        Self::Replayed,
        Self::NoFlow,
    ];

    /// Does such a packet pass where a token is required?
    pub fn passes(self) -> bool {
        self < Self::Missing
    }

    /// The outcome's word in status and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Proven => "proven",
            Self::Free => "free",
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::OtherVersion => "other-version",
            Self::UnknownKey => "unknown-key",
            Self::OtherEpoch => "other-epoch",
            Self::NotNamed => "not-named",
            Self::WrongMac => "wrong-mac",
            Self::Replayed => "replayed",
            Self::NoFlow => "no-flow",
        }
    }
}

/// Packets by outcome, in the order of [`Outcome::ALL`].
pub type OutcomeCounts = [u64; abi::TOKEN_OUTCOMES as usize];

/// What the side that signs has counted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SigningCounts {
    /// SYNs with a token.
    pub signed: u64,
    /// SYNs to where tokens go without one: there is no key, or the socket is not that of
    /// one program that is known.
    pub without_signer: u64,
    /// SYNs without one because other options took the room.
    pub without_room: u64,
    /// Packets that were dropped because another program held the connection than the one
    /// that had signed.
    pub changed: u64,
}

/// What became of UDP datagrams to networks of `sign_udp_to`; see `enum token_udp_signing`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DatagramCounts {
    /// Datagrams that left with a token; a superpacket of several counts once.
    pub signed: u64,
    /// Left without: there is no key, or the socket is not that of one program that is known.
    pub without_signer: u64,
    /// Left without: with it they were longer than the device or the path takes.
    pub too_big: u64,
    /// Left without: other options or extension headers are in the way.
    pub without_room: u64,
    /// Left without: in fragments.
    pub fragment: u64,
    /// Left without: the kernel made no room, or their frames have another form.
    pub refused: u64,
    /// Dropped: the kernel failed with a part of the token written.
    pub broken: u64,
}

/// A table of flows of datagrams, of which those used last stay.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct FlowTableCounts {
    /// Flows that are in it.
    pub present: u64,
    /// Flows that went because the table was full, and others came.
    pub evicted: u64,
}

/// The tables of flows of datagrams; see `enum token_udp_table`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DatagramFlowCounts {
    /// Flows whose sender has proved himself.
    pub proven: FlowTableCounts,
    /// Flows that a program here has begun.
    pub own: FlowTableCounts,
    /// Flows that passed because their requirement only logs.
    pub logged: FlowTableCounts,
}

/// Packets whose tokens were overwritten at an uplink; see `enum token_stripping`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct StripCounts {
    /// That came in, with a TCP option.
    pub in_tcp: u64,
    /// That came in, with an option of IPv4 or IPv6.
    pub in_ip: u64,
    /// That went out, with a TCP option.
    pub out_tcp: u64,
    /// That went out, with an option of IPv4 or IPv6.
    pub out_ip: u64,
    /// Dropped, for the kernel failed.
    pub broken: u64,
}

/// Connections that a gateway forwards and that are remembered.
pub const MAX_FORWARD_FLOWS: usize = abi::TOKEN_FORWARD_FLOWS as usize;

/// Flows of each of these tables at most.
pub const MAX_DATAGRAM_FLOWS: usize = abi::TOKEN_DATAGRAM_FLOWS as usize;

/// What became of segments of connections whose scope is the payload, or that get the
/// signature of DAF; see `enum token_segment_signing`. All but those that are signed were
/// dropped.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SegmentCounts {
    /// Segments that left with a token.
    pub signed: u64,
    /// There is no key, or the socket is not that of one program that is known.
    pub without_signer: u64,
    /// Several in one superpacket.
    pub superpacket: u64,
    /// By an interface at which none are signed, or from another network namespace.
    pub without_interface: u64,
    /// Other TCP options are in the way.
    pub without_room: u64,
    /// The kernel failed.
    pub broken: u64,
    /// With the signature of DAF longer than the device takes, which TCP was told; or in
    /// fragments.
    pub too_big: u64,
}

impl SegmentCounts {
    /// Segments that were dropped because they could not be signed. Those that were too long
    /// TCP sends again in pieces that fit.
    pub fn dropped(&self) -> u64 {
        let Self {
            signed: _,
            without_signer,
            superpacket,
            without_interface,
            without_room,
            broken,
            too_big: _,
        } = self;
        without_signer + superpacket + without_interface + without_room + broken
    }
}

/// Its tables, whether or not the programs are attached.
pub struct Tokens {
    control: MapHandle,
    /// Which entry of `control` is in force.
    current: MapHandle,
    clock: MapHandle,
    networks: MapHandle,
    signers: MapHandle,
    signings: MapHandle,
    udp_signings: MapHandle,
    segment_signings: MapHandle,
    ports: Words,
    udp_ports: Words,
    udp_since: Words,
    /// In the order of `enum token_udp_table`.
    udp_flows: [MapHandle; abi::TOKEN_UDP_TABLES as usize],
    udp_taken: MapHandle,
    /// The directory of its pins: tables of a gateway are made when one is wanted.
    dir: PathBuf,
    /// The most forwarded connections that were told to have gone.
    forward_evicted: AtomicU64,
    /// The most flows that were told to have gone from each of these tables.
    udp_evicted: [AtomicU64; abi::TOKEN_UDP_TABLES as usize],
    requirements: MapHandle,
    claims: MapHandle,
    daf_keys: MapHandle,
    identities: MapHandle,
    outcomes: MapHandle,
}

/// What is to be added to CLOCK_BOOTTIME for nanoseconds since 1970, by this host's clocks
/// now: for [`Tokens::put_clock`].
pub fn clock_offset() -> u64 {
    let nanos = |clock| {
        let time = rustix::time::clock_gettime(clock);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let since_1970 = nanos(rustix::time::ClockId::Realtime);
    since_1970.wrapping_sub(nanos(rustix::time::ClockId::Boottime))
}

/// The kernel's name for the network namespace of this process, which is not used again.
///
/// # Errors
/// The kernel does not tell it (before Linux 5.14).
pub fn network_namespace() -> Result<u64> {
    let what = || "ask which network namespace this is".to_owned();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0");
    let socket = socket.or_else(|_| std::net::UdpSocket::bind("0.0.0.0:0"));
    let socket = socket.context(what)?;
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes no more than `length` bytes to `cookie`.
    let rc = unsafe {
        libc::getsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&socket),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    match rc {
        0 => Ok(cookie),
        _ => Err(std::io::Error::last_os_error()).context(what),
    }
}

/// asm-generic/socket.h
const SO_NETNS_COOKIE: libc::c_int = 71;

/// The compiler's own (`token_bp.bss`) are none of ours.
fn is_pinned(map: &std::ffi::OsStr) -> bool {
    let name = map.to_string_lossy();
    name.starts_with("token_") && !name.contains('.')
}

/// The bytes of a value that goes to the kernel.
fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: only structs of bpf/abi/token.h come here: plain old data whose padding is
    // written out as members. They are as long as the slice, and borrowed as long.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// A value that came from the kernel; `None`: it has another length.
fn value_of<T: Copy>(bytes: &[u8]) -> Option<T> {
    // SAFETY: the right number of bytes, and in structs of bpf/abi/token.h every pattern
    // of bits is a value.
    (bytes.len() == size_of::<T>())
        .then(|| unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
}

/// Keys of a hash table of the kernel's for which `is_stale` holds go.
fn remove_stale(map: &MapHandle, is_stale: impl Fn(&[u8]) -> bool) -> Result<()> {
    let stale: Vec<_> = map.keys().filter(|key| is_stale(key)).collect();
    stale.iter().try_for_each(|key| {
        map.delete(key)
            .context(|| "remove what is over from a table of tokens".into())
    })
}

/// Entries of a hash table of the kernel's, in one batch: of smaller ones the kernel fills none
/// to its end, and libbpf-rs takes the first such one for the last.
fn count_keys(map: &MapHandle) -> Result<u64> {
    let batches = map.lookup_batch(map.max_entries(), MapFlags::ANY, MapFlags::ANY);
    let batches = batches.context(|| "count the flows of tokens".into())?;
    Ok(batches.count() as u64)
}

const OUTCOMES: u32 = abi::TOKEN_OUTCOMES;
const PORTS: usize = 65536;

impl Tokens {
    fn control(&self) -> Result<token_control> {
        let what = || "read what holds for tokens".to_owned();
        let place = self.current.lookup(&[0; 4], MapFlags::ANY).context(what)?;
        let place = place.as_deref().and_then(value_of::<u32>).unwrap_or(0) & 1;
        let control = self.control.lookup(&place.to_ne_bytes(), MapFlags::ANY);
        let control = control.context(what)?.as_deref().and_then(value_of);
        control.ok_or_else(|| Error::refused(what(), "the map has another form"))
    }

    /// Puts it into force: it is written whole beside the one before, which a program that has
    /// asked for it goes on with; then comes the one word that says which of them holds.
    fn put_control(&self, control: &token_control) -> Result<()> {
        let what = || "write what holds for tokens".to_owned();
        let place = (control.generation & 1).to_ne_bytes();
        let written = self
            .control
            .update(&place, bytes_of(control), MapFlags::ANY);
        written.context(what)?;
        self.current
            .update(&[0; 4], &place, MapFlags::ANY)
            .context(what)
    }

    /// Says what is to be added to CLOCK_BOOTTIME for nanoseconds since 1970; the kernel
    /// goes on by its own clock from there.
    pub fn put_clock(&self, offset: u64) -> Result<()> {
        self.clock
            .update(&[0; 4], &offset.to_ne_bytes(), MapFlags::ANY)
            .context(|| "tell the kernel the time of tokens".into())
    }

    /// Puts a policy into force, in one step. Flows that have proved who they are go on if
    /// a requirement names them still.
    ///
    /// # Errors
    /// There is too much of something, or the kernel refuses it: then the policy before
    /// stays.
    pub fn put_policy(&self, policy: &TokenPolicy) -> Result<()> {
        policy.check()?;
        let mut control = self.control()?;
        // Even and odd ones in turns, in 24 bits.
        let generation = control.generation % 0xff_fffe + 1;
        let second = generation & 1 == 1;
        let bank = usize::from(second);
        let slot = |number: usize| (number + if second { MAX_REQUIREMENTS } else { 0 }) as u32;
        // What is left of one that was refused midway, or whose daemon was killed, has the
        // number of this one.
        self.forget_networks_but(control.generation)?;
        self.forget_leftovers(&control)?;
        let signed_to = [
            (&policy.sign_to, abi::TOKEN_SIGN_TO, policy.sign_scope),
            (&policy.sign_udp_to, abi::TOKEN_SIGN_UDP_TO, Scope::Flow),
        ];
        for prefix in &policy.keep {
            self.put_network(generation << 8 | abi::TOKEN_KEEP, prefix, 1)?;
        }
        for (networks, number, scope) in signed_to {
            for (prefix, conduit) in networks {
                let value = *conduit as u32 | scope.number() << abi::TOKEN_SCOPE_SHIFT;
                self.put_network(generation << 8 | number, prefix, value)?;
            }
        }
        for port in 0..PORTS {
            self.ports.store(bank * PORTS + port, 0);
            self.udp_ports.store(bank * PORTS + port, 0);
        }
        let before = self.taken_up_until(control.generation)?;
        let mut met = std::collections::BTreeMap::<IdentityPrefix, u64>::new();
        for (number, requirement) in policy.requirements.iter().enumerate() {
            let id = generation << 8 | number as u32;
            for prefix in requirement.networks.iter().flatten() {
                self.put_network(id, prefix, 1)?;
            }
            let mut raw = token_requirement {
                networks: requirement.networks.as_ref().map_or(0, |_| id),
                mode: (match requirement.drops {
                    true => abi::TOKEN_REQUIRE,
                    false => abi::TOKEN_LOG,
                }) as u8,
                scope: requirement.scope.number() as u8,
                ..token_requirement::default()
            };
            if let Some(of) = &requirement.forwarded {
                raw.to = id + abi::TOKEN_FORWARD_TO;
                for prefix in &of.to {
                    self.put_network(raw.to, prefix, 1)?;
                }
                raw.name = requirement.name();
                raw.before_until = match before.get(&raw.name) {
                    Some(until) => *until,
                    None if of.takes_up == 0 => 0,
                    None => crate::clock::boottime() + u64::from(of.takes_up) * 1_000_000_000,
                };
            }
            let key = slot(number).to_ne_bytes();
            self.requirements
                .update(&key, bytes_of(&raw), MapFlags::ANY)
                .context(|| format!("write requirement {number} of tokens"))?;
            let both = [
                (&self.ports, &requirement.ports),
                (&self.udp_ports, &requirement.udp_ports),
            ];
            for (words, ranges) in both {
                for port in ranges.iter().flat_map(|(low, high)| *low..=*high) {
                    words.set_bits(bank * PORTS + usize::from(port), 1 << number);
                }
            }
            for identity in &requirement.identities {
                *met.entry(*identity).or_default() |= 1 << number;
            }
            self.forget_outcomes(slot(number))?;
        }
        for (identity, requirements) in &met {
            self.put_met(identity, bank, *requirements, generation)?;
        }
        control.keys = [0; 4];
        for id in &policy.keys {
            control.keys[usize::from(*id) / 64] |= 1 << (id % 64);
        }
        for claim in &policy.claims {
            let key = token_claim {
                tag: *claim.identity.first_chunk().expect("it has 16 bytes"),
                key_id: claim.key_id.into(),
            };
            let value = token_claimed {
                key: token_key { words: claim.key },
                identity: claim.identity,
            };
            self.claims
                .update(bytes_of(&key), bytes_of(&value), MapFlags::ANY)
                .context(|| "write a key of an identity".into())?;
        }
        self.put_since(policy);
        self.put_daf_key(second, policy.daf.as_ref())?;
        control.daf = (0..)
            .zip(&policy.requirements)
            .fold(0, |bits, (number, of)| {
                bits | u64::from(of.scope == Scope::Daf) << number
            });
        control.forward = (0..)
            .zip(&policy.requirements)
            .fold(0, |bits, (number, of)| {
                bits | u64::from(of.forwarded.is_some()) << number
            });
        control.netns = policy.netns;
        control.generation = generation;
        control.requirements = policy.requirements.len() as u32;
        self.put_control(&control)?;

        // The policy is in force: what stays of others is an error all the same, and is
        // removed before the next one is written.
        self.put_daf_key(!second, None)?;
        // Its networks stay until then: a packet that is judged by the policy before would be of
        // no requirement without them, and pass.
        remove_stale(&self.claims, |key| {
            let is_there = |key: token_claim| {
                let is_it = |claim: &Claim| {
                    claim.identity[..4] == key.tag && u32::from(claim.key_id) == key.key_id
                };
                policy.claims.iter().any(is_it)
            };
            !value_of::<token_claim>(key).is_some_and(is_there)
        })?;
        remove_stale(&self.identities, |key| {
            !<IdentityPrefix>::try_from(key).is_ok_and(|key| met.contains_key(&key))
        })
    }

    /// Until when each requirement about forwarded packets of the policy in force takes up
    /// connections that were there before, by its name.
    fn taken_up_until(&self, generation: u32) -> Result<std::collections::BTreeMap<u64, u64>> {
        let first = match generation & 1 == 1 {
            true => abi::TOKEN_REQUIREMENTS,
            false => 0,
        };
        let mut until = std::collections::BTreeMap::new();
        if generation == 0 {
            return Ok(until);
        }
        let count = self.control()?.requirements;
        for place in first..first + count {
            let found = self
                .requirements
                .lookup(&place.to_ne_bytes(), MapFlags::ANY)
                .context(|| "read a requirement of tokens".into())?;
            if let Some(found) = found.as_deref().and_then(value_of::<token_requirement>)
                && found.name != 0
            {
                until.insert(found.name, found.before_until);
            }
        }
        Ok(until)
    }

    /// Says since when UDP ports want tokens: those of the policy in force keep their time,
    /// if the sources are the same.
    fn put_since(&self, policy: &TokenPolicy) {
        let now = crate::clock::boottime();
        for (port, sources) in policy.udp_sources().into_iter().enumerate() {
            if self.udp_since.load(PORTS + port) != sources {
                self.udp_since.store(port, now);
                self.udp_since.store(PORTS + port, sources);
            }
        }
    }

    /// Removes the identities and claims that a policy has left which was refused midway, or
    /// whose daemon was killed: those of none that the policy in force names, whose numbers
    /// the next one would take for its own.
    fn forget_leftovers(&self, control: &token_control) -> Result<()> {
        let bank = usize::from(control.generation & 1 == 1);
        let mut named = std::collections::BTreeSet::new();
        for key in self.identities.keys() {
            let what = || "read who meets a requirement of tokens".to_owned();
            let met = self.identities.lookup(&key, MapFlags::ANY).context(what)?;
            let met = met.as_deref().and_then(value_of::<token_met>);
            // Generation 0 is that before the first policy.
            if control.generation > 0
                && met.is_some_and(|met| met.generation[bank] == control.generation)
            {
                named.insert(key);
            }
        }
        remove_stale(&self.identities, |key| !named.contains(key))?;
        let mut stale = std::collections::BTreeSet::new();
        for key in self.claims.keys() {
            let what = || "read a key of an identity".to_owned();
            let claimed = self.claims.lookup(&key, MapFlags::ANY).context(what)?;
            let claimed = claimed.as_deref().and_then(value_of::<token_claimed>);
            let is_accepted = value_of::<token_claim>(&key).is_some_and(|key| {
                let word = control.keys.get(key.key_id as usize / 64);
                word.is_some_and(|word| word >> (key.key_id % 64) & 1 == 1)
            });
            let is_named = claimed.is_some_and(|it| named.contains(&it.identity[..]));
            if !is_accepted || !is_named {
                stale.insert(key);
            }
        }
        remove_stale(&self.claims, |key| stale.contains(key))
    }

    /// Removes the networks of all other policies.
    fn forget_networks_but(&self, generation: u32) -> Result<()> {
        remove_stale(&self.networks, |key| {
            value_of::<token_network>(key).is_some_and(|key| key.networks >> 8 != generation)
        })
    }

    /// Writes the key of DAF of even generations, or of the others.
    fn put_daf_key(&self, second: bool, states: Option<&policy::DafStates>) -> Result<()> {
        let raw = states.map_or_else(token_daf_key::default, |states| token_daf_key {
            inner: states.inner,
            outer: states.outer,
            is_there: 1,
        });
        self.daf_keys
            .update(
                &u32::from(second).to_ne_bytes(),
                bytes_of(&raw),
                MapFlags::ANY,
            )
            .context(|| "write the key of DAF".into())
    }

    fn put_network(&self, networks: u32, prefix: &weir_core::Prefix, value: u32) -> Result<()> {
        for (addr, bits) in mapped::keys(*prefix) {
            let key = token_network {
                bits: 32 + bits,
                networks,
                addr,
            };
            self.networks
                .update(bytes_of(&key), &value.to_ne_bytes(), MapFlags::ANY)
                .context(|| format!("write the network {prefix} of tokens"))?;
        }
        Ok(())
    }

    fn put_met(
        &self,
        identity: &IdentityPrefix,
        bank: usize,
        requirements: u64,
        generation: u32,
    ) -> Result<()> {
        let what = || "write who meets a requirement of tokens".to_owned();
        let before = self.identities.lookup(identity, MapFlags::ANY);
        let before = before.context(what)?.as_deref().and_then(value_of);
        let mut met: token_met = before.unwrap_or_default();
        met.requirements[bank] = requirements;
        met.generation[bank] = generation;
        self.identities
            .update(identity, bytes_of(&met), MapFlags::ANY)
            .context(what)
    }

    fn forget_outcomes(&self, slot: u32) -> Result<()> {
        let cpus = libbpf_rs::num_possible_cpus().context(|| "count the processors".into())?;
        let none = vec![0_u64.to_ne_bytes().to_vec(); cpus];
        (slot * OUTCOMES..(slot + 1) * OUTCOMES).try_for_each(|key| {
            self.outcomes
                .update_percpu(&key.to_ne_bytes(), &none, MapFlags::ANY)
                .context(|| "clear the counters of a requirement of tokens".into())
        })
    }

    /// Has the identity with this handle sign with this key. While it is written, nobody
    /// signs with it: who finds the handle there before he reads the key, and after it, has
    /// both of them whole.
    pub fn put_signer(
        &self,
        handle: Handle,
        key_id: u8,
        key: [u64; 2],
        identity: IdentityPrefix,
    ) -> Result<()> {
        self.write_signer(
            handle.number(),
            &token_signer {
                key: token_key { words: key },
                identity,
                handle: handle.raw(),
                key_id,
                ..token_signer::default()
            },
        )
    }

    /// Who signs, also by the word of an earlier daemon.
    pub fn signers(&self) -> Result<Vec<Handle>> {
        let mut signers = Vec::new();
        for number in 0..abi::IDENT_IDENTITIES {
            let found = self.signers.lookup(&number.to_ne_bytes(), MapFlags::ANY);
            let found = found.context(|| "read who signs".into())?;
            let signer = found.as_deref().and_then(value_of::<token_signer>);
            signers.extend(signer.and_then(|signer| Handle::of(signer.handle)));
        }
        Ok(signers)
    }

    /// Has nobody sign at this number of an identity.
    pub fn forget_signer(&self, number: u16) -> Result<()> {
        self.write_signer(number, &token_signer::default())
    }

    /// The handle goes before anything else changes, and comes when all the rest is there.
    fn write_signer(&self, number: u16, signer: &token_signer) -> Result<()> {
        let what = || "say who signs".to_owned();
        let key = u32::from(number).to_ne_bytes();
        let before = self.signers.lookup(&key, MapFlags::ANY).context(what)?;
        let before: token_signer = before.as_deref().and_then(value_of).unwrap_or_default();
        let mut steps = vec![token_signer {
            handle: 0,
            ..before
        }];
        if signer.handle != 0 {
            steps.push(token_signer {
                handle: 0,
                ..*signer
            });
        }
        steps.push(*signer);
        steps.iter().try_for_each(|step| {
            self.signers
                .update(&key, bytes_of(step), MapFlags::ANY)
                .context(what)
        })
    }

    /// What the side that signs has counted.
    pub fn signings(&self) -> Result<SigningCounts> {
        Ok(SigningCounts {
            signed: sum_of(&self.signings, abi::TOKEN_SIGNED, "tokens")?,
            without_signer: sum_of(&self.signings, abi::TOKEN_NO_SIGNER, "tokens")?,
            without_room: sum_of(&self.signings, abi::TOKEN_NO_ROOM, "tokens")?,
            changed: sum_of(&self.signings, abi::TOKEN_CHANGED, "tokens")?,
        })
    }

    /// What became of datagrams on the side that signs.
    pub fn datagrams(&self) -> Result<DatagramCounts> {
        let read = |number| sum_of(&self.udp_signings, number, "tokens");
        Ok(DatagramCounts {
            signed: read(abi::TOKEN_UDP_SIGNED)?,
            without_signer: read(abi::TOKEN_UDP_NO_SIGNER)?,
            too_big: read(abi::TOKEN_UDP_TOO_BIG)?,
            without_room: read(abi::TOKEN_UDP_NO_ROOM)?,
            fragment: read(abi::TOKEN_UDP_FRAGMENT)?,
            refused: read(abi::TOKEN_UDP_REFUSED)?,
            broken: read(abi::TOKEN_UDP_BROKEN)?,
        })
    }

    /// How many flows of datagrams there are on the side that verifies.
    pub fn datagram_flows(&self) -> Result<DatagramFlowCounts> {
        let read = |table: u32| {
            // Those that went are those that were taken and are not there: so a flow that
            // comes in between counts as there, and one too few as gone, which goes up only.
            let taken = sum_of(&self.udp_taken, table, "tokens")?;
            let present = count_keys(&self.udp_flows[table as usize])?;
            let gone = taken.saturating_sub(present);
            let most = &self.udp_evicted[table as usize];
            Ok(FlowTableCounts {
                present,
                evicted: most.fetch_max(gone, Ordering::Relaxed).max(gone),
            })
        };
        Ok(DatagramFlowCounts {
            proven: read(abi::TOKEN_UDP_PROVEN)?,
            own: read(abi::TOKEN_UDP_OWN)?,
            logged: read(abi::TOKEN_UDP_LOGGED)?,
        })
    }

    /// A table of a gateway; `None`: there is none.
    fn table(&self, name: &str) -> Option<MapHandle> {
        MapHandle::from_pinned_path(self.dir.join(name)).ok()
    }

    /// How many connections that this host forwards have proved themselves.
    pub fn forward_flows(&self) -> Result<FlowTableCounts> {
        let tables = ["token_forward_taken", "token_forward_flows"].map(|name| self.table(name));
        let [Some(taken), Some(flows)] = tables else {
            return Ok(FlowTableCounts::default());
        };
        // As of the others.
        let taken = sum_of(&taken, 0, "tokens")?;
        let present = count_keys(&flows)?;
        let gone = taken.saturating_sub(present);
        Ok(FlowTableCounts {
            present,
            evicted: self
                .forward_evicted
                .fetch_max(gone, Ordering::Relaxed)
                .max(gone),
        })
    }

    /// Packets whose tokens were overwritten at an uplink.
    pub fn strippings(&self) -> Result<StripCounts> {
        let Some(table) = self.table("token_strippings") else {
            return Ok(StripCounts::default());
        };
        let read = |number| sum_of(&table, number, "tokens");
        Ok(StripCounts {
            in_tcp: read(abi::TOKEN_STRIPPED_IN_TCP)?,
            in_ip: read(abi::TOKEN_STRIPPED_IN_IP)?,
            out_tcp: read(abi::TOKEN_STRIPPED_OUT_TCP)?,
            out_ip: read(abi::TOKEN_STRIPPED_OUT_IP)?,
            broken: read(abi::TOKEN_STRIP_BROKEN)?,
        })
    }

    /// What became of segments on the side that signs.
    pub fn segments(&self) -> Result<SegmentCounts> {
        let read = |number| sum_of(&self.segment_signings, number, "tokens");
        Ok(SegmentCounts {
            signed: read(abi::TOKEN_SEGMENT_SIGNED)?,
            without_signer: read(abi::TOKEN_SEGMENT_NO_SIGNER)?,
            superpacket: read(abi::TOKEN_SEGMENT_SUPER)?,
            without_interface: read(abi::TOKEN_SEGMENT_NO_PLACE)?,
            without_room: read(abi::TOKEN_SEGMENT_NO_ROOM)?,
            broken: read(abi::TOKEN_SEGMENT_BROKEN)?,
            too_big: read(abi::TOKEN_SEGMENT_TOO_BIG)?,
        })
    }

    /// What one requirement of the policy in force has counted.
    pub fn outcomes(&self, requirement: usize) -> Result<OutcomeCounts> {
        self.outcomes_of(requirement, self.control()?.generation)
    }

    /// What one requirement of the policy before that in force counted until it was replaced.
    pub fn replaced_outcomes(&self, requirement: usize) -> Result<OutcomeCounts> {
        self.outcomes_of(requirement, self.control()?.generation.wrapping_sub(1))
    }

    fn outcomes_of(&self, requirement: usize, generation: u32) -> Result<OutcomeCounts> {
        let second = generation & 1 == 1;
        let slot = requirement as u32
            + match second {
                true => abi::TOKEN_REQUIREMENTS,
                false => 0,
            };
        let mut counts = OutcomeCounts::default();
        for (outcome, count) in (0..).zip(&mut counts) {
            *count = sum_of(&self.outcomes, slot * OUTCOMES + outcome, "tokens")?;
        }
        Ok(counts)
    }
}
