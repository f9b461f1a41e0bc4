//! What `weir status` says of tokens.

use serde_json::Value;

use super::{
    super::show::{self, counted},
    text, wrapped,
};

fn list(values: &Value) -> String {
    let values = values.as_array().into_iter().flatten();
    values.map(text).collect::<Vec<_>>().join(" ")
}

/// Where tokens to a network stand, and why there.
pub fn conduit(to: &Value) -> String {
    let by = match to["chosen_by"].as_str() {
        Some("probe") => {
            let at = match to["measured"].as_str() {
                Some(at) => format!("the probe of {}", show::moment(at)),
                None => "a probe".to_owned(),
            };
            format!("{at} to {}", list(&to["sites"]))
        }
        _ => "the configuration".to_owned(),
    };
    let protocol = match to["protocol"].as_str() {
        Some("udp") => "UDP",
        _ => "TCP",
    };
    let network = text(&to["network"]);
    match to["conduit"].as_str() {
        Some("none") => format!("no token by {protocol} to {network}: by {by}"),
        _ => format!(
            "tokens by {protocol} to {network} as {}: by {by}",
            text(&to["conduit"])
        ),
    }
}

fn interfaces(names: &Value) -> String {
    match list(names) {
        none if none.is_empty() => "no interface".to_owned(),
        names => names,
    }
}

/// Is anything signed, or let in, by signatures of DAF?
fn goes_by_daf(token: &Value) -> bool {
    let mut requirements = token["requirements"].as_array().into_iter().flatten();
    token["signing"]["scope"] == "daf" || requirements.any(|one| one["scope"] == "daf")
}

