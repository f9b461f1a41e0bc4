//! Programs that answer packets (`bpf/answer`), for the firewall to tail-call: what is
//! sent to decoy and tarpit ports, and what bans that reject deny. They belong to the
//! instance, over whose tables they read nothing: turning one on loads it and fills a
//! place in an array, once for each kind of program that calls it, and growth does
//! neither.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use libbpf_rs::{
    MapCore, MapFlags, libbpf_sys as sys,
    skel::{OpenSkel, Skel},
};

use crate::{
    abi,
    attachment::Hook,
    decoy,
    error::{Context, Error, Result},
    fault,
    maps::{Map, Maps},
    probe,
    programs::{self, frags_supported},
};

/// The packets that an answering program takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerProgram {
    /// Packets to decoy ports.
    Decoy,
    /// Packets denied by a ban that rejects.
    Reject,
    /// Packets to a virtual address, which a real is to answer.
    Balance,
    /// Packets to tarpit ports.
    Tarpit,
}

impl AnswerProgram {
    /// All answering programs.
    pub const ALL: [Self; 4] = [Self::Decoy, Self::Reject, Self::Balance, Self::Tarpit];

    /// The program's index in the arrays of tail calls.
    fn place(self) -> u32 {
        match self {
            Self::Decoy => abi::NEXT_DECOY,
            Self::Reject => abi::NEXT_REJECT,
            Self::Balance => abi::NEXT_BALANCE,
            Self::Tarpit => abi::NEXT_TARPIT,
        }
    }

    /// Does this kernel have what its program calls: SYN cookies (Linux 6.0) or reading
    /// frames of many pages (5.18), and tail calls from programs with functions? Asked
    /// until the kernel has said.
    pub fn is_supported(self) -> bool {
        static HELPERS: [OnceLock<bool>; AnswerProgram::ALL.len()] =
            [const { OnceLock::new() }; AnswerProgram::ALL.len()];
        let has_helpers = || match self {
            Self::Decoy | Self::Tarpit => decoy::supported(),
            Self::Reject => probe::has_helper(sys::BPF_PROG_TYPE_XDP, sys::BPF_FUNC_xdp_load_bytes),
            // Nothing that the firewall has not.
            Self::Balance => true,
        };
        tail_calls_supported().unwrap_or(false) && *HELPERS[self as usize].get_or_init(has_helpers)
    }
}

const _: () = assert!(abi::NEXT_MAX == AnswerProgram::ALL.len() as u32);

/// Can a program that calls functions of its own tail-call another one? On x86 since
/// Linux 5.10, on arm64 since 6.0.
///
/// # Errors
/// The kernel has no memory for the question, or no descriptor: it has not answered.
pub(crate) fn tail_calls_supported() -> io::Result<bool> {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    once_definite(&SUPPORTED, probe::tail_call_beside_function)
}

/// Whether what is asked for works, as the first answer said that depends on the kernel and
/// not on the moment.
fn once_definite(known: &OnceLock<bool>, ask: impl FnOnce() -> io::Result<()>) -> io::Result<bool> {
    if let Some(answer) = known.get() {
        return Ok(*answer);
    }
    let answer = match ask() {
        Ok(()) => true,
        Err(error) if is_of_the_moment(&error) => return Err(error),
        Err(_) => false,
    };
    Ok(*known.get_or_init(|| answer))
}

fn is_of_the_moment(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let descriptors = [Errno::MFILE, Errno::NFILE];
    matches!(
        error.kind(),
        io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    ) || descriptors
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// A kind of program that tail-calls: the kernel wants an array of its own for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    Xdp,
    XdpGeneric,
    Tc,
}

impl Caller {
    pub(crate) const ALL: [Self; 3] = [Self::Xdp, Self::XdpGeneric, Self::Tc];

    /// The caller at this hook; `None`: its program cannot have packets answered.
    pub(crate) fn at(hook: Hook) -> Option<Self> {
        match hook {
            Hook::Xdp => Some(Self::Xdp),
            // The two are one program where XDP takes no frames of many pages.
            Hook::XdpGeneric if frags_supported() => Some(Self::XdpGeneric),
            Hook::XdpGeneric => Some(Self::Xdp),
            Hook::Tcx | Hook::ClsBpf => Some(Self::Tc),
            Hook::Netfilter | Hook::Egress | Hook::EgressClsBpf => None,
        }
    }

