//! Any sequence of writing, reading, attaching, detaching and restarting
//! against a model: the list of all attempts.

use proptest::prelude::*;
use weir_ring::{Options, Policy, Reader, ReaderOptions, Start, Writer};

#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    WriteMany(Vec<usize>),
    Read(usize, usize),
    Attach(usize, Start),
    Detach(usize),
    RestartWriter,
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![8 => 0..200_usize, 1 => 900..1100_usize];
    let start = prop_oneof![Just(Start::Oldest), Just(Start::Newest)];
    prop_oneof![
        8 => length.clone().prop_map(Step::Write),
        2 => prop::collection::vec(length, 0..30).prop_map(Step::WriteMany),
        4 => (0..3_usize, 0..40_usize).prop_map(|(reader, count)| Step::Read(reader, count)),
        1 => (0..3_usize, start).prop_map(|(reader, start)| Step::Attach(reader, start)),
        1 => (0..3_usize).prop_map(Step::Detach),
        1 => Just(Step::RestartWriter),
    ]
}

fn payload(seq: u64, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|byte| (seq * 31 + byte) as u8)
        .collect()
}

/// A reader and what the model knows of it.
struct ReaderInfo {
    reader: Reader,
    /// The number from which on everything is either read or lost; unknown
    /// until the first record for one that began with the oldest.
    next: Option<u64>,
    /// Under drop-newest nothing that was stored may be missing.
    keeps: bool,
    lost: u64,
}

impl ReaderInfo {
    /// Reads up to `count`; each must be the attempt of its number.
    fn read(&mut self, count: usize, attempts: &[(usize, bool)]) {
        for _ in 0..count {
            let Some(record) = self.reader.next_record().expect("good") else {
                break;
            };
            let (length, stored) = attempts[record.seq as usize];
            assert!(stored, "a dropped record was read");
            assert_eq!(record.payload, payload(record.seq, length));
            assert_eq!(record.time, record.seq);
            let missing = record.seq - self.next.unwrap_or(record.seq);
            assert_eq!(record.lost, missing, "at {}", record.seq);
            let first = (record.seq - missing) as usize;
            let taken = attempts[first..record.seq as usize]
                .iter()
                .any(|(_, stored)| *stored);
            assert!(!(taken && self.keeps), "a stored record was taken away");
            self.lost += missing;
            self.next = Some(record.seq + 1);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_attempt_is_read_once_or_counted_as_lost(
        overwrite in any::<bool>(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let policy = if overwrite { Policy::OverwriteOldest } else { Policy::DropNewest };
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = directory.path().join("segment");
        let options = Options::new().size(4096).policy(policy);
        let mut writer = Some(Writer::create(&path, &options).expect("a segment"));
        let mut readers: [Option<ReaderInfo>; 3] = [None, None, None];
        let mut attempts: Vec<(usize, bool)> = Vec::new();
        let write = |writer: &mut Writer, attempts: &mut Vec<(usize, bool)>, length| {
            let seq = attempts.len() as u64;
            let stored = writer.write_at(seq, &payload(seq, length)).is_ok();
            attempts.push((length, stored));
        };
        for step in steps {
            let current = writer.as_mut().expect("a writer");
            match step {
                Step::Write(length) => write(current, &mut attempts, length),
                Step::WriteMany(lengths) => {
                    for length in lengths {
                        write(current, &mut attempts, length);
                    }
                }
                Step::Read(index, count) => {
                    if let Some(attached) = &mut readers[index] {
                        attached.read(count, &attempts);
                    }
                }
                Step::Attach(index, start) => {
                    let options = ReaderOptions::new().start(start).batch(512);
                    readers[index] = None;
                    let reader = Reader::open(&path, &options).expect("a slot");
                    let empty = reader.backlog() == 0;
                    let next = (start == Start::Newest || empty).then_some(attempts.len() as u64);
                    readers[index] = Some(ReaderInfo { reader, next, keeps: !overwrite, lost: 0 });
                }
                Step::Detach(index) => readers[index] = None,
                Step::RestartWriter => {
                    drop(writer.take());
                    writer = Some(Writer::create(&path, &options).expect("taken over"));
                }
            }
        }
        let closed = writer.take().expect("a writer");
        let dropped = closed.dropped();
        drop(closed);
        prop_assert_eq!(dropped, attempts.iter().filter(|(_, stored)| !stored).count() as u64);
        for attached in readers.iter_mut().flatten() {
            attached.read(usize::MAX, &attempts);
            prop_assert_eq!(attached.reader.backlog(), 0);
            let Some(next) = attached.next else { continue };
            let settled = attached.reader.lost();
            let trailing = (attempts.len() as u64) - next;
            prop_assert_eq!(settled, attached.lost + trailing);
            // Nothing stored is behind the last that was read.
            prop_assert!(attempts[next as usize..].iter().all(|(_, stored)| !stored));
        }
    }
}
