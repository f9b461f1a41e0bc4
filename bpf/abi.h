/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What the kernel side and user space share: table entries, counters, events.
 * Rust takes these types from the skeleton; nobody writes them a second time.
 * A change here is a new WEIR_ABI: pinned tables of another number are
 * refused, never reinterpreted. */
#ifndef WEIR_ABI_H
#define WEIR_ABI_H

#define WEIR_ABI 3

/* Exits of the packet path: up to R_ESSENTIAL and R_REPLY they pass, from
 * R_OBSERVED on they are told as events, from R_BANNED_ALL on they drop. crates/core/src/reason.rs has the same numbers
 * (asserted by crates/kernel). */
enum reason {
	R_PASS,
	R_NOT_IP,
	R_MALFORMED,
	R_TOO_MANY_TAGS,
	R_ALLOWED,
	R_OTHER_PORT,
	R_ESSENTIAL,
	R_REPLY,
	R_OBSERVED,
	R_BANNED_ALL,
	R_BANNED_SCOPE,
	R_LISTED,
	R_FENCED,
	R_LISTED_OUT,
	R_FENCED_OUT,
	R_DECOY,
	R_PROVEN,
	R_MAX,
};

/* The second word of an entry is its publication: {expiry in jiffies: 48,
 * policy: 16}. 0 = not published, or lifted. An expiry of 0 is always over,
 * so BAN_DEAD (set by maintenance on a slot whose claimer never published)
 * matches nothing either. */
#define BAN_POLICY_BITS 16
#define BAN_POLICY_MASK 0xffffULL
#define BAN_NEVER	0xffffffffffffULL /* expiry of a ban without end */
#define BAN_DEAD	1ULL
/* Set in a policy number: the ban covers some ports only, see `policies`. */
#define POLICY_SCOPED 0x8000

/* IPv4 hosts and networks, and IPv6 /64. The key is claimed by compare-exchange
 * from EMPTY or TOMB. A slot never becomes EMPTY again within a generation:
 * "no EMPTY in both buckets" is what sends a reader to the overflow area.
 *   IPv4: address in host order | length << 32
 *   IPv6: the upper 64 bits in host order; ::/24 is not bannable, so the two
 *   never meet, nor EMPTY and TOMB. */
#define KEY_EMPTY 0ULL
#define KEY_TOMB  1ULL
struct ban64 {
	__u64 key;
	__u64 word;
};
struct bucket64 {
	struct ban64 slot[4];
};

/* IPv6 hosts. Claimed by compare-exchange of `claim`; EMPTY and TOMB as above. */
#define CLAIM_TAKEN 2ULL
struct ban128 {
	__u64 word;
	__u64 hi;
	__u64 lo;
	__u64 claim;
};
struct bucket128 {
	struct ban128 slot[2];
};

/* 4096 bytes. Both buckets of a key are in one page. */
#define BUCKETS_PER_PAGE 64

/* Overflow area behind the buckets: a full pair continues at the bucket that
 * the hash names there, and at most this many from it on. */
#define OVERFLOW_PROBES 4

/* What a policy number means. Number 0 is not used. */
#define MAX_POLICIES 4096
#define MAX_RANGES   15
struct port_range {
	__u8 protocol; /* 0 = any */
	__u8 pad;
	__u16 low;
	__u16 high;
};
struct policy {
	__u16 ranges; /* 0 = all ports */
	__u16 pad;
	struct port_range range[MAX_RANGES];
	char producer[66]; /* text, NUL-padded; user space's, not read here */
};

/* Per CPU and reason. */
struct counter {
	__u64 packets;
	__u64 bytes;
	__u64 event_window; /* jiffies >> EVENT_WINDOW_SHIFT of the last event */
	__u32 event_count;  /* events in that window */
	__u32 event_lost;   /* events not sent: rate limit or full ring buffer */
};

/* Events per reason, CPU and window of 2^8 jiffies (about a second). */
#define EVENT_WINDOW_SHIFT 8
#define EVENT_LIMIT	   64
#define EVENT_WAKE_BYTES   (64 * 1024)

struct event {
	__u64 at_ns; /* CLOCK_BOOTTIME */
	__u64 jiffies;
	__u8 source[16]; /* IPv4 as ::ffff:a.b.c.d */
	__u32 ifindex;
	__u32 reason;
	__u16 port;
	__u8 protocol;
	__u8 pad[5];
};

/* Words that user space changes while the program runs. */
struct control {
	__u32 bloom_base; /* first word of the bloom copy that readers use */
	__u32 observe;	  /* 1: count what would be dropped, and pass it */
};

/* What a generation was built with, kept beside its pins. */
struct meta {
	__u32 abi;
	__u32 pad;
	__u64 seed[3];
	__u64 build; /* hash of the BPF object */
	__u32 buckets64;
	__u32 overflow64;
	__u32 buckets128;
	__u32 overflow128;
	__u32 bloom_words; /* of one copy */
	__u32 v4_length;
	__u64 generation;
	__u8 boot_id[40];
	__u64 suspended_ns; /* CLOCK_BOOTTIME - CLOCK_MONOTONIC that the expiries allow
			       for */
};

/* Answer of the clock program. */
struct clock_sample {
	__u64 jiffies;
	__u64 mono_ns;
};

_Static_assert(sizeof(struct ban64) == 16 && sizeof(struct bucket64) == 64, "abi");
_Static_assert(sizeof(struct ban128) == 32 && sizeof(struct bucket128) == 64, "abi");
_Static_assert(sizeof(struct policy) == 160 && sizeof(struct counter) == 32, "abi");
_Static_assert(sizeof(struct event) == 48 && sizeof(struct meta) == 120, "abi");

#endif
