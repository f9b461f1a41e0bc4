//! Sets of ports, and the grammar of ipt_geofence's honeypot ports.

use serde_json::Value;

/// A set of ports, one flag each.
#[derive(Clone, PartialEq, Eq)]
pub struct Ports(Box<[bool; 65_536]>);

impl Ports {
    pub fn none() -> Self {
        Self(Box::new([false; 65_536]))
    }

    /// All but 0, which no packet is for.
    pub fn all() -> Self {
        let mut all = Self(Box::new([true; 65_536]));
        all.0[0] = false;
        all
    }

    pub fn add(&mut self, low: u16, high: u16) {
        self.0[usize::from(low.max(1))..=usize::from(high.max(1))].fill(true);
    }

    pub fn without(mut self, others: &Self) -> Self {
        for (port, other) in self.0.iter_mut().zip(others.0.iter()) {
            *port &= !other;
        }
        self
    }

    pub fn with(mut self, others: &Self) -> Self {
        for (port, other) in self.0.iter_mut().zip(others.0.iter()) {
            *port |= other;
        }
        self
    }

    pub fn is_empty(&self) -> bool {
        !self.0.contains(&true)
    }

    /// The set as the fewest ranges.
    pub fn ranges(&self) -> Vec<(u16, u16)> {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for port in (0..=u16::MAX).filter(|port| self.0[usize::from(*port)]) {
            match ranges.last_mut() {
                Some((_, high)) if *high + 1 == port => *high = port,
                _ => ranges.push((port, port)),
            }
        }
        ranges
    }

    /// As weir writes them, `22/tcp` or `6000-6010/tcp`.
    pub fn words(&self, protocol: &str) -> Vec<String> {
        let word = |(low, high)| match low == high {
            true => format!("{low}{protocol}"),
            false => format!("{low}-{high}{protocol}"),
        };
        self.ranges().into_iter().map(word).collect()
    }

    /// The same as [`Self::words`], or as all ports but some, if that is less
    /// to read.
    pub fn words_or_all_but(&self, protocol: &str) -> Vec<String> {
        let words = self.words(protocol);
        let missing = Self::all().without(self).words(protocol);
        if missing.len() >= words.len() {
            return words;
        }
        let all = std::iter::once(format!("1-65535{protocol}"));
        all.chain(missing.into_iter().map(|word| format!("!{word}")))
            .collect()
    }
}

/// A port as JSON has it.
pub fn port(value: &Value) -> Option<u16> {
    u16::try_from(value.as_u64()?).ok().filter(|port| *port > 0)
}

/// The ports that ipt_geofence takes for its honeypot: single ones, ranges in
/// either order, and with any `"!P"` all others but the `P`s; ranges beside
/// them are then without effect, single ports are not. Second: what is no port.
pub fn honeypot(list: &[Value]) -> (Ports, Vec<String>) {
    let (mut single, mut ranges, mut spared) = (Ports::none(), Ports::none(), Ports::none());
    let mut wrong = Vec::new();
    for value in list {
        let text = value.as_str().map(str::trim);
        let number = |text: &str| text.trim().parse().ok().filter(|port: &u16| *port > 0);
        if let Some(port) = port(value).or_else(|| number(text?)) {
            single.add(port, port);
        } else if let Some(port) = text.and_then(|text| number(text.strip_prefix('!')?)) {
            spared.add(port, port);
        } else if let Some((a, b)) = text.and_then(|text| {
            let (a, b) = text.split_once('-')?;
            Some((number(a)?, number(b)?))
        }) {
            ranges.add(a.min(b), a.max(b));
        } else {
            wrong.push(value.to_string());
        }
    }
    let ports = match spared.is_empty() {
        true => single.with(&ranges),
        false => single.with(&Ports::all().without(&spared)),
    };
    (ports, wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_honeypot_grammar_is_read_as_there() {
        // (the list, the ports)
        for (list, words) in [
            (r#"[23, "25"]"#, vec!["23", "25"]),
            (r#"["30-20", "25-40", 41]"#, vec!["20-41"]),
            (
                r#"["!22", "!443", "!23"]"#,
                vec!["1-65535", "!22-23", "!443"],
            ),
            // A range says nothing beside an exception, a single port does.
            (r#"["!22", "20-30"]"#, vec!["1-65535", "!22"]),
            (r#"["!22", "!23", 22]"#, vec!["1-65535", "!23"]),
            (r#"["1-65535"]"#, vec!["1-65535"]),
            ("[]", vec![]),
        ] {
            let list: Vec<Value> = serde_json::from_str(list).unwrap();
            let (ports, wrong) = honeypot(&list);
            assert_eq!(ports.words_or_all_but(""), words);
            assert!(wrong.is_empty());
        }
        let list: Vec<Value> =
            serde_json::from_str(r#"[0, 65536, -1, "x", "1-", "!0", "1-70000", null, [22]]"#)
                .unwrap();
        let (ports, wrong) = honeypot(&list);
        assert!(ports.is_empty());
        assert_eq!(wrong.len(), list.len());
    }
}
