//! Application identity in the kernel (`bpf/identity/identity.bpf.c`): its programs, which
//! are pinned and go on without a daemon, and its tables. Which program may do what is
//! decided in user space and written here as rules, of which each has a *where*, and as a
//! bitmap of rules for each identity: the rules whose *who* it meets.

mod diag;
mod events;
mod level;
mod policy;
mod programs;
mod sockets;

pub use events::{Comm, IdentityEvent, IdentityEventKind, IdentityEvents};
pub use level::{Level, level, missing};
pub use policy::{Networks, Policy, Rule, RuleBits, Unknown, Verdict};
pub use programs::{CgroupAt, Loaded, detach, is_attached};
pub use sockets::{Decided, ListedSocket, SocketFlow, SocketRecord};

use std::{
    collections::BTreeSet,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_core::Prefix;

use crate::{
    abi,
    error::{Context, Error, Result},
    fault, mapped, prog_test_run,
    skeleton::identity::types::{
        ident_control, ident_executable, ident_file, ident_hits, ident_key, ident_known,
        ident_network, ident_policy, ident_program, ident_question, ident_rule,
    },
    small_maps::sum_of,
};

/// Rules of one configuration.
pub const MAX_RULES: usize = abi::IDENT_RULES as usize;
/// Ranges of ports of a rule.
pub const MAX_PORTS: usize = abi::IDENT_PORTS as usize;
/// Identities that have rules of their own at a time; number 0 is nobody's.
pub const MAX_IDENTITIES: usize = abi::IDENT_IDENTITIES as usize - 1;
/// Executable files of which it is known which rules they meet.
pub const MAX_EXECUTABLES: usize = abi::IDENT_EXECUTABLES as usize;
/// Networks of all rules of one configuration: the next one is written beside the last.
pub const MAX_NETWORKS: usize = abi::IDENT_NETWORKS as usize / 2;

/// The largest number of a policy: it has the bits of [`ident_network`] that the number and
/// the direction of a rule leave.
const MAX_GENERATION: u32 = u32::MAX >> 11;

/// The number of the policy that comes after `own` in the same bank: never 0, and never that
/// of the policy in force, which is in the other one.
fn next_generation(own: u32, in_force: u32) -> u32 {
    let after = |number: u32| number % MAX_GENERATION + 1;
    match after(own) {
        next if next == in_force => after(next),
        next => next,
    }
}

/// The bytes of a value that goes to the kernel.
fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: only structs of bpf/abi/identity.h come here: plain old data whose padding
    // is written out as members. They are as long as the slice, and borrowed as long.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// A value that came from the kernel; `None`: it has another length.
fn value_of<T: Copy>(bytes: &[u8]) -> Option<T> {
    // SAFETY: the right number of bytes, and in structs of bpf/abi/identity.h every
    // pattern of bits is a value.
    (bytes.len() == size_of::<T>())
        .then(|| unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
}

/// A program as it runs, by what it has mapped, as the kernel names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Keyed sums over the files that are mapped executable.
    pub set: [u64; 2],
    /// Of its control group, if a rule is about one; else 0.
    pub cgroup: u64,
    /// Of its user, if a rule is about one; else 0.
    pub uid: u32,
    /// Its address space, if a rule is about what two processes of one program differ in.
    pub space: u64,
    /// It has executable memory that is of no file.
    pub anonymous: bool,
    /// Its code differs from its files, or another process has traced it.
    pub altered: bool,
}

impl Key {
    fn of(raw: &ident_key) -> Self {
        Self {
            set: raw.set,
            cgroup: raw.cgroup,
            uid: raw.uid,
            space: raw.space,
            anonymous: raw.flags & abi::IDENT_ANONYMOUS != 0,
            altered: raw.flags & abi::IDENT_ALTERED != 0,
        }
    }

    fn raw(&self) -> ident_key {
        ident_key {
            set: self.set,
            cgroup: self.cgroup,
            uid: self.uid,
            space: self.space,
            flags: (u32::from(self.anonymous) * abi::IDENT_ANONYMOUS)
                | (u32::from(self.altered) * abi::IDENT_ALTERED),
        }
    }
}

/// An executable file as the kernel knows it: the key of every program that runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Executable(u64);

impl Executable {
    fn of(raw: u64) -> Option<Self> {
        (raw != 0).then_some(Self(raw))
    }

    /// A key that no file has, for tests of who keeps keys.
    #[doc(hidden)]
    pub fn for_test(number: u64) -> Self {
        Self(number)
    }
}

/// What an executable file alone tells of a program that runs it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ExecutableBits {
    /// Rules that are about the program for certain.
    pub meets: RuleBits,
    /// Those, and rules that may be about it; all others are not.
    pub may: RuleBits,
}

