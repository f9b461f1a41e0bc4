//! Would the rules keep out who is to mend them: a login over the network?

use std::net::IpAddr;

use weir_core::{balance::acl::Who, geofence::Direction};

use crate::{AppConfig, Digest, Peer, Peers, Protocols, Rule, Verdict};

/// A login over TCP, as that of sshd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Login {
    /// Where who logs in is.
    pub peer: IpAddr,
    /// The port of this host that the connection came in at.
    pub port: u16,
    /// The executable of the server that accepts connections there.
    pub server: Digest,
}

impl AppConfig {
    /// What denies that the same login comes in again: a rule's name, `prompt_timeout`, which
    /// has it wait for an answer, or `default`. `None`:
    /// it is allowed, or whether it is depends on more than the server's executable, as on its
    /// user, the libraries that it maps or the addresses of a list.
    pub fn denies_login(&self, login: &Login) -> Option<&str> {
        for rule in &self.rules {
            match (rule.verdict, rule.is_about_login(login)) {
                (Verdict::Log, _) | (_, Some(false)) => {}
                (Verdict::Allow, _) | (_, None) => return None,
                (Verdict::Drop | Verdict::Reject, Some(true)) => return Some(&rule.name),
            }
        }
        match self.prompt_timeout {
            Some(_) => Some("prompt_timeout"),
            None => (self.default != Verdict::Allow).then_some("default"),
        }
    }
}

impl Rule {
    /// Is the rule about that connection? `None`: it may be.
    fn is_about_login(&self, login: &Login) -> Option<bool> {
        let place = &self.place;
        let is_kind = place.protocols.is_any() || place.protocols.has(Protocols::TCP);
        let places = place.by_protocol();
        let is_port = places.iter().any(|(protocols, ranges)| {
            let is_tcp = protocols.is_any() || protocols.has(Protocols::TCP);
            let mut ranges_of = ranges.iter();
            is_tcp
                && (ranges.is_empty()
                    || ranges_of.any(|(low, high)| (*low..=*high).contains(&login.port)))
        });
        if place.direction == Direction::Out || !is_kind || !is_port {
            return Some(false);
        }
        let answers = [
            self.is_about_executable(login.server),
            place
                .from
                .as_ref()
                .map_or(Some(true), |from| from.has(login.peer)),
            place.netns.is_none().then_some(true),
            self.peer.is_empty().then_some(true),
        ];
        match answers.contains(&Some(false)) {
            true => Some(false),
            false => answers.iter().all(Option::is_some).then_some(true),
        }
    }
}

impl Peers {
    /// Is the address among them? `None`: places, lists and names have to be asked.
    fn has(&self, address: IpAddr) -> Option<bool> {
        let is_in = |peer: &Peer| match peer {
            Peer::Known(Who::Prefix(prefix)) => Some(prefix.contains(address)),
            _ => None,
        };
        let answers: Vec<_> = self.entries.iter().map(is_in).collect();
        let is_one = match answers.contains(&Some(true)) {
            true => Some(true),
            false => answers.iter().all(Option::is_some).then_some(false),
        };
        is_one.map(|is_one| is_one != self.is_negated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::parsed;

    /// By the test's host, curl is the server.
    fn denies(text: &str, peer: &str) -> Option<String> {
        let (config, _) = parsed(text).unwrap();
        let login = Login {
            peer: peer.parse().unwrap(),
            port: 22,
            server: Digest([1; 32]),
        };
        config.denies_login(&login).map(str::to_owned)
    }

    #[test]
    fn a_login_is_denied_by_the_first_rule_about_its_server() {
        const V4: &str = "192.0.2.9";
        const V6: &str = "2001:db8::9";
        let allow = |more: &str| {
            format!("[app]\ndefault = 'drop'\n[app.rules.a]\nverdict = 'allow'\n{more}")
        };
        for (text, peer, expected) in [
            ("[app]\ndefault = 'allow'\n".to_owned(), V4, None),
            ("[app]\ndefault = 'drop'\n".to_owned(), V4, Some("default")),
            (
                "[app]\ndefault = 'allow'\nunknown = 'drop'\nprompt_timeout = '1m'\n".to_owned(),
                V6,
                Some("prompt_timeout"),
            ),
            ("[app]\ndefault = 'reject'\n".to_owned(), V6, Some("default")),
            (allow("path = '/usr/bin/curl'"), V4, None),
            (allow("path = '/usr/bin/wget'"), V4, Some("default")),
            (allow("path = '/usr/bin/curl'\ndirection = 'out'"), V4, Some("default")),
            (allow("path = '/usr/bin/curl'\nports = ['22/tcp']"), V6, None),
            (allow("path = '/usr/bin/curl'\nports = ['20-30']"), V6, None),
            (allow("path = '/usr/bin/curl'\nports = ['22/udp']"), V4, Some("default")),
            (allow("path = '/usr/bin/curl'\nports = ['2222/tcp']"), V4, Some("default")),
            (allow("path = '/usr/bin/curl'\nprotocols = ['udp']"), V4, Some("default")),
            // Whoever it is, from there.
            (allow("from = ['192.0.2.0/24']"), V4, None),
            (allow("from = ['192.0.2.0/24']"), V6, Some("default")),
            (allow("from = ['2001:db8::/32']"), V6, None),
            (allow("from = ['192.0.2.0/24']\nnot = 'from'"), V4, Some("default")),
            // More than the executable tells.
            (allow("user = 'www-data'"), V4, None),
            (allow("from = ['list:bad']"), V4, None),
            (
                "[app]\n[app.rules.a]\nverdict = 'drop'\nports = ['22/tcp']\n".to_owned(),
                V4,
                Some("a"),
            ),
            (
                "[app]\n[app.rules.a]\nverdict = 'drop'\nfrom = ['list:bad']\n".to_owned(),
                V4,
                None,
            ),
            (
                "[app]\n[app.rules.a]\nverdict = 'log'\n[app.rules.b]\nverdict = 'reject'\nnot = 'path'\npath = '/usr/bin/wget'\n"
                    .to_owned(),
                V4,
                Some("b"),
            ),
        ] {
            assert_eq!(denies(&text, peer).as_deref(), expected, "{text}{peer}");
        }
    }
}
