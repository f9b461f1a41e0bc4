//! From where somebody is logged in who can undo what weir does: root, and the
//! members of the groups that sudo and polkit let become root. By utmp, and by
//! logind where there is no utmp. Users and groups are those of /etc/passwd and
//! /etc/group: who stands in a directory service only is not known here, since
//! asking it each second could wait for the network.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Debian and Ubuntu; Fedora, Arch and SUSE; Ubuntu before 12.04.
const GROUPS: [&str; 3] = ["sudo", "wheel", "admin"];

/// More of logind's sessions are not looked at.
const MAX_SESSIONS: usize = 4096;

/// Users that may become root, by number and name.
#[derive(Default)]
struct Admins(BTreeMap<String, String>);

impl Admins {
    fn read() -> Self {
        let text = |file: &str| fs::read_to_string(file).unwrap_or_default();
        Self::of(&text("/etc/passwd"), &text("/etc/group"))
    }

    /// From the texts of /etc/passwd and /etc/group.
    fn of(passwd: &str, group: &str) -> Self {
        let mut groups = BTreeMap::new();
        let mut members = BTreeMap::new();
        for line in group.lines() {
            let mut fields = line.split(':');
            let (Some(name), Some(number)) = (fields.next(), fields.nth(1)) else {
                continue;
            };
            if !GROUPS.contains(&name) {
                continue;
            }
            groups.insert(number, name);
            for member in fields.next().unwrap_or_default().split(',') {
                members.insert(member.trim(), name);
            }
        }
        let mut known = BTreeMap::from([("root".to_owned(), "root".to_owned())]);
        known.insert("0".to_owned(), "root".to_owned());
        for line in passwd.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [user, _, uid, gid, ..] = fields[..] else {
                continue;
            };
            let group = members.get(user).or_else(|| groups.get(gid));
            if let Some(group) = group
                && !user.is_empty()
            {
                let text = format!("{user} (of the group {group})");
                known.entry(user.to_owned()).or_insert(text.clone());
                known.entry(uid.to_owned()).or_insert(text);
            }
        }
        Self(known)
    }

    /// The words for a user of this name or number, if it is one of them.
    fn named(&self, user: &str) -> Option<String> {
        self.0.get(user).cloned()
    }
}

/// The logins of this moment: who, and from where.
pub(super) fn now() -> Vec<(String, IpAddr)> {
    let admins = Admins::read();
    let mut peers =
        fs::read("/run/utmp").map_or_else(|_| Vec::new(), |bytes| utmp_peers(&bytes, &admins));
    if let Ok(sessions) = fs::read_dir("/run/systemd/sessions") {
        for session in sessions.flatten().take(MAX_SESSIONS) {
            if let Ok(text) = fs::read_to_string(session.path()) {
                peers.extend(session_peer(&text, &admins));
            }
        }
    }
    peers
}

/// glibc's `struct utmp`: ut_type, ut_line, ut_id, ut_user, ut_host, ut_exit,
/// ut_session, ut_tv, ut_addr_v6. The two before the last are 32 bits wide
/// except on aarch64, which has no 32-bit past to agree with.
#[cfg(not(target_arch = "aarch64"))]
const UTMP: (usize, usize) = (384, 348);
#[cfg(target_arch = "aarch64")]
const UTMP: (usize, usize) = (400, 360);

fn utmp_peers(bytes: &[u8], admins: &Admins) -> Vec<(String, IpAddr)> {
    const USER_PROCESS: i16 = 7;
    let (size, addr_at) = UTMP;
    bytes
        .chunks_exact(size)
        .filter_map(|record| {
            if i16::from_ne_bytes([record[0], record[1]]) != USER_PROCESS {
                return None;
            }
            let user = record[44..76].split(|byte| *byte == 0).next()?;
            let who = admins.named(std::str::from_utf8(user).ok()?)?;
            let addr: [u8; 16] = record[addr_at..addr_at + 16].try_into().ok()?;
            if addr == [0; 16] {
                return None;
            }
            let addr = match addr[4..] {
                [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] => {
                    Ipv4Addr::new(addr[0], addr[1], addr[2], addr[3]).into()
                }
                _ => Ipv6Addr::from(addr).into(),
            };
            Some((who, addr))
        })
        .collect()
}

