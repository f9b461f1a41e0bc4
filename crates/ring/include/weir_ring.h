/* weir_ring: hands a server's log records to any number of readers through
 * shared memory, without a system call.
 *
 * A segment is a file in memory (on a tmpfs, or a memfd) with ONE writer
 * and up to 64 readers that come and go. Give each writing thread a segment
 * of its own in one directory; readers open the directory as a set.
 *
 * Functions that return int return 0 (or 1, where it says so) if they did it
 * and one of the negative WEIR_RING_E… codes if not. weir_ring_strerror()
 * names the code, weir_ring_last_error() says what exactly went wrong in the
 * last failed call of this thread.
 *
 * A writer, reader or worker may move between threads, but only one thread
 * may use it at a time. A set may be used by several. None survives fork() in
 * both processes: close it in one.
 *
 * No function unwinds, calls exit() or writes to a standard stream. Opening a
 * segment that could be truncated by others installs a SIGBUS handler, see
 * weir_ring_set_sigbus_guard().
 *
 * Link with `pkg-config --cflags --libs weir_ring`.
 */
#ifndef WEIR_RING_H
#define WEIR_RING_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors ----------------------------------------------------------- */

enum weir_ring_error {
	/* Of writing: the record was dropped and counted. */
	WEIR_RING_EFULL = -1,      /* a reader is too slow (drop-newest) */
	WEIR_RING_ETOOLONG = -2,   /* longer than weir_ring_writer_max_record() */
	WEIR_RING_EGONE = -3,      /* somebody cut the file short */
	/* Of the rest. */
	WEIR_RING_EINVALID = -4,   /* an argument that cannot be */
	WEIR_RING_ENOTFOUND = -5,  /* nothing under this name */
	WEIR_RING_ENOTARING = -6,  /* a file, but no segment */
	WEIR_RING_EVERSION = -7,   /* another layout version */
	WEIR_RING_EGEOMETRY = -8,  /* exists with another size or policy */
	WEIR_RING_ETRUNCATED = -9, /* file shorter or longer than it says */
	WEIR_RING_ECORRUPT = -10,  /* not what a correct writer writes */
	WEIR_RING_EOWNER = -11,    /* belongs to somebody not allowed */
	WEIR_RING_EWRITER = -12,   /* has a writer already */
	WEIR_RING_ENOSLOT = -13,   /* 64 readers are attached */
	WEIR_RING_EREADER = -14,   /* a living reader has this resume name */
	WEIR_RING_ENOSPACE = -15,  /* no memory, or file system full */
	WEIR_RING_EPANIC = -16,    /* a bug in this library */
	WEIR_RING_ESYSTEM = -17    /* the system refused */
};

/* Static text; never NULL. */
const char *weir_ring_strerror(int code);

/* The message of this thread's last failure; valid until its next. */
const char *weir_ring_last_error(void);

/* ---- Writing ---------------------------------------------------------- */

typedef struct weir_ring_writer weir_ring_writer;

enum weir_ring_policy {
	/* When full, drop and count the new record. */
	WEIR_RING_DROP_NEWEST = 1,
	/* When full, the oldest go, read or not; readers count what they lost. */
	WEIR_RING_OVERWRITE_OLDEST = 2
};

enum weir_ring_flags {
	/* Replace a segment that does not fit instead of failing. */
	WEIR_RING_REPLACE = 1,
	/* Do not try huge pages for a memfd. */
	WEIR_RING_NO_HUGE_PAGES = 2
};

struct weir_ring_options {
	uint64_t size;        /* bytes of data, a power of two >= 4096 */
	uint32_t policy;      /* enum weir_ring_policy */
	uint32_t mode;        /* of the file; readers need write permission too */
	int64_t uid, gid;     /* of the file; -1 leaves ours */
	uint32_t clock_every; /* 0: time of the last timer tick, asked for at
	                       * each call (some 5 ns); n: asked for after n
	                       * records and by weir_ring_refresh_time() */
	uint32_t flags;       /* enum weir_ring_flags */
};

/* 1 MiB, drop-newest, mode 0600. */
void weir_ring_options_init(struct weir_ring_options *options);

/* Creates the segment `path` (and its directory), or goes on where its last
 * writer stopped. Options may be NULL. */
int weir_ring_writer_create(weir_ring_writer **out, const char *path,
                            const struct weir_ring_options *options);

/* A segment without a name, its length sealed. */
int weir_ring_writer_memfd(weir_ring_writer **out,
                           const struct weir_ring_options *options);

/* Takes over the segment in an open file, which stays the caller's. */
int weir_ring_writer_from_fd(weir_ring_writer **out, int fd,
                             uint32_t clock_every);

/* Writes a record. Never waits. 0, or EFULL, ETOOLONG, EGONE. */
int weir_ring_write(weir_ring_writer *writer, const void *payload,
                    size_t length);

/* The same with a time of the caller's, nanoseconds since 1970. */
int weir_ring_write_at(weir_ring_writer *writer, uint64_t time,
                       const void *payload, size_t length);

/* The same, waiting for slow readers up to `timeout` milliseconds. */
int weir_ring_write_patiently(weir_ring_writer *writer, uint64_t time,
                              const void *payload, size_t length, int timeout);

/* Writes `count` records - one each, not one in pieces - with one time and
 * one publication. How many were stored; the rest is dropped and counted. */
int64_t weir_ring_writev(weir_ring_writer *writer, const struct iovec *records,
                         size_t count);

/* Asks for the time now, if clock_every is not 0. */
void weir_ring_refresh_time(weir_ring_writer *writer);

/* Records dropped since the segment was created. */
uint64_t weir_ring_writer_dropped(const weir_ring_writer *writer);

