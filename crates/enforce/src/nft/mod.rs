//! The backend `nft`: one table of nftables, `inet weir_<instance>`, in front of
//! everybody else's. What is in it stays there when the daemon goes, and ends
//! by the kernel's clock; nobody else's table is touched.
//!
//! The desired state is in memory. A change of bans is one transaction that
//! takes along all that came meanwhile; whatever goes wrong, and whenever
//! somebody has flushed the table, it is made anew as a whole, in one
//! transaction as well.
//!
//! Locks: `desired`, never held while the kernel is asked, and `kernel`, which
//! serialises whoever does. `kernel` is taken first.

mod border;
pub(crate) mod iptables;
mod rule;
mod ruleset;
mod socket;
mod table;
mod wire;

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use weir_core::{Prefix, PrefixSet, Producer, Reason, Scope, Subject, class::Classes};
use weir_kernel::{clock, device::Device};

use crate::{
    Attachment, Backend, BootNanos, Choice, ClassCounter, Counter, DecoyCounts, Decoys, Entry,
    Error, Expiry, Inserted, Limit, PacketEvent, Policy, Settings, Usage,
    book::{Book, Pending},
};
use border::Border;
use ruleset::{Desired, Ruleset};
use socket::Nftables;
use table::Table;
use wire::Kind;

/// After this many new scopes the table is made anew, without those that no ban
/// has any more.
const MAX_NEW_SCOPES: usize = 256;

/// The backend `nft`.
pub struct Nft {
    table: Table,
    desired: Mutex<State>,
    kernel: Mutex<Inside>,
}

struct State {
    book: Book,
    allow: PrefixSet,
    border: Arc<Border>,
    settings: Settings,
    pending: Pending,
    /// Did an earlier daemon leave geofence or lists?
    had_classes: bool,
}

struct Inside {
    socket: Nftables,
    /// What is in the kernel, once attached.
    ruleset: Option<Ruleset>,
    /// It is not as it should be, and must be made anew.
    broken: bool,
    /// The kernel's count of changes, by anybody, when all was well.
    seen: u32,
    suspended: u64,
    /// What was counted before the table was made anew.
    counted: HashMap<String, (u64, u64)>,
    /// Rules of ours that should be there.
    rules: usize,
    /// Scopes that there were when the table was made.
    scopes: usize,
}

fn table_of(instance: &str) -> Table {
    Table(format!("weir_{instance}"))
}

fn failed(what: &str, table: &Table) -> impl FnOnce(io::Error) -> Error {
    let what = format!("cannot {what} the table inet {} of nftables", table.0);
    move |source| Error::System { what, source }
}

/// Reads what an earlier daemon left under this name; changes nothing yet.
///
/// # Errors
/// No permission, or a kernel without nf_tables.
pub fn open(
    instance: &str,
    ipv4_length: Option<u8>,
    settings: &Settings,
) -> Result<Arc<Nft>, Error> {
    let table = table_of(instance);
    let socket = Nftables::open().map_err(|error| {
        Error::Unsupported(format!(
            "backend \"nft\": cannot talk to nf_tables ({error}; probe: a NETLINK_NETFILTER socket)"
        ))
    })?;
    let inside = Inside {
        socket,
        ruleset: None,
        broken: false,
        seen: 0,
        suspended: clock::suspended(),
        counted: HashMap::new(),
        rules: 0,
        scopes: 0,
    };
    let mut book = Book::new(settings.max_bans, ipv4_length);
    let failure = || failed("read", &table);
    let (entries, had_classes) = inside.read_entries(&table).map_err(failure())?;
    for entry in entries {
        if let Err(error) = book.insert(&entry) {
            tracing::warn!("taking over {}: {error}", entry.subject);
        }
    }
    let mut inside = inside;
    inside.counted = inside.counters(&table).map_err(failure())?;
    Ok(Arc::new(Nft {
        table,
        desired: Mutex::new(State {
            book,
            allow: PrefixSet::default(),
            border: Arc::default(),
            settings: settings.clone(),
            pending: Pending::new(),
            had_classes,
        }),
        kernel: Mutex::new(inside),
    }))
}

