/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Is this source banned? Bloom filter, then the table; no helper call on
 * either (each costs tens of nanoseconds here). Tables are mmapped arrays that
 * user space writes by plain stores; a reader takes no lock and may run at any
 * moment of an insertion, see abi.h and crates/bpf/src/table.rs. */
#ifndef WEIR_BAN_H
#define WEIR_BAN_H

#include "lib/cfg.h"
#include "lib/hash.h"
#include "lib/verifier.h"

/* Sized before load: whole pages of buckets, then the overflow area. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bucket64);
} bans64 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bucket128);
} bans128 SEC(".maps");

/* Two copies behind one another; control.bloom_base names the one in use. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} bloom SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_POLICIES);
	__type(key, __u32);
	__type(value, struct policy);
} policies SEC(".maps");

/* How many entries name a source and are not over: those that cover all ports
 * from bit 0 on, those that cover some from bit 32 on, and how many of either
 * reject from bit 16 on. Functions here are global ones on purpose: the verifier
 * checks each once, not along every path of its callers; only a bloom hit pays
 * for the call. */
#define FOUND_ALL(found)       ((__u16)(found))
#define FOUND_REJECTING(found) ((__u16)((found) >> 16))
#define FOUND_SCOPED(found)    ((found) >> 32)
#define FOUND_ONE_ALL	       1ULL
#define FOUND_ONE_REJECTING    (1ULL << 16)
#define FOUND_ONE_SCOPED       (1ULL << 32)

/* A destination as a scalar: FLOW_SET | protocol << 16 | port. 0: count every
 * scoped entry, whatever it covers. */
#define FLOW_SET 0x80000000U
/* Entries that reject only (reject.h). */
#define FLOW_REJECT 0x40000000U

/* One word holds all bits of a key: one cache miss at most. Three bits at eight
 * keys a word: 3 % false hits. An IPv6 host sets the other three of its
 * /64's word, so one load tells which table is worth a look. */
static __always_inline __u64 bloom_word(__u64 hash)
{
	__u32 index = control.bloom_base + ((hash >> 40) & cfg.bloom_mask);
	__u64 *word = bpf_map_lookup_elem(&bloom, &index);

	return word ? *word : 0;
}

static __always_inline int bloom_has(__u64 word, __u64 hash)
{
	__u64 bits = (1ULL << (hash & 63)) | (1ULL << ((hash >> 6) & 63)) |
		     (1ULL << ((hash >> 12) & 63));

	return (word & bits) == bits;
}
#define bloom_has_short(word, hash) bloom_has(word, hash)
#define bloom_has_long(word, hash)  bloom_has(word, (hash) >> 18)

/* A key's two buckets lie in one page: one TLB miss, not two. The distance is
 * odd, so they are never the same. */
static __always_inline __u32 first_bucket(__u64 hash, __u32 pages)
{
	__u64 page = ((hash >> 12 & 0xffffffff) * pages) >> 32;

	return page * BUCKETS_PER_PAGE + (hash >> 44) % BUCKETS_PER_PAGE;
}

static __always_inline __u32 beside_bucket(__u32 first, __u64 hash)
{
	return first ^ ((hash >> 50) % BUCKETS_PER_PAGE | 1);
}

__noinline int scope_covers(__u32 number, __u32 flow)
{
	__u32 index = number & POLICY_NUMBER;
	struct policy *policy = bpf_map_lookup_elem(&policies, &index);
	__u8 protocol = flow >> 16;
	__u16 port = flow;
	int i;

	if (!policy)
		return 0;
	for (i = 0; i < MAX_RANGES; i++) {
		if (i >= policy->ranges)
			return 0;
		if (policy->range[i].protocol && policy->range[i].protocol != protocol)
			continue;
		if (port >= policy->range[i].low && port <= policy->range[i].high)
			return 1;
	}
	return 0;
}

static __always_inline __u64 weigh(__u64 word, __u64 now, __u32 flow)
{
	__u32 number = word & BAN_POLICY_MASK;
	__u64 one = cfg.reject && number & POLICY_REJECT ? FOUND_ONE_REJECTING : 0;

	if ((word >> BAN_POLICY_BITS) <= now)
		return 0;
	if (flow & FLOW_REJECT && !(number & POLICY_REJECT))
		return 0;
	if (!(number & POLICY_SCOPED))
		return one + FOUND_ONE_ALL;
	if (flow & FLOW_SET && !scope_covers(number, flow))
		return 0;
	return one + FOUND_ONE_SCOPED;
}

