/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Flows that are remembered, so that they stay with their real when the pool changes,
 * and the fragments of packets whose first one was seen. Of the program: user space
 * reads none of it, and a program that is loaded anew finds the same real by the ring. */
#ifndef WEIR_BALANCE_FLOWS_H
#define WEIR_BALANCE_FLOWS_H

#include "balance/packet.h"

struct balance_flow {
	__u64 id;
	__u32 real;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, BALANCE_FLOWS);
	__type(key, struct balance_flow_key);
	__type(value, struct balance_flow);
} balance_flows SEC(".maps");

/* Where its first fragment went. */
struct balance_fragment {
	__u64 id;
	__u32 real;
	__u32 service;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, BALANCE_FRAGMENTS);
	__type(key, struct balance_fragment_key);
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

/* May one more flow be remembered now? */
static __always_inline int balance_may_remember(void)
{
	__u64 window = bpf_jiffies64() >> EVENT_WINDOW_SHIFT;
	__u32 zero = 0;
	struct balance_quota *quota = bpf_map_lookup_elem(&balance_quota, &zero);

	if (!quota)
		return 0;
	if (quota->window != window) {
		quota->window = window;
		quota->flows = 0;
	}
	if (quota->flows >= BALANCE_NEW_FLOWS)
		return 0;
	quota->flows++;
	return 1;
}

#endif
