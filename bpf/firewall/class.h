/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The lists and the rules of the geofence that are about an address, and what
 * follows for this packet. The table (abi.h) is written by
 * crates/bpf/src/class.rs, aside, and swapped whole by control.class_base.
 *
 * Where nothing around an address has a class the way ends at a code, on which
 * nothing but a predicted branch depends. A class is found in one line at the
 * top; below it, where a block has a few parts of another class (single
 * addresses of lists, most of all), by a hash behind a filter, as bans are; where
 * it has many, in two lines a level, each waiting for the one before. An LPM trie
 * of a country database costs 0.5 µs. */
#ifndef WEIR_CLASS_H
#define WEIR_CLASS_H

#include "firewall/ban.h"
#include "firewall/flows.h"
#include "lib/cfg.h"
#include "lib/parse.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct class_line);
} classes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CLASS_COUNTERS);
	__type(key, __u32);
	__type(value, struct class_counter);
} class_counters SEC(".maps");

static __always_inline __u32 class_word(__u32 base, __u32 word)
{
	__u32 index = base + (word >> 4);
	struct class_line *line = bpf_map_lookup_elem(&classes, &index);

	return line ? line->word[word & 15] : 0;
}

/* The reference of child `byte` (0..255) of a node. */
static __always_inline __u32 class_child(__u32 base, __u32 ref, __u32 byte)
{
	__u32 index = base + (ref & ~CLASS_NODE), part = byte >> 6 & 3;
	struct class_node *node = bpf_map_lookup_elem(&classes, &index);
	__u64 upto;

	if (!node)
		return 0;
	upto = node->bits[part] & (~0ULL >> (63 - (byte & 63)));
	return class_word(base,
			  node->refs + node->rank[part] + __builtin_popcountll(upto) - 1);
}

/* Keyed: who publishes a list chooses addresses, not the seed of a copy. */
static __always_inline __u64 class_hash(const struct class_header *header, __u64 key)
{
	key ^= header->seed[0];
	key ^= key >> 32;
	key *= header->seed[1];
	key ^= key >> 29;
	key *= CLASS_HASH_FACTOR;
	return key ^ key >> 32;
}

/* The word of the exceptions' filter for all in a /24 or /48 of this hash. */
static __always_inline __u64 exception_word(const struct class_header *header, __u32 base,
					    __u64 area)
{
	__u32 at = area >> 40 & header->words;
	__u32 index = base + header->filter + (at >> 3);
	struct class_bucket *line = bpf_map_lookup_elem(&classes, &index);

	return line ? line->entry[at & 7] : 0;
}

/* The exception of this hash, as its entry, or 0. */
__noinline __u64 find_exception(__u32 base, __u64 hash)
{
	struct class_header *header = bpf_map_lookup_elem(&classes, &base);
	__u64 want =
		(hash & ~(__u64)(EXCEPTION_TAKEN | EXCEPTION_CLASS)) | EXCEPTION_TAKEN;
	struct class_bucket *bucket;
	__u32 index, probe;
	int i, full;

	if (!header)
		return 0;
	for (probe = 0; probe < EXCEPTION_PROBES; probe++) {
		index = base + header->buckets + ((hash + probe) & header->mask);
		bucket = bpf_map_lookup_elem(&classes, &index);
		if (!bucket)
			return 0;
		full = 1;
#pragma unroll
		for (i = 0; i < 8; i++) {
			__u64 entry = bucket->entry[i];

			if ((entry & ~(__u64)EXCEPTION_CLASS) == want)
				return entry;
			full &= entry != 0;
		}
		if (!full)
			return 0;
	}
	return 0;
}

static __always_inline __u64 exception4(__u32 base, __u32 addr)
{
	struct class_header *header = bpf_map_lookup_elem(&classes, &base);
	__u64 area, host, bits, found = 0;

	if (!header)
		return 0;
	area = class_hash(header, addr >> 8) ^ EXCEPTION_24;
	host = class_hash(header, addr) ^ EXCEPTION_32;
	bits = exception_word(header, base, area);
	if (bloom_has(bits, host))
		found = find_exception(base, host);
	if (!found && bloom_has(bits, area))
		found = find_exception(base, area);
	return found;
}

