//! Tokens (`[token]`): connections and datagrams of known programs are signed, and ports
//! that want a token take no others. The kernel does both (`weir_bpf::token`); here keys are
//! read, each identity gets its own, and the kernel is told the time. Who programs are says
//! `[app]` ([`crate::identity`]).
//!
//! Without a daemon everything stays as it is: programs that are known sign with the key
//! that they have, and ports want what they wanted.

mod conduits;
mod gateway;
mod interfaces;
pub mod keys;
mod status;
mod unguarded;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use weir_bpf::{
    identity::{CgroupAt, Handle},
    token::{
        self as kernel, Claim, IdentityPrefix, InterfaceSigner, Loaded, OutcomeCounts, SignedKind,
        TokenPolicy,
    },
};
use weir_core::{Prefix, Protocol};
use weir_events::alerts::Alerts;
use weir_identity::Digest;
use weir_token::{
    KeyId,
    config::{Requirement, Scope, TokenConfig},
    daf::DafKey,
    key_ring::KeyRing,
};

use crate::{
    counted,
    identity::{Apps, GroupTable, KnownSince, PinPlace},
    threads::Pulse,
};
use conduits::Conduits;
pub use conduits::{ConduitStatus, ProbeFileError, complaints, conduits};
pub use gateway::ForwardHookStatus;
use gateway::Gateway;
use interfaces::{SigningInterfaces, Wanted};
use keys::KeysError;
pub use status::{
    DatagramFlowStatus, DatagramStatus, FlowTableStatus, ForwardStatus, KeyStatus,
    RequirementStatus, SegmentStatus, SigningStatus, StripStatus, TokenStatus,
};
pub use unguarded::{Unguarded, unguarded};
pub use weir_bpf::token::{KEPT, Outcome, RefusedPacket, refusals};

/// How often it is looked who is known: a program that has just become known signs by the
/// time that TCP sends its SYN again.
const WAIT: Duration = Duration::from_millis(100);
/// How often the kernel is told the time.
const FOLLOW: Duration = Duration::from_secs(1);

/// How often it is looked by which interfaces leaves what gets its token there.
const LOOK: Duration = Duration::from_secs(10);

const ABOUT_SIGNING: &str = "token:signing";
const ABOUT_KERNEL: &str = "token:kernel";
const ABOUT_INTERFACES: &str = "token:interfaces";
const ABOUT_CONDUITS: &str = "token:conduits";
const ABOUT_SEGMENTS: &str = "token:segments";
const ABOUT_FORWARD: &str = "token:forward";
const ABOUT_STRIP: &str = "token:strip";
const ABOUT_GROUP: &str = "token:cgroup";
const GROUP: GroupTable = GroupTable {
    name: "[token]",
    about: ABOUT_GROUP,
    meanwhile: "nobody signs, and no port wants a token,",
};

/// The alert about dropped segments ends so long after the last one.
const QUIET: Duration = Duration::from_secs(60);

/// Why tokens are not in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The keys cannot be read.
    #[error("[token]: {0}")]
    Keys(#[from] KeysError),
    /// There are none that are good.
    #[error(
        "[token]: there is no key in {0} that is not retired: make one with weir token key new, or copy that of the other hosts"
    )]
    NoKey(PathBuf),
    /// The measurements of the path cannot be used.
    #[error("[token]: {0}")]
    Probe(#[from] ProbeFileError),
    /// Who sends is not seen by the kernel's programs.
    #[error(
        "[token]: at level nfqueue of [app] nothing is signed, for the kernel's programs do not see who sends: take sign out, or let [app] have another level"
    )]
    NotAtLevel,
    /// The kernel refuses something.
    #[error("[token]: {0}")]
    Kernel(#[from] weir_bpf::Error),
    /// They are in force with the keys of before.
    #[error("{0}; the keys that were read before stay in force")]
    KeysOfBefore(Box<TokenError>),
}

/// The tokens of a daemon.
pub struct Tokens {
    place: PinPlace,
    alerts: Arc<Alerts>,
    apps: Arc<Apps>,
    state: Mutex<Option<State>>,
}

/// What was read from files for what is in force.
#[derive(Clone)]
pub struct InForce {
    secrets: Secrets,
    conduits: Conduits,
}

/// The keys of a configuration, as their files had them.
#[derive(Clone)]
pub struct Secrets {
    keys: KeyRing,
    /// `None`: nothing goes by signatures of DAF.
    daf: Option<DafKey>,
}

