//! Which host names are asked about, who waits for their addresses, and what has
//! been answered: bounded, and without a thread or a clock of its own.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use weir_core::detect::HostName;

/// The most names that nobody has begun to look up.
pub(super) const MAX_NAMES: usize = 1024;
/// The most findings that wait for an answer.
pub(super) const MAX_FINDINGS: usize = 4096;
/// The most answers that are remembered; the oldest go.
pub(super) const MAX_ANSWERS: usize = 10_000;
/// The most addresses of a name that count.
pub(super) const MAX_ADDRESSES: usize = 16;
/// A finding waits for an answer so long.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// An answer is remembered so long, also that there is no address: a resolver does
/// not tell for how long it holds.
const HOLDS: Duration = Duration::from_secs(60);
/// The time for which a failed look-up is remembered.
const FAILURE_HOLDS: Duration = Duration::from_secs(10);

/// The addresses of a name, none where it has none.
pub(super) type Addresses = Arc<[IpAddr]>;

/// The answer of the table to a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The name was looked up a moment ago, and has these addresses.
    Known(Addresses),
    /// The finding waits; true if somebody has to look the name up.
    Waits(bool),
    /// There is no room for the name.
    NamesFull,
    /// There is no room for the finding.
    FindingsFull,
}

/// `W`: who waits.
#[derive(Debug)]
pub(super) struct Table<W> {
    asked: HashMap<HostName, Question<W>>,
    /// Names of these that nobody looks up yet.
    queue: VecDeque<HostName>,
    waiting: usize,
    answers: HashMap<HostName, Resolution>,
    /// Answers of these and older ones of the same names, oldest first.
    order: VecDeque<(u64, HostName)>,
    answered: u64,
}

#[derive(Debug)]
struct Question<W> {
    /// Since the first of those who wait came.
    since: Instant,
    waiting: Vec<W>,
    is_queued: bool,
}

#[derive(Debug)]
struct Resolution {
    number: u64,
    until: Instant,
    addresses: Addresses,
}

impl<W> Default for Table<W> {
    fn default() -> Self {
        Self {
            asked: HashMap::new(),
            queue: VecDeque::new(),
            waiting: 0,
            answers: HashMap::new(),
            order: VecDeque::new(),
            answered: 0,
        }
    }
}

impl<W> Table<W> {
    /// Asks for the addresses of a name; `who` is made if somebody waits.
    pub fn ask(&mut self, name: &HostName, now: Instant, who: impl FnOnce() -> W) -> Asked {
        if let Some(answer) = self.answers.get(name)
            && now < answer.until
        {
            return Asked::Known(answer.addresses.clone());
        }
        if self.waiting >= MAX_FINDINGS {
            return Asked::FindingsFull;
        }
        if let Some(question) = self.asked.get_mut(name) {
            if question.waiting.is_empty() {
                question.since = now;
            }
            question.waiting.push(who());
            self.waiting += 1;
            return Asked::Waits(false);
        }
        if self.queue.len() >= MAX_NAMES {
            return Asked::NamesFull;
        }
        let question = Question {
            since: now,
            waiting: vec![who()],
            is_queued: true,
        };
        self.asked.insert(name.clone(), question);
        self.queue.push_back(name.clone());
        self.waiting += 1;
        Asked::Waits(true)
    }

    /// The name that has waited longest for somebody to look it up.
    pub fn next(&mut self) -> Option<HostName> {
        let name = self.queue.pop_front()?;
        let question = self.asked.get_mut(&name).expect("it is asked about");
        question.is_queued = false;
        Some(name)
    }

