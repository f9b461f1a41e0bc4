"""Log records through shared memory: writer and readers of weir rings.

A binding of libweir_ring by ctypes, in this one file; copy it or put it on
PYTHONPATH. One segment has one writer and up to 64 readers:

    import weir_ring

    with weir_ring.Writer("/run/weir-ring/shop/worker-0") as writer:
        writer.write("192.0.2.7 GET /wp-login.php 403")

    with weir_ring.Reader("/run/weir-ring/shop/worker-0") as reader:
        for record in reader.follow(timeout=1.0):
            print(record.time, record.payload, record.lost)

    with weir_ring.Set("/run/weir-ring/shop") as ring:
        for segment, record in ring.follow(timeout=1.0):
            ...

An object may move between threads, but only one may use it at a time; after
a fork only one of the two processes may. The library is looked for as
$WEIR_RING_LIBRARY, then as libweir_ring.so.0 where the system has libraries.
"""

import ctypes
import os
import time as _time
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Iterable, Iterator, NamedTuple, Optional, Tuple, Union

__all__ = [
    "DROP_NEWEST", "OVERWRITE_OLDEST", "OLDEST", "NEWEST", "RESUME", "TRUSTED", "USER", "ANYONE",
    "Error", "Reader", "Record", "Set", "Statistics", "Writer",
]

# What a full ring does with a new record.
DROP_NEWEST, OVERWRITE_OLDEST = 1, 2
# Where a reader starts.
OLDEST, NEWEST, RESUME = 0, 1, 2
# Whose segments a reader opens.
TRUSTED, USER, ANYONE = 0, 1, 2

_FULL, _TOO_LONG = -1, -2
_REPLACE = 1


class _WriterOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_uint64), ("policy", c_uint32), ("mode", c_uint32), ("uid", c_int64),
        ("gid", c_int64), ("clock_every", c_uint32), ("flags", c_uint32),
    ]


class _ReaderOptions(ctypes.Structure):
    _fields_ = [
        ("start", c_uint32), ("owner", c_uint32), ("resume", c_uint64), ("uid", c_uint64),
        ("batch", c_uint64),
    ]


class _Record(ctypes.Structure):
    _fields_ = [
        ("payload", c_void_p), ("length", c_size_t), ("time", c_uint64), ("seq", c_uint64),
        ("lost", c_uint64),
    ]


class _Statistics(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in ("segments", "bad", "refused", "lost")]


class _Iovec(ctypes.Structure):
    _fields_ = [("base", c_char_p), ("length", c_size_t)]


_EACH = ctypes.CFUNCTYPE(None, c_void_p, c_size_t, ctypes.POINTER(_Record))
_WHERE = ctypes.POINTER(c_void_p)

# name: (result, arguments)
_FUNCTIONS = {
    "strerror": (c_char_p, [c_int]),
    "last_error": (c_char_p, []),
    "options_init": (None, [ctypes.POINTER(_WriterOptions)]),
    "writer_create": (c_int, [_WHERE, c_char_p, ctypes.POINTER(_WriterOptions)]),
    "write": (c_int, [c_void_p, c_char_p, c_size_t]),
    "write_at": (c_int, [c_void_p, c_uint64, c_char_p, c_size_t]),
    "writev": (c_int64, [c_void_p, ctypes.POINTER(_Iovec), c_size_t]),
    "writer_dropped": (c_uint64, [c_void_p]),
    "writer_max_record": (c_size_t, [c_void_p]),
    "writer_fd": (c_int, [c_void_p]),
    "writer_close": (None, [c_void_p]),
    "reader_options_init": (None, [ctypes.POINTER(_ReaderOptions)]),
    "reader_open": (c_int, [_WHERE, c_char_p, ctypes.POINTER(_ReaderOptions)]),
    "next": (c_int, [c_void_p, ctypes.POINTER(_Record)]),
    "sleep": (c_int, [c_void_p, c_int]),
    "release": (None, [c_void_p]),
    "reader_lost": (c_uint64, [c_void_p]),
    "reader_has_writer": (c_int, [c_void_p]),
    "reader_close": (None, [c_void_p]),
    "set_open": (c_int, [_WHERE, c_char_p, ctypes.POINTER(_ReaderOptions)]),
    "set_statistics": (c_int, [c_void_p, ctypes.POINTER(_Statistics)]),
    "set_close": (None, [c_void_p]),
    "worker_create": (c_int, [_WHERE, c_void_p, c_size_t, c_size_t, c_int]),
    "worker_turn": (c_int64, [c_void_p, _EACH, c_void_p, c_void_p]),
    "worker_sleep": (c_int, [c_void_p, c_int]),
    "worker_close": (None, [c_void_p]),
}


