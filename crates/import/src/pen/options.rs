//! Pen's options, then where it listens, then its servers.

use super::{ByKind, Listen, MAX_SERVERS, Pen, Place, Read, Server, server::split_host};
use crate::Error;

/// Options with a value.
const WITH_VALUE: &str = "BCFOSTbceijlmopqtuwxEKGAL";
/// Options that stand alone, or together behind one dash.
const PLAIN: &str = "DHPQUWXZRadfhnrsN";

/// What becomes of the length of the accept queue (`-q`).
const QUEUE: ByKind = ByKind {
    dsr: "not carried over: weir hands packets on and holds no connection, so there is nothing to limit",
    proxy: "not carried over: as many may wait to be accepted as the kernel allows (net.core.somaxconn)",
};
const TLS: &str = "TLS ends at the servers: give certificates and keys to them";

impl Pen {
    pub(super) fn read_options(&mut self, words: &[String], read: &Read<'_>) -> Result<(), Error> {
        let mut rest = words.iter().enumerate().peekable();
        // The program's own name, however it was called.
        rest.next_if(|(_, word)| word.rsplit('/').next() == Some("pen"));
        let (mut others, mut are_over) = (Vec::new(), false);
        // Pen reads the last one, when it has carried out all options.
        let mut file = None;
        while let Some((at, word)) = rest.next() {
            self.count()?;
            let place = format!("word {}", at + 1);
            let letters = match word.strip_prefix('-') {
                Some(letters) if !are_over && !letters.is_empty() => letters,
                _ => {
                    others.push((place, word.as_str()));
                    continue;
                }
            };
            if letters == "-" {
                are_over = true;
                continue;
            }
            for (index, letter) in letters.char_indices() {
                if !WITH_VALUE.contains(letter) {
                    self.plain_option(&place, letter, read)?;
                    continue;
                }
                let tail = &letters[index + letter.len_utf8()..];
                let value = match tail {
                    "" => rest.next().map(|(_, word)| word.as_str()),
                    tail => Some(tail),
                };
                let place = format!("{place} (-{letter})");
                match value {
                    Some(value) if letter == 'F' => {
                        if let Some((earlier, _)) = file.replace((place, value)) {
                            self.remark(
                                &earlier,
                                "not carried over: Pen reads the file of the last -F alone",
                            );
                        }
                    }
                    Some(value) => self.option(&place, letter, value, read)?,
                    None => self.remark(&place, "not carried over: its value is missing"),
                }
                break;
            }
        }
        if let Some((place, name)) = file {
            self.command(&place, &["include", name], read, 0)?;
        }
        let mut others = others.into_iter();
        if let Some((place, word)) = others.next() {
            self.listen_at(&place, word);
        }
        for (number, (place, word)) in others.enumerate() {
            self.set_server(number, place, word);
        }
        Ok(())
    }

    fn plain_option(&mut self, place: &str, letter: char, read: &Read<'_>) -> Result<(), Error> {
        let place = format!("{place} (-{letter})");
        let command = match letter {
            'H' => "http",
            'P' => "poll",
            'W' => "weight",
            'X' => "exit",
            'a' => "ascii",
            'h' => "hash",
            'r' => "roundrobin",
            's' => "stubborn",
            'd' => "debug",
            'U' => {
                self.is_udp = true;
                return Ok(());
            }
            'f' => {
                self.remark(
                    &place,
                    "nothing to do: `weir daemon` stays in the foreground, and systemd starts it",
                );
                return Ok(());
            }
            'Z' | 'R' => {
                self.remark(&place, &format!("not carried over: {TLS}"));
                return Ok(());
            }
            'D' | 'Q' | 'n' => {
                self.remark(
                    &place,
                    "nothing to do: Pen itself has no use for it any more",
                );
                return Ok(());
            }
            _ => {
                let what = match PLAIN.contains(letter) {
                    true => "Pen itself takes it for a mistake",
                    false => "it is no option of Pen's",
                };
                self.remark(&place, &format!("not carried over: {what}"));
                return Ok(());
            }
        };
        self.command(&place, &[command], read, 0)
    }

    fn option(
        &mut self,
        place: &str,
        letter: char,
        value: &str,
        read: &Read<'_>,
    ) -> Result<(), Error> {
        let command = match letter {
            'O' | 'o' => return self.read_line(place, value, read, 0),
            'T' => "tracking",
            'b' => "blacklist",
            'c' => "clients_max",
            'l' => "log",
            'm' => "pending_max",
            't' => "timeout",
            'w' => "web_stats",
            'x' => "conn_max",
            'e' => {
                let (server, _) = Server::parse(place, value);
                self.emergency = Some(server);
                return Ok(());
            }
            _ => {
                if letter == 'q' {
                    self.remark_by_kind(place, QUEUE);
                    return Ok(());
                }
                let text = match letter {
                    'B' => {
                        "not carried over: an abuse server for denied clients: weir drops what they send, before it looks for a pool"
                    }
                    'C' => {
                        "nothing to do: `weir pool`, `weir real` and the control socket (socket = \"…\") take its place, and ask who calls"
                    }
                    'j' => "not carried over: a chroot: the unit file confines the daemon",
                    'p' => {
                        "not carried over: a file for the process id: systemd has it (`systemctl show -p MainPID weir`)"
                    }
                    'u' => "nothing to do: the daemon gives up every right but those that it needs",
                    'S' => "nothing to do: Pen itself has no use for it any more",
                    'i' => "not carried over: it is for Windows",
                    _ => {
                        if matches!(letter, 'E' | 'K') {
                            self.tls.get_or_insert_with(|| place.to_owned());
                        }
                        self.remark(place, &format!("not carried over: {TLS}"));
                        return Ok(());
                    }
                };
                self.remark(place, text);
                return Ok(());
            }
        };
        self.command(place, &[command, value], read, 0)
    }

    /// `[host:]port`, or a path.
    pub(super) fn listen_at(&mut self, place: &str, word: &str) {
        if word.starts_with('/') {
            let text = "is a Unix socket; weir serves addresses";
            self.remark(place, &format!("not carried over: {word} {text}"));
            self.no_listen = Some(format!("{place}: {word} {text}"));
            return;
        }
        let (host, port) = match split_host(word) {
            (port, "") if !word.starts_with('[') => ("", port),
            parts => parts,
        };
        match port.parse() {
            Ok(port) => {
                self.listen = Some(Listen {
                    place: place.to_owned(),
                    host: host.to_owned(),
                    port,
                });
            }
            Err(_) => {
                let text = format!("{word}: which port is that? weir wants its number");
                self.remark(place, &format!("asked: {text}"));
                self.no_listen = Some(format!("{place}: {text}"));
            }
        }
    }

    /// One of the command line, which has the place of a file's of that number.
    fn set_server(&mut self, number: usize, place: Place, word: &str) {
        if number >= MAX_SERVERS {
            self.remark(
                "the command line",
                &format!("not carried over: servers beyond the first {MAX_SERVERS}"),
            );
            return;
        }
        let (server, wrong) = Server::parse(&place, word);
        for text in wrong {
            self.remark(
                &place,
                &format!("not carried over: {text}: it is no number there"),
            );
        }
        // Of the one before it keeps the list.
        let before = self.servers.remove(&number).unwrap_or_default();
        let acl = before.acl;
        self.servers.insert(number, Server { acl, ..server });
    }
}
