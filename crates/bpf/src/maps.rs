//! Every map of the packet path's two objects, what judges and what answers, registered
//! once: its name and its lifetime.
//! What is made anew, handed on to the next generation and pinned follows from that.

use std::{mem::MaybeUninit, os::fd::AsFd, path::Path};

use libbpf_rs::{
    MapCore, MapHandle, OpenMapMut, OpenObject,
    skel::{OpenSkel, Skel, SkelBuilder},
};

use crate::{
    error::{Context, Error, Result},
    object,
    skeleton::{
        answer::{AnswerSkelBuilder, OpenAnswerSkel},
        firewall::{FirewallSkelBuilder, OpenFirewallSkel, types::rodata},
    },
};

/// How long a map lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// Maps of one geometry and seed: each generation makes its own.
    Tables,
    /// Maps of one size of the class table: handed on while that stays.
    Classes,
    /// Maps of the instance: handed on for good. What is keyed in them is keyed by the
    /// instance's seed, not by the generation's.
    Instance,
    /// Maps of the programs that are loaded with them: what they can do without when they
    /// are loaded anew. Neither handed on nor pinned.
    Feature,
}

macro_rules! registry {
    ($($map:ident = $object:literal as $pin:literal: $lifetime:ident,)*) => {
        /// A map of the objects.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Map {
            $($map,)*
        }

        impl Map {
            pub(crate) const ALL: &[Self] = &[$(Self::$map,)*];

            /// The map's name in the BPF object.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$map => $object,)*
                }
            }

            /// The map's name as a pin: bpffs takes no dot.
            pub(crate) fn pin(self) -> &'static str {
                match self {
                    $(Self::$map => $pin,)*
                }
            }

            pub(crate) fn lifetime(self) -> Lifetime {
                match self {
                    $(Self::$map => Lifetime::$lifetime,)*
                }
            }
        }
    };
}

registry! {
    Bans = "bans" as "bans": Tables,
    HostUpper = "host_upper" as "host_upper": Tables,
    V4Bans = "v4_bans" as "v4_bans": Tables,
    Bloom = "bloom" as "bloom": Tables,
    Control = "firewall.bss" as "control": Tables,
    Cfg = "firewall.rodata" as "cfg": Tables,
    Meta = "meta" as "meta": Tables,
    Classes = "classes" as "classes": Classes,
    ClassCounters = "class_counters" as "class_counters": Instance,
    Flows = "flows" as "flows": Instance,
    Policies = "policies" as "policies": Instance,
    Allow4 = "allow4" as "allow4": Instance,
    Allow6 = "allow6" as "allow6": Instance,
    AllowHint = "allow_hint" as "allow_hint": Instance,
    Counters = "counters" as "counters": Instance,
    Events = "events" as "events": Instance,
    PrefixBans = "prefix_bans" as "prefix_bans": Instance,
    PrefixBanHint = "prefix_ban_hint" as "prefix_ban_hint": Instance,
    Interfaces = "nf_interfaces" as "nf_interfaces": Instance,
    PortFeatures = "port_features" as "port_features": Instance,
    AnswersXdp = "answers_xdp" as "answers_xdp": Instance,
    AnswersGeneric = "answers_generic" as "answers_generic": Instance,
    AnswersTc = "answers_tc" as "answers_tc": Instance,
    AnswerRequest = "answer_request" as "answer_request": Instance,
    DecoyOwn = "decoy_own" as "decoy_own": Instance,
    DecoyAsked = "decoy_asked" as "decoy_asked": Instance,
    DecoyCounters = "decoy_counters" as "decoy_counters": Instance,
    DecoyGuesses = "decoy_guesses" as "decoy_guesses": Instance,
    BalanceServices = "balance_services" as "balance_services": Instance,
    BalanceRings = "balance_rings" as "balance_rings": Instance,
    BalanceReals = "balance_reals" as "balance_reals": Instance,
    BalanceTunnels = "balance_tunnels" as "balance_tunnels": Instance,
    BalanceSent = "balance_sent" as "balance_sent": Instance,
    BalanceServed = "balance_served" as "balance_served": Instance,
    BalanceAcls = "balance_acls" as "balance_acls": Instance,
    BalanceRules = "balance_rules" as "balance_rules": Instance,
    BalanceQuic = "balance_quic" as "balance_quic": Instance,
    BalanceLoads = "balance_loads" as "balance_loads": Instance,
    TarpitCounters = "tarpit_counters" as "tarpit_counters": Instance,
    TarpitSources = "tarpit_sources" as "tarpit_sources": Instance,
    TarpitPrefixes = "tarpit_prefixes" as "tarpit_prefixes": Instance,
    TarpitAlive = "tarpit_alive" as "tarpit_alive": Instance,
    TarpitDark = "tarpit_dark" as "tarpit_dark": Instance,
    TarpitLinks = "tarpit_links" as "tarpit_links": Instance,
    RejectBucket = "reject_bucket" as "reject_bucket": Instance,
    // The object is called answer_bpf; libbpf takes eight letters of that.
    AnswerCfg = "answer_b.rodata" as "answer_cfg": Feature,
    DecoyScratch = "decoy_scratch" as "decoy_scratch": Feature,
    BalanceFlows = "balance_flows" as "balance_flows": Instance,
    BalanceFragments = "balance_fragments" as "balance_fragments": Instance,
    BalanceQuota = "balance_quota" as "balance_quota": Instance,
    BalanceTurns = "balance_turns" as "balance_turns": Feature,
    EncapScratch = "encap_scratch" as "encap_scratch": Feature,
    RejectScratch = "reject_scratch" as "reject_scratch": Feature,
    NetfilterHead = "nf_head" as "nf_head": Feature,
}

