//! What was understood, as TOML.

use std::net::IpAddr;

use toml::{Table, Value};
use weir_core::Prefix;

use super::{Imported, Listen, Pen, Said, Server, lists, server::unicast};
use crate::Toml;

/// The name of the pool.
const POOL: &str = "pen";
/// The most that `weight`, `rise`, `timeout` and `connect_timeout`, `idle_timeout` and
/// `max_connections` take, and prefixes of `addresses`.
const MAX_WEIGHT: u64 = 1000;
const MAX_RISE: u64 = 100;
const MAX_TIMEOUT: u64 = 60;
const MAX_IDLE: u64 = 86_400;
const MAX_CONNECTIONS: u64 = 1_000_000;
const MAX_PREFIXES: usize = 256;
/// How often weir asks the servers whether they live.
const INTERVAL: u64 = 2;

pub(super) fn configuration(mut pen: Pen) -> Imported {
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
    let is_proxy = pen.is_proxy();
    for remark in std::mem::take(&mut pen.remarks) {
        let text = match &remark.text {
            Said::Always(text) => text,
            Said::ByKind(texts) if is_proxy => texts.proxy,
            Said::ByKind(texts) => texts.dsr,
        };
        if !text.is_empty() {
            toml.note(&format!("{}: {text}", remark.place));
        }
    }
    let vip = pen.listen.as_ref().and_then(|listen| unicast(&listen.host));
    let reals = reals(&pen, vip, &mut toml);
    for remark in lists::remarks(&pen) {
        toml.note(&remark);
    }
    let incomplete = pool(&pen, vip, &reals, &mut toml);
    tarpit(&pen, vip, &reals, &mut toml);
    Imported {
        text: toml.finish(),
        incomplete,
    }
}

/// The servers that weir can send to.
fn reals<'a>(pen: &'a Pen, vip: Option<IpAddr>, toml: &mut Toml) -> Vec<(IpAddr, &'a Server)> {
    let mut reals: Vec<(IpAddr, &Server)> = Vec::new();
    for server in pen.servers.values() {
        let at = format!("{}: server {:?}", server.place, server.host);
        let Some(address) = server.address() else {
            toml.note(&format!(
                "asked: {at}: which address is that? weir wants that of one host{}.",
                if pen.is_proxy() {
                    ""
                } else {
                    " on the interface's segment"
                }
            ));
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
            toml.note(&format!("not carried over: {at}: max {}, hard {}: there is no limit for one server; let it limit them itself.", server.max, server.hard));
        }
        if server.prio > 0 {
            toml.note(&format!("not carried over: {at}: prio {}: servers are not ranked; `weir real weight` changes weights while it runs, and `emergency` of the pool has those that serve when no other does.", server.prio));
        }
        reals.push((address, server));
    }
    reals
}

