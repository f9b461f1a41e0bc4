//! The program that rules of iptables refer to (`bpf/token/gate.bpf.c`). It is pinned
//! once, beside the tables and not with them: rules made with it follow later daemons.

use std::{
    fs,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    path::{Path, PathBuf},
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, OpenObject,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    error::{Context, Result},
    object, pins,
    skeleton::gate::GateSkelBuilder,
};

/// Below an instance's pins; `detach` removes it with the tables.
pub(super) const DIRECTORY: &str = "token-iptables";
const PROGRAM: &str = "match";
const TABLE: &str = "next";

/// Where the program is pinned that `iptables -m bpf --object-pinned` takes.
pub fn match_pin(root: &Path, instance: &str) -> PathBuf {
    directory(&root.join(pins::escape(instance))).join(PROGRAM)
}

fn directory(of_instance: &Path) -> PathBuf {
    of_instance.join(DIRECTORY)
}

/// Is there one, that rules may refer to?
pub(super) fn exists(of_instance: &Path) -> bool {
    directory(of_instance).exists()
}

/// Has rules with the pinned program ask `matcher` from now on; without such a program one
/// is pinned.
///
/// # Errors
/// The kernel refuses something, or the pins are not ours.
pub(super) fn put(of_instance: &Path, matcher: BorrowedFd<'_>) -> Result<()> {
    let what = || "pin the match of [token] for iptables".to_owned();
    let dir = directory(of_instance);
    pins::make_ours(&dir)?;
    let (program, table) = (dir.join(PROGRAM), dir.join(TABLE));
    if !program.exists() {
        // A daemon that died between the two.
        let _ = fs::remove_file(&table);
        let mut storage = MaybeUninit::<OpenObject>::uninit();
        let open = GateSkelBuilder::default().open(&mut storage);
        let skel = open.context(what)?.load().context(what)?;
        object::pin(skel.maps.gate_match.as_fd(), &table)?;
        set(
            &MapHandle::try_from(&skel.maps.gate_match).context(what)?,
            matcher,
        )?;
        return object::pin(skel.progs.weir_token_gate.as_fd(), &program);
    }
    set(&MapHandle::from_pinned_path(&table).context(what)?, matcher)
}

fn set(table: &MapHandle, matcher: BorrowedFd<'_>) -> Result<()> {
    let matcher = matcher.as_raw_fd().to_ne_bytes();
    table
        .update(&[0; 4], &matcher, MapFlags::ANY)
        .context(|| "have rules of iptables ask the match of [token]".into())
}
