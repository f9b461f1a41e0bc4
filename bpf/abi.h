/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What the kernel side and user space share: table entries, counters, events.
 * Rust takes these types from the skeleton; nobody writes them a second time.
 * A change here is a new WEIR_ABI: pinned tables of another number are
 * refused, never reinterpreted. */
#ifndef WEIR_ABI_H
#define WEIR_ABI_H

#define WEIR_ABI 7

/* Exits of the packet path: up to R_ESSENTIAL and R_REPLY they pass, from
 * R_BANNED_ALL on they drop; from R_OBSERVED on they are told as events, but
 * those from R_INVALID_SOURCE on are only counted: no source is known of them.
 * crates/core/src/reason.rs has the same numbers (asserted by crates/bpf). */
enum reason {
	R_PASS,
	R_NOT_IP,
	R_MALFORMED,
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
	R_REJECTED,
	R_REJECTED_SILENT,
	R_INVALID_SOURCE,
	R_TOO_MANY_TAGS,
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
/* The ban's packets are answered, see reject.h. */
#define POLICY_REJECT 0x4000
#define POLICY_NUMBER 0x3fff

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

/* Bans of any prefix, in a trie (prefix_bans.h). The words of the prefix itself
 * come first, then those of the prefixes that cover it. */
#define MAX_WIDE   8192
#define WIDE_WORDS 8
struct wide {
	__u32 own;
	__u32 words; /* with those that cover it */
	__u64 word[WIDE_WORDS];
};

/* What a policy number means, without the bits above. Number 0 is not used. */
#define MAX_POLICIES 4096
#define MAX_RANGES   15
enum action {
	ACTION_DROP,
	ACTION_REJECT,
};
struct port_range {
	__u8 protocol; /* 0 = any */
	__u8 pad;
	__u16 low;
	__u16 high;
};
struct policy {
	__u16 ranges; /* 0 = all ports */
	__u16 action; /* enum action */
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
#define PROOF_LIMIT	   4096 /* the same for R_PROVEN: one a cookie that was sent */
#define EVENT_WAKE_BYTES   (64 * 1024)

struct event {
	__u64 at_ns; /* CLOCK_BOOTTIME */
	__u64 jiffies;
	__u8 source[16]; /* IPv4 as ::ffff:a.b.c.d */
	__u32 ifindex;
	__u32 reason;
	__u16 port;
	__u8 protocol;
	__u8 scanner; /* enum scanner, of a SYN to a decoy port */
	__u8 pad[4];
};

/* By its SYN: what sent it. No operating system leaves out all options. */
enum scanner {
	SCANNER_NONE,	 /* nothing that stands out */
	SCANNER_BARE,	 /* no options */
	SCANNER_MASSCAN, /* no options, window 1024 */
	SCANNER_ZMAP,	 /* no options, window 65535 */
	SCANNER_NMAP,	 /* segment size only, window 1024 */
};

/* Per CPU: what decoy ports answered. */
struct decoy_counter {
	__u64 window;  /* jiffies >> EVENT_WINDOW_SHIFT of what follows */
	__u32 answers; /* SYN-ACKs in that window */
	__u32 pad;
	__u64 answered; /* SYN-ACKs */
	__u64 silent;	/* SYNs above the limit, not answered */
};

/* Of all CPUs: cookies that came back wrong. */
struct decoy_guesses {
	__u32 second; /* of CLOCK_BOOTTIME */
	__u32 before; /* `wrong`, its lower half, when that second began */
	__u64 wrong;  /* and those that are looked at just now */
};

/* The class table: which lists and which rules of the geofence are about an
 * address. Two copies of lines behind one another; control.class_base names the
 * first line of the one in use, 0: none yet. Line 0 is never used. A copy:
 *   header, 8 lines: struct class_header, then a cover per list, per rule
 *   top of IPv4, 4096 lines: a reference per upper 16 bits
 *   top of IPv6, 4096 lines: the same
 *   codes of IPv4, 256 lines: two bits per /16
 *   codes of IPv6, 65536 lines: two bits per /32, folded to 24 bits
 *   hint of IPv4, 32768 lines: a bit per /24, see the codes
 *   records, 4 in a line, from header.records on: struct class
 *   nodes and their references
 *   exceptions: their filter, and their buckets
 * A reference is the number of a class, or, with CLASS_NODE, the line of a node
 * that decides by the next 8 bits. All line and word numbers count from the
 * copy's start. Lines and not an array of words: array values are padded to 8
 * bytes, and a node should be one cache line. */
#define CLASS_NODE	  0x80000000U
#define CLASS_COVER_LINES 1 /* behind the header's first line */
#define CLASS_TOP4	  8
#define CLASS_TOP6	  (CLASS_TOP4 + 4096)
#define CLASS_CODE4	  (CLASS_TOP6 + 4096)
#define CLASS_CODE6	  (CLASS_CODE4 + 256)
#define CLASS_HINT4	  (CLASS_CODE6 + 65536)
#define CLASS_BODY	  (CLASS_HINT4 + 32768)
/* Codes of IPv4: what is known of all of a /16. */
#define CODE_NOTHING 0 /* class 0 */
#define CODE_UNIFORM 1 /* one class */
#define CODE_MIXED   2 /* class 0 where the hint is clear */
#define CODE_APART   3 /* the class in the top where the hint is clear */
/* Codes of IPv6, which folding may join: where a class other than 0 may be. */
#define CODE_WALK	  1 /* in what references say */
#define CODE_EXCEPTION	  2 /* among the exceptions, which come first */
#define CLASS_MAX_LISTS	  64
#define CLASS_MAX_FENCES  16
#define CLASS_INLINE_REFS 6
struct class_line {
	__u32 word[16];
};
struct class_header {
	__u32 lists;   /* how many */
	__u32 fences;  /* how many */
	__u32 records; /* their first line */
	__u32 lines;   /* of this copy */
	__u64 seed[2]; /* of class_hash; the second is odd */
	__u32 filter;  /* first line of the exceptions' filter */
	__u32 words;   /* of the filter, 64 bits each, - 1 */
	__u32 buckets; /* first line of their buckets */
	__u32 mask;    /* buckets - 1 */
	__u32 pad[4];
};
/* A few parts of a block that are not as the rest of it: IPv4 /24 and addresses,
 * IPv6 /48, /64 and addresses, by their hash; what is longer decides. An entry
 * is {hash >> 17: 47, taken: 1, class: 16}, in the bucket (a line) that the low
 * bits of the hash name, or, when that is full, in one of the next. The filter's
 * word is that of the /24 or /48, its three bits are the entry's own. */
#define EXCEPTION_TAKEN	 0x10000
#define EXCEPTION_CLASS	 0xffff
#define EXCEPTION_PROBES 8
#define EXCEPTION_24	 0x5851f42d4c957f2dULL
#define EXCEPTION_32	 0x14057b7ef767814fULL
#define EXCEPTION_48	 0x2545f4914f6cdd1dULL
#define EXCEPTION_64	 0x9fb21c651e98df25ULL
#define EXCEPTION_128	 0xd6e8feb86659fd93ULL
struct class_bucket {
	__u64 entry[8];
};
/* What a list (number 0 and up) or a rule (CLASS_MAX_LISTS and up) covers. */
#define COVER_IN  1
#define COVER_OUT 2
struct cover {
	__u16 policy; /* its ports; 0 = all */
	__u16 ways;   /* COVER_IN, COVER_OUT */
};
/* 256 children as runs of equal references: bit n is set where child n differs
 * from the one before (bit 0 always). */
struct class_node {
	__u64 bits[4];
	__u32 refs;		       /* word of the first run's reference */
	__u8 rank[4];		       /* runs in the parts before */
	__u32 here[CLASS_INLINE_REFS]; /* the references, when there are few */
};
struct class
{
	__u64 lists;   /* a bit each */
	__u16 denied;  /* by which rules of the geofence, a bit each */
	__u16 country; /* 1 + its index, 0 = unknown */
	__u32 pad;
};
/* Drops per list, then per country as in struct class. */
#define CLASS_COUNTERS (CLASS_MAX_LISTS + 1 + 26 * 26)
struct class_counter {
	__u64 packets;
	__u64 bytes;
};

/* Flows that began on the other side of the interface, so that their answers
 * are not taken for the beginning of one: {tag: 32, jiffies: 32}, two cells a
 * flow. Lost when both are overwritten by younger flows. */
#define FLOW_CELLS 65536

/* Words that user space changes while the program runs. */
struct control {
	__u32 bloom_base; /* first word of the bloom copy that readers use */
	__u32 observe;	  /* 1: count what would be dropped, and pass it */
	__u32 wide;	  /* bit 0: there are wide bans of IPv4, bit 1: of IPv6 */
	__u32 zero;	  /* always 0, which the verifier does not know */
	__u32 class_base; /* first line of the class table that readers use */
	__u32 pad;
};

/* What a generation was built with, kept beside its pins. */
struct meta {
	__u32 abi;
	__u32 decoy; /* 1: built with decoy ports */
	__u64 seed[3];
	__u64 lasting_seed[3];
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
	__u32 class_lines;  /* of one copy of the class table; 0: no class stage */
	__u32 reject;	    /* 1: built with bans that answer */
};

/* Answer of the clock program. */
struct clock_sample {
	__u64 jiffies;
	__u64 mono_ns;
};

_Static_assert(sizeof(struct ban64) == 16 && sizeof(struct bucket64) == 64, "abi");
_Static_assert(sizeof(struct ban128) == 32 && sizeof(struct bucket128) == 64, "abi");
_Static_assert(sizeof(struct wide) == 72 && sizeof(struct control) == 24, "abi");
_Static_assert(sizeof(struct policy) == 160 && sizeof(struct counter) == 32, "abi");
_Static_assert(sizeof(struct class_line) == 64 && sizeof(struct class_header) == 64,
	       "abi");
_Static_assert(sizeof(struct class_bucket) == 64, "abi");
_Static_assert(sizeof(struct class_node) == 64 && sizeof(struct class) == 16, "abi");
_Static_assert(sizeof(struct cover) == 4, "abi");
_Static_assert(sizeof(struct event) == 48 && sizeof(struct meta) == 152, "abi");
_Static_assert(sizeof(struct decoy_counter) == 32, "abi");
_Static_assert(sizeof(struct decoy_guesses) == 16, "abi");

#endif
