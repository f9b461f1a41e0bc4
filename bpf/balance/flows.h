/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Flows that are remembered, so that they stay with their real when the pool changes,
 * and the fragments of packets whose first one was seen. Of the instance: on whichever
 * hook a packet comes, and whoever is loaded anew, they are known. User space reads it to
 * count the flows of each real (crates/bpf/src/balance/loads.rs), and marks those that
 * are silent (FLOW_SILENT).
 *
 * A flow is known by a keyed hash of 64 bits and stands in one of two buckets of a cache
 * line each, in the second only where the first was full. Which ones says the key, so
 * nobody can choose whom a new flow displaces: one that has had a single packet before
 * one with several, and of each kind the one used longest ago. Of those with several each
 * window with packets, up to FLOW_LASTED_MOST, lets a silence count half: a flood of two
 * packets a flow displaces itself, and not flows that have lasted and are silent. A flow
 * that shares its hash with another, of 2^64, goes where that goes.
 *
 * Two CPUs on which a flow begins at once choose the same place, unless a third flow
 * changes the bucket between them. Where a flow has two places for that, the first is the
 * one that is read and written, and the other one is forgotten in time. */
#ifndef WEIR_BALANCE_FLOWS_H
#define WEIR_BALANCE_FLOWS_H

#include "balance/packet.h"
#include "lib/hash.h"

/* `state` of a flow, beside what abi/balance.h has. */
#define FLOW_SAME	 0x40000ULL /* never: above those of the lower bits */
#define FLOW_LASTED	 19 /* windows with packets beside the first: three bits */
#define FLOW_LASTED_MOST 5ULL
#define FLOW_SEALED	 (~0ULL << FLOW_REAL_SHIFT)

/* A flow with a packet in so many windows may well live: displacing it is counted. */
#define FLOW_LIVELY 64

/* In balance_worth_least() the bits of `state` are above a silence, which is in parts of
 * a window, with one window more. */
#define WORTH_PARTS 7
#define WORTH_SHIFT (WORTH_PARTS + 1)
_Static_assert(FLOW_USED + 1 <= FLOW_CONFIRMED << WORTH_SHIFT >> WORTH_PARTS, "bits");

/* A flow in its bucket. Halves that two CPUs write at once are no flow: `sealed` is the
 * hash of the flow, made odd, xor the sealed bits of `state`. All zero: no flow. */
struct balance_flow {
	__u64 sealed;
	__u64 state;
};

struct balance_bucket {
	struct balance_flow flows[BALANCE_BUCKET];
};

/* Memory that can be mapped begins on a page, and a bucket on a cache line. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, BALANCE_BUCKETS); /* or another power of two: cfg.flow_mask */
	__type(key, __u32);
	__type(value, struct balance_bucket);
} balance_flows SEC(".maps");

/* The flows of each real, for all CPUs, where they are counted (turns.h). User space
 * corrects it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, BALANCE_REALS);
	__type(key, __u32);
	__type(value, struct balance_load);
} balance_loads SEC(".maps");

/* Where a packet's first fragment went. */
struct balance_fragment {
	__u64 id;
	__u32 real;
	__u32 service;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, BALANCE_FRAGMENTS);
	__type(key, struct balance_flow_key);
	__type(value, struct balance_fragment);
} balance_fragments SEC(".maps");

/* How many flows were remembered lately. */
struct balance_quota {
	__u64 window; /* jiffies >> EVENT_WINDOW_SHIFT */
	__u64 flows;  /* in it */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct balance_quota);
} balance_quota SEC(".maps");

/* May one more flow be remembered now? `takes`: it is. */
static __always_inline int balance_may_remember(__u64 window, int takes)
{
	__u32 zero = 0;
	struct balance_quota *quota = bpf_map_lookup_elem(&balance_quota, &zero);

	if (!quota)
		return 0;
	if (quota->window != window) {
		quota->window = window;
		quota->flows = 0;
	}
	if (quota->flows >> cfg.limit_shift > cfg.flow_mask >> BALANCE_NEW_FLOWS_SHIFT)
		return 0;
	quota->flows += takes;
	return 1;
}

static __always_inline __u64 balance_mix_keyed(__u64 hash, __u64 value, __u64 seed)
{
	hash = (hash ^ value) * (seed | 1);
	return hash ^ hash >> 32;
}

/* By the seed of the instance, which nobody else knows. Of IPv4 two words are 0. */
static __always_inline __u64 balance_hash(const struct balance_flow_key *key)
{
	__u64 hash = cfg.lasting_seed[0], one = cfg.lasting_seed[1],
	      two = cfg.lasting_seed[2];

	hash = balance_mix_keyed(hash, key->source[1], one);
	hash = balance_mix_keyed(hash, key->dest[1], two);
	hash = balance_mix_keyed(hash, (__u64)key->protocol << 32 | key->ports, one);
	if (key->source[0] | key->dest[0]) {
		hash = balance_mix_keyed(hash, key->source[0], two);
		hash = balance_mix_keyed(hash, key->dest[0], one);
	}
	return hash * (two | 1) | 1;
}

static __always_inline struct balance_bucket *balance_bucket(__u64 hash, int second)
{
	__u32 number = hash >> 40;

	if (second)
		number ^= (__u32)(hash >> 8) | 1;
	number &= cfg.flow_mask;
	return bpf_map_lookup_elem(&balance_flows, &number);
}

/* A number and no pointer, here and below: wherever it stands, the verifier goes on with
 * one path. */
static __always_inline __u64 balance_find_in(const struct balance_bucket *bucket,
					     __u64 hash)
{
	int i;

#pragma unroll
	for (i = 0; i < BALANCE_BUCKET; i++) {
		__u64 state = bucket->flows[i].state;

		if ((bucket->flows[i].sealed ^ (state & FLOW_SEALED)) == hash)
			return state;
	}
	return 0;
}

