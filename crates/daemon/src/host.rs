//! What this host is like, as the check of a configuration and the daemon ask it:
//! its interfaces and routes, who serves which port, whether it has a journal.

pub(crate) mod addresses;
mod control_group;
mod fail2ban_files;
mod files;
mod interfaces;
mod journal;
mod link;
mod listeners;
mod lower;
mod neighbours;
mod parent_process;
mod routes;
pub(crate) mod shared_links;
pub(crate) mod vlan;

use std::{collections::BTreeSet, net::IpAddr, ops::RangeInclusive, path::Path};

use weir_core::Protocol;
use weir_enforce::hook_selection::Calibration;

pub(crate) use control_group::cgroup_of;
pub use interfaces::InterfaceAddress;
pub(crate) use interfaces::{
    addresses as interface_addresses, all as interfaces, default_gateways, with_default_route,
};
pub(crate) use link::{Interface, interface, interface_of};
pub(crate) use listeners::all as listeners;
pub(crate) use neighbours::{Mac, mac_text, neighbours, resolve};
pub(crate) use parent_process::parent_of;
pub(crate) use routes::{interface as interface_link, interfaces_to, route};

/// What the check has to ask this host; a test answers itself.
pub trait HostFacts {
    /// The names of its network interfaces.
    fn interfaces(&self) -> Vec<String>;
    /// Whether an interface has this name, or has it as an alternative name.
    fn has_interface(&self, name: &str) -> bool;
    /// The addresses of this host's interfaces; empty: the host does not tell.
    fn addresses(&self) -> Vec<InterfaceAddress> {
        Vec::new()
    }
    /// Interfaces with a default route, IPv4 or IPv6.
    fn default_route_interfaces(&self) -> Vec<String>;
    /// The gateways of the default routes.
    fn gateways(&self) -> Vec<IpAddr> {
        Vec::new()
    }
    /// The interface by the name that it has itself, and then those below it, by which its
    /// packets come in: of a VLAN, a bridge, a bond.
    fn with_lower(&self, interface: &str) -> Vec<String> {
        vec![interface.to_owned()]
    }
    /// Whether the interface is told to take frames for every multicast group.
    fn takes_all_multicast(&self, _interface: &str) -> bool {
        true
    }
    /// Is there a systemd journal, with something in it?
    fn has_journal(&self) -> bool;
    /// Whether there is a file of this path.
    fn has_file(&self, path: &str) -> bool;
    /// Is there a file that fits this pattern?
    fn has_match(&self, pattern: &str) -> bool {
        self.has_file(pattern)
    }
    /// Can a file that fits this pattern be read?
    fn can_read(&self, pattern: &str) -> bool {
        self.has_match(pattern)
    }
    /// The files of a Fail2ban configuration.
    fn fail2ban_files(&self) -> &dyn weir_fail2ban::Files {
        &fail2ban_files::Fail2banFiles
    }
    /// The last lines of a log, if it is there and can be read.
    fn log_end(&self, _path: &str) -> Option<Vec<u8>> {
        None
    }
    /// The number of the user of this name.
    fn user(&self, name: &str) -> Option<u32>;
    /// Why nothing is read of this ring's directory, if it is there: others
    /// than root, the daemon's user and `owner` say what it is.
    fn ring_fault(&self, _directory: &Path, _owner: Option<u32>) -> Option<String> {
        None
    }
    /// The number of processors.
    fn processors(&self) -> usize;
    /// The ports that somebody serves here, for others than this host itself.
    fn listeners(&self) -> BTreeSet<(Protocol, u16)> {
        BTreeSet::new()
    }
    /// What `weir calibrate` measured here, or why that is not used.
    fn calibration(&self, _state_dir: &Path) -> Result<Option<Calibration>, String> {
        Ok(None)
    }
    /// The ports from which its own connections begin.
    fn ephemeral_ports(&self) -> RangeInclusive<u16> {
        32_768..=60_999
    }
}

/// The host that this program runs on.
pub struct Host;

impl HostFacts for Host {
    fn interfaces(&self) -> Vec<String> {
        interfaces::all()
    }
    fn has_interface(&self, name: &str) -> bool {
        interfaces::is_there(name)
    }
    fn addresses(&self) -> Vec<InterfaceAddress> {
        interfaces::addresses()
    }
    fn default_route_interfaces(&self) -> Vec<String> {
        interfaces::with_default_route()
    }
    fn gateways(&self) -> Vec<IpAddr> {
        interfaces::default_gateways().unwrap_or_default()
    }
    fn with_lower(&self, interface: &str) -> Vec<String> {
        let named = || vec![interface.to_owned()];
        lower::with_lower(interface).unwrap_or_else(|_| named())
    }
    fn takes_all_multicast(&self, interface: &str) -> bool {
        interfaces::takes_all_multicast(interface)
    }
    fn has_journal(&self) -> bool {
        journal::is_there()
    }
    fn has_file(&self, path: &str) -> bool {
        files::exists(Path::new(path))
    }
    fn has_match(&self, pattern: &str) -> bool {
        match pattern.contains(['*', '?', '[']) {
            true => files::has_match(pattern),
            false => self.has_file(pattern),
        }
    }
    fn can_read(&self, pattern: &str) -> bool {
        files::can_read(pattern)
    }
    fn log_end(&self, path: &str) -> Option<Vec<u8>> {
        files::log_end(Path::new(path)).ok()
    }
    fn user(&self, name: &str) -> Option<u32> {
        let user = nix::unistd::User::from_name(name).ok()??;
        Some(user.uid.as_raw())
    }
    fn ring_fault(&self, directory: &Path, owner: Option<u32>) -> Option<String> {
        weir_sources::ring_fault(directory, owner)
    }
    fn processors(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }
    fn listeners(&self) -> BTreeSet<(Protocol, u16)> {
        listeners::all()
    }
    fn calibration(&self, state_dir: &Path) -> Result<Option<Calibration>, String> {
        weir_calibrate::load(state_dir)
    }
    fn ephemeral_ports(&self) -> RangeInclusive<u16> {
        listeners::ephemeral()
    }
}

