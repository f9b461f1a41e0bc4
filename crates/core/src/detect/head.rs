//! The head of a line that a syslog daemon wrote: which program wrote the
//! message, and when. Each format has its place for the tag; a word that looks
//! like a tag anywhere else is somebody's text.
//!
//! ```text
//! Nov 21 04:33:07 host sshd[77]: message            rsyslog's traditional format
//! Nov 21 04:33:07 sshd[77]: message                 the same without host names
//! Nov 21 04:33:07 host auth.info sshd[77]: message  BusyBox
//! 2026-11-21T04:33:07.12+00:00 host sshd[77]: …     rsyslog's format
//! <38>Nov 21 04:33:07 host sshd[77]: message        as sent (RFC 3164)
//! <38>1 2026-11-21T04:33:07.12Z host sshd 77 - - …  RFC 5424
//! ```

use std::collections::HashSet;

use super::{
    fields::DIGIT,
    timestamp::{self, Stamp},
};

/// A line that has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    /// `None` where RFC 5424's has no time ("-").
    pub stamp: Option<Stamp<'a>>,
    pub host: Option<&'a [u8]>,
    pub tag: &'a [u8],
    /// 0: the head has none.
    pub pid: u32,
    pub message: &'a [u8],
    /// The tag follows the stamp and names no process: it may be the first word
    /// of a message instead.
    pub is_bare: bool,
}

impl Head<'_> {
    /// The tag may be a function of OpenSSH's, which begins some of its messages:
    /// `kex_exchange_identification: …`. Others' names with an underscore are tags
    /// in a log without host names: `backup_db: …`.
    pub fn may_be_a_function(&self) -> bool {
        const BEGINNINGS: [&[u8]; 22] = [
            b"auth",
            b"cert_",
            b"channel_",
            b"client_",
            b"dispatch_",
            b"do_",
            b"hostbased_",
            b"hostkey",
            b"input_",
            b"kex",
            b"key_",
            b"match_",
            b"mm_",
            b"monitor_",
            b"packet_",
            b"parse_",
            b"process_",
            b"server_",
            b"session_",
            b"ssh",
            b"user_",
            b"userauth",
        ];
        let is_of_a_name = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'_';
        self.is_bare
            && self.tag.contains(&b'_')
            && self.tag.iter().all(is_of_a_name)
            && BEGINNINGS.iter().any(|words| self.tag.starts_with(words))
    }
}

/// The reason why a line has no head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHead {
    Stamp,
    /// A stamp, and behind it no program's tag.
    Tag,
    /// The same, in a line that a syslog daemon writes about itself.
    SyslogDaemon,
}

/// The beginning of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineHead {
    /// A syslog daemon's head, with the tag of this program.
    Syslog(String),
    /// A time stamp only.
    Stamp,
    /// A time stamp, and what a syslog daemon says about itself.
    SyslogDaemon,
    /// The same, and a tag that has blanks or was cut, behind a host's name.
    OddTag,
    /// No head: a program wrote the line into a file of its own, or it is the rest of a
    /// message that has a line break.
    None,
}

/// The beginning of a line, as far as it can be read.
fn line_head(line: &[u8]) -> LineHead {
    match split(line) {
        Ok(head) => {
            let tag = &head.tag[..head.tag.len().min(60)];
            LineHead::Syslog(String::from_utf8_lossy(tag).into_owned())
        }
        Err(NoHead::Tag) => LineHead::Stamp,
        Err(NoHead::SyslogDaemon) => LineHead::SyslogDaemon,
        Err(NoHead::Stamp) => LineHead::None,
    }
}

/// Whose lines these are, in a log in which they stand together: a host that some
/// of them name writes the others, too.
pub fn line_heads<'a>(lines: impl Iterator<Item = &'a [u8]> + Clone) -> Vec<LineHead> {
    let hosts = lines.clone().filter_map(|line| split(line).ok()?.host);
    let hosts: HashSet<_> = hosts.collect();
    let head = |line| match host_of_odd_tag(line) {
        Some(host) if hosts.contains(host) => LineHead::OddTag,
        _ => line_head(line),
    };
    lines.map(head).collect()
}

/// No word of a head is longer (RFC 5424: a host's name, 255).
const MAX_WORD: usize = 256;

