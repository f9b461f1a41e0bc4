//! Where tokens stand that go to each network: as the configuration has it, or as a file of
//! `weir options probe` says, whose measurements from this host show what the path lets pass.
//! The file may have come from elsewhere: it decides on nothing but this, and what it says is
//! bounded and escaped.

use std::{
    fs, io,
    net::IpAddr,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use rustix::fs::OFlags;
use serde::Serialize;
use weir_bpf::token as kernel;
use weir_core::{Prefix, text::escape};
use weir_option_probe::{
    probe_packet::Carrier,
    result_file::{Ends, PairResult, ResultFile, ResultFileError},
};
use weir_options::Layer;
use weir_token::{
    IP_KIND, KIND, OPTION_BYTES,
    config::{Conduit, ProbeUse, Scope, TokenConfig},
};

use crate::host::interface_addresses;

/// Bytes of a file that is read.
const MAX_BYTES: u64 = 64 << 20;
/// Characters of a mistake in a file that are shown.
const MAX_MISTAKE: usize = 300;
/// How often it is looked how old measurements are.
const LOOK_AT_AGE: Duration = Duration::from_secs(3600);
/// Problems, and sites of one, that are shown.
const MAX_SHOWN: usize = 8;

/// Why a file of measurements cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeFileError {
    /// The file cannot be read.
    #[error("probe_result: cannot read {0}: {1}")]
    Read(PathBuf, io::Error),
    /// Others than root could change the file, or it is none.
    #[error("probe_result: {path}: {why}; allowed: {allowed}")]
    Unsafe {
        /// Where the file is.
        path: PathBuf,
        /// The reason against it.
        why: String,
        /// What would do.
        allowed: &'static str,
    },
    /// The file is another one, or malformed.
    #[error("probe_result: {0}: {1}")]
    Malformed(PathBuf, String),
}

/// The conduit of one network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NetworkConduit {
    /// One of `sign_to` or `sign_udp_to`.
    pub(super) network: Prefix,
    /// Whether it is one of `sign_udp_to`.
    pub(super) is_udp: bool,
    /// `None`: nowhere.
    pub(super) conduit: Option<Conduit>,
    /// `None`: the configuration says so.
    pub(super) measured: Option<Measured>,
}

/// The measurements that have decided about a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Measured {
    /// The time of the oldest one, if it is known.
    pub(super) at: Option<Timestamp>,
    /// The sites in the network.
    pub(super) sites: Vec<String>,
}

/// Where tokens to one network stand.
#[derive(Debug, Clone, Serialize)]
pub struct ConduitStatus {
    /// One of `sign_to` or `sign_udp_to`.
    pub network: String,
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// `tcp-option`, `ip-option`, or `none`: none are sent there.
    pub conduit: &'static str,
    /// `configuration`, or `probe`: measurements have decided.
    pub chosen_by: &'static str,
    /// The time of the oldest of these measurements; `None`: it is not known.
    pub measured: Option<Timestamp>,
    /// The sites in the network that were measured.
    pub sites: Vec<String>,
}

impl ConduitStatus {
    pub(super) fn of(to: &NetworkConduit) -> Self {
        Self {
            network: to.network.to_string(),
            protocol: if to.is_udp { "udp" } else { "tcp" },
            conduit: to.conduit.map_or("none", Conduit::name),
            chosen_by: match to.measured {
                None => "configuration",
                Some(_) => "probe",
            },
            measured: to.measured.as_ref().and_then(|measured| measured.at),
            sites: to
                .measured
                .iter()
                .flat_map(|measured| measured.sites.clone())
                .collect(),
        }
    }
}

/// Where tokens to all networks stand.
#[derive(Debug, Clone, Default)]
pub(super) struct Conduits {
    /// Those of `sign_to`, then those of `sign_udp_to`.
    pub(super) networks: Vec<NetworkConduit>,
    /// The text of an alert; `None`: nothing is wrong.
    pub(super) problem: Option<String>,
    /// What they were chosen by, if measurements were looked at.
    chosen_by: Option<ChosenBy>,
}

/// What conduits were chosen by: they are chosen again when it is no more so.
#[derive(Debug, Clone)]
struct ChosenBy {
    file: Arc<ResultFile>,
    /// The addresses of this host, and what it is called in the file.
    own: Vec<IpAddr>,
    site: Option<String>,
    at: Timestamp,
}