/// A process at one moment. Two answers with the same sequence, if it is even, and address space
/// are of the same mappings, with nothing else between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The program that it runs.
    pub key: Key,
    /// The executable file of the process; `None`: it has none.
    pub executable: Option<Executable>,
    /// The address space, by the kernel's own address of it.
    pub space: u64,
    /// Moves whenever its mappings may change.
    pub sequence: u32,
    /// The number of the effective user.
    pub uid: u32,
    /// Its control group in the hierarchy of version 2.
    pub cgroup: u64,
    /// What the walk over its mappings took, in nanoseconds; not compared by who asks.
    pub walk_ns: u64,
}

/// What identity has counted; see `enum ident_count`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct IdentityCounts {
    /// Walks over the mappings of a process.
    pub walks: u64,
    /// Walks that never found the mappings unlocked.
    pub busy: u64,
    /// Walks of level push over more mappings than one is to look at.
    pub large: u64,
    /// Sends by another program, or with other mappings, than the one before.
    pub changed: u64,
    /// Decisions by the rules.
    pub judged: u64,
    /// Packets dropped on their way out.
    pub dropped_out: u64,
    /// Packets dropped on their way in.
    pub dropped_in: u64,
    /// Connections that were refused with EPERM.
    pub refused: u64,
    /// Sockets that were refused when they were made.
    pub refused_sockets: u64,
    /// Decisions about programs that were not known.
    pub unknown: u64,
    /// Sockets with more holders than are remembered.
    pub crowded: u64,
    /// Events that found the ring full.
    pub lost: u64,
    /// Sockets that were there before.
    pub adopted: u64,
    /// Connections that were ended because the rules allow them no longer: each once, when
    /// that was done.
    pub cut: u64,
    /// Events about what comes in that found their part of the ring full.
    pub untold: u64,
    /// Flows of datagrams that were refused, and noted as such.
    pub refused_flows: u64,
    /// New flows of datagrams from outside beyond the share of their socket.
    pub overflow_flows: u64,
}

/// What one rule has decided.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Hits {
    /// Connections and flows.
    pub judged: u64,
    /// Packets, and calls that were refused.
    pub dropped: u64,
}

/// What stands in the place of a rule's number where no rule decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DecidedBy {
    /// The rule with this number.
    Rule(u16),
    /// No rule: the default.
    Default,
    /// A rule might hold: it is not known who sends.
    Unknown,
    /// Sockets of this kind are refused to everybody.
    Kind,
}

impl DecidedBy {
    fn of(number: u16) -> Self {
        match number.into() {
            abi::IDENT_BY_DEFAULT => Self::Default,
            abi::IDENT_BY_UNKNOWN => Self::Unknown,
            abi::IDENT_BY_KIND => Self::Kind,
            _ => Self::Rule(number),
        }
    }

    fn slot(self, second: bool) -> u32 {
        match self {
            Self::Rule(number) => u32::from(number) + if second { abi::IDENT_RULES } else { 0 },
            Self::Default => abi::IDENT_BY_DEFAULT + abi::IDENT_RULES,
            Self::Unknown => abi::IDENT_BY_UNKNOWN + abi::IDENT_RULES,
            Self::Kind => abi::IDENT_BY_KIND + abi::IDENT_RULES,
        }
    }
}