/* A bucket without an EMPTY slot: what did not fit went on. */
#define BUCKET_FULL (1ULL << 63)

__noinline __u64 scan64(__u32 index, __u64 key, __u64 now, __u32 flow)
{
	struct bucket64 *bucket = bpf_map_lookup_elem(&bans64, &index);
	__u64 found = BUCKET_FULL;
	int i;

	if (!bucket)
		return 0;
#pragma unroll
	for (i = 0; i < 4; i++) {
		__u64 k = *(volatile __u64 *)&bucket->slot[i].key;

		if (k == key)
			found += weigh(*(volatile __u64 *)&bucket->slot[i].word, now,
				       flow);
		if (k == KEY_EMPTY)
			found &= ~BUCKET_FULL;
	}
	return found;
}

__noinline __u64 overflow64(__u64 key, __u64 hash, __u64 now, __u32 flow)
{
	__u64 found = 0, more;
	int i;

	for (i = 0; i < OVERFLOW_PROBES; i++) {
		more = scan64(cfg.pages64 * BUCKETS_PER_PAGE +
				      (((hash >> 20) + i) & cfg.over64),
			      key, now, flow);
		found += more & ~BUCKET_FULL;
		if (!(more & BUCKET_FULL))
			break;
	}
	return found;
}

__noinline __u64 find64(__u64 key, __u64 hash, __u64 now, __u32 flow)
{
	__u32 first = first_bucket(hash, cfg.pages64);
	__u64 a = scan64(first, key, now, flow);
	__u64 b = scan64(beside_bucket(first, hash), key, now, flow);

	if (a & b & BUCKET_FULL)
		a += overflow64(key, hash, now, flow);
	return (a & ~BUCKET_FULL) + (b & ~BUCKET_FULL);
}

__noinline __u64 scan128(__u32 index, __u64 hi, __u64 lo, __u64 now, __u32 flow)
{
	struct bucket128 *bucket = bpf_map_lookup_elem(&bans128, &index);
	__u64 found = BUCKET_FULL;
	int i;

	if (!bucket)
		return 0;
#pragma unroll
	for (i = 0; i < 2; i++) {
		struct ban128 *slot = &bucket->slot[i];
		/* Published last, so read first. */
		__u64 word = *(volatile __u64 *)&slot->word;

		if (*(volatile __u64 *)&slot->hi == hi &&
		    *(volatile __u64 *)&slot->lo == lo)
			found += weigh(word, now, flow);
		if (*(volatile __u64 *)&slot->claim == KEY_EMPTY)
			found &= ~BUCKET_FULL;
	}
	return found;
}

__noinline __u64 find128(__u64 hi, __u64 lo, __u64 now, __u32 flow)
{
	__u64 hash = hash128(hi, lo), found, more;
	__u32 first = first_bucket(hash, cfg.pages128);
	int i;

	found = scan128(first, hi, lo, now, flow);
	more = scan128(beside_bucket(first, hash), hi, lo, now, flow);
	if (!(found & more & BUCKET_FULL))
		return (found & ~BUCKET_FULL) + (more & ~BUCKET_FULL);
	found = (found & ~BUCKET_FULL) + (more & ~BUCKET_FULL);
	for (i = 0; i < OVERFLOW_PROBES; i++) {
		more = scan128(cfg.pages128 * BUCKETS_PER_PAGE +
				       (((hash >> 20) + i) & cfg.over128),
			       hi, lo, now, flow);
		found += more & ~BUCKET_FULL;
		if (!(more & BUCKET_FULL))
			break;
	}
	return found;
}

/* The functions above find everything; those below answer the usual case, at
 * most one entry and no overflow, without a call and without a branch on what
 * the buckets hold: their cache misses overlap, nothing is mispredicted, and
 * no return pays for the CPU's return mitigation. */
struct glance {
	__u64 word;    /* of the matching slot, when it is one */
	__u64 matches; /* 0 - their number */
	__u64 full;    /* sign bit: no slot EMPTY */
};