static __always_inline __u64 exception6(__u32 base, __u64 hi, __u64 lo)
{
	struct class_header *header = bpf_map_lookup_elem(&classes, &base);
	__u64 area, net, host, bits, found = 0;

	if (!header)
		return 0;
	area = class_hash(header, hi >> 16) ^ EXCEPTION_48;
	net = class_hash(header, hi);
	host = class_hash(header, net ^ lo) ^ EXCEPTION_128;
	net ^= EXCEPTION_64;
	bits = exception_word(header, base, area);
	if (bloom_has(bits, host))
		found = find_exception(base, host);
	if (!found && bloom_has(bits, net))
		found = find_exception(base, net);
	if (!found && bloom_has(bits, area))
		found = find_exception(base, area);
	return found;
}

/* The number of the class of an IPv4 address, in host order; 0: nobody says
 * anything about it. Most packets end at their code, two bits in 16 KiB, and
 * others at the hint: a bit that nothing waits for but a predicted branch, in
 * place of lines that wait for one another. */
static __always_inline __u32 class4(__u32 base, __u32 addr)
{
	__u32 code, ref, hint = 1;
	__u64 found;

	if (unlikely(!base))
		return 0;
	code = class_word(base + CLASS_CODE4, addr >> 20) >> (addr >> 15 & 30) & 3;
	if (likely(code == CODE_NOTHING))
		return 0;
	if (code != CODE_UNIFORM)
		hint = class_word(base + CLASS_HINT4, addr >> 13) >> (addr >> 8 & 31) & 1;
	if (!hint && code == CODE_MIXED)
		return 0;
	ref = class_word(base + CLASS_TOP4, addr >> 16);
	if (code == CODE_UNIFORM || !hint)
		return ref;
	if (!(ref & CLASS_NODE)) {
		found = exception4(base, addr);
		return found ? found & EXCEPTION_CLASS : ref;
	}
	ref = class_child(base, ref, addr >> 8 & 0xff);
	if (ref & CLASS_NODE)
		ref = class_child(base, ref, addr & 0xff);
	return ref & CLASS_NODE ? 0 : ref;
}

/* Below the upper 32 bits: allocations end at 32 or 48. */
__noinline __u32 class6_below(__u32 base, __u32 ref, __u64 hi, __u64 lo)
{
	int level;

	for (level = 4; level < 16; level++) {
		if (!(ref & CLASS_NODE))
			break;
		ref = class_child(
			base, ref,
			(level < 8 ? hi >> (56 - 8 * level) : lo >> (120 - 8 * level)) &
				0xff);
	}
	return ref & CLASS_NODE ? 0 : ref;
}

static __always_inline __u32 class6(__u32 base, __u64 hi, __u64 lo)
{
	__u32 at = (hi >> 32 ^ hi >> 56) & 0xffffff, code, ref;
	__u64 found;

	if (unlikely(!base))
		return 0;
	code = class_word(base + CLASS_CODE6, at >> 4) >> (2 * (at & 15));
	if (likely(!(code & (CODE_WALK | CODE_EXCEPTION))))
		return 0;
	if (code & CODE_EXCEPTION) {
		found = exception6(base, hi, lo);
		if (found || !(code & CODE_WALK))
			return found & EXCEPTION_CLASS;
	}
	ref = class_word(base + CLASS_TOP6, hi >> 48);
	if (ref & CLASS_NODE)
		ref = class_child(base, ref, hi >> 40 & 0xff);
	if (ref & CLASS_NODE)
		ref = class_child(base, ref, hi >> 32 & 0xff);
	if (ref & CLASS_NODE)
		ref = class6_below(base, ref, hi, lo);
	return ref;
}

/* A packet as scalars, for functions that the verifier checks once: its flow as
 * for scope_covers with the source port above, and how it goes. No branch makes
 * them, else each of its outcomes would be a path. */
#define PKT_KIND(kind)	      (4U << (kind)) /* enum transport */
#define PKT_CANNOT_START_FLOW 64

static __always_inline __u32 pkt_flags(const struct l4 *l4, __u32 way)
{
	return way | PKT_KIND(l4->kind) |
	       (__u32)l4->cannot_start_flow * PKT_CANNOT_START_FLOW;
}

static __always_inline __u64 flow_of(const struct l4 *l4)
{
	return FLOW_SET | (__u32)l4->protocol << 16 | l4->dest | (__u64)l4->source << 32;
}