impl Conduits {
    /// The conduits of a configuration, whose file is read now.
    ///
    /// # Errors
    /// There is a file, and it cannot be used.
    pub(super) fn choose(
        config: &TokenConfig,
        own: &[IpAddr],
        now: Timestamp,
    ) -> Result<Self, ProbeFileError> {
        match &config.probe {
            None => Ok(Self::configured(config)),
            Some(probe) => {
                let file = Arc::new(read(&probe.result)?);
                Ok(Self::by_file(config, probe, file, own, now))
            }
        }
    }

    fn by_file(
        config: &TokenConfig,
        probe: &ProbeUse,
        file: Arc<ResultFile>,
        own: &[IpAddr],
        now: Timestamp,
    ) -> Self {
        let site = own_site(probe, &file, own);
        let mut conduits = chosen(config, probe, &file, &site, now);
        conduits.chosen_by = Some(ChosenBy {
            file,
            own: own.to_vec(),
            site: site.ok(),
            at: now,
        });
        conduits
    }

    /// Whether measurements were looked at.
    pub(super) fn go_by_file(&self) -> bool {
        self.chosen_by.is_some()
    }

    /// The conduits by the same measurements where the host has other addresses than when
    /// they were chosen, as after a start that goes before the network's; or where the
    /// measurements are older by so much. `None`: neither is so. Where this host is no site
    /// of them any more, for an address may be gone for a moment, all stay, with an alert.
    pub(super) fn again(
        &self,
        config: &TokenConfig,
        own: &[IpAddr],
        now: Timestamp,
    ) -> Option<Self> {
        let before = self.chosen_by.as_ref()?;
        let probe = config.probe.as_ref()?;
        let aged = now.duration_since(before.at).unsigned_abs();
        if before.own == own && aged < LOOK_AT_AGE {
            return None;
        }
        let site = own_site(probe, &before.file, own);
        if let (Some(_), Err(why)) = (&before.site, site) {
            let shown = probe.result.display();
            return Some(Self {
                networks: self.networks.clone(),
                problem: Some(format!("probe_result {shown}: {why}; tokens go as before")),
                chosen_by: Some(ChosenBy {
                    own: own.to_vec(),
                    at: now,
                    ..before.clone()
                }),
            });
        }
        Some(Self::by_file(config, probe, before.file.clone(), own, now))
    }

    /// The conduits of a configuration whose file cannot be used, for this reason.
    pub(super) fn without_file(config: &TokenConfig, why: &ProbeFileError) -> Self {
        Self {
            problem: Some(format!(
                "{why}: until a reload tokens go by the first of conduits, whatever the path lets pass"
            )),
            ..Self::configured(config)
        }
    }

    fn configured(config: &TokenConfig) -> Self {
        let all = all_networks(config);
        Self {
            networks: all.map(|(n, is_udp)| usual(config, n, is_udp)).collect(),
            ..Self::default()
        }
    }

    /// The networks of one protocol as the kernel takes them.
    pub(super) fn kernel(&self, is_udp: bool) -> Vec<(Prefix, kernel::Conduit)> {
        let networks = self.networks.iter().filter(|to| to.is_udp == is_udp);
        let taken = networks.map(|to| {
            let conduit = match to.conduit {
                None => kernel::Conduit::Nothing,
                Some(Conduit::TcpOption) => kernel::Conduit::TcpOption,
                Some(Conduit::IpOption) => kernel::Conduit::IpOption,
            };
            (to.network, conduit)
        });
        taken.collect()
    }

    /// The networks to which tokens go in IP headers, which they get at interfaces.
    pub(super) fn by_ip(&self) -> Vec<Prefix> {
        let networks = self.networks.iter();
        let by_ip = networks.filter(|to| to.conduit == Some(Conduit::IpOption));
        by_ip.map(|to| to.network).collect()
    }
}

/// What the file of a configuration would not do, in words, for `weir check`.
pub fn complaints(config: &TokenConfig) -> Vec<String> {
    let chosen = Conduits::choose(config, &own_addresses(), Timestamp::now());
    let problem = match chosen {
        Ok(conduits) => conduits.problem,
        Err(error) => Some(error.to_string()),
    };
    let problem = problem.map(|problem| format!("[token]: {problem}"));
    problem.into_iter().collect()
}

