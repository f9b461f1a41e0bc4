//! One generation: the maps and programs made together for one geometry and
//! seed. Growth, upgrade and a change of what is compiled in all make the next
//! generation; the packet path is switched by a link update. Counters, events,
//! policies, the allow list and wide bans are handed on, so that nothing is
//! counted twice or lost.

use std::{
    fs,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, MapMut, libbpf_sys as sys,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    abi::{self, BUCKETS_PER_PAGE, FLOW_CELLS},
    allow::AllowList,
    class::ClassTable,
    decoy::Decoys,
    error::{Context, Error, Result},
    interfaces::Interfaces,
    link, object, probe,
    skeleton::{
        clock::types::event,
        firewall::{
            FirewallSkelBuilder,
            types::{counter, meta, policy},
        },
    },
    table::{BanTable, Geometry, TableMaps},
    wide::WideMaps,
};

/// Of the layout that this build knows; pins of another are replaced.
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
const _: () = assert!(size_of::<event>() == 48 && size_of::<meta>() == 168);

/// Names of the maps as pinned.
const MAPS: [&str; 17] = [
    "bans",
    "host_upper",
    "v4_bans",
    "bloom",
    "control",
    "policies",
    "allow4",
    "allow6",
    "allow_hint",
    "counters",
    "events",
    "classes",
    "class_counters",
    "flows",
    "wide",
    "wide_hint",
    "nf_interfaces",
];
/// Pinned last: a directory that has it is whole.
const META: &str = "meta";

/// What a new generation is made for.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Table sizes.
    pub geometry: Geometry,
    /// Random, unknown to anybody who chooses addresses. That of an instance's
    /// first generation also keys, for good, the maps that are handed on.
    pub seed: [u64; 3],
    /// The IPv4 length below 32 that the ban table holds; 0 for none.
    pub v4_length: u8,
    /// Lines of one copy of the class table; 0: no class stage, no egress
    /// program, and no cost.
    pub class_lines: u32,
    /// With bans that answer; see [`rejects_supported`].
    pub reject: bool,
    /// With the netfilter program.
    pub netfilter: bool,
    /// How long the answer to a flow without handshake is expected, in jiffies.
    pub flow_jiffies: u32,
    /// The jiffies that it is made at, from which expiries of IPv4 hosts count: a
    /// ban that ends 2^32 jiffies later (7 weeks at 1000 a second) has a longer
    /// entry, and costs a second look.
    pub started: u64,
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
            reject: false,
            netfilter: false,
            flow_jiffies: 0,
            started: 0,
            drop_innocent: false,
        }
    }
}

/// Maps and programs, loaded.
pub struct Generation {
    /// Counts up.
    pub number: u64,
    /// As built.
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
    pub wide: WideMaps,
    /// Decoy ports.
    pub decoys: Decoys,
    /// Does this generation look at them?
    pub has_decoys: bool,
    /// Does it answer where a ban rejects?
    pub has_reject: bool,
    seed: [u64; 3],
    lasting_seed: [u64; 3],
    build: u64,
    suspended: AtomicU64,
    bans: MapHandle,
    host_upper: MapHandle,
    v4_bans: MapHandle,
    bloom: MapHandle,
    control: MapHandle,
    meta: MapHandle,
    flows: MapHandle,
    xdp: OwnedFd,
    /// Where `xdp` is for frames of many pages: the same, and not.
    xdp_generic: Option<OwnedFd>,
    tcx: OwnedFd,
    out: Option<OwnedFd>,
    netfilter: Option<OwnedFd>,
    interfaces: Interfaces,
}

/// A fingerprint of the packet path's sources in this binary.
pub fn build_id() -> u64 {
    env!("WEIR_BPF_BUILD")
        .parse()
        .expect("the build script writes a number")
}

/// Can this kernel answer for bans that reject (Linux 5.18)? The packet path of
/// a generation with such bans does not load otherwise.
pub fn rejects_supported() -> bool {
    probe::has_helper(sys::BPF_PROG_TYPE_XDP, sys::BPF_FUNC_xdp_load_bytes)
}

