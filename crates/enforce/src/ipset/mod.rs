//! The backend `ipset`: sets of ipset hold the bans, and one jump in iptables'
//! `raw` PREROUTING leads to chains that look into them. For hosts that have
//! these and neither BPF nor nftables; what it cannot do is in
//! [`crate::BackendChoice::limits`].
//!
//! The sets are the kernel's, with its clock: they outlive the daemon. Both
//! programs run as children with text on their standard input. `iptables` is
//! whatever the host calls so; where that is the legacy one, it needs
//! CAP_NET_RAW, which the daemon gives up.

mod bans;
mod rules;
mod sets;
pub(crate) use sets::base;
mod tidy;
mod write;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use weir_bpf::{clock, fault};
use weir_core::{PortSet, Reason, address_class::Classes};

use crate::{
    BackendChoice, BootNanos, ClassCounter, Entry, Error, Settings, command,
    firewall::{self, Counted, Desired, Firewall},
    hooks::devices::RealNames,
    nft::iptables,
};
use rules::{IPTABLES, RESTORE, SAVE};
use sets::Bans;

/// How often bans that are longer than ipset's longest are prolonged.
const PROLONG: Duration = Duration::from_secs(3600);

/// The backend `ipset`.
pub struct Ipset {
    base: String,
    /// The answer of `iptables --version`.
    program: String,
    desired: Mutex<Desired>,
    kernel: Mutex<KernelState>,
}

