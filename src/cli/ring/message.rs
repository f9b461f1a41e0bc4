//! A syslog message as the line that a syslog daemon writes to a file:
//! `STAMP HOST TAG[PID]: TEXT`, whatever of RFC 3164, RFC 5424 or neither came.

use std::{fs, io::Write};

use jiff::Timestamp;

/// Makes lines of messages.
pub struct Messages {
    /// This host's name, for messages that name none.
    host: Vec<u8>,
    line: Vec<u8>,
}

impl Messages {
    pub fn new() -> Self {
        let host = fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = match host.trim_ascii() {
            b"" => b"localhost",
            name => name,
        };
        Self::of_host(host)
    }

    fn of_host(host: &[u8]) -> Self {
        Self {
            host: host.to_owned(),
            line: Vec::new(),
        }
    }

    /// The line of one message; `None` if it says nothing.
    pub fn line(&mut self, message: &[u8], now: Timestamp) -> Option<&[u8]> {
        let end = message
            .iter()
            .rposition(|byte| !matches!(byte, b'\n' | b'\r' | 0))?;
        let message = without_priority(&message[..=end]);
        if message.is_empty() {
            return None;
        }
        self.line.clear();
        match Structured::parse(message) {
            Some(parts) => self.structured(&parts, now),
            None => self.traditional(message, now),
        }
        Some(&self.line)
    }

    fn structured(&mut self, parts: &Structured<'_>, now: Timestamp) {
        match parts.stamp {
            b"-" => self.now(now),
            stamp => self.push(stamp),
        }
        self.line.push(b' ');
        match parts.host {
            b"-" => self.line.extend_from_slice(&self.host),
            host => self.push(host),
        }
        self.line.push(b' ');
        self.push(parts.program);
        if parts.process != b"-" {
            self.line.push(b'[');
            self.push(parts.process);
            self.line.push(b']');
        }
        self.line.extend_from_slice(b": ");
        self.push(parts.text);
    }

    fn traditional(&mut self, message: &[u8], now: Timestamp) {
        let rest = match stamp_length(message) {
            Some(length) => {
                self.push(&message[..length]);
                &message[length + 1..]
            }
            None => {
                self.now(now);
                message
            }
        };
        self.line.push(b' ');
        // Programs on this host leave its name out.
        let first = rest.split(|byte| *byte == b' ').next().unwrap_or(rest);
        if first.ends_with(b":") || stamp_length(message).is_none() {
            self.line.extend_from_slice(&self.host);
            self.line.push(b' ');
        }
        self.push(rest);
    }

    fn now(&mut self, now: Timestamp) {
        write!(self.line, "{now}").expect("a vector takes all there is");
    }

    /// Control characters as `#ooo`, the way rsyslog writes them.
    fn push(&mut self, text: &[u8]) {
        for &byte in text {
            if byte < b' ' || byte == 0x7f {
                write!(self.line, "#{byte:03o}").expect("a vector takes all there is");
            } else {
                self.line.push(byte);
            }
        }
    }
}

/// `<34>` and what follows it.
fn without_priority(message: &[u8]) -> &[u8] {
    let Some(rest) = message.strip_prefix(b"<") else {
        return message;
    };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    match rest.get(digits) {
        Some(b'>') if (1..=3).contains(&digits) => &rest[digits + 1..],
        _ => message,
    }
}

/// How long the stamp is that a space follows: `Nov 21 04:33:07`, or an ISO
/// one such as rsyslog forwards.
fn stamp_length(message: &[u8]) -> Option<usize> {
    let is = |at: usize, byte: u8| message.get(at) == Some(&byte);
    if is(3, b' ') && is(6, b' ') && is(9, b':') && is(12, b':') && is(15, b' ') {
        return Some(15);
    }
    if is(4, b'-') && is(7, b'-') && is(10, b'T') && is(13, b':') && is(16, b':') {
        let length = message.iter().take(40).position(|byte| *byte == b' ')?;
        return (length >= 19).then_some(length);
    }
    None
}

/// An RFC 5424 message without its priority.
struct Structured<'a> {
    stamp: &'a [u8],
    host: &'a [u8],
    program: &'a [u8],
    process: &'a [u8],
    text: &'a [u8],
}

