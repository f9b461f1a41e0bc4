/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Is this source banned? Bloom filter, then the table; no helper call on
 * either (each costs tens of nanoseconds here). Tables are mmapped arrays that
 * user space writes by plain stores; a reader takes no lock and may run at any
 * moment of an insertion, see abi/ban.h and crates/bpf/src/table.rs. */
#ifndef WEIR_BAN_H
#define WEIR_BAN_H

#include "lib/cfg.h"
#include "lib/hash.h"
#include "lib/verifier.h"

/* Sized before load: whole pages of buckets, then their overflow area; the same of
 * IPv6 hosts from cfg.host_base on. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bucket);
} bans SEC(".maps");

/* Beside the buckets of IPv6 hosts. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bucket_upper);
} host_upper SEC(".maps");

/* IPv4 hosts: whole pages of buckets. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, V4_MIN_BUCKETS);
	__type(key, __u32);
	__type(value, struct v4_bucket);
} v4_bans SEC(".maps");

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
/* Entries of all ports only. */
#define FLOW_ALL 0x40000000U

/* One word holds all bits of a key: one cache miss at most. Three bits at eight
 * keys a word: 3 % false hits. An IPv6 host sets the other three of its
 * /64's word, so one load tells which table is worth a look; an IPv4 host sets both
 * threes where it is in the table of networks. */
static __always_inline __u64 bloom_word(__u64 hash)
{
	__u32 index = control.bloom_base + ((hash >> 40) & cfg.bloom_mask);
	__u64 *word = bpf_map_lookup_elem(&bloom, &index);

	/* Each time anew: an IPv4 host's is read before its entries and after. */
	return word ? *(volatile __u64 *)word : 0;
}

