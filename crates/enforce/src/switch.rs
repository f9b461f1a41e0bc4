//! Which backend a configuration gets, and the change from one to another while
//! packets come: the new one is filled and attached beside the old one, which
//! goes only then. So there is no moment without enforcement, and what is
//! inserted meanwhile goes to both.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard},
    time::{Duration, Instant},
};

use weir_bpf::device::Device;
use weir_core::{PrefixSet, Producer, Scope, Subject, class::Classes};

use crate::{
    Attachment, Backend, Choice, ClassCounter, ClassFilter, Counter, DecoyCounts, DecoyResponder,
    Decoys, DryRun, Entry, Error, Expiry, InsertError, Inserted, Limit, PacketEvent, PacketEvents,
    Policy, Settings, Usage,
    claim::Claim,
    features, ipset,
    kernel::{self, KernelConfig},
    nft,
};

/// Where backends keep what outlives a daemon, and with which settings one
/// begins.
#[derive(Debug, Clone)]
pub struct Place {
    /// The name that pins, tables and sets carry.
    pub instance: String,
    /// As [`KernelConfig::pin_root`].
    pub pin_root: PathBuf,
    /// As [`KernelConfig::ipv4_length`].
    pub ipv4_length: Option<u8>,
    /// As [`KernelConfig::room`].
    pub room: (usize, usize),
    /// What may change later, the backend itself among it.
    pub settings: Settings,
}

/// A backend that is no longer used has gone after this time.
const PATIENCE: Duration = Duration::from_secs(5);

/// Those that leave something in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bpf,
    Nft,
    Ipset,
    DryRun,
}

impl Kind {
    const LASTING: [Self; 3] = [Self::Bpf, Self::Nft, Self::Ipset];

    fn of(choice: Choice) -> Self {
        match choice {
            Choice::Auto | Choice::Kernel(_) => Self::Bpf,
            Choice::Nft => Self::Nft,
            Choice::Ipset => Self::Ipset,
            Choice::DryRun => Self::DryRun,
        }
    }

    /// A choice of this kind, for reading what an earlier daemon left.
    fn choice(self) -> Choice {
        match self {
            Self::Bpf => Choice::Auto,
            Self::Nft => Choice::Nft,
            Self::Ipset => Choice::Ipset,
            Self::DryRun => Choice::DryRun,
        }
    }

    fn open(self, place: &Place, room: (usize, usize)) -> Result<Arc<dyn Backend>, Error> {
        let settings = &place.settings;
        Ok(match self {
            Self::Bpf => kernel::open(&KernelConfig {
                instance: place.instance.clone(),
                pin_root: place.pin_root.clone(),
                ipv4_length: place.ipv4_length,
                room,
                settings: settings.clone(),
            })?,
            Self::Nft => nft::open(&place.instance, place.ipv4_length, settings)?,
            Self::Ipset => ipset::open(&place.instance, place.ipv4_length, settings)?,
            Self::DryRun => Arc::new(DryRun::new(settings.max_bans, place.ipv4_length)),
        })
    }

    /// Has an earlier daemon left something of this kind?
    fn is_there(self, place: &Place) -> bool {
        match self {
            Self::Bpf => kernel::is_there(&place.pin_root, &place.instance),
            Self::Nft => nft::is_there(&place.instance),
            Self::Ipset => ipset::is_there(&place.instance),
            Self::DryRun => false,
        }
    }

    /// Takes away what a backend of this daemon leaves, once its last user (a
    /// thread that waits for events) has gone.
    fn end(self, place: &Place) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.detach(&place.pin_root, &place.instance) {
                Err(Error::Busy(_) | Error::Kernel(_)) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => return Err(error),
                Ok(gone) => {
                    if !gone.is_empty() {
                        tracing::info!("taken away: {}", gone.join(", "));
                    }
                    return Ok(());
                }
            }
        }
    }

    /// The right to be the only one of this instance; nobody needs it who leaves
    /// nothing in the kernel.
    fn claim(self, instance: &str) -> Result<Option<Claim>, Error> {
        match self {
            Self::DryRun => Ok(None),
            _ => Claim::take(instance).map(Some),
        }
    }

    /// The interfaces that an earlier daemon protects.
    fn interfaces(self, place: &Place) -> Vec<String> {
        match self {
            Self::Bpf => kernel::attached(&place.pin_root, &place.instance),
            Self::Nft => nft::interfaces(&place.instance),
            Self::Ipset => ipset::interfaces(&place.instance),
            Self::DryRun => Vec::new(),
        }
    }

    fn detach(self, pin_root: &Path, instance: &str) -> Result<Vec<String>, Error> {
        match self {
            Self::Bpf => kernel::detach(pin_root, instance),
            Self::Nft => nft::detach(instance),
            Self::Ipset => ipset::detach(instance),
            Self::DryRun => Ok(Vec::new()),
        }
    }
}

