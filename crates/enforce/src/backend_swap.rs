//! Which backend a configuration gets, and the change from one to another while
//! packets come: the new one is filled and attached beside the old one, which
//! goes only then. So there is no moment without enforcement, and what is
//! inserted meanwhile goes to both. Bans that only notify are beside whichever it is.

mod family;
mod notified;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard},
    time::Duration,
};

use weir_bpf::BanCounts;
use weir_core::{BanSource, BanTarget, PortSet, PrefixSet, address_class::Classes};

use crate::{
    Attachment, Backend, Balance, ClassCounter, ClassFilter, CountedReal, Counter, DecoyCounts,
    DecoyResponder, Decoys, Entry, Error, Expiry, Forwarder, InsertError, InsertSummary, KnownReal,
    Limit, NeighbourSnapshot, PacketEvent, PacketEvents, Policy, RealCount, ServiceCount, Settings,
    TarpitCounts, Usage, Work, claim::Claim, features,
};
use family::Family;
pub use family::{BackendHome, detach, instances, left_in_kernel, protected};
use notified::NotifiedBans;

/// Opens the backend that the settings name; see [`Backend::attach`]. What
/// other backends of an earlier daemon enforce stays in force until this one is
/// attached, and is in it.
///
/// # Errors
/// It cannot be opened.
pub fn open(place: &BackendHome) -> Result<Arc<dyn Backend>, Error> {
    let kind = Family::of(place.settings.backend);
    let claim = kind.claim(&place.instance)?;
    let present = kind.open(place, place.room)?;
    let mut left = Vec::new();
    for other in Family::LASTING {
        if other == kind || !other.is_there(place) {
            continue;
        }
        let mut there = place.clone();
        there.settings.backend = other.choice();
        let taken = other
            .open(&there, BanCounts::default())
            .and_then(|before| Ok(present.insert(&before.entries()?)?));
        if let Err(error) = taken {
            tracing::warn!("bans of the earlier backend are not taken over: {error}");
        }
        left.push(other);
    }
    Ok(Arc::new(BackendSwap {
        place: place.clone(),
        present: RwLock::new(Present {
            kind,
            backend: present,
        }),
        coming: RwLock::new(None),
        no_room: Mutex::default(),
        evicted: Mutex::default(),
        mirrored: Mutex::default(),
        left: Mutex::new(left),
        claim: Mutex::new(claim),
        notified: NotifiedBans::new(place.settings.max_bans, place.ipv4_length),
    }))
}

/// Whoever enforces, exchangeable.
struct BackendSwap {
    place: BackendHome,
    /// Write-locked only for the exchange itself.
    present: RwLock<Present>,
    /// The next one, while it is filled: bans go to both.
    coming: RwLock<Option<Arc<dyn Backend>>>,
    /// What had to go from the next one while it was filled.
    no_room: Mutex<HashSet<Name>>,
    /// What was in force and has found no place in the one that is.
    evicted: Mutex<Vec<Entry>>,
    mirrored: Mutex<MirroredState>,
    /// What earlier daemons left by other backends, until this one is attached.
    left: Mutex<Vec<Family>>,
    claim: Mutex<Option<Claim>>,
    /// What no backend is told of.
    notified: NotifiedBans,
}

/// A ban's name: whose, and which of them.
type Name = (BanTarget, Arc<Policy>);

fn name(entry: &Entry) -> Name {
    (entry.subject, entry.policy.clone())
}

#[derive(Clone)]
struct Present {
    kind: Family,
    backend: Arc<dyn Backend>,
}

/// What the next backend is told as well.
#[derive(Default)]
struct MirroredState {
    allow: PrefixSet,
    classes: Option<Arc<Classes>>,
    decoys: Decoys,
    balance: Balance,
    attached: bool,
}

impl BackendSwap {
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

