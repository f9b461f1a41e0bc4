//! So many events a minute; the others of it are counted by kind and told as
//! one line when it is over. What is wrong has a budget of its own: a storm of
//! bans must not hide it. Time comes in with each call.

use std::time::{Duration, Instant};

use weir_events::Kind;

const WINDOW: Duration = Duration::from_secs(60);

/// The events of one sink in the present minute, which begins with its first event.
#[derive(Debug)]
pub(crate) struct Rate {
    limit: u32,
    since: Option<Instant>,
    /// Events in this minute: of what happens, and of what is wrong.
    sent: [u32; 2],
    held: [u64; Kind::ALL.len()],
}

impl Rate {
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            limit,
            since: None,
            sent: [0; 2],
            held: [0; Kind::ALL.len()],
        }
    }

    /// May this event be sent, or is it counted only?
    pub(crate) fn admit(&mut self, kind: Kind, now: Instant) -> bool {
        self.since.get_or_insert(now);
        let own = matches!(kind, Kind::Error | Kind::Start | Kind::Stop);
        let sent = &mut self.sent[usize::from(own)];
        if *sent < self.limit {
            *sent += 1;
            return true;
        }
        self.held[kind as usize] += 1;
        false
    }

    /// Ends a minute that is over: the events held back in it, in words.
    pub(crate) fn settle(&mut self, now: Instant) -> Option<String> {
        let since = self.since?;
        if now.duration_since(since) < WINDOW {
            return None;
        }
        self.since = None;
        self.sent = [0; 2];
        self.held()
    }

    /// What is held back now, in words; nothing from then on.
    pub(crate) fn held(&mut self) -> Option<String> {
        let held = std::mem::take(&mut self.held);
        let words: Vec<_> = Kind::ALL
            .iter()
            .zip(held)
            .filter(|(_, n)| *n > 0)
            .map(|((_, kind), n)| match (kind, n) {
                (Kind::Found, 1) => "1 more finding".to_owned(),
                (Kind::Found, n) => format!("{n} more findings"),
                (kind, 1) => format!("1 more {}", kind.name()),
                (kind, n) => format!("{n} more {}s", kind.name()),
            })
            .collect();
        if words.is_empty() {
            return None;
        }
        Some(format!("and {} in the last minute", words.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_events_of_a_minute_go_and_the_rest_is_counted() {
        let start = Instant::now();
        let mut rate = Rate::new(20);
        let sent = (0..332).filter(|_| rate.admit(Kind::Ban, start)).count();
        assert_eq!(sent, 20);
        assert!(!rate.admit(Kind::Unban, start));
        assert!(rate.admit(Kind::Error, start));
        assert_eq!(rate.settle(start + WINDOW / 2), None);
        let over = start + WINDOW;
        assert_eq!(
            rate.settle(over).as_deref(),
            Some("and 312 more bans, 1 more unban in the last minute")
        );
        assert_eq!(rate.settle(over + WINDOW), None);
        // A new minute begins with its first event.
        assert!(rate.admit(Kind::Ban, over + WINDOW));
        assert_eq!(
            rate.settle(over + WINDOW * 2 - Duration::from_millis(1)),
            None
        );
        assert_eq!(rate.settle(over + WINDOW * 2), None);
    }
}
