//! What is in the kernel under our table's name: what we put there, what an
//! earlier daemon did, and what somebody else took away.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::IpAddr,
    sync::Arc,
};

use weir_bpf::clock;
use weir_core::{BanTarget, PortSet, Prefix};

use super::{
    class_rules::ClassRules,
    ingress::{self, Ingress},
    names,
    rule::read_counter,
    ruleset::{Capabilities, Ruleset},
    socket::Nftables,
    table::{self, Stored, Table},
    tags,
    wire::{Attributes, Batch, INET, MessageKind, NETDEV},
};
use crate::{
    BootNanos, Entry, Expiry, Policy,
    firewall::{self, Counted},
    hooks::devices::RealNames,
};

/// Smaller sets are read before they can be rearranged twice.
const REARRANGED: usize = 1000;

/// A counter's name, its packets and bytes.
pub(super) type Count = (String, (u64, u64));

/// See the module.
pub(super) struct KernelState {
    pub(super) socket: Nftables,
    pub(super) capabilities: Capabilities,
    /// The ruleset in the kernel, once attached.
    pub(super) ruleset: Option<Ruleset>,
    /// Geofence and lists as they are, or will be.
    pub(super) class_rules: Arc<ClassRules>,
    /// Chains of single devices.
    pub(super) ingress: Ingress,
    /// It is not as it should be, and must be made anew.
    pub(super) broken: bool,
    /// Bans, lists or settings may have changed since the table that stands by, if
    /// there is one, was written.
    pub(super) standby_is_old: bool,
    /// The kernel's count of changes, by anybody, when all was well.
    pub(super) seen: u32,
    pub(super) suspended: u64,
    /// What the table's counters began with when it was made.
    pub(super) carried: Counted,
    /// What the table that stood by counted meanwhile.
    pub(super) counted: Counted,
    /// Rules of ours that should be there, without those of devices.
    rules: usize,
    /// Scopes that there were when the table was made.
    pub(super) scopes: usize,
    /// The interfaces, as the table names them.
    pub(super) names: Vec<String>,
    pub(super) devices: RealNames,
}

impl KernelState {
    pub(super) fn new(socket: Nftables, capabilities: Capabilities) -> Self {
        Self {
            socket,
            capabilities,
            ruleset: None,
            class_rules: Arc::default(),
            ingress: Ingress::default(),
            broken: false,
            standby_is_old: true,
            seen: 0,
            suspended: clock::suspended(),
            carried: Counted::new(),
            counted: Counted::new(),
            rules: 0,
            scopes: 0,
            names: Vec::new(),
            devices: RealNames::default(),
        }
    }

