/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What user space says of pools: which address and port is whose, which real a flow
 * goes to, and where that is; and what is counted of them. crates/bpf/src/balance.rs
 * writes and reads it. */
#ifndef WEIR_BALANCE_POOLS_H
#define WEIR_BALANCE_POOLS_H

#include "balance/packet.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BALANCE_SERVICES);
	__type(key, struct balance_service_key);
	__type(value, struct balance_service);
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

static __always_inline __u64 balance_mix(__u64 hash, __u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 32;
}

/* The slot of a flow: not keyed, for two weirs are to choose the same. */
static __always_inline __u32 balance_slot(const struct balance_flow_key *key)
{
	const __u64 *source = (const void *)key->source;
	const __u64 *dest = (const void *)key->service.addr;
	__u64 hash = 0x243f6a8885a308d3ULL;

	hash = balance_mix(hash, source[0]);
	hash = balance_mix(hash, source[1]);
	hash = balance_mix(hash, dest[0]);
	hash = balance_mix(hash, dest[1]);
	hash = balance_mix(hash, (__u64)key->service.protocol << 32 |
					 (__u32)key->service.port << 16 | key->port);
	hash = balance_mix(hash, hash >> 29);
	return ((hash & 0xffffffff) * BALANCE_SLOTS) >> 32;
}

#endif
