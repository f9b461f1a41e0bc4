//! How a feature describes its tables and keys for the reference: what a key is for
//! and what holds without it. Each feature has its own [`Table`]s beside the code
//! that reads them; keys that several features have are described here. weir.toml(5)
//! and docs/configuration.md are made from these tables; what is allowed for a key
//! they ask the reader itself.

/// A table of the configuration.
pub struct Table {
    /// As in the file, such as `jail.NAME`; the top of the file has none.
    pub name: &'static str,
    /// The purpose of the table, for the manual.
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
    /// The value or meaning of the table without the key.
    pub default: Usual,
    /// The purpose of the key, for the manual.
    pub about: &'static str,
}

/// The effect of leaving out a key.
#[derive(Debug, Clone, Copy)]
pub enum Usual {
    /// The key has this value.
    Is(&'static str),
    /// The key has one of these values, by what else is in the table. The first holds where
    /// no other does.
    By(&'static [Case]),
    /// The effect, described in words.
    Means(&'static str),
    /// A table without it is a mistake.
    Required,
}

/// The effect of leaving out a key in one kind of table.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The value that the key has then.
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

/// The effect of a key that has none when it is left out.
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
    /// The table's head as written in the file.
    pub fn head(&self) -> String {
        match self.name {
            "" => String::new(),
            "filter.NAME.patterns" | "pool.NAME.reals" => format!("[[{}]]", self.name),
            name => format!("[{name}]"),
        }
    }
}

/// The key that turns a table off.
pub const ENABLED: Key = key(
    "enabled",
    Is("true"),
    "With false the table is checked and has no effect.",
);
/// The key with the ports of a ban or a denial.
pub const PORTS: Key = key(
    "ports",
    Is("\"all\""),
    "The ports of this host to which packets are dropped.",
);
/// The key with the action of a ban.
pub const ACTION: Key = key(
    "action",
    Is("\"drop\""),
    "What happens to packets of banned addresses: \"drop\" drops them silently; \"reject\" also answers with a TCP reset or an ICMP error.",
);
/// The key that makes repeated bans longer.
pub const INCREMENT: Key = key(
    "increment",
    NONE,
    "Each further ban of an address lasts longer; a table, see below.",
);
/// The key with the addresses that are not counted.
pub const IGNORE: Key = key("ignore", Is("[]"), "Addresses that are never counted here.");
/// About `direction`, whose default differs.
pub const DIRECTION: &str =
    "Whose flows are judged: those that others begin, those that this host begins, or both.";
/// The key of `increment` for the factor between two bans.
pub const FACTOR: Key = key(
    "factor",
    Is("2"),
    "Each ban lasts this many times as long as the one before it.",
);
