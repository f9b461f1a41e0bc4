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

use super::stamp::{self, Stamp};

/// A line that has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    /// `None` where RFC 5424's has no time ("-").
    pub stamp: Option<Stamp<'a>>,
    pub tag: &'a [u8],
    pub message: &'a [u8],
}

/// Why a line has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHead {
    Stamp,
    Tag,
}

/// No word of a head is longer (RFC 5424: a host's name, 255).
const MAX_WORD: usize = 256;

/// Reads the head of a line.
pub(crate) fn split(line: &[u8]) -> Result<Head<'_>, NoHead> {
    let line = match line.first() {
        Some(b'<') => behind_priority(line).ok_or(NoHead::Stamp)?,
        _ => line,
    };
    if let Some(rest) = line.strip_prefix(b"1 ") {
        return rfc5424(rest);
    }
    let (stamp, rest) = stamp::split(line).ok_or(NoHead::Stamp)?;
    let (tag, message) = tag_and_message(rest).ok_or(NoHead::Tag)?;
    Ok(Head {
        stamp: Some(stamp),
        tag,
        message,
    })
}

/// What follows `<38>`.
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

/// `host tag[pid]: message`, without the host, or with BusyBox's
/// `facility.level` between the two.
fn tag_and_message(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let (first, rest) = word(rest)?;
    if let Some(tag) = tag(first) {
        return Some((tag, rest));
    }
    let (second, rest) = word(rest)?;
    if let Some(tag) = tag(second) {
        return Some((tag, rest));
    }
    if !is_facility_and_level(second) {
        return None;
    }
    let (third, rest) = word(rest)?;
    Some((tag(third)?, rest))
}

/// The tag of `tag:` or `tag[pid]:`.
fn tag(word: &[u8]) -> Option<&[u8]> {
    let word = word.strip_suffix(b":")?;
    let tag = match word.strip_suffix(b"]") {
        None => word,
        Some(word) => {
            let digits = word.iter().rev().take_while(|b| b.is_ascii_digit()).count();
            let tag = word[..word.len() - digits].strip_suffix(b"[")?;
            (digits > 0).then_some(tag)?
        }
    };
    (!tag.is_empty()).then_some(tag)
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
            let (stamp, rest) = stamp::split(rest).ok_or(NoHead::Stamp)?;
            (Some(stamp), rest)
        }
    };
    let names = || {
        let (_host, rest) = word(rest)?;
        let (tag, rest) = word(rest)?;
        let (_process, rest) = word(rest)?;
        let (_message_id, rest) = word(rest)?;
        let rest = behind_structured_data(rest)?;
        Some((tag, rest))
    };
    let (tag, message) = names().ok_or(NoHead::Tag)?;
    // UTF-8's mark, where the message is sure to be UTF-8.
    let unmarked = message.strip_prefix("\u{feff}".as_bytes());
    Ok(Head {
        stamp,
        tag,
        message: unmarked.unwrap_or(message),
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