    fn array(self) -> Map {
        match self {
            Self::Xdp => Map::AnswersXdp,
            Self::XdpGeneric => Map::AnswersGeneric,
            Self::Tc => Map::AnswersTc,
        }
    }

    fn program(self, answer: AnswerProgram) -> &'static str {
        match (self, answer) {
            (Self::Xdp | Self::XdpGeneric, AnswerProgram::Decoy) => "weir_decoy_xdp",
            (Self::Xdp | Self::XdpGeneric, AnswerProgram::Reject) => "weir_reject_xdp",
            (Self::Xdp | Self::XdpGeneric, AnswerProgram::Balance) => "weir_pool_xdp",
            (Self::Tc, AnswerProgram::Balance) => "weir_pool_tc",
            (Self::Tc, AnswerProgram::Decoy) => "weir_decoy_tc",
            (Self::Tc, AnswerProgram::Reject) => "weir_reject_tc",
            (Self::Xdp | Self::XdpGeneric, AnswerProgram::Tarpit) => "weir_tarpit_xdp",
            (Self::Tc, AnswerProgram::Tarpit) => "weir_tarpit_tc",
        }
    }
}

/// One slot of an array of programs.
#[derive(Debug, Clone, Default)]
enum ArraySlot {
    #[default]
    Empty,
    Filled,
    /// Empty, and why.
    Refused(String),
}

/// Which programs are there, and which are wanted: one for all generations of an
/// instance, as are the maps.
#[derive(Default)]
pub(crate) struct Answers {
    wanted: [AtomicBool; AnswerProgram::ALL.len()],
    slots: Mutex<[[ArraySlot; AnswerProgram::ALL.len()]; Caller::ALL.len()]>,
    limit_shift: AtomicU32,
}

impl Answers {
    /// As an earlier daemon of the same build left them.
    pub(crate) fn adopt(maps: &Maps) -> Self {
        let answers = Self::default();
        for caller in Caller::ALL {
            for answer in AnswerProgram::ALL {
                let key = answer.place().to_ne_bytes();
                let there = maps.get(caller.array()).lookup(&key, MapFlags::ANY);
                if let Ok(Some(_)) = there {
                    answers.slots()[caller as usize][answer as usize] = ArraySlot::Filled;
                }
            }
        }
        answers
    }

    fn slots(&self) -> MutexGuard<'_, [[ArraySlot; AnswerProgram::ALL.len()]; Caller::ALL.len()]> {
        self.slots.lock().expect("no holder of this lock panics")
    }

    /// Sets the limits of programs that are loaded from now on: see `cfg.limit_shift`.
    pub(crate) fn shift_limits(&self, shift: u32) {
        self.limit_shift.store(shift, Ordering::Relaxed);
    }

    pub(crate) fn want(&self, answer: AnswerProgram, wanted: bool) {
        self.wanted[answer as usize].store(wanted, Ordering::Relaxed);
    }

    pub(crate) fn is_wanted(&self, answer: AnswerProgram) -> bool {
        self.wanted[answer as usize].load(Ordering::Relaxed)
    }

    /// Why this kind of program does not answer; `None`: it does.
    pub(crate) fn lacks(&self, caller: Caller, answer: AnswerProgram) -> Option<String> {
        match &self.slots()[caller as usize][answer as usize] {
            ArraySlot::Empty => Some("it is not loaded yet".into()),
            ArraySlot::Filled => None,
            ArraySlot::Refused(why) => Some(why.clone()),
        }
    }

    /// Loads the program for this caller and puts it into its place, unless it is there.
    ///
    /// # Errors
    /// The kernel refuses it: then nothing is answered there.
    pub(crate) fn fill(
        &self,
        caller: Caller,
        answer: AnswerProgram,
        maps: &Maps,
        lasting_seed: [u64; 3],
    ) -> Result<()> {
        // Held while it is loaded: of two who ask at once one loads it.
        let mut slots = self.slots();
        let slot = &mut slots[caller as usize][answer as usize];
        if let ArraySlot::Filled = slot {
            return Ok(());
        }
        let what = || format!("load the program {}", caller.program(answer));
        let loaded = match answer.is_supported() {
            true => {
                let shift = self.limit_shift.load(Ordering::Relaxed);
                load(caller, answer, maps, lasting_seed, shift)
            }
            false => Err(io::ErrorKind::Unsupported.into()),
        };
        let filled = loaded
            .map_err(|e| Error::new(what(), e))
            .and_then(|program| {
                let value = program.as_raw_fd().to_ne_bytes();
                maps.get(caller.array())
                    .update(&answer.place().to_ne_bytes(), &value, MapFlags::ANY)
                    .context(what)
            });
        *slot = match &filled {
            Ok(()) => ArraySlot::Filled,
            Err(error) => {
                // Not what another build left there either: it is said that none is.
                let _ = empty(caller, answer, maps);
                ArraySlot::Refused(error.to_string())
            }
        };
        filled
    }

    /// Takes the program away wherever it is: packets leave as if nobody answered.
    pub(crate) fn clear(&self, answer: AnswerProgram, maps: &Maps) -> Result<()> {
        let mut slots = self.slots();
        for caller in Caller::ALL {
            empty(caller, answer, maps)?;
            slots[caller as usize][answer as usize] = ArraySlot::Empty;
        }
        Ok(())
    }
}

