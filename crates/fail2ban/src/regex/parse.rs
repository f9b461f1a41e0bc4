//! Reads Python's `re` syntax: what it accepts, refuses and means by it, as far as logs
//! are matched by it. `\N{…}` and `(?L)` are refused.

use std::collections::BTreeMap;

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

use super::{
    ast::{Anchor, Greed, Node},
    char_set::{self, CharSet, Named},
};

/// The longest expression, in bytes, after tags have become what they stand for.
pub const MAX_PATTERN: usize = 64 << 10;
/// The most groups in each other.
const MAX_DEPTH: usize = 200;
/// The largest count of a repetition.
const MAX_REPEAT: u32 = 1000;
/// What Python supports and this does not.
pub const NO_BACKREF_BEHIND: &str = "a back reference in a look-behind is not supported";
/// The most groups that keep something.
const MAX_GROUPS: usize = 500;

/// An expression, taken apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// All of it; group 0 is the whole match and no node.
    pub node: Node,
    /// How many groups keep something, the whole match included.
    pub groups: usize,
    /// The numbers of named groups by their names.
    pub names: BTreeMap<String, usize>,
}

/// Why an expression is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegexError {
    /// The character at which it was noticed, from 0.
    pub at: usize,
    /// The mistake, in words.
    pub message: String,
}

impl std::fmt::Display for RegexError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (at character {})", self.message, self.at + 1)
    }
}

impl std::error::Error for RegexError {}

#[derive(Clone, Copy, Default)]
struct Flags {
    ignore_case: bool,
    multi_line: bool,
    dot_all: bool,
    verbose: bool,
    ascii: bool,
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    groups: usize,
    names: BTreeMap<String, usize>,
    /// The groups whose end has not come.
    open: Vec<usize>,
    depth: usize,
    /// In a look-behind: the groups before it.
    before_look: Option<usize>,
    /// Groups that are asked for by number, and where.
    asked: Vec<(usize, usize)>,
}

/// Reads an expression; `multi_line`: `^` and `$` are of lines.
///
/// # Errors
/// Of what Python refuses, of what is not supported, and of what is too large.
pub fn parse(pattern: &str, multi_line: bool) -> Result<Parsed, RegexError> {
    let mut parser = Parser {
        chars: Vec::new(),
        at: 0,
        groups: 1,
        names: BTreeMap::new(),
        open: Vec::new(),
        before_look: None,
        depth: 0,
        asked: Vec::new(),
    };
    if pattern.len() > MAX_PATTERN {
        return parser.error(format!("longer than {MAX_PATTERN} bytes"));
    }
    parser.chars = pattern.chars().collect();
    let flags = Flags {
        multi_line,
        ..Flags::default()
    };
    let node = parser.alternatives(flags, true)?;
    if parser.at < parser.chars.len() {
        return parser.error("unbalanced parenthesis");
    }
    for (group, at) in &parser.asked {
        if *group >= parser.groups {
            return Err(RegexError {
                at: *at,
                message: format!("there is no group {group}"),
            });
        }
    }
    Ok(Parsed {
        node,
        groups: parser.groups,
        names: parser.names,
    })
}

impl Parser {
    fn error<T>(&self, message: impl Into<String>) -> Result<T, RegexError> {
        Err(RegexError {
            at: self.at.min(self.chars.len()),
            message: message.into(),
        })
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn take(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    fn accept(&mut self, text: &str) -> bool {
        let fits = text
            .chars()
            .enumerate()
            .all(|(n, c)| self.chars.get(self.at + n) == Some(&c));
        if fits {
            self.at += text.chars().count();
        }
        fits
    }

    fn expect(&mut self, text: &str) -> Result<(), RegexError> {
        match self.accept(text) {
            true => Ok(()),
            false => self.error(format!("missing {text}")),
        }
    }

    /// Up to `)` or the end.
    fn alternatives(&mut self, mut flags: Flags, outermost: bool) -> Result<Node, RegexError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.error(format!("more than {MAX_DEPTH} groups in each other"));
        }
        let mut all = vec![self.sequence(&mut flags, outermost)?];
        while self.accept("|") {
            all.push(self.sequence(&mut flags, false)?);
        }
        self.depth -= 1;
        Ok(match all.len() {
            1 => all.remove(0),
            _ => Node::Alternatives(all),
        })
    }

