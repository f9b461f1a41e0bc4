/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The firewall as XDP programs. */
#ifndef WEIR_XDP_H
#define WEIR_XDP_H

#include "firewall/decide.h"

ANSWERS(answers_xdp);
ANSWERS(answers_generic);

static __always_inline int judge_xdp(struct xdp_md *ctx, void *answers)
{
	struct frame f = {.data = (void *)(long)ctx->data,
			  .end = (void *)(long)ctx->data_end};
	__u32 len = f.end - f.data;
	struct decision d;

	/* Only a frame with a full first page can have more: no call otherwise. */
	if (cfg.frags && unlikely(len >= 2048))
		len = bpf_xdp_get_buff_len(ctx);
	d = decide(ctx, IN_XDP, &f, len, 1, ctx->ingress_ifindex);
	if (cfg.answers && unlikely(d.act == ACT_NEXT)) {
		CALL_ANSWER(ctx, answers, d.next);
		d.act = finish_unanswered();
	}
	return d.act == ACT_DROP ? XDP_DROP : cfg.final_pass;
}

/* Whether it is for frames of many pages says whoever loads it. */
SEC("xdp")
int weir_xdp(struct xdp_md *ctx)
{
	return judge_xdp(ctx, &answers_xdp);
}

/* The firewall in generic mode, where no program may be for frames of many pages:
 * of those that are, the kernel copies frames, and whatever comes behind XDP gets
 * the copies without their Ethernet header (docs/kernel.md). */
SEC("xdp")
int weir_xdp_generic(struct xdp_md *ctx)
{
	return judge_xdp(ctx, &answers_generic);
}

#endif
