/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The packet path as a netfilter program, before connection tracking: IP packets
 * of the interfaces that user space names, whatever the device. No packet
 * pointers are to be had here, so the headers are copied to a buffer, which then is the
 * frame: a little for most, much for chains of headers that are longer.
 *
 * It sees what the IP stack has accepted, without its Ethernet header, under the
 * name of the device that the stack knows (a VLAN's own). It cannot answer. */
#ifndef WEIR_NETFILTER_H
#define WEIR_NETFILTER_H

#include "firewall/decide.h"

#define NF_DROP	     0
#define NF_ACCEPT    1
#define NFPROTO_IPV4 2
#define NFPROTO_IPV6 10

/* Members of the kernel's own types that are read here; CO-RE finds the rest. */
struct net_device {
	int ifindex;
} __attribute__((preserve_access_index));
struct nf_hook_state {
	__u8 pf;
	struct net_device *in;
} __attribute__((preserve_access_index));
struct sk_buff {
	unsigned int len;
	unsigned int data_len;
	__u16 mac_len;
	unsigned char *data;
} __attribute__((preserve_access_index));
struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
} __attribute__((preserve_access_index));

extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags,
			       struct bpf_dynptr *ptr__uninit) __ksym __weak;

/* Interfaces whose packets are judged: index + 1, at the place that its hash
 * names or one of the next. crates/bpf/src/interfaces.rs writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, NF_INTERFACES);
	__type(key, __u32);
	__type(value, __u64);
} nf_interfaces SEC(".maps");

static __always_inline int is_judged(__u32 ifindex)
{
	__u32 first = ifindex * NF_HASH_FACTOR >> NF_HASH_SHIFT, at;
	__u64 *there;
	int i;

#pragma unroll
	for (i = 0; i < NF_PROBES; i++) {
		at = (first + i) & (NF_INTERFACES - 1);
		there = bpf_map_lookup_elem(&nf_interfaces, &at);
		if (there && *there == ifindex + 1ULL)
			return 1;
	}
	return 0;
}

/* Global, so that the verifier checks it once for both calls: the first bytes
 * of the packet are in the buffer. An act. */
__noinline int judge_nf(__u32 have, __u32 len, __u32 bytes, __u32 ifindex,
			__u32 pkt_flags)
{
	struct head *head = head_of_packet();
	int all_readable = pkt_flags & 1, v4 = pkt_flags & 2;
	struct pkt_result result; /* set on the way to an event only */
	enum reason reason;
	struct frame f = {};

	if (!head || have > HEAD_MOST)
		return ACT_PASS;
	f.data = f.l3 = head->bytes;
	f.end = head->bytes + have;
	reason = v4 ? judge_ip(NULL, IN_NETFILTER, &f, len, 1, COVER_IN, &result)
		    : judge_ip(NULL, IN_NETFILTER, &f, len, 0, COVER_IN, &result);
	if (!all_readable && (f.need_pull || reason == R_MALFORMED))
		return ACT_PULL;
	return finish(&result, reason, ifindex, bytes);
}

/* The headers of most packets are in their linear part, and one copy from there
 * costs half of what a dynptr does. */
SEC("netfilter")
int weir_netfilter(struct bpf_nf_ctx *ctx)
{
	const int pass = cfg.final_pass == XDP_PASS ? NF_ACCEPT : NF_DROP;
	const struct nf_hook_state *state = ctx->state;
	struct head *head = head_of_packet();
	struct sk_buff *skb = ctx->skb;
	struct net_device *in = state->in;
	struct bpf_dynptr packet;
	__u32 ifindex, len, bytes, v4;
	__u64 have;
	int act;

	if (!head)
		return NF_ACCEPT;
	/* BPF_PROG_RUN has no interface: 0, which only tests name. */
	ifindex = in ? in->ifindex : 0;
	if (!is_judged(ifindex))
		return NF_ACCEPT;
	len = skb->len;
	bytes = len + skb->mac_len;
	v4 = state->pf == NFPROTO_IPV4 ? 2 : 0;
	have = len - skb->data_len;
	if (have > HEAD_FIRST)
		have = HEAD_FIRST;
	barrier_var(have);
	if (have > HEAD_FIRST || bpf_probe_read_kernel(head->bytes, have, skb->data))
		return NF_ACCEPT;
	act = judge_nf(have, len, bytes, ifindex, v4 | (have == len ? 1 : 0));
	if (act != ACT_PULL)
		return act == ACT_DROP ? NF_DROP : pass;

	if (bpf_dynptr_from_skb((struct __sk_buff *)skb, 0, &packet))
		return NF_ACCEPT;
	have = len < HEAD_MOST ? len : HEAD_MOST;
	barrier_var(have);
	if (have == 0 || have > HEAD_MOST ||
	    bpf_dynptr_read(head->bytes, have, &packet, 0, 0))
		return NF_ACCEPT;
	act = judge_nf(have, len, bytes, ifindex, v4 | 1);
	return act == ACT_DROP ? NF_DROP : pass;
}

#endif
