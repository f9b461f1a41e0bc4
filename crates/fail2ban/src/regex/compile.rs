//! From the tree of an expression to the instructions of the backtracking matcher.

use super::{
    ast::{Anchor, Greed, Node},
    char_set::CharSet,
    parse::Parsed,
};

/// The most instructions of one expression.
const MAX_INSTRUCTIONS: usize = 50_000;
/// The most conditionals by which what has failed is told apart.
const MAX_CONDITION_BITS: usize = 4;

/// How many instructions are looked at to know what can be next.
const MAX_LOOKED_AT: usize = 100;

/// What to do next.
#[derive(Clone, Debug)]
pub(super) enum Inst {
    /// This byte, of ASCII.
    Byte(u8),
    /// Fixed bytes: whole characters.
    Literal(Box<[u8]>),
    /// A character of that set.
    Set(usize),
    /// So many characters of a set.
    Run {
        set: usize,
        min: u32,
        max: u32,
        lazy: bool,
        /// What can follow, by its place in [`Code::next`].
        next: usize,
    },
    /// One way, and the other one if that leads nowhere.
    Split {
        first: usize,
        second: usize,
        /// What either can go on with, by its place in [`Code::next`].
        next: usize,
    },
    /// A loop whose body may match nothing: it ends when it did.
    LoopHead {
        register: usize,
        exit: usize,
        lazy: bool,
    },
    /// The loop behind this begins anew.
    LoopInit(usize),
    Jump(usize),
    /// Keep the place.
    Save(usize),
    At(Anchor),
    /// What follows up to `Stop`, then on at `end`.
    Look {
        behind: Option<u32>,
        negate: bool,
        end: usize,
    },
    /// A lookahead that takes what it matches.
    Atomic {
        end: usize,
    },
    Backref {
        group: usize,
        ignore_case: bool,
    },
    /// On with the next one if the group has matched.
    Condition {
        group: usize,
        no: usize,
    },
    Stop,
}

/// Which bytes can be next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Next {
    ascii: u128,
    wide: bool,
    /// Any, or none.
    any: bool,
}

impl Next {
    const ANY: Self = Self {
        ascii: 0,
        wide: false,
        any: true,
    };

    /// Can it go on before this byte (at the end: `None`)?
    #[inline]
    pub fn allows(&self, byte: Option<u8>) -> bool {
        self.any
            || match byte {
                Some(byte @ 0..0x80) => self.ascii >> byte & 1 == 1,
                Some(_) => self.wide,
                None => false,
            }
    }

    /// The only one.
    pub fn single(&self) -> Option<u8> {
        let is_one = !self.any && !self.wide && self.ascii.count_ones() == 1;
        is_one.then(|| self.ascii.trailing_zeros() as u8)
    }
}

/// The instructions of an expression.
#[derive(Clone, Debug)]
pub(super) struct Code {
    pub insts: Vec<Inst>,
    pub sets: Vec<CharSet>,
    /// For each set the byte that it lacks, where it lacks nothing else.
    pub lacks: Vec<Option<u8>>,
    /// What runs are followed by, and splits go on with.
    pub next: Vec<[Next; 2]>,
    pub groups: usize,
    pub registers: usize,
    /// The groups that conditionals ask for.
    pub conditions: Vec<usize>,
    /// For each instruction its number among those at which a place is remembered that
    /// has led nowhere; empty where what follows depends on more than the place.
    pub joins: Vec<u32>,
    /// How many they are.
    pub join_count: usize,
    /// It fits at the beginning of the text or nowhere.
    pub anchored: bool,
    /// The bytes it can begin with; `None`: any, or nothing.
    pub first: Option<Box<[bool; 256]>>,
    /// The only one of them.
    pub first_byte: Option<u8>,
}

