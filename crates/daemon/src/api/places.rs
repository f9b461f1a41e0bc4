//! How many requests the control socket has at once. Commands, questions,
//! listings and event streams have places of their own, so that no number of
//! one keeps out another: whoever follows events does not lock out `unban`.
//! Who finds no place is told so at once.

use std::{sync::Arc, time::Duration};

use axum::{
    http::{Method, StatusCode},
    response::Response,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error;

/// Commands: what changes something.
const COMMANDS: usize = 64;
/// Questions with an answer of bounded length.
const QUESTIONS: usize = 64;
/// Listings of all bans and all exemptions.
const LISTINGS: usize = 16;
/// Event streams, which end when the client does.
const STREAMS: usize = 32;
/// The number of connections of all kinds at once.
pub(super) const ALL: usize = COMMANDS + QUESTIONS + LISTINGS + STREAMS;

/// A million bans take 50 MB while they are listed, for as long as the client
/// reads.
const LISTINGS_RUNNING: usize = 2;
/// `status` looks at every ban.
const QUESTIONS_RUNNING: usize = 2;
const COMMANDS_RUNNING: usize = 4;
/// Threads for all that runs.
pub const THREADS: usize = LISTINGS_RUNNING + QUESTIONS_RUNNING + COMMANDS_RUNNING;
/// A request that still waits to run after this time is refused.
const RUNS_WITHIN: Duration = Duration::from_secs(20);

/// The kind of a request, by which it takes a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Command,
    Question,
    Listing,
    Stream,
}

impl Class {
    pub(super) fn of(method: &Method, path: &str) -> Self {
        match (method == Method::GET, path) {
            (true, "/v1/events") => Self::Stream,
            (true, "/v1/bans" | "/v1/allow") => Self::Listing,
            (true, _) => Self::Question,
            (false, _) => Self::Command,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Command => "commands",
            Self::Question => "questions",
            Self::Listing => "listings",
            Self::Stream => "readers of events",
        }
    }

    fn places(self) -> usize {
        match self {
            Self::Command => COMMANDS,
            Self::Question => QUESTIONS,
            Self::Listing => LISTINGS,
            Self::Stream => STREAMS,
        }
    }
}

/// Places for requests of all kinds. Clones share them.
#[derive(Clone)]
pub(super) struct Places {
    commands: Lane,
    questions: Lane,
    listings: Lane,
    streams: Lane,
}

#[derive(Clone)]
struct Lane {
    taken: Arc<Semaphore>,
    running: Arc<Semaphore>,
}

impl Places {
    pub(super) fn new() -> Self {
        let lane = |class: Class, running| Lane {
            taken: Arc::new(Semaphore::new(class.places())),
            running: Arc::new(Semaphore::new(running)),
        };
        Self {
            commands: lane(Class::Command, COMMANDS_RUNNING),
            questions: lane(Class::Question, QUESTIONS_RUNNING),
            listings: lane(Class::Listing, LISTINGS_RUNNING),
            streams: lane(Class::Stream, STREAMS),
        }
    }

    fn lane(&self, class: Class) -> &Lane {
        match class {
            Class::Command => &self.commands,
            Class::Question => &self.questions,
            Class::Listing => &self.listings,
            Class::Stream => &self.streams,
        }
    }

    /// A place for a request, to be held until its connection ends.
    pub(super) fn take(&self, class: Class) -> Result<OwnedSemaphorePermit, Response> {
        let taken = self.lane(class).taken.clone().try_acquire_owned();
        taken.map_err(|_| {
            busy(format!(
                "the daemon has {} {} already, as many as may be; try again",
                class.places(),
                class.name()
            ))
        })
    }

    /// The right to run, for whoever has a place: in turn, and not for ever.
    pub(super) async fn run(&self, class: Class) -> Result<OwnedSemaphorePermit, Response> {
        let running = self.lane(class).running.clone().acquire_owned();
        match tokio::time::timeout(RUNS_WITHIN, running).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(busy(format!(
                "other {} have kept the daemon busy for {} s; try again",
                class.name(),
                RUNS_WITHIN.as_secs()
            ))),
        }
    }
}

fn busy(message: String) -> Response {
    error(StatusCode::SERVICE_UNAVAILABLE, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_asks_for_is_known_before_it_is_read() {
        let get = Method::GET;
        assert_eq!(Class::of(&get, "/v1/events"), Class::Stream);
        assert_eq!(Class::of(&get, "/v1/bans"), Class::Listing);
        assert_eq!(Class::of(&get, "/v1/status"), Class::Question);
        assert_eq!(Class::of(&get, "/nothing"), Class::Question);
        assert_eq!(Class::of(&Method::DELETE, "/v1/bans"), Class::Command);
        assert_eq!(Class::of(&Method::POST, "/v1/events"), Class::Command);
    }

    #[test]
    fn a_class_that_is_full_leaves_the_others_their_places() {
        let places = Places::new();
        let held: Vec<_> = (0..STREAMS)
            .map(|_| places.take(Class::Stream).unwrap())
            .collect();
        let refused = places.take(Class::Stream).unwrap_err();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        for class in [Class::Command, Class::Question, Class::Listing] {
            assert!(places.take(class).is_ok(), "{class:?}");
        }
        drop(held);
        assert!(places.take(Class::Stream).is_ok());
    }
}
