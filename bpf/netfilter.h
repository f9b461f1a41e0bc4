/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The packet path as a netfilter program, before connection tracking: IP packets
 * of the interfaces that user space names, whatever the device. Part of
 * ingress.bpf.c: the same tables and the same decision. No packet pointers are
 * to be had here, so the headers are copied to a buffer, which then is the frame:
 * a little for most, much for chains of headers that are longer.
 *
 * It sees what the IP stack has accepted, without its Ethernet header, under the
 * name of the device that the stack knows (a VLAN's own). It cannot answer. */
#ifndef WEIR_NETFILTER_H
#define WEIR_NETFILTER_H

#define NF_DROP	      0
#define NF_ACCEPT     1
#define NFPROTO_IPV4  2
#define NFPROTO_IPV6  10
#define NF_INTERFACES 1024

/* Of the kernel's own types what is read here; CO-RE finds the rest. */
struct net_device {
	int ifindex;
} __attribute__((preserve_access_index));
struct nf_hook_state {
	__u8 pf;
	struct net_device *in;
} __attribute__((preserve_access_index));
struct sk_buff {
	unsigned int len;
	__u16 mac_len;
} __attribute__((preserve_access_index));
struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
} __attribute__((preserve_access_index));

extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags,
			       struct bpf_dynptr *ptr__uninit) __ksym __weak;

/* Interfaces whose packets are judged. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, NF_INTERFACES);
	__type(key, __u32);
	__type(value, __u8);
} nf_interfaces SEC(".maps");

static __always_inline int judge_head(struct head *head, __u32 have, __u32 len,
				      __u32 bytes, __u32 ifindex, int whole, int v4)
{
	struct exit exit; /* set on the way to an event only */
	struct frame f = {.data = head->bytes,
			  .end = head->bytes + have,
			  .l3 = head->bytes,
			  .proto = bpf_htons(v4 ? ETH_P_IP : ETH_P_IPV6)};
	enum reason reason = v4 ? decide_v4(NULL, &f, len, IN_NETFILTER, &exit)
				: decide_v6(NULL, &f, len, IN_NETFILTER, &exit);

	if (!whole && (f.cut || reason == R_MALFORMED))
		return AGAIN;
	return leave(&exit, reason, ifindex, bytes);
}

/* Global, so that the verifier checks it once for both calls: the first bytes
 * of the packet are in the buffer. */
__noinline int judge_nf(__u32 have, __u32 len, __u32 bytes, __u32 ifindex, __u32 how)
{
	struct head *head = head_of_packet();
	int whole = how & 1, v4 = how & 2;

	if (!head || have > HEAD_MOST)
		return 0;
	if (v4)
		return judge_head(head, have, len, bytes, ifindex, whole, 1);
	return judge_head(head, have, len, bytes, ifindex, whole, 0);
}

SEC("netfilter")
int weir_netfilter(struct bpf_nf_ctx *ctx)
{
	const int pass = cfg.final_pass == XDP_PASS ? NF_ACCEPT : NF_DROP;
	struct head *head = head_of_packet();
	struct net_device *in = ctx->state->in;
	struct bpf_dynptr packet;
	__u32 ifindex, len, bytes, v4;
	__u64 have;
	int drop, i;

	if (!head)
		return NF_ACCEPT;
	/* BPF_PROG_RUN has no interface: 0, which only tests name. */
	ifindex = in ? in->ifindex : 0;
	if (!bpf_map_lookup_elem(&nf_interfaces, &ifindex))
		return NF_ACCEPT;
	len = ctx->skb->len;
	bytes = len + ctx->skb->mac_len;
	v4 = ctx->state->pf == NFPROTO_IPV4 ? 2 : 0;
	if (bpf_dynptr_from_skb((struct __sk_buff *)ctx->skb, 0, &packet))
		return NF_ACCEPT;
	for (i = 0; i < 2; i++) {
		have = i ? HEAD_MOST : HEAD_FIRST;
		if (have > len)
			have = len;
		barrier_var(have);
		if (have == 0 || have > HEAD_MOST ||
		    bpf_dynptr_read(head->bytes, have, &packet, 0, 0))
			return NF_ACCEPT;
		drop = judge_nf(have, len, bytes, ifindex,
				v4 | (i || have == len ? 1 : 0));
		if (drop != AGAIN)
			break;
	}
	return drop ? NF_DROP : pass;
}

#endif