/// Compiles what was parsed.
///
/// # Errors
/// It would be too large.
pub(super) fn compile(parsed: &Parsed) -> Result<Code, String> {
    let mut code = Code {
        insts: Vec::new(),
        sets: Vec::new(),
        lacks: Vec::new(),
        next: Vec::new(),
        groups: parsed.groups,
        registers: 0,
        conditions: Vec::new(),
        joins: Vec::new(),
        join_count: 0,
        anchored: is_anchored(&parsed.node),
        first: None,
        first_byte: None,
    };
    code.node(&parsed.node)?;
    code.push(Inst::Stop)?;
    let mut first = First::default();
    if !first.of(&parsed.node) && !first.any {
        let mut bytes = Box::new([false; 256]);
        for (n, byte) in bytes.iter_mut().enumerate() {
            *byte = match n {
                0..128 => first.ascii >> n & 1 == 1,
                _ => first.wide,
            };
        }
        let mut all = bytes.iter().enumerate().filter(|(_, has)| **has);
        if let (Some((n, _)), None) = (all.next(), all.next()) {
            code.first_byte = Some(n as u8);
        }
        code.first = Some(bytes);
    }
    code.find_next();
    code.lacks = code.sets.iter().map(CharSet::all_but).collect();
    code.find_joins(&parsed.node);
    Ok(code)
}

impl Code {
    fn push(&mut self, inst: Inst) -> Result<usize, String> {
        if self.insts.len() >= MAX_INSTRUCTIONS {
            return Err("its repetitions make it too large".to_owned());
        }
        self.insts.push(inst);
        Ok(self.insts.len() - 1)
    }

    fn set(&mut self, set: &CharSet) -> usize {
        if let Some(known) = self.sets.iter().position(|known| known == set) {
            return known;
        }
        self.sets.push(set.clone());
        self.sets.len() - 1
    }

    fn node(&mut self, node: &Node) -> Result<(), String> {
        match node {
            Node::Empty => {}
            Node::Char(c) => self.literal(&c.to_string())?,
            Node::Set(set) => {
                let set = self.set(set);
                self.push(Inst::Set(set))?;
            }
            Node::Concat(nodes) => {
                let mut rest = &nodes[..];
                while let Some(first) = rest.first() {
                    let text: String = rest
                        .iter()
                        .map_while(|node| match node {
                            Node::Char(c) => Some(*c),
                            _ => None,
                        })
                        .collect();
                    if text.is_empty() {
                        self.node(first)?;
                        rest = &rest[1..];
                    } else {
                        self.literal(&text)?;
                        rest = &rest[text.chars().count()..];
                    }
                }
            }
            Node::Alternatives(nodes) => self.alternatives(nodes)?,
            Node::Repeat {
                node,
                min,
                max,
                kind,
            } => match kind {
                Greed::Possessive => {
                    let at = self.push(Inst::Stop)?;
                    self.repeat(node, *min, *max, false)?;
                    self.push(Inst::Stop)?;
                    self.insts[at] = Inst::Atomic {
                        end: self.insts.len(),
                    };
                }
                kind => self.repeat(node, *min, *max, *kind == Greed::Lazy)?,
            },
            Node::Group(group, node) => {
                self.push(Inst::Save(2 * group))?;
                self.node(node)?;
                self.push(Inst::Save(2 * group + 1))?;
            }
            Node::Look {
                node,
                behind,
                negate,
            } => {
                let at = self.push(Inst::Stop)?;
                self.node(node)?;
                self.push(Inst::Stop)?;
                self.insts[at] = Inst::Look {
                    behind: *behind,
                    negate: *negate,
                    end: self.insts.len(),
                };
            }
            Node::Atomic(node) => {
                let at = self.push(Inst::Stop)?;
                self.node(node)?;
                self.push(Inst::Stop)?;
                self.insts[at] = Inst::Atomic {
                    end: self.insts.len(),
                };
            }
            Node::At(place) => {
                self.push(Inst::At(*place))?;
            }
            Node::Backref { group, ignore_case } => {
                self.push(Inst::Backref {
                    group: *group,
                    ignore_case: *ignore_case,
                })?;
            }
            Node::Conditional { group, yes, no } => {
                if !self.conditions.contains(group) {
                    self.conditions.push(*group);
                }
                let at = self.push(Inst::Stop)?;
                self.node(yes)?;
                let jump = self.push(Inst::Stop)?;
                self.insts[at] = Inst::Condition {
                    group: *group,
                    no: self.insts.len(),
                };
                self.node(no)?;
                self.insts[jump] = Inst::Jump(self.insts.len());
            }
        }
        Ok(())
    }

