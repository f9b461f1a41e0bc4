//! What weir.toml(5) says of a table and its keys: what they are for, and what holds
//! without them. Each feature has its own beside what reads them; what several of
//! them say is here. What is allowed the reader itself is asked, by whoever makes
//! the page.

/// A table of the configuration.
pub struct Table {
    /// As in the file, such as `jail.NAME`; the top of the file has none.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// Keys that it cannot do without, as they may be written.
    pub needs: &'static [(&'static str, &'static str)],
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

impl Table {
    /// As its head is written.
    pub fn head(&self) -> String {
        match self.name {
            "" => String::new(),
            "filter.NAME.patterns" => format!("[[{}]]", self.name),
            name => format!("[{name}]"),
        }
    }
}

/// Of what can be turned off.
pub const ENABLED: Key = key(
    "enabled",
    Is("true"),
    "With false the table is checked, and has no effect.",
);
/// Of what bans or denies on ports.
pub const PORTS: Key = key(
    "ports",
    Is("\"all\""),
    "To which ports of this host packets are dropped.",
);
/// Of what bans.
pub const ACTION: Key = key(
    "action",
    Is("\"drop\""),
    "\"reject\" answers packets of whom it bans at once: a TCP reset, or an ICMP error.",
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
    "Each ban is so many times as long as the one before it.",
);
