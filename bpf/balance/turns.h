/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Other methods than the hash of a whole flow. Round robin: each new flow takes the next
 * slot of the ring, which user space has filled in the order of turns. Only what begins a
 * flow and will be remembered has a turn; of anything else each packet would go
 * elsewhere, so it goes by the hash.
 *
 * Least connections: a flow that would have a turn goes to the real with the fewer live
 * flows for its weight, of two that it finds in the ring by its keyed hash ("the power of
 * two choices", Mitzenmacher 2001). A loop over all reals is not needed for that, and
 * whatever somebody makes the counts say, a real gets four times its share of new flows
 * at most, and about twice where all weigh the same. Flows are counted as they begin, and
 * as their clients end them; user space corrects the count by what the table of flows
 * has. */
#ifndef WEIR_BALANCE_TURNS_H
#define WEIR_BALANCE_TURNS_H

#include <linux/tcp.h>
#include "balance/flows.h"
#include "balance/pools.h"

/* Beside the number of a pool: the flow has a turn. */
#define BALANCE_HAS_TURN 0x20000

/* The number of the next slot, by pool; on each CPU, for a common one would be written
 * by all. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BALANCE_POOLS);
	__type(key, __u32);
	__type(value, __u32);
} balance_turns SEC(".maps");

/* What a real would have with one flow more. */
static __always_inline __u64 balance_flows_with(const struct balance_load *load)
{
	__s64 flows = *(const volatile __s64 *)&load->flows;

	return flows < 0 ? 1 : flows + 1;
}

/* Behind the barrier the bound is tested although clang knows it of a hash's slot. */
static __always_inline __u32 balance_in_ring(const struct balance_ring *ring, __u32 slot)
{
	barrier_var(slot);
	return slot < BALANCE_SLOTS ? ring->reals[slot] : BALANCE_NOBODY;
}

/* So many slots are looked at for another real than that of the first. */
#define BALANCE_DRAWS 4

/* The slot of a new flow by least connections. `hash`: a keyed one, so that nobody
 * chooses between which two reals. */
static __always_inline __u32 balance_least(__u64 hash, __u32 number, __u32 slot)
{
	struct balance_ring *ring = bpf_map_lookup_elem(&balance_rings, &number);
	struct balance_load *of_first, *of_other;
	__u32 first, other, at = 0;
	int i;

	if (!ring)
		return slot;
	slot = balance_slot_of(hash);
	first = balance_in_ring(ring, slot);
	other = first;
	for (i = 1; i < BALANCE_DRAWS && other == first; i++) {
		hash = balance_mix(hash, i);
		at = balance_slot_of(hash);
		other = balance_in_ring(ring, at);
	}
	of_first = bpf_map_lookup_elem(&balance_loads, &first);
	of_other = bpf_map_lookup_elem(&balance_loads, &other);
	if (!of_first || !of_other)
		return slot;
	return balance_flows_with(of_other) * of_first->weight <
			       balance_flows_with(of_first) * of_other->weight
		       ? at
		       : slot;
}

/* The slot of a new flow of a pool that has rules; `slot`: that of its whole hash.
 * Global, so that the verifier checks it once. */
__noinline __u32 balance_slot_by_rules(__u64 source0, __u64 source1, __u32 port,
				       __u32 pool, __u32 slot)
{
	const struct balance_rules *rules = balance_rules_of(pool);
	__u32 number = pool & 0xffff, *turn;
	__u64 hash;

	if (!rules || rules->method == BALANCE_BY_FLOW)
		return slot;
	if (rules->method == BALANCE_BY_LEAST) {
		if (!(pool & BALANCE_HAS_TURN))
			return slot;
		hash = balance_mix_keyed(slot, source0, cfg.lasting_seed[0]);
		hash = balance_mix_keyed(hash, source1, cfg.lasting_seed[1]);
		hash = balance_mix_keyed(hash, port, cfg.lasting_seed[2]);
		return balance_least(hash, number, slot);
	}
	if (rules->method == BALANCE_BY_TURN) {
		turn = bpf_map_lookup_elem(&balance_turns, &number);
		if (!turn || !(pool & BALANCE_HAS_TURN))
			return slot;
		return *turn < BALANCE_SLOTS ? *turn : 0;
	}
	hash = balance_source_hash(source0, source1);
	if (rules->method == BALANCE_BY_SOURCE_PORT)
		hash = balance_mix(hash, port);
	return balance_slot_of(hash);
}

/* The turn that balance_slot_by_rules() has said is taken: the next one is another's. */
static __always_inline void balance_take_turn(__u32 pool)
{
	__u32 number = pool & 0xffff,
	      *turn = bpf_map_lookup_elem(&balance_turns, &number);

	if (turn)
		*turn = (*turn < BALANCE_SLOTS ? *turn : 0) + 1;
}

/* The TCP flags of a packet that has ports where they are in most; 0: it is cut. */
static __always_inline __u32 balance_tcp_flags(const void *l3, const void *end, int v4)
{
	const __u32 at = __builtin_offsetof(struct tcphdr, ack_seq) + 5;
	const __u8 *flags =
		l3 + at + (v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));

	return (const void *)(flags + 1) <= end ? *flags : 0;
}

/* What balance_begins() says of a packet of a pool that has rules. */
#define BEGINS_WITH_TURN 1 /* it begins a flow that has a turn */
#define BEGINS_FLOW	 2 /* it opens a TCP connection, maybe one more of a known flow */
/* Where flows are counted (BALANCE_BY_LEAST): */
#define BEGINS_COUNTED_SHIFT 2
#define BEGINS_COUNTED	     4 /* what it begins is one more: 1 << BEGINS_COUNTED_SHIFT */
#define BEGINS_ENDS	     8 /* its client ends it: FIN, or RST */
/* From this bit on: of UDP, udp_silence of the pool. */
#define BEGINS_SILENCE_SHIFT 8

/* What a packet begins: bits of BEGINS_*. Global, so that the verifier does not know the
 * answer. */
__noinline int balance_begins(__u32 pool, __u32 protocol, __u32 tcp_flags)
{
	const struct balance_rules *rules = balance_rules_of(pool);
	const __u32 fin = 1, syn = 2, rst = 4, ack = 16;
	int opens = protocol == IPPROTO_TCP && (tcp_flags & (syn | ack)) == syn;
	int ends =
		protocol == IPPROTO_TCP && !(tcp_flags & syn) && tcp_flags & (fin | rst);
	int is_counted, has_turns;

	if (!rules)
		return 0;
	is_counted = rules->method == BALANCE_BY_LEAST;
	has_turns = is_counted || rules->method == BALANCE_BY_TURN;
	return (opens ? BEGINS_FLOW : 0) |
	       (protocol == IPPROTO_UDP ? rules->udp_silence << BEGINS_SILENCE_SHIFT
					: 0) |
	       (is_counted ? (ends ? BEGINS_ENDS : BEGINS_COUNTED) : 0) |
	       (has_turns && (protocol != IPPROTO_TCP || opens) ? BEGINS_WITH_TURN : 0);
}

#endif