/// Reads the head of a line. A crash can leave zeros before it in a file.
pub(crate) fn split(line: &[u8]) -> Result<Head<'_>, NoHead> {
    match split_at_start(line) {
        Err(NoHead::Stamp) if line.first() == Some(&0) => {
            let zeros = line.iter().take_while(|b| **b == 0).count();
            split_at_start(&line[zeros..])
        }
        other => other,
    }
}

fn split_at_start(line: &[u8]) -> Result<Head<'_>, NoHead> {
    let line = match line.first() {
        Some(b'<') => behind_priority(line).ok_or(NoHead::Stamp)?,
        _ => line,
    };
    if let Some(rest) = line.strip_prefix(b"1 ") {
        return rfc5424(rest);
    }
    let (stamp, rest) = timestamp::split(line).ok_or(NoHead::Stamp)?;
    if begins_a_message(rest) {
        return Err(NoHead::Tag);
    }
    let Some((host, (tag, pid), message)) = tag_and_message(rest) else {
        return Err(match is_of_a_syslog_daemon(rest) {
            true => NoHead::SyslogDaemon,
            false => NoHead::Tag,
        });
    };
    Ok(Head {
        stamp: Some(stamp),
        host,
        tag,
        pid,
        message,
        is_bare: host.is_none() && pid == 0,
    })
}

/// What OpenSSH's messages begin with where a host and a tag would stand, or the
/// tag alone: the level, and words in front of a colon. (Behind "User " a client's
/// text follows, which may have one.)
fn begins_a_message(behind_stamp: &[u8]) -> bool {
    const BEGINNINGS: [&[u8]; 9] = [
        b"error: ",
        b"fatal: ",
        b"debug1: ",
        b"debug2: ",
        b"debug3: ",
        b"Disconnecting: ",
        b"User ",
        b"banner exchange: ",
        b"userauth_hostbased mismatch: ",
    ];
    matches!(
        behind_stamp.first(),
        Some(b'e' | b'f' | b'd' | b'D' | b'U' | b'b' | b'u')
    ) && BEGINNINGS
        .iter()
        .any(|words| behind_stamp.starts_with(words))
}

/// What syslog daemons write about themselves, without a tag, behind the host or
/// without one. Whole messages, and none that a program's begins with.
fn is_of_a_syslog_daemon(behind_stamp: &[u8]) -> bool {
    let says = |message: &[u8]| {
        let repeated = || {
            let rest = message.strip_prefix(b"last message repeated ")?;
            let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
            let is_whole = matches!(&rest[digits..], b" time" | b" times");
            (digits > 0).then_some(is_whole)
        };
        let restarted = || {
            // `syslogd 1.4.1: restart.`, `syslogd (GNU inetutils 2.4): restart`
            let (version, restart) = {
                let rest = message.strip_prefix(b"syslogd ")?;
                let colon = memchr::memmem::find(rest, b": ")?;
                (&rest[..colon], &rest[colon + 2..])
            };
            let is_whole = matches!(
                restart,
                b"restart" | b"restart." | b"restart (remote reception)."
            );
            let is_of_a_version = |b: &u8| b.is_ascii_alphanumeric() || b" .-+#()".contains(b);
            Some(is_whole && version.len() < 60 && version.iter().all(is_of_a_version))
        };
        message == b"-- MARK --"
            || message == b"exiting on signal 15"
            || restarted().unwrap_or(false)
            || message == b"syslogd exiting"
            || message.starts_with(b"syslogd started: BusyBox v")
            || repeated().unwrap_or(false)
    };
    let text = behind_stamp.trim_ascii_end();
    let Some((_host, behind_host)) = word(text) else {
        return false;
    };
    let behind_level = word(behind_host).filter(|(level, _)| is_facility_and_level(level));
    says(text) || says(behind_host) || behind_level.is_some_and(|(_, rest)| says(rest))
}

/// The rest of a line behind its priority, such as `<38>`.
fn behind_priority(line: &[u8]) -> Option<&[u8]> {
    let rest = &line[1..];
    let digits = rest
        .iter()
        .take(4)
        .take_while(|b| b.is_ascii_digit())
        .count();
    match digits {
        1..=3 => rest[digits..].strip_prefix(b">"),
        _ => None,
    }
}