/// Writes the pool; the result says why it is there as a comment only.
fn pool(
    pen: &Pen,
    vip: Option<IpAddr>,
    reals: &[(IpAddr, &Server)],
    toml: &mut Toml,
) -> Option<String> {
    toml.line("");
    let listen = pen.listen.as_ref()?;
    let is_proxy = pen.is_proxy();
    let incomplete = match vip {
        None if listen.host.is_empty() => Some(format!(
            "{}: Pen listens at all addresses of this host; at which one does the pool serve?",
            listen.place
        )),
        None => Some(format!(
            "{}: {:?} is not the address of one host, and clients need one that is for the pool alone.",
            listen.place, listen.host
        )),
        Some(_) if reals.is_empty() => Some("no server is left.".to_owned()),
        // Without its list the pool would serve those whom Pen denies.
        Some(_) => lists::obstacle(pen).or_else(|| lacks(pen, vip, listen)),
    };
    let whole = incomplete.is_none();
    if let Some(why) = &incomplete {
        toml.note(&format!("asked: {why} Complete this and take the # away:"));
    }
    if whole && !is_proxy {
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
    if let Some(interface) = pen.interface.as_deref() {
        table(
            "balance",
            vec![("interface", interface.into()), ("announce", true.into())],
        );
    }
    let shown = vip.map_or("192.0.2.80".to_owned(), |vip| vip.to_string());
    let list: Vec<Value> = match reals {
        [] => vec![real(IpAddr::from([192, 0, 2, 11]), 1, None)],
        reals => reals
            .iter()
            .map(|(address, server)| real(*address, weight(pen, server), port(pen, listen, server)))
            .collect(),
    };
    let mut settings: Vec<(&str, Value)> = vec![
        ("vip", vec![shown].into()),
        ("ports", ports(pen, listen).into()),
        ("reals", list.into()),
        ("method", method(pen).into()),
    ];
    if is_proxy {
        settings.insert(0, ("forward", "proxy".into()));
        settings.extend(relaying(pen, vip, reals));
    }
    if let Some((address, server)) = emergency(pen, vip, reals) {
        let one = real(address, 1, port(pen, listen, server));
        settings.push(("emergency", vec![one].into()));
    }
    settings.extend(access(pen));
    settings.push(("check", check(pen, listen).into()));
    table(&format!("pool.{POOL}"), settings);
    if whole {
        for text in differences(pen, listen, vip, reals) {
            toml.note(&text);
        }
    }
    incomplete
}

/// What the pool would lack, if it was in force as it stands: a server, its port, TLS.
fn lacks(pen: &Pen, vip: Option<IpAddr>, listen: &Listen) -> Option<String> {
    if let Some(place) = pen.tls.as_ref().filter(|_| pen.is_proxy()) {
        return Some(format!(
            "{place}: Pen ends TLS, and weir hands bytes on: the servers need the certificate, and their port for TLS."
        ));
    }
    let mut known: Vec<(IpAddr, u16)> = Vec::new();
    for server in pen.servers.values() {
        let at = format!("{}: server {:?}", server.place, server.host);
        let Some(address) = server.address().filter(|address| Some(*address) != vip) else {
            return Some(format!("{at} is not in `reals`."));
        };
        let port = if server.port == 0 {
            listen.port
        } else {
            server.port
        };
        if !pen.is_proxy() && listen.port != 0 && port != listen.port {
            return Some(format!(
                "{at}: packets keep the port {} that they have: the server has to listen there, and not at {port}.",
                listen.port
            ));
        }
        if known
            .iter()
            .any(|(of, other)| *of == address && *other != port)
        {
            return Some(format!(
                "{at} is another server of a host that is in `reals`, which has one port there: give one of them another address."
            ));
        }
        known.push((address, port));
    }
    None
}

/// Which server a new connection meets. Without an option Pen's proxy sends a client to the
/// server that it had, and with `-W` to the one with the fewest connections for its weight.
fn method(pen: &Pen) -> &'static str {
    match (pen.is_proxy(), pen.is_round_robin, pen.is_weighted) {
        (false, ..) => "maglev",
        (true, true, _) => "round-robin",
        (true, _, true) => "least-connections",
        (true, ..) => "source-hash",
    }
}

/// What a proxy has besides.
fn relaying(
    pen: &Pen,
    vip: Option<IpAddr>,
    reals: &[(IpAddr, &Server)],
) -> Vec<(&'static str, Value)> {
    let seconds = |seconds: u64| Value::from(format!("{seconds}s"));
    let mut settings = Vec::new();
    if pen.is_transparent && is_one_family(vip, reals) {
        settings.push(("transparent", true.into()));
    }
    if let Some(most) = pen.connections {
        let most = most.clamp(1, MAX_CONNECTIONS) as i64;
        settings.push(("max_connections", most.into()));
    }
    if let Some(time) = pen.timeout {
        settings.push(("connect_timeout", seconds(time.clamp(1, MAX_TIMEOUT))));
    }
    if let Some(time) = pen.idle_timeout.filter(|time| *time > 0) {
        settings.push(("idle_timeout", seconds(time.min(MAX_IDLE))));
    }
    settings
}

/// Only then a server can see the client's address.
fn is_one_family(vip: Option<IpAddr>, reals: &[(IpAddr, &Server)]) -> bool {
    let is_v4 = vip.is_some_and(|vip| vip.is_ipv4());
    reals.iter().all(|(address, _)| address.is_ipv4() == is_v4)
}

/// The emergency server, where it can be one.
fn emergency<'a>(
    pen: &'a Pen,
    vip: Option<IpAddr>,
    reals: &[(IpAddr, &Server)],
) -> Option<(IpAddr, &'a Server)> {
    let server = pen.emergency.as_ref()?;
    let address = server.address()?;
    let is_other = Some(address) != vip && reals.iter().all(|(known, _)| *known != address);
    let fits = !(pen.is_proxy() && pen.is_transparent)
        || vip.is_some_and(|vip| vip.is_ipv4() == address.is_ipv4());
    (is_other && fits).then_some((address, server))
}

/// The list of clients as the pool's own.
fn access(pen: &Pen) -> Vec<(&'static str, Value)> {
    let Some((rules, are_others_allowed)) = lists::rules(pen) else {
        return Vec::new();
    };
    let others = match are_others_allowed {
        true => "allow",
        false => "deny",
    };
    vec![("acl", rules.into()), ("acl_default", others.into())]
}