static __always_inline __u32 is_covered(__u32 base, __u32 number, __u32 flow,
					__u32 pkt_flags)
{
	__u32 cover = class_word(base + CLASS_COVER_LINES, number);
	__u32 policy = cover & 0xffff;

	if (!(cover >> 16 & pkt_flags))
		return 0;
	if (!policy)
		return 1;
	/* The caller asks with the same bits for the next list, which the verifier shall
	 * look at once and not for each outcome of the tests below. */
	VERIFIER_FORGET(pkt_flags);
	if (pkt_flags & PKT_KIND(L4_PORTS_UNKNOWN))
		return 1;
	return pkt_flags & PKT_KIND(L4_HAS_PORTS) ? scope_covers(policy, flow) : 0;
}

/* What lists and geofence say: R_LISTED or R_FENCED with the number of its
 * counter above, or 0. Lists deny every packet; the geofence those that may
 * begin a flow, by the first rule that covers it. */
#define CLASS_COUNTER_SHIFT 8
__noinline __u32 judge_class(__u32 base, __u32 number, __u32 flow, __u32 pkt_flags)
{
	__u32 records = class_word(base, 2);
	__u32 index = base + records + (number >> 2);
	struct class *four = bpf_map_lookup_elem(&classes, &index);
	struct class class;
	__u32 i;

	if (!four)
		return 0;
	class = four[number & 3];
	for (i = 0; i < CLASS_MAX_LISTS; i++) {
		if (!(class.lists >> i))
			break;
		if (class.lists >> i & 1 && is_covered(base, i, flow, pkt_flags))
			return R_LISTED | i << CLASS_COUNTER_SHIFT;
	}
	if (!class.denied || pkt_flags & PKT_CANNOT_START_FLOW)
		return 0;
	for (i = 0; i < CLASS_MAX_FENCES; i++) {
		if (!(class.denied >> i))
			break;
		if (!is_covered(base, CLASS_MAX_LISTS + i, flow, pkt_flags))
			continue;
		if (!(class.denied >> i & 1))
			break;
		return R_FENCED | (CLASS_MAX_LISTS + class.country)
					  << CLASS_COUNTER_SHIFT;
	}
	return 0;
}

/* Does a rule of the geofence deny the class, for packets in any way? Then
 * flows with it are worth remembering. */
__noinline __u32 is_denied(__u32 base, __u32 number)
{
	__u32 index = base + class_word(base, 2) + (number >> 2);
	struct class *four = bpf_map_lookup_elem(&classes, &index);

	return four ? four[number & 3].denied : 0;
}

/* What lists and geofence say about a packet with this remote address, as
 * judge_class, or R_REPLY: the geofence would deny it, but it answers. */
__noinline __u32 classify(__u32 base, __u32 number, __u64 remote, __u64 flow,
			  __u32 pkt_flags)
{
	__u32 class_verdict = judge_class(base, number, flow, pkt_flags),
	      now = bpf_jiffies64();
	__u32 way = pkt_flags & (COVER_IN | COVER_OUT);
	__u16 there = 0, here = 0;
	__u8 protocol = flow >> 16;

	/* What cannot begin a flow leaves no stamp: the ICMP error by which this host
	 * answers would let an echo request in. */
	if (protocol == IPPROTO_TCP || pkt_flags & PKT_CANNOT_START_FLOW ||
	    (class_verdict & 0xff) == R_LISTED)
		return class_verdict;
	if (pkt_flags & PKT_KIND(L4_HAS_PORTS)) {
		there = way == COVER_IN ? flow >> 32 : flow;
		here = way == COVER_IN ? flow : flow >> 32;
	}
	if (class_verdict)
		return is_answer(flow_hash(remote, protocol, there, here,
					   way ^ (COVER_IN | COVER_OUT)),
				 now)
			       ? R_REPLY
			       : class_verdict;
	if (!is_denied(base, number))
		return 0;
	stamp_flow(flow_hash(remote, protocol, there, here, way), now);
	if (pkt_flags & PKT_KIND(L4_HAS_PORTS)) /* for later fragments of the answer */
		stamp_flow(flow_hash(remote, protocol, 0, 0, way), now);
	return 0;
}

static __always_inline void count_class(__u32 class_verdict, __u32 bytes)
{
	__u32 key = class_verdict >> CLASS_COUNTER_SHIFT;
	struct class_counter *c = bpf_map_lookup_elem(&class_counters, &key);

	if (c) {
		c->packets++;
		c->bytes += bytes;
	}
}

#endif
