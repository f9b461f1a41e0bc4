//! The programs of a generation, over maps that are there. A program is loaded, and
//! its verifier paid for, when its hook first asks for it: a host uses one hook or
//! two of seven.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock},
    time::{Duration, Instant},
};

use libbpf_rs::{
    Object, OpenObject, libbpf_sys as sys,
    skel::{OpenSkel, Skel},
};

use crate::{
    attachment::Hook,
    error::{Error, Result},
    maps::Maps,
    object, probe,
};

/// Why a kernel has no netfilter program.
pub const NO_NETFILTER: &str = "this kernel has no netfilter hook for BPF (probe: a BPF program of type netfilter; Linux 6.4, CONFIG_NETFILTER_BPF_LINK)";

/// A fingerprint of the packet path's sources in this binary.
pub fn build_id() -> u64 {
    env!("WEIR_BPF_BUILD")
        .parse()
        .expect("the build script writes a number")
}

/// Are there BPF programs of type netfilter, and what they read packets with
/// (Linux 6.4)? Verifiers before that one are spared what they find hard.
pub fn netfilter_supported() -> bool {
    probe::has_program_type(sys::BPF_PROG_TYPE_NETFILTER)
}

/// Does XDP take frames of more than a page here (Linux 5.18)? Without it native
/// XDP attaches to an interface with jumbo frames only where the driver has
/// pages that large.
pub(crate) fn frags_supported() -> bool {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    *SUPPORTED
        .get_or_init(|| probe::has_helper(sys::BPF_PROG_TYPE_XDP, sys::BPF_FUNC_xdp_get_buff_len))
}

/// A program of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Xdp,
    /// The same for generic mode, where no program may be for frames of many pages.
    XdpGeneric,
    Tcx,
    Out,
    Netfilter,
}

impl Program {
    const ALL: [Self; 5] = [
        Self::Xdp,
        Self::XdpGeneric,
        Self::Tcx,
        Self::Out,
        Self::Netfilter,
    ];

    /// The program of a hook.
    fn of(hook: Hook) -> Self {
        match hook {
            Hook::Xdp => Self::Xdp,
            Hook::XdpGeneric if frags_supported() => Self::XdpGeneric,
            // The two would be the same.
            Hook::XdpGeneric => Self::Xdp,
            Hook::Tcx | Hook::ClsBpf => Self::Tcx,
            Hook::Netfilter => Self::Netfilter,
            Hook::Egress | Hook::EgressClsBpf => Self::Out,
        }
    }

    /// The program's name in the object.
    fn name(self) -> &'static str {
        match self {
            Self::Xdp => "weir_xdp",
            Self::XdpGeneric => "weir_xdp_generic",
            Self::Tcx => "weir_tcx",
            Self::Out => "weir_out",
            Self::Netfilter => "weir_netfilter",
        }
    }

    fn pin(self) -> &'static str {
        self.name().strip_prefix("weir_").expect("all have it")
    }
}

/// A program that the kernel refused is asked for again after this: interfaces are
/// looked after each second, and a verifier takes a fifth of one.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// When a program was refused, and the kernel's words.
type Refusals = [Option<(Instant, String)>; Program::ALL.len()];

/// The programs that are loaded.
#[derive(Default)]
pub(crate) struct Programs {
    loaded: [OnceLock<OwnedFd>; Program::ALL.len()],
    /// Held while one is loaded.
    loading: Mutex<Refusals>,
    pins: OnceLock<PathBuf>,
}

impl Programs {
    /// Opens the programs that are pinned in `dir`.
    pub(crate) fn open(dir: &Path) -> Self {
        let programs = Self::default();
        for program in Program::ALL {
            // One that is not there has not been asked for.
            if let Ok(fd) = object::open_pin(&dir.join(program.pin())) {
                let _ = programs.loaded[program as usize].set(fd);
            }
        }
        let _ = programs.pins.set(dir.to_owned());
        programs
    }

    /// Is the program for a hook loaded?
    pub(crate) fn has(&self, hook: Hook) -> bool {
        self.loaded[Program::of(hook) as usize].get().is_some()
    }

