//! Files of which is taken back what was concluded from them: until that is done nobody writes to
//! them, be it that the kernel has to be asked twice.

use std::{collections::BTreeSet, mem};

use weir_identity::hash::FileKey;

use super::objects::Broken;

/// Those of which the kernel has refused it.
#[derive(Default)]
pub(super) struct TakingBack {
    left: Broken,
}

impl TakingBack {
    /// Forgets what was concluded from these files, and from those of before, and has them be
    /// written to then.
    ///
    /// # Errors
    /// Not all is forgotten: it is tried again the next time, and their writers wait on.
    pub fn all<E>(
        &mut self,
        more: Broken,
        forget: impl FnOnce(&BTreeSet<FileKey>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut all = mem::take(&mut self.left);
        all.join(more);
        self.these(all, forget)
    }

    /// Takes back what these alone have led to.
    ///
    /// # Errors
    /// As of [`Self::all`].
    pub fn these<E>(
        &mut self,
        these: Broken,
        forget: impl FnOnce(&BTreeSet<FileKey>) -> Result<(), E>,
    ) -> Result<(), E> {
        if these.files.is_empty() {
            return Ok(());
        }
        let done = forget(&these.files);
        if done.is_err() {
            self.left.join(these);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        thread,
        time::{Duration, Instant},
    };

    use super::{super::objects::Objects, *};

    #[test]
    fn nobody_writes_to_a_file_before_all_that_was_concluded_from_it_is_taken_back() {
        weir_bpf::lease::ignore_signals();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        fs::write(&path, "one").unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let mut objects = Objects::default();
        // A child that another test starts has each descriptor until it calls exec.
        let (file, _) = loop {
            match objects.digest(&path) {
                Ok(found) => break found,
                Err(why) => assert!(Instant::now() < until, "{why:?}"),
            }
        };
        let writer = thread::spawn(move || File::options().write(true).open(path).unwrap());
        let broken = loop {
            let broken = objects.take_broken();
            if !broken.files.is_empty() {
                break broken;
            }
            thread::sleep(Duration::from_millis(1));
        };
        let mut taking_back = TakingBack::default();
        let refused = taking_back.all(broken, |files| {
            assert_eq!(*files, BTreeSet::from([file]));
            Err("no memory")
        });
        assert_eq!(refused, Err("no memory"));
        // Others do not wait for it, and he has not come a step further meanwhile.
        let others = taking_back.these(Broken::default(), |_| Err("nothing is forgotten of none"));
        assert_eq!(others, Ok(()));
        let waits = Instant::now() + Duration::from_millis(200);
        while Instant::now() < waits {
            assert!(!writer.is_finished(), "he writes");
            thread::sleep(Duration::from_millis(10));
        }
        let mut forgotten = BTreeSet::new();
        let done: Result<(), ()> = taking_back.all(objects.take_broken(), |files| {
            assert!(!writer.is_finished(), "he writes");
            forgotten.clone_from(files);
            Ok(())
        });
        assert_eq!((done, forgotten), (Ok(()), BTreeSet::from([file])));
        writer.join().unwrap();
        let nothing: Result<(), ()> = taking_back.all(Broken::default(), |_| unreachable!());
        assert_eq!(nothing, Ok(()));
    }
}