impl Map {
    fn named(name: &std::ffi::OsStr) -> Option<Self> {
        Self::ALL.iter().copied().find(|map| name == map.name())
    }

    /// Whether the map lives as long as the generation, or longer.
    pub(crate) fn is_kept(self) -> bool {
        self.lifetime() != Lifetime::Feature
    }
}

/// The maps of a generation that are there without any program.
pub(crate) struct Maps(Vec<(Map, MapHandle)>);

impl Maps {
    /// Makes those that `hand_on` has not, of the size that `size` says where it is
    /// not the object's. `configure` writes what the programs are loaded with.
    pub(crate) fn create<'a>(
        configure: impl FnOnce(&mut rodata),
        size: impl Fn(Map) -> Option<u32>,
        hand_on: impl Fn(Map) -> Option<&'a MapHandle>,
    ) -> Result<Self> {
        let why = || "make the tables of the packet path (needs CAP_BPF and CAP_NET_ADMIN)".into();
        let mut storage = MaybeUninit::uninit();
        let mut open = FirewallSkelBuilder::default()
            .open(&mut storage)
            .context(|| "open the packet path's object".into())?;
        let rodata = open.maps.rodata_data.as_deref_mut();
        configure(rodata.expect("the object has rodata"));
        prepare(open.open_object_mut(), &hand_on, &size)?;
        let mut maps = Self(Vec::new());
        maps.keep_of(open.load().context(why)?.object())?;

        let mut storage = MaybeUninit::uninit();
        let mut open = AnswerSkelBuilder::default()
            .open(&mut storage)
            .context(|| "open the object of what answers".into())?;
        let made = |map| maps.find(map).or_else(|| hand_on(map));
        prepare(open.open_object_mut(), made, &size)?;
        maps.keep_of(open.load().context(why)?.object())?;
        Ok(maps)
    }

    /// Keeps those of an object that are kept, and are not yet.
    fn keep_of(&mut self, object: &libbpf_rs::Object) -> Result<()> {
        for made in object.maps() {
            let map = Map::named(made.name()).filter(|map| map.is_kept());
            if let Some(map) = map
                && self.find(map).is_none()
            {
                // By descriptor: opening by id would take CAP_SYS_ADMIN.
                let kept = MapHandle::try_from(&made).context(|| format!("keep {}", map.name()))?;
                self.0.push((map, kept));
            }
        }
        Ok(())
    }

    fn find(&self, map: Map) -> Option<&MapHandle> {
        let mut kept = self.0.iter();
        kept.find(|(kept, _)| *kept == map)
            .map(|(_, handle)| handle)
    }

    /// Opens the maps that are pinned in `dir`.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let kept = Map::ALL.iter().copied().filter(|map| map.is_kept());
        let opened = kept.map(|map| Ok((map, Self::open_one(dir, map)?)));
        opened.collect::<Result<_>>().map(Self)
    }

    /// Opens the pin of one map.
    pub(crate) fn open_one(dir: &Path, map: Map) -> Result<MapHandle> {
        let path = dir.join(map.pin());
        MapHandle::from_pinned_path(&path).context(|| format!("open the pin {}", path.display()))
    }

    /// Pins them but for [`Map::Meta`], which [`Self::pin_meta`] pins when all else
    /// is there.
    pub(crate) fn pin(&self, dir: &Path) -> Result<()> {
        let others = self.0.iter().filter(|(map, _)| *map != Map::Meta);
        others
            .into_iter()
            .try_for_each(|(map, handle)| object::pin(handle.as_fd(), &dir.join(map.pin())))
    }

    /// See [`Self::pin`].
    pub(crate) fn pin_meta(&self, dir: &Path) -> Result<()> {
        object::pin(self.get(Map::Meta).as_fd(), &dir.join(Map::Meta.pin()))
    }

    /// The handle of a map that is kept.
    pub(crate) fn get(&self, map: Map) -> &MapHandle {
        self.find(map)
            .expect("every map that is kept is made, or opened")
    }

    /// A new handle for a map that is kept.
    pub(crate) fn keep(&self, map: Map) -> Result<MapHandle> {
        MapHandle::try_from(self.get(map)).context(|| format!("keep the map {}", map.name()))
    }

    /// Opens the object of what judges, to load programs over these maps: none is
    /// chosen yet.
    pub(crate) fn open_firewall<'a>(
        &self,
        storage: &'a mut MaybeUninit<OpenObject>,
    ) -> Result<OpenFirewallSkel<'a>> {
        let mut open = FirewallSkelBuilder::default()
            .open(storage)
            .context(|| "open the packet path's object".into())?;
        self.put_into(open.open_object_mut())?;
        Ok(open)
    }

    /// Opens the object of the answering programs, to load programs over these maps: none
    /// is chosen yet.
    pub(crate) fn open_answer<'a>(
        &self,
        storage: &'a mut MaybeUninit<OpenObject>,
    ) -> Result<OpenAnswerSkel<'a>> {
        let mut open = AnswerSkelBuilder::default()
            .open(storage)
            .context(|| "open the object of what answers".into())?;
        self.put_into(open.open_object_mut())?;
        Ok(open)
    }

    fn put_into(&self, object: &mut OpenObject) -> Result<()> {
        choose_no_program(object);
        each(object, |map, open| match map.is_kept() {
            true => open
                .reuse_fd(self.get(map).as_fd())
                .context(|| format!("load programs over the map {}", map.name())),
            false => Ok(()),
        })
    }
}

