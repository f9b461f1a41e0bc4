//! What was understood, as TOML.

use std::net::IpAddr;

use toml::{Table, Value};
use weir_core::Prefix;

use super::{Listen, Pen, Server, server::unicast};
use crate::Toml;

/// The name of the pool.
const POOL: &str = "pen";
/// The most that `weight`, `rise` and `timeout` take, and prefixes of `addresses`.
const MAX_WEIGHT: u64 = 1000;
const MAX_RISE: u64 = 100;
const MAX_TIMEOUT: u64 = 60;
const MAX_PREFIXES: usize = 256;
/// How often weir asks the servers whether they live.
const INTERVAL: u64 = 2;

pub(super) fn configuration(mut pen: Pen) -> String {
    let mut toml = Toml::default();
    toml.line(
        "# Made by `weir import pen`. Comments say what changes, what is asked back because Pen's",
    );
    toml.line(
        "# configuration does not say it, and what is not carried over, each with its place there.",
    );
    toml.line("");
    match &pen.interface {
        Some(name) => {
            toml.note(&format!("changed: dsr_if {name}: with Pen the interface had no address and nothing else to do; weir leaves it its addresses and takes only what is for the pool. Without a backend that hands packets on there is no balancing: `weir check` says so."));
            toml.set("interfaces", vec![name.as_str()]);
        }
        None => toml.set("interfaces", "auto"),
    }
    if !pen.remarks.is_empty() {
        toml.line("");
    }
    for remark in std::mem::take(&mut pen.remarks) {
        toml.note(&remark);
    }
    let vip = pen.listen.as_ref().and_then(|listen| unicast(&listen.host));
    let reals = reals(&pen, vip, &mut toml);
    pool(&pen, vip, &reals, &mut toml);
    tarpit(&pen, vip, &reals, &mut toml);
    toml.finish()
}

/// The servers that weir can send to.
fn reals<'a>(pen: &'a Pen, vip: Option<IpAddr>, toml: &mut Toml) -> Vec<(IpAddr, &'a Server)> {
    let mut reals: Vec<(IpAddr, &Server)> = Vec::new();
    for server in pen.servers.values() {
        let at = format!("{}: server {:?}", server.place, server.host);
        let Some(address) = server.address() else {
            toml.note(&format!("asked: {at}: which address is that? weir wants that of one host on the interface's segment."));
            continue;
        };
        if Some(address) == vip {
            toml.note(&format!(
                "asked: {at} is the address at which Pen listens: a server has one of its own."
            ));
            continue;
        }
        if reals.iter().any(|(known, _)| *known == address) {
            toml.note(&format!(
                "not carried over: {at} is there already; it gets more with a larger weight."
            ));
            continue;
        }
        if server.max > 0 || server.hard > 0 {
            toml.note(&format!("not carried over: {at}: max {}, hard {}: connections of a server are not counted here; let it limit them itself.", server.max, server.hard));
        }
        if server.prio > 0 {
            toml.note(&format!("not carried over: {at}: prio {}: servers are not ranked; `weir real weight` changes weights while it runs.", server.prio));
        }
        reals.push((address, server));
    }
    reals
}

fn pool(pen: &Pen, vip: Option<IpAddr>, reals: &[(IpAddr, &Server)], toml: &mut Toml) {
    toml.line("");
    let Some(listen) = &pen.listen else {
        toml.note("asked: where does Pen listen? Neither the command line nor a `listen` says it: no pool is made.");
        return;
    };
    let is_proxy = pen.interface.is_none();
    if is_proxy {
        toml.note("changed: without dsr_if Pen is a proxy: it accepts connections and makes its own to the servers. weir hands packets on, and the servers answer the clients themselves: each needs the virtual address on its loopback interface (docs/guide/balance.md says how), and is on the segment of the interface.");
        toml.note("asked: which interface is that?");
    }
    let whole = vip.is_some() && !reals.is_empty();
    if !whole {
        let why = match vip {
            None => format!(
                "{}: {:?} is not the address of one host, and clients need one that is for the pool alone. Complete this and take the # away:",
                listen.place, listen.host
            ),
            Some(_) => "no server is left. Complete this and take the # away:".to_owned(),
        };
        toml.note(&format!("asked: {why}"));
    }
    if whole {
        toml.note("changed: Pen answers ARP for its address whoever else has it; `announce` adds it to the interface once nobody has, and announces it.");
    }
    // A table that is not whole is there as a comment.
    let mut table = |name: &str, settings: Vec<(&str, Value)>| {
        match whole {
            true => toml.section(name),
            false => toml.line(&format!("#\n#[{name}]")),
        }
        for (key, value) in settings {
            match whole {
                true => toml.set(key, value),
                false => toml.suggest(key, value),
            }
        }
    };
    let interface = pen.interface.as_deref().unwrap_or("eth0");
    table(
        "balance",
        vec![("interface", interface.into()), ("announce", true.into())],
    );
    let ports = ports(pen, listen);
    let vip = vip.map_or("192.0.2.80".to_owned(), |vip| vip.to_string());
    let list: Vec<Value> = match reals {
        [] => vec![real(IpAddr::from([192, 0, 2, 11]), 1)],
        reals => reals
            .iter()
            .map(|(address, server)| real(*address, weight(pen, server)))
            .collect(),
    };
    table(
        &format!("pool.{POOL}"),
        vec![
            ("vip", vec![vip].into()),
            ("ports", ports.clone().into()),
            ("reals", list.into()),
            ("method", "maglev".into()),
            ("check", check(pen, listen).into()),
        ],
    );
    if !whole {
        return;
    }
    for text in differences(pen, listen, reals) {
        toml.note(&text);
    }
}

