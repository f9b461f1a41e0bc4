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
#define KEY_EMPTY    0ULL
#define KEY_TOMB     1ULL
#define BUCKET_SLOTS 4
struct ban {
	__u64 key;
	__u64 word;
};
struct bucket {
	struct ban slot[BUCKET_SLOTS];
};

/* IPv6 hosts have buckets of their own, of the same form. Their key is a keyed
 * fingerprint, lo ^ hash(hi), and beside the bucket stands hi: the two together
 * are the address, so a fingerprint that two hosts share bans neither for the
 * other. For each hi there are two hosts whose fingerprint is EMPTY or TOMB: their
 * key is hi, and what stands beside is the fingerprint with HOST_SWAPPED, which no
 * hi is. The upper half is set by compare-exchange from 0 after the key and before
 * the word; maintenance sets it to 0 before the slot is a TOMB. */
#define HOST_SWAPPED 2ULL
struct bucket_upper {
	__u64 slot[BUCKET_SLOTS];
};

/* 4096 bytes. Both buckets of a key are in one page. */
#define BUCKETS_PER_PAGE 64

/* Overflow area behind the buckets: a full pair continues at the bucket that
 * the hash names there, and at most this many from it on. */
#define OVERFLOW_PROBES 4

_Static_assert(sizeof(struct ban) == 16 && sizeof(struct bucket) == 64, "abi");
_Static_assert(sizeof(struct bucket_upper) == 32, "abi");

#endif