/// The first word and what follows the blank behind it.
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr::memchr(b' ', &text[..text.len().min(MAX_WORD)])?;
    Some((&text[..end], &text[end + 1..]))
}

/// A tag, and the process behind it.
type Tag<'a> = (&'a [u8], u32);

/// The host if there is one, the tag and the message.
type HeadParts<'a> = (Option<&'a [u8]>, Tag<'a>, &'a [u8]);

/// `host tag[pid]: message`, without the host, or with BusyBox's
/// `facility.level` between the two.
fn tag_and_message(rest: &[u8]) -> Option<HeadParts<'_>> {
    let (first, rest) = word(rest)?;
    if let Some(tag) = tag(first) {
        return Some((None, tag, rest));
    }
    let (second, rest) = word(rest)?;
    if let Some(tag) = tag(second).or_else(|| tag_that_was_opened(second)) {
        let host = (!first.is_empty()).then_some(first);
        return Some((host, tag, rest));
    }
    if !is_facility_and_level(second) {
        return None;
    }
    let (third, rest) = word(rest)?;
    Some((Some(first), tag(third)?, rest))
}

/// The tag of `gdm-password]:`, as GDM names itself to PAM's modules. It keeps its
/// bracket: nobody's own tag has one.
fn tag_that_was_opened(word: &[u8]) -> Option<Tag<'_>> {
    let tag = word.strip_suffix(b":")?;
    let name = tag.strip_suffix(b"]")?;
    (!name.is_empty() && !name.contains(&b'[')).then_some((tag, 0))
}

/// The host of a line that has a stamp and a tag that is none by its format: one
/// with blanks, `gnome shell[77]:`, or one that was cut at RFC 3164's 32 bytes and
/// lost its end. A program's own message can look like that where a client has
/// chosen its words: it is a tag only behind a host that is known.
pub(crate) fn host_of_odd_tag(line: &[u8]) -> Option<&[u8]> {
    /// What OpenSSH's messages begin with, where a client's text is not far.
    const NOT_TAGS: [&[u8]; 26] = [
        b"Accepted",
        b"Address",
        b"Authentication",
        b"Bad",
        b"Client",
        b"Connection",
        b"Disconnected",
        b"Disconnecting",
        b"Failed",
        b"Illegal",
        b"Invalid",
        b"Nasty",
        b"Partial",
        b"Postponed",
        b"Protocol",
        b"Received",
        b"Refusing",
        b"Starting",
        b"Unable",
        b"User",
        b"input_userauth_request:",
        b"maximum",
        b"probed",
        b"reverse",
        b"scanned",
        b"subsystem",
    ];
    const CUT_AT: usize = 32;
    const MOST_WORDS: usize = 4;
    let line = match line.first() {
        Some(b'<') => behind_priority(line)?,
        _ => line,
    };
    let (_, rest) = timestamp::split(line)?;
    if begins_a_message(rest) {
        return None;
    }
    let (host, rest) = word(rest).filter(|(host, _)| !host.is_empty())?;
    let (first, mut rest) = word(rest)?;
    if tag(first).is_some() || begins_a_message(rest) || NOT_TAGS.contains(&first) {
        return None;
    }
    if first.len() == CUT_AT && first.iter().all(|b| b.is_ascii_graphic() && *b != b':') {
        return Some(host);
    }
    for _ in 1..MOST_WORDS {
        let (next, behind) = word(rest)?;
        match tag(next) {
            Some((_, pid)) => return (pid != 0).then_some(host),
            None => rest = behind,
        }
    }
    None
}

/// The tag and the process of `tag:` or `tag[pid]:`.
fn tag(word: &[u8]) -> Option<Tag<'_>> {
    let word = word.strip_suffix(b":")?;
    let (tag, pid) = match word.strip_suffix(b"]") {
        None => (word, 0),
        Some(word) => {
            let digits = DIGIT.trailing(word);
            let (tag, pid) = word.split_at(word.len() - digits);
            let tag = tag.strip_suffix(b"[")?;
            (digits > 0).then_some((tag, number(pid)))?
        }
    };
    (!tag.is_empty()).then_some((tag, pid))
}

/// A process's number; 0 for what is none.
fn number(digits: &[u8]) -> u32 {
    let number = digits.iter().try_fold(0u32, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u32::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    });
    number.unwrap_or(0)
}