    /// The answer about a name that was taken by [`next`](Self::next), `None` where
    /// there is none: who has waited for it, and how many older answers had to go.
    pub fn answer(
        &mut self,
        name: HostName,
        addresses: Option<Addresses>,
        now: Instant,
    ) -> (Vec<W>, u64) {
        let question = self.asked.remove(&name).expect("one is asked at a time");
        self.waiting -= question.waiting.len();
        let until = now
            + if addresses.is_some() {
                HOLDS
            } else {
                FAILURE_HOLDS
            };
        self.answered += 1;
        let number = self.answered;
        let mut evicted = 0;
        while let Some((number, oldest)) = self.order.front() {
            let answer = self.answers.get(oldest).filter(|a| a.number == *number);
            let is_over = answer.is_none_or(|answer| answer.until <= now);
            let is_full = self.answers.len() >= MAX_ANSWERS || self.order.len() >= 2 * MAX_ANSWERS;
            if !is_over && !is_full {
                break;
            }
            if answer.is_some() {
                self.answers.remove(oldest);
                evicted += u64::from(!is_over);
            }
            self.order.pop_front();
        }
        self.order.push_back((number, name.clone()));
        let answer = Resolution {
            number,
            until,
            addresses: addresses.unwrap_or_default(),
        };
        self.answers.insert(name, answer);
        (question.waiting, evicted)
    }

    /// Findings that have waited too long, by name; a name that is not looked up yet is not
    /// looked up any more.
    pub fn late(&mut self, now: Instant) -> Vec<(HostName, Vec<W>)> {
        let mut late = Vec::new();
        for (name, question) in &mut self.asked {
            let is_late = now.duration_since(question.since) >= ANSWER_WITHIN;
            if is_late && !question.waiting.is_empty() {
                late.push((name.clone(), std::mem::take(&mut question.waiting)));
            }
        }
        self.forget(&late);
        late
    }

    /// All findings that wait, by name.
    pub fn all(&mut self) -> Vec<(HostName, Vec<W>)> {
        let asked = self.asked.iter_mut();
        let all: Vec<_> = asked
            .map(|(name, question)| (name.clone(), std::mem::take(&mut question.waiting)))
            .collect();
        self.forget(&all);
        all
    }

    fn forget(&mut self, gone: &[(HostName, Vec<W>)]) {
        for (_, waiting) in gone {
            self.waiting -= waiting.len();
        }
        // Nobody waits for what is left in the queue.
        self.asked
            .retain(|_, question| !question.is_queued || !question.waiting.is_empty());
        self.queue.retain(|name| self.asked.contains_key(name));
    }

