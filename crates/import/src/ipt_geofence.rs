//! ipt_geofence's config.json as weir's configuration. Every key that it reads
//! is answered: with a setting, or with a comment that begins with "changed",
//! "asked" (the file does not say what was meant) or "not carried over".

mod jsonc;
mod lists;
mod outputs;
mod ports;

use std::{fmt::Write, path::Path};

use serde_json::{Map, Value};
use weir_core::{
    address_class::MAX_FENCES,
    geo::{Continent, Country},
    port_set::MAX_RANGES,
};

use self::ports::Ports;
use crate::{Error, Toml};

/// An object whose keys are asked for one by one; the rest is told at the end.
struct Keys {
    path: String,
    map: Map<String, Value>,
}

impl Keys {
    /// What is no object is told and counts as an empty one.
    fn new(path: &str, value: Option<Value>, toml: &mut Toml) -> Self {
        let map = match value {
            Some(Value::Object(map)) => map,
            None => Map::new(),
            Some(other) => {
                toml.note(&format!(
                    "not carried over: {path} is {}, not an object",
                    brief(&other)
                ));
                Map::new()
            }
        };
        Self {
            path: path.to_owned(),
            map,
        }
    }

    fn name(&self, key: &str) -> String {
        match self.path.is_empty() {
            true => key.to_owned(),
            false => format!("{}.{key}", self.path),
        }
    }

    fn take(&mut self, key: &str) -> Option<Value> {
        self.map.remove(key)
    }

    fn object(&mut self, key: &str, toml: &mut Toml) -> Keys {
        Keys::new(&self.name(key), self.map.remove(key), toml)
    }

    fn list(&mut self, key: &str, toml: &mut Toml) -> Vec<Value> {
        match self.map.remove(key) {
            Some(Value::Array(list)) => list,
            None => Vec::new(),
            Some(other) => {
                let name = self.name(key);
                toml.note(&format!(
                    "not carried over: {name} is {}, not a list",
                    brief(&other)
                ));
                Vec::new()
            }
        }
    }

    /// A text that is not empty.
    fn text(&mut self, key: &str) -> Option<String> {
        match self.map.remove(key)? {
            Value::String(text) if text.is_empty() => None,
            Value::String(text) => Some(text),
            other => Some(other.to_string()),
        }
    }

    fn finish(self, toml: &mut Toml) {
        for key in self.map.keys() {
            toml.note(&format!(
                "not carried over: {} is no key of ipt_geofence",
                self.name(key)
            ));
        }
    }
}

fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// The text of a weir.toml that does the same as this config.json.
pub fn configuration(text: &str, secrets: &Path) -> Result<String, Error> {
    let value = jsonc::parse(text)?;
    if !value.is_object() {
        return Err(Error(format!("it is {}, not an object", brief(&value))));
    }
    let mut toml = Toml::default();
    toml.line(
        "# Made by `weir import ipt_geofence`. Comments say what changes, what is asked back",
    );
    toml.line("# because the old file does not say what was meant, and what is not carried over.");
    toml.line("");
    let mut root = Keys::new("", Some(value), &mut toml);
    general(&mut root, &mut toml);
    let mut monitored = root.object("monitored_ports", &mut toml);
    let ignored = port_list(&mut monitored, "ignored_ports", &mut toml);
    geofence(&mut root, &mut monitored, &ignored, &mut toml);
    decoy(&mut monitored, &ignored, &mut toml);
    monitored.finish(&mut toml);
    let mut names = Vec::new();
    lists::deny(&mut root, &mut names, &mut toml);
    lists::allow(&mut root, &mut names, &mut toml);
    outputs::watches(&mut root, &mut toml);
    outputs::telegram(&mut root, secrets, &mut toml);
    outputs::zmq(&mut root, secrets, &mut toml);
    outputs::commands(&mut root, &mut toml);
    toml.line("");
    root.finish(&mut toml);
    Ok(toml.finish())
}

/// What has no counterpart because no packet goes to user space.
fn general(root: &mut Keys, toml: &mut Toml) {
    toml.note("The interfaces that face the clients: a list of names, or \"auto\" for those with a default route.");
    toml.set("interfaces", "auto");
    if let Some(queue) = root.take("queue_id") {
        toml.note(&format!(
            "not carried over: queue_id {}: weir has no queue, the kernel decides. Remove ipt_geofence's \
             rules (ipt_setup.sh) from iptables before you start weir.",
            brief(&queue)
        ));
    }
    if root.take("markers").is_some() {
        toml.note("not carried over: markers: no connection is marked, only the first packet of each is judged.");
    }
    if let Some(dump) = root.text("blacklist_dump_path") {
        toml.note(&format!(
            "not carried over: blacklist_dump_path {dump:?}: weir keeps its bans in state_dir. Take the old \
             ones over with: weir import ipt_geofence --bans FILE | sh"
        ));
    }
    toml.note("The file named by -m on the command line (--mmdb_city) belongs into [geofence] as database = \"…\"; without it the built-in database is used.");
}

