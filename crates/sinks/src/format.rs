//! How an event is written for a sink: as the API has it, as ipt_geofence's
//! consumers read it, or as a line for people.

use std::net::IpAddr;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use weir_core::{Action, BanSource, Prefix, Reason};
use weir_events::{Event, Kind, Packet};

use crate::config::Format;

/// Writes events in one format.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    format: Format,
    /// This host's name and address, for those who hear of several.
    name: String,
    ip: String,
}

impl Records {
    /// Records of this host, in this format.
    pub(crate) fn new(format: Format) -> Self {
        let name = rustix::system::uname();
        Self {
            format,
            name: name.nodename().to_string_lossy().into_owned(),
            ip: own_address().map(|ip| ip.to_string()).unwrap_or_default(),
        }
    }

    /// The event as JSON; `None` if the format has no record for it.
    pub(crate) fn json(&self, event: &Event) -> Option<String> {
        match self.format {
            Format::Weir => serde_json::to_string(event).ok(),
            Format::IptGeofence => Some(self.ipt_geofence(event)?.to_string()),
        }
    }

    /// Names and shapes of the fields are those that ipt_geofence's consumers
    /// know; anything that weir does not know of an event is left out.
    fn ipt_geofence(&self, event: &Event) -> Option<Value> {
        let mut record = Map::new();
        record.insert("source".into(), self.source(event.time));
        let subject = event.subject.map(address);
        match event.kind {
            Kind::Ban | Kind::Unban => {
                let ban = event.kind == Kind::Ban;
                let reason = match ban {
                    true => ban_reason(event.producer.as_ref()),
                    false => "unban".to_owned(),
                };
                record.insert("reason".into(), reason.into());
                record.insert("host".into(), subject?.into());
                if let Some(country) = &event.country {
                    record.insert("country".into(), country.as_str().into());
                }
                record.insert("action".into(), event.kind.name().into());
            }
            Kind::Drop => {
                let packet = event.packet?;
                record.insert("reason".into(), "flow-ban".into());
                record.insert("sub_reason".into(), sub_reason(packet).into());
                record.insert("proto".into(), protocol(packet.protocol).into());
                let mut src = Map::new();
                src.insert("host".into(), subject?.into());
                if let Some(country) = &event.country {
                    src.insert("country".into(), country.as_str().into());
                }
                if packet.reason == Reason::Listed {
                    src.insert("blacklisted".into(), true.into());
                }
                record.insert("src".into(), src.into());
                record.insert("dst".into(), json!({ "port": packet.port }));
                let verdict = match packet.reason.is_drop() {
                    true => "drop",
                    false => "pass",
                };
                record.insert("verdict".into(), verdict.into());
            }
            Kind::Start | Kind::Stop => {
                record.insert("action".into(), event.kind.name().into());
            }
            // What a test looks like is nobody's interface.
            Kind::Test => {
                record.insert("reason".into(), event.reason.as_str().into());
                record.insert("action".into(), event.kind.name().into());
            }
            Kind::Found
            | Kind::Allow
            | Kind::Failover
            | Kind::Error
            | Kind::Summary
            | Kind::Pool
            | Kind::App => return None,
        }
        Some(record.into())
    }

    fn source(&self, time: Timestamp) -> Value {
        json!({
            "ip": self.ip,
            "name": self.name,
            "epoch": time.as_second(),
            "version": env!("CARGO_PKG_VERSION"),
        })
    }

    /// The event in words.
    pub(crate) fn text(&self, event: &Event) -> String {
        let mut text = format!("{}: {}", self.name, event.kind.name());
        if let Some(subject) = event.subject {
            text.push_str(&format!(" {subject}"));
        }
        if let Some(country) = &event.country {
            text.push_str(&format!(" ({country})"));
        }
        if let Some(producer) = &event.producer {
            text.push_str(&format!(", {}", producer.to_string().replace(':', " ")));
        }
        if event.action == Some(Action::Notify) {
            text.push_str(", notifies only");
        }
        if !event.reason.is_empty() {
            text.push_str(&format!(": {}", event.reason));
        }
        match event.until {
            Some(weir_core::Until::At(end)) => {
                // To the second.
                let end = Timestamp::from_second(end.as_second()).unwrap_or(end);
                text.push_str(&format!("; until {end}"));
            }
            Some(weir_core::Until::Never) => text.push_str("; permanent"),
            None => {}
        }
        if let Some(line) = event.evidence.last() {
            text.push_str(&format!("\n{line}"));
        }
        let escaped: Vec<_> = text.split('\n').map(weir_core::text::escape).collect();
        escaped.join("\n")
    }
}

/// An address as an address, anything wider with its length.
fn address(prefix: Prefix) -> String {
    match prefix == Prefix::host(prefix.addr()) {
        true => prefix.addr().to_string(),
        false => prefix.to_string(),
    }
}

fn ban_reason(producer: Option<&BanSource>) -> String {
    match producer {
        Some(BanSource::Jail(name) | BanSource::Watch(name)) => format!("ban-{name}"),
        Some(BanSource::List(_)) => "blacklisted-client".to_owned(),
        Some(BanSource::Decoy | BanSource::Tarpit) => "ban-honeypot".to_owned(),
        Some(BanSource::Geofence) => "ban-monitored-port".to_owned(),
        Some(BanSource::Manual) | None => "ban-manual".to_owned(),
    }
}