    /// Names that are asked about, findings that wait for them, and answers that
    /// are remembered.
    pub fn load(&self) -> [usize; 3] {
        [self.asked.len(), self.waiting, self.answers.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: usize) -> HostName {
        HostName::new(format!("h{n}.example.org").as_bytes()).unwrap()
    }

    fn addresses(last: u8) -> Addresses {
        [IpAddr::from([192, 0, 2, last])].into()
    }

    #[test]
    fn a_name_is_asked_about_once_at_a_time() {
        let mut table = Table::default();
        let now = Instant::now();
        assert_eq!(table.ask(&name(1), now, || 'a'), Asked::Waits(true));
        assert_eq!(table.ask(&name(1), now, || 'b'), Asked::Waits(false));
        assert_eq!(table.ask(&name(2), now, || 'c'), Asked::Waits(true));
        assert_eq!(table.next(), Some(name(1)));
        // Also while it is looked up.
        assert_eq!(table.ask(&name(1), now, || 'd'), Asked::Waits(false));
        assert_eq!(table.next(), Some(name(2)));
        assert_eq!(table.next(), None);
        assert_eq!(table.load(), [2, 4, 0]);
        let answered = table.answer(name(1), Some(addresses(7)), now);
        assert_eq!(answered, (vec!['a', 'b', 'd'], 0));
        assert_eq!(table.load(), [1, 1, 1]);
        let nobody = || -> char { panic!("nobody waits") };
        let known = Asked::Known(addresses(7));
        assert_eq!(table.ask(&name(1), now, nobody), known);
        let almost = now + HOLDS - Duration::from_millis(1);
        assert_eq!(table.ask(&name(1), almost, nobody), known);
        assert_eq!(table.ask(&name(1), now + HOLDS, || 'e'), Asked::Waits(true));
    }

    #[test]
    fn that_there_is_no_answer_is_remembered_for_a_shorter_time() {
        let mut table = Table::default();
        let now = Instant::now();
        for (n, answer, holds) in [
            (1, Some(Addresses::default()), HOLDS),
            (2, None, FAILURE_HOLDS),
        ] {
            assert_eq!(table.ask(&name(n), now, || ()), Asked::Waits(true));
            table.next();
            table.answer(name(n), answer, now);
            let none = Asked::Known(Addresses::default());
            let almost = now + holds - Duration::from_millis(1);
            assert_eq!(table.ask(&name(n), almost, || ()), none);
            assert_eq!(table.ask(&name(n), now + holds, || ()), Asked::Waits(true));
        }
    }

    #[test]
    fn who_waits_too_long_is_told_so() {
        let mut table = Table::default();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        table.ask(&name(1), at(0), || 'a');
        table.ask(&name(2), at(1), || 'b');
        table.next();
        assert_eq!(table.late(at(9)), []);
        assert_eq!(table.late(at(10)), [(name(1), vec!['a'])]);
        // It is being looked up all the same, and nobody does so beside that.
        assert_eq!(table.ask(&name(1), at(10), || 'c'), Asked::Waits(false));
        assert_eq!(table.late(at(11)), [(name(2), vec!['b'])]);
        assert_eq!(table.next(), None, "nobody waits for it any more");
        assert_eq!(table.load(), [1, 1, 0]);
        assert_eq!(table.late(at(20)), [(name(1), vec!['c'])]);
        assert_eq!(table.answer(name(1), None, at(21)), (vec![], 0));
        assert_eq!(table.load(), [0, 0, 1]);
    }

    #[test]
    fn there_is_room_for_so_many_names_and_findings() {
        let mut table = Table::default();
        let now = Instant::now();
        for n in 0..MAX_NAMES {
            assert_eq!(table.ask(&name(n), now, || ()), Asked::Waits(true));
        }
        assert_eq!(table.ask(&name(MAX_NAMES), now, || ()), Asked::NamesFull);
        for _ in MAX_NAMES..MAX_FINDINGS {
            assert_eq!(table.ask(&name(0), now, || ()), Asked::Waits(false));
        }
        assert_eq!(table.ask(&name(0), now, || ()), Asked::FindingsFull);
        assert_eq!(table.load(), [MAX_NAMES, MAX_FINDINGS, 0]);
        // One that is looked up has left the queue.
        table.next();
        assert_eq!(table.ask(&name(MAX_NAMES), now, || ()), Asked::FindingsFull);
        table.answer(name(0), None, now);
        assert_eq!(table.ask(&name(MAX_NAMES), now, || ()), Asked::Waits(true));
        let all: usize = table.all().iter().map(|(_, waiting)| waiting.len()).sum();
        assert_eq!(all, MAX_NAMES);
        assert_eq!(table.load(), [0, 0, 1]);
        assert_eq!(table.next(), None);
    }

    #[test]
    fn the_oldest_answers_go_for_new_ones() {
        let mut table = Table::default();
        let now = Instant::now();
        let mut answer = |n: usize, now| {
            assert_eq!(table.ask(&name(n), now, || ()), Asked::Waits(true), "{n}");
            table.next();
            let (_, evicted) = table.answer(name(n), Some(addresses(1)), now);
            (evicted, table.answers.len(), table.order.len())
        };
        for n in 0..MAX_ANSWERS {
            assert_eq!(answer(n, now), (0, n + 1, n + 1));
        }
        assert_eq!(answer(MAX_ANSWERS, now), (1, MAX_ANSWERS, MAX_ANSWERS));
        // The first has gone, the second is there.
        assert_eq!(answer(0, now), (1, MAX_ANSWERS, MAX_ANSWERS));
        // All of them are over, and go uncounted.
        assert_eq!(answer(1, now + HOLDS), (0, 1, 1));
    }
}