/// The handle of an identity: its number, and a serial that tells it from others that
/// have had the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(u32);

impl Handle {
    /// `number` is 1 to [`MAX_IDENTITIES`].
    pub fn new(number: u16, serial: u16) -> Self {
        Self(u32::from(number) | u32::from(serial) << 16)
    }

    /// The number of the identity in the kernel's table.
    pub fn number(self) -> u16 {
        self.0 as u16
    }

    /// Which one of those that had the number.
    pub fn serial(self) -> u16 {
        (self.0 >> 16) as u16
    }

    pub(crate) fn of(raw: u32) -> Option<Self> {
        (raw != 0).then_some(Self(raw))
    }

    /// As the kernel has it.
    pub(crate) fn raw(self) -> u32 {
        self.0
    }
}

/// Its tables, whether or not the programs are attached.
pub struct Identity {
    dir: PathBuf,
    level: Level,
    by_function: bool,
    control: MapHandle,
    rules: MapHandle,
    networks: MapHandle,
    programs: MapHandle,
    sets: MapHandle,
    executables: MapHandle,
    events: MapHandle,
    counters: MapHandle,
    hits: MapHandle,
    adopt: OwnedFd,
    /// Flows of datagrams: four tables.
    flows: [MapHandle; 4],
    /// The programs that list descriptors of sockets, and a namespace's sockets of TCP and of
    /// UDP.
    list: [OwnedFd; 3],
    /// The programs that end connections of TCP and of UDP, with their fault points; none:
    /// this kernel cannot.
    cut: Vec<(&'static str, OwnedFd)>,
    /// The program that counts what was ended by sock_diag.
    ended: Option<OwnedFd>,
    question: OwnedFd,
    file: OwnedFd,
}

fn control_of(map: &MapHandle) -> Result<ident_control> {
    let what = || "read what holds for programs".to_owned();
    let bytes = map.lookup(&[0; 4], MapFlags::ANY).context(what)?;
    let control = bytes.as_deref().and_then(value_of);
    control.ok_or_else(|| Error::refused(what(), "the map has another form"))
}

fn put_control(map: &MapHandle, control: &ident_control) -> Result<()> {
    map.update(&[0; 4], bytes_of(control), MapFlags::ANY)
        .context(|| "write what holds for programs".into())
}

impl Identity {
    fn control(&self) -> Result<ident_control> {
        control_of(&self.control)
    }

    fn put_control(&self, control: &ident_control) -> Result<()> {
        put_control(&self.control, control)
    }

    /// Puts a policy into force, in one step, with the identities and executable files that
    /// are known: whoever is not among them is unknown from then on. Each socket is judged
    /// anew when it is used next.
    ///
    /// # Errors
    /// There are too many rules or networks, or the kernel refuses some: then the policy
    /// before stays.
    pub fn put_policy(
        &self,
        policy: &Policy,
        known: &[(Handle, RuleBits)],
        executables: &[(Executable, ExecutableBits)],
    ) -> Result<()> {
        policy.check()?;
        let mut control = self.control()?;
        let epoch = control.epoch.wrapping_add(1).max(2);
        let second = epoch & 1 == 1;
        let bank = usize::from(second);
        let in_force = control.policies[1 - bank].generation;
        // What a daemon has left that was killed while it wrote would take the room of this one.
        self.forget_networks(|of| of != in_force)?;
        let generation = next_generation(control.policies[bank].generation, in_force);
        // Before anything is written by it: what is left of one that is refused midway is
        // of no later policy. Of the policy that is not in force nobody asks.
        control.policies[bank].generation = generation;
        self.put_control(&control)?;
        let over = self.executables_but(executables);
        // Those of an earlier daemon make room; who runs one of them is unknown meanwhile.
        if over.len() + executables.len() > MAX_EXECUTABLES {
            self.forget_executables(&over);
        }
        let written = self.write_policy(policy, known, executables, bank, generation);
        let raw = match written {
            Ok(raw) => raw,
            Err(error) => {
                // What stays all the same is removed before the next one is written.
                let _ = self.forget_networks(|of| of != in_force);
                return Err(error);
            }
        };
        // The whole before its number: it is copied word by word, beside packets.
        control.policies[bank] = raw;
        self.put_control(&control)?;
        control.epoch = epoch;
        self.put_control(&control)?;
        self.forget_executables(&over);
        // The policy is in force. What stays is removed before the next one is written.
        let _ = self.forget_networks(|of| of != generation);
        Ok(())
    }

