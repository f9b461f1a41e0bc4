//! What `weir status` says of tokens.

use serde_json::Value;

use super::{text, wrapped};

fn list(values: &Value) -> String {
    let values = values.as_array().into_iter().flatten();
    values.map(text).collect::<Vec<_>>().join(" ")
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
    wrapped(format!("tokens: keys {}", keys.join(", ")))?;
    let signing = &token["signing"];
    let signs_tcp = signing["to"].as_array().is_some_and(|to| !to.is_empty());
    if signs_tcp {
        wrapped(format!(
            "  signing to {}: {} programs, {} SYNs signed, {} without a known program, {} without room, {} packets dropped of changed programs",
            list(&signing["to"]),
            signing["programs"],
            signing["signed"],
            signing["without_signer"],
            signing["without_room"],
            signing["changed"],
        ))?;
    }
    let udp = &signing["udp"];
    if !udp.is_null() {
        wrapped(format!(
            "  signing UDP to {} at {}: {} datagrams signed, {} without a known program, {} too long for a token, {} without room, {} in fragments, {} refused by the kernel, {} dropped",
            list(&udp["to"]),
            match list(&udp["interfaces"]) {
                none if none.is_empty() => "no interface".to_owned(),
                names => names,
            },
            udp["signed"],
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
            "  {} {}: {} SYNs and datagrams proven, {} packets dropped{}{}",
            text(&requirement["name"]),
            list(&requirement["ports"]),
            outcomes["valid"],
            requirement["dropped"],
            if refused.is_empty() { "" } else { ": " },
            refused.join(", "),
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
