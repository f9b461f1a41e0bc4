//! The backend `ipset`: sets of ipset hold the bans, and one jump in iptables'
//! `raw` PREROUTING leads to chains that look into them. For hosts that have
//! these and neither BPF nor nftables; what it cannot do is in
//! [`crate::Choice::limits`].
//!
//! The sets are the kernel's, with its clock: they outlive the daemon. Both
//! programs run as children with text on their standard input. `iptables` is
//! whatever the host calls so; where that is the legacy one, it needs
//! CAP_NET_RAW, which the daemon gives up.
//!
//! Locks: as in [`crate::nft`].

mod rules;
mod sets;

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Write,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use weir_core::{PrefixSet, Producer, Reason, Scope, Subject, class::Classes};
use weir_kernel::{clock, device::Device};

use crate::{
    Attachment, Backend, BootNanos, Choice, ClassCounter, Counter, DecoyCounts, Decoys, Entry,
    Error, Feature, Inserted, Limit, PacketEvent, Settings, Usage,
    book::{Book, Held, Pending},
    command,
    nft::iptables,
    span,
};
use rules::{Asked, IPTABLES, RESTORE, SAVE};
use sets::Bans;

/// How often bans that are longer than ipset's longest are prolonged.
const PROLONG: Duration = Duration::from_secs(3600);

/// The backend `ipset`.
pub struct Ipset {
    base: String,
    /// What `iptables --version` says.
    program: String,
    desired: Mutex<State>,
    kernel: Mutex<Inside>,
}

struct State {
    book: Book,
    allow: PrefixSet,
    classes: Arc<Classes>,
    settings: Settings,
    pending: Pending,
    had_classes: bool,
}

struct Inside {
    attached: bool,
    broken: bool,
    generation: u8,
    sets: BTreeSet<Bans>,
    /// Sets are still to be destroyed.
    untidy: bool,
    scopes: Vec<Scope>,
    /// The chains as written, by family.
    written: [String; 2],
    suspended: u64,
    prolonged: Instant,
    /// Counted before the chains were made anew.
    counted: HashMap<String, (u64, u64)>,
}

fn failed(what: &str) -> impl FnOnce(std::io::Error) -> Error {
    let what = format!("cannot {what}");
    move |source| Error::System { what, source }
}

/// Reads what an earlier daemon left under this name; changes nothing yet.
///
/// # Errors
/// A program is missing.
pub fn open(
    instance: &str,
    ipv4_length: Option<u8>,
    settings: &Settings,
) -> Result<Arc<Ipset>, Error> {
    check_names(&settings.interfaces)?;
    let version = |program: &str, package: &str| {
        command::run(program, &["--version"], "").map_err(|error| {
            Error::Unsupported(format!(
                "backend \"ipset\": {program} does not run ({error}); it is in the package {package}"
            ))
        })
    };
    version("ipset", "ipset")?;
    let program = version(IPTABLES[0], "iptables")?.trim().to_owned();
    version(IPTABLES[1], "iptables")?;
    let base = sets::base(instance);
    let mut book = Book::new(settings.max_bans, ipv4_length);
    let (entries, had_classes) = read_entries(&base)?;
    for entry in entries {
        if let Err(error) = book.insert(&entry) {
            tracing::warn!("taking over {}: {error}", entry.subject);
        }
    }
    let counted = counters(&base, &HashMap::new())?;
    Ok(Arc::new(Ipset {
        base,
        program,
        desired: Mutex::new(State {
            book,
            allow: PrefixSet::default(),
            classes: Arc::default(),
            settings: settings.clone(),
            pending: Pending::new(),
            had_classes,
        }),
        kernel: Mutex::new(Inside {
            attached: false,
            broken: false,
            generation: 0,
            sets: BTreeSet::new(),
            untidy: false,
            scopes: Vec::new(),
            written: Default::default(),
            suspended: clock::suspended(),
            prolonged: Instant::now(),
            counted,
        }),
    }))
}

