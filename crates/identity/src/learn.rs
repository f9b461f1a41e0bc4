//! What programs have done, to be reviewed and made into rules: by program (executable,
//! digest, script) the peers and ports of connections that it began or took. Bounded: of a
//! program with many peers those of one port become "anybody", with many ports all of a
//! protocol do; of many programs the one goes that has been quiet for longest.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde::{Deserialize, Serialize};

use crate::{Digest, Protocols};

/// So many programs are remembered.
pub const MAX_PROGRAMS: usize = 1024;
/// So many kinds of flows of one program.
pub const MAX_FLOWS: usize = 128;
/// So many parents, control groups, users and forms (digests of the whole) of one program.
const MAX_NAMES: usize = 8;
/// So long may be a path, a script or the name of a control group: longer ones are cut.
const MAX_TEXT: usize = 512;

/// A program, as it is told apart from others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProgramKey {
    /// The path of its executable, at that time.
    pub path: String,
    /// The SHA-256 of the executable; `None`: it could not be had.
    pub digest: Option<Digest>,
    /// The script that it runs, by its own word.
    pub script: Option<String>,
}

/// One connection, or the first datagram of a flow, of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// When, in microseconds since 1970.
    pub at: i64,
    /// The program that was seen.
    pub program: ProgramKey,
    /// The path leads to this very file on the host: it is not of a container.
    pub is_at_path: bool,
    /// The SHA-256 of the whole program at that moment.
    pub aggregate: Option<Digest>,
    /// The package that has this very executable on record.
    pub package: Option<String>,
    /// The executables of its parents, the nearest first.
    pub parents: Vec<String>,
    /// The control group that the program ran in.
    pub cgroup: String,
    /// The effective user of the program.
    pub uid: u32,
    /// The connection was refused or dropped.
    pub is_denied: bool,
    /// The program began the connection.
    pub is_outward: bool,
    /// One kind of socket.
    pub protocol: Protocols,
    /// The address at the other end.
    pub peer: IpAddr,
    /// The peer's port of what goes out, one's own of what comes in; 0: none.
    pub port: u16,
}

/// A kind of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FlowKey {
    /// The program began them.
    #[serde(rename = "direction", with = "direction")]
    pub is_outward: bool,
    /// One kind of socket.
    #[serde(with = "protocol")]
    pub protocol: Protocols,
    /// `None`: too many to be told apart.
    pub port: Option<u16>,
    /// `None`: too many to be told apart.
    pub peer: Option<IpAddr>,
}

/// How often, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowCount {
    /// Microseconds since 1970.
    pub first: i64,
    /// When it was last seen, in microseconds since 1970.
    pub last: i64,
    /// Since when it is recorded as it is, in microseconds since 1970: what several flows have
    /// become is newer than they were, because it says more.
    pub since: i64,
    /// Connections and flows.
    pub count: u64,
    /// How many of them were refused or dropped.
    pub denied: u64,
}

impl FlowCount {
    fn add(&mut self, other: &Self) {
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        self.since = self.since.min(other.since);
        self.count = self.count.saturating_add(other.count);
        self.denied = self.denied.saturating_add(other.denied);
    }
}

/// `"out"` or `"in"`.
mod direction {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(is_outward: &bool, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if *is_outward { "out" } else { "in" })
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "out" => Ok(true),
            "in" => Ok(false),
            other => Err(D::Error::unknown_variant(other, &["out", "in"])),
        }
    }
}

/// The configuration's word for one kind.
mod protocol {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::Protocols;