struct State {
    kernel: kernel::Tokens,
    /// The kernel's programs, for a control group that is made anew.
    loaded: Loaded,
    cgroup: CgroupAt,
    /// A port of this host wants a token.
    verifies: bool,
    config: TokenConfig,
    observe: bool,
    secrets: Secrets,
    /// The key with which the identities in `signers` sign.
    signs_with: Option<KeyId>,
    /// Who signs, by the number of the identity.
    signers: BTreeMap<u16, (Handle, Digest)>,
    known: Option<KnownSince>,
    /// What requirements before have counted, by name.
    before: BTreeMap<String, OutcomeCounts>,
    followed: Instant,
    datagrams: AtInterfaces,
    segments: AtInterfaces,
    gateway: Gateway,
    looked: Instant,
    /// When it was looked last whether conduits are to be chosen again.
    chose: Instant,
    /// Where tokens to each network stand.
    conduits: Conduits,
    /// Segments that were dropped, and when it was one more last.
    dropped: (u64, Option<Instant>),
    /// Why it is not in force as a whole; it is tried again. `None`: it is.
    failed: Option<String>,
}

/// Tokens that are put in at interfaces.
#[derive(Default)]
struct AtInterfaces {
    /// What puts them in; `None`: none of this kind are wanted.
    signer: Option<InterfaceSigner>,
    at: SigningInterfaces,
}

/// The kernel's name for an identity.
fn prefix_of(identity: &Digest) -> IdentityPrefix {
    *identity.0.first_chunk().expect("it has 32 bytes")
}

/// Ports of one protocol, both ends in them.
fn ranges_of(requirement: &Requirement, protocol: Protocol) -> Vec<(u16, u16)> {
    let ranges = requirement.ports.iter();
    let ranges = ranges.filter(|range| range.protocol == protocol);
    ranges.map(|range| (range.low, range.high)).collect()
}

/// Does anything leave this host with a token?
pub(crate) fn signs(config: &TokenConfig) -> bool {
    let signs_tcp = !config.sign_to.is_empty() && config.scope != Scope::Daf;
    signs_tcp || !config.sign_udp_to.is_empty()
}

/// Does a configuration take keys of tokens? Signatures of DAF alone do not, nor does what only
/// overwrites tokens.
fn wants_keys(config: &TokenConfig) -> bool {
    let mut requirements = config.requirements.iter();
    let wants = requirements.any(|requirement| requirement.scope != Scope::Daf);
    let goes_by_others = config.daf_secret.is_some() || config.strip.is_some();
    signs(config) || wants || !goes_by_others
}

/// The kernel's word for a scope.
fn scope_of(scope: Scope) -> kernel::Scope {
    match scope {
        Scope::Flow => kernel::Scope::Flow,
        Scope::Payload => kernel::Scope::Payload,
        Scope::Daf => kernel::Scope::Daf,
    }
}

fn policy_of(
    config: &TokenConfig,
    conduits: &Conduits,
    Secrets { keys, daf }: &Secrets,
    observe: bool,
    netns: u64,
) -> TokenPolicy {
    let daf = daf.as_ref().map(|key| {
        let states = key.states();
        kernel::DafStates {
            inner: states.inner,
            outer: states.outer,
        }
    });
    let without_tokens = |prefix: &Prefix| (*prefix, kernel::Conduit::Nothing);
    let sign_to = match config.scope {
        Scope::Daf => config.sign_to.iter().map(without_tokens).collect(),
        Scope::Flow | Scope::Payload => conduits.kernel(false),
    };
    let requirements = config.requirements.iter();
    let requirements = requirements.map(|requirement| kernel::Requirement {
        ports: ranges_of(requirement, Protocol::Tcp),
        udp_ports: ranges_of(requirement, Protocol::Udp),
        networks: requirement.from.clone(),
        identities: requirement.aggregates.iter().map(prefix_of).collect(),
        drops: requirement.drops && !observe,
        scope: scope_of(requirement.scope),
        forwarded: requirement.to.as_ref().map(|to| kernel::Forwarded {
            to: to.clone(),
            takes_up: config.forward.as_ref().map_or(0, |of| of.takes_up),
        }),
    });
    let mut named: Vec<_> = config
        .requirements
        .iter()
        .flat_map(|r| &r.aggregates)
        .collect();
    named.sort_unstable();
    named.dedup();
    let claims = keys.accepted().flat_map(|(id, secret)| {
        named.iter().map(move |identity| Claim {
            key_id: id.number(),
            key: secret.identity_key(id, identity).0,
            identity: prefix_of(identity),
        })
    });
    TokenPolicy {
        sign_to,
        sign_scope: scope_of(config.scope),
        netns,
        sign_udp_to: conduits.kernel(true),
        keep: config
            .strip
            .iter()
            .flat_map(|of| of.except.clone())
            .collect(),
        requirements: requirements.collect(),
        keys: keys.accepted().map(|(id, _)| id.number()).collect(),
        claims: claims.collect(),
        daf,
    }
}

