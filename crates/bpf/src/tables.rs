//! The tables of one generation: the maps made together for one geometry and seed,
//! and those of longer lives that it was handed (`maps` says which). Growth, upgrade and a change
//! of what is compiled in all make the next generation; the packet path is switched by
//! a link update. Its programs are the business of `programs`.

use std::{
    fs,
    os::fd::BorrowedFd,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, libbpf_sys as sys};

use crate::{
    abi::{self, BUCKETS_PER_PAGE, FLOW_CELLS},
    allow::AllowList,
    answers::{AnswerProgram, Answers, Caller, tail_calls_supported},
    attachment::Hook,
    balance::{self, Balancer},
    class::ClassTable,
    decoy::Decoys,
    error::{Context, Error, Result},
    interfaces::Interfaces,
    maps::{Lifetime, Map, Maps},
    prefix_bans::PrefixBanMaps,
    programs::{NO_NETFILTER, Programs, build_id, frags_supported, netfilter_supported},
    skeleton::{
        clock::types::event,
        firewall::types::{counter, meta, policy},
    },
    table::{BanTable, Geometry, PortFeatures, TableMaps},
};

/// The number of the layout that this build knows; pins of another are replaced.
pub const ABI: u32 = abi::WEIR_ABI;
/// Policy numbers, 0 included, which is not used.
pub const MAX_POLICIES: u32 = abi::MAX_POLICIES;
/// Set in the policy number of an entry that covers some ports only.
pub const POLICY_SCOPED: u16 = abi::POLICY_SCOPED as u16;
/// Set in the policy number of an entry whose packets are answered.
pub const POLICY_REJECT: u16 = abi::POLICY_REJECT as u16;
/// What is left of a policy number without these.
pub const POLICY_NUMBER: u16 = abi::POLICY_NUMBER as u16;

const _: () = assert!(size_of::<policy>() == 160 && size_of::<counter>() == 32);
const _: () = assert!(size_of::<event>() == 48 && size_of::<meta>() == 160);

/// What a new generation is made for.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Sizes of the tables.
    pub geometry: Geometry,
    /// Random, unknown to anybody who chooses addresses. That of an instance's
    /// first generation also keys, for good, the maps that are handed on.
    pub seed: [u64; 3],
    /// The IPv4 length below 32 that the ban table holds; 0 for none.
    pub v4_length: u8,
    /// Lines of one copy of the class table; 0: no class stage, no egress
    /// program, and no cost.
    pub class_lines: u32,
    /// How long the answer to a flow without handshake is expected, in jiffies.
    pub flow_jiffies: u32,
    /// The jiffies that it is made at, from which expiries of IPv4 hosts count: a
    /// ban that ends 2^32 jiffies later (7 weeks at 1000 a second) has a longer
    /// entry, and costs a second look.
    pub started: u64,
    /// The flows of pools that find room: see [`balance::table_for`]. Of an instance's
    /// first generation, for the table is handed on.
    pub balanced_flows: u32,
    /// Benchmarks only: innocent packets leave by drop instead of pass.
    pub drop_innocent: bool,
}

impl Options {
    /// For bans that drop, and with a seed that everybody knows: for
    /// measurements, where nobody chooses addresses.
    pub fn bans(geometry: Geometry) -> Self {
        Self {
            geometry,
            seed: [
                0x9e37_79b9_7f4a_7c15,
                0xd6e8_feb8_6659_fd93,
                0xa076_1d64_78bd_642f,
            ],
            v4_length: 0,
            class_lines: 0,
            flow_jiffies: 0,
            started: 0,
            balanced_flows: abi::BALANCE_FLOWS,
            drop_innocent: false,
        }
    }
}

/// Tables, and the programs that were asked for.
pub struct Generation {
    /// Counts up with each generation of an instance.
    pub number: u64,
    /// The one IPv4 prefix length that the programs were built for.
    pub v4_length: u8,
    /// The ban table.
    pub table: BanTable,
    /// `struct policy` of bpf/abi/policy.h by number.
    pub policies: MapHandle,
    /// Per CPU `struct counter` by reason.
    pub counters: MapHandle,
    /// Ring buffer of `struct event`.
    pub events: MapHandle,
    /// Prefixes that no ban holds for.
    pub allow: AllowList,
    /// Geofence and lists.
    pub classes: ClassTable,
    /// Bans of prefixes of any length.
    pub prefix_bans: PrefixBanMaps,
    /// Decoy and tarpit ports.
    pub decoys: Decoys,
    /// The pools: services, rings and reals.
    pub balancer: Balancer,
    seed: [u64; 3],
    lasting_seed: [u64; 3],
    build: u64,
    suspended: AtomicU64,
    answers: Arc<Answers>,
    interfaces: Interfaces,
    maps: Maps,
    programs: Programs,
}