/// Takes all of an instance out of the kernel, whichever backend left it;
/// returns what there was.
///
/// # Errors
/// A daemon holds the instance; or the first that something could not be taken
/// away with: the rest is.
pub fn detach(pin_root: &Path, instance: &str) -> Result<Vec<String>, Error> {
    let _alone = Claim::take(instance)?;
    let mut gone = Vec::new();
    let mut outcome = Ok(());
    for kind in Kind::LASTING {
        match kind.detach(pin_root, instance) {
            Ok(more) => gone.extend(more),
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome.map(|()| gone)
}

/// The instances that have something in the kernel, as far as its names tell:
/// those of ipset are shortened.
pub fn instances(pin_root: &Path) -> Vec<String> {
    let mut all = kernel::instances(pin_root);
    all.extend(nft::instances());
    all.sort();
    all.dedup();
    all
}

/// What an instance has in the kernel, in words: it goes on dropping without a
/// daemon. Empty as well for whoever may not look.
pub fn left_in_kernel(pin_root: &Path, instance: &str) -> Vec<String> {
    let pins = pin_root.join(weir_bpf::pins::escape(instance));
    let there = [
        (
            kernel::is_there(pin_root, instance),
            format!("BPF programs pinned in {}", pins.display()),
        ),
        (nft::is_there(instance), "rules of nft".to_owned()),
        (ipset::is_there(instance), "sets of ipset".to_owned()),
    ];
    there
        .into_iter()
        .filter_map(|(is_there, what)| is_there.then_some(what))
        .collect()
}

/// The interfaces that an earlier daemon of this instance protects, those that
/// are there: for whoever must not let go of them.
pub fn protected(place: &Place) -> Vec<String> {
    let kinds = Kind::LASTING.into_iter();
    let mut all: Vec<_> = kinds.flat_map(|kind| kind.interfaces(place)).collect();
    all.retain(|name| !matches!(Device::find_present(name), Ok(None)));
    all.sort();
    all.dedup();
    all
}

/// Opens the backend that the settings name; see [`Backend::attach`]. What
/// other backends of an earlier daemon enforce stays in force until this one is
/// attached, and is in it.
///
/// # Errors
/// It cannot be opened.
pub fn open(place: &Place) -> Result<Arc<dyn Backend>, Error> {
    let kind = Kind::of(place.settings.backend);
    let claim = kind.claim(&place.instance)?;
    let present = kind.open(place, place.room)?;
    let mut left = Vec::new();
    for other in Kind::LASTING {
        if other == kind || !other.is_there(place) {
            continue;
        }
        let mut there = place.clone();
        there.settings.backend = other.choice();
        let taken = other
            .open(&there, (0, 0))
            .and_then(|before| Ok(present.insert(&before.entries()?)?));
        if let Err(error) = taken {
            tracing::warn!("bans of the earlier backend are not taken over: {error}");
        }
        left.push(other);
    }
    Ok(Arc::new(Switch {
        place: place.clone(),
        present: RwLock::new(Present {
            kind,
            backend: present,
        }),
        coming: RwLock::new(None),
        no_room: Mutex::default(),
        evicted: Mutex::default(),
        told: Mutex::default(),
        left: Mutex::new(left),
        claim: Mutex::new(claim),
    }))
}

/// Whoever enforces, exchangeable.
struct Switch {
    place: Place,
    /// Write-locked only for the exchange itself.
    present: RwLock<Present>,
    /// The next one, while it is filled: bans go to both.
    coming: RwLock<Option<Arc<dyn Backend>>>,
    /// What had to go from the next one while it was filled.
    no_room: Mutex<HashSet<Name>>,
    /// What was in force and has found no place in the one that is.
    evicted: Mutex<Vec<Entry>>,
    told: Mutex<Told>,
    /// What earlier daemons left by other backends, until this one is attached.
    left: Mutex<Vec<Kind>>,
    claim: Mutex<Option<Claim>>,
}

/// A ban's name: whose, and which of them.
type Name = (Subject, Arc<Policy>);

fn name(entry: &Entry) -> Name {
    (entry.subject, entry.policy.clone())
}

#[derive(Clone)]
struct Present {
    kind: Kind,
    backend: Arc<dyn Backend>,
}

/// What the next backend is told as well.
#[derive(Default)]
struct Told {
    allow: PrefixSet,
    classes: Option<Arc<Classes>>,
    decoys: Decoys,
    attached: bool,
}

impl Switch {
    fn present(&self) -> Present {
        let present = self.present.read();
        present.expect("no holder of this lock panics").clone()
    }

    fn backend(&self) -> Arc<dyn Backend> {
        self.present().backend
    }

    fn coming(&self) -> RwLockReadGuard<'_, Option<Arc<dyn Backend>>> {
        self.coming.read().expect("no holder of this lock panics")
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().expect("no holder of this lock panics")
    }

    fn claim(&self) -> MutexGuard<'_, Option<Claim>> {
        self.claim.lock().expect("no holder of this lock panics")
    }

    fn no_room(&self) -> MutexGuard<'_, HashSet<Name>> {
        self.no_room.lock().expect("no holder of this lock panics")
    }

    fn evicted(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.evicted.lock().expect("no holder of this lock panics")
    }

    /// Puts entries into the next backend, which may have less room.
    fn insert_beside(&self, next: &dyn Backend, entries: &[Entry]) -> Result<(), Error> {
        let (done, outcome) = match next.insert(entries) {
            Ok(done) => (done, Ok(())),
            Err(InsertError { done, error }) => (done, Err(error)),
        };
        self.no_room().extend(done.evicted.iter().map(name));
        outcome
    }

    fn set_coming(&self, next: Option<Arc<dyn Backend>>) {
        *self.coming.write().expect("no holder of this lock panics") = next;
    }

    /// Exchanges the backend for one of another kind.
    fn exchange(&self, kind: Kind, settings: &Settings) -> Result<(), Error> {
        // Nothing else of the configuration changes meanwhile.
        let told = self.told();
        let before = self.present();
        let mut place = self.place.clone();
        place.settings = settings.clone();
        let usage = before.backend.usage();
        if self.claim().is_none() {
            *self.claim() = kind.claim(&place.instance)?;
        }
        let next = kind.open(&place, (usage.bans, usage.bans))?;
        let filled = self
            .fill(&before, &next, &told)
            .and_then(|()| self.take_over(&before, kind, next));
        if let Err(error) = filled {
            self.set_coming(None);
            kind.end(&place)?;
            return Err(error);
        }
        tracing::info!(
            "backend {} in place of {}",
            settings.backend.name(),
            before.backend.name()
        );
        let gone = before.kind;
        drop(before);
        gone.end(&place)
    }

    /// Makes the next backend the present one. Whoever inserts or lifts bans
    /// waits while both are compared.
    fn take_over(&self, before: &Present, kind: Kind, next: Arc<dyn Backend>) -> Result<(), Error> {
        let mut coming = self.coming.write().expect("no holder of this lock panics");
        let evicted = agree(&*before.backend, &*next, &self.no_room())?;
        self.evicted().extend(evicted);
        *self.present.write().expect("no holder of this lock panics") = Present {
            kind,
            backend: next,
        };
        *coming = None;
        Ok(())
    }

    fn fill(&self, before: &Present, next: &Arc<dyn Backend>, told: &Told) -> Result<(), Error> {
        // From here on bans go to both; then those that are there already.
        self.no_room().clear();
        self.set_coming(Some(next.clone()));
        self.insert_beside(&**next, &before.backend.entries()?)?;
        next.set_allow(&told.allow)?;
        if let Some(classes) = &told.classes {
            features::set_classes(&**next, classes)?;
        }
        features::set_decoys(&**next, &told.decoys)?;
        if told.attached {
            next.attach()?;
        }
        Ok(())
    }
}

