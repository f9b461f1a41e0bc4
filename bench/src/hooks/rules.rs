//! The rows that are rules of iptables, nft, ipset or tc: what is run, what
//! takes it back, and where the counter is read. Names of tables and sets are
//! this process's own; nothing else is touched.

use std::{fmt::Write, sync::Arc};

use anyhow::Context;

use super::{
    flood_target::{FloodTarget, PORT},
    task::{Running, Task},
};

/// Reads a counter.
type Count = Box<dyn Fn(&FloodTarget) -> anyhow::Result<u64> + Send>;

/// Commands that were run, and how to count and to take them back.
struct Rules {
    place: Arc<FloodTarget>,
    /// Run at the end, the last first.
    undo: Vec<(&'static str, Vec<String>)>,
    count: Count,
}

impl Running for Rules {
    fn dropped(&mut self) -> anyhow::Result<u64> {
        (self.count)(&self.place)
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        for (program, args) in self.undo.drain(..).rev() {
            if let Err(error) = self.place.run(program, &args, &[]) {
                eprintln!("cannot take a rule away: {error:#}");
            }
        }
    }
}

/// The rule as iptables says it.
fn udp_to_port() -> [String; 4] {
    [
        "-p".into(),
        "udp".into(),
        "--dport".into(),
        PORT.to_string(),
    ]
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

impl Rules {
    fn new(task: &Task) -> Self {
        Self {
            place: task.place.clone(),
            undo: Vec::new(),
            count: Box::new(|_| Ok(0)),
        }
    }

    /// Runs a command, and remembers another that takes it back.
    fn run(
        &mut self,
        program: &'static str,
        args: Vec<String>,
        input: &[u8],
        undo: Option<Vec<String>>,
    ) -> anyhow::Result<()> {
        self.place.run(program, &args, input)?;
        self.undo.extend(undo.map(|args| (program, args)));
        Ok(())
    }

    /// Puts a rule first in a chain of iptables.
    fn iptables(
        &mut self,
        program: &'static str,
        table: &str,
        chain: &str,
        rule: &[String],
    ) -> anyhow::Result<()> {
        let args = |verb: &str| {
            let mut args = words(&format!("-w -t {table} {verb} {chain}"));
            args.extend_from_slice(rule);
            args
        };
        self.run(program, args("-I"), &[], Some(args("-D")))
            .with_context(|| format!("netfilter table {table}"))
    }
}

/// The paper's; where distributions have but the other one, the host's.
fn iptables_for(task: &Task) -> &'static str {
    let has = |name: &str| weir_netlab::missing(&[name]).is_none();
    match (task.ipv4(), has("iptables-legacy")) {
        (true, true) => "iptables-legacy",
        (false, true) => "ip6tables-legacy",
        (_, false) => host_iptables(task),
    }
}

/// The host's own iptables program, the one that weir runs.
fn host_iptables(task: &Task) -> &'static str {
    if task.ipv4() { "iptables" } else { "ip6tables" }
}

/// Packets that rules of a chain with this in their text have dropped.
fn iptables_drops(listing: &str, text: &str) -> anyhow::Result<u64> {
    listing
        .lines()
        .filter(|line| line.contains(text))
        .filter_map(|line| {
            let mut columns = line.split_whitespace();
            let packets = columns.next()?;
            columns.any(|word| word == "DROP").then_some(packets)
        })
        .map(|packets| Ok(packets.parse::<u64>()?))
        .sum()
}

/// Counts what a chain's rules with this in their text drop.
fn count_iptables(
    program: &'static str,
    table: &'static str,
    chain: &'static str,
    text: String,
) -> Count {
    let args = words(&format!("-w -t {table} -vnxL {chain}"));
    Box::new(move |place| iptables_drops(&place.run(program, &args, &[])?, &text))
}

fn to_port(target: &str) -> Vec<String> {
    let mut rule = udp_to_port().to_vec();
    rule.extend(words(&format!("-j {target}")));
    rule
}