    /// Pins those that are loaded in `dir`, and from now on each that is.
    pub(crate) fn pin(&self, dir: &Path) -> Result<()> {
        let _alone = self.loading.lock().expect("no holder of this lock panics");
        for program in Program::ALL {
            if let Some(fd) = self.loaded[program as usize].get() {
                object::pin(fd.as_fd(), &dir.join(program.pin()))?;
            }
        }
        let _ = self.pins.set(dir.to_owned());
        Ok(())
    }

    /// The program for a hook, loaded over these maps if it is not yet.
    ///
    /// # Errors
    /// The kernel refuses it, or `allowed` says why it is not to be loaded.
    pub(crate) fn get(
        &self,
        hook: Hook,
        maps: &Maps,
        allowed: impl FnOnce() -> std::result::Result<(), String>,
    ) -> Result<BorrowedFd<'_>> {
        let program = Program::of(hook);
        let place = &self.loaded[program as usize];
        if let Some(fd) = place.get() {
            return Ok(fd.as_fd());
        }
        let mut refusals = self.loading.lock().expect("no holder of this lock panics");
        if place.get().is_none() {
            let what = || format!("load the program {} for {}", program.name(), hook.name());
            allowed().map_err(|why| Error::refused(what(), why))?;
            let refusal = &mut refusals[program as usize];
            if let Some((at, why)) = refusal
                && at.elapsed() < ASK_AGAIN
            {
                return Err(Error::refused(what(), why.clone()));
            }
            let fd = load(program, maps).map_err(|e| {
                *refusal = Some((Instant::now(), e.to_string()));
                Error::new(what(), e)
            })?;
            if let Some(dir) = self.pins.get() {
                // Without its pin the next daemon loads it again, and what is
                // attached is held by its link.
                let _ = object::pin(fd.as_fd(), &dir.join(program.pin()));
            }
            let _ = place.set(fd);
        }
        Ok(place.get().expect("it was just put there").as_fd())
    }
}

fn load(program: Program, maps: &Maps) -> std::io::Result<OwnedFd> {
    let other = |e: libbpf_rs::Error| std::io::Error::other(format!("{e:#}"));
    let mut storage = MaybeUninit::uninit();
    let mut open = maps
        .open_firewall(&mut storage)
        .map_err(|e| std::io::Error::other(e.to_string()))?;
    choose(
        open.open_object_mut(),
        program.name(),
        program == Program::Xdp,
    );
    let skel = open.load().map_err(other)?;
    loaded(skel.object(), program.name())
}

/// Has an object load this program; `native`: for frames of many pages, where XDP takes
/// them.
pub(crate) fn choose(object: &mut OpenObject, name: &str, native: bool) {
    for mut program in object.progs_mut() {
        if program.name() == name {
            program.set_autoload(true);
            if native && frags_supported() {
                program.set_flags(sys::BPF_F_XDP_HAS_FRAGS);
            }
        }
    }
}

/// A program that was chosen, of the object that loaded it.
pub(crate) fn loaded(object: &Object, name: &str) -> std::io::Result<OwnedFd> {
    let mut programs = object.progs();
    let loaded = programs.find(|loaded| loaded.name() == name);
    loaded
        .expect("the object has it")
        .as_fd()
        .try_clone_to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skeleton::firewall::FirewallSkelBuilder;
    use libbpf_rs::skel::SkelBuilder;

    #[test]
    fn every_program_of_the_object_has_a_hook_and_no_other() {
        let mut storage = MaybeUninit::uninit();
        let mut open = FirewallSkelBuilder::default().open(&mut storage).unwrap();
        let object = open.open_object_mut();
        let of_object = object
            .progs()
            .map(|p| p.name().to_str().unwrap().to_owned());
        let mut of_object: Vec<_> = of_object.collect();
        let mut ours: Vec<_> = Program::ALL.iter().map(|p| p.name().to_owned()).collect();
        of_object.sort();
        ours.sort();
        assert_eq!(ours, of_object);
        for hook in Hook::ALL {
            assert!(Program::ALL.contains(&Program::of(hook)));
        }
    }

    /// An index into the loaded ones.
    #[test]
    fn programs_are_in_their_order() {
        for (n, program) in Program::ALL.into_iter().enumerate() {
            assert_eq!(program as usize, n);
        }
    }
}