    /// Writes all of a policy but what says that it is in force.
    fn write_policy(
        &self,
        policy: &Policy,
        known: &[(Handle, RuleBits)],
        executables: &[(Executable, ExecutableBits)],
        bank: usize,
        generation: u32,
    ) -> Result<ident_policy> {
        let second = bank == 1;
        let mut raw = ident_policy {
            generation,
            rules: policy.rules.len() as u32,
            verdict: policy.raw_default(),
            unknown: policy.unknown.raw(),
            flags: policy.flags(),
            ..ident_policy::default()
        };
        for (number, rule) in policy.rules.iter().enumerate() {
            if rule.verdict != Verdict::Allow {
                raw.deny[number / 64] |= 1 << (number % 64);
            }
            let mut of_rule = rule.raw();
            for (direction, networks) in [&rule.outward, &rule.inward].into_iter().enumerate() {
                let Some(networks) = networks else { continue };
                // Never 0, and another one in each generation.
                let id = generation << 11 | (number as u32) << 1 | direction as u32;
                of_rule.networks[direction] = id;
                for prefix in networks.prefixes.iter() {
                    self.write_network(id, *prefix)?;
                }
            }
            let slot = DecidedBy::Rule(number as u16).slot(second);
            self.rules
                .update(&slot.to_ne_bytes(), bytes_of(&of_rule), MapFlags::ANY)
                .context(|| format!("write rule {number}"))?;
            self.forget_hits(slot)?;
        }
        for (handle, bits) in known {
            let mut program = self.program(handle.number())?;
            if program.handle != handle.0 {
                program = ident_program {
                    handle: handle.0,
                    ..ident_program::default()
                };
            }
            program.rules[bank] = bits.0;
            program.generation[bank] = generation;
            self.put_program(handle.number(), &program)?;
        }
        for (key, bits) in executables {
            self.write_executable(*key, bits, bank, generation)?;
        }
        Ok(raw)
    }

    fn write_network(&self, networks: u32, prefix: Prefix) -> Result<()> {
        for (addr, bits) in mapped::keys(prefix) {
            let key = ident_network {
                bits: 32 + bits,
                networks,
                addr,
            };
            self.networks
                .update(bytes_of(&key), &1_u32.to_ne_bytes(), MapFlags::ANY)
                .context(|| format!("write the network {prefix} of a rule"))?;
        }
        Ok(())
    }

    /// The keys of other executable files that the kernel has.
    fn executables_but(&self, wanted: &[(Executable, ExecutableBits)]) -> Vec<Vec<u8>> {
        let wanted: BTreeSet<u64> = wanted.iter().map(|(key, _)| key.0).collect();
        let is_over = |key: &Vec<u8>| value_of(key).is_some_and(|key: u64| !wanted.contains(&key));
        self.executables.keys().filter(is_over).collect()
    }

    fn forget_executables(&self, keys: &[Vec<u8>]) {
        for key in keys {
            // It may be gone.
            let _ = self.executables.delete(key);
        }
    }

    /// Says by what programs are told apart, before the policy is in force that asks for it:
    /// keys of programs are made by that.
    pub fn put_flags(&self, policy: &Policy) -> Result<()> {
        let mut control = self.control()?;
        let second = (control.epoch & 1) as usize;
        control.policies[second].flags = policy.flags();
        if control.epoch < 2 {
            // There is none yet.
            control.policies[second].verdict = policy.raw_default();
            control.policies[second].unknown = policy.unknown.raw();
        }
        self.put_control(&control)
    }