fn real(address: IpAddr, weight: u64) -> Value {
    let mut table = Table::new();
    table.insert("address".to_owned(), address.to_string().into());
    if weight != 1 {
        table.insert("weight".to_owned(), (weight as i64).into());
    }
    table.into()
}

/// As a direct server return takes it there, where 0 is 1; a proxy takes it with `-W`,
/// and 0 for no connection.
fn weight(pen: &Pen, server: &Server) -> u64 {
    match (&pen.interface, pen.is_weighted) {
        (Some(_), _) => server.weight.clamp(1, MAX_WEIGHT),
        (None, true) => server.weight.min(MAX_WEIGHT),
        (None, false) => 1,
    }
}

fn ports(pen: &Pen, listen: &Listen) -> Vec<String> {
    match (listen.port, pen.is_udp) {
        (0, true) => vec!["53/udp".to_owned()],
        (0, false) => vec!["80/tcp".to_owned(), "443/tcp".to_owned()],
        (port, true) => vec![format!("{port}/udp")],
        (port, false) => vec![format!("{port}/tcp")],
    }
}

fn check(pen: &Pen, listen: &Listen) -> Table {
    let mut check = Table::new();
    let mut set = |key: &str, value: Value| check.insert(key.to_owned(), value);
    if pen.is_udp {
        match listen.port {
            0 | 53 => set("dns", ".".into()),
            _ => set("udp", "ping".into()),
        };
    }
    set("interval", format!("{INTERVAL}s").into());
    if let Some(seconds) = pen.timeout {
        set(
            "timeout",
            format!("{}s", seconds.clamp(1, MAX_TIMEOUT)).into(),
        );
    }
    if let Some(seconds) = pen.blacklist {
        let times = seconds.div_ceil(INTERVAL).clamp(1, MAX_RISE);
        set("rise", (times as i64).into());
    }
    check
}

/// What the pool does otherwise than Pen did.
fn differences(pen: &Pen, listen: &Listen, reals: &[(IpAddr, &Server)]) -> Vec<String> {
    let mut told = Vec::new();
    if listen.port == 0 {
        told.push(format!("asked: {}: port 0 is every port. Name in `ports` those that the servers serve; these are a guess.", listen.place));
    }
    for (address, server) in reals {
        if server.port != 0 && server.port != listen.port {
            told.push(format!("asked: {}: {address} is served at port {}, and packets are handed on with the port that they have, {}: have the server listen there.", server.place, server.port, listen.port));
        }
        if server.weight > MAX_WEIGHT {
            told.push(format!(
                "changed: {}: weight {} of {address} is more than {MAX_WEIGHT}, the largest here.",
                server.place, server.weight
            ));
        }
        if pen.interface.is_none() && !pen.is_weighted && server.weight > 0 {
            told.push(format!("not carried over: {}: weight {} of {address}: without -W Pen does not use it either.", server.place, server.weight));
        }
    }
    told.push(match (pen.interface.is_some(), pen.is_round_robin) {
        (true, true) => "changed: -r is no round robin in Pen's dsr mode, but a hash of source address and port; maglev is a hash of both addresses and ports, with weights, that moves few connections when servers come and go.",
        (true, false) => "changed: Pen's dsr mode chooses by a hash of the source address, so that a client always meets one server; maglev is a hash of both addresses and ports: the connections of a client meet several.",
        (false, true) => "changed: for round robin: maglev is a hash of both addresses and ports, which spreads connections as evenly.",
        (false, false) if pen.is_hash => "changed: -h is a hash of the source address, so that a client always meets one server; maglev is a hash of both addresses and ports: the connections of a client meet several.",
        (false, false) => "changed: Pen sends a client that comes back to the server that it had; with maglev, a hash of both addresses and ports, its connections meet several.",
    }.to_owned());
    let rise = match pen.blacklist {
        Some(seconds) => format!(
            " As after blacklist {seconds} a server that has died is out for at least so many seconds, {} at most: rise times interval.",
            MAX_RISE * INTERVAL
        ),
        None => String::new(),
    };
    told.push(format!("changed: Pen's dsr mode never asks whether a server lives, and its proxy finds out by a client's failure. Here each is asked every {INTERVAL} s and leaves after three failures in a row.{rise}"));
    if pen.is_udp && !matches!(listen.port, 0 | 53) {
        told.push("asked: what does a server answer? `udp = \"ping\"` only finds out whether nobody is at the port.".to_owned());
    }
    if let Some(server) = &pen.emergency {
        told.push(format!("not carried over: {}: the emergency server {:?}: give it to the pool with weight = 0, and a weight by `weir real weight` when it is needed. In Pen it served clients as well that an access list denied.", server.place, server.host));
    }
    if let Some(number) = pen.client_acl {
        let others = match pen.acls[number].permits_others() {
            true => "permits",
            false => "denies",
        };
        told.push(format!("not carried over: client_acl {number}: put prefixes into a file for [list.NAME] (action = \"deny\" or \"allow\"), countries into [geofence]; clients that no entry names the list {others}, the opposite of its last entry. Both hold for all of this host's ports unless `ports` says which."));
    }
    told
}