/// Takes away what is in a place, whoever put it there.
fn empty(caller: Caller, answer: AnswerProgram, maps: &Maps) -> Result<()> {
    let (array, key) = (maps.get(caller.array()), answer.place().to_ne_bytes());
    let what = || format!("take {} away", caller.program(answer));
    match array.lookup(&key, MapFlags::ANY).context(what)? {
        Some(_) => array.delete(&key).context(what),
        None => Ok(()),
    }
}

fn load(
    caller: Caller,
    answer: AnswerProgram,
    maps: &Maps,
    lasting_seed: [u64; 3],
    limit_shift: u32,
) -> io::Result<OwnedFd> {
    if answer == AnswerProgram::Decoy {
        fault::refuse("load-decoys")?;
    }
    let other = |e: libbpf_rs::Error| io::Error::other(format!("{e:#}"));
    let name = caller.program(answer);
    let mut storage = MaybeUninit::uninit();
    let mut open = maps
        .open_answer(&mut storage)
        .map_err(|e| io::Error::other(e.to_string()))?;
    let rodata = open.maps.rodata_data.as_deref_mut();
    let cfg = &mut rodata.expect("the object has rodata").cfg;
    cfg.lasting_seed = lasting_seed;
    cfg.limit_shift = limit_shift;
    cfg.flow_mask = maps.get(Map::BalanceFlows).max_entries() - 1;
    programs::choose(open.open_object_mut(), name, caller == Caller::Xdp);
    let skel = open.load().map_err(other)?;
    programs::loaded(skel.object(), name)
}

#[cfg(test)]
mod tests {
    use libbpf_rs::skel::SkelBuilder;

    use super::*;
    use crate::skeleton::answer::AnswerSkelBuilder;

    #[test]
    fn only_what_the_kernel_said_for_good_is_kept() {
        let known = OnceLock::new();
        for errno in [
            rustix::io::Errno::NOMEM,
            rustix::io::Errno::AGAIN,
            rustix::io::Errno::MFILE,
        ] {
            once_definite(&known, || Err(errno.into())).unwrap_err();
            assert!(known.get().is_none(), "{errno}");
        }
        assert!(once_definite(&known, || Ok(())).unwrap());
        assert!(once_definite(&known, || Err(rustix::io::Errno::INVAL.into())).unwrap());
        let known = OnceLock::new();
        assert!(!once_definite(&known, || Err(rustix::io::Errno::INVAL.into())).unwrap());
        assert!(!once_definite(&known, || Ok(())).unwrap());
    }

    #[test]
    fn every_program_of_the_object_answers_somebody_and_no_other() {
        let mut storage = MaybeUninit::uninit();
        let mut open = AnswerSkelBuilder::default().open(&mut storage).unwrap();
        let programs = open.open_object_mut().progs();
        let mut of_object: Vec<_> = programs
            .map(|p| p.name().to_str().unwrap().to_owned())
            .collect();
        let mut ours: Vec<_> = Caller::ALL
            .iter()
            .flat_map(|caller| AnswerProgram::ALL.map(|answer| caller.program(answer).to_owned()))
            .collect();
        of_object.sort();
        ours.sort();
        ours.dedup();
        assert_eq!(ours, of_object);
        for hook in Hook::ALL {
            let answers = !hook.is_egress() && hook != Hook::Netfilter;
            assert_eq!(Caller::at(hook).is_some(), answers, "{}", hook.name());
        }
    }
}