/// Where tokens to each network would stand if a configuration began now.
pub fn conduits(config: &TokenConfig) -> Vec<ConduitStatus> {
    let chosen = Conduits::choose(config, &own_addresses(), Timestamp::now());
    let chosen = chosen.unwrap_or_else(|_| Conduits::configured(config));
    chosen.networks.iter().map(ConduitStatus::of).collect()
}

/// The addresses that this host has now.
pub(super) fn own_addresses() -> Vec<IpAddr> {
    let all = interface_addresses().into_iter();
    let mut all: Vec<_> = all.map(|address| address.address).collect();
    all.sort_unstable();
    all
}

/// The networks of `sign_to`, if tokens go there, then those of `sign_udp_to`, which is said.
fn all_networks(config: &TokenConfig) -> impl Iterator<Item = (Prefix, bool)> {
    let tcp = config.sign_to.iter().filter(|_| config.scope != Scope::Daf);
    let tcp = tcp.map(|network| (*network, false));
    tcp.chain(config.sign_udp_to.iter().map(|network| (*network, true)))
}

/// The conduits that there are for a protocol, the preferred one first.
fn preferred(config: &TokenConfig, is_udp: bool) -> &[Conduit] {
    match is_udp {
        true => &[Conduit::IpOption],
        false => &config.conduits,
    }
}

/// As the configuration has it.
fn usual(config: &TokenConfig, network: Prefix, is_udp: bool) -> NetworkConduit {
    NetworkConduit {
        network,
        is_udp,
        conduit: preferred(config, is_udp).first().copied(),
        measured: None,
    }
}

/// Reads a file that nobody but root could have changed.
fn read(path: &Path) -> Result<ResultFile, ProbeFileError> {
    let unread = |error| ProbeFileError::Read(path.to_owned(), error);
    let refused = |why, allowed| ProbeFileError::Unsafe {
        path: path.to_owned(),
        why,
        allowed,
    };
    // One that blocks is none: a pipe holds nobody up.
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path)
        .map_err(unread)?;
    let about = file.metadata().map_err(unread)?;
    if !about.is_file() {
        return Err(refused("it is no file".to_owned(), "a file"));
    }
    let (own, mode) = (rustix::process::geteuid().as_raw(), about.mode() & 0o7777);
    let roots = "root's, and writable for nobody else";
    if about.uid() != 0 && about.uid() != own {
        let why = format!("it belongs to the user {}", about.uid());
        return Err(refused(why, roots));
    }
    if mode & 0o022 != 0 {
        return Err(refused(format!("its mode is {mode:04o}"), roots));
    }
    if about.len() > MAX_BYTES {
        let why = format!("it has {} bytes", about.len());
        return Err(refused(why, "up to 67,108,864"));
    }
    ResultFile::read(io::Read::take(file, MAX_BYTES)).map_err(|error| match error {
        ResultFileError::Io(error) => unread(error),
        // With text of the file in it.
        error => {
            let shown: String = error.to_string().chars().take(MAX_MISTAKE).collect();
            ProbeFileError::Malformed(path.to_owned(), escape(&shown))
        }
    })
}

/// Names, some of them if there are many.
fn some_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.into_iter().collect();
    let shown = names[..names.len().min(MAX_SHOWN)].join(", ");
    match names.len().checked_sub(MAX_SHOWN) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

/// What this host is called in a file.
fn own_site(probe: &ProbeUse, file: &ResultFile, own: &[IpAddr]) -> Result<String, String> {
    let all = file.sites();
    if let Some(site) = &probe.site {
        return match all.contains(site.as_str()) {
            true => Ok(site.clone()),
            false => Err(format!(
                "it has no site {site}, which probe_site names; its sites: {}",
                some_of(all)
            )),
        };
    }
    let ends = |pair: &&PairResult| pair.conditions.and_then(|c| c.ends);
    if !file.pairs.is_empty() && !file.pairs.iter().any(|pair| ends(&pair).is_some()) {
        return Err("an earlier weir has written it, without addresses: measure again".to_owned());
    }
    let mut here: Vec<_> = file
        .pairs
        .iter()
        .filter(|pair| ends(pair).is_some_and(|ends| own.contains(&ends.source)))
        .map(|pair| pair.from.as_str())
        .collect();
    here.sort_unstable();
    here.dedup();
    match here[..] {
        [site] => Ok(site.to_owned()),
        [] => Err(format!(
            "no site of it has sent from an address of this host: name this one in probe_site; its sites: {}",
            some_of(all)
        )),
        _ => Err(format!(
            "several sites of it have sent from addresses of this host: name this one in probe_site; allowed: {}",
            some_of(here)
        )),
    }
}

