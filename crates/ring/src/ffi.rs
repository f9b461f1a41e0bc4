//! The functions of `include/weir_ring.h`, which documents them. Each checks
//! its pointers, calls the Rust function of the same meaning, and never
//! unwinds into its caller: a panic would be [`PANIC`].
#![allow(
    missing_docs,
    non_camel_case_types,
    clippy::missing_safety_doc,
    reason = "documented for C, in the header"
)]

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::{
    Clock, Error, ErrorKind, Options, Owner, Policy, Reader, ReaderOptions, Record, Set, Start,
    Worker, WriteError, Writer,
};

const FULL: c_int = -1;
const TOO_LONG: c_int = -2;
const GONE: c_int = -3;
const INVALID: c_int = -4;
const PANIC: c_int = -16;

fn code(kind: ErrorKind) -> c_int {
    match kind {
        ErrorKind::InvalidInput => INVALID,
        ErrorKind::NotFound => -5,
        ErrorKind::NotARing => -6,
        ErrorKind::Version => -7,
        ErrorKind::Geometry => -8,
        ErrorKind::Truncated => -9,
        ErrorKind::Corrupt => -10,
        ErrorKind::Owner => -11,
        ErrorKind::WriterActive => -12,
        ErrorKind::NoSlot => -13,
        ErrorKind::ReaderActive => -14,
        ErrorKind::NoSpace => -15,
        ErrorKind::System => -17,
    }
}

