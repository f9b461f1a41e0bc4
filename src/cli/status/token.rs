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
    if !signing.is_null() {
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
    for requirement in token["requirements"].as_array().into_iter().flatten() {
        let outcomes = &requirement["outcomes"];
        let refused = outcomes.as_object().into_iter().flatten();
        let refused: Vec<_> = refused
            .filter(|(name, count)| {
                !matches!(name.as_str(), "valid" | "proven") && count.as_u64() != Some(0)
            })
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        wrapped(format!(
            "  {} {}: {} connections proven, {} packets dropped{}{}",
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
