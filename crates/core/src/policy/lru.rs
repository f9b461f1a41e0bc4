//! A map of bounded size that forgets what was touched longest ago. Constant
//! time; entries live in one vector, linked by index.

use std::collections::HashMap;

use crate::Subject;

const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Lru<T> {
    index: HashMap<Subject, u32>,
    nodes: Vec<Node<T>>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
    cap: usize,
}

#[derive(Debug)]
struct Node<T> {
    subject: Subject,
    value: T,
    older: u32,
    newer: u32,
}

impl<T: Default> Lru<T> {
    pub fn new(cap: usize) -> Self {
        Self {
            index: HashMap::new(),
            nodes: vec![],
            free: vec![],
            oldest: NONE,
            newest: NONE,
            cap,
        }
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    pub fn get(&mut self, subject: Subject) -> Option<&mut T> {
        let at = *self.index.get(&subject)?;
        Some(&mut self.nodes[at as usize].value)
    }

    /// The value of a subject, made if it is new, now the newest; and whether
    /// another one had to be forgotten for it.
    pub fn touch(&mut self, subject: Subject) -> (&mut T, bool) {
        if let Some(at) = self.index.get(&subject).copied() {
            if at != self.newest {
                self.unlink(at);
                self.link(at);
            }
            return (&mut self.nodes[at as usize].value, false);
        }
        let evict = self.index.len() >= self.cap && self.oldest != NONE;
        if evict {
            let subject = self.nodes[self.oldest as usize].subject;
            self.remove(subject);
        }
        let node = Node {
            subject,
            value: T::default(),
            older: NONE,
            newer: NONE,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.index.insert(subject, at);
        self.link(at);
        (&mut self.nodes[at as usize].value, evict)
    }

    pub fn remove(&mut self, subject: Subject) -> Option<T> {
        let at = self.index.remove(&subject)?;
        self.unlink(at);
        self.free.push(at);
        Some(std::mem::take(&mut self.nodes[at as usize].value))
    }

    /// From the one touched longest ago to the newest.
    pub fn iter(&self) -> impl Iterator<Item = (Subject, &T)> {
        let mut at = self.oldest;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at as usize)?;
            at = node.newer;
            Some((node.subject, &node.value))
        })
    }

    fn unlink(&mut self, at: u32) {
        let (older, newer) = {
            let node = &self.nodes[at as usize];
            (node.older, node.newer)
        };
        match older {
            NONE => self.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
    }

    fn link(&mut self, at: u32) {
        let newest = self.newest;
        let node = &mut self.nodes[at as usize];
        (node.older, node.newer) = (newest, NONE);
        match newest {
            NONE => self.oldest = at,
            newest => self.nodes[newest as usize].newer = at,
        }
        self.newest = at;
    }
}