/// Keys, the side that signs, and each port that wants a token.
pub fn token(token: &Value) -> std::io::Result<()> {
    if token.is_null() {
        return Ok(());
    }
    let keys = token["keys"].as_array().into_iter().flatten();
    let keys: Vec<_> = keys
        .map(|key| format!("{} {}", key["id"], text(&key["use"])))
        .collect();
    wrapped(match keys.is_empty() {
        true => "tokens: no keys".to_owned(),
        false => format!("tokens: keys {}", keys.join(", ")),
    })?;
    if goes_by_daf(token) {
        wrapped(
            "  signatures of DAF (compat) prove little: bound to no connection and no time, so each can be sent again; the same for all segments without data; they name no program; IPv4 only",
        )?;
    }
    let signing = &token["signing"];
    let signs_tcp = signing["to"].as_array().is_some_and(|to| !to.is_empty());
    let signs_daf = signing["scope"] == "daf";
    if signs_tcp && !signs_daf {
        wrapped(format!(
            "  signing to {}: {}, {} signed, {} without a known program, {} without room, {} dropped of changed programs",
            list(&signing["to"]),
            counted(&signing["programs"], "program", "programs"),
            counted(&signing["signed"], "SYN", "SYNs"),
            signing["without_signer"],
            signing["without_room"],
            counted(&signing["changed"], "packet", "packets"),
        ))?;
    }
    for to in signing["conduits"].as_array().into_iter().flatten() {
        wrapped(format!("  {}", conduit(to)))?;
    }
    let segments = &signing["segments"];
    if !segments.is_null() {
        wrapped(format!(
            "  signing each segment{} at {}: {} signed, dropped: {} without a known program, {} in superpackets, {} by other interfaces, {} without room, {} of which the kernel failed{}",
            match signs_daf {
                true => format!(" for DAF to {}", list(&signing["to"])),
                false => String::new(),
            },
            interfaces(&segments["interfaces"]),
            counted(&segments["signed"], "segment", "segments"),
            segments["without_signer"],
            segments["superpacket"],
            segments["without_interface"],
            segments["without_room"],
            segments["broken"],
            match signs_daf {
                true => format!(
                    ", {} too long, which TCP sends again in parts",
                    segments["too_big"]
                ),
                false => String::new(),
            },
        ))?;
    }
    let udp = &signing["udp"];
    if !udp.is_null() {
        wrapped(format!(
            "  signing UDP to {} at {}: {} signed, {} without a known program, {} too long for a token, {} without room, {} in fragments, {} refused by the kernel, {} dropped",
            list(&udp["to"]),
            interfaces(&udp["interfaces"]),
            counted(&udp["signed"], "datagram", "datagrams"),
            udp["without_signer"],
            udp["too_big"],
            udp["without_room"],
            udp["fragments"],
            udp["refused"],
            udp["broken"],
        ))?;
    }
    for requirement in token["requirements"].as_array().into_iter().flatten() {
        let outcomes = &requirement["outcomes"];
        let refused = outcomes.as_object().into_iter().flatten();
        let refused: Vec<_> = refused
            .filter(|(name, count)| {
                !matches!(name.as_str(), "valid" | "proven" | "free") && count.as_u64() != Some(0)
            })
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        wrapped(format!(
            "  {} {}{}{}{}: {} proven, {} refused{}{}",
            text(&requirement["name"]),
            list(&requirement["ports"]),
            match list(&requirement["to"]) {
                none if none.is_empty() => none,
                to => format!(" of {to}, forwarded"),
            },
            match requirement["scope"].as_str() {
                Some("payload") => ", each segment",
                Some("daf") => ", each segment by DAF",
                _ => "",
            },
            match requirement["mode"].as_str() {
                Some("log") => ", only logged: nothing is dropped",
                _ => "",
            },
            match requirement["scope"] == "daf" {
                true => counted(&outcomes["valid"], "segment", "segments"),
                false => counted(&outcomes["valid"], "SYN or datagram", "SYNs and datagrams"),
            },
            counted(&requirement["refused"], "packet", "packets"),
            if refused.is_empty() { "" } else { ": " },
            refused.join(", "),
        ))?;
    }
    let forward = &token["forward"];
    if !forward.is_null() {
        let hooks = forward["hooks"].as_array().into_iter().flatten();
        let chosen: Vec<_> = hooks
            .filter(|at| !at["reason"].is_null())
            .map(|at| {
                let [interface, hook, reason] =
                    ["interface", "hook", "reason"].map(|of| text(&at[of]));
                format!("{interface} by {hook}, {reason}")
            })
            .collect();
        let connections = &forward["connections"];
        wrapped(format!(
            "  forwarded packets judged at {}{}: {} known, of {}{}, those of before {}",
            interfaces(&forward["interfaces"]),
            match (chosen.is_empty(), list(&forward["by_xdp"])) {
                (false, _) => format!(" ({})", chosen.join("; ")),
                (true, none) if none.is_empty() => none,
                (true, names) => format!(" (by XDP at {names})"),
            },
            counted(&connections["flows"], "connection", "connections"),
            forward["limit"],
            match connections["evicted"].as_u64() {
                Some(0) | None => String::new(),
                Some(gone) => format!(" ({gone} forgotten for others)"),
            },
            match forward["established"] == "pass" {
                true => "pass",
                false => "dropped",
            },
        ))?;
    }
    let strip = &token["strip"];
    if !strip.is_null() {
        let sum = |names: [&str; 2]| -> u64 {
            let counts = names.iter().filter_map(|name| strip[*name].as_u64());
            counts.sum()
        };
        wrapped(format!(
            "  tokens of others overwritten at {} ({}): of {} packets that came in, {} that went out, {} dropped because they could not be looked through or changed",
            interfaces(&strip["interfaces"]),
            text(&strip["direction"]),
            sum(["in_tcp", "in_ip"]),
            sum(["out_tcp", "out_ip"]),
            strip["broken"],
        ))?;
    }
    let flows = &token["datagram_flows"];
    if !flows.is_null() {
        let of = |name: &str| {
            let table = &flows[name];
            match table["evicted"].as_u64() {
                Some(0) | None => format!("{} {name}", table["flows"]),
                Some(gone) => format!("{} {name} ({gone} forgotten for others)", table["flows"]),
            }
        };
        wrapped(format!(
            "  flows of UDP datagrams: {}, of {} each",
            ["proven", "own", "logged"].map(of).join(", "),
            flows["limit"],
        ))?;
    }
    let pin = &token["iptables_match"];
    if !pin.is_null() {
        wrapped(format!(
            "  match for iptables: -m bpf --object-pinned {}",
            text(pin)
        ))?;
    }
    Ok(())
}
