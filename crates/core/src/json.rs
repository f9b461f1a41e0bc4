//! Log lines that are JSON objects: the values of the fields that a filter asks for, in
//! one pass over the text. Whatever two readers of JSON might understand in two ways is
//! refused: a field that is there twice, a broken escape, text behind the object. What a
//! filter makes of the values is its own matter (`detect::json_message`, and `<json:field>`
//! of Fail2ban's filters).

use std::{collections::BTreeMap, fmt};

/// The most fields that one filter may ask for.
pub const MAX_FIELDS: usize = 32;
/// The longest path of a field, in bytes.
const MAX_PATH: usize = 200;

/// Can a filter ask for a field by this path, such as `remote.ip`?
pub fn is_path(path: &str) -> bool {
    let is_part = |c: char| !c.is_control() && !matches!(c, '<' | '>' | '"');
    !path.is_empty() && path.len() <= MAX_PATH && path.chars().all(is_part)
}

/// The fields of a filter, by their paths (`remote.ip`), in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    count: usize,
    /// The paths and what leads to them: the number of the field that ends there.
    nodes: BTreeMap<String, Option<usize>>,
}

/// Why a line is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonError {
    /// It is no object, or nothing that JSON allows stands at this byte.
    Syntax(usize),
    /// A field that is asked for is there twice.
    Twice,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(at) => write!(f, "it is no JSON object, from byte {at} on"),
            Self::Twice => {
                f.write_str("it is JSON in which a field that the filter asks for stands twice")
            }
        }
    }
}

impl std::error::Error for JsonError {}

impl Fields {
    /// The fields of these paths, which are different ones.
    pub fn new(paths: &[String]) -> Self {
        let mut nodes = BTreeMap::new();
        for path in paths {
            for (at, _) in path.match_indices('.') {
                nodes.entry(path[..at].to_owned()).or_insert(None);
            }
        }
        for (number, path) in paths.iter().enumerate() {
            nodes.insert(path.clone(), Some(number));
        }
        Self {
            count: paths.len(),
            nodes,
        }
    }

    /// Is none asked for?
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The fields' values as text, in order; `None` for one that is not there, is `null`,
    /// an object or an array. A control character in a value is a blank.
    ///
    /// # Errors
    /// The line is no object, or has more than one meaning.
    pub fn values(&self, line: &str) -> Result<Vec<Option<String>>, JsonError> {
        let mut reader = Reader {
            bytes: line.as_bytes(),
            line,
            at: 0,
            fields: self,
            values: vec![None; self.count],
            seen: Vec::new(),
        };
        reader.blanks();
        if reader.peek() != Some(b'{') {
            return Err(JsonError::Syntax(reader.at));
        }
        reader.value(String::new())?;
        reader.blanks();
        if reader.at < reader.bytes.len() {
            return Err(JsonError::Syntax(reader.at));
        }
        let mut values = reader.values;
        for value in values.iter_mut().flatten() {
            if value.contains(char::is_control) {
                *value = value.replace(char::is_control, " ");
            }
        }
        Ok(values)
    }
}

struct Reader<'l> {
    bytes: &'l [u8],
    line: &'l str,
    at: usize,
    fields: &'l Fields,
    values: Vec<Option<String>>,
    /// The paths of nodes that have come.
    seen: Vec<&'l str>,
}

