/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What answering in place takes: the request is read into a scratch buffer,
 * the reply, never longer, is written over it, and the frame goes back where it
 * came from. By helpers, for the request may lie in fragments; headers on XDP, which
 * hardly ever do, by packet pointers where they do not: a call costs 9 ns, and an answer
 * takes six. Who is answered, and what, is the stages' business. `tc`: the context is an
 * skb. */
#ifndef WEIR_REPLY_H
#define WEIR_REPLY_H

#include <linux/pkt_cls.h>
#include "lib/headers.h"

#define REPLY_TTL 64

static __always_inline int reply_load(void *ctx, int tc, __u32 at, void *to, __u32 len)
{
	return tc ? bpf_skb_load_bytes(ctx, at, to, len)
		  : bpf_xdp_load_bytes(ctx, at, to, len);
}

static __always_inline int reply_store(void *ctx, int tc, __u32 at, void *from, __u32 len)
{
	return tc ? bpf_skb_store_bytes(ctx, at, from, len, BPF_F_RECOMPUTE_CSUM)
		  : bpf_xdp_store_bytes(ctx, at, from, len);
}

/* In words: of packets the compiler takes single bytes. */
static __always_inline void copy_words(void *to, const void *from, const __u32 len)
{
	int i;

#pragma unroll
	for (i = 0; i < (int)(len / 4); i++)
		((__u32 *)to)[i] = ((const __u32 *)from)[i];
}

/* Offsets of headers that are answered: behind Ethernet, eight tags and an IPv6 header.
 */
#define HEAD_AT_MOST 0x7f

/* `len` bytes of an XDP frame in one piece; NULL: they are not. */
static __always_inline void *in_one_piece(void *ctx, __u32 at, const __u32 len)
{
	struct xdp_md *xdp = ctx;
	void *head = (void *)(long)xdp->data + (at & HEAD_AT_MOST);

	return head + len <= (void *)(long)xdp->data_end ? head : NULL;
}

/* Of a header: `len` is a constant, of whole words. */
static __always_inline int reply_load_head(void *ctx, int tc, __u32 at, void *to,
					   const __u32 len)
{
	void *head = tc ? NULL : in_one_piece(ctx, at, len);

	if (!head)
		return reply_load(ctx, tc, at, to, len);
	copy_words(to, head, len);
	return 0;
}

static __always_inline int reply_store_head(void *ctx, int tc, __u32 at, void *from,
					    const __u32 len)
{
	void *head = tc ? NULL : in_one_piece(ctx, at, len);

	if (!head)
		return reply_store(ctx, tc, at, from, len);
	copy_words(head, from, len);
	return 0;
}

/* Sum of 32-bit words for the Internet checksum. */
static __always_inline __u64 sum_words(const void *from, int words)
{
	const __u32 *word = from;
	__u64 sum = 0;
	int i;

#pragma unroll
	for (i = 0; i < words; i++)
		sum += word[i];
	return sum;
}

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Sources that cannot have asked, or that nobody can ban. */
static __always_inline int is_invalid_src4(__be32 addr)
{
	__u32 upper = bpf_ntohl(addr) >> 24;

	return upper == 0 || upper == 127 || upper >= 224;
}

static __always_inline int is_invalid_src6(const struct in6_addr *addr)
{
	__u32 upper = bpf_ntohl(addr->s6_addr32[0]);

	return upper >> 8 == 0 || upper >> 22 == 0xfe80 >> 6 || upper >> 24 == 0xff;
}

/* Cuts the frame down to its reply; not 0: it cannot be. */
static __always_inline int shorten(void *ctx, int tc, __u32 frame_len, __u32 reply_len)
{
	if (tc)
		return bpf_skb_change_tail(ctx, reply_len, 0);
	/* A driver need not pad: what came with 60 bytes leaves so. */
	if (reply_len < ETH_ZLEN)
		reply_len = ETH_ZLEN;
	if (reply_len >= frame_len)
		return 0;
	return bpf_xdp_adjust_tail(ctx, (int)reply_len - (int)frame_len);
}

/* Sends the frame back out where it came in; `mac`: the request's addresses.
 * What the hook shall return. */
static __always_inline int send_back(void *ctx, int tc, const __u8 *mac)
{
	__u8 swapped[12] __attribute__((aligned(4)));

	__builtin_memcpy(swapped, mac + 6, 6);
	__builtin_memcpy(swapped + 6, mac, 6);
	if (reply_store_head(ctx, tc, 0, swapped, sizeof(swapped)))
		return tc ? TC_ACT_SHOT : XDP_DROP;
	return tc ? bpf_redirect(((struct __sk_buff *)ctx)->ifindex, 0) : XDP_TX;
}

#endif
