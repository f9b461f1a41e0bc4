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

ANSWERS(answers_tc);

#define TC_PULL(skb)                                                                     \
	bpf_skb_pull_data(skb, (skb)->len < TC_PULL_MOST ? (skb)->len : TC_PULL_MOST)

/* Global, so that the verifier checks it once for both calls. A decision, packed. */
__noinline __u32 judge_skb(struct __sk_buff *skb, int pulled)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct frame f = {.data = data, .end = end};
	__u32 len = skb->len;

	if (!pulled && data + TC_PULL_FIRST > end)
		return ACT_PULL;
	return pack_decision(decide(skb, IN_TC, &f, len, pulled, skb->ingress_ifindex));
}

SEC("tcx/ingress")
int weir_tcx(struct __sk_buff *skb)
{
	struct decision d = unpack_decision(judge_skb(skb, 0));

	if (d.act == ACT_PULL) {
		/* Without memory to pull, what is there must do. */
		TC_PULL(skb);
		d = unpack_decision(judge_skb(skb, 1));
	}
	if (cfg.answers && d.act == ACT_NEXT) {
		CALL_ANSWER(skb, &answers_tc, d.next);
		d.act = finish_unanswered();
	}
	if (d.act == ACT_DROP)
		return TC_ACT_SHOT;
	return cfg.final_pass == XDP_PASS ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

/* Judges a packet that goes out. */
__noinline int judge_out(struct __sk_buff *skb, int pulled)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct frame f = {.data = data, .end = end};
	__u32 bytes = skb->len;
	enum reason reason;
	struct pkt_result result =
		{}; /* verifiers before Linux 6.3 want what they may read set */

	if (!pulled && data + TC_PULL_FIRST > end)
		return ACT_PULL;
	reason = judge_frame(skb, IN_TC, &f, bytes, COVER_OUT, &result);
	if (!pulled && (f.need_pull || reason == R_MALFORMED))
		return ACT_PULL;
	VERIFIER_FORGET(reason);
	if (reason < R_OBSERVED || reason == R_TOO_MANY_TAGS) {
		if (reason == R_ALLOWED || reason == R_ESSENTIAL || reason == R_REPLY)
			count(reason, bytes);
		return ACT_PASS;
	}
	count_class(result.class_verdict, bytes);
	if (reason == R_LISTED)
		reason = R_LISTED_OUT;
	if (reason == R_FENCED)
		reason = R_FENCED_OUT;
	result.ifindex = skb->ifindex;
	result.bytes = bytes;
	result.reason = reason;
	count_and_report(&result, bpf_jiffies64());
	return reason != R_OBSERVED ? ACT_DROP : ACT_PASS;
}

SEC("tcx/egress")
int weir_out(struct __sk_buff *skb)
{
	int act = judge_out(skb, 0);

	if (act == ACT_PULL) {
		TC_PULL(skb);
		act = judge_out(skb, 1);
	}
	return act == ACT_DROP ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

#endif