/// Rules and sets of an instance, taken away; returns what was there.
pub fn detach(instance: &str) -> Result<Vec<String>, Error> {
    let base = sets::base(instance);
    let mut gone = Vec::new();
    for family in [0, 1] {
        let saved = match command::run(SAVE[family], &["-t", "raw"], "") {
            Ok(saved) => saved,
            // Without the program, or the table, there are no rules.
            Err(_) => continue,
        };
        if let Some(text) = rules::remove(&saved, &base) {
            command::run(RESTORE[family], &["--noflush"], &text)
                .map_err(failed("take weir's rules away"))?;
            let [table, chain] = rules::made(&saved, &base);
            iptables::remove_empty(family, table, chain);
            gone.push(format!("chain {base} ({})", IPTABLES[family]));
        }
    }
    let listed = match command::run("ipset", &["list", "-name"], "") {
        Ok(listed) => listed,
        Err(_) => return Ok(gone),
    };
    let ours = sets::ours(&listed, &base);
    if !ours.is_empty() {
        let destroy: String = ours.iter().map(|set| format!("destroy {set}\n")).collect();
        command::run("ipset", &["restore"], &destroy).map_err(failed("destroy weir's sets"))?;
        gone.push(format!("{} sets {base} (ipset)", ours.len()));
    }
    Ok(gone)
}

/// Are there sets of this instance?
pub fn is_there(instance: &str) -> bool {
    let listed = command::run("ipset", &["list", "-name"], "").unwrap_or_default();
    !sets::ours(&listed, &sets::base(instance)).is_empty()
}

/// What sets hold, and whether there are any of lists.
fn read_entries(base: &str) -> Result<(Vec<Entry>, bool), Error> {
    let listed =
        command::run("ipset", &["list", "-name"], "").map_err(failed("list the sets of ipset"))?;
    let mut entries = Vec::new();
    let mut had_lists = false;
    for set in sets::ours(&listed, base) {
        had_lists |= set.contains(".list");
        let saved = command::run("ipset", &["save", set], "").map_err(failed("read a set"))?;
        let now = BootNanos::now();
        let read = saved.lines().filter_map(|line| sets::read(line, base, now));
        entries.extend(read);
    }
    Ok((entries, had_lists))
}

/// Packets and bytes by counter, with what was counted before.
fn counters(
    base: &str,
    before: &HashMap<String, (u64, u64)>,
) -> Result<HashMap<String, (u64, u64)>, Error> {
    let mut counted = before.clone();
    for save in SAVE {
        let saved = command::run(save, &["-c", "-t", "raw"], "")
            .map_err(failed("read the rules of iptables"))?;
        for (counter, packets, bytes) in rules::counts(&saved, base) {
            let known = counted.entry(counter.to_owned()).or_default();
            known.0 += packets;
            known.1 += bytes;
        }
    }
    Ok(counted)
}

/// A trailing + is iptables' wildcard.
fn check_names(interfaces: &[String]) -> Result<(), Error> {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"-_.:@".contains(&b);
    match interfaces.iter().find(|name| !name.bytes().all(fine)) {
        None => Ok(()),
        Some(name) => Err(Error::Unsupported(format!(
            "backend \"ipset\": iptables cannot name the interface {name:?}"
        ))),
    }
}

impl Inside {
    fn scope(&mut self, scope: &Scope) -> u32 {
        if scope.is_all() {
            return 0;
        }
        let known = self.scopes.iter().position(|other| other == scope);
        let place = known.unwrap_or_else(|| {
            self.scopes.push(scope.clone());
            self.scopes.len() - 1
        });
        place as u32 + 1
    }

    /// The sets that a subject's bans belong to.
    fn places(&mut self, subject: Subject, held: &[Held]) -> Vec<Bans> {
        let prefix = subject.prefix();
        let mut places: Vec<Bans> = Vec::with_capacity(held.len());
        for (policy, _) in held {
            let mut place = Bans {
                generation: self.generation,
                family: usize::from(prefix.addr().is_ipv6()),
                hosts: prefix.is_host(),
                scope: self.scope(&policy.scope),
                rank: 0,
            };
            while places.contains(&place) {
                place.rank += 1;
            }
            places.push(place);
        }
        places
    }