/// The ports of a list; what is none is told.
fn port_list(keys: &mut Keys, key: &str, toml: &mut Toml) -> Ports {
    let mut found = Ports::none();
    for value in keys.list(key, toml) {
        match ports::port(&value) {
            Some(port) => found.add(port, port),
            None => toml.note(&format!(
                "not carried over: {} in {}: no port",
                brief(&value),
                keys.name(key)
            )),
        }
    }
    found
}

fn geofence(root: &mut Keys, monitored: &mut Keys, ignored: &Ports, toml: &mut Toml) {
    let tcp = port_list(monitored, "tcp", toml);
    let udp = port_list(monitored, "udp", toml);
    let default = root.text("default_policy");
    let mut policy = root.object("policy", toml);
    let Some(default) = default else {
        toml.line("");
        toml.note("asked: default_policy is missing, and ipt_geofence refuses to start without it: no [geofence] is made.");
        return;
    };
    let passes = default == "PASS";
    if !passes && default != "DROP" {
        toml.note(&format!(
            "default_policy {default:?} is not PASS, so it means DROP there."
        ));
    }
    let (half, other) = match passes {
        true => ("pass", "drop"),
        false => ("drop", "pass"),
    };
    if policy.take(other).is_some() {
        toml.note(&format!(
            "not carried over: policy.{other}: with default_policy {default:?} it is not read."
        ));
    }
    let mut half = policy.object(half, toml);
    let kind = if passes { "blacklist" } else { "whitelist" };
    let mut places = Vec::new();
    toml.line("");
    countries(&mut half, &format!("countries_{kind}"), &mut places, toml);
    continents(&mut half, &format!("continents_{kind}"), &mut places, toml);
    half.finish(toml);
    policy.finish(toml);

    let judged = judged_ports(&tcp, &udp, ignored, toml);
    let rule = |toml: &mut Toml| {
        toml.set("default", if passes { "pass" } else { "drop" });
        if !places.is_empty() {
            toml.set(if passes { "deny" } else { "allow" }, places.clone());
        }
    };
    let Some(judged) = judged else {
        toml.note("changed: every monitored port is ignored as well: no [geofence] is made.");
        return;
    };
    let mut portions = judged.chunks(MAX_RANGES);
    toml.section("geofence");
    rule(toml);
    toml.note("As there: addresses whose country nobody knows pass. weir can drop them.");
    toml.set("unknown", "pass");
    match portions.next() {
        Some(ports) => toml.set("ports", ports.to_vec()),
        None => toml.set("ports", "all"),
    }
    if judged.is_empty() && !ignored.is_empty() {
        // Asked before [geofence] itself.
        for (n, ports) in ignored.words("").chunks(MAX_RANGES).enumerate() {
            toml.section(&format!("geofence.rules.ignored{}", number(n)));
            toml.note("changed: from ignored_ports. Only the port that a client wants counts, not the one that it comes from.");
            toml.set("ports", ports.to_vec());
            toml.set("default", "pass");
        }
    }
    for (n, ports) in portions.enumerate() {
        if n + 2 > MAX_FENCES {
            toml.note("asked: there are more ports than rules can name: join some to ranges.");
            break;
        }
        toml.section(&format!("geofence.rules.monitored{}", number(n + 1)));
        rule(toml);
        toml.set("ports", ports.to_vec());
    }
}

fn number(n: usize) -> String {
    match n {
        0 => String::new(),
        n => (n + 1).to_string(),
    }
}

/// The ports that the geofence judges, as words; empty for all, `None` for
/// none at all.
fn judged_ports(tcp: &Ports, udp: &Ports, ignored: &Ports, toml: &mut Toml) -> Option<Vec<String>> {
    if tcp.is_empty() && udp.is_empty() {
        return Some(Vec::new());
    }
    toml.note(
        "changed: monitored_ports: there a packet was judged when either of its ports was listed, here \
         when the one that it is for is; replies to connections of this host are never judged. ICMP was \
         judged as well; here only with ports = \"all\".",
    );
    let or_all = |ports: &Ports| match ports.is_empty() {
        true => Ports::all(),
        false => ports.clone(),
    };
    let mut words = or_all(tcp).without(ignored).words("/tcp");
    words.extend(or_all(udp).without(ignored).words("/udp"));
    if !ignored.is_empty() {
        toml.note("changed: ignored_ports are taken out of the monitored ones. Only the port that a client wants counts, not the one that it comes from.");
    }
    (!words.is_empty()).then_some(words)
}

