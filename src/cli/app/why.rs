//! `weir app why`: who a process is, or who holds a socket, and what the rules say.

use serde_json::{Map, Value, json};
use weir_daemon::identity::{AskedSocket, NoSocketName};

use super::{array, digest};
use crate::cli::{Common, ExitAnswer, client::Reply, show};

/// Rules about some peers, and flows, that are shown of one socket; --json has all.
const MAX_SHOWN: usize = 8;

/// The state of a connection that is over, of which the kernel keeps the ends for a minute.
const TIME_WAIT: &str = "closed (TIME-WAIT)";

/// Say who a process is, or who holds a socket, and which rules decide; exit code 1 if none does
///
/// A socket is named as ss(8) and lsof(8) print it: LOCAL or LOCAL-REMOTE, each of them
/// ADDRESS:PORT, [IPV6]:PORT or :PORT, with tcp:, udp:, icmp: or raw: before it or not; or
/// inode:NUMBER, as ss -e and /proc/PID/fd have it. Sockets of all network namespaces are
/// meant. Where nobody is bound to that address, those are shown that are bound to all. Where
/// LOCAL alone is given, sockets follow that are connected to it as their remote end. Of sockets
/// in TIME-WAIT, which nobody holds, it is said how many there are.
#[derive(clap::Args)]
pub struct Args {
    /// The number of a process, or a socket, such as tcp:192.0.2.1:443-198.51.100.7:51000, :443
    /// or inode:4711
    #[arg(value_name = "PID|SOCKET", value_parser = read)]
    asked: Asked,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

/// About whom it is asked.
#[derive(Debug, Clone)]
enum Asked {
    Process(u32),
    Socket(AskedSocket),
}

fn read(text: &str) -> Result<Asked, NoSocketName> {
    match text.parse() {
        Ok(pid) => Ok(Asked::Process(pid)),
        Err(_) => text.parse().map(Asked::Socket),
    }
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    match &args.asked {
        Asked::Process(pid) => process(common, *pid, args.json),
        Asked::Socket(socket) => sockets(common, socket, args.json),
    }
}

fn labels(container: &Map<String, Value>) -> String {
    let labels = container.get("labels").and_then(Value::as_object);
    let labels = labels.into_iter().flatten();
    let labels = labels.map(|(key, value)| match value.as_str() {
        Some("") | None => key.clone(),
        Some(value) => format!("{key}={value}"),
    });
    weir_daemon::escape(&labels.collect::<Vec<_>>().join(" "))
}

fn process(common: &Common, pid: u32, is_json: bool) -> anyhow::Result<ExitAnswer> {
    let why = common.client().get(&format!("/v1/app/why/{pid}"))?.ok()?;
    let met = array(&why["rules"])
        .iter()
        .filter(|rule| rule["is_met"] == true);
    let met: Vec<_> = met.collect();
    let found = match met.is_empty() {
        true => ExitAnswer::No,
        false => ExitAnswer::Done,
    };
    if is_json {
        show::json(&why)?;
        return Ok(found);
    }
    let program = &why["program"];
    show::line(format!(
        "process {pid}: {}",
        digest(&program["exe"]["path"])
    ))?;
    show::line(format!("  SHA-256 {}", digest(&program["exe"]["digest"])))?;
    show::line(format!("  whole   {}", digest(&why["aggregate"])))?;
    show::line(format!(
        "  uid {}, control group {}",
        program["uid"],
        show::text(&program["cgroup"])
    ))?;
    match &program["container"] {
        Value::Object(container) => {
            show::line(format!("  container {}", labels(container)))?;
        }
        word if word == "unknown" => show::line("  container: its labels are not known")?,
        _ => (),
    }
    if program["anonymous"] == true {
        show::line("  has executable memory that is of no file")?;
    }
    if program["altered"] == true {
        show::line("  its code was changed in memory, or another process has traced it")?;
    }
    if why["is_judged"] != true {
        show::line("  is not in the control group of [app]: it may talk to everybody")?;
    }
    if why["is_known"] != true {
        show::line("  has not been asked about by the kernel since it became what it is")?;
    }
    if why["gave_up"] == true {
        show::line(
            "  gave up after 2 s: not all of its files were read, and those have no SHA-256 here; ask again",
        )?;
    }
    match why["sockets"].as_u64() {
        Some(0) => show::line(
            "  has no socket of IPv4 or IPv6 that is bound or connected: rules are asked when it connects, sends or listens",
        )?,
        Some(count) => show::line(format!("  sockets of IPv4 and IPv6: {count}"))?,
        None => (),
    }
    for rule in &met {
        show::line(format!(
            "  rule {}: {}",
            show::text(&rule["name"]),
            show::text(&rule["verdict"])
        ))?;
    }
    show::line(format!(
        "  where no rule holds: {}",
        show::text(&why["default"])
    ))?;
    let rows: Vec<_> = array(&program["objects"])
        .iter()
        .map(|object| vec![digest(&object["path"]), digest(&object["digest"])])
        .collect();
    show::table(&["FILE", "SHA-256"], &rows)?;
    Ok(found)
}

/// Whether a rule, and not what holds where there is none, is among them.
fn has_rule(rules: &Value) -> bool {
    let mut rules = array(rules).iter();
    rules.any(|rule| rule["rule"] != "default" && rule["rule"] != "unknown")
}

fn sockets(common: &Common, socket: &AskedSocket, is_json: bool) -> anyhow::Result<ExitAnswer> {
    let asked = socket.to_string();
    let client = common.client();
    let ask = |asked: &str| client.get(&format!("/v1/app/why/{asked}"));
    let own = ask(&asked)?;
    let remote = match as_remote(&asked) {
        Some(asked) => match ask(&asked)? {
            Reply::Ok(remote) => Some(remote),
            Reply::NotFound(_) => None,
        },
        None => None,
    };
    let mut why = match (own, &remote) {
        (Reply::Ok(own), _) => own,
        // Nobody has it as the own end.
        (Reply::NotFound(_), Some(remote)) => json!({
            "asked": asked,
            "sockets": [],
            "left_out": 0,
            "gave_up": false,
            "default": remote["default"],
            "unknown": remote["unknown"],
        }),
        (own @ Reply::NotFound(_), None) => own.ok()?,
    };
    let decides = |why: &Value| {
        let mut sockets = array(&why["sockets"]).iter();
        sockets.any(|socket| has_rule(&socket["rules"]))
    };
    let found = match decides(&why) || remote.as_ref().is_some_and(decides) {
        true => ExitAnswer::Done,
        false => ExitAnswer::No,
    };
    if is_json {
        why["by_remote"] = remote.unwrap_or(Value::Null);
        show::json(&why)?;
        return Ok(found);
    }
    some_sockets(&why, &asked)?;
    if let Some(remote) = &remote {
        show::line(format!("connected to {asked}, as the remote end:"))?;
        some_sockets(remote, &asked)?;
    }
    Ok(found)
}

/// How sockets are asked about whose remote end that is; `None`: the text says more, or a number.
fn as_remote(asked: &str) -> Option<String> {
    if asked.starts_with("inode:") || asked.contains('-') {
        return None;
    }
    // Before the address, or the colon before the port, which may stand alone.
    let kinds = ["tcp:", "udp:", "icmp:", "raw:"];
    let kind = kinds.into_iter().find(|kind| asked.starts_with(kind));
    let kind = kind.unwrap_or_default();
    Some(format!("{kind}:*-{}", &asked[kind.len()..]))
}

fn some_sockets(why: &Value, asked: &str) -> anyhow::Result<()> {
    let sockets = array(&why["sockets"]);
    let is_over = |socket: &&Value| socket["state"] == TIME_WAIT;
    let over = sockets.iter().filter(is_over).count();
    // One alone is what was asked about.
    let is_folded = over > 1 || sockets.len() > over;
    for socket in sockets.iter().filter(|one| !(is_folded && is_over(one))) {
        one_socket(socket)?;
    }
    if is_folded && over > 0 {
        show::line(format!(
            "{}: {}, and nobody holds {} (--json)",
            asked,
            weir_daemon::counted(over as u64, "socket in TIME-WAIT", "sockets in TIME-WAIT"),
            if over == 1 { "it" } else { "them" },
        ))?;
    }
    match why["left_out"].as_u64() {
        Some(0) | None => (),
        Some(more) => show::line(format!("and {more} more sockets"))?,
    }
    if why["gave_up"] == true {
        show::line(
            "gave up after 2 s: not all of these processes were looked at, and who is not known here may be; ask again",
        )?;
    }
    Ok(())
}

fn decided(decided: &Value) -> String {
    let verdict = match decided["verdict"].as_str() {
        Some("allow") => "allowed",
        Some("wait") => "waits",
        _ => "denied",
    };
    let by = match decided["rule"].as_str() {
        None => " by a rule that is in force no more".to_owned(),
        Some("default") => ", no rule holds (default)".to_owned(),
        Some("unknown") => ", for a program is not known yet (unknown)".to_owned(),
        Some("kind of socket") => ", as each socket of this kind".to_owned(),
        Some(rule) => format!(" by rule {}", weir_daemon::escape(rule)),
    };
    let again = match decided["is_current"] == true {
        true => "",
        false => "; the rules are asked again at its next packet",
    };
    format!("{verdict}{by}{again}")
}

/// What rules say, the last one of everybody else.
fn said(rules: &Value) -> String {
    let rules = array(rules);
    let words = |rule: &Value| {
        let verdict = show::text(&rule["verdict"]);
        match rule["rule"].as_str() {
            Some("default") => format!("{verdict} (default)"),
            Some("unknown") => format!("{verdict} (unknown)"),
            _ => format!("{verdict} ({})", show::text(&rule["rule"])),
        }
    };
    let some = rules.iter().filter(|rule| rule["is_for_all"] != true);
    let narrow: Vec<_> = some
        .map(|rule| format!("{} some peers", words(rule)))
        .collect();
    let mut parts: Vec<_> = narrow.iter().take(MAX_SHOWN).cloned().collect();
    if narrow.len() > MAX_SHOWN {
        parts.push(format!("{} more for some peers", narrow.len() - MAX_SHOWN));
    }
    let all = rules.iter().find(|rule| rule["is_for_all"] == true);
    parts.extend(all.map(|rule| match narrow.is_empty() {
        true => words(rule),
        false => format!("else {}", words(rule)),
    }));
    match parts.is_empty() {
        true => "-".to_owned(),
        false => parts.join(", "),
    }
}

fn one_socket(socket: &Value) -> anyhow::Result<()> {
    let remote = match socket["remote"].as_str() {
        Some(remote) => format!(" - {remote}"),
        None => String::new(),
    };
    let netns = &socket["netns"];
    let namespace = match (netns["is_own"] == true, netns["name"].as_str()) {
        (true, _) => String::new(),
        (false, Some(name)) => {
            format!(", in the network namespace {}", weir_daemon::escape(name))
        }
        (false, None) => format!(", in the network namespace net:[{}]", netns["inode"]),
    };
    let inode = match socket["inode"].as_u64() {
        Some(inode) => format!(", inode {inode}"),
        None => String::new(),
    };
    show::line(format!(
        "{} {}{remote}: {}{inode}{namespace}",
        show::text(&socket["protocol"]),
        show::text(&socket["local"]),
        show::text(&socket["state"]),
    ))?;
    if socket["is_judged"] == true {
        if socket["decided"].is_object() {
            let way = match socket["direction"] == "out" {
                true => "the program has begun it",
                false => "the peer has begun it",
            };
            show::line(format!("  {}; {way}", decided(&socket["decided"])))?;
        }
        show::line(format!("  rules now: {}", said(&socket["rules"])))?;
    } else {
        show::line(match array(&socket["holders"]).is_empty() {
            true => "  is not judged: no process has a descriptor of it, as far as weir may see",
            false => {
                "  is not judged: it is beyond the control group of [app], or nobody has used it since weir looks (then it counts within ten seconds)"
            }
        })?;
    }
    if socket["is_crowded"] == true {
        show::line(
            "  has more holders than are remembered: they count as a program that is not known",
        )?;
    }
    let holders = array(&socket["holders"]);
    if holders.is_empty() && socket["is_judged"] == true {
        show::line("  no process holds it, as far as weir may see")?;
    }
    for holder in holders {
        one_holder(holder, socket["is_judged"] == true)?;
    }
    let flows = array(&socket["flows"]);
    for flow in flows.iter().take(MAX_SHOWN) {
        let way = match flow["direction"] == "out" {
            true => "to",
            false => "from",
        };
        show::line(format!(
            "  flow {way} {}: {}",
            show::text(&flow["peer"]),
            decided(flow)
        ))?;
    }
    if flows.len() > MAX_SHOWN || socket["has_more_flows"] == true {
        show::line("  and more flows (--json)")?;
    }
    Ok(())
}

fn one_holder(holder: &Value, is_judged: bool) -> anyhow::Result<()> {
    let processes: Vec<_> = array(&holder["processes"])
        .iter()
        .map(|process| process["pid"].to_string())
        .collect();
    let processes = match processes.len() {
        0 => "no process that has it open".to_owned(),
        1 => format!("process {}", processes[0]),
        _ => format!("processes {}", processes.join(", ")),
    };
    let Some(path) = holder["exe"]["path"].as_str() else {
        show::line(format!(
            "  holder: a program that is not known, {processes}"
        ))?;
        return Ok(());
    };
    show::line(format!(
        "  holder: {}, {processes}, uid {}",
        weir_daemon::escape(path),
        holder["uid"]
    ))?;
    show::line(format!("    SHA-256 {}", digest(&holder["exe"]["digest"])))?;
    show::line(format!("    whole   {}", digest(&holder["aggregate"])))?;
    if let Some(package) = holder["package"].as_str() {
        show::line(format!("    package {}", weir_daemon::escape(package)))?;
    }
    let unit = match holder["unit"].as_str() {
        Some(unit) => format!(", unit {}", weir_daemon::escape(unit)),
        None => String::new(),
    };
    show::line(format!(
        "    control group {}{unit}",
        show::text(&holder["cgroup"])
    ))?;
    if let Some(id) = holder["container"].as_str() {
        let labels = match holder["labels"].as_object() {
            Some(container) => format!(": {}", labels(container)),
            None => String::new(),
        };
        show::line(format!("    container {id}{labels}"))?;
    }
    if is_judged && holder["is_noted"] != true {
        show::line("    has not used it since weir looks: it counts within ten seconds")?;
    }
    show::line(format!("    by itself, out: {}", said(&holder["out"])))?;
    show::line(format!("    by itself, in:  {}", said(&holder["in"])))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_end_alone_is_asked_about_as_the_remote_one_too() {
        for (text, remote) in [
            (":443", Some(":*-:443")),
            ("*:443", Some(":*-:443")),
            ("tcp::443", Some("tcp::*-:443")),
            ("udp:192.0.2.1:53", Some("udp::*-192.0.2.1:53")),
            ("[2001:db8::1]:443", Some(":*-[2001:db8::1]:443")),
            (":443-:51000", None),
            ("inode:4711", None),
        ] {
            let asked: AskedSocket = text.parse().unwrap();
            let made = as_remote(&asked.to_string());
            assert_eq!(made.as_deref(), remote, "{text}");
            if let Some(made) = made {
                let read: AskedSocket = made.parse().unwrap();
                assert_eq!(read.to_string(), made);
            }
        }
    }
}
