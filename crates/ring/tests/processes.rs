//! Two processes: millions of records with checksums, and SIGKILL of either
//! side a thousand times. The other process is this test binary again, told
//! by its environment what to be.
//!
//! `WEIR_RING_RECORDS` sets how many records the stress sends in all (30
//! million unless told), `WEIR_RING_KILLS` how often each side is killed.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use weir_ring::{Clock, Options, Policy, Reader, ReaderOptions, Start, Writer};

const DEADLINE: Duration = Duration::from_secs(60);

fn setting(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Starts this binary as the other side.
fn other_side(role: &str, path: &Path, more: &[(&str, String)]) -> Child {
    Command::new(env::current_exe().expect("ourselves"))
        .args(["--exact", "the_other_side", "--nocapture"])
        .env("WEIR_RING_ROLE", role)
        .env("WEIR_RING_PATH", path)
        .envs(more.iter().map(|(name, value)| (*name, value)))
        .stdout(Stdio::piped())
        .spawn()
        .expect("started")
}

/// Not a test of its own: what the other process does.
#[test]
fn the_other_side() {
    let Ok(role) = env::var("WEIR_RING_ROLE") else {
        return;
    };
    let path = env::var("WEIR_RING_PATH").expect("a path");
    match role.as_str() {
        "stress" => {
            let records = setting("WEIR_RING_SHARE", 0);
            let policy = policy_of(setting("WEIR_RING_POLICY", 0));
            let mut writer = Writer::create(&path, &stress_options(policy)).expect("a segment");
            let mut buffer = vec![0; 512];
            for seq in 0..records {
                let payload = fill(&mut buffer, seq);
                // At times faster than the reader, at times at its pace.
                let _ = if policy == Policy::DropNewest && seq & (1 << 20) != 0 {
                    writer.write_patiently(seq, payload, DEADLINE)
                } else {
                    writer.write_at(seq, payload)
                };
            }
        }
        "writer" => {
            let mut writer = Writer::create(&path, &kill_options()).expect("taken over");
            let mut buffer = vec![0; 512];
            let turn = setting("WEIR_RING_TURN", 0);
            loop {
                let seq = writer.next_seq();
                let payload = fill(&mut buffer, seq);
                let _ = writer.write_at(turn, payload);
            }
        }
        "reader" => {
            let begin = ReaderOptions::new().start(Start::Newest);
            let mut reader = Reader::open(&path, &begin).expect("a slot");
            println!("attached");
            loop {
                let _ = reader.batch().expect("good").count();
                reader.sleep(Duration::from_millis(1));
            }
        }
        other => panic!("role {other}"),
    }
}

fn policy_of(number: u64) -> Policy {
    match number {
        1 => Policy::DropNewest,
        _ => Policy::OverwriteOldest,
    }
}

fn stress_options(policy: Policy) -> Options {
    Options::new()
        .size(1 << 20)
        .policy(policy)
        .clock(Clock::Every(64))
}

fn kill_options() -> Options {
    Options::new().size(1 << 16)
}

fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (value ^ value >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53)
}

/// A record that is checked by its number alone: 8 to 127 bytes, one in eight up to
/// 511 (both ways of storing), each word different, so that parts of two records
/// never pass for one.
fn fill(buffer: &mut [u8], seq: u64) -> &[u8] {
    let key = mix(seq);
    let most = if key >> 32 & 7 == 0 { 504 } else { 120 };
    let length = 8 + (key % most) as usize;
    for (index, word) in buffer[..length.next_multiple_of(8)]
        .as_chunks_mut::<8>()
        .0
        .iter_mut()
        .enumerate()
    {
        *word = key.wrapping_add(index as u64 * 0x9e37_79b9).to_ne_bytes();
    }
    &buffer[..length]
}

fn check(buffer: &mut [u8], seq: u64, payload: &[u8]) {
    assert!(fill(buffer, seq) == payload, "record {seq} is torn");
}

fn directory() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("weir-ring-")
        .tempdir_in("/dev/shm")
        .expect("a directory")
}

