//! The wire form of Fail2ban's socket: Python's pickle (PEP 307, PEP 3154), of which a
//! client needs one flat list of texts and numbers, and the server values without
//! objects. A decoder of all of pickle would build what a stranger asks for; this one
//! knows the codes that such a list takes, and refuses every other.

use std::{borrow::Cow, collections::HashMap, fmt};

use super::{Reply, Unanswered};

/// The most words that a command has.
const MAX_WORDS: usize = 1024;
/// The most bytes of all its words: one may be named again and again.
const MAX_TEXT: usize = 1 << 16;
/// What ends a command and a reply on the wire.
pub(super) const END: &[u8] = b"<F2B_END_COMMAND>";

/// The codes of pickle that are read or written here, by their names there.
mod op {
    pub const PROTO: u8 = 0x80;
    pub const FRAME: u8 = 0x95;
    pub const STOP: u8 = b'.';
    pub const MARK: u8 = b'(';
    pub const EMPTY_LIST: u8 = b']';
    pub const EMPTY_DICT: u8 = b'}';
    pub const APPEND: u8 = b'a';
    pub const APPENDS: u8 = b'e';
    pub const SETITEMS: u8 = b'u';
    pub const TUPLE: u8 = b't';
    pub const TUPLE1: u8 = 0x85;
    pub const TUPLE2: u8 = 0x86;
    pub const REDUCE: u8 = b'R';
    pub const GLOBAL: u8 = b'c';
    pub const NONE: u8 = b'N';
    pub const NEWTRUE: u8 = 0x88;
    pub const NEWFALSE: u8 = 0x89;
    pub const BININT: u8 = b'J';
    pub const BININT1: u8 = b'K';
    pub const BININT2: u8 = b'M';
    pub const LONG1: u8 = 0x8a;
    pub const BINUNICODE: u8 = b'X';
    pub const SHORT_BINUNICODE: u8 = 0x8c;
    pub const BINUNICODE8: u8 = 0x8d;
    pub const BINSTRING: u8 = b'T';
    pub const SHORT_BINSTRING: u8 = b'U';
    pub const BINPUT: u8 = b'q';
    pub const LONG_BINPUT: u8 = b'r';
    pub const MEMOIZE: u8 = 0x94;
    pub const BINGET: u8 = b'h';
    pub const LONG_BINGET: u8 = b'j';
}

/// The reason why bytes are no command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoCommand(&'static str);

impl fmt::Display for NoCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a command of fail2ban-client: {}", self.0)
    }
}

impl std::error::Error for NoCommand {}

const CUT: NoCommand = NoCommand("it is cut off");
const NO_LIST: NoCommand = NoCommand("it is no list of words");

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], NoCommand> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(CUT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, NoCommand> {
        Ok(self.take(1)?[0])
    }

    /// A length or index of this many bytes, little-endian.
    fn number(&mut self, bytes: usize) -> Result<usize, NoCommand> {
        let taken = self.take(bytes)?.iter().rev();
        let number = taken.fold(0u64, |number, byte| number << 8 | u64::from(*byte));
        usize::try_from(number).map_err(|_| CUT)
    }

    /// A text that its length stands before.
    fn text(&mut self, length: usize) -> Result<Cow<'a, str>, NoCommand> {
        let length = self.number(length)?;
        let text = std::str::from_utf8(self.take(length)?);
        text.map(Cow::Borrowed)
            .map_err(|_| NoCommand("a word is not UTF-8"))
    }
}

/// Reads the words of one command, such as `["status", "sshd"]`; a number is a word.
///
/// # Errors
/// When the bytes hold anything else than one flat list, or one of more than 1024 words or
/// 64 KiB.
pub fn read_command(bytes: &[u8]) -> Result<Vec<String>, NoCommand> {
    let mut bytes = Bytes(bytes);
    let mut words: Option<Vec<Cow<'_, str>>> = None;
    // Behind the last mark, or to be appended alone.
    let mut pending: Vec<Cow<'_, str>> = Vec::new();
    let mut memo: HashMap<usize, Option<Cow<'_, str>>> = HashMap::new();
    loop {
        if pending.len() > MAX_WORDS || memo.len() > 2 * MAX_WORDS {
            return Err(NoCommand("it has more than 1024 words"));
        }
        let code = bytes.byte()?;
        match code {
            op::PROTO => {
                bytes.byte()?;
            }
            op::FRAME => {
                bytes.take(8)?;
            }
            op::EMPTY_LIST if words.is_none() => words = Some(Vec::new()),
            op::MARK if words.is_some() => (),
            op::BINUNICODE | op::BINSTRING => pending.push(bytes.text(4)?),
            op::SHORT_BINUNICODE | op::SHORT_BINSTRING => pending.push(bytes.text(1)?),
            op::BINUNICODE8 => pending.push(bytes.text(8)?),
            op::BININT1 => pending.push(bytes.number(1)?.to_string().into()),
            op::BININT2 => pending.push(bytes.number(2)?.to_string().into()),
            op::BININT => {
                let number = bytes.take(4)?.try_into().expect("four bytes");
                pending.push(i32::from_le_bytes(number).to_string().into());
            }
            op::BINPUT | op::LONG_BINPUT | op::MEMOIZE => {
                let at = match code {
                    op::BINPUT => bytes.number(1)?,
                    op::LONG_BINPUT => bytes.number(4)?,
                    _ => memo.len(),
                };
                memo.insert(at, pending.last().cloned());
            }
            op::BINGET | op::LONG_BINGET => {
                let at = bytes.number(if code == op::BINGET { 1 } else { 4 })?;
                let word = memo.get(&at).cloned().flatten();
                pending.push(word.ok_or(NO_LIST)?);
            }
            op::APPEND | op::APPENDS => {
                let words = words.as_mut().ok_or(NO_LIST)?;
                words.append(&mut pending);
                if words.len() > MAX_WORDS {
                    return Err(NoCommand("it has more than 1024 words"));
                }
            }
            op::STOP => {
                let words = words.ok_or(NO_LIST)?;
                if !pending.is_empty() || !bytes.0.is_empty() {
                    return Err(NO_LIST);
                }
                if words.iter().map(|word| word.len()).sum::<usize>() > MAX_TEXT {
                    return Err(NoCommand("its words are longer than 64 KiB"));
                }
                return Ok(words.into_iter().map(Cow::into_owned).collect());
            }
            _ => return Err(NO_LIST),
        }
    }
}

