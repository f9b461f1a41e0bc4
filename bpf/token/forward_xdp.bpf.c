// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/* What forward.h does, on XDP: in the driver, before a packet has cost anything. The same
 * code over the same tables, which reads the frame through the helper of XDP
 * (Linux 5.18). The type of a frame is read here, for there is no skb that knows it. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define TOKEN_XDP
/* The context, and how it is read, in all that follows. */
#define __sk_buff	   xdp_md
#define bpf_skb_load_bytes bpf_xdp_load_bytes

#include "token/forward.h"

SEC("xdp")
int weir_forward_xdp(struct xdp_md *xdp)
{
	struct token_control *control = control_get();
	struct token_packet packet = {};

	if (!control || !control->forward)
		return XDP_PASS;
	if (bpf_xdp_load_bytes(xdp, ETHERNET - 2, &packet.link, sizeof(packet.link)))
		return XDP_PASS;
	return judge_forward(xdp, ETHERNET, &packet, control) ? XDP_PASS : XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
