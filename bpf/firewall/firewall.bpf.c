// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/* The firewall: one object with a program for each hook, over the same tables. Each is
 * loaded when its hook asks for it; libbpf gives a program the functions that it calls,
 * so the verifier sees nothing of the others. In objects of their own they would have a
 * copy each of the maps, of cfg and of every type. */
#include "firewall/xdp.h"
#include "firewall/tc.h"
#include "firewall/netfilter.h"

/* What this generation was built with; read by whoever takes its pins over. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct meta);
} meta SEC(".maps");

char LICENSE[] SEC("license") = "Dual MIT/GPL";
