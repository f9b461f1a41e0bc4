//! The kinds of backends, and what each leaves in the kernel when no daemon runs:
//! found, read and taken away.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use weir_bpf::{BanCounts, device::Device};

use crate::{
    Backend, BackendChoice, DryRun, Error, Settings, app_queue,
    claim::Claim,
    ipset,
    kernel::{self, KernelConfig},
    nft,
};

/// Where backends keep what outlives a daemon, and with which settings one
/// begins.
#[derive(Debug, Clone)]
pub struct BackendHome {
    /// The name that pins, tables and sets carry.
    pub instance: String,
    /// The root of the pins, as [`KernelConfig::pin_root`].
    pub pin_root: PathBuf,
    /// The IPv4 prefix length of single entries, as [`KernelConfig::ipv4_length`].
    pub ipv4_length: Option<u8>,
    /// The room of the first tables, as [`KernelConfig::room`].
    pub room: BanCounts,
    /// The flows of pools that find room, as [`KernelConfig::balanced_flows`].
    pub balanced_flows: Option<u32>,
    /// What may change later, the backend itself among it.
    pub settings: Settings,
}

/// A backend that is no longer used has gone after this time.
const PATIENCE: Duration = Duration::from_secs(5);

/// Backends by what they leave in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Bpf,
    Nft,
    Ipset,
    DryRun,
}

impl Family {
    pub(super) const LASTING: [Self; 3] = [Self::Bpf, Self::Nft, Self::Ipset];

    pub(super) fn of(choice: BackendChoice) -> Self {
        match choice {
            BackendChoice::Auto | BackendChoice::Kernel(_) => Self::Bpf,
            BackendChoice::Nft => Self::Nft,
            BackendChoice::Ipset => Self::Ipset,
            BackendChoice::DryRun => Self::DryRun,
        }
    }

    /// A choice of this kind, for reading what an earlier daemon left.
    pub(super) fn choice(self) -> BackendChoice {
        match self {
            Self::Bpf => BackendChoice::Auto,
            Self::Nft => BackendChoice::Nft,
            Self::Ipset => BackendChoice::Ipset,
            Self::DryRun => BackendChoice::DryRun,
        }
    }

    pub(super) fn open(
        self,
        place: &BackendHome,
        room: BanCounts,
    ) -> Result<Arc<dyn Backend>, Error> {
        let settings = &place.settings;
        Ok(match self {
            Self::Bpf => kernel::open(&KernelConfig {
                instance: place.instance.clone(),
                pin_root: place.pin_root.clone(),
                ipv4_length: place.ipv4_length,
                room,
                balanced_flows: place.balanced_flows,
                settings: settings.clone(),
            })?,
            Self::Nft => nft::open(&place.instance, place.ipv4_length, settings)?,
            Self::Ipset => ipset::open(&place.instance, place.ipv4_length, settings)?,
            Self::DryRun => Arc::new(DryRun::new(settings.max_bans, place.ipv4_length)),
        })
    }

    /// Has an earlier daemon left something of this kind?
    pub(super) fn is_there(self, place: &BackendHome) -> bool {
        match self {
            Self::Bpf => kernel::is_there(&place.pin_root, &place.instance),
            Self::Nft => nft::is_there(&place.instance),
            Self::Ipset => ipset::is_there(&place.instance),
            Self::DryRun => false,
        }
    }

    /// Takes away what a backend of this daemon leaves, once its last user (a
    /// thread that waits for events) has gone.
    pub(super) fn end(self, place: &BackendHome) -> Result<(), Error> {
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
    pub(super) fn claim(self, instance: &str) -> Result<Option<Claim>, Error> {
        match self {
            Self::DryRun => Ok(None),
            _ => Claim::take(instance).map(Some),
        }
    }

    /// The interfaces that an earlier daemon protects.
    pub(super) fn interfaces(self, place: &BackendHome) -> Vec<String> {
        match self {
            Self::Bpf => kernel::attached(&place.pin_root, &place.instance),
            Self::Nft => nft::interfaces(&place.instance),
            Self::Ipset => ipset::interfaces(&place.instance),
            Self::DryRun => Vec::new(),
        }
    }

    pub(super) fn detach(self, pin_root: &Path, instance: &str) -> Result<Vec<String>, Error> {
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
    let judged_programs = weir_bpf::identity::is_attached(pin_root, instance);
    let had_tokens = weir_bpf::token::is_attached(pin_root, instance);
    let had_match = weir_bpf::token::match_pin(pin_root, instance).exists();
    let mut gone = Vec::new();
    let mut outcome = Ok(());
    // While their pins are there, which say what interfaces had before.
    if let Err(error) = weir_bpf::token::detach(pin_root, instance) {
        outcome = Err(error.into());
    }
    for kind in Family::LASTING {
        match kind.detach(pin_root, instance) {
            Ok(more) => gone.extend(more),
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    match app_queue::detach(instance) {
        Ok(more) => gone.extend(more),
        Err(error) => outcome = outcome.and(Err(error)),
    }
    // They are pinned beside the packet path's, and go with its directory.
    if judged_programs && !weir_bpf::identity::is_attached(pin_root, instance) {
        gone.push("the rules about programs ([app])".to_owned());
    }
    if had_tokens && !weir_bpf::token::is_attached(pin_root, instance) {
        gone.push("tokens and the ports that want them ([token])".to_owned());
    }
    if had_match && !weir_bpf::token::match_pin(pin_root, instance).exists() {
        gone.push("rules of iptables with its match (they match nothing now)".to_owned());
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
        (
            app_queue::is_there(instance),
            "rules of iptables that queue packets ([app] at level nfqueue)".to_owned(),
        ),
        (
            weir_bpf::identity::is_attached(pin_root, instance),
            "rules about programs ([app])".to_owned(),
        ),
        (
            weir_bpf::token::is_attached(pin_root, instance),
            "tokens and the ports that want them ([token])".to_owned(),
        ),
    ];
    there
        .into_iter()
        .filter_map(|(is_there, what)| is_there.then_some(what))
        .collect()
}

/// The interfaces that an earlier daemon of this instance protects, those that
/// are there: for whoever must not let go of them.
pub fn protected(place: &BackendHome) -> Vec<String> {
    let kinds = Family::LASTING.into_iter();
    let mut all: Vec<_> = kinds.flat_map(|kind| kind.interfaces(place)).collect();
    all.retain(|name| !matches!(Device::find_present(name), Ok(None)));
    all.sort();
    all.dedup();
    all
}
