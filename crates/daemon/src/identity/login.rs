//! The login over SSH in which an administrator works, and rules that would shut it out.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use weir_bpf::identity::CgroupAt;
use weir_identity::{AppConfig, Login};

use super::digest_of;
use crate::host::{cgroup_of, parent_of};

/// A login over SSH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshLogin {
    /// Where who logged in is.
    pub peer: IpAddr,
    /// The port of this host that the connection came in at.
    pub port: u16,
    /// The process that accepts connections there, if it is still to be seen.
    server: Option<u32>,
}

impl SshLogin {
    /// The one that this process came out of, as sshd tells its children (`SSH_CONNECTION`,
    /// sshd(8)), also behind sudo, which takes that variable away.
    pub fn of_this_process() -> Option<Self> {
        let (mut found, mut server) = (None, None);
        for pid in ancestors() {
            if found.is_none() {
                let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                found = connection(&environment);
            }
            // The one that listens is above those of the connection.
            let exe = fs::read_link(format!("/proc/{pid}/exe"));
            if exe.is_ok_and(|exe| exe.file_name().is_some_and(is_server)) {
                server = Some(pid);
            }
        }
        let (peer, port) = found?;
        Some(Self { peer, port, server })
    }
}

/// As they are called, also once an upgrade has replaced the file.
fn is_server(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"sshd")
}

/// This process, its parent, and so on.
fn ancestors() -> impl Iterator<Item = u32> {
    // No host nests deeper.
    const DEPTH: usize = 32;
    let first = Some(std::process::id());
    std::iter::successors(first, |pid| parent_of(*pid)).take(DEPTH)
}

/// `SSH_CONNECTION=192.0.2.9 50022 192.0.2.1 22` among the variables of a process.
fn connection(environment: &[u8]) -> Option<(IpAddr, u16)> {
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| variable.strip_prefix(b"SSH_CONNECTION="))?;
    let value = String::from_utf8_lossy(value);
    let mut words = value.split(' ');
    let peer = words.next()?.split('%').next()?.parse().ok()?;
    Some((peer, words.nth(2)?.parse().ok()?))
}

/// What of the rules would keep out a login as this one, for people; `None`: nothing, or
/// that cannot be told from here.
pub fn shuts_out(config: &AppConfig, login: &SshLogin) -> Option<String> {
    let server = login.server?;
    let below = CgroupAt::open(config.cgroup.as_deref()).ok()?.below_root();
    let group = cgroup_of(server)?;
    if !Path::new(&group).starts_with(&below) {
        return None;
    }
    let exe = PathBuf::from(format!("/proc/{server}/exe"));
    let path = fs::read_link(&exe).ok()?.display().to_string();
    let path = path.strip_suffix(" (deleted)").unwrap_or(&path);
    let of = Login {
        peer: login.peer,
        port: login.port,
        server: digest_of(&exe).ok()?,
    };
    let by = config.denies_login(&of)?;
    let port = login.port;
    let by = match by {
        "default" | "prompt_timeout" => format!("{by} in [app]"),
        rule => format!("[app.rules.{rule}]"),
    };
    Some(format!(
        "{by} would end this login, or have it wait, and the next one ({path} at port {port}/tcp, from {}): put a rule before it with verdict = \"allow\", path = \"{path}\", direction = \"in\", ports = [\"{port}/tcp\"]",
        login.peer
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_read_of_what_sshd_tells_its_children() {
        for (environment, expected) in [
            (
                &b"A=1\0SSH_CONNECTION=192.0.2.9 50022 192.0.2.1 22\0B=2"[..],
                Some(("192.0.2.9", 22)),
            ),
            (
                b"SSH_CONNECTION=fe80::1%eth0 50022 fe80::2%eth0 2222",
                Some(("fe80::1", 2222)),
            ),
            (b"SSH_CONNECTION=UNKNOWN 65535 UNKNOWN 65535", None),
            (b"SSH_CONNECTION=192.0.2.9 50022 192.0.2.1", None),
            (b"SSH_CONNECTION=192.0.2.9 50022 192.0.2.1 99999", None),
            (b"XSSH_CONNECTION=192.0.2.9 50022 192.0.2.1 22", None),
            (b"", None),
        ] {
            let expected = expected.map(|(peer, port)| (peer.parse().unwrap(), port));
            assert_eq!(connection(environment), expected);
        }
    }
}