    pub fn serialize<S: Serializer>(kind: &Protocols, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(kind.names().next().unwrap_or("other"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Protocols, D::Error> {
        let word = String::deserialize(deserializer)?;
        let known = Protocols::ALL.into_iter().find(|(name, _)| *name == word);
        known
            .map(|(_, kind)| kind)
            .ok_or_else(|| D::Error::custom(format!("{word:?} is no kind of socket")))
    }
}

/// What one program has done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedProgram {
    /// The program that this is about.
    pub program: ProgramKey,
    /// When it was first seen, in microseconds since 1970.
    pub first: i64,
    /// When it was last seen, in microseconds since 1970.
    pub last: i64,
    /// As of the last observation.
    pub is_at_path: bool,
    /// As of the last observation.
    pub package: Option<String>,
    /// The digests of the whole: they differ by the libraries that it has loaded.
    pub aggregates: BTreeSet<Digest>,
    /// There were more forms than are remembered, or one had no digest.
    pub has_other_forms: bool,
    /// Executables of parents, each chain as one text.
    pub parents: BTreeSet<String>,
    /// In which it ran.
    pub cgroups: BTreeSet<String>,
    /// As which it ran.
    pub uids: BTreeSet<u32>,
    /// At most [`MAX_FLOWS`].
    #[serde(with = "pairs")]
    pub flows: BTreeMap<FlowKey, FlowCount>,
}

/// JSON has no maps by anything but text.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{FlowCount, FlowKey};

    #[derive(Serialize, Deserialize)]
    struct Pair {
        #[serde(flatten)]
        key: FlowKey,
        #[serde(flatten)]
        count: FlowCount,
    }

    pub fn serialize<S: Serializer>(
        flows: &BTreeMap<FlowKey, FlowCount>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(flows.iter().map(|(key, count)| Pair {
            key: *key,
            count: *count,
        }))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<FlowKey, FlowCount>, D::Error> {
        let pairs = Vec::<Pair>::deserialize(deserializer)?;
        Ok(pairs
            .into_iter()
            .map(|pair| (pair.key, pair.count))
            .collect())
    }
}

impl LearnedProgram {
    fn new(program: ProgramKey, at: i64) -> Self {
        Self {
            program,
            first: at,
            last: at,
            is_at_path: false,
            package: None,
            aggregates: BTreeSet::new(),
            has_other_forms: false,
            parents: BTreeSet::new(),
            cgroups: BTreeSet::new(),
            uids: BTreeSet::new(),
            flows: BTreeMap::new(),
        }
    }

    fn add(&mut self, seen: &Observation) {
        self.first = self.first.min(seen.at);
        self.last = self.last.max(seen.at);
        self.is_at_path = seen.is_at_path;
        self.package.clone_from(&seen.package);
        match seen.aggregate {
            Some(whole) if self.aggregates.contains(&whole) => {}
            Some(whole) if self.aggregates.len() < MAX_NAMES => {
                self.aggregates.insert(whole);
            }
            _ => self.has_other_forms = true,
        }
        let chain = seen.parents.join(" < ");
        if !chain.is_empty() && self.parents.len() < MAX_NAMES {
            self.parents.insert(cut(&chain));
        }
        if self.cgroups.len() < MAX_NAMES {
            self.cgroups.insert(cut(&seen.cgroup));
        }
        if self.uids.len() < MAX_NAMES {
            self.uids.insert(seen.uid);
        }
        let count = FlowCount {
            first: seen.at,
            last: seen.at,
            since: seen.at,
            count: 1,
            denied: seen.is_denied.into(),
        };
        let exact = FlowKey {
            is_outward: seen.is_outward,
            protocol: seen.protocol,
            port: Some(seen.port),
            peer: Some(seen.peer.to_canonical()),
        };
        let any_peer = FlowKey {
            peer: None,
            ..exact
        };
        let any = FlowKey {
            port: None,
            ..any_peer
        };
        let known = [any, any_peer]
            .into_iter()
            .find(|key| self.flows.contains_key(key));
        self.count(known.unwrap_or(exact), &count);
        while self.flows.len() > MAX_FLOWS {
            self.merge();
        }
    }

    fn count(&mut self, key: FlowKey, count: &FlowCount) {
        match self.flows.get_mut(&key) {
            Some(known) => known.add(count),
            None => {
                self.flows.insert(key, *count);
            }
        }
    }

    /// Makes one of the flows that are most alike: of the port with most peers, or else
    /// of the protocol with most ports.
    fn merge(&mut self) {
        let any_peer = |key: &FlowKey| FlowKey { peer: None, ..*key };
        let any = |key: &FlowKey| FlowKey {
            port: None,
            peer: None,
            ..*key
        };
        let into = match self.most(any_peer) {
            (key, number) if number > 1 => key,
            _ => self.most(any).0,
        };
        let is_of = |key: &FlowKey| match into.port {
            Some(_) => any_peer(key) == into,
            None => any(key) == into,
        };
        let flows = std::mem::take(&mut self.flows);
        for (key, count) in flows {
            let key = if is_of(&key) { into } else { key };
            self.count(key, &count);
        }
        if let Some(merged) = self.flows.get_mut(&into) {
            merged.since = merged.last;
        }
    }

    /// Adds what the same executable did otherwise started.
    pub(crate) fn add_all(&mut self, other: &Self) {
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        self.has_other_forms |= other.has_other_forms;
        self.aggregates.extend(&other.aggregates);
        self.parents.extend(other.parents.iter().cloned());
        for (key, count) in &other.flows {
            self.count(*key, count);
        }
    }

    fn most(&self, as_one: impl Fn(&FlowKey) -> FlowKey) -> (FlowKey, usize) {
        let mut numbers: BTreeMap<FlowKey, usize> = BTreeMap::new();
        for key in self.flows.keys() {
            *numbers.entry(as_one(key)).or_default() += 1;
        }
        let most = numbers.into_iter().max_by_key(|(_, number)| *number);
        most.expect("there are flows, or nothing is merged")
    }
}

fn cut(text: &str) -> String {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// What all programs have done.
#[derive(Debug, Default)]
pub struct Learned {
    programs: BTreeMap<ProgramKey, LearnedProgram>,
    /// Not taken by [`Learned::take_changes`] yet.
    changed: BTreeSet<ProgramKey>,
    forgotten: u64,
}

/// What is to be remembered of a program, or that nothing is any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LearnedChange {
    /// This, whatever it was.
    Is(LearnedProgram),
    /// Nothing is known of this program any more.
    Gone(ProgramKey),
}

impl Learned {
    /// The record with what was remembered of programs.
    pub fn of(programs: impl IntoIterator<Item = LearnedProgram>) -> Self {
        let programs = programs
            .into_iter()
            .map(|program| (program.program.clone(), program));
        Self {
            programs: programs.take(MAX_PROGRAMS).collect(),
            ..Self::default()
        }
    }

    /// Adds one; texts that are too long are cut.
    pub fn add(&mut self, mut seen: Observation) {
        seen.program.path = cut(&seen.program.path);
        seen.program.script = seen.program.script.as_deref().map(cut);
        let key = seen.program.clone();
        if !self.programs.contains_key(&key) && self.programs.len() >= MAX_PROGRAMS {
            let quiet = self.programs.values().min_by_key(|program| program.last);
            if let Some(quiet) = quiet.map(|program| program.program.clone()) {
                self.programs.remove(&quiet);
                self.changed.insert(quiet);
                self.forgotten += 1;
            }
        }
        let program = self.programs.entry(key.clone());
        program
            .or_insert_with(|| LearnedProgram::new(key.clone(), seen.at))
            .add(&seen);
        self.changed.insert(key);
    }

    /// Is anything known of this program?
    pub fn has(&self, program: &ProgramKey) -> bool {
        self.programs.contains_key(program)
    }

    /// Has all of them count as changed, for a database that was made anew.
    pub fn change_all(&mut self) {
        self.changed.extend(self.programs.keys().cloned());
    }

    /// Forgets all programs, each of which counts as changed.
    pub fn clear(&mut self) {
        let keys = std::mem::take(&mut self.programs).into_keys();
        self.changed.extend(keys);
    }

    /// What has changed since the last call, for the database.
    pub fn take_changes(&mut self) -> Vec<LearnedChange> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        changed
            .map(|key| match self.programs.get(&key) {
                Some(program) => LearnedChange::Is(program.clone()),
                None => LearnedChange::Gone(key),
            })
            .collect()
    }

    /// All programs, by their paths.
    pub fn programs(&self) -> impl Iterator<Item = &LearnedProgram> {
        self.programs.values()
    }

    /// Programs that made room for others.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> ProgramKey {
        ProgramKey {
            path: format!("/usr/bin/{number:05}"),
            digest: Some(Digest([number as u8; 32])),
            script: None,
        }
    }