/// The description that is pinned in `dir`, and what is in it.
fn read_meta(dir: &Path) -> Result<(MapHandle, Vec<u8>)> {
    let map = Maps::open_one(dir, Map::Meta)?;
    let bytes = map
        .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
        .context(|| "read the description of a generation".into())?
        .unwrap_or_default();
    Ok((map, bytes))
}

/// Is this the description of tables that this build knows?
fn describes(bytes: &[u8]) -> bool {
    bytes.get(..4) == Some(&ABI.to_ne_bytes())
}

impl Generation {
    /// Makes a generation with empty tables; what lives longer it takes over from
    /// `previous`.
    pub fn create(number: u64, options: &Options, previous: Option<&Generation>) -> Result<Self> {
        let g = options.geometry;
        let lasting_seed = previous.map_or(options.seed, |old| old.lasting_seed);
        let answers = previous.map_or_else(Arc::default, |old| old.answers.clone());
        // Programs that were made without would never answer.
        let tail_calls =
            tail_calls_supported().context(|| "ask the kernel about tail calls".into())?;
        let maps = Maps::create(
            |rodata| {
                let cfg = &mut rodata.cfg;
                cfg.seed = options.seed;
                cfg.lasting_seed = lasting_seed;
                cfg.started = options.started;
                cfg.v4_buckets = g.v4_buckets;
                cfg.pages64 = g.buckets64 / BUCKETS_PER_PAGE;
                cfg.over64 = g.overflow64 - 1;
                cfg.pages128 = g.buckets128 / BUCKETS_PER_PAGE;
                cfg.over128 = g.overflow128 - 1;
                cfg.host_base = g.host_base();
                cfg.bloom_mask = g.bloom_words - 1;
                cfg.v4_length = options.v4_length.into();
                cfg.class_lines = options.class_lines;
                cfg.flow_jiffies = options.flow_jiffies;
                cfg.answers = tail_calls.into();
                cfg.frags = frags_supported().into();
                if options.drop_innocent {
                    cfg.final_pass = sys::XDP_DROP;
                }
            },
            |map| match map {
                Map::Bans => Some(g.buckets()),
                Map::HostUpper => Some(g.host_buckets()),
                Map::V4Bans => Some(g.v4_buckets),
                Map::Bloom => Some(g.bloom_words * 2),
                Map::Classes => Some(class_entries(options.class_lines)),
                Map::Flows => (options.class_lines != 0).then_some(FLOW_CELLS),
                Map::BalanceFlows => Some(balance::buckets_for(options.balanced_flows)),
                _ => None,
            },
            |map| {
                let old = previous?;
                let hands_on = match map.lifetime() {
                    Lifetime::Tables | Lifetime::Feature => false,
                    // Of another size it is written anew before any packet sees it.
                    Lifetime::Classes => options.class_lines == old.classes.lines(),
                    // Stamps begin with the first class stage.
                    Lifetime::Instance if map == Map::Flows && options.class_lines != 0 => {
                        old.maps.get(map).max_entries() == FLOW_CELLS
                    }
                    Lifetime::Instance => true,
                };
                hands_on.then(|| old.maps.get(map))
            },
        )?;
        let made = Self::over(
            maps,
            Programs::default(),
            answers,
            About {
                number,
                geometry: g,
                started: options.started,
                v4_length: options.v4_length,
                class_lines: options.class_lines,
                seed: options.seed,
                lasting_seed,
                build: build_id(),
                suspended: previous.map_or_else(crate::clock::suspended, Self::suspended),
            },
        )?;
        if let Some(old) = previous
            && old.classes.lines() == options.class_lines
        {
            made.classes.use_copy_of(&old.classes);
        }
        made.table.set_port_features(made.port_features());
        if made.wants(AnswerProgram::Reject) {
            made.table.set_rejects();
        }
        Ok(made)
    }