/// Has `next` hold what `now` does: a ban may have been lifted after it was
/// read, and before it was inserted. Returns what it has no room for.
fn agree(
    now: &dyn Backend,
    next: &dyn Backend,
    no_room: &HashSet<Name>,
) -> Result<Vec<Entry>, Error> {
    let mut there: HashMap<_, _> = next
        .entries()?
        .into_iter()
        .map(|entry| (name(&entry), entry.expiry))
        .collect();
    let (mut missing, mut evicted) = (Vec::new(), Vec::new());
    for entry in now.entries()? {
        let name = name(&entry);
        match there.remove(&name) {
            Some(expiry) if is_near(expiry, entry.expiry) => {}
            None if no_room.contains(&name) => evicted.push(entry),
            _ => missing.push(entry),
        }
    }
    for (subject, policy) in there.into_keys() {
        next.remove(subject, Some(&policy.producer), Some(&policy.scope))?;
    }
    evicted.extend(next.insert(&missing)?.evicted);
    Ok(evicted)
}

/// The same end, but for what clocks round.
fn is_near(a: Expiry, b: Expiry) -> bool {
    match (a, b) {
        (Expiry::At(a), Expiry::At(b)) => a.0.abs_diff(b.0) < 2_000_000_000,
        (a, b) => a == b,
    }
}