    fn forget_hits(&self, slot: u32) -> Result<()> {
        let cpus = libbpf_rs::num_possible_cpus().context(|| "count the processors".into())?;
        let none = vec![vec![0_u8; size_of::<ident_hits>()]; cpus];
        self.hits
            .update_percpu(&slot.to_ne_bytes(), &none, MapFlags::ANY)
            .context(|| "clear the counters of a rule".into())
    }

    /// Removes the networks of the rules of these generations.
    fn forget_networks(&self, is_over: impl Fn(u32) -> bool) -> Result<()> {
        let is_over = |key: &Vec<u8>| {
            value_of::<ident_network>(key).is_some_and(|key| is_over(key.networks >> 11))
        };
        let over: Vec<_> = self.networks.keys().filter(is_over).collect();
        over.iter().try_for_each(|key| {
            self.networks
                .delete(key)
                .context(|| "remove a network of rules that are over".into())
        })
    }

    fn program(&self, number: u16) -> Result<ident_program> {
        let what = || "read an identity".to_owned();
        let key = u32::from(number).to_ne_bytes();
        let bytes = self.programs.lookup(&key, MapFlags::ANY).context(what)?;
        let program = bytes.as_deref().and_then(value_of);
        program.ok_or_else(|| Error::refused(what(), format!("there is no number {number}")))
    }

    fn put_program(&self, number: u16, program: &ident_program) -> Result<()> {
        self.programs
            .update(
                &u32::from(number).to_ne_bytes(),
                bytes_of(program),
                MapFlags::ANY,
            )
            .context(|| "write an identity".into())
    }

    /// Makes this the identity with that handle: in the policy in force it meets the *who*
    /// of these rules. Whoever had the number before is unknown from here on.
    pub fn put_identity(&self, handle: Handle, bits: &RuleBits) -> Result<()> {
        let control = self.control()?;
        let bank = (control.epoch & 1) as usize;
        let mut program = ident_program {
            handle: handle.0,
            ..ident_program::default()
        };
        program.rules[bank] = bits.0;
        program.generation[bank] = control.policies[bank].generation;
        self.put_program(handle.number(), &program)
    }

    fn write_executable(
        &self,
        key: Executable,
        bits: &ExecutableBits,
        bank: usize,
        revision: u32,
    ) -> Result<()> {
        let what = || "write what is known of an executable file".to_owned();
        let key = key.0.to_ne_bytes();
        let known = self.executables.lookup(&key, MapFlags::ANY).context(what)?;
        let known = known.as_deref().and_then(value_of);
        let mut known: ident_executable = known.unwrap_or_default();
        known.meets[bank] = bits.meets.0;
        known.may[bank] = bits.may.0;
        known.revision[bank] = revision;
        self.executables
            .update(&key, bytes_of(&known), MapFlags::ANY)
            .context(what)
    }

    /// Says what an executable file tells of whoever runs it, for the policy in force.
    ///
    /// # Errors
    /// There are [`MAX_EXECUTABLES`] already, or the kernel refuses it.
    pub fn put_executable(&self, key: Executable, bits: &ExecutableBits) -> Result<()> {
        let control = self.control()?;
        let bank = (control.epoch & 1) as usize;
        self.write_executable(key, bits, bank, control.policies[bank].generation)
    }

    /// Takes back what was said of an executable file. What was decided by it stays until
    /// [`Self::judge_anew`].
    pub fn forget_executable(&self, key: Executable) {
        // It may never have been there.
        let _ = self.executables.delete(&key.0.to_ne_bytes());
    }

    /// The key of whoever will run a file that this process has open; `None`: it is closed.
    ///
    /// # Errors
    /// The kernel refuses to run the program that asks.
    pub fn executable_of(&self, file: BorrowedFd<'_>) -> Result<Option<Executable>> {
        let mut question = ident_file {
            fd: file.as_raw_fd() as u32,
            ..ident_file::default()
        };
        prog_test_run::syscall(self.file.as_fd(), &mut question)?;
        Ok((question.found == 1).then_some(Executable(question.executable)))
    }