    /// Over maps that are there.
    fn over(maps: Maps, programs: Programs, answers: Arc<Answers>, about: About) -> Result<Self> {
        let control = maps.get(Map::Control);
        let table_maps = TableMaps {
            bans: maps.get(Map::Bans),
            uppers: maps.get(Map::HostUpper),
            v4_bans: maps.get(Map::V4Bans),
            bloom: maps.get(Map::Bloom),
            control,
        };
        Ok(Self {
            number: about.number,
            v4_length: about.v4_length,
            table: BanTable::map(about.geometry, about.seed, about.started, table_maps)?,
            policies: maps.keep(Map::Policies)?,
            counters: maps.keep(Map::Counters)?,
            events: maps.keep(Map::Events)?,
            allow: AllowList::map(
                [maps.keep(Map::Allow4)?, maps.keep(Map::Allow6)?],
                maps.get(Map::AllowHint),
            )?,
            classes: ClassTable::map(
                about.class_lines,
                maps.get(Map::Classes),
                maps.keep(Map::ClassCounters)?,
                control,
            )?,
            prefix_bans: PrefixBanMaps {
                trie: maps.keep(Map::PrefixBans)?,
                hint: maps.keep(Map::PrefixBanHint)?,
            },
            decoys: Decoys::map([
                maps.keep(Map::PortFeatures)?,
                maps.keep(Map::DecoyOwn)?,
                maps.keep(Map::DecoyAsked)?,
                maps.keep(Map::DecoyCounters)?,
                maps.keep(Map::DecoyGuesses)?,
                maps.keep(Map::TarpitCounters)?,
                maps.keep(Map::TarpitPrefixes)?,
                maps.keep(Map::TarpitAlive)?,
                maps.keep(Map::TarpitLinks)?,
            ])?,
            balancer: Balancer::map(
                maps.get(Map::BalanceFlows).max_entries(),
                [
                    maps.keep(Map::PortFeatures)?,
                    maps.keep(Map::BalanceServices)?,
                    maps.keep(Map::BalanceRings)?,
                    maps.keep(Map::BalanceReals)?,
                    maps.keep(Map::BalanceSent)?,
                    maps.keep(Map::BalanceServed)?,
                    maps.keep(Map::BalanceAcls)?,
                    maps.keep(Map::BalanceRules)?,
                    maps.keep(Map::BalanceTunnels)?,
                    maps.keep(Map::BalanceQuic)?,
                    maps.keep(Map::BalanceFlows)?,
                    maps.keep(Map::BalanceLoads)?,
                ],
            )?,
            seed: about.seed,
            lasting_seed: about.lasting_seed,
            build: about.build,
            suspended: AtomicU64::new(about.suspended),
            answers,
            interfaces: Interfaces::map(maps.get(Map::Interfaces))?,
            maps,
            programs,
        })
    }