static __always_inline int bloom_has(__u64 word, __u64 hash)
{
	__u64 bits = (1ULL << (hash & 63)) | (1ULL << ((hash >> 6) & 63)) |
		     (1ULL << ((hash >> 12) & 63));

	return (word & bits) == bits;
}
/* 0 or 1: may an IPv4 host have entries in the table of networks? */
static __always_inline __u64 bloom_has_both(__u64 word, __u64 hash)
{
	hash >>= 18;
	return (word >> (hash & 63)) & (word >> ((hash >> 6) & 63)) &
	       (word >> ((hash >> 12) & 63)) & 1;
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

static __always_inline __u32 second_bucket(__u32 first, __u64 hash)
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

static __always_inline __u64 match_entry(__u64 word, __u64 now, __u32 flow)
{
	__u32 number = word & BAN_POLICY_MASK;
	__u64 one = number & POLICY_REJECT ? FOUND_ONE_REJECTING : 0;

	if ((word >> BAN_POLICY_BITS) <= now)
		return 0;
	if (!(number & POLICY_SCOPED))
		return one + FOUND_ONE_ALL;
	if (flow & FLOW_ALL || (flow & FLOW_SET && !scope_covers(number, flow)))
		return 0;
	return one + FOUND_ONE_SCOPED;
}

/* What the table stores of a source, and its hash. `upper` is 0 for all but IPv6
 * hosts, and says of those what must stand beside the key. */
struct ban_key {
	__u64 key;
	__u64 upper;
	__u64 hash;
};

static __always_inline struct ban_key short_key(__u64 key)
{
	return (struct ban_key){.key = key, .hash = hash64(key)};
}

/* `hash`: hash64(hi) */
static __always_inline struct ban_key host_key(__u64 hi, __u64 lo, __u64 hash)
{
	__u64 key = lo ^ hash, reserved = is_zero(key >> 1);
	struct ban_key k = {
		.key = key ^ ((key ^ hi) & reserved),
		.upper = hi ^ ((hi ^ (key | HOST_SWAPPED)) & reserved),
	};

	k.hash = hash64(k.key);
	return k;
}

/* Where an IPv4 host may be, and what its entries have there. */
struct v4_place {
	__u32 first, second;
	__u64 same; /* in the first; with V4_SECOND in the second */
};

/* `addr`: in host order. */
static __always_inline struct v4_place v4_place(__u32 addr)
{
	__u32 x = permute32(addr), first = (__u64)x * cfg.v4_buckets >> 32;

	return (struct v4_place){
		.first = first,
		.second = first ^ (x % BUCKETS_PER_PAGE | 1),
		.same = (x & V4_TAG) | V4_USED,
	};
}

/* An entry's word as the other tables have it. */
static __always_inline __u64 v4_word(__u64 entry)
{
	__u64 expiry = entry >> V4_EXPIRY_AT, policy = entry >> V4_POLICY_AT;

	expiry = (expiry + cfg.started) | is_zero(expiry ^ V4_NEVER);
	return expiry << BAN_POLICY_BITS | (policy & (V4_POLICIES - 1)) |
	       (policy & (3 << V4_REJECT_BIT)) * (POLICY_REJECT >> V4_REJECT_BIT);
}

__noinline __u64 scan_v4(__u32 index, __u32 same, __u64 now, __u32 flow)
{
	struct v4_bucket *bucket = bpf_map_lookup_elem(&v4_bans, &index);
	__u64 found = 0;
	int i;

	if (!bucket)
		return 0;
#pragma unroll
	for (i = 0; i < V4_SLOTS; i++) {
		__u64 entry = *(volatile __u64 *)&bucket->slot[i];

		if ((entry & V4_SAME) == same)
			found += match_entry(v4_word(entry), now, flow);
	}
	return found;
}

/* A bucket without an EMPTY slot: what did not fit went on. */
#define BUCKET_FULL (1ULL << 63)

__noinline __u64 scan_bucket(__u32 index, __u64 key, __u64 upper, __u64 now, __u32 flow)
{
	struct bucket *bucket = bpf_map_lookup_elem(&bans, &index);
	struct bucket_upper *upper_bucket = NULL;
	__u64 found = BUCKET_FULL;
	int i;

	if (!bucket)
		return 0;
	if (upper) {
		index -= cfg.host_base;
		upper_bucket = bpf_map_lookup_elem(&host_upper, &index);
		if (!upper_bucket)
			return 0;
	}
#pragma unroll
	for (i = 0; i < BUCKET_SLOTS; i++) {
		/* Published last, so read first: a slot that has another owner since has
		 * been without a word for a while. */
		__u64 word = *(volatile __u64 *)&bucket->slot[i].word;
		__u64 k = *(volatile __u64 *)&bucket->slot[i].key;

		if (k == KEY_EMPTY)
			found &= ~BUCKET_FULL;
		if (k != key ||
		    (upper_bucket && *(volatile __u64 *)&upper_bucket->slot[i] != upper))
			continue;
		found += match_entry(word, now, flow);
	}
	return found;
}

/* The bucket that is looked at as number `probe`: the first, the second, then those
 * of the overflow area. A function, and each time anew: what its caller kept from
 * probe to probe it would keep on the stack. */
__noinline __u32 bucket_at(__u64 upper, __u64 hash, int probe)
{
	__u32 base = upper ? cfg.host_base : 0;
	__u32 pages = upper ? cfg.pages128 : cfg.pages64;
	__u32 first = first_bucket(hash, pages);

	if (probe == 0)
		return base + first;
	if (probe == 1)
		return base + second_bucket(first, hash);
	return base + pages * BUCKETS_PER_PAGE +
	       (((hash >> 20) + probe - 2) & (upper ? cfg.over128 : cfg.over64));
}

__noinline __u64 find_all(__u64 key, __u64 upper, __u64 hash, __u64 now, __u32 flow)
{
	__u64 found = 0, full = BUCKET_FULL, here;
	int probe;

	for (probe = 0; probe < 2 + OVERFLOW_PROBES; probe++) {
		here = scan_bucket(bucket_at(upper, hash, probe), key, upper, now, flow);
		found += here & ~BUCKET_FULL;
		/* A key overflows where both of its buckets are full. */
		full = probe == 1 ? full & here : here;
		if (probe && !(full & BUCKET_FULL))
			break;
	}
	if (!upper && key >> 32 == 32) {
		found += scan_v4(v4_place(key).first, v4_place(key).same, now, flow);
		found += scan_v4(v4_place(key).second, v4_place(key).same | V4_SECOND,
				 now, flow);
	}
	return found;
}

static __always_inline __u64 find_bans(struct ban_key k, __u64 now, __u32 flow)
{
	return find_all(k.key, k.upper, k.hash, now, flow);
}

/* The functions above find everything; those below answer the usual case, at
 * most one entry and no overflow, without a call and without a branch on what
 * the buckets hold: their cache misses overlap, nothing is mispredicted, and
 * no return pays for the CPU's return mitigation. */
struct lookup {
	__u64 word;    /* word of the matching slot, when only one matches */
	__u64 matches; /* 0 - number of matching slots */
	__u64 full;    /* sign bit: no slot EMPTY */
};

/* `upper`: that of the slot, for hosts. */
static __always_inline void accumulate(struct lookup *l, const struct ban *slot,
				       const __u64 *upper, const struct ban_key *key)
{
	__u64 word = *(volatile __u64 *)&slot->word; /* first, as above */
	__u64 k = *(volatile __u64 *)&slot->key;
	__u64 differ = upper ? *(volatile __u64 *)upper ^ key->upper : 0;
	__u64 same = is_zero((k ^ key->key) | differ);

	l->word |= word & same;
	l->matches += same;
	l->full &= not_zero(k);
}

/* What a lookup found, as find_all counts it; INCONCLUSIVE when there are several
 * entries or overflow. When it is one entry of some ports, `*policy` is its
 * number, to ask scope_covers about. */
#define INCONCLUSIVE (1ULL << 63)
static __always_inline __u64 evaluate(const struct lookup *l, __u64 now, __u32 *policy)
{
	__u64 live = flag((now - (l->word >> BAN_POLICY_BITS)) >> 63);
	__u64 scoped = flag(l->word / POLICY_SCOPED) & live;
	__u64 several = flag((not_zero(l->matches) & not_zero(l->matches + 1)) >> 63);
	__u64 all = live ^ scoped;
	__u64 unclear = several | ((l->full >> 63) & ~all);

	all |= (flag(l->word / POLICY_REJECT) & live) << 16;
	*policy = l->word & BAN_POLICY_MASK & -(scoped & ~unclear);
	return all | scoped << 32 | unclear << 63;
}

/* `host`: a constant. */
static __always_inline __u64 lookup_fast(struct ban_key k, const int host, __u64 now,
					 __u32 *policy)
{
	__u32 first = first_bucket(k.hash, host ? cfg.pages128 : cfg.pages64);
	__u32 second = second_bucket(first, k.hash);
	struct bucket_upper *a_upper = NULL, *b_upper = NULL;
	struct lookup l = {.full = ~0ULL};
	struct bucket *a, *b;
	__u64 found;
	int i;

	if (host) {
		a_upper = bpf_map_lookup_elem(&host_upper, &first);
		b_upper = bpf_map_lookup_elem(&host_upper, &second);
		if (!a_upper || !b_upper)
			return 0;
		first += cfg.host_base;
		second += cfg.host_base;
	}
	a = bpf_map_lookup_elem(&bans, &first);
	b = bpf_map_lookup_elem(&bans, &second);
	if (!a || !b)
		return 0;
#pragma unroll
	for (i = 0; i < BUCKET_SLOTS; i++) {
		accumulate(&l, &a->slot[i], host ? &a_upper->slot[i] : NULL, &k);
		accumulate(&l, &b->slot[i], host ? &b_upper->slot[i] : NULL, &k);
	}
	found = evaluate(&l, now, policy);
	return found & INCONCLUSIVE ? find_bans(k, now, 0) : found;
}

static __always_inline void accumulate_v4(struct lookup *l, const __u64 *slot, __u64 want)
{
	__u64 entry = *(volatile __u64 *)slot, differ = (entry ^ want) & V4_SAME, same;

	asm volatile("" : "+r"(differ)); /* or clang makes a branch of it */
	same = (__s64)(differ - 1) >> 63;
	l->word |= entry & same;
	l->matches += same;
}

/* Does the first bucket alone decide: one entry in force, of all ports? So do most that
 * are banned: an insertion prefers that bucket. The line of the second one then is not
 * read, if the entries there could only say the same, as where no ban rejects. */
static __always_inline __u64 is_decided(const struct lookup *l, __u64 word, __u64 now)
{
	__u64 live = (now - (word >> BAN_POLICY_BITS)) >> 63;
	__u64 scoped = word / POLICY_SCOPED;

	return !control.rejects && flag(live & ~scoped & is_zero(~l->matches));
}

/* Looks up the bans of an IPv4 host: see lookup_fast. */
static __always_inline __u64 lookup_v4(struct ban_key k, __u64 now, __u32 *policy)
{
	struct v4_place at = v4_place(k.key);
	struct v4_bucket *a = bpf_map_lookup_elem(&v4_bans, &at.first), *b;
	struct lookup l = {};
	__u64 found;
	int i;

	if (!a)
		return 0;
#pragma unroll
	for (i = 0; i < V4_SLOTS; i++)
		accumulate_v4(&l, &a->slot[i], at.same);
	if (likely(is_decided(&l, v4_word(l.word) & l.matches, now)))
		return FOUND_ONE_ALL;
	b = bpf_map_lookup_elem(&v4_bans, &at.second);
	if (!b)
		return 0;
#pragma unroll
	for (i = 0; i < V4_SLOTS; i++)
		accumulate_v4(&l, &b->slot[i], at.same | V4_SECOND);
	l.word = v4_word(l.word) & l.matches;
	found = evaluate(&l, now, policy);
	found |= bloom_has_both(bloom_word(k.hash), k.hash) << 63;
	if (found & INCONCLUSIVE) {
		*policy = 0; /* not the only one, perhaps */
		found = find_bans(k, now, 0);
	}
	return found;
}

/* The entries of a source that cover the flow. `policy`: that of the only entry, if
 * lookup_fast found that it is of some ports. */
static __always_inline __u64 lookup_scoped(struct ban_key k, __u64 now, __u32 flow,
					   __u32 policy)
{
	if (!policy)
		return find_bans(k, now, flow);
	if (flow & FLOW_ALL || !scope_covers(policy, flow))
		return 0;
	return FOUND_ONE_SCOPED + (policy & POLICY_REJECT ? FOUND_ONE_REJECTING : 0);
}

#endif