static __always_inline void note(struct glance *g, __u64 same, __u64 word, __u64 claim)
{
	g->word |= word & same;
	g->matches += same;
	g->full &= not_zero(claim);
}

/* What a glance found, as find64 counts it; INCONCLUSIVE when there are several
 * entries or overflow. When it is one entry of some ports, `*policy` is its
 * number, to ask scope_covers about. */
#define INCONCLUSIVE (1ULL << 63)
static __always_inline __u64 weigh_glance(const struct glance *g, __u64 now,
					  __u32 *policy)
{
	__u64 live = flag((now - (g->word >> BAN_POLICY_BITS)) >> 63);
	__u64 scoped = flag(g->word / POLICY_SCOPED) & live;
	__u64 several = flag((not_zero(g->matches) & not_zero(g->matches + 1)) >> 63);
	__u64 all = live ^ scoped;
	__u64 unclear = several | ((g->full >> 63) & ~all);

	if (cfg.reject)
		all |= (flag(g->word / POLICY_REJECT) & live) << 16;
	*policy = g->word & BAN_POLICY_MASK & -(scoped & ~unclear);
	return all | scoped << 32 | unclear << 63;
}

static __always_inline __u64 glance64(__u64 key, __u64 hash, __u64 now, __u32 *policy)
{
	__u32 first = first_bucket(hash, cfg.pages64);
	__u32 second = beside_bucket(first, hash);
	struct bucket64 *a = bpf_map_lookup_elem(&bans64, &first);
	struct bucket64 *b = bpf_map_lookup_elem(&bans64, &second);
	struct glance g = {.full = ~0ULL};
	__u64 found;
	int i;

	if (!a || !b)
		return 0;
#pragma unroll
	for (i = 0; i < 4; i++) {
		__u64 x = *(volatile __u64 *)&a->slot[i].key;
		__u64 y = *(volatile __u64 *)&b->slot[i].key;

		note(&g, is_zero(x ^ key), *(volatile __u64 *)&a->slot[i].word, x);
		note(&g, is_zero(y ^ key), *(volatile __u64 *)&b->slot[i].word, y);
	}
	found = weigh_glance(&g, now, policy);
	return found & INCONCLUSIVE ? find64(key, hash, now, 0) : found;
}

static __always_inline void note128(struct glance *g, struct ban128 *slot, __u64 hi,
				    __u64 lo)
{
	/* Published last, so read first. */
	__u64 word = *(volatile __u64 *)&slot->word;
	__u64 differ = *(volatile __u64 *)&slot->hi ^ hi;

	differ |= *(volatile __u64 *)&slot->lo ^ lo;
	note(g, is_zero(differ), word, *(volatile __u64 *)&slot->claim);
}

static __always_inline __u64 glance128(__u64 hi, __u64 lo, __u64 now, __u32 *policy)
{
	__u64 hash = hash128(hi, lo), found;
	__u32 first = first_bucket(hash, cfg.pages128);
	__u32 second = beside_bucket(first, hash);
	struct bucket128 *a = bpf_map_lookup_elem(&bans128, &first);
	struct bucket128 *b = bpf_map_lookup_elem(&bans128, &second);
	struct glance g = {.full = ~0ULL};

	if (!a || !b)
		return 0;
	note128(&g, &a->slot[0], hi, lo);
	note128(&g, &b->slot[0], hi, lo);
	note128(&g, &a->slot[1], hi, lo);
	note128(&g, &b->slot[1], hi, lo);
	found = weigh_glance(&g, now, policy);
	return found & INCONCLUSIVE ? find128(hi, lo, now, 0) : found;
}

/* Which of a source's scoped entries cover the flow? `policy`: the only one, if
 * a glance found that. */
static __always_inline __u64 again64(__u64 key, __u64 hash, __u64 now, __u32 flow,
				     __u32 policy)
{
	if (policy)
		return scope_covers(policy, flow) ? FOUND_ONE_SCOPED : 0;
	return find64(key, hash, now, flow);
}

static __always_inline __u64 again128(__u64 hi, __u64 lo, __u64 now, __u32 flow,
				      __u32 policy)
{
	if (policy)
		return scope_covers(policy, flow) ? FOUND_ONE_SCOPED : 0;
	return find128(hi, lo, now, flow);
}

#endif