    fn literal(&mut self, text: &str) -> Result<(), String> {
        self.push(match text.as_bytes() {
            [byte] => Inst::Byte(*byte),
            bytes => Inst::Literal(bytes.into()),
        })?;
        Ok(())
    }

    fn alternatives(&mut self, nodes: &[Node]) -> Result<(), String> {
        let mut jumps = Vec::new();
        for (n, node) in nodes.iter().enumerate() {
            if n + 1 == nodes.len() {
                self.node(node)?;
                break;
            }
            let split = self.push(Inst::Stop)?;
            self.node(node)?;
            jumps.push(self.push(Inst::Stop)?);
            self.insts[split] = Inst::Split {
                first: split + 1,
                second: self.insts.len(),
                next: 0,
            };
        }
        for jump in jumps {
            self.insts[jump] = Inst::Jump(self.insts.len());
        }
        Ok(())
    }

    fn repeat(
        &mut self,
        node: &Node,
        min: u32,
        max: Option<u32>,
        lazy: bool,
    ) -> Result<(), String> {
        let single = match node {
            Node::Char(c) => Some(CharSet::new(&super::char_set::of_ranges(&[(*c, *c)]))),
            Node::Set(set) => Some((**set).clone()),
            _ => None,
        };
        if let Some(set) = single {
            let set = self.set(&set);
            self.push(Inst::Run {
                set,
                min,
                max: max.unwrap_or(u32::MAX),
                lazy,
                next: 0,
            })?;
            return Ok(());
        }
        for _ in 0..min {
            self.node(node)?;
        }
        let split = |body, exit| {
            let (first, second) = if lazy { (exit, body) } else { (body, exit) };
            Inst::Split {
                first,
                second,
                next: 0,
            }
        };
        match max {
            None if node.width().0 == 0 => {
                let register = self.registers;
                self.registers += 1;
                self.push(Inst::LoopInit(register))?;
                let head = self.push(Inst::Stop)?;
                self.node(node)?;
                self.push(Inst::Jump(head))?;
                self.insts[head] = Inst::LoopHead {
                    register,
                    exit: self.insts.len(),
                    lazy,
                };
            }
            None => {
                let head = self.push(Inst::Stop)?;
                self.node(node)?;
                self.push(Inst::Jump(head))?;
                self.insts[head] = split(head + 1, self.insts.len());
            }
            Some(max) => {
                let mut heads = Vec::new();
                for _ in min..max {
                    heads.push(self.push(Inst::Stop)?);
                    self.node(node)?;
                }
                let end = self.insts.len();
                for head in heads {
                    self.insts[head] = split(head + 1, end);
                }
            }
        }
        Ok(())
    }

    /// Notes what runs can be followed by, and splits go on with.
    fn find_next(&mut self) {
        for at in 0..self.insts.len() {
            let known = match self.insts[at] {
                Inst::Run { .. } => [self.next_of(at + 1), Next::ANY],
                Inst::Split { first, second, .. } => [self.next_of(first), self.next_of(second)],
                _ => continue,
            };
            if let Inst::Run { next, .. } | Inst::Split { next, .. } = &mut self.insts[at] {
                *next = self.next.len();
                self.next.push(known);
            }
        }
    }