impl Backend for Switch {
    fn name(&self) -> &'static str {
        self.backend().name()
    }

    fn limits(&self) -> &'static [Limit] {
        self.backend().limits()
    }

    fn insert(&self, entries: &[Entry]) -> Result<Inserted, InsertError> {
        let coming = self.coming();
        let done = self.backend().insert(entries)?;
        let outcome = match &*coming {
            Some(next) => self.insert_beside(&**next, entries),
            None => Ok(()),
        };
        done.with(outcome)
    }

    fn remove(
        &self,
        subject: Subject,
        producer: Option<&Producer>,
        scope: Option<&Scope>,
    ) -> Result<Vec<Entry>, Error> {
        let coming = self.coming();
        let lifted = self.backend().remove(subject, producer, scope)?;
        if let Some(next) = &*coming {
            next.remove(subject, producer, scope)?;
        }
        Ok(lifted)
    }

    fn entries(&self) -> Result<Vec<Entry>, Error> {
        self.backend().entries()
    }

    fn entries_for(&self, addr: IpAddr) -> Result<Vec<Entry>, Error> {
        self.backend().entries_for(addr)
    }

    fn set_allow(&self, allow: &PrefixSet) -> Result<(), Error> {
        let mut told = self.told();
        self.backend().set_allow(allow)?;
        told.allow = allow.clone();
        Ok(())
    }

    fn classes(&self) -> Option<&dyn ClassFilter> {
        Some(self)
    }

    fn decoys(&self) -> Option<&dyn DecoyResponder> {
        Some(self)
    }

    fn packet_events(&self) -> Option<&dyn PacketEvents> {
        Some(self)
    }

    fn counters(&self) -> Result<Vec<Counter>, Error> {
        self.backend().counters()
    }

    fn attach(&self) -> Result<(), Error> {
        let mut told = self.told();
        self.backend().attach()?;
        told.attached = true;
        let left = std::mem::take(&mut *self.left.lock().expect("no holder of this lock panics"));
        for kind in left {
            kind.end(&self.place)?;
        }
        Ok(())
    }

    fn reconfigure(&self, settings: &Settings) -> Result<(), Error> {
        let kind = Kind::of(settings.backend);
        if kind == self.present().kind {
            return self.backend().reconfigure(settings);
        }
        self.exchange(kind, settings)
    }

    fn take_evicted(&self) -> Vec<Entry> {
        std::mem::take(&mut *self.evicted())
    }

    fn attachments(&self) -> Vec<Attachment> {
        self.backend().attachments()
    }

    fn usage(&self) -> Usage {
        self.backend().usage()
    }

    fn memory(&self) -> Option<u64> {
        self.backend().memory()
    }

    fn maintain(&self) -> Result<(), Error> {
        if let Some(claim) = &*self.claim() {
            claim.drain();
        }
        self.backend().maintain()
    }
}

// Offered whatever the present backend offers: the next one is told as well.

impl ClassFilter for Switch {
    fn set_classes(&self, classes: &Arc<Classes>) -> Result<(), Error> {
        let mut told = self.told();
        features::set_classes(&*self.backend(), classes)?;
        told.classes = Some(classes.clone());
        Ok(())
    }

    fn has_classes(&self) -> bool {
        let backend = self.backend();
        backend.classes().is_some_and(|filter| filter.has_classes())
    }

    fn class_counts(&self) -> Result<Vec<ClassCounter>, Error> {
        match self.backend().classes() {
            Some(filter) => filter.class_counts(),
            None => Ok(Vec::new()),
        }
    }
}

impl DecoyResponder for Switch {
    fn set_decoys(&self, decoys: &Decoys) -> Result<(), Error> {
        let mut told = self.told();
        features::set_decoys(&*self.backend(), decoys)?;
        told.decoys = decoys.clone();
        Ok(())
    }

