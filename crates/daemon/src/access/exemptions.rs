//! Who can never be banned, by any producer: this host's own addresses, its gateways and
//! resolvers, the reals of its pools, the peers of administrators' logins (`logins`; for
//! a grace time after them), and the allow lists of the configuration, of run time and of
//! files or servers (`lists`). All of them together are the backend's allow list. Reading
//! them again is cheap enough for each second.

pub mod config;
mod logins;

use std::{
    collections::BTreeMap,
    fs, io,
    net::IpAddr,
    path::Path,
    sync::{Arc, Mutex, RwLock},
    time::{Duration, Instant},
};

use serde::Serialize;
use weir_bpf::allow::MAX_ALLOW;
use weir_core::{BanTarget, Prefix, PrefixSet, policy::format_duration};

use crate::{
    access::lists::{CurrentList, ListAction},
    host,
    store::AllowEntry,
};
use config::Lockout;

/// The exempt prefixes of one moment, each with its reason.
#[derive(Debug, Default, Clone)]
pub struct Exemptions {
    set: PrefixSet,
    reasons: BTreeMap<Prefix, String>,
    /// All lists in force; those that allow are in the set as well.
    lists: Arc<Vec<CurrentList>>,
    /// Except for this one and those behind it: there is no room for them.
    overfull: Option<String>,
}

/// A member of the list as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Exemption {
    /// The addresses that are exempt.
    pub prefix: Prefix,
    /// Why these addresses are exempt.
    pub reason: String,
}

impl Exemptions {
    pub(crate) fn add(&mut self, prefix: Prefix, reason: impl Into<String>) {
        // The reasons are added strongest first.
        self.reasons.entry(prefix).or_insert_with(|| reason.into());
    }

    /// Puts the set together, which thousands of prefixes make a thing to do
    /// only when something has changed.
    fn complete(mut self, lists: Arc<Vec<CurrentList>>) -> Self {
        let mut all: Vec<Prefix> = self.reasons.keys().copied().collect();
        let count = |list: &[Prefix]| {
            let ipv4 = list.iter().filter(|p| p.addr().is_ipv4()).count();
            [ipv4, list.len() - ipv4]
        };
        let mut used = count(&all);
        for list in lists.iter().filter(|l| l.action == ListAction::Allow) {
            let more = count(&list.prefixes);
            let both = [used[0] + more[0], used[1] + more[1]];
            if both.iter().any(|n| *n > MAX_ALLOW) {
                self.overfull = Some(list.name.clone());
                break;
            }
            used = both;
            all.extend(list.prefixes.iter());
        }
        self.set = all.into_iter().collect();
        self.lists = lists;
        self
    }

    /// Exempt prefixes that no list has brought: this host's own, the configuration's, the
    /// administrator's.
    pub fn own(&self) -> impl Iterator<Item = Prefix> + '_ {
        self.reasons.keys().copied()
    }

    /// The first allow list that has no room in the backend.
    pub fn overfull(&self) -> Option<&str> {
        self.overfull.as_deref()
    }

    /// Whether the exemptions are made from these reasons and lists.
    fn is_from(&self, reasons: &Self, lists: &Arc<Vec<CurrentList>>) -> bool {
        self.reasons == reasons.reasons && Arc::ptr_eq(&self.lists, lists)
    }

    /// The prefixes, for the backend.
    pub fn set(&self) -> &PrefixSet {
        &self.set
    }

    /// The exemption that covers all of `subject`. A wider ban is allowed: the
    /// exempt addresses inside it pass.
    pub fn covering(&self, subject: BanTarget) -> Option<Exemption> {
        self.holding(subject.prefix())
    }

    /// The exemption that holds this address.
    pub fn lookup(&self, addr: IpAddr) -> Option<Exemption> {
        self.holding(Prefix::host(addr))
    }

    /// The exemption that holds all of this prefix, bannable or not.
    pub fn holding(&self, prefix: Prefix) -> Option<Exemption> {
        self.named(self.set.covering(prefix)?)
    }

    fn named(&self, prefix: Prefix) -> Option<Exemption> {
        let reason = match self.reasons.get(&prefix) {
            Some(reason) => reason.clone(),
            None => {
                let mut lists = self.lists.iter().filter(|l| l.action == ListAction::Allow);
                let list = lists.find(|list| list.covering(prefix) == Some(prefix))?;
                format!("it is on the allow list {:?} ({})", list.name, list.source)
            }
        };
        Some(Exemption { prefix, reason })
    }

    /// All exempt prefixes, in order.
    pub fn list(&self) -> Vec<Exemption> {
        self.set.iter().filter_map(|p| self.named(p)).collect()
    }
}