class _Library:
    """The functions of the header, without their prefix."""

    def __init__(self) -> None:
        path = os.environ.get("WEIR_RING_LIBRARY") or "libweir_ring.so.0"
        library = ctypes.CDLL(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, "weir_ring_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)


_lib = _Library()


class Error(Exception):
    """What the library refused. `code` is one of its WEIR_RING_E… numbers."""

    def __init__(self, code: int, message: Optional[str] = None) -> None:
        super().__init__(message or _lib.last_error().decode(errors="replace"))
        self.code = code


class Record(NamedTuple):
    """A record, copied: it stays as it is."""

    payload: bytes
    time: int  #: the writer's, nanoseconds since 1970; unchecked
    seq: int  #: its number; a dropped record takes one as well
    lost: int  #: records missing before this one


class Statistics(NamedTuple):
    """What a set has come across so far."""

    segments: int  #: being read
    bad: int  #: found bad while read, given up
    refused: int  #: files that are no segments, or a stranger's
    lost: int  #: records, over all segments


def _check(code: int) -> int:
    if code < 0:
        raise Error(code)
    return code


def _copy(record: _Record) -> Record:
    payload = ctypes.string_at(record.payload, record.length) if record.length else b""
    return Record(payload, record.time, record.seq, record.lost)


def _milliseconds(seconds: Optional[float]) -> int:
    """None is for ever. Rounded up, lest a short wait becomes a busy one."""
    if seconds is None:
        return -1
    return max(0, min(int(seconds * 1000 + 0.999), 2**31 - 1))


def _bytes(payload: Union[bytes, str]) -> bytes:
    return payload.encode(errors="surrogateescape") if isinstance(payload, str) else payload


def _reader_options(start: int, owner: int, resume: int, uid: int, batch: int) -> _ReaderOptions:
    options = _ReaderOptions()
    _lib.reader_options_init(byref(options))
    options.start, options.owner = start, owner
    options.resume, options.uid, options.batch = resume, uid, batch
    return options


class _Handle:
    """A pointer of the library's that is closed once."""

    _close: str

    def __init__(self) -> None:
        self._pointer = c_void_p()

    @property
    def _open(self) -> c_void_p:
        if not self._pointer:
            raise ValueError("closed")
        return self._pointer

    def close(self) -> None:
        """Lets go of it; a second time does nothing."""
        pointer, self._pointer = self._pointer, c_void_p()
        if pointer:
            getattr(_lib, self._close)(pointer)

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pointer", None):
            self.close()


class Writer(_Handle):
    """The one writer of a segment.

    Creates the segment `path` and its directory, or goes on where the last
    writer stopped. `size`: bytes of data, a power of two. `policy`:
    DROP_NEWEST or OVERWRITE_OLDEST. `mode`, `uid`, `gid`: of the file; who
    reads needs write permission too. `replace`: a segment of another size or
    policy goes instead of being an error.
    """

    _close = "writer_close"

    def __init__(
        self, path: Union[str, "os.PathLike[str]"], *, size: int = 1 << 20,
        policy: int = DROP_NEWEST, mode: int = 0o600, uid: int = -1, gid: int = -1,
        replace: bool = False,
    ) -> None:
        super().__init__()
        options = _WriterOptions()
        _lib.options_init(byref(options))
        options.size, options.policy, options.mode = size, policy, mode
        options.uid, options.gid = uid, gid
        options.flags = _REPLACE if replace else 0
        _check(_lib.writer_create(byref(self._pointer), os.fsencode(path), byref(options)))

    def write(self, payload: Union[bytes, str], time: Optional[int] = None) -> bool:
        """Writes one record and never waits. False: the ring is full, the
        record was dropped and counted. `time`: nanoseconds since 1970, else
        that of the last timer tick. A record longer than `max_record` and a
        segment that was cut short are an Error."""
        payload = _bytes(payload)
        if time is None:
            code = _lib.write(self._open, payload, len(payload))
        else:
            code = _lib.write_at(self._open, time, payload, len(payload))
        if code == _FULL:
            return False
        if code < 0:
            raise Error(code, _lib.strerror(code).decode())
        return True

    def writev(self, payloads: Iterable[Union[bytes, str]]) -> int:
        """Writes a record for each payload, published at once; how many were
        stored. The rest was dropped and counted."""
        all_bytes = [_bytes(payload) for payload in payloads]
        parts = (_Iovec * len(all_bytes))(*((each, len(each)) for each in all_bytes))
        return _check(_lib.writev(self._open, parts, len(all_bytes)))

    @property
    def dropped(self) -> int:
        """Records dropped since the segment was created."""
        return _lib.writer_dropped(self._open)

    @property
    def max_record(self) -> int:
        """The longest payload."""
        return _lib.writer_max_record(self._open)

    def fileno(self) -> int:
        """The segment's file, which stays the writer's."""
        return _lib.writer_fd(self._open)


class Reader(_Handle):
    """A reader of one segment; `Set` is for all of a directory.

    `start`: OLDEST, NEWEST or RESUME (where the last reader with the same
    `resume` number, not 0, stopped). `owner`: TRUSTED (ours and root's), USER
    (those and `uid`'s) or ANYONE. `batch`: bytes copied at a time.

    Iterating over it gives the records that are there now.
    """

    _close = "reader_close"

    def __init__(
        self, path: Union[str, "os.PathLike[str]"], *, start: int = OLDEST, owner: int = TRUSTED,
        resume: int = 0, uid: int = 0, batch: int = 0,
    ) -> None:
        super().__init__()
        options = _reader_options(start, owner, resume, uid, batch)
        _check(_lib.reader_open(byref(self._pointer), os.fsencode(path), byref(options)))

    def read(self) -> Optional[Record]:
        """The next record, None if there is none now. An Error says that the
        segment is bad, and is repeated for ever."""
        record = _Record()
        if _check(_lib.next(self._open, byref(record))) == 0:
            return None
        return _copy(record)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.read, None)

    def follow(self, timeout: Optional[float] = None) -> Iterator[Record]:
        """Records as they come, until none has come for `timeout` seconds
        (None: for ever)."""
        while True:
            yield from self
            if not _wait(self.sleep, timeout):
                return

    def sleep(self, timeout: Optional[float] = None) -> bool:
        """Sleeps until there is a record, at most `timeout` seconds. True if
        there is one; False may come early."""
        return _check(_lib.sleep(self._open, _milliseconds(timeout))) == 1

    def release(self) -> None:
        """Says that all records taken so far have been handled; happens by
        itself when there is nothing to read."""
        _lib.release(self._open)

    @property
    def lost(self) -> int:
        """Records lost so far, exactly."""
        return _lib.reader_lost(self._open)

    @property
    def has_writer(self) -> bool:
        """Whether a writer is attached and alive."""
        return _lib.reader_has_writer(self._open) == 1