    /// Has the sets hold against these subjects what the book does. Returns the
    /// lines for it, those that make sets first.
    fn put_bans(
        &mut self,
        base: &str,
        subjects: impl Iterator<Item = (Subject, bool)>,
        book: &Book,
    ) -> String {
        let now = BootNanos::now();
        let (mut creates, mut lines, mut deletes) = (String::new(), String::new(), String::new());
        let mut names: HashMap<Bans, String> = HashMap::new();
        let mut name = move |bans: Bans| -> String {
            names.entry(bans).or_insert_with(|| bans.name(base)).clone()
        };
        let before = self.sets.clone();
        for (subject, known) in subjects {
            let held = book.held(subject);
            let mut places = self.places(subject, held);
            let mut live = Vec::new();
            for (place, (policy, expiry)) in places.drain(..).zip(held) {
                let Some(seconds) = sets::seconds(*expiry, now) else {
                    continue;
                };
                if self.sets.insert(place) {
                    place.create(&mut creates, base);
                }
                sets::add(&mut lines, &name(place), subject, seconds, policy);
                live.push(place);
            }
            if !known {
                continue;
            }
            let prefix = subject.prefix();
            let of_its_kind = before.iter().filter(|set| {
                set.family == usize::from(prefix.addr().is_ipv6()) && set.hosts == prefix.is_host()
            });
            for set in of_its_kind.filter(|set| !live.contains(set)) {
                sets::delete(&mut deletes, &name(*set), subject);
            }
        }
        creates + &lines + &deletes
    }
}