    /// Up to `|`, `)` or the end. `flags` are changed by global ones at its beginning.
    fn sequence(&mut self, flags: &mut Flags, outermost: bool) -> Result<Node, RegexError> {
        let mut nodes: Vec<Node> = Vec::new();
        // Is the last node a repetition, that is, may it not be repeated?
        let mut repeated = false;
        while let Some(c) = self.peek() {
            if c == '|' || c == ')' {
                break;
            }
            self.at += 1;
            if flags.verbose {
                if c.is_whitespace() && c.is_ascii() {
                    continue;
                }
                if c == '#' {
                    while !matches!(self.take(), None | Some('\n')) {}
                    continue;
                }
            }
            let node = match c {
                '.' => set(&any(flags.dot_all)),
                '^' if flags.multi_line => Node::At(Anchor::LineStart),
                '^' => Node::At(Anchor::TextStart),
                '$' if flags.multi_line => Node::At(Anchor::LineEnd),
                '$' => Node::At(Anchor::End),
                '[' => self.class(*flags)?,
                '\\' => self.escape(*flags)?,
                '*' | '+' | '?' | '{' => match self.bounds(c)? {
                    None => literal('{', *flags),
                    Some((min, max)) => {
                        let Some(node) = nodes.pop().filter(|node| !matches!(node, Node::At(_)))
                        else {
                            return self.error("nothing to repeat");
                        };
                        if repeated {
                            return self.error("multiple repeat");
                        }
                        let kind = match self.peek() {
                            Some('?') => Greed::Lazy,
                            Some('+') => Greed::Possessive,
                            _ => Greed::Greedy,
                        };
                        self.at += usize::from(kind != Greed::Greedy);
                        nodes.push(Node::Repeat {
                            node: Box::new(node),
                            min,
                            max,
                            kind,
                        });
                        repeated = true;
                        continue;
                    }
                },
                '(' => {
                    let is_first = outermost && nodes.is_empty();
                    let begin = self.at - 1;
                    match self.group(flags, is_first, begin)? {
                        Some(node) => node,
                        // A comment, or flags.
                        None => continue,
                    }
                }
                c => literal(c, *flags),
            };
            repeated = false;
            nodes.push(node);
        }
        Ok(match nodes.len() {
            0 => Node::Empty,
            1 => nodes.remove(0),
            _ => Node::Concat(nodes),
        })
    }

    /// How often; `None` for a brace that is one.
    fn bounds(&mut self, c: char) -> Result<Option<(u32, Option<u32>)>, RegexError> {
        match c {
            '*' => return Ok(Some((0, None))),
            '+' => return Ok(Some((1, None))),
            '?' => return Ok(Some((0, Some(1)))),
            _ => {}
        }
        let behind = self.at;
        if self.peek() == Some('}') {
            return Ok(None);
        }
        let low = self.digits();
        let high = match self.accept(",") {
            true => self.digits(),
            false => low.clone(),
        };
        if !self.accept("}") {
            self.at = behind;
            return Ok(None);
        }
        let number = |digits: &str| match digits.parse() {
            Ok(number) if number <= MAX_REPEAT => Ok(number),
            _ => self.error(format!("more than {MAX_REPEAT} repetitions")),
        };
        let min = match &*low {
            "" => 0,
            low => number(low)?,
        };
        let max = match &*high {
            "" => None,
            high => Some(number(high)?),
        };
        if max.is_some_and(|max| max < min) {
            return self.error("min repeat greater than max repeat");
        }
        Ok(Some((min, max)))
    }

    fn digits(&mut self) -> String {
        let begin = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        self.chars[begin..self.at].iter().collect()
    }