/// Rules that userspace rows need: untracked packets, or tracked ones, let in. Nobody
/// counts by it.
pub fn let_in(task: &Task, track: bool) -> anyhow::Result<Box<dyn Running>> {
    let program = iptables_for(task);
    let mut rules = Rules::new(task);
    if track {
        // Modern kernels track connections where a rule asks for their state.
        let mut rule = udp_to_port().to_vec();
        rule.extend(words("-m conntrack --ctstate NEW,ESTABLISHED -j ACCEPT"));
        rules.iptables(program, "raw", "PREROUTING", &to_port("ACCEPT"))?;
        rules.iptables(program, "filter", "INPUT", &rule)?;
    } else {
        rules.iptables(program, "raw", "PREROUTING", &to_port("NOTRACK"))?;
        rules.iptables(program, "filter", "INPUT", &to_port("ACCEPT"))?;
    }
    Ok(Box::new(rules))
}

/// iptables, INPUT, untracked as in the paper.
pub fn input(task: &Task) -> anyhow::Result<Box<dyn Running>> {
    let program = iptables_for(task);
    let mut rules = Rules::new(task);
    rules.iptables(program, "raw", "PREROUTING", &to_port("NOTRACK"))?;
    rules.iptables(program, "filter", "INPUT", &to_port("DROP"))?;
    rules.count = count_iptables(program, "filter", "INPUT", format!("dpt:{PORT}"));
    Ok(Box::new(rules))
}

/// iptables, table raw, PREROUTING.
pub fn raw(task: &Task) -> anyhow::Result<Box<dyn Running>> {
    let program = iptables_for(task);
    let mut rules = Rules::new(task);
    rules.iptables(program, "raw", "PREROUTING", &to_port("DROP"))?;
    rules.count = count_iptables(program, "raw", "PREROUTING", format!("dpt:{PORT}"));
    Ok(Box::new(rules))
}

/// Do the elements of a set end by themselves, as bans do? The kernel then keeps
/// another table, which costs more to ask.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    Never,
    InADay,
}

/// A set of all banned sources, asked in table raw: as the paper would have it,
/// or with bans that end and by the host's iptables, as weir's.
pub fn ipset(task: &Task, ends: Ends) -> anyhow::Result<Box<dyn Running>> {
    let program = match ends {
        Ends::Never => iptables_for(task),
        Ends::InADay => host_iptables(task),
    };
    let family = if task.ipv4() { "inet" } else { "inet6" };
    let name = format!("weir-bench-{}", std::process::id());
    let banned = task.banned();
    let timeout = match ends {
        Ends::Never => "",
        Ends::InADay => " timeout 86400",
    };
    let mut text = format!(
        "create {name} hash:ip family {family} hashsize {0} maxelem {0}{timeout}\n",
        banned.len().next_power_of_two()
    );
    for addr in banned {
        let _ = writeln!(text, "add {name} {addr}");
    }
    let mut rules = Rules::new(task);
    rules
        .run(
            "ipset",
            words("restore"),
            text.as_bytes(),
            Some(words(&format!("destroy {name}"))),
        )
        .context("ip_set_hash_ip")?;
    let rule = words(&format!("-m set --match-set {name} src -j DROP"));
    rules.iptables(program, "raw", "PREROUTING", &rule)?;
    rules.count = count_iptables(program, "raw", "PREROUTING", format!("match-set {name} "));
    Ok(Box::new(rules))
}

/// Loads a chain into a table of our own.
fn nft(
    task: &Task,
    family: &'static str,
    hook: &str,
    sets: &str,
    rule: &str,
) -> anyhow::Result<Box<dyn Running>> {
    let table = format!("weir_bench_{}", std::process::id());
    let text = format!(
        "table {family} {table} {{\n{sets} chain drops {{\n  \
         type filter hook {hook}; policy accept;\n  {rule}\n }}\n}}\n"
    );
    let mut rules = Rules::new(task);
    rules
        .run(
            "nft",
            words("-f -"),
            text.as_bytes(),
            Some(words(&format!("delete table {family} {table}"))),
        )
        .with_context(|| format!("nf_tables, {family}, {hook}"))?;
    // Terse: a listing with elements takes seconds.
    let list = words(&format!("-t -j list chain {family} {table} drops"));
    rules.count = Box::new(move |place| nft_counter(&place.run("nft", &list, &[])?));
    Ok(Box::new(rules))
}

/// The packets of the counters in a listing.
fn nft_counter(json: &str) -> anyhow::Result<u64> {
    let listing: serde_json::Value = serde_json::from_str(json).context("nft's listing")?;
    let rules = listing["nftables"].as_array().context("nft's objects")?;
    let expressions = rules
        .iter()
        .filter_map(|object| object["rule"]["expr"].as_array())
        .flatten();
    Ok(expressions
        .filter_map(|expression| expression["counter"]["packets"].as_u64())
        .sum())
}