impl Ipset {
    fn desired(&self) -> MutexGuard<'_, State> {
        self.desired.lock().expect("no holder of this lock panics")
    }

    fn kernel(&self) -> MutexGuard<'_, Inside> {
        self.kernel.lock().expect("no holder of this lock panics")
    }

    fn restore_sets(&self, lines: &str) -> Result<(), Error> {
        if lines.is_empty() {
            return Ok(());
        }
        command::run("ipset", &["-exist", "restore"], lines)
            .map(|_| ())
            .map_err(failed("change the sets of ipset"))
    }

    /// Writes our chains, and the jump to them if it is not there.
    fn put_rules(&self, kernel: &mut Inside) -> Result<(), Error> {
        let counted = counters(&self.base, &kernel.counted)?;
        for family in [0, 1] {
            let saved = command::run(SAVE[family], &["-t", "raw"], "")
                .map_err(failed("read the rules of iptables"))?;
            let (there, ours) = (iptables::are_there(family), rules::made(&saved, &self.base));
            let text = {
                let state = self.desired();
                let bans: Vec<_> = kernel
                    .sets
                    .iter()
                    .copied()
                    .filter(|bans| bans.family == family)
                    .collect();
                let asked = Asked {
                    base: &self.base,
                    interfaces: &state.settings.interfaces,
                    bans: &bans,
                    scopes: &kernel.scopes,
                    lists: &state.classes.lists,
                    observe: state.settings.observe,
                    made: [0, 1].map(|at| ours[at] || !there[at]),
                };
                rules::write(&asked, family)
            };
            command::run(RESTORE[family], &["--noflush"], &text)
                .map_err(failed("write the rules of iptables"))?;
            let jump = rules::jump(&self.base);
            if !saved.lines().any(|line| line == format!("-A {jump}")) {
                let insert = format!("*raw\n-I {jump}\nCOMMIT\n");
                command::run(RESTORE[family], &["--noflush"], &insert)
                    .map_err(failed("write the rules of iptables"))?;
            }
            kernel.written[family] = text;
        }
        kernel.counted = counted;
        Ok(())
    }

    /// A set of prefixes, filled aside and exchanged whole.
    fn put_prefixes(&self, set: &str, family: usize, prefixes: &[String]) -> Result<(), Error> {
        let aside = format!("{}.new", self.base);
        let mut lines = String::new();
        sets::create_prefixes(&mut lines, set, family);
        sets::create_prefixes(&mut lines, &aside, family);
        let _ = writeln!(lines, "flush {aside}");
        for prefix in prefixes {
            let _ = writeln!(lines, "add {aside} {prefix}");
        }
        let _ = write!(lines, "swap {aside} {set}\ndestroy {aside}\n");
        self.restore_sets(&lines)
    }

    fn put_allow(&self) -> Result<(), Error> {
        let (v4, v6) = span::of_prefixes(self.desired().allow.iter());
        let text = |first, last, bits| {
            let prefixes = sets::prefixes_of(first, last, bits).into_iter();
            prefixes.map(|prefix| prefix.to_string())
        };
        let v4: Vec<_> = v4
            .into_iter()
            .flat_map(|(first, last)| text(first.into(), last.into(), 32))
            .collect();
        let v6: Vec<_> = v6
            .into_iter()
            .flat_map(|(first, last)| text(first, last, 128))
            .collect();
        for (family, prefixes) in [v4, v6].iter().enumerate() {
            self.put_prefixes(&rules::allow_set(&self.base, family), family, prefixes)?;
        }
        Ok(())
    }

    fn put_lists(&self) -> Result<(), Error> {
        let classes = self.desired().classes.clone();
        for bit in 0..classes.lists.len() {
            let listed = |class: u16| {
                let class = classes.classes.get(usize::from(class));
                class.is_some_and(|class| class.lists >> bit & 1 == 1)
            };
            let v4: Vec<_> = classes
                .v4
                .iter()
                .filter(|span| listed(span.value))
                .flat_map(|span| sets::prefixes_of(span.first.into(), span.last.into(), 32))
                .map(|prefix| prefix.to_string())
                .collect();
            let v6: Vec<_> = classes
                .v6
                .iter()
                .filter(|span| listed(span.value))
                .flat_map(|span| sets::prefixes_of(span.first, span.last, 128))
                .map(|prefix| prefix.to_string())
                .collect();
            for (family, prefixes) in [v4, v6].iter().enumerate() {
                self.put_prefixes(&rules::list_set(&self.base, bit, family), family, prefixes)?;
            }
        }
        Ok(())
    }

    /// Everything anew, in sets beside those that are there: the rules change
    /// over to them in one transaction a family.
    fn put_all(&self, kernel: &mut Inside) -> Result<(), Error> {
        kernel.broken = true;
        let there = self.sets_there()?;
        let in_use = |generation: &u8| {
            let begin = format!("{}.{generation}", self.base);
            there.iter().any(|set| set.starts_with(&begin))
        };
        kernel.generation = (0..10).find(|g| !in_use(g)).unwrap_or(0);
        let lines = {
            let mut state = self.desired();
            state.pending.clear();
            kernel.sets.clear();
            kernel.scopes.clear();
            let all = state.book.all().map(|(subject, _)| (subject, false));
            kernel.put_bans(&self.base, all, &state.book)
        };
        self.restore_sets(&lines)?;
        self.put_allow()?;
        self.put_lists()?;
        self.put_rules(kernel)?;
        kernel.broken = false;
        kernel.attached = true;
        kernel.suspended = clock::suspended();
        kernel.prolonged = Instant::now();
        self.tidy(kernel);
        Ok(())
    }

    fn sets_there(&self) -> Result<Vec<String>, Error> {
        let listed = command::run("ipset", &["list", "-name"], "")
            .map_err(failed("list the sets of ipset"))?;
        let ours = sets::ours(&listed, &self.base).into_iter();
        Ok(ours.map(str::to_owned).collect())
    }

    /// Destroys sets of ours that no rule asks any more; again later, when the
    /// kernel has not let go of them yet.
    fn tidy(&self, kernel: &mut Inside) {
        let lists = self.desired().classes.lists.len();
        let mut wanted: Vec<_> = kernel.sets.iter().map(|set| set.name(&self.base)).collect();
        for family in [0, 1] {
            wanted.push(rules::allow_set(&self.base, family));
            wanted.extend((0..lists).map(|bit| rules::list_set(&self.base, bit, family)));
        }
        let there = self.sets_there().unwrap_or_default();
        kernel.untidy = false;
        for set in there.iter().filter(|set| !wanted.contains(set)) {
            if let Err(error) = command::run("ipset", &["destroy", set], "") {
                tracing::debug!("{error}; again in a second");
                kernel.untidy = true;
            }
        }
    }

    /// As [`crate::nft`]: all that has come.
    fn put_pending(&self) -> Result<(), Error> {
        let mut kernel = self.kernel();
        let kernel = &mut *kernel;
        if kernel.broken {
            return self.put_all(kernel);
        }
        if !kernel.attached {
            return Ok(());
        }
        let before = kernel.sets.len();
        let lines = {
            let mut state = self.desired();
            let pending = std::mem::take(&mut state.pending);
            kernel.put_bans(&self.base, pending.into_iter(), &state.book)
        };
        let put = self.restore_sets(&lines).and_then(|()| {
            if kernel.sets.len() == before {
                return Ok(());
            }
            self.put_rules(kernel)
        });
        put.or_else(|error| {
            tracing::debug!("{error}; writing everything again");
            self.put_all(kernel)
        })
    }

    fn is_disturbed(&self, kernel: &Inside) -> Result<bool, Error> {
        for family in [0, 1] {
            let saved = command::run(SAVE[family], &["-t", "raw"], "")
                .map_err(failed("read the rules of iptables"))?;
            if !rules::is_whole(&saved, &self.base, &kernel.written[family]) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Backend for Ipset {
    fn name(&self) -> &'static str {
        Choice::Ipset.name()
    }

    fn limits(&self) -> &'static [Limit] {
        Choice::Ipset.limits()
    }

    fn insert(&self, entries: &[Entry]) -> Result<Inserted, Error> {
        let (done, outcome) = {
            let mut state = self.desired();
            let state = &mut *state;
            state.book.insert_pending(entries, &mut state.pending)
        };
        self.put_pending()?;
        outcome.map(|()| done)
    }

    fn remove(
        &self,
        subject: Subject,
        producer: Option<&Producer>,
        scope: Option<&Scope>,
    ) -> Result<Vec<Entry>, Error> {
        let lifted = {
            let mut state = self.desired();
            let state = &mut *state;
            state
                .book
                .remove_pending(subject, producer, scope, &mut state.pending)
        };
        if !lifted.is_empty() {
            self.put_pending()?;
        }
        Ok(lifted)
    }

    fn entries(&self) -> Result<Vec<Entry>, Error> {
        Ok(self.desired().book.live())
    }

    fn entries_for(&self, addr: IpAddr) -> Result<Vec<Entry>, Error> {
        Ok(self.desired().book.live_for(addr))
    }

    fn set_allow(&self, allow: &PrefixSet) -> Result<(), Error> {
        self.desired().allow = allow.clone();
        let kernel = self.kernel();
        if !kernel.attached {
            return Ok(());
        }
        self.put_allow()
    }

    fn set_classes(&self, classes: &Arc<Classes>) -> Result<(), Error> {
        if let (false, Some(limit)) = (
            classes.fences.is_empty(),
            Choice::Ipset.limit(Feature::Geofence),
        ) {
            return Err(Error::Unsupported(format!("backend \"ipset\": {limit}")));
        }
        {
            let mut state = self.desired();
            state.classes = classes.clone();
            state.had_classes = !classes.is_empty();
        }
        let mut kernel = self.kernel();
        if !kernel.attached {
            return Ok(());
        }
        self.put_lists()?;
        self.put_rules(&mut kernel)?;
        self.tidy(&mut kernel);
        Ok(())
    }

    fn has_classes(&self) -> bool {
        self.desired().had_classes
    }

    fn class_counts(&self) -> Result<Vec<ClassCounter>, Error> {
        let counted = counters(&self.base, &self.kernel().counted)?;
        let state = self.desired();
        let lists = state.classes.lists.iter();
        Ok(lists
            .filter_map(|list| {
                let (packets, bytes) = *counted.get(&rules::list_counter(&list.name))?;
                (packets > 0).then(|| ClassCounter {
                    list: Some(list.name.clone()),
                    country: None,
                    packets,
                    bytes,
                })
            })
            .collect())
    }

    fn set_decoys(&self, decoys: &Decoys) -> Result<(), Error> {
        crate::choice::without_decoys(Choice::Ipset, decoys)
    }

    fn decoy_counts(&self) -> Result<DecoyCounts, Error> {
        Ok(DecoyCounts::default())
    }

    fn counters(&self) -> Result<Vec<Counter>, Error> {
        let counted = counters(&self.base, &self.kernel().counted)?;
        let of = |name: &str| counted.get(name).copied().unwrap_or_default();
        let lists = counted.iter().filter(|(name, _)| name.starts_with("list:"));
        let listed = lists.fold((0, 0), |(packets, bytes), (_, more)| {
            (packets + more.0, bytes + more.1)
        });
        Ok(Reason::ALL
            .map(|reason| {
                let (packets, bytes) = match reason {
                    Reason::Listed => listed,
                    other => of(other.name()),
                };
                Counter {
                    reason,
                    packets,
                    bytes,
                }
            })
            .to_vec())
    }

    fn attach(&self) -> Result<(), Error> {
        self.put_all(&mut self.kernel())
    }

    fn reconfigure(&self, settings: &Settings) -> Result<(), Error> {
        check_names(&settings.interfaces)?;
        let before = {
            let mut state = self.desired();
            state.book.set_max_bans(settings.max_bans);
            std::mem::replace(&mut state.settings, settings.clone())
        };
        let mut kernel = self.kernel();
        if !kernel.attached
            || (before.interfaces == settings.interfaces && before.observe == settings.observe)
        {
            return Ok(());
        }
        self.put_rules(&mut kernel)
    }

    fn attachments(&self) -> Vec<Attachment> {
        let state = self.desired();
        let interfaces = state.settings.interfaces.iter();
        interfaces
            .map(|name| Attachment {
                interface: name.clone(),
                hook: Choice::Ipset.name().to_owned(),
                note: match Device::find(name) {
                    Ok(_) => self.program.clone(),
                    Err(_) => "no such interface now; protected as soon as it is back".to_owned(),
                },
            })
            .collect()
    }

    fn usage(&self) -> Usage {
        let mut state = self.desired();
        state.book.drop_over(BootNanos::now());
        state.book.usage()
    }

    fn maintain(&self) -> Result<(), Error> {
        self.desired().book.drop_over(BootNanos::now());
        let mut kernel = self.kernel();
        let kernel = &mut *kernel;
        if !kernel.attached {
            return Ok(());
        }
        let slept = clock::suspended().abs_diff(kernel.suspended) > clock::SECOND / 10;
        let due = kernel.prolonged.elapsed() > PROLONG;
        let disturbed = self.is_disturbed(kernel)?;
        if disturbed {
            tracing::warn!(
                "somebody has changed the chains {} of iptables; writing them again",
                self.base
            );
        }
        if slept || due || disturbed || kernel.broken {
            return self.put_all(kernel);
        }
        if kernel.untidy {
            self.tidy(kernel);
        }
        Ok(())
    }

    fn poll_events(
        &self,
        timeout: Duration,
        _each: &mut dyn FnMut(PacketEvent),
    ) -> Result<usize, Error> {
        std::thread::sleep(timeout);
        Ok(0)
    }
}
