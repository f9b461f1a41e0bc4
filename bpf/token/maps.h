/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The tables of tokens, all of them pinned, and what both sides ask of them. */
#ifndef WEIR_TOKEN_MAPS_H
#define WEIR_TOKEN_MAPS_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "abi/identity.h"
#include "token/siphash.h"

#define AF_INET	     2
#define ETHERNET     14 /* bytes of its header */
#define SYN_AND_ACK  0x12
#define SYN	     0x02
#define TCP_SYN_SENT 2

/* What holds, of even generations, then of the others. One that is in force is not
 * written: the next one is written beside it, and then token_current says that it holds.
 * So a program that asks once has the numbers of one policy, to the end. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct token_control);
} token_control SEC(".maps");

/* Which of both is in force. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} token_current SEC(".maps");

/* What is to be added to CLOCK_BOOTTIME for nanoseconds since 1970. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} token_clock SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, TOKEN_NETWORKS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct token_network);
	__type(value, __u32);
} token_networks SEC(".maps");

/* TOKEN_BY_*, of what was found in token_networks. */
static __always_inline __u32 conduit_of(const __u32 *to)
{
	return to ? *to & TOKEN_BY_ALL : TOKEN_BY_NOTHING;
}

static __always_inline struct token_control *control_get(void)
{
	__u32 place = 0, *current = bpf_map_lookup_elem(&token_current, &place);

	if (current)
		place = *current & 1;
	return bpf_map_lookup_elem(&token_control, &place);
}

/* The number of the epoch that it is. */
static __always_inline __u64 epoch_now(void)
{
	__u32 zero = 0;
	__u64 *offset = bpf_map_lookup_elem(&token_clock, &zero);

	return (bpf_ktime_get_boot_ns() + (offset ? *offset : 0)) /
	       (TOKEN_EPOCH * 1000000000ull);
}

static __always_inline void map_v4(__u8 addr[16], __be32 v4)
{
	__u32 *words = (__u32 *)addr;

	words[0] = words[1] = 0;
	words[2] = bpf_htonl(0xffff);
	words[3] = v4;
}

static __always_inline int is_same(const __u8 a[16], const __u8 b[16])
{
	__u64 x[2], y[2];

	__builtin_memcpy(x, a, sizeof(x));
	__builtin_memcpy(y, b, sizeof(y));
	return x[0] == y[0] && x[1] == y[1];
}

static __always_inline void copy_identity(__u8 to[16], const __u8 from[16])
{
	__builtin_memcpy(to, from, 16);
}

#endif
