//! The program of a real beyond a router, which takes packets of clients out of what the
//! balancer sends (`bpf/balance/decap.bpf.c`). It is pinned, and of no instance: it works
//! on hosts without the firewall, and is there until it is taken away.

use std::{
    io,
    mem::MaybeUninit,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    abi,
    attachment::{Hook, Link},
    balance::mapped,
    error::{Context, Error, Result},
    object, pins,
    skeleton::decap::DecapSkelBuilder,
    small_maps::sum_of,
};

/// Below which each attachment has a directory.
pub const DEFAULT_ROOT: &str = "/sys/fs/bpf/weir-real-side";
/// The default UDP port of GUE.
pub const GUE_PORT: u16 = abi::GUE_PORT as u16;
/// So many addresses of all kinds together.
pub const MAX_ADDRESSES: usize = abi::DECAP_ADDRESSES as usize;

/// Tunnels whose outer headers are taken off, and for which addresses.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct DecapConfig {
    /// IP in IP, either family in either.
    pub ipip: bool,
    /// GUE at this port.
    pub gue_port: Option<u16>,
    /// Addresses of this host: outer headers are to be for one of them.
    pub own: Vec<IpAddr>,
    /// Virtual addresses: inner headers are to be for one of them.
    pub vips: Vec<IpAddr>,
    /// Addresses that may send outer headers; empty: any address may.
    pub balancers: Vec<IpAddr>,
}

/// Packets that arrived in tunnels, by their fate.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DecapCounts {
    /// Packets whose outer header was taken off.
    pub taken: u64,
    /// Left as they were: not from a balancer.
    pub stranger: u64,
    /// Left as they were: not for a virtual address.
    pub other: u64,
    /// Left as they were: the outer packet came in fragments.
    pub fragment: u64,
    /// Dropped: a header is cut, or contradicts itself.
    pub malformed: u64,
    /// Dropped: the kernel did not take the header off; of another family it does so since
    /// Linux 6.3.
    pub refused: u64,
}

/// The program with its tables.
pub struct Decap {
    program: OwnedFd,
    counters: MapHandle,
}

impl Decap {
    /// Loads it for this configuration.
    ///
    /// # Errors
    /// There are too many addresses, or the kernel refuses it.
    pub fn load(config: &DecapConfig) -> Result<Self> {
        Self::load_over(config, None)
    }

    /// Loads the program, which goes on counting in these counters.
    fn load_over(config: &DecapConfig, counters: Option<&MapHandle>) -> Result<Self> {
        let what = || "load the program that takes packets out of tunnels".into();
        let kinds = [
            (&config.own, abi::DECAP_OWN),
            (&config.vips, abi::DECAP_VIP),
            (&config.balancers, abi::DECAP_BALANCER),
        ];
        let count: usize = kinds.iter().map(|(addresses, _)| addresses.len()).sum();
        if count > MAX_ADDRESSES {
            return Err(Error::refused(
                "take packets out of tunnels",
                format!("there are {count} addresses: at most {MAX_ADDRESSES}"),
            ));
        }
        let mut storage = MaybeUninit::uninit();
        let mut open = DecapSkelBuilder::default()
            .open(&mut storage)
            .context(what)?;
        let rodata = open.maps.rodata_data.as_deref_mut();
        let decap = &mut rodata.expect("the object has rodata").decap;
        decap.ipip = config.ipip.into();
        decap.gue_port = config.gue_port.unwrap_or(0).to_be();
        decap.any_balancer = config.balancers.is_empty().into();
        if let Some(counters) = counters {
            let reused = open.maps.decap_counters.reuse_fd(counters.as_fd());
            reused.context(what)?;
        }
        let skel = open.load().context(what)?;
        let map = &skel.maps.decap_addresses;
        for (addresses, bit) in kinds {
            for addr in addresses {
                let key = mapped(*addr);
                let before = map.lookup(&key, MapFlags::ANY).context(what)?;
                let before = before.map_or(0, |bits| {
                    u32::from_ne_bytes(bits.try_into().expect("four bytes"))
                });
                let bits = (before | bit).to_ne_bytes();
                map.update(&key, &bits, MapFlags::ANY).context(what)?;
            }
        }
        let program = skel.progs.weir_decap.as_fd().try_clone_to_owned();
        Ok(Self {
            program: program.context(what)?,
            counters: MapHandle::try_from(&skel.maps.decap_counters).context(what)?,
        })
    }

