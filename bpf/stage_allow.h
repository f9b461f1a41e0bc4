/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The allow list wins over every ban. It is read on the way to a drop only,
 * where a trie of a few entries costs 12-17 ns; never on an innocent's path. */
#ifndef WEIR_STAGE_ALLOW_H
#define WEIR_STAGE_ALLOW_H

#define MAX_ALLOW 65536

struct allow4_key {
	__u32 bits;
	__be32 addr;
};
struct allow6_key {
	__u32 bits;
	__u8 addr[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_ALLOW);
	__type(key, struct allow4_key);
	__type(value, __u8);
} allow4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_ALLOW);
	__type(key, struct allow6_key);
	__type(value, __u8);
} allow6 SEC(".maps");

static __always_inline int allowed4(__be32 addr)
{
	struct allow4_key key = {.bits = 32, .addr = addr};

	return bpf_map_lookup_elem(&allow4, &key) != NULL;
}

static __always_inline int allowed6(const struct in6_addr *addr)
{
	struct allow6_key key = {.bits = 128};

	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	return bpf_map_lookup_elem(&allow6, &key) != NULL;
}

#endif