/// Takes the table of an instance away; returns what was there.
pub fn detach(instance: &str) -> Result<Vec<String>, Error> {
    let table = table_of(instance);
    let gone = || -> io::Result<bool> {
        let socket = match Nftables::open() {
            Ok(socket) => socket,
            // Without nf_tables there is no table.
            Err(_) => return Ok(false),
        };
        if !exists(&socket, &table)? {
            return Ok(false);
        }
        let mut batch = wire::Batch::new();
        table.delete(&mut batch);
        socket.commit(batch)?;
        Ok(true)
    };
    let gone = gone().map_err(failed("delete", &table))?;
    Ok(gone
        .then(|| format!("table inet {} (nft)", table.0))
        .into_iter()
        .collect())
}

/// Is there a table of this instance?
pub fn is_there(instance: &str) -> bool {
    Nftables::open().is_ok_and(|socket| exists(&socket, &table_of(instance)).unwrap_or(false))
}

fn exists(socket: &Nftables, table: &Table) -> io::Result<bool> {
    let found = socket.get(Kind::GetTable, |to| to.text(1, &table.0), |_| Some(()))?;
    Ok(found.is_some())
}

impl Inside {
    /// What a table holds, and whether it has geofence or lists.
    fn read_entries(&self, table: &Table) -> io::Result<(Vec<Entry>, bool)> {
        let of_table = |to: &mut wire::Batch| to.text(1, &table.0);
        let rules = self
            .socket
            .dump(Kind::GetRule, of_table, |rule, all: &mut Vec<_>| {
                all.extend(ruleset::read_scope(rule));
            })?;
        let mut said: HashMap<u32, Vec<_>> = HashMap::new();
        for (number, scope) in rules {
            let known = said.entry(number).or_default();
            known.extend(scope.ranges().iter().copied());
        }
        let scopes: HashMap<u32, Scope> = said
            .into_iter()
            .filter_map(|(number, ranges)| Some((number, Scope::ports(ranges).ok()?)))
            .chain([(0, Scope::all())])
            .collect();
        let mut policies: HashMap<(String, u32), Arc<Policy>> = HashMap::new();
        let sets = self
            .socket
            .dump(Kind::GetSet, of_table, |set, all: &mut Vec<String>| {
                all.extend(set.text(2).map(str::to_owned));
            })?;
        let had_classes = sets.iter().any(|name| name.starts_with("ranges"));
        let mut entries = Vec::new();
        for set in &sets {
            let Some((length, scope)) = ruleset::read_set_name(set) else {
                continue;
            };
            let now = BootNanos::now();
            let of_set = |to: &mut wire::Batch| {
                to.text(1, &table.0);
                to.text(2, set);
            };
            let elements = self
                .socket
                .dump(Kind::GetElements, of_set, table::read_elements)?;
            for (key, comment, left) in elements {
                let policy = policies.get(&(comment.clone(), scope)).cloned();
                let policy = policy.or_else(|| {
                    let (producer, action) = ruleset::read_comment(&comment)?;
                    let policy = Arc::new(Policy {
                        producer,
                        scope: scopes.get(&scope)?.clone(),
                        action,
                    });
                    policies.insert((comment, scope), policy.clone());
                    Some(policy)
                });
                let entry = || {
                    let addr = match key.len() {
                        4 => IpAddr::from(<[u8; 4]>::try_from(key).ok()?),
                        _ => IpAddr::from(<[u8; 16]>::try_from(key).ok()?),
                    };
                    Some(Entry {
                        subject: Subject::new(Prefix::new(addr, length)?).ok()?,
                        policy: policy?,
                        expiry: left.map_or(Expiry::Never, |left| {
                            Expiry::At(BootNanos(now.0 + left * 1_000_000))
                        }),
                    })
                };
                entries.extend(entry());
            }
        }
        Ok((entries, had_classes))
    }

