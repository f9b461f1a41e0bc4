//! `weir token why`

use std::net::IpAddr;

use anyhow::bail;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use weir_daemon::{
    config, counted,
    instance::is_root,
    token::{KEPT, Outcome, RefusedPacket, refusals},
};

use super::super::{Common, ExitAnswer, client, show};

#[derive(clap::Args)]
pub struct WhyArgs {
    /// Only packets from this address
    address: Option<IpAddr>,
    /// Only packets that were refused for this reason, such as wrong-mac; may be repeated
    #[arg(long, value_name = "REASON", value_parser = reason)]
    reason: Vec<Outcome>,
    /// The instance [default: the configuration's]
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl WhyArgs {
    /// Those that ask for all reasons, of the instance of the configuration.
    pub fn of(address: Option<IpAddr>, json: bool) -> Self {
        Self {
            address,
            reason: Vec::new(),
            instance: None,
            json,
        }
    }
}

/// The outcome that a word of `weir status` is for.
fn reason(word: &str) -> Result<Outcome, String> {
    let refused = || Outcome::ALL.into_iter().filter(|outcome| !outcome.passes());
    refused()
        .find(|outcome| outcome.name() == word)
        .ok_or_else(|| {
            let words: Vec<_> = refused().map(Outcome::name).collect();
            format!("no such reason; allowed: {}", words.join(", "))
        })
}

/// Why the kernel has no table of refused packets, and what to do.
fn nothing_kept(common: &Common, instance: &str) -> String {
    let none =
        format!("the instance {instance:?} has no ports that want a token: nothing was refused");
    match common.client().get("/v1/status") {
        Err(error) if error.is::<client::Unreachable>() => format!(
            "{none}. weir is not running, and has left none in the kernel: systemctl start weir, with a [token.require.NAME] in its configuration (weir check)"
        ),
        _ => format!(
            "{none}. A [token.require.NAME] in the configuration, or a rule of [app] with peer, makes one: then weir reload"
        ),
    }
}

pub fn run(common: &Common, args: &WhyArgs) -> anyhow::Result<ExitAnswer> {
    let config = config::places_of(&common.config)?;
    let instance = args.instance.as_ref().unwrap_or(&config.instance);
    let found = match refusals(&config.pin_root, instance) {
        Ok(Some(found)) => found,
        // Who may not look into the directory of pins cannot know.
        Ok(None) | Err(_) if !is_root() => bail!(
            "cannot read the packets that were refused, which the kernel keeps: it takes root (sudo weir token why)"
        ),
        Ok(None) => bail!(nothing_kept(common, instance)),
        Err(error) => return Err(error.into()),
    };
    let now = Timestamp::now();
    let is_wanted = |outcome: Outcome| args.reason.is_empty() || args.reason.contains(&outcome);
    let packets: Vec<_> = found
        .packets
        .iter()
        .filter(|packet| is_wanted(packet.outcome))
        .filter(|packet| args.address.is_none_or(|addr| addr == packet.source.0))
        .collect();
    let counts = found
        .counts
        .iter()
        .filter(|(outcome, _)| is_wanted(*outcome));
    if args.json {
        let packets: Vec<_> = packets.iter().map(|packet| to_json(packet, now)).collect();
        let counts: serde_json::Map<_, _> = counts
            .map(|(outcome, count)| {
                let not_kept = count.saturating_sub(KEPT);
                let value = json!({ "refused": count, "not_kept": not_kept });
                (outcome.name().to_owned(), value)
            })
            .collect();
        show::json(&json!({ "packets": packets, "reasons": counts }))?;
    } else {
        print(&packets, counts, now)?;
    }
    Ok(match packets.is_empty() {
        true => ExitAnswer::No,
        false => ExitAnswer::Done,
    })
}

fn time(packet: &RefusedPacket, now: Timestamp) -> String {
    let age = i64::try_from(packet.age()).unwrap_or(i64::MAX);
    let time = now.checked_sub(SignedDuration::from_nanos(age));
    // Beyond the calendar: it was as long ago as can be said.
    time.unwrap_or(Timestamp::MIN).to_string()
}

fn endpoint((addr, port): (IpAddr, u16)) -> String {
    std::net::SocketAddr::new(addr, port).to_string()
}

fn protocol(packet: &RefusedPacket) -> &'static str {
    match packet.is_udp {
        true => "udp",
        false => "tcp",
    }
}

fn to_json(packet: &RefusedPacket, now: Timestamp) -> Value {
    json!({
        "time": time(packet, now),
        "reason": packet.outcome.name(),
        "protocol": protocol(packet),
        "source": endpoint(packet.source),
        "dest": endpoint(packet.dest),
        "dropped": packet.is_dropped,
        "token": packet.claim.map(|(key, tag)| json!({ "key": key, "tag": hex::encode(tag) })),
    })
}

fn print<'a>(
    packets: &[&RefusedPacket],
    counts: impl Iterator<Item = &'a (Outcome, u64)>,
    now: Timestamp,
) -> anyhow::Result<()> {
    if packets.is_empty() {
        show::line("no such packet was refused")?;
    } else {
        let rows: Vec<_> = packets
            .iter()
            .map(|packet| {
                let claim = packet.claim;
                let dash = || "-".to_owned();
                vec![
                    show::moment(&time(packet, now)),
                    packet.outcome.name().to_owned(),
                    protocol(packet).to_owned(),
                    endpoint(packet.source),
                    endpoint(packet.dest),
                    claim.map_or_else(dash, |(key, _)| key.to_string()),
                    claim.map_or_else(dash, |(_, tag)| hex::encode(tag)),
                    if packet.is_dropped {
                        "dropped"
                    } else {
                        "passed (log)"
                    }
                    .to_owned(),
                ]
            })
            .collect();
        let head = [
            "TIME", "REASON", "PROTO", "FROM", "TO", "KEY", "PROGRAM", "WHAT",
        ];
        show::table(&head, &rows)?;
    }
    for (outcome, count) in counts.filter(|(_, count)| *count > KEPT) {
        show::line(format!(
            "{}: {}; the last {KEPT} are kept",
            outcome.name(),
            counted(*count, "packet", "packets")
        ))?;
    }
    Ok(())
}