fn tarpit(pen: &Pen, vip: Option<IpAddr>, reals: &[(IpAddr, &Server)], toml: &mut Toml) {
    let Some(number) = pen.tarpit_acl else {
        return;
    };
    let acl = &pen.acls[number];
    toml.line("");
    if pen.interface.is_none() || pen.is_udp {
        toml.note("not carried over: tarpit_acl: Pen has tarpits only with dsr_if and for TCP.");
        return;
    }
    if acl.has_country() {
        toml.note(&format!("not carried over: tarpit_acl {number}: countries: an address that nobody has is in none."));
    }
    let mut others = Vec::new();
    if acl.permits_others() {
        let segment = vip.and_then(|vip| Prefix::new(vip, if vip.is_ipv4() { 24 } else { 120 }));
        others.extend(segment);
        let guess = match segment {
            Some(segment) => format!(
                "Here it is every address of {segment}, a guess, but those. Which addresses does nobody have?"
            ),
            None => "Which addresses does nobody have?".to_owned(),
        };
        toml.note(&format!("asked: tarpit_acl {number}: its last entry denies, or it has none, so every address that it does not name is permitted: Pen answers for the whole segment. {guess}"));
    }
    let mut without: Vec<IpAddr> = reals.iter().map(|(address, _)| *address).collect();
    without.extend(vip);
    let named = acl.permitted(&[], &without);
    let of_others = acl.permitted(&others, &without);
    let of_others = of_others.iter().filter(|p| named.covering(*p).is_none());
    let (named, dark): (Vec<Prefix>, Vec<Prefix>) = (named.iter().collect(), of_others.collect());
    let takes = |prefixes: &[Prefix], toml: &mut Toml| -> Vec<String> {
        let (hosts, others): (Vec<Prefix>, Vec<Prefix>) =
            prefixes.iter().partition(|prefix| is_unicast(**prefix));
        for prefix in others {
            toml.note(&format!("asked: tarpit_acl {number} permits {prefix}, which is too much, or no addresses of hosts."));
        }
        hosts.iter().map(Prefix::to_string).collect()
    };
    let (named, dark) = (takes(&named, toml), takes(&dark, toml));
    if named.len() + dark.len() > MAX_PREFIXES {
        toml.note(&format!("asked: tarpit_acl {number}: that takes {} prefixes, and at most {MAX_PREFIXES} are taken here; leave single addresses out.", named.len() + dark.len()));
        return;
    }
    toml.note("changed: each address is held on all its TCP ports but those of [decoy], over IPv4 and IPv6; one that somebody has by now is left alone, and so are the pool's. Duplicate-address detection is not answered.");
    if !dark.is_empty() {
        toml.note("changed: an address that no entry names (`dark`) is held once nobody has answered for it; Pen takes each at once, also those that somebody has.");
    }
    if named.is_empty() && dark.is_empty() {
        return;
    }
    toml.section("tarpit");
    for (key, prefixes) in [("addresses", named), ("dark", dark)] {
        if !prefixes.is_empty() {
            toml.set(key, prefixes);
        }
    }
}

/// Whether `addresses` takes the prefix.
fn is_unicast(prefix: Prefix) -> bool {
    match prefix.addr() {
        IpAddr::V4(addr) => prefix.bits() >= 8 && !matches!(addr.octets()[0], 0 | 127 | 224..),
        IpAddr::V6(addr) => {
            prefix.bits() >= 32 && !matches!(addr.segments()[0], 0 | 0xfe80..=0xfebf | 0xff00..)
        }
    }
}