fn refused(why: WriteError) -> c_int {
    match why {
        WriteError::Full => FULL,
        WriteError::TooLong => TOO_LONG,
        WriteError::Gone => GONE,
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

fn fail(error: &Error) -> c_int {
    remember(error.to_string());
    code(error.kind())
}

fn remember(message: String) {
    let message = CString::new(message.replace('\0', "?")).unwrap_or_default();
    LAST.with(|last| *last.borrow_mut() = message);
}

fn invalid(what: &str) -> c_int {
    remember(what.to_owned());
    INVALID
}

/// Runs `body`; a panic becomes `otherwise`.
#[inline]
fn contain<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// Hands a new object to C.
fn give<T>(out: *mut *mut T, made: Result<T, Error>) -> c_int {
    match made {
        Ok(value) => {
            // SAFETY: the caller has checked that `out` is not null; the
            // header says that it points to a pointer.
            unsafe { *out = Box::into_raw(Box::new(value)) };
            0
        }
        Err(error) => fail(&error),
    }
}

/// Ends an object of C's.
fn end<T>(object: *mut T) {
    if !object.is_null() {
        // SAFETY: it came from `give`, and the header says that nothing uses
        // it any more.
        contain((), || drop(unsafe { Box::from_raw(object) }));
    }
}

fn path<'a>(text: *const c_char) -> Option<&'a Path> {
    // SAFETY: the header asks for a C string or null.
    let text = unsafe { text.as_ref().map(|text| CStr::from_ptr(text)) }?;
    Some(Path::new(OsStr::from_bytes(text.to_bytes())))
}

fn bytes<'a>(data: *const c_void, length: usize) -> Option<&'a [u8]> {
    if length == 0 {
        return Some(&[]);
    }
    if data.is_null() || length > isize::MAX as usize {
        return None;
    }
    // SAFETY: the header asks for that many readable bytes.
    Some(unsafe { std::slice::from_raw_parts(data.cast(), length) })
}

fn milliseconds(timeout: c_int) -> Duration {
    // Negative: as good as for ever, in the manner of poll(2).
    u64::try_from(timeout).map_or(Duration::from_secs(86_400), Duration::from_millis)
}

fn clock(every: u32) -> Clock {
    match every {
        0 => Clock::Coarse,
        records => Clock::Every(records),
    }
}

#[repr(C)]
pub struct weir_ring_options {
    size: u64,
    policy: u32,
    mode: u32,
    uid: i64,
    gid: i64,
    clock_every: u32,
    flags: u32,
}

const REPLACE: u32 = 1;
const NO_HUGE_PAGES: u32 = 2;

#[repr(C)]
pub struct weir_ring_reader_options {
    start: u32,
    owner: u32,
    resume: u64,
    uid: u64,
    batch: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct weir_ring_record {
    payload: *const c_void,
    length: usize,
    time: u64,
    seq: u64,
    lost: u64,
}

#[repr(C)]
pub struct weir_ring_statistics {
    segments: u64,
    bad: u64,
    refused: u64,
    lost: u64,
}

impl weir_ring_record {
    fn of(record: &Record<'_>) -> weir_ring_record {
        weir_ring_record {
            payload: record.payload.as_ptr().cast(),
            length: record.payload.len(),
            time: record.time,
            seq: record.seq,
            lost: record.lost,
        }
    }
}

fn options(given: *const weir_ring_options) -> Result<Options, c_int> {
    // SAFETY: the header asks for valid options or null.
    let Some(given) = (unsafe { given.as_ref() }) else {
        return Ok(Options::new());
    };
    let policy = match given.policy {
        1 => Policy::DropNewest,
        2 => Policy::OverwriteOldest,
        _ => return Err(invalid("policy: neither drop-newest nor overwrite-oldest")),
    };
    if given.flags & !(REPLACE | NO_HUGE_PAGES) != 0 {
        return Err(invalid("flags: unknown ones are set"));
    }
    Ok(Options::new()
        .size(given.size)
        .policy(policy)
        .mode(given.mode)
        .owner(u32::try_from(given.uid).ok(), u32::try_from(given.gid).ok())
        .clock(clock(given.clock_every))
        .replace(given.flags & REPLACE != 0)
        .huge_pages(given.flags & NO_HUGE_PAGES == 0))
}

fn reader_options(given: *const weir_ring_reader_options) -> Result<ReaderOptions, c_int> {
    // SAFETY: the header asks for valid options or null.
    let Some(given) = (unsafe { given.as_ref() }) else {
        return Ok(ReaderOptions::new());
    };
    let start = match given.start {
        0 => Start::Oldest,
        1 => Start::Newest,
        2 => Start::Resume(given.resume),
        _ => return Err(invalid("start: neither oldest, newest nor resume")),
    };
    let owner = match (given.owner, u32::try_from(given.uid)) {
        (0, _) => Owner::Trusted,
        (1, Ok(uid)) => Owner::User(uid),
        (2, _) => Owner::Anyone,
        _ => return Err(invalid("owner: neither trusted, a user nor anyone")),
    };
    let options = ReaderOptions::new().start(start).owner(owner);
    Ok(match given.batch {
        0 => options,
        bytes => options.batch(bytes.min(1 << 24) as usize),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_options_init(options: *mut weir_ring_options) {
    // SAFETY: the header asks for a place to write to.
    unsafe {
        *options = weir_ring_options {
            size: 1 << 20,
            policy: 1,
            mode: 0o600,
            uid: -1,
            gid: -1,
            clock_every: 0,
            flags: 0,
        };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_reader_options_init(options: *mut weir_ring_reader_options) {
    // SAFETY: the header asks for a place to write to.
    unsafe {
        *options = weir_ring_reader_options {
            start: 0,
            owner: 0,
            resume: 0,
            uid: 0,
            batch: 0,
        };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_writer_create(
    out: *mut *mut Writer,
    name: *const c_char,
    given: *const weir_ring_options,
) -> c_int {
    contain(PANIC, || match (path(name), options(given)) {
        _ if out.is_null() => invalid("no place for the writer"),
        (None, _) => invalid("no path"),
        (_, Err(code)) => code,
        (Some(path), Ok(options)) => give(out, Writer::create(path, &options)),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_writer_memfd(
    out: *mut *mut Writer,
    given: *const weir_ring_options,
) -> c_int {
    contain(PANIC, || match options(given) {
        _ if out.is_null() => invalid("no place for the writer"),
        Err(code) => code,
        Ok(options) => give(out, Writer::memfd(&options)),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_writer_from_fd(
    out: *mut *mut Writer,
    fd: c_int,
    clock_every: u32,
) -> c_int {
    contain(PANIC, || {
        if out.is_null() || fd < 0 {
            return invalid("no place for the writer, or no descriptor");
        }
        // SAFETY: the header asks for an open descriptor.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        give(out, Writer::from_fd(fd, clock(clock_every)))
    })
}

/// Runs `body` on a writer with a payload.
#[inline]
fn with_payload(
    writer: *mut Writer,
    payload: *const c_void,
    length: usize,
    body: impl FnOnce(&mut Writer, &[u8]) -> Result<(), WriteError>,
) -> c_int {
    // SAFETY: the header asks for a writer that no other thread uses now.
    let Some(writer) = (unsafe { writer.as_mut() }) else {
        return invalid("no writer");
    };
    let Some(payload) = bytes(payload, length) else {
        return invalid("no payload");
    };
    contain(PANIC, || match body(writer, payload) {
        Ok(()) => 0,
        Err(why) => refused(why),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_write(
    writer: *mut Writer,
    payload: *const c_void,
    length: usize,
) -> c_int {
    with_payload(writer, payload, length, |writer, payload| {
        writer.write(payload)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_write_at(
    writer: *mut Writer,
    time: u64,
    payload: *const c_void,
    length: usize,
) -> c_int {
    with_payload(writer, payload, length, |writer, payload| {
        writer.write_at(time, payload)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_write_patiently(
    writer: *mut Writer,
    time: u64,
    payload: *const c_void,
    length: usize,
    timeout: c_int,
) -> c_int {
    with_payload(writer, payload, length, |writer, payload| {
        writer.write_patiently(time, payload, milliseconds(timeout))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_writev(
    writer: *mut Writer,
    records: *const libc::iovec,
    count: usize,
) -> i64 {
    // SAFETY: as in `with_payload`.
    let Some(writer) = (unsafe { writer.as_mut() }) else {
        return invalid("no writer").into();
    };
    if count > 0 && records.is_null() {
        return invalid("no records").into();
    }
    contain(PANIC.into(), || {
        let records = (0..count).map(|index| {
            // SAFETY: the header asks for `count` of them, each with that
            // many readable bytes.
            let record = unsafe { &*records.add(index) };
            bytes(record.iov_base, record.iov_len).unwrap_or_default()
        });
        writer.writev(records).stored as i64
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_refresh_time(writer: *mut Writer) {
    // SAFETY: as in `with_payload`.
    if let Some(writer) = unsafe { writer.as_mut() } {
        writer.refresh_time();
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_writer_dropped(writer: *const Writer) -> u64 {
    // SAFETY: as in `with_payload`.
    unsafe { writer.as_ref() }.map_or(0, Writer::dropped)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_writer_max_record(writer: *const Writer) -> usize {
    // SAFETY: as in `with_payload`.
    unsafe { writer.as_ref() }.map_or(0, Writer::max_record)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_writer_fd(writer: *const Writer) -> c_int {
    // SAFETY: as in `with_payload`.
    unsafe { writer.as_ref() }.map_or(-1, |writer| writer.as_fd().as_raw_fd())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_writer_close(writer: *mut Writer) {
    end(writer);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_reader_open(
    out: *mut *mut Reader,
    name: *const c_char,
    given: *const weir_ring_reader_options,
) -> c_int {
    contain(PANIC, || match (path(name), reader_options(given)) {
        _ if out.is_null() => invalid("no place for the reader"),
        (None, _) => invalid("no path"),
        (_, Err(code)) => code,
        (Some(path), Ok(options)) => give(out, Reader::open(path, &options)),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_reader_from_fd(
    out: *mut *mut Reader,
    fd: c_int,
    given: *const weir_ring_reader_options,
) -> c_int {
    contain(PANIC, || match reader_options(given) {
        _ if out.is_null() || fd < 0 => invalid("no place for the reader, or no descriptor"),
        Err(code) => code,
        Ok(options) => {
            // SAFETY: the header asks for an open descriptor.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            give(out, Reader::from_fd(fd, &options))
        }
    })
}

/// Takes up to `count` records of one batch.
fn take(reader: *mut Reader, records: *mut weir_ring_record, count: usize) -> i64 {
    // SAFETY: the header asks for a reader that no other thread uses now.
    let Some(reader) = (unsafe { reader.as_mut() }) else {
        return invalid("no reader").into();
    };
    if records.is_null() {
        return invalid("no place for records").into();
    }
    contain(PANIC.into(), || {
        // Twice: what is left of a batch may be only a part of a record.
        for _ in 0..2 {
            let batch = match reader.batch() {
                Ok(batch) => batch,
                Err(error) => return fail(&error).into(),
            };
            let mut taken = 0;
            for record in batch.take(count) {
                // SAFETY: the header asks for `count` places.
                unsafe { *records.add(taken) = weir_ring_record::of(&record) };
                taken += 1;
            }
            if taken > 0 {
                return taken as i64;
            }
        }
        0
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_next(
    reader: *mut Reader,
    record: *mut weir_ring_record,
) -> c_int {
    take(reader, record, 1) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_readv(
    reader: *mut Reader,
    records: *mut weir_ring_record,
    count: usize,
) -> i64 {
    take(reader, records, count)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_read(
    reader: *mut Reader,
    buffer: *mut c_void,
    size: usize,
    record: *mut weir_ring_record,
) -> c_int {
    if record.is_null() || (buffer.is_null() && size > 0) {
        return invalid("no place for the record");
    }
    let taken = take(reader, record, 1) as c_int;
    if taken == 1 && size > 0 {
        // SAFETY: `take` has filled in the record; the header asks for `size`
        // writable bytes, which do not overlap memory of ours.
        unsafe {
            let length = (*record).length.min(size);
            std::ptr::copy_nonoverlapping((*record).payload.cast::<u8>(), buffer.cast(), length);
            (*record).payload = buffer;
        }
    }
    taken
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_sleep(reader: *mut Reader, timeout: c_int) -> c_int {
    // SAFETY: as in `take`.
    let Some(reader) = (unsafe { reader.as_mut() }) else {
        return invalid("no reader");
    };
    contain(PANIC, || reader.sleep(milliseconds(timeout)).into())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_release(reader: *mut Reader) {
    // SAFETY: as in `take`.
    if let Some(reader) = unsafe { reader.as_mut() } {
        reader.release();
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_reader_lost(reader: *const Reader) -> u64 {
    // SAFETY: as in `take`.
    unsafe { reader.as_ref() }.map_or(0, Reader::lost)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_reader_has_writer(reader: *const Reader) -> c_int {
    // SAFETY: as in `take`.
    unsafe { reader.as_ref() }.map_or(0, |reader| reader.has_writer().into())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_reader_close(reader: *mut Reader) {
    end(reader);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_set_open(
    out: *mut *mut Arc<Set>,
    directory: *const c_char,
    given: *const weir_ring_reader_options,
) -> c_int {
    contain(PANIC, || match (path(directory), reader_options(given)) {
        _ if out.is_null() => invalid("no place for the set"),
        (None, _) => invalid("no directory"),
        (_, Err(code)) => code,
        (Some(path), Ok(options)) => give(out, Set::open(path, &options)),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_set_statistics(
    set: *const Arc<Set>,
    out: *mut weir_ring_statistics,
) -> c_int {
    // SAFETY: the header asks for a set and a place, or null.
    let (Some(set), Some(out)) = (unsafe { (set.as_ref(), out.as_mut()) }) else {
        return invalid("no set, or no place for statistics");
    };
    contain(PANIC, || {
        let statistics = set.statistics();
        *out = weir_ring_statistics {
            segments: statistics.segments as u64,
            bad: statistics.bad,
            refused: statistics.refused as u64,
            lost: statistics.lost,
        };
        0
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_set_close(set: *mut Arc<Set>) {
    end(set);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_worker_create(
    out: *mut *mut Worker,
    set: *const Arc<Set>,
    lower: usize,
    upper: usize,
    steal: c_int,
) -> c_int {
    // SAFETY: the header asks for a set or null.
    let Some(set) = (unsafe { set.as_ref() }) else {
        return invalid("no set");
    };
    if out.is_null() {
        return invalid("no place for the worker");
    }
    contain(PANIC, || {
        give(out, Ok(set.worker_for(lower..upper).stealing(steal != 0)))
    })
}

type Each = Option<unsafe extern "C" fn(*mut c_void, usize, *const weir_ring_record)>;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_worker_turn(
    worker: *mut Worker,
    each: Each,
    context: *mut c_void,
    stolen: *mut c_int,
) -> i64 {
    // SAFETY: the header asks for a worker that no other thread uses now.
    let (Some(worker), Some(each)) = (unsafe { worker.as_mut() }, each) else {
        return invalid("no worker, or no function").into();
    };
    contain(PANIC.into(), || {
        let mut count = 0;
        let turn = worker.turn(|segment, batch| {
            for record in batch {
                // SAFETY: the header asks for a function that may be called
                // like this and does not throw.
                unsafe { each(context, segment, &weir_ring_record::of(&record)) };
                count += 1;
            }
        });
        // SAFETY: the header asks for a place or null.
        if let Some(stolen) = unsafe { stolen.as_mut() } {
            *stolen = turn.is_some_and(|turn| turn.stolen).into();
        }
        count
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_worker_sleep(worker: *mut Worker, timeout: c_int) -> c_int {
    // SAFETY: as in `weir_ring_worker_turn`.
    let Some(worker) = (unsafe { worker.as_mut() }) else {
        return invalid("no worker");
    };
    contain(PANIC, || worker.sleep(milliseconds(timeout)).into())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ring_worker_close(worker: *mut Worker) {
    end(worker);
}

#[unsafe(no_mangle)]
pub extern "C" fn weir_ring_set_sigbus_guard(enabled: c_int) {
    crate::set_sigbus_guard(enabled != 0);
}

#[unsafe(no_mangle)]
pub extern "C" fn weir_ring_last_error() -> *const c_char {
    contain(c"".as_ptr(), || LAST.with(|last| last.borrow().as_ptr()))
}

#[unsafe(no_mangle)]
pub extern "C" fn weir_ring_strerror(code: c_int) -> *const c_char {
    match code {
        0 => c"no error",
        FULL => c"ring is full",
        TOO_LONG => c"record is longer than a quarter of the ring",
        GONE => c"segment was cut short",
        INVALID => c"invalid argument",
        -5 => c"no such segment",
        -6 => c"not a ring segment",
        -7 => c"segment of another layout version",
        -8 => c"segment of another size or policy",
        -9 => c"segment file is cut short",
        -10 => c"segment is corrupt",
        -11 => c"segment belongs to somebody not allowed",
        -12 => c"segment has a writer already",
        -13 => c"all reader slots are taken",
        -14 => c"a living reader has this name",
        -15 => c"no memory or no room in the file system",
        PANIC => c"bug in weir_ring: panic",
        -17 => c"system error",
        _ => c"unknown error",
    }
    .as_ptr()
}