/// What measurements to a site say about a conduit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    Unmeasured,
    /// Nothing arrived at all, so the site was not there.
    Absent,
}

fn outcome(pair: &PairResult, conduit: Conduit, is_udp: bool, percent: u16) -> Outcome {
    let carrier = match is_udp {
        true => Carrier::Udp,
        false => Carrier::Tcp,
    };
    let (layer, number) = match conduit {
        Conduit::TcpOption => (Layer::Tcp, KIND),
        Conduit::IpOption if pair.is_v4 => (Layer::Ip, IP_KIND),
        Conduit::IpOption => (Layer::Destination, IP_KIND),
    };
    let measured = pair.measurements.iter().filter_map(|m| {
        let option = m.option.as_ref()?;
        let is_it = option.layer == layer && option.number == number && m.carrier == carrier;
        (is_it && m.tally.sent > 0).then_some((option.data.len(), m.tally))
    });
    // One as long as a token, else the longest: it is most like one.
    let Some((_, tally)) = measured.max_by_key(|(data, _)| (data + 2 == OPTION_BYTES, *data))
    else {
        return Outcome::Unmeasured;
    };
    if tally.arrived() == 0 && pair.plain(carrier).arrived() == 0 {
        return Outcome::Absent;
    }
    match u32::from(tally.passed) * 100 >= u32::from(tally.sent) * u32::from(percent) {
        true => Outcome::Passed,
        false => Outcome::Failed,
    }
}

/// Whether a conduit passed to all sites that were there; `None`: nobody has measured it.
fn passed_to_all(mut outcomes: Vec<Outcome>) -> Option<bool> {
    outcomes.retain(|one| *one != Outcome::Absent);
    let is_measured = outcomes.iter().any(|one| *one != Outcome::Unmeasured);
    is_measured.then(|| outcomes.iter().all(|one| *one == Outcome::Passed))
}

/// How a conduit is named for `weir options probe --option`.
fn option_of(conduit: Conduit, is_v4: bool) -> String {
    let option = match conduit {
        Conduit::TcpOption => "tcp:254",
        Conduit::IpOption if is_v4 => "ip:30",
        Conduit::IpOption => "dst:0x1e",
    };
    format!("{option}/{OPTION_BYTES}")
}