    /// Packets and bytes by the names of our counters.
    fn counters(&self, table: &Table) -> io::Result<HashMap<String, (u64, u64)>> {
        let of_table = |to: &mut wire::Batch| {
            to.text(1, &table.0);
            to.number(3, 1);
        };
        let all = self
            .socket
            .dump(Kind::GetObject, of_table, |object, all: &mut Vec<_>| {
                let data = object.nested(4);
                let name = object.text(2).unwrap_or_default().to_owned();
                if object.text(1) == Some(&table.0) {
                    all.push((name, (data.long(2).unwrap_or(0), data.long(1).unwrap_or(0))));
                }
            })?;
        let mut counted = self.counted.clone();
        for (name, (packets, bytes)) in all {
            let known = counted.entry(name).or_default();
            known.0 += packets;
            known.1 += bytes;
        }
        Ok(counted)
    }

    fn generation(&self) -> io::Result<u32> {
        let number = self
            .socket
            .get(Kind::GetGeneration, |_| {}, |found| found.number(1))?;
        Ok(number.unwrap_or(0))
    }

    fn count_rules(&self, table: &Table) -> io::Result<usize> {
        let of_table = |to: &mut wire::Batch| to.text(1, &table.0);
        let rules = self
            .socket
            .dump(Kind::GetRule, of_table, |_, all: &mut Vec<()>| all.push(()))?;
        Ok(rules.len())
    }

    /// Remembers that all is well.
    fn look(&mut self, table: &Table) -> io::Result<()> {
        self.seen = self.generation()?;
        self.rules = self.count_rules(table)?;
        Ok(())
    }

    /// Has somebody else changed our table? Elements taken out one by one are
    /// not seen.
    fn is_disturbed(&self, table: &Table) -> io::Result<bool> {
        Ok(self.generation()? != self.seen && self.count_rules(table)? != self.rules)
    }
}

impl Nft {
    fn desired(&self) -> MutexGuard<'_, State> {
        self.desired.lock().expect("no holder of this lock panics")
    }

    fn kernel(&self) -> MutexGuard<'_, Inside> {
        self.kernel.lock().expect("no holder of this lock panics")
    }

    /// Makes the table anew, in one transaction.
    fn rebuild(&self, kernel: &mut Inside) -> Result<(), Error> {
        kernel.broken = true;
        let is_there = exists(&kernel.socket, &self.table).map_err(failed("read", &self.table))?;
        let counted = kernel
            .counters(&self.table)
            .map_err(failed("read", &self.table))?;
        let (ruleset, batch) = {
            let mut state = self.desired();
            state.pending.clear();
            let desired = Desired {
                book: &state.book,
                allow: &state.allow,
                border: &state.border,
                interfaces: &state.settings.interfaces,
                observe: state.settings.observe,
            };
            Ruleset::build(&self.table, is_there, &desired)
        };
        kernel
            .socket
            .commit(batch)
            .and_then(|()| {
                kernel.scopes = ruleset.scopes();
                kernel.ruleset = Some(ruleset);
                kernel.counted = counted;
                kernel.suspended = clock::suspended();
                kernel.look(&self.table)
            })
            .map_err(failed("write", &self.table))?;
        kernel.broken = false;
        Ok(())
    }

    /// Tells the kernel of all bans that it has not been told of, those of
    /// other threads among them.
    fn put_pending(&self) -> Result<(), Error> {
        let mut kernel = self.kernel();
        let kernel = &mut *kernel;
        if kernel.broken {
            return self.rebuild(kernel);
        }
        let Some(ruleset) = &mut kernel.ruleset else {
            return Ok(()); // not attached yet
        };
        let before = (ruleset.scopes(), ruleset.sets());
        let batch = {
            let mut state = self.desired();
            let pending = std::mem::take(&mut state.pending);
            ruleset.change(&pending, &state.book)
        };
        let changed = (ruleset.scopes(), ruleset.sets()) != before;
        let told = kernel.socket.commit(batch);
        match told {
            Ok(()) if !changed => Ok(()),
            Ok(()) => kernel
                .look(&self.table)
                .map_err(failed("read", &self.table)),
            Err(error) => {
                tracing::debug!("nftables refused a change ({error}); making the table anew");
                self.rebuild(kernel)
            }
        }
    }

    /// Carries out another change of the ruleset.
    fn put(
        &self,
        change: impl FnOnce(&mut Ruleset, &mut State) -> wire::Batch,
    ) -> Result<(), Error> {
        let mut kernel = self.kernel();
        let kernel = &mut *kernel;
        let Some(ruleset) = &mut kernel.ruleset else {
            return Ok(());
        };
        let batch = change(ruleset, &mut self.desired());
        let told = kernel.socket.commit(batch);
        match told {
            Ok(()) => kernel
                .look(&self.table)
                .map_err(failed("read", &self.table)),
            Err(error) => {
                tracing::debug!("nftables refused a change ({error}); making the table anew");
                self.rebuild(kernel)
            }
        }
    }
}

