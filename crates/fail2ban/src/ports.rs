//! The ports of a jail: numbers, ranges and names of services, for the protocols that its
//! action names.

use std::{collections::BTreeMap, path::Path};

use weir_core::{PortRange, PortSet, Protocol};

use crate::{files::Files, ini::clip};

/// Where the names of services are.
const SERVICES: &str = "/etc/services";

/// Those of jail.conf that a small system's file may lack.
const USUAL: [(&str, u16); 20] = [
    ("ssh", 22),
    ("telnet", 23),
    ("smtp", 25),
    ("ssmtp", 465),
    ("submission", 587),
    ("domain", 53),
    ("http", 80),
    ("https", 443),
    ("pop3", 110),
    ("pop3s", 995),
    ("imap", 143),
    ("imap2", 143),
    ("imaps", 993),
    ("sieve", 4190),
    ("ldap", 389),
    ("ldaps", 636),
    ("ftp", 21),
    ("ftp-data", 20),
    ("ftps", 990),
    ("ftps-data", 989),
];

/// Ports by the names of services.
pub(crate) struct Services(BTreeMap<String, u16>);

impl Services {
    pub fn read(files: &dyn Files) -> Self {
        let mut ports: BTreeMap<String, u16> = BTreeMap::new();
        let text = files.read(Path::new(SERVICES)).unwrap_or_default();
        for line in String::from_utf8_lossy(&text).lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let (Some(name), Some(port)) = (words.next(), words.next()) else {
                continue;
            };
            let port = port.split('/').next().and_then(|port| port.parse().ok());
            let Some(port) = port else { continue };
            for name in [name].into_iter().chain(words) {
                ports.entry(name.to_owned()).or_insert(port);
            }
        }
        for (name, port) in USUAL {
            ports.entry(name.to_owned()).or_insert(port);
        }
        Self(ports)
    }

    /// The ports that a list names, for each of the protocols.
    ///
    /// # Errors
    /// A word that is neither a port nor a range nor a service, a protocol without ports,
    /// and more ranges than a ban may have.
    pub fn set(&self, ports: &str, protocols: &str) -> Result<PortSet, String> {
        let mut of = Vec::new();
        for word in protocols.split([',', ' ']).filter(|word| !word.is_empty()) {
            of.push(match word.to_lowercase().as_str() {
                "tcp" => Protocol::Tcp,
                "udp" => Protocol::Udp,
                "sctp" => Protocol::Sctp,
                "all" | "any" => Protocol::Any,
                _ => {
                    let word = clip(word);
                    return Err(format!("protocol {word}; allowed: tcp, udp, sctp, all"));
                }
            });
        }
        let mut ranges = Vec::new();
        for word in ports
            .split([',', ' ', '\n'])
            .filter(|word| !word.is_empty())
        {
            let (low, high) = match word.split_once([':', '-']) {
                Some((low, high)) if low.parse::<u16>().is_ok() || low.is_empty() => {
                    let low = if low.is_empty() { "0" } else { low };
                    let high = if high.is_empty() { "65535" } else { high };
                    (self.port(low)?, self.port(high)?)
                }
                _ if matches!(word, "all" | "any") => (0, u16::MAX),
                _ => (self.port(word)?, self.port(word)?),
            };
            if low > high {
                return Err(format!("port {word} begins behind its end"));
            }
            ranges.push((low.max(1), high));
        }
        if ranges.is_empty() {
            return Err("there is no port".to_owned());
        }
        // 27030,27031,27032 is one range: a ban has room for few.
        ranges.sort_unstable();
        ranges.dedup_by(|next, before| {
            let joins = u32::from(next.0) <= u32::from(before.1) + 1;
            if joins {
                before.1 = before.1.max(next.1);
            }
            joins
        });
        if of.contains(&Protocol::Any) && ranges.contains(&(1, u16::MAX)) {
            return Ok(PortSet::all());
        }
        let all = of.iter().flat_map(|protocol| {
            let range = |(low, high): &(u16, u16)| PortRange {
                protocol: *protocol,
                low: *low,
                high: *high,
            };
            ranges.iter().map(range)
        });
        PortSet::ports(all).map_err(|e| e.to_string())
    }

    fn port(&self, word: &str) -> Result<u16, String> {
        let number = word.parse().ok().or_else(|| self.0.get(word).copied());
        number.ok_or_else(|| format!("{} is neither a port nor a service", clip(word)))
    }
}

#[cfg(test)]
mod tests {
    use std::{io, path::PathBuf};

    use super::*;

    struct One(&'static str);

    impl Files for One {
        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            assert_eq!(path, Path::new("/etc/services"));
            Ok(self.0.as_bytes().to_vec())
        }

        fn list(&self, _: &Path) -> io::Result<Vec<PathBuf>> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn ports_are_numbers_ranges_and_services() {
        let file = "# names\nshop 8080/tcp web-shop # mine\nssh\t2222/tcp\nbroken\nx y/tcp\n";
        let services = Services::read(&One(file));
        let set = |ports, protocols| match services.set(ports, protocols) {
            Ok(set) => set.to_string(),
            Err(error) => error,
        };
        assert_eq!(set("shop, web-shop,https", "tcp"), "443/tcp,8080/tcp");
        assert_eq!(set("ssh", "tcp"), "2222/tcp");
        assert_eq!(
            set("6000:6010,53", "tcp,udp"),
            "53/tcp,6000-6010/tcp,53/udp,6000-6010/udp"
        );
        assert_eq!(set("0:65535", "tcp"), "1-65535/tcp");
        assert_eq!(set("0:65535", "all"), "all ports");
        assert_eq!(set("ftp-data 20", "udp"), "20/udp");
        assert_eq!(set("9,7,8,20:30,25", "tcp"), "7-9/tcp,20-30/tcp");
        assert_eq!(
            set("nobody", "tcp"),
            "nobody is neither a port nor a service"
        );
        assert_eq!(set("70000", "tcp"), "70000 is neither a port nor a service");
        assert_eq!(set("9:8", "tcp"), "port 9:8 begins behind its end");
        assert_eq!(set("", "tcp"), "there is no port");
        assert_eq!(
            set("22", "icmp"),
            "protocol icmp; allowed: tcp, udp, sctp, all"
        );
        let many: Vec<_> = (1..40)
            .step_by(2)
            .map(|port: u16| port.to_string())
            .collect();
        assert!(set(&many.join(","), "tcp").starts_with("20 port ranges"));
    }
}
