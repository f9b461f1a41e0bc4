/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Entries of the ban table. */
#ifndef WEIR_ABI_BAN_H
#define WEIR_ABI_BAN_H

#include <linux/types.h>

/* The second word of an entry is its publication: {expiry in jiffies: 48,
 * policy: 16}. 0 = not published, or lifted. An expiry of 0 is always over,
 * so BAN_DEAD (set by maintenance on a slot whose claimer never published)
 * matches nothing either. */
#define BAN_POLICY_BITS 16
#define BAN_POLICY_MASK 0xffffULL
#define BAN_NEVER	0xffffffffffffULL /* expiry of a ban without end */
#define BAN_DEAD	1ULL

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

_Static_assert(sizeof(struct ban64) == 16 && sizeof(struct bucket64) == 64, "abi");
_Static_assert(sizeof(struct ban128) == 32 && sizeof(struct bucket128) == 64, "abi");

#endif
