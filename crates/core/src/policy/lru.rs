//! A map of bounded size that forgets what was touched longest ago. Constant
//! time; entries live in one vector, linked by index. The links are a vector of
//! their own, eight bytes each: a touch writes those of two others, and would
//! fetch both from memory where a link is a part of its entry. Subjects come with
//! their hash, which is made once for all maps that a finding is looked up in.
//!
//! By hand, as it is on the way of every finding: the lru crate makes the hash
//! itself and reaches 1.9 million touches a second of a million IPv6 addresses
//! where this reaches 3.8 (virtual EPYC, medians of three). hashlink takes a hash
//! and is as fast, but hashes all addresses again when it grows, and is unsafe
//! code with an allocation for each entry that somebody else's packets make.

use hashbrown::HashTable;

use crate::BanTarget;

const NONE: u32 = u32::MAX;

/// A subject and its hash, keyed: others choose addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hashed {
    pub subject: BanTarget,
    pub hash: u64,
}

#[derive(Debug)]
pub(super) struct Lru<T> {
    index: HashTable<u32>,
    nodes: Vec<Node<T>>,
    /// Links of the nodes, by the same numbers.
    links: Vec<Link>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
    cap: usize,
}

#[derive(Debug)]
struct Node<T> {
    key: Hashed,
    value: T,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
}

impl<T: Default> Lru<T> {
    pub fn new(cap: usize) -> Self {
        Self {
            index: HashTable::new(),
            nodes: vec![],
            links: vec![],
            free: vec![],
            oldest: NONE,
            newest: NONE,
            cap,
        }
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    fn find(&self, key: Hashed) -> Option<u32> {
        if self.index.is_empty() {
            return None;
        }
        let is_it = |at: &u32| self.nodes[*at as usize].key.subject == key.subject;
        self.index.find(key.hash, is_it).copied()
    }

    pub fn get(&mut self, key: Hashed) -> Option<&mut T> {
        let at = self.find(key)?;
        Some(&mut self.nodes[at as usize].value)
    }

    /// Where a subject's value and its neighbours in order are: reading these
    /// fetches from memory what [`Lru::touch`] will need.
    pub fn glance(&self, key: Hashed) -> Option<(&T, [u32; 2])> {
        let at = self.find(key)? as usize;
        let Link { older, newer } = self.links[at];
        Some((&self.nodes[at].value, [older, newer]))
    }

    /// The value of a subject, made if it is new, now the newest; and the one
    /// that had to be forgotten for it.
    pub fn touch(&mut self, key: Hashed) -> (&mut T, Option<(BanTarget, T)>) {
        if let Some(at) = self.find(key) {
            if at != self.newest {
                self.unlink(at);
                self.link(at);
            }
            return (&mut self.nodes[at as usize].value, None);
        }
        let mut evicted = None;
        if self.index.len() >= self.cap && self.oldest != NONE {
            let oldest = self.nodes[self.oldest as usize].key;
            evicted = self.remove(oldest).map(|value| (oldest.subject, value));
        }
        let node = Node {
            key,
            value: T::default(),
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.links.push(Link {
                    older: NONE,
                    newer: NONE,
                });
                (self.nodes.len() - 1) as u32
            }
        };
        let nodes = &self.nodes;
        self.index
            .insert_unique(key.hash, at, |at| nodes[*at as usize].key.hash);
        self.link(at);
        (&mut self.nodes[at as usize].value, evicted)
    }

    pub fn remove(&mut self, key: Hashed) -> Option<T> {
        let nodes = &self.nodes;
        let is_it = |at: &u32| nodes[*at as usize].key.subject == key.subject;
        let (at, _) = self.index.find_entry(key.hash, is_it).ok()?.remove();
        self.unlink(at);
        self.free.push(at);
        Some(std::mem::take(&mut self.nodes[at as usize].value))
    }

    /// From the one touched longest ago to the newest.
    pub fn iter(&self) -> impl Iterator<Item = (BanTarget, &T)> {
        let mut at = self.oldest;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at as usize)?;
            at = self.links[at as usize].newer;
            Some((node.key.subject, &node.value))
        })
    }

    /// The one touched longest ago.
    pub fn oldest(&mut self) -> Option<(Hashed, &mut T)> {
        let node = self.nodes.get_mut(self.oldest as usize)?;
        Some((node.key, &mut node.value))
    }

    /// From the newest to the one touched longest ago, as long as `each` wants
    /// another one.
    pub fn newest_first(&mut self, mut each: impl FnMut(BanTarget, &mut T) -> bool) {
        let mut at = self.newest;
        while let Some(node) = self.nodes.get_mut(at as usize) {
            at = self.links[at as usize].older;
            if !each(node.key.subject, &mut node.value) {
                return;
            }
        }
    }

    fn unlink(&mut self, at: u32) {
        let Link { older, newer } = self.links[at as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize].older = older,
        }
    }

    fn link(&mut self, at: u32) {
        let newest = self.newest;
        self.links[at as usize] = Link {
            older: newest,
            newer: NONE,
        };
        match newest {
            NONE => self.oldest = at,
            newest => self.links[newest as usize].newer = at,
        }
        self.newest = at;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    /// Two subjects of a hash, so that it does not stand for them.
    fn key(n: u8) -> Hashed {
        let addr = Ipv4Addr::new(192, 0, 2, n);
        Hashed {
            subject: addr.to_string().parse().unwrap(),
            hash: u64::from(n / 2),
        }
    }

    proptest! {
        /// As a list from the one touched longest ago to the newest would.
        #[test]
        fn forgets_what_was_touched_longest_ago(
            cap in 1usize..6,
            steps in prop::collection::vec((0u8..4, 0u8..8), 0..60),
        ) {
            let mut lru: Lru<u32> = Lru::new(cap);
            let mut model: Vec<(BanTarget, u32)> = Vec::new();
            for (n, (verb, subject)) in (1..).zip(steps) {
                let key = key(subject);
                let at = model.iter().position(|(known, _)| *known == key.subject);
                match verb {
                    0 => {
                        let removed = at.map(|at| model.remove(at).1);
                        prop_assert_eq!(lru.remove(key), removed);
                    }
                    1 => {
                        let known = at.map(|at| model[at].1);
                        prop_assert_eq!(lru.get(key).copied(), known);
                    }
                    _ => {
                        let mut forgotten = None;
                        let before = match at {
                            Some(at) => model.remove(at).1,
                            None => {
                                if model.len() == cap {
                                    forgotten = Some(model.remove(0));
                                }
                                0
                            }
                        };
                        model.push((key.subject, n));
                        let (value, evicted) = lru.touch(key);
                        prop_assert_eq!((*value, evicted), (before, forgotten));
                        *value = n;
                    }
                }
                prop_assert_eq!(lru.len(), model.len());
                let all: Vec<_> = lru.iter().map(|(known, n)| (known, *n)).collect();
                prop_assert_eq!(&all, &model);
                let oldest = lru.oldest().map(|(known, n)| (known.subject, *n));
                prop_assert_eq!(oldest, model.first().copied());
                let mut newest = Vec::new();
                lru.newest_first(|known, n| {
                    newest.push((known, *n));
                    newest.len() < 3
                });
                let expected: Vec<_> = model.iter().rev().take(3).copied().collect();
                prop_assert_eq!(newest, expected);
            }
        }
    }
}