    /// The program for a hook, loaded if nobody has asked for it before; with what
    /// answers for it, as far as that is wanted and the kernel takes it.
    ///
    /// # Errors
    /// The kernel refuses it; it is for egress and there is no class stage; or it is
    /// not loaded, and the tables are those of another build.
    pub fn program(&self, hook: Hook) -> Result<BorrowedFd<'_>> {
        let is_new = !self.programs.has(hook);
        let program = self.programs.get(hook, &self.maps, || match hook {
            _ if !self.is_of_this_build() => {
                Err("its tables were made by another build of weir".into())
            }
            Hook::Netfilter if !netfilter_supported() => Err(NO_NETFILTER.into()),
            hook if hook.is_egress() && self.classes.lines() == 0 => {
                Err("no geofence or list judges what goes out".into())
            }
            _ => Ok(()),
        })?;
        if is_new {
            for answer in AnswerProgram::ALL
                .into_iter()
                .filter(|one| self.wants(*one))
            {
                // `lacks` tells of a refusal; the packet is judged all the same.
                let _ = self.answer_at(hook, answer);
            }
        }
        Ok(program)
    }

    /// Features that ports have beside the firewall: decoys, tarpits and pools.
    pub fn port_features(&self) -> PortFeatures {
        let balance = self.balancer.is_there();
        let tarpit = self.decoys.are_prefixes_there();
        let ports = self.decoys.are_there() || self.decoys.are_tarpits_there();
        PortFeatures {
            any: ports || balance || tarpit,
            balance,
            tarpit,
        }
    }

    /// Answers from now on, at each hook whose program is loaded, now or later.
    ///
    /// # Errors
    /// The kernel does not take what answers at one of them.
    pub fn answer(&self, answer: AnswerProgram) -> Result<()> {
        self.answers.want(answer, true);
        if answer == AnswerProgram::Reject {
            self.table.set_rejects();
        }
        let hooks = Hook::ALL
            .into_iter()
            .filter(|hook| self.programs.has(*hook));
        let outcomes: Vec<_> = hooks.map(|hook| self.answer_at(hook, answer)).collect();
        outcomes.into_iter().collect()
    }

    fn answer_at(&self, hook: Hook, answer: AnswerProgram) -> Result<()> {
        match Caller::at(hook) {
            Some(caller) if self.is_of_this_build() => {
                self.answers
                    .fill(caller, answer, &self.maps, self.lasting_seed)
            }
            _ => Ok(()),
        }
    }

    /// Benchmarks and tests only: what is answered, and the flows that are remembered, have
    /// limits 2^`shift` times as high in programs that are loaded from now on.
    pub fn shift_limits(&self, shift: u32) {
        self.answers.shift_limits(shift);
    }

    /// Answers no more.
    ///
    /// # Errors
    /// A program cannot be taken away.
    pub fn fall_silent(&self, answer: AnswerProgram) -> Result<()> {
        self.answers.want(answer, false);
        self.answers.clear(answer, &self.maps)
    }

    /// Whether this program is to answer.
    pub fn wants(&self, answer: AnswerProgram) -> bool {
        self.answers.is_wanted(answer)
    }

    /// Why one of these hooks does not answer what it should; `None`: each of them whose
    /// program is loaded does, or cannot by its kind.
    pub fn lacks(&self, answer: AnswerProgram, hooks: &[Hook]) -> Option<String> {
        if !self.wants(answer) {
            return None;
        }
        let hooks = hooks.iter().copied();
        let hooks = hooks.filter(|hook| self.programs.has(*hook));
        let mut callers = hooks.filter_map(Caller::at);
        callers.find_map(|caller| self.answers.lacks(caller, answer))
    }

    /// Has the netfilter program judge this interface's packets, too.
    ///
    /// # Errors
    /// There is no room for it, which takes thousands of them.
    pub fn judge_interface(&self, ifindex: u32) -> Result<()> {
        self.interfaces.add(ifindex)
    }

    /// Has the netfilter program judge only these interfaces' packets.
    pub fn judge_only(&self, interfaces: &[u32]) {
        self.interfaces.keep_only(interfaces);
    }

    /// Whether the generation was made by this very build.
    pub fn is_of_this_build(&self) -> bool {
        self.build == build_id()
    }

    /// Pins maps and programs in `dir`, which must not exist; the description
    /// comes last, so a directory with one is whole. Programs that are loaded later
    /// are pinned there, too.
    pub fn pin(&self, dir: &Path) -> Result<()> {
        fs::create_dir(dir).context(|| format!("make {}", dir.display()))?;
        self.maps.pin(dir)?;
        crate::fault::refuse("pin-programs").context(|| format!("pin to {}", dir.display()))?;
        self.programs.pin(dir)?;
        crate::fault::point("pin-before-meta");
        self.describe()?;
        self.maps.pin_meta(dir)
    }

    /// Records for how much suspended time the expiries allow, nanoseconds.
    pub fn set_suspended(&self, nanos: u64) -> Result<()> {
        self.suspended.store(nanos, Ordering::Relaxed);
        self.describe()
    }

    /// See [`Generation::set_suspended`].
    pub fn suspended(&self) -> u64 {
        self.suspended.load(Ordering::Relaxed)
    }

    /// Writes down what this generation was built with.
    fn describe(&self) -> Result<()> {
        let g = self.table.geometry();
        let mut about = meta {
            abi: ABI,
            v4_buckets: g.v4_buckets,
            seed: self.seed,
            lasting_seed: self.lasting_seed,
            build: self.build,
            buckets64: g.buckets64,
            overflow64: g.overflow64,
            buckets128: g.buckets128,
            overflow128: g.overflow128,
            bloom_words: g.bloom_words,
            v4_length: self.v4_length.into(),
            started: self.table.started(),
            generation: self.number,
            boot_id: [0; 40],
            suspended_ns: self.suspended.load(Ordering::Relaxed),
            class_lines: self.classes.lines(),
            pad: 0,
        };
        let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let len = boot.len().min(36);
        about.boot_id[..len].copy_from_slice(&boot[..len]);
        // SAFETY: `meta` is plain old data without padding (its size is asserted).
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const about).cast::<u8>(), size_of::<meta>())
        };
        self.maps
            .get(Map::Meta)
            .update(&0u32.to_ne_bytes(), bytes, MapFlags::ANY)
            .context(|| "write the description of a generation".into())
    }

    /// Was the pinned generation made by a weir whose tables have another
    /// layout ([`ABI`])? Then it cannot be taken over, only replaced.
    ///
    /// # Errors
    /// The directory is not whole.
    pub fn is_of_other_layout(dir: &Path) -> Result<bool> {
        Ok(!describes(&read_meta(dir)?.1))
    }

    /// Takes a pinned generation over as it is.
    ///
    /// # Errors
    /// The directory is not whole, or was written by another ABI: that is
    /// refused, not reinterpreted.
    pub fn adopt(dir: &Path) -> Result<Self> {
        let (_, bytes) = read_meta(dir)?;
        let foreign = |why: String| Error::refused(format!("take over {}", dir.display()), why);
        if !describes(&bytes) {
            return Err(foreign(format!(
                "its tables have another layout (this build knows {ABI})"
            )));
        }
        if bytes.len() != size_of::<meta>() {
            return Err(foreign(format!(
                "its description has {} bytes",
                bytes.len()
            )));
        }
        // SAFETY: the right number of bytes, and every bit pattern is a `meta`.
        let about: meta = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
        let geometry = Geometry {
            v4_buckets: about.v4_buckets,
            buckets64: about.buckets64,
            overflow64: about.overflow64,
            buckets128: about.buckets128,
            overflow128: about.overflow128,
            bloom_words: about.bloom_words,
        };
        let maps = Maps::open(dir)?;
        let fits = |map: Map, entries: u32, value: u32| {
            let map = maps.get(map);
            map.max_entries() == entries && map.value_size() == value
        };
        if !fits(Map::Bans, geometry.buckets(), 64)
            || !fits(Map::HostUpper, geometry.host_buckets(), 32)
            || !fits(Map::V4Bans, geometry.v4_buckets, 64)
            || !fits(Map::Bloom, geometry.bloom_words * 2, 8)
            || !maps.get(Map::BalanceFlows).max_entries().is_power_of_two()
        {
            return Err(foreign(
                "its tables do not have the size that its description says".into(),
            ));
        }
        let lines = about.class_lines;
        if lines != 0 && !fits(Map::Classes, class_entries(lines), 64) {
            return Err(foreign(
                "its class table does not have the size that its description says".into(),
            ));
        }
        // What another build has there is replaced with that build's generation.
        let answers = match about.build == build_id() {
            true => Answers::adopt(&maps),
            false => Answers::default(),
        };
        let adopted = Self::over(
            maps,
            Programs::open(dir),
            Arc::new(answers),
            About {
                number: about.generation,
                geometry,
                started: about.started,
                v4_length: about.v4_length as u8,
                class_lines: lines,
                seed: about.seed,
                lasting_seed: about.lasting_seed,
                build: about.build,
                suspended: about.suspended_ns,
            },
        )?;
        adopted.table.recount();
        Ok(adopted)
    }
}

/// What is known of a generation beside its maps.
struct About {
    number: u64,
    geometry: Geometry,
    started: u64,
    v4_length: u8,
    class_lines: u32,
    seed: [u64; 3],
    lasting_seed: [u64; 3],
    build: u64,
    suspended: u64,
}

/// Lines of both copies, and one that nobody reads.
fn class_entries(lines: u32) -> u32 {
    lines.saturating_mul(2).saturating_add(1)
}
