//! What can be said of a real interface: its driver, what that carries, what
//! is attached. Looking changes nothing and sends nothing. Trying whether a
//! hook attaches does change something: several drivers stop and start their
//! queues for a native XDP program, so [`attach`] is for who asked for it.

use std::io;

use weir_bpf::{
    attachment::{self, Hook, Link},
    device::{self, Device},
    object, offload, probe,
};
use weir_enforce::hook_selection::{self, Advice};

use super::{
    CalibrateError,
    advice::advice,
    result_file::{SeenInterface, Trial},
    target::empty_path,
};

/// Looks at an interface.
pub fn look(name: &str, kernel: &str) -> Result<SeenInterface, CalibrateError> {
    let what = format!("look at interface {name:?}");
    let device = Device::find(name).map_err(CalibrateError::system(what))?;
    let native = probe::native_xdp(device.index).filter(|native| {
        // Before, no driver could say so.
        native.supported || at_least(kernel, (6, 3))
    });
    let programs = attachment::xdp_program_on(device.index)
        .map(|(id, mode)| format!("{mode}: {}", program(id, &object::program_name(id))))
        .into_iter()
        .chain(
            probe::tcx_programs(device.index)
                .into_iter()
                .flatten()
                .map(|(id, name)| format!("tcx: {}", program(id, &name))),
        )
        .collect();
    let mut seen = SeenInterface {
        name: name.to_owned(),
        ethernet: device.is_ethernet(),
        mtu: device::mtu(name).ok(),
        native_xdp: native.map(|native| native.supported),
        native_frags: native.map(|native| native.frags),
        offloads: offloads(name),
        queues: offload::channels(name).ok().map(|c| [c.now, c.most]),
        programs,
        tried: Vec::new(),
        advice: Vec::new(),
        driver: device.driver,
    };
    seen.advice = advice(&seen, processors());
    Ok(seen)
}

/// The offloads that are on, by ethtool's names.
fn offloads(name: &str) -> Vec<String> {
    let on = offload::offloads(name).unwrap_or_default();
    let known = [("gro", on.gro), ("rx-gro-hw", on.gro_hw), ("lro", on.lro)];
    let on = known.into_iter().filter(|(_, on)| *on);
    on.map(|(name, _)| name.to_owned()).collect()
}

fn processors() -> u32 {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Which hook `backend = "auto"` would take there by these figures, and why.
pub fn choice(name: &str, advice: &Advice) -> Option<String> {
    let device = Device::find(name).ok()?;
    let (_, why) = hook_selection::candidates(advice, name, &device);
    Some(why)
}

fn program(id: u32, name: &str) -> String {
    match name {
        "" => format!("id {id}"),
        name => format!("{name} (id {id})"),
    }
}

/// Is this kernel release `6.18.44-rc1` at least such a version?
fn at_least(release: &str, version: (u32, u32)) -> bool {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|digits| digits.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= version
}

/// Attaches weir's packet path with empty tables, which passes everything, by
/// each hook in turn and takes it off at once.
pub fn attach(seen: &mut SeenInterface) -> Result<(), CalibrateError> {
    let what = format!("look at interface {:?}", seen.name);
    let device = Device::find(&seen.name).map_err(CalibrateError::system(what))?;
    let path = empty_path(16)?;
    // Also what is malformed.
    path.table.set_observe(true);
    // Filters of tc need nothing of the driver.
    for hook in [Hook::Xdp, Hook::XdpGeneric, Hook::Tcx] {
        if !seen.ethernet {
            break;
        }
        let attached = path.program(hook).map_err(io::Error::other);
        let attached = attached.and_then(|program| Link::attach(program, device.index, hook));
        let refused = match attached {
            Ok(link) => {
                link.detach();
                None
            }
            Err(error) => Some(error.to_string()),
        };
        // Nothing of ours or of others was there: the driver itself answered.
        if hook == Hook::Xdp && attachment::xdp_program_on(device.index).is_none() {
            seen.native_xdp = Some(refused.is_none());
        }
        seen.tried.push(Trial {
            hook: hook.name().to_owned(),
            refused,
        });
    }
    seen.advice = advice(seen, processors());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_compare_by_their_numbers() {
        for (release, old) in [
            ("6.18.44", false),
            ("6.3.0-rc1", false),
            ("6.2.16-3-pve", true),
            ("5.15.0-130-generic", true),
            ("10.0", false),
            ("7", false),
            ("", true),
        ] {
            assert_eq!(at_least(release, (6, 3)), !old, "{release}");
        }
    }

    #[test]
    fn loopback_can_be_looked_at() {
        let lo = look("lo", "6.18.44").unwrap();
        assert_eq!((lo.name.as_str(), lo.ethernet), ("lo", true), "{lo:?}");
        let error = look("no-such-device", "6.18.44").unwrap_err().to_string();
        assert!(error.contains("no-such-device"), "{error}");
    }
}