    /// What an instruction, and those behind it, can go on with.
    fn next_of(&self, at: usize) -> Next {
        let mut next = Next::default();
        let mut open = vec![at];
        let mut seen = Vec::new();
        while let Some(at) = open.pop() {
            if seen.contains(&at) {
                continue;
            }
            seen.push(at);
            if seen.len() > MAX_LOOKED_AT {
                return Next::ANY;
            }
            match &self.insts[at] {
                Inst::Byte(byte) => next.ascii |= 1 << byte,
                Inst::Literal(bytes) if bytes[0] < 0x80 => next.ascii |= 1 << bytes[0],
                Inst::Literal(_) => next.wide = true,
                Inst::Set(set) => self.add_set(*set, &mut next),
                Inst::Run { set, min, .. } => {
                    self.add_set(*set, &mut next);
                    if *min == 0 {
                        open.push(at + 1);
                    }
                }
                Inst::Split { first, second, .. } => open.extend([*first, *second]),
                Inst::LoopHead { exit, .. } => open.extend([at + 1, *exit]),
                Inst::LoopInit(_) | Inst::Save(_) | Inst::At(_) => open.push(at + 1),
                Inst::Jump(to) => open.push(*to),
                Inst::Look { end, .. } => open.push(*end),
                Inst::Condition { no, .. } => open.extend([at + 1, *no]),
                Inst::Atomic { .. } => open.push(at + 1),
                Inst::Backref { .. } | Inst::Stop => return Next::ANY,
            }
        }
        next
    }

    fn add_set(&self, set: usize, next: &mut Next) {
        let set = &self.sets[set];
        next.ascii |= set.ascii();
        next.wide |= set.has_wide();
    }

    /// Where a second visit at a place leads nowhere if the first did.
    fn find_joins(&mut self, node: &Node) {
        let mut by_place = self.registers == 0 && self.conditions.len() <= MAX_CONDITION_BITS;
        node.visit(&mut |node| by_place &= !matches!(node, Node::Backref { .. }));
        if !by_place {
            return;
        }
        let mut joins = vec![u32::MAX; self.insts.len()];
        let mut count = 0;
        for (inst, join) in self.insts.iter().zip(&mut joins) {
            let places = match inst {
                Inst::Split { .. } => 1,
                // At its beginning and at its end.
                Inst::Run { .. } => 2,
                _ => continue,
            };
            *join = count;
            count += places;
        }
        self.joins = joins;
        self.join_count = count as usize;
    }
}

/// Does it fit at the beginning of the text or nowhere?
fn is_anchored(node: &Node) -> bool {
    match node {
        Node::At(Anchor::TextStart) => true,
        Node::Concat(nodes) => nodes
            .iter()
            .take_while(|node| node.width() == (0, Some(0)) || is_anchored(node))
            .any(is_anchored),
        Node::Alternatives(nodes) => nodes.iter().all(is_anchored),
        Node::Group(_, node) | Node::Atomic(node) => is_anchored(node),
        Node::Repeat { node, min, .. } => *min > 0 && is_anchored(node),
        _ => false,
    }
}

/// What an expression can begin with.
#[derive(Default)]
struct First {
    ascii: u128,
    wide: bool,
    /// Any byte can follow.
    any: bool,
}

impl First {
    /// Adds a node's; may it match nothing?
    fn of(&mut self, node: &Node) -> bool {
        match node {
            Node::Empty | Node::At(_) | Node::Look { .. } => true,
            Node::Char(c) if c.is_ascii() => {
                self.ascii |= 1 << *c as u32;
                false
            }
            Node::Char(_) => {
                self.wide = true;
                false
            }
            Node::Set(set) => {
                self.ascii |= set.ascii();
                self.wide |= set.has_wide();
                false
            }
            Node::Concat(nodes) => nodes.iter().all(|node| self.of(node)),
            // Each of them is looked at.
            Node::Alternatives(nodes) => nodes
                .iter()
                .fold(false, |nullable, node| self.of(node) | nullable),
            Node::Repeat { node, min, .. } => self.of(node) | (*min == 0),
            Node::Group(_, node) | Node::Atomic(node) => self.of(node),
            Node::Conditional { yes, no, .. } => self.of(yes) | self.of(no),
            Node::Backref { .. } => {
                self.any = true;
                true
            }
        }
    }
}