impl Backend for Nft {
    fn name(&self) -> &'static str {
        Choice::Nft.name()
    }

    fn limits(&self) -> &'static [Limit] {
        Choice::Nft.limits()
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
        self.put(|ruleset, state| ruleset.change_allow(&state.allow))
    }

    fn set_classes(&self, classes: &Arc<Classes>) -> Result<(), Error> {
        let border = Arc::new(Border::new(classes));
        let before = {
            let mut state = self.desired();
            state.had_classes = !border.is_empty();
            std::mem::replace(&mut state.border, border)
        };
        self.put(|ruleset, state| ruleset.change_border(&state.border, &before))
    }

    fn has_classes(&self) -> bool {
        self.desired().had_classes
    }

    fn class_counts(&self) -> Result<Vec<ClassCounter>, Error> {
        let counted = self
            .kernel()
            .counters(&self.table)
            .map_err(failed("read", &self.table))?;
        let counted: Vec<_> = counted
            .into_iter()
            .map(|(name, (packets, bytes))| (name, packets, bytes))
            .collect();
        Ok(self.desired().border.count(&counted))
    }

    fn set_decoys(&self, decoys: &Decoys) -> Result<(), Error> {
        crate::choice::without_decoys(Choice::Nft, decoys)
    }

    fn decoy_counts(&self) -> Result<DecoyCounts, Error> {
        Ok(DecoyCounts::default())
    }

    fn counters(&self) -> Result<Vec<Counter>, Error> {
        let counted = self
            .kernel()
            .counters(&self.table)
            .map_err(failed("read", &self.table))?;
        let of = |reason: Reason| counted.get(reason.name()).copied().unwrap_or_default();
        Ok(Reason::ALL
            .map(|reason| {
                let (packets, bytes) = of(reason);
                Counter {
                    reason,
                    packets,
                    bytes,
                }
            })
            .to_vec())
    }

    fn attach(&self) -> Result<(), Error> {
        self.rebuild(&mut self.kernel())
    }

    fn reconfigure(&self, settings: &Settings) -> Result<(), Error> {
        let before = {
            let mut state = self.desired();
            state.book.set_max_bans(settings.max_bans);
            std::mem::replace(&mut state.settings, settings.clone())
        };
        let mut kernel = self.kernel();
        if kernel.ruleset.is_none()
            || (before.interfaces == settings.interfaces && before.observe == settings.observe)
        {
            return Ok(());
        }
        self.rebuild(&mut kernel)
    }

    fn attachments(&self) -> Vec<Attachment> {
        let state = self.desired();
        let interfaces = state.settings.interfaces.iter();
        interfaces
            .map(|name| Attachment {
                interface: name.clone(),
                hook: Choice::Nft.name().to_owned(),
                note: match Device::find(name) {
                    Ok(_) => String::new(),
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
        let Some(ruleset) = &kernel.ruleset else {
            return Ok(());
        };
        let slept = clock::suspended().abs_diff(kernel.suspended) > clock::SECOND / 10;
        let disturbed = kernel
            .is_disturbed(&self.table)
            .map_err(failed("read", &self.table))?;
        if disturbed {
            tracing::warn!(
                "somebody has changed the table inet {} of nftables; making it anew",
                self.table.0
            );
        }
        let worn = ruleset.scopes() > kernel.scopes + MAX_NEW_SCOPES;
        if slept || disturbed || kernel.broken || worn {
            return self.rebuild(kernel);
        }
        kernel.seen = kernel.generation().map_err(failed("read", &self.table))?;
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
