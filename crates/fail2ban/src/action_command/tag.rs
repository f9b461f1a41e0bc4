//! The tags of a command: values of a ban, and those which filters capture, with the
//! variables that they become.

/// The name by which a filter captures `<F-ID>`.
pub const CAPTURED_ID: &str = "fid";

/// A value that is known when somebody is banned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Tag {
    /// The address or prefix that is banned.
    Ip,
    /// What the filter has captured as `<F-ID>`, if it has; else as [`Tag::Ip`].
    Id,
    /// The same as labels of a reverse name, with a dot at the end.
    IpRev,
    /// `inet4` or `inet6`.
    Family,
    /// How many failures led to the ban.
    Failures,
    /// Since when it is banned, in seconds since 1970.
    Time,
    /// For how many seconds; -1 is for ever.
    BanTime,
    /// How many bans of this address this jail has made, with this one.
    BanCount,
    /// `1` if the ban was made before, and is in force again; else `0`.
    Restored,
    /// The lines that led to the ban.
    Matches,
    /// This host's name with its domain.
    HostNameFull,
    /// This host's name.
    HostName,
}

impl Tag {
    const ALL: [(&str, Self); 17] = [
        ("ip", Self::Ip),
        ("ADDR", Self::Ip),
        ("fid", Self::Id),
        ("F-ID", Self::Id),
        ("ip-rev", Self::IpRev),
        ("family", Self::Family),
        ("failures", Self::Failures),
        ("ipfailures", Self::Failures),
        ("ipjailfailures", Self::Failures),
        ("time", Self::Time),
        ("bantime", Self::BanTime),
        ("bancount", Self::BanCount),
        ("restored", Self::Restored),
        ("matches", Self::Matches),
        ("ipmatches", Self::Matches),
        ("ipjailmatches", Self::Matches),
        ("fq-hostname", Self::HostNameFull),
    ];

    /// Each value once.
    pub(super) const VALUES: [Self; 12] = [
        Self::Ip,
        Self::Id,
        Self::IpRev,
        Self::Family,
        Self::Failures,
        Self::Time,
        Self::BanTime,
        Self::BanCount,
        Self::Restored,
        Self::Matches,
        Self::HostNameFull,
        Self::HostName,
    ];

    pub(super) fn of(name: &str) -> Option<Self> {
        if name == "sh-hostname" {
            return Some(Self::HostName);
        }
        let found = Self::ALL.iter().find(|(tag, _)| *tag == name);
        found.map(|(_, tag)| *tag)
    }

    /// Its variable in the environment of a command.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Ip => "WEIR_IP",
            Self::Id => "WEIR_ID",
            Self::IpRev => "WEIR_IP_REV",
            Self::Family => "WEIR_FAMILY",
            Self::Failures => "WEIR_FAILURES",
            Self::Time => "WEIR_TIME",
            Self::BanTime => "WEIR_BAN_TIME",
            Self::BanCount => "WEIR_BAN_COUNT",
            Self::Restored => "WEIR_RESTORED",
            Self::Matches => "WEIR_MATCHES",
            Self::HostNameFull => "WEIR_HOST_NAME_FULL",
            Self::HostName => "WEIR_HOST_NAME",
        }
    }

    /// Can its value be any text, as a client of a server may have chosen it?
    pub(super) fn is_text(self) -> bool {
        matches!(self, Self::Matches)
    }

    /// Does it say something of one ban?
    pub(super) fn is_of_ban(self) -> bool {
        !matches!(self, Self::HostNameFull | Self::HostName)
    }
}

/// Tags that Fail2ban has and weir has no value for.
pub(super) const WITHOUT_VALUE: [&str; 6] = [
    "ip-host",
    "raw-ticket",
    "jail.banned",
    "jail.banned_total",
    "jail.found",
    "jail.found_total",
];

/// The variable in the environment of a command that has a value which a filter captures.
pub fn captured_variable(name: &str) -> String {
    format!("WEIR_F_{}", name.to_uppercase())
}

/// The name by which a filter captures what a tag asks for: `user` of `F-USER`.
pub(crate) fn captured_name(tag: &str) -> Option<String> {
    let name = tag.strip_prefix("F-")?;
    let fits =
        |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    let is_name = !name.is_empty() && name.bytes().all(fits);
    is_name.then(|| match name {
        "PORT" => "fport".to_owned(),
        _ => name.to_lowercase().replace('-', "_"),
    })
}

/// A value that stands at a place of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Tag(Tag),
    /// Of the failure that led to the ban, by its name in the filter.
    Captured(String),
}

impl Value {
    /// Can it be any text, as a client of a server may have chosen it?
    pub(super) fn is_text(&self) -> bool {
        match self {
            Self::Tag(tag) => tag.is_text(),
            Self::Captured(_) => true,
        }
    }

    pub(super) fn variable(&self) -> String {
        match self {
            Self::Tag(tag) => tag.variable().to_owned(),
            Self::Captured(name) => captured_variable(name),
        }
    }
}
