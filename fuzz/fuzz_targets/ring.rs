//! A log ring segment whose bytes somebody else chose: indices, slots and
//! data. A reader ends each call soon, without a panic, and hands out no more
//! than the ring holds.
#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt;

use libfuzzer_sys::fuzz_target;
use weir_ring::{Clock, Options, Policy, Reader, ReaderOptions, Start, Writer};

const SIZE: u64 = 4096;

fuzz_target!(|input: (bool, u8, Vec<u8>, Vec<u8>, Vec<u8>)| {
    let (overwrite, start, indices, slots, data) = input;
    let policy = if overwrite {
        Policy::OverwriteOldest
    } else {
        Policy::DropNewest
    };
    let options = Options::new().size(SIZE).policy(policy).huge_pages(false);
    let writer = Writer::memfd(&options).expect("a segment");
    let file = File::from(writer.as_fd().try_clone_to_owned().expect("a descriptor"));
    drop(writer);
    let put = |bytes: &[u8], at: u64, most: usize| {
        file.write_all_at(&bytes[..bytes.len().min(most)], at)
            .expect("written");
    };
    put(&indices, 4096, 4096);
    put(&slots, 8192, 8192);
    put(&data, 16384, SIZE as usize);
    let start = match start % 3 {
        0 => Start::Oldest,
        1 => Start::Newest,
        _ => Start::Resume(1),
    };
    if let Ok(mut reader) = Reader::from_fd(&file, &ReaderOptions::new().start(start).batch(256)) {
        let mut records = 0;
        while let Ok(Some(record)) = reader.next_record() {
            assert!(record.payload.len() <= 1008);
            records += 1;
            assert!(records <= SIZE / 16, "more records than fit");
        }
    }
    if let Ok(mut writer) = Writer::from_fd(&file, Clock::Coarse) {
        for _ in 0..100 {
            let _ = writer.write(&[0; 100]);
        }
    }
});
