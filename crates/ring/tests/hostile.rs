//! Segments that somebody scribbles over, at rest and while they are read:
//! whatever the bytes, a reader ends each call soon, without a panic, and a
//! writer is not harmed by what readers may write.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use weir_ring::{Clock, Options, Policy, Reader, ReaderOptions, Start, Writer};

const SIZE: u64 = 4096;
const DATA: u64 = 16384;

fn segment(policy: Policy) -> (Writer, File) {
    let writer = Writer::memfd(&Options::new().size(SIZE).policy(policy)).expect("a segment");
    let file = File::from(writer.as_fd().try_clone_to_owned().expect("a descriptor"));
    (writer, file)
}

/// Reads until nothing comes: bounded whatever is there.
fn drain(reader: &mut Reader) {
    // A ring of 4096 bytes holds 256 records; a head that is false may make
    // it bad, but nothing may make it endless.
    for _ in 0..600 {
        match reader.batch() {
            Err(_) => {
                assert!(reader.is_bad() && reader.batch().is_err());
                return;
            }
            Ok(batch) => {
                for record in batch {
                    assert!(record.payload.len() <= 1008);
                }
            }
        }
        if !reader.is_bad() && reader.backlog() == 0 {
            return;
        }
    }
}

/// Records begin at multiples of 8; an index that is none would have the
/// writer store at odd addresses.
#[test]
fn a_writer_takes_over_no_index_between_records() {
    for policy in [Policy::DropNewest, Policy::OverwriteOldest] {
        let (writer, file) = segment(policy);
        drop(writer);
        for word in 512..580_u64 {
            file.write_all_at(&7_u64.to_ne_bytes(), word * 8).unwrap();
        }
        assert!(Writer::from_fd(&file, Clock::Coarse).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_words_anywhere_do_no_harm(
        overwrite in any::<bool>(),
        words in prop::collection::vec(
            (
                prop_oneof![
                    // Indices, slots, data.
                    3 => 512..580_u64, 1 => 1024..1100_u64, 4 => 2048..2560_u64,
                ],
                prop_oneof![
                    any::<u64>(), 0..5000_u64, Just(u64::MAX), Just(1 << 62), Just(!7_u64),
                    (0..300_u64, any::<u64>()).prop_map(|(length, seq)| length | seq << 24),
                ],
            ),
            1..40,
        ),
    ) {
        let policy = if overwrite { Policy::OverwriteOldest } else { Policy::DropNewest };
        let (mut writer, file) = segment(policy);
        let mut before = Reader::from_fd(&file, &ReaderOptions::new()).expect("a slot");
        for n in 0..30 {
            let _ = writer.write(&[n; 50]);
        }
        for (word, value) in words {
            file.write_all_at(&value.to_ne_bytes(), word * 8).expect("written");
        }
        drain(&mut before);
        for start in [Start::Oldest, Start::Newest, Start::Resume(1)] {
            if let Ok(mut reader) = Reader::from_fd(&file, &ReaderOptions::new().start(start)) {
                drain(&mut reader);
            }
        }
        // The writer goes by its own indices.
        for n in 0..300_u64 {
            let _ = writer.write_at(n, &[1; 50]);
        }
        drop(writer);
        if let Ok(mut writer) = Writer::from_fd(&file, weir_ring::Clock::Coarse) {
            for n in 0..300_u64 {
                let _ = writer.write_at(n, &[1; 50]);
            }
        }
    }
}

/// A small generator, so that a failure can be repeated by its seed.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn a_segment_scribbled_over_while_it_is_read_and_written() {
    for policy in [Policy::DropNewest, Policy::OverwriteOldest] {
        let (mut writer, file) = segment(policy);
        let stop = AtomicBool::new(false);
        let deadline = Instant::now() + Duration::from_secs(2);
        let (mut opened, mut bad) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut state = 0x9e37_79b9_7f4a_7c15;
                while !stop.load(Ordering::Relaxed) {
                    let word = match random(&mut state) % 3 {
                        0 => 512 + random(&mut state) % 64,
                        1 => 1024 + random(&mut state) % 1024,
                        _ => (DATA + random(&mut state) % SIZE) / 8,
                    };
                    let value = random(&mut state) >> (random(&mut state) % 64);
                    file.write_all_at(&value.to_ne_bytes(), word * 8)
                        .expect("written");
                }
            });
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = writer.write(&[7; 200]);
                }
            });
            while Instant::now() < deadline {
                let options = ReaderOptions::new().batch(256);
                let Ok(mut reader) = Reader::from_fd(&file, &options) else {
                    continue;
                };
                opened += 1;
                for _ in 0..50 {
                    drain(&mut reader);
                    if reader.is_bad() {
                        bad += 1;
                        break;
                    }
                    reader.sleep(Duration::ZERO);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(
            opened > 10 && bad > 0,
            "{policy:?}: opened {opened}, bad {bad}"
        );
    }
}