/* `state` of a flow; 0: none is remembered. */
static __always_inline __u64 balance_find(__u64 hash)
{
	struct balance_bucket *bucket = balance_bucket(hash, 0);
	__u64 state = bucket ? balance_find_in(bucket, hash) : 0;

	if (likely(state))
		return state;
	bucket = balance_bucket(hash, 1);
	return bucket ? balance_find_in(bucket, hash) : 0;
}

/* Windows since the flow with this `state` had a packet. */
static __always_inline __u64 balance_silence(__u64 state, __u64 window)
{
	return (window - state) & FLOW_USED;
}

static __always_inline __u64 balance_lasted(__u64 state)
{
	return state >> FLOW_LASTED & 7;
}

/* How gladly what stands somewhere is forgotten for a flow: nothing more than a flow, one
 * that has had a single packet more than one that is confirmed, and of those the one that
 * was silent for longest, beside how long it has lasted. Most gladly the flow itself,
 * however it stands there. Without a branch: each would be a path for the verifier. */
static __always_inline __u64 balance_worth_least(const struct balance_flow *flow,
						 __u64 hash, __u64 window)
{
	__u64 state = flow->state;
	__u64 differs = flow->sealed ^ (state & FLOW_SEALED) ^ hash;
	__u64 silence = balance_silence(state, window) + 1, same;

	differs |= -differs;
	asm volatile("" : "+r"(differs));
	same = ~differs >> 63;
	return ((silence << WORTH_PARTS >> balance_lasted(state) |
		 (~state & (FLOW_CONFIRMED | FLOW_THERE)) << WORTH_SHIFT) &
		(same - 1)) |
	       same * FLOW_SAME << WORTH_SHIFT;
}

/* Where a flow is to stand, of a bucket. `best`: the answer for the bucket before; the
 * number of the place is in its lower bits. */
static __always_inline __u64 balance_place_of(const struct balance_bucket *bucket,
					      __u64 hash, __u64 window, __u32 first,
					      __u64 best)
{
	int i;

#pragma unroll
	for (i = 0; i < BALANCE_BUCKET; i++) {
		__u64 here = balance_worth_least(&bucket->flows[i], hash, window) << 8 |
			     (0xff - first - i);
		__s64 lacks = best - here, less = lacks >> 63;

		/* All ones, or 0: of what it knows to be a sign clang makes a branch, and
		 * keeps all that is compared on the stack until then. */
		barrier_var(less);
		best -= lacks & less;
	}
	return best;
}

/* What balance_remember() says of a flow that was displaced and may live. */
#define REMEMBER_DISPLACED 2

/* Writes what is remembered of a flow, where it stands, or in the place of another if
 * there is no room. `more`: so many flows of its real are counted more. Global, so that
 * the verifier checks it once.
 *
 * `sealed` first: a CPU that looks for a place meanwhile finds nothing else there, or
 * what was there, of the same worth. */
__noinline int balance_remember(__u64 hash, __u64 state, int more)
{
	__u64 window = state & FLOW_USED, place, old;
	struct balance_bucket *first = balance_bucket(hash, 0);
	struct balance_bucket *second = balance_bucket(hash, 1);
	__u32 real = state >> FLOW_REAL_SHIFT & 0xffff;
	struct balance_flow *flow;
	struct balance_load *load;
	int displaced;

	if (!first || !second)
		return 0;
	place = balance_place_of(first, hash, window, 0, 0);
	place = 0xff - balance_place_of(second, hash, window, BALANCE_BUCKET, place);
	flow = place & BALANCE_BUCKET ? second->flows : first->flows;
	flow += place & (BALANCE_BUCKET - 1);
	old = flow->state;
	displaced = old & FLOW_CONFIRMED && balance_silence(old, window) < FLOW_LIVELY &&
		    (flow->sealed ^ (old & FLOW_SEALED)) != hash;
	*(volatile __u64 *)&flow->sealed = hash ^ (state & FLOW_SEALED);
	*(volatile __u64 *)&flow->state = state;
	if (more) {
		load = bpf_map_lookup_elem(&balance_loads, &real);
		if (load)
			__sync_fetch_and_add(&load->flows, (__s64)more);
	}
	return displaced ? REMEMBER_DISPLACED : 1;
}

/* `state` of a flow that begins, of TCP or UDP, which one bit tells apart. */
static __always_inline __u64 balance_state(__u32 real, __u64 id, __u64 window,
					   __u64 protocol)
{
	const __u64 of_udp = IPPROTO_UDP & ~IPPROTO_TCP & 0x10;

	return (__u64)real << FLOW_REAL_SHIFT | id << FLOW_ID_SHIFT | FLOW_THERE |
	       (window & FLOW_USED) | (protocol & of_udp) * (FLOW_UDP / of_udp);
}

/* A packet of a flow that is known came; `ended`: FLOW_ENDED, or 0. Written once a
 * window, for other CPUs read the line, too. */
static __always_inline void balance_touch(__u64 hash, __u64 state, __u64 window,
					  __u64 ended)
{
	__u64 next = (state & ~(FLOW_USED | FLOW_SILENT)) | FLOW_CONFIRMED |
		     (window & FLOW_USED) | ended;
	int was_counted = !(state & (FLOW_ENDED | FLOW_SILENT));

	if (likely(state == next))
		return;
	if ((state ^ next) & FLOW_USED && balance_lasted(state) < FLOW_LASTED_MOST)
		next += 1ULL << FLOW_LASTED;
	balance_remember(hash, next, !(next & FLOW_ENDED) - was_counted);
}

#endif
