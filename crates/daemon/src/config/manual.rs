//! The reference of the configuration, in its order: the keys above the first table
//! and the tables of filters are described here, all other tables beside the code
//! that reads them. What is allowed for a key the reader itself is asked; the tests
//! hold keys and defaults against the reader.

use std::path::Path;

pub use weir_config::manual::{Case, Key, Table, Usual, type_of};
use weir_config::manual::{
    NONE,
    Usual::{Is, Means, Required},
    key,
};

use super::Config;
use crate::{
    access::{exemptions, geofence, lists},
    balance, decoy, fail2ban,
    host::Host,
    jails, vips, watch,
};

/// All tables, in the order of the page.
pub fn tables() -> impl Iterator<Item = &'static Table> {
    [
        TOP,
        exemptions::config::MANUAL,
        jails::MANUAL,
        FILTERS,
        fail2ban::MANUAL,
        decoy::config::MANUAL,
        decoy::tarpit::MANUAL,
        geofence::MANUAL,
        lists::config::MANUAL,
        balance::config::MANUAL,
        vips::config::MANUAL,
        watch::config::MANUAL,
        weir_identity::config::MANUAL,
        weir_token::config::MANUAL,
        weir_sinks::config::MANUAL,
    ]
    .into_iter()
    .flatten()
}

/// What the reader allows for a key, in its own words.
pub fn allowed(table: &Table, key: &str) -> Option<String> {
    let (head, of) = match table.name {
        "" => (String::new(), String::new()),
        name => (format!("{}\n", table.head()), format!(" in [{name}]")),
    };
    let needs = table.needs.iter().filter(|(name, _)| *name != key);
    let needs = needs.map(|(name, value)| format!("{name} = {value}\n"));
    // Nothing takes a list of lists.
    let text = format!("{head}{}{key} = [[]]\n", needs.collect::<String>());
    let errors = Config::check(Path::new("weir.toml"), &text, &Host).err()?.0;
    let is = format!("{key}{of} is ");
    errors.iter().find_map(|error| {
        let (_, allowed) = error.message.strip_prefix(&is)?.split_once("; allowed: ")?;
        Some(allowed.to_owned())
    })
}

const TOP: &[Table] = &[Table {
    name: "",
    about: "Keys above the first table.",
    needs: &[],
    keys: &[
        key(
            "interfaces",
            Is("\"auto\""),
            "Which interfaces are protected: by name, or those that have a default route, also later.",
        ),
        key(
            "backend",
            Is("\"auto\""),
            "Where packets are dropped. \"auto\" takes the cheapest hook that works here; \"dry-run\" decides everything and drops nothing.",
        ),
        key(
            "prefer",
            Is("\"traffic\""),
            "What backend = \"auto\" minimises once weir-calibrate(1) has measured the hooks: \"traffic\", the cost to TCP that is not banned; \"drops\", the cost of a drop alone.",
        ),
        key(
            "observe",
            Is("false"),
            "With true, what would be dropped is counted and passes.",
        ),
        key(
            "max_bans",
            Is("1000000"),
            "The cap of the ban table. Above it the bans of a jail that end first make room for its new ones; manual bans are never displaced.",
        ),
        key(
            "ipv4_length",
            NONE,
            "Bans of IPv4 prefixes of this length may be as many as bans of addresses. A change needs a restart.",
        ),
        key(
            "allow",
            Is("[]"),
            "Prefixes that nobody can ban, besides this host's own addresses, gateways and resolvers.",
        ),
        key(
            "keep_history",
            Is("\"30d\""),
            "How long ended bans are remembered, for weir-why(1) and for increments.",
        ),
        key(
            "history_mb",
            Is("64"),
            "The most megabytes that the history takes; an alert says when it has been cut short.",
        ),
        key(
            "instance",
            Is("\"default\""),
            "The name of the pins; each daemon of a host has its own. A change needs a restart.",
        ),
        key(
            "state_dir",
            Is("\"/var/lib/weir\""),
            "Where the database is. A change needs a restart.",
        ),
        key(
            "socket",
            Is("\"/run/weir/weir.sock\""),
            "The control socket. A change needs a restart.",
        ),
        key(
            "fail2ban_socket",
            NONE,
            "Answers Fail2ban's own protocol at this socket, for exporters and panels made for it: its status, bans, and what bans and unbans. A change needs a restart.",
        ),
        key(
            "pin_root",
            Is("\"/sys/fs/bpf/weir\""),
            "Where programs and maps are pinned, below a BPF file system. A change needs a restart.",
        ),
    ],
}];

