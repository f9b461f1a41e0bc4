//! What weir.toml(5) says: every table, its keys, their defaults and what they
//! are for. What is allowed there the reader itself is asked, as are the names of
//! the keys in the tests.

use std::path::Path;

use super::Config;
use crate::host::Host;

/// A table of the configuration.
pub struct Table {
    /// As in the file, such as `jail.NAME`; the top of the file has none.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// Keys that it cannot do without, as they may be written.
    needs: &'static [(&'static str, &'static str)],
    /// Its keys.
    pub keys: &'static [Key],
}

/// A key.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What holds without it.
    pub default: Usual,
    /// What it is for.
    pub about: &'static str,
}

/// What holds without a key.
#[derive(Debug, Clone, Copy)]
pub enum Usual {
    /// As if this were written.
    Is(&'static str),
    /// This, in words.
    Means(&'static str),
    /// A table without it is a mistake.
    Required,
}

use Usual::{Is, Means, Required};

const fn key(name: &'static str, default: Usual, about: &'static str) -> Key {
    Key {
        name,
        default,
        about,
    }
}

const NONE: Usual = Means("none");

impl Table {
    /// As its head is written.
    pub fn head(&self) -> String {
        match self.name {
            "" => String::new(),
            "filter.NAME.patterns" => format!("[[{}]]", self.name),
            name => format!("[{name}]"),
        }
    }

    /// What the reader allows for a key, in its own words.
    pub fn allowed(&self, key: &str) -> Option<String> {
        let (head, of) = match self.name {
            "" => (String::new(), String::new()),
            name => (format!("{}\n", self.head()), format!(" in [{name}]")),
        };
        let needs = self.needs.iter().filter(|(name, _)| *name != key);
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
}

const ENABLED: Key = key(
    "enabled",
    Is("true"),
    "With false the table is checked, and has no effect.",
);
const PORTS: Key = key(
    "ports",
    Is("\"all\""),
    "To which ports of this host packets are dropped.",
);
const ACTION: Key = key(
    "action",
    Is("\"drop\""),
    "\"reject\" answers packets of whom it bans at once: a TCP reset, or an ICMP error.",
);
const INCREMENT: Key = key(
    "increment",
    NONE,
    "Each further ban of an address lasts longer; a table, see below.",
);
const IGNORE: Key = key("ignore", Is("[]"), "Addresses that are never counted here.");
const DIRECTION: &str =
    "Whose flows are judged: those that others begin, those that this host begins, or both.";
const EVENTS: Key = key(
    "events",
    Means(
        "[\"ban\", \"unban\", \"error\", \"start\", \"stop\"]; all that format = \"ipt_geofence\" has",
    ),
    "Which events it gets.",
);
const FORMAT: Key = key("format", Is("\"weir\""), "How an event is written.");
const QUEUE: Key = key(
    "queue",
    Is("4096"),
    "Events that wait for a slow receiver; of more the oldest are dropped, counted and told.",
);
const RATE: &str = "Events a minute; the rest is counted and told as a number.";
const FACTOR: Key = key(
    "factor",
    Is("2"),
    "Each ban is so many times as long as the one before it.",
);

/// All tables, in the order of the page.
pub const TABLES: &[Table] = &[
    Table {
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
                "What \"auto\" goes by once weir-calibrate(1) has measured the hooks: what good TCP pays, or the cost of a drop alone.",
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
                "IPv4 prefixes of this length may be as many as addresses. A change needs a restart.",
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
                "The history takes no more than these megabytes; an alert says when it has been cut short.",
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
                "pin_root",
                Is("\"/sys/fs/bpf/weir\""),
                "Where programs and maps are pinned, below a BPF file system. A change needs a restart.",
            ),
        ],
    },
    Table {
        name: "lockout",
        about: "Keeps administrators from locking themselves out.",
        needs: &[],
        keys: &[
            key(
                "logins",
                Is("true"),
                "Addresses from which root, or a member of sudo, wheel or admin, is logged in are exempt.",
            ),
            key("grace", Is("\"1h\""), "So long after the logout, too."),
        ],
    },
    Table {
        name: "jail.NAME",
        about: "Bans addresses that fail too often in a log.",
        needs: &[("filter", "\"sshd\"")],
        keys: &[
            ENABLED,
            key(
                "filter",
                Means("the jail's own name"),
                "Which lines are failures: a built-in filter (weir filter list) or a table [filter.NAME].",
            ),
            key(
                "source",
                Is("\"auto\""),
                "Where the lines are: \"auto\" is the journal where there is one, else /var/log/auth.log; with paths it is files, with ring a ring.",
            ),
            key("paths", NONE, "Files, or patterns of files, that are read."),
            key(
                "journal_match",
                NONE,
                "Trusted fields of the journal that its entries must have, in place of the filter's own; \"+\" stands between sets of which any may fit.",
            ),
            key(
                "time_zone",
                Means("this host's"),
                "Of time stamps that name none.",
            ),
            key(
                "ring",
                NONE,
                "The directory of a shared-memory ring that is read.",
            ),
            key(
                "ring_owner",
                Means("root's only"),
                "Whose segments of the ring are read besides root's.",
            ),
            key(
                "ring_max_mib",
                Means("1024"),
                "MiB that the segments of the ring may take together; the others are not read.",
            ),
            key(
                "workers",
                Means("one for each processor, 8 at most"),
                "Threads that read the ring.",
            ),
            key("max_retry", Is("5"), "So many failures ban ..."),
            key("find_time", Is("\"10m\""), "... within this time ..."),
            key(
                "ban_time",
                Is("\"1h\""),
                "... for this time. \"forever\" is a permanent ban.",
            ),
            INCREMENT,
            PORTS,
            ACTION,
            IGNORE,
            key(
                "ipv6_prefix",
                Is("64"),
                "IPv6 addresses are counted and banned by prefixes of this length: 32 to 64, or 128.",
            ),
            key(
                "max_tracked",
                Is("131072"),
                "Addresses whose failures are remembered at once; of more the oldest are forgotten.",
            ),
        ],
    },
    Table {
        name: "jail.NAME.increment",
        about: "How bans of those who come again grow, also as increment = { ... } in the jail. [watch.NAME.increment] is the same.",
        needs: &[],
        keys: &[FACTOR, key("max", Is("\"5w\""), "No ban lasts longer.")],
    },
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
                "The form of <time> in head, as strftime's: \"%d/%b/%Y:%H:%M:%S %z\".",
            ),
            key(
                "patterns",
                Required,
                "Whole messages with <addr> or <prefix>, <port>, <user>, <user:word>, <text>, <word>, <number>, [optional] and (one|or another); the first that fits counts.",
            ),
            key(
                "ignore",
                Is("[]"),
                "Messages that do not count although a pattern fits.",
            ),
            key(
                "journal_match",
                Means("the identifiers' programs"),
                "Trusted fields of the journal that its entries must have, as a jail's.",
            ),
            key(
                "syslog_only",
                Is("false"),
                "Of the journal, only entries that came by syslog or journald's own protocol count.",
            ),
            key(
                "root_only",
                Is("false"),
                "Of the journal, only entries of root's processes count.",
            ),
            key(
                "allow_untagged",
                Is("false"),
                "Of a file, lines with a time stamp and no tag are other programs', not a client's: those behind them count.",
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
                "It counts; the next message of its connection that completes this label tells of the same attempt.",
            ),
            key(
                "completes",
                NONE,
                "It does not count where it completes what was announced.",
            ),
            key(
                "unless_counted",
                Is("false"),
                "It counts only where nothing of its connection has counted before.",
            ),
            key(
                "max_length",
                Means("any that is read"),
                "It reads no message of more bytes: for programs that cut long ones.",
            ),
        ],
    },
    Table {
        name: "decoy",
        about: "Ports that nobody serves: who completes a connection to one is banned on all ports.",
        needs: &[("ports", "[\"23/tcp\"]")],
        keys: &[
            key("ports", Required, "Which; \"!22/tcp\" leaves one out."),
            key("ban_time", Is("\"15m\""), "How long the first ban lasts."),
            key(
                "increment",
                Means("a factor of 2, up to a week"),
                "Each further ban lasts longer; a table, see below.",
            ),
            key(
                "proof",
                Is("\"handshake\""),
                "What a ban needs. With \"none\" one packet bans, which anybody can forge.",
            ),
        ],
    },
    Table {
        name: "decoy.increment",
        about: "How bans of those who come again grow.",
        needs: &[],
        keys: &[FACTOR, key("max", Is("\"1w\""), "No ban lasts longer.")],
    },
    Table {
        name: "geofence",
        about: "From which places flows may begin. Its own keys are the last rule.",
        needs: &[],
        keys: &[
            key("database", Means("the built-in one"), "Of countries."),
            key(
                "asn_database",
                NONE,
                "Of autonomous systems, for places such as \"asn:64496\".",
            ),
            key(
                "rules",
                NONE,
                "Rules that are asked first; tables, see below.",
            ),
            key(
                "default",
                Is("\"pass\""),
                "What becomes of places that are neither in allow nor in deny.",
            ),
            key(
                "unknown",
                Is("\"pass\""),
                "What becomes of addresses whose place nobody knows.",
            ),
            key("allow", Is("[]"), "Places that pass."),
            key(
                "deny",
                Is("[]"),
                "Places that are dropped; of two entries that fit the narrower one counts.",
            ),
            key("direction", Is("\"in\""), DIRECTION),
            PORTS,
            key("except", Is("[]"), "Prefixes that the rule does not judge."),
        ],
    },
    Table {
        name: "geofence.rules.NAME",
        about: "A rule for some ports or one direction, asked before those behind it.",
        needs: &[],
        keys: &[
            key("default", Is("\"pass\""), "As in [geofence]."),
            key("unknown", Is("\"pass\""), "As in [geofence]."),
            key("allow", Is("[]"), "As in [geofence]."),
            key("deny", Is("[]"), "As in [geofence]."),
            key("direction", Is("\"in\""), DIRECTION),
            PORTS,
            key("except", Is("[]"), "Prefixes that the rule does not judge."),
        ],
    },
    Table {
        name: "list.NAME",
        about: "A list of addresses and prefixes. It needs one of url, file and crowdsec.",
        needs: &[("file", "\"/etc/hostname\"")],
        keys: &[
            ENABLED,
            key("url", NONE, "Where it is fetched from."),
            key(
                "file",
                NONE,
                "Where it lies on this host; each change counts within seconds.",
            ),
            key("crowdsec", NONE, "A CrowdSec whose decisions it is."),
            key("key_file", NONE, "Of CrowdSec; required with it."),
            key(
                "action",
                Is("\"deny\""),
                "\"deny\" drops the packets of whom it names; nobody can ban whom an \"allow\" list names.",
            ),
            key("format", Is("\"auto\""), "How it is written."),
            key(
                "refresh",
                Means("\"1d\"; \"30s\" with crowdsec"),
                "How often it is fetched.",
            ),
            PORTS,
            key("direction", Is("\"in\""), DIRECTION),
            key(
                "max_bytes",
                Is("67108864"),
                "A longer one is refused; the last good one stays.",
            ),
            key(
                "max_entries",
                Is("2000000"),
                "One with more entries is refused; the last good one stays.",
            ),
            key(
                "max_shrink",
                Is("90"),
                "One that has lost so many per cent of its entries at once is refused until the next refresh brings it again.",
            ),
            key(
                "ca_file",
                Means("the system's"),
                "Certificate authorities that are trusted instead.",
            ),
        ],
    },
    Table {
        name: "watch.NAME",
        about: "Bans the addresses that a command prints, one a line.",
        needs: &[("command", "[\"/bin/true\"]")],
        keys: &[
            ENABLED,
            key(
                "command",
                Required,
                "What is run, again when it ends. Only root may be able to change it.",
            ),
            key(
                "only_if",
                Is("\"any\""),
                "With \"denied\", only whom the geofence or a deny list denies as well is banned.",
            ),
            key(
                "ban_time",
                Is("\"1h\""),
                "How long. \"forever\" is a permanent ban.",
            ),
            INCREMENT,
            PORTS,
            ACTION,
            IGNORE,
        ],
    },
    Table {
        name: "sink.NAME",
        about: "With kind = \"webhook\": HTTP POST of each event.",
        needs: &[("kind", "\"webhook\""), ("url", "\"https://localhost/\"")],
        keys: &[
            key(
                "kind",
                Required,
                "Where events go; the keys below belong to \"webhook\".",
            ),
            ENABLED,
            key("url", Required, "Whereto."),
            key(
                "token_file",
                NONE,
                "A file with what is sent as Authorization: Bearer; nobody else may read it.",
            ),
            key(
                "ca_file",
                Means("the system's"),
                "Certificate authorities that are trusted instead.",
            ),
            key("rate", Is("60"), RATE),
            FORMAT,
            EVENTS,
            QUEUE,
        ],
    },
    Table {
        name: "sink.NAME",
        about: "With kind = \"telegram\": messages of a Telegram bot.",
        needs: &[("kind", "\"telegram\""), ("chat_id", "\"1\"")],
        keys: &[
            key("kind", Required, "\"telegram\"."),
            ENABLED,
            key("chat_id", Required, "Who gets them."),
            key(
                "token_file",
                Required,
                "A file with the bot's token; nobody else may read it.",
            ),
            key("api", Is("\"https://api.telegram.org\""), "The Bot API."),
            key("rate", Is("20"), RATE),
            EVENTS,
            QUEUE,
        ],
    },
    Table {
        name: "sink.NAME",
        about: "With kind = \"zmq\": a ZeroMQ publisher. It needs the library libzmq, and server_key_file or plain = true.",
        needs: &[
            ("kind", "\"zmq\""),
            ("url", "\"ipc:///run/x\""),
            ("plain", "true"),
        ],
        keys: &[
            key("kind", Required, "\"zmq\"."),
            ENABLED,
            key("url", Required, "The subscriber."),
            key(
                "server_key_file",
                NONE,
                "A file with the subscriber's CURVE public key.",
            ),
            key("plain", Is("false"), "With true, events go in clear text."),
            FORMAT,
            EVENTS,
            QUEUE,
        ],
    },
    Table {
        name: "sink.NAME",
        about: "With kind = \"file\": JSON lines.",
        needs: &[("kind", "\"file\""), ("path", "\"/var/log/x\"")],
        keys: &[
            key("kind", Required, "\"file\"."),
            ENABLED,
            key("path", Required, "Which file."),
            FORMAT,
            EVENTS,
            QUEUE,
        ],
    },
];

#[cfg(test)]
mod tests;