fn countries(half: &mut Keys, key: &str, places: &mut Vec<String>, toml: &mut Toml) {
    let name = half.name(key);
    for value in half.list(key, toml) {
        let code = value.as_str().unwrap_or_default();
        let country = <[u8; 2]>::try_from(code.as_bytes())
            .ok()
            .and_then(Country::from_letters)
            .filter(|country| country.name().is_some());
        let Some(country) = country else {
            let near: Vec<_> = Country::near(code)
                .into_iter()
                .map(|(country, name)| format!("country:{country} ({name})"))
                .collect();
            toml.note(&format!(
                "asked: {} in {name} is no country's code.{}",
                brief(&value),
                match near.is_empty() {
                    true => String::new(),
                    false => format!(" Did you mean {}?", near.join(", ")),
                }
            ));
            continue;
        };
        if let Some(continent) = Continent::from_code(code) {
            toml.note(&format!(
                "asked: {code} in {name}: there it meant the country {} and the continent {} at once, since \
                 both had one list. Here it is the country; add \"continent:{continent}\" if you meant that.",
                country.name().unwrap_or_default(),
                continent.name(),
            ));
        }
        add(places, format!("country:{country}"));
    }
}

fn continents(half: &mut Keys, key: &str, places: &mut Vec<String>, toml: &mut Toml) {
    let name = half.name(key);
    for value in half.list(key, toml) {
        let code = value.as_str().unwrap_or_default();
        let Some(continent) = Continent::from_code(code) else {
            toml.note(&format!(
                "asked: {} in {name} is no continent's code (AF, AN, AS, EU, NA, OC, SA).",
                brief(&value)
            ));
            continue;
        };
        let country = <[u8; 2]>::try_from(code.as_bytes())
            .ok()
            .and_then(Country::from_letters)
            .and_then(|country| Some((country, country.name()?)));
        if let Some((country, country_name)) = country {
            toml.note(&format!(
                "asked: {code} in {name}: there it meant the continent {} and the country {country_name} at \
                 once, since both had one list. Here it is the continent; add \"country:{country}\" if you \
                 meant that.",
                continent.name(),
            ));
        }
        add(places, format!("continent:{continent}"));
    }
}

fn add(places: &mut Vec<String>, place: String) {
    if !places.contains(&place) {
        places.push(place);
    }
}

/// From these Linux lets connections and questions begin.
const EPHEMERAL: (u16, u16) = (32_768, 60_999);

fn decoy(monitored: &mut Keys, ignored: &Ports, toml: &mut Toml) {
    let list = monitored.list("honeypot_ports", toml);
    if list.is_empty() {
        return;
    }
    let (ports, wrong) = ports::honeypot(&list);
    toml.line("");
    for value in wrong {
        toml.note(&format!(
            "not carried over: {value} in {}: neither a port, \"A-B\" nor \"!P\"",
            monitored.name("honeypot_ports")
        ));
    }
    let ports = ports.without(ignored);
    if ports.is_empty() {
        toml.note("not carried over: honeypot_ports: no port is left.");
        return;
    }
    toml.note(
        "changed: honeypot_ports: a visitor is banned when it completes a handshake, so that nobody can \
         have others banned by sending in their name; UDP makes findings only, and ICMP is for no port.",
    );
    toml.note(
        "asked: a port on which a server of this host listens cannot be a decoy; `weir check` names it. \
         Add it as \"!P/tcp\".",
    );
    toml.note(&format!("changed: {BAN_TIMES}"));
    toml.section("decoy");
    let mut words = ports.words_or_all_but("/tcp");
    let (low, high) = EPHEMERAL;
    let mut ephemeral = Ports::none();
    ephemeral.add(low, high);
    let udp = ports.clone().without(&ephemeral);
    if udp != ports {
        toml.note(&format!(
            "changed: not the UDP ports {low}-{high}: from those this host asks others itself, and there \
             their answers had them banned."
        ));
    }
    words.extend(udp.words_or_all_but("/udp"));
    toml.set("ports", words);
    ban_times(toml);
}

/// For whoever bans: decoy ports and watches.
const BAN_TIMES: &str = "There the first ban lasted 10 minutes, and offences were forgotten with it; here \
                         each further one lasts longer.";

fn ban_times(toml: &mut Toml) {
    toml.set("ban_time", "10m");
    toml.line("increment = { factor = 2, max = \"1w\" }");
}

/// A `weir ban` command for each line of the dump of bans.
pub fn bans(text: &str) -> String {
    /// The length of a ban there: the square of the offences, in units of 300 s, with
    /// offences counted to 99, and at least 10 minutes.
    fn seconds(offences: u64) -> u64 {
        (300 * offences.clamp(1, 99).pow(2)).max(600)
    }
    let mut out = String::new();
    for (n, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let (addr, offences) = line.split_once('\t').unwrap_or((line, "1"));
        let read = addr.trim().parse::<std::net::IpAddr>();
        let _ = match (read, offences.trim().parse()) {
            (Ok(addr), Ok(offences)) => writeln!(
                out,
                "weir ban {addr} --for {}s --reason 'ipt_geofence: {offences} offences'",
                seconds(offences)
            ),
            _ => writeln!(
                out,
                "# line {}: not an address, a tab and a number: {}",
                n + 1,
                weir_core::text::escape(&line.chars().take(64).collect::<String>())
            ),
        };
    }
    out
}