fn chosen(
    config: &TokenConfig,
    probe: &ProbeUse,
    file: &ResultFile,
    from: &Result<String, String>,
    now: Timestamp,
) -> Conduits {
    let mut problems = Vec::new();
    if file.is_cut {
        problems.push("its last line is cut, and is left out".to_owned());
    }
    problems.extend(from.as_ref().err().cloned());
    let from_here = file
        .pairs
        .iter()
        .filter(|pair| from.as_ref() == Ok(&pair.from))
        .filter_map(|pair| Some((pair, pair.conditions?.ends?)));
    // An address that nobody but the site's own host has told may be anybody's: what was measured
    // to it would decide about another network than that of the site.
    let (told, from_here): (Vec<_>, Vec<_>) =
        from_here.partition(|(_, ends)| ends.told == Some(true));
    let is_wanted = |site: IpAddr| all_networks(config).any(|(n, _)| n.contains(site));
    let told = told.into_iter().filter(|(_, ends)| is_wanted(ends.dest));
    let told: Vec<_> = told
        .map(|(pair, ends)| format!("{} {}", pair.to, ends.dest))
        .collect();
    if !told.is_empty() {
        problems.push(format!(
            "it decides nothing about sites whose address only their own host has told ({}): measure again with the address that you know behind / of the site, as in LABEL=ssh:HOST/ADDRESS",
            some_of(told.iter().map(String::as_str))
        ));
    }
    let is_unsaid = |(_, ends): &(&PairResult, Ends)| ends.told.is_none() && is_wanted(ends.dest);
    if from_here.iter().any(is_unsaid) {
        problems.push(
            "an earlier weir has written it, without who named the addresses of sites, which may be those of others: measure again".to_owned(),
        );
    }
    let from_here: Vec<(&PairResult, IpAddr)> = from_here
        .into_iter()
        .map(|(pair, ends)| (pair, ends.dest))
        .collect();
    // Of networks in each other the smallest one is that of a site.
    let smallest = |site: IpAddr, is_udp: bool| {
        let around = all_networks(config).filter(|(n, udp)| *udp == is_udp && n.contains(site));
        around.max_by_key(|(n, _)| n.bits()).map(|(n, _)| n)
    };
    let network_of: Vec<[Option<Prefix>; 2]> = from_here
        .iter()
        .map(|(_, site)| [false, true].map(|is_udp| smallest(*site, is_udp)))
        .collect();
    let mut is_any_there = !told.is_empty();
    let mut oldest = Some(Timestamp::MAX);
    let mut networks = Vec::new();
    for (network, is_udp) in all_networks(config) {
        let sites = from_here.iter().zip(&network_of);
        let sites = sites.filter(|(_, of)| of[usize::from(is_udp)] == Some(network));
        let sites: Vec<_> = sites.map(|((pair, _), _)| *pair).collect();
        is_any_there |= !sites.is_empty();
        let preferred = preferred(config, is_udp);
        let all_passed = |conduit: Conduit| {
            let outcome = |pair: &&PairResult| outcome(pair, conduit, is_udp, probe.pass_percent);
            passed_to_all(sites.iter().map(outcome).collect())
        };
        let protocol = if is_udp { "UDP" } else { "TCP" };
        let names = || some_of(sites.iter().map(|pair| pair.to.as_str()));
        let wanted = preferred
            .iter()
            .map(|conduit| option_of(*conduit, network.addr().is_ipv4()));
        let wanted: Vec<_> = wanted.collect();
        if preferred.iter().all(|c| all_passed(*c).is_none()) {
            if !sites.is_empty() {
                problems.push(format!(
                    "to {network} it has no measurement of {} on {protocol} that arrived or not (sites {}): measure with --option {}",
                    wanted.join(" or "),
                    names(),
                    wanted.join(" --option "),
                ));
            }
            networks.push(usual(config, network, is_udp));
            continue;
        }
        let conduit = preferred.iter().find(|c| all_passed(**c) == Some(true));
        if conduit.is_none() {
            problems.push(format!(
                "to {network} no token is sent by {protocol}: none of {} was measured and passed to all of {}",
                wanted.join(", "),
                names()
            ));
        }
        let at = sites.iter().map(|pair| pair.measured).min().flatten();
        oldest = oldest.min(at);
        networks.push(NetworkConduit {
            network,
            is_udp,
            conduit: conduit.copied(),
            measured: Some(Measured {
                at,
                sites: sites.iter().map(|pair| pair.to.clone()).collect(),
            }),
        });
    }
    if let (Ok(from), false) = (from, is_any_there) {
        problems.push(format!(
            "no site to which {from} has sent is in sign_to or sign_udp_to"
        ));
    }
    problems.extend(age_problem(probe, oldest, now));
    Conduits {
        networks,
        problem: (!problems.is_empty()).then(|| {
            let shown = problems[..problems.len().min(MAX_SHOWN)].join("; ");
            let more = match problems.len().checked_sub(MAX_SHOWN) {
                None | Some(0) => String::new(),
                Some(more) => format!("; and {more} more"),
            };
            format!("probe_result {}: {shown}{more}", probe.result.display())
        }),
        chosen_by: None,
    }
}

/// What is wrong with the time of the oldest measurement that is used, if any is.
fn age_problem(probe: &ProbeUse, oldest: Option<Timestamp>, now: Timestamp) -> Option<String> {
    let Some(at) = oldest else {
        return Some("an earlier weir has written it, without a time: measure again".to_owned());
    };
    if at == Timestamp::MAX {
        return None;
    }
    let age = now.duration_since(at);
    if age < jiff::SignedDuration::from_hours(-24) {
        return Some(format!(
            "it was measured at {at}, which is yet to come: set the clocks"
        ));
    }
    let max_age = jiff::SignedDuration::try_from(probe.max_age).ok()?;
    (age > max_age).then(|| {
        format!(
            "it was measured at {at}, {} days ago, and paths change: measure again, into a new file",
            age.as_hours() / 24
        )
    })
}

#[cfg(test)]
mod tests;