fn choose_no_program(object: &mut OpenObject) {
    for mut program in object.progs_mut() {
        program.set_autoload(false);
    }
}

/// Has the object make those of its maps that are kept and that nobody has.
fn prepare<'a>(
    object: &mut OpenObject,
    has: impl Fn(Map) -> Option<&'a MapHandle>,
    size: impl Fn(Map) -> Option<u32>,
) -> Result<()> {
    choose_no_program(object);
    each(object, |map, open| {
        if let Some(from) = has(map) {
            return open
                .reuse_fd(from.as_fd())
                .context(|| format!("hand the map {} on to the next generation", map.name()));
        }
        open.set_autocreate(map.is_kept())
            .context(|| format!("leave the map {} out", map.name()))?;
        match size(map) {
            Some(entries) => open
                .set_max_entries(entries)
                .context(|| format!("size the map {}", map.name())),
            None => Ok(()),
        }
    })
}

/// Each map of the object.
fn each(
    object: &mut OpenObject,
    mut then: impl FnMut(Map, &mut OpenMapMut<'_>) -> Result<()>,
) -> Result<()> {
    for mut map in object.maps_mut() {
        let Some(registered) = Map::named(map.name()) else {
            let name = map.name().display().to_string();
            return Err(Error::refused(
                format!("use the map {name}"),
                "no lifetime is registered for it",
            ));
        };
        then(registered, &mut map)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use libbpf_rs::{AsRawLibbpf, libbpf_sys as sys};

    use super::*;

    /// A map without a lifetime would be made anew by whatever loads a program, and
    /// its content lost.
    #[test]
    fn every_map_of_the_objects_is_registered_and_no_other() {
        let names = |object: &OpenObject| -> Vec<_> {
            let maps = object.maps();
            maps.map(|map| map.name().to_str().unwrap().to_owned())
                .collect()
        };
        let mut storage = MaybeUninit::uninit();
        let mut open = FirewallSkelBuilder::default().open(&mut storage).unwrap();
        let mut of_objects = names(open.open_object_mut());
        let mut storage = MaybeUninit::uninit();
        let mut open = AnswerSkelBuilder::default().open(&mut storage).unwrap();
        of_objects.extend(names(open.open_object_mut()));
        let mut registered: Vec<_> = Map::ALL.iter().map(|map| map.name().to_owned()).collect();
        of_objects.sort();
        of_objects.dedup();
        registered.sort();
        assert_eq!(registered, of_objects);
        let mut pins: Vec<_> = Map::ALL.iter().map(|map| map.pin()).collect();
        pins.sort_unstable();
        pins.dedup();
        assert_eq!(pins.len(), Map::ALL.len(), "two maps with one pin");
        assert!(pins.iter().all(|pin| !pin.contains('.')), "{pins:?}");
    }

    /// Pins outlive the build that made them, and the next one opens each by its name.
    #[test]
    fn a_pinned_map_of_another_form_has_another_abi_number() {
        /// The number, and what the forms below add up to.
        const KNOWN: (u32, u64) = (21, 9_396_208_764_876_672_812);
        let mut forms = Vec::new();
        let mut note = |object: &OpenObject| {
            for map in object.maps() {
                // The rodata has constants of the compiler's beside `cfg`.
                let kept = |map: &Map| map.is_kept() && *map != Map::Cfg;
                let Some(registered) = Map::named(map.name()).filter(kept) else {
                    continue;
                };
                let raw = map.as_libbpf_object().as_ptr();
                // SAFETY: the object is open while `map` is borrowed.
                let sizes = unsafe {
                    [
                        sys::bpf_map__type(raw),
                        sys::bpf_map__key_size(raw),
                        sys::bpf_map__value_size(raw),
                    ]
                };
                let lifetime = registered.lifetime();
                forms.push(format!("{} {sizes:?} {lifetime:?}\n", registered.pin()));
            }
        };
        let mut storage = MaybeUninit::uninit();
        let mut open = FirewallSkelBuilder::default().open(&mut storage).unwrap();
        note(open.open_object_mut());
        let mut storage = MaybeUninit::uninit();
        let mut open = AnswerSkelBuilder::default().open(&mut storage).unwrap();
        note(open.open_object_mut());
        forms.sort();
        forms.dedup();
        // FNV-1a.
        let sum = forms
            .concat()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        assert_eq!(
            (crate::abi::WEIR_ABI, sum),
            KNOWN,
            "a pinned map has come, gone or changed: raise WEIR_ABI, and write both numbers here\n{}",
            forms.concat()
        );
    }
}
