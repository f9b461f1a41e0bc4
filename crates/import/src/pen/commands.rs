//! Pen's commands: those of its files, of `-O` and of penctl.

use super::{ByKind, MAX_INCLUDES, MAX_SERVERS, Pen, Read, acl::Entry};
use crate::Error;

/// Commands that have no setting here, and what is in their place, whatever Pen is.
const INSTEAD: &[(&[&str], &str)] = &[
    (
        &[
            "abort_on_error",
            "ascii",
            "debug",
            "dummy",
            "peek",
            "block",
            "delayed_forward",
        ],
        "not carried over: it is for finding faults in Pen, or does nothing there; `weir why` and `weir events` say what weir does",
    ),
    (
        &["tracking"],
        "changed: a connection stays with its server for as long as that lives; which one a client's next connection meets, `method` says",
    ),
    (
        &["epoll", "kqueue", "poll", "select"],
        "nothing to do: weir takes what the kernel does best",
    ),
    (
        &[
            "ssl_ciphers",
            "ssl_option",
            "ssl_sni_path",
            "ssl_ocsp_response",
            "ssl_client_renegotiation_interval",
        ],
        "not carried over: TLS ends at the servers: give certificates and keys to them",
    ),
    (
        &["log", "web_stats"],
        "not carried over: the servers' own logs have the clients; `weir pool show pen`, `weir events` and the metrics say what weir does",
    ),
    (
        &[
            "servers",
            "status",
            "mode",
            "connection",
            "socket",
            "recent",
        ],
        "nothing to do: it asks a running Pen; here `weir pool show pen` (--json) does",
    ),
    (
        &["close"],
        "nothing to do: it is for a running Pen; here `weir real disable pen ADDRESS` ends what a server has",
    ),
    (
        &["write"],
        "nothing to do: what `weir real` changes holds over restarts, and the rest is in this file",
    ),
    (
        &["pid", "control", "exit"],
        "nothing to do: `systemctl status weir`, `systemctl stop weir`",
    ),
    (
        &["control_acl"],
        "not carried over: the control socket is a Unix socket, and weir asks who calls; nobody reaches it from a network",
    ),
    (
        &["stubborn"],
        "changed: a connection whose server dies ends there as well, and new ones always go to a server that lives",
    ),
    (
        &["prio"],
        "not carried over: servers are not ranked; give those of a higher number weight = 0, and a weight with `weir real weight` when they are needed, or make them the pool's `emergency`",
    ),
];

/// Why limits of connections have no place in direct server return.
const HOLDS_NONE: &str = "not carried over: weir hands packets on and holds no connection, so there is nothing to limit, to open or to close";
/// Why the source of packets is not to be set there.
const OWN_ADDRESS: &str =
    "nothing to do: the servers see each client's own address and answer it themselves";

/// Likewise, where it matters what Pen is.
const INSTEAD_BY_KIND: &[(&[&str], ByKind)] = &[
    (
        &[
            "clients_max",
            "conn_max",
            "pending_max",
            "idlers",
            "idle_timeout",
            "tcp_fastclose",
            "tcp_nodelay",
            "keepalive",
        ],
        ByKind {
            dsr: HOLDS_NONE,
            proxy: "not carried over: connections are accepted as they come, none is opened beforehand, and none is held back",
        },
    ),
    (
        &["source", "transparent"],
        ByKind {
            dsr: OWN_ADDRESS,
            proxy: "not carried over: connections to the servers come from the address of this host's route to them",
        },
    ),
    (
        &["http"],
        ByKind {
            dsr: "not carried over: HTTP is not read, and needs no X-Forwarded-For: the servers see each client's own address",
            proxy: "not carried over: HTTP is not read; `proxy_protocol = \"v2\"` tells the servers each client's address, where they take it (nginx: `listen 80 proxy_protocol`)",
        },
    ),
];

/// A setting of a proxy, of which nothing is to be said there.
const fn proxy_setting(dsr: &'static str) -> ByKind {
    ByKind { dsr, proxy: "" }
}

impl Pen {
    /// Carries out one command; `words` is not empty.
    pub(super) fn command(
        &mut self,
        place: &str,
        words: &[&str],
        read: &Read<'_>,
        depth: usize,
    ) -> Result<(), Error> {
        let place = match words[0] {
            "include" => place.to_owned(),
            _ => format!("{place}: {}", words.join(" ")),
        };
        let place = place.as_str();
        match words {
            ["include", name] => return self.include(place, name, read, depth),
            ["no", "acl", number, ..] => match list_number(number) {
                Some(number) => self.acls[number] = Default::default(),
                None => self.no_list(place),
            },
            ["no", "hash"] => self.is_hash = false,
            ["no", "roundrobin"] => self.is_round_robin = false,
            ["no", "weight"] => self.is_weighted = false,
            ["no", "transparent"] => self.is_transparent = false,
            ["no", name] if is_known(name) => {
                self.remark(place, "nothing to do: nothing of that is done here");
            }
            ["hash"] => self.is_hash = true,
            ["roundrobin"] => self.is_round_robin = true,
            ["weight"] => self.is_weighted = true,
            ["transparent"] => {
                self.is_transparent = true;
                self.remark_by_kind(place, proxy_setting(OWN_ADDRESS));
            }
            ["acl", number, rest @ ..] => self.acl_entry(place, number, rest),
            ["tarpit_acl", "-1"] => self.tarpit_acl = None,
            [name @ ("client_acl" | "tarpit_acl"), number, ..] => {
                let number = list_number(number).unwrap_or_else(|| {
                    // Of "1x" Pen takes the digits.
                    if number.parse::<i64>().is_err() {
                        self.doubt(place);
                    }
                    self.remark(
                        place,
                        "changed: access lists have the numbers 0 to 9: Pen takes list 0, and so does this",
                    );
                    0
                });
                match *name {
                    "client_acl" => self.client_acl = Some(number),
                    _ => self.tarpit_acl = Some(number),
                }
            }
            ["dsr_if", name] => match is_interface(name) {
                true => self.interface = Some((*name).to_owned()),
                false => self.remark(place, "asked: that is no name of an interface"),
            },
            [
                name @ ("blacklist" | "timeout" | "idle_timeout" | "conn_max"),
                value,
            ] => self.number(place, name, value),
            [
                "blacklist" | "timeout" | "idle_timeout" | "conn_max" | "listen" | "client_acl"
                | "tarpit_acl",
            ] => {
                self.remark(place, "nothing to do: it asks a running Pen");
            }
            ["listen", at] => self.listen_at(place, at),
            ["server", number, rest @ ..] => self.server(place, number, rest),
            _ => match by_kind(words[0]) {
                Some(texts) => self.remark_by_kind(place, texts),
                None => {
                    let text =
                        instead(words[0]).unwrap_or("not carried over: it is no command of Pen's");
                    self.remark(place, text);
                }
            },
        }
        Ok(())
    }

