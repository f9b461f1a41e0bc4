//! Which clients Pen asks which of its access lists about, and what of them has no place
//! here. A proxy of Pen's asks client_acl, which is list 0 unless somebody chose another, then
//! the list of the server, which is list 0 as well; with dsr_if it asks none of them. What a
//! running Pen was told by penctl stands in no file.

use super::Pen;

/// Rules that `acl` of a pool takes.
const MAX_RULES: usize = 64;

/// The list that says which clients the pool serves.
pub(super) fn of_clients(pen: &Pen) -> Option<usize> {
    match pen.client_acl {
        None if pen.is_proxy() && pen.acls[0].typed() > 0 => Some(0),
        typed => typed,
    }
}

/// The lists of servers that a proxy of Pen's asks besides, and that deny somebody.
fn of_servers(pen: &Pen) -> Vec<usize> {
    let clients = of_clients(pen);
    let is_asked = |number: &usize| {
        let mut servers = pen.servers.values().chain(&pen.emergency);
        pen.is_proxy()
            && Some(*number) != clients
            && pen.acls[*number].typed() > 0
            && servers.any(|server| server.acl == *number)
    };
    (0..pen.acls.len()).filter(is_asked).collect()
}

/// Why the pool would serve clients whom Pen denies, or deny others, if it was in force as
/// it stands.
pub(super) fn obstacle(pen: &Pen) -> Option<String> {
    if let Some(place) = &pen.doubtful {
        return Some(format!(
            "{place} may be read otherwise by Pen (the number of a list is one of 0 to 9, and only blanks separate words): which clients it serves is not known."
        ));
    }
    let number = of_clients(pen);
    let acl = number.map(|number| (number, &pen.acls[number]));
    let count = acl.map_or(0, |(_, acl)| acl.rules().len());
    if count > MAX_RULES {
        return Some(format!(
            "client_acl has {count} entries, and `acl` takes {MAX_RULES}: put the prefixes into the file of a [list.NAME], name that in `acl`, with `acl_default`."
        ));
    }
    if let Some((number, (lost, first))) = acl.and_then(|(n, acl)| Some((n, acl.lost()?))) {
        return Some(format!(
            "{lost} of the entries of acl {number}, which says whom Pen serves, could not be taken over, the first at {first}: `acl` and `acl_default` lack them."
        ));
    }
    let [number, ..] = of_servers(pen)[..] else {
        return None;
    };
    Some(format!(
        "acl {number} says which clients a server takes, beside what client_acl says, and weir has one list for a pool: `acl` and `acl_default` have to say both."
    ))
}

/// The list of clients as rules, and what holds for clients that none is about: whether they
/// are allowed.
pub(super) fn rules(pen: &Pen) -> Option<(Vec<String>, bool)> {
    let acl = &pen.acls[of_clients(pen)?];
    let rules = acl.rules();
    let fits = (1..=MAX_RULES).contains(&rules.len());
    fits.then(|| (rules, acl.permits_others()))
}

/// What has to be said about lists, whether the pool is in force or not.
pub(super) fn remarks(pen: &Pen) -> Vec<String> {
    let (clients, servers) = (of_clients(pen), of_servers(pen));
    let mut told = Vec::new();
    if let Some(number) = clients {
        told.extend(about_clients(pen, number));
    }
    for number in &servers {
        let all = pen.servers.values().chain(&pen.emergency);
        let named: Vec<_> = all
            .filter(|server| server.acl == *number)
            .map(|server| format!("{:?}", server.host))
            .collect();
        told.push(format!(
            "not carried over: acl {number}: Pen asks it before a client comes to {}: no server has a list of its own here.",
            named.join(", ")
        ));
    }
    let is_used = |number: &usize| {
        clients == Some(*number) || pen.tarpit_acl == Some(*number) || servers.contains(number)
    };
    for number in (0..pen.acls.len()).filter(|number| !is_used(number)) {
        let entries = match pen.acls[number].typed() {
            0 => continue,
            1 => "1 entry".to_owned(),
            count => format!("{count} entries"),
        };
        let why = match pen.is_proxy() {
            true => "neither client_acl, nor tarpit_acl, nor a server has it",
            false => {
                "with dsr_if Pen asks tarpit_acl alone, and whoever knows the address is served"
            }
        };
        told.push(format!("not carried over: acl {number}, {entries}: {why}."));
    }
    let is_open = |number: &usize| is_used(number) && pen.acls[*number].typed() > 0;
    if (0..pen.acls.len()).any(|number| is_open(&number)) {
        told.push("asked: does the running Pen have the same lists? What penctl changed since its start is in no file: `penctl ADDRESS write FILE` writes it, and `weir import pen 'pen -F FILE ...'` reads it.".to_owned());
    }
    told
}