/// The exemptions in force; replaced whole.
#[derive(Default)]
pub struct Exempt {
    current: RwLock<Arc<Exemptions>>,
}

impl Exempt {
    /// The exemptions in force now.
    pub fn current(&self) -> Arc<Exemptions> {
        self.current
            .read()
            .expect("no holder of this lock panics")
            .clone()
    }

    /// Replaces them by what was gathered and the allow lists among these;
    /// true when anything is different.
    pub fn replace(&self, new: Exemptions, lists: Arc<Vec<CurrentList>>) -> bool {
        if self.current().is_from(&new, &lists) {
            return false;
        }
        let new = Arc::new(new.complete(lists));
        *self.current.write().expect("no holder of this lock panics") = new;
        true
    }
}

/// Whether the backend has the exemptions in force.
#[derive(Default)]
pub struct Written(Mutex<bool>);

impl Written {
    /// Has them written if they have `changed`, or if the last time failed.
    pub fn follow<E>(&self, changed: bool, write: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut written = self.0.lock().expect("no holder of this lock panics");
        *written &= !changed;
        if !*written {
            write()?;
            *written = true;
        }
        Ok(())
    }
}

/// What the configuration says of who is exempt.
#[derive(Clone, Copy)]
pub struct ExemptionConfig<'a> {
    /// The file that says so.
    pub file: &'a Path,
    /// Prefixes that nobody may ban.
    pub allow: &'a PrefixSet,
    /// The reals of pools, each with its pool's name: a ban would drop what they answer
    /// to checks.
    pub reals: &'a [(&'a str, IpAddr)],
    /// The peers of virtual routers, each with the router's name: a ban would drop what
    /// they tell of themselves.
    pub peers: &'a [(&'a str, IpAddr)],
    /// What keeps the administrator from being locked out.
    pub lockout: Lockout,
}

/// Puts the list together and remembers when each login was last seen.
#[derive(Default)]
pub struct Collector {
    logins: BTreeMap<IpAddr, Login>,
    host: Host,
}

/// The host's addresses, gateways and resolvers, as last read: what cannot be read now (for
/// want of descriptors, say) is as it was.
#[derive(Default)]
struct Host {
    own: Vec<(String, IpAddr)>,
    gateways: Vec<IpAddr>,
    resolvers: BTreeMap<&'static str, Vec<IpAddr>>,
}

impl Host {
    /// Reads it again; what could not be read.
    fn read(&mut self) -> Vec<String> {
        let mut failed = Vec::new();
        keep(&mut self.own, own_addresses(), "own addresses", &mut failed);
        let gateways = host::default_gateways();
        keep(
            &mut self.gateways,
            gateways,
            "default gateways",
            &mut failed,
        );
        for file in ["/etc/resolv.conf"].into_iter().chain(UPSTREAM) {
            let read = match fs::read(file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
                read => read.map(|text| resolvers(&text)),
            };
            keep(
                self.resolvers.entry(file).or_default(),
                read,
                file,
                &mut failed,
            );
        }
        failed
    }
}

fn keep<T>(known: &mut T, read: io::Result<T>, what: &str, failed: &mut Vec<String>) {
    match read {
        Ok(now) => *known = now,
        Err(error) => failed.push(format!("{what}: {error}")),
    }
}

/// Somebody's who may become root.
struct Login {
    who: String,
    seen: Instant,
}

/// Where the servers are that a resolver on this host asks: systemd-resolved,
/// NetworkManager, resolvconf and dnsmasq write them like resolv.conf.
const UPSTREAM: [&str; 5] = [
    "/run/systemd/resolve/resolv.conf",
    "/run/NetworkManager/no-stub-resolv.conf",
    "/run/NetworkManager/resolv.conf",
    "/run/dnsmasq/resolv.conf",
    "/run/resolvconf/resolv.conf",
];

/// More peers than this are not remembered: the oldest go.
const MAX_LOGINS: usize = 1024;

