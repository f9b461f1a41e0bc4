// SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only
/* What forward.h does, on XDP: in the driver, before a packet has cost anything. The same
 * code over the same tables, which reads the frame through the helper of XDP
 * (Linux 5.18). Which protocol a frame carries, behind at most one VLAN tag, is read
 * here, for there is no skb that knows it; a frame with two tags passes, as on tc. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define TOKEN_GATEWAY
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
	__u32 base = ETHERNET;
	__be16 tag[2];

	if (!control || !control->forward)
		return XDP_PASS;
	if (bpf_xdp_load_bytes(xdp, ETHERNET - 2, &packet.link, sizeof(packet.link)))
		return XDP_PASS;
	if (packet.link == bpf_htons(ETH_P_8021Q) ||
	    packet.link == bpf_htons(ETH_P_8021AD)) {
		if (bpf_xdp_load_bytes(xdp, ETHERNET, tag, sizeof(tag)))
			return XDP_PASS;
		packet.link = tag[1];
		base += sizeof(tag);
	}
	if (packet.link != bpf_htons(ETH_P_IP) && packet.link != bpf_htons(ETH_P_IPV6))
		return XDP_PASS;
	return judge_forward(xdp, base, &packet, control) ? XDP_PASS : XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