    fn seen(at: i64, number: u32, peer: [u8; 4], port: u16) -> Observation {
        Observation {
            at,
            program: key(number),
            is_at_path: true,
            aggregate: Some(Digest([number as u8; 32])),
            package: Some("curl".to_owned()),
            parents: vec!["/bin/bash".to_owned(), "/sbin/init".to_owned()],
            cgroup: "/user.slice".to_owned(),
            uid: 1000,
            is_denied: false,
            is_outward: true,
            protocol: Protocols::TCP,
            peer: peer.into(),
            port,
        }
    }

    #[test]
    fn a_program_is_known_by_what_it_does() {
        let mut learned = Learned::default();
        learned.add(seen(10, 1, [192, 0, 2, 1], 443));
        learned.add(seen(20, 1, [192, 0, 2, 1], 443));
        learned.add(seen(15, 1, [192, 0, 2, 2], 443));
        learned.add(seen(30, 2, [192, 0, 2, 1], 443));
        let [one, _] = &learned.programs().collect::<Vec<_>>()[..] else {
            panic!()
        };
        assert_eq!((one.first, one.last, one.flows.len()), (10, 20, 2));
        let count = one.flows.values().next().unwrap();
        assert_eq!((count.first, count.last, count.count), (10, 20, 2));
        assert!(
            one.parents.contains("/bin/bash < /sbin/init"),
            "{:?}",
            one.parents
        );
        assert_eq!(learned.take_changes().len(), 2);
        assert!(learned.take_changes().is_empty());
        // An executable of another content is another program.
        let mut other = seen(40, 1, [192, 0, 2, 1], 443);
        other.program.digest = None;
        learned.add(other);
        assert_eq!(
            (learned.programs().count(), learned.take_changes().len()),
            (3, 1)
        );
        learned.clear();
        let gone = learned.take_changes();
        assert!(
            gone.iter()
                .all(|change| matches!(change, LearnedChange::Gone(_))),
            "{gone:?}"
        );
        assert_eq!(gone.len(), 3);
    }