fn is_facility_and_level(word: &[u8]) -> bool {
    const FACILITIES: [&[u8]; 20] = [
        b"auth",
        b"authpriv",
        b"cron",
        b"daemon",
        b"ftp",
        b"kern",
        b"lpr",
        b"mail",
        b"news",
        b"security",
        b"syslog",
        b"user",
        b"local0",
        b"local1",
        b"local2",
        b"local3",
        b"local4",
        b"local5",
        b"local6",
        b"local7",
    ];
    const LEVELS: [&[u8]; 11] = [
        b"emerg", b"panic", b"alert", b"crit", b"err", b"error", b"warn", b"warning", b"notice",
        b"info", b"debug",
    ];
    let Some(dot) = word.iter().position(|b| *b == b'.') else {
        return false;
    };
    FACILITIES.contains(&&word[..dot]) && LEVELS.contains(&&word[dot + 1..])
}

/// `TIMESTAMP HOSTNAME APP-NAME PROCID MSGID STRUCTURED-DATA [MESSAGE]`.
fn rfc5424(rest: &[u8]) -> Result<Head<'_>, NoHead> {
    let (stamp, rest) = match rest.strip_prefix(b"- ") {
        Some(rest) => (None, rest),
        None => {
            let (stamp, rest) = timestamp::split(rest).ok_or(NoHead::Stamp)?;
            (Some(stamp), rest)
        }
    };
    let names = || {
        let (host, rest) = word(rest)?;
        let (tag, rest) = word(rest)?;
        let (process, rest) = word(rest)?;
        let (_message_id, rest) = word(rest)?;
        let rest = behind_structured_data(rest)?;
        Some((host, tag, number(process), rest))
    };
    let (host, tag, pid, message) = names().ok_or(NoHead::Tag)?;
    // UTF-8's mark, where the message is sure to be UTF-8.
    let unmarked = message.strip_prefix("\u{feff}".as_bytes());
    Ok(Head {
        stamp,
        host: (host != b"-").then_some(host),
        tag,
        pid,
        message: unmarked.unwrap_or(message),
        is_bare: false,
    })
}