    /// The loaded program, for BPF_PROG_RUN.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// The program's counters, summed over all CPUs.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn counts(&self) -> Result<DecapCounts> {
        counts_of(&self.counters)
    }
}

fn counts_of(counters: &MapHandle) -> Result<DecapCounts> {
    let read = |number| sum_of(counters, number, "what came in tunnels");
    Ok(DecapCounts {
        taken: read(abi::DECAP_TAKEN)?,
        stranger: read(abi::DECAP_STRANGER)?,
        other: read(abi::DECAP_OTHER)?,
        fragment: read(abi::DECAP_FRAGMENT)?,
        malformed: read(abi::DECAP_MALFORMED)?,
        refused: read(abi::DECAP_REFUSED)?,
    })
}

/// Removes the pins of interfaces that are gone. Nobody takes back what was made in a network
/// namespace that ended, and the next one may have its number.
fn remove_ended(root: &Path) {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    for dir in entries.map(|entry| entry.path()) {
        if Link::open(&dir.join("link")).is_ok_and(|link| link.has_ended()) {
            let _ = pins::remove_tree(&dir);
        }
    }
}

/// The attachment of the program to one interface, by its pins.
pub struct Attachment {
    dir: PathBuf,
}

impl Attachment {
    /// Of an interface of a network namespace, whether or not it is there.
    pub fn of(namespace: u64, interface: &str) -> Self {
        let name = pins::escape(&format!("{namespace}-{interface}"));
        Self {
            dir: Path::new(DEFAULT_ROOT).join(name),
        }
    }

    fn link(&self) -> PathBuf {
        self.dir.join("link")
    }

    fn counters(&self) -> PathBuf {
        self.dir.join("counters")
    }

    /// The link, if it is on this interface.
    fn find(&self, ifindex: u32) -> Option<Link> {
        let link = Link::open(&self.link()).ok()?;
        let (target, _) = link.target().ok()?;
        (target == ifindex && link.is_there()).then_some(link)
    }

    /// Whether the program is attached to this interface.
    pub fn is_on(&self, ifindex: u32) -> bool {
        self.find(ifindex).is_some()
    }

    /// Puts the program there, in place of the one that is there, in one step. As tcx, or
    /// as a filter where the kernel has no tcx.
    ///
    /// # Errors
    /// It cannot be loaded, attached or pinned.
    pub fn attach(&self, config: &DecapConfig, ifindex: u32) -> Result<Hook> {
        let root = Path::new(DEFAULT_ROOT);
        pins::require_bpffs(root.parent().unwrap_or(root))?;
        pins::make_ours(root)?;
        remove_ended(root);
        pins::make_ours(&self.dir)?;
        let counters = MapHandle::from_pinned_path(self.counters()).ok();
        let decap = Decap::load_over(config, counters.as_ref())?;
        if counters.is_none() {
            object::pin(decap.counters.as_fd(), &self.counters())?;
        }
        if let Some(link) = self.find(ifindex) {
            link.update(decap.program())?;
            return Ok(match link.priority() {
                None => Hook::Tcx,
                Some(_) => Hook::ClsBpf,
            });
        }
        // Of an interface that is gone.
        let _ = std::fs::remove_file(self.link());
        let mut refused = io::Error::from(io::ErrorKind::Unsupported);
        for hook in [Hook::Tcx, Hook::ClsBpf] {
            match Link::attach_pinned(decap.program(), ifindex, hook, &self.link()) {
                Ok(_) => return Ok(hook),
                Err(error) => refused = error,
            }
        }
        Err(Error::new(
            "attach the program that takes packets out of tunnels",
            refused,
        ))
    }

    /// Takes it away; false: it was not there.
    ///
    /// # Errors
    /// The pins cannot be removed.
    pub fn detach(&self) -> Result<bool> {
        let link = Link::open(&self.link());
        if let Ok(link) = &link {
            link.detach();
        }
        pins::remove_tree(&self.dir)?;
        // The last one takes the root along.
        let _ = std::fs::remove_dir(DEFAULT_ROOT);
        Ok(link.is_ok())
    }

    /// The program's counters since it was attached there.
    ///
    /// # Errors
    /// The program is not attached there.
    pub fn counts(&self) -> Result<DecapCounts> {
        let path = self.counters();
        let counters = MapHandle::from_pinned_path(&path)
            .context(|| format!("open the pin {}", path.display()))?;
        counts_of(&counters)
    }
}
