/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The class table: lists and the geofence. */
#ifndef WEIR_ABI_CLASS_H
#define WEIR_ABI_CLASS_H

#include <linux/types.h>

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
	__u32 lists;   /* number of lists */
	__u32 fences;  /* number of rules of the geofence */
	__u32 records; /* first line of the records */
	__u32 lines;   /* number of lines of this copy */
	__u64 seed[2]; /* seeds of class_hash; the second is odd */
	__u32 filter;  /* first line of the exceptions' filter */
	__u32 words;   /* words of the filter, 64 bits each, - 1 */
	__u32 buckets; /* first line of the exceptions' buckets */
	__u32 mask;    /* buckets - 1 */
	__u32 pad[4];
};
/* A few parts of a block that are not as the rest of it: IPv4 /24 and addresses,
 * IPv6 /48, /64 and addresses, by their hash; what is longer decides. An entry
 * is {hash >> 17: 47, taken: 1, class: 16}, in the bucket (a line) that the low
 * bits of the hash name, or, when that is full, in one of the next. The filter's
 * word is that of the /24 or /48, its three bits are the entry's own. */
#define CLASS_HASH_FACTOR 0x9e3779b97f4a7c15ULL
#define EXCEPTION_TAKEN	  0x10000
#define EXCEPTION_CLASS	  0xffff
#define EXCEPTION_PROBES  8
#define EXCEPTION_24	  0x5851f42d4c957f2dULL
#define EXCEPTION_32	  0x14057b7ef767814fULL
#define EXCEPTION_48	  0x2545f4914f6cdd1dULL
#define EXCEPTION_64	  0x9fb21c651e98df25ULL
#define EXCEPTION_128	  0xd6e8feb86659fd93ULL
struct class_bucket {
	__u64 entry[8];
};
/* What a list (number 0 and up) or a rule (CLASS_MAX_LISTS and up) covers. */
#define COVER_IN  1
#define COVER_OUT 2
struct cover {
	__u16 policy; /* policy number with the ports; 0 = all */
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
	__u64 lists;   /* lists with the addresses, a bit each */
	__u16 denied;  /* rules of the geofence that deny them, a bit each */
	__u16 country; /* 1 + index of the country, 0 = unknown */
	__u32 pad;
};
/* Drops per list, then per country as in struct class. */
#define CLASS_COUNTERS (CLASS_MAX_LISTS + 1 + 26 * 26)
struct class_counter {
	__u64 packets;
	__u64 bytes;
};

_Static_assert(sizeof(struct class_line) == 64 && sizeof(struct class_header) == 64,
	       "abi");
_Static_assert(sizeof(struct class_bucket) == 64, "abi");
_Static_assert(sizeof(struct class_node) == 64 && sizeof(struct class) == 16, "abi");
_Static_assert(sizeof(struct cover) == 4, "abi");

#endif