    /// What a table holds, and whether it has geofence or lists.
    pub(super) fn read_entries(&self, table: &Table) -> io::Result<(Vec<Entry>, bool)> {
        let of_table = |to: &mut Batch| to.text(1, &table.0);
        let rules =
            self.socket
                .dump(MessageKind::GetRule, of_table, |rule, all: &mut Vec<_>| {
                    all.extend(names::read_scope(rule));
                })?;
        let mut said: HashMap<u32, Vec<_>> = HashMap::new();
        for (number, scope) in rules {
            let known = said.entry(number).or_default();
            known.extend(scope.ranges().iter().copied());
        }
        let scopes: HashMap<u32, PortSet> = said
            .into_iter()
            .filter_map(|(number, ranges)| Some((number, PortSet::ports(ranges).ok()?)))
            .chain([(0, PortSet::all())])
            .collect();
        let mut policies: HashMap<(String, u32), Arc<Policy>> = HashMap::new();
        let sets = self.socket.dump(
            MessageKind::GetSet,
            of_table,
            |set, all: &mut Vec<String>| {
                all.extend(set.text(2).map(str::to_owned));
            },
        )?;
        let had_classes = sets.iter().any(|name| name.starts_with("ranges"));
        let mut entries = Vec::new();
        for set in &sets {
            let Some((length, scope)) = names::read_set(set) else {
                continue;
            };
            let now = BootNanos::now();
            let of_set = |to: &mut Batch| {
                to.text(1, &table.0);
                to.text(2, set);
            };
            for (key, comment, left) in self.read_elements(of_set)? {
                let policy = policies.get(&(comment.clone(), scope)).cloned();
                let policy = policy.or_else(|| {
                    let (producer, action) = names::read_comment(&comment)?;
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
                        subject: BanTarget::new(Prefix::new(addr, length)?).ok()?,
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

    /// The elements of a set. While a set grows its table is rearranged, behind
    /// whoever reads it: it is read until there is nothing new.
    fn read_elements(&self, of_set: impl Fn(&mut Batch)) -> io::Result<Vec<Stored>> {
        let read = || {
            self.socket
                .dump(MessageKind::GetElements, &of_set, table::read_elements)
        };
        let mut all = read()?;
        if all.len() < REARRANGED {
            return Ok(all);
        }
        let mut known: HashSet<Vec<u8>> = all.iter().map(|(key, ..)| key.clone()).collect();
        loop {
            let mut more = read()?;
            more.retain(|(key, ..)| known.insert(key.clone()));
            if more.is_empty() {
                return Ok(all);
            }
            all.append(&mut more);
        }
    }

    /// Packets and bytes by the names of our counters, over all tables of this
    /// name that there were.
    pub(super) fn counters(&self, table: &Table) -> io::Result<Counted> {
        let mut counted = self.counted.clone();
        let read = self.read_counters(table)?;
        if read.is_empty() {
            // Somebody took the table away.
            for (name, (packets, bytes)) in &self.carried {
                firewall::add(&mut counted, name, *packets, *bytes);
            }
        }
        for (name, (packets, bytes)) in read {
            firewall::add(&mut counted, &name, packets, bytes);
        }
        Ok(counted)
    }

    /// Reads the counters of one table.
    pub(super) fn read_counters(&self, table: &Table) -> io::Result<Vec<Count>> {
        let of_table = |to: &mut Batch| {
            to.text(1, &table.0);
            to.number(3, 1);
        };
        let read = |object: Attributes<'_>, all: &mut Vec<_>| {
            let data = object.nested(4);
            let name = object.text(2).unwrap_or_default().to_owned();
            if object.text(1) == Some(&table.0) {
                all.push((name, (data.long(2).unwrap_or(0), data.long(1).unwrap_or(0))));
            }
        };
        let mut all = Vec::new();
        for family in [INET, NETDEV] {
            all.extend(
                self.socket
                    .dump_of(family, MessageKind::GetObject, of_table, read)?,
            );
        }
        let of_rules = |to: &mut Batch| to.text(1, &table.0);
        let rules =
            self.socket
                .dump(MessageKind::GetRule, of_rules, |rule, all: &mut Vec<_>| {
                    let counted = names::read_counts(rule).map(str::to_owned);
                    all.extend(counted.zip(read_counter(rule)));
                })?;
        all.extend(rules);
        Ok(all)
    }

    pub(super) fn generation(&self) -> io::Result<u32> {
        let number =
            self.socket
                .get(MessageKind::GetGeneration, |_| {}, |found| found.number(1))?;
        Ok(number.unwrap_or(0))
    }

    /// Our rules: how many there are, and by the chains of devices.
    fn count_rules(&self, table: &Table) -> io::Result<(usize, HashMap<u32, usize>)> {
        let of_table = |to: &mut Batch| to.text(1, &table.0);
        let chains =
            self.socket
                .dump(MessageKind::GetRule, of_table, |rule, all: &mut Vec<_>| {
                    all.push(rule.text(2).and_then(ingress::read_chain));
                })?;
        let (mut others, mut devices) = (0, HashMap::new());
        for device in chains {
            match device {
                None => others += 1,
                Some(device) => *devices.entry(device).or_default() += 1,
            }
        }
        Ok((others, devices))
    }

    /// Remembers that all is well.
    pub(super) fn look(&mut self, table: &Table) -> io::Result<()> {
        self.seen = self.generation()?;
        self.rules = self.count_rules(table)?.0;
        Ok(())
    }

    /// Has somebody else changed our table? Elements taken out one by one are
    /// not seen.
    pub(super) fn is_disturbed(&self, table: &Table) -> io::Result<bool> {
        if self.generation()? == self.seen {
            return Ok(false);
        }
        let (others, devices) = self.count_rules(table)?;
        Ok(others != self.rules
            || !self.ingress.is_whole(&devices)
            || !tags::is_whole(&self.socket, table, self.ingress.len())?)
    }
}