    fn include(
        &mut self,
        place: &str,
        name: &str,
        read: &Read<'_>,
        depth: usize,
    ) -> Result<(), Error> {
        self.count()?;
        if depth >= MAX_INCLUDES {
            return Err(Error(format!(
                "{place}: {name} is the {MAX_INCLUDES}th file that another one includes"
            )));
        }
        let text = read(name).map_err(|why| Error(format!("{place}: {why}")))?;
        self.read_file(name, &text, read, depth + 1)
    }

    fn number(&mut self, place: &str, name: &str, value: &str) {
        let Ok(number) = value.parse() else {
            return self.remark(place, "not carried over: that is no number");
        };
        let setting = match name {
            "blacklist" => &mut self.blacklist,
            "timeout" => &mut self.timeout,
            "idle_timeout" => &mut self.idle_timeout,
            _ => &mut self.connections,
        };
        *setting = Some(number);
        if matches!(name, "idle_timeout" | "conn_max") {
            self.remark_by_kind(place, proxy_setting(HOLDS_NONE));
        }
    }

    fn no_list(&mut self, place: &str) {
        self.doubt(place);
        self.remark(
            place,
            "not carried over: access lists have the numbers 0 to 9",
        );
    }

    fn acl_entry(&mut self, place: &str, number: &str, rest: &[&str]) {
        let Some(number) = list_number(number) else {
            return self.no_list(place);
        };
        match Entry::parse(rest) {
            Ok(entry) => {
                if !self.acls[number].push(place, entry) {
                    let text = "not carried over: the list has more entries than are taken";
                    self.remark(&format!("acl {number}"), text);
                }
            }
            Err(why) => {
                self.acls[number].lose(place);
                self.remark(place, &why);
            }
        }
    }

    /// `server N` with a value for each of its names.
    fn server(&mut self, place: &str, number: &str, rest: &[&str]) {
        let number = match number.parse::<usize>() {
            Ok(number) if number < MAX_SERVERS => number,
            _ => {
                let text = format!("not carried over: servers have numbers below {MAX_SERVERS}");
                return self.remark(place, &text);
            }
        };
        for pair in rest.chunks(2) {
            let server = self.servers.entry(number).or_default();
            if server.place.is_empty() {
                server.place = place.to_owned();
            }
            let &[name, value] = pair else {
                self.remark(
                    place,
                    &format!("not carried over: {}: its value is missing", pair[0]),
                );
                return;
            };
            let place_of = match name {
                "address" => {
                    server.host = value.to_owned();
                    continue;
                }
                "max" => &mut server.max,
                "hard" => &mut server.hard,
                "weight" => &mut server.weight,
                "prio" => &mut server.prio,
                "port" => match value.parse() {
                    Ok(port) => {
                        server.port = port;
                        continue;
                    }
                    Err(_) => {
                        self.remark(place, &format!("not carried over: {value} is no port"));
                        continue;
                    }
                },
                "acl" => {
                    match list_number(value) {
                        Some(number) => server.acl = number,
                        None => self.no_list(place),
                    }
                    continue;
                }
                "blacklist" => {
                    if value != "0" {
                        self.remark(place, "changed: `weir real disable pen ADDRESS` takes a server out at once, until `weir real enable`");
                    }
                    continue;
                }
                _ => {
                    self.remark(
                        place,
                        &format!("not carried over: {name}: it is nothing of a server's"),
                    );
                    continue;
                }
            };
            match value.parse() {
                Ok(value) => *place_of = value,
                Err(_) => self.remark(
                    place,
                    &format!("not carried over: {name} {value}: it is no number"),
                ),
            }
        }
    }
}

/// What is in the place of a command.
pub(super) fn instead(name: &str) -> Option<&'static str> {
    let entry = INSTEAD.iter().find(|(names, _)| names.contains(&name));
    entry.map(|(_, text)| *text)
}

pub(super) fn by_kind(name: &str) -> Option<ByKind> {
    let entry = INSTEAD_BY_KIND
        .iter()
        .find(|(names, _)| names.contains(&name));
    entry.map(|(_, texts)| *texts)
}

fn is_known(name: &str) -> bool {
    instead(name).is_some() || by_kind(name).is_some()
}

fn list_number(text: &str) -> Option<usize> {
    text.parse().ok().filter(|number| *number < 10)
}

/// As the kernel takes names, of bytes that need no quoting.
fn is_interface(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
    (1..16).contains(&name.len()) && name.bytes().all(fits) && name != "." && name != ".."
}