const FILTERS: &[Table] = &[
    Table {
        name: "filter.NAME",
        about: "Which lines are failures. filter.d/NAME.toml beside the configuration file is this table.",
        needs: &[("patterns", "[\"<addr>\"]")],
        keys: &[
            key(
                "identifiers",
                Is("[]"),
                "The programs that write the lines: their syslog tags. Without any, a message begins behind its time stamp.",
            ),
            key(
                "head",
                Means("a time stamp, or a syslog daemon's head with identifiers"),
                "What stands before each message in a file or a ring: text, <time>, <host>, <tag>, <pid>, <word>, <number>, [optional].",
            ),
            key(
                "time_format",
                Means("syslog's or ISO 8601"),
                "The form of <time> in head, written as for strftime: \"%d/%b/%Y:%H:%M:%S %z\".",
            ),
            key(
                "json",
                NONE,
                "Messages are objects of JSON: which fields make the message that patterns read.",
            ),
            key(
                "patterns",
                Required,
                "Whole messages with <addr>, <prefix> or <host>, <port>, <user>, <user:word>, <text>, <word>, <number>, [optional] and (one|or another); the first that fits counts.",
            ),
            key(
                "ignore",
                Is("[]"),
                "Messages that do not count although a pattern fits.",
            ),
            key(
                "journal_match",
                Means("the identifiers' programs"),
                "Trusted fields that entries of the journal must have, written as in a jail.",
            ),
            key(
                "syslog_only",
                Is("false"),
                "Of the journal, only entries that came by syslog or by journald's own protocol count.",
            ),
            key(
                "root_only",
                Is("false"),
                "Of the journal, only entries of root's processes count.",
            ),
            key(
                "allow_untagged",
                Is("false"),
                "In a file, lines with a time stamp and no syslog tag were written by other programs, not by a client: the lines after them count.",
            ),
        ],
    },
    Table {
        name: "filter.NAME.json",
        about: "Messages that are objects of JSON, behind the head; also as json = { message = ... } in the filter.",
        needs: &[("message", "\"<remote_ip>\"")],
        keys: &[
            key(
                "message",
                Required,
                "The message that patterns read: text with the paths of fields, as in \"<status> from <request.remote_ip>\". A line without one of them is not read.",
            ),
            key(
                "time",
                Means("the time stamp of the head, or now"),
                "The path of the field with the time stamp.",
            ),
            key(
                "time_format",
                Means("ISO 8601, or a number since 1970"),
                "The form of that field, written as for strftime. Without it a number counts seconds, milli-, micro- or nanoseconds.",
            ),
        ],
    },
    Table {
        name: "filter.NAME.patterns",
        about: "A pattern as a table, where several messages tell of one attempt; also as { text = ... } in the list.",
        needs: &[("text", "\"<addr>\"")],
        keys: &[
            key("text", Required, "The pattern."),
            key(
                "announces",
                NONE,
                "A label. The message counts; the next message of its connection that completes this label is about the same attempt, and does not.",
            ),
            key(
                "completes",
                NONE,
                "A label. The message does not count where it completes what was announced.",
            ),
            key(
                "unless_counted",
                Is("false"),
                "The message counts only where no message of its connection has counted before.",
            ),
            key(
                "max_length",
                NONE,
                "Longer messages, in bytes, do not fit the pattern: for programs that cut long messages.",
            ),
        ],
    },
];

#[cfg(test)]
mod tests;