    fn decoy_counts(&self) -> Result<DecoyCounts, Error> {
        match self.backend().decoys() {
            Some(responder) => responder.decoy_counts(),
            None => Ok(DecoyCounts::default()),
        }
    }
}

impl PacketEvents for Switch {
    fn poll_events(
        &self,
        timeout: Duration,
        each: &mut dyn FnMut(PacketEvent),
    ) -> Result<usize, Error> {
        match self.backend().packet_events() {
            Some(events) => events.poll_events(timeout, each),
            None => {
                std::thread::sleep(timeout);
                Ok(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_core::Action;

    use super::*;
    use crate::BootNanos;

    fn ban(n: u8, second: u64) -> Entry {
        Entry {
            subject: format!("192.0.2.{n}").parse().unwrap(),
            policy: Arc::new(Policy {
                producer: Producer::Jail("sshd".into()),
                scope: Scope::all(),
                action: Action::Drop,
            }),
            expiry: Expiry::At(BootNanos((1 << 50) + second * 1_000_000_000)),
        }
    }

    fn subjects(mut entries: Vec<Entry>) -> Vec<String> {
        entries.sort_by_key(|entry| entry.subject);
        entries.iter().map(|e| e.subject.to_string()).collect()
    }

    fn over(before: DryRun) -> Switch {
        Switch {
            place: Place {
                instance: "test".into(),
                pin_root: PathBuf::new(),
                ipv4_length: None,
                room: (0, 0),
                settings: Settings {
                    interfaces: Vec::new(),
                    backend: Choice::DryRun,
                    advice: Default::default(),
                    max_bans: 100,
                    observe: false,
                },
            },
            present: RwLock::new(Present {
                kind: Kind::DryRun,
                backend: Arc::new(before),
            }),
            coming: RwLock::new(None),
            no_room: Mutex::default(),
            evicted: Mutex::default(),
            told: Mutex::default(),
            left: Mutex::default(),
            claim: Mutex::new(None),
        }
    }

    /// Those that end first make room, and are told.
    #[test]
    fn what_the_next_backend_has_no_room_for_is_said() {
        let switch = over(DryRun::new(100, None));
        let bans: Vec<Entry> = (1..=9).map(|n| ban(n, n.into())).collect();
        switch.insert(&bans).unwrap();
        let next: Arc<dyn Backend> = Arc::new(DryRun::new(4, None));
        let before = switch.present();
        switch.fill(&before, &next, &Told::default()).unwrap();
        // One comes meanwhile, and one is lifted.
        switch.insert(&[ban(10, 10)]).unwrap();
        switch.remove(ban(9, 9).subject, None, None).unwrap();
        switch.take_over(&before, Kind::DryRun, next).unwrap();
        let left = ["192.0.2.7", "192.0.2.8", "192.0.2.10"];
        assert_eq!(subjects(switch.entries().unwrap()), left);
        let evicted = switch.take_evicted();
        assert_eq!(evicted.len(), 6);
        assert_eq!(evicted[0].policy, bans[0].policy);
        let evicted = subjects(evicted);
        assert_eq!((&*evicted[0], &*evicted[5]), ("192.0.2.1", "192.0.2.6"));
        assert_eq!(switch.take_evicted(), []);
    }

    /// A backend that sees no packets has neither; the next one may.
    #[test]
    fn what_only_some_backends_can_is_kept_for_the_next() {
        let dry = DryRun::new(100, None);
        assert!(dry.classes().is_none() && dry.decoys().is_none());
        assert!(dry.packet_events().is_none());
        let switch = over(dry);
        let backend: &dyn Backend = &switch;
        let classes = Arc::new(Classes {
            classes: vec![Default::default(); 2],
            v4: vec![weir_core::geo::Span {
                first: 1,
                last: 9,
                value: 1,
            }],
            ..Classes::default()
        });
        let decoys = Decoys {
            ports: weir_core::decoy::DecoyPorts::new(&["23/tcp".parse().unwrap()]),
            own: Vec::new(),
        };
        features::set_classes(backend, &classes).unwrap();
        features::set_decoys(backend, &decoys).unwrap();
        let told = switch.told();
        assert_eq!(told.classes.as_ref(), Some(&classes));
        assert_eq!(told.decoys, decoys);
        let filter = backend.classes().unwrap();
        assert!(!filter.has_classes() && filter.class_counts().unwrap().is_empty());
        let none = Duration::ZERO;
        let events = backend.packet_events().unwrap();
        assert_eq!(events.poll_events(none, &mut |_| {}).unwrap(), 0);
    }
}
