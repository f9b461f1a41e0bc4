//! After a growth that failed, the next attempt waits: each costs memory, and
//! some 0.2 s of the verifier under the maintenance lock.

use std::time::{Duration, Instant};

use crate::Error;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// See the file's head.
#[derive(Default)]
pub(super) struct GrowthBackoff(Option<Failed>);

struct Failed {
    at: Instant,
    pause: Duration,
    why: String,
}

impl Failed {
    fn error(&self) -> Error {
        Error::Growth(self.why.clone())
    }
}

impl GrowthBackoff {
    /// Why the last attempt failed, while the next one is to wait.
    pub(super) fn waiting(&self, now: Instant) -> Option<Error> {
        let failed = self.0.as_ref()?;
        let waits = now.saturating_duration_since(failed.at) < failed.pause;
        waits.then(|| failed.error())
    }

    /// An attempt failed; the pause is twice as long as the last one.
    pub(super) fn failed(&mut self, error: &Error, now: Instant) -> Error {
        let pause = match &self.0 {
            None => FIRST,
            Some(before) => (before.pause * 2).min(LONGEST),
        };
        let failed = Failed {
            at: now,
            pause,
            why: error.to_string(),
        };
        let error = failed.error();
        self.0 = Some(failed);
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute_and_tell_why() {
        let (mut backoff, mut now) = (GrowthBackoff::default(), Instant::now());
        assert!(backoff.waiting(now).is_none());
        let mut attempts = 0;
        for second in 0..600 {
            match backoff.waiting(now) {
                Some(Error::Growth(why)) => {
                    assert!(second > 0 && why.contains("no policy number"), "{why}");
                }
                Some(error) => panic!("{error}"),
                None => {
                    attempts += 1;
                    let error = Error::Unsupported("no policy number".into());
                    assert!(matches!(backoff.failed(&error, now), Error::Growth(_)));
                }
            }
            now += Duration::from_secs(1);
        }
        // 1, 2, 4, 8, 16, 32 seconds, then each minute.
        assert_eq!(attempts, 6 + 10 - 1);
    }
}