/// The remote host in one of logind's session files, of a user who counts.
fn session_peer(text: &str, admins: &Admins) -> Option<(String, IpAddr)> {
    let value = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    };
    let who = admins.named(value("UID")?)?;
    Some((who, value("REMOTE_HOST")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admins() -> Admins {
        let passwd = "root:x:0:0:root:/root:/bin/bash\ndebian:x:1000:1000::/home/debian:/bin/bash\n\
                      eve:x:1001:1001::/home/eve:/bin/sh\nop:x:1002:10::/home/op:/bin/sh\n\
                      toor:x:0:0::/root:/bin/sh\nbroken\n";
        let group =
            "root:x:0:\nsudo:x:27:alice,debian\nwheel:x:10:\nadm:x:4:eve\nsudoers:x:99:eve\n";
        Admins::of(passwd, group)
    }

    fn record(kind: i16, user: &str, addr: &[u8]) -> Vec<u8> {
        let mut record = vec![0; UTMP.0];
        record[..2].copy_from_slice(&kind.to_ne_bytes());
        record[44..44 + user.len()].copy_from_slice(user.as_bytes());
        record[UTMP.1..UTMP.1 + addr.len()].copy_from_slice(addr);
        record
    }

    #[test]
    fn administrators_are_root_and_who_may_become_root() {
        let named = |user| admins().named(user);
        for (user, words) in [
            ("root", "root"),
            ("0", "root"),
            ("debian", "debian (of the group sudo)"),
            ("1000", "debian (of the group sudo)"),
            // By the first group of the user itself.
            ("op", "op (of the group wheel)"),
        ] {
            assert_eq!(named(user).as_deref(), Some(words), "{user}");
        }
        for user in ["eve", "1001", "", "alice", "sudo", "27"] {
            assert_eq!(named(user), None, "{user}");
        }
        let nobody = Admins::of("", "");
        assert_eq!(nobody.named("0").as_deref(), Some("root"));
    }

    #[test]
    fn peers_are_found_in_utmp() {
        let v6: Ipv6Addr = "2001:db8::7".parse().unwrap();
        let mut file = Vec::new();
        file.extend(record(7, "root", &[192, 0, 2, 7]));
        file.extend(record(7, "rooty", &[192, 0, 2, 8]));
        file.extend(record(8, "root", &[192, 0, 2, 9])); // has logged out
        file.extend(record(7, "root", &[])); // on the console
        file.extend(record(7, "debian", &v6.octets()));
        file.extend(record(7, "eve", &[192, 0, 2, 11]));
        file.extend(&record(7, "root", &[192, 0, 2, 10])[..100]); // cut short
        let expected: [(String, IpAddr); 2] = [
            ("root".into(), "192.0.2.7".parse().unwrap()),
            ("debian (of the group sudo)".into(), v6.into()),
        ];
        assert_eq!(utmp_peers(&file, &admins()), expected);
    }

    #[test]
    fn peers_are_found_in_sessions() {
        let session = "UID=1000\nUSER=debian\nREMOTE=1\nREMOTE_HOST=192.0.2.7\n";
        let peer = |text: &str| session_peer(text, &admins()).map(|(_, addr)| addr);
        assert_eq!(peer(session), Some("192.0.2.7".parse().unwrap()));
        assert!(peer(&session.replace("UID=1000", "UID=0")).is_some());
        assert_eq!(peer(&session.replace("UID=1000", "UID=1001")), None);
        assert_eq!(peer(&session.replace("192.0.2.7", "host.example")), None);
    }
}