/// A host that a test makes up.
#[cfg(test)]
pub(crate) mod fake {
    use std::path::PathBuf;

    use super::*;

    /// A host of which a test says what matters to it.
    pub(crate) struct FakeHost {
        /// The interfaces that have a default route.
        pub(crate) routed: &'static [&'static str],
        pub(crate) journal: bool,
        pub(crate) has_file: fn(&str) -> bool,
        /// The last lines of every log.
        pub(crate) log: Option<&'static str>,
        pub(crate) addresses: Vec<InterfaceAddress>,
        pub(crate) gateways: Vec<IpAddr>,
        pub(crate) listeners: BTreeSet<(Protocol, u16)>,
        pub(crate) ephemeral: RangeInclusive<u16>,
        /// In the default state directory.
        pub(crate) calibration: Result<Option<Calibration>, String>,
    }

    impl Default for FakeHost {
        fn default() -> Self {
            Self {
                routed: &["eth0"],
                journal: true,
                has_file: |path| path == "/var/log/auth.log",
                log: None,
                addresses: Vec::new(),
                gateways: Vec::new(),
                listeners: BTreeSet::new(),
                ephemeral: 32_768..=60_999,
                calibration: Ok(None),
            }
        }
    }

    /// An empty configuration of Fail2ban's at the usual place.
    struct NoJails;

    impl weir_fail2ban::Files for NoJails {
        fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
            match path == Path::new("/etc/fail2ban/jail.conf") {
                true => Ok(Vec::new()),
                false => fail2ban_files::Fail2banFiles.read(path),
            }
        }
        fn list(&self, dir: &Path) -> std::io::Result<Vec<PathBuf>> {
            match dir.starts_with("/etc/fail2ban") {
                true => Ok(Vec::new()),
                false => fail2ban_files::Fail2banFiles.list(dir),
            }
        }
    }

    impl HostFacts for FakeHost {
        fn fail2ban_files(&self) -> &dyn weir_fail2ban::Files {
            &NoJails
        }
        fn addresses(&self) -> Vec<InterfaceAddress> {
            self.addresses.clone()
        }
        /// eth0.10 is a VLAN on eth0, which is also called lan0.
        fn with_lower(&self, interface: &str) -> Vec<String> {
            let all: &[&str] = match interface {
                "eth0.10" => &["eth0.10", "eth0"],
                "lan0" => &["eth0"],
                other => return vec![other.to_owned()],
            };
            all.iter().map(|name| (*name).to_owned()).collect()
        }
        fn gateways(&self) -> Vec<IpAddr> {
            self.gateways.clone()
        }
        fn takes_all_multicast(&self, interface: &str) -> bool {
            interface != "eth1"
        }
        fn interfaces(&self) -> Vec<String> {
            ["eth0", "eth0.10", "eth1", "lo"].map(String::from).to_vec()
        }
        /// eth0 is also called lan0.
        fn has_interface(&self, name: &str) -> bool {
            name == "lan0" || self.interfaces().iter().any(|known| known == name)
        }
        fn default_route_interfaces(&self) -> Vec<String> {
            self.routed.iter().map(|name| (*name).to_owned()).collect()
        }
        fn has_journal(&self) -> bool {
            self.journal
        }
        fn has_file(&self, path: &str) -> bool {
            (self.has_file)(path)
        }
        fn log_end(&self, _path: &str) -> Option<Vec<u8>> {
            self.log.map(|text| text.as_bytes().to_vec())
        }
        fn user(&self, name: &str) -> Option<u32> {
            (name == "www-data").then_some(33)
        }
        fn processors(&self) -> usize {
            4
        }
        fn listeners(&self) -> BTreeSet<(Protocol, u16)> {
            self.listeners.clone()
        }
        fn ephemeral_ports(&self) -> RangeInclusive<u16> {
            self.ephemeral.clone()
        }
        fn calibration(&self, state_dir: &Path) -> Result<Option<Calibration>, String> {
            match state_dir == Path::new("/var/lib/weir") {
                true => self.calibration.clone(),
                false => Ok(None),
            }
        }
    }
}