/// The server's answer: a tuple of 0 and the reply, or of 1 and an exception.
pub(super) fn write_answer(answer: &Result<Reply, Unanswered>) -> Vec<u8> {
    let mut out = vec![op::PROTO, 2];
    match answer {
        Ok(reply) => {
            out.extend([op::BININT1, 0]);
            write(reply, &mut out);
        }
        Err(error) => {
            let (class, argument) = match error {
                Unanswered::UnknownJail(name) => (
                    &b"fail2ban.exceptions\nUnknownJailException\n"[..],
                    name.clone(),
                ),
                Unanswered::Refused(refusal) => {
                    (&b"__builtin__\nException\n"[..], refusal.to_string())
                }
            };
            out.extend([op::BININT1, 1, op::GLOBAL]);
            out.extend(class);
            write(&Reply::Text(argument), &mut out);
            out.extend([op::TUPLE1, op::REDUCE]);
        }
    }
    out.extend([op::TUPLE2, op::STOP]);
    out
}

fn write(reply: &Reply, out: &mut Vec<u8>) {
    match reply {
        Reply::None => out.push(op::NONE),
        Reply::Bool(value) => out.push(if *value { op::NEWTRUE } else { op::NEWFALSE }),
        Reply::Int(number) => {
            out.extend([op::LONG1, 8]);
            out.extend(number.to_le_bytes());
        }
        Reply::Text(text) => {
            out.push(op::BINUNICODE);
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        }
        Reply::List(values) => {
            out.extend([op::EMPTY_LIST, op::MARK]);
            values.iter().for_each(|value| write(value, out));
            out.push(op::APPENDS);
        }
        Reply::Tuple(values) => {
            out.push(op::MARK);
            values.iter().for_each(|value| write(value, out));
            out.push(op::TUPLE);
        }
        Reply::Map(pairs) => {
            out.extend([op::EMPTY_DICT, op::MARK]);
            for (name, value) in pairs {
                write(&Reply::Text(name.clone()), out);
                write(value, out);
            }
            out.push(op::SETITEMS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(bytes: &[u8]) -> Result<Vec<String>, NoCommand> {
        read_command(bytes)
    }

    /// What CPython's pickle writes of `["status", "sshd"]`, by protocol.
    #[test]
    fn commands_of_every_binary_protocol_are_read() {
        let second = b"\x80\x02]q\x00(X\x06\x00\x00\x00statusq\x01X\x04\x00\x00\x00sshdq\x02e.";
        let fourth = b"\x80\x04\x95\x14\x00\x00\x00\x00\x00\x00\x00]\x94(\x8c\x06status\x94\x8c\x04sshd\x94e.";
        for bytes in [&second[..], &fourth[..]] {
            assert_eq!(words(bytes).unwrap(), ["status", "sshd"]);
        }
        // One word is appended alone; a word that comes twice is named the second time.
        assert_eq!(words(b"\x80\x04]\x94\x8c\x04ping\x94a.").unwrap(), ["ping"]);
        let twice = b"\x80\x04]\x94(\x8c\x03get\x94\x8c\x01a\x94h\x02e.";
        assert_eq!(words(twice).unwrap(), ["get", "a", "a"]);
        // Of Go's og-rek: byte strings, and no memo. A number is a word.
        assert_eq!(
            words(b"\x80\x02](U\x04pingK\x07M\x00\x01J\xff\xff\xff\xffe.").unwrap(),
            ["ping", "7", "256", "-1"]
        );
    }

    #[test]
    fn nothing_but_a_flat_list_is_read() {
        for bytes in [
            &b""[..],
            b"\x80\x04]\x94(\x8c\x04ping",
            b"\x80\x04\x8c\x04ping\x94.",
            b"\x80\x04](](\x8c\x01aee.",
            b"\x80\x04cos\nsystem\n(\x8c\x02idtR.",
            b"\x80\x04](\x8c\x02\xff\xfee.",
            b"\x80\x04](h\x07e.",
            b"\x80\x04]\x94(\x8c\x04pinge.]",
            b"\x80\x04]\x94(X\xff\xff\xff\xffpinge.",
        ] {
            assert!(words(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_command_has_an_end() {
        let of = |count: usize| [&b"\x80\x04]("[..], &b"\x8c\x01a".repeat(count), b"e."].concat();
        assert_eq!(words(&of(MAX_WORDS)).unwrap().len(), MAX_WORDS);
        assert!(words(&of(MAX_WORDS + 1)).is_err());
        let one_by_one = [
            &b"\x80\x04]"[..],
            &b"\x8c\x01aa".repeat(MAX_WORDS + 1),
            b".",
        ]
        .concat();
        assert!(words(&one_by_one).is_err());
        // A long word that is named again and again takes no room of its own.
        let long = [
            &b"\x80\x04](X\x00\xa0\x00\x00"[..],
            &[b'a'; 0xa000],
            &b"\x94"[..],
            &b"h\x00".repeat(MAX_WORDS - 1),
            b"e.",
        ]
        .concat();
        assert!(words(&long).is_err());
    }
}