/// Where tokens to each network stand, by what this host has and its file says now.
fn choose_conduits(config: &TokenConfig) -> Result<Conduits, ProbeFileError> {
    Conduits::choose(config, &conduits::own_addresses(), Timestamp::now())
}

impl TokenError {
    /// Whether the system keeps this user from looking at keys, which says nothing about them.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Keys(error) if error.is_denied())
    }
}

/// Reads the keys that a configuration names, of which some are good. That is asked before rules
/// about programs change: those of a start that is refused are in the kernel already.
///
/// # Errors
/// There are no keys, or they cannot be read.
pub fn read_secrets(config: &TokenConfig) -> Result<Secrets, TokenError> {
    let keys = match wants_keys(config) {
        true => keys::read(&config.keys)?,
        false => KeyRing::default(),
    };
    if wants_keys(config) && keys.accepted().next().is_none() {
        return Err(TokenError::NoKey(config.keys.clone()));
    }
    let daf = config.daf_secret.as_deref().map(keys::read_daf);
    Ok(Secrets {
        keys,
        daf: daf.transpose()?,
    })
}

impl Tokens {
    /// Tokens without a policy: nothing is in force before [`Self::apply`].
    pub fn new(place: PinPlace, alerts: Arc<Alerts>, apps: Arc<Apps>) -> Self {
        Self {
            place,
            alerts,
            apps,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Takes everything away, for a configuration without tokens.
    ///
    /// # Errors
    /// The kernel refuses something.
    pub fn take_away(&self) -> Result<(), TokenError> {
        let mut state = self.state();
        if state.take().is_some() || kernel::is_attached(&self.place.root, &self.place.instance) {
            kernel::detach(&self.place.root, &self.place.instance)?;
        }
        let all = [
            ABOUT_SIGNING,
            ABOUT_KERNEL,
            ABOUT_INTERFACES,
            ABOUT_CONDUITS,
            ABOUT_SEGMENTS,
            ABOUT_FORWARD,
            ABOUT_STRIP,
            ABOUT_GROUP,
        ];
        for about in all {
            self.alerts.clear(about);
        }
        Ok(())
    }

    /// Puts this into force, with keys that were read a moment ago. `[app]` is in force already.
    ///
    /// # Errors
    /// The kernel refuses something, or the measurements of the path cannot be used: then what
    /// was in force stays.
    pub fn apply(
        &self,
        config: &TokenConfig,
        observe: bool,
        secrets: Secrets,
    ) -> Result<(), TokenError> {
        let mut state = self.state();
        let conduits = match choose_conduits(config) {
            Ok(conduits) => conduits,
            // A start does without: what has come from elsewhere keeps no host open.
            Err(why) if state.is_none() => Conduits::without_file(config, &why),
            Err(why) => return Err(why.into()),
        };
        self.put(&mut state, config, observe, secrets, conduits)
    }

    /// What was read for what is in force; `None`: there are no tokens.
    pub fn in_force(&self) -> Option<InForce> {
        self.state().as_ref().map(|state| InForce {
            secrets: state.secrets.clone(),
            conduits: state.conduits.clone(),
        })
    }

    /// As [`Self::apply`], for a configuration that was in force a moment ago, with the keys
    /// and conduits that it had then: what has become of their files is for the next reload.
    ///
    /// # Errors
    /// The kernel refuses something; or the keys cannot be read any more, and all is in force
    /// with those of before.
    pub fn put_back(
        &self,
        config: &TokenConfig,
        observe: bool,
        before: InForce,
    ) -> Result<(), TokenError> {
        let mut state = self.state();
        self.put(&mut state, config, observe, before.secrets, before.conduits)?;
        drop(state);
        read_secrets(config)
            .map(drop)
            .map_err(|unread| TokenError::KeysOfBefore(Box::new(unread)))
    }

    fn put(
        &self,
        state: &mut Option<State>,
        config: &TokenConfig,
        observe: bool,
        secrets: Secrets,
        conduits: Conduits,
    ) -> Result<(), TokenError> {
        let accepted = secrets.keys.accepted().count();
        let cgroup = match state.as_mut() {
            Some(state) if state.config.cgroup == config.cgroup => {
                self.follow_group(state);
                state.cgroup.clone()
            }
            _ => CgroupAt::open_or_await(config.cgroup.as_deref())?,
        };
        let identity = match signs(config) {
            true if self.apps.is_queued() => return Err(TokenError::NotAtLevel),
            true => self.apps.identity(),
            false => None,
        };
        let (kernel, loaded) = kernel::Tokens::load(
            &self.place.root,
            &self.place.instance,
            &cgroup,
            identity.as_deref(),
        )?;
        kernel.put_clock(kernel::clock_offset())?;
        let netns = match config.scope {
            Scope::Flow | Scope::Daf => 0,
            Scope::Payload => kernel::network_namespace()?,
        };
        // What can fail comes before the policy, and before the state of before goes.
        let signer_at = |is_wanted, kind| match is_wanted {
            true => loaded.signer_at_interfaces(kind),
            false => Ok(None),
        };
        let of_datagrams = signer_at(!conduits.by_ip().is_empty(), SignedKind::Datagrams)?;
        let of_segments = match config.scope {
            Scope::Flow => None,
            Scope::Payload => signer_at(true, SignedKind::Segments)?,
            Scope::Daf => signer_at(true, SignedKind::Daf)?,
        };
        let dropped = kernel.segments()?.dropped();
        let gateway = Gateway::new(config, &loaded)?;
        // With keys that may be over: all of them are written anew, or go.
        let left = match state {
            Some(_) => Vec::new(),
            None => kernel.signers()?,
        };
        kernel.put_policy(&policy_of(config, &conduits, &secrets, observe, netns))?;
        // Those of before counted until here, however long it took to load the programs.
        let before = match &*state {
            Some(state) => state.sum_outcomes(|number| kernel.replaced_outcomes(number)),
            None => Ok(BTreeMap::new()),
        };
        let before = before.unwrap_or_else(|error| {
            tracing::warn!("what requirements have counted begins anew: {error}");
            BTreeMap::new()
        });
        let (signers, datagrams_at, segments_at) = match state.take() {
            Some(state) => (state.signers, state.datagrams.at, state.segments.at),
            None => {
                let left = left.into_iter();
                let signers = left.map(|handle| (handle.number(), (handle, Digest([0; 32]))));
                (signers.collect(), Default::default(), Default::default())
            }
        };
        let at_interfaces = |signer: Option<InterfaceSigner>, at, kinds: &[SignedKind]| {
            let kind = signer.as_ref().map(InterfaceSigner::kind);
            let over = kinds.iter().filter(|other| kind != Some(**other));
            over.for_each(|other| loaded.end_signing_at_interfaces(*other));
            match signer {
                Some(_) => AtInterfaces { signer, at },
                None => AtInterfaces::default(),
            }
        };
        let datagrams = at_interfaces(of_datagrams, datagrams_at, &[SignedKind::Datagrams]);
        let of_connections = [SignedKind::Segments, SignedKind::Daf];
        let segments = at_interfaces(of_segments, segments_at, &of_connections);
        let mut of_sockets = config.requirements.iter();
        let verifies = of_sockets.any(|requirement| requirement.to.is_none());
        let mut fresh = State {
            kernel,
            loaded,
            cgroup,
            verifies,
            config: config.clone(),
            observe,
            secrets,
            signs_with: None,
            signers,
            known: None,
            before,
            followed: Instant::now(),
            datagrams,
            segments,
            gateway,
            looked: Instant::now(),
            chose: Instant::now(),
            conduits,
            dropped: (dropped, None),
            failed: None,
        };
        fresh.before.retain(|name, _| {
            let mut requirements = config.requirements.iter();
            requirements.any(|requirement| requirement.name == *name)
        });
        let followed = fresh.follow_programs(&self.apps);
        fresh.loaded.end_other_forms_at_interfaces();
        // Before connections begin whose segments are to be signed there.
        fresh.follow_interfaces();
        // In this order: what moves to another hook is never without.
        fresh.gateway.follow(true);
        fresh.gateway.end_others(&fresh.loaded);
        let attached = followed.and_then(|()| fresh.loaded.attach(verifies));
        fresh.failed = attached.as_ref().err().map(ToString::to_string);
        self.alert_signing(&fresh);
        self.follow_group(&mut fresh);
        let at = fresh.cgroup.path().display().to_string();
        *state = Some(fresh);
        attached?;
        tracing::info!(
            "[token]: {}, {}, signing to {}, UDP to {}, in {}",
            counted(accepted as u64, "accepted key", "accepted keys"),
            counted(
                config.requirements.len() as u64,
                "requirement",
                "requirements"
            ),
            counted(config.sign_to.len() as u64, "network", "networks"),
            config.sign_udp_to.len(),
            at
        );
        Ok(())
    }

    fn alert_signing(&self, state: &State) {
        let both = [&state.datagrams.at.problem, &state.segments.at.problem];
        let at_interfaces: Vec<_> = both.into_iter().flatten().cloned().collect();
        let at_interfaces = (!at_interfaces.is_empty()).then(|| at_interfaces.join(". "));
        let is_dropping = state.dropped.1.is_some_and(|last| last.elapsed() < QUIET);
        let dropping = is_dropping.then(|| {
            "segments to sign_to cannot be signed and are dropped: weir status says why".to_owned()
        });
        for (about, problem) in [
            (ABOUT_INTERFACES, at_interfaces),
            (ABOUT_CONDUITS, state.conduits.problem.clone()),
            (ABOUT_SEGMENTS, dropping),
            (ABOUT_FORWARD, state.gateway.forward_problem()),
            (ABOUT_STRIP, state.gateway.strip_problem()),
        ] {
            match problem {
                None => self.alerts.clear(about),
                Some(problem) => self.alerts.raise(about, problem),
            }
        }
        match !signs(&state.config) || state.signs_with.is_some() {
            true => self.alerts.clear(ABOUT_SIGNING),
            false => self.alerts.raise(
                ABOUT_SIGNING,
                format!(
                    "no key in {} may sign yet: connections and datagrams leave without a token",
                    state.config.keys.display()
                ),
            ),
        }
    }

    /// Chooses conduits again where that is due, and tries again what has failed.
    fn follow_conduits(&self, guard: &mut Option<State>) {
        let Some(state) = guard.as_mut() else {
            return;
        };
        let has_failed = state.failed.is_some();
        if !(has_failed || state.conduits.go_by_file()) || state.chose.elapsed() < LOOK {
            return;
        }
        state.chose = Instant::now();
        let own = conduits::own_addresses();
        let again = state.conduits.again(&state.config, &own, Timestamp::now());
        let next = match again {
            Some(next) if has_failed || next.networks != state.conduits.networks => next,
            Some(next) => {
                state.conduits = next;
                return;
            }
            None if has_failed => state.conduits.clone(),
            None => return,
        };
        if next.networks != state.conduits.networks {
            tracing::info!(
                "[token]: tokens to some networks stand elsewhere now, for this host has other addresses"
            );
        }
        let (config, secrets) = (state.config.clone(), state.secrets.clone());
        let observe = state.observe;
        if let Err(error) = self.put(guard, &config, observe, secrets, next)
            && let Some(state) = guard
        {
            state.failed = Some(error.to_string());
        }
    }

    /// Has tokens hold for the control group that is at its path now: one that was removed and
    /// made anew is another one, and one may come later than the daemon.
    fn follow_group(&self, state: &mut State) {
        let Some(path) = state.config.cgroup.clone() else {
            return;
        };
        let is_there = state.cgroup.is_at(&path);
        GROUP.follow(&self.alerts, &path, is_there, |cgroup| {
            let State {
                kernel,
                loaded,
                verifies,
                ..
            } = &mut *state;
            loaded.move_to(kernel, &cgroup, *verifies)?;
            state.cgroup = cgroup;
            Ok(())
        });
    }

    /// Follows the programs, the keys' times and the clock until the daemon ends.
    pub fn run(&self, stopping: &AtomicBool, pulse: &Pulse) {
        while !stopping.load(Ordering::Relaxed) {
            pulse.beat();
            thread::sleep(WAIT);
            let mut guard = self.state();
            self.follow_conduits(&mut guard);
            let Some(state) = &mut *guard else { continue };
            self.follow_group(state);
            let is_due = state.followed.elapsed() >= FOLLOW;
            let mut done = state.follow_programs(&self.apps);
            if state.gateway.follow(is_due) {
                self.alert_signing(state);
            }
            if is_due {
                state.followed = Instant::now();
                done = done.and_then(|()| state.kernel.put_clock(kernel::clock_offset()));
                if state.looked.elapsed() >= LOOK {
                    state.looked = Instant::now();
                    state.follow_interfaces();
                }
                done = done.and_then(|()| state.follow_dropped());
                self.alert_signing(state);
            }
            let failed = done.err().map(|error| error.to_string());
            match failed.or_else(|| state.failed.clone()) {
                Some(error) => self.alerts.raise(ABOUT_KERNEL, error),
                None if is_due => self.alerts.clear(ABOUT_KERNEL),
                None => {}
            }
        }
    }
}

impl State {
    /// Has each program that is known sign, with the key that signs now, and nobody else.
    fn follow_programs(&mut self, apps: &Apps) -> Result<(), weir_bpf::Error> {
        if !signs(&self.config) {
            return Ok(());
        }
        let signing = self.secrets.keys.signing(Timestamp::now());
        let id = signing.map(|(id, _)| id);
        if id != self.signs_with {
            self.signs_with = id;
            self.known = None;
            // With another key all of them are written anew.
            self.signers
                .values_mut()
                .for_each(|(_, digest)| *digest = Digest([0; 32]));
        }
        let Some((since, known)) = apps.who_may_sign(self.known.as_ref()) else {
            return Ok(());
        };
        let known: BTreeMap<u16, (Handle, Digest)> = match signing {
            None => BTreeMap::new(),
            Some(_) => known
                .into_iter()
                .map(|(handle, digest)| (handle.number(), (handle, digest)))
                .collect(),
        };
        for number in self
            .signers
            .keys()
            .filter(|number| !known.contains_key(number))
        {
            self.kernel.forget_signer(*number)?;
        }
        for (number, (handle, digest)) in &known {
            if let Some((id, secret)) = signing
                && self.signers.get(number) != Some(&(*handle, *digest))
            {
                let key = secret.identity_key(id, digest);
                self.kernel
                    .put_signer(*handle, id.number(), key.0, prefix_of(digest))?;
            }
        }
        self.signers = known;
        self.known = Some(since);
        Ok(())
    }

    /// Has datagrams and segments get tokens where they leave now.
    fn follow_interfaces(&mut self) {
        let now = Instant::now();
        let interfaces = self.config.interfaces.as_deref();
        let by_ip = self.conduits.by_ip();
        let datagrams = Wanted {
            interfaces,
            networks: &by_ip,
            keys: "sign_udp_to or sign_to",
            otherwise: "UDP datagrams to sign_udp_to, and SYNs whose token stands in the IP header, leave without a token",
        };
        let segments = Wanted {
            interfaces,
            networks: &self.config.sign_to,
            keys: "sign_to",
            otherwise: match self.config.scope {
                Scope::Daf => "segments to sign_to leave without a signature of DAF",
                Scope::Flow | Scope::Payload => {
                    "connections to sign_to, whose segments are to be signed, cannot leave"
                }
            },
        };
        for (side, wanted) in [
            (&mut self.datagrams, datagrams),
            (&mut self.segments, segments),
        ] {
            if let Some(signer) = &side.signer {
                side.at = interfaces::follow(signer, &wanted, &side.at, now);
            }
        }
    }

    /// Looks whether segments have been dropped that could not be signed.
    fn follow_dropped(&mut self) -> Result<(), weir_bpf::Error> {
        let now = self.kernel.segments()?.dropped();
        if now > self.dropped.0 {
            self.dropped.1 = Some(Instant::now());
        }
        self.dropped.0 = now;
        Ok(())
    }

    /// What each requirement has counted, those of before counted in.
    fn all_outcomes(&self) -> Result<BTreeMap<String, OutcomeCounts>, weir_bpf::Error> {
        self.sum_outcomes(|number| self.kernel.outcomes(number))
    }

    /// What each requirement has counted before, and these counts by its number.
    fn sum_outcomes(
        &self,
        counts: impl Fn(usize) -> Result<OutcomeCounts, weir_bpf::Error>,
    ) -> Result<BTreeMap<String, OutcomeCounts>, weir_bpf::Error> {
        let mut all = self.before.clone();
        for (number, requirement) in self.config.requirements.iter().enumerate() {
            let now = counts(number)?;
            let of = all.entry(requirement.name.clone()).or_default();
            of.iter_mut().zip(now).for_each(|(sum, now)| *sum += now);
        }
        Ok(all)
    }
}
