//! Threads that are made before there is work for them: whoever exchanges some
//! threads for others has the others before he ends the first.

use std::{io, sync::mpsc, thread::JoinHandle};

/// The task of a thread.
pub(super) type Work = Box<dyn FnOnce() + Send>;

/// A thread that waits for its work, and ends without when this is dropped.
pub(super) struct Hand {
    work: mpsc::Sender<Work>,
    thread: JoinHandle<()>,
}

impl Hand {
    /// Makes so many, by `spawn`; all of them or none.
    pub fn several(
        count: usize,
        spawn: impl Fn(String, Work) -> io::Result<JoinHandle<()>>,
    ) -> io::Result<Vec<Self>> {
        let one = |number| {
            let (work, given) = mpsc::channel::<Work>();
            let waits = move || {
                if let Ok(work) = given.recv() {
                    work();
                }
            };
            let thread = spawn(format!("weir-worker-{number}"), Box::new(waits))?;
            Ok(Self { work, thread })
        };
        (0..count).map(one).collect()
    }

    /// Gives it its work.
    pub fn give(self, work: Work) -> JoinHandle<()> {
        self.work.send(work).expect("the thread waits for it");
        self.thread
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
        thread,
    };

    use super::*;

    #[test]
    fn without_room_for_all_threads_there_is_none() {
        let (made, ended) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
        let spawn = |room: usize| {
            let (made, ended) = (&made, ended.clone());
            move |name: String, work: Work| {
                if made.fetch_add(1, SeqCst) >= room {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                let ended = ended.clone();
                thread::Builder::new().name(name).spawn(move || {
                    work();
                    ended.fetch_add(1, SeqCst);
                })
            }
        };
        assert!(Hand::several(3, spawn(2)).is_err());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while ended.load(SeqCst) < 2 {
            assert!(std::time::Instant::now() < deadline, "they wait for work");
            thread::yield_now();
        }
        let hands = Hand::several(2, spawn(9)).unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        for hand in hands {
            let done = done.clone();
            let work = move || {
                done.fetch_add(1, SeqCst);
            };
            hand.give(Box::new(work)).join().unwrap();
        }
        assert_eq!(done.load(SeqCst), 2);
    }
}