impl Collector {
    /// The exemptions of this moment, read from the host, and what of it could not
    /// be read; those of lists come to them in [`Exempt::replace`].
    pub fn gather(
        &mut self,
        configured: ExemptionConfig<'_>,
        allow: &[AllowEntry],
        now: Instant,
    ) -> (Exemptions, Vec<String>) {
        let mut list = Exemptions::default();
        let failed = self.host.read();
        for (interface, addr) in &self.host.own {
            list.add(
                Prefix::host(*addr),
                format!("it is an address of this host ({interface})"),
            );
        }
        for addr in &self.host.gateways {
            list.add(Prefix::host(*addr), "it is the default gateway");
        }
        for (file, addrs) in &self.host.resolvers {
            for addr in addrs {
                list.add(
                    Prefix::host(*addr),
                    format!("it is a resolver of this host ({file})"),
                );
            }
        }
        for (pool, addr) in configured.reals {
            list.add(
                Prefix::host(*addr),
                format!("it is a real of the pool {pool}"),
            );
        }
        for (router, addr) in configured.peers {
            list.add(
                Prefix::host(*addr),
                format!("it is a peer of the virtual router {router}"),
            );
        }
        if configured.lockout.logins {
            for (who, addr) in logins::now() {
                let login = Login { who, seen: now };
                self.logins.insert(addr.to_canonical(), login);
            }
            self.expire(configured.lockout.grace, now);
            for (addr, login) in &self.logins {
                list.add(
                    Prefix::host(*addr),
                    format!(
                        "{} is, or was within {}, logged in from it",
                        crate::escape(&login.who),
                        format_duration(configured.lockout.grace)
                    ),
                );
            }
        }
        for prefix in configured.allow.iter() {
            list.add(
                prefix,
                format!("it is on the allow list of {}", configured.file.display()),
            );
        }
        for entry in allow {
            let note = if entry.note.is_empty() {
                "it was allowed manually".to_owned()
            } else {
                format!("it was allowed manually: {}", entry.note)
            };
            list.add(entry.prefix, note);
        }
        (list, failed)
    }

    /// The addresses of this host, as last read.
    pub fn own(&self) -> Vec<IpAddr> {
        self.host.own.iter().map(|(_, addr)| *addr).collect()
    }

    fn expire(&mut self, grace: Duration, now: Instant) {
        self.logins
            .retain(|_, login| now.duration_since(login.seen) <= grace);
        while self.logins.len() > MAX_LOGINS {
            let oldest = self.logins.iter().min_by_key(|(_, login)| login.seen);
            let Some(oldest) = oldest.map(|(addr, _)| *addr) else {
                break;
            };
            self.logins.remove(&oldest);
        }
    }
}

/// The addresses of all interfaces.
fn own_addresses() -> io::Result<Vec<(String, IpAddr)>> {
    let interfaces = nix::ifaddrs::getifaddrs()?;
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let addr: IpAddr = if let Some(v4) = address.as_sockaddr_in() {
            v4.ip().into()
        } else {
            address.as_sockaddr_in6()?.ip().into()
        };
        Some((interface.interface_name, addr))
    });
    Ok(addresses.collect())
}