impl<'l> Reader<'l> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), JsonError> {
        self.blanks();
        match self.peek() == Some(byte) {
            true => {
                self.at += 1;
                Ok(())
            }
            false => Err(JsonError::Syntax(self.at)),
        }
    }

    /// A value at a place that is asked for, or that something below it is. What it is as
    /// text, if it has one. (No path is deeper than a field that a filter asks for.)
    fn value(&mut self, path: String) -> Result<Option<String>, JsonError> {
        self.blanks();
        match self.peek() {
            Some(b'{') => self.object(path).map(|()| None),
            Some(b'[') => self.skip().map(|()| None),
            _ => self.scalar(),
        }
    }

    fn scalar(&mut self) -> Result<Option<String>, JsonError> {
        match self.peek() {
            Some(b'"') => self.string().map(Some),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null").map(|_| None),
            _ => self.number().map(Some),
        }
    }

    /// Passes over a value that nobody asks for, however deep its parts stand in each other:
    /// a client may choose that.
    fn skip(&mut self) -> Result<(), JsonError> {
        // How each array or object that is open ends.
        let mut open = Vec::new();
        'value: loop {
            self.blanks();
            match self.peek() {
                Some(begin @ (b'{' | b'[')) => {
                    let end = if begin == b'{' { b'}' } else { b']' };
                    self.at += 1;
                    self.blanks();
                    if self.peek() == Some(end) {
                        self.at += 1;
                    } else {
                        open.push(end);
                        self.name_of_next(end)?;
                        continue 'value;
                    }
                }
                _ => {
                    self.scalar()?;
                }
            }
            while let Some(end) = open.last().copied() {
                self.blanks();
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        self.name_of_next(end)?;
                        continue 'value;
                    }
                    _ => self.expect(end)?,
                }
                open.pop();
            }
            return Ok(());
        }
    }

    /// In an object the name of the next value, with its colon.
    fn name_of_next(&mut self, end: u8) -> Result<(), JsonError> {
        if end == b'}' {
            self.blanks();
            self.string()?;
            self.expect(b':')?;
        }
        Ok(())
    }

    fn object(&mut self, path: String) -> Result<(), JsonError> {
        self.expect(b'{')?;
        self.blanks();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.blanks();
            let key = self.string()?;
            self.expect(b':')?;
            let place = match path.is_empty() {
                true => key,
                false => format!("{path}.{key}"),
            };
            let fields = self.fields;
            let node = fields.nodes.get_key_value(&place);
            if let Some((known, _)) = node {
                if self.seen.contains(&known.as_str()) {
                    return Err(JsonError::Twice);
                }
                self.seen.push(known);
            }
            match node {
                None => self.skip()?,
                Some((_, number)) => {
                    let value = self.value(place)?;
                    if let Some(number) = number {
                        self.values[*number] = value;
                    }
                }
            }
            self.blanks();
            match self.peek() {
                Some(b',') => self.at += 1,
                _ => return self.expect(b'}'),
            }
        }
    }

    fn word(&mut self, word: &str) -> Result<Option<String>, JsonError> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(JsonError::Syntax(self.at));
        }
        self.at += word.len();
        Ok(Some(word.to_owned()))
    }

    /// A number as it is written: `-`, digits, a fraction, an exponent.
    fn number(&mut self) -> Result<String, JsonError> {
        let begin = self.at;
        let digits = |reader: &mut Self| {
            let from = reader.at;
            while reader.peek().is_some_and(|byte| byte.is_ascii_digit()) {
                reader.at += 1;
            }
            match reader.at > from {
                true => Ok(()),
                false => Err(JsonError::Syntax(from)),
            }
        };
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        digits(self)?;
        if self.peek() == Some(b'.') {
            self.at += 1;
            digits(self)?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            digits(self)?;
        }
        Ok(self.line[begin..self.at].to_owned())
    }

    fn string(&mut self) -> Result<String, JsonError> {
        if self.peek() != Some(b'"') {
            return Err(JsonError::Syntax(self.at));
        }
        self.at += 1;
        let mut text = String::new();
        let mut from = self.at;
        loop {
            match self.peek() {
                Some(b'"') => {
                    text.push_str(&self.line[from..self.at]);
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => {
                    text.push_str(&self.line[from..self.at]);
                    self.at += 1;
                    text.push(self.escape()?);
                    from = self.at;
                }
                // Not allowed in JSON, whatever some readers do.
                None | Some(0..0x20) => return Err(JsonError::Syntax(self.at)),
                Some(_) => self.at += 1,
            }
        }
    }

    fn escape(&mut self) -> Result<char, JsonError> {
        let at = self.at;
        let letter = self.peek().ok_or(JsonError::Syntax(at))?;
        self.at += 1;
        Ok(match letter {
            b'"' | b'\\' | b'/' => char::from(letter),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex()?;
                let second = match first {
                    0xd800..0xdc00 => self.second_half(),
                    _ => None,
                };
                let code = match second {
                    Some(second) => 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00),
                    None => first,
                };
                // Half of a pair alone is no character, and writers of JSON write it.
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return Err(JsonError::Syntax(at)),
        })
    }

    /// The second half of a pair of surrogates, if it is what comes next.
    fn second_half(&mut self) -> Option<u32> {
        let at = self.at;
        if self.bytes[at..].starts_with(b"\\u") {
            self.at += 2;
            if let Ok(half @ 0xdc00..0xe000) = self.hex() {
                return Some(half);
            }
        }
        self.at = at;
        None
    }

    fn hex(&mut self) -> Result<u32, JsonError> {
        let at = self.at;
        let digits = self.bytes.get(at..at + 4).ok_or(JsonError::Syntax(at))?;
        let mut code = 0;
        for digit in digits {
            let value = char::from(*digit)
                .to_digit(16)
                .ok_or(JsonError::Syntax(at))?;
            code = code << 4 | value;
        }
        self.at += 4;
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Fields {
        Fields::new(&["msg", "remote.ip", "remote.port"].map(str::to_owned))
    }

    /// The values, a line each; `-` for none.
    fn text(line: &str) -> Result<String, JsonError> {
        let values = fields().values(line)?.into_iter();
        Ok(values
            .map(|value| value.unwrap_or_else(|| "-".to_owned()) + "\n")
            .collect())
    }

    #[test]
    fn values_of_fields_are_texts() {
        for (line, values) in [
            (
                r#"{"msg":"a \"b\"","remote":{"ip":"192.0.2.1","port":22}}"#,
                "a \"b\"\n192.0.2.1\n22\n",
            ),
            (
                r#" { "x" : [1,{"msg":"no"},[]], "remote":{"port":-1.5e+3,"ip":null}, "msg":true } "#,
                "true\n-\n-1.5e+3\n",
            ),
            // Nothing in a value ends it, nor stands for one that is missing.
            (
                r#"{"msg":"a\nb\u0001\u0000c","remote.ip":"2001:db8::1","remote":[]}"#,
                "a b  c\n2001:db8::1\n-\n",
            ),
            (r#"{"msg":"\u00e9\ud83d\ude00"}"#, "é😀\n-\n-\n"),
            // Halves of pairs alone, as `json.dumps` of Python writes them.
            (
                r#"{"msg":"\ud800 \ude00\ud83d\u00e9\ud83d\ud83d\ude00"}"#,
                "\u{fffd} \u{fffd}\u{fffd}é\u{fffd}😀\n-\n-\n",
            ),
            ("{}", "-\n-\n-\n"),
            (r#"{"msg":{"a":1}}"#, "-\n-\n-\n"),
        ] {
            assert_eq!(text(line), Ok(values.to_owned()), "{line}");
        }
    }

    /// What readers of JSON may understand in two ways is nobody's.
    #[test]
    fn what_has_two_meanings_is_refused() {
        for (line, why) in [
            (r#"{"msg":"a","msg":"b"}"#, JsonError::Twice),
            (r#"{"remote":{"ip":"a"},"remote":{}}"#, JsonError::Twice),
            (r#"{"remote":{"ip":"a"},"remote.ip":"b"}"#, JsonError::Twice),
            (r#"{"m\u0073g":"a","msg":"b"}"#, JsonError::Twice),
            (r#"{"msg":"a"} x"#, JsonError::Syntax(12)),
            (r#"{"msg":"\x"}"#, JsonError::Syntax(9)),
            ("{\"msg\":\"a\tb\"}", JsonError::Syntax(9)),
            (r#"{"msg":01x}"#, JsonError::Syntax(9)),
            (r#"{"msg":'a'}"#, JsonError::Syntax(7)),
            (r#"{"msg":"a",}"#, JsonError::Syntax(11)),
            (r#"["msg"]"#, JsonError::Syntax(0)),
            (r#"{"msg":"a""#, JsonError::Syntax(10)),
            ("", JsonError::Syntax(0)),
        ] {
            assert_eq!(text(line), Err(why), "{line}");
        }
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let deep = |n: usize| {
                let inner = format!("{}1{}", open.repeat(n), close.repeat(n));
                format!("{{\"x\":{inner}}}")
            };
            let line = deep(100_000);
            assert_eq!(text(&line), text("{}"));
            assert_eq!(
                text(&line[..line.len() - 1]),
                Err(JsonError::Syntax(line.len() - 1))
            );
        }
        for skipped in [
            "[1,]",
            "[,1]",
            "[1 2]",
            "{\"a\"}",
            "{1:2}",
            "[1}",
            "{\"a\":[}]",
        ] {
            let line = format!("{{\"x\":{skipped}}}");
            assert!(text(&line).is_err(), "{skipped}");
        }
    }
}