    /// Behind `(`; `None` for a comment and for flags of the whole.
    fn group(
        &mut self,
        flags: &mut Flags,
        is_first: bool,
        begin: usize,
    ) -> Result<Option<Node>, RegexError> {
        if !self.accept("?") {
            return self.capture(None, *flags).map(Some);
        }
        let Some(c) = self.take() else {
            return self.error("unexpected end of pattern");
        };
        let node = match c {
            ':' => self.alternatives(*flags, false)?,
            '#' => {
                while !matches!(self.peek(), None | Some(')')) {
                    self.at += 1;
                }
                self.expect(")")?;
                return Ok(None);
            }
            'P' if self.accept("<") => {
                let name = self.name('>')?;
                return self.capture(Some(name), *flags).map(Some);
            }
            'P' if self.accept("=") => {
                let name = self.name(')')?;
                let Some(group) = self.names.get(&name).copied() else {
                    return self.error(format!("unknown group name {name:?}"));
                };
                return self.backref(group, *flags).map(Some);
            }
            '=' | '!' => self.look(false, c == '!', *flags)?,
            '<' => match self.take() {
                Some(c @ ('=' | '!')) => self.look(true, c == '!', *flags)?,
                _ => return self.error("unknown extension (?<"),
            },
            '>' => Node::Atomic(Box::new(self.alternatives(*flags, false)?)),
            '(' => self.conditional(*flags)?,
            c => {
                self.at -= 1;
                let (new, scoped) = self.flags(c, *flags)?;
                if !scoped {
                    if !is_first {
                        self.at = begin;
                        return self.error("global flags not at the start of the expression");
                    }
                    *flags = new;
                    return Ok(None);
                }
                self.alternatives(new, false)?
            }
        };
        self.expect(")")?;
        Ok(Some(match node {
            // As one, so that what follows repeats all of it.
            Node::At(_) | Node::Empty => Node::Concat(vec![node]),
            node => node,
        }))
    }

    fn capture(&mut self, name: Option<String>, flags: Flags) -> Result<Node, RegexError> {
        let group = self.groups;
        if group >= MAX_GROUPS {
            return self.error(format!("more than {MAX_GROUPS} groups"));
        }
        self.groups += 1;
        if let Some(name) = name
            && self.names.insert(name.clone(), group).is_some()
        {
            return self.error(format!("redefinition of group name {name:?}"));
        }
        self.open.push(group);
        let node = self.alternatives(flags, false)?;
        self.open.pop();
        self.expect(")")?;
        Ok(Node::Group(group, Box::new(node)))
    }

    fn look(&mut self, behind: bool, negate: bool, flags: Flags) -> Result<Node, RegexError> {
        let outer = self.before_look;
        if behind && outer.is_none() {
            self.before_look = Some(self.groups);
        }
        let node = self.alternatives(flags, false)?;
        self.before_look = outer;
        let mut refers = false;
        node.visit(&mut |node| refers |= matches!(node, Node::Backref { .. }));
        if behind && refers {
            return self.error(NO_BACKREF_BEHIND);
        }
        let behind = match (behind, node.width()) {
            (false, _) => None,
            (true, (low, Some(high))) if low == high && high <= 1000 => Some(low as u32),
            (true, _) => return self.error("look-behind requires fixed-width pattern"),
        };
        Ok(Node::Look {
            node: Box::new(node),
            behind,
            negate,
        })
    }