/// What follows `-` or `[id name="value" …]…` and a blank.
fn behind_structured_data(mut rest: &[u8]) -> Option<&[u8]> {
    if let Some(rest) = rest.strip_prefix(b"-") {
        return if rest.is_empty() {
            Some(rest)
        } else {
            rest.strip_prefix(b" ")
        };
    }
    let mut any = false;
    while let Some(element) = rest.strip_prefix(b"[") {
        let (mut quoted, mut escaped) = (false, false);
        let end = element.iter().position(|b| {
            let ends = !quoted && *b == b']';
            quoted ^= *b == b'"' && !escaped;
            escaped = quoted && *b == b'\\' && !escaped;
            ends
        })?;
        rest = &element[end + 1..];
        any = true;
    }
    match rest {
        _ if !any => None,
        [] => Some(rest),
        rest => rest.strip_prefix(b" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<(String, String), NoHead> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        split(line.as_bytes()).map(|head| (text(head.tag), text(head.message)))
    }

    #[test]
    fn the_tag_stands_where_its_format_has_it() {
        for (line, tag, message) in [
            ("Nov 21 04:33:07 host sshd[17]: text", "sshd", "text"),
            (
                "Nov 21 04:33:07 host sshd: text: more",
                "sshd",
                "text: more",
            ),
            ("Nov 21 04:33:07 sshd[17]: text", "sshd", "text"),
            ("Nov 21 04:33:07  sshd[17]: text", "sshd", "text"),
            (
                "Nov 21 04:33:07 host auth.info sshd[17]: text",
                "sshd",
                "text",
            ),
            (
                "Nov 21 04:33:07 host sshd-session[1]:  text",
                "sshd-session",
                " text",
            ),
            ("Feb 8 17:15:01 host sshd[17]: text", "sshd", "text"),
            ("<38>Nov 21 04:33:07 host sshd[17]: text", "sshd", "text"),
            (
                "2026-11-21T04:33:07.12+00:00 2001:db8::1 sshd[17]: text",
                "sshd",
                "text",
            ),
            (
                "Jan 21 21:29:12 h gdm-password]: gkr-pam: unlocked login keyring",
                "gdm-password]",
                "gkr-pam: unlocked login keyring",
            ),
            (
                "Jan 21 21:29:12 h gdm-launch-environment]: pam_unix(x): y",
                "gdm-launch-environment]",
                "pam_unix(x): y",
            ),
            // RFC 5424, as it is sent and without its priority.
            (
                "<38>1 2026-11-21T04:33:07.12Z host sshd 17 - - text",
                "sshd",
                "text",
            ),
            ("1 2026-11-21T04:33:07Z - sshd - - - text", "sshd", "text"),
            ("<38>1 - - sshd - - -", "sshd", ""),
            (
                "<38>1 2026-11-21T04:33:07Z host sshd 17 ID47 [a b=\"]\\\"] \" c=\"\\\\\"][d] \u{feff}text",
                "sshd",
                "text",
            ),
            // Somebody's text behind another program's tag.
            (
                "Nov 21 04:33:07 myapp: sshd[1]: text",
                "myapp",
                "sshd[1]: text",
            ),
            (
                "Nov 21 04:33:07 host myapp[7]: sshd[1]: text",
                "myapp",
                "sshd[1]: text",
            ),
            (
                "<38>1 2026-11-21T04:33:07Z host myapp - - - sshd[1]: text",
                "myapp",
                "sshd[1]: text",
            ),
        ] {
            assert_eq!(read(line), Ok((tag.into(), message.into())), "{line}");
        }
    }

    #[test]
    fn the_process_is_the_number_behind_the_tag() {
        for (line, pid) in [
            ("Nov 21 04:33:07 host sshd[17]: text", 17),
            (
                "Nov 21 04:33:07 host auth.info sshd[4194303]: text",
                4_194_303,
            ),
            ("<38>1 2026-11-21T04:33:07Z host sshd 77 - - text", 77),
            ("<38>1 2026-11-21T04:33:07Z host sshd - - - text", 0),
            ("Nov 21 04:33:07 host sshd: text", 0),
            ("Nov 21 04:33:07 host sshd[99999999999]: text", 0),
        ] {
            assert_eq!(split(line.as_bytes()).unwrap().pid, pid, "{line}");
        }
    }

    #[test]
    fn zeros_that_a_crash_left_before_a_head_do_not_hide_it() {
        let zeros = |n| "\0".repeat(n) + "Nov 21 04:33:07 host sshd[1]: text";
        for n in [1, 4000] {
            assert_eq!(read(&zeros(n)), Ok(("sshd".into(), "text".into())));
        }
        assert_eq!(read("\0\0"), Err(NoHead::Stamp));
        assert_eq!(line_head(b"\0x"), LineHead::None);
        assert_eq!(
            line_head(b"Nov 21 04:33:07 Invalid user x"),
            LineHead::Stamp
        );
        assert_eq!(
            line_head(zeros(3).as_bytes()),
            LineHead::Syslog("sshd".into())
        );
    }

    /// A client's text can have colons and tags where a message is not escaped.
    #[test]
    fn a_message_of_sshds_behind_a_stamp_has_no_tag() {
        for text in [
            "error: Received disconnect from 192.0.2.7 port 22:3: x",
            "fatal: no matching cipher found: client x",
            "debug1: x",
            "Disconnecting: bad service request x",
            "User sshd[1]: Invalid user x from 203.0.113.9",
            "User -- MARK --",
            "Invalid user -- MARK --",
            "banner exchange: Connection from 192.0.2.7 port 22: invalid format",
            "userauth_hostbased mismatch: client x",
        ] {
            let line = format!("2026-11-21T04:33:07.123Z {text}");
            assert_eq!(read(&line), Err(NoHead::Tag), "{line}");
        }
        for (text, may_be) in [
            ("kex_exchange_identification: x", true),
            ("ssh_packet_get_string: x", true),
            ("backup_db: x", false),
            ("host kex_exchange_identification: x", false),
            ("my_app[1]: x", false),
            ("sshd: x", false),
        ] {
            let line = format!("Nov 21 04:33:07 {text}");
            let head = split(line.as_bytes()).unwrap();
            assert_eq!(head.may_be_a_function(), may_be, "{line}");
        }
    }

    #[test]
    fn a_tag_with_blanks_or_without_its_end_is_one_behind_a_known_host() {
        for (text, is_odd) in [
            ("h gnome shell[16940]: x", true),
            ("h some long name[1]: x", true),
            ("h systemd-networkd-wait-online[123 text", true),
            ("h systemd-networkd-wait-online[12 text", false),
            ("h anything else", false),
            ("h anything else: x", false),
            ("h one two three four[1]: x", true),
            ("h one two three four five[1]: x", false),
            ("h sshd[1]: Invalid user sshd[1]: x", false),
            // A client's text.
            ("Invalid user x", false),
            ("h Invalid user shell[1]: x", false),
            ("h User shell[1]: x", false),
            ("h Connection closed by x[1]: x", false),
            ("User gnome shell[1]: x", false),
        ] {
            let line = format!("Nov 21 04:33:07 {text}");
            let host = host_of_odd_tag(line.as_bytes());
            assert_eq!(host, is_odd.then_some(&b"h"[..]), "{line}");
            let known = "Nov 21 04:33:07 h cron: x";
            let heads = line_heads([known, &line].into_iter().map(str::as_bytes));
            assert_eq!(heads[1] == LineHead::OddTag, is_odd, "{line}");
            let alone = line_heads([line.as_bytes()].into_iter());
            assert_ne!(alone[0], LineHead::OddTag);
        }
    }

    #[test]
    fn what_a_syslog_daemon_says_about_itself_needs_no_tag() {
        for text in [
            "-- MARK --",
            "host -- MARK --",
            "host last message repeated 2 times",
            "host last message repeated 1 time",
            "host exiting on signal 15",
            "host syslog.info -- MARK --",
            "host syslog.info syslogd started: BusyBox v1.35.0",
            "host syslog.info syslogd exiting",
            "combo syslogd 1.4.1: restart.",
            "host syslogd 1.5.0#5: restart (remote reception).",
            "host syslogd (GNU inetutils 2.4): restart",
        ] {
            let line = format!("Nov 21 04:33:07 {text}");
            assert_eq!(read(&line), Err(NoHead::SyslogDaemon), "{line}");
        }
        for text in [
            "host x -- MARK --",
            "host -- MARK -- x",
            "host last message repeated  times",
            "host last message repeated 2 times x",
            "host syslogd 1.4.1: restart x",
            "host x syslogd 1.4.1: restart.",
        ] {
            let line = format!("Nov 21 04:33:07 {text}");
            assert_eq!(read(&line), Err(NoHead::Tag), "{line}");
        }
    }

    #[test]
    fn a_tag_anywhere_else_is_none() {
        for (line, why) in [
            ("Nov 21 04:33:07 host my app sshd[1]: text", NoHead::Tag),
            ("Nov 21 04:33:07 host myapp sshd[1]: text", NoHead::Tag),
            ("Nov 21 04:33:07 host no.level sshd[1]: text", NoHead::Tag),
            ("Nov 21 04:33:07 host auth.info no sshd[1]: x", NoHead::Tag),
            ("Nov 21 04:33:07 host sshd[x]: text", NoHead::Tag),
            ("Nov 21 04:33:07 host sshd[]: text", NoHead::Tag),
            ("Nov 21 04:33:07 host [1]: text", NoHead::Tag),
            ("Nov 21 04:33:07 host : text", NoHead::Tag),
            ("Nov 21 04:33:07 host sshd", NoHead::Tag),
            ("Nov 21 04:33:07 host", NoHead::Tag),
            ("Nov 21 04:33:07 ", NoHead::Tag),
            ("Nov 21 04:33:07", NoHead::Stamp),
            ("sshd[1]: text", NoHead::Stamp),
            ("", NoHead::Stamp),
            ("<>Nov 21 04:33:07 host sshd[1]: text", NoHead::Stamp),
            ("<1234>Nov 21 04:33:07 host sshd[1]: text", NoHead::Stamp),
            ("1 yesterday host sshd 17 - - text", NoHead::Stamp),
            ("1 - host sshd 17 - text", NoHead::Tag),
            ("1 - host sshd 17 - [a b=\"] text", NoHead::Tag),
            ("1 - host sshd 17 -", NoHead::Tag),
        ] {
            assert_eq!(read(line), Err(why), "{line}");
        }
    }
}
