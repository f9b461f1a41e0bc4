//! Where `fail2ban.conf` says that the server keeps its bans, and writes its log.

use std::path::{Path, PathBuf};

use crate::{error::Error, files::Files, includes, interpolate};

/// Where it is if nothing says otherwise.
const USUAL: &str = "/var/lib/fail2ban/fail2ban.sqlite3";

/// The database of the server whose configuration is below `root`; `None` if it keeps none.
///
/// # Errors
/// A mistake in fail2ban.conf.
pub fn database(files: &dyn Files, root: &Path) -> Result<Option<PathBuf>, Error> {
    let Some(layers) = includes::read(files, &root.join("fail2ban"))? else {
        return Ok(Some(USUAL.into()));
    };
    let text = interpolate::get(&layers, "Definition", "dbfile", &interpolate::NoVars)?;
    let path = text.map(|text| text.joined().trim().to_owned());
    Ok(match path.as_deref() {
        None | Some("") => Some(USUAL.into()),
        Some("None" | "none" | ":memory:") => None,
        Some(path) => Some(path.into()),
    })
}

/// The file that the server whose configuration is below `root` writes its log to; `None`
/// if it is none, as of `SYSLOG`.
///
/// # Errors
/// A mistake in fail2ban.conf.
pub fn log_target(files: &dyn Files, root: &Path) -> Result<Option<String>, Error> {
    const USUAL: &str = "/var/log/fail2ban.log";
    let Some(layers) = includes::read(files, &root.join("fail2ban"))? else {
        return Ok(Some(USUAL.to_owned()));
    };
    let text = interpolate::get(&layers, "Definition", "logtarget", &interpolate::NoVars)?;
    let target = text.map_or_else(|| USUAL.to_owned(), |text| text.joined());
    let path = target.split('[').next().unwrap_or_default().trim();
    Ok(path.starts_with('/').then(|| path.to_owned()))
}
