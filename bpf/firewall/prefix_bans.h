/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* Bans of prefixes of any length: few, and seldom changed. A trie walk costs as
 * much as the rest of an innocent's way, so it comes behind a bitmap that says
 * where a prefix may lie, and that behind a word which the way reads anyway.
 *
 * A trie returns its longest match only. So each prefix holds what is banned by
 * itself and by all prefixes that cover it; user space sees to that
 * (crates/bpf/src/prefix_bans.rs). */
#ifndef WEIR_PREFIX_BANS_H
#define WEIR_PREFIX_BANS_H

#include "firewall/allow.h"
#include "firewall/ban.h"

/* IPv4 as ::ffff:a.b.c.d: ::/24 is not bannable, so the two never meet. */
struct prefix_key {
	__u32 bits;
	__be32 addr[4];
};

/* One more than user space fills: before Linux 6.13 a full trie refused to replace an
 * entry, too. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_PREFIX_BANS + 1);
	__type(key, struct prefix_key);
	__type(value, struct prefix_ban_words);
} prefix_bans SEC(".maps");

/* Positions as in allow_hint. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2 * HINT_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} prefix_ban_hint SEC(".maps");

/* `family`: 0 for IPv4, 1 for IPv6; `bit`: the upper half of an IPv4 address,
 * or an IPv6 /32 folded to 16 bits. */
static __always_inline int may_have_prefix_bans(__u32 family, __u32 bit)
{
	__u32 index = family * HINT_WORDS + (bit >> 6);
	__u64 *word;

	if (!(control.prefix_bans >> family & 1))
		return 0;
	word = bpf_map_lookup_elem(&prefix_ban_hint, &index);
	return word && (*word >> (bit & 63)) & 1;
}

/* The entries of all prefixes that hold this source, as find_all counts them. */
__noinline __u64 find_prefix_bans(__u64 hi, __u64 lo, __u64 now, __u32 flow)
{
	struct prefix_key key = {
		.bits = 128,
		.addr = {bpf_htonl(hi >> 32), bpf_htonl(hi), bpf_htonl(lo >> 32),
			 bpf_htonl(lo)},
	};
	struct prefix_ban_words *bans = bpf_map_lookup_elem(&prefix_bans, &key);
	__u64 found = 0;
	__u32 i;

	if (!bans)
		return 0;
	for (i = 0; i < PREFIX_BAN_WORDS; i++) {
		if (i >= bans->words)
			break;
		found += match_entry(bans->word[i], now, flow);
	}
	return found;
}
#define MAPPED 0xffff00000000ULL

#endif
