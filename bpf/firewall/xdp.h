/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The firewall as XDP programs. */
#ifndef WEIR_XDP_H
#define WEIR_XDP_H

#include "firewall/decide.h"

static __always_inline int judge_xdp(struct xdp_md *ctx)
{
	struct frame f = {.data = (void *)(long)ctx->data,
			  .end = (void *)(long)ctx->data_end};
	__u32 len = f.end - f.data;
	struct decision d;

	/* Only a frame with a full first page can have more: no call otherwise. */
	if (cfg.frags && unlikely(len >= 2048))
		len = bpf_xdp_get_buff_len(ctx);
	d = decide(ctx, IN_XDP, &f, len, 1, ctx->ingress_ifindex);
	if (d.act == ACT_NEXT) {
		if (cfg.reject && d.next == NEXT_REJECT)
			return refuse_xdp(ctx, look_xdp(ctx, d.reason));
		return meet_xdp(ctx, d.reason);
	}
	return d.act == ACT_DROP ? XDP_DROP : cfg.final_pass;
}

/* Whether it is for frames of many pages says whoever loads it. */
SEC("xdp")
int weir_xdp(struct xdp_md *ctx)
{
	return judge_xdp(ctx);
}

/* The same in generic mode, where no program may be for frames of many pages:
 * of those that are, the kernel copies frames, and whatever comes behind XDP gets
 * the copies without their Ethernet header (docs/kernel.md). */
SEC("xdp")
int weir_xdp_generic(struct xdp_md *ctx)
{
	return judge_xdp(ctx);
}

#endif