/// Comments may be in any encoding.
fn resolvers(text: &[u8]) -> Vec<IpAddr> {
    String::from_utf8_lossy(text)
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next()? == "nameserver").then_some(())?;
            let addr = words.next()?;
            // fe80::1%eth0: on whatever link.
            addr.split('%').next()?.parse().ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_refused_allow_list_is_written_again() {
        let written = Written::default();
        let mut tries = 0;
        let mut follow = |changed, answer: Result<(), &str>| {
            let done = written.follow(changed, || {
                tries += 1;
                answer
            });
            (done.is_ok(), tries)
        };
        assert_eq!(follow(true, Err("no room")), (false, 1));
        // Nothing is different, and it is still not there.
        assert_eq!(follow(false, Err("no room")), (false, 2));
        assert_eq!(follow(false, Ok(())), (true, 3));
        assert_eq!(follow(false, Ok(())), (true, 3));
        assert_eq!(follow(true, Ok(())), (true, 4));
    }

    #[test]
    fn what_cannot_be_read_now_is_as_it_was() {
        let (mut known, mut failed) = (vec![1], Vec::new());
        keep(&mut known, Ok(vec![2]), "gateways", &mut failed);
        let none_left = io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error());
        keep(&mut known, Err(none_left), "gateways", &mut failed);
        assert_eq!(known, [2]);
        assert_eq!(failed.len(), 1);
        assert!(failed[0].starts_with("gateways: Too many open files"));
    }

    #[test]
    fn resolvers_are_read() {
        let text = "# a comment\nnameserver 192.0.2.53\nnameserver fe80::1%eth0\nsearch example\nnameserver\n";
        let expected: Vec<IpAddr> = vec!["192.0.2.53".parse().unwrap(), "fe80::1".parse().unwrap()];
        assert_eq!(resolvers(text.as_bytes()), expected);
        let latin1 = b"# b\xfcro\nnameserver 192.0.2.53\n";
        let expected: [IpAddr; 1] = ["192.0.2.53".parse().unwrap()];
        assert_eq!(resolvers(latin1), expected);
    }

    #[test]
    fn a_login_stays_exempt_for_the_grace_time() {
        let start = Instant::now();
        let mut collector = Collector::default();
        let login = Login {
            who: "root".into(),
            seen: start,
        };
        collector.logins.insert("192.0.2.7".parse().unwrap(), login);
        let grace = Duration::from_secs(60);
        collector.expire(grace, start + grace);
        assert_eq!(collector.logins.len(), 1);
        collector.expire(grace, start + grace + Duration::from_secs(1));
        assert_eq!(collector.logins.len(), 0);
    }

    #[test]
    fn the_reals_of_pools_are_exempt() {
        let [v4, v6] = ["192.0.2.11", "2001:db8::11"].map(|addr| addr.parse().unwrap());
        let peer = "fe80::3".parse().unwrap();
        let mut collector = Collector::default();
        let configured = ExemptionConfig {
            file: Path::new("weir.toml"),
            allow: &PrefixSet::default(),
            reals: &[("web", v4), ("mail", v6)],
            peers: &[("edge", peer)],
            lockout: Lockout {
                logins: false,
                grace: Duration::ZERO,
            },
        };
        let (list, _) = collector.gather(configured, &[], Instant::now());
        let list = list.complete(Arc::default());
        for (addr, pool) in [(v4, "web"), (v6, "mail")] {
            let reason = list.lookup(addr).unwrap().reason;
            assert_eq!(reason, format!("it is a real of the pool {pool}"));
        }
        let reason = list.lookup(peer).unwrap().reason;
        assert_eq!(reason, "it is a peer of the virtual router edge");
    }

    #[test]
    fn a_wider_ban_is_not_refused() {
        let mut list = Exemptions::default();
        list.add("192.0.2.7".parse().unwrap(), "it is the default gateway");
        list.add("198.51.100.0/24".parse().unwrap(), "allowed");
        let list = list.complete(Arc::default());
        let covering = |text: &str| list.covering(text.parse().unwrap()).map(|e| e.reason);
        assert_eq!(
            covering("192.0.2.7").as_deref(),
            Some("it is the default gateway")
        );
        assert_eq!(covering("198.51.100.9").as_deref(), Some("allowed"));
        assert_eq!(covering("192.0.2.0/24"), None);
    }

    fn allow_list(name: &str, prefixes: Vec<Prefix>) -> CurrentList {
        CurrentList {
            name: name.into(),
            source: "/etc/weir/office.txt".into(),
            action: ListAction::Allow,
            scope: weir_core::PortSet::all(),
            direction: weir_core::geofence::Direction::Both,
            prefixes: prefixes.into(),
        }
    }

    #[test]
    fn allow_lists_exempt_and_deny_lists_do_not() {
        let mut own = Exemptions::default();
        own.add("192.0.2.7".parse().unwrap(), "it is the default gateway");
        let office = allow_list(
            "office",
            vec![
                "192.0.2.7".parse().unwrap(),
                "203.0.113.0/24".parse().unwrap(),
            ],
        );
        let mut bad = allow_list("bad", vec!["198.51.100.0/24".parse().unwrap()]);
        bad.action = ListAction::Deny;
        let exempt = Exempt::default();
        let lists = Arc::new(vec![bad, office]);
        assert!(exempt.replace(own.clone(), lists.clone()));
        assert!(!exempt.replace(own.clone(), lists));
        let now = exempt.current();
        let reason = |text: &str| now.lookup(text.parse().unwrap()).map(|e| e.reason);
        assert_eq!(
            reason("192.0.2.7").as_deref(),
            Some("it is the default gateway")
        );
        assert_eq!(
            reason("203.0.113.9").as_deref(),
            Some("it is on the allow list \"office\" (/etc/weir/office.txt)")
        );
        assert_eq!(reason("198.51.100.9"), None);
        assert_eq!(now.list().len(), 2);
        assert!(exempt.replace(own, Arc::default()));
        assert_eq!(
            exempt.current().lookup("203.0.113.9".parse().unwrap()),
            None
        );
    }

    #[test]
    fn a_list_without_room_is_named_and_nothing_else_is_lost() {
        let many = |first: u32, count: u32| {
            let addr = |n| Prefix::host(Ipv4Addr::from_bits(first + 2 * n).into());
            (0..count).map(addr).collect::<Vec<_>>()
        };
        let mut own = Exemptions::default();
        own.add("192.0.2.7".parse().unwrap(), "it is the default gateway");
        let lists = vec![
            allow_list("one", many(0x0b00_0000, 60_000)),
            allow_list("two", many(0x0c00_0000, 6_000)),
            allow_list("three", many(0x0d00_0000, 10)),
        ];
        let exempt = Exempt::default();
        exempt.replace(own.clone(), Arc::new(lists[..1].to_vec()));
        assert_eq!(exempt.current().overfull(), None);
        exempt.replace(own, Arc::new(lists));
        let now = exempt.current();
        assert_eq!(now.overfull(), Some("two"));
        assert_eq!(now.set().len(), 60_001);
        assert!(now.lookup("192.0.2.7".parse().unwrap()).is_some());
    }
}
