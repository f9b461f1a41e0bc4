//! What one writer and one reader on two processors get through, in two
//! processes: `throughput [RECORDS] [BYTES] [drop|overwrite]`. Every record is
//! published by itself and every byte summed by the reader.
#![allow(unsafe_code, reason = "fork and processor affinity")]

use std::time::{Duration, Instant};
use weir_ring::{Clock, Options, Policy, Reader, ReaderOptions, Start, WriteError, Writer};

fn pin(cpu: usize) {
    // SAFETY: all-zero is a valid `cpu_set_t`, which the calls only read and
    // write within its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| {
        arguments
            .next()
            .map_or(default, |word| word.parse().expect("a number"))
    };
    let records = number(100_000_000);
    let bytes = number(128) as usize;
    let policy = match arguments.next().as_deref() {
        Some("overwrite") => Policy::OverwriteOldest,
        _ => Policy::DropNewest,
    };
    let options = Options::new()
        .size(4 << 20)
        .policy(policy)
        .clock(Clock::Every(64));
    let mut writer = Writer::memfd(&options).expect("a segment");
    let begin = ReaderOptions::new().start(Start::Newest);
    let mut reader = Reader::from_fd(writer.as_fd(), &begin).expect("a slot");

    // SAFETY: one thread so far.
    let child = unsafe { libc::fork() };
    if child == 0 {
        pin(0);
        std::thread::sleep(Duration::from_millis(50));
        let mut payload = vec![0; bytes];
        let mut full = 0_u64;
        for index in 0..records {
            payload.fill(index as u8);
            if bytes >= 8 {
                payload[..8].copy_from_slice(&index.to_ne_bytes());
            }
            let written = writer.write_patiently(index, &payload, Duration::from_secs(1));
            full += u64::from(written == Err(WriteError::Full));
        }
        if full > 0 {
            println!("refused {full}");
        }
        drop(writer);
        std::process::exit(0);
    }

    pin(1);
    let (mut count, mut sum, mut begun) = (0_u64, 0_u64, None);
    while count + reader.lost() < records {
        let mut none = true;
        for record in reader.batch().expect("a good segment") {
            none = false;
            count += 1;
            let (words, rest) = record.payload.as_chunks::<8>();
            for word in words {
                sum = sum.wrapping_add(u64::from_ne_bytes(*word));
            }
            for byte in rest {
                sum = sum.wrapping_add(u64::from(*byte));
            }
        }
        if begun.is_none() && !none {
            begun = Some(Instant::now());
        }
    }
    let took = begun.expect("at least one record").elapsed().as_secs_f64();
    let expected = (0..records).fold(0_u64, |sum, index| {
        let fill = u64::from_ne_bytes([index as u8; 8]);
        let words = bytes as u64 / 8;
        let rest = bytes as u64 % 8 * u64::from(index as u8);
        let first = if bytes >= 8 {
            index.wrapping_sub(fill)
        } else {
            0
        };
        sum.wrapping_add(fill.wrapping_mul(words))
            .wrapping_add(rest)
            .wrapping_add(first)
    });
    println!(
        "{policy:?} {bytes} B: {:.1} M records/s, {:.2} ns each, lost {}, sum {}",
        records as f64 / took / 1e6,
        took * 1e9 / records as f64,
        reader.lost(),
        match (reader.lost(), sum == expected) {
            (0, true) => "right",
            (0, false) => "WRONG",
            _ => "of what was read",
        },
    );
}