fn sub_reason(packet: Packet) -> String {
    match packet.reason {
        Reason::Listed => "blacklisted-client".to_owned(),
        Reason::ListedOut => "blacklisted-server".to_owned(),
        Reason::Fenced | Reason::FencedOut => format!("ban-monitored-port-{}", packet.port),
        Reason::Decoy | Reason::DecoyHandshake => format!("ban-honeypot-{}", packet.port),
        reason => reason.name().to_owned(),
    }
}

fn protocol(number: u8) -> &'static str {
    match number {
        6 => "TCP",
        17 => "UDP",
        1 | 58 => "ICMP",
        _ => "???",
    }
}

/// The first address of this host that others may know it by.
fn own_address() -> Option<IpAddr> {
    let interfaces = nix::ifaddrs::getifaddrs().ok()?;
    let mut found: Vec<IpAddr> = interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
        })
        .filter(|ip| match ip {
            IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
            IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
        })
        .collect();
    found.sort_by_key(IpAddr::is_ipv6);
    found.first().copied()
}

#[cfg(test)]
mod tests {
    use weir_core::{Action, Ban, PortSet, Until};

    use super::*;

    fn records(format: Format) -> Records {
        Records {
            format,
            name: "gate".into(),
            ip: "192.0.2.1".into(),
        }
    }

    fn ban(producer: BanSource) -> Event {
        Event::ban(&Ban {
            subject: "203.0.113.7".parse().unwrap(),
            scope: PortSet::all(),
            action: Action::Drop,
            producer,
            reason: "5 failures in 2m".into(),
            since: Timestamp::UNIX_EPOCH,
            until: Until::At(Timestamp::from_millisecond(1_500_123).unwrap()),
            evidence: vec!["user \u{1b}[2J from 203.0.113.7".into()],
        })
    }

    fn written(event: &Event) -> Value {
        let json = records(Format::IptGeofence).json(event).unwrap();
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn bans_are_written_for_ipt_geofences_consumers() {
        let mut event = ban(BanSource::Watch("mail".into()));
        event.country = Some("NL".into());
        let source = json!({
            "ip": "192.0.2.1", "name": "gate", "epoch": 0, "version": env!("CARGO_PKG_VERSION"),
        });
        let expected = json!({
            "source": source, "reason": "ban-mail", "host": "203.0.113.7",
            "country": "NL", "action": "ban",
        });
        assert_eq!(written(&event), expected);
        for (producer, reason) in [
            (BanSource::Jail("sshd".into()), "ban-sshd"),
            (BanSource::List("spamhaus".into()), "blacklisted-client"),
            (BanSource::Decoy, "ban-honeypot"),
            (BanSource::Tarpit, "ban-honeypot"),
            (BanSource::Manual, "ban-manual"),
        ] {
            assert_eq!(written(&ban(producer))["reason"], reason);
        }
        event.kind = Kind::Unban;
        event.subject = Some("2001:db8::/64".parse().unwrap());
        let record = written(&event);
        assert_eq!(record["host"], "2001:db8::/64");
        assert_eq!(
            (&record["reason"], &record["action"]),
            (&"unban".into(), &"unban".into())
        );
        let event = Event::new(Kind::Start, Timestamp::UNIX_EPOCH, "weir");
        assert_eq!(
            written(&event),
            json!({ "source": source, "action": "start" })
        );
        let event = Event::new(Kind::Error, Timestamp::UNIX_EPOCH, "disk full");
        assert_eq!(records(Format::IptGeofence).json(&event), None);
    }

    #[test]
    fn drops_are_written_as_flows() {
        for (reason, protocol, told) in [
            (Reason::Listed, 6, ("blacklisted-client", "TCP", "drop")),
            (Reason::ListedOut, 17, ("blacklisted-server", "UDP", "drop")),
            (Reason::Fenced, 6, ("ban-monitored-port-22", "TCP", "drop")),
            (Reason::Decoy, 17, ("ban-honeypot-22", "UDP", "drop")),
            (Reason::BannedAll, 58, ("banned-all", "ICMP", "drop")),
            (Reason::Observed, 132, ("observed", "???", "pass")),
        ] {
            let mut event = Event::new(Kind::Drop, Timestamp::UNIX_EPOCH, "")
                .about(Prefix::host("2001:db8::7".parse().unwrap()));
            event.packet = Some(Packet {
                reason,
                protocol,
                port: 22,
                interface: 2,
            });
            let record = written(&event);
            assert_eq!(record["reason"], "flow-ban");
            assert_eq!(record["src"]["host"], "2001:db8::7");
            assert_eq!(
                record["src"]["blacklisted"] == true,
                reason == Reason::Listed
            );
            assert_eq!(record["dst"]["port"], 22);
            let (sub, proto, verdict) = told;
            assert_eq!(record["sub_reason"], sub);
            assert_eq!(record["proto"], proto);
            assert_eq!(record["verdict"], verdict);
        }
    }

    #[test]
    fn people_read_a_line_that_cannot_steer_anything() {
        let text = records(Format::Weir).text(&ban(BanSource::Jail("sshd".into())));
        assert_eq!(
            text,
            "gate: ban 203.0.113.7, jail sshd: 5 failures in 2m; until 1970-01-01T00:25:00Z\n\
             user \\u{1b}[2J from 203.0.113.7"
        );
    }
}