    fn mirrored(&self) -> MutexGuard<'_, MirroredState> {
        self.mirrored.lock().expect("no holder of this lock panics")
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
    fn exchange(&self, kind: Family, settings: &Settings) -> Result<(), Error> {
        // Nothing else of the configuration changes meanwhile.
        let mirrored = self.mirrored();
        let before = self.present();
        let mut place = self.place.clone();
        place.settings = settings.clone();
        let usage = before.backend.usage();
        if self.claim().is_none() {
            *self.claim() = kind.claim(&place.instance)?;
        }
        let next = kind.open(&place, BanCounts::each(usage.bans))?;
        let filled = self
            .fill(&before, &next, &mirrored)
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
    fn take_over(
        &self,
        before: &Present,
        kind: Family,
        next: Arc<dyn Backend>,
    ) -> Result<(), Error> {
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

    fn fill(
        &self,
        before: &Present,
        next: &Arc<dyn Backend>,
        mirrored: &MirroredState,
    ) -> Result<(), Error> {
        // From here on bans go to both; then those that are there already.
        self.no_room().clear();
        self.set_coming(Some(next.clone()));
        self.insert_beside(&**next, &before.backend.entries()?)?;
        next.set_allow(&mirrored.allow)?;
        if let Some(classes) = &mirrored.classes {
            features::set_classes(&**next, classes)?;
        }
        features::set_decoys(&**next, &mirrored.decoys)?;
        features::set_balance(&**next, &mirrored.balance)?;
        if mirrored.attached {
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

/// Whether two ends are the same, but for what clocks round.
fn is_near(a: Expiry, b: Expiry) -> bool {
    match (a, b) {
        (Expiry::At(a), Expiry::At(b)) => a.0.abs_diff(b.0) < 2_000_000_000,
        (a, b) => a == b,
    }
}

impl Backend for BackendSwap {
    fn name(&self) -> &'static str {
        self.backend().name()
    }

    fn limits(&self) -> &'static [Limit] {
        self.backend().limits()
    }

    fn insert(&self, entries: &[Entry]) -> Result<InsertSummary, InsertError> {
        let coming = self.coming();
        let backend = self.backend();
        let deny = |entries: &[Entry]| {
            let done = backend.insert(entries)?;
            let outcome = match &*coming {
                Some(next) => self.insert_beside(&**next, entries),
                None => Ok(()),
            };
            done.with(outcome)
        };
        if self.notified.has_no_part_in(entries) {
            return deny(entries);
        }
        self.notified.insert_beside(entries, &*backend, deny)
    }

    fn remove(
        &self,
        subject: BanTarget,
        producer: Option<&BanSource>,
        scope: Option<&PortSet>,
    ) -> Result<Vec<Entry>, Error> {
        let coming = self.coming();
        let mut lifted = self.backend().remove(subject, producer, scope)?;
        if let Some(next) = &*coming {
            next.remove(subject, producer, scope)?;
        }
        lifted.extend(self.notified.remove(subject, producer, scope));
        Ok(lifted)
    }

    fn entries(&self) -> Result<Vec<Entry>, Error> {
        let mut entries = self.backend().entries()?;
        entries.extend(self.notified.entries());
        Ok(entries)
    }

    fn bans_by_producer(&self) -> Result<BTreeMap<BanSource, u64>, Error> {
        let mut bans = self.backend().bans_by_producer()?;
        self.notified.count_in(&mut bans);
        Ok(bans)
    }

    fn entries_for(&self, addr: IpAddr) -> Result<Vec<Entry>, Error> {
        let mut entries = self.backend().entries_for(addr)?;
        entries.extend(self.notified.entries_for(addr));
        Ok(entries)
    }

    fn set_allow(&self, allow: &PrefixSet) -> Result<(), Error> {
        let mut mirrored = self.mirrored();
        self.backend().set_allow(allow)?;
        mirrored.allow = allow.clone();
        Ok(())
    }

    fn classes(&self) -> Option<&dyn ClassFilter> {
        Some(self)
    }

    fn decoys(&self) -> Option<&dyn DecoyResponder> {
        Some(self)
    }

    fn balancer(&self) -> Option<&dyn Forwarder> {
        Some(self)
    }

    fn packet_events(&self) -> Option<&dyn PacketEvents> {
        Some(self)
    }

    fn counters(&self) -> Result<Vec<Counter>, Error> {
        self.backend().counters()
    }

    fn attach(&self) -> Result<(), Error> {
        let mut mirrored = self.mirrored();
        self.backend().attach()?;
        mirrored.attached = true;
        let left = std::mem::take(&mut *self.left.lock().expect("no holder of this lock panics"));
        for kind in left {
            kind.end(&self.place)?;
        }
        Ok(())
    }

    fn reconfigure(&self, settings: &Settings) -> Result<(), Error> {
        self.notified.set_max_bans(settings.max_bans);
        let kind = Family::of(settings.backend);
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
        self.notified.counted_in(self.backend().usage())
    }

    fn memory(&self) -> Option<u64> {
        self.backend().memory()
    }

    fn table_work(&self) -> Option<Work> {
        self.backend().table_work()
    }

    fn maintain(&self) -> Result<(), Error> {
        if let Some(claim) = &*self.claim() {
            claim.drain();
        }
        self.notified.drop_over();
        self.backend().maintain()
    }
}

// Offered whatever the present backend offers: the next one is told as well.

impl ClassFilter for BackendSwap {
    fn set_classes(&self, classes: &Arc<Classes>) -> Result<(), Error> {
        let mut mirrored = self.mirrored();
        features::set_classes(&*self.backend(), classes)?;
        mirrored.classes = Some(classes.clone());
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

impl DecoyResponder for BackendSwap {
    fn set_decoys(&self, decoys: &Decoys) -> Result<(), Error> {
        let mut mirrored = self.mirrored();
        features::set_decoys(&*self.backend(), decoys)?;
        mirrored.decoys = decoys.clone();
        Ok(())
    }

    fn set_segment(&self, segment: &NeighbourSnapshot) -> Result<(), Error> {
        match self.backend().decoys() {
            Some(responder) => responder.set_segment(segment),
            None => Ok(()),
        }
    }

    fn tarpit_counts(&self) -> Result<TarpitCounts, Error> {
        match self.backend().decoys() {
            Some(responder) => responder.tarpit_counts(),
            None => Ok(TarpitCounts::default()),
        }
    }

    fn decoy_counts(&self) -> Result<DecoyCounts, Error> {
        match self.backend().decoys() {
            Some(responder) => responder.decoy_counts(),
            None => Ok(DecoyCounts::default()),
        }
    }
}

impl Forwarder for BackendSwap {
    fn set_balance(&self, balance: &Balance) -> Result<(), Error> {
        let mut mirrored = self.mirrored();
        features::set_balance(&*self.backend(), balance)?;
        mirrored.balance = balance.clone();
        Ok(())
    }

    fn flows(&self) -> Option<u32> {
        self.backend().balancer().and_then(|it| it.flows())
    }

    fn known_reals(&self) -> Result<HashMap<u64, KnownReal>, Error> {
        match self.backend().balancer() {
            Some(forwarder) => forwarder.known_reals(),
            None => Ok(HashMap::new()),
        }
    }

    fn real_count(&self, number: u32) -> Result<RealCount, Error> {
        match self.backend().balancer() {
            Some(forwarder) => forwarder.real_count(number),
            None => Ok(RealCount::default()),
        }
    }

    fn count_active_flows(&self, reals: &[CountedReal]) -> Result<(), Error> {
        match self.backend().balancer() {
            Some(forwarder) => forwarder.count_active_flows(reals),
            None => Ok(()),
        }
    }

    fn active_flows(&self, number: u32) -> u64 {
        let backend = self.backend();
        backend.balancer().map_or(0, |it| it.active_flows(number))
    }

    fn service_count(&self, number: u32) -> Result<ServiceCount, Error> {
        match self.backend().balancer() {
            Some(forwarder) => forwarder.service_count(number),
            None => Ok(ServiceCount::default()),
        }
    }

    fn forget_balance_counts(&self, reals: &[u32], services: &[u32]) -> Result<(), Error> {
        match self.backend().balancer() {
            Some(forwarder) => forwarder.forget_balance_counts(reals, services),
            None => Ok(()),
        }
    }
}

impl PacketEvents for BackendSwap {
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
mod tests;