impl<'a> Structured<'a> {
    fn parse(message: &'a [u8]) -> Option<Self> {
        let mut rest = message.strip_prefix(b"1 ")?;
        let mut field = || {
            let end = rest.iter().position(|byte| *byte == b' ')?;
            let (field, behind) = (&rest[..end], &rest[end + 1..]);
            rest = behind;
            (!field.is_empty()).then_some(field)
        };
        let (stamp, host, program) = (field()?, field()?, field()?);
        let (process, _kind) = (field()?, field()?);
        if stamp != b"-" && stamp_length(message.strip_prefix(b"1 ")?) != Some(stamp.len()) {
            return None;
        }
        let text = without_data(rest)?;
        Some(Self {
            stamp,
            host,
            program,
            process,
            text: text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text),
        })
    }
}

/// The message behind the structured data: `-`, or elements `[id name="value"]` in whose
/// values a backslash takes the next character as it is.
fn without_data(rest: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    if rest.first() == Some(&b'-') {
        at = 1;
    }
    while at == 0 || rest.get(at) == Some(&b'[') {
        if rest.get(at) != Some(&b'[') {
            return None;
        }
        let mut quoted = false;
        loop {
            at += 1;
            match rest.get(at)? {
                b'"' => quoted = !quoted,
                b'\\' if quoted => at += 1,
                b']' if !quoted => break,
                _ => {}
            }
        }
        at += 1;
    }
    match rest.get(at) {
        None => Some(b""),
        Some(b' ') => Some(&rest[at + 1..]),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-21T05:00:00Z";

    fn line(message: &[u8]) -> Option<String> {
        let mut messages = Messages::of_host(b"here");
        let line = messages.line(message, NOW.parse().unwrap())?;
        Some(String::from_utf8_lossy(line).into_owned())
    }

    #[test]
    fn messages_become_the_lines_of_a_file() {
        for (message, expected) in [
            // RFC 3164: with a host, and without, as programs write to /dev/log.
            (
                "<34>Nov 21 04:33:07 web sshd[77]: Failed password",
                "Nov 21 04:33:07 web sshd[77]: Failed password",
            ),
            (
                "<34>Nov  1 04:33:07 sshd[77]: Failed password\n",
                "Nov  1 04:33:07 here sshd[77]: Failed password",
            ),
            (
                "<34>2026-11-21T04:33:07.12+01:00 web sshd[77]: Failed",
                "2026-11-21T04:33:07.12+01:00 web sshd[77]: Failed",
            ),
            // RFC 5424.
            (
                "<165>1 2026-11-21T04:33:07.003Z web sshd 77 ID47 - \u{feff}Failed password",
                "2026-11-21T04:33:07.003Z web sshd[77]: Failed password",
            ),
            (
                r#"<165>1 - - sshd - - [a@1 x="]\"[" y="\\"][b] Failed"#,
                "2026-11-21T05:00:00Z here sshd: Failed",
            ),
            ("<165>1 - - - - - -", "2026-11-21T05:00:00Z here -: "),
            // Neither: nothing is believed to be a field.
            ("<13>hello", "2026-11-21T05:00:00Z here hello"),
            ("hello: world", "2026-11-21T05:00:00Z here hello: world"),
            ("<1234>x", "2026-11-21T05:00:00Z here <1234>x"),
            ("<>x", "2026-11-21T05:00:00Z here <>x"),
            (
                "<1>1 2026-11-21T04:33:07Z web sshd 77 ID [a Failed",
                "2026-11-21T05:00:00Z here 1 2026-11-21T04:33:07Z web sshd 77 ID [a Failed",
            ),
        ] {
            assert_eq!(
                line(message.as_bytes()).as_deref(),
                Some(expected),
                "{message}"
            );
        }
        for empty in ["", "\n", "\0\0", "<34>", "<34>\n"] {
            assert_eq!(line(empty.as_bytes()), None, "{empty:?}");
        }
    }

    #[test]
    fn no_message_becomes_two_lines() {
        let forged = b"<34>Nov 21 04:33:07 web a: x\nNov 21 04:33:07 web sshd[1]: \x00\x7f\x1b";
        let line = line(forged).unwrap();
        assert_eq!(
            line,
            "Nov 21 04:33:07 web a: x#012Nov 21 04:33:07 web sshd[1]: #000#177#033"
        );
    }

    /// Cut anywhere, of any bytes: always one line, no panic.
    #[test]
    fn any_message_is_at_most_one_line() {
        let whole: &[u8] =
            b"<165>1 2026-11-21T04:33:07.003Z web sshd 77 ID47 [a x=\"\\]\"] \xef\xbb\xbfFailed";
        for cut in 0..=whole.len() {
            for byte in 0..=255 {
                let mut message = whole[..cut].to_vec();
                message.push(byte);
                let line = line(&message).unwrap_or_default();
                assert!(!line.bytes().any(|b| b < b' '), "{message:?}");
            }
        }
    }
}
