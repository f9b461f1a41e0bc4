/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The allow list wins over every ban. It is read on the way to a drop only,
 * never on an innocent's path; and the tries only where a bit says that an
 * entry may lie there: a walk mispredicts at every node. */
#ifndef WEIR_ALLOW_H
#define WEIR_ALLOW_H

#include <linux/in6.h>
#include "lib/cfg.h"

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

/* Clear: no entry covers such a source. User space sets a bit before it adds the
 * entry (crates/bpf/src/allow.rs has the same positions). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * HINT_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} allow_hint SEC(".maps");

static __always_inline int may_be_allowed(__u32 family, __u32 bit)
{
	__u32 index = family * HINT_WORDS + (bit >> 6);
	__u64 *word = bpf_map_lookup_elem(&allow_hint, &index);

	return word && (*word >> (bit & 63)) & 1;
}

static __always_inline int allowed4(__be32 addr)
{
	struct allow4_key key = {.bits = 32, .addr = addr};

	if (!may_be_allowed(0, bpf_ntohl(addr) >> 16))
		return 0;
	return bpf_map_lookup_elem(&allow4, &key) != NULL;
}

static __always_inline int allowed6(const struct in6_addr *addr)
{
	struct allow6_key key = {.bits = 128};
	__u32 upper = bpf_ntohl(addr->s6_addr32[0]);

	if (!may_be_allowed(1, (upper ^ upper >> 16) & 0xffff))
		return 0;
	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	return bpf_map_lookup_elem(&allow6, &key) != NULL;
}

#endif