/* The longest payload. */
size_t weir_ring_writer_max_record(const weir_ring_writer *writer);

/* The segment's file, to hand to readers; stays the writer's. */
int weir_ring_writer_fd(const weir_ring_writer *writer);

/* Ends the stream; the records stay. NULL is allowed. */
void weir_ring_writer_close(weir_ring_writer *writer);

/* ---- Reading one segment ---------------------------------------------- */

typedef struct weir_ring_reader weir_ring_reader;

enum weir_ring_start {
	WEIR_RING_OLDEST = 0, /* with the oldest record still there */
	WEIR_RING_NEWEST = 1, /* with the next record */
	WEIR_RING_RESUME = 2  /* where the last reader named `resume` stopped */
};

enum weir_ring_owner {
	WEIR_RING_TRUSTED = 0, /* segments of ours and root's */
	WEIR_RING_USER = 1,    /* those, and `uid`'s */
	WEIR_RING_ANYONE = 2
};

struct weir_ring_reader_options {
	uint32_t start;  /* enum weir_ring_start */
	uint32_t owner;  /* enum weir_ring_owner */
	uint64_t resume; /* any number but 0 */
	uint64_t uid;
	uint64_t batch;  /* bytes copied at a time; 0: 16 KiB */
};

/* A record, in the reader's own memory. */
struct weir_ring_record {
	const void *payload;
	size_t length;
	uint64_t time; /* the writer's, nanoseconds since 1970; unchecked */
	uint64_t seq;  /* its number; a dropped record takes one as well */
	uint64_t lost; /* records missing before this one */
};

/* From the oldest record on, trusted owners. */
void weir_ring_reader_options_init(struct weir_ring_reader_options *options);

/* Attaches to a segment. Options may be NULL. */
int weir_ring_reader_open(weir_ring_reader **out, const char *path,
                          const struct weir_ring_reader_options *options);

/* The same for an open file, which stays the caller's. */
int weir_ring_reader_from_fd(weir_ring_reader **out, int fd,
                             const struct weir_ring_reader_options *options);

/* The next record: 1, 0 if there is none now, or an error, which says that
 * the segment is bad and is repeated for ever. The payload stays valid until
 * the next call for this reader. */
int weir_ring_next(weir_ring_reader *reader, struct weir_ring_record *record);

/* The same, copied to `buffer`; of a longer payload the first `size` bytes,
 * while record->length is that of the whole. */
int weir_ring_read(weir_ring_reader *reader, void *buffer, size_t size,
                   struct weir_ring_record *record);

/* Up to `count` records at once: how many, 0, or an error. The payloads stay
 * valid until the next call for this reader. */
int64_t weir_ring_readv(weir_ring_reader *reader,
                        struct weir_ring_record *records, size_t count);

/* Sleeps until there is a record, at most `timeout` milliseconds; for ever if
 * that is negative. 1 if there is one. May return 0 early. */
int weir_ring_sleep(weir_ring_reader *reader, int timeout);

/* Says that all records taken so far have been handled; happens by itself
 * every eighth of the ring and when there is nothing to read. */
void weir_ring_release(weir_ring_reader *reader);

/* Records lost so far, exactly. */
uint64_t weir_ring_reader_lost(const weir_ring_reader *reader);

/* 1 if a writer is attached and alive. */
int weir_ring_reader_has_writer(const weir_ring_reader *reader);

/* Frees the slot. NULL is allowed. */
void weir_ring_reader_close(weir_ring_reader *reader);

/* ---- Reading all segments of a directory ------------------------------ */

typedef struct weir_ring_set weir_ring_set;
typedef struct weir_ring_worker weir_ring_worker;

struct weir_ring_statistics {
	uint64_t segments; /* being read */
	uint64_t bad;      /* found bad while read, given up */
	uint64_t refused;  /* files that are no segments, or a stranger's */
	uint64_t lost;     /* records, over all segments */
};

/* Opens every segment in `directory`, now and later. */
int weir_ring_set_open(weir_ring_set **out, const char *directory,
                       const struct weir_ring_reader_options *options);
int weir_ring_set_statistics(const weir_ring_set *set,
                             struct weir_ring_statistics *out);
/* Workers may go on; the segments are let go of with the last of them. */
void weir_ring_set_close(weir_ring_set *set);

/* One thread's part: segments `lower` <= number < `upper` (SIZE_MAX: all
 * further ones), in the order they were found. With `steal`, others' as well
 * while there is nothing in its own. */
int weir_ring_worker_create(weir_ring_worker **out, const weir_ring_set *set,
                            size_t lower, size_t upper, int steal);

/* Called for a record of segment number `segment`; the record is valid until
 * it returns. Must not throw, nor use the worker. */
typedef void (*weir_ring_each)(void *context, size_t segment,
                               const struct weir_ring_record *record);

/* Hands over the next batch, round robin over the segments: how many records,
 * 0 if there are none now. `stolen` (may be NULL) says whether they were
 * another worker's. */
int64_t weir_ring_worker_turn(weir_ring_worker *worker, weir_ring_each each,
                              void *context, int *stolen);
int weir_ring_worker_sleep(weir_ring_worker *worker, int timeout);
void weir_ring_worker_close(weir_ring_worker *worker);

/* ---- Process-wide ----------------------------------------------------- */

/* A file that is not sealed can be truncated by whoever may write to it, and
 * touching its mapping is SIGBUS then. Unless this is called with 0 before
 * the first segment is opened, a handler turns that into EGONE, ETRUNCATED
 * or ECORRUPT, and passes every other SIGBUS on to the handler before it. */
void weir_ring_set_sigbus_guard(int enabled);

#ifdef __cplusplus
}
#endif

#endif
