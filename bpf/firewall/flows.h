/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The side that has spoken first: flows without a handshake that began on one side of
 * the interface, so that what comes back is known for an answer. Only flows with
 * addresses that the geofence denies are stamped, and the stamps are read only
 * on the way to a drop. Each packet of the first side renews them. */
#ifndef WEIR_FLOWS_H
#define WEIR_FLOWS_H

#include "lib/cfg.h"
#include "lib/hash.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} flows SEC(".maps");

/* The flow with a remote address (as one 64-bit number) of packets going
 * `way`. Ports are 0 where there are none, and for later fragments. */
static __always_inline __u64 flow_hash(__u64 remote, __u8 protocol, __u16 remote_port,
				       __u16 local_port, __u32 way)
{
	return lasting_hash64(lasting_hash64(remote) ^
			      ((__u64)way << 40 | (__u64)protocol << 32 |
			       (__u32)remote_port << 16 | local_port));
}

/* An answer comes within this time, or has to be begun anew: what conntrack
 * gives an UDP stream. */
static __always_inline int is_fresh(__u64 cell, __u64 hash, __u32 now)
{
	return cell >> 32 == hash >> 32 && now - (__u32)cell < cfg.flow_jiffies;
}

__noinline int stamp_flow(__u64 hash, __u32 now)
{
	__u32 first = hash & (FLOW_CELLS - 1), second = first ^ 1;
	__u64 *a = bpf_map_lookup_elem(&flows, &first);
	__u64 *b = bpf_map_lookup_elem(&flows, &second);
	__u64 cell = hash >> 32 << 32 | now;

	if (!a || !b)
		return 0;
	/* The flow's own cell, else the older one. */
	if (*b >> 32 == hash >> 32 ||
	    (*a >> 32 != hash >> 32 && now - (__u32)*b > now - (__u32)*a))
		*b = cell;
	else
		*a = cell;
	return 0;
}

__noinline int is_answer(__u64 hash, __u32 now)
{
	__u32 first = hash & (FLOW_CELLS - 1), second = first ^ 1;
	__u64 *a = bpf_map_lookup_elem(&flows, &first);
	__u64 *b = bpf_map_lookup_elem(&flows, &second);

	return a && b && (is_fresh(*a, hash, now) || is_fresh(*b, hash, now));
}

#endif
