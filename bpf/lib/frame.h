/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* From the first byte of a frame to its IP header.
 *
 * Decided here, and in the reference decoder of the tests: at most eight VLAN
 * tags, counting the one in skb metadata; more are dropped, for Linux takes any
 * number of priority tags (VLAN 0) off a frame. */
#ifndef WEIR_FRAME_H
#define WEIR_FRAME_H

#include "lib/headers.h"
#include "lib/verifier.h"

/* The kind of a program: its context, and what it can do. */
enum hook {
	IN_XDP,
	IN_TC,	      /* the context is an skb */
	IN_NETFILTER, /* no context: the headers are in a buffer (netfilter.h) */
};

#define VLAN_MAX_TAGS 8

struct vlan_tag {
	__be16 tci;
	__be16 proto;
};

/* A frame as a hook sees it; `l3` is set by parse_l2. */
struct frame {
	void *data;
	void *end;
	void *l3;
	__be16 proto;	 /* Ethernet type of l3 */
	__u16 need_pull; /* the transport header lies behind `end` */
};

/* What stands behind the VLAN tags of a frame that has some, as one scalar for
 * functions that the verifier checks once: offset | type << 16, and a reason in
 * the upper half when it is not R_PASS. */
#define L2_REASON(l2) ((enum reason)((l2) >> 32))
#define L2_OFFSET(l2) ((l2)&L3_MOST)
#define L2_TYPE(l2)   ((__be16)((l2) >> 16))

static __always_inline int is_tag(__be16 proto)
{
	return proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD);
}

static __always_inline __u64 pass_tags(struct frame *f, int tags_seen)
{
	struct vlan_tag *tag = f->data + sizeof(struct ethhdr) - sizeof(__be16) * 2;
	int i;

	/* A tag's type is what stands behind the one before it. */
	if ((void *)(tag + 1) > f->end)
		return (__u64)R_MALFORMED << 32;
#pragma unroll
	for (i = 0; i <= VLAN_MAX_TAGS; i++) {
		if (!is_tag(tag->proto))
			return ((void *)(tag + 1) - f->data) | (__u32)tag->proto << 16;
		if (tags_seen + i >= VLAN_MAX_TAGS)
			break;
		tag++;
		if ((void *)(tag + 1) > f->end)
			return (__u64)R_MALFORMED << 32;
	}
	return (__u64)R_TOO_MANY_TAGS << 32;
}

/* Global, so that the verifier follows the tags once and not once a caller. */
__noinline __u64 tags_of_xdp(struct xdp_md *ctx)
{
	struct frame f = {.data = (void *)(long)ctx->data,
			  .end = (void *)(long)ctx->data_end};

	return pass_tags(&f, 0);
}

__noinline __u64 tags_of_skb(struct __sk_buff *ctx)
{
	struct frame f = {.data = (void *)(long)ctx->data,
			  .end = (void *)(long)ctx->data_end};

	return pass_tags(&f, ctx->vlan_present ? 1 : 0);
}

/* R_PASS when f->l3 is set. `ctx`: an skb when `tc`. One tag is read here: a call
 * costs 9 ns. */
static __always_inline enum reason parse_l2(void *ctx, int tc, struct frame *f)
{
	struct ethhdr *eth = f->data;
	struct vlan_tag *tag;
	__u64 l2, at;

	if (unlikely((void *)(eth + 1) > f->end))
		return R_MALFORMED;
	f->proto = *(__be16 *)(f->data + offsetof(struct ethhdr, h_proto));
	f->l3 = eth + 1;
	if (likely(!is_tag(f->proto)))
		return R_PASS;
	tag = f->l3;
	if ((void *)(tag + 1) > f->end)
		return R_MALFORMED;
	f->proto = tag->proto;
	at = sizeof(*eth) + sizeof(*tag);
	if (is_tag(f->proto)) {
		l2 = tc ? tags_of_skb(ctx) : tags_of_xdp(ctx);
		if (L2_REASON(l2))
			return L2_REASON(l2);
		f->proto = L2_TYPE(l2);
		at = l2;
	}
	/* However many there are, the verifier goes on with one path. */
	VERIFIER_FORGET(at);
	VERIFIER_FORGET(f->proto);
	f->l3 = f->data + L2_OFFSET(at);
	return R_PASS;
}

#endif
