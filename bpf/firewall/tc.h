/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The firewall as tc programs, in and out. What goes out is judged by the same
 * tables, where there is a geofence or a list: destinations that one denies, and
 * stamps for flows that began here (flows.h). What passes is not counted there:
 * ingress is where weir's work is, and nobody waits for these numbers. */
#ifndef WEIR_TC_H
#define WEIR_TC_H

#include <linux/pkt_cls.h>
#include "firewall/decide.h"

/* A TAP with NAPI_FRAGS shows 34 bytes, a packet merged by GRO its headers:
 * enough for most. What needs more (ports behind options of a banned source)
 * pulls it and is judged again. */
#define TC_PULL_FIRST 54
#define TC_PULL_MOST  16384

/* Global, so that the verifier checks it once for both calls. */
__noinline int judge_skb(struct __sk_buff *skb, int pulled)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct frame f = {.data = data, .end = end};
	__u32 len = skb->len;

	if (!pulled && data + TC_PULL_FIRST > end)
		return AGAIN;
	return decide(skb, &f, len, 1, pulled, skb->ingress_ifindex);
}

SEC("tcx/ingress")
int weir_tcx(struct __sk_buff *skb)
{
	int drop = judge_skb(skb, 0);

	if (drop == AGAIN) {
		/* Without memory to pull, what is there must do. */
		bpf_skb_pull_data(skb, skb->len < TC_PULL_MOST ? skb->len : TC_PULL_MOST);
		drop = judge_skb(skb, 1);
	}
	if (cfg.reject && drop >= REFUSE)
		return refuse_skb(skb, look_skb(skb, drop - REFUSE));
	if (cfg.decoy && drop >= BAIT)
		return meet_skb(skb, drop - BAIT);
	if (drop)
		return TC_ACT_SHOT;
	return cfg.final_pass == XDP_PASS ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

static __always_inline enum reason decide_out_v4(struct __sk_buff *skb, struct frame *f,
						 __u32 frame_len, struct exit *exit)
{
	struct iphdr *ip = f->l3;
	__u32 total, base = control.class_base, class, said;
	enum reason why;
	struct l4 l4 = {};

	if ((void *)(ip + 1) > f->end || ip->version != 4 || ip->ihl < 5)
		return R_MALFORMED;
	class = class4(base, bpf_ntohl(ip->daddr));
	VERIFIER_FORGET(class);
	if (!class)
		return R_PASS;
	total = bpf_ntohs(ip->tot_len);
	if (total == 0 && frame_len > 65535)
		total = frame_len;
	if (total < ip->ihl * 4)
		return R_MALFORMED;
	parse_l4(skb, 1, f, total, 0, &l4);
	said = classify(base, class, bpf_ntohl(ip->daddr), flow_of(&l4),
			how(&l4, COVER_OUT));
	why = denied(0, 0, said);
	if (why < R_OBSERVED)
		return why;
	exit->source[10] = exit->source[11] = 0xff;
	__builtin_memcpy(&exit->source[12], &ip->daddr, 4);
	exit->protocol = l4.protocol;
	exit->port = l4.dest;
	exit->said = said;
	return settle(why, &l4, allowed4(ip->daddr));
}

static __always_inline enum reason decide_out_v6(struct __sk_buff *skb, struct frame *f,
						 __u32 frame_len, struct exit *exit)
{
	struct ipv6hdr *ip = f->l3;
	__u32 total, base = control.class_base, class, said;
	enum reason why;
	__u64 hi, lo;
	struct l4 l4 = {};

	if ((void *)(ip + 1) > f->end || ip->version != 6)
		return R_MALFORMED;
	hi = ((__u64)bpf_ntohl(ip->daddr.s6_addr32[0]) << 32) |
	     bpf_ntohl(ip->daddr.s6_addr32[1]);
	lo = ((__u64)bpf_ntohl(ip->daddr.s6_addr32[2]) << 32) |
	     bpf_ntohl(ip->daddr.s6_addr32[3]);
	class = class6(base, hi, lo);
	VERIFIER_FORGET(class);
	if (!class)
		return R_PASS;
	total = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	if (total == sizeof(*ip) && (ip->nexthdr == IPPROTO_HOPOPTS || frame_len > 65535))
		total = ~0U;
	parse_l4(skb, 1, f, total, 1, &l4);
	said = classify(base, class, remote6(hi, lo), flow_of(&l4), how(&l4, COVER_OUT));
	why = denied(0, 0, said);
	if (why < R_OBSERVED)
		return why;
	__builtin_memcpy(exit->source, &ip->daddr, 16);
	exit->protocol = l4.protocol;
	exit->port = l4.dest;
	exit->said = said;
	return settle(why, &l4, allowed6(&ip->daddr));
}

/* Global, so that the verifier checks it once for both calls. */
__noinline int judge_out(struct __sk_buff *skb, int pulled)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct frame f = {.data = data, .end = end};
	struct exit exit = {.ifindex = skb->ifindex, .bytes = skb->len};
	enum reason reason;

	if (!pulled && data + TC_PULL_FIRST > end)
		return AGAIN;
	reason = parse_l2(skb, 1, &f);
	if (reason == R_PASS) {
		if (f.proto == bpf_htons(ETH_P_IP))
			reason = decide_out_v4(skb, &f, exit.bytes, &exit);
		else if (f.proto == bpf_htons(ETH_P_IPV6))
			reason = decide_out_v6(skb, &f, exit.bytes, &exit);
	}
	if (!pulled && (f.cut || reason == R_MALFORMED))
		return AGAIN;
	if (reason < R_OBSERVED || reason == R_TOO_MANY_TAGS) {
		if (reason == R_ALLOWED || reason == R_ESSENTIAL || reason == R_REPLY)
			count(reason, exit.bytes);
		return 0;
	}
	count_class(exit.said, exit.bytes);
	if (reason == R_LISTED)
		reason = R_LISTED_OUT;
	if (reason == R_FENCED)
		reason = R_FENCED_OUT;
	exit.reason = reason;
	count_and_tell(&exit, bpf_jiffies64());
	return reason != R_OBSERVED;
}

SEC("tcx/egress")
int weir_out(struct __sk_buff *skb)
{
	int drop = judge_out(skb, 0);

	if (drop == AGAIN) {
		bpf_skb_pull_data(skb, skb->len < TC_PULL_MOST ? skb->len : TC_PULL_MOST);
		drop = judge_out(skb, 1);
	}
	return drop ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

#endif