fn ingress(task: &Task) -> String {
    format!("ingress device {:?} priority -500", task.place.dev)
}

/// nft, netdev ingress.
pub fn nft_ingress(task: &Task) -> anyhow::Result<Box<dyn Running>> {
    let rule = format!("udp dport {PORT} counter drop");
    nft(task, "netdev", &ingress(task), "", &rule)
}

/// nft, inet prerouting, before connection tracking.
pub fn nft_prerouting(task: &Task) -> anyhow::Result<Box<dyn Running>> {
    let rule = format!("udp dport {PORT} counter drop");
    nft(task, "inet", "prerouting priority -300", "", &rule)
}

/// nft, netdev ingress, a hash set of all banned sources.
pub fn nft_set(task: &Task, ends: Ends) -> anyhow::Result<Box<dyn Running>> {
    let (kind, word) = if task.ipv4() {
        ("ipv4_addr", "ip")
    } else {
        ("ipv6_addr", "ip6")
    };
    let banned = task.banned();
    let timeout = match ends {
        Ends::Never => "",
        Ends::InADay => "timeout 1d; ",
    };
    let mut set = format!(
        " set banned {{ type {kind}; size {}; {timeout}elements = {{\n",
        banned.len()
    );
    for addr in banned {
        let _ = writeln!(set, "{addr},");
    }
    set.push_str(" } }\n");
    let rule = format!("{word} saddr @banned counter drop");
    nft(task, "netdev", &ingress(task), &set, &rule)
}

/// tc, u32 and the action drop, as in the paper.
pub fn u32_drop(task: &Task) -> anyhow::Result<Box<dyn Running>> {
    let dev = &task.place.dev;
    let mut rules = Rules::new(task);
    rules
        .run(
            "tc",
            words(&format!("qdisc add dev {dev} ingress")),
            &[],
            Some(words(&format!("qdisc del dev {dev} ingress"))),
        )
        .context("sch_ingress")?;
    let (protocol, word) = if task.ipv4() {
        ("ip", "ip")
    } else {
        ("ipv6", "ip6")
    };
    let filter = format!(
        "filter add dev {dev} parent ffff: prio 4 protocol {protocol} u32 \
         match {word} protocol 17 0xff match {word} dport {PORT} 0xffff flowid 1:1"
    );
    // Ends with the qdisc.
    rules
        .run("tc", words(&filter), &[], None)
        .context("cls_u32")?;
    rules
        .run(
            "tc",
            words(
                &filter
                    .replace(" add ", " replace ")
                    .replace("flowid 1:1", "flowid 1:1 action drop"),
            ),
            &[],
            None,
        )
        .context("act_gact")?;
    let show = words(&format!("-s -j qdisc show dev {dev}"));
    rules.count = Box::new(move |place| {
        let listing: serde_json::Value = serde_json::from_str(&place.run("tc", &show, &[])?)?;
        let qdiscs = listing.as_array().context("tc's qdiscs")?;
        let ingress = qdiscs.iter().find(|qdisc| qdisc["kind"] == "ingress");
        ingress
            .and_then(|qdisc| qdisc["drops"].as_u64())
            .context("the drops of the ingress qdisc")
    });
    Ok(Box::new(rules))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_iptables_is_counted_by_its_own_rules() {
        let listing = "\
Chain INPUT (policy ACCEPT 12 packets, 900 bytes)
    pkts      bytes target     prot opt in     out     source               destination
  123456  7407360 DROP       17   --  *      *       0.0.0.0/0            0.0.0.0/0            udp dpt:12345
       7      420 ACCEPT     17   --  *      *       0.0.0.0/0            0.0.0.0/0            udp dpt:12345
      99      990 DROP       6    --  *      *       0.0.0.0/0            0.0.0.0/0            tcp dpt:22
";
        assert_eq!(iptables_drops(listing, "dpt:12345").unwrap(), 123_456);
    }

    #[test]
    fn counters_of_nft_are_found_in_rules() {
        let listing = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
            {"chain": {"name": "drops"}},
            {"rule": {"expr": [{"match": {}}, {"counter": {"packets": 5, "bytes": 50}}, {"drop": null}]}}]}"#;
        assert_eq!(nft_counter(listing).unwrap(), 5);
        assert!(nft_counter("Error").is_err());
    }
}
