//! Where `fail2ban.conf` says that the server keeps its bans.

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
