/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What user space says of pools: which address and port is whose, which real a flow
 * goes to, and where that is; and what is counted of them. crates/bpf/src/balance.rs
 * writes and reads it. */
#ifndef WEIR_BALANCE_POOLS_H
#define WEIR_BALANCE_POOLS_H

#include "balance/packet.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct balance_services);
} balance_services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BALANCE_POOLS);
	__type(key, __u32);
	__type(value, struct balance_ring);
} balance_rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BALANCE_REALS);
	__type(key, __u32);
	__type(value, struct balance_real);
} balance_reals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BALANCE_REALS);
	__type(key, __u32);
	__type(value, struct balance_real_counter);
} balance_sent SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BALANCE_SERVICES);
	__type(key, __u32);
	__type(value, struct balance_service_counter);
} balance_served SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BALANCE_POOLS);
	__type(key, __u32);
	__type(value, struct balance_rules);
} balance_rules SEC(".maps");

/* What holds for a pool, by its number in a place; NULL: nothing but what its ring says.
 */
static __always_inline const struct balance_rules *balance_rules_of(__u32 pool)
{
	__u32 number = pool & 0xffff;

	return pool & BALANCE_HAS_RULES ? bpf_map_lookup_elem(&balance_rules, &number)
					: NULL;
}

static __always_inline __u64 balance_mix(__u64 hash, __u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 32;
}

/* The slot of a hash that is not done. */
static __always_inline __u32 balance_slot_of(__u64 hash)
{
	hash = balance_mix(hash, hash >> 29);
	return ((hash & 0xffffffff) * BALANCE_SLOTS) >> 32;
}

static __always_inline __u64 balance_source_hash(__u64 source0, __u64 source1)
{
	return balance_mix(balance_mix(0x243f6a8885a308d3ULL, source0), source1);
}

/* The slot of a flow: not keyed, for two weirs are to choose the same. */
static __always_inline __u32 balance_slot(const struct balance_flow_key *key)
{
	__u64 hash = balance_source_hash(key->source[0], key->source[1]);

	hash = balance_mix(hash, key->dest[0]);
	hash = balance_mix(hash, key->dest[1]);
	hash = balance_mix(hash, (__u64)key->protocol << 32 | key->ports);
	return balance_slot_of(hash);
}

/* The first slot of a service; crates/bpf/src/balance.rs computes it, too. */
static __always_inline __u32 balance_service_slot(__u64 addr0, __u64 addr1, __u64 port)
{
	__u64 hash = addr0 * 0x9e3779b97f4a7c15ULL + addr1 * 0xc2b2ae3d27d4eb4fULL +
		     port * 0x165667b19e3779f9ULL;

	hash = (hash ^ hash >> 32) * 0xff51afd7ed558ccdULL;
	return hash >> 32;
}

static __always_inline __u64 balance_place_in(const struct balance_service *slot,
					      __u64 addr0, __u64 addr1, __u64 port)
{
	int is_there =
		slot->addr[1] == addr1 && slot->addr[0] == addr0 && slot->port == port;

	return is_there ? slot->place : 0;
}

/* `place` of a service that does not stand in its first slot, or else of that of all
 * ports of the address and protocol. Global, so that the verifier checks it once.
 *
 * A slot that never was a service's ends the search: a service stands in the first that
 * is free, and of one that is gone the key stays. */
__noinline __u64 balance_probe(__u64 addr0, __u64 addr1, __u64 port)
{
	struct balance_services *table;
	struct balance_service *slot;
	__u32 zero = 0, first, i, pass;
	__u64 place;

	table = bpf_map_lookup_elem(&balance_services, &zero);
	if (!table)
		return 0;
	for (pass = 0; pass < 2; pass++) {
		first = balance_service_slot(addr0, addr1, port);
		for (i = 0; i < BALANCE_PROBES; i++) {
			slot = &table->slots[(first + i) & (BALANCE_SERVICE_SLOTS - 1)];
			if (!slot->port)
				break;
			place = balance_place_in(slot, addr0, addr1, port);
			if (place)
				return place;
		}
		if (!table->all_ports)
			break;
		port &= ~0xffffULL;
	}
	return 0;
}

/* The service that a packet is addressed to: its `place`; 0: it is no service. One that
 * names the port goes before one of all ports. Most stand in their first slot, and a call
 * costs 9 ns. */
static __always_inline __u64 balance_service_of(const struct balance_flow_key *key)
{
	__u64 port = key->protocol << 16 | key->ports >> 16;
	__u32 zero = 0, first = balance_service_slot(key->dest[0], key->dest[1], port);
	struct balance_services *table = bpf_map_lookup_elem(&balance_services, &zero);
	__u64 place = 0;

	if (table)
		place = balance_place_in(
			&table->slots[first & (BALANCE_SERVICE_SLOTS - 1)], key->dest[0],
			key->dest[1], port);
	return likely(place) ? place : balance_probe(key->dest[0], key->dest[1], port);
}

#endif
