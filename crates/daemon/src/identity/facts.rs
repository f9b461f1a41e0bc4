//! What the rules of `[app]` name of this host.

use std::{collections::BTreeSet, path::Path};

use weir_identity::{
    Digest,
    config::Facts,
    hash::{self, Limits},
    packages::Records,
};

/// This host's users and files.
pub struct HostFiles;

/// The SHA-256 of a file as it is now.
///
/// # Errors
/// Why it has none, for people.
pub fn digest_of(path: &Path) -> Result<Digest, String> {
    let hashed = hash::path(path, Limits::default());
    hashed
        .map(|hashed| hashed.digest)
        .map_err(|e| e.to_string())
}

impl Facts for HostFiles {
    fn user(&self, name: &str) -> Option<u32> {
        let user = nix::unistd::User::from_name(name).ok()??;
        Some(user.uid.as_raw())
    }

    fn digest(&self, path: &Path) -> Result<Option<Digest>, String> {
        let is_missing = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
        match std::fs::metadata(path) {
            Err(error) if is_missing(&error) => Ok(None),
            _ => digest_of(path).map(Some),
        }
    }

    fn never_runs(&self, path: &Path) -> Option<String> {
        super::never_runs(path)
    }

    fn packages(&self) -> Result<BTreeSet<String>, String> {
        match Records::default().names() {
            (_, Some(error)) => Err(format!("records of packages cannot be read: {error}")),
            (names, None) => Ok(names),
        }
    }
}
