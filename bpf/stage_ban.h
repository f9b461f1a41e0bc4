/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Is this source banned? Bloom filter, then the table; no helper call on
 * either (each costs tens of nanoseconds here). Tables are mmapped arrays that
 * user space writes by plain stores; a reader takes no lock and may run at any
 * moment of an insertion, see abi.h and crates/kernel/src/table.rs. */
#ifndef WEIR_STAGE_BAN_H
#define WEIR_STAGE_BAN_H

/* Sizes are powers of two, set before load. */
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

struct control control;

/* How many entries name a source and are not over: those that cover all ports
 * in the low half, those that cover some in the high half. Functions here are
 * global ones on purpose: the verifier checks each once, not along every path
 * of its callers; only a bloom hit pays for the call. */
#define FOUND_ALL(found)    ((__u32)(found))
#define FOUND_SCOPED(found) ((found) >> 32)
#define FOUND_ONE_ALL	    1ULL
#define FOUND_ONE_SCOPED    (1ULL << 32)

/* A destination as a scalar: FLOW_SET | protocol << 16 | port. 0: count every
 * scoped entry, whatever it covers. */
#define FLOW_SET 0x80000000U

/* Keyed: an attacker chooses addresses, not the seed (random per generation). */
static __always_inline __u64 hash64(__u64 key)
{
	key += cfg.seed[0];
	key ^= key >> 32;
	key *= cfg.seed[1] | 1;
	key ^= key >> 29;
	key *= cfg.seed[2] | 1;
	key ^= key >> 32;
	return key;
}

static __always_inline __u64 hash128(__u64 hi, __u64 lo)
{
	return hash64(hash64(hi) ^ lo);
}

/* One word holds both bits: one cache miss at most. */
static __always_inline int bloom_may_hold(__u64 hash)
{
	__u64 bits = (1ULL << (hash & 63)) | (1ULL << ((hash >> 6) & 63));
	__u32 index = control.bloom_base + ((hash >> 40) & cfg.bloom_mask);
	__u64 *word = bpf_map_lookup_elem(&bloom, &index);

	return word && (*word & bits) == bits;
}

__noinline int scope_covers(__u32 number, __u32 flow)
{
	__u32 index = number & ~POLICY_SCOPED;
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

	if ((word >> BAN_POLICY_BITS) <= now)
		return 0;
	if (!(number & POLICY_SCOPED))
		return FOUND_ONE_ALL;
	return !flow || scope_covers(number, flow) ? FOUND_ONE_SCOPED : 0;
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
		more = scan64(cfg.mask64 + 1 + (((hash >> 20) + i) & cfg.over64), key,
			      now, flow);
		found += more & ~BUCKET_FULL;
		if (!(more & BUCKET_FULL))
			break;
	}
	return found;
}

static __always_inline __u64 find64(__u64 key, __u64 hash, __u64 now, __u32 flow)
{
	__u32 first = (hash >> 12) & cfg.mask64, second = (hash >> 36) & cfg.mask64;
	__u64 a = scan64(first, key, now, flow), b = BUCKET_FULL;

	if (second != first)
		b = scan64(second, key, now, flow);
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
	__u32 first = (hash >> 12) & cfg.mask128, second = (hash >> 36) & cfg.mask128;
	int i;

	found = scan128(first, hi, lo, now, flow);
	more = second != first ? scan128(second, hi, lo, now, flow) : BUCKET_FULL;
	if (!(found & more & BUCKET_FULL))
		return (found & ~BUCKET_FULL) + (more & ~BUCKET_FULL);
	found = (found & ~BUCKET_FULL) + (more & ~BUCKET_FULL);
	for (i = 0; i < OVERFLOW_PROBES; i++) {
		more = scan128(cfg.mask128 + 1 + (((hash >> 20) + i) & cfg.over128), hi,
			       lo, now, flow);
		found += more & ~BUCKET_FULL;
		if (!(more & BUCKET_FULL))
			break;
	}
	return found;
}

#endif