/// Why a generation has no netfilter program.
pub const NO_NETFILTER: &str = "this kernel has no netfilter hook for BPF (probe: a BPF program of type netfilter; Linux 6.4, CONFIG_NETFILTER_BPF_LINK)";

/// Are there BPF programs of type netfilter, and what they read packets with
/// (Linux 6.4)? A generation with the netfilter program does not load otherwise;
/// and verifiers before that one are spared what they find hard.
pub fn netfilter_supported() -> bool {
    probe::has_program_type(sys::BPF_PROG_TYPE_NETFILTER)
}

/// Does XDP take frames of more than a page here (Linux 5.18)? Without it native
/// XDP attaches to an interface with jumbo frames only where the driver has
/// pages that large.
fn frags_supported() -> bool {
    probe::has_helper(sys::BPF_PROG_TYPE_XDP, sys::BPF_FUNC_xdp_get_buff_len)
}

fn open_pinned(dir: &Path, name: &str) -> Result<MapHandle> {
    MapHandle::from_pinned_path(dir.join(name))
        .context(|| format!("open the pin {}", dir.join(name).display()))
}

/// The description that is pinned in `dir`, and what is in it.
fn read_meta(dir: &Path) -> Result<(MapHandle, Vec<u8>)> {
    let map = open_pinned(dir, META)?;
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
    /// Loads a generation with empty tables; from `previous` it takes over
    /// counters, events, policies, the allow list and wide bans.
    pub fn create(number: u64, options: &Options, previous: Option<&Generation>) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let g = options.geometry;
        let mut open = FirewallSkelBuilder::default()
            .open(&mut storage)
            .context(|| "open the packet path's object".into())?;
        let size = |map: &mut libbpf_rs::OpenMapMut<'_>, entries: u32| {
            map.set_max_entries(entries)
                .context(|| "size a table".into())
        };
        size(&mut open.maps.bans, g.buckets())?;
        size(&mut open.maps.host_upper, g.host_buckets())?;
        size(&mut open.maps.v4_bans, g.v4_buckets)?;
        size(&mut open.maps.bloom, g.bloom_words * 2)?;
        let classes = if options.class_lines == 0 {
            1
        } else {
            1 + 2 * options.class_lines
        };
        size(&mut open.maps.classes, classes)?;
        if options.class_lines == 0 {
            open.progs.weir_out.set_autoload(false);
        } else {
            size(&mut open.maps.flows, FLOW_CELLS)?;
        }
        if !options.netfilter {
            open.progs.weir_netfilter.set_autoload(false);
        }
        let frags = frags_supported();
        if frags {
            open.progs.weir_xdp.set_flags(sys::BPF_F_XDP_HAS_FRAGS);
        } else {
            // The two would be the same.
            open.progs.weir_xdp_generic.set_autoload(false);
        }
        let rodata = open
            .maps
            .rodata_data
            .as_deref_mut()
            .expect("the object has rodata");
        let lasting_seed = previous.map_or(options.seed, |old| old.lasting_seed);
        rodata.cfg.seed = options.seed;
        rodata.cfg.lasting_seed = lasting_seed;
        rodata.cfg.started = options.started;
        rodata.cfg.v4_buckets = g.v4_buckets;
        rodata.cfg.pages64 = g.buckets64 / BUCKETS_PER_PAGE;
        rodata.cfg.over64 = g.overflow64 - 1;
        rodata.cfg.pages128 = g.buckets128 / BUCKETS_PER_PAGE;
        rodata.cfg.over128 = g.overflow128 - 1;
        rodata.cfg.host_base = g.host_base();
        rodata.cfg.bloom_mask = g.bloom_words - 1;
        rodata.cfg.v4_length = options.v4_length.into();
        rodata.cfg.class_lines = options.class_lines;
        rodata.cfg.flow_jiffies = options.flow_jiffies;
        let has_decoys = previous.is_some_and(|old| old.decoys.are_there());
        rodata.cfg.decoy = has_decoys.into();
        rodata.cfg.reject = options.reject.into();
        rodata.cfg.walk_apart = (!netfilter_supported()).into();
        rodata.cfg.frags = frags.into();
        if options.drop_innocent {
            rodata.cfg.final_pass = sys::XDP_DROP;
        }
        if let Some(old) = previous {
            let [allow4, allow6, allow_hint] = old.allow.maps();
            let [
                decoy_ports,
                decoy_own,
                decoy_asked,
                decoy_counters,
                decoy_guesses,
            ] = old.decoys.maps();
            for (map, from) in [
                (&mut open.maps.policies, &old.policies),
                (&mut open.maps.counters, &old.counters),
                (&mut open.maps.events, &old.events),
                (&mut open.maps.allow4, allow4),
                (&mut open.maps.allow6, allow6),
                (&mut open.maps.allow_hint, allow_hint),
                (&mut open.maps.wide, &old.wide.trie),
                (&mut open.maps.wide_hint, &old.wide.hint),
                (&mut open.maps.decoy_ports, decoy_ports),
                (&mut open.maps.decoy_own, decoy_own),
                (&mut open.maps.decoy_asked, decoy_asked),
                (&mut open.maps.decoy_counters, decoy_counters),
                (&mut open.maps.decoy_guesses, decoy_guesses),
                (&mut open.maps.nf_interfaces, old.interfaces.as_map()),
            ] {
                map.reuse_fd(from.as_fd())
                    .context(|| "hand a map on to the next generation".into())?;
            }
            let hand_on = |map: &mut libbpf_rs::OpenMapMut<'_>, from: &MapHandle| {
                map.reuse_fd(from.as_fd())
                    .context(|| "hand a map on to the next generation".into())
            };
            hand_on(&mut open.maps.class_counters, old.classes.counters_map())?;
            // Of the same size it stays, with what is in it; else it is
            // written anew before any packet sees it.
            if options.class_lines == old.classes.lines() {
                hand_on(&mut open.maps.classes, old.classes.table_map())?;
            }
            if options.class_lines != 0 && old.flows.max_entries() == FLOW_CELLS {
                hand_on(&mut open.maps.flows, &old.flows)?;
            }
        }
        let skel = open.load().context(|| {
            "load the packet path (needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN)".into()
        })?;
        // By descriptor: opening by id would take CAP_SYS_ADMIN.
        let keep = |map: &MapMut<'_>| MapHandle::try_from(map).context(|| "keep a map".into());
        let (bans, host_upper) = (keep(&skel.maps.bans)?, keep(&skel.maps.host_upper)?);
        let v4_bans = keep(&skel.maps.v4_bans)?;
        let (bloom, control) = (keep(&skel.maps.bloom)?, keep(&skel.maps.bss)?);
        let maps = TableMaps {
            bans: &bans,
            uppers: &host_upper,
            v4_bans: &v4_bans,
            bloom: &bloom,
            control: &control,
        };
        let table = BanTable::map(g, options.seed, options.started, maps)?;
        let classes = ClassTable::map(
            options.class_lines,
            keep(&skel.maps.classes)?,
            keep(&skel.maps.class_counters)?,
            &control,
        )?;
        if let Some(old) = previous
            && old.classes.lines() == options.class_lines
        {
            classes.use_copy_of(&old.classes);
        }
        let program =
            |fd: BorrowedFd<'_>| fd.try_clone_to_owned().context(|| "keep a program".into());
        Ok(Self {
            number,
            v4_length: options.v4_length,
            table,
            policies: keep(&skel.maps.policies)?,
            counters: keep(&skel.maps.counters)?,
            events: keep(&skel.maps.events)?,
            allow: AllowList::map(
                [keep(&skel.maps.allow4)?, keep(&skel.maps.allow6)?],
                keep(&skel.maps.allow_hint)?,
            )?,
            classes,
            wide: WideMaps {
                trie: keep(&skel.maps.wide)?,
                hint: keep(&skel.maps.wide_hint)?,
            },
            decoys: Decoys::map([
                keep(&skel.maps.decoy_ports)?,
                keep(&skel.maps.decoy_own)?,
                keep(&skel.maps.decoy_asked)?,
                keep(&skel.maps.decoy_counters)?,
                keep(&skel.maps.decoy_guesses)?,
            ])?,
            has_decoys,
            has_reject: options.reject,
            seed: options.seed,
            lasting_seed,
            build: build_id(),
            suspended: AtomicU64::new(
                previous.map_or_else(crate::clock::suspended, Generation::suspended),
            ),
            bans,
            host_upper,
            v4_bans,
            bloom,
            control,
            meta: keep(&skel.maps.meta)?,
            flows: keep(&skel.maps.flows)?,
            xdp: program(skel.progs.weir_xdp.as_fd())?,
            xdp_generic: frags
                .then(|| program(skel.progs.weir_xdp_generic.as_fd()))
                .transpose()?,
            tcx: program(skel.progs.weir_tcx.as_fd())?,
            out: (options.class_lines != 0)
                .then(|| program(skel.progs.weir_out.as_fd()))
                .transpose()?,
            netfilter: options
                .netfilter
                .then(|| program(skel.progs.weir_netfilter.as_fd()))
                .transpose()?,
            interfaces: Interfaces::map(keep(&skel.maps.nf_interfaces)?)?,
        })
    }

    /// The program for a hook. Panics when asked for egress and there is no
    /// class stage (`classes.lines() == 0`), or for netfilter and there is none.
    pub fn program(&self, hook: link::Hook) -> BorrowedFd<'_> {
        match hook {
            link::Hook::Xdp => self.xdp.as_fd(),
            link::Hook::XdpGeneric => self.xdp_generic.as_ref().unwrap_or(&self.xdp).as_fd(),
            link::Hook::Tcx | link::Hook::ClsBpf => self.tcx.as_fd(),
            link::Hook::Netfilter => self
                .netfilter
                .as_ref()
                .expect("the caller saw to it")
                .as_fd(),
            link::Hook::Egress | link::Hook::EgressClsBpf => self
                .out
                .as_ref()
                .expect("a generation with a class stage has an egress program")
                .as_fd(),
        }
    }

    /// Does it have the netfilter program?
    pub fn has_netfilter(&self) -> bool {
        self.netfilter.is_some()
    }

    /// Has the netfilter program judge this interface's packets, too.
    ///
    /// # Errors
    /// There is no room for it, which takes thousands of them.
    pub fn judge_interface(&self, ifindex: u32) -> Result<()> {
        self.interfaces.add(ifindex)
    }

    /// And no others' but these.
    pub fn judge_only(&self, interfaces: &[u32]) {
        self.interfaces.keep_only(interfaces);
    }

    /// Was it made by this very build?
    pub fn is_of_this_build(&self) -> bool {
        self.build == build_id()
    }

    fn maps(&self) -> [&MapHandle; 17] {
        let [allow4, allow6, allow_hint] = self.allow.maps();
        [
            &self.bans,
            &self.host_upper,
            &self.v4_bans,
            &self.bloom,
            &self.control,
            &self.policies,
            allow4,
            allow6,
            allow_hint,
            &self.counters,
            &self.events,
            self.classes.table_map(),
            self.classes.counters_map(),
            &self.flows,
            &self.wide.trie,
            &self.wide.hint,
            self.interfaces.as_map(),
        ]
    }

    /// Pins maps and programs in `dir`, which must not exist; the description
    /// comes last, so a directory with one is whole.
    pub fn pin(&self, dir: &Path) -> Result<()> {
        fs::create_dir(dir).context(|| format!("make {}", dir.display()))?;
        let decoys = Decoys::NAMES.into_iter().zip(self.decoys.maps());
        for (name, map) in MAPS.into_iter().zip(self.maps()).chain(decoys) {
            object::pin(map.as_fd(), &dir.join(name))?;
        }
        object::pin(self.xdp.as_fd(), &dir.join("xdp"))?;
        if let Some(generic) = &self.xdp_generic {
            object::pin(generic.as_fd(), &dir.join("xdp_generic"))?;
        }
        object::pin(self.tcx.as_fd(), &dir.join("tcx"))?;
        if let Some(out) = &self.out {
            object::pin(out.as_fd(), &dir.join("out"))?;
        }
        if let Some(netfilter) = &self.netfilter {
            object::pin(netfilter.as_fd(), &dir.join("netfilter"))?;
        }
        crate::fault::point("pin-before-meta");
        self.describe()?;
        object::pin(self.meta.as_fd(), &dir.join(META))
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
            decoy: self.has_decoys.into(),
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
            reject: self.has_reject.into(),
            v4_buckets: g.v4_buckets,
            pad: 0,
        };
        let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let len = boot.len().min(36);
        about.boot_id[..len].copy_from_slice(&boot[..len]);
        // SAFETY: `meta` is plain old data without padding (its size is asserted).
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const about).cast::<u8>(), size_of::<meta>())
        };
        self.meta
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
        let open = |name: &str| open_pinned(dir, name);
        let (meta_map, bytes) = read_meta(dir)?;
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
        let (bans, host_upper) = (open("bans")?, open("host_upper")?);
        let v4_bans = open("v4_bans")?;
        let (bloom, control) = (open("bloom")?, open("control")?);
        let fits = |map: &MapHandle, entries: u32, value: u32| {
            map.max_entries() == entries && map.value_size() == value
        };
        if !fits(&bans, geometry.buckets(), 64)
            || !fits(&host_upper, geometry.host_buckets(), 32)
            || !fits(&v4_bans, geometry.v4_buckets, 64)
            || !fits(&bloom, geometry.bloom_words * 2, 8)
        {
            return Err(foreign(
                "its tables do not have the size that its description says".into(),
            ));
        }
        let maps = TableMaps {
            bans: &bans,
            uppers: &host_upper,
            v4_bans: &v4_bans,
            bloom: &bloom,
            control: &control,
        };
        let table = BanTable::map(geometry, about.seed, about.started, maps)?;
        table.recount();
        let classes = open("classes")?;
        let lines = about.class_lines;
        if lines != 0 && !fits(&classes, lines.saturating_mul(2).saturating_add(1), 64) {
            return Err(foreign(
                "its class table does not have the size that its description says".into(),
            ));
        }
        let out = (lines != 0)
            .then(|| object::open_pin(&dir.join("out")))
            .transpose()?;
        Ok(Self {
            number: about.generation,
            v4_length: about.v4_length as u8,
            table,
            policies: open("policies")?,
            counters: open("counters")?,
            events: open("events")?,
            allow: AllowList::map([open("allow4")?, open("allow6")?], open("allow_hint")?)?,
            classes: ClassTable::map(lines, classes, open("class_counters")?, &control)?,
            wide: WideMaps {
                trie: open("wide")?,
                hint: open("wide_hint")?,
            },
            decoys: {
                let [ports, own, asked, counters, guesses] = Decoys::NAMES.map(open);
                Decoys::map([ports?, own?, asked?, counters?, guesses?])?
            },
            has_decoys: about.decoy != 0,
            has_reject: about.reject != 0,
            seed: about.seed,
            lasting_seed: about.lasting_seed,
            build: about.build,
            suspended: AtomicU64::new(about.suspended_ns),
            bans,
            host_upper,
            v4_bans,
            bloom,
            control,
            meta: meta_map,
            flows: open("flows")?,
            xdp: object::open_pin(&dir.join("xdp"))?,
            xdp_generic: object::open_pin(&dir.join("xdp_generic")).ok(),
            tcx: object::open_pin(&dir.join("tcx"))?,
            out,
            netfilter: object::open_pin(&dir.join("netfilter")).ok(),
            interfaces: Interfaces::map(open("nf_interfaces")?)?,
        })
    }
}