struct KernelState {
    attached: bool,
    broken: bool,
    generation: u8,
    /// The generation of the sets of lists, and what is in them.
    lists: u8,
    classes: Arc<Classes>,
    sets: BTreeSet<Bans>,
    /// Sets are still to be destroyed.
    untidy: bool,
    scopes: Vec<PortSet>,
    /// The chains as written, by family, and the interfaces that they name.
    written: [String; 2],
    names: Vec<String>,
    devices: RealNames,
    suspended: u64,
    prolonged: Instant,
    /// What chains had counted before these were made: the ones of IPv4 carry it
    /// on, for ip6tables (1.8.9) takes no counts.
    carried: Counted,
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
    let (entries, had_lists) = read_entries(&base)?;
    Ok(Arc::new(Ipset {
        base,
        program,
        desired: Desired::taken_over(entries, had_lists, ipv4_length, settings),
        kernel: Mutex::new(KernelState {
            attached: false,
            broken: false,
            generation: 0,
            lists: 0,
            classes: Arc::default(),
            sets: BTreeSet::new(),
            untidy: false,
            scopes: Vec::new(),
            written: Default::default(),
            names: Vec::new(),
            devices: RealNames::default(),
            suspended: clock::suspended(),
            prolonged: Instant::now(),
            carried: Counted::new(),
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
            iptables::remove_empty(family, rules::PLACE, rules::made(&saved, &base));
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

/// The interfaces that the rules of an instance name.
pub(crate) fn interfaces(instance: &str) -> Vec<String> {
    let saved = command::run(SAVE[0], &["-t", "raw"], "").unwrap_or_default();
    rules::interfaces(&saved, &sets::base(instance))
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

/// The table `raw` of a family with what its rules have counted.
fn save_counted(family: usize) -> Result<String, Error> {
    command::run(SAVE[family], &["-c", "-t", "raw"], "")
        .map_err(failed("read the rules of iptables"))
}

/// Packets and bytes by counter. `carried`: what the chains of IPv4 were made with,
/// for when somebody has taken their rules away.
fn counters(base: &str, carried: &Counted) -> Result<Counted, Error> {
    let mut all = Counted::new();
    for family in [0, 1] {
        let saved = save_counted(family)?;
        let counts: Vec<_> = rules::counts(&saved, base).collect();
        if family == 0 && counts.is_empty() {
            all = carried.clone();
        }
        for (counter, packets, bytes) in counts {
            firewall::add(&mut all, counter, packets, bytes);
        }
    }
    Ok(all)
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

impl Ipset {
    fn kernel(&self) -> MutexGuard<'_, KernelState> {
        self.kernel.lock().expect("no holder of this lock panics")
    }
}

impl Firewall for Ipset {
    const CHOICE: BackendChoice = BackendChoice::Ipset;

    fn state(&self) -> &Mutex<Desired> {
        &self.desired
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        check_names(&settings.interfaces)
    }

    fn put_all(&self) -> Result<(), Error> {
        self.rebuild(&mut self.kernel())
    }

    fn put_pending(&self) -> Result<(), Error> {
        self.put_pending_into(&mut self.kernel())
    }

    fn put_allow(&self) -> Result<(), Error> {
        // The sets are filled aside under one name: nobody else may meanwhile.
        let mut kernel = self.kernel();
        if !kernel.attached || kernel.broken {
            return self.put_pending_into(&mut kernel);
        }
        if let Err(error) = self.put_allow_sets() {
            tracing::debug!("{error}; writing everything again");
            return self.rebuild(&mut kernel);
        }
        self.put_pending_into(&mut kernel)
    }

    fn put_classes(&self) -> Result<(), Error> {
        let mut kernel = self.kernel();
        if !kernel.attached {
            return Ok(());
        }
        if kernel.broken {
            return self.rebuild(&mut kernel);
        }
        let before = self.sets_there()?;
        let put = self.put_lists(&mut kernel).and_then(|()| {
            // One family may ask the new sets, and the other one the old ones.
            kernel.broken = true;
            self.put_rules(&mut kernel)
        });
        match put {
            Ok(()) => {
                kernel.broken = false;
                self.tidy(&mut kernel);
            }
            Err(_) => self.tidy_after_failure(&mut kernel, &before),
        }
        put
    }

    fn put_settings(&self) -> Result<(), Error> {
        let mut kernel = self.kernel();
        if !kernel.attached {
            return Ok(());
        }
        // Other interfaces need a look; what else changed does not wait for it.
        let looked = self.look_at_devices(&mut kernel);
        self.put_rules(&mut kernel)?;
        looked.map(drop)
    }

    fn counted(&self) -> Result<Counted, Error> {
        let mut counted = counters(&self.base, &self.kernel().carried)?;
        let (packets, bytes) = counted
            .iter()
            .filter(|(name, _)| rules::is_list_counter(name))
            .fold((0, 0), |(packets, bytes), (_, more)| {
                (packets + more.0, bytes + more.1)
            });
        firewall::add(&mut counted, Reason::Listed.name(), packets, bytes);
        Ok(counted)
    }

    fn count_classes(&self, counted: &Counted) -> Vec<ClassCounter> {
        let classes = self.desired().classes.clone();
        let lists = classes.lists.iter();
        lists
            .filter_map(|list| {
                let (packets, bytes) = *counted.get(&rules::list_counter(&list.name))?;
                (packets > 0).then(|| ClassCounter {
                    list: Some(list.name.clone()),
                    country: None,
                    packets,
                    bytes,
                })
            })
            .collect()
    }

    fn tell(&self, _interface: &str) -> String {
        self.program.clone()
    }

    fn memory_of_sets(&self) -> Option<u64> {
        let listed = command::run("ipset", &["list", "-terse"], "").ok()?;
        Some(sets::memory(&listed, &self.base))
    }

    fn renamed(&self, configured: &str) -> Option<String> {
        self.kernel().devices.renamed(configured)
    }

    fn tend(&self) -> Result<(), Error> {
        let mut kernel = self.kernel();
        let kernel = &mut *kernel;
        if !kernel.attached {
            return Ok(());
        }
        let slept = clock::suspended().abs_diff(kernel.suspended) > clock::SECOND / 10;
        let due = kernel.prolonged.elapsed() > fault::sooner(PROLONG);
        let disturbed = self.is_disturbed(kernel)?;
        if disturbed {
            tracing::warn!(
                "somebody has changed the chains {} of iptables; writing them again",
                self.base
            );
        }
        if slept || due || disturbed || kernel.broken {
            return self.rebuild(kernel);
        }
        if kernel.untidy {
            self.tidy(kernel);
        }
        let names = self.look_at_devices(kernel)?;
        if names != kernel.names {
            return self.put_rules(kernel); // one has another name of its own
        }
        Ok(())
    }
}