class Set(_Handle):
    """Every segment of a directory, those that are created later too, read by
    one thread round robin. `lower` <= number < `upper` takes a part of them,
    numbered as they were found. The other options are those of `Reader`."""

    _close = "set_close"

    def __init__(
        self, directory: Union[str, "os.PathLike[str]"], *, lower: int = 0,
        upper: Optional[int] = None, start: int = OLDEST, owner: int = TRUSTED, resume: int = 0,
        uid: int = 0, batch: int = 0,
    ) -> None:
        super().__init__()
        self._worker = c_void_p()
        options = _reader_options(start, owner, resume, uid, batch)
        _check(_lib.set_open(byref(self._pointer), os.fsencode(directory), byref(options)))
        end = c_size_t(-1).value if upper is None else upper
        _check(_lib.worker_create(byref(self._worker), self._pointer, lower, end, 0))
        self._batch: list = []
        # An exception must not leave the function that C calls: it is kept
        # small, and the records are handed on outside.
        self._each = _EACH(self._take)

    def _take(self, _context: object, segment: int, record) -> None:
        self._batch.append((segment, _copy(record.contents)))

    def read(self) -> Iterator[Tuple[int, Record]]:
        """The records that are there now, with their segments' numbers."""
        while self._open:
            self._batch = []
            if _check(_lib.worker_turn(self._worker, self._each, None, None)) == 0:
                return
            yield from self._batch

    __iter__ = read

    def follow(self, timeout: Optional[float] = None) -> Iterator[Tuple[int, Record]]:
        """Records as they come, until none has come for `timeout` seconds
        (None: for ever)."""
        while True:
            yield from self.read()
            if not _wait(self.sleep, timeout):
                return

    def sleep(self, timeout: Optional[float] = None) -> bool:
        """As `Reader.sleep`, for all segments."""
        _ = self._open
        return _check(_lib.worker_sleep(self._worker, _milliseconds(timeout))) == 1

    def statistics(self) -> Statistics:
        """What the set has come across so far."""
        out = _Statistics()
        _check(_lib.set_statistics(self._open, byref(out)))
        return Statistics(out.segments, out.bad, out.refused, out.lost)

    def close(self) -> None:
        """Lets go of all segments; a second time does nothing."""
        worker, self._worker = self._worker, c_void_p()
        if worker:
            _lib.worker_close(worker)
        super().close()


def _wait(sleep, timeout: Optional[float]) -> bool:
    """Whether there is something before `timeout`, whatever ends a sleep."""
    if timeout is None:
        while not sleep(1.0):
            pass
        return True
    end = _time.monotonic() + timeout
    while True:
        left = end - _time.monotonic()
        if sleep(max(0.0, left)):
            return True
        if left <= 0:
            return False