/// The port of a server's own, which only a proxy can send to.
fn port(pen: &Pen, listen: &Listen, server: &Server) -> Option<u16> {
    let differs = server.port != 0 && server.port != listen.port;
    (pen.is_proxy() && differs).then_some(server.port)
}

fn real(address: IpAddr, weight: u64, port: Option<u16>) -> Value {
    let mut table = Table::new();
    table.insert("address".to_owned(), address.to_string().into());
    if weight != 1 {
        table.insert("weight".to_owned(), (weight as i64).into());
    }
    if let Some(port) = port {
        table.insert("port".to_owned(), i64::from(port).into());
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
        (0, true) if pen.is_proxy() => vec!["53/udp".to_owned()],
        (0, false) if pen.is_proxy() => vec!["80/tcp".to_owned(), "443/tcp".to_owned()],
        (0, true) => vec!["1-65535/udp".to_owned()],
        (0, false) => vec!["1-65535/tcp".to_owned()],
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
    if listen.port == 0 && !pen.is_proxy() {
        set("port", i64::from(if pen.is_udp { 53 } else { 80 }).into());
    }
    set("interval", format!("{INTERVAL}s").into());
    if let Some(seconds) = pen.timeout.filter(|_| !pen.is_proxy()) {
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
fn differences(
    pen: &Pen,
    listen: &Listen,
    vip: Option<IpAddr>,
    reals: &[(IpAddr, &Server)],
) -> Vec<String> {
    let mut told = Vec::new();
    if listen.port == 0 {
        told.push(match pen.is_proxy() {
            true => format!("asked: {}: port 0 is every port. Name in `ports` those that the servers serve; these are a guess.", listen.place),
            false => format!("asked: {}: port 0 is every port, and none is the one at which servers are asked whether they live: `port` in `check` is a guess. This host's own services at the virtual address are reached no more, SSH neither: keep another address of this host for them.", listen.place),
        });
    }
    for (address, server) in reals {
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
    told.push(match (pen.is_proxy(), pen.is_round_robin, pen.is_weighted) {
        (false, true, _) => "changed: -r is no round robin in Pen's dsr mode, but a hash of source address and port; maglev is a hash of both addresses and ports, with weights, that moves few connections when servers come and go.",
        (false, false, _) => "changed: Pen's dsr mode chooses by a hash of the source address, so that a client always meets one server; maglev is a hash of both addresses and ports: the connections of a client meet several.",
        (true, true, _) => "changed: servers take turns, as in Pen.",
        (true, false, true) => "changed: as with -W the server with the fewest connections for its weight is next; Pen sends a client that comes back to the server that it had.",
        (true, false, false) if pen.is_hash => "changed: as with -h a client always meets one server, by a hash of its whole address; Pen hashes an IPv6 address's last byte only.",
        (true, false, false) => "changed: Pen sends a client that comes back to the server that it had, and a new one to the next; here a hash of its address says which, so that it always meets one.",
    }.to_owned());
    if pen.is_proxy() {
        told.push("changed: the virtual address has to be on this host, as for Pen; a client's connection that is denied or that nobody serves is reset.".to_owned());
        if pen.is_transparent && is_one_family(vip, reals) {
            told.push("asked: does each server's answer come back through this host? `transparent` takes routes that docs/guide/proxy.md shows.".to_owned());
        } else if pen.is_transparent {
            told.push("not carried over: transparent: the virtual address and the servers are of both families, and no server can see a client's address of the other one.".to_owned());
        } else {
            told.push("changed: the servers see this host as the client, as with Pen; `proxy_protocol = \"v2\"` tells them who it is, if they take it.".to_owned());
        }
        for (name, typed, most) in [
            ("conn_max", pen.connections, MAX_CONNECTIONS),
            ("timeout", pen.timeout, MAX_TIMEOUT),
            ("idle_timeout", pen.idle_timeout, MAX_IDLE),
        ] {
            if let Some(typed) =
                typed.filter(|typed| *typed > most || (*typed == 0 && name != "idle_timeout"))
            {
                told.push(format!(
                    "changed: {name} {typed} is out of range here: at least 1 and at most {most}."
                ));
            }
        }
    }
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
        told.push(match emergency(pen, vip, reals) {
            Some(_) => "changed: in Pen the emergency server served clients as well that an access list denied; here it serves nobody whom the pool does not.".to_owned(),
            None => format!("asked: {}: the emergency server {:?}: which address is that? weir wants that of one host that is no other server, as `emergency` of the pool.", server.place, server.host),
        });
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
    if let Some((lost, first)) = acl.lost() {
        toml.note(&format!("asked: tarpit_acl {number}: {lost} of its entries could not be taken over, the first at {first}. No [tarpit] is made of the others, which would hold addresses that Pen leaves alone."));
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