    #[test]
    fn a_program_with_many_peers_has_flows_to_anybody() {
        let mut learned = Learned::default();
        learned.add(seen(1, 1, [192, 0, 2, 1], 53));
        for n in 0..1000u32 {
            let [_, _, high, low] = n.to_be_bytes();
            learned.add(seen(2, 1, [198, 51, high, low], 443));
        }
        let program = learned.programs().next().unwrap();
        let anybody = FlowKey {
            is_outward: true,
            protocol: Protocols::TCP,
            port: Some(443),
            peer: None,
        };
        assert_eq!(program.flows.len(), 2);
        assert_eq!(program.flows[&anybody].count, 1000);
        // Whoever has reviewed one peer has not reviewed anybody.
        let mut later = Learned::default();
        for n in 0..=MAX_FLOWS as u32 {
            let [_, _, high, low] = n.to_be_bytes();
            later.add(seen(i64::from(n), 1, [198, 51, high, low], 443));
        }
        let program = later.programs().next().unwrap();
        assert_eq!(program.flows[&anybody].first, 0);
        assert_eq!(program.flows[&anybody].since, MAX_FLOWS as i64);
        let program = learned.programs().next().unwrap();
        assert_eq!(program.flows.len(), 2);
        // And one that scans ports has one for all of them.
        for port in 1..=1000 {
            learned.add(seen(3, 1, [192, 0, 2, 9], port));
        }
        let program = learned.programs().next().unwrap();
        assert!(program.flows.len() <= MAX_FLOWS, "{}", program.flows.len());
        let all: u64 = program.flows.values().map(|flow| flow.count).sum();
        assert_eq!(all, 2001);
        assert!(program.flows.contains_key(&FlowKey {
            port: None,
            ..anybody
        }));
    }

    #[test]
    fn of_many_programs_the_quiet_ones_go() {
        let mut learned = Learned::default();
        for number in 0..MAX_PROGRAMS as u32 + 3 {
            learned.add(seen(i64::from(number), number, [192, 0, 2, 1], 1));
        }
        assert_eq!(learned.programs().count(), MAX_PROGRAMS);
        assert_eq!(learned.forgotten(), 3);
        assert_eq!(learned.programs().next().unwrap().program, key(3));
        let changes = learned.take_changes();
        let gone = changes
            .iter()
            .filter(|change| matches!(change, LearnedChange::Gone(_)));
        assert_eq!(gone.count(), 3);
    }

    #[test]
    fn forms_of_a_program_are_remembered_up_to_a_bound() {
        let mut learned = Learned::default();
        for n in 0..MAX_NAMES as u8 {
            let mut form = seen(1, 1, [192, 0, 2, 1], 1);
            form.aggregate = Some(Digest([n; 32]));
            form.is_denied = n == 0;
            learned.add(form);
        }
        let program = learned.programs().next().unwrap();
        assert_eq!(program.aggregates.len(), MAX_NAMES);
        assert!(!program.has_other_forms);
        assert_eq!(program.flows.values().next().unwrap().denied, 1);
        learned.add(seen(1, 1, [192, 0, 2, 1], 1));
        assert!(!learned.programs().next().unwrap().has_other_forms);
        let mut form = seen(1, 1, [192, 0, 2, 1], 1);
        form.aggregate = Some(Digest([99; 32]));
        learned.add(form);
        assert!(learned.programs().next().unwrap().has_other_forms);
    }

    #[test]
    fn names_are_cut_and_bounded() {
        let mut learned = Learned::default();
        for n in 0..100 {
            let mut long = seen(1, 1, [192, 0, 2, 1], 1);
            long.program.path = "ä".repeat(5000);
            long.parents = vec![format!("/{n}")];
            long.cgroup = format!("/{n}") + &"x".repeat(5000);
            learned.add(long);
        }
        let [one] = &learned.programs().collect::<Vec<_>>()[..] else {
            panic!()
        };
        assert_eq!(one.program.path.len(), MAX_TEXT);
        assert_eq!((one.parents.len(), one.cgroups.len()), (8, 8));
        assert!(one.cgroups.iter().all(|name| name.len() == MAX_TEXT));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut learned = Learned::default();
        for n in 0..300 {
            learned.add(seen(n, 1, [192, 0, 2, n as u8], n as u16));
        }
        let program = learned.programs().next().unwrap();
        let text = serde_json::to_string(program).unwrap();
        assert_eq!(
            &serde_json::from_str::<LearnedProgram>(&text).unwrap(),
            program
        );
        let again = Learned::of([program.clone()]);
        assert_eq!(again.programs().collect::<Vec<_>>(), [program]);
    }
}
