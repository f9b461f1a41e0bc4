//! Where and how bans are enforced: the keys of the top level about interfaces,
//! hooks and the ban table.

use std::path::PathBuf;

use weir_config::{
    Section,
    values::{name_byte, path},
};
use weir_enforce::{BackendChoice, hook_selection::Advice, kernel::DEFAULT_ROOT};

use crate::host::HostFacts;

/// Where and how bans are enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enforcement {
    /// Interface names, some of which may not be there yet; with `auto` those
    /// that had a default route when the file was read, possibly none.
    pub interfaces: Vec<String>,
    /// Interfaces that get a default route later are added.
    pub auto: bool,
    /// The backend that the configuration names.
    pub backend: BackendChoice,
    /// The measured costs by which `auto` chooses a hook.
    pub advice: Advice,
    /// The name that this daemon's pins carry.
    pub instance: String,
    /// Count, do not drop.
    pub observe: bool,
    /// The cap of the ban table.
    pub max_bans: usize,
    /// One IPv4 prefix length besides /32 that may be banned.
    pub ipv4_length: Option<u8>,
    /// The bpffs directory that holds all instances.
    pub pin_root: PathBuf,
}

impl Enforcement {
    /// The setting by which bans are only counted and no packet is dropped, if there is one.
    pub fn drops_nothing(&self) -> Option<&'static str> {
        match (self.observe, self.backend) {
            (true, _) => Some("observe is true"),
            (false, BackendChoice::DryRun) => Some("backend is \"dry-run\""),
            (false, _) => None,
        }
    }
}

/// `IFNAMSIZ` of linux/if.h, less the NUL.
const MAX_INTERFACE: usize = 15;

/// All of it but what `auto` goes by.
pub(crate) fn read(
    root: &mut Section<'_, '_>,
    host: &dyn HostFacts,
    warnings: &mut Vec<String>,
) -> Enforcement {
    const INTERFACES: &str =
        "\"auto\" (those with a default route) or a list of interface names such as [\"eth0\"]";
    let backend = root
        .choice("backend", &BackendChoice::ALL)
        .map_or(BackendChoice::Auto, |at| at.value);
    let typed = root.word_or_list("interfaces", INTERFACES);
    let mut interfaces = Vec::new();
    let mut auto = false;
    match typed {
        Some(Ok(word)) if word.value != "auto" => root.error(
            word.line,
            format!("interfaces is {:?}; allowed: {INTERFACES}", word.value),
        ),
        Some(Err(list)) => {
            if list.value.is_empty() && backend != BackendChoice::DryRun {
                root.error(
                    list.line,
                    format!("interfaces is empty; allowed: {INTERFACES}"),
                );
            }
            for name in list.value {
                // A modem, a tunnel: it may come later, or be a mistake.
                if !host.has_interface(&name.value) && backend != BackendChoice::DryRun {
                    warnings.push(format!(
                        "interfaces: there is no interface {:?} now: it is protected as soon as it is there; this host has: {}",
                        name.value,
                        host.interfaces().join(", ")
                    ));
                }
                if name.value.is_empty() || name.value.len() > MAX_INTERFACE {
                    root.error(
                        name.line,
                        format!(
                            "interfaces: {:?} is no name of an interface; allowed: 1-{MAX_INTERFACE} bytes",
                            name.value
                        ),
                    );
                }
                interfaces.push(name.value);
            }
            interfaces.dedup();
        }
        _ => {
            auto = true;
            interfaces = host.default_route_interfaces();
            // At boot weir starts before the network: no mistake.
            if interfaces.is_empty() && backend != BackendChoice::DryRun {
                warnings.push(
                    "interfaces = \"auto\": no interface has a default route yet; each one is attached to when it gets one".to_owned(),
                );
            }
        }
    }
    let instance = root
        .string("instance", "a name of letters, digits, - and _")
        .map(|at| {
            if at.value.is_empty() || at.value.len() > 32 || !at.value.bytes().all(name_byte) {
                root.error(
                    at.line,
                    format!(
                        "instance is {:?}; allowed: 1-32 letters, digits, - and _",
                        at.value
                    ),
                );
            }
            at.value
        })
        .unwrap_or_else(|| "default".to_owned());
    Enforcement {
        interfaces,
        auto,
        backend,
        advice: Advice::default(),
        instance,
        observe: root.boolean("observe").unwrap_or(false),
        max_bans: root
            .integer("max_bans", 16..=16_000_000)
            .map_or(1_000_000, |at| at.value as usize),
        ipv4_length: root
            .integer("ipv4_length", 8..=31)
            .and_then(|at| u8::try_from(at.value).ok()),
        pin_root: path(root, "pin_root", DEFAULT_ROOT),
    }
}