    /// Makes nobody the identity with that handle; sockets that it holds are judged anew.
    pub fn forget_identity(&self, handle: Handle) -> Result<()> {
        self.put_program(handle.number(), &ident_program::default())?;
        self.judge_anew()
    }

    /// Says who a program is.
    pub fn name(&self, key: &Key, handle: Handle) -> Result<()> {
        let known = ident_known {
            handle: handle.0,
            ..ident_known::default()
        };
        self.sets
            .update(bytes_of(&key.raw()), bytes_of(&known), MapFlags::ANY)
            .context(|| "say who a program is".into())
    }

    /// What an earlier daemon has said of who programs are.
    pub fn named(&self) -> Vec<(Key, Handle)> {
        let keys: Vec<_> = self.sets.keys().collect();
        let known = |bytes: &Vec<u8>| {
            let key = value_of::<ident_key>(bytes)?;
            let value = self.sets.lookup(bytes, MapFlags::ANY).ok()??;
            let known = value_of::<ident_known>(&value)?;
            Some((Key::of(&key), Handle::of(known.handle)?))
        };
        keys.iter().filter_map(known).collect()
    }

    /// Takes back what was said of this program.
    pub fn unname(&self, key: &Key) {
        // The kernel may have forgotten it itself.
        let _ = self.sets.delete(bytes_of(&key.raw()));
    }

    /// Has every socket judged anew, by the rules that are in force.
    pub fn judge_anew(&self) -> Result<()> {
        let mut control = self.control()?;
        // Its lowest bit says which policy.
        control.epoch = control.epoch.wrapping_add(2).max(2);
        self.put_control(&control)
    }

    /// Looks at a process as it is now; `None`: it is gone, is a thread of the kernel, or
    /// changes its mappings without a pause.
    ///
    /// # Errors
    /// The kernel refuses to run the program that asks.
    pub fn look_at(&self, pid: u32) -> Result<Option<Seen>> {
        let mut question = ident_question {
            tgid: pid,
            ..ident_question::default()
        };
        if self.level == Level::Push {
            // Nothing: there is no such process.
            question = ident_question::default();
            programs::read_iterator(self.question.as_fd(), Some(pid), &mut |written| {
                question = value_of(written).unwrap_or_default();
            })?;
        } else {
            prog_test_run::syscall(self.question.as_fd(), &mut question)?;
        }
        Ok((question.found == 1).then(|| Seen {
            key: Key::of(&question.key),
            executable: Executable::of(question.executable),
            space: question.space,
            sequence: question.sequence,
            uid: question.uid,
            cgroup: question.cgroup,
            walk_ns: question.nanoseconds,
        }))
    }

    /// Gives each socket that some process has a descriptor of a record with its holders:
    /// sockets that were there before the programs, and holders that have not sent yet.
    pub fn adopt_sockets(&self) -> Result<()> {
        programs::run_iterator(self.adopt.as_fd())
    }

    /// Ends each connection that the rules in force do not allow, of the network namespace
    /// that the calling thread is in: its program gets `ECONNABORTED`, the peer a reset. TCP
    /// that has been established, and UDP sockets that are connected. What nobody has judged
    /// since the rules were put into force is judged here. Nothing is ended where
    /// [`Self::can_cut`] is false, or the policy only observes.
    ///
    /// # Errors
    /// The kernel refuses to go through the sockets, or to end one: the others are ended all
    /// the same, and the first error is kept.
    pub fn cut_revoked(&self) -> Result<()> {
        let cut = self.cut.iter().map(|(point, program)| {
            fault::refuse(point).context(|| "go through the sockets that there are".to_owned())?;
            let mut ends = diag::Ends::new(self.ended.as_ref().map(AsFd::as_fd));
            let read = programs::read_iterator(program.as_fd(), None, &mut |ended| ends.end(ended));
            read.and(ends.done())
        });
        cut.fold(Ok(()), Result::and)
    }