fn about_clients(pen: &Pen, number: usize) -> Vec<String> {
    let acl = &pen.acls[number];
    let name = match pen.client_acl {
        Some(_) => format!("client_acl {number}"),
        None => format!("acl {number}, which Pen asks without a client_acl,"),
    };
    if acl.typed() == 0 {
        return vec![format!(
            "nothing to do: {name}: the list is empty and permits everybody."
        )];
    }
    let mut told = Vec::new();
    if acl.lost().is_none() && rules(pen).is_some() {
        let others = match acl.permits_others() {
            true => "permits",
            false => "denies",
        };
        told.push(format!("changed: {name} is `acl` of the pool; clients that no entry names it {others}, the opposite of its last entry, and here `acl_default` says so."));
    }
    if !pen.is_proxy() {
        told.push(format!("changed: with dsr_if Pen asks client_acl about nobody and serves everybody; here it holds. Leave `acl` and `acl_default` out if clients that {name} denies are served today."));
    }
    if acl.has_country() {
        told.push(format!("asked: {name}: has this Pen GeoIP and its database? Without them no entry with a country matches anybody there; here countries are those of weir's own database."));
    }
    told
}

#[cfg(test)]
mod tests {
    use crate::pen::{Imported, command_line};

    fn imported(line: &str, files: &[(&str, &str)]) -> Imported {
        let read = |name: &str| {
            let file = files.iter().find(|(known, _)| *known == name);
            file.map(|(_, text)| (*text).to_owned())
                .ok_or_else(|| format!("no {name}"))
        };
        let all = format!("pen {line} 192.0.2.10:80 192.0.2.2 192.0.2.3");
        command_line(&all, &read).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// Lines that Pen reads otherwise than they look: who is served is left to a person.
    #[test]
    fn a_pool_whose_lists_are_read_in_doubt_is_a_comment() {
        for lines in [
            "acl 1x permit 192.0.2.1\nclient_acl 1",
            "acl 1 permit 192.0.2.1\nclient_acl 1x",
            "server 0 acl 12",
            "server 0 acl -1",
            "acl 0 permit 127.0.0.0\t255.0.0.0",
            "acl 0 permit 127.0.0.1\r",
            "acl 0 permit 192.0.2.1\n\tno acl 0",
            "acl 0 permit 2001:db8::1/64",
            "acl 0 permit country de",
        ] {
            let files = [("pen.cfg", lines)];
            let got = imported("-F pen.cfg", &files);
            assert!(got.incomplete.is_some(), "{lines:?}\n{}", got.text);
        }
        assert!(
            imported("-O 'acl 0 permit\t192.0.2.1'", &[])
                .incomplete
                .is_some()
        );
        for lines in [
            "acl 1 permit 192.0.2.1\nclient_acl 1",
            "log\tfile\nacl 0 permit 2001:db8::/64",
            "acl 0 permit 192.0.2.1\nno acl 0 # old",
        ] {
            let files = [("pen.cfg", lines)];
            assert_eq!(imported("-F pen.cfg", &files).incomplete, None, "{lines:?}");
        }
    }

    /// Pen carries out all options, and reads the last file then.
    #[test]
    fn a_file_is_read_behind_all_options() {
        let one = "no acl 1\nacl 1 permit 198.51.100.0 255.255.255.0\nclient_acl 1";
        let files = [
            ("one", one),
            ("two", "client_acl 1\nacl 1 permit 203.0.113.1"),
        ];
        for line in [
            "-F one -O 'no acl 1'",
            "-F one -O 'client_acl 0'",
            "-F two -F one",
        ] {
            let text = imported(line, &files).text;
            assert!(text.contains("\"allow 198.51.100.0/24\""), "{line}\n{text}");
            assert!(!text.contains("203.0.113.1"), "{line}\n{text}");
        }
        let text = imported("", &[]).text + &imported("-O 'no acl 0 # old'", &[]).text;
        assert!(!text.contains("acl ="), "{text}");
    }

    /// A pool that would serve by fewer servers, at other ports, or without TLS.
    #[test]
    fn a_pool_that_lacks_something_of_pens_is_a_comment() {
        let whole = |line: &str| {
            let got = command_line(&format!("pen {line}"), &|name| Err(name.to_owned()));
            got.unwrap().incomplete.is_none()
        };
        for line in [
            "198.51.100.80:80 web1.example.org 10.1.1.12",
            "-E cert.pem 198.51.100.80:443 10.1.1.11:80",
            "-df -O 'dsr_if eth0' 198.51.100.80:80 198.51.100.11:8080",
            "-r 198.51.100.80:80 10.1.1.11:8081 10.1.1.11:8082",
            "198.51.100.80:80 198.51.100.80:8080 10.1.1.12",
        ] {
            assert!(!whole(line), "{line}");
        }
        for line in [
            "198.51.100.80:80 10.1.1.11 10.1.1.11 10.1.1.12:8080",
            "-df -O 'dsr_if eth0' 198.51.100.80:80 198.51.100.11:80 198.51.100.12",
            "-df -O 'dsr_if eth0' 198.51.100.80:0 198.51.100.11:80 198.51.100.12",
        ] {
            assert!(whole(line), "{line}");
        }
    }

    /// A server of the command line has the place of the file's with its number.
    #[test]
    fn a_server_of_the_command_line_takes_the_place_of_a_files() {
        let files = [(
            "f",
            "server 0 address 192.0.2.99 port 81 acl 2\nserver 2 address 192.0.2.4",
        )];
        let text = imported("-F f", &files).text;
        for host in ["192.0.2.2", "192.0.2.3", "192.0.2.4"] {
            assert!(text.contains(&format!("\"{host}\"")), "{text}");
        }
        assert!(!text.contains("192.0.2.99"), "{text}");
    }
}