    /// Behind `(?(`.
    fn conditional(&mut self, flags: Flags) -> Result<Node, RegexError> {
        let at = self.at;
        let name = self.word(')')?;
        let group = match name.parse() {
            Ok(0) => return self.error("bad group number"),
            Ok(group) => {
                self.asked.push((group, at));
                group
            }
            Err(_) => match self.names.get(&name) {
                Some(group) => *group,
                None => return self.error(format!("unknown group name {name:?}")),
            },
        };
        self.refer_behind(group)?;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.error(format!("more than {MAX_DEPTH} groups in each other"));
        }
        let mut flags = flags;
        let yes = self.sequence(&mut flags, false)?;
        let no = match self.accept("|") {
            true => self.sequence(&mut flags, false)?,
            false => Node::Empty,
        };
        self.depth -= 1;
        if self.peek() == Some('|') {
            return self.error("conditional backref with more than two branches");
        }
        Ok(Node::Conditional {
            group,
            yes: Box::new(yes),
            no: Box::new(no),
        })
    }

    /// `i`, `m-s:` … and what is set with them; is it of a group only?
    fn flags(&mut self, first: char, old: Flags) -> Result<(Flags, bool), RegexError> {
        let mut new = old;
        let mut on = true;
        let mut any = false;
        loop {
            let Some(c) = self.take() else {
                return self.error("missing -, : or )");
            };
            match c {
                'i' => new.ignore_case = on,
                'm' => new.multi_line = on,
                's' => new.dot_all = on,
                'x' => new.verbose = on,
                'a' if on => new.ascii = true,
                'u' if on => new.ascii = false,
                '-' if on => {
                    on = false;
                    any = false;
                    continue;
                }
                ':' if any => return Ok((new, true)),
                ')' if any && on => return Ok((new, false)),
                _ => {
                    self.at -= 1;
                    return self.error(format!("unknown extension (?{first}"));
                }
            }
            any = true;
        }
    }

    fn word(&mut self, end: char) -> Result<String, RegexError> {
        let begin = self.at;
        loop {
            match self.take() {
                Some(c) if c == end => break,
                Some(_) => {}
                None => return self.error(format!("missing {end}, unterminated name")),
            }
        }
        let word: String = self.chars[begin..self.at - 1].iter().collect();
        match word.is_empty() {
            true => self.error("missing group name"),
            false => Ok(word),
        }
    }

    fn name(&mut self, end: char) -> Result<String, RegexError> {
        let name = self.word(end)?;
        let is_letter = |c: char| c == '_' || c.is_alphabetic();
        let mut chars = name.chars();
        let is_name = chars.next().is_some_and(is_letter)
            && chars.all(|c| is_letter(c) || c.is_alphanumeric());
        match is_name {
            true => Ok(name),
            false => self.error(format!("bad character in group name {name:?}")),
        }
    }

    /// A look-behind refers to groups that have ended before it.
    fn refer_behind(&self, group: usize) -> Result<(), RegexError> {
        match self.before_look {
            Some(before) if group >= before || self.open.contains(&group) => {
                self.error("a look-behind cannot refer to a group that it is a part of or has")
            }
            _ => Ok(()),
        }
    }

    fn backref(&self, group: usize, flags: Flags) -> Result<Node, RegexError> {
        if self.open.contains(&group) {
            return self.error("cannot refer to an open group");
        }
        self.refer_behind(group)?;
        Ok(Node::Backref {
            group,
            ignore_case: flags.ignore_case,
        })
    }

    /// Behind a backslash, outside a class.
    fn escape(&mut self, flags: Flags) -> Result<Node, RegexError> {
        let Some(c) = self.take() else {
            return self.error("bad escape (end of pattern)");
        };
        let ascii = flags.ascii;
        Ok(match c {
            'A' => Node::At(Anchor::TextStart),
            'Z' => Node::At(Anchor::TextEnd),
            'b' => Node::At(Anchor::WordBoundary { ascii }),
            'B' => Node::At(Anchor::NotWordBoundary { ascii }),
            '0' => {
                let mut value = 0;
                for _ in 0..2 {
                    if let Some(digit) = self.peek().and_then(|c| c.to_digit(8)) {
                        self.at += 1;
                        value = value * 8 + digit;
                    }
                }
                literal(char::from_u32(value).expect("it is below 64"), flags)
            }
            '1'..='9' => {
                let digit = |c: Option<char>, radix| c.and_then(|c| c.to_digit(radix));
                let first = c.to_digit(10).expect("it is one");
                let Some(second) = digit(self.peek(), 10) else {
                    return self.numbered(first as usize, flags);
                };
                let third = digit(self.chars.get(self.at + 1).copied(), 8);
                if let (0..=7, 0..=7, Some(third)) = (first, second, third) {
                    self.at += 2;
                    let value = first * 64 + second * 8 + third;
                    if value > 0o377 {
                        return self.error("octal escape value outside of range 0-0o377");
                    }
                    return Ok(literal(char::from_u32(value).expect("it is a byte"), flags));
                }
                self.at += 1;
                return self.numbered((first * 10 + second) as usize, flags);
            }
            c => match self.class_escape(c, flags)? {
                Escaped::Char(c) => literal(c, flags),
                Escaped::Class(class) => set(&class),
            },
        })
    }

    fn numbered(&self, group: usize, flags: Flags) -> Result<Node, RegexError> {
        if group >= self.groups {
            return self.error(format!("invalid group reference {group}"));
        }
        self.backref(group, flags)
    }

    /// What means the same in a class and outside; its letter is taken already.
    fn class_escape(&mut self, c: char, flags: Flags) -> Result<Escaped, RegexError> {
        let class = |name, negate| {
            let mut class = char_set::named(name, flags.ascii);
            if negate {
                class.negate();
            }
            Ok(Escaped::Class(class))
        };
        Ok(Escaped::Char(match c {
            'w' | 'W' => return class(Named::Word, c == 'W'),
            'd' | 'D' => return class(Named::Digit, c == 'D'),
            's' | 'S' => return class(Named::Space, c == 'S'),
            'a' => '\x07',
            'f' => '\x0c',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\x0b',
            'x' => self.hex(2)?,
            'u' => self.hex(4)?,
            'U' => self.hex(8)?,
            c if c.is_ascii_alphabetic() => return self.error(format!("bad escape \\{c}")),
            c => c,
        }))
    }

    fn hex(&mut self, digits: usize) -> Result<char, RegexError> {
        let mut value = 0;
        for _ in 0..digits {
            let Some(digit) = self.peek().and_then(|c| c.to_digit(16)) else {
                return self.error("incomplete escape");
            };
            self.at += 1;
            value = value * 16 + digit;
        }
        match char::from_u32(value) {
            Some(c) => Ok(c),
            None => self.error("bad escape: no character"),
        }
    }

    /// Behind `[`.
    fn class(&mut self, flags: Flags) -> Result<Node, RegexError> {
        let negate = self.accept("^");
        let mut class = ClassUnicode::empty();
        let begin = self.at;
        loop {
            let first = match self.take() {
                None => return self.error("unterminated character set"),
                Some(']') if self.at > begin + 1 => break,
                Some('\\') => self.in_class_escape(flags)?,
                Some(c) => Escaped::Char(c),
            };
            if !self.accept("-") {
                class.union(&first.class());
                continue;
            }
            let last = match self.take() {
                None => return self.error("unterminated character set"),
                Some(']') => {
                    class.union(&first.class());
                    class.push(ClassUnicodeRange::new('-', '-'));
                    break;
                }
                Some('\\') => self.in_class_escape(flags)?,
                Some(c) => Escaped::Char(c),
            };
            match (first, last) {
                (Escaped::Char(first), Escaped::Char(last)) if first <= last => {
                    class.push(ClassUnicodeRange::new(first, last));
                }
                _ => return self.error("bad character range"),
            }
        }
        if flags.ignore_case {
            char_set::fold_case(&mut class);
        }
        if negate {
            class.negate();
        }
        Ok(set(&class))
    }

    fn in_class_escape(&mut self, flags: Flags) -> Result<Escaped, RegexError> {
        let Some(c) = self.take() else {
            return self.error("bad escape (end of pattern)");
        };
        match c {
            'b' => Ok(Escaped::Char('\x08')),
            '0'..='7' => {
                let mut value = c.to_digit(8).expect("it is one");
                for _ in 0..2 {
                    if let Some(digit) = self.peek().and_then(|c| c.to_digit(8)) {
                        self.at += 1;
                        value = value * 8 + digit;
                    }
                }
                match char::from_u32(value).filter(|_| value <= 0o377) {
                    Some(c) => Ok(Escaped::Char(c)),
                    None => self.error("octal escape value outside of range 0-0o377"),
                }
            }
            '8' | '9' => self.error(format!("bad escape \\{c}")),
            c => self.class_escape(c, flags),
        }
    }
}

enum Escaped {
    Char(char),
    Class(ClassUnicode),
}

impl Escaped {
    fn class(self) -> ClassUnicode {
        match self {
            Self::Char(c) => char_set::of_ranges(&[(c, c)]),
            Self::Class(class) => class,
        }
    }
}

fn any(dot_all: bool) -> ClassUnicode {
    let mut class = match dot_all {
        true => ClassUnicode::empty(),
        false => char_set::of_ranges(&[('\n', '\n')]),
    };
    class.negate();
    class
}

fn set(class: &ClassUnicode) -> Node {
    let set = CharSet::new(class);
    match set.single() {
        Some(c) => Node::Char(c),
        None => Node::Set(Box::new(set)),
    }
}

fn literal(c: char, flags: Flags) -> Node {
    if !flags.ignore_case {
        return Node::Char(c);
    }
    let mut class = char_set::of_ranges(&[(c, c)]);
    char_set::fold_case(&mut class);
    set(&class)
}
