//! What of a sound configuration cannot be used on this host as it is: a
//! database that names no countries, a directory that cannot be written. The
//! daemon would refuse to start, or go without; `weir check` says so before.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use caps::{CapSet, Capability};
use weir_bpf::pins::{USUAL_BPFFS, is_bpffs};
use weir_enforce::kernel::check_interface;

use crate::{
    access::geo,
    config::Config,
    host::{Host, HostFacts},
    identity,
    instance::is_root,
    jails::SourceChoice,
    token::{self, TokenError},
};

/// What a trial has found.
#[derive(Debug, Default)]
pub struct Trial {
    /// Obstacles to a start, or to some of what the configuration asks for, in words.
    pub problems: Vec<String>,
    /// What this user may not look at, in words: only another one can say if it is right.
    pub unseen: Vec<String>,
}

/// All obstacles to a start that can be found. Makes, writes and mounts nothing.
pub fn trial(config: &Config) -> Trial {
    let (mut found, mut unseen) = (Vec::new(), Vec::new());
    if let Some(geofence) = &config.geofence {
        found.extend(geo::complaints(geofence));
    }
    for (jail, why) in config.fail2ban.iter().flat_map(|fail2ban| &fail2ban.broken) {
        found.push(format!("[fail2ban]: jail {jail} is not run: {why}"));
    }
    // Fail2ban itself does not start for want of one.
    for jail in config.fail2ban.iter().flat_map(|fail2ban| &fail2ban.jails) {
        let SourceChoice::Files(patterns) = &jail.source else {
            continue;
        };
        let own = config.ban_log().map(|path| path.display().to_string());
        let can_read = |pattern: &String| Some(pattern) == own.as_ref() || Host.can_read(pattern);
        if !patterns.iter().any(can_read) {
            found.push(format!(
                "[fail2ban]: jail {} guards nothing: none of its logs can be read ({}); it begins once one is there; enabled = false in jail.local turns it off",
                jail.name,
                patterns.join(", ")
            ));
        }
    }
    if let Some(app) = &config.app {
        found.extend(identity::complaints(app));
    }
    if let Some(token) = &config.token {
        found.extend(token::complaints(token));
        if token::signs(token) && config.app.as_ref().is_some_and(identity::is_queued) {
            found.push(TokenError::NotAtLevel.to_string());
        }
        // Without them no start and no reload is done.
        match token::read_secrets(token) {
            Err(error) if error.is_denied() && !is_root() => unseen.push(format!(
                "{error}: whether there are keys, and good ones, root alone can say (sudo weir check)"
            )),
            Err(error) => found.push(error.to_string()),
            Ok(_) => (),
        }
    }
    let state = &config.state_dir;
    writable("state_dir", state, &mut found);
    if state.join("weir.db").exists() {
        writable("state_dir", &state.join("weir.db"), &mut found);
    }
    if let Some(dir) = config.socket.parent() {
        writable("socket", dir, &mut found);
    }
    let enforcement = &config.enforcement;
    if enforcement.backend.is_bpf() {
        pins(&enforcement.pin_root, &mut found);
    }
    for name in &enforcement.interfaces {
        if let Err(error) = check_interface(name, enforcement.backend) {
            found.push(format!("interfaces: {error}"));
        }
    }
    Trial {
        problems: found,
        unseen,
    }
}

/// The nearest part of a path that is there.
fn nearest(path: &Path) -> Option<(PathBuf, fs::Metadata)> {
    path.ancestors()
        .find_map(|part| Some((part.to_owned(), fs::metadata(part).ok()?)))
}

/// Can the daemon write there, which gives up root's right to write everywhere?
/// Whoever asks without being root, and without owning the place, cannot know.
fn writable(key: &str, path: &Path, found: &mut Vec<String>) {
    let Some((part, about)) = nearest(path) else {
        return;
    };
    let own = rustix::process::geteuid().as_raw();
    if !is_root() && about.uid() != own {
        return;
    }
    let mut say = |why: String| found.push(format!("{key}: {}: {why}", part.display()));
    if part != path && !about.is_dir() {
        return say("it is no directory".to_owned());
    }
    let group = rustix::process::getegid().as_raw();
    let mode = about.mode();
    let allowed = match () {
        () if about.uid() == own => mode & 0o200 != 0,
        () if about.gid() == group => mode & 0o020 != 0,
        () => mode & 0o002 != 0,
    };
    if !allowed {
        return say(format!(
            "the daemon cannot write there (user {}, mode {:o})",
            about.uid(),
            mode & 0o7777
        ));
    }
    match rustix::fs::access(&part, rustix::fs::Access::WRITE_OK) {
        Ok(()) => {}
        Err(error) => say(format!("the daemon cannot write there: {error}")),
    }
}

/// Is there a BPF file system for the pins, or can the daemon mount it?
fn pins(root: &Path, found: &mut Vec<String>) {
    if !is_root() {
        return;
    }
    let at = root.parent().unwrap_or(root);
    let problem = match is_bpffs(at) {
        Ok(true) => return,
        Ok(false) if at == Path::new(USUAL_BPFFS) => {
            let may = caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_ADMIN);
            if may.unwrap_or(false) {
                return;
            }
            "it is no BPF file system, and mounting it is not allowed here".to_owned()
        }
        Ok(false) => "it is no BPF file system".to_owned(),
        Err(error) => error.to_string(),
    };
    // Over another directory a mount would hide what is in it.
    let mend = match at == Path::new(USUAL_BPFFS) {
        true => format!("as root: mount -t bpf bpf {USUAL_BPFFS}"),
        false => format!("leave pin_root out, or set it to a directory in {USUAL_BPFFS}"),
    };
    found.push(format!("pin_root: {}: {problem}; {mend}", at.display()));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_that_is_not_there_is_judged_by_the_one_it_will_be_in() {
        let dir = tempfile::tempdir().unwrap();
        let mut found = Vec::new();
        writable("state_dir", &dir.path().join("a/b"), &mut found);
        assert_eq!(found, Vec::<String>::new());
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        writable("state_dir", &file.join("state"), &mut found);
        assert!(found.pop().unwrap().contains("it is no directory"));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).unwrap();
        writable("state_dir", &dir.path().join("a"), &mut found);
        assert!(found.pop().unwrap().contains("cannot write there"));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn pins_need_a_bpf_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let mut found = Vec::new();
        pins(&dir.path().join("weir"), &mut found);
        if is_root() {
            assert!(found[0].contains("it is no BPF file system"), "{found:?}");
        }
    }
}