    /// Whether this kernel can end connections: by `bpf_sock_destroy` (Linux 6.5), or by
    /// sock_diag(7) with `CONFIG_INET_DIAG_DESTROY`.
    pub fn can_cut(&self) -> bool {
        !self.cut.is_empty()
    }

    /// How it is seen who sends on a connection.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Whether that is by the beginning of functions, and not by tracepoints.
    pub fn is_by_function(&self) -> bool {
        self.by_function
    }

    /// Reads the counters, summed over the processors.
    pub fn counts(&self) -> Result<IdentityCounts> {
        let read = |number| sum_of(&self.counters, number, "programs");
        Ok(IdentityCounts {
            walks: read(abi::IDENT_C_WALKS)?,
            busy: read(abi::IDENT_C_BUSY)?,
            large: read(abi::IDENT_C_LARGE)?,
            changed: read(abi::IDENT_C_CHANGED)?,
            judged: read(abi::IDENT_C_JUDGED)?,
            dropped_out: read(abi::IDENT_C_OUT)?,
            dropped_in: read(abi::IDENT_C_IN)?,
            refused: read(abi::IDENT_C_REFUSED)?,
            refused_sockets: read(abi::IDENT_C_SOCKETS)?,
            unknown: read(abi::IDENT_C_UNKNOWN)?,
            crowded: read(abi::IDENT_C_HOLDERS)?,
            lost: read(abi::IDENT_C_LOST)?,
            adopted: read(abi::IDENT_C_ADOPTED)?,
            cut: read(abi::IDENT_C_CUT)?,
            untold: read(abi::IDENT_C_UNTOLD)?,
            refused_flows: read(abi::IDENT_C_FLOWS)?,
            overflow_flows: read(abi::IDENT_C_OVERFLOW)?,
        })
    }

    /// What one rule of the policy in force has decided.
    pub fn hits(&self, by: DecidedBy) -> Result<Hits> {
        let second = self.control()?.epoch & 1 == 1;
        let key = by.slot(second).to_ne_bytes();
        let cpus = self.hits.lookup_percpu(&key, MapFlags::ANY);
        let cpus = cpus.context(|| "read the counters of a rule".into())?;
        let of_cpu = |bytes: Vec<u8>| value_of::<ident_hits>(&bytes).unwrap_or_default();
        let sum = |sum: Hits, one: ident_hits| Hits {
            judged: sum.judged + one.judged,
            dropped: sum.dropped + one.dropped,
        };
        let cpus = cpus.into_iter().flatten().map(of_cpu);
        Ok(cpus.fold(Hits::default(), sum))
    }

    /// Reads what the kernel tells.
    pub fn events(&self) -> Result<IdentityEvents> {
        IdentityEvents::new(&self.events)
    }

    /// The networks that the rules in force have.
    pub fn networks(&self) -> usize {
        let keys: BTreeSet<_> = self.networks.keys().collect();
        keys.len()
    }

    /// Where its pins are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

const _: () = {
    assert!(size_of::<ident_rule>() == 56);
    assert!(size_of::<ident_program>() == 272);
    assert!(size_of::<ident_control>() == 336);
    assert!(size_of::<ident_executable>() == 520);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_never_has_the_number_of_the_one_in_force() {
        assert_eq!(next_generation(0, 0), 1);
        assert_eq!(next_generation(0, 1), 2);
        let last = MAX_GENERATION;
        assert_eq!(next_generation(last - 1, 1), last);
        assert_eq!(next_generation(last - 1, last), 1);
        assert_eq!(next_generation(last, 7), 1);
        assert_eq!(next_generation(last, 1), 2);
        // In turns, over the edge.
        let mut banks = [last - 2, last - 1];
        for turn in 0..8 {
            let bank = turn % 2;
            let next = next_generation(banks[bank], banks[1 - bank]);
            assert!((1..=last).contains(&next), "{next}");
            assert!(!banks.contains(&next), "{next} of {banks:?}");
            banks[bank] = next;
        }
    }
}
