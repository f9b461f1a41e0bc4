//! How a feature describes its tables and keys for the reference: what a key is for
//! and what holds without it. Each feature has its own [`Table`]s beside the code
//! that reads them; keys that several features have are described here. weir.toml(5)
//! and docs/configuration.md are made from these tables; what is allowed for a key
//! they ask the reader itself.

/// A table of the configuration.
pub struct Table {
    /// As in the file, such as `jail.NAME`; the top of the file has none.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// Keys that it cannot do without, as they may be written.
    pub needs: &'static [(&'static str, &'static str)],
    /// The keys of the table.
    pub keys: &'static [Key],
}

/// A key of a table, as the manual describes it.
pub struct Key {
    /// The name of the key.
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
    /// As if one of these were written, by what else is in the table. The first
    /// holds where no other does.
    By(&'static [Case]),
    /// This, in words.
    Means(&'static str),
    /// A table without it is a mistake.
    Required,
}

/// What holds without a key in one kind of table.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// As if this were written.
    pub value: &'static str,
    /// Where, in words that follow the value, such as `with crowdsec`; empty in the
    /// first case.
    pub when: &'static str,
    /// Further keys of such a table, as they may be written.
    pub with: &'static [(&'static str, &'static str)],
    /// Of the keys in [`Table::needs`], those that such a table has not.
    pub without: &'static [&'static str],
}

use Usual::{Is, Means};

/// A key of a table.
pub const fn key(name: &'static str, default: Usual, about: &'static str) -> Key {
    Key {
        name,
        default,
        about,
    }
}

/// Nothing holds without the key.
pub const NONE: Usual = Means("none");

/// The TOML type of a key whose reader allows this, in the reader's own words.
pub fn type_of(allowed: &str) -> &'static str {
    let begins = |words: &str| allowed.starts_with(words);
    match allowed {
        "true, false" => "boolean",
        _ if begins("a whole number ") => "integer",
        _ if begins("a number ") => "number",
        _ if begins("a table ") => "table",
        _ if allowed.contains("seconds as a number") => "duration",
        _ if allowed.contains(" or a list of ") => "string or list",
        _ if begins("a list ") => "list",
        _ => "string",
    }
}

impl Table {
    /// As its head is written.
    pub fn head(&self) -> String {
        match self.name {
            "" => String::new(),
            "filter.NAME.patterns" | "pool.NAME.reals" => format!("[[{}]]", self.name),
            name => format!("[{name}]"),
        }
    }
}

/// Of what can be turned off.
pub const ENABLED: Key = key(
    "enabled",
    Is("true"),
    "With false the table is checked and has no effect.",
);
/// Of what bans or denies on ports.
pub const PORTS: Key = key(
    "ports",
    Is("\"all\""),
    "The ports of this host to which packets are dropped.",
);
/// Of what bans.
pub const ACTION: Key = key(
    "action",
    Is("\"drop\""),
    "What happens to packets of banned addresses: \"drop\" drops them silently; \"reject\" also answers with a TCP reset or an ICMP error.",
);
/// Of what bans for longer each time.
pub const INCREMENT: Key = key(
    "increment",
    NONE,
    "Each further ban of an address lasts longer; a table, see below.",
);
/// Of what counts.
pub const IGNORE: Key = key("ignore", Is("[]"), "Addresses that are never counted here.");
/// About `direction`, whose default differs.
pub const DIRECTION: &str =
    "Whose flows are judged: those that others begin, those that this host begins, or both.";
/// Of `increment`.
pub const FACTOR: Key = key(
    "factor",
    Is("2"),
    "Each ban lasts this many times as long as the one before it.",
);
