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

/* IPv4 networks and IPv6 /64, and of IPv4 hosts what their own table (below) has no
 * form or room for. The key is claimed by compare-exchange
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

/* IPv4 hosts have a table of one word an entry, eight to a line of the cache. A
 * keyed permutation makes another 32-bit number of the address; its high part is
 * the bucket, so its low bits and the bucket are the address: exact, as the
 * permutation has an inverse. In its second bucket an entry says so. 0 is a free
 * slot: one compare-exchange claims and publishes, another lifts.
 *   tag: 21 | in the second bucket: 1 | used: 1 | policy: 9 | expiry: 32
 * The policy is a number below V4_POLICIES and the two bits above it; the expiry is
 * in jiffies from cfg.started on. What fits neither, or finds both buckets full, is
 * in the table of networks above, with bits of its own in the bloom filter. */
#define V4_SLOTS       8
#define V4_TAG	       0x1fffffU
#define V4_SECOND      0x200000U
#define V4_USED	       0x400000U
#define V4_SAME	       0x7fffffU
#define V4_POLICIES    128
#define V4_REJECT_BIT  7 /* bit of the policy; the one above says that it is scoped */
#define V4_POLICY_AT   23
#define V4_EXPIRY_AT   32
#define V4_NEVER       0xffffffffU
#define V4_MIN_BUCKETS 2048 /* with fewer, 21 bits do not tell the addresses apart */
struct v4_bucket {
	__u64 slot[V4_SLOTS];
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
_Static_assert(sizeof(struct v4_bucket) == 64, "abi");

#endif
