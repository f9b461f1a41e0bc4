/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* To whom packets go that get options, and what became of them: the same of both programs
 * that put options on packets. */
#ifndef WEIR_OPTIONS_MAPS_H
#define WEIR_OPTIONS_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "abi/inject.h"

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, INJECT_NETWORKS);
	__type(key, struct inject_network);
	__type(value, __u32);
} inject_networks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, INJECT_MAX);
	__type(key, __u32);
	__type(value, __u64);
} inject_counters SEC(".maps");

static __always_inline void count(enum inject_count what)
{
	__u32 key = what;
	__u64 *number = bpf_map_lookup_elem(&inject_counters, &key);

	if (number)
		__sync_fetch_and_add(number, 1);
}

/* Is this destination meant? */
static __always_inline int is_named(const struct inject_network *to)
{
	const __u32 *said = bpf_map_lookup_elem(&inject_networks, to);

	return said && *said;
}

#endif