fn stress(policy: Policy, records: u64) {
    let directory = directory();
    let path = directory.path().join("segment");
    // Made before the reader attaches; the other side takes it over.
    drop(Writer::create(&path, &stress_options(policy)).expect("a segment"));
    let mut reader = Reader::open(&path, &ReaderOptions::new()).expect("a slot");
    let number = if policy == Policy::DropNewest {
        "1"
    } else {
        "2"
    };
    let more = [
        ("WEIR_RING_SHARE", records.to_string()),
        ("WEIR_RING_POLICY", number.to_owned()),
    ];
    let mut child = other_side("stress", &path, &more);
    let mut buffer = vec![0; 512];
    let (mut read, mut next) = (0, 0);
    let mut ended = false;
    loop {
        let mut any = false;
        for record in reader.batch().expect("good") {
            any = true;
            assert_eq!(record.seq - record.lost, next);
            assert_eq!(record.time, record.seq);
            check(&mut buffer, record.seq, record.payload);
            next = record.seq + 1;
            read += 1;
        }
        if any {
            continue;
        }
        if ended {
            break;
        }
        ended = child.try_wait().expect("waited").is_some_and(|status| {
            assert!(status.success());
            true
        });
        reader.sleep(Duration::from_millis(1));
    }
    assert_eq!(read + reader.lost(), records, "{read} read");
    // How much it reads of what is overwritten is a matter of processors; it goes around often.
    assert!(
        read > records / 500,
        "{policy:?}: only {read} of {records} read"
    );
    eprintln!(
        "{policy:?}: {records} records, {read} read and right, {} lost",
        reader.lost()
    );
}

#[test]
fn no_record_is_torn_or_lost_unnoticed_between_two_processes() {
    let records = setting("WEIR_RING_RECORDS", 30_000_000);
    stress(Policy::DropNewest, records / 2);
    stress(Policy::OverwriteOldest, records - records / 2);
}

#[test]
fn a_writer_killed_at_any_moment_tears_nothing() {
    let directory = directory();
    let path = directory.path().join("segment");
    drop(Writer::create(&path, &kill_options()).expect("a segment"));
    let mut reader = Reader::open(&path, &ReaderOptions::new()).expect("a slot");
    let mut buffer = vec![0; 512];
    let (mut read, mut next) = (0_u64, 0);
    for turn in 0..setting("WEIR_RING_KILLS", 1000) {
        let mut child = other_side("writer", &path, &[("WEIR_RING_TURN", turn.to_string())]);
        let begun = Instant::now();
        let mut kill_at = None;
        while kill_at.is_none_or(|at| Instant::now() < at) {
            assert!(begun.elapsed() < DEADLINE, "writer {turn} never wrote");
            for record in reader.batch().expect("good") {
                assert_eq!(record.seq - record.lost, next);
                check(&mut buffer, record.seq, record.payload);
                next = record.seq + 1;
                read += 1;
                if record.time == turn && kill_at.is_none() {
                    kill_at = Some(Instant::now() + Duration::from_micros(mix(turn) % 700));
                }
            }
        }
        child.kill().expect("killed");
        child.wait().expect("waited");
        assert!(!reader.has_writer());
    }
    // The last writer's end, and then one that closes in good order.
    let mut writer = Writer::create(&path, &kill_options()).expect("taken over");
    let attempts = writer.next_seq() + 1;
    while reader
        .batch()
        .expect("good")
        .map(|record| next = record.seq + 1)
        .count()
        > 0
    {}
    writer
        .write_at(0, fill(&mut buffer, attempts - 1))
        .expect("room");
    let last = reader.next_record().expect("good").expect("a record");
    assert_eq!((last.seq, last.seq - last.lost), (attempts - 1, next));
    eprintln!("{read} records read and right");
}

#[test]
fn a_reader_killed_at_any_moment_frees_its_slot() {
    let directory = directory();
    let path = directory.path().join("segment");
    let mut writer = Writer::create(&path, &kill_options()).expect("a segment");
    let mut buffer = vec![0; 512];
    for turn in 0..setting("WEIR_RING_KILLS", 1000) {
        let mut child = other_side("reader", &path, &[]);
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.contains("attached") {
            line.clear();
            assert_ne!(
                output.read_line(&mut line).expect("read"),
                0,
                "reader {turn} died"
            );
        }
        let until = Instant::now() + Duration::from_micros(mix(turn) % 700);
        while Instant::now() < until {
            let seq = writer.next_seq();
            let _ = writer.write_at(seq, fill(&mut buffer, seq));
        }
        child.kill().expect("killed");
        child.wait().expect("waited");
        // Twice around: it holds nobody up.
        let begun = Instant::now();
        let mut stored = 0;
        while stored < 2 << 16 {
            let seq = writer.next_seq();
            let payload = fill(&mut buffer, seq);
            match writer.write_at(seq, payload) {
                Ok(()) => stored += payload.len() + 16,
                Err(_) => assert!(begun.elapsed() < DEADLINE, "reader {turn} keeps its slot"),
            }
        }
        assert_eq!(writer.readers(), 0);
    }
}
